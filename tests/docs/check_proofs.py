#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_proofs.py DOCUMENT TESTS: each row of the document's tables with a column `Proof` names tests, and they exist.

A proof is `suite.name` as GoogleTest has it, without what a parametrised test puts around it; or the word none. A row
outside of any table is wrong as well, because a blank line above it would leave its proof unchecked.
"""
import re
import sys
from pathlib import Path

document, tests = map(Path, sys.argv[1:])
known = {
    f"{suite}.{name}"
    for source in tests.rglob("*.cpp")
    for suite, name in re.findall(r"^(?:TASK_)?TEST(?:_[A-Z]+)*\(\s*(\w+),\s*(\w+)[,)]", source.read_text(), re.MULTILINE)
}
lines = document.read_text().splitlines()


def is_rule(number):
    """Whether it is the line below a table's head."""
    return number < len(lines) and re.fullmatch(r"\|[-:| ]*-[-:| ]*\|?", lines[number]) is not None


wrong, proofs, table = [], 0, None
for number, line in enumerate(lines):
    where = f"{document}:{number + 1}"
    if not line.startswith("|"):
        table = None
        continue
    cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
    if table is None:
        table = "proofs" if cells[-1] == "Proof" else "other"
        if not is_rule(number + 1):
            wrong.append(f"{where}: a row outside of any table")
    elif table == "proofs" and not is_rule(number):
        named = re.findall(r"`([^`]+)`", cells[-1])
        proofs += len(named)
        if not named and cells[-1] != "none":
            wrong.append(f"{where}: names no test")
        wrong += [f"{where}: there is no test {name}" for name in named if name not in known]

print("\n".join(wrong) or f"{proofs} proofs, all there")
sys.exit(1 if wrong or not proofs else 0)
