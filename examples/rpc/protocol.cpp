// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/error.hpp>

#include <algorithm>

#include <rpc/protocol.hpp>

namespace rpc {
namespace {

enum class kind : std::uint8_t { call = 1, cancel = 2, answer = 3 };

constexpr std::size_t header_bytes = 16;
constexpr std::size_t room_bytes = weft::mr::remote_region::max_packed_bytes;
static_assert(header_bytes + room_bytes + longest_method + longest_arguments <= message_bytes);
static_assert(header_bytes + sizeof(std::uint64_t) + longest_answer <= message_bytes);

/// Puts a message together, front to back.
class writer {
 public:
  writer(std::span<std::byte> into, kind what, std::uint8_t first, std::uint8_t second, std::uint64_t id) noexcept
      : into_(into) {
    number(static_cast<std::uint64_t>(what) | std::uint64_t{first} << 8 | std::uint64_t{second} << 16);
    number(id);
  }
  void number(std::uint64_t value) noexcept {
    for (int i = 0; i < 8; ++i, value >>= 8) into_[size_++] = static_cast<std::byte>(value);
  }
  void bytes(std::span<const std::byte> what) noexcept {
    std::ranges::copy(what, into_.begin() + static_cast<std::ptrdiff_t>(size_));
    size_ += what.size();
  }
  void text(std::string_view what) noexcept { bytes(std::as_bytes(std::span(what))); }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }

 private:
  std::span<std::byte> into_;
  std::size_t size_ = 0;
};

[[noreturn]] void malformed(const std::string& what) {
  throw weft::error(weft::errc::malformed, "a message of the rpc protocol: " + what);
}

/// Takes a message apart, front to back, and never reads beyond its end.
class reader {
 public:
  explicit reader(std::span<const std::byte> bytes) : rest_(bytes), head_(number()), id_(number()) {
    if (head_ >> 24 != 0) malformed("reserved bytes are not zero");
  }

  [[nodiscard]] kind what() const noexcept { return static_cast<kind>(head_ & 0xff); }
  [[nodiscard]] std::uint8_t first() const noexcept { return static_cast<std::uint8_t>(head_ >> 8); }
  [[nodiscard]] std::uint8_t second() const noexcept { return static_cast<std::uint8_t>(head_ >> 16); }
  [[nodiscard]] std::uint64_t id() const noexcept { return id_; }

  std::uint64_t number() {
    const auto field = bytes(8);
    std::uint64_t value = 0;
    for (std::size_t i = 8; i-- > 0;) value = value << 8 | static_cast<std::uint64_t>(field[i]);
    return value;
  }
  std::span<const std::byte> bytes(std::size_t count) {
    if (count > rest_.size()) malformed("the message is cut short");
    const auto front = rest_.first(count);
    rest_ = rest_.subspan(count);
    return front;
  }
  std::string_view text(std::size_t count) {
    const auto front = bytes(count);
    return {reinterpret_cast<const char*>(front.data()), front.size()};
  }
  weft::mr::remote_region room() {
    const auto found = weft::mr::remote_region::unpack(rest_);
    static_cast<void>(bytes(found.packed_bytes()));
    return found;
  }
  std::string_view rest(std::size_t longest) {
    if (rest_.size() > longest) malformed("the message is too long");
    return text(rest_.size());
  }

 private:
  std::span<const std::byte> rest_;
  std::uint64_t head_;
  std::uint64_t id_;
};

call_message read_call(reader& from) {
  call_message call;
  call.id = from.id();
  if (from.first() == 0 || from.first() > longest_method) malformed("the method's name has an impossible length");
  if (from.second() > 1) malformed("a call has at most one room for its answer");
  if (from.second() == 1) {
    call.room = from.room();
    if (!call.room->allows(weft::mr::usage::write_dst)) malformed("the room for the answer is not open to writes");
  }
  call.method = from.text(from.first());
  call.arguments = from.rest(longest_arguments);
  return call;
}

cancel_message read_cancel(reader& from) {
  if (from.first() != 0 || from.second() != 0) malformed("reserved bytes are not zero");
  static_cast<void>(from.rest(0));
  return {.id = from.id()};
}

}  // namespace

std::size_t pack(const call_message& what, std::span<std::byte> into) noexcept {
  const std::string_view method = what.method.substr(0, longest_method);
  writer to(into, kind::call, static_cast<std::uint8_t>(method.size()), what.room ? 1 : 0, what.id);
  if (what.room) to.bytes(what.room->pack());
  to.text(method);
  to.text(what.arguments.substr(0, longest_arguments));
  return to.size();
}

std::size_t pack(const cancel_message& what, std::span<std::byte> into) noexcept {
  return writer(into, kind::cancel, 0, 0, what.id).size();
}

std::size_t pack(const answer_message& what, std::span<std::byte> into) noexcept {
  writer to(into, kind::answer, static_cast<std::uint8_t>(what.how), 0, what.id);
  to.number(what.written);
  to.text(what.text.substr(0, longest_answer));
  return to.size();
}

std::variant<call_message, cancel_message> unpack_request(std::span<const std::byte> bytes) {
  reader from(bytes);
  if (from.what() == kind::call) return read_call(from);
  if (from.what() == kind::cancel) return read_cancel(from);
  malformed("neither a call nor a cancel");
}

answer_message unpack_answer(std::span<const std::byte> bytes) {
  reader from(bytes);
  if (from.what() != kind::answer || from.second() != 0) malformed("no answer");
  if (from.first() < 1 || from.first() > 3) malformed("an unknown outcome");
  answer_message answer;
  answer.id = from.id();
  answer.how = static_cast<outcome>(from.first());
  answer.written = from.number();
  answer.text = from.rest(longest_answer);
  return answer;
}

}  // namespace rpc
