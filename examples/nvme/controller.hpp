// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include <nvme/command.hpp>
#include <nvme/identify.hpp>
#include <nvme/subsystem.hpp>

namespace nvme {

class queue_handle;

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

/// What a queue has done. Written on its executor, read from any thread.
class queue_counters {
 public:
  struct values {
    std::uint64_t reads = 0;
    std::uint64_t writes = 0;
    std::uint64_t bytes_read = 0;
    std::uint64_t bytes_written = 0;
    std::uint64_t in_capsule = 0;   ///< writes whose data came with the command
    std::uint64_t invalidated = 0;  ///< completions that have revoked a key of the host's
    std::uint64_t others = 0;
    std::uint64_t failed = 0;

    values& operator+=(const values& other) noexcept;
  };

  void count_read(std::uint64_t bytes) noexcept { add(reads_, 1), add(bytes_read_, bytes); }
  void count_write(std::uint64_t bytes) noexcept { add(writes_, 1), add(bytes_written_, bytes); }
  void count_in_capsule() noexcept { add(in_capsule_, 1); }
  void count_invalidated() noexcept { add(invalidated_, 1); }
  void count_other() noexcept { add(others_, 1); }
  void count_failed() noexcept { add(failed_, 1); }
  [[nodiscard]] values now() const noexcept;

 private:
  using counter = std::atomic<std::uint64_t>;
  static void add(counter& to, std::uint64_t value) noexcept {
    to.store(to.load(std::memory_order_relaxed) + value, std::memory_order_relaxed);
  }
  counter reads_{0}, writes_{0}, bytes_read_{0}, bytes_written_{0};
  counter in_capsule_{0}, invalidated_{0}, others_{0}, failed_{0};
};

/// What one host's Connect has made: its queues are those of one association. Thread-safe, because each queue has an
/// executor of its own.
class controller {
 public:
  /// Who has connected. `of` is null for a discovery controller.
  struct origin {
    const subsystem* of = nullptr;
    std::string host;
    identifier host_id{};
    std::string peer;  ///< the address from which it came
  };

  controller(std::uint16_t id, origin from, const limits& most);

  [[nodiscard]] std::uint16_t id() const noexcept { return id_; }
  [[nodiscard]] const origin& from() const noexcept { return from_; }
  [[nodiscard]] bool is_discovery() const noexcept { return from_.of == nullptr; }

  // ---- properties ----

  /// Whether it executes commands: it is enabled, and not about to be disabled.
  [[nodiscard]] bool serves() const noexcept { return serves_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::uint32_t status() const noexcept { return status_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::uint32_t configuration() const noexcept { return configuration_.load(std::memory_order_relaxed); }
  /// A new value of CC. Disabling ends all I/O queues, and CSTS.RDY becomes 0 once the last one has left: none of their
  /// commands runs any more then. False, and nothing is changed, if it would enable a controller before that.
  [[nodiscard]] bool configure(std::uint32_t value);
  /// Takes no further I/O queue, and lets the commands of those that are there end: they leave, and then what is to be
  /// on the disks can be flushed. What follows is configure() with the shutdown in its value, or abandon_shutdown().
  void begin_shutdown();
  void abandon_shutdown();
  /// Nothing works any more but to connect anew.
  void fail();

  // ---- queues ----

  /// How many I/O queues the host gets of those that it wants.
  [[nodiscard]] std::uint16_t grant_queues(std::uint16_t wanted) noexcept;
  [[nodiscard]] std::uint16_t granted_queues() const noexcept { return granted_.load(std::memory_order_relaxed); }
  [[nodiscard]] bool has_io_queues() const;
  /// Takes a queue in: status::invalid_queue_id for one that was not granted or is there already, and
  /// command_sequence_error for an I/O queue while the controller is not enabled.
  [[nodiscard]] nvme::status join(std::uint16_t queue_id, const std::shared_ptr<queue_handle>& joining);
  /// None of the queue's commands runs any more. The association is lost with its admin queue: that ends the others,
  /// and no queue joins any more. True if this was the last queue of a lost association, which is over now.
  [[nodiscard]] bool leave(std::uint16_t queue_id);
  /// Whether it is a lost association of that host's, some of whose commands may still run. If it is,
  /// queue_handle::other_ended() is called for `waiting` once it is over.
  [[nodiscard]] bool is_lost_by(const origin& host, const std::shared_ptr<queue_handle>& waiting);
  [[nodiscard]] bool is_lost() const;
  /// Ends all queues with a number from `first` on, soon.
  void end_queues(std::uint16_t first);
  /// Tells the host of an event, once it has asked for one.
  void notify(const async_event& what);

  // ---- features ----

  /// Whether each write has to survive a loss of power: the host has turned the write cache off.
  [[nodiscard]] bool writes_through() const noexcept { return write_through_.load(std::memory_order_relaxed); }
  void set_write_through(bool value) noexcept { write_through_.store(value, std::memory_order_relaxed); }
  [[nodiscard]] std::uint32_t event_configuration() const noexcept { return events_.load(std::memory_order_relaxed); }
  void set_event_configuration(std::uint32_t value) noexcept { events_.store(value, std::memory_order_relaxed); }

  // ---- logs ----

  void note_error(error_entry what);
  /// The latest first.
  [[nodiscard]] std::vector<error_entry> errors() const;
  [[nodiscard]] queue_counters::values counters() const;
  void note_change(std::uint32_t nsid);
  [[nodiscard]] std::vector<std::uint32_t> changes() const;
  /// Namespaces that have changed since the last call.
  [[nodiscard]] std::vector<std::uint32_t> take_changes();

  static constexpr std::size_t error_entries = 64;

 private:
  [[nodiscard]] std::vector<std::shared_ptr<queue_handle>> queues_from(std::uint16_t first) const;
  [[nodiscard]] bool has_io_queues_locked() const { return queues_.lower_bound(1) != queues_.end(); }
  void set_status(std::uint32_t value) noexcept;

  const std::uint16_t id_;
  const origin from_;
  const limits& most_;
  std::atomic<std::uint32_t> configuration_{0};
  std::atomic<std::uint32_t> status_{0};  // written under the lock
  std::atomic<bool> serves_{false};
  std::atomic<std::uint16_t> granted_;
  std::atomic<bool> write_through_{false};
  std::atomic<std::uint32_t> events_{0};

  mutable std::mutex lock_;  // of all below
  bool lost_ = false;
  std::map<std::uint16_t, std::shared_ptr<queue_handle>> queues_;
  std::vector<std::weak_ptr<queue_handle>> waiting_;  // for the end of a lost association
  queue_counters::values of_ended_queues_;
  std::deque<error_entry> errors_;
  std::uint64_t error_count_ = 0;
  std::set<std::uint32_t> changes_;
};

/// The controllers of a target. Thread-safe.
class controllers {
 public:
  explicit controllers(const limits& most) noexcept : most_(most) {}

  /// With its admin queue in it. Null if there are as many as there may be, and if the host has lost an association
  /// that is not over: then `busy` says so, and queue_handle::other_ended() is called for `joining` once it is.
  [[nodiscard]] std::shared_ptr<controller> make(controller::origin from, const std::shared_ptr<queue_handle>& joining,
                                                 bool& busy);
  /// Null if there is none, or its association is lost.
  [[nodiscard]] std::shared_ptr<controller> find(std::uint16_t id) const;
  void remove(std::uint16_t id);
  [[nodiscard]] std::vector<std::shared_ptr<controller>> all() const;

 private:
  const limits& most_;
  mutable std::mutex lock_;
  std::map<std::uint16_t, std::shared_ptr<controller>> all_;
  std::uint16_t last_ = 0;
};

}  // namespace nvme
