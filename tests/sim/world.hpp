// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/executor.hpp>
#include <weft/runtime/system/clock.hpp>
#include <weft/runtime/system/event_driver.hpp>
#include <weft/runtime/system/system_calls.hpp>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "baton.hpp"
#include "local_kernel.hpp"
#include "random.hpp"
#include "workers.hpp"

namespace weft::sim {

/// What a network and a kernel are like. Shares are in thousandths.
struct conditions {
  std::uint64_t longest_delay_ns = 50'000;  ///< of a packet
  std::uint64_t longest_job_ns = 20'000;    ///< of a worker thread
  std::uint64_t longest_turn_ns = 2'000;    ///< of an executor's loop
  std::uint64_t socket_bytes = 65'536;      ///< on the way in one direction, at most
  std::uint64_t packet_bytes = 65'536;      ///< taken or given at once, at most
  std::uint64_t short_share = 100;          ///< calls that do less than they could
  std::uint64_t idle_share = 100;           ///< turns in which the kernel has not come to an operation yet
  std::uint64_t spurious_share = 10;        ///< wake-ups for nothing, EAGAIN and EINTR
  std::uint64_t bytes_per_us = 0;           ///< of a connection in one direction; 0: as much as there is
  bool shuffle = true;                      ///< complete in any order, instead of that of coming
};

/// Time, kernel and network of a few executors, simulated: connections of TCP between their own sockets. Everything
/// that is left to chance comes from the seed, so that a run can be repeated bit for bit.
///
/// Each executor has a seat, and a thread of its own; but one of them runs at a time, and the others wait until the
/// seed gives them their turn: then the order of all turns is the only order of events that there is. It changes hands
/// where an executor asks for news of its kernel, or waits for some. The first seat is that of the thread that makes
/// the world, which begins.
class world final : public clock, public system_calls {
 public:
  world(std::uint64_t seed, const conditions& how);
  ~world() override;

  /// One more executor. From whoever has the turn; its thread calls sit_down() before all else and leave() at the end.
  [[nodiscard]] std::size_t add_seat();
  /// Of the executor that sits there.
  [[nodiscard]] executor_options options(bool shuffle_tasks, std::size_t number = 0) noexcept;
  /// Who sits there, for a report of who waits for what; null once it is gone.
  void introduce(std::size_t number, const executor* who) noexcept;
  /// Waits until it is its turn.
  void sit_down(std::size_t number) { baton_.take(number); }
  /// The turn of others, for good. Whoever left does nothing here any more until all have.
  void leave(std::size_t number) noexcept;

  /// Something other than a socket to wait for: io_kind::readable on the descriptor that open_source() gives it.
  class event_source {
   public:
    [[nodiscard]] virtual bool has_something() const noexcept = 0;

   protected:
    ~event_source() = default;
  };
  [[nodiscard]] int open_source(const event_source& what);
  void close_source(int fd) noexcept;

  /// Has `what` happen at a time after the start.
  void at(duration when, std::function<void()> what);

  // Faults of the connection whose client has this port. From when one has harmed it, it is disturbed(): one that finds
  // nobody, or for which nobody waits, is none.

  /// Both ends see a reset; what was on the way is lost.
  void reset(std::uint16_t port);
  /// Nothing gets through any more, and nobody says so: TCP gives up after TCP_USER_TIMEOUT.
  void cut(std::uint16_t port);
  /// The next send of one end fails.
  void fail_send(std::uint16_t port, bool of_client, int number);
  /// A bit of what is sent next changes on the way; a while later both ends see a reset, should they wait for what the
  /// damage has made them expect. Not before the set-up is over, which has no checksums.
  void damage(std::uint16_t port);
  /// A fault that its user has caused.
  void disturb(std::uint16_t port) { disturbed_.insert(port); }
  void disturb_all() noexcept { all_disturbed_ = true; }
  [[nodiscard]] bool disturbed(std::uint16_t port) const { return all_disturbed_ || disturbed_.contains(port); }
  [[nodiscard]] bool all_disturbed() const noexcept { return all_disturbed_; }
  /// Whether a bit has changed there.
  [[nodiscard]] bool damaged(std::uint16_t port) const { return damaged_.contains(port); }
  /// For so long packets wait.
  void stall(std::uint16_t port, duration how_long);
  // Faults of a cable: of all connections to this port, which has one of its own. They count as faults, and disturb
  // nobody: whoever has other cables goes on.

  void reset_cable(std::uint16_t port);
  /// Nothing gets through until it is mended, and nobody says so: neither what is sent, nor a reset, nor who asks for
  /// a connection.
  void cut_cable(std::uint16_t port);
  void mend_cable(std::uint16_t port);
  void stall_cable(std::uint16_t port, duration how_long);
  void fail_send_on_cable(std::uint16_t port, bool of_client, int number);
  /// Connections over it that have been made, and not ended.
  [[nodiscard]] std::size_t connections_over(std::uint16_t port) const noexcept;

  /// Sockets and memory of this machine alone: it has faults of its own.
  [[nodiscard]] local_kernel& local() noexcept { return local_; }
  /// So many of the next calls to mmap(2) fail.
  void fail_mappings(unsigned count) noexcept { mappings_to_fail_ = count; }
  [[nodiscard]] bool has_failed_mapping() const noexcept { return has_failed_mapping_; }
  /// So many of the next calls to accept(2) fail, for want of descriptors.
  void fail_accepts(unsigned count) noexcept { accepts_to_fail_ = count; }

  /// The n-th call from now on that can fail does.
  void fail_call(std::uint64_t number) noexcept { call_to_fail_ = number; }
  /// Whether the call that is being made fails.
  [[nodiscard]] bool call_fails() noexcept {
    const bool chosen = ++calls_ == call_to_fail_;
    if (chosen) count_fault();
    return chosen;
  }
  [[nodiscard]] bool has_failed() const noexcept { return call_to_fail_ != 0 && calls_ >= call_to_fail_; }
  /// How many calls there were that can fail.
  [[nodiscard]] std::uint64_t calls() const noexcept { return calls_; }

  /// A fault has come to pass.
  void count_fault() noexcept { ++faults_; }
  /// How many have: of a connection, of the device, and calls that failed.
  [[nodiscard]] std::uint64_t faults() const noexcept { return faults_; }

  [[nodiscard]] random& dice() noexcept { return dice_; }
  /// How long something is on its way.
  [[nodiscard]] duration delay() noexcept;
  void note(std::uint64_t word) noexcept { trace_.add(word); }
  [[nodiscard]] std::uint64_t trace() const noexcept { return trace_.value(); }
  /// Sockets carry addresses of this process, which differ from one run to the next: the trace has only how much they
  /// carry.
  void leave_contents_out_of_trace() noexcept { traces_contents_ = false; }
  [[nodiscard]] std::uint64_t events() const noexcept { return events_; }
  [[nodiscard]] duration elapsed() const noexcept { return now_ - time_point(); }

  /// What has been opened and mapped, and not been closed and unmapped: empty if there is nothing.
  [[nodiscard]] std::string leaks() const;

  /// Called when the run cannot go on; does not return.
  std::function<void(const std::string& why)> give_up;
  /// Ends the run, which has broken a rule.
  void refuse(std::string_view why) noexcept;

  /// Asked before memory is unmapped.
  std::function<void(const void* address, std::size_t bytes)> on_unmapping;

  [[nodiscard]] time_point now() noexcept override { return now_; }

  int socket(int domain, int type, int protocol) noexcept override;
  int setsockopt(int fd, int level, int name, const void* value, socklen_t length) noexcept override;
  int getsockopt(int fd, int level, int name, void* value, socklen_t* length) noexcept override;
  int bind(int fd, const sockaddr* address, socklen_t length) noexcept override;
  int listen(int fd, int backlog) noexcept override;
  int getsockname(int fd, sockaddr* address, socklen_t* length) noexcept override;
  int connect(int fd, const sockaddr* address, socklen_t length) noexcept override;
  ssize_t sendmsg(int fd, const msghdr* message, int flags) noexcept override;
  ssize_t recvmsg(int fd, msghdr* message, int flags) noexcept override;
  int shutdown(int fd, int how) noexcept override;
  int close(int fd) noexcept override;
  int epoll_create1(int) noexcept override { return local_.epoll_create1(); }
  int epoll_ctl(int epoll, int operation, int fd, epoll_event* event) noexcept override {
    return local_.epoll_ctl(epoll, operation, fd, event);
  }
  int epoll_wait(int epoll, epoll_event* events, int count, int timeout_ms) noexcept override;
  int eventfd(unsigned initial, int flags) noexcept override;
  off_t lseek(int fd, off_t offset, int from) noexcept override { return local_.lseek(fd, offset, from); }
  int memfd_create(const char* name, unsigned flags) noexcept override { return local_.memfd_create(name, flags); }
  // As in most containers.
  ssize_t process_vm_readv(pid_t, const iovec*, std::size_t, const iovec*, std::size_t) noexcept override {
    return -EPERM;
  }
  int ftruncate(int fd, off_t length) noexcept override { return local_.ftruncate(fd, length); }
  int fallocate(int fd, int mode, off_t offset, off_t length) noexcept override {
    return local_.fallocate(fd, mode, offset, length);
  }
  int fcntl(int fd, int command, int argument) noexcept override { return local_.fcntl(fd, command, argument); }
  int fstatfs(int fd, struct statfs* found) noexcept override { return local_.fstatfs(fd, found); }
  void* mmap(std::size_t length, int protection, int flags, int* failure) noexcept override;
  void* mmap_file(std::size_t length, int protection, int flags, int fd, off_t offset, int* failure) noexcept override;
  int munmap(void* address, std::size_t length) noexcept override;
  int madvise(void* address, std::size_t length, int advice) noexcept override {
    return local_.madvise(address, length, advice);
  }
  ssize_t getrandom(void* buffer, std::size_t length, unsigned flags) noexcept override;

 private:
  friend class local_kernel;
  struct socket_end;
  struct pending {
    io_operation* operation;
    bool canceled;
    std::uint64_t content;  // of what a send found when it was started
  };
  class seat;

  [[nodiscard]] socket_end& find(int fd) noexcept;
  [[nodiscard]] socket_end& add_end();
  void tick() noexcept;
  [[nodiscard]] int attempt(pending& item) noexcept;
  [[nodiscard]] bool may_succeed(const pending& item) noexcept;
  [[nodiscard]] seat* draw_seat() noexcept;
  [[nodiscard]] seat* next_seat() noexcept;
  void pass_time() noexcept;
  void look_for_sleepers() noexcept;
  [[nodiscard]] int accept_one(socket_end& listener, io_operation& operation) noexcept;
  [[nodiscard]] int connect_end(socket_end& client, const io_operation& operation) noexcept;
  [[nodiscard]] ssize_t send(socket_end& from, const msghdr& message) noexcept;
  [[nodiscard]] ssize_t receive(socket_end& at, msghdr& message) noexcept;
  [[nodiscard]] bool readable(socket_end& at) noexcept;
  [[nodiscard]] bool fails() noexcept { return call_fails(); }
  [[nodiscard]] bool accept_fails() noexcept;
  [[nodiscard]] bool mapping_fails() noexcept;
  void look_for_timeout(socket_end& at) noexcept;
  void reset_end(socket_end& at, int number, time_point when) noexcept;
  void close_end(socket_end& at) noexcept;
  [[nodiscard]] std::optional<time_point> next_event() noexcept;
  [[nodiscard]] std::optional<time_point> due(const pending& item) noexcept;
  [[nodiscard]] socket_end* client_of(std::uint16_t port) noexcept;
  [[nodiscard]] bool break_off(std::uint16_t port);
  void strike(std::uint16_t port);
  [[nodiscard]] std::vector<socket_end*> clients_over(std::uint16_t port) const;
  [[nodiscard]] bool sever(socket_end& client);
  void stall(socket_end& client, duration how_long);
  [[nodiscard]] std::size_t bytes_under_way(const socket_end& from) const noexcept;

  random dice_;
  const conditions how_;
  fingerprint trace_;
  bool traces_contents_ = true;
  std::uint64_t events_ = 0;
  time_point now_{};
  workers workers_;
  const std::uint64_t ready_seed_;

  baton baton_;
  std::size_t turn_ = 0;  // the seat whose turn it is
  std::vector<std::unique_ptr<seat>> seats_;
  std::uint64_t looks_ = 0;  // how often an executor has had something to do, or time has passed

  std::vector<std::unique_ptr<socket_end>> ends_;  // in order of making; their descriptors count from first_descriptor
  std::vector<const event_source*> sources_;       // by descriptor, from first_source on; null: closed
  std::multimap<time_point, std::function<void()>> plan_;
  std::set<std::uint16_t> disturbed_;
  bool all_disturbed_ = false;
  std::set<std::uint16_t> damaged_;
  std::set<std::uint16_t> cut_cables_;
  std::uint64_t faults_ = 0;
  std::map<void*, std::size_t> mapped_;
  std::uint16_t next_port_ = 40'000;
  unsigned mappings_to_fail_ = 0;
  bool has_failed_mapping_ = false;
  unsigned accepts_to_fail_ = 0;
  std::uint64_t calls_ = 0;
  std::uint64_t call_to_fail_ = 0;  // 0: none
  local_kernel local_{*this};
};

}  // namespace weft::sim
