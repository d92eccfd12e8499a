// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <new>
#include <string>
#include <string_view>

namespace weft::net::verbs {

/// Remembers whether zero-length requests get through from a device to a host: some clouds' networks lose packets
/// without payload. Peers without a landing_place, usually those that are not weft, are probed by such requests, and a
/// lost request fails its queue pair. So a set-up with such a peer tries a zero-length request before it hands out the
/// connection, unless receives are shared. From any thread.
class empty_requests {
 public:
  enum class fate : std::uint8_t { unknown, arrive, lost };

  [[nodiscard]] fate to(std::string_view host) const noexcept {
    const std::lock_guard lock(mutex_);
    const auto found = known_.find(host);
    if (found == known_.end()) return fate::unknown;
    if (found->second == 0) return fate::arrive;
    return found->second >= losses_that_tell ? fate::lost : fate::unknown;
  }
  void note_arrival(std::string_view host) noexcept { note(host, 0); }
  /// Counts a loss. True if, from this loss on, requests to the host count as lost. A single loss proves nothing,
  /// because the peer may have died at that moment.
  bool note_loss(std::string_view host) noexcept { return note(host, 1) == losses_that_tell; }

 private:
  static constexpr unsigned losses_that_tell = 2;
  static constexpr std::size_t most_hosts = 4096;  // beyond that, all are forgotten

  // Counts the loss, or forgets earlier ones if `lost` is 0. Returns how many were lost in a row.
  unsigned note(std::string_view host, unsigned lost) noexcept try {
    const std::lock_guard lock(mutex_);
    const auto found = known_.find(host);
    if (found != known_.end()) return found->second = lost == 0 ? 0 : found->second + lost;
    if (known_.size() >= most_hosts) known_.clear();
    known_.emplace(host, lost);
    return lost;
  } catch (const std::bad_alloc&) {  // the result is forgotten, and the next set-up tries again
    return 0;
  }

  mutable std::mutex mutex_;
  std::map<std::string, unsigned, std::less<>> known_;
};

}  // namespace weft::net::verbs
