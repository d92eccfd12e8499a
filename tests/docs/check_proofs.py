#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_proofs.py DOCUMENT TESTS: each row of the document's tables with a column `Proof` names tests, and they exist.

A proof is `suite.name` as GoogleTest has it, without what a parametrised test puts around it; or the word none.
"""
import re
import sys
from pathlib import Path

document, tests = map(Path, sys.argv[1:])
known = {
    f"{suite}.{name}"
    for source in tests.rglob("*.cpp")
    for suite, name in re.findall(r"^TEST(?:_[FP])?\(\s*(\w+),\s*(\w+)\)", source.read_text(), re.MULTILINE)
}

wrong, proofs, in_table = [], 0, False
for number, line in enumerate(document.read_text().splitlines(), start=1):
    cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
    if not line.startswith("|"):
        in_table = False
    elif cells[-1] == "Proof":
        in_table = True
    elif in_table and not set(line) <= set("|-"):
        named = re.findall(r"`([^`]+)`", cells[-1])
        proofs += len(named)
        if not named and cells[-1] != "none":
            wrong.append(f"{document}:{number}: names no test")
        wrong += [f"{document}:{number}: there is no test {name}" for name in named if name not in known]

print("\n".join(wrong) or f"{proofs} proofs, all there")
sys.exit(1 if wrong or not proofs else 0)
