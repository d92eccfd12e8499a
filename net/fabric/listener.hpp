// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/fabric/domain.hpp>
#include <weft/net/link/transport.hpp>
#include <weft/runtime/io/socket_address.hpp>

#include <memory>
#include <string_view>

namespace weft::net::fabric {

class listener_state;

/// A listener on a TCP socket, because the set-up is over TCP.
class listener final : public net::link_listener {
 public:
  /// Called on the listening executor. Throws weft::error.
  listener(const socket_address& address, std::shared_ptr<const device> home, std::shared_ptr<domain> memory,
           const listen_options& options);
  ~listener() override;

  [[nodiscard]] std::string_view address() const noexcept override;
  [[nodiscard]] task<std::unique_ptr<net::link_request>> next() override;
  void close() noexcept override;

 private:
  std::shared_ptr<listener_state> state_;
};

}  // namespace weft::net::fabric
