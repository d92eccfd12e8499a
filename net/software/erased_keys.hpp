// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace weft::net::software {

/// The keys that were erased most recently, up to a bound. Not thread-safe.
class erased_keys {
 public:
  static constexpr std::size_t most = 1024;

  erased_keys() noexcept { first_.fill(none); }

  /// Adds a key, and forgets the oldest if there are too many. `by_peer`: the peer had revoked the key.
  void add(std::uint32_t stag, bool by_peer) noexcept {
    const std::size_t number = added_++ % most;
    if (added_ > most) forget(number);
    std::uint16_t& first = first_[list_of(stag)];
    items_[number] = {stag, first, by_peer};
    first = static_cast<std::uint16_t>(number);
  }

  [[nodiscard]] bool contain(std::uint32_t stag) const noexcept {
    return any_of(stag, [](const item&) { return true; });
  }
  /// Whether they contain the key, and no peer had revoked it.
  [[nodiscard]] bool contain_ours(std::uint32_t stag) const noexcept {
    return any_of(stag, [](const item& each) { return !each.by_peer; });
  }

 private:
  static constexpr std::uint16_t none = most;
  struct item {
    std::uint32_t stag = 0;
    std::uint16_t next = none;  // the next item in the same list
    bool by_peer = false;
  };

  // Lists by a hash of the keys, of about one item each.
  [[nodiscard]] static std::size_t list_of(std::uint32_t stag) noexcept { return stag * 0x9E3779B1U >> 22; }
  static_assert(most == std::size_t{1} << 10);

  template <class Condition>
  [[nodiscard]] bool any_of(std::uint32_t stag, Condition condition) const noexcept {
    for (std::size_t i = first_[list_of(stag)]; i != none; i = items_[i].next) {
      if (items_[i].stag == stag && condition(items_[i])) return true;
    }
    return false;
  }

  void forget(std::size_t number) noexcept {
    std::uint16_t* place = &first_[list_of(items_[number].stag)];
    while (*place != number) place = &items_[*place].next;
    *place = items_[number].next;
  }

  std::array<item, most> items_{};
  std::array<std::uint16_t, most> first_;
  std::uint64_t added_ = 0;
};

}  // namespace weft::net::software
