// SPDX-License-Identifier: Apache-2.0
#include <weft/net/verbs/completion_queue.hpp>
#include <weft/net/verbs/words.hpp>

#include <algorithm>
#include <array>
#include <cassert>
#include <cerrno>
#include <utility>

namespace weft::net::verbs {
namespace {

// Acknowledging takes a mutex, so do it for many events at a time: ibv_ack_cq_events(3).
constexpr unsigned acknowledge_every = 256;
constexpr std::size_t batch_size = 16;

}  // namespace

completion_queue::completion_queue(std::shared_ptr<device> home, std::uint32_t entries) : device_(std::move(home)) {
  rdma_calls& library = device_->calls();
  int failure = library.create_comp_channel(device_->context(), &channel_);
  if (failure == 0) failure = library.set_nonblocking(channel_->fd);
  if (failure == 0) failure = library.create_cq(device_->context(), static_cast<int>(entries), channel_, &queue_);
  if (failure < 0) {
    if (channel_ != nullptr) library.destroy_comp_channel(channel_);
    throw system_error(-failure, "create a completion queue on " + device_->name());
  }
  capacity_ = static_cast<std::uint32_t>(queue_->cqe);
}

void completion_queue::hear_events_on(executor_core& home) {
  async_handler& self = *this;
  home_ = &home;
  target_ = std::make_shared<async_target>(home, self);
  queue_->cq_context = target_.get();
}

void completion_queue::begin_polling() {
  home_->add_poller(*this);
  polled_ = true;
}

void completion_queue::end_polling() noexcept {
  if (std::exchange(polled_, false)) home_->remove_poller(*this);
}

completion_queue::~completion_queue() {
  assert(reserved_ == 0 && "a completion queue ended before its queue pairs");
  if (target_ != nullptr) target_->end();
  // Destroying the queue waits until all of its events have been acknowledged.
  if (unacknowledged_ != 0) device_->calls().ack_cq_events(queue_, unacknowledged_);  // mutant: leave the events
  if (device_->calls().destroy_cq(queue_) < 0) device_->audience().forget(queue_->cq_context);
  device_->calls().destroy_comp_channel(channel_);
}

std::uint64_t completion_queue::attach(completion_sink& sink) {
  if (failure_) throw *failure_;
  if (free_places_.empty()) {
    if (places_.size() >> index_bits != 0) throw std::bad_alloc();
    free_places_.reserve(places_.size() + 1);  // so that detach(), ring_later() and tell_when_drained() need no memory
    to_ring_.reserve(places_.size() + 1);
    to_tell_.reserve(2 * (places_.size() + 1));  // twice, because a sink may ask again while tell() tells it
    places_.emplace_back();
    free_places_.push_back(static_cast<std::uint32_t>(places_.size() - 1));
  }
  const std::uint32_t index = free_places_.back();
  free_places_.pop_back();
  place& mine = places_[index];
  mine.sink = &sink;
  return ((std::uint64_t{mine.generation} << index_bits) | index) << detail_bits;
}

void completion_queue::detach(std::uint64_t tag) noexcept {
  const std::uint32_t index = index_of(tag);
  place& mine = places_[index];
  mine.sink = nullptr;
  mine.generation = (mine.generation + 1) & generation_mask;
  free_places_.push_back(index);
}

void completion_queue::ring_later(std::uint64_t tag) noexcept {
  const std::uint32_t index = index_of(tag);
  if (!std::exchange(places_[index].rings, true)) to_ring_.push_back(index);
}

// A loop, because a failure in ring_now() may call ring_later() again.
void completion_queue::ring_all() noexcept {
  while (!to_ring_.empty()) {
    place& next = places_[to_ring_.back()];
    to_ring_.pop_back();
    next.rings = false;
    if (next.sink != nullptr) next.sink->ring_now();
  }
}

void completion_queue::tell_when_drained(std::uint64_t tag) noexcept {
  const std::uint32_t index = index_of(tag);
  if (!std::exchange(places_[index].waits, true)) to_tell_.push_back(index);
}

// A sink that calls tell_when_drained() inside on_completion() or on_drained() waits for another poll_cq().
void completion_queue::tell(std::size_t count) noexcept {
  for (std::size_t i = 0; i != count; ++i) {
    place& next = places_[to_tell_[i]];
    next.waits = false;
    if (next.sink != nullptr) next.sink->on_drained();
  }
  to_tell_.erase(to_tell_.begin(), to_tell_.begin() + static_cast<std::ptrdiff_t>(count));
}

// In a failed completion only wr_id, status, qp_num and vendor_err are valid; the sink has to know the rest.
void completion_queue::dispatch(const ibv_wc& what) noexcept {
  const auto generation = static_cast<std::uint32_t>(what.wr_id >> (detail_bits + index_bits));
  const place& found = places_[index_of(what.wr_id)];
  if (found.sink == nullptr || found.generation != generation) return;
  found.sink->on_completion(what, static_cast<std::uint32_t>(what.wr_id & ((1u << detail_bits) - 1)));
}

std::size_t completion_queue::poll(std::size_t budget) noexcept {
  ring_all();
  std::array<ibv_wc, batch_size> batch;  // mutant: once it is armed
  std::size_t total = 0;
  while (total < budget) {
    const std::size_t wanted = std::min(batch.size(), budget - total);
    const std::size_t waiting = to_tell_.size();
    const int found = device_->calls().poll_cq(queue_, static_cast<int>(wanted), batch.data());
    if (found < 0 && !failure_) fail(weft::detail::make_error(errc::connection_failed, "poll a completion queue"));
    if (found <= 0) {
      tell(waiting);
      break;
    }
    const auto count = static_cast<std::size_t>(found);
    found_while_armed_ = armed_;
    for (std::size_t i = 0; i < count; ++i) dispatch(batch[i]);
    total += count;
    if (count == wanted) continue;
    tell(waiting);
    break;
  }
  return total;
}

void completion_queue::drain() noexcept {
  // Takes at most capacity_ completions: further ones are of requests that were posted meanwhile, by resumed tasks.
  for (std::uint32_t left = capacity_; left != 0;) {
    const std::size_t found = poll(std::min<std::size_t>(left, batch_size));
    if (found < batch_size) return;
    left -= static_cast<std::uint32_t>(std::min<std::size_t>(found, left));
  }
}

// Arming takes a system call on rxe, so a queue that is still armed is left so. It is armed again after a completion
// whose event has not been taken, because a kernel without memory drops the event, and the device is no longer armed.
// An event for completions that were already polled wakes the executor once for nothing.
void completion_queue::arm() noexcept {
  if (armed_ && !found_while_armed_) return;
  found_while_armed_ = false;
  armed_ = device_->calls().req_notify_cq(queue_) == 0;
}

// Takes one event: to look for another would take a system call each time. Each arm() causes at most one event, so that
// they do not pile up, and one that is left wakes the executor once for nothing.
void completion_queue::disarm() noexcept {
  const int result = device_->calls().get_cq_event(channel_);
  if (result == -EAGAIN || result == -EINTR) return;
  if (result < 0) return lose_channel();
  armed_ = found_while_armed_ = false;
  if (++unacknowledged_ == acknowledge_every) {
    device_->calls().ack_cq_events(queue_, std::exchange(unacknowledged_, 0));
  }
}

// The kernel has removed the device. The readable descriptor would keep the executor from sleeping, so polling ends,
// in on_async_event(), because it must not end inside a poll.
void completion_queue::lose_channel() noexcept {
  channel_lost_ = true;
  if (!failure_) fail(device_removed(device_->name()));
  if (target_ != nullptr) target_->tell(IBV_EVENT_CQ_ERR, 0);
}

// An overflow loses completions; on rxe nothing but this event reports it.
void completion_queue::on_async_event(ibv_event_type what, int) noexcept {
  if (channel_lost_) return end_polling();
  if (const auto why = failure_of(what, device_->name())) fail(*why);
}

void completion_queue::fail(const error& why) noexcept {
  if (!failure_) failure_ = why;
  for (std::size_t i = 0; i < places_.size(); ++i) {
    if (places_[i].sink != nullptr) places_[i].sink->on_queue_failure(why);
  }
}

}  // namespace weft::net::verbs
