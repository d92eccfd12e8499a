// SPDX-License-Identifier: Apache-2.0
// System calls that fail, one after another, in the whole life of a connection: an error that names what happened,
// nothing left behind, and no waiting for what will not come.

#include "kit/failing_system_calls.hpp"
#include "kit/tell.hpp"
#include "peers.hpp"

namespace weft::test {
namespace {

constexpr system_call_set transfers =
    system_call::recvmsg | system_call::sendmsg | system_call::receive_in_ring | system_call::send_in_ring;

class faults : public peers {
 protected:
  void SetUp() override {
    if (!GetParam().over_tcp) GTEST_SKIP() << "what a device is asked for does not go through sockets";
  }

  task<> serve(net::listener& listener) {
    auto peer = co_await accept_one(listener, options());
    const auto open = co_await expose_zeros(peer, 50'000);
    co_await tell(peer, pool(), open.remote());
    co_await echo(peer);
    co_await peer.close();
  }

  task<> ask(std::string address) {
    auto peer = co_await device().connect(std::move(address), options());
    const auto there = co_await hear_region(peer);
    auto source = co_await filled(pool(), 50'000, 1);
    co_await peer.write(source, there);
    auto copy = co_await zeroed(pool(), 50'000);
    co_await peer.read(copy, there);
    EXPECT_TRUE(holds(copy.bytes(), 1));
    for (unsigned i = 0; i < 3; ++i) {
      co_await peer.send(co_await filled(pool(), 10, i));
      EXPECT_TRUE(holds((co_await peer.recv_or_throw()).bytes(), i));
    }
    co_await peer.close();
  }

  /// The errors that both sides end with; none if all went well.
  task<std::array<std::optional<error>, 2>> exchange() {
    std::array<std::optional<error>, 2> failures;
    auto listener = co_await device().listen(GetParam().any_address);
    const auto serving = [&]() -> task<> { failures[0] = co_await failure_of(serve(listener)); };
    const auto asking = [&](scope& tasks) -> task<> {
      tasks.spawn(serving());
      failures[1] = co_await failure_of(ask(std::string(listener.address())));
      listener.close();  // a peer that has failed before it could be accepted never comes
      co_return;
    };
    co_await with_scope(on_failure::stop_siblings, asking);
    co_return failures;
  }

  /// Fails every call in turn with `number`, each time in a new exchange; `allowed` tells of an error whether it is
  /// right.
  template <class Allowed>
  void fail_each_call(int number, Allowed allowed) {
    const std::size_t descriptors = open_descriptors();
    for (std::size_t which = 0;; ++which) {
      failing_system_calls calls{{.of = transfers, .number = number, .after = which, .times = 1}};
      open_executor({.system_calls = &calls});
      std::array<std::optional<error>, 2> failures;
      run([&]() -> task<> { failures = co_await exchange(); });
      for (const auto& failure : failures) {
        EXPECT_TRUE(!failure || allowed(*failure)) << "call " << which << ": " << failure->what();
      }
      expect_nothing_left();
      EXPECT_EQ(open_descriptors(), descriptors) << "call " << which;
      open_executor({});
      if (!calls.has_failed()) {
        EXPECT_FALSE(failures[0] || failures[1]);
        EXPECT_GT(which, 20u);
        return;
      }
      if (HasFailure()) return;
    }
  }
};
WEFT_ON_EVERY_TRANSPORT(faults);

TEST_P(faults, a_connection_reset_in_any_call_is_told_as_such) {
  fail_each_call(ECONNRESET, [](const error& why) {
    const std::error_code code = why.code();
    return code == errc::peer_vanished || code == std::errc::connection_reset || code == errc::peer_closed ||
           code == errc::closed;
  });
}

TEST_P(faults, a_shortage_of_memory_in_any_call_ends_the_connection_and_nothing_else) {
  fail_each_call(ENOBUFS, [](const error& why) {
    const std::error_code code = why.code();
    return code == errc::peer_vanished || code == std::errc::no_buffer_space || code == std::errc::connection_reset ||
           code == errc::peer_closed || code == errc::closed;
  });
}

TEST_P(faults, an_interrupted_call_is_made_again) {
  fail_each_call(EINTR, [](const error&) { return false; });
}

}  // namespace
}  // namespace weft::test
