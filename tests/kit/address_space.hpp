// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/mman.h>

#include <new>

#include "kit/standard.hpp"

namespace weft::test {

/// Address space without pages, unless somebody provides them.
class address_space : private immovable {
 public:
  explicit address_space(std::size_t bytes) : bytes_(bytes) {
    address_ = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address_ == MAP_FAILED) throw std::bad_alloc();
  }
  ~address_space() { ::munmap(address_, bytes_); }
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return {static_cast<std::byte*>(address_), bytes_}; }

 private:
  std::size_t bytes_;
  void* address_ = nullptr;
};

}  // namespace weft::test
