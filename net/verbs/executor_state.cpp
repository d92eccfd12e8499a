// SPDX-License-Identifier: Apache-2.0
#include <weft/net/verbs/executor_state.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/offload.hpp>

#include <fmt/core.h>

#include <algorithm>

namespace weft::net::verbs {
namespace {

// The size of a queue unless one link needs more, or the device allows less: enough for some dozens of connections with
// the usual depths.
constexpr std::uint32_t usual_entries = 4096;

}  // namespace

executor_state& executor_state::of(const std::shared_ptr<device>& home) {
  executor_core& running = *executor_core::current();
  if (auto* found = running.find_attachment(home.get())) return static_cast<executor_state&>(*found);
  return static_cast<executor_state&>(running.attach(home.get(), std::make_unique<executor_state>(home)));
}

executor_state::executor_state(std::shared_ptr<device> home)
    : executor_(*executor_core::current()),
      device_(std::move(home)),
      channel_(device_->calls()),
      events_(device_->calls(), device_->context(), device_->audience()),
      target_(std::make_shared<async_target>(executor_, static_cast<async_handler&>(*this))) {}

executor_state::user::user(executor_state& shared, async_handler& who) : shared_(shared), handler_(who) {
  shared_.channel_.prepare();
  shared_.events_.prepare();
  if (shared_.users_.empty()) shared_.device_->audience().join(*shared_.target_);
  shared_.users_.push_front(*this);
  shared_.channel_.enter();
  shared_.events_.enter();
}

executor_state::user::~user() {
  shared_.channel_.leave();
  shared_.events_.leave();
  shared_.users_.remove(*this);
  if (shared_.users_.empty()) shared_.device_->audience().leave(*shared_.target_);
}

// No handler removes a user inside the call, so the list does not change.
void executor_state::on_async_event(ibv_event_type what, int port) noexcept {
  for (user& each : users_) each.handler_.on_async_event(what, port);
}

// Reserves room, and starts to poll a queue that was idle: only queues with users are polled.
void executor_state::reserve_in(completion_queue& queue, std::uint32_t entries) {
  if (queue.idle()) queue.begin_polling();
  queue.reserve(entries);
}

completion_queue* executor_state::find_room(std::uint32_t entries) {
  for (const auto& queue : queues_) {
    if (!queue->has_room(entries)) continue;
    reserve_in(*queue, entries);
    return queue.get();
  }
  return nullptr;
}

// Many set-ups at once may find no room, but one new queue may be enough for all: while a set-up creates a queue, the
// others wait for it.
task<completion_queue*> executor_state::reserve(std::uint32_t entries) {
  const auto most = static_cast<std::uint32_t>(device_->limits().max_cqe);
  if (entries > most) {
    throw error(
        errc::invalid_argument,
        fmt::format("{} takes at most {} operations and receives of one connection; lower send_depth or receive_depth",
                    device_->name(), most));
  }
  for (;;) {
    if (completion_queue* const found = find_room(entries)) co_return found;
    if (!making_) break;
    made_.reset();
    co_await made_.wait();
  }
  making_ = true;
  const struct guard {
    executor_state& self;
    ~guard() {
      self.making_ = false;
      self.made_.set();
    }
  } one_at_a_time{*this};
  const std::uint32_t wanted = std::min(most, std::max(entries, usual_entries));
  const auto make = [this, wanted] { return std::make_unique<completion_queue>(device_, wanted); };
  auto made = co_await weft::detail::offload_for_resources(make);
  completion_queue& added = *queues_.emplace_back(std::move(made));
  added.hear_events_on(executor_);
  reserve_in(added, entries);
  co_return &added;
}

void executor_state::release(completion_queue& from, std::uint32_t entries) noexcept {
  from.release(entries);
  if (from.idle()) from.end_polling();
}

}  // namespace weft::net::verbs
