// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/cuda/driver.hpp>
#include <weft/mr/cuda/primary_context.hpp>
#include <weft/mr/device_memory.hpp>

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>

namespace weft::mr::cuda {

/// A GPU through the CUDA driver API, as open_cuda() returns it. It makes the primary context current for each driver
/// call that needs a context; its streams share the context.
class cuda_device final : public memory_device {
 public:
  /// Throws as open_cuda() does.
  cuda_device(const driver& functions, int ordinal);
  ~cuda_device() override;

  [[nodiscard]] std::string_view name() const noexcept override { return context_->name(); }
  [[nodiscard]] device_allocation find(std::span<const std::byte> memory) override;
  [[nodiscard]] std::unique_ptr<copy_stream> open_stream() override;
  [[nodiscard]] std::unique_ptr<copy_stream> borrow_stream(void* native) override;
  [[nodiscard]] bool pin(std::span<std::byte> host) override;
  void unpin(std::span<std::byte> host) noexcept override;
  [[nodiscard]] device_dmabuf export_dmabuf(std::span<std::byte> memory) override;
  void make_writes_visible() override;
  [[nodiscard]] device_share share(std::span<std::byte> memory) override;
  [[nodiscard]] std::byte* open_share(const device_share& shared, std::size_t bytes) override;
  void close_share(std::byte* memory) noexcept override;

 private:
  struct attributes;

  [[nodiscard]] std::byte* do_allocate(std::size_t bytes) override;
  void do_free(std::byte* memory) noexcept override;

  [[nodiscard]] attributes attributes_of(const void* memory, std::string_view attempt) const;
  [[nodiscard]] std::span<std::byte> allocation_around(const void* memory, std::string_view attempt) const;
  void make_copies_synchronous(device_address memory) const;

  const driver& driver_;
  std::shared_ptr<const primary_context> context_;
  // For each address that open_share() has returned, the base address of the opened allocation, by which the driver
  // closes it. The driver counts how often an allocation was opened.
  std::mutex opened_lock_;
  std::multimap<std::byte*, device_address> opened_;
};

}  // namespace weft::mr::cuda
