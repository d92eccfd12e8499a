// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstring>
#include <map>

#include <nvme/disk.hpp>

/// A disk of any size that keeps the pages that were written, and takes no memory for others.
class sparse_disk final : public nvme::disk {
 public:
  explicit sparse_disk(std::uint64_t bytes) : bytes_(bytes) {}

  std::uint64_t size() const noexcept override { return bytes_; }
  std::string describe() const override { return "a sparse disk"; }

  weft::task<> read(std::uint64_t offset, std::span<std::byte> into) override {
    for (; !into.empty(); into = into.subspan(block), offset += block) {
      const auto found = pages_.find(offset);
      const auto& page = found == pages_.end() ? zeroes : found->second;
      std::memcpy(into.data(), page.data(), block);
    }
    co_return;
  }
  weft::task<> write(std::uint64_t offset, std::span<const std::byte> from) override {
    for (; !from.empty(); from = from.subspan(block), offset += block)
      std::memcpy(pages_[offset].data(), from.data(), block);
    co_return;
  }

 private:
  static constexpr std::size_t block = 4096;  // of the namespace, too
  static constexpr std::array<std::byte, block> zeroes{};

  std::uint64_t bytes_;
  std::map<std::uint64_t, std::array<std::byte, block>> pages_;
};
