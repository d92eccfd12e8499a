#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_man.py PAGE PROGRAM: a manual page describes the options and subcommands of a program's --help, and no others."""
import re
import subprocess
import sys
from pathlib import Path


def help_of(*command):
    return subprocess.run([*command, "--help"], check=True, capture_output=True, text=True).stdout


def subcommands(text):
    listed = re.search(r"^Subcommands:\n((?:.+\n)*)", text, re.M)
    return re.findall(r"^  ([a-z][a-z-]*)", listed[1], re.M) if listed else []


def options(text):
    return set(re.findall(r"(?:^|[\s,\[])(--[a-z][a-z_-]*)", text))


def main(page, program):
    text = help_of(program)
    verbs = subcommands(text)
    for verb in verbs:
        text += help_of(program, verb)
    # \- is a hyphen that can be copied, \fB and its like change the type.
    written = re.sub(r"\\f[BIRP]", "", Path(page).read_text()).replace("\\-", "-")
    said, has = options(written), options(text)
    faults = [f"{page} does not describe {each}" for each in sorted(has - said)]
    faults += [f"{page} describes {each}, which {program} does not have" for each in sorted(said - has)]
    faults += [f"{page} has no word of the subcommand {verb}" for verb in verbs
               if not re.search(rf"\b{verb}\b", written)]
    for section in ("NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS"):
        if f"\n.SH {section}\n" not in written:
            faults.append(f"{page} has no section {section}")
    if not has:
        faults.append(f"{program} --help lists no options")
    print("\n".join(faults) or f"{len(has)} options, {len(verbs)} subcommands")
    return 1 if faults else 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    sys.exit(main(*sys.argv[1:]))
