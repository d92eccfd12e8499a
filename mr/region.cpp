// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/region.hpp>
#include <weft/mr/registrar.hpp>
#include <weft/runtime/core/stop_shield.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/offload.hpp>

#include <fmt/core.h>

namespace weft::mr {
region::~region() {
  if (state_ == nullptr) return;
  if (state_->borrowed) {
    state_->end_last_uses();
    if (state_->holders.load() != 1) {
      weft::detail::terminate_because("a region that borrows its memory was destroyed while an operation uses it");
    }
    state_->deregister();
  }
  state_.take()->let_go();
}

std::span<std::byte> region::bytes_at(std::size_t offset, std::size_t length) const {
  detail::check_range(offset, length, size());
  for (const auto& range : state_->ranges) {
    if (offset >= range.size()) {
      offset -= range.size();
    } else if (length <= range.size() - offset) {
      return range.subspan(offset, length);
    } else {
      throw error(errc::out_of_range,
                  fmt::format("take a slice of {} bytes that lie in more than one range of the region", length));
    }
  }
  return state_->bytes.subspan(offset, length);
}

slice region::slice(std::size_t offset, std::size_t length) const {
  if (state_ == nullptr || state_->ranges.empty()) return slice().subslice(offset, length);
  state_->check_unchanging("take a slice of");
  return {bytes_at(offset, length), state_.held()};
}

slice region::slice(std::span<std::byte> part) const {
  if (part.empty()) return slice(0, 0);
  if (!*this || !state_->contains(part)) {
    throw error(errc::out_of_range,
                fmt::format("take a slice of {} bytes that do not lie in one range of the region", part.size()));
  }
  state_->check_unchanging("take a slice of");
  return {part, state_.held()};
}

slice region::slice() const {
  if (!*this) return {};
  state_->check_unchanging("take a slice of");
  return {state_->bytes, state_.held()};
}

remote_region region::remote() const {
  if (!*this) throw error(errc::access_denied, "take the key of a region that was released, or moved from");
  state_->check_unchanging("take the key of");
  const mr::usage open = usage() & peer_usages;
  if (open == mr::usage::none) {
    throw error(errc::access_denied,
                fmt::format("take the key of a region of {} bytes registered for {}, which gives peers no access",
                            size(), to_string(usage())));
  }
  if (!state_->enabled && !state_->domain->capabilities().gates) {
    throw error(errc::access_denied, "take the key of a region that is disabled: it has none until it is enabled");
  }
  remote_region described = state_->domain->describe(*state_, size(), open);
  described.count_by(state_->windows.told);
  return described;
}

std::unique_ptr<detail::region_state> region::take(const char* what) {
  std::uint32_t alone = 1;
  if (!state_->holders.compare_exchange_strong(alone, 0, std::memory_order_acq_rel) &&
      !state_->held_by_handle_alone()) {
    throw state_->in_use(alone, what);
  }
  return std::unique_ptr<detail::region_state>(state_.take());
}

task<> region::release() {
  if (state_ == nullptr) co_return;
  std::unique_ptr<detail::region_state> state = take("release");
  const weft::detail::stop_shield shield(co_await weft::detail::current_promise());
  const auto destroy = [&state]() noexcept { state.reset(); };
  co_await weft::detail::offload_for_resources(destroy);
}

}  // namespace weft::mr
