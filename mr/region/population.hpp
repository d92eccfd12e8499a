// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/region/region_state.hpp>
#include <weft/runtime/task.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace weft::mr::detail {

/// Has the kernel provide the pages of memory before a device pins it, because pinning faults them in one by one. The
/// memory is provided in pieces, so that several threads share the work and a stop can end it. The kernel is asked for
/// huge pages where they fit. Memory that is only read is provided for reading, so that no file grows. What the kernel
/// refuses is left to the registration, whose error says why. See madvise(2), MADV_POPULATE_READ and
/// MADV_POPULATE_WRITE.
class population {
 public:
  /// The size of a piece, which one thread provides at a time.
  static constexpr std::size_t piece_bytes = std::size_t{32} << 20;
  /// The most bytes that one call provides. A thread that maps memory meanwhile, such as the executor when it
  /// allocates, waits for at most one call of each worker.
  static constexpr std::size_t call_bytes = std::size_t{512} << 10;
  /// Smaller memory is not populated, because pinning alone is faster.
  static constexpr std::size_t least_bytes = std::size_t{4} << 20;

  /// `ranges`, and what `options` points to, must outlive this object.
  population(std::span<const std::span<std::byte>> ranges, const registration_options& options) noexcept;
  explicit population(const region_state& target) noexcept : population(target.all_ranges(), target.options) {}

  /// Whether to populate this memory.
  [[nodiscard]] static bool wanted(const mr::registrar& home, std::span<const std::span<std::byte>> ranges,
                                   const registration_options& options) noexcept;
  [[nodiscard]] static bool wanted(const region_state& target) noexcept {
    return wanted(*target.domain, target.all_ranges(), target.options);
  }
  /// How many pieces there are; the last may be smaller.
  [[nodiscard]] std::size_t pieces() const noexcept { return pieces_; }
  /// Populates the next piece; false if none is left. Blocks. Thread-safe.
  bool next() noexcept;

 private:
  void provide(std::uint64_t from, std::uint64_t length) const noexcept;
  void provide(std::span<std::byte> memory) const noexcept;

  const std::span<const std::span<std::byte>> ranges_;
  std::atomic<std::size_t>* const progress_;
  weft::system_calls& calls_;
  const int advice_;
  const std::uint64_t bytes_;
  const std::size_t pieces_;
  std::atomic<std::size_t> next_{0};
};

/// Populates these ranges on workers, if population::wanted(). A stop ends it, once the pieces that workers have begun
/// are done: errc::canceled.
task<> populate(const mr::registrar& home, std::span<const std::span<std::byte>> ranges,
                const registration_options& options);

}  // namespace weft::mr::detail
