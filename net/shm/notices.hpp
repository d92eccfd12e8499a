// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/link_life.hpp>
#include <weft/net/link/transport.hpp>
#include <weft/net/shm/channel.hpp>
#include <weft/net/shm/direct_loans.hpp>
#include <weft/net/shm/direct_requests.hpp>
#include <weft/net/shm/executor_state.hpp>
#include <weft/net/shm/far_copies.hpp>
#include <weft/net/shm/link_breaker.hpp>
#include <weft/net/shm/output_ring.hpp>
#include <weft/net/shm/record.hpp>
#include <weft/net/shm/wake_ups.hpp>
#include <weft/runtime/core/executor_core.hpp>

#include <cstdint>
#include <memory>
#include <span>

namespace weft::net::shm {

/// Takes the peer's records about loans of memory to either end, fences, and far copies, except `copied`, which the
/// link takes. Sends this end's answers to them, and its records about loans of its own memory. Also owns those loans.
class notices {
 public:
  /// The parts of the link that notices use.
  struct surroundings {
    executor_core& home;
    channel& memory;
    const descriptor& socket;
    executor_state& shared;
    const link_life& life;
    output_ring& output;
    direct_requests& direct;
    far_copies& far;
    link_breaker& link;
    direct_loans::lender& lender;
  };
  explicit notices(const surroundings& around) noexcept : around_(around), wake_ups_(around.socket) {}
  notices(const notices&) = delete;
  notices& operator=(const notices&) = delete;

  /// Whether there may be notices to send.
  [[nodiscard]] bool are_owed() const noexcept { return owed_; }
  void owe() noexcept { owed_ = true; }
  /// Sends the notices that are due. False while some of them still wait for room in the ring.
  [[nodiscard]] bool send() noexcept;
  /// Takes a record of the peer's if it is a notice; an invalid notice breaks the link. False if it is no notice.
  [[nodiscard]] bool take(const record& header, std::span<const std::byte> content) noexcept;
  /// Notes that a packet has arrived at the socket: see wake_ups::arrived().
  void packet_arrived() noexcept { wake_ups_.arrived(); }

  /// Plans to lend the part of `whole` that `key` opens, so that the peer, which has just used the key, can access that
  /// part without this end. Does nothing if the part is lent already, has been declined or must not be lent, if all
  /// loans are in use, or if memory is short.
  void lend(std::uint32_t key, software::direct_memory& whole) noexcept;
  [[nodiscard]] bool has_lent() const noexcept { return loans_ != nullptr; }
  /// Ends the loan of a revoked key; calls who.revoked() once the peer is outside of the memory. Only if has_lent().
  void revoke(std::uint32_t key, revocation& who) noexcept {
    owed_ = true;
    loans_->revoke(key, who);
  }
  /// Shuts the peer out of all memory that it was lent. True once the peer is outside; call again until then.
  [[nodiscard]] bool shut_out() noexcept { return loans_ == nullptr || loans_->shut_out(); }
  /// Takes back all loans. The peer must no longer use any of them.
  void end_loans() noexcept { loans_.reset(); }

 private:
  [[nodiscard]] bool send(const direct_loans::notice& what) noexcept;

  const surroundings around_;
  wake_ups wake_ups_;
  std::unique_ptr<direct_loans> loans_;  // null: no memory was considered for a loan, or end_loans() was called
  bool owed_ = false;
  bool owes_fenced_ = false;
};

}  // namespace weft::net::shm
