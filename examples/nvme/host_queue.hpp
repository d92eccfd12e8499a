// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/weft.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <nvme/command.hpp>
#include <nvme/fabrics.hpp>

namespace nvme {

/// A controller has carried a command out, and said that it failed. The queue goes on.
class command_failed : public std::runtime_error {
 public:
  command_failed(const completion& what, const std::string& words) : std::runtime_error(words), what_(what) {}
  [[nodiscard]] nvme::status status() const noexcept { return what_.status; }
  /// What else the completion says: of Connect, which field is wrong.
  [[nodiscard]] std::uint64_t result() const noexcept { return what_.result; }

 private:
  completion what_;
};

/// Which way the data of a command go.
enum class data_flow : std::uint8_t { none, to_controller, to_host };

/// How a host lends its memory to a controller.
enum class lending : std::uint8_t {
  /// All memory of a queue under one key, for as long as the queue lives: nothing is registered for a command. The key
  /// is for the queue's connection alone, if the device has memory windows; else it is that of a region.
  standing,
  /// That of one command at a time, under a key of its own, which the controller is asked to revoke with its completion
  /// and which is revoked here if it does not.
  each_command,
  /// As standing, in a file in memory, which a controller that is a process of this machine maps: then it moves the
  /// data by itself. One that breaks the rules keeps that memory, and no other, as long as it lives: docs/shm.md.
  direct,
};

struct host_queue_options {
  std::uint16_t id = 0;
  std::uint16_t controller = 0;  ///< of an I/O queue: what it belongs to
  std::uint16_t entries = admin_queue_entries;
  std::uint16_t lanes = 4;         ///< commands at a time: less than the queue has entries
  std::size_t lane_bytes = 4096;   ///< the most data of one command
  std::size_t in_capsule_bytes{};  ///< the most data that the controller takes with a command
  lending lends = lending::standing;
  std::chrono::milliseconds timeout{30'000};  ///< from a command to its completion
};
static_assert(std::is_trivially_destructible_v<host_queue_options>);

/// One queue of a host's, which is one connection: sends commands and awaits their completions.
///
/// Everything that comes from the controller is checked. What breaks the protocol, a command that is not answered in
/// time, and one whose task is stopped while the controller works on it, end the queue: all its commands fail with that
/// reason, and the memory that it has lent goes back to the pool once its keys are revoked. A queue that has ended
/// stays so. On one executor.
class host_queue {
  struct slot;

 public:
  /// The place of one command, with memory for its data. Goes back to the queue when it is destroyed, on which the
  /// command has ended.
  class lane {
   public:
    lane(lane&& other) noexcept : home_(std::exchange(other.home_, nullptr)), place_(other.place_) {}
    lane& operator=(lane&&) = delete;
    ~lane() {
      if (home_ != nullptr) home_->give_back(*place_);
    }
    /// What the controller reads and fills. As long as the queue.
    [[nodiscard]] std::span<std::byte> bytes() const noexcept { return place_->memory; }

   private:
    friend class host_queue;
    lane(host_queue& home, slot& place) noexcept : home_(&home), place_(&place) {}
    host_queue* home_;
    slot* place_;
  };

  /// Connects, up to and without the command Connect. Throws weft::error; std::invalid_argument for more memory than
  /// the pool has.
  [[nodiscard]] static weft::task<std::unique_ptr<host_queue>> open(weft::net::device& device, std::string address,
                                                                    host_queue_options options);
  host_queue(const host_queue&) = delete;
  host_queue& operator=(const host_queue&) = delete;
  ~host_queue();

  /// Takes completions until the queue has ended, and yields why; empty if it was closed. Needed for everything below.
  [[nodiscard]] weft::task<std::optional<weft::error>> run();

  /// The command Connect: the id of the controller.
  [[nodiscard]] weft::task<std::uint16_t> introduce(connect_data who, std::chrono::milliseconds keep_alive);

  /// Waits for a lane; in order of coming.
  [[nodiscard]] weft::task<lane> take_lane();

  /// Has a command carried out, whose data are the first `bytes` of the lane's memory. Fills in the command's id and
  /// data. Throws command_failed if the controller says so, and weft::error once the queue has ended: errc::timed_out,
  /// errc::protocol_error, errc::malformed, errc::peer_vanished among others.
  [[nodiscard]] weft::task<completion> execute(const lane& on, command what, data_flow flow, std::size_t bytes);
  /// The same on a lane of its own, for a command without data.
  [[nodiscard]] weft::task<completion> execute(command what);

  /// Ends the queue for a reason, which its commands fail with. Does nothing to one that has ended.
  void fail(const weft::error& why);
  [[nodiscard]] const std::optional<weft::error>& failure() const noexcept { return failure_; }
  /// Closes it in order; no command is under way.
  [[nodiscard]] weft::task<> close();

  [[nodiscard]] const host_queue_options& options() const noexcept { return options_; }
  [[nodiscard]] weft::net::connection& connection() noexcept { return peer_; }
  /// Keys that the controller has revoked with a completion, as it was asked to.
  [[nodiscard]] std::uint64_t revoked() const noexcept { return revoked_; }
  /// Commands whose data went with them.
  [[nodiscard]] std::uint64_t in_capsule() const noexcept { return in_capsule_; }

 private:
  //   free      nobody's
  //   taken     of a lane, without a command
  //   posted    of a lane; the controller works on its command
  //   answered  of a lane; the completion has come, and the task that waits for it has not gone on
  enum class slot_state : std::uint8_t { free, taken, posted, answered };

  struct slot {
    slot_state state = slot_state::free;
    std::uint16_t id = 0;         // of the command: the slot's number, and how many commands it has had
    std::uint64_t posted_at = 0;  // in ticks of the watch
    command asked;
    completion answer;
    weft::event done;
    std::span<std::byte> memory;
    weft::mr::buffer owned;    // the memory, of lending::each_command, while it is not lent
    weft::net::exposure lent;  // while it is
    weft::mr::buffer capsule;
  };

  host_queue(weft::net::device& device, weft::net::connection peer, const host_queue_options& options);
  [[nodiscard]] weft::task<> provide_memory();
  [[nodiscard]] weft::task<> provide_standing_memory();
  [[nodiscard]] weft::task<> provide_region();
  [[nodiscard]] bool is_standing() const noexcept { return options_.lends != lending::each_command; }
  [[nodiscard]] weft::task<> receive();
  [[nodiscard]] weft::task<> watch();
  void accept(const weft::net::message& said);
  [[nodiscard]] slot& find(const completion& said);
  void check_invalidation(const slot& of, const weft::net::message& said);
  void check_alive() const;
  void give_back(slot& place) noexcept;
  [[nodiscard]] bool is_admin() const noexcept { return options_.id == 0; }
  [[nodiscard]] std::string name() const;

  [[nodiscard]] weft::task<> lend(slot& from, data_flow flow, std::size_t bytes);
  [[nodiscard]] sgl describe_memory(const slot& of, std::size_t bytes) const;
  [[nodiscard]] weft::task<> send_with_data(slot& from, std::size_t bytes);

  weft::net::device& device_;
  weft::net::connection peer_;
  const host_queue_options options_;
  const std::unique_ptr<slot[]> slots_;
  std::vector<slot*> free_;
  weft::semaphore lanes_;
  // Unless each command is lent its own: one of these, and how the controller knows it.
  weft::net::exposure exposed_;
  weft::mr::region region_;
  weft::mr::slice memory_;
  std::uint32_t key_ = 0;
  std::uint64_t address_ = 0;

  std::optional<weft::error> failure_;
  bool closing_ = false;
  std::uint64_t ticks_ = 0;
  std::uint64_t revoked_ = 0;
  std::uint64_t in_capsule_ = 0;
};

}  // namespace nvme
