// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/transport.hpp>
#include <weft/net/verbs/domain.hpp>
#include <weft/runtime/io/socket_address.hpp>

#include <memory>
#include <utility>

namespace weft::net::verbs {

class listener_state;

/// A listening id of the connection manager, which delivers whole requests, so that no peer stays half-open. The number
/// of requests that nobody has taken yet is limited; further ones are rejected.
class listener final : public net::link_listener {
 public:
  /// Throws weft::error. If it fails, the address is free again by then.
  [[nodiscard]] static task<std::unique_ptr<link_listener>> listen(std::shared_ptr<device> home,
                                                                   std::shared_ptr<domain> memory,
                                                                   const socket_address& address,
                                                                   const listen_options& options);
  explicit listener(std::shared_ptr<listener_state> state) noexcept : state_(std::move(state)) {}
  ~listener() override;

  [[nodiscard]] std::string_view address() const noexcept override;
  [[nodiscard]] task<std::unique_ptr<net::link_request>> next() override;
  void close() noexcept override;

 private:
  std::shared_ptr<listener_state> state_;
};

}  // namespace weft::net::verbs
