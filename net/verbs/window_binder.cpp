// SPDX-License-Identifier: Apache-2.0
#include <weft/net/verbs/window_binder.hpp>
#include <weft/net/verbs/words.hpp>
#include <weft/runtime/core/stop_shield.hpp>
#include <weft/runtime/offload.hpp>
#include <weft/runtime/with_timeout.hpp>

#include <algorithm>
#include <exception>
#include <utility>

namespace weft::net::verbs {
namespace {

int access_of(mr::usage uses) noexcept {
  int flags = 0;
  if (mr::overlaps(uses, mr::usage::read_src | mr::usage::flush_visibility)) flags |= IBV_ACCESS_REMOTE_READ;
  if (mr::overlaps(uses, mr::usage::write_dst)) flags |= IBV_ACCESS_REMOTE_WRITE;
  if (mr::overlaps(uses, mr::usage::atomic_dst)) flags |= IBV_ACCESS_REMOTE_ATOMIC;
  return flags;
}

}  // namespace

window_binder::window_binder(executor_core& home, endpoint& of, const domain& memory, const link_life& life,
                             send_queue& requests, owner& link) noexcept
    : home_(home), endpoint_(of), domain_(memory), life_(life), requests_(requests), owner_(link) {}

// Throws if the device has no windows that may be used. A region would let in every peer that guesses its key, for as
// long as the memory is registered. A window of type 1 lets them in as well, but only to the memory that is exposed to
// one of them, and only while it is exposed; so it may be used if the user allows it.
void window_binder::check_windows() const {
  const window_kind best = endpoint_.home().traits().windows;
  if (best == window_kind::none) {
    throw error(errc::not_supported, "this device has no memory windows: register a region, and send its key");
  }
  if (best == window_kind::type_1 && !endpoint_.home().options().allow_shared_windows) {  // mutant: lend to all peers
    throw error(errc::not_supported,
                "the keys of this device's memory windows work on all of its connections: if that is safe, set "
                "device_options::verbs.allow_shared_windows");
  }
}

task<exposed_place> window_binder::expose(mr::slice memory, mr::usage uses) {
  check_exposed_uses(uses);
  if (life_.has_ended()) throw error(errc::closed, "expose a buffer");
  check_windows();
  ++exposing_;
  struct guard {
    window_binder& self;
    ~guard() {
      --self.exposing_;
      self.exposed_.set();
    }
  } const counted{*this};
  weft::detail::promise_base& promise = co_await weft::detail::current_promise();
  try {
    co_return co_await bind(memory, uses);
  } catch (const error& why) {
    // The stop itself may have ended the link.
    if (promise.get_stop_token().stop_requested()) throw why.with_code(errc::canceled);
    throw;
  }
}

task<> window_binder::make_window(bound_window& window, std::span<std::byte> memory, mr::access rights) {
  bound_windows& all = endpoint_.windows();
  const auto work = [&all, &window, memory, rights] { all.make(window, memory, rights); };
  weft::detail::promise_base& promise = co_await weft::detail::current_promise();
  const weft::detail::stop_shield shield(promise);  // or a stop would leak the window
  co_await weft::detail::offload_for_resources(work);
}

// Lives while a coroutine waits for the request of a binding.
class window_binder::binding_wait {
 public:
  binding_wait(window_binder& all, binding& item) noexcept : all_(all), item_(item) {
    item_.wr = {};
    item_.ended.reset();
    item_.awaited = true;
    item_.done = false;
  }
  binding_wait(const binding_wait&) = delete;
  binding_wait& operator=(const binding_wait&) = delete;
  ~binding_wait() {
    if (item_.posted) all_.withdraw(item_);  // the coroutine is destroyed, so nobody waits for it any more
    item_.awaited = false;
    all_.binding_free_.set();
  }

 private:
  window_binder& all_;
  binding& item_;
};

// A window whose key the peer does not have yet. If expose() ends early, the window is revoked before its memory is
// released: synchronously if the frame of expose() is destroyed.
class window_binder::unfinished_window final : private revocation {
 public:
  explicit unfinished_window(bound_windows& all) : all_(all), window_(&all.add()) {}
  unfinished_window(const unfinished_window&) = delete;
  unfinished_window& operator=(const unfinished_window&) = delete;
  ~unfinished_window() {
    if (window_ != nullptr) all_.revoke_now(*window_);
  }

  [[nodiscard]] bound_window& get() const noexcept { return *window_; }
  /// Keeps the window, because the peer is about to get its key.
  void finish(std::uint32_t key, bool of_region) noexcept { std::exchange(window_, nullptr)->opened(key, of_region); }
  void begin_revoking() noexcept { all_.revoke(*window_, *this); }
  /// After begin_revoking().
  [[nodiscard]] event::wait_operation wait_until_revoked() noexcept { return revoked_.wait(); }

 private:
  [[nodiscard]] mr::region_pin take_pin() noexcept override { return {}; }  // the caller of expose() has the pin
  void revoked() noexcept override {
    window_ = nullptr;
    revoked_.set();
  }

  bound_windows& all_;
  bound_window* window_;
  event revoked_;
};

task<exposed_place> window_binder::bind(mr::slice memory, mr::usage uses) {
  const int flags = access_of(uses);
  mr::access rights = mr::access::bind_window;
  if ((flags & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) != 0) rights = rights | mr::access::local_write;
  ibv_mr* const region = domain_.find(*memory.record(), rights);
  if (region == nullptr) throw error(errc::access_denied, "the memory is not registered for a window with these uses");
  unfinished_window made(endpoint_.windows());
  std::exception_ptr failure;
  try {
    if (!made.get().is_made()) co_await make_window(made.get(), memory.bytes(), rights);
    const ibv_mw_bind_info what{.mr = region,
                                .addr = reinterpret_cast<std::uintptr_t>(memory.data()),
                                .length = memory.size(),  // mutant: bind a window to more
                                .mw_access_flags = static_cast<unsigned>(flags)};
    const std::uint32_t key = co_await bind(made.get(), what);
    made.finish(key, memory.record()->region != nullptr);
    co_return exposed_place(key, reinterpret_cast<std::uintptr_t>(memory.data()));
  } catch (...) {
    failure = std::current_exception();
  }
  weft::detail::promise_base& promise = co_await weft::detail::current_promise();
  const weft::detail::stop_shield shield(promise);
  made.begin_revoking();
  co_await made.wait_until_revoked();
  std::rethrow_exception(failure);
}

// Binds the window, and yields its key.
task<std::uint32_t> window_binder::bind(bound_window& made, ibv_mw_bind_info what) {
  while (!life_.has_ended() && (owner_.listens() || free_binding() == nullptr)) {
    binding_free_.reset();
    co_await binding_free_.wait();
  }
  if (life_.has_ended()) throw error(errc::closed, "bind a window");
  ibv_mw& window = made.window();
  const std::uint32_t key_before = window.rkey;
  if (made.own_region() != nullptr) what.mr = made.own_region();
  binding& item = *free_binding();
  const binding_wait waiting(*this, item);
  item.wr.opcode = IBV_WR_BIND_MW;
  item.wr.bind_mw.mw = &window;
  item.wr.bind_mw.rkey = ibv_inc_rkey(key_before);
  item.wr.bind_mw.bind_info = what;
  auto bound = wait_for(item);  // made before the request is posted, because it may throw, and a post cannot be undone
  item.posted = true;
  post_binding(item);
  co_await std::move(bound);
  // On rxe the caller has to set the key; with type 1 it also has to restore the key after a failure: ibv_bind_mw(3).
  window.rkey = item.done ? item.wr.bind_mw.rkey : key_before;
  if (!item.done) throw error(errc::connection_failed, "bind a window");
  co_return window.rkey;
}

window_binder::binding* window_binder::free_binding() noexcept {
  const auto is_free = [](const binding& item) { return !item.posted && !item.awaited; };
  const auto found = std::find_if(bindings_.begin(), bindings_.end(), is_free);
  return found != bindings_.end() ? &*found : nullptr;
}

// Waits until the bind has completed, because the device uses the window until then. That may take for ever if a
// message before the bind waits for a receive, so a stop waits for linger_time at most, then ends the link.
task<> window_binder::wait_for(binding& item) {
  try {
    co_await item.ended.wait();
    co_return;
  } catch (const error&) {  // stopped
  }
  weft::detail::promise_base& promise = co_await weft::detail::current_promise();
  const weft::detail::stop_shield shield(promise);
  try {
    co_await with_timeout(linger_time, item.ended.wait());
    co_return;
  } catch (...) {  // the bind has not completed in time
  }
  owner_.fail(
      weft::detail::make_error(errc::closed, "a task was stopped before the device had bound its memory window"));
  co_await item.ended.wait();
}

// A window of type 2 is bound by a request like any other; a window of type 1 by ibv_bind_mw(3), in the same order.
void window_binder::post_binding(binding& item) noexcept {
  const std::uint16_t mark = mark_of(item);
  if (endpoint_.home().traits().windows != window_kind::type_1) return requests_.post_own(item.wr, mark);
  owner_.ring_now();  // mutant: bind a window of type 1
  requests_.enter_own(mark);
  if (life_.is_broken()) return;
  ibv_mw& window = *item.wr.bind_mw.mw;
  item.wr.send_flags = IBV_SEND_SIGNALED;
  ibv_mw_bind wanted{
      .wr_id = requests_.tag() | mark, .send_flags = item.wr.send_flags, .bind_info = item.wr.bind_mw.bind_info};
  const int result = endpoint_.calls().bind_mw(endpoint_.pair(), &window, &wanted);
  if (result < 0) return owner_.fail(failure_of_post(-result, "bind a window"));
  requests_.handed_over_own();
  item.wr.bind_mw.rkey = window.rkey;
}

// Takes the request back, because it names the window, which is destroyed with the waiting coroutine. If the device has
// the request already, the request may fail there, which ends the link.
void window_binder::withdraw(binding& item) noexcept {
  if (!requests_.withdraw_own(item.wr, mark_of(item))) return;
  binding_ended(item, false);
  requests_.ring();  // for requests that have waited behind this one
  owner_.advance_end();
}

void window_binder::binding_ended(binding& item, bool done) noexcept {
  if (!std::exchange(item.posted, false)) return;
  binding_free_.set();
  if (item.invalidated != nullptr) return invalidation_ended(item, done);
  item.done = done;
  item.ended.set();
}

// Has the window invalidated, unless the peer has done so, or else deallocated. Works even while the link leaves,
// because the window stays bound until a worker has deallocated it, and the owner is about to release the memory.
void window_binder::revoke(std::uint64_t key, revocation& who) noexcept {
  const auto number = static_cast<std::uint32_t>(key);
  bound_windows& all = endpoint_.windows();
  bound_window* const item = endpoint_.home().traits().reuses_windows() ? all.find(number) : nullptr;
  if (item != nullptr && item->is_invalidated() && all.keep(*item)) return who.revoked();
  binding* const place = free_binding();
  if (item != nullptr && place != nullptr && can_invalidate(*item)) return begin_invalidating(*item, *place, who);
  all.revoke(number, who);
}

// Whether this end alone decides when an invalidation completes. Behind a request to the peer, the peer would decide
// when the memory is taken back. A region's window is deallocated instead, because the region may be released on a
// thread that cannot wait for completions.
bool window_binder::can_invalidate(const bound_window& item) const noexcept {
  const bool ending = life_.has_ended() || life_.is_shut_down() || life_.peer_has_left();
  if (ending || item.is_of_region() || item.is_invalidated() || !home_.on_own_thread()) return false;
  if (endpoint_.shares_receives()) return false;  // on_drained() covers one completion queue only
  return !requests_.depends_on_peer();
}

// A device may report an error if the peer has invalidated the window already, which the memory's owner may know before
// the link has seen the peer's message. So pending completions are polled first, and requests posted meanwhile wait.
void window_binder::begin_invalidating(bound_window& item, binding& place, revocation& who) noexcept {
  place.invalidated = &item;
  place.who = &who;
  place.posted = place.looks_first = looks_first_ = true;
  endpoint_.queue().tell_when_drained(requests_.tag());
}

void window_binder::drained() noexcept {
  looks_first_ = false;
  for (binding& item : bindings_) {
    if (std::exchange(item.looks_first, false)) invalidate(item);
  }
}

// Posts the invalidation, unless the peer has invalidated the window meanwhile, the link has ended, or the device waits
// for the peer. The request is signaled, because otherwise its completion would come with that of a later one.
void window_binder::invalidate(binding& item) noexcept {
  if (item.invalidated == nullptr) return;  // the invalidation was given up
  const bool by_peer = item.invalidated->is_invalidated();
  if (by_peer || life_.has_ended() || requests_.device_depends_on_peer()) return binding_ended(item, by_peer);
  item.wr = {};
  item.wr.opcode = IBV_WR_LOCAL_INV;
  item.wr.send_flags = IBV_SEND_SIGNALED;
  item.wr.invalidate_rkey = item.invalidated->window().rkey;
  requests_.post_own_first(item.wr, mark_of(item));
}

// Keeps the invalidated window for the next exposure. If it was not invalidated, or cannot be kept, has it deallocated.
void window_binder::invalidation_ended(binding& item, bool done) noexcept {
  bound_window& window = *std::exchange(item.invalidated, nullptr);
  revocation& who = *std::exchange(item.who, nullptr);
  bound_windows& all = endpoint_.windows();
  if (done && all.keep(window)) return who.revoked();
  all.revoke(window, who);
}

// ---- the end ----

void window_binder::give_up_invalidating() noexcept {
  for (binding& item : bindings_) {
    if (item.invalidated != nullptr) binding_ended(item, false);
  }
}

event::wait_operation window_binder::next_exposed() noexcept {
  for (binding& item : bindings_) binding_ended(item, false);
  binding_free_.set();
  exposed_.reset();
  return exposed_.wait();
}

}  // namespace weft::net::verbs
