// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/locked_memory.hpp>
#include <weft/mr/pool/depot.hpp>
#include <weft/mr/pool/pool_limits.hpp>
#include <weft/mr/system/page.hpp>
#include <weft/runtime/report.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <optional>

namespace weft::mr::detail {
namespace {

// As a double, a limit near the largest number is 2 to the power of 64, which no std::size_t holds.
std::size_t fraction_of(std::size_t limit, double fraction) noexcept {
  const auto whole = static_cast<double>(limit);
  const double part = std::floor(whole * fraction);
  return part < whole ? std::min(static_cast<std::size_t>(part), limit) : limit;
}

}  // namespace

pool_limits::pool_limits(const domain& home, const pool_options& options)
    : arena_bytes_(round_down(options.arena_bytes, chunk_bytes)) {
  const auto refuse = [](const std::string& why) { throw error(errc::invalid_argument, "pool_options: " + why); };
  if (!(options.receive_fraction >= 0 && options.receive_fraction <= 1))
    refuse("receive_fraction is not between 0 and 1");
  std::size_t limit = options.max_bytes;
  // Half is left for the queues of connections and for exposed buffers, which Soft-RoCE (rxe) counts a second time.
  const auto locked = home.pins() ? locked_memory_limit() : std::nullopt;
  if (const std::size_t ours = locked ? *locked / 2 : limit; ours < limit) {
    reason_ = fmt::format("the locked-memory limit is {} bytes (ulimit -l), of which the pool takes half instead of {}",
                          *locked, limit);
    limit = ours;
  }
  if (limit < chunk_bytes || options.arena_bytes < chunk_bytes) {
    refuse(fmt::format("max_bytes {} and arena_bytes {} must be at least {}{}", limit, options.arena_bytes, chunk_bytes,
                       because(": ")));
  }
  receive_ = round_down(fraction_of(limit, options.receive_fraction), chunk_bytes);
  send_ = round_down(limit - receive_, chunk_bytes);
  if (!reason_.empty()) warn(home, limit);
}

void pool_limits::warn(const domain& home, std::size_t limit) const {
  const std::string text =
      fmt::format("the pool on {} is limited to {} bytes: {}; raise that limit or lower pool_options::max_bytes",
                  home.name(), limit, reason_);
  report what;
  what.text = text;
  send_report(what);
}

std::size_t pool_limits::arena_bytes(budget which) const noexcept { return std::min(arena_bytes_, of(which)); }

void pool_limits::check(std::size_t bytes, budget which) const {
  if (std::max<std::size_t>(bytes, 1) <= of(which)) return;
  throw error(errc::invalid_argument,
              fmt::format("allocate {} bytes: the {} budget of the pool is limited to {} bytes{}", bytes,
                          name_of(which), of(which), because(", because ")));
}

error pool_limits::impossible(std::size_t count, std::size_t bytes, budget which, std::size_t most) const {
  return {
      errc::no_memory,
      fmt::format("allocate {} buffers of {} bytes: the {} budget of the pool is limited to {} bytes, which is room "
                  "for {}{}",
                  count, bytes, name_of(which), of(which), most, because(", because "))};
}

}  // namespace weft::mr::detail
