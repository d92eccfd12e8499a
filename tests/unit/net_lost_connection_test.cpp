// SPDX-License-Identifier: Apache-2.0
// What TCP says of a connection that is lost, tcp(7): an error, told once, to whoever asks first.
#include <cerrno>

#include "net_support.hpp"

namespace weft::test {
namespace {

// From a moment on, sends are told that the peer is gone; what is received then looks as if it had closed.
class network_that_is_lost : public system_calls {
 public:
  ssize_t sendmsg(int fd, const msghdr* message, int flags) noexcept override {
    return lost_ ? -ETIMEDOUT : system_calls::sendmsg(fd, message, flags);
  }
  ssize_t recvmsg(int fd, msghdr* message, int flags) noexcept override {
    return lost_ ? 0 : system_calls::recvmsg(fd, message, flags);
  }
  int permit_ring_operation(std::uint8_t operation) noexcept override {
    return lost_ && static_cast<io_kind>(operation) == io_kind::send ? -ETIMEDOUT : 0;
  }

 protected:
  bool lost_ = false;
};

class lost_connection : public network_that_is_lost, public net_test {
 protected:
  lost_connection() : net_test(static_cast<system_calls&>(*this)) {}
};

TEST_F(lost_connection, whose_error_a_send_was_told_does_not_look_as_if_the_peer_had_closed) {
  against_raw_client([&](raw_peer&, net::connection& ours) -> task<> {
    auto payload = co_await pool().allocate(10);
    lost_ = true;
    auto sending = failure_of(ours.send(std::move(payload)));
    auto receiving = failure_of(ours.recv());
    const auto both = co_await when_all(std::move(sending), std::move(receiving));
    for (const auto& failure : {std::get<0>(both), std::get<1>(both)}) {
      EXPECT_TRUE(failure && failure->code() == errc::peer_vanished);
      EXPECT_TRUE(contains(failure, "Connection timed out")) << (failure ? failure->what() : "no failure");
    }
  });
}

}  // namespace
}  // namespace weft::test
