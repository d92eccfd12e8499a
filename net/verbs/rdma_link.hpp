// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/link_life.hpp>
#include <weft/net/link/transport.hpp>
#include <weft/net/verbs/domain.hpp>
#include <weft/net/verbs/endpoint.hpp>
#include <weft/runtime/core/executor_core.hpp>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace weft::net::verbs {

/// One connection on a reliable connected queue pair.
///
/// Requests and receives are chained, and handed over once in a turn: one doorbell for all tasks that use the link. The
/// last request of a chain is signaled, and one in a few before it; a completion stands for the unsignaled requests
/// before it as well.
///
/// Lists are taken whole: the elements of a work_run are copied into a ring of requests of their own, in groups, of
/// which only the last request is signaled. A group has one place in the order of requests, and one completion.
///
/// A link that `listens_first` holds its requests back until a message has come: an RNIC's peer that has not sent yet
/// may not know that it is connected, and breaks the connection if anything follows the reply (RFC 5044 section 7.1.2,
/// rule 4).
///
/// Closing: rdma_disconnect(3) acts like a FIN of TCP. The queue pair goes on serving the peer's requests until the
/// peer has disconnected too, or something fails. An RNIC's queue pair does not, so between two wefts on RNICs the side
/// that learns first of the other's close disconnects. Then the queue pair moves to ERR, what is posted is flushed, and
/// a worker destroys the queue pair. Only that guarantees that no memory is touched any more, so closed() follows it.
class rdma_link final : public net::link,
                        private completion_sink,
                        private receive_sink,
                        private endpoint_events,
                        private detail::timer,
                        private detail::remote_work {
 public:
  rdma_link(std::unique_ptr<endpoint> established, std::shared_ptr<domain> memory, std::string peer,
            const agreement& agreed, bool listens_first);
  ~rdma_link() override;

  [[nodiscard]] const capabilities& properties() const noexcept override { return capabilities_; }
  [[nodiscard]] std::string_view peer() const noexcept override { return peer_; }
  void start(link_events& events, const link_parameters& options) override;
  [[nodiscard]] std::size_t corner_bytes() const noexcept override { return sizeof(posted_request); }
  [[nodiscard]] bool furnish(work_request& work) noexcept override;
  void post(work_request& work) noexcept override;
  [[nodiscard]] bool takes_runs() noexcept override;
  void post_run(work_run& run, const run_portion& what) noexcept override;
  void post_receive(receive_work& work) noexcept override;
  void ring() noexcept override;
  void shut_down() noexcept override;
  void peer_finished() noexcept override;
  void abort(std::string_view why) noexcept override;
  [[nodiscard]] bool may_have_failed_alone() const noexcept override { return failed_alone_; }
  [[nodiscard]] task<exposed_place> expose(mr::slice memory, mr::usage uses, mr::detail::peer_gate* gate) override;
  void revoke(const mr::remote_key& key, revocation& who) noexcept override;
  [[nodiscard]] std::optional<refused_access> refusal() const noexcept override { return refusal_; }

 private:
  // The corner of a work_request.
  struct posted_request {
    explicit posted_request(work_request& whole) noexcept : work(&whole) {}
    work_request* work;
    ibv_send_wr wr{};
    std::array<ibv_sge, max_segments> parts{};
  };
  // An element of a run.
  struct run_request {
    run_request() noexcept { wr.sg_list = &part; }
    ibv_send_wr wr{};
    ibv_sge part{};
  };
  struct run_shape;
  // A request about a window. The coroutine of expose() waits for a bind; request and coroutine may end in either
  // order. An invalidation notifies `who`.
  struct binding {
    ibv_send_wr wr{};
    bound_window* invalidated = nullptr;
    revocation* who = nullptr;
    bool looks_first = false;  // until on_drained(): the peer may have invalidated the window already
    event ended;
    bool posted = false;
    bool awaited = false;
    bool done = false;
  };
  class binding_wait;
  class unfinished_window;

  struct posted_receive {
    receive_work* work = nullptr;  // null: not posted
    receive_request request;
  };
  // A posted request, or a posted group of run elements; `ended` is its status while an earlier one has not ended.
  struct place_in_order {
    std::uint32_t mark = 0;   // of a group: the mark of its first element
    std::uint16_t count = 1;  // elements of the group that have not ended
    std::optional<ibv_wc_status> ended{};
    work_run* run = nullptr;  // of a group
  };
  // Requests that have been posted, but not handed over to the device.
  template <class Request>
  struct chain_of {
    Request* first = nullptr;
    Request* last = nullptr;

    void add_first(Request& next) noexcept {
      next.next = first;
      if (last == nullptr) last = &next;
      first = &next;
    }
    void add(Request& next) noexcept {
      next.next = nullptr;
      (last != nullptr ? last->next : first) = &next;
      last = &next;
    }
    /// Adds requests that are linked already, from `begin` to `end`.
    void add_all(Request& begin, Request& end) noexcept {
      end.next = nullptr;
      (last != nullptr ? last->next : first) = &begin;
      last = &end;
    }
    Request* take() noexcept {
      last = nullptr;
      return std::exchange(first, nullptr);
    }
    /// Takes the requests up to `end`, which is in the chain.
    Request* take(Request& end) noexcept {
      if (&end == last) last = nullptr;
      return std::exchange(first, std::exchange(end.next, nullptr));
    }
    /// False if it is not in the chain.
    bool remove(const Request& item) noexcept {
      Request* before = nullptr;
      for (Request* each = first; each != nullptr; before = std::exchange(each, each->next)) {
        if (each != &item) continue;
        (before != nullptr ? before->next : first) = item.next;
        if (last == &item) last = before;
        return true;
      }
      return false;
    }
  };

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

  void take_over() noexcept;
  void fill(posted_request& item) noexcept;
  void fill_parts(posted_request& item) noexcept;
  place_in_order& enter(const place_in_order& item) noexcept;
  void post_elements(work_run& run, std::span<const run_element> elements, run_shape& shape) noexcept;
  void bring_immediate(const run_portion& what) noexcept;
  void chain(ibv_send_wr& wr, std::uint16_t mark) noexcept;
  void post_binding(binding& item) noexcept;
  void request_completed(const ibv_wc& what, std::uint32_t mark) noexcept;
  void element_ended(std::size_t before, ibv_wc_status status) noexcept;
  void take_from_oldest(std::size_t elements, work_status status) noexcept;
  void look_at(const ibv_wc& what, bool is_receive) noexcept;
  [[nodiscard]] bool has_answer(std::uint32_t mark) noexcept;
  void speak() noexcept;
  [[nodiscard]] error why_failed(const ibv_wc& request) const;
  [[nodiscard]] error blame_port(const error& why) const noexcept;
  void receive_completed(const ibv_wc& what, receive_work& work) noexcept;
  [[nodiscard]] place_in_order& posted(std::size_t after_oldest) noexcept {
    return order_[(order_first_ + after_oldest) % order_.size()];
  }
  [[nodiscard]] std::size_t place_in_group(const place_in_order& group, std::uint32_t mark) const noexcept;
  [[nodiscard]] bool has_to_signal(const ibv_send_wr& wr) const noexcept;
  void hand_over_requests() noexcept;
  void count_handed_over(const ibv_send_wr* first, const ibv_send_wr* refused) noexcept;
  void split_group(std::size_t place, std::uint16_t first_part) noexcept;
  [[nodiscard]] bool has_to_wait(const ibv_send_wr& wr) noexcept;
  [[nodiscard]] ibv_send_wr& last_to_hand_over() const noexcept;
  void hand_over_receives() noexcept;
  void complete_ended() noexcept;
  void complete_oldest(ibv_wc_status status) noexcept;
  void leave_oldest() noexcept {
    order_first_ = (order_first_ + 1) % order_.size();
    --order_count_;
  }
  void binding_ended(binding& item, bool done) noexcept;
  [[nodiscard]] binding* free_binding() noexcept;
  [[nodiscard]] bool depends_on_peer(std::size_t requests) noexcept;
  [[nodiscard]] bool can_invalidate(const bound_window& item) noexcept;
  void begin_invalidating(bound_window& item, binding& place, revocation& who) noexcept;
  void invalidate(binding& item) noexcept;
  void invalidation_ended(binding& item, bool done) noexcept;
  void withdraw(binding& item) noexcept;
  [[nodiscard]] task<exposed_place> bind(mr::slice memory, mr::usage uses);
  [[nodiscard]] task<> wait_for(binding& item);
  [[nodiscard]] task<> make_window(bound_window& window, std::span<std::byte> memory, mr::access rights);
  [[nodiscard]] task<std::uint32_t> bind(bound_window& made, ibv_mw_bind_info what);

  void check_windows() const;
  void end(bool orderly, const error& why) noexcept;
  [[nodiscard]] bool may_end_without_peer() const noexcept;
  void end_without_peer(std::string_view words) noexcept;
  void fail(const error& why) noexcept;
  void say_goodbye() noexcept;
  void break_off() noexcept;
  void advance_end() noexcept;
  void watch_life() noexcept;
  void fill_keep_alive() noexcept;
  void count_silence() noexcept;
  [[nodiscard]] bool has_given_no_answer() noexcept;
  [[nodiscard]] std::uint64_t looks_to_spare() noexcept;
  [[nodiscard]] const ibv_send_wr& request_of(std::uint32_t mark) noexcept;
  [[nodiscard]] std::uint32_t mark_behind(std::uint32_t mark, std::size_t elements) const noexcept;
  void flush_rest() noexcept;
  [[nodiscard]] task<> finish();

  executor_core& home_;
  std::unique_ptr<endpoint> endpoint_;
  std::shared_ptr<domain> domain_;
  std::string peer_;
  capabilities capabilities_;
  bool port_was_down_ = false;  // at the last look of the timer
  std::chrono::milliseconds sign_of_life_after_;
  bool asks_with_nothing_;
  // Finished: this end has disconnected; the peer has left: it has; broken: the queue pair is in ERR; leaving: finish()
  // runs.
  link_life life_;
  std::uint64_t tag_ = 0;
  bool native_ = false;
  bool delivers_after_end_ = false;
  bool allow_shared_windows_ = false;

  std::vector<posted_request*> requests_;        // by slot: those that have been furnished
  std::unique_ptr<run_request[]> run_requests_;  // a ring; made for the first list
  std::size_t run_depth_ = 0;                    // size of run_requests_
  std::size_t next_run_request_ = 0;
  std::size_t group_size_ = 1;         // the most elements of a group
  std::vector<place_in_order> order_;  // a ring: what was posted and has not completed, oldest at order_first_
  std::size_t order_first_ = 0;
  std::size_t order_count_ = 0;
  std::size_t with_device_ = 0;                 // how many of order_ were handed over
  chain_of<ibv_send_wr> chained_;               // the rest of order_
  unsigned unsignaled_ = 0;                     // requests in a row
  std::unique_ptr<posted_receive[]> receives_;  // by slot
  std::size_t receive_depth_ = 0;               // size of receives_; the set-up may have made room for more
  chain_of<ibv_recv_wr> chained_receives_;
  std::size_t receives_with_device_ = 0;
  std::size_t posted_early_ = 0;  // how many of the next receives the set-up has posted already
  std::array<binding, bind_requests> bindings_;
  event binding_free_;
  bool looks_first_ = false;  // a binding looks first, and requests posted later wait
  landing_place landing_;     // the peer's
  ibv_send_wr keep_alive_{};
  ibv_sge keep_alive_part_{};
  bool keep_alive_posted_ = false;
  bool active_ = false;             // the peer has been heard since the last look of the timer
  std::uint64_t silent_looks_ = 0;  // looks in a row at which an answer was awaited, and nothing had been heard
  std::size_t exposing_ = 0;        // coroutines of expose() that refer to this link
  event exposed_;
  weft::detail::root_handle<void> finisher_;  // finish(), made while there is memory

  bool listens_first_;       // and no message has come yet
  bool taken_over_ = false;  // completions of receives come to this link
  std::optional<refused_access> refusal_;
  bool failed_alone_ = false;  // may_have_failed_alone()
  bool unwatched_ = false;     // there was no memory for a timer, so flushed requests are not waited for
};

}  // namespace weft::net::verbs
