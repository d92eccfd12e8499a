// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/transport.hpp>
#include <weft/net/rails/control.hpp>
#include <weft/net/rails/handles.hpp>
#include <weft/net/rails/own_memory.hpp>
#include <weft/net/rails/rail.hpp>
#include <weft/net/rails/rail_owner.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/system/clock.hpp>

#include <array>
#include <cstdint>
#include <optional>

namespace weft::net::rails {

/// Rails that a refused access has ended. The connection goes on if the access merely came late, after its memory had
/// been taken back. Where the fabric does not tell the owner which memory it was, the end whose access was refused
/// names it.
class refusals {
 public:
  refusals(rail_owner& owner, own_memory& own, peer_memory& peers) noexcept : owner_(owner), own_(own), peers_(peers) {}
  refusals(const refusals&) = delete;
  refusals& operator=(const refusals&) = delete;

  void begin(link_events& events) noexcept { events_ = &events; }

  /// Notes the refusal that has ended a rail. True if the access may simply have been late.
  [[nodiscard]] bool may_have_been_late(const rail& which, const refused_access& what, const error& why) noexcept;
  /// Whether the peer has refused memory over that rail, and it is known which.
  [[nodiscard]] bool is_named(std::size_t on) const noexcept { return all_[on].by_peer != 0; }
  /// Whether the peer has refused memory over that rail, and it is not known which.
  [[nodiscard]] bool is_unnamed(std::size_t on) const noexcept { return all_[on].why && all_[on].by_peer == 0; }
  /// The error of a rail that a refusal of the peer's has ended; empty if none has.
  [[nodiscard]] const std::optional<error>& why(std::size_t on) const noexcept { return all_[on].why; }
  /// Notes the error of such a rail, unless it has one already.
  void note_why(std::size_t on, const error& why) noexcept {
    if (!all_[on].why) all_[on].why = why;
  }
  /// Notes that the peer has refused this end, over the rail's link of this epoch, an access to the memory of this
  /// handle, which counts as taken back from then on. Ends the connection if there is no memory for the note.
  void note_named(std::size_t on, std::uint32_t epoch, std::uint64_t handle) noexcept;
  /// Tells the peer which memory was refused over the rail, if that is known. Called before the rail's fence is asked
  /// for, while there is a control rail.
  void tell(const rail& which) noexcept;
  /// Handles control_kind::refused, which names the memory of this end whose refusal has ended a rail. Ends the
  /// connection unless that memory is one of the last that were taken back, and had a key on that rail.
  void explained(const rail& about, const control& said) noexcept;
  /// Forgets which memory was refused over the rail, because its fence is settled.
  void settled(std::size_t on) noexcept;

  /// Restarts the peer's time for explanations, because there is a rail again over which it can explain.
  void may_explain(time_point now) noexcept;
  /// The time at which the first explanation is due; empty if none is.
  [[nodiscard]] std::optional<time_point> due_at() const noexcept;
  /// The error of a rail whose end the peer has not explained in time; null if there is none.
  [[nodiscard]] const error* overdue(time_point now) const noexcept;
  /// The error of a rail that a refusal of the peer's has ended; null if there is none.
  [[nodiscard]] const error* first_why() const noexcept;

 private:
  void note_late(std::size_t on, std::uint32_t epoch, const withdrawn_memory::item& what) noexcept;

  struct refused_over {
    // Set if the rail has ended because the peer refused this end an access. `by_peer` is the handle of the memory,
    // once it is known. Until then the peer is not asked for the fence, so that it hears of the refusal first. The rail
    // may have lost another link by the time that the peer hears of it, so the epoch is kept.
    std::optional<error> why{};
    std::uint64_t by_peer = 0;
    std::uint32_t by_peer_epoch = 0;
    // Set if the rail has ended because this end refused the peer an access. `late` is the memory's handle, if the
    // fabric tells; otherwise `unexplained` is the rail's error until the peer names the memory. `explained` is one
    // more than the last epoch whose refusal is explained.
    std::uint64_t late = 0;
    std::optional<error> unexplained{};
    std::uint32_t unexplained_epoch = 0;
    time_point unexplained_since{};
    std::uint64_t explained = 0;
  };

  rail_owner& owner_;
  own_memory& own_;
  peer_memory& peers_;
  link_events* events_ = nullptr;
  std::array<refused_over, max_rails> all_{};
};

}  // namespace weft::net::rails
