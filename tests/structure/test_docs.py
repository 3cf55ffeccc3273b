"""The documents say what the code says: limits, options, settings."""
import os
import pathlib
import re
import subprocess

import pytest
import yaml

import fields

ROOT = pathlib.Path(__file__).resolve().parents[2]


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def limits():
    """{name: value} of base/limits.h; values are sums and shifts of numbers."""
    found = {}
    header = read("base/limits.h").replace("\\\n", "")    # clang-format breaks long lines
    for name, expression in re.findall(r"^#define (LIMIT_\w+)\s+(.*?)\s*(?:/\*.*)?$", header, re.M):
        plain = re.sub(r"(?<=[0-9a-fA-F])[uUlL]+\b", "", expression)
        if not re.fullmatch(r"[0-9a-fxA-F()<+*\- ]+", plain):
            plain = str(found[plain.strip("()")])    # one limit defined by another
        found[name] = eval(plain)                    # only digits and operators, see above
    return found


def written(name, value):
    if name.endswith("_BYTES") and value % 1024 == 0:
        return "%d MiB" % (value >> 20) if value % (1 << 20) == 0 else "%d KiB" % (value >> 10)
    return "%d" % value


def test_the_limits_table_is_the_header():
    header = {name: written(name, value) for name, value in limits().items()}
    assert len(header) > 20
    table = dict(re.findall(r"^\| `(LIMIT_\w+)` \| ([^|]+?) \|", read("docs/ARCHITECTURE.md"), re.M))
    assert table == header


def test_the_table_of_fields_is_the_code():
    assert fields.page_with_table() == read("docs/api.md"), "stale: python tests/structure/fields.py --write"


def help_text(command):
    binary = os.environ.get("QUIRE_BINARY")
    if not binary or not os.path.exists(binary):
        pytest.fail("QUIRE_BINARY names no program: %r" % binary)
    clean = {k: v for k, v in os.environ.items() if not k.startswith("QUIRE_")}
    return subprocess.run([binary, command, "--help"], check=True, capture_output=True, text=True,
                          env=clean, timeout=10).stdout


def rows_of_help(command):
    """{option: (letter, value, default, meaning)} as cli/options.c has them; a flag's default is "off"."""
    rows = {}
    for row in re.split(r"\n(?=  (?:-\w,|   ) --)", help_text(command).split("\nEvery option")[0])[1:]:
        row = re.sub(r"\n\n\S.*", "", row, flags=re.S)                     # the next group's name
        letter, name, value, text = re.match(r"\s+(?:-(\w), )?--([a-z-]+) ([A-Z]*) *(.*)", row, re.S).groups()
        meaning, default = re.match(r"(.*?)(?: \(([^()]*)\))?$", " ".join(text.split())).groups()
        rows[name] = (letter or "", value, default or "" if value else "off", meaning)
    return rows


def test_the_readme_has_the_options_of_serve():
    """Each row of the table: names, value, default and meaning, word for word."""
    table = read("README.md").split("## Options")[1].split("\n###")[0]
    readme = {}
    for letter, name, value, default, meaning in re.findall(
            r"^\| (?:`-(\w)`, )?`--([a-z-]+)` ?([A-Z]*) \| (.*?) ?\| (.*) \|$", table, re.M):
        readme[name] = (letter, value, default, re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", meaning).replace("`", ""))
    rows = rows_of_help("serve")
    assert len(rows) > 15
    assert readme == rows


def test_links_lead_somewhere():
    for name in ["README.md", "CONTRIBUTING.md", "docs/ARCHITECTURE.md", "docs/api.md", "docs/memory.md", "docs/exactness.md",
                 "docs/performance.md", "docs/clients.md"]:
        folder = (ROOT / name).parent
        for target in re.findall(r"\]\(([^)#\s]+)", read(name)):
            if "://" not in target:
                assert (folder / target).exists(), "%s links to %s" % (name, target)


def test_the_exactness_page_names_what_is_there():
    table = read("docs/exactness.md").split("## How it is tested")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]+) \|", table, re.M)
    assert len(rows) > 7
    for row in rows:
        first, *others = re.findall(r"`([^`]+)`", row)
        for name in [first, *(str(pathlib.PurePath(first).with_name(other)) for other in others)]:
            assert (ROOT / name).is_file(), "docs/exactness.md names %s" % name
    built = read("tests/engine/test_matrix.c")
    for values in ("0, 1, 7, OTHERS", "1, 7, 64, 512", "8, 16, 32, 64", "1, 2, 3"):
        assert "{%s}" % values in built and values.replace("OTHERS", "31") in table


def drain_seconds():
    return int(re.search(r"--drain-seconds.*?\((\d+)\)", help_text("serve"), re.S).group(1))


def limit(name):
    return int(re.search(r"#define %s (\d+)" % name, read("base/limits.h")).group(1))


def test_deployments_wait_for_the_drain():
    """Grace times are longer than all that a server may take: delay, drain, the end of the rest, writing the cache."""
    end = drain_seconds() + 1 + limit("LIMIT_END_SECONDS") + limit("LIMIT_CACHE_SAVE_SECONDS")
    compose = yaml.safe_load(read("deploy/compose.yaml"))["services"]["quire"]
    delay = int(compose["environment"].get("QUIRE_DRAIN_DELAY", 0))
    assert int(compose["stop_grace_period"].rstrip("s")) > delay + end
    assert compose["read_only"] is True and compose["environment"]["QUIRE_SERVED_MODEL_NAME"]
    unit = read("deploy/quire.service")
    assert int(re.search(r"^TimeoutStopSec=(\d+)$", unit, re.M).group(1)) > end
    assert re.search(r"^ExecReload=.*-HUP \$MAINPID$", unit, re.M)


def test_the_kubernetes_manifest():
    deployment, service = yaml.safe_load_all(read("deploy/kubernetes.yaml"))
    pod = deployment["spec"]["template"]["spec"]
    container = pod["containers"][0]
    env = {entry["name"]: entry["value"] for entry in container["env"]}
    assert pod["enableServiceLinks"] is False
    assert int(env["QUIRE_DRAIN_DELAY"]) >= 5
    end = drain_seconds() + 1 + limit("LIMIT_END_SECONDS") + limit("LIMIT_CACHE_SAVE_SECONDS")
    assert pod["terminationGracePeriodSeconds"] > int(env["QUIRE_DRAIN_DELAY"]) + end
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert env["QUIRE_THREADS"] == container["resources"]["requests"]["cpu"]
    assert env["QUIRE_SERVED_MODEL_NAME"]
    assert container["imagePullPolicy"] == "IfNotPresent" and not container["image"].endswith(":latest")
    # Routers learn of the drain within the delay; nobody is killed for not being ready.
    ready, alive, start = (container[kind + "Probe"] for kind in ("readiness", "liveness", "startup"))
    assert ready["httpGet"]["path"] == start["httpGet"]["path"] == "/ready" and alive["httpGet"]["path"] == "/health"
    assert ready["periodSeconds"] == 1 and ready["failureThreshold"] < int(env["QUIRE_DRAIN_DELAY"])
    assert start["periodSeconds"] * start["failureThreshold"] >= 300
    port = container["ports"][0]
    assert port["containerPort"] == 8080 and service["spec"]["ports"][0]["targetPort"] == port["name"]
    options = {"QUIRE_" + name.upper().replace("-", "_") for name in rows_of_help("serve")}
    compose = yaml.safe_load(read("deploy/compose.yaml"))["services"]["quire"]["environment"]
    unit = re.findall(r"(QUIRE_\w+)=", read("deploy/quire.service").split("[Install]")[0])
    assert {*env, *compose} <= options and {name for name in unit if name != "QUIRE_NAME"} <= options


def test_the_image_suits_kubernetes():
    image = read("Dockerfile")
    user = re.search(r"^USER (\d+):(\d+)$", image, re.M)
    assert user and int(user.group(1)) > 0      # a number: runAsNonRoot cannot check a name
    assert re.search(r"^EXPOSE 8080$", image, re.M) and "QUIRE_PORT=8080" in image
