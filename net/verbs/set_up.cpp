// SPDX-License-Identifier: Apache-2.0
#include <weft/net/link/checked.hpp>
#include <weft/net/link/join.hpp>
#include <weft/net/link/native_protocol.hpp>
#include <weft/net/verbs/rdma_link.hpp>
#include <weft/net/verbs/set_up.hpp>
#include <weft/net/verbs/words.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/offload.hpp>
#include <weft/runtime/report.hpp>
#include <weft/runtime/sync/apart.hpp>

#include <fmt/core.h>

#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <limits>

namespace weft::net::verbs {
namespace {

constexpr int ports_to_try = 8;

// The endpoint of a set-up, which is disposed of unless it becomes a link's.
class guarded_endpoint {
 public:
  guarded_endpoint(executor_state& shared, cm_id id) : endpoint_(std::make_unique<endpoint>(shared, std::move(id))) {}
  guarded_endpoint(guarded_endpoint&&) noexcept = default;
  guarded_endpoint& operator=(guarded_endpoint&& other) noexcept {
    std::swap(endpoint_, other.endpoint_);
    return *this;
  }
  ~guarded_endpoint() { endpoint::dispose(std::move(endpoint_)); }
  endpoint* operator->() const noexcept { return endpoint_.get(); }
  [[nodiscard]] std::unique_ptr<endpoint> take() noexcept { return std::move(endpoint_); }

 private:
  std::unique_ptr<endpoint> endpoint_;
};

// The timeout for a step of the connection manager, which does not use weft::clock: the time that is left, at least a
// millisecond. Our own deadline ends the wait for the step.
int milliseconds_left(time_point deadline) noexcept {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - executor_core::current()->now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 1, std::numeric_limits<int>::max()));
}

std::uint8_t limited(std::uint16_t wanted, int most) noexcept {
  return static_cast<std::uint8_t>(std::min<int>({wanted, std::max(most, 0), 255}));
}

rdma_conn_param parameters(const endpoint& self, const set_up_options& options, const agreement& what) {
  rdma_conn_param wanted{};
  wanted.private_data = options.private_data.data();
  wanted.private_data_len = static_cast<std::uint8_t>(options.private_data.size());
  wanted.responder_resources = what.incoming_reads;
  wanted.initiator_depth = what.outgoing_reads;
  wanted.flow_control = 1;
  wanted.retry_count = 6;
  wanted.rnr_retry_count = 7;
  wanted.qp_num = self.pair()->qp_num;
  wanted.srq = options.receives != nullptr ? 1 : 0;
  return wanted;
}

agreement offer(const device& home, const set_up_options& options) {
  agreement what;
  what.incoming_reads = limited(options.incoming_reads, home.limits().max_qp_rd_atom);
  what.outgoing_reads = limited(options.outgoing_reads, home.limits().max_qp_init_rd_atom);
  what.dead_peer_after = options.dead_peer_after;
  return what;
}

// The numbers in an event are from its receiver's point of view: responder_resources for reads that arrive here,
// initiator_depth for reads of this end.
agreement narrowed(agreement ours, const cm_event& theirs) {
  ours.incoming_reads = std::min(ours.incoming_reads, theirs.responder_resources);
  ours.outgoing_reads = std::min(ours.outgoing_reads, theirs.initiator_depth);
  return ours;
}

// ---- signs of life ----

constexpr const char* no_sign_of_life = "no answer to the first keep-alive request";
// A connecting end does not wait for the device's retries, because it can connect again.
constexpr duration patience_of_connects = std::chrono::seconds(1);

// Whether the peer has a landing_place for signs of life: weft peers name one in the greeting or the join of a rail.
bool has_landing_place(std::span<const std::byte> said) noexcept {
  const auto hello = greeting::unpack(said);
  const auto rail = rails::join::unpack(said);
  return (hello && hello->landing.key != 0) || (rail && rail->landing.key != 0);
}

// "10.0.0.7" of "10.0.0.7:7471"
std::string_view host_of(std::string_view address) noexcept { return address.substr(0, address.rfind(':')); }

void warn_of_lost_requests(const device& home, std::string_view host) noexcept try {
  const std::string text = fmt::format(
      "the network between {} and {} drops packets without payload: a peer there that is not weft and vanishes while "
      "idle goes unnoticed; use heartbeats in the protocol",
      home.name(), host);
  send_report({.kind = report_kind::warning, .text = text});
} catch (const std::bad_alloc&) {  // no memory for the text
}

// Whether to call find_out(): for a peer that is watched, and has no landing_place. Not on an RNIC, whose packets are
// TCP's and never empty. Not with shared receives either: the probe may end the connection, and the fate of the shared
// receives that its queue pair has taken would be unknown.
bool has_to_find_out(const device& home, const set_up_options& options, std::span<const std::byte> said) noexcept {
  return options.receives == nullptr && options.dead_peer_after.count() > 0 && home.traits().completes_on_answer &&
         !has_landing_place(said);
}

// Whether a peer without a landing_place can be probed by zero-length requests, and the outcome of the request that
// find_out() has sent: `answered` also if it sent none, because it knew from earlier set-ups.
struct finding {
  bool asks_with_nothing = false;
  endpoint::sign_of_life asked_here = endpoint::sign_of_life::answered;
};

task<finding> find_out(endpoint& self, std::string_view peer, duration patience, time_point deadline) {
  const executor_core& running = *executor_core::current();
  const device& home = self.home();
  const std::string_view host = host_of(peer);
  const auto known = home.empty_requests().to(host);
  if (known != empty_requests::fate::unknown) co_return finding{known == empty_requests::fate::arrive};
  const auto sign = co_await self.ask_with_nothing(std::min(later(running.now(), patience), deadline));
  const bool arrives = sign == endpoint::sign_of_life::answered;
  if (arrives) home.empty_requests().note_arrival(host);
  if (sign == endpoint::sign_of_life::lost) {
    if (running.now() >= deadline) throw error(errc::timed_out, no_sign_of_life);
    if (home.empty_requests().note_loss(host)) warn_of_lost_requests(home, host);
  }
  co_return finding{arrives, sign};
}

sockaddr* address_of(socket_address& address) { return const_cast<sockaddr*>(address.data()); }

const socket_address* choose_source(const socket_address& target, std::span<const socket_address> sources) {
  if (sources.empty()) return nullptr;
  const auto same_family = [&](const socket_address& item) { return item.family() == target.family(); };
  const auto found = std::find_if(sources.begin(), sources.end(), same_family);
  if (found != sources.end()) return &*found;
  throw error(errc::invalid_address, "bind the source address: it is of another family than the peer's");
}

task<> resolve_address(guarded_endpoint& self, socket_address target, const socket_address* source,
                       time_point deadline) {
  const char* const step = "resolve the address";
  sockaddr* const from = source == nullptr ? nullptr : const_cast<sockaddr*>(source->data());
  checked(self->calls().resolve_addr(self->id().get(), from, address_of(target), milliseconds_left(deadline)), step);
  static_cast<void>(co_await self->wait_for(RDMA_CM_EVENT_ADDR_RESOLVED, step, deadline));
  if (self->home().is_that_of(*self->id().get())) co_return;
  const rdma_cm_id& id = *self->id().get();
  const char* const found = id.verbs == nullptr ? "no RDMA device" : id.verbs->device->name;
  throw error(errc::wrong_device,
              fmt::format("{}: the route leads through {}, not through {}", step, found, self->home().name()));
}

}  // namespace

void set_traffic_class(rdma_calls& library, cm_id& id, std::optional<std::uint8_t> traffic_class) {
  if (!traffic_class) return;
  std::uint8_t value = *traffic_class;
  checked(library.set_option(id.get(), RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &value, sizeof value),
          "set the traffic class");
}

socket_address address_of_peer(rdma_cm_id& id) {
  const sockaddr* const address = rdma_get_peer_addr(&id);
  const socklen_t size = address->sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  return {address, size};
}

std::string peer_of(rdma_cm_id& id) { return address_of_peer(id).to_string(); }

namespace {

// The real cause of a failed set-up, which the step that failed may not know.
error real_reason(const error& why, stop_token stop) {
  // A step on a worker does not notice the stop, but may fail because of its effect on the peer.
  if (stop.stop_requested()) return why.with_code(errc::canceled);
  // EINVAL is taken for a sign that the kernel has forgotten the id, because the peer has withdrawn its request.
  if (why.code() == std::error_code(EINVAL, std::system_category())) return why.with_code(errc::peer_vanished);
  return why;
}

// Steps for apart(). They may outlive the waiting frame, so each owns the endpoint while it runs, and then yields it.

// Must not use the views in the options, whose memory may have been freed.
task<guarded_endpoint> make_pair(guarded_endpoint self, set_up_options options) {
  co_await self->make_pair(options);
  co_return self;
}

task<guarded_endpoint> make_ready(guarded_endpoint self, agreement agreed) {
  co_await self->make_ready(agreed);
  co_return self;
}

// Where rdma_connect(3) blocks, a worker calls it, because on this thread io_uring, for example, could interrupt and
// restart it again and again. The step may begin after the waiting frame was destroyed, so it has its own copy of the
// private data.
task<guarded_endpoint> ask_to_connect(guarded_endpoint self, rdma_conn_param wanted, std::vector<std::byte> said,
                                      const char* step) {
  wanted.private_data = said.data();
  const auto work = [&self, &wanted] { return self->calls().connect(self->id().get(), &wanted); };
  int result = 0;
  if (self->home().traits().connect_blocks) {
    result = co_await offload(work);
  } else {
    result = work();
  }
  checked(result, step);
  co_return self;
}

task<> destroy_endpoint(std::unique_ptr<endpoint> gone) { co_await gone->destroy(); }

// Yields no link if a zero-length request got no answer, and the connection was given up: the caller connects again.
task<new_link> connect_step_by_step(const socket_address* source, std::shared_ptr<device> home,
                                    std::shared_ptr<domain> memory, const socket_address& target,
                                    const set_up_options& options) {
  executor_state& shared = executor_state::of(home);
  cm_handler* const nobody = nullptr;
  cm_id id(shared.channel().handle(), nobody);
  guarded_endpoint self(shared, std::move(id));
  set_traffic_class(self->calls(), self->id(), options.traffic_class);
  co_await resolve_address(self, target, source, options.deadline);
  const char* const routing = "resolve the route";
  checked(self->calls().resolve_route(self->id().get(), milliseconds_left(options.deadline)), routing);
  static_cast<void>(co_await self->wait_for(RDMA_CM_EVENT_ROUTE_RESOLVED, routing, options.deadline));
  self = co_await weft::detail::apart(make_pair(std::move(self), options));
  const agreement ours = offer(*home, options);
  const rdma_conn_param wanted = parameters(*self.operator->(), options, ours);
  const char* const connecting = "RDMA connection";
  std::vector<std::byte> own_data(options.private_data.begin(), options.private_data.end());
  self = co_await weft::detail::apart(ask_to_connect(std::move(self), wanted, std::move(own_data), connecting));
  const bool is_driven = home->traits().kernel_drives_pair;
  const auto expected = is_driven ? RDMA_CM_EVENT_ESTABLISHED : RDMA_CM_EVENT_CONNECT_RESPONSE;
  const cm_event answer = co_await self->wait_for(expected, connecting, options.deadline);
  agreement agreed = narrowed(ours, answer);
  self = co_await weft::detail::apart(make_ready(std::move(self), agreed));
  if (!is_driven) checked(self->calls().establish(self->id().get()), "confirm the RDMA connection");
  const auto said = answer.said();
  std::vector<std::byte> peer_data(said.begin(), said.end());
  std::string peer = target.to_string();
  if (has_to_find_out(*home, options, peer_data)) {
    const duration patience = std::min(saturated(options.dead_peer_after) / 2, patience_of_connects);
    const finding what = co_await find_out(*self.operator->(), peer, patience, options.deadline);
    if (what.asked_here == endpoint::sign_of_life::lost) {  // await the end: the next attempt posts the same receives
      co_await weft::detail::apart(destroy_endpoint(self.take()));
      co_return new_link(nullptr, {});
    }
    agreed.asks_with_nothing = what.asks_with_nothing;  // if the peer has disconnected, the link will report it
  }
  auto ready = std::make_unique<rdma_link>(self.take(), std::move(memory), std::move(peer), agreed, false);
  co_return new_link(std::move(ready), std::move(peer_data));
}

// Whether the connection manager has chosen a port that it believes to be free, but that TCP has in use.
bool has_met_a_port_in_use(const error& why, const device& home, const socket_address* source) {
  const bool chosen_for_us = source == nullptr || source->port() == 0;
  return home.traits().shares_ports_with_tcp && chosen_for_us &&
         why.code() == std::error_code(EADDRINUSE, std::system_category());
}

task<new_link> connect_from(const socket_address* source, std::shared_ptr<device> home, std::shared_ptr<domain> memory,
                            const socket_address& target, const set_up_options& options) {
  weft::detail::promise_base& self = co_await weft::detail::current_promise();
  for (int left = ports_to_try - 1;; --left) {
    try {
      new_link made = co_await connect_step_by_step(source, home, memory, target, options);
      if (made.link != nullptr) co_return made;
    } catch (const error& why) {
      if (left <= 0 || !has_met_a_port_in_use(why, *home, source)) throw real_reason(why, self.get_stop_token());
    }
  }
}

}  // namespace

// Connects by the system's own route. If that leads through another device, and the caller has given no source, tries
// this device's addresses as sources.
task<new_link> connect(std::shared_ptr<device> home, std::shared_ptr<domain> memory, const socket_address& target,
                       std::span<const socket_address> sources, const set_up_options& options) {
  const socket_address* const chosen = choose_source(target, sources);
  std::optional<error> wrong;
  try {
    co_return co_await connect_from(chosen, home, memory, target, options);
  } catch (const error& why) {
    if (why.code() != errc::wrong_device || chosen != nullptr) throw;
    wrong = why;
  }
  const std::vector<socket_address> own = home->addresses(target.family());
  for (const socket_address& source : own) {
    try {
      co_return co_await connect_from(&source, home, memory, target, options);
    } catch (const error& why) {
      if (why.code() != errc::wrong_device) throw;
    }
  }
  throw *wrong;
}

namespace {

task<std::unique_ptr<net::link>> accept_step_by_step(std::shared_ptr<device> home, std::shared_ptr<domain> memory,
                                                     cm_id id, const cm_event& asked, const set_up_options& options,
                                                     std::optional<std::uint8_t> traffic_class) {
  const struct guard {  // destroys the id unless it was taken
    cm_id& id;
    ~guard() { cm_id::destroy_on_worker(std::move(id)); }
  } guarded{id};
  executor_state& shared = executor_state::of(home);
  std::string peer = peer_of(*id.get());
  agreement agreed = narrowed(offer(*home, options), asked);
  checked(id.migrate(shared.channel().handle()), "move the request to this executor");
  guarded_endpoint self(shared, std::move(id));
  self->set_traffic_class(options.traffic_class ? options.traffic_class : traffic_class);
  self = co_await weft::detail::apart(make_pair(std::move(self), options));
  self = co_await weft::detail::apart(make_ready(std::move(self), agreed));
  rdma_conn_param wanted = parameters(*self.operator->(), options, agreed);
  const char* const accepting = "accept the RDMA connection";
  checked(self->calls().accept(self->id().get(), &wanted), accepting);
  static_cast<void>(co_await self->wait_for(RDMA_CM_EVENT_ESTABLISHED, accepting, options.deadline));
  if (has_to_find_out(*home, options, asked.said())) {
    const duration patience = saturated(options.dead_peer_after);
    const finding what = co_await find_out(*self.operator->(), peer, patience, options.deadline);
    if (what.asked_here != endpoint::sign_of_life::answered) throw error(errc::peer_vanished, no_sign_of_life);
    agreed.asks_with_nothing = what.asks_with_nothing;
  }
  const bool listens_first = home->traits().initiator_speaks_first;
  co_return std::make_unique<rdma_link>(self.take(), std::move(memory), std::move(peer), agreed, listens_first);
}

}  // namespace

task<std::unique_ptr<net::link>> accept(std::shared_ptr<device> home, std::shared_ptr<domain> memory, cm_id id,
                                        const cm_event& asked, const set_up_options& options,
                                        std::optional<std::uint8_t> traffic_class) {
  weft::detail::promise_base& self = co_await weft::detail::current_promise();
  try {
    co_return co_await accept_step_by_step(std::move(home), std::move(memory), std::move(id), asked, options,
                                           traffic_class);
  } catch (const error& why) {
    throw real_reason(why, self.get_stop_token());
  }
}

}  // namespace weft::net::verbs
