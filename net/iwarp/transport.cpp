// SPDX-License-Identifier: Apache-2.0
#include <weft/net/iwarp/set_up.hpp>
#include <weft/net/iwarp/tcp_link.hpp>
#include <weft/net/iwarp/tcp_listener.hpp>
#include <weft/net/iwarp/transport.hpp>
#include <weft/net/link/try_addresses.hpp>
#include <weft/net/software/receive_queue.hpp>

#include <span>
#include <string_view>

namespace weft::net::iwarp {

using software::receive_queue;
namespace {

// Whether the peer closed the connection instead of answering, as a responder that knows only the first revision of MPA
// does when it gets a request of the second (RFC 6581 section 10). If the responder has not read the whole request,
// closing resets the connection.
bool hung_up(const error& why) noexcept {
  return why.code() == errc::peer_vanished || why.code() == std::errc::connection_reset ||
         why.code() == std::errc::broken_pipe;
}

class transport final : public net::transport {
 public:
  transport(const iwarp_options& options, std::shared_ptr<software::domain> home)
      : options_(options), domain_(std::move(home)), base_(domain_) {}

  [[nodiscard]] std::string_view name() const noexcept override { return "iwarp"; }
  [[nodiscard]] const std::shared_ptr<mr::domain>& shared_domain() const noexcept override { return base_; }
  [[nodiscard]] native_features features() const noexcept override {
    return {.atomics = true, .immediate = true, .large_frames = true};
  }
  [[nodiscard]] task<new_link> connect(std::string_view address, const set_up_options& options) override;
  [[nodiscard]] task<std::unique_ptr<link_listener>> listen(std::string_view address,
                                                            const listen_options& options) override;
  [[nodiscard]] task<std::unique_ptr<net::receive_queue>> share_receives(std::uint16_t depth) override {
    co_return std::make_unique<receive_queue>(depth);
  }

 private:
  // The target and sources of an attempt, and the deadline for its TCP connection.
  struct route {
    const socket_address& target;
    std::span<const socket_address> sources;
    time_point tcp_deadline;
  };
  task<new_link> connect_to(route where, const set_up_options& options);
  task<new_link> set_up(route where, const set_up_options& options, std::uint8_t revision);

  const iwarp_options options_;
  std::shared_ptr<software::domain> domain_;
  std::shared_ptr<mr::domain> base_;
};

task<new_link> transport::connect(std::string_view address, const set_up_options& options) {
  const std::vector<socket_address> sources = co_await look_up_source(options.source, options.deadline);
  const auto attempt = [&](const socket_address& candidate, time_point deadline) {
    return connect_to({.target = candidate, .sources = sources, .tcp_deadline = deadline}, options);
  };
  co_return co_await try_addresses(address, false, options.deadline, attempt);
}

task<new_link> transport::connect_to(route where, const set_up_options& options) {
  try {
    co_return co_await set_up(where, options, 2);
  } catch (const error& why) {
    if (!options.interop || !hung_up(why)) throw;
  }
  co_return co_await set_up(where, options, 1);
}

task<new_link> transport::set_up(route where, const set_up_options& options, std::uint8_t revision) {
  const socket_address& address = where.target;
  auto socket = std::make_unique<descriptor>(open_socket(address, executor_core::current()->calls()));
  prepare_socket(*socket, options.dead_peer_after);
  set_traffic_class(*socket, address.family(), options.traffic_class);
  bind_source(*socket, address, where.sources);
  co_await connect_socket(*socket, address, where.tcp_deadline);
  initiator_options choice;
  choice.crc = options_.checksum.value_or(!address.is_loopback());
  choice.ird = options.incoming_reads;
  choice.ord = options.outgoing_reads;
  choice.revision = revision;
  choice.private_data = options.private_data;
  initiator machine(choice);
  std::vector<std::byte> early = co_await drive(*socket, machine, options.deadline);
  const auto said = machine.peer_private_data();
  std::vector<std::byte> peer_data(said.begin(), said.end());
  auto ready = std::make_unique<tcp_link>(std::move(socket), address.to_string(), domain_, machine.agreed(), true,
                                          std::move(early), options.receives.get(), options.dead_peer_after,
                                          options_.place_unchecked);
  co_return new_link(std::move(ready), std::move(peer_data));
}

task<std::unique_ptr<link_listener>> transport::listen(std::string_view address, const listen_options& options) {
  const auto attempt = [&](const socket_address& candidate, time_point) -> task<std::unique_ptr<link_listener>> {
    co_return iwarp::listen(candidate, domain_, options_, options);
  };
  co_return co_await try_addresses(address, true, time_point::max(), attempt);
}

}  // namespace

std::unique_ptr<net::transport> open_transport(const iwarp_options& options, system_calls& calls) {
  return open_transport(options, std::make_shared<software::domain>(calls, "iwarp"));
}

std::unique_ptr<net::transport> open_transport(const iwarp_options& options, std::shared_ptr<software::domain> home) {
  return std::make_unique<transport>(options, std::move(home));
}

}  // namespace weft::net::iwarp
