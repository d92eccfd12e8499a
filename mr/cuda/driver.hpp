// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/error.hpp>

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

// The part of the CUDA driver API that weft uses, declared anew, so that weft builds where CUDA is not installed. The
// driver keeps this binary interface: a function that changes gets a new symbol, such as those that end in _v2.
namespace weft::mr::cuda {

using device_handle = int;                        ///< CUdevice
using device_address = unsigned long long;        ///< CUdeviceptr
using context_handle = struct context_tag*;       ///< CUcontext
using stream_handle = struct stream_tag*;         ///< CUstream; null is the context's default stream
using event_handle = struct event_tag*;           ///< CUevent
using host_function = void (*)(void* user_data);  ///< CUhostFn

/// CUresult: the values that weft tells apart; the driver has more.
enum class status : int {
  success = 0,
  invalid_value = 1,
  out_of_memory = 2,
  not_initialized = 3,  // also the result of every call in a child after fork(2)
  deinitialized = 4,    // while the process exits
  stub_library = 34,
  call_requires_newer_driver = 36,
  no_device = 100,
  invalid_device = 101,
  invalid_context = 201,
  map_failed = 205,
  invalid_handle = 400,
  not_found = 500,
  not_ready = 600,
  illegal_address = 700,
  context_is_destroyed = 709,
  host_memory_already_registered = 712,
  host_memory_not_registered = 713,
  not_permitted = 800,
  not_supported = 801,
};

/// CUpointer_attribute, for cuPointerGetAttributes() and cuPointerSetAttribute().
enum class pointer_attribute : int {
  context = 1,         // context_handle; null for memory that belongs to no context, as that of cuMemCreate()
  memory_type = 2,     // unsigned: memory_type_device, or another kind
  sync_memops = 6,     // unsigned
  buffer_id = 7,       // unsigned long long
  is_managed = 8,      // unsigned
  device_ordinal = 9,  // int
};

inline constexpr unsigned memory_type_host = 1;             ///< CU_MEMORYTYPE_HOST
inline constexpr unsigned memory_type_device = 2;           ///< CU_MEMORYTYPE_DEVICE
inline constexpr int attribute_dma_buf_supported = 124;     ///< CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED
inline constexpr unsigned stream_non_blocking = 1;          ///< CU_STREAM_NON_BLOCKING
inline constexpr unsigned event_disable_timing = 2;         ///< CU_EVENT_DISABLE_TIMING
inline constexpr unsigned host_register_portable = 1;       ///< CU_MEMHOSTREGISTER_PORTABLE
inline constexpr unsigned ipc_lazy_enable_peer_access = 1;  ///< CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
inline constexpr int flush_current_context = 0;             ///< CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX
inline constexpr int flush_to_owner = 100;                  ///< CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER
inline constexpr int range_handle_dma_buf = 1;              ///< CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD

/// CUipcMemHandle, which functions take by value.
struct ipc_handle {
  std::array<std::byte, 64> bytes{};
};

/// The oldest driver that weft works with, as cuDriverGetVersion() says it: 1000 times the major number of CUDA, plus
/// 10 times the minor number.
inline constexpr int oldest_version = 11040;

/// The functions of one library. Each has the meaning, the parameters and, without "cu", the name that the manual
/// gives.
struct driver {
  std::string library;  ///< the path given to dlopen(3), for errors

  status (*init)(unsigned flags) = nullptr;
  status (*driver_get_version)(int* version) = nullptr;
  status (*get_error_name)(status code, const char** name) = nullptr;
  status (*get_error_string)(status code, const char** words) = nullptr;

  status (*device_get_count)(int* count) = nullptr;
  status (*device_get)(device_handle* device, int ordinal) = nullptr;
  status (*device_get_attribute)(int* value, int attribute, device_handle device) = nullptr;
  status (*device_primary_ctx_retain)(context_handle* context, device_handle device) = nullptr;
  status (*device_primary_ctx_release)(device_handle device) = nullptr;
  status (*device_primary_ctx_get_state)(device_handle device, unsigned* flags, int* active) = nullptr;

  status (*ctx_push_current)(context_handle context) = nullptr;
  status (*ctx_pop_current)(context_handle* context) = nullptr;
  status (*ctx_synchronize)() = nullptr;

  status (*pointer_get_attributes)(unsigned count, pointer_attribute* attributes, void** values,
                                   device_address memory) = nullptr;
  status (*pointer_set_attribute)(const void* value, pointer_attribute attribute, device_address memory) = nullptr;
  status (*mem_get_address_range)(device_address* base, std::size_t* bytes, device_address memory) = nullptr;
  status (*mem_alloc)(device_address* memory, std::size_t bytes) = nullptr;
  status (*mem_free)(device_address memory) = nullptr;
  status (*mem_host_register)(void* memory, std::size_t bytes, unsigned flags) = nullptr;
  status (*mem_host_unregister)(void* memory) = nullptr;
  status (*memcpy_async)(device_address to, device_address from, std::size_t bytes, stream_handle stream) = nullptr;

  status (*stream_create)(stream_handle* stream, unsigned flags) = nullptr;
  status (*stream_destroy)(stream_handle stream) = nullptr;
  status (*stream_get_ctx)(stream_handle stream, context_handle* context) = nullptr;
  status (*stream_query)(stream_handle stream) = nullptr;
  status (*stream_synchronize)(stream_handle stream) = nullptr;
  status (*launch_host_func)(stream_handle stream, host_function function, void* user_data) = nullptr;

  status (*event_create)(event_handle* event, unsigned flags) = nullptr;
  status (*event_destroy)(event_handle event) = nullptr;
  status (*event_record)(event_handle event, stream_handle stream) = nullptr;
  status (*event_query)(event_handle event) = nullptr;

  // Null in a driver that lacks them.
  status (*ctx_get_id)(context_handle context, unsigned long long* id) = nullptr;
  status (*flush_gpu_direct_rdma_writes)(int target, int scope) = nullptr;
  status (*mem_get_handle_for_address_range)(void* handle, device_address memory, std::size_t bytes, int type,
                                             unsigned long long flags) = nullptr;
  status (*ipc_get_mem_handle)(ipc_handle* handle, device_address memory) = nullptr;
  status (*ipc_open_mem_handle)(device_address* memory, ipc_handle handle, unsigned flags) = nullptr;
  status (*ipc_close_mem_handle)(device_address memory) = nullptr;

  /// The error of a driver call that returned `code`, with the driver's text: for `attempt` ("copy") on `device`
  /// ("cuda:0"; empty: none). The system's EIO if no errc fits.
  [[nodiscard]] error failure(status code, std::string_view attempt, std::string_view device = {}) const noexcept;
  /// Returns the error of failure() with the code `meaning`.
  [[nodiscard]] error failure_as(errc meaning, status code, std::string_view attempt,
                                 std::string_view device = {}) const noexcept;
};

/// The functions of the library at `path`, loaded by the first call for that path; they stay for the life of the
/// process. From any thread. Throws errc::not_supported if the library or a function that is not optional is missing.
[[nodiscard]] const driver& load_driver(const char* path);

/// Makes a context current for the calling thread; the destructor makes the previous one current again.
class current_context {
 public:
  current_context(const driver& functions, context_handle context) noexcept
      : functions_(functions), code_(functions.ctx_push_current(context)) {}
  /// Makes no context current; code() is `refused`.
  current_context(const driver& functions, status refused) noexcept : functions_(functions), code_(refused) {}
  current_context(const current_context&) = delete;
  current_context& operator=(const current_context&) = delete;
  ~current_context();

  explicit operator bool() const noexcept { return code_ == status::success; }
  /// status::success, or why the context is not current.
  [[nodiscard]] status code() const noexcept { return code_; }

 private:
  const driver& functions_;
  status code_;
};

}  // namespace weft::mr::cuda
