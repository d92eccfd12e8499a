// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace weft::test {

/// Base of what is neither copied nor moved.
class immovable {
 public:
  immovable(const immovable&) = delete;
  immovable& operator=(const immovable&) = delete;

 protected:
  immovable() = default;
  ~immovable() = default;
};

}  // namespace weft::test
