// SPDX-License-Identifier: Apache-2.0
#include "stand_in_world.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>

namespace weft::test {
namespace {

constexpr std::size_t space_bytes = std::size_t{8} << 30;
constexpr std::size_t small_bytes = std::size_t{1} << 20;
constexpr std::size_t largest_bytes = std::size_t{1} << 30;
// The driver cuts small allocations out of larger blocks, so that they begin anywhere in a page.
constexpr std::size_t offset_of_small = 512;
constexpr std::size_t copied_at_once = 4096;
constexpr unsigned most_delay = 5;

thread_local bool runs_host_function = false;

std::size_t whole_pages(std::size_t bytes) noexcept {
  static const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

void* pages_at(device_address where) noexcept { return reinterpret_cast<void*>(static_cast<std::uintptr_t>(where)); }

}  // namespace

bool in_host_function() noexcept { return runs_host_function; }

// Never destroyed: its thread runs until the process ends.
world& world::get() {
  static world& all = *new world;
  return all;
}

world::world() {
  for (space& one : spaces_) {
    void* const reserved = ::mmap(nullptr, space_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reserved == MAP_FAILED) std::abort();
    one.begin = reinterpret_cast<std::uintptr_t>(reserved);
    one.next = one.begin;
  }
}

device_address world::take_pages(int device, std::size_t bytes) {
  space& from = spaces_[static_cast<std::size_t>(device)];
  auto& freed = from.freed[bytes];
  if (!freed.empty()) {
    const device_address again = freed.back();
    freed.pop_back();
    return again;
  }
  if (bytes > from.begin + space_bytes - from.next) return 0;
  return std::exchange(from.next, from.next + bytes);
}

allocation* world::make(int device, std::size_t bytes, memory_kind kind) {
  if (bytes > largest_bytes) return nullptr;
  const std::size_t offset = bytes < small_bytes ? offset_of_small : 0;
  auto made = std::make_unique<allocation>();
  made->device = device;
  made->kind = kind;
  made->id = ++last_id;
  made->bytes = bytes;
  made->page_bytes = whole_pages(offset + bytes);
  made->memfd = ::memfd_create(("weft-stand-in-" + std::to_string(made->id)).c_str(), MFD_CLOEXEC);
  if (made->memfd < 0 || ::ftruncate(made->memfd, static_cast<off_t>(made->page_bytes)) != 0) std::abort();
  made->base = offset;
  allocation* const added = add(std::move(made));
  if (added != nullptr) std::memset(added->alias, 0xcd, added->page_bytes);
  return added;
}

allocation* world::import(const handle_content& handle, int memfd) {
  auto made = std::make_unique<allocation>();
  made->device = handle.device;
  made->kind = memory_kind::imported;
  made->id = ++last_id;
  made->base = handle.base_offset;
  made->bytes = handle.bytes;
  made->page_bytes = whole_pages(handle.base_offset + handle.bytes);
  made->memfd = memfd;
  made->owner = handle.pid;
  made->owner_id = handle.id;
  return add(std::move(made));
}

// Until here, the base says only where in the first page the memory begins.
allocation* world::add(std::unique_ptr<allocation> made) {
  made->pages = take_pages(made->device, made->page_bytes);
  if (made->pages == 0) {
    ::close(made->memfd);
    return nullptr;
  }
  made->base += made->pages;
  void* const visible =
      ::mmap(pages_at(made->pages), made->page_bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, made->memfd, 0);
  void* const alias = ::mmap(nullptr, made->page_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, made->memfd, 0);
  if (visible == MAP_FAILED || alias == MAP_FAILED) std::abort();
  made->alias = static_cast<std::byte*>(alias);
  allocation* const added = made.get();
  allocations.emplace(made->base, std::move(made));
  return added;
}

void world::remove(allocation& old) {
  if (old.kind != memory_kind::imported) std::memset(old.alias, 0xdd, old.page_bytes);
  ::munmap(old.alias, old.page_bytes);
  ::close(old.memfd);
  void* const reserved = ::mmap(pages_at(old.pages), old.page_bytes, PROT_NONE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  if (reserved == MAP_FAILED) std::abort();
  spaces_[static_cast<std::size_t>(old.device)].freed[old.page_bytes].push_back(old.pages);
  allocations.erase(old.base);
}

allocation* world::find(device_address where) {
  auto after = allocations.upper_bound(where);
  if (after == allocations.begin()) return nullptr;
  allocation* const before = std::prev(after)->second.get();
  return where - before->base < before->bytes ? before : nullptr;
}

bool world::is_device_address(device_address where) const noexcept {
  return std::any_of(spaces_.begin(), spaces_.end(),
                     [where](const space& one) { return where >= one.begin && where - one.begin < space_bytes; });
}

std::byte* world::alias(device_address where, std::size_t bytes) {
  if (!is_device_address(where)) return reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(where));
  const allocation* const found = find(where);
  if (found == nullptr || !found->holds(where, bytes)) return nullptr;
  return found->alias + (where - found->pages);
}

std::shared_ptr<stream> world::find_stream(stream_handle handle, int device) {
  if (handle == nullptr) {
    auto& of_context = contexts[static_cast<std::size_t>(device)].default_stream;
    if (of_context == nullptr) {
      of_context = std::make_shared<stream>();
      of_context->device = device;
      working.push_back(of_context);
    }
    return of_context;
  }
  const auto found = streams.find(reinterpret_cast<std::uintptr_t>(handle));
  return found != streams.end() ? found->second : nullptr;
}

std::shared_ptr<event> world::find_event(event_handle handle) {
  const auto found = events.find(reinterpret_cast<std::uintptr_t>(handle));
  return found != events.end() ? found->second : nullptr;
}

void world::enqueue(const std::shared_ptr<stream>& to, work what) {
  what.delay = static_cast<unsigned>(random() % most_delay);
  to->queue.push_back(std::move(what));
  if (!has_thread_) {
    has_thread_ = true;
    std::thread([this] { carry_out(); }).detach();
  }
  changed.notify_all();
}

bool world::uses(device_address begin, std::size_t bytes) const {
  const auto overlaps = [&](device_address other, std::size_t size) {
    return other < begin + bytes && begin < other + size;
  };
  return std::any_of(working.begin(), working.end(), [&](const auto& one) {
    return std::any_of(one->queue.begin(), one->queue.end(), [&](const work& what) {
      return overlaps(what.to, what.bytes) || overlaps(what.from, what.bytes);
    });
  });
}

std::size_t world::outstanding() const {
  std::size_t count = 0;
  for (const auto& one : working) count += one->queue.size() + (one->in_function ? 1 : 0);
  return count;
}

void world::fail_context(int device, status why) {
  contexts[static_cast<std::size_t>(device)].failed = why;
  for (const auto& one : working) {
    if (one->device == device) one->queue.clear();
  }
  changed.notify_all();
}

std::size_t world::clear(int device) {
  context& ours = contexts[static_cast<std::size_t>(device)];
  ours.active = false;
  ours.default_stream = nullptr;
  for (const auto& one : working) {
    if (one->device != device) continue;
    one->queue.clear();
    one->destroyed = true;
  }
  const auto goes = [this, device](const auto& one) {
    return one.second->device == device && gone.insert(one.first).second;
  };
  std::size_t count = std::erase_if(streams, goes);
  count += std::erase_if(events, goes);
  count += std::erase_if(pinned, [device](const auto& one) { return one.second.device == device; });
  for (auto next = allocations.begin(); next != allocations.end();) {
    allocation& one = *(next++)->second;
    if (one.device != device) continue;
    remove(one);
    ++count;
  }
  changed.notify_all();
  return count;
}

void world::carry_out() {
  std::unique_lock locked(lock);
  while (true) {
    if (held || !take_turn(locked)) {
      // A thread that nobody needs goes: what looks at the memory of a process that ends is better off without it.
      if (streams.empty() && outstanding() == 0) break;
      changed.wait_for(locked, std::chrono::milliseconds(20));
      continue;
    }
    // The callers get the lock now and then. Not by sched_yield(2): on a busy machine others have their whole turn
    // then.
    if (random() % 8 != 0) continue;
    locked.unlock();
    std::this_thread::sleep_for(std::chrono::microseconds(20));
    locked.lock();
  }
  has_thread_ = false;
}

// Picks a stream, and takes its first entry one step further. False if no stream holds anything.
bool world::take_turn(std::unique_lock<std::mutex>& locked) {
  std::erase_if(working, [](const auto& one) { return one->destroyed && one->idle(); });
  std::vector<std::shared_ptr<stream>> ready;
  for (const auto& one : working) {
    if (!one->queue.empty()) ready.push_back(one);
  }
  if (ready.empty()) return false;
  const auto picked = ready[random() % ready.size()];
  work& first = picked->queue.front();
  if (first.delay > 0) {
    --first.delay;
    return true;
  }
  if (first.bytes > 0) {
    if (!copy_some(first)) {
      fail_context(picked->device, status::illegal_address);
    } else if (first.bytes == 0) {
      picked->queue.erase(picked->queue.begin());
    }
    changed.notify_all();
    return true;
  }
  const work done = std::move(first);
  picked->queue.erase(picked->queue.begin());
  if (done.event != nullptr) done.event->done = std::max(done.event->done, done.recorded);
  if (done.function != nullptr) {
    picked->in_function = true;
    locked.unlock();
    runs_host_function = true;
    done.function(done.user_data);
    runs_host_function = false;
    locked.lock();
    picked->in_function = false;
  }
  changed.notify_all();
  return true;
}

// Copies the last half first, so that neither end of the memory says that all of it is there.
bool world::copy_some(work& what) {
  std::byte* const to = alias(what.to, what.bytes);
  const std::byte* const from = alias(what.from, what.bytes);
  if (to == nullptr || from == nullptr) return false;
  const std::size_t kept = what.bytes > copied_at_once ? what.bytes / 2 : 0;
  std::memmove(to + kept, from + kept, what.bytes - kept);
  what.bytes = kept;
  if (kept > 0) what.delay = static_cast<unsigned>(random() % most_delay);
  return true;
}

}  // namespace weft::test
