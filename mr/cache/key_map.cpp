// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/cache/key_map.hpp>
#include <weft/runtime/error.hpp>

#include <fmt/core.h>

#include <atomic>

namespace weft::mr {
namespace {

constinit std::atomic<std::uint64_t> last_key{0};

[[noreturn]] void throw_unknown(std::uint64_t key) {
  throw error(errc::invalid_argument, fmt::format("the remote region key {:#x} is not mapped", key));
}

}  // namespace

std::uint64_t key_map::map(std::span<const std::byte> raw) {
  const remote_region region = remote_region::unpack(raw);
  const std::uint64_t key = last_key.fetch_add(1, std::memory_order_relaxed) + 1;
  regions_.emplace(key, region);
  return key;
}

const remote_region& key_map::find(std::uint64_t key) const {
  const auto found = regions_.find(key);
  if (found == regions_.end()) throw_unknown(key);
  return found->second;
}

void key_map::unmap(std::uint64_t key) {
  if (regions_.erase(key) == 0) throw_unknown(key);
}

}  // namespace weft::mr
