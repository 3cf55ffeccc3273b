"""The table of all fields in docs/api.md is made from api/fields.c:

    python tests/structure/fields.py --write    puts it there; QUIRE_BUILD names the build folder
"""
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/api.md"
BLOCK = re.compile(r"(<!-- fields: tests/structure/fields.py --write -->\n\n).*?(\n<!-- fields end -->)", re.S)


def table():
    tool = pathlib.Path(os.environ.get("QUIRE_BUILD", ROOT / "build")) / "tests/api/fields_tool"
    return subprocess.run([tool], check=True, capture_output=True, text=True, timeout=10).stdout


def page_with_table():
    text, count = BLOCK.subn(lambda m: m[1] + table() + m[2], PAGE.read_text(encoding="utf-8"))
    assert count == 1
    return text


if __name__ == "__main__" and sys.argv[1:] == ["--write"]:
    PAGE.write_text(page_with_table(), encoding="utf-8")
