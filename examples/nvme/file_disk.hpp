// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/io/file.hpp>
#include <weft/runtime/system/descriptor.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include <nvme/disk.hpp>

namespace nvme {

/// A file or a block device as a disk.
class file_disk final : public disk {
 public:
  /// Opens what is there; errors are weft::error and name the file.
  [[nodiscard]] static weft::task<std::unique_ptr<file_disk>> open(std::string path, bool read_only);

  [[nodiscard]] std::uint64_t size() const noexcept override { return size_.load(std::memory_order_relaxed); }
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
  file_disk(weft::file source, weft::descriptor handle, std::uint64_t size, bool read_only) noexcept;
  [[nodiscard]] weft::task<bool> allocate(int mode, std::uint64_t offset, std::uint64_t bytes);

  weft::file file_;
  weft::descriptor handle_;  // of the same file, for what weft::file has no call for
  std::atomic<std::uint64_t> size_;
  bool read_only_;
  std::mutex flushing_;  // held by workers
  int lost_ = 0;         // why a flush has failed
};

}  // namespace nvme
