// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/cuda/driver.hpp>
#include <weft/runtime/error.hpp>

#include <atomic>
#include <string>
#include <string_view>

namespace weft::mr::cuda {

/// The primary context of a GPU, retained for as long as this object lives. The device and its streams share the
/// object.
///
/// Thread-safe. The program can reset the context, which is then still retained but no longer active, and has lost
/// everything. If it is retained again, its handle is the same, and only cuCtxGetId() tells the new context from the
/// old one. A driver before CUDA 12 does not have that function: there, a reset can be noticed only until the context
/// is retained again.
class primary_context {
 public:
  /// Starts the driver. Throws as open_cuda() does.
  primary_context(const driver& functions, int ordinal);
  primary_context(const primary_context&) = delete;
  primary_context& operator=(const primary_context&) = delete;
  ~primary_context();

  [[nodiscard]] const driver& functions() const noexcept { return driver_; }
  [[nodiscard]] context_handle handle() const noexcept { return context_; }
  [[nodiscard]] device_handle device() const noexcept { return device_; }
  [[nodiscard]] int ordinal() const noexcept { return ordinal_; }
  /// "cuda:0".
  [[nodiscard]] std::string_view name() const noexcept { return name_; }

  /// Makes the context current: check the result's code(). After a reset it is status::context_is_destroyed, and the
  /// driver must not be called for anything that the context had, because it may crash.
  [[nodiscard]] current_context enter() const noexcept;

  /// The error of a driver call for `attempt`: "copy" becomes "copy on cuda:0: ...".
  [[nodiscard]] error failure(status code, std::string_view attempt) const noexcept;
  /// Returns the error of failure() with the code `meaning`.
  [[nodiscard]] error failure_as(errc meaning, status code, std::string_view attempt) const noexcept;
  /// Throws the error unless the code is a success.
  void check(status code, std::string_view attempt) const;
  /// Throws an error for something that weft itself does not accept.
  [[noreturn]] void refuse(errc code, std::string_view attempt, std::string_view why) const;

 private:
  [[nodiscard]] bool is_gone() const noexcept;

  const driver& driver_;
  int ordinal_;
  std::string name_;
  device_handle device_ = 0;
  context_handle context_ = nullptr;
  unsigned long long id_ = 0;  // 0: unknown
  mutable std::atomic<bool> gone_ = false;
};

}  // namespace weft::mr::cuda
