// SPDX-License-Identifier: Apache-2.0
// What event_driver::spin() tries by itself, and that poll() and wait() still do the rest.
#include <weft/runtime/system/event_driver.hpp>

#include <sys/uio.h>

#include <deque>

#include "runtime/support.hpp"

namespace weft {
namespace {

constexpr std::size_t plenty = 64;

/// Receives whatever comes, as a link does: when told to look, and then again.
class listening final : public io_operation {
 public:
  listening(event_driver& driver, descriptor& source) : io_operation(io_kind::readable), driver_(driver) {
    target = &source;
    may_be_tried = true;
    driver.start(*this);
  }
  std::size_t received = 0;
  std::optional<int> failure;         // and then no more
  bool stream_ended = false;          // likewise
  io_operation* to_cancel = nullptr;  // once the stream has ended

  void end() {
    if (failure || stream_ended) return;
    driver_.cancel(*this);
    while (!failure) driver_.wait(plenty, std::nullopt);
  }
  ~listening() { end(); }  // where a test fails, it leaves none

 private:
  void complete(int result) noexcept override {
    if (result < 0) {
      failure = result;
      return;
    }
    std::array<std::byte, 64> bytes{};
    iovec where{.iov_base = bytes.data(), .iov_len = bytes.size()};
    msghdr into{};
    into.msg_iov = &where;
    into.msg_iovlen = 1;
    const ssize_t count = driver_.try_receive(*target, into);
    if (count > 0) received += static_cast<std::size_t>(count);
    stream_ended = count == 0;
    if (stream_ended && to_cancel != nullptr) driver_.cancel(*std::exchange(to_cancel, nullptr));
    if (!stream_ended) driver_.start(*this);
  }
  event_driver& driver_;
};

/// One send of so many bytes.
class sending final : public io_operation {
 public:
  sending(event_driver& driver, descriptor& where, std::size_t count) : io_operation(io_kind::send), bytes_(count) {
    target = &where;
    message = &message_;
    message_.msg_iov = &from_;
    message_.msg_iovlen = 1;
    from_ = {.iov_base = bytes_.data(), .iov_len = bytes_.size()};
    driver.start(*this);
  }
  std::optional<int> result;

 private:
  void complete(int what) noexcept override { result = what; }
  std::vector<std::byte> bytes_;
  iovec from_{};
  msghdr message_{};
};

class spinning : public testing::Test {
 protected:
  spinning() : driver(open_driver(driver_choice::automatic, system_calls::kernel(), &why)) { driver->attach_thread(); }

  test::socket_pair& connect() { return sockets.emplace_back(test::tcp_pair()); }
  void end(listening& item) {
    item.end();
    EXPECT_EQ(item.failure, -ECANCELED);
  }

  std::string why;
  std::unique_ptr<event_driver> driver;
  std::deque<test::socket_pair> sockets;
};

void send_byte(descriptor& where) { ASSERT_EQ(::send(where.fd(), "x", 1, 0), 1); }

TEST_F(spinning, counts_nothing_while_nothing_comes_so_that_the_executor_may_sleep) {
  auto& [near, far] = connect();
  listening input(*driver, near);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(driver->spin(plenty), 0);
  end(input);
}

TEST_F(spinning, receives_without_being_told_by_the_kernel) {
  auto& [near, far] = connect();
  listening input(*driver, near);
  while (driver->spin(plenty) != 0) {
  }
  for (std::size_t sent = 1; sent <= 100; ++sent) {
    send_byte(far);
    const std::uint64_t before = driver->kernel_entries();
    EXPECT_EQ(driver->spin(plenty), 1) << "on the loopback what was sent is there";
    EXPECT_EQ(input.received, sent);
    EXPECT_LE(driver->kernel_entries() - before, 2) << "one recvmsg, and rarely a look at other things";
  }
  end(input);
}

TEST_F(spinning, what_it_has_tried_in_vain_wakes_a_wait) {
  auto& [near, far] = connect();
  listening input(*driver, near);
  for (std::size_t sent = 1; sent <= 20; ++sent) {
    while (driver->spin(plenty) != 0) {
    }
    send_byte(far);
    while (input.received < sent) driver->wait(plenty, std::nullopt);
  }
  end(input);
}

TEST_F(spinning, serves_more_sockets_than_it_tries) {
  constexpr std::size_t many = 40;
  std::deque<listening> inputs;
  for (std::size_t i = 0; i < many; ++i) inputs.emplace_back(*driver, connect().a);
  for (std::size_t round = 1; round <= 5; ++round) {
    for (auto& pair : sockets) send_byte(pair.b);
    const auto served = [&] {
      std::size_t total = 0;
      for (const auto& input : inputs) total += input.received;
      return total;
    };
    while (served() < round * many) driver->spin(plenty);
    for (const auto& input : inputs) EXPECT_EQ(input.received, round);
  }
  for (auto& input : inputs) end(input);
}

TEST_F(spinning, ends_what_was_canceled_before_it_was_tried) {
  listening input(*driver, connect().a);
  driver->cancel(input);
  EXPECT_FALSE(input.failure) << "never from inside cancel()";
  while (!input.failure) driver->spin(plenty);
  EXPECT_EQ(input.failure, -ECANCELED);

  sending output(*driver, connect().a, 1);
  driver->cancel(output);
  while (!output.result) driver->spin(plenty);
  EXPECT_TRUE(output.result == -ECANCELED || output.result == 1) << *output.result;
}

TEST_F(spinning, a_completion_may_cancel_the_others_that_are_to_be_tried) {
  auto& [near, far] = connect();
  listening first(*driver, near);
  listening second(*driver, connect().a);
  first.to_cancel = &second;
  far.close();
  while (!second.failure) driver->spin(plenty);
  EXPECT_EQ(second.failure, -ECANCELED);
  EXPECT_TRUE(first.stream_ended);
}

TEST_F(spinning, sends_at_once) {
  auto& [near, far] = connect();
  sending output(*driver, near, 8);
  EXPECT_EQ(driver->spin(plenty), 1);
  EXPECT_EQ(output.result, 8);
}

TEST_F(spinning, a_send_for_which_there_is_no_room_waits_for_it) {
  auto& [near, far] = connect();
  const int small = 4096;
  ASSERT_EQ(::setsockopt(near.fd(), SOL_SOCKET, SO_SNDBUF, &small, sizeof small), 0);
  const std::array<std::byte, 65536> chunk{};
  while (::send(near.fd(), chunk.data(), chunk.size(), MSG_DONTWAIT) > 0) {
  }
  sending output(*driver, near, 8);
  for (int i = 0; i < 100; ++i) driver->spin(plenty);
  EXPECT_FALSE(output.result);
  std::array<std::byte, 65536> sink{};
  while (!output.result) {
    while (::recv(far.fd(), sink.data(), sink.size(), MSG_DONTWAIT) > 0) {
    }
    driver->spin(plenty);
  }
  EXPECT_EQ(output.result, 8);
}

TEST_F(spinning, the_end_of_a_stream_counts) {
  auto& [near, far] = connect();
  listening input(*driver, near);
  ASSERT_EQ(::shutdown(far.fd(), SHUT_WR), 0);
  EXPECT_EQ(driver->spin(plenty), 1);
  EXPECT_TRUE(input.stream_ended);
}

}  // namespace
}  // namespace weft
