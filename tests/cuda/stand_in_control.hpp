// SPDX-License-Identifier: Apache-2.0
// What a test says to the CUDA driver without a GPU.
#pragma once

#include "stand_in.hpp"

namespace weft::test {

/// The driver that libstand-in-cuda.so is, from the test's side: stand_in.hpp says what the calls do. All instances
/// control the one driver of the process. What a test has set is as before when its instance goes.
class stand_in : private immovable {
 public:
  /// Loads the library; later calls of open_cuda() for library() use the same one.
  stand_in();
  ~stand_in();

  /// For cuda_options::library.
  [[nodiscard]] static const char* library() noexcept;

  void seed(std::uint64_t number) const;
  void hold() const;
  void release() const;
  [[nodiscard]] std::size_t outstanding() const;

  void fail_next(const char* function, int result) const;
  void fail_nth(std::uint64_t n, int result = out_of_memory) const;
  [[nodiscard]] bool has_failed() const;
  [[nodiscard]] std::uint64_t calls() const;

  void destroy_context(int device) const;
  void set_driver_version(int version) const;
  void set_device_count(int count) const;
  void set_dma_buf(bool supported) const;

  /// Bytes of device memory as they are now. Throws std::out_of_range for memory that is not a device's.
  [[nodiscard]] std::vector<std::byte> peek(std::span<const std::byte> memory) const;
  void poke(std::span<std::byte> memory, std::span<const std::byte> bytes) const;
  [[nodiscard]] bool is_synchronous(const std::byte* memory) const;

  /// Memory that is not of memory_device::allocate(). free() ends it.
  [[nodiscard]] std::span<std::byte> allocate(int device, std::size_t bytes, foreign_memory kind) const;
  void free(std::span<std::byte> memory) const;
  [[nodiscard]] stand_in_counts counts() const;

  /// A function of the driver, by its name.
  template <class Function>
  [[nodiscard]] Function* function(const char* name) const {
    return reinterpret_cast<Function*>(find(name));
  }

  static constexpr int out_of_memory = 2;
  static constexpr int usual_version = 12040;
  static constexpr int usual_devices = 2;

 private:
  [[nodiscard]] void* find(const char* name) const;

  void* library_;
};

}  // namespace weft::test
