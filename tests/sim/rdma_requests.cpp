// SPDX-License-Identifier: Apache-2.0
// What a device does with requests: InfiniBand specification, chapters 9 and 10, as far as reliable connections go.
#include "rdma_parts.hpp"

namespace weft::sim {
namespace {

// Parts of larger messages may come one by one.
constexpr std::size_t packet_bytes = 64;

// Copies `bytes` to or from what a list describes, `from` bytes behind its begin.
template <class Copy>
void for_range(const std::vector<ibv_sge>& parts, std::size_t from, std::size_t bytes, Copy copy) {
  for (const ibv_sge& part : parts) {
    if (bytes == 0) return;
    if (from >= part.length) {
      from -= part.length;
      continue;
    }
    const std::size_t count = std::min<std::size_t>(part.length - from, bytes);
    copy(reinterpret_cast<std::byte*>(part.addr) + from, count);
    bytes -= count;
    from = 0;
  }
}

void scatter(const std::vector<ibv_sge>& parts, std::size_t from, std::span<const std::byte> data) {
  for_range(parts, from, data.size(), [&](std::byte* at, std::size_t count) {
    std::memcpy(at, data.data(), count);
    data = data.subspan(count);
  });
}

std::uint64_t size_of(const std::vector<ibv_sge>& parts) noexcept {
  std::uint64_t bytes = 0;
  for (const ibv_sge& part : parts) bytes += part.length;
  return bytes;
}

std::vector<ibv_sge> parts_of(const ibv_sge* list, int count) { return {list, list + count}; }

ibv_wc_opcode opcode_of(ibv_wr_opcode of) noexcept {
  switch (of) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
      return IBV_WC_RDMA_WRITE;
    case IBV_WR_RDMA_READ:
      return IBV_WC_RDMA_READ;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
      return IBV_WC_COMP_SWAP;
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      return IBV_WC_FETCH_ADD;
    case IBV_WR_BIND_MW:
      return IBV_WC_BIND_MW;
    case IBV_WR_LOCAL_INV:
      return IBV_WC_LOCAL_INV;
    default:
      return IBV_WC_SEND;
  }
}

// Of an error, all but a few fields mean nothing: ibv_poll_cq(3).
ibv_wc completion_of(std::uint64_t id, std::uint32_t pair, ibv_wc_status status, ibv_wc_opcode opcode) {
  ibv_wc made{};
  made.wr_id = id;
  made.status = status;
  made.qp_num = pair;
  made.opcode = opcode;
  if (status == IBV_WC_SUCCESS) return made;
  made.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
  made.byte_len = 0xDEAD'BEEF;
  made.wc_flags = ~0U;
  made.vendor_err = 0x77;
  return made;
}

constexpr bool is_write(ibv_wr_opcode what) noexcept {
  return what == IBV_WR_RDMA_WRITE || what == IBV_WR_RDMA_WRITE_WITH_IMM;
}

// InfiniBand specification, table 45.
duration rnr_time(std::uint8_t timer) noexcept {
  if (timer == 0) return std::chrono::microseconds(655'360);
  return std::chrono::microseconds(timer <= 12 ? 40 * timer : 1000 << std::min(timer - 12, 9));
}

// The local ACK timeout: InfiniBand specification, 9.7.6.1.3.
duration answer_time(std::uint8_t timeout) noexcept { return std::chrono::nanoseconds(std::int64_t{4096} << timeout); }

}  // namespace

std::vector<std::byte> collect(const std::vector<ibv_sge>& parts, std::size_t from, std::size_t bytes) {
  std::vector<std::byte> data;
  data.reserve(bytes);
  for_range(parts, from, bytes,
            [&](const std::byte* at, std::size_t count) { data.insert(data.end(), at, at + count); });
  return data;
}

std::uint64_t content_of(const std::vector<ibv_sge>& parts) noexcept {
  fingerprint content;
  for (const ibv_sge& part : parts) content.add(std::span(reinterpret_cast<const std::byte*>(part.addr), part.length));
  return content.value();
}

void rdma::later(duration how_long, const pair& of, void (rdma::*what)(pair&)) {
  later(how_long, [this, name = of.name(), what] {
    if (pair* const found = find_pair(name)) (this->*what)(*found);
  });
}

// ---- posting ----

rdma::request rdma::make_request(pair& of, const ibv_send_wr& from) {
  require(from.num_sge >= 0 && static_cast<unsigned>(from.num_sge) <= of.most.max_send_sge,
          "a request of {} parts, and a queue pair for {}", from.num_sge, of.most.max_send_sge);
  request made;
  made.id = from.wr_id;
  made.opcode = from.opcode;
  made.signaled = of.signals_all || (from.send_flags & IBV_SEND_SIGNALED) != 0;
  made.parts = parts_of(from.sg_list, from.num_sge);
  made.bytes = size_of(made.parts);
  made.word = from.imm_data;
  check_abilities(of, made);
  if (from.opcode == IBV_WR_BIND_MW) {
    made.which = static_cast<window*>(from.bind_mw.mw);
    made.key = from.bind_mw.rkey;
    made.bound = from.bind_mw.bind_info;
    return made;
  }
  if (from.opcode == IBV_WR_LOCAL_INV) {
    made.key = from.invalidate_rkey;
    return made;
  }
  const bool flushes = made.opcode == net::verbs::wr_flush_opcode;
  const bool atomic = flushes || (made.asks() && made.opcode != IBV_WR_RDMA_READ);
  made.address = atomic ? from.wr.atomic.remote_addr : from.wr.rdma.remote_addr;
  made.key = atomic ? from.wr.atomic.rkey : from.wr.rdma.rkey;
  made.compare = atomic ? from.wr.atomic.compare_add : 0;
  made.operand = atomic ? from.wr.atomic.swap : 0;
  require(!atomic || made.bytes == (flushes ? 0 : 8), "an atomic operation of {} bytes", made.bytes);
  const bool goes_inline = (from.send_flags & IBV_SEND_INLINE) != 0;
  if (goes_inline || made.opcode == net::verbs::wr_atomic_write_opcode) {
    require(!goes_inline || (!made.asks() && made.bytes <= of.most.max_inline_data),
            "{} bytes inline, and a queue pair for {}", made.bytes, of.most.max_inline_data);
    made.copied = true;
    if (goes_inline) ++inline_requests_;
    made.data = collect(made.parts, 0, made.bytes);
    return made;
  }
  check_local(made.parts, of.pd, made.asks());
  use(made.parts, of.pd, 1);
  if (!made.asks()) made.content = content_of(made.parts);
  return made;
}

// What it cannot do, nobody may ask for.
void rdma::check_abilities(const pair& of, const request& what) {
  const bool atomic = what.asks() && what.opcode != IBV_WR_RDMA_READ;
  require(!atomic || traits_.has_atomics, "it has no atomic operations");
  require(what.opcode != IBV_WR_SEND_WITH_INV || has_windows_of_one_peer(), "a key is revoked that no peer can");
  require(what.opcode != IBV_WR_LOCAL_INV || has_windows_of_one_peer(), "a window is invalidated that cannot be");
  require(what.opcode != IBV_WR_LOCAL_INV || !traits_.like_rxe,
          "a window is invalidated, which is the end of rxe's kernel if the peer does so as well");
  if (!traits_.is_iwarp) return;
  require(what.opcode != IBV_WR_RDMA_WRITE_WITH_IMM && what.opcode != IBV_WR_SEND_WITH_IMM,
          "immediate data, and an RNIC has none");
  const bool speaks = !what.is_local() && of.state == IBV_QPS_RTS;
  require(!speaks || !of.accepted || of.heard, "an RNIC that was connected to speaks first: RFC 5044, 7.1.2");
  if (!what.asks()) return;
  require(what.parts.size() <= 1, "a read into {} parts, and an RNIC takes one", what.parts.size());
  for (const ibv_sge& part : what.parts) {
    const region* const sink = find_local(part.lkey);
    require(sink != nullptr && (sink->rights & IBV_ACCESS_REMOTE_WRITE) != 0,
            "a read into memory that is not open to writes of peers: RFC 5040, 5.2");
  }
}

rdma::receive rdma::make_receive(const ibv_recv_wr& from, const ibv_pd* domain) {
  require(from.num_sge >= 0 && from.num_sge <= 1, "a receive of {} parts", from.num_sge);
  receive made{.id = from.wr_id, .parts = parts_of(from.sg_list, from.num_sge), .domain = domain};
  check_local(made.parts, domain, true);
  return made;
}

int rdma::post_send(ibv_qp* item, ibv_send_wr* first, ibv_send_wr** refused) noexcept {
  ++doorbells_;
  for (const ibv_send_wr* each = first; each != nullptr; each = each->next) {
    require(each->opcode != net::verbs::wr_flush_opcode && each->opcode != net::verbs::wr_atomic_write_opcode,
            "ibv_post_send(3) has neither FLUSH nor ATOMIC WRITE");
    if (each->opcode != IBV_WR_BIND_MW) continue;
    const auto is_it = [&](const auto& entry) { return entry.second == each->bind_mw.mw; };
    require(std::any_of(windows_.begin(), windows_.end(), is_it), "a request binds a window that has been deallocated");
    require(each->bind_mw.mw->type == IBV_MW_TYPE_2, "a window of type 1 is bound by a request");
  }
  return post(*static_cast<pair*>(item), first, refused);
}

int rdma::wr_flush(ibv_qp* item, const ibv_send_wr& what) noexcept {
  require(what.opcode == net::verbs::wr_flush_opcode, "ibv_wr_flush(3) is for FLUSH");
  return post_alone(*static_cast<pair*>(item), what, net::verbs::with_flush);
}

int rdma::wr_atomic_write(ibv_qp* item, const ibv_send_wr& what) noexcept {
  require(what.opcode == net::verbs::wr_atomic_write_opcode && what.num_sge == 1 && what.sg_list->length == 8 &&
              what.wr.rdma.remote_addr % 8 == 0,
          "ibv_wr_atomic_write(3) is for eight bytes at a multiple of eight");
  return post_alone(*static_cast<pair*>(item), what, net::verbs::with_atomic_write);
}

int rdma::post_alone(pair& to, const ibv_send_wr& what, std::uint64_t operation) {
  require((to.operations & operation) != 0, "a FLUSH or an ATOMIC WRITE on a queue pair that was made for none");
  ++doorbells_;
  ibv_send_wr alone = what;
  alone.next = nullptr;
  ibv_send_wr* refused = nullptr;
  return post(to, &alone, &refused);
}

int rdma::post(pair& to, ibv_send_wr* first, ibv_send_wr** refused) {
  require(to.state == IBV_QPS_RTS || to.state == IBV_QPS_ERR, "a request is posted before the queue pair is ready");
  if (to.state == IBV_QPS_ERR && traits_.refuses_behind_end) {
    *refused = first;
    return -ENOTCONN;
  }
  for (ibv_send_wr* each = first; each != nullptr; each = each->next) {
    const bool chosen = to.post_to_fail != 0 && --to.post_to_fail == 0;
    if (chosen) strike(to.failing_port);
    if (chosen || fails()) {
      *refused = each;
      kick(to);
      return -ENOMEM;
    }
    // One that asks for no memory may be a mark behind which everything has been flushed.
    require(!to.ended_by_owner || each->num_sge == 0, "a request is posted to a queue pair that was ended");
    const std::uint64_t posted = to.first_request + to.requests.size();
    require(posted - to.retired < to.most.max_send_wr, "a send queue of {} overflows", to.most.max_send_wr);
    to.requests.push_back(make_request(to, *each));
  }
  if (to.state == IBV_QPS_ERR) {
    flush_later(to);
  } else {
    kick(to);
  }
  return 0;
}

int rdma::post_recv(ibv_qp* item, ibv_recv_wr* first, ibv_recv_wr** refused) noexcept {
  auto& to = *static_cast<pair*>(item);
  require(to.srq == nullptr, "a receive is posted to a queue pair with shared ones");
  require(to.state != IBV_QPS_RESET, "a receive is posted before the queue pair is initialized");
  for (ibv_recv_wr* each = first; each != nullptr; each = each->next) {
    if (fails()) {
      *refused = each;
      return -ENOMEM;
    }
    require(!to.ended_by_owner, "a receive is posted to a queue pair that was ended");
    require(to.receives_held < to.most.max_recv_wr, "a receive queue of {} overflows", to.most.max_recv_wr);
    ++to.receives_held;
    to.receives.push_back(make_receive(*each, to.pd));
    use(to.receives.back().parts, to.pd, 1);
    if (to.state != IBV_QPS_ERR) continue;
    if (traits_.keeps_late_receives) {
      ++to.stuck;
    } else {
      flush_later(to);
    }
  }
  return 0;
}

// ---- on the way ----

rdma::path* rdma::way_of(const pair& from) noexcept {
  for (const auto& [port, way] : paths_) {
    if (way->client == from.name() || way->server == from.name()) return way.get();
  }
  return nullptr;
}

void rdma::kick(pair& from) {
  if (from.delivering || from.state != IBV_QPS_RTS) return;
  if (from.delivered == from.first_request + from.requests.size()) return;
  from.delivering = true;
  later(some_delay(), from, traits_.is_iwarp ? &rdma::transmit : &rdma::deliver);
}

void rdma::deliver(pair& from) {
  from.delivering = false;
  if (from.state != IBV_QPS_RTS || removed_) return;
  const std::size_t index = from.delivered - from.first_request;
  if (index >= from.requests.size()) return;
  request& what = from.requests[index];
  if (what.is_local()) {
    what.answered = execute_here(from, what);
    ++from.delivered;
    finish(from);
    return kick(from);
  }
  if (what.takes_resource()) {
    require(from.most_asking != 0, "a read, though none was agreed on");
    if (from.asking >= from.most_asking) return;  // goes on with an answer
  }
  pair* const to = hearing_peer(from);
  const bool lost = traits_.loses_empty_packets && what.bytes == 0;
  if (to == nullptr || lost) return retry(from);
  path* const way = way_of(from);
  if (way != nullptr && way->free_from > place_.now()) {
    from.delivering = true;
    return later(way->free_from - place_.now(), from, &rdma::deliver);
  }
  if (traits_.bytes_per_us != 0 && !std::exchange(what.has_taken_time, true)) {
    from.delivering = true;
    return later(duration(1000 * what.bytes / traits_.bytes_per_us), from, &rdma::deliver);
  }
  from.attempts = 0;
  greet(*to);
  if (!what.copied) {
    check_local(what.parts, from.pd, what.asks());
    require(what.asks() || content_of(what.parts) == what.content, "memory has changed before it was sent");
  }
  const std::uint64_t sequence = from.delivered;
  switch (execute(what, *to)) {
    case verdict::done:
      ++from.delivered;
      if (what.takes_resource()) ++from.asking;
      answer_later(from, sequence, IBV_WC_SUCCESS);
      return kick(from);
    case verdict::unfinished:
      from.delivering = true;
      return later(some_delay(), from, &rdma::deliver);
    case verdict::no_receive:
      require(to->srq != nullptr, "a message finds no receive: it is one more than there are credits");
      require(from.rnr_retries == 7, "a queue pair that waits for receives {} times only", from.rnr_retries);
      repeat_from(from, index);
      from.delivering = true;
      return later(rnr_time(to->rnr_timer), from, &rdma::deliver);
    case verdict::refused:
      refuse(*to);
      from.delivering = true;  // for good: its answer ends it
      return answer_later(from, sequence, IBV_WC_REM_ACCESS_ERR);
  }
}

rdma::pair* rdma::hearing_peer(const pair& of) noexcept {
  const path* const way = way_of(of);
  if (port_is_down_ || (way != nullptr && way->is_cut)) return nullptr;
  pair* const to = find_pair(of.peer);
  if (to == nullptr || to->peer != of.qp_num) return nullptr;
  return to->state == IBV_QPS_RTR || to->state == IBV_QPS_RTS ? to : nullptr;
}

// rdma_rxe goes ahead while it waits for an answer. If that says to begin anew, it does so with everything behind, and
// a window that is bound cannot be bound.
void rdma::repeat_from(pair& from, std::size_t index) {
  if (!traits_.like_rxe) return;
  for (; index < from.requests.size(); ++index) from.requests[index].repeated = true;
}

// The first request may come before the connection manager's last word.
void rdma::greet(pair& to) {
  if (std::exchange(to.told_of_peer, true)) return;
  for (const auto& [number, each] : ids_) {
    if (each->own.number == to.qp_num && each->now == identity::state::replied) return raise(to, IBV_EVENT_COMM_EST);
  }
}

void rdma::retry(pair& from) {
  repeat_from(from, from.delivered - from.first_request);
  from.delivering = true;
  later(answer_time(from.timeout), from, from.attempts++ < from.retries ? &rdma::deliver : &rdma::give_up_waiting);
}

void rdma::give_up_waiting(pair& from) {
  if (from.state == IBV_QPS_RTS && !from.requests.empty()) end_front(from, IBV_WC_RETRY_EXC_ERR);
}

// ---- at the peer ----

rdma::verdict rdma::execute(request& what, pair& to) {
  if (is_write(what.opcode)) return place_write(what, to);
  if (what.opcode == net::verbs::wr_flush_opcode) return store(what, to);
  if (what.opcode == net::verbs::wr_atomic_write_opcode) return place_word(what, to);
  if (!what.asks()) return take_message(what, to);
  if (what.opcode == IBV_WR_RDMA_READ) {
    // rxe looks for the key of what it answers again, even if nothing was read.
    if (what.bytes == 0) return traits_.like_rxe && what.repeated && what.key == 0 ? verdict::refused : verdict::done;
    const std::byte* const source = open_to_peer(to, what.key, what.address, what.bytes, IBV_ACCESS_REMOTE_READ);
    if (source == nullptr) return verdict::refused;
    what.data.assign(source, source + what.bytes);
    return verdict::done;
  }
  std::byte* const target = open_to_peer(to, what.key, what.address, 8, IBV_ACCESS_REMOTE_ATOMIC);
  if (target == nullptr || what.address % 8 != 0) return verdict::refused;
  std::uint64_t value = 0;
  std::memcpy(&value, target, sizeof value);
  what.data.assign(target, target + sizeof value);
  const bool swaps = what.opcode == IBV_WR_ATOMIC_CMP_AND_SWP;
  if (!swaps) value += what.compare;
  if (swaps && value == what.compare) value = what.operand;
  std::memcpy(target, &value, sizeof value);
  return verdict::done;
}

rdma::verdict rdma::place_word(const request& what, const pair& to) {
  std::byte* const target = open_to_peer(to, what.key, what.address, what.bytes, IBV_ACCESS_REMOTE_WRITE);
  if (target == nullptr) return verdict::refused;
  std::memcpy(target, what.data.data(), what.bytes);
  ++atomic_writes_;
  return verdict::done;
}

rdma::verdict rdma::store(const request& what, const pair& to) {
  const std::byte* const from =
      open_to_peer(to, what.key, what.address, what.compare, net::verbs::access_flush_persistent);
  if (from == nullptr) return verdict::refused;
  for (const std::byte& each : std::span(from, what.compare)) stored_[&each] = each;
  return verdict::done;
}

bool rdma::is_persistent(std::span<const std::byte> memory) const {
  return std::all_of(memory.begin(), memory.end(), [this](const std::byte& each) {
    const auto found = stored_.find(&each);
    return found != stored_.end() && found->second == each;
  });
}

void rdma::refuse(pair& at) {
  if (traits_.tells_of_refusals) raise(at, IBV_EVENT_QP_ACCESS_ERR);
  fail_pair(at);
}

rdma::verdict rdma::place_write(request& what, pair& to) {
  if (what.placed < what.bytes) {
    // In each part anew: memory may be taken back in between.
    std::byte* const target = open_to_peer(to, what.key, what.address, what.bytes, IBV_ACCESS_REMOTE_WRITE);
    if (target == nullptr) return verdict::refused;
    std::size_t count = what.bytes - what.placed;
    if (count > packet_bytes && dice_.one_in(3)) count = packet_bytes + dice_.below(count - packet_bytes);
    if (what.copied) {
      std::memcpy(target + what.placed, what.data.data() + what.placed, count);
    } else {
      const std::vector<std::byte> data = collect(what.parts, what.placed, count);
      std::memcpy(target + what.placed, data.data(), count);
    }
    what.placed += count;
    if (what.placed < what.bytes) return verdict::unfinished;
  }
  return what.opcode == IBV_WR_RDMA_WRITE ? verdict::done : take_message(what, to);
}

rdma::verdict rdma::take_message(request& what, pair& to) {
  if (!to.incoming) {
    auto& waiting = to.srq != nullptr ? static_cast<shared_queue*>(to.srq)->waiting : to.receives;
    if (waiting.empty()) return verdict::no_receive;
    to.incoming = std::move(waiting.front());
    waiting.pop_front();
  }
  if (is_write(what.opcode)) return end_message(what, to);
  const std::uint64_t room = size_of(to.incoming->parts);
  require(what.bytes <= room, "a message of {} bytes for a receive of {}", what.bytes, room);
  check_local(to.incoming->parts, to.incoming->domain, true);
  std::size_t count = what.bytes - what.placed;
  if (count > packet_bytes && dice_.one_in(2)) count = packet_bytes;
  const std::vector<std::byte> data = what.copied ? what.data : collect(what.parts, 0, what.bytes);
  scatter(to.incoming->parts, what.placed, std::span(data).subspan(what.placed, count));
  what.placed += count;
  return what.placed < what.bytes ? verdict::unfinished : end_message(what, to);
}

rdma::verdict rdma::end_message(const request& what, pair& to) {
  const bool by_write = is_write(what.opcode);
  if (what.opcode == IBV_WR_SEND_WITH_INV && !invalidate(to, what.word)) return verdict::refused;
  ibv_wc told =
      completion_of(to.incoming->id, to.qp_num, IBV_WC_SUCCESS, by_write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV);
  told.byte_len = static_cast<std::uint32_t>(what.bytes);
  if (by_write || what.opcode == IBV_WR_SEND_WITH_IMM) {
    told.wc_flags |= IBV_WC_WITH_IMM;
    told.imm_data = what.word;
  }
  if (what.opcode == IBV_WR_SEND_WITH_INV) {
    told.wc_flags |= traits_.like_rxe ? unsigned{IBV_WC_IP_CSUM_OK} : unsigned{IBV_WC_WITH_INV};
    told.invalidated_rkey = what.word;
  }
  use(to.incoming->parts, to.incoming->domain, -1);
  to.incoming.reset();
  complete(*static_cast<queue*>(to.recv_cq), to, told, false, 0);
  return verdict::done;
}

std::byte* rdma::open_to_peer(const pair& at, std::uint32_t key, std::uint64_t address, std::uint64_t bytes,
                              unsigned right) noexcept {
  if ((at.rights & right) == 0) return nullptr;
  const auto within = [&](std::uint64_t start, std::uint64_t length) {
    return address >= start && address - start <= length && bytes <= length - (address - start);
  };
  const region* behind = nullptr;
  if (const auto found = remote_keys_.find(key); found != remote_keys_.end()) {
    behind = found->second;
    if ((behind->rights & right) == 0) return nullptr;
  } else if (const auto seen = windows_.find(key & key_index); seen != windows_.end()) {
    const window& through = *seen->second;
    if (through.key != key || through.bound == nullptr) return nullptr;
    if (through.type == IBV_MW_TYPE_2 && through.pair != at.qp_num) return nullptr;
    if ((through.rights & right) == 0) return nullptr;
    // rxe looks at the region alone.
    if (!traits_.like_rxe && !within(through.address, through.length)) return nullptr;
    behind = through.bound;
  }
  if (behind == nullptr || behind->pd != at.pd || !within(behind->iova, behind->length)) return nullptr;
  return static_cast<std::byte*>(behind->addr) + (address - behind->iova);
}

bool rdma::invalidate(pair& at, std::uint32_t key) noexcept {
  const auto found = windows_.find(key & key_index);
  if (found == windows_.end()) return false;
  window& gone = *found->second;
  if (gone.key != key || gone.bound == nullptr || gone.pair != at.qp_num) return false;
  --gone.bound->windows;
  --at.windows;
  gone.bound = nullptr;
  return true;
}

ibv_wc_status rdma::execute_here(pair& on, const request& what) {
  const bool done = what.opcode == IBV_WR_BIND_MW ? bind(on, what) : invalidate(on, what.key);
  return done ? IBV_WC_SUCCESS : IBV_WC_MW_BIND_ERR;
}

bool rdma::bind(pair& on, const request& what) {
  window* const item = what.which;
  if (item == nullptr || item->pd != on.pd || what.repeated) return false;
  require(item->bound == nullptr, "a window is bound that is bound");
  require((what.key & key_index) == (item->key & key_index) && what.key != item->key,
          "a window is bound with a key that is not one of its new ones");
  // iw_cxgb4 looks at it.
  require(!traits_.is_iwarp || item->type == IBV_MW_TYPE_2 || (on.rights & IBV_ACCESS_MW_BIND) != 0,
          "a window is bound through a queue pair that is not to bind any");
  const auto alive = [&](const auto& entry) { return entry.second == what.bound.mr; };
  if (std::none_of(local_keys_.begin(), local_keys_.end(), alive)) return false;
  auto& behind = *static_cast<region*>(what.bound.mr);
  constexpr unsigned writes = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
  const unsigned needed =
      IBV_ACCESS_MW_BIND | ((what.bound.mw_access_flags & writes) != 0 ? IBV_ACCESS_LOCAL_WRITE : 0);
  if (behind.pd != on.pd || (behind.rights & needed) != needed) return false;
  const std::uint64_t offset = what.bound.addr - behind.iova;
  if (what.bound.addr < behind.iova || offset > behind.length || what.bound.length > behind.length - offset)
    return false;
  item->key = what.key;
  item->bound = &behind;
  item->address = what.bound.addr;
  item->length = what.bound.length;
  item->rights = what.bound.mw_access_flags;
  ++behind.windows;
  if (item->type == IBV_MW_TYPE_1) return true;  // of all queue pairs
  item->pair = on.qp_num;
  ++on.windows;
  return true;
}

// ---- and back ----

void rdma::answer_later(pair& to, std::uint64_t sequence, ibv_wc_status status) {
  to.last_answer = std::max(to.last_answer, place_.now() + some_delay());
  later(to.last_answer - place_.now(), [this, name = to.name(), sequence, status] {
    if (pair* const found = find_pair(name)) answer(*found, sequence, status);
  });
}

void rdma::answer(pair& to, std::uint64_t sequence, ibv_wc_status status) {
  if (to.state != IBV_QPS_RTS || removed_) return;
  const bool unheard = sequence < to.answered_again || (to.hears_nothing && status == IBV_WC_SUCCESS);
  if (unheard) return;
  request& asked = to.requests[sequence - to.first_request];
  const path* const way = way_of(to);
  const bool is_cut = way != nullptr && way->is_cut && (asked.asks() || !traits_.completes_when_sent);
  if (is_cut && traits_.is_iwarp) return;  // TCP tries for longer than anybody waits
  if (is_cut) {                            // it asks again, and gives up in the end
    return later(answer_time(to.timeout) * (to.retries + 1), to, &rdma::give_up_waiting);
  }
  const unsigned losses = status == IBV_WC_SUCCESS ? traits_.one_answer_lost_in : 0;
  if (losses != 0 && dice_.one_in(losses)) {
    to.hears_nothing = true;
    return later(answer_time(to.timeout), to, &rdma::ask_again);
  }
  asked.answered = status;
  finish(to);
  kick(to);
}

void rdma::ask_again(pair& from) {
  if (from.state != IBV_QPS_RTS || removed_) return;
  pair* const to = hearing_peer(from);
  if (to == nullptr) {
    return later(answer_time(from.timeout), from,
                 from.attempts++ < from.retries ? &rdma::ask_again : &rdma::give_up_waiting);
  }
  from.attempts = 0;
  from.hears_nothing = false;
  from.answered_again = from.delivered;
  repeat_from(from, 0);
  answer_again(from, *to);
  finish(from);
  kick(from);
}

// What has been done is not done twice, but for reads: those read what is there now.
void rdma::answer_again(pair& from, pair& to) {
  bool unasked = false;  // something that asks for nothing is among them
  for (std::uint64_t sequence = from.first_request; sequence < from.answered_again; ++sequence) {
    request& each = from.requests[sequence - from.first_request];
    // rdma_rxe goes by the number of an answer alone. To what asks for nothing it gives that of the last request done.
    const bool is_last = sequence + 1 == from.answered_again;
    const bool mistaken = traits_.like_rxe && is_last && unasked && each.asks() && each.bytes <= packet_bytes;
    if (mistaken) each.data.clear();
    if (each.is_local()) {
      if (traits_.like_rxe) each.answered = IBV_WC_MW_BIND_ERR;
    } else {
      const bool reads = each.opcode == IBV_WR_RDMA_READ && !mistaken;
      const bool refused = reads && execute(each, to) == verdict::refused;
      each.answered = refused ? IBV_WC_REM_ACCESS_ERR : IBV_WC_SUCCESS;
      if (refused) return refuse(to);
      unasked = unasked || !each.asks();
    }
  }
}

// In order, with most of them.
void rdma::finish(pair& of) {
  while (of.state == IBV_QPS_RTS && !of.requests.empty() && of.requests.front().answered) {
    const ibv_wc_status status = *of.requests.front().answered;
    if (status == IBV_WC_SUCCESS && !of.requests.front().told) take_effect(of, of.requests.front());
    end_front(of, status);
  }
  if (!traits_.completes_out_of_order || of.state != IBV_QPS_RTS) return;
  for (std::size_t i = 0; i != of.requests.size(); ++i) {
    request& each = of.requests[i];
    if (each.answered != IBV_WC_SUCCESS || each.told) continue;
    take_effect(of, each);
    complete_request(of, each, of.first_request + i, IBV_WC_SUCCESS);
    each.told = true;
  }
}

void rdma::take_effect(pair& of, const request& what) {
  if (what.takes_resource()) --of.asking;
  if (what.asks()) {
    check_local(what.parts, of.pd, true);
    scatter(what.parts, 0, what.data);
  } else if (!what.copied && !what.is_local()) {
    check_local(what.parts, of.pd, false);
    require(content_of(what.parts) == what.content, "memory has changed before its request has completed");
  }
}

void rdma::end_front(pair& of, ibv_wc_status status) {
  const request gone = std::move(of.requests.front());
  of.requests.pop_front();
  const std::uint64_t sequence = of.first_request++;
  of.delivered = std::max(of.delivered, of.first_request);
  complete_request(of, gone, sequence, status);
  if (status != IBV_WC_SUCCESS) fail_pair(of);
}

void rdma::complete_request(pair& of, const request& what, std::uint64_t sequence, ibv_wc_status status) {
  if (what.told) return;
  if (!what.copied) use(what.parts, of.pd, -1);
  if (status == IBV_WC_SUCCESS && !what.signaled) return;
  ++completions_;
  const ibv_wc told = completion_of(what.id, of.qp_num, status, opcode_of(what.opcode));
  complete(*static_cast<queue*>(of.send_cq), of, told, true, sequence);
}

// ---- the end ----

void rdma::fail_pair(pair& which) {
  if (which.state == IBV_QPS_ERR) return;
  if (which.out != nullptr) return hang_up(which, false);
  which.state = IBV_QPS_ERR;
  flush_later(which);
}

void rdma::flush_later(pair& which) {
  if (which.flushing || (removed_ && !flushes_when_removed_)) return;
  which.flushing = true;
  later(some_delay(), which, &rdma::flush);
}

void rdma::flush_receive(pair& which, const receive& item) {
  use(item.parts, item.domain, -1);
  complete(*static_cast<queue*>(which.recv_cq), which,
           completion_of(item.id, which.qp_num, IBV_WC_WR_FLUSH_ERR, IBV_WC_RECV), false, 0);
}

// Of each queue in order; which queue comes first is nobody's business, but what the queue pair has taken of shared
// receives comes before what is posted last to the other queue.
void rdma::flush(pair& which) {
  which.flushing = false;
  if (which.incoming) {
    const receive taken = std::move(*which.incoming);
    which.incoming.reset();
    flush_receive(which, taken);
  }
  const auto flush_receives = [&] {
    while (which.receives.size() > which.stuck) {
      const receive first = std::move(which.receives.front());
      which.receives.pop_front();
      flush_receive(which, first);
    }
  };
  const bool receives_first = dice_.one_in(2);
  if (receives_first) flush_receives();
  while (!which.requests.empty()) {
    const request first = std::move(which.requests.front());
    which.requests.pop_front();
    complete_request(which, first, which.first_request++, IBV_WC_WR_FLUSH_ERR);
  }
  which.delivered = which.first_request;
  if (!receives_first) flush_receives();
  if (which.srq != nullptr && !traits_.like_rxe && !std::exchange(which.told_of_last, true)) {
    raise(which, IBV_EVENT_QP_LAST_WQE_REACHED);
  }
}

}  // namespace weft::sim
