// SPDX-License-Identifier: Apache-2.0
#include <common/wire.hpp>
#include <rpc/protocol.hpp>

namespace rpc {
namespace {

enum class kind : std::uint8_t { call = 1, cancel = 2, answer = 3 };

constexpr std::size_t header_bytes = 16;
constexpr std::size_t room_bytes = weft::mr::remote_region::max_packed_bytes;
static_assert(header_bytes + room_bytes + longest_method + longest_arguments <= message_bytes);
static_assert(header_bytes + sizeof(std::uint64_t) + longest_answer <= message_bytes);

constexpr std::string_view protocol = "a message of the rpc protocol";

/// What each message begins with.
struct header {
  kind what;
  std::uint8_t first;
  std::uint8_t second;
  std::uint64_t id;
};

void write(common::writer& to, const header& head) noexcept {
  to.number(static_cast<std::uint8_t>(head.what));
  to.number(head.first);
  to.number(head.second);
  to.number(0, 5);
  to.number(head.id);
}

header read_header(common::reader& from) {
  header head{};
  head.what = static_cast<kind>(from.number<std::uint8_t>());
  head.first = from.number<std::uint8_t>();
  head.second = from.number<std::uint8_t>();
  const std::uint64_t reserved = from.number(5);
  head.id = from.number<std::uint64_t>();
  if (reserved != 0) from.malformed("reserved bytes are not zero");
  return head;
}

std::string_view read_rest(common::reader& from, std::size_t longest) {
  if (from.left() > longest) from.malformed("the message is too long");
  return from.text(from.left());
}

call_message read_call(const header& head, common::reader& from) {
  call_message call;
  call.id = head.id;
  if (head.first == 0 || head.first > longest_method) from.malformed("the method's name has an impossible length");
  if (head.second > 1) from.malformed("a call has at most one room for its answer");
  if (head.second == 1) {
    call.room = from.region();
    if (!call.room->allows(weft::mr::usage::write_dst)) from.malformed("the room for the answer is not open to writes");
  }
  call.method = from.text(head.first);
  call.arguments = read_rest(from, longest_arguments);
  return call;
}

cancel_message read_cancel(const header& head, common::reader& from) {
  if (head.first != 0 || head.second != 0) from.malformed("reserved bytes are not zero");
  from.end();
  return {.id = head.id};
}

}  // namespace

std::size_t pack(const call_message& what, std::span<std::byte> into) noexcept {
  const std::string_view method = what.method.substr(0, longest_method);
  common::writer to(into);
  write(to, {.what = kind::call,
             .first = static_cast<std::uint8_t>(method.size()),
             .second = std::uint8_t{what.room.has_value()},
             .id = what.id});
  if (what.room) to.bytes(what.room->pack());
  to.text(method);
  to.text(what.arguments.substr(0, longest_arguments));
  return to.size();
}

std::size_t pack(const cancel_message& what, std::span<std::byte> into) noexcept {
  common::writer to(into);
  write(to, {.what = kind::cancel, .first = 0, .second = 0, .id = what.id});
  return to.size();
}

std::size_t pack(const answer_message& what, std::span<std::byte> into) noexcept {
  common::writer to(into);
  write(to, {.what = kind::answer, .first = static_cast<std::uint8_t>(what.how), .second = 0, .id = what.id});
  to.number(what.written);
  to.text(what.text.substr(0, longest_answer));
  return to.size();
}

std::variant<call_message, cancel_message> unpack_request(std::span<const std::byte> bytes) {
  common::reader from(bytes, protocol);
  const header head = read_header(from);
  if (head.what == kind::call) return read_call(head, from);
  if (head.what == kind::cancel) return read_cancel(head, from);
  from.malformed("neither a call nor a cancel");
}

answer_message unpack_answer(std::span<const std::byte> bytes) {
  common::reader from(bytes, protocol);
  const header head = read_header(from);
  if (head.what != kind::answer || head.second != 0) from.malformed("no answer");
  if (head.first < 1 || head.first > 3) from.malformed("an unknown outcome");
  answer_message answer;
  answer.id = head.id;
  answer.how = static_cast<outcome>(head.first);
  answer.written = from.number<std::uint64_t>();
  answer.text = read_rest(from, longest_answer);
  return answer;
}

}  // namespace rpc
