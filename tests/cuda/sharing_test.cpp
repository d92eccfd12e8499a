// SPDX-License-Identifier: Apache-2.0
// Memory of one GPU in two processes, which copy between them by themselves.
#include "sharing.hpp"

#include <weft/weft.hpp>

#include <filesystem>

#include "kit/piped_program.hpp"
#include "kit/scripted_test.hpp"
#include "kit/test.hpp"
#include "stand_in_control.hpp"

namespace weft::test {
namespace {

// The other process, ready to be connected to.
class owner {
 public:
  explicit owner(std::string how) : program_({SHARING_OWNER, address(), std::move(how)}) {
    EXPECT_EQ(program_.hear_line(), "ready");
  }
  ~owner() {
    EXPECT_EQ(program_.end(), 0);
    std::filesystem::remove(socket_);
  }
  [[nodiscard]] std::string address() const { return "unix:" + socket_; }

 private:
  std::string socket_ = "/tmp/weft-sharing-" + std::to_string(::getpid());
  piped_program program_;
};

class sharing : public testing::Test {
 protected:
  // Runs `script(device, connection, where)` against a process that does as `how` says.
  void against(const char* how, const test_script<net::device&, net::connection&, const mr::remote_region&>& script) {
    const owner other(how);
    auto device = net::device::open("shm");
    const auto body = [&]() -> task<> {
      net::connection peer = co_await device.connect(other.address(), {.device_memory = true});
      EXPECT_TRUE(peer.capabilities().same_machine);
      const net::message told = co_await peer.recv_or_throw();
      const mr::remote_region where = mr::remote_region::unpack(told.bytes());
      co_await script(device, peer, where);
      co_await peer.close();
    };
    executor home;
    home.run(body());
  }
  [[nodiscard]] task<mr::region> memory(net::device& device, unsigned seed, bool direct) {
    mr::device_memory made = gpu->allocate(shared_bytes);
    std::vector<std::byte> content(shared_bytes);
    fill_with(content, seed);
    driver.poke(made.bytes(), content);
    co_return co_await device.domain().register_memory(
        std::move(made), {.usage = mr::usage::write_src | mr::usage::read_dst, .device = gpu.get(), .direct = direct});
  }
  [[nodiscard]] static task<sharing_state> ask(net::device& device, net::connection& peer, unsigned seed) {
    mr::buffer question = co_await device.allocate(1);
    question.bytes()[0] = static_cast<std::byte>(seed);
    co_await peer.send(std::move(question));
    const net::message answer = co_await peer.recv_or_throw();
    sharing_state now;
    std::memcpy(&now, answer.bytes().data(), sizeof now);
    co_return now;
  }
  // Whether what was copied went through this end's host memory.
  [[nodiscard]] bool has_staged() const { return driver.counts().pinned != 0; }

  stand_in driver;
  std::shared_ptr<mr::memory_device> gpu = mr::open_cuda({.library = stand_in::library()});
};

// With a process that does as `how` says.
#define TEST_F_SHARING(fixture, name, how)                                                                       \
  TEST_F_SCRIPT(fixture, name,                                                                                   \
                ([[maybe_unused]] net::device & device, net::connection & peer, const mr::remote_region& where), \
                against(how, WEFT_SCRIPT))

TEST_F_SHARING(sharing, is_one_copy_for_each_piece_and_nothing_goes_through_host_memory, "direct") {
  const mr::region here = co_await memory(device, 3, true);
  co_await peer.write(here.slice(), where);
  sharing_state now = co_await ask(device, peer, 3);
  EXPECT_TRUE(now.holds);
  EXPECT_EQ(now.pinned, 0u);
  EXPECT_EQ(now.open, 0u);  // only as long as the operation took
  const mr::region back = co_await memory(device, 9, true);
  co_await peer.read(back.slice(), where);
  EXPECT_EQ(driver.peek(back.bytes()), driver.peek(here.bytes()));
  EXPECT_FALSE(has_staged());

  constexpr std::size_t block = 65536;
  std::vector<net::block_pair> pairs(200);
  for (std::uint32_t i = 0; i != pairs.size(); ++i) pairs[i] = {.local = i, .remote = 199 - i};
  const mr::region other = co_await memory(device, 7, true);
  const net::block_list blocks{.local = other.slice(), .remote = where, .block_bytes = block, .blocks = pairs};
  co_await peer.write(blocks);
  const net::block_list again{.local = back.slice(), .remote = where, .block_bytes = block, .blocks = pairs};
  co_await peer.read(again);
  const auto sent = driver.peek(other.bytes().first(200 * block));
  EXPECT_EQ(driver.peek(back.bytes().first(200 * block)), sent);
  EXPECT_FALSE(has_staged());
  now = co_await ask(device, peer, 3);
  EXPECT_EQ(now.open, 0u);
}

TEST_F_SHARING(sharing, is_followed_by_immediate_data, "direct") {
  const mr::region here = co_await memory(device, 2, true);
  co_await peer.write(here.slice(), where, {.immediate = 77});
  const sharing_state now = co_await ask(device, peer, 2);
  EXPECT_TRUE(now.holds);
  EXPECT_EQ(now.immediate, 77u);
  EXPECT_FALSE(has_staged());
}

TEST_F(sharing, that_one_end_has_not_chosen_goes_through_host_memory) {
  against("direct", [&](net::device& device, net::connection& peer, const mr::remote_region& where) -> task<> {
    const mr::region here = co_await memory(device, 3, false);
    co_await peer.write(here.slice(), where);
    EXPECT_TRUE((co_await ask(device, peer, 3)).holds);
    EXPECT_TRUE(has_staged());
  });
  against("closed", [&](net::device& device, net::connection& peer, const mr::remote_region& where) -> task<> {
    const mr::region here = co_await memory(device, 4, true);
    co_await peer.write(here.slice(), where);
    const sharing_state now = co_await ask(device, peer, 4);
    EXPECT_TRUE(now.holds);
    EXPECT_NE(now.pinned, 0u);
  });
}

TEST_F_SHARING(sharing, that_fails_goes_through_host_memory, "failing") {
  const mr::region here = co_await memory(device, 5, true);
  co_await peer.write(here.slice(), where);
  const sharing_state now = co_await ask(device, peer, 5);
  EXPECT_TRUE(now.holds);
  EXPECT_TRUE(now.tried_to_open);
  EXPECT_NE(now.pinned, 0u);
}

// The memory is somebody else's from then on.
TEST_F_SHARING(sharing, ends_with_the_connection, "direct") {
  const mr::region here = co_await memory(device, 6, true);
  const auto write = [&]() -> task<> { co_await peer.write(here.slice(), where); };
  const auto abort = [&]() -> task<> {
    for (int i = 0; i != 20; ++i) co_await yield();
    peer.abort();
  };
  try {
    co_await when_all(write(), abort());
  } catch (const error&) {
  }
}

}  // namespace
}  // namespace weft::test
