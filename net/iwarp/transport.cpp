// SPDX-License-Identifier: Apache-2.0
#include <weft/net/iwarp/domain.hpp>
#include <weft/net/iwarp/set_up.hpp>
#include <weft/net/iwarp/tcp_link.hpp>
#include <weft/net/iwarp/tcp_listener.hpp>
#include <weft/net/iwarp/transport.hpp>
#include <weft/runtime/with_timeout.hpp>

#include <fmt/core.h>

#include <optional>

namespace weft::net::iwarp {
namespace {

class transport final : public net::transport {
 public:
  transport() : domain_(std::make_shared<iwarp::domain>()), base_(domain_) {}

  [[nodiscard]] std::string_view name() const noexcept override { return "iwarp"; }
  [[nodiscard]] const std::shared_ptr<mr::domain>& shared_domain() const noexcept override { return base_; }
  [[nodiscard]] task<new_link> connect(std::string_view address, const set_up_options& options) override;
  [[nodiscard]] task<std::unique_ptr<link_listener>> listen(std::string_view address,
                                                            const listen_options& options) override;

 private:
  task<new_link> connect_to(const socket_address& address, const set_up_options& options);

  std::shared_ptr<iwarp::domain> domain_;
  std::shared_ptr<mr::domain> base_;
};

// Another address of the same name may do better, unless the peer has answered or there is no time left.
bool worth_another_try(const error& why) noexcept {
  return why.code() != errc::canceled && why.code() != errc::timed_out && why.code() != errc::peer_rejected;
}

task<std::vector<socket_address>> look_up(std::string_view address, time_point deadline) {
  try {
    co_return co_await with_deadline(deadline, resolve(address, false));
  } catch (const error& why) {
    if (why.code() == errc::timed_out) throw error(errc::timed_out, "look up the address");
    throw;
  }
}

task<new_link> transport::connect(std::string_view address, const set_up_options& options) {
  const std::vector<socket_address> addresses = co_await look_up(address, options.deadline);
  std::optional<error> last;
  for (const socket_address& candidate : addresses) {
    try {
      co_return co_await connect_to(candidate, options);
    } catch (const error& why) {
      if (!worth_another_try(why)) throw;
      last = addresses.size() == 1 ? why : why.within(candidate.to_string());
    }
  }
  throw *last;
}

task<new_link> transport::connect_to(const socket_address& address, const set_up_options& options) {
  auto socket = std::make_unique<descriptor>(open_socket(address, executor::current()->calls()));
  set_dead_peer_time(*socket, options.dead_peer_after);
  co_await connect_socket(*socket, address, options.deadline);
  initiator_options choice;
  choice.crc = options.checksum.value_or(!address.is_loopback());
  choice.ird = options.incoming_reads;
  choice.ord = options.outgoing_reads;
  choice.private_data = options.private_data;
  initiator machine(choice);
  std::vector<std::byte> early = co_await drive(*socket, machine, options.deadline);
  const auto said = machine.peer_private_data();
  std::vector<std::byte> peer_data(said.begin(), said.end());
  auto ready = std::make_unique<tcp_link>(std::move(socket), address.to_string(), domain_, machine.agreed(), true,
                                          std::move(early));
  co_return new_link(std::move(ready), std::move(peer_data));
}

task<std::unique_ptr<link_listener>> transport::listen(std::string_view address, const listen_options& options) {
  const std::vector<socket_address> addresses = co_await resolve(address, true);
  co_return std::make_unique<tcp_listener>(addresses.front(), domain_, options);
}

}  // namespace

std::unique_ptr<net::transport> open_transport() { return std::make_unique<transport>(); }

}  // namespace weft::net::iwarp
