# SPDX-License-Identifier: Apache-2.0
"""The Conan 2 recipe: `conan create . --build=missing`, or `-o weft/*:shared=True`."""
from conan import ConanFile
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain, cmake_layout
from conan.tools.files import copy
from conan.tools.gnu import PkgConfigDeps
from conan.errors import ConanInvalidConfiguration


class Weft(ConanFile):
    name = "weft"
    version = "0.1.0"
    description = "A C++20 coroutine runtime for RDMA"
    license = "Apache-2.0"
    topics = ("rdma", "coroutines", "io-uring", "iwarp")
    package_type = "library"
    settings = "os", "arch", "compiler", "build_type"
    options = {"shared": [True, False], "iwarp": [True, False], "verbs": [True, False]}
    default_options = {"shared": False, "iwarp": True, "verbs": True}
    exports_sources = ("CMakeLists.txt", "LICENSE", "weft.hpp", "cmake/*", "completions/*", "docs/*", "include/*", "mr/*", "net/*",
                       "runtime/*", "tests/coroutines/*")

    def layout(self):
        cmake_layout(self)

    def requirements(self):
        self.requires("fmt/[>=9 <12]")
        self.requires("liburing/[>=2.3]")
        if self.options.iwarp:
            self.requires("isa-l/[>=2.30]")
        if self.options.verbs:
            self.requires("rdma-core/[>=44]")

    def validate(self):
        if self.settings.os != "Linux":
            raise ConanInvalidConfiguration("weft needs Linux")
        if not self.options.iwarp and not self.options.verbs:
            raise ConanInvalidConfiguration("weft needs a transport: iwarp or verbs")
        check_min_cppstd(self, 20)

    def generate(self):
        toolchain = CMakeToolchain(self)
        toolchain.cache_variables.update({
            "WEFT_BUILD_TESTS": False,
            "WEFT_BUILD_EXAMPLES": False,
            "WEFT_WERROR": False,
            "WEFT_WITH_IWARP": bool(self.options.iwarp),
            "WEFT_WITH_VERBS": bool(self.options.verbs),
        })
        toolchain.generate()
        CMakeDeps(self).generate()
        PkgConfigDeps(self).generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build(target="installed")

    def package(self):
        copy(self, "LICENSE", self.source_folder, f"{self.package_folder}/licenses")
        CMake(self).install()

    def package_info(self):
        self.cpp_info.set_property("cmake_file_name", "weft")
        self.cpp_info.set_property("cmake_target_name", "weft::weft")
        self.cpp_info.set_property("pkg_config_name", "weft")
        self.cpp_info.libs = ["weft"]
        self.cpp_info.system_libs = ["pthread"]
        self.cpp_info.requires = ["fmt::fmt", "liburing::liburing"]
        if self.options.iwarp:
            self.cpp_info.requires.append("isa-l::isa-l")
        if self.options.verbs:
            self.cpp_info.requires += ["rdma-core::librdmacm", "rdma-core::libibverbs"]
