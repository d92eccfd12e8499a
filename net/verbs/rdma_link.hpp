// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/link_life.hpp>
#include <weft/net/link/transport.hpp>
#include <weft/net/verbs/domain.hpp>
#include <weft/net/verbs/endpoint.hpp>
#include <weft/net/verbs/peer_watch.hpp>
#include <weft/net/verbs/posted_receives.hpp>
#include <weft/net/verbs/send_queue.hpp>
#include <weft/net/verbs/window_binder.hpp>
#include <weft/runtime/core/executor_core.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace weft::net::verbs {

/// One connection on a reliable connected queue pair.
///
/// A link that `listens_first` holds its requests back until a message has come: an RNIC's peer that has not sent yet
/// may not know that it is connected, and breaks the connection if anything follows the reply (RFC 5044 section 7.1.2,
/// rule 4).
///
/// Closing: rdma_disconnect(3) acts like a FIN of TCP. The queue pair goes on serving the peer's requests until the
/// peer has disconnected too, or something fails. An RNIC's queue pair does not, so between two wefts on RNICs the side
/// that learns first of the other's close disconnects. Then the queue pair moves to ERR, what is posted is flushed, and
/// a worker destroys the queue pair. Only the destruction guarantees that no memory is touched any more, so closed()
/// comes after it.
class rdma_link final : public net::link,
                        private completion_sink,
                        private receive_sink,
                        private endpoint_events,
                        private send_queue::own_requests,
                        private window_binder::owner,
                        private detail::timer,
                        private detail::remote_work {
 public:
  rdma_link(std::unique_ptr<endpoint> established, std::shared_ptr<domain> memory, std::string peer,
            const agreement& agreed, bool listens_first);
  ~rdma_link() override;

  [[nodiscard]] const capabilities& properties() const noexcept override { return capabilities_; }
  [[nodiscard]] std::string_view peer() const noexcept override { return peer_; }
  void start(link_events& events, const link_parameters& options) override;
  [[nodiscard]] std::size_t corner_bytes() const noexcept override { return sizeof(send_queue::posted_request); }
  [[nodiscard]] bool furnish(work_request& work) noexcept override { return requests_.furnish(work); }
  void post(work_request& work) noexcept override { requests_.post(work); }
  [[nodiscard]] bool takes_runs() noexcept override { return endpoint_ != nullptr && requests_.takes_runs(); }
  void post_run(work_run& run, const run_portion& what) noexcept override { requests_.post_run(run, what); }
  void post_receive(receive_work& work) noexcept override;
  void ring() noexcept override { requests_.ring(); }
  void shut_down() noexcept override;
  void peer_finished() noexcept override;
  void abort(std::string_view why) noexcept override;
  [[nodiscard]] bool may_have_failed_alone() const noexcept override { return failed_alone_; }
  task<exposed_place> expose(mr::slice memory, mr::usage uses, mr::detail::peer_gate* gate) override;
  void revoke(std::uint64_t key, revocation& who) noexcept override;
  [[nodiscard]] std::optional<refused_access> refusal() const noexcept override { return refusal_; }

 private:
  // completion_sink, receive_sink, endpoint_events, timer, remote_work
  void ring_now() noexcept override;
  void on_completion(const ibv_wc& what, std::uint32_t detail) noexcept override;
  void on_drained() noexcept override;
  void on_queue_failure(const error& why) noexcept override { fail(why); }
  void on_receive(const ibv_wc& what, receive_work& work) noexcept override;
  void on_receives_failed(const error& why) noexcept override { fail(why); }
  void on_cm_event(const cm_event& what) noexcept override;
  void on_failure(const error& why) noexcept override;
  void expired() noexcept override;
  void run_on_executor() noexcept override;

  // own_requests
  [[nodiscard]] const ibv_send_wr& own_request(std::uint32_t mark) const noexcept override {
    return mark == keep_alive_mark ? watch_.keep_alive() : windows_.request(mark);
  }
  void own_request_ended(std::uint32_t mark, bool done) noexcept override;
  // window_binder::owner
  [[nodiscard]] bool listens() const noexcept override { return listens_first_; }
  void fail(const error& why) noexcept override;
  void advance_end() noexcept override;

  void take_over() noexcept;
  void look_at(const ibv_wc& what, bool is_receive) noexcept;
  void speak() noexcept;
  [[nodiscard]] error why_failed(const ibv_wc& request) const;
  void receive_completed(const ibv_wc& what, receive_work& work) noexcept;
  void end(bool orderly, const error& why) noexcept;
  // Whether a disconnect of the peer may be orderly. For a weft peer the connection decides, because it knows whether a
  // close message has come. A foreign peer has left for good, and has not executed requests that are still in flight.
  [[nodiscard]] bool may_end_without_peer() const noexcept { return native_ || requests_.idle(); }
  void end_without_peer(std::string_view words) noexcept;
  void say_goodbye() noexcept;
  void break_off() noexcept;
  void watch_life() noexcept;
  task<> finish();

  executor_core& home_;
  std::unique_ptr<endpoint> endpoint_;  // null once the link has closed
  std::shared_ptr<domain> domain_;
  std::string peer_;
  capabilities capabilities_;
  // Here has_finished() means that this end has disconnected; peer_has_left(), that the peer has; is_broken(), that the
  // queue pair was moved to ERR; is_leaving(), that finish() runs.
  link_life life_;
  bool native_ = false;
  bool delivers_after_end_ = false;
  bool listens_first_;         // requests are held back until the first message
  bool taken_over_ = false;    // completions of receives come to this link
  bool unwatched_ = false;     // there was no memory for a timer, so flushed requests are not waited for
  bool failed_alone_ = false;  // may_have_failed_alone()
  std::optional<refused_access> refusal_;
  weft::detail::root_handle<void> finisher_;  // finish(), made while there is memory

  // Parts that refer to the endpoint, and are not used without it.
  send_queue requests_;
  posted_receives receives_;
  window_binder windows_;
  peer_watch watch_;
};

}  // namespace weft::net::verbs
