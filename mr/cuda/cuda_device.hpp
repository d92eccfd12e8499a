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

/// A GPU through the CUDA driver API, as open_cuda() returns it. Every call of the driver is made with the primary
/// context current, and streams share the context.
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
  // The handles' bases by the addresses that open_share() returned. The driver counts how often a handle was opened,
  // and closes it by its base.
  std::mutex opened_lock_;
  std::multimap<std::byte*, device_address> opened_;
};

}  // namespace weft::mr::cuda
