// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/system/mapping.hpp>
#include <weft/net/shm/ring.hpp>
#include <weft/runtime/system/descriptor.hpp>
#include <weft/runtime/system/system_calls.hpp>

#include <cstddef>

namespace weft::net::shm {

/// The memory that the two ends of a connection share: a file in memory, without a name and with a sealed length.
///
///        0  end_words of the accepting end, then those of the connecting end
///     4096  the ring that the accepting end writes
///     4096 + ring_bytes  the ring that the connecting end writes
///
/// Pages are allocated when they are used: a connection that has carried nothing has one. Before an end writes to its
/// ring for the first time, it reserves the ring's pages, because a page that the kernel cannot provide means SIGBUS.
/// On Linux before 5.14, which lacks MADV_POPULATE_WRITE, make() reserves all pages.
class channel {
 public:
  static constexpr std::size_t header_bytes = 4096;
  static constexpr std::size_t min_ring_bytes = std::size_t{16} << 10;
  static constexpr std::size_t max_ring_bytes = std::size_t{16} << 20;

  /// Creates a channel, for the accepting end. `ring_bytes` must be a power of two from min_ring_bytes to
  /// max_ring_bytes. Throws weft::error.
  [[nodiscard]] static channel make(std::size_t ring_bytes, system_calls& calls);
  /// Maps the peer's channel, for the connecting end. Throws weft::error: errc::protocol_error if `ring_bytes` is not
  /// allowed, or the file is not in memory, has another length, or may get another length or further seals.
  [[nodiscard]] static channel adopt(descriptor file, std::size_t ring_bytes, system_calls& calls);

  channel(channel&&) noexcept = default;
  channel& operator=(channel&&) = delete;
  ~channel() = default;

  /// The file for the peer to map.
  [[nodiscard]] int file() const noexcept { return file_.fd(); }
  /// Closes the file; called once the peer has it.
  void close_file() noexcept { file_.close(); }
  [[nodiscard]] std::size_t ring_bytes() const noexcept { return ring_bytes_; }

  /// The shared state of this end, and that of the other end.
  [[nodiscard]] end_words& own() const noexcept { return words(accepted_ ? 0 : 1); }
  [[nodiscard]] end_words& other() const noexcept { return words(accepted_ ? 1 : 0); }
  [[nodiscard]] ring_writer writer() const noexcept;
  [[nodiscard]] ring_reader reader() const noexcept;
  /// Reserves the pages of this end's ring. False if the kernel has none.
  [[nodiscard]] bool reserve_writer() noexcept;

 private:
  channel(descriptor file, std::size_t ring_bytes, bool accepted, system_calls& calls);
  [[nodiscard]] end_words& words(std::size_t which) const noexcept;
  [[nodiscard]] std::size_t ring_offset(bool of_accepting) const noexcept {
    return header_bytes + (of_accepting ? 0 : ring_bytes_);
  }

  descriptor file_;
  std::size_t ring_bytes_;
  bool accepted_;
  mr::mapping memory_;
};

}  // namespace weft::net::shm
