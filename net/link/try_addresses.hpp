// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/io/socket_address.hpp>
#include <weft/runtime/system/clock.hpp>
#include <weft/runtime/with_timeout.hpp>

#include <fmt/core.h>

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

// Tries the addresses of a name one after another until one works; every transport connects in this way.
namespace weft::net {

/// Collects the failures of all addresses of a name into one sentence, the last failure at its end.
class failed_addresses {
 public:
  explicit failed_addresses(std::size_t candidates) noexcept : only_one_(candidates == 1) {}

  void add(const socket_address& address, const error& why) {
    if (last_) text_ += fmt::format(": {}; ", last_->what());
    text_ += address.to_string();
    last_ = why;
  }
  [[nodiscard]] error all() const { return only_one_ ? *last_ : last_->within(text_); }

 private:
  bool only_one_;
  std::string text_;  // without the last one's cause
  std::optional<error> last_;
};

/// Whether to try the next address of the same name: not if the peer has rejected the connection, or time is up.
[[nodiscard]] inline bool is_worth_another_try(const error& why, time_point deadline) noexcept {
  if (why.code() == errc::canceled || why.code() == errc::peer_rejected) return false;
  return executor_core::current()->now() < deadline;
}

/// The deadline of one attempt, so that an address from which no answer comes leaves time for the others. `left` is the
/// number of addresses still to be tried, this one included.
[[nodiscard]] inline time_point share_of_time(time_point deadline, std::size_t left) noexcept {
  const time_point now = executor_core::current()->now();
  return now + (deadline - now) / static_cast<duration::rep>(left);
}

/// Resolves a name. `step` says in the error what the name is for; the caller adds the name itself. `is_own`: the
/// addresses are this machine's. Throws weft::error.
[[nodiscard]] inline task<std::vector<socket_address>> look_up(std::string_view address, bool is_own,
                                                               time_point deadline, std::string_view step) {
  try {
    auto where = parse_host_and_port(address);
    co_return co_await with_deadline(deadline, resolve(std::move(where), is_own));
  } catch (const error& why) {
    if (why.code() == errc::timed_out) throw error(errc::timed_out, std::string(step));
    throw why.within(std::string(step));
  }
}

/// Resolves set_up_options::source; yields no addresses if it is empty. Throws weft::error.
[[nodiscard]] inline task<std::vector<socket_address>> look_up_source(std::string_view address, time_point deadline) {
  if (address.empty()) co_return std::vector<socket_address>();
  const std::string step = fmt::format("find the source address {}", address);
  co_return co_await look_up(address, true, deadline, step);
}

/// Awaits attempt(address, deadline), which returns a task, for one address of the name after another, and returns the
/// result of the first that succeeds. Each attempt gets an equal share of the remaining time, the last one all of it.
/// `is_own`: the addresses are this machine's. `attempt` is an lvalue, because its captures have to outlive its tasks.
/// Throws weft::error with the failures of all attempts.
template <class Attempt>
[[nodiscard]] std::invoke_result_t<Attempt&, const socket_address&, time_point> try_addresses(std::string_view name,
                                                                                              bool is_own,
                                                                                              time_point deadline,
                                                                                              Attempt& attempt) {
  const std::vector<socket_address> addresses = co_await look_up(name, is_own, deadline, "look up the address");
  failed_addresses failures(addresses.size());
  std::size_t left = addresses.size();
  for (const socket_address& candidate : addresses) {
    const time_point share = share_of_time(deadline, left--);
    try {
      co_return co_await attempt(candidate, share);
    } catch (const error& why) {
      failures.add(candidate, why);
      if (!is_worth_another_try(why, deadline)) break;
    }
  }
  throw failures.all();
}

}  // namespace weft::net
