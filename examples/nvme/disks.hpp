// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/weft.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

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

 private:
  std::span<std::byte> memory_;
};

/// A file or a block device as a disk.
class file_disk final : public disk {
 public:
  /// Opens what is there; errors are weft::error and name the file.
  [[nodiscard]] static weft::task<std::unique_ptr<file_disk>> open(std::string path, bool read_only);

  [[nodiscard]] std::uint64_t size() const noexcept override { return size_; }
  [[nodiscard]] std::string describe() const override { return file_.path(); }
  [[nodiscard]] bool read_only() const noexcept override { return read_only_; }
  [[nodiscard]] bool has_volatile_cache() const noexcept override { return !read_only_; }
  [[nodiscard]] weft::task<> read(std::uint64_t offset, std::span<std::byte> into) override;
  [[nodiscard]] weft::task<> write(std::uint64_t offset, std::span<const std::byte> from) override;
  [[nodiscard]] weft::task<> flush() override;
  [[nodiscard]] weft::task<> zero(std::uint64_t offset, std::uint64_t bytes) override;
  [[nodiscard]] weft::task<> deallocate(std::uint64_t offset, std::uint64_t bytes) override;
  [[nodiscard]] weft::task<bool> look_again() override;

 private:
  file_disk(weft::file source, weft::descriptor handle, std::uint64_t size, bool read_only) noexcept
      : file_(std::move(source)), handle_(std::move(handle)), size_(size), read_only_(read_only) {}
  [[nodiscard]] weft::task<bool> allocate(int mode, std::uint64_t offset, std::uint64_t bytes);

  weft::file file_;
  weft::descriptor handle_;  // of the same file, for fallocate(2)
  std::uint64_t size_;
  bool read_only_;
  weft::mutex flushing_;
  std::optional<weft::error> lost_;  // why a flush has failed
};

}  // namespace nvme
