// SPDX-License-Identifier: Apache-2.0
#pragma once

// Nearly every header includes this one first, so an old compiler reports this error before all others.
#if (defined(__clang__) && __clang_major__ < 16) || (!defined(__clang__) && defined(__GNUC__) && __GNUC__ < 12)
#error "weft needs GCC 12 or clang 16, or a newer one"
#endif

#include <memory>
#include <string>
#include <string_view>
#include <system_error>

namespace weft {

/// The errors of weft itself. Errors of the system keep std::system_category.
enum class errc {
  canceled = 1,       ///< stopped before it took effect; with error::posted(), it may have taken effect all the same
  timed_out,          ///< the time limit of an operation, a set-up or an exposure has passed
  wrong_thread,       ///< called from a thread on which this is not allowed
  not_supported,      ///< this transport, link or machine cannot do that; the message names the option
  invalid_argument,   ///< an argument or a handle that cannot be used; the message says which, and why
  invalid_address,    ///< not HOST:PORT, or no such host
  no_memory,          ///< no memory, or a limit is reached: on pinned memory, regions, keys or a pool's size
  out_of_range,       ///< outside the region, the slice, the list or the group, or more than a file or device can hold
  access_denied,      ///< the memory's usage does not allow the operation
  zero_length,        ///< a registration needs at least one byte
  null_address,       ///< a registration needs an address
  unknown_usage,      ///< bits in a usage that weft does not know
  misaligned,         ///< an iova and an address with different offsets in a page, or an address that is not aligned
  duplicate_key,      ///< the requested key is taken
  key_not_available,  ///< the registration of the memory has not completed yet
  busy,               ///< something else still uses the memory, another task awaits the object, or a trace is recorded
  buffer_in_use,      ///< an operation still pins the buffer
  malformed,          ///< bytes from a peer that cannot be parsed
  message_too_large,  ///< larger than the peer's receive_size, or than the transport carries
  /// This end has closed or aborted the connection, stream or channel; or its handle is empty; or the pool is gone.
  closed,
  peer_closed,        ///< the peer has closed the connection in an orderly way
  peer_vanished,      ///< the peer or its network has failed, without an orderly close
  peer_rejected,      ///< the peer refused the connection; what() has its private data or reason, if it sent any
  protocol_error,     ///< the peer broke the protocol
  remote_access,      ///< the peer refused access to its memory
  connection_failed,  ///< an earlier error has ended the connection, or its device or network has failed
  not_receiving,  ///< an overdue answer waits behind messages that no recv() here takes; or the peer posts no receive
  wrong_device,   ///< the address is not reachable through this device, or an object belongs to another device
  executor_stopped,  ///< the executor had ended, or ended before the operation began there
  peer_restarted,    ///< the peer no longer knows the connection: its process was replaced, or gave it up
  outcome_unknown,   ///< a rail was lost, and the operation may or may not have been executed; the connection goes on
};

/// The category of errc.
const std::error_category& weft_category() noexcept;

/// Converts to the standard library's type; an errc also converts implicitly.
inline std::error_code make_error_code(errc code) noexcept { return {static_cast<int>(code), weft_category()}; }

/// The exception that weft throws, besides std::bad_alloc, and the error that result<T> carries.
///
/// what() is a sentence: the context (operation, peer, transport), then the meaning of code(). Visible, so that a
/// program compiled with -fvisibility=hidden catches what libweft.so throws.
class [[gnu::visibility("default")]] error : public std::system_error {
 public:
  /// An error without a context: what() is the meaning of `code` alone.
  explicit error(std::error_code code) : error(code, std::string()) {}
  /// An error whose what() begins with `context`: "connect to 10.0.0.7:7471 over iwarp".
  error(std::error_code code, const std::string& context);
  /// An error of weft's own whose what() begins with `context`.
  error(errc code, const std::string& context) : error(make_error_code(code), context) {}

  /// The context and the meaning of code().
  [[nodiscard]] const char* what() const noexcept override { return text_->c_str(); }

  /// A copy whose what() has `context` in front.
  [[nodiscard]] error within(const std::string& context) const;

  /// Whether the operation may have taken effect in spite of the error: it had been handed to the transport, and may
  /// have reached the peer; or a write to a file was done in part.
  [[nodiscard]] bool posted() const noexcept { return posted_; }

  /// A copy with posted() set to `posted`.
  [[nodiscard]] error as_posted(bool posted = true) const {
    error copy = *this;
    copy.posted_ = posted;
    return copy;
  }

  /// A copy with another code, in the same context and with the same posted(). with_timeout() throws such a copy when
  /// it has stopped an operation.
  [[nodiscard]] error with_code(std::error_code code) const;

 private:
  std::shared_ptr<const std::string> text_;  // shared, so that copying an exception cannot throw
  bool posted_ = false;
};

/// An error of the system: `number` is an errno value, `context` says what was tried.
[[nodiscard]] error system_error(int number, const std::string& context);

namespace detail {

/// Makes an error without throwing. If there is no memory for `context`, what() is the meaning of `code` alone.
[[nodiscard]] error make_error(errc code, std::string_view context = {}) noexcept;
/// Makes an error of the system without throwing: errc::no_memory if there is no memory for its text.
[[nodiscard]] error make_system_error(int number, std::string_view context) noexcept;
/// Allocates the errors that make_error() and make_system_error() return if there is no memory. The constructor of
/// every executor calls it. Throws std::bad_alloc.
void reserve_errors();

/// Reports `words` (report_kind::fatal), then ends the program, because going on would corrupt memory.
[[noreturn, gnu::cold]] void terminate_because(const char* words) noexcept;
/// Ends the program because two objects have owned one resource; `what` names such an object: "a lock of a mutex".
[[noreturn, gnu::cold]] void terminate_because_duplicated(const char* what) noexcept;
/// Throws an error about a misuse, such as of an empty handle. Out of line, so that checks stay small.
[[noreturn, gnu::cold]] void throw_misuse(errc code, const char* words);

}  // namespace detail
}  // namespace weft

template <>
struct std::is_error_code_enum<weft::errc> : std::true_type {};
