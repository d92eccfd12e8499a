// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/remote_region.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include <common/wire.hpp>

// What a pusher (prefill) and a receiver (decode) say to each other. The cache's bytes never travel in a message: the
// receiver lends pages of its cache, and the pusher writes its blocks there.
//
//   want        pusher -> receiver   room for a sequence: so many pages, of so many layers, each of so many bytes
//   lent        receiver -> pusher   the pages, one behind the other, and how long they are lent
//   layer       pusher -> receiver   layer n of every page is in place; comes with the writes, as their immediate value
//   accepted    receiver -> pusher   all layers have come, and the pages are no longer lent
//
// One sequence at a time on a connection, its layers in order. Instead of `lent`, `refused` says why there is no room.
// After `lent` the receiver may take the pages back at any time: it says `evicted`, or `refused` if the contents of a
// layer are wrong, and the pusher answers with `dropped`, after which it says nothing more about that sequence. The
// pusher may say `dropped` by itself. So both agree on where the next sequence begins. A pusher that writes to pages
// that were taken back loses the connection, because its key is no longer valid; then it goes on over a new one.
//
// All numbers are little-endian. A message begins with its kind, 1 byte, and three zero bytes.
namespace kvcache {

/// What both sides say when they connect, so that neither takes another program for a kvcache.
inline constexpr std::string_view protocol_name = "weft-kvcache 1";

inline constexpr std::size_t longest_text_bytes = 400;

// Limits of both sides, so that products of these numbers do not overflow.
inline constexpr std::uint32_t most_pages = 1u << 24;
inline constexpr std::uint32_t most_layers = 1u << 12;
inline constexpr std::uint64_t most_block_bytes = std::uint64_t{1} << 26;
inline constexpr std::chrono::milliseconds longest_loan = std::chrono::hours(24);

/// The shape of a sequence: pages of the cache, each with a block for every layer.
struct shape {
  std::uint32_t pages = 0;
  std::uint32_t layers = 0;
  std::uint64_t block_bytes = 0;

  [[nodiscard]] constexpr std::uint64_t page_bytes() const noexcept { return layers * block_bytes; }
  [[nodiscard]] constexpr std::uint64_t bytes() const noexcept { return pages * page_bytes(); }
  friend constexpr bool operator==(const shape&, const shape&) noexcept = default;
};

struct want_message {  // 8 sequence, 4 pages, 4 layers, 8 bytes of a block
  std::uint64_t sequence = 0;
  shape of;
};
struct lent_message {  // 8 sequence, 8 milliseconds, then the region
  std::uint64_t sequence;
  std::chrono::milliseconds time;
  weft::mr::remote_region pages;
};
struct layer_message {  // 4 number; or the immediate value of a write
  std::uint32_t number = 0;
};
struct accepted_message {  // 8 sequence
  std::uint64_t sequence = 0;
};
struct evicted_message {  // 8 sequence, then the reason, in words
  std::uint64_t sequence = 0;
  std::string text;
};
struct refused_message {  // 8 sequence, then the reason, in words
  std::uint64_t sequence = 0;
  std::string text;
};
struct dropped_message {  // 8 sequence
  std::uint64_t sequence = 0;
};

using message = std::variant<want_message, lent_message, layer_message, accepted_message, evicted_message,
                             refused_message, dropped_message>;

/// A message as it travels.
using packed_message = common::packed<12 + longest_text_bytes>;
static_assert(packed_message::max_bytes >= 20 + weft::mr::remote_region::max_packed_bytes);

/// A text that is too long is cut.
[[nodiscard]] packed_message pack(const message& what);

/// Throws weft::errc::malformed, saying what is wrong with it. Numbers come out within the limits above, texts
/// printable.
[[nodiscard]] message unpack(std::span<const std::byte> bytes);

/// What to call a message in an error: "want", "lent".
[[nodiscard]] std::string_view name_of(const message& what) noexcept;

}  // namespace kvcache
