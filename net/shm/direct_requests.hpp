// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/shm/channel.hpp>
#include <weft/net/shm/direct_access.hpp>
#include <weft/net/shm/link_breaker.hpp>
#include <weft/net/shm/output_ring.hpp>
#include <weft/net/shm/posted_request.hpp>
#include <weft/net/shm/record.hpp>
#include <weft/net/shm/wake_ups.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace weft::net::shm {

/// This end's requests to memory that the peer has lent, which this end executes itself. They keep the order of
/// requests: each waits until the peer has executed everything before it.
class direct_requests {
 public:
  direct_requests(channel& memory, const software::domain& home, output_ring& output, link_breaker& link) noexcept
      : memory_(memory), home_(home), output_(output), link_(link) {}
  direct_requests(const direct_requests&) = delete;
  direct_requests& operator=(const direct_requests&) = delete;

  /// Whether the peer has offered memory, and end() was not called since.
  [[nodiscard]] bool are_possible() const noexcept { return access_ != nullptr; }
  /// The gate of the places from find(), which are used without a request.
  [[nodiscard]] const direct_gate& gate() const noexcept { return gate_; }
  [[nodiscard]] direct_place find(std::uint64_t key, std::uint64_t address, std::uint64_t bytes) noexcept {
    return access_ != nullptr ? access_->place(key, address, bytes) : direct_place();
  }
  enum class step : std::uint8_t {
    done,        ///< the whole request has been executed
    wait,        ///< the request waits for earlier ones, goes on in the next turn, or the link has just ended
    by_request,  ///< the owner has to execute it
  };
  /// Executes a request, or a part of one. Only if are_possible(). `awaits_answers`: earlier reads or atomic operations
  /// are unanswered.
  [[nodiscard]] step execute(posted_request& item, bool awaits_answers) noexcept;
  /// Executes a write or read of up to whole_bytes at once. Only if are_possible(), and while no answer is awaited. If
  /// the result is `wait`, the request is left to execute().
  [[nodiscard]] step execute_now(const work_request& work, std::uint64_t bytes) noexcept;
  /// Whether requests that are too large or too many for one turn go on in the next; begin() clears this.
  [[nodiscard]] bool are_postponed() const noexcept { return moved_ == postponed; }
  /// Begins a turn, which moves a bounded number of bytes, however many requests complete in it.
  void begin() noexcept { moved_ = 0; }
  /// Whether requests wait until the peer has said that it has executed earlier ones.
  [[nodiscard]] bool await_fence() const noexcept { return fencing_; }
  /// Notes that a write is left to the peer, so that direct accesses wait until the peer has executed it.
  void wrote() noexcept { gate_.is_behind = true; }
  /// Unmaps the loan of a key that this end gives back.
  void forget(std::uint32_t key) noexcept {
    if (access_ == nullptr) return;
    ++gate_.version;
    access_->forget(key);
  }

  // Take records of the peer. Return what is wrong with the record, or null; then an answer may be owed.
  [[nodiscard]] const char* take_offer(const record& header, std::span<const std::byte> content,
                                       wake_ups& files) noexcept;
  [[nodiscard]] const char* give_back(std::uint32_t number) noexcept;
  [[nodiscard]] const char* fenced() noexcept;
  /// Sends the answers that are owed. False if the ring lacks room for all of them yet.
  [[nodiscard]] bool send_answers() noexcept;

  /// Lets go of all loans.
  void end() noexcept {
    ++gate_.version;
    access_.reset();
  }

 private:
  enum class outcome : std::uint8_t {
    done,
    shut,  ///< the owner has ended the loan; nothing has happened
    torn,  ///< the file behind the local memory has become shorter
  };
  // Where the peer's memory for the request is mapped, and its range; null if it is not lent for such an access.
  [[nodiscard]] std::byte* find(const work_request& work, std::uint64_t bytes,
                                const direct_access::range*& range) noexcept;
  [[nodiscard]] step execute_piece(posted_request& item, const direct_access::range& where, std::byte* place) noexcept;
  // Moves the bytes of the request from offset `from` on, or changes its word.
  [[nodiscard]] outcome visit(const work_request& work, std::uint64_t from, const direct_access::range& where,
                              std::span<std::byte> place, bool by_words) noexcept;

  channel& memory_;
  const software::domain& home_;
  output_ring& output_;
  link_breaker& link_;
  std::unique_ptr<direct_access> access_;  // null: the peer has offered nothing, or end() was called
  direct_gate gate_;
  bool fencing_ = false;  // a fence has not been answered yet
  static constexpr std::size_t postponed = SIZE_MAX;
  std::size_t moved_ = 0;  // how many bytes this turn has moved; `postponed` once a request has to wait for the next
};

}  // namespace weft::net::shm
