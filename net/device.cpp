// SPDX-License-Identifier: Apache-2.0
#include <weft/net/connection/connection_core.hpp>
#include <weft/net/connection/peer_words.hpp>
#include <weft/net/connection/set_up.hpp>
#include <weft/net/device.hpp>
#include <weft/net/device/device_state.hpp>
#include <weft/net/device/found_transport.hpp>
#include <weft/net/failed_task.hpp>
#include <weft/net/iwarp/transport.hpp>
#ifdef WEFT_WITH_VERBS
#include <weft/net/verbs/transport.hpp>
#endif

#include <fmt/core.h>

#include <exception>
#include <utility>

namespace weft::net {

device::device(std::shared_ptr<device_state> state) noexcept : state_(std::move(state)) {}

device::~device() = default;

namespace {

#ifdef WEFT_WITH_VERBS
constexpr const char* known_names = "auto, iwarp, verbs, verbs:NAME, verbs:ADDRESS";

std::unique_ptr<transport> open_verbs(std::string_view name) { return verbs::open_transport(name); }
std::unique_ptr<transport> open_any_verbs() { return verbs::has_device() ? open_verbs("") : nullptr; }
#else
constexpr const char* known_names = "auto, iwarp";

std::unique_ptr<transport> open_verbs(std::string_view) {
  throw error(errc::not_supported, "this build has no verbs (the CMake option WEFT_WITH_VERBS)");
}
std::unique_ptr<transport> open_any_verbs() { return nullptr; }
#endif

std::unique_ptr<transport> open_named(std::string_view name) {
  constexpr std::string_view verbs_prefix = "verbs:";
  if (name == "iwarp") return iwarp::open_transport();
  if (name == "verbs") return open_verbs("");
  if (name.starts_with(verbs_prefix)) return open_verbs(name.substr(verbs_prefix.size()));
  throw error(errc::not_supported, fmt::format("this build knows: {}", known_names));
}

}  // namespace

device device::open(std::string_view name, const device_options& options) try {
  found_transport found = name == "auto" ? find_transport(open_any_verbs) : found_transport{.made = open_named(name)};
  return open(std::move(found), options);
} catch (const error& why) {
  throw why.within(fmt::format("open device \"{}\"", name));
}

device device::open(std::unique_ptr<transport> made, const device_options& options) {
  return open(found_transport{.made = std::move(made)}, options);
}

device device::open(found_transport found, const device_options& options) {
  return device(std::make_shared<device_state>(std::move(found.made), options.pool, std::move(found.passed_over)));
}

const std::shared_ptr<device_state>& device::checked() const {
  if (state_ == nullptr) [[unlikely]]
    detail::throw_misuse(errc::invalid_argument, "use a device that was moved from");
  return state_.held();
}

std::string_view device::name() const noexcept { return state_ ? state_->name() : std::string_view(); }

std::string_view device::passed_over() const noexcept {
  return state_ ? std::string_view(state_->passed_over()) : std::string_view();
}

mr::domain& device::domain() { return checked()->transport().domain(); }

mr::pool& device::pool() { return checked()->pool(); }

task<mr::region> device::refuse_registration() {
  return failed_task<mr::region>(errc::invalid_argument, "use a device that was moved from");
}

task<mr::region> device::register_memory(std::span<std::byte> memory, mr::registration_options options) {
  if (state_ == nullptr) return refuse_registration();
  return domain().register_memory(memory, options);
}

task<mr::region> device::register_memory(std::span<const std::span<std::byte>> ranges,
                                         mr::registration_options options) try {
  if (state_ == nullptr) return refuse_registration();
  return domain().register_memory(ranges, options);
} catch (...) {
  return failed_task<mr::region>(std::current_exception());
}

device_statistics device::statistics() const { return checked()->statistics(); }

namespace {

task<std::unique_ptr<connection_core>> connect_core(std::shared_ptr<device_state> state, std::string address,
                                                    connection_options options) {
  auto shared = shared_receive_state::of(options, *state);
  if (shared != nullptr) options.receive_size = shared->options().receive_size;
  const net::transport& way = state->transport();
  const greeting_frame hello(options, way.features(), way.landing(), false, way.domain().fabric());
  set_up_options set_up = make_set_up(options, hello, shared);
  auto receives = co_await connection_core::find_receives(state->pool(), options, std::move(shared), set_up.deadline);
  set_up.first_receives = receives.own;
  new_link established = co_await state->transport().connect(address, set_up);
  if (options.profile == profile::native) {
    if (const auto theirs = greeting::other_versions(established.peer_private_data)) throw other_versions(*theirs);
  }
  co_return std::make_unique<connection_core>(std::move(state), std::move(established), std::move(receives), options);
}

}  // namespace

task<connection> device::connect(std::string address, connection_options options) {
  auto state = checked();
  const std::string context = fmt::format("connect to {} over {}", address, state->name());
  const set_up_statistics::present counted(state->set_ups().in_progress);
  try {
    auto core = co_await connect_core(state, std::move(address), options);
    co_return connection(std::move(core));
  } catch (const error& why) {
    set_up_statistics::count(state->set_ups().connects_failed);
    throw why.within(context);
  } catch (...) {
    set_up_statistics::count(state->set_ups().connects_failed);
    throw;
  }
}

task<shared_receives> device::share_receives(shared_receive_options options) {
  auto state = checked();
  const std::string context = fmt::format("share receives over {}", state->name());
  try {
    co_return shared_receives(co_await shared_receive_state::make(std::move(state), options));
  } catch (const error& why) {
    throw why.within(context);
  }
}

task<listener> device::listen(std::string address, listener_options options) {
  auto state = checked();
  const std::string context = fmt::format("listen on {} over {}", address, state->name());
  const listen_options plain{.set_up_timeout = options.set_up_timeout,
                             .half_open_limit = options.max_half_open,
                             .traffic_class = options.traffic_class,
                             .counts = &state->set_ups()};
  try {
    auto source = co_await state->transport().listen(address, plain);
    co_return listener(std::move(state), std::move(source), options);
  } catch (const error& why) {
    throw why.within(context);
  }
}

}  // namespace weft::net
