// SPDX-License-Identifier: Apache-2.0
// Every Terminate that a receiver can send is provoked on a real connection. The names of the tests end in the code
// that is to come back, as layer_type_code in hexadecimal digits, so that whoever looks at the wire knows what was
// meant.
#include <weft/net/software/domain.hpp>

#include <fmt/core.h>

#include <ostream>
#include <set>
#include <tuple>

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
  bool crc = false;
};

void PrintTo(const provocation& what, std::ostream* out) { *out << what.name; }

template <class Case>
std::string name_of(const testing::TestParamInfo<Case>& info) {
  const terminate_code code = info.param.code;
  return fmt::format("{}_{:x}_{:x}_{:02x}", info.param.name, code.layer, code.type, code.code);
}

const bytes two(2, std::byte{1});

bytes tagged_ulpdu(const tagged_header& header, std::size_t payload = 2) {
  bytes ulpdu(tagged_header::bytes + payload);
  encode(header, std::span(ulpdu).first<tagged_header::bytes>());
  return ulpdu;
}

bytes untagged_ulpdu(const untagged_header& header, std::size_t payload = 2) {
  bytes ulpdu(untagged_header::bytes + payload);
  encode(header, std::span(ulpdu).first<untagged_header::bytes>());
  return ulpdu;
}

task<> say(raw_peer& raw, bytes ulpdu) { co_await raw.send_fpdu(ulpdu); }

task<> say_changed(raw_peer& raw, bytes ulpdu, std::size_t at, std::byte value) {
  ulpdu[at] = value;
  co_await raw.send_fpdu(ulpdu);
}

task<> flood_with_reads(scene& with) {
  // Read responses wait for their turn while the requests come in, so that one burst of these exceeds any depth.
  const bytes one = with.raw.fpdu([&] {
    bytes ulpdu = untagged_ulpdu({.opcode = opcode::read_request, .queue = read_request_queue}, read_request::bytes);
    encode(read_request{.sink_stag = 7, .size = open_bytes, .source_stag = with.both},
           std::span(ulpdu).last<read_request::bytes>());
    return ulpdu;
  }());
  bytes burst;
  constexpr std::size_t sequence_at = mpa::length_bytes + 10;
  for (std::size_t i = 1; i <= 200; ++i) {
    burst.insert(burst.end(), one.begin(), one.end());
    (burst.end() - static_cast<std::ptrdiff_t>(one.size()))[sequence_at + 3] = static_cast<std::byte>(i);
  }
  with.raw.send_now(burst);
  co_return;
}

task<> add_off_the_boundary(scene& with) {
  bytes ulpdu = untagged_ulpdu({.opcode = opcode::atomic_request, .queue = read_request_queue}, atomic_request::bytes);
  encode(atomic_request{.stag = with.both, .offset = 4, .operand = 1}, std::span(ulpdu).last<atomic_request::bytes>());
  co_await with.raw.send_fpdu(ulpdu);
}

/// Of a weft that has every feature.
bytes full_greeting() {
  net::greeting self;
  self.receive_depth = 16;
  self.receive_size = 4096;
  self.features.atomics = true;
  const auto packed = self.pack();
  return {packed.begin(), packed.end()};
}

const provocation provocations[] = {
    // RDMAP: protection, of reads and invalidations
    {"read_of_an_unknown_stag", cause::read_invalid_stag, [](scene& s) { return s.raw.read(unused_key, 0, 1); }},
    {"invalidation_of_an_unknown_stag", cause::read_invalid_stag,
     [](scene& s) {
       return say(s.raw, untagged_ulpdu({.opcode = opcode::send_with_invalidate, .invalidate_stag = unused_key}, 8));
     }},
    {"read_past_the_end", cause::read_bounds, [](scene& s) { return s.raw.read(s.both, open_bytes - 1, 2); }},
    {"read_of_what_is_only_writable", cause::read_access, [](scene& s) { return s.raw.read(s.write_only, 0, 1); }},
    {"read_of_another_connections", cause::read_not_associated, [](scene& s) { return s.raw.read(foreign_key, 0, 1); }},
    {"read_that_wraps", cause::read_wrap, [](scene& s) { return s.raw.read(s.both, ~std::uint64_t{0}, 2); }},
    {"invalidation_of_another_connections", cause::read_not_associated,
     [](scene& s) {
       return say(s.raw, untagged_ulpdu({.opcode = opcode::send_with_invalidate, .invalidate_stag = foreign_key}, 8));
     }},
    {"invalidation_of_a_shared_stag", cause::cannot_invalidate,
     [](scene& s) {
       return say(s.raw, untagged_ulpdu({.opcode = opcode::send_with_invalidate, .invalidate_stag = public_key}, 8));
     }},
    // RDMAP: operation
    {"rdmap_version_2", cause::rdmap_version,
     [](scene& s) { return say_changed(s.raw, untagged_ulpdu({.opcode = opcode::send}), 1, std::byte{0x83}); }},
    {"opcode_12", cause::unexpected_opcode,
     [](scene& s) { return say(s.raw, untagged_ulpdu({.opcode = static_cast<opcode>(12)})); }},
    {"read_response_to_no_read", cause::unexpected_opcode,
     [](scene& s) { return say(s.raw, tagged_ulpdu({.opcode = opcode::read_response, .stag = 7})); }},
    {"short_read_request", cause::operation_unspecified,
     [](scene& s) {
       return say(s.raw, untagged_ulpdu({.opcode = opcode::read_request, .queue = read_request_queue}, 27));
     }},
    {"atomic_off_its_boundary", cause::stream_catastrophic, add_off_the_boundary},
    // DDP: tagged buffers
    {"write_to_an_unknown_stag", cause::tagged_invalid_stag, [](scene& s) { return s.raw.write(unused_key, 0, two); }},
    {"write_to_what_is_only_readable", cause::tagged_invalid_stag,
     [](scene& s) { return s.raw.write(s.read_only, 0, two); }},
    {"write_past_the_end", cause::tagged_bounds, [](scene& s) { return s.raw.write(s.both, open_bytes - 1, two); }},
    {"write_to_another_connections", cause::tagged_not_associated,
     [](scene& s) { return s.raw.write(foreign_key, 0, two); }},
    {"write_that_wraps", cause::tagged_wrap, [](scene& s) { return s.raw.write(s.both, ~std::uint64_t{0}, two); }},
    {"tagged_ddp_version_2", cause::tagged_version,
     [](scene& s) { return say_changed(s.raw, tagged_ulpdu({.stag = s.both}), 0, std::byte{0xC2}); }},
    // DDP: untagged buffers
    {"send_on_the_read_queue", cause::untagged_queue,
     [](scene& s) { return say(s.raw, untagged_ulpdu({.opcode = opcode::send, .queue = read_request_queue})); }},
    {"more_reads_than_agreed", cause::untagged_no_buffer, flood_with_reads},
    {"message_from_the_future", cause::untagged_sequence,
     [](scene& s) { return say(s.raw, untagged_ulpdu({.opcode = opcode::send, .sequence = 2})); }},
    {"message_that_begins_in_its_middle", cause::untagged_offset,
     [](scene& s) { return say(s.raw, untagged_ulpdu({.opcode = opcode::send, .offset = 1})); }},
    {"message_too_long", cause::untagged_too_long,
     [](scene& s) { return say(s.raw, untagged_ulpdu({.opcode = opcode::send}, 5000)); }},
    {"untagged_ddp_version_0", cause::untagged_version,
     [](scene& s) { return say_changed(s.raw, untagged_ulpdu({.opcode = opcode::send}), 0, std::byte{0x40}); }},
    // MPA
    {"wrong_crc", cause::crc_mismatch,
     [](scene& s) {
       static const bytes ulpdu = untagged_ulpdu({.opcode = opcode::send});
       return s.raw.send_fpdu(ulpdu, true);
     },
     true},
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
          auto memory = co_await pool().allocate(open_bytes);
          std::ranges::fill(memory.bytes(), std::byte{7});
          open.push_back(co_await peer.expose(std::move(memory), uses));
        }
        scene now{raw, test::stag_of(open[0].remote()), test::stag_of(open[1].remote()),
                  test::stag_of(open[2].remote())};
        co_await GetParam().commit(now);

        const auto said = co_await raw.receive_terminate();
        EXPECT_TRUE(said && *said == GetParam().code) << (said ? describe(*said).c_str() : "no Terminate");
        EXPECT_TRUE(failed_with(co_await failure_of(peer.recv()), errc::protocol_error));
        for (const net::exposure& memory : open)
          EXPECT_TRUE(std::ranges::all_of(memory.memory().bytes(), [](std::byte b) { return b == std::byte{7}; }));
        EXPECT_TRUE(std::ranges::all_of(outside, [](std::byte b) { return b == std::byte{7}; }));
      },
      GetParam().crc, full_greeting());
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
  raw_listener listener;
  const auto serve = [&]() -> task<> {
    raw_peer raw = co_await listener.accept();
    bytes request(request_frame().size());
    co_await raw.receive(request);
    bytes reply = reply_frame();
    GetParam().change(reply);
    co_await raw.send(reply);
    const auto said = co_await raw.receive_terminate();
    EXPECT_TRUE(said && *said == GetParam().code) << (said ? describe(*said).c_str() : "no Terminate");
  };
  const auto both = co_await when_all(failure_of(device().connect(listener.address())), serve());
  const auto& failure = std::get<0>(both);
  EXPECT_TRUE(failed_with(failure, errc::protocol_error));
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
