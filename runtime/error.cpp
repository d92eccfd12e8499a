// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/error.hpp>
#include <weft/runtime/report.hpp>

#include <cstdio>
#include <exception>
#include <new>
#include <string_view>
#include <vector>

namespace weft {
namespace {

const char* words(errc code) noexcept {
  switch (code) {
    case errc::canceled:
      return "canceled";
    case errc::timed_out:
      return "timed out";
    case errc::wrong_thread:
      return "not allowed on this thread";
    case errc::not_supported:
      return "not supported";
    case errc::invalid_argument:
      return "invalid argument";
    case errc::invalid_address:
      return "not a usable address";
    case errc::no_memory:
      return "out of memory";
    case errc::out_of_range:
      return "out of range";
    case errc::access_denied:
      return "the memory's usage does not allow this";
    case errc::zero_length:
      return "the length is zero";
    case errc::null_address:
      return "the address is null";
    case errc::unknown_usage:
      return "unknown usage bits";
    case errc::misaligned:
      return "misaligned";
    case errc::duplicate_key:
      return "the requested key is taken";
    case errc::key_not_available:
      return "the key is not available before the registration completes";
    case errc::busy:
      return "still in use";
    case errc::buffer_in_use:
      return "an operation still uses the buffer";
    case errc::malformed:
      return "malformed";
    case errc::message_too_large:
      return "too large for the peer or the transport";
    case errc::closed:
      return "the connection is closed at this end";
    case errc::peer_closed:
      return "the peer has closed the connection";
    case errc::peer_vanished:
      return "the peer vanished without closing";
    case errc::peer_rejected:
      return "the peer rejected the connection";
    case errc::protocol_error:
      return "the peer broke the protocol";
    case errc::remote_access:
      return "the peer refused the access to its memory";
    case errc::connection_failed:
      return "the connection has failed";
    case errc::not_receiving:
      return "a side does not receive what the other has sent";
    case errc::wrong_device:
      return "not reachable through this device";
    case errc::executor_stopped:
      return "the executor has ended";
    case errc::peer_restarted:
      return "the peer no longer knows this connection: its process was restarted, or gave it up";
    case errc::outcome_unknown:
      return "a rail has ended, and whether the peer has executed the operation is unknown";
  }
  return "unknown error";
}

class category final : public std::error_category {
 public:
  const char* name() const noexcept override { return "weft"; }
  std::string message(int value) const override { return words(static_cast<errc>(value)); }

  std::error_condition default_error_condition(int value) const noexcept override {
    switch (static_cast<errc>(value)) {
      case errc::canceled:
        return std::errc::operation_canceled;
      case errc::timed_out:
        return std::errc::timed_out;
      case errc::not_supported:
        return std::errc::not_supported;
      case errc::invalid_argument:
        return std::errc::invalid_argument;
      case errc::no_memory:
        return std::errc::not_enough_memory;
      case errc::message_too_large:
        return std::errc::message_size;
      default:
        return {value, *this};
    }
  }
};

}  // namespace

const std::error_category& weft_category() noexcept {
  static const category instance;
  return instance;
}

error::error(std::error_code code, const std::string& context)
    : std::system_error(code),
      text_(std::make_shared<const std::string>(context.empty() ? code.message() : context + ": " + code.message())) {}

error error::within(const std::string& context) const {
  error copy = *this;
  copy.text_ = std::make_shared<const std::string>(context + ": " + *text_);
  return copy;
}

error error::with_code(std::error_code code) const {
  std::string_view context = what();
  const std::string meaning = this->code().message();
  if (context.ends_with(meaning)) context.remove_suffix(meaning.size());
  if (context.ends_with(": ")) context.remove_suffix(2);
  return (context.empty() ? error(code) : error(code, std::string(context))).as_posted(posted_);
}

error system_error(int number, const std::string& context) {
  return {std::error_code(number, std::system_category()), context};
}

namespace {

// One error for each code, in order. Never destroyed, because threads may outlive main().
const std::vector<error>& wordless_errors() {
  static const auto& all = *new std::vector<error>([] {
    constexpr int last = static_cast<int>(errc::outcome_unknown);
    std::vector<error> made;
    made.reserve(last);
    for (int code = 1; code <= last; ++code) made.emplace_back(make_error_code(static_cast<errc>(code)));
    return made;
  }());
  return all;
}

const error& wordless(errc code) { return wordless_errors()[static_cast<std::size_t>(code) - 1]; }

}  // namespace

void detail::reserve_errors() { static_cast<void>(wordless_errors()); }

error detail::make_error(errc code, std::string_view context) noexcept try {
  return {code, std::string(context)};
} catch (const std::bad_alloc&) {
  return wordless(code);
}

error detail::make_system_error(int number, std::string_view context) noexcept try {
  return system_error(number, std::string(context));
} catch (const std::bad_alloc&) {
  return wordless(errc::no_memory);
}

void detail::terminate_because(const char* words) noexcept {
  report what;
  what.kind = report_kind::fatal;
  what.text = words;
  send_report(what);
  std::terminate();
}

void detail::throw_misuse(errc code, const char* words) { throw error(code, words); }

void detail::terminate_because_duplicated(const char* what) noexcept {
  char text[256];
  std::snprintf(
      text, sizeof(text),
      "%s was destroyed twice, or used after it was destroyed. GCC 12 destroys temporaries inside braces twice "
      "in an expression with co_await: name the object first; see docs/gcc-12.md",
      what);
  terminate_because(text);
}

}  // namespace weft
