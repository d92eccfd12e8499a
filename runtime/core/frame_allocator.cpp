// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/core/frame_allocator.hpp>

namespace weft::detail {
namespace {

// Frees the lists when the thread ends.
struct cache_closer {
  cache_closer() = default;
  cache_closer(const cache_closer&) = delete;
  cache_closer& operator=(const cache_closer&) = delete;
  ~cache_closer() {
    give_back_frames(0);
    frames_of_thread.room = 0;
    frames_of_thread.closed = true;
  }
  void touch() const noexcept {}
};

thread_local cache_closer closer;

}  // namespace

// Frees the largest first, which are the fewest: beside the work of a coroutine with such a frame, malloc costs little.
void give_back_frames(std::size_t keep) noexcept {
  frame_cache& cache = frames_of_thread;
  for (std::size_t index = frame_cache::classes; index-- > 0;) {
    while (cache.lists[index] != nullptr) {
      if (frame_bytes_kept() <= keep) return;
      free_frame_node* const node = cache.lists[index];
      cache.lists[index] = node->next;
      cache.room += frame_cache::size_of(index);
      ::operator delete(node);
    }
  }
}

[[gnu::noinline]] void free_frame_without_room(void* frame, std::size_t index) noexcept {
  frame_cache& cache = frames_of_thread;
  if (cache.closed) return ::operator delete(frame);
  if (cache.opened) {
    give_back_frames(most_frame_bytes_kept / 4 * 3);
  } else {
    cache.opened = true;
    closer.touch();  // registers the thread's destructor
    cache.room = most_frame_bytes_kept;
  }
  free_frame(frame, frame_cache::size_of(index));
}

}  // namespace weft::detail
