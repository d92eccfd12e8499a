// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/region.hpp>
#include <weft/mr/region/write_counter_core.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

// Counting what peers write: fi_mr_bind(3), FI_REMOTE_WRITE.
namespace weft::mr::porting {

/// Waits until peers have written a number of times. See remote_writes() and write_counter::wait_for().
class remote_writes_operation final : public mr::detail::remote_writes_request {
 public:
  /// Made by remote_writes() and write_counter::wait_for().
  remote_writes_operation(std::shared_ptr<mr::detail::write_counter_core> counter, std::uint64_t wanted,
                          region_pin region) noexcept
      : remote_writes_request(wanted), counter_(std::move(counter)), region_(std::move(region)) {}
  remote_writes_operation(remote_writes_operation&& other) noexcept;
  ~remote_writes_operation();

  bool await_ready() const noexcept { return counter_->value() >= wanted_; }
  /// How many there have been. Throws errc::canceled if it was stopped first.
  std::uint64_t await_resume();
  [[nodiscard]] std::string describe() const override { return "writes of peers"; }

 private:
  void begin() override;
  void cancel() noexcept override;

  std::shared_ptr<mr::detail::write_counter_core> counter_;
  region_pin region_;
};

/// Counts the writes and atomic operations with which peers change one region or several, by their own keys or through
/// windows: bind(). A write counts once, when all of it is in its place; one of no bytes counts too, and so does each
/// element of a list. A compare_swap counts if it has found what it expected.
///
/// On every fabric. Where that cannot see what peers write (net::capabilities::sees_writes), as an RDMA device cannot,
/// the peer's connection tells this end's when the write has completed there: after a round trip more, and together
/// with others, so that it costs little. Both ends have to be weft's then, and what a peer that dies has not told is
/// not counted. A connection that closes in order tells all first.
///
/// Thread-safe. Regions keep counting when it is gone. See fi_mr_bind(3), FI_REMOTE_WRITE.
class write_counter {
 public:
  write_counter() : core_(std::make_shared<mr::detail::write_counter_core>()) {}

  /// How many there have been.
  [[nodiscard]] std::uint64_t value() const noexcept { return core_->value(); }
  /// `co_await counter.wait_for(n)` returns once there have been at least n, and how many there have been.
  /// errc::canceled if it is stopped first.
  [[nodiscard]] remote_writes_operation wait_for(std::uint64_t writes) const noexcept { return {core_, writes, {}}; }

 private:
  friend void bind(region& target, const write_counter& counter);
  std::shared_ptr<mr::detail::write_counter_core> core_;
};

/// Makes `counter` count what peers write to `target` from now on, by the region's own key or by windows of it; it
/// replaces a counter bound before. Only while the region is disabled, else errc::invalid_argument. errc::access_denied
/// if its usage lets no peer write there, be it through a window; errc::busy while somebody waits for remote_writes(),
/// and while there are windows. See fi_mr_bind(3).
void bind(region& target, const write_counter& counter);

/// `co_await remote_writes(region, n)` returns once peers have written at least n times, and how many times they have:
/// what the counter that was bound has counted. As an operation does, it keeps the region from being released.
/// errc::invalid_argument if there is no counter; errc::canceled if it is stopped first.
[[nodiscard]] remote_writes_operation remote_writes(const region& target, std::uint64_t n);

}  // namespace weft::mr::porting
