// SPDX-License-Identifier: Apache-2.0
#include "world.hpp"

#include <weft/runtime/descriptor.hpp>

#include <fmt/core.h>

#include <netinet/in.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <exception>
#include <utility>

namespace weft::sim {
namespace {

constexpr int first_descriptor = 1'000'000;  // far from those of the process
constexpr int first_source = 2'000'000;
// A run that takes longer does not end.
constexpr std::uint64_t most_events = 20'000'000;
constexpr duration longest_run = std::chrono::hours(1);

std::size_t size_of(const msghdr& message) noexcept {
  std::size_t total = 0;
  for (std::size_t i = 0; i < message.msg_iovlen; ++i) total += message.msg_iov[i].iov_len;
  return total;
}

std::uint64_t content_of(const msghdr& message) noexcept {
  fingerprint content;
  for (std::size_t i = 0; i < message.msg_iovlen; ++i) {
    content.add(std::span(static_cast<const std::byte*>(message.msg_iov[i].iov_base), message.msg_iov[i].iov_len));
  }
  return content.value();
}

sockaddr_in address_of(std::uint32_t host, std::uint16_t port) noexcept {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = host;
  address.sin_port = htons(port);
  return address;
}

}  // namespace

/// A socket.
struct world::socket_end {
  enum class state : std::uint8_t { fresh, listening, connecting, connected, closed };
  struct packet {
    std::vector<std::byte> bytes;
    std::size_t taken;
    time_point due;
  };

  int fd = -1;
  state now = state::fresh;
  std::uint32_t host = 0;  // network byte order, as in a sockaddr_in
  std::uint16_t port = 0;
  std::uint16_t client_port = 0;  // names the connection
  bool is_client = false;
  socket_end* peer = nullptr;

  std::deque<socket_end*> backlog;  // listening: ends that have come, and whose peers may have gone
  int connect_result = 0;
  time_point connect_due{};

  std::deque<packet> incoming;
  std::size_t incoming_bytes = 0;
  time_point last_due{};                 // of what was sent to us: nothing overtakes
  std::optional<time_point> finished{};  // the peer's FIN comes
  std::optional<time_point> reset{};     // a reset comes
  int reset_number = 0;
  bool broken = false;  // it has come
  int untold = 0;       // and nobody has been told why
  bool output_shut = false;
  bool reset_on_close = false;
  bool severed = false;       // what is sent to it gets lost
  bool damaged = false;       // the next packet to it
  std::uint64_t arrived = 0;  // bytes that were sent to it
  std::optional<time_point> cut{};
  duration user_timeout = std::chrono::hours(2);
  int next_send_fails = 0;
};

world::world(std::uint64_t seed, const conditions& how)
    : dice_(seed),
      how_(how),
      workers_(*this, dice_, duration(static_cast<duration::rep>(how.longest_job_ns))),
      ready_seed_(dice_.next()) {}

world::~world() { assert(started_.empty() && "a simulated kernel ended with operations in progress"); }

executor_options world::options(bool shuffle_tasks) noexcept {
  executor_options chosen;
  chosen.clock = this;
  chosen.system_calls = this;
  chosen.simulated_driver = this;
  chosen.workers = &workers_;
  if (shuffle_tasks) chosen.ready_order_seed = ready_seed_;
  return chosen;
}

void world::at(duration when, std::function<void()> what) { plan_.emplace(time_point() + when, std::move(what)); }

int world::open_source(const event_source& what) {
  sources_.push_back(&what);
  return first_source + static_cast<int>(sources_.size() - 1);
}

void world::close_source(int fd) noexcept { sources_[static_cast<std::size_t>(fd - first_source)] = nullptr; }

std::string world::leaks() const {
  std::string found;
  const auto watched =
      std::count_if(sources_.begin(), sources_.end(), [](const event_source* s) { return s != nullptr; });
  if (watched != 0) found += fmt::format("{} descriptors are open; ", watched);
  const auto open =
      std::count_if(ends_.begin(), ends_.end(), [](const auto& e) { return e->now != socket_end::state::closed; });
  if (open != 0) found += fmt::format("{} sockets are open; ", open);
  if (!mapped_.empty()) found += fmt::format("{} mappings are left; ", mapped_.size());
  if (!workers_.idle()) found += "a worker has jobs; ";
  return found;
}

void world::refuse(std::string_view what) noexcept {
  std::string why = fmt::format("{} after {} events and {} us of virtual time", what, events_,
                                std::chrono::duration_cast<std::chrono::microseconds>(elapsed()).count());
  if (const executor* const home = executor::current()) why += "\n" + home->dump();
  if (give_up) give_up(why);
  fmt::print(stderr, "{}\n", why);
  std::terminate();
}

// ---- faults ----

world::socket_end* world::client_of(std::uint16_t port) noexcept {
  for (const auto& item : ends_) {
    const bool lives = item->now == socket_end::state::connected || item->now == socket_end::state::connecting;
    if (lives && item->is_client && item->client_port == port) return item.get();
  }
  return nullptr;
}

void world::reset(std::uint16_t port) {
  disturb(port);
  socket_end* const client = client_of(port);
  if (client == nullptr || client->peer == nullptr) return;
  for (socket_end* const one : {client, client->peer}) {
    std::erase_if(one->incoming, [this](const socket_end::packet& item) { return item.due > now_; });
    one->incoming_bytes = 0;
    for (const socket_end::packet& item : one->incoming) one->incoming_bytes += item.bytes.size() - item.taken;
    one->severed = true;
    reset_end(*one, ECONNRESET, now_ + delay());
  }
}

void world::cut(std::uint16_t port) {
  disturb(port);
  socket_end* const client = client_of(port);
  if (client == nullptr || client->peer == nullptr) return;
  for (socket_end* const one : {client, client->peer}) one->cut = now_;
}

void world::fail_send(std::uint16_t port, bool of_client, int number) {
  disturb(port);
  socket_end* const client = client_of(port);
  if (client == nullptr || client->peer == nullptr) return;
  (of_client ? client : client->peer)->next_send_fails = number;
}

void world::damage(std::uint16_t port) {
  disturb(port);
  if (socket_end* const client = client_of(port); client != nullptr && client->peer != nullptr) {
    (dice_.one_in(2) ? client : client->peer)->damaged = true;
  }
  at(elapsed() + std::chrono::milliseconds(100), [this, port] { reset(port); });
}

void world::stall(std::uint16_t port, duration how_long) {
  socket_end* const client = client_of(port);
  if (client == nullptr || client->peer == nullptr) return;
  for (socket_end* const one : {client, client->peer}) one->last_due = std::max(one->last_due, now_ + how_long);
}

// ---- time ----

duration world::delay() noexcept { return duration(static_cast<duration::rep>(dice_.skewed(how_.longest_delay_ns))); }

void world::tick() noexcept {
  if (++events_ > most_events || elapsed() > longest_run) refuse("it does not end");
  now_ += duration(static_cast<duration::rep>(1 + dice_.below(how_.longest_turn_ns)));
  while (!plan_.empty() && plan_.begin()->first <= now_) {
    const auto what = std::move(plan_.begin()->second);
    plan_.erase(plan_.begin());
    what();
  }
}

std::optional<time_point> world::due(const pending& item) const noexcept {
  const descriptor& target = *item.operation->target;
  if (target.fd() >= first_source) return std::nullopt;  // whatever makes it readable is planned
  const socket_end& at = *ends_[static_cast<std::size_t>(target.fd() - first_descriptor)];
  std::optional<time_point> first;
  const auto consider = [&](time_point when) { first = first ? std::min(*first, when) : when; };
  if (at.reset) consider(*at.reset);
  if (at.cut) consider(*at.cut + at.user_timeout);
  switch (item.operation->kind) {
    case io_kind::accept:
      for (const socket_end* one : at.backlog) consider(one->connect_due);
      break;
    case io_kind::connect:
      if (at.now == socket_end::state::connecting) consider(at.connect_due);
      break;
    case io_kind::receive:
    case io_kind::readable:
      if (!at.cut && !at.incoming.empty()) consider(at.incoming.front().due);
      if (!at.cut && at.finished) consider(*at.finished);
      break;
    case io_kind::send:
      break;  // room comes from the other end's calls
    case io_kind::read:
    case io_kind::write:
    case io_kind::sync:
      break;  // there are no files here
  }
  return first;
}

std::optional<time_point> world::next_event() const noexcept {
  std::optional<time_point> first = workers_.next_due();
  const auto consider = [&](std::optional<time_point> when) {
    if (when) first = first ? std::min(*first, *when) : *when;
  };
  for (const pending& item : started_) consider(due(item));
  if (!plan_.empty()) consider(plan_.begin()->first);
  return first;
}

// ---- the driver ----

void world::start(io_operation& operation) noexcept {
  begin(operation);
  const bool sends = operation.kind == io_kind::send;
  started_.push_back(
      {.operation = &operation, .canceled = false, .content = sends ? content_of(*operation.message) : 0});
}

void world::cancel(io_operation& operation) noexcept {
  for (pending& item : started_) {
    if (item.operation == &operation) item.canceled = true;
  }
}

void world::finish(std::size_t index, int result) noexcept {
  io_operation& operation = *started_[index].operation;
  started_.erase(started_.begin() + static_cast<std::ptrdiff_t>(index));
  trace_.add(static_cast<std::uint64_t>(operation.kind));
  trace_.add(static_cast<std::uint64_t>(operation.target->fd()));
  trace_.add(static_cast<std::uint64_t>(result));
  trace_.add(static_cast<std::uint64_t>(elapsed().count()));
  end(operation, result);
}

// Completes what can be completed, in an order of the seed's. Completing may start and cancel others, so each choice is
// made anew. `lazily`: the kernel may not have come to all of it.
std::size_t world::complete_some(std::size_t budget, bool lazily) noexcept {
  std::vector<io_operation*> todo;
  todo.reserve(started_.size());
  for (const pending& item : started_) todo.push_back(item.operation);
  std::size_t count = 0;
  while (!todo.empty() && count < budget) {
    const auto choice = static_cast<std::ptrdiff_t>(how_.shuffle ? dice_.below(todo.size()) : 0);
    io_operation* const chosen = todo[static_cast<std::size_t>(choice)];
    todo.erase(todo.begin() + choice);
    const auto found =
        std::find_if(started_.begin(), started_.end(), [&](const pending& p) { return p.operation == chosen; });
    if (found == started_.end()) continue;  // a completion of another one has ended it
    if (lazily && dice_.per_mille(how_.idle_share)) continue;
    const auto index = static_cast<std::size_t>(found - started_.begin());
    const bool too_late = found->canceled && dice_.one_in(4);  // it ends by itself first, if it can
    if (found->canceled && !too_late) {
      finish(index, -ECANCELED);
      ++count;
      continue;
    }
    int result = attempt(*found);
    if (result == -EAGAIN) {
      if (!found->canceled) continue;
      result = -ECANCELED;
    }
    finish(index, result);
    ++count;
  }
  return count;
}

std::size_t world::poll(std::size_t budget) noexcept {
  tick();
  const std::size_t jobs = workers_.run_due();
  return jobs + complete_some(budget, true);
}

std::size_t world::wait(std::size_t budget, std::optional<duration> timeout) noexcept {
  tick();
  const std::optional<time_point> deadline = timeout ? std::optional(later(now_, *timeout)) : std::nullopt;
  for (;;) {
    const std::size_t count = workers_.run_due() + complete_some(budget, false);
    if (count != 0 || std::exchange(woken_, false)) return count;
    std::optional<time_point> next = next_event();
    if (deadline && (!next || *deadline < *next)) next = deadline;
    if (!next) refuse("everybody waits, and nothing is to come");
    if (deadline && *deadline <= now_) return 0;
    now_ = std::max(now_, *next);
    tick();
  }
}

int world::try_now(io_operation& operation) noexcept {
  if (operation.kind != io_kind::send || dice_.one_in(2)) return -EAGAIN;
  socket_end& from = find(operation.target->fd());
  return static_cast<int>(send(from, *operation.message));
}

ssize_t world::try_receive(descriptor& source, msghdr& message) noexcept {
  if (dice_.per_mille(how_.spurious_share)) return dice_.one_in(2) ? -EAGAIN : -EINTR;
  return receive(find(source.fd()), message);
}

int world::attempt(pending& item) noexcept {
  io_operation& operation = *item.operation;
  if (operation.target->fd() >= first_source) {
    const event_source* const what = sources_[static_cast<std::size_t>(operation.target->fd() - first_source)];
    if (what == nullptr) refuse("a closed descriptor is watched");
    return what->has_something() || dice_.per_mille(how_.spurious_share) ? POLLIN : -EAGAIN;
  }
  socket_end& at = find(operation.target->fd());
  switch (operation.kind) {
    case io_kind::accept:
      return accept_one(at, operation);
    case io_kind::connect:
      return connect_end(at, operation);
    case io_kind::send:
      if (content_of(*operation.message) != item.content) refuse("memory has changed while the kernel was sending it");
      if (dice_.per_mille(how_.spurious_share)) return -EINTR;
      return static_cast<int>(send(at, *operation.message));
    case io_kind::receive:
      if (dice_.per_mille(how_.spurious_share)) return -EINTR;
      return static_cast<int>(receive(at, *operation.message));
    case io_kind::readable:
      return readable(at) ? POLLIN : -EAGAIN;
    case io_kind::read:
    case io_kind::write:
    case io_kind::sync:
      break;  // there are no files here
  }
  return -EINVAL;
}

// ---- sockets ----

world::socket_end& world::find(int fd) noexcept {
  const auto index = static_cast<std::size_t>(fd - first_descriptor);
  if (fd < first_descriptor || index >= ends_.size() || ends_[index]->now == socket_end::state::closed) {
    refuse("a call names a descriptor that is not open");
  }
  return *ends_[index];
}

world::socket_end& world::add_end() {
  ends_.push_back(std::make_unique<socket_end>());
  ends_.back()->fd = first_descriptor + static_cast<int>(ends_.size()) - 1;
  return *ends_.back();
}

int world::accept_one(socket_end& listener, io_operation& operation) noexcept {
  const auto ripe = std::find_if(listener.backlog.begin(), listener.backlog.end(),
                                 [this](const socket_end* one) { return one->connect_due <= now_; });
  if (ripe == listener.backlog.end()) return -EAGAIN;
  if (accepts_to_fail_ != 0 || fails()) {
    accepts_to_fail_ -= accepts_to_fail_ != 0 ? 1 : 0;
    return -EMFILE;
  }
  // Those whose set-up took longer may have come first: any that is there.
  std::vector<std::size_t> choices;
  for (std::size_t i = 0; i < listener.backlog.size(); ++i) {
    if (listener.backlog[i]->connect_due <= now_) choices.push_back(i);
  }
  const std::size_t choice = choices[dice_.below(choices.size())];
  socket_end& accepted = *listener.backlog[choice];
  listener.backlog.erase(listener.backlog.begin() + static_cast<std::ptrdiff_t>(choice));
  if (operation.peer != nullptr) {
    const sockaddr_in from = address_of(listener.host, accepted.client_port);
    std::memcpy(operation.peer, &from, sizeof from);
    operation.peer_length = sizeof from;
  }
  return accepted.fd;
}

int world::connect_end(socket_end& client, const io_operation& operation) noexcept {
  if (client.now == socket_end::state::connected) return 0;
  if (client.now == socket_end::state::fresh) {
    sockaddr_in to{};
    std::memcpy(&to, operation.peer, sizeof to);
    const auto found = std::find_if(ends_.begin(), ends_.end(), [&](const auto& one) {
      return one->now == socket_end::state::listening && one->port == ntohs(to.sin_port);
    });
    if (client.port == 0) client.port = next_port_++;
    client.client_port = client.port;
    client.is_client = true;
    client.now = socket_end::state::connecting;
    client.connect_due = now_ + delay();
    client.connect_result = -ECONNREFUSED;
    if (found != ends_.end() && !fails()) {
      socket_end& listener = **found;
      socket_end& server = add_end();
      server.now = socket_end::state::connected;
      server.host = listener.host;
      server.port = listener.port;
      server.client_port = client.port;
      server.peer = &client;
      server.connect_due = now_ + delay();
      listener.backlog.push_back(&server);
      client.peer = &server;
      client.connect_result = 0;
    }
  }
  if (client.connect_due > now_) return -EAGAIN;
  if (client.connect_result == 0)
    client.now = socket_end::state::connected;
  else
    client.now = socket_end::state::fresh;
  return client.connect_result;
}

void world::reset_end(socket_end& at, int number, time_point when) noexcept {
  if (at.broken || at.now == socket_end::state::closed) return;
  when = std::max(when, at.last_due);
  if (at.reset && *at.reset <= when) return;
  at.reset = when;
  at.reset_number = number;
}

void world::look_for_timeout(socket_end& at) noexcept {
  if (at.cut && now_ >= *at.cut + at.user_timeout && !at.broken && !at.reset) {
    at.reset = now_;
    at.reset_number = ETIMEDOUT;
  }
  if (!at.reset || *at.reset > now_) return;
  at.reset.reset();
  at.broken = true;
  at.untold = at.reset_number;
}

ssize_t world::send(socket_end& from, const msghdr& message) noexcept {
  look_for_timeout(from);
  if (from.untold != 0) return -std::exchange(from.untold, 0);
  if (from.broken || from.output_shut) return -EPIPE;
  if (fails()) from.next_send_fails = ENOBUFS;
  if (from.next_send_fails != 0) {
    const int number = std::exchange(from.next_send_fails, 0);
    reset_end(*from.peer, ECONNRESET, now_ + delay());
    from.broken = true;
    return -number;
  }
  socket_end& to = *from.peer;
  const std::size_t wanted = size_of(message);
  const std::size_t used = to.incoming_bytes;
  if (used >= how_.socket_bytes) return -EAGAIN;
  std::size_t count = std::min(
      {wanted, static_cast<std::size_t>(how_.socket_bytes - used), static_cast<std::size_t>(how_.packet_bytes)});
  if (dice_.per_mille(how_.short_share)) count = std::min<std::size_t>(count, 1 + dice_.skewed(count));
  socket_end::packet item;
  item.taken = 0;
  item.bytes.reserve(count);
  for (std::size_t i = 0; i < message.msg_iovlen && item.bytes.size() < count; ++i) {
    const auto* const data = static_cast<const std::byte*>(message.msg_iov[i].iov_base);
    const std::size_t part = std::min(message.msg_iov[i].iov_len, count - item.bytes.size());
    item.bytes.insert(item.bytes.end(), data, data + part);
  }
  constexpr std::uint64_t set_up_bytes = 400;  // and more
  if (to.damaged && to.arrived > set_up_bytes) {
    to.damaged = false;
    item.bytes[dice_.below(count)] ^= static_cast<std::byte>(1U << dice_.below(8));
  }
  to.arrived += count;
  trace_.add(item.bytes);
  item.due = to.last_due = std::max(to.last_due, now_ + delay());
  if (to.now == socket_end::state::closed) {
    reset_end(from, ECONNRESET, item.due + delay());
  } else if (!to.severed) {
    to.incoming_bytes += count;
    to.incoming.push_back(std::move(item));
  }
  return static_cast<ssize_t>(count);
}

ssize_t world::receive(socket_end& at, msghdr& message) noexcept {
  look_for_timeout(at);
  if (!at.broken && fails()) {
    reset_end(*at.peer, ECONNRESET, now_ + delay());
    at.broken = true;
    at.incoming.clear();
    at.incoming_bytes = 0;
    return -ETIMEDOUT;
  }
  const bool open = !at.cut || at.broken;
  std::size_t most = std::min(size_of(message), static_cast<std::size_t>(how_.packet_bytes));
  if (dice_.per_mille(how_.short_share)) most = std::min<std::size_t>(most, 1 + dice_.skewed(most));
  std::size_t done = 0;
  std::size_t part = 0;
  std::size_t offset = 0;
  while (done < most && open && !at.incoming.empty() && at.incoming.front().due <= now_) {
    socket_end::packet& item = at.incoming.front();
    while (offset == message.msg_iov[part].iov_len) {
      ++part;
      offset = 0;
    }
    const std::size_t count =
        std::min({item.bytes.size() - item.taken, message.msg_iov[part].iov_len - offset, most - done});
    std::memcpy(static_cast<std::byte*>(message.msg_iov[part].iov_base) + offset, item.bytes.data() + item.taken,
                count);
    offset += count;
    item.taken += count;
    done += count;
    if (item.taken == item.bytes.size()) at.incoming.pop_front();
  }
  at.incoming_bytes -= done;
  trace_.add(done);
  if (done != 0) return static_cast<ssize_t>(done);
  if (at.untold != 0) return -std::exchange(at.untold, 0);
  if (at.broken) return 0;
  if (open && at.incoming.empty() && at.finished && *at.finished <= now_) return 0;
  return -EAGAIN;
}

bool world::readable(socket_end& at) noexcept {
  look_for_timeout(at);
  if (at.broken || dice_.per_mille(how_.spurious_share)) return true;
  if (at.cut) return false;
  if (!at.incoming.empty()) return at.incoming.front().due <= now_;
  return at.finished && *at.finished <= now_;
}

// ---- system calls ----

int world::socket(int domain, int, int) noexcept {
  if (domain != AF_INET) return -EAFNOSUPPORT;
  if (fails()) return -EMFILE;
  return add_end().fd;
}

int world::setsockopt(int fd, int level, int name, const void* value, socklen_t) noexcept {
  socket_end& at = find(fd);
  if (fails()) return -ENOBUFS;
  if (level == SOL_SOCKET && name == SO_LINGER) {
    const auto* const how = static_cast<const linger*>(value);
    at.reset_on_close = how->l_onoff != 0 && how->l_linger == 0;
  }
  if (level == IPPROTO_TCP && name == TCP_USER_TIMEOUT) {
    int milliseconds = 0;
    std::memcpy(&milliseconds, value, sizeof milliseconds);
    at.user_timeout = std::chrono::milliseconds(milliseconds);
  }
  return 0;
}

int world::getsockopt(int fd, int level, int name, void* value, socklen_t* length) noexcept {
  socket_end& at = find(fd);
  const auto give = [&](const auto& what) {
    *length = std::min<socklen_t>(*length, sizeof what);
    std::memcpy(value, &what, *length);
    return 0;
  };
  if (level == IPPROTO_TCP && name == TCP_MAXSEG) return give(int{1460});
  if (level == IPPROTO_TCP && name == TCP_INFO) {
    look_for_timeout(at);
    tcp_info about{};
    about.tcpi_state = at.broken ? TCP_CLOSE : TCP_ESTABLISHED;
    return give(about);
  }
  if (level == SOL_SOCKET && name == SO_ERROR) return give(std::exchange(at.untold, 0));
  return -ENOPROTOOPT;
}

int world::bind(int fd, const sockaddr* address, socklen_t) noexcept {
  if (fails()) return -EADDRINUSE;
  sockaddr_in asked{};
  std::memcpy(&asked, address, sizeof asked);
  socket_end& at = find(fd);
  at.host = asked.sin_addr.s_addr;
  at.port = ntohs(asked.sin_port);
  return 0;
}

int world::listen(int fd, int) noexcept {
  socket_end& at = find(fd);
  if (fails()) return -EADDRINUSE;
  if (at.port == 0) at.port = next_port_++;
  at.now = socket_end::state::listening;
  return 0;
}

int world::getsockname(int fd, sockaddr* address, socklen_t* length) noexcept {
  if (fails()) return -ENOBUFS;
  const socket_end& at = find(fd);
  const sockaddr_in own = address_of(at.host, at.port);
  std::memcpy(address, &own, sizeof own);
  *length = sizeof own;
  return 0;
}

ssize_t world::sendmsg(int fd, const msghdr* message, int) noexcept { return send(find(fd), *message); }

int world::shutdown(int fd, int) noexcept {
  socket_end& at = find(fd);
  if (at.now == socket_end::state::listening) {
    for (socket_end* const one : std::exchange(at.backlog, {})) close_end(*one);
    at.now = socket_end::state::fresh;
    return 0;
  }
  if (at.now != socket_end::state::connected) return -ENOTCONN;
  if (std::exchange(at.output_shut, true) || at.broken || at.peer->severed) return 0;
  socket_end& to = *at.peer;
  to.finished = to.last_due = std::max(to.last_due, now_ + delay());
  return 0;
}

void world::close_end(socket_end& at) noexcept {
  for (socket_end* const one : std::exchange(at.backlog, {})) close_end(*one);
  const bool linked =
      at.now == socket_end::state::connected || (at.now == socket_end::state::connecting && at.peer != nullptr);
  const bool unread = !at.incoming.empty();
  if (linked && !at.broken) {
    socket_end& to = *at.peer;
    if (at.reset_on_close || unread) {
      reset_end(to, ECONNRESET, now_ + delay());
    } else if (!at.output_shut && !to.severed) {
      to.finished = to.last_due = std::max(to.last_due, now_ + delay());
    }
  }
  at.incoming.clear();
  at.incoming_bytes = 0;
  at.now = socket_end::state::closed;
}

int world::close(int fd) noexcept {
  trace_.add(static_cast<std::uint64_t>(fd));
  close_end(find(fd));
  return 0;
}

void* world::mmap(std::size_t length, int protection, int flags, int* failure) noexcept {
  if (mappings_to_fail_ != 0 || fails()) {
    mappings_to_fail_ -= mappings_to_fail_ != 0 ? 1 : 0;
    *failure = ENOMEM;
    return nullptr;
  }
  void* const address = system_calls::mmap(length, protection, flags, failure);
  if (address != nullptr) mapped_.emplace(address, length);
  return address;
}

int world::munmap(void* address, std::size_t length) noexcept {
  if (on_unmapping) on_unmapping(address, length);
  mapped_.erase(address);
  return system_calls::munmap(address, length);
}

ssize_t world::getrandom(void* buffer, std::size_t length, unsigned) noexcept {
  if (fails()) return -ENOSYS;
  auto* const bytes = static_cast<std::byte*>(buffer);
  for (std::size_t done = 0; done < length; done += sizeof(std::uint64_t)) {
    const std::uint64_t word = dice_.next();
    std::memcpy(bytes + done, &word, std::min(length - done, sizeof word));
  }
  return static_cast<ssize_t>(length);
}

}  // namespace weft::sim
