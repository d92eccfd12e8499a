// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/device_memory.hpp>
#include <weft/runtime/task.hpp>

#include <cstddef>
#include <memory>

namespace weft::mr {

/// Copies between device and host memory, or within the device, and resumes when the copy is done. The copy runs in a
/// stream of weft's own, so the executor goes on meanwhile if the host memory is pinned (memory_device::pin()). Both
/// ranges must stay valid until the copy is done. A stop does not interrupt the copy, and destroying the task meanwhile
/// blocks until the device is done. Throws errc::invalid_argument if `device` is null or neither range is its memory,
/// the errors of memory_device::find(), weft::error if the device refuses, and errc::canceled, without copying, if the
/// task was stopped before. See cuMemcpyAsync of the CUDA driver API.
task<> device_copy(std::shared_ptr<memory_device> device, std::byte* to, const std::byte* from, std::size_t bytes);

/// Resumes when the device has done all that has been queued so far in a stream of the program's own, such as the
/// kernels that fill a buffer to be sent. `stream` is the native handle, a CUstream; the stream must live until the
/// task has ended or was destroyed. See cuEventRecord. A stop does not interrupt the wait; a stop that came before the
/// wait throws errc::canceled. Throws errc::invalid_argument if `device` is null, the errors of
/// memory_device::open_stream() and memory_device::borrow_stream(), and weft::error if the device fails.
task<> stream_finished(std::shared_ptr<memory_device> device, void* stream);

}  // namespace weft::mr
