// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/fabric/domain.hpp>
#include <weft/net/fabric/endpoint.hpp>
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

/// A connection that has been set up, and is no link yet.
struct established {
  std::unique_ptr<descriptor> socket{};          ///< TCP: brings the end
  std::unique_ptr<fabric::endpoint> endpoint{};  ///< with the peer's in its address vector
  std::shared_ptr<fabric::domain> memory{};      ///< where regions are registered
  std::string peer{};                            ///< for link::peer()
  std::uint16_t incoming_reads = 0;              ///< agreed: what the peer may have outstanding here
  std::uint16_t outgoing_reads = 0;              ///< and this end there
  std::uint64_t own_token = 0;                   ///< what messages to this end carry
  std::uint64_t peer_token = 0;                  ///< and those to the peer
  std::chrono::milliseconds dead_peer_after{};   ///< set_up_options
};

/// One end of a connection over an endpoint of libfabric's, with a TCP socket beside it that tells of the peer's end:
/// an endpoint without a connection does not.
///
/// Output: requests are handed over in a turn's poll, in their order, as far as the provider keeps it or nothing that
/// it might overtake is under way: order_table. Behind each message stands a trailer of the link's own, with its number
/// and a token that keeps strangers out. Immediate data is a message that follows its write.
/// Input: messages are put into the order of their numbers, whatever order the provider completes them in.
///
/// Memory that is taken back: a worker closes its region, which begins no access any more; then the peer is asked
/// whether one is under way, and has to say in time that none is, or the link ends. Whoever cannot wait for that,
/// because the memory of a region goes, freezes the device until then: of a region that was open to every peer, all are
/// asked. So many questions may be without an answer at a time, so that the socket has room for all that both ends say;
/// a peer that is not ready yet has no longer to become so.
///
/// The end: each end says over the socket how many messages it has sent, and once it has all of the other's. Then, or
/// when something fails, a worker closes the endpoint: only that makes sure that no memory is touched, so closed()
/// follows it.
class fabric_link final : public net::link,
                          private fence_audience,
                          private poller,
                          private weft::detail::timer,
                          private weft::detail::remote_work {
 public:
  /// Leaves `made` as it is if it throws: the peer is still to be told.
  explicit fabric_link(established&& made);
  ~fabric_link() override;

  /// Its end of the socket, while the set-up uses it.
  [[nodiscard]] descriptor& socket() const noexcept { return *made_.socket; }
  /// Called before the peer hears what lets it use open regions over this endpoint. The device is frozen from the end
  /// of such a region until the peer, which is asked once the link has started, has answered; so it may not take long
  /// to get there, or the socket is broken off: was_late(). Until end_set_up().
  void begin_set_up() noexcept;
  /// start() or give_up() is next.
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
  [[nodiscard]] result<std::uint64_t> import_key(const mr::remote_key& blob) noexcept override;
  [[nodiscard]] task<exposed_place> expose(mr::slice memory, mr::usage uses, mr::detail::peer_gate* gate) override;
  void revoke(const mr::remote_key& key, revocation& who) noexcept override;
  [[nodiscard]] std::optional<refused_access> refusal() const noexcept override { return refusal_; }

 private:
  struct pieces;
  // What libfabric gives back with a completion. Its room is the provider's while the operation is under way.
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
    std::uint8_t handed_over = 0;  // of them
    std::uint8_t completed = 0;    // and of these
    bool failed = false;           // the provider says so
    bool cleared = false;          // the peer says that it may do that
    bool refused = false;          // the peer has refused it
    bool awaited = false;          // the peer wants to hear of its end, because it has taken the memory back
    std::uint64_t fenced_key = 0;  // and has named it so
  };
  struct posted_receive {
    operation main;
    receive_work* work = nullptr;  // null: not posted
    posted_receive* next = nullptr;
    std::size_t bytes = 0;  // of the message
    message_trailer trailer;
  };
  // A key that the peer may use. A worker closes its region; then the peer is asked what is under way. Or that of a
  // region that was open to every peer, and has been closed.
  struct exposure final : weft::detail::worker_job, weft::detail::remote_work, mr::detail::last_use {
    explicit exposure(fabric_link& home) noexcept : owner(home) {}
    void begin_last_use_of(revocation& whose) noexcept { begin_last_use(whose.take_pin()); }
    void close_region() noexcept;
    void run() noexcept override;                                               // on a worker
    void run_on_executor() noexcept override { owner.exposure_closed(*this); }  // back home
    // The peer touches the memory no more. On the executor, or on a worker that has closed the endpoint.
    void settle() noexcept;
    void go_with_endpoint() noexcept { state == asking ? settle() : end_last_use(); }

    // In the place of a worker, or of the peer's answer.
    [[nodiscard]] bool withdraw() noexcept override;
    void run_here() noexcept override;

    fabric_link& owner;
    std::atomic<worker_pool*> workers{nullptr};  // that have it
    region_ptr region;
    mr::remote_key key;
    std::uint64_t number = 0;  // fi_mr_key(3)
    opened_memory opened;
    revocation* who = nullptr;
    enum state_t : std::uint8_t {
      open,     // the peer may use it
      closing,  // a worker has it
      asking,   // the peer is asked whether it is still using it
      closed,   // by the peer's wish; the owner has not revoked it yet
      swept,    // goes with the endpoint
    } state = open;
    bool is_of_all = false;  // and so nobody's who waits
    bool is_asked = false;   // the peer has been
    bool in_use = false;     // it says so
    time_point asked_at{};
    exposure* next_unasked = nullptr;
    // Who waits for the end of the last use: `waiting` once the region has been closed; `hurried` by a thread that
    // ends the last use itself, and freezes the device for it; `frozen` when it has. The executor thaws it.
    enum hurry_t : std::uint8_t { nobody, waiting, hurried, frozen };
    std::atomic<hurry_t> hurry{nobody};
  };
  // Brings the keys of regions that were closed to the executor. On its way it may outlive the link: the frame of a
  // set-up is destroyed at any suspension point.
  class region_mail final : public weft::detail::remote_work {
   public:
    explicit region_mail(fabric_link& owner) noexcept : owner_(&owner) {}
    // Goes by itself when it has arrived. On the executor, as its arrival.
    static void orphan(std::unique_ptr<region_mail> item) noexcept { item.release()->owner_ = nullptr; }

   private:
    void run_on_executor() noexcept override {
      if (owner_ != nullptr) return owner_->take_region_mail();
      const std::unique_ptr<region_mail> self(this);
    }
    fabric_link* owner_;
  };
  // Waits for what the peer says over the socket.
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
  [[nodiscard]] exposure* find(const mr::remote_key& key) noexcept;
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
  [[nodiscard]] exposure* next_asked(std::uint64_t number, bool in_use) noexcept;
  void fence_all() noexcept;
  void end_if_fences_are_late() noexcept;
  void fenced(exposure& item) noexcept;
  void forget(exposure& item) noexcept;

  executor_core& home_;
  std::unique_ptr<region_mail> mail_ = std::make_unique<region_mail>(*this);
  established made_;  // behind what there may be no memory for
  fabric_calls& calls_;
  const order_table& order_;
  capabilities capabilities_;
  link_events* events_ = nullptr;
  bool native_ = false;

  posted_request* first_ = nullptr;   // the oldest that has not completed
  posted_request* unsent_ = nullptr;  // the oldest that the provider has not, or not all of
  posted_request* last_ = nullptr;
  std::array<std::uint32_t, access_kinds> under_way_{};
  std::uint32_t messages_sent_ = message_trailer::first_number;  // the next one's number
  std::size_t with_provider_ = 0;                                // operations of requests
  bool blocked_ = false;                                         // the provider takes no more for now

  std::unique_ptr<posted_receive[]> receives_;  // by slot
  std::size_t receive_depth_ = 0;
  std::size_t receives_with_provider_ = 0;
  posted_receive* first_receive_ = nullptr;  // posted and not handed over
  posted_receive* last_receive_ = nullptr;
  std::vector<posted_receive*> arrived_;                             // a ring, by number
  std::size_t next_arrival_ = 0;                                     // the place of the next message to be delivered
  std::uint32_t messages_received_ = message_trailer::first_number;  // its number
  exposure* invalidating_ = nullptr;                                 // what the next message revokes, by a worker
  bool invalidated_ = false;                                         // it is done
  bool delivering_ = false;
  bool must_not_sleep_ = false;  // fi_trywait(3) has said so

  std::vector<std::unique_ptr<exposure>> exposures_;
  std::size_t closing_exposures_ = 0;  // that a worker has
  std::size_t asking_exposures_ = 0;   // that the peer is asked about, or is to be
  exposure* first_unasked_ = nullptr;  // that it is to be
  exposure* last_unasked_ = nullptr;
  std::size_t unanswered_ = 0;  // questions about them
  std::size_t exposing_ = 0;    // coroutines of expose() that refer to us
  event quiet_;                 // one of these has ended, or the wait for input, or the way of mail
  std::vector<std::pair<mr::remote_key, std::uint64_t>> imported_;

  std::mutex end_mutex_;
  bool endpoint_is_closed_ = false;  // under it: no last use begins behind that

  std::mutex mail_mutex_;                 // of what follows
  std::vector<std::uint64_t> mail_keys_;  // of regions that were closed
  std::size_t unasked_ = 0;               // of them, about which the peer is not asked, because the link ends
  bool takes_mail_ = false;
  bool is_setting_up_ = false;  // of the executor
  bool was_late_ = false;
  bool is_mail_on_its_way_ = false;

  time_point moved_at_{};  // when a request has last completed, or the peer was asked, or the first began
  std::optional<time_point> stands_since_;  // the peer's first answer since a request has completed
  posted_request* suspect_ = nullptr;       // the peer is asked about it
  bool asked_ = false;                      // the peer has been asked
  unsigned refusals_told_ = 0;              // questions of the peer's about what it may not do
  bool doubting_ = false;                   // something has failed
  std::string_view doubt_words_;            // libfabric's, which stay

  input_wait input_wait_{*this};
  std::array<std::byte, control_record::bytes> input_{};
  std::size_t input_bytes_ = 0;
  weft::detail::root_handle<void> finisher_;    // finish(), made while there is memory
  std::optional<std::uint32_t> peer_messages_;  // that the peer has sent, which has finished
  std::optional<refused_access> refusal_;
  bool failed_alone_ = false;
  bool input_ended_ = false;
  bool losing_ = false;  // lose_peer() looks a last time
  bool shutting_down_ = false;
  bool finished_ = false;      // we have said so
  bool drained_ = false;       // we have all of the peer's messages, and have said so
  bool peer_drained_ = false;  // it has all of ours
  bool ended_ = false;
  bool finishing_ = false;
  bool closed_ = false;
};

}  // namespace weft::net::fabric
