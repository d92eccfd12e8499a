// SPDX-License-Identifier: Apache-2.0
#include <weft/net/device.hpp>
#include <weft/net/reconnect.hpp>
#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/sleep.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cerrno>

namespace weft::net {

bool may_heal(const error& why) noexcept {
  if (why.code() == errc::peer_vanished || why.code() == std::error_code(EHOSTDOWN, std::system_category()))
    return true;
  constexpr std::errc healing[] = {std::errc::timed_out,
                                   std::errc::connection_refused,
                                   std::errc::connection_reset,
                                   std::errc::connection_aborted,
                                   std::errc::broken_pipe,
                                   std::errc::host_unreachable,
                                   std::errc::network_unreachable,
                                   std::errc::network_down,
                                   std::errc::resource_unavailable_try_again,
                                   std::errc::no_buffer_space,
                                   std::errc::not_enough_memory,
                                   std::errc::address_not_available,
                                   std::errc::too_many_files_open,
                                   std::errc::too_many_files_open_in_system};
  return std::any_of(std::begin(healing), std::end(healing), [&](std::errc each) { return why.code() == each; });
}

namespace {

// The attempts so far, and how much time is left for more.
class attempts {
 public:
  explicit attempts(const retry_options& when)
      : started_(now()), deadline_(later(started_, when.give_up_after)), most_(when.max_attempts), pauses_(when) {}

  [[nodiscard]] time_point started() const noexcept { return started_; }
  /// Counts an attempt, and returns the options for it. It was to begin at `start`, and has the time left then,
  /// because an end that was away in the pause has not tried the peer.
  [[nodiscard]] connection_options begin(connection_options options, time_point start) noexcept {
    ++count_;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_ - start);
    options.set_up_timeout = std::min(options.set_up_timeout, left);
    return options;
  }

  /// When to begin the next attempt; empty to give up.
  [[nodiscard]] std::optional<time_point> next(const error& why) {
    if (!may_heal(why) || count_ == most_) return std::nullopt;
    const time_point start = later(now(), pauses_.next());
    return start < deadline_ ? std::optional(start) : std::nullopt;
  }

  [[nodiscard]] error summary(const error& why) const {
    const std::chrono::duration<double> spent = now() - started_;
    return why.within(
        fmt::format("gave up after {} attempt{} in {:.1f} s", count_, count_ == 1 ? "" : "s", spent.count()));
  }

 private:
  static time_point now() noexcept { return executor_core::current()->now(); }

  time_point started_;
  time_point deadline_;
  unsigned most_;
  unsigned count_ = 0;
  back_off pauses_;
};

task<> pause_until(time_point start, const error& why) {
  try {
    co_await sleep_until(start);
  } catch (const error& stopped) {
    throw why.with_code(stopped.code());
  }
}

}  // namespace

task<connection> connect_with_retry(device& through, std::string address, connection_options options,
                                    retry_options when) {
  attempts tries(when);
  for (std::optional<time_point> start = tries.started();;) {
    std::optional<error> last;
    try {
      const connection_options now = tries.begin(options, *start);
      co_return co_await through.connect(address, now);
    } catch (const error& why) {
      if (why.code() == errc::canceled) throw;
      last = why;
    }
    start = tries.next(*last);
    if (!start) throw tries.summary(*last);
    co_await pause_until(*start, *last);
  }
}

}  // namespace weft::net
