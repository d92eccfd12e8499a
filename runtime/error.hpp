// SPDX-License-Identifier: Apache-2.0
#pragma once

// Nearly every header includes this one first, so that it is the first error.
#if (defined(__clang__) && __clang_major__ < 16) || (!defined(__clang__) && defined(__GNUC__) && __GNUC__ < 12)
#error "weft needs GCC 12 or clang 16, or a newer one"
#endif

#include <memory>
#include <string>
#include <string_view>
#include <system_error>

namespace weft {

/// What can go wrong in weft itself. Errors of the system keep std::system_category.
enum class errc {
  canceled = 1,       ///< stopped before it took effect, or (error::posted) with an unknown effect at the peer
  timed_out,          ///< with_timeout, with_deadline or a set-up deadline
  wrong_thread,       ///< called from a thread on which this is not allowed
  not_supported,      ///< this transport, link or machine cannot do that; the words name the option
  invalid_argument,   ///< the words say which one, and why
  invalid_address,    ///< not HOST:PORT, or no such host
  no_memory,          ///< no memory, or a limit on pinned memory
  out_of_range,       ///< outside the region or slice
  access_denied,      ///< the memory's usage does not allow the operation
  zero_length,        ///< a registration needs at least one byte
  null_address,       ///< a registration needs an address
  unknown_usage,      ///< bits in a usage that weft does not know
  misaligned,         ///< an iova at another page offset than its address, an atomic off its boundary
  duplicate_key,      ///< the requested key is taken
  key_not_available,  ///< the registration has not completed yet
  busy,               ///< something still uses the memory
  buffer_in_use,      ///< an operation still pins the buffer
  malformed,          ///< bytes from a peer that mean nothing
  message_too_large,  ///< larger than the peer's receive_size
  closed,             ///< this end has closed or aborted the connection
  peer_closed,        ///< the peer closed in order
  peer_vanished,      ///< the peer died, or its network did, without closing in order
  peer_rejected,      ///< the peer refused the connection; its private data is in the error
  protocol_error,     ///< the peer broke the protocol
  remote_access,      ///< the peer refused access to its memory
  connection_failed,  ///< an earlier error ended the connection
  not_receiving,      ///< messages wait for a recv() here, and what is due lies behind them
  wrong_device,       ///< the address is not reachable through this device
  executor_stopped,   ///< the executor ended before the operation did
  peer_restarted,     ///< the peer knows of the connection no more: its process was replaced, or has given it up
  outcome_unknown,    ///< a rail ended, and nobody knows whether the operation was executed; the connection goes on
};

/// The category of errc.
const std::error_category& weft_category() noexcept;

/// The code as the standard library has it; an errc turns into one by itself.
inline std::error_code make_error_code(errc code) noexcept { return {static_cast<int>(code), weft_category()}; }

/// The exception that weft throws, and the error that result<T> carries.
///
/// what() is a sentence: the context (operation, peer, transport), then the meaning of code(). Visible, so that a
/// program compiled with -fvisibility=hidden catches what libweft.so throws.
class [[gnu::visibility("default")]] error : public std::system_error {
 public:
  /// An error without a context: what() is the meaning of `code` alone.
  explicit error(std::error_code code) : error(code, std::string()) {}
  /// An error whose what() begins with `context`: "connect to 10.0.0.7:7471 over iwarp".
  error(std::error_code code, const std::string& context);
  /// An error of weft's own, likewise.
  error(errc code, const std::string& context) : error(make_error_code(code), context) {}

  /// The sentence.
  [[nodiscard]] const char* what() const noexcept override { return text_->c_str(); }

  /// The same error, seen from further out: `context` goes in front of its words.
  [[nodiscard]] error within(const std::string& context) const;

  /// Whether the operation had been handed to the transport, so that it may have taken effect at the peer.
  [[nodiscard]] bool posted() const noexcept { return posted_; }

  /// The same error, marked as posted.
  [[nodiscard]] error as_posted(bool posted = true) const {
    error copy = *this;
    copy.posted_ = posted;
    return copy;
  }

  /// The same words with another code: with_timeout() uses it for an operation that it has stopped.
  [[nodiscard]] error with_code(std::error_code code) const;

 private:
  std::shared_ptr<const std::string> text_;  // shared, because exceptions are copied and must not throw then
  bool posted_ = false;
};

/// An error of the system: `number` is an errno value, `context` says what was tried.
[[nodiscard]] error system_error(int number, const std::string& context);

namespace detail {

/// Makes an error without throwing. If there is no memory for `context`, the error has only the words of its code.
[[nodiscard]] error make_error(errc code, std::string_view context = {}) noexcept;
/// Makes an error of the system without throwing: errc::no_memory if there is no memory for its words.
[[nodiscard]] error make_system_error(int number, std::string_view context) noexcept;
/// Makes the errors that both return when there is no memory. Called before the first executor runs.
void reserve_errors();

/// Ends the program after a report of `words` (report_kind::fatal): going on would corrupt memory.
[[noreturn, gnu::cold]] void terminate_because(const char* words) noexcept;
/// Ends the program because two objects have owned one resource: `what` is such an object, in words.
[[noreturn, gnu::cold]] void terminate_because_duplicated(const char* what) noexcept;
/// Throws an error about the use of an empty handle. Out of line, so that checks stay small.
[[noreturn, gnu::cold]] void throw_misuse(errc code, const char* words);

}  // namespace detail
}  // namespace weft

template <>
struct std::is_error_code_enum<weft::errc> : std::true_type {};
