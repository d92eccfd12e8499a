// SPDX-License-Identifier: Apache-2.0
// Peers that are not weft, of every age and taste: RFC 5044, RFC 6581.
#include <weft/net/iwarp/ddp.hpp>
#include <weft/net/iwarp/mpa.hpp>

#include "kit/attempt.hpp"
#include "net/support.hpp"
#include "stag_of.hpp"

namespace weft::test {
namespace {

using namespace net::iwarp;

// Peers that know one ready signal each.
constexpr mpa::enhanced_data by_send{.ird = 4, .ord = 4, .peer_to_peer = true, .rtr_send = true};
constexpr mpa::enhanced_data by_write{.ird = 4, .ord = 4, .peer_to_peer = true, .rtr_write = true};
constexpr mpa::enhanced_data by_read{.ird = 4, .ord = 4, .peer_to_peer = true, .rtr_read = true};

bytes reply_of(const mpa::enhanced_data& said, std::span<const std::byte> private_data = {}) {
  return frame_bytes({.kind = mpa::frame_kind::reply, .enhanced = said, .private_data = private_data});
}

/// A frame that says that it has so many bytes of private data.
bytes with_private_bytes(bytes frame, std::size_t count) {
  frame[18] = static_cast<std::byte>(count >> 8);
  frame[19] = static_cast<std::byte>(count);
  return frame;
}

mpa::frame parsed(const bytes& wire, mpa::frame_kind kind) {
  const auto result = mpa::parse_frame(wire, kind);
  EXPECT_EQ(result.status, mpa::parse_status::complete) << result.error.view();
  return result.frame;
}

net::connection_options interop() {
  net::connection_options how{.profile = net::profile::interop};
  return how;
}

/// A peer without a greeting, and with what ours accepts it.
raw_client foreign(net::connection_options ours = {}) { return {.greeting = nothing, .crc = true, .ours = ours}; }

class interop_test : public net_test {
 protected:
  /// Runs `script(raw, connection, agreed)`: a peer made by hand has connected, `how`, to one that accepts with `ours`.
  template <class Script>
  void accept_foreign(initiator_options how, net::connection_options ours, Script script) {
    run([&]() -> task<> {
      auto listener = co_await listen();
      raw_peer raw = raw_peer::connect(listener.address());
      auto both = co_await when_all(raw.set_up(how), accept(listener, ours));
      co_await script(raw, std::get<1>(both), std::get<0>(both));
    });
  }

  /// Runs `script(raw, connection, request)`: one of ours has connected, `ours`, to a peer that sent `reply`.
  template <class Script>
  void connect_to_foreign(const bytes& reply, net::connection_options ours, Script script) {
    run([&]() -> task<> {
      raw_listener listener;
      std::optional<raw_peer> raw;
      const auto serve = [&]() -> task<bytes> {
        raw.emplace(co_await listener.accept());
        co_return co_await raw->answer(reply);
      };
      auto both = co_await when_all(device().connect(listener.address(), ours), serve());
      co_await script(*raw, std::get<0>(both), std::get<1>(both));
    });
  }

  task<> expect_plain_messages(raw_peer& raw, net::connection& ours) {
    const bytes plain = text("nothing but this");
    co_await raw.send_message(plain);
    auto message = co_await ours.recv_or_throw();
    EXPECT_TRUE(std::ranges::equal(message.bytes(), plain));
    co_await ours.send(std::move(message.payload));
    bytes ulpdu = co_await raw.receive_fpdu();
    if (!ulpdu.empty() && parse_control(std::span(ulpdu).first<control_bytes>()).tagged) {
      ulpdu = co_await raw.receive_fpdu();  // that was the ready signal
    }
    EXPECT_TRUE(ulpdu.size() >= untagged_header::bytes &&
                std::ranges::equal(std::span(ulpdu).subspan(untagged_header::bytes), plain));
  }
};

const bytes fifty_six(56, std::byte{5});

// ---- the interop profile

class interop_profile : public interop_test {
 protected:
  template <class First>
  void ask_again_after(First first_answer);
};

TEST_F(interop_profile, asks_without_a_greeting_and_has_room_for_56_bytes) {
  auto how = interop();
  how.private_data = fifty_six;
  const bytes reply = reply_of(by_write, fifty_six);
  connect_to_foreign(reply, how, [&](raw_peer& raw, net::connection& ours, const bytes& request) -> task<> {
    const mpa::frame frame = parsed(request, mpa::frame_kind::request);
    EXPECT_EQ(frame.revision, 2);
    EXPECT_TRUE(std::ranges::equal(frame.private_data, fifty_six));
    EXPECT_TRUE(std::ranges::equal(ours.peer_private_data(), fifty_six));
    EXPECT_FALSE(ours.capabilities().native || ours.capabilities().orderly_close);
    co_await expect_plain_messages(raw, ours);
  });
}

TEST_F_TASK(interop_profile, answers_without_a_greeting_even_a_peer_that_sent_one) {
  auto how = interop();
  how.private_data = fifty_six;
  const bytes greeting = greeting_bytes();
  auto listener = co_await listen();
  raw_peer raw = raw_peer::connect(listener.address());
  raw.send_now(request_frame());
  auto request = co_await listener.next();
  const auto look = [&]() -> task<> {
    bytes reply(mpa::frame_header_bytes + mpa::enhanced_bytes + fifty_six.size());
    co_await raw.receive(reply);
    EXPECT_TRUE(std::ranges::equal(parsed(reply, mpa::frame_kind::reply).private_data, fifty_six));
    raw.finish();
  };
  co_await when_all(failure_of(request->accept(how)), look());
}

TEST_F_TASK(interop_profile, has_room_for_no_more) {
  const bytes much(57);
  auto how = interop();
  how.private_data = much;
  EXPECT_EQ(co_await code_of(device().connect("127.0.0.1:1", how)), errc::invalid_argument);
}

TEST_F(interop_profile, sends_fpdus_that_fit_a_segment) {
  for (const int segment_bytes : {1460, 524}) {
    const auto script = [&](raw_peer& raw, net::connection& ours) -> task<> {
      auto payload = co_await pool().allocate(100'000);
      const auto receive = [&]() -> task<> {
        std::size_t received = 0;
        while (received < payload.size()) {
          const bytes ulpdu = co_await raw.receive_fpdu();
          EXPECT_LE(mpa::fpdu_bytes(ulpdu.size()), static_cast<std::size_t>(segment_bytes));
          received += ulpdu.size() - untagged_header::bytes;
        }
      };
      co_await when_all(ours.send(payload), receive());
    };
    raw_client client = foreign(interop());
    client.segment_bytes = segment_bytes;
    against_raw_client(script, client);
  }
}

TEST_F(interop_profile, asks_a_peer_of_the_first_revision_again_in_the_first) {
  ask_again_after([](raw_peer& first) -> task<> {
    bytes request(mpa::frame_header_bytes);
    co_await first.receive(request);
    EXPECT_EQ(request[17], std::byte{2});
    first.finish();  // RFC 6581 section 10
    static_cast<void>(co_await first.receive_rest());
  });
}

// Closing with a part of the request unread is a reset.
TEST_F(interop_profile, asks_a_peer_that_resets_the_connection_again_in_the_first_revision) {
  ask_again_after([](raw_peer& first) -> task<> {
    bytes request(mpa::frame_header_bytes);
    co_await first.receive(request);
  });
}

template <class First>
void interop_profile::ask_again_after(First first_answer) {
  auto how = interop();
  how.private_data = fifty_six;
  run([&]() -> task<> {
    raw_listener listener;
    std::optional<raw_peer> raw;
    const auto serve = [&]() -> task<> {
      {
        raw_peer first = co_await listener.accept();
        co_await first_answer(first);
      }
      raw.emplace(co_await listener.accept());
      const bytes reply = frame_bytes({.kind = mpa::frame_kind::reply, .revision = 1, .private_data = fifty_six});
      const bytes request = co_await raw->answer(reply);
      const mpa::frame frame = parsed(request, mpa::frame_kind::request);
      EXPECT_EQ(frame.revision, 1);
      EXPECT_FALSE(frame.enhanced);
      EXPECT_TRUE(std::ranges::equal(frame.private_data, fifty_six));
    };
    auto both = co_await when_all(device().connect(listener.address(), how), serve());
    co_await expect_plain_messages(*raw, std::get<0>(both));
  });
}

TEST_F_TASK(interop_profile, asks_a_peer_that_answers_nothing_at_all_no_third_time) {
  raw_listener listener;
  int asked = 0;
  const auto serve = [&]() -> task<> {
    for (;;) {
      raw_peer raw = co_await listener.accept();
      ++asked;
      raw.finish();
      static_cast<void>(co_await raw.receive_rest());
    }
  };
  attempt serving(tasks, serve());
  const auto code = co_await code_of(device().connect(listener.address(), interop()));
  EXPECT_TRUE(code == errc::peer_vanished || code == std::errc::connection_reset) << code.message();
  EXPECT_EQ(asked, 2);
  serving.stop();
  co_await serving.end();
}

// ---- peers as they come

class foreign_peer : public interop_test {
 protected:
  /// For an end that closes behind much that it has still to send.
  static constexpr net::connection_options patient{.close_timeout = 60s};

  /// The bytes that come behind the headers of FPDUs.
  static task<std::size_t> payload_to_the_end(raw_peer& raw, std::size_t header_bytes) {
    std::size_t got = 0;
    for (;;) {
      const bytes ulpdu = co_await raw.receive_fpdu();
      if (ulpdu.empty()) co_return got;
      got += ulpdu.size() - header_bytes;
    }
  }

  /// More messages than there are receives for. Yields memory to read `there` into.
  task<mr::buffer> send_many(raw_peer& raw) {
    for (int i = 0; i < 100; ++i) co_await raw.send_message(ten_bytes);
    co_return co_await pool().allocate(there.size());
  }

  static constexpr auto overdue_after = 300s;
  const bytes ten_bytes = bytes(10);
  const mr::remote_region there{1, 0, 100, mr::usage::read_src};
};

TEST_F(foreign_peer, of_the_first_revision_is_accepted_and_answered_in_it) {
  const bytes most(mpa::max_private_bytes, std::byte{9});
  const initiator_options how{.revision = 1, .private_data = most};
  accept_foreign(how, {}, [&](raw_peer& raw, net::connection& ours, const parameters& agreed) -> task<> {
    EXPECT_EQ(agreed.revision, 1);
    EXPECT_TRUE(std::ranges::equal(ours.peer_private_data(), most));
    EXPECT_EQ(ours.capabilities().outgoing_reads, net::connection_options().outgoing_reads);
    co_await expect_plain_messages(raw, ours);
  });
}

TEST_F_TASK(foreign_peer, with_more_private_data_than_there_may_be_is_turned_away) {
  auto listener = co_await listen();
  for (const std::size_t count : {mpa::max_private_bytes + 1, std::size_t{0xFFFF}}) {
    raw_peer raw = raw_peer::connect(listener.address());
    raw.send_now(with_private_bytes(request_frame(), count));
    co_await when_all(raw.receive_rest(), expect_service(listener));
  }
}

TEST_F_TASK(foreign_peer, that_replies_with_more_private_data_than_there_may_be_breaks_the_protocol) {
  const auto failure = co_await connect_to(with_private_bytes(reply_frame(), mpa::max_private_bytes + 1));
  EXPECT_TRUE(failed_with(failure, errc::protocol_error, "513 bytes of private data"));
}

// RFC 5041 section 6.2.1: it has said all that it wants to say, and still takes what it has asked for.
TEST_F_AGAINST_RAW(foreign_peer, that_closes_its_direction_gets_all_that_it_has_asked_for, foreign(patient)) {
  constexpr std::uint32_t size = 8 << 20;
  std::vector<std::byte> memory(size, std::byte{7});
  auto region = co_await device().domain().register_memory(std::span(memory), {.usage = mr::usage::read_src});
  const auto open = region.remote();
  const auto ask_and_listen = [&]() -> task<std::size_t> {
    co_await raw.read(test::stag_of(open), open.address(), size);
    raw.finish();
    co_return co_await payload_to_the_end(raw, tagged_header::bytes);
  };
  const auto hear_and_close = [&]() -> task<> {
    EXPECT_FALSE(co_await peer.recv());  // it ends in order
    co_await peer.close();
  };
  const auto both = co_await when_all(ask_and_listen(), failure_of(hear_and_close()));
  EXPECT_EQ(std::get<0>(both), size);
  EXPECT_FALSE(std::get<1>(both)) << std::get<1>(both)->what();
  co_await region.release();
}

TEST_F_AGAINST_RAW(foreign_peer, that_closes_its_direction_gets_what_had_been_sent_to_it, foreign(patient)) {
  constexpr std::size_t count = 50;
  constexpr std::size_t size = 256 << 10;  // more than the sockets hold, in all
  std::vector<mr::buffer> memory;
  while (memory.size() < count) memory.push_back(co_await pool().allocate(size));
  const auto send_one = [&](std::size_t which) -> task<> { co_await peer.send(std::move(memory[which])); };
  const auto finish_and_listen = [&]() -> task<std::size_t> {
    co_await settle();  // until all of them are posted
    raw.finish();
    co_return co_await payload_to_the_end(raw, untagged_header::bytes);
  };
  const auto send_and_close = [&]() -> task<> {
    std::vector<task<>> sends;
    for (std::size_t i = 0; i < count; ++i) sends.push_back(send_one(i));
    co_await when_all(std::move(sends));
    co_await peer.close();
  };
  const auto both = co_await when_all(failure_of(send_and_close()), finish_and_listen());
  EXPECT_FALSE(std::get<0>(both)) << std::get<0>(both)->what();
  EXPECT_EQ(std::get<1>(both), count * size);
}

TEST_F_AGAINST_RAW(foreign_peer, that_closes_its_direction_is_sent_what_follows_until_this_end_closes_its_own,
                   foreign()) {
  bytes place(8);
  auto memory = co_await device().domain().register_memory(
      std::span(place), {.usage = mr::usage::read_src | mr::usage::write_dst | mr::usage::read_dst});
  co_await raw.send_message(text("question"));
  raw.finish();
  EXPECT_EQ((co_await peer.recv_or_throw()).size(), 8U);
  EXPECT_FALSE(co_await peer.recv());
  EXPECT_FALSE(co_await peer.recv()) << "it is asked again";

  co_await peer.send_bytes(text("answer"));  // nobody knows how much such a peer takes
  const bytes sent = co_await raw.receive_fpdu();
  EXPECT_EQ(bytes(sent.begin() + untagged_header::bytes, sent.end()), text("answer"));
  const auto answered = co_await failure_of(peer.read(memory.slice(), memory.remote()));
  EXPECT_TRUE(failed_with(answered, errc::peer_closed)) << "nobody will answer that";

  const auto wait_for_the_end = [&]() -> task<> { EXPECT_EQ(co_await raw.receive_rest(), nothing); };
  co_await when_all(peer.close(), wait_for_the_end());
  co_await memory.release();
}

TEST_F_AGAINST_RAW(foreign_peer, that_closes_its_direction_and_goes_is_noticed_by_a_send, foreign()) {
  raw.close();
  EXPECT_FALSE(co_await peer.recv());
  std::optional<error> failure;
  while (!failure) failure = co_await failure_of(peer.send(co_await pool().allocate(1)));
  EXPECT_TRUE(failed_with(failure, errc::peer_vanished));
  EXPECT_FALSE(co_await peer.recv()) << "it had ended in order";
}

// RFC 5044 section 7.1.2, rule 4.
TEST_F_TASK(foreign_peer, whose_first_frame_is_invalid_is_sent_none) {
  auto listener = co_await listen();
  raw_peer raw = raw_peer::connect(listener.address());
  const auto ask = [&]() -> task<> {
    co_await raw.send(frame_bytes({.crc = true, .revision = 1}));
    bytes reply(mpa::frame_header_bytes);
    co_await raw.receive(reply);
  };
  auto both = co_await when_all(accept(listener), ask());
  bytes frame = raw.fpdu(bytes(20));
  frame.back() ^= std::byte{1};
  raw.send_now(frame);
  EXPECT_EQ(co_await raw.receive_rest(), bytes());
  EXPECT_TRUE(failed_with(co_await failure_of(std::get<0>(both).recv()), errc::protocol_error));
}

TEST_F(foreign_peer, and_this_end_take_the_smaller_number_of_reads) {
  const initiator_options few{.ird = 1, .ord = 2};
  accept_foreign(few, {}, [&](raw_peer&, net::connection& ours, const parameters& agreed) -> task<> {
    EXPECT_EQ(ours.capabilities().outgoing_reads, 1);
    EXPECT_EQ(ours.capabilities().incoming_reads, 2);
    EXPECT_EQ(ours.capabilities().peer_incoming_reads, 1);
    EXPECT_EQ(ours.capabilities().peer_outgoing_reads, 2);
    EXPECT_EQ(agreed.peer_ord, 1);
    EXPECT_EQ(agreed.peer_ird, 2);
    co_return;
  });
  const bytes reply = reply_of({.ird = 2, .ord = 1, .peer_to_peer = true, .rtr_write = true});
  connect_to_foreign(reply, {}, [&](raw_peer&, net::connection& ours, const bytes&) -> task<> {
    EXPECT_EQ(ours.capabilities().outgoing_reads, 2);
    co_return;
  });
}

TEST_F(foreign_peer, that_will_not_negotiate_reads_leaves_this_end_its_own) {
  const bytes reply =
      reply_of({.ird = mpa::not_negotiated, .ord = mpa::not_negotiated, .peer_to_peer = true, .rtr_write = true});
  connect_to_foreign(reply, {}, [&](raw_peer&, net::connection& ours, const bytes&) -> task<> {
    EXPECT_EQ(ours.capabilities().outgoing_reads, net::connection_options().outgoing_reads);
    EXPECT_EQ(ours.capabilities().incoming_reads, net::connection_options().incoming_reads);
    co_return;
  });
}

TEST_F(foreign_peer, gets_crcs_if_either_end_wants_them) {
  for (const bool theirs : {false, true}) {
    for (const bool mine : {false, true}) {
      const initiator_options how{.crc = theirs};
      open_device({.iwarp = {.checksum = mine}});
      accept_foreign(how, {}, [&](raw_peer& raw, net::connection& peer, const parameters& agreed) -> task<> {
        EXPECT_EQ(agreed.crc, mine || theirs);
        EXPECT_EQ(peer.capabilities().checksum, mine || theirs);
        co_await expect_plain_messages(raw, peer);
      });
    }
  }
}

TEST_F(foreign_peer, that_reads_instead_of_writing_as_its_ready_signal_is_answered) {
  // Asked for a Read by its responder, ours sends one; sent one, ours answers it.
  open_device({.iwarp = {.checksum = false}});
  connect_to_foreign(reply_of(by_read), {}, [&](raw_peer& raw, net::connection&, const bytes&) -> task<> {
    const bytes ulpdu = co_await raw.receive_fpdu();
    EXPECT_TRUE(!ulpdu.empty() &&
                parse_control(std::span(ulpdu).first<control_bytes>()).opcode == opcode::read_request);
  });
  run([&]() -> task<> {
    auto listener = co_await listen();
    raw_peer raw = raw_peer::connect(listener.address());
    raw.send_now(frame_bytes({.enhanced = by_read}));
    const auto signal = [&]() -> task<> {
      bytes answer(mpa::frame_header_bytes + mpa::enhanced_bytes);
      co_await raw.receive(answer);
      EXPECT_TRUE(parsed(answer, mpa::frame_kind::reply).enhanced->rtr_read);
      co_await raw.read(0, 0, 0);
      const bytes ulpdu = co_await raw.receive_fpdu();
      EXPECT_TRUE(!ulpdu.empty() &&
                  parse_control(std::span(ulpdu).first<control_bytes>()).opcode == opcode::read_response);
    };
    auto both = co_await when_all(accept(listener), signal());
    co_await expect_plain_messages(raw, std::get<0>(both));
  });
}

TEST_F_TASK(foreign_peer, that_can_only_send_as_its_ready_signal_may_and_it_is_no_message) {
  auto listener = co_await listen();
  raw_peer raw = raw_peer::connect(listener.address());
  raw.send_now(frame_bytes({.enhanced = by_send}));
  const auto signal = [&]() -> task<> {
    bytes answer(mpa::frame_header_bytes + mpa::enhanced_bytes);
    co_await raw.receive(answer);
    const mpa::frame frame = parsed(answer, mpa::frame_kind::reply);
    EXPECT_TRUE(frame.enhanced->rtr_send && !frame.enhanced->rtr_write && !frame.enhanced->rtr_read);
    co_await raw.send_message(nothing);
  };
  auto both = co_await when_all(accept(listener), signal());
  co_await expect_plain_messages(raw, std::get<0>(both));
  co_await raw.send_message(nothing);  // and the second empty one is
  const auto message = co_await std::get<0>(both).recv_or_throw();
  EXPECT_EQ(message.size(), 0u);
}

TEST_F_AGAINST_RAW(foreign_peer, whose_messages_nobody_receives_holds_up_a_read_for_so_long_and_no_longer,
                   foreign({.receive_depth = 1})) {
  auto memory = co_await send_many(raw);
  const auto wait_too_long = [&]() -> task<> {
    co_await settle();
    EXPECT_EQ((co_await raw.receive_fpdu()).size(), untagged_header::bytes + read_request::bytes);
    jump(net::connection_options().overdue_after + 1s);
  };
  const auto both = co_await when_all(code_of(peer.read(memory, there)), wait_too_long());
  EXPECT_EQ(std::get<0>(both), errc::not_receiving);
}

TEST_F_AGAINST_RAW(foreign_peer, whose_messages_are_received_in_time_gets_its_answer_to_a_read_through,
                   foreign({.receive_depth = 1, .overdue_after = overdue_after})) {
  auto memory = co_await send_many(raw);
  const auto answer_and_receive = [&]() -> task<> {
    const bytes asked = co_await raw.receive_fpdu();
    const auto sink = parse_read_request(std::span(asked).last<read_request::bytes>()).sink_stag;
    co_await raw.send_fpdu(tagged_ulpdu({.opcode = opcode::read_response, .stag = sink}, bytes(100)));
    jump(overdue_after - 100s);  // what is left is for a machine that stalls
    for (int i = 0; i < 100; ++i) static_cast<void>(co_await peer.recv_or_throw());
  };
  const auto both = co_await when_all(code_of(peer.read(memory, there)), answer_and_receive());
  EXPECT_EQ(std::get<0>(both), std::error_code());
  jump(overdue_after + 1s);  // the watch is over
  co_await settle();
  co_await raw.send_message(ten_bytes);
  static_cast<void>(co_await peer.recv_or_throw());
}

// Nobody reads its socket meanwhile, so that nothing there tells.
TEST_F_AGAINST_RAW(foreign_peer, that_dies_behind_messages_that_nobody_receives_is_noticed_by_whoever_waits_for_it,
                   foreign({.receive_depth = 1, .overdue_after = {}})) {
  auto memory = co_await send_many(raw);
  const auto die = [&]() -> task<> {
    EXPECT_EQ((co_await raw.receive_fpdu()).size(), untagged_header::bytes + read_request::bytes);
    raw.reset();
    for (int i = 0; i < 10; ++i) {
      jump(1s);
      co_await settle();
    }
  };
  const auto both = co_await when_all(failure_of(peer.read(memory, there)), die());
  EXPECT_TRUE(failed_with(std::get<0>(both), errc::peer_vanished, "reset"));
}

TEST_F_TASK(foreign_peer, that_takes_only_a_send_as_the_ready_signal_is_told_that_there_is_none) {
  const bytes reply = reply_of(by_send);
  const auto serve = [&](raw_peer& raw) -> task<> {
    static_cast<void>(co_await raw.answer(reply));
    co_await expect_terminate(raw, cause::no_common_ready_signal);
  };
  EXPECT_TRUE(failed_with(co_await connect_to(serve), errc::protocol_error, "ready-to-receive"));
}

}  // namespace
}  // namespace weft::test
