// SPDX-License-Identifier: Apache-2.0
// Every Terminate that a receiver can send is provoked on a real connection. The names of the tests end in the code
// that is to come back, as layer_type_code in hexadecimal digits, so that whoever looks at the wire knows what was
// meant.
#include <weft/net/software/domain.hpp>

#include <fmt/core.h>

#include <ostream>
#include <set>
#include <tuple>

#include "kit/buffers.hpp"
#include "net/support.hpp"
#include "stag_of.hpp"

namespace weft::test {
namespace {

using namespace net::iwarp;

constexpr std::uint32_t unused_key = 0xDEAD'BEEF;
constexpr std::uint32_t foreign_key = 0x1234'5678;  // of another connection
constexpr std::uint32_t public_key = 0x8765'4321;   // of every connection
constexpr std::size_t open_bytes = 1000;

/// A peer that breaks one rule, and what it may break it with.
struct scene {
  raw_peer& raw;
  std::uint32_t both;       // the key of what may be read and written
  std::uint32_t read_only;  // keys of the same size
  std::uint32_t write_only;
};

struct provocation {
  const char* name;
  terminate_code code;
  task<> (*commit)(scene&);
  std::string_view words = {};  // of the error at this end
  bool crc = false;
};

void PrintTo(const provocation& what, std::ostream* out) { *out << what.name; }

template <class Case>
std::string name_of(const testing::TestParamInfo<Case>& info) {
  const terminate_code code = info.param.code;
  return fmt::format("{}_{:x}_{:x}_{:02x}", info.param.name, code.layer, code.type, code.code);
}

const bytes two(2, std::byte{1});

constexpr std::uint8_t data_with_immediate = 4;
constexpr std::uint8_t unknown_kind = 9;
constexpr std::uint8_t with_atomics = 1;  // in a greeting

// The error of each access that is refused has them.
constexpr std::string_view access_words = "the peer tried to";

task<> say(raw_peer& raw, bytes ulpdu) { co_await raw.send_fpdu(ulpdu); }

task<> say_untagged(scene& with, untagged_header header, std::size_t payload = 2) {
  return say(with.raw, untagged_ulpdu(header, bytes(payload)));
}

task<> send_message(scene& with, std::size_t size, std::uint8_t kind, std::uint32_t credits = greeted_depth) {
  co_await with.raw.send_message(bytes(size), kind, credits);
}

task<> invalidate(scene& with, std::uint32_t key) {
  return say_untagged(with, {.opcode = opcode::send_with_invalidate, .invalidate_stag = key}, 8);
}

task<> say_changed(raw_peer& raw, bytes ulpdu, std::size_t at, std::byte value) {
  ulpdu[at] = value;
  co_await raw.send_fpdu(ulpdu);
}

task<> flood_with_reads(scene& with) {
  // Read responses wait for their turn while the requests come in, so that one burst of these exceeds any depth.
  std::array<std::byte, read_request::bytes> body{};
  encode(read_request{.sink_stag = 7, .size = open_bytes, .source_stag = with.both}, body);
  bytes burst;
  for (std::uint32_t i = 1; i <= 200; ++i) {
    const bytes next = with.raw.fpdu(
        untagged_ulpdu({.opcode = opcode::read_request, .queue = read_request_queue, .sequence = i}, body));
    burst.insert(burst.end(), next.begin(), next.end());
  }
  with.raw.send_now(burst);
  co_return;
}

task<> add_off_the_boundary(scene& with) {
  std::array<std::byte, atomic_request::bytes> body{};
  encode(atomic_request{.stag = with.both, .offset = 4, .operand = 1}, body);
  co_await with.raw.send_fpdu(untagged_ulpdu({.opcode = opcode::atomic_request, .queue = read_request_queue}, body));
}

const provocation provocations[] = {
    // RDMAP: protection, of reads and invalidations
    {"read_of_an_unknown_stag", cause::read_invalid_stag, [](scene& s) { return s.raw.read(unused_key, 0, 1); },
     access_words},
    {"invalidation_of_an_unknown_stag", cause::read_invalid_stag, [](scene& s) { return invalidate(s, unused_key); }},
    {"read_past_the_end", cause::read_bounds, [](scene& s) { return s.raw.read(s.both, open_bytes - 1, 2); },
     access_words},
    {"read_of_all_there_is_and_more", cause::read_bounds, [](scene& s) { return s.raw.read(s.both, 0, UINT32_MAX); },
     access_words},
    {"read_of_what_is_only_writable", cause::read_access, [](scene& s) { return s.raw.read(s.write_only, 0, 1); },
     access_words},
    {"read_of_another_connections", cause::read_not_associated, [](scene& s) { return s.raw.read(foreign_key, 0, 1); },
     access_words},
    {"read_that_wraps", cause::read_wrap, [](scene& s) { return s.raw.read(s.both, ~std::uint64_t{0}, 2); },
     access_words},
    {"invalidation_of_another_connections", cause::read_not_associated,
     [](scene& s) { return invalidate(s, foreign_key); }},
    {"invalidation_of_a_shared_stag", cause::cannot_invalidate, [](scene& s) { return invalidate(s, public_key); }},
    // RDMAP: operation
    {"rdmap_version_2", cause::rdmap_version,
     [](scene& s) { return say_changed(s.raw, untagged_ulpdu({.opcode = opcode::send}, two), 1, std::byte{0x83}); }},
    {"opcode_12", cause::unexpected_opcode,
     [](scene& s) { return say_untagged(s, {.opcode = static_cast<opcode>(12)}); }},
    {"read_response_to_no_read", cause::unexpected_opcode,
     [](scene& s) { return say(s.raw, tagged_ulpdu({.opcode = opcode::read_response, .stag = 7}, two)); }},
    {"short_read_request", cause::operation_unspecified,
     [](scene& s) { return say_untagged(s, {.opcode = opcode::read_request, .queue = read_request_queue}, 27); }},
    {"atomic_off_its_boundary", cause::stream_catastrophic, add_off_the_boundary},
    // DDP: tagged buffers
    {"write_to_an_unknown_stag", cause::tagged_invalid_stag, [](scene& s) { return s.raw.write(unused_key, 0, two); },
     access_words},
    {"write_to_the_stag_that_none_is", cause::tagged_invalid_stag, [](scene& s) { return s.raw.write(0, 0, two); },
     access_words},
    {"write_to_what_is_only_readable", cause::tagged_invalid_stag,
     [](scene& s) { return s.raw.write(s.read_only, 0, two); }, access_words},
    {"write_past_the_end", cause::tagged_bounds, [](scene& s) { return s.raw.write(s.both, open_bytes - 1, two); },
     access_words},
    {"write_to_another_connections", cause::tagged_not_associated,
     [](scene& s) { return s.raw.write(foreign_key, 0, two); }, access_words},
    {"write_that_wraps", cause::tagged_wrap, [](scene& s) { return s.raw.write(s.both, ~std::uint64_t{0}, two); },
     access_words},
    {"tagged_ddp_version_2", cause::tagged_version,
     [](scene& s) { return say_changed(s.raw, tagged_ulpdu({.stag = s.both}, two), 0, std::byte{0xC2}); }},
    // DDP: untagged buffers
    {"send_on_the_read_queue", cause::untagged_queue,
     [](scene& s) { return say_untagged(s, {.opcode = opcode::send, .queue = read_request_queue}); }},
    {"more_reads_than_agreed", cause::untagged_no_buffer, flood_with_reads, "outstanding reads"},
    {"message_from_the_future", cause::untagged_sequence,
     [](scene& s) { return say_untagged(s, {.opcode = opcode::send, .sequence = 2}); }},
    {"message_that_begins_in_its_middle", cause::untagged_offset,
     [](scene& s) { return say_untagged(s, {.opcode = opcode::send, .offset = 1}); }},
    {"message_too_long", cause::untagged_too_long,
     [](scene& s) { return send_message(s, greeted_size + net::trailer::immediate_bytes + 1, data_kind); },
     "has room for"},
    {"message_too_long_in_the_room_for_its_trailer", cause::untagged_too_long,
     [](scene& s) { return send_message(s, greeted_size + 1, data_kind); }, "receive_size"},
    {"untagged_ddp_version_0", cause::untagged_version,
     [](scene& s) { return say_changed(s.raw, untagged_ulpdu({.opcode = opcode::send}, two), 0, std::byte{0x40}); }},
    // Messages of weft
    {"message_without_a_trailer", cause::stream_catastrophic,
     [](scene& s) { return say_untagged(s, {.opcode = opcode::send}, 1); }, "trailer"},
    {"message_too_short_for_its_immediate_data", cause::stream_catastrophic,
     [](scene& s) { return send_message(s, 3, data_with_immediate); }, "trailer"},
    {"message_of_an_unknown_kind", cause::stream_catastrophic,
     [](scene& s) { return send_message(s, 1, unknown_kind); }, "trailer"},
    {"control_message_with_a_payload", cause::stream_catastrophic,
     [](scene& s) { return send_message(s, 1, credits_kind); }, "trailer"},
    {"more_credits_than_it_has_receives", cause::stream_catastrophic,
     [](scene& s) { return send_message(s, 0, credits_kind, greeted_depth + 1); }, "credits"},
    {"credits_that_are_taken_back", cause::stream_catastrophic,
     [](scene& s) { return send_message(s, 0, credits_kind, greeted_depth - 1); }, "credits"},
    // MPA
    {"wrong_crc", cause::crc_mismatch,
     [](scene& s) {
       static const bytes ulpdu = untagged_ulpdu({.opcode = opcode::send}, two);
       return s.raw.send_fpdu(ulpdu, true);
     },
     "CRC mismatch", true},
    {"fpdu_shorter_than_a_header", cause::framing, [](scene& s) { return say(s.raw, bytes(13)); }},
    {"fpdu_longer_than_any", cause::framing,
     [](scene& s) {
       static const bytes announcement(2, std::byte{0xFF});
       return s.raw.send(announcement);
     }},
};

class provoked : public net_test, public testing::WithParamInterface<provocation> {
 protected:
  [[nodiscard]] net::software::key_table& keys() {
    return static_cast<net::software::domain&>(device().domain()).keys();
  }
};
INSTANTIATE_TEST_SUITE_P(by, provoked, testing::ValuesIn(provocations), name_of<provocation>);

TEST_P(provoked, a_terminate_with_its_cause_comes_back_and_memory_is_as_it_was) {
  std::vector<std::byte> outside(open_bytes, std::byte{7});
  keys().insert_as(foreign_key, outside, 0, {.remote_read = true, .remote_write = true},
                   net::software::stream_id{1} << 40);
  keys().insert_as(public_key, outside, 0, {.remote_read = true, .remote_write = true}, net::software::any_stream);
  against_raw_client(
      [&](raw_peer& raw, net::connection& peer) -> task<> {
        std::vector<net::exposure> open;
        for (const mr::usage uses : {mr::usage::read_src | mr::usage::write_dst | mr::usage::atomic_dst,
                                     mr::usage::read_src, mr::usage::write_dst}) {
          auto memory = co_await filled_with(pool(), open_bytes, std::byte{7});
          open.push_back(co_await peer.expose(std::move(memory), uses));
        }
        scene now{raw, test::stag_of(open[0].remote()), test::stag_of(open[1].remote()),
                  test::stag_of(open[2].remote())};
        co_await GetParam().commit(now);

        co_await expect_terminate(raw, GetParam().code);
        static_cast<void>(co_await raw.receive_rest());
        EXPECT_TRUE(failed_with(co_await failure_of(peer.recv()), errc::protocol_error, GetParam().words));
        for (const net::exposure& memory : open) EXPECT_TRUE(is_all(memory.memory().bytes(), std::byte{7}));
        EXPECT_TRUE(is_all(outside, std::byte{7}));
      },
      {.greeting = greeting_with(5, with_atomics), .crc = GetParam().crc});
  keys().erase(foreign_key);
  keys().erase(public_key);
}

// ---- by a reply to our set-up, which only an initiator can refuse with a Terminate (RFC 6581)

struct refused_reply {
  const char* name;
  terminate_code code;
  void (*change)(bytes& reply);
};

void PrintTo(const refused_reply& what, std::ostream* out) { *out << what.name; }

const refused_reply refused_replies[] = {
    {"more_reads_than_we_take", cause::insufficient_ird,
     [](bytes& reply) { reply[22] = (reply[22] & std::byte{0xC0}) | std::byte{0x20}; }},
    {"no_ready_signal_that_we_send", cause::no_common_ready_signal, [](bytes& reply) { reply[22] &= std::byte{0x3F}; }},
};

class provoked_at_set_up : public net_test, public testing::WithParamInterface<refused_reply> {};
INSTANTIATE_TEST_SUITE_P(by, provoked_at_set_up, testing::ValuesIn(refused_replies), name_of<refused_reply>);

TEST_P_TASK(provoked_at_set_up, a_terminate_with_its_cause_comes_back) {
  bytes reply = reply_frame();
  GetParam().change(reply);
  const auto serve = [&](raw_peer& raw) -> task<> {
    static_cast<void>(co_await raw.answer(reply));
    co_await expect_terminate(raw, GetParam().code);
  };
  EXPECT_TRUE(failed_with(co_await connect_to(serve), errc::protocol_error));
}

// ---- and what is not provoked

using number = std::tuple<int, int, int>;
number number_of(terminate_code code) { return {code.layer, code.type, code.code}; }

// Codes that this side never sends; a peer's are decoded (terminate.every_cause_has_words_of_its_own).
const terminate_code never_ours[] = {
    cause::protection_unspecified,       // every refusal has a reason
    cause::global_catastrophic,          // what goes wrong locally ends in an abort, without a word
    cause::operation_cannot_invalidate,  // RFC 5040 lists this cause twice: the other is used
    cause::tcp_lost,                     // there is nobody left to be told
    cause::bad_set_up_frame,             // who speaks no MPA would not understand: TCP is closed
    cause::mpa_catastrophic,             // an abort, as above
};

TEST(every_terminate, that_a_receiver_can_detect_is_provoked) {
  std::set<number> known;
  for (const auto& [layer, type, first, last] :
       {std::array{0, 1, 0, 4}, std::array{0, 1, 9, 9}, std::array{0, 1, 255, 255}, std::array{0, 2, 5, 9},
        std::array{0, 2, 255, 255}, std::array{1, 1, 0, 4}, std::array{1, 2, 1, 6}, std::array{2, 0, 1, 7}})
    for (int code = first; code <= last; ++code) known.insert({layer, type, code});

  std::set<number> seen;
  for (const provocation& one : provocations) seen.insert(number_of(one.code));
  for (const refused_reply& one : refused_replies) seen.insert(number_of(one.code));
  for (const terminate_code code : never_ours)
    EXPECT_TRUE(seen.insert(number_of(code)).second) << describe(code).c_str();
  EXPECT_EQ(seen, known);
}

}  // namespace
}  // namespace weft::test
