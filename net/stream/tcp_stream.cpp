// SPDX-License-Identifier: Apache-2.0
#include <weft/net/link/try_addresses.hpp>
#include <weft/net/stream/tcp_stream.hpp>
#include <weft/runtime/core/background.hpp>
#include <weft/runtime/sleep.hpp>

#include <fmt/core.h>

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <new>
#include <span>
#include <utility>

namespace weft::net {
namespace {

// The pause before the next attempt to accept, when the machine has run out of descriptors or memory.
constexpr auto shortage_pause = std::chrono::milliseconds(50);
// The size of the buffer that read_bytes() reads into.
constexpr std::size_t usual_read = std::size_t{16} << 10;

// The header of a system call for byte ranges.
template <class Byte>
class message_header {
 public:
  explicit message_header(const byte_ranges<Byte>& places) noexcept {
    for (const std::span<Byte>& each : places.all()) {
      parts_[header_.msg_iovlen++] = {.iov_base = const_cast<std::byte*>(each.data()), .iov_len = each.size()};
    }
    header_.msg_iov = parts_.data();
  }
  message_header(const message_header&) = delete;
  message_header& operator=(const message_header&) = delete;
  msghdr& get() noexcept { return header_; }

 private:
  std::array<iovec, byte_ranges<Byte>::max_ranges> parts_{};
  msghdr header_{};
};

}  // namespace

// Keeps the socket open while the kernel may use it.
class tcp_stream::user {
 public:
  explicit user(tcp_stream& of) noexcept : of_(of) { ++of_.users_; }
  user(const user&) = delete;
  user& operator=(const user&) = delete;
  ~user() {
    if (--of_.users_ == 0 && of_.ended_ && !of_.finishing_) of_.wire_.reset();
  }

 private:
  tcp_stream& of_;
};

tcp_stream::tcp_stream(descriptor socket, std::string peer, mr::pool& pool, const connection_options& options,
                       std::unique_ptr<connection_place> place)
    : stream_core(*executor_core::current(), pool, std::move(peer)),
      wire_(std::make_unique<wire>(home_, std::move(socket), options, std::move(place))) {}

void tcp_stream::check(const char* what) const {
  check_thread(what);
  if (ended_) throw error(errc::closed, what);
}

error tcp_stream::failure(int number, const char* what) const {
  const std::string words = fmt::format("{} {} over tcp", what, peer_);
  if (ended_) return error(errc::closed, words);
  if (number == ECANCELED) return error(errc::canceled, words);
  if (number == EPIPE && wire_->window.has_given_up()) number = ETIMEDOUT;
  // These errors are errc::peer_vanished, as on a weft connection; the system's text says which of them it was.
  if (number == ECONNRESET || number == EPIPE || number == ETIMEDOUT) {
    return error(errc::peer_vanished, fmt::format("{}: {}", words, std::system_category().message(number)));
  }
  return system_error(number, words);
}

// ---- reading ----

task<std::size_t> tcp_stream::read_some(stream_ref, writable_ranges where) {
  check("read from a stream");
  if (where.bytes() == 0) co_return 0;
  const user here(*this);
  turn mine(co_await weft::detail::current_promise(), reading_, "read from a stream");
  message_header header(where);
  int result = -EINTR;
  while (result == -EINTR) {
    weft::detail::io_wait call(io_kind::receive, wire_->socket, header.get(), 0);
    result = co_await call;
  }
  if (result < 0) throw failure(-result, "read from");
  co_return static_cast<std::size_t>(result);
}

task<received_bytes> tcp_stream::read_bytes(stream_ref) {
  check("read from a stream");
  const user here(*this);
  turn mine(co_await weft::detail::current_promise(), reading_, "read from a stream");
  try {
    for (;;) {
      co_await wait_for_input();
      auto memory = co_await pool_.allocate(usual_read, mr::budget::receive);
      if (ended_) throw failure(ECANCELED, "read from");
      message_header header{writable_ranges(memory.bytes())};
      const ssize_t count = home_.io().try_receive(wire_->socket, header.get());
      if (count == -EAGAIN || count == -EINTR) continue;
      if (count < 0) throw failure(static_cast<int>(-count), "read from");
      memory.resize(static_cast<std::size_t>(count));
      received_bytes got(std::move(memory), 0);
      co_return got;
    }
  } catch (const error& why) {  // the pool does not know that the end of the stream has canceled the allocation
    if (ended_ && why.code() == errc::canceled) throw failure(ECANCELED, "read from");
    throw;
  }
}

// Waits without a buffer, so that a silent peer costs no memory.
task<> tcp_stream::wait_for_input() {
  for (;;) {
    weft::detail::io_wait call(io_kind::readable, wire_->socket);
    const int result = co_await call;
    if (result >= 0) co_return;
    if (result != -EINTR) throw failure(-result, "read from");
  }
}

// ---- writing ----

task<std::size_t> tcp_stream::write_some(stream_ref, readable_ranges what) {
  check("write to a stream");
  if (what.bytes() == 0) co_return 0;
  const user here(*this);
  turn mine(co_await weft::detail::current_promise(), writing_, "write to a stream");
  message_header header(what);
  int result = -EINTR;
  while (result == -EINTR) {
    check_sendable();
    wire_->window.sending();
    weft::detail::io_wait call(io_kind::send, wire_->socket, header.get(), MSG_NOSIGNAL);
    result = co_await call;
  }
  if (result < 0) throw failure(-result, "write to");
  co_return static_cast<std::size_t>(result);
}

task<std::size_t> tcp_stream::write_some(stream_ref self, mr::slice what) {
  return write_some(std::move(self), readable_ranges(what.bytes()));
}

task<> tcp_stream::write(stream_ref, mr::buffer what) {
  check("write to a stream");
  const user here(*this);
  turn mine(co_await weft::detail::current_promise(), writing_, "write to a stream");
  for (std::span<const std::byte> rest = what.bytes(); !rest.empty();) {
    message_header header{readable_ranges(rest)};
    check_sendable();
    wire_->window.sending();
    weft::detail::io_wait call(io_kind::send, wire_->socket, header.get(), MSG_NOSIGNAL);
    const int result = co_await call;
    if (result >= 0) rest = rest.subspan(static_cast<std::size_t>(result));
    if (result < 0 && result != -EINTR) throw failure(-result, "write to");
  }
}

void tcp_stream::check_sendable() const {
  if (output_ended_) throw error(errc::closed, "write to a stream after shutdown_send()");
  if (ended_) throw failure(ECANCELED, "write to");
}

task<> tcp_stream::shutdown_send(stream_ref) {
  constexpr const char* words = "shut down the sending side of a stream";
  check(words);
  if (output_ended_) co_return;
  turn mine(co_await weft::detail::current_promise(), writing_, words);
  output_ended_ = true;
  const int result = wire_->socket.calls().shutdown(wire_->socket.fd(), SHUT_WR);
  // ENOTCONN: the peer is gone, so there is nobody to notify.
  if (result < 0 && result != -ENOTCONN) throw failure(-result, "shut down the sending side of a stream to");
}

// ---- closing ----

// On another thread, or without memory for the task, wire::close() ends the socket.
void tcp_stream::close() noexcept {
  if (std::exchange(ended_, true)) return;
  try {
    if (is_at_home()) {
      finishing_ = true;
      run_in_background(home_, finish(stream_ref(*this)), "close a stream");
      return cancel();
    }
  } catch (const std::bad_alloc&) {
    finishing_ = false;
  }
  end();
}

void tcp_stream::abort() noexcept {
  if (wire_ == nullptr || (std::exchange(ended_, true) && !finishing_)) return;
  const linger at_once{.l_onoff = 1, .l_linger = 0};  // close sends a reset, not a FIN: see socket(7)
  system_calls& calls = wire_->socket.calls();
  calls.setsockopt(wire_->socket.fd(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  wire_->is_aborted = true;
  if (!finishing_) return end();
  calls.shutdown(wire_->socket.fd(), SHUT_RDWR);  // wakes finish()
}

// Aborts a stream that an exception destroys, because after an orderly end its bytes would seem to be complete.
void tcp_stream::drop() noexcept {
  const bool unwinding = weft::detail::exceptions_under_way() > exceptions_before_;
  unwinding && !ended_ ? abort() : close();
}

void tcp_stream::end() noexcept {
  if (users_ == 0) {
    wire::close(std::move(wire_));
  } else {
    cancel();
  }
  closed_.set();
}

task<> tcp_stream::finish(stream_ref) {
  {
    const user here(*this);
    wire_->socket.calls().shutdown(wire_->socket.fd(), SHUT_WR);
    try {
      co_await wire_->wait_until_arrived();
    } catch (const std::bad_alloc&) {  // then the kernel sends the rest
    }
    finishing_ = false;
  }
  closed_.set();
}

// Closing a socket with unread bytes resets the TCP connection, as does input that arrives afterwards; written bytes in
// flight are lost then.
tcp_stream::wire::input tcp_stream::wire::drop_input() noexcept {
  constexpr int most_calls = 64;  // so that other tasks have their turns
  std::array<std::byte, 4096> room{};
  message_header header{writable_ranges(std::span(room))};
  for (int i = 0; i < most_calls; ++i) {
    const ssize_t count = socket.calls().recvmsg(socket.fd(), &header.get(), MSG_DONTWAIT);
    if (count == 0) return input::over;
    if (count == -EAGAIN) break;
    if (count == -EINTR) continue;
    if (count < 0) return input::failed;
    has_dropped_ = true;
  }
  return input::more;
}

// The kernel does not notify when everything is acknowledged, so ask again and again.
task<> tcp_stream::wire::wait_until_arrived() {
  using std::chrono::milliseconds;
  constexpr milliseconds longest_pause{64};
  milliseconds pause{1};
  std::optional<std::uint64_t> acknowledged;
  time_point deadline = later(home_.now(), patience_);
  for (;;) {
    const input left = drop_input();
    if (left == input::failed || is_aborted) co_return;
    const bool may_reset = left == input::more && has_dropped_;
    if (!may_reset && !window.has_unacknowledged()) co_return;
    const std::optional<std::uint64_t> now_acknowledged = window.acknowledged_bytes();
    if (now_acknowledged != acknowledged) deadline = later(home_.now(), patience_);
    acknowledged = now_acknowledged;
    if (home_.now() >= deadline) co_return;  // after that look, because this end may have been away since the last one
    const time_point next_look = std::min(deadline, later(home_.now(), pause));
    try {
      if (left == input::more) co_await net::wait_for_input(socket, "close", next_look);
      if (left == input::over) co_await sleep_until(next_look);
    } catch (const error& why) {
      if (why.code() != errc::timed_out) co_return;
    }
    pause = std::min(2 * pause, longest_pause);
  }
}

void tcp_stream::wire::close_at_home() noexcept {
  if (is_aborted) return;
  socket.calls().shutdown(socket.fd(), SHUT_WR);
  drop_input();
}

// Called if the stream was destroyed on another thread. Waits in the background until written bytes have arrived.
void tcp_stream::wire::run_on_executor() noexcept {
  try {
    if (!is_aborted && home_.on_own_thread()) {
      run_in_background(home_, end_in_background(*this), "close a stream");
      return;
    }
  } catch (const std::bad_alloc&) {  // then the kernel sends the rest
  }
  close_at_home();
  delete this;
}

task<> tcp_stream::wire::end_in_background(wire& self) {
  const std::unique_ptr<wire> owned(&self);
  self.socket.calls().shutdown(self.socket.fd(), SHUT_WR);
  try {
    co_await self.wait_until_arrived();
  } catch (const std::bad_alloc&) {  // then the kernel sends the rest
  }
}

// Closes the socket on the executor's thread, because the timer of the watch belongs to the executor.
void tcp_stream::wire::close(std::unique_ptr<wire> item) noexcept {
  executor_core& home = item->home_;
  if (home.on_own_thread() || home.belongs_to_this_thread()) return item->close_at_home();
  home.submit(*item.release());
}

// ---- set-up ----

namespace {

task<stream_ref> connect_to(const socket_address& target, std::span<const socket_address> sources, time_point deadline,
                            mr::pool& pool, const connection_options& options) {
  descriptor socket = open_socket(target, executor_core::current()->calls());
  prepare_socket(socket, options.dead_peer_after);
  set_traffic_class(socket, target.family(), options.traffic_class);
  bind_source(socket, target, sources);
  co_await connect_socket(socket, target, deadline);
  executor_core::current()->io().forget(socket);  // the descriptor moves, so the driver must not keep its address
  co_return stream_ref(*new tcp_stream(std::move(socket), target.to_string(), pool, options));
}

}  // namespace

task<stream_ref> connect_tcp(mr::pool& pool, std::string_view address, const connection_options& options) {
  const time_point deadline = later(executor_core::current()->now(), options.set_up_timeout);
  const std::vector<socket_address> sources = co_await look_up_source(options.source, deadline);
  const auto attempt = [&](const socket_address& candidate, time_point tcp_deadline) {
    return connect_to(candidate, sources, tcp_deadline, pool, options);
  };
  co_return co_await try_addresses(address, false, deadline, attempt);
}

task<std::shared_ptr<tcp_acceptor>> listen_tcp(std::string_view address, const listener_options& options) {
  const auto attempt = [&](const socket_address& candidate, time_point) -> task<std::shared_ptr<tcp_acceptor>> {
    co_return std::make_shared<tcp_acceptor>(candidate, options);
  };
  co_return co_await try_addresses(address, true, time_point::max(), attempt);
}

tcp_acceptor::tcp_acceptor(const socket_address& address, const listener_options& options)
    : home_(*executor_core::current()),
      places_(std::make_shared<connection_places>(options.max_connections)),
      socket_(listen_at(address, home_.calls(), options.traffic_class)),
      spare_(home_.calls()),
      address_(address_of(socket_)) {
  // Without a spare descriptor no peer could be turned away.
  if (const int result = spare_.keep(); result < 0) throw system_error(-result, "reserve a spare descriptor");
}

task<std::unique_ptr<tcp_acceptor::peer>> tcp_acceptor::next(std::shared_ptr<tcp_acceptor> self) {
  if (!self->home_.on_own_thread())
    throw error(errc::wrong_thread, "call a listener on the executor on which it was made");
  if (self->waiting_ != nullptr) throw error(errc::busy, "wait for the next peer: another task already waits for it");
  weft::detail::promise_base& promise = co_await weft::detail::current_promise();
  const stop_token outer = promise.get_stop_token();
  linked_stop_source source(outer);
  class waiting {
   public:
    waiting(stop_source*& place, stop_source& stop) noexcept : place_(place) { place_ = &stop; }
    ~waiting() { place_ = nullptr; }
    waiting(const waiting&) = delete;
    waiting& operator=(const waiting&) = delete;

   private:
    stop_source*& place_;
  };
  const waiting here(self->waiting_, source);
  promise.set_stop_token(source.get_token());
  bool on_spare = false;  // the spare descriptor was given up for accept(2); without another, the peer is turned away
  while (!self->closed_) {
    sockaddr_storage from{};
    weft::detail::io_wait call(io_kind::accept, self->socket_, from, sizeof from);
    const int result = co_await call;
    const bool was_on_spare = std::exchange(on_spare, false);
    const bool has_spare = self->spare_.restore();
    if (result >= 0) {
      descriptor socket(result, self->home_.calls());
      if (was_on_spare && !has_spare) {
        socket.close();
        static_cast<void>(self->spare_.restore());
        continue;
      }
      auto found = std::make_unique<peer>();
      found->place = connection_place::take(self->places_);
      if (found->place == nullptr) continue;
      found->socket = std::move(socket);
      found->address = socket_address(reinterpret_cast<sockaddr*>(&from), sizeof from);
      co_return found;
    }
    if (self->closed_) break;
    if (result == -ECANCELED && outer.stop_requested()) throw error(errc::canceled, "wait for the next peer");
    if (is_shortage_of_descriptors(-result) && has_spare && !was_on_spare) {
      weft::detail::io_wait peer_is_there(io_kind::readable, self->socket_);
      on_spare = co_await peer_is_there >= 0;
      if (on_spare) self->spare_.give_up();
    } else if (is_shortage(-result)) {
      co_await self->pause();
    } else if (!is_transient(-result)) {
      throw system_error(-result, "accept(2)");
    }
  }
  self->socket_.close();
  co_return nullptr;
}

// Waits a moment, in which descriptors or memory may become free; at most until close().
task<> tcp_acceptor::pause() {
  try {
    co_await sleep_for(shortage_pause);
  } catch (const error&) {
    if (!closed_) throw;
  }
}

void tcp_acceptor::close() noexcept {
  if (std::exchange(closed_, true)) return;
  open_.reset();
  if (waiting_ == nullptr) return socket_.close();
  const auto stop = [this] { waiting_->request_stop(); };
  home_.on_own_thread() ? stop() : home_.visit(stop);
}

}  // namespace weft::net
