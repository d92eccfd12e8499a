// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/remote_region.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

// Messages as they travel. All numbers are little-endian.
namespace common {

/// For std::visit: one function made of several.
template <class... F>
struct overloaded : F... {
  using F::operator()...;
};
template <class... F>
overloaded(F...) -> overloaded<F...>;  // clang 16 cannot do without

/// Takes a message apart, front to back, and never reads beyond its end.
class reader {
 public:
  /// `protocol` is what errors begin with: "a message of the copy protocol".
  reader(std::span<const std::byte> bytes, std::string_view protocol) noexcept : rest_(bytes), protocol_(protocol) {}

  std::uint64_t number(std::size_t width);
  /// One from 1 to `most`.
  std::uint64_t number(std::size_t width, std::uint64_t most, std::string_view what);
  template <std::unsigned_integral Number>
  Number number() {
    return static_cast<Number>(number(sizeof(Number)));
  }
  std::span<const std::byte> bytes(std::size_t count);
  weft::mr::remote_region region();
  std::string_view text(std::size_t count);
  /// All that is left, if that is at most `longest` bytes.
  std::string_view last_text(std::size_t longest);

  [[nodiscard]] std::size_t left() const noexcept { return rest_.size(); }
  /// Throws unless everything has been read.
  void end() const;
  /// Throws weft::errc::malformed.
  [[noreturn]] void malformed(std::string_view why) const;

 private:
  std::span<const std::byte> rest_;
  std::string_view protocol_;
};

/// Puts a message together, front to back, in memory that is large enough.
class writer {
 public:
  explicit writer(std::span<std::byte> into) noexcept : into_(into) {}

  void number(std::uint64_t value, std::size_t width) noexcept;
  template <std::unsigned_integral Number>
  void number(Number value) noexcept {
    number(value, sizeof value);
  }
  void bytes(std::span<const std::byte> what) noexcept;
  void text(std::string_view what) noexcept;

  [[nodiscard]] std::size_t size() const noexcept { return size_; }

 private:
  std::span<std::byte> into_;
  std::size_t size_ = 0;
};

/// A message of at most MaxBytes that waits to be sent.
template <std::size_t MaxBytes>
class packed {
 public:
  static constexpr std::size_t max_bytes = MaxBytes;

  /// Made of what `fill(writer&)` writes.
  template <std::invocable<writer&> Fill>
  explicit packed(const Fill& fill) {
    writer to(bytes_);
    fill(to);
    size_ = to.size();
  }

  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return {bytes_.data(), size_}; }

 private:
  std::array<std::byte, MaxBytes> bytes_{};
  std::size_t size_ = 0;
};

}  // namespace common
