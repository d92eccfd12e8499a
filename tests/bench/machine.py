# SPDX-License-Identifier: Apache-2.0
"""What a reader of figures has to know of the machine and of the build that they are from."""
import os
import platform
import re
import subprocess
from pathlib import Path


def first(pattern, text, otherwise="unknown"):
    found = re.search(pattern, text, re.MULTILINE)
    return found[1].strip() if found else otherwise


def text_of(path):
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def commit():
    """As git names it, with `-dirty` where files have changed since."""
    here = Path(__file__).resolve().parent
    run = subprocess.run(["git", "-C", here, "describe", "--always", "--dirty", "--abbrev=12"], stdout=subprocess.PIPE,
                         stderr=subprocess.DEVNULL, text=True, check=False)
    return run.stdout.strip() or "unknown"


def compiler(build):
    found = sorted(build.glob("CMakeFiles/*/CMakeCXXCompiler.cmake"))
    said = text_of(found[-1]) if found else ""
    cache = text_of(build / "CMakeCache.txt")
    kind = first(r"^CMAKE_BUILD_TYPE:\w+=(.*)$", cache)
    flags = first(rf"^CMAKE_CXX_FLAGS_{kind.upper()}:\w+=(.*)$", cache, "")
    name, version = (first(rf'^set\(CMAKE_CXX_COMPILER_{what} "(.*)"\)', said) for what in ("ID", "VERSION"))
    return f"{name} {version}, {flags}".rstrip(", ")


def load():
    """Of the last minute."""
    return os.getloadavg()[0]


def description(build):
    kibibytes = int(first(r"^MemTotal:\s*(\d+)", text_of("/proc/meminfo"), "0"))
    return {
        "processor": first(r"^model name\s*:(.*)$", text_of("/proc/cpuinfo"), platform.machine()),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{kibibytes / 2**20:.0f} GiB",
        "kernel": platform.release(),
        "compiler": compiler(build),
        "commit": commit(),
    }
