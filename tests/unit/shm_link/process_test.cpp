// SPDX-License-Identifier: Apache-2.0
// Peers in a process of their own, which is killed, stopped or forked: whoever is left hears of it, and goes on.
#include "shm_link/process.hpp"

namespace weft::test {
namespace {

class shm_process : public shm_link_test {
 protected:
  /// Runs `script(process, connection)` with a process in that role. Nothing is left of it, and others go on.
  void with_peer(std::string role, const test_script<other_process&, net::connection&>& script,
                 net::connection_options how = {}) {
    run_beside_others([&](pair& others) -> task<> {
      const scratch_directory directory;
      auto listener = co_await device().listen(directory.address());
      other_process there(role, directory.address());
      auto peer = co_await accept_connection(listener, how);
      listener.close();
      co_await script(there, peer);
      co_await expect_service(others);
    });
    EXPECT_EQ(names_of_weft(), 0u);
  }
  /// Waits until nothing goes on any more: then turns cost nothing.
  task<> expect_standstill() {
    bool stands = false;
    for (int i = 0; i < 1000 && !stands; ++i) {
      const std::uint64_t before = home().statistics().turns;
      co_await sleep_for(20ms);
      stands = home().statistics().turns < before + 10;
    }
    EXPECT_TRUE(stands);
  }
};

TEST_F(shm_process, killed_at_any_moment_is_heard_of_by_all_that_waits_for_it) {
  constexpr std::size_t moments = sanitized ? 8 : 40;
  for (std::size_t seed = 1; seed <= moments; ++seed) {
    with_peer("load", [&](other_process& there, net::connection& peer) -> task<> {
      const other_memory memory = co_await exchange_memory(device(), peer);
      progress done;
      done.at(seed * 7919 % 997 + 1, [&] { there.kill(); });
      co_await keep_busy(device(), peer, memory.theirs, done);
      EXPECT_EQ(done.failures.size(), busy_tasks);
      for (const error& each : done.failures) EXPECT_EQ(each.code(), errc::peer_vanished) << each.what();
    });
    if (HasFailure()) FAIL() << "with seed " << seed;
  }
}

/// All numbers that a peer has sent before it died.
template <class Count>
task<> expect_numbers(net::connection& peer, Count count) {
  for (unsigned i = 0; i < count; ++i) {
    const auto message = co_await peer.recv_or_throw();
    unsigned number = 0;
    EXPECT_EQ(message.size(), sizeof number);
    std::memcpy(&number, message.bytes().data(), sizeof number);
    EXPECT_EQ(number, i);
  }
}

TEST_F(shm_process, that_has_died_has_left_what_it_had_sent) {
  with_peer("say_numbers", [&](other_process& there, net::connection& peer) -> task<> {
    EXPECT_EQ(there.wait(), -SIGKILL);
    co_await expect_numbers(peer, native_numbers);
    EXPECT_EQ(co_await code_of(peer.recv_or_throw()), errc::peer_vanished);
  });
}

TEST_F(shm_process, that_has_died_has_left_messages_for_which_there_was_no_receive) {
  const auto numbers = [&](other_process& there, net::connection& peer) -> task<> {
    EXPECT_EQ(there.wait(), -SIGKILL);
    co_await settle();
    co_await expect_numbers(peer, many_numbers);
    EXPECT_EQ(co_await code_of(peer.recv_or_throw()), errc::peer_vanished);
  };
  with_peer("say_many_numbers", numbers, {.profile = net::profile::interop});
}

TEST_F(shm_process, that_has_died_does_not_keep_its_peer_from_closing) {
  const auto close = [&](other_process& there, net::connection& peer) -> task<> {
    EXPECT_EQ(there.wait(), -SIGKILL);
    co_await settle();
    EXPECT_EQ(co_await code_of(peer.recv_or_throw()), std::error_code());
    co_await peer.close();
  };
  with_peer("say_numbers", close);
  with_peer("say_many_numbers", close, {.profile = net::profile::interop});
}

TEST_F(shm_process, that_is_stopped_costs_nothing_and_goes_on_where_it_was) {
  with_peer("echo", [&](other_process& there, net::connection& peer) -> task<> {
    const auto send = [&](int count) -> task<> {
      for (int i = 0; i < count; ++i) {
        auto message = co_await filled(3000, 'x');
        co_await peer.send(std::move(message));
      }
    };
    const auto receive = [&](int count) -> task<> {
      for (int i = 0; i < count; ++i) {
        const auto message = co_await peer.recv_or_throw();
        EXPECT_EQ(message.size(), 3000u);
      }
    };
    for (int round = 0; round < 3; ++round) {
      there.stop();
      const auto thaw = [&]() -> task<> {
        co_await expect_standstill();
        there.go_on();
      };
      co_await when_all(send(100), receive(100), thaw());
    }
    co_await peer.close();
    EXPECT_EQ(there.wait(), 0);
  });
}

TEST_F(shm_process, stopped_under_load_costs_nothing_goes_on_and_can_be_killed_meanwhile) {
  for (const bool killed_while_stopped : {false, true}) {
    with_peer("load", [&](other_process& there, net::connection& peer) -> task<> {
      const other_memory memory = co_await exchange_memory(device(), peer);
      progress done;
      bool stopped = false;
      done.at(300, [&] {
        there.stop();
        stopped = true;
      });
      const auto thaw = [&]() -> task<> {
        while (!stopped) co_await yield();
        co_await expect_standstill();
        EXPECT_TRUE(done.failures.empty());
        if (killed_while_stopped) {
          there.kill();
          co_return;
        }
        done.at(done.count() + 500, [&] { there.kill(); });
        there.go_on();
      };
      co_await when_all(keep_busy(device(), peer, memory.theirs, done), thaw());
      EXPECT_EQ(done.failures.size(), busy_tasks);
      for (const error& each : done.failures) EXPECT_EQ(each.code(), errc::peer_vanished) << each.what();
    });
  }
}

// ---- children of fork(2)

TEST_F_TASK(shm_process, whose_copy_was_forked_has_no_channel_in_that_and_goes_on_when_it_goes) {
  pair both = co_await connect_pair();
  co_await expect_service(both);
  EXPECT_EQ(mapped_channels(), 2u);
  EXPECT_EQ(end_of(fork_for([] { return mapped_channels(); })), 0);
  co_await expect_service(both);
  co_await when_all(both.client.close(), both.server.close());
}

TEST_F(shm_process, that_has_died_is_heard_of_although_a_program_that_it_started_lives_on) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  descriptor hold = owned(ends[1]);
  const descriptor former = owned(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3));
  ASSERT_EQ(::dup2(ends[0], STDIN_FILENO), STDIN_FILENO);  // for the child and its own
  ::close(ends[0]);
  with_peer("leave_a_child", [&](other_process& there, net::connection& peer) -> task<> {
    EXPECT_EQ(there.wait(), -SIGKILL);
    static_cast<void>(co_await peer.recv_or_throw());
    EXPECT_EQ(co_await code_of(peer.recv_or_throw()), errc::peer_vanished);
  });
  ASSERT_EQ(::dup2(former.fd(), STDIN_FILENO), STDIN_FILENO);
}

}  // namespace
}  // namespace weft::test
