// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/cuda/cuda_device.hpp>
#include <weft/mr/cuda/cuda_stream.hpp>
#include <weft/mr/system/page.hpp>

#include <fmt/core.h>

#include <fcntl.h>

#include <cassert>
#include <cstdint>

namespace weft::mr::cuda {
namespace {

device_address address_of(const void* memory) noexcept { return reinterpret_cast<std::uintptr_t>(memory); }

std::byte* pointer_to(device_address memory) noexcept {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the driver's addresses are integers
  return reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(memory));
}

std::string at(std::string_view attempt, std::span<const std::byte> memory) {
  return fmt::format("{} {} bytes at {}", attempt, memory.size(), static_cast<const void*>(memory.data()));
}

/// A handle of another process that has been opened. The destructor closes it, unless keep() was called.
class opened_handle {
 public:
  opened_handle(const primary_context& context, const device_share& shared, std::string_view attempt)
      : driver_(context.functions()) {
    const status code = driver_.ipc_open_mem_handle(&base_, {shared.handle}, ipc_lazy_enable_peer_access);
    if (code == status::success) return;
    // The driver answers invalid_context for a handle of this very process.
    const bool bad = code == status::invalid_context || code == status::invalid_handle || code == status::map_failed;
    throw bad ? context.failure_as(errc::invalid_argument, code, attempt) : context.failure(code, attempt);
  }
  opened_handle(const opened_handle&) = delete;
  opened_handle& operator=(const opened_handle&) = delete;
  ~opened_handle() {
    if (!kept_) static_cast<void>(driver_.ipc_close_mem_handle(base_));
  }

  [[nodiscard]] device_address base() const noexcept { return base_; }
  void keep() noexcept { kept_ = true; }

 private:
  const driver& driver_;
  device_address base_ = 0;
  bool kept_ = false;
};

}  // namespace

/// The driver's answers about an address. For host memory that the driver does not know, the answers name no device.
struct cuda_device::attributes {
  context_handle context = nullptr;
  unsigned memory_type = 0;
  unsigned long long buffer_id = 0;
  unsigned managed = 0;
  int ordinal = -1;
};

cuda_device::cuda_device(const driver& functions, int ordinal)
    : driver_(functions), context_(std::make_shared<primary_context>(functions, ordinal)) {}

cuda_device::~cuda_device() { assert(opened_.empty()); }

device_allocation cuda_device::find(std::span<const std::byte> memory) {
  const std::string attempt = at("find", memory);
  const current_context here = context_->enter();
  context_->check(here.code(), attempt);
  const attributes found = attributes_of(memory.data(), attempt);
  if (found.managed != 0) {
    context_->refuse(errc::invalid_argument, attempt,
                     "it is managed memory, which moves between the GPU and the host; take memory of cudaMalloc()");
  }
  if (found.memory_type != memory_type_device) {
    context_->refuse(errc::invalid_argument, attempt, "it is not memory of a device, or has been freed");
  }
  if (found.ordinal != context_->ordinal()) {
    context_->refuse(errc::wrong_device, attempt, fmt::format("it is memory of cuda:{}", found.ordinal));
  }
  if (found.context != nullptr && found.context != context_->handle()) {
    context_->refuse(errc::wrong_device, attempt,
                     "it belongs to another context of this GPU; weft uses the primary one, as the CUDA runtime does");
  }
  const auto around = allocation_around(memory.data(), attempt);
  const std::size_t offset = address_of(memory.data()) - address_of(around.data());
  if (memory.size() > around.size() - offset) {
    context_->refuse(errc::invalid_argument, attempt,
                     fmt::format("its allocation ends {} bytes after", around.size() - offset));
  }
  return {.id = found.buffer_id, .bytes = around};
}

std::unique_ptr<copy_stream> cuda_device::open_stream() { return std::make_unique<cuda_stream>(context_); }

std::unique_ptr<copy_stream> cuda_device::borrow_stream(void* native) {
  return std::make_unique<cuda_stream>(context_, static_cast<stream_handle>(native));
}

bool cuda_device::pin(std::span<std::byte> host) {
  const std::string attempt = at("pin", host);
  const current_context here = context_->enter();
  context_->check(here.code(), attempt);
  // Portable: pinned for the contexts of all devices, which then need no pin() of their own.
  const status code = driver_.mem_host_register(host.data(), host.size(), host_register_portable);
  if (code == status::host_memory_already_registered) return false;
  context_->check(code, attempt);
  return true;
}

void cuda_device::unpin(std::span<std::byte> host) noexcept {
  const current_context here = context_->enter();
  if (here) static_cast<void>(driver_.mem_host_unregister(host.data()));
}

void cuda_device::make_writes_visible() {
  const std::string attempt = "make writes of RDMA devices visible";
  if (driver_.flush_gpu_direct_rdma_writes == nullptr) {
    context_->refuse(errc::not_supported, attempt, "the driver has no cuFlushGPUDirectRDMAWrites; update it");
  }
  const current_context here = context_->enter();
  context_->check(here.code(), attempt);
  context_->check(driver_.flush_gpu_direct_rdma_writes(flush_current_context, flush_to_owner), attempt);
}

device_dmabuf cuda_device::export_dmabuf(std::span<std::byte> memory) {
  const std::string attempt = at("export a dma-buf of", memory);
  if (driver_.mem_get_handle_for_address_range == nullptr) {
    context_->refuse(errc::not_supported, attempt, "the driver is older than CUDA 11.7; update it");
  }
  static_cast<void>(find(memory));
  const current_context here = context_->enter();
  context_->check(here.code(), attempt);
  int supported = 0;
  const status asked = driver_.device_get_attribute(&supported, attribute_dma_buf_supported, context_->device());
  if (asked == status::success && supported == 0) {
    context_->refuse(errc::not_supported, attempt,
                     "the GPU has no dma-bufs here; they need NVIDIA's open kernel modules");
  }
  make_copies_synchronous(address_of(memory.data()));

  const std::size_t page = detail::page_bytes();
  const device_address begin = address_of(memory.data()) / page * page;
  const device_address end = (address_of(memory.data()) + memory.size() + page - 1) / page * page;
  int descriptor = -1;
  const status code =
      driver_.mem_get_handle_for_address_range(&descriptor, begin, end - begin, range_handle_dma_buf, 0);
  if (code == status::invalid_value) throw context_->failure_as(errc::not_supported, code, attempt);
  context_->check(code, attempt);
  static_cast<void>(::fcntl(descriptor, F_SETFD, FD_CLOEXEC));
  return {.descriptor = descriptor, .offset = address_of(memory.data()) - begin};
}

device_share cuda_device::share(std::span<std::byte> memory) {
  const std::string attempt = at("share", memory);
  if (driver_.ipc_get_mem_handle == nullptr) {
    context_->refuse(errc::not_supported, attempt, "the driver has no cuIpcGetMemHandle");
  }
  const auto around = find(memory).bytes;
  const current_context here = context_->enter();
  context_->check(here.code(), attempt);
  ipc_handle handle;
  const status code = driver_.ipc_get_mem_handle(&handle, address_of(around.data()));
  // The driver's answers for memory of cuMemCreate(), of a memory pool, or of another process.
  const bool unfit = code == status::invalid_value || code == status::invalid_handle || code == status::map_failed;
  if (unfit) throw context_->failure_as(errc::not_supported, code, attempt);
  context_->check(code, attempt);
  return {.handle = handle.bytes, .offset = address_of(memory.data()) - address_of(around.data())};
}

std::byte* cuda_device::open_share(const device_share& shared, std::size_t bytes) {
  const std::string attempt = fmt::format("open {} bytes that another process shares", bytes);
  if (driver_.ipc_open_mem_handle == nullptr || driver_.ipc_close_mem_handle == nullptr) {
    context_->refuse(errc::not_supported, attempt, "the driver has no cuIpcOpenMemHandle");
  }
  const current_context here = context_->enter();
  context_->check(here.code(), attempt);
  opened_handle opened(*context_, shared, attempt);
  const attributes found = attributes_of(pointer_to(opened.base()), attempt);
  if (found.ordinal != context_->ordinal()) {
    context_->refuse(errc::wrong_device, attempt, fmt::format("it is memory of cuda:{}", found.ordinal));
  }
  // Checked, because the offset comes from the other process.
  const auto around = allocation_around(pointer_to(opened.base()), attempt);
  if (shared.offset > around.size() || bytes > around.size() - shared.offset) {
    context_->refuse(errc::invalid_argument, attempt,
                     fmt::format("the allocation has {} bytes, and they would begin {} bytes into it", around.size(),
                                 shared.offset));
  }
  std::byte* const memory = around.data() + shared.offset;
  const std::lock_guard locked(opened_lock_);
  opened_.emplace(memory, opened.base());
  opened.keep();
  return memory;
}

void cuda_device::close_share(std::byte* memory) noexcept {
  device_address base = 0;
  {
    const std::lock_guard locked(opened_lock_);
    const auto found = opened_.find(memory);
    assert(found != opened_.end());
    if (found == opened_.end()) return;
    base = found->second;
    opened_.erase(found);
  }
  const current_context here = context_->enter();
  if (here) static_cast<void>(driver_.ipc_close_mem_handle(base));
}

std::byte* cuda_device::do_allocate(std::size_t bytes) {
  const std::string attempt = fmt::format("allocate {} bytes", bytes);
  const current_context here = context_->enter();
  context_->check(here.code(), attempt);
  device_address made = 0;
  context_->check(driver_.mem_alloc(&made, bytes), attempt);
  return pointer_to(made);
}

void cuda_device::do_free(std::byte* memory) noexcept {
  const current_context here = context_->enter();
  if (here) static_cast<void>(driver_.mem_free(address_of(memory)));
}

auto cuda_device::attributes_of(const void* memory, std::string_view attempt) const -> attributes {
  attributes found;
  std::array wanted{pointer_attribute::context, pointer_attribute::memory_type, pointer_attribute::buffer_id,
                    pointer_attribute::is_managed, pointer_attribute::device_ordinal};
  std::array<void*, wanted.size()> places{&found.context, &found.memory_type, &found.buffer_id, &found.managed,
                                          &found.ordinal};
  const status code = driver_.pointer_get_attributes(static_cast<unsigned>(wanted.size()), wanted.data(), places.data(),
                                                     address_of(memory));
  if (code == status::invalid_value || code == status::invalid_context) return {};  // not the driver's memory
  context_->check(code, attempt);
  return found;
}

std::span<std::byte> cuda_device::allocation_around(const void* memory, std::string_view attempt) const {
  device_address base = 0;
  std::size_t bytes = 0;
  const status code = driver_.mem_get_address_range(&base, &bytes, address_of(memory));
  if (code == status::invalid_value || code == status::not_found) {
    context_->refuse(errc::invalid_argument, attempt, "no allocation is there");
  }
  context_->check(code, attempt);
  return {pointer_to(base), bytes};
}

// A copy or fill that the program takes for synchronous may return before the GPU has written its memory, as copies
// within one GPU do. An RDMA device would then send the old bytes. With this attribute such calls wait:
// "Synchronization and Memory Ordering" in NVIDIA's GPUDirect RDMA manual. Memory of cuMemCreate() and of pools does
// not have the attribute.
void cuda_device::make_copies_synchronous(device_address memory) const {
  constexpr unsigned on = 1;
  const status code = driver_.pointer_set_attribute(&on, pointer_attribute::sync_memops, memory);
  if (code == status::not_supported || code == status::invalid_value) return;
  context_->check(code, "make copies synchronous");
}

}  // namespace weft::mr::cuda
