// SPDX-License-Identifier: Apache-2.0
#include <weft/net/verbs/send_queue.hpp>

#include <arpa/inet.h>

#include <algorithm>
#include <cassert>
#include <cstring>
#include <new>
#include <type_traits>
#include <utility>

namespace weft::net::verbs {
namespace {

// The number of requests for which link::furnish() must not fail.
constexpr std::size_t furnished_at_once = 8;

// Outside of runs, at least every fourth small request is signaled, and the last before a doorbell.
constexpr unsigned signal_every = 4;
constexpr std::uint64_t largest_unsignaled = 4096;

// A group of run elements has one completion. The queue holds several groups, so that one can be replaced while the
// device is busy with the others. The element that brings a group to most_bytes_in_group is its last, because a peer
// counts as dead only after the time that a group may take.
constexpr std::size_t largest_group = 16;
constexpr std::size_t groups_in_queue = 8;
constexpr std::uint64_t most_bytes_in_group = 1 << 20;

std::uint64_t bytes_of(const ibv_send_wr& wr) noexcept {
  std::uint64_t bytes = wr.opcode == wr_flush_opcode ? wr.wr.atomic.compare_add : 0;
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

// Whether ibv_post_send(3) does not take it.
bool is_apart(const ibv_send_wr& wr) noexcept {
  return wr.opcode == wr_flush_opcode || wr.opcode == wr_atomic_write_opcode;
}

// Whether the write is one of a word, as ATOMIC WRITE takes it.
bool is_word(const send_queue::posted_request& item) noexcept {
  return !item.work->immediate && item.wr.num_sge == 1 && item.parts.front().length == 8 &&
         item.work->remote_address % 8 == 0;
}

// Whether the request concerns this device alone.
bool is_local(std::uint32_t mark) noexcept {
  return mark >= first_bind_mark && mark != keep_alive_mark && (mark & run_bit) == 0;
}

// When a packet is lost, rxe of Linux 6.1 also retransmits all requests that were posted behind it. Then
//   - it refuses a bind that was done long ago, and breaks the connection;
//   - a message or write that the peer has had already is acknowledged with the number of the last request that the
//     peer has executed. If that request is a read or an atomic, rxe completes it too, although its answer was lost.
// So on rxe a bind waits until no request is before it, and a read or atomic until only reads and atomics are.
bool has_to_wait_behind(const ibv_send_wr& wr, const ibv_send_wr& before) noexcept {
  return wr.opcode == IBV_WR_BIND_MW || (asks(wr) && !asks(before));  // mutant: read on Soft-RoCE
}

work_status status_of(ibv_wc_status status) noexcept {
  if (status == IBV_WC_SUCCESS) return work_status::done;  // mutant: take a request that was flushed
  const bool refused = status == IBV_WC_REM_ACCESS_ERR || status == IBV_WC_REM_INV_REQ_ERR;
  return refused ? work_status::access_denied : work_status::flushed;
}

}  // namespace

void send_queue::make_room(std::uint16_t depth) {
  requests_.reserve(std::min<std::size_t>(depth, furnished_at_once));
  order_.resize(std::size_t{depth} + bind_requests + keep_alive_requests);
  run_depth_ = depth;
  group_size_ = std::clamp<std::size_t>(run_depth_ / groups_in_queue, 1, largest_group);
}

// ---- posting ----

bool send_queue::furnish(work_request& work) noexcept try {
  static_assert(std::is_trivially_destructible_v<posted_request> && alignof(posted_request) <= corner_alignment);
  if (work.slot >= requests_.size()) requests_.resize(std::size_t{work.slot} + 1);
  requests_[work.slot] = ::new (work.corner) posted_request(work);
  return true;
} catch (const std::bad_alloc&) {
  return false;
}

void send_queue::post(work_request& work) noexcept {
  posted_request& item = *requests_[work.slot];
  fill(item);
  chain(item.wr, work.slot);
}

void send_queue::fill(posted_request& item) noexcept {
  const work_request& work = *item.work;
  ibv_send_wr& wr = item.wr;
  wr.send_flags = 0;
  const bool readable = fill_parts(item);
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
      if (writes_atomically_ && readable && is_word(item)) {
        wr.opcode = wr_atomic_write_opcode;
        wr.send_flags = 0;
        has_apart_ = true;
      }
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
    case work_kind::flush:
      wr.opcode = wr_flush_opcode;
      wr.wr.atomic.remote_addr = work.remote_address;
      wr.wr.atomic.rkey = static_cast<std::uint32_t>(work.remote_key);
      wr.wr.atomic.compare_add = work.operand;
      has_apart_ = true;
      break;
  }
}

// The request's own bytes are in no registration, so they are copied through one of the registered staging areas.
// Returns whether the processor can read the memory, as it must to copy it into the request.
bool send_queue::fill_parts(posted_request& item) noexcept {
  const work_request& work = *item.work;
  const bool sends = work.kind == work_kind::send || work.kind == work_kind::write;
  bool readable = true;
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
    add(part.data(), part.size(), part.record()->in(domain_.fabric()).local_key);
    readable = readable && part.kind() == mr::memory_kind::host;
  }
  if (!work.own.empty()) {
    assert(work.own.size() <= endpoint::staging_bytes);
    const endpoint::staging_area& area = sends ? endpoint_.sources() : endpoint_.sinks();
    if (sends) std::memcpy(area.of(work.slot), work.own.data(), work.own.size());
    add(area.of(work.slot), work.own.size(), area.key());
  }
  item.wr.sg_list = item.parts.data();
  item.wr.num_sge = count;
  // mutant: send more inline
  const bool fits =
      bytes <= endpoint_.max_inline_bytes() && (count == 1 || endpoint_.home().traits().inlines_all_parts);
  if (sends && readable && fits) item.wr.send_flags |= IBV_SEND_INLINE;
  return readable;
}

void send_queue::chain(ibv_send_wr& wr, std::uint16_t mark) noexcept {
  enter({.mark = mark});
  if (life_.is_broken()) return;  // in ERR, the request is not handed over, but flushed with the rest
  wr.wr_id = tag_ | mark;
  ++unsignaled_;
  if (has_to_signal(wr)) {
    wr.send_flags |= IBV_SEND_SIGNALED;
    unsignaled_ = 0;
  }
  chained_.push_back(wr);
}

// A large request is always signaled, so that its waiter does not wait for requests behind it as well: the next request
// may need its buffer. If requests complete out of order, every request is signaled, because no completion implies
// another.
bool send_queue::has_to_signal(const ibv_send_wr& wr) const noexcept {
  return bytes_of(wr) > largest_unsignaled || unsignaled_ == signal_every ||
         !endpoint_.home().traits().completes_in_order;  // mutant: have requests not tell
}

// Lists need a device on which a completion stands for the requests before it, and no request has to wait for earlier
// ones (has_to_wait()). They also need memory for the ring, which is allocated here.
bool send_queue::takes_runs() noexcept {
  const device_traits& traits = endpoint_.home().traits();
  if (!traits.completes_in_order || !traits.repeats_requests_well) return false;
  if (run_requests_ == nullptr) run_requests_.reset(new (std::nothrow) run_request[run_depth_]);
  return run_requests_ != nullptr;
}

// The fields that the requests of a run share, and the local key of the memory that was looked up last.
struct send_queue::run_shape {
  ibv_wr_opcode opcode;
  std::uint64_t inline_below;  // elements of host memory with fewer bytes go inline
  std::size_t fabric;
  std::uint64_t tag;  // of the requests' wr_ids
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
void send_queue::post_elements(work_run& run, std::span<const run_element> elements, run_shape& shape) noexcept {
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
  chained_.append(first, *last);
}

void send_queue::post_run(work_run& run, const run_portion& what) noexcept {
  if (life_.is_broken()) {  // the elements are flushed with the rest
    enter({.mark = run_bit, .count = static_cast<std::uint16_t>(what.count), .run = &run});
    return;
  }
  const bool reads = what.kind == work_kind::read;
  run_shape shape{.opcode = reads ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE,
                  .inline_below = reads ? 0 : std::uint64_t{endpoint_.max_inline_bytes()} + 1,
                  .fabric = domain_.fabric(),
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
void send_queue::bring_immediate(const run_portion& what) noexcept {
  ibv_send_wr& last = chained_.back();
  last.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  last.imm_data = htonl(*what.immediate);
}

// ---- to the device ----

bool send_queue::has_to_wait(const ibv_send_wr& wr) const noexcept {
  if (endpoint_.home().traits().repeats_requests_well) return false;
  for (std::size_t i = 0; i != with_device_; ++i) {
    if (has_to_wait_behind(wr, request_of(posted(i).mark))) return true;
  }
  return false;
}

ibv_send_wr& send_queue::last_to_hand_over() const noexcept {
  if (endpoint_.home().traits().repeats_requests_well) return chained_.back();
  ibv_send_wr* last = &chained_.front();
  while (last->next != nullptr && !has_to_wait_behind(*last->next, *last)) last = last->next;
  return *last;
}

int send_queue::hand_over() noexcept {
  if (chained_.empty() || has_to_wait(chained_.front())) return 0;  // completed() rings again
  ibv_send_wr& last = last_to_hand_over();
  last.send_flags |= IBV_SEND_SIGNALED;  // mutant: leave the last request
  unsignaled_ = 0;
  ibv_send_wr* const first = chained_.take(last);
  ibv_send_wr* refused = nullptr;
  const int result = has_apart_ ? post_apart(first, &refused)  //
                                : endpoint_.calls().post_send(endpoint_.pair(), first, &refused);
  has_apart_ = has_apart_ && !chained_.empty();
  if (result >= 0) refused = nullptr;
  if (result < 0 && refused == nullptr) refused = first;
  count_handed_over(first, refused);
  return result;
}

// Posts each FLUSH and each ATOMIC WRITE by a call of its own, between the calls for the requests before it and behind
// it.
int send_queue::post_apart(ibv_send_wr* first, ibv_send_wr** refused) noexcept {
  rdma_calls& library = endpoint_.calls();
  int result = 0;
  while (first != nullptr && result >= 0) {
    ibv_send_wr* last = first;
    *refused = first;
    if (is_apart(*first)) {
      result = first->opcode == wr_flush_opcode ? library.wr_flush(endpoint_.pair(), *first)
                                                : library.wr_atomic_write(endpoint_.pair(), *first);
    } else {
      while (last->next != nullptr && !is_apart(*last->next)) last = last->next;
      ibv_send_wr* const behind = std::exchange(last->next, nullptr);
      result = library.post_send(endpoint_.pair(), first, refused);
      last->next = behind;
    }
    first = last->next;
  }
  return result;
}

void send_queue::count_handed_over(const ibv_send_wr* first, const ibv_send_wr* refused) noexcept {
  while (first != refused) {
    const std::uint16_t count = posted(with_device_).count;
    std::uint16_t taken = 0;
    for (; taken != count && first != refused; first = first->next) ++taken;
    if (taken != count) split_group(with_device_, taken);
    ++with_device_;
  }
}

// Splits a group of which the device has refused the rest. order_ has room, because it has a place for each element.
void send_queue::split_group(std::size_t place, std::uint16_t first_part) noexcept {
  for (std::size_t i = order_count_++; i != place; --i) posted(i) = posted(i - 1);
  posted(place).count = first_part;
  place_in_order& rest = posted(place + 1);
  rest.mark = mark_behind(rest.mark, first_part);
  rest.count = static_cast<std::uint16_t>(rest.count - first_part);
}

// The mark of the element that is `elements` places behind `mark`.
std::uint32_t send_queue::mark_behind(std::uint32_t mark, std::size_t elements) const noexcept {
  const std::size_t place = (mark & (run_bit - 1)) + elements;
  return run_bit | static_cast<std::uint32_t>(place < run_depth_ ? place : place - run_depth_);
}

// The number of elements of the group before the request with that mark; all if the request is not in the group.
std::size_t send_queue::place_in_group(const place_in_order& group, std::uint32_t mark) const noexcept {
  if ((group.mark & mark & run_bit) == 0) return group.mark == mark ? 0 : group.count;
  const std::size_t distance = mark < group.mark ? mark + run_depth_ - group.mark : mark - group.mark;
  return std::min<std::size_t>(distance, group.count);
}

// ---- completions ----

// A queue pair completes in order, and an unsignaled request that fails completes all the same, so unsignaled requests
// before this one are done. On a device that completes out of order, every request is signaled, and the completion is
// passed on only after those of all earlier requests.
void send_queue::completed(const ibv_wc& what, std::uint32_t mark) noexcept {
  std::size_t before = 0;
  std::size_t elements = 0;
  for (; before != with_device_; ++before) {
    elements = place_in_group(posted(before), mark);
    if (elements != posted(before).count) break;
  }
  if (before == with_device_) return;  // the request was given up as lost
  const bool is_whole = elements + 1 == posted(before).count && (elements == 0 || what.status == IBV_WC_SUCCESS);
  if (is_whole) posted(before).ended = what.status;
  if (!endpoint_.home().traits().completes_in_order) return complete_ended();  // mutant: take all before
  for (; before != 0; --before) posted(before - 1).ended = IBV_WC_SUCCESS;
  complete_ended();
  if (!is_whole) element_ended(elements, what.status);
  ring();  // something may have waited for this request
}

// An element of the oldest group has ended, and the `before` elements before it are done. Those behind it have
// completions of their own, because an unsignaled request that fails completes all the same.
void send_queue::element_ended(std::size_t before, ibv_wc_status status) noexcept {
  if (before != 0) take_from_oldest(before, work_status::done);
  take_from_oldest(1, status_of(status));
}

void send_queue::take_from_oldest(std::size_t elements, work_status status) noexcept {
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

void send_queue::complete_ended() noexcept {
  while (with_device_ != 0 && posted(0).ended) {
    --with_device_;
    complete_oldest(*posted(0).ended);
  }
}

void send_queue::complete_oldest(ibv_wc_status status) noexcept {
  const place_in_order oldest = posted(0);
  const std::uint32_t mark = oldest.mark;
  leave_oldest();
  if (oldest.run != nullptr) return life_.events().run_advanced(*oldest.run, oldest.count, status_of(status));
  if (mark >= first_bind_mark) return own_.own_request_ended(mark, status == IBV_WC_SUCCESS);
  posted_request& item = *requests_[mark];
  work_request& work = *item.work;
  if (status == IBV_WC_SUCCESS && work.kind != work_kind::send && !work.own.empty()) {  // mutant: forget what a read
    std::memcpy(work.own.data(), endpoint_.sinks().of(mark), work.own.size());
  }
  life_.events().completed(work, status_of(status));  // mutant: complete a request twice
}

// Whether the completion of the request shows that the peer is alive.
bool send_queue::has_answer(std::uint32_t mark) const noexcept {
  if (is_local(mark)) return false;
  return endpoint_.home().traits().completes_on_answer || asks(request_of(mark));
}

const ibv_send_wr& send_queue::request_of(std::uint32_t mark) const noexcept {
  if ((mark & run_bit) != 0) return run_requests_[mark & (run_bit - 1)].wr;
  return mark >= first_bind_mark ? own_.own_request(mark) : requests_[mark]->wr;
}

bool send_queue::depends_on_peer(std::size_t requests) const noexcept {
  for (std::size_t i = 0; i != requests; ++i) {
    if (!is_local(posted(i).mark)) return true;
  }
  return false;
}

send_queue::outstanding send_queue::before_next_completion(bool all) const noexcept {
  outstanding sum;
  bool signaled = false;
  for (std::size_t i = 0; i != with_device_ && !signaled; ++i) {
    const place_in_order& next = posted(i);
    for (std::size_t element = 0; element != next.count && !signaled; ++element) {
      const ibv_send_wr& wr = request_of(next.run != nullptr ? mark_behind(next.mark, element) : next.mark);
      sum.bytes += bytes_of(wr);
      sum.takes_receive = sum.takes_receive || takes_receive_of_peer(wr);
      signaled = (wr.send_flags & IBV_SEND_SIGNALED) != 0 && !all;
    }
  }
  return sum;
}

void send_queue::flush() noexcept {
  while (order_count_ != 0) complete_oldest(posted(0).ended.value_or(IBV_WC_WR_FLUSH_ERR));
}

// ---- requests of the link's own ----

void send_queue::post_own(ibv_send_wr& wr, std::uint16_t mark) noexcept {
  chain(wr, mark);
  ring();
}

void send_queue::post_own_first(ibv_send_wr& wr, std::uint16_t mark) noexcept {
  wr.wr_id = tag_ | mark;
  for (std::size_t i = order_count_++; i != with_device_; --i) posted(i) = posted(i - 1);
  posted(with_device_) = {.mark = mark};
  chained_.push_front(wr);
}

bool send_queue::withdraw_own(const ibv_send_wr& wr, std::uint16_t mark) noexcept {
  if (!chained_.remove(wr)) return false;
  std::size_t place = with_device_;
  while (posted(place).mark != mark) ++place;
  for (--order_count_; place != order_count_; ++place) posted(place) = posted(place + 1);
  return true;
}

}  // namespace weft::net::verbs
