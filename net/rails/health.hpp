// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/transport.hpp>
#include <weft/net/rails/line_budget.hpp>
#include <weft/net/statistics.hpp>
#include <weft/runtime/intrusive_list.hpp>
#include <weft/runtime/system/clock.hpp>
#include <weft/runtime/system/live_number.hpp>

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace weft::net::rails {

using weft::detail::live_number;

/// The counters and the state of one rail: changed on the executor of its connection, read by any thread.
/// Intrusive: in the list of its device's rails.
class rail_health : public weft::detail::list_hook<rail_health> {
 public:
  rail_health() = default;
  rail_health(const rail_health&) = delete;
  rail_health& operator=(const rail_health&) = delete;

  /// Sets the rail's fabric and the peer's address. Called when a link begins, and maybe before the first link. If
  /// there is no memory for a text, the previous text stays.
  void goes(std::string_view fabric, std::string_view peer) noexcept;
  void becomes(rail_state what, time_point now) noexcept;
  /// Notes why there is no link.
  void note_why(std::string_view words) noexcept;

  void completed(work_kind kind, std::uint64_t bytes) noexcept {
    direction& way = kind == work_kind::read ? from_peer_ : to_peer_;
    way.requests.add(1);
    way.bytes.add(bytes);
  }
  void message_came(std::uint64_t bytes) noexcept {
    from_peer_.requests.add(1);
    from_peer_.bytes.add(bytes);
  }
  live_number carries_messages;  ///< 0 or 1
  live_number bytes_per_second;
  live_number sent_again;
  live_number opened;
  live_number lost;
  live_number controls_sent;
  live_number controls_received;

  /// Whether goes() was called: at the latest when the rail has its first link. The accepting end may have places for
  /// more rails than there are.
  [[nodiscard]] bool is_known() const noexcept;
  [[nodiscard]] rail_statistics snapshot(unsigned number, time_point now) const;
  [[nodiscard]] rail_traffic so_far() const noexcept;
  /// The fabric and the peer's address: "verbs:mlx5_1 to 10.1.0.2:7471".
  [[nodiscard]] std::string way() const;
  [[nodiscard]] std::string fabric() const;
  [[nodiscard]] std::string why() const;

 private:
  friend class device_rails;
  struct direction {
    live_number requests;
    live_number bytes;
  };

  direction to_peer_;
  direction from_peer_;

  mutable std::mutex mutex_;  // guards the members below
  std::string fabric_;
  std::string peer_;
  std::string why_;
  rail_state state_ = rail_state::absent;
  time_point since_{};
};

/// The rails of all connections of a device. From any thread.
class device_rails {
 public:
  /// `fabrics` are all fabrics of the device. Throws std::bad_alloc.
  explicit device_rails(const std::vector<std::string_view>& fabrics);

  /// Adds a rail, which must live until remove(), and must count nothing after remove().
  void add(rail_health& which) noexcept;
  /// Removes a rail, and keeps its counts in the sums; does nothing if it was not added.
  void remove(rail_health& which) noexcept;
  /// Whether there has ever been a rail.
  [[nodiscard]] bool has_had_any() const noexcept {
    const std::lock_guard lock(mutex_);
    return has_had_any_;
  }
  /// Adds the statistics of all rails, removed ones included, to the entries of their fabrics: transport::add_rails().
  void add_to(std::vector<fabric_rail_statistics>& all) const;

  /// Takes a line from the budget of lines about the device's rails; false if no line may be written now.
  [[nodiscard]] bool may_write_line(time_point now) noexcept {
    const std::lock_guard lock(mutex_);
    return lines_.take(now);
  }

 private:
  mutable std::mutex mutex_;
  std::vector<fabric_rail_statistics> ended_;  // sums over removed rails, one for each fabric
  weft::detail::intrusive_list<rail_health> all_;
  bool has_had_any_ = false;
  line_budget lines_{40, std::chrono::milliseconds(250)};
};

}  // namespace weft::net::rails
