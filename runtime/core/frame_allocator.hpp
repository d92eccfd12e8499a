// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/system/sanitized.hpp>

#include <array>
#include <cstddef>
#include <new>

// Memory for coroutine frames: free lists per thread and size class, without locks or atomics. A frame that is freed on
// another thread stays with that thread.
namespace weft::detail {

/// Sanitizer builds use the heap directly, so that the use of a dead frame is detected.
inline constexpr bool recycles_frames = !is_sanitized;

/// The most that a thread keeps of the frames that it has freed, in bytes; beyond it a quarter goes back to the heap.
inline constexpr std::size_t most_frame_bytes_kept = std::size_t{16} << 20;
/// The most that a thread keeps once its executor has been idle for a while, in bytes.
inline constexpr std::size_t frame_bytes_kept_when_idle = std::size_t{1} << 20;

/// Gives frames back to the heap until this thread keeps at most `keep` bytes of them.
void give_back_frames(std::size_t keep) noexcept;

struct free_frame_node {
  free_frame_node* next;
};

/// The free lists of a thread. Trivially destructible, so that frames freed by other thread_local destructors find it.
struct frame_cache {
  static constexpr std::size_t granule = 64;
  static constexpr std::size_t classes = 128;  // frames up to 8 KiB; larger ones are rare and go to the heap

  [[nodiscard]] static constexpr std::size_t class_of(std::size_t bytes) noexcept {
    return (bytes + granule - 1) / granule - 1;
  }
  [[nodiscard]] static constexpr std::size_t size_of(std::size_t index) noexcept { return (index + 1) * granule; }

  std::array<free_frame_node*, classes> lists;
  std::size_t room;  // bytes it may still keep; 0 before the thread's destructor is registered, and after it has run
  bool opened;
  bool closed;
};

/// Visible, so that libweft.so and a program compiled with -fvisibility=hidden share it.
[[gnu::visibility("default")]] inline constinit thread_local frame_cache frames_of_thread{};

/// How many bytes of freed frames this thread keeps.
[[nodiscard]] inline std::size_t frame_bytes_kept() noexcept {
  const frame_cache& cache = frames_of_thread;
  return cache.opened && !cache.closed ? most_frame_bytes_kept - cache.room : 0;
}

/// free_frame() for a cache without room: one that is full, that has not been opened yet, or that was closed when the
/// thread ended.
void free_frame_without_room(void* frame, std::size_t index) noexcept;

// Inline, because the compiler knows the size of a frame, so only a few instructions remain.

[[nodiscard]] inline void* allocate_frame(std::size_t bytes) {
  const std::size_t index = frame_cache::class_of(bytes);
  if (!recycles_frames || index >= frame_cache::classes) return ::operator new(bytes);
  frame_cache& cache = frames_of_thread;
  free_frame_node* const node = cache.lists[index];
  if (node == nullptr) return ::operator new(frame_cache::size_of(index));
  cache.lists[index] = node->next;
  cache.room += frame_cache::size_of(index);
  return node;
}

inline void free_frame(void* frame, std::size_t bytes) noexcept {
  const std::size_t index = frame_cache::class_of(bytes);
  if (!recycles_frames || index >= frame_cache::classes) return ::operator delete(frame);
  frame_cache& cache = frames_of_thread;
  if (cache.room < frame_cache::size_of(index)) return free_frame_without_room(frame, index);
  cache.lists[index] = ::new (frame) free_frame_node{cache.lists[index]};
  cache.room -= frame_cache::size_of(index);
}

}  // namespace weft::detail
