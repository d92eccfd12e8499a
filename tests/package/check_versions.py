#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_versions.py [SOURCE_DIR]: everything that names weft's version or what it is built with says what CMake does."""
import ast
import json
import re
import sys
from pathlib import Path

# What each dependency of CMakeLists.txt is called elsewhere; None where the other has no such package.
NAMES = {
    "fmt": {"vcpkg": "fmt", "conan": "fmt", "debian": "libfmt-dev"},
    "liburing": {"vcpkg": "liburing", "conan": "liburing", "debian": "liburing-dev"},
    "libisal": {"vcpkg": "isal", "conan": "isa-l", "debian": "libisal-dev"},
    "librdmacm": {"vcpkg": None, "conan": "rdma-core", "debian": "librdmacm-dev"},
    "libibverbs": {"vcpkg": None, "conan": "rdma-core", "debian": "libibverbs-dev"},
}
FOUND_EVERYWHERE = {"Threads", "PkgConfig"}  # of CMake and the system


class Tree:
    def __init__(self, root):
        self.root = root
        self.cmake = self.text("CMakeLists.txt")
        self.version = re.search(r"project\(weft VERSION ([0-9.]+)", self.cmake)[1]
        self.description = re.search(r'DESCRIPTION "([^"]+)"', self.cmake)[1]
        found = set(re.findall(r"find_package\((\w+)", self.cmake)) - FOUND_EVERYWHERE
        for modules in re.findall(r"pkg_check_modules\(\w+ (?:REQUIRED )?IMPORTED_TARGET ([^)]+)\)", self.cmake):
            found |= set(modules.split())
        self.dependencies = found
        self.faults = []

    def text(self, name):
        return (self.root / name).read_text()

    def expect(self, where, what, said, wanted):
        if said != wanted:
            self.faults.append(f"{where}: {what} is {said}, and by CMakeLists.txt {wanted}")

    def names(self, where):
        return {NAMES[each][where] for each in self.dependencies} - {None}

    def check_dependencies_are_known(self):
        for each in sorted(self.dependencies - set(NAMES)):
            self.faults.append(f"CMakeLists.txt uses {each}: tell {Path(__file__).name} what it is called elsewhere")
        return not self.faults

    def check_vcpkg(self):
        for name in ("vcpkg.json", "packaging/vcpkg/ports/weft/vcpkg.json"):
            said = json.loads(self.text(name))
            self.expect(name, "the version", said["version"], self.version)
            self.expect(name, "the description", said["description"], self.description)
            plain = {each for each in said["dependencies"] if isinstance(each, str)}
            self.expect(name, "the list of dependencies", sorted(plain), sorted(self.names("vcpkg")))
        port = self.text("packaging/vcpkg/ports/weft/portfile.cmake")
        self.check_options("packaging/vcpkg/ports/weft/portfile.cmake", re.findall(r"WEFT_\w+", port))

    def check_options(self, where, used):
        known = set(re.findall(r"(?:option|set)\((WEFT_\w+)", self.cmake))
        for each in sorted(set(used) - known):
            self.faults.append(f"{where}: CMakeLists.txt has no option {each}")

    def check_conan(self):
        source = self.text("conanfile.py")
        recipe = next(each for each in ast.parse(source).body if isinstance(each, ast.ClassDef))
        said = {each.targets[0].id: each.value for each in recipe.body if isinstance(each, ast.Assign)}
        self.expect("conanfile.py", "the version", ast.literal_eval(said["version"]), self.version)
        self.expect("conanfile.py", "the description", ast.literal_eval(said["description"]), self.description)
        required = set(re.findall(r'self\.requires\("([\w-]+)/', source))
        self.expect("conanfile.py", "the list of dependencies", sorted(required), sorted(self.names("conan")))
        self.check_options("conanfile.py", re.findall(r'"(WEFT_\w+)"', source))
        for pattern in ast.literal_eval(said["exports_sources"]):
            if not list(self.root.glob(pattern)):
                self.faults.append(f"conanfile.py: exports_sources names {pattern}, and there is no such file")

    def check_debian(self):
        log = self.text("debian/changelog").splitlines()[0]
        self.expect("debian/changelog", "the version", re.match(r"weft \(([0-9.]+)-", log)[1], self.version)
        control = self.text("debian/control")
        built_with = re.search(r"^Build-Depends:\n((?: .*\n)+)", control, re.M)[1]
        development = re.search(r"^Package: libweft-dev\n(?:.+\n)*?Depends:\n((?: .*\n)+)", control, re.M)[1]
        for each in sorted(self.names("debian")):
            for where, named in (("Build-Depends", built_with), ("Depends of libweft-dev", development)):
                if not re.search(rf"^ {each}\b", named, re.M):
                    self.faults.append(f"debian/control: {where} lacks {each}")
        number = re.search(r"set\(WEFT_SOVERSION (\d+)\)", self.cmake)[1]
        node = re.search(r"set\(WEFT_SYMBOL_VERSION (\S+)\)", self.cmake)[1]
        symbols = self.text(f"debian/libweft{number}.symbols")
        if f"libweft.so.{number} libweft{number} " not in symbols or f" *@{node} " not in symbols:
            self.faults.append(f"debian/libweft{number}.symbols does not say libweft.so.{number} and *@{node}")

    def check_changelog(self):
        if not re.search(r"^## \[Unreleased\]$", self.text("CHANGELOG.md"), re.M):
            self.faults.append("CHANGELOG.md has no section [Unreleased]")


def main():
    tree = Tree(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[2])
    if tree.check_dependencies_are_known():
        tree.check_vcpkg()
        tree.check_conan()
        tree.check_debian()
        tree.check_changelog()
    print("\n".join(tree.faults) or f"all of version {tree.version}")
    return 1 if tree.faults else 0


if __name__ == "__main__":
    sys.exit(main())
