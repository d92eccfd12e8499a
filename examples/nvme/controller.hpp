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

  [[nodiscard]] bool ready() const noexcept { return (status_.load(std::memory_order_relaxed) & 1) != 0; }
  [[nodiscard]] std::uint32_t status() const noexcept { return status_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::uint32_t configuration() const noexcept { return configuration_.load(std::memory_order_relaxed); }
  /// A new value of CC. Disabling ends all I/O queues.
  void configure(std::uint32_t value);
  /// Nothing works any more but to connect anew.
  void fail() noexcept { status_.fetch_or(controller_status::fatal, std::memory_order_relaxed); }

  // ---- queues ----

  /// How many I/O queues the host gets of those that it wants.
  [[nodiscard]] std::uint16_t grant_queues(std::uint16_t wanted) noexcept;
  [[nodiscard]] std::uint16_t granted_queues() const noexcept { return granted_.load(std::memory_order_relaxed); }
  [[nodiscard]] bool has_io_queues() const;
  /// Takes a queue in: status::invalid_queue_id for one that was not granted or is there already, and
  /// command_sequence_error for an I/O queue while the controller is not enabled.
  [[nodiscard]] nvme::status join(std::uint16_t queue_id, const std::shared_ptr<queue_handle>& joining);
  void leave(std::uint16_t queue_id);
  /// Ends all queues, and takes none any more.
  void close();
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
  /// Namespaces that have changed since the last call.
  [[nodiscard]] std::vector<std::uint32_t> take_changes();

  static constexpr std::size_t error_entries = 64;

 private:
  [[nodiscard]] std::vector<std::shared_ptr<queue_handle>> queues_from(std::uint16_t first) const;

  const std::uint16_t id_;
  const origin from_;
  const limits& most_;
  std::atomic<std::uint32_t> configuration_{0};
  std::atomic<std::uint32_t> status_{0};
  std::atomic<std::uint16_t> granted_;
  std::atomic<bool> write_through_{false};
  std::atomic<std::uint32_t> events_{0};

  mutable std::mutex lock_;  // of all below
  bool closed_ = false;
  std::map<std::uint16_t, std::shared_ptr<queue_handle>> queues_;
  queue_counters::values of_ended_queues_;
  std::deque<error_entry> errors_;
  std::uint64_t error_count_ = 0;
  std::set<std::uint32_t> changes_;
};

/// The controllers of a target. Thread-safe.
class controllers {
 public:
  explicit controllers(const limits& most) noexcept : most_(most) {}

  /// Null if there are as many as there may be.
  [[nodiscard]] std::shared_ptr<controller> make(controller::origin from);
  /// Null if there is none.
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
