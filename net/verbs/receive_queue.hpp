// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/transport.hpp>
#include <weft/net/verbs/executor_state.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace weft::net::verbs {

/// What a device is given for a receive.
struct receive_request {
  ibv_recv_wr wr{};
  ibv_sge part{};

  /// Stays where it is until it is posted.
  void fill(const receive_work& work, std::size_t fabric, std::uint64_t wr_id) noexcept;
};

/// Who uses one queue pair, as a shared receive queue sees it.
class receive_sink {
 public:
  /// A receive that the queue pair has taken; of each connection in order. From here on it is the sink's.
  virtual void on_receive(const ibv_wc& what, receive_work& work) noexcept = 0;
  /// The queue has failed: nothing more will come.
  virtual void on_receives_failed(const error& why) noexcept = 0;

 protected:
  ~receive_sink() = default;
};

/// A shared receive queue of one device, for queue pairs of one executor: see ibv_create_srq(3).
///
/// Its queue pairs send their receives' completions to one completion queue, in which there is room for as many as the
/// shared queue is deep. Which of them has taken a receive is told by its number; what has been taken for one that is
/// gone is posted again. It outlives its queue pairs.
class receive_queue final : public net::receive_queue, private completion_sink, private async_handler {
 public:
  /// Throws weft::error: errc::not_supported if the device has none, or is an RNIC, errc::invalid_argument if none is
  /// so deep.
  [[nodiscard]] static task<std::unique_ptr<net::receive_queue>> make(executor_state& shared, std::uint16_t depth);

  receive_queue(executor_state& shared, completion_queue& completions, std::uint16_t depth, ibv_srq* made);
  /// A worker destroys the device's queue.
  ~receive_queue() override;

  [[nodiscard]] ibv_srq* get() const noexcept { return queue_; }
  [[nodiscard]] completion_queue& completions() const noexcept { return completions_; }

  void post(receive_work& work) noexcept override;

  /// From now on `who` hears of what the queue pair of that number takes, which cannot take anything yet. Throws
  /// weft::error if the queue has failed.
  void attach(std::uint32_t pair, receive_sink& who);
  /// The same from now on for `who`.
  void hand_over(std::uint32_t pair, receive_sink& who) noexcept;
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
  executor_state::user watching_;  // where there are no connections, it is what is to hear that the device has gone
  completion_queue& completions_;
  ibv_srq* queue_;
  std::shared_ptr<async_target> target_;
  std::vector<receive_work*> posted_;  // by slot; null: not with the device
  std::uint64_t tag_;                  // last of what may fail: nothing takes it back then
  std::vector<user> users_;            // by number
  std::optional<error> failure_;
};

}  // namespace weft::net::verbs
