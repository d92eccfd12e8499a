#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks what includes what.

check_includes.py circles ROOT FOLDER...
    The units of each folder point one way: a unit is a header with the source beside it, and points to those that one of
    the two includes.

check_includes.py floors ROOT LAYER FLOORS
    Each floor of a layer uses only those before it. FLOORS is a file with a line for each floor, the lowest first: its
    rooms (folders), none of which uses another, and the units beside the rooms that belong to it.

check_includes.py weft ROOT COMPILE...
    <weft/weft.hpp> brings no headers of the operating system: no header of weft that it reaches includes one, except
    for those in ALLOWED, and the compiler, called as COMPILE, sees none of those in UNWANTED. Nor does it bring what
    lies APART.

check_includes.py installed ROOT HEADER...
    What headers of weft these headers include is among them.
"""

import pathlib
import re
import subprocess
import sys

INCLUDE = re.compile(r"^\s*#\s*include\s*<([^>]+)>", re.MULTILINE)
ALLOWED = {"sys/types.h"}  # names of integers
APART = "mr/porting/"  # for programs from other interfaces alone
# The standard library itself brings <pthread.h>, and with it <sched.h>.
UNWANTED = re.compile(r"/(sys/epoll|sys/socket|sys/uio|netdb|netinet/\w+|poll|liburing)\.h$")


def unit_of(path):
    return re.sub(r"\.[hc]pp$", "", path)


def units_of(root, folder):
    """Each unit of a folder with those of the same folder to which it points."""
    found = {}
    for file in sorted((root / folder).rglob("*.[hc]pp")):
        unit = unit_of(str(file.relative_to(root)))
        targets = found.setdefault(unit, set())
        for name in INCLUDE.findall(file.read_text()):
            target = unit_of(name.removeprefix("weft/"))
            if name.startswith(f"weft/{folder}/") and target != unit:
                targets.add(target)
    return found


def circles_of(graph):
    """The strongly connected parts of more than one unit. Tarjan's algorithm."""
    index, low, path, circles = {}, {}, [], []

    def visit(unit):
        index[unit] = low[unit] = len(index)
        path.append(unit)
        for target in sorted(graph.get(unit, ())):
            if target not in index:
                visit(target)
            if target in path:
                low[unit] = min(low[unit], low[target])
        if low[unit] == index[unit]:
            part = path[path.index(unit):]
            del path[path.index(unit):]
            if len(part) > 1:
                circles.append(sorted(part))

    for unit in sorted(graph):
        if unit not in index:
            visit(unit)
    return circles


def check_circles(root, folders):
    errors = []
    for folder in folders:
        graph = units_of(root, folder)
        if not graph:
            errors.append(f"{folder} has no headers and no sources")
        for circle in circles_of(graph):
            errors.append(f"{folder}: these {len(circle)} units include each other in a circle")
            errors += [f"  {unit} includes {', '.join(sorted(graph[unit] & set(circle)))}" for unit in circle]
    return errors


def floors_of(lines):
    """The floor of each room and of each unit beside the rooms."""
    floors = [line.split() for line in lines if line.strip() and not line.startswith("#")]
    return {name: number for number, floor in enumerate(floors) for name in floor}


def check_floors(root, arguments):
    layer, file = arguments
    floor = floors_of(pathlib.Path(file).read_text().splitlines())
    graph = units_of(root, layer)

    def home_of(unit):
        """Its room, or the unit itself beside the rooms."""
        return unit.split("/")[1]

    homes = {home_of(unit) for unit in graph}
    errors = [f"{file} does not say on which floor {name} is" for name in sorted(homes - floor.keys())]
    errors += [f"{file} has {name}, which {layer} has not" for name in sorted(floor.keys() - homes)]
    if errors:
        return errors
    rooms = {home_of(unit) for unit in graph if unit.count("/") > 1}
    for unit, target in ((unit, target) for unit in graph for target in sorted(graph[unit])):
        ours, theirs = home_of(unit), home_of(target)
        if floor[theirs] > floor[ours]:
            errors.append(f"{unit} includes {target}, which is above it")
        elif floor[theirs] == floor[ours] and ours != theirs and {ours, theirs} <= rooms:
            errors.append(f"{unit} includes {target}, which is in another room of its floor")
    return errors


def check_weft(root, compile_command):
    errors = []
    seen, waiting = set(), ["weft.hpp"]
    while waiting:
        file = waiting.pop()
        if file in seen:
            continue
        seen.add(file)
        if file.startswith(APART):
            errors.append(f"{file} comes with <weft/weft.hpp>")
        for name in INCLUDE.findall((root / file).read_text()):
            if name.startswith("weft/"):
                waiting.append(name.removeprefix("weft/"))
            elif not re.fullmatch(r"[a-z_]+", name) and name not in ALLOWED:
                errors.append(f"{file} includes <{name}>, and comes with <weft/weft.hpp>")
    rules = subprocess.run([*compile_command, "-std=c++20", "-M", str(root / "weft.hpp")], check=True,
                           stdout=subprocess.PIPE, text=True).stdout
    errors += [f"<weft/weft.hpp> brings {name}" for name in rules.split() if UNWANTED.search(name)]
    if "executor.hpp" not in rules:
        errors.append("the compiler tells no dependencies")
    return errors


def check_installed(root, headers):
    installed = {f"weft/{header}" for header in ["weft.hpp", *headers]}
    return [f"{header} is installed and includes <{name}>, which is not"
            for header in sorted(installed)
            for name in INCLUDE.findall((root / header.removeprefix("weft/")).read_text())
            if name.startswith("weft/") and name not in installed]


def main():
    what, root, *rest = sys.argv[1:]
    checks = {"circles": check_circles, "floors": check_floors, "weft": check_weft, "installed": check_installed}
    errors = checks[what](pathlib.Path(root), rest)
    print("\n".join(errors))
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
