// SPDX-License-Identifier: Apache-2.0
// What is read off the wire and written again is the same, but for the bits that are reserved; whatever the bytes.
#include <weft/net/iwarp/crc32c.hpp>
#include <weft/net/iwarp/ddp.hpp>
#include <weft/net/iwarp/mpa.hpp>
#include <weft/net/iwarp/rdmap.hpp>

#include "input.hpp"

namespace {

using namespace weft::net::iwarp;
using weft::fuzz::require;

/// `size` bytes of the input, the last of them zeros if it is shorter.
template <std::size_t size>
std::array<std::byte, size> filled(std::span<const std::byte> from) {
  std::array<std::byte, size> bytes{};
  std::ranges::copy(from.first(std::min(from.size(), size)), bytes.begin());
  return bytes;
}

/// As encoders of this version write the two control bytes.
template <std::size_t size>
std::array<std::byte, size> without_reserved_bits(std::array<std::byte, size> header, bool tagged) {
  header[0] = (header[0] & std::byte{0x40}) | std::byte{ddp_version} | (tagged ? std::byte{0x80} : std::byte{0});
  header[1] = (header[1] & std::byte{0x0F}) | std::byte{rdmap_version << 6};
  return header;
}

/// What encoders make of a header that has come from the wire.
template <std::size_t size>
std::array<std::byte, size> encoded(const auto& header) {
  std::array<std::byte, size> bytes;
  encode(header, bytes);
  return bytes;
}

void try_headers(std::span<const std::byte> wire) {
  const auto tagged = filled<tagged_header::bytes>(wire);
  require(encoded<tagged.size()>(parse_tagged(tagged)) == without_reserved_bits(tagged, true),
          "a tagged header survives the wire");
  const auto untagged = filled<untagged_header::bytes>(wire);
  require(encoded<untagged.size()>(parse_untagged(untagged)) == without_reserved_bits(untagged, false),
          "an untagged header survives the wire");
  const auto read = filled<read_request::bytes>(wire);
  require(encoded<read.size()>(parse_read_request(read)) == read, "a read request survives the wire");
  auto atomic = filled<atomic_request::bytes>(wire);
  const auto atomic_again = encoded<atomic.size()>(parse_atomic_request(atomic));
  std::fill_n(atomic.begin(), 3, std::byte{0});  // reserved
  atomic[3] &= std::byte{0x0F};
  require(atomic_again == atomic, "an atomic request survives the wire");
  const auto answer = filled<atomic_response::bytes>(wire);
  require(encoded<answer.size()>(parse_atomic_response(answer)) == answer, "an atomic response survives the wire");
}

bool same(const terminate_message& left, const terminate_message& right) {
  std::array<std::byte, terminate_message::max_bytes> one{};
  std::array<std::byte, terminate_message::max_bytes> other{};
  return left.code == right.code && encode(left, one) == encode(right, other) && one == other;
}

void try_terminate(std::span<const std::byte> wire) {
  const auto message = parse_terminate(wire);
  require(message.has_value() == (wire.size() >= 4), "four bytes are a Terminate");
  if (!message) return;
  require(!describe(message->code).empty(), "every cause has words");
  std::array<std::byte, terminate_message::max_bytes> out;
  const std::size_t size = encode(*message, out);
  require(size <= out.size(), "a Terminate has a largest size");
  // A cause that no header comes with is told apart from siw's reversed one by its numbers alone, and unknown ones
  // cannot be.
  if (size == 4) return;
  const auto again = parse_terminate(std::span(out).first(size));
  require(again && same(*again, *message), "a Terminate survives the wire");
}

void try_frame(std::span<const std::byte> wire, mpa::frame_kind kind) {
  const mpa::parsed_frame parsed = mpa::parse_frame(wire, kind);
  require((parsed.status == mpa::parse_status::malformed) != parsed.error.empty(),
          "what is malformed is said in words");
  if (parsed.status == mpa::parse_status::incomplete)
    require(parsed.bytes > wire.size() && parsed.bytes <= mpa::max_frame_bytes, "it asks for more, but not for ever");
  if (parsed.status != mpa::parse_status::complete) return;

  require(parsed.bytes <= wire.size(), "a complete frame is there");
  std::array<std::byte, mpa::max_frame_bytes> out;
  require(mpa::encode_frame(parsed.frame, out) == parsed.bytes, "a frame is written as long as it was");
  // Bits that mean something: M, C, in replies R, in revision 2 S.
  const bool reply = kind == mpa::frame_kind::reply;
  const auto flags = static_cast<std::byte>(0xC0 | (reply ? 0x20 : 0) | (parsed.frame.revision == 2 ? 0x10 : 0));
  for (std::size_t i = 0; i < parsed.bytes; ++i)
    require(out[i] == (i == 16 ? wire[i] & flags : wire[i]), "a frame survives the wire");
}

void try_fpdu(std::span<const std::byte> ulpdu) {
  std::vector<std::byte> out(mpa::fpdu_bytes(ulpdu.size()), std::byte{0xEE});
  require(mpa::encode_fpdu(ulpdu, true, out) == out.size() && out.size() % 4 == 0, "FPDUs are whole words");
  require(std::ranges::equal(std::span(out).subspan(mpa::length_bytes, ulpdu.size()), ulpdu), "a ULPDU is not changed");
  const auto covered = std::span(out).first(out.size() - mpa::crc_bytes);
  const std::uint32_t crc = mpa::load_crc(covered.data() + covered.size());
  require(crc == crc32c_of(covered), "an FPDU carries its CRC");
  if (ulpdu.empty()) return;
  out[mpa::length_bytes] ^= std::byte{1};
  require(crc != crc32c_of(covered), "a changed bit changes the CRC");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  weft::fuzz::input in(data, size);
  const auto wire = in.run(in.size());
  try_headers(wire);
  try_terminate(wire);
  try_frame(wire, mpa::frame_kind::request);
  try_frame(wire, mpa::frame_kind::reply);
  try_fpdu(wire.first(std::min(wire.size(), mpa::max_ulpdu_bytes)));
  return 0;
}
