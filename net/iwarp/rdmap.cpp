// SPDX-License-Identifier: Apache-2.0
#include <weft/net/iwarp/rdmap.hpp>
#include <weft/net/iwarp/wire.hpp>

#include <algorithm>

namespace weft::net::iwarp {
namespace {

struct named_cause {
  terminate_code code;
  const char* name;
};

constexpr named_cause named_causes[] = {
    {cause::read_invalid_stag, "remote protection error: invalid STag"},
    {cause::read_bounds, "remote protection error: base or bounds violation"},
    {cause::read_access, "remote protection error: access rights violation"},
    {cause::read_not_associated, "remote protection error: STag not associated with this stream"},
    {cause::read_wrap, "remote protection error: tagged offset wraps"},
    {cause::cannot_invalidate, "remote protection error: STag cannot be invalidated"},
    {cause::protection_unspecified, "remote protection error: unspecified"},
    {cause::rdmap_version, "remote operation error: invalid RDMAP version"},
    {cause::unexpected_opcode, "remote operation error: unexpected opcode"},
    {cause::stream_catastrophic, "remote operation error: catastrophic error of this stream"},
    {cause::global_catastrophic, "remote operation error: global catastrophic error"},
    {cause::operation_cannot_invalidate, "remote operation error: STag cannot be invalidated"},
    {cause::operation_unspecified, "remote operation error: unspecified"},
    {cause::tagged_invalid_stag, "tagged buffer error: invalid STag, or one that does not allow writing"},
    {cause::tagged_bounds, "tagged buffer error: base or bounds violation"},
    {cause::tagged_not_associated, "tagged buffer error: STag not associated with this stream"},
    {cause::tagged_wrap, "tagged buffer error: tagged offset wraps"},
    {cause::tagged_version, "tagged buffer error: invalid DDP version"},
    {cause::untagged_queue, "untagged buffer error: invalid queue number"},
    {cause::untagged_no_buffer, "untagged buffer error: no buffer available"},
    {cause::untagged_sequence, "untagged buffer error: message sequence number out of range"},
    {cause::untagged_offset, "untagged buffer error: invalid message offset"},
    {cause::untagged_too_long, "untagged buffer error: message too long for the buffer"},
    {cause::untagged_version, "untagged buffer error: invalid DDP version"},
    {cause::tcp_lost, "MPA error: TCP connection lost"},
    {cause::crc_mismatch, "MPA error: CRC mismatch"},
    {cause::framing, "MPA error: markers or lengths disagree on where an FPDU starts"},
    {cause::bad_set_up_frame, "MPA error: invalid set-up frame"},
    {cause::mpa_catastrophic, "MPA error: local catastrophic error"},
    {cause::insufficient_ird, "MPA error: insufficient IRD resources"},
    {cause::no_common_ready_signal, "MPA error: no common ready-to-receive message"},
};

const char* name_of(terminate_code code) noexcept {
  if (code.layer == 0 && code.type == 0) return "remote catastrophic error";  // its code may be anything
  if (code.layer == 1 && code.type == 0) return "DDP error: remote catastrophic error";
  const auto* const found = std::ranges::find(named_causes, code, &named_cause::code);
  return found == std::end(named_causes) ? nullptr : found->name;
}

// The header control bits, in the third byte of a Terminate's body.
constexpr unsigned length_bit = 0x80;
constexpr unsigned segment_bit = 0x40;
constexpr unsigned read_bit = 0x20;

unsigned reverse3(unsigned bits) noexcept { return (bits & 1) << 2 | (bits & 2) | (bits & 4) >> 2; }

terminate_code code_of(unsigned high, unsigned low, std::byte code) noexcept {
  return {static_cast<std::uint8_t>(high), static_cast<std::uint8_t>(low), std::to_integer<std::uint8_t>(code)};
}

/// The part of a body that has not been read yet.
class remainder {
 public:
  explicit remainder(std::span<const std::byte> bytes) noexcept : bytes_(bytes) {}
  bool has(std::size_t bytes) const noexcept { return bytes_.size() >= bytes; }
  bool starts_tagged() const noexcept { return parse_control(bytes_.first<control_bytes>()).tagged; }
  std::span<const std::byte> take(std::size_t bytes) noexcept {
    const auto front = bytes_.first(bytes);
    bytes_ = bytes_.subspan(bytes);
    return front;
  }

 private:
  std::span<const std::byte> bytes_;
};

void parse_segment_header(remainder& rest, terminate_message& message) noexcept {
  if (!rest.has(control_bytes)) return;
  const std::size_t bytes = rest.starts_tagged() ? tagged_header::bytes : untagged_header::bytes;
  if (!rest.has(bytes)) return;
  std::ranges::copy(rest.take(bytes), message.segment_header.begin());
  message.segment_header_bytes = bytes;
}

}  // namespace

read_request parse_read_request(std::span<const std::byte, read_request::bytes> bytes) noexcept {
  return {.sink_stag = load_be<std::uint32_t>(&bytes[0]),
          .sink_offset = load_be<std::uint64_t>(&bytes[4]),
          .size = load_be<std::uint32_t>(&bytes[12]),
          .source_stag = load_be<std::uint32_t>(&bytes[16]),
          .source_offset = load_be<std::uint64_t>(&bytes[20])};
}

void encode(const read_request& request, std::span<std::byte, read_request::bytes> out) noexcept {
  store_be(&out[0], request.sink_stag);
  store_be(&out[4], request.sink_offset);
  store_be(&out[12], request.size);
  store_be(&out[16], request.source_stag);
  store_be(&out[20], request.source_offset);
}

atomic_request parse_atomic_request(std::span<const std::byte, atomic_request::bytes> bytes) noexcept {
  return {.operation = static_cast<atomic_operation>(std::to_integer<unsigned>(bytes[3]) & 0xF),
          .id = load_be<std::uint32_t>(&bytes[4]),
          .stag = load_be<std::uint32_t>(&bytes[8]),
          .offset = load_be<std::uint64_t>(&bytes[12]),
          .operand = load_be<std::uint64_t>(&bytes[20]),
          .mask = load_be<std::uint64_t>(&bytes[28]),
          .compare = load_be<std::uint64_t>(&bytes[36]),
          .compare_mask = load_be<std::uint64_t>(&bytes[44])};
}

void encode(const atomic_request& request, std::span<std::byte, atomic_request::bytes> out) noexcept {
  store_be(&out[0], static_cast<std::uint32_t>(request.operation));
  store_be(&out[4], request.id);
  store_be(&out[8], request.stag);
  store_be(&out[12], request.offset);
  store_be(&out[20], request.operand);
  store_be(&out[28], request.mask);
  store_be(&out[36], request.compare);
  store_be(&out[44], request.compare_mask);
}

atomic_response parse_atomic_response(std::span<const std::byte, atomic_response::bytes> bytes) noexcept {
  return {.id = load_be<std::uint32_t>(&bytes[0]), .previous = load_be<std::uint64_t>(&bytes[4])};
}

void encode(const atomic_response& response, std::span<std::byte, atomic_response::bytes> out) noexcept {
  store_be(&out[0], response.id);
  store_be(&out[4], response.previous);
}

words describe(terminate_code code) noexcept {
  if (const char* const name = name_of(code)) return words::format("%s", name);
  return words::format("unknown cause (layer %u, type %u, code 0x%02x)", unsigned{code.layer}, unsigned{code.type},
                       unsigned{code.code});
}

bool is_remote_access_error(terminate_code code) noexcept {
  if (code.layer == 0) return code.type == 1 || code == cause::operation_cannot_invalidate;
  return code.layer == 1 && code.type == 1 && code != cause::tagged_version;
}

std::size_t encode(const terminate_message& message, std::span<std::byte, terminate_message::max_bytes> out) noexcept {
  const bool with_segment = message.segment_header_bytes != 0;
  out[0] = static_cast<std::byte>(message.code.layer << 4 | message.code.type);
  out[1] = std::byte{message.code.code};
  out[2] = static_cast<std::byte>((message.segment_bytes ? length_bit : 0) | (with_segment ? segment_bit : 0) |
                                  (message.read ? read_bit : 0));
  out[3] = std::byte{0};
  if (!message.segment_bytes && !with_segment && !message.read) return 4;

  std::size_t used = 6;
  store_be(&out[4], message.segment_bytes.value_or(0));
  std::ranges::copy(std::span(message.segment_header).first(message.segment_header_bytes), &out[used]);
  used += message.segment_header_bytes;
  if (!message.read) return used;
  encode(*message.read, std::span<std::byte, read_request::bytes>(&out[used], read_request::bytes));
  return used + read_request::bytes;
}

std::optional<terminate_message> parse_terminate(std::span<const std::byte> body) noexcept {
  if (body.size() < 4) return std::nullopt;
  const auto first = std::to_integer<unsigned>(body[0]);
  const auto third = std::to_integer<unsigned>(body[2]);
  terminate_message message;
  message.code = code_of(first >> 4, first & 0xF, body[1]);

  // Linux siw lays the bit fields out in reverse. The third byte shows the layout, because siw sets the low bits there,
  // and the RFC the high bits. If the byte has neither, the fields count as reversed only if the cause is unknown as it
  // stands, and known in reverse.
  const terminate_code reversed = code_of(first & 0xF, first >> 4, body[1]);
  const bool without_headers = (third & 0xE7) == 0;
  message.reversed =
      without_headers ? name_of(message.code) == nullptr && name_of(reversed) != nullptr : (third & 0xE0) == 0;
  if (message.reversed) message.code = reversed;
  const unsigned included = message.reversed ? reverse3(third & 7) << 5 : third;

  remainder rest(body.subspan(4));
  if ((included & (length_bit | segment_bit | read_bit)) == 0 || !rest.has(2)) return message;
  const auto segment_bytes = load_be<std::uint16_t>(rest.take(2).data());
  if ((included & length_bit) != 0) message.segment_bytes = segment_bytes;
  if ((included & segment_bit) != 0) parse_segment_header(rest, message);
  if ((included & read_bit) != 0 && rest.has(read_request::bytes))
    message.read = parse_read_request(rest.take(read_request::bytes).first<read_request::bytes>());
  return message;
}

}  // namespace weft::net::iwarp
