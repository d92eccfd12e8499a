// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/io/socket_address.hpp>
#include <weft/runtime/system/clock.hpp>
#include <weft/runtime/with_timeout.hpp>

#include <fmt/core.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

// Tries the ways to set up a connection or a listener in order until one works: the addresses of a name, the fabrics of
// a device, or the rails of a connection.
namespace weft::net {

/// Collects the failures of several attempts into one sentence, the last failure at its end.
class failed_attempts {
 public:
  void add(std::string_view way, const error& why) {
    text_ = last_ ? fmt::format("{}; {}", all().what(), way) : std::string(way);
    last_ = why;
  }
  [[nodiscard]] bool empty() const noexcept { return !last_; }
  /// The last failure, whose words begin with the failures before it. Not while empty().
  [[nodiscard]] error all() const { return last_->within(text_); }
  /// The words of all(), or none while empty().
  [[nodiscard]] std::string text() const { return last_ ? all().what() : std::string(); }

 private:
  std::string text_;  // what all() puts in front of the last failure's words
  std::optional<error> last_;
};

/// Whether another fabric or rail may reach the peer. Not if the task was stopped, if this end is at fault
/// (errc::invalid_argument, errc::no_memory), or if the peer has rejected the connection or lacks room for it
/// (ENOBUFS).
[[nodiscard]] inline bool may_reach_otherwise(const error& why) noexcept {
  return why.code() != errc::canceled && why.code() != errc::invalid_argument && why.code() != errc::no_memory &&
         why.code() != errc::peer_rejected && why.code() != std::errc::no_buffer_space;
}

/// Awaits attempt(way, left, failed), which returns a task, for one of `ways` after another, and returns the result of
/// the first that succeeds. `left` is the number of ways still to be tried, this one included; `failed` has the
/// failures so far. Tries no further way once goes_on(failure) is false. There must be at least one way; `ways` and
/// `attempt` are lvalues, because they have to outlive the tasks. Throws weft::error with the failures of all attempts,
/// each behind name(way); if there is only one way, its failure unchanged. An exception that is no weft::error passes
/// through at once.
template <class Way, class Name, class Attempt, class Rule>
[[nodiscard]] std::invoke_result_t<Attempt&, const Way&, std::size_t, const failed_attempts&> try_in_order(
    const std::vector<Way>& ways, Name name, Attempt& attempt, Rule goes_on) {
  failed_attempts failed;
  for (std::size_t left = ways.size(); left > 0; --left) {
    const Way& way = ways[ways.size() - left];
    try {
      co_return co_await attempt(way, left, failed);
    } catch (const error& why) {
      if (ways.size() == 1) throw;
      failed.add(std::invoke(name, way), why);
      if (!goes_on(why)) break;
    }
  }
  throw failed.all();
}

/// The deadline of one attempt, so that a way from which no answer comes leaves time for the others. `left` is the
/// number of ways still to be tried, this one included.
[[nodiscard]] inline time_point share_of_time(time_point deadline, std::size_t left) noexcept {
  const time_point now = executor_core::current()->now();
  return now + (deadline - now) / static_cast<duration::rep>(left);
}

/// Resolves a name. `step` says in the error what the name is for; the caller adds the name itself. `is_own`: the
/// addresses are this machine's. Throws weft::error.
inline task<std::vector<socket_address>> look_up(std::string_view address, bool is_own, time_point deadline,
                                                 std::string_view step) {
  try {
    auto where = parse_host_and_port(address);
    co_return co_await with_deadline(deadline, resolve(std::move(where), is_own));
  } catch (const error& why) {
    if (why.code() == errc::timed_out) throw error(errc::timed_out, std::string(step));
    throw why.within(std::string(step));
  }
}

/// Resolves set_up_options::source; yields no addresses if it is empty. Throws weft::error.
inline task<std::vector<socket_address>> look_up_source(std::string_view address, time_point deadline) {
  if (address.empty()) co_return std::vector<socket_address>();
  const std::string step = fmt::format("find the source address {}", address);
  co_return co_await look_up(address, true, deadline, step);
}

/// Awaits attempt(address, deadline), which returns a task, for one address of the name after another, and returns the
/// result of the first that succeeds. Each attempt gets an equal share of the remaining time, the last one all of it.
/// Tries no further address after a stop, if the peer has rejected the connection, or once time is up. `is_own`: the
/// addresses are this machine's. `attempt` is an lvalue, because its captures have to outlive its tasks. Throws
/// weft::error with the failures of all attempts.
template <class Attempt>
[[nodiscard]] std::invoke_result_t<Attempt&, const socket_address&, time_point> try_addresses(std::string_view name,
                                                                                              bool is_own,
                                                                                              time_point deadline,
                                                                                              Attempt& attempt) {
  const std::vector<socket_address> addresses = co_await look_up(name, is_own, deadline, "look up the address");
  const auto in_share = [&](const socket_address& address, std::size_t left, const failed_attempts&) {
    return attempt(address, share_of_time(deadline, left));
  };
  const auto goes_on = [deadline](const error& why) {
    const bool is_final = why.code() == errc::canceled || why.code() == errc::peer_rejected;
    return !is_final && executor_core::current()->now() < deadline;
  };
  co_return co_await try_in_order(addresses, &socket_address::to_string, in_share, goes_on);
}

}  // namespace weft::net
