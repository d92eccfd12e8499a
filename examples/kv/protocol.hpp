// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/remote_region.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include <kv/clock.hpp>
#include <kv/table.hpp>

namespace kv {

// ---- messages between weft peers ----

/// A connection's receive_size: all that follows fits.
inline constexpr std::uint32_t message_bytes = 1024;

/// Which process a server is: a number that each draws when it starts.
using generation = std::uint64_t;

/// What the server says first: where its table is, how many buckets it has and how long a value may be there, which
/// process it is, and what its clock shows.
struct hello {
  weft::mr::remote_region memory;
  std::uint64_t buckets = 0;
  std::uint64_t longest_value = kv::longest_value;
  generation server{};
  moment now{};
};
[[nodiscard]] std::size_t pack(const hello& what, std::span<std::byte> into) noexcept;
/// Throws weft::error for what is none, or no table.
[[nodiscard]] hello unpack_hello(std::span<const std::byte> message);

/// The answer to all that follows: what the server's clock shows.
[[nodiscard]] std::size_t pack(moment now, std::span<std::byte> into) noexcept;
[[nodiscard]] std::optional<moment> unpack_answer(std::span<const std::byte> message) noexcept;

/// A message of no bytes asks for nothing but the answer. SET: whether the value is lent (1), the key's size (2), the
/// key, and the value, or where it is. A value that is lent is the client's memory, which the server reads before it
/// answers.
struct set_request {
  std::string_view key;
  std::variant<std::string_view, weft::mr::remote_region> value;
};
/// Whether the value goes into the message.
[[nodiscard]] constexpr bool fits_message(std::string_view key, std::string_view bytes) noexcept {
  return 3 + key.size() + bytes.size() <= message_bytes;
}
[[nodiscard]] std::size_t pack(const set_request& what, std::span<std::byte> into) noexcept;
/// Empty for what no table takes.
[[nodiscard]] std::optional<set_request> unpack_set(std::span<const std::byte> message);

// ---- text, for TCP clients: the part of memcached's protocol that is needed ----

/// Answers commands of the text protocol: `get KEY`, and `set KEY FLAGS EXPIRY BYTES` with the value behind it. Flags
/// are 32 bits of the client's, which get returns. EXPIRY is in seconds: 0 never, below 0 at once, up to 30 days from
/// now on, and what is more since 1970.
class text_session {
 public:
  using clock = moment (*)() noexcept;
  explicit text_session(table& data, clock now = server_now) noexcept : data_(data), now_(now) {}

  /// Executes the commands that `input` holds whole, until there are enough answers, appends these to `output`, and
  /// yields how many bytes the commands took. Called anew with what is left until it takes nothing: that is at most
  /// longest_command bytes and a value. Empty if the peer's words mean nothing: the last answer says so, and nothing
  /// more is to be read.
  [[nodiscard]] std::optional<std::size_t> execute(std::string_view input, std::string& output);
  static constexpr std::size_t longest_command = 1024;
  /// Answers that are made before somebody takes them: one more, at most.
  static constexpr std::size_t enough_answers = std::size_t{64} << 10;

 private:
  std::optional<std::size_t> execute_one(std::string_view input, std::string& output);
  std::optional<std::size_t> execute_set(std::string_view line, std::string_view rest, std::string& output);

  table& data_;
  clock now_;
};

}  // namespace kv
