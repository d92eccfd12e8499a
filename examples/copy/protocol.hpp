// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/remote_region.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "digest.hpp"
#include <common/printable.hpp>
#include <common/wire.hpp>

// What the two sides of a copy say to each other. The bytes of a file never travel in a message: the sender writes them
// into chunks of memory that the receiver has exposed, and messages tell which.
//
//   put        client -> server                 get        client -> server
//                                               offer      server -> client
//
// and from here on the side that has the file is the sender, the other the receiver:
//
//   ready      receiver -> sender   the slots into which the sender may write, each for a chunk of chunk_bytes_of(size)
//   chunk      sender -> receiver   chunk n has been written, to slot n modulo the number of slots
//   taken      receiver -> sender   chunk n is hashed and stored; its slot, which has another key now, for chunk n plus
//                                   the number of slots, if there is one
//   end        sender -> receiver   that was all; the digest of what was read
//   stored     receiver -> sender   the digest is right, and the file has its name
//
// Instead of `ready` or `offer`, `failed` refuses and ends the transfer. After `ready` each side says its last word
// once, the sender `end` or `failed`, the receiver `stored` or `failed`, and waits for that of the other: so they agree
// on where the next transfer begins, whatever went wrong with this one.
//
// All numbers are little-endian. A message begins with its kind, 1 byte, and three zero bytes.
namespace copy {

/// What both sides say when they connect, so that neither takes another program for a copy.
inline constexpr std::string_view protocol_name = "weft-copy 2";

inline constexpr std::size_t longest_text_bytes = 400;  // of names as well, so that one that is too long can be refused
inline constexpr std::size_t most_slots = 16;
inline constexpr std::uint64_t most_chunk_bytes = std::uint64_t{1} << 20;

/// A file travels in chunks of this size; the last one may be shorter.
[[nodiscard]] constexpr std::uint64_t chunk_bytes_of(std::uint64_t file_size) noexcept {
  return std::clamp<std::uint64_t>(file_size, 1, most_chunk_bytes);
}
[[nodiscard]] constexpr std::uint64_t chunks_of(std::uint64_t file_size) noexcept {
  return file_size / most_chunk_bytes + (file_size % most_chunk_bytes != 0 ? 1 : 0);
}
/// How many bytes of the file chunk `index` has.
[[nodiscard]] constexpr std::uint64_t bytes_of_chunk(std::uint64_t file_size, std::uint64_t index) noexcept {
  return std::min(most_chunk_bytes, file_size - index * most_chunk_bytes);
}

struct put_message {  // 8 size, then the name
  std::uint64_t size = 0;
  std::string name;
};
struct get_message {  // the name
  std::string name;
};
struct offer_message {  // 8 size
  std::uint64_t size = 0;
};
struct ready_message {  // the slots, 24 bytes each
  std::vector<weft::mr::remote_region> slots;
};
struct chunk_message {  // 8 index
  std::uint64_t index = 0;
};
struct taken_message {  // 8 index, then the slot if it is open again
  std::uint64_t index = 0;
  std::optional<weft::mr::remote_region> slot;
};
struct end_message {  // 32 digest
  digest sha;
};
struct stored_message {};
struct failed_message {  // the reason, in words
  std::string text;
};

using message = std::variant<put_message, get_message, offer_message, ready_message, chunk_message, taken_message,
                             end_message, stored_message, failed_message>;

/// A message as it travels.
using packed_message = common::packed<4 + most_slots * weft::mr::remote_region::max_packed_bytes>;
static_assert(packed_message::max_bytes >= 12 + longest_text_bytes);

/// A text or name that is too long is cut.
[[nodiscard]] packed_message pack(const message& what);

/// Throws weft::errc::malformed, saying what is wrong with it. Texts come out printable.
[[nodiscard]] message unpack(std::span<const std::byte> bytes);

using common::printable;

/// What to call a message in an error: "put", "ready".
[[nodiscard]] std::string_view name_of(const message& what) noexcept;

}  // namespace copy
