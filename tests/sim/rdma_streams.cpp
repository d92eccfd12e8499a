// SPDX-License-Identifier: Apache-2.0
// What is below an RNIC: a TCP connection for each queue pair. It never gives up by itself, as TCP does not for longer
// than anybody should have to wait.
#include "rdma_parts.hpp"

namespace weft::sim {
namespace {

constexpr duration until_tried_again = std::chrono::milliseconds(5);

}  // namespace

// What the kernel does with the queue pair of a connection that is there.
void rdma::join(identity& which, std::uint8_t most_asking) {
  pair* const own = find_pair(which.own);
  if (own == nullptr) return;
  require(own->state == IBV_QPS_INIT, "a connection is made with a queue pair that is not initialized");
  own->state = IBV_QPS_RTS;
  own->peer = which.theirs.number;
  own->most_asking = most_asking;
  own->id = which.number;
  own->out = std::make_shared<stream>();
  own->out->from = which.own;
  own->out->to = which.theirs;
  own->out->way = which.way;
}

// Gives the next request to TCP, which has room only for so much that nobody has taken.
void rdma::transmit(pair& from) {
  from.delivering = false;
  const std::size_t index = from.delivered - from.first_request;
  if (from.state != IBV_QPS_RTS || removed_ || index >= from.requests.size()) return;
  request& what = from.requests[index];
  if (what.is_local()) {
    what.answered = execute_here(from, what);
    ++from.delivered;
    finish(from);
    return kick(from);
  }
  require(!what.asks() || from.most_asking != 0, "a read, though none was agreed on");
  if (what.asks() && from.asking >= from.most_asking) return;  // goes on with an answer
  stream& out = *from.out;
  if (out.bytes != 0 && out.bytes + what.bytes > traits_.stream_bytes) return;  // goes on when something has arrived
  if (!what.copied) check_local(what.parts, from.pd, what.asks());
  request sent = what;
  sent.sequence = from.delivered++;
  if (!what.asks() && !what.copied) {
    require(content_of(what.parts) == what.content, "memory has changed before it was sent");
    sent.data = collect(what.parts, 0, what.bytes);
  }
  sent.copied = true;
  out.bytes += what.bytes;
  if (what.asks()) ++from.asking;
  if (!what.asks() && traits_.completes_when_sent) answer_later(from, sent.sequence, IBV_WC_SUCCESS);
  out.waiting.push_back(std::move(sent));
  move(from.out);
  kick(from);
}

void rdma::move(const std::shared_ptr<stream>& what) {
  if (std::exchange(what->moving, true)) return;
  later(some_delay(), [this, what] { take_in(what); });
}

void rdma::take_in(const std::shared_ptr<stream>& what) {
  what->moving = false;
  if (removed_ || what->way->is_cut) return;
  const bool stalled = what->way->free_from > place_.now();
  if (port_is_down_ || stalled) {
    what->moving = true;
    const duration wait = stalled ? what->way->free_from - place_.now() : until_tried_again;
    return later(wait, [this, what] { take_in(what); });
  }
  pair* const to = find_pair(what->to);
  if (to == nullptr || to->state != IBV_QPS_RTS) return what->waiting.clear();  // it has hung up
  if (what->waiting.empty()) {
    if (what->ends) hang_up(*to, true);
    return;
  }
  to->heard = true;
  switch (execute(what->waiting.front(), *to)) {
    case verdict::done:
      arrived(*what);
      break;
    case verdict::unfinished:
      break;
    case verdict::no_receive:
      return require(false, "a message finds no receive, and ends the connection: RFC 5041, 7.1");
    case verdict::refused:
      if (traits_.tells_of_refusals) raise(*to, IBV_EVENT_QP_ACCESS_ERR);
      return hang_up(*to, true);
  }
  move(what);
}

void rdma::arrived(stream& what) {
  request gone = std::move(what.waiting.front());
  what.waiting.pop_front();
  what.bytes -= gone.bytes;
  pair* const from = find_pair(what.from);
  if (from == nullptr || from->state != IBV_QPS_RTS) return;
  if (gone.asks()) from->requests[gone.sequence - from->first_request].data = std::move(gone.data);
  if (gone.asks() || !traits_.completes_when_sent) answer_later(*from, gone.sequence, IBV_WC_SUCCESS);
  kick(*from);
}

// Both directions end at once, and all that is posted is flushed. The peer gets what TCP has of it, unless the end is
// in no order.
void rdma::hang_up(pair& which, bool in_order) {
  if (which.state == IBV_QPS_ERR) return;
  which.state = IBV_QPS_ERR;
  flush_later(which);
  if (removed_) return;
  if (identity* const about = find_id(which.id)) tell_in_turn(*about, [this](identity& whom) { tell_of_end(whom); });
  stream& out = *which.out;
  if (!in_order && dice_.one_in(2)) out.waiting.clear();
  out.ends = true;
  move(which.out);
}

}  // namespace weft::sim
