// SPDX-License-Identifier: Apache-2.0
#include <weft/net/iwarp/ddp.hpp>
#include <weft/net/iwarp/handshake.hpp>

#include "iwarp/support.hpp"

namespace weft::net::iwarp {
namespace {

bytes output_of(handshake& side) {
  const auto pending = side.output();
  bytes result(pending.begin(), pending.end());
  side.sent(result.size());
  return result;
}

bytes reply(const mpa::enhanced_data& data) {
  return encoded({.kind = mpa::frame_kind::reply, .crc = true, .enhanced = data, .private_data = {}});
}

bytes request(const mpa::enhanced_data& data) { return encoded({.crc = true, .enhanced = data, .private_data = {}}); }

template <class Side>
void feed_bytewise(Side& side, const bytes& wire) {
  for (const std::byte& byte : wire) ASSERT_EQ(side.consume({&byte, 1}), 1U);
}

/// IRD and ORD.
template <class Depths>
std::pair<int, int> depths_of(const Depths& of) {
  return {of.ird, of.ord};
}

void expect_terminate(std::span<const std::byte> wire, terminate_code code) {
  const auto ulpdu = first_ulpdu(wire);
  EXPECT_EQ(control_of(ulpdu).opcode, opcode::terminate);
  const auto message = parse_terminate(ulpdu.subspan(untagged_header::bytes));
  ASSERT_TRUE(message);
  EXPECT_EQ(message->code, code);
}

constexpr std::size_t ready_write_bytes = mpa::fpdu_bytes(tagged_header::bytes);

TEST(handshake, agrees_byte_by_byte_and_carries_private_data_both_ways) {
  const bytes question = text("hello");
  const bytes answer = text("welcome");
  initiator client({.ird = 16, .ord = 8, .private_data = question});
  responder server({.ird = 32, .ord = 4});

  feed_bytewise(server, output_of(client));
  ASSERT_EQ(server.state(), handshake_state::requested);
  EXPECT_TRUE(std::ranges::equal(server.peer_private_data(), question));
  ASSERT_TRUE(server.accept(answer));
  EXPECT_EQ(server.state(), handshake_state::established);

  feed_bytewise(client, output_of(server));
  ASSERT_EQ(client.state(), handshake_state::established);
  EXPECT_TRUE(std::ranges::equal(client.peer_private_data(), answer));

  EXPECT_EQ(depths_of(client.agreed()), std::pair(16, 8));
  EXPECT_EQ(depths_of(server.agreed()), std::pair(8, 4));
  EXPECT_EQ(client.agreed().peer_ird, 8);
  EXPECT_EQ(client.agreed().peer_ord, 4);
  EXPECT_TRUE(client.agreed().peer_to_peer);
  EXPECT_TRUE(server.agreed().peer_to_peer);
  EXPECT_EQ(client.agreed().revision, 2);
}

TEST(handshake, the_ready_signal_leaves_at_once_behind_the_reply) {
  initiator client({});
  responder server({});
  server.consume(output_of(client));
  ASSERT_TRUE(server.accept({}));
  client.consume(output_of(server));
  const bytes signal = output_of(client);
  ASSERT_EQ(signal.size(), ready_write_bytes);
  const tagged_header header = parse_tagged(first_ulpdu(signal).first<tagged_header::bytes>());
  EXPECT_EQ(header.opcode, opcode::write);
  EXPECT_TRUE(header.last);
  EXPECT_EQ(client.agreed().signal, ready_signal::write);
}

TEST(handshake, a_responder_that_takes_only_reads_gets_a_zero_length_one_as_the_signal) {
  initiator client({});
  output_of(client);
  client.consume(reply({.ird = 1, .ord = 16, .peer_to_peer = true, .rtr_read = true}));
  EXPECT_EQ(client.agreed().signal, ready_signal::read);
  const bytes signal = output_of(client);
  const auto ulpdu = first_ulpdu(signal);
  ASSERT_EQ(ulpdu.size(), untagged_header::bytes + read_request::bytes);
  const untagged_header header = parse_untagged(ulpdu.first<untagged_header::bytes>());
  EXPECT_EQ(header.opcode, opcode::read_request);
  EXPECT_EQ(header.queue, read_request_queue);
  EXPECT_EQ(header.sequence, 1U);
  EXPECT_EQ(parse_read_request(ulpdu.last<read_request::bytes>()).size, 0U);
}

TEST(handshake, without_a_common_ready_signal_the_stream_is_terminated) {
  for (const mpa::enhanced_data& data :
       {mpa::enhanced_data{.ird = 16, .ord = 16, .peer_to_peer = true, .rtr_send = true},
        mpa::enhanced_data{.ird = 0, .ord = 16, .peer_to_peer = true, .rtr_read = true}}) {
    initiator client({});
    output_of(client);
    client.consume(reply(data));
    EXPECT_EQ(client.state(), handshake_state::failed);
    expect_terminate(output_of(client), cause::no_common_ready_signal);
  }
}

// Linux 6.1 siw crashes if the connection ends between its reply and the signal.
TEST(handshake, a_send_is_agreed_to_as_the_signal_only_where_the_initiator_can_do_nothing_else) {
  for (const bool others : {false, true}) {
    responder server({});
    server.consume(
        request({.ird = 4, .ord = 4, .peer_to_peer = true, .rtr_send = true, .rtr_write = others, .rtr_read = others}));
    server.limit({});
    ASSERT_TRUE(server.accept({}));
    EXPECT_EQ(server.agreed().signal == ready_signal::send, !others);
    const bytes wire = output_of(server);
    const mpa::frame answer = parsed(wire, mpa::frame_kind::reply);
    EXPECT_EQ(answer.enhanced->rtr_send, !others);
    EXPECT_EQ(answer.enhanced->rtr_write, others);
    EXPECT_EQ(answer.enhanced->rtr_read, others);
  }
}

TEST(handshake, too_many_reads_are_refused_only_behind_the_ready_signal) {
  initiator client({.ird = 4});
  output_of(client);
  client.consume(reply({.ird = 16, .ord = 8, .peer_to_peer = true, .rtr_write = true}));
  EXPECT_EQ(client.state(), handshake_state::failed);
  const bytes out = output_of(client);
  EXPECT_EQ(control_of(first_ulpdu(out)).opcode, opcode::write);
  expect_terminate(std::span(out).subspan(ready_write_bytes), cause::insufficient_ird);
}

TEST(handshake, depths_are_advertised_as_powers_of_two) {
  initiator client({.ird = 100, .ord = 0x3FFF});
  const bytes wire = output_of(client);
  EXPECT_EQ(depths_of(*parsed(wire, mpa::frame_kind::request).enhanced), std::pair(64, 0x2000));
}

TEST(handshake, the_responder_keeps_one_read_for_the_signal) {
  responder server({});
  server.consume(request({.ird = 0, .ord = 0, .peer_to_peer = true, .rtr_read = true}));
  ASSERT_TRUE(server.accept({}));
  EXPECT_EQ(depths_of(server.agreed()), std::pair(1, 0));
}

TEST(handshake, depths_that_are_not_to_be_negotiated_are_left_alone) {
  responder server({.ird = 8, .ord = 4});
  server.consume(request({.ird = mpa::not_negotiated, .ord = mpa::not_negotiated}));
  ASSERT_TRUE(server.accept({}));
  EXPECT_EQ(depths_of(server.agreed()), std::pair(8, 4));
  const bytes wire = output_of(server);
  const std::pair<int, int> nothing{mpa::not_negotiated, mpa::not_negotiated};
  EXPECT_EQ(depths_of(*parsed(wire, mpa::frame_kind::reply).enhanced), nothing);

  initiator client({.ird = 2, .ord = 2});
  client.consume(wire);
  EXPECT_EQ(client.state(), handshake_state::established);
  EXPECT_EQ(depths_of(client.agreed()), std::pair(2, 2));
}

TEST(handshake, a_client_server_request_gets_a_client_server_reply) {
  responder server({});
  server.consume(request({.ird = 4, .ord = 4}));
  ASSERT_TRUE(server.accept({}));
  const bytes wire = output_of(server);
  const mpa::frame answer = parsed(wire, mpa::frame_kind::reply);
  EXPECT_FALSE(answer.enhanced->peer_to_peer);
  EXPECT_FALSE(answer.enhanced->rtr_send || answer.enhanced->rtr_write || answer.enhanced->rtr_read);
}

TEST(handshake, a_reply_in_a_later_revision_than_asked_for_is_an_error) {
  initiator client({.revision = 1});
  client.consume(reply({.ird = 1, .ord = 1}));
  EXPECT_EQ(client.state(), handshake_state::failed);
}

TEST(handshake, markers_are_refused_in_words) {
  responder server({});
  server.consume(encoded({.markers = true, .private_data = {}}));
  EXPECT_EQ(server.state(), handshake_state::failed);
  EXPECT_NE(server.error().view().find("markers"), std::string_view::npos);
  const bytes wire = output_of(server);
  EXPECT_TRUE(parsed(wire, mpa::frame_kind::reply).rejected);

  initiator client({});
  output_of(client);
  client.consume(encoded({.kind = mpa::frame_kind::reply, .markers = true, .private_data = {}}));
  EXPECT_EQ(client.state(), handshake_state::failed);
  expect_terminate(output_of(client), cause::mpa_catastrophic);  // RFC 6581 section 9.3
  EXPECT_NE(client.error().view().find("markers"), std::string_view::npos);
}

TEST(handshake, what_follows_the_frame_is_left_for_the_engine) {
  bytes wire = request({.ird = 1, .ord = 1});
  const std::size_t frame_bytes = wire.size();
  wire.resize(frame_bytes + 50, std::byte{0x55});
  responder server({});
  EXPECT_EQ(server.consume(wire), frame_bytes);
  EXPECT_EQ(server.consume(std::span(wire).subspan(frame_bytes)), 0U);
  EXPECT_EQ(server.state(), handshake_state::requested);
}

TEST(handshake, private_data_that_does_not_fit_is_refused_before_anything_is_sent) {
  const bytes largest(max_user_private_bytes);
  const bytes too_large(max_user_private_bytes + 1);
  EXPECT_EQ(initiator({.private_data = largest}).state(), handshake_state::waiting);
  initiator client({.private_data = too_large});
  EXPECT_EQ(client.state(), handshake_state::failed);
  EXPECT_TRUE(client.output().empty());

  responder server({});
  server.consume(request({.ird = 1, .ord = 1}));
  EXPECT_FALSE(server.accept(too_large));
  EXPECT_FALSE(server.reject(too_large));
  EXPECT_TRUE(server.accept(largest));
  EXPECT_FALSE(server.accept(largest)) << "only once";
}

TEST(handshake, a_connection_cut_at_any_byte_is_a_clean_error) {
  const bytes wire = request({.ird = 1, .ord = 1, .peer_to_peer = true, .rtr_write = true});
  for (std::size_t cut = 0; cut <= wire.size(); ++cut) {
    responder server({});
    server.consume(std::span(wire).first(cut));
    server.end_of_stream();
    ASSERT_EQ(server.state(), handshake_state::failed) << cut;
    ASSERT_FALSE(server.error().empty());
    ASSERT_FALSE(server.accept({}));
    ASSERT_TRUE(server.output().empty());
  }
}

}  // namespace
}  // namespace weft::net::iwarp
