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

std::unique_ptr<link_request> connection_request::take_request() {
  if (request_ == nullptr) throw error(errc::invalid_argument, "a connection request is answered once");
  return std::move(request_);
}

std::string_view connection_request::peer() const noexcept { return request_->peer(); }

std::span<const std::byte> connection_request::private_data() const noexcept {
  const auto all = request_->private_data();
  return greeting::unpack(all) ? all.subspan(greeting::bytes) : all;
}

task<connection> connection_request::accept(connection_options options) {
  const auto device = device_;
  const auto request = take_request();
  const std::string context = fmt::format("accept {} over {}", request->peer(), device->name());
  try {
    const greeting_frame hello(options);
    set_up_options set_up = make_set_up(options, hello);
    const auto said = request->private_data();
    // A peer that is not weft is sent the user's bytes alone.
    if (!greeting::unpack(said)) set_up.private_data = set_up.private_data.subspan(greeting::bytes);
    std::vector<std::byte> peer_data(said.begin(), said.end());
    auto receives = co_await connection_core::allocate_receives(device->pool(), options, set_up.deadline);
    auto established = co_await request->accept(set_up);
    new_link ready(std::move(established), std::move(peer_data));
    co_return connection(std::make_unique<connection_core>(device, std::move(ready), std::move(receives), options));
  } catch (const error& why) {
    throw why.within(context);
  }
}

task<> connection_request::reject(std::span<const std::byte> private_data) {
  const auto request = take_request();
  if (private_data.size() > max_private_data) {
    throw error(errc::invalid_argument,
                fmt::format("{} bytes of private data: there is room for {}", private_data.size(), max_private_data));
  }
  co_await request->reject(private_data);
}

listener::listener(std::shared_ptr<device_state> device, std::unique_ptr<link_listener> source) noexcept
    : device_(std::move(device)), source_(std::move(source)) {}

listener::listener(listener&&) noexcept = default;
listener& listener::operator=(listener&&) noexcept = default;
listener::~listener() = default;

std::string_view listener::address() const noexcept { return source_->address(); }

task<std::optional<connection_request>> listener::next() {
  auto request = co_await source_->next();
  if (request == nullptr) co_return std::nullopt;
  co_return connection_request(device_, std::move(request));
}

void listener::close() noexcept { source_->close(); }

}  // namespace weft::net
