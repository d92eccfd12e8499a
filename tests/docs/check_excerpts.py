#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_excerpts.py ROOT PAGE...: code that a page shows as a program's is the program's, to the letter.

A block that follows `<!-- excerpt: examples/guide/step1_echo.cpp -->` stands in that file line by line, indented by any
common amount. A page of docs/guide whose name begins with a digit shows no other C++, and programs that a page names
exist.
"""
import re
import sys
import textwrap
from pathlib import Path

BLOCK = re.compile(r"(?:<!-- excerpt: (?P<of>\S+) -->\n)?```(?P<language>\w*)\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)


def contains(program, code):
    """Whether the lines of `code` follow one another in the program, with one indentation before all of them."""
    lines, wanted = program.splitlines(), textwrap.dedent(code).splitlines()
    for at, line in enumerate(lines):
        if line.lstrip() != wanted[0].lstrip():
            continue
        found = lines[at:at + len(wanted)]
        if textwrap.dedent("\n".join(found)).splitlines() == wanted:
            return True
    return False


def faults(root, page):
    text = page.read_text()
    for block in BLOCK.finditer(text):
        where = f"{page}:{text[:block.start()].count(chr(10)) + 1}"
        if block["of"] is None:
            if block["language"] == "cpp" and page.name[0].isdigit():
                yield f"{where}: a block of C++ that names no program; write <!-- excerpt: FILE --> in the line before it"
            continue
        program = root / block["of"]
        if not program.is_file():
            yield f"{where}: there is no {block['of']}"
        elif not contains(program.read_text(), block["code"]):
            yield f"{where}: {block['of']} has no such lines any more; copy them from there"
    if page.name[0].isdigit() and "<!-- excerpt: " not in text:
        yield f"{page}: shows nothing of its program"


def main():
    root, pages = Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]]
    found = [fault for page in pages for fault in faults(root, page)]
    if found or not pages:
        sys.exit("\n".join(found) or "no page to check")


main()
