// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/transport.hpp>

#include "kit/standard.hpp"

namespace weft::test {

/// A link that leaves everything to another one. Tests override what they change; one that overrides post() has lists
/// come as requests by saying no in takes_runs().
class forwarding_link : public net::link {
 public:
  explicit forwarding_link(std::unique_ptr<net::link> inner) noexcept : inner_(std::move(inner)) {}

  [[nodiscard]] const net::capabilities& properties() const noexcept override { return inner_->properties(); }
  [[nodiscard]] std::string_view peer() const noexcept override { return inner_->peer(); }
  [[nodiscard]] std::vector<net::rail_statistics> rails() const override { return inner_->rails(); }
  void start(net::link_events& events, const net::link_parameters& how) override { inner_->start(events, how); }
  [[nodiscard]] std::size_t corner_bytes() const noexcept override { return inner_->corner_bytes(); }
  [[nodiscard]] bool furnish(net::work_request& work) noexcept override { return inner_->furnish(work); }
  void post(net::work_request& work) noexcept override { inner_->post(work); }
  [[nodiscard]] bool takes_runs() noexcept override { return inner_->takes_runs(); }
  void post_run(net::work_run& run, const net::run_portion& what) noexcept override { inner_->post_run(run, what); }
  void post_receive(net::receive_work& work) noexcept override { inner_->post_receive(work); }
  void ring() noexcept override { inner_->ring(); }
  void shut_down() noexcept override { inner_->shut_down(); }
  void peer_finished() noexcept override { inner_->peer_finished(); }
  void abort(std::string_view why) noexcept override { inner_->abort(why); }
  void refuse(violation what, std::string_view why) noexcept override { inner_->refuse(what, why); }
  [[nodiscard]] std::optional<std::uint64_t> taken_bytes() noexcept override { return inner_->taken_bytes(); }
  [[nodiscard]] bool may_have_failed_alone() const noexcept override { return inner_->may_have_failed_alone(); }
  [[nodiscard]] std::uint64_t largest_key() const noexcept override { return inner_->largest_key(); }
  [[nodiscard]] task<net::exposed_place> expose(mr::slice memory, mr::usage uses,
                                                mr::detail::peer_gate* gate) override {
    return inner_->expose(memory, uses, gate);
  }
  void revoke(std::uint64_t key, net::revocation& who) noexcept override { inner_->revoke(key, who); }
  [[nodiscard]] std::optional<net::refused_access> refusal() const noexcept override { return inner_->refusal(); }

 protected:
  [[nodiscard]] net::link& inner() const noexcept { return *inner_; }

 private:
  const std::unique_ptr<net::link> inner_;
};

/// The same, which hears first what its link tells the connection. Tests override what they change of that.
class overhearing_link : public forwarding_link, protected net::link_events {
 public:
  using forwarding_link::forwarding_link;

  void start(net::link_events& events, const net::link_parameters& how) override {
    events_ = &events;
    forwarding_link::start(*this, how);
  }

 protected:
  [[nodiscard]] net::link_events& events() const noexcept { return *events_; }

  void completed(net::work_request& work, net::work_status status) noexcept override {
    events_->completed(work, status);
  }
  void run_advanced(net::work_run& run, std::size_t count, net::work_status status) noexcept override {
    events_->run_advanced(run, count, status);
  }
  void received(net::receive_work& work, const net::arrival& what) noexcept override { events_->received(work, what); }
  void receive_flushed(net::receive_work& work) noexcept override { events_->receive_flushed(work); }
  void ended(bool orderly, const error& why) noexcept override { events_->ended(orderly, why); }
  void closed() noexcept override { events_->closed(); }
  void came_late(std::uint64_t key, net::exposure_end how) noexcept override { events_->came_late(key, how); }

 private:
  net::link_events* events_ = nullptr;
};

}  // namespace weft::test
