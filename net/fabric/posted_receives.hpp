// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/fabric/domain.hpp>
#include <weft/net/fabric/endpoint.hpp>
#include <weft/net/fabric/hello.hpp>
#include <weft/net/fabric/operation.hpp>
#include <weft/net/link/linked_queue.hpp>
#include <weft/net/link/transport.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace weft::net::fabric {

/// A receive, and the message that has filled it.
struct posted_receive : operation {
  posted_receive() noexcept : operation(receive) {}
  receive_work* work = nullptr;  ///< null before post() and after take_next()
  posted_receive* next = nullptr;
  std::size_t bytes = 0;  ///< of the message, without its trailer
  message_trailer trailer;

  [[nodiscard]] bool has(message_trailer::flags_t flag) const noexcept { return (trailer.flags & flag) != 0; }
};

/// The receives of a link. Messages are taken out in the order of their numbers, whatever order the provider completes
/// them in.
class posted_receives {
 public:
  /// `token` is in each message to this end.
  posted_receives(endpoint& of, const domain& memory, std::uint64_t token) noexcept
      : endpoint_(of), domain_(memory), token_(token) {}
  posted_receives(const posted_receives&) = delete;
  posted_receives& operator=(const posted_receives&) = delete;

  /// Makes room for `depth` receives at a time. Throws std::bad_alloc.
  void make_room(std::size_t depth);
  void post(receive_work& work) noexcept;
  /// Whether posted receives wait for hand_over().
  [[nodiscard]] bool waits() const noexcept { return !posted_.empty(); }
  /// Hands receives to the provider, as many as it has room for. Yields 0, or a negative errno of fi_errno(3) if a
  /// receive could not be handed over: -FI_EAGAIN means not now.
  [[nodiscard]] ssize_t hand_over() noexcept;

  /// Takes the provider's completion of a receive, and yields the receive.
  [[nodiscard]] posted_receive& completed(operation& item) noexcept {
    --with_provider_;
    return static_cast<posted_receive&>(item);
  }
  /// Enters the message of `bytes`, with its trailer, that has filled `item`. Returns what is wrong with it, or null. A
  /// message without this end's token is dropped, and its receive is posted again.
  [[nodiscard]] const char* enter(posted_receive& item, std::size_t bytes) noexcept;
  /// The next message; null if it has not arrived.
  [[nodiscard]] const posted_receive* next() const noexcept { return depth_ != 0 ? arrived_[next_arrival_] : nullptr; }
  /// Takes out the next message, which must have arrived, and returns its receive.
  [[nodiscard]] receive_work& take_next() noexcept;
  /// The number of the next message.
  [[nodiscard]] std::uint32_t next_number() const noexcept { return next_number_; }

  void flush(link_events& events) noexcept;

 private:
  [[nodiscard]] ssize_t hand_over(posted_receive& item) noexcept;

  endpoint& endpoint_;
  const domain& domain_;
  const std::uint64_t token_;
  std::unique_ptr<posted_receive[]> receives_;  // by slot
  std::size_t depth_ = 0;                       // size of receives_ and arrived_
  std::size_t with_provider_ = 0;
  linked_queue<posted_receive, &posted_receive::next> posted_;  // receives that are not handed over
  std::vector<posted_receive*> arrived_;                        // a ring of messages, by number
  std::size_t next_arrival_ = 0;                                // the place of the next message
  std::uint32_t next_number_ = message_trailer::first_number;
};

}  // namespace weft::net::fabric
