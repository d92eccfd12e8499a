// SPDX-License-Identifier: Apache-2.0
// What the tests of registered memory share.
#pragma once

#include <weft/weft.hpp>

#include <linux/mman.h>
#include <sys/mman.h>

#include <latch>
#include <random>
#include <semaphore>
#include <set>

#include "failing_calls.hpp"
#include "kit/descriptors.hpp"
#include "kit/task_test.hpp"
#include "kit/thrown.hpp"
#include "sanitized.hpp"

namespace weft::test {

inline constexpr std::size_t kib = 1024;
inline constexpr std::size_t mib = 1024 * kib;

/// The descriptors of this process that are files in memory.
inline std::size_t memory_files() { return open_descriptors("/memfd:"); }

/// Whether this is a build that is slow, or likely to be.
#if defined(__clang__)
inline constexpr bool is_slow = true;
#else
inline constexpr bool is_slow = sanitized;
#endif

/// Numbers of a random program.
class dice {
 public:
  explicit dice(unsigned seed) : random_(seed) {}
  std::size_t operator()(std::size_t from, std::size_t to) { return from + random_() % (to - from + 1); }

 private:
  std::mt19937 random_;
};

/// Runs `body()`, a coroutine, on an executor of its own.
template <class Body>
void run(Body&& body, executor_options options = {}) {
  executor home(options);
  home.run(body());
}

/// Holds up the first thread that comes by.
class held_first {
 public:
  void pass() {
    if (came_.exchange(true)) return;
    here_.count_down();
    go_on_.wait();
  }
  /// Until it is there.
  void wait() { here_.wait(); }
  [[nodiscard]] bool is_there() { return here_.try_wait(); }
  void let_go() { go_on_.count_down(); }

 private:
  std::atomic<bool> came_{false};
  std::latch here_{1};
  std::latch go_on_{1};
};

/// A domain without a device. Everything that it can be asked for is written down.
class recording_domain final : public mr::domain {
 public:
  static constexpr mr::domain_capabilities everything{.usages = mr::known_usages,
                                                      .iova = true,
                                                      .zero_based = true,
                                                      .requested_key = true,
                                                      .on_demand = true,
                                                      .dmabuf = true};

  explicit recording_domain(const mr::domain_capabilities& capabilities = everything)
      : mr::domain("recording", capabilities) {}

  std::atomic<int> registered{0};
  std::atomic<int> deregistered{0};
  std::atomic<std::uint64_t> counted{0};  // the key of which writes were last counted
  std::atomic<bool> refuse{false};
  std::thread::id last_registration;    // valid once register_memory() has returned
  std::thread::id last_deregistration;  // the same
  mr::registration_options last_options;
  std::function<void()> while_registering = [] {};
  std::function<void()> while_deregistering = [] {};

 private:
  mr::registration do_register(std::span<std::byte> memory, const mr::registration_options& options) override {
    while_registering();
    if (refuse || fails()) throw error(errc::no_memory, "recording: refused");
    const std::lock_guard lock(mutex_);
    last_registration = std::this_thread::get_id();
    last_options = options;
    const auto key = static_cast<std::uint32_t>(++registered);
    return {.local_key = key, .remote_key = 1000 + key, .address = reinterpret_cast<std::uintptr_t>(memory.data())};
  }
  void do_deregister(mr::registration&) noexcept override {
    while_deregistering();
    const std::lock_guard lock(mutex_);
    last_deregistration = std::this_thread::get_id();
    ++deregistered;
  }
  void do_count_all(mr::memory_record& target, mr::detail::write_counter_core&) override {
    counted = target.registration.remote_key;
  }

  std::mutex mutex_;
};

/// Waits for the workers, which deregister after whoever made them do so has gone on. Not for ever: the test would not
/// end.
inline void expect_all_deregistered(const recording_domain& domain) {
  while (domain.deregistered != domain.registered) std::this_thread::yield();
}

inline std::size_t in_use(const mr::pool& source) { return source.statistics().send.in_use_bytes; }

/// Runs `body(source)`, a coroutine, with a pool of which nothing is in use any more in the end.
template <class Body>
void with_small_pool(Body body) {
  run([&]() -> task<> {
    mr::pool source(std::make_shared<recording_domain>(), {.max_bytes = 128 * kib, .huge_pages = false});
    co_await body(source);
    EXPECT_EQ(in_use(source), 0U);
  });
}

/// The kernel, but mappings are counted, and can be made to fail.
class counting_memory final : public system_calls {
 public:
  std::atomic<std::size_t> mapped{0};
  std::atomic<std::size_t> most_mapped{0};
  std::atomic<std::size_t> mappings{0};
  std::atomic<int> failure{0};  // 0, or the errno of every mmap(2)
  std::thread::id forbidden;    // no call may come from there
  std::atomic<bool> called_from_forbidden{false};

  void* mmap(std::size_t length, int protection, int flags, int* why) noexcept override {
    look_at_thread();
    if (failure != 0 || fails()) {
      *why = failure != 0 ? failure.load() : ENOMEM;
      return nullptr;
    }
    void* const address = system_calls::mmap(length, protection, flags, why);
    if (address == nullptr) return nullptr;
    ++mappings;
    const std::size_t now = mapped += length;
    std::size_t most = most_mapped;
    while (now > most && !most_mapped.compare_exchange_weak(most, now)) {
    }
    return address;
  }
  void* mmap_file(std::size_t length, int protection, int flags, int fd, off_t offset, int* why) noexcept override {
    look_at_thread();
    if (fails()) {
      *why = ENOMEM;
      return nullptr;
    }
    void* const address = system_calls::mmap_file(length, protection, flags, fd, offset, why);
    if (address != nullptr) mapped += length;
    return address;
  }
  int memfd_create(const char* name, unsigned flags) noexcept override {
    look_at_thread();
    return fails() ? -EMFILE : system_calls::memfd_create(name, flags);
  }
  int ftruncate(int fd, off_t length) noexcept override {
    return fails() ? -ENOSPC : system_calls::ftruncate(fd, length);
  }
  int fcntl(int fd, int command, int argument) noexcept override {
    return fails() ? -EPERM : system_calls::fcntl(fd, command, argument);
  }
  int munmap(void* address, std::size_t length) noexcept override {
    look_at_thread();
    mapped -= length;
    return system_calls::munmap(address, length);
  }

 private:
  void look_at_thread() noexcept {
    if (std::this_thread::get_id() == forbidden) called_from_forbidden = true;
  }
};

/// Has huge pages, as many as there are of a size: what stands behind them is small ones.
class memory_with_huge_pages final : public system_calls {
 public:
  int giant = 0;
  int huge = 0;
  int refusal_to_bind = 0;
  std::vector<unsigned long> bound_to;

  void* mmap(std::size_t length, int protection, int flags, int* why) noexcept override {
    if ((flags & MAP_HUGETLB) != 0 && !take_one(static_cast<unsigned>(flags))) {
      *why = ENOMEM;
      return nullptr;
    }
    return system_calls::mmap(length, protection, flags & ~(MAP_HUGETLB | static_cast<int>(sizes)), why);
  }
  int memfd_create(const char* name, unsigned flags) noexcept override {
    if ((flags & MFD_HUGETLB) != 0 && !take_one(flags)) return -ENOMEM;
    return system_calls::memfd_create(name, flags & ~(MFD_HUGETLB | sizes));
  }
  int mbind(void*, std::size_t, int, const unsigned long* nodes, unsigned long, unsigned) noexcept override {
    bound_to.push_back(nodes[0]);
    return refusal_to_bind;
  }

 private:
  static constexpr unsigned sizes = 63U << MAP_HUGE_SHIFT;

  bool take_one(unsigned flags) noexcept {
    int& left = (flags & sizes) == static_cast<unsigned>(MAP_HUGE_1GB) ? giant : huge;
    if (left == 0) return false;
    --left;
    return true;
  }
};

}  // namespace weft::test
