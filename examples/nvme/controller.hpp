// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/weft.hpp>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <nvme/command.hpp>
#include <nvme/identify.hpp>
#include <nvme/subsystem.hpp>

namespace nvme {

class queue;

/// What a target offers each host.
struct limits {
  std::uint16_t queue_entries = 128;                         ///< of an I/O queue; 2 to 1024
  std::uint16_t io_queues = 32;                              ///< of one controller; 1 to 1024
  std::uint32_t in_capsule_bytes = std::uint32_t{16} << 10;  ///< of data with a command; a multiple of 16, or none
  std::uint8_t max_transfer_shift = 6;                ///< a command moves at most 4096 bytes, shifted left by so much
  std::uint16_t controllers = 256;                    ///< of the target
  std::uint16_t async_events = 4;                     ///< Asynchronous Event Requests of one controller
  std::chrono::milliseconds connect_timeout{10'000};  ///< from the connection to a Connect that succeeds
  /// How long a Connect waits for the last commands of an association that its host has lost.
  std::chrono::milliseconds takeover_timeout{5'000};
  /// How long a host may take to give or take the data of a command, and its completion. Whoever takes longer loses the
  /// queue: others wait for the buffer.
  std::chrono::milliseconds transfer_timeout{30'000};

  [[nodiscard]] std::uint32_t max_transfer_bytes() const noexcept { return std::uint32_t{4096} << max_transfer_shift; }
};

/// What one host's Connect has made: its queues are those of one association.
class controller {
 public:
  /// Who has connected. `of` is null for a discovery controller.
  struct origin {
    const subsystem* of = nullptr;
    std::string host;
    identifier host_id{};

    friend bool operator==(const origin&, const origin&) = default;
  };

  controller(std::uint16_t id, origin from, const limits& most)
      : id_(id), from_(std::move(from)), most_(most), granted_(most.io_queues) {}

  [[nodiscard]] std::uint16_t id() const noexcept { return id_; }
  [[nodiscard]] const origin& from() const noexcept { return from_; }
  [[nodiscard]] bool is_discovery() const noexcept { return from_.of == nullptr; }

  // ---- properties ----

  /// Whether it executes commands: it is enabled, and not about to be disabled.
  [[nodiscard]] bool serves() const noexcept { return is_enabled() && (status_ & controller_status::ready) != 0; }
  [[nodiscard]] std::uint32_t status() const noexcept { return status_; }
  [[nodiscard]] std::uint32_t configuration() const noexcept { return configuration_; }
  /// A new value of CC. Disabling ends all I/O queues, and CSTS.RDY becomes 0 once the last one has left: none of their
  /// commands runs any more then. False, and nothing is changed, if it would enable a controller before that.
  [[nodiscard]] bool configure(std::uint32_t value);
  /// Takes no further I/O queue, and lets the commands of those that are there end: they leave, and then what is to be
  /// on the disks can be flushed. What follows is configure() with the shutdown in its value, or abandon_shutdown().
  void begin_shutdown();
  void abandon_shutdown() noexcept { status_ &= ~controller_status::shutdown_mask; }
  /// Nothing works any more but to connect anew.
  void fail();

  // ---- queues ----

  /// How many I/O queues the host gets of those that it wants.
  [[nodiscard]] std::uint16_t grant_queues(std::uint16_t wanted) noexcept;
  [[nodiscard]] bool has_io_queues() const { return queues_.lower_bound(1) != queues_.end(); }
  /// Takes a queue in: status::invalid_queue_id for one that was not granted or is there already, and
  /// command_sequence_error for an I/O queue while the controller is not enabled.
  [[nodiscard]] nvme::status join(std::uint16_t queue_id, queue& joining);
  /// None of the queue's commands runs any more. The association is lost with its admin queue: that ends the others,
  /// and no queue joins any more.
  void leave(std::uint16_t queue_id);
  [[nodiscard]] bool is_lost() const noexcept { return lost_; }
  /// Whether it is a lost association, and none of its commands runs any more.
  [[nodiscard]] bool is_over() const noexcept { return lost_ && queues_.empty(); }

  // ---- changes of namespaces ----

  /// Tells the host, if it has asked to be told.
  void note_change(std::uint32_t nsid);
  void want_notices(bool value) noexcept { wants_notices_ = value; }
  [[nodiscard]] bool wants_notices() const noexcept { return wants_notices_; }
  /// Namespaces that have changed since they were last forgotten.
  [[nodiscard]] std::vector<std::uint32_t> changes(bool forget);

 private:
  [[nodiscard]] bool is_enabled() const noexcept { return (configuration_ & configuration::enable) != 0; }
  void each_io_queue(void (queue::*what)() noexcept);

  const std::uint16_t id_;
  const origin from_;
  const limits& most_;
  std::uint32_t configuration_ = 0;
  std::uint32_t status_ = 0;
  std::uint16_t granted_;
  bool wants_notices_ = false;
  bool lost_ = false;
  std::map<std::uint16_t, queue*> queues_;
  std::set<std::uint32_t> changes_;
};

/// The controllers of a target.
class controllers {
 public:
  explicit controllers(const limits& most) noexcept : most_(most) {}

  /// With its admin queue in it. Null if there are as many as there may be, and if the host has lost an association
  /// some of whose commands may still run: then `busy` says so.
  [[nodiscard]] std::shared_ptr<controller> make(const controller::origin& from, queue& joining, bool& busy);
  /// Null if there is none, or its association is lost.
  [[nodiscard]] std::shared_ptr<controller> find(std::uint16_t id) const;
  /// None of the queue's commands runs any more. A controller goes with the last queue of a lost association.
  void leave(controller& left, std::uint16_t queue_id);
  /// Is set whenever a queue has left its controller.
  [[nodiscard]] weft::event& queue_left() noexcept { return queue_left_; }
  [[nodiscard]] std::vector<std::shared_ptr<controller>> all() const;

 private:
  const limits& most_;
  std::map<std::uint16_t, std::shared_ptr<controller>> all_;
  std::uint16_t last_ = 0;
  weft::event queue_left_;
};

}  // namespace nvme
