// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/transport.hpp>
#include <weft/net/verbs/domain.hpp>
#include <weft/net/verbs/endpoint.hpp>
#include <weft/net/verbs/receive_queue.hpp>
#include <weft/net/verbs/request_chain.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace weft::net::verbs {

/// The receives of a link that has a receive queue of its own.
class posted_receives {
 public:
  posted_receives(endpoint& of, const domain& memory) noexcept : endpoint_(of), domain_(memory) {}
  posted_receives(const posted_receives&) = delete;
  posted_receives& operator=(const posted_receives&) = delete;

  /// Makes room for `depth` receives at a time. post() only records the first ones, which the set-up has posted.
  void make_room(std::uint16_t depth);
  /// Posts a receive. Returns whether hand_over() has to follow.
  [[nodiscard]] bool post(receive_work& work) noexcept;
  /// Hands the chain to the device. Returns a negative errno if the device has refused some receives, which are flushed
  /// with the rest.
  [[nodiscard]] int hand_over() noexcept;
  [[nodiscard]] receive_work& completed(std::uint32_t slot) noexcept;

  /// Drops the chain, so nothing more is handed over.
  void break_off() noexcept { chained_.take(); }
  /// Stops expecting completions from the device.
  void give_up() noexcept { with_device_ = 0; }
  [[nodiscard]] bool is_with_device() const noexcept { return with_device_ != 0; }
  void flush(link_events& events) noexcept;

 private:
  struct posted_receive {
    receive_work* work = nullptr;  // null: not posted
    receive_request request;
  };

  endpoint& endpoint_;
  const domain& domain_;
  std::unique_ptr<posted_receive[]> receives_;  // by slot
  std::size_t depth_ = 0;                       // size of receives_; the queue pair may have room for more
  request_chain<ibv_recv_wr> chained_;
  std::size_t with_device_ = 0;
  std::size_t posted_early_ = 0;  // how many of the next receives the set-up has posted already
};

}  // namespace weft::net::verbs
