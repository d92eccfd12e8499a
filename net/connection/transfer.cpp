// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/region/region_state.hpp>
#include <weft/net/connection/operation_owner.hpp>
#include <weft/net/connection/transfer.hpp>

#include <fmt/core.h>

#include <array>
#include <cassert>
#include <variant>

namespace weft::net {

const char* name_of(transfer_kind kind) noexcept {
  constexpr std::array names{"send", "write", "read", "flush", "fetch_add", "compare_swap", "persistent flush"};
  static_assert(names.size() == static_cast<std::size_t>(transfer_kind::persist) + 1);
  return names[static_cast<std::size_t>(kind)];
}

transfer::transfer(transfer&& other) noexcept
    : operation_base(static_cast<operation_base&&>(other)),
      owner_(other.owner_),
      spent_(other.spent_),
      kind_(other.kind_),
      borrowed_(other.borrowed_),
      is_list_(other.is_list_),
      role_(other.role_),
      is_behind_owner_(other.is_behind_owner_),
      is_staged_(other.is_staged_),
      owned_(std::move(other.owned_)),
      shared_(other.shared_),
      pin_(std::move(other.pin_)),
      one_(other.one_),
      several_(other.several_),
      remote_key_(other.remote_key_),
      remote_address_(other.remote_address_),
      remote_size_(other.remote_size_),
      remote_usage_(other.remote_usage_),
      counter_(other.counter_),
      how_(other.how_),
      operand_(other.operand_),
      compare_(other.compare_),
      failure_(std::move(other.failure_)) {
  assert(other.state_ == state::idle);
  if (other.names_.count != 0) names_ = other.names_;
  other.spent_ = true;
}

void transfer::destroy_early() noexcept {
  if (batch_ != nullptr) detail::terminate_because("a member of a batch was destroyed while the batch is in progress");
  owner_->abandon(*this);
}

[[gnu::noinline]] void transfer::hold_regions() noexcept {
  if (std::exchange(holds_, true)) return;
  for (const mr::slice& part : parts()) mr::region_pin::hold(part);
}

[[gnu::noinline]] void transfer::let_regions_go() noexcept {
  if (!std::exchange(holds_, false)) return;
  for (const mr::slice& part : parts()) mr::region_pin::release(part);
}

void transfer::give_back(const sink& memory) noexcept {
  if (const auto* const taken = std::get_if<sink::consumed>(&memory.memory_)) *taken->from = std::move(owned_);
}

// Out of line, to keep the path of the other kinds of memory short.
[[gnu::noinline]] void transfer::share(const mr::shared_buffer& memory) noexcept {
  one_ = memory.slice();
  pin_ = memory.share();
}

void transfer::aim(const mr::remote_slice& where) noexcept {
  remote_size_ = where.size();
  remote_usage_ = where.usage();
  if (owner_ == nullptr) return;
  if (const auto named = owner_->find(where, names_, failure_)) [[likely]] {
    remote_key_ = named->key;
    remote_address_ = named->address;
  } else {
    aim_beyond(where);
  }
  if (where.counter() != 0) [[unlikely]]
    aim_at_counted(where);
}

void transfer::aim_at_counted(const mr::remote_slice& where) noexcept {
  if (kind_ != transfer_kind::write && !is_atomic()) return;
  std::optional<error> why_not;
  if (!owner_->has_to_tell(why_not)) return;
  counter_ = where.counter();
  if (role_ == role::usual) role_ = role::told;
  if (!failure_) failure_ = std::move(why_not);
}

// Aims at memory that only its owner reaches, by copying. For other memory, failure_ keeps the reason why the memory
// has no name.
void transfer::aim_beyond(const mr::remote_slice& where) noexcept {
  const mr::remote_place* const place = where.on(mr::place_behind_owner);
  if (place == nullptr || where.allows(mr::usage::flush_persistent)) return;  // no owner's key, or one just for flushes
  failure_.reset();
  names_.count = 0;
  aim_at_owner(where);
}

// Without a place_behind_owner the transfer has no rights to the memory, and is refused for that reason.
void transfer::aim_at_owner(const mr::remote_slice& where) noexcept {
  remote_size_ = where.size();
  remote_usage_ = where.usage();
  is_behind_owner_ = is_staged_ = true;
  const mr::remote_place* const place = where.on(mr::place_behind_owner);
  if (place == nullptr) {
    remote_usage_ = mr::usage::none;
    return;
  }
  remote_key_ = place->key;
  remote_address_ = place->address;
}

// Aims at the owner's key if the owner makes the memory persistent, or at the fabric's if the owner's device does.
void transfer::aim_to_persist(const mr::remote_slice& where) noexcept {
  const bool by_device = where.on(mr::place_behind_owner) == nullptr && where.allows(mr::usage::flush_persistent);
  by_device ? aim(where) : aim_at_owner(where);
}

void transfer::aim_at(std::uint64_t key, std::uint64_t address, std::uint64_t bytes, const peer_names& names) noexcept {
  remote_key_ = key;
  remote_address_ = address;
  remote_size_ = bytes;
  if (names.count != 0) names_ = names;
}

std::string transfer::describe() const {
  if (!has_memory()) return fmt::format("{}, {}", name_of(kind_), peer_of(owner_));
  return fmt::format("{} of {} bytes, {}", name_of(kind_), bytes(), peer_of(owner_));
}

taken transfer::take_now(weft::detail::promise_base& waiter) noexcept {
  return owner_ != nullptr ? owner_->take_now(*this, waiter) : taken::no;
}

void transfer::begin() {
  if (owner_ == nullptr) [[unlikely]]
    return fail_without_owner();
  owner_->start(*this);
}

void transfer::fail_without_owner() {
  failure_ = moved_from_connection();
  let_go();
  finish();
}

void transfer::cancel() noexcept { owner_->stop(*this); }

void transfer::throw_failure() const {
  if (failure_) throw *failure_;
  throw error(errc::canceled, std::string(name_of(kind_)) + ": stopped before it began");
}

std::uint64_t transfer::value() const {
  if (failure_) throw *failure_;
  if (!is_atomic() || !previous_value_)
    throw error(errc::invalid_argument, "read value() of an operation that is not atomic, or has not completed");
  return *previous_value_;
}

}  // namespace weft::net
