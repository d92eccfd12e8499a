// SPDX-License-Identifier: Apache-2.0
#include <weft/net/connection/device_state.hpp>
#include <weft/net/connection/refusal.hpp>

#include <fmt/core.h>

#include <algorithm>

namespace weft::net {
namespace {

static_assert(capabilities().max_parts == max_segments && capabilities().max_read_parts == max_segments);

// A message needs one element for its trailer.
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
    case transfer_kind::persist:
      break;
  }
  return mr::usage::none;
}

}  // namespace

// Flattened, because all that it calls is short, and each operation goes through it.
[[gnu::flatten]] refusal::reason refusal::find() const noexcept {
  if (item_.failure_) return reason::no_place;
  if (executor_core::current() != &state_.home) return reason::wrong_thread;
  if (state_.has_ended()) return reason::ended;
  if (const reason missing = missing_capability(); missing != reason::none) return missing;
  if (const reason refused = of_local_memory(); refused != reason::none) return refused;
  const std::size_t bytes = item_.bytes();
  if (bytes > most_bytes()) return reason::too_large_for_link;
  if (item_.kind_ != transfer_kind::send) return of_remote_memory();
  const capabilities& can = state_.properties();
  return !can.native || bytes <= can.max_send_bytes ? reason::none : reason::too_large_for_peer;
}

std::uint64_t refusal::most_bytes() const noexcept {
  const capabilities& can = state_.properties();
  const bool has_trailer = item_.kind_ == transfer_kind::send && can.native;
  const std::uint64_t trailer_bytes = has_trailer ? trailer::max_bytes : 0;
  return can.max_message_bytes - std::min(can.max_message_bytes, trailer_bytes);
}

refusal::reason refusal::missing_capability() const noexcept {
  const capabilities& can = state_.properties();
  const bool writes = item_.kind_ == transfer_kind::write;
  const bool persists = item_.kind_ == transfer_kind::persist;
  if (persists) [[unlikely]]
    return missing_persistence();
  const bool is_answered = item_.kind_ != transfer_kind::send && !writes;
  if (item_.is_atomic() && !can.atomics) return reason::no_atomics;
  if (is_answered && state_.input_over) return reason::ended;
  if (is_answered && can.outgoing_reads == 0) return reason::no_answers;
  if (item_.how_.immediate && !(writes ? can.write_immediate : can.immediate)) return reason::no_immediate;
  if (item_.how_.invalidate) [[unlikely]] {
    if (!can.invalidate) return reason::no_invalidation;
    if (*item_.how_.invalidate > state_.carrier.largest_key) return reason::too_large_key;
  }
  if (item_.is_behind_owner_) [[unlikely]] {
    if (!can.device_memory) return reason::no_device_memory;
    if (item_.is_atomic()) return reason::no_device_atomics;
  }
  return reason::none;
}

refusal::reason refusal::missing_persistence() const noexcept {
  const capabilities& can = state_.properties();
  if (!can.persistent_flush) return reason::no_persistence;
  if (item_.is_behind_owner_) return reason::none;
  if (state_.input_over) return reason::ended;
  return can.device_flush && can.outgoing_reads != 0 ? reason::none : reason::no_device_flush;
}

refusal::reason refusal::of_local_memory() const noexcept {
  if (!item_.has_memory()) return reason::none;
  const auto parts = item_.parts();
  if (parts.empty()) return reason::empty_list;
  if (parts.size() > max_parts(item_.kind_, state_.properties())) return reason::too_many_parts;
  for (const mr::slice& part : parts) {
    const reason refused = of_memory(part, needed_usage(item_.kind_), state_);
    if (refused != reason::none) return refused;
  }
  return reason::none;
}

refusal::reason refusal::of_memory(const mr::slice& part, mr::usage purpose, const connection_state& state) noexcept {
  const mr::memory_record* const record = part.record();
  if (record == nullptr) return reason::empty_buffer;
  if (record->home != &state.device->domain()) return reason::other_device;
  return mr::includes(record->usage, purpose) ? reason::none : reason::not_registered_for_it;
}

error refusal::explain_memory(reason why, const char* verb) {
  if (why == reason::empty_list) return error(errc::invalid_argument, "the scatter list is empty");
  if (why == reason::empty_buffer) return error(errc::invalid_argument, "the buffer is empty, or was moved from");
  if (why == reason::other_device) return error(errc::wrong_device, "the memory is registered with another device");
  return error(errc::access_denied, fmt::format("the local memory is not registered for {}", verb));
}

refusal::reason refusal::of_remote_memory() const noexcept {
  if (!has_rights()) return reason::remote_rights;
  const bool flushes = item_.kind_ == transfer_kind::flush || item_.kind_ == transfer_kind::persist;
  if (flushes) return item_.remote_size_ == 0 ? reason::empty_flush : reason::none;
  if (item_.bytes() != item_.remote_size_) return reason::other_size;
  const bool is_aligned = item_.remote_address_ % sizeof item_.operand_ == 0;
  return item_.is_atomic() && !is_aligned ? reason::misaligned : reason::none;
}

bool refusal::has_rights() const noexcept {
  const auto allows = [&](mr::usage purpose) { return mr::includes(item_.remote_usage_, purpose); };
  if (item_.is_atomic()) return allows(mr::usage::atomic_dst);
  if (item_.kind_ == transfer_kind::write) return allows(mr::usage::write_dst);
  if (item_.kind_ == transfer_kind::persist) return allows(mr::usage::flush_persistent);
  const bool flushes = item_.kind_ == transfer_kind::flush;
  return allows(mr::usage::read_src) || (flushes && allows(mr::usage::flush_visibility));
}

const char* refusal::missing_right() const noexcept {
  if (item_.is_atomic()) return "the peer did not allow atomic operations";
  if (item_.kind_ == transfer_kind::persist) return "the peer did not allow persistent flushes";
  return item_.kind_ == transfer_kind::write ? "the peer did not allow writing" : "the peer did not allow reading";
}

error refusal::explain(reason why) const {
  const capabilities& can = state_.properties();
  switch (why) {
    case reason::none:
      break;
    case reason::no_place:
      return *item_.failure_;
    case reason::wrong_thread:
      return error(errc::wrong_thread);
    case reason::ended:
      return state_.why_ended();
    case reason::no_atomics:
      return error(errc::not_supported, "this link has no atomic operations");
    case reason::no_answers:
      return error(errc::not_supported, "the peer answers no reads, flushes or atomic operations");
    case reason::no_immediate:
      return error(errc::not_supported, "this link carries no immediate data");
    case reason::no_invalidation:
      return error(errc::not_supported, "this link cannot revoke the peer's keys");
    case reason::too_large_key:
      return error(errc::invalid_argument,
                   fmt::format("the key to revoke, {:#x}, is larger than any that the peer opens for this connection",
                               *item_.how_.invalidate));
    case reason::no_device_memory:
      return error(errc::not_supported,
                   "this fabric cannot reach the peer's device memory; set connection_options::device_memory at both "
                   "ends");
    case reason::no_persistence:
      return error(errc::not_supported,
                   "persistent flushes of this connection need connection_options::persistent_flush at both ends");
    case reason::no_device_flush:
      return error(errc::not_supported,
                   "the peer's device makes that memory persistent, and this link cannot ask for it: it takes an RDMA "
                   "device with FLUSH, and rdma-core 46, at this end as well, and neither rails nor resume_within");
    case reason::no_device_atomics:
      return error(errc::not_supported, "there are no atomic operations on memory that the fabric does not reach");
    case reason::too_many_parts:
      return error(errc::invalid_argument, fmt::format("a scatter list of {} parts: at most {} are possible",
                                                       item_.parts().size(), max_parts(item_.kind_, can)));
    case reason::empty_list:
    case reason::empty_buffer:
    case reason::other_device:
    case reason::not_registered_for_it:
      return explain_memory(why, name_of(item_.kind_));
    case reason::too_large_for_link:
      return error(errc::message_too_large, fmt::format("this transport carries at most {} bytes", most_bytes()));
    case reason::too_large_for_peer:
      return error(errc::message_too_large,
                   fmt::format("the peer takes at most {} bytes, its receive_size", can.max_send_bytes));
    case reason::remote_rights:
      return error(errc::access_denied, missing_right());
    case reason::empty_flush:
      return error(errc::invalid_argument, "a flush needs a remote slice of at least one byte");
    case reason::other_size:
      return error(errc::invalid_argument,
                   fmt::format("the remote slice has another size, {} bytes", item_.remote_size_));
    case reason::misaligned:
      return error(errc::misaligned, "the remote address is not a multiple of 8");
    case reason::in_use:
      return mr::pin::why_not(item_.shared_ != nullptr ? *item_.shared_ : item_.owned_);
  }
  return error(errc::invalid_argument);
}

}  // namespace weft::net
