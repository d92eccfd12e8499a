// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

/// @file
/// Memory that peers and threads of this program use at the same time.
///
/// iWARP in user space executes the reads, writes and atomic operations of a peer on the thread of the connection's
/// executor. A thread that uses the same memory before a message shows that the peer is done must use the functions
/// below. Then there is no data race, and the thread sanitizer reports none; with memcpy(3) or an ordinary variable
/// there would be a data race. The functions are not for memory that a local operation sends from or receives into,
/// because nobody else touches such memory before the operation has completed.
///
/// Whole: a unit of 1, 2, 4 or 8 bytes that is aligned to its size and lies within an access is loaded or stored in one
/// piece, by either side. A load finds one stored value, never parts of two. Nothing larger is whole: larger data needs
/// a version or a checksum of its own, like the entries of the example kv.
///
/// Ordered: the units of one access are in no order. Two writes of one connection are in order, and so are two reads. A
/// thread that finds a word of a write with load_shared(word) sees the writes that the peer posted before it. A peer
/// that has read a word of store_shared(word, value) finds in later reads what that thread stored before it.
///
/// Both hold for the peer's writes of at most capabilities().max_whole_write_bytes, and, unless that limit is 0, for
/// the peer's reads of any size. The kernel may place a larger write as it comes from the socket, in any pieces.
/// Neither holds for memory of a file that may become shorter or of a lazy region, because the kernel copies such
/// memory; nor for units whose address is not aligned for the peer, as in a region with `zero_based` at an odd address.
/// But by a key of a file's memory that opens it to atomic operations as well, a peer's write of eight bytes at a
/// multiple of eight is whole to the threads of this side. If the file becomes shorter, or its storage fails, at that
/// very moment, the process may end by SIGBUS, as with atomic operations.
/// With an RDMA device max_whole_write_bytes is 0: no specification says what a device does to a word, though many keep
/// aligned words of eight bytes whole.
///
/// Over iWARP in user space and over shared memory, a peer's atomic operations are atomic with respect to
/// std::atomic_ref<std::uint64_t> of any thread.

namespace weft::mr {

/// The word of eight bytes at `index`, counted in words, of shared memory. Throws errc::out_of_range beyond the
/// memory's end, errc::misaligned if the word's address is not a multiple of eight.
[[nodiscard]] std::uint64_t& shared_word(std::span<std::byte> memory, std::size_t index);

/// Loads the word. The caller then sees what was stored before the value that it finds.
[[nodiscard]] inline std::uint64_t load_shared(const std::uint64_t& word) noexcept {
  // atomic_ref takes no const object before C++26.
  return std::atomic_ref(const_cast<std::uint64_t&>(word)).load(std::memory_order_acquire);
}

/// Stores the word. A thread or peer that finds the value sees what this thread stored before.
inline void store_shared(std::uint64_t& word, std::uint64_t value) noexcept {
  std::atomic_ref(word).store(value, std::memory_order_release);
}

/// Copies shared memory into memory that is the caller's alone. The two must have the same size and must not overlap;
/// neither needs to be aligned. The aligned units of `shared` are whole, and in no order: see above.
void load_shared(std::span<const std::byte> shared, std::span<std::byte> into) noexcept;

/// Copies memory that nobody changes meanwhile into shared memory, in the same way.
void store_shared(std::span<std::byte> shared, std::span<const std::byte> from) noexcept;

}  // namespace weft::mr
