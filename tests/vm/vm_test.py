#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What vm.py promises about a command's output, files and status, and about a guest that dies or hangs."""
import os
import subprocess
import sys
import tempfile
from pathlib import Path

VM = Path(__file__).with_name("vm.py")


def vm(*arguments, **environment):
    done = subprocess.run([VM, *arguments], check=False, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env={**os.environ, **environment})
    if done.returncode == 77:
        print(done.stdout, end="")
        sys.exit(77)
    return done


def check(what, holds, done):
    if not holds:
        sys.exit(f"{what}: no\nstatus {done.returncode}\n{done.stdout}{done.stderr}")


def main():
    with tempfile.TemporaryDirectory() as folder:
        script = f"""
            echo "I am $(id -u) on $(uname -r) in $PWD, and '$1' is one word"
            ls {__file__!r}
            echo lost >{folder}/lost
            echo kept >/out/kept
            seq 100000
            echo and a complaint >&2
            exit 42"""
        done = vm("--timeout", "280", "--memory", "512", "--", "bash", "-c", script, "_", "a $b", WEFT_VM_OUT=folder)
        lines = done.stdout.splitlines()
        check("the status comes back", done.returncode == 42, done)
        check("it runs as root, here, with a kernel 6.1",
              lines[0].startswith("I am 0 on 6.1.") and lines[0].endswith(f"in {os.getcwd()}, and 'a $b' is one word"), done)
        check("it sees the files of the host", lines[1] == __file__, done)
        check("all output comes back", lines[2:-1] == [str(number) for number in range(1, 100001)], done)
        check("complaints too", lines[-1] == "and a complaint", done)
        check("files in /out come back", Path(folder, "kept").read_text() == "kept\n", done)
        check("no other file is written to the host", not Path(folder, "lost").exists(), done)

    done = vm("--timeout", "280", "--", "bash", "-c", "echo c >/proc/sysrq-trigger")
    check("a panic is told from a status", done.returncode == 125, done)
    check("a panic is told with the console's last lines", "sysrq_handle_crash" in done.stderr, done)

    done = vm("--timeout", "1", "--", "sleep", "1000")
    check("a guest that takes too long is ended", done.returncode == 124 and "the guest has taken too long" in done.stderr, done)

    # An apt that knows nothing and cannot ask anybody.
    with tempfile.TemporaryDirectory() as folder:
        for program in ("apt-cache", "apt-get"):
            Path(folder, program).write_text("#!/bin/sh\necho there is no network >&2\nexit 100\n")
            Path(folder, program).chmod(0o755)
        done = subprocess.run([VM, "true"], check=False, stdout=subprocess.PIPE, text=True,
                              env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "WEFT_VM_CACHE": folder})
        check("what cannot be had is a skipped test", done.returncode == 77 and "there is no network" in done.stdout, done)


main()
