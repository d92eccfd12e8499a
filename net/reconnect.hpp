// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/back_off.hpp>
#include <weft/net/connection.hpp>
#include <weft/net/options.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/task.hpp>

#include <string>

namespace weft::net {

class device;

/// True if connecting again may help: nobody listened or answered, the peer has died, the network or the name server
/// could not be reached, or either end ran short of something, such as memory, ports, or room for connections. True for
/// errc::no_memory even if the pool can never hold the receives. False for any other error, such as a rejection by the
/// peer's program, an invalid address, or a peer that does not speak this transport.
[[nodiscard]] bool may_heal(const error& why) noexcept;

/// Connects, and tries again for as long as that may help.
///
/// Each attempt is device::connect() with `options`, whose set_up_timeout is cut to the time that is left. Gives up at
/// once on an error that cannot heal, and otherwise when the attempts of `when` are used up, or its time would be over
/// before the next attempt. Throws the last error, preceded by the number of attempts; errc::canceled if stopped. The
/// device, and the objects to which `options` refer, must outlive the task.
task<connection> connect_with_retry(device& through, std::string address, connection_options options = {},
                                    retry_options when = {});

}  // namespace weft::net
