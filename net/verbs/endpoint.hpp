// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/transport.hpp>
#include <weft/net/verbs/bound_windows.hpp>
#include <weft/net/verbs/executor_state.hpp>
#include <weft/net/verbs/receive_queue.hpp>
#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/core/root_task.hpp>
#include <weft/runtime/sync/event.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace weft::net::verbs {

/// How many requests a queue pair takes beside the connection's: windows that are bound, and a sign of life.
inline constexpr std::uint16_t bind_requests = 4;
inline constexpr std::uint16_t keep_alive_requests = 1;

/// What the wr_id of a receive says beside the tag: this, and its slot.
inline constexpr std::uint32_t receive_bit = 0x1'0000;
/// What that of an element of a run says: this, and its place in the link's ring of them.
inline constexpr std::uint32_t run_bit = 0x2'0000;

/// What a set-up has agreed on.
struct agreement {
  std::uint8_t incoming_reads = 0;  ///< responder resources
  std::uint8_t outgoing_reads = 0;  ///< initiator depth
  std::chrono::milliseconds dead_peer_after{};
  /// A peer without a landing_place may be asked for a sign of life: requests without bytes get through to it.
  bool asks_with_nothing = true;
};

/// Whom an endpoint's events concern once the set-up is over.
class endpoint_events : public cm_handler {
 public:
  /// The device, or the queue pair, has failed.
  virtual void on_failure(const error& why) noexcept = 0;

 protected:
  ~endpoint_events() = default;
};

/// The resources of one connection: an id, a queue pair, room in a completion queue, and registered memory for the data
/// that requests carry beside the user's. First a set-up owns it, then a link, and a worker destroys it at last.
///
/// The queue pair is not the id's (rdma_create_qp(3)): librdmacm would leave the RNR timer at zero, which means 655 ms.
class endpoint final : private cm_handler,
                       private completion_sink,
                       private receive_sink,
                       private async_handler,
                       private bound_windows::owner,
                       private weft::detail::remote_work {
 public:
  /// Bytes of a request that are not the user's: what it sends, a message's trailer, or what it yields.
  static constexpr std::size_t staging_bytes = 16;

  /// Registered memory for those of each request, and behind them, at requests(), for a sign of life.
  struct staging_area {
    std::unique_ptr<std::byte[]> memory;
    ibv_mr* region = nullptr;

    [[nodiscard]] std::byte* of(std::size_t slot) const noexcept { return memory.get() + slot * staging_bytes; }
    [[nodiscard]] std::uint32_t key() const noexcept { return region->lkey; }
  };

  endpoint(executor_state& shared, cm_id id);
  endpoint(const endpoint&) = delete;
  endpoint& operator=(const endpoint&) = delete;
  ~endpoint();

  [[nodiscard]] cm_id& id() noexcept { return id_; }
  [[nodiscard]] device& home() const noexcept { return *shared_.home(); }
  [[nodiscard]] rdma_calls& calls() const noexcept { return home().calls(); }
  [[nodiscard]] ibv_qp* pair() const noexcept { return pair_; }
  [[nodiscard]] completion_queue& queue() const noexcept { return *queue_; }
  [[nodiscard]] std::uint16_t requests() const noexcept { return requests_; }
  [[nodiscard]] std::uint16_t receives() const noexcept { return receives_; }
  /// Whether its receives are others' as well, and complete in a queue of their own.
  [[nodiscard]] bool shares_receives() const noexcept { return shared_receives_ != nullptr; }
  /// Scatter elements of a request, and of a read.
  [[nodiscard]] std::uint8_t max_parts() const noexcept;
  [[nodiscard]] std::uint8_t max_read_parts() const noexcept;
  [[nodiscard]] std::uint32_t max_inline_bytes() const noexcept { return max_inline_bytes_; }
  /// Of what requests send, and of what they yield: two, because an RNIC's peer may write into the latter.
  [[nodiscard]] const staging_area& sources() const noexcept { return sources_; }
  [[nodiscard]] const staging_area& sinks() const noexcept { return sinks_; }
  /// The windows that are bound through the queue pair.
  [[nodiscard]] bound_windows& windows() noexcept { return windows_; }

  /// The port of the device that the connection goes through; ports count from 1.
  [[nodiscard]] int port() const noexcept { return id_.get()->port_num; }
  /// Takes the completions that are there.
  void drain() noexcept;

  /// Of its packets, whatever the peer has asked for. Before make_pair().
  void set_traffic_class(std::optional<std::uint8_t> wanted) noexcept { traffic_class_ = wanted; }
  /// Makes the queue pair, in the state INIT, and posts its first receives: nothing can be posted between the peer's
  /// hearing that the connection is there and its first message. Throws weft::error.
  [[nodiscard]] task<> make_pair(const set_up_options& options);
  /// Takes the queue pair to RTS, once the connection manager knows the peer's. Throws weft::error.
  [[nodiscard]] task<> make_ready(agreement what);
  /// To ERR: everything that is posted is flushed. Again, for what was posted after it went there by itself. False if
  /// the device does not do it.
  bool make_broken() noexcept;

  /// The next event of the set-up if it is `expected`. Any other is an error, and so is its absence; both name `step`.
  [[nodiscard]] task<cm_event> wait_for(rdma_cm_event_type expected, const char* step, time_point deadline);
  /// What has become of a request without bytes that asks the peer for a sign of life.
  enum class sign_of_life : std::uint8_t {
    answered,
    lost,  ///< the device has given up asking, or there is no answer in time: the network, or a peer that has vanished
    undone,  ///< the connection has ended for another reason, as when the peer has left it
  };
  [[nodiscard]] task<sign_of_life> ask_with_nothing(time_point deadline);
  /// From now on events go there; those that nobody has asked for at once.
  void hand_events_to(endpoint_events* handler) noexcept { handler_ = handler; }
  /// Passes on the events that came before there was a handler.
  void replay_events() noexcept;
  /// The first part of the wr_ids of its own receives.
  [[nodiscard]] std::uint64_t receive_tag() const noexcept { return receive_tag_.value_or(0); }
  /// How many make_pair() has posted, of slots that count from 0.
  [[nodiscard]] std::size_t posted_receives() const noexcept { return posted_receives_; }
  /// From now on the completions of receives go there, of its own or of shared ones; those that have come so far at
  /// once.
  void hand_receives_to(completion_sink& own, receive_sink& shared) noexcept;

  /// Destroys everything on a worker: after that nothing touches memory for this connection any more, and whoever has
  /// had a window revoked has been told. Once; it has been made while there was memory.
  [[nodiscard]] task<> destroy() noexcept { return std::move(destruction_); }
  /// The same in the background. From any thread: between two runs of its executor at once, and if that is driven from
  /// outside, or another thread's, when it is served next.
  static void dispose(std::unique_ptr<endpoint> gone) noexcept;

 private:
  struct early_receive {
    ibv_wc what;
    receive_work* work;
  };

  // completion_sink: of its own receives
  void on_completion(const ibv_wc& what, std::uint32_t detail) noexcept override;
  void on_queue_failure(const error& why) noexcept override { receives_failure_ = why; }

  void on_cm_event(const cm_event& what) noexcept override;
  void on_async_event(ibv_event_type what, int port) noexcept override;
  void on_receive(const ibv_wc& what, receive_work& work) noexcept override;
  void on_receives_failed(const error& why) noexcept override { receives_failure_ = why; }
  void create_pair();
  void register_staging(staging_area& area, unsigned rights);
  void post_first_receives();
  void change_to(ibv_qp_state state, const agreement& what);
  void shut_out_peers(int result) noexcept override;
  void on_window_kept() noexcept override;
  [[nodiscard]] task<> destroy_on_worker();
  void detach_from_shared_receives() noexcept;
  [[nodiscard]] task<> wait_until_flushed();
  void destroy_now() noexcept;
  void destroy_pair() noexcept;
  void deregister_staging() noexcept;
  static void dispose_at_home(std::unique_ptr<endpoint> gone) noexcept;
  [[nodiscard]] static task<> end_in_background(endpoint& self);
  // remote_work: disposed of on another thread
  void run_on_executor() noexcept override { dispose_at_home(std::unique_ptr<endpoint>(this)); }

  executor_state& shared_;
  executor_state::user watching_;
  cm_id id_;
  std::shared_ptr<net::receive_queue> kept_receives_;
  receive_queue* shared_receives_ = nullptr;  // the same; null: the queue pair has receives of its own
  std::shared_ptr<own_receives> first_receives_;
  std::optional<std::uint64_t> receive_tag_;  // of receives of its own, once it is in the queue
  std::size_t posted_receives_ = 0;
  completion_queue* queue_ = nullptr;
  ibv_qp* pair_ = nullptr;
  std::shared_ptr<async_target> target_;  // of the queue pair's events
  staging_area sources_;
  staging_area sinks_;
  bound_windows windows_;  // they are taken back also while a worker destroys the rest
  std::uint16_t requests_ = 0;
  std::uint16_t receives_ = 0;
  std::uint32_t max_inline_bytes_ = 0;
  std::optional<std::uint8_t> traffic_class_;
  std::uint32_t entries_ = 0;  // that we have reserved in the queue

  endpoint_events* handler_ = nullptr;
  std::deque<cm_event> events_;
  event changed_;
  std::vector<early_receive> early_receives_;  // that nobody has asked for yet
  std::optional<error> receives_failure_;
  std::optional<error> lost_;  // the device, or the queue pair, before anybody has asked for it
  bool ready_ = false;         // the queue pair can receive
  event last_receive_;
  task<> destruction_;                        // destroy_on_worker()
  weft::detail::root_handle<void> disposal_;  // end_in_background()
};

}  // namespace weft::net::verbs
