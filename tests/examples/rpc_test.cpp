// SPDX-License-Identifier: Apache-2.0
// Calls as the example rpc makes and answers them, among peers that mean well and others. All on one executor.
#include <weft/weft.hpp>

#include <random>

#include "beside.hpp"
#include "kit/buffers.hpp"
#include "kit/failure.hpp"
#include "kit/scripted_test.hpp"
#include "kit/test.hpp"
#include <rpc/client.hpp>
#include <rpc/methods.hpp>
#include <rpc/protocol.hpp>
#include <rpc/server.hpp>

namespace rpc {
namespace {

using namespace weft;
using std::chrono::milliseconds;

constexpr auto patience = std::chrono::seconds(60);
constexpr auto soon = milliseconds(1);  // for timeouts that are certain to come: what they wait for never does

/// What an awaited call came to: its text, or the code of its error, or the server's words.
struct outcome_of_call {
  std::string text;
  std::error_code code;
  bool posted = false;
  std::string words;
};

task<outcome_of_call> outcome_of(task<std::string> call) {
  outcome_of_call seen;
  try {
    seen.text = co_await std::move(call);
  } catch (const error& why) {
    seen.code = why.code();
    seen.posted = why.posted();
    seen.words = why.what();
  } catch (const call_failed& why) {
    seen.words = why.what();
  }
  co_return seen;
}

task<std::string> size_of(task<mr::buffer> fetch) {
  const auto got = co_await std::move(fetch);
  co_return std::to_string(got.size());
}

/// A call that times out after it was sent, at a server that does not answer it: with more and more time, until it was.
template <class Call>
task<outcome_of_call> time_out_once_sent(const Call& call) {
  for (duration timeout = soon;; timeout *= 2) {
    const auto seen = co_await outcome_of(call(timeout));
    EXPECT_EQ(seen.code, errc::timed_out) << seen.words;
    if (seen.posted || seen.code != errc::timed_out) co_return seen;
  }
}

/// A peer of which the test has every word in hand.
struct raw_peer {
  net::connection link;
  mr::pool& pool;

  template <class Message>
  task<> send(Message what, std::optional<std::uint32_t> invalidate = std::nullopt) {
    auto memory = co_await pool.allocate(message_bytes);
    memory.resize(pack(what, memory.bytes()));
    co_await link.send(std::move(memory), {.invalidate = invalidate});
  }
  task<> answer(std::uint64_t id, std::string text) {
    const answer_message what{.id = id, .text = text};
    co_await send(what);
  }
  /// The next request, which has to be a call; its room and its id.
  struct heard {
    std::uint64_t id = 0;
    std::string method;
    std::optional<mr::remote_region> room;
  };
  task<heard> hear_call() {
    const auto said = co_await link.recv_or_throw();
    const auto what = unpack_request(said.bytes());
    const auto& call = std::get<call_message>(what);
    heard all{.id = call.id, .method = std::string(call.method), .room = call.room};
    co_return all;
  }
  task<std::uint64_t> hear_cancel() {
    const auto said = co_await link.recv_or_throw();
    const auto what = unpack_request(said.bytes());
    co_return std::get<cancel_message>(what).id;
  }
  /// Until the peer has gone; whether it was in order.
  task<bool> hear_end() {
    const auto next = [&] { return link.recv(); };
    co_return co_await test::goes_in_order(next);
  }
  task<> write_all(mr::remote_region room, std::byte with) {
    auto memory = co_await test::filled_with(pool, room.size(), with);
    co_await link.write(std::move(memory), room);
  }
};

class rpc_test : public testing::Test {
 protected:
  static net::connection_options raw_options() {
    net::connection_options options{
        .receive_size = message_bytes, .receive_depth = 2 * most_calls, .private_data = greeting()};
    return options;
  }

  /// One that connects anew at once.
  static client_options quick(milliseconds patience_with_server = client_options().patience) {
    client_options options{.patience = patience_with_server};
    options.retry.first_pause = milliseconds(1);
    return options;
  }

  template <class Body>
  void with_listener(const Body& body) {
    const auto all = [&]() -> task<> {
      auto listener = co_await device_.listen("127.0.0.1:0");
      co_await body(listener);
    };
    run(all());
  }
  /// Runs a server with these methods, and `body(address)` beside it.
  template <class Body>
  void with_server(const method_table& methods, const Body& body, serve_options options = {}) {
    const auto serving = [&](net::listener& listener) -> task<> { return serve(device_, listener, methods, options); };
    run(test::beside(device_, serving, body));
  }
  /// The same, with a client that `body(client&)` uses.
  template <class Body>
  void with_calls(const method_table& methods, const Body& body) {
    with_server(methods,
                [&](std::string address) -> task<> { return with_client(device_, address, client_options(), body); });
  }
  /// A client, and a server whose every word is `server(raw_peer&)`, one for each connection that comes.
  template <class Server, class Body>
  void against_server(const Server& server, const Body& body, client_options options = {}) {
    const auto serving = [&](net::listener& listener) -> task<> { return serve_raw(listener, server); };
    const auto calling = [&](std::string address) -> task<> { return with_client(device_, address, options, body); };
    run(test::beside(device_, serving, calling));
  }
  /// A client whose every word is `client(raw_peer&)`, at a server that must serve others when that is over.
  template <class Client>
  void against_client(const method_table& methods, const Client& client, serve_options options = {}) {
    const auto calling = [&](std::string address) -> task<> {
      auto link = co_await device_.connect(address, raw_options());
      raw_peer peer{.link = std::move(link), .pool = device_.pool()};
      co_await client(peer);
      const auto others = [](client_of_test& through) -> task<> {
        EXPECT_EQ(co_await through.call({.method = "echo", .arguments = "still there"}), "still there");
      };
      co_await with_client(device_, address, client_options(), others);
    };
    with_server(methods, calling, options);
  }

  /// What the pool has handed out, from both budgets.
  [[nodiscard]] std::size_t in_use() {
    const auto now = device_.pool().statistics();
    return now.send.in_use_bytes + now.receive.in_use_bytes;
  }
  /// Waits until it is so: buffers in flight come back on their own.
  task<> until_in_use(std::size_t bytes) {
    while (in_use() != bytes) co_await sleep_for(milliseconds(1));
  }

  net::device device_ = net::device::open("iwarp");
  executor loop_;

 private:
  using client_of_test = client;

  void run(task<> all) {
    loop_.run(with_timeout(patience, std::move(all)));
    EXPECT_EQ(in_use(), 0u);
  }

  template <class Server>
  task<> serve_raw(net::listener& listener, const Server& server) {
    while (auto request = co_await listener.next()) {
      auto link = co_await request->accept(raw_options());
      raw_peer peer{.link = std::move(link), .pool = device_.pool()};
      co_await server(peer);
    }
  }
};

#define TEST_F_CALLING(fixture, name, methods) \
  TEST_F_SCRIPT(fixture, name, (client & through), with_calls(methods, WEFT_SCRIPT))
#define TEST_F_LISTENING(fixture, name) \
  TEST_F_SCRIPT(fixture, name, (net::listener & listener), with_listener(WEFT_SCRIPT))

// ---- calls and answers ----

TEST_F_CALLING(rpc_test, calls_share_a_connection_and_each_gets_its_own_answer, standard_methods()) {
  std::vector<std::string> texts;
  for (int i = 0; i < 200; ++i) texts.push_back("text " + std::to_string(i));
  std::vector<task<std::string>> calls;
  for (const auto& text : texts) calls.push_back(through.call({.method = "echo", .arguments = text}));
  EXPECT_EQ(co_await when_all(std::move(calls)), texts);
  EXPECT_EQ(through.unanswered(), 0u);
}

TEST_F(rpc_test, a_slow_call_does_not_hold_up_the_others) {
  event answered;
  method_table methods = standard_methods();
  methods["slow"] = [&](incoming_call&) -> task<std::string> {
    co_await answered.wait();
    co_return "slow";
  };
  with_calls(methods, [&](client& through) -> task<> {
    const auto quick = [&]() -> task<std::string> {
      auto text = co_await through.call({.method = "echo", .arguments = "quick"});
      answered.set();
      co_return text;
    };
    const auto both = co_await when_all(through.call({.method = "slow", .timeout = patience}), quick());
    EXPECT_EQ(both, std::tuple("slow", "quick"));
  });
}

TEST_F(rpc_test, what_a_method_throws_travels_back_in_words_and_the_connection_goes_on) {
  with_calls(standard_methods(), [](client& through) -> task<> {
    struct {
      const char* method;
      const char* arguments;
      const char* words;
    } const all[] = {{"fail", "no such account", "no such account"},
                     {"sum", "1 x", "'x' is not a number"},
                     {"sum", "9223372036854775807 1", "does not fit"},
                     {"frobnicate", "", "there is no method 'frobnicate'"},
                     {"fetch", "10", "room for 0"}};
    for (const auto& each : all) {
      const auto seen = co_await outcome_of(through.call({.method = each.method, .arguments = each.arguments}));
      EXPECT_NE(seen.words.find(each.words), std::string::npos) << seen.words;
      EXPECT_FALSE(seen.code);
    }
    EXPECT_EQ(co_await through.call({.method = "sum", .arguments = "1 2 39"}), "42");
  });
  EXPECT_EQ(device_.statistics().connections_opened, 2u);
}

TEST_F_CALLING(rpc_test, a_large_answer_is_written_to_the_callers_memory, standard_methods()) {
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{100'003}, std::size_t{5 << 20} + 5}) {
    const std::string size = std::to_string(bytes);
    const auto got = co_await through.fetch({.method = "fetch", .arguments = size, .timeout = patience}, bytes + 7);
    EXPECT_EQ(got.size(), bytes);
    EXPECT_TRUE(is_pattern(got.bytes(), 0));
  }
  const auto seen = co_await outcome_of(size_of(through.fetch({.method = "fetch", .arguments = "9"}, 8)));
  EXPECT_NE(seen.words.find("room for 8"), std::string::npos) << seen.words;
}

TEST_F_CALLING(rpc_test, what_cannot_be_called_is_refused_before_it_is_sent, standard_methods()) {
  const std::string long_name(longest_method + 1, 'm');
  const std::string long_text(longest_arguments + 1, 'a');
  auto seen = co_await outcome_of(through.call({.method = ""}));
  EXPECT_EQ(seen.code, errc::invalid_argument);
  seen = co_await outcome_of(through.call({.method = long_name}));
  EXPECT_EQ(seen.code, errc::invalid_argument);
  seen = co_await outcome_of(through.call({.method = "echo", .arguments = long_text}));
  EXPECT_EQ(seen.code, errc::message_too_large);
  for (const std::size_t room : {std::size_t{0}, std::size_t{1} << 40}) {
    seen = co_await outcome_of(size_of(through.fetch({.method = "fetch", .arguments = "1"}, room)));
    EXPECT_EQ(seen.code, errc::invalid_argument);
  }
  const auto most = std::string_view(long_text).substr(1);
  const auto text = co_await through.call({.method = "echo", .arguments = most});
  EXPECT_EQ(text, most);
}

// ---- timeouts and cancellation ----

TEST_F(rpc_test, a_late_one_sided_answer_to_a_call_that_has_timed_out_disturbs_nobody) {
  event timed_out;
  std::size_t before = 0;
  const auto server = [&](raw_peer& peer) -> task<> {
    const auto other = co_await peer.hear_call();
    const auto late = co_await peer.hear_call();
    co_await timed_out.wait();
    EXPECT_EQ(co_await peer.hear_cancel(), late.id);
    co_await peer.write_all(*late.room, std::byte{0xee});  // has not heard of it, or could not stop
    co_await peer.answer(other.id, "other");
    const answer_message what{.id = late.id, .written = late.room->size(), .text = {}};
    co_await peer.send(what);
    const auto next = co_await peer.hear_call();
    co_await peer.answer(next.id, "next");
    co_await peer.hear_end();
  };
  against_server(server, [&](client& through) -> task<> {
    before = in_use();
    const auto late = [&]() -> task<> {
      while (through.unanswered() == 0) co_await yield();
      const auto fetch = [&](duration timeout) {
        return size_of(through.fetch({.method = "fetch", .timeout = timeout}, std::size_t{1} << 20));
      };
      const auto seen = co_await time_out_once_sent(fetch);
      EXPECT_TRUE(seen.words.starts_with("call fetch: ") && seen.words.ends_with(": timed out")) << seen.words;
      EXPECT_GE(in_use(), before + (1 << 20));  // the server may still write there
      timed_out.set();
    };
    const auto other = [&]() -> task<> {
      EXPECT_EQ(co_await through.call({.method = "other", .timeout = patience}), "other");
    };
    co_await when_all(other(), late());
    EXPECT_EQ(co_await through.call({.method = "next", .timeout = patience}), "next");
    EXPECT_EQ(through.unanswered(), 0u);
    co_await until_in_use(before);  // and it came home while the connection goes on
  });
  EXPECT_EQ(device_.statistics().connections_opened, 2u);
}

TEST_F(rpc_test, an_answer_that_revokes_the_key_of_a_retired_room_brings_it_home_as_well) {
  event canceled;
  const auto server = [&](raw_peer& peer) -> task<> {
    const auto late = co_await peer.hear_call();
    co_await peer.hear_cancel();
    canceled.set();
    co_await peer.write_all(*late.room, std::byte{0xee});
    const answer_message what{.id = late.id, .how = outcome::canceled, .text = {}};
    co_await peer.send(what, late.room->key());
    const auto next = co_await peer.hear_call();
    co_await peer.answer(next.id, "next");
    co_await peer.hear_end();
  };
  against_server(server, [&](client& through) -> task<> {
    const std::size_t before = in_use();
    const auto fetch = [&](duration timeout) {
      return size_of(through.fetch({.method = "fetch", .timeout = timeout}, 1000));
    };
    co_await time_out_once_sent(fetch);
    co_await canceled.wait();
    EXPECT_EQ(co_await through.call({.method = "next", .timeout = patience}), "next");
    co_await until_in_use(before);
  });
}

class rpc_cancellation : public rpc_test {
 protected:
  /// With a method `wait` that waits until it is stopped.
  method_table methods() {
    method_table all = standard_methods();
    all["wait"] = [this](incoming_call&) -> task<std::string> {
      event never;
      begun.set();
      try {
        co_await never.wait();
      } catch (const error& why) {
        if (why.code() == errc::canceled) stopped.set();
        throw;
      }
      co_return "";
    };
    return all;
  }

  event begun;
  event stopped;
};

TEST_F_CALLING(rpc_cancellation, of_a_call_by_its_timeout_stops_the_method, methods()) {
  const auto call = [&](duration timeout) { return through.call({.method = "wait", .timeout = timeout}); };
  co_await time_out_once_sent(call);
  co_await stopped.wait();
  EXPECT_EQ(co_await through.call({.method = "echo", .arguments = "on"}), "on");
  while (through.unanswered() != 0) co_await sleep_for(milliseconds(1));  // the server has confirmed it
}

TEST_F_CALLING(rpc_cancellation, of_the_caller_itself_stops_the_method, methods()) {
  EXPECT_EQ((co_await when_any(through.call({.method = "wait", .timeout = patience}), begun.wait())).index, 1u);
  co_await stopped.wait();
}

TEST_F_CALLING(rpc_cancellation, comes_with_the_end_of_the_clients_connection, methods()) {
  const auto wait_and_close = [&]() -> task<> {
    co_await begun.wait();
    co_await through.close();
  };
  const auto call = [&]() -> task<> {
    const auto seen = co_await outcome_of(through.call({.method = "wait", .timeout = patience}));
    EXPECT_EQ(seen.code, errc::closed);
    EXPECT_TRUE(seen.posted);
  };
  co_await when_all(call(), wait_and_close());
  co_await stopped.wait();
  const auto seen = co_await outcome_of(through.call({.method = "echo"}));
  EXPECT_EQ(seen.code, errc::closed);
  EXPECT_FALSE(seen.posted);
}

TEST_F(rpc_test, cancels_go_out_oldest_first_so_that_none_waits_for_ever) {
  constexpr std::uint64_t calls = 10;
  std::vector<std::uint64_t> canceled;
  event heard;
  event over;
  const auto server = [&](raw_peer& peer) -> task<> {
    for (std::uint64_t i = 0; i < calls; ++i) co_await peer.hear_call();
    heard.set();
    for (std::uint64_t i = 0; i < calls; ++i) canceled.push_back(co_await peer.hear_cancel());
    over.set();
    co_await peer.hear_end();
  };
  against_server(server, [&](client& through) -> task<> {
    std::vector<task<>> all;
    const auto call = [&]() -> task<> { co_await through.call({.method = "held", .timeout = patience}); };
    for (std::uint64_t i = 0; i < calls; ++i) all.push_back(call());
    co_await when_any(when_all(std::move(all)), heard.wait());  // stops all of them at once
    co_await over.wait();
  });
  EXPECT_EQ(canceled.size(), calls);
  EXPECT_TRUE(std::is_sorted(canceled.begin(), canceled.end()));
}

TEST_F(rpc_test, a_call_that_waits_for_its_turn_times_out_without_being_sent) {
  std::size_t heard = 0;
  event all_heard;
  const auto server = [&](raw_peer& peer) -> task<> {
    while (co_await as_result(peer.hear_call())) {
      if (++heard == most_calls) all_heard.set();
    }
  };
  against_server(server, [&](client& through) -> task<> {
    const auto hold_all = [&](scope& callers) -> task<> {
      for (std::size_t i = 0; i < most_calls; ++i) {
        callers.spawn([](client& with) -> task<> {
          static_cast<void>(co_await outcome_of(with.call({.method = "held", .timeout = patience})));
        }(through));
      }
      co_await all_heard.wait();
      const auto seen = co_await outcome_of(through.call({.method = "late", .timeout = soon}));
      EXPECT_EQ(seen.code, errc::timed_out);
      EXPECT_FALSE(seen.posted);
      co_await through.close();
    };
    co_await with_scope(on_failure::stop_siblings, hold_all);
  });
  EXPECT_EQ(heard, most_calls);
}

TEST_F(rpc_test, thousands_of_calls_with_random_timeouts_leave_no_buffer_behind) {
  constexpr int callers = 24;
  constexpr int calls_each = 100;
  with_calls(standard_methods(), [&](client& through) -> task<> {
    const std::size_t before = in_use();
    std::size_t answered = 0;
    std::size_t timed_out = 0;
    const auto call_on = [&](unsigned seed) -> task<> {
      std::mt19937 random(seed);
      for (int i = 0; i < calls_each; ++i) {
        const bool patient = random() % 8 == 0;
        const bool large = random() % 2 == 0;
        const bool endless = !large && !patient && random() % 2 == 0;
        const std::string number = endless ? "60000" : std::to_string(1 + random() % 30'000);
        const duration timeout = patient ? duration(patience) : std::chrono::microseconds(50 << random() % 8);
        const request what{.method = large     ? "fetch"
                                     : endless ? "sleep"
                                               : "echo",
                           .arguments = number,
                           .timeout = timeout};
        auto call = large ? size_of(through.fetch(what, 30'000)) : through.call(what);
        const auto seen = co_await outcome_of(std::move(call));
        if (seen.code) {
          EXPECT_EQ(seen.code, errc::timed_out) << seen.words;
          ++timed_out;
        } else {
          EXPECT_EQ(seen.text, number) << seen.words;
          ++answered;
        }
      }
    };
    std::vector<task<>> all;
    for (unsigned i = 0; i < callers; ++i) all.push_back(call_on(i));
    co_await when_all(std::move(all));
    EXPECT_EQ(answered + timed_out, static_cast<std::size_t>(callers * calls_each));
    EXPECT_GT(answered, 0u);
    EXPECT_GT(timed_out, 0u);
    while (through.unanswered() != 0) co_await sleep_for(milliseconds(1));
    co_await until_in_use(before);
    EXPECT_EQ(co_await through.call({.method = "echo", .arguments = "and on", .timeout = patience}), "and on");
  });
  EXPECT_EQ(device_.statistics().connections_opened, 2u);
}

// ---- ends ----

TEST_F(rpc_test, a_close_with_large_answers_on_their_way_is_in_order) {
  bool in_order = false;
  event closing;
  event over;
  const auto server = [&](raw_peer& peer) -> task<> {
    const auto late = co_await peer.hear_call();
    closing.set();
    for (int i = 0; i < 20; ++i) {
      const auto written = co_await as_result(peer.write_all(*late.room, std::byte{1}));
      EXPECT_TRUE(written || written.error().code() == errc::peer_closed) << written.error().what();
    }
    in_order = co_await peer.hear_end();
    over.set();
  };
  against_server(server, [&](client& through) -> task<> {
    const auto fetch = [&]() -> task<> {
      const auto seen = co_await outcome_of(size_of(through.fetch({.method = "fetch", .timeout = patience}, 1 << 20)));
      EXPECT_EQ(seen.code, errc::closed);
    };
    const auto close = [&]() -> task<> {
      co_await closing.wait();
      co_await through.close();
    };
    co_await when_all(fetch(), close());
    co_await over.wait();
  });
  EXPECT_TRUE(in_order);
}

TEST_F(rpc_test, a_close_while_requests_still_wait_for_credits_is_in_order) {
  constexpr int calls = 10;
  bool in_order = false;
  event heard;
  event closing;
  const auto serve_slowly = [&](net::listener& listener) -> task<> {
    auto request = co_await listener.next();
    net::connection_options options = raw_options();
    options.receive_depth = 2;
    auto link = co_await request->accept(options);
    raw_peer peer{.link = std::move(link), .pool = device_.pool()};
    co_await peer.hear_call();
    heard.set();
    co_await closing.wait();
    for (int turn = 0; turn < 10; ++turn) co_await yield();  // so that whatever the client does in haste is done
    in_order = co_await peer.hear_end();
  };
  const auto body = [&](client& through) -> task<> {
    const auto call = [&]() -> task<> {
      EXPECT_EQ((co_await outcome_of(through.call({.method = "held", .timeout = patience}))).code, errc::closed);
    };
    const auto call_all_and_close = [&](scope& callers) -> task<> {
      for (int i = 0; i < calls; ++i) callers.spawn(call());
      co_await heard.wait();
      closing.set();
      co_await through.close();
    };
    co_await with_scope(on_failure::stop_siblings, call_all_and_close);
  };
  with_listener([&](net::listener& listener) -> task<> {
    co_await when_all(serve_slowly(listener),
                      with_client(device_, std::string(listener.address()), client_options(), body));
  });
  EXPECT_TRUE(in_order);
}

TEST_F_LISTENING(rpc_test, a_server_that_ends_answers_the_calls_under_way_and_closes_in_order) {
  event begun;
  event go_on;
  method_table methods = standard_methods();
  methods["slow"] = [&](incoming_call&) -> task<std::string> {
    begun.set();
    co_await go_on.wait();
    co_return "done";
  };
  const auto body = [&](client& through) -> task<> {
    const auto end_server = [&]() -> task<> {
      co_await begun.wait();
      listener.close();
      co_await yield();
      go_on.set();
    };
    const auto both = co_await when_all(through.call({.method = "slow", .timeout = patience}), end_server());
    EXPECT_EQ(std::get<0>(both), "done");
  };
  co_await when_all(serve(device_, listener, methods),
                    with_client(device_, std::string(listener.address()), client_options(), body));
}

TEST_F_LISTENING(rpc_cancellation, comes_with_the_end_of_the_server_for_calls_that_do_not_end_soon) {
  const method_table table = methods();
  const auto body = [&](client& through) -> task<> {
    const auto end_server = [&]() -> task<> {
      co_await begun.wait();
      listener.close();
    };
    const auto call = [&]() -> task<> {
      EXPECT_FALSE((co_await outcome_of(through.call({.method = "wait", .timeout = patience}))).words.empty());
    };
    co_await when_all(call(), end_server());
    co_await stopped.wait();
  };
  co_await when_all(serve(device_, listener, table, {.patience = soon}),
                    with_client(device_, std::string(listener.address()), client_options(), body));
}

TEST_F(rpc_test, a_lost_connection_fails_the_calls_on_it_and_the_next_ones_go_over_a_new_one) {
  int connections = 0;
  const auto server = [&](raw_peer& peer) -> task<> {
    const auto call = co_await peer.hear_call();
    if (++connections == 1) {
      peer.link.abort();
      co_return;
    }
    co_await peer.answer(call.id, "second");
    co_await peer.hear_end();
  };
  const auto body = [](client& through) -> task<> {
    const auto seen = co_await outcome_of(through.call({.method = "a", .timeout = patience}));
    EXPECT_TRUE(seen.code && seen.posted) << seen.words;
    EXPECT_EQ(co_await through.call({.method = "b", .timeout = patience}), "second");
  };
  against_server(server, body, quick());
  EXPECT_EQ(connections, 2);
}

// ---- hostile servers ----

class rpc_hostile_server : public rpc_test {
 protected:
  /// `lie(peer, call)` answers the first call, and the next server's answer is "honest". The client, which calls as
  /// `body(client&)` says, must leave the first one.
  template <class Lie, class Body>
  void expect_left_by(const Body& body, const Lie& lie, const client_options& options = quick()) {
    bool left = false;
    int connections = 0;
    const auto server = [&](raw_peer& peer) -> task<> {
      const auto call = co_await peer.hear_call();
      if (++connections == 1) {
        co_await lie(peer, call);
        left = !co_await peer.hear_end();
      } else {
        co_await peer.answer(call.id, "honest");
        co_await peer.hear_end();
      }
    };
    against_server(server, body, options);
    EXPECT_TRUE(left);
  }
  template <class Lie>
  void expect_left(const Lie& lie, const std::string& why) {
    const auto body = [&](client& through) -> task<> {
      const auto seen = co_await outcome_of(size_of(through.fetch({.method = "a", .timeout = patience}, 100)));
      EXPECT_NE(seen.words.find(why), std::string::npos) << seen.words;
      EXPECT_EQ(co_await through.call({.method = "b", .timeout = patience}), "honest");
    };
    expect_left_by(body, lie);
  }
};

#define TEST_F_LEFT(fixture, name, why) \
  TEST_F_SCRIPT(fixture, name, (raw_peer & peer, raw_peer::heard call), expect_left(WEFT_SCRIPT, why))

TEST_F_LEFT(rpc_hostile_server, that_answers_a_call_that_was_never_made_is_left, "which is not in progress") {
  co_await peer.answer(call.id + 1, "?");
}

TEST_F_LEFT(rpc_hostile_server, that_says_it_has_written_more_than_there_is_room_is_left,
            "written 101 bytes into room for 100") {
  const answer_message what{.id = call.id, .written = call.room->size() + 1, .text = {}};
  co_await peer.send(what);
}

TEST_F_LEFT(rpc_hostile_server, that_sends_what_means_nothing_is_left, "no answer") {
  co_await peer.send(cancel_message{call.id});
}

TEST_F(rpc_hostile_server, that_answers_twice_is_left) {
  const auto lie = [](raw_peer& peer, raw_peer::heard call) -> task<> {
    co_await peer.answer(call.id, "once");
    co_await peer.answer(call.id, "twice");
  };
  const auto body = [](client& through) -> task<> {
    const auto text = co_await through.call({.method = "a", .timeout = patience});
    EXPECT_EQ(text, "once");
    // The next call finds the old connection, which is about to end, or the new one.
    outcome_of_call seen;
    do seen = co_await outcome_of(through.call({.method = "b", .timeout = patience}));
    while (seen.code);
    EXPECT_EQ(seen.text, "honest");
  };
  expect_left_by(body, lie);
}

TEST_F(rpc_hostile_server, that_writes_when_it_has_answered_is_stopped_by_the_revoked_key) {
  std::optional<mr::remote_region> room;
  const auto lie = [&](raw_peer& peer, raw_peer::heard call) -> task<> {
    room = call.room;
    co_await peer.answer(call.id, "");
    const auto other = co_await peer.hear_call();
    static_cast<void>(co_await as_result(peer.write_all(*room, std::byte{0xee})));
    static_cast<void>(other);
  };
  const auto body = [](client& through) -> task<> {
    EXPECT_EQ((co_await through.fetch({.method = "a", .timeout = patience}, 100)).size(), 0u);
    const auto seen = co_await outcome_of(through.call({.method = "b", .timeout = patience}));
    EXPECT_TRUE(seen.code && seen.code != errc::timed_out) << seen.words;
    EXPECT_EQ(co_await through.call({.method = "c", .timeout = patience}), "honest");
  };
  expect_left_by(body, lie);
}

TEST_F(rpc_hostile_server, that_never_confirms_is_left_and_its_rooms_come_home) {
  const auto lie = [](raw_peer&, const raw_peer::heard&) -> task<> { co_return; };
  const auto body = [&](client& through) -> task<> {
    const auto fetch = [&](duration timeout) {
      return size_of(through.fetch({.method = "a", .timeout = timeout}, 1 << 20));
    };
    co_await time_out_once_sent(fetch);
    std::string text;
    while (text.empty()) text = (co_await outcome_of(through.call({.method = "b", .timeout = patience}))).text;
    EXPECT_EQ(text, "honest");
    while (in_use() >= std::size_t{2} << 20) co_await sleep_for(milliseconds(1));
  };
  expect_left_by(body, lie, quick(milliseconds(20)));
}

TEST_F_LISTENING(rpc_test, a_server_of_another_kind_is_told_at_once) {
  const auto serving = [&]() -> task<> {
    auto request = co_await listener.next();
    auto peer = co_await request->accept();
    static_cast<void>(co_await as_result(peer.recv()));
  };
  const auto calling = [&]() -> task<> {
    client stranger(device_, std::string(listener.address()));
    EXPECT_EQ(co_await weft::test::code_of(stranger.connect()), errc::protocol_error);
  };
  co_await when_all(serving(), calling());
}

// ---- hostile clients ----

#define TEST_F_HOSTILE(fixture, name) \
  TEST_F_SCRIPT(fixture, name, (raw_peer & peer), against_client(standard_methods(), WEFT_SCRIPT))

class rpc_hostile_client : public rpc_test {
 protected:
  static call_message echo(std::uint64_t id) { return {.id = id, .method = "echo", .arguments = {}, .room = {}}; }
};

TEST_F(rpc_hostile_client, whose_ids_do_not_grow_is_left) {
  for (const std::uint64_t second : {std::uint64_t{7}, std::uint64_t{6}, std::uint64_t{0}}) {
    against_client(standard_methods(), [&](raw_peer& peer) -> task<> {
      co_await peer.send(echo(7));
      co_await peer.send(echo(second));
      EXPECT_FALSE(co_await peer.hear_end());
    });
  }
}

TEST_F_HOSTILE(rpc_hostile_client, that_cancels_what_it_never_called_is_left) {
  co_await peer.send(echo(7));
  co_await peer.send(cancel_message{8});
  EXPECT_FALSE(co_await peer.hear_end());
}

TEST_F_HOSTILE(rpc_hostile_client, that_cancels_a_call_again_and_again_changes_nothing) {
  co_await peer.send(echo(7));
  for (int i = 0; i < 100; ++i) co_await peer.send(cancel_message{7});
  co_await peer.send(echo(8));
  for (const std::uint64_t id : {7u, 8u}) {
    const auto said = co_await peer.link.recv_or_throw();
    EXPECT_EQ(unpack_answer(said.bytes()).id, id);
  }
  co_await peer.link.close();
}

TEST_F_HOSTILE(rpc_hostile_client, that_sends_what_means_nothing_is_left) {
  co_await peer.answer(1, "I am no server");
  EXPECT_FALSE(co_await peer.hear_end());
}

TEST_F_HOSTILE(rpc_hostile_client, that_lends_memory_which_is_not_there_ends_its_own_connection) {
  call_message what = echo(1);
  what.method = "fetch";
  what.arguments = "1000";
  what.room.emplace(0x1234567, 0, 1000, mr::usage::write_dst);
  co_await peer.send(what);
  EXPECT_FALSE(co_await peer.hear_end());
}

TEST_F(rpc_hostile_client, that_takes_no_answers_is_left) {
  const auto client = [](raw_peer& peer) -> task<> {
    try {
      for (std::uint64_t id = 1;; ++id) co_await peer.send(echo(id));
    } catch (const error& why) {
      EXPECT_NE(why.code(), errc::canceled);
    }
  };
  against_client(standard_methods(), client, {.patience = milliseconds(20)});
}

TEST_F(rpc_hostile_client, that_sends_too_many_calls_waits_and_they_are_answered_in_the_end) {
  constexpr std::uint64_t calls = 4 * most_calls;
  std::size_t now = 0;
  std::size_t most = 0;
  event full;
  event go_on;
  method_table methods = standard_methods();
  methods["wait"] = [&](incoming_call&) -> task<std::string> {
    most = std::max(most, ++now);
    if (now == most_calls) full.set();
    co_await go_on.wait();
    --now;
    co_return "";
  };
  against_client(methods, [&](raw_peer& peer) -> task<> {
    const auto send_all = [&]() -> task<> {
      for (std::uint64_t id = 1; id <= calls; ++id) {
        call_message what = echo(id);
        what.method = "wait";
        co_await peer.send(what);
      }
    };
    const auto hear_all = [&]() -> task<> {
      co_await full.wait();
      for (int i = 0; i < 100; ++i) co_await yield();  // for a call too many to begin, if it may
      EXPECT_EQ(most, most_calls);
      go_on.set();
      for (std::uint64_t id = 1; id <= calls; ++id) static_cast<void>(co_await peer.link.recv_or_throw());
    };
    co_await when_all(send_all(), hear_all());
    co_await peer.link.close();
  });
  EXPECT_EQ(most, most_calls);
}

// ---- the protocol ----

TEST(rpc_protocol, messages_arrive_as_they_were_made_and_cut_ones_do_not) {
  std::array<std::byte, message_bytes> room{};
  const std::span<const std::byte> bytes(room);
  const call_message call{.id = 0x123456789abcdef0,
                          .method = "method",
                          .arguments = "some arguments",
                          .room = mr::remote_region(7, 4096, 100, mr::usage::write_dst)};
  const std::size_t size = pack(call, room);
  const auto taken = std::get<call_message>(unpack_request(bytes.first(size)));
  EXPECT_EQ(taken.id, call.id);
  EXPECT_EQ(taken.method, call.method);
  EXPECT_EQ(taken.arguments, call.arguments);
  EXPECT_EQ(taken.room, call.room);
  for (std::size_t cut = 0; cut < size - call.arguments.size(); ++cut) {
    EXPECT_THROW(static_cast<void>(unpack_request(bytes.first(cut))), error) << cut;
  }

  const std::size_t cancel_size = pack(cancel_message{5}, room);
  EXPECT_EQ(std::get<cancel_message>(unpack_request(bytes.first(cancel_size))).id, 5u);
  EXPECT_THROW(static_cast<void>(unpack_request(bytes.first(cancel_size + 1))), error);

  const answer_message answer{.id = 6, .how = outcome::failure, .written = 9, .text = "words"};
  const std::size_t answer_size = pack(answer, room);
  const auto heard = unpack_answer(bytes.first(answer_size));
  EXPECT_EQ(heard.id, 6u);
  EXPECT_EQ(heard.how, outcome::failure);
  EXPECT_EQ(heard.written, 9u);
  EXPECT_EQ(heard.text, "words");
  for (std::size_t cut = 0; cut < answer_size - answer.text.size(); ++cut) {
    EXPECT_THROW(static_cast<void>(unpack_answer(bytes.first(cut))), error) << cut;
  }
  EXPECT_THROW(static_cast<void>(unpack_answer(bytes)), error);  // longer than any answer
}

TEST(rpc_protocol, a_room_that_is_not_open_to_writes_and_unknown_kinds_are_malformed) {
  std::array<std::byte, message_bytes> room{};
  call_message call;
  call.method = "m";
  call.room.emplace(7, 4096, 100, mr::usage::read_src);
  std::size_t size = pack(call, room);
  EXPECT_THROW(static_cast<void>(unpack_request(std::span(room).first(size))), error);
  call.room.reset();
  size = pack(call, room);
  for (const auto& [at, value] :
       {std::pair(0, 9), std::pair(1, 0), std::pair(1, 33), std::pair(2, 2), std::pair(4, 1)}) {
    auto wrong = room;
    wrong[static_cast<std::size_t>(at)] = static_cast<std::byte>(value);
    EXPECT_THROW(static_cast<void>(unpack_request(std::span(wrong).first(size))), error) << at << " " << value;
  }
}

TEST(rpc_methods, sizes_are_read_as_people_write_them) {
  EXPECT_EQ(parse_bytes("1"), 1u);
  EXPECT_EQ(parse_bytes("64K"), 65536u);
  EXPECT_EQ(parse_bytes("3G"), std::uint64_t{3} << 30);
  for (const char* const wrong : {"", "K", "0", "-1", "1k", "1 K", "9223372036854775807K", "99999999999999999999"}) {
    EXPECT_THROW(static_cast<void>(parse_bytes(wrong)), std::invalid_argument) << wrong;
  }
}

}  // namespace
}  // namespace rpc
