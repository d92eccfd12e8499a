// SPDX-License-Identifier: Apache-2.0
#include <weft/net/fabric/listener.hpp>
#include <weft/net/fabric/set_up.hpp>
#include <weft/net/fabric/transport.hpp>
#include <weft/net/link/peer_words.hpp>
#include <weft/net/link/tcp_socket.hpp>
#include <weft/net/link/try_addresses.hpp>
#include <weft/runtime/system/random.hpp>

#include <fmt/core.h>

#include <sys/socket.h>

#include <exception>
#include <span>
#include <utility>

namespace weft::net::fabric {
namespace {

constexpr const char* answer_step = "wait for the answer";

error rejected(const frame& answer, const device& home) {
  switch (answer.reason) {
    case reject_reason::other_version:
      return error(errc::protocol_error, fmt::format("the peer speaks no version {} of this set-up, but version {}",
                                                     frame::spoken_version, answer.version));
    case reject_reason::other_provider:
      return error(errc::not_supported, fmt::format("the peer is on libfabric's provider {}, and this end on {}",
                                                    answer.name(), home.provider()));
    case reject_reason::program:
      break;
  }
  return rejection(answer.private_data(), answer_step);
}

socket_address address_of_peer(const descriptor& socket) {
  sockaddr_storage there{};
  socklen_t length = sizeof there;
  const int result = socket.calls().getpeername(socket.fd(), reinterpret_cast<sockaddr*>(&there), &length);
  if (result < 0) throw error(errc::peer_vanished, answer_step);
  return {reinterpret_cast<const sockaddr*>(&there), length};
}

class transport final : public net::transport {
 public:
  explicit transport(std::shared_ptr<device> home)
      : device_(std::move(home)),
        domain_(std::make_shared<fabric::domain>(device_)),
        base_(domain_),
        name_("fabric:" + device_->name()) {}

  [[nodiscard]] std::string_view name() const noexcept override { return name_; }
  [[nodiscard]] const std::shared_ptr<mr::domain>& shared_domain() const noexcept override { return base_; }
  [[nodiscard]] native_features features() const noexcept override {
    return {.atomics = device_->has_atomics(), .immediate = true};
  }
  [[nodiscard]] task<new_link> connect(std::string_view address, const set_up_options& options) override;
  [[nodiscard]] task<std::unique_ptr<link_listener>> listen(std::string_view address,
                                                            const listen_options& options) override;

 private:
  task<new_link> set_up(const socket_address& target, std::span<const socket_address> sources, time_point tcp_deadline,
                        const set_up_options& options);

  std::shared_ptr<device> device_;
  std::shared_ptr<fabric::domain> domain_;
  std::shared_ptr<mr::domain> base_;
  std::string name_;
};

task<new_link> transport::connect(std::string_view address, const set_up_options& options) {
  const std::vector<socket_address> sources = co_await look_up_source(options.source, options.deadline);
  const auto attempt = [&](const socket_address& candidate, time_point deadline) {
    return set_up(candidate, sources, deadline, options);
  };
  co_return co_await try_addresses(address, false, options.deadline, attempt);
}

task<new_link> transport::set_up(const socket_address& target, std::span<const socket_address> sources,
                                 time_point tcp_deadline, const set_up_options& options) {
  auto socket = std::make_unique<descriptor>(open_socket(target, executor_core::current()->calls()));
  prepare_socket(*socket, options.dead_peer_after);
  set_traffic_class(*socket, target.family(), options.traffic_class);
  bind_source(*socket, target, sources);
  co_await connect_socket(*socket, target, tcp_deadline);
  frame hello{.kind = frame_kind::hello,
              .incoming_reads = options.incoming_reads,
              .outgoing_reads = options.outgoing_reads,
              .token = weft::detail::draw<std::uint64_t>(system_calls::kernel())};
  if (!hello.set_private_data(options.private_data)) throw error(errc::invalid_argument, "too much private data");
  hello.set_name(device_->provider());
  established made{.socket = std::move(socket),
                   .memory = domain_,
                   .peer = target.to_string(),
                   .own_token = hello.token,
                   .dead_peer_after = options.dead_peer_after};
  made.endpoint = co_await make_endpoint(device_, *made.socket, options, nullptr);
  std::unique_ptr<fabric_link> link;
  std::vector<std::byte> peer_data;
  std::exception_ptr failure;
  try {
    if (!hello.set_address(made.endpoint->address())) throw error(errc::not_supported, "the address is too long");
    co_await send_frame(*made.socket, hello, "send the hello", options.deadline);
    const frame said = co_await receive_frame(*made.socket, answer_step, options.deadline);
    if (said.version == frame::spoken_version && said.kind == frame_kind::reject) throw rejected(said, *device_);
    check_kind(said, frame_kind::accept, answer_step);
    if (said.incoming_reads > hello.outgoing_reads || said.outgoing_reads > hello.incoming_reads) {
      throw error(errc::protocol_error, fmt::format("{}: the peer agrees to more than was asked for", answer_step));
    }
    if (!device_->may_be_at(said.address(), address_of_peer(*made.socket))) {
      throw error(errc::protocol_error,
                  fmt::format("{}: the peer's endpoint is on another host than the peer", answer_step));
    }
    made.incoming_reads = said.outgoing_reads;
    made.outgoing_reads = said.incoming_reads;
    made.peer_token = said.token;
    made.endpoint = co_await insert_peer(std::move(made.endpoint), said);  // mutant: be ready before
    const auto data = said.private_data();
    peer_data.assign(data.begin(), data.end());
    link = make_link(made);
    const frame ready{.kind = frame_kind::ready};
    co_await send_frame(link->socket(), ready, "say that this end is ready", options.deadline);
  } catch (...) {
    failure = std::current_exception();
  }
  if (link != nullptr) {
    link = co_await conclude(std::move(link), failure);
    co_return new_link(std::move(link), std::move(peer_data));
  }
  if (made.endpoint != nullptr) co_await give_up(std::move(made.endpoint));
  std::rethrow_exception(failure);
}

task<std::unique_ptr<link_listener>> transport::listen(std::string_view address, const listen_options& options) {
  const auto attempt = [&](const socket_address& candidate, time_point) -> task<std::unique_ptr<link_listener>> {
    co_return fabric::listen(candidate, device_, domain_, options);
  };
  co_return co_await try_addresses(address, true, time_point::max(), attempt);
}

}  // namespace

std::vector<std::string> list_providers() { return provider_names(fabric_calls::library()); }

std::unique_ptr<net::transport> open_transport(std::string_view provider) {
  return open_transport(provider, fabric_calls::library());
}

std::unique_ptr<net::transport> open_transport(std::string_view provider, fabric_calls& library) {
  return std::make_unique<transport>(std::make_shared<device>(library, provider));
}

}  // namespace weft::net::fabric
