// SPDX-License-Identifier: Apache-2.0
#include <weft/net/link/checked.hpp>
#include <weft/net/link/find_workers.hpp>
#include <weft/net/verbs/bound_windows.hpp>
#include <weft/net/verbs/words.hpp>
#include <weft/runtime/error.hpp>

#include <exception>
#include <iterator>
#include <utility>

namespace weft::net::verbs {
namespace {

// Only the last eight bits of a key differ between bindings of a window. A limit below 256 keeps a revoked key from
// becoming valid again.
constexpr std::uint32_t most_bindings = 200;

}  // namespace

void bound_window::run() noexcept {
  all_.take_back(*this);
  end_last_use();
  all_.home_.submit(*this);
}

void bound_window::run_on_executor() noexcept { all_.ended(*this); }

void bound_window::opened(std::uint32_t key, bool of_region) noexcept {
  unkeyed_.key() = key;
  keyed_ = all_.keys_.insert(std::move(unkeyed_));
  of_region_ = of_region;
  ++bindings_;
}

bound_window& bound_windows::add() {
  bound_window::key_index places;
  places.emplace(0, nullptr);
  const std::lock_guard lock(mutex_);
  while (free_count_ != 0) {
    bound_window& kept = *free_[--free_count_];
    if (kept.now_ == bound_window::state::open) return kept;
  }
  bound_window& made = items_.emplace_back(*this);
  made.self_ = std::prev(items_.end());
  made.unkeyed_ = places.extract(places.begin());
  made.unkeyed_.mapped() = &made;
  return made;
}

bound_window* bound_windows::find(std::uint32_t key) noexcept {
  const auto found = keys_.find(key);
  if (found == keys_.end()) return nullptr;
  const std::lock_guard lock(mutex_);
  return found->second->now_ == bound_window::state::open ? found->second : nullptr;
}

void bound_windows::invalidated(std::uint32_t key) noexcept {
  if (bound_window* const item = find(key)) item->invalidated_ = true;
}

// Removes the window from keys_, if it is there.
void bound_windows::take_key(bound_window& item) noexcept {
  if (item.unkeyed_.empty()) item.unkeyed_ = keys_.extract(item.keyed_);
}

bool bound_windows::keep(bound_window& item) noexcept {
  const std::lock_guard lock(mutex_);
  const bool worn_out = item.bindings_ >= most_bindings || item.own_region_ != nullptr;
  if (free_count_ == most_free || worn_out || item.now_ != bound_window::state::open) return false;
  item.invalidated_ = false;
  take_key(item);
  free_[free_count_++] = &item;
  return true;
}

void bound_windows::make(bound_window& item, std::span<std::byte> memory, mr::access rights) {
  rdma_calls& library = device_.calls();
  ibv_mw* window = nullptr;
  const ibv_mw_type type = device_.traits().windows == window_kind::type_1 ? IBV_MW_TYPE_1 : IBV_MW_TYPE_2;
  checked(library.alloc_mw(device_.pd(), type, &window), "allocate a memory window");
  if (!device_.traits().checks_window_bounds) {
    unsigned flags = IBV_ACCESS_MW_BIND;
    if (includes(rights, mr::access::local_write)) flags |= IBV_ACCESS_LOCAL_WRITE;
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    const int registered =
        library.reg_mr(device_.pd(), memory.data(), memory.size(), address, flags, &item.own_region_);
    if (registered < 0) {
      library.dealloc_mw(window);
      throw failure_of_registration(-registered, "register the memory of a memory window");
    }
  }
  const std::lock_guard lock(mutex_);
  item.window_ = window;
  item.now_ = bound_window::state::open;
}

void bound_windows::revoke(std::uint32_t key, revocation& who) noexcept {
  const auto found = keys_.find(key);
  if (found == keys_.end()) return who.revoked();
  bound_window& item = *found->second;
  if (!is_gone(item)) return revoke(item, who);
  forget(item);
  who.revoked();
}

bool bound_windows::is_gone(const bound_window& item) noexcept {
  const std::lock_guard lock(mutex_);
  return item.now_ == bound_window::state::gone;
}

void bound_windows::revoke(bound_window& item, revocation& who) noexcept {
  worker_pool* const workers = find_workers(home_);
  begin(item, &who, workers);
  try {
    if (workers != nullptr) return workers->submit(item);
  } catch (const std::exception&) {  // there is no worker, and no memory for one
  }
  take_back(item);
  item.end_last_use();
  ended(item);
}

// If another revocation has begun, a worker still submits the window to the executor, which then notifies nobody.
void bound_windows::revoke_now(bound_window& item) noexcept {
  if (item.revoking_) {
    item.who_ = nullptr;
    return item.withdraw() ? item.run_here() : take_back(item);
  }
  begin(item, nullptr, nullptr);
  take_back(item);
  ended(item);
}

void bound_windows::begin(bound_window& item, revocation* who, worker_pool* workers) noexcept {
  ++revoking_;
  take_key(item);
  item.revoking_ = true;
  item.who_ = who;
  item.workers_ = workers;
  if (who != nullptr) item.begin_last_use(who->take_pin());
}

void bound_windows::take_back(bound_window& item) noexcept {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return item.now_ != bound_window::state::going; });
  if (item.now_ != bound_window::state::open) return;
  item.now_ = bound_window::state::going;
  lock.unlock();
  const int result = deallocate(item);
  if (result < 0) owner_.shut_out_peers(result);
  lock.lock();
  item.kept_ = result < 0;
  item.now_ = item.kept_ ? bound_window::state::open : bound_window::state::gone;  // destroy_all() tries again
  changed_.notify_all();
}

// Deallocates one window at a time, so that a thread that revokes one waits for that window alone. A window in the
// state `going` stays in the list until it is deallocated.
void bound_windows::destroy_all() noexcept {
  using state = bound_window::state;
  std::unique_lock lock(mutex_);
  for (;;) {
    bool some_open = false;
    bool some_going = false;
    for (bound_window& item : items_) {
      some_going = some_going || item.now_ == state::going;
      if (item.now_ != state::open) continue;
      some_open = true;
      item.now_ = state::going;
      lock.unlock();
      static_cast<void>(deallocate(item));  // the queue pair is destroyed next, which closes the window in any case
      lock.lock();
      item.now_ = state::gone;
      changed_.notify_all();
    }
    if (some_open) continue;  // others may have changed meanwhile
    if (!some_going) return;
    changed_.wait(lock);
  }
}

// A window of type 2 that could not be deallocated is closed with its queue pair. A window of type 1 is not: it stays
// open to the peers of all queue pairs, so the program ends, unless the device is gone.
int bound_windows::deallocate(const bound_window& item) noexcept {
  const int result = device_.calls().dealloc_mw(item.window_);
  if (result < 0 && device_.traits().windows == window_kind::type_1 && !has_gone(result)) {
    weft::detail::terminate_because("a memory window could not be deallocated, and peers may still use it");
  }
  if (result < 0) return result;
  if (item.own_region_ != nullptr) device_.calls().dereg_mr(item.own_region_);  // if it stays, peers cannot use it
  return 0;
}

// A window that the device has refused to deallocate stays for destroy_all().
void bound_windows::ended(bound_window& item) noexcept {
  revocation* const who = std::exchange(item.who_, nullptr);
  const bool kept = item.kept_;
  if (!kept) forget(item);
  if (kept) owner_.on_window_kept();
  if (who != nullptr) who->revoked();
  --revoking_;
  revoked_.set();
}

void bound_windows::forget(bound_window& item) noexcept {
  take_key(item);
  const std::lock_guard lock(mutex_);
  items_.erase(item.self_);
}

}  // namespace weft::net::verbs
