// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/transport.hpp>
#include <weft/net/rails/own_memory.hpp>
#include <weft/net/rails/rail.hpp>
#include <weft/net/rails/rail_owner.hpp>

#include <cstdint>
#include <vector>

namespace weft::net::rails {

/// The connection's receives, and the messages that arrive in them, over one rail at a time.
///
/// A receive is posted on that rail, idle, or held: a message that lands in a receive for control messages is copied
/// into a held one. Messages are delivered in order. A message that gives memory back waits until no key opens that
/// memory, so that nothing lands there while its receiver looks.
class incoming {
 public:
  incoming(rail_owner& owner, own_memory& memory) noexcept : owner_(owner), memory_(memory) {}
  incoming(const incoming&) = delete;
  incoming& operator=(const incoming&) = delete;

  /// Makes room for `depth` receives. Throws std::bad_alloc.
  void begin(link_events& events, std::uint16_t depth);
  void begin_over(rail& first) noexcept { over_ = &first; }

  /// The rail that messages arrive over; null: the peer has not chosen one.
  [[nodiscard]] rail* over() const noexcept { return over_; }
  /// Moves the receives to the rail over which messages arrive from now on; null: no rail is known.
  void receive_over(rail* over) noexcept;
  /// The number of messages received.
  [[nodiscard]] std::uint64_t count() const noexcept { return count_; }

  /// Posts a receive. True if it was the last of those that the set-up has announced.
  [[nodiscard]] bool post(receive_work& work) noexcept;
  void take_back(rail& over, receive_work& work) noexcept;
  void returned(receive_work& work) noexcept { idle_.push_back(&work); }
  void message_came(rail& over, receive_work& work, const arrival& what) noexcept;
  /// Revokes the keys of memory that the peer's next message gives back. Refuses the peer if messages arrive over
  /// another rail, if that message gives other memory back already, or if the memory is neither exposed to the peer nor
  /// one of the last pieces that were taken back. If the message is lost, the peer sends `revoke` again.
  void give_back(rail& over, std::uint64_t handle) noexcept;
  /// Delivers held messages, up to the first that gives back memory which a key may still open.
  void deliver_held() noexcept;
  [[nodiscard]] bool has_delivered_all() const noexcept { return held_messages_.empty(); }
  /// Returns all receives to the connection, at the link's end.
  void flush() noexcept;

 private:
  void deliver(receive_work& work, const arrival& what) noexcept;

  // The first held message gives back memory that a key may still open; the others wait behind it.
  struct held_message {
    receive_work* work;
    arrival what;
  };

  rail_owner& owner_;
  own_memory& memory_;
  link_events* events_ = nullptr;
  rail* over_ = nullptr;
  std::uint16_t first_receives_ = 0;  // receives of the set-up that are still to be posted, in its order
  std::vector<receive_work*> held_;
  std::vector<receive_work*> idle_;
  std::vector<receive_work*> returning_;  // idle receives on their way to the rail over which messages arrive now
  std::uint64_t count_ = 0;
  std::vector<held_message> held_messages_;
  std::uint64_t given_back_ = 0;  // the handle of the memory that the next message gives back; 0: no memory
};

}  // namespace weft::net::rails
