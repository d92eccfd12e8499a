// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/transport.hpp>

#include <cstdint>
#include <string_view>

namespace weft::test {

/// A link that carries nothing. Tests override what they look at.
class idle_link : public net::link {
 public:
  [[nodiscard]] const net::capabilities& properties() const noexcept override { return properties_; }
  [[nodiscard]] std::string_view peer() const noexcept override { return "nobody"; }
  void start(net::link_events&, const net::link_parameters&) override {}
  [[nodiscard]] std::size_t corner_bytes() const noexcept override { return 0; }
  [[nodiscard]] bool furnish(net::work_request&) noexcept override { return true; }
  void post(net::work_request&) noexcept override {}
  void post_receive(net::receive_work&) noexcept override {}
  void ring() noexcept override {}
  void shut_down() noexcept override {}
  void abort(std::string_view) noexcept override {}
  [[nodiscard]] task<net::exposed_place> expose(mr::slice, mr::usage, mr::detail::peer_gate*) override {
    throw error(errc::not_supported, "this link carries nothing");
  }
  void revoke(std::uint64_t, net::revocation& who) noexcept override { who.revoked(); }

 private:
  net::capabilities properties_;
};

}  // namespace weft::test
