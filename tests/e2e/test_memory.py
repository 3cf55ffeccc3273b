"""--memory is a promise over the whole process: VmHWM stays under it whatever clients do."""

import random
import threading

import pytest

import harness
from harness import CHAT, COMPLETIONS

MIB = 2**20


def mixed_client(server, seed, rounds, errors):
    """Short and long prompts, many choices, huge bodies, hang-ups, refusals: what real clients do."""
    chance = random.Random(seed)
    for _ in range(rounds):
        kind = chance.randrange(8)
        try:
            if kind == 0:
                server.post({"prompt": harness.words(seed, chance.choice([5, 200, 900])), "max_tokens": 8})
            elif kind == 1:
                server.post({"prompt": "Once", "n": 8, "max_tokens": 12, "logprobs": 5, "temperature": 1})
            elif kind == 2:
                server.post({"prompt": "word " * 400_000, "max_tokens": 1})
            elif kind == 3:
                server.post(b'{"prompt": ' + b"[1," * 100_000)
            elif kind == 4:
                server.post({"prompt": "x" * (8 * MIB), "max_tokens": 1})
            elif kind == 5:
                stream = server.stream({"prompt": harness.words(seed, 30), "max_tokens": 200, "ignore_eos": True})
                for _, _ in zip(range(3), stream.response()):
                    pass
                stream.hang_up(reset=chance.random() < 0.5)
            elif kind == 6:
                server.post({"messages": [{"role": "user", "content": harness.words(seed, 60)}] * 5, "max_tokens": 8}, CHAT)
            else:
                assert server.post({"prompt": [5 + i % 90 for i in range(1200)], "max_tokens": 2}).status in (200, 429)
        except OSError:
            pass  # a body that is refused may be cut off while it is sent
        except AssertionError as error:
            errors.append(error)


@pytest.mark.skipif(harness.sanitized(), reason="sanitizers need memory of their own")
@pytest.mark.parametrize("budget", [300, pytest.param(200, marks=pytest.mark.long), pytest.param(400, marks=pytest.mark.long)])
def test_32_mixed_clients_stay_within_the_budget(budget):
    rounds = 30 if harness.FULL else 3
    with harness.started("--memory", f"{budget}MiB", "--served-model-name", "m") as server:
        with server.unharmed():
            errors = []
            clients = [threading.Thread(target=mixed_client, args=(server, seed, rounds, errors)) for seed in range(32)]
            for client in clients:
                client.start()
            for client in clients:
                client.join()
            assert not errors, errors[:2]
        peak = server.peak_memory()
        assert peak <= budget * MIB, f"{peak / MIB:.1f} MiB"
        metrics = server.metrics()
        assert metrics("quire_memory_budget_bytes") == budget * MIB
        accounts = [s.labels["account"] for s in metrics.samples if s.name == "quire_memory_limit_bytes"]
        assert sum(metrics("quire_memory_limit_bytes", account=a) for a in accounts) <= budget * MIB
        for account in accounts:
            used = metrics("quire_memory_used_bytes", account=account)
            assert used <= metrics("quire_memory_limit_bytes", account=account), account


def test_request_memory_is_given_back(tiny):
    def used(account):
        return tiny.metrics()("quire_memory_used_bytes", account=account)

    with tiny.unharmed():
        tiny.wait_idle()
        before = used("requests")
        for body in ({"prompt": "a" * 5000}, {"prompt": ["a"] * 100}, {"prompt": "a", "temperature": "bad"},
                     {"messages": [{"role": "user", "content": "x" * 1000}] * 20}):
            path = CHAT if "messages" in body else COMPLETIONS
            assert tiny.post({**body, "max_tokens": 3}, path).status in (200, 400)
        stream = tiny.stream({"prompt": "a", "max_tokens": 1500, "ignore_eos": True})
        next(stream.events())
        assert used("requests") > before
        stream.hang_up()
        harness.wait_until(lambda: used("requests") == before, what="request memory given back")


def check_report(server):
    """What must hold of GET /debug/memory at any time."""
    answer = server.request("GET", "/debug/memory")
    assert answer.status == 200 and answer.headers["Content-Type"] == "application/json"
    report = answer.json
    accounts = report["accounts"]
    assert set(accounts) == {"program", "weights", "tokenizer", "template", "grammar", "scratch", "http", "requests", "kv"}
    assert sum(a["limit_bytes"] for a in accounts.values()) + report["unassigned_bytes"] == report["budget_bytes"]
    for name, account in accounts.items():
        assert account["used_bytes"] <= account["peak_bytes"] <= account["limit_bytes"], name
    pages = report["pages"]
    assert pages["held"] + pages["cached"] + pages["free"] == pages["total"]
    assert pages["held"] <= pages["held_max"] <= pages["total"]
    assert (pages["total"] + 1) * pages["bytes"] == accounts["kv"]["limit_bytes"]      # and the null page
    if not harness.sanitized():
        assert report["resident_bytes"] <= report["resident_peak_bytes"] <= report["budget_bytes"]
    return report


@pytest.mark.sanitizer
def test_the_report_of_where_memory_is():
    with harness.started(model=harness.tiny()) as server:
        at_first = check_report(server)
        assert at_first["budget_bytes"] == 512 * MIB and at_first["pages"]["held_max"] == 0
        assert at_first["pages"]["free"] == at_first["pages"]["total"] and at_first["pages"]["tokens"] == 16
        for account in ("program", "weights", "tokenizer", "scratch", "kv"):
            assert at_first["accounts"][account]["used_bytes"] == at_first["accounts"][account]["limit_bytes"] > 0
        streams = [server.stream({"prompt": harness.words(i, 100), "max_tokens": 1500, "ignore_eos": True}) for i in range(4)]
        for stream in streams:
            next(stream.events())
        busy = check_report(server)
        assert busy["pages"]["held"] >= 4 * 100 // 16
        assert busy["accounts"]["requests"]["used_bytes"] > 0
        metrics = server.metrics()
        for name, account in busy["accounts"].items():
            assert metrics("quire_memory_limit_bytes", account=name) == account["limit_bytes"]
            assert account["peak_bytes"] <= metrics("quire_memory_peak_bytes", account=name) <= account["limit_bytes"]
        assert busy["pages"]["held"] <= metrics("quire_kv_pages_held_max")
        server.hang_up_all()
        server.wait_idle()
        harness.wait_until(lambda: check_report(server)["accounts"]["requests"]["used_bytes"] == 0, what="memory given back")
        after = check_report(server)
        assert after["pages"]["held"] == 0 and after["pages"]["cached"] > 0
        assert after["pages"]["held_max"] >= busy["pages"]["held"]
        assert after["accounts"]["requests"]["peak_bytes"] >= busy["accounts"]["requests"]["used_bytes"]


def test_what_chats_take_is_in_the_report(server):
    """The text shim's allocator: the template is held, a rendering takes more, and gives it back."""
    at_first = check_report(server)["accounts"]["template"]
    assert at_first["used_bytes"] > 10_000
    messages = [{"role": "user", "content": harness.words(i, 40)} for i in range(20)]
    assert server.post({"messages": messages, "max_tokens": 1}, CHAT).status == 200
    after = check_report(server)["accounts"]["template"]
    assert after["used_bytes"] == at_first["used_bytes"] < after["peak_bytes"] <= after["limit_bytes"]


@pytest.mark.skipif(harness.sanitized(), reason="sanitizers need memory of their own")
@pytest.mark.parametrize("template", [
    "{% set x = [[1] * 100000] * 100000 %}{{ x }}",
    "{% set ns = namespace(l=1) %}{% for i in range(100) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l|tojson }}",
    "{% set ns = namespace(l='x') %}{% for i in range(100) %}{% set ns.l = ns.l ~ ns.l %}{% endfor %}",
    "{{ '{:>1000000000}'.format(1) }}",
    "{{ (('{0}' * 100000).format('x' * 10000))|length }}",
])
def test_a_hostile_template_is_stopped_within_its_memory(tmp_path, template):
    path = tmp_path / "template.jinja"
    path.write_text(template)
    with harness.started("--memory", "200MiB", "--chat-template-file", str(path), model=harness.tiny()) as server:
        for _ in range(3):
            answer = server.post({"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}, CHAT)
            assert (answer.status, answer.error["code"]) == (400, "chat_template")
        check_report(server)
        assert server.peak_memory() < 60 * MIB, "what it holds beside its pages, which nobody has touched"
        assert server.complete(harness.PROBE)


@pytest.mark.skipif(harness.sanitized(), reason="sanitizers need memory of their own")
def test_deeply_structured_bodies_are_counted(server):
    """A JSON value of a few bytes becomes hundreds in the template engine."""
    def chat(values):
        return {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1,
                "tools": [{"type": "function", "function": {"name": "f", "parameters": {"x": [{"a": {}}] * values}}}]}

    with server.unharmed():
        before = server.peak_memory()
        assert server.post(chat(60_000), CHAT).status == 413        # 120,000 values: more than is kept for requests
        assert server.peak_memory() - before < 40 * MIB


@pytest.mark.skipif(harness.sanitized(), reason="sanitizers need memory of their own")
def test_what_can_never_fit_is_not_a_matter_of_time():
    with harness.started("--memory", "200MiB") as server:
        for size in (2_000_000, 2_200_000, 2_300_000, 2_600_000, 8_000_000):
            text = "word " * (size // 5)
            for path, body in ((CHAT, {"messages": [{"role": "user", "content": text}]}), (COMPLETIONS, {"prompt": text})):
                answer = server.post(body, path)
                assert answer.status in (400, 413), answer.body
                if answer.status == 413:
                    assert answer.json["error"]["code"] == "request_too_large" and "at least" in answer.json["error"]["message"]
