// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/device_memory.hpp>
#include <weft/runtime/task.hpp>

#include <cstddef>
#include <memory>

namespace weft::mr {

/// Copies between memory of a device and host memory, or within the device, and resumes when the bytes are there. The
/// executor goes on meanwhile, if the host memory is pinned (memory_device::pin()): one of the device's own streams
/// does it. Both ranges stay until then; a stop is not heard, and a task that is destroyed meanwhile blocks until the
/// device is done. Throws weft::error for what the device refuses, and errc::canceled in a task that was told to stop
/// before: then nothing is copied. See cuMemcpyAsync of the CUDA driver API.
[[nodiscard]] task<> device_copy(std::shared_ptr<memory_device> device, std::byte* to, const std::byte* from,
                                 std::size_t bytes);

/// Resumes when the device has done all that the program has put into a stream of its own so far, such as the kernels
/// that fill what is to be sent. `stream` is the native handle, a CUstream; it must live until then. See
/// cuEventRecord. A stop is not heard, and one that came before is errc::canceled; a task that is destroyed meanwhile
/// leaves at once. A worker waits for the stream to be empty before what was borrowed of it ends, and executor::run()
/// for that.
[[nodiscard]] task<> stream_finished(std::shared_ptr<memory_device> device, void* stream);

}  // namespace weft::mr
