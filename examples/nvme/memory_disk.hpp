// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include <nvme/disk.hpp>

namespace nvme {

/// Memory of this process as a disk: gone with it.
class memory_disk final : public disk {
 public:
  /// All zeroes. Pages that nothing has been written to take no memory. Throws weft::error if there is no room for it
  /// in the address space.
  explicit memory_disk(std::uint64_t bytes);
  ~memory_disk() override;

  [[nodiscard]] std::uint64_t size() const noexcept override { return memory_.size(); }
  [[nodiscard]] std::string describe() const override;
  [[nodiscard]] weft::task<> read(std::uint64_t offset, std::span<std::byte> into) override;
  [[nodiscard]] weft::task<> write(std::uint64_t offset, std::span<const std::byte> from) override;
  [[nodiscard]] weft::task<> zero(std::uint64_t offset, std::uint64_t bytes) override;
  [[nodiscard]] weft::task<> deallocate(std::uint64_t offset, std::uint64_t bytes) override;

 private:
  // What two hosts read and write at the same moment is one or the other, in pieces of this size.
  static constexpr std::uint64_t stripe_bytes = std::uint64_t{64} << 10;
  template <class Work>
  void each_stripe(std::uint64_t offset, std::uint64_t bytes, const Work& work);

  std::span<std::byte> memory_;
  std::array<std::mutex, 64> locks_;  // of the stripes, in turn
};

}  // namespace nvme
