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

/// Fences of rails that are over. Each end asks the other to close its link of such a rail, and to say how many
/// messages have come; what went over the rail goes over another once that is answered.
class fences {
 public:
  fences(rail_owner& owner, incoming& messages) noexcept : owner_(owner), incoming_(messages) {}
  fences(const fences&) = delete;
  fences& operator=(const fences&) = delete;

  // Fences that this end asks for.
  /// A rail is over. Its answers may still come while answers are awaited.
  void rail_lost(const rail& which, bool carried_messages) noexcept;
  /// Whether the rail's fence has to be asked for, or was asked for and is not settled.
  [[nodiscard]] bool is_due(std::size_t on) const noexcept { return ours_[on].is_due; }
  /// Whether it is that of the rail's link in this epoch.
  [[nodiscard]] bool asks(std::size_t on, std::uint32_t epoch) const noexcept {
    return ours_[on].is_due && ours_[on].epoch == epoch;
  }
  [[nodiscard]] std::uint32_t epoch(std::size_t on) const noexcept { return ours_[on].epoch; }
  /// Asks for the fence over the control rail.
  void ask(const rail& about) noexcept;
  /// The peer has answered, and has received so many messages.
  void answered(std::size_t on, std::uint64_t received) noexcept;
  /// Whether the peer has answered, and this end has closed its link, too.
  [[nodiscard]] bool is_over(const rail& which) const noexcept;
  /// The rail's fence is over. True if that was the last of the rails that had carried messages.
  [[nodiscard]] bool settle(std::size_t on) noexcept;
  /// Whether the peer has to say how many messages came over a rail.
  [[nodiscard]] bool are_messages_unsettled() const noexcept { return unsettled_ != 0; }
  /// The messages that the peer has received, by its last answer.
  [[nodiscard]] std::uint64_t peer_received() const noexcept { return most_received_; }
  /// Whether the peer owes an answer.
  [[nodiscard]] bool is_answer_due() const noexcept;

  // Fences that the peer asks for.
  /// The peer asks for the fence of a rail, over another one.
  void asked(const rail& about, rail& over, const control& said) noexcept;
  /// Answers once nothing can arrive over the rail any more. The peer ignores an answer that it knows.
  void answer(const rail& about) noexcept;

  // Rails that the peer has ended in order, and that may still bring answers.
  void await_answers(std::size_t on, time_point until) noexcept { ours_[on].answers_until = until; }
  [[nodiscard]] bool awaits_answers_over(std::size_t on) const noexcept { return ours_[on].answers_until.has_value(); }
  [[nodiscard]] bool awaits_answers() const noexcept;
  /// The rail is closed, and brings no more. True if answers were awaited.
  [[nodiscard]] bool stop_awaiting(std::size_t on) noexcept;
  /// When the first of those rails is to be given up.
  [[nodiscard]] std::optional<time_point> first_deadline() const noexcept;
  /// Gives up those of them that have had their time.
  void give_up_late(time_point now) noexcept;

 private:
  // The fence of a rail that is over: the peer has to answer it before any of the rail's requests go over another.
  struct asked_here {
    bool is_due = false;
    bool carried_messages = false;
    std::uint32_t epoch = 0;
    bool is_answered = false;
    // The peer has ended the rail in order, and may have refused requests that are still with it: answers may come
    // until then.
    std::optional<time_point> answers_until;
  };
  // The peer's own fence, which this end has to answer.
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
  std::size_t unsettled_ = 0;  // ended rails with messages for which the peer has not said how many came
};

/// Why a rail is given up that the peer has ended.
inline constexpr const char* left_by_peer = "the peer has ended this rail";

}  // namespace weft::net::rails
