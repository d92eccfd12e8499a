// SPDX-License-Identifier: Apache-2.0
#include "duel.hpp"

#include <fmt/core.h>

#include <fcntl.h>

#include <cmath>
#include <csignal>
#include <cstdlib>
#include <deque>

#include "fighter.hpp"
#include "kit/descriptors.hpp"
#include "limited.hpp"
#include "model.hpp"
#include "random.hpp"

namespace weft::stress {
namespace {

using namespace std::chrono_literals;
using sim::limited;
using test::open_descriptors;

constexpr duel duels[] = {
    {.name = "plain", .words = "messages, writes, reads and additions of all sizes"},
    {.name = "huge_and_tiny",
     .words = "writes and reads of up to 8 MiB between messages of a few bytes",
     .largest_message = 64,
     .largest_transfer = 8U << 20},
    {.name = "fan_in", .words = "64 connections to one server", .connections = 64, .largest_transfer = 4096},
    {.name = "connection_churn", .words = "connections that come and go", .connections = 8, .rounds = 3},
    {.name = "registration_churn", .words = "memory that is registered for one write", .registers = true},
    {.name = "pool_exhaustion",
     .words = "more connections than there is memory for at a time",
     .connections = 12,
     .rounds = 5,
     .largest_transfer = 32'768,
     .pool_bytes = 1U << 20},
    {.name = "cancellation_storm", .words = "operations that are stopped at any time", .connections = 8, .stops = true},
    {.name = "slow_peer", .words = "a server that takes its time", .connections = 8, .server_pause_us = 2000},
    {.name = "peer_frozen", .words = "a server that stands still for a while", .does = harm::frozen},
    {.name = "peer_killed", .words = "servers that are killed, one after the other", .does = harm::killed},
    {.name = "few_descriptors",
     .words = "a server with fewer descriptors than there are peers",
     .connections = 24,
     .rounds = 10,
     .largest_transfer = 4096,
     .server_descriptors = 12},
    {.name = "little_memory",
     .words = "a client that gets no more memory from the system",
     .largest_transfer = 4U << 20,
     .registers = true,
     .client_bytes = 24U << 20},
};

constexpr std::uint32_t word_bytes = 8;
constexpr std::chrono::milliseconds patience(60'000);
constexpr std::uint32_t most_wait_us = 300'000;
constexpr std::uint32_t receives = 4;
constexpr std::size_t most_unsure = receives / 2;  // messages at a time that may be answered or not

constexpr mr::usage open_to_peers =
    mr::usage::read_src | mr::usage::write_dst | mr::usage::atomic_dst | mr::usage::flush_visibility;

template <class Score>
[[noreturn]] void give_up(Score& count, const std::string& why) {
  if (count.words[0] == '\0') leave_words(count.words, why);
  std::_Exit(check_failed);
}

void record(score& count, duration time) noexcept {
  const auto nanoseconds = static_cast<double>(std::max<std::int64_t>(std::chrono::nanoseconds(time).count(), 1));
  const auto bin = static_cast<std::size_t>(std::log(nanoseconds) / std::log(1.125));
  count.times[std::min(bin, score::bins - 1)].fetch_add(1, std::memory_order_relaxed);
}

net::device open_device(const duel& what, const std::string& name) {
  net::device_options options{.pool = {.huge_pages = false}, .iwarp = {.checksum = true}};
  if (what.pool_bytes != 0) {
    options.pool.max_bytes = what.pool_bytes;
    options.pool.arena_bytes = 65'536;
  }
  return net::device::open(name, options);
}

net::connection_options options_of(const duel& what) {
  net::connection_options options{.receive_size = std::max(what.largest_message, 64U),
                                  .receive_depth = receives,
                                  .set_up_timeout = patience,
                                  .close_timeout = patience};
  return options;
}

std::string left_in(net::device& device) {
  const mr::pool_statistics pool = device.pool().statistics();
  std::string found;
  for (const auto* const share : {&pool.send, &pool.receive}) {
    if (share->in_use_bytes != 0) found += fmt::format("{} bytes of the pool are in use; ", share->in_use_bytes);
    if (share->waiting != 0) found += fmt::format("{} allocations wait; ", share->waiting);
  }
  return found;
}

void limit_to(int resource, rlim_t most) {
  rlimit now{};
  ::getrlimit(static_cast<__rlimit_resource>(resource), &now);
  now.rlim_cur = std::min(most, now.rlim_max);
  ::setrlimit(static_cast<__rlimit_resource>(resource), &now);
}

template <class Score>
void give_up_if_open(const std::string& device, std::size_t before, Score& count) {
  if (device != "iwarp") return;  // librdmacm and libibverbs keep some until the process ends
  const std::size_t now = open_descriptors();
  if (now != before) give_up(count, fmt::format("{} descriptors are open, {} were before", now, before));
}

// ---- the server ----

class server {
 public:
  server(const duel& what, const battleground& where, bool may_fail, server_score& count, net::device& device)
      : plan_(what), where_(where), may_fail_(may_fail), score_(count), device_(device) {}

  task<> run();

 private:
  task<> serve(net::connection_request request);
  task<bool> say_where(net::connection& peer, const mr::region& region);
  task<> answer_all(net::connection& peer);
  void notice_limit();
  template <class T>
  bool succeeds(const result<T>& how, const char* what);
  [[nodiscard]] bool has_left(const error& why) const noexcept;
  task<> end_when_told(net::listener& listener);

  const duel& plan_;
  const battleground& where_;
  const bool may_fail_;  // connections
  server_score& score_;
  net::device& device_;
};

template <class T>
bool server::succeeds(const result<T>& how, const char* what) {
  if (!how && !may_fail_) give_up(score_, fmt::format("{} failed: {}", what, how.error().what()));
  return how.has_value();
}

void server::notice_limit() {
  if (plan_.server_descriptors == 0) return;
  const int more = ::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);
  if (more >= 0) {
    ::close(more);
  } else if (errno == EMFILE) {
    ++score_.at_limit;
  }
}

// Memory that the peer may use, told in the first message; then every message back to where it came from.
task<> server::serve(net::connection_request request) {
  notice_limit();
  auto made = co_await limited(request.accept(options_of(plan_)), 0);
  if (!succeeds(made, "accept")) co_return;
  net::connection peer = *std::move(made);
  std::vector<std::byte> memory(word_bytes + plan_.largest_transfer);
  auto registering = limited(device_.domain().register_memory(std::span(memory), {.usage = open_to_peers}), 0);
  auto region = co_await std::move(registering);
  if (!succeeds(region, "register_memory")) co_return;
  const bool said = co_await say_where(peer, *region);
  if (said) co_await answer_all(peer);
  const auto closed = co_await limited(peer.close(), 0);
  succeeds(closed, "close");
  const auto released = co_await limited(region->release(), 0);
  if (!released) give_up(score_, fmt::format("a region cannot be released: {}", released.error().what()));
}

task<bool> server::say_where(net::connection& peer, const mr::region& region) {
  const auto told = region.remote().pack();
  auto hello = co_await limited(device_.pool().allocate(told.size()), 0);
  if (!succeeds(hello, "allocate")) co_return false;
  std::copy(told.begin(), told.end(), hello->bytes().begin());
  const auto sent = co_await limited(peer.send(std::move(*hello)), 0);
  co_return succeeds(sent, "the first send");
}

task<> server::answer_all(net::connection& peer) {
  for (;;) {
    auto got = co_await limited(peer.recv(), 0);
    if (!succeeds(got, "recv") || !*got) co_return;
    ++score_.received;
    if (plan_.server_pause_us != 0) co_await sleep_for(std::chrono::microseconds(plan_.server_pause_us));
    const auto sent = co_await limited(peer.send(std::move((**got).payload)), 0);
    if (sent) {
      ++score_.answered;
    } else if (has_left(sent.error()) || !succeeds(sent, "an answer")) {
      co_return;
    }
  }
}

// A client that stops messages does not wait for the answers to those before it closes.
bool server::has_left(const error& why) const noexcept {
  return plan_.stops && (why.code() == errc::peer_closed || why.code() == errc::peer_vanished);
}

task<> server::end_when_told(net::listener& listener) {
  while (!score_.over) co_await sleep_for(10ms);
  listener.close();
}

task<> server::run() {
  const std::string known = score_.address.data();
  const std::string wanted = known.empty() ? where_.address + ":0" : known;
  const net::listener_options how{.set_up_timeout = patience};
  // What io_uring had under way for a process that was killed keeps its sockets for a moment.
  auto opened = co_await limited(device_.listen(wanted, how), 0);
  for (int tries = 0; !opened && tries < 500 && !known.empty(); ++tries) {
    co_await sleep_for(10ms);
    opened = co_await limited(device_.listen(wanted, how), 0);
  }
  net::listener listener = std::move(opened).value();
  const std::string address(listener.address());
  std::copy_n(address.begin(), std::min(address.size(), score_.address.size() - 1), score_.address.begin());
  if (plan_.server_descriptors != 0) limit_to(RLIMIT_NOFILE, open_descriptors() + plan_.server_descriptors);
  score_.excused_bytes = static_cast<std::size_t>(std::max<off_t>(::lseek(STDERR_FILENO, 0, SEEK_CUR), 0));
  score_.listening = true;
  const auto accept_all = [&](scope& peers) -> task<> {
    peers.spawn(end_when_told(listener), "end");
    while (auto request = co_await listener.next()) peers.spawn(serve(std::move(*request)), "serve");
  };
  co_await with_scope(on_failure::report, accept_all);
}

// ---- the client ----

class client {
 public:
  client(const duel& what, bool may_fail, const std::string& server, score& count, net::device& device,
         std::uint64_t seed, time_point end)
      : plan_(what), may_fail_(may_fail), server_(server), score_(count), device_(device), seed_(seed), end_(end) {}

  task<> run();

 private:
  /// One connection, and what has to be true of it.
  struct talk {
    net::connection peer;
    sim::random& dice;
    std::optional<mr::remote_region> memory;
    std::uint64_t last = 0;  // message
    struct sent {
      std::uint64_t id;
      std::size_t bytes;
      bool sure;
    };
    std::deque<sent> under_way;
    std::uint64_t counted = 0;
    bool sure_of_count = true;
    bool broken = false;
  };

  task<> keep_connected(std::uint64_t number);
  task<> one_round(talk& with, bool atomics);
  task<bool> begin(talk& with);
  task<> echo(talk& with);
  task<> hear(talk& with);
  task<> write_and_read(talk& with);
  task<> write_from_region(talk& with);
  task<> add(talk& with);
  task<std::optional<mr::buffer>> allocate(std::size_t bytes);

  [[nodiscard]] bool is_over() const { return executor::current()->now() >= end_ && !score_.unfinished; }
  [[nodiscard]] std::uint32_t stop_after(talk& with) const {
    return plan_.stops && with.dice.one_in(3) ? static_cast<std::uint32_t>(1 + with.dice.skewed(500)) : 0;
  }
  /// Awaits an operation of the connection, counts it and judges how it has ended.
  template <class T>
  task<result<T>> attempt(talk& with, const char* what, task<result<T>> operation, bool may_be_stopped);
  void judge(const error& why, const char* what) const;
  /// The same for what is done to the connection itself, or to memory.
  template <class T>
  bool note_outcome(const result<T>& how, const char* what);

  const duel& plan_;
  const bool may_fail_;  // connections
  const std::string& server_;
  score& score_;
  net::device& device_;
  const std::uint64_t seed_;
  const time_point end_;
};

// What no fault explains.
void client::judge(const error& why, const char* what) const {
  const bool never = why.code() == errc::protocol_error || why.code() == errc::invalid_argument ||
                     why.code() == errc::access_denied || why.code() == errc::out_of_range;
  if (!may_fail_ || never) give_up(score_, fmt::format("{} failed: {}", what, why.what()));
  if (plan_.client_bytes != 0) ++score_.at_limit;
}

template <class T>
bool client::note_outcome(const result<T>& how, const char* what) {
  ++(how ? score_.succeeded : score_.failed);
  if (!how) judge(how.error(), what);
  return how.has_value();
}

template <class T>
task<result<T>> client::attempt(talk& with, const char* what, task<result<T>> operation, bool may_be_stopped) {
  ++score_.begun;
  const time_point start = executor::current()->now();
  auto how = co_await std::move(operation);
  if (how) {
    ++score_.succeeded;
    record(score_, executor::current()->now() - start);
  } else if (may_be_stopped && how.error().code() == errc::timed_out) {
    ++score_.stopped;
  } else {
    ++score_.failed;
    judge(how.error(), what);
    with.broken = true;
  }
  co_return how;
}

// Where the system has none, nobody waits for it for ever.
task<std::optional<mr::buffer>> client::allocate(std::size_t bytes) {
  auto call =
      limited(device_.pool().allocate(std::max<std::size_t>(bytes, 1)), plan_.client_bytes != 0 ? most_wait_us : 0);
  auto made = co_await std::move(call);
  if (!made) {
    if (made.error().code() == errc::timed_out) {
      ++score_.at_limit;
    } else {
      judge(made.error(), "allocate");
    }
    co_return std::nullopt;
  }
  made->resize(bytes);
  co_return std::move(*made);
}

task<bool> client::begin(talk& with) {
  auto waiting = limited(with.peer.recv(), 0);
  ++score_.begun;
  auto got = co_await std::move(waiting);
  if (!note_outcome(got, "the first recv") || !*got) {
    if (got && !may_fail_) give_up(score_, "the server has closed before its first message");
    co_return false;
  }
  with.memory = mr::remote_region::unpack((**got).bytes());
  co_return true;
}

// Until all that has to come back has. What was stopped may come or not.
task<> client::hear(talk& with) {
  const auto must_come = [&] {
    return std::any_of(with.under_way.begin(), with.under_way.end(), [](const talk::sent& one) { return one.sure; });
  };
  while (must_come() && !with.broken) {
    const std::uint32_t stop = stop_after(with);
    auto waiting = limited(with.peer.recv(), stop);
    auto got = co_await attempt(with, "recv", std::move(waiting), stop != 0);
    if (!got) continue;
    if (!*got) {
      if (!may_fail_) give_up(score_, "the server has closed without being asked");
      with.broken = true;
      co_return;
    }
    const net::message& content = **got;
    std::uint64_t id = 0;
    if (content.size() < sizeof id) give_up(score_, fmt::format("an answer of {} bytes", content.size()));
    std::memcpy(&id, content.bytes().data(), sizeof id);
    while (!with.under_way.empty() && with.under_way.front().id != id) {
      if (with.under_way.front().sure) {
        give_up(score_, fmt::format("message {} was lost: {} came instead", with.under_way.front().id, id));
      }
      with.under_way.pop_front();
    }
    if (with.under_way.empty()) give_up(score_, fmt::format("message {} came that nobody waits for", id));
    const talk::sent sent = with.under_way.front();
    with.under_way.pop_front();
    if (content.size() != sent.bytes) give_up(score_, fmt::format("message {} has another size", id));
    if (!sim::holds(content.bytes().subspan(sizeof id), id, sizeof id)) {
      give_up(score_, fmt::format("message {} has other bytes", id));
    }
    score_.bytes += sent.bytes;
    ++score_.heard;
  }
}

task<> client::echo(talk& with) {
  const std::size_t bytes = std::max<std::size_t>(with.dice.skewed(plan_.largest_message), sizeof(std::uint64_t));
  auto memory = co_await allocate(bytes);
  if (!memory) co_return;
  const std::uint64_t id = ++with.last;
  sim::fill(memory->bytes(), id);
  std::memcpy(memory->data(), &id, sizeof id);
  // What was stopped brings nobody to receive its answer, and a server whose answers find no room takes no message.
  const std::uint32_t stop = with.under_way.size() < most_unsure ? stop_after(with) : 0;
  auto sending = limited(with.peer.send(std::move(*memory)), stop);
  const auto sent = co_await attempt(with, "send", std::move(sending), stop != 0);
  if (sent || (!with.broken && sent.error().posted())) {
    ++(sent ? score_.sent : score_.unsure);
    with.under_way.push_back({.id = id, .bytes = bytes, .sure = sent.has_value()});
  }
  // Some at a time, as far as there is room for the answers here.
  if (with.under_way.size() >= 1 + with.dice.below(3)) co_await hear(with);
}

task<> client::write_and_read(talk& with) {
  const std::size_t bytes = with.dice.skewed(plan_.largest_transfer);
  const std::size_t offset = word_bytes + with.dice.below(plan_.largest_transfer - bytes + 1);
  auto source = co_await allocate(bytes);
  if (!source) co_return;
  auto sink = co_await allocate(bytes);
  if (!sink) co_return;
  const std::uint64_t content = ++with.last;
  sim::fill(source->bytes(), content);
  const auto target = with.memory->slice(offset, bytes);
  std::uint32_t stop = stop_after(with);
  auto writing = limited(with.peer.write(*source, target), stop);
  const auto written = co_await attempt(with, "write", std::move(writing), stop != 0);
  if (!written) co_return;
  stop = stop_after(with);
  auto reading = limited(with.peer.read(*sink, target), stop);
  const auto read = co_await attempt(with, "read", std::move(reading), stop != 0);
  if (!read) co_return;
  if (!sim::holds(sink->bytes(), content)) give_up(score_, "a read has found other bytes than were written");
  score_.bytes += 2 * bytes;
}

task<> client::write_from_region(talk& with) {
  const std::size_t bytes = 1 + with.dice.skewed(plan_.largest_transfer - 1);
  std::vector<std::byte> memory(bytes);  // there may be none
  const std::uint64_t content = ++with.last;
  sim::fill(memory, content);
  constexpr mr::usage uses = mr::usage::write_src | mr::usage::read_dst;
  auto registering = limited(device_.domain().register_memory(std::span(memory), {.usage = uses}), 0);
  ++score_.begun;
  auto region = co_await std::move(registering);
  if (!note_outcome(region, "register_memory")) co_return;
  const auto target = with.memory->slice(word_bytes, bytes);
  auto writing = limited(with.peer.write(region->slice(0, bytes), target), 0);
  const auto written = co_await attempt(with, "write from a region", std::move(writing), false);
  if (written) {
    std::fill(memory.begin(), memory.end(), std::byte{});
    auto reading = limited(with.peer.read(region->slice(0, bytes), target), 0);
    const auto read = co_await attempt(with, "read into a region", std::move(reading), false);
    if (read) {
      if (!sim::holds(memory, content)) give_up(score_, "a read has found other bytes than were written from a region");
      score_.bytes += 2 * bytes;
    }
  }
  auto releasing = limited(region->release(), 0);
  ++score_.begun;
  const auto released = co_await std::move(releasing);
  if (!released) give_up(score_, fmt::format("a region cannot be released: {}", released.error().what()));
  ++score_.succeeded;
}

task<> client::add(talk& with) {
  const std::uint32_t stop = stop_after(with);
  auto adding = limited(with.peer.fetch_add(with.memory->slice(0, word_bytes), 1), stop);
  const auto found = co_await attempt(with, "fetch_add", std::move(adding), stop != 0);
  if (!found) {
    with.sure_of_count = false;
    co_return;
  }
  if (with.sure_of_count ? *found != with.counted : *found < with.counted) {
    give_up(score_, fmt::format("fetch_add has found {} instead of {}", *found, with.counted));
  }
  with.counted = *found + 1;
  with.sure_of_count = true;
}

task<> client::one_round(talk& with, bool atomics) {
  const std::uint64_t choice = with.dice.below(10);
  if (choice < 5) return echo(with);
  if (choice < 7 && plan_.registers) return write_from_region(with);
  return choice < 9 || !atomics ? write_and_read(with) : add(with);
}

task<> client::keep_connected(std::uint64_t number) {
  sim::random dice(seed_ * 1000 + number);
  do {
    auto connecting = limited(device_.connect(server_, options_of(plan_)), 0);
    ++score_.begun;
    auto made = co_await std::move(connecting);
    if (!note_outcome(made, "connect")) {
      co_await sleep_for(5ms);
      continue;
    }
    ++score_.connections;
    talk with{.peer = *std::move(made), .dice = dice, .memory = {}, .under_way = {}};
    with.broken = !co_await begin(with);
    const bool atomics = !with.broken && with.peer.capabilities().atomics;
    const auto goes_on = [&](unsigned round) {  // at least one, however slow the machine
      return !with.broken && (round == 0 || (!is_over() && (plan_.rounds == 0 || round < plan_.rounds)));
    };
    for (unsigned round = 0; goes_on(round); ++round) {
      try {
        co_await one_round(with, atomics);
      } catch (const std::bad_alloc&) {  // of this program's own
        if (plan_.client_bytes == 0) throw;
        ++score_.at_limit;
      }
    }
    if (!with.broken) co_await hear(with);
    auto closing = limited(with.peer.close(), 0);
    const auto closed = co_await std::move(closing);
    if (with.broken) continue;  // what closing yields then says nothing
    ++score_.begun;
    note_outcome(closed, "close");
  } while (!is_over());
}

task<> client::run() {
  const auto all = [this](scope& tasks) -> task<> {
    for (std::uint64_t i = 0; i < plan_.connections; ++i) tasks.spawn(keep_connected(i), "connection");
    co_return;
  };
  co_await with_scope(on_failure::stop_siblings, all);
}

}  // namespace

std::span<const duel> all_duels() noexcept { return duels; }

double percentile(std::span<const std::uint64_t> times, double percent) noexcept {
  std::uint64_t total = 0;
  for (const std::uint64_t count : times) total += count;
  const double wanted = std::ceil(static_cast<double>(total) * percent / 100);
  double below = 0;
  for (std::size_t bin = 0; bin < times.size(); ++bin) {
    below += static_cast<double>(times[bin]);
    if (times[bin] != 0 && below >= wanted) return std::pow(1.125, static_cast<double>(bin) + 0.5);
  }
  return 0;
}

int be_server(const duel& what, const battleground& where, bool may_fail, server_score& count) {
  const std::size_t descriptors = open_descriptors();
  {
    net::device device = open_device(what, where.device);
    {
      executor home({.dump_on_signal = SIGUSR1});
      server one(what, where, may_fail, count, device);
      home.run(one.run());
    }
    if (const std::string left = left_in(device); !left.empty()) give_up(count, "something is left: " + left);
  }
  give_up_if_open(where.device, descriptors, count);
  return 0;
}

int be_client(const duel& what, const battleground& where, const std::string& server, std::uint64_t seed, duration time,
              score& count) {
  const std::string& own = where.client_device.empty() ? where.device : where.client_device;
  const std::size_t descriptors = open_descriptors();
  {
    net::device device = open_device(what, own);
    {
      executor home({.dump_on_signal = SIGUSR1});
      if (what.client_bytes != 0) limit_to(RLIMIT_AS, bytes_of(::getpid(), false) + what.client_bytes);
      client one(what, where.may_fail(what), server, count, device, seed, home.now() + time);
      home.run(one.run());
    }
    const std::string left = left_in(device);
    if (!left.empty()) give_up(count, "something is left: " + left);
  }
  give_up_if_open(own, descriptors, count);
  const std::uint64_t ended = count.succeeded + count.failed + count.stopped;
  if (ended != count.begun) give_up(count, fmt::format("{} operations begun, {} ended", count.begun.load(), ended));
  return 0;
}

}  // namespace weft::stress
