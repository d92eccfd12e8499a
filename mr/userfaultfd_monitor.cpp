// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/memory_monitor.hpp>
#include <weft/runtime/descriptor.hpp>
#include <weft/runtime/error.hpp>

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <semaphore>
#include <string>
#include <thread>

namespace weft::mr {
namespace {

constexpr std::uintptr_t page_bytes = 4096;

[[noreturn]] void refuse(const char* call) {
  throw error(errc::not_supported, std::string("watch memory with userfaultfd: ") + system_error(errno, call).what());
}

// Events of mappings only, so that no privilege is needed: faults of the kernel's are none of ours.
int open_descriptor() {
  const long fd = ::syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
  if (fd < 0) refuse("open");
  return static_cast<int>(fd);
}

class userfaultfd_monitor final : public memory_monitor {
 public:
  explicit userfaultfd_monitor(listener& target) : target_(target), events_(open_descriptor(), system_calls::kernel()) {
    uffdio_api api{};
    api.api = UFFD_API;
    api.features = UFFD_FEATURE_EVENT_UNMAP | UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_EVENT_REMOVE |
                   UFFD_FEATURE_PAGEFAULT_FLAG_WP;
    if (::ioctl(events_.fd(), UFFDIO_API, &api) != 0) refuse("UFFDIO_API");
    stop_ = descriptor(::eventfd(0, EFD_CLOEXEC), system_calls::kernel());
    if (!stop_) refuse("eventfd");
    cleaner_ = std::thread([this] { clean(); });
    try {
      watcher_ = std::thread([this] { run(); });
    } catch (...) {
      stop_cleaner();
      throw;
    }
  }
  ~userfaultfd_monitor() override {
    stop_cleaner();  // first: what it frees may be watched, and then waits for the watcher
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(stop_.fd(), &one, sizeof one);
    watcher_.join();
  }

  // Write protection that is never put on: it makes no faults, and the kernel tells of changes all the same.
  bool watch(std::span<const std::byte> range) noexcept override {
    const auto from = reinterpret_cast<std::uintptr_t>(range.data()) & ~(page_bytes - 1);
    const auto to =
        (reinterpret_cast<std::uintptr_t>(range.data()) + range.size() + page_bytes - 1) & ~(page_bytes - 1);
    uffdio_register wanted{};
    wanted.range.start = from;
    wanted.range.len = to - from;
    wanted.mode = UFFDIO_REGISTER_MODE_WP;
    return ::ioctl(events_.fd(), UFFDIO_REGISTER, &wanted) == 0;
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
          tell(message.arg.remove.start, message.arg.remove.end);
          break;
        case UFFD_EVENT_REMAP:
          tell(message.arg.remap.from, message.arg.remap.from + message.arg.remap.len);
          break;
        default:
          break;
      }
    }
  }

  void tell(std::uint64_t from, std::uint64_t to) noexcept {
    target_.changed({reinterpret_cast<const std::byte*>(from), to - from});
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
  descriptor events_;
  descriptor stop_;
  std::counting_semaphore<> changes_{0};
  std::atomic<bool> closing_{false};
  std::thread cleaner_;
  std::thread watcher_;
};

}  // namespace

std::unique_ptr<memory_monitor> make_userfaultfd_monitor(memory_monitor::listener& target) {
  return std::make_unique<userfaultfd_monitor>(target);
}

}  // namespace weft::mr
