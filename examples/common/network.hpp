// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/connection.hpp>
#include <weft/net/device.hpp>
#include <weft/runtime/line_limit.hpp>
#include <weft/runtime/task.hpp>

#include <cstddef>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>

namespace common {

/// Opens a device, and says which others were passed over on the way.
[[nodiscard]] weft::net::device open_device(std::string_view program, std::string_view name,
                                            const weft::net::device_options& options = {});

/// What both sides say when they connect, so that neither takes another program for its peer.
[[nodiscard]] std::span<const std::byte> greeting(std::string_view protocol) noexcept;
/// Throws weft::errc::protocol_error, and aborts the connection, if the peer has said something else.
void require_greeting(weft::net::connection& peer, std::string_view protocol, std::string_view program);

/// Writes a line that peers may cause at will, unless there were too many lately, or there is no room for it.
void write_line(std::FILE* to, weft::line_limit& limit, std::string_view program, std::string_view line);
/// Says on the standard error stream what is wrong with a peer, in a line: "copy: 10.0.0.7:4711: timed out".
void complain(std::string_view program, std::string_view peer, std::string_view what);

/// One client's whole life. Its trouble ends here, with a complaint, and the others do not notice.
[[nodiscard]] weft::task<> attend(std::string_view program, std::string peer, weft::task<> life);

}  // namespace common
