// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/connection/shared_receive_state.hpp>
#include <weft/net/link/native_protocol.hpp>
#include <weft/net/link/receive_memory.hpp>
#include <weft/net/link/transport.hpp>
#include <weft/net/options.hpp>
#include <weft/runtime/system/clock.hpp>
#include <weft/runtime/task.hpp>

#include <exception>
#include <memory>
#include <source_location>

namespace weft::net {

class device_state;

/// Throws errc::invalid_argument for depths and sizes that no connection can have.
void check_sizes(const connection_options& options);

/// The number of receives that a connection of `device` posts, unless it shares receives with other connections.
[[nodiscard]] std::uint16_t receives_of(const device_state& device, const connection_options& options) noexcept;

/// Makes the transport's options from a user's. The deadline is counted from now. `hello`, and the text that
/// options.source refers to, must outlive the set-up. `shared` may be null.
[[nodiscard]] set_up_options make_set_up(const device_state& device, const connection_options& options,
                                         const greeting_frame& hello,
                                         const std::shared_ptr<shared_receive_state>& shared);

/// Finds the receives of a connection: `shared`, or if that is null, buffers of the pool, for which it waits until
/// `deadline`. Throws errc::invalid_argument for depths and sizes that no connection can have, and what
/// find_receive_memory() throws.
task<receive_memory> find_receives(device_state& device, const connection_options& options,
                                   std::shared_ptr<shared_receive_state> shared, time_point deadline);

/// Reports the failed set-up of a peer for which no task waits in particular. Call it in the handler of `why`, because
/// the report carries the current exception.
void report_failed_set_up(const std::exception& why,
                          std::source_location where = std::source_location::current()) noexcept;

}  // namespace weft::net
