// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/pool.hpp>
#include <weft/net/statistics.hpp>
#include <weft/net/transport.hpp>

#include <memory>
#include <mutex>
#include <string_view>
#include <utility>

namespace weft::net {

/// What a device, its listeners and its connections share.
class device_state {
 public:
  device_state(std::unique_ptr<net::transport> opened, const mr::pool_options& options)
      : transport_(std::move(opened)), pool_(transport_->shared_domain(), options) {}

  [[nodiscard]] std::string_view name() const noexcept { return transport_->name(); }
  [[nodiscard]] net::transport& transport() noexcept { return *transport_; }
  [[nodiscard]] mr::pool& pool() noexcept { return pool_; }

  void connection_opened() noexcept {
    const std::lock_guard lock(counting_);
    ++statistics_.connections_opened;
  }
  void connection_ended(const connection_statistics& what) noexcept {
    const std::lock_guard lock(counting_);
    ++statistics_.connections_ended;
    statistics_.of_ended += what;
  }
  [[nodiscard]] device_statistics statistics() const {
    const std::lock_guard lock(counting_);
    return statistics_;
  }

 private:
  std::unique_ptr<net::transport> transport_;
  mr::pool pool_;

  mutable std::mutex counting_;
  device_statistics statistics_;
};

}  // namespace weft::net
