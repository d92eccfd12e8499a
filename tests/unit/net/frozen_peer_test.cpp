// SPDX-License-Identifier: Apache-2.0
// A peer's program that is stopped (SIGSTOP) while its kernel goes on answering: two processes, the second being this
// program once more.
#include <weft/weft.hpp>

#include <cstdio>

#include "kit/clock.hpp"
#include "kit/failure.hpp"
#include "kit/piped_program.hpp"
#include "kit/settle.hpp"
#include "kit/tell.hpp"
#include "kit/test.hpp"

using namespace std::chrono_literals;

namespace weft {
namespace {

// ---- the peer

task<> echo_one(net::device& device) {
  auto listener = co_await device.listen("127.0.0.1:0");
  std::printf("%s\n", std::string(listener.address()).c_str());
  std::fflush(stdout);
  auto request = co_await listener.next();
  auto peer = co_await request->accept();  // without the option
  auto memory = co_await device.pool().allocate(64);
  const auto open = co_await peer.expose(std::move(memory), mr::usage::read_src);
  co_await test::tell(peer, device.pool(), open.remote());
  while (auto message = co_await peer.recv()) co_await peer.send(std::move(message->payload));
}

int serve() {
  try {
    auto device = net::device::open("iwarp");
    executor home;
    home.run(echo_one(device));
    return 0;
  } catch (const std::exception& why) {
    std::fprintf(stderr, "the peer: %s\n", why.what());
    return 1;
  }
}

// ---- the test

class other_process {
 public:
  [[nodiscard]] const std::string& address() const noexcept { return address_; }
  /// Returns once it is stopped.
  void freeze() const {
    ::kill(program_.id(), SIGSTOP);
    int status = 0;
    EXPECT_EQ(::waitpid(program_.id(), &status, WUNTRACED), program_.id());
    EXPECT_TRUE(WIFSTOPPED(status));
  }

 private:
  test::piped_program program_{{"/proc/self/exe", "serve"}};
  std::string address_ = program_.hear_line();
};

TEST(frozen_peer, is_noticed_by_its_heartbeats_and_everybody_who_waits_is_told) {
  constexpr auto period = 100s;  // so long that a peer on a busy machine answers in time
  const other_process there;
  auto device = net::device::open("iwarp");
  test::manual_clock time(test::manual_clock::between_moves::goes);
  executor home({.clock = &time});
  const auto script = [&]() -> task<> {
    auto peer = co_await device.connect(there.address(), {.heartbeat = period});
    static_cast<void>(co_await peer.recv_or_throw());  // its table
    auto hello = co_await device.pool().allocate(5);
    co_await peer.send(hello);
    static_cast<void>(co_await peer.recv_or_throw());
    there.freeze();
    bool told = false;
    const auto listen_to_it = [&]() -> task<std::optional<error>> {
      auto why = co_await test::failure_of(peer.recv());
      told = true;
      co_return why;
    };
    const auto let_time_pass = [&]() -> task<> {
      while (!told) {
        time.advance(period);
        co_await test::settle();
      }
    };
    const auto both = co_await when_all(listen_to_it(), let_time_pass());
    const std::optional<error>& failure = std::get<0>(both);
    EXPECT_TRUE(failure && failure->code() == errc::peer_vanished);
    const std::string words = failure ? failure->what() : "";
    EXPECT_NE(words.find("its program hangs or is stopped"), std::string::npos) << words;
    EXPECT_NE(words.find(there.address()), std::string::npos) << words;
  };
  home.run(with_timeout(1000s, script()));
}

// It is not noticed without heartbeats, and may thaw: but a person can see who waits for whom.
TEST(frozen_peer, shows_in_the_dump_and_in_the_statistics_as_an_operation_that_does_not_complete) {
  const other_process there;
  auto device = net::device::open("iwarp");
  executor home;
  const auto script = [&]() -> task<> {
    auto peer = co_await device.connect(there.address());
    const auto memory = co_await test::hear_region(peer);
    auto target = co_await device.pool().allocate(64);
    co_await peer.read(target, memory);
    EXPECT_EQ(peer.statistics().stalled, 0ns);
    there.freeze();
    const auto read = [&]() -> task<> { co_await peer.read(target, memory); };
    const auto look_on = [&](scope& tasks) -> task<> {
      tasks.spawn(read(), "the reader");
      while (peer.statistics().stalled == 0ns) co_await yield();
      EXPECT_GT(device.statistics().of_open.stalled, 0ns);
      EXPECT_EQ(device.statistics().of_all().in_flight, 1u);
      metrics all;
      add_to(all, peer.statistics(), "it");
      EXPECT_NE(all.text().find("weft_operations_stalled_seconds{connection=\"it\"} "), std::string::npos);
      const std::string dump = home.dump();
      EXPECT_NE(dump.find("the reader: "), std::string::npos) << dump;
      EXPECT_NE(dump.find(" s on read of 64 bytes, " + there.address()), std::string::npos) << dump;
      tasks.request_stop();
    };
    co_await with_scope(on_failure::report, look_on);
    peer.abort();
  };
  home.run(with_timeout(60s, script()));
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == "serve") return weft::serve();
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
