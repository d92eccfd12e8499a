// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/pool.hpp>
#include <weft/net/connection/joint_domain.hpp>
#include <weft/net/link/live_statistics.hpp>
#include <weft/net/link/transport.hpp>
#include <weft/net/statistics.hpp>
#include <weft/runtime/intrusive_list.hpp>

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace weft::net {

/// State shared by a device, its listeners and its connections.
class device_state {
 public:
  /// `opened`: one to mr::max_fabrics transports. Throws errc::invalid_argument if these have more domains than that.
  device_state(std::vector<std::unique_ptr<net::transport>> opened, const mr::pool_options& options,
               std::string passed_over = {})
      : fabrics_(std::move(opened)),
        name_(join_names(fabrics_)),
        domain_(join_domains(fabrics_)),
        pool_(domain_, options),
        passed_over_(std::move(passed_over)),
        pool_was_sized_(options.max_bytes != mr::pool_options().max_bytes) {}

  /// "iwarp"; of several fabrics "verbs:mlx5_0,iwarp".
  [[nodiscard]] std::string_view name() const noexcept { return name_; }
  [[nodiscard]] std::size_t fabrics() const noexcept { return fabrics_.size(); }
  [[nodiscard]] net::transport& fabric(std::size_t place) const noexcept { return *fabrics_[place]; }
  [[nodiscard]] mr::domain& domain() const noexcept { return *domain_; }
  [[nodiscard]] mr::pool& pool() noexcept { return pool_; }
  [[nodiscard]] const std::string& passed_over() const noexcept { return passed_over_; }
  /// Whether to warn that the pool has room for few connections: true once, and only if the pool's maximum size is the
  /// default.
  [[nodiscard]] bool may_warn_of_little_room() noexcept { return !pool_was_sized_ && !warned_.test_and_set(); }

  /// `counts` must live until connection_ended().
  void connection_opened(live_statistics& counts) noexcept {
    const std::lock_guard lock(counting_);
    ++statistics_.connections_opened;
    open_.push_front(counts);
  }
  void connection_ended(live_statistics& counts) noexcept {
    const std::lock_guard lock(counting_);
    ++statistics_.connections_ended;
    statistics_.of_ended += counts.snapshot(time_point());  // no operations are waiting any more
    open_.remove(counts);
  }
  [[nodiscard]] set_up_statistics& set_ups() noexcept { return set_ups_; }
  [[nodiscard]] device_statistics statistics() const {
    const std::lock_guard lock(counting_);
    const time_point time = clock::steady().now();  // not an executor's clock, because any thread may call this
    device_statistics now = statistics_;
    for (const live_statistics& each : open_) now.of_open += each.snapshot(time);
    now.set_ups = set_ups_.in_progress.load(std::memory_order_relaxed);
    now.half_open = set_ups_.half_open.load(std::memory_order_relaxed);
    now.connects_failed = set_ups_.connects_failed.load(std::memory_order_relaxed);
    now.accepts_failed = set_ups_.accepts_failed.load(std::memory_order_relaxed);
    now.requests_failed = set_ups_.requests_failed.load(std::memory_order_relaxed);
    now.accept_errors = set_ups_.accept_errors.load(std::memory_order_relaxed);
    for (const auto& each : fabrics_) each->add_rails(now.rails);
    return now;
  }

 private:
  /// Gives each domain its number, and joins several into one. Transports in software may share a domain.
  [[nodiscard]] static std::shared_ptr<mr::domain> join_domains(
      std::span<const std::unique_ptr<net::transport>> fabrics) {
    std::vector<std::shared_ptr<mr::domain>> domains;
    for (const auto& fabric : fabrics) {
      for (const auto& each : fabric->domains()) {
        if (std::find(domains.begin(), domains.end(), each) != domains.end()) continue;
        each->be_fabric(domains.size());
        domains.push_back(each);
      }
    }
    if (domains.size() > mr::max_fabrics) {
      throw error(errc::invalid_argument, "a device has at most 4 fabrics, those of its rails counted one by one");
    }
    if (domains.size() == 1) return domains.front();
    return std::make_shared<joint_domain>(std::move(domains));
  }

  std::vector<std::unique_ptr<net::transport>> fabrics_;
  const std::string name_;
  std::shared_ptr<mr::domain> domain_;
  mr::pool pool_;
  const std::string passed_over_;
  const bool pool_was_sized_;
  std::atomic_flag warned_;

  mutable std::mutex counting_;
  device_statistics statistics_;                        // only connections_opened, connections_ended and of_ended
  weft::detail::intrusive_list<live_statistics> open_;  // the counters of open connections
  set_up_statistics set_ups_;
};

}  // namespace weft::net
