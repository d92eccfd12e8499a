// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/device/owner_keys.hpp>
#include <weft/mr/memory_record.hpp>
#include <weft/runtime/system/random.hpp>
#include <weft/runtime/system/system_calls.hpp>

#include <array>
#include <functional>
#include <new>

namespace weft::mr::detail {
namespace {

std::uint64_t draw_key() {
  std::uint64_t drawn = 0;
  while (drawn == 0) drawn = weft::detail::draw<std::uint64_t>(system_calls::kernel());
  return drawn;
}

bool allows(usage uses, usage purpose) noexcept {
  if (includes(uses, purpose)) return true;
  return purpose == usage::flush_visibility && includes(uses, usage::read_src);
}

bool is_within(const owner_keys::access& asked, std::size_t size) noexcept {
  return asked.offset <= size && asked.bytes <= size - asked.offset;
}

}  // namespace

owner_keys& owner_keys::of_process() noexcept {
  // Never destroyed, because static objects may own regions.
  alignas(owner_keys) static std::array<std::byte, sizeof(owner_keys)> room;
  static owner_keys& all = *::new (room.data()) owner_keys;
  return all;
}

std::uint64_t owner_keys::open(const opening& what) {
  for (;;) {
    const std::uint64_t key = draw_key();
    const std::lock_guard lock(mutex_);
    if (open_.try_emplace(key, entry{.what = what}).second) return key;
  }
}

bool owner_keys::begin_to_close(std::uint64_t key) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = open_.find(key);
  if (found == open_.end()) return false;
  found->second.closed = true;
  return found->second.uses != 0;
}

std::shared_ptr<memory_device> owner_keys::next_in_use(const memory_device* before) noexcept {
  const std::less<> precedes;
  const std::lock_guard lock(mutex_);
  std::shared_ptr<memory_device> next;
  for (const auto& [key, each] : open_) {
    const memory_device* const its = each.what.device.get();
    const bool is_nearer = next == nullptr || precedes(its, next.get());
    if (each.uses != 0 && precedes(before, its) && is_nearer) next = each.what.device;
  }
  return next;
}

void owner_keys::close(std::uint64_t key) noexcept {
  std::unique_lock lock(mutex_);
  const auto found = open_.find(key);
  if (found == open_.end()) return;
  entry& mine = found->second;
  mine.closed = true;
  unused_.wait(lock, [&] { return mine.uses == 0; });
  open_.erase(key);
}

std::shared_ptr<memory_device> owner_keys::device_of(std::uint64_t key, bool direct) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = open_.find(key);
  const bool is_there = found != open_.end() && !found->second.closed && (found->second.what.direct || !direct);
  return is_there ? found->second.what.device : nullptr;
}

owner_access owner_keys::begin(const access& asked, owner_key_use& use) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = open_.find(asked.key);
  if (found == open_.end() || found->second.closed) return owner_access::no_such_key;
  entry& mine = found->second;
  const opening& what = mine.what;
  const bool is_for_it = what.connection == any_connection || what.connection == asked.connection;
  if (!is_for_it || what.record->home != asked.home) return owner_access::no_such_key;
  if (!allows(what.uses, asked.purpose)) return owner_access::not_allowed;
  if (!is_within(asked, what.memory.size())) return owner_access::out_of_range;
  ++mine.uses;
  use = owner_key_use(
      *what.record, what.memory.subspan(static_cast<std::size_t>(asked.offset), static_cast<std::size_t>(asked.bytes)),
      asked.key);
  return owner_access::done;
}

void owner_keys::end(std::uint64_t key) noexcept {
  const std::lock_guard lock(mutex_);
  if (--open_.find(key)->second.uses == 0) unused_.notify_all();
}

void owner_key_use::reset() noexcept {
  if (record_ == nullptr) return;
  record_ = nullptr;
  owner_keys::of_process().end(key_);
}

}  // namespace weft::mr::detail
