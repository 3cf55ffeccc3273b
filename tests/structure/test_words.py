"""One vocabulary: phrases of the project's former dialect that have one meaning are not written again, in code,
comments, help, messages or documents. docs/GLOSSARY.md has the terms; each row here says which one is meant.

EXEMPT names files that are not clean yet. A file leaves the list when it is: the test fails for an exempt file
without a retired phrase, so the list only shrinks.
"""
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]

RETIRED = {
    # the scheduler and the pager
    r"g(?:ives?|ave|iven|iving) way|mak(?:e|es|ing) way|give_way|make_way|gives_way": "preempt",
    r"send_back|sends? (?:it|them) back to the waiting|sent back to the waiting": "requeue",
    r"unseat|seat_followers|scheduler_seat": "running slot",
    r"\bfindable": "cached",
    r"on credit": "without the worst case",
    r"swap_note|swap_image|sequence_kept|image_pages": "swap entry, swapped pages",
    r"is_dirty|mark_dirty|next_dirty|scheduler_settle": "pending notification, notify",
    r"page groups?\b|page_groups?\b": "KV cache group",
    r"holders of (?:a|the) page|page_pool_holders|pager_holders": "reference count",
    r"step_pacer|\bintake\b": "pacer, inbox",
    # kernels and model
    r"panel_quad|vector_eight|vector_members|vector_rows?\b": "names that speak, see engine/kernels/vector/",
    r"unpack_row": "dequantize_row",
    r"feed_norm": "ffn_norm",
    r"look_beyond|looks? beyond": "prefetch",
    r"models? of numbers": "synthetic model shape",
    # the server
    r"laggards?\b": "slow client",
    r"\bbarks?\b|\bbarked\b|\bbarking\b": "fires",
    r"text_thread|\btext threads?\b": "preprocessing thread",
}

EXEMPT = set()

ENDINGS = (".c", ".h", ".py", ".md", ".rs", ".build", ".sh", ".yaml", ".yml")


def files():
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard"], check=True,
                            capture_output=True, text=True).stdout.splitlines()
    return [f for f in sorted(set(listed)) if (ROOT / f).is_file() and f != "tests/structure/test_words.py" and
            (f.endswith(ENDINGS) or "." not in f.rsplit("/", 1)[-1])]


# One pass over a text; blanks also match where a comment or a paragraph breaks a phrase.
ANY = re.compile("|".join("(%s)" % phrase.replace(" ", r"(?:\s+(?:\*|//|#)?\s*)") for phrase in RETIRED))
TERMS = list(RETIRED.values())


def retired_in(text):
    """(line, phrase, term) for each retired phrase."""
    return [(text.count("\n", 0, match.start()) + 1, " ".join(match.group(0).split()), TERMS[match.lastindex - 1])
            for match in ANY.finditer(text.lower())]


def read(name):
    return (ROOT / name).read_bytes().decode("utf-8", "replace")


def test_no_retired_phrase_is_written():
    wrong = ["%s:%d says \"%s\": %s" % (name, line, phrase, term)
             for name in files() if name not in EXEMPT for line, phrase, term in retired_in(read(name))]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", sorted(EXEMPT) or [None])
def test_the_exempt_are_not_clean_yet(name):
    assert name is None or ((ROOT / name).is_file() and retired_in(read(name))), \
        "%s is clean: take it out of EXEMPT" % name


def test_the_phrases_are_found():
    for text in ["who gives\n * way to", "make_way(s)", "a findable page", "admitted on\n   credit", "the watchdog barks"]:
        assert retired_in(text), text
    for text in ["give back", "the embarked", "holder", "an unseated"[:5], "context threads"]:
        assert not retired_in(text), text
