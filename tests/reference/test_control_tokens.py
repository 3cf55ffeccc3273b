"""No text of a user's becomes a control token, whatever a chat template does with it.

template_tool prints a guarded rendering: U+FDD0 stands in each control token that is not the template's
own. What a tokenizer would make of that is computed here (the longest token, from left to right). The text
must be what Python's jinja2 prints, and its control tokens those that the same template prints around texts
in which there are none.
"""

import json
import random
import re
import subprocess

import published
import pytest
import test_templates as templates

SENTINEL = "\ufdd0"
ROLES = ["system", "user", "assistant", "tool", "developer"]
FORMS = [r"<\|[^|<>{}'\"\s]{1,40}\|>", r"<｜[^｜<>{}'\"]{1,40}｜>", r"\[/?[A-Z_]{3,30}\]", r"<(?:start|end)_of_\w+>", r"<<?/?SYS>>?",
         r"<extra_id_\d+>", r"<\|/?\w+\|?>"]


def control_tokens(source):
    """What looks like one in a template, and what roles may make."""
    found = {"<s>", "</s>"} | {"<|%s|>" % role for role in ROLES}
    for form in FORMS:
        found |= set(re.findall(form, source))
    return sorted(found)


def guarded(folder, source, contexts, tokens, bos="<s>", eos="</s>"):
    (folder / "template").write_text(source, encoding="utf-8")
    (folder / "tokens").write_text("\n".join(tokens), encoding="utf-8")
    done = subprocess.run([templates.TOOL, folder / "template", bos, eos, folder / "tokens"], capture_output=True,
                          timeout=120, input="".join(context + "\n" for context in contexts).encode())
    assert done.returncode == 0, done.stderr
    answers, rest = [], done.stdout
    while rest:
        head, _, rest = rest.partition(b"\n")
        status, length = map(int, head.split())
        text, rest = rest[:length].decode("utf-8"), rest[length + 1:]
        answers.append(text if status == 0 else RuntimeError(text))
        if status == 1:
            answers *= len(contexts)
    assert len(answers) == len(contexts)
    return answers


def parsed(text, tokens):
    """Control tokens in turn, and the places of all in the text without sentinels."""
    pattern = re.compile("|".join(map(re.escape, sorted(tokens, key=len, reverse=True))))
    return pattern.findall(text)


def texts_replaced(messages, change):
    """Every text of a user's through `change`; roles are not."""
    def walk(value, name=None):
        if isinstance(value, str):
            return value if name in ("role", "type", "id", "tool_call_id") else change(value)
        if isinstance(value, list):
            return [walk(item) for item in value]
        if isinstance(value, dict):
            return {key: walk(item, key) for key, item in value.items()}
        return value
    return walk(messages)


def hostile(tokens, rng):
    """A text made of control tokens, their pieces and what templates look for."""
    pieces = []
    for _ in range(rng.randint(1, 8)):
        token = rng.choice(tokens)
        cut = rng.randint(0, len(token))
        pieces.append(rng.choice([token, token, token[:cut], token[cut:], token[:cut] + " " + token[cut:], token.upper(), "x", " ",
                                  "\n", token[:cut] + "/think" + token[cut:], "&lt;" + token[1:]]))
    return "".join(pieces)


def check_public(folder, source):
    tokens = control_tokens(source)
    rng = random.Random(source)
    contexts = {name: json.loads(text) for name, text in templates.contexts_of().items()}
    plain = [json.dumps(context, ensure_ascii=False) for context in contexts.values()]
    changed = []
    for context in contexts.values():
        # The same length and kind of first and last character, so that templates treat both alike.
        forged = hostile(tokens, rng)
        changed.append([json.dumps({**context, "messages": texts_replaced(context["messages"], change)}, ensure_ascii=False)
                        for change in (lambda text, forged=forged: "a" + forged + "a", lambda text: "a" + "x" + "a")])
    answers = guarded(folder, source, plain + [one for pair in changed for one in pair], tokens)
    unguarded = templates.quire_render(folder, source, plain + [pair[0] for pair in changed])
    good = 0
    assert not any("guarded" in str(answer) for answer in answers if not isinstance(answer, str))
    for index, name in enumerate(contexts):
        got, wanted = answers[index], unguarded[index]
        assert templates.same(wanted, got.replace(SENTINEL, "") if isinstance(got, str) else got), name
        if isinstance(got, str) and not any(token in plain[index] for token in tokens):
            assert SENTINEL not in got, (name, got)
        forged, neutral = answers[len(plain) + 2 * index:][:2]
        if isinstance(forged, str) and isinstance(neutral, str):
            assert forged.replace(SENTINEL, "") == unguarded[len(plain) + index], name
            assert parsed(forged, tokens) == parsed(neutral, tokens), (name, changed[index][0], forged)
            good += 1
    return good, len(contexts)


@pytest.mark.parametrize("path", templates.TEMPLATES, ids=lambda path: path.stem)
def test_public_forms(tmp_path, path):
    good, count = check_public(tmp_path, path.read_text(encoding="utf-8"))
    assert good >= count / 8


@pytest.mark.long
def test_collected_templates(tmp_path):
    for path in published.templates():
        good, count = check_public(tmp_path, path.read_text(encoding="utf-8"))
        assert good >= count / 8, path


# ---- Templates that are made of string operations.

TOKENS = ["<|im_start|>", "<|im_end|>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>", "<s>", "</s>", "[INST]", "[/INST]"]
SCAFFOLDS = [
    "{%% for m in messages %%}<|im_start|>{{ m.role }}\n{{ %s }}<|im_end|>\n{%% endfor %%}",
    "{{ bos_token }}{%% for m in messages %%}{{ '<|im_start|>' + m['role'] + '\n' + (%s) + '<|im_end|>' + '\n' }}{%% endfor %%}",
    "{%% for m in messages %%}{{ '<|' ~ m.role ~ '|>' ~ (%s) ~ eos_token }}{%% endfor %%}",
    "{%% for m in messages %%}<|{{ m.role }}|>{{ %s }}<|end|>{%% endfor %%}",
    "{%% for m in messages %%}{%% if m.role == 'user' %%}{{ '[INST] ' ~ (%s) ~ ' [/INST]' }}{%% else %%}{{ (%s) + eos_token }}{%% endif %%}{%% endfor %%}",
    "{%% set ns = namespace(t='') %%}{%% for m in messages %%}{%% set ns.t = ns.t ~ '<|im_start|>' ~ (%s) ~ '<|im_end|>' %%}{%% endfor %%}{{ ns.t | trim }}",
    "{%% macro turn(r, t) %%}<|im_start|>{{ r | upper }}{{ t }}<|im_end|>{%% endmacro %%}{%% for m in messages %%}{{ turn(m.role, %s) }}{%% endfor %%}",
    "{%% for m in messages %%}{{ ['<|im_start|>', m.role, %s, '<|im_end|>'] | join('\n') }}{%% endfor %%}",
    "{%% for m in messages %%}{{ '%%s%%s<|im_end|>' %% ('<|im_start|>', %s) }}{%% endfor %%}",
    "{%% set end = '<|im_end|>' %%}{%% for m in messages %%}{%% set t %%}<|im_start|>{{ %s }}{%% endset %%}{{ t }}{{ end }}{%% endfor %%}",
    "{%% set roles = {'user': '<|user|>', 'assistant': '<|assistant|>'} %%}{%% for m in messages %%}{{ roles[m.role] }}{{ %s }}<|end|>{%% endfor %%}",
    "{%% for m in messages %%}{{ ('<|im_start|>' ~ m.role)[:] }}{{ %s }}{{ '<|im_end|>\n'.rstrip() }}{%% endfor %%}",
    "{%% for m in messages %%}{%% for c in '<|im_start|>' %%}{{ c }}{%% endfor %%}{{ %s }}{{ '<|im_end|>' * 2 }}{%% endfor %%}",
    "{%% for m in messages %%}{{ '<|im_start|>ROLE\nTEXT<|im_end|>'.replace('ROLE', m.role).replace('TEXT', %s) }}{%% endfor %%}",
    "{%% for m in messages %%}{{ '\\x3c|im_start|\\u003e' }}{{ %s }}{{ \"<|im_\" + \"end|>\" }}{%% endfor %%}",
]
PIECES = ["<|", "|>", "<|im_", "end|>", "<", ">", "im_end|>", "<|im_end|", "|", "_", "</", "[INST"]


def operation(text, rng):
    """A string operation on the expression `text`; what it puts in is no whole token."""
    piece, at = rng.choice(PIECES), rng.randint(0, 12)
    return rng.choice([
        "(%s).replace('/think', '')", "(%s).replace('~', '<')", "(%s).replace(' ', '')", "(%s) | replace('x', '')", "(%s).split('~') | join('')",
        "(%s).split('x') | join('|')", "(%s) | lower", "(%s).lower()", "(%s).upper()", "(%s).title()", "(%s) | trim", "(%s).strip('x<')",
        "(%s)[::-1]", "(%s)[%d:]" % ("%s", at), "((%s)[:%d] ~ (%s)[%d:])" % ("%s", at, "%s", at), "(%s) | list | join('')", "(%s) | reverse | join",
        "(%s).replace('&lt;', '<').replace('&gt;', '>')", "(%s) | string", "(%s).removeprefix('x')", "(%s) ~ m.role", "(%s) + '!'",
        "((%s) ~ '%s')" % ("%s", piece), "('%s' ~ (%s))" % (piece, "%s"), "((%s).partition('~')[0] ~ (%s).partition('~')[2])",
        "(%s).splitlines() | join('')", "(%s).replace('\n', '')", "((%s) | batch(1) | sum(start=[]) | join)", "(%s) | map('lower') | join",
        "(%s) | indent(0)", "('%%s' %% (%s))", "(%s) | truncate(200)", "(%s).replace('%s', '')" % ("%s", piece), "((%s).split('%s') | join(''))" % ("%s", piece),
        "(%s) | replace('A', 'a') | replace('E', 'e')", "(%s) if '~' in (%s) else (%s)", "(%s) | tojson", "(%s).swapcase()", "(%s) | unique | join",
    ]).replace("'%%s' %%", "'%s' %").replace("(%s", "(" + text)


def forged_text(rng):
    token = rng.choice(TOKENS)
    cut = rng.randint(1, len(token) - 1)
    between = rng.choice(["/think", "~", " ", "x", "\n", "&lt;", "", "~~"])
    text = rng.choice([token[:cut] + between + token[cut:], token, token[::-1], token.upper(), token.replace("<", "&lt;").replace(">", "&gt;"),
                       token.replace("<", "~"), "".join(c + between for c in token), token[:cut], token[cut:], token.swapcase()])
    return rng.choice(["", "hi", " ", "x"]) + text + rng.choice(["", "\n", text, "system"])


def check_made(folder, seed, count):
    rng = random.Random(seed)
    rendered = refused = 0
    for _ in range(count):
        scaffold, expression = rng.choice(SCAFFOLDS), "m.content"
        for _ in range(rng.randint(1, 3)):
            expression = operation(expression, rng)
        source = scaffold.replace("%%s%%s", "\0").replace("%s", expression).replace("\0", "%s%s").replace("%%", "%")
        neutral = scaffold.replace("%%s%%s", "\0").replace("%s", "'Q'").replace("\0", "%s%s").replace("%%", "%")
        contexts = [json.dumps({"messages": [{"role": role, "content": forged_text(rng)} for role in ("user", "assistant", "user")]})
                    for _ in range(3)]
        got = guarded(folder, source, contexts, TOKENS)
        for context, answer in zip(contexts, got):
            wanted = templates.python_render(source, context)
            if not isinstance(wanted, str):
                continue
            if not isinstance(answer, str):
                refused += re.search("cannot be (told|guarded)", str(answer)) is not None
                continue
            rendered += 1
            assert answer.replace(SENTINEL, "") == wanted, (source, context)
            skeleton = templates.python_render(neutral, context)
            assert parsed(answer, TOKENS) == parsed(skeleton, TOKENS), (source, context, answer)
    return rendered, refused


@pytest.mark.parametrize("seed", range(4))
def test_string_operations(tmp_path, seed):
    rendered, refused = check_made(tmp_path, seed, 60)
    assert rendered >= 100 and refused <= rendered / 20


@pytest.mark.long
def test_many_string_operations(tmp_path):
    rendered, refused = check_made(tmp_path, 1234, 4000)
    assert rendered >= 6000 and refused <= rendered / 20
