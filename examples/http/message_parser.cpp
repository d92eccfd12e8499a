// SPDX-License-Identifier: Apache-2.0
#include <new>

#include <http/message_parser.hpp>

namespace http {

const http_parser_settings message_parser::settings = [] {
  http_parser_settings calls{};
  calls.on_message_begin = on_begin;
  calls.on_url = on_target;
  calls.on_header_field = on_header_name;
  calls.on_headers_complete = on_headers;
  calls.on_body = on_body;
  calls.on_message_complete = on_complete;
  return calls;
}();

message_parser::message_parser(kind of) noexcept {
  http_parser_init(&parser_, of == kind::request ? HTTP_REQUEST : HTTP_RESPONSE);
  parser_.data = this;
}

std::size_t message_parser::consume(std::span<const std::byte> bytes) {
  const std::size_t taken =
      http_parser_execute(&parser_, &settings, reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const http_errno failure = HTTP_PARSER_ERRNO(&parser_);
  if (failure == HPE_PAUSED) {  // by on_complete()
    http_parser_pause(&parser_, 0);
    return taken;
  }
  if (too_large_) throw bad_message("413 Content Too Large", "the body is larger than this server accepts");
  if (failure != HPE_OK) throw bad_message(http_errno_description(failure));
  if (parser_.upgrade != 0) throw bad_message("the peer wants another protocol");
  return taken;
}

void message_parser::next() {
  target_.clear();
  body_ = {};  // with its memory: the next message may be long in coming
  begun_ = complete_ = false;
}

int message_parser::append(std::string& to, const char* bytes, std::size_t count, std::size_t most) noexcept try {
  if (count > most - to.size()) return -1;
  to.append(bytes, count);
  return 0;
} catch (const std::bad_alloc&) {
  return -1;
}

int message_parser::on_begin(http_parser* parser) noexcept {
  of(parser).begun_ = true;
  return 0;
}

int message_parser::on_target(http_parser* parser, const char* bytes, std::size_t count) noexcept {
  return append(of(parser).target_, bytes, count, longest_target);
}

// The library takes a space before the colon, behind which a proxy may see another field: RFC 9112 section 5.1.
int message_parser::on_header_name(http_parser*, const char* bytes, std::size_t count) noexcept {
  return std::string_view(bytes, count).find_first_of(" \t") == std::string_view::npos ? 0 : -1;
}

// Before any of it comes, where the peer says how much it will be.
int message_parser::on_headers(http_parser* parser) noexcept {
  const bool said = (parser->flags & F_CONTENTLENGTH) != 0;
  of(parser).too_large_ = said && parser->content_length > longest_body;
  return of(parser).too_large_ ? -1 : 0;
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
