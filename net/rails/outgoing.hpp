// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/transport.hpp>
#include <weft/net/rails/entry.hpp>
#include <weft/net/rails/kept_messages.hpp>
#include <weft/net/rails/rail.hpp>
#include <weft/net/rails/rail_owner.hpp>
#include <weft/net/rails/slicing.hpp>

#include <cstddef>
#include <cstdint>

namespace weft::net::rails {

/// The requests of a connection, from their posting on, in their order, and how they go over the rails.
///
/// Most go over one rail, which executes them in order: `the message rail`. Where a link completes what the peer may
/// not have yet, they are kept until the peer has confirmed them, because they have to be done again if the rail ends:
/// messages as copies, so that a send does not wait for the peer's program. A large write or read goes in slices over
/// all of them, and then alone: those before it have been executed, a write is in its place before anything behind it
/// is issued, and next to it there are only others of its kind that touch other memory.
class outgoing {
 public:
  outgoing(rail_owner& owner, const slicing& sliced) noexcept : owner_(owner), sliced_(sliced) {}
  outgoing(const outgoing&) = delete;
  outgoing& operator=(const outgoing&) = delete;

  /// Where messages are kept whose senders do not wait for the peer; without it they do. Throws std::bad_alloc.
  void begin(mr::buffer room, std::size_t count) { kept_.begin(std::move(room), count); }
  void post(entry& item) noexcept;
  /// Issues what can be.
  void pump() noexcept;
  [[nodiscard]] bool empty() const noexcept { return first_ == nullptr && kept_.count() == 0; }
  /// Asks whether what the peer may not have has arrived, if there is any and nobody has asked.
  void ask_for_arrival() noexcept;
  /// Whether an answer of the peer's is awaited over that rail, beside those that its link awaits.
  [[nodiscard]] bool awaits_answer(const rail& over) noexcept;
  /// Whether something is with a rail.
  [[nodiscard]] bool waits_for_rails() const noexcept { return ordered_ != 0 || spread_ != 0; }
  /// Messages that have been issued, ever.
  [[nodiscard]] std::uint64_t messages() const noexcept { return messages_; }

  void part_ended(rail& over, part& item, work_status status) noexcept;
  /// The peer has what was written over that rail before it was asked.
  void confirmed(rail& over, std::uint64_t number) noexcept;

  /// A rail is over. What was issued there is not issued again before resume().
  void rail_lost(rail& which, bool carried_messages) noexcept;
  /// Nothing that was issued over it can be executed any more. `received`: of the messages that the peer has had, once
  /// all rails that carried them are settled.
  void resume(rail& which, bool carried_messages, std::uint64_t received) noexcept;
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
  [[nodiscard]] bool end_if_taken_back(entry& item) noexcept;
  void try_again(entry& item) noexcept;
  void ask_if_due() noexcept;
  void mark_handed(entry* first, std::uint64_t with) const noexcept;
  void arrived(const entry* until, std::uint64_t number) noexcept;
  void lose_if_handed(entry& item) noexcept;
  void give_up_if_at_fault(entry& item) noexcept;
  void finish(entry& item, work_status result) noexcept;
  void retire() noexcept;
  [[nodiscard]] bool may_read_again(const entry& item) const noexcept;

  rail_owner& owner_;
  const slicing sliced_;
  entry* first_ = nullptr;  // the oldest that has not completed
  entry* last_ = nullptr;
  entry* cursor_ = nullptr;  // the oldest that may have to be issued
  kept_messages kept_;
  entry* first_kept_ = nullptr;  // that the peer may not have; the others wait with those that have not completed
  entry* last_kept_ = nullptr;
  std::uint32_t ordered_ = 0;  // with the message rail, or handed over by it
  std::uint32_t spread_ = 0;   // spread over the rails, and not ended
  std::uint64_t messages_ = 0;
  std::uint64_t numbers_ = 0;          // of confirmations that were asked for
  std::uint64_t awaited_arrival_ = 0;  // the one for what the message rail has handed over; 0: none
  bool retiring_ = false;
};

}  // namespace weft::net::rails
