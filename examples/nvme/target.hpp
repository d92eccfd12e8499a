// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/weft.hpp>

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>

#include <nvme/controller.hpp>
#include <nvme/fabrics.hpp>
#include <nvme/subsystem.hpp>

namespace nvme {

class queue_handle;

struct target_options {
  limits most{};
  /// Of which queues get one each, in turn; null: all of them are on the executor that serves.
  weft::executor_group* others = nullptr;
  /// Where hosts that ask for discovery are sent, "10.0.0.2:4420". Empty: where the listener listens, or if that is
  /// every address of this machine, the one from which it would answer the host.
  std::string advertised;
  /// Takes lines for a person: who comes and goes, and what failed. Called from all executors' threads. May be empty.
  std::function<void(std::string_view)> log;
};

/// Serves a subsystem to hosts that speak NVMe over Fabrics, and tells them where it is (discovery).
///
/// A host that breaks the protocol gets the status for it, or loses its queue. Thread-safe but for serve().
class target {
 public:
  /// Both outlive it. Throws std::invalid_argument for limits that make no sense, or that the device's pool is too
  /// small for.
  target(weft::net::device& device, const subsystem& served, target_options options);
  target(const target&) = delete;
  target& operator=(const target&) = delete;

  /// Serves those who come until the listener is closed, and then until their queues have ended.
  [[nodiscard]] weft::task<> serve(weft::net::listener& listener);

  /// Lets each queue finish the commands under way, and ends it. Close the listener first.
  void drain();
  /// Ends each queue.
  void abort();
  /// Looks again how large the disks are, and tells the hosts of those that have changed.
  [[nodiscard]] weft::task<> look_again();

  /// What all controllers have done, those that have ended among them.
  [[nodiscard]] queue_counters::values counters() const;

  // ---- for its queues ----

  [[nodiscard]] weft::net::device& device() const noexcept { return device_; }
  [[nodiscard]] const subsystem& served() const noexcept { return served_; }
  [[nodiscard]] const limits& most() const noexcept { return options_.most; }
  [[nodiscard]] nvme::controllers& controllers() noexcept { return controllers_; }
  void say(std::string_view line) const {
    if (options_.log) options_.log(line);
  }
  void add(const std::shared_ptr<queue_handle>& what);
  void remove(const std::shared_ptr<queue_handle>& what);
  /// What a host finds that asks from that address.
  [[nodiscard]] discovery_log discover(std::string_view peer) const;

 private:
  [[nodiscard]] weft::task<> attend(weft::net::connection_request request, weft::executor* where);
  [[nodiscard]] weft::task<> attend_here(weft::net::connection_request request);

  weft::net::device& device_;
  const subsystem& served_;
  const target_options options_;
  nvme::controllers controllers_;
  std::string listens_at_;

  mutable std::mutex lock_;  // of all below
  bool draining_ = false;
  std::set<std::shared_ptr<queue_handle>> queues_;
  queue_counters::values of_ended_queues_;
};

}  // namespace nvme
