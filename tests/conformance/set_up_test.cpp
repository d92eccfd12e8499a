// SPDX-License-Identifier: Apache-2.0
// Connecting and listening: what goes wrong is named, and troubles nobody else.
#include <fmt/core.h>

#include <arpa/inet.h>
#include <netinet/in.h>

#include "peers.hpp"

namespace weft::test {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

bool has_ipv6() {
  const int fd = ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_loopback;
  const bool bound = fd >= 0 && ::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  if (fd >= 0) ::close(fd);
  return bound;
}

class set_up : public peers {
 protected:
  task<net::listener> listen(net::listener_options how = {}) { return device().listen(GetParam().any_address, how); }
  task<net::connection> connect(const net::listener& to, net::connection_options how = options()) {
    return device().connect(std::string(to.address()), how);
  }
  /// Of a connection: receive_depth, and what needs no credit. One is for word of writes, where no fabric sees them.
  [[nodiscard]] std::size_t receives_of(const net::connection_options& how) {
    const bool has_rails = device().name().find('+') != std::string_view::npos;
    return how.receive_depth + (device().domain().capabilities().gates && !has_rails ? 5u : 6u);
  }
};
WEFT_ON_EVERY_TRANSPORT(set_up);

TEST_P_TASK(set_up, a_port_where_nobody_listens_is_refused_by_name) {
  std::string address;
  {
    const auto listener = co_await listen();
    address = listener.address();
  }
  const auto failure = co_await failure_of(device().connect(address));
  EXPECT_TRUE(failed_with(failure, std::errc::connection_refused, address));
  EXPECT_TRUE(says(failure, "over " + std::string(device().name())));
}

TEST_P_TASK(set_up, an_address_that_is_none_is_refused) {
  for (const char* const address : {"", "nonsense", "127.0.0.1", "127.0.0.1:", "127.0.0.1:no-such-port", "[::1"}) {
    EXPECT_EQ(co_await code_of(device().connect(address)), errc::invalid_address) << address;
    EXPECT_EQ(co_await code_of(device().listen(address)), errc::invalid_address) << address;
  }
}

TEST_P_TASK(set_up, both_families_names_and_ports_of_the_systems_choice_work) {
  const std::string own = GetParam().any_address;
  // An RNIC's listener for every address need not hear its own machine: siw's hears what comes in by its interface.
  const std::vector<std::string> of_a_device =
      is_rnic() ? std::vector{own} : std::vector<std::string>{own, "0.0.0.0:0", "[::]:0", ":0"};
  const std::vector<std::string> of_tcp = {"127.0.0.1:0", "0.0.0.0:0", "[::1]:0", "[::]:0", ":0", "localhost:0"};
  for (const std::string& listening : GetParam().over_tcp ? of_tcp : of_a_device) {
    if (listening.starts_with("[") && !has_ipv6()) continue;
    auto listener = co_await device().listen(listening);
    const std::string address(listener.address());
    const std::string port = address.substr(address.rfind(':') + 1);
    EXPECT_NE(port, "0") << address;
    const bool six = listening.starts_with("[::1]");
    // A name has the address of either family, as the system has it.
    const std::string heard = listening.starts_with("localhost") ? address.substr(0, address.rfind(':') + 1)
                              : six                              ? "[::1]:"
                                                                 : "127.0.0.1:";
    const std::vector<std::string> device_hosts = {own.substr(0, own.rfind(':') + 1)};
    const std::vector<std::string> tcp_hosts = {heard, six ? ":" : "localhost:"};
    for (const std::string& host : GetParam().over_tcp ? tcp_hosts : device_hosts) {
      const auto [client, server] =
          co_await when_all(device().connect(host + port, options()), accept_one(listener, options()));
      EXPECT_TRUE(client.peer().ends_with(':' + port)) << client.peer();
    }
  }
}

TEST_P_TASK_WHERE(set_up, a_listener_for_every_address_takes_both_families, has_ipv6() && GetParam().over_tcp,
                  "this machine has no IPv6, or the loopback is none of the device's") {
  for (const std::string everywhere : {"[::]:0", ":0"}) {
    auto listener = co_await device().listen(everywhere);
    const std::string address(listener.address());
    for (const std::string host : {"127.0.0.1", "[::1]"}) {
      static_cast<void>(co_await when_all(device().connect(host + address.substr(address.rfind(':')), options()),
                                          accept_one(listener, options())));
    }
  }
}

TEST_P_TASK(set_up, an_address_in_use_is_refused_to_a_second_listener) {
  const auto first = co_await listen();
  EXPECT_TRUE(
      failed_with(co_await failure_of(device().listen(std::string(first.address()))), std::errc::address_in_use));
}

TEST_P_TASK(set_up, a_listener_that_does_not_answer_costs_the_set_up_timeout) {
  const auto listener = co_await listen();  // and nobody calls next()
  const auto hasty = options({.set_up_timeout = 20ms});
  EXPECT_TRUE(failed_with(co_await failure_of(connect(listener, hasty)), errc::timed_out));
}

TEST_P_TASK(set_up, a_connect_can_be_stopped) {
  const auto listener = co_await listen();
  attempt connecting(tasks, connect(listener));
  co_await settle();
  EXPECT_EQ(co_await code_once_stopped(connecting), errc::canceled);
}

TEST_P_TASK(set_up, a_rejected_peer_learns_it_with_the_private_data) {
  auto listener = co_await listen();
  attempt connecting(tasks, connect(listener));
  auto request = co_await listener.next();
  co_await request->reject(bytes_of("no more than ten"));
  EXPECT_EQ(co_await code_of(connecting), errc::peer_rejected);
  EXPECT_NE(connecting.words().find("no more than ten"), std::string::npos) << connecting.words();
}

TEST_P_TASK(set_up, a_request_is_answered_once) {
  auto listener = co_await listen();
  attempt connecting(tasks, connect(listener));
  auto request = co_await listener.next();
  const auto accepted = co_await request->accept(options());
  EXPECT_EQ(co_await code_of(request->accept(options())), errc::invalid_argument);
  EXPECT_EQ(co_await code_of(request->reject()), errc::invalid_argument);
  EXPECT_TRUE(request->peer().empty() && request->private_data().empty());
  co_await connecting.end();
}

TEST_P_TASK(set_up, a_request_need_not_outlive_the_beginning_of_its_answer) {
  auto listener = co_await listen();
  attempt connecting(tasks, connect(listener));
  auto request = co_await listener.next();
  auto accepting = request->accept(options());
  request.reset();
  const auto peer = co_await std::move(accepting);
  EXPECT_TRUE(co_await succeeds(connecting));

  attempt rejected(tasks, connect(listener));
  request = co_await listener.next();
  { const auto never_awaited = request->accept(options()); }
  EXPECT_EQ(co_await code_of(rejected), errc::peer_rejected) << rejected.words();
}

TEST_P_TASK(set_up, private_data_goes_both_ways) {
  auto listener = co_await listen();
  const std::string question(28, 'q');
  const std::string answer = "a";
  const auto asking = options({.private_data = bytes_of(question)});
  const auto answering = options({.private_data = bytes_of(answer)});
  const auto serve = [&]() -> task<net::connection> {
    auto request = co_await listener.next();
    EXPECT_EQ(text_of(request->private_data()), question);
    EXPECT_FALSE(request->peer().empty());
    co_return co_await request->accept(answering);
  };
  const auto [server, client] = co_await when_all(serve(), connect(listener, asking));
  EXPECT_EQ(text_of(server.peer_private_data()), question);
  EXPECT_EQ(text_of(client.peer_private_data()), answer);
}

TEST_P(set_up, profiles_meet_as_what_both_of_them_speak) {
  const std::string question(28, 'q');
  const std::string answer(28, 'a');
  for (const auto asking : {net::profile::native, net::profile::interop}) {
    for (const auto answering : {net::profile::native, net::profile::interop}) {
      const auto client_options = options({.profile = asking, .private_data = bytes_of(question)});
      const auto server_options = options({.profile = answering, .private_data = bytes_of(answer)});
      const bool native = asking == net::profile::native && answering == net::profile::native;
      between_peers(
          [&](net::connection& client, net::connection& server) -> task<> {
            for (const net::connection* const end : {&client, &server}) {
              EXPECT_EQ(end->capabilities().native, native);
              EXPECT_EQ(end->capabilities().orderly_close, native);
            }
            // Connection managers of devices pad what they carry, and only weft says how much it was.
            const auto said = [&](std::span<const std::byte> data) {
              std::string text = text_of(data);
              if (!GetParam().keeps_length_of_private_data) text.resize(text.find_last_not_of('\0') + 1);
              return text;
            };
            EXPECT_EQ(said(server.peer_private_data()), question);
            EXPECT_EQ(said(client.peer_private_data()), answer);
            for (unsigned i = 0; i < 40; ++i) {  // more than there are receives
              auto payload = co_await filled(pool(), 100, i);
              co_await client.send(std::move(payload));
              auto message = co_await server.recv_or_throw();
              EXPECT_TRUE(holds(message.bytes(), i));
              co_await server.send(std::move(message.payload));
              EXPECT_TRUE(holds((co_await client.recv_or_throw()).bytes(), i));
            }
          },
          client_options, server_options);
    }
  }
}

TEST_P_TASK(set_up, too_much_private_data_is_refused) {
  auto listener = co_await listen();
  const std::string much(29, 'x');
  const auto asking = options({.private_data = bytes_of(much)});
  EXPECT_EQ(co_await code_of(connect(listener, asking)), errc::invalid_argument);
  attempt connecting(tasks, connect(listener));
  auto request = co_await listener.next();
  EXPECT_EQ(co_await code_of(request->reject(bytes_of(much))), errc::invalid_argument);
  co_await connecting.end();
  EXPECT_TRUE(connecting.code());
}

TEST_P_TASK(set_up, options_that_make_no_sense_are_refused) {
  auto listener = co_await listen();
  for (const auto& wrong : {options({.receive_depth = 0}), options({.send_depth = 0}),
                            options({.send_depth = net::max_depth + 1}), options({.receive_size = 0xFFFFFFFF})}) {
    EXPECT_EQ(co_await code_of(connect(listener, wrong)), errc::invalid_argument);
  }
}

TEST_P_TASK(set_up, times_without_end_are_no_end) {
  const auto patient = options(
      {.set_up_timeout = std::chrono::milliseconds::max(), .dead_peer_after = std::chrono::milliseconds::max()});
  auto listener = co_await listen({.set_up_timeout = std::chrono::milliseconds::max()});
  static_cast<void>(co_await when_all(accept_one(listener, patient), connect(listener, patient)));
}

TEST_P_TASK(set_up, a_listener_without_room_for_half_open_peers_has_room_for_one) {
  auto listener = co_await listen({.max_half_open = 0});
  for (int i = 0; i < 3; ++i) static_cast<void>(co_await when_all(listener.accept(options()), connect(listener)));
}

TEST_P(set_up, the_deepest_queues_that_the_options_allow_work) {
  auto deep = options({.receive_size = 1});
  // A device has limits of its own: with Soft-RoCE one completion queue takes both.
  deep.receive_depth = GetParam().deepest_queue;
  deep.send_depth = deep.receive_depth;
  between_peers(
      [&](net::connection& client, net::connection& server) -> task<> {
        auto payload = co_await filled(pool(), 1, 1);
        co_await client.send(payload);
        static_cast<void>(co_await server.recv_or_throw());
        co_await server.send(payload);
        static_cast<void>(co_await client.recv_or_throw());
      },
      deep, deep);
}

constexpr std::size_t mib = std::size_t{1} << 20;

const mr::pool_options roomy{.max_bytes = 8 * mib, .arena_bytes = mib};

TEST_P_ON_DEVICE(set_up, receive_buffers_that_cannot_be_had_are_waited_for_no_longer_than_the_set_up_may_take, tight) {
  const auto held = co_await pool().allocate(mib, mr::budget::receive);
  auto listener = co_await listen();
  const auto greedy = options({.receive_size = 60'000, .receive_depth = 26, .set_up_timeout = 20ms});
  const std::string words = fmt::format(
      "wait for {} receive buffers of 60012 bytes, of the 2097152 that the pool has: 1048576 of at most 2097152 bytes "
      "are in use",
      receives_of(greedy));
  EXPECT_TRUE(failed_with(co_await failure_of(connect(listener, greedy)), errc::timed_out, words));

  attempt connecting(tasks, connect(listener));
  auto request = co_await listener.next();
  EXPECT_TRUE(failed_with(co_await failure_of(request->accept(greedy)), errc::timed_out));
  co_await connecting.end();
}

TEST_P_ON_DEVICE(set_up, receive_buffers_that_the_pool_can_never_have_are_refused_at_once, tight) {
  auto listener = co_await listen();
  const auto greedy =
      options({.receive_size = 300'000, .receive_depth = 100, .set_up_timeout = std::chrono::milliseconds::max()});
  const std::string words = fmt::format(
      "{} receive buffers of 300012 bytes, of the 2097152 that the pool has for receives: there is room for 6",
      receives_of(greedy));
  EXPECT_TRUE(failed_with(co_await failure_of(connect(listener, greedy)), errc::no_memory, words));
}

TEST_P_ON_DEVICE(set_up, that_fail_for_want_of_receives_tell_the_peer, tight) {
  auto listener = co_await listen();
  const auto turn_away = [&](net::connection_options how, errc reason) -> task<> {
    attempt connecting(tasks, connect(listener));
    auto request = co_await listener.next();
    EXPECT_TRUE(failed_with(co_await failure_of(request->accept(how)), reason));
    EXPECT_EQ(co_await code_of(connecting), std::errc::no_buffer_space);
    EXPECT_NE(connecting.words().find("the peer has no receives left"), std::string::npos) << connecting.words();
  };
  auto greedy = options({.receive_size = 300'000, .receive_depth = 100});
  co_await turn_away(greedy, errc::no_memory);
  const auto held = co_await pool().allocate(mib, mr::budget::receive);
  greedy.receive_size = 60'000;
  greedy.receive_depth = 26;
  greedy.set_up_timeout = 20ms;
  co_await turn_away(greedy, errc::timed_out);
}

TEST_P_ON_DEVICE(set_up, that_want_more_than_twice_the_receives_that_the_pool_can_have_are_refused_at_once, tight) {
  const auto held = co_await pool().allocate(mib, mr::budget::receive);
  const auto small = options({.receive_size = 64, .receive_depth = 2});
  const auto greedy =
      options({.receive_size = 60'000, .receive_depth = 26, .set_up_timeout = std::chrono::milliseconds::max()});
  auto listener = co_await listen();
  attempt connecting(tasks, connect(listener, small));  // before anybody waits for the pool
  auto request = co_await listener.next();
  const auto try_to_connect = [&]() -> task<> { static_cast<void>(co_await code_of(connect(listener, small))); };
  for (int i = 0; i < 3; ++i) tasks.spawn(try_to_connect());
  auto one = co_await listener.next();
  auto other = co_await listener.next();
  auto late = co_await listener.next();
  const auto until_two_wait = [&]() -> task<> {
    while (pool().statistics().receive.waiting != 2) co_await yield();
  };
  attempt first(tasks, one->accept(greedy));
  attempt second(tasks, other->accept(greedy));
  co_await until_two_wait();

  const auto refused = co_await failure_of(request->accept(greedy));
  EXPECT_TRUE(
      failed_with(refused, errc::no_memory, "for 1 such connections at a time, and as many already wait for receives"));
  EXPECT_EQ(co_await code_of(connecting), std::errc::no_buffer_space);

  first.stop();
  co_await first.end();
  attempt third(tasks, late->accept(greedy));
  co_await until_two_wait();
  second.stop();
  third.stop();
  co_await second.end();
  EXPECT_EQ(co_await code_of(third), errc::canceled);
}

TEST_P_TASK(set_up, beyond_the_connections_that_a_listener_takes_are_told_so_until_one_has_closed) {
  auto listener = co_await listen({.max_connections = 2});
  connected first = co_await meet(listener);
  connected second = co_await meet(listener);
  const auto come_too_early = [&]() -> task<net::connection> {
    for (int i = 0; i < 2; ++i) {
      const auto failure = co_await failure_of(connect(listener));
      EXPECT_TRUE(failed_with(failure, std::errc::no_buffer_space, "the peer has its maximum of connections"));
    }
    co_await when_all(first.client.close(), first.server.close());
    co_return co_await connect(listener);
  };
  const auto third = co_await when_all(come_too_early(), accept_one(listener, options()));
  EXPECT_EQ(device().statistics().requests_failed, 2u);
  EXPECT_EQ(device().statistics().connections_opened, 6u);
}

TEST_P_TASK(set_up, that_come_to_nothing_leave_their_place_to_the_next_one) {
  auto listener = co_await listen({.max_connections = 1});
  const auto come = [&](auto answer) -> task<> {
    attempt connecting(tasks, connect(listener));
    auto request = co_await listener.next();
    co_await answer(*std::move(request));
    EXPECT_EQ(co_await code_of(connecting), errc::peer_rejected);
  };
  const auto drop = [](net::connection_request) -> task<> { co_return; };
  const auto reject = [](net::connection_request request) -> task<> { co_await request.reject(); };
  const auto fail = [](net::connection_request request) -> task<> {
    const auto wrong = options({.receive_depth = 0});
    EXPECT_EQ(co_await code_of(request.accept(wrong)), errc::invalid_argument);
  };
  for (int i = 0; i < 2; ++i) {
    co_await come(drop);
    co_await come(reject);
    co_await come(fail);
  }
  EXPECT_EQ(device().statistics().requests_failed, 0u);
}

TEST_P(set_up, that_leave_the_usual_pool_room_for_few_connections_warn_once_of_it) {
  const report_list reports;
  const auto large = options({.receive_size = 1 << 20});
  const auto meet = [&](net::connection_options how) -> task<> {
    auto listener = co_await listen();
    co_await when_all(connect(listener), accept_one(listener, how));
  };
  run([&]() -> task<> {
    co_await meet(options());
    EXPECT_TRUE(reports.take().empty());
    co_await meet(large);
    const auto said = reports.take();
    EXPECT_EQ(said.size(), 1u);
    EXPECT_TRUE(!said.empty() && said[0].kind == report_kind::warning &&
                said[0].text.find("has room for 4 connections at a time that are accepted with receive_size 1048576") !=
                    std::string::npos)
        << (said.empty() ? "" : said[0].text);
    co_await meet(large);
    EXPECT_TRUE(reports.take().empty());
  });
  open_device({.max_bytes = 200 * mib});
  run([&]() -> task<> {
    co_await meet(large);
    EXPECT_TRUE(reports.take().empty());
  });
}

// Or a set-up that a busy machine holds up would lose its place to the other.
class set_up_while_time_stands : public set_up {
 protected:
  set_up_while_time_stands() { open_executor({.clock = &time_}); }

  manual_clock time_;
};
WEFT_ON_EVERY_TRANSPORT(set_up_while_time_stands);

TEST_P_ON_DEVICE(set_up_while_time_stands, those_that_wait_for_receives_at_once_do_not_wait_for_each_other, tight) {
  const auto small = options({.receive_size = 64, .receive_depth = 2});
  const auto large = options({.receive_size = 60'000});
  const std::size_t bytes = 60'012;
  auto held =
      co_await pool().allocate_all(pool().max_buffers(bytes, mr::budget::receive) - 4, bytes, mr::budget::receive);
  auto listener = co_await listen();
  attempt first(tasks, connect(listener, small));
  attempt second(tasks, connect(listener, small));
  auto one = co_await listener.next();
  auto other = co_await listener.next();
  attempt accepting(tasks, one->accept(large));
  attempt other_accepting(tasks, other->accept(large));
  while (pool().statistics().receive.waiting != 2) co_await yield();
  while (!held.empty()) {
    held.pop_back();
    co_await settle();
  }
  EXPECT_TRUE(co_await succeeds(accepting));
  EXPECT_TRUE(co_await succeeds(other_accepting));
  co_await first.end();
  co_await second.end();
}

TEST_P_TASK(set_up, two_hundred_peers_at_once_are_all_served) {
  constexpr unsigned count = 200;
  auto listener = co_await listen();
  const auto small = options({.receive_size = 64, .receive_depth = 2, .set_up_timeout = 60s});
  const auto serve = [](net::connection_request request, net::connection_options how) -> task<> {
    auto peer = co_await request.accept(how);
    co_await echo(peer);
  };
  unsigned served = 0;
  const auto ask = [&](unsigned number) -> task<> {
    auto peer = co_await connect(listener, small);
    co_await peer.send(co_await filled(pool(), 33, number));
    EXPECT_TRUE(holds((co_await peer.recv_or_throw()).bytes(), number));
    co_await peer.close();
    if (++served == count) listener.close();
  };
  const auto all = [&](scope& crowd) -> task<> {
    for (unsigned i = 0; i < count; ++i) crowd.spawn(ask(i));
    while (auto request = co_await listener.next()) crowd.spawn(serve(*std::move(request), small));
  };
  co_await with_scope(on_failure::stop_siblings, all);
  EXPECT_EQ(served, count);
}

TEST_P_TASK(set_up, accepting_takes_one_peer_after_another) {
  auto listener = co_await listen();
  for (int i = 0; i < 3; ++i) {
    attempt connecting(tasks, connect(listener));
    auto peer = co_await listener.accept(options());
    EXPECT_TRUE(peer);
    EXPECT_TRUE(co_await succeeds(connecting));
  }
}

// Once the memory is free, there is enough for all: the clients, which have the same pool, may need some more of it for
// further rails before they are connected.
TEST_P_ON_DEVICE(set_up, that_wait_for_receives_do_not_hold_up_the_next_peer_to_be_accepted, roomy) {
  const auto large = options({.receive_size = 60'000, .receive_depth = 12, .set_up_timeout = forever});
  const auto small = options({.receive_size = 64, .receive_depth = 2, .set_up_timeout = forever});
  auto held = co_await pool().allocate_all(7, mib / 2, mr::budget::receive);
  auto listener = co_await listen();
  const auto accept = [&](net::connection_options how) -> task<> {
    auto peer = co_await listener.accept(how);
    EXPECT_TRUE(peer);
  };
  attempt slow(tasks, connect(listener, small));
  attempt waiting(tasks, accept(large));
  while (pool().statistics().receive.waiting == 0) co_await yield();
  attempt impatient(tasks, accept(large));
  waiting.stop();  // its peer's set-up goes on
  EXPECT_EQ(co_await code_of(waiting), errc::canceled);
  attempt quick(tasks, connect(listener, small));
  while (pool().statistics().receive.waiting != 2) co_await yield();
  held.clear();
  EXPECT_TRUE(co_await succeeds(impatient));
  co_await accept(large);
  EXPECT_TRUE(co_await succeeds(slow));
  EXPECT_TRUE(co_await succeeds(quick));
}

TEST_P_ON_DEVICE(set_up, a_peer_whose_set_up_fails_is_reported_and_the_next_one_is_accepted, tight) {
  const report_list reports;
  const auto large = options({.receive_size = 60'000, .receive_depth = 16, .set_up_timeout = 300ms});
  const auto small = options({.receive_size = 64, .receive_depth = 2});
  std::optional<mr::buffer> held(co_await pool().allocate(mib, mr::budget::receive));
  auto listener = co_await listen();
  std::optional<net::connection> peer;
  const auto accept = [&]() -> task<> { peer = co_await listener.accept(large); };
  attempt accepting(tasks, accept());
  EXPECT_EQ(co_await code_of(connect(listener, small)), std::errc::no_buffer_space);
  EXPECT_EQ(device().statistics().accepts_failed, 1u);
  EXPECT_FALSE(accepting.ended());
  held.reset();
  // A worker may take its time to give the memory back, and the end that accepts run out of time when the other has
  // connected already.
  while (!accepting.ended()) {
    auto made = co_await as_result(connect(listener, small));
    if (!made) continue;
    attempt hearing(tasks, made->recv());
    co_await settle();
    while (!accepting.ended() && !hearing.ended()) co_await yield();
    hearing.stop();
    co_await hearing.end();
  }
  EXPECT_TRUE(accepting.succeeded()) << accepting.words();
  const auto said = reports.take();
  EXPECT_TRUE(!said.empty() && said[0].kind == report_kind::failure && said[0].text.starts_with("accept "))
      << (said.empty() ? "" : said[0].text);
}

TEST_P_TASK(set_up, options_with_which_nobody_can_be_accepted_are_refused_at_once) {
  auto listener = co_await listen();
  const auto deaf = options({.receive_depth = 0});
  EXPECT_EQ(co_await code_of(listener.accept(deaf)), errc::invalid_argument);
  const auto greedy = options({.receive_size = 1 << 30});
  EXPECT_EQ(co_await code_of(listener.accept(greedy)), errc::no_memory);
  const std::string much(57, 'x');
  const auto talkative = options({.private_data = bytes_of(much)});
  EXPECT_EQ(co_await code_of(listener.accept(talkative)), errc::invalid_argument);
}

TEST_P_TASK(set_up, accepting_can_be_stopped_and_taken_up_again_or_left_to_requests) {
  auto listener = co_await listen();
  attempt waiting(tasks, listener.accept(options()));
  co_await settle();
  EXPECT_EQ(co_await code_once_stopped(waiting), errc::canceled);
  attempt first(tasks, connect(listener));
  auto request = co_await listener.next();
  EXPECT_TRUE(request);
  const auto one = co_await request->accept(options());
  attempt second(tasks, connect(listener));
  const auto other = co_await listener.accept(options());
  EXPECT_TRUE(other);
  EXPECT_TRUE(co_await succeeds(first));
  EXPECT_TRUE(co_await succeeds(second));
}

TEST_P_TASK(set_up, a_connection_that_nobody_has_taken_ends_with_its_listener) {
  std::optional<net::listener> listener(co_await listen());
  const auto accept = [&]() -> task<> { static_cast<void>(co_await listener->accept(options())); };
  attempt waiting(tasks, accept());
  attempt waiting_too(tasks, accept());
  auto first = co_await connect(*listener);
  auto second = co_await connect(*listener);
  co_await waiting.end();
  co_await waiting_too.end();
  attempt third(tasks, accept());
  attempt coming(tasks, connect(*listener));
  co_await settle();
  third.stop();
  co_await third.end();
  listener->close();
  listener.reset();
  co_await coming.end();  // wherever its set-up was, it does not wait in vain
}

TEST_P_TASK(set_up, closing_a_listener_ends_those_who_wait_for_a_peer) {
  auto listener = co_await listen();
  const auto wait = [&](bool accepts) -> task<> {
    if (accepts) {
      EXPECT_FALSE(co_await listener.accept(options()));
    } else {
      EXPECT_FALSE(co_await listener.next());
    }
  };
  std::vector<task<>> all;
  for (int i = 0; i < 4; ++i) all.push_back(wait(i % 2 == 0));
  attempt waiting(tasks, when_all(std::move(all)));
  co_await settle();
  listener.close();
  EXPECT_TRUE(co_await succeeds(waiting));
  co_await when_all(wait(true), wait(false));
  listener.close();
  EXPECT_EQ(device().statistics().accepts_failed, 0u);
}

TEST_P_TASK(set_up, waiting_for_a_peer_can_be_stopped_and_taken_up_again) {
  auto listener = co_await listen();
  attempt waiting(tasks, listener.next());
  co_await settle();
  EXPECT_EQ(co_await code_once_stopped(waiting), errc::canceled);
  attempt connecting(tasks, connect(listener));
  auto request = co_await listener.next();
  EXPECT_TRUE(request);
  const auto peer = co_await request->accept(options());
  EXPECT_TRUE(co_await succeeds(connecting));
}

TEST_P_TASK(set_up, peers_that_nobody_has_accepted_learn_that_the_listener_is_gone) {
  std::optional<net::listener> listener(co_await listen());
  attempt first(tasks, connect(*listener));
  attempt second(tasks, connect(*listener));
  auto request = co_await listener->next();
  co_await settle();
  listener.reset();
  auto peer = co_await request->accept(options());  // who has been taken is independent of the listener
  co_await first.end();
  co_await second.end();
  EXPECT_TRUE(first.succeeded() != second.succeeded());
  // The one whose request had come is rejected, one that was still on its way finds nobody: neither waits in vain.
  const std::error_code why = first.succeeded() ? second.code() : first.code();
  EXPECT_TRUE(why == errc::peer_rejected || why == std::errc::connection_refused ||
              why == std::errc::connection_reset || why == errc::peer_vanished)
      << why.message();
}

TEST_P(set_up, a_listener_may_outlive_the_run_in_which_it_waited) {
  std::optional<net::listener> listener;
  run([&]() -> task<> {
    listener.emplace(co_await listen());
    EXPECT_EQ(co_await code_of(with_timeout(1ms, listener->next())), errc::timed_out);
  });
  run([&]() -> task<> { static_cast<void>(co_await when_all(accept_one(*listener, options()), connect(*listener))); });
  listener.reset();
}

TEST_P(set_up, an_unknown_kind_of_device_is_refused_with_those_that_exist) {
  const auto failure = failure_thrown_by([] { return net::device::open("carrier-pigeon"); });
  EXPECT_TRUE(failed_with(failure, errc::not_supported, GetParam().device.substr(0, GetParam().device.find(':'))));
}

TEST_P(set_up, automatic_choice_takes_a_device_where_there_is_one) {
  const std::string chosen(net::device::open("auto").name());
  const bool is_fabric = GetParam().device.starts_with("fabric");  // which "auto" does not take
  const bool in_software = GetParam().over_tcp || !GetParam().over_a_network || is_fabric;
  const bool has_device = chosen.starts_with("verbs:") || chosen.starts_with("shm,verbs:");
  EXPECT_TRUE(has_device || (in_software && chosen == "shm,iwarp")) << chosen;
}

}  // namespace
}  // namespace weft::test
