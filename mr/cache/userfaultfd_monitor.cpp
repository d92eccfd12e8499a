// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/cache/memory_monitor.hpp>
#include <weft/mr/system/mapped_ranges.hpp>
#include <weft/mr/system/page.hpp>
#include <weft/runtime/core/owned_thread.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/system/descriptor.hpp>
#include <weft/runtime/system/system_calls.hpp>

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <mutex>
#include <semaphore>
#include <string>
#include <thread>
#include <utility>

namespace weft::mr {
namespace {

[[noreturn]] void refuse_with(int number, const char* call) {
  throw error(errc::not_supported, std::string("watch memory with userfaultfd: ") + system_error(number, call).what());
}
[[noreturn]] void refuse(const char* call) { refuse_with(errno, call); }

/// A descriptor of userfaultfd(2) that is closed in a child of fork(2). As long as any process has a copy, the kernel
/// reports changes to it, and a thread that makes a change waits until the report is read; a child has no thread that
/// reads reports.
class own_descriptor {
 public:
  /// Takes the descriptor that `open()` returns.
  template <class Open>
  explicit own_descriptor(Open open) {
    static const int no_fork_handlers = ::pthread_atfork([] { mutex.lock(); }, [] { mutex.unlock(); }, close_all);
    if (no_fork_handlers != 0) refuse_with(no_fork_handlers, "pthread_atfork");
    const std::lock_guard lock(mutex);
    fd_ = open();
    next_ = std::exchange(first, this);
    if (next_ != nullptr) next_->previous_ = &next_;
    previous_ = &first;
  }
  own_descriptor(const own_descriptor&) = delete;
  own_descriptor& operator=(const own_descriptor&) = delete;
  ~own_descriptor() {
    const std::lock_guard lock(mutex);
    *previous_ = next_;
    if (next_ != nullptr) next_->previous_ = previous_;
    ::close(fd_);
  }

  [[nodiscard]] int fd() const noexcept { return fd_; }

  // Held while a descriptor is opened or closed, while its watched ranges are changed, and across fork(2).
  static inline constinit std::mutex mutex;

 private:
  // Closes the parent's descriptors, which are of no use in a child. Runs there, on the only thread.
  static void close_all() noexcept {
    for (const own_descriptor* item = first; item != nullptr; item = item->next_) ::close(item->fd_);
    first = nullptr;
    mutex.unlock();
  }

  static inline constinit own_descriptor* first = nullptr;

  int fd_ = -1;
  own_descriptor** previous_ = nullptr;
  own_descriptor* next_ = nullptr;
};

// UFFD_USER_MODE_ONLY excludes faults in the kernel, so that no privilege is needed: only events of mappings matter
// here.
int open_descriptor() {
  const long fd = ::syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
  if (fd < 0) refuse("open");
  return static_cast<int>(fd);
}

// The kernel's ranges are of whole pages.
uffdio_range pages_of(std::span<const std::byte> memory) noexcept {
  const std::uintptr_t from = detail::round_down(reinterpret_cast<std::uintptr_t>(memory.data()), detail::page_bytes());
  const std::uintptr_t to =
      detail::round_up(reinterpret_cast<std::uintptr_t>(memory.data()) + memory.size(), detail::page_bytes());
  return {.start = from, .len = to - from};
}
std::span<const std::byte> memory_of(const uffdio_range& pages) noexcept {
  // The kernel gives addresses as integers. NOLINTNEXTLINE(performance-no-int-to-ptr)
  return {reinterpret_cast<const std::byte*>(pages.start), pages.len};
}

// Whether the kernel reports every change of this memory. It reports what this process does to its mappings. It does
// not report that somebody, even this process, punches a hole into a file or cuts off its end, which replaces pages
// too.
bool is_ours_alone(std::span<const std::byte> memory) noexcept {
  try {
    const auto ranges = detail::mapped_ranges_of(memory);
    const auto alone = [](const detail::mapped_range& item) { return !item.shared && !item.has_file; };
    return ranges && std::all_of(ranges->begin(), ranges->end(), alone);
  } catch (const std::bad_alloc&) {
    return false;
  }
}

class userfaultfd_monitor final : public memory_monitor {
 public:
  explicit userfaultfd_monitor(listener& target) : target_(target), events_(open_descriptor) {
    uffdio_api api{};
    api.api = UFFD_API;
    api.features = UFFD_FEATURE_EVENT_UNMAP | UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_EVENT_REMOVE |
                   UFFD_FEATURE_PAGEFAULT_FLAG_WP;
    if (::ioctl(events_.fd(), UFFDIO_API, &api) != 0) refuse("UFFDIO_API");
    // Where the architecture lacks the feature (arm64), kernels before 6.10 accept the request, but their answer leaves
    // the feature out.
    if ((api.features & UFFD_FEATURE_PAGEFAULT_FLAG_WP) == 0) refuse_with(EOPNOTSUPP, "UFFD_FEATURE_PAGEFAULT_FLAG_WP");
    stop_ = descriptor(::eventfd(0, EFD_CLOEXEC), system_calls::kernel());
    if (!stop_) refuse("eventfd");
    if (!detail::mapped_ranges_of({})) refuse("open /proc/self/maps");
    cleaner_ = weft::detail::owned_thread::run<&userfaultfd_monitor::clean>(*this);
    try {
      watcher_ = weft::detail::owned_thread::run<&userfaultfd_monitor::run>(*this);
    } catch (...) {
      stop_cleaner();
      throw;
    }
  }
  ~userfaultfd_monitor() override {
    stop_cleaner();  // first: the cleaner may free watched memory, and then waits for the watcher
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(stop_.fd(), &one, sizeof one);
    watcher_.join();
  }

  // Registers for write protection but never applies it: there are no faults, and the kernel reports changes all the
  // same.
  bool watch(std::span<const std::byte> range) noexcept override {
    if (!is_ours_alone(range)) return false;
    uffdio_register wanted{};
    wanted.range = pages_of(range);
    wanted.mode = UFFDIO_REGISTER_MODE_WP;
    const std::lock_guard lock(own_descriptor::mutex);
    // Checked again, because only changes made from now on are reported.
    return ::ioctl(events_.fd(), UFFDIO_REGISTER, &wanted) == 0 && is_ours_alone(range);
  }

  // Up to Linux 6.16, UFFDIO_UNREGISTER also ends the watches of other descriptors. Here no other descriptor watches
  // the range: once all changes are reported, what the listener finds unneeded is still mapped as this monitor has
  // watched it, and the mutex keeps other monitors from watching memory that is mapped there later, until the call has
  // returned.
  void unwatch(std::span<const std::byte> range) noexcept override {
    const uffdio_range all = pages_of(range);
    const std::lock_guard lock(own_descriptor::mutex);
    for (std::uint64_t from = all.start, end = all.start + all.len; from < end;) {
      for (int patience = 100; !all_told(); std::this_thread::yield()) {
        if (--patience == 0) return;  // the rest stays watched, which does no harm
      }
      const auto unneeded = target_.unneeded(memory_of({.start = from, .len = end - from}));
      if (unneeded.empty()) return;
      uffdio_range gone = pages_of(unneeded);
      ::ioctl(events_.fd(), UFFDIO_UNREGISTER, &gone);
      from = gone.start + gone.len;
    }
  }

  // The kernel refuses a range of no bytes: with EAGAIN while a change that has begun is unread, else with another
  // error. Before Linux 5.15 it no longer answers EAGAIN once any other change has been read meanwhile.
  [[nodiscard]] bool all_told() const noexcept override {
    uffdio_writeprotect nothing{};
    // mutant: trust what a change under way may have ended
    return ::ioctl(events_.fd(), UFFDIO_WRITEPROTECT, &nothing) == 0 || errno != EAGAIN;
  }

 private:
  void run() noexcept {
    std::array<pollfd, 2> both{pollfd{events_.fd(), POLLIN, 0}, pollfd{stop_.fd(), POLLIN, 0}};
    for (;;) {
      if (::poll(both.data(), both.size(), -1) < 0) continue;
      if (both[1].revents != 0) return;
      target_.begin();
      take_all();
      target_.end();
      changes_.release();
    }
  }

  void take_all() noexcept {
    uffd_msg message;
    while (::read(events_.fd(), &message, sizeof message) == static_cast<ssize_t>(sizeof message)) {
      switch (message.event) {
        case UFFD_EVENT_UNMAP:
        case UFFD_EVENT_REMOVE:
          tell(message.arg.remove.start, message.arg.remove.end - message.arg.remove.start,
               message.event == UFFD_EVENT_REMOVE);
          break;
        case UFFD_EVENT_REMAP:
          tell(message.arg.remap.from, message.arg.remap.len, false);
          break;
        default:
          break;
      }
    }
  }

  void tell(std::uint64_t from, std::uint64_t length, bool still_mapped) noexcept {
    target_.changed(memory_of({.start = from, .len = length}), still_mapped);
  }

  void clean() noexcept {
    for (;;) {
      changes_.acquire();
      if (closing_) return;
      target_.clean_up();
    }
  }
  void stop_cleaner() noexcept {
    closing_ = true;
    changes_.release();
    cleaner_.join();
  }

  listener& target_;
  own_descriptor events_;
  descriptor stop_;
  std::counting_semaphore<> changes_{0};
  std::atomic<bool> closing_{false};
  weft::detail::owned_thread cleaner_;
  weft::detail::owned_thread watcher_;
};

}  // namespace

std::unique_ptr<memory_monitor> make_userfaultfd_monitor(memory_monitor::listener& target) {
  return std::make_unique<userfaultfd_monitor>(target);
}

}  // namespace weft::mr
