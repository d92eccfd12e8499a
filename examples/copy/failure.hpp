// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <string>

namespace copy {

/// One file could not be copied, in words. The connection is as good as before: the next file may work.
/// What breaks the connection is a weft::error.
class failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The same for a failed system call: "cannot open 'a.bin': No such file or directory".
[[nodiscard]] failure system_failure(int number, const std::string& context);

}  // namespace copy
