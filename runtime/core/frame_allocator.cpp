// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/core/frame_allocator.hpp>

#include <array>
#include <new>

namespace weft::detail {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool recycle = false;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
constexpr bool recycle = false;
#else
constexpr bool recycle = true;
#endif
#else
constexpr bool recycle = true;
#endif

constexpr std::size_t granule = 64;
constexpr std::size_t classes = 128;  // frames up to 8 KiB; larger ones are rare and go to the heap
constexpr std::size_t kept_per_class = 4096;

struct free_frame_node {
  free_frame_node* next;
};

struct free_list {
  free_frame_node* first = nullptr;
  std::size_t room = 0;  // how many more it may keep; none before the thread's destructor is registered, nor after it
};

// Trivially destructible, so that frames freed by other thread_local destructors still find it.
struct frame_cache {
  std::array<free_list, classes> lists;
  bool opened;
  bool closed;
};

constinit thread_local frame_cache cache{};

// Gives the lists back when the thread ends.
struct cache_closer {
  cache_closer() = default;
  cache_closer(const cache_closer&) = delete;
  cache_closer& operator=(const cache_closer&) = delete;
  ~cache_closer() {
    cache.closed = true;
    for (free_list& list : cache.lists) {
      while (list.first != nullptr) {
        free_frame_node* const node = list.first;
        list.first = node->next;
        ::operator delete(node);
      }
      list.room = 0;
    }
  }
  void touch() const noexcept {}
};

thread_local cache_closer closer;

// The list has no room: it is full, or this is the thread's first frame, or one after its destructors.
[[gnu::noinline]] void free_without_room(void* frame, free_list& list) noexcept {
  if (cache.opened || cache.closed) return ::operator delete(frame);
  cache.opened = true;
  closer.touch();  // registers the thread's destructor
  for (free_list& each : cache.lists) each.room = kept_per_class;
  list.first = ::new (frame) free_frame_node{list.first};
  --list.room;
}

constexpr std::size_t class_of(std::size_t bytes) noexcept { return (bytes + granule - 1) / granule - 1; }

}  // namespace

void* allocate_frame(std::size_t bytes) {
  const std::size_t index = class_of(bytes);
  if (!recycle || index >= classes) return ::operator new(bytes);
  free_list& list = cache.lists[index];
  if (list.first == nullptr) return ::operator new((index + 1) * granule);
  free_frame_node* const node = list.first;
  list.first = node->next;
  ++list.room;
  return node;
}

void free_frame(void* frame, std::size_t bytes) noexcept {
  const std::size_t index = class_of(bytes);
  if (!recycle || index >= classes) return ::operator delete(frame);
  free_list& list = cache.lists[index];
  if (list.room == 0) return free_without_room(frame, list);
  list.first = ::new (frame) free_frame_node{list.first};
  --list.room;
}

}  // namespace weft::detail
