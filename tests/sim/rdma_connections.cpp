// SPDX-License-Identifier: Apache-2.0
// The connection manager: rdma_cm(7), InfiniBand specification, chapter 12. Its words may overtake one another, and
// requests.
#include <arpa/inet.h>
#include <netinet/in.h>

#include "rdma_parts.hpp"

namespace weft::sim {
namespace {

// What the kernel waits for an answer before it gives up.
constexpr duration unreachable_after = std::chrono::seconds(60);
constexpr duration disconnected_after = std::chrono::seconds(5);
constexpr duration timewait = std::chrono::seconds(1);

constexpr int rejected_no_listener = 8;  // reasons of a rejection: InfiniBand specification, 12.6.7.2
constexpr int rejected_by_user = 28;
constexpr int rejected_unknown = 4;

// What it pads private data to.
constexpr std::size_t request_bytes = 56;
constexpr std::size_t reply_bytes = 196;
constexpr std::size_t rejection_bytes = 148;

std::vector<std::byte> padded(const void* data, std::size_t bytes, std::size_t to) {
  std::vector<std::byte> made(std::max(bytes, to));
  if (bytes != 0) std::memcpy(made.data(), data, bytes);
  return made;
}

std::uint16_t port_of(const sockaddr& address) noexcept {
  sockaddr_in in{};
  std::memcpy(&in, &address, sizeof in);
  return ntohs(in.sin_port);
}

void set_address(sockaddr_in& where, std::uint32_t host, std::uint16_t port) noexcept {
  where = {};
  where.sin_family = AF_INET;
  where.sin_addr.s_addr = host;
  where.sin_port = htons(port);
}

// As the receiver sees it: what it may be asked for, and what it may ask for.
rdma_conn_param mirrored(const rdma_conn_param& from) noexcept {
  rdma_conn_param seen = from;
  seen.private_data = nullptr;
  seen.responder_resources = from.initiator_depth;
  seen.initiator_depth = from.responder_resources;
  return seen;
}

}  // namespace

// ---- events ----

int rdma::create_event_channel(rdma_event_channel** made) noexcept {
  if (fails()) return -EMFILE;
  auto* const item = new event_queue;
  item->fd = place_.open_source(*item);
  event_queues_.insert(item);
  *made = item;
  return 0;
}

void rdma::destroy_event_channel(rdma_event_channel* item) noexcept {
  auto* const gone = static_cast<event_queue*>(item);
  require(gone->ids == 0, "an event channel is destroyed before {} of its ids", gone->ids);
  place_.close_source(gone->fd);
  event_queues_.erase(gone);
  delete gone;
}

void rdma::tell(identity& whom, rdma_cm_event_type what, int status) { tell(whom, what, status, {}, {}); }

void rdma::tell(identity& whom, rdma_cm_event_type what, int status, const rdma_conn_param& said,
                const std::vector<std::byte>& data) {
  auto made = std::make_unique<notice>();
  made->id = &whom;
  made->event = what;
  made->status = status;
  made->param.conn = said;
  made->counted = whom.number;
  std::copy(data.begin(), data.end(), made->data.begin());
  made->param.conn.private_data = data.empty() ? nullptr : made->data.data();
  made->param.conn.private_data_len = static_cast<std::uint8_t>(data.size());
  place_.note(static_cast<std::uint64_t>(what));
  static_cast<event_queue*>(whom.channel)->events.push_back(std::move(made));
}

int rdma::get_cm_event(rdma_event_channel* item, rdma_cm_event** found) noexcept {
  auto& from = *static_cast<event_queue*>(item);
  if (from.events.empty()) return -EAGAIN;
  notice* const taken = from.events.front().release();
  from.events.pop_front();
  ++find_id(taken->counted)->events_out;
  ++events_out_;
  *found = taken;
  return 0;
}

int rdma::ack_cm_event(rdma_cm_event* item) noexcept {
  const std::unique_ptr<notice> gone(static_cast<notice*>(item));
  identity* const about = find_id(gone->counted);
  require(about != nullptr && about->events_out != 0, "an event is acknowledged twice, or of an id that has gone");
  --about->events_out;
  --events_out_;
  return 0;
}

// ---- ids ----

void rdma::later(duration how_long, std::uint64_t id, std::function<void(identity&)> what) {
  later(how_long, [this, id, what = std::move(what)] {
    if (identity* const found = find_id(id)) what(*found);
  });
}

rdma::identity* rdma::find_id(std::uint64_t number) noexcept {
  const auto found = ids_.find(number);
  return found == ids_.end() ? nullptr : found->second;
}

rdma::identity& rdma::add_id(event_queue& on, void* about) {
  auto* const made = new identity;
  made->number = ++last_number_;
  made->channel = &on;
  made->context = about;
  made->ps = RDMA_PS_TCP;
  ++on.ids;
  ids_[made->number] = made;
  return *made;
}

int rdma::create_id(rdma_event_channel* on, void* about, rdma_cm_id** made) noexcept {
  if (fails()) return -ENOMEM;
  *made = &add_id(*static_cast<event_queue*>(on), about);
  return 0;
}

int rdma::destroy_id(rdma_cm_id* item) noexcept {
  auto* const gone = static_cast<identity*>(item);
  require(gone->events_out == 0, "an id is destroyed with {} events not acknowledged, and waits for ever",
          gone->events_out);
  auto& on = *static_cast<event_queue*>(gone->channel);
  std::vector<identity*> unborn;  // asked for, and nobody has heard of it
  std::erase_if(on.events, [&](const std::unique_ptr<notice>& each) {
    if (each->counted != gone->number) return false;
    if (each->event == RDMA_CM_EVENT_CONNECT_REQUEST) unborn.push_back(static_cast<identity*>(each->id));
    return true;
  });
  take_leave_of(*gone);
  --on.ids;
  ids_.erase(gone->number);
  delete gone;
  for (identity* const each : unborn) destroy_id(each);
  return 0;
}

int rdma::migrate_id(rdma_cm_id* item, rdma_event_channel* to) noexcept {
  auto& which = *static_cast<identity*>(item);
  require(which.events_out == 0, "an id moves with {} events not acknowledged, and waits for ever", which.events_out);
  if (fails()) return -ENOMEM;
  auto& from = *static_cast<event_queue*>(which.channel);
  auto& target = *static_cast<event_queue*>(to);
  for (auto& each : from.events) {
    if (each->counted == which.number) target.events.push_back(std::move(each));
  }
  std::erase(from.events, nullptr);
  --from.ids;
  ++target.ids;
  which.channel = to;
  return 0;
}

int rdma::bind_addr(rdma_cm_id* item, sockaddr* address) noexcept {
  if (fails()) return -EADDRINUSE;
  auto& which = *static_cast<identity*>(item);
  sockaddr_in asked{};
  std::memcpy(&asked, address, sizeof asked);
  const std::uint16_t port = asked.sin_port == 0 ? next_port_++ : ntohs(asked.sin_port);
  set_address(which.route.addr.src_sin, asked.sin_addr.s_addr, port);
  if (asked.sin_addr.s_addr == htonl(INADDR_LOOPBACK)) {
    which.verbs = &manager_context_;
  } else if (asked.sin_addr.s_addr != INADDR_ANY) {
    which.verbs = &other_context_;
  }
  which.now = identity::state::bound;
  return 0;
}

// Among ids that allow it an address may be bound twice. It can be listened on only where nobody else is bound to it.
bool rdma::is_taken(const identity& wanted) noexcept {
  const sockaddr_in& own = wanted.route.addr.src_sin;
  return std::any_of(ids_.begin(), ids_.end(), [&](const auto& each) {
    const identity& other = *each.second;
    const sockaddr_in& its = other.route.addr.src_sin;
    const bool has_one = other.now == identity::state::bound || other.now == identity::state::listening;
    return &other != &wanted && has_one && its.sin_port == own.sin_port && its.sin_addr.s_addr == own.sin_addr.s_addr;
  });
}

int rdma::listen(rdma_cm_id* item, int backlog) noexcept {
  if (fails()) return -EADDRINUSE;
  auto& which = *static_cast<identity*>(item);
  if (is_taken(which)) return -EADDRINUSE;
  which.now = identity::state::listening;
  which.backlog = backlog;
  return 0;
}

int rdma::resolve_addr(rdma_cm_id* item, sockaddr* source, sockaddr* target, int) noexcept {
  if (fails()) return -ENODEV;
  auto& which = *static_cast<identity*>(item);
  const std::uint16_t port = source == nullptr || port_of(*source) == 0 ? next_port_++ : port_of(*source);
  set_address(which.route.addr.src_sin, htonl(INADDR_LOOPBACK), port);
  std::memcpy(&which.route.addr.dst_sin, target, sizeof which.route.addr.dst_sin);
  which.way = std::make_shared<path>();
  which.way->port = port;
  which.way->listener_port = port_of(*target);
  which.way->is_cut = cut_cables_.contains(which.way->listener_port);
  paths_[port] = which.way;
  which.now = identity::state::resolving;
  const bool wrong = fails();
  later(some_delay(), which.number, [this, wrong](identity& self) {
    if (wrong) return tell(self, RDMA_CM_EVENT_ADDR_ERROR, -ENODEV);
    self.now = identity::state::resolved;
    self.verbs = &manager_context_;
    self.port_num = 1;
    tell(self, RDMA_CM_EVENT_ADDR_RESOLVED);
  });
  return 0;
}

int rdma::resolve_route(rdma_cm_id* item, int) noexcept {
  auto& which = *static_cast<identity*>(item);
  if (which.now != identity::state::resolved) return -EINVAL;
  if (fails()) return -ENOMEM;
  which.now = identity::state::routing;
  const bool wrong = fails();
  later(some_delay(), which.number, [this, wrong](identity& self) {
    if (wrong) return tell(self, RDMA_CM_EVENT_ROUTE_ERROR, -ETIMEDOUT);
    self.now = identity::state::routed;
    tell(self, RDMA_CM_EVENT_ROUTE_RESOLVED);
  });
  return 0;
}

int rdma::init_qp_attr(rdma_cm_id* item, ibv_qp_attr* attributes, int* mask) noexcept {
  if (fails()) return -EINVAL;
  const auto& which = *static_cast<identity*>(item);
  const ibv_qp_state wanted = attributes->qp_state;
  const bool knows_peer = which.now >= identity::state::heard && which.now <= identity::state::connected;
  *attributes = {};
  attributes->qp_state = wanted;
  *mask = IBV_QP_STATE;
  if (wanted == IBV_QPS_INIT) {
    attributes->port_num = 1;
    *mask |= IBV_QP_PORT | IBV_QP_ACCESS_FLAGS | (traits_.is_iwarp ? 0 : int{IBV_QP_PKEY_INDEX});
    return 0;
  }
  if (traits_.is_iwarp) return -EINVAL;
  if (!knows_peer) return -EINVAL;
  attributes->dest_qp_num = which.theirs.number;
  *mask |= wanted == IBV_QPS_RTR
               ? IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                     IBV_QP_MIN_RNR_TIMER
               : IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
  return 0;
}

// ---- words between two ends ----

void rdma::send(const identity& from, message what, no_answer otherwise) {
  const auto unheard = [this, sender = from.number, otherwise](bool lost) {
    identity* const found = find_id(sender);
    if (otherwise && found != nullptr) otherwise(*found, lost);
  };
  later(some_delay(), [this, peer = from.peer, way = from.way, what = std::move(what), unheard] {
    if (removed_) return;
    if (way != nullptr && way->is_cut) return later(unreachable_after, [unheard] { unheard(true); });
    if (identity* const to = find_id(peer)) return what(*to);
    unheard(false);
  });
}

int rdma::connect(rdma_cm_id* item, rdma_conn_param* wanted) noexcept {
  auto& which = *static_cast<identity*>(item);
  if (which.now != identity::state::routed) return -EINVAL;
  if (fails()) return -ENOMEM;
  if (ports_tried_ != traits_.ports_in_use) return ++ports_tried_, -EADDRINUSE;
  const pair* const own = find_pair(wanted->qp_num);
  require(own != nullptr, "a connection is asked for with no queue pair");
  which.now = identity::state::asked;
  which.own = which.way->client = own->name();
  which.most_asking = wanted->initiator_depth;
  const auto said =
      padded(wanted->private_data, wanted->private_data_len, traits_.is_iwarp ? std::size_t{0} : request_bytes);
  later(some_delay(), [this, number = which.number, asked = *wanted, said] { request_arrives(number, asked, said); });
  return 0;
}

void rdma::request_arrives(std::uint64_t from, const rdma_conn_param& wanted, const std::vector<std::byte>& said) {
  identity* const client = find_id(from);
  if (client == nullptr || client->now != identity::state::asked || removed_) return;
  if (client->way->is_cut) {
    return later(unreachable_after, from, [this](identity& self) {
      if (self.now != identity::state::asked) return;
      self.now = identity::state::over;
      tell(self, RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT);
    });
  }
  const std::uint16_t port = ntohs(client->route.addr.dst_sin.sin_port);
  const auto listens = [port](const auto& each) {
    return each.second->now == identity::state::listening && ntohs(each.second->route.addr.src_sin.sin_port) == port;
  };
  const auto found = std::find_if(ids_.begin(), ids_.end(), listens);
  if (found == ids_.end()) {
    client->now = identity::state::over;
    return tell(*client, RDMA_CM_EVENT_REJECTED, traits_.is_iwarp ? -ECONNREFUSED : rejected_no_listener);
  }
  identity& listener = *found->second;
  identity& made = add_id(*static_cast<event_queue*>(listener.channel), listener.context);
  made.now = identity::state::requested;
  made.verbs = &manager_context_;
  made.port_num = 1;
  made.way = client->way;
  made.route.addr.src_sin = client->route.addr.dst_sin;
  made.route.addr.dst_sin = client->route.addr.src_sin;
  made.peer = client->number;
  made.theirs = client->own;
  client->peer = made.number;
  tell(listener, RDMA_CM_EVENT_CONNECT_REQUEST, 0, mirrored(wanted), said);
  rdma_cm_event& told = *static_cast<event_queue*>(listener.channel)->events.back();
  told.id = &made;
  told.listen_id = &listener;
}

int rdma::accept(rdma_cm_id* item, rdma_conn_param* wanted) noexcept {
  auto& which = *static_cast<identity*>(item);
  if (which.now != identity::state::requested) return traits_.is_iwarp ? -ECONNRESET : -EINVAL;
  if (fails()) return -ENOMEM;
  pair* const own = find_pair(wanted->qp_num);
  require(own != nullptr && own->state == (traits_.is_iwarp ? IBV_QPS_INIT : IBV_QPS_RTS),
          "a connection is accepted with a queue pair that is not ready");
  which.now = identity::state::replied;
  which.own = which.way->server = own->name();
  if (traits_.is_iwarp) {
    accept_over_tcp(which, *wanted);
    return 0;
  }
  const auto hears = [this, reply = mirrored(*wanted),
                      said = padded(wanted->private_data, wanted->private_data_len, reply_bytes)](identity& client) {
    if (client.now != identity::state::asked) return;
    client.now = identity::state::heard;
    client.theirs.number = reply.qp_num;
    tell(client, RDMA_CM_EVENT_CONNECT_RESPONSE, 0, reply, said);
  };
  send(which, hears, [this](identity& from, bool lost) {
    if (from.now != identity::state::replied) return;
    from.now = identity::state::over;
    tell(from, lost ? RDMA_CM_EVENT_UNREACHABLE : RDMA_CM_EVENT_REJECTED, lost ? -ETIMEDOUT : rejected_unknown);
  });
  return 0;
}

// Here the kernel makes the queue pairs ready, and each end is told by itself that there is a connection.
void rdma::accept_over_tcp(identity& which, const rdma_conn_param& wanted) {
  which.now = identity::state::connected;
  join(which, wanted.initiator_depth);
  find_pair(which.own)->accepted = true;
  tell_in_turn(which, [this](identity& self) { tell(self, RDMA_CM_EVENT_ESTABLISHED); });
  const auto hang_up_on = [this](identity& self, bool lost) {
    pair* const own = find_pair(self.own);
    if (own != nullptr && !lost) hang_up(*own, true);  // of what is lost nobody hears
  };
  const auto hears = [this, reply = mirrored(wanted), own = which.own, server = which.number, hang_up_on,
                      said = padded(wanted.private_data, wanted.private_data_len, 0)](identity& client) {
    if (client.now != identity::state::asked) {
      if (identity* const found = find_id(server)) hang_up_on(*found, false);
      return;
    }
    client.now = identity::state::connected;
    client.way->is_cut = client.way->is_to_be_cut;
    if (client.way->is_cut) strike(client.way->port);
    client.theirs = own;
    join(client, std::min(client.most_asking, reply.initiator_depth));
    tell_in_turn(client,
                 [this, reply, said](identity& self) { tell(self, RDMA_CM_EVENT_ESTABLISHED, 0, reply, said); });
  };
  send(which, hears, hang_up_on);
}

int rdma::establish(rdma_cm_id* item) noexcept {
  require(!traits_.is_iwarp, "an RNIC's connection is established by its user");
  auto& which = *static_cast<identity*>(item);
  if (which.now != identity::state::heard) return -EINVAL;
  if (fails()) return -ENOMEM;
  which.now = identity::state::connected;
  if (identity* const server = traits_.leaves_at_once ? find_id(which.peer) : nullptr) {
    if (pair* const theirs = find_pair(server->own)) fail_pair(*theirs);
    leave(*server);
    return 0;
  }
  const auto hears = [this](identity& server) {
    if (server.now != identity::state::replied) return;
    server.now = identity::state::connected;
    tell(server, RDMA_CM_EVENT_ESTABLISHED);
  };
  // Whoever waits for it asks again, and gives up in the end.
  send(which, hears, [this](identity& client, bool) {
    identity* const server = find_id(client.peer);
    if (server == nullptr || server->now != identity::state::replied) return;
    server->now = identity::state::over;
    tell(*server, RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT);
  });
  return 0;
}

int rdma::notify(rdma_cm_id* item, ibv_event_type what) noexcept {
  auto& which = *static_cast<identity*>(item);
  require(what == IBV_EVENT_COMM_EST, "rdma_notify of an event that it does not know");
  if (which.now != identity::state::replied) return 0;
  which.now = identity::state::connected;
  tell(which, RDMA_CM_EVENT_ESTABLISHED);
  return 0;
}

int rdma::reject(rdma_cm_id* item, const void* data, std::uint8_t bytes) noexcept {
  auto& which = *static_cast<identity*>(item);
  if (which.now != identity::state::requested) return -EINVAL;
  if (fails()) return -ENOMEM;
  which.now = identity::state::over;
  if (traits_.is_iwarp) {
    refuse_connection(which, -ECONNRESET, padded(data, bytes, 0));
  } else {
    refuse_connection(which, rejected_by_user, padded(data, bytes, rejection_bytes));
  }
  return 0;
}

void rdma::refuse_connection(identity& from, int reason, std::vector<std::byte> said) {
  send(from, [this, reason, said = std::move(said)](identity& to) {
    if (to.now == identity::state::left || to.now == identity::state::over) return;
    // Of its peer's TCP connection, the one who is asked hears only when it has an answer.
    if (traits_.is_iwarp && to.now == identity::state::connected) return;
    const bool is_asked = to.now == identity::state::requested;
    to.now = identity::state::over;
    if (traits_.is_iwarp && is_asked) return;
    tell(to, RDMA_CM_EVENT_REJECTED, reason, {}, said);
  });
}

int rdma::disconnect(rdma_cm_id* item) noexcept {
  auto& which = *static_cast<identity*>(item);
  const bool possible = which.now == identity::state::connected || which.now == identity::state::replied ||
                        which.now == identity::state::heard || which.now == identity::state::left;
  if (!possible) return -EINVAL;
  if (which.said_goodbye) return 0;
  if (traits_.is_iwarp) {
    which.said_goodbye = true;
    if (pair* const own = find_pair(which.own)) hang_up(*own, true);
    return 0;
  }
  leave(which);
  return 0;
}

void rdma::tell_of_end(identity& whom) {
  if (whom.now == identity::state::over || std::exchange(whom.told_of_end, true)) return;
  whom.now = identity::state::left;
  tell(whom, RDMA_CM_EVENT_DISCONNECTED);
}

// Of one id, in the order of what happens to it.
void rdma::tell_in_turn(identity& whom, std::function<void(identity& whom)> what) {
  whom.last_word = std::max(whom.last_word, place_.now() + some_delay());
  later(whom.last_word - place_.now(), whom.number, [this, what = std::move(what)](identity& self) {
    if (!removed_) what(self);
  });
}

// What is still under way does not keep its words back. The one who says it first hears of the end when the other one
// has said the same, or after a time; both hear some time later that it is over for good.
void rdma::leave(identity& from) {
  from.said_goodbye = true;
  send(
      from,
      [this](identity& to) {
        const bool mutual = to.said_goodbye;
        tell_of_end(to);
        if (mutual) later(some_delay(), to.peer, [this](identity& first) { tell_of_end(first); });
      },
      [this](identity& self, bool) { tell_of_end(self); });
  later(disconnected_after, from.number, [this](identity& self) { tell_of_end(self); });
  later(disconnected_after + timewait, from.number,
        [this](identity& self) { tell(self, RDMA_CM_EVENT_TIMEWAIT_EXIT); });
}

// What the kernel says to the peer of an id that goes.
void rdma::take_leave_of(identity& gone) {
  const bool is_connected = gone.now == identity::state::connected || gone.now == identity::state::left;
  if (is_connected && traits_.is_iwarp) {
    if (pair* const own = find_pair(gone.own)) hang_up(*own, false);
  } else if (is_connected) {
    if (!gone.said_goodbye) send(gone, [this](identity& to) { tell_of_end(to); });
  } else if (gone.now >= identity::state::asked && gone.now <= identity::state::replied) {
    refuse_connection(gone, traits_.is_iwarp ? -ECONNRESET : rejected_by_user, {});
  }
}

// ---- faults ----

rdma::pair* rdma::pair_of(std::uint16_t port, bool of_client) noexcept {
  const auto found = paths_.find(port);
  if (found == paths_.end()) return nullptr;
  const path& way = *found->second;
  return find_pair(of_client ? way.client : way.server);
}

void rdma::strike(std::uint16_t port) {
  place_.disturb(port);
  place_.count_fault();
}

// Whether anybody is there who is not through with it.
bool rdma::is_used(const path& way) const noexcept {
  return std::any_of(ids_.begin(), ids_.end(), [&way](const auto& each) {
    return each.second->way.get() == &way && each.second->now != identity::state::over;
  });
}

void rdma::break_off(std::uint16_t port) {
  pair* const chosen = pair_of(port, dice_.one_in(2));
  if (chosen != nullptr && chosen->state == IBV_QPS_RTS) strike(port);
  static_cast<void>(break_off(chosen));
}

bool rdma::break_off(pair* chosen) {
  if (chosen == nullptr || chosen->state != IBV_QPS_RTS) return false;
  if (!traits_.like_rxe) raise(*chosen, IBV_EVENT_QP_FATAL);
  fail_pair(*chosen);
  return true;
}

void rdma::cut(std::uint16_t port) {
  const auto found = paths_.find(port);
  if (found == paths_.end()) return;
  path& way = *found->second;
  // The worst of times is that when both ends take the connection for made, and neither has heard the other.
  if (traits_.is_iwarp && way.server.number == 0 && dice_.one_in(2)) {
    way.is_to_be_cut = true;
    return;
  }
  way.is_cut = true;
  if (is_used(way)) strike(port);
}

void rdma::stall(std::uint16_t port, duration how_long) {
  const auto found = paths_.find(port);
  if (found == paths_.end()) return;
  found->second->free_from = place_.now() + how_long;
  if (is_used(*found->second)) place_.count_fault();
}

void rdma::fail_post(std::uint16_t port, bool of_client) {
  pair* const chosen = pair_of(port, of_client);
  if (chosen == nullptr) return;
  chosen->post_to_fail = 1 + dice_.below(3);
  chosen->failing_port = port;
}

// ---- cables ----

std::vector<std::shared_ptr<rdma::path>> rdma::ways_to(std::uint16_t listener) const {
  std::vector<std::shared_ptr<path>> found;
  for (const auto& [port, way] : paths_) {
    if (way->listener_port == listener && is_used(*way)) found.push_back(way);
  }
  return found;
}

void rdma::break_off_cable(std::uint16_t port) {
  for (const auto& way : ways_to(port)) {
    if (break_off(pair_of(way->port, dice_.one_in(2)))) place_.count_fault();
  }
}

void rdma::cut_cable(std::uint16_t port) {
  cut_cables_.insert(port);
  place_.count_fault();
  for (const auto& way : ways_to(port)) way->is_cut = true;
}

// An RNIC's TCP has given up meanwhile.
void rdma::mend_cable(std::uint16_t port) {
  cut_cables_.erase(port);
  for (const auto& way : ways_to(port)) {
    if (!std::exchange(way->is_cut, false) || !traits_.is_iwarp) continue;
    for (const bool of_client : {true, false}) {
      if (pair* const end = pair_of(way->port, of_client); end != nullptr && end->out != nullptr) hang_up(*end, false);
    }
  }
}

void rdma::stall_cable(std::uint16_t port, duration how_long) {
  for (const auto& way : ways_to(port)) {
    way->free_from = std::max(way->free_from, place_.now() + how_long);
    place_.count_fault();
  }
}

void rdma::fail_post_on_cable(std::uint16_t port, bool of_client) {
  for (const auto& way : ways_to(port)) {
    if (pair* const chosen = pair_of(way->port, of_client)) chosen->post_to_fail = 1 + dice_.below(3);
  }
}

bool rdma::connects_over(std::uint16_t port) noexcept {
  const auto all = ways_to(port);
  return std::any_of(all.begin(), all.end(), [this](const auto& way) {
    const pair* const client = pair_of(way->port, true);
    const pair* const server = pair_of(way->port, false);
    return client != nullptr && server != nullptr && client->state == IBV_QPS_RTS && server->state == IBV_QPS_RTS;
  });
}

void rdma::take_cable_out(duration how_long) {
  port_is_down_ = true;
  place_.count_fault();
  tell_all(IBV_EVENT_PORT_ERR);
  later(how_long, [this] {
    if (removed_) return;
    port_is_down_ = false;
    tell_all(IBV_EVENT_PORT_ACTIVE);
  });
}

void rdma::remove() {
  place_.disturb_all();
  place_.count_fault();
  removed_ = true;
  flushes_when_removed_ = dice_.one_in(2);
  tell_all(IBV_EVENT_DEVICE_FATAL);
  for (context* const each : contexts_) each->lost = true;
  // A driver that lets go of what its users have made, or one that waits for them.
  for (channel* const each : channels_) each->lost = !flushes_when_removed_;
  for (const auto& [number, each] : ids_) {
    if (each->verbs != nullptr) tell(*each, RDMA_CM_EVENT_DEVICE_REMOVAL);
  }
  for (const auto& [number, each] : pairs_) fail_pair(*each);
}

}  // namespace weft::sim
