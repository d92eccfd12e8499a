// SPDX-License-Identifier: Apache-2.0
// What a simulated RDMA device consists of: for its own sources only. Each object begins with what the libraries show
// of it.
#pragma once

#include <fmt/core.h>

#include "rdma.hpp"

namespace weft::sim {

constexpr std::uint32_t key_index = ~0xFFU;  // of a key, what tells one window from another; the rest is to be changed

/// `bytes` of what a list describes, from `from` on.
[[nodiscard]] std::vector<std::byte> collect(const std::vector<ibv_sge>& parts, std::size_t from, std::size_t bytes);
/// Differs if the memory that a list describes has changed.
[[nodiscard]] std::uint64_t content_of(const std::vector<ibv_sge>& parts) noexcept;

struct rdma::context final : ibv_context, world::event_source {
  std::deque<ibv_async_event> events;
  std::size_t domains = 0;
  std::size_t queues = 0;

  [[nodiscard]] bool has_something() const noexcept override { return lost || !events.empty(); }
  bool lost = false;  // the device has gone
};

struct rdma::protection final : ibv_pd {
  std::size_t children = 0;
};

struct rdma::region final : ibv_mr {
  std::uint64_t iova = 0;
  unsigned rights = 0;
  std::size_t uses = 0;     // by what has been posted and has not ended
  std::size_t windows = 0;  // that are bound to it
};

struct rdma::window final : ibv_mw {
  std::uint32_t key = 0;  // as the device knows it
  region* bound = nullptr;
  std::uint64_t address = 0;
  std::uint64_t length = 0;
  unsigned rights = 0;
  std::uint32_t pair = 0;
};

struct rdma::channel final : ibv_comp_channel, world::event_source {
  std::deque<queue*> events;
  std::size_t queues = 0;

  [[nodiscard]] bool has_something() const noexcept override { return lost || !events.empty(); }
  bool lost = false;  // with the device
};

/// Of a queue pair: numbers come again, and lives do not.
struct rdma::pair_name {
  std::uint32_t number = 0;
  std::uint64_t life = 0;
  bool operator==(const pair_name&) const = default;
};

struct rdma::queue final : ibv_cq {
  struct entry {
    ibv_wc what;
    pair_name pair;
    shared_queue* shared;  // of a shared receive
    bool of_request;
    std::uint64_t sequence;
    time_point since;
  };
  std::uint64_t number = 0;
  std::deque<entry> entries;
  std::size_t promised = 0;  // to what its users may post, all of which completes at once if it is flushed
  bool armed = false;
  unsigned untold = 0;     // events that have been taken and not acknowledged
  unsigned async_out = 0;  // the same of events about the device
  std::size_t users = 0;
};

struct rdma::receive {
  std::uint64_t id = 0;
  std::vector<ibv_sge> parts;
  const ibv_pd* domain = nullptr;
};

// While no queue pair takes from it, the device touches nothing of what waits in it.
struct rdma::shared_queue final : ibv_srq {
  std::deque<receive> waiting;
  std::size_t held = 0;  // posted, and the completion has not been taken
  std::size_t most = 0;
  std::size_t users = 0;
  unsigned async_out = 0;
};

struct rdma::request {
  std::uint64_t id = 0;
  ibv_wr_opcode opcode{};
  bool signaled = false;
  bool copied = false;
  std::vector<ibv_sge> parts;
  std::vector<std::byte> data;  // copied at posting, or collected to be sent, or what the peer has answered
  std::uint64_t content = 0;    // of the memory, when it was posted
  std::uint64_t bytes = 0;
  std::uint64_t address = 0;
  std::uint32_t key = 0;
  std::uint32_t word = 0;  // immediate data, in network order, or a key to invalidate
  std::uint64_t compare = 0;
  std::uint64_t operand = 0;
  ibv_mw_bind_info bound{};
  window* which = nullptr;
  bool repeated = false;        // rdma_rxe has to make it a second time, which fails
  bool has_taken_time = false;  // of a network with a rate
  std::size_t placed = 0;       // of it at the peer
  std::optional<ibv_wc_status> answered;
  bool told = false;           // and completed, ahead of what was posted before
  std::uint64_t sequence = 0;  // in a stream

  /// Concerns this end alone.
  [[nodiscard]] bool is_local() const noexcept { return opcode == IBV_WR_BIND_MW || opcode == IBV_WR_LOCAL_INV; }
  [[nodiscard]] bool asks() const noexcept {
    return opcode == IBV_WR_RDMA_READ || opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
  }
  /// Takes one of the peer's resources until it is answered.
  [[nodiscard]] bool takes_resource() const noexcept { return asks() || opcode == net::verbs::wr_atomic_write_opcode; }
};

/// What lies between two ends.
struct rdma::path {
  std::uint16_t port = 0;  // the client's
  std::uint16_t listener_port = 0;
  bool is_cut = false;
  bool is_to_be_cut = false;  // once there is a connection
  time_point free_from{};
  pair_name client;
  pair_name server;
};

/// What an RNIC has given to TCP, and its peer has not taken.
struct rdma::stream {
  std::deque<request> waiting;  // copies
  std::size_t bytes = 0;        // of these
  bool ends = false;            // behind them
  bool moving = false;
  pair_name from;
  pair_name to;
  std::shared_ptr<path> way;
};

struct rdma::pair final : ibv_qp {
  [[nodiscard]] pair_name name() const noexcept { return {.number = qp_num, .life = life}; }

  std::uint64_t life = 0;
  ibv_qp_cap most{};
  bool signals_all = false;
  std::uint64_t operations = 0;  // beyond those of ibv_post_send(3)
  // The front has the number first_request. Numbers below `delivered` have reached the peer.
  std::deque<request> requests;
  std::uint64_t first_request = 0;
  std::uint64_t delivered = 0;
  std::uint64_t retired = 0;  // whose slots have come back: a completion behind them has been taken
  std::deque<receive> receives;
  std::size_t receives_held = 0;
  std::optional<receive> incoming;  // of a message that has come in part
  bool delivering = false;          // something is on its way, or waits to be tried again
  std::size_t asking = 0;           // reads, atomic operations and ATOMIC WRITEs at the peer
  unsigned attempts = 0;
  time_point last_answer{};
  bool hears_nothing = false;        // until it asks again
  std::uint64_t answered_again = 0;  // numbers below: what has not come of the first answers has been lost
  bool told_of_peer = false;         // IBV_EVENT_COMM_EST
  bool ended_by_owner = false;       // with ibv_modify_qp(3)
  bool flushing = false;
  bool told_of_last = false;       // IBV_EVENT_QP_LAST_WQE_REACHED
  std::size_t stuck = 0;           // receives that were posted too late to be flushed, like rxe's
  std::uint64_t post_to_fail = 0;  // the n-th from now on; 0: none
  std::uint16_t failing_port = 0;  // of that connection's client
  std::size_t windows = 0;
  unsigned async_out = 0;

  std::uint32_t peer = 0;
  unsigned rights = 0;
  std::uint8_t rnr_timer = 0;
  std::uint8_t rnr_retries = 0;
  std::uint8_t retries = 0;
  std::uint8_t timeout = 0;
  std::uint8_t most_asking = 0;

  // Of an RNIC.
  std::shared_ptr<stream> out;
  std::uint64_t id = 0;   // the connection manager's
  bool accepted = false;  // the connection of a peer that asked for it,
  bool heard = false;     // of which something has come
};

struct rdma::notice final : rdma_cm_event {
  std::uint64_t counted = 0;  // the id that may not go before it has been acknowledged
  std::array<std::byte, 256> data{};
};

struct rdma::event_queue final : rdma_event_channel, world::event_source {
  std::deque<std::unique_ptr<notice>> events;
  std::size_t ids = 0;

  [[nodiscard]] bool has_something() const noexcept override { return !events.empty(); }
};

/// An id of the connection manager.
///   fresh, bound, resolving, resolved, routing, routed  on its way to ask
///   asked        the request is sent
///   heard        the reply has come
///   requested    the peer's request has come
///   replied      and the reply is sent
///   connected
///   left         somebody has disconnected
///   over         refused, or never got anywhere
struct rdma::identity final : rdma_cm_id {
  // In the order of a set-up, by which it is compared.
  enum class state : std::uint8_t {
    fresh,
    bound,
    listening,
    resolving,
    resolved,
    routing,
    routed,
    asked,
    heard,
    requested,
    replied,
    connected,
    left,
    over
  };
  std::uint64_t number = 0;
  state now = state::fresh;
  std::uint64_t peer = 0;
  pair_name own;
  pair_name theirs;
  std::uint8_t most_asking = 0;
  bool said_goodbye = false;
  bool told_of_end = false;
  time_point last_word{};  // that it is told, of an RNIC
  unsigned events_out = 0;
  std::size_t waiting = 0;  // listening: requests that nobody has taken
  int backlog = 0;
  std::shared_ptr<rdma::path> way;
};

template <class... Arguments>
void rdma::require(bool holds, const char* rule, Arguments... numbers) {
  if (holds) return;
  place_.refuse("the RDMA device: " + fmt::format(fmt::runtime(rule), numbers...));
}

}  // namespace weft::sim
