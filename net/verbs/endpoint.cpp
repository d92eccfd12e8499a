// SPDX-License-Identifier: Apache-2.0
#include <weft/net/link/checked.hpp>
#include <weft/net/link/receive_slot.hpp>
#include <weft/net/verbs/endpoint.hpp>
#include <weft/net/verbs/words.hpp>
#include <weft/runtime/core/background.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/executor.hpp>
#include <weft/runtime/offload.hpp>
#include <weft/runtime/with_timeout.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cerrno>

namespace weft::net::verbs {
namespace {

// The room for inline data to ask for: the sizes are tried in this order, because a device that has less room refuses
// the queue pair. irdma has 101 bytes, erdma 96, siw 80. A send or write that fits, trailer included, goes inline,
// which spares the device a read of memory.
constexpr std::array<std::uint32_t, 4> inline_sizes{128, 96, 64, 0};
// 0.64 ms: how long a peer waits before it repeats a message that has found no receive. Zero, the value of librdmacm,
// means 655 ms.
constexpr std::uint8_t rnr_timer = 12;
// Seven means for ever: a peer that is slow to receive is not dead, so the queue pair does not give it up.
constexpr std::uint8_t rnr_retries = 7;
// Not seven, which means for ever on rxe.
constexpr std::uint8_t retries = 6;
// How long to wait for each sign that a queue pair in ERR has given back its shared receives: wait_until_flushed().
constexpr auto flush_time = std::chrono::milliseconds(1000);

// Returns the exponent n of the local ACK timeout, which is 4.096 us * 2^n (InfiniBand specification, 9.7.6.1.3). A
// dead peer is noticed after `retries` + 1 such timeouts. Within the bounds below, they take at most half of
// dead_peer_after together, because the other half may pass before anything is sent.
std::uint8_t ack_timeout(std::chrono::milliseconds dead_peer_after) noexcept {
  constexpr std::uint8_t shortest = 10;  // 4.2 ms
  constexpr std::uint8_t longest = 19;   // 2.1 s
  if (dead_peer_after.count() <= 0) return longest;
  const auto each = saturated(dead_peer_after) / (2 * (retries + 1));
  std::uint8_t n = shortest;
  while (n < longest && std::chrono::nanoseconds(4096) * (std::int64_t{1} << (n + 1)) <= each) ++n;
  return n;
}

// Waits for the completion of an empty request.
class marker final : public completion_sink {
 public:
  explicit marker(completion_queue& queue) : queue_(queue), tag_(queue.attach(*this)) {}
  marker(const marker&) = delete;
  marker& operator=(const marker&) = delete;
  ~marker() { queue_.detach(tag_); }
  [[nodiscard]] std::uint64_t tag() const noexcept { return tag_; }
  [[nodiscard]] event::wait_operation wait() noexcept { return seen_.wait(); }
  /// Empty before the completion, and if the queue has failed.
  [[nodiscard]] std::optional<ibv_wc_status> status() const noexcept { return status_; }

 private:
  void on_completion(const ibv_wc& what, std::uint32_t) noexcept override {
    status_ = what.status;
    seen_.set();
  }
  void on_queue_failure(const error&) noexcept override { seen_.set(); }

  completion_queue& queue_;
  std::uint64_t tag_;
  event seen_;
  std::optional<ibv_wc_status> status_;
};

// Posts a signaled zero-length write. Returns the result of rdma_calls::post_send().
int post_empty_write(rdma_calls& library, ibv_qp* pair, std::uint64_t tag) noexcept {
  ibv_send_wr wr{};
  wr.wr_id = tag;
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.send_flags = IBV_SEND_SIGNALED;
  ibv_send_wr* refused = nullptr;
  return library.post_send(pair, &wr, &refused);
}

}  // namespace

endpoint::endpoint(executor_state& shared, cm_id id)
    : shared_(shared),
      watching_(shared, static_cast<async_handler&>(*this)),
      id_(std::move(id)),
      target_(std::make_shared<async_target>(shared.owner(), static_cast<async_handler&>(*this))),
      windows_(shared.owner(), *shared.home(), *this),
      destruction_(destroy_on_worker()),
      disposal_(end_in_background(*this)) {
  if (id_) id_.set_handler(this);
}

endpoint::~endpoint() {
  assert(pair_ == nullptr && queue_ == nullptr && !id_ && "an endpoint is disposed of");
  target_->end();
}

task<> endpoint::make_pair(const set_up_options& options) {
  requests_ = options.max_requests;
  wanted_operations_ = options.persistent_flush ? home().operations() : 0;
  kept_receives_ = options.receives;
  shared_receives_ = static_cast<receive_queue*>(kept_receives_.get());
  receives_ = shared_receives_ == nullptr ? options.max_receives : std::uint16_t{0};
  const std::uint32_t sends = requests_ + std::uint32_t{bind_requests} + keep_alive_requests;
  const auto most = static_cast<std::uint32_t>(home().limits().max_qp_wr);
  if (sends > most || receives_ > most) {
    throw error(
        errc::invalid_argument,
        fmt::format("a queue pair takes at most {} requests and as many receives; lower send_depth or receive_depth",
                    most));
  }
  const std::uint32_t flush_markers = shared_receives_ != nullptr ? 1 : 0;  // for the marker of wait_until_flushed()
  const std::uint32_t entries = sends + receives_ + flush_markers;          // mutant: reserve room for one completion
  queue_ = co_await shared_.reserve(entries);
  entries_ = entries;
  first_receives_ = options.first_receives;
  const auto work = [this] {
    create_pair();
    register_staging(sources_, 0);
    unsigned rights = IBV_ACCESS_LOCAL_WRITE;
    // A flush reads into the sinks, and an RNIC needs the right to write there: mr::rights_for_iwarp().
    if (home().traits().read_sinks_need_remote_write) rights |= IBV_ACCESS_REMOTE_WRITE;  // mutant: flush into memory
    register_staging(sinks_, rights);
    change_to(IBV_QPS_INIT, agreement{});
  };
  co_await weft::detail::offload_for_resources(work);
  if (shared_receives_ != nullptr) {
    shared_receives_->attach(pair_->qp_num, *this);
  } else {
    receive_tag_ = queue_->attach(*this);
    early_receives_.reserve(receives_);
    post_first_receives();  // mutant: post the receives
  }
}

std::uint8_t endpoint::max_parts() const noexcept {
  return static_cast<std::uint8_t>(std::clamp<int>(home().limits().max_sge, 1, max_segments));
}

std::uint8_t endpoint::max_read_parts() const noexcept {
  const int most = home().limits().max_sge_rd;  // one on RNICs; zero on devices that do not tell
  // mutant: read into more parts
  return static_cast<std::uint8_t>(most <= 0 ? max_parts() : std::min<int>(most, max_parts()));
}

void endpoint::create_pair() {
  ibv_qp_init_attr wanted{};
  wanted.send_cq = wanted.recv_cq = queue_->get();
  if (shared_receives_ != nullptr) {
    wanted.recv_cq = shared_receives_->completions().get();
    wanted.srq = shared_receives_->get();
  }
  wanted.qp_type = IBV_QPT_RC;
  wanted.cap.max_send_wr = requests_ + std::uint32_t{bind_requests} + keep_alive_requests;
  wanted.cap.max_recv_wr = receives_;
  wanted.cap.max_send_sge = max_parts();
  wanted.cap.max_recv_sge = 1;
  ibv_qp_init_attr attempt{};
  int result = -EINVAL;
  for (const std::uint32_t size : inline_sizes) {
    if (result != -EINVAL && result != -ENOMEM) break;
    attempt = wanted;
    attempt.cap.max_inline_data = size;
    result = create_pair(attempt);
  }
  checked(result, "create a queue pair");
  pair_->qp_context = target_.get();
  max_inline_bytes_ = std::min(attempt.cap.max_inline_data, inline_sizes.front());
}

// Creates a queue pair. With persistent_flush it also takes FLUSH and ATOMIC WRITE, unless the driver in user space
// lacks them, as it may even if the kernel's driver has them.
int endpoint::create_pair(ibv_qp_init_attr& attempt) noexcept {
  if (wanted_operations_ != 0) {
    ibv_qp_init_attr extended = attempt;
    const int result = calls().create_qp_ex(home().pd(), &extended, wanted_operations_, &pair_);
    if (result >= 0) operations_ = wanted_operations_;
    if (result != -EOPNOTSUPP) {
      attempt = extended;
      return result;
    }
  }
  return calls().create_qp(home().pd(), &attempt, &pair_);
}

void endpoint::register_staging(staging_area& area, unsigned rights) {
  const std::size_t bytes = (std::size_t{requests_} + keep_alive_requests) * staging_bytes;
  area.memory = std::make_unique<std::byte[]>(bytes);
  const auto address = reinterpret_cast<std::uintptr_t>(area.memory.get());
  const int failure = calls().reg_mr(home().pd(), area.memory.get(), bytes, address, rights, &area.region);
  if (failure < 0) throw failure_of_registration(-failure, "register memory for the data inside requests");
}

void endpoint::post_first_receives() {
  if (first_receives_ == nullptr) return;
  const std::vector<receive_slot>& slots = first_receives_->slots;
  std::vector<receive_request> chain(slots.size());
  for (std::size_t i = 0; i < chain.size(); ++i) {
    chain[i].fill(slots[i].work, home().fabric(), *receive_tag_ | receive_bit | slots[i].work.slot);
    if (i != 0) chain[i - 1].wr.next = &chain[i].wr;
  }
  ibv_recv_wr* refused = nullptr;
  checked(calls().post_recv(pair_, &chain.front().wr, &refused), "post the first receives");
  posted_receives_ = chain.size();
}

// Moves the queue pair to `state`. The connection manager fills in the path that it has resolved: GID, port, MTU and
// hop limit. weft adds the peer's rights, the timers, and the limits of outstanding reads.
void endpoint::change_to(ibv_qp_state state, const agreement& what) {
  ibv_qp_attr wanted{};
  wanted.qp_state = state;
  int mask = 0;
  checked(calls().init_qp_attr(id_.get(), &wanted, &mask), "ask how to set the queue pair up");
  wanted.qp_state = state;
  // mutant: offer a peer no rights
  wanted.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
  if (home().traits().has_atomics) wanted.qp_access_flags |= IBV_ACCESS_REMOTE_ATOMIC;
  if ((wanted_operations_ & with_flush) != 0) wanted.qp_access_flags |= access_flush_persistent;
  if (home().traits().pair_needs_right_to_bind) wanted.qp_access_flags |= IBV_ACCESS_MW_BIND;  // mutant: bind windows
  if (traffic_class_)
    wanted.ah_attr.grh.traffic_class = *traffic_class_;  // if unset, the path's, which an acceptor takes from its peer
  wanted.min_rnr_timer = rnr_timer;
  wanted.max_dest_rd_atomic = what.incoming_reads;
  wanted.max_rd_atomic = what.outgoing_reads;
  wanted.timeout = ack_timeout(what.dead_peer_after);
  wanted.retry_cnt = retries;
  wanted.rnr_retry = rnr_retries;
  const char* const step = state == IBV_QPS_INIT  ? "initialize the queue pair"
                           : state == IBV_QPS_RTR ? "make the queue pair ready to receive"
                                                  : "make the queue pair ready to send";
  checked(calls().modify_qp(pair_, &wanted, mask), step);
}

task<> endpoint::make_ready(agreement what) {
  ready_ = true;
  if (home().traits().kernel_drives_pair) co_return;  // the kernel moves the pair by itself
  const auto work = [this, what] {
    change_to(IBV_QPS_RTR, what);
    change_to(IBV_QPS_RTS, what);
  };
  co_await weft::detail::offload_for_resources(work);
}

bool endpoint::make_broken() noexcept {
  ibv_qp_attr wanted{};
  wanted.qp_state = IBV_QPS_ERR;
  return calls().modify_qp(pair_, &wanted, IBV_QP_STATE) >= 0;
}

// ---- events ----

void endpoint::on_cm_event(const cm_event& what) noexcept {
  if (handler_ != nullptr) return handler_->on_cm_event(what);
  try {
    events_.push_back(what);
  } catch (const std::bad_alloc&) {
    lost_ = weft::detail::make_error(errc::no_memory, "keep an event of the connection manager");
  }
  changed_.set();  // mutant: lose the wake-up of a set-up
}

void endpoint::replay_events() noexcept {
  while (handler_ != nullptr && !events_.empty()) {
    const cm_event oldest = events_.front();
    events_.pop_front();
    handler_->on_cm_event(oldest);
  }
  if (handler_ != nullptr && lost_) handler_->on_failure(*lost_);
}

void endpoint::on_async_event(ibv_event_type what, int) noexcept {
  if (what == IBV_EVENT_QP_LAST_WQE_REACHED) return last_receive_.set();
  // The peer's first message has overtaken the last message of its set-up: rdma_notify(3).
  if (what == IBV_EVENT_COMM_EST && handler_ == nullptr && id_) calls().notify(id_.get(), what);
  const auto why = failure_of(what, home().name());
  if (!why) return;
  if (handler_ != nullptr) return handler_->on_failure(*why);
  lost_ = why;
  changed_.set();
}

// Keeps the receive. Memory can be short only for a shared one, because early_receives_ has room for all of the
// endpoint's own.
void endpoint::on_receive(const ibv_wc& what, receive_work& work) noexcept try {
  early_receives_.push_back({what, &work});
} catch (const std::bad_alloc&) {
  receives_failure_ =
      weft::detail::make_error(errc::no_memory, "keep a message that arrived before its connection was set up");
  shared_receives_->post(work);
}

void endpoint::on_completion(const ibv_wc& what, std::uint32_t detail) noexcept {
  std::vector<receive_slot>& slots = first_receives_->slots;
  on_receive(what, slots[(detail & ~receive_bit) - slots.front().work.slot].work);
}

void endpoint::hand_receives_to(completion_sink& own, receive_sink& shared) noexcept {
  const auto early = std::exchange(early_receives_, {});
  if (shared_receives_ != nullptr) {
    shared_receives_->hand_over(pair_->qp_num, shared);
    for (const early_receive& item : early) shared.on_receive(item.what, *item.work);
  } else {
    queue_->hand_over(*receive_tag_, own);
    // mutant: forget the receives
    for (const early_receive& item : early) own.on_completion(item.what, receive_bit | item.work->slot);
  }
  if (receives_failure_) shared.on_receives_failed(*receives_failure_);
}

void endpoint::drain() noexcept {
  if (queue_ != nullptr) queue_->drain();
  if (shared_receives_ != nullptr) shared_receives_->completions().drain();
}

task<cm_event> endpoint::wait_for(rdma_cm_event_type expected, const char* step, time_point deadline) {
  try {
    while (events_.empty() && !lost_) {
      changed_.reset();
      co_await with_deadline(deadline, changed_.wait());
    }
  } catch (const error& why) {
    if (why.code() == errc::timed_out) throw error(errc::timed_out, step);
    throw;
  }
  if (lost_) throw lost_->within(step);
  const cm_event what = events_.front();
  events_.pop_front();
  if (what.type != expected || what.status != 0) throw failure_of(what, step);
  co_return what;
}

task<endpoint::sign_of_life> endpoint::ask_with_nothing(time_point deadline) {
  marker question(*queue_);
  checked(post_empty_write(calls(), pair_, question.tag()), "ask for a sign of life");
  try {
    co_await with_deadline(deadline, question.wait());
  } catch (const error& why) {
    if (why.code() != errc::timed_out) throw;
  }
  if (question.status() == IBV_WC_SUCCESS) co_return sign_of_life::answered;
  const bool has_left = std::any_of(events_.begin(), events_.end(),
                                    [](const cm_event& each) { return each.type == RDMA_CM_EVENT_DISCONNECTED; });
  const bool got_no_answer = question.status().value_or(IBV_WC_RETRY_EXC_ERR) == IBV_WC_RETRY_EXC_ERR;
  co_return got_no_answer && !has_left && !lost_ ? sign_of_life::lost : sign_of_life::undone;
}

// ---- the end ----

// Moves the queue pair to ERR, which closes the windows that are bound through it. Those of a removed device are closed
// already.
void endpoint::shut_out_peers(int result) noexcept {
  if (has_gone(result)) return;
  keeps_window_ = true;
  if (make_broken()) return;
  weft::detail::terminate_because("a memory window could not be revoked, and the peer may still use it");
}

namespace {

error window_kept() noexcept {
  return weft::detail::make_error(errc::connection_failed, "a memory window of the peer could not be revoked");
}

}  // namespace

std::optional<error> endpoint::failure_of_window() const noexcept {
  return keeps_window_ ? std::optional(window_kept()) : std::nullopt;
}

void endpoint::on_window_kept() noexcept {
  if (handler_ != nullptr) handler_->on_failure(window_kept());
}

// Leaves the shared receives: the early ones, and those that come back from now on, are posted again. Moves the queue
// pair to ERR, because it may have taken a shared receive for a message of which only a part has arrived. Such a
// receive comes back by a completion, but only before the queue pair is destroyed.
void endpoint::detach_from_shared_receives() noexcept {
  shared_receives_->detach(pair_->qp_num);
  for (const early_receive& item : std::exchange(early_receives_, {})) shared_receives_->post(*item.work);
  make_broken();
}

// Waits until the queue pair, which is in ERR, has flushed the shared receives that it had taken. Throws
// errc::timed_out if a sign of that takes longer than flush_time. Receives are flushed before the last request, so the
// completion of a request that is posted last shows that they have been. That completion has an entry of its own in the
// completion queue, because the other requests may still keep theirs.
task<> endpoint::wait_until_flushed() {
  if (home().traits().kernel_drives_pair) co_return;  // the kernel has flushed the pair, which takes no more requests
  marker last(*queue_);
  if (post_empty_write(calls(), pair_, last.tag()) == 0) co_await with_timeout(flush_time, last.wait());
  if (ready_ && home().traits().announces_last_receive) co_await with_timeout(flush_time, last_receive_.wait());
}

// Windows are destroyed before the queue pair, because rxe takes most of a minute to destroy a queue pair to which a
// window is bound.
void endpoint::destroy_now() noexcept {
  windows_.destroy_all();  // mutant: destroy a queue pair before
  if (pair_ != nullptr) destroy_pair();
  deregister_staging();
  const cm_id gone = std::move(id_);
}

// A removed device accesses no memory any more. Neither does a queue pair that could not be destroyed, but is in ERR.
void endpoint::destroy_pair() noexcept {
  const int result = calls().destroy_qp(pair_);
  if (result < 0) {
    home().audience().forget(pair_->qp_context);
    if (!has_gone(result) && !make_broken()) {
      weft::detail::terminate_because("a queue pair could not be destroyed, and may still use memory");
    }
  }
  pair_ = nullptr;
}

void endpoint::deregister_staging() noexcept {
  for (staging_area* const area : {&sources_, &sinks_}) {
    if (area->region == nullptr) continue;
    const int result = calls().dereg_mr(std::exchange(area->region, nullptr));
    if (result < 0 && !has_gone(result)) {
      weft::detail::terminate_because("a connection's memory could not be deregistered, and peers may still use it");
    }
  }
}

task<> endpoint::destroy_on_worker() {
  if (id_) id_.set_handler(nullptr);
  if (shared_receives_ != nullptr && pair_ != nullptr) {
    detach_from_shared_receives();
    try {
      // mutant: destroy a queue pair that
      co_await wait_until_flushed();
    } catch (...) {  // no completion in time, or no memory to wait for it: a shared receive may be lost
    }
    drain();
  }
  if (receive_tag_) queue_->detach(*receive_tag_);
  target_->end();  // on_async_event() uses the id, which the worker destroys
  const auto work = [this]() noexcept { destroy_now(); };
  bool destroyed = false;
  try {
    co_await weft::detail::offload_for_resources(work);
    destroyed = true;
  } catch (...) {  // a stop, or no worker could be started
  }
  if (!destroyed) destroy_now();
  while (windows_.revoking()) co_await windows_.next_revoked();  // workers, and their mail, refer to this endpoint
  if (queue_ == nullptr) co_return;
  drain();  // completions that the queue pair has left behind still take up room in the queue
  shared_.release(*std::exchange(queue_, nullptr), entries_);
}

task<> endpoint::end_in_background(endpoint& self) {
  const std::unique_ptr<endpoint> owned(&self);
  co_await self.destroy();
}

void endpoint::dispose(std::unique_ptr<endpoint> gone) noexcept {
  if (gone == nullptr) return;
  executor_core& home = gone->shared_.owner();
  const bool elsewhere = !home.belongs_to_this_thread() || executor_core::current() != nullptr || home.is_driven();
  if (home.on_own_thread() || !elsewhere) return dispose_at_home(std::move(gone));
  home.submit(*gone.release());
}

// Starts the disposal, or runs it to its end if the executor is between two runs, or about to be destroyed. On the
// executor's thread.
void endpoint::dispose_at_home(std::unique_ptr<endpoint> gone) noexcept try {
  executor_core& home = gone->shared_.owner();
  auto disposal = std::move(gone->disposal_);
  static_cast<void>(gone.release());  // owned by the disposal
  if (home.on_own_thread()) return run_in_background(home, std::move(disposal));
  const auto run_to_end = [](weft::detail::root_handle<void> work) -> task<> {
    run_in_background(*executor_core::current(), std::move(work));
    co_return;
  };
  executor_of(home).run(run_to_end(std::move(disposal)));
} catch (...) {
  weft::detail::terminate_because("a queue pair could not be destroyed in the background");
}

}  // namespace weft::net::verbs
