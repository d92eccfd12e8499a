// SPDX-License-Identifier: Apache-2.0
// What the tests of links over shared memory share: connections, and peers whose rings are written by hand.
#pragma once

#include <weft/net/shm/channel.hpp>
#include <weft/net/shm/record.hpp>

#include <fstream>
#include <tuple>

#include "kit/buffers.hpp"
#include "kit/expect_failure.hpp"
#include "shm/support.hpp"
#include "stag_of.hpp"

namespace weft::test {

#if defined(WEFT_TEST_TSAN)
inline constexpr bool with_thread_sanitizer = true;
#else
inline constexpr bool with_thread_sanitizer = false;
#endif

using shm::record;
using shm::record_kind;

/// How many mappings of files in memory with such a name this process has.
inline std::size_t mapped_files(std::string_view name) {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find(name) != std::string::npos;
  return count;
}
inline std::size_t mapped_channels() { return mapped_files("memfd:weft-channel"); }

/// What a test must leave as it found it.
struct footprint {
  std::size_t descriptors = open_descriptors();
  std::size_t channels = mapped_channels();

  friend bool operator==(const footprint&, const footprint&) = default;
};

inline void PrintTo(const footprint& what, std::ostream* out) {
  *out << what.descriptors << " descriptors, " << what.channels << " channels";
}

/// Once what has ended is gone.
inline task<footprint> settled_footprint() {
  co_await settle();
  co_return footprint();
}

/// Waits until only what `expected` names is left, as far as that comes without time.
inline task<> expect_only(footprint expected) {
  for (int i = 0; i < 50 && footprint() != expected; ++i) co_await settle();
  EXPECT_EQ(footprint(), expected);
}

/// An end of a connection whose program is the test itself: it keeps to the set-up, and to nothing else.
class manual_end {
 public:
  manual_end(raw_end socket, shm::channel memory)
      : socket_(std::move(socket)), memory_(std::move(memory)), out_(memory_.writer()), in_(memory_.reader()) {}

  /// As the end that connects, with this private data.
  static task<manual_end> connect(shm::unix_name name, bytes greeting) {
    raw_end socket = raw_end::connect(name);
    shm::frame hello = hello_frame();
    EXPECT_TRUE(hello.set_private_data(greeting));
    socket.send(hello);
    descriptor file;
    const shm::frame answer = co_await socket.receive_frame(&file);
    shm::channel memory = shm::channel::adopt(std::move(file), answer.ring_bytes, system_calls::kernel());
    memory.close_file();
    socket.send(shm::frame{.kind = shm::frame_kind::ready});
    co_return manual_end(std::move(socket), std::move(memory));
  }
  /// As the end that accepts.
  static task<manual_end> accept(raw_acceptor& from, bytes greeting) {
    raw_end socket = co_await from.accept();
    static_cast<void>(co_await socket.receive_frame());
    shm::frame answer = accept_frame();
    EXPECT_TRUE(answer.set_private_data(greeting));
    shm::channel memory = shm::channel::make(answer.ring_bytes, system_calls::kernel());
    const int file = memory.file();
    socket.send(answer, std::vector<int>(1, file));
    memory.close_file();
    static_cast<void>(co_await socket.receive_frame());
    co_return manual_end(std::move(socket), std::move(memory));
  }

  [[nodiscard]] shm::end_words& own() const noexcept { return memory_.own(); }
  [[nodiscard]] shm::end_words& other() const noexcept { return memory_.other(); }
  [[nodiscard]] shm::ring_writer& out() noexcept { return out_; }
  [[nodiscard]] raw_end& socket() noexcept { return socket_; }

  /// A record with this payload behind the last one, as its header describes it or not: published later.
  void put(const record& header, std::span<const std::byte> payload = {}) {
    std::memcpy(out_.place(), &header, sizeof header);
    std::copy(payload.begin(), payload.end(), out_.place() + sizeof header);
    out_.advance(shm::ring_bytes_of(payload.size()));
  }
  /// With the length of its payload.
  void put_whole(record header, std::span<const std::byte> payload) {
    header.bytes = static_cast<std::uint32_t>(payload.size());
    put(header, payload);
  }
  void publish() {
    out_.publish();
    wake();
  }
  void say(const record& header, std::span<const std::byte> payload = {}) {
    put(header, payload);
    publish();
  }
  /// With the length of its payload.
  void say_whole(const record& header, std::span<const std::byte> payload) {
    put_whole(header, payload);
    publish();
  }
  struct saying {
    record header;
    bytes payload;
  };
  /// Several records, which are published together.
  void say_all(std::initializer_list<saying> what) {
    for (const saying& each : what) put_whole(each.header, each.payload);
    publish();
  }
  /// A message.
  void send(std::span<const std::byte> payload) {
    say_whole({.kind = record_kind::send, .total = payload.size()}, payload);
  }
  /// So much has been written, it says.
  void claim_written(std::uint64_t count) {
    own().written.store(count, std::memory_order_release);
    wake();
  }
  void claim_taken(std::uint64_t count) {
    own().taken.store(count, std::memory_order_release);
    wake();
  }
  /// Whatever the other end says of its sleep.
  void wake() {
    other().attention.store(shm::end_words::awake, std::memory_order_seq_cst);
    static_cast<void>(::send(socket_.fd(), "w", 1, MSG_DONTWAIT | MSG_NOSIGNAL));
  }

  /// Gives the channel's memory from there on back to the system: what is read there is zero now.
  void drop_pages(std::size_t from) {
    const std::size_t length = shm::channel::header_bytes + 2 * memory_.ring_bytes();
    // The words of the accepting end are at its beginning.
    std::byte* const begin = std::min(reinterpret_cast<std::byte*>(&own()), reinterpret_cast<std::byte*>(&other()));
    EXPECT_EQ(::madvise(begin + from, length - from, MADV_REMOVE), 0);
  }

  /// The other end's next record; none if it has published no more.
  std::optional<record> take(bytes* payload = nullptr) {
    bool sane = true;
    while (in_.available(&sane) != 0 && sane) {
      record header;
      std::memcpy(&header, in_.place(), sizeof header);
      if (header.kind == record_kind::skip) {
        in_.advance(in_.until_wrap());
        continue;
      }
      if (payload != nullptr) payload->assign(in_.place() + sizeof header, in_.place() + sizeof header + header.bytes);
      in_.advance(shm::ring_bytes_of(header.bytes));
      return header;
    }
    EXPECT_TRUE(sane);
    return std::nullopt;
  }
  /// Lets the other end write where taken records were.
  void release() {
    in_.release();
    wake();
  }
  /// Wake-ups that lie in the socket.
  [[nodiscard]] std::size_t wake_ups() {
    std::size_t count = 0;
    for (std::byte one{}; ::recv(socket_.fd(), &one, 1, MSG_DONTWAIT) > 0;) ++count;
    return count;
  }

 private:
  raw_end socket_;
  shm::channel memory_;
  shm::ring_writer out_;
  shm::ring_reader in_;
};

/// A device with shared memory, an executor, and a second connection that must not be hurt.
class shm_link_test : public shm_test {
 protected:
  explicit shm_link_test(system_calls& calls = system_calls::kernel()) : shm_test(calls) {}

  [[nodiscard]] net::device& device() noexcept { return device_; }

  /// Two ends, which are aborted when it goes.
  struct pair {
    pair(net::connection one, net::connection other) noexcept : client(std::move(one)), server(std::move(other)) {}
    pair(pair&&) noexcept = default;
    ~pair() { abort(); }
    void abort() noexcept {
      client.abort();
      server.abort();
    }
    net::connection client;
    net::connection server;
  };
  task<pair> connect_pair(net::connection_options how = {}) {
    auto listener = co_await device_.listen("127.0.0.1:0");
    auto both =
        co_await when_all(device_.connect(std::string(listener.address()), how), accept_connection(listener, how));
    co_return pair(std::move(std::get<0>(both)), std::move(std::get<1>(both)));
  }
  static task<net::connection> accept_connection(net::listener& from, net::connection_options how) {
    auto request = co_await from.next();
    if (!request) throw error(errc::closed, "the listener");
    co_return co_await request->accept(how);
  }
  task<> send(net::connection& from, std::size_t size = 10) {
    auto message = co_await filled(size, 'x');
    co_await from.send(std::move(message));
  }
  static task<> expect_message(net::connection& at, std::size_t size = 10) {
    const auto arrived = co_await at.recv_or_throw();
    EXPECT_EQ(arrived.size(), size);
  }
  /// Messages go both ways.
  task<> expect_service(pair& both) {
    co_await send(both.client, 100);
    co_await expect_message(both.server, 100);
    co_await send(both.server, 200);
    co_await expect_message(both.client, 200);
  }
  task<mr::buffer> filled(std::size_t size, char with) {
    return filled_with(device_.pool(), size, static_cast<std::byte>(with));
  }

  /// Runs `script(others)` beside a connection. Nothing is left of it afterwards, and the others have gone on.
  void run_beside_others(const test_script<pair&>& script) {
    run([&]() -> task<> {
      pair others = co_await connect_pair();
      co_await expect_service(others);
      const footprint before = co_await settled_footprint();
      co_await script(others);
      co_await expect_only(before);
      co_await expect_service(others);
    });
  }
  /// The executor sleeps, because there is nothing to do.
  task<> expect_idle() {
    co_await settle();
    const std::uint64_t before = home().statistics().turns;
    co_await sleep_for(30ms);
    EXPECT_LT(home().statistics().turns, before + 10);
  }

  /// Connects a peer made by hand with a connection of ours, which accepts it or connects to it.
  task<std::tuple<manual_end, net::connection>> connect_by_hand(bool accepts, bytes greeting,
                                                                net::connection_options how) {
    if (accepts) {
      auto listener = co_await device_.listen("127.0.0.1:0");
      co_return co_await when_all(manual_end::connect(name_of(listener), greeting), accept_connection(listener, how));
    }
    const scratch_directory directory;
    raw_acceptor listener(shm::unix_name::of_path(directory.socket()));
    co_return co_await when_all(manual_end::accept(listener, greeting), device_.connect(directory.address(), how));
  }

 private:
  net::device device_ = net::device::open("shm");
};

/// Once with our end as the one that accepts, once as the one that connects.
class against_manual_end : public shm_link_test, public testing::WithParamInterface<const char*> {
 protected:
  using shm_link_test::shm_link_test;

  [[nodiscard]] static bool accepts() { return std::string_view(GetParam()) == "accepting"; }

  /// Runs `script(by_hand, connection)`. Nothing is left of the connection afterwards, and others have gone on.
  void against(const test_script<manual_end&, net::connection&>& script, const bytes& greeting = {},
               net::connection_options how = {}) {
    run_beside_others([&](pair& others) -> task<> {
      auto both = co_await connect_by_hand(accepts(), greeting, how);
      co_await script(std::get<0>(both), std::get<1>(both));
      co_await expect_service(others);
      std::get<1>(both).abort();
    });
  }
  /// `script(by_hand)` breaks the rules: our end ends with that, in these words, and tells the peer so.
  void expect_violation(const std::function<void(manual_end&)>& script, std::string_view words) {
    against([&](manual_end& hand, net::connection& victim) -> task<> {
      script(hand);
      co_await expect_end(victim, errc::protocol_error, words);
      EXPECT_EQ(last_words(hand), words);
      co_await hand.socket().receive_to_the_end();
    });
  }
  /// The next record.
  static task<record> next(manual_end& hand) {
    for (;;) {
      if (const auto found = hand.take()) co_return *found;
      co_await yield();
    }
  }
  /// The next one that is of that kind.
  static task<record> next(manual_end& hand, record_kind kind) {
    record found = co_await next(hand);
    while (found.kind != kind) found = co_await next(hand);
    co_return found;
  }
  /// What the connection ends with, whatever has arrived before.
  static task<error> end_of(net::connection& at) {
    for (;;) {
      auto failure = co_await failure_of(at.recv_or_throw());
      if (failure) co_return *failure;
    }
  }
  static task<> expect_end(net::connection& at, errc code, std::string_view words = {}) {
    EXPECT_TRUE(failed_with(co_await end_of(at), code, words));
  }
  /// What the peer says in its record about the end; "none" without one.
  static std::string last_words(manual_end& hand, shm::break_reason why = shm::break_reason::protocol_broken) {
    bytes payload;
    while (const auto next = hand.take(&payload)) {
      if (next->kind != record_kind::broken) continue;
      EXPECT_EQ(next->reason, static_cast<std::uint16_t>(why));
      return {reinterpret_cast<const char*>(payload.data()), payload.size()};
    }
    return "none";
  }
};

/// TEST_P of such a fixture, whose body is a coroutine with the peer, `hand`, and our end, `victim`. What follows the
/// name goes to against().
#define TEST_P_BY_HAND(suite, name, ...)                                                                               \
  TEST_P_SCRIPT(suite, name,                                                                                           \
                ([[maybe_unused]] ::weft::test::manual_end & hand, [[maybe_unused]] ::weft::net::connection & victim), \
                against(WEFT_SCRIPT __VA_OPT__(, ) __VA_ARGS__))

#define WEFT_ON_BOTH_ENDS(fixture)                                                   \
  INSTANTIATE_TEST_SUITE_P(shm, fixture, testing::Values("accepting", "connecting"), \
                           [](const testing::TestParamInfo<const char*>& which) { return which.param; })

}  // namespace weft::test
