// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/fabric/control_channel.hpp>
#include <weft/net/fabric/domain.hpp>
#include <weft/net/fabric/endpoint.hpp>
#include <weft/net/fabric/exposures.hpp>
#include <weft/net/fabric/hello.hpp>
#include <weft/net/fabric/posted_receives.hpp>
#include <weft/net/fabric/region_mail.hpp>
#include <weft/net/fabric/send_queue.hpp>
#include <weft/net/link/link_life.hpp>
#include <weft/net/link/transport.hpp>
#include <weft/runtime/core/background.hpp>
#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/sync/event.hpp>
#include <weft/runtime/system/descriptor.hpp>
#include <weft/runtime/system/poller.hpp>
#include <weft/runtime/system/timer.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace weft::net::fabric {

/// The parts of a connection that is being set up, of which its link is made.
struct established {
  std::unique_ptr<descriptor> socket{};          ///< TCP: carries control records, and shows the peer's close or death
  std::unique_ptr<fabric::endpoint> endpoint{};  ///< knows the peer's address
  std::shared_ptr<fabric::domain> memory{};      ///< where regions are registered
  std::string peer{};                            ///< for link::peer()
  std::uint16_t incoming_reads = 0;              ///< reads that the peer may have outstanding here
  std::uint16_t outgoing_reads = 0;              ///< reads that this end may have outstanding at the peer
  std::uint64_t own_token = 0;                   ///< in each message to this end
  std::uint64_t peer_token = 0;                  ///< in each message to the peer
  std::chrono::milliseconds dead_peer_after{};   ///< set_up_options::dead_peer_after
};

/// One end of a connection over a libfabric endpoint. A TCP socket beside it shows whether the peer has closed or died,
/// which a connectionless endpoint does not. poll() hands requests and receives to the provider.
///
/// Doubt: when an access has failed, or takes long, the peer is asked whether the access is allowed, because providers
/// report refusals in different ways, if at all.
///
/// Closing: each end reports over the socket how many messages it has sent, and when it has all of the other's. Then,
/// or when something fails, a worker closes the endpoint. Only closing the endpoint guarantees that no memory is
/// touched any more, so closed() comes after that.
class fabric_link final : public net::link,
                          private exposures::owner,
                          private control_channel::reader,
                          private poller,
                          private weft::detail::timer,
                          private weft::detail::remote_work {
 public:
  /// Takes the parts over. Throws nothing: if there is no memory for the link, the caller still has the endpoint to
  /// close.
  explicit fabric_link(established&& made);
  ~fabric_link() override;

  /// The socket, for the rest of the set-up.
  [[nodiscard]] descriptor& socket() const noexcept { return *made_.socket; }
  /// Begins the rest of the set-up, before the peer learns what it needs to use open regions over this endpoint. If
  /// such a region is closed before end_set_up(), a device in software is frozen until the link has started, and the
  /// peer has answered the question about the region. So the set-up then has only frozen_patience; if it takes longer,
  /// the socket is shut down: was_late().
  void begin_set_up() noexcept;
  /// Ends the set-up. start() or give_up() must follow.
  void end_set_up() noexcept;
  [[nodiscard]] bool was_late() const noexcept { return was_late_; }
  /// Closes the endpoint of a link that is not started, on a worker.
  task<> give_up();

  [[nodiscard]] const capabilities& properties() const noexcept override { return capabilities_; }
  [[nodiscard]] std::string_view peer() const noexcept override { return made_.peer; }
  void start(link_events& events, const link_parameters& parameters) override;
  [[nodiscard]] std::size_t corner_bytes() const noexcept override { return sizeof(posted_request); }
  [[nodiscard]] bool furnish(work_request& work) noexcept override;
  void post(work_request& work) noexcept override { requests_.post(*static_cast<posted_request*>(work.corner)); }
  void post_receive(receive_work& work) noexcept override;
  void ring() noexcept override {}  // poll() hands the requests over
  void shut_down() noexcept override { life_.shut_down(); }
  void abort(std::string_view why) noexcept override { fail(weft::detail::make_error(errc::closed, why)); }
  void refuse(violation what, std::string_view why) noexcept override;
  [[nodiscard]] bool may_have_failed_alone() const noexcept override { return failed_alone_; }
  [[nodiscard]] std::uint64_t largest_key() const noexcept override { return UINT64_MAX; }
  task<exposed_place> expose(mr::slice memory, mr::usage uses, mr::detail::peer_gate*) override {
    return exposures_.expose(memory, uses);
  }
  void revoke(std::uint64_t key, revocation& who) noexcept override { exposures_.revoke(key, who); }
  [[nodiscard]] std::optional<refused_access> refusal() const noexcept override { return refusal_; }

 private:
  // exposures::owner, control_channel::reader
  void has_questions() noexcept override;
  void invalidated() noexcept override;
  void on_readable(int result) noexcept override;
  // poller, timer, remote_work
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

  // Output and input.
  void hand_over_receives() noexcept;
  void hand_over_requests() noexcept;
  void tick_later() noexcept;
  std::size_t read_queue(std::size_t budget) noexcept;
  [[nodiscard]] ssize_t look(fi_cq_msg_entry* found, std::size_t most) noexcept;
  void take_failure() noexcept;
  void completed(operation& item, std::size_t bytes) noexcept;
  void failed(const fi_cq_err_entry& what) noexcept;
  void step_ended(operation& part) noexcept;
  void tell_of_end(posted_request& item) noexcept;
  void received(posted_receive& item, std::size_t bytes) noexcept;
  void deliver() noexcept;
  [[nodiscard]] bool is_invalidated(std::uint64_t key) noexcept;

  // Doubt: something has failed, or takes long, and the peer knows whether it has refused an access.
  void doubt(std::string_view words) noexcept;
  void ask() noexcept;
  void take_question(const control_record& asked) noexcept;
  void take_answer(const control_record& answer) noexcept;
  [[nodiscard]] bool stands_still() noexcept;

  // The peer's records.
  void await_input() noexcept;
  void take_input() noexcept;
  void input_over(bool orderly) noexcept;
  void take(const control_record& what) noexcept;
  void peer_broke_off(const control_record& what) noexcept;
  void tell(const control_record& what) noexcept;
  void take_fence_question(const control_record& asked) noexcept;

  // The end.
  void end(bool orderly, const error& why) noexcept;
  void fail(const error& why, control_record::reason_t reason = control_record::aborted,
            std::uint64_t key = 0) noexcept;
  void break_rules(std::string_view what) noexcept;
  void refuse(std::uint64_t key, std::string_view why) noexcept;
  void lose_peer(std::string_view words) noexcept;
  void advance_end() noexcept;
  void begin_finish() noexcept;
  task<> finish();

  executor_core& home_;
  established made_;
  capabilities capabilities_;
  // has_finished(): `finished` was sent. peer_has_finished(): all messages of the peer are here, and `drained` was
  // sent. peer_has_left(): nothing more comes over the socket. is_leaving(): finish() runs.
  link_life life_;
  bool native_ = false;
  bool is_setting_up_ = false;
  bool was_late_ = false;
  event quiet_;  // set when exposures_ may no longer be busy, and when a wait of control_ has ended

  // The first three refer to the endpoint, and do not use it once it is closed.
  send_queue requests_;
  posted_receives receives_;
  exposures exposures_;
  region_mail mail_;
  control_channel control_;

  bool blocked_ = false;         // the provider takes no more requests for now
  bool must_not_sleep_ = false;  // fi_trywait(3) has returned -FI_EAGAIN
  bool delivering_ = false;
  enum class invalidation : std::uint8_t { none, under_way, done };
  invalidation invalidation_ = invalidation::none;  // of the key in the next message

  posted_request* suspect_ = nullptr;      // the access that the question to the peer names; null: it names none
  bool asked_ = false;                     // the peer has been asked, and has not answered
  unsigned refusals_told_ = 0;             // how many questions of the peer's were about accesses that are not allowed
  std::optional<std::string_view> doubt_;  // libfabric's text about the first failure; the text stays valid

  weft::detail::root_handle<void> finisher_;    // finish(), made by start(), because memory may be short later
  std::optional<std::uint32_t> peer_messages_;  // control_record::messages of the peer's `finished`, once that has come
  std::optional<refused_access> refusal_;
  bool failed_alone_ = false;
  bool losing_ = false;        // lose_peer() has begun
  bool peer_drained_ = false;  // the peer has all of this end's messages
};

}  // namespace weft::net::fabric
