// SPDX-License-Identifier: Apache-2.0
// What a set-up makes, to be looked at: an end of a connection that carries nothing.
#pragma once

#include <weft/net/shm/link.hpp>

#include <utility>

namespace weft::test {

class link_in_tests final : public net::link {
 public:
  explicit link_in_tests(net::shm::established made) : parts(std::move(made)) {}

  net::shm::established parts;

  [[nodiscard]] const net::capabilities& properties() const noexcept override { return properties_; }
  [[nodiscard]] std::string_view peer() const noexcept override { return parts.peer; }
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
  void revoke(const mr::remote_key&, net::revocation&) noexcept override {}

 private:
  net::capabilities properties_;
};

/// What a link of these was made of.
[[nodiscard]] inline net::shm::established& parts_of(net::link& link) {
  return static_cast<link_in_tests&>(link).parts;
}

}  // namespace weft::test
