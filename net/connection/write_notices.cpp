// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/region/told_counter.hpp>
#include <weft/net/connection/write_notices.hpp>

#include <algorithm>
#include <new>

namespace weft::net {

void write_notices::note(std::uint32_t counter, std::size_t writes) noexcept try {
  if (counter == 0 || writes == 0 || state_.failure || state_.peer_closed) return;
  // Search from the end, because writes often go to the same memory as the last one.
  const auto known =
      std::find_if(untold_.rbegin(), untold_.rend(), [&](const untold& each) { return each.counter == counter; });
  if (known != untold_.rend()) {
    known->writes += writes;
  } else {
    untold_.push_back({counter, writes});
  }
  static_cast<void>(take_slot());
} catch (const std::bad_alloc&) {
  state_.give_up(weft::detail::make_error(errc::no_memory, "tell the peer what was written"));
}

bool write_notices::take_slot() noexcept {
  if (state_.is_silent() || out_.is_taken()) return false;
  if (std::exchange(owes_answer_, false)) {
    out_.post_notice(message_kind::counted, 0, 0);
    return true;
  }
  if (untold_.empty() || awaits_answer_) return false;
  untold& first = untold_.front();
  const auto writes = static_cast<std::uint32_t>(std::min<std::uint64_t>(first.writes, trailer::most_writes));
  const std::uint32_t counter = first.counter;
  first.writes -= writes;
  if (first.writes == 0) untold_.erase(untold_.begin());
  awaits_answer_ = true;
  out_.post_notice(message_kind::written, counter, writes);
  return true;
}

bool write_notices::heard(std::uint32_t counter, std::uint32_t writes) noexcept {
  if (std::exchange(owes_answer_, true)) return false;
  mr::detail::told_counter::add(counter, writes);
  return true;
}

}  // namespace weft::net
