// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/verbs/device.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/system/poller.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace weft::net::verbs {

/// A user of a completion queue, such as a link.
class completion_sink {
 public:
  /// Hands posted requests over to the device. Called by the next poll after completion_queue::ring_later(), before
  /// that poll takes completions.
  virtual void ring_now() noexcept {}
  /// Handles the next completion of the sink's queue pair. `detail` is the part of the request's wr_id below the tag.
  virtual void on_completion(const ibv_wc& what, std::uint32_t detail) noexcept = 0;
  /// All completions that were there when completion_queue::tell_when_drained() was called have been passed on. Called
  /// inside a poll.
  virtual void on_drained() noexcept {}
  /// The queue has failed: no completion can be relied upon.
  virtual void on_queue_failure(const error& why) noexcept = 0;

 protected:
  ~completion_sink() = default;
};

/// A completion queue of one executor, for the queue pairs of many links.
///
/// A link reserves room for every request that it may have posted, because a queue that overflows loses completions; on
/// rxe only an asynchronous event reports that. Used on the executor, except for the constructor and the destructor.
class completion_queue final : public poller, private async_handler {
 public:
  /// The number of low bits of a wr_id that are the sink's own.
  static constexpr unsigned detail_bits = 24;

  /// Creates a queue for at least `entries` completions. Blocks. Throws weft::error.
  completion_queue(std::shared_ptr<device> home, std::uint32_t entries);
  completion_queue(const completion_queue&) = delete;
  completion_queue& operator=(const completion_queue&) = delete;
  ~completion_queue();

  /// Has events about the queue delivered on `home`, the executor that polls it.
  void hear_events_on(executor_core& home);
  /// Start and stop polling: only a queue with users is polled. Must not be called inside a poll.
  void begin_polling();
  void end_polling() noexcept;

  [[nodiscard]] ibv_cq* get() const noexcept { return queue_; }
  /// Whether `entries` more completions fit; false once the queue has failed.
  [[nodiscard]] bool has_room(std::uint32_t entries) const noexcept {
    return !failure_ && entries <= capacity_ - reserved_;
  }
  [[nodiscard]] bool idle() const noexcept { return reserved_ == 0; }
  void reserve(std::uint32_t entries) noexcept { reserved_ += entries; }
  void release(std::uint32_t entries) noexcept { reserved_ -= entries; }

  /// Adds a sink, and returns the tag for its wr_ids, whose detail_bits lowest bits are 0. Throws std::bad_alloc, or
  /// the queue's failure.
  [[nodiscard]] std::uint64_t attach(completion_sink& sink);
  /// Passes completions with this tag to `sink` from now on.
  void hand_over(std::uint64_t tag, completion_sink& sink) noexcept { places_[index_of(tag)].sink = &sink; }
  /// Removes the sink. Completions that still come with this tag are dropped: a destroyed queue pair may leave some.
  void detach(std::uint64_t tag) noexcept;
  /// Calls the sink's ring_now() in the next poll(). The executor polls in every turn and once more before it sleeps,
  /// so all requests posted in a turn take one doorbell.
  void ring_later(std::uint64_t tag) noexcept;
  /// Calls the sink's on_drained(), inside poll(), after the first ibv_poll_cq(3) from now on that leaves no
  /// completion.
  void tell_when_drained(std::uint64_t tag) noexcept;
  /// Polls the completions that are there already.
  void drain() noexcept;

  std::size_t poll(std::size_t budget) noexcept override;
  void arm() noexcept override;
  void disarm() noexcept override;
  [[nodiscard]] int wait_fd() const noexcept override { return channel_->fd; }

 private:
  // The generation tells a late completion of the place's earlier sink from one of the present sink.
  struct place {
    completion_sink* sink = nullptr;
    std::uint32_t generation = 0;
    bool rings = false;  // in to_ring_
    bool waits = false;  // in to_tell_
  };
  static constexpr unsigned index_bits = 16;
  static constexpr std::uint32_t generation_mask = 0xFF'FFFF;

  [[nodiscard]] static std::uint32_t index_of(std::uint64_t tag) noexcept {
    return static_cast<std::uint32_t>((tag >> detail_bits) & ((1u << index_bits) - 1));
  }
  void ring_all() noexcept;
  /// Tells the first `count` sinks of to_tell_.
  void tell(std::size_t count) noexcept;
  void dispatch(const ibv_wc& what) noexcept;
  void on_async_event(ibv_event_type what, int port) noexcept override;
  void fail(const error& why) noexcept;
  void lose_channel() noexcept;

  std::shared_ptr<device> device_;
  executor_core* home_ = nullptr;
  std::shared_ptr<async_target> target_;
  ibv_comp_channel* channel_ = nullptr;
  ibv_cq* queue_ = nullptr;
  std::uint32_t capacity_ = 0;
  std::uint32_t reserved_ = 0;
  unsigned unacknowledged_ = 0;
  bool armed_ = false;
  bool found_while_armed_ = false;  // a completion, whose event has not been taken
  bool polled_ = false;
  bool channel_lost_ = false;  // the device was removed, and the channel's descriptor stays readable
  std::optional<error> failure_;
  std::vector<place> places_;
  std::vector<std::uint32_t> free_places_;
  std::vector<std::uint32_t> to_ring_;
  std::vector<std::uint32_t> to_tell_;
};

}  // namespace weft::net::verbs
