// SPDX-License-Identifier: Apache-2.0
// Established peers that break the rules, or die: their own connection ends, and nothing else happens. Rules that one
// frame breaks are in the table of provoked_test.cpp.
#include <weft/net/software/domain.hpp>

#include "kit/buffers.hpp"
#include "net/support.hpp"
#include "stag_of.hpp"

namespace weft::test {
namespace {

using namespace net::iwarp;

constexpr std::uint8_t close = 3;

class hostile : public net_test {
 protected:
  task<net::exposure> expose(net::connection& at, mr::usage uses) {
    auto memory = co_await filled_with(pool(), 1000, std::byte{7});
    co_return co_await at.expose(std::move(memory), uses);
  }

  static bool untouched(const net::exposure& memory) { return is_all(memory.memory().bytes(), std::byte{7}); }
};

constexpr mr::usage open_wide = mr::usage::write_dst | mr::usage::read_src;
const bytes one_byte(1);

// ---- messages

TEST_F_AGAINST_RAW(hostile, more_immediate_data_than_there_are_credits, {.greeting = greeting_with(5, 0x02)}) {
  for (std::uint32_t i = 1; i <= greeted_depth + 1; ++i) {
    co_await raw.send_fpdu(untagged_ulpdu({.opcode = opcode::immediate, .sequence = i}, bytes(8)));
  }
  static_cast<void>(co_await raw.receive_rest());
  std::optional<error> failure;
  std::uint32_t received = 0;
  for (; !failure; ++received) failure = co_await failure_of(peer.recv());
  EXPECT_EQ(received, greeted_depth + 1);
  EXPECT_TRUE(contains(failure, "without a credit")) << failure->what();
}

TEST_F_AGAINST_RAW(hostile, messages_beyond_its_credits) {
  for (std::uint32_t i = 0; i <= greeted_depth; ++i) co_await raw.send_message(one_byte, data_kind, greeted_depth);
  co_await expect_terminate(raw, cause::stream_catastrophic);
  static_cast<void>(co_await raw.receive_rest());  // first: what is received earns the attacker credits
  std::optional<error> failure;
  while (!failure) failure = co_await failure_of(peer.recv());
  EXPECT_TRUE(failed_with(failure, errc::protocol_error, "without a credit"));
}

TEST_F_AGAINST_RAW(hostile, a_message_after_its_last) {
  co_await raw.send_message(nothing, close, greeted_depth);
  co_await raw.send_message(one_byte, data_kind, greeted_depth);
  static_cast<void>(co_await raw.receive_rest());
  const auto end = co_await peer.recv();  // it had closed in order before
  EXPECT_FALSE(end);
}

// ---- the wire

TEST_F_AGAINST_RAW(hostile, garbage_instead_of_frames) {
  const bytes garbage = text(
      "GET / HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\nand so on, and so on, and "
      "so on, until the length that the first two letters spell is reached, which takes");
  bytes much;
  for (int i = 0; i < 1000; ++i) much.insert(much.end(), garbage.begin(), garbage.end());
  co_await raw.send(much);
  co_await expect_terminate(raw, cause::untagged_version);
  static_cast<void>(co_await raw.receive_rest());
  EXPECT_TRUE(failed_with(co_await failure_of(peer.recv()), errc::protocol_error));
}

TEST_F_AGAINST_RAW(hostile, an_end_between_messages_is_no_orderly_one_either) {
  raw.finish();  // what the kernel does for a process that was killed
  EXPECT_TRUE(failed_with(co_await failure_of(peer.recv()), errc::peer_vanished));
  static_cast<void>(co_await raw.receive_rest());
}

TEST_F_AGAINST_RAW(hostile, a_reset_is_a_death) {
  raw.reset();
  EXPECT_TRUE(failed_with(co_await failure_of(peer.recv()), errc::peer_vanished, "reset"));
}

TEST_F(hostile, what_one_connection_has_left_half_received_is_nothing_to_the_next) {
  // Both use the same staging area, one after the other.
  for (int round = 0; round < 3; ++round) {
    against_raw_client([&](raw_peer& raw, net::connection& peer) -> task<> {
      const bytes ulpdu(1000);
      const bytes whole = raw.fpdu(ulpdu);
      co_await raw.send(std::span(whole).first(500));
      co_await settle();
      peer.abort();
      static_cast<void>(co_await raw.receive_rest());
      auto listener = co_await listen();
      co_await expect_service(listener);
    });
  }
}

TEST_F_AGAINST_RAW(hostile, the_last_words_of_a_peer_are_heard_even_if_it_takes_ours_no_more) {
  auto payload = co_await pool().allocate(1000);  // a smaller message is sent once its send has ended
  raw.send_now(raw.terminate(cause::tagged_bounds));
  raw.reset();
  const auto sent = co_await failure_of(peer.send(payload));
  EXPECT_TRUE(failed_with(co_await failure_of(peer.recv()), errc::remote_access));
  EXPECT_TRUE(sent && sent->code() == errc::remote_access && sent->posted()) << (sent ? sent->what() : "");
}

TEST_F_AGAINST_RAW(hostile, a_terminate_is_told_with_its_cause) {
  raw.send_now(raw.terminate(cause::crc_mismatch));
  EXPECT_TRUE(failed_with(co_await failure_of(peer.recv()), errc::connection_failed, "CRC"));
  static_cast<void>(co_await raw.receive_rest());
}

TEST_F_AGAINST_RAW(hostile, a_peer_that_does_not_go_after_our_terminate_is_left) {
  co_await raw.send_message(one_byte);
  EXPECT_EQ(co_await code_of(peer.recv()), errc::protocol_error);
  co_await peer.close();
  static_cast<void>(co_await raw.receive_rest());
}

// As many turns as it takes to send more than sockets hold.
task<> fill_sockets() {
  for (int i = 0; i < 10; ++i) co_await settle();
}

TEST_F_AGAINST_RAW(hostile, a_peer_that_neither_reads_nor_goes_is_left) {
  // More than the sockets hold is on its way to a peer that does not read, when it breaks the rules.
  const auto open = co_await peer.expose(co_await pool().allocate(std::size_t{16} << 20), mr::usage::read_src);
  co_await raw.read(test::stag_of(open.remote()), open.remote().address(), 16u << 20);
  co_await fill_sockets();
  co_await raw.write(test::stag_of(open.remote()), open.remote().address(), one_byte);
  EXPECT_EQ(co_await code_of(peer.recv()), errc::protocol_error);
  co_await settle();       // the link has begun to wait for the peer to go
  let_set_ups_time_out();  // and our patience with it
  while (!raw.is_reset()) co_await yield();
}

TEST_F_AGAINST_RAW(hostile, a_peer_that_breaks_a_rule_and_is_gone_before_it_can_be_told) {
  const bytes ulpdu(20);  // DDP version 0
  raw.send_now(raw.fpdu(ulpdu));
  raw.reset();
  const auto code = co_await code_of(peer.recv());
  EXPECT_TRUE(code == errc::protocol_error || code == errc::peer_vanished) << code.message();
  co_await peer.close();
}

TEST_F_AGAINST_RAW(hostile, a_peer_that_is_gone_while_it_is_told_of_its_violation) {
  const auto open = co_await peer.expose(co_await pool().allocate(std::size_t{16} << 20), mr::usage::read_src);
  co_await raw.read(test::stag_of(open.remote()), open.remote().address(), 16u << 20);
  co_await fill_sockets();  // so that the Terminate has to wait
  co_await raw.write(test::stag_of(open.remote()), open.remote().address(), one_byte);
  EXPECT_EQ(co_await code_of(peer.recv()), errc::protocol_error);
  raw.reset();
  co_await peer.close();
}

// ---- memory

TEST_F(hostile, keys_that_were_never_revoked_are_gone_with_the_connection) {
  auto& keys = static_cast<net::software::domain&>(device().domain()).keys();
  std::optional<net::exposure> kept;
  against_raw_client([&](raw_peer& raw, net::connection& peer) -> task<> {
    kept.emplace(co_await expose(peer, open_wide));
    EXPECT_EQ(keys.size(), 1u);
    raw.reset();
    EXPECT_EQ(co_await code_of(peer.recv()), errc::peer_vanished);
  });
  EXPECT_EQ(keys.size(), 0u);
  EXPECT_TRUE(untouched(*kept));
}

TEST_F(hostile, a_key_of_another_device) {
  auto other = net::device::open("iwarp");
  auto& keys = static_cast<net::software::domain&>(other.domain()).keys();
  bytes memory(100, std::byte{7});
  const net::software::key_rights all{.remote_read = true, .remote_write = true};
  const std::uint32_t key = keys.insert(memory, 0, all);  // for every connection, but of that device
  against_raw_client([&](raw_peer& raw, net::connection& peer) -> task<> {
    co_await raw.write(key, 0, one_byte);
    co_await expect_terminate(raw, cause::tagged_invalid_stag);
    EXPECT_EQ(co_await code_of(peer.recv()), errc::protocol_error);
  });
  EXPECT_EQ(memory, bytes(100, std::byte{7}));
  keys.erase(key);
}

TEST_F_AGAINST_RAW(hostile, a_key_that_is_revoked_while_its_read_is_answered) {
  auto open = co_await peer.expose(co_await pool().allocate(std::size_t{16} << 20), mr::usage::read_src);
  co_await raw.read(test::stag_of(open.remote()), open.remote().address(), 16u << 20);
  co_await settle();  // the sockets are full by now
  static_cast<void>(co_await open.revoke());
  co_await expect_terminate(raw, cause::read_invalid_stag);
  EXPECT_EQ(co_await code_of(peer.recv()), errc::connection_failed);  // the peer may not have known
}

}  // namespace
}  // namespace weft::test
