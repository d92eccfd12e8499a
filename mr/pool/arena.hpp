// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/domain.hpp>
#include <weft/mr/system/mapping.hpp>

#include <cstddef>
#include <memory>

namespace weft::mr {

/// A mapping that is registered as a whole, for local operations and, where the domain has windows, for these. No peer
/// has a key to it, except that of a window. The constructor and the destructor block: for workers.
class arena {
 public:
  /// Throws the errors of domain::provide(), such as errc::no_memory, and of domain::register_now().
  arena(std::shared_ptr<mr::domain> home, std::size_t bytes, bool huge_pages, int node, weft::system_calls& calls);
  arena(const arena&) = delete;
  arena& operator=(const arena&) = delete;
  ~arena();

  /// The first byte.
  [[nodiscard]] std::byte* data() const noexcept { return memory_.data(); }
  /// In bytes.
  [[nodiscard]] std::size_t size() const noexcept { return memory_.size(); }
  /// The mapping behind it.
  [[nodiscard]] const mapping& memory() const noexcept { return memory_; }

  /// The record that all slices of the arena refer to.
  [[nodiscard]] const memory_record& record() const noexcept { return record_; }

 private:
  std::shared_ptr<mr::domain> domain_;
  mapping memory_;
  memory_record record_;
};

}  // namespace weft::mr
