// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/error.hpp>
#include <weft/runtime/event.hpp>
#include <weft/runtime/executor_group.hpp>

#include <fmt/core.h>

#include <pthread.h>
#include <sched.h>

#include <cassert>
#include <cerrno>
#include <system_error>
#include <thread>

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

class executor_group::member {
 public:
  member(const executor_options& options, std::size_t index) : home(options), thread_([this] { run(); }) {
    ::pthread_setname_np(thread_.native_handle(), fmt::format("weft-{}", index).c_str());  // for top(1) and debuggers
  }
  member(const member&) = delete;
  member& operator=(const member&) = delete;
  ~member() {
    home.post([this] { ending_.set(); });
    thread_.join();
  }

  void pin(int processor) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(static_cast<unsigned>(processor), &set);
    const int failure = ::pthread_setaffinity_np(thread_.native_handle(), sizeof set, &set);
    if (failure != 0) throw system_error(failure, fmt::format("keep a thread on processor {}", processor));
  }

  executor home;

 private:
  void run() {
    const auto wait_for_the_end = [this]() -> task<> { co_await ending_.wait(); };
    home.run(wait_for_the_end());
  }

  event ending_;
  std::thread thread_;  // the last: it uses the others
};

executor_group::executor_group(executor_group_options options) {
  const std::vector<int> processors = usable_processors();
  const std::size_t size = options.size != 0 ? options.size : processors.size();
  try {
    for (std::size_t i = 0; i < size; ++i) {
      members_.push_back(std::make_unique<member>(options.each, i));
      if (options.pin) members_.back()->pin(processors[i % processors.size()]);
    }
  } catch (const std::system_error& failure) {
    throw error(failure.code(), "start the thread of an executor");
  }
}

executor_group::~executor_group() = default;

executor& executor_group::operator[](std::size_t index) const noexcept {
  assert(index < members_.size());
  return members_[index]->home;
}

}  // namespace weft
