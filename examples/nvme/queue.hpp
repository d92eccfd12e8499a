// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/weft.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nvme/admin_commands.hpp>
#include <nvme/controller.hpp>
#include <nvme/fabrics.hpp>
#include <nvme/io_commands.hpp>
#include <nvme/request.hpp>
#include <nvme/target.hpp>

namespace nvme {

/// One queue of a host's, which is one connection: takes commands, has them executed side by side, and answers.
///
/// What it holds is bounded by its size: each command keeps its capsule, whose memory carries the completion in the
/// end, and waits for one buffer of data if it moves any. So commands that wait for buffers hold none, and go on in the
/// end.
class queue {
 public:
  queue(target& home, weft::net::connection peer, const cm_request& wanted);
  queue(const queue&) = delete;
  queue& operator=(const queue&) = delete;
  ~queue();

  /// Returns once the host has gone, the target drains, or the queue has been aborted. Throws what the host has done
  /// wrong, and what else has ended the connection.
  [[nodiscard]] weft::task<> run();

  // ---- for its controller and the target ----

  /// Ends the connection, soon.
  void abort() noexcept;
  /// Takes no further command, and closes the connection once those under way are done.
  void drain() noexcept;
  /// Namespaces have changed.
  void notify() noexcept;

  // ---- for its admin commands ----

  /// Takes an Asynchronous Event Request.
  [[nodiscard]] outcome await_event(std::uint16_t command_id);
  /// The host has read what an event told it to: it may be told of the next one.
  void clear_event() noexcept;
  /// The controller is disabled: requests for events end without an answer, and nothing is left to be told.
  void reset_events() noexcept;
  /// The host has shown that it lives.
  void restart_keep_alive() noexcept { last_alive_ = weft::executor::current()->now(); }
  /// Returns once no command of an I/O queue runs any more.
  [[nodiscard]] weft::task<> wait_for_io_queues();

 private:
  [[nodiscard]] bool is_admin() const noexcept { return id_ == 0; }

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
  [[nodiscard]] weft::task<outcome> dispatch_to(request& what);
  [[nodiscard]] status check(const command& asked) const noexcept;
  [[nodiscard]] weft::task<> respond(const command& asked, weft::mr::buffer capsule, outcome done);
  [[nodiscard]] completion finish(std::uint16_t command_id, nvme::status how, std::uint64_t result);

  // Connect.
  [[nodiscard]] weft::task<outcome> connect(request& what);
  [[nodiscard]] weft::task<outcome> connect_with(const connect_fields& asked, const connect_data& data);
  [[nodiscard]] weft::task<outcome> connect_admin(const connect_fields& asked, const connect_data& data);
  [[nodiscard]] weft::task<std::shared_ptr<controller>> make_controller(const controller::origin& from, bool& busy);
  [[nodiscard]] outcome connect_io(const connect_data& data);
  [[nodiscard]] outcome refuse_connect(std::string_view why, nvme::status how, std::uint64_t result = 0) const;
  [[nodiscard]] outcome refuse_field(std::string_view why, std::uint16_t offset, bool in_data = true) const;
  void begin_service(const std::shared_ptr<controller>& of);

  // Events.
  void tell_event() noexcept;
  [[nodiscard]] weft::task<> answer_event(std::uint16_t command_id);

  target& home_;
  weft::net::connection peer_;
  const std::string peer_name_;
  std::uint16_t entries_;  // as the connection has it, and then as Connect does
  const std::uint16_t id_;

  std::shared_ptr<controller> controller_;  // once Connect has succeeded
  bool connecting_ = false;
  bool draining_ = false;
  bool aborted_ = false;
  bool ended_ = false;
  std::optional<admin_commands> admin_;  // once connected, one or the other
  std::optional<io_commands> io_;
  counters done_;

  std::uint16_t head_ = 0;
  std::uint32_t outstanding_ = 0;    // commands without a completion, but for those that wait for an event
  std::vector<bool> in_use_;         // ids of all commands without a completion
  weft::scope* commands_ = nullptr;  // while they run
  weft::scope* receiving_ = nullptr;

  std::vector<std::uint16_t> event_requests_;
  bool has_event_ = false;  // that nobody has asked for yet
  bool told_ = false;       // of changes that the host has not read

  weft::event connected_;
  std::chrono::milliseconds keep_alive_{0};
  weft::time_point last_alive_{};
};

}  // namespace nvme
