// SPDX-License-Identifier: Apache-2.0
#include <weft/net/connection/device_state.hpp>
#include <weft/net/connection/shared_receive_state.hpp>
#include <weft/net/link/native_protocol.hpp>
#include <weft/net/link/receive_memory.hpp>

#include <fmt/core.h>

#include <utility>

namespace weft::net {
namespace {

// `times` is the number of the device's domains, because each has its own set of receives.
void check(const shared_receive_options& options, const mr::pool& pool, std::size_t times) {
  if (options.depth == 0 || options.depth > max_depth) {
    throw error(errc::invalid_argument, fmt::format("the depth must be 1 to {}", max_depth));
  }
  if (options.receive_size > greeting::largest_receive_size) {
    throw error(errc::invalid_argument, fmt::format("receive_size must be at most {}", greeting::largest_receive_size));
  }
  const std::size_t wanted = times * options.depth * receive_bytes(options.receive_size);
  const std::size_t limit = pool.statistics().receive.max_bytes;
  if (wanted > limit) {
    throw error(errc::no_memory, fmt::format("{} bytes are more than the {} that the pool has for receives; lower "
                                             "receive_size or the depth, or raise pool_options::max_bytes",
                                             wanted, limit));
  }
}

}  // namespace

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

// Retries the refill before it adds the user: retry() may report a failure to all users, which abort their links, and
// the link of the new user has not been started yet.
void shared_receive_state::join(user& one) {
  refill_.retry(shared_from_this());
  users_.push_back(&one);
}

void shared_receive_state::leave(user& one) noexcept {
  std::erase(users_, &one);
  stop_if_unused();
}

void shared_receive_state::close() noexcept {
  closed_ = true;
  stop_if_unused();
  open_.reset();
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
  for (user* const each : users_) each->receives_failed(why);
}

// ---- on all fabrics ----

namespace {

// The index of the device's first fabric that has the same domain as `fabric`; it may be `fabric` itself.
std::size_t first_of_domain(const device_state& device, std::size_t fabric) noexcept {
  std::size_t first = 0;
  while (device.fabric(first).shared_domain() != device.fabric(fabric).shared_domain()) ++first;
  return first;
}

std::size_t domains_of(const device_state& device) noexcept {
  std::size_t count = 0;
  for (std::size_t i = 0; i < device.fabrics(); ++i) count += first_of_domain(device, i) == i;
  return count;
}

}  // namespace

task<std::shared_ptr<shared_receive_group>> shared_receive_group::make(std::shared_ptr<device_state> device,
                                                                       shared_receive_options options) {
  check(options, device->pool(), domains_of(*device));
  const time_point deadline = later(executor_core::current()->now(), options.set_up_timeout);
  auto made = std::make_shared<shared_receive_group>();
  for (std::size_t fabric = 0; fabric < device->fabrics(); ++fabric) {
    if (const std::size_t first = first_of_domain(*device, fabric); first != fabric) {
      made->of_fabrics_.push_back(made->on(first));
      continue;
    }
    auto queue = co_await device->fabric(fabric).share_receives(options.depth);
    std::vector<mr::buffer> memory =
        co_await find_receive_memory(device->pool(), options.depth, receive_bytes(options.receive_size), deadline);
    made->of_fabrics_.push_back(
        std::make_shared<shared_receive_state>(device, std::move(queue), options, std::move(memory)));
  }
  co_return made;
}

// Fabrics with the same domain share a set, which may thus be closed twice.
shared_receive_group::~shared_receive_group() {
  for (const auto& each : of_fabrics_) each->close();
}

void shared_receive_group::let_go(std::shared_ptr<shared_receive_group> group) noexcept {
  shared_receive_group& self = *group;
  if (self.home_.belongs_to_this_thread()) return;
  self.let_go_of_ = std::move(group);
  self.home_.submit(self);
}

}  // namespace weft::net
