// SPDX-License-Identifier: Apache-2.0
#include "local_kernel.hpp"

#include <weft/runtime/system/descriptor.hpp>

#include <fmt/core.h>

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/un.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

#include "world.hpp"

namespace weft::sim {
namespace {

constexpr int first_local_descriptor = 3'000'000;  // behind those of the world
// What a socket's buffer has room for: Linux's has for some hundred of the shortest.
constexpr std::size_t most_packets = 100;

system_calls& real() noexcept { return system_calls::kernel(); }

std::string name_in(const sockaddr* address, socklen_t length) {
  const auto* const bytes = reinterpret_cast<const char*>(address);
  return {bytes + offsetof(sockaddr_un, sun_path), bytes + length};
}

std::vector<std::byte> bytes_of(const msghdr& message) {
  std::vector<std::byte> all;
  for (std::size_t i = 0; i < message.msg_iovlen; ++i) {
    const auto* const part = static_cast<const std::byte*>(message.msg_iov[i].iov_base);
    all.insert(all.end(), part, part + message.msg_iov[i].iov_len);
  }
  return all;
}

}  // namespace

/// An open file, of whoever has a descriptor of it, or is about to receive one.
struct local_kernel::memory_file {
  struct mapping {
    void* address;
    std::size_t bytes;
    std::weak_ptr<link> by;  // over which whoever has mapped it was handed it
  };

  explicit memory_file(int descriptor) noexcept : fd(descriptor) {}
  memory_file(const memory_file&) = delete;
  memory_file& operator=(const memory_file&) = delete;
  ~memory_file() { real().close(fd); }

  const int fd;  // the kernel's
  std::vector<mapping> mappings;
};

struct local_kernel::packet {
  std::vector<std::byte> bytes;
  std::vector<std::shared_ptr<memory_file>> files;
  time_point due;
};

/// What the two ends of a connection have in common.
struct local_kernel::link {
  std::uint16_t port = 0;  // 0: it has no name yet
  std::array<end*, 2> ends{};
  std::weak_ptr<memory_file> channel;  // the first file that was passed over it; others are lent
  bool has_channel = false;
  bool lends = false;  // others have been passed, or were about to be
  bool dead = false;
  std::uint64_t calls_to_death = 0;                // 0: it does not die in a call
  std::uint64_t lending_calls_to_death = 0;        // 0: nor in one from its first loan on
  std::array<bool, 2> dies_in_send{false, false};  // of the server, of the client
};

struct local_kernel::end {
  enum class state : std::uint8_t { fresh, listening, connected };

  state now = state::fresh;
  std::string name;
  bool input_shut = false;  // listening: and refuses connections
  std::deque<std::unique_ptr<entry>> backlog;
  time_point came{};  // in a backlog

  std::shared_ptr<link> of;
  bool is_client = false;
  end* peer = nullptr;  // null: closed
  std::deque<packet> incoming;
  time_point last_due{};
  std::optional<time_point> ended;  // the peer's end is heard of
  int untold = 0;                   // an error that nobody has been told of
  watched* watch = nullptr;
};

/// A socket in an epoll, which is told of each event once: EPOLLET.
struct local_kernel::watched {
  end* at = nullptr;
  epoll_data_t data{};
  std::deque<time_point> news;  // of events that have not been told: when they are heard of
};

struct local_kernel::entry {
  std::unique_ptr<end> socket{};
  std::shared_ptr<memory_file> file{};
  std::unique_ptr<watch_set> set{};
  std::shared_ptr<link> came_over{};  // of a file that was received

  [[nodiscard]] bool is_open() const noexcept { return socket || file || set; }
};

local_kernel::local_kernel(world& place) noexcept : place_(place) {}

local_kernel::~local_kernel() = default;

bool local_kernel::owns(int fd) noexcept { return fd >= first_local_descriptor; }

// ---- descriptors ----

int local_kernel::add(entry made) {
  entries_.push_back(std::make_unique<entry>(std::move(made)));
  return first_local_descriptor + static_cast<int>(entries_.size()) - 1;
}

local_kernel::entry& local_kernel::find(int fd) noexcept {
  const auto index = static_cast<std::size_t>(fd - first_local_descriptor);
  if (index >= entries_.size() || !entries_[index]->is_open()) {
    place_.refuse("a call names a descriptor that is not open");
  }
  return *entries_[index];
}

local_kernel::end& local_kernel::find_end(int fd) noexcept {
  entry& found = find(fd);
  if (!found.socket) place_.refuse("a call for a socket names another descriptor");
  return *found.socket;
}

local_kernel::memory_file& local_kernel::find_file(int fd) noexcept {
  entry& found = find(fd);
  if (!found.file) place_.refuse("a call for a file names another descriptor");
  return *found.file;
}

local_kernel::watch_set& local_kernel::find_set(int fd) noexcept {
  entry& found = find(fd);
  if (!found.set) place_.refuse("a call for an epoll names another descriptor");
  return *found.set;
}

int local_kernel::close(int fd) noexcept {
  entry& closed = find(fd);
  if (closed.socket) close_end(*closed.socket);
  if (closed.set) {
    for (const auto& one : *closed.set) one->at->watch = nullptr;
  }
  closed = entry();
  return 0;
}

std::string local_kernel::leaks() const {
  const auto open = std::count_if(entries_.begin(), entries_.end(), [](const auto& one) { return one->is_open(); });
  return open == 0 ? "" : fmt::format("{} local descriptors are open; ", open);
}

// ---- faults ----

local_kernel::link* local_kernel::link_of(std::uint16_t port) noexcept {
  const auto lives = [port](const auto& one) {
    return one->port == port && !one->dead && one->ends[0] != nullptr && one->ends[1] != nullptr;
  };
  const auto found = std::find_if(links_.begin(), links_.end(), lives);
  return found != links_.end() ? &**found : nullptr;
}

void local_kernel::kill(std::uint16_t port, duration notice) {
  if (link* const found = link_of(port)) die(*found, notice);
}

void local_kernel::kill_in_send(std::uint16_t port, bool of_client) {
  if (link* const found = link_of(port)) found->dies_in_send[of_client ? 1 : 0] = true;
}

void local_kernel::kill_in_call(std::uint16_t port, std::uint64_t calls) {
  if (link* const found = link_of(port)) found->calls_to_death = calls;
}

void local_kernel::kill_in_loan(std::uint16_t port, std::uint64_t calls) {
  if (link* const found = link_of(port)) found->lending_calls_to_death = calls;
}

bool local_kernel::is_dead(std::uint16_t port) const noexcept {
  return std::any_of(links_.begin(), links_.end(), [port](const auto& one) { return one->port == port && one->dead; });
}

void local_kernel::stall(std::uint16_t port, duration how_long) {
  link* const found = link_of(port);
  if (found == nullptr) return;
  for (end* const one : found->ends) one->last_due = std::max(one->last_due, place_.now_ + how_long);
  place_.count_fault();
}

void local_kernel::pass_call(link& on) {
  if (on.calls_to_death != 0 && --on.calls_to_death == 0) die(on, {});
  if (on.lends && on.lending_calls_to_death != 0 && --on.lending_calls_to_death == 0) die(on, {});
}

// What is there now stays, and nobody else changes it or sees it changed.
void local_kernel::isolate(void* address, std::size_t bytes) {
  const auto* const first = static_cast<const std::byte*>(address);
  const std::vector<std::byte> contents(first, first + bytes);
  constexpr int anew = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
  if (::mmap(address, bytes, PROT_READ | PROT_WRITE, anew, -1, 0) != address) place_.refuse("mmap(2) fails");
  std::memcpy(address, contents.data(), bytes);
}

// Each end goes on in memory of its own, in which nothing happens any more: as if the other one had died here. That of
// the channel is both ends', what was lent is that of the end that was handed it: its owner may have lent it to others.
void local_kernel::die(link& which, duration notice) {
  if (which.dead || which.ends[0] == nullptr || which.ends[1] == nullptr) return;
  which.dead = true;
  place_.strike(which.port);
  const std::array<bool, 2> unread{!which.ends[0]->incoming.empty(), !which.ends[1]->incoming.empty()};
  for (std::size_t i = 0; i < 2; ++i) hear_end(*which.ends[i], unread[1 - i], notice);
  const auto channel = which.channel.lock();
  for (const auto& [begin, file] : files_) {
    const auto is_here = [address = begin](const auto& one) { return one.address == address; };
    const auto& all = file->mappings;
    const memory_file::mapping& view = *std::find_if(all.begin(), all.end(), is_here);
    if (file == channel || view.by.lock().get() == &which) isolate(view.address, view.bytes);
  }
}

// ---- what comes ----

// `unread`: the peer has not read all that this end had sent.
void local_kernel::hear_end(end& at, bool unread, duration notice) noexcept {
  if (at.ended) return;
  at.ended = at.last_due = std::max(at.last_due, place_.now_ + place_.delay() + notice);
  if (unread) at.untold = ECONNRESET;
  if (at.watch != nullptr) at.watch->news.push_back(*at.ended);
}

void local_kernel::close_end(end& at) noexcept {
  if (at.watch != nullptr) place_.refuse("a socket is closed that an epoll watches");
  if (!at.name.empty()) names_.erase(at.name);
  for (const auto& one : std::exchange(at.backlog, {})) close_end(*one->socket);
  if (at.of) at.of->ends[at.is_client ? 1 : 0] = nullptr;
  end* const peer = std::exchange(at.peer, nullptr);
  if (peer == nullptr) return;
  peer->peer = nullptr;
  hear_end(*peer, !at.incoming.empty(), {});
}

bool local_kernel::readable(const end& at) const noexcept {
  const auto has_come = [this](const auto& one) { return one->socket->came <= place_.now_; };
  if (std::any_of(at.backlog.begin(), at.backlog.end(), has_come)) return true;
  if (!at.incoming.empty() && at.incoming.front().due <= place_.now_) return true;
  return at.ended && *at.ended <= place_.now_;
}

bool local_kernel::has_news(const watch_set& set) const noexcept {
  return std::any_of(set.begin(), set.end(),
                     [this](const auto& one) { return !one->news.empty() && one->news.front() <= place_.now_; });
}

int local_kernel::attempt(io_operation& operation) noexcept {
  entry& target = find(operation.target->fd());
  const bool spurious = place_.dice_.per_mille(place_.how_.spurious_share);
  if (target.set) return has_news(*target.set) || spurious ? POLLIN : -EAGAIN;
  if (operation.kind == io_kind::accept) return accept_one(*target.socket, operation);
  if (operation.kind != io_kind::readable) return -EINVAL;
  return readable(*target.socket) || spurious ? POLLIN : -EAGAIN;
}

bool local_kernel::may_succeed(const io_operation& operation) noexcept {
  const std::optional<time_point> when = due(operation);
  return when && *when <= place_.now_;
}

std::optional<time_point> local_kernel::due(const io_operation& operation) noexcept {
  entry& target = find(operation.target->fd());
  std::optional<time_point> first;
  const auto consider = [&](time_point when) { first = first ? std::min(*first, when) : when; };
  if (target.set) {
    for (const auto& one : *target.set) {
      if (!one->news.empty()) consider(one->news.front());
    }
    return first;
  }
  const end& at = *target.socket;
  for (const auto& one : at.backlog) consider(one->socket->came);
  if (!at.incoming.empty()) consider(at.incoming.front().due);
  if (at.ended) consider(*at.ended);
  if (at.input_shut) consider(place_.now_);
  return first;
}

// ---- sockets ----

int local_kernel::socket(int type) noexcept {
  if ((type & 0xf) != SOCK_SEQPACKET) return -ESOCKTNOSUPPORT;
  if (place_.fails()) return -EMFILE;
  return add({.socket = std::make_unique<end>()});
}

int local_kernel::getsockopt(int fd, int level, int name, void* value, socklen_t* length) noexcept {
  const end& at = find_end(fd);
  if (level != SOL_SOCKET || name != SO_PEERCRED) return -ENOPROTOOPT;
  ucred who{.pid = 0, .uid = static_cast<uid_t>(-1), .gid = static_cast<gid_t>(-1)};
  if (at.now == end::state::connected) who = {.pid = ::getpid(), .uid = ::geteuid(), .gid = ::getegid()};
  *length = std::min<socklen_t>(*length, sizeof who);
  std::memcpy(value, &who, *length);
  return 0;
}

int local_kernel::bind(int fd, const sockaddr* address, socklen_t length) noexcept {
  end& at = find_end(fd);
  std::string asked = name_in(address, length);
  if (asked.empty() || asked[0] != '\0') return -EACCES;  // there are no directories here
  if (place_.fails() || names_.contains(asked)) return -EADDRINUSE;
  at.name = std::move(asked);
  names_.emplace(at.name, &at);
  return 0;
}

int local_kernel::listen(int fd) noexcept {
  end& at = find_end(fd);
  if (place_.fails()) return -EADDRINUSE;
  at.now = end::state::listening;
  return 0;
}

int local_kernel::connect(int fd, const sockaddr* address, socklen_t length) noexcept {
  end& client = find_end(fd);
  const auto found = names_.find(name_in(address, length));
  if (found == names_.end()) return -ECONNREFUSED;
  end& listener = *found->second;
  if (listener.now != end::state::listening || listener.input_shut || place_.fails()) return -ECONNREFUSED;
  if (place_.dice_.per_mille(place_.how_.spurious_share)) return place_.dice_.one_in(2) ? -EAGAIN : -EINTR;
  auto made = std::make_unique<end>();
  end& server = *made;
  client.of = server.of = std::make_shared<link>();
  client.of->ends = {&server, &client};
  client.is_client = true;
  client.peer = &server;
  server.peer = &client;
  client.now = server.now = end::state::connected;
  server.came = server.last_due = place_.now_ + place_.delay();
  listener.backlog.push_back(std::make_unique<entry>(entry{.socket = std::move(made)}));
  return 0;
}

int local_kernel::accept_one(end& listener, io_operation& operation) noexcept {
  if (listener.input_shut) return -EINVAL;
  if (listener.backlog.empty() || listener.backlog.front()->socket->came > place_.now_) return -EAGAIN;
  if (place_.accept_fails()) return -EMFILE;
  const int fd = add(std::move(*listener.backlog.front()));
  listener.backlog.pop_front();
  if (operation.peer != nullptr) {
    operation.peer->ss_family = AF_UNIX;
    operation.peer_length = sizeof(sa_family_t);
  }
  return fd;
}

void local_kernel::name(end& connector, std::span<const std::byte> hello) {
  if (!connector.is_client || connector.of->port != 0 || !port_of_hello) return;
  connector.of->port = port_of_hello(hello);
  links_.push_back(connector.of);
}

std::vector<std::shared_ptr<local_kernel::memory_file>> local_kernel::files_of(const msghdr& message) noexcept {
  std::vector<std::shared_ptr<memory_file>> files;
  for (cmsghdr* each = CMSG_FIRSTHDR(&message); each != nullptr;
       each = CMSG_NXTHDR(const_cast<msghdr*>(&message), each)) {
    const std::size_t count = (each->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int passed = -1;
      std::memcpy(&passed, CMSG_DATA(each) + i * sizeof passed, sizeof passed);
      static_cast<void>(find_file(passed));
      files.push_back(find(passed).file);
    }
  }
  return files;
}

ssize_t local_kernel::sendmsg(int fd, const msghdr& message) noexcept {
  end& from = find_end(fd);
  if (from.now != end::state::connected) return -ENOTCONN;
  packet item{.bytes = bytes_of(message), .files = {}, .due = {}};
  name(from, item.bytes);
  const bool lends = from.of->has_channel && message.msg_controllen != 0;
  if (lends) from.of->lends = true;
  pass_call(*from.of);
  if (std::exchange(from.of->dies_in_send[from.is_client ? 1 : 0], false)) die(*from.of, {});
  if (from.untold != 0) return -std::exchange(from.untold, 0);
  if (from.peer == nullptr || from.of->dead) return -EPIPE;
  if (place_.fails()) return -ENOBUFS;
  end& to = *from.peer;
  if (to.incoming.size() >= most_packets) return -EAGAIN;
  item.files = files_of(message);
  if (!item.files.empty() && !from.of->has_channel) from.of->channel = item.files.front();
  if (!item.files.empty()) from.of->has_channel = true;
  const std::size_t size = item.bytes.size();
  item.due = to.last_due = std::max(to.last_due, place_.now_ + place_.delay());
  if (to.watch != nullptr) to.watch->news.push_back(item.due);
  place_.note(size);
  to.incoming.push_back(std::move(item));
  return static_cast<ssize_t>(size);
}

ssize_t local_kernel::recvmsg(int fd, msghdr& message) noexcept {
  end& at = find_end(fd);
  if (at.now != end::state::connected) return -ENOTCONN;
  message.msg_flags = 0;
  pass_call(*at.of);
  if (place_.dice_.per_mille(place_.how_.spurious_share)) return -EINTR;
  if (at.untold != 0 && *at.ended <= place_.now_) return -std::exchange(at.untold, 0);
  if (at.incoming.empty()) {
    message.msg_controllen = 0;
    return at.ended && *at.ended <= place_.now_ ? 0 : -EAGAIN;
  }
  const packet item = std::move(at.incoming.front());
  at.incoming.pop_front();
  std::size_t done = 0;
  for (std::size_t i = 0; i < message.msg_iovlen && done < item.bytes.size(); ++i) {
    const std::size_t part = std::min(message.msg_iov[i].iov_len, item.bytes.size() - done);
    std::memcpy(message.msg_iov[i].iov_base, item.bytes.data() + done, part);
    done += part;
  }
  std::vector<int> taken;
  for (const auto& file : item.files) {
    const bool fits = CMSG_SPACE((taken.size() + 1) * sizeof(int)) <= message.msg_controllen;
    if (!fits || place_.fails()) {
      message.msg_flags |= MSG_CTRUNC;
      break;
    }
    taken.push_back(add({.file = file, .came_over = at.of}));
  }
  if (taken.empty()) {
    message.msg_controllen = 0;
  } else {
    const std::span<const std::byte> numbers = std::as_bytes(std::span(taken));
    cmsghdr& header = *CMSG_FIRSTHDR(&message);
    header.cmsg_level = SOL_SOCKET;
    header.cmsg_type = SCM_RIGHTS;
    header.cmsg_len = CMSG_LEN(numbers.size());
    std::memcpy(CMSG_DATA(&header), numbers.data(), numbers.size());
    message.msg_controllen = CMSG_SPACE(numbers.size());
  }
  return static_cast<ssize_t>(done);
}

int local_kernel::shutdown(int fd) noexcept {
  find_end(fd).input_shut = true;
  return 0;
}

// ---- epoll(7) ----

int local_kernel::epoll_create1() noexcept {
  if (place_.fails()) return -EMFILE;
  return add({.set = std::make_unique<watch_set>()});
}

int local_kernel::epoll_ctl(int epoll, int operation, int fd, const epoll_event* event) noexcept {
  watch_set& set = find_set(epoll);
  end& at = find_end(fd);
  const auto found = std::find_if(set.begin(), set.end(), [&](const auto& one) { return one->at == &at; });
  if (operation == EPOLL_CTL_DEL) {
    if (found == set.end()) return -ENOENT;
    at.watch = nullptr;
    set.erase(found);
    return 0;
  }
  if (operation != EPOLL_CTL_ADD || (event->events & EPOLLET) == 0) place_.refuse("an epoll that nobody simulates");
  if (found != set.end()) return -EEXIST;
  if (place_.fails()) return -ENOMEM;
  watched& made = *set.emplace_back(std::make_unique<watched>());
  made.at = &at;
  made.data = event->data;
  at.watch = &made;
  for (const packet& item : at.incoming) made.news.push_back(item.due);
  if (at.ended) made.news.push_back(*at.ended);
  return 0;
}

int local_kernel::epoll_wait(int epoll, epoll_event* events, int count) noexcept {
  watch_set& set = find_set(epoll);
  std::vector<watched*> todo;
  for (const auto& one : set) {
    const bool has_come = !one->news.empty() && one->news.front() <= place_.now_;
    if (has_come || place_.dice_.per_mille(place_.how_.spurious_share)) todo.push_back(&*one);
  }
  int told = 0;
  while (!todo.empty() && told < count) {
    const auto choice = static_cast<std::ptrdiff_t>(place_.how_.shuffle ? place_.dice_.below(todo.size()) : 0);
    watched& one = *todo[static_cast<std::size_t>(choice)];
    todo.erase(todo.begin() + choice);
    while (!one.news.empty() && one.news.front() <= place_.now_) one.news.pop_front();
    const bool at_end = one.at->ended && *one.at->ended <= place_.now_;
    epoll_event& into = events[told++];
    into.events = EPOLLIN;
    if (at_end) into.events |= EPOLLRDHUP | EPOLLHUP;
    if (at_end && one.at->untold != 0) into.events |= EPOLLERR;
    into.data = one.data;
    if (place_.dice_.per_mille(place_.how_.short_share)) break;
  }
  place_.note(static_cast<std::uint64_t>(told));
  return told;
}

// ---- files in memory ----

int local_kernel::memfd_create(const char* name, unsigned flags) noexcept {
  if (place_.fails()) return -EMFILE;
  const int made = real().memfd_create(name, flags);
  return made < 0 ? made : add({.file = std::make_shared<memory_file>(made)});
}

int local_kernel::ftruncate(int fd, off_t length) noexcept {
  return place_.fails() ? -ENOMEM : real().ftruncate(find_file(fd).fd, length);
}

int local_kernel::fallocate(int fd, int mode, off_t offset, off_t length) noexcept {
  return place_.fails() ? -ENOMEM : real().fallocate(find_file(fd).fd, mode, offset, length);
}

off_t local_kernel::lseek(int fd, off_t offset, int from) noexcept {
  return real().lseek(find_file(fd).fd, offset, from);
}

int local_kernel::fcntl(int fd, int command, int argument) noexcept {
  entry& target = find(fd);
  if (target.socket) return command == F_SETFL ? 0 : -EINVAL;
  const memory_file& file = find_file(fd);
  if (target.came_over) pass_call(*target.came_over);
  if (command == F_ADD_SEALS && place_.fails()) return -ENOSYS;
  if (command != F_DUPFD_CLOEXEC) return real().fcntl(file.fd, command, argument);
  return place_.fails() ? -EMFILE : add({.file = target.file, .came_over = target.came_over});
}

int local_kernel::fstatfs(int fd, struct statfs* found) noexcept {
  return place_.fails() ? -EIO : real().fstatfs(find_file(fd).fd, found);
}

void* local_kernel::mmap_file(std::size_t length, int protection, int flags, int fd, off_t offset,
                              int* failure) noexcept {
  const std::shared_ptr<memory_file> file = find(fd).file;
  const std::shared_ptr<link> by = find(fd).came_over;
  if (by) pass_call(*by);
  if (place_.mapping_fails()) {
    for (const auto& one : links_) {
      if (one->channel.lock() == file) place_.disturb(one->port);
    }
    *failure = ENOMEM;
    return nullptr;
  }
  void* const address = real().mmap_file(length, protection, flags, find_file(fd).fd, offset, failure);
  if (address == nullptr) return nullptr;
  file->mappings.push_back({.address = address, .bytes = length, .by = by});
  files_.emplace(address, file);
  if (by && by->dead) isolate(address, length);
  if (by) pass_call(*by);
  return address;
}

void local_kernel::unmapped(void* address) noexcept {
  const auto found = files_.find(address);
  if (found == files_.end()) return;
  std::erase_if(found->second->mappings, [address](const auto& one) { return one.address == address; });
  files_.erase(found);
}

int local_kernel::madvise(void* address, std::size_t length, int advice) noexcept {
  const auto after = files_.upper_bound(address);
  const bool is_ours = after != files_.begin() && [&] {
    const auto& [begin, file] = *std::prev(after);
    const auto* const at = static_cast<const std::byte*>(begin);
    return std::any_of(file->mappings.begin(), file->mappings.end(),
                       [&](const auto& one) { return one.address == begin && address < at + one.bytes; });
  }();
  if (is_ours && advice == MADV_POPULATE_WRITE && place_.fails()) return -ENOMEM;
  return real().madvise(address, length, advice);
}

}  // namespace weft::sim
