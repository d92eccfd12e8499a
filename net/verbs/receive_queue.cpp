// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/system/background.hpp>
#include <weft/net/verbs/receive_queue.hpp>
#include <weft/net/verbs/words.hpp>
#include <weft/runtime/core/stop_shield.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/offload.hpp>
#include <weft/runtime/sync/apart.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cassert>
#include <new>
#include <utility>

namespace weft::net::verbs {
namespace {

void destroy(const device& home, ibv_srq* queue) noexcept {
  if (home.calls().destroy_srq(queue) < 0) home.audience().forget(queue->srq_context);
}

class queue_destruction final : public mr::detail::background_job {
 public:
  queue_destruction(std::shared_ptr<device> home, std::shared_ptr<async_target> target, ibv_srq* queue) noexcept
      : device_(std::move(home)), target_(std::move(target)), queue_(queue) {}
  void run() noexcept override { destroy(*device_, queue_); }

 private:
  std::shared_ptr<device> device_;
  std::shared_ptr<async_target> target_;
  ibv_srq* queue_;
};

void check_depth(const device& home, std::uint16_t depth) {
  const int most = home.limits().max_srq > 0 ? home.limits().max_srq_wr : 0;
  if (most <= 0) throw error(errc::not_supported, fmt::format("{} has no shared receive queues", home.name()));
  if (!home.traits().messages_wait_for_receives) {  // mutant: share the receives
    throw error(errc::not_supported,
                fmt::format("{} ends a connection when a message finds no shared receive", home.name()));
  }
  if (depth > most) {
    throw error(errc::invalid_argument,
                fmt::format("a shared receive queue of {} takes at most {} receives", home.name(), most));
  }
}

ibv_srq* create(const device& home, std::uint16_t depth) {
  ibv_srq_init_attr wanted{};
  wanted.attr.max_wr = depth;
  wanted.attr.max_sge = 1;
  ibv_srq* made = nullptr;
  const int result = home.calls().create_srq(home.pd(), &wanted, &made);
  if (result < 0) throw system_error(-result, "create a shared receive queue on " + home.name());
  return made;
}

}  // namespace

void receive_request::fill(const receive_work& work, std::size_t fabric, std::uint64_t wr_id) noexcept {
  part = {.addr = reinterpret_cast<std::uintptr_t>(work.memory.data()),
          .length = static_cast<std::uint32_t>(work.memory.size()),
          .lkey = 0};
  if (part.length != 0) part.lkey = static_cast<std::uint32_t>(work.memory.record()->in(fabric).local_key);
  wr = {};
  wr.wr_id = wr_id;
  wr.sg_list = &part;
  wr.num_sge = part.length == 0 ? 0 : 1;
}

task<std::unique_ptr<net::receive_queue>> receive_queue::make(executor_state& shared, std::uint16_t depth) {
  return weft::detail::apart(make_now(shared, depth));
}

task<std::unique_ptr<net::receive_queue>> receive_queue::make_now(executor_state& shared, std::uint16_t depth) {
  const std::shared_ptr<device> home = shared.home();
  check_depth(*home, depth);
  completion_queue* const completions = co_await shared.reserve(depth);
  weft::detail::promise_base& self = co_await weft::detail::current_promise();
  const weft::detail::stop_shield shield(self);  // or a stop would leak the queue
  ibv_srq* made = nullptr;
  try {
    const device& where = *home;
    const auto work = [&where, depth] { return create(where, depth); };
    made = co_await weft::detail::offload_for_resources(work);
    co_return std::make_unique<receive_queue>(shared, *completions, depth, made);
  } catch (...) {
    if (made != nullptr) destroy(*home, made);
    shared.release(*completions, depth);
    throw;
  }
}

receive_queue::receive_queue(executor_state& shared, completion_queue& completions, std::uint16_t depth, ibv_srq* made)
    : shared_(shared),
      watching_(shared, static_cast<async_handler&>(*this)),
      completions_(completions),
      queue_(made),
      target_(std::make_shared<async_target>(shared.owner(), static_cast<async_handler&>(*this))),
      posted_(depth),
      tag_(completions.attach(*this)) {
  queue_->srq_context = target_.get();
}

receive_queue::~receive_queue() {
  assert(users_.empty() && "a shared receive queue ended before its queue pairs");
  target_->end();
  completions_.detach(tag_);
  shared_.release(completions_, static_cast<std::uint32_t>(posted_.size()));
  if (auto* const job = new (std::nothrow) queue_destruction(shared_.home(), target_, queue_)) {
    mr::detail::run_on_worker(std::unique_ptr<mr::detail::background_job>(job));
  } else {
    destroy(*shared_.home(), queue_);
  }
}

void receive_queue::post(receive_work& work) noexcept {
  posted_[work.slot] = &work;
  receive_request request;
  request.fill(work, shared_.home()->fabric(), tag_ | work.slot);
  ibv_recv_wr* refused = nullptr;
  const int result = shared_.home()->calls().post_srq_recv(queue_, &request.wr, &refused);
  if (result < 0) fail(weft::detail::make_system_error(-result, "post a shared receive"));
}

std::vector<receive_queue::user>::iterator receive_queue::place_of(std::uint32_t pair) noexcept {
  const auto before = [](const user& item, std::uint32_t number) { return item.pair < number; };
  return std::lower_bound(users_.begin(), users_.end(), pair, before);
}

receive_queue::user* receive_queue::find(std::uint32_t pair) noexcept {
  const auto place = place_of(pair);
  return place != users_.end() && place->pair == pair ? &*place : nullptr;
}

// The numbers of queue pairs are reused. Completions that an earlier queue pair with this number has left behind are
// drained first, before there is a sink for the number.
void receive_queue::attach(std::uint32_t pair, receive_sink& who) {
  completions_.drain();
  if (failure_) throw *failure_;
  assert(find(pair) == nullptr);
  users_.insert(place_of(pair), {pair, &who});
}

void receive_queue::detach(std::uint32_t pair) noexcept {
  if (find(pair) != nullptr) users_.erase(place_of(pair));
}

void receive_queue::on_completion(const ibv_wc& what, std::uint32_t slot) noexcept {
  receive_work& work = *std::exchange(posted_[slot], nullptr);
  if (user* const found = find(what.qp_num)) return found->sink->on_receive(what, work);
  post(work);
}

void receive_queue::on_async_event(ibv_event_type what, int) noexcept {
  if (const auto why = failure_of(what, shared_.home()->name())) fail(*why);
}

// Sinks must not detach inside on_receives_failed(), so the table does not change.
void receive_queue::fail(const error& why) noexcept {
  if (!failure_) failure_ = why;
  for (std::size_t i = 0; i < users_.size(); ++i) users_[i].sink->on_receives_failed(why);
}

}  // namespace weft::net::verbs
