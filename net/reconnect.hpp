// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/connection.hpp>
#include <weft/net/options.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/io/clock.hpp>
#include <weft/runtime/task.hpp>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>

namespace weft::net {

class device;

/// When to try again, and when to give up.
struct retry_options {
  std::chrono::milliseconds first_pause{100};       ///< after the first failure, at most
  std::chrono::milliseconds max_pause{10'000};      ///< after any failure
  std::chrono::milliseconds give_up_after{60'000};  ///< for all attempts and pauses together
  unsigned max_attempts = 0;                        ///< 0: as many as that time allows
  std::optional<std::uint64_t> seed{};              ///< seam: draw the same pauses each time
};
static_assert(std::is_trivially_destructible_v<retry_options>);

/// The pauses between attempts: the bound doubles from first_pause to max_pause, and each pause is drawn from the
/// upper half of what it allows, so that many clients of a server that comes back do not all come at once.
class back_off {
 public:
  /// The first pause is at most retry_options::first_pause.
  explicit back_off(const retry_options& when);
  /// How long to wait before the next attempt.
  [[nodiscard]] duration next();

 private:
  duration bound_;
  duration longest_;
  std::uint64_t random_;
};

/// Whether trying to connect again may help: nobody listened, nobody answered, the network or the name server could not
/// be reached, something ran short. Not if the peer rejected, if the address is invalid, or if the peer does not speak
/// this transport.
[[nodiscard]] bool may_heal(const error& why) noexcept;

/// Connects, and tries again for as long as that may help.
///
/// Each attempt is device::connect() with `options`, whose set_up_timeout is cut to the time that is left. Gives up at
/// once on an error that cannot heal. Throws the last error, preceded by the number of attempts.
/// If stopped: errc::canceled.
[[nodiscard]] task<connection> connect_with_retry(device& through, std::string address, connection_options options = {},
                                                  retry_options when = {});

}  // namespace weft::net
