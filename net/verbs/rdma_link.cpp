// SPDX-License-Identifier: Apache-2.0
#include <weft/net/verbs/rdma_link.hpp>
#include <weft/net/verbs/words.hpp>
#include <weft/runtime/core/background.hpp>
#include <weft/runtime/core/stop_shield.hpp>
#include <weft/runtime/offload.hpp>
#include <weft/runtime/with_timeout.hpp>

#include <fmt/core.h>

#include <arpa/inet.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <exception>
#include <limits>
#include <new>

namespace weft::net::verbs {
namespace {

// A request's wr_id holds, beside the tag, its mark in order_: a work_request's slot, or one of these marks. They are
// beyond every slot, because max_depth is below them.
constexpr std::uint16_t keep_alive_mark = 0xFFFF;
constexpr std::uint16_t first_bind_mark = 0xFFF0;

// link::furnish() must not fail for the first so many requests.
constexpr std::size_t furnished_at_once = 8;

// One in so many small requests is signaled, besides the last one before a doorbell.
constexpr unsigned signal_every = 4;
constexpr std::uint64_t largest_unsignaled = 4096;

// A group of run elements has one completion. The queue holds several groups, so that it is refilled while the device
// is busy with the others. The bytes of a group are bounded, because a peer counts as dead only after the time that a
// group may take.
constexpr std::size_t largest_group = 16;
constexpr std::size_t groups_in_queue = 8;
constexpr std::uint64_t most_bytes_in_group = 1 << 20;

// How long posted requests may take to end by themselves once the peer has left or the queue pair is in ERR. After that
// the queue pair is destroyed, which ends them in any case.
constexpr auto linger_time = std::chrono::milliseconds(1000);

int access_of(mr::usage uses) noexcept {
  int flags = 0;
  if (mr::overlaps(uses, mr::usage::read_src | mr::usage::flush_visibility)) flags |= IBV_ACCESS_REMOTE_READ;
  if (mr::overlaps(uses, mr::usage::write_dst)) flags |= IBV_ACCESS_REMOTE_WRITE;
  if (mr::overlaps(uses, mr::usage::atomic_dst)) flags |= IBV_ACCESS_REMOTE_ATOMIC;
  return flags;
}

std::uint64_t bytes_of(const ibv_send_wr& wr) noexcept {
  std::uint64_t bytes = 0;
  for (int i = 0; i < wr.num_sge; ++i) bytes += wr.sg_list[i].length;
  return bytes;
}

bool takes_receive_of_peer(const ibv_send_wr& wr) noexcept {
  return wr.opcode == IBV_WR_SEND || wr.opcode == IBV_WR_SEND_WITH_INV || wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

bool asks(const ibv_send_wr& wr) noexcept {
  return wr.opcode == IBV_WR_RDMA_READ || wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP ||
         wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}

// Whether the request concerns this device alone.
bool is_local(std::uint32_t mark) noexcept {
  return mark >= first_bind_mark && mark != keep_alive_mark && (mark & run_bit) == 0;
}

// When a packet is lost, rxe of Linux 6.1 also retransmits all requests that were posted behind it. Among these,
//   - it refuses a bind that was done long ago, and breaks the connection;
//   - a message or write that the peer has had already is acknowledged with the number of the last request that the
//   peer
//     has executed. If that is a read or an atomic operation, rxe completes it too, although its answer was lost.
// So on rxe a bind waits until nothing is before it, and reads and atomic operations wait until only their like is.
bool has_to_wait_behind(const ibv_send_wr& wr, const ibv_send_wr& before) noexcept {
  return wr.opcode == IBV_WR_BIND_MW || (asks(wr) && !asks(before));  // defect: read on Soft-RoCE
}

work_status status_of(ibv_wc_status status) noexcept {
  if (status == IBV_WC_SUCCESS) return work_status::done;  // defect: take a request that was flushed
  const bool refused = status == IBV_WC_REM_ACCESS_ERR || status == IBV_WC_REM_INV_REQ_ERR;
  return refused ? work_status::access_denied : work_status::flushed;
}

// An RNIC may refuse a request because the connection has ended, before an event reports that.
error post_failure(int number, const char* what) noexcept {
  if (number == ENOTCONN) return weft::detail::make_error(errc::peer_vanished, what);
  return weft::detail::make_system_error(number, what);
}

}  // namespace

rdma_link::rdma_link(std::unique_ptr<endpoint> established, std::shared_ptr<domain> memory, std::string peer,
                     const agreement& agreed, bool listens_first)
    : home_(*executor_core::current()),
      endpoint_(std::move(established)),
      domain_(std::move(memory)),
      peer_(std::move(peer)),
      sign_of_life_after_(agreed.dead_peer_after / 2),
      asks_with_nothing_(agreed.asks_with_nothing),
      listens_first_(listens_first) {
  const device& home = endpoint_->home();  // defect: speak first
  allow_shared_windows_ = home.options().allow_shared_windows;
  capabilities_.checksum = home.traits().has_checksum;
  capabilities_.completes_on_answer = home.traits().completes_on_answer;
  capabilities_.outgoing_reads = agreed.outgoing_reads;
  capabilities_.incoming_reads = agreed.incoming_reads;
  capabilities_.write_immediate = home.traits().has_write_immediate;  // part of the standard, so with any peer
  // defect: promise to revoke
  capabilities_.invalidate = home.traits().has_windows_of_one_peer();
  capabilities_.max_message_bytes = home.max_message_bytes();
  capabilities_.max_parts = endpoint_->max_parts();
  capabilities_.max_read_parts = endpoint_->max_read_parts();
}

rdma_link::~rdma_link() {
  if (endpoint_ != nullptr) endpoint::dispose(std::move(endpoint_));
}

void rdma_link::start(link_events& events, const link_parameters& options) {
  assert(options.send_depth <= endpoint_->requests() && options.receive_depth <= endpoint_->receives());
  requests_.reserve(std::min<std::size_t>(options.send_depth, furnished_at_once));
  order_.resize(std::size_t{options.send_depth} + bind_requests + keep_alive_requests);
  run_depth_ = options.send_depth;
  group_size_ = std::clamp<std::size_t>(run_depth_ / groups_in_queue, 1, largest_group);
  receives_ = std::make_unique<posted_receive[]>(options.receive_depth);
  receive_depth_ = options.receive_depth;
  native_ = options.native;
  delivers_after_end_ = options.delivers_after_end;
  landing_ = options.landing;
  // If probes may do harm (fill_keep_alive()), none is sent at once: the set-up was a sign of life, and a new peer is
  // likely to send.
  active_ = !endpoint_->home().traits().may_read_nothing && landing_.key == 0;
  posted_early_ = endpoint_->posted_receives();
  finisher_ = weft::detail::root_handle<void>(finish());
  tag_ = endpoint_->queue().attach(*this);
  life_.begin(events);
  endpoint_->hand_events_to(this);
  // Receives that completed during the set-up are taken over before any later completion, and events are replayed in
  // the next turn, after the receives have been posted.
  endpoint_->queue().ring_later(tag_);
  home_.submit(*this);
}

void rdma_link::run_on_executor() noexcept {
  if (endpoint_ == nullptr || life_.is_leaving()) return;
  take_over();
  endpoint_->replay_events();
  watch_life();
}

void rdma_link::take_over() noexcept {
  if (std::exchange(taken_over_, true)) return;
  endpoint_->hand_receives_to(*this, *this);
}

// ---- posting ----

rdma_link::place_in_order& rdma_link::enter(const place_in_order& item) noexcept {
  return posted(order_count_++) = item;
}

void rdma_link::chain(ibv_send_wr& wr, std::uint16_t mark) noexcept {
  enter({.mark = mark});
  if (life_.is_broken()) return;  // nothing is posted after ERR: it is flushed with the rest
  wr.wr_id = tag_ | mark;
  ++unsignaled_;
  if (has_to_signal(wr)) {
    wr.send_flags |= IBV_SEND_SIGNALED;
    unsignaled_ = 0;
  }
  chained_.add(wr);
}

// A large request is always signaled, so that its waiter does not wait for requests behind it as well: the next request
// may need its buffer. So is each request if they complete out of order, when one completion implies nothing of others.
bool rdma_link::has_to_signal(const ibv_send_wr& wr) const noexcept {
  return bytes_of(wr) > largest_unsignaled || unsignaled_ == signal_every ||
         !endpoint_->home().traits().completes_in_order;  // defect: have requests not tell
}

bool rdma_link::furnish(work_request& work) noexcept try {
  static_assert(std::is_trivially_destructible_v<posted_request> && alignof(posted_request) <= corner_alignment);
  if (work.slot >= requests_.size()) requests_.resize(std::size_t{work.slot} + 1);
  requests_[work.slot] = ::new (work.corner) posted_request(work);
  return true;
} catch (const std::bad_alloc&) {
  return false;
}

void rdma_link::post(work_request& work) noexcept {
  posted_request& item = *requests_[work.slot];
  fill(item);
  chain(item.wr, work.slot);
}

void rdma_link::fill(posted_request& item) noexcept {
  const work_request& work = *item.work;
  ibv_send_wr& wr = item.wr;
  wr.send_flags = 0;
  fill_parts(item);
  if (work.solicited && (work.kind == work_kind::send || work.immediate)) wr.send_flags |= IBV_SEND_SOLICITED;
  wr.wr.rdma.remote_addr = work.remote_address;
  wr.wr.rdma.rkey = static_cast<std::uint32_t>(work.remote_key);
  switch (work.kind) {
    case work_kind::send:
      wr.opcode = work.invalidate ? IBV_WR_SEND_WITH_INV : IBV_WR_SEND;
      if (work.invalidate) wr.invalidate_rkey = static_cast<std::uint32_t>(*work.invalidate);
      break;
    case work_kind::write:
      wr.opcode = work.immediate ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
      if (work.immediate) wr.imm_data = htonl(*work.immediate);
      break;
    case work_kind::read:
      wr.opcode = IBV_WR_RDMA_READ;
      break;
    case work_kind::fetch_add:
    case work_kind::compare_swap: {
      const bool swaps = work.kind == work_kind::compare_swap;
      wr.opcode = swaps ? IBV_WR_ATOMIC_CMP_AND_SWP : IBV_WR_ATOMIC_FETCH_AND_ADD;
      wr.wr.atomic.remote_addr = work.remote_address;
      wr.wr.atomic.rkey = static_cast<std::uint32_t>(work.remote_key);
      wr.wr.atomic.compare_add = swaps ? work.compare : work.operand;
      wr.wr.atomic.swap = work.operand;
      break;
    }
  }
}

// The request's own bytes are in no registration, so they are copied through one of the registered staging areas.
void rdma_link::fill_parts(posted_request& item) noexcept {
  const work_request& work = *item.work;
  const bool sends = work.kind == work_kind::send || work.kind == work_kind::write;
  bool readable = true;  // by the processor, which copies inline data
  std::uint64_t bytes = 0;
  int count = 0;
  const auto add = [&](const void* from, std::size_t length, std::uint64_t key) {
    item.parts[static_cast<std::size_t>(count++)] = {.addr = reinterpret_cast<std::uintptr_t>(from),
                                                     .length = static_cast<std::uint32_t>(length),
                                                     .lkey = static_cast<std::uint32_t>(key)};
    bytes += length;
  };
  for (const mr::slice& part : work.segments) {
    if (part.size() == 0) continue;  // a length of zero means 2 GiB to some devices
    add(part.data(), part.size(), part.record()->in(domain_->fabric()).local_key);
    readable = readable && part.kind() == mr::memory_kind::host;
  }
  if (!work.own.empty()) {
    assert(work.own.size() <= endpoint::staging_bytes);
    const endpoint::staging_area& area = sends ? endpoint_->sources() : endpoint_->sinks();
    if (sends) std::memcpy(area.of(work.slot), work.own.data(), work.own.size());
    add(area.of(work.slot), work.own.size(), area.key());
  }
  item.wr.sg_list = item.parts.data();
  item.wr.num_sge = count;
  // defect: send more inline
  if (sends && readable && bytes <= endpoint_->max_inline_bytes()) item.wr.send_flags |= IBV_SEND_INLINE;
}

// Lists need a device on which a completion stands for the requests before it, and no request has to wait for earlier
// ones (has_to_wait()).
bool rdma_link::takes_runs() noexcept {
  if (endpoint_ == nullptr) return false;
  const device_traits& traits = endpoint_->home().traits();
  if (!traits.completes_in_order || !traits.repeats_requests_well) return false;
  if (run_requests_ == nullptr) run_requests_.reset(new (std::nothrow) run_request[run_depth_]);
  return run_requests_ != nullptr;
}

// Fields common to a run, with the local key cached per memory record.
struct rdma_link::run_shape {
  ibv_wr_opcode opcode;
  std::uint64_t inline_below;  // elements with fewer bytes go inline
  std::size_t fabric;
  std::uint64_t tag;  // of their wr_ids
  const mr::memory_record* memory = nullptr;
  std::uint32_t local_key = 0;

  void look_at(const mr::memory_record* next) noexcept {
    memory = next;
    local_key = static_cast<std::uint32_t>(next->in(fabric).local_key);
  }
  void fill(run_request& item, const run_element& element) noexcept {
    if (element.memory != memory) look_at(element.memory);
    const bool goes_inline = element.bytes < inline_below && memory->device == nullptr;
    item.part = {.addr = reinterpret_cast<std::uintptr_t>(element.local),
                 .length = static_cast<std::uint32_t>(element.bytes),
                 .lkey = local_key};
    item.wr.num_sge = element.bytes == 0 ? 0 : 1;  // a length of zero means 2 GiB to some devices
    item.wr.opcode = opcode;
    item.wr.send_flags = goes_inline ? static_cast<unsigned>(IBV_SEND_INLINE) : 0u;
    item.wr.wr.rdma.remote_addr = element.remote_address;
    item.wr.wr.rdma.rkey = static_cast<std::uint32_t>(element.remote_key);
  }
};

// Posts the elements as one group, or as several if they have too many bytes. The requests are consecutive in the ring
// and in the chain.
void rdma_link::post_elements(work_run& run, std::span<const run_element> elements, run_shape& shape) noexcept {
  run_request* const ring = run_requests_.get();
  const std::size_t depth = run_depth_;
  std::size_t place = next_run_request_;
  ibv_send_wr& first = ring[place].wr;
  ibv_send_wr* last = nullptr;
  place_in_order* group = nullptr;
  std::uint64_t bytes = 0;
  std::uint16_t count = 0;
  for (const run_element& each : elements) {
    run_request& item = ring[place];
    const auto mark = run_bit | static_cast<std::uint32_t>(place);
    if (++place == depth) place = 0;
    if (count == 0) group = &enter({.mark = mark, .run = &run});
    group->count = ++count;
    bytes += each.bytes;
    shape.fill(item, each);
    item.wr.wr_id = shape.tag | mark;
    item.wr.next = &ring[place].wr;
    last = &item.wr;
    if (bytes < most_bytes_in_group) continue;
    last->send_flags |= IBV_SEND_SIGNALED;
    bytes = 0;
    count = 0;
  }
  next_run_request_ = place;
  last->send_flags |= IBV_SEND_SIGNALED;
  unsignaled_ = 0;
  chained_.add_all(first, *last);
}

void rdma_link::post_run(work_run& run, const run_portion& what) noexcept {
  if (life_.is_broken()) {  // flushed with the rest
    enter({.mark = run_bit, .count = static_cast<std::uint16_t>(what.count), .run = &run});
    return;
  }
  const bool reads = what.kind == work_kind::read;
  run_shape shape{.opcode = reads ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE,
                  .inline_below = reads ? 0 : std::uint64_t{endpoint_->max_inline_bytes()} + 1,
                  .fabric = domain_->fabric(),
                  .tag = tag_};
  std::array<run_element, largest_group> elements;
  for (std::size_t done = 0; done != what.count;) {
    const auto next = std::span(elements).first(std::min(group_size_, what.count - done));
    run.look_up(what.first + done, next);
    post_elements(run, next, shape);
    done += next.size();
  }
  if (what.immediate) bring_immediate(what);
}

// Attaches the immediate data to the last request that was posted.
void rdma_link::bring_immediate(const run_portion& what) noexcept {
  ibv_send_wr& last = *chained_.last;
  last.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  last.imm_data = htonl(*what.immediate);
  if (what.solicited) last.send_flags |= IBV_SEND_SOLICITED;
}

void rdma_link::ring() noexcept {
  if (chained_.first != nullptr || chained_receives_.first != nullptr) endpoint_->queue().ring_later(tag_);
}

// Receives first, because the requests may announce them to the peer.
void rdma_link::ring_now() noexcept {
  take_over();
  hand_over_receives();
  hand_over_requests();
}

bool rdma_link::has_to_wait(const ibv_send_wr& wr) noexcept {
  if (endpoint_->home().traits().repeats_requests_well) return false;
  for (std::size_t i = 0; i != with_device_; ++i) {
    if (has_to_wait_behind(wr, request_of(posted(i).mark))) return true;
  }
  return false;
}

ibv_send_wr& rdma_link::last_to_hand_over() const noexcept {
  if (endpoint_->home().traits().repeats_requests_well) return *chained_.last;
  ibv_send_wr* last = chained_.first;
  while (last->next != nullptr && !has_to_wait_behind(*last->next, *last)) last = last->next;
  return *last;
}

void rdma_link::hand_over_requests() noexcept {
  if (chained_.first == nullptr || listens_first_ || looks_first_) return;
  if (has_to_wait(*chained_.first)) return;  // until request_completed()
  ibv_send_wr& last = last_to_hand_over();
  last.send_flags |= IBV_SEND_SIGNALED;  // defect: leave the last request
  unsignaled_ = 0;
  ibv_send_wr* const first = chained_.take(last);
  ibv_send_wr* refused = nullptr;
  const int result = endpoint_->calls().post_send(endpoint_->pair(), first, &refused);
  if (result >= 0) refused = nullptr;
  if (result < 0 && refused == nullptr) refused = first;
  count_handed_over(first, refused);
  if (result < 0) fail(post_failure(-result, "post to the queue pair"));
}

void rdma_link::count_handed_over(const ibv_send_wr* first, const ibv_send_wr* refused) noexcept {
  while (first != refused) {
    const std::uint16_t count = posted(with_device_).count;
    std::uint16_t taken = 0;
    for (; taken != count && first != refused; first = first->next) ++taken;
    if (taken != count) split_group(with_device_, taken);
    ++with_device_;
  }
}

// Splits a group of which the device has refused the rest. order_ has room, because it has a place for each element.
void rdma_link::split_group(std::size_t place, std::uint16_t first_part) noexcept {
  for (std::size_t i = order_count_++; i != place; --i) posted(i) = posted(i - 1);
  posted(place).count = first_part;
  place_in_order& rest = posted(place + 1);
  rest.mark = mark_behind(rest.mark, first_part);
  rest.count = static_cast<std::uint16_t>(rest.count - first_part);
}

// The mark of the element that is so many elements behind `mark`.
std::uint32_t rdma_link::mark_behind(std::uint32_t mark, std::size_t elements) const noexcept {
  const std::size_t place = (mark & (run_bit - 1)) + elements;
  return run_bit | static_cast<std::uint32_t>(place < run_depth_ ? place : place - run_depth_);
}

// How many elements of the group are before the request with that mark; all if the request is not in the group.
std::size_t rdma_link::place_in_group(const place_in_order& group, std::uint32_t mark) const noexcept {
  if ((group.mark & mark & run_bit) == 0) return group.mark == mark ? 0 : group.count;
  const std::size_t distance = mark < group.mark ? mark + run_depth_ - group.mark : mark - group.mark;
  return std::min<std::size_t>(distance, group.count);
}

void rdma_link::hand_over_receives() noexcept {
  if (chained_receives_.first == nullptr) return;
  ibv_recv_wr* const first = chained_receives_.take();
  ibv_recv_wr* refused = nullptr;
  const int result = endpoint_->calls().post_recv(endpoint_->pair(), first, &refused);
  if (result >= 0) refused = nullptr;
  if (result < 0 && refused == nullptr) refused = first;
  for (const ibv_recv_wr* item = first; item != refused; item = item->next) ++receives_with_device_;
  if (result < 0) fail(post_failure(-result, "post a receive"));  // flushed with the rest
}

void rdma_link::post_receive(receive_work& work) noexcept {
  // rxe never flushes a receive that is posted after ERR.
  if (life_.is_broken()) return life_.events().receive_flushed(work);
  posted_receive& item = receives_[work.slot];
  item.work = &work;
  if (posted_early_ != 0) {
    --posted_early_;
    ++receives_with_device_;
    return;
  }
  item.request.fill(work, domain_->fabric(), endpoint_->receive_tag() | receive_bit | work.slot);
  chained_receives_.add(item.request.wr);
  endpoint_->queue().ring_later(tag_);
}

// ---- completions ----

void rdma_link::on_completion(const ibv_wc& what, std::uint32_t detail) noexcept {
  const bool is_receive = (detail & receive_bit) != 0;
  if (what.status == IBV_WC_SUCCESS) active_ = active_ || is_receive || has_answer(detail);
  look_at(what, is_receive);
  if (is_receive) {
    --receives_with_device_;
    receive_completed(what, *std::exchange(receives_[detail & (receive_bit - 1)].work, nullptr));
  } else {
    request_completed(what, detail);
  }
  advance_end();
}

void rdma_link::on_receive(const ibv_wc& what, receive_work& work) noexcept {
  if (what.status == IBV_WC_SUCCESS) active_ = true;
  look_at(what, true);
  receive_completed(what, work);
  advance_end();
}

void rdma_link::look_at(const ibv_wc& what, bool is_receive) noexcept {
  if (what.status == IBV_WC_SUCCESS) {
    if (is_receive && listens_first_) speak();
  } else if (what.status == IBV_WC_WR_FLUSH_ERR && !life_.has_ended() &&
             endpoint_->home().traits().flushes_before_disconnect_event) {
    end_without_peer("the connection has ended, and the device gives no reason");
    break_off();
  } else if (!life_.is_broken()) {
    failed_alone_ = failed_alone_ || (!life_.has_ended() && what.status == IBV_WC_WR_FLUSH_ERR);
    fail(is_receive ? failure_of_receive(what) : why_failed(what));
  }
}

// Whether the completion of the request shows that the peer is alive.
bool rdma_link::has_answer(std::uint32_t mark) noexcept {
  if (is_local(mark)) return false;
  return endpoint_->home().traits().completes_on_answer || asks(request_of(mark));
}

void rdma_link::speak() noexcept {
  listens_first_ = false;
  endpoint_->queue().ring_later(tag_);
  binding_free_.set();
}

// A port that is still down is the reason why nobody has answered. A cable that is out only for a moment does no harm.
error rdma_link::why_failed(const ibv_wc& request) const {
  const error why = failure_of_request(request);
  const device& home = endpoint_->home();
  const bool unheard = why.code() == errc::peer_vanished || why.code() == errc::connection_failed;
  return unheard && home.audience().is_down(endpoint_->port()) ? blame_port(why) : why;
}

error rdma_link::blame_port(const error& why) const noexcept try {
  return why.within(fmt::format("port {} of {} is down", endpoint_->port(), endpoint_->home().name()));
} catch (const std::bad_alloc&) {
  return why;
}

// A queue pair completes in order, and an unsignaled request that fails completes all the same, so unsignaled requests
// before this one are done. On a device that completes out of order all requests are signaled, and this one waits for
// those before it.
void rdma_link::request_completed(const ibv_wc& what, std::uint32_t mark) noexcept {
  std::size_t before = 0;
  std::size_t elements = 0;
  for (; before != with_device_; ++before) {
    elements = place_in_group(posted(before), mark);
    if (elements != posted(before).count) break;
  }
  if (before == with_device_) return;  // given up as lost
  const bool is_whole = elements + 1 == posted(before).count && (elements == 0 || what.status == IBV_WC_SUCCESS);
  if (is_whole) posted(before).ended = what.status;
  if (!endpoint_->home().traits().completes_in_order) return complete_ended();  // defect: take all before
  for (; before != 0; --before) posted(before - 1).ended = IBV_WC_SUCCESS;
  complete_ended();
  if (!is_whole) element_ended(elements, what.status);
  ring();  // something may have waited for this request
}

// An element of the oldest group has ended, and the `before` elements before it are done. Those behind it have
// completions of their own, because an unsignaled request that fails completes all the same.
void rdma_link::element_ended(std::size_t before, ibv_wc_status status) noexcept {
  if (before != 0) take_from_oldest(before, work_status::done);
  take_from_oldest(1, status_of(status));
}

void rdma_link::take_from_oldest(std::size_t elements, work_status status) noexcept {
  place_in_order& group = posted(0);
  work_run& run = *group.run;
  group.mark = mark_behind(group.mark, elements);
  group.count = static_cast<std::uint16_t>(group.count - elements);
  if (group.count == 0) {
    --with_device_;
    leave_oldest();
  }
  life_.events().run_advanced(run, elements, status);
}

void rdma_link::complete_ended() noexcept {
  while (with_device_ != 0 && posted(0).ended) {
    --with_device_;
    complete_oldest(*posted(0).ended);
  }
}

void rdma_link::complete_oldest(ibv_wc_status status) noexcept {
  const place_in_order oldest = posted(0);
  const std::uint32_t mark = oldest.mark;
  leave_oldest();
  if (oldest.run != nullptr) return life_.events().run_advanced(*oldest.run, oldest.count, status_of(status));
  if (mark == keep_alive_mark) {
    keep_alive_posted_ = false;
    return;
  }
  if (mark >= first_bind_mark) {
    return binding_ended(bindings_[mark - first_bind_mark], status == IBV_WC_SUCCESS);
  }
  posted_request& item = *requests_[mark];
  work_request& work = *item.work;
  if (status == IBV_WC_SUCCESS && work.kind != work_kind::send && !work.own.empty()) {  // defect: forget what a read
    std::memcpy(work.own.data(), endpoint_->sinks().of(mark), work.own.size());
  }
  life_.events().completed(work, status_of(status));  // defect: complete a request twice
}

void rdma_link::binding_ended(binding& item, bool done) noexcept {
  if (!std::exchange(item.posted, false)) return;
  binding_free_.set();
  if (item.invalidated != nullptr) return invalidation_ended(item, done);
  item.done = done;
  item.ended.set();
}

void rdma_link::receive_completed(const ibv_wc& what, receive_work& work) noexcept {
  if (what.status != IBV_WC_SUCCESS || (life_.has_ended() && !delivers_after_end_))
    return life_.events().receive_flushed(work);
  arrival came;
  if (what.opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
    came.immediate = ntohl(what.imm_data);
  } else {
    came.bytes = what.byte_len;
    if ((what.wc_flags & IBV_WC_WITH_IMM) != 0) came.immediate = ntohl(what.imm_data);
    if ((what.wc_flags & endpoint_->home().traits().invalidated_flags) != 0)
      came.invalidated_key = what.invalidated_rkey;
  }
  if (came.invalidated_key && !life_.is_leaving())
    endpoint_->windows().invalidated(static_cast<std::uint32_t>(*came.invalidated_key));
  life_.events().received(work, came);
}

// ---- the end ----

void rdma_link::end(bool orderly, const error& why) noexcept {
  if (life_.has_ended()) return;
  const bool is_peers = why.code() == errc::protocol_error;  // a device tells the target of an access no more than that
  if (is_peers || why.code() == errc::remote_access) refusal_ = {.is_peers = is_peers};
  failed_alone_ = failed_alone_ || why.code() == errc::connection_failed;
  life_.end(orderly, why);
}

// Whether a disconnect of the peer may be orderly. For a weft peer the connection decides, because it knows whether a
// close message has come. A foreign peer is gone for good, and has not executed requests that are still in flight.
bool rdma_link::may_end_without_peer() const noexcept { return native_ || order_count_ == 0; }

void rdma_link::end_without_peer(std::string_view words) noexcept {
  end(may_end_without_peer(), weft::detail::make_error(errc::peer_vanished, words));
}

void rdma_link::fail(const error& why) noexcept {
  end(false, why);
  break_off();  // defect: end the requests
  advance_end();
}

void rdma_link::say_goodbye() noexcept {
  if (life_.has_finished()) return;
  life_.finish();
  endpoint_->calls().disconnect(endpoint_->id().get());
}

// Moves the queue pair to ERR even if it is there already, because only then rxe flushes what was posted since. The
// peer learns of the end by our disconnect; we need not wait for the peer's.
void rdma_link::break_off() noexcept {
  if (life_.is_broken()) return;
  life_.break_off();
  chained_.take();
  chained_receives_.take();
  say_goodbye();
  endpoint_->make_broken();
  home_.disarm(*this);
  unwatched_ = !home_.try_arm(*this, home_.now() + linger_time);  // then destroying the queue pair ends what is posted
}

void rdma_link::shut_down() noexcept {
  life_.shut_down();
  advance_end();
}

void rdma_link::peer_finished() noexcept {
  life_.peer_finished();
  advance_end();
}

void rdma_link::abort(std::string_view why) noexcept {
  if (life_.is_leaving()) return;
  fail(weft::detail::make_error(errc::closed, why));
}

void rdma_link::on_failure(const error& why) noexcept {
  if (!life_.is_leaving()) fail(why);
}

void rdma_link::on_cm_event(const cm_event& what) noexcept {
  switch (what.type) {
    case RDMA_CM_EVENT_DISCONNECTED: {
      if (life_.is_leaving() || life_.peer_has_left()) break;
      life_.peer_left();
      endpoint_->drain();  // messages that the peer has sent before
      const bool orderly = may_end_without_peer();
      end_without_peer("the peer has disconnected");
      if (!orderly) break_off();
      break;
    }
    case RDMA_CM_EVENT_DEVICE_REMOVAL:
      on_failure(device_removed(endpoint_->home().name()));
      break;
    default:  // RDMA_CM_EVENT_TIMEWAIT_EXIT, address changes
      break;
  }
  advance_end();
}

// Takes the next steps of closing that are possible; called whenever a condition of theirs may have changed.
void rdma_link::advance_end() noexcept {
  if (life_.is_leaving()) return;
  const bool idle = order_count_ == 0;
  const bool may_leave = life_.peer_has_finished() || life_.peer_has_left() || !native_ ||
                         !endpoint_->home().traits().disconnect_ends_both_ways;
  if (life_.is_finishing() && idle && may_leave) say_goodbye();
  if (life_.has_ended() && life_.peer_has_left() && !life_.is_broken()) {
    if (life_.has_finished()) {
      break_off();
    } else if (!idle) {
      home_.disarm(*this);
      if (!home_.try_arm(*this, home_.now() + linger_time)) break_off();
    }
  }
  const bool flushed = (with_device_ == 0 && receives_with_device_ == 0) || unwatched_;
  if (!life_.is_broken() || !flushed) return;
  life_.leave();
  run_in_background(home_, std::move(finisher_));
}

void rdma_link::expired() noexcept {
  if (life_.is_leaving()) return;
  if (life_.is_broken()) {
    with_device_ = receives_with_device_ = 0;  // given up as lost: destroying the queue pair ends them
    return advance_end();
  }
  if (life_.peer_has_left()) {
    break_off();
    return advance_end();
  }
  watch_life();
}

// Looks twice in each dead_peer_after. An idle queue pair does not notice that its peer has gone, so it gets a request
// that changes nothing. The state of the port counts as well, because rxe does not count retries while its port is
// down.
void rdma_link::watch_life() noexcept {
  if (life_.is_broken() || life_.peer_has_left() || sign_of_life_after_.count() <= 0) return;
  const bool down = endpoint_->home().audience().is_down(endpoint_->port());
  const bool stays_down = std::exchange(port_was_down_, down) && down;
  if (stays_down && !active_)
    return fail(blame_port(weft::detail::make_error(errc::connection_failed, "no answer from the peer")));
  count_silence();
  if (has_given_no_answer()) {
    return fail(weft::detail::make_error(errc::peer_vanished, "no answer, although the device still tries"));
  }
  home_.disarm(*this);
  if (!home_.try_arm(*this, later(home_.now(), sign_of_life_after_))) {
    return fail(weft::detail::make_error(errc::no_memory, "arm the timer that watches for signs of life"));
  }
  const bool asked = keep_alive_posted_ || (with_device_ != 0 && endpoint_->home().traits().completes_on_answer);
  if (std::exchange(active_, false) || asked || listens_first_) return;
  if (landing_.key == 0 && !asks_with_nothing_) return;
  keep_alive_posted_ = true;
  silent_looks_ = 1;  // this one
  fill_keep_alive();
  chain(keep_alive_, keep_alive_mark);  // defect: notice no dead peer
  ring();
}

// The keep-alive is a read if writes complete without an answer. Otherwise it is a write, which can be repeated: rxe
// refuses a zero-length read that it has answered before, if that answer was lost. It has one byte if the peer has a
// landing_place, because some networks lose packets without payload, and because a zero-length read may do harm. Other
// peers get a zero-length request once they are silent, if the set-up has found that such requests get through.
void rdma_link::fill_keep_alive() noexcept {
  const bool reads = !endpoint_->home().traits().completes_on_answer && capabilities_.outgoing_reads != 0;
  keep_alive_ = {};
  keep_alive_.opcode = reads ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
  if (landing_.key == 0) return;
  const endpoint::staging_area& area = reads ? endpoint_->sinks() : endpoint_->sources();
  keep_alive_part_ = {
      .addr = reinterpret_cast<std::uintptr_t>(area.of(endpoint_->requests())), .length = 1, .lkey = area.key()};
  keep_alive_.sg_list = &keep_alive_part_;
  keep_alive_.num_sge = 1;
  keep_alive_.wr.rdma.remote_addr = landing_.address;
  keep_alive_.wr.rdma.rkey = landing_.key;
}

// Silence counts while a request waits for an answer, or this end waits for the first message, which a weft peer sends
// at once. The device's own retries take half of dead_peer_after, but some devices do not end them in time: rxe does
// not count them while its packets are stuck in a network interface that cannot send, and an RNIC relies on TCP's.
void rdma_link::count_silence() noexcept {
  const bool asked = endpoint_->home().traits().completes_on_answer ? with_device_ != 0 : keep_alive_posted_;
  const bool awaits = asked || (listens_first_ && native_);  // defect: wait for the first message
  silent_looks_ = active_ || !awaits ? 0 : silent_looks_ + 1;
}

bool rdma_link::has_given_no_answer() noexcept { return silent_looks_ != 0 && silent_looks_ >= looks_to_spare(); }

// The number of silent looks after which the peer counts as dead. Three cover dead_peer_after, because the first of
// them may see a request that was posted just before. A large message takes more, and a message for which the peer has
// no receive may wait for ever. The next completion has to wait for all requests up to the first signaled one; if
// requests complete before they are answered, for all that was posted, and for what TCP holds of it.
std::uint64_t rdma_link::looks_to_spare() noexcept {
  constexpr std::uint64_t slowest = 4 << 10;  // bytes in a millisecond
  constexpr std::uint64_t with_tcp = 4 << 20;
  const bool completes_early = !endpoint_->home().traits().completes_on_answer;
  std::uint64_t bytes = completes_early ? with_tcp : 0;
  bool takes_receive = false;
  bool signaled = false;
  for (std::size_t i = 0; i != with_device_ && !signaled; ++i) {
    const place_in_order& next = posted(i);
    for (std::size_t element = 0; element != next.count && !signaled; ++element) {
      const ibv_send_wr& wr = request_of(next.run != nullptr ? mark_behind(next.mark, element) : next.mark);
      bytes += bytes_of(wr);
      takes_receive = takes_receive || takes_receive_of_peer(wr);
      signaled = (wr.send_flags & IBV_SEND_SIGNALED) != 0 && !completes_early;
    }
  }
  if (takes_receive && endpoint_->home().traits().tells_busy_peer_from_dead)
    return std::numeric_limits<std::uint64_t>::max();  // defect: have the sends of an RNIC wait
  return 3 + bytes / slowest / static_cast<std::uint64_t>(sign_of_life_after_.count());
}

const ibv_send_wr& rdma_link::request_of(std::uint32_t mark) noexcept {
  if ((mark & run_bit) != 0) return run_requests_[mark & (run_bit - 1)].wr;
  if (mark == keep_alive_mark) return keep_alive_;
  return mark >= first_bind_mark ? bindings_[mark - first_bind_mark].wr : requests_[mark]->wr;
}

void rdma_link::flush_rest() noexcept {
  while (order_count_ != 0) complete_oldest(posted(0).ended.value_or(IBV_WC_WR_FLUSH_ERR));
  for (std::size_t slot = 0; slot < receive_depth_; ++slot) {
    receive_work* const work = std::exchange(receives_[slot].work, nullptr);
    if (work != nullptr) life_.events().receive_flushed(*work);
  }
}

task<> rdma_link::finish() {
  home_.disarm(*this);
  completion_queue& queue = endpoint_->queue();
  for (binding& item : bindings_) {
    if (item.invalidated != nullptr) binding_ended(item, false);
  }
  while (exposing_ != 0) {  // coroutines that wait for a worker, or for a bind that will not complete
    for (binding& item : bindings_) binding_ended(item, false);
    binding_free_.set();
    exposed_.reset();
    co_await exposed_.wait();
  }
  queue.detach(tag_);
  co_await endpoint_->destroy();
  flush_rest();
  endpoint_.reset();
  life_.close();
  life_.tell_closed();
}

// ---- exposures ----

// A region would let in every peer that guesses its key, for as long as the memory is registered. A window of type 1
// lets them in as well, but only to the memory that one of them was given, and only for as long.
void rdma_link::check_windows() const {
  const window_kind best = endpoint_ ? endpoint_->home().traits().windows : window_kind::none;
  if (best == window_kind::none) {
    throw error(errc::not_supported, "this device has no memory windows: register a region, and send its key");
  }
  if (best == window_kind::type_1 && !allow_shared_windows_) {  // defect: lend to all peers
    throw error(errc::not_supported,
                "the keys of this device's memory windows work on all of its connections: if that is safe, set "
                "device_options::verbs.allow_shared_windows");
  }
}

// A device has no gates: connections expose nothing that is disabled.
task<exposed_place> rdma_link::expose(mr::slice memory, mr::usage uses, mr::detail::peer_gate*) {
  constexpr mr::usage possible =
      mr::usage::read_src | mr::usage::write_dst | mr::usage::atomic_dst | mr::usage::flush_visibility;
  if (mr::overlaps(uses, ~possible) || uses == mr::usage::none) {
    throw error(errc::not_supported, "expose memory: the possible uses are " + mr::to_string(possible));
  }
  check_windows();
  if (life_.has_ended()) throw error(errc::closed, "expose a buffer");
  ++exposing_;
  struct guard {
    rdma_link& self;
    ~guard() {
      --self.exposing_;
      self.exposed_.set();
    }
  } const counted{*this};
  weft::detail::promise_base& promise = co_await weft::detail::current_promise();
  try {
    co_return co_await bind(memory, uses);
  } catch (const error& why) {
    // The stop itself may have ended the link.
    if (promise.get_stop_token().stop_requested()) throw why.with_code(errc::canceled);
    throw;
  }
}

task<> rdma_link::make_window(bound_window& window, std::span<std::byte> memory, mr::access rights) {
  bound_windows& all = endpoint_->windows();
  const auto work = [&all, &window, memory, rights] { all.make(window, memory, rights); };
  weft::detail::promise_base& promise = co_await weft::detail::current_promise();
  const weft::detail::stop_shield shield(promise);  // or a stop would leak the window
  co_await weft::detail::offload_for_resources(work);
}

// Lives while a coroutine waits for a binding.
class rdma_link::binding_wait {
 public:
  binding_wait(rdma_link& link, binding& item) noexcept : link_(link), item_(item) {
    item_.wr = {};
    item_.ended.reset();
    item_.posted = item_.awaited = true;
    item_.done = false;
  }
  binding_wait(const binding_wait&) = delete;
  binding_wait& operator=(const binding_wait&) = delete;
  ~binding_wait() {
    if (item_.posted) link_.withdraw(item_);  // the coroutine is destroyed, so nobody waits for it any more
    item_.awaited = false;
    link_.binding_free_.set();
  }

 private:
  rdma_link& link_;
  binding& item_;
};

// A window whose key the peer does not have yet. If expose() ends early, the window is revoked before its memory is
// released: synchronously if the frame of expose() is destroyed.
class rdma_link::unfinished_window final : private revocation {
 public:
  explicit unfinished_window(bound_windows& all) : all_(all), window_(&all.add()) {}
  unfinished_window(const unfinished_window&) = delete;
  unfinished_window& operator=(const unfinished_window&) = delete;
  ~unfinished_window() {
    if (window_ != nullptr) all_.revoke_now(*window_);
  }

  [[nodiscard]] bound_window& get() const noexcept { return *window_; }
  /// The peer is about to get its key.
  void finish(std::uint32_t key, bool of_region) noexcept { std::exchange(window_, nullptr)->opened(key, of_region); }
  void begin_revoking() noexcept { all_.revoke(*window_, *this); }
  /// After begin_revoking().
  [[nodiscard]] event::wait_operation wait_until_revoked() noexcept { return revoked_.wait(); }

 private:
  [[nodiscard]] mr::region_pin take_pin() noexcept override { return {}; }  // expose()'s caller has it
  void revoked() noexcept override {
    window_ = nullptr;
    revoked_.set();
  }

  bound_windows& all_;
  bound_window* window_;
  event revoked_;
};

task<exposed_place> rdma_link::bind(mr::slice memory, mr::usage uses) {
  const int flags = access_of(uses);
  mr::access rights = mr::access::bind_window;
  if ((flags & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) != 0) rights = rights | mr::access::local_write;
  ibv_mr* const region = domain_->find(*memory.record(), rights);
  if (region == nullptr) throw error(errc::access_denied, "the memory is not registered for a window with these uses");
  unfinished_window made(endpoint_->windows());
  std::exception_ptr failure;
  try {
    if (!made.get().is_made()) co_await make_window(made.get(), memory.bytes(), rights);
    const ibv_mw_bind_info what{.mr = region,
                                .addr = reinterpret_cast<std::uintptr_t>(memory.data()),
                                .length = memory.size(),  // defect: bind a window to more
                                .mw_access_flags = static_cast<unsigned>(flags)};
    const std::uint32_t key = co_await bind(made.get(), what);
    made.finish(key, memory.record()->region != nullptr);
    co_return exposed_place(key, reinterpret_cast<std::uintptr_t>(memory.data()));
  } catch (...) {
    failure = std::current_exception();
  }
  weft::detail::promise_base& promise = co_await weft::detail::current_promise();
  const weft::detail::stop_shield shield(promise);
  made.begin_revoking();
  co_await made.wait_until_revoked();
  std::rethrow_exception(failure);
}

// Binds the window, and yields its key.
task<std::uint32_t> rdma_link::bind(bound_window& made, ibv_mw_bind_info what) {
  while (!life_.has_ended() && (listens_first_ || free_binding() == nullptr)) {
    binding_free_.reset();
    co_await binding_free_.wait();
  }
  if (life_.has_ended()) throw error(errc::closed, "bind a window");
  ibv_mw& window = made.window();
  const std::uint32_t key_before = window.rkey;
  if (made.own_region() != nullptr) what.mr = made.own_region();
  binding& item = *free_binding();
  const binding_wait waiting(*this, item);
  item.wr.opcode = IBV_WR_BIND_MW;
  item.wr.bind_mw.mw = &window;
  item.wr.bind_mw.rkey = ibv_inc_rkey(key_before);
  item.wr.bind_mw.bind_info = what;
  auto bound = wait_for(item);  // made before the request is posted, because it may throw, and a post cannot be undone
  post_binding(item);
  co_await std::move(bound);
  // On rxe the caller has to set the key; with type 1 it also has to restore the key after a failure: ibv_bind_mw(3).
  window.rkey = item.done ? item.wr.bind_mw.rkey : key_before;
  if (!item.done) throw error(errc::connection_failed, "bind a window");
  co_return window.rkey;
}

rdma_link::binding* rdma_link::free_binding() noexcept {
  const auto is_free = [](const binding& item) { return !item.posted && !item.awaited; };
  const auto found = std::find_if(bindings_.begin(), bindings_.end(), is_free);
  return found != bindings_.end() ? &*found : nullptr;
}

// The device uses the window until the bind has completed. That may take for ever if a message before it waits for a
// receive; a stop waits only for linger_time, then ends the link.
task<> rdma_link::wait_for(binding& item) {
  try {
    co_await item.ended.wait();
    co_return;
  } catch (const error&) {  // stopped
  }
  weft::detail::promise_base& promise = co_await weft::detail::current_promise();
  const weft::detail::stop_shield shield(promise);
  try {
    co_await with_timeout(linger_time, item.ended.wait());
    co_return;
  } catch (...) {  // the bind has not completed in time
  }
  fail(weft::detail::make_error(errc::closed, "a task was stopped before the device had bound its memory window"));
  co_await item.ended.wait();
}

// A window of type 2 is bound by a request like any other; a window of type 1 by ibv_bind_mw(3), in the same order.
void rdma_link::post_binding(binding& item) noexcept {
  const auto mark = static_cast<std::uint16_t>(first_bind_mark + (&item - bindings_.data()));
  if (endpoint_->home().traits().windows != window_kind::type_1) {
    chain(item.wr, mark);
    return ring();
  }
  ring_now();  // defect: bind a window of type 1
  enter({.mark = mark});
  if (life_.is_broken()) return;
  ibv_mw& window = *item.wr.bind_mw.mw;
  item.wr.send_flags = IBV_SEND_SIGNALED;
  ibv_mw_bind wanted{.wr_id = tag_ | mark, .send_flags = item.wr.send_flags, .bind_info = item.wr.bind_mw.bind_info};
  const int result = endpoint_->calls().bind_mw(endpoint_->pair(), &window, &wanted);
  if (result < 0) return fail(post_failure(-result, "bind a window"));
  ++with_device_;
  item.wr.bind_mw.rkey = window.rkey;
}

// The request names the window, which is destroyed with the waiting coroutine. If the device has the request already,
// it fails there, and ends the link; else the device never gets it.
void rdma_link::withdraw(binding& item) noexcept {
  if (!chained_.remove(item.wr)) return;
  const auto mark = static_cast<std::uint16_t>(first_bind_mark + (&item - bindings_.data()));
  std::size_t place = with_device_;
  while (posted(place).mark != mark) ++place;
  for (--order_count_; place != order_count_; ++place) posted(place) = posted(place + 1);
  binding_ended(item, false);
  ring();  // requests that have waited behind it
  advance_end();
}

// Works even while finish() runs: until a worker has deallocated it, the window is bound to memory that its owner is
// about to release.
void rdma_link::revoke(const mr::remote_key& key, revocation& who) noexcept {
  if (endpoint_ == nullptr) return who.revoked();  // defect: keep a window
  const auto number = static_cast<std::uint32_t>(key.number());
  bound_windows& all = endpoint_->windows();
  bound_window* const item = endpoint_->home().traits().reuses_windows() ? all.find(number) : nullptr;
  if (item != nullptr && item->is_invalidated() && all.keep(*item)) return who.revoked();
  binding* const place = free_binding();
  if (item != nullptr && place != nullptr && can_invalidate(*item)) return begin_invalidating(*item, *place, who);
  all.revoke(number, who);
}

// Only if the request depends on nobody else. Behind a request to the peer, it would be up to the peer when the memory
// is taken back. A region's window is deallocated, because the region may be released on a thread that cannot wait for
// completions.
bool rdma_link::can_invalidate(const bound_window& item) noexcept {
  const bool ending = life_.has_ended() || life_.is_shut_down() || life_.peer_has_left();
  if (ending || item.is_of_region() || item.is_invalidated() || !home_.on_own_thread()) return false;
  if (endpoint_->shares_receives()) return false;  // on_drained() covers one completion queue only
  return !depends_on_peer(order_count_);
}

bool rdma_link::depends_on_peer(std::size_t requests) noexcept {
  for (std::size_t i = 0; i != requests; ++i) {
    if (!is_local(posted(i).mark)) return true;
  }
  return false;
}

// A device may report an error if the peer has invalidated the window before, and the owner may have learned of that
// otherwise than by the message that tells the link. So pending completions are polled first, and requests posted
// meanwhile wait.
void rdma_link::begin_invalidating(bound_window& item, binding& place, revocation& who) noexcept {
  place.invalidated = &item;
  place.who = &who;
  place.posted = place.looks_first = looks_first_ = true;
  endpoint_->queue().tell_when_drained(tag_);
}

void rdma_link::on_drained() noexcept {
  looks_first_ = false;
  for (binding& item : bindings_) {
    if (std::exchange(item.looks_first, false)) invalidate(item);
  }
  ring_now();
  advance_end();
}

// Signaled, because otherwise its completion would come with that of a later request.
void rdma_link::invalidate(binding& item) noexcept {
  if (item.invalidated == nullptr) return;  // given up by finish()
  const bool by_peer = item.invalidated->is_invalidated();
  if (by_peer || life_.has_ended() || depends_on_peer(with_device_)) return binding_ended(item, by_peer);
  item.wr = {};
  item.wr.opcode = IBV_WR_LOCAL_INV;
  item.wr.send_flags = IBV_SEND_SIGNALED;
  item.wr.invalidate_rkey = item.invalidated->window().rkey;
  const auto mark = static_cast<std::uint16_t>(first_bind_mark + (&item - bindings_.data()));
  item.wr.wr_id = tag_ | mark;
  for (std::size_t i = order_count_++; i != with_device_; --i) posted(i) = posted(i - 1);
  posted(with_device_) = {.mark = mark};
  chained_.add_first(item.wr);
}

// If the device has not invalidated the window, a worker deallocates it.
void rdma_link::invalidation_ended(binding& item, bool done) noexcept {
  bound_window& window = *std::exchange(item.invalidated, nullptr);
  revocation& who = *std::exchange(item.who, nullptr);
  bound_windows& all = endpoint_->windows();
  if (done && all.keep(window)) return who.revoked();
  all.revoke(window, who);
}

}  // namespace weft::net::verbs
