// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/result.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

namespace weft::mr {

/// An allocation of a device's memory.
struct device_allocation {
  std::uint64_t id = 0;        ///< unique: a later allocation at the same address has another one
  std::span<std::byte> bytes;  ///< all of it, by the device's address; the processor must not touch it
};

/// A dma-buf of device memory. The receiver must close the descriptor.
struct device_dmabuf {
  int descriptor = -1;       ///< see ibv_reg_dmabuf_mr(3)
  std::uint64_t offset = 0;  ///< where the memory begins in the dma-buf
};

/// A handle by which another process of this machine can open device memory: a value to be sent.
struct device_share {
  std::array<std::byte, 64> handle{};  ///< of the whole allocation, for memory_device::open_share()
  std::uint64_t offset = 0;            ///< where the memory begins in the allocation
};

/// A queue of copies that a device carries out in order, by itself.
///
/// Only one thread at a time may call. These calls block until the device no longer touches memory for queued copies:
/// synchronize(), the destructor, a call with which the stream fails, and a mark() for which there is no memory. copy()
/// may block too, if host memory is not pinned. A copy is done when reached() returns a mark() that was queued behind
/// it, or a later one.
class copy_stream {
 public:
  copy_stream(const copy_stream&) = delete;
  copy_stream& operator=(const copy_stream&) = delete;
  virtual ~copy_stream() = default;

  /// Queues a copy between device and host memory, or within the device. Both ranges must stay valid until a mark()
  /// behind it has been reached. Host memory should be pinned by memory_device::pin(); otherwise the call may block
  /// until the memory is copied.
  [[nodiscard]] virtual result<void> copy(std::byte* to, const std::byte* from, std::size_t bytes) noexcept = 0;
  /// Marks the end of all that is queued so far. The first mark is 1, each further one is 1 more. An error ends the
  /// stream, except errc::no_memory.
  [[nodiscard]] virtual result<std::uint64_t> mark() noexcept = 0;
  /// The last mark that has been reached; 0: none yet. An error means that the stream has failed for good, and that the
  /// device no longer touches memory for anything that was queued.
  [[nodiscard]] virtual result<std::uint64_t> reached() noexcept = 0;
  /// Adds 1 to `event` (eventfd(2)) when all that is queued now is done. A stream that fails may never do so. False if
  /// the notification cannot be arranged.
  [[nodiscard]] virtual bool notify(int event) noexcept = 0;
  /// Blocks until the device has done, or given up, all that is queued.
  virtual void synchronize() noexcept = 0;

 protected:
  copy_stream() = default;
};

class device_memory;

/// A device with memory of its own, which the processor must not touch: a GPU. registration_options::device names the
/// device whose memory is registered.
///
/// The calls are thread-safe. They may block as long as the driver does, so call them on workers unless their comment
/// says otherwise. Regions keep their device alive. open_cuda() (mr/cuda.hpp) opens an NVIDIA GPU; a class for another
/// kind of device that derives from this one works with all of weft.
class memory_device : public std::enable_shared_from_this<memory_device> {
 public:
  memory_device(const memory_device&) = delete;
  memory_device& operator=(const memory_device&) = delete;
  virtual ~memory_device() = default;

  /// The device's name, for errors: "cuda:0".
  [[nodiscard]] virtual std::string_view name() const noexcept = 0;

  /// The allocation that `memory` lies in. Throws errc::invalid_argument for memory that is not a device's, or not in
  /// one allocation; errc::wrong_device for memory of another device or of another context; errc::closed if the
  /// device's context is gone. Called on executors too, so it must not wait for the device.
  [[nodiscard]] virtual device_allocation find(std::span<const std::byte> memory) = 0;

  /// A queue for copies to and from the device. Throws weft::error.
  [[nodiscard]] virtual std::unique_ptr<copy_stream> open_stream() = 0;
  /// Wraps a queue of the program's own, given by its native handle (a CUstream; null is the context's default stream).
  /// The program keeps the queue: the returned object does not destroy it, copy() is not called, synchronize() and the
  /// destructor do not wait, and the destructor does not use the queue, which may be gone. notify() must not need
  /// `event` to stay open. Called on executors too, so it must not wait for the device. Throws weft::error;
  /// errc::wrong_device for a queue of another device or context.
  [[nodiscard]] virtual std::unique_ptr<copy_stream> borrow_stream(void* native) = 0;

  /// Allocates memory of the device. Throws weft::error: errc::no_memory if there is not enough.
  [[nodiscard]] device_memory allocate(std::size_t bytes);

  /// Pins host memory, so that the device copies to and from it while the caller goes on. False, and nothing happens,
  /// if somebody else has pinned it already. Throws weft::error.
  [[nodiscard]] virtual bool pin(std::span<std::byte> host) = 0;
  /// Undoes a pin() that returned true. No copy may be using the memory.
  virtual void unpin(std::span<std::byte> host) noexcept = 0;

  /// Exports a dma-buf of whole pages around `memory`, for RDMA devices that reach this one. Throws errc::not_supported
  /// if the driver or the device has no dma-bufs, or not for this memory, and the errors of find().
  [[nodiscard]] virtual device_dmabuf export_dmabuf(std::span<std::byte> memory) = 0;

  /// Makes writes of an RDMA device visible to kernels that are running already. Call it after a flush, or a message
  /// behind the writes, has completed. Kernels launched later see these writes anyway; what weft has copied is visible
  /// to all kernels. Throws weft::error, errc::not_supported if the device cannot do this. See
  /// cuFlushGPUDirectRDMAWrites.
  virtual void make_writes_visible() = 0;

  /// Lets another process of this machine open the allocation around `memory`. Throws errc::not_supported for memory
  /// that cannot be shared, and the errors of find().
  [[nodiscard]] virtual device_share share(std::span<std::byte> memory) = 0;
  /// Opens the allocation behind a handle of another process, and returns where the shared memory begins in it. Throws
  /// errc::wrong_device for memory of another device, errc::invalid_argument for a handle that cannot be opened and if
  /// the memory has fewer than `bytes` bytes, and other weft::errors.
  [[nodiscard]] virtual std::byte* open_share(const device_share& shared, std::size_t bytes) = 0;
  /// Closes memory that open_share() has returned.
  virtual void close_share(std::byte* memory) noexcept = 0;

 protected:
  memory_device() = default;

 private:
  friend class device_memory;
  [[nodiscard]] virtual std::byte* do_allocate(std::size_t bytes) = 0;
  virtual void do_free(std::byte* memory) noexcept = 0;
};

/// An allocation of device memory that the program owns. Move-only; its destructor frees the memory, which may block. A
/// region may own it: domain::register_memory().
class device_memory {
 public:
  device_memory() noexcept = default;
  device_memory(device_memory&& other) noexcept
      : device_(std::move(other.device_)), bytes_(std::exchange(other.bytes_, {})) {}
  device_memory& operator=(device_memory&& other) noexcept {
    device_memory taken(std::move(other));
    std::swap(device_, taken.device_);
    std::swap(bytes_, taken.bytes_);
    return *this;
  }
  ~device_memory() {
    if (device_ != nullptr) device_->do_free(bytes_.data());
  }

  /// The first byte, as a device address. The processor must not touch it.
  [[nodiscard]] std::byte* data() const noexcept { return bytes_.data(); }
  /// In bytes.
  [[nodiscard]] std::size_t size() const noexcept { return bytes_.size(); }
  /// The first byte, as for a range.
  [[nodiscard]] std::byte* begin() const noexcept { return data(); }
  /// One past the last byte.
  [[nodiscard]] std::byte* end() const noexcept { return data() + size(); }
  /// All of it. The processor must not touch it.
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return bytes_; }
  /// The device that the memory belongs to; null if the object is empty: default-constructed or moved from.
  [[nodiscard]] memory_device* device() const noexcept { return device_.get(); }

 private:
  friend class memory_device;
  device_memory(std::shared_ptr<memory_device> device, std::span<std::byte> bytes) noexcept
      : device_(std::move(device)), bytes_(bytes) {}

  std::shared_ptr<memory_device> device_;
  std::span<std::byte> bytes_;
};

inline device_memory memory_device::allocate(std::size_t bytes) {
  std::byte* const made = do_allocate(bytes);
  return {shared_from_this(), {made, bytes}};
}

}  // namespace weft::mr
