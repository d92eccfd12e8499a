// SPDX-License-Identifier: Apache-2.0
// The device itself: memory, completion queues, queue pairs as objects.
#include <arpa/inet.h>

#include "rdma_parts.hpp"

namespace weft::sim {
namespace {

using net::verbs::window_kind;

// Some are like the kernel's siw, which has neither windows nor atomic operations, and completes as it likes.
void make_iwarp(rdma_traits& made, random& dice) {
  made.is_iwarp = true;
  made.like_rxe = made.has_atomics = false;
  const bool like_siw = dice.one_in(2);
  made.windows = like_siw ? window_kind::none
                          : std::array{window_kind::none, window_kind::type_1, window_kind::type_2b}[dice.below(3)];
  made.completes_out_of_order = made.refuses_behind_end = made.keeps_late_receives = like_siw;
  made.completes_when_sent = like_siw || dice.one_in(2);
  made.stream_bytes = dice.one_in(4) ? dice.between(1, 500) : 1024U << dice.below(8);
}

rdma_traits choose_traits(random& dice) {
  rdma_traits made{.like_rxe = dice.one_in(3),
                   .most_inline = std::array{0U, 64U, 128U, 512U}[dice.below(4)],
                   .most_parts = static_cast<int>(4 + dice.below(8)),
                   .most_entries = dice.one_in(2) ? 120 : 4096};
  made.leaves_completions = made.like_rxe || dice.one_in(2);
  made.tells_of_refusals = !made.like_rxe && dice.one_in(2);
  made.loses_events = dice.one_in(8);
  made.keeps_late_receives = made.like_rxe;
  if (dice.one_in(4)) {
    make_iwarp(made, dice);
  } else if (!made.like_rxe) {
    constexpr std::array kinds{window_kind::none, window_kind::type_1, window_kind::type_2a, window_kind::type_2b};
    made.windows = kinds[std::min<std::size_t>(dice.below(8), 3)];
    made.has_atomics = !dice.one_in(8);
  }
  if (!made.is_iwarp && dice.one_in(3)) made.one_answer_lost_in = static_cast<unsigned>(dice.between(3, 40));
  return made;
}

unsigned flags_of(window_kind windows) noexcept {
  unsigned flags = windows == window_kind::none ? 0U : unsigned{IBV_DEVICE_MEM_WINDOW};
  if (windows == window_kind::type_2a) flags |= IBV_DEVICE_MEM_WINDOW_TYPE_2A;
  if (windows == window_kind::type_2b) flags |= IBV_DEVICE_MEM_WINDOW_TYPE_2B;
  return flags;
}

// How long a completion may lie before somebody looks. Executors look now and then even if no event has come.
constexpr duration longest_look = std::chrono::milliseconds(100);
constexpr duration longest_look_without_event = std::chrono::milliseconds(700);

}  // namespace

rdma::rdma(world& place) : rdma(place, random(place.dice().next()), nullptr) {}

rdma::rdma(world& place, const rdma_traits& like) : rdma(place, random(place.dice().next()), &like) {}

rdma::rdma(world& place, random dice, const rdma_traits* like)
    : place_(place), dice_(dice), traits_(like != nullptr ? *like : choose_traits(dice_)) {
  std::strncpy(device_.name, device_name, sizeof device_.name - 1);
  device_.transport_type = traits_.is_iwarp ? IBV_TRANSPORT_IWARP : IBV_TRANSPORT_IB;
  device_.node_type = traits_.is_iwarp ? IBV_NODE_RNIC : IBV_NODE_CA;
  device_list_[0] = &device_;
  manager_context_.device = &device_;
  std::strncpy(other_device_.name, other_device_name, sizeof other_device_.name - 1);
  other_context_.device = &other_device_;
  place_.on_unmapping = [this, before = std::move(place_.on_unmapping)](const void* address, std::size_t bytes) {
    if (before) before(address, bytes);  // of another device
    check_unmapping(address, bytes);
  };
}

rdma::~rdma() { place_.on_unmapping = nullptr; }

void rdma::later(duration how_long, std::function<void()> what) {
  place_.at(place_.elapsed() + how_long, std::move(what));
}

template <class Object>
Object* rdma::make_in(ibv_pd* domain) {
  auto* const made = new Object{};
  made->context = domain->context;
  made->pd = domain;
  ++static_cast<protection*>(domain)->children;
  return made;
}

template <class Object>
int rdma::destroy(Object* gone) {
  --static_cast<protection*>(gone->pd)->children;
  delete gone;
  return 0;
}

// The libraries free nothing that the kernel has not: ibv_destroy_qp(3) and the others fail with EIO.
void rdma::bury() noexcept {
  const auto free_all = [](auto& all) {
    for (auto* const item : all) delete item;
    all.clear();
  };
  const auto free_values = [](auto& all) {
    for (const auto& [key, item] : all) delete item;
    all.clear();
  };
  for (const channel* item : channels_) place_.close_source(item->fd);
  for (const context* item : contexts_) place_.close_source(item->async_fd);
  free_values(pairs_);
  free_values(windows_);
  free_values(local_keys_);
  free_values(queues_);
  free_all(shared_queues_);
  free_all(channels_);
  free_all(domains_);
  free_all(contexts_);
}

std::string rdma::leaks() {
  if (removed_) bury();
  std::string found;
  const auto add = [&found](std::size_t count, const char* what) {
    if (count != 0) found += fmt::format("{} {} are left; ", count, what);
  };
  add(contexts_.size(), "opened devices");
  add(domains_.size(), "protection domains");
  add(local_keys_.size(), "memory regions");
  add(windows_.size(), "memory windows");
  add(channels_.size(), "completion channels");
  add(queues_.size(), "completion queues");
  add(shared_queues_.size(), "shared receive queues");
  add(pairs_.size(), "queue pairs");
  add(event_queues_.size(), "event channels");
  add(ids_.size(), "ids");
  add(events_out_, "events that nobody has acknowledged");
  return found;
}

void rdma::check_unmapping(const void* address, std::size_t bytes) {
  if (removed_) return;
  const auto from = reinterpret_cast<std::uintptr_t>(address);
  for (const auto& [key, item] : local_keys_) {
    if ((item->rights & IBV_ACCESS_ON_DEMAND) != 0) continue;  // it looks for the pages as it comes to them
    const auto start = reinterpret_cast<std::uintptr_t>(item->addr);
    require(start + item->length <= from || from + bytes <= start, "memory is unmapped that is still registered");
  }
}

// ---- the device ----

int rdma::get_device_list(int* count, ibv_device*** list) noexcept {
  *count = 1;
  *list = device_list_.data();
  return 0;
}

int rdma::open_device(ibv_device* which, ibv_context** opened) noexcept {
  if (fails()) return -EMFILE;
  auto* const made = new context;
  made->device = which;
  made->async_fd = place_.open_source(*made);
  contexts_.insert(made);
  *opened = made;
  return 0;
}

int rdma::close_device(ibv_context* item) noexcept {
  if (removed_) return -EIO;
  auto* const gone = static_cast<context*>(item);
  require(gone->domains == 0 && gone->queues == 0, "it is closed before what was made on it is destroyed");
  place_.close_source(gone->async_fd);
  contexts_.erase(gone);
  delete gone;
  return 0;
}

int rdma::query_device(ibv_context*, ibv_device_attr* found) noexcept {
  if (fails()) return -EIO;
  *found = {};
  found->phys_port_cnt = 1;
  found->atomic_cap = traits_.has_atomics ? IBV_ATOMIC_HCA : IBV_ATOMIC_NONE;
  found->device_cap_flags = flags_of(traits_.windows);
  found->max_mw = traits_.windows == window_kind::none ? 0 : 100'000;
  found->vendor_id = traits_.like_rxe ? 0xFF'FFFF : 0x02'C9;
  found->max_cqe = traits_.most_entries;
  found->max_qp_wr = 1024;
  found->max_sge = traits_.most_parts;
  found->max_sge_rd = traits_.is_iwarp ? 1 : traits_.most_parts;
  found->max_mr = 100'000;
  found->max_mr_size = std::uint64_t{1} << 40;
  found->max_qp_rd_atom = found->max_qp_init_rd_atom = 16;
  found->max_srq = 100;
  found->max_srq_wr = 1024;
  return 0;
}

int rdma::query_device_ex(ibv_context*, ibv_device_attr_ex* found) noexcept {
  *found = {};
  if (traits_.has_flush) found->device_cap_flags_ex |= net::verbs::can_flush_persistent;
  if (traits_.has_atomic_write) found->device_cap_flags_ex |= net::verbs::can_write_atomically;
  if (!pages_on_demand()) return 0;
  found->odp_caps.general_caps = IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT;
  found->odp_caps.per_transport_caps.rc_odp_caps =
      IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ |
      (traits_.has_atomics ? unsigned{IBV_ODP_SUPPORT_ATOMIC} : 0U) | IBV_ODP_SUPPORT_SRQ_RECV;
  return 0;
}

int rdma::query_port(ibv_context*, std::uint8_t, ibv_port_attr* found) noexcept {
  if (fails()) return -EIO;
  *found = {};
  found->state = IBV_PORT_ACTIVE;
  found->max_msg_sz = 1U << 30;
  found->gid_tbl_len = 1;
  return 0;
}

int rdma::query_gid(ibv_context*, std::uint8_t, int, ibv_gid* found) noexcept {
  *found = {};
  if (traits_.is_iwarp) {  // the hardware address of an interface, which no machine has
    found->raw[0] = 0x02;
    return 0;
  }
  found->raw[10] = found->raw[11] = 0xFF;
  const std::uint32_t host = htonl(INADDR_LOOPBACK);
  std::memcpy(found->raw + 12, &host, sizeof host);
  return 0;
}

int rdma::alloc_pd(ibv_context* where, ibv_pd** made) noexcept {
  if (fails()) return -ENOMEM;
  auto* const item = new protection{};
  item->context = where;
  ++static_cast<context*>(where)->domains;
  domains_.insert(item);
  *made = item;
  return 0;
}

int rdma::dealloc_pd(ibv_pd* item) noexcept {
  if (removed_) return -EIO;
  auto* const gone = static_cast<protection*>(item);
  require(gone->children == 0, "a protection domain is deallocated before {} objects in it", gone->children);
  --static_cast<context*>(gone->context)->domains;
  domains_.erase(gone);
  delete gone;
  return 0;
}

// ---- events about it ----

unsigned& rdma::unacknowledged(const ibv_async_event& what) noexcept {
  switch (what.event_type) {
    case IBV_EVENT_CQ_ERR:
      return static_cast<queue*>(what.element.cq)->async_out;
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED:
      return static_cast<shared_queue*>(what.element.srq)->async_out;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
    case IBV_EVENT_COMM_EST:
      return static_cast<pair*>(what.element.qp)->async_out;
    default:
      return device_events_out_;
  }
}

void rdma::raise(pair& about, ibv_event_type what) {
  static_cast<context*>(about.context)->events.push_back({.element = {.qp = &about}, .event_type = what});
}

void rdma::tell_all(ibv_event_type what) {
  ibv_async_event made{};
  made.event_type = what;
  made.element.port_num = 1;
  for (context* const each : contexts_) each->events.push_back(made);
}

// The kernel drops what nobody has read of an object that goes.
void rdma::purge_events(context& where, const void* about) {
  std::erase_if(where.events, [about](const ibv_async_event& item) { return item.element.cq == about; });
}

int rdma::get_async_event(ibv_context* where, ibv_async_event* found) noexcept {
  auto& from = *static_cast<context*>(where);
  if (from.events.empty()) return from.lost ? -EIO : -EAGAIN;
  *found = from.events.front();
  from.events.pop_front();
  ++unacknowledged(*found);
  return 0;
}

void rdma::ack_async_event(ibv_async_event* what) noexcept { --unacknowledged(*what); }

// ---- memory ----

int rdma::reg_mr(ibv_pd* domain, void* memory, std::size_t bytes, std::uint64_t iova, unsigned access,
                 ibv_mr** made) noexcept {
  constexpr unsigned writes = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
  if (removed_) return -EIO;
  if (fails()) return -ENOMEM;
  if ((access & writes) != 0 && (access & IBV_ACCESS_LOCAL_WRITE) == 0) return -EINVAL;
  if ((access & net::verbs::access_flush_persistent) != 0 && !traits_.has_flush) return -EINVAL;
  if ((access & IBV_ACCESS_ON_DEMAND) != 0 && !pages_on_demand()) return -EOPNOTSUPP;
  if (bytes == SIZE_MAX) {  // implicit paging on demand: ibv_reg_mr(3)
    if (memory != nullptr || (access & IBV_ACCESS_ON_DEMAND) == 0) return -EINVAL;
    constexpr unsigned of_peers = writes | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_MW_BIND;
    require((access & of_peers) == 0, "all memory of a process is opened to its peers");
  }
  auto* const item = make_in<region>(domain);
  item->addr = memory;
  item->length = bytes;
  item->iova = iova;
  item->rights = access;
  const std::uint32_t index = next_key_++ << 8;
  item->lkey = index | 0x11;
  item->rkey = index | 0x22;
  local_keys_[item->lkey] = item;
  remote_keys_[item->rkey] = item;
  *made = item;
  return 0;
}

int rdma::dereg_mr(ibv_mr* item) noexcept {
  if (executor::current() != nullptr) ++hold_ups_;
  if (removed_) return -EIO;
  auto* const gone = static_cast<region*>(item);
  require(gone->uses == 0, "memory is deregistered that {} requests or receives may still use", gone->uses);
  require(gone->windows == 0, "memory is deregistered that {} windows are bound to", gone->windows);
  local_keys_.erase(gone->lkey);
  remote_keys_.erase(gone->rkey);
  return destroy(gone);
}

std::size_t rdma::open_windows() const noexcept {
  const auto is_open = [](const auto& entry) { return entry.second->bound != nullptr; };
  return static_cast<std::size_t>(std::count_if(windows_.begin(), windows_.end(), is_open));
}

int rdma::alloc_mw(ibv_pd* domain, ibv_mw_type type, ibv_mw** made) noexcept {
  if (fails()) return -ENOMEM;
  require(traits_.windows != window_kind::none, "it has no windows");
  require((type == IBV_MW_TYPE_2) == has_windows_of_one_peer(), "it has no windows of type {}",
          type == IBV_MW_TYPE_2 ? 2 : 1);
  auto* const item = make_in<window>(domain);
  item->type = type;
  item->rkey = item->key = (next_key_++ << 8) | 0x33;
  windows_[item->key & key_index] = item;
  *made = item;
  return 0;
}

int rdma::dealloc_mw(ibv_mw* item) noexcept {
  if (executor::current() != nullptr) ++hold_ups_;
  if (removed_) return -EIO;
  auto* const gone = static_cast<window*>(item);
  if (gone->bound != nullptr) {
    --gone->bound->windows;
    if (pair* const on = find_pair(gone->pair)) --on->windows;
  }
  for (auto& [number, each] : pairs_) {
    for (request& posted : each->requests) {
      if (posted.which == gone) posted.which = nullptr;  // its binding fails
    }
  }
  windows_.erase(gone->key & key_index);
  return destroy(gone);
}

// Of type 1. The key is there at once, and opens something once the request has been carried out.
int rdma::bind_mw(ibv_qp* through, ibv_mw* item, ibv_mw_bind* wanted) noexcept {
  require(item->type == IBV_MW_TYPE_1, "a window of type 2 is bound by a call");
  ibv_send_wr wr{};
  wr.wr_id = wanted->wr_id;
  wr.opcode = IBV_WR_BIND_MW;
  wr.send_flags = wanted->send_flags;
  wr.bind_mw.mw = item;
  wr.bind_mw.rkey = ibv_inc_rkey(item->rkey);
  wr.bind_mw.bind_info = wanted->bind_info;
  ibv_send_wr* refused = nullptr;
  const int result = post(*static_cast<pair*>(through), &wr, &refused);
  if (result >= 0) item->rkey = wr.bind_mw.rkey;
  return result;
}

rdma::region* rdma::find_local(std::uint32_t key) noexcept {
  const auto found = local_keys_.find(key);
  return found == local_keys_.end() ? nullptr : found->second;
}

void rdma::use(const std::vector<ibv_sge>& parts, const ibv_pd* domain, int change) {
  for (const ibv_sge& part : parts) {
    region* const item = find_local(part.lkey);
    require(item != nullptr && item->pd == domain, "a request names memory that is not registered there");
    item->uses += static_cast<std::size_t>(change);
  }
}

void rdma::check_local(const std::vector<ibv_sge>& parts, const ibv_pd* domain, bool written) {
  for (const ibv_sge& part : parts) {
    const region* const item = find_local(part.lkey);
    require(item != nullptr && item->pd == domain, "a request names memory that is not registered there");
    const auto start = reinterpret_cast<std::uintptr_t>(item->addr);
    require(
        part.addr >= start && part.addr - start <= item->length && part.length <= item->length - (part.addr - start),
        "a request reaches beyond its region");
    require(!written || (item->rights & IBV_ACCESS_LOCAL_WRITE) != 0, "a request writes what may only be read");
    require(part.length != 0, "a part of a request has no length, which means 2 GiB to some devices");
  }
}

// ---- completion queues ----

int rdma::create_comp_channel(ibv_context* where, ibv_comp_channel** made) noexcept {
  if (fails()) return -EMFILE;
  auto* const item = new channel;
  item->context = where;
  item->fd = place_.open_source(*item);
  channels_.insert(item);
  *made = item;
  return 0;
}

int rdma::destroy_comp_channel(ibv_comp_channel* item) noexcept {
  if (removed_) return -EIO;
  auto* const gone = static_cast<channel*>(item);
  require(gone->queues == 0, "a completion channel is destroyed before its queues");
  place_.close_source(gone->fd);
  channels_.erase(gone);
  delete gone;
  return 0;
}

int rdma::create_cq(ibv_context* where, int entries, ibv_comp_channel* on, ibv_cq** made) noexcept {
  if (fails()) return -ENOMEM;
  if (entries <= 0 || entries > traits_.most_entries) return -EINVAL;
  auto* const item = new queue{};
  item->number = ++last_number_;
  item->context = where;
  item->channel = on;
  item->cqe = entries;
  ++static_cast<channel*>(on)->queues;
  ++static_cast<context*>(where)->queues;
  queues_[item->number] = item;
  *made = item;
  return 0;
}

int rdma::destroy_cq(ibv_cq* item) noexcept {
  if (removed_) return -EIO;
  auto* const gone = static_cast<queue*>(item);
  auto& on = *static_cast<channel*>(gone->channel);
  require(gone->users == 0, "a completion queue is destroyed before {} queue pairs of its", gone->users);
  require(gone->untold == 0, "a completion queue is destroyed with {} events not acknowledged", gone->untold);
  require(gone->async_out == 0, "a completion queue is destroyed with an event about it not acknowledged");
  std::erase(on.events, gone);
  purge_events(*static_cast<context*>(gone->context), gone);
  --on.queues;
  --static_cast<context*>(gone->context)->queues;
  queues_.erase(gone->number);
  delete gone;
  return 0;
}

int rdma::req_notify_cq(ibv_cq* item) noexcept {
  if (fails()) return -EIO;
  static_cast<queue*>(item)->armed = true;
  return 0;
}

int rdma::get_cq_event(ibv_comp_channel* item) noexcept {
  auto& from = *static_cast<channel*>(item);
  if (from.events.empty()) return from.lost ? -EIO : -EAGAIN;
  ++from.events.front()->untold;
  from.events.pop_front();
  return 0;
}

void rdma::ack_cq_events(ibv_cq* item, unsigned count) noexcept {
  auto& about = *static_cast<queue*>(item);
  require(count <= about.untold, "{} events are acknowledged, and {} have been taken", count, about.untold);
  about.untold -= count;
}

void rdma::wake(queue& from) {
  if (!std::exchange(from.armed, false)) return;
  if (traits_.loses_events && dice_.one_in(50)) return;  // the kernel drops it, and the queue is no longer armed
  static_cast<channel*>(from.channel)->events.push_back(&from);
}

void rdma::promise(queue& of, std::size_t entries) {
  of.promised += entries;
  require(of.promised <= static_cast<std::size_t>(of.cqe), "a completion queue of {} for {} requests and receives",
          of.cqe, of.promised);
}

void rdma::complete(queue& to, const pair& of, const ibv_wc& what, bool of_request, std::uint64_t sequence) {
  require(to.entries.size() < static_cast<std::size_t>(to.cqe), "a completion queue of {} overflows", to.cqe);
  place_.note(what.wr_id);
  place_.note(static_cast<std::uint64_t>(what.status));
  to.entries.push_back({.what = what,
                        .pair = of.name(),
                        .shared = of_request ? nullptr : static_cast<shared_queue*>(of.srq),
                        .of_request = of_request,
                        .sequence = sequence,
                        .since = place_.now()});
  wake(to);
}

int rdma::poll_cq(ibv_cq* item, int most, ibv_wc* found) noexcept {
  auto& from = *static_cast<queue*>(item);
  if (from.entries.empty()) return 0;
  int count = 0;
  for (; count < most && !from.entries.empty(); ++count) {
    const queue::entry taken = from.entries.front();
    from.entries.pop_front();
    found[count] = taken.what;
    if (taken.shared != nullptr) --taken.shared->held;
    pair* const of = find_pair(taken.pair);
    if (of == nullptr) continue;
    const duration limit = traits_.loses_events ? longest_look_without_event : longest_look;
    require(place_.now() - taken.since <= limit || place_.has_failed() || removed_,
            "a completion has waited for {} us to be seen",
            std::chrono::duration_cast<std::chrono::microseconds>(place_.now() - taken.since).count());
    if (taken.of_request) {
      of->retired = std::max(of->retired, taken.sequence + 1);
    } else if (of->srq == nullptr) {
      --of->receives_held;
    }
  }
  return count;
}

// ---- queue pairs ----

rdma::pair* rdma::find_pair(std::uint32_t number) noexcept {
  const auto found = pairs_.find(number);
  return found == pairs_.end() ? nullptr : found->second;
}

rdma::pair* rdma::find_pair(const pair_name& name) noexcept {
  pair* const found = find_pair(name.number);
  return found != nullptr && found->life == name.life ? found : nullptr;
}

int rdma::create_qp(ibv_pd* domain, ibv_qp_init_attr* wanted, ibv_qp** made) noexcept {
  if (fails()) return -ENOMEM;
  if (wanted->cap.max_inline_data > traits_.most_inline || wanted->cap.max_send_wr > 1024 ||
      wanted->cap.max_recv_wr > 1024 || wanted->cap.max_send_sge > static_cast<unsigned>(traits_.most_parts)) {
    return -EINVAL;
  }
  auto* const item = make_in<pair>(domain);
  item->life = ++last_number_;
  item->send_cq = wanted->send_cq;
  item->recv_cq = wanted->recv_cq;
  item->srq = wanted->srq;
  item->qp_type = wanted->qp_type;
  item->state = IBV_QPS_RESET;
  item->most = wanted->cap;
  item->signals_all = wanted->sq_sig_all != 0;
  // Numbers may come again as soon as they are free.
  const bool reuses = dice_.one_in(2);
  std::uint32_t number = reuses ? 17 : next_pair_;
  while (pairs_.contains(number)) ++number;
  next_pair_ = std::max(next_pair_, number + 1);
  item->qp_num = number;
  pairs_[number] = item;
  ++static_cast<queue*>(item->send_cq)->users;
  ++static_cast<queue*>(item->recv_cq)->users;
  promise(*static_cast<queue*>(item->send_cq), wanted->cap.max_send_wr);
  promise(*static_cast<queue*>(item->recv_cq), item->srq == nullptr ? wanted->cap.max_recv_wr : 0);
  if (item->srq != nullptr && static_cast<shared_queue*>(item->srq)->users++ == 0) {
    promise(*static_cast<queue*>(item->recv_cq), static_cast<shared_queue*>(item->srq)->most);
    use_all(*static_cast<shared_queue*>(item->srq), 1);
  }
  *made = item;
  return 0;
}

int rdma::create_qp_ex(ibv_pd* domain, ibv_qp_init_attr* wanted, std::uint64_t operations, ibv_qp** made) noexcept {
  if (!traits_.driver_has_flush) return -EOPNOTSUPP;
  const int result = create_qp(domain, wanted, made);
  if (result >= 0) static_cast<pair*>(*made)->operations = operations;
  return result;
}

int rdma::modify_qp(ibv_qp* item, ibv_qp_attr* wanted, int mask) noexcept {
  auto& which = *static_cast<pair*>(item);
  if (wanted->qp_state == IBV_QPS_ERR) {
    which.ended_by_owner = true;
    if (traits_.like_rxe) which.stuck = 0;  // whatever was posted
    if (which.out != nullptr) hang_up(which, false);
    which.state = IBV_QPS_ERR;
    flush_later(which);
    return removed_ ? -EIO : 0;
  }
  if (fails()) return -ENOMEM;
  const auto has = [mask](int bits) { return (mask & bits) == bits; };
  require(!traits_.is_iwarp || wanted->qp_state == IBV_QPS_INIT, "the queue pair of an RNIC is connected by its user");
  const int for_init =
      IBV_QP_STATE | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS | (traits_.is_iwarp ? 0 : int{IBV_QP_PKEY_INDEX});
  constexpr int for_rtr = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  constexpr int for_rts =
      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
  switch (wanted->qp_state) {
    case IBV_QPS_INIT:
      if (which.state != IBV_QPS_RESET || !has(for_init)) return -EINVAL;
      which.rights = wanted->qp_access_flags;
      break;
    case IBV_QPS_RTR:
      if (which.state != IBV_QPS_INIT || !has(for_rtr)) return -EINVAL;
      which.peer = wanted->dest_qp_num;
      which.rnr_timer = wanted->min_rnr_timer;
      break;
    case IBV_QPS_RTS:
      if (which.state != IBV_QPS_RTR || !has(for_rts)) return -EINVAL;
      which.timeout = wanted->timeout;
      which.retries = wanted->retry_cnt;
      which.rnr_retries = wanted->rnr_retry;
      which.most_asking = wanted->max_rd_atomic;
      break;
    default:
      return -EINVAL;
  }
  which.state = wanted->qp_state;
  return 0;
}

int rdma::destroy_qp(ibv_qp* item) noexcept {
  if (removed_) return -EIO;
  auto* const gone = static_cast<pair*>(item);
  require(gone->async_out == 0, "a queue pair is destroyed with {} events not acknowledged", gone->async_out);
  require(gone->windows == 0, "a queue pair is destroyed before {} windows that are bound through it", gone->windows);
  require(!gone->incoming || gone->srq == nullptr, "a queue pair takes a shared receive along");
  if (gone->out != nullptr) hang_up(*gone, false);
  for (const request& each : gone->requests) {
    if (!each.copied && !each.told) use(each.parts, gone->pd, -1);
  }
  for (const receive& each : gone->receives) use(each.parts, each.domain, -1);
  if (gone->incoming) use(gone->incoming->parts, gone->incoming->domain, -1);
  const auto clean = [&](ibv_cq* which) {
    auto& from = *static_cast<queue*>(which);
    --from.users;
    if (traits_.leaves_completions) return;
    const bool shared = gone->srq != nullptr;
    std::erase_if(from.entries, [&](const queue::entry& entry) {
      if (entry.pair != gone->name()) return false;
      require(entry.of_request || !shared, "a queue pair takes the completion of a shared receive along");
      return true;
    });
  };
  clean(gone->send_cq);
  clean(gone->recv_cq);
  static_cast<queue*>(gone->send_cq)->promised -= gone->most.max_send_wr;
  static_cast<queue*>(gone->recv_cq)->promised -= gone->srq == nullptr ? gone->most.max_recv_wr : 0;
  if (gone->srq != nullptr && --static_cast<shared_queue*>(gone->srq)->users == 0) {
    static_cast<queue*>(gone->recv_cq)->promised -= static_cast<shared_queue*>(gone->srq)->most;
    use_all(*static_cast<shared_queue*>(gone->srq), -1);
  }
  purge_events(*static_cast<context*>(gone->context), gone);
  pairs_.erase(gone->qp_num);
  for (auto& [port, way] : paths_) {  // numbers come again
    if (way->client.number == gone->qp_num) way->client = {};
    if (way->server.number == gone->qp_num) way->server = {};
  }
  return destroy(gone);
}

// ---- shared receive queues ----

int rdma::create_srq(ibv_pd* domain, ibv_srq_init_attr* wanted, ibv_srq** made) noexcept {
  require(!traits_.is_iwarp, "connections share receives, and those that find none end: RFC 5041, 7.1");
  if (fails()) return -ENOMEM;
  auto* const item = make_in<shared_queue>(domain);
  item->most = wanted->attr.max_wr;
  shared_queues_.insert(item);
  *made = item;
  return 0;
}

void rdma::use_all(const shared_queue& which, int change) {
  for (const receive& each : which.waiting) use(each.parts, each.domain, change);
}

int rdma::destroy_srq(ibv_srq* item) noexcept {
  if (removed_) return -EIO;
  auto* const gone = static_cast<shared_queue*>(item);
  require(gone->users == 0, "a shared receive queue is destroyed before {} queue pairs", gone->users);
  require(gone->async_out == 0, "a shared receive queue is destroyed with an event about it not acknowledged");
  for (auto& [number, each] : queues_) {
    for (queue::entry& entry : each->entries) {
      if (entry.shared == gone) entry.shared = nullptr;
    }
  }
  purge_events(*static_cast<context*>(gone->context), gone);
  shared_queues_.erase(gone);
  return destroy(gone);
}

int rdma::post_srq_recv(ibv_srq* item, ibv_recv_wr* first, ibv_recv_wr** refused) noexcept {
  auto& to = *static_cast<shared_queue*>(item);
  for (ibv_recv_wr* each = first; each != nullptr; each = each->next) {
    if (fails()) {
      *refused = each;
      return -ENOMEM;
    }
    require(to.held < to.most, "a shared receive queue of {} overflows", to.most);
    ++to.held;
    to.waiting.push_back(make_receive(*each, to.pd));
    if (to.users != 0) use(to.waiting.back().parts, to.pd, 1);
  }
  return 0;
}

}  // namespace weft::sim
