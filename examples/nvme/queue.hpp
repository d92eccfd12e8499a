// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/weft.hpp>

#include <bitset>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nvme/admin_commands.hpp>
#include <nvme/controller.hpp>
#include <nvme/fabrics.hpp>
#include <nvme/io_commands.hpp>
#include <nvme/queue_handle.hpp>
#include <nvme/request.hpp>
#include <nvme/target.hpp>

namespace nvme {

/// One queue of a host's, which is one connection: takes commands, has them executed side by side, and answers.
///
/// What it holds is bounded by its size: each command keeps its capsule, whose memory carries the completion in the
/// end, and waits for one buffer of data if it moves any. So commands that wait for buffers hold none, and go on in the
/// end.
class queue final : private queue_control, private admin_commands::events {
 public:
  queue(target& home, weft::net::connection peer, const cm_request& wanted);
  queue(const queue&) = delete;
  queue& operator=(const queue&) = delete;
  ~queue();

  /// Returns once the host has gone, the target drains, or the queue has been aborted. Throws what the host has done
  /// wrong, and what else has ended the connection.
  [[nodiscard]] weft::task<> run();

 private:
  [[nodiscard]] bool is_admin() const noexcept { return handle_->id == 0; }

  // The life of the queue.
  [[nodiscard]] weft::task<> converse();
  [[nodiscard]] weft::task<> receive(weft::scope& commands);
  [[nodiscard]] weft::task<> receive_all(weft::scope& commands, weft::scope& receiving);
  [[nodiscard]] weft::task<> watch();
  [[nodiscard]] weft::task<> watch_keep_alive();
  void end();

  // Commands.
  void admit(const command& asked);
  [[nodiscard]] weft::task<> execute(weft::net::message capsule);
  [[nodiscard]] weft::task<outcome> dispatch(request& what);
  [[nodiscard]] status check(const command& asked) const noexcept;
  [[nodiscard]] weft::task<> respond(const command& asked, weft::mr::buffer capsule, outcome done);
  [[nodiscard]] completion finish(std::uint16_t command_id, nvme::status how, std::uint64_t result);
  void note_failure(const command& asked, nvme::status how);

  // Fabrics commands.
  [[nodiscard]] weft::task<outcome> connect(request& what);
  [[nodiscard]] weft::task<outcome> connect_with(request& what);
  [[nodiscard]] weft::task<outcome> connect_admin(const connect_fields& asked, const connect_data& data);
  [[nodiscard]] weft::task<std::shared_ptr<controller>> make_controller(const controller::origin& from, bool& busy);
  [[nodiscard]] outcome connect_io(const connect_fields& asked, const connect_data& data);
  [[nodiscard]] outcome refuse_connect(std::string_view why, nvme::status how, std::uint64_t result = 0) const;
  void begin_service(const std::shared_ptr<controller>& of);
  void leave(controller& left);

  // queue_control
  void abort() noexcept override {
    aborted_ = true;
    peer_.abort();
  }
  void drain() noexcept override;
  void notify(const async_event& what) noexcept override;
  void other_ended() noexcept override { other_ended_.set(); }

  // admin_commands::events
  [[nodiscard]] outcome await_event(std::uint16_t command_id) override;
  void restart_keep_alive(std::optional<std::chrono::milliseconds> timeout) override;
  [[nodiscard]] std::chrono::milliseconds keep_alive() const noexcept override { return keep_alive_; }
  void clear_event(log_page page) noexcept override;
  void reset_events() noexcept override;
  [[nodiscard]] weft::task<> wait_for_io_queues() override;
  void tell_events() noexcept;
  [[nodiscard]] weft::task<> answer_event(std::uint16_t command_id, async_event what);

  target& home_;
  weft::net::connection peer_;
  const std::string peer_name_;
  std::uint16_t entries_;  // as the connection has it, and then as Connect does
  const std::shared_ptr<queue_handle> handle_;

  std::shared_ptr<controller> controller_;  // once Connect has succeeded
  bool connecting_ = false;
  bool draining_ = false;
  bool aborted_ = false;
  bool without_flow_control_ = false;
  std::optional<admin_commands> admin_;  // once connected, one or the other
  std::optional<io_commands> io_;

  std::uint16_t head_ = 0;
  std::uint32_t outstanding_ = 0;    // commands without a completion, but for those that wait for an event
  std::vector<bool> in_use_;         // ids of all commands without a completion
  weft::scope* commands_ = nullptr;  // while they run
  weft::scope* receiving_ = nullptr;

  std::vector<std::uint16_t> event_requests_;
  std::vector<async_event> events_;  // that nobody has asked for yet
  std::bitset<256> told_;            // pages of events that the host has not read since there was one

  weft::event other_ended_;  // of its controller, or the association for whose end a Connect waits
  weft::event changed_;      // Connect, or the keep alive timer
  std::chrono::milliseconds keep_alive_{0};
  weft::time_point last_alive_{};
};

}  // namespace nvme
