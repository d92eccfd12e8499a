// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/transport.hpp>
#include <weft/net/verbs/bound_windows.hpp>
#include <weft/net/verbs/executor_state.hpp>
#include <weft/net/verbs/receive_queue.hpp>
#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/core/root_task.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/sync/event.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

namespace weft::net::verbs {

/// Requests that a queue pair takes beside the connection's: for windows, and for a keep-alive.
inline constexpr std::uint16_t bind_requests = 4;
inline constexpr std::uint16_t keep_alive_requests = 1;

/// The wr_id of a receive that is not shared holds, beside the tag, this bit and the slot.
inline constexpr std::uint32_t receive_bit = 0x1'0000;
/// A run element's wr_id holds, beside the tag, this bit and the element's place in the link's ring.
inline constexpr std::uint32_t run_bit = 0x2'0000;

/// The parameters that a set-up has agreed on.
struct agreement {
  std::uint8_t incoming_reads = 0;  ///< responder resources
  std::uint8_t outgoing_reads = 0;  ///< initiator depth
  std::chrono::milliseconds dead_peer_after{};
  /// Whether a peer without a landing_place is probed by zero-length requests: false if the set-up got no answer to
  /// such a request, or knows from earlier ones that they are lost.
  bool asks_with_nothing = true;
};

/// Receives an endpoint's events once the set-up is over.
class endpoint_events : public cm_handler {
 public:
  /// The device or the queue pair has failed, a window of the peer could not be revoked, or there was no memory to keep
  /// an event.
  virtual void on_failure(const error& why) noexcept = 0;

 protected:
  ~endpoint_events() = default;
};

/// The resources of one connection: an id, a queue pair, room in a completion queue, and registered memory for the data
/// that requests carry beside the user's. A set-up owns it first, then a link; at last a worker destroys it.
///
/// The queue pair is not made by rdma_create_qp(3), because librdmacm would leave its RNR timer at zero, which means
/// 655 ms.
class endpoint final : private cm_handler,
                       private completion_sink,
                       private receive_sink,
                       private async_handler,
                       private bound_windows::owner,
                       private weft::detail::remote_work {
 public:
  /// Room in each request for data that is not the user's: a message's trailer, or the answer to a flush or an atomic.
  static constexpr std::size_t staging_bytes = 16;

  /// Registered memory, staging_bytes for each request, and behind them, at index requests(), for the keep-alive.
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
  /// Whether it uses shared receives, which complete in a queue of their own.
  [[nodiscard]] bool shares_receives() const noexcept { return shared_receives_ != nullptr; }
  /// The most scatter/gather elements of a request, and of a read.
  [[nodiscard]] std::uint8_t max_parts() const noexcept;
  [[nodiscard]] std::uint8_t max_read_parts() const noexcept;
  [[nodiscard]] std::uint32_t max_inline_bytes() const noexcept { return max_inline_bytes_; }
  /// Whether the queue pair takes rdma_calls::wr_flush(), and rdma_calls::wr_atomic_write().
  [[nodiscard]] bool has_flush() const noexcept { return (operations_ & with_flush) != 0; }
  [[nodiscard]] bool has_atomic_write() const noexcept { return (operations_ & with_atomic_write) != 0; }
  /// Staging for the data that requests send, and for their answers. Two areas, because an RNIC's peer may write into
  /// the sinks.
  [[nodiscard]] const staging_area& sources() const noexcept { return sources_; }
  [[nodiscard]] const staging_area& sinks() const noexcept { return sinks_; }
  /// The windows that are bound through the queue pair.
  [[nodiscard]] bound_windows& windows() noexcept { return windows_; }
  /// Why the queue pair was moved to ERR, if that was because a window could not be revoked. endpoint_events hears of
  /// it as well, but maybe only after the first requests were flushed.
  [[nodiscard]] std::optional<error> failure_of_window() const noexcept;

  /// The port of the device that the connection goes through; ports count from 1.
  [[nodiscard]] int port() const noexcept { return id_.get()->port_num; }
  /// Polls the completions that are there already.
  void drain() noexcept;

  /// Sets the traffic class of the queue pair's packets, whatever the peer has asked for; empty: that of the path. Call
  /// it before make_pair().
  void set_traffic_class(std::optional<std::uint8_t> wanted) noexcept { traffic_class_ = wanted; }
  /// Creates the queue pair, in the state INIT, and posts the first receives, unless receives are shared: the peer may
  /// send as soon as it knows that the connection is established, when it would be too late to post them. Throws
  /// weft::error.
  task<> make_pair(const set_up_options& options);
  /// Moves the queue pair to RTS, unless the kernel does so. Call it once the connection manager knows the peer's queue
  /// pair. Throws weft::error.
  task<> make_ready(agreement what);
  /// Moves the queue pair to ERR, so that everything posted is flushed. A queue pair in ERR is moved there again, to
  /// flush what was posted since. False if the device refuses.
  bool make_broken() noexcept;

  /// Yields the next event of the set-up. Throws an error that names `step` if the device or the queue pair fails, if
  /// an event was lost for want of memory, or if the event is not `expected`, reports a failure, or does not come in
  /// time; errc::canceled at a stop.
  task<cm_event> wait_for(rdma_cm_event_type expected, const char* step, time_point deadline);
  /// The outcome of a zero-length request that probes the peer.
  enum class sign_of_life : std::uint8_t {
    answered,
    lost,    ///< no answer in time, or not after all retries: the network loses such requests, or the peer has vanished
    undone,  ///< the connection has ended for another reason, for example because the peer has disconnected
  };
  /// Probes the peer by a zero-length request. Throws weft::error if it cannot be posted, and errc::canceled at a stop.
  task<sign_of_life> ask_with_nothing(time_point deadline);
  /// Passes events to `handler` from now on; for earlier ones see replay_events().
  void hand_events_to(endpoint_events* handler) noexcept { handler_ = handler; }
  /// Passes on the events, and then the failure, that came before there was a handler.
  void replay_events() noexcept;
  /// The tag in the wr_ids of the queue pair's own receives; 0 if it has none.
  [[nodiscard]] std::uint64_t receive_tag() const noexcept { return receive_tag_.value_or(0); }
  /// How many receives make_pair() has posted; their slots count from 0.
  [[nodiscard]] std::size_t posted_receives() const noexcept { return posted_receives_; }
  /// Passes completions of the queue pair's own receives to `own` from now on, and those of shared receives to
  /// `shared`; earlier completions at once. If receives of either kind have failed, `shared` is told.
  void hand_receives_to(completion_sink& own, receive_sink& shared) noexcept;

  /// Destroys everything, on a worker if there is one: afterwards nothing touches memory for this connection any more,
  /// and all revocations have been notified. Call it once. The task was made in the constructor, so the call needs no
  /// memory.
  task<> destroy() noexcept { return std::move(destruction_); }
  /// Destroys `gone` in the background. From any thread. If its executor runs on this thread, that begins at once. On
  /// the executor's thread between two runs, the call blocks until the destruction has ended. On any other thread,
  /// while another executor runs on this one, or if another loop drives the executor, it begins when the executor next
  /// runs, or is destroyed.
  static void dispose(std::unique_ptr<endpoint> gone) noexcept;

 private:
  struct early_receive {
    ibv_wc what;
    receive_work* work;
  };

  // completion_sink, for the queue pair's own receives
  void on_completion(const ibv_wc& what, std::uint32_t detail) noexcept override;
  void on_queue_failure(const error& why) noexcept override { receives_failure_ = why; }

  void on_cm_event(const cm_event& what) noexcept override;
  void on_async_event(ibv_event_type what, int port) noexcept override;
  void on_receive(const ibv_wc& what, receive_work& work) noexcept override;
  void on_receives_failed(const error& why) noexcept override { receives_failure_ = why; }
  void create_pair();
  [[nodiscard]] int create_pair(ibv_qp_init_attr& attempt) noexcept;
  void register_staging(staging_area& area, unsigned rights);
  void post_first_receives();
  void change_to(ibv_qp_state state, const agreement& what);
  void shut_out_peers(int result) noexcept override;
  void on_window_kept() noexcept override;
  task<> destroy_on_worker();
  void detach_from_shared_receives() noexcept;
  task<> wait_until_flushed();
  void destroy_now() noexcept;
  void destroy_pair() noexcept;
  void deregister_staging() noexcept;
  static void dispose_at_home(std::unique_ptr<endpoint> gone) noexcept;
  static task<> end_in_background(endpoint& self);
  // remote_work, after dispose() on another thread
  void run_on_executor() noexcept override { dispose_at_home(std::unique_ptr<endpoint>(this)); }

  executor_state& shared_;
  executor_state::user watching_;
  cm_id id_;
  std::shared_ptr<net::receive_queue> kept_receives_;
  receive_queue* shared_receives_ = nullptr;  // kept_receives_; null: the queue pair has receives of its own
  std::shared_ptr<own_receives> first_receives_;
  std::optional<std::uint64_t> receive_tag_;  // of the pair's own receives; empty before make_pair() has attached them
  std::size_t posted_receives_ = 0;
  completion_queue* queue_ = nullptr;
  ibv_qp* pair_ = nullptr;
  std::shared_ptr<async_target> target_;  // receives the queue pair's events
  staging_area sources_;
  staging_area sinks_;
  bound_windows windows_;  // may be revoked while a worker destroys the rest
  /// True once a window could not be revoked: stored by the thread that then moves the queue pair to ERR.
  std::atomic<bool> keeps_window_ = false;
  std::uint16_t requests_ = 0;
  std::uint16_t receives_ = 0;
  std::uint32_t max_inline_bytes_ = 0;
  std::uint64_t wanted_operations_ = 0;  // of create_qp_ex(); the peer may ask for these
  std::uint64_t operations_ = 0;         // of them, those that the queue pair takes
  std::optional<std::uint8_t> traffic_class_;
  std::uint32_t entries_ = 0;  // completions reserved in queue_

  endpoint_events* handler_ = nullptr;
  std::deque<cm_event> events_;
  event changed_;
  std::vector<early_receive> early_receives_;  // completed before hand_receives_to()
  std::optional<error> receives_failure_;
  std::optional<error> lost_;  // before there was a handler: a failure of the device or queue pair, or a lost event
  bool ready_ = false;         // make_ready() has begun, so the queue pair may have taken shared receives
  event last_receive_;
  task<> destruction_;                        // destroy_on_worker()
  weft::detail::root_handle<void> disposal_;  // end_in_background()
};

}  // namespace weft::net::verbs
