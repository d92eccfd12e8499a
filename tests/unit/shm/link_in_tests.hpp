// SPDX-License-Identifier: Apache-2.0
// What a set-up makes, to be looked at: an end of a connection that carries nothing.
#pragma once

#include <weft/net/shm/link.hpp>

#include <utility>

#include "kit/idle_link.hpp"

namespace weft::test {

class link_in_tests final : public idle_link {
 public:
  explicit link_in_tests(net::shm::established made) : parts(std::move(made)) {}

  net::shm::established parts;

  [[nodiscard]] std::string_view peer() const noexcept override { return parts.peer; }
};

/// What a link of these was made of.
[[nodiscard]] inline net::shm::established& parts_of(net::link& link) {
  return static_cast<link_in_tests&>(link).parts;
}

}  // namespace weft::test
