"""The tree keeps its shape: who may include whom, which library has which one user, which headers are
for other folders, and that no file names a machine's path or a package registry's host.

Reads the files that git knows; needs nothing built.
"""
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FILES = subprocess.run(["git", "-C", ROOT, "ls-files"], check=True, capture_output=True,
                       text=True).stdout.splitlines()
SOURCES = [f for f in FILES if f.endswith((".c", ".h"))]
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)', re.M)

# Arrows point to what a folder may include; every folder may also include itself.
ARROWS = {
    "base": set(),
    "pager": {"base"},
    "engine": {"pager", "base"},
    "api": {"engine", "pager", "base"},
    "sizing": {"engine", "pager", "base"},
    "server": {"sizing", "api", "engine", "pager", "base"},
    "cli": {"server", "sizing", "api", "engine", "pager", "base"},
}
# Inside engine/ the same, so that no circle can form.
ENGINE_ARROWS = {
    "engine/kernels": set(),
    "engine/model": {"engine/kernels"},
    "engine/text": {"engine/model"},
    "engine/sample": {"engine/kernels", "engine/text"},
    "engine/constrain": {"engine/text"},
    "engine/scheduler": {"engine/sample"},
}
# Headers of engine/ itself that its parts may include: plain data that passes between them.
ENGINE_SHARED = {"engine/batch.h"}
# Headers of the folder above that a part stands on. The scheduler schedules completions and counts what it
# does; the file of the prefix cache keeps its slots in the pool and the index that the pager keeps pages in; the
# kernels for instruction sets stand on the table of formats and the layouts that the specification reads too.
BELOW = {
    "engine/kernels/vector": {"engine/kernels/%s.h" % name for name in
                              ["attention", "block", "format_table", "kernel_set", "kv_page", "repack", "sets"]},
    "engine/scheduler": {"engine/completion_private.h", "engine/engine_metrics.h"},
    "pager/disk": {"pager/page_pool.h", "pager/prefix_index.h"},
}

# A library has one user.
OWNERS = {
    r"cjson/.*|cJSON\.h": "api/",
    r"microhttpd\.h": "server/",
    r"pcre2.*\.h": "engine/text/",
    r"textshim\.h": "api/",
    r"textgrammar\.h": "engine/constrain/",
    r"xxhash\.h": "base/",
    r"cblas\.h|openblas.*": "engine/model/",
    r"check\.h": "tests/",
    r"gnutls/.*": "server/",
    r"curl/.*": "server/",
}


def includes_of(name):
    """(written, is_quoted) for each include."""
    text = (ROOT / name).read_text(encoding="utf-8", errors="replace")
    return [(quoted or angled, bool(quoted)) for quoted, angled in INCLUDE.findall(text)]


def top_folder(name):
    return name.split("/", 1)[0]


def engine_part(name):
    return next((part for part in ENGINE_ARROWS if name.startswith(part + "/")), None)


def test_there_is_something_to_check():
    assert len(SOURCES) > 40
    assert sum(len(includes_of(f)) for f in SOURCES) > 200


@pytest.mark.parametrize("folder", sorted(ARROWS))
def test_arrows(folder):
    allowed = ARROWS[folder] | {folder}
    wrong = []
    for name in (f for f in SOURCES if top_folder(f) == folder):
        for header, quoted in includes_of(name):
            if quoted and top_folder(header) in {*ARROWS, "tests", "bench"} and \
                    top_folder(header) not in allowed:
                wrong.append("%s includes %s" % (name, header))
    assert not wrong


def test_arrows_inside_the_engine():
    wrong = []
    for name in (f for f in SOURCES if engine_part(f)):
        allowed = ENGINE_ARROWS[engine_part(name)] | {engine_part(name)}
        for header, quoted in includes_of(name):
            if quoted and header.startswith("engine/") and \
                    header not in ENGINE_SHARED | BELOW.get(name.rsplit("/", 1)[0], set()) and \
                    engine_part(header) not in allowed:
                wrong.append("%s includes %s" % (name, header))
    assert not wrong


def test_every_quoted_include_is_a_path_from_the_root():
    wrong = ["%s includes \"%s\"" % (name, header) for name in SOURCES
             if not name.startswith("subprojects/")
             for header, quoted in includes_of(name)
             if quoted and not (ROOT / header).is_file() and header not in ("textshim.h", "textgrammar.h")]
    assert not wrong


@pytest.mark.parametrize("library", sorted(OWNERS))
def test_one_library_has_one_user(library):
    pattern = re.compile(library)
    wrong = []
    for name in SOURCES:
        if name.startswith(("tests/", "bench/", "subprojects/")):
            continue
        for header, quoted in includes_of(name):
            # base/check.h is ours; <check.h> is the test library's.
            if pattern.fullmatch(header) and (not quoted or header in ("textshim.h", "textgrammar.h")) and \
                    not name.startswith(OWNERS[library]):
                wrong.append("%s includes %s, which is %s's" % (name, header, OWNERS[library]))
    assert not wrong


def public_headers():
    """Headers that docs/ARCHITECTURE.md names as for other folders: rows `| folder/ | a.h, b.h |`."""
    public = set()
    text = (ROOT / "docs/ARCHITECTURE.md").read_text(encoding="utf-8")
    for folder, headers in re.findall(r"^\| `([a-z/]+/)` \| (.*?) \|$", text, re.M):
        public |= {folder + header for header in re.findall(r"`([a-z_0-9]+\.h)`", headers)}
    return public


def test_only_public_headers_cross_folders():
    public = public_headers()
    assert public, "docs/ARCHITECTURE.md names no header for other folders"
    assert not [h for h in public if not (ROOT / h).is_file()]
    wrong = []
    for name in (f for f in SOURCES if top_folder(f) in ARROWS):
        below = BELOW.get(name.rsplit("/", 1)[0], set())
        for header, quoted in includes_of(name):
            if quoted and "/" in header and header.rsplit("/", 1)[0] != name.rsplit("/", 1)[0] and \
                    top_folder(header) in ARROWS and header not in public | below:
                wrong.append("%s includes %s, which docs/ARCHITECTURE.md does not name" % (name, header))
    assert not wrong


def test_public_headers_have_users():
    used = {header for name in SOURCES for header, quoted in includes_of(name)
            if quoted and "/" in header and header.rsplit("/", 1)[0] != name.rsplit("/", 1)[0]}
    assert not public_headers() - used


def test_min_and_max_are_written_once():
    """base/minmax.h has them, and <math.h> those of doubles. Kernels, samplers and the reference say what is not a
    number by the order of their comparison."""
    value = r"([\w.>\[\]-]+)"
    pattern = re.compile(value + " [<>] " + value + r" \?\s+(?:\(\w+\))?" + value + r"\s+:\s+(?:\(\w+\))?" + value + "(?=[;,)])")
    wrong = []
    for name in (f for f in SOURCES if top_folder(f) in ARROWS and f != "base/minmax.h"):
        if name.startswith(("engine/kernels/", "engine/sample/")) or name == "engine/model/openblas.c":
            continue
        for a, b, c, d in pattern.findall((ROOT / name).read_text(encoding="utf-8")):
            if {a, b} == {c, d} and not {a, b} & {"0", "1000", "-1000", "cached"}:     # signed numbers
                wrong.append("%s: %s or %s" % (name, a, b))
    assert not wrong


# Package clients use the machine's own configuration: no host and no folder of one machine may be here.
FORBIDDEN = [
    (r"(?<![\w.:$}~-])/(?:root|home/\w+|work|Users/\w+)/", "a folder of one machine"),
    (r"(?<![\w.$}~-])/tmp/(?:venv|m/|build-)", "a folder of one machine"),
    (r"\b(?:deb|security|snapshot|ftp[.\w]*|packages)\.debian\.org|\bpypi\.org|pythonhosted\.org",
     "a registry's host"),
    (r"\bcrates\.io\b|registry\.npmjs|\brepo1?\.maven|proxy\.golang|\bdocker\.io\b|\bquay\.io\b|"
     r"\bghcr\.io\b|\bhuggingface\.co\b|\bhf\.co\b", "a registry's host"),
]


def test_nothing_names_a_machine_or_a_registry():
    wrong = []
    for name in FILES:
        path = ROOT / name
        if name.endswith("Cargo.lock") or name == "tests/structure/test_structure.py" or not path.is_file():
            continue                      # a lock file's sources are written so by cargo itself
        text = path.read_bytes().decode("utf-8", "replace")
        for pattern, what in FORBIDDEN:
            for match in re.finditer(pattern, text):
                line = text.count("\n", 0, match.start()) + 1
                wrong.append("%s:%d names %s: %s" % (name, line, what, match.group(0)))
    assert not wrong


def test_the_patterns_find_what_they_should():
    joined = ["/ro" + "ot/x", "/home/" + "ann/x", "/wo" + "rk/main", "deb.debi" + "an.org", "py" + "pi.org"]
    for text in joined:
        assert any(re.search(pattern, " " + text) for pattern, _ in FORBIDDEN), text
    for text in ["$HOME/work/x", "docs/root/x", "network/main"]:
        assert not any(re.search(pattern, text) for pattern, _ in FORBIDDEN), text


def test_sources_keep_the_column():
    wrong = []
    for name in (f for f in SOURCES if not f.startswith("subprojects/")):
        for number, line in enumerate((ROOT / name).read_text(encoding="utf-8").splitlines(), 1):
            if len(line) > 120:
                wrong.append("%s:%d has %d columns" % (name, number, len(line)))
    assert not wrong
