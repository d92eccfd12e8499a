// SPDX-License-Identifier: Apache-2.0
#include <weft/net/iwarp/set_up.hpp>
#include <weft/net/iwarp/tcp_link.hpp>
#include <weft/net/iwarp/tcp_listener.hpp>
#include <weft/net/link/listener_handle.hpp>
#include <weft/net/link/peer_words.hpp>
#include <weft/net/link/socket_listener.hpp>
#include <weft/runtime/error.hpp>

#include <new>
#include <span>
#include <vector>

namespace weft::net::iwarp {
namespace {

// The limit of IRD and ORD while a request waits; accept() lowers both to the user's.
constexpr std::uint16_t max_reads = 128;

// A peer whose MPA request has arrived.
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

  // Rejects an unanswered request. The reply fits into the empty buffer of a new socket, so nothing has to wait.
  ~tcp_request() override {
    try {
      if (socket_ != nullptr && machine_->reject({})) send_now(*socket_, machine_->output());
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
  std::unique_ptr<descriptor> socket_;
  socket_address from_;
  std::string peer_;
  std::shared_ptr<domain> home_;
  const iwarp_options of_device_;
  std::unique_ptr<responder> machine_;
  std::vector<std::byte> early_;
};

class tcp_listener final : public socket_listener {
 public:
  tcp_listener(descriptor socket, std::string name, std::shared_ptr<domain> home_domain, const iwarp_options& of_device,
               const listen_options& options)
      : socket_listener(std::move(socket), std::move(name), options),
        home_(std::move(home_domain)),
        of_device_(of_device) {}

 private:
  task<std::unique_ptr<net::link_request>> receive_request(std::unique_ptr<descriptor> socket,
                                                           const socket_address& from, time_point deadline) override;
  task<> turn_away(descriptor& socket, time_point deadline) override;

  std::shared_ptr<domain> home_;
  const iwarp_options of_device_;
};

task<std::unique_ptr<net::link_request>> tcp_listener::receive_request(std::unique_ptr<descriptor> socket,
                                                                       const socket_address& from,
                                                                       time_point deadline) {
  auto machine = std::make_unique<responder>(responder_options{.crc = false, .ird = max_reads, .ord = max_reads});
  auto early = co_await drive(*socket, *machine, deadline);
  home().io().forget(*socket);
  co_return std::make_unique<tcp_request>(std::move(socket), from, home_, of_device_, std::move(machine),
                                          std::move(early));
}

task<> tcp_listener::turn_away(descriptor& socket, time_point deadline) {
  const auto machine = std::make_unique<responder>(responder_options{});
  static_cast<void>(co_await drive(socket, *machine, deadline));
  if (!machine->reject(std::as_bytes(std::span(no_descriptors_left)))) co_return;
  co_await send_output(socket, *machine, "send the MPA reply", deadline);
  socket.calls().shutdown(socket.fd(), SHUT_WR);
}

}  // namespace

std::unique_ptr<net::link_listener> listen(const socket_address& address, std::shared_ptr<domain> home,
                                           const iwarp_options& of_device, const listen_options& options) {
  descriptor socket = listen_at(address, executor_core::current()->calls(), options.traffic_class);
  const socket_address own = address_of(socket);
  return std::make_unique<listener_handle<socket_listener>>(
      std::make_shared<tcp_listener>(std::move(socket), own.to_string(), std::move(home), of_device, options));
}

}  // namespace weft::net::iwarp
