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

/// The requests of a connection, in posting order, and how they go over the rails.
///
/// Most go over one rail, the message rail, which executes them in order. If a link completes requests that the peer
/// may not have yet, they are kept until the peer has confirmed them, because they have to be repeated if the rail
/// ends. Messages are kept as copies, so that a send does not wait for the peer's program. A large write or read is
/// spread: it goes in slices over all rails, once everything before it has been executed. What is behind it waits until
/// it has ended, which for a write means that it is in place. Two kinds of requests do not wait: a spread read behind a
/// spread read, and a spread request for other memory of the same key.
class outgoing {
 public:
  outgoing(rail_owner& owner, const slicing& sliced) noexcept : owner_(owner), sliced_(sliced) {}
  outgoing(const outgoing&) = delete;
  outgoing& operator=(const outgoing&) = delete;

  /// Sets the memory for copies of messages, so that their senders do not wait for the peer. Throws std::bad_alloc.
  void begin(mr::buffer room, std::size_t count) { kept_.begin(std::move(room), count); }
  void post(entry& item) noexcept;
  /// Issues all requests that can be issued.
  void pump() noexcept;
  [[nodiscard]] bool empty() const noexcept { return first_ == nullptr && kept_.count() == 0; }
  /// Asks the peer whether unconfirmed requests have arrived, if there are any and no such question is in flight.
  void ask_for_arrival() noexcept;
  /// Whether the peer has yet to confirm over that rail that requests have arrived, or that slices are in place.
  [[nodiscard]] bool awaits_answer(const rail& over) noexcept;
  /// Whether a request is with a rail, or handed over by it and not confirmed.
  [[nodiscard]] bool waits_for_rails() const noexcept { return ordered_ != 0 || spread_ != 0; }
  /// Whether an atomic operation is with a rail.
  [[nodiscard]] bool has_atomic_out() const noexcept;
  /// Messages issued so far.
  [[nodiscard]] std::uint64_t messages() const noexcept { return messages_; }

  void part_ended(rail& over, part& item, work_status status) noexcept;
  /// Notes the peer's answer to question `number`. If that was a `confirm`, all that was issued over the rail before it
  /// has arrived; if it was a `names`, the peer has announced its keys.
  void confirmed(rail& over, std::uint64_t number) noexcept;

  /// Marks as lost the requests of a rail that has ended. They are not issued again before resume().
  void rail_lost(rail& which, bool carried_messages) noexcept;
  /// Ends lost requests or queues them anew, because nothing that was issued over the rail can be executed any more.
  /// `received` is the number of messages that the peer has, once all rails that carried messages are settled.
  void resume(rail& which, bool carried_messages, std::uint64_t received) noexcept;
  /// Ends all requests that are not with a rail, because the connection has ended. Nothing more is issued.
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
  entry* first_ = nullptr;  // the oldest request that has not completed
  entry* last_ = nullptr;
  entry* cursor_ = nullptr;  // the oldest request that may have to be issued
  kept_messages kept_;
  entry* first_kept_ = nullptr;  // copies that the peer may not have; requests without a copy stay in first_ to last_
  entry* last_kept_ = nullptr;
  std::uint32_t ordered_ = 0;  // requests with the message rail, or handed over by it
  std::uint32_t spread_ = 0;   // requests that are spread over the rails and have not ended
  std::uint64_t messages_ = 0;
  std::uint64_t numbers_ = 0;          // questions to the peer so far
  std::uint64_t awaited_arrival_ = 0;  // the question about requests that the message rail has handed over; 0: none
  bool retiring_ = false;
};

}  // namespace weft::net::rails
