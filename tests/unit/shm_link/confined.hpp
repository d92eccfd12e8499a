// SPDX-License-Identifier: Apache-2.0
// Peers in a process that the kernel confines: in namespaces of its own, behind a filter of system calls, in a group
// with little memory. The process is this program once more: see run_confined().
#pragma once

#include <sys/syscall.h>

#include "shm_link/process.hpp"

namespace weft::test {

/// What a process does to itself before this program starts in it. Yields what has failed, for the reason that errno
/// says, or null. It runs between fork(2) and execveat(2), where other threads may have held any lock, so that it makes
/// system calls and nothing else.
using confinement = std::function<const char*()>;

confinement unconfined();
/// One after another.
confinement all_of(std::vector<confinement> each);
enum class loopback : bool { down, up };
/// With no other network than a loopback.
confinement in_a_network_namespace(loopback state);
/// With this text in its uid_map. Empty: no user has a number there, so that everybody appears as the overflow user.
confinement in_a_user_namespace(std::string map);
confinement as_user(unsigned user);
/// The call fails with this number from then on: seccomp(2).
confinement without_call(int call, int number);
confinement without_unix_sockets(int number);
/// No file fits into /dev/shm.
confinement with_a_full_dev_shm();
confinement without_dev_shm();
/// Every file in memory has to say that nobody will execute it: vm.memfd_noexec.
confinement where_memory_is_not_executed();

/// Why no process can be confined like that here; empty if one can.
std::string why_not(const confinement& how);

/// A group of processes that may have little memory and no swap: a cgroup. It has to have no process left when it goes.
class memory_group : private immovable {
 public:
  /// What the kernel does when one asks for more: it kills a process, or says that there is none.
  enum class shortage : bool { kills, is_said };
  explicit memory_group(shortage what);
  ~memory_group();

  /// Why there is none; empty if there is.
  [[nodiscard]] const std::string& why_not() const noexcept { return why_not_; }
  [[nodiscard]] confinement inside() const;
  /// Whether it is of shortage::is_said.
  [[nodiscard]] bool says_so() const noexcept { return when_short_ == shortage::is_said; }
  /// From now on it may have so much more than it has.
  void leave(std::size_t more) const;
  /// Until it is stopped, gives a little more to whoever waits for a page of its own: where the kernel kills nobody,
  /// that is for ever.
  task<> feed();
  /// And from now on as much as it likes.
  void lift_limit() const;
  /// What the kernel says of its memory, for messages of tests.
  [[nodiscard]] std::string state() const;

 private:
  [[nodiscard]] bool make_below(const std::string& directory, const char* limit, const char* usage);
  bool write_setting(const char* name, const char* value) const;
  [[nodiscard]] bool watch_waiters();

  shortage when_short_;
  descriptor waited_for_;  // of shortage::is_said: readable when a process begins to wait for a page
  std::string path_;
  std::string limit_;
  std::string usage_;
  std::string why_not_;
};

/// A file that may become shorter, so that the kernel copies what goes there: process_vm_readv(2).
class file_memory : private immovable {
 public:
  file_memory();
  ~file_memory() { ::munmap(place_, length); }

  [[nodiscard]] std::span<std::byte> bytes() const { return {static_cast<std::byte*>(place_), length}; }
  /// Takes its pages away, as another process may.
  [[nodiscard]] bool truncate() const noexcept { return ::ftruncate(file_.fd(), 0) == 0; }

 private:
  static constexpr std::size_t length = 8192;
  descriptor file_;
  void* place_ = nullptr;
};

/// Opens this memory to the peer, and sends back what comes until the peer closes.
task<> serve(net::device& device, net::connection& peer, const file_memory& memory);
/// Uses all of that, and closes.
task<> use(net::device& device, net::connection& peer);

/// What the program does in a confined process. It says how that goes, a line each.
///
///   connects  connects to the address, uses what is served there
///   listens   listens at the address ("at ADDRESS"), serves the first peer that it can accept
///
/// Both say over which fabric ("over iwarp"), why not over a better one ("instead because ..."), what was turned away
/// ("refused because ..."), and how it ended: "done" or "failed: ...". Then "leaked N" descriptors, if any.
struct orders {
  std::string role;
  std::string device;
  std::string address;
  /// without_proc, descriptors:MOST, large_rings, or empty.
  std::string condition{};
};
int run_confined(const orders& what);

/// Rings of this length are more than memory_group::leave() leaves.
inline constexpr std::size_t large_ring_bytes = shm::channel::max_ring_bytes;

class confined_process : public child_process {
 public:
  confined_process(const orders& what, const confinement& how);
  ~confined_process() { kill(); }

  /// The next line that it says; empty at the end.
  task<std::string> line();
  /// What the next line has behind these words; empty, and a failure of the test, if it is another.
  task<std::string> line_after(std::string words);
  /// Where its threads stand in the kernel, for messages of tests.
  [[nodiscard]] std::string state() const;

 private:
  std::unique_ptr<descriptor> output_;
  std::string unread_;
};

}  // namespace weft::test
