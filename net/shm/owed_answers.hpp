// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/link_life.hpp>
#include <weft/net/shm/executor_state.hpp>
#include <weft/net/shm/link_breaker.hpp>
#include <weft/net/shm/output_ring.hpp>
#include <weft/net/shm/record.hpp>
#include <weft/net/software/direct_memory.hpp>
#include <weft/net/software/key_table.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace weft::net::shm {

/// The peer's reads and atomic operations, which this end executes and answers in their order.
class owed_answers {
 public:
  owed_answers(executor_state& shared, const link_life& life, output_ring& output, link_breaker& link,
               software::stream_id id) noexcept
      : shared_(shared), life_(life), output_(output), link_(link), id_(id) {}
  owed_answers(const owed_answers&) = delete;
  owed_answers& operator=(const owed_answers&) = delete;

  /// Makes room for `incoming_reads` requests at a time. `counts`: atomic operations are counted as the peer's writes.
  void make_room(std::size_t incoming_reads, bool counts);
  [[nodiscard]] bool empty() const noexcept { return count_ == 0; }

  /// Takes the peer's request with index `number`. Returns the memory that the request names if it may be lent, else
  /// null; null also if the request is invalid, which ends the link. Only inside a batch of the executor's key reader.
  [[nodiscard]] software::direct_memory* take(const record& header, std::span<const std::byte> content,
                                              std::uint32_t number) noexcept;
  /// Sends answers as far as there is room. True once none is owed any more.
  [[nodiscard]] bool send() noexcept { return count_ == 0 || send_some(); }

 private:
  struct owed_answer {
    record_kind kind = record_kind::read;
    std::uint32_t key = 0;
    std::uint64_t address = 0;
    std::uint64_t total = 0;
    std::uint64_t moved = 0;
    atomic_operands operands{};
    std::uint32_t number = 0;
  };

  [[nodiscard]] bool send_some() noexcept;
  [[nodiscard]] bool answer_atomic(const owed_answer& asked) noexcept;

  executor_state& shared_;
  const link_life& life_;
  output_ring& output_;
  link_breaker& link_;
  software::stream_id id_;
  std::vector<owed_answer> answers_;  // a ring buffer
  std::size_t begin_ = 0;
  std::size_t count_ = 0;
  std::size_t most_ = 0;
  bool counts_ = true;
};

}  // namespace weft::net::shm
