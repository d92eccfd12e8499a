// SPDX-License-Identifier: Apache-2.0
// What server and clients of steps 5 to 7 of docs/guide share: a table that peers read while it is written.
#pragma once

#include <weft/mr/remote_region.hpp>
#include <weft/mr/shared_words.hpp>
#include <weft/runtime/error.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace store {

// ---- what both ends know ----

inline constexpr std::size_t longest_key = 32;
inline constexpr std::size_t longest_value = 64;

struct slot {
  std::uint64_t check = 0;    // check_of() all that follows
  std::uint64_t version = 0;  // grows with each put; 0: nothing was ever put here
  std::uint8_t key_size = 0;
  std::uint8_t value_size = 0;
  std::array<std::uint8_t, 6> unused{};
  std::array<char, longest_key> key{};
  std::array<char, longest_value> value{};
};
static_assert(sizeof(slot) == 120);

// FNV-1a. It notices accidents. Nobody's malice: a server that lies can compute it as well.
inline std::uint64_t hash(std::string_view bytes) {
  std::uint64_t sum = 14695981039346656037U;
  for (const char c : bytes) sum = (sum ^ static_cast<unsigned char>(c)) * 1099511628211U;
  return sum;
}

inline std::uint64_t check_of(const slot& of) {
  return hash({reinterpret_cast<const char*>(&of) + sizeof of.check, sizeof of - sizeof of.check});
}

// A key has one place. Two keys of one place push each other out: this is a cache.
inline std::uint64_t place_of(std::string_view key, std::uint64_t slots) { return hash(key) % slots; }

enum class outcome { found, absent, torn };

// Looks for a key in a slot that was read while somebody may have written it. Trusts nothing in it.
inline outcome find_in(const slot& read, std::string_view key, std::string& into) {
  if (read.version == 0 && read.check == 0) return outcome::absent;
  if (read.check != check_of(read)) return outcome::torn;
  if (read.key_size > longest_key || read.value_size > longest_value) return outcome::absent;
  if (std::string_view(read.key.data(), read.key_size) != key) return outcome::absent;
  into.assign(read.value.data(), read.value_size);
  return outcome::found;
}

// ---- the server's end ----

// Puts come from any thread. Readers take no lock, because nobody here knows that they read.
class table {
 public:
  explicit table(std::span<std::byte> memory) : memory_(memory) {}

  void put(std::string_view key, std::string_view value) {
    slot made;
    made.key_size = static_cast<std::uint8_t>(key.size());
    made.value_size = static_cast<std::uint8_t>(value.size());
    std::memcpy(made.key.data(), key.data(), key.size());
    std::memcpy(made.value.data(), value.data(), value.size());

    const std::uint64_t place = place_of(key, memory_.size() / sizeof(slot));
    const std::lock_guard alone(mutex_);
    made.version = ++version_;
    made.check = check_of(made);
    weft::mr::store_shared(memory_.subspan(place * sizeof(slot), sizeof(slot)), std::as_bytes(std::span(&made, 1)));
  }

 private:
  std::span<std::byte> memory_;
  std::mutex mutex_;
  std::uint64_t version_ = 0;
};

// ---- messages ----

struct put_request {
  std::string_view key;  // both look into the message
  std::string_view value;
};

// A put is the size of the key, the key, the value. Empty: it is none.
inline std::optional<put_request> parse_put(std::string_view text) {
  if (text.empty()) return std::nullopt;
  const auto key_size = static_cast<unsigned char>(text[0]);
  if (key_size == 0 || key_size > longest_key || key_size > text.size() - 1) return std::nullopt;
  const put_request said{.key = text.substr(1, key_size), .value = text.substr(1 + key_size)};
  if (said.value.size() > longest_value) return std::nullopt;
  return said;
}

inline std::string pack_put(std::string_view key, std::string_view value) {
  using weft::errc;
  if (key.empty() || key.size() > longest_key) throw weft::error(errc::invalid_argument, "a key has 1 to 32 bytes");
  if (value.size() > longest_value) throw weft::error(errc::invalid_argument, "a value has at most 64 bytes");
  return std::string(1, static_cast<char>(key.size())).append(key).append(value);
}

// The part of a server's table in which a key is.
inline weft::mr::remote_slice slot_of(const weft::mr::remote_region& table, std::string_view key) {
  return table.slice(place_of(key, table.size() / sizeof(slot)) * sizeof(slot), sizeof(slot));
}

}  // namespace store
