// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/error.hpp>
#include <weft/runtime/line_limit.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <utility>

#include <common/network.hpp>
#include <common/printable.hpp>

namespace common {

weft::net::device open_device(std::string_view program, std::string_view name,
                              const weft::net::device_options& options) {
  auto device = weft::net::device::open(name, options);
  if (!device.passed_over().empty()) fmt::print(stderr, "{}: {}\n", program, device.passed_over());
  return device;
}

std::span<const std::byte> greeting(std::string_view protocol) noexcept { return std::as_bytes(std::span(protocol)); }

void require_greeting(weft::net::connection& peer, std::string_view protocol, std::string_view program) {
  if (std::ranges::equal(peer.peer_private_data(), greeting(protocol))) return;
  peer.abort();
  throw weft::error(weft::errc::protocol_error,
                    fmt::format("{} does not run this version of {}", peer.peer(), program));
}

void write_line(std::FILE* to, weft::line_limit& limit, std::string_view program, std::string_view line) {
  const auto left_out = limit.next(weft::clock::steady().now());
  if (!left_out) return;
  if (*left_out != 0) std::fputs(fmt::format("{}: {} more lines were not written\n", program, *left_out).c_str(), to);
  std::fputs(fmt::format("{}\n", line).c_str(), to);
  std::fflush(to);
}

void complain(std::string_view program, std::string_view peer, std::string_view what) {
  static weft::line_limit limit;
  write_line(stderr, limit, program, fmt::format("{}: {}: {}", program, printable(peer), printable(what)));
}

weft::task<> attend(std::string_view program, std::string peer, weft::task<> life) {
  try {
    co_await std::move(life);
  } catch (const weft::error& why) {
    if (why.code() == weft::errc::canceled) throw;
    complain(program, peer, why.what());
  } catch (const std::exception& why) {
    complain(program, peer, why.what());
  }
}

}  // namespace common
