// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/weft.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <nvme/controller.hpp>
#include <nvme/fabrics.hpp>
#include <nvme/subsystem.hpp>

namespace nvme {

class queue;

/// What a queue has done.
struct counters {
  std::uint64_t reads = 0;
  std::uint64_t writes = 0;
  std::uint64_t bytes_read = 0;
  std::uint64_t bytes_written = 0;
  std::uint64_t in_capsule = 0;   ///< writes whose data came with the command
  std::uint64_t invalidated = 0;  ///< completions that have revoked a key of the host's
  std::uint64_t others = 0;
  std::uint64_t failed = 0;

  counters& operator+=(const counters& other) noexcept;
};

struct target_options {
  limits most{};
  /// Where hosts that ask for discovery are sent, "10.0.0.2:4420". Empty: where the listener listens, and nowhere if
  /// that is every address of this machine.
  std::string advertised;
  /// Takes lines for a person: who comes and goes, and what failed. May be empty.
  std::function<void(std::string_view)> log;
};

/// Serves a subsystem to hosts that speak NVMe over Fabrics, and tells them where it is (discovery).
///
/// A host that breaks the protocol gets the status for it, or loses its queue.
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

  /// What the queues that have ended have done.
  [[nodiscard]] const nvme::counters& counters() const noexcept { return of_ended_queues_; }

  // ---- for its queues ----

  [[nodiscard]] weft::net::device& device() const noexcept { return device_; }
  [[nodiscard]] const subsystem& served() const noexcept { return served_; }
  [[nodiscard]] const limits& most() const noexcept { return options_.most; }
  [[nodiscard]] nvme::controllers& controllers() noexcept { return controllers_; }
  void say(std::string_view line) const {
    if (options_.log) options_.log(line);
  }
  void add(queue& what);
  void remove(queue& what, const nvme::counters& done);
  /// The discovery log page.
  [[nodiscard]] std::vector<std::byte> discover() const;

 private:
  [[nodiscard]] weft::task<> attend(weft::net::connection_request request);
  [[nodiscard]] weft::task<> attend_to(weft::net::connection_request request);

  weft::net::device& device_;
  const subsystem& served_;
  const target_options options_;
  nvme::controllers controllers_;
  std::string listens_at_;
  bool draining_ = false;
  std::set<queue*> queues_;
  nvme::counters of_ended_queues_;
};

}  // namespace nvme
