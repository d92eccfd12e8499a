// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/memory_record.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace weft::net {

/// One element of a work_run.
struct run_element {
  std::byte* local{nullptr};                  ///< where this end's memory is
  std::size_t bytes = 0;                      ///< its size, and that of the peer's memory; may be 0
  const mr::memory_record* memory = nullptr;  ///< of this end's memory
  std::uint64_t remote_key = 0;               ///< the peer's key
  std::uint64_t remote_address = 0;           ///< where in the peer's memory
};

/// The elements of a list, for a link that takes a list apart by itself: link::post_run(). No element is a
/// work_request, so that a block costs no more than what the device has to be told of it. The run belongs to the
/// connection, and stays until its last element that was posted has ended.
class work_run {
 public:
  work_run(const work_run&) = delete;
  work_run& operator=(const work_run&) = delete;

  /// Fills `into` with the elements from `first` on. For link::post_run(), which asks for those that are posted.
  virtual void look_up(std::size_t first, std::span<run_element> into) noexcept = 0;

 protected:
  work_run() = default;
  ~work_run() = default;
};

}  // namespace weft::net
