// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/region.hpp>
#include <weft/net/connection/device_state.hpp>
#include <weft/net/connection/receive_target.hpp>
#include <weft/net/connection/refusal.hpp>
#include <weft/net/software/kernel_copy.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cassert>
#include <cstring>
#include <variant>

namespace weft::net {
namespace {

using reason = refusal::reason;

reason why_not(const mr::slice& part, const connection_state& state) noexcept {
  const reason refused = refusal::of_memory(part, mr::usage::recv, state);
  const bool is_beyond = refused == reason::none && part.kind() == mr::memory_kind::device;
  return is_beyond ? reason::no_device_memory : refused;
}

}  // namespace

receive_target::receive_target(const sink& memory) noexcept {
  if (mr::buffer* const* const whole = std::get_if<mr::buffer*>(&memory.memory_)) {
    whole_ = *whole;
  } else if (const auto* const part = std::get_if<mr::slice>(&memory.memory_)) {
    one_ = *part;
  } else if (const auto* const list = std::get_if<std::span<const mr::slice>>(&memory.memory_)) {
    several_ = *list;
    is_list_ = true;
  }
}

bool receive_target::may_hold(const connection_state& state) noexcept {
  if (whole_ != nullptr) {
    if (!mr::pin::may_write(*whole_)) return false;
    one_ = whole_->slice();
  }
  const auto all = parts();
  if (all.empty() || all.size() > held_.size()) return false;
  return std::ranges::all_of(all, [&state](const mr::slice& part) { return why_not(part, state) == reason::none; });
}

std::optional<error> receive_target::hold(const connection_state& state) {
  said.reset();
  if (!may_hold(state)) {
    if (whole_ != nullptr && !mr::pin::may_write(*whole_)) return mr::pin::why_not(*whole_);
    if (parts().size() > held_.size()) {
      return error(errc::invalid_argument,
                   fmt::format("a scatter list of {} parts: at most {} are possible", parts().size(), held_.size()));
    }
    for (const mr::slice& part : parts()) {
      const reason refused = why_not(part, state);
      if (refused == reason::no_device_memory) {
        return error(errc::not_supported, "the processor copies messages, and not to the memory of a device");
      }
      if (refused != reason::none) return refusal::explain_memory(refused, "recv_into");
    }
    return refusal::explain_memory(reason::empty_list, "recv_into");
  }
  assert(!is_held_);
  if (whole_ != nullptr) pin_ = mr::pin::try_exclusive(*whole_);
  std::ranges::copy(several_, held_.begin());
  is_held_ = true;
  for (const mr::slice& part : parts()) mr::region_pin::hold(part);
  return std::nullopt;
}

void receive_target::let_go() noexcept {
  if (!is_held_) return;
  for (const mr::slice& part : parts()) {
    mr::region_pin::release(part);  // mutant: when its receive has ended
  }
  is_held_ = false;
  pin_.reset();
}

bool receive_target::store(std::span<const std::byte> message, const connection_state& state) noexcept {
  for (const mr::slice& part : parts()) {
    const auto piece = message.first(std::min(message.size(), part.size()));
    message = message.subspan(piece.size());
    if (piece.empty()) continue;
    const bool is_pools = part.record()->region == nullptr;
    if (!is_pools && state.device->domain().may_shrink(*part.record())) {
      if (!software::copy_into(part.bytes().first(piece.size()), piece)) return false;
    } else {
      std::memcpy(part.data(), piece.data(), piece.size());
    }
  }
  return true;
}

}  // namespace weft::net
