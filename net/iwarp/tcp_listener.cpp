// SPDX-License-Identifier: Apache-2.0
#include <weft/net/iwarp/set_up.hpp>
#include <weft/net/iwarp/tcp_link.hpp>
#include <weft/net/iwarp/tcp_listener.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/sleep.hpp>

#include <cassert>
#include <cerrno>
#include <exception>
#include <new>
#include <span>

namespace weft::net::iwarp {
namespace {

// Before another try where the machine has run out of descriptors or memory.
constexpr auto shortage_pause = std::chrono::milliseconds(50);
// What a request may ask for; the user who accepts it says how much of that is given.
constexpr std::uint16_t most_reads = 128;

// A peer whose request is in.
class tcp_request final : public net::link_request {
 public:
  tcp_request(std::unique_ptr<descriptor> socket, const socket_address& from, std::shared_ptr<domain> home,
              std::unique_ptr<responder> machine, std::vector<std::byte> early)
      : socket_(std::move(socket)),
        from_(from),
        peer_(from.to_string()),
        home_(std::move(home)),
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
    machine_->limit({.crc = options.checksum.value_or(!from_.is_loopback()),
                     .ird = options.incoming_reads,
                     .ord = options.outgoing_reads});
    if (!machine_->accept(options.private_data)) throw error(errc::invalid_argument, "too much private data");
    co_await send_output(*socket_, *machine_, "send the MPA reply", options.deadline);
    if (machine_->agreed().peer_to_peer && early_.empty()) {
      co_await wait_for_input(*socket_, "wait for the ready-to-receive message", options.deadline);
    }
    co_return std::make_unique<tcp_link>(std::move(socket_), std::move(peer_), home_, machine_->agreed(), false,
                                         std::move(early_), options.receives.get());
  }

  task<> reject(std::span<const std::byte> data) override {
    if (!machine_->reject(data)) throw error(errc::invalid_argument, "too much private data");
    co_await send_output(*socket_, *machine_, "send the MPA reply",
                         executor::current()->now() + std::chrono::seconds(1));
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
  std::unique_ptr<responder> machine_;
  std::vector<std::byte> early_;
};

}  // namespace

// Shared by the listener and the set-ups in the background, which may outlive it for a moment.
class listener_state final : private io_operation, public std::enable_shared_from_this<listener_state> {
 public:
  listener_state(descriptor socket, std::string name, std::shared_ptr<domain> home, const listen_options& options)
      : io_operation(io_kind::accept),
        executor_(*executor::current()),
        socket_(std::move(socket)),
        name_(std::move(name)),
        home_(std::move(home)),
        options_(options) {
    target = &socket_;
    peer = &peer_;
  }

  [[nodiscard]] std::string_view name() const noexcept { return name_; }
  static task<std::unique_ptr<net::link_request>> next(std::shared_ptr<listener_state> self);
  void close() noexcept;

 private:
  void accept_more() noexcept;
  // A coroutine begins later than it is called: `self` keeps its owner until then, and until it ends.
  task<> wait_for_accept(std::shared_ptr<listener_state> self);
  void complete(int result) noexcept override;
  void begin_set_up(const std::shared_ptr<listener_state>& self, descriptor socket) noexcept;
  task<> set_up(std::shared_ptr<listener_state> self, descriptor accepted, socket_address from);
  task<> receive_request(descriptor& accepted, socket_address from);

  executor& executor_;
  descriptor socket_;
  std::string name_;
  std::shared_ptr<domain> home_;
  listen_options options_;
  sockaddr_storage peer_{};
  std::shared_ptr<listener_state> accepting_;  // keeps us alive while accept(2) is in progress
  std::size_t half_open_ = 0;
  std::deque<std::unique_ptr<net::link_request>> requests_;
  event changed_;
  event accept_ended_;  // after close()
  int failure_ = 0;     // errno of the last accept(2)
  bool closed_ = false;
  stop_source stop_;
};

void listener_state::accept_more() noexcept {
  if (closed_ || in_progress() || failure_ != 0) return;
  if (half_open_ + requests_.size() >= options_.half_open_limit) return;
  peer_length = sizeof peer_;
  accepting_ = shared_from_this();
  executor_.io().start(*this);
}

void listener_state::complete(int result) noexcept {
  const auto self = std::move(accepting_);
  if (result >= 0 && closed_) {
    executor_.calls().close(result);
  } else if (result >= 0) {
    begin_set_up(self, descriptor(result, executor_.calls()));
  } else if (!is_transient(-result)) {
    failure_ = -result;
    changed_.set();
  }
  if (closed_) {
    socket_.close();
    accept_ended_.set();
  }
  accept_more();
}

void listener_state::begin_set_up(const std::shared_ptr<listener_state>& self, descriptor socket) noexcept {
  const socket_address from(reinterpret_cast<sockaddr*>(&peer_), peer_length);
  try {
    executor_.run_in_background(set_up(self, std::move(socket), from));
    ++half_open_;
  } catch (const std::bad_alloc&) {
    failure_ = ENOMEM;  // next() pauses
    changed_.set();
  }
}

task<> listener_state::set_up(std::shared_ptr<listener_state>, descriptor accepted, socket_address from) {
  try {
    co_await receive_request(accepted, from);
  } catch (const std::exception&) {
    // Whatever it was, it is this peer's trouble and nobody else's.
  }
  --half_open_;
  changed_.set();
  accept_more();
}

task<> listener_state::receive_request(descriptor& accepted, socket_address from) {
  detail::promise_base& promise = co_await detail::current_promise();
  promise.set_stop_token(stop_.get_token());
  auto socket = std::make_unique<descriptor>(std::move(accepted));
  auto machine = std::make_unique<responder>(responder_options{.crc = false, .ird = most_reads, .ord = most_reads});
  const time_point deadline = later(executor_.now(), options_.set_up_timeout);
  auto early = co_await drive(*socket, *machine, deadline);
  if (closed_) co_return;
  executor_.io().forget(*socket);  // it may be accepted on another executor
  requests_.push_back(
      std::make_unique<tcp_request>(std::move(socket), from, home_, std::move(machine), std::move(early)));
}

task<std::unique_ptr<net::link_request>> listener_state::next(std::shared_ptr<listener_state> self) {
  if (!self->executor_.on_own_thread()) throw error(errc::wrong_thread, "a listener belongs to one executor");
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
  stop_.request_stop();
  requests_.clear();
  changed_.set();
  socket_.calls().shutdown(socket_.fd(), SHUT_RDWR);  // from now on peers are refused
  if (!in_progress()) return socket_.close();
  executor_.io().cancel(*this);
  try {
    if (executor_.on_own_thread()) return executor_.run_in_background(wait_for_accept(shared_from_this()));
  } catch (const std::bad_alloc&) {  // then the executor has to wait for it
  }
  while (in_progress()) executor_.io().poll(1);
}

task<> listener_state::wait_for_accept(std::shared_ptr<listener_state>) {
  if (in_progress()) co_await accept_ended_.wait();
}

tcp_listener::tcp_listener(const socket_address& address, std::shared_ptr<domain> home, const listen_options& options) {
  descriptor socket = listen_at(address, executor::current()->calls(), options.traffic_class);
  const socket_address own = address_of(socket);
  state_ = std::make_shared<listener_state>(std::move(socket), own.to_string(), std::move(home), options);
}

tcp_listener::~tcp_listener() { state_->close(); }

std::string_view tcp_listener::address() const noexcept { return state_->name(); }

task<std::unique_ptr<net::link_request>> tcp_listener::next() { return listener_state::next(state_); }

void tcp_listener::close() noexcept { state_->close(); }

}  // namespace weft::net::iwarp
