// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/core/executor_list.hpp>
#include <weft/runtime/core/frame_allocator.hpp>
#include <weft/runtime/core/task_names.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/report.hpp>
#include <weft/runtime/system/descriptor.hpp>
#include <weft/runtime/system/event_driver.hpp>
#include <weft/runtime/task_name.hpp>
#include <weft/runtime/trace.hpp>
#include <weft/runtime/worker_pool.hpp>

#include <fmt/format.h>

#include <pthread.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cerrno>
#include <csignal>
#include <limits>
#include <mutex>
#include <thread>

namespace weft::detail {

struct debugger_layout;

}  // namespace weft::detail

// Naming weft_debugger_layout here links debugger_layout.cpp into every program with an executor.
extern "C" const weft::detail::debugger_layout weft_debugger_layout;
[[gnu::used]] static const weft::detail::debugger_layout* const kept_for_debuggers = &weft_debugger_layout;

namespace weft {
namespace {

// Bounded batches: the most that one source may do in a turn before the next has its chance.
constexpr std::size_t ready_batch = 256;
constexpr std::size_t poll_batch = 64;
constexpr std::size_t timer_batch = 64;
constexpr std::size_t io_batch = 64;
constexpr std::size_t mail_batch = 256;
// The most resumptions in one batch, counting the coroutines that others leave in next_to_resume.
constexpr std::size_t longest_run = 4096;
// While spinning, the clock is read once in so many looks at the queues, because reading it takes longer than a look.
constexpr unsigned looks_per_clock_look = 4;
// While there is other work, the kernel is asked for news at least this often: a system call in every turn would cost
// more than most turns do.
constexpr unsigned turns_per_kernel_look = 8;
constexpr std::uint64_t resumptions_per_kernel_look = 64;
// An executor that never sleeps reads the clock once in so many looks at the kernel, unless a timer is armed.
constexpr unsigned kernel_looks_per_clock_look = 8;
constexpr std::uint64_t turns_per_clock_look = 64;  // likewise, if another loop drives it
// An executor with more frames than an idle one may keep gives them back after it has slept this long, or this often.
constexpr duration idle_period = std::chrono::milliseconds(100);
constexpr unsigned most_sleeps_with_many_frames = 4096;
// How often pollers that may lose events are polled while the executor sleeps.
constexpr duration safety_poll_period = std::chrono::milliseconds(500);

}  // namespace

std::uint64_t detail::this_thread_number() noexcept {
  static constinit std::atomic<std::uint64_t> last{0};
  static constinit thread_local std::uint64_t mine = 0;
  if (mine == 0) mine = ++last;
  return mine;
}

constinit thread_local executor_core* executor_core::current_ = nullptr;

// A poller, and the operation that ends when its descriptor becomes readable while the executor sleeps.
class executor_core::poller_watch final : private io_operation {
 public:
  poller_watch(poller& source, system_calls& calls)
      : io_operation(io_kind::readable), source_(&source), descriptor_(source.wait_fd(), calls, descriptor::borrowed) {
    target = &descriptor_;
  }
  ~poller_watch() { assert(!in_progress()); }

  [[nodiscard]] poller& source() const noexcept { return *source_; }
  void watch(event_driver& driver) noexcept {
    if (!in_progress()) driver.start(*this);
  }
  void unwatch(event_driver& driver) noexcept {
    if (!in_progress()) return;
    driver.cancel(*this);
    while (in_progress()) driver.wait(io_batch, std::nullopt);
  }

 private:
  void complete(int) noexcept override {}  // its only purpose is to end the wait

  poller* source_;
  descriptor descriptor_;
};

namespace {

// A signal that executors read, so that it does not end the program. Each thread that makes one of these blocks it; the
// thread that destroys the last one unblocks it.
class shared_signal {
 public:
  explicit shared_signal(int number) : number_(number) {
    const sigset_t mask = mask_of(number);
    const int fd = ::signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
    if (fd < 0) throw system_error(errno, "create a signalfd");
    descriptor_ = descriptor(fd, system_calls::kernel());
    const std::lock_guard lock(mutex_);
    sigset_t before;
    ::pthread_sigmask(SIG_BLOCK, &mask, &before);
    if (users_[index()]++ == 0) was_blocked_[index()] = sigismember(&before, number) == 1;
  }
  shared_signal(const shared_signal&) = delete;
  shared_signal& operator=(const shared_signal&) = delete;
  ~shared_signal() {
    const std::lock_guard lock(mutex_);
    if (--users_[index()] != 0 || was_blocked_[index()]) return;
    while (try_read()) {  // it came too late for a dump, and would now end the program
    }
    const sigset_t mask = mask_of(number_);
    ::pthread_sigmask(SIG_UNBLOCK, &mask, nullptr);
  }

  [[nodiscard]] int number() const noexcept { return number_; }
  [[nodiscard]] descriptor& source() noexcept { return descriptor_; }
  /// Whether it has come, and no other executor has read it.
  [[nodiscard]] bool try_read() noexcept {
    signalfd_siginfo info{};
    return ::read(descriptor_.fd(), &info, sizeof info) == sizeof info;
  }

 private:
  static sigset_t mask_of(int number) noexcept {
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, number);
    return mask;
  }
  [[nodiscard]] std::size_t index() const noexcept { return static_cast<std::size_t>(number_) % users_.size(); }

  static constinit inline std::mutex mutex_;
  static constinit inline std::array<unsigned, 65> users_{};  // by number
  static constinit inline std::array<bool, 65> was_blocked_{};

  int number_;
  descriptor descriptor_;
};

}  // namespace

// Writes a dump when its signal comes, and makes the other executors with that signal write theirs, because only one of
// them can read it.
class executor_core::dump_watch final : private io_operation, private detail::remote_work {
 public:
  dump_watch(executor_core& home, int signal) : io_operation(io_kind::readable), home_(home), signal_(signal) {
    target = &signal_.source();
  }
  ~dump_watch() { assert(!in_progress()); }

  void watch() noexcept {
    runs_.store(true, std::memory_order_relaxed);
    if (!in_progress()) home_.driver_->start(*this);
  }
  void unwatch() noexcept {
    runs_.store(false, std::memory_order_relaxed);
    if (!in_progress()) return;
    ending_ = true;
    home_.driver_->cancel(*this);
    while (in_progress()) home_.driver_->wait(io_batch, std::nullopt);
    ending_ = false;
  }

 private:
  void complete(int result) noexcept override {
    if (ending_ || result < 0) return;
    if (signal_.try_read()) {
      ask_others();
      write();
    }
    watch();
  }
  void ask_others() noexcept {
    detail::listed_executor::for_each([this](executor_core& other) {
      dump_watch* const its = other.dump_watch_.get();
      if (its == nullptr || its == this || its->signal_.number() != signal_.number()) return;
      if (!its->runs_.load(std::memory_order_relaxed) || its->asked_.exchange(true, std::memory_order_acquire)) return;
      other.submit(*its);
    });
  }
  void run_on_executor() noexcept override {
    asked_.store(false, std::memory_order_release);
    if (runs_.load(std::memory_order_relaxed)) write();
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
  shared_signal signal_;
  bool ending_ = false;
  std::atomic<bool> runs_{false};  // between watch() and unwatch(): it writes dumps only then
  // Set by another executor. True: this object is in our mailbox. False, read with acquire: the mailbox is done with
  // it.
  std::atomic<bool> asked_{false};
};

// Times one turn and its tasks, for stall reports and traces.
class executor_core::turn_watch {
 public:
  explicit turn_watch(executor_core& home) noexcept : home_(home), start_(home.now()) { home_.watch_ = this; }
  turn_watch(const turn_watch&) = delete;
  turn_watch& operator=(const turn_watch&) = delete;
  ~turn_watch() {  // NOLINT(bugprone-exception-escape): see tell()
    home_.watch_ = nullptr;
    if (home_.stall_limit_ == duration::zero()) return;
    worst_.turn = home_.now() - start_;
    if (worst_.turn > home_.stall_limit_) tell();
  }

  /// Resumes `item` and times it. Not inlined, because the loop would keep stack space for it in every turn.
  [[gnu::noinline]] void resume(detail::promise_base& item) noexcept {
    const detail::task_names names = detail::names_of(item);  // before the coroutine may be gone
    const time_point start = home_.now();
    item.handle().resume();
    const time_point end = home_.now();
    if (trace_sink* const sink = detail::current_trace()) trace(*sink, names.origin, start, end);
    if (end - start <= worst_.longest) return;
    worst_.longest = end - start;
    worst_task_ = names;
  }

 private:
  // Nothing throws: the format is a correct constant, and nothing is allocated.
  // NOLINTNEXTLINE(bugprone-exception-escape)
  void tell() const noexcept {
    home_.counters_.stalls.add(1);
    const auto milliseconds = [](duration time) { return std::chrono::duration<double, std::milli>(time).count(); };
    std::array<char, 128> text;
    const auto end =
        fmt::format_to_n(text.begin(), text.size(), "a turn took {:.1f} ms; one task ran for {:.1f} ms of it",
                         milliseconds(worst_.turn), milliseconds(worst_.longest));
    report what;
    what.kind = report_kind::stall;
    what.text = {text.data(), std::min(end.size, text.size())};
    if (worst_task_.task != nullptr) what.task = worst_task_.task;
    what.scope = worst_task_.scope;
    what.origin = worst_task_.origin;
    what.stall = worst_;
    send_report(what);
  }
  static void trace(trace_sink& sink, std::source_location origin, time_point start, time_point end) noexcept {
    try {
      sink.ran(detail::function_name(origin), start, end);
    } catch (const std::bad_alloc&) {
    }
  }

  executor_core& home_;
  time_point start_;
  stall worst_{};
  detail::task_names worst_task_;
};

executor_core::executor_core(executor_options options)
    : clock_(options.clock != nullptr ? options.clock : &clock::steady()),
      calls_(options.system_calls != nullptr ? options.system_calls : &system_calls::kernel()),
      workers_(options.workers != nullptr ? options.workers : &worker_pool::shared()),
      policy_(options.clock != nullptr ? poll_policy::sleep : options.policy),
      max_spin_(options.max_spin),
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
  if (has_dependents() && !birthplace_.is_parents()) {
    detail::terminate_because(
        "an executor was destroyed before a connection, listener, stream or shared receives that belong to it: destroy "
        "these first");
  }
  while (!attachments_.empty()) attachments_.pop_back();  // youngest first, because it may depend on the older ones
  await_submitters();
  assert(ready_.empty() && "an executor ended with tasks that could go on");
  assert(late_.empty() && "an executor ended with work that was put off");
  assert(pollers_.empty() && "an executor ended with pollers attached");
}

// In a child of fork(2), the threads that were inside submit() do not exist.
void executor_core::await_submitters() const noexcept {
  while (submitting_.load(std::memory_order_acquire) != 0 && !birthplace_.is_parents()) std::this_thread::yield();
}

// A thread inside submit_unless_ended() may have seen the executor open; once it has left, its work is in the mailbox.
void executor_core::end() noexcept {
  ended_.store(true, std::memory_order_seq_cst);
  await_submitters();
  run_all_mail();
}

void executor_core::background_observer::ended(std::exception_ptr failure, const char*, std::source_location) noexcept {
  assert(failure == nullptr && "background work does not throw");
  static_cast<void>(failure);
  --outstanding;
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

// Called when the loop serves again after a rest.
void executor_core::go_on() noexcept {
  if (std::exchange(stepping_asleep_, false)) wake_up();
  look_at_the_clock();
  if (dump_watch_ != nullptr) dump_watch_->watch();
}

// Called when the loop comes to rest, because the executor may then be destroyed on another thread.
void executor_core::unwatch_all() noexcept {
  if (dump_watch_ != nullptr) dump_watch_->unwatch();
  for (const auto& watch : pollers_) watch->unwatch(*driver_);
}

// True on the executor's thread; before the first run(), which decides it, true on any.
bool executor_core::belongs_to_this_thread() const noexcept {
  return thread_.load(std::memory_order_relaxed) == 0 || runs_on_this_thread();
}

void executor_core::check_thread(const char* what) const {
  if (!belongs_to_this_thread()) throw error(errc::wrong_thread, what);
}

// Flattened, with rarely needed code kept out of line: most turns resume one task, and would spend their time on
// entering and leaving functions.
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
  const turn_watch watch(*this);
  return turn(done);
}

// False if there is nothing left to do but to wait.
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
  if (++turns_without_look_ < turns_per_kernel_look && counters_.resumed.get() < look_at_resumed_) return false;
  note_kernel_look();
  if (++kernel_looks_ % kernel_looks_per_clock_look == 0) look_at_the_clock();
  return true;
}

void executor_core::note_kernel_look() noexcept {
  turns_without_look_ = 0;
  look_at_resumed_ = counters_.resumed.get() + resumptions_per_kernel_look;
}

// The order matters little, the bounds do: every source is visited in every turn, and none may do more than its batch.
// The kernel comes after this: together with waiting if there is nothing else to do, so that handing over operations
// and waiting for them is one system call. True if a poller was busy, so that there may be more.
bool executor_core::serve_all() {
  counters_.turns.add(1);
  if (inbox_ != nullptr || mailbox_.load(std::memory_order_relaxed) != nullptr) run_mail(mail_batch);
  if (!ready_.empty()) resume_ready();
  const bool busy = has_pollers_ && poll_sources() != 0;
  if (busy) resume_ready();
  if (!late_.empty()) {
    late_.run();
    if (!ready_.empty()) resume_ready();
  }
  if (!timers_.empty()) expire_timers();
  time_is_fresh_ = false;
  return busy;
}

void executor_core::submit(detail::remote_work& work) noexcept {
  submitting_.fetch_add(1, std::memory_order_seq_cst);
  work.next_ = mailbox_.load(std::memory_order_relaxed);
  while (!mailbox_.compare_exchange_weak(work.next_, &work, std::memory_order_seq_cst, std::memory_order_relaxed)) {
  }
  // `work` may be gone by now.
  wake();  // defect: lose the wake-up of another executor
  submitting_.fetch_sub(1, std::memory_order_release);
}

bool executor_core::submit_unless_ended(detail::remote_work& work) noexcept {
  submitting_.fetch_add(1, std::memory_order_seq_cst);
  const bool open = !ended_.load(std::memory_order_seq_cst);
  if (open) submit(work);
  submitting_.fetch_sub(1, std::memory_order_release);
  return open;
}

// Only the thread that takes the flag down pays for the wake-up.
void executor_core::wake() noexcept {
  if (!sleeping_.load(std::memory_order_seq_cst) || !sleeping_.exchange(false, std::memory_order_seq_cst)) return;
  outer_loop* const outer = outer_.load(std::memory_order_seq_cst);
  outer != nullptr ? outer->wake() : driver_->wake();
}

// Appends the mailbox to the inbox, oldest first.
void executor_core::take_mail() noexcept {
  if (mailbox_.load(std::memory_order_relaxed) == nullptr) return;  // the usual case, without a locked instruction
  detail::remote_work* newest = mailbox_.exchange(nullptr, std::memory_order_acquire);
  detail::remote_work* oldest = nullptr;
  while (newest != nullptr) {
    detail::remote_work* const next = newest->next_;
    newest->next_ = oldest;
    oldest = newest;
    newest = next;
  }
  detail::remote_work** end = &inbox_;
  while (*end != nullptr) end = &(*end)->next_;
  *end = oldest;
}

void executor_core::withdraw(detail::remote_work& work) noexcept {
  assert(belongs_to_this_thread());
  for (;;) {
    take_mail();
    detail::remote_work** place = &inbox_;
    while (*place != nullptr && *place != &work) place = &(*place)->next_;
    if (*place != nullptr) {
      *place = work.next_;
      return;
    }
    std::this_thread::yield();
  }
}

[[gnu::noinline]] void executor_core::run_mail(std::size_t budget) noexcept {
  if (inbox_ == nullptr) take_mail();
  for (; inbox_ != nullptr && budget > 0; --budget) {
    detail::remote_work* const work = inbox_;
    inbox_ = work->next_;
    counters_.mail.add(1);
    work->run_on_executor();
  }
}

// Runs all that has come so far; work that this submits may be left.
void executor_core::run_all_mail() noexcept {
  run_mail(std::numeric_limits<std::size_t>::max());  // what is in the inbox already
  run_mail(std::numeric_limits<std::size_t>::max());
}

void executor_core::resume_ready() noexcept {
  std::size_t budget = longest_run;
  for (std::size_t batch = std::min(ready_.size(), ready_batch); batch > 0 && budget > 0; --batch) {
    budget = resume(ready_.pop(), budget);
  }
}

// Resumes `first`, then the coroutine that each leaves in next_to_resume; returns what is left of the budget.
std::size_t executor_core::resume(detail::promise_base& first, std::size_t budget) noexcept {
  for (detail::promise_base* next = &first; next != nullptr; --budget) {
    if (budget == 0) {
      ready_.push(*next);
      return 0;
    }
    detail::next_to_resume = nullptr;
    counters_.resumed.add(1);
    if (watch_ == nullptr) {
      next->handle().resume();
    } else {
      watch_->resume(*next);
    }
    next = detail::next_to_resume;
  }
  return budget;
}

[[gnu::noinline]] std::size_t executor_core::poll_sources() noexcept {
  std::size_t resumed = 0;
  for (const auto& watch : pollers_) resumed += watch->source().poll(poll_batch);
  return resumed;
}

[[gnu::noinline]] void executor_core::expire_timers() noexcept {
  if (!time_is_fresh_) look_at_the_clock();
  if (timers_.next_deadline() <= coarse_now_) timers_.expire(coarse_now_, timer_batch);
}

// Beside pollers, whose completions are the ones that matter, the kernel is asked as seldom as in turns with other
// work.
bool executor_core::spin_driver() noexcept {
  return (!has_pollers_ || kernel_look_is_due()) && driver_->spin(io_batch) != 0;
}

// Looks for completions without sleeping; true if any came, or the policy forbids sleeping.
[[gnu::noinline]] bool executor_core::spin() {
  const bool always = policy_ == poll_policy::spin;
  const duration window = always ? max_spin_ : window_.next();
  if (!always && window == duration::zero()) return false;
  if (spin_driver() || work_waits()) return true;
  const time_point start = coarse_now_ = now();
  for (time_point time = start; time - start < window; time = coarse_now_ = now()) {
    for (unsigned looks = 0; looks < looks_per_clock_look; ++looks) {
      const bool found = poll_sources() != 0 || spin_driver() || work_waits();
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

// False if there is something to do.
bool executor_core::fall_asleep() noexcept {
  if (has_pollers_) return fall_asleep_beside_pollers();
  sleeping_.store(true, std::memory_order_seq_cst);
  return inbox_ == nullptr && mailbox_.load(std::memory_order_seq_cst) == nullptr;
}

[[gnu::noinline]] bool executor_core::fall_asleep_beside_pollers() noexcept {
  arm_pollers();
  sleeping_.store(true, std::memory_order_seq_cst);
  if (poll_sources() != 0 || !ready_.empty() || !late_.empty()) return false;
  if (inbox_ != nullptr || mailbox_.load(std::memory_order_seq_cst) != nullptr) return false;
  watch_pollers();
  return true;
}

void executor_core::wake_up() noexcept {
  sleeping_.store(false, std::memory_order_relaxed);
  if (has_pollers_) disarm_pollers();
}

void executor_core::wait() {
  counters_.sleeps.add(1);
  if (policy_ == poll_policy::adaptive || !timers_.empty() || forgetful_pollers_ != 0 || keeps_many_frames()) {
    return wait_by_the_clock();
  }
  driver_->wait(io_batch, std::nullopt);
  look_at_the_clock();
}

// False under a simulated driver, so that only its program's events wake the executor.
bool executor_core::keeps_many_frames() const noexcept {
  return detail::frame_bytes_kept() > detail::frame_bytes_kept_when_idle && owned_driver_ != nullptr;
}

[[gnu::noinline]] void executor_core::wait_by_the_clock() {
  const bool measure = policy_ == poll_policy::adaptive;
  const bool may_give_back = keeps_many_frames();
  const time_point start = now();  // tasks have run since the last look at the clock
  std::optional<duration> limit = time_to_sleep(start);
  if (may_give_back && (!limit || *limit > idle_period)) limit = idle_period;
  driver_->wait(io_batch, limit);
  look_at_the_clock();
  if (measure) window_.slept(coarse_now_ - start);
  if (may_give_back) note_sleep_with_many_frames(coarse_now_ - start);
}

void executor_core::note_sleep_with_many_frames(duration slept) noexcept {
  if (slept < idle_period && ++sleeps_with_many_frames_ % most_sleeps_with_many_frames != 0) return;
  detail::give_back_frames(detail::frame_bytes_kept_when_idle);
}

void executor_core::arm_pollers() noexcept {
  for (const auto& watch : pollers_) watch->source().arm();
}

void executor_core::watch_pollers() noexcept {
  for (const auto& watch : pollers_) watch->watch(*driver_);
}

[[gnu::noinline]] void executor_core::disarm_pollers() noexcept {
  for (const auto& watch : pollers_) watch->source().disarm();
}

// Flattened like run_until(): most steps serve one operation.
[[gnu::flatten]] std::optional<duration> executor_core::step(const bool& interrupted) {
  constexpr int turns_per_step = 16;
  attach_thread();
  const entered guard(this);
  const bool slept = stepping_asleep_;
  if (slept || !has_stepped_) go_on_stepping();
  bool found = false;
  bool busy = true;
  for (int turn = 0; busy && turn < turns_per_step; ++turn) {
    const bool watched = stall_limit_ != duration::zero() || detail::current_trace() != nullptr;
    busy = watched ? watched_step_turn(interrupted) : step_turn(interrupted);
    found = found || busy;
    if (interrupted) break;
  }
  if (found && idle_since_) {
    look_at_the_clock();
    const duration gap = coarse_now_ - *idle_since_;
    slept ? window_.slept(gap) : window_.found_after(gap);
    idle_since_.reset();
  }
  if (busy || (has_work() && spins_on())) return duration::zero();
  if (!fall_asleep() || !driver_->prepare_wait()) {
    wake_up();
    return duration::zero();
  }
  stepping_asleep_ = true;
  counters_.sleeps.add(1);
  if (!has_work()) unwatch_all();
  return time_between_steps();
}

[[gnu::noinline]] void executor_core::go_on_stepping() noexcept {
  has_stepped_ = true;
  go_on();
  const auto since = std::exchange(asleep_with_many_frames_since_, std::nullopt);
  if (since) note_sleep_with_many_frames(coarse_now_ - *since);
}

// Without work, nobody may call step() again: give back frames at once.
[[gnu::noinline]] std::optional<duration> executor_core::time_between_steps() noexcept {
  const time_point start = now();
  const std::optional<duration> limit = time_to_sleep(start);
  if (!keeps_many_frames()) return limit;
  if (!has_work()) {
    detail::give_back_frames(detail::frame_bytes_kept_when_idle);
    return limit;
  }
  asleep_with_many_frames_since_ = start;
  return limit ? std::min(*limit, idle_period) : idle_period;
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
  // A thread that may still use the former loop is counted here; any other has yet to look, and finds the new one.
  while (submitting_.load(std::memory_order_seq_cst) != 0) std::this_thread::yield();
}

[[gnu::noinline]] bool executor_core::watched_step_turn(const bool& interrupted) {
  const turn_watch watch(*this);
  return step_turn(interrupted);
}

// False if there is nothing left to do but to wait. The look at the kernel comes last, so that the executor may sleep
// after a turn that has served something. While handlers of the other loop add work, the look is as rare as beside work
// of our own, so that the operations that they start now complete together.
bool executor_core::step_turn(const bool& interrupted) {
  if (counters_.turns.get() % turns_per_clock_look == 0) look_at_the_clock();
  const bool busy = serve_all();
  if ((busy || interrupted || work_waits()) && !kernel_look_is_due()) {
    if (!interrupted) driver_->hand_over(io_batch);
    return true;
  }
  note_kernel_look();
  const bool completed = driver_->poll(io_batch) != 0;
  return busy || interrupted || completed || work_waits();
}

// Whether the policy wants step() called again at once although there was nothing to do.
bool executor_core::spins_on() noexcept {
  if (policy_ != poll_policy::adaptive) return policy_ == poll_policy::spin;
  look_at_the_clock();
  if (!idle_since_) {
    idle_since_ = coarse_now_;
    idle_window_ = window_.next();
  }
  if (coarse_now_ - *idle_since_ < idle_window_) return true;
  if (idle_window_ != duration::zero()) window_.found_nothing();
  idle_window_ = duration::zero();
  return false;
}

[[gnu::noinline]] std::optional<duration> executor_core::time_to_sleep(time_point start) const noexcept {
  std::optional<duration> limit;
  if (forgetful_pollers_ != 0) limit = safety_poll_period;
  if (timers_.empty()) return limit;
  const time_point deadline = timers_.next_deadline();
  const duration left = deadline <= start ? duration::zero() : deadline - start;
  return limit ? std::min(*limit, left) : left;
}

void executor_core::add_poller(poller& source) {
  check_thread("add a poller to another executor");
  pollers_.push_back(std::make_unique<poller_watch>(source, *calls_));
  has_pollers_ = true;
  if (source.may_lose_events()) ++forgetful_pollers_;
}

void executor_core::remove_poller(poller& source) noexcept {
  const auto found =
      std::find_if(pollers_.begin(), pollers_.end(), [&](const auto& watch) { return &watch->source() == &source; });
  if (found == pollers_.end()) detail::terminate_because("a poller was removed from an executor that does not have it");
  (*found)->unwatch(*driver_);
  pollers_.erase(found);
  has_pollers_ = !pollers_.empty();
  if (source.may_lose_events()) --forgetful_pollers_;
}

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
