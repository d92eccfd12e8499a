// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/software/access_status.hpp>
#include <weft/runtime/error.hpp>

#include <cstdint>
#include <string_view>

namespace weft::net::shm {

/// An access by the peer that this end refuses.
struct refused_access {
  const char* verb;
  std::uint64_t bytes;
  std::uint64_t address;
  std::uint32_t key;
  std::uint32_t number;  ///< of all requests of its end, modulo 2^32
};

/// The link, whose parts end it when they cannot go on.
class link_breaker {
 public:
  /// This end cannot go on.
  virtual void break_off(const error& why) noexcept = 0;
  /// The peer has broken the rules.
  virtual void break_rules(std::string_view what) noexcept = 0;
  /// The peer has no right to what it has asked for.
  virtual void refuse_access(const refused_access& what, software::access_status status) noexcept = 0;

 protected:
  ~link_breaker() = default;
};

}  // namespace weft::net::shm
