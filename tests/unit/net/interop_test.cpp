// SPDX-License-Identifier: Apache-2.0
// Peers that are not weft, of every age and taste: RFC 5044, RFC 6581.
#include <weft/net/iwarp/ddp.hpp>
#include <weft/net/iwarp/mpa.hpp>

#include "net/support.hpp"
#include "stag_of.hpp"

namespace weft::test {
namespace {

using namespace net::iwarp;

bytes frame_of(const mpa::frame& frame) {
  bytes out(mpa::max_frame_bytes);
  out.resize(mpa::encode_frame(frame, out));
  return out;
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

class interop_test : public net_test {
 protected:
  /// Runs `script(raw, connection, agreed)`: a peer made by hand has connected, `how`, to one that accepts with `ours`.
  template <class Script>
  void accept_foreign(initiator_options how, net::connection_options ours, Script script, int segment_bytes = 0) {
    run([&]() -> task<> {
      auto listener = co_await listen();
      raw_peer raw = raw_peer::connect(listener.address(), segment_bytes);
      const auto serve = [&]() -> task<net::connection> {
        auto request = co_await listener.next();
        co_return co_await request->accept(ours);
      };
      auto both = co_await when_all(raw.set_up(how), serve());
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
  const bytes reply =
      frame_of({.kind = mpa::frame_kind::reply,
                .enhanced = mpa::enhanced_data{.ird = 4, .ord = 4, .peer_to_peer = true, .rtr_write = true},
                .private_data = fifty_six});
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
    const auto script = [&](raw_peer& raw, net::connection& ours, const parameters&) -> task<> {
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
    accept_foreign({}, interop(), script, segment_bytes);
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
      const bytes reply =
          frame_of({.kind = mpa::frame_kind::reply, .revision = 1, .enhanced = {}, .private_data = fifty_six});
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
  const auto serve = [&](scope&) -> task<> {
    for (;;) {
      raw_peer raw = co_await listener.accept();
      ++asked;
      raw.finish();
      static_cast<void>(co_await raw.receive_rest());
    }
  };
  const auto body = [&](scope& children) -> task<> {
    children.spawn(serve(children));
    const auto code = co_await code_of(device().connect(listener.address(), interop()));
    EXPECT_TRUE(code == errc::peer_vanished || code == std::errc::connection_reset) << code.message();
    EXPECT_EQ(asked, 2);
    throw error(errc::canceled, "enough");
  };
  EXPECT_EQ(co_await code_of(with_scope(on_failure::stop_siblings, body)), errc::canceled);
}

// ---- peers as they come

class foreign_peer : public interop_test {
 protected:
  /// For an end that closes behind much that it has still to send.
  static constexpr net::connection_options patient{.close_timeout = 60s};
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
  bytes request = request_frame();
  request[18] = std::byte{2};
  request[19] = std::byte{1};  // 513
  raw_peer raw = raw_peer::connect(listener.address());
  raw.send_now(request);
  co_await when_all(raw.receive_rest(), expect_service(listener));
}

TEST_F_TASK(foreign_peer, that_replies_with_more_private_data_than_there_may_be_breaks_the_protocol) {
  raw_listener listener;
  const auto serve = [&]() -> task<> {
    raw_peer raw = co_await listener.accept();
    bytes reply = reply_frame();
    reply[18] = std::byte{2};
    reply[19] = std::byte{1};
    static_cast<void>(co_await raw.answer(reply));
    static_cast<void>(co_await raw.receive_rest());
  };
  const auto both = co_await when_all(failure_of(device().connect(listener.address())), serve());
  EXPECT_TRUE(std::get<0>(both) && std::get<0>(both)->code() == errc::protocol_error);
  EXPECT_TRUE(contains(std::get<0>(both), "513 bytes of private data"));
}

// RFC 5041 section 6.2.1: it has said all that it wants to say, and still takes what it has asked for.
TEST_F(foreign_peer, that_closes_its_direction_gets_all_that_it_has_asked_for) {
  constexpr std::uint32_t size = 8 << 20;
  std::vector<std::byte> memory(size, std::byte{7});
  accept_foreign({}, patient, [&](raw_peer& raw, net::connection& ours, const parameters&) -> task<> {
    auto region = co_await device().domain().register_memory(std::span(memory), {.usage = mr::usage::read_src});
    const auto open = region.remote();
    const auto ask_and_listen = [&]() -> task<std::size_t> {
      co_await raw.read(test::stag_of(open), open.address(), size);
      raw.finish();
      std::size_t got = 0;
      for (;;) {
        const bytes ulpdu = co_await raw.receive_fpdu();
        if (ulpdu.empty()) co_return got;
        got += ulpdu.size() - tagged_header::bytes;
      }
    };
    const auto hear_and_close = [&]() -> task<> {
      EXPECT_FALSE(co_await ours.recv());  // it ends in order
      co_await ours.close();
    };
    const auto both = co_await when_all(ask_and_listen(), failure_of(hear_and_close()));
    EXPECT_EQ(std::get<0>(both), size);
    EXPECT_FALSE(std::get<1>(both)) << std::get<1>(both)->what();
    co_await region.release();
  });
}

TEST_F(foreign_peer, that_closes_its_direction_gets_what_had_been_sent_to_it) {
  constexpr std::size_t count = 50;
  constexpr std::size_t size = 256 << 10;  // more than the sockets hold, in all
  accept_foreign({}, patient, [&](raw_peer& raw, net::connection& ours, const parameters&) -> task<> {
    std::vector<mr::buffer> memory;
    while (memory.size() < count) memory.push_back(co_await pool().allocate(size));
    const auto send_one = [&](std::size_t which) -> task<> { co_await ours.send(std::move(memory[which])); };
    const auto finish_and_listen = [&]() -> task<std::size_t> {
      for (int turn = 0; turn < 20; ++turn) co_await yield();  // until all of them are posted
      raw.finish();
      std::size_t got = 0;
      for (;;) {
        const bytes ulpdu = co_await raw.receive_fpdu();
        if (ulpdu.empty()) co_return got;
        got += ulpdu.size() - untagged_header::bytes;
      }
    };
    const auto send_and_close = [&]() -> task<> {
      std::vector<task<>> sends;
      for (std::size_t i = 0; i < count; ++i) sends.push_back(send_one(i));
      co_await when_all(std::move(sends));
      co_await ours.close();
    };
    const auto both = co_await when_all(failure_of(send_and_close()), finish_and_listen());
    EXPECT_FALSE(std::get<0>(both)) << std::get<0>(both)->what();
    EXPECT_EQ(std::get<1>(both), count * size);
  });
}

TEST_F(foreign_peer, that_closes_its_direction_is_sent_what_follows_until_this_end_closes_its_own) {
  accept_foreign({}, {}, [&](raw_peer& raw, net::connection& ours, const parameters&) -> task<> {
    bytes place(8);
    auto memory = co_await device().domain().register_memory(
        std::span(place), {.usage = mr::usage::read_src | mr::usage::write_dst | mr::usage::read_dst});
    co_await raw.send_message(text("question"));
    raw.finish();
    EXPECT_EQ((co_await ours.recv_or_throw()).size(), 8U);
    EXPECT_FALSE(co_await ours.recv());
    EXPECT_FALSE(co_await ours.recv()) << "it is asked again";

    co_await ours.send_bytes(text("answer"));  // nobody knows how much such a peer takes
    const bytes sent = co_await raw.receive_fpdu();
    EXPECT_EQ(bytes(sent.begin() + untagged_header::bytes, sent.end()), text("answer"));
    const auto answered = co_await failure_of(ours.read(memory.slice(), memory.remote()));
    EXPECT_TRUE(failed_with(answered, errc::peer_closed)) << "nobody will answer that";

    const auto wait_for_the_end = [&]() -> task<> { EXPECT_EQ(co_await raw.receive_rest(), nothing); };
    co_await when_all(ours.close(), wait_for_the_end());
    co_await memory.release();
  });
}

TEST_F(foreign_peer, that_closes_its_direction_and_goes_is_noticed_by_a_send) {
  accept_foreign({}, {}, [&](raw_peer& raw, net::connection& ours, const parameters&) -> task<> {
    raw.close();
    EXPECT_FALSE(co_await ours.recv());
    std::optional<error> failure;
    while (!failure) failure = co_await failure_of(ours.send(co_await pool().allocate(1)));
    EXPECT_TRUE(failed_with(failure, errc::peer_vanished));
    EXPECT_FALSE(co_await ours.recv()) << "it had ended in order";
  });
}

// RFC 5044 section 7.1.2, rule 4.
TEST_F_TASK(foreign_peer, whose_first_frame_is_invalid_is_sent_none) {
  auto listener = co_await listen();
  raw_peer raw = raw_peer::connect(listener.address());
  const auto serve = [&]() -> task<net::connection> {
    auto request = co_await listener.next();
    co_return co_await request->accept();
  };
  const auto ask = [&]() -> task<> {
    co_await raw.send(frame_of({.crc = true, .revision = 1, .enhanced = {}, .private_data = {}}));
    bytes reply(mpa::frame_header_bytes);
    co_await raw.receive(reply);
  };
  auto both = co_await when_all(serve(), ask());
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
  const bytes reply =
      frame_of({.kind = mpa::frame_kind::reply,
                .enhanced = mpa::enhanced_data{.ird = 2, .ord = 1, .peer_to_peer = true, .rtr_write = true},
                .private_data = {}});
  connect_to_foreign(reply, {}, [&](raw_peer&, net::connection& ours, const bytes&) -> task<> {
    EXPECT_EQ(ours.capabilities().outgoing_reads, 2);
    co_return;
  });
}

TEST_F(foreign_peer, that_will_not_negotiate_reads_leaves_this_end_its_own) {
  const bytes reply = frame_of(
      {.kind = mpa::frame_kind::reply,
       .enhanced =
           mpa::enhanced_data{
               .ird = mpa::not_negotiated, .ord = mpa::not_negotiated, .peer_to_peer = true, .rtr_write = true},
       .private_data = {}});
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
  const bytes reply =
      frame_of({.kind = mpa::frame_kind::reply,
                .enhanced = mpa::enhanced_data{.ird = 4, .ord = 4, .peer_to_peer = true, .rtr_read = true},
                .private_data = {}});
  open_device({.iwarp = {.checksum = false}});
  connect_to_foreign(reply, {}, [&](raw_peer& raw, net::connection&, const bytes&) -> task<> {
    const bytes ulpdu = co_await raw.receive_fpdu();
    EXPECT_TRUE(!ulpdu.empty() &&
                parse_control(std::span(ulpdu).first<control_bytes>()).opcode == opcode::read_request);
  });
  run([&]() -> task<> {
    auto listener = co_await listen();
    raw_peer raw = raw_peer::connect(listener.address());
    raw.send_now(frame_of({.enhanced = mpa::enhanced_data{.ird = 4, .ord = 4, .peer_to_peer = true, .rtr_read = true},
                           .private_data = {}}));
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
  raw.send_now(frame_of({.enhanced = mpa::enhanced_data{.ird = 4, .ord = 4, .peer_to_peer = true, .rtr_send = true},
                         .private_data = {}}));
  const auto signal = [&]() -> task<> {
    bytes answer(mpa::frame_header_bytes + mpa::enhanced_bytes);
    co_await raw.receive(answer);
    const mpa::frame frame = parsed(answer, mpa::frame_kind::reply);
    EXPECT_TRUE(frame.enhanced->rtr_send && !frame.enhanced->rtr_write && !frame.enhanced->rtr_read);
    const bytes nothing;
    co_await raw.send_message(nothing);
  };
  auto both = co_await when_all(accept(listener), signal());
  co_await expect_plain_messages(raw, std::get<0>(both));
  const bytes nothing;
  co_await raw.send_message(nothing);  // and the second empty one is
  const auto message = co_await std::get<0>(both).recv_or_throw();
  EXPECT_EQ(message.size(), 0u);
}

TEST_F(foreign_peer, whose_messages_nobody_receives_holds_up_a_read_for_so_long_and_no_longer) {
  const net::connection_options ours{.receive_depth = 1};
  accept_foreign({}, ours, [&](raw_peer& raw, net::connection& peer, const parameters&) -> task<> {
    const bytes payload(10);
    for (int i = 0; i < 100; ++i) co_await raw.send_message(payload);
    auto memory = co_await pool().allocate(100);
    const mr::remote_region there(1, 0, 100, mr::usage::read_src);
    const auto wait_too_long = [&]() -> task<> {
      co_await settle();
      EXPECT_EQ((co_await raw.receive_fpdu()).size(), untagged_header::bytes + read_request::bytes);
      jump(ours.overdue_after + 1s);
    };
    const auto both = co_await when_all(code_of(peer.read(memory, there.slice(0, 100))), wait_too_long());
    EXPECT_EQ(std::get<0>(both), errc::not_receiving);
  });
}

TEST_F(foreign_peer, whose_messages_are_received_in_time_gets_its_answer_to_a_read_through) {
  const net::connection_options ours{.receive_depth = 1, .overdue_after = 300s};
  accept_foreign({}, ours, [&](raw_peer& raw, net::connection& peer, const parameters&) -> task<> {
    const bytes payload(10);
    for (int i = 0; i < 100; ++i) co_await raw.send_message(payload);
    auto memory = co_await pool().allocate(100);
    const mr::remote_region there(1, 0, 100, mr::usage::read_src);
    const auto answer_and_receive = [&]() -> task<> {
      const bytes asked = co_await raw.receive_fpdu();
      const auto sink = parse_read_request(std::span(asked).last<read_request::bytes>()).sink_stag;
      bytes ulpdu(tagged_header::bytes + 100);
      encode(tagged_header{.opcode = opcode::read_response, .stag = sink},
             std::span(ulpdu).first<tagged_header::bytes>());
      co_await raw.send_fpdu(ulpdu);
      jump(ours.overdue_after - 100s);  // what is left is for a machine that stalls
      for (int i = 0; i < 100; ++i) static_cast<void>(co_await peer.recv_or_throw());
    };
    const auto both = co_await when_all(code_of(peer.read(memory, there.slice(0, 100))), answer_and_receive());
    EXPECT_EQ(std::get<0>(both), std::error_code());
    jump(ours.overdue_after + 1s);  // the watch is over
    co_await settle();
    co_await raw.send_message(payload);
    static_cast<void>(co_await peer.recv_or_throw());
  });
}

// Nobody reads its socket meanwhile, so that nothing there tells.
TEST_F(foreign_peer, that_dies_behind_messages_that_nobody_receives_is_noticed_by_whoever_waits_for_it) {
  const net::connection_options ours{.receive_depth = 1, .overdue_after = {}};
  accept_foreign({}, ours, [&](raw_peer& raw, net::connection& peer, const parameters&) -> task<> {
    const bytes payload(10);
    for (int i = 0; i < 100; ++i) co_await raw.send_message(payload);
    auto memory = co_await pool().allocate(100);
    const mr::remote_region there(1, 0, 100, mr::usage::read_src);
    const auto die = [&]() -> task<> {
      EXPECT_EQ((co_await raw.receive_fpdu()).size(), untagged_header::bytes + read_request::bytes);
      raw.reset();
      for (int i = 0; i < 10; ++i) {
        jump(1s);
        co_await settle();
      }
    };
    const auto both = co_await when_all(failure_of(peer.read(memory, there.slice(0, 100))), die());
    EXPECT_TRUE(std::get<0>(both) && std::get<0>(both)->code() == errc::peer_vanished);
    EXPECT_TRUE(contains(std::get<0>(both), "reset"));
  });
}

TEST_F_TASK(foreign_peer, that_takes_only_a_send_as_the_ready_signal_is_told_that_there_is_none) {
  raw_listener listener;
  const bytes reply =
      frame_of({.kind = mpa::frame_kind::reply,
                .enhanced = mpa::enhanced_data{.ird = 4, .ord = 4, .peer_to_peer = true, .rtr_send = true},
                .private_data = {}});
  const auto serve = [&]() -> task<> {
    raw_peer raw = co_await listener.accept();
    static_cast<void>(co_await raw.answer(reply));
    const auto said = co_await raw.receive_terminate();
    EXPECT_TRUE(said && *said == cause::no_common_ready_signal);
  };
  const auto both = co_await when_all(failure_of(device().connect(listener.address())), serve());
  EXPECT_TRUE(std::get<0>(both) && std::get<0>(both)->code() == errc::protocol_error);
  EXPECT_TRUE(contains(std::get<0>(both), "ready-to-receive"));
}

}  // namespace
}  // namespace weft::test
