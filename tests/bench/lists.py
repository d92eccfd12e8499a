#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""lists.py BUILD_DIR [--quick]: what a block of 64 KiB costs that is moved as one of a list, over the link of verbs.

Callgrind counts the instructions of all functions of weft::net and weft::mr, at both ends together, while the second
list of a connection is moved. The RDMA device is simulated, so that the counts are the same each time. What is inlined
into these functions counts with them. The device, the executor and the C library do not count.

Prints a table, and writes it to BUILD_DIR/bench/lists.json. Exits with 1 if a goal was missed.
"""
import re
import shutil
import sys
import tempfile
from pathlib import Path

import rows
from running import done, finish, missed, options_of

SKIPPED = 77  # as CTest is told
GOAL_INSTRUCTIONS = 200
CASES = {
    "write_blocks": "write a block_list",
    "write_parts": "write a span of parts",
    "read_blocks": "read a block_list",
    "read_parts": "read a span of parts",
}
# A function of weft, a template's behind the type that it returns, or one of a standard container of weft's.
OF_WEFT = re.compile(r"(non-virtual thunk to |[^( ]+ )?(weft|std::[^(]*weft)::(net|mr)::")


def costs(path):
    """{function: instructions in itself}, and how often functions of weft have called operator new."""
    found, allocations, function, callee, calls = {}, 0, "", "", 0
    for line in path.read_text().splitlines():
        if line.startswith("fn="):
            function = line[3:]
        elif line.startswith("cfn="):
            callee = line[4:]
        elif line.startswith("calls="):
            calls = int(line[6:].split()[0])
        elif re.match(r"[\d+*-]", line):
            if calls == 0:
                found[function] = found.get(function, 0) + int(line.split()[1])
            elif callee.startswith("operator new") and OF_WEFT.match(function):
                allocations += calls
            calls = 0
    return found, allocations


def measure(program, case, blocks, directory):
    out = Path(directory) / case
    done("valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", "--compress-strings=no", "--instr-atstart=no",
         program, case, blocks)
    found, allocations = costs(out)
    ours = {function: count / blocks for function, count in found.items() if OF_WEFT.match(function)}
    return {"instructions": sum(ours.values()), "allocations": allocations,
            "by_function": dict(sorted(ours.items(), key=lambda item: -item[1])[:20])}


def main():
    options = options_of("what a block of a list costs over the link of verbs, in instructions", {"blocks": 1024},
                         "1,024 blocks", blocks=(8192, "of each list (default: %(default)s)"))
    program, blocks = options.build / "tests/bench/list_cost", options.blocks
    if not program.exists() or not shutil.which("valgrind"):
        print("no list_cost or no valgrind: install valgrind, and configure with WEFT_WITH_VERBS")
        return SKIPPED
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as directory:
        measured = {case: measure(program, case, blocks, directory) for case in CASES}
    found = [rows.Row(f"{what} over verbs, one of {blocks:,} blocks of 64 KiB", measured[case]["instructions"],
                      "instructions", at_most=GOAL_INSTRUCTIONS) for case, what in CASES.items()]
    found += [rows.Row(f"{what} over verbs, {blocks:,} blocks of 64 KiB", measured[case]["allocations"], "allocations",
                       at_most=0) for case, what in CASES.items()]
    finish(options.build, "lists", found, blocks=blocks, costs=measured)
    return missed(found)


if __name__ == "__main__":
    sys.exit(main())
