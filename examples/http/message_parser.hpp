// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <http_parser.h>

#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

namespace http {

/// Bytes that are no HTTP, or more than is taken. what() says why.
struct bad_message : std::runtime_error {
  using runtime_error::runtime_error;
  explicit bad_message(std::string_view answer, const char* why) : runtime_error(why), status(answer) {}
  std::string_view status = "400 Bad Request";  ///< what a server answers
};

/// Takes HTTP/1.x messages out of bytes as they come, by the library http-parser, and refuses what that lets pass
/// although RFC 9112 forbids it. What a peer can make it keep is bounded.
class message_parser {
 public:
  static constexpr std::size_t longest_target = 4096;
  static constexpr std::size_t longest_body = std::size_t{1} << 20;

  enum class kind { request, response };
  explicit message_parser(kind of) noexcept;
  message_parser(const message_parser&) = delete;
  message_parser& operator=(const message_parser&) = delete;

  /// Takes bytes up to the end of a message, and yields how many: those behind it belong to the next. None at the end
  /// of the stream, which ends some messages. Throws bad_message.
  std::size_t consume(std::span<const std::byte> bytes);
  /// Whether a message is complete; until next().
  [[nodiscard]] bool complete() const noexcept { return complete_; }
  /// Whether one has begun.
  [[nodiscard]] bool begun() const noexcept { return begun_; }
  /// Whether the peer waits for "100 Continue" before it sends the body.
  [[nodiscard]] bool expects_continue() const noexcept { return expects_continue_ && !complete_; }
  void was_continued() noexcept { expects_continue_ = false; }
  void next();

  // Of a message that is complete.
  [[nodiscard]] std::string_view method() const noexcept {
    return http_method_str(static_cast<http_method>(parser_.method));
  }
  [[nodiscard]] unsigned status() const noexcept { return parser_.status_code; }
  [[nodiscard]] const std::string& target() const noexcept { return target_; }
  [[nodiscard]] const std::string& body() const noexcept { return body_; }
  /// Whether the peer wants another message on this stream.
  [[nodiscard]] bool keep_alive() const noexcept { return keep_alive_; }

 private:
  static message_parser& of(http_parser* parser) noexcept { return *static_cast<message_parser*>(parser->data); }
  static int append(std::string& to, const char* bytes, std::size_t count, std::size_t most) noexcept;
  static int on_begin(http_parser* parser) noexcept;
  static int on_target(http_parser* parser, const char* bytes, std::size_t count) noexcept;
  static int on_header_name(http_parser* parser, const char* bytes, std::size_t count) noexcept;
  static int on_header_value(http_parser* parser, const char* bytes, std::size_t count) noexcept;
  static int on_headers(http_parser* parser) noexcept;
  static int on_body(http_parser* parser, const char* bytes, std::size_t count) noexcept;
  static int on_chunk_size(http_parser* parser) noexcept;
  static int on_chunk_end(http_parser* parser) noexcept;
  static int on_complete(http_parser* parser) noexcept;
  static const http_parser_settings settings;

  /// A header field that matters here.
  struct field {
    unsigned times = 0;
    std::string value{};
  };

  void check_size_line(std::string_view part);
  std::size_t execute(std::span<const std::byte> bytes);
  [[nodiscard]] field* named_field() noexcept;
  [[nodiscard]] const char* fault_of_headers() const noexcept;

  http_parser parser_{};
  std::string target_;
  std::string body_;
  std::string name_;       // of the header field that comes
  bool in_value_ = false;  // the name is complete
  field host_;
  field expect_;
  bool headers_end_ = false;   // with the next byte
  bool chunk_ended_ = false;   // with the last byte taken
  std::byte last_but_one_{};   // taken
  std::byte last_{};           // taken
  bool in_size_line_ = false;  // of a chunk
  std::string size_line_;      // what has come of it
  const char* fault_ = nullptr;
  bool too_large_ = false;
  bool begun_ = false;
  bool complete_ = false;
  bool keep_alive_ = false;
  bool expects_continue_ = false;
};

}  // namespace http
