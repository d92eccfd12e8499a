// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <new>
#include <utility>

#include <http/message_parser.hpp>

namespace http {

namespace {

constexpr std::string_view hex_digits = "0123456789abcdefABCDEF";
constexpr std::size_t longest_field = 1024;

bool same_but_for_case(std::string_view a, std::string_view b) noexcept {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  return std::ranges::equal(a, b, {}, lower, lower);
}

// RFC 3986 section 3.2.2, without a user, and perhaps with a port.
bool is_host(std::string_view value) noexcept {
  constexpr std::string_view others = "-._~%!$&'()*+,;=:[]";
  return std::ranges::all_of(value, [&](unsigned char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           others.find(static_cast<char>(c)) != std::string_view::npos;
  });
}

std::string_view without_blanks_behind(std::string_view value) noexcept {
  return value.substr(0, value.find_last_not_of(" \t") + 1);
}

// RFC 9112 section 7.1, up to the line feed: the size, and perhaps extensions behind a semicolon.
bool is_size_line(std::string_view line) noexcept {
  if (!line.ends_with('\r')) return false;
  line.remove_suffix(1);
  const std::size_t size = std::min(line.find_first_not_of(hex_digits), line.size());
  const std::string_view rest = line.substr(size);
  if (size == 0 || rest.empty()) return size != 0;
  const std::size_t extension = rest.find_first_not_of(" \t");
  if (extension == std::string_view::npos || rest[extension] != ';') return false;
  return std::ranges::none_of(rest, [](unsigned char c) { return (c < 0x20 && c != '\t') || c == 0x7f; });
}

}  // namespace

const http_parser_settings message_parser::settings = [] {
  http_parser_settings calls{};
  calls.on_message_begin = on_begin;
  calls.on_url = on_target;
  calls.on_header_field = on_header_name;
  calls.on_header_value = on_header_value;
  calls.on_headers_complete = on_headers;
  calls.on_body = on_body;
  calls.on_chunk_header = on_chunk_size;
  calls.on_chunk_complete = on_chunk_end;
  calls.on_message_complete = on_complete;
  return calls;
}();

message_parser::message_parser(kind of) noexcept {
  http_parser_init(&parser_, of == kind::request ? HTTP_REQUEST : HTTP_RESPONSE);
  parser_.data = this;
}

// The library takes anything behind a blank in the line of a chunk's size, a line feed in its extensions, and any bytes
// for those behind a chunk and at the end of the headers, where another one would see another size or another end. So
// it stops there, and they are checked.
std::size_t message_parser::consume(std::span<const std::byte> bytes) {
  std::size_t taken = 0;
  do {
    auto part = bytes.subspan(taken);
    if (!part.empty() && std::exchange(headers_end_, false) && part.front() != std::byte{'\n'}) {
      throw bad_message("the headers do not end in a line feed");
    }
    if (in_size_line_) {
      const std::string_view text(reinterpret_cast<const char*>(part.data()), part.size());
      if (const std::size_t end = text.find('\n'); end != std::string_view::npos) part = part.first(end + 1);
      check_size_line(text.substr(0, part.size()));
    }
    taken += execute(part);
  } while (!complete_ && taken != bytes.size());
  return taken;
}

void message_parser::check_size_line(std::string_view part) {
  if (part.size() > longest_field - size_line_.size()) throw bad_message("the line of a chunk's size is too long");
  size_line_ += part;
  if (!size_line_.ends_with('\n')) return;
  size_line_.pop_back();
  // The line feed that ends the headers comes first.
  if (!size_line_.empty() && !is_size_line(size_line_)) throw bad_message("the size of a chunk is not valid");
  size_line_.clear();
}

std::size_t message_parser::execute(std::span<const std::byte> bytes) {
  const std::size_t said =
      http_parser_execute(&parser_, &settings, reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const std::size_t taken = std::min(said, bytes.size());  // of an end in the middle it says that it took a byte
  for (const std::byte each : bytes.first(taken).last(std::min<std::size_t>(taken, 2))) {
    last_but_one_ = std::exchange(last_, each);
  }
  const bool ends_line = last_ == std::byte{'\n'} && (last_but_one_ == std::byte{'\r'} || complete_);
  if (std::exchange(chunk_ended_, false) && !ends_line) throw bad_message("a chunk does not end where it says");
  const http_errno failure = HTTP_PARSER_ERRNO(&parser_);
  if (failure == HPE_PAUSED) {  // by on_complete(), before the end of the headers, or before the size of a chunk
    http_parser_pause(&parser_, 0);
    return taken;
  }
  if (too_large_) throw bad_message("413 Content Too Large", "the body is larger than this server accepts");
  if (fault_ != nullptr) throw bad_message(fault_);
  if (failure != HPE_OK) throw bad_message(http_errno_description(failure));
  if (parser_.upgrade != 0) throw bad_message("the peer wants another protocol");
  return taken;
}

void message_parser::next() {
  target_.clear();
  body_ = {};  // with its memory: the next message may be long in coming
  begun_ = complete_ = expects_continue_ = false;
}

int message_parser::append(std::string& to, const char* bytes, std::size_t count, std::size_t most) noexcept try {
  if (count > most - to.size()) return -1;
  to.append(bytes, count);
  return 0;
} catch (const std::bad_alloc&) {
  return -1;
}

int message_parser::on_begin(http_parser* parser) noexcept {
  message_parser& self = of(parser);
  self.begun_ = true;
  self.host_ = {};
  self.expect_ = {};
  return 0;
}

int message_parser::on_target(http_parser* parser, const char* bytes, std::size_t count) noexcept {
  return append(of(parser).target_, bytes, count, longest_target);
}

// The library takes a space before the colon, behind which a proxy may see another field: RFC 9112 section 5.1.
int message_parser::on_header_name(http_parser* parser, const char* bytes, std::size_t count) noexcept {
  message_parser& self = of(parser);
  if (std::exchange(self.in_value_, false)) self.name_.clear();
  if (std::string_view(bytes, count).find_first_of(" \t") != std::string_view::npos) return -1;
  return append(self.name_, bytes, count, longest_field);
}

int message_parser::on_header_value(http_parser* parser, const char* bytes, std::size_t count) noexcept {
  message_parser& self = of(parser);
  field* const named = self.named_field();
  const bool begins = !std::exchange(self.in_value_, true);
  if (named == nullptr) return 0;
  if (begins) ++named->times;
  return append(named->value, bytes, count, longest_field);
}

message_parser::field* message_parser::named_field() noexcept {
  if (same_but_for_case(name_, "host")) return &host_;
  return same_but_for_case(name_, "expect") ? &expect_ : nullptr;
}

// RFC 9112 sections 3.2 and 6.1.
const char* message_parser::fault_of_headers() const noexcept {
  const bool is_old = parser_.http_major == 1 && parser_.http_minor == 0;
  if (is_old && (parser_.flags & F_CHUNKED) != 0) return "HTTP/1.0 has no Transfer-Encoding";
  if (parser_.type != HTTP_REQUEST) return nullptr;
  if (host_.times > 1 || (host_.times == 0 && !is_old)) return "a request has one field Host";
  return is_host(without_blanks_behind(host_.value)) ? nullptr : "the field Host is not valid";
}

// Before any of the body comes, where the peer says how much it will be.
int message_parser::on_headers(http_parser* parser) noexcept {
  message_parser& self = of(parser);
  self.fault_ = self.fault_of_headers();
  if (self.fault_ != nullptr) return -1;
  const bool said = (parser->flags & F_CONTENTLENGTH) != 0;
  self.too_large_ = said && parser->content_length > longest_body;
  if (self.too_large_) return -1;
  const bool is_chunked = (parser->flags & F_CHUNKED) != 0;
  self.expects_continue_ = parser->type == HTTP_REQUEST && parser->http_minor != 0 &&
                           same_but_for_case(without_blanks_behind(self.expect_.value), "100-continue") &&
                           (is_chunked || (said && parser->content_length != 0));
  self.in_size_line_ = is_chunked;
  self.headers_end_ = true;
  http_parser_pause(parser, 1);
  return 0;
}

int message_parser::on_chunk_size(http_parser* parser) noexcept {
  of(parser).in_size_line_ = false;
  return 0;
}

int message_parser::on_chunk_end(http_parser* parser) noexcept {
  message_parser& self = of(parser);
  self.chunk_ended_ = true;
  self.in_size_line_ = (parser->flags & F_TRAILING) == 0;
  if (self.in_size_line_) http_parser_pause(parser, 1);
  return 0;
}

int message_parser::on_body(http_parser* parser, const char* bytes, std::size_t count) noexcept {
  message_parser& self = of(parser);
  self.too_large_ = self.body_.size() + count > longest_body;
  return self.too_large_ ? -1 : append(self.body_, bytes, count, longest_body);
}

int message_parser::on_complete(http_parser* parser) noexcept {
  message_parser& self = of(parser);
  self.complete_ = true;
  self.keep_alive_ = http_should_keep_alive(parser) != 0;
  http_parser_pause(parser, 1);  // what follows waits until this one was answered
  return 0;
}

}  // namespace http
