// SPDX-License-Identifier: Apache-2.0
#include <weft/net/link/little_endian.hpp>
#include <weft/net/link/owner_message.hpp>
#include <weft/runtime/error.hpp>

#include <algorithm>
#include <array>
#include <atomic>

namespace weft::net {
namespace {

constexpr unsigned flush_bit = 1;
constexpr unsigned direct_bit = 2;
constexpr std::size_t handle_at = owner_message::head_bytes;
constexpr std::size_t offset_at = handle_at + sizeof mr::device_share().handle;
constexpr std::size_t length_at = offset_at + 8;
constexpr std::size_t share_bytes = length_at + 8;
static_assert(share_bytes <= owner_message::max_bytes);

bool may_be_direct(owner_message::verb what) noexcept {
  return what == owner_message::verb::put || what == owner_message::verb::get;
}

std::size_t most_bytes(const owner_message& said) noexcept {
  if (said.what == owner_message::verb::persist) return owner_message::most_persistent_bytes;
  return said.direct ? owner_message::most_direct_bytes : owner_message::slot_bytes;
}

}  // namespace

std::size_t owner_message::pack(std::span<std::byte> out) const noexcept {
  std::fill_n(out.begin(), head_bytes, std::byte{0});
  out[0] = static_cast<std::byte>(what);
  out[1] = std::byte{slot};
  out[2] = static_cast<std::byte>(status);
  out[3] = static_cast<std::byte>((flushes ? flush_bit : 0) | (direct ? direct_bit : 0));
  little_endian::put(out, 4, bytes);
  little_endian::put(out, 8, key);
  little_endian::put(out, 16, offset);
  if (what == verb::share) {
    std::copy(shared.handle.begin(), shared.handle.end(), out.subspan(handle_at).begin());
    little_endian::put(out, offset_at, shared.offset);
    little_endian::put(out, length_at, shared_bytes);
    return share_bytes;
  }
  if (direct) {
    little_endian::put(out, head_bytes, shared_offset);
    return head_bytes + sizeof shared_offset;
  }
  if (!region) return head_bytes;
  const auto packed = region->pack();
  std::copy(packed.begin(), packed.end(), out.subspan(head_bytes).begin());
  return head_bytes + packed.size();
}

std::optional<owner_message> owner_message::unpack(std::span<const std::byte> message) noexcept try {
  if (message.size() < head_bytes || message.size() > max_bytes) return std::nullopt;
  // A copy, because the peer may change a message in shared memory after its fields have been checked.
  std::array<std::byte, max_bytes> copy;
  const std::span packed(copy.begin(), std::ranges::copy(message, copy.begin()).out);
  std::atomic_signal_fence(std::memory_order_seq_cst);  // keeps the compiler from loading `message` again
  owner_message said;
  said.what = static_cast<verb>(packed[0]);
  said.slot = std::to_integer<std::uint8_t>(packed[1]);
  said.status = static_cast<mr::detail::owner_access>(packed[2]);
  const auto flags = std::to_integer<unsigned>(packed[3]);
  said.flushes = (flags & flush_bit) != 0;
  said.direct = (flags & direct_bit) != 0;
  said.bytes = little_endian::get<std::uint32_t>(packed, 4);
  said.key = little_endian::get<std::uint64_t>(packed, 8);
  said.offset = little_endian::get<std::uint64_t>(packed, 16);
  const bool is_known =
      said.what >= verb::ask && said.what <= verb::persist && (flags & ~(flush_bit | direct_bit)) == 0;
  const bool has_slot = said.slot < slots && said.bytes <= most_bytes(said);
  const bool is_in_turn = said.what != verb::persist || said.slot == 0;  // slot 0 alone: one persist at a time
  if (!is_known || !has_slot || !is_in_turn || said.status > mr::detail::owner_access::not_written) return std::nullopt;
  const std::span<const std::byte> rest = packed.subspan(head_bytes);
  if (said.direct) {
    if (!may_be_direct(said.what) || said.flushes || rest.size() != sizeof said.shared_offset) return std::nullopt;
    said.shared_offset = little_endian::get<std::uint64_t>(rest, 0);
    return said;
  }
  if (said.what == verb::share) {
    if (packed.size() != share_bytes) return std::nullopt;
    std::copy_n(packed.begin() + handle_at, said.shared.handle.size(), said.shared.handle.begin());
    said.shared.offset = little_endian::get<std::uint64_t>(packed, offset_at);
    said.shared_bytes = little_endian::get<std::uint64_t>(packed, length_at);
    return said;
  }
  if (rest.empty()) return said;
  if (said.what != verb::memory) return std::nullopt;
  said.region = mr::remote_region::unpack(rest);
  const bool fits = said.region->size() == slots * slot_bytes && said.region->packed_bytes() == rest.size();
  return fits ? std::optional(said) : std::nullopt;
} catch (const error&) {
  return std::nullopt;
}

}  // namespace weft::net
