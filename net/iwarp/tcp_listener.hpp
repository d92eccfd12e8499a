// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/iwarp/domain.hpp>
#include <weft/net/options.hpp>
#include <weft/net/transport.hpp>
#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/io/descriptor.hpp>
#include <weft/runtime/io/socket_address.hpp>
#include <weft/runtime/sync/event.hpp>

#include <deque>
#include <memory>
#include <string>

namespace weft::net::iwarp {

class listener_state;

/// A TCP listener whose peers have sent a valid MPA request by the time the user sees them.
///
/// Set-ups go on in the background, a bounded number at a time, so that a peer that connects and says nothing
/// keeps nobody else waiting. Where the process has no descriptors left, peers are turned away by one that is kept for
/// that.
class tcp_listener final : public net::link_listener {
 public:
  /// Throws weft::error.
  tcp_listener(const socket_address& address, std::shared_ptr<domain> home, const iwarp_options& of_device,
               const listen_options& options);
  ~tcp_listener() override;

  [[nodiscard]] std::string_view address() const noexcept override;
  [[nodiscard]] task<std::unique_ptr<net::link_request>> next() override;
  void close() noexcept override;

 private:
  std::shared_ptr<listener_state> state_;
};

}  // namespace weft::net::iwarp
