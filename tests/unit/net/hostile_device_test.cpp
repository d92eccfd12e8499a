// SPDX-License-Identifier: Apache-2.0
// Peers that say what makes no sense about memory of devices: their own connection ends.
#include <weft/net/link/owner_message.hpp>

#include "net/support.hpp"

namespace weft::test {
namespace {

using net::owner_message;
using verb = owner_message::verb;

constexpr std::uint8_t about_devices = 6;

bytes packed(const owner_message& what) {
  bytes room(owner_message::max_bytes);
  room.resize(what.pack(room));
  return room;
}

class hostile_about_devices : public net_test {
 protected:
  static raw_client client(bool agreed = true) {
    return {.greeting = agreed ? greeting_with(5, 0x80) : greeting_bytes(), .ours = {.device_memory = true}};
  }
  void expect_end_after(const std::vector<bytes>& messages, bool agreed = true) {
    const auto script = [&](raw_peer& raw, net::connection& peer) -> task<> {
      for (const bytes& each : messages) co_await raw.send_message(each, about_devices, greeted_depth);
      EXPECT_EQ(co_await code_of(peer.recv()), errc::protocol_error);
    };
    against_raw_client(script, client(agreed));
  }
};

TEST_F(hostile_about_devices, without_having_agreed_on_it) { expect_end_after({packed({.what = verb::ask})}, false); }

// Requests before there are slots, answers that nobody waits for, and, of an end that has agreed on copies alone, a
// request for persistence.
TEST_F(hostile_about_devices, out_of_turn) {
  for (const verb what : {verb::put, verb::get, verb::persist}) expect_end_after({packed({.what = what, .bytes = 1})});
  for (const verb what : {verb::answer, verb::memory}) expect_end_after({packed({.what = what})});
}

// This end would ask for room to be able to ask.
TEST_F_AGAINST_RAW(hostile_about_devices, room_for_copies_that_has_to_be_asked_for_is_none, client()) {
  const mr::remote_place behind{.fabric = mr::place_behind_owner, .address = 0, .key = 1};
  const mr::usage both_ways = mr::usage::write_dst | mr::usage::read_src;
  const mr::remote_region there({&behind, 1}, 64, both_ways);
  const mr::remote_region room({&behind, 1}, owner_message::slots * owner_message::slot_bytes, both_ways);
  auto memory = co_await pool().allocate(64);
  const auto answer = [&]() -> task<> {
    static_cast<void>(co_await raw.receive_fpdu());
    co_await raw.send_message(packed({.what = verb::memory, .region = room}), about_devices, greeted_depth);
  };
  const auto done = co_await when_all(code_of(peer.write(memory, there)), answer());
  EXPECT_EQ(std::get<0>(done), errc::no_memory);
}

TEST_F(hostile_about_devices, asking_twice) {
  expect_end_after({packed({.what = verb::ask}), packed({.what = verb::ask})});
}

TEST_F(hostile_about_devices, several_requests_for_persistence_at_a_time) {
  EXPECT_FALSE(owner_message::unpack(packed({.what = verb::persist, .slot = 1, .bytes = 1})));
}

TEST_F(hostile_about_devices, requests_for_copies_where_persistence_alone_was_agreed_on) {
  for (const verb what : {verb::ask, verb::memory, verb::put, verb::get, verb::share, verb::unshare}) {
    const auto script = [&](raw_peer& raw, net::connection& peer) -> task<> {
      EXPECT_TRUE(peer.capabilities().persistent_flush);
      co_await raw.send_message(packed({.what = what}), about_devices, greeted_depth);
      EXPECT_EQ(co_await code_of(peer.recv()), errc::protocol_error);
    };
    against_raw_client(script, {.greeting = greeting_with(15, 0x02), .ours = {.persistent_flush = true}});
  }
}

TEST_F(hostile_about_devices, words_that_are_none) {
  const auto changed = [](std::size_t place, unsigned value) {
    bytes all = packed({.what = verb::ask});
    all[place] = static_cast<std::byte>(value);
    return all;
  };
  for (const auto& [place, value] : {std::pair{0u, 0u}, {0u, 9u}, {0u, 255u}, {1u, 8u}, {2u, 8u}, {7u, 1u}}) {
    expect_end_after({changed(place, value)});
  }
  bytes longer = packed({.what = verb::ask});
  longer.push_back(std::byte{0});
  expect_end_after({longer});
  longer.resize(owner_message::head_bytes - 1);
  expect_end_after({longer});
  longer.resize(0);
  expect_end_after({longer});
}

TEST(owner_messages, survive_the_wire) {
  owner_message said{.what = verb::get,
                     .slot = 7,
                     .status = mr::detail::owner_access::out_of_range,
                     .flushes = true,
                     .bytes = owner_message::slot_bytes,
                     .key = 0x0102030405060708,
                     .offset = 0xF1F2F3F4F5F6F7F8};
  const bytes wire = packed(said);
  EXPECT_EQ(wire.size(), owner_message::head_bytes);
  EXPECT_EQ(wire[8], std::byte{8});  // little-endian
  EXPECT_EQ(wire[16], std::byte{0xF8});
  const auto again = owner_message::unpack(wire);
  ASSERT_TRUE(again);
  EXPECT_EQ(packed(*again), wire);
  for (std::size_t length = 0; length != wire.size(); ++length) {
    EXPECT_FALSE(owner_message::unpack(std::span(wire).first(length))) << length;
  }
}

TEST(owner_messages, ask_for_more_persistence_than_copies_at_a_time) {
  const auto of = [](verb what, std::size_t bytes_there) {
    return packed({.what = what, .bytes = static_cast<std::uint32_t>(bytes_there)});
  };
  EXPECT_TRUE(owner_message::unpack(of(verb::persist, owner_message::most_persistent_bytes)));
  EXPECT_FALSE(owner_message::unpack(of(verb::persist, owner_message::most_persistent_bytes + 1)));
  EXPECT_FALSE(owner_message::unpack(of(verb::put, owner_message::slot_bytes + 1)));
}

TEST(owner_messages, tell_of_memory_of_exactly_the_size_of_all_slots) {
  const auto of = [](std::size_t bytes_there) {
    return packed({.what = verb::memory, .region = mr::remote_region(7, 0x1000, bytes_there, mr::usage::write_dst)});
  };
  constexpr std::size_t all = owner_message::slots * owner_message::slot_bytes;
  EXPECT_TRUE(owner_message::unpack(of(all)));
  EXPECT_FALSE(owner_message::unpack(of(all - 1)));
  EXPECT_FALSE(owner_message::unpack(of(all + 1)));
}

TEST(owner_messages, of_the_longest_kind_have_not_a_byte_more) {
  std::vector<mr::remote_place> places;
  for (std::size_t i = 0; i != mr::max_fabrics; ++i) {
    places.push_back({.fabric = static_cast<std::uint8_t>(i), .address = 0x1000, .key = UINT64_MAX - i});
  }
  mr::remote_region longest(places, owner_message::slots * owner_message::slot_bytes, mr::usage::write_dst);
  longest.count_by(7);
  bytes wire = packed({.what = verb::memory, .region = longest});
  ASSERT_EQ(wire.size(), owner_message::max_bytes);
  EXPECT_TRUE(owner_message::unpack(wire));
  wire.push_back(std::byte{0});
  EXPECT_FALSE(owner_message::unpack(wire));
}

}  // namespace
}  // namespace weft::test
