// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/remote_region.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <variant>

#include <common/printable.hpp>

// What a client and a server say to each other. Many calls share one connection; their ids tell them apart.
//
//   call     client -> server   id, method, arguments; and, for a large answer, memory of the client's to write it to
//   cancel   client -> server   nobody waits for the answer to call `id` any more
//   answer   server -> client   call `id` is over: what it yields, or why it failed, or that it was stopped
//
// The ids of calls grow. Every call gets exactly one answer, a canceled one as well. The server touches the memory of a
// call only before it sends the answer, and a message arrives behind all that was written before it (RFC 5040 section
// 5.5; every RDMA transport keeps that order). So whoever has the answer knows that nothing more will be written: it is
// the confirmation that lets the memory of a call that has timed out be used for something else.
//
// A client has at most `most_calls` calls under way on a connection, counted until their answers come. A cancel may
// cross the answer on its way: then it means nothing.
//
// All numbers are little-endian. A message begins with its kind (1 byte), two bytes of its own, five zero bytes and the
// id (8).
namespace rpc {

/// What both sides say when they connect, so that neither takes another program for its peer.
inline constexpr std::string_view protocol_name = "weft-rpc 1";

inline constexpr std::size_t most_calls = 64;
inline constexpr std::uint32_t message_bytes = 4352;
inline constexpr std::size_t longest_method = 32;
inline constexpr std::size_t longest_arguments = 4000;
inline constexpr std::size_t longest_answer = 4000;  ///< what is larger is written to the client's memory

struct call_message {  // length of the method, whether there is a room; the room (24), method, arguments
  std::uint64_t id = 0;
  std::string_view method;
  std::string_view arguments;
  std::optional<weft::mr::remote_region> room;  ///< where a large answer may be written
};

struct cancel_message {
  std::uint64_t id = 0;
};

enum class outcome : std::uint8_t { success = 1, failure = 2, canceled = 3 };

struct answer_message {  // outcome; bytes written (8), text
  std::uint64_t id = 0;
  outcome how = outcome::success;
  std::uint64_t written = 0;  ///< to the room, from its beginning
  std::string_view text;      ///< what the call yields, or why it failed
};

/// Writes a message to memory of message_bytes and yields its size. A text that is too long is cut.
[[nodiscard]] std::size_t pack(const call_message& what, std::span<std::byte> into) noexcept;
[[nodiscard]] std::size_t pack(const cancel_message& what, std::span<std::byte> into) noexcept;
[[nodiscard]] std::size_t pack(const answer_message& what, std::span<std::byte> into) noexcept;

/// What a client has sent. Throws weft::errc::malformed, saying what is wrong with it. Refers to the bytes.
[[nodiscard]] std::variant<call_message, cancel_message> unpack_request(std::span<const std::byte> bytes);
/// What a server has sent. The same.
[[nodiscard]] answer_message unpack_answer(std::span<const std::byte> bytes);

using common::printable;

}  // namespace rpc
