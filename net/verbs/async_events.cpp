// SPDX-License-Identifier: Apache-2.0
#include <weft/net/verbs/async_events.hpp>

#include <cerrno>
#include <new>

namespace weft::net::verbs {
namespace {

constexpr int async_event_batch = 16;

}  // namespace

void async_target::tell(ibv_event_type what, int port) noexcept try {
  home_.post([self = shared_from_this(), what, port] {
    if (self->handler_ != nullptr) self->handler_->on_async_event(what, port);
  });
} catch (const std::bad_alloc&) {
  // The event is dropped. A failure also shows in completions, or in their absence.
}

void async_audience::join(async_target& who) {
  const std::lock_guard lock(mutex_);
  members_.push_back(&who);
}

void async_audience::leave(async_target& who) noexcept {
  const std::lock_guard lock(mutex_);
  std::erase(members_, &who);
}

int async_audience::take(rdma_calls& library, ibv_context* context, ibv_async_event& found) noexcept {
  const std::lock_guard lock(mutex_);
  const int result = library.get_async_event(context, &found);
  if (result < 0) return result;
  const std::uint64_t bit = bit_of(found.element.port_num);
  if (found.event_type == IBV_EVENT_PORT_ERR) ports_down_.fetch_or(bit, std::memory_order_relaxed);
  if (found.event_type == IBV_EVENT_PORT_ACTIVE) ports_down_.fetch_and(~bit, std::memory_order_relaxed);
  return result;
}

void async_audience::tell(ibv_event_type what, int port) noexcept {
  const std::lock_guard lock(mutex_);
  for (async_target* const member : members_) member->tell(what, port);
}

void async_audience::tell_owner(void* const& context, ibv_event_type what) noexcept {
  const std::lock_guard lock(mutex_);
  if (context != nullptr) static_cast<async_target*>(context)->tell(what, 0);
}

void async_audience::forget(void*& context) noexcept {
  const std::lock_guard lock(mutex_);
  context = nullptr;
}

bool async_events::on_readable() noexcept {
  for (int i = 0; i < async_event_batch; ++i) {
    ibv_async_event event{};
    const int result = audience_.take(calls_, context_, event);
    if (result == -EAGAIN || result == -EINTR) break;
    if (result < 0) {  // the kernel has removed the device, and the descriptor stays readable
      audience_.tell(IBV_EVENT_DEVICE_FATAL, 0);
      return false;
    }
    pass_on(event);
    // mutant: leave an event about
    calls_.ack_async_event(&event);  // at once, because until then the object cannot be destroyed
  }
  return true;
}

void async_events::pass_on(const ibv_async_event& event) noexcept {
  switch (event.event_type) {
    case IBV_EVENT_CQ_ERR:
      return audience_.tell_owner(event.element.cq->cq_context, event.event_type);
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED:
      return audience_.tell_owner(event.element.srq->srq_context, event.event_type);
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PATH_MIG_ERR:
      return audience_.tell_owner(event.element.qp->qp_context, event.event_type);
    case IBV_EVENT_PORT_ERR:
    case IBV_EVENT_PORT_ACTIVE:
    case IBV_EVENT_DEVICE_FATAL:
      return audience_.tell(event.event_type, event.element.port_num);
    default:  // changes of addresses, partition keys or the subnet manager concern the connection manager
      break;
  }
}

}  // namespace weft::net::verbs
