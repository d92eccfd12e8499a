// SPDX-License-Identifier: Apache-2.0
// What errors say: one sentence with the step, the peer, the transport and the cause, each of them once.

#include <sys/mman.h>

#include "peers.hpp"

namespace weft::test {
namespace {

std::size_t times(std::string_view part, std::string_view text) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

class sentences : public peers {
 protected:
  void expect_sentence(const std::optional<error>& failure, std::string_view step, std::string_view peer,
                       std::error_code cause) {
    ASSERT_TRUE(failure) << step;
    const std::string_view text = failure->what();
    EXPECT_EQ(failure->code(), cause) << text;
    EXPECT_TRUE(text.starts_with(step)) << text;
    EXPECT_EQ(times(peer, text), 1u) << text;
    EXPECT_EQ(times("over " + std::string(device().name()), text), 1u) << text;
    EXPECT_EQ(times(cause.message(), text), 1u) << text;
    EXPECT_TRUE(text.ends_with(cause.message())) << text;
  }

  /// The failure of the operation that `make` yields, which is the same thrown and looked at.
  template <class Make>
  task<std::optional<error>> failure_in_both_styles(const Make& make) {
    const auto thrown = co_await failure_of(make());
    const auto seen = co_await as_result(make());
    EXPECT_EQ(seen.has_value(), !thrown);
    if (thrown && !seen) {
      EXPECT_EQ(seen.error().code(), thrown->code());
      EXPECT_STREQ(seen.error().what(), thrown->what());
      EXPECT_EQ(seen.error().posted(), thrown->posted());
    }
    co_return thrown;
  }

  /// What every operation of `ours` says once its connection is over.
  task<> expect_end(net::connection& ours, const mr::remote_region& there, std::error_code cause) {
    const std::string peer(ours.peer());
    auto memory = co_await filled(pool(), 10, 1);
    const auto send = [&] { return ours.send(memory); };
    const auto write = [&] { return ours.write(memory, there); };
    const auto read = [&] { return ours.read(memory, there); };
    const auto flush = [&] { return ours.flush(there); };
    const auto receive = [&] { return ours.recv_or_throw(); };
    expect_sentence(co_await failure_in_both_styles(send), "send 10 bytes", peer, cause);
    expect_sentence(co_await failure_in_both_styles(write), "write 10 bytes", peer, cause);
    expect_sentence(co_await failure_in_both_styles(read), "read 10 bytes", peer, cause);
    expect_sentence(co_await failure_in_both_styles(flush), "flush", peer, cause);
    expect_sentence(co_await failure_in_both_styles(receive), "receive from", peer, cause);
    const auto exposed = co_await failure_of(ours.expose(std::move(memory), mr::usage::read_src));
    expect_sentence(exposed, "expose a buffer to", peer, cause);
  }
};
WEFT_ON_EVERY_TRANSPORT(sentences);

TEST_P_WINDOWS(sentences, of_operations_after_the_peer_has_died) {
  const auto open = co_await expose_zeros(client, 10);
  client.abort();
  const auto received = co_await failure_of(server.recv());
  expect_sentence(received, "receive from", server.peer(), errc::peer_vanished);
  const auto expected = co_await failure_of(server.recv_or_throw());
  expect_sentence(expected, "receive from", server.peer(), errc::peer_vanished);
  co_await expect_end(server, open.remote(), errc::peer_vanished);
}

TEST_P_WINDOWS(sentences, of_operations_after_the_peer_has_closed) {
  const auto open = co_await expose_zeros(client, 10);
  attempt closing(tasks, client.close());
  const auto received = co_await failure_of(server.recv_or_throw());
  expect_sentence(received, "receive from", server.peer(), errc::peer_closed);
  co_await expect_end(server, open.remote(), errc::peer_closed);
  co_await closing.end();
}

TEST_P_WINDOWS(sentences, of_operations_after_this_end_has_closed) {
  const auto open = co_await expose_zeros(client, 10);
  attempt closing(tasks, server.close());
  co_await settle();
  const auto received = co_await failure_of(server.recv());
  expect_sentence(received, "receive from", server.peer(), errc::closed);
  co_await expect_end(server, open.remote(), errc::closed);
  static_cast<void>(co_await client.recv());
  co_await closing.end();
}

TEST_P_WINDOWS(sentences, of_an_operation_that_was_on_its_way_when_the_peer_died) {
  const auto there = co_await server.expose(co_await filled(pool(), std::size_t{8} << 20, 1), mr::usage::read_src);
  auto sink = co_await pool().allocate(std::size_t{8} << 20);
  std::optional<error> failure;
  const auto read = [&]() -> task<> {  // again and again, for a device may be done with one before the peer dies
    while (!failure) failure = co_await failure_of(client.read(sink, there.remote()));
  };
  attempt reading(tasks, read());
  co_await yield();
  server.abort();
  co_await reading.end();
  expect_sentence(failure, "read 8388608 bytes", client.peer(), errc::peer_vanished);
}

TEST_P_WINDOWS(sentences, of_an_access_that_the_peer_refuses) {
  auto open = co_await expose_zeros(server, 10);
  const mr::remote_region stale = open.remote();
  static_cast<void>(co_await open.revoke());
  auto sink = co_await pool().allocate(10);
  const auto read = co_await failure_of(client.read(sink, stale));
  expect_sentence(read, "read 10 bytes", client.peer(), errc::remote_access);
  if (GetParam().forgives_late_accesses) co_return;
  const auto broken = co_await failure_of(server.recv());
  expect_sentence(broken, "receive from", server.peer(), late_access());
}

TEST_P_BETWEEN(sentences, of_waits_that_are_stopped) {
  std::optional<error> failure;
  const auto receive = [&]() -> task<> { failure = co_await failure_of(client.recv()); };
  attempt receiving(tasks, receive());
  co_await settle();
  receiving.stop();
  co_await receiving.end();
  expect_sentence(failure, "receive from", client.peer(), errc::canceled);
}

TEST_P_BETWEEN(sentences, of_calls_from_the_wrong_thread) {
  auto payload = co_await filled(pool(), 10, 1);
  const auto misuse = [&]() -> task<> {
    const auto sent = co_await failure_of(client.send(payload));
    expect_sentence(sent, "send 10 bytes", client.peer(), errc::wrong_thread);
    const auto received = co_await failure_of(client.recv());
    expect_sentence(received, "receive from", client.peer(), errc::wrong_thread);
    const auto closed = co_await failure_of(client.close());
    expect_sentence(closed, "close the connection to", client.peer(), errc::wrong_thread);
  };
  co_await on_another_executor(misuse);
}

TEST_P_TASK(sentences, of_set_ups) {
  auto listener = co_await device().listen(std::string(GetParam().any_address));
  const std::string address(listener.address());
  std::optional<error> failure;
  const auto connect = [&]() -> task<> { failure = co_await failure_of(device().connect(address, options())); };
  attempt rejected(tasks, connect());
  auto request = co_await listener.next();
  co_await request->reject();
  co_await rejected.end();
  expect_sentence(failure, "connect to", address, errc::peer_rejected);

  attempt waiting(tasks, connect());
  request = co_await listener.next();
  const auto impatient = options({.receive_depth = 0});
  const std::string peer(request->peer());
  const auto accepted = co_await failure_of(request->accept(impatient));
  expect_sentence(accepted, "accept", peer, errc::invalid_argument);
  co_await waiting.end();

  const auto taken = co_await failure_of(device().listen(address));
  expect_sentence(taken, "listen on", address, std::error_code(EADDRINUSE, std::system_category()));
  listener.close();
  attempt refused(tasks, connect());
  co_await refused.end();
  expect_sentence(failure, "nobody listens on", address, std::error_code(ECONNREFUSED, std::system_category()));
}

TEST_P_BETWEEN(sentences, of_what_is_too_large_blame_neither_the_memory_nor_the_peer) {
  const std::uint64_t most = client.capabilities().max_message_bytes;
  void* const place = ::mmap(nullptr, most + 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (place == MAP_FAILED) co_return;  // no such address space
  mr::memory_record unregistered;
  unregistered.home = &device().domain();
  unregistered.usage = mr::usage::write_src;
  const mr::slice huge({static_cast<std::byte*>(place), most + 1}, &unregistered);
  const auto failure = co_await failure_of(client.write(huge, mr::remote_slice(1, 0, most + 1, mr::usage::write_dst)));
  ::munmap(place, most + 4096);
  EXPECT_TRUE(failed_with(failure, errc::message_too_large));
  EXPECT_EQ(times("than the peer receives", failure ? failure->what() : ""), 0u) << failure->what();

  if (!device().domain().capabilities().requested_key) co_return;
  const mr::registration_options purpose{.usage = mr::usage::read_src,
                                         .requested_key = device().domain().capabilities().max_key + 1};
  const auto refused = co_await failure_of(register_zeros(8, purpose));
  EXPECT_TRUE(failed_with(refused, errc::out_of_range));
  EXPECT_EQ(times("outside the registered memory", refused ? refused->what() : ""), 0u) << refused->what();
}

}  // namespace
}  // namespace weft::test
