// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/fabric/domain.hpp>
#include <weft/net/fabric/endpoint.hpp>
#include <weft/net/link/link_life.hpp>
#include <weft/net/link/transport.hpp>
#include <weft/runtime/core/background.hpp>
#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/sync/event.hpp>
#include <weft/runtime/system/descriptor.hpp>
#include <weft/runtime/system/poller.hpp>
#include <weft/runtime/worker_pool.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace weft::net::fabric {

/// A connection that has been set up, and is about to become a link.
struct established {
  std::unique_ptr<descriptor> socket{};          ///< TCP: carries control records, and shows the peer's end
  std::unique_ptr<fabric::endpoint> endpoint{};  ///< with the peer's in its address vector
  std::shared_ptr<fabric::domain> memory{};      ///< where regions are registered
  std::string peer{};                            ///< for link::peer()
  std::uint16_t incoming_reads = 0;              ///< reads that the peer may have outstanding here
  std::uint16_t outgoing_reads = 0;              ///< reads that this end may have outstanding at the peer
  std::uint64_t own_token = 0;                   ///< in each message to this end
  std::uint64_t peer_token = 0;                  ///< in each message to the peer
  std::chrono::milliseconds dead_peer_after{};   ///< set_up_options
};

/// One end of a connection over a libfabric endpoint, with a TCP socket beside it that shows the peer's end, which a
/// connectionless endpoint does not.
///
/// Output: requests are handed over in a turn's poll, in their order. A request that the provider might let overtake an
/// earlier one waits for that: order_table. Each message ends with a trailer of the link's, with the message's number
/// and a token that keeps strangers out. Immediate data is a message that follows its write.
///
/// Input: messages are delivered in the order of their numbers, whatever order the provider completes them in.
///
/// Taking memory back: a worker closes the region, so that no further access begins. Then the peer is asked whether an
/// access is in flight, and has to answer in time that none is, or the link ends. A thread that cannot wait for that,
/// because it releases a region, freezes the device until then. If a region was open to every peer, all peers are
/// asked. The number of unanswered questions is bounded, so that the socket has room for the records of both ends. A
/// peer whose set-up is not over yet has the same time to finish it.
///
/// Closing: each end says over the socket how many messages it has sent, and when it has all of the other's. Then, or
/// when something fails, a worker closes the endpoint. Only that guarantees that no memory is touched any more, so
/// closed() follows it.
class fabric_link final : public net::link,
                          private fence_audience,
                          private poller,
                          private weft::detail::timer,
                          private weft::detail::remote_work {
 public:
  /// If it throws, `made` is unchanged, so that the peer can still be told.
  explicit fabric_link(established&& made);
  ~fabric_link() override;

  /// The socket, for the rest of the set-up.
  [[nodiscard]] descriptor& socket() const noexcept { return *made_.socket; }
  /// Called before the peer learns what it needs to use open regions over this endpoint. If such a region is closed
  /// before end_set_up(), the device is frozen until the link has started, and the peer has answered the question about
  /// it. So the set-up has little time then; if it takes longer, the socket is shut down: was_late().
  void begin_set_up() noexcept;
  /// To be followed by start() or give_up().
  [[nodiscard]] task<> end_set_up();
  [[nodiscard]] bool was_late() const noexcept { return was_late_; }
  /// Closes the endpoint of a link that is not started, on a worker.
  [[nodiscard]] task<> give_up();

  [[nodiscard]] const capabilities& properties() const noexcept override { return capabilities_; }
  [[nodiscard]] std::string_view peer() const noexcept override { return made_.peer; }
  void start(link_events& events, const link_parameters& parameters) override;
  [[nodiscard]] std::size_t corner_bytes() const noexcept override { return sizeof(posted_request); }
  [[nodiscard]] bool furnish(work_request& work) noexcept override;
  void post(work_request& work) noexcept override;
  void post_receive(receive_work& work) noexcept override;
  void ring() noexcept override {}  // poll() hands over
  void shut_down() noexcept override;
  void abort(std::string_view why) noexcept override;
  void refuse(violation what, std::string_view why) noexcept override;
  [[nodiscard]] bool may_have_failed_alone() const noexcept override { return failed_alone_; }
  [[nodiscard]] std::uint64_t largest_key() const noexcept override { return UINT64_MAX; }
  [[nodiscard]] task<exposed_place> expose(mr::slice memory, mr::usage uses, mr::detail::peer_gate* gate) override;
  void revoke(std::uint64_t key, revocation& who) noexcept override;
  [[nodiscard]] std::optional<refused_access> refusal() const noexcept override { return refusal_; }

 private:
  struct pieces;
  // The context of a completion. `room` belongs to the provider while the operation is in flight.
  struct operation {
    fi_context2 room{};
    enum kind_t : std::uint8_t { first, wake, receive } kind = first;  // wake: the message behind a write
    void* owner = nullptr;                                             // posted_request, posted_receive
  };
  // The corner of a work_request.
  struct posted_request {
    explicit posted_request(work_request& whole) noexcept : work(&whole) {
      main.owner = wake.owner = this;
      wake.kind = operation::wake;
    }
    operation main;
    operation wake;
    work_request* work;
    posted_request* next = nullptr;
    std::uint8_t steps = 0;        // operations that it takes: 0, 1 or 2
    std::uint8_t handed_over = 0;  // how many of the steps
    std::uint8_t completed = 0;    // how many of the steps
    bool failed = false;           // the provider says so
    bool cleared = false;          // the peer says that the access is allowed
    bool refused = false;          // the peer has refused it
    bool awaited = false;          // the peer wants to be told of its end, because it has taken the memory back
    std::uint64_t fenced_key = 0;  // the key in the peer's question about that
  };
  struct posted_receive {
    operation main;
    receive_work* work = nullptr;  // null: not posted
    posted_receive* next = nullptr;
    std::size_t bytes = 0;  // of the message
    message_trailer trailer;
  };
  // A key that the peer may use. To revoke it, a worker closes its region, and then the peer is asked what is in
  // flight. Also the key of a region that was open to every peer, and has been closed.
  struct exposure final : weft::detail::worker_job, weft::detail::remote_work, mr::detail::last_use {
    explicit exposure(fabric_link& home) noexcept : owner(home) {}
    void begin_last_use_of(revocation& whose) noexcept { begin_last_use(whose.take_pin()); }
    void close_region() noexcept;
    void run() noexcept override;                                               // on a worker
    void run_on_executor() noexcept override { owner.exposure_closed(*this); }  // after that
    // The peer touches the memory no more. On the executor, or on a worker that has closed the endpoint.
    void settle() noexcept;
    void go_with_endpoint() noexcept { state == asking ? settle() : end_last_use(); }

    // last_use: ends it without waiting for a worker, or for the peer's answer.
    [[nodiscard]] bool withdraw() noexcept override;
    void run_here() noexcept override;

    fabric_link& owner;
    std::atomic<worker_pool*> workers{nullptr};  // to which it was submitted
    region_ptr region;
    std::uint64_t key = 0;
    opened_memory opened;
    revocation* who = nullptr;
    enum state_t : std::uint8_t {
      open,     // the peer may use it
      closing,  // a worker closes its region
      asking,   // the peer is asked whether it is still using the memory
      closed,   // by the peer's wish; the owner has not revoked it yet
      swept,    // closed together with the endpoint
    } state = open;
    bool is_of_all = false;  // of a region that was open to every peer; no revocation waits for it
    bool is_asked = false;   // the peer has been asked
    bool in_use = false;     // the peer has answered that it is
    time_point asked_at{};
    exposure* next_unasked = nullptr;
    // How the last use ends: `waiting` for the peer, once the region has been closed; `hurried` by a thread that ends
    // the last use itself, and freezes the device for that; `frozen` once it has. The executor thaws the device.
    enum hurry_t : std::uint8_t { nobody, waiting, hurried, frozen };
    std::atomic<hurry_t> hurry{nobody};
  };
  // Mails the keys of closed regions to the executor. In flight it may outlive the link, because the coroutine of a
  // set-up may be destroyed at any suspension point.
  class region_mail final : public weft::detail::remote_work {
   public:
    explicit region_mail(fabric_link& owner) noexcept : owner_(&owner) {}
    // The mail destroys itself when it arrives. Called on the executor, on which it arrives as well.
    static void orphan(std::unique_ptr<region_mail> item) noexcept { item.release()->owner_ = nullptr; }

   private:
    void run_on_executor() noexcept override {
      if (owner_ != nullptr) return owner_->take_region_mail();
      const std::unique_ptr<region_mail> self(this);
    }
    fabric_link* owner_;
  };
  // Waits for the peer's records on the socket.
  class input_wait final : public io_operation {
   public:
    explicit input_wait(fabric_link& owner) noexcept : io_operation(io_kind::readable), owner_(owner) {
      target = owner.made_.socket.get();
    }

   private:
    void complete(int result) noexcept override { owner_.on_readable(result); }
    fabric_link& owner_;
  };

  // fence_audience, poller, timer, remote_work
  void fence(std::uint64_t key) noexcept override;
  std::size_t poll(std::size_t budget) noexcept override;
  void arm() noexcept override;
  void disarm() noexcept override {}
  [[nodiscard]] int wait_fd() const noexcept override { return made_.endpoint->wait_fd(); }
  void expired() noexcept override;
  void run_on_executor() noexcept override;

  // Set-up and end of an endpoint.
  void hurry_set_up() noexcept;
  void break_set_up_off() noexcept;
  void close_endpoint() noexcept;

  // Output.
  void hand_over_receives() noexcept;
  [[nodiscard]] ssize_t hand_over(posted_receive& item) noexcept;
  void hand_over_requests() noexcept;
  [[nodiscard]] access_kind next_kind(const posted_request& item) const noexcept;
  [[nodiscard]] std::uint32_t accesses_under_way() const noexcept {
    return under_way_[1] + under_way_[2] + under_way_[3];
  }
  [[nodiscard]] bool may_start(access_kind kind) const noexcept;
  [[nodiscard]] ssize_t hand_over(posted_request& item) noexcept;
  [[nodiscard]] ssize_t send(posted_request& item) noexcept;
  [[nodiscard]] ssize_t send_wake(posted_request& item) noexcept;
  [[nodiscard]] ssize_t send(pieces& from, operation& part) noexcept;
  [[nodiscard]] ssize_t access(posted_request& item, bool writes) noexcept;
  [[nodiscard]] ssize_t change(posted_request& item) noexcept;
  [[nodiscard]] std::uint64_t flags_of(access_kind kind) const noexcept;
  void tick_later() noexcept;

  // Completions.
  std::size_t read_queue(std::size_t budget) noexcept;
  [[nodiscard]] ssize_t look(fi_cq_msg_entry* found, std::size_t most) noexcept;
  void take_failure() noexcept;
  void completed(operation& item, std::size_t bytes) noexcept;
  void failed(const fi_cq_err_entry& what) noexcept;
  void request_failed(posted_request& item, operation& part, const fi_cq_err_entry& what) noexcept;
  void step_ended(posted_request& item, const operation& part) noexcept;
  void complete_ended() noexcept;
  void received(posted_receive& item, std::size_t bytes) noexcept;
  void deliver() noexcept;
  [[nodiscard]] bool has_invalidated(const posted_receive& item) noexcept;

  // Doubt: something has failed, or takes long, and the peer knows whether it has refused an access.
  void doubt(std::string_view words) noexcept;
  void ask() noexcept;
  [[nodiscard]] posted_request* next_suspect() noexcept;
  void take_question(const control_record& asked) noexcept;
  void take_answer(const control_record& answer) noexcept;
  [[nodiscard]] bool stands_still() noexcept;

  // The end.
  void await_input() noexcept;
  void on_readable(int result) noexcept;
  void take_input() noexcept;
  void take(const control_record& what) noexcept;
  void tell(const control_record& what) noexcept;
  void end(bool orderly, const error& why) noexcept;
  void fail(const error& why, control_record::reason_t reason = control_record::aborted,
            std::uint64_t key = 0) noexcept;
  void lose_peer(std::string_view words) noexcept;
  void advance_end() noexcept;
  void begin_finish() noexcept;
  void flush_rest() noexcept;
  void flush_requests() noexcept;
  [[nodiscard]] task<> finish();

  // Exposures.
  [[nodiscard]] exposure* find(std::uint64_t key) noexcept;
  [[nodiscard]] worker_pool* find_workers() const noexcept;
  void close(exposure& item) noexcept;
  void exposure_closed(exposure& item) noexcept;
  void ask_about_exposures() noexcept;
  void take_region_mail() noexcept;
  [[nodiscard]] bool ask_about_region(std::uint64_t key) noexcept;
  void drop_region_mail() noexcept;
  [[nodiscard]] bool is_mail_on_its_way() noexcept {
    const std::lock_guard lock(mail_mutex_);
    return is_mail_on_its_way_;
  }
  void take_fence_question(const control_record& asked) noexcept;
  void tell_of_end(posted_request& item) noexcept;
  void take_fence(const control_record& answer) noexcept;
  [[nodiscard]] exposure* next_asked(std::uint64_t key, bool in_use) noexcept;
  void fence_all() noexcept;
  void end_if_fences_are_late() noexcept;
  void fenced(exposure& item) noexcept;
  void forget(exposure& item) noexcept;

  executor_core& home_;
  std::unique_ptr<region_mail> mail_ = std::make_unique<region_mail>(*this);
  established made_;  // behind members that may throw: see the constructor
  fabric_calls& calls_;
  const order_table& order_;
  capabilities capabilities_;
  // Finished: the peer has been told so. The peer has finished: all of its messages are here, and it has been told so;
  // it has left: nothing more comes over the socket. Leaving: finish() runs.
  link_life life_;
  bool native_ = false;

  posted_request* first_ = nullptr;   // the oldest that has not completed
  posted_request* unsent_ = nullptr;  // the oldest that was not handed over, or not all of it
  posted_request* last_ = nullptr;
  std::array<std::uint32_t, access_kinds> under_way_{};
  std::uint32_t messages_sent_ = message_trailer::first_number;  // the number of the next one
  std::size_t with_provider_ = 0;                                // operations of requests in flight
  bool blocked_ = false;                                         // the provider takes no more for now

  std::unique_ptr<posted_receive[]> receives_;  // by slot
  std::size_t receive_depth_ = 0;
  std::size_t receives_with_provider_ = 0;
  posted_receive* first_receive_ = nullptr;  // posted and not handed over
  posted_receive* last_receive_ = nullptr;
  std::vector<posted_receive*> arrived_;                             // a ring, by number
  std::size_t next_arrival_ = 0;                                     // the place of the next message to be delivered
  std::uint32_t messages_received_ = message_trailer::first_number;  // the number of that message
  exposure* invalidating_ = nullptr;                                 // being revoked, for that message
  bool invalidated_ = false;                                         // has been revoked, for that message
  bool delivering_ = false;
  bool must_not_sleep_ = false;  // fi_trywait(3) has said so

  std::vector<std::unique_ptr<exposure>> exposures_;
  std::size_t closing_exposures_ = 0;  // in the state `closing`
  std::size_t asking_exposures_ = 0;   // in the state `asking`
  exposure* first_unasked_ = nullptr;  // of those about which the peer has yet to be asked
  exposure* last_unasked_ = nullptr;
  std::size_t unanswered_ = 0;  // questions about exposures
  std::size_t exposing_ = 0;    // coroutines of expose() that refer to this link
  event quiet_;                 // one of these has ended, or the wait for input, or mail has arrived

  std::mutex end_mutex_;
  bool endpoint_is_closed_ = false;  // under end_mutex_: no last use begins afterwards

  std::mutex mail_mutex_;                 // guards what follows
  std::vector<std::uint64_t> mail_keys_;  // of regions that were closed
  std::size_t unasked_ = 0;               // regions about which the peer is not asked, because the link ends
  bool takes_mail_ = false;
  bool is_setting_up_ = false;  // not guarded: for the executor only
  bool was_late_ = false;
  bool is_mail_on_its_way_ = false;

  time_point moved_at_{};  // when a request last completed, or the peer was asked, or the first request was handed over
  std::optional<time_point> stands_since_;  // the peer's first answer since a request last completed
  posted_request* suspect_ = nullptr;       // the peer is asked about it
  bool asked_ = false;                      // the peer has been asked
  unsigned refusals_told_ = 0;              // questions of the peer's about accesses that it may not make
  bool doubting_ = false;                   // something has failed
  std::string_view doubt_words_;            // libfabric's text, which stays valid

  input_wait input_wait_{*this};
  std::array<std::byte, control_record::bytes> input_{};
  std::size_t input_bytes_ = 0;
  weft::detail::root_handle<void> finisher_;    // finish(), made while there is memory
  std::optional<std::uint32_t> peer_messages_;  // how many the peer has sent, once it has finished
  std::optional<refused_access> refusal_;
  bool failed_alone_ = false;
  bool losing_ = false;        // lose_peer() reads the queue a last time
  bool peer_drained_ = false;  // the peer has all of this end's messages
};

}  // namespace weft::net::fabric
