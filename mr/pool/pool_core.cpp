// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/locked_memory.hpp>
#include <weft/mr/pool/poison.hpp>
#include <weft/mr/pool/pool_core.hpp>
#include <weft/mr/system/page.hpp>
#include <weft/runtime/report.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <exception>
#include <utility>

namespace weft::mr::detail {
namespace {

// How many blocks move between a cache and the depot at once: enough to make the lock cheap, at most 32 KiB.
constexpr std::size_t batch_of(std::size_t block_bytes) noexcept {
  return std::clamp<std::size_t>((std::size_t{32} << 10) >> (std::bit_width(block_bytes) - 1), 1, 32);
}

constexpr const char* name_of(budget which) noexcept { return which == budget::send ? "send" : "receive"; }

// A system without memory has some again soon, or not for a long time, so the pause grows.
constexpr duration pause_after(unsigned failures_in_a_row) noexcept {
  return std::min<duration>(std::chrono::milliseconds(1U << std::min(failures_in_a_row, 10U)), std::chrono::seconds(1));
}

// A task that waits so long probably waits for buffers that it holds itself.
constexpr duration patience = std::chrono::seconds(3);

// The stack of blocks that no executor caches.
constinit block_stack nobodys_stack;

std::uint64_t next_number() noexcept {
  static constinit std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

error pool_is_gone() { return {errc::closed, "allocate: the pool was destroyed meanwhile"}; }

}  // namespace

// ---- a shelf ----

constinit thread_local last_stacks last_used[2];

block_shelf::block_shelf(const std::array<std::size_t, budgets>& limits) : limits_(limits) {
  const auto most = [](std::size_t index) { return 2 * batch_of(class_bytes(index % cached_classes)); };
  std::size_t places = 0;
  for (std::size_t index = 0; index < no_stack; ++index) places += 1 + most(index);
  places_.resize(places);
  block** next_place = places_.data();
  for (std::size_t index = 0; index < no_stack; ++index) {
    block_stack& item = stacks_[index];
    item.bottom_ = item.end_ = next_place + 1;  // the place below the bottom is always null
    item.top_.store(item.bottom_, std::memory_order_relaxed);
    next_place = item.bottom_ + most(index);
  }
}

// A build that marks memory when it is taken and freed never opens a shelf: the slow path does the marking.
void block_shelf::open(std::size_t tag, const executor_core& user) noexcept {
  if constexpr (marks_free_memory) return;
  for (std::size_t i = 0; i < cached_classes; ++i) (&first(tag))[i].user_.store(&user, std::memory_order_relaxed);
}

void block_shelf::close(std::size_t tag) noexcept {
  for (std::size_t i = 0; i < cached_classes; ++i) {
    block_stack& item = (&first(tag))[i];
    item.user_.store(&item, std::memory_order_relaxed);
  }
}

block* block_shelf::pop(std::size_t index) noexcept {
  block_stack& from = stacks_[index];
  block** const top = from.top_.load(std::memory_order_relaxed);
  block* const item = top[-1];
  if (item != nullptr) from.top_.store(top - 1, std::memory_order_relaxed);
  return item;
}

bool block_shelf::push(std::size_t index, block& item) noexcept {
  block_stack& to = stacks_[index];
  block** const top = to.top_.load(std::memory_order_relaxed);
  if (top == to.end_ && !make_room(index)) return false;
  *top = &item;
  to.top_.store(top + 1, std::memory_order_relaxed);
  item.stack = &to;
  return true;
}

// Makes room for another batch, up to the limit; stacks that do not use their room give it up.
bool block_shelf::make_room(std::size_t index) noexcept {
  block_stack& of = stacks_[index];
  const std::size_t tag = index / cached_classes;
  const std::size_t bytes = class_bytes(index % cached_classes);
  const std::size_t batch = batch_of(bytes);
  const auto now = static_cast<std::size_t>(of.end_ - of.bottom_);
  std::size_t more = std::min(batch, 2 * batch - now);
  if (more * bytes > limits_[tag] - room_[tag]) reclaim(tag);
  more = std::min(more, (limits_[tag] - room_[tag]) / bytes);
  of.end_ += more;
  room_[tag] += more * bytes;
  return more != 0;
}

void block_shelf::reclaim(std::size_t tag) noexcept {
  for (std::size_t i = 0; i < cached_classes; ++i) {
    block_stack& item = (&first(tag))[i];
    block** const top = item.top_.load(std::memory_order_relaxed);
    room_[tag] -= static_cast<std::size_t>(item.end_ - top) * class_bytes(i);
    item.end_ = top;
  }
}

std::size_t block_shelf::count(std::size_t index) const noexcept {
  const block_stack& of = stacks_[index];
  return static_cast<std::size_t>(of.top_.load(std::memory_order_relaxed) - of.bottom_);
}

std::size_t block_shelf::bytes(std::size_t tag) const noexcept {
  std::size_t sum = 0;
  for (std::size_t i = 0; i < cached_classes; ++i) sum += count(tag * cached_classes + i) * class_bytes(i);
  return sum;
}

// ---- a cache ----

block_cache::~block_cache() {
  if (armed()) home_.disarm(*this);
  if (watch_.armed()) home_.disarm(watch_);
  if (!registered_) return;
  core_.flush(*this);
  core_.forget(*this);
}

void block_cache::run_on_executor() noexcept {
  const pool_core::orders todo = core_.run_mail(*this);
  if (todo.go) return home_.drop_attachment(&core_);
  if (todo.retry && !armed()) retry_after(*todo.retry);
}

void block_cache::expired() noexcept { core_.retry_growth(); }

void block_cache::retry_after(duration pause) noexcept {
  try {
    home_.arm(*this, later(home_.now(), pause));
  } catch (const std::bad_alloc&) {  // no memory for a timer: retry without a pause
    core_.retry_growth();
  }
}

void block_cache::look() noexcept {
  if (const auto next = core_.report_overdue(*this)) look_at(*next);
}

void block_cache::look_at(time_point when) noexcept {
  if (watch_.armed()) return;
  try {
    home_.arm(watch_, when);
  } catch (const std::bad_alloc&) {  // no memory for a timer: the wait is not reported
  }
}

// ---- the core ----

class pool_core::growth_job final : public background_job {
 public:
  growth_job(pool_core& core, budget_state& into, std::size_t bytes, bool whole) noexcept
      : core_(core), into_(into), bytes_(bytes), whole_(whole) {}
  void run() noexcept override { core_.grow(into_, bytes_, whole_); }

 private:
  pool_core& core_;
  budget_state& into_;
  std::size_t bytes_;
  bool whole_;
};

pool_core::pool_core(std::shared_ptr<domain> home, const pool_options& options)
    : number_(next_number()),
      domain_(std::move(home)),
      calls_(options.system_calls != nullptr ? *options.system_calls : system_calls::kernel()),
      huge_pages_(options.huge_pages),
      node_(options.numa_node.value_or(domain_->capabilities().numa_node)),
      gone_(std::make_exception_ptr(pool_is_gone())),
      budgets_{budget_state(*this, budget::send, direct_[0]), budget_state(*this, budget::receive, direct_[1])} {
  const auto refuse = [](const std::string& why) { throw error(errc::invalid_argument, "pool_options: " + why); };
  if (!(options.receive_fraction >= 0 && options.receive_fraction <= 1))
    refuse("receive_fraction is not between 0 and 1");
  std::size_t limit = options.max_bytes;
  // The other half is for the queues of connections and for exposed buffers, which rxe counts a second time.
  const auto locked = domain_->pins() ? locked_memory_limit() : std::nullopt;
  if (const std::size_t ours = locked ? *locked / 2 : limit; ours < limit) {
    max_bytes_reason_ = fmt::format(
        "the locked-memory limit is {} bytes (ulimit -l), of which the pool takes half instead of {}", *locked, limit);
    limit = ours;
  }
  if (limit < chunk_bytes || options.arena_bytes < chunk_bytes) {
    refuse(fmt::format("max_bytes {} and arena_bytes {} must be at least {}{}{}", limit, options.arena_bytes,
                       chunk_bytes, max_bytes_reason_.empty() ? "" : ": ", max_bytes_reason_));
  }
  const auto for_receive = static_cast<std::size_t>(std::floor(static_cast<double>(limit) * options.receive_fraction));
  budget_of(budget::receive).limit = round_down(std::min(for_receive, limit), chunk_bytes);
  budget_of(budget::send).limit = round_down(limit - budget_of(budget::receive).limit, chunk_bytes);
  for (budget_state& each : budgets_) {
    each.stock.arena_bytes = std::min(round_down(options.arena_bytes, chunk_bytes), each.limit);
  }
  if (!max_bytes_reason_.empty()) warn_of_limit(limit);
}

void pool_core::warn_of_limit(std::size_t limit) const {
  const std::string text =
      fmt::format("the pool on {} is limited to {} bytes: {}; raise that limit or lower pool_options::max_bytes",
                  domain_->name(), limit, max_bytes_reason_);
  report what;
  what.text = text;
  send_report(what);
}

// Runs `function` under the mutex, then performs the duties that it has noted. Once the mutex is released, another
// thread may delete the core, unless these duties include growing or deleting it.
template <class Function>
void pool_core::locked(Function function) noexcept {
  duties todo;
  {
    const std::lock_guard lock(mutex_);
    function(todo);
    todo.last = finished();
  }
  perform(this, todo);
}

void pool_core::perform(pool_core* core, duties& todo) noexcept {
  // All of these wait on this thread's executor, where nothing can destroy one meanwhile.
  while (!todo.served.empty()) todo.served.pop_front().finish();
  while (todo.retired != nullptr) {
    std::unique_ptr<carved_arena> item(todo.retired);
    todo.retired = item->next_retired;
    run_on_worker(std::move(item));
  }
  for (std::size_t i = 0; i < budgets; ++i) {
    if (todo.grow_bytes[i] == 0) continue;
    try {
      run_on_worker(std::make_unique<growth_job>(*core, core->budgets_[i], todo.grow_bytes[i], todo.grow_whole[i]));
    } catch (const std::bad_alloc& failure) {
      core->not_grown(core->budgets_[i], todo.grow_bytes[i], shortage::program, failure.what());
    }
  }
  if (todo.last) delete core;
}

// Exactly one caller sees this become true, because any later caller would still hold a block, or be a cache or a job.
bool pool_core::finished() const noexcept {
  return closed_ && jobs_ == 0 && caches_.empty() &&
         std::all_of(budgets_.begin(), budgets_.end(),
                     [](const budget_state& each) { return each.stock.arenas() == 0; });
}

pool_core& pool_core::of(const block& item) noexcept { return static_cast<pool_core&>(item.home->listener()); }

budget pool_core::which_budget(const depot& stock) const noexcept {
  return &stock == &budget_of(budget::send).stock ? budget::send : budget::receive;
}

// ---- taking and giving back ----

block* pool_core::take(std::size_t bytes, budget which, const std::source_location& where) noexcept {
  const auto tag = static_cast<std::size_t>(which);
  const bool cached = bytes <= largest_cached && !direct_[tag].load(std::memory_order_relaxed);
  block_cache* const cache = cached ? find_cache_here() : nullptr;
  block* item = cache != nullptr ? cache->shelf().pop(stack_of(tag, class_of(bytes))) : nullptr;
  if (item == nullptr) {
    locked([&](duties& todo) {
      budget_state& from = budget_of(which);
      if (!from.single.empty()) return;  // tasks that wait come first
      item = from.stock.take(bytes);
      if (item == nullptr) {
        if (from.stock.shares_arena(bytes)) want_arena(from, bytes, todo);
        return;
      }
      name_stack(*item, cache);
      const std::size_t size_class = item->home->size_class();
      for (std::size_t more = batch_of(item->capacity); cache != nullptr && more > 1; --more) {
        block* const another = from.stock.take_cut(size_class);
        if (another == nullptr) break;
        if (cache->shelf().push(another->home->stack(), *another)) continue;
        from.stock.give(*another);
        break;
      }
      grow_ahead(from, todo);
    });
  }
  if (item == nullptr) return nullptr;
  permit({item->data, item->capacity});
  item->home->note_taken(*item, where);
  return item;
}

void pool_core::name_stack(block& item, block_cache* cache) noexcept {
  const std::size_t index = item.home->stack();
  item.stack = cache != nullptr && index != no_stack ? &cache->shelf()[index] : &nobodys_stack;
}

// If the cache has no room for the block, half of the cached blocks of its size go back too, to make room for the next
// ones.
void pool_core::give(block& item) noexcept {
  spoil({item.data, item.capacity});
  item.home->note_freed(item);
  const std::size_t index = item.home->stack();
  const bool cached = index != no_stack && !direct_[index / cached_classes].load(std::memory_order_relaxed);
  block_cache* const cache = cached ? find_cache_here() : nullptr;
  if (cache != nullptr && cache->shelf().push(index, item)) return;
  locked([&](duties& todo) {
    for (std::size_t i = cache != nullptr ? cache->shelf().count(index) / 2 : 0; i > 0; --i) {
      put_back(*cache->shelf().pop(index), todo);
    }
    put_back(item, todo);
  });
}

void pool_core::put_back(block& item, duties& todo) noexcept {
  carved_arena& home = item.home->home();
  budget_state& to = budget_of(which_budget(home.home()));
  to.stock.give(item);
  const bool idle = home.idle();
  serve(to, todo);  // defect: leave who waits for a buffer
  if (idle) trim(to, todo);
}

// ---- caches ----

block_cache* pool_core::find_cache_here() noexcept {
  executor_core* const here = executor_core::current();
  if (here == nullptr) return nullptr;
  try {
    return find_or_attach_cache(*here);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

block_cache* pool_core::find_or_attach_cache(executor_core& here) {
  auto* cache = static_cast<block_cache*>(here.find_attachment(this));
  if (cache == nullptr) cache = attach_cache(here);
  if (cache == nullptr) return nullptr;
  for (std::size_t tag = 0; tag < budgets; ++tag) last_used[tag] = {number_, &cache->shelf().first(tag)};
  return cache;
}

std::unique_ptr<block_shelf> pool_core::make_shelf() {
  std::unique_ptr<block_shelf> item;
  locked([&](duties&) {
    item = std::move(idle_shelves_);
    if (item != nullptr) idle_shelves_ = std::move(item->next);
  });
  if (item != nullptr) return item;
  return std::make_unique<block_shelf>(std::array{cache_limit(budgets_[0]), cache_limit(budgets_[1])});
}

block_cache* pool_core::attach_cache(executor_core& here) {
  auto item = std::make_unique<block_cache>(*this, here, make_shelf());
  block_cache& cache = *item;
  here.attach(this, std::move(item));
  locked([&](duties&) {
    if (closed_) return;
    cache.registered_ = true;
    caches_.push_front(cache);
    // Waiters have asked all other caches for their blocks.
    bool wanted = false;
    for (const budget_state& each : budgets_) {
      if (each.direct.load()) {
        wanted = true;
      } else {
        cache.shelf().open(tag_of(each), here);
      }
    }
    if (wanted) request_flush(cache);
  });
  if (cache.registered_) return &cache;
  here.drop_attachment(this);
  return nullptr;
}

pool_core::orders pool_core::run_mail(block_cache& cache) noexcept {
  orders after;
  locked([&](duties& todo) {
    cache.mailed_ = false;
    after.go = closed_;
    if (std::exchange(cache.retry_requested_, false)) after.retry = pause_after(failures_in_a_row_);
    todo.served.splice_back(cache.served_);
    if (std::exchange(cache.flush_requested_, false)) take_all(cache, todo);
  });
  return after;
}

void pool_core::flush(block_cache& cache) noexcept {
  locked([&](duties& todo) { take_all(cache, todo); });
}

void pool_core::take_all(block_cache& cache, duties& todo) noexcept {
  for (std::size_t index = 0; index < no_stack; ++index) {
    while (block* const item = cache.shelf().pop(index)) put_back(*item, todo);
  }
}

void pool_core::forget(block_cache& cache) noexcept {
  locked([&](duties&) {
    caches_.remove(cache);
    for (std::size_t tag = 0; tag < budgets; ++tag) cache.shelf().close(tag);
    cache.shelf_->next = std::move(idle_shelves_);
    idle_shelves_ = std::move(cache.shelf_);
  });
}

void pool_core::set_direct(budget_state& of, bool direct) noexcept {
  of.direct.store(direct);
  for (block_cache& cache : caches_) {
    if (direct) {
      cache.shelf().close(tag_of(of));
    } else {
      cache.shelf().open(tag_of(of), cache.home_);
    }
  }
}

void pool_core::request_flush(budget_state& from) noexcept {
  if (from.direct.load()) return;
  set_direct(from, true);
  for (block_cache& cache : caches_) request_flush(cache);
}

void pool_core::request_flush(block_cache& cache) noexcept {
  cache.flush_requested_ = true;  // defect: what another executor keeps at hand
  mail(cache);
}

// The retry belongs to the executor of the first waiter, because that executor runs. When that waiter leaves, growth is
// tried at once for the next one, whose executor takes over the retry if that fails.
void pool_core::request_retry(budget_state& from) noexcept {
  block_cache& cache = *first_of(from)->cache_;
  cache.retry_requested_ = true;
  mail(cache);
}

void pool_core::mail(block_cache& cache) noexcept {
  if (!std::exchange(cache.mailed_, true)) cache.home_.submit(cache);
}

// ---- waiters ----

void pool_core::enqueue(allocate_request& waiter) {
  waiter.cache_ = find_or_attach_cache(waiter.home());
  if (waiter.cache_ == nullptr) throw pool_is_gone();
  if (waiter.gathers() && !direct_[static_cast<std::size_t>(waiter.budget_)].load()) take_at_hand(waiter);
  bool waits = false;
  locked([&](duties& todo) {
    budget_state& from = budget_of(waiter.budget_);
    waiter.place_ = allocate_request::place::queued;
    (waiter.gathers() ? from.gathering : from.single).push_back(waiter);
    ++from.waiting;
    const bool comes_first = is_first(from, waiter);
    const bool gave_some_back = !comes_first && put_back_gathered(from, waiter);
    if (comes_first || gave_some_back) serve(from, todo);
    waits = waiter.place_ == allocate_request::place::queued;
  });
  if (waits) waiter.cache_->look_at(later(waiter.home().now(), patience));
}

bool pool_core::withdraw(allocate_request& waiter) noexcept {
  bool withdrawn = false;
  locked([&](duties& todo) {
    if (waiter.place_ != allocate_request::place::queued) return;
    withdrawn = true;
    budget_state& from = budget_of(waiter.budget_);
    const bool held_up_others = is_first(from, waiter);
    const bool had_some = put_back_gathered(from, waiter);
    unlink(from, waiter);
    if (held_up_others || had_some) serve(from, todo);
    if (had_some) trim(from, todo);
  });
  return withdrawn;
}

void pool_core::abandon(allocate_request& waiter) noexcept {
  locked([&](duties&) {
    if (waiter.place_ != allocate_request::place::served) return;
    waiter.cache_->served_.remove(waiter);
  });
}

void pool_core::serve(budget_state& from, duties& todo) noexcept {
  while (!from.single.empty()) {
    allocate_request& waiter = from.single.front();
    waiter.block_ = from.stock.take(waiter.bytes_);
    if (waiter.block_ == nullptr) {
      if (!from.gathering.empty() && put_back_gathered(from, from.gathering.front())) continue;
      return wait_for_more(from, waiter.bytes_, todo);
    }
    hand_out(*waiter.block_, waiter);
    resolve(from, waiter, todo);
  }
  while (!from.gathering.empty()) {
    allocate_request& waiter = from.gathering.front();
    if (!gather(from, waiter)) return wait_for_more(from, waiter.bytes_, todo);
    for (block* item = waiter.block_; item != nullptr; item = item->next) hand_out(*item, waiter);
    resolve(from, waiter, todo);
  }
}

void pool_core::wait_for_more(budget_state& from, std::size_t bytes, duties& todo) noexcept {
  want_arena(from, bytes, todo);
  if (!from.growing) request_flush(from);
}

void pool_core::hand_out(block& item, const allocate_request& to) noexcept {
  name_stack(item, to.cache_);
  permit({item.data, item.capacity});
  item.home->note_taken(item, to.where_);
}

// Takes blocks that the waiter's own executor caches, without the mutex.
void pool_core::take_at_hand(allocate_request& waiter) noexcept {
  if (waiter.bytes_ > largest_cached) return;
  const std::size_t index = stack_of(static_cast<std::size_t>(waiter.budget_), class_of(waiter.bytes_));
  while (waiter.missing_ != 0) {
    block* const item = waiter.cache_->shelf().pop(index);
    if (item == nullptr) return;
    item->next = std::exchange(waiter.block_, item);
    --waiter.missing_;
  }
}

// True once it has all. Until then it does not own the blocks: waiters for one block may take them back.
bool pool_core::gather(budget_state& from, allocate_request& waiter) noexcept {
  while (waiter.missing_ != 0) {
    block* const item = from.stock.take(waiter.bytes_);
    if (item == nullptr) return false;
    item->next = std::exchange(waiter.block_, item);
    --waiter.missing_;
  }
  return true;
}

bool pool_core::put_back_gathered(budget_state& from, allocate_request& waiter) noexcept {
  if (waiter.block_ == nullptr) return false;
  while (waiter.block_ != nullptr) {
    from.stock.give(*std::exchange(waiter.block_, std::exchange(waiter.block_->next, nullptr)));
  }
  waiter.missing_ = waiter.count_;
  return true;
}

std::size_t pool_core::gathered_bytes(const budget_state& from) noexcept {
  std::size_t sum = 0;
  const block* item = !from.gathering.empty() ? from.gathering.front().block_ : nullptr;
  for (; item != nullptr; item = item->next) sum += item->capacity;
  return sum;
}

// A waiter of another thread may be destroyed there at any time, except under the mutex.
void pool_core::resolve(budget_state& from, allocate_request& waiter, duties& todo) noexcept {
  unlink(from, waiter);
  // defect: serve who waits for a buffer
  if (waiter.home().on_own_thread()) return todo.served.push_back(waiter);
  waiter.place_ = allocate_request::place::served;
  waiter.cache_->served_.push_back(waiter);
  mail(*waiter.cache_);
}

void pool_core::unlink(budget_state& from, allocate_request& waiter) noexcept {
  (waiter.gathers() ? from.gathering : from.single).remove(waiter);
  waiter.place_ = allocate_request::place::nowhere;
  --from.waiting;
  if (from.waiting != 0) return;
  from.reported = false;
  if (!closed_ && from.direct.load()) set_direct(from, false);
}

// ---- overdue waiters ----

// A waiter of this executor stays until the executor's next turn, even if another thread serves it meanwhile.
std::optional<time_point> pool_core::report_overdue(block_cache& cache) noexcept {
  const time_point now = cache.home_.now();
  std::array<const allocate_request*, budgets> overdue{};
  std::optional<time_point> next;
  locked([&](duties&) {
    for (budget_state& from : budgets_) {
      const allocate_request* oldest = nullptr;
      for (const auto* const queue : {&from.single, &from.gathering}) {
        for (const allocate_request& each : *queue) {
          if (each.cache_ == &cache && (oldest == nullptr || each.since() < oldest->since())) oldest = &each;
        }
      }
      if (oldest == nullptr) continue;
      const bool due = later(oldest->since(), patience) <= now;
      if (due && !std::exchange(from.reported, true)) overdue[tag_of(from)] = oldest;
      const time_point look = later(due ? now : oldest->since(), patience);
      next = std::min(next.value_or(look), look);
    }
  });
  for (const allocate_request* const waiter : overdue) {
    if (waiter != nullptr) report_overdue(*waiter, now - waiter->since());
  }
  return next;
}

void pool_core::report_overdue(const allocate_request& waiter, duration waited) noexcept try {
  budget_statistics full;
  std::vector<depot::taken_at> out;
  std::string failure;
  {
    const std::lock_guard lock(mutex_);
    full = statistics_of(waiter.budget_);
    out = budget_of(waiter.budget_).stock.taken();
    if (!budget_of(waiter.budget_).ahead) failure = last_failure_;
  }
  std::string text = fmt::format(
      "an allocation of {} at {}:{} has waited {:.1f} s for the {} budget of a pool of {}: {}", in_words(waiter),
      waiter.where_.file_name(), waiter.where_.line(), std::chrono::duration<double>(waited).count(),
      name_of(waiter.budget_), domain_->name(), to_string(full));
  for (const depot::taken_at& item : out) {
    text += fmt::format("; {} buffers, of {} bytes in all, were allocated at {}:{}", item.blocks, item.bytes, item.file,
                        item.line);
  }
  if (!failure.empty()) text += fmt::format("; another arena cannot be made: {}", failure);
  text +=
      "; tasks that hold buffers while they wait for more may wait for ever: let them free some first, or raise "
      "pool_options::max_bytes";
  waiter.warn(text);
} catch (const std::exception&) {  // nothing depends on it
}

// ---- arenas come and go ----

void pool_core::want_arena(budget_state& from, std::size_t bytes, duties& todo) noexcept {
  if (from.growing || closed_) return;
  const bool whole = !from.stock.shares_arena(bytes);
  const std::size_t needed =
      whole ? round_up(bytes, page_bytes()) : round_up(class_bytes(class_of(bytes)), chunk_bytes);
  const std::size_t wanted = whole ? needed : from.stock.arena_bytes;
  const std::size_t room = from.limit - from.committed;
  if (needed <= room)
    return start_growth(from, whole ? needed : std::min(wanted, round_down(room, chunk_bytes)), whole, todo);
  while (from.limit - from.committed + from.retiring < wanted) {
    carved_arena* const idle = from.stock.find_idle(0);
    if (idle == nullptr) return;
    retire(from, from.stock.remove(*idle), todo);
  }
}

// Has the next arena made when less than a quarter of one is left, before a task has to wait for it.
void pool_core::grow_ahead(budget_state& from, duties& todo) noexcept {
  const std::size_t left = from.stock.total_bytes() - from.stock.taken_bytes();
  if (left >= from.stock.arena_bytes / 4 || !from.ahead || from.growing || closed_) return;
  if (from.limit - from.committed < from.stock.arena_bytes) return;
  start_growth(from, from.stock.arena_bytes, false, todo);
}

void pool_core::start_growth(budget_state& from, std::size_t bytes, bool whole, duties& todo) noexcept {
  from.growing = true;
  from.committed += bytes;
  ++jobs_;
  const std::size_t index = tag_of(from);
  todo.grow_bytes[index] = bytes;
  todo.grow_whole[index] = whole;
}

void pool_core::grow(budget_state& into, std::size_t bytes, bool whole) noexcept {
  try {
    auto memory = std::make_unique<arena>(domain_, bytes, huge_pages_, node_, calls_);
    const mapping& got = memory->memory();
    placement where{got.pages(), got.pages_reason(), got.node(), got.node_reason()};
    grown(into, std::make_unique<carved_arena>(std::move(memory), into.stock, whole), std::move(where));
  } catch (const std::bad_alloc& failure) {
    not_grown(into, bytes, shortage::program, failure.what());
  } catch (const std::exception& failure) {
    not_grown(into, bytes, shortage::arena, failure.what());
  }
}

void pool_core::retry_growth() noexcept {
  locked([&](duties& todo) {
    for (budget_state& each : budgets_) serve(each, todo);
  });
}

void pool_core::grown(budget_state& into, std::unique_ptr<carved_arena> item, placement where) noexcept {
  locked([&](duties& todo) {
    into.growing = false;
    --jobs_;
    into.ahead = true;
    failures_in_a_row_ = 0;
    std::swap(last_placement_, where);
    if (closed_) return retire(into, std::move(item), todo);
    into.stock.add(std::move(item));
    serve(into, todo);
    trim(into, todo);
  });
}

// The error is made before the mutex is locked; if there is no memory for its text, it is std::bad_alloc.
void pool_core::not_grown(budget_state& into, std::size_t bytes, shortage of, const char* why) noexcept {
  std::string words;
  std::exception_ptr failure;
  try {
    words = why;
    failure = std::make_exception_ptr(no_arena(into, bytes, why));
  } catch (const std::bad_alloc&) {
    failure = std::current_exception();
  }
  locked([&](duties& todo) {
    into.growing = false;
    --jobs_;
    into.committed -= bytes;
    into.ahead = false;
    last_failure_.swap(words);
    ++failures_;
    ++failures_in_a_row_;
    if (first_of(into) == nullptr) return;
    // If part of the budget is in use, waiting makes sense, because it will be freed. But the waiters themselves may
    // hold it and free nothing before they get more, so growth is tried again as well. A waiter that gathers is about
    // to set up a connection, which fails in any case if the program has no memory.
    const bool fails_at_once = first_of(into)->gathers() && of == shortage::program;
    if (!fails_at_once && into.stock.taken_bytes() != gathered_bytes(into)) {
      request_flush(into);
      return request_retry(into);
    }
    allocate_request& waiter = *first_of(into);
    waiter.failure_ = std::move(failure);  // moved, because nobody waits until this thread drops a reference of its own
    const bool had_some = put_back_gathered(into, waiter);
    resolve(into, waiter, todo);
    serve(into, todo);
    if (had_some) trim(into, todo);
  });
}

error pool_core::no_arena(const budget_state& into, std::size_t bytes, std::string_view why) const {
  // If the registration failed with errc::no_memory, `why` ends with this message already.
  const std::string meaning = ": " + make_error_code(errc::no_memory).message();
  if (why.ends_with(meaning)) why.remove_suffix(meaning.size());
  return {
      errc::no_memory,
      fmt::format("allocate from the {} budget of a pool on {}, whose limit is {} bytes: cannot make an arena of {} "
                  "bytes: {}",
                  name_of(which_budget(into.stock)), domain_->name(), into.limit, bytes, why)};
}

// Keeps one idle arena, so that a load that comes and goes does not map and unmap all the time. When the load falls for
// good, caches are flushed, so that a few blocks in them do not keep the other arenas.
void pool_core::trim(budget_state& from, duties& todo) noexcept {
  bool load_went_down = false;
  while (carved_arena* const idle = from.stock.find_idle(closed_ ? 0 : 1)) {
    load_went_down = load_went_down || !idle->whole();
    retire(from, from.stock.remove(*idle), todo);
  }
  if (!load_went_down || closed_) return;
  for (block_cache& cache : caches_) request_flush(cache);
}

void pool_core::retire(budget_state& from, std::unique_ptr<carved_arena> item, duties& todo) noexcept {
  from.retiring += item->size();
  ++jobs_;
  item->next_retired = todo.retired;
  todo.retired = item.release();
}

void pool_core::retired(depot& home, std::size_t bytes) noexcept {
  locked([&](duties& todo) {
    budget_state& from = budget_of(which_budget(home));
    from.committed -= bytes;
    from.retiring -= bytes;
    --jobs_;
    serve(from, todo);
  });
}

void pool_core::report_leaks() const noexcept {
  if constexpr (!marks_free_memory) return;
  try {
    std::vector<depot::taken_at> out;
    {
      const std::lock_guard lock(mutex_);
      for (const budget_state& each : budgets_) {
        const auto some = each.stock.taken();
        out.insert(out.end(), some.begin(), some.end());
      }
    }
    for (const depot::taken_at& item : out) {
      const std::string text =
          fmt::format("a pool of {} was destroyed before {} of its buffers, of {} bytes, allocated at {}:{}",
                      domain_->name(), item.blocks, item.bytes, item.file, item.line);
      report what;
      what.text = text;
      send_report(what);
    }
  } catch (const std::exception&) {  // nothing depends on it
  }
}

void pool_core::close() noexcept {
  locked([&](duties& todo) {
    closed_ = true;
    for (budget_state& each : budgets_) {
      while (allocate_request* const waiter = first_of(each)) {
        put_back_gathered(each, *waiter);
        waiter->failure_ = gone_;
        resolve(each, *waiter, todo);
      }
      request_flush(each);
      trim(each, todo);
    }
    for (block_cache& cache : caches_) request_flush(cache);
  });
}

// ---- errors and statistics ----

error pool_core::impossible(std::size_t bytes, budget which) const {
  return {errc::invalid_argument,
          fmt::format("allocate {} bytes: the {} budget of the pool is limited to {} bytes{}{}", bytes, name_of(which),
                      limit(which), max_bytes_reason_.empty() ? "" : ", because ", max_bytes_reason_)};
}

error pool_core::impossible(std::size_t count, std::size_t bytes, budget which) const {
  return {
      errc::no_memory,
      fmt::format("allocate {} buffers of {} bytes: the {} budget of the pool is limited to {} bytes, which is room "
                  "for {}{}{}",
                  count, bytes, name_of(which), limit(which), most_blocks(bytes, which),
                  max_bytes_reason_.empty() ? "" : ", because ", max_bytes_reason_)};
}

std::string pool_core::in_words(const allocate_request& waiter) {
  if (!waiter.gathers()) return fmt::format("{} bytes", waiter.bytes_);
  return fmt::format("{} buffers of {} bytes", waiter.count_, waiter.bytes_);
}

error pool_core::canceled(const allocate_request& waiter) const {
  const auto full = [&] {
    const std::lock_guard lock(mutex_);
    return statistics_of(waiter.budget_);
  }();
  return {errc::canceled, fmt::format("allocate {} from the {} budget of a pool on {}: {}", in_words(waiter),
                                      name_of(waiter.budget_), domain_->name(), to_string(full))};
}

// Under the mutex.
budget_statistics pool_core::statistics_of(budget which) const noexcept {
  budget_statistics one;
  const budget_state& from = budget_of(which);
  one.max_bytes = from.limit;
  one.arenas = from.stock.arenas();
  one.arena_bytes = from.committed;
  for (const block_cache& cache : caches_) one.cached_bytes += cache.shelf_->bytes(static_cast<std::size_t>(which));
  // Caches change meanwhile.
  one.in_use_bytes = from.stock.taken_bytes() - std::min(from.stock.taken_bytes(), one.cached_bytes);
  one.waiting = from.waiting;
  return one;
}

pool_statistics pool_core::statistics() const {
  const std::lock_guard lock(mutex_);
  pool_statistics all;
  all.send = statistics_of(budget::send);
  all.receive = statistics_of(budget::receive);
  all.pages = last_placement_.pages;
  all.pages_reason = last_placement_.pages_reason;
  all.node = last_placement_.node;
  all.node_reason = last_placement_.node_reason;
  all.max_bytes_reason = max_bytes_reason_;
  all.failures = failures_;
  all.last_failure = last_failure_;
  return all;
}

void free_slowly(block& item) noexcept { pool_core::of(item).give(item); }

}  // namespace weft::mr::detail
