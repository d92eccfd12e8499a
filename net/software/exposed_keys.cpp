// SPDX-License-Identifier: Apache-2.0
#include <weft/net/link/transport.hpp>
#include <weft/net/software/exposed_keys.hpp>

#include <cstddef>
#include <span>
#include <utility>

namespace weft::net::software {
namespace {

key_rights rights_of_peer(mr::usage uses) noexcept {
  return {.remote_read = mr::overlaps(uses, mr::usage::read_src | mr::usage::flush_visibility),
          .remote_write = mr::overlaps(uses, mr::usage::write_dst),
          .remote_atomic = mr::overlaps(uses, mr::usage::atomic_dst)};
}

}  // namespace

std::uint32_t exposed_keys::open(const mr::slice& memory, mr::usage uses, mr::detail::peer_gate* gate) {
  check_exposed_uses(uses);
  std::set<std::uint32_t> made{0};  // allocated before the key is opened, so that nothing fails after that
  const std::span<std::byte> bytes = memory.bytes();
  const std::uint32_t key = domain_.keys().open({.ranges = {&bytes, 1},
                                                 .address = 0,
                                                 .rights = rights_of_peer(uses),
                                                 .stream = stream_,
                                                 .may_shrink = domain_.may_shrink(*memory.record()),
                                                 .gate = gate,
                                                 .direct = domain_.direct(*memory.record())});
  auto place = made.extract(made.begin());
  place.value() = key;
  keys_.insert(std::move(place));
  return key;
}

void exposed_keys::revoke(std::uint64_t key, bool by_peer) noexcept {
  const auto number = static_cast<std::uint32_t>(key);
  if (keys_.erase(number) != 0) domain_.keys().erase(number, by_peer);
}

void exposed_keys::revoke_all() noexcept {
  for (const std::uint32_t key : keys_) domain_.keys().erase(key);
  keys_.clear();
}

}  // namespace weft::net::software
