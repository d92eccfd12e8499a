// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cstdlib>
#include <deque>

#include "kit/bytes.hpp"
#include "kit/failing_system_calls.hpp"
#include "runtime/support.hpp"

namespace weft {
namespace {

using test::checked_call;
using test::receive_some;
using test::send_some;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

descriptor tcp_socket(system_calls& calls = system_calls::kernel(), int flags = 0) {
  return {checked_call(calls.socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | flags, 0), "create a socket"), calls};
}

struct listening_socket {
  descriptor socket;
  sockaddr_storage address{};
  socklen_t length = 0;
};

// All through the seam, so that a test can make each of the calls fail. The port refuses peers until it listens, and
// nobody else gets it.
listening_socket bind_to_the_loopback(system_calls& calls) {
  listening_socket made{.socket = tcp_socket(calls)};
  auto& internet = reinterpret_cast<sockaddr_in&>(made.address);
  internet.sin_family = AF_INET;
  internet.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  made.length = sizeof internet;
  auto* const generic = reinterpret_cast<sockaddr*>(&made.address);
  checked_call(calls.bind(made.socket.fd(), generic, made.length), "bind");
  checked_call(calls.getsockname(made.socket.fd(), generic, &made.length), "get the address");
  return made;
}

listening_socket listen_on_the_loopback(system_calls& calls, int backlog = 8) {
  listening_socket made = bind_to_the_loopback(calls);
  checked_call(calls.listen(made.socket.fd(), backlog), "listen");
  return made;
}

task<> connect_to(descriptor& socket, sockaddr_storage address, socklen_t length) {
  checked_call(co_await detail::io_wait(io_kind::connect, socket, address, length), "connect");
}

task<descriptor> accept_one(descriptor& listener) {
  sockaddr_storage peer{};
  const int fd = checked_call(co_await detail::io_wait(io_kind::accept, listener, peer, sizeof peer), "accept");
  EXPECT_EQ(peer.ss_family, AF_INET);
  co_return descriptor(fd, listener.calls());
}

task<> serve_one(descriptor& listener) {
  descriptor peer = co_await accept_one(listener);
  std::array<std::byte, 5> bytes{};
  co_await test::receive_all(peer, bytes);
  co_await test::send_all(peer, bytes);
}

task<> ask_once(system_calls& calls, const listening_socket& server) {
  descriptor socket = tcp_socket(calls);
  co_await connect_to(socket, server.address, server.length);
  co_await test::send_all(socket, bytes_of("hello"));
  std::array<std::byte, 5> bytes{};
  co_await test::receive_all(socket, bytes);
  std::byte more{};
  const int end = checked_call(co_await receive_some(socket, std::span(&more, 1)), "receive");
  EXPECT_EQ(end, 0);
}

task<> one_exchange(system_calls& calls) {
  listening_socket server = listen_on_the_loopback(calls);
  co_await when_all(serve_one(server.socket), ask_once(calls, server));
}

// ---- sockets

TEST(event_driver, a_refused_connection_is_an_error) {
  const listening_socket nobody = bind_to_the_loopback(system_calls::kernel());
  const auto root = [&]() -> task<> {
    descriptor socket = tcp_socket();
    co_await connect_to(socket, nobody.address, nobody.length);
  };
  EXPECT_EQ(test::code_thrown_by([&] { test::run(root()); }), std::errc::connection_refused);
}

TEST(event_driver, a_call_on_a_descriptor_that_is_none_is_an_error) {
  const auto root = []() -> task<int> {
    descriptor closed(1 << 20, system_calls::kernel(), descriptor::borrowed);
    std::array<std::byte, 1> bytes{};
    co_return co_await receive_some(closed, bytes);
  };
  EXPECT_EQ(test::run(root()), -EBADF);
}

class both_sockets : public testing::TestWithParam<const char*> {
 protected:
  template <class Script>
  static void run(Script script) {
    test::run(with_timeout(1min, script()));
  }

  test::socket_pair pair_ = std::string_view(GetParam()) == "tcp" ? test::tcp_pair() : test::unix_pair();
};
INSTANTIATE_TEST_SUITE_P(event_driver, both_sockets, testing::Values("tcp", "unix"),
                         [](const auto& which) { return std::string(which.param); });

constexpr std::size_t large = std::size_t{8} * 1024 * 1024;

TEST_P_TASK(both_sockets, several_megabytes_pass_whole_to_a_slow_reader) {
  const auto write = [&]() -> task<> {
    std::vector<std::byte> bytes(large);
    test::fill(bytes, 1);
    co_await test::send_all(pair_.a, bytes);
  };
  const auto read_slowly = [&]() -> task<> {
    std::vector<std::byte> bytes(large);
    std::size_t have = 0;
    for (std::size_t piece = 1; have < large; piece = piece % 65536 + std::size_t{4096}) {
      const auto where = std::span(bytes).subspan(have, std::min(piece, large - have));
      have += static_cast<std::size_t>(checked_call(co_await receive_some(pair_.b, where), "receive"));
      co_await yield();
      co_await yield();
    }
    EXPECT_TRUE(test::holds(bytes, 1));
  };
  co_await when_all(write(), read_slowly());
}

TEST_P_TASK(both_sockets, data_and_the_end_that_came_together_are_both_seen) {
  const auto read = [&]() -> task<> {
    std::array<std::byte, 100> bytes{};
    EXPECT_EQ(co_await receive_some(pair_.b, bytes), 5);
    EXPECT_EQ(co_await receive_some(pair_.b, bytes), 0);
    EXPECT_EQ(co_await receive_some(pair_.b, bytes), 0);
  };
  const auto send_and_close = [&]() -> task<> {
    for (int i = 0; i < 3; ++i) co_await yield();  // the reader waits by now
    EXPECT_EQ(::send(pair_.a.fd(), "hello", 5, 0), 5);
    pair_.a.close();
  };
  co_await when_all(read(), send_and_close());
}

TEST_P_TASK(both_sockets, every_later_call_on_a_broken_connection_fails_as_well) {
  constexpr linger abortive{.l_onoff = 1, .l_linger = 0};
  std::array<std::byte, 100> bytes{};
  const auto read = [&]() -> task<> {
    while (co_await receive_some(pair_.b, bytes) > 0) {
    }
  };
  const auto abort = [&]() -> task<> {
    for (int i = 0; i < 3; ++i) co_await yield();
    ::setsockopt(pair_.a.fd(), SOL_SOCKET, SO_LINGER, &abortive, sizeof abortive);
    pair_.a.close();
  };
  co_await when_all(read(), abort());
  for (int i = 0; i < 3; ++i) {
    EXPECT_LE(co_await receive_some(pair_.b, bytes), 0);
    EXPECT_LT(co_await send_some(pair_.b, bytes), 0);
  }
}

TEST_P_TASK(both_sockets, a_receive_that_was_stopped_leaves_the_bytes_to_the_next) {
  std::array<std::byte, 100> bytes{};
  const auto receive = [&]() -> task<> { EXPECT_EQ(co_await receive_some(pair_.b, bytes), -ECANCELED); };
  for (int i = 0; i < 10; ++i) {
    co_await test::run_for_turns(i, receive());
    EXPECT_EQ(::send(pair_.a.fd(), "hello", 5, 0), 5);
    EXPECT_EQ(co_await receive_some(pair_.b, bytes), 5);
  }
}

TEST_P_TASK(both_sockets, a_send_that_was_stopped_has_sent_a_part_or_nothing) {
  const std::vector<std::byte> bytes(large);
  std::size_t sent = 0;
  const auto send = [&]() -> task<> {
    for (;;) {
      const int result = co_await send_some(pair_.a, bytes);
      if (result < 0) co_return;
      sent += static_cast<std::size_t>(result);
    }
  };
  co_await with_timeout(5ms, send());
  ::shutdown(pair_.a.fd(), SHUT_WR);
  std::vector<std::byte> into(large);
  std::size_t received = 0;
  for (;;) {
    const int result = co_await receive_some(pair_.b, into);
    EXPECT_GE(result, 0);
    if (result <= 0) break;
    received += static_cast<std::size_t>(result);
  }
  EXPECT_GE(received, sent);
  EXPECT_GT(received, 0U);
}

TEST_P_TASK(both_sockets, both_directions_are_used_at_once) {
  const auto talk = [](descriptor& mine) -> task<> {
    const auto write = [&]() -> task<> {
      const std::vector<std::byte> bytes(large / 4);
      co_await test::send_all(mine, bytes);
    };
    const auto read = [&]() -> task<> {
      std::vector<std::byte> bytes(large / 4);
      co_await test::receive_all(mine, bytes);
    };
    co_await when_all(write(), read());
  };
  co_await when_all(talk(pair_.a), talk(pair_.b));
}

TASK_TEST(event_driver, an_accept_that_was_stopped_leaves_the_connection_to_the_next) {
  listening_socket server = listen_on_the_loopback(system_calls::kernel());
  const auto accept = [&]() -> task<> {
    const result<descriptor> accepted = co_await as_result(accept_one(server.socket));
    EXPECT_FALSE(accepted);
  };
  co_await test::run_for_turns(1, accept());
  co_await when_all(serve_one(server.socket), ask_once(system_calls::kernel(), server));
}

TEST(event_driver, a_connect_that_nobody_answers_can_be_stopped) {
  listening_socket server = listen_on_the_loopback(system_calls::kernel(), 0);
  std::vector<descriptor> fillers;  // fill the backlog, so that further requests are dropped
  for (int i = 0; i < 4; ++i) {
    fillers.push_back(tcp_socket(system_calls::kernel(), SOCK_NONBLOCK));
    ::connect(fillers.back().fd(), reinterpret_cast<sockaddr*>(&server.address), server.length);
  }
  const auto root = [&]() -> task<> {
    descriptor socket = tcp_socket();
    co_await with_timeout(5ms, connect_to(socket, server.address, server.length));
  };
  EXPECT_EQ(test::code_thrown_by([&] { test::run(root()); }), errc::timed_out);
}

TEST(event_driver, told_to_forget_a_descriptor_that_it_does_not_know_still_lets_go_of_the_others) {
  listening_socket server = listen_on_the_loopback(system_calls::kernel());
  descriptor unknown = tcp_socket();
  test::run([&]() -> task<> {
    EXPECT_FALSE(co_await as_result(with_timeout(1ms, accept_one(server.socket))));
    executor_core::current()->io().forget(unknown);
  }());
  server.socket.close();  // the driver has gone
}

// Lets go of other descriptors when it completes.
class farewell final : public io_operation {
 public:
  farewell(descriptor& where, std::deque<test::socket_pair>& others, event& done)
      : io_operation(io_kind::readable), others_(others), done_(done) {
    target = &where;
  }

 private:
  void complete(int result) noexcept override {
    EXPECT_GT(result, 0);
    others_.clear();
    done_.set();
  }

  std::deque<test::socket_pair>& others_;
  event& done_;
};

TASK_TEST(event_driver, a_completion_may_be_the_end_of_descriptors_of_which_the_kernel_has_told_at_once) {
  test::socket_pair sockets = test::unix_pair();
  std::deque<test::socket_pair> others;
  for (int i = 0; i < 8; ++i) others.push_back(test::unix_pair());
  // Known to the driver, with nothing in progress on them.
  for (auto& [a, b] : others) {
    std::array<std::byte, 1> byte{};
    co_await test::send_all(b, bytes_of("x"));
    checked_call(co_await receive_some(a, byte), "receive");
  }
  event done;
  farewell last(sockets.a, others, done);
  core_of(*executor::current()).io().start(last);
  for (std::size_t i = 0; i < others.size(); ++i) {
    if (i == others.size() / 2) co_await test::send_all(sockets.b, bytes_of("z"));
    co_await test::send_all(others[i].b, bytes_of("y"));
  }
  co_await done.wait();
  EXPECT_TRUE(others.empty());
}

TEST(event_driver, more_operations_than_a_ring_has_entries_all_complete) {
  constexpr std::size_t pairs = 700;
  std::vector<test::socket_pair> sockets;
  for (std::size_t i = 0; i < pairs; ++i) sockets.push_back(test::unix_pair());
  std::size_t received = 0;
  const auto receive = [&](descriptor& where) -> task<> {
    std::array<std::byte, 8> bytes{};
    received += static_cast<std::size_t>(checked_call(co_await receive_some(where, bytes), "receive"));
  };
  std::vector<task<>> tasks;
  for (auto& [a, b] : sockets) tasks.push_back(receive(a));
  for (auto& [a, b] : sockets) tasks.push_back(test::send_all(b, bytes_of("x")));
  test::run(when_all(std::move(tasks)));
  EXPECT_EQ(received, pairs);
}

class wait_for_readiness final : public io_operation {
 public:
  explicit wait_for_readiness(descriptor& where) : io_operation(io_kind::readable) { target = &where; }

 private:
  void complete(int) noexcept override {}
};

TEST(event_driver_death, an_operation_destroyed_in_progress_ends_the_program_with_its_name) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto destroy = [] {
    auto [left, right] = test::tcp_pair();
    test::run([&]() -> task<> {
      wait_for_readiness operation(left);
      executor_core::current()->io().start(operation);
      co_return;
    }());
  };
  EXPECT_DEATH(destroy(), "a wait for readiness was destroyed in progress");
}

TEST(event_driver_death, a_ring_that_takes_no_operations_ends_the_program_with_words) {
  if (executor().driver() != "io_uring") GTEST_SKIP() << "there is no ring";
  const auto misuse = [] {
    auto [left, right] = test::unix_pair();
    const auto driver = open_driver(driver_choice::io_uring, system_calls::kernel(), nullptr);
    std::deque<wait_for_readiness> waits;                                    // more than it has entries
    for (int i = 0; i < 1000; ++i) driver->start(waits.emplace_back(left));  // no thread is attached: it is not enabled
  };
  EXPECT_DEATH(misuse(), "an io_uring takes no operations: io_uring_enter failed with errno 77");
}

// ---- faults

TEST(event_driver, every_system_call_that_fails_once_is_a_clean_error_or_goes_unnoticed) {
  int errors = 0;
  for (std::size_t due = 1;; ++due) {
    ASSERT_LT(due, 1000U) << "the exchange does not end";
    test::failing_system_calls calls{{.of = test::system_call_set::all(), .number = EIO, .after = due - 1, .times = 1}};
    const auto failure = test::failure_thrown_by([&] {
      executor home({.system_calls = &calls});
      home.run(one_exchange(calls));
    });
    if (failure) {
      ++errors;
      EXPECT_TRUE(failure->code() == std::errc::io_error || failure->code() == errc::peer_closed ||
                  failure->code() == std::errc::connection_reset)
          << "call " << due << ": " << failure->what();
    }
    if (!calls.has_failed()) {
      EXPECT_FALSE(failure);
      break;
    }
  }
  EXPECT_GE(errors, 6);
}

TEST(event_driver, a_kernel_without_epoll_pwait2_gets_epoll_wait) {
  using test::system_call;
  for (const int failure : {ENOSYS, EPERM}) {
    test::failing_system_calls calls{{.of = system_call::epoll_pwait2, .number = failure},
                                     {.of = system_call::epoll_wait}};
    executor home({.policy = poll_policy::sleep, .driver = driver_choice::epoll, .system_calls = &calls});
    home.run(one_exchange(calls));
    const auto nap = []() -> task<> {
      const time_point start = executor::current()->now();
      co_await sleep_for(1500us);
      EXPECT_GE(executor::current()->now() - start, 1500us);
    };
    const std::size_t before = calls.made(1);
    home.run(nap());
    // Milliseconds rounded down would mean half a millisecond of calls that do not wait: a hundred and more.
    EXPECT_LE(calls.made(1) - before, 16U) << "woken too early, again and again";
    EXPECT_EQ(calls.made(0), 1U);
  }
}

// ---- which driver

TEST(event_driver, is_the_one_that_the_environment_asks_for) {
  const char* const wanted = std::getenv("WEFT_EVENT_DRIVER");
  const executor home;
  if (wanted == nullptr && home.driver() == "epoll") {
    EXPECT_NE(home.driver_reason().find("io_uring"), std::string::npos);
  } else {
    EXPECT_EQ(home.driver(), wanted != nullptr ? wanted : "io_uring");
    EXPECT_EQ(home.driver_reason(), "");
  }
}

class environment_override : private test::immovable {
 public:
  explicit environment_override(const char* value) {
    if (const char* const before = std::getenv("WEFT_EVENT_DRIVER")) before_ = before;
    set(value);
  }
  ~environment_override() { set(before_ ? before_->c_str() : nullptr); }

 private:
  static void set(const char* value) {
    value != nullptr ? ::setenv("WEFT_EVENT_DRIVER", value, 1) : ::unsetenv("WEFT_EVENT_DRIVER");
  }
  std::optional<std::string> before_;
};

TEST(event_driver, falls_back_to_epoll_where_io_uring_is_forbidden_and_says_why) {
  const environment_override automatic(nullptr);
  for (const auto& [failure, words] : {std::pair(EPERM, "seccomp"), std::pair(ENOSYS, "kernel")}) {
    test::failing_system_calls calls{{.of = test::system_call::permit_io_uring, .number = failure, .times = 1}};
    executor home({.system_calls = &calls});
    EXPECT_EQ(home.driver(), "epoll");
    EXPECT_NE(home.driver_reason().find(words), std::string::npos) << home.driver_reason();
    home.run(one_exchange(calls));
  }
}

TEST(event_driver, one_asked_for_by_name_that_cannot_be_had_is_an_error) {
  test::failing_system_calls calls{{.of = test::system_call::permit_io_uring, .number = EPERM}};
  executor_options chosen{.driver = driver_choice::io_uring, .system_calls = &calls};
  EXPECT_EQ(test::code_thrown_by([&] { executor home(chosen); }), std::errc::operation_not_permitted);
}

TEST(event_driver, nonsense_in_the_environment_is_an_error_that_quotes_it) {
  const environment_override nonsense("kqueue");
  EXPECT_TRUE(test::failed_with(test::failure_thrown_by([&] { executor home; }), errc::invalid_argument, "\"kqueue\""));
  executor_options chosen;
  chosen.driver = driver_choice::epoll;  // asked for in the program: the environment does not matter
  EXPECT_EQ(executor(chosen).driver(), "epoll");
}

// Forbids one system call to this process for good; see seccomp(2).
bool forbid(unsigned call) {
  std::array filter{
      sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{.len = filter.size(), .filter = filter.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST(event_driver_death, falls_back_where_any_one_of_the_three_calls_of_io_uring_is_forbidden) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto use = [](unsigned call) {
    ::unsetenv("WEFT_EVENT_DRIVER");
    if (!forbid(call)) std::_Exit(2);
    executor home;
    if (home.driver() != "epoll" || home.driver_reason().empty()) std::_Exit(3);
    home.run(one_exchange(system_calls::kernel()));
    std::_Exit(0);
  };
  EXPECT_EXIT(use(SYS_io_uring_setup), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(use(SYS_io_uring_enter), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(use(SYS_io_uring_register), testing::ExitedWithCode(0), "");
}

// ---- cost

// System calls per message, both ends together, with receives of so many bytes.
double system_calls_per_message(std::size_t receive_bytes) {
  constexpr int rounds = 1000;
  executor home({.policy = poll_policy::sleep});
  auto [left, right] = test::tcp_pair();
  const auto talk = [&](descriptor& mine, bool first) -> task<> {
    std::vector<std::byte> bytes(receive_bytes);
    const auto message = std::span(bytes).first(64);
    for (int i = 0; i < rounds; ++i) {
      if (first) co_await test::send_all(mine, message);
      EXPECT_EQ(co_await receive_some(mine, bytes), 64);
      if (!first) co_await test::send_all(mine, message);
    }
  };
  home.run(when_all(talk(left, true), talk(right, false)));
  return static_cast<double>(core_of(home).io().kernel_entries()) / (2 * rounds);
}

TEST(event_driver, a_message_costs_at_most_two_system_calls_at_each_end) {
  EXPECT_LE(system_calls_per_message(64), 4.02);
}

TEST(event_driver, a_message_smaller_than_the_receive_costs_three_system_calls_in_all) {
  EXPECT_LE(system_calls_per_message(4096), 3.02);
}

}  // namespace
}  // namespace weft
