// SPDX-License-Identifier: Apache-2.0
#include <weft/net/fabric/listener.hpp>
#include <weft/net/fabric/set_up.hpp>
#include <weft/net/link/listener_handle.hpp>
#include <weft/net/link/peer_words.hpp>
#include <weft/net/link/socket_listener.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/system/random.hpp>

#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <span>
#include <utility>

namespace weft::net::fabric {
namespace {

constexpr const char* hello_step = "wait for the hello";
constexpr const char* ready_step = "wait for the peer to be ready";

// A connection request: a peer whose hello has arrived.
class request final : public net::link_request {
 public:
  request(std::unique_ptr<descriptor> socket, const socket_address& from, const frame& said,
          std::shared_ptr<const device> home, std::shared_ptr<domain> memory)
      : socket_(std::move(socket)),
        from_(from),
        peer_(from.to_string()),
        hello_(said),
        home_(std::move(home)),
        memory_(std::move(memory)) {}

  ~request() override {
    if (!answered_) try_send_frame(*socket_, {.kind = frame_kind::reject});
  }

  [[nodiscard]] std::string_view peer() const noexcept override { return peer_; }
  [[nodiscard]] std::span<const std::byte> private_data() const noexcept override { return hello_.private_data(); }

  task<std::unique_ptr<net::link>> accept(const set_up_options& options) override {
    prepare_socket(*socket_, options.dead_peer_after);
    set_traffic_class(*socket_, from_.family(), options.traffic_class);
    frame answer{.kind = frame_kind::accept,
                 .incoming_reads = std::min(options.incoming_reads, hello_.outgoing_reads),
                 .outgoing_reads = std::min(options.outgoing_reads, hello_.incoming_reads),
                 .token = weft::detail::draw<std::uint64_t>(system_calls::kernel())};
    if (!answer.set_private_data(options.private_data)) throw error(errc::invalid_argument, "too much private data");
    established made{.socket = std::move(socket_),
                     .memory = memory_,
                     .peer = std::move(peer_),
                     .incoming_reads = answer.incoming_reads,
                     .outgoing_reads = answer.outgoing_reads,
                     .own_token = answer.token,
                     .peer_token = hello_.token,
                     .dead_peer_after = options.dead_peer_after};
    answered_ = true;
    std::unique_ptr<fabric_link> link;
    std::exception_ptr failure;
    try {
      made.endpoint = co_await make_endpoint(home_, *made.socket, options, &hello_);  // mutant: answer a peer before
      if (!answer.set_address(made.endpoint->address())) throw error(errc::not_supported, "the address is too long");
      answer.set_name(home_->provider());
      link = make_link(made);
      co_await send_frame(link->socket(), answer, "send the answer", options.deadline);
      const frame last = co_await receive_frame(link->socket(), ready_step, options.deadline);
      check_kind(last, frame_kind::ready, ready_step);
    } catch (...) {
      failure = std::current_exception();
    }
    if (link != nullptr) co_return co_await conclude(std::move(link), failure);
    if (made.endpoint != nullptr) {
      co_await give_up(std::move(made.endpoint));
    } else {
      try_send_frame(*made.socket, {.kind = frame_kind::reject});
    }
    std::rethrow_exception(failure);
  }

  task<> reject(std::span<const std::byte> data) override {
    frame answer{.kind = frame_kind::reject};
    if (!answer.set_private_data(data)) throw error(errc::invalid_argument, "too much private data");
    answered_ = true;
    const time_point deadline = executor_core::current()->now() + std::chrono::seconds(1);
    co_await send_frame(*socket_, answer, "send the rejection", deadline);
    socket_->calls().shutdown(socket_->fd(), SHUT_WR);
  }

 private:
  std::unique_ptr<descriptor> socket_;
  socket_address from_;
  std::string peer_;
  frame hello_;
  std::shared_ptr<const device> home_;
  std::shared_ptr<domain> memory_;
  bool answered_ = false;
};

class listener final : public socket_listener {
 public:
  listener(descriptor socket, std::string name, std::shared_ptr<const device> home, std::shared_ptr<domain> memory,
           const listen_options& options)
      : socket_listener(std::move(socket), std::move(name), options),
        device_(std::move(home)),
        memory_(std::move(memory)) {}

 private:
  task<std::unique_ptr<net::link_request>> receive_request(std::unique_ptr<descriptor> socket,
                                                           const socket_address& from, time_point deadline) override;
  task<> turn_away(descriptor& socket, time_point deadline) override;

  std::shared_ptr<const device> device_;
  std::shared_ptr<domain> memory_;
};

task<std::unique_ptr<net::link_request>> listener::receive_request(std::unique_ptr<descriptor> socket,
                                                                   const socket_address& from, time_point deadline) {
  const frame hello = co_await receive_frame(*socket, hello_step, deadline);
  if (hello.version != frame::spoken_version) {
    try_send_frame(*socket, {.kind = frame_kind::reject, .reason = reject_reason::other_version});
  }
  check_kind(hello, frame_kind::hello, hello_step);
  if (hello.name() != device_->provider()) {
    frame answer{.kind = frame_kind::reject, .reason = reject_reason::other_provider};
    answer.set_name(device_->provider());
    try_send_frame(*socket, answer);
    throw error(errc::protocol_error, "the peer is on another provider of libfabric's");
  }
  if (!device_->may_be_at(hello.address(), from)) {
    try_send_frame(*socket, {.kind = frame_kind::reject});
    throw error(errc::protocol_error, "the peer's endpoint is on another host than the peer");
  }
  home().io().forget(*socket);
  co_return std::make_unique<request>(std::move(socket), from, hello, device_, memory_);
}

task<> listener::turn_away(descriptor& socket, time_point deadline) {
  static_cast<void>(co_await receive_frame(socket, hello_step, deadline));
  frame answer{.kind = frame_kind::reject};
  static_cast<void>(answer.set_private_data(std::as_bytes(std::span(no_descriptors_left))));
  co_await send_frame(socket, answer, "turn the peer away", deadline);
  socket.calls().shutdown(socket.fd(), SHUT_WR);
}

}  // namespace

std::unique_ptr<net::link_listener> listen(const socket_address& address, std::shared_ptr<const device> home,
                                           std::shared_ptr<domain> memory, const listen_options& options) {
  descriptor socket = listen_at(address, executor_core::current()->calls(), options.traffic_class);
  const socket_address own = address_of(socket);
  return std::make_unique<listener_handle<socket_listener>>(
      std::make_shared<listener>(std::move(socket), own.to_string(), std::move(home), std::move(memory), options));
}

}  // namespace weft::net::fabric
