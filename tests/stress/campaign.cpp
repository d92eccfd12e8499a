// SPDX-License-Identifier: Apache-2.0
#include "campaign.hpp"

#include <fmt/core.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "../unit/sanitized.hpp"
#include "fight.hpp"
#include "trial.hpp"

namespace weft::stress {
namespace {

using steady = std::chrono::steady_clock;
using seconds = std::chrono::duration<double>;

// Shorter ones would be all set-up; longer ones leave others for too late.
constexpr seconds shortest_slice(1);
constexpr seconds longest_slice(20);

// What memory may grow by, after the first third of a duel: half as much again, and what allocators keep.
constexpr std::uint64_t slack_bytes = 48U << 20;
constexpr seconds long_enough_to_grow(10);

/// Something to do for a while.
struct kind {
  std::string name;
  std::string options;  // of weft-stress, to do this alone
  std::string driver;   // WEFT_EVENT_DRIVER; empty: whichever
  sim::setting where = sim::fabric::real;
  const duel* pair = nullptr;  // null: programs out of seeds
  bool fails_each = false;     // of those, with each call failing once
};

volatile std::sig_atomic_t was_interrupted = 0;

/// SIGINT only leaves word, the first time.
class interruption : private test::immovable {
 public:
  interruption() noexcept {
    struct sigaction ours {};
    ours.sa_handler = [](int) { was_interrupted = 1; };
    ours.sa_flags = static_cast<int>(SA_RESETHAND);
    ::sigaction(SIGINT, &ours, &before_);
  }
  ~interruption() { ::sigaction(SIGINT, &before_, nullptr); }

 private:
  struct sigaction before_ {};
};

struct interrupted {};

bool has_driver(driver_choice which) {
  try {
    std::string why;
    return open_driver(which, system_calls::kernel(), &why) != nullptr;
  } catch (const error&) {
    return false;
  }
}

// They need all of the address space, and the one for undefined behaviour opens pipes to find out what can be read.
bool suits_sanitizers(const duel& what) noexcept { return what.client_bytes == 0 && what.server_descriptors == 0; }

sim::setting one_process_at(const battleground& where) {
  sim::setting made = sim::fabric::real;
  made.device = where.device;
  made.address = where.address;
  return made;
}

// For the shell.
std::string quoted(const std::string& text) {
  std::string made = "'";
  for (const char one : text) made += one == '\'' ? std::string("'\\''") : std::string(1, one);
  return made + "'";
}

std::string options_of(const battleground& where) {
  std::string text = fmt::format("--device {} --address {}", where.device, where.address);
  if (!where.client_device.empty()) text += " --client-device " + where.client_device;
  if (!where.far_host.empty()) text += " --with " + where.far_host;
  if (!where.disturbance.empty()) text += " --disturb " + quoted(where.disturbance);
  return text;
}

class campaign {
 public:
  explicit campaign(const campaign_options& chosen) : chosen_(chosen), next_seed_(chosen.first) {}

  report run();

 private:
  void choose_kinds();
  void choose_simulations();
  [[nodiscard]] std::vector<std::string> drivers();
  [[nodiscard]] bool is_for(const duel& one) const;
  void play(std::size_t which, seconds time);
  void tell_what_is_missing();
  void add(kind what);
  void play_seeds(const kind& what, part& sum, seconds time);
  [[nodiscard]] verdict play_some(const kind& what, tally& count);
  void play_duel(const kind& what, part& sum, seconds time);
  void look(const kind& what, const score& count, std::uint64_t resident);
  void show(const std::string& what, double rate);
  void fail(const std::string& why, const std::string& command);
  [[nodiscard]] seconds elapsed() const { return steady::now() - start_; }

  const campaign_options& chosen_;
  const steady::time_point start_ = steady::now();
  std::vector<kind> kinds_;
  report all_;
  std::uint64_t next_seed_;

  // Of the duel that goes on.
  steady::time_point last_sample_;
  std::uint64_t operations_then_ = 0;
  std::vector<std::uint64_t> times_then_;
  steady::time_point settled_;
  std::uint64_t early_resident_ = 0;  // then
  std::uint64_t late_resident_ = 0;
  steady::time_point last_report_ = steady::now();
};

void campaign::add(kind what) {
  part made{.name = what.name};
  all_.parts.push_back(std::move(made));
  kinds_.push_back(std::move(what));
}

void campaign::choose_simulations() {
  std::vector<kind> fabrics{
      {.name = "sim iwarp", .options = "--sim", .driver = "", .where = sim::fabric::simulated},
      {.name = "sim shm", .options = "--sim --transport shm", .driver = "", .where = sim::fabric::simulated_memory},
      {.name = "sim rails", .options = "--sim --transport rails", .driver = "", .where = sim::fabric::simulated_rails}};
#ifdef WEFT_WITH_VERBS
  fabrics.push_back(
      {.name = "sim verbs", .options = "--sim --transport verbs", .driver = "", .where = sim::fabric::simulated_rdma});
#else
  all_.left_out.emplace_back("sim verbs: this build has no verbs");
#endif
  for (const kind& one : fabrics) {
    add(one);
    kind failing = one;
    failing.name += ": each call fails";
    failing.options += " --fail-each";
    failing.fails_each = true;
    add(std::move(failing));
  }
}

std::vector<std::string> campaign::drivers() {
  const char* const wanted = std::getenv("WEFT_EVENT_DRIVER");
  std::vector<std::string> found;
  for (const auto& [name, which] :
       {std::pair("io_uring", driver_choice::io_uring), std::pair("epoll", driver_choice::epoll)}) {
    if (wanted != nullptr && std::string_view(wanted) != name) continue;
    if (has_driver(which)) {
      found.emplace_back(name);
    } else {
      all_.left_out.push_back(fmt::format("{}: it cannot be had here", name));
    }
  }
  return found;
}

bool campaign::is_for(const duel& one) const {
  const bool named = std::find(chosen_.duels.begin(), chosen_.duels.end(), one.name) != chosen_.duels.end();
  if (!chosen_.fights || !(named || chosen_.duels.empty())) return false;
  if (chosen_.soaks && chosen_.duels.empty() && one.is_harmful() && one.does == harm::none) return false;
  if (test::sanitized && !suits_sanitizers(one)) return false;
  return one.server_descriptors == 0 || chosen_.where.device == "iwarp";  // they are not for connections elsewhere
}

// With both drivers in turn, so that a short time has something of each.
void campaign::choose_kinds() {
  if (chosen_.simulates && !chosen_.soaks) choose_simulations();
  const battleground& where = chosen_.where;
  const std::string at = options_of(where);
  const std::vector<std::string> each = drivers();
  if (!chosen_.soaks && chosen_.duels.empty() && where.is_one_device()) {
    for (const std::string& driver : each) {
      add({.name = fmt::format("{} {}: seeds", where.device, driver),
           .options = at,
           .driver = driver,
           .where = one_process_at(where)});
    }
  }
  for (const duel& one : all_duels()) {
    if (!is_for(one)) continue;
    for (const std::string& driver : each) {
      add({.name = fmt::format("{} {}: {}", where.device, driver, one.name),
           .options = fmt::format("{} --duel {}", at, one.name),
           .driver = driver,
           .pair = &one});
    }
  }
}

void campaign::fail(const std::string& why, const std::string& command) {
  const std::string text = why + "\n  repeat it: " + command;
  if (::isatty(STDOUT_FILENO) != 0) fmt::print("\n");
  fmt::print("FAILED: {}\n", text);
  std::fflush(stdout);
  all_.failures.push_back(text);
}

void campaign::show(const std::string& what, double rate) {
  all_.seconds = elapsed().count();
  const bool live = ::isatty(STDOUT_FILENO) != 0;
  std::uint64_t operations = 0;
  std::uint64_t faults = 0;
  for (const part& one : all_.parts) {
    operations += one.operations;
    faults += one.faults;
  }
  const double memory = all_.samples.empty() ? 0 : all_.samples.back().resident_bytes / (1 << 20);
  const bool minute = steady::now() - last_report_ >= std::chrono::minutes(1);
  if (!live && !minute) return;
  if (minute) {
    last_report_ = steady::now();
    chosen_.save(all_);
  }
  fmt::print("{}[{:5.0f} of {:.0f} s] {:40} {:9.0f} op/s  {} operations before, {} faults, {} failures, {:.0f} MiB{}",
             live ? "\r" : "", elapsed().count(), chosen_.minutes * 60, what, rate, operations, faults,
             all_.failures.size(), memory, live && !(minute && chosen_.soaks) ? "" : "\n");
  std::fflush(stdout);
}

// From next_seed_ on, which it moves.
verdict campaign::play_some(const kind& what, tally& count) {
  constexpr std::uint64_t at_a_time = 20;
  const std::chrono::seconds limit(chosen_.limit_seconds);
  if (what.fails_each) {
    sim::script small = make_small_script(next_seed_, what.where);
    verdict how = try_each_call(small, limit, count, what.where);
    how.seed = next_seed_++;
    return how;
  }
  verdict how = try_seeds(next_seed_, at_a_time, limit, count, what.where);
  next_seed_ = how.failed ? how.seed + 1 : next_seed_ + at_a_time;
  return how;
}

void campaign::play_seeds(const kind& what, part& sum, seconds time) {
  const auto start = steady::now();
  while (steady::now() - start < time && was_interrupted == 0) {
    tally count;
    const auto before = steady::now();
    const verdict how = play_some(what, count);
    const seconds took = steady::now() - before;
    sum.runs += count.seeds;
    sum.operations += count.operations;
    sum.failures += count.failures - count.stopped;
    sum.stopped += count.stopped;
    sum.faults += count.faults;
    show(what.name, static_cast<double>(count.operations) / took.count());
    if (!how.failed || was_interrupted != 0) continue;
    const std::string driver = what.driver.empty() ? "" : "WEFT_EVENT_DRIVER=" + what.driver + " ";
    fail(fmt::format("{}, seed {}: {}", what.name, how.seed, how.why),
         fmt::format("{}weft-stress {} --first {} --seeds 1", driver, what.options, how.seed));
  }
  sum.seconds += seconds(steady::now() - start).count();
}

std::vector<std::uint64_t> times_of(const score& count) {
  std::vector<std::uint64_t> times(score::bins);
  for (std::size_t i = 0; i < times.size(); ++i) times[i] = count.times[i];
  return times;
}

void campaign::look(const kind& what, const score& count, std::uint64_t resident) {
  const auto now = steady::now();
  const seconds passed = now - last_sample_;
  if (passed < seconds(1)) return;
  const std::uint64_t operations = count.succeeded;
  std::vector<std::uint64_t> times = times_of(count);
  std::vector<std::uint64_t> fresh = times;
  for (std::size_t i = 0; i < fresh.size(); ++i) fresh[i] -= times_then_[i];
  const sample made{.what = what.name,
                    .at = elapsed().count(),
                    .rate = static_cast<double>(operations - operations_then_) / passed.count(),
                    .p50 = percentile(fresh, 50),
                    .p99 = percentile(fresh, 99),
                    .resident_bytes = static_cast<double>(resident)};
  all_.samples.push_back(made);
  last_sample_ = now;
  operations_then_ = operations;
  times_then_ = std::move(times);
  late_resident_ = resident;
  if (early_resident_ == 0 && now >= settled_) early_resident_ = late_resident_;
  show(what.name, made.rate);
}

void campaign::play_duel(const kind& what, part& sum, seconds time) {
  const shared_memory<score> count;
  const std::uint64_t seed = next_seed_++;
  const auto start = last_sample_ = steady::now();
  settled_ = start + std::chrono::duration_cast<steady::duration>(time / 3);
  operations_then_ = early_resident_ = late_resident_ = 0;
  times_then_.assign(score::bins, 0);
  std::uint64_t most_resident = 0;
  const auto watch = [&](std::uint64_t resident) {
    if (was_interrupted != 0) throw interrupted();
    most_resident = std::max(most_resident, resident);
    look(what, *count, resident);
  };
  std::string why;
  try {
    why = fight(*what.pair, chosen_.where, seed, std::chrono::duration_cast<std::chrono::milliseconds>(time), *count,
                watch);
  } catch (const interrupted&) {             // and both are gone
  } catch (const std::exception& failure) {  // of what watches them, or of the way to another machine
    why = failure.what();
  }
  const bool grows = time >= long_enough_to_grow && early_resident_ != 0 && what.pair->does != harm::killed &&
                     late_resident_ > early_resident_ + early_resident_ / 2 + slack_bytes;
  if (why.empty() && grows) {
    why = fmt::format("memory grows: {} bytes are resident after a while, {} in the end", early_resident_,
                      late_resident_);
  }
  sum.seconds += seconds(steady::now() - start).count();
  ++sum.runs;
  sum.operations += count->begun;
  sum.failures += count->failed;
  sum.stopped += count->stopped;
  sum.connections += count->connections;
  sum.faults += count->faults;
  sum.bytes += count->bytes;
  sum.most_resident_bytes = std::max(sum.most_resident_bytes, most_resident);
  const std::vector<std::uint64_t> times = times_of(*count);
  sum.times.resize(times.size());
  for (std::size_t i = 0; i < times.size(); ++i) sum.times[i] += times[i];
  if (was_interrupted != 0) return;
  if (why.empty()) return;
  fail(fmt::format("{}: {}", what.name, why),
       fmt::format("WEFT_EVENT_DRIVER={} weft-stress {} --first {} --minutes {:.2g}{}", what.driver, what.options, seed,
                   time.count() / 60, chosen_.soaks ? " --soak" : ""));
}

void campaign::play(std::size_t which, seconds time) {
  const kind& what = kinds_[which];
  if (what.driver.empty()) {
    ::unsetenv("WEFT_EVENT_DRIVER");
  } else {
    ::setenv("WEFT_EVENT_DRIVER", what.driver.c_str(), 1);
  }
  what.pair != nullptr ? play_duel(what, all_.parts[which], time) : play_seeds(what, all_.parts[which], time);
}

// Whoever asked for all of it should not believe to have had it.
void campaign::tell_what_is_missing() {
  const auto reached = [](const part& one) { return one.runs != 0; };
  std::string names;
  for (const part& one : all_.parts) {
    if (!reached(one)) names += (names.empty() ? "" : ", ") + one.name;
  }
  all_.interrupted = was_interrupted != 0;
  const char* const why = all_.interrupted ? "it was interrupted before" : "it has failed too often before";
  if (!names.empty()) all_.left_out.push_back(fmt::format("{}: {}", names, why));
  if (!all_.interrupted && std::none_of(all_.parts.begin(), all_.parts.end(), reached)) {
    all_.failures.emplace_back("nothing was tried");
  }
  std::erase_if(all_.parts, [&](const part& one) { return !reached(one); });
}

report campaign::run() {
  const interruption noticed;
  choose_kinds();
  const seconds total(chosen_.minutes * 60);
  const auto share = total / static_cast<double>(std::max<std::size_t>(kinds_.size(), 1));
  const seconds slice =
      chosen_.soaks ? std::max(share, shortest_slice) : std::clamp(share, shortest_slice, longest_slice);
  for (std::size_t turns = 0; !kinds_.empty() && was_interrupted == 0; ++turns) {
    seconds time = std::min(slice, total - elapsed());
    if (turns < kinds_.size()) time = std::max(time, shortest_slice);  // whatever was asked for is done once
    if (time < shortest_slice / 2 || all_.failures.size() >= chosen_.most_failures) break;
    play(turns % kinds_.size(), time);
  }
  if (::isatty(STDOUT_FILENO) != 0) fmt::print("\n");
  tell_what_is_missing();
  all_.seconds = elapsed().count();
  return std::move(all_);
}

}  // namespace

report run_campaign(const campaign_options& chosen) { return campaign(chosen).run(); }

}  // namespace weft::stress
