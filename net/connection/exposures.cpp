// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/region.hpp>
#include <weft/mr/remote_region.hpp>
#include <weft/net/connection/exposures.hpp>
#include <weft/net/device/device_state.hpp>

#include <string>
#include <utility>

namespace weft::net {
namespace {

// Of a connection that ends meanwhile, the link does not know why.
task<mr::remote_region> open_to_peer(connection_state& state, mr::slice memory, mr::usage uses,
                                     mr::detail::peer_gate* gate, const std::string& what) {
  try {
    const exposed_place opened = co_await state.link().expose(memory, uses, gate);
    const mr::remote_place place{.fabric = state.carrier.fabric_number, .address = opened.address, .key = opened.key};
    co_return mr::remote_region({&place, 1}, memory.size(), uses);
  } catch (const error& why) {
    const bool has_ended = why.code() == errc::closed || why.code() == errc::connection_failed;
    if (has_ended && state.has_ended()) throw state.why_ended().within(what);
    throw;
  }
}

}  // namespace

task<exposure> exposures::open(connection_state& state, std::shared_ptr<link_keys> keys, mr::buffer memory,
                               mr::usage uses) {
  const std::string what = begin_task(state, *keys, "expose a buffer to");
  if (state.has_ended()) throw state.why_ended().within(what);
  if (memory.size() == 0) throw error(errc::zero_length, what);
  if (memory.in_use()) throw error(errc::buffer_in_use, what);
  const inside_call inside(state);
  auto lent = std::make_unique<lending>(keys);
  const mr::remote_region remote = co_await open_to_peer(state, memory.slice(), uses, nullptr, what);
  keys->opened(*lent, remote.places().front().key, remote.size());
  co_return exposure(lent.release(), std::move(memory), mr::region_pin(), remote);
}

task<exposure> exposures::open(connection_state& state, std::shared_ptr<link_keys> keys, mr::slice range,
                               mr::usage uses) {
  const std::string what = begin_task(state, *keys, "expose memory of a region to");
  if (state.has_ended()) throw state.why_ended().within(what);
  if (range.size() == 0) throw error(errc::zero_length, what);
  if (range.domain() != &state.device->domain()) throw error(errc::wrong_device, what);
  if (!mr::includes(range.usage(), mr::usage::bind_window)) {
    throw error(errc::access_denied,
                what + ": the region needs usage bind_window, but has " + mr::to_string(range.usage()));
  }
  mr::region_pin region(range);
  const inside_call inside(state);
  auto lent = std::make_unique<lending>(keys);
  const mr::remote_region remote = co_await open_to_peer(state, range, uses, region.windows(), what);
  keys->opened(*lent, remote.places().front().key, remote.size());
  co_return exposure(lent.release(), mr::buffer(), std::move(region), remote);
}

}  // namespace weft::net
