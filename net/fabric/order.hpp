// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/fabric/calls.hpp>
#include <weft/net/link/transport.hpp>

#include <array>
#include <cstddef>
#include <cstdint>

namespace weft::net::fabric {

/// The kinds of requests that a provider's promises of order distinguish.
enum class access_kind : std::uint8_t { send, write, read, atomic };
inline constexpr std::size_t access_kinds = 4;

/// The kind of a connection's request.
[[nodiscard]] constexpr access_kind kind_of(work_kind what) noexcept {
  switch (what) {
    case work_kind::send:
      return access_kind::send;
    case work_kind::write:
      return access_kind::write;
    case work_kind::read:
      return access_kind::read;
    case work_kind::fetch_add:
    case work_kind::compare_swap:
    case work_kind::flush:  // without capabilities::device_flush there are none
      break;
  }
  return access_kind::atomic;
}

/// Which kinds of requests a provider keeps in order. A later request that it might let overtake earlier ones waits
/// until these have completed, and they complete only once the peer has them: FI_DELIVERY_COMPLETE of fi_cq(3).
class order_table {
 public:
  /// Promises nothing.
  constexpr order_table() noexcept = default;
  /// Promises what fi_getinfo(3) has granted: fi_tx_attr::msg_order and fi_ep_attr::max_order_*_size.
  explicit order_table(const fi_info& granted) noexcept {
    const std::uint64_t bits = granted.tx_attr->msg_order;
    const fi_ep_attr& sizes = *granted.ep_attr;
    const auto any_size = [&](std::size_t most) { return most >= sizes.max_msg_size; };
    const bool raw = (bits & FI_ORDER_RAW) != 0 && any_size(sizes.max_order_raw_size);
    const bool war = (bits & FI_ORDER_WAR) != 0 && any_size(sizes.max_order_war_size);
    const bool waw = (bits & FI_ORDER_WAW) != 0 && any_size(sizes.max_order_waw_size);
    const bool ras = (bits & FI_ORDER_RAS) != 0;
    const bool was = (bits & FI_ORDER_WAS) != 0;
    const bool sar = (bits & FI_ORDER_SAR) != 0;
    const bool saw = (bits & FI_ORDER_SAW) != 0;
    using enum access_kind;
    keep(send, send, (bits & FI_ORDER_SAS) != 0);
    keep(send, write, saw);
    keep(send, read, sar);
    keep(send, atomic, saw && sar);
    keep(write, atomic, waw && war);
    keep(read, atomic, raw);
    keep(atomic, send, was && ras);
    keep(atomic, write, waw && raw);
    keep(atomic, read, war);
    keep(atomic, atomic, raw && war && waw);
    keep(write, send, was);
    keep(write, write, waw);
    keep(write, read, war);
    keep(read, send, ras);
    keep(read, write, raw);
    keep(read, read, true);  // neither changes anything
  }

  /// Whether a request of kind `later` may be handed over while one of kind `earlier` is in flight.
  [[nodiscard]] constexpr bool keeps(access_kind later, access_kind earlier) const noexcept {
    return kept_[index(later)][index(earlier)];
  }
  /// Whether requests of that kind have to complete only once the peer has them, because a later one may wait for
  /// that.
  [[nodiscard]] constexpr bool has_to_be_delivered(access_kind earlier) const noexcept {
    for (const auto& later : kept_) {
      if (!later[index(earlier)]) return true;
    }
    return false;
  }

 private:
  static constexpr std::size_t index(access_kind what) noexcept { return static_cast<std::size_t>(what); }
  void keep(access_kind later, access_kind earlier, bool promised) noexcept {
    kept_[index(later)][index(earlier)] = promised;
  }

  std::array<std::array<bool, access_kinds>, access_kinds> kept_{};  // [later][earlier]
};

}  // namespace weft::net::fabric
