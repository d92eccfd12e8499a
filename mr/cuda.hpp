// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/device_memory.hpp>

#include <memory>

namespace weft::mr {

/// Options for open_cuda().
struct cuda_options {
  int device = 0;                        ///< the GPU's ordinal for cuDeviceGet(), which heeds CUDA_VISIBLE_DEVICES
  const char* library = "libcuda.so.1";  ///< the driver's library, for dlopen(3); it is loaded once and never closed
};

/// Opens an NVIDIA GPU by the CUDA driver API. Its name() is "cuda:" and the ordinal.
///
/// The device uses the primary context of the GPU, as the CUDA runtime API does, so that memory of cudaMalloc() is its
/// memory. It retains the context (cuDevicePrimaryCtxRetain) and releases it when the last owner of the device, or of
/// one of its streams, lets go. A program that resets the context meanwhile (cudaDeviceReset, cuDevicePrimaryCtxReset)
/// ends the device: its calls then throw errc::closed, and its streams and memory may be destroyed at any time. Open
/// the device anew for the next context. A driver before CUDA 12 cannot tell the next context from the old one: there,
/// nothing of the old device may be used or destroyed once the next context exists. No call changes the context that is
/// current for the calling thread.
///
/// Call it on any thread, but not on an executor: it loads a library, and may take seconds where it creates the
/// context. A child that was forked after the first call must call execve(2) before it opens a device, because the
/// driver does not survive a fork.
///
/// Throws errc::not_supported if the driver's library is missing, older than CUDA 11.4 (cuDriverGetVersion), lacks a
/// function or does not start; errc::invalid_argument if no device has that ordinal; errc::no_memory if the context
/// does not fit; other failures have the driver's text, from cuGetErrorString(). With a driver that lacks the cuIpc
/// functions, cuMemGetHandleForAddressRange (CUDA 11.7) or cuFlushGPUDirectRDMAWrites, only the calls that need them
/// fail.
[[nodiscard]] std::shared_ptr<memory_device> open_cuda(const cuda_options& options = {});

}  // namespace weft::mr
