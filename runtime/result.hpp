// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/error.hpp>

#include <optional>
#include <utility>
#include <variant>

namespace weft {

/// A value or an error, for code that would rather look than catch. Like std::expected<T, weft::error>.
template <class T>
class [[nodiscard]] result {
 public:
  using value_type = T;  ///< the type of the value

  /// A result that is a value.
  result(T value) : content_(std::in_place_index<0>, std::move(value)) {}
  /// A result that is a failure.
  result(weft::error failure) : content_(std::in_place_index<1>, std::move(failure)) {}

  /// Whether it is a value.
  [[nodiscard]] bool has_value() const noexcept { return content_.index() == 0; }
  explicit operator bool() const noexcept { return has_value(); }

  /// The value; throws the error if there is none.
  T& value() & { return checked(), *std::get_if<0>(&content_); }
  /// The value; throws the error if there is none.
  const T& value() const& { return checked(), *std::get_if<0>(&content_); }
  /// The value, moved out; throws the error if there is none.
  T value() && { return checked(), std::move(*std::get_if<0>(&content_)); }

  /// The value; only where has_value() is true.
  T& operator*() & noexcept { return *std::get_if<0>(&content_); }
  const T& operator*() const& noexcept { return *std::get_if<0>(&content_); }
  T operator*() && noexcept { return std::move(*std::get_if<0>(&content_)); }
  T* operator->() noexcept { return std::get_if<0>(&content_); }
  const T* operator->() const noexcept { return std::get_if<0>(&content_); }

  /// The error; only where has_value() is false.
  const weft::error& error() const noexcept { return *std::get_if<1>(&content_); }

 private:
  void checked() const {
    if (const auto* failure = std::get_if<1>(&content_)) throw *failure;
  }

  std::variant<T, weft::error> content_;
};

/// Success or an error.
template <>
class [[nodiscard]] result<void> {
 public:
  using value_type = void;  ///< nothing

  result() noexcept = default;
  /// A result that is a failure.
  result(weft::error failure) : failure_(std::move(failure)) {}

  /// Whether it was a success.
  [[nodiscard]] bool has_value() const noexcept { return !failure_; }
  /// Whether it was a success.
  explicit operator bool() const noexcept { return has_value(); }

  /// Throws the error if there is one.
  void value() const {
    if (failure_) throw *failure_;
  }

  /// The error; only where has_value() is false.
  const weft::error& error() const noexcept { return *failure_; }

 private:
  std::optional<weft::error> failure_;
};

}  // namespace weft
