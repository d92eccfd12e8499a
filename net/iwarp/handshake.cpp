// SPDX-License-Identifier: Apache-2.0
#include <weft/net/iwarp/ddp.hpp>
#include <weft/net/iwarp/handshake.hpp>

#include <algorithm>
#include <bit>

namespace weft::net::iwarp {
namespace {

// The IRD or ORD to advertise for `depth`: rounded down to a power of two below mpa::not_negotiated; 0 stays 0.
std::uint16_t advertised(std::uint16_t depth) noexcept {
  return std::bit_floor(std::min<std::uint16_t>(depth, mpa::not_negotiated));
}

// Room for any FPDU that the set-up itself sends. Each encode_...() returns the length of the FPDU.
using small_fpdu = std::array<std::byte, mpa::fpdu_bytes(untagged_header::bytes + terminate_message::max_bytes)>;

std::size_t encode_ready_write(bool crc, small_fpdu& out) noexcept {
  std::array<std::byte, tagged_header::bytes> ulpdu;
  encode(tagged_header{.last = true, .opcode = opcode::write, .stag = 0, .offset = 0}, ulpdu);
  return mpa::encode_fpdu(ulpdu, crc, out);
}

std::size_t encode_ready_read(bool crc, small_fpdu& out) noexcept {
  std::array<std::byte, untagged_header::bytes + read_request::bytes> ulpdu;
  const untagged_header header{.opcode = opcode::read_request, .queue = read_request_queue};
  encode(header, std::span(ulpdu).first<untagged_header::bytes>());
  encode(read_request{}, std::span(ulpdu).last<read_request::bytes>());
  return mpa::encode_fpdu(ulpdu, crc, out);
}

std::size_t encode_terminate(terminate_code code, bool crc, small_fpdu& out) noexcept {
  std::array<std::byte, untagged_header::bytes + terminate_message::max_bytes> ulpdu;
  const untagged_header header{.opcode = opcode::terminate, .queue = terminate_queue};
  encode(header, std::span(ulpdu).first<untagged_header::bytes>());
  terminate_message message;
  message.code = code;
  const std::size_t body = encode(message, std::span(ulpdu).last<terminate_message::max_bytes>());
  return mpa::encode_fpdu(std::span(ulpdu).first(untagged_header::bytes + body), crc, out);
}

}  // namespace

std::span<const std::byte> handshake::output() const noexcept {
  return std::span(output_).first(output_bytes_).subspan(output_sent_);
}

void handshake::sent(std::size_t bytes) noexcept { output_sent_ += std::min(bytes, output_bytes_ - output_sent_); }

void handshake::end_of_stream() noexcept {
  if (state_ == handshake_state::waiting)
    fail(words::format("the peer closed the connection during the MPA set-up, after %zu bytes", input_bytes_));
  else if (state_ == handshake_state::requested)
    fail(words::format("the peer closed the connection before its MPA request was answered"));
}

bool handshake::receive(mpa::frame_kind expected, std::span<const std::byte>& bytes, mpa::frame& frame) noexcept {
  while (state_ == handshake_state::waiting) {
    const mpa::parsed_frame parsed = mpa::parse_frame(std::span(input_).first(input_bytes_), expected);
    if (parsed.status == mpa::parse_status::malformed) return fail(parsed.error), false;
    if (parsed.status == mpa::parse_status::complete) {
      frame = parsed.frame;
      peer_private_data_ = frame.private_data;
      return true;
    }
    const auto taken = bytes.first(std::min(bytes.size(), parsed.bytes - input_bytes_));
    if (taken.empty()) return false;
    std::ranges::copy(taken, std::span(input_).subspan(input_bytes_).begin());
    input_bytes_ += taken.size();
    bytes = bytes.subspan(taken.size());
  }
  return false;
}

void handshake::fail(const words& why) noexcept {
  state_ = handshake_state::failed;
  error_ = why;
}

void handshake::append(const mpa::frame& frame) noexcept {
  output_bytes_ += mpa::encode_frame(frame, std::span(output_).subspan(output_bytes_));
}

void handshake::append(std::span<const std::byte> bytes) noexcept {
  std::ranges::copy(bytes, std::span(output_).subspan(output_bytes_).begin());
  output_bytes_ += bytes.size();
}

initiator::initiator(const initiator_options& options) noexcept : revision_(options.revision == 1 ? 1 : 2) {
  agreed_.crc = options.crc;
  agreed_.revision = revision_;
  agreed_.ird = advertised(options.ird);
  agreed_.ord = advertised(options.ord);

  mpa::frame request{.kind = mpa::frame_kind::request,
                     .crc = options.crc,
                     .revision = revision_,
                     .private_data = options.private_data};
  if (revision_ == 2)
    request.enhanced = mpa::enhanced_data{
        .ird = agreed_.ird, .ord = agreed_.ord, .peer_to_peer = true, .rtr_write = true, .rtr_read = agreed_.ord > 0};
  const std::size_t limit = revision_ == 2 ? max_user_private_bytes : mpa::max_private_bytes;
  if (options.private_data.size() <= limit)
    append(request);
  else
    fail(words::format("%zu bytes of private data exceed the %zu of MPA revision %u", options.private_data.size(),
                       limit, unsigned{revision_}));
}

std::size_t initiator::consume(std::span<const std::byte> bytes) noexcept {
  auto rest = bytes;
  mpa::frame reply;
  if (receive(mpa::frame_kind::reply, rest, reply)) judge(reply);
  return bytes.size() - rest.size();
}

void initiator::judge(const mpa::frame& reply) noexcept {
  agreed_.crc = agreed_.crc || reply.crc;
  if (reply.enhanced) {
    agreed_.peer_ird = reply.enhanced->ird;
    agreed_.peer_ord = reply.enhanced->ord;
  }
  if (reply.rejected) {
    state_ = handshake_state::rejected;
    error_ = words::format("the peer rejected the connection");
    return;
  }
  if (reply.markers) return refuse(cause::mpa_catastrophic);
  if (reply.revision > revision_)
    return fail(words::format("the peer answered a request of MPA revision %u in revision %u", unsigned{revision_},
                              unsigned{reply.revision}));
  agreed_.revision = reply.revision;
  if (reply.enhanced && !adopt(*reply.enhanced)) return;
  establish();
}

bool initiator::adopt(const mpa::enhanced_data& reply) noexcept {
  if (reply.ird != mpa::not_negotiated) agreed_.ord = std::min(agreed_.ord, reply.ird);
  agreed_.peer_to_peer = reply.peer_to_peer;
  if (reply.peer_to_peer && !reply.rtr_write) {
    if (!reply.rtr_read || agreed_.ord == 0) return refuse(cause::no_common_ready_signal), false;
    agreed_.signal = ready_signal::read;
  }
  if (reply.ord != mpa::not_negotiated && reply.ord > agreed_.ird) return refuse(cause::insufficient_ird), false;
  return true;
}

void initiator::append_ready_signal() noexcept {
  small_fpdu fpdu;
  const bool by_write = agreed_.signal == ready_signal::write;
  const std::size_t bytes = by_write ? encode_ready_write(agreed_.crc, fpdu) : encode_ready_read(agreed_.crc, fpdu);
  append(std::span(fpdu).first(bytes));
}

void initiator::establish() noexcept {
  append_ready_signal();
  state_ = handshake_state::established;
}

void initiator::refuse(terminate_code why) noexcept {
  // Linux siw crashes if the stream ends before the ready signal: see the class. For the other causes no signal is
  // sent: a peer that requires markers could not parse the signal, and without a common signal the peer understands
  // none of ours.
  if (why == cause::insufficient_ird) append_ready_signal();
  small_fpdu fpdu;
  const std::size_t bytes = encode_terminate(why, agreed_.crc, fpdu);
  append(std::span(fpdu).first(bytes));
  if (why == cause::no_common_ready_signal)
    fail(words::format("the peer and this side have no ready-to-receive message in common"));
  else if (why == cause::mpa_catastrophic)
    fail(words::format("the peer requires MPA markers, which this side does not send"));
  else
    fail(words::format("the peer wants %u reads outstanding here, this side allows %u", unsigned{agreed_.peer_ord},
                       unsigned{agreed_.ird}));
}

responder::responder(const responder_options& options) noexcept {
  agreed_.crc = options.crc;
  agreed_.ird = advertised(options.ird);
  agreed_.ord = advertised(options.ord);
}

std::size_t responder::consume(std::span<const std::byte> bytes) noexcept {
  auto rest = bytes;
  mpa::frame request;
  if (receive(mpa::frame_kind::request, rest, request)) judge(request);
  return bytes.size() - rest.size();
}

void responder::judge(const mpa::frame& request) noexcept {
  agreed_.crc = agreed_.crc || request.crc;
  agreed_.revision = request.revision;
  if (request.enhanced) negotiate(*request.enhanced);
  state_ = handshake_state::requested;
  if (!request.markers) return;
  append(answer({}, true));
  fail(words::format("the peer requires MPA markers, which this side does not send"));
}

void responder::negotiate(const mpa::enhanced_data& request) noexcept {
  const bool fixed_ird = request.ord == mpa::not_negotiated;
  const bool fixed_ord = request.ird == mpa::not_negotiated;
  agreed_.peer_ird = request.ird;
  agreed_.peer_ord = request.ord;
  agreed_.peer_to_peer = request.peer_to_peer;
  // bit_ceil() turns a peer's ORD of 0 into an IRD of 1, so that a zero-length read can be the ready signal.
  if (!fixed_ird) agreed_.ird = std::min(agreed_.ird, std::bit_ceil(request.ord));
  if (!fixed_ord) agreed_.ord = std::min(agreed_.ord, request.ird);
  reply_ = mpa::enhanced_data{.ird = fixed_ird ? mpa::not_negotiated : agreed_.ird,
                              .ord = fixed_ord ? mpa::not_negotiated : agreed_.ord,
                              .peer_to_peer = request.peer_to_peer,
                              .rtr_write = request.peer_to_peer,
                              .rtr_read = request.peer_to_peer && agreed_.ird > 0};
  if (!request.peer_to_peer || !request.rtr_send || request.rtr_write || request.rtr_read) return;
  agreed_.signal = ready_signal::send;
  reply_->rtr_send = true;
  reply_->rtr_write = reply_->rtr_read = false;
}

void responder::limit(const responder_options& options) noexcept {
  agreed_.crc = agreed_.crc || options.crc;
  agreed_.ird = std::min(agreed_.ird, advertised(options.ird));
  agreed_.ord = std::min(agreed_.ord, advertised(options.ord));
  if (!reply_) return;
  if (reply_->ird != mpa::not_negotiated) reply_->ird = agreed_.ird;
  if (reply_->ord != mpa::not_negotiated) reply_->ord = agreed_.ord;
  reply_->rtr_read = reply_->peer_to_peer && !reply_->rtr_send && agreed_.ird > 0;
}

std::size_t responder::max_answer_bytes() const noexcept {
  return reply_ ? max_user_private_bytes : mpa::max_private_bytes;
}

bool responder::accept(std::span<const std::byte> private_data) noexcept {
  if (state_ != handshake_state::requested || private_data.size() > max_answer_bytes()) return false;
  append(answer(private_data, false));
  state_ = handshake_state::established;
  return true;
}

bool responder::reject(std::span<const std::byte> private_data) noexcept {
  if (state_ != handshake_state::requested || private_data.size() > max_answer_bytes()) return false;
  append(answer(private_data, true));
  state_ = handshake_state::rejected;
  error_ = words::format("this side rejected the connection");
  return true;
}

mpa::frame responder::answer(std::span<const std::byte> private_data, bool rejected) const noexcept {
  return {.kind = mpa::frame_kind::reply,
          .crc = agreed_.crc,
          .rejected = rejected,
          .revision = agreed_.revision,
          .enhanced = reply_,
          .private_data = private_data};
}

}  // namespace weft::net::iwarp
