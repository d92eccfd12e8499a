// SPDX-License-Identifier: Apache-2.0
#include "keys.hpp"

#include <weft/mr/system/page.hpp>
#include <weft/runtime/error.hpp>

#include <sys/mman.h>

#include <cerrno>
#include <thread>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

namespace weft::toy {

struct key_table::slot {
  std::atomic<std::uint32_t> key{0};  // 0: closed
  std::atomic<std::uint32_t> users{0};
  // Constant while the key is there.
  opening what;
  mr::detail::write_counter_core* counter = nullptr;  // constant once it is enabled
  std::atomic<bool> enabled{false};
  // Under the mutex: whose slot it is, also once the peer has closed it.
  std::uint32_t owner = 0;
};

key_table::key_table() : slots_(std::make_unique<slot[]>(slot_count)) {
  free_.reserve(slot_count);
  for (std::size_t i = slot_count; i-- > 0;) free_.push_back(static_cast<std::uint32_t>(i));
}

key_table::~key_table() = default;

key_table::slot& key_table::slot_of(std::uint32_t key) const noexcept { return slots_[key % slot_count]; }

std::uint32_t key_table::open(const opening& what) {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) throw error(errc::no_memory, "toy: the table of keys is full");
  const std::uint32_t place = free_.back();
  slot& item = slots_[place];
  std::uint32_t key = 0;
  while (key < slot_count) key = (static_cast<std::uint32_t>(random_()) << slot_bits) | place;
  free_.pop_back();
  item.what = what;
  item.counter = nullptr;
  item.enabled.store(what.enabled);
  item.owner = key;
  item.key.store(key);
  return key;
}

void key_table::count_writes(std::uint32_t key, mr::detail::write_counter_core& counter) noexcept {
  const std::lock_guard lock(mutex_);
  if (key != 0 && slot_of(key).owner == key) slot_of(key).counter = &counter;
}

void key_table::enable(std::uint32_t key) noexcept {
  const std::lock_guard lock(mutex_);
  if (key != 0 && slot_of(key).owner == key) slot_of(key).enabled.store(true);
}

void key_table::erase(std::uint32_t key) noexcept {
  slot& item = slot_of(key);
  {
    const std::lock_guard lock(mutex_);
    if (item.owner != key) return;
    item.owner = 0;
  }
  item.key.store(0);
  while (item.users.load() != 0) std::this_thread::yield();
  const std::lock_guard lock(mutex_);
  free_.push_back(key % slot_count);  // has room for all of them
}

bool key_table::invalidate(std::uint32_t key, end_id end) noexcept {
  slot& item = slot_of(key);
  item.users.fetch_add(1);
  const bool possible = key != 0 && item.key.load() == key && item.what.end == end;
  if (possible) item.key.compare_exchange_strong(key, 0);
  item.users.fetch_sub(1);
  return possible;
}

key_table::access::access(key_table& table, std::uint32_t key, std::uint64_t address, std::uint64_t bytes,
                          mr::access right, end_id end) noexcept
    : slot_(table.slot_of(key)) {
  slot_.users.fetch_add(1);
  if (key == 0 || slot_.key.load() != key) return;
  const opening& what = slot_.what;
  if (!slot_.enabled.load() || (what.gate != nullptr && !what.gate->open.load())) return;
  if (what.end != every_end && what.end != end) return;
  if (!mr::includes(what.rights, right)) return;
  if (address < what.address || address - what.address > what.memory.size()) return;
  const std::uint64_t from = address - what.address;
  if (bytes > what.memory.size() - from) return;
  memory_ = what.memory.subspan(from, bytes);
  granted_ = true;
}

void key_table::access::count() const noexcept {
  mr::detail::write_counter_core* const counter = slot_.what.gate != nullptr ? slot_.what.gate->counter : slot_.counter;
  if (counter != nullptr) counter->add();
}

key_table::access::~access() { slot_.users.fetch_sub(1); }

// ---- the domain ----

namespace {

constexpr mr::domain_capabilities abilities{
    .usages = mr::usage::send | mr::usage::recv | mr::usage::read_src | mr::usage::read_dst | mr::usage::write_src |
              mr::usage::write_dst | mr::usage::atomic_dst | mr::usage::bind_window | mr::usage::flush_visibility |
              mr::usage::flush_persistent,
    .iova = true,
    .zero_based = true,
    .disabled = true,
    .gates = true,
};

constexpr mr::access rights_of_peers = mr::access::remote_read | mr::access::remote_write | mr::access::remote_atomic;

std::uint32_t key_of(const mr::registration& item) noexcept { return static_cast<std::uint32_t>(item.remote_key); }

// The first page and the last: what tests take away is all of a mapping, or its end.
void check_there(std::span<const std::byte> memory, mr::usage uses) {
  constexpr mr::usage writing = mr::usage::recv | mr::usage::read_dst | mr::usage::write_dst | mr::usage::atomic_dst;
  const std::size_t page = mr::detail::page_bytes();
  const auto begin = reinterpret_cast<std::uintptr_t>(memory.data());
  for (const std::uintptr_t at : {begin, begin + memory.size() - 1}) {
    // An address of what should be mapped. NOLINTNEXTLINE(performance-no-int-to-ptr)
    void* const where = reinterpret_cast<void*>(at / page * page);
    const int how = mr::overlaps(uses, writing) ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;
    if (::madvise(where, page, how) == 0 || errno == EAGAIN) continue;
    throw system_error(EFAULT, "register memory on toy that is not there for " + to_string(uses));
  }
}

}  // namespace

domain::domain() : mr::domain("toy", abilities) {}

mr::registration domain::do_register(std::span<std::byte> memory, const mr::registration_options& options) {
  check_there(memory, options.usage);
  mr::registration item;
  item.address = options.zero_based ? 0 : options.iova.value_or(reinterpret_cast<std::uintptr_t>(memory.data()));
  const mr::access rights = mr::rights_for(options.usage) & rights_of_peers;
  if (rights != mr::access::none) {
    item.remote_key =
        keys_.open({.memory = memory, .address = item.address, .rights = rights, .enabled = !options.disabled});
  }
  return item;
}

void domain::do_deregister(mr::registration& item) noexcept {
  if (key_of(item) != 0) keys_.erase(key_of(item));
}

void domain::do_count_writes(const mr::registration& item, mr::detail::write_counter_core& counter) {
  keys_.count_writes(key_of(item), counter);
}

void domain::do_enable(const mr::registration& item) { keys_.enable(key_of(item)); }

}  // namespace weft::toy
