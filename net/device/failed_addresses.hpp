// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/error.hpp>
#include <weft/runtime/executor.hpp>
#include <weft/runtime/io/clock.hpp>
#include <weft/runtime/io/socket_address.hpp>
#include <weft/runtime/with_timeout.hpp>

#include <fmt/core.h>

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// Trying the addresses of a name one after another, as every transport does.
namespace weft::net {

/// What went wrong with each address of a name, in one sentence that ends with the last.
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

/// Another address of the same name may do better, unless the peer has answered or there is no time left.
[[nodiscard]] inline bool worth_another_try(const error& why, time_point deadline) noexcept {
  if (why.code() == errc::canceled || why.code() == errc::peer_rejected) return false;
  return executor::current()->now() < deadline;
}

/// An address that swallows what is sent to it leaves the others, `left` with itself, their share of the time.
[[nodiscard]] inline time_point share_of_time(time_point deadline, std::size_t left) noexcept {
  const time_point now = executor::current()->now();
  return now + (deadline - now) / static_cast<duration::rep>(left);
}

/// The addresses of a name. `step` says whose it is, where that fails: the error of the whole says which. `is_own`: of
/// this machine. Throws weft::error.
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

/// Those of set_up_options::source; none if it is empty. Throws weft::error.
[[nodiscard]] inline task<std::vector<socket_address>> look_up_source(std::string_view address, time_point deadline) {
  if (address.empty()) co_return std::vector<socket_address>();
  const std::string step = fmt::format("find the source address {}", address);
  co_return co_await look_up(address, true, deadline, step);
}

}  // namespace weft::net
