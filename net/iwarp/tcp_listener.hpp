// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/transport.hpp>
#include <weft/net/options.hpp>
#include <weft/net/software/domain.hpp>
#include <weft/runtime/io/socket_address.hpp>

#include <memory>

namespace weft::net::iwarp {

using software::domain;

class listener_state;

/// A TCP listener whose peers have sent a valid MPA request by the time the user sees them.
///
/// See socket_listener for what becomes of the others.
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
