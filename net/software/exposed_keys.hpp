// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/region/peer_gate.hpp>
#include <weft/mr/slice.hpp>
#include <weft/mr/usage.hpp>
#include <weft/net/software/domain.hpp>
#include <weft/net/software/key_table.hpp>

#include <cstdint>
#include <set>

namespace weft::net::software {

/// The keys that one connection has given to its peer, and that no other connection may use. All calls on its executor.
class exposed_keys {
 public:
  /// `home` must outlive this object.
  exposed_keys(domain& home, stream_id stream) noexcept : domain_(home), stream_(stream) {}

  /// Opens memory as link::expose() does; the first byte is at address 0. Throws errc::not_supported for uses that are
  /// not possible, and what key_table::open() throws.
  [[nodiscard]] std::uint32_t open(const mr::slice& memory, mr::usage uses, mr::detail::peer_gate* gate);
  /// Revokes a key. Does nothing for a key that the connection does not have. `by_peer`: see
  /// revocation::is_wish_of_peer().
  void revoke(std::uint64_t key, bool by_peer) noexcept;
  /// Revokes all keys, at the end of the connection.
  void revoke_all() noexcept;

 private:
  domain& domain_;
  stream_id stream_;
  std::set<std::uint32_t> keys_;  // a set, so that one of 100,000 keys is revoked in logarithmic time
};

}  // namespace weft::net::software
