// SPDX-License-Identifier: Apache-2.0
#include <weft/net/connection/shared_receive_state.hpp>
#include <weft/net/shared_receives.hpp>

#include <utility>

namespace weft::net {

shared_receives::shared_receives(std::shared_ptr<shared_receive_group> state) noexcept : state_(std::move(state)) {}

shared_receives::shared_receives(shared_receives&& other) noexcept = default;

shared_receives& shared_receives::operator=(shared_receives&& other) noexcept {
  release();
  state_ = std::move(other.state_);
  return *this;
}

shared_receives::~shared_receives() { release(); }

void shared_receives::release() noexcept {
  if (state_ != nullptr) shared_receive_group::let_go(state_.take());
}

const shared_receive_options& shared_receives::options() const {
  if (state_ == nullptr) detail::throw_misuse(errc::invalid_argument, "use shared receives that were moved from");
  return state_->on(0)->options();
}

std::shared_ptr<shared_receive_group> find_shared_receives(const connection_options& options,
                                                           const device_state& device) {
  if (options.receives == nullptr) return nullptr;
  if (options.device_memory)
    throw error(errc::not_supported, "receives cannot be shared by a connection that moves memory of devices");
  if (options.persistent_flush)
    throw error(errc::not_supported, "receives cannot be shared by a connection with persistent_flush");
  const auto& state = options.receives->state_.held();
  if (state == nullptr) throw error(errc::invalid_argument, "use shared receives that were moved from");
  if (!state->on(0)->home().on_own_thread())
    throw error(errc::wrong_thread, "use shared receives on the executor on which they were made");
  if (&state->on(0)->device() != &device)
    throw error(errc::wrong_device, "these shared receives belong to another device");
  return state;
}

}  // namespace weft::net
