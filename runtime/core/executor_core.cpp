// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/core/executor_list.hpp>
#include <weft/runtime/core/shared_signal.hpp>
#include <weft/runtime/core/turn_watch.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/report.hpp>
#include <weft/runtime/trace.hpp>
#include <weft/runtime/worker_pool.hpp>

#include <pthread.h>

#include <cassert>
#include <chrono>
#include <limits>
#include <thread>

namespace weft::detail {

struct debugger_layout;

}  // namespace weft::detail

// Naming weft_debugger_layout here links debugger_layout.cpp into every program with an executor.
extern "C" const weft::detail::debugger_layout weft_debugger_layout;
[[gnu::used]] static const weft::detail::debugger_layout* const kept_for_debuggers = &weft_debugger_layout;

namespace weft {
namespace {

// Bounded batches: the most that one source may do in a turn before the next source is served.
constexpr std::size_t ready_batch = 256;
constexpr std::size_t timer_batch = 64;
constexpr std::size_t io_batch = 64;
constexpr std::size_t mail_batch = 256;
// The most resumptions before the next source is served, counting the coroutines that others leave in next_to_resume.
constexpr std::size_t longest_run = 4096;
// With fewer resumptions, a turn may also resume the coroutines that have become ready in it: takes_more().
constexpr std::size_t short_run = 64;
// While spinning, the clock is read after this many looks at the queues, because reading it takes longer than a look.
constexpr unsigned looks_per_clock_look = 4;
// An executor that another loop drives, and that never sleeps, reads the clock once in this many turns, or more often
// while a timer is armed.
constexpr std::uint64_t turns_per_clock_look = 64;
// How often pollers that may lose events are polled while the executor sleeps.
constexpr duration safety_poll_period = std::chrono::milliseconds(500);
// A thread that has not looked at its timers for so long has slept, or was kept from its work. Then timers that are
// late by more than longest_delay wait for what else has come, as long again as they are late, but no longer than
// longest_patience: has_caught_up(). The turns of a thread that is merely busy are shorter.
constexpr duration shortest_absence = std::chrono::milliseconds(20);
constexpr duration longest_delay = std::chrono::milliseconds(1);
constexpr duration longest_patience = std::chrono::milliseconds(100);
// The most looks for that in a turn, and the most turns in which timers wait although the clock stands.
constexpr int looks_when_late = 4;
constexpr unsigned turns_when_late = 64;

}  // namespace

std::uint64_t detail::this_thread_number() noexcept {
  static constinit std::atomic<std::uint64_t> last{0};
  static constinit thread_local std::uint64_t mine = 0;
  if (mine == 0) mine = ++last;
  return mine;
}

constinit thread_local executor_core* executor_core::current_ = nullptr;

// Writes a dump when its signal comes, and makes the other executors with that signal write theirs, because only one of
// them can read it.
class executor_core::dump_watch final : public detail::shared_signal, private detail::remote_work {
 public:
  dump_watch(executor_core& home, int signal) : shared_signal(signal), home_(home) {}

 private:
  void came() noexcept override {
    ask_others();
    write();
  }
  void ask_others() noexcept {
    detail::listed_executor::for_each([this](executor_core& other) {
      dump_watch* const its = other.dump_watch_.get();
      if (its == nullptr || its == this || its->signal() != signal()) return;
      if (its->is_watched() && !its->asked_.exchange(true, std::memory_order_acquire)) other.submit(*its);
    });
  }
  void run_on_executor() noexcept override {
    asked_.store(false, std::memory_order_release);
    if (is_watched()) write();
  }
  void write() const noexcept {
    report what;
    what.kind = report_kind::dump;
    try {
      const std::string text = home_.dump();
      what.text = text;
      send_report(what);
    } catch (const std::bad_alloc&) {
      what.text = "weft: no memory for a dump\n";
      send_report(what);
    }
  }

  executor_core& home_;
  // Set by another executor. True: this object is in our mailbox. False, read with acquire: the mailbox is done with
  // it.
  std::atomic<bool> asked_{false};
};

namespace {

// Has a turn_watch measure the time of each task that the loop resumes while this object lives.
class watching {
 public:
  watching(detail::turn_watch*& current, detail::turn_watch& watch) noexcept : current_(current) { current = &watch; }
  watching(const watching&) = delete;
  watching& operator=(const watching&) = delete;
  ~watching() { current_ = nullptr; }

 private:
  detail::turn_watch*& current_;
};

}  // namespace

executor_core::executor_core(executor_options options)
    : time_(options.clock != nullptr ? *options.clock : clock::steady()),
      calls_(options.system_calls != nullptr ? options.system_calls : &system_calls::kernel()),
      workers_(options.workers != nullptr ? options.workers : &worker_pool::shared()),
      policy_(options.clock != nullptr ? poll_policy::sleep : options.policy),
      stall_limit_(options.stall_limit),
      window_(options.max_spin),
      driver_(options.simulated_driver),
      ready_(options.ready_order_seed) {
  detail::reserve_errors();
  // A child that is forked within a task may run an executor of its own.
  static const int failed = ::pthread_atfork(nullptr, nullptr, [] { current_ = nullptr; });
  if (failed != 0) throw std::bad_alloc();
  if (driver_ == nullptr) {
    owned_driver_ = open_driver(options.driver, *calls_, &driver_reason_);
    driver_ = owned_driver_.get();
  }
  if (options.dump_on_signal != 0) dump_watch_ = std::make_unique<dump_watch>(*this, options.dump_on_signal);
  attach(&detail::listed_executor::key, std::make_unique<detail::listed_executor>(*this));
}

executor_core::~executor_core() {
  drop_attachment(&detail::listed_executor::key);  // first: from now on no other executor asks for a dump
  end();
  while (!mail_.empty()) run_all_mail();  // mail that mail has sent: nobody would run it later
  if (has_dependents() && !birthplace_.is_parents()) {
    detail::terminate_because(
        "an executor was destroyed before a connection, listener, stream or shared receives that belong to it: destroy "
        "these first");
  }
  while (!attachments_.empty()) attachments_.pop_back();  // youngest first, because it may depend on the older ones
  mail_.await_visitors(birthplace_);
  assert(ready_.empty() && "an executor ended with tasks that could go on");
  assert(late_.empty() && "an executor ended with work that was put off");
  assert(pollers_.empty() && "an executor ended with pollers attached");
}

void executor_core::end() noexcept {
  mail_.close();
  mail_.await_visitors(birthplace_);
  run_all_mail();
}

void executor_core::background_observer::failed(std::exception_ptr, const char*, std::source_location) noexcept {
  assert(false && "background work does not throw");
  ended();
}

detail::root_observer& executor_core::begin_background() {
  check_thread("run work in the background of another executor");
  ++background_.outstanding;
  return background_;
}

void executor_core::attach_thread() {
  check_thread("run an executor on a second thread");
  if (thread_.load(std::memory_order_relaxed) != 0) return;
  driver_->attach_thread();
  thread_.store(detail::this_thread_number(), std::memory_order_relaxed);
}

// Prepares the loop to serve again after a rest or a sleep: wakes up, reads the clock, and watches the dump's signal.
void executor_core::go_on() noexcept {
  if (std::exchange(activity_, activity::serving) == activity::asleep) wake_up();
  time_.read();
  if (dump_watch_ != nullptr) dump_watch_->watch(*driver_);
}

// Stops watching descriptors and the dump's signal when the loop comes to rest, because the executor may then be
// destroyed on another thread.
void executor_core::unwatch_all() noexcept {
  if (dump_watch_ != nullptr) dump_watch_->unwatch();
  pollers_.unwatch(*driver_);
}

// True on the executor's thread, and on every thread until the first run() or step() decides which one it is.
bool executor_core::belongs_to_this_thread() const noexcept {
  return thread_.load(std::memory_order_relaxed) == 0 || runs_on_this_thread();
}

void executor_core::check_thread(const char* what) const {
  if (!belongs_to_this_thread()) throw error(errc::wrong_thread, what);
}

// Flattened, because most turns resume one task, and would spend their time on entering and leaving functions. The
// functions with loops are kept out of line, so that the rest has enough registers.
[[gnu::flatten]] void executor_core::run_until(const bool& done) {
  if (is_over(done)) return;
  for (;;) {
    const bool watched = stall_limit_ != duration::zero() || detail::current_trace() != nullptr;
    const bool busy = watched ? watched_turn(done) : turn(done);
    if (busy && is_over(done)) return;  // only a resumed coroutine can end the run
    if (!busy && (policy_ == poll_policy::sleep || !spin())) sleep();
  }
}

[[gnu::noinline]] bool executor_core::watched_turn(const bool& done) {
  detail::turn_watch watch(time_.source(), stall_limit_, counters_.stalls);
  const watching guard(watch_, watch);
  return turn(done);
}

// Runs one turn of run(). False if there is nothing left to do but to wait.
bool executor_core::turn(const bool& done) {
  const bool busy = serve_all();
  if (is_over(done)) return true;
  if (!busy && !work_waits()) return false;
  if (kernel_look_is_due()) {
    driver_->poll(io_batch);
  } else {
    driver_->hand_over(io_batch);
  }
  return true;
}

bool executor_core::kernel_look_is_due() noexcept {
  if (!kernel_looks_.is_due(counters_.resumed.get())) return false;
  if (kernel_looks_.is_for_the_clock()) time_.read();
  return true;
}

// Serves every source but the kernel, each within its bound; their order matters little, but timers that are late come
// after what is there by then: has_caught_up(). The kernel follows, together with the wait if there is nothing else to
// do, so that one system call both hands operations over and waits for them. True if a poller was busy, so there may be
// more.
bool executor_core::serve_all() {
  counters_.turns.add(1);
  if (mail_.seems_full()) run_mail(mail_batch);
  if (!ready_.empty()) serve_ready();
  const bool busy = !pollers_.empty() && pollers_.poll() != 0;
  if (busy && !ready_.empty()) resume_ready(longest_run);
  if (!late_.empty()) run_late();
  if (!timers_.empty()) expire_timers();
  time_.grow_old();
  return busy;
}

[[gnu::noinline]] void executor_core::run_late() noexcept {
  late_.run();
  if (!ready_.empty()) resume_ready(longest_run);
}

void executor_core::submit(detail::remote_work& work) noexcept {
  const detail::mailbox::visitor here(mail_);
  mail_.push(work);
  wake();  // mutant: lose the wake-up of another executor
}

bool executor_core::submit_unless_ended(detail::remote_work& work) noexcept {
  const detail::mailbox::visitor here(mail_);
  const bool open = !mail_.is_closed();
  if (open) submit(work);
  return open;
}

// Only the thread that clears the flag pays for the wake-up.
void executor_core::wake() noexcept {
  if (!sleeping_.load(std::memory_order_seq_cst) || !sleeping_.exchange(false, std::memory_order_seq_cst)) return;
  outer_loop* const outer = outer_.load(std::memory_order_seq_cst);
  outer != nullptr ? outer->wake() : driver_->wake();
}

void executor_core::withdraw(detail::remote_work& work) noexcept {
  assert(belongs_to_this_thread() || has_ended());
  while (!mail_.remove(work)) std::this_thread::yield();
}

[[gnu::noinline]] void executor_core::run_mail(std::size_t budget) noexcept {
  if (!mail_.has_taken()) mail_.take();
  for (; budget > 0; --budget) {
    detail::remote_work* const work = mail_.pop();
    if (work == nullptr) return;
    counters_.mail.add(1);
    work->run_on_executor();
  }
}

// Runs all mail that has come so far; some of the mail that is sent meanwhile may be left, so that a run() ends also
// while mail sends itself again.
void executor_core::run_all_mail() noexcept {
  run_mail(std::numeric_limits<std::size_t>::max());  // what is in the inbox already
  run_mail(std::numeric_limits<std::size_t>::max());
}

// Resumes the coroutines that are ready. Most turns find one, for which the path is shorter.
void executor_core::serve_ready() noexcept {
  if (ready_.size() != 1 || watch_ != nullptr) return resume_ready(longest_run);
  const auto resume = [](detail::promise_base& each) { each.handle().resume(); };
  const std::size_t budget = resume_chain(ready_.pop(), longest_run, resume);
  counters_.resumed.add(longest_run - budget);
  if (takes_more(budget)) return resume_ready(budget);
  gives_way_ = false;
}

// Resumes the coroutines that are ready. If they are few, it goes on with those that have become ready meanwhile,
// because the rest of a turn costs more than a task's step.
[[gnu::noinline, gnu::flatten]] void executor_core::resume_ready(std::size_t budget) noexcept {
  const std::size_t left = watch_ == nullptr
                               ? resume_batches(budget, [](detail::promise_base& each) { each.handle().resume(); })
                               : resume_batches(budget, [this](detail::promise_base& each) { watch_->resume(each); });
  counters_.resumed.add(budget - left);
  gives_way_ = false;
}

// Whether another batch may run before the rest of the turn: not if pollers, late work or a yielding task wait for it.
bool executor_core::takes_more(std::size_t budget) const noexcept {
  return !ready_.empty() && late_.empty() && pollers_.empty() && !gives_way_ && budget > longest_run - short_run;
}

template <class Resume>
std::size_t executor_core::resume_batches(std::size_t budget, Resume resume) noexcept {
  do {
    std::size_t batch = std::min(ready_.size(), ready_batch);
    do {
      budget = resume_chain(ready_.pop(), budget, resume);
    } while (--batch != 0 && budget != 0);
  } while (takes_more(budget));
  return budget;
}

// Resumes `first`, then the coroutine that each leaves in next_to_resume; returns what is left of the budget.
template <class Resume>
std::size_t executor_core::resume_chain(detail::promise_base& first, std::size_t budget, Resume resume) noexcept {
  detail::promise_base* each = &first;
  for (;;) {
    resume(*each);
    --budget;
    each = detail::next_to_resume;
    if (each == nullptr) return budget;
    detail::next_to_resume = nullptr;
    if (budget != 0) continue;
    ready_.push(*each);
    broken_off_ = ready_.pushed();
    return 0;
  }
}

[[gnu::noinline]] void executor_core::expire_timers() noexcept {
  const time_point time = time_.read_once();
  const time_point before = std::exchange(timers_seen_, time);
  const time_point deadline = timers_.next_deadline();
  if (deadline > time) {
    patience_end_ = {};
    return;
  }
  // A timer that was due at the last look already, or when it was armed, has not waited for this thread.
  const bool was_away = time - before >= shortest_absence && before < deadline && deadline < time - longest_delay;
  if (was_away && patience_end_ == time_point()) {
    patience_end_ = time + std::min(time - deadline, longest_patience);
    patient_turns_ = 0;
  }
  if (patience_end_ != time_point()) {
    if (!has_caught_up()) return;
    patience_end_ = {};
  }
  timers_.expire(timers_seen_, timer_batch);
}

// Serves what has come while this thread was kept from its work, because timers take for silence what nobody has read.
// False if there may be more, so that the timers wait for the next turn; true if nothing is left, if nothing has come
// for so long that the tasks which are ready are ready for ever, or if the timers have waited long enough: a thread
// that is merely busy is never done. Few completions do not mean that there is no more: a link takes a bounded number
// of bytes or records at each look, and counts as one.
[[gnu::noinline]] bool executor_core::has_caught_up() noexcept {
  bool nothing_came = true;
  for (int looks = 0; looks < looks_when_late; ++looks) {
    // First what has ended by itself: beside that, an epoll driver does not ask the kernel.
    std::size_t found = driver_->hand_over(io_batch);
    found += driver_->poll(io_batch);
    found += pollers_.poll();
    if (found == 0 && !work_waits()) return true;
    nothing_came = nothing_came && found == 0 && mail_.empty();
    if (mail_.seems_full()) run_mail(mail_batch);
    if (!ready_.empty()) resume_ready(longest_run);
    if (!late_.empty()) run_late();
    timers_seen_ = time_.read();
    if (timers_seen_ >= patience_end_) return true;
  }
  return nothing_came || ++patient_turns_ == turns_when_late;
}

// Looks at the kernel in a spin: beside pollers, whose completions matter most, as seldom as in turns with other work.
// True if that has completed something.
bool executor_core::spin_driver() noexcept {
  return (pollers_.empty() || kernel_look_is_due()) && driver_->spin(io_batch) != 0;
}

// Looks for work without sleeping; true if there is any, or the policy forbids sleeping.
[[gnu::noinline]] bool executor_core::spin() {
  const bool always = policy_ == poll_policy::spin;
  const duration window = always ? window_.longest() : window_.next();
  if (!always && window == duration::zero()) return false;
  if (spin_driver() || work_waits()) return true;
  const time_point start = time_.peek();
  for (time_point time = start; time - start < window; time = time_.peek()) {
    for (unsigned looks = 0; looks < looks_per_clock_look; ++looks) {
      const bool found = pollers_.poll() != 0 || spin_driver() || work_waits();
      if (found) {
        window_.found_after(time - start);
        return true;
      }
    }
    if (!timers_.empty() && timers_.next_deadline() <= time) return true;
  }
  if (!always) window_.found_nothing();
  return always;
}

// This order makes a lost wake-up impossible: arm the pollers and publish sleeping_, look at everything once more, and
// only then wait. Anything that comes after that look wakes the driver.
void executor_core::sleep() {
  if (fall_asleep()) {
    wait();
  } else {
    driver_->poll(io_batch);
  }
  wake_up();
}

// Publishes that the executor sleeps, then looks for work once more; false if there is some.
bool executor_core::fall_asleep() noexcept {
  if (!pollers_.empty()) return fall_asleep_beside_pollers();
  sleeping_.store(true, std::memory_order_seq_cst);
  return mail_.empty();
}

[[gnu::noinline]] bool executor_core::fall_asleep_beside_pollers() noexcept {
  pollers_.arm();
  sleeping_.store(true, std::memory_order_seq_cst);
  if (pollers_.poll() != 0 || work_waits()) return false;
  pollers_.watch(*driver_);
  return true;
}

void executor_core::wake_up() noexcept {
  sleeping_.store(false, std::memory_order_relaxed);
  if (!pollers_.empty()) pollers_.disarm();
}

void executor_core::wait() {
  counters_.sleeps.add(1);
  if (policy_ == poll_policy::adaptive || !timers_.empty() || pollers_.may_lose_events() || keeps_many_frames()) {
    return wait_by_the_clock();
  }
  driver_->wait(io_batch, std::nullopt);
  time_.read();
}

// Whether to wake up in time to give frames back. Never under a simulated driver: its program alone wakes the executor.
bool executor_core::keeps_many_frames() const noexcept {
  return detail::idle_frames::are_many() && owned_driver_ != nullptr;
}

[[gnu::noinline]] void executor_core::wait_by_the_clock() {
  const bool measure = policy_ == poll_policy::adaptive;
  const bool may_give_back = keeps_many_frames();
  const time_point start = now();  // tasks have run since the last look at the clock
  std::optional<duration> limit = time_to_sleep(start);
  if (may_give_back) limit = std::min(limit.value_or(detail::idle_frames::period), detail::idle_frames::period);
  driver_->wait(io_batch, limit);
  const duration slept = time_.read() - start;
  if (measure) window_.slept(slept);
  if (may_give_back) idle_frames_.slept(slept);
}

// Flattened like run_until(): most steps serve one operation.
[[gnu::flatten]] std::optional<duration> executor_core::step(const bool& interrupted) {
  constexpr int turns_per_step = 16;
  attach_thread();
  const entered guard(this);
  const bool slept = activity_ == activity::asleep;
  if (activity_ != activity::serving) go_on_stepping();
  bool found = false;
  bool busy = true;
  for (int turn = 0; busy && turn < turns_per_step; ++turn) {
    const bool watched = stall_limit_ != duration::zero() || detail::current_trace() != nullptr;
    busy = watched ? watched_step_turn(interrupted) : step_turn(interrupted);
    found = found || busy;
    if (interrupted) break;
  }
  if (found && idle_gap_.has_begun()) idle_gap_.end(time_.read(), slept, window_);
  if (busy || (has_work() && spins_on())) return duration::zero();
  if (!fall_asleep() || !driver_->prepare_wait()) {
    wake_up();
    return duration::zero();
  }
  activity_ = activity::asleep;
  counters_.sleeps.add(1);
  if (!has_work()) unwatch_all();
  return time_between_steps();
}

[[gnu::noinline]] void executor_core::go_on_stepping() noexcept {
  go_on();
  idle_frames_.wake_up(time_.recent());
}

// The longest time until the next step(); empty: no limit. Without work there may be no next step, so frames are given
// back at once.
[[gnu::noinline]] std::optional<duration> executor_core::time_between_steps() noexcept {
  const time_point start = now();
  const std::optional<duration> limit = time_to_sleep(start);
  if (!keeps_many_frames()) return limit;
  if (!has_work()) {
    detail::idle_frames::give_back();
    return limit;
  }
  idle_frames_.fall_asleep(start);
  return std::min(limit.value_or(detail::idle_frames::period), detail::idle_frames::period);
}

executor_core* executor_core::driven_here() noexcept {
  executor_core* found = nullptr;
  detail::listed_executor::for_each([&found](executor_core& each) {
    if (each.is_driven() && each.runs_on_this_thread()) found = &each;
  });
  return found;
}

void executor_core::drive_from(outer_loop* loop) noexcept {
  outer_.store(loop, std::memory_order_seq_cst);
  // A thread that may still use the former loop counts as a visitor; any other has yet to look, and finds the new loop.
  mail_.await_visitors(birthplace_);
}

[[gnu::noinline]] bool executor_core::watched_step_turn(const bool& interrupted) {
  detail::turn_watch watch(time_.source(), stall_limit_, counters_.stalls);
  const watching guard(watch_, watch);
  return step_turn(interrupted);
}

// Runs one turn of step(). False if there is nothing left to do but to wait. The look at the kernel comes last, so that
// the executor may sleep after a turn that has served something. While handlers of the other loop add work, the look is
// as rare as beside work of our own, so that the operations that they start now complete together.
bool executor_core::step_turn(const bool& interrupted) {
  if (counters_.turns.get() % turns_per_clock_look == 0) time_.read();
  const bool busy = serve_all();
  if ((busy || interrupted || work_waits()) && !kernel_look_is_due()) {
    if (!interrupted) driver_->hand_over(io_batch);
    return true;
  }
  kernel_looks_.note(counters_.resumed.get());
  const bool completed = driver_->poll(io_batch) != 0;
  return busy || interrupted || completed || work_waits();
}

// Whether the policy wants step() called again at once although there was nothing to do.
bool executor_core::spins_on() noexcept {
  if (policy_ != poll_policy::adaptive) return policy_ == poll_policy::spin;
  return idle_gap_.spins_on(time_.read(), window_);
}

[[gnu::noinline]] std::optional<duration> executor_core::time_to_sleep(time_point start) const noexcept {
  std::optional<duration> limit;
  if (pollers_.may_lose_events()) limit = safety_poll_period;
  if (timers_.empty()) return limit;
  const time_point deadline = timers_.next_deadline();
  const duration left = deadline <= start ? duration::zero() : deadline - start;
  return limit ? std::min(*limit, left) : left;
}

void executor_core::add_poller(poller& source) {
  check_thread("add a poller to another executor");
  pollers_.add(source, *calls_);
}

void executor_core::remove_poller(poller& source) noexcept { pollers_.remove(source, *driver_); }

detail::attachment* executor_core::find_attachment(const void* key) const noexcept {
  for (const auto& [item_key, item] : attachments_) {
    if (item_key == key) return item.get();
  }
  return nullptr;
}

detail::attachment& executor_core::attach(const void* key, std::unique_ptr<detail::attachment> item) {
  assert(find_attachment(key) == nullptr);
  return *attachments_.emplace_back(key, std::move(item)).second;
}

void executor_core::drop_attachment(const void* key) noexcept {
  std::erase_if(attachments_, [key](const auto& item) { return item.first == key; });
}

worker_pool& resource_workers(const executor_core* home) {
  if (home != nullptr && &home->workers() != &worker_pool::shared()) return home->workers();
  return worker_pool::for_resources();
}

}  // namespace weft
