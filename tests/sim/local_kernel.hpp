// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/system/clock.hpp>
#include <weft/runtime/system/event_driver.hpp>
#include <weft/runtime/system/system_calls.hpp>

#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

struct epoll_event;
struct statfs;

namespace weft::sim {

class world;

/// What processes of one machine share, simulated: AF_UNIX sockets of SOCK_SEQPACKET with abstract names, descriptors
/// that travel over them, and epoll(7) on them. Files in memory are the kernel's own, and so are mappings of them: only
/// their descriptors are numbers of the simulation.
///
/// A packet is there at once, as AF_UNIX has it, but whoever waits for it hears of it after a delay.
class local_kernel {
 public:
  explicit local_kernel(world& place) noexcept;
  local_kernel(const local_kernel&) = delete;
  local_kernel& operator=(const local_kernel&) = delete;
  ~local_kernel();

  /// Whose descriptor it is.
  [[nodiscard]] static bool owns(int fd) noexcept;

  /// Which connection the first packet of a connector belongs to: the port of its client.
  std::function<std::uint16_t(std::span<const std::byte> hello)> port_of_hello;

  // Faults of the connection whose client has this port. They all end in the death of both processes, as each sees it
  // of the other: their sockets end without a word, and what one of them stores in the memory that they share from then
  // on, the other one never sees.

  /// At once. It takes `notice` until they hear of it, or somewhat longer.
  void kill(std::uint16_t port, duration notice = {});
  /// When one end next sends a packet, before it has gone.
  void kill_in_send(std::uint16_t port, bool of_client);
  /// In one of the next calls that they make for the connection.
  void kill_in_call(std::uint16_t port, std::uint64_t calls);
  /// The same, counted from the call on that first hands over memory which the other end may use by itself.
  void kill_in_loan(std::uint16_t port, std::uint64_t calls);
  /// Whether they have died for each other.
  [[nodiscard]] bool is_dead(std::uint16_t port) const noexcept;
  /// For so long wake-ups are on their way.
  void stall(std::uint16_t port, duration how_long);

  /// What is open or mapped: in words, empty if there is nothing.
  [[nodiscard]] std::string leaks() const;

  // For the drivers.
  [[nodiscard]] int attempt(io_operation& operation) noexcept;
  [[nodiscard]] bool may_succeed(const io_operation& operation) noexcept;
  [[nodiscard]] std::optional<time_point> due(const io_operation& operation) noexcept;

  int socket(int type) noexcept;
  int getsockopt(int fd, int level, int name, void* value, socklen_t* length) noexcept;
  int bind(int fd, const sockaddr* address, socklen_t length) noexcept;
  int listen(int fd) noexcept;
  int connect(int fd, const sockaddr* address, socklen_t length) noexcept;
  ssize_t sendmsg(int fd, const msghdr& message) noexcept;
  ssize_t recvmsg(int fd, msghdr& message) noexcept;
  int shutdown(int fd) noexcept;
  int close(int fd) noexcept;
  int fcntl(int fd, int command, int argument) noexcept;
  int fstatfs(int fd, struct statfs* found) noexcept;
  int epoll_create1() noexcept;
  int epoll_ctl(int epoll, int operation, int fd, const epoll_event* event) noexcept;
  int epoll_wait(int epoll, epoll_event* events, int count) noexcept;
  int memfd_create(const char* name, unsigned flags) noexcept;
  int ftruncate(int fd, off_t length) noexcept;
  int fallocate(int fd, int mode, off_t offset, off_t length) noexcept;
  off_t lseek(int fd, off_t offset, int from) noexcept;
  void* mmap_file(std::size_t length, int protection, int flags, int fd, off_t offset, int* failure) noexcept;
  void unmapped(void* address) noexcept;
  /// Null for memory that is no such file's.
  int madvise(void* address, std::size_t length, int advice) noexcept;

 private:
  struct memory_file;
  struct packet;
  struct link;
  struct end;
  struct watched;
  using watch_set = std::vector<std::unique_ptr<watched>>;
  /// What a descriptor stands for: one of them, or nothing once it is closed.
  struct entry;

  [[nodiscard]] int add(entry made);
  [[nodiscard]] entry& find(int fd) noexcept;
  [[nodiscard]] end& find_end(int fd) noexcept;
  [[nodiscard]] memory_file& find_file(int fd) noexcept;
  [[nodiscard]] watch_set& find_set(int fd) noexcept;
  [[nodiscard]] link* link_of(std::uint16_t port) noexcept;
  [[nodiscard]] int accept_one(end& listener, io_operation& operation) noexcept;
  [[nodiscard]] bool readable(const end& at) const noexcept;
  [[nodiscard]] bool has_news(const watch_set& set) const noexcept;
  void name(end& connector, std::span<const std::byte> hello);
  void pass_call(link& on);
  void die(link& which, duration notice);
  void isolate(void* address, std::size_t bytes);
  [[nodiscard]] std::vector<std::shared_ptr<memory_file>> files_of(const msghdr& message) noexcept;
  void hear_end(end& at, bool unread, duration notice) noexcept;
  void close_end(end& at) noexcept;

  world& place_;
  std::vector<std::unique_ptr<entry>> entries_;          // in order of making; descriptors count from the first one
  std::vector<std::shared_ptr<link>> links_;             // that have a name
  std::map<std::string, end*> names_;                    // bound
  std::map<void*, std::shared_ptr<memory_file>> files_;  // by where they are mapped
};

}  // namespace weft::sim
