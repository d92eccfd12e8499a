// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/cuda/primary_context.hpp>

#include <fmt/core.h>

namespace weft::mr::cuda {
namespace {

void check_version(const driver& functions) {
  int found = 0;
  const status code = functions.driver_get_version(&found);
  if (code != status::success) throw functions.failure(code, "ask the CUDA driver for its version");
  if (found >= oldest_version) return;
  throw error(errc::not_supported,
              fmt::format("the CUDA driver {} is of version {}.{}, and weft needs {}.{} or newer: update the driver",
                          functions.library, found / 1000, found % 1000 / 10, oldest_version / 1000,
                          oldest_version % 1000 / 10));
}

int count_devices(const driver& functions) {
  const status started = functions.init(0);
  if (started == status::no_device) return 0;
  if (started == status::out_of_memory) throw functions.failure(started, "start the CUDA driver");
  if (started != status::success) {
    throw functions.failure_as(errc::not_supported, started, "start the CUDA driver (nvidia-smi may say more)");
  }
  int count = 0;
  const status counted = functions.device_get_count(&count);
  if (counted != status::success) throw functions.failure(counted, "count the CUDA devices");
  return count;
}

}  // namespace

primary_context::primary_context(const driver& functions, int ordinal)
    : driver_(functions), ordinal_(ordinal), name_(fmt::format("cuda:{}", ordinal)) {
  check_version(driver_);
  const int count = count_devices(driver_);
  if (ordinal < 0 || ordinal >= count) {
    throw error(errc::invalid_argument,
                fmt::format("open {}: the CUDA driver has {} devices (CUDA_VISIBLE_DEVICES hides some)", name_, count));
  }
  check(driver_.device_get(&device_, ordinal), "open the device");
  check(driver_.device_primary_ctx_retain(&context_, device_), "retain the primary context");
  if (driver_.ctx_get_id != nullptr && driver_.ctx_get_id(context_, &id_) != status::success) id_ = 0;
}

// Releases the context even if it was reset, because a reset does not release it: cuDevicePrimaryCtxReset.
primary_context::~primary_context() { static_cast<void>(driver_.device_primary_ctx_release(device_)); }

current_context primary_context::enter() const noexcept {
  if (is_gone()) return current_context(driver_, status::context_is_destroyed);
  return current_context(driver_, context_);
}

// Remembers that the context is gone, because the next context may have no id, and must not be taken for this one.
bool primary_context::is_gone() const noexcept {
  if (gone_.load(std::memory_order_relaxed)) return true;
  unsigned flags = 0;
  int active = 1;
  unsigned long long id = id_;
  static_cast<void>(driver_.device_primary_ctx_get_state(device_, &flags, &active));
  if (active != 0 && id_ != 0) static_cast<void>(driver_.ctx_get_id(context_, &id));
  if (active != 0 && id == id_) return false;
  gone_.store(true, std::memory_order_relaxed);
  return true;
}

error primary_context::failure(status code, std::string_view attempt) const noexcept {
  return driver_.failure(code, attempt, name_);
}

error primary_context::failure_as(errc meaning, status code, std::string_view attempt) const noexcept {
  return driver_.failure_as(meaning, code, attempt, name_);
}

void primary_context::check(status code, std::string_view attempt) const {
  if (code == status::success) return;
  if (code == status::context_is_destroyed)
    refuse(errc::closed, attempt, "the program has reset the context (cudaDeviceReset), and its memory is gone");
  throw failure(code, attempt);
}

void primary_context::refuse(errc code, std::string_view attempt, std::string_view why) const {
  throw error(code, fmt::format("{} on {}: {}", attempt, name_, why));
}

}  // namespace weft::mr::cuda
