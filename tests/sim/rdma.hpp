// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/verbs/calls.hpp>
#include <weft/net/verbs/device.hpp>

#include "kit/standard.hpp"
#include "world.hpp"

namespace weft::sim {

/// What an RDMA device is like; the seed chooses.
struct rdma_traits {
  bool like_rxe = false;  ///< of rdma_rxe what weft has to know: see net::verbs::device
  bool is_iwarp = false;  ///< an RNIC: RFC 5040, 5041 and 5044 over a TCP connection of its own
  net::verbs::window_kind windows = net::verbs::window_kind::type_2b;
  bool has_atomics = true;
  std::uint32_t most_inline = 0;     ///< bytes of a request
  int most_parts = 8;                ///< scatter elements of a request
  int most_entries = 4096;           ///< of a completion queue
  bool leaves_completions = false;   ///< of a queue pair that is destroyed, in its completion queue
  bool tells_of_refusals = true;     ///< IBV_EVENT_QP_ACCESS_ERR
  bool loses_events = false;         ///< of completion queues, once in a while, as a kernel without memory does
  bool keeps_late_receives = false;  ///< posted behind the end: does not flush them

  int numa_node = -1;  ///< next to it; -1: none

  bool pages_on_demand = true;  ///< any memory, or all of it at once; not of an RNIC

  bool has_flush = false;        ///< FLUSH, and takes all memory for persistent
  bool driver_has_flush = true;  ///< and its driver in user space as well
  bool has_atomic_write = false;

  // Of all others.
  unsigned one_answer_lost_in = 0;   ///< and those that follow, until it asks again; 0: none is
  bool loses_empty_packets = false;  ///< the network between, as some clouds' do
  bool leaves_at_once = false;       ///< what it has accepted, as a server that has changed its mind
  std::uint64_t bytes_per_us = 0;    ///< of a connection in one direction; 0: as much as there is

  // Of an RNIC.
  bool completes_when_sent = false;     ///< once TCP has it, and not once the peer has
  bool completes_out_of_order = false;  ///< a read after what was posted behind it, as the kernel's siw
  bool refuses_behind_end = false;      ///< what is posted to a queue pair in ERR; else it is flushed
  unsigned ports_in_use = 0;            ///< by TCP, of those that the connection manager chooses first
  std::size_t stream_bytes = 65'536;    ///< that its TCP takes without an acknowledgement
};

/// An RDMA device with its connection manager, in virtual time: what stands behind the table of calls into libibverbs
/// and librdmacm of a simulated world. Delays, the order of what happens on different connections, and failures come
/// from the world's seed.
///
/// It is strict. What a device or library would suffer in silence, or would take for an error of no consequence, ends
/// the run: a queue that overflows, memory that is deregistered while the device may use it, or changes under a
/// request, a message beyond the credits, an object destroyed before what stands on it or while one of its events has
/// not been acknowledged, a request behind the end of its queue pair, a completion that nobody looks for.
///
/// Of an RNIC it is stricter than some are: what a read arrives in has to be open to writes of peers, and whoever has
/// accepted a connection sends nothing before it has heard the other end.
///
/// All calls come from the executor's thread, or from a worker's while that one waits.
class rdma final : public net::verbs::rdma_calls, private test::immovable {
 public:
  /// What it is like, the seed says.
  explicit rdma(world& place);
  rdma(world& place, const rdma_traits& like);
  ~rdma() override;

  static constexpr const char* device_name = "sim0";
  static constexpr const char* other_device_name = "sim1";

  [[nodiscard]] const rdma_traits& traits() const noexcept { return traits_; }

  // Faults of the connection whose client has this port. From when one has harmed it, it is world::disturbed(), but for
  // a stall: one that finds nobody is none.

  /// The device breaks one end off.
  void break_off(std::uint16_t port);
  /// Nothing gets through any more, neither requests nor words of the connection manager, and nobody says so.
  void cut(std::uint16_t port);
  /// For so long requests wait.
  void stall(std::uint16_t port, duration how_long);
  /// The next request of one end is refused for want of memory.
  void fail_post(std::uint16_t port, bool of_client);
  // The same of a cable: of all connections to this port, which has one of its own. They disturb nobody, because
  // whoever has other cables goes on.

  void break_off_cable(std::uint16_t port);
  /// Until it is mended.
  void cut_cable(std::uint16_t port);
  void mend_cable(std::uint16_t port);
  void stall_cable(std::uint16_t port, duration how_long);
  void fail_post_on_cable(std::uint16_t port, bool of_client);
  /// Whether a connection over it is made, and has not ended.
  [[nodiscard]] bool connects_over(std::uint16_t port) noexcept;

  /// The device's port goes down for a moment, which disturbs nobody.
  void take_cable_out(duration how_long);
  /// The device goes, and takes all that is on it along. Disturbs everybody.
  void remove();
  [[nodiscard]] bool removed() const noexcept { return removed_; }

  /// What has been made and not destroyed: empty if there is nothing. Of a device that has gone, nothing could be.
  [[nodiscard]] std::string leaks();
  /// Windows that are there.
  [[nodiscard]] std::size_t windows() const noexcept { return windows_.size(); }
  /// Those through which a peer could get in.
  [[nodiscard]] std::size_t open_windows() const noexcept;
  /// How often a window was deallocated or memory deregistered by an executor, which a device holds up for that.
  [[nodiscard]] unsigned hold_ups() const noexcept { return hold_ups_; }
  /// How many requests have brought their data inline.
  [[nodiscard]] unsigned inline_requests() const noexcept { return inline_requests_; }
  /// How often requests were handed over, one or more at a time.
  [[nodiscard]] unsigned doorbells() const noexcept { return doorbells_; }
  [[nodiscard]] unsigned atomic_writes() const noexcept { return atomic_writes_; }
  /// How often the end of a request was told of.
  [[nodiscard]] unsigned completions() const noexcept { return completions_; }
  /// Whether all of this memory has been flushed since it changed last.
  [[nodiscard]] bool is_persistent(std::span<const std::byte> memory) const;
  /// The system is about to take this memory away.
  void check_unmapping(const void* address, std::size_t bytes);

  int fork_init() noexcept override { return 0; }
  [[nodiscard]] ibv_fork_status is_fork_initialized() noexcept override { return IBV_FORK_UNNEEDED; }
  int get_device_list(int* count, ibv_device*** list) noexcept override;
  void free_device_list(ibv_device**) noexcept override {}
  int open_device(ibv_device* which, ibv_context** opened) noexcept override;
  int close_device(ibv_context* context) noexcept override;
  int query_device(ibv_context* context, ibv_device_attr* found) noexcept override;
  int query_device_ex(ibv_context* context, ibv_device_attr_ex* found) noexcept override;
  int query_port(ibv_context* context, std::uint8_t port, ibv_port_attr* found) noexcept override;
  int query_gid(ibv_context* context, std::uint8_t port, int index, ibv_gid* found) noexcept override;
  int alloc_pd(ibv_context* context, ibv_pd** made) noexcept override;
  int dealloc_pd(ibv_pd* pd) noexcept override;
  int get_async_event(ibv_context* context, ibv_async_event* found) noexcept override;
  void ack_async_event(ibv_async_event* event) noexcept override;
  int set_nonblocking(int) noexcept override { return fails() ? -EBADF : 0; }
  [[nodiscard]] int numa_node(const std::string&) const override { return traits_.numa_node; }
  [[nodiscard]] bool has_flush() const noexcept override { return true; }
  [[nodiscard]] std::string why_not_dax(std::span<const std::byte>) const override { return {}; }

  int reg_mr(ibv_pd* pd, void* memory, std::size_t bytes, std::uint64_t iova, unsigned access,
             ibv_mr** made) noexcept override;
  int reg_dmabuf_mr(ibv_pd*, std::uint64_t, std::size_t, std::uint64_t, int, unsigned, ibv_mr**) noexcept override {
    return -EOPNOTSUPP;
  }
  int dereg_mr(ibv_mr* item) noexcept override;
  int alloc_mw(ibv_pd* pd, ibv_mw_type type, ibv_mw** made) noexcept override;
  int dealloc_mw(ibv_mw* item) noexcept override;
  int bind_mw(ibv_qp* pair, ibv_mw* window, ibv_mw_bind* wanted) noexcept override;

  int create_comp_channel(ibv_context* context, ibv_comp_channel** made) noexcept override;
  int destroy_comp_channel(ibv_comp_channel* item) noexcept override;
  int create_cq(ibv_context* context, int entries, ibv_comp_channel* channel, ibv_cq** made) noexcept override;
  int destroy_cq(ibv_cq* item) noexcept override;
  int req_notify_cq(ibv_cq* item) noexcept override;
  int get_cq_event(ibv_comp_channel* item) noexcept override;
  void ack_cq_events(ibv_cq* item, unsigned count) noexcept override;
  int poll_cq(ibv_cq* item, int most, ibv_wc* found) noexcept override;

  int create_qp(ibv_pd* pd, ibv_qp_init_attr* wanted, ibv_qp** made) noexcept override;
  int create_qp_ex(ibv_pd* pd, ibv_qp_init_attr* wanted, std::uint64_t operations, ibv_qp** made) noexcept override;
  int modify_qp(ibv_qp* item, ibv_qp_attr* wanted, int mask) noexcept override;
  int destroy_qp(ibv_qp* item) noexcept override;
  int post_send(ibv_qp* item, ibv_send_wr* first, ibv_send_wr** refused) noexcept override;
  int wr_flush(ibv_qp* item, const ibv_send_wr& what) noexcept override;
  int wr_atomic_write(ibv_qp* item, const ibv_send_wr& what) noexcept override;
  int post_recv(ibv_qp* item, ibv_recv_wr* first, ibv_recv_wr** refused) noexcept override;

  int create_srq(ibv_pd* pd, ibv_srq_init_attr* wanted, ibv_srq** made) noexcept override;
  int destroy_srq(ibv_srq* item) noexcept override;
  int post_srq_recv(ibv_srq* item, ibv_recv_wr* first, ibv_recv_wr** refused) noexcept override;

  int create_event_channel(rdma_event_channel** made) noexcept override;
  void destroy_event_channel(rdma_event_channel* item) noexcept override;
  int get_cm_event(rdma_event_channel* item, rdma_cm_event** found) noexcept override;
  int ack_cm_event(rdma_cm_event* event) noexcept override;
  int create_id(rdma_event_channel* channel, void* context, rdma_cm_id** made) noexcept override;
  int destroy_id(rdma_cm_id* item) noexcept override;
  int migrate_id(rdma_cm_id* item, rdma_event_channel* channel) noexcept override;
  int set_option(rdma_cm_id*, int, int, void*, std::size_t) noexcept override { return fails() ? -EINVAL : 0; }
  int bind_addr(rdma_cm_id* item, sockaddr* address) noexcept override;
  int listen(rdma_cm_id* item, int backlog) noexcept override;
  int resolve_addr(rdma_cm_id* item, sockaddr* source, sockaddr* target, int timeout_ms) noexcept override;
  int resolve_route(rdma_cm_id* item, int timeout_ms) noexcept override;
  int init_qp_attr(rdma_cm_id* item, ibv_qp_attr* attributes, int* mask) noexcept override;
  int connect(rdma_cm_id* item, rdma_conn_param* wanted) noexcept override;
  int establish(rdma_cm_id* item) noexcept override;
  int accept(rdma_cm_id* item, rdma_conn_param* wanted) noexcept override;
  int reject(rdma_cm_id* item, const void* data, std::uint8_t bytes) noexcept override;
  int disconnect(rdma_cm_id* item) noexcept override;
  int notify(rdma_cm_id* item, ibv_event_type event) noexcept override;

 private:
  rdma(world& place, random dice, const rdma_traits* like);

  struct context;
  struct protection;
  struct region;
  struct window;
  struct channel;
  struct queue;
  struct shared_queue;
  struct pair;
  struct pair_name;
  struct request;
  struct receive;
  struct path;
  struct stream;
  struct event_queue;
  struct notice;
  struct identity;
  enum class verdict : std::uint8_t { done, unfinished, no_receive, refused };

  template <class... Arguments>
  void require(bool holds, const char* rule, Arguments... numbers);
  void later(duration how_long, std::function<void()> what);
  /// If the queue pair is still there.
  void later(duration how_long, const pair& of, void (rdma::*what)(pair&));
  /// If the id is still there.
  void later(duration how_long, std::uint64_t id, std::function<void(identity&)> what);
  [[nodiscard]] duration some_delay() noexcept { return place_.delay(); }
  [[nodiscard]] bool fails() noexcept { return removed_ || place_.call_fails(); }
  [[nodiscard]] bool pages_on_demand() const noexcept { return traits_.pages_on_demand && !traits_.is_iwarp; }
  [[nodiscard]] bool has_windows_of_one_peer() const noexcept {
    return traits_.windows == net::verbs::window_kind::type_2a || traits_.windows == net::verbs::window_kind::type_2b;
  }

  // Objects.
  template <class Object>
  [[nodiscard]] static Object* make_in(ibv_pd* domain);
  template <class Object>
  static int destroy(Object* gone);
  void bury() noexcept;
  void raise(pair& about, ibv_event_type what);
  void tell_all(ibv_event_type what);
  [[nodiscard]] unsigned& unacknowledged(const ibv_async_event& event) noexcept;
  void purge_events(context& where, const void* about);
  void promise(queue& of, std::size_t entries);
  void complete(queue& to, const pair& of, const ibv_wc& what, bool of_request, std::uint64_t sequence);
  void wake(queue& from);
  [[nodiscard]] region* find_local(std::uint32_t key) noexcept;
  void use(const std::vector<ibv_sge>& parts, const ibv_pd* domain, int change);
  void check_local(const std::vector<ibv_sge>& parts, const ibv_pd* domain, bool written);

  // Requests.
  [[nodiscard]] pair* find_pair(std::uint32_t number) noexcept;
  [[nodiscard]] pair* find_pair(const pair_name& name) noexcept;
  int post(pair& to, ibv_send_wr* first, ibv_send_wr** refused);
  [[nodiscard]] int post_alone(pair& to, const ibv_send_wr& what, std::uint64_t operation);
  void check_abilities(const pair& of, const request& what);
  [[nodiscard]] request make_request(pair& of, const ibv_send_wr& from);
  [[nodiscard]] receive make_receive(const ibv_recv_wr& from, const ibv_pd* domain);
  void use_all(const shared_queue& which, int change);
  void kick(pair& from);
  void deliver(pair& from);
  void retry(pair& from);
  void give_up_waiting(pair& from);
  [[nodiscard]] pair* hearing_peer(const pair& of) noexcept;
  void ask_again(pair& from);
  void answer_again(pair& from, pair& to);
  [[nodiscard]] path* way_of(const pair& from) noexcept;
  [[nodiscard]] verdict execute(request& what, pair& to);
  [[nodiscard]] verdict place_write(request& what, pair& to);
  [[nodiscard]] verdict place_word(const request& what, const pair& to);
  [[nodiscard]] verdict store(const request& what, const pair& to);
  [[nodiscard]] verdict take_message(request& what, pair& to);
  [[nodiscard]] verdict end_message(const request& what, pair& to);
  void refuse(pair& at);
  void greet(pair& to);
  void repeat_from(pair& from, std::size_t index);
  [[nodiscard]] ibv_wc_status execute_here(pair& on, const request& what);
  [[nodiscard]] bool bind(pair& on, const request& what);
  [[nodiscard]] std::byte* open_to_peer(const pair& at, std::uint32_t key, std::uint64_t address, std::uint64_t bytes,
                                        unsigned right) noexcept;
  [[nodiscard]] bool invalidate(pair& at, std::uint32_t key) noexcept;
  void answer_later(pair& to, std::uint64_t sequence, ibv_wc_status status);
  void answer(pair& to, std::uint64_t sequence, ibv_wc_status status);
  void finish(pair& of);
  void take_effect(pair& of, const request& what);
  void end_front(pair& of, ibv_wc_status status);
  void complete_request(pair& of, const request& what, std::uint64_t sequence, ibv_wc_status status);
  void fail_pair(pair& which);
  void flush_later(pair& which);
  void flush(pair& which);
  void flush_receive(pair& which, const receive& item);

  // TCP, below an RNIC.
  void join(identity& which, std::uint8_t most_asking);
  void transmit(pair& from);
  void move(const std::shared_ptr<stream>& what);
  void take_in(const std::shared_ptr<stream>& what);
  void arrived(stream& what);
  void hang_up(pair& which, bool in_order);

  // Connections.
  [[nodiscard]] identity* find_id(std::uint64_t number) noexcept;
  [[nodiscard]] identity& add_id(event_queue& on, void* about);
  [[nodiscard]] bool is_taken(const identity& wanted) noexcept;
  void tell(identity& whom, rdma_cm_event_type what, int status = 0);
  void tell(identity& whom, rdma_cm_event_type what, int status, const rdma_conn_param& said,
            const std::vector<std::byte>& data);
  using message = std::function<void(identity& to)>;
  using no_answer = std::function<void(identity& from, bool lost)>;
  void send(const identity& from, message what, no_answer otherwise = {});
  void request_arrives(std::uint64_t from, const rdma_conn_param& wanted, const std::vector<std::byte>& said);
  void refuse_connection(identity& from, int reason, std::vector<std::byte> said);
  void tell_of_end(identity& whom);
  void tell_in_turn(identity& whom, std::function<void(identity& whom)> what);
  void accept_over_tcp(identity& which, const rdma_conn_param& wanted);
  void leave(identity& from);
  void take_leave_of(identity& gone);
  [[nodiscard]] pair* pair_of(std::uint16_t port, bool of_client) noexcept;
  [[nodiscard]] bool is_used(const path& way) const noexcept;
  void strike(std::uint16_t port);
  [[nodiscard]] std::vector<std::shared_ptr<path>> ways_to(std::uint16_t listener) const;
  [[nodiscard]] bool break_off(pair* chosen);

  world& place_;
  random dice_;
  const rdma_traits traits_;
  unsigned ports_tried_ = 0;
  unsigned hold_ups_ = 0;
  unsigned inline_requests_ = 0;
  unsigned doorbells_ = 0;
  unsigned atomic_writes_ = 0;  // that were placed
  unsigned completions_ = 0;
  bool removed_ = false;
  bool port_is_down_ = false;
  bool flushes_when_removed_ = false;
  ibv_device device_{};
  std::array<ibv_device*, 2> device_list_{};
  ibv_context manager_context_{};  // of the connection manager's own
  ibv_device other_device_{};      // that has every other address of this machine
  ibv_context other_context_{};    // the connection manager's

  std::uint64_t last_number_ = 0;
  std::set<context*> contexts_;
  std::set<protection*> domains_;
  std::map<std::uint32_t, region*> local_keys_;
  std::map<std::uint32_t, region*> remote_keys_;
  std::map<const std::byte*, std::byte> stored_;  // by FLUSH
  std::map<std::uint32_t, window*> windows_;      // by what their keys have in common
  std::map<std::uint32_t, pair*> pairs_;          // by number
  std::set<channel*> channels_;
  std::map<std::uint64_t, queue*> queues_;
  unsigned device_events_out_ = 0;  // not acknowledged
  std::set<shared_queue*> shared_queues_;
  std::set<event_queue*> event_queues_;
  std::map<std::uint64_t, identity*> ids_;
  std::size_t events_out_ = 0;  // of the connection manager, not acknowledged
  std::map<std::uint16_t, std::shared_ptr<path>> paths_;
  std::set<std::uint16_t> cut_cables_;
  std::uint16_t next_port_ = 50'000;
  std::uint32_t next_key_ = 1;
  std::uint32_t next_pair_ = 17;
};

}  // namespace weft::sim
