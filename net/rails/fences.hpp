// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/rails/control.hpp>
#include <weft/net/rails/incoming.hpp>
#include <weft/net/rails/rail.hpp>
#include <weft/net/rails/rail_owner.hpp>
#include <weft/runtime/system/clock.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace weft::net::rails {

/// Fences of rails that have ended. Each end asks the other to close its link of the rail and to report how many
/// messages it has received. The rail's requests are issued over another rail once the answer has come, and the asking
/// end has closed its link as well.
class fences {
 public:
  fences(rail_owner& owner, incoming& messages) noexcept : owner_(owner), incoming_(messages) {}
  fences(const fences&) = delete;
  fences& operator=(const fences&) = delete;

  // Fences that this end asks for.
  /// Notes that a rail has ended, so its fence is due. Answers may still come over it while awaits_answers_over().
  void rail_lost(const rail& which, bool carried_messages) noexcept;
  /// Whether the rail's fence has to be asked for, or was asked for and is not settled.
  [[nodiscard]] bool is_due(std::size_t on) const noexcept { return ours_[on].is_due; }
  /// Whether the rail's fence is due for its link of this epoch.
  [[nodiscard]] bool asks(std::size_t on, std::uint32_t epoch) const noexcept {
    return ours_[on].is_due && ours_[on].epoch == epoch;
  }
  /// Asks for the rail's fence over the control rail, which there must be.
  void ask(const rail& about) noexcept;
  /// Notes the peer's answer, and the number of messages that it has received.
  void answered(std::size_t on, std::uint64_t received) noexcept;
  /// Whether the rail's fence is due and the peer has answered it, and this end has closed its link, too.
  [[nodiscard]] bool is_over(const rail& which) const noexcept;
  /// Settles the rail's fence. True if the rail had carried messages, and no other such rail's fence is unsettled.
  [[nodiscard]] bool settle(std::size_t on) noexcept;
  /// Whether the fence of any rail that carried messages is unsettled.
  [[nodiscard]] bool are_messages_unsettled() const noexcept { return unsettled_ != 0; }
  /// The largest number of received messages in the peer's answers.
  [[nodiscard]] std::uint64_t peer_received() const noexcept { return most_received_; }
  /// Whether a fence is due that the peer has not answered, even if it was not asked for yet.
  [[nodiscard]] bool is_answer_due() const noexcept;

  // Fences that the peer asks for.
  /// Notes that the peer asks, over the rail `over`, for the fence of the rail `about`.
  void asked(const rail& about, rail& over, const control& said) noexcept;
  /// Answers the fence that the peer has asked for, if nothing can arrive over the rail any more and there is a control
  /// rail. Each further call answers again, which the peer ignores. If the peer's messages came over the rail, first
  /// moves the receives to the rail that follows it, unless that one has ended, too, or the receives are with yet
  /// another rail.
  void answer(const rail& about) noexcept;

  // Rails that the peer has ended or given up, and over which answers may still come.
  void await_answers(std::size_t on, time_point until) noexcept { ours_[on].answers_until = until; }
  [[nodiscard]] bool awaits_answers_over(std::size_t on) const noexcept { return ours_[on].answers_until.has_value(); }
  [[nodiscard]] bool awaits_answers() const noexcept;
  /// Stops awaiting answers over a rail, because it has closed. True if answers were awaited.
  [[nodiscard]] bool stop_awaiting(std::size_t on) noexcept;
  /// The earliest time at which one of these rails is to be given up.
  [[nodiscard]] std::optional<time_point> first_deadline() const noexcept;
  /// Gives up the rails whose time for answers has passed.
  void give_up_late(time_point now) noexcept;

 private:
  // The fence that this end asks for: the peer has to answer it before the rail's requests are issued over another
  // rail.
  struct asked_here {
    bool is_due = false;
    bool carried_messages = false;
    std::uint32_t epoch = 0;
    bool is_answered = false;
    // Set if the peer has closed the rail in an orderly way or has given it up, but may have refused requests in
    // flight on it: their answers may come until this time.
    std::optional<time_point> answers_until;
  };
  // The fence that the peer asks for, and this end has to answer.
  struct asked_by_peer {
    bool is_owed = false;
    std::uint32_t epoch = 0;
    rail* messages_move_to = nullptr;
    std::uint32_t moves_to_epoch = 0;
  };

  rail_owner& owner_;
  incoming& incoming_;
  std::array<asked_here, max_rails> ours_{};
  std::array<asked_by_peer, max_rails> peers_{};
  std::uint64_t most_received_ = 0;
  std::size_t unsettled_ = 0;  // ended rails that carried messages, and whose fence is not settled
};

/// The reason for rail::give_up() if the rail's link has ended already.
inline constexpr const char* left_by_peer = "the peer has ended this rail";

}  // namespace weft::net::rails
