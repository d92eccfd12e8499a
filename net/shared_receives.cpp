// SPDX-License-Identifier: Apache-2.0
#include <weft/net/connection/connection_core.hpp>
#include <weft/net/connection/receive_memory.hpp>
#include <weft/net/connection/shared_receive_state.hpp>
#include <weft/net/device/device_state.hpp>
#include <weft/net/shared_receives.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <utility>

namespace weft::net {
namespace {

void check(const shared_receive_options& options, const mr::pool& pool) {
  if (options.depth == 0 || options.depth > max_depth) {
    throw error(errc::invalid_argument, fmt::format("the depth is from 1 to {}", max_depth));
  }
  if (options.receive_size > greeting::largest_receive_size) {
    throw error(errc::invalid_argument, fmt::format("receive_size is at most {}", greeting::largest_receive_size));
  }
  const std::size_t wanted = options.depth * receive_bytes(options.receive_size);
  const std::size_t limit = pool.statistics().receive.max_bytes;
  if (wanted > limit) {
    throw error(errc::no_memory, fmt::format("{} bytes, of the {} that the pool has for receives", wanted, limit));
  }
}

}  // namespace

// ---- the handle ----

shared_receives::shared_receives(std::shared_ptr<shared_receive_state> state) noexcept : state_(std::move(state)) {}

shared_receives::shared_receives(shared_receives&& other) noexcept = default;

shared_receives& shared_receives::operator=(shared_receives&& other) noexcept {
  release();
  state_ = std::move(other.state_);
  return *this;
}

shared_receives::~shared_receives() { release(); }

void shared_receives::release() noexcept {
  if (state_ != nullptr) state_.take()->close();
}

const shared_receive_options& shared_receives::options() const {
  if (state_ == nullptr) detail::throw_misuse(errc::invalid_argument, "use shared receives that were moved from");
  return state_->options();
}

// ---- the state ----

shared_receive_state::shared_receive_state(std::shared_ptr<device_state> device, std::unique_ptr<receive_queue> queue,
                                           const shared_receive_options& options, std::vector<mr::buffer> memory)
    : home_(*executor_core::current()),
      device_(std::move(device)),
      options_(options),
      slots_(memory.size()),
      queue_(std::move(queue)),
      refill_(*this, device_->pool(), receive_bytes(options.receive_size)) {
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    slots_[i].work.slot = static_cast<std::uint16_t>(i);
    refilled(slots_[i], std::move(memory[i]));
  }
}

task<std::shared_ptr<shared_receive_state>> shared_receive_state::make(std::shared_ptr<device_state> device,
                                                                       shared_receive_options options) {
  check(options, device->pool());
  const time_point deadline = later(executor_core::current()->now(), options.set_up_timeout);
  if (device->fabrics() != 1) throw error(errc::not_supported, "receives are shared on a device of one fabric");
  auto queue = co_await device->fabric(0).share_receives(options.depth);
  std::vector<mr::buffer> memory =
      co_await find_receive_memory(device->pool(), options.depth, receive_bytes(options.receive_size), deadline);
  co_return std::make_shared<shared_receive_state>(std::move(device), std::move(queue), options, std::move(memory));
}

std::shared_ptr<shared_receive_state> shared_receive_state::of(const connection_options& options,
                                                               const device_state& device) {
  if (options.receives == nullptr) return nullptr;
  const auto& state = options.receives->state_.held();
  if (state == nullptr) throw error(errc::invalid_argument, "these shared receives were moved from");
  if (!state->home_.on_own_thread())
    throw error(errc::wrong_thread, "use shared receives on the executor on which they were made");
  if (state->device_.get() != &device) throw error(errc::wrong_device, "these shared receives are another device's");
  return state;
}

// In this order: where there is no memory to retry, the others hear of it at once, and this one has no link to end yet.
void shared_receive_state::join(connection_core& user) {
  refill_.retry(shared_from_this());
  users_.push_back(&user);
}

void shared_receive_state::leave(connection_core& user) noexcept {
  std::erase(users_, &user);
  stop_if_unused();
}

void shared_receive_state::close() noexcept {
  if (!home_.belongs_to_this_thread()) {
    closing_ = shared_from_this();
    return home_.submit(*this);
  }
  closed_ = true;
  stop_if_unused();
}

void shared_receive_state::stop_if_unused() noexcept {
  if (closed_ && users_.empty()) refill_.stop();
}

void shared_receive_state::post(receive_slot& slot) noexcept {
  slot.prepare(receive_bytes(options_.receive_size));
  queue_->post(slot.work);
}

void shared_receive_state::refilled(receive_slot& slot, mr::buffer memory) noexcept {
  slot.memory = std::move(memory);
  post(slot);
}

void shared_receive_state::refill_failed(const error& why) noexcept {
  for (connection_core* const user : users_) user->give_up(why);
}

}  // namespace weft::net
