// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/error.hpp>
#include <weft/runtime/report.hpp>

#include <cstdio>
#include <exception>
#include <new>
#include <vector>

namespace weft {
namespace {

struct wording {
  errc code;
  const char* words;
};
constexpr wording wordings[] = {
    {errc::canceled, "canceled"},
    {errc::timed_out, "timed out"},
    {errc::wrong_thread, "not allowed on this thread"},
    {errc::not_supported, "not supported"},
    {errc::invalid_argument, "invalid argument"},
    {errc::invalid_address, "not a usable address"},
    {errc::no_memory, "out of memory"},
    {errc::out_of_range, "out of range"},
    {errc::access_denied, "the memory's usage does not allow this"},
    {errc::zero_length, "the length is zero"},
    {errc::null_address, "the address is null"},
    {errc::unknown_usage, "unknown usage bits"},
    {errc::misaligned, "misaligned"},
    {errc::duplicate_key, "the requested key is taken"},
    {errc::key_not_available, "the key is not available before the registration completes"},
    {errc::busy, "still in use"},
    {errc::buffer_in_use, "an operation still uses the buffer"},
    {errc::malformed, "malformed"},
    {errc::message_too_large, "too large for the peer or the transport"},
    {errc::closed, "the connection is closed at this end"},
    {errc::peer_closed, "the peer has closed the connection"},
    {errc::peer_vanished, "the peer vanished without closing"},
    {errc::peer_rejected, "the peer rejected the connection"},
    {errc::protocol_error, "the peer broke the protocol"},
    {errc::remote_access, "the peer refused the access to its memory"},
    {errc::connection_failed, "the connection has failed"},
    {errc::not_receiving, "a side does not receive what the other has sent"},
    {errc::wrong_device, "not reachable through this device"},
    {errc::executor_stopped, "the executor has ended"},
    {errc::peer_restarted, "the peer no longer knows this connection: its process was restarted, or gave it up"},
    {errc::outcome_unknown, "a rail has ended, and whether the peer has executed the operation is unknown"},
};
constexpr int last_code = static_cast<int>(errc::outcome_unknown);

// The words of a code are found by its number.
consteval bool are_in_order() {
  int code = 0;
  for (const wording& each : wordings) {
    if (static_cast<int>(each.code) != ++code) return false;
  }
  return code == last_code;
}
static_assert(are_in_order(), "each code needs words");

class category final : public std::error_category {
 public:
  const char* name() const noexcept override { return "weft"; }
  std::string message(int value) const override {
    return value > 0 && value <= last_code ? wordings[value - 1].words : "unknown error";
  }

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
    std::vector<error> made;
    made.reserve(last_code);
    for (const wording& each : wordings) made.emplace_back(make_error_code(each.code));
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
