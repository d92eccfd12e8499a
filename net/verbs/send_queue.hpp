// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/link_life.hpp>
#include <weft/net/link/transport.hpp>
#include <weft/net/verbs/domain.hpp>
#include <weft/net/verbs/endpoint.hpp>
#include <weft/net/verbs/request_chain.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace weft::net::verbs {

/// A request's wr_id holds, beside the tag, its mark: the slot of a work_request; run_bit and the place of a run's
/// element; or, for the link's own requests, a number from first_bind_mark on, which no slot reaches: max_depth is
/// smaller.
inline constexpr std::uint16_t keep_alive_mark = 0xFFFF;
inline constexpr std::uint16_t first_bind_mark = 0xFFF0;

/// The requests of a queue pair, in order, from their post to their completion.
///
/// Requests are chained, and handed over once in a turn: one doorbell for all tasks that use the link. The last request
/// of a chain is signaled, and one in a few before it; a completion stands for the unsignaled requests before it too.
///
/// Lists are taken whole: the elements of a work_run are copied into a ring of requests of their own, in groups. Only
/// the last request of a group is signaled. A group has one place in the order of requests, and one completion.
class send_queue {
 public:
  /// The owner of the link's own requests, which have a mark, but no work_request.
  class own_requests {
   public:
    [[nodiscard]] virtual const ibv_send_wr& own_request(std::uint32_t mark) const noexcept = 0;
    virtual void own_request_ended(std::uint32_t mark, bool done) noexcept = 0;

   protected:
    ~own_requests() = default;
  };

  /// What the link keeps in work_request::corner.
  struct posted_request {
    explicit posted_request(work_request& whole) noexcept : work(&whole) {}
    work_request* work;
    ibv_send_wr wr{};
    std::array<ibv_sge, max_segments> parts{};
  };

  send_queue(endpoint& of, const domain& memory, const link_life& life, own_requests& own) noexcept
      : endpoint_(of), domain_(memory), life_(life), own_(own) {}
  send_queue(const send_queue&) = delete;
  send_queue& operator=(const send_queue&) = delete;

  /// Makes room for `depth` requests and elements of runs at a time. Throws std::bad_alloc.
  void make_room(std::uint16_t depth);
  /// Makes every write of eight bytes at a multiple of eight an ATOMIC WRITE, which the peer has to take.
  void write_atomically() noexcept { writes_atomically_ = true; }
  /// Passes completions to `sink` from now on. Must be the last call of the link's start that may throw, because only
  /// closing undoes it. Throws like completion_queue::attach().
  void attach(completion_sink& sink) { tag_ = endpoint_.queue().attach(sink); }
  [[nodiscard]] std::uint64_t tag() const noexcept { return tag_; }

  // As in link.
  [[nodiscard]] bool furnish(work_request& work) noexcept;
  void post(work_request& work) noexcept;
  [[nodiscard]] bool takes_runs() noexcept;
  void post_run(work_run& run, const run_portion& what) noexcept;
  void ring() noexcept {
    if (!chained_.empty()) endpoint_.queue().ring_later(tag_);
  }

  /// Posts a request of the link's own.
  void post_own(ibv_send_wr& wr, std::uint16_t mark) noexcept;
  /// Puts a request of the link's own, which must be signaled, ahead of all requests that were not handed over.
  void post_own_first(ibv_send_wr& wr, std::uint16_t mark) noexcept;
  /// Gives a place in the order to a request that is handed over by a call other than ibv_post_send(3). When the device
  /// has taken the request, call handed_over_own().
  void enter_own(std::uint16_t mark) noexcept { enter({.mark = mark}); }
  void handed_over_own() noexcept { ++with_device_; }
  /// Takes a request of the link's own back. False if the device has it already, or break_off() has dropped it.
  [[nodiscard]] bool withdraw_own(const ibv_send_wr& wr, std::uint16_t mark) noexcept;

  /// Hands over what is chained, as far as it need not wait for earlier requests. Returns a negative errno if the
  /// device has refused some requests, which keep their places in the order until flush().
  [[nodiscard]] int hand_over() noexcept;
  /// Takes a request's completion, which stands for the unsignaled requests before it as well.
  void completed(const ibv_wc& what, std::uint32_t mark) noexcept;

  /// Drops the chain, so nothing more is handed over. Requests that the device has may still complete.
  void break_off() noexcept { chained_.take(); }
  /// Stops expecting completions from the device.
  void give_up() noexcept { with_device_ = 0; }
  /// Completes all that was posted, as flushed unless the request had ended out of order. Call it after break_off().
  void flush() noexcept;

  /// Whether everything posted has completed.
  [[nodiscard]] bool idle() const noexcept { return order_count_ == 0; }
  /// Whether the device has requests that have not completed.
  [[nodiscard]] bool is_with_device() const noexcept { return with_device_ != 0; }
  /// Whether a posted request to the peer has not completed; whether the device has such a request.
  [[nodiscard]] bool depends_on_peer() const noexcept { return depends_on_peer(order_count_); }
  [[nodiscard]] bool device_depends_on_peer() const noexcept { return depends_on_peer(with_device_); }
  /// Whether the request of this mark completes only with the peer's answer.
  [[nodiscard]] bool has_answer(std::uint32_t mark) const noexcept;

  /// The work that the device has to do before a completion.
  struct outstanding {
    std::uint64_t bytes = 0;
    bool takes_receive = false;  ///< the peer needs a receive for some of it
  };
  /// The work before the next completion, or with `all`, before everything that was handed over has completed.
  [[nodiscard]] outstanding before_next_completion(bool all) const noexcept;

 private:
  // An element of a run.
  struct run_request {
    run_request() noexcept { wr.sg_list = &part; }
    ibv_send_wr wr{};
    ibv_sge part{};
  };
  struct run_shape;
  // A posted request, or a posted group of run elements; `ended` is its status if it has ended before an earlier one.
  struct place_in_order {
    std::uint32_t mark = 0;   // of a group: the mark of its first element that has not ended
    std::uint16_t count = 1;  // elements of the group that have not ended
    std::optional<ibv_wc_status> ended{};
    work_run* run = nullptr;  // null: not a group
  };

  [[nodiscard]] place_in_order& posted(std::size_t after_oldest) noexcept {
    return order_[(order_first_ + after_oldest) % order_.size()];
  }
  [[nodiscard]] const place_in_order& posted(std::size_t after_oldest) const noexcept {
    return order_[(order_first_ + after_oldest) % order_.size()];
  }
  place_in_order& enter(const place_in_order& item) noexcept { return posted(order_count_++) = item; }
  void leave_oldest() noexcept {
    order_first_ = (order_first_ + 1) % order_.size();
    --order_count_;
  }
  [[nodiscard]] const ibv_send_wr& request_of(std::uint32_t mark) const noexcept;
  [[nodiscard]] std::uint32_t mark_behind(std::uint32_t mark, std::size_t elements) const noexcept;
  [[nodiscard]] std::size_t place_in_group(const place_in_order& group, std::uint32_t mark) const noexcept;
  [[nodiscard]] bool depends_on_peer(std::size_t requests) const noexcept;

  [[nodiscard]] int post_apart(ibv_send_wr* first, ibv_send_wr** refused) noexcept;
  void chain(ibv_send_wr& wr, std::uint16_t mark) noexcept;
  void fill(posted_request& item) noexcept;
  [[nodiscard]] bool fill_parts(posted_request& item) noexcept;
  void post_elements(work_run& run, std::span<const run_element> elements, run_shape& shape) noexcept;
  void bring_immediate(const run_portion& what) noexcept;
  [[nodiscard]] bool has_to_signal(const ibv_send_wr& wr) const noexcept;

  [[nodiscard]] bool has_to_wait(const ibv_send_wr& wr) const noexcept;
  [[nodiscard]] ibv_send_wr& last_to_hand_over() const noexcept;
  void count_handed_over(const ibv_send_wr* first, const ibv_send_wr* refused) noexcept;
  void split_group(std::size_t place, std::uint16_t first_part) noexcept;

  void element_ended(std::size_t before, ibv_wc_status status) noexcept;
  void take_from_oldest(std::size_t elements, work_status status) noexcept;
  void complete_ended() noexcept;
  void complete_oldest(ibv_wc_status status) noexcept;

  endpoint& endpoint_;
  const domain& domain_;
  const link_life& life_;
  own_requests& own_;
  std::uint64_t tag_ = 0;
  std::vector<posted_request*> requests_;        // by slot, once furnished
  std::unique_ptr<run_request[]> run_requests_;  // a ring; made for the first list
  std::size_t run_depth_ = 0;                    // size of run_requests_
  std::size_t next_run_request_ = 0;
  std::size_t group_size_ = 1;         // the most elements of a group
  std::vector<place_in_order> order_;  // a ring: what was posted and has not completed, oldest at order_first_
  std::size_t order_first_ = 0;
  std::size_t order_count_ = 0;
  std::size_t with_device_ = 0;         // how many of order_ were handed over
  request_chain<ibv_send_wr> chained_;  // what the next hand_over() may hand over, in order
  unsigned unsignaled_ = 0;             // how many requests in a row were not signaled
  bool has_apart_ = false;              // chained_ may have a FLUSH or an ATOMIC WRITE
  bool writes_atomically_ = false;
};

}  // namespace weft::net::verbs
