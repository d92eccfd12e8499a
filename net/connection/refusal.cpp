// SPDX-License-Identifier: Apache-2.0
#include <weft/net/connection/refusal.hpp>
#include <weft/net/device/device_state.hpp>

#include <fmt/core.h>

namespace weft::net {
namespace {

static_assert(capabilities().max_parts == max_segments && capabilities().max_read_parts == max_segments);

// A message needs one for its trailer.
std::size_t max_parts(transfer_kind kind, const capabilities& link) noexcept {
  if (kind == transfer_kind::read) return link.max_read_parts;
  return kind == transfer_kind::send ? link.max_parts - 1u : link.max_parts;
}

mr::usage needed_usage(transfer_kind kind) noexcept {
  switch (kind) {
    case transfer_kind::send:
      return mr::usage::send;
    case transfer_kind::write:
      return mr::usage::write_src;
    case transfer_kind::read:
      return mr::usage::read_dst;
    case transfer_kind::flush:
    case transfer_kind::fetch_add:
    case transfer_kind::compare_swap:
      break;
  }
  return mr::usage::none;
}

}  // namespace

std::optional<error> refusal::find() const {
  if (executor_core::current() != &state_.home) return error(errc::wrong_thread);
  if (state_.has_ended()) return state_.why_ended();
  if (auto missing = missing_capability()) return missing;
  if (auto refused = of_local_memory()) return refused;
  const capabilities& can = state_.properties();
  const std::size_t bytes = item_.bytes();
  const bool has_trailer = item_.kind_ == transfer_kind::send && can.native;
  const std::uint64_t most = can.max_message_bytes - (has_trailer ? trailer::max_bytes : 0);
  if (bytes > most) {
    return error(errc::message_too_large, fmt::format("this transport carries at most {} bytes", most));
  }
  if (item_.kind_ != transfer_kind::send) return of_remote_memory();
  if (!can.native || bytes <= can.max_send_bytes) return std::nullopt;
  return error(errc::message_too_large,
               fmt::format("the peer takes at most {} bytes, its receive_size", can.max_send_bytes));
}

std::optional<error> refusal::missing_capability() const {
  const capabilities& can = state_.properties();
  const bool writes = item_.kind_ == transfer_kind::write;
  const bool is_answered = item_.kind_ != transfer_kind::send && !writes;
  if (item_.is_atomic() && !can.atomics) return error(errc::not_supported, "this link has no atomic operations");
  if (is_answered && can.outgoing_reads == 0)
    return error(errc::not_supported, "the peer answers no reads, flushes or atomic operations");
  if (item_.how_.immediate && !(writes ? can.write_immediate : can.immediate)) {
    return error(errc::not_supported, "this link carries no immediate data");
  }
  if (item_.how_.invalidate && !can.invalidate) {
    return error(errc::not_supported, "this link cannot revoke the peer's keys");
  }
  return std::nullopt;
}

std::optional<error> refusal::of_local_memory() const {
  if (!item_.has_memory()) return std::nullopt;
  const auto parts = item_.parts();
  if (parts.empty()) return error(errc::invalid_argument, "the scatter list is empty");
  if (const std::size_t most = max_parts(item_.kind_, state_.properties()); parts.size() > most) {
    return error(errc::invalid_argument,
                 fmt::format("a scatter list of {} parts: at most {} are possible", parts.size(), most));
  }
  const mr::usage needed = needed_usage(item_.kind_);
  for (const mr::slice& part : parts) {
    const mr::memory_record* const record = part.record();
    if (record == nullptr) return error(errc::invalid_argument, "the buffer is empty, or was moved from");
    if (record->home != &state_.device->domain()) {
      return error(errc::wrong_device, "the memory is registered with another device");
    }
    if (!mr::includes(record->usage, needed)) {
      return error(errc::access_denied, fmt::format("the local memory is not registered for {}", name_of(item_.kind_)));
    }
  }
  return std::nullopt;
}

std::optional<error> refusal::of_remote_memory() const {
  if (auto refused = of_rights()) return refused;
  if (item_.kind_ == transfer_kind::flush) {
    if (item_.remote_size_ == 0)
      return error(errc::invalid_argument, "a flush needs a remote slice of at least one byte");
  } else if (item_.bytes() != item_.remote_size_) {
    return error(errc::invalid_argument,
                 fmt::format("the remote slice has another size, {} bytes", item_.remote_size_));
  }
  if (item_.is_atomic() && item_.remote_address_ % sizeof item_.operand_ != 0) {
    return error(errc::misaligned, "the remote address is not a multiple of 8");
  }
  return std::nullopt;
}

std::optional<error> refusal::of_rights() const {
  const auto allows = [&](mr::usage purpose) { return mr::includes(item_.remote_usage_, purpose); };
  if (item_.is_atomic()) {
    if (allows(mr::usage::atomic_dst)) return std::nullopt;
    return error(errc::access_denied, "the peer did not allow atomic operations");
  }
  if (item_.kind_ == transfer_kind::write) {
    if (allows(mr::usage::write_dst)) return std::nullopt;
    return error(errc::access_denied, "the peer did not allow writing");
  }
  const bool flushes = item_.kind_ == transfer_kind::flush;
  if (allows(mr::usage::read_src) || (flushes && allows(mr::usage::flush_visibility))) return std::nullopt;
  return error(errc::access_denied, "the peer did not allow reading");
}

}  // namespace weft::net
