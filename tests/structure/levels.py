#!/usr/bin/env python3
"""How the files of the product need each other: files, levels, arrows and circles of each folder.

    tests/structure/levels.py [--edges] [FOLDER…]
    tests/structure/levels.py --draw      writes the drawing in docs/ARCHITECTURE.md anew

A node is a .c file with the header of its name and its private one (x_private.h), or a header alone. There is an arrow from A to B if A includes B's
header, or if it names a function or a table that B's .c file defines: a header may declare what other files define,
and that must not hide who needs whom. The level of a file is the length of the
longest way down from it; a circle is a set of files each of which needs the others. Reads the files that git knows and
needs nothing built.
"""
import argparse
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ("base", "pager", "engine", "sizing", "api", "server", "cli")
# Folders that nobody sees but the one around them: the drawing has one row for both.
INSIDE = {"engine/kernels/vector": "engine/kernels"}
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.M)
COMMENT_OR_TEXT = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
WORD = re.compile(r"(?<!struct )(?<!enum )\b[A-Za-z_]\w*\b")


def sources():
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard"], check=True,
                            capture_output=True, text=True).stdout.splitlines()
    return [f for f in sorted(set(listed)) if f.endswith((".c", ".h")) and f.split("/", 1)[0] in FOLDERS and
            (ROOT / f).is_file()]


def node_of(name):
    """The path without its ending; a private header counts as the file whose inside it shows."""
    return re.sub(r"_private$", "", name.rsplit(".", 1)[0])


def bare(text):
    return COMMENT_OR_TEXT.sub(" ", text)


def outermost(text):
    """The text outside of braces, each pair of braces written as {}; without the preprocessor's lines."""
    text = re.sub(r"^\s*#(?:[^\n]*\\\n)*[^\n]*", "", text, flags=re.M)
    kept, depth = [], 0
    for c in text:
        if c == "}":
            depth -= 1
        if depth == 0:
            kept.append(c)
        if c == "{":
            depth += 1
    return "".join(kept)


FUNCTION = r"^(?:\w[\w\s*]*?[\s*])(\w+)\s*\([^;{}]*\)\s*"
TABLE = r"^(?:\w[\w\s*]*?[\s*])(\w+)\s*(?:\[[^\]=]*\]\s*)*"


def declared_by(text):
    """Functions and tables that a header offers and somebody else defines."""
    text = re.sub(r"__attribute__\s*\(\([^;]*?\)\)\s*", "", outermost(text))
    return set(re.findall(FUNCTION + ";", text, re.M)) | set(re.findall(TABLE.replace("^", "^extern ") + ";", text, re.M))


def defined_by(text):
    """Functions and tables that a .c file defines."""
    text = outermost(text)
    return set(re.findall(FUNCTION + r"\{\}", text, re.M)) | set(re.findall(TABLE + "=", text, re.M))


class Tree:
    """The product's files and the arrows between them; `texts` {name: text} in place of what git knows."""

    def __init__(self, texts=None):
        if texts is None:
            texts = {name: (ROOT / name).read_text(encoding="utf-8") for name in sources()}
        self.files = {}                      # node → its files
        for name in texts:
            self.files.setdefault(node_of(name), []).append(name)
        plain = {name: bare(text) for name, text in texts.items()}
        declared = {symbol for name, text in plain.items() if name.endswith(".h") for symbol in declared_by(text)}
        owner = {symbol: node_of(name) for name, text in plain.items() if name.endswith(".c")
                 for symbol in defined_by(text) & declared}
        self.why = {}                        # (from, to) → what shows it
        for name, text in texts.items():
            here = node_of(name)
            for header in INCLUDE.findall(text):
                if node_of(header) in self.files and node_of(header) != here:
                    self.why.setdefault((here, node_of(header)), set()).add("includes " + header)
            if name.endswith(".h"):
                continue                     # what a header names it declares, or its users' .c files name too
            for word in set(WORD.findall(plain[name])) & owner.keys():
                if owner[word] != here:
                    self.why.setdefault((here, owner[word]), set()).add(word)
        self.below = {node: sorted({b for a, b in self.why if a == node}) for node in self.files}

    def circles(self):
        """Sets of files that need each other (Tarjan 1972), each sorted."""
        index, low, stack, on, found = {}, {}, [], set(), []

        def visit(node):
            index[node] = low[node] = len(index)
            stack.append(node)
            on.add(node)
            for other in self.below[node]:
                if other not in index:
                    visit(other)
                    low[node] = min(low[node], low[other])
                elif other in on:
                    low[node] = min(low[node], index[other])
            if low[node] == index[node]:
                circle = []
                while not circle or circle[-1] != node:
                    circle.append(stack.pop())
                    on.discard(circle[-1])
                if len(circle) > 1:
                    found.append(sorted(circle))

        for node in sorted(self.files):
            if node not in index:
                visit(node)
        return sorted(found)

    def in_circles(self):
        """Arrows inside circles, as (from, to)."""
        inside = {node: i for i, circle in enumerate(self.circles()) for node in circle}
        return sorted((a, b) for a, b in self.why if a in inside and inside.get(b) == inside[a])

    def folder(self, name):
        """(files, levels, arrows, arrows inside circles) among the files directly in a folder."""
        nodes = {n for n in self.files if n.rsplit("/", 1)[0] == name}
        arrows = [(a, b) for a, b in self.why if a in nodes and b in nodes]
        inside = [(a, b) for a, b in self.in_circles() if a in nodes and b in nodes]
        level = {n: 1 for n in nodes}
        straight = [arrow for arrow in arrows if arrow not in inside]
        for _ in nodes:
            for a, b in straight:
                level[a] = max(level[a], level[b] + 1)
        return len(nodes), max(level.values()), len(arrows), len(inside)


    def rows(self):
        """{row of the drawing: rows that it needs}. A row is a folder; files of a folder that stand below its own parts,
        as engine/batch.h below engine/model, have rows of their own."""
        def folder(node):
            name = node.rsplit("/", 1)[0]
            return INSIDE.get(name, name)

        low = set()
        parts = [(a, b) for a, b in self.why if folder(a).startswith(folder(b) + "/")]
        for upper, part in {(folder(b), folder(a)) for a, b in parts}:
            if any(folder(a) == upper and folder(b) == part for a, b in self.why):
                low |= {b for a, b in parts if folder(b) == upper}
        while True:
            more = {b for a, b in self.why if a in low and folder(a) == folder(b)} - low
            if not more:
                break
            low |= more
        row = {node: node if node in low else folder(node) for node in self.files}
        below = {name: set() for name in row.values()}
        for a, b in self.why:
            below[row[a]].add(row[b])
        return {name: others - {name} for name, others in below.items()}

    def drawing(self):
        """The rows, each above those that it needs; arrows that others imply are left out."""
        below, reach = self.rows(), {}

        def reached(name, above=()):
            if name in above:
                raise ValueError("in a circle: " + " ".join((*above, name)))
            if name not in reach:
                found = set()
                for other in sorted(below[name]):
                    found |= {other} | reached(other, (*above, name))
                reach[name] = found
            return reach[name]

        for name in below:
            reached(name)
        lines = []
        for name in sorted(below, key=lambda n: (-len(reach[n]), n == "base", n)):
            direct = {b for b in below[name] if not any(b in reach[c] for c in below[name])}
            lines.append(("    %-24s%s" % (name, "→ " + ", ".join(sorted(direct)) if direct else "")).rstrip())
        return "\n".join(lines)


DRAWN = ROOT / "docs/ARCHITECTURE.md"
BLOCK = re.compile(r"(?<=<!-- drawn by tests/structure/levels.py --draw -->\n\n).*?(?=<!-- drawn -->)", re.S)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--edges", action="store_true", help="also what makes each arrow of a circle")
    parser.add_argument("--draw", action="store_true", help="write the drawing in docs/ARCHITECTURE.md anew")
    parser.add_argument("folders", nargs="*")
    args = parser.parse_args()
    tree = Tree()
    if args.draw:
        text = DRAWN.read_text(encoding="utf-8")
        DRAWN.write_text(BLOCK.sub(lambda _: tree.drawing() + "\n\n", text), encoding="utf-8")
        return
    folders = args.folders or sorted({n.rsplit("/", 1)[0] for n in tree.files})
    print("%-20s %5s %6s %6s %10s" % ("folder", "files", "levels", "arrows", "in circles"))
    for name in folders:
        print("%-20s %5d %6d %6d %10d" % (name, *tree.folder(name)))
    for circle in tree.circles():
        if any(node.rsplit("/", 1)[0] in folders for node in circle):
            print("circle: " + " ".join(circle))
            for a, b in tree.in_circles():
                if args.edges and a in circle:
                    print("    %s → %s: %s" % (a, b, ", ".join(sorted(tree.why[a, b]))))


if __name__ == "__main__":
    main()
