// SPDX-License-Identifier: Apache-2.0
// Peers in a process of their own, which is this program once more: see run_role().
#pragma once

#include <spawn.h>

#include <csignal>

#include "kit/child.hpp"
#include "shm_link/support.hpp"

namespace weft::test {

/// What the program does as a peer in `role`, which connects to `address`. Yields the exit status of its process.
///
///   echo              sends back what it receives
///   load              see keep_busy()
///   say_numbers       sends so many numbers as there are credits, and kills itself
///   say_many_numbers  sends more of them than there are receives, without a protocol of weft's, and kills itself
///   leave_a_child     starts a process that lingers, sends a message, and kills itself
///   linger            waits for the end of its input
int run_role(std::string_view role, std::string address);

inline constexpr unsigned native_numbers = 16;
inline constexpr unsigned many_numbers = 300;

inline constexpr std::size_t shared_bytes = 50'000;
struct other_memory {
  net::exposure own;
  mr::remote_region theirs;
};
/// Each end opens memory to the other.
task<other_memory> exchange_memory(net::device& device, net::connection& peer);

/// What has been done on a connection, and how that ended.
class progress {
 public:
  /// Calls this when so many operations are done, from inside the last of them.
  void at(std::size_t count, std::function<void()> what) {
    goal_ = count;
    then_ = std::move(what);
  }
  void step() {
    if (++count_ == goal_) then_();
  }
  void failed(const std::optional<error>& why) {
    if (why) failures.push_back(*why);
  }
  [[nodiscard]] std::size_t count() const noexcept { return count_; }

  std::vector<error> failures;

 private:
  std::size_t count_ = 0;
  std::size_t goal_ = 0;
  std::function<void()> then_;
};

/// Sends, receives, writes and reads at the same time, until all of that has failed.
inline constexpr std::size_t busy_tasks = 6;
task<> keep_busy(net::device& device, net::connection& peer, const mr::remote_slice& memory, progress& done);

/// A child, which is killed when this goes.
class child_process : private immovable {
 public:
  ~child_process() { kill(); }

  [[nodiscard]] pid_t id() const noexcept { return id_; }
  /// Returns once it is dead.
  void kill() {
    if (id_ == 0) return;
    ::kill(id_, SIGKILL);
    static_cast<void>(wait());
  }
  /// Waits for its end, and yields what end_of() does.
  int wait() { return end_of(std::exchange(id_, 0)); }

 protected:
  pid_t id_ = 0;
};

class other_process : public child_process {
 public:
  other_process(std::string role, std::string address) {
    std::string program = "/proc/self/exe";
    std::array<char*, 4> arguments = {program.data(), role.data(), address.data(), nullptr};
    EXPECT_EQ(::posix_spawn(&id_, program.c_str(), nullptr, nullptr, arguments.data(), environ), 0);
  }

  /// Returns once it is stopped.
  void stop() const {
    ::kill(id_, SIGSTOP);
    int status = 0;
    EXPECT_EQ(::waitpid(id_, &status, WUNTRACED), id_);
    EXPECT_TRUE(WIFSTOPPED(status));
  }
  void go_on() const noexcept { ::kill(id_, SIGCONT); }
};

}  // namespace weft::test
