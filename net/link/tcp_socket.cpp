// SPDX-License-Identifier: Apache-2.0
#include <weft/net/link/checked.hpp>
#include <weft/net/link/tcp_socket.hpp>
#include <weft/net/link/tcp_window_watch.hpp>
#include <weft/runtime/core/background.hpp>
#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/core/operation.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/with_timeout.hpp>

#include <fmt/core.h>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <concepts>
#include <coroutine>
#include <exception>
#include <iterator>
#include <memory>
#include <string>
#include <utility>

namespace weft::net {
namespace {

void set_option(descriptor& socket, int level, int name, int value, const char* step = "prepare the TCP socket") {
  const int result = socket.calls().setsockopt(socket.fd(), level, name, &value, sizeof value);
  if (result < 0) throw system_error(-result, fmt::format("{} (socket option {}:{})", step, level, name));
}

class socket_wait;

// A call on the socket of a set-up, with all the memory that the kernel uses for the call. It has shared owners, so
// that it outlives a task that is destroyed while the kernel still uses that memory.
class socket_call final : public io_operation {
 public:
  // The frames of a set-up are shorter. Longer data take several calls.
  static constexpr std::size_t most_bytes = 1024;

  socket_call(io_kind what, descriptor& socket) noexcept : io_operation(what) {
    target = &socket;
    message = &header_;
    header_.msg_iov = &part_;
    header_.msg_iovlen = 1;
    part_.iov_base = bytes_.data();
  }
  void set_address(const socket_address& to) noexcept {
    std::copy_n(reinterpret_cast<const char*>(to.data()), to.size(), reinterpret_cast<char*>(&address_));
    peer = &address_;
    peer_length = to.size();
  }
  // The memory to receive into or to send from: at most `length` bytes, fewer if there is less room.
  [[nodiscard]] std::span<std::byte> bytes(std::size_t length) noexcept {
    part_.iov_len = std::min(length, bytes_.size());
    return std::span(bytes_).first(part_.iov_len);
  }

  void set_waiter(socket_wait* who) noexcept { waiter_ = who; }
  // Called when the waiting task is destroyed while the call is in progress: cancels the call, then closes the socket.
  static void outlive_its_task(const std::shared_ptr<socket_call>& self, executor_core& home) noexcept;

 private:
  void complete(int result) noexcept override;

  msghdr header_{};
  iovec part_{};
  sockaddr_storage address_{};
  descriptor socket_;              // taken from the task that was destroyed
  socket_wait* waiter_ = nullptr;  // null while no task waits for the end of the call
  std::array<std::byte, most_bytes> bytes_;
};

// Waits for a call, and starts it unless it is in progress. Yields the call's result or -errno. After a stop, yields
// -ECANCELED unless the call has succeeded all the same.
class socket_wait final : public weft::detail::operation_base {
 public:
  explicit socket_wait(std::shared_ptr<socket_call> call) noexcept : call_(std::move(call)) {}
  socket_wait(socket_wait&&) = delete;
  socket_wait& operator=(socket_wait&&) = delete;
  ~socket_wait() {
    if (waiting() && call_->in_progress()) socket_call::outlive_its_task(call_, home());
  }

  // A send that completes at once does not suspend the task, except now and then, so that other tasks get a turn.
  template <std::derived_from<weft::detail::promise_base> Promise>
  bool await_suspend(std::coroutine_handle<Promise> waiter) {
    if (call_->kind == io_kind::send && sent_at_once(waiter.promise())) return false;
    if (may_begin(waiter.promise())) begin();
    return true;
  }
  [[nodiscard]] int await_resume() const noexcept { return canceled() && result_ < 0 ? -ECANCELED : result_; }
  [[nodiscard]] std::string describe() const override { return std::string(name_of(call_->kind)); }

  void ended(int result) noexcept {
    result_ = result;
    finish();
  }

 private:
  [[nodiscard]] bool sent_at_once(const weft::detail::promise_base& waiter) noexcept {
    executor_core& where = *executor_core::current();
    if (call_->in_progress() || waiter.get_stop_token().stop_requested() || !where.may_go_on()) return false;
    const int result = where.io().try_now(*call_);
    if (result == -EAGAIN) return false;
    result_ = result;
    return true;
  }
  void begin() noexcept override {
    call_->set_waiter(this);
    if (!call_->in_progress()) home().io().start(*call_);
  }
  void cancel() noexcept override {
    if (call_->in_progress()) home().io().cancel(*call_);
  }

  const std::shared_ptr<socket_call> call_;
  int result_ = -ECANCELED;  // the result of a wait that is stopped before it begins
};

void socket_call::complete(int result) noexcept {
  if (waiter_ != nullptr) std::exchange(waiter_, nullptr)->ended(result);
}

task<> wait_until_ended(std::shared_ptr<socket_call> call) {
  if (!call->in_progress()) co_return;
  socket_wait end(std::move(call));
  static_cast<void>(co_await end);
}

// The socket stays open until the call has ended: a call that the kernel has not begun refers to it by its descriptor
// number, which the next socket would get.
void socket_call::outlive_its_task(const std::shared_ptr<socket_call>& self, executor_core& home) noexcept {
  self->waiter_ = nullptr;
  home.io().cancel(*self);
  home.io().forget(*self->target);  // without this the descriptor could not be moved
  self->socket_ = std::move(*self->target);
  self->target = &self->socket_;
  const auto wait_here = [&]() noexcept {
    while (self->in_progress()) home.io().poll(1);
  };
  if (!home.on_own_thread()) return home.visit(wait_here);  // the executor is idle, and may never run again
  try {
    run_in_background(home, wait_until_ended(self));
  } catch (const std::exception&) {  // no memory for the background task
    wait_here();
  }
}

// The operation listens to the token of with_deadline(). It must live in a frame of its own inside with_deadline(),
// because frames are destroyed from the innermost outwards: so the operation is destroyed before the token.
task<int> make_call(std::shared_ptr<socket_call> call) {
  int result = -EINTR;
  while (result == -EINTR) {
    socket_wait wait(call);
    result = co_await wait;
  }
  if (result == -ECANCELED) throw error(errc::canceled, "stopped");
  co_return result;
}

task<int> run_step(std::shared_ptr<socket_call> call, const char* step, time_point deadline) {
  try {
    auto calling = make_call(std::move(call));
    const int result = co_await with_deadline(deadline, std::move(calling));
    co_return checked(result, step);
  } catch (const error& why) {
    if (why.code() == errc::timed_out) throw error(errc::timed_out, step);
    throw;
  }
}

}  // namespace

descriptor open_socket(const socket_address& address, system_calls& calls) {
  return {checked(calls.socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0), "open a TCP socket"), calls};
}

void prepare_socket(descriptor& socket, std::chrono::milliseconds dead_peer_after) {
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  if (dead_peer_after.count() <= 0) return;
  // An idle peer is probed after half of the time, and then so often that its death is noticed about when the time is
  // over: these options are in whole seconds. TCP_USER_TIMEOUT covers a peer to which data is in flight.
  const auto time = bounded_patience(dead_peer_after);
  const auto seconds = [](std::chrono::milliseconds part) {
    return std::max(1, static_cast<int>(std::chrono::floor<std::chrono::seconds>(part).count()));
  };
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, seconds(time / 2));
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, seconds(time / 6));
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 3);
  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(time.count()));
}

void set_traffic_class(descriptor& socket, int family, std::optional<std::uint8_t> traffic_class) {
  if (!traffic_class) return;
  const char* const step = "set the traffic class";
  // An IPv6 socket may carry IPv4 (mapped addresses), so set both.
  set_option(socket, IPPROTO_IP, IP_TOS, *traffic_class, step);
  if (family == AF_INET6) set_option(socket, IPPROTO_IPV6, IPV6_TCLASS, *traffic_class, step);
}

void bind_source(descriptor& socket, const socket_address& target, std::span<const socket_address> sources) {
  if (sources.empty()) return;
  const auto same_family = [&](const socket_address& one) { return one.family() == target.family(); };
  const auto source = std::find_if(sources.begin(), sources.end(), same_family);
  if (source == sources.end()) {
    throw error(errc::invalid_address, "bind the source address: it is of another family than the peer's");
  }
  const std::string step = "bind the source address " + source->to_string();
  // A requested port may still be in TIME_WAIT from the previous connection. If no port is requested, the kernel
  // chooses one at connect(2), when it knows the peer for which the port must be free.
  if (source->port() != 0) {
    set_option(socket, SOL_SOCKET, SO_REUSEADDR, 1, step.c_str());
  } else {
    set_option(socket, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1, step.c_str());
  }
  checked(socket.calls().bind(socket.fd(), source->data(), source->size()), step.c_str());
}

task<> connect_socket(descriptor& socket, const socket_address& address, time_point deadline) {
  constexpr const char* step = "TCP connection";
  auto call = std::make_shared<socket_call>(io_kind::connect, socket);
  call->set_address(address);
  co_await run_step(std::move(call), step, deadline);
  // If nobody listens on the target port, the kernel may choose that very port for this end, and connect the socket to
  // itself.
  if (address_of(socket).to_string() == address.to_string()) throw system_error(ECONNREFUSED, step);
}

task<std::size_t> receive_some(descriptor& socket, std::span<std::byte> where, const char* step, time_point deadline) {
  const auto call = std::make_shared<socket_call>(io_kind::receive, socket);
  const auto room = call->bytes(where.size());
  const auto count = static_cast<std::size_t>(co_await run_step(call, step, deadline));
  std::ranges::copy(room.first(count), where.begin());
  co_return count;
}

task<std::size_t> send_some(descriptor& socket, std::span<const std::byte> what, const char* step,
                            time_point deadline) {
  auto call = std::make_shared<socket_call>(io_kind::send, socket);
  const auto room = call->bytes(what.size());
  std::ranges::copy(what.first(room.size()), room.begin());
  co_return static_cast<std::size_t>(co_await run_step(std::move(call), step, deadline));
}

task<> wait_for_input(descriptor& socket, const char* step, time_point deadline) {
  auto call = std::make_shared<socket_call>(io_kind::readable, socket);
  co_await run_step(std::move(call), step, deadline);
}

descriptor listen_at(const socket_address& address, system_calls& calls, std::optional<std::uint8_t> traffic_class) {
  constexpr int backlog = 4096;  // the kernel caps it at net.core.somaxconn
  descriptor socket = open_socket(address, calls);
  const int yes = 1;
  checked(calls.setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes), "allow the address to be reused");
  if (address.family() == AF_INET6) {
    // "[::]" takes IPv4 as well, whatever net.ipv6.bindv6only says: see ipv6(7).
    const int no = 0;
    checked(calls.setsockopt(socket.fd(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no), "listen for IPv4 as well");
  }
  set_traffic_class(socket, address.family(), traffic_class);
  checked(calls.bind(socket.fd(), address.data(), address.size()), "bind the address");
  checked(calls.listen(socket.fd(), backlog), "listen");
  return socket;
}

socket_address address_of(const descriptor& socket) {
  sockaddr_storage bound{};
  socklen_t length = sizeof bound;
  checked(socket.calls().getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&bound), &length), "find out the port");
  return {reinterpret_cast<sockaddr*>(&bound), length};
}

ssize_t send_now(const descriptor& socket, std::span<const std::byte> what) noexcept {
  iovec memory{.iov_base = const_cast<std::byte*>(what.data()), .iov_len = what.size()};
  msghdr message{};
  message.msg_iov = &memory;
  message.msg_iovlen = 1;
  return socket.calls().sendmsg(socket.fd(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

bool is_transient(int number) noexcept {
  constexpr int known[] = {ECONNABORTED, EINTR,  EAGAIN,       ECANCELED,  ENETDOWN,    EPROTO, ENOPROTOOPT,
                           EHOSTDOWN,    ENONET, EHOSTUNREACH, EOPNOTSUPP, ENETUNREACH, EPERM};
  return std::find(std::begin(known), std::end(known), number) != std::end(known);
}

bool is_shortage(int number) noexcept {
  return is_shortage_of_descriptors(number) || number == ENOBUFS || number == ENOMEM;
}

bool is_shortage_of_descriptors(int number) noexcept { return number == EMFILE || number == ENFILE; }

int spare_descriptor::keep() noexcept {
  if (held()) return 0;
  const int fd = calls_.eventfd(0, EFD_CLOEXEC);
  if (fd < 0) return fd;
  kept_ = descriptor(fd, calls_);
  return 0;
}

}  // namespace weft::net
