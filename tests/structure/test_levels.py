"""No two files need each other: see levels.py, which measures it."""
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import levels  # noqa: E402


@pytest.fixture(scope="module")
def tree():
    return levels.Tree()


def test_there_is_something_to_check(tree):
    assert len(tree.files) > 80 and len(tree.why) > 300
    # Both are found only by what is called.
    for arrow in [("server/http", "server/http_answer"), ("api/request_read", "api/request_chat")]:
        assert not any(why.startswith("includes") for why in tree.why[arrow])


def test_no_two_files_need_each_other(tree):
    assert not ["%s needs %s: %s" % (a, b, ", ".join(sorted(tree.why[a, b]))) for a, b in tree.in_circles()]


def test_the_drawing_is_the_code(tree):
    drawn = levels.BLOCK.search(levels.DRAWN.read_text(encoding="utf-8"))
    assert drawn and drawn.group(0).strip("\n") == tree.drawing(), "run tests/structure/levels.py --draw"


def test_a_new_arrow_is_drawn():
    texts = {"base/a.h": "", "pager/b.h": '#include "base/a.h"\n', "engine/c.h": '#include "pager/b.h"\n#include "base/a.h"\n'}
    assert [line.split() for line in levels.Tree(texts).drawing().split("\n")] == [
        ["engine", "→", "pager"], ["pager", "→", "base"], ["base"]]
    # A part needs plain data of the folder around it, which needs the part: the data has a row of its own.
    texts |= {"engine/part/d.h": '#include "engine/e.h"\n', "engine/e.h": "", "engine/c.h": '#include "engine/part/d.h"\n'}
    assert [line.split() for line in levels.Tree(texts).drawing().split("\n")] == [
        ["engine", "→", "engine/part"], ["engine/part", "→", "engine/e"], ["pager", "→", "base"], ["engine/e"], ["base"]]
    texts["base/a.h"] = '#include "pager/b.h"\n'
    with pytest.raises(ValueError, match="circle"):
        levels.Tree(texts).drawing()


def test_a_circle_is_found():
    texts = {"base/a.h": '#include "base/b.h"\n', "base/a.c": '#include "base/a.h"\n', "base/b.h": "int b_do(void);\n",
             "base/b.c": '#include "base/b.h"\nint b_do(void)\n{\n    return 0;\n}\n'}
    assert levels.Tree(texts).circles() == []
    # b.c calls what b.h declares and a.c defines: no include shows it.
    texts["base/b.h"] += "extern const int A_TABLE[2];\nunsigned *a_do(int count, void (*call)(void *));\n"
    called = dict(texts)
    called["base/a.c"] += "unsigned *a_do(int count,\n    void (*call)(void *))\n{\n    return 0;\n}\n"
    called["base/b.c"] = called["base/b.c"].replace("return 0", 'return *a_do(0, 0)')
    assert levels.Tree(called).circles() == [["base/a", "base/b"]]
    named = dict(texts)
    named["base/a.c"] += "const int A_TABLE[2] = {1, 2};\n"
    assert levels.Tree(named).circles() == []
    named["base/b.c"] = named["base/b.c"].replace("return 0", "return A_TABLE[0]")
    assert levels.Tree(named).circles() == [["base/a", "base/b"]]
    # A comment, a text, a field or a struct of that name is no call.
    named["base/b.c"] = texts["base/b.c"].replace("return 0", 'struct a_do *x; /* a_do */ f("a_do")')
    assert levels.Tree(named).circles() == []
