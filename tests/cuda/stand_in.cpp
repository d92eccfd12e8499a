// SPDX-License-Identifier: Apache-2.0
// The functions of the CUDA driver without a GPU, by the names under which weft and tests look them up.
#include "stand_in.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <type_traits>

#include "stand_in_world.hpp"

using weft::mr::cuda::device_handle;
using weft::mr::cuda::driver;
using weft::mr::cuda::ipc_handle;
using weft::mr::cuda::pointer_attribute;
using namespace weft::test;

namespace {

using locked_world = std::unique_lock<std::mutex>;

constexpr std::uint32_t handle_magic = 0x57454654;
constexpr int unknown_device = -2;

/// The contexts that are current for a thread, the last one on top.
struct context_stack {
  std::array<context_handle, 16> contexts{};
  std::size_t count = 0;
};
thread_local context_stack current;

/// What a call needs before it does anything.
enum class needs { nothing, driver, context };
/// Whether a call that is told to fail does what it is for.
enum class effect { only_on_success, always };

struct handle_tag {};

context_handle handle_of(context& one) { return reinterpret_cast<context_handle>(&one); }

/// The context that memory has which is not of the primary one.
context_handle other_context() {
  static handle_tag tag;
  return reinterpret_cast<context_handle>(&tag);
}

int device_of(const world& all, context_handle handle) {
  for (int device = 0; device < most_devices; ++device) {
    if (reinterpret_cast<const context*>(handle) == &all.contexts[static_cast<std::size_t>(device)]) return device;
  }
  return -1;
}

int current_device(const world& all) {
  return current.count == 0 ? -1 : device_of(all, current.contexts[current.count - 1]);
}

context& context_of(world& all, int device) { return all.contexts[static_cast<std::size_t>(device)]; }

status can_call(world& all, needs what) {
  if (what == needs::nothing) return status::success;
  if (all.started_by == 0) return status::not_initialized;
  if (what == needs::driver) return status::success;
  const int device = current_device(all);
  if (device < 0) return status::invalid_context;
  const context& ours = context_of(all, device);
  return ours.active ? ours.failed : status::context_is_destroyed;
}

status injected(world& all, const char* name) {
  ++all.calls;
  const auto found = all.fail_next.find(name);
  if (found != all.fail_next.end()) {
    const status result = found->second;
    all.fail_next.erase(found);
    return result;
  }
  const std::string_view which = name;
  const bool counts = which != "cuCtxPushCurrent_v2" && which != "cuCtxGetId" && which != "cuDevicePrimaryCtxGetState";
  if (!counts || all.fail_nth == 0 || --all.fail_nth > 0) return status::success;
  return all.nth_result;
}

/// One call of the driver: `body` does it, under the lock.
template <class Body>
status call(const char* name, needs what, effect when_failing, Body body) {
  world& all = world::get();
  // A child of a process that uses the driver has a lock that nobody may ever give back.
  const pid_t owner = all.started_by;
  if (owner != 0 && owner != ::getpid()) return status::not_initialized;
  if (in_host_function()) return status::not_permitted;
  locked_world locked(all.lock);
  const status told = injected(all, name);
  if (told != status::success && when_failing == effect::only_on_success) return told;
  const status can = can_call(all, what);
  const bool broken = can != status::success && when_failing == effect::always && what == needs::context &&
                      current_device(all) >= 0 && context_of(all, current_device(all)).active;
  if (can != status::success && !broken) return can;
  const status done = body(all, locked);
  if (told != status::success) return told;
  return can != status::success ? can : done;
}

/// Of a stream or an event.
void crash_if_gone(const void* handle) {
  world& all = world::get();
  if (all.started_by != ::getpid()) return;
  const locked_world locked(all.lock);
  if (!all.gone.contains(reinterpret_cast<std::uintptr_t>(handle))) return;
  std::fputs("the CUDA driver without a GPU: called for a stream or an event whose context is gone\n", stderr);
  std::abort();
}

template <class Body>
status call(const char* name, needs what, Body body) {
  return call(name, what, effect::only_on_success, body);
}

auto find(world& all, stream_handle handle) { return all.find_stream(handle, current_device(all)); }
auto find(world& all, event_handle handle) { return all.find_event(handle); }

/// Of a stream or an event that is there.
template <class Handle, class Body>
status call(const char* name, Handle handle, Body body) {
  crash_if_gone(handle);
  return call(name, needs::context, [&](world& all, locked_world& locked) {
    const auto found = find(all, handle);
    return found != nullptr ? body(all, locked, found) : status::invalid_handle;
  });
}

std::uintptr_t number_of(const void* handle) { return reinterpret_cast<std::uintptr_t>(handle); }

template <class Handle>
Handle new_handle(world& all) {
  return reinterpret_cast<Handle>(all.last_handle += 16);
}

device_address address_of(const void* memory) { return reinterpret_cast<std::uintptr_t>(memory); }

/// What can be asked of an address: as it is, of one that the driver does not know.
struct description {
  context_handle context = nullptr;
  unsigned memory_type = 0;
  unsigned long long buffer_id = 0;
  unsigned is_managed = 0;
  int device = unknown_device;
};

std::optional<description> describe(world& all, device_address where) {
  if (const allocation* const found = all.find(where)) {
    context_handle context = handle_of(context_of(all, found->device));
    if (found->kind == memory_kind::other_context) context = other_context();
    if (found->kind == memory_kind::mapped) context = nullptr;
    const unsigned managed = found->kind == memory_kind::managed ? 1 : 0;
    return description{context, weft::mr::cuda::memory_type_device, found->id, managed, found->device};
  }
  const auto after = all.pinned.upper_bound(where);
  if (after == all.pinned.begin()) return std::nullopt;
  const auto& [begin, range] = *std::prev(after);
  if (where - begin >= range.bytes) return std::nullopt;
  context_handle const context = handle_of(context_of(all, range.device));
  return description{context, weft::mr::cuda::memory_type_host, range.id, 0, range.device};
}

/// False for what can only be set, and is told as 0.
bool write_attribute(const description& what, pointer_attribute wanted, void* value) {
  const auto set = [value](auto content) {
    std::memcpy(value, &content, sizeof content);
    return true;
  };
  switch (wanted) {
    case pointer_attribute::context:
      return set(what.context);
    case pointer_attribute::memory_type:
      return set(what.memory_type);
    case pointer_attribute::buffer_id:
      return set(what.buffer_id);
    case pointer_attribute::is_managed:
      return set(what.is_managed);
    case pointer_attribute::device_ordinal:
      return set(what.device);
    case pointer_attribute::sync_memops:
      break;
  }
  set(0U);
  return false;
}

bool is_copyable(world& all, device_address where, std::size_t bytes) {
  return where != 0 && all.alias(where, bytes) != nullptr;
}

std::string path_of(pid_t pid, int descriptor) {
  return "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(descriptor);
}

std::string name_of_memfd(pid_t pid, int descriptor) {
  std::array<char, 64> name{};
  const ssize_t length = ::readlink(path_of(pid, descriptor).c_str(), name.data(), name.size());
  return {name.data(), length > 0 ? static_cast<std::size_t>(length) : 0};
}

// Where a test sees it; null if it is not of a device.
std::byte* seen_at(world& all, const void* memory, std::size_t bytes) {
  const device_address where = address_of(memory);
  return all.is_device_address(where) ? all.alias(where, bytes) : nullptr;
}

// Another description of the same file, because those of dup(2) share their offset.
int reopen(pid_t pid, int descriptor) { return ::open(path_of(pid, descriptor).c_str(), O_RDWR | O_CLOEXEC); }

std::pair<const char*, const char*> words_of(int code) {
  static const std::map<int, std::pair<const char*, const char*>> known = {
      {0, {"CUDA_SUCCESS", "no error"}},
      {1, {"CUDA_ERROR_INVALID_VALUE", "invalid argument"}},
      {2, {"CUDA_ERROR_OUT_OF_MEMORY", "out of memory"}},
      {3, {"CUDA_ERROR_NOT_INITIALIZED", "initialization error"}},
      {100, {"CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"}},
      {201, {"CUDA_ERROR_INVALID_CONTEXT", "invalid device context"}},
      {400, {"CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"}},
      {600, {"CUDA_ERROR_NOT_READY", "device not ready"}},
      {700, {"CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"}},
      {709, {"CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"}},
      {801, {"CUDA_ERROR_NOT_SUPPORTED", "operation not supported"}},
  };
  const auto found = known.find(code);
  return found != known.end() ? found->second : std::pair<const char*, const char*>();
}

// The world, which nobody else changes while this lives.
class world_alone {
 public:
  [[nodiscard]] world* operator->() const { return &world::get(); }
  [[nodiscard]] world& operator*() const { return world::get(); }

 private:
  const locked_world locked_{world::get().lock};
};

}  // namespace

extern "C" {

status cuInit(unsigned flags) {
  return call("cuInit", needs::nothing, [&](world& all, locked_world&) {
    if (flags != 0) return status::invalid_value;
    if (all.devices == 0) return status::no_device;
    if (all.started_by == 0) all.started_by = ::getpid();
    return status::success;
  });
}

status cuDriverGetVersion(int* version) {
  return call("cuDriverGetVersion", needs::nothing, [&](world& all, locked_world&) {
    *version = all.version;
    return status::success;
  });
}

status cuGetErrorName(status code, const char** name) {
  *name = words_of(static_cast<int>(code)).first;
  return *name != nullptr ? status::success : status::invalid_value;
}

status cuGetErrorString(status code, const char** words) {
  *words = words_of(static_cast<int>(code)).second;
  return *words != nullptr ? status::success : status::invalid_value;
}

status cuDeviceGetCount(int* count) {
  return call("cuDeviceGetCount", needs::driver, [&](world& all, locked_world&) {
    *count = all.devices;
    return status::success;
  });
}

status cuDeviceGet(device_handle* device, int ordinal) {
  return call("cuDeviceGet", needs::driver, [&](world& all, locked_world&) {
    if (ordinal < 0 || ordinal >= all.devices) return status::invalid_device;
    *device = ordinal;
    return status::success;
  });
}

status cuDeviceGetAttribute(int* value, int attribute, device_handle device) {
  return call("cuDeviceGetAttribute", needs::driver, [&](world& all, locked_world&) {
    if (device < 0 || device >= all.devices) return status::invalid_device;
    if (attribute != weft::mr::cuda::attribute_dma_buf_supported) return status::invalid_value;
    *value = all.dma_buf ? 1 : 0;
    return status::success;
  });
}

status cuDevicePrimaryCtxRetain(context_handle* made, device_handle device) {
  return call("cuDevicePrimaryCtxRetain", needs::driver, [&](world& all, locked_world&) {
    if (device < 0 || device >= all.devices) return status::invalid_device;
    context& ours = context_of(all, device);
    if (!ours.active) {
      ours.failed = status::success;
      ours.id = ++all.last_id;
    }
    ours.active = true;
    ++ours.retained;
    *made = handle_of(ours);
    return status::success;
  });
}

status cuDevicePrimaryCtxRelease_v2(device_handle device) {
  return call("cuDevicePrimaryCtxRelease_v2", needs::driver, effect::always, [&](world& all, locked_world&) {
    if (device < 0 || device >= all.devices) return status::invalid_device;
    context& ours = context_of(all, device);
    if (ours.retained == 0) return status::invalid_context;
    if (--ours.retained == 0 && ours.active) all.abandoned += all.clear(device);
    return status::success;
  });
}

status cuDevicePrimaryCtxGetState(device_handle device, unsigned* flags, int* active) {
  return call("cuDevicePrimaryCtxGetState", needs::driver, [&](world& all, locked_world&) {
    if (device < 0 || device >= all.devices) return status::invalid_device;
    *flags = 0;
    *active = context_of(all, device).active ? 1 : 0;
    return status::success;
  });
}

status cuCtxPushCurrent_v2(context_handle context) {
  return call("cuCtxPushCurrent_v2", needs::driver, [&](world& all, locked_world&) {
    if (device_of(all, context) < 0) return status::invalid_context;
    if (current.count == current.contexts.size()) return status::invalid_value;
    current.contexts[current.count++] = context;
    return status::success;
  });
}

status cuCtxPopCurrent_v2(context_handle* context) {
  return call("cuCtxPopCurrent_v2", needs::driver, effect::always, [&](world&, locked_world&) {
    if (current.count == 0) return status::invalid_context;
    *context = current.contexts[--current.count];
    return status::success;
  });
}

status cuCtxGetId(context_handle context, unsigned long long* id) {
  return call("cuCtxGetId", needs::driver, [&](world& all, locked_world&) {
    const int device = device_of(all, context);
    if (device < 0) return status::invalid_context;
    if (!context_of(all, device).active) return status::context_is_destroyed;
    *id = context_of(all, device).id;
    return status::success;
  });
}

status cuCtxGetCurrent(context_handle* context) {
  return call("cuCtxGetCurrent", needs::driver, [&](world&, locked_world&) {
    *context = current.count > 0 ? current.contexts[current.count - 1] : nullptr;
    return status::success;
  });
}

status cuCtxSynchronize() {
  return call("cuCtxSynchronize", needs::context, [&](world& all, locked_world& locked) {
    const int device = current_device(all);
    all.changed.wait(locked, [&] {
      return std::all_of(all.working.begin(), all.working.end(),
                         [device](const auto& one) { return one->device != device || one->idle(); });
    });
    return can_call(all, needs::context);
  });
}

status cuPointerGetAttribute(void* value, pointer_attribute attribute, device_address memory) {
  return call("cuPointerGetAttribute", needs::driver, [&](world& all, locked_world&) {
    const std::optional<description> found = describe(all, memory);
    return found && write_attribute(*found, attribute, value) ? status::success : status::invalid_value;
  });
}

status cuPointerGetAttributes(unsigned count, pointer_attribute* attributes, void** values, device_address memory) {
  return call("cuPointerGetAttributes", needs::driver, [&](world& all, locked_world&) {
    const description found = describe(all, memory).value_or(description());
    for (unsigned number = 0; number < count; ++number) write_attribute(found, attributes[number], values[number]);
    return status::success;
  });
}

status cuPointerSetAttribute(const void* value, pointer_attribute attribute, device_address memory) {
  return call("cuPointerSetAttribute", needs::driver, [&](world& all, locked_world&) {
    allocation* const found = all.find(memory);
    if (found == nullptr || attribute != pointer_attribute::sync_memops) return status::invalid_value;
    if (found->kind == memory_kind::mapped) return status::not_supported;
    found->synchronous = *static_cast<const unsigned*>(value) != 0;
    return status::success;
  });
}

status cuMemGetAddressRange_v2(device_address* base, std::size_t* bytes, device_address memory) {
  return call("cuMemGetAddressRange_v2", needs::context, [&](world& all, locked_world&) {
    const allocation* const found = all.find(memory);
    if (found == nullptr) return status::invalid_value;
    *base = found->base;
    *bytes = found->bytes;
    return status::success;
  });
}

status cuMemAlloc_v2(device_address* memory, std::size_t bytes) {
  return call("cuMemAlloc_v2", needs::context, [&](world& all, locked_world&) {
    if (bytes == 0) return status::invalid_value;
    const allocation* const made = all.make(current_device(all), bytes, memory_kind::plain);
    if (made == nullptr) return status::out_of_memory;
    *memory = made->base;
    return status::success;
  });
}

status cuMemFree_v2(device_address memory) {
  return call("cuMemFree_v2", needs::context, effect::always, [&](world& all, locked_world&) {
    allocation* const found = all.find(memory);
    const bool fits = found != nullptr && found->base == memory && found->kind == memory_kind::plain;
    if (!fits) return status::invalid_value;
    all.remove(*found);
    return status::success;
  });
}

status cuMemHostRegister_v2(void* memory, std::size_t bytes, unsigned /*flags*/) {
  return call("cuMemHostRegister_v2", needs::context, [&](world& all, locked_world&) {
    const device_address begin = address_of(memory);
    if (memory == nullptr || bytes == 0 || all.is_device_address(begin)) return status::invalid_value;
    const bool overlaps = std::any_of(all.pinned.begin(), all.pinned.end(), [&](const auto& one) {
      return one.first < begin + bytes && begin < one.first + one.second.bytes;
    });
    if (overlaps) return status::host_memory_already_registered;
    all.pinned.emplace(begin, pinned_range{current_device(all), bytes, ++all.last_id});
    return status::success;
  });
}

status cuMemHostUnregister(void* memory) {
  return call("cuMemHostUnregister", needs::context, effect::always, [&](world& all, locked_world&) {
    const auto found = all.pinned.find(address_of(memory));
    if (found == all.pinned.end()) return status::host_memory_not_registered;
    // A GPU would go on with pages that the system may have given to somebody else.
    if (all.uses(found->first, found->second.bytes)) all.fail_context(found->second.device, status::illegal_address);
    all.pinned.erase(found);
    return status::success;
  });
}

status cuMemcpyAsync(device_address to, device_address from, std::size_t bytes, stream_handle handle) {
  return call("cuMemcpyAsync", handle, [&](world& all, locked_world&, const auto& stream) {
    if (bytes == 0) return status::success;
    if (!is_copyable(all, to, bytes) || !is_copyable(all, from, bytes)) return status::invalid_value;
    work copy{.to = to, .from = from, .bytes = bytes};
    all.enqueue(stream, std::move(copy));
    return status::success;
  });
}

status cuStreamCreate(stream_handle* made, unsigned /*flags*/) {
  return call("cuStreamCreate", needs::context, [&](world& all, locked_world&) {
    auto one = std::make_shared<stream>();
    one->device = current_device(all);
    all.working.push_back(one);
    *made = new_handle<stream_handle>(all);
    all.streams.emplace(number_of(*made), std::move(one));
    return status::success;
  });
}

status cuStreamDestroy_v2(stream_handle handle) {
  crash_if_gone(handle);
  return call("cuStreamDestroy_v2", needs::context, effect::always, [&](world& all, locked_world&) {
    const auto found = all.streams.find(number_of(handle));
    if (found == all.streams.end()) return status::invalid_handle;
    found->second->destroyed = true;
    all.streams.erase(found);
    return status::success;
  });
}

status cuStreamGetCtx(stream_handle handle, context_handle* context) {
  return call("cuStreamGetCtx", handle, [&](world& all, locked_world&, const auto& found) {
    *context = handle_of(context_of(all, found->device));
    return status::success;
  });
}

status cuStreamQuery(stream_handle handle) {
  return call("cuStreamQuery", handle, [](world&, locked_world&, const auto& found) {
    return found->idle() ? status::success : status::not_ready;
  });
}

status cuStreamSynchronize(stream_handle handle) {
  return call("cuStreamSynchronize", handle, [](world& all, locked_world& locked, const auto& found) {
    all.changed.wait(locked, [&] { return found->idle(); });
    return can_call(all, needs::context);
  });
}

status cuLaunchHostFunc(stream_handle handle, host_function function, void* user_data) {
  return call("cuLaunchHostFunc", handle, [&](world& all, locked_world&, const auto& stream) {
    work later{.function = function, .user_data = user_data};
    all.enqueue(stream, std::move(later));
    return status::success;
  });
}

status cuEventCreate(event_handle* made, unsigned /*flags*/) {
  return call("cuEventCreate", needs::context, [&](world& all, locked_world&) {
    auto one = std::make_shared<event>();
    one->device = current_device(all);
    *made = new_handle<event_handle>(all);
    all.events.emplace(number_of(*made), std::move(one));
    return status::success;
  });
}

status cuEventDestroy_v2(event_handle handle) {
  crash_if_gone(handle);
  return call("cuEventDestroy_v2", needs::context, effect::always, [&](world& all, locked_world&) {
    return all.events.erase(number_of(handle)) == 1 ? status::success : status::invalid_handle;
  });
}

status cuEventRecord(event_handle handle, stream_handle stream) {
  crash_if_gone(handle);
  crash_if_gone(stream);
  return call("cuEventRecord", needs::context, [&](world& all, locked_world&) {
    const auto to = all.find_stream(stream, current_device(all));
    const auto found = all.find_event(handle);
    const bool fits = to != nullptr && found != nullptr && to->device == found->device;
    if (!fits) return status::invalid_handle;
    work later{.event = found, .recorded = ++found->recorded};
    all.enqueue(to, std::move(later));
    return status::success;
  });
}

status cuEventQuery(event_handle handle) {
  return call("cuEventQuery", handle, [](world&, locked_world&, const auto& found) {
    return found->done == found->recorded ? status::success : status::not_ready;
  });
}

status cuEventSynchronize(event_handle handle) {
  return call("cuEventSynchronize", handle, [](world& all, locked_world& locked, const auto& found) {
    const std::uint64_t recorded = found->recorded;
    const auto alive = [&] { return can_call(all, needs::context) == status::success; };
    all.changed.wait(locked, [&] { return found->done >= recorded || !alive(); });
    return can_call(all, needs::context);
  });
}

status cuFlushGPUDirectRDMAWrites(int target, int scope) {
  return call("cuFlushGPUDirectRDMAWrites", needs::context, [&](world&, locked_world&) {
    const bool is_known = target == weft::mr::cuda::flush_current_context && scope == weft::mr::cuda::flush_to_owner;
    return is_known ? status::success : status::invalid_value;
  });
}

status cuMemGetHandleForAddressRange(void* handle, device_address memory, std::size_t bytes, int type,
                                     unsigned long long flags) {
  return call("cuMemGetHandleForAddressRange", needs::context, [&](world& all, locked_world&) {
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    const bool aligned = memory % page == 0 && bytes % page == 0 && bytes > 0;
    if (type != weft::mr::cuda::range_handle_dma_buf || flags != 0 || !aligned) return status::invalid_value;
    if (!all.dma_buf) return status::not_supported;
    // A range may begin before the memory itself, in the first of its pages.
    allocation* found = all.find(memory);
    if (found == nullptr) found = all.find(memory + page - 1);
    const bool whole = found != nullptr && found->kind != memory_kind::managed && memory >= found->pages &&
                       memory - found->pages + bytes <= found->page_bytes;
    if (!whole) return status::invalid_value;
    const int opened = reopen(::getpid(), found->memfd);
    if (opened < 0) return status::out_of_memory;
    ::lseek(opened, static_cast<off_t>(memory - found->pages), SEEK_SET);
    *static_cast<int*>(handle) = opened;
    return status::success;
  });
}

status cuIpcGetMemHandle(ipc_handle* handle, device_address memory) {
  return call("cuIpcGetMemHandle", needs::context, [&](world& all, locked_world&) {
    const allocation* const found = all.find(memory);
    const bool fits = found != nullptr && found->base == memory && found->kind == memory_kind::plain;
    if (!fits) return status::invalid_value;
    handle_content content{.magic = handle_magic,
                           .pid = ::getpid(),
                           .memfd = found->memfd,
                           .device = found->device,
                           .id = found->id,
                           .base_offset = found->base - found->pages,
                           .bytes = found->bytes};
    static_assert(sizeof content <= sizeof handle->bytes);
    std::memcpy(handle->bytes.data(), &content, sizeof content);
    return status::success;
  });
}

status cuIpcOpenMemHandle_v2(device_address* memory, ipc_handle handle, unsigned flags) {
  return call("cuIpcOpenMemHandle_v2", needs::context, [&](world& all, locked_world&) {
    handle_content content;
    std::memcpy(&content, handle.bytes.data(), sizeof content);
    if (flags != weft::mr::cuda::ipc_lazy_enable_peer_access) return status::invalid_value;
    if (content.magic != handle_magic) return status::invalid_handle;
    if (content.pid == ::getpid()) return status::invalid_context;
    for (const auto& [base, one] : all.allocations) {
      if (one->owner != content.pid || one->owner_id != content.id) continue;
      ++one->opened;
      *memory = base;
      return status::success;
    }
    const auto name = "/memfd:weft-stand-in-" + std::to_string(content.id) + " (deleted)";
    if (name_of_memfd(content.pid, content.memfd) != name) return status::map_failed;
    const int memfd = reopen(content.pid, content.memfd);
    if (memfd < 0) return status::map_failed;
    allocation* const made = all.import(content, memfd);
    if (made == nullptr) return status::out_of_memory;
    made->opened = 1;
    *memory = made->base;
    return status::success;
  });
}

status cuIpcCloseMemHandle(device_address memory) {
  return call("cuIpcCloseMemHandle", needs::context, effect::always, [&](world& all, locked_world&) {
    allocation* const found = all.find(memory);
    const bool fits = found != nullptr && found->base == memory && found->kind == memory_kind::imported;
    if (!fits) return status::invalid_value;
    if (--found->opened == 0) all.remove(*found);
    return status::success;
  });
}

void stand_in_seed(std::uint64_t seed) { world_alone()->random.seed(seed); }

void stand_in_hold() {
  world& all = world::get();
  locked_world locked(all.lock);
  all.held = true;
  all.changed.wait(locked, [&] {
    return std::none_of(all.working.begin(), all.working.end(), [](const auto& one) { return one->in_function; });
  });
}

void stand_in_release() {
  const world_alone all;
  all->held = false;
  all->changed.notify_all();
}

std::size_t stand_in_outstanding() { return world_alone()->outstanding(); }

void stand_in_fail_next(const char* function, int result) {
  world_alone()->fail_next[function] = static_cast<status>(result);
}

void stand_in_fail_nth(std::uint64_t n, int result) {
  const world_alone all;
  all->fail_nth = n;
  all->nth_result = static_cast<status>(result);
  if (n == 0) all->fail_next.clear();
}

bool stand_in_has_failed() {
  const world_alone all;
  return all->fail_nth == 0 && all->fail_next.empty();
}

std::uint64_t stand_in_calls() { return world_alone()->calls; }

void stand_in_destroy_context(int device) { world_alone()->clear(device); }

void stand_in_set_driver_version(int version) { world_alone()->version = version; }

void stand_in_set_device_count(int count) { world_alone()->devices = count; }

void stand_in_set_dma_buf(bool supported) { world_alone()->dma_buf = supported; }

bool stand_in_peek(const void* memory, void* to, std::size_t bytes) {
  const world_alone all;
  const std::byte* const from = seen_at(*all, memory, bytes);
  if (from == nullptr) return false;
  std::memcpy(to, from, bytes);
  return true;
}

bool stand_in_poke(void* memory, const void* from, std::size_t bytes) {
  const world_alone all;
  std::byte* const to = seen_at(*all, memory, bytes);
  if (to == nullptr) return false;
  std::memcpy(to, from, bytes);
  return true;
}

bool stand_in_is_synchronous(const void* memory) {
  const world_alone all;
  const allocation* const found = all->find(address_of(memory));
  return found != nullptr && found->synchronous;
}

void* stand_in_allocate(int device, std::size_t bytes, foreign_memory kind) {
  const world_alone all;
  constexpr std::array kinds{memory_kind::managed, memory_kind::other_context, memory_kind::mapped};
  const allocation* const made = all->make(device, bytes, kinds[static_cast<std::size_t>(kind)]);
  return made != nullptr ? reinterpret_cast<void*>(static_cast<std::uintptr_t>(made->base)) : nullptr;
}

void stand_in_free(void* memory) {
  const world_alone all;
  allocation* const found = all->find(address_of(memory));
  if (found != nullptr) all->remove(*found);
}

void stand_in_count(stand_in_counts* result) {
  const world_alone all;
  stand_in_counts& now = *result;
  now = {};
  for (const context& one : all->contexts) now.retained += one.retained;
  for (const auto& [base, one] : all->allocations) {
    now.opened += one->opened;
    if (one->kind != memory_kind::imported) ++now.allocations;
  }
  now.pinned = all->pinned.size();
  now.streams = all->streams.size();
  now.events = all->events.size();
  now.abandoned = all->abandoned;
}
}

// The functions have the types that weft calls them by.
static_assert(std::is_same_v<decltype(&cuPointerGetAttributes), decltype(driver::pointer_get_attributes)>);
static_assert(std::is_same_v<decltype(&cuMemcpyAsync), decltype(driver::memcpy_async)>);
static_assert(std::is_same_v<decltype(&cuIpcOpenMemHandle_v2), decltype(driver::ipc_open_mem_handle)>);
static_assert(
    std::is_same_v<decltype(&cuMemGetHandleForAddressRange), decltype(driver::mem_get_handle_for_address_range)>);
static_assert(std::is_same_v<decltype(&cuFlushGPUDirectRDMAWrites), decltype(driver::flush_gpu_direct_rdma_writes)>);
