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
  std::uint32_t number;  ///< index of the request among the peer's requests, modulo 2^32
};

/// The link as seen by its parts, which end it when they cannot go on.
class link_breaker {
 public:
  /// Ends the link with the error `why`, because the connection cannot go on.
  virtual void break_off(const error& why) noexcept = 0;
  /// Ends the link, because the peer has broken the rules of the protocol.
  virtual void break_rules(std::string_view what) noexcept = 0;
  /// Ends the link, because the peer has no right to an access that it asked for.
  virtual void refuse_access(const refused_access& what, software::access_status status) noexcept = 0;

 protected:
  ~link_breaker() = default;
};

}  // namespace weft::net::shm
