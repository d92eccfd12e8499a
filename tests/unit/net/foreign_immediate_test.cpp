// SPDX-License-Identifier: Apache-2.0
// Peers that are not weft and send immediate data, as RDMA devices let them: here what comes over iWARP is given some.
#include <weft/net/iwarp/transport.hpp>
#include <weft/net/transport.hpp>

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "net/support.hpp"

namespace weft::test {
namespace {

constexpr std::uint32_t immediate = 0x01020304;

/// Adds immediate data to each message that its link receives.
class adding_link final : public net::link, private net::link_events {
 public:
  explicit adding_link(std::unique_ptr<net::link> below) noexcept : below_(std::move(below)) {}

  [[nodiscard]] const net::capabilities& properties() const noexcept override { return below_->properties(); }
  [[nodiscard]] std::string_view peer() const noexcept override { return below_->peer(); }
  void start(net::link_events& events, const net::link_parameters& parameters) override {
    above_ = &events;
    below_->start(*this, parameters);
  }
  [[nodiscard]] std::size_t corner_bytes() const noexcept override { return below_->corner_bytes(); }
  [[nodiscard]] bool furnish(net::work_request& work) noexcept override { return below_->furnish(work); }
  void post(net::work_request& work) noexcept override { below_->post(work); }
  void post_receive(net::receive_work& work) noexcept override { below_->post_receive(work); }
  void ring() noexcept override { below_->ring(); }
  void shut_down() noexcept override { below_->shut_down(); }
  void peer_finished() noexcept override { below_->peer_finished(); }
  void abort(std::string_view why) noexcept override { below_->abort(why); }
  [[nodiscard]] task<net::exposed_place> expose(mr::slice memory, mr::usage uses,
                                                mr::detail::peer_gate* gate) override {
    return below_->expose(memory, uses, gate);
  }
  void revoke(const mr::remote_key& key, net::revocation& who) noexcept override { below_->revoke(key, who); }

 private:
  void completed(net::work_request& work, net::work_status status) noexcept override {
    above_->completed(work, status);
  }
  void received(net::receive_work& work, const net::arrival& what) noexcept override {
    net::arrival more = what;
    more.immediate = immediate;
    above_->received(work, more);
  }
  void receive_flushed(net::receive_work& work) noexcept override { above_->receive_flushed(work); }
  void ended(bool orderly, const error& why) noexcept override { above_->ended(orderly, why); }
  void closed() noexcept override { above_->closed(); }

  std::unique_ptr<net::link> below_;
  net::link_events* above_ = nullptr;
};

class adding_transport final : public net::transport {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return below_->name(); }
  [[nodiscard]] const std::shared_ptr<mr::domain>& shared_domain() const noexcept override {
    return below_->shared_domain();
  }
  [[nodiscard]] net::native_features features() const noexcept override { return below_->features(); }
  [[nodiscard]] task<net::new_link> connect(std::string_view address, const net::set_up_options& options) override {
    auto made = co_await below_->connect(address, options);
    made.link = std::make_unique<adding_link>(std::move(made.link));
    co_return made;
  }
  [[nodiscard]] task<std::unique_ptr<net::link_listener>> listen(std::string_view address,
                                                                 const net::listen_options& options) override {
    return below_->listen(address, options);
  }

 private:
  std::unique_ptr<net::transport> below_ = net::iwarp::open_transport();
};

class foreign_immediate : public net_test {
 protected:
  static net::connection_options foreign() {
    net::connection_options options;
    options.profile = net::profile::interop;
    options.receive_depth = 4;
    options.receive_size = 100;
    return options;
  }

  /// Runs `script(receiver, sender)`: what the sender sends reaches the receiver with immediate data.
  template <class Script>
  void between(Script script, const net::connection_options& how) {
    const auto body = [&]() -> task<> {
      auto listener = co_await listen();
      auto connecting = receiving_.connect(std::string(listener.address()), how);
      auto accepting = accept(listener);
      auto both = co_await when_all(std::move(connecting), std::move(accepting));
      co_await script(std::get<0>(both), std::get<1>(both));
    };
    run(body);
  }

  task<mr::buffer> payload(std::size_t bytes) { return allocate(pool(), bytes); }

 private:
  static task<mr::buffer> allocate(mr::pool& from, std::size_t bytes) { co_return co_await from.allocate(bytes); }

  net::device receiving_ = net::device::open(std::make_unique<adding_transport>());
};

TEST_F(foreign_immediate, may_come_any_number_of_times) {
  const auto script = [&](net::connection& receiver, net::connection& sender) -> task<> {
    auto sent = co_await payload(10);
    for (int i = 0; i < 20; ++i) {
      co_await sender.send(sent);
      const auto message = co_await receiver.recv_or_throw();
      EXPECT_EQ(message.immediate, immediate);
      EXPECT_EQ(message.size(), 10u);
    }
  };
  between(script, foreign());
}

TEST_F(foreign_immediate, lets_no_message_through_that_is_larger_than_receive_size) {
  const auto script = [&](net::connection& receiver, net::connection& sender) -> task<> {
    auto fits = co_await payload(100);
    co_await sender.send(std::move(fits));
    const auto message = co_await receiver.recv_or_throw();
    EXPECT_EQ(message.size(), 100u);
    auto too_large = co_await payload(101);
    static_cast<void>(co_await failure_of(sender.send(std::move(too_large))));
    const auto failure = co_await failure_of(receiver.recv());
    EXPECT_TRUE(contains(failure, "larger than receive_size")) << (failure ? failure->what() : "nothing");
  };
  between(script, foreign());
}

TEST_F(foreign_immediate, from_a_weft_peer_never_comes_with_a_payload) {
  const auto script = [&](net::connection& receiver, net::connection& sender) -> task<> {
    auto sent = co_await payload(10);
    static_cast<void>(co_await failure_of(sender.send(std::move(sent))));
    const auto failure = co_await failure_of(receiver.recv());
    EXPECT_TRUE(contains(failure, "without a valid trailer")) << (failure ? failure->what() : "nothing");
  };
  between(script, {});
}

}  // namespace
}  // namespace weft::test
