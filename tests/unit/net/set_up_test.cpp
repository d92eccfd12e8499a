// SPDX-License-Identifier: Apache-2.0
// Set-ups with peers that know better: each ends by itself, in time, and troubles nobody else.
#include <weft/net/iwarp/mpa.hpp>
#include <weft/runtime/io/socket_address.hpp>

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <map>
#include <set>

#include "kit/attempt.hpp"
#include "kit/failing_system_calls.hpp"
#include "kit/held_mappings.hpp"
#include "net/support.hpp"

namespace weft::test {
namespace {

class listening : public net_test {};

/// TEST_F_TASK of a net_test with a listener.
#define TEST_F_LISTENING(fixture, name)                                                    \
  TEST_F_SCRIPT(fixture, name, (net::listener & listener, [[maybe_unused]] scope & tasks), \
                run(with_tasks([&](scope& tasks) -> task<> {                               \
                  auto listener = co_await listen();                                       \
                  co_await script(listener, tasks);                                        \
                })))

class connecting : public net_test {};

/// A peer made by hand that has asked `listener` for a connection.
raw_peer asking_peer(const net::listener& listener, std::span<const std::byte> request = request_frame()) {
  raw_peer raw = raw_peer::connect(listener.address());
  raw.send_now(request);
  return raw;
}

const char* const http_request = "GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: Mozilla/5.0\r\n\r\n";

TEST_F_LISTENING(listening, a_browsers_request_is_turned_away_at_once) {
  raw_peer browser = raw_peer::connect(listener.address());
  const bytes request = text(http_request);
  const auto talk = [&]() -> task<> {
    co_await browser.send(request);
    static_cast<void>(co_await browser.receive_rest());
  };
  co_await when_all(talk(), expect_service(listener));
}

TEST_F_LISTENING(listening, a_request_cut_at_any_byte_is_dropped) {
  const bytes request = request_frame();
  for (void (raw_peer::*const end)() noexcept : {&raw_peer::close, &raw_peer::reset}) {
    for (std::size_t size = 0; size < request.size(); ++size) {
      raw_peer raw = asking_peer(listener, std::span(request).first(size));
      (raw.*end)();
    }
  }
  co_await expect_service(listener);
}

TEST_F_LISTENING(listening, a_peer_that_says_nothing_keeps_nobody_waiting_and_is_dropped_in_time) {
  raw_peer silent = raw_peer::connect(listener.address());
  co_await expect_service(listener);
  let_set_ups_time_out();
  EXPECT_TRUE((co_await silent.receive_rest()).empty());
}

TEST_F_LISTENING(listening, half_open_peers_and_failed_set_ups_are_counted) {
  raw_peer silent = raw_peer::connect(listener.address());
  raw_peer browser = raw_peer::connect(listener.address());
  co_await expect_service(listener);
  EXPECT_EQ(device().statistics().half_open, 2u);
  const bytes request = text(http_request);
  co_await browser.send(request);
  static_cast<void>(co_await browser.receive_rest());
  EXPECT_EQ(device().statistics().half_open, 1u);
  EXPECT_EQ(device().statistics().requests_failed, 1u);
  let_set_ups_time_out();
  static_cast<void>(co_await silent.receive_rest());
  const net::device_statistics now = device().statistics();
  EXPECT_EQ(now.half_open, 0u);
  EXPECT_EQ(now.requests_failed, 2u);
  EXPECT_EQ(now.accepts_failed, 0u);
  metrics all;
  add_to(all, now, "here");
  EXPECT_NE(all.text().find("weft_set_ups_failed_total{device=\"here\",step=\"request\"} 2\n"), std::string::npos);
}

TEST_F_TASK(connecting, failures_to_connect_are_counted) {
  const auto refuse = [](raw_peer& raw) -> task<> {
    raw.reset();
    co_return;
  };
  EXPECT_TRUE(co_await connect_to(refuse));
  EXPECT_EQ(device().statistics().connects_failed, 1u);
  EXPECT_EQ(device().statistics().set_ups, 0u);
  EXPECT_EQ(device().statistics().connections_open(), 0u);
}

// The reply has been in the socket for nearly as long as this end has done something else.
TEST_F_TASK(connecting, with_a_reply_that_came_in_time_does_not_time_out_at_an_end_that_is_late_itself) {
  raw_listener listener;
  const auto serve = [&]() -> task<raw_peer> {
    raw_peer raw = co_await listener.accept();
    bytes first(1);
    co_await raw.receive(first);
    raw.send_now(reply_frame());
    let_set_ups_time_out();
    co_return raw;
  };
  const auto both = co_await when_all(failure_of(device().connect(listener.address())), serve());
  EXPECT_FALSE(std::get<0>(both)) << words_of(std::get<0>(both));
}

// The honest one comes from the same address as all of them.
TEST_F_TASK(listening, full_of_peers_that_say_nothing_it_lets_the_oldest_go_for_the_next_one) {
  auto listener = co_await listen({.set_up_timeout = 60s, .max_half_open = 4});
  std::vector<raw_peer> silent;
  for (std::size_t i = 0; i < 20; ++i) silent.push_back(raw_peer::connect(listener.address()));
  co_await expect_service(listener);
  static_cast<void>(co_await silent.front().receive_rest());
}

// An executor that is late finds the next peer first, and then what the one before has said for long.
TEST(half_open_peers, whose_requests_are_here_and_not_read_yet_keep_their_places) {
  manual_clock time;
  net::device device = net::device::open("iwarp");
  executor home({.clock = &time});
  const auto body = [&]() -> task<> {
    auto listener = co_await device.listen(own_loopback() + ":0", {.max_half_open = 1});
    const auto take = [&]() -> task<> {
      const auto request = co_await listener.next();
      EXPECT_TRUE(request);
    };
    const auto come = [&]() -> task<> {
      raw_peer first = raw_peer::connect(listener.address());
      while (device.statistics().half_open == 0) co_await yield();
      co_await settle();
      const raw_peer next = raw_peer::connect(listener.address());
      first.send_now(request_frame());
      time.advance(30ms);  // longer than a peer may be silent then
      co_await settle();
      EXPECT_EQ(device.statistics().requests_failed, 0u);
      listener.close();
    };
    co_await when_all(take(), come());
  };
  home.run(body());
}

// Each place that it takes from then on is one of its own.
TEST_F_TASK(listening, an_address_with_many_silent_peers_keeps_out_no_peer_of_another) {
  auto listener = co_await listen({.set_up_timeout = 60s, .max_half_open = 4});
  raw_peer other = raw_peer::connect(listener.address());  // from 127.0.0.1, and first
  std::vector<raw_peer> silent;
  for (std::size_t i = 0; i < 30; ++i) silent.push_back(raw_peer::connect(listener.address(), 0, "127.0.0.2"));
  const auto hold_out = [&]() -> task<> {
    for (std::size_t i = 0; i < 26; ++i) static_cast<void>(co_await silent[i].receive_rest());  // of 30 for 3 places
    other.send_now(request_frame());
  };
  const auto both = co_await when_all(listener.next(), hold_out());
  const auto& request = std::get<0>(both);
  EXPECT_TRUE(request && request->peer().starts_with("127.0.0.1:"));
}

// 127.0.0.1 is the lower of the two.
TEST_F_TASK(listening, of_addresses_with_equally_many_silent_peers_it_lets_the_oldest_peer_go) {
  auto listener = co_await listen({.set_up_timeout = 60s, .max_half_open = 2});
  raw_peer oldest = raw_peer::connect(listener.address(), 0, "127.0.0.2");
  raw_peer younger = raw_peer::connect(listener.address());
  raw_peer newcomer = raw_peer::connect(listener.address(), 0, "127.0.0.3");
  const auto hold_out = [&]() -> task<> {
    EXPECT_TRUE((co_await oldest.receive_rest()).empty());
    younger.send_now(request_frame());
  };
  const auto both = co_await when_all(listener.next(), hold_out());
  const auto& request = std::get<0>(both);
  EXPECT_TRUE(request && request->peer().starts_with("127.0.0.1:"));
}

// Peers that have been answered and do not go on, each of which has a place of a connection, and one that means well
// and comes last.
class silent_set_ups : public net_test {
 protected:
  static constexpr std::size_t count = 20;

  task<net::listener> listen_to_them(net::listener_options how) {
    auto listener = co_await listen(how);
    for (std::size_t i = 0; i < count; ++i) crowd_.push_back(asking_peer(listener));
    co_return listener;
  }
  /// Where all have come at once, there may be nobody yet who has been silent for long enough.
  task<> insist_on(std::string address) {
    while (const auto why = co_await failure_of(device().connect(address, patient))) {
      if (why->code() != std::errc::no_buffer_space) throw *why;
    }
  }
  /// By listener::accept().
  task<> expect_service_among_them(net::listener_options how) {
    auto listener = co_await listen_to_them(how);
    const auto both = co_await when_all(insist_on(std::string(listener.address())), listener.accept(patient));
    EXPECT_TRUE(std::get<1>(both).has_value());
  }

  static constexpr net::connection_options patient{.set_up_timeout = 60s};

 private:
  std::vector<raw_peer> crowd_;
};

TEST_F_TASK(silent_set_ups, give_their_places_in_accept_to_those_who_come) {
  co_await expect_service_among_them({.max_half_open = 4});
}

TEST_F_TASK(silent_set_ups, give_their_places_among_the_connections_to_those_who_come) {
  co_await expect_service_among_them({.max_connections = 4});
}

TEST_F_TASK(silent_set_ups, give_the_receives_of_a_full_pool_to_those_who_come) {
  const net::device_options small{.pool = {.max_bytes = std::size_t{1} << 20}};
  open_device(small);
  co_await expect_service_among_them({});
}

class growing_pool : private calls_of_a_fixture<held_mappings>, public net_test {
 protected:
  growing_pool() { open_device({.pool = {.max_bytes = 8 << 20, .arena_bytes = 1 << 20, .system_calls = &calls}}); }
  ~growing_pool() override { let_it_grow(); }
  void hold_growth() noexcept { calls.hold(); }
  void let_it_grow() noexcept { calls.let_go(); }
};

TEST_F_TASK(growing_pool, leaves_set_ups_that_wait_for_their_peers_their_receives) {
  constexpr net::connection_options patient{.set_up_timeout = 60s};
  constexpr net::connection_options greedy{.receive_size = 60'000, .receive_depth = 26, .set_up_timeout = 60s};
  auto listener = co_await listen();
  raw_peer slow = asking_peer(listener);
  auto one = co_await listener.next();
  attempt waiting(tasks, one->accept(patient));
  bytes reply(reply_frame().size());
  co_await slow.receive(reply);

  hold_growth();
  raw_peer next = asking_peer(listener);
  auto other = co_await listener.next();
  attempt growing(tasks, other->accept(greedy));
  while (pool().statistics().receive.waiting == 0) co_await yield();
  for (int i = 0; i < 5; ++i) {
    jump(200ms);
    co_await settle();
  }
  EXPECT_FALSE(waiting.ended()) << waiting.words();

  let_it_grow();
  co_await next.receive(reply);
  slow.close();
  next.close();
  co_await waiting.end();
  co_await growing.end();
  EXPECT_NE(waiting.code(), errc::timed_out) << waiting.words();
}

TEST_F_TASK(silent_set_ups, of_programs_that_accept_requests_themselves_give_their_places_too) {
  auto listener = co_await listen_to_them({.max_connections = 4});
  std::optional<net::connection> accepted;
  const auto accept_one = [&](net::connection_request request) -> task<> {
    try {
      accepted = co_await request.accept(patient);
      listener.close();
    } catch (const error&) {  // of those that have given way, and of the others in the end
    }
  };
  const auto accept_all = [&](scope& peers) -> task<> {
    while (auto request = co_await listener.next()) peers.spawn(accept_one(*std::move(request)));
    peers.request_stop();
  };
  static_cast<void>(
      co_await when_all(insist_on(std::string(listener.address())), with_scope(on_failure::report, accept_all)));
  EXPECT_TRUE(accepted);
}

TEST_F_TASK(listening, full_of_peers_that_say_nothing_it_takes_the_next_one_once_their_time_is_up) {
  const net::listener_options narrow{.max_half_open = 16};
  auto listener = co_await listen(narrow);
  std::vector<raw_peer> silent;
  for (std::size_t i = 0; i < narrow.max_half_open; ++i) silent.push_back(raw_peer::connect(listener.address()));
  // On a machine that is busy one of them has had its 25 ms, and this one its place, before all times are up.
  const auto insist = [&]() -> task<> {
    const std::string address(listener.address());
    while (co_await failure_of(device().connect(address, {.set_up_timeout = 60s}))) {
    }
  };
  const auto wait = [&]() -> task<> {
    co_await settle();
    let_set_ups_time_out();
    for (raw_peer& each : silent) static_cast<void>(co_await each.receive_rest());
  };
  co_await when_all(insist(), wait(), accept(listener, {.set_up_timeout = 60s}));
  co_await expect_service(listener);
}

TEST_F_TASK(listening, beyond_the_half_open_limit_requests_that_nobody_takes_wait_in_the_kernel) {
  const net::listener_options narrow{.max_half_open = 4};
  auto listener = co_await listen(narrow);
  std::vector<raw_peer> all;
  for (int i = 0; i < 20; ++i) all.push_back(asking_peer(listener));
  const std::size_t before = open_descriptors("socket:");
  for (int i = 0; i < 10; ++i) co_await settle();
  EXPECT_LE(open_descriptors("socket:") - before, narrow.max_half_open);
  for (int i = 0; i < 20; ++i) EXPECT_TRUE((co_await listener.next()).has_value());
  for (raw_peer& each : all) {
    const bytes said = co_await each.receive_rest();
    EXPECT_EQ(said.size(), net::iwarp::mpa::frame_header_bytes + net::iwarp::mpa::enhanced_bytes);  // a rejection
  }
}

TEST_F_LISTENING(listening, a_peer_that_is_accepted_and_says_nothing_more_ends_the_set_up_at_its_deadline) {
  raw_peer raw = asking_peer(listener);
  auto request = co_await listener.next();
  const auto wait = [&]() -> task<> {
    bytes reply(reply_frame().size() - greeting_bytes().size());
    co_await raw.receive(reply);
    EXPECT_EQ(device().statistics().set_ups, 1u);
    let_set_ups_time_out();
    static_cast<void>(co_await raw.receive_rest());
  };
  const auto both = co_await when_all(failure_of(request->accept()), wait());
  EXPECT_TRUE(failed_with(std::get<0>(both), errc::timed_out, "wait for the ready-to-receive message"));
  EXPECT_EQ(device().statistics().set_ups, 0u);
  EXPECT_EQ(device().statistics().accepts_failed, 1u);
}

// One peer is being set up, or one more waits for the place of one of them to be cleared.
TEST_F_TASK(listening, destroyed_with_silent_peers_it_leaves_nothing_behind) {
  const net::listener_options narrow{.max_half_open = 2};
  for (const std::size_t count : {1u, 5u}) {
    for (int turns = 0; turns < 20; ++turns) {
      std::vector<raw_peer> silent;
      std::optional<net::listener> listener(co_await listen(narrow));
      const auto end = [&]() -> task<> {
        co_await yield();
        while (silent.size() < count) silent.push_back(raw_peer::connect(listener->address()));
        for (int i = 0; i < turns; ++i) co_await yield();
        listener.reset();
        for (raw_peer& each : silent) static_cast<void>(co_await each.receive_rest());
      };
      co_await when_all(code_of(listener->next()), end());
    }
  }
}

TEST_F_LISTENING(listening, a_peer_that_goes_before_it_is_accepted_is_noticed_at_the_latest_on_the_connection) {
  raw_peer raw = asking_peer(listener);
  auto request = co_await listener.next();
  raw.reset();
  std::error_code code;
  try {
    auto peer = co_await request->accept();
    code = co_await code_of(peer.recv());
  } catch (const error& why) {
    code = why.code();
  }
  EXPECT_TRUE(code == errc::peer_vanished || code == std::errc::connection_reset || code == std::errc::broken_pipe)
      << code.message();
}

TEST_F_AGAINST_RAW(listening, what_a_weft_peer_does_not_say_it_can_do_is_refused) {
  EXPECT_TRUE(peer.capabilities().native);
  EXPECT_FALSE(peer.capabilities().atomics);
  const mr::remote_region there(1, 0, 8, mr::usage::atomic_dst);
  const auto added = co_await failure_of(peer.fetch_add(there, 1));
  EXPECT_TRUE(failed_with(added, errc::not_supported, "fetch_add"));
  EXPECT_FALSE(added && added->posted());
  EXPECT_TRUE(peer.capabilities().immediate);
  EXPECT_FALSE(peer.capabilities().write_immediate);
  auto note = co_await pool().allocate(8);
  const mr::remote_slice target(1, 0, 8, mr::usage::write_dst);
  const auto written = co_await failure_of(peer.write(note, target, {.immediate = 1}));
  EXPECT_TRUE(written && written->code() == errc::not_supported && !written->posted());
  EXPECT_TRUE(failed_with(co_await failure_of(peer.compare_swap(there, 1, 2)), errc::not_supported, "compare_swap"));
  raw.close();
}

// All that there will ever be.
TEST_F_AGAINST_RAW(listening, what_a_weft_peer_says_it_can_do_is_used, {.greeting = greeting_with(5, 0xFF)}) {
  EXPECT_TRUE(peer.capabilities().atomics);
  raw.close();
  co_return;
}

TEST_F_TASK(listening, a_foreign_peer_that_has_finished_sending_is_heard_on_a_device_of_several_rails) {
  net::device of_two = net::device::open("iwarp+iwarp");
  net::listener listener = co_await of_two.listen(own_loopback() + ":0");
  raw_peer raw = raw_peer::connect(listener.address());
  auto both = co_await when_all(raw.set_up(nothing), accept(listener));
  net::connection& peer = std::get<1>(both);
  raw.finish();
  EXPECT_FALSE(co_await peer.recv());
  auto note = co_await of_two.pool().allocate(8);
  co_await peer.send(std::move(note));
  const bytes last = co_await raw.receive_fpdu();
  EXPECT_EQ(last.size(), net::iwarp::untagged_header::bytes + 8);
}

TEST_F_AGAINST_RAW(listening, a_foreign_peer_may_send_more_than_there_are_receives_for, {.greeting = nothing}) {
  constexpr int count = 500;
  const auto send_all = [&]() -> task<> {
    const bytes body(1000, std::byte{3});
    for (int i = 0; i < count; ++i) co_await raw.send_message(body);
    raw.finish();
  };
  const auto receive_all = [&]() -> task<> {
    co_await settle();  // let it run full
    int received = 0;
    while (auto message = co_await peer.recv()) {
      EXPECT_EQ(message->size(), 1000u);
      ++received;
    }
    EXPECT_EQ(received, count);
  };
  co_await when_all(send_all(), receive_all());
}

TEST_F_TASK(connecting, to_a_web_server_names_the_wrong_protocol) {
  const bytes web_server = text("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n");
  EXPECT_TRUE(failed_with(co_await connect_to(web_server), errc::protocol_error, "MPA set-up"));
}

TEST_F_TASK(connecting, to_a_server_that_says_nothing_ends_at_the_deadline_and_names_the_step) {
  const auto silent = [&](raw_peer& raw) -> task<> {
    bytes request(request_frame().size());
    co_await raw.receive(request);
    let_set_ups_time_out();
    static_cast<void>(co_await raw.receive_rest());
  };
  EXPECT_TRUE(failed_with(co_await connect_to(silent), errc::timed_out, "wait for the MPA reply"));
}

TEST_F_TASK(connecting, a_reply_cut_at_any_byte_is_told_as_the_peers_end) {
  const bytes reply = reply_frame();
  for (std::size_t size = 0; size < reply.size(); ++size) {
    const auto cut = [&](raw_peer& raw) -> task<> {
      co_await raw.send(std::span(reply).first(size));
      raw.finish();
      static_cast<void>(co_await raw.receive_rest());
    };
    EXPECT_TRUE(failed_with(co_await connect_to(cut), errc::peer_vanished, "during the MPA set-up")) << size;
  }
}

TEST_F_TASK(connecting, a_reset_after_any_byte_is_told_as_such) {
  const bytes reply = reply_frame();
  for (std::size_t size = 0; size < reply.size(); ++size) {
    const auto cut = [&](raw_peer& raw) -> task<> {
      co_await raw.send(std::span(reply).first(size));
      raw.reset();
    };
    const auto failure = co_await connect_to(cut);
    EXPECT_TRUE(failure && (failure->code() == std::errc::connection_reset ||
                            failure->code() == std::errc::broken_pipe || failure->code() == errc::peer_vanished))
        << size << (failure ? failure->what() : "");
  }
}

TEST_F_TASK(connecting, a_rejection_shows_what_the_peer_says_about_it) {
  const auto failure = co_await connect_to(reply_frame(false, true));
  EXPECT_TRUE(failed_with(failure, errc::peer_rejected, "77656674"));  // "weft", in hexadecimal digits
}

TEST_F_TASK(connecting, bytes_right_behind_the_reply_belong_to_the_connection) {
  raw_listener listener;
  const auto serve = [&]() -> task<> {
    raw_peer raw = co_await listener.accept();
    // An early bird: allowed by nobody, and understood.
    bytes all = reply_frame();
    bytes body = trailer_bytes({.credits = greeted_depth});
    body.insert(body.begin(), std::byte{42});
    const bytes message = raw.fpdu(untagged_ulpdu({}, body));
    all.insert(all.end(), message.begin(), message.end());
    co_await raw.send(all);
    static_cast<void>(co_await raw.receive_rest());
  };
  const auto ask = [&]() -> task<> {
    auto peer = co_await device().connect(listener.address());
    const auto message = co_await peer.recv_or_throw();
    EXPECT_TRUE(message.size() == 1 && message.bytes()[0] == std::byte{42});
    peer.abort();
  };
  co_await when_all(serve(), ask());
}

// ---- the network in between

/// What this option is of the TCP connections of a family that this process has.
std::multiset<int> values_of(int level, int name, int family) {
  std::multiset<int> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename().string());
    sockaddr_storage peer{};
    socklen_t length = sizeof peer;
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) != 0 || peer.ss_family != family) continue;
    int value = -1;
    length = sizeof value;
    EXPECT_EQ(::getsockopt(fd, level, name, &value, &length), 0);
    found.insert(value);
  }
  return found;
}
std::multiset<int> traffic_classes(int family) {
  if (family == AF_INET6) return values_of(IPPROTO_IPV6, IPV6_TCLASS, family);
  return values_of(IPPROTO_IP, IP_TOS, family);
}

TEST_F_LISTENING(connecting, goes_out_from_the_address_and_port_that_it_is_told) {
  // A port that the system chooses for nobody: ip_local_port_range begins at 32768.
  for (const std::string_view source : {"127.0.0.2:0", "127.0.0.3:27111", "127.0.0.3:27111"}) {
    auto both =
        co_await when_all(device().connect(std::string(listener.address()), {.source = source}), accept(listener));
    const std::string_view seen = std::get<1>(both).peer();
    EXPECT_EQ(seen.substr(0, 10), source.substr(0, 10));
    EXPECT_EQ(seen == source, !source.ends_with(":0")) << seen;
    co_await std::get<0>(both).close();
  }
}

TEST_F_TASK(connecting, to_itself_is_to_find_that_nobody_listens) {
  const deserted_port own;
  const auto failure = co_await failure_of(device().connect(own.address(), {.source = own.address()}));
  EXPECT_TRUE(failed_with(failure, std::errc::connection_refused));
}

TEST_F_LISTENING(connecting, from_an_address_that_is_not_this_machines_or_none_says_so_and_asks_nobody) {
  const std::string to = "connect to " + std::string(listener.address()) + " over iwarp: ";
  const std::pair<std::string_view, std::string> refused[] = {
      {"192.0.2.1:0", to + "bind the source address 192.0.2.1:0: Cannot assign requested address"},
      {"127.0.0.2", to + "find the source address 127.0.0.2: not HOST:PORT (no port): not a usable address"},
      {"[::1]:0", to + "bind the source address: it is of another family than the peer's: not a usable address"},
  };
  for (const auto& [source, words] : refused) {
    const auto failure = co_await failure_of(device().connect(std::string(listener.address()), {.source = source}));
    EXPECT_EQ(std::string(failure ? failure->what() : ""), words);
  }
  co_await expect_service(listener);
}

TEST_F_TASK(connecting, gives_its_packets_the_traffic_class_that_it_is_told_on_both_ends) {
  for (const bool is_v6 : {false, true}) {
    const int family = is_v6 ? AF_INET6 : AF_INET;
    auto listener = co_await device().listen(is_v6 ? "[::1]:0" : "127.0.0.1:0", {.traffic_class = 0x28});
    auto one =
        co_await when_all(device().connect(std::string(listener.address()), {.traffic_class = 0x48}), accept(listener));
    EXPECT_EQ(traffic_classes(family), (std::multiset{0x28, 0x48}));
    auto other =
        co_await when_all(device().connect(std::string(listener.address())), accept(listener, {.traffic_class = 0x68}));
    EXPECT_EQ(traffic_classes(family), (std::multiset{0, 0x28, 0x48, 0x68}));
    co_await std::get<0>(one).close();
    co_await std::get<0>(other).close();
  }
}

TEST_F_TASK(connecting, gives_ipv4_peers_of_an_ipv6_listener_its_traffic_class_as_well) {
  auto listener = co_await device().listen(":0", {.traffic_class = 0x28});
  const std::string port(listener.address().substr(listener.address().rfind(':')));
  auto both = co_await when_all(device().connect("127.0.0.1" + port), accept(listener));
  EXPECT_EQ(traffic_classes(AF_INET), (std::multiset{0}));
  EXPECT_EQ(std::get<1>(both).peer().substr(0, 8), "[::ffff:");
  for (const int value : values_of(IPPROTO_IP, IP_TOS, AF_INET6)) EXPECT_EQ(value, 0x28);
}

// ---- death

// Remembers the options that are set on each socket.
class noted_options final : public system_calls {
 public:
  struct option {
    int level;
    int name;
    int value;
    auto operator<=>(const option&) const = default;
  };
  std::map<int, std::set<option>> of_socket;

  int socket(int domain, int type, int protocol) noexcept override {
    const int fd = system_calls::socket(domain, type, protocol);
    of_socket[fd].clear();
    return fd;
  }
  int setsockopt(int fd, int level, int name, const void* value, socklen_t length) noexcept override {
    if (length == sizeof(int)) of_socket[fd].insert({level, name, *static_cast<const int*>(value)});
    return system_calls::setsockopt(fd, level, name, value, length);
  }
};

class death : public with_calls<noted_options, net_test> {
 protected:
  /// On how many sockets all of `options` were set.
  [[nodiscard]] std::ptrdiff_t sockets_with(const std::set<noted_options::option>& options) const {
    return std::count_if(calls.of_socket.begin(), calls.of_socket.end(), [&](const auto& each) {
      return std::includes(each.second.begin(), each.second.end(), options.begin(), options.end());
    });
  }

  task<> connect_pair(net::connection_options how) {
    static_cast<void>(co_await connected(device(), device(), own_loopback() + ":0", how));
  }
};

TEST_F_TASK(death, is_watched_for_by_the_kernel_on_both_ends) {
  co_await connect_pair({.dead_peer_after = 12s});
  const std::set<noted_options::option> wanted = {
      {IPPROTO_TCP, TCP_NODELAY, 1},   {SOL_SOCKET, SO_KEEPALIVE, 1}, {IPPROTO_TCP, TCP_KEEPIDLE, 6},
      {IPPROTO_TCP, TCP_KEEPINTVL, 2}, {IPPROTO_TCP, TCP_KEEPCNT, 3}, {IPPROTO_TCP, TCP_USER_TIMEOUT, 12000}};
  EXPECT_EQ(sockets_with(wanted), 2);
}

TEST_F_TASK(death, may_be_watched_for_as_slowly_or_as_quickly_as_the_kernel_can) {
  co_await connect_pair({.dead_peer_after = 1ms});
  EXPECT_EQ(sockets_with({{IPPROTO_TCP, TCP_KEEPIDLE, 1}, {IPPROTO_TCP, TCP_USER_TIMEOUT, 1}}), 2);
  co_await connect_pair({.dead_peer_after = std::chrono::milliseconds::max()});
  EXPECT_EQ(sockets_with({{IPPROTO_TCP, TCP_KEEPIDLE, 16383}, {IPPROTO_TCP, TCP_USER_TIMEOUT, 32'767'000}}), 2);
}

TEST_F_TASK(death, need_not_be_watched_for) {
  co_await connect_pair({.dead_peer_after = 0ms});
  EXPECT_EQ(sockets_with({{SOL_SOCKET, SO_KEEPALIVE, 1}}), 0);
}

// ---- versions

class other_version : public connecting {
 protected:
  /// `said` ends with a greeting.
  static bytes with_versions(bytes said, unsigned newest, unsigned oldest) {
    const std::size_t greeting = said.size() - net::greeting::bytes;
    said[greeting + 4] = static_cast<std::byte>(newest);
    said[greeting + 13] = static_cast<std::byte>(oldest);
    return said;
  }
};

TEST_F_LISTENING(other_version, of_a_client_is_an_error_that_names_it_and_the_client_is_told) {
  raw_peer raw = raw_peer::connect(listener.address());
  const bytes request = with_versions(request_frame(), 3, 2);
  const auto ask = [&]() -> task<bytes> {
    co_await raw.send(request);
    co_return co_await raw.receive_rest();
  };
  const auto both = co_await when_all(ask(), failure_of(accept(listener)));
  const bytes told = text("weft: no common version");
  EXPECT_NE(std::ranges::search(std::get<0>(both), told).begin(), std::get<0>(both).end());
  EXPECT_TRUE(failed_with(std::get<1>(both), errc::protocol_error,
                          "the peer speaks versions 2 to 3 of weft's protocol, and this end version 1"));
}

TEST_F_TASK(other_version, of_a_server_is_an_error_that_names_it) {
  const auto failure = co_await connect_to(with_versions(reply_frame(), 2, 2));
  EXPECT_TRUE(says(failure, "the peer speaks version 2 of weft's protocol, and this end version 1"));
}

TEST_F_TASK(other_version, of_a_server_as_an_old_client_sees_it_is_told_in_words) {
  const auto failure = co_await connect_to(rejection_frame("weft: no common version"));
  EXPECT_TRUE(says(failure, "the peer and this end speak no common version of weft's protocol"));
}

TEST_F_AGAINST_RAW(other_version, that_speaks_ours_as_well_is_a_weft_peer,
                   {.greeting = with_versions(greeting_bytes(), 5, 1)}) {
  EXPECT_TRUE(peer.capabilities().native);
  co_return;
}

// ---- accept(2)

// There is no descriptor for the first peer, once.
class accepting_in_want : public with_calls<failing_system_calls, net_test> {
 protected:
  accepting_in_want() {
    calls.fail({{.of = system_call::accept4 | system_call::accept_in_ring, .number = EMFILE, .times = 1}});
  }
};

TEST_F_LISTENING(accepting_in_want, is_counted_and_the_peer_is_accepted_later) {
  co_await expect_service(listener);
  EXPECT_EQ(device().statistics().accept_errors, 1u);
  EXPECT_EQ(device().statistics().accepts_failed, 0u);
}

TEST_F_LISTENING(listening, without_descriptors_it_tells_each_peer_so_and_takes_the_next_when_there_are_some) {
  std::vector<raw_peer> peers;
  for (int i = 0; i < 4; ++i) peers.push_back(asking_peer(listener));
  std::optional<no_descriptors_left> none(std::in_place);
  const auto be_refused = [&]() -> task<> {
    for (raw_peer& each : peers) {
      const bytes said = co_await each.receive_rest();
      const std::string_view words(reinterpret_cast<const char*>(said.data()), said.size());
      EXPECT_NE(words.find("no descriptors left"), std::string_view::npos);
    }
    none.reset();
    static_cast<void>(co_await device().connect(std::string(listener.address())));
  };
  co_await when_all(be_refused(), accept(listener));
  EXPECT_GE(device().statistics().accept_errors, peers.size());
  co_await expect_service(listener);
}

// A rejection of MPA's first revision has room for private data as well (RFC 5044 section 7.1.1).
// A device of two fabrics gives each half of its own time.
TEST_F(listening, without_room_for_a_peers_receives_it_tells_the_peer_within_a_quarter_of_the_time) {
  open_device({.pool = {.max_bytes = 4 << 20, .arena_bytes = 1 << 20}});
  const auto body = [&](scope& tasks) -> task<> {
    const auto held = co_await pool().allocate(1 << 20, mr::budget::receive);
    const net::connection_options greedy{.receive_size = 60'000, .receive_depth = 26, .set_up_timeout = 400s};
    const net::connection_options half{.set_up_timeout = 200s};
    auto listener = co_await listen();
    attempt connecting(tasks, device().connect(std::string(listener.address()), half));
    auto request = co_await listener.next();
    attempt accepting(tasks, request->accept(greedy));
    co_await settle();
    jump(90s);
    co_await settle();
    EXPECT_FALSE(accepting.ended()) << "the memory may still come back";
    jump(15s);
    co_await connecting.end();
    EXPECT_NE(connecting.words().find("the peer has no receives left"), std::string::npos) << connecting.words();
  };
  run(with_tasks(body));
}

TEST_F_TASK(listening, with_as_many_connections_as_it_takes_it_tells_a_foreign_peer_so) {
  auto listener = co_await listen({.max_connections = 1});
  const bytes request = frame_bytes({});
  raw_peer early = asking_peer(listener, request);
  const auto held = co_await listener.next();
  raw_peer late = asking_peer(listener, request);
  const auto be_refused = [&]() -> task<> {
    const bytes said = co_await late.receive_rest();
    const bytes words = text("weft: no connections left");
    EXPECT_EQ(said, frame_bytes({.kind = net::iwarp::mpa::frame_kind::reply, .rejected = true, .private_data = words}));
    listener.close();
  };
  const auto both = co_await when_all(be_refused(), listener.next());
  EXPECT_FALSE(std::get<1>(both).has_value());
}

TEST_F_TASK(connecting, to_a_server_without_descriptors_says_so) {
  const auto failure = co_await connect_to(rejection_frame("weft: no descriptors left"));
  EXPECT_TRUE(failed_with(failure, std::errc::too_many_files_open, "the peer has no descriptors left"));
}

// ---- names with several addresses

// A resolver to which the name "somewhere" means the addresses that the test says, in this order.
class made_up_names final : public system_calls {
 public:
  std::vector<std::string> addresses;
  int connects = 0;  // begun

  int getaddrinfo(const char* host, const char* service, const addrinfo* hints, addrinfo** found) noexcept override {
    if (host == nullptr || std::string_view(host) != "somewhere") {
      return system_calls::getaddrinfo(host, service, hints, found);
    }
    if ((hints->ai_flags & AI_NUMERICHOST) != 0) return EAI_NONAME;
    addrinfo** end = found;
    for (const std::string& address : addresses) {
      const host_and_port where = parse_host_and_port(address);
      const int failure = system_calls::getaddrinfo(where.host.c_str(), where.port.c_str(), hints, end);
      if (failure != 0) return failure;
      end = &(*end)->ai_next;
    }
    return 0;
  }
  int connect(int fd, const sockaddr* address, socklen_t length) noexcept override {
    ++connects;
    return system_calls::connect(fd, address, length);
  }
  int permit_ring_operation(std::uint8_t operation) noexcept override {
    if (static_cast<io_kind>(operation) == io_kind::connect) ++connects;
    return 0;
  }
};

class names : public with_calls<made_up_names, net_test> {
 protected:
  /// Where nobody listens.
  std::string deserted() { return deserted_.emplace_back().address(); }
  void let_it_mean(std::vector<std::string> addresses) { calls.addresses = std::move(addresses); }
  [[nodiscard]] int connects() const noexcept { return calls.connects; }

 private:
  std::deque<deserted_port> deserted_;
};

TEST_F_LISTENING(names, are_tried_address_by_address_until_one_answers) {
  let_it_mean({deserted(), "[::1]:1", std::string(listener.address()), deserted()});
  const auto both = co_await when_all(device().connect("somewhere:1"), accept(listener));
  EXPECT_EQ(std::get<0>(both).peer(), listener.address());
}

TEST_F_TASK(names, of_which_no_address_answers_say_why_for_each) {
  const std::string first = deserted();
  const std::string second = deserted();
  let_it_mean({first, second});
  const auto failure = co_await failure_of(device().connect("somewhere:1"));
  const std::string refused = ": TCP connection: Connection refused";
  const std::string words = "nobody listens on somewhere:1 over iwarp: " + first + refused + "; " + second + refused;
  EXPECT_EQ(std::string(failure ? failure->what() : ""), words);
  EXPECT_TRUE(failed_with(failure, std::errc::connection_refused));
}

TEST_F_TASK(names, whose_first_address_is_no_iwarp_peer_are_found_at_the_second) {
  raw_listener web;
  auto listener = co_await listen();
  let_it_mean({web.address(), std::string(listener.address())});
  const auto serve_web = [&]() -> task<> {
    raw_peer raw = co_await web.accept();
    const bytes answer = text("HTTP/1.1 400 Bad Request\r\n\r\n");
    co_await raw.send(answer);
    static_cast<void>(co_await raw.receive_rest());
  };
  const auto all = co_await when_all(device().connect("somewhere:1"), accept(listener), serve_web());
  EXPECT_EQ(std::get<0>(all).peer(), listener.address());
}

TEST_F_LISTENING(names, whose_peer_rejects_are_not_asked_at_another_address) {
  auto other = co_await listen();
  let_it_mean({std::string(listener.address()), std::string(other.address())});
  const auto reject = [&]() -> task<> {
    auto request = co_await listener.next();
    co_await request->reject();
  };
  const auto both = co_await when_all(failure_of(device().connect("somewhere:1")), reject());
  EXPECT_TRUE(std::get<0>(both) && std::get<0>(both)->code() == errc::peer_rejected);
}

TEST_F_TASK(names, whose_only_address_swallows_everything_end_at_the_deadline_and_name_the_step) {
  const deaf_listener deaf;
  let_it_mean({deaf.address()});
  const auto wait = [&]() -> task<> {
    while (connects() == 0) co_await yield();
    let_set_ups_time_out();
  };
  const auto both = co_await when_all(failure_of(device().connect("somewhere:1")), wait());
  EXPECT_TRUE(failed_with(std::get<0>(both), errc::timed_out, "TCP connection"));
}

TEST_F_TASK(names, whose_first_address_swallows_everything_leave_the_second_its_share_of_the_time) {
  deaf_listener deaf;
  auto listener = co_await listen();
  let_it_mean({deaf.address(), std::string(listener.address())});
  const auto wait = [&]() -> task<> {
    while (connects() == 0) co_await yield();
    jump(net::connection_options().set_up_timeout / 2 + 1ms);
  };
  const auto all = co_await when_all(device().connect("somewhere:1"), accept(listener), wait());
  EXPECT_EQ(std::get<0>(all).peer(), listener.address());
}

}  // namespace
}  // namespace weft::test
