// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/region.hpp>
#include <weft/mr/region/write_counter_core.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

// Counting peers' writes: fi_mr_bind(3), FI_REMOTE_WRITE.
namespace weft::mr::porting {

/// Waits until peers have written a number of times. See remote_writes() and write_counter::wait_for().
class [[nodiscard("co_await it")]] remote_writes_operation final : public mr::detail::remote_writes_request {
 public:
  /// Made by remote_writes() and write_counter::wait_for().
  remote_writes_operation(std::shared_ptr<mr::detail::write_counter_core> counter, std::uint64_t wanted,
                          region_pin region) noexcept
      : remote_writes_request(wanted), counter_(std::move(counter)), region_(std::move(region)) {}
  remote_writes_operation(remote_writes_operation&& other) noexcept;
  ~remote_writes_operation();

  bool await_ready() const noexcept { return counter_->value() >= wanted_; }
  /// The number of writes so far. Throws errc::canceled if the task was stopped first.
  std::uint64_t await_resume();
  [[nodiscard]] std::string describe() const override { return "writes of peers"; }

 private:
  void begin() override;
  void cancel() noexcept override;

  std::shared_ptr<mr::detail::write_counter_core> counter_;
  region_pin region_;
};

/// Counts peers' writes and atomic operations on one region or several, by the regions' own keys or through windows:
/// bind(). A write counts once, when all of it is in place; a write of no bytes counts too, and so does each element of
/// a list. A compare_swap counts if it found the expected value.
///
/// Works on every fabric. Where the fabric does not see peers' writes (net::capabilities::sees_writes), as an RDMA
/// device does not, the peer's connection reports a write when it has completed there: one round trip later, and
/// together with other writes, so that reports cost little. Both ends must be weft then, and writes that a peer has not
/// reported when it dies are not counted. An orderly close of the connection reports all of them first.
///
/// Thread-safe. Regions keep counting after it is destroyed. See fi_mr_bind(3), FI_REMOTE_WRITE.
class write_counter {
 public:
  write_counter() : core_(std::make_shared<mr::detail::write_counter_core>()) {}

  /// The number of writes so far.
  [[nodiscard]] std::uint64_t value() const noexcept { return core_->value(); }
  /// `co_await counter.wait_for(n)` resumes once there have been at least n writes, and returns how many.
  /// errc::canceled if the task is stopped first.
  remote_writes_operation wait_for(std::uint64_t writes) const noexcept { return {core_, writes, {}}; }

 private:
  friend void bind(region& target, const write_counter& counter);
  std::shared_ptr<mr::detail::write_counter_core> core_;
};

/// Makes `counter` count peers' writes to `target` from now on, by the region's own key or through its windows; it
/// replaces a counter bound before. errc::invalid_argument unless the region is disabled; errc::access_denied if its
/// usage lets no peer write there, not even through a window; errc::busy while an operation, a window or a task that
/// waits for remote_writes() uses the region. See fi_mr_bind(3).
void bind(region& target, const write_counter& counter);

/// `co_await remote_writes(region, n)` resumes once the region's counter has reached n, and returns the count. Like an
/// operation, it keeps the region from being released. errc::invalid_argument if no counter is bound; errc::busy as
/// with region::slice(); errc::canceled if the task is stopped first.
remote_writes_operation remote_writes(const region& target, std::uint64_t n);

}  // namespace weft::mr::porting
