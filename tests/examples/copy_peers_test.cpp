// SPDX-License-Identifier: Apache-2.0
// What copy makes of peers that speak its protocol and do not mean it well. Both sides run on one executor.
#include <weft/weft.hpp>

#include <fstream>

#include "beside.hpp"
#include "kit/failure.hpp"
#include "kit/scripted_test.hpp"
#include "kit/temporary_directory.hpp"
#include "kit/test.hpp"
#include <copy/client.hpp>
#include <copy/failure.hpp>
#include <copy/protocol.hpp>
#include <copy/server.hpp>
#include <copy/session.hpp>

namespace copy {
namespace {

using names = std::vector<std::string>;
using weft::task;

constexpr auto patience = std::chrono::seconds(60);

task<session> connect_to(station& home, std::string address) {
  auto peer = co_await home.device.connect(address, connection_options(home.patience));
  co_return session(home, std::move(peer));
}

task<> say(session& link, message what) { co_await link.send(pack(what)); }

/// Sends `what` and yields the answer.
task<message> ask(session& link, message what) {
  co_await say(link, std::move(what));
  co_return co_await link.receive();
}

/// That the peer hangs up, and not in order.
task<> expect_hang_up(session& link) {
  const auto next = [&] { return link.receive_if_any(); };
  EXPECT_FALSE(co_await weft::test::goes_in_order(next));
}

task<> write_to_slot(session& link, weft::mr::remote_slice slot, std::string text) {
  auto memory = co_await link.home().device.pool().allocate(text.size());
  std::ranges::copy(std::as_bytes(std::span(text)), memory.data());
  co_await link.peer().write(std::move(memory), slot.slice(0, text.size()));
}

/// A write that the peer will not have. It may hear of that before the write has ended, or later.
task<> write_what_is_refused(session& link, weft::mr::remote_slice slot, std::string text) {
  const auto outcome = co_await weft::as_result(write_to_slot(link, slot, std::move(text)));
  EXPECT_TRUE(outcome || outcome.error().code() == weft::errc::remote_access) << outcome.error().what();
  co_await expect_hang_up(link);
}

digest digest_of(const std::string& text) {
  sha256 hash;
  hash.update(std::as_bytes(std::span(text)));
  return hash.finish();
}

message end_with(const digest& sha) { return end_message{.sha = sha}; }

task<ready_message> begin_put(session& link, std::string name, std::uint64_t size) {
  const message put = put_message{.size = size, .name = name};
  const message ready = co_await ask(link, put);
  co_return std::get<ready_message>(ready);
}

/// Puts a small file as one should, and yields the slots that the peer has offered for it.
task<std::vector<weft::mr::remote_region>> put_properly(session& link, std::string name, std::string text) {
  const auto ready = co_await begin_put(link, name, text.size());
  co_await write_to_slot(link, ready.slots.at(0), text);
  const message taken = co_await ask(link, chunk_message{.index = 0});
  EXPECT_TRUE(std::holds_alternative<taken_message>(taken));
  const message stored = co_await ask(link, end_with(digest_of(text)));
  EXPECT_TRUE(std::holds_alternative<stored_message>(stored));
  co_return ready.slots;
}

/// As a receiver: something that is wrong, where the peer waits for the word that its first chunk was taken.
task<> offer_a_slot_and_say(session& link, message lie) {
  co_await link.receive();
  auto memory = co_await link.home().device.pool().allocate(most_chunk_bytes, weft::mr::budget::receive);
  const auto slot = co_await link.peer().expose(std::move(memory), weft::mr::usage::write_dst);
  ready_message ready;
  ready.slots.push_back(slot.remote());
  co_await ask(link, ready);
  co_await say(link, std::move(lie));
  co_await expect_hang_up(link);
}

class copy_peers : public testing::Test {
 protected:
  copy_peers() : device_(weft::net::device::open("iwarp", options())) {}

  static weft::net::device_options options() {
    weft::net::device_options memory;
    memory.pool.max_bytes = pool_bytes;
    return memory;
  }

  /// Runs a server, and `client(session&)` against it.
  template <class Client>
  void with_server(const Client& client) {
    run_with_server([&](std::string address) -> task<> {
      station home(device_, patience);
      session link = co_await connect_to(home, address);
      co_await client(link);
    });
  }
  /// The same, with `body(address)`.
  template <class Body>
  void run_with_server(const Body& body) {
    const auto serving = [&](weft::net::listener& listener) -> task<> {
      const serve_options served{.directory = there_.path(), .patience = patience};
      return serve(device_, listener, served);
    };
    loop_.run(weft::test::beside(device_, serving, body));
  }

  /// Runs `server(session&)` for the first client that comes, and a client; yields the words with which that one fails.
  template <class Server, class Client>
  std::string against_server(const Server& server, const Client& client) {
    std::string words;
    const auto calling = [&](std::string address) -> task<> {
      words = co_await weft::test::words_of<std::exception>(client(address));
    };
    const auto serving = [&](weft::net::listener& listener) -> task<> { return serve_one(listener, server); };
    loop_.run(weft::test::beside(device_, serving, calling));
    return words;
  }

  template <class Server>
  std::string put_against(const Server& server) {
    std::ofstream(there_.path() + "/source") << std::string(3 * most_chunk_bytes, 'x');
    return against_server(server, [this](std::string address) -> task<> { return put_source(address); });
  }

  template <class Server>
  std::string get_against(const Server& server) {
    return against_server(server, [this](std::string address) -> task<> { return get_arrived(address); });
  }

  weft::net::device device_;
  weft::executor loop_;
  weft::test::temporary_directory there_;

  static task<> put_all(session& link) {
    for (const char* name : {"a", "b", "c"}) co_await put_properly(link, name, "data");
  }

  template <class Server>
  task<> serve_one(weft::net::listener& listener, const Server& server) {
    auto request = co_await listener.next();
    auto peer = co_await request->accept(connection_options(patience));
    station home(device_, patience);
    session link(home, std::move(peer));
    co_await server(link);
  }

  task<> put_source(std::string address) {
    put_options wanted;
    wanted.files.push_back(there_.path() + "/source");
    wanted.address = address;
    wanted.patience = patience;
    const std::size_t failures = co_await put(device_, wanted);
    if (failures != 0) throw failure("put says that it failed");
  }

  task<> get_arrived(std::string address, std::string name = "arrived") {
    get_options wanted;
    wanted.name = name;
    wanted.output = there_.path() + "/arrived";
    wanted.address = address;
    wanted.patience = patience;
    co_await get(device_, wanted);
  }
};

// What a client does, and the files that the server has then; and what a receiver or a sender does, with the words in
// which a put or a get fails that leaves nothing.
#define TEST_F_SERVED(name, ...)                                              \
  TEST_F_SCRIPT(copy_peers, name, (session & link), with_server(WEFT_SCRIPT); \
                EXPECT_EQ(there_.names(), (names{__VA_ARGS__})))
#define TEST_F_RECEIVER(name, words) \
  TEST_F_SCRIPT(copy_peers, name, (session & link), EXPECT_NE(put_against(WEFT_SCRIPT).find(words), std::string::npos))
#define TEST_F_SENDER(name, words)                                                  \
  TEST_F_SCRIPT(copy_peers, name, (session & link),                                 \
                EXPECT_NE(get_against(WEFT_SCRIPT).find(words), std::string::npos); \
                EXPECT_EQ(there_.names(), names{}))

// Else a short --timeout would end the transfers that --resume-within is to keep.
TEST_F(copy_peers, a_connection_that_may_wait_for_a_rail_has_the_time_for_that_beside_its_patience) {
  using std::chrono::milliseconds;
  constexpr milliseconds short_patience(50);
  const auto answer_late = [&](weft::net::listener& listener) -> task<> {
    auto request = co_await listener.next();
    auto peer = co_await request->accept(connection_options(patience, patience));
    station home(device_, patience, patience);
    session link(home, std::move(peer));
    const message first = co_await link.receive();
    co_await weft::sleep_for(3 * short_patience);
    co_await say(link, first);
    static_cast<void>(co_await weft::as_result(link.receive_if_any()));
  };
  const auto ask_one = [&](std::string address) -> task<> {
    station home(device_, short_patience, patience);
    auto peer = co_await device_.connect(address, connection_options(patience, patience));
    session link(home, std::move(peer));
    const message question = get_message{.name = "a"};
    const auto answer = co_await weft::as_result(ask(link, question));
    EXPECT_TRUE(answer.has_value());
  };
  loop_.run(weft::test::beside(device_, answer_late, ask_one));
}

TEST_F_SERVED(a_put_outside_of_the_directory_is_refused_and_the_next_one_works, "good") {
  for (const char* const name : {"../evil", "/tmp/evil", "", ".", "..", ".hidden", "a/b", "a\nb"}) {
    const message put = put_message{.size = 1, .name = name};
    const message answer = co_await ask(link, put);
    EXPECT_TRUE(std::holds_alternative<failed_message>(answer)) << name;
  }
  co_await put_properly(link, "good", "data");
}

TEST_F_SERVED(a_chunk_out_of_turn_ends_the_connection_and_leaves_nothing) {
  co_await begin_put(link, "a", 3 * most_chunk_bytes);
  co_await say(link, chunk_message{.index = 1});
  co_await expect_hang_up(link);
}

TEST_F_SERVED(more_chunks_than_the_file_has_end_the_connection) {
  co_await begin_put(link, "a", 1);
  for (const std::uint64_t index : {0u, 1u}) co_await say(link, chunk_message{.index = index});
  co_await expect_hang_up(link);
}

TEST_F_SERVED(an_end_before_the_last_chunk_ends_the_connection_and_leaves_nothing) {
  co_await begin_put(link, "a", 1);
  co_await say(link, end_with(digest_of("")));
  co_await expect_hang_up(link);
}

TEST_F_SERVED(a_sender_that_closes_in_order_in_the_middle_leaves_nothing, "b") {
  co_await begin_put(link, "a", 1);
  co_await link.peer().close();
  session second = co_await connect_to(link.home(), std::string(link.peer().peer()));
  co_await put_properly(second, "b", "data");
}

TEST_F_SERVED(data_that_does_not_match_its_digest_is_not_stored, "b") {
  const auto ready = co_await begin_put(link, "a", 4);
  co_await write_to_slot(link, ready.slots.at(0), "evil");
  co_await ask(link, chunk_message{.index = 0});
  const message answer = co_await ask(link, end_with(digest_of("good")));
  const auto* const failed = std::get_if<failed_message>(&answer);
  EXPECT_TRUE(failed != nullptr && failed->text.find("damaged") != std::string::npos);
  co_await put_properly(link, "b", "data");
}

// Whether it comes before the slot is taken back, which spoils the digest, or after that, which ends the connection.
TEST_F(copy_peers, a_file_whose_sender_writes_to_a_chunk_that_it_has_announced_is_not_stored) {
  constexpr int attempts = 20;
  const std::string good(most_chunk_bytes, 'a');
  const digest sha = digest_of(good);
  const auto put_and_overwrite = [&](session& link, int attempt) -> task<> {
    const auto ready = co_await begin_put(link, "file", good.size());
    co_await write_to_slot(link, ready.slots.at(0), good);
    co_await say(link, chunk_message{.index = 0});
    for (int turn = 0; turn < attempt; ++turn) co_await weft::yield();
    co_await write_to_slot(link, ready.slots.at(0), "evil");
    co_await say(link, end_with(sha));
    const message taken = co_await link.receive();
    EXPECT_TRUE(std::holds_alternative<taken_message>(taken));
    const message answer = co_await link.receive();
    EXPECT_TRUE(std::holds_alternative<failed_message>(answer)) << "attempt " << attempt;
  };
  with_server([&](session& first) -> task<> {
    for (int i = 0; i < attempts; ++i) {
      session link = co_await connect_to(first.home(), std::string(first.peer().peer()));
      static_cast<void>(co_await weft::as_result(put_and_overwrite(link, i)));
    }
  });
  EXPECT_EQ(there_.names(), names{});
}

TEST_F_SERVED(a_chunk_that_was_taken_can_no_longer_be_written_though_its_slot_is_open_for_another) {
  const auto ready = co_await begin_put(link, "a", 2 * chunks_in_flight * most_chunk_bytes);
  const message answer = co_await ask(link, chunk_message{.index = 0});
  const auto slot = std::get<taken_message>(answer).slot;
  EXPECT_TRUE(slot.has_value() && slot->key() != ready.slots.at(0).key());
  co_await write_to_slot(link, slot.value(), "the next");
  co_await write_what_is_refused(link, ready.slots.at(0), "evil");
}

// Of one address; others have theirs.
TEST_F(copy_peers, a_peer_whose_puts_do_not_go_on_holds_up_nobody_else) {
  run_with_server([&](std::string address) -> task<> {
    station home(device_, patience);
    const auto connect_from = [&](const char* source) -> task<session> {
      auto options = connection_options(patience);
      options.source = source;
      auto peer = co_await device_.connect(address, options);
      co_return session(home, std::move(peer));
    };
    std::vector<session> stalled;
    const auto begin_and_stop = [&]() -> task<> {
      auto link = co_await connect_from("127.0.0.2:0");
      const message put = put_message{.size = 100 * most_chunk_bytes, .name = "never"};
      co_await say(link, put);
      stalled.push_back(std::move(link));
    };
    for (int i = 0; i < 6; ++i) co_await begin_and_stop();
    auto honest = co_await connect_from("127.0.0.3:0");
    co_await weft::with_timeout(patience / 2, put_all(honest));
  });
}

TEST_F_SERVED(a_put_that_does_not_go_on_gives_way_to_others_of_its_address, "a", "b", "c") {
  const message put = put_message{.size = 100 * most_chunk_bytes, .name = "never"};
  co_await say(link, put);
  auto honest = co_await connect_to(link.home(), std::string(link.peer().peer()));
  co_await weft::with_timeout(patience / 2, put_all(honest));
  co_await expect_hang_up(link);
}

TEST_F(copy_peers, a_get_that_does_not_go_on_gives_way_to_others_of_its_address) {
  std::ofstream(there_.path() + "/large") << std::string(100 * most_chunk_bytes, 'x');
  with_server([&](session& stalled) -> task<> {
    const message asked = get_message{.name = "large"};
    co_await say(stalled, asked);
    std::vector<weft::net::exposure> slots;
    ready_message ready;
    for (std::size_t i = 0; i < chunks_in_flight; ++i) {
      auto memory = co_await stalled.home().device.pool().allocate(most_chunk_bytes, weft::mr::budget::receive);
      auto slot = co_await stalled.peer().expose(std::move(memory), weft::mr::usage::write_dst);
      ready.slots.push_back(slot.remote());
      slots.push_back(std::move(slot));
    }
    const message all = std::move(ready);
    co_await say(stalled, all);
    co_await weft::with_timeout(patience / 2, get_arrived(std::string(stalled.peer().peer()), "large"));
    co_await expect_hang_up(stalled);
  });
}

// Who waited for one more would wait for ever.
TEST(copy_chunks, are_no_more_than_the_pool_has_room_for_beside_messages) {
  constexpr std::size_t mib = std::size_t{1} << 20;
  EXPECT_EQ(chunks_of({.max_bytes = 32 * mib}), 24U);
  EXPECT_EQ(chunks_of({.max_bytes = 3 * mib}), 2U);
  EXPECT_EQ(chunks_of({.max_bytes = 2 * mib}), 1U);
  EXPECT_EQ(chunks_of({.max_bytes = mib / 4}), 1U);
}

TEST_F_SERVED(a_sender_that_gives_up_leaves_nothing_and_may_go_on, "b") {
  co_await begin_put(link, "a", 2 * most_chunk_bytes);
  co_await ask(link, chunk_message{.index = 0});
  const message given_up = failed_message{.text = "no more"};
  const message answer = co_await ask(link, given_up);
  EXPECT_TRUE(std::holds_alternative<failed_message>(answer));
  co_await put_properly(link, "b", "data");
}

TEST_F_SERVED(a_message_that_means_nothing_ends_the_connection) {
  const std::vector<std::byte> nonsense(100, std::byte{0xa5});
  co_await link.peer().send_bytes(nonsense);
  co_await expect_hang_up(link);
}

TEST_F_SERVED(a_write_beyond_the_slot_ends_the_connection) {
  const auto ready = co_await begin_put(link, "a", 4);
  const auto& slot = ready.slots.at(0);
  const weft::mr::remote_region forged(slot.key(), slot.address(), slot.size() + 1, slot.usage());
  co_await write_what_is_refused(link, forged, "evil!");
}

TEST_F(copy_peers, the_slots_of_a_file_are_closed_once_it_is_stored) {
  with_server([](session& link) -> task<> {
    const auto slots = co_await put_properly(link, "a", "data");
    co_await write_what_is_refused(link, slots.at(0), "evil");
  });
  EXPECT_EQ(there_.names(), names{"a"});
  std::string stored;
  std::ifstream(there_.path() + "/a") >> stored;
  EXPECT_EQ(stored, "data");
}

TEST_F_RECEIVER(a_receiver_that_offers_slots_of_another_size_is_refused, "slot of the wrong size") {
  co_await link.receive();
  ready_message ready;
  ready.slots.emplace_back(1, 0, 17, weft::mr::usage::write_dst);
  co_await say(link, ready);
  co_await expect_hang_up(link);
}

TEST_F(copy_peers, a_receiver_that_closes_instead_of_storing_is_no_success) {
  const auto server = [](session& link) -> task<> {
    co_await link.receive();
    co_await link.peer().close();
  };
  EXPECT_NE(put_against(server), "");
}

TEST_F_RECEIVER(a_receiver_that_says_stored_too_early_is_no_success, "stored") {
  return offer_a_slot_and_say(link, stored_message{});
}

TEST_F_RECEIVER(a_receiver_that_takes_what_was_never_sent_is_no_success, "taken") {
  return offer_a_slot_and_say(link, taken_message{.index = 2, .slot = {}});
}

TEST_F_RECEIVER(a_receiver_that_takes_a_chunk_and_keeps_the_slot_of_a_later_one_is_no_success,
                "instead of 'taken' with a slot") {
  return offer_a_slot_and_say(link, taken_message{.index = 0, .slot = {}});
}

TEST_F_RECEIVER(a_receiver_that_gives_a_slot_of_another_size_for_a_later_chunk_is_no_success,
                "slot of the wrong size") {
  const weft::mr::remote_region other(1, 0, 17, weft::mr::usage::write_dst);
  return offer_a_slot_and_say(link, taken_message{.index = 0, .slot = other});
}

TEST_F_SENDER(a_server_that_sends_damaged_data_leaves_nothing_here, "damaged") {
  co_await link.receive();
  const message ready = co_await ask(link, offer_message{.size = 4});
  co_await write_to_slot(link, std::get<ready_message>(ready).slots.at(0), "evil");
  co_await ask(link, chunk_message{.index = 0});
  const message answer = co_await ask(link, end_with(digest_of("good")));
  EXPECT_TRUE(std::holds_alternative<failed_message>(answer));
  EXPECT_FALSE(co_await link.receive_if_any());
}

TEST_F(copy_peers, a_server_that_closes_in_order_in_the_middle_of_a_get_leaves_nothing_here) {
  const auto server = [](session& link) -> task<> {
    co_await link.receive();
    co_await ask(link, offer_message{.size = 4});
    co_await link.peer().close();
  };
  EXPECT_NE(get_against(server), "");
  EXPECT_EQ(there_.names(), names{});
}

TEST_F_SENDER(a_server_that_answers_a_get_with_something_else_is_refused, "instead of 'offer'") {
  co_await link.receive();
  co_await say(link, stored_message{});
  co_await expect_hang_up(link);
}

}  // namespace
}  // namespace copy
