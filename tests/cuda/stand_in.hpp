// SPDX-License-Identifier: Apache-2.0
// The controls of libstand-in-cuda.so, a CUDA driver without a GPU. Programs load it as they load the real one; tests
// get at the controls by weft::test::stand_in, in stand_in_control.hpp.
//
// It has two devices. Their memory faults when the processor touches it. Copies happen late: a thread carries out what
// streams hold, in order within a stream and at random across streams, and moves the bytes only then. It is as harsh as
// the manual of the driver allows: host memory that is not pinned is copied as late as pinned memory, memory is freed
// at once though copies use it, and the next allocation gets the same address.
#pragma once

#include "kit/standard.hpp"

namespace weft::test {

/// Kinds of device memory that the program can have from elsewhere.
enum class foreign_memory : int {
  managed,        // as of cuMemAllocManaged()
  other_context,  // of a context that is not the primary one
  mapped,         // as of cuMemCreate() and cuMemMap(): it belongs to no context and has no IPC handle
};

/// What the driver holds for the program, over all devices.
struct stand_in_counts {
  std::size_t retained = 0;     ///< of primary contexts
  std::size_t allocations = 0;  ///< without those of IPC handles
  std::size_t opened = 0;       ///< IPC handles, as often as they were opened
  std::size_t pinned = 0;       ///< ranges of host memory
  std::size_t streams = 0;
  std::size_t events = 0;
  std::size_t abandoned = 0;  ///< how many of these, ever, went with the last release of their context

  bool operator==(const stand_in_counts&) const = default;
};

}  // namespace weft::test

extern "C" {

/// From now on, delays and the order across streams follow from `seed`.
void stand_in_seed(std::uint64_t seed);
/// Until stand_in_release(), nothing that streams hold is carried out.
void stand_in_hold();
void stand_in_release();
/// How much streams hold: copies, events and host functions.
std::size_t stand_in_outstanding();

/// The next call of the function of that name ("cuMemcpyAsync") yields `result`, and has no effect. A function that
/// gives something back does so nevertheless, because the driver reports the error of an earlier copy there.
void stand_in_fail_next(const char* function, int result);
/// The n-th call from now on of any function, likewise; 0: none, and none of stand_in_fail_next() either.
/// cuCtxPushCurrent, cuCtxGetId and cuDevicePrimaryCtxGetState do not count, because they fail only where the context
/// is gone for good, nor do the functions for words.
void stand_in_fail_nth(std::uint64_t n, int result);
/// Whether no call is left that is to fail.
bool stand_in_has_failed();
/// How many calls there have been, without those for words.
std::uint64_t stand_in_calls();

/// Does as cuDevicePrimaryCtxReset(): all that the context has is gone, and calls yield CUDA_ERROR_CONTEXT_IS_DESTROYED
/// until somebody retains the context anew, which then has the same handle and another id. A call for a stream or an
/// event of before ends the program, because the real driver crashes in cuStreamDestroy().
void stand_in_destroy_context(int device);
void stand_in_set_driver_version(int version);
void stand_in_set_device_count(int count);
/// Whether the devices have dma-bufs. A dma-buf is a memfd, and its file offset (lseek(2)) is where it begins there.
void stand_in_set_dma_buf(bool supported);

/// Copies bytes of device memory past all streams. False if they are not all in one allocation.
bool stand_in_peek(const void* memory, void* to, std::size_t bytes);
bool stand_in_poke(void* memory, const void* from, std::size_t bytes);
/// Whether CU_POINTER_ATTRIBUTE_SYNC_MEMOPS is set for the memory.
bool stand_in_is_synchronous(const void* memory);
void* stand_in_allocate(int device, std::size_t bytes, weft::test::foreign_memory kind);
void stand_in_free(void* memory);
void stand_in_count(weft::test::stand_in_counts* now);
}
