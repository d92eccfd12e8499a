// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/system/background.hpp>
#include <weft/net/link/checked.hpp>
#include <weft/net/verbs/event_channel.hpp>
#include <weft/runtime/error.hpp>

#include <algorithm>
#include <cassert>

namespace weft::net::verbs {
namespace {

// The most events taken per wake-up, so that a storm of events does not keep the executor from its other work.
constexpr int event_batch = 64;

class id_destruction final : public mr::detail::background_job {
 public:
  explicit id_destruction(cm_id id) noexcept : id_(std::move(id)) {}

 private:
  void run() noexcept override { const cm_id gone = std::move(id_); }
  cm_id id_;
};

cm_event copy_of(const rdma_cm_event& from) noexcept {
  cm_event what;
  what.type = from.event;
  what.status = from.status;
  what.id = from.id;
  const rdma_conn_param& said = from.param.conn;
  what.responder_resources = said.responder_resources;
  what.initiator_depth = said.initiator_depth;
  if (said.private_data != nullptr) {
    what.private_bytes = said.private_data_len;
    std::copy_n(static_cast<const std::byte*>(said.private_data), said.private_data_len, what.private_data.begin());
  }
  return what;
}

}  // namespace

channel_handle::channel_handle(rdma_calls& library) : calls_(library) {
  int failure = calls_.create_event_channel(&channel_);
  if (failure == 0) {
    failure = calls_.set_nonblocking(channel_->fd);
    if (failure < 0) calls_.destroy_event_channel(channel_);
  }
  if (failure < 0) throw system_error(-failure, "open the RDMA connection manager (kernel module rdma_ucm)");
}

cm_id::cm_id(std::shared_ptr<channel_handle> channel, cm_handler* handler) : channel_(std::move(channel)) {
  checked(channel_->calls().create_id(channel_->get(), handler, &id_), "create an id of the RDMA connection manager");
}

int cm_id::migrate(const std::shared_ptr<channel_handle>& target) noexcept {
  if (channel_ == target) return 0;
  const int failure = channel_->calls().migrate_id(id_, target->get());
  if (failure == 0) channel_ = target;
  return failure;
}

void cm_id::destroy_on_worker(cm_id id) noexcept {
  if (!id) return;
  auto* const job = new (std::nothrow) id_destruction(std::move(id));
  if (job != nullptr) mr::detail::run_on_worker(std::unique_ptr<mr::detail::background_job>(job));
}

event_channel::event_channel(std::shared_ptr<channel_handle> handle)
    : descriptor_watch(handle->get()->fd), handle_(std::move(handle)) {}

bool event_channel::on_readable() noexcept {
  for (int i = 0; i < event_batch; ++i) {
    rdma_cm_event* event = nullptr;
    if (handle_->calls().get_cm_event(handle_->get(), &event) < 0) break;
    dispatch_one(*event);
  }
  return true;
}

// Copies the event and acknowledges it before the handler is called, because destroying or migrating an id waits for
// the acknowledgement.
void event_channel::dispatch_one(rdma_cm_event& event) noexcept {
  const cm_event what = copy_of(event);
  // A connection request goes to its listener. The new id begins with the listener's context, which is cleared.
  const bool request = what.type == RDMA_CM_EVENT_CONNECT_REQUEST;
  if (request) event.id->context = nullptr;
  auto* const handler = static_cast<cm_handler*>(request ? event.listen_id->context : event.id->context);
  const std::shared_ptr<channel_handle> alive = handle_;
  alive->calls().ack_cm_event(&event);  // mutant: leave an event of
  if (handler != nullptr) return handler->on_cm_event(what);
  if (request) cm_id::destroy_on_worker(cm_id(alive, what.id));
}

}  // namespace weft::net::verbs
