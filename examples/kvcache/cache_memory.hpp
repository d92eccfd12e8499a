// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/device_memory.hpp>
#include <weft/mr/region.hpp>
#include <weft/mr/registration.hpp>
#include <weft/mr/system/mapping.hpp>
#include <weft/net/device.hpp>
#include <weft/runtime/sync/mutex.hpp>
#include <weft/runtime/task.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "contents.hpp"

namespace kvcache {

/// The memory that a user asks for.
struct memory_choice {
  std::string name = "host";  ///< or "cuda", or "cuda:1": is_memory_name()
  std::string library = "libcuda.so.1";
};

[[nodiscard]] bool is_memory_name(std::string_view text) noexcept;

/// The GPU of that choice; null for host memory. Outside executors, because it may take seconds. Throws weft::error.
[[nodiscard]] std::shared_ptr<weft::mr::memory_device> open_gpu(const memory_choice& choice);

/// Host memory of so many bytes or more, in huge pages if there are any; as a file in memory if other processes are to
/// map it.
[[nodiscard]] weft::mr::mapping host_memory(std::size_t bytes, bool as_file = false);

/// Host memory that a GPU copies to and from by itself.
class pinned_memory {
 public:
  pinned_memory(std::shared_ptr<weft::mr::memory_device> gpu, weft::mr::mapping memory);
  pinned_memory(pinned_memory&& other) noexcept = default;  // leaves no GPU
  pinned_memory& operator=(pinned_memory&&) = delete;
  ~pinned_memory();

  [[nodiscard]] std::byte* data() const noexcept { return memory_.data(); }
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return {memory_.data(), memory_.size()}; }

 private:
  std::shared_ptr<weft::mr::memory_device> gpu_;
  weft::mr::mapping memory_;
  bool is_pinned_;
};

/// The blocks of a cache, in memory of the host or of a GPU. The processor does not touch a GPU's: a block is filled
/// and checked in pinned host memory, and the GPU copies it. On one executor.
class cache_memory {
 public:
  /// Registers new memory, of the host if `gpu` is null. Throws weft::error.
  [[nodiscard]] static weft::task<std::unique_ptr<cache_memory>> make(weft::net::device& device,
                                                                      weft::mr::memory_device* gpu, std::uint64_t bytes,
                                                                      std::uint64_t block_bytes,
                                                                      weft::mr::registration_options how);

  /// Gives the block at `place`, in bytes, the contents that it has to have.
  [[nodiscard]] weft::task<> fill(std::uint64_t place, block_name name);
  /// Where the block at `place` has other contents: the first word that is wrong, in bytes; empty if there is none.
  [[nodiscard]] weft::task<std::optional<std::size_t>> first_wrong(std::uint64_t place, block_name name);

  [[nodiscard]] const weft::mr::region& region() const noexcept { return region_; }

 private:
  cache_memory(weft::mr::region region, std::uint64_t block_bytes) noexcept;
  [[nodiscard]] std::span<std::byte> block(std::uint64_t place) const noexcept;

  weft::mr::region region_;
  std::uint64_t block_bytes_;
  std::shared_ptr<weft::mr::memory_device> gpu_;  // null: the memory is the host's
  std::optional<pinned_memory> window_;           // of a GPU's memory: the block that is being filled or checked
  weft::mutex turn_;                              // at the window
};

}  // namespace kvcache
