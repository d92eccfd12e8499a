// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/weft.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nvme/host_queue.hpp>
#include <nvme/identify.hpp>

namespace nvme {

struct host_options {
  std::string address;                                 ///< of the target: "10.0.0.2:4420"
  std::string subsystem = std::string(discovery_nqn);  ///< its NQN
  std::string host_nqn;                                ///< empty: a random one
  std::uint16_t queues = 1;                            ///< for I/O; fewer if the controller gives fewer
  std::uint16_t commands = 32;                         ///< at a time on each of them; fewer likewise
  std::size_t lane_bytes = std::size_t{128} << 10;     ///< the most data of one command; less likewise
  bool in_capsule = true;  ///< small writes take their data along, where the controller takes it
  lending lends = lending::standing;
  std::chrono::milliseconds timeout{30'000};     ///< from a command to its completion
  std::chrono::milliseconds keep_alive{15'000};  ///< the controller gives up a host that is silent for so long
  /// Takes lines for a person: what went wrong while the host left. May be empty.
  std::function<void(std::string_view)> log{};
};

/// A namespace of the subsystem that a host is connected to.
struct host_namespace {
  std::uint32_t id = 0;
  namespace_identity identity{};

  [[nodiscard]] std::uint32_t block_bytes() const noexcept { return std::uint32_t{1} << identity.block_shift; }
  /// In bytes.
  [[nodiscard]] std::uint64_t size() const noexcept { return identity.blocks << identity.block_shift; }
};

/// A host of NVMe over Fabrics: an association with one subsystem, of an admin queue and I/O queues.
///
/// Use it through with_host(). What one of its queues fails with ends them all, because the controller takes the host
/// for lost then as well. Any number of tasks may use it, on its executor.
class host {
 public:
  /// Throws std::invalid_argument for options that make no sense.
  host(weft::net::device& device, host_options options);
  host(const host&) = delete;
  host& operator=(const host&) = delete;

  /// Connects, and has what the association needs done in `background`, until that is stopped. Throws weft::error and
  /// command_failed.
  [[nodiscard]] weft::task<> connect(weft::scope& background);
  /// Shuts the controller down and closes the queues, in order. After a failure it only waits for the memory.
  [[nodiscard]] weft::task<> close();

  [[nodiscard]] std::uint16_t controller() const noexcept { return controller_; }
  [[nodiscard]] std::uint32_t version() const noexcept { return version_; }
  [[nodiscard]] const controller_identity& identity() const noexcept { return identity_; }
  [[nodiscard]] const host_options& options() const noexcept { return options_; }
  [[nodiscard]] const std::vector<host_namespace>& namespaces() const noexcept { return namespaces_; }
  /// Throws std::invalid_argument, with those that there are, if there is none with that id.
  [[nodiscard]] const host_namespace& find(std::uint32_t id) const;
  /// Why the association has ended; empty as long as it has not.
  [[nodiscard]] const std::optional<weft::error>& failure() const noexcept { return failure_; }

  // ---- blocks ----

  [[nodiscard]] std::size_t queues() const noexcept { return io_.size(); }
  [[nodiscard]] host_queue& queue(std::size_t number) { return *io_.at(number); }
  /// The most data of one command on `of`: a multiple of its block size.
  [[nodiscard]] std::size_t most_bytes(const host_namespace& of) const noexcept;

  /// Has the controller fill the first `bytes` of the lane's memory, with what the namespace has from `offset` on; both
  /// are multiples of the block size. Throws std::invalid_argument for numbers that the namespace does not have, and as
  /// host_queue::execute().
  [[nodiscard]] weft::task<completion> read(host_queue& through, const host_queue::lane& on, const host_namespace& of,
                                            std::uint64_t offset, std::size_t bytes);
  /// The other way. What was written survives a loss of power after flush().
  [[nodiscard]] weft::task<completion> write(host_queue& through, const host_queue::lane& on, const host_namespace& of,
                                             std::uint64_t offset, std::size_t bytes);
  [[nodiscard]] weft::task<> flush(const host_namespace& of);

  // ---- discovery ----

  /// What the discovery subsystem knows.
  [[nodiscard]] weft::task<std::vector<discovery_entry>> discover();

 private:
  [[nodiscard]] weft::task<> open_queue(weft::scope& background, host_queue_options options);
  [[nodiscard]] weft::task<std::uint16_t> introduce(host_queue& which);
  [[nodiscard]] weft::task<> run_queue(host_queue& which);
  [[nodiscard]] weft::task<> keep_alive();

  [[nodiscard]] weft::task<std::uint64_t> get_property(std::uint32_t offset, bool wide);
  [[nodiscard]] weft::task<> set_property(std::uint32_t offset, std::uint32_t value);
  [[nodiscard]] weft::task<> enable();
  [[nodiscard]] weft::task<> identify(const host_queue::lane& on, identify_structure what, std::uint32_t nsid);
  [[nodiscard]] host_queue_options options_of_queues() const;
  [[nodiscard]] weft::task<> identify_controller();
  [[nodiscard]] weft::task<> find_namespaces();
  [[nodiscard]] host_namespace check_namespace(std::uint32_t id, std::span<const std::byte> said) const;
  [[nodiscard]] weft::task<> open_io_queues(weft::scope& background);
  [[nodiscard]] weft::task<> read_log(const host_queue::lane& on, std::uint64_t offset, std::size_t bytes);

  [[noreturn]] void refuse_blocks(const host_namespace& of, std::uint64_t offset, std::size_t bytes) const;
  [[nodiscard]] block_fields find_blocks(const host_namespace& of, std::uint64_t offset, std::size_t bytes) const;
  [[nodiscard]] bool is_discovery() const noexcept { return options_.subsystem == discovery_nqn; }
  [[nodiscard]] weft::error wrong(const std::string& words) const;
  void fail(const weft::error& why);
  void say(std::string_view line) const;

  weft::net::device& device_;
  const host_options options_;
  connect_data who_;
  std::unique_ptr<host_queue> admin_;
  std::vector<std::unique_ptr<host_queue>> io_;  // the last one may not be connected yet
  std::uint16_t controller_ = any_controller;
  std::uint16_t most_entries_ = 0;
  std::uint32_t version_ = 0;
  controller_identity identity_;
  std::vector<host_namespace> namespaces_;
  std::optional<weft::error> failure_;
  bool closing_ = false;
};

/// Connects, has `body(host&)`, a task of a named closure, use the host, and closes in order when it has ended.
template <class Body>
[[nodiscard]] weft::task<> with_host(weft::net::device& device, host_options options, const Body& body) {
  host here(device, std::move(options));
  std::exception_ptr failure;
  const auto all = [&](weft::scope& background) -> weft::task<> {
    co_await here.connect(background);
    try {
      co_await body(here);
    } catch (...) {
      failure = std::current_exception();
    }
    co_await here.close();
    background.request_stop();
  };
  co_await weft::with_scope(weft::on_failure::stop_siblings, all, "an NVMe host");
  if (failure) std::rethrow_exception(failure);
}

}  // namespace nvme
