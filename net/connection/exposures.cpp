// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/device/owner_keys.hpp>
#include <weft/mr/device_memory.hpp>
#include <weft/mr/region.hpp>
#include <weft/mr/remote_region.hpp>
#include <weft/net/connection/device_state.hpp>
#include <weft/net/connection/exposures.hpp>

#include <array>
#include <string>
#include <utility>

namespace weft::net {
namespace {

// Has the link open memory to the peer. If the connection ends meanwhile, throws the connection's reason, because the
// link does not know it.
task<mr::remote_region> open_to_peer(connection_state& state, mr::slice memory, mr::usage uses,
                                     mr::detail::peer_gate* gate, const std::string& what) {
  try {
    const exposed_place opened = co_await state.link().expose(memory, uses, gate);
    const std::uint8_t fabric = opened.fabric.value_or(state.carrier.fabric_number);
    const mr::remote_place place{.fabric = fabric, .address = opened.address, .key = opened.key};
    co_return mr::remote_region({&place, 1}, memory.size(), uses);
  } catch (const error& why) {
    const bool has_ended = why.code() == errc::closed || why.code() == errc::connection_failed;
    if (has_ended && state.has_ended()) throw state.why_ended().within(what);
    throw;
  }
}

// The error of an exposure whose deadline has passed. Thrown before the memory is opened, or, if that took too long,
// after the revocation of the key has begun.
error too_late(const std::string& what) {
  return error(errc::timed_out, what + ": its deadline (expose_options::until) has passed");
}

// Opens a key for persistent flushes, which the owner carries out.
std::uint64_t open_owners_key(const connection_state& state, mr::slice range) {
  return mr::detail::owner_keys::of_process().open({.record = range.record(),
                                                    .device = nullptr,
                                                    .memory = range.bytes(),
                                                    .uses = mr::usage::flush_persistent,
                                                    .connection = state.number()});
}

mr::remote_region add_owners_key(std::uint64_t key, const mr::remote_region& by_fabric, mr::usage uses) {
  const std::array places{by_fabric.places().front(),
                          mr::remote_place{.fabric = mr::place_behind_owner, .address = 0, .key = key}};
  return {places, by_fabric.size(), uses};
}

void check_persistence(const connection_state& state, mr::slice range, mr::usage uses, const std::string& what) {
  if (!state.properties().persistent_flush) {
    throw error(errc::not_supported,
                what + ": usage flush_persistent needs connection_options::persistent_flush at both ends");
  }
  if (!mr::includes(range.usage(), mr::usage::flush_persistent)) {
    throw error(errc::access_denied, what + ": usage flush_persistent is for memory that is registered for it");
  }
  if (range.record()->owners_key == 0) {
    throw error(errc::not_supported, what +
                                         ": usage flush_persistent of memory that the device makes persistent; send "
                                         "the key of its region instead");
  }
  if (uses == mr::usage::flush_persistent)
    throw error(errc::not_supported, what + ": usage flush_persistent comes with another one, such as write_dst");
}

}  // namespace

// Opens memory of a device. RDMA devices have no windows for GPU memory, and other fabrics do not reach it, so the
// owner checks each access and copies.
exposure exposures::open_device_memory(connection_state& state, link_keys& keys, std::unique_ptr<lending> lent,
                                       mr::slice range, mr::usage uses, const std::string& what) {
  if (!state.properties().device_memory) {
    throw error(errc::not_supported,
                what + ": exposing device memory needs connection_options::device_memory at both ends");
  }
  constexpr mr::usage possible = mr::usage::write_dst | mr::usage::read_src | mr::usage::flush_visibility;
  if (uses == mr::usage::none || !mr::includes(possible, uses)) {
    throw error(errc::not_supported, what + ": memory of a device for " + mr::to_string(uses));
  }
  const std::uint64_t key =
      mr::detail::owner_keys::of_process().open({.record = range.record(),
                                                 .device = range.record()->device->shared_from_this(),
                                                 .memory = range.bytes(),
                                                 .uses = uses,
                                                 .connection = state.number(),
                                                 .direct = range.record()->region->options.direct});
  lent->be_of_device(key);
  const mr::remote_place place{.fabric = mr::place_behind_owner, .key = key};
  const mr::remote_region remote({&place, 1}, range.size(), uses);
  if (!keys.opened(*lent, key, range.size())) {
    link_keys::end(lent.release());
    throw too_late(what);
  }
  return exposure(lent.release(), mr::buffer(), remote);
}

task<exposure> exposures::open(connection_state& state, std::shared_ptr<link_keys> keys, mr::buffer memory,
                               mr::usage uses, expose_options how) {
  const std::string what = begin_task(state, *keys, "expose a buffer to");
  if (state.has_ended()) throw state.why_ended().within(what);
  if (memory.size() == 0) throw error(errc::zero_length, what);
  if (memory.in_use()) throw error(errc::buffer_in_use, what);
  if (overlaps(uses, mr::usage::flush_persistent)) check_persistence(state, memory.slice(), uses, what);
  if (how.until <= state.home.now()) throw too_late(what);
  const inside_call inside(state);
  auto lent = std::make_unique<lending>(keys, how.until);
  const mr::remote_region remote = co_await open_to_peer(state, memory.slice(), uses, nullptr, what);
  if (!keys->opened(*lent, remote.places().front().key, remote.size())) {
    lent->hold(std::move(memory));
    link_keys::end(lent.release());
    throw too_late(what);
  }
  co_return exposure(lent.release(), std::move(memory), remote);
}

task<exposure> exposures::open(connection_state& state, std::shared_ptr<link_keys> keys, mr::slice range,
                               mr::usage uses, expose_options how) {
  const std::string what = begin_task(state, *keys, "expose memory of a region to");
  if (state.has_ended()) throw state.why_ended().within(what);
  if (range.size() == 0) throw error(errc::zero_length, what);
  if (range.domain() != &state.device->domain()) throw error(errc::wrong_device, what);
  if (!mr::includes(range.usage(), mr::usage::bind_window)) {
    throw error(errc::access_denied,
                what + ": the region needs usage bind_window, but has " + mr::to_string(range.usage()));
  }
  if (how.until <= state.home.now()) throw too_late(what);
  mr::region_pin region(range);
  mr::detail::peer_gate* const gate = region.windows();
  if (!gate->open && !state.device->domain().capabilities().gates) {
    throw error(errc::invalid_argument,
                what + ": the region is disabled, so that it has no windows here: enable it before exposing it");
  }
  const inside_call inside(state);
  auto lent = std::make_unique<lending>(keys, how.until);
  lent->hold(std::move(region));
  if (range.kind() == mr::memory_kind::device)
    co_return open_device_memory(state, *keys, std::move(lent), range, uses, what);
  const bool persists = overlaps(uses, mr::usage::flush_persistent);
  std::uint64_t owners_key = 0;
  if (persists) {
    check_persistence(state, range, uses, what);
    owners_key = open_owners_key(state, range);  // first, because nothing may fail once the link has given a key
    lent->add_owners_key(owners_key);
  }
  mr::remote_region remote = co_await open_to_peer(state, range, uses & ~mr::usage::flush_persistent, gate, what);
  if (persists) remote = add_owners_key(owners_key, remote, uses);
  remote.count_by(gate->told);
  if (!keys->opened(*lent, remote.places().front().key, remote.size())) {
    link_keys::end(lent.release());
    throw too_late(what);
  }
  co_return exposure(lent.release(), mr::buffer(), remote);
}

}  // namespace weft::net
