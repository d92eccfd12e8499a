// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/remote_region.hpp>
#include <weft/net/capabilities.hpp>
#include <weft/net/connection/operation_owner.hpp>
#include <weft/net/link/native_features.hpp>
#include <weft/net/link/native_protocol.hpp>
#include <weft/net/link/transport.hpp>
#include <weft/net/options.hpp>
#include <weft/runtime/error.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace weft::net {

/// The link that carries a connection, and what both ends have agreed on.
struct attached_link {
  /// Takes an established link over, and finds what both ends can do. `carrier` is the link's transport. The peer's
  /// private data have no greeting if the peer is not weft.
  attached_link(new_link established, transport& carrier, const connection_options& options);

  /// The name of the peer's memory on this link's fabric: see operation_owner::find().
  [[nodiscard]] std::optional<named_place> find(const mr::remote_slice& where,
                                                std::optional<error>& why_not) const noexcept {
    const mr::remote_place* const place = where.on(peer_greeting ? peer_greeting->fabric : 0);
    if (place != nullptr && place->key <= largest_key) [[likely]]
      return named_place{.key = place->key, .address = place->address};
    why_not = refusal_of(place);
    return std::nullopt;
  }

  /// The names of the peer's memory on all fabrics, for a connection with rails.
  [[nodiscard]] static peer_names names_of(const mr::remote_slice& where) noexcept;

  transport* fabric;
  std::string passed_over;     ///< connection::passed_over()
  std::uint8_t fabric_number;  ///< number of the fabric's domain among the device's domains
  std::unique_ptr<net::link> link;
  std::vector<std::byte> peer_private_data;
  std::optional<greeting> peer_greeting;  ///< empty if the peer is not weft, or with profile::interop
  native_features agreed;
  capabilities properties;
  std::uint64_t largest_key;

 private:
  [[nodiscard, gnu::cold]] static error refusal_of(const mr::remote_place* place) noexcept;
};

}  // namespace weft::net
