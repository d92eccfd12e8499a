// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/rails/control.hpp>
#include <weft/net/rails/health.hpp>
#include <weft/net/rails/line_budget.hpp>
#include <weft/net/rails/rail_owner.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/system/clock.hpp>
#include <weft/runtime/system/timer.hpp>

#include <array>
#include <string>
#include <string_view>

namespace weft::net::rails {

/// Reports what happens to the rails of one connection: at once in the trace, and in reports (report_kind::change).
///
/// A report comes a tenth of a second after the change, so a connection that ends with its rails does not report each
/// of them, and a rail that is back by then has one line. A rail that comes and goes has four lines, then one in ten
/// seconds, each with the number of losses since the previous one; device_rails limits the lines of a device. A line
/// beyond these limits is not dropped but delayed, and then describes the state at that time.
class news final : private weft::detail::timer {
 public:
  /// `peer` is the connection's name for the peer, and must outlive this object.
  news(rail_owner& of, std::string_view peer, device_rails& all) noexcept : of_(of), peer_(peer), all_(all) {}
  ~news() { stop(); }

  /// Reports that a rail that was up has ended, and that the connection goes on.
  void lost(const rail& which) noexcept;
  /// Traces that a rail could not get a link. Reports it only the first time, and only before the rail's first link.
  void refused(const rail& which) noexcept;
  /// Traces that a rail is up. Reports it if the last line said that the rail is not there.
  void came(const rail& which) noexcept;
  /// Traces that no rail is left, and that the connection waits for one, at most `within`.
  void none_left(std::chrono::milliseconds within) const noexcept;
  /// Traces that a rail has come, and that the connection had none for the time `after`.
  void goes_on(duration after) const noexcept;
  /// Traces that nothing that went over a rail can arrive any more.
  void fenced(const rail& which) const noexcept;
  /// Traces the connection's end. `waited`: the connection has waited in vain for a rail, so its end is reported as
  /// well, unless the device's budget of lines is used up.
  void ended(const error& why, bool waited) noexcept;
  /// Stops reporting.
  void stop() noexcept;

 private:
  struct note {
    bool is_due = false;     // a line about the rail is due
    bool told_away = false;  // the last line said that the rail is not there
    unsigned losses = 0;     // how often the rail was lost since the last line
    time_point away_since{};
    time_point back_since{};
    line_budget lines{4, std::chrono::seconds(10)};
  };

  void expired() noexcept override;
  void note_change(const rail& which) noexcept;
  void wake(duration pause) noexcept;
  [[nodiscard]] std::string sentence(const rail& which, const note& its) const;
  [[nodiscard]] std::string what_carries_on() const;
  [[nodiscard]] std::string name_of(const rail& which) const;
  template <class Words>
  void trace(const Words& words) const noexcept;

  rail_owner& of_;
  const std::string_view peer_;
  device_rails& all_;
  std::array<note, max_rails> notes_;
  bool over_ = false;
};

}  // namespace weft::net::rails
