// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/memory_record.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace weft::net {

/// One element of a work_run.
struct run_element {
  std::byte* local{nullptr};                  ///< address of this end's memory
  std::size_t bytes = 0;                      ///< size of the memory at both ends; may be 0
  const mr::memory_record* memory = nullptr;  ///< the record of this end's memory
  std::uint64_t remote_key = 0;               ///< the peer's key
  std::uint64_t remote_address = 0;           ///< address in the peer's memory
};

/// The elements of a list, for a link that takes lists whole: link::post_run(). Elements are no work_requests, so each
/// costs no more than the device's work request for it. The run belongs to the connection, and stays valid until the
/// last element that was posted has ended.
class work_run {
 public:
  work_run(const work_run&) = delete;
  work_run& operator=(const work_run&) = delete;

  /// Fills `into` with the elements from `first` on. Called inside link::post_run(), in order, for the elements that
  /// are posted.
  virtual void look_up(std::size_t first, std::span<run_element> into) noexcept = 0;

 protected:
  work_run() = default;
  ~work_run() = default;
};

}  // namespace weft::net
