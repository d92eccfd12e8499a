// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/cuda/driver.hpp>

#include <fmt/core.h>

#include <dlfcn.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

namespace weft::mr::cuda {
namespace {

class library {
 public:
  explicit library(const char* path) : path_(path), handle_(::dlopen(path, RTLD_NOW | RTLD_LOCAL)) {
    // Never closed: the driver leaves threads and handlers behind.
    if (handle_ != nullptr) return;
    const char* const why = ::dlerror();
    throw error(errc::not_supported, fmt::format("load the CUDA driver ({}); it comes with the driver of an NVIDIA GPU",
                                                 why != nullptr ? why : "no reason given"));
  }

  template <class Function>
  void find(const char* name, Function*& place) const {
    find_optional(name, place);
    if (place == nullptr) throw error(errc::not_supported, fmt::format("find {} in the CUDA driver {}", name, path_));
  }
  template <class Function>
  void find_optional(const char* name, Function*& place) const {
    place = reinterpret_cast<Function*>(::dlsym(handle_, name));
  }

 private:
  const char* path_;
  void* handle_;
};

std::unique_ptr<const driver> load(const char* path) {
  const library from(path);
  auto made = std::make_unique<driver>();
  made->library = path;
  from.find("cuInit", made->init);
  from.find("cuDriverGetVersion", made->driver_get_version);
  from.find("cuGetErrorName", made->get_error_name);
  from.find("cuGetErrorString", made->get_error_string);
  from.find("cuDeviceGetCount", made->device_get_count);
  from.find("cuDeviceGet", made->device_get);
  from.find("cuDeviceGetAttribute", made->device_get_attribute);
  from.find("cuDevicePrimaryCtxRetain", made->device_primary_ctx_retain);
  from.find("cuDevicePrimaryCtxRelease_v2", made->device_primary_ctx_release);
  from.find("cuDevicePrimaryCtxGetState", made->device_primary_ctx_get_state);
  from.find("cuCtxPushCurrent_v2", made->ctx_push_current);
  from.find("cuCtxPopCurrent_v2", made->ctx_pop_current);
  from.find("cuCtxSynchronize", made->ctx_synchronize);
  from.find("cuPointerGetAttributes", made->pointer_get_attributes);
  from.find("cuPointerSetAttribute", made->pointer_set_attribute);
  from.find("cuMemGetAddressRange_v2", made->mem_get_address_range);
  from.find("cuMemAlloc_v2", made->mem_alloc);
  from.find("cuMemFree_v2", made->mem_free);
  from.find("cuMemHostRegister_v2", made->mem_host_register);
  from.find("cuMemHostUnregister", made->mem_host_unregister);
  from.find("cuMemcpyAsync", made->memcpy_async);
  from.find("cuStreamCreate", made->stream_create);
  from.find("cuStreamDestroy_v2", made->stream_destroy);
  from.find("cuStreamGetCtx", made->stream_get_ctx);
  from.find("cuStreamQuery", made->stream_query);
  from.find("cuStreamSynchronize", made->stream_synchronize);
  from.find("cuLaunchHostFunc", made->launch_host_func);
  from.find("cuEventCreate", made->event_create);
  from.find("cuEventDestroy_v2", made->event_destroy);
  from.find("cuEventRecord", made->event_record);
  from.find("cuEventQuery", made->event_query);
  from.find_optional("cuCtxGetId", made->ctx_get_id);
  from.find_optional("cuFlushGPUDirectRDMAWrites", made->flush_gpu_direct_rdma_writes);
  from.find_optional("cuMemGetHandleForAddressRange", made->mem_get_handle_for_address_range);
  from.find_optional("cuIpcGetMemHandle", made->ipc_get_mem_handle);
  from.find_optional("cuIpcOpenMemHandle_v2", made->ipc_open_mem_handle);
  from.find_optional("cuIpcCloseMemHandle", made->ipc_close_mem_handle);
  return made;
}

// The errc that fits a code, if any. A handle that the driver does not know is taken for one that was destroyed
// together with its context.
std::optional<errc> meaning_of(status code) noexcept {
  switch (code) {
    case status::invalid_value:
    case status::invalid_device:
      return errc::invalid_argument;
    case status::out_of_memory:
      return errc::no_memory;
    case status::not_initialized:
    case status::deinitialized:
    case status::invalid_context:
    case status::invalid_handle:
    case status::context_is_destroyed:
      return errc::closed;
    case status::stub_library:
    case status::call_requires_newer_driver:
    case status::not_permitted:
    case status::not_supported:
      return errc::not_supported;
    default:
      return std::nullopt;
  }
}

// A text that is made without an allocation, so that a call that must not throw can say what failed.
class sentence {
 public:
  sentence(const driver& functions, status code, std::string_view attempt, std::string_view device) noexcept {
    const char* name = nullptr;
    const char* words = nullptr;
    static_cast<void>(functions.get_error_name(code, &name));
    static_cast<void>(functions.get_error_string(code, &words));
    if (name == nullptr) name = "CUresult";
    if (words == nullptr) words = "unknown error of the CUDA driver";
    const int written = std::snprintf(text_.data(), text_.size(), "%.*s%s%.*s: %s (%s, %d)", length_of(attempt),
                                      attempt.data(), device.empty() ? "" : " on ", length_of(device), device.data(),
                                      words, name, static_cast<int>(code));
    length_ = std::min(static_cast<std::size_t>(std::max(written, 0)), text_.size() - 1);
  }

  [[nodiscard]] std::string_view text() const noexcept { return {text_.data(), length_}; }

 private:
  [[nodiscard]] static int length_of(std::string_view part) noexcept { return static_cast<int>(part.size()); }

  std::array<char, 512> text_;
  std::size_t length_ = 0;
};

}  // namespace

error driver::failure(status code, std::string_view attempt, std::string_view device) const noexcept {
  if (const auto meaning = meaning_of(code)) return failure_as(*meaning, code, attempt, device);
  return weft::detail::make_system_error(EIO, sentence(*this, code, attempt, device).text());
}

error driver::failure_as(errc meaning, status code, std::string_view attempt, std::string_view device) const noexcept {
  return weft::detail::make_error(meaning, sentence(*this, code, attempt, device).text());
}

const driver& load_driver(const char* path) {
  static auto& lock = *new std::mutex;  // never destroyed, because static objects may own devices
  static auto& loaded = *new std::map<std::string, std::unique_ptr<const driver>>;
  const std::lock_guard locked(lock);
  auto& place = loaded[path];
  if (place == nullptr) place = load(path);
  return *place;
}

current_context::~current_context() {
  if (code_ != status::success) return;
  context_handle ours = nullptr;
  static_cast<void>(functions_.ctx_pop_current(&ours));
}

}  // namespace weft::mr::cuda
