// SPDX-License-Identifier: Apache-2.0
#include <weft/net/connection_core.hpp>
#include <weft/net/device_state.hpp>
#include <weft/net/listener.hpp>
#include <weft/net/set_up.hpp>

#include <fmt/core.h>

#include <utility>

namespace weft::net {

connection_request::connection_request(std::shared_ptr<device_state> device,
                                       std::unique_ptr<link_request> request) noexcept
    : device_(std::move(device)), request_(std::move(request)) {}

connection_request::connection_request(connection_request&&) noexcept = default;
connection_request& connection_request::operator=(connection_request&&) noexcept = default;
connection_request::~connection_request() = default;

std::string_view connection_request::peer() const noexcept { return request_ ? request_->peer() : std::string_view(); }

std::span<const std::byte> connection_request::private_data() const noexcept {
  if (request_ == nullptr) return {};
  return greeting::user_data(request_->private_data());
}

namespace {

void check_unanswered(const std::unique_ptr<link_request>& request) {
  if (request == nullptr) throw error(errc::invalid_argument, "a connection request is answered once");
}

task<std::unique_ptr<connection_core>> accept_core(std::shared_ptr<device_state> device,
                                                   std::unique_ptr<link_request> request, connection_options options) {
  check_unanswered(request);
  const std::string context = fmt::format("accept {} over {}", request->peer(), device->name());
  try {
    auto shared = shared_receive_state::of(options, *device);
    if (shared != nullptr) options.receive_size = shared->options().receive_size;
    const transport& way = device->transport();
    const greeting_frame hello(options, way.features(), way.listens_first());
    set_up_options set_up = make_set_up(options, hello, shared);
    const auto said = request->private_data();
    // A peer that is not weft is sent the user's bytes alone.
    if (!greeting::unpack(said)) set_up.private_data = hello.user_data();
    std::vector<std::byte> peer_data(said.begin(), said.end());
    auto receives =
        co_await connection_core::find_receives(device->pool(), options, std::move(shared), set_up.deadline);
    set_up.first_receives = receives.own;
    auto established = co_await request->accept(set_up);
    new_link ready(std::move(established), std::move(peer_data));
    co_return std::make_unique<connection_core>(std::move(device), std::move(ready), std::move(receives), options);
  } catch (const error& why) {
    throw why.within(context);
  }
}

task<> reject_request(std::shared_ptr<device_state> device, std::unique_ptr<link_request> request,
                      std::vector<std::byte> private_data) {
  check_unanswered(request);
  const std::string context = fmt::format("reject {} over {}", request->peer(), device->name());
  try {
    const std::size_t room = greeting::unpack(request->private_data()) ? max_private_data : max_interop_private_data;
    if (private_data.size() > room) {
      throw error(errc::invalid_argument,
                  fmt::format("{} bytes of private data: there is room for {}", private_data.size(), room));
    }
    co_await request->reject(private_data);
  } catch (const error& why) {
    throw why.within(context);
  }
}

}  // namespace

task<connection> connection_request::accept(connection_options options) {
  // The request goes along, for the caller may not keep it until the task begins.
  return make_connection(accept_core(device_, std::move(request_), options));
}

task<connection> connection_request::make_connection(task<std::unique_ptr<connection_core>> core) {
  auto ready = co_await std::move(core);
  co_return connection(std::move(ready));
}

task<> connection_request::reject(std::span<const std::byte> private_data) {
  std::vector<std::byte> copy(private_data.begin(), private_data.end());
  return reject_request(device_, std::move(request_), std::move(copy));
}

listener::listener(std::shared_ptr<device_state> device, std::unique_ptr<link_listener> source) noexcept
    : device_(std::move(device)), source_(std::move(source)) {}

listener::listener(listener&&) noexcept = default;
listener& listener::operator=(listener&&) noexcept = default;
listener::~listener() = default;

std::string_view listener::address() const noexcept { return source_->address(); }

// The listener may go before the task begins, and while it waits.
task<std::optional<connection_request>> listener::next() {
  return next_request(device_, source_->next(), std::string(address()));
}

task<std::optional<connection_request>> listener::next_request(std::shared_ptr<device_state> device,
                                                               task<std::unique_ptr<link_request>> next,
                                                               std::string address) {
  try {
    auto request = co_await std::move(next);
    if (request == nullptr) co_return std::nullopt;
    co_return connection_request(std::move(device), std::move(request));
  } catch (const error& why) {
    throw why.within(fmt::format("listen on {} over {}", address, device->name()));
  }
}

void listener::close() noexcept { source_->close(); }

}  // namespace weft::net
