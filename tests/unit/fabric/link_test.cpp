// SPDX-License-Identifier: Apache-2.0
#include <weft/net/link/native_protocol.hpp>

#include "../../sim/loose_task.hpp"
#include "kit/buffers.hpp"
#include "kit/clock.hpp"
#include "kit/held_workers.hpp"
#include "kit/settle.hpp"
#include "peers.hpp"

namespace weft::test {
namespace {

using namespace std::chrono_literals;

using net::fabric::control_record;

// Nobody is to be sent to because a peer says so.
TEST(fabric_set_ups, that_name_an_endpoint_on_another_host_are_refused) {
  net::device device = net::device::open(std::string("fabric:") + provider);
  run([&]() -> task<> {
    auto listener = co_await device.listen("127.0.0.1:0");
    const std::uint16_t port = port_of(listener.address());
    const auto lie = [port] {
      const descriptor socket = tcp_socket();
      const sockaddr_in elsewhere = loopback_at(INADDR_LOOPBACK + 1, port);
      EXPECT_EQ(say_hello(socket, port, provider, elsewhere), net::fabric::frame_kind::reject);
    };
    const auto first = co_await when_any(listener.accept(), offload(lie));
    EXPECT_EQ(first.index, 1u);
    EXPECT_EQ(device.statistics().requests_failed, 1u);
  });
}

TEST(fabric_questions, that_guess_keys_end_the_connection) {
  const auto guess = [](const raw_peer& peer) {
    for (unsigned key = 1; key <= 100; ++key) {
      peer.say({.kind = control_record::asks, .reason = control_record::writing, .key = key, .length = 1});
    }
    peer.wait_for_the_end();
  };
  const auto script = [](net::connection& server, net::device&) { return expect_end(server, errc::protocol_error); };
  with_raw_peer(provider, guess, script);
}

TEST(fabric_fences, hold_memory_back_until_the_peer_is_done_with_it) {
  std::atomic<bool> is_done{false};
  const auto peer = [&](const raw_peer& self) {
    const auto asked = self.hear();
    ASSERT_TRUE(asked && asked->kind == control_record::fences);
    self.say({.kind = control_record::fenced, .reason = control_record::under_way, .key = asked->key});
    is_done = true;
    self.say({.kind = control_record::fenced, .reason = control_record::none_under_way, .key = asked->key});
    self.wait_for_the_end();
  };
  with_raw_peer(provider, peer, [&](net::connection& server, net::device& device) -> task<> {
    auto memory = co_await device.allocate(100);
    auto open = co_await server.expose(std::move(memory), mr::usage::write_dst);
    const auto back = co_await open.revoke();
    EXPECT_TRUE(is_done);
    EXPECT_EQ(back.size(), 100u);
    server.abort();
  });
}

TEST(fabric_fences, that_a_peer_does_not_keep_end_the_connection) {
  with_raw_peer(provider, stay_silent, [](net::connection& server, net::device& device) -> task<> {
    auto memory = co_await device.allocate(100);
    auto open = co_await server.expose(std::move(memory), mr::usage::write_dst);
    static_cast<void>(co_await open.revoke());
    co_await expect_end(server, errc::protocol_error);
  });
}

// Bytes of an access of its may still be on their way here.
TEST(fabric_fences, are_not_kept_by_a_peer_that_goes_without_having_finished) {
  const auto peer = [](const raw_peer& self) {
    const auto end = self.hear(control_record::finished);
    ASSERT_TRUE(end);
    self.say({.kind = control_record::drained});
  };
  with_raw_peer(provider, peer, [](net::connection& server, net::device& device) -> task<> {
    auto memory = co_await device.allocate(100);
    auto open = co_await server.expose(std::move(memory), mr::usage::write_dst);
    const auto failure = co_await failure_of(server.close());
    EXPECT_FALSE(failure) << failure->what();  // nobody waits for it any longer
    const auto back = co_await open.revoke();
    EXPECT_EQ(back.size(), 100u);
  });
}

TEST(fabric_fences, that_were_not_asked_for_end_the_connection) {
  const auto liar = [](const raw_peer& peer) {
    peer.say({.kind = control_record::fenced, .reason = control_record::none_under_way, .key = 1});
    peer.wait_for_the_end();
  };
  const auto script = [](net::connection& server, net::device&) { return expect_end(server, errc::protocol_error); };
  with_raw_peer(provider, liar, script);
}

constexpr std::uint64_t used = 77;  // a key of the peer's

// Runs `peer(self, library)` against an end that has written by that key, and has not heard of the completion.
template <class Peer>
void with_a_late_completion(Peer peer) {
  shim_library library;
  net::device device = net::device::open(net::fabric::open_transport(provider, library));
  library.lose_requests();
  const auto wait_for_the_write = [&](const raw_peer& self) {
    while (library.lost() == 0) std::this_thread::yield();
    peer(self, library);
  };
  with_raw_peer(device, provider, wait_for_the_write, [&](net::connection& server, net::device&) -> task<> {
    auto source = co_await device.allocate(8);
    co_await server.write(source, mr::remote_slice(used, 0, 8, mr::usage::write_dst));
    server.abort();
  });
}

TEST(fabric_fences, are_answered_once_the_accesses_by_a_key_have_ended) {
  with_a_late_completion([](const raw_peer& self, shim_library& library) {
    constexpr std::uint64_t unused = 78;
    self.say({.kind = control_record::fences, .key = unused});
    const auto none = self.hear(control_record::fenced);
    EXPECT_TRUE(none && none->key == unused && none->reason == control_record::none_under_way);
    self.say({.kind = control_record::fences, .key = used});
    const auto some = self.hear(control_record::fenced);
    EXPECT_TRUE(some && some->key == used && some->reason == control_record::under_way);
    library.find_lost_requests();
    const auto last = self.hear(control_record::fenced);
    EXPECT_TRUE(last && last->key == used && last->reason == control_record::none_under_way);
  });
}

TEST(fabric_fences, do_not_turn_an_access_whose_completion_is_late_into_a_refused_one) {
  with_a_late_completion([](const raw_peer& self, shim_library& library) {
    self.say({.kind = control_record::fences, .key = used});
    unsigned answers = 0;
    for (auto next = self.hear(); next; next = self.hear()) {
      if (next->kind == control_record::fenced && next->reason == control_record::none_under_way) break;
      if (next->kind != control_record::asks) continue;
      if (++answers == 2) library.find_lost_requests();
      self.say({.kind = control_record::answers, .reason = control_record::revoking, .key = used});
    }
    EXPECT_GE(answers, 2u);
  });
}

TEST(fabric_questions, about_a_key_that_is_being_revoked_are_no_guesses_and_are_refused_once_it_has_been) {
  std::atomic<std::uint64_t> address = 0;
  const auto peer = [&](const raw_peer& self) {
    const auto fence = self.hear(control_record::fences);
    ASSERT_TRUE(fence);
    const auto ask = [&] {
      self.say({.kind = control_record::asks,
                .reason = control_record::writing,
                .key = fence->key,
                .address = address,
                .length = 100});
      const auto answer = self.hear(control_record::answers);
      return answer ? answer->reason : std::uint8_t{control_record::reading};
    };
    self.say({.kind = control_record::fenced, .reason = control_record::under_way, .key = fence->key});
    for (int i = 0; i != 100; ++i) EXPECT_EQ(ask(), control_record::revoking);
    self.say({.kind = control_record::fenced, .reason = control_record::none_under_way, .key = fence->key});
    EXPECT_EQ(ask(), control_record::aborted);
  };
  with_raw_peer(provider, peer, [&](net::connection& server, net::device& device) -> task<> {
    auto memory = co_await device.allocate(100);
    auto open = co_await server.expose(std::move(memory), mr::usage::write_dst);
    address = open.remote().address();
    static_cast<void>(co_await open.revoke());
    co_await expect_end(server, errc::peer_vanished);
  });
}

task<> expose_a_region_that_goes(net::device& device, net::connection& server) {
  std::vector<std::byte> memory(100);
  const mr::registration_options purpose{.usage = mr::usage::bind_window};
  const auto region = co_await device.register_memory(std::span<std::byte>(memory), purpose);
  const auto open = co_await server.expose(region.slice(), mr::usage::write_dst);
}

TEST(fabric_fences, freeze_all_calls_of_the_device_that_move_bytes) {
  shim_library library;
  net::device device = net::device::open(net::fabric::open_transport("net", library));
  with_raw_peer(device, "net", stay_silent, [&](net::connection& server, net::device&) -> task<> {
    co_await expose_a_region_that_goes(device, server);
    const unsigned before = library.moves();
    co_await expect_end(server, errc::protocol_error);
    EXPECT_EQ(library.moves(), before);
  });
}

TEST(fabric_fences, freeze_the_device_where_a_region_goes_before_the_peer_has_answered) {
  with_raw_peer("net", stay_silent, [](net::connection& server, net::device& device) -> task<> {
    co_await expose_a_region_that_goes(device, server);
    co_await expect_end(server, errc::protocol_error);
    co_await between(device, exchange);
  });
}

// A worker closes the endpoint meanwhile.
TEST(fabric_fences, let_a_region_go_at_any_turn_of_the_end_of_its_connection) {
  net::device device = net::device::open("fabric:net");
  run([&]() -> task<> {
    net::listener listener = co_await device.listen("127.0.0.1:0");
    for (int turns = 0; turns != 60; ++turns) {
      auto [client, server] =
          co_await when_all(device.connect(std::string(listener.address()), few_receives()), accept_one(listener));
      std::vector<std::byte> memory(100);
      const mr::registration_options purpose{.usage = mr::usage::bind_window};
      const auto region = co_await device.register_memory(std::span<std::byte>(memory), purpose);
      const auto open = co_await server.expose(region.slice(), mr::usage::write_dst);
      server.abort();
      for (int i = 0; i != turns; ++i) co_await yield();
    }
  });
}

TEST(fabric_fences, of_regions_are_refused_where_nothing_can_be_frozen) {
  with_raw_peer("sockets", stay_silent, [](net::connection& server, net::device& device) -> task<> {
    std::vector<std::byte> memory(100);
    const mr::registration_options purpose{.usage = mr::usage::bind_window};
    auto region = co_await device.register_memory(std::span<std::byte>(memory), purpose);
    const auto failure = co_await failure_of(server.expose(region.slice(), mr::usage::write_dst));
    EXPECT_TRUE(failed_with(failure, errc::not_supported));
    co_await region.release();
    server.abort();
  });
}

// What has no answer yet has to have room in the socket. The clock stands until all has been asked.
TEST(fabric_fences, are_asked_64_at_a_time_of_a_peer_that_does_not_answer) {
  manual_clock time;
  const auto silent = [](const raw_peer& self) {
    for (int i = 0; i != 64; ++i) {
      const auto asked = self.hear();
      ASSERT_TRUE(asked && asked->kind == control_record::fences) << i;
    }
    const auto last = self.hear();
    EXPECT_TRUE(last && last->kind == control_record::broken && last->reason == control_record::refused_you);
  };
  const auto script = [&](net::connection& server, net::device& device) -> task<> {
    co_await open_and_release_regions(device, 100);
    time.advance(1s);  // longer than the peer may take
    co_await expect_end(server, errc::protocol_error);
  };
  with_raw_peer("net", silent, script, time);
}

// An end that does something else for a second finds two answers to each question, behind the questions of its peer.
TEST(fabric_fences, that_were_answered_in_time_are_not_overdue_to_an_end_that_is_late_itself) {
  constexpr std::size_t count = 64;
  manual_clock time;
  std::atomic<bool> answered{false};
  const auto answer = [](const raw_peer& self) {
    std::vector<std::uint64_t> keys;
    while (keys.size() != count) {
      const auto asked = self.hear();
      ASSERT_TRUE(asked && asked->kind == control_record::fences) << keys.size();
      keys.push_back(asked->key);
    }
    for (std::size_t i = 0; i != count; ++i) self.say({.kind = control_record::fences, .key = 77});
    for (const std::uint64_t key : keys) {
      self.say({.kind = control_record::fenced, .reason = control_record::under_way, .key = key});
      self.say({.kind = control_record::fenced, .reason = control_record::none_under_way, .key = key});
    }
  };
  const auto prompt = [&](const raw_peer& self) {
    answer(self);
    answered = true;
    self.wait_for_the_end();
  };
  const auto script = [&](net::connection& server, net::device& device) -> task<> {
    co_await open_and_release_regions(device, count);
    while (!answered) std::this_thread::yield();
    time.advance(1s);
    co_await between(device, exchange);  // once all answers have been heard
    EXPECT_TRUE(server.is_open());
    server.abort();
  };
  with_raw_peer("net", prompt, script, time);
}

// The clock stands meanwhile: the peer's thread may be late.
TEST(fabric_fences, of_however_many_regions_are_all_answered) {
  constexpr std::size_t count = 1000;
  held_clock time;
  const auto answer = [](const raw_peer& self) {
    for (std::size_t i = 0; i != count; ++i) {
      const auto asked = self.hear();
      ASSERT_TRUE(asked && asked->kind == control_record::fences) << i;
      // Some are in use for a while.
      if (i % 3 == 0)
        self.say({.kind = control_record::fenced, .reason = control_record::under_way, .key = asked->key});
      self.say({.kind = control_record::fenced, .reason = control_record::none_under_way, .key = asked->key});
    }
  };
  const auto peer = [&](const raw_peer& self) {
    answer(self);
    time.let_go();
    self.wait_for_the_end();
  };
  const auto script = [](net::connection& server, net::device& device) -> task<> {
    co_await open_and_release_regions(device, count);
    co_await between(device, exchange);  // once the device is no longer frozen
    server.abort();
  };
  with_raw_peer("net", peer, script, time);
}

// A set-up in the middle of which a region goes that the peer may use from the answer on.
class interrupted_set_up {
 public:
  // By the peer once it has been answered.
  void answer_and_wait_for_the_region() { wait_for(released_); }
  void wait_for_the_end() { wait_for(ended_); }

  // `peer(port)` runs on a thread, and waits for one of these. Returns what accept() has failed with.
  template <class Peer, class Script>
  std::optional<error> run(net::device& device, Peer peer, Script script, clock& time = clock::steady()) {
    executor home({.clock = &time});
    std::jthread other;
    std::optional<error> failure;
    const auto accept = [&](net::listener& listener) -> task<> {
      auto request = co_await listener.next();
      net::connection_options how = few_receives();
      how.set_up_timeout = std::chrono::hours(1);
      auto server = co_await as_result(request->accept(how));
      if (!server) failure = server.error();
      ended_ = true;
      if (server) co_await script(*server);
    };
    const auto release = [&](mr::region& region) -> task<> {
      while (!answered_) co_await yield();
      co_await region.release();
      if (!meanwhile_) {
        let_the_peer_go_on();
        co_return;
      }
      co_await settle();  // so that the set-up has been told
      meanwhile_();
      co_await yield();  // while a task is ready, a turn that has just looked at clock and kernel does not look again
    };
    const auto body = [&]() -> task<> {
      std::vector<std::byte> memory(100);
      const mr::registration_options purpose{.usage = mr::usage::write_dst};
      auto region = co_await device.register_memory(std::span<std::byte>(memory), purpose);
      net::listener listener = co_await device.listen("127.0.0.1:0");
      const std::uint16_t port = port_of(listener.address());
      other = std::jthread([port, &peer] { peer(port); });
      auto releasing = release(region);
      co_await when_all(accept(listener), std::move(releasing));
    };
    home.run(with_timeout(patience, body()));
    return failure;
  }
  void let_the_peer_go_on() { released_ = true; }
  // What is done once the region has gone and the set-up knows of it, instead of letting the peer go on.
  void meanwhile(std::function<void()> what) { meanwhile_ = std::move(what); }

 private:
  void wait_for(const std::atomic<bool>& what) {
    answered_ = true;
    while (!what) std::this_thread::yield();
  }
  std::atomic<bool> answered_{false};
  std::atomic<bool> released_{false};
  std::atomic<bool> ended_{false};
  std::function<void()> meanwhile_;
};

// The clock stands until the peer has answered: its thread may be late.
TEST(fabric_set_up, asks_about_regions_that_went_before_the_peer_was_ready) {
  net::device device = net::device::open("fabric:net");
  held_clock time;
  interrupted_set_up made;
  const auto peer = [&](std::uint16_t port) {
    const raw_peer self(port, "net", [&](const sockaddr_in&) { made.answer_and_wait_for_the_region(); });
    const auto asked = self.hear(control_record::fences);
    if (asked) self.say({.kind = control_record::fenced, .reason = control_record::none_under_way, .key = asked->key});
    time.let_go();
    ASSERT_TRUE(asked);
    self.wait_for_the_end();
  };
  const auto script = [&](net::connection& server) -> task<> {
    co_await between(device, exchange);
    server.abort();
  };
  const auto failure = made.run(device, peer, script, time);
  EXPECT_FALSE(failure) << failure->what();
}

TEST(fabric_set_up, of_a_peer_that_takes_its_time_is_broken_off_where_a_region_has_gone) {
  net::device device = net::device::open("fabric:net");
  interrupted_set_up made;
  const auto peer = [&](std::uint16_t port) {
    const raw_peer self(port, "net", [&](const sockaddr_in&) { made.wait_for_the_end(); });
  };
  const auto failure = made.run(device, peer, [](net::connection& server) -> task<> {
    ADD_FAILURE() << "the peer was waited for";
    server.abort();
    co_return;
  });
  EXPECT_TRUE(failed_with(failure, errc::timed_out));
  run([&] { return between(device, exchange); });
}

// A clock that stands, and whose next reading can be preceded by something.
class interrupted_clock final : public clock {
 public:
  [[nodiscard]] time_point now() noexcept override {
    if (const auto first = std::exchange(before_, nullptr)) first();
    return time_.now();
  }
  void before_next_reading(std::function<void()> what) { before_ = std::move(what); }
  void advance(duration by) noexcept { time_.advance(by); }

 private:
  manual_clock time_;
  std::function<void()> before_;
};

// A set-up in the middle of which a region has gone, and a peer that says that it is ready while this end does
// something else for so long: between a look at the socket and the next one at the timers, which reads the clock.
class set_up_at_a_late_end {
 public:
  // Returns what accept() has failed with.
  std::optional<error> run(net::device& device, duration late, const std::function<void(net::connection&)>& check) {
    std::atomic<bool> is_ready{false};
    const auto be_late = [&, late] {
      made_.let_the_peer_go_on();
      while (!is_ready) std::this_thread::yield();
      time_.advance(late);
    };
    made_.meanwhile([&] { time_.before_next_reading(be_late); });
    const auto peer = [&](std::uint16_t port) {
      const raw_peer self(port, "net", [&](const sockaddr_in&) { made_.answer_and_wait_for_the_region(); });
      is_ready = true;
      const auto asked = self.hear(control_record::fences);
      if (asked)
        self.say({.kind = control_record::fenced, .reason = control_record::none_under_way, .key = asked->key});
      self.wait_for_the_end();
    };
    const auto script = [&](net::connection& server) -> task<> {
      co_await between(device, exchange);
      check(server);
      server.abort();
    };
    return made_.run(device, peer, script, time_);
  }

 private:
  interrupted_clock time_;
  interrupted_set_up made_;
};

TEST(fabric_set_up, goes_on_with_a_peer_that_was_ready_in_time_at_an_end_that_is_late_itself) {
  net::device device = net::device::open("fabric:net");
  set_up_at_a_late_end made;
  const auto failure = made.run(device, 1s, [](net::connection& server) { EXPECT_TRUE(server.is_open()); });
  EXPECT_FALSE(failure) << failure->what();
}

// The peer's word comes between the last look at the socket and the end of its time.
TEST(fabric_set_up, that_is_broken_off_as_the_peer_says_that_it_is_ready_yields_no_connection) {
  net::device device = net::device::open("fabric:net");
  set_up_at_a_late_end made;
  const auto failure = made.run(device, 500ms, [](net::connection&) { ADD_FAILURE() << "its socket is shut down"; });
  EXPECT_TRUE(failed_with(failure, errc::timed_out));
}

// A TCP socket that listens, for a peer that is made by hand.
class door : private immovable {
 public:
  door() {
    socklen_t length = sizeof own_;
    EXPECT_EQ(::bind(socket_.fd(), reinterpret_cast<const sockaddr*>(&own_), length), 0);
    EXPECT_EQ(::getsockname(socket_.fd(), reinterpret_cast<sockaddr*>(&own_), &length), 0);
    EXPECT_EQ(::listen(socket_.fd(), 1), 0);
  }

  [[nodiscard]] const sockaddr_in& own() const noexcept { return own_; }
  [[nodiscard]] std::string address() const { return "127.0.0.1:" + std::to_string(ntohs(own_.sin_port)); }
  [[nodiscard]] descriptor accept() const {
    return {::accept4(socket_.fd(), nullptr, nullptr, SOCK_CLOEXEC), system_calls::kernel()};
  }

 private:
  descriptor socket_ = tcp_socket();
  sockaddr_in own_ = loopback_at(INADDR_LOOPBACK, 0);
};

// Whether a peer is ready once it has been answered with an endpoint that is at this address.
bool is_ready_for(const descriptor& peer, const sockaddr_in& endpoint) {
  std::array<std::byte, net::fabric::frame::max_bytes> bytes;
  EXPECT_GT(::recv(peer.fd(), bytes.data(), bytes.size(), 0), 0);
  net::fabric::frame answer{.kind = net::fabric::frame_kind::accept};
  EXPECT_TRUE(answer.set_address(std::as_bytes(std::span(&endpoint, 1))));
  send_frame(peer, answer);
  return ::recv(peer.fd(), bytes.data(), bytes.size(), 0) > 0;
}

sim::loose_task accept_loosely(net::connection_request request) {
  const auto accept = [&]() -> task<> { static_cast<void>(co_await request.accept(few_receives())); };
  static_cast<void>(co_await failure_of(accept()));
}

sim::loose_task connect_loosely(net::device& from, std::string address) {
  const auto connect = [&]() -> task<> {
    static_cast<void>(co_await from.connect(std::move(address), few_receives()));
  };
  static_cast<void>(co_await failure_of(connect()));
}

// Returns once `said`, after so many more turns, and when the task waits: then it may be destroyed.
task<> until_at_rest(const sim::loose_task& waiting, const std::atomic<bool>& said, int turns) {
  while (!said || !waiting.at_rest()) co_await yield();
  for (int i = 0; i < turns || !waiting.at_rest(); ++i) co_await yield();
}

TEST(fabric_set_up, of_an_acceptor_that_is_destroyed_while_its_peer_is_silent_closes_the_socket) {
  net::device device = net::device::open("fabric:net");
  for (const int turns : {0, 1, 3, 100}) {
    executor home;
    std::atomic<bool> answered = false;
    std::atomic<bool> destroyed = false;
    std::jthread other;
    const auto body = [&]() -> task<> {
      net::listener listener = co_await device.listen("127.0.0.1:0");
      other = std::jthread([&, port = port_of(listener.address())] {
        const raw_peer self(port, "net", [&](const sockaddr_in&) {
          answered = true;
          while (!destroyed) std::this_thread::yield();
        });
        self.wait_for_the_end();
      });
      auto request = co_await listener.next();
      {
        const auto accepting = accept_loosely(*std::move(request));
        accepting.start(home);
        co_await until_at_rest(accepting, answered, turns);
        EXPECT_EQ(accepting.waits_for(), "a receive");
      }
      destroyed = true;
      co_await between(device, exchange);
    };
    home.run(with_timeout(patience, body()));
  }
}

TEST(fabric_set_up, of_a_connector_that_is_destroyed_while_its_peer_is_silent_closes_the_socket) {
  net::device device = net::device::open("fabric:net");
  for (const int turns : {0, 1, 3, 100}) {
    const door way;
    std::atomic<bool> heard = false;
    std::jthread other([&] {
      const descriptor peer = way.accept();
      std::array<std::byte, net::fabric::frame::max_bytes> bytes;
      EXPECT_GT(::recv(peer.fd(), bytes.data(), bytes.size(), 0), 0);
      heard = true;
      EXPECT_LE(::recv(peer.fd(), bytes.data(), bytes.size(), 0), 0);
    });
    executor home;
    const auto body = [&]() -> task<> {
      {
        const auto connecting = connect_loosely(device, way.address());
        connecting.start(home);
        co_await until_at_rest(connecting, heard, turns);
        EXPECT_EQ(connecting.waits_for(), "a receive");
      }
      co_await between(device, exchange);
    };
    home.run(with_timeout(patience, body()));
  }
}

// Destroys the set-up of one end while a worker is at its `number`-th job. True if it had ended before.
task<bool> destroy_set_up(net::device& device, held_workers& workers, executor& home, bool of_client) {
  net::listener listener = co_await device.listen("127.0.0.1:0");
  const std::string address(listener.address());
  bool ended = false;
  const auto meet = [&](scope& tasks) -> task<> {
    const auto accept_other = [&]() -> task<> { static_cast<void>(co_await as_result(accept_one(listener))); };
    const auto connect_other = [&]() -> task<> {
      static_cast<void>(co_await as_result(device.connect(address, few_receives())));
    };
    tasks.spawn(of_client ? accept_other() : connect_other());
    const auto accept_next = [&]() -> sim::loose_task {
      auto request = co_await listener.next();
      static_cast<void>(co_await failure_of(request->accept(few_receives())));
    };
    {
      const sim::loose_task victim = of_client ? connect_loosely(device, address) : accept_next();
      victim.start(home);
      while (!(workers.hold_it() && victim.at_rest()) && !victim.ended()) co_await yield();
      ended = victim.ended();
    }
    workers.let_go();
    tasks.request_stop();
  };
  co_await with_scope(on_failure::stop_siblings, meet);
  co_return ended;
}

TEST(fabric_set_up, that_is_destroyed_while_a_worker_is_at_any_job_leaves_nothing) {
  net::device device = net::device::open("fabric:net");
  for (const bool of_client : {true, false}) {
    bool ended = false;
    for (std::size_t number = 0; !ended; ++number) {
      held_workers workers(number);
      executor home({.workers = &workers});
      const auto body = [&]() -> task<> {
        ended = co_await destroy_set_up(device, workers, home, of_client);
        co_await between(device, exchange);
      };
      home.run(with_timeout(patience, body()));
    }
  }
}

sim::loose_task expose_loosely(net::connection& peer, mr::buffer memory) {
  const net::exposure open = co_await peer.expose(std::move(memory), mr::usage::write_dst);
}

// The memory goes with the frame.
TEST(fabric_exposure, that_is_destroyed_while_a_worker_registers_it_waits_for_that) {
  net::device device = net::device::open("fabric:net");
  held_workers workers;
  executor home({.workers = &workers});
  const auto script = [&](net::connection& client, net::connection& server, mr::pool& pool) -> task<> {
    auto memory = co_await pool.allocate(100);
    {
      const sim::loose_task exposing = expose_loosely(server, std::move(memory));
      workers.hold_next_until_waited_for();
      exposing.start(home);
      while (!workers.hold_it() || !exposing.at_rest()) co_await yield();
    }
    EXPECT_FALSE(workers.hold_it());
    co_await exchange(client, server, pool);
  };
  home.run(with_timeout(patience, between(device, script)));
}

TEST(fabric_set_up, answers_a_peer_only_once_its_endpoint_is_known) {
  shim_library library;
  net::device device = net::device::open(net::fabric::open_transport(provider, library));
  const auto peer = [&](std::uint16_t port) {
    const raw_peer self(port, provider, [&](const sockaddr_in& own) { EXPECT_TRUE(library.has_inserted(&own)); });
  };
  with_thread(device, peer, [](net::connection& server, net::device&) -> task<> {
    co_await expect_end(server, errc::peer_vanished);
  });
}

TEST(fabric_set_up, is_ready_only_once_the_endpoint_of_the_peer_is_known) {
  shim_library library;
  net::device device = net::device::open(net::fabric::open_transport(provider, library));
  const door way;
  std::jthread acceptor([&] {
    const descriptor peer = way.accept();
    EXPECT_TRUE(is_ready_for(peer, way.own()));
    EXPECT_TRUE(library.has_inserted(&way.own()));
  });
  run([&]() -> task<> {
    net::connection client = co_await device.connect(way.address());
    co_await expect_end(client, errc::peer_vanished);
  });
}

TEST(fabric_set_up, with_an_acceptor_that_names_an_endpoint_on_another_host_fails) {
  shim_library library;
  net::device device = net::device::open(net::fabric::open_transport(provider, library));
  const door way;
  const sockaddr_in elsewhere = loopback_at(INADDR_LOOPBACK + 1, ntohs(way.own().sin_port));
  std::jthread acceptor([&] {
    const descriptor peer = way.accept();
    EXPECT_FALSE(is_ready_for(peer, elsewhere));
  });
  run([&]() -> task<> {
    EXPECT_TRUE(failed_with(co_await failure_of(device.connect(way.address())), errc::protocol_error));
  });
  EXPECT_FALSE(library.has_inserted(&elsewhere));
}

TEST(fabric_memory_of_a_connection, is_in_use_until_its_endpoint_is_closed) {
  shim_library library;
  net::device device = net::device::open(net::fabric::open_transport(provider, library));
  mr::pool_statistics at_close;
  unsigned closed = 0;
  library.before_close([&] {
    at_close = device.pool().statistics();
    ++closed;
  });
  library.lose_requests();
  with_raw_peer(device, provider, stay_silent, [&](net::connection& server, net::device&) -> task<> {
    const auto sending = [&]() -> task<> {
      auto note = co_await device.allocate(1000);
      co_await server.send(std::move(note));
    };
    const auto aborting = [&]() -> task<> {
      while (library.lost() == 0) co_await yield();
      server.abort();
    };
    const auto [failure, nothing] = co_await when_all(failure_of(sending()), aborting());
    EXPECT_TRUE(failure);
  });
  EXPECT_EQ(closed, 1u);
  EXPECT_GE(at_close.receive.in_use_bytes, std::size_t{few_receives().receive_depth} * few_receives().receive_size);
  EXPECT_GE(at_close.send.in_use_bytes, 1000u);
}

TEST(fabric_refusals, of_accesses_that_an_exposure_has_no_right_for_are_never_done) {
  shim_library library;
  net::device device = net::device::open(net::fabric::open_transport(provider, library));
  const auto script = [](net::connection& client, net::connection& server, mr::pool& pool) -> task<> {
    auto room = co_await filled_with(pool, 8, std::byte{1});
    auto own = co_await filled_with(pool, 8, std::byte{2});
    auto open = co_await server.expose(std::move(room), mr::usage::read_src);
    const auto writing = [&]() -> task<> {
      const mr::remote_slice& given = open.remote();
      co_await client.write(own, mr::remote_slice(given.key(), given.address(), 8, mr::usage::write_dst));
    };
    const auto failure = co_await failure_of(writing());
    EXPECT_TRUE(failed_with(failure, errc::remote_access));
    if (!failure) client.abort();
    const auto back = co_await open.revoke();
    EXPECT_TRUE(is_all(back.bytes(), std::byte{1}));
    if (failure) co_await expect_end(server, errc::protocol_error);
  };
  run([&] { return between(device, script); });
}

// A provider that takes no longer messages.
class narrow_library final : public shim_library {
 public:
  static constexpr std::size_t most_bytes = 2000;

  int getinfo(const fi_info* hints, fi_info** found) noexcept override {
    const int result = shim_library::getinfo(hints, found);
    if (result == 0) (*found)->ep_attr->max_msg_size = most_bytes;
    return result;
  }
  ssize_t sendmsg(fid_ep* endpoint, const fi_msg* what, std::uint64_t flags) noexcept override {
    std::size_t bytes = 0;
    for (const iovec& each : std::span(what->msg_iov, what->iov_count)) bytes += each.iov_len;
    if (bytes > most_bytes) broke("a message is longer than the provider takes");
    return shim_library::sendmsg(endpoint, what, flags);
  }
};

TEST(fabric_messages, of_the_longest_kind_have_room_for_both_trailers) {
  narrow_library library;
  with_peers(library, [](net::connection& client, net::connection& server, mr::pool& pool) -> task<> {
    const std::size_t bytes = client.capabilities().max_message_bytes - net::trailer::max_bytes;
    auto note = co_await pool.allocate(bytes);
    co_await client.send(std::move(note), {.immediate = 7});
    const auto message = co_await server.recv_or_throw();
    EXPECT_EQ(message.size(), bytes);
    EXPECT_EQ(message.immediate, 7u);
  });
}

TEST(fabric_links, end_when_the_fabric_moves_nothing_although_the_peer_is_there) {
  for (const bool writes : {false, true}) {
    SCOPED_TRACE(writes);
    shim_library library;
    net::device device = net::device::open(net::fabric::open_transport(provider, library));
    run([&]() -> task<> {
      const net::connection_options how{.dead_peer_after = 200ms};
      net::listener listener = co_await device.listen("127.0.0.1:0");
      auto ends = co_await when_all(device.connect(std::string(listener.address()), how), listener.accept(how));
      net::connection& client = std::get<0>(ends);
      auto room = co_await device.allocate(10);
      const auto open = co_await std::get<1>(ends)->expose(std::move(room), mr::usage::write_dst);
      auto note = co_await device.allocate(10);
      library.lose_requests();
      const auto use = [&]() -> task<> {
        if (writes) co_await client.write(note, open.remote());
        if (!writes) co_await client.send(note);
        co_await expect_end(client, errc::peer_vanished);
      };
      const auto failure = co_await failure_of(use());
      EXPECT_TRUE(!writes || failed_with(failure, errc::peer_vanished));
    });
  }
}

}  // namespace
}  // namespace weft::test
