// SPDX-License-Identifier: Apache-2.0
#include <weft/net/link/eviction.hpp>
#include <weft/net/link/live_statistics.hpp>
#include <weft/net/link/peer_words.hpp>
#include <weft/net/link/socket_listener.hpp>
#include <weft/runtime/core/background.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/sleep.hpp>

#include <netinet/in.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <exception>
#include <new>
#include <span>
#include <utility>

namespace weft::net {
namespace {

// The pause before another try when the machine has run out of descriptors or memory.
constexpr auto shortage_pause = std::chrono::milliseconds(50);
// How long a peer that is turned away may take to send its request; other peers wait meanwhile.
constexpr std::chrono::milliseconds longest_refusal{1000};
// The least time for a peer to send its request when others want its place. An honest peer's request comes right behind
// the end of TCP's handshake, however far away the peer is.
constexpr auto shortest_set_up = std::chrono::milliseconds(25);
// How long, and how often, a peer is spared whose bytes this end has not read yet. An honest peer needs that once.
constexpr auto time_to_read = std::chrono::milliseconds(1);
constexpr unsigned most_spared = 25;

}  // namespace

peer_origin network_of(const socket_address& from) noexcept {
  peer_origin where{};
  if (from.family() == AF_INET) {
    std::memcpy(where.data(), &reinterpret_cast<const sockaddr_in*>(from.data())->sin_addr, sizeof(in_addr));
    return where;
  }
  const in6_addr& all = reinterpret_cast<const sockaddr_in6*>(from.data())->sin6_addr;
  const bool is_ipv4 = IN6_IS_ADDR_V4MAPPED(&all) != 0;
  std::memcpy(where.data(), is_ipv4 ? &all.s6_addr[12] : &all.s6_addr[0], is_ipv4 ? sizeof(in_addr) : where.size());
  return where;
}

/// A peer that has connected and not sent its request, and its place in the list of all such peers, oldest first.
class half_open_peer {
 public:
  using list = std::vector<half_open_peer*>;

  half_open_peer(list& among, stop_token parent, const descriptor& socket, const peer_origin& from, time_point since)
      : among_(among), stop_(parent), calls_(socket.calls()), fd_(socket.fd()), origin_(from), since_(since) {
    among_.push_back(this);
  }
  half_open_peer(const half_open_peer&) = delete;
  half_open_peer& operator=(const half_open_peer&) = delete;
  ~half_open_peer() { std::erase(among_, this); }

  [[nodiscard]] stop_token token() noexcept { return stop_.get_token(); }
  [[nodiscard]] time_point since() const noexcept { return since_; }
  /// Spares the peer if it is not silent, but has sent something that this end, late itself, has still to read.
  [[nodiscard]] bool spare() noexcept {
    if (spared_ == most_spared) return false;
    ++spared_;
    pollfd state{.fd = fd_, .events = POLLIN, .revents = 0};
    return calls_.poll(&state, 1, 0) > 0 && (state.revents & POLLIN) != 0;
  }
  /// Stops the peer's set-up, to give its place to another peer.
  void evict() noexcept {
    std::erase(among_, this);
    stop_.request_stop();
  }

  [[nodiscard]] const peer_origin& origin() const noexcept { return origin_; }

 private:
  list& among_;
  linked_stop_source stop_;
  system_calls& calls_;
  int fd_;  // as its set-up ends it may be closed, or another's, until this has left the list: only ever polled
  peer_origin origin_;
  time_point since_;
  unsigned spared_ = 0;
};

socket_listener::socket_listener(descriptor socket, std::string name, const listen_options& options)
    : io_operation(io_kind::accept),
      executor_(*executor_core::current()),
      socket_(std::move(socket)),
      name_(std::move(name)),
      options_(options),
      spare_(executor_.calls()) {
  // Without the spare descriptor no peer could be turned away, and peers would wait in vain until they time out.
  if (const int result = spare_.keep(); result < 0) throw system_error(-result, "reserve a spare descriptor");
  target = &socket_;
  peer = &peer_;
}

// Whether all places are taken. While the filter expects peers, requests that nobody takes count only up to seven
// eighths of the places, so that the rest stays free for those peers.
bool socket_listener::is_full() const noexcept {
  const std::size_t most = options_.max_half_open;
  std::size_t taken = requests_.size();
  if (options_.filter != nullptr && options_.filter->expects_peers()) {
    taken = std::min(taken, most - std::min(most, std::max<std::size_t>(1, most / 8)));
  }
  return half_open_.size() + taken >= most;
}

void socket_listener::accept_more() noexcept {
  if (closed_ || in_progress() || failure_ != 0 || refusing_) return;
  if (is_full() && (half_open_.empty() || timer::armed())) return;
  waits_for_room_ = is_full();
  if (waits_for_room_) kind = io_kind::readable;
  peer_length = sizeof peer_;
  accepting_ = shared_from_this();
  executor_.io().start(*this);
}

// Clears the place of a silent peer for the peer that waits, because silent peers must not keep others out. If it is
// too early for that, or the peer is not silent, arms the timer.
void socket_listener::make_room() noexcept try {
  if (!is_full() || half_open_.empty()) return;
  half_open_peer& victim = peer_to_evict(half_open_);
  const time_point now = executor_.now();
  const time_point due = later(victim.since(), shortest_set_up);
  if (now < due) return executor_.arm(*this, due);
  if (!victim.spare()) return victim.evict();
  executor_.arm(*this, later(now, time_to_read));
} catch (const std::bad_alloc&) {
  failure_ = ENOMEM;  // next() pauses
  changed_.set();
}

void socket_listener::complete(int result) noexcept {
  const auto self = std::move(accepting_);
  const bool somebody_waits = std::exchange(kind, io_kind::accept) == io_kind::readable;
  if (somebody_waits && std::exchange(waits_for_room_, false)) {
    if (!closed_) make_room();
  } else if (somebody_waits) {
    on_spare_ = !closed_;
    if (on_spare_) spare_.give_up();
  } else if (result >= 0 && closed_) {
    executor_.calls().close(result);
  } else if (result >= 0) {
    accepted(self, descriptor(result, executor_.calls()));
  } else if (!is_transient(-result)) {
    not_accepted(-result);
  }
  if (closed_) {
    socket_.close();
    accept_ended_.set();
  }
  accept_more();
}

void socket_listener::accepted(const std::shared_ptr<socket_listener>& self, descriptor socket) noexcept {
  const bool on_spare = std::exchange(on_spare_, false);
  if (!spare_.restore() && on_spare) return begin_refusal(self, std::move(socket));
  begin_set_up(self, std::move(socket));
}

void socket_listener::not_accepted(int number) noexcept {
  const bool on_spare = std::exchange(on_spare_, false);
  if (!on_spare) set_up_statistics::count(options_.counts->accept_errors);
  if (is_shortage_of_descriptors(number) && !on_spare && spare_.restore()) {
    kind = io_kind::readable;  // the next peer gets the spare descriptor
    return;
  }
  static_cast<void>(spare_.restore());
  failure_ = number;
  changed_.set();
}

void socket_listener::begin_refusal(const std::shared_ptr<socket_listener>& self, descriptor socket) noexcept {
  try {
    run_in_background(executor_, refuse(self, std::move(socket)));
    refusing_ = true;
  } catch (const std::bad_alloc&) {  // then the peer sees the end of the stream
    socket.close();
    static_cast<void>(spare_.restore());
  }
}

task<> socket_listener::refuse(std::shared_ptr<socket_listener>, descriptor accepted) {
  try {
    co_await reject_request(accepted);
  } catch (const std::exception&) {  // then the peer sees the end of the stream
  }
  accepted.close();
  static_cast<void>(spare_.restore());
  refusing_ = false;
  changed_.set();
  accept_more();
}

task<> socket_listener::reject_request(descriptor& accepted) {
  weft::detail::promise_base& promise = co_await weft::detail::current_promise();
  promise.set_stop_token(stop_.get_token());
  co_await turn_away(accepted, later(executor_.now(), std::min(options_.set_up_timeout, longest_refusal)));
}

void socket_listener::begin_set_up(const std::shared_ptr<socket_listener>& self, descriptor socket) noexcept {
  const socket_address from(reinterpret_cast<sockaddr*>(&peer_), peer_length);
  try {
    auto place = std::make_unique<half_open_peer>(half_open_, stop_.get_token(), socket, origin_of(socket, from),
                                                  executor_.now());
    run_in_background(executor_, set_up(self, std::move(place), std::move(socket), from));
  } catch (const std::bad_alloc&) {
    set_up_statistics::count(options_.counts->accept_errors);
    failure_ = ENOMEM;  // next() pauses
    changed_.set();
  }
}

task<> socket_listener::set_up(std::shared_ptr<socket_listener>, std::unique_ptr<half_open_peer> place,
                               descriptor accepted, socket_address from) {
  const set_up_statistics::present counted(options_.counts->half_open);
  try {
    co_await await_request(*place, accepted, from);
  } catch (const std::exception&) {
    // Any error here concerns this peer alone.
    if (!closed_) set_up_statistics::count(options_.counts->requests_failed);
  }
  place.reset();
  changed_.set();
  accept_more();
}

task<> socket_listener::await_request(half_open_peer& place, descriptor& accepted, const socket_address& from) {
  weft::detail::promise_base& promise = co_await weft::detail::current_promise();
  promise.set_stop_token(place.token());
  auto socket = std::make_unique<descriptor>(std::move(accepted));
  const time_point deadline = later(executor_.now(), options_.set_up_timeout);
  auto request = co_await receive_request(std::move(socket), from, deadline);
  request->origin = place.origin();
  if (closed_ || (options_.filter != nullptr && options_.filter->takes(request))) co_return;
  if (requests_.size() < options_.max_half_open) {
    requests_.push_back(std::move(request));
  } else {
    set_up_statistics::count(options_.counts->requests_failed);
    co_await request->reject(std::as_bytes(std::span(no_places_left)));
  }
}

task<std::unique_ptr<link_request>> socket_listener::next(std::shared_ptr<socket_listener> self) {
  if (!self->executor_.on_own_thread())
    throw error(errc::wrong_thread, "call a listener on the executor on which it was made");
  while (!self->closed_) {
    self->changed_.reset();
    if (!self->requests_.empty()) {
      auto request = std::move(self->requests_.front());
      self->requests_.pop_front();
      self->accept_more();
      co_return request;
    }
    if (const int number = std::exchange(self->failure_, 0); number != 0) {
      if (!is_shortage(number)) throw system_error(number, "accept(2)");
      co_await sleep_for(shortage_pause);
      continue;
    }
    self->accept_more();
    co_await self->changed_.wait();
  }
  co_return nullptr;
}

void socket_listener::close() noexcept {
  // mutant: closed a listener
  if (!executor_.belongs_to_this_thread()) return executor_.post([self = shared_from_this()] { self->close(); });
  if (std::exchange(closed_, true)) return;
  if (timer::armed()) executor_.disarm(*this);
  stop_.request_stop();
  requests_.clear();
  changed_.set();
  closing();
  socket_.calls().shutdown(socket_.fd(), SHUT_RDWR);  // from now on peers are refused
  if (!in_progress()) return socket_.close();
  executor_.io().cancel(*this);
  try {
    if (executor_.on_own_thread()) return run_in_background(executor_, wait_for_accept(shared_from_this()));
  } catch (const std::bad_alloc&) {  // then wait here, which blocks the executor
  }
  while (in_progress()) executor_.io().poll(1);
}

task<> socket_listener::wait_for_accept(std::shared_ptr<socket_listener>) {
  if (in_progress()) co_await accept_ended_.wait();
}

}  // namespace weft::net
