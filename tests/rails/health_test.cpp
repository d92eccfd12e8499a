// SPDX-License-Identifier: Apache-2.0
// What people can see of the rails of a connection: statistics, metrics, lines and the trace.
#include <weft/net/rails/line_budget.hpp>

#include "ends.hpp"
#include "kit/clock.hpp"
#include "kit/failure.hpp"
#include "kit/test.hpp"

namespace weft::test {
namespace {

using namespace std::chrono_literals;
using net::rail_state;
using net::rail_statistics;

// The lines about connections that this process writes.
class lines final : public report_handler, private immovable {
 public:
  lines() : former_(set_report_handler(this)) {}
  ~lines() { set_report_handler(former_); }

  [[nodiscard]] std::vector<std::string> take() { return std::exchange(all_, {}); }
  [[nodiscard]] std::size_t count() const noexcept { return all_.size(); }

 private:
  void handle(const report& what) noexcept override {
    EXPECT_EQ(what.kind, report_kind::change) << what.text;
    all_.push_back(to_string(what));
  }

  report_handler* former_;
  std::vector<std::string> all_;
};

// What the trace shows of connections.
class recorder final : public trace_sink, private immovable {
 public:
  recorder() { set_trace(this); }
  ~recorder() { set_trace(nullptr); }

  void began(trace_track, const void*, std::string_view) noexcept override {}
  void ended(trace_track, const void*) noexcept override {}
  void ran(std::string_view, time_point, time_point) noexcept override {}
  void happened(trace_track track, const void*, std::string_view name) noexcept override {
    EXPECT_EQ(track, trace_track::connections);
    const std::lock_guard lock(mutex_);
    all_.emplace_back(name);
  }
  [[nodiscard]] std::vector<std::string> all() {
    const std::lock_guard lock(mutex_);
    return all_;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> all_;
};

// Whether one of them has all of these words.
testing::AssertionResult one_has(const std::vector<std::string>& all, std::initializer_list<std::string> words) {
  const auto has_all = [&](const std::string& text) {
    return std::all_of(words.begin(), words.end(), [&](const std::string& each) { return contains(text, each); });
  };
  if (std::any_of(all.begin(), all.end(), has_all)) return testing::AssertionSuccess();
  auto none = testing::AssertionFailure() << "none of these:";
  for (const std::string& each : all) none << '\n' << each;
  return none;
}

// Two ends of a connection of two rails over one listener, which stays for as long as they do.
class rail_health : public two_rails {
 protected:
  void between_ends(const test_script<ends>& script, net::connection_options how = {}) {
    const auto body = [&](ends both) -> task<> {
      co_await until([&] { return all_are_up(both); });
      co_await script(both);
    };
    executor home({.clock = &time_});
    home.run(with_ends(device_, device_, two_ports(), how, body));
  }

  static bool all_are_up(ends both) {
    const auto up = [](const net::connection& at) {
      return std::ranges::count(at.rails(), rail_state::up, &rail_statistics::state);
    };
    return up(both.client) == 2 && up(both.server) == 2;
  }
  template <class Predicate>
  static task<> until(Predicate is_so) {
    while (!is_so()) co_await yield();
  }
  // The time passes in small steps, and whatever is due happens.
  template <class Predicate>
  task<> pass_until(Predicate is_so) {
    while (!is_so()) {
      time_.advance(1ms);
      for (int turn = 0; turn < 70; ++turn) co_await yield();
    }
  }
  task<> pass(duration left) {
    const time_point end = time_.now() + left;
    co_await pass_until([&] { return time_.now() >= end; });
  }

  task<mr::buffer> zeros(std::size_t bytes) { return zeroed(pool(), bytes); }
  task<> cut_and_wait(cable& which, const ends& both, std::size_t number) {
    const auto opened = [&](const net::connection& at) { return at.rails()[number].so_far.opened; };
    const std::uint64_t client = opened(both.client);
    const std::uint64_t server = opened(both.server);
    which.cut();
    co_await pass_until([&] { return opened(both.client) > client && opened(both.server) > server; });
  }

  lines written;
  manual_clock time_;
};

constexpr net::connection_options for_ten_seconds{.resume_within = 10s};

// ---- statistics ----

TEST_F_BETWEEN_ENDS(rail_health, tells_what_each_is_doing_and_what_it_has_carried_each_way) {
  const auto target = co_await spread_target(both, 4 * mebibyte);
  const auto sum = [&] {
    std::uint64_t bytes = 0;
    for (const rail_statistics& each : both.client.rails()) bytes += each.so_far.to_peer.bytes;
    return bytes;
  };
  const std::uint64_t before = sum();
  auto source = co_await zeros(4 * mebibyte);
  co_await both.client.write(source, target.remote());
  auto some = co_await zeros(mebibyte);
  co_await both.client.read(some, target.remote().slice(0, mebibyte));
  auto words = co_await zeros(100);
  co_await both.client.send(words);
  static_cast<void>(co_await both.server.recv_or_throw());

  const std::vector<rail_statistics> ours = both.client.rails();
  EXPECT_EQ(ours.size(), 2u);
  std::uint64_t from_peer = 0;
  for (const rail_statistics& each : ours) {
    EXPECT_EQ(each.number, static_cast<unsigned>(&each - ours.data()));
    EXPECT_EQ(each.fabric, "iwarp:" + std::to_string(each.number));
    EXPECT_TRUE(each.peer.starts_with(own_loopback() + ":")) << each.peer;
    EXPECT_EQ(each.state, rail_state::up);
    EXPECT_EQ(each.why, "");
    EXPECT_EQ(each.so_far.opened, 1u);
    EXPECT_EQ(each.so_far.lost, 0u);
    EXPECT_EQ(each.so_far.sent_again, 0u);
    EXPECT_GT(each.so_far.control_messages_sent, 0u);
    EXPECT_GT(each.so_far.control_messages_received, 0u);
    EXPECT_GT(each.so_far.to_peer.bytes, 0u);
    from_peer += each.so_far.from_peer.bytes;
  }
  EXPECT_EQ(sum() - before, 4 * mebibyte + 100);
  EXPECT_EQ(from_peer, mebibyte);
  EXPECT_EQ(std::count_if(ours.begin(), ours.end(), [](const auto& each) { return each.carries_messages; }), 1);

  const std::vector<rail_statistics> theirs = both.server.rails();
  EXPECT_EQ(theirs.size(), 2u);
  EXPECT_EQ(theirs[0].so_far.from_peer.bytes + theirs[1].so_far.from_peer.bytes, 100u);
  EXPECT_EQ(theirs[0].so_far.from_peer.requests + theirs[1].so_far.from_peer.requests, 1u);
}

TEST_F_BETWEEN_ENDS(rail_health, tells_since_when_and_why_a_rail_is_not_there_and_how_often_it_was_lost) {
  co_await cut_and_wait(other(), both, 1);
  EXPECT_EQ(both.client.rails()[1].so_far.lost, 1u);
  other().is_down = true;
  other().cut();
  co_await until([&] { return both.client.rails()[1].state == rail_state::absent; });
  const time_point lost = time_.now();
  co_await pass_until([&] { return both.client.rails()[1].why.find("pulled the cable") != std::string::npos; });
  rail_statistics its = both.client.rails()[1];
  EXPECT_EQ(its.state, rail_state::absent);
  EXPECT_EQ(its.so_far.lost, 2u);
  EXPECT_EQ(its.so_far.opened, 2u);
  EXPECT_EQ(its.since, time_.now() - lost);
  EXPECT_EQ(both.client.rails()[0].state, rail_state::up);
  other().is_down = false;
  co_await pass_until([&] { return all_are_up(both); });
  EXPECT_EQ(both.client.rails()[1].so_far.opened, 3u);
  EXPECT_EQ(both.server.rails()[1].so_far.opened, 3u);
  EXPECT_NE(both.server.rails()[1].why, "") << "why it was lost is kept";
}

TEST_F_BETWEEN_ENDS(rail_health, counts_what_had_to_go_again_at_the_rail_that_lost_it) {
  const auto target = co_await spread_target(both, 4 * mebibyte);
  auto source = co_await zeros(4 * mebibyte);
  other().cut_before(net::work_kind::write, 3);
  co_await both.client.write(source, target.remote());
  EXPECT_FALSE(other().is_cut_before);
  EXPECT_GT(both.client.rails()[1].so_far.sent_again, 0u);
  EXPECT_EQ(both.client.rails()[0].so_far.sent_again, 0u);

  co_await pass_until([&] { return all_are_up(both); });
  messages().cut_before(net::work_kind::send, 2);
  for (int i = 0; i < 4; ++i) {
    auto words = co_await zeros(8);
    co_await both.client.send(words);
  }
  for (int i = 0; i < 4; ++i) static_cast<void>(co_await both.server.recv_or_throw());
  EXPECT_GT(both.client.rails()[0].so_far.sent_again, 0u);
}

// The peer had the link first, and has fenced it: what is over for one end does not begin at the other.
TEST_F_BETWEEN_ENDS(rail_health, counts_none_that_the_peer_had_given_up_before_this_end_had_it) {
  recorder trace;
  const auto times_fenced = [&] {
    const auto all = trace.all();
    return std::count_if(all.begin(), all.end(), [](const auto& each) { return contains(each, "rail 1 is fenced"); });
  };
  event may_accept;
  other().accepts = &may_accept;
  other().cut();
  co_await pass_until([&] { return both.client.rails()[1].state == rail_state::joining; });
  other().accepts = nullptr;
  const auto fenced = times_fenced();
  EXPECT_EQ(fenced, 2) << "by both ends";
  other().cut();
  co_await until([&] { return times_fenced() > fenced; });
  may_accept.set();
  co_await pass_until([&] { return all_are_up(both); });
  EXPECT_EQ(both.server.rails()[1].so_far.opened, 2u);
  EXPECT_EQ(both.server.rails()[1].so_far.lost, 1u);
}

TEST_F_BETWEEN_ENDS(rail_health, says_of_a_silent_rail_that_it_has_moved_nothing) {
  const auto target = co_await spread_target(both, 4 * mebibyte);
  auto source = co_await zeros(4 * mebibyte);
  other().is_silent = true;
  bool done = false;
  const auto writing = [&]() -> task<> {
    co_await both.client.write(source, target.remote());
    done = true;
  };
  auto b = pass_until([&] { return done; });
  co_await when_all(writing(), std::move(b));
  other().is_silent = false;
  co_await pass_until([&] { return written.count() != 0; });
  EXPECT_EQ(both.client.rails()[1].so_far.lost, 1u);
  EXPECT_EQ(both.client.rails()[1].why, "no progress on this rail while another rail made progress");
  EXPECT_TRUE(one_has(written.take(), {"no progress on this rail while another rail made progress"}));
}

TEST_F(rail_health, of_a_connection_with_one_link_is_nothing) {
  const auto body = [&]() -> task<> {
    auto plain = net::device::open("iwarp");
    net::listener listener = co_await plain.listen("127.0.0.1:0");
    auto accepting = accept_one(listener, {});
    const auto both = co_await when_all(plain.connect(std::string(listener.address())), std::move(accepting));
    EXPECT_TRUE(std::get<0>(both).rails().empty());
    EXPECT_TRUE(std::get<1>(both).rails().empty());
    EXPECT_TRUE(plain.statistics().rails.empty());
    metrics all;
    add_to(all, plain.statistics(), "plain");
    EXPECT_FALSE(contains(all.text(), "weft_rail"));
  };
  executor home;
  home.run(body());
}

TEST_F(rail_health, of_a_device_is_the_sum_over_its_connections_by_fabric) {
  std::vector<net::fabric_rail_statistics> open;
  between_ends([&](ends both) -> task<> {
    const auto target = co_await expose_zeros(both.server, mebibyte);
    auto source = co_await zeros(mebibyte);
    co_await both.client.write(source, target.remote());
    co_await cut_and_wait(other(), both, 1);
    open = device_.statistics().rails;
    EXPECT_EQ(open.size(), 2u);
    EXPECT_EQ(open[0].fabric, "iwarp:0");
    EXPECT_EQ(open[1].fabric, "iwarp:1");
    EXPECT_EQ(open[0].up, 2u) << "both ends are of this device";
    EXPECT_EQ(open[1].up, 2u);
    EXPECT_EQ(open[0].so_far.to_peer.bytes + open[1].so_far.to_peer.bytes, mebibyte);
    EXPECT_EQ(open[1].so_far.lost, 2u);
    EXPECT_EQ(open[1].so_far.opened, 4u);
    metrics all;
    add_to(all, device_.statistics(), "here");
    add_to(all, both.client.rails(), "to the server");
    const std::string text = all.text();
    for (const char* const line :
         {"weft_rails{device=\"here\",rail=\"iwarp:1\",state=\"up\"} 2\n",
          "weft_rails{device=\"here\",rail=\"iwarp:1\",state=\"absent\"} 0\n",
          "weft_rail_lost_total{device=\"here\",rail=\"iwarp:1\"} 2\n",
          "weft_rail_requests_total{device=\"here\",rail=\"iwarp:0\",direction=\"to_peer\"} ",
          "weft_rails{connection=\"to the server\",rail=\"iwarp:1\",number=\"1\",state=\"up\"} 1\n",
          "weft_rail_lost_total{connection=\"to the server\",rail=\"iwarp:1\",number=\"1\"} 1\n"}) {
      EXPECT_TRUE(contains(text, std::string("\n") + line)) << line << " is not in\n" << text;
    }
  });
  const auto ended = device_.statistics().rails;
  EXPECT_EQ(ended[1].up + ended[1].absent + ended[1].joining + ended[1].ending, 0u);
  EXPECT_EQ(ended[1].so_far.lost, open[1].so_far.lost);
  EXPECT_EQ(ended[0].so_far.to_peer.bytes + ended[1].so_far.to_peer.bytes, mebibyte);
}

TEST_F_BETWEEN_ENDS(rail_health, may_be_asked_for_on_any_thread_while_rails_come_and_go) {
  std::jthread asking([&](const std::stop_token& over) {
    std::uint64_t last = 0;
    while (!over.stop_requested()) {
      const auto ours = both.client.rails();
      EXPECT_GE(ours.at(1).so_far.lost, last);
      last = ours.at(1).so_far.lost;
      EXPECT_EQ(device_.statistics().rails.size(), 2u);
      std::this_thread::yield();
    }
  });
  for (int i = 0; i < 20; ++i) co_await cut_and_wait(other(), both, 1);
  asking.request_stop();
  asking.join();
  EXPECT_EQ(both.client.rails()[1].so_far.lost, 20u);
}

// ---- lines ----

TEST_F(rail_health, writes_a_line_when_a_rail_is_lost_and_one_when_it_is_back) {
  between_ends([&](ends both) -> task<> {
    other().is_down = true;
    other().cut();
    co_await pass_until([&] { return written.count() == 2; });
    const std::string client = "rail 1 (iwarp:1 to " + both.client.rails()[1].peer + ") of the connection to " +
                               std::string(both.client.peer()) + ' ';
    const std::vector<std::string> of_loss = written.take();
    EXPECT_TRUE(one_has(of_loss, {client + "is lost: ", "; going on over iwarp:0"}));
    EXPECT_TRUE(one_has(of_loss, {"of the connection to " + std::string(both.server.peer()) + " is lost: "}));
    co_await pass(2s);
    EXPECT_EQ(written.count(), 0u);
    other().is_down = false;
    co_await pass_until([&] { return written.count() == 2; });
    EXPECT_TRUE(one_has(written.take(), {client + "is back after ", " s"}));
  });
  EXPECT_EQ(written.count(), 0u) << "an orderly end loses no rail";
}

TEST_F_BETWEEN_ENDS(rail_health, writes_one_line_of_a_rail_that_is_back_at_once_and_few_of_one_that_comes_and_goes) {
  const time_point began = time_.now();
  co_await cut_and_wait(other(), both, 1);
  co_await pass_until([&] { return written.count() == 2; });
  EXPECT_TRUE(one_has(written.take(), {"rail 1 (iwarp:1 to ", " was lost (", "), and is back after ", " ms"}));
  constexpr std::size_t cuts = 40;
  for (std::size_t i = 0; i < cuts; ++i) co_await cut_and_wait(other(), both, 1);
  co_await pass(20s);
  const std::vector<std::string> all = written.take();
  const auto most_of_each = 4 + (time_.now() - began) / 10s;
  EXPECT_LE(all.size(), 2 * static_cast<std::size_t>(most_of_each));
  EXPECT_LT(all.size(), cuts);
  EXPECT_TRUE(one_has(all, {" times ("})) << "what was not told by itself is counted";
  EXPECT_TRUE(contains(all.back(), "is back after ")) << "the last line is as things are: " << all.back();
}

TEST_F_BETWEEN_ENDS(rail_health, tells_that_a_connection_without_rails_waits_and_goes_on_and_that_it_has_waited_in_vain,
                    for_ten_seconds) {
  pull_both();
  co_await pass_until([&] { return written.count() == 4; });
  EXPECT_TRUE(one_has(written.take(), {"; no rail is left, and the connection waits for one"}));
  mend_both();
  co_await pass_until([&] { return written.count() == 4; });
  EXPECT_TRUE(one_has(written.take(), {" is back after "}));
  pull_both();
  co_await pass(11s);
  EXPECT_TRUE(one_has(written.take(), {"the connection to " + std::string(both.client.peer()) +
                                       " has ended: no rail has come back within 10000 ms"}));
  mend_both();
}

// The end is said again over the other rail: else one end would wait for rails of a connection that is over.
TEST_F(rail_health, of_a_closed_connection_is_not_waited_for_although_its_last_word_was_lost) {
  const auto script = [&](ends both) -> task<> {
    recorder trace;
    bool is_lost = false;
    messages().is_cut_before = [&](const net::work_request& work) {
      return is_lost = says(work, net::rails::control_kind::finish);
    };
    unsigned closed = 0;
    const auto closing = [&](net::connection& at) -> task<> {
      co_await at.close();
      ++closed;
    };
    co_await when_all(closing(both.client), closing(both.server), pass_until([&] { return closed == 2; }));
    EXPECT_TRUE(is_lost);
    EXPECT_FALSE(one_has(trace.all(), {"no rail is left"}));
  };
  between_ends(script, for_ten_seconds);
  EXPECT_EQ(written.count(), 0u);
}

TEST_F_BETWEEN_ENDS(rail_health, of_a_connection_that_ends_with_all_its_rails_writes_no_lines) {
  both.server.abort();
  co_await until([&] { return both.client.rails()[0].state == rail_state::absent; });
  co_await pass(1s);
  EXPECT_EQ(written.count(), 0u);
}

TEST(line_budget, has_a_few_lines_at_once_and_then_one_in_each_pause) {
  net::rails::line_budget lines(3, 10s);
  time_point now = time_point() + 1h;
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(lines.take(now));
  EXPECT_FALSE(lines.take(now));
  now += 9s;
  EXPECT_FALSE(lines.take(now));
  now += 1s;
  EXPECT_TRUE(lines.take(now));
  EXPECT_FALSE(lines.take(now));
  now += 1h;
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(lines.take(now)) << "no more than that, however long it was quiet";
  EXPECT_FALSE(lines.take(now));
}

// ---- the trace ----

TEST_F_BETWEEN_ENDS(rail_health, is_shown_by_the_trace_event_by_event, for_ten_seconds) {
  recorder trace;
  co_await cut_and_wait(other(), both, 1);
  EXPECT_TRUE(one_has(trace.all(), {"rail 1 (iwarp:1 to ", ") is lost: "}));
  EXPECT_TRUE(one_has(trace.all(), {"rail 1 (iwarp:1 to ", ") is back"}));
  co_await until([&] { return one_has(trace.all(), {"rail 1 is fenced"}); });
  for (const auto& each : cables_) each->cut();
  co_await until([&] { return one_has(trace.all(), {"no rail is left: waiting for one for 10000 ms at most"}); });
  co_await pass_until([&] { return one_has(trace.all(), {"the connection goes on after "}); });
  both.client.abort();
  both.server.abort();  // it would wait for rails
  co_await until(
      [&] { return one_has(trace.all(), {"the connection to " + std::string(both.client.peer()) + " has ended: "}); });
}

}  // namespace
}  // namespace weft::test
