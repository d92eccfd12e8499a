// SPDX-License-Identifier: Apache-2.0
#include <weft/net/connection/attached_link.hpp>

#include <utility>

namespace weft::net {

attached_link::attached_link(new_link established, transport& carrier, const connection_options& options)
    : fabric(&carrier),
      passed_over(std::move(established.passed_over)),
      fabric_number(static_cast<std::uint8_t>(carrier.domain().fabric())),
      link(std::move(established.link)),
      peer_private_data(std::move(established.peer_private_data)),
      peer_greeting(options.profile == profile::native ? greeting::unpack(peer_private_data) : std::nullopt),
      properties(link->properties()),
      largest_key(link->largest_key()) {
  properties.native = properties.orderly_close = properties.immediate = peer_greeting.has_value();
  if (!peer_greeting) return;
  native_features own = carrier.features_of(options.resume_within);
  own.device_memory = options.device_memory;
  own.persistent_flush = options.persistent_flush;
  own.write_notices = true;
  agreed = own & peer_greeting->features;
  properties.atomics = agreed.atomics;
  properties.write_immediate = agreed.immediate;
  properties.resumes = agreed.resumes;
  properties.device_memory = agreed.device_memory;
  properties.persistent_flush = agreed.persistent_flush;
  properties.device_flush &= agreed.persistent_flush;
  properties.device_atomic_write &= agreed.persistent_flush && agreed.atomic_write;
  properties.sees_writes = properties.sees_writes && !agreed.cuts_writes();
  properties.heartbeats = peer_greeting->answers_heartbeats;
  properties.max_send_bytes = peer_greeting->receive_size;
}

peer_names attached_link::names_of(const mr::remote_slice& where) noexcept {
  peer_names names;
  names.count = mr::max_fabrics;
  names.of.fill(named_place{});
  for (const mr::remote_place& each : where.places()) {
    if (each.fabric >= mr::max_fabrics) continue;
    names.of[each.fabric] = {.key = each.key, .address = each.address};
  }
  return names;
}

error attached_link::refusal_of(const mr::remote_place* place) noexcept {
  using weft::detail::make_error;
  if (place != nullptr) return make_error(errc::invalid_argument, "the peer's key is too large for this fabric");
  return make_error(errc::wrong_device, "the peer's memory is not registered with the fabric of this connection");
}

}  // namespace weft::net
