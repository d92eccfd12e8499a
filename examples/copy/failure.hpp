// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <common/failure.hpp>

namespace copy {

/// One file could not be copied. The next one may work.
using common::failure;

/// The same for a failed system call: "cannot open 'a.bin': No such file or directory".
[[nodiscard]] failure system_failure(int number, const std::string& context);

}  // namespace copy
