// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/weft.hpp>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nvme/controller.hpp>
#include <nvme/request.hpp>
#include <nvme/target.hpp>

namespace nvme {

/// The commands of an admin queue, but for Connect.
class admin_commands {
 public:
  /// What the commands need of their queue.
  class events {
   public:
    /// Takes an Asynchronous Event Request.
    [[nodiscard]] virtual outcome await_event(std::uint16_t command_id) = 0;
    /// The host has shown that it lives; with a time: and has changed how long it may be silent.
    virtual void restart_keep_alive(std::optional<std::chrono::milliseconds> timeout) = 0;
    [[nodiscard]] virtual std::chrono::milliseconds keep_alive() const noexcept = 0;
    /// The host has read what an event told it to: it may be told of the next one.
    virtual void clear_event(log_page page) noexcept = 0;
    /// The controller is disabled: requests for events end without an answer, and nothing is left to be told.
    virtual void reset_events() noexcept = 0;
    /// Returns once no command of an I/O queue runs any more.
    [[nodiscard]] virtual weft::task<> wait_for_io_queues() = 0;

   protected:
    ~events() = default;
  };

  admin_commands(target& home, controller& of, events& queue, std::string peer)
      : home_(home), controller_(of), queue_(queue), peer_(std::move(peer)) {}

  [[nodiscard]] weft::task<outcome> execute(request& what);
  [[nodiscard]] weft::task<outcome> set_property(request& what);
  [[nodiscard]] weft::task<outcome> get_property(request& what);

  /// Rounded up to what a controller can tell.
  static constexpr std::chrono::milliseconds keep_alive_granularity{100};
  [[nodiscard]] static std::chrono::milliseconds rounded(std::uint32_t milliseconds) noexcept;

 private:
  [[nodiscard]] weft::task<outcome> configure(std::uint32_t value);
  [[nodiscard]] weft::task<bool> shut_down();
  [[nodiscard]] weft::task<bool> flush_disks(std::string_view what_for);
  [[nodiscard]] weft::task<outcome> execute_without_data(request& what);
  [[nodiscard]] weft::task<outcome> identify(request& what);
  [[nodiscard]] status identify_into(request& what, std::span<std::byte> into) const;
  [[nodiscard]] controller_identity identify_controller() const;
  [[nodiscard]] weft::task<outcome> get_log_page(request& what);
  [[nodiscard]] std::optional<std::vector<std::byte>> log(const log_fields& wanted);
  [[nodiscard]] weft::task<outcome> set_feature(const request& what);
  [[nodiscard]] bool has_write_cache() const;
  [[nodiscard]] weft::task<outcome> set_write_cache(bool on);
  [[nodiscard]] weft::task<outcome> get_feature(request& what);

  target& home_;
  controller& controller_;
  events& queue_;
  std::string peer_;
  bool configuring_ = false;
  weft::mutex write_cache_;  // held while it is turned on or off
};

}  // namespace nvme
