// SPDX-License-Identifier: Apache-2.0
#include <weft/net/connection/live_statistics.hpp>
#include <weft/net/connection/peer_words.hpp>
#include <weft/net/iwarp/set_up.hpp>
#include <weft/net/iwarp/tcp_link.hpp>
#include <weft/net/iwarp/tcp_listener.hpp>
#include <weft/runtime/core/background.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/sleep.hpp>

#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <exception>
#include <map>
#include <new>
#include <span>
#include <vector>

namespace weft::net::iwarp {
namespace {

// Before another try where the machine has run out of descriptors or memory.
constexpr auto shortage_pause = std::chrono::milliseconds(50);
// For a peer that is turned away to send its request: the others wait meanwhile.
constexpr std::chrono::milliseconds longest_refusal{1000};
// What a request may ask for; the user who accepts it says how much of that is given.
constexpr std::uint16_t max_reads = 128;

// How long a peer has for its request at least, where others want its place. One that means well sends it at once: it
// comes right behind the end of TCP's handshake, however long the way is.
constexpr auto shortest_set_up = std::chrono::milliseconds(25);

/// Where a peer comes from, as far as it cannot choose: the second half of an IPv6 address it can.
using origin = std::array<std::byte, 8>;

origin origin_of(const socket_address& from) noexcept {
  origin where{};
  if (from.family() == AF_INET) {
    std::memcpy(where.data(), &reinterpret_cast<const sockaddr_in*>(from.data())->sin_addr, sizeof(in_addr));
    return where;
  }
  const in6_addr& all = reinterpret_cast<const sockaddr_in6*>(from.data())->sin6_addr;
  const bool is_ipv4 = IN6_IS_ADDR_V4MAPPED(&all) != 0;
  std::memcpy(where.data(), is_ipv4 ? &all.s6_addr[12] : &all.s6_addr[0], is_ipv4 ? sizeof(in_addr) : where.size());
  return where;
}

/// A peer that has connected and not sent its request, and its place among all of those, which are in order of age.
class half_open_peer {
 public:
  using list = std::vector<half_open_peer*>;

  half_open_peer(list& among, stop_token parent, const socket_address& from, time_point since)
      : among_(among), stop_(parent), origin_(origin_of(from)), since_(since) {
    among_.push_back(this);
  }
  half_open_peer(const half_open_peer&) = delete;
  half_open_peer& operator=(const half_open_peer&) = delete;
  ~half_open_peer() { std::erase(among_, this); }

  [[nodiscard]] stop_token token() noexcept { return stop_.get_token(); }
  [[nodiscard]] time_point since() const noexcept { return since_; }
  /// Its place was given to another peer.
  void evict() noexcept {
    std::erase(among_, this);
    stop_.request_stop();
  }

  /// The peer to drop when all places are taken: the oldest of the origin that has most of them. So an origin that
  /// takes many places takes them from itself.
  [[nodiscard]] static half_open_peer& to_evict(const list& all) {
    std::map<origin, std::size_t> counts;
    for (const half_open_peer* each : all) ++counts[each->origin_];
    const auto fewer = [](const auto& a, const auto& b) { return a.second < b.second; };
    const origin most = std::max_element(counts.begin(), counts.end(), fewer)->first;
    return **std::find_if(all.begin(), all.end(), [&](const half_open_peer* each) { return each->origin_ == most; });
  }

 private:
  list& among_;
  linked_stop_source stop_;
  origin origin_;
  time_point since_;
};

// A peer whose request is in.
class tcp_request final : public net::link_request {
 public:
  tcp_request(std::unique_ptr<descriptor> socket, const socket_address& from, std::shared_ptr<domain> home,
              const iwarp_options& of_device, std::unique_ptr<responder> machine, std::vector<std::byte> early)
      : socket_(std::move(socket)),
        from_(from),
        peer_(from.to_string()),
        home_(std::move(home)),
        of_device_(of_device),
        machine_(std::move(machine)),
        early_(std::move(early)) {}

  [[nodiscard]] std::string_view peer() const noexcept override { return peer_; }
  [[nodiscard]] std::span<const std::byte> private_data() const noexcept override {
    return machine_->peer_private_data();
  }

  // Unanswered: a rejection fits the empty buffer of a new socket, so that nobody has to wait for anything.
  ~tcp_request() override {
    try {
      if (socket_ != nullptr && machine_->reject({})) send_at_once(machine_->output());
    } catch (const std::bad_alloc&) {  // then the peer sees the end of the stream
    }
  }

  task<std::unique_ptr<net::link>> accept(const set_up_options& options) override {
    prepare_socket(*socket_, options.dead_peer_after);
    set_traffic_class(*socket_, from_.family(), options.traffic_class);
    machine_->limit({.crc = of_device_.checksum.value_or(!from_.is_loopback()),
                     .ird = options.incoming_reads,
                     .ord = options.outgoing_reads});
    if (!machine_->accept(options.private_data)) throw error(errc::invalid_argument, "too much private data");
    co_await send_output(*socket_, *machine_, "send the MPA reply", options.deadline);
    if (machine_->agreed().peer_to_peer && early_.empty()) {
      co_await wait_for_input(*socket_, "wait for the ready-to-receive message", options.deadline);
    }
    co_return std::make_unique<tcp_link>(std::move(socket_), std::move(peer_), home_, machine_->agreed(), false,
                                         std::move(early_), options.receives.get(), options.dead_peer_after,
                                         of_device_.place_unchecked);
  }

  task<> reject(std::span<const std::byte> data) override {
    if (!machine_->reject(data)) throw error(errc::invalid_argument, "too much private data");
    co_await send_output(*socket_, *machine_, "send the MPA reply",
                         executor_core::current()->now() + std::chrono::seconds(1));
    socket_->calls().shutdown(socket_->fd(), SHUT_WR);
  }

 private:
  void send_at_once(std::span<const std::byte> answer) noexcept {
    iovec memory{.iov_base = const_cast<std::byte*>(answer.data()), .iov_len = answer.size()};
    msghdr message{};
    message.msg_iov = &memory;
    message.msg_iovlen = 1;
    socket_->calls().sendmsg(socket_->fd(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  }

  std::unique_ptr<descriptor> socket_;
  socket_address from_;
  std::string peer_;
  std::shared_ptr<domain> home_;
  const iwarp_options of_device_;
  std::unique_ptr<responder> machine_;
  std::vector<std::byte> early_;
};

}  // namespace

// Shared by the listener and the set-ups in the background, which may outlive it for a moment.
class listener_state final : private io_operation,
                             private detail::timer,
                             public std::enable_shared_from_this<listener_state> {
 public:
  listener_state(descriptor socket, std::string name, std::shared_ptr<domain> home, const iwarp_options& of_device,
                 const listen_options& options)
      : io_operation(io_kind::accept),
        executor_(*executor_core::current()),
        socket_(std::move(socket)),
        name_(std::move(name)),
        home_(std::move(home)),
        of_device_(of_device),
        options_(options),
        spare_(executor_.calls()) {
    target = &socket_;
    peer = &peer_;
  }

  [[nodiscard]] std::string_view name() const noexcept { return name_; }
  static task<std::unique_ptr<net::link_request>> next(std::shared_ptr<listener_state> self);
  void close() noexcept;

 private:
  void accept_more() noexcept;
  [[nodiscard]] bool is_full() const noexcept { return half_open_.size() + requests_.size() >= options_.max_half_open; }
  void make_room() noexcept;
  void expired() noexcept override { accept_more(); }
  void accepted(const std::shared_ptr<listener_state>& self, descriptor socket) noexcept;
  void not_accepted(int number) noexcept;
  // A coroutine begins later than it is called: `self` keeps its owner until then, and until it ends.
  task<> wait_for_accept(std::shared_ptr<listener_state> self);
  void complete(int result) noexcept override;
  void begin_set_up(const std::shared_ptr<listener_state>& self, descriptor socket) noexcept;
  void begin_refusal(const std::shared_ptr<listener_state>& self, descriptor socket) noexcept;
  task<> refuse(std::shared_ptr<listener_state> self, descriptor accepted);
  task<> reject_request(descriptor& accepted);
  task<> set_up(std::shared_ptr<listener_state> self, std::unique_ptr<half_open_peer> place, descriptor accepted,
                socket_address from);
  task<> receive_request(half_open_peer& place, descriptor& accepted, socket_address from);

  executor_core& executor_;
  descriptor socket_;
  std::string name_;
  std::shared_ptr<domain> home_;
  const iwarp_options of_device_;
  listen_options options_;
  // Without descriptors a peer is waited for first, so that the spare one is given up for no longer than it takes to
  // accept it: then that is its descriptor, and it is turned away, unless another one has come free.
  spare_descriptor spare_;
  bool on_spare_ = false;  // the spare descriptor is given up to accept(2)
  bool refusing_ = false;  // or is that of a peer that is being turned away
  sockaddr_storage peer_{};
  std::shared_ptr<listener_state> accepting_;  // keeps us alive while accept(2) is in progress
  half_open_peer::list half_open_;
  bool waits_for_room_ = false;  // all places are taken, and a peer is waited for before one of them is cleared
  std::deque<std::unique_ptr<net::link_request>> requests_;
  event changed_;
  event accept_ended_;  // after close()
  int failure_ = 0;     // errno of the last accept(2)
  bool closed_ = false;
  stop_source stop_;
};

void listener_state::accept_more() noexcept {
  if (closed_ || in_progress() || failure_ != 0 || refusing_) return;
  if (is_full() && (half_open_.empty() || timer::armed())) return;
  waits_for_room_ = is_full();
  if (waits_for_room_) kind = io_kind::readable;
  peer_length = sizeof peer_;
  accepting_ = shared_from_this();
  executor_.io().start(*this);
}

// Peers that are silent must not keep others out, so that the one that has come takes the place of one of them.
void listener_state::make_room() noexcept try {
  if (!is_full() || half_open_.empty()) return;
  half_open_peer& victim = half_open_peer::to_evict(half_open_);
  const time_point due = later(victim.since(), shortest_set_up);
  if (executor_.now() >= due) return victim.evict();
  executor_.arm(*this, due);
} catch (const std::bad_alloc&) {
  failure_ = ENOMEM;  // next() pauses
  changed_.set();
}

void listener_state::complete(int result) noexcept {
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

void listener_state::accepted(const std::shared_ptr<listener_state>& self, descriptor socket) noexcept {
  const bool on_spare = std::exchange(on_spare_, false);
  if (!spare_.restore() && on_spare) return begin_refusal(self, std::move(socket));
  begin_set_up(self, std::move(socket));
}

void listener_state::not_accepted(int number) noexcept {
  const bool on_spare = std::exchange(on_spare_, false);
  if (!on_spare) set_up_statistics::count(options_.counts->accept_errors);
  if (is_shortage_of_descriptors(number) && !on_spare && spare_.restore()) {
    kind = io_kind::readable;  // a peer that waits is accepted all the same
    return;
  }
  static_cast<void>(spare_.restore());
  failure_ = number;
  changed_.set();
}

void listener_state::begin_refusal(const std::shared_ptr<listener_state>& self, descriptor socket) noexcept {
  try {
    run_in_background(executor_, refuse(self, std::move(socket)));
    refusing_ = true;
  } catch (const std::bad_alloc&) {  // then the peer sees the end of the stream
    socket.close();
    static_cast<void>(spare_.restore());
  }
}

task<> listener_state::refuse(std::shared_ptr<listener_state>, descriptor accepted) {
  try {
    co_await reject_request(accepted);
  } catch (const std::exception&) {  // it learns of the end of the stream
  }
  accepted.close();
  static_cast<void>(spare_.restore());
  refusing_ = false;
  changed_.set();
  accept_more();
}

task<> listener_state::reject_request(descriptor& accepted) {
  detail::promise_base& promise = co_await detail::current_promise();
  promise.set_stop_token(stop_.get_token());
  const auto machine = std::make_unique<responder>(responder_options{});
  const time_point deadline = later(executor_.now(), std::min(options_.set_up_timeout, longest_refusal));
  static_cast<void>(co_await drive(accepted, *machine, deadline));
  if (!machine->reject(std::as_bytes(std::span(no_descriptors_left)))) co_return;
  co_await send_output(accepted, *machine, "send the MPA reply", deadline);
  accepted.calls().shutdown(accepted.fd(), SHUT_WR);
}

void listener_state::begin_set_up(const std::shared_ptr<listener_state>& self, descriptor socket) noexcept {
  const socket_address from(reinterpret_cast<sockaddr*>(&peer_), peer_length);
  try {
    auto place = std::make_unique<half_open_peer>(half_open_, stop_.get_token(), from, executor_.now());
    run_in_background(executor_, set_up(self, std::move(place), std::move(socket), from));
  } catch (const std::bad_alloc&) {
    set_up_statistics::count(options_.counts->accept_errors);
    failure_ = ENOMEM;  // next() pauses
    changed_.set();
  }
}

task<> listener_state::set_up(std::shared_ptr<listener_state>, std::unique_ptr<half_open_peer> place,
                              descriptor accepted, socket_address from) {
  const set_up_statistics::present counted(options_.counts->half_open);
  try {
    co_await receive_request(*place, accepted, from);
  } catch (const std::exception&) {
    // Whatever it was, it is this peer's trouble and nobody else's.
    if (!closed_) set_up_statistics::count(options_.counts->requests_failed);
  }
  place.reset();
  changed_.set();
  accept_more();
}

task<> listener_state::receive_request(half_open_peer& place, descriptor& accepted, socket_address from) {
  detail::promise_base& promise = co_await detail::current_promise();
  promise.set_stop_token(place.token());
  auto socket = std::make_unique<descriptor>(std::move(accepted));
  auto machine = std::make_unique<responder>(responder_options{.crc = false, .ird = max_reads, .ord = max_reads});
  const time_point deadline = later(executor_.now(), options_.set_up_timeout);
  auto early = co_await drive(*socket, *machine, deadline);
  if (closed_) co_return;
  executor_.io().forget(*socket);  // it may be accepted on another executor
  requests_.push_back(
      std::make_unique<tcp_request>(std::move(socket), from, home_, of_device_, std::move(machine), std::move(early)));
}

task<std::unique_ptr<net::link_request>> listener_state::next(std::shared_ptr<listener_state> self) {
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

void listener_state::close() noexcept {
  if (!executor_.belongs_to_this_thread()) return executor_.post([self = shared_from_this()] { self->close(); });
  if (std::exchange(closed_, true)) return;
  if (timer::armed()) executor_.disarm(*this);
  stop_.request_stop();
  requests_.clear();
  changed_.set();
  socket_.calls().shutdown(socket_.fd(), SHUT_RDWR);  // from now on peers are refused
  if (!in_progress()) return socket_.close();
  executor_.io().cancel(*this);
  try {
    if (executor_.on_own_thread()) return run_in_background(executor_, wait_for_accept(shared_from_this()));
  } catch (const std::bad_alloc&) {  // then the executor has to wait for it
  }
  while (in_progress()) executor_.io().poll(1);
}

task<> listener_state::wait_for_accept(std::shared_ptr<listener_state>) {
  if (in_progress()) co_await accept_ended_.wait();
}

tcp_listener::tcp_listener(const socket_address& address, std::shared_ptr<domain> home, const iwarp_options& of_device,
                           const listen_options& options) {
  descriptor socket = listen_at(address, executor_core::current()->calls(), options.traffic_class);
  const socket_address own = address_of(socket);
  state_ = std::make_shared<listener_state>(std::move(socket), own.to_string(), std::move(home), of_device, options);
}

tcp_listener::~tcp_listener() { state_->close(); }

std::string_view tcp_listener::address() const noexcept { return state_->name(); }

task<std::unique_ptr<net::link_request>> tcp_listener::next() { return listener_state::next(state_); }

void tcp_listener::close() noexcept { state_->close(); }

}  // namespace weft::net::iwarp
