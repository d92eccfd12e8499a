// SPDX-License-Identifier: Apache-2.0
#include <weft/net/connection/connection_core.hpp>
#include <weft/net/connection/device_state.hpp>
#include <weft/net/connection/set_up.hpp>
#include <weft/net/device.hpp>
#include <weft/net/device/transports.hpp>
#include <weft/net/link/failed_task.hpp>
#include <weft/net/link/joint_listener.hpp>
#include <weft/net/link/peer_words.hpp>
#include <weft/net/link/try_addresses.hpp>
#include <weft/runtime/report.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <exception>

namespace weft::net {

device::device(std::shared_ptr<device_state> state) noexcept : state_(std::move(state)) {}

device::~device() = default;

device device::open(std::string_view name, const device_options& options) try {
  return open_found(open_transports(name, options), options);
} catch (const error& why) {
  throw why.within(fmt::format("open device \"{}\"", name));
}

device device::open(std::unique_ptr<transport> made, const device_options& options) {
  std::vector<found_transport> one;
  one.push_back({.made = std::move(made)});
  return open_found(std::move(one), options);
}

device open_found(std::vector<found_transport> found, const device_options& options) {
  if (found.empty() || found.size() > mr::max_fabrics) {
    throw error(errc::invalid_argument,
                fmt::format("a device has 1 to {} fabrics, not {}", mr::max_fabrics, found.size()));
  }
  std::vector<std::unique_ptr<transport>> fabrics;
  fabrics.reserve(found.size());
  for (found_transport& each : found) fabrics.push_back(std::move(each.made));
  return device(std::make_shared<device_state>(std::move(fabrics), options.pool, std::move(found.front().passed_over)));
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

mr::domain& device::domain() { return checked()->domain(); }

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

// Connects over one fabric. Each attempt finds receives of its own, because a failed attempt may keep its receives for
// a while.
task<std::unique_ptr<connection_core>> connect_over(std::shared_ptr<device_state> state, std::size_t fabric,
                                                    std::string_view address, std::string passed_over,
                                                    connection_options options, bool is_last) {
  const auto group = find_shared_receives(options, *state);
  auto shared = group != nullptr ? group->on(fabric) : nullptr;
  if (shared != nullptr) options.receive_size = shared->options().receive_size;
  net::transport& way = state->fabric(fabric);
  const greeting_frame hello(options, way.features_of(options.resume_within), way.landing(), false,
                             way.domain().fabric());
  set_up_options set_up = make_set_up(*state, options, hello, shared);
  auto receives = co_await find_receives(*state, options, std::move(shared), set_up.deadline);
  set_up.first_receives = receives.own;
  set_up.pool = &state->pool();
  set_up.may_go_elsewhere = !is_last;
  new_link established = co_await way.connect(address, set_up);
  established.fabric = fabric;
  established.passed_over = std::move(passed_over);
  if (options.profile == profile::native) {
    if (const auto theirs = greeting::other_versions(established.peer_private_data)) throw other_versions(*theirs);
  }
  co_return std::make_unique<connection_core>(std::move(state), std::move(established), std::move(receives), options);
}

// The fabrics that understand the address, in order. Throws errc::invalid_address if there are none.
std::vector<std::size_t> fabrics_for(const device_state& device, std::string_view address) {
  std::vector<std::size_t> all;
  for (std::size_t fabric = 0; fabric < device.fabrics(); ++fabric) {
    if (device.fabric(fabric).understands(address)) all.push_back(fabric);
  }
  if (all.empty()) throw error(errc::invalid_address, fmt::format("{} takes HOST:PORT", device.name()));
  return all;
}

std::string over(const net::transport& way) { return fmt::format("over {}", way.name()); }

// Connects over the first fabric that reaches the peer; each fabric gets its share of the time.
task<std::unique_ptr<connection_core>> connect_core(std::shared_ptr<device_state> state, std::string address,
                                                    connection_options options) {
  const std::vector<std::size_t> candidates = fabrics_for(*state, address);
  const time_point deadline = later(executor_core::current()->now(), options.set_up_timeout);
  const auto named = [&](std::size_t fabric) { return over(state->fabric(fabric)); };
  const auto attempt = [&](std::size_t fabric, std::size_t left, const failed_attempts& failed) {
    const duration share = share_of_time(deadline, left) - executor_core::current()->now();
    options.set_up_timeout = std::chrono::ceil<std::chrono::milliseconds>(std::max(share, duration::zero()));
    return connect_over(state, fabric, address, failed.text(), options, left == 1);
  };
  co_return co_await try_in_order(candidates, named, attempt, may_reach_otherwise);
}

// Replaces port 0 by the port of `chosen`: the port that the first listener has chosen is used on the other fabrics,
// too.
std::string with_port_of(std::string_view address, std::string_view chosen) {
  if (!address.ends_with(":0")) return std::string(address);
  return fmt::format("{}{}", address.substr(0, address.size() - 2), chosen.substr(chosen.rfind(':')));
}

// The fabrics that listen at an address, and the failures of the others.
struct listening {
  std::vector<fabric_listener> parts;
  failed_attempts failures;        // of fabrics that do not listen, except the last
  std::optional<error> of_widest;  // the failure of the last fabric, which reaches the most peers and is tried first
  std::optional<error> of_taken;   // set if another program has the port over some fabric, and would get the peers
};

// Listens over each fabric that can, and collects the failures of the others. Tries the last fabric first, because it
// reaches the most peers and its ports are the likeliest to be taken.
task<listening> listen_where_possible(std::shared_ptr<device_state> state, std::vector<std::size_t> candidates,
                                      std::string address, listen_options options) {
  listening made;
  failed_attempts in_order;  // failures as they came: the widest fabric's comes first, because it says the most
  bool all_have_own_ports = true;
  for (auto fabric = candidates.rbegin(); fabric != candidates.rend(); ++fabric) {
    net::transport& way = state->fabric(*fabric);
    const std::string where =
        made.parts.empty() ? address : with_port_of(address, made.parts.front().source->address());
    try {
      auto source = co_await way.listen(where, options);
      made.parts.emplace_back(*fabric, std::move(source));
      all_have_own_ports = all_have_own_ports && way.has_own_ports();
    } catch (const error& why) {
      // If no fabric listens yet, a taken address is final. Later, the port that an earlier fabric has chosen may be
      // taken on this fabric only.
      const bool is_taken = why.code() == std::errc::address_in_use;
      const bool is_widest = fabric == candidates.rbegin();
      if (why.code() == errc::canceled || (is_taken && is_widest)) throw;
      in_order.add(over(way), why);
      if (is_taken && made.parts.empty()) throw in_order.all();
      if (is_taken && (way.has_own_ports() || all_have_own_ports)) made.of_taken = in_order.all();
      if (is_widest) {
        made.of_widest = why;
      } else {
        made.failures.add(over(way), why);
      }
    }
  }
  co_return made;
}

// Joins the fabrics that listen. Reports why the others do not, or throws if none does.
std::unique_ptr<link_listener> join_what_listens(const device_state& state, std::size_t widest,
                                                 std::string_view address, listening made) {
  if (made.of_widest) made.failures.add(over(state.fabric(widest)), *made.of_widest);
  if (made.parts.empty()) throw made.failures.all();
  if (!made.failures.empty()) {
    const std::string text = fmt::format("peers cannot reach {} over every fabric: {}", address, made.failures.text());
    send_report({.kind = report_kind::warning, .text = text});
  }
  return join_listeners(std::move(made.parts), failed_listener::is_reported);
}

task<std::unique_ptr<link_listener>> listen_over_all(std::shared_ptr<device_state> state, std::string address,
                                                     listen_options options) {
  constexpr std::size_t most_ports_to_try = 16;
  const std::vector<std::size_t> candidates = fabrics_for(*state, address);
  if (candidates.size() == 1) {
    std::vector<fabric_listener> one;
    one.emplace_back(candidates[0], co_await state->fabric(candidates[0]).listen(address, options));
    co_return join_listeners(std::move(one), failed_listener::is_reported);
  }
  std::vector<listening> reserved;  // kept, because the kernel would choose their ports again
  for (;;) {
    listening made = co_await listen_where_possible(state, candidates, address, options);
    if (!made.of_taken) co_return join_what_listens(*state, candidates.back(), address, std::move(made));
    if (!address.ends_with(":0") || reserved.size() + 1 == most_ports_to_try) throw error(*made.of_taken);
    reserved.push_back(std::move(made));
  }
}

}  // namespace

task<connection> device::connect(std::string address, connection_options options) {
  auto state = checked();
  const std::string where = fmt::format("{} over {}", address, state->name());
  const set_up_statistics::present counted(state->set_ups().in_progress);
  try {
    auto core = co_await connect_core(state, std::move(address), options);
    co_return connection(std::move(core));
  } catch (const error& why) {
    set_up_statistics::count(state->set_ups().connects_failed);
    const bool refused = why.code() == std::errc::connection_refused;
    throw why.within((refused ? "nobody listens on " : "connect to ") + where);
  } catch (...) {
    set_up_statistics::count(state->set_ups().connects_failed);
    throw;
  }
}

task<shared_receives> device::share_receives(shared_receive_options options) {
  auto state = checked();
  const std::string context = fmt::format("share receives over {}", state->name());
  try {
    co_return shared_receives(co_await shared_receive_group::make(std::move(state), options));
  } catch (const error& why) {
    throw why.within(context);
  }
}

task<listener> device::listen(std::string address, listener_options options) {
  auto state = checked();
  const std::string context = fmt::format("listen on {} over {}", address, state->name());
  options.max_half_open = std::max<std::size_t>(options.max_half_open, 1);
  const listen_options plain{.set_up_timeout = options.set_up_timeout,
                             .max_half_open = options.max_half_open,
                             .traffic_class = options.traffic_class,
                             .counts = &state->set_ups()};
  try {
    auto source = co_await listen_over_all(state, std::move(address), plain);
    co_return listener(std::move(state), std::move(source), options);
  } catch (const error& why) {
    throw why.within(context);
  }
}

}  // namespace weft::net
