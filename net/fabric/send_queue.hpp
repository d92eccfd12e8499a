// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/fabric/domain.hpp>
#include <weft/net/fabric/endpoint.hpp>
#include <weft/net/fabric/hello.hpp>
#include <weft/net/fabric/operation.hpp>
#include <weft/net/fabric/order.hpp>
#include <weft/net/link/transport.hpp>
#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/system/clock.hpp>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace weft::net::fabric {

struct posted_request;

/// One of the operations of libfabric that a request takes.
struct request_step : operation {
  request_step(kind_t what, posted_request& whole) noexcept : operation(what), owner(&whole) {}
  posted_request* owner;
};

/// The corner of a work_request.
struct posted_request {
  explicit posted_request(work_request& whole) noexcept : work(&whole) {}
  request_step main{operation::request, *this};
  request_step wake{operation::wake, *this};
  work_request* work;
  posted_request* next = nullptr;
  std::uint8_t steps = 0;        ///< operations that it takes: 0, 1 or 2
  std::uint8_t handed_over = 0;  ///< how many of the steps
  std::uint8_t completed = 0;    ///< how many of the steps
  bool failed = false;           ///< the provider has reported an error
  bool cleared = false;          ///< the peer says that the access is allowed
  bool refused = false;          ///< the peer has refused it
  bool awaited = false;          ///< the peer has taken its memory back, and waits for the end of this access
  std::uint64_t fenced_key = 0;  ///< while `awaited`: the key that the peer has asked about
};

/// The requests of a link, in order, from their post to their completion.
///
/// A request that the provider might let overtake an earlier one waits for the earlier one: order_table. Each message
/// ends with a trailer of the link's, with the message's number and a token that keeps strangers out. Immediate data is
/// a message that follows its write.
class send_queue {
 public:
  /// `token` is in each message to the peer; `reads` is the most reads and atomics to have outstanding at the peer.
  send_queue(executor_core& home, endpoint& of, const domain& memory, std::uint64_t token, std::uint16_t reads) noexcept
      : home_(home), endpoint_(of), domain_(memory), order_(of.home().order()), token_(token), reads_(reads) {}
  send_queue(const send_queue&) = delete;
  send_queue& operator=(const send_queue&) = delete;

  void post(posted_request& item) noexcept {
    const work_request& work = *item.work;
    item.next = nullptr;
    item.handed_over = item.completed = 0;
    item.failed = item.cleared = item.refused = item.awaited = false;
    const bool moves = work.kind == work_kind::send || work.bytes() != 0;
    item.steps = static_cast<std::uint8_t>((moves ? 1 : 0) + (work.immediate ? 1 : 0));
    (last_ != nullptr ? last_->next : first_) = &item;
    last_ = &item;
    if (unsent_ == nullptr) unsent_ = &item;
  }
  /// Whether posted requests wait for hand_over().
  [[nodiscard]] bool waits() const noexcept { return unsent_ != nullptr; }
  /// Hands requests to the provider. Yields a negative errno of fi_errno(3) if the provider takes no more (-FI_EAGAIN:
  /// for now); otherwise 1 if an access was among them, and 0 if not.
  [[nodiscard]] ssize_t hand_over() noexcept;
  [[nodiscard]] static posted_request& owner_of(operation& part) noexcept {
    return *static_cast<request_step&>(part).owner;
  }
  /// Counts an operation that the provider has completed. True if end_wait() has to follow.
  [[nodiscard]] bool step_ended(operation& part) noexcept {
    posted_request& item = owner_of(part);
    --under_way(part.kind == operation::wake ? access_kind::send : kind_of(item.work->kind));
    ++item.completed;
    --with_provider_;
    moved_at_ = home_.coarse_now();
    stands_since_.reset();
    return item.awaited && item.completed == item.handed_over;
  }
  /// Completes requests in posting order, until one has not ended, or has not succeeded.
  void complete_ended(link_events& events) noexcept;
  /// Completes all requests as flushed, or as refused by the peer, after the endpoint was closed.
  void flush(link_events& events) noexcept;

  /// Whether everything posted has completed.
  [[nodiscard]] bool idle() const noexcept { return first_ == nullptr; }
  [[nodiscard]] bool is_with_provider() const noexcept { return with_provider_ != 0; }
  [[nodiscard]] bool has_accesses_under_way() const noexcept {
    return (under_way_[1] | under_way_[2] | under_way_[3]) != 0;
  }
  /// The number of the next message.
  [[nodiscard]] std::uint32_t next_number() const noexcept { return next_number_; }

  /// The oldest access that is in flight or has failed, and that the peer has not cleared; null if there is none.
  [[nodiscard]] posted_request* next_suspect() noexcept;
  /// Whether the request is in this queue: it was posted, and has not completed.
  [[nodiscard]] bool contains(const posted_request* item) const noexcept;
  /// Whether operations are in flight, and `patience` has passed since the last of these events: an operation has
  /// completed, one was handed over while none was in flight, ask_again() was called.
  [[nodiscard]] bool is_late(duration patience) const noexcept {
    return with_provider_ != 0 && home_.now() - moved_at_ >= patience;
  }
  /// Makes all accesses suspects again, because the peer is asked about them once more.
  void ask_again() noexcept;
  /// Whether `patience`, and a second for each MiB in flight, has passed since the peer's first answer after the last
  /// completion. Call it for the peer's answers: the first call after a completion begins the time.
  [[nodiscard]] bool stands_still(std::chrono::milliseconds patience) noexcept;

  /// Whether accesses by that key are in flight; the peer then waits for their end: end_wait().
  [[nodiscard]] bool await_end(std::uint64_t key) noexcept;
  /// Takes the end of a request that the peer waits for. Yields the key if the peer waits for no other access by it.
  [[nodiscard]] std::optional<std::uint64_t> end_wait(posted_request& item) noexcept;

 private:
  [[nodiscard]] std::uint32_t& under_way(access_kind what) noexcept {
    return under_way_[static_cast<std::size_t>(what)];
  }
  [[nodiscard]] bool may_start(access_kind kind) noexcept;
  [[nodiscard]] std::uint64_t flags_of(access_kind kind) const noexcept;
  [[nodiscard]] ssize_t hand_over(posted_request& item, access_kind kind) noexcept;
  [[nodiscard]] ssize_t send(posted_request& item) noexcept;
  [[nodiscard]] ssize_t send_wake(posted_request& item) noexcept;
  [[nodiscard]] ssize_t send(pieces& from, operation& part) noexcept;
  [[nodiscard]] ssize_t access(posted_request& item, bool writes) noexcept;
  [[nodiscard]] ssize_t change(posted_request& item) noexcept;
  posted_request& take_oldest() noexcept;

  executor_core& home_;
  endpoint& endpoint_;
  const domain& domain_;
  const order_table& order_;
  const std::uint64_t token_;
  const std::uint16_t reads_;
  posted_request* first_ = nullptr;   // the oldest that has not completed
  posted_request* unsent_ = nullptr;  // the oldest that was not handed over, or not all of it
  posted_request* last_ = nullptr;
  std::array<std::uint32_t, access_kinds> under_way_{};
  std::size_t with_provider_ = 0;  // operations in flight
  std::uint32_t next_number_ = message_trailer::first_number;
  time_point moved_at_{};                   // see is_late()
  std::optional<time_point> stands_since_;  // when the peer first answered after the last completion
};

}  // namespace weft::net::fabric
