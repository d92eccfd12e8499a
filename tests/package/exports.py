#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""exports.py write|check INCLUDE_DIR [LIBRARY]: what libweft.so exports: what public headers declare and sources define.

INCLUDE_DIR has weft/ as it is installed. `write` brings cmake/weft.map up to date with the headers. `check` fails where
the two differ, and, with a LIBRARY, where that exports anything else than the map says.

It takes libclang's own bindings, which Debian has for /usr/bin/python3 only.
"""
import ctypes
import pathlib
import re
import subprocess
import sys

SOURCE = pathlib.Path(__file__).resolve().parents[2]
MAP = SOURCE / "cmake/weft.map"

def public_headers():
    """What the CMakeLists.txt of the layers list under HEADERS."""
    found = ["weft.hpp"]
    for layer in ("runtime", "mr", "net"):
        lists = (SOURCE / layer / "CMakeLists.txt").read_text()
        headers = re.search(r"^  HEADERS\n(.*?)^  SOURCES", lists, re.M | re.S)[1]
        found += [f"{layer}/{header}" for header in headers.split()]
    return found


def parse(include):
    from clang import cindex

    class StringSet(ctypes.Structure):
        _fields_ = [("strings", ctypes.POINTER(cindex._CXString)), ("count", ctypes.c_uint)]

    get = cindex.conf.lib.clang_Cursor_getCXXManglings
    get.argtypes, get.restype = [cindex.Cursor], ctypes.POINTER(StringSet)
    text = cindex.conf.lib.clang_getCString
    every = "".join(f"#include <weft/{header}>\n" for header in public_headers())
    unit = cindex.Index.create().parse(
        "public.cpp", ["-std=c++20", f"-I{include}", "-DASIO_HAS_CO_AWAIT=1", *WITH_WARNINGS_OFF], unsaved_files=[("public.cpp", every)])
    faults = [each for each in unit.diagnostics if each.severity >= cindex.Diagnostic.Error]
    if faults:
        raise SystemExit("\n".join(map(str, faults)))

    def manglings(cursor):
        """All symbols of a constructor, a destructor, or a method with its thunks."""
        found = get(cursor)
        if not found:
            return [cursor.mangled_name]
        return [symbol(found.contents.strings[index]) for index in range(found.contents.count)]

    def symbol(string):
        given = text(string)
        return given.decode() if isinstance(given, bytes) else given

    return cindex.CursorKind, unit, manglings


WITH_WARNINGS_OFF = ("-w", "-DNDEBUG")


class Exports:
    """The symbols, by the class or namespace that declares them."""

    def __init__(self, include):
        self.kinds, unit, self.manglings = parse(include)
        self.by_scope = {}
        self.visit(unit.cursor, ())

    def add(self, scope, *symbols):
        self.by_scope.setdefault("::".join(scope), set()).update(symbols)

    def visit(self, cursor, scope):
        kinds = self.kinds
        for item in children(cursor):
            if not scope and item.spelling != "weft":
                continue
            if item.kind == kinds.NAMESPACE:
                self.visit(item, (*scope, item.spelling))
            elif item.kind in (kinds.CLASS_DECL, kinds.STRUCT_DECL) and item.is_definition():
                self.visit_class(item, (*scope, item.displayname))
            elif item.kind in (kinds.FUNCTION_DECL, kinds.CXX_METHOD, kinds.CONSTRUCTOR, kinds.DESTRUCTOR,
                               kinds.CONVERSION_FUNCTION):
                if self.is_elsewhere(item):
                    self.add(scope, *self.manglings(item))
            elif item.kind == kinds.FRIEND_DECL:
                for friend in children(item):
                    if friend.kind == kinds.FUNCTION_DECL and self.is_elsewhere(friend):
                        self.add(scope, *self.manglings(friend))
            elif item.kind == kinds.VAR_DECL and self.is_shared(item):
                self.add(scope, item.mangled_name)

    def visit_class(self, item, scope):
        virtuals = [each for each in children(item) if each.is_virtual_method() and not each.is_pure_virtual_method()]
        key = next((each for each in virtuals if not self.is_inline(each)), None)
        nested = item.type.spelling.removeprefix("const ")
        if key is not None or self.says_default_visibility(item):
            name = itanium(nested)
            self.add(scope, f"_ZTI{name}", f"_ZTS{name}")
        if key is not None:
            self.add(scope, f"_ZTV{itanium(nested)}")
        self.visit(item, scope)

    def says_default_visibility(self, item):
        return any(each.kind == self.kinds.VISIBILITY_ATTR and each.spelling == "default" for each in children(item))

    def is_inline(self, function):
        """Defined in a header, by us or by the compiler."""
        return function.get_definition() is not None or function.is_default_method() or is_inline_by_word(function)

    def is_elsewhere(self, function):
        """Declared here and defined by a source of the library."""
        # What is deleted has no symbol, and what a friend declaration repeats of C or of std is not ours.
        if function.is_pure_virtual_method() or self.is_inline(function) or is_deleted(function):
            return False
        return is_ours(function)

    def is_shared(self, variable):
        from clang.cindex import StorageClass

        if self.says_default_visibility(variable):
            return True
        static_member = variable.semantic_parent.kind in (self.kinds.CLASS_DECL, self.kinds.STRUCT_DECL)
        if not static_member and variable.storage_class != StorageClass.EXTERN:
            return False
        return variable.get_definition() is None


def children(cursor):
    """Without those of kinds that the bindings do not know yet, concepts above all."""
    for item in cursor.get_children():
        try:
            item.kind
        except ValueError:
            continue
        yield item


def tokens(cursor):
    return [token.spelling for token in cursor.get_tokens()]


def is_deleted(function):
    words = tokens(function)
    return any(words[at:at + 2] == ["=", "delete"] for at in range(len(words)))


def is_inline_by_word(function):
    words = tokens(function)
    return "inline" in words or "constexpr" in words or any(
        words[at:at + 2] == ["=", "default"] for at in range(len(words)))


def is_ours(function):
    scope = function.semantic_parent
    while scope.semantic_parent is not None and scope.semantic_parent.spelling and scope.semantic_parent.kind.is_declaration():
        scope = scope.semantic_parent
    return scope.spelling == "weft"


def itanium(qualified):
    """weft::net::link as it stands in the symbols of its virtual table and type."""
    parts = qualified.split("::")
    return "N" + "".join(f"{len(part)}{part}" for part in parts) + "E"


def wanted(include):
    version = re.search(r"^set\(WEFT_SYMBOL_VERSION (\S+)\)", (SOURCE / "CMakeLists.txt").read_text(), re.M)[1]
    lines = ["# What libweft.so exports: all that public headers declare and sources define, by its symbol. Everything else",
             "# is local. Written by tests/package/exports.py, from the headers: see docs/versions.md.",
             f"{version} {{", "  global:"]
    for scope, symbols in sorted(Exports(include).by_scope.items()):
        lines.append(f"    # {scope}")
        lines += [f"    {symbol};" for symbol in sorted(symbols)]
    return "\n".join([*lines, "  local:", "    *;", "};", ""])


def exported_by(library):
    listed = subprocess.run(["nm", "-D", "--defined-only", "--without-symbol-versions", library], check=True,
                            capture_output=True, text=True).stdout
    rows = [line.split() for line in listed.splitlines()]
    return {row[-1] for row in rows if row[-2] != "A"}  # the absolute one is the name of the version


def in_map():
    return set(re.findall(r"^    (\w+);$", MAP.read_text(), re.M))


def differences(library):
    exported, listed = exported_by(library), in_map()
    return ([f"{library} exports {symbol}, which cmake/weft.map does not list" for symbol in sorted(exported - listed)]
            + [f"cmake/weft.map lists {symbol}, which {library} does not define" for symbol in sorted(listed - exported)])


def main(action, include, library=None):
    text = wanted(include)
    if action == "write":
        MAP.write_text(text)
        return 0
    faults = []
    if MAP.read_text() != text:
        faults.append(f"cmake/weft.map is not what the headers say: run tests/package/exports.py write {include}")
    if library:
        faults += differences(library)
    print("\n".join(faults) if faults else f"{len(in_map())} symbols")
    return 1 if faults else 0


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4) or sys.argv[1] not in ("write", "check"):
        raise SystemExit(__doc__)
    raise SystemExit(main(*sys.argv[1:]))
