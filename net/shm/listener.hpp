// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/transport.hpp>
#include <weft/net/options.hpp>
#include <weft/net/shm/address.hpp>
#include <weft/net/software/domain.hpp>

#include <memory>
#include <string_view>

namespace weft::net::shm {

class listener_state;

/// Listens for processes of this machine, whose peers have sent a hello by the time the user sees them.
///
/// See socket_listener for what becomes of the others. Without a path, a process of another user is rejected.
class listener final : public net::link_listener {
 public:
  listener(listening_socket at, std::shared_ptr<software::domain> home, const shm_options& of_device,
           const listen_options& options);
  ~listener() override;

  [[nodiscard]] std::string_view address() const noexcept override;
  [[nodiscard]] task<std::unique_ptr<net::link_request>> next() override;
  void close() noexcept override;

 private:
  std::shared_ptr<listener_state> state_;
};

}  // namespace weft::net::shm
