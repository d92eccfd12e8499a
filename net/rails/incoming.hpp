// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/transport.hpp>
#include <weft/net/rails/own_memory.hpp>
#include <weft/net/rails/rail.hpp>
#include <weft/net/rails/rail_owner.hpp>

#include <cstdint>
#include <vector>

namespace weft::net::rails {

/// The connection's receives, and the messages that come in them over one rail at a time.
///
/// Each receive is posted on that rail, held for messages that arrive in a receive for control messages, or idle.
/// Messages are received in order, each once no key opens the memory that it gives back, so that nothing lands there
/// when its receiver looks.
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
  /// From now on messages arrive over that rail, or over none.
  void receive_over(rail* over) noexcept;
  /// Messages received.
  [[nodiscard]] std::uint64_t count() const noexcept { return count_; }

  /// Returns true if that was the last of those that the set-up has announced.
  [[nodiscard]] bool post(receive_work& work) noexcept;
  void take_back(rail& over, receive_work& work) noexcept;
  void returned(receive_work& work) noexcept { idle_.push_back(&work); }
  void message_came(rail& over, receive_work& work, const arrival& what) noexcept;
  /// The peer's next message gives memory back: accepted only for memory that is exposed over this connection, and only
  /// where that message follows. The peer says it once more if the message was lost with its rail.
  void give_back(rail& over, std::uint64_t handle) noexcept;
  /// Delivers messages that waited for keys to be revoked.
  void deliver_held() noexcept;
  [[nodiscard]] bool has_delivered_all() const noexcept { return held_messages_.empty(); }
  /// Returns all receives to the connection, at the link's end.
  void flush() noexcept;

 private:
  void deliver(receive_work& work, const arrival& what) noexcept;

  // The first gives memory back that a key may still open; the others wait behind it.
  struct held_message {
    receive_work* work;
    arrival what;
  };

  rail_owner& owner_;
  own_memory& memory_;
  link_events* events_ = nullptr;
  rail* over_ = nullptr;
  std::uint16_t first_receives_ = 0;  // still to be posted, in the order that the set-up has announced
  std::vector<receive_work*> held_;
  std::vector<receive_work*> idle_;
  std::vector<receive_work*> returning_;  // idle ones, on their way to the rail that messages arrive over now
  std::uint64_t count_ = 0;
  std::vector<held_message> held_messages_;
  std::uint64_t given_back_ = 0;  // the handle that the next message gives back; 0: none
};

}  // namespace weft::net::rails
