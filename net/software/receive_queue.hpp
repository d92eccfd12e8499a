// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/transport.hpp>
#include <weft/runtime/intrusive_list.hpp>

#include <cstddef>
#include <vector>

namespace weft::net::software {

/// Receives that the links of one executor take as messages begin. Links that find none wait, and are served in order.
class receive_queue final : public net::receive_queue {
 public:
  /// A link that takes from a queue.
  class taker : public weft::detail::list_hook<taker> {
   public:
    taker() = default;
    taker(const taker&) = delete;
    taker& operator=(const taker&) = delete;

   protected:
    ~taker() = default;

   private:
    friend class receive_queue;
    /// Hands the link the receive that it has waited for.
    virtual void give(receive_work& work) noexcept = 0;
  };

  explicit receive_queue(std::size_t depth) : posted_(depth) {}

  void post(receive_work& work) noexcept override;
  /// Takes the oldest receive. Null if there is none: then `who` waits for its turn, and gets a receive by give().
  [[nodiscard]] receive_work* take(taker& who) noexcept;
  /// Ends the wait of `who` for a receive, if it waits.
  void forget(taker& who) noexcept;

 private:
  std::vector<receive_work*> posted_;  // a ring buffer, the oldest at begin_
  std::size_t begin_ = 0;
  std::size_t count_ = 0;
  weft::detail::intrusive_list<taker> takers_;
};

}  // namespace weft::net::software
