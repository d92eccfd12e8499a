// SPDX-License-Identifier: Apache-2.0
#include <weft/net/connection/connection_state.hpp>
#include <weft/net/connection/device_state.hpp>

#include <fmt/core.h>

#include <utility>

namespace weft::net {

using weft::detail::make_error;

namespace {

// Clears references to the user's memory, which may be gone once the connection is established.
connection_options without_references(connection_options options) noexcept {
  options.private_data = {};
  options.source = {};
  options.receives = nullptr;
  return options;
}

}  // namespace

connection_state::connection_state(std::shared_ptr<device_state> of, new_link established,
                                   const connection_options& chosen)
    : home(*executor_core::current()),
      device(std::move(of)),
      options(without_references(chosen)),
      carrier(std::move(established), device->fabric(established.fabric), chosen),
      keys(std::make_shared<link_keys>(statistics)) {
  if (carrier.peer_greeting) sendable = carrier.peer_greeting->receive_depth;
  receivable = offered = options.receive_depth;
}

error connection_state::why_ended() const noexcept {
  if (closing) return make_error(errc::closed);
  if (failure) return *failure;
  return make_error(errc::peer_closed);
}

std::string connection_state::context(const char* what) const {
  return fmt::format("{} {} over {}", what, carrier.link->peer(), carrier.fabric->name());
}

void connection_state::give_up(const error& why) noexcept {
  if (failure) return;
  failure = why;
  link().abort(why.what());
}

void connection_state::violation(const char* what, net::link::violation kind) noexcept {
  if (failure) return;
  failure = make_error(errc::protocol_error, what);
  link().refuse(kind, what);
}

void connection_state::too_large() noexcept {
  violation("a message larger than receive_size", link::violation::too_long);
}

void connection_state::abort(std::string_view why) noexcept {
  aborted = true;
  link().abort(why);
}

void check_task(const connection_state& state, const link_keys& keys, const char* what) {
  if (keys.abandoned()) throw error(errc::closed, fmt::format("{} a peer: the connection has been destroyed", what));
  if (executor_core::current() != &state.home) throw error(errc::wrong_thread, state.context(what));
}

std::string begin_task(const connection_state& state, const link_keys& keys, const char* what) {
  check_task(state, keys, what);
  return state.context(what);
}

}  // namespace weft::net
