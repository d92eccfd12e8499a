// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/core/owned_thread.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/executor_group.hpp>
#include <weft/runtime/sync/event.hpp>

#include <fmt/core.h>

#include <pthread.h>
#include <sched.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <exception>
#include <future>
#include <new>
#include <utility>

namespace weft {
namespace {

std::vector<int> usable_processors() {
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) != 0) throw system_error(errno, "find the processors");
  std::vector<int> found;
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(static_cast<unsigned>(i), &set)) found.push_back(i);
  }
  return found;
}

}  // namespace

class executor_group::member final : private detail::remote_work {
 public:
  /// Starts the thread; returns once the executor runs, and throws if it cannot run.
  member(const executor_options& options, std::size_t index)
      : home(options), thread_(detail::owned_thread::run<&member::run>(*this)) {
    try {
      running_.get_future().get();
    } catch (...) {  // `home` could not run, so run() ends
      thread_.join();
      throw;
    }
    name_thread(index);
  }
  member(const member&) = delete;
  member& operator=(const member&) = delete;
  ~member() {
    if (!thread_.joinable()) return;
    begin_to_end();
    wait_until_it_rests();
    command_.store(command::leave, std::memory_order_release);
    command_.notify_one();
    thread_.join();
  }

  /// Makes the thread rest as soon as all work in the background has ended. Does nothing when called again.
  void begin_to_end() noexcept {
    if (!std::exchange(is_ending_, true)) core_of(home).submit(*this);
  }
  /// Blocks until the member's thread rests. Call after begin_to_end().
  void wait_until_it_rests() const noexcept {
    for (command now = command_.load(std::memory_order_acquire); now != command::none;
         now = command_.load(std::memory_order_acquire)) {
      command_.wait(now, std::memory_order_acquire);
    }
  }
  /// Runs the work that others have posted to this executor; false if there was none. Call while all members rest.
  [[nodiscard]] bool serve_mail() noexcept {
    if (!core_of(home).work_waits()) return false;
    command_.store(command::serve, std::memory_order_release);
    command_.notify_one();
    wait_until_it_rests();
    return true;
  }

  void pin(int processor) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(static_cast<unsigned>(processor), &set);
    const int failure = ::pthread_setaffinity_np(thread_.native_handle(), sizeof set, &set);
    if (failure != 0) throw system_error(failure, fmt::format("keep a thread on processor {}", processor));
  }

  /// In a child of fork(2), where the member's thread does not exist and its work cannot end: makes `item` null without
  /// destroying the member, which stays reachable for leak checkers. Elsewhere it does nothing.
  static void leave_if_parents(std::unique_ptr<member>& item) noexcept {
    static constinit member* left = nullptr;
    if (item->thread_.joinable()) return;
    item->left_before_ = std::exchange(left, item.get());
    static_cast<void>(item.release());
  }

  executor home;

 private:
  // The thread's command:
  //   run    home.run() has not returned
  //   none   home.run() has returned; the thread rests and waits for a command
  //   serve  run what is in the mailbox
  //   leave  end the thread
  enum class command : std::uint8_t { run, none, serve, leave };

  // home.run() can throw only before running_ has its value. NOLINTNEXTLINE(bugprone-exception-escape)
  void run() noexcept {
    const auto wait_for_the_end = [this]() -> task<> {
      running_.set_value();
      co_await ending_.wait();
    };
    try {
      home.run(wait_for_the_end());
    } catch (...) {  // the task has not begun: the thread cannot use the driver, or there is no memory for a frame
      return running_.set_exception(std::current_exception());
    }
    while (next_command() == command::serve) serve();
  }
  // Serves the mailbox, by home.run() with a task that ends at once.
  void serve() noexcept try {
    home.run([]() -> task<> { co_return; }());
  } catch (const std::bad_alloc&) {
    detail::terminate_because("an executor_group could not end: there is no memory for a coroutine");
  }
  command next_command() noexcept {
    command_.store(command::none, std::memory_order_release);
    command_.notify_one();
    command_.wait(command::none, std::memory_order_acquire);
    return command_.load(std::memory_order_acquire);
  }
  // Names the thread, for top(1) and debuggers.
  void name_thread(std::size_t index) noexcept {
    constexpr std::size_t room = 16;  // the kernel's limit, with the final 0
    std::array<char, room> name{};
    fmt::format_to_n(name.data(), name.size() - 1, "weft-{}", index);
    ::pthread_setname_np(thread_.native_handle(), name.data());
  }
  void run_on_executor() noexcept override { ending_.set(); }

  member* left_before_ = nullptr;
  std::promise<void> running_;
  event ending_;
  std::atomic<command> command_{command::run};
  bool is_ending_ = false;
  detail::owned_thread thread_;  // last, because the thread uses all fields above
};

executor_group::executor_group(executor_group_options options) {
  const std::vector<int> processors = usable_processors();
  const std::size_t size = options.size != 0 ? options.size : processors.size();
  for (std::size_t i = 0; i < size; ++i) {
    members_.push_back(std::make_unique<member>(options.each, i));
    if (options.pin) members_.back()->pin(processors[i % processors.size()]);
  }
}

// Destroys no executor before all of them have ended and no mail is left.
executor_group::~executor_group() {
  for (std::unique_ptr<member>& item : members_) member::leave_if_parents(item);
  std::erase(members_, nullptr);
  for (const std::unique_ptr<member>& item : members_) item->begin_to_end();
  for (const std::unique_ptr<member>& item : members_) item->wait_until_it_rests();
  for (bool served = true; served;) {
    served = false;
    for (const std::unique_ptr<member>& item : members_) served = item->serve_mail() || served;
  }
}

executor& executor_group::operator[](std::size_t index) const {
  if (index >= members_.size()) {
    throw error(errc::out_of_range, fmt::format("executor {} of a group of {} executors", index, members_.size()));
  }
  return members_[index]->home;
}

}  // namespace weft
