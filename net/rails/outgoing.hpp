// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/rails/rail.hpp>
#include <weft/net/rails/rail_owner.hpp>
#include <weft/net/transport.hpp>

#include <array>
#include <cstddef>
#include <cstdint>

namespace weft::net::rails {

/// The corner of a request of the connection's.
///
///   queued  not given to a rail, or to be given again
///   issued  with one rail, or in slices with several
///   lost    its rail has ended first: nobody knows whether the peer has executed it
///   ended   `result` says how; it completes once those before it have
struct entry {
  enum class state : std::uint8_t { queued, issued, lost, ended };
  static constexpr std::uint64_t nowhere = UINT64_MAX;

  work_request* work = nullptr;
  entry* next = nullptr;
  state phase = state::queued;
  work_status result = work_status::done;
  bool spread = false;                ///< in slices over all rails
  bool placing = false;               ///< of a write: all of it has been given to the rails, and they confirm it
  std::uint32_t parts_out = 0;        ///< with the rails
  std::uint64_t bytes = 0;            ///< of its segments
  std::uint64_t given = 0;            ///< to rails, from the beginning on
  std::uint64_t done = 0;             ///< and executed, of that
  std::uint64_t message = 0;          ///< of a message: its number, once it has been issued
  std::uint64_t asked = 0;            ///< the peer was asked, by that number, because its memory has no name known here
  std::uint32_t answers_due = 0;      ///< over so many rails
  std::uint64_t lost_from = nowhere;  ///< what was given from there on has to be given again
  std::array<std::uint64_t, max_rails> first_over{};  ///< where the first slice over each rail began; nowhere: none
  std::array<std::uint64_t, max_rails> awaited{};     ///< what each rail is to confirm; 0: nothing

  /// Whether it takes one of the peer's receives.
  [[nodiscard]] bool is_message() const noexcept {
    return work->kind == work_kind::send || (work->kind == work_kind::write && work->immediate);
  }
  [[nodiscard]] bool is_atomic() const noexcept {
    return work->kind == work_kind::fetch_add || work->kind == work_kind::compare_swap;
  }
};

/// The requests of a connection, from their posting on, in their order, and how they go over the rails.
///
/// Most go over one rail, which executes them in order: `the message rail`. A large write or read goes in slices over
/// all of them, and then alone: those before it have been executed, a write is in its place before anything behind it
/// is issued, and next to it there are only others of its kind that touch other memory.
class outgoing {
 public:
  explicit outgoing(rail_owner& owner) noexcept : owner_(owner) {}
  outgoing(const outgoing&) = delete;
  outgoing& operator=(const outgoing&) = delete;

  void post(entry& item) noexcept;
  /// Issues what can be.
  void pump() noexcept;
  [[nodiscard]] bool empty() const noexcept { return first_ == nullptr; }
  /// Whether something is with a rail.
  [[nodiscard]] bool waits_for_rails() const noexcept { return ordered_ != 0 || spread_ != 0; }
  /// Messages that have been issued, ever.
  [[nodiscard]] std::uint64_t messages() const noexcept { return messages_; }

  void part_ended(rail& over, part& item, work_status status) noexcept;
  /// The peer has what was written over that rail before it was asked.
  void confirmed(rail& over, std::uint64_t number) noexcept;

  /// A rail is over. What was issued there is not issued again before resume().
  void rail_lost(const rail& which) noexcept;
  /// Nothing that was issued there can be executed any more. `received`: of the messages that the peer has had, if that
  /// rail carried them.
  void resume(const rail& which, bool carried_messages, std::uint64_t received) noexcept;
  /// The connection has ended: nothing more is issued, and what no rail has is over.
  void end() noexcept;

 private:
  void issue() noexcept;
  [[nodiscard]] bool issue_whole(entry& item) noexcept;
  [[nodiscard]] bool begin_spread(entry& item) noexcept;
  void issue_slices(entry& item) noexcept;
  void issue_slice(entry& item, rail& over) noexcept;
  [[nodiscard]] rail* next_rail(const entry& item) const noexcept;
  [[nodiscard]] bool may_spread(const entry& item) const noexcept;
  [[nodiscard]] bool disturbs_others(const entry& item) const noexcept;
  void ask_for_placement(entry& item) noexcept;
  void ask_for_name(entry& item) noexcept;
  void settle_spread(entry& item) noexcept;
  void try_again(entry& item) noexcept;
  void finish(entry& item, work_status result) noexcept;
  void retire() noexcept;
  [[nodiscard]] bool may_read_again(const entry& item) const noexcept;

  rail_owner& owner_;
  entry* first_ = nullptr;  // the oldest that has not completed
  entry* last_ = nullptr;
  entry* cursor_ = nullptr;    // the oldest that may have to be issued
  std::uint32_t ordered_ = 0;  // with the message rail
  std::uint32_t spread_ = 0;   // spread over the rails, and not ended
  std::uint64_t messages_ = 0;
  std::uint64_t numbers_ = 0;        // of confirmations that were asked for
  std::uint64_t awaited_order_ = 0;  // the one for writes over the message rail; 0: none
  bool unplaced_ = false;            // those may not be in their place
  bool retiring_ = false;
};

}  // namespace weft::net::rails
