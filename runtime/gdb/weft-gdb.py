# SPDX-License-Identifier: Apache-2.0
"""Lists the tasks of a program that uses weft, running or in a core dump:

    gdb -x /usr/share/weft/weft-gdb.py PROGRAM CORE
    (gdb) weft tasks

Each executor with its tree of tasks, as executor::dump() has it: the names of scope and task, who awaits whom, and the
operation that the innermost one waits for. Needs neither types nor a process that runs: symbols are enough, and those of
a release build do. In a stripped program nothing is found.
"""

import gdb
import re
import struct

LAYOUT = ("version", "first_executor", "listed_who", "listed_next", "executor_roots", "executor_coarse_now", "root_body",
          "root_next", "root_observer", "root_name", "root_origin", "promise_child", "promise_operation",
          "promise_origin", "operation_since", "scope_owner", "scope_name")
KNOWN_VERSION = 1
MOST_TASKS = 100000
MOST_FRAMES = 32  # shown of one chain of awaits
LONGEST_CHAIN = 10000000
WRAPPERS = ("as_result", "when_all", "when_any", "with_scope")


def read(address, size):
    return bytes(gdb.selected_inferior().read_memory(address, size))


def word(address):
    return struct.unpack("Q", read(address, 8))[0]


def text(address, most=4096):
    """A string that ends with a zero, without reading beyond its page."""
    found = b""
    while address != 0 and len(found) < most:
        piece = read(address, min(256, 4096 - address % 4096))
        end = piece.find(b"\0")
        if end >= 0:
            return (found + piece[:end]).decode(errors="replace")
        found += piece
        address += len(piece)
    return found.decode(errors="replace")


def layout():
    try:
        start = int(gdb.parse_and_eval("(unsigned long)&weft_debugger_layout"))
    except gdb.error as why:
        raise gdb.GdbError(f"no executor of weft in this program, or no symbols: {why}")
    found = dict(zip(LAYOUT, struct.unpack(f"{len(LAYOUT)}Q", read(start, 8 * len(LAYOUT)))))
    if found["version"] != KNOWN_VERSION:
        raise gdb.GdbError(f"the program's weft is another than this script's: layout {found['version']}")
    return found


def function_name(pretty):
    """As detail::function_name() of runtime/task_name.cpp."""
    for what, instead in (("(anonymous namespace)::", ""), ("{anonymous}::", ""), ("(anonymous class)", "lambda"),
                          ("<lambda(", "lambda(")):
        pretty = pretty.replace(what, instead)
    kept = ""
    depth = 0
    for c in pretty:
        if c == "<":
            depth += 1
        if depth == 0:
            kept += c
        if c == ">" and depth > 0:
            depth -= 1
    is_lambda = "::lambda" in kept
    end = kept.find("(")
    if end < 0:
        return kept
    name = kept[kept.rfind(" ", 0, end) + 1:end]
    if is_lambda and "::lambda" not in name:
        name += "::lambda"
    return name.removeprefix("weft::")


class origin:
    """A std::source_location: a pointer to the names of file and function, and the line."""

    def __init__(self, address):
        where = word(address)
        if where == 0:
            self.name, self.place = "?", "?"
            return
        file, function, line = struct.unpack("QQI", read(where, 20))
        self.name = function_name(text(function))
        self.place = f"{text(file).rsplit('/', 1)[-1]}:{line}"

    def is_wrapper(self):
        return self.name.startswith("detail::") or self.name.removesuffix("::lambda") in WRAPPERS

    def __str__(self):
        return f"{self.name} ({self.place})"


def class_of(item):
    """The type of an object with virtual functions, from the name of its table of them."""
    symbol = gdb.execute(f"info symbol {word(item):#x}", to_string=True)
    found = re.match(r"vtable for (.*?) \+ \d+( in section |$|\n)", symbol)
    return found.group(1) if found else "something"


class tasks_of:
    """The tasks of one executor, as text."""

    def __init__(self, offsets, home):
        self.at = offsets
        self.now = word(home + offsets["executor_coarse_now"])
        self.children = {}  # by the promise of the scope's owner
        self.lines = []
        root = word(home + offsets["executor_roots"])
        count = 0
        while root != 0 and count < MOST_TASKS:
            owner, scope_name = self.scope_of(root)
            self.children.setdefault(owner, []).append((root, scope_name))
            root = word(root + offsets["root_next"])
            count += 1
        self.count = count

    def scope_of(self, root):
        observer = word(root + self.at["root_observer"])
        if observer == 0 or class_of(observer) != "weft::scope":
            return 0, ""
        return word(observer + self.at["scope_owner"]), text(word(observer + self.at["scope_name"]))

    def write(self):
        # Youngest first in the lists, and the last to be planned is the first to be written. No recursion.
        planned = [(each, 0) for each in self.children.get(0, [])]
        while planned:
            (root, scope_name), depth = planned.pop()
            try:
                planned += [(each, depth + 1) for each in self.write_one(root, scope_name, depth)]
            except gdb.MemoryError as why:
                self.lines.append(f"{'  ' * depth}- a task that cannot be read: {why}")
        return self.lines

    def write_one(self, root, scope_name, depth):
        """Returns its scopes' children."""
        name = word(root + self.at["root_name"])
        label = (f"[{scope_name}] " if scope_name else "") + (f"{text(name)}: " if name else "")
        promise = innermost = word(root + self.at["root_body"])
        shown, hidden, below, length = [], 0, [], 0
        while promise != 0 and length < LONGEST_CHAIN:
            innermost = promise
            length += 1
            below += self.children.get(promise, [])
            if len(shown) == MOST_FRAMES:
                hidden += 1
            else:
                where = origin(promise + self.at["promise_origin"])
                if not where.is_wrapper():
                    shown.append(str(where))
            promise = word(promise + self.at["promise_child"])
        chain = " > ".join(shown) or str(origin(root + self.at["root_origin"]))
        more = f" > {hidden} more" if hidden else ""
        self.lines.append(f"{'  ' * depth}- {label}{chain}{more}; {self.state_of(innermost)}")
        return below

    def state_of(self, innermost):
        if innermost == 0:
            return "ending"
        operation = word(innermost + self.at["promise_operation"])
        if operation != 0:
            since = word(operation + self.at["operation_since"])
            return f"{max(self.now - since, 0) / 1e9:.3f} s on {class_of(operation)}"
        below = self.children.get(innermost)
        return f"its scope has {len(below)} tasks" if below else "ready or running"


class weft_command(gdb.Command):
    """What weft does in this program."""

    def __init__(self):
        super().__init__("weft", gdb.COMMAND_DATA, gdb.COMPLETE_NONE, True)


class tasks_command(gdb.Command):
    """Lists all executors with their tasks, who awaits whom, and what each waits for."""

    def __init__(self):
        super().__init__("weft tasks", gdb.COMMAND_DATA)

    def invoke(self, argument, from_tty):
        offsets = layout()
        listed = word(offsets["first_executor"])
        while listed != 0:
            home = word(listed + offsets["listed_who"])
            try:
                found = tasks_of(offsets, home)
                print(f"weft: executor at {home:#x}, {found.count} tasks started side by side")
                for line in found.write():
                    print(line)
            except gdb.MemoryError as why:
                print(f"weft: executor at {home:#x} cannot be read: {why}")
            listed = word(listed + offsets["listed_next"])


weft_command()
tasks_command()
