// SPDX-License-Identifier: Apache-2.0
// Set-ups between peers that mean well, and what may go wrong with them.
#include <weft/net/shm/listener.hpp>

#include <sys/file.h>
#include <sys/stat.h>

#include "kit/attempt.hpp"
#include "kit/child.hpp"
#include "shm/support.hpp"

namespace weft::test {
namespace {

using both_ends = std::tuple<net::new_link, std::unique_ptr<net::link>>;

class shm_set_up : public shm_test {
 protected:
  using shm_test::shm_test;
  const scratch_directory directory;

  task<both_ends> connect_pair(net::link_listener& listener) {
    co_return co_await when_all(connect(std::string(listener.address())), accept(listener));
  }
  [[nodiscard]] static std::string on_port_of(std::string_view host, const net::link_listener& listener) {
    return std::string(host) + std::string(listener.address().substr(listener.address().rfind(':')));
  }
  /// Goes beyond the deadline of how().
  task<> run_out_of_time() {
    co_await sleep_for(10ms);
    jump(11s);
    co_await settle();
  }
  task<> expect_connection(std::string address, net::link_listener& listener) {
    const auto both = co_await when_all(connect(std::move(address)), accept(listener));
    EXPECT_TRUE(std::get<1>(both) != nullptr);
  }
};

#define TEST_F_LISTENING(fixture, name)                                                           \
  TEST_F_SCRIPT(fixture, name, ([[maybe_unused]] std::unique_ptr<net::link_listener> & listener), \
                run([&]() -> task<> {                                                             \
                  auto listener = co_await listen();                                              \
                  co_await script(listener);                                                      \
                }))

bool sends_to(const descriptor& from, const descriptor& at) {
  EXPECT_EQ(::send(from.fd(), "w", 1, MSG_NOSIGNAL), 1);
  pollfd state{.fd = at.fd(), .events = POLLIN, .revents = 0};
  return ::poll(&state, 1, 0) == 1;
}

TEST_F_LISTENING(shm_set_up, gives_both_ends_the_same_memory_and_a_socket_to_each_other) {
  both_ends both = co_await connect_pair(*listener);
  shm::established& here = parts_of(*std::get<0>(both).link);
  shm::established& there = parts_of(*std::get<1>(both));
  here.memory.own().taken = 42;
  EXPECT_EQ(there.memory.other().taken, 42u);
  there.memory.own().written = 43;
  EXPECT_EQ(here.memory.other().written, 43u);
  EXPECT_TRUE(sends_to(here.socket, there.socket));
  EXPECT_TRUE(sends_to(there.socket, here.socket));
  EXPECT_EQ(here.memory.file(), -1);
  EXPECT_EQ(there.memory.file(), -1);
}

TEST_F_LISTENING(shm_set_up, ends_for_both_when_one_goes) {
  both_ends both = co_await connect_pair(*listener);
  std::get<0>(both).link.reset();
  descriptor& socket = parts_of(*std::get<1>(both)).socket;
  pollfd state{.fd = socket.fd(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&state, 1, 0), 1);
  EXPECT_NE(state.revents & POLLHUP, 0);
}

TEST_F_LISTENING(shm_set_up, says_who_the_peer_is) {
  both_ends both = co_await connect_pair(*listener);
  EXPECT_EQ(std::get<0>(both).link->peer(), listener->address());
  EXPECT_EQ(std::get<1>(both)->peer(), "process " + std::to_string(::getpid()));
}

TEST_F_LISTENING(shm_set_up, refuses_more_private_data_than_it_carries) {
  const std::string too_long(57, 'x');
  EXPECT_EQ(co_await code_of(connect(std::string(listener->address()), how(too_long))), errc::invalid_argument);
}

TEST_F_LISTENING(shm_set_up, agrees_on_the_smaller_numbers_of_both_ends) {
  const auto serve = [&]() -> task<std::unique_ptr<net::link>> {
    auto request = co_await listener->next();
    net::set_up_options options = how();
    options.incoming_reads = 3;
    options.outgoing_reads = 40;
    co_return co_await request->accept(options);
  };
  const auto small = shm::open_transport({.ring_bytes = std::size_t{16} << 10});
  net::set_up_options options = how();
  options.incoming_reads = 30;
  options.outgoing_reads = 4;
  const auto both = co_await when_all(small->connect(listener->address(), options), serve());
  const shm::established& here = parts_of(*std::get<0>(both).link);
  const shm::established& there = parts_of(*std::get<1>(both));
  EXPECT_EQ(here.incoming_reads, 30);
  EXPECT_EQ(there.outgoing_reads, 30);
  EXPECT_EQ(here.outgoing_reads, 3);
  EXPECT_EQ(there.incoming_reads, 3);
  EXPECT_EQ(here.memory.ring_bytes(), std::size_t{16} << 10);
  EXPECT_EQ(there.memory.ring_bytes(), std::size_t{16} << 10);
}

TEST_F(shm_set_up, refuses_rings_that_cannot_be) {
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{100'000}, std::size_t{32} << 20}) {
    EXPECT_EQ(code_thrown_by([&] { static_cast<void>(shm::open_transport({.ring_bytes = bytes})); }),
              errc::invalid_argument);
  }
}

TEST_F_TASK(shm_set_up, reaches_who_listens_on_all_addresses) {
  auto listener = co_await listen("0.0.0.0:0");
  co_await expect_connection(on_port_of("127.0.0.1", *listener), *listener);
  co_await expect_connection(on_port_of("127.0.0.7", *listener), *listener);
  co_await expect_connection(on_port_of("0.0.0.0", *listener), *listener);
  auto any = co_await listen(":0");
  co_await expect_connection(on_port_of("127.0.0.1", *any), *any);
}

TEST_F_TASK(shm_set_up, tells_a_peer_on_another_machine_from_one_that_does_not_listen) {
  EXPECT_TRUE(failed_with(co_await failure_of(connect("192.0.2.1:7471")), errc::wrong_device,
                          "the peer is on another machine"));
  EXPECT_EQ(co_await code_of(connect("127.0.0.1:1")), std::errc::connection_refused);
  EXPECT_EQ(co_await code_of(connect("unix:/nonexistent/socket")), std::errc::connection_refused);
  EXPECT_EQ(co_await code_of(connect("127.0.0.1")), errc::invalid_address);
  EXPECT_EQ(co_await code_of(connect("unix:")), errc::invalid_address);
}

TEST_F_LISTENING(shm_set_up, from_an_address_of_another_machine_is_refused) {
  net::set_up_options options = how();
  options.source = "192.0.2.1:0";
  const auto failure = co_await failure_of(connect(std::string(listener->address()), options));
  EXPECT_TRUE(contains(failure, "bind the source address 192.0.2.1:0"));
  options.source = "127.0.0.2:0";
  co_await when_all(connect(std::string(listener->address()), options), accept(*listener));
}

TEST_F_LISTENING(shm_set_up, that_is_dropped_or_that_the_listener_closes_over_is_rejected) {
  const std::string address(listener->address());
  const auto drop = [&]() -> task<> { static_cast<void>(co_await listener->next()); };
  const auto both = co_await when_all(code_of(connect(address)), drop());
  EXPECT_EQ(std::get<0>(both), errc::peer_rejected);
  const auto close = [&]() -> task<> {
    while (counts.half_open == 0) co_await yield();
    while (counts.half_open != 0) co_await yield();
    listener->close();  // it has come, and nobody has taken it
  };
  const auto rest = co_await when_all(code_of(connect(address)), close());
  EXPECT_EQ(std::get<0>(rest), errc::peer_rejected);
  EXPECT_EQ(co_await code_of(connect(address)), std::errc::connection_refused);
}

TEST_F(shm_set_up, stopped_at_any_turn_leaves_nothing_behind) {
  run([&]() -> task<> {
    auto listener = co_await listen();
    co_await expect_service(*listener);
  });
  const std::size_t descriptors = open_descriptors();
  const std::size_t names = names_of_weft();
  std::size_t turns = 0;
  for (bool completed = false; !completed && turns < 10'000; ++turns) {
    const auto exchange = [&]() -> task<> {
      auto listener = co_await listen();
      co_await expect_service(*listener);
      completed = true;
    };
    const auto body = [&](scope& tasks) -> task<> {
      tasks.spawn(exchange());
      for (std::size_t i = 0; i < turns && !completed; ++i) co_await yield();
      tasks.request_stop();
    };
    const auto root = [&]() -> task<> {
      try {
        co_await with_scope(on_failure::stop_siblings, body);
      } catch (const error& why) {
        const bool is_fair = why.code() == errc::canceled || why.code() == errc::peer_vanished;
        EXPECT_TRUE(is_fair) << why.what();  // the end that stops first has vanished for the other one
      }
    };
    run(root);
    EXPECT_EQ(open_descriptors(), descriptors) << "stopped at turn " << turns;
    if (HasFailure()) return;
  }
  EXPECT_GT(turns, 5u);
  EXPECT_EQ(names_of_weft(), names);
}

sim::loose_task accept_loosely(net::link_request& request, const net::set_up_options& options) {
  static_cast<void>(co_await failure_of(request.accept(options)));
}

// The request is let go along with the task, as connection_request::accept() does it.
TEST_F_TASK(shm_set_up, destroyed_while_its_peer_is_silent_closes_the_socket) {
  auto listener = co_await listen_at_work();
  const net::set_up_options options = how();
  for (const int turns : {0, 1, 3, 20}) {
    raw_end raw = raw_end::connect(name_of(*listener));
    raw.send(hello_frame());
    auto request = co_await listener->next();
    {
      const auto accepting = accept_loosely(*request, options);
      accepting.start(home());
      static_cast<void>(co_await raw.receive_frame());
      for (int i = 0; i < turns || !accepting.at_rest(); ++i) co_await yield();
      EXPECT_EQ(accepting.waits_for(), "a wait for readiness");
    }
    request.reset();
    co_await raw.receive_to_the_end();
  }
  co_await expect_service(*listener);
}

// ---- where to listen

TEST_F_LISTENING(shm_set_up, at_an_address_that_is_taken_or_anothers_is_refused) {
  EXPECT_EQ(co_await code_of(listen(std::string(listener->address()))), std::errc::address_in_use);
  EXPECT_EQ(co_await code_of(listen("192.0.2.1:0")), std::errc::address_not_available);
  listener->close();
  const std::string address(listener->address());
  auto next = co_await listen(address);
  EXPECT_EQ(next->address(), address);
}

// At an address that other programs leave alone, so that nobody takes the port before we do.
TEST_F_TASK(shm_set_up, at_port_0_has_one_that_tcp_has_free) {
  auto listener = co_await listen(own_loopback() + ":0");
  EXPECT_NE(listener->address(), own_loopback() + ":0");
  const auto where = co_await resolve(listener->address(), true);
  const descriptor tcp = owned(::socket(AF_INET, SOCK_STREAM, 0));
  EXPECT_EQ(::bind(tcp.fd(), where.front().data(), where.front().size()), 0);
}

class shm_paths : public shm_set_up {
 protected:
  [[nodiscard]] bool has_file() const { return directory.has("socket"); }
  void leave_a_dead_socket() const {
    const auto name = shm::unix_name::of_path(directory.socket());
    const raw_acceptor dead(name);
  }
};

TEST_F(shm_paths, are_listened_on_and_leave_no_file) {
  run([&]() -> task<> {
    auto listener = co_await listen(directory.address());
    EXPECT_EQ(listener->address(), directory.address());
    co_await expect_service(*listener);
    EXPECT_TRUE(has_file());
    listener->close();
    EXPECT_FALSE(has_file());
  });
  EXPECT_TRUE(directory.names().empty());
}

TEST_F_TASK(shm_paths, that_a_dead_listener_has_left_are_taken_over) {
  leave_a_dead_socket();
  EXPECT_TRUE(has_file());
  EXPECT_EQ(co_await code_of(connect(directory.address())), std::errc::connection_refused);
  auto listener = co_await listen(directory.address());
  co_await expect_service(*listener);
}

TEST_F_TASK(shm_paths, of_a_listener_that_lives_are_not_taken_from_it) {
  auto listener = co_await listen(directory.address());
  EXPECT_EQ(co_await code_of(listen(directory.address())), std::errc::address_in_use);
  co_await expect_service(*listener);
}

TEST_F_TASK(shm_paths, with_a_file_that_is_no_socket_are_left_alone) {
  std::filesystem::create_directory(directory.socket());
  EXPECT_EQ(co_await code_of(listen(directory.address())), std::errc::address_in_use);
  EXPECT_TRUE(has_file());
}

TEST_F_TASK(shm_paths, that_have_become_anothers_are_not_removed) {
  auto listener = co_await listen(directory.address());
  std::filesystem::remove(directory.socket());
  const descriptor other = owned(::open(directory.socket().c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  listener->close();
  EXPECT_TRUE(has_file());
}

TEST_F(shm_paths, wanted_by_many_at_a_time_go_to_one) {
  leave_a_dead_socket();
  std::atomic<int> won{0};
  std::atomic<int> lost{0};
  std::vector<std::jthread> all;
  for (int i = 0; i < 8; ++i) {
    all.emplace_back([&] {
      executor there;
      const auto body = [&]() -> task<> {
        try {
          auto listener = co_await listen(directory.address());
          ++won;
          while (won + lost < 8) co_await sleep_for(1ms);
        } catch (const error& why) {
          EXPECT_EQ(why.code(), std::errc::address_in_use);
          ++lost;
        }
      };
      there.run(body());
    });
  }
  all.clear();
  EXPECT_EQ(won, 1);
}

TEST_F_TASK(shm_paths, whose_directory_somebody_else_locks_are_listened_on_without_taking_over) {
  const descriptor held = owned(::open(directory.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  EXPECT_EQ(::flock(held.fd(), LOCK_EX | LOCK_NB), 0);
  auto listener = co_await listen(directory.address());
  co_await expect_service(*listener);
}

/// Says of every process that it is dead.
class obituaries : public system_calls {
 public:
  int kill(pid_t, int) noexcept override { return -ESRCH; }
};

// A process that was killed may listen for a moment longer: see holder_of().
using shm_undead = with_calls<obituaries, shm_set_up>;

TEST_F_TASK(shm_undead, listeners_lose_their_path_to_the_next_and_leave_it_its_file) {
  auto undead = co_await listen(directory.address());
  auto next = co_await listen(directory.address());
  undead->close();
  co_await expect_service(*next);
}

TEST_F_TASK(shm_undead, listeners_keep_an_address_until_they_are_gone) {
  auto undead = co_await listen();
  const std::string address(undead->address());
  const auto end = [&]() -> task<> {
    co_await yield();  // the name has been found taken by then, and is tried again before the time is looked at
    undead->close();
  };
  auto both = co_await when_all(listen(address), end());
  co_await expect_service(*std::get<0>(both));
}

// ---- other users

using shm_users = with_calls<strangers, shm_set_up>;

TEST_F_LISTENING(shm_users, that_listen_under_an_address_and_are_others_get_nothing_from_us) {
  calls.are_all = true;
  EXPECT_TRUE(failed_with(co_await failure_of(connect(std::string(listener->address()))), std::errc::permission_denied,
                          "what listens there belongs to user"));
}

TEST_F_TASK(shm_users, that_are_others_are_passed_by_where_our_own_listens_at_all_addresses) {
  const auto stranger = co_await listen();
  const std::string address(stranger->address());
  const auto own = co_await listen("0.0.0.0" + address.substr(address.rfind(':')));
  calls.are_at_loopback = true;
  const auto both = co_await when_all(connect(address), accept(*own));
  EXPECT_TRUE(std::get<0>(both).link != nullptr && std::get<1>(both) != nullptr);
}

TEST_F_TASK(shm_users, that_connect_and_are_others_are_rejected_and_counted) {
  auto listener = co_await listen_at_work();
  calls.are_all = true;
  raw_end raw = raw_end::connect(name_of(*listener));
  raw.send(hello_frame());
  const shm::frame answer = co_await raw.receive_frame();
  EXPECT_EQ(answer.kind, shm::frame_kind::reject);
  EXPECT_EQ(answer.reason, shm::reject_reason::other_user);
  co_await settle();
  EXPECT_EQ(counts.requests_failed, 1u);
}

TEST_F_TASK(shm_users, that_a_path_lets_in_may_be_others) {
  auto listener = co_await listen(directory.address());
  calls.are_all = true;
  co_await expect_service(*listener);
}

// What connect() ends with in a process of another user: 0 or errno.
int connect_as_nobody(const std::string& address) {
  const auto try_it = [&]() noexcept -> int {
    if (::setegid(65534) != 0 || ::seteuid(65534) != 0) return 99;
    executor there;
    const auto transport = shm::open_transport();
    const auto body = [&]() -> task<std::error_code> {
      net::set_up_options options;
      options.deadline = clock::steady().now() + 5s;
      co_return co_await code_of(transport->connect(address, options));
    };
    const std::error_code code = there.run(body());
    return code.category() == std::system_category() ? code.value() : code ? 97 : 0;
  };
  return end_of(fork_for(try_it));
}

TEST_F(shm_users, really_are_told_apart_by_the_kernel) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  run([&]() -> task<> {
    auto listener = co_await listen();
    const std::string address(listener->address());
    EXPECT_EQ(connect_as_nobody(address), EACCES);
    co_await expect_service(*listener);
  });
}

TEST_F(shm_users, need_the_permissions_of_a_path) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  ::chmod(directory.path().c_str(), 0755);
  run([&]() -> task<> {
    auto listener = co_await listen(directory.address());
    ::chmod(directory.socket().c_str(), 0700);
    EXPECT_EQ(connect_as_nobody(directory.address()), EACCES);
    co_await expect_service(*listener);
  });
}

// ---- what fails

class shm_faults : public with_calls<failing_system_calls, shm_set_up> {
 protected:
  /// Ends once both ends have. The one that connects hears of what has failed in any case; if it has failed before it
  /// has asked, the other waits for a peer that does not come.
  task<> try_to_meet(std::string where, net::link_listener& listener, scope& tasks) {
    attempt connecting(tasks, connect(std::move(where)));
    attempt accepting(tasks, accept(listener));
    co_await connecting.end();
    if (!connecting.succeeded()) {
      co_await settle();
      if (!accepting.ended()) accepting.stop();
    }
    co_await accepting.end();
  }

  /// Each call that a set-up makes fails once, with this; then a set-up goes well.
  void expect_clean_failures(const std::function<std::string()>& address, int number) {
    run([&]() -> task<> {
      auto listener = co_await listen(address());
      co_await expect_service(*listener);
    });
    const std::size_t descriptors = open_descriptors();
    std::size_t call = 0;
    for (bool failed = true; failed; ++call) {
      run([&]() -> task<> {
        calls.fail({{.of = calls_of_a_set_up, .number = number, .after = call, .times = 1}});
        try {
          auto listener = co_await listen(address());
          const std::string where(listener->address());
          const auto meet = [&](scope& tasks) -> task<> { co_await try_to_meet(where, *listener, tasks); };
          co_await with_scope(on_failure::stop_siblings, meet);
          failed = calls.has_failed();
          calls.fail({});
          co_await expect_service(*listener);
        } catch (const error&) {
          EXPECT_TRUE(calls.has_failed());
        }
        calls.fail({});
      });
      EXPECT_EQ(open_descriptors(), descriptors) << "call " << call;
      if (HasFailure()) return;
    }
    EXPECT_GT(call, 14U);
  }
};

TEST_F(shm_faults, of_any_call_leave_no_descriptor_and_the_next_set_up_goes_well) {
  for (const int number : {ENOMEM, EMFILE}) expect_clean_failures([] { return std::string("127.0.0.1:0"); }, number);
}

TEST_F(shm_faults, of_any_call_leave_no_file_either) {
  expect_clean_failures([&] { return directory.address(); }, ENOMEM);
  EXPECT_TRUE(directory.names().empty());
}

/// A listener that has as many peers waiting as it may, for a while.
class full_backlog : public system_calls {
 public:
  int left = 3;
  int connect(int fd, const sockaddr* address, unsigned length) noexcept override {
    return left-- > 0 ? -EAGAIN : system_calls::connect(fd, address, length);
  }
};

using shm_backlogs = with_calls<full_backlog, shm_set_up>;

TEST_F_LISTENING(shm_backlogs, that_are_full_are_waited_for) { co_await expect_service(*listener); }

TEST_F_LISTENING(shm_backlogs, that_stay_full_are_waited_for_no_longer_than_there_is_time) {
  calls.left = 1'000'000;
  const auto both = co_await when_all(code_of(connect(std::string(listener->address()))), run_out_of_time());
  EXPECT_EQ(std::get<0>(both), errc::timed_out);
}

}  // namespace
}  // namespace weft::test
