// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/pool/poison.hpp>
#include <weft/mr/pool/pool_core.hpp>
#include <weft/runtime/report.hpp>
#include <weft/runtime/system/timer.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

namespace weft::mr::detail {
namespace {

// The pause grows, because a system without memory has some again either soon or not for a long time.
constexpr duration pause_after(unsigned failures_in_a_row) noexcept {
  return std::min<duration>(std::chrono::milliseconds(1U << std::min(failures_in_a_row, 10U)), std::chrono::seconds(1));
}

// A task that waits this long probably waits for buffers that it holds itself.
constexpr duration patience = std::chrono::seconds(3);

// The stack of blocks that have none on a shelf: it has no user, so free_block() leaves them to free_slowly().
constinit block_stack nobodys_stack;

std::uint64_t next_number() noexcept {
  static constinit std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

error pool_is_gone() { return {errc::closed, "allocate: the pool was destroyed meanwhile"}; }

void send_warning(const std::string& text) noexcept {
  report what;
  what.text = text;
  send_report(what);
}

}  // namespace

// A cache as an attachment of its executor, where its timers run too.
class pool_core::attached_cache final : public weft::detail::attachment,
                                        public block_cache,
                                        private weft::detail::timer {
 public:
  attached_cache(pool_core& core, executor_core& home, std::unique_ptr<block_shelf> shelf) noexcept
      : block_cache(home, std::move(shelf)), core_(core) {}
  ~attached_cache() override {
    if (armed()) home_.disarm(*this);
    if (watch_.armed()) home_.disarm(watch_);
    if (!registered) {
      core_.locked([this](duties&) { core_.caches_.discard(*this); });
      return;
    }
    core_.locked([this](duties& todo) { core_.take_all(*this, todo); });
    core_.locked([this](duties&) { core_.caches_.remove(*this); });
  }

  /// Has waits on this executor reported when they last too long.
  void watch_waits() noexcept { look_at(later(home_.now(), patience)); }

  bool registered = false;

 private:
  // The timer that looks for tasks that wait here for too long.
  class watch final : public weft::detail::timer {
   public:
    explicit watch(attached_cache& cache) noexcept : cache_(cache) {}

   private:
    void expired() noexcept override {
      if (const auto next = cache_.core_.report_overdue(cache_, cache_.home_.now())) cache_.look_at(*next);
    }
    attached_cache& cache_;
  };

  void run_on_executor() noexcept override {
    bool goes = false;
    std::optional<duration> retry_after;
    core_.locked([&](duties& todo) {
      const requests asked = open_mail(todo.served);
      goes = core_.closed_;
      if (asked.retry) retry_after = pause_after(core_.failures_in_a_row_);
      if (asked.flush) core_.take_all(*this, todo);
    });
    if (goes) return home_.drop_attachment(&core_);
    // Without memory for a timer, it retries without a pause.
    if (retry_after && !armed() && !home_.try_arm(*this, later(home_.now(), *retry_after))) expired();
  }
  void expired() noexcept override { core_.retry_growth(); }

  // Without memory for a timer, waits are not reported.
  void look_at(time_point when) noexcept {
    if (!watch_.armed()) static_cast<void>(home_.try_arm(watch_, when));
  }

  pool_core& core_;
  watch watch_{*this};
};

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
      limits_(*domain_, options),
      gone_(std::make_exception_ptr(pool_is_gone())),
      budgets_{budget_state(*this, budget::send, limits_), budget_state(*this, budget::receive, limits_)} {}

// Runs `function` under the mutex, then performs the duties that it has noted. Once the mutex is released, another
// thread may delete the core, unless the duties include making an arena or deleting the core.
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
  // All these waiters are on this thread's executor, where nothing can destroy one meanwhile.
  while (!todo.served.empty()) todo.served.pop_front().finish();
  if (!todo.arenas.empty()) carry_out(*core, todo.arenas);
  if (todo.last) delete core;
}

void pool_core::carry_out(pool_core& core, arena_supply::orders& arenas) noexcept {
  while (arenas.give_up != nullptr) {
    std::unique_ptr<carved_arena> item(arenas.give_up);
    arenas.give_up = item->next_retired;
    run_on_worker(std::move(item));
  }
  for (std::size_t i = 0; i < budgets; ++i) {
    const std::size_t bytes = arenas.make_bytes[i];
    if (bytes == 0) continue;
    budget_state& into = core.budgets_[i];
    try {
      run_on_worker(std::make_unique<growth_job>(core, into, bytes, arenas.make_whole[i]));
    } catch (const std::bad_alloc& failure) {
      core.not_grown(into, bytes, shortage::program, failure.what());
    }
  }
}

// Exactly one caller gets true, because any later caller would still hold a block, or be a cache or a job, and then the
// result is false.
bool pool_core::finished() const noexcept {
  return closed_ && caches_.empty() && std::all_of(budgets_.begin(), budgets_.end(), [](const budget_state& each) {
           return each.supply.committed() == 0;
         });
}

pool_core& pool_core::of(const block& item) noexcept { return static_cast<pool_core&>(item.home->listener()); }

// ---- taking and giving back ----

block* pool_core::take(std::size_t bytes, budget which, const std::source_location& where) noexcept {
  const bool cached = bytes <= largest_cached && !caches_.is_direct(which);
  block_cache* const cache = cached ? find_cache_here() : nullptr;
  block* item = cache != nullptr ? cache->shelf().pop(stack_of(which, class_of(bytes))) : nullptr;
  if (item == nullptr) {
    locked([&](duties& todo) {
      budget_state& from = budget_of(which);
      if (from.waiting.has_single()) return;  // tasks that wait come first
      item = from.take(bytes);
      if (item == nullptr) {
        if (!closed_ && from.shares_arena(bytes)) from.supply.want(bytes, todo.arenas);
        return;
      }
      name_stack(*item, cache);
      const std::size_t size_class = item->home->size_class();
      for (std::size_t more = batch_of(item->capacity); cache != nullptr && more > 1; --more) {
        block* const another = from.take_cut(size_class);
        if (another == nullptr) break;
        if (cache->shelf().push(another->home->stack(), *another)) continue;
        from.give(*another);
        break;
      }
      if (!closed_) from.supply.grow_ahead(todo.arenas);
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
  const bool cached = index != no_stack && !caches_.is_direct(item.home->home().home().which());
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
  auto& to = static_cast<budget_state&>(home.home());
  to.give(item);
  const bool idle = home.idle();
  if (to.waiting.size() != 0) serve(to, todo);  // mutant: leave who waits for a buffer
  if (idle) trim(to, todo);
}

void pool_core::take_all(block_cache& from, duties& todo) noexcept {
  for (std::size_t index = 0; index < no_stack; ++index) {
    while (block* const item = from.shelf().pop(index)) put_back(*item, todo);
  }
}

// ---- caches ----

pool_core::attached_cache* pool_core::find_cache_here() noexcept {
  executor_core* const here = executor_core::current();
  if (here == nullptr) return nullptr;
  try {
    return find_or_attach_cache(*here);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

pool_core::attached_cache* pool_core::find_or_attach_cache(executor_core& here) {
  auto* cache = static_cast<attached_cache*>(here.find_attachment(this));
  if (cache == nullptr) cache = attach_cache(here);
  if (cache == nullptr) return nullptr;
  for (const budget which : all_budgets) last_used[index_of(which)] = {number_, &cache->shelf().first(which)};
  return cache;
}

// An executor caches an eighth of a budget at most.
pool_core::attached_cache* pool_core::attach_cache(executor_core& here) {
  std::unique_ptr<block_shelf> shelf;
  locked([&](duties&) { shelf = caches_.reuse_shelf(); });
  if (shelf == nullptr) {
    shelf = std::make_unique<block_shelf>(std::array{limits_.of(budget::send) / 8, limits_.of(budget::receive) / 8});
  }
  std::unique_ptr<attached_cache> item;
  try {
    item = std::make_unique<attached_cache>(*this, here, std::move(shelf));
  } catch (const std::bad_alloc&) {
    locked([&](duties&) { caches_.keep_shelf(std::move(shelf)); });
    throw;
  }
  attached_cache& cache = *item;
  here.attach(this, std::move(item));
  locked([&](duties&) {
    if (closed_) return;
    cache.registered = true;
    caches_.add(cache);
  });
  if (cache.registered) return &cache;
  here.drop_attachment(this);
  return nullptr;
}

// ---- waiters ----

void pool_core::enqueue(allocate_request& waiter) {
  attached_cache* const cache = find_or_attach_cache(waiter.home());
  if (cache == nullptr) throw pool_is_gone();
  waiter.cache_ = cache;
  if (waiter.gathers() && !caches_.is_direct(waiter.budget_)) take_at_hand(waiter);
  bool waits = false;
  locked([&](duties& todo) {
    budget_state& from = budget_of(waiter.budget_);
    from.waiting.push(waiter);
    const bool comes_first = from.waiting.is_first(waiter);
    const bool gave_some_back = !comes_first && from.waiting.put_back(waiter);
    if (comes_first || gave_some_back) serve(from, todo);
    waits = waiter.place_ == allocate_request::place::queued;
  });
  if (waits) cache->watch_waits();
}

bool pool_core::withdraw(allocate_request& waiter) noexcept {
  bool withdrawn = false;
  locked([&](duties& todo) {
    if (waiter.place_ != allocate_request::place::queued) return;
    withdrawn = true;
    budget_state& from = budget_of(waiter.budget_);
    const bool held_up_others = from.waiting.is_first(waiter);
    const bool had_some = from.waiting.put_back(waiter);
    unlink(from, waiter);
    if (held_up_others || had_some) serve(from, todo);
    if (had_some) trim(from, todo);
  });
  return withdrawn;
}

void pool_core::abandon(allocate_request& waiter) noexcept {
  locked([&](duties&) {
    if (waiter.place_ == allocate_request::place::served) block_cache::withdraw(waiter);
  });
}

void pool_core::serve(budget_state& from, duties& todo) noexcept {
  while (allocate_request* const waiter = from.waiting.first()) {
    if (from.waiting.fill(*waiter)) {
      for (block* item = waiter->block_; item != nullptr; item = item->next) hand_out(*item, *waiter);
      resolve(from, *waiter, todo);
    } else if (waiter->gathers() || !from.waiting.put_back_gathered()) {
      if (!closed_) from.supply.want(waiter->bytes_, todo.arenas);
      if (!from.supply.grows()) caches_.make_direct(from.which());
      return;
    }
  }
}

void pool_core::hand_out(block& item, const allocate_request& to) noexcept {
  name_stack(item, to.cache_);
  permit({item.data, item.capacity});
  item.home->note_taken(item, to.where_);
}

// Takes blocks that the waiter's own executor caches, without the mutex.
void pool_core::take_at_hand(allocate_request& waiter) noexcept {
  if (waiter.bytes_ > largest_cached) return;
  const std::size_t index = stack_of(waiter.budget_, class_of(waiter.bytes_));
  allocation_queue::fill(waiter, [&] { return waiter.cache_->shelf().pop(index); });
}

// A waiter of another thread may be destroyed there as soon as the mutex is released.
void pool_core::resolve(budget_state& from, allocate_request& waiter, duties& todo) noexcept {
  unlink(from, waiter);
  // mutant: serve who waits for a buffer
  if (waiter.home().on_own_thread()) return todo.served.push_back(waiter);
  waiter.place_ = allocate_request::place::served;
  waiter.cache_->send(waiter);
}

void pool_core::unlink(budget_state& from, allocate_request& waiter) noexcept {
  from.waiting.remove(waiter);
  if (from.waiting.size() == 0 && !closed_) caches_.allow(from.which());
}

// Keeps one idle arena, so that a load that comes and goes does not map and unmap all the time. When the load falls for
// good, caches are flushed, so that a few blocks in them do not keep the other arenas.
void pool_core::trim(budget_state& from, duties& todo) noexcept {
  const bool load_went_down = from.supply.trim(closed_ ? 0 : 1, todo.arenas);
  if (load_went_down && !closed_) caches_.ask_for_blocks();
}

void pool_core::close() noexcept {
  locked([&](duties& todo) {
    closed_ = true;
    for (budget_state& each : budgets_) {
      while (allocate_request* const waiter = each.waiting.first()) {
        each.waiting.put_back(*waiter);
        waiter->failure_ = gone_;
        resolve(each, *waiter, todo);
      }
      caches_.make_direct(each.which());
      trim(each, todo);
    }
    caches_.ask_for_blocks();
  });
}

// ---- arenas are made and freed ----

void pool_core::grow(budget_state& into, std::size_t bytes, bool whole) noexcept {
  try {
    auto memory = std::make_unique<arena>(domain_, bytes, huge_pages_, node_, calls_);
    const mapping& got = memory->memory();
    placement where{got.pages(), got.pages_reason(), got.node(), got.node_reason()};
    grown(into, std::make_unique<carved_arena>(std::move(memory), into, whole), std::move(where));
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
    into.supply.made();
    failures_in_a_row_ = 0;
    std::swap(last_placement_, where);
    if (closed_) return into.supply.give_up(std::move(item), todo.arenas);
    into.add(std::move(item));
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
    into.supply.not_made(bytes);
    last_failure_.swap(words);
    ++failures_;
    ++failures_in_a_row_;
    allocate_request* const waiter = into.waiting.first();
    if (waiter == nullptr) return;
    // If part of the budget is in use, waiting makes sense, because it will be freed. But the waiters themselves may
    // hold it and free nothing before they get more, so growth is tried again as well. A waiter that gathers is about
    // to set up a connection, which fails in any case if the program has no memory.
    const bool fails_at_once = waiter->gathers() && of == shortage::program;
    if (!fails_at_once && into.taken_bytes() != into.waiting.gathered_bytes()) {
      caches_.make_direct(into.which());
      // The retry belongs to the executor of the first waiter, because that executor runs. When that waiter leaves,
      // growth is tried at once for the next waiter, whose executor takes over the retry if that attempt fails.
      return waiter->cache_->ask_for_retry();
    }
    // Moved, so that this thread keeps no reference to the exception: nobody waits until such a reference has ended.
    waiter->failure_ = std::move(failure);
    const bool had_some = into.waiting.put_back(*waiter);
    resolve(into, *waiter, todo);
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
                  name_of(into.which()), domain_->name(), limits_.of(into.which()), bytes, why)};
}

void pool_core::retired(depot& home, std::size_t bytes) noexcept {
  locked([&](duties& todo) {
    auto& from = static_cast<budget_state&>(home);
    from.supply.given_up(bytes);
    serve(from, todo);
  });
}

// ---- reports, errors and statistics ----

// Reports tasks that have waited for too long on the executor of `cache`, where it is called. Returns when to look
// again, if a task waits. A waiter of this executor is not destroyed before the executor's next turn, even if another
// thread serves it meanwhile.
std::optional<time_point> pool_core::report_overdue(const block_cache& cache, time_point now) noexcept {
  std::array<const allocate_request*, budgets> overdue{};
  std::optional<time_point> next;
  locked([&](duties&) {
    for (budget_state& each : budgets_) {
      const allocate_request* const oldest = each.waiting.oldest_of(cache);
      if (oldest == nullptr) continue;
      const bool due = later(oldest->since(), patience) <= now;
      if (due && each.waiting.may_report()) overdue[index_of(each.which())] = oldest;
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
    out = budget_of(waiter.budget_).taken();
    if (budget_of(waiter.budget_).supply.has_failed()) failure = last_failure_;
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

void pool_core::report_leaks() const noexcept {
  if constexpr (!marks_free_memory) return;
  try {
    std::vector<depot::taken_at> out;
    {
      const std::lock_guard lock(mutex_);
      for (const budget_state& each : budgets_) {
        const auto some = each.taken();
        out.insert(out.end(), some.begin(), some.end());
      }
    }
    for (const depot::taken_at& item : out) {
      send_warning(fmt::format("a pool of {} was destroyed before {} of its buffers, of {} bytes, allocated at {}:{}",
                               domain_->name(), item.blocks, item.bytes, item.file, item.line));
    }
  } catch (const std::exception&) {  // nothing depends on it
  }
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
  const budget_state& from = budget_of(which);
  budget_statistics one;
  one.max_bytes = limits_.of(which);
  one.arenas = from.arenas();
  one.arena_bytes = from.supply.committed();
  one.pending_bytes = from.supply.committed() - from.total_bytes();
  one.cached_bytes = caches_.bytes(which);
  // Executors change their caches without the mutex, so cached_bytes may exceed what is taken.
  one.in_use_bytes = from.taken_bytes() - std::min(from.taken_bytes(), one.cached_bytes);
  one.waiting = from.waiting.size();
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
  all.max_bytes_reason = limits_.reason();
  all.failures = failures_;
  all.last_failure = last_failure_;
  return all;
}

void free_slowly(block& item) noexcept { pool_core::of(item).give(item); }

}  // namespace weft::mr::detail
