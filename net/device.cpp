// SPDX-License-Identifier: Apache-2.0
#include <weft/net/connection_core.hpp>
#include <weft/net/device.hpp>
#include <weft/net/device_state.hpp>
#include <weft/net/iwarp/transport.hpp>
#include <weft/net/set_up.hpp>

#include <fmt/core.h>

#include <utility>

namespace weft::net {

device::device(std::shared_ptr<device_state> state) noexcept : state_(std::move(state)) {}

device::~device() = default;

device device::open(std::string_view name, const device_options& options) {
  // "auto" means an RDMA NIC where there is one; until the verbs transport exists there is none to be had.
  if (name != "auto" && name != "iwarp") {
    throw error(errc::not_supported, fmt::format("open device \"{}\" (this build knows: auto, iwarp)", name));
  }
  return device(std::make_shared<device_state>(iwarp::open_transport(), options.pool));
}

std::string_view device::name() const noexcept { return state_->name(); }

mr::domain& device::domain() noexcept { return state_->transport().domain(); }

mr::pool& device::pool() noexcept { return state_->pool(); }

namespace {

task<std::unique_ptr<connection_core>> connect_core(std::shared_ptr<device_state> state, std::string address,
                                                    connection_options options) {
  auto shared = shared_receive_state::of(options, *state);
  if (shared != nullptr) options.receive_size = shared->options().receive_size;
  const greeting_frame hello(options, state->transport().features());
  const set_up_options set_up = make_set_up(options, hello, shared.get());
  auto receives = co_await connection_core::find_receives(state->pool(), options, std::move(shared), set_up.deadline);
  new_link established = co_await state->transport().connect(address, set_up);
  co_return std::make_unique<connection_core>(std::move(state), std::move(established), std::move(receives), options);
}

}  // namespace

task<connection> device::connect(std::string address, connection_options options) {
  auto state = state_;
  const std::string context = fmt::format("connect to {} over {}", address, state->name());
  try {
    auto core = co_await connect_core(std::move(state), std::move(address), options);
    co_return connection(std::move(core));
  } catch (const error& why) {
    throw why.within(context);
  }
}

task<shared_receives> device::share_receives(shared_receive_options options) {
  auto state = state_;
  const std::string context = fmt::format("share receives over {}", state->name());
  try {
    co_return shared_receives(co_await shared_receive_state::make(std::move(state), options));
  } catch (const error& why) {
    throw why.within(context);
  }
}

task<listener> device::listen(std::string address, listener_options options) {
  auto state = state_;
  const std::string context = fmt::format("listen on {} over {}", address, state->name());
  const listen_options plain{.set_up_timeout = options.set_up_timeout,
                             .half_open_limit = options.half_open_limit,
                             .traffic_class = options.traffic_class};
  try {
    auto source = co_await state->transport().listen(address, plain);
    co_return listener(std::move(state), std::move(source));
  } catch (const error& why) {
    throw why.within(context);
  }
}

}  // namespace weft::net
