#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""check_reference.py ROOT PAGES: every public name has its place in the reference, and nothing private has one.

What is public says clang, not the Doxygen that the pages are made with: each name that the public headers declare outside
of namespaces `detail` and of private sections. The names of the reference are those of its page of all names.
"""
import html
import re
import sys
import tempfile
from pathlib import Path

from clang.cindex import AccessSpecifier, CursorKind, Index

root, pages = (Path(name).resolve() for name in sys.argv[1:])
LISTED = {None, CursorKind.CLASS_DECL, CursorKind.STRUCT_DECL, CursorKind.UNION_DECL, CursorKind.CLASS_TEMPLATE,
          CursorKind.FUNCTION_DECL, CursorKind.FUNCTION_TEMPLATE, CursorKind.CXX_METHOD, CursorKind.CONSTRUCTOR,
          CursorKind.CONVERSION_FUNCTION, CursorKind.FIELD_DECL, CursorKind.VAR_DECL, CursorKind.ENUM_DECL,
          CursorKind.ENUM_CONSTANT_DECL, CursorKind.TYPEDEF_DECL, CursorKind.TYPE_ALIAS_DECL,
          CursorKind.TYPE_ALIAS_TEMPLATE_DECL}
INSIDE = {CursorKind.CLASS_DECL, CursorKind.STRUCT_DECL, CursorKind.UNION_DECL, CursorKind.CLASS_TEMPLATE,
          CursorKind.CLASS_TEMPLATE_PARTIAL_SPECIALIZATION, CursorKind.ENUM_DECL}


def kind_of(cursor):
    """None for a concept, which this version of the bindings does not know."""
    try:
        return cursor.kind
    except ValueError:
        return None


def public_headers():
    for layer in ("runtime", "mr", "net"):
        listed = re.search(r"weft_component\(.*?\bHEADERS\b(.*?)\bSOURCES\b", (root / layer / "CMakeLists.txt").read_text(),
                           re.DOTALL)
        yield from (f"{layer}/{header}" for header in listed[1].split())


def parse(headers, include):
    (include / "weft").symlink_to(root)
    source = "#include <asio.hpp>\n" + "".join(f"#include <weft/{header}>\n" for header in headers)
    unit = Index.create().parse("all.cpp", ["-std=c++20", f"-I{include}", "-DASIO_HAS_CO_AWAIT=1"],
                                [("all.cpp", source)])
    broken = [str(each) for each in unit.diagnostics if each.severity >= 3]
    if broken:
        sys.exit("the public headers do not compile:\n" + "\n".join(broken))
    return unit


def name_of(cursor):
    """Empty for a union that has none."""
    return "" if cursor.spelling.startswith("(") else re.sub(r"<.*", "", cursor.spelling)


def path_of(cursor):
    """The name of a class or namespace, with what it is in."""
    parts = []
    while cursor is not None and kind_of(cursor) != CursorKind.TRANSLATION_UNIT:
        parts += [name_of(cursor)] if name_of(cursor) else []
        cursor = cursor.semantic_parent
    return "::".join(reversed(parts))


def names_in(cursor, path, found, hidden):
    """Puts the public names below a cursor into `found`: their place in the headers. The private ones go to `hidden`."""
    for child in cursor.get_children():
        if child.canonical.access_specifier == AccessSpecifier.PRIVATE or child.is_deleted_method():
            if kind_of(child) in LISTED and name_of(child):
                hidden.add(f"{path_of(child.semantic_parent)}::{name_of(child)}")
            continue
        if child.semantic_parent != child.lexical_parent and kind_of(child) not in INSIDE:
            continue  # a definition outside of its class, which has the declaration
        if kind_of(child) == CursorKind.FRIEND_DECL:
            continue  # the function is found where it is declared as well, or by its arguments alone
        name = name_of(child)
        whole = f"{path_of(child.semantic_parent) or path}::{name}"
        if kind_of(child) in LISTED and name and (kind_of(child) not in INSIDE or child.is_definition()):
            found.setdefault(whole, f"{child.location.file.name}:{child.location.line}")
        if kind_of(child) in INSIDE and child.is_definition():
            names_in(child, whole if name else whole.removesuffix("::"), found, hidden)


def names_of(unit, include):
    found, hidden = {}, set()

    def namespace(cursor, path):
        for child in cursor.get_children():
            where = child.location.file
            if where is None or not where.name.startswith(f"{include}/weft/"):
                continue
            if kind_of(child) == CursorKind.NAMESPACE:
                if child.spelling != "detail":
                    namespace(child, f"{path}::{child.spelling}" if path else child.spelling)
            elif path.startswith("weft"):
                names_in(Only(child), path, found, hidden)

    namespace(unit.cursor, "")
    return found, hidden - found.keys()


class Only:
    """A cursor as the one child of its parent."""
    def __init__(self, cursor):
        self.cursor = cursor

    def get_children(self):
        return [self.cursor]


def listed_names():
    text = (pages / "reference/names.html").read_text()
    rows = re.findall(r"<li><a [^>]*><code>(.*?)</code></a> <small>(.*?)</small></li>", text)
    return {"::".join(part for part in ("weft", html.unescape(owner), html.unescape(name)) if part) for name, owner in rows}


with tempfile.TemporaryDirectory() as directory:
    declared, private = names_of(parse(list(public_headers()), Path(directory)), directory)
listed = listed_names()
missing = sorted(f"{where.partition(directory + '/weft/')[2]}: {name} is not in the reference" for name, where in declared.items() if name not in listed)
hidden = sorted(f"{name} is in the reference, and is not public" for name in listed
                if name in private or "detail" in name.split("::"))
print("\n".join(missing + hidden) or f"{len(declared)} public names, all in the reference")
sys.exit(1 if missing or hidden or len(declared) < 1000 else 0)
