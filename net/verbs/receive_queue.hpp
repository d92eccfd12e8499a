// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/transport.hpp>
#include <weft/net/verbs/executor_state.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace weft::net::verbs {

/// The work request of a receive.
struct receive_request {
  ibv_recv_wr wr{};
  ibv_sge part{};

  /// Fills the request, which must not move until it has been posted.
  void fill(const receive_work& work, std::size_t fabric, std::uint64_t wr_id) noexcept;
};

/// The owner of a queue pair, as a shared receive queue sees it.
class receive_sink {
 public:
  /// A receive that the queue pair had taken has completed, perhaps with an error, and now belongs to the sink. Called
  /// in order for each connection.
  virtual void on_receive(const ibv_wc& what, receive_work& work) noexcept = 0;
  /// The queue has failed: completions of receives can no longer be relied upon.
  virtual void on_receives_failed(const error& why) noexcept = 0;

 protected:
  ~receive_sink() = default;
};

/// A shared receive queue of one device, for queue pairs of one executor: see ibv_create_srq(3).
///
/// The receives of all its queue pairs complete in one completion queue, which has room for the whole depth. A
/// completion names the queue pair that has taken the receive by its number; if that queue pair was detached, the
/// receive is posted again. The queue must outlive its queue pairs.
class receive_queue final : public net::receive_queue, private completion_sink, private async_handler {
 public:
  /// Makes a queue of `depth` receives. Throws weft::error: errc::not_supported if the device has no shared receive
  /// queues, or is an RNIC; errc::invalid_argument if `depth` is beyond the device's limit.
  static task<std::unique_ptr<net::receive_queue>> make(executor_state& shared, std::uint16_t depth);

  receive_queue(executor_state& shared, completion_queue& completions, std::uint16_t depth, ibv_srq* made);
  /// Has a worker destroy the device's queue; without an executor on this thread, or without memory, destroys it before
  /// returning.
  ~receive_queue() override;

  [[nodiscard]] ibv_srq* get() const noexcept { return queue_; }
  [[nodiscard]] completion_queue& completions() const noexcept { return completions_; }

  void post(receive_work& work) noexcept override;

  /// Makes `who` the sink of the queue pair with that number. Call it before the queue pair can take receives. Throws
  /// std::bad_alloc, or the queue's failure.
  void attach(std::uint32_t pair, receive_sink& who);
  /// Passes the receives of that queue pair to `who` instead, from now on.
  void hand_over(std::uint32_t pair, receive_sink& who) noexcept { find(pair)->sink = &who; }
  void detach(std::uint32_t pair) noexcept;

 private:
  struct user {
    std::uint32_t pair = 0;
    receive_sink* sink = nullptr;
  };

  static task<std::unique_ptr<net::receive_queue>> make_now(executor_state& shared, std::uint16_t depth);
  void on_completion(const ibv_wc& what, std::uint32_t slot) noexcept override;
  void on_queue_failure(const error& why) noexcept override { fail(why); }
  void on_async_event(ibv_event_type what, int port) noexcept override;
  void fail(const error& why) noexcept;
  [[nodiscard]] std::vector<user>::iterator place_of(std::uint32_t pair) noexcept;
  [[nodiscard]] user* find(std::uint32_t pair) noexcept;

  executor_state& shared_;
  executor_state::user watching_;  // so that the device's failure is noticed even without connections
  completion_queue& completions_;
  ibv_srq* queue_;
  std::shared_ptr<async_target> target_;
  std::vector<receive_work*> posted_;  // by slot; null: not posted
  std::uint64_t tag_;                  // made last of all that may throw, because only the destructor detaches it
  std::vector<user> users_;            // sorted by `pair`
  std::optional<error> failure_;
};

}  // namespace weft::net::verbs
