// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <utility>

namespace weft::net {

class stream_core;

/// Keeps a stream's state as long as the stream or an operation on it needs it. Counted without atomics.
class stream_ref {
 public:
  stream_ref() noexcept = default;
  /// Adds a reference to `core`.
  explicit stream_ref(stream_core& core) noexcept;
  stream_ref(const stream_ref& other) noexcept;
  stream_ref(stream_ref&& other) noexcept : core_(std::exchange(other.core_, nullptr)) {}
  stream_ref& operator=(stream_ref other) noexcept {
    std::swap(core_, other.core_);
    return *this;
  }
  ~stream_ref();

  using element_type = stream_core;
  explicit operator bool() const noexcept { return core_ != nullptr; }
  friend bool operator==(const stream_ref& item, std::nullptr_t) noexcept { return item.core_ == nullptr; }
  stream_core& operator*() const noexcept { return *core_; }
  stream_core* operator->() const noexcept { return core_; }

 private:
  stream_core* core_ = nullptr;
};

}  // namespace weft::net
