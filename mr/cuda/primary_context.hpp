// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/cuda/driver.hpp>
#include <weft/runtime/error.hpp>

#include <string>
#include <string_view>

namespace weft::mr::cuda {

/// The primary context of a GPU, retained for as long as this lives. The device and its streams share it.
///
/// From any thread. The program can reset the context, which is then no longer active though retained.
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

  /// Makes the context current: check what it says by its code().
  [[nodiscard]] current_context enter() const noexcept { return current_context(driver_, context_); }

  /// The error for what the driver said to `attempt`: "copy" becomes "copy on cuda:0: ...".
  [[nodiscard]] error failure(status code, std::string_view attempt) const noexcept;
  /// The same error with another code.
  [[nodiscard]] error failure_as(errc meaning, status code, std::string_view attempt) const noexcept;
  /// Throws the error unless the code is a success.
  void check(status code, std::string_view attempt) const;
  /// Throws errc::closed if the program has reset the context. The driver calls the addresses of its memory unknown
  /// then.
  void check_active(std::string_view attempt) const;
  /// Throws an error for what weft itself does not accept.
  [[noreturn]] void refuse(errc code, std::string_view attempt, std::string_view why) const;

 private:
  const driver& driver_;
  int ordinal_;
  std::string name_;
  device_handle device_ = 0;
  context_handle context_ = nullptr;
};

}  // namespace weft::mr::cuda
