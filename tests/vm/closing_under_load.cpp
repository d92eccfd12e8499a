// SPDX-License-Identifier: Apache-2.0
// closing_under_load: ends busy connections in every way there is, at moments that come from a seed.
//
// A trial connects two ends that do all they can to each other, and then closes, aborts or destroys them, stops or
// destroys some of their tasks, stops the set-up, or kills the process of one end. After it every task must have ended,
// once, and nothing may be left: pool memory, descriptors, queue pairs; after all of them, no region either. Built with
// the address sanitizer it proves more. What fails says how to do that trial again.
#include <weft/runtime/core/stop_shield.hpp>
#include <weft/weft.hpp>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <signal.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <list>
#include <random>
#include <sstream>

#include "../sim/loose_task.hpp"

using namespace weft;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t open_bytes = 40'000;
constexpr std::size_t message_bytes = 4000;
constexpr mr::usage everything = mr::usage::write_dst | mr::usage::read_src | mr::usage::atomic_dst;
constexpr unsigned longest_trial_s = 600;  // one takes two minutes in a slow build beside much else

using generator = std::mt19937;
std::size_t below(generator& random, std::size_t limit) { return random() % limit; }
bool one_in(generator& random, std::size_t limit) { return below(random, limit) == 0; }

task<> pause_for_a_while(generator& random) {
  for (std::size_t turns = below(random, 8); turns > 0; --turns) co_await yield();
  if (one_in(random, 2)) co_await sleep_for(std::chrono::microseconds(below(random, 5000)));
}

net::connection_options options() {
  net::connection_options how{.receive_size = message_bytes,
                              .receive_depth = 4,
                              .send_depth = 16,
                              .close_timeout = 200ms,
                              .dead_peer_after = 2s};
  return how;
}

/// How many tasks there are. Each holds its presence from before it begins until its frame goes.
class tally {
 public:
  class presence_holder : private weft::test::immovable {
   public:
    explicit presence_holder(tally& all) noexcept : all_(all) { ++all_.present_; }
    ~presence_holder() {
      if (--all_.present_ == 0) all_.changed_.set();
    }

   private:
    tally& all_;
  };

  using presence = std::unique_ptr<presence_holder>;

  [[nodiscard]] presence enter() { return std::make_unique<presence_holder>(*this); }
  [[nodiscard]] task<> until_none() {
    while (present_ != 0) {
      changed_.reset();
      co_await changed_.wait();
    }
  }

 private:
  std::size_t present_ = 0;
  event changed_;
};

// ---- what the ends do to each other ----

/// One end of a connection with what it lets the other one use.
struct side {
  side(net::device& on, mr::slice memory) : device(on), own(memory) {}

  net::device& device;
  mr::slice own;  // borrowed by operations
  std::optional<net::connection> peer;
  std::optional<net::exposure> open;
  std::optional<mr::remote_region> there;
};

// Somebody may have destroyed it.
net::connection& peer_of(side& at) {
  if (!at.peer) throw error(errc::closed);
  return *at.peer;
}

// Tells the other end of memory of ours, where the device has windows.
task<> introduce(side& at) {
  auto note = co_await at.device.pool().allocate(mr::remote_region::max_packed_bytes);
  std::ranges::fill(note.bytes(), std::byte{0});
  try {
    auto memory = co_await at.device.pool().allocate(open_bytes);
    at.open.emplace(co_await peer_of(at).expose(std::move(memory), everything));
    std::ranges::copy(at.open->remote().pack(), note.data());
  } catch (const error& why) {
    if (why.code() != errc::not_supported) throw;
  }
  co_await peer_of(at).send(std::move(note));
  const auto answer = co_await peer_of(at).recv_or_throw();
  if (std::ranges::any_of(answer.bytes(), [](std::byte each) { return each != std::byte{0}; })) {
    at.there = mr::remote_region::unpack(answer.bytes());
  }
}

mr::remote_slice some_of(const mr::remote_region& there, generator& random, std::size_t bytes) {
  return there.slice(8 * below(random, (open_bytes - bytes) / 8), bytes);
}

task<> send(side& at, generator& random) {
  auto payload = co_await at.device.pool().allocate(1 + below(random, message_bytes));
  co_await peer_of(at).send(std::move(payload));
}

task<> receive(side& at, generator&) {
  const auto message = co_await peer_of(at).recv();
  if (!message) throw error(errc::peer_closed);
}

task<> write(side& at, generator& random) {
  auto source = co_await at.device.pool().allocate(1 + below(random, open_bytes / 2));
  const auto target = some_of(*at.there, random, source.size());
  for (std::size_t times = below(random, 4); times > 0; --times) co_await peer_of(at).write(source, target);
}

task<> read(side& at, generator& random) {
  auto target = co_await at.device.pool().allocate(1 + below(random, open_bytes / 2));
  const auto source = some_of(*at.there, random, target.size());
  co_await peer_of(at).read(target, source);
}

task<> flush(side& at, generator& random) { co_await peer_of(at).flush(some_of(*at.there, random, 8)); }

task<> add(side& at, generator& random) {
  const auto where = some_of(*at.there, random, 8);
  if (!peer_of(at).capabilities().atomics) co_return co_await flush(at, random);
  static_cast<void>(co_await peer_of(at).fetch_add(where, 1));
}

task<> do_a_batch(side& at, generator& random) {
  auto source = co_await at.device.pool().allocate(100);
  auto message = co_await at.device.pool().allocate(100);
  const auto target = some_of(*at.there, random, source.size());
  std::vector<net::transfer> members;
  for (std::size_t i = below(random, 12); i > 0; --i) members.push_back(peer_of(at).write(source, target));
  members.push_back(peer_of(at).flush(target));
  members.push_back(peer_of(at).send(std::move(message)));
  co_await peer_of(at).batch(members);
}

// Not to be destroyed in the middle: workers, and the user's own memory, are in it.
task<> write_what_is_borrowed(side& at, generator& random) {
  co_await peer_of(at).write(at.own, some_of(*at.there, random, at.own.size()));
}

task<> read_what_is_borrowed(side& at, generator& random) {
  co_await peer_of(at).read(at.own, some_of(*at.there, random, at.own.size()));
}

task<> expose(side& at, generator& random) {
  auto memory = co_await at.device.pool().allocate(1 + below(random, open_bytes));
  auto open = co_await peer_of(at).expose(std::move(memory), everything);
  if (one_in(random, 2)) co_await open.revoke();
}

task<> bind(side& at, generator&) {
  auto window = co_await peer_of(at).expose(at.own, everything);
  co_await window.revoke();
}

using job = task<> (*)(side&, generator&);
constexpr std::array<job, 7> destructible_jobs = {send, receive, write, read, flush, add, do_a_batch};
constexpr std::array<job, 4> indestructible_jobs = {write_what_is_borrowed, read_what_is_borrowed, expose, bind};
constexpr std::size_t two_sided = 2;  // the first of them

/// Does the job again and again until it fails, as sooner or later it must.
task<> work(side& at, job what, unsigned seed, tally::presence) {
  generator random(seed);
  try {
    while (at.peer) co_await what(at, random);
  } catch (const error&) {
  }
}

/// The same, which can be stopped by itself.
task<> work_until_stopped(side& at, job what, unsigned seed, tally::presence, std::optional<linked_stop_source>& stop) {
  detail::promise_base& self = co_await detail::current_promise();
  const stop_token outer = self.get_stop_token();
  stop.emplace(outer);
  self.set_stop_token(stop->get_token());
  co_await work(at, what, seed, nullptr);
  self.set_stop_token(outer);
  stop.reset();
}

using sim::loose_task;

loose_task run(task<> body) { co_await std::move(body); }

/// Destroys tasks when the executor is about to sleep: a task that could go on must not be destroyed, and then there is
/// none.
class destroyer final : public poller, private weft::test::immovable {
 public:
  destroyer() : never_(::eventfd(0, EFD_CLOEXEC)) { executor::current()->add_poller(*this); }
  ~destroyer() {
    executor::current()->remove_poller(*this);
    ::close(never_);
  }

  void destroy(std::vector<loose_task>& tasks) noexcept { tasks_ = &tasks; }

 private:
  std::size_t poll(std::size_t) noexcept override { return std::exchange(done_, 0); }
  void arm() noexcept override {
    if (tasks_ == nullptr) return;
    std::exchange(tasks_, nullptr)->clear();
    done_ = 1;
  }
  void disarm() noexcept override {}
  int wait_fd() const noexcept override { return never_; }

  int never_;
  std::vector<loose_task>* tasks_ = nullptr;
  std::size_t done_ = 0;
};

task<> close(side& at, tally::presence) {
  try {
    if (at.peer) co_await at.peer->close();
  } catch (const error&) {
  }
}

/// Two ends, or one if the other is a process of its own, at work.
class load {
 public:
  load(scope& tasks, generator& random) : tasks_(tasks), random_(random) {}

  void start(side& at) {
    for (std::size_t count = 3 + below(random_, 8); count > 0; --count) start_one(at);
  }

  void stop_some() {
    for (auto& each : stops_) {
      if (each && one_in(random_, 3)) each->request_stop();
    }
  }
  void destroy_some() noexcept { destroyer_.destroy(destructible_); }
  void close_one(side& at) { tasks_.spawn(close(at, all_.enter())); }
  [[nodiscard]] task<> end() { return all_.until_none(); }

 private:
  void start_one(side& at) {
    const auto seed = static_cast<unsigned>(random_());
    const std::size_t kinds = at.there ? destructible_jobs.size() : two_sided;
    if (one_in(random_, 3)) {
      destructible_.push_back(run(work(at, destructible_jobs[below(random_, kinds)], seed, all_.enter())));
      return destructible_.back().start(*executor::current());
    }
    const std::size_t chosen = below(random_, at.there ? kinds + indestructible_jobs.size() : kinds);
    const job what = chosen < kinds ? destructible_jobs[chosen] : indestructible_jobs[chosen - kinds];
    tasks_.spawn(work_until_stopped(at, what, seed, all_.enter(), stops_.emplace_back()));
  }

  scope& tasks_;
  generator& random_;
  tally all_;
  std::list<std::optional<linked_stop_source>> stops_;
  destroyer destroyer_;
  std::vector<loose_task> destructible_;  // goes first, when all of them have ended
};

// ---- a process to kill ----

/// Forks processes on request, from one that has no threads and no device.
class nursery : private weft::test::immovable {
 public:
  struct request {
    char what;  // 'b'egin, 'k'ill
    unsigned seed;
    char address[64];
  };

  explicit nursery(int (*child)(const request&)) {
    if (::pipe(requests_.data()) != 0 || ::pipe(answers_.data()) != 0) throw std::runtime_error("no pipe");
    std::fflush(nullptr);
    const pid_t made = ::fork();
    if (made < 0) throw std::runtime_error("no process");
    ::close(requests_[made == 0 ? 1 : 0]);
    ::close(answers_[made == 0 ? 0 : 1]);
    if (made == 0) serve(child);
  }
  ~nursery() {
    ::close(requests_[1]);
    ::close(answers_[0]);
    ::wait(nullptr);
  }

  void begin(unsigned seed, const std::string& address) {
    request wanted{.what = 'b', .seed = seed, .address = {}};
    address.copy(wanted.address, sizeof wanted.address - 1);
    ask(wanted);
  }
  /// When it returns, there is no such process.
  void kill() { ask({.what = 'k', .seed = 0, .address = {}}); }

 private:
  void ask(const request& what) {
    char answer = 0;
    if (::write(requests_[1], &what, sizeof what) != sizeof what || ::read(answers_[0], &answer, 1) != 1) {
      throw std::runtime_error("the nursery has died");
    }
  }

  [[noreturn]] void serve(int (*child)(const request&)) {
    request what{};
    pid_t running = 0;
    while (::read(requests_[0], &what, sizeof what) == sizeof what) {
      if (what.what == 'b') running = ::fork();
      if (running == 0) ::_exit(child(what));
      if (what.what == 'k') {
        ::kill(running, SIGKILL);
        ::waitpid(running, nullptr, 0);
      }
      if (::write(answers_[1], "", 1) != 1) break;
    }
    ::_exit(0);
  }

  std::array<int, 2> requests_{};
  std::array<int, 2> answers_{};
};

net::device_options small_pool() {
  net::device_options how{
      .pool = {.max_bytes = std::size_t{32} << 20, .arena_bytes = std::size_t{1} << 20, .huge_pages = false}};
  return how;
}

mr::registration_options for_borrowing() {
  mr::registration_options how{.usage = mr::usage::bind_window | mr::usage::write_src | mr::usage::read_dst};
  return how;
}

// Works until its end comes, be it that the other end closes.
task<> visit(net::device& device, std::string address, unsigned seed) {
  generator random(seed);
  const auto region = co_await device.domain().register_memory(std::vector<std::byte>(1000), for_borrowing());
  side mine(device, region.slice());
  mine.peer.emplace(co_await device.connect(address, options()));
  co_await introduce(mine);
  const auto body = [&](scope& tasks) -> task<> {
    load both(tasks, random);
    both.start(mine);
    co_await both.end();
  };
  co_await with_scope(on_failure::report, body);
}

std::string device_name = "iwarp";

int child(const nursery::request& what) {
  try {
    auto device = net::device::open(device_name, small_pool());
    executor home({.policy = poll_policy::sleep});
    home.run(visit(device, what.address, what.seed));
  } catch (const std::exception&) {  // its parent was quicker
  }
  return 0;
}

// ---- trials ----

/// Ends things, one after the other, in one way and another.
task<> make_trouble(load& both, side& client, side& server, generator& random) {
  for (std::size_t times = 1 + below(random, 5); times > 0; --times) {
    co_await pause_for_a_while(random);
    side& one = one_in(random, 2) ? client : server;
    switch (below(random, 7)) {
      case 0:
        both.close_one(one);
        break;
      case 1:
        if (one.peer) one.peer->abort();
        break;
      case 2:
        one.peer.reset();
        break;
      case 3:
        one.open.reset();
        break;
      case 4:
        both.destroy_some();
        break;
      default:
        both.stop_some();
        break;
    }
  }
}

task<net::connection> accept_one(net::listener& from) {
  auto request = co_await from.next();
  if (!request) throw error(errc::closed);
  co_return co_await request->accept(options());
}

task<> connect_both(side& client, side& server, const std::string& address) {
  auto listener = co_await client.device.listen(address);
  auto [made, accepted] =
      co_await when_all(client.device.connect(std::string(listener.address()), options()), accept_one(listener));
  client.peer.emplace(std::move(made));
  server.peer.emplace(std::move(accepted));
  co_await when_all(introduce(client), introduce(server));
}

task<> end_both(net::device& device, const std::string& address, generator& random) {
  const auto region = co_await device.domain().register_memory(std::vector<std::byte>(1000), for_borrowing());
  side client(device, region.slice());
  side server(device, region.slice());
  co_await connect_both(client, server, address);
  const auto body = [&](scope& tasks) -> task<> {
    const detail::stop_shield shield(co_await detail::current_promise());
    load both(tasks, random);
    both.start(client);
    both.start(server);
    co_await make_trouble(both, client, server, random);
    client.peer.reset();
    server.peer.reset();
    co_await both.end();
  };
  co_await with_scope(on_failure::report, body);
}

task<> stop_it(scope& tasks, generator random) {
  co_await sleep_for(std::chrono::microseconds(below(random, 30'000)));
  tasks.request_stop();
}

// The moment may well be in the middle of the set-up.
task<> stop_all(net::device& device, const std::string& address, generator& random) {
  const auto body = [&](scope& tasks) -> task<> {
    const detail::promise_base& self = co_await detail::current_promise();
    const generator when(static_cast<unsigned>(random()));
    tasks.spawn(stop_it(tasks, when));
    try {
      co_await end_both(device, address, random);
    } catch (const error&) {
      if (!self.get_stop_token().stop_requested()) throw;
    }
  };
  co_await with_scope(on_failure::stop_siblings, body);
}

task<> kill_soon(nursery& others, net::listener& listener, generator random) {
  co_await sleep_for(std::chrono::microseconds(below(random, 300'000)));
  others.kill();
  listener.close();
}

// Without a word from us: all that goes on here has to end because the peer has died.
task<> kill_peer(net::device& device, const std::string& address, generator& random, nursery& others) {
  const auto region = co_await device.domain().register_memory(std::vector<std::byte>(1000), for_borrowing());
  side mine(device, region.slice());
  const bool at_any_moment = one_in(random, 3);
  auto listener = co_await device.listen(address);
  others.begin(static_cast<unsigned>(random()), std::string(listener.address()));
  const auto body = [&](scope& tasks) -> task<> {
    const generator when(static_cast<unsigned>(random()));
    if (at_any_moment) tasks.spawn(kill_soon(others, listener, when));
    try {
      mine.peer.emplace(co_await accept_one(listener));
      co_await introduce(mine);
    } catch (const error&) {
      if (!at_any_moment) throw;
      co_return;
    }
    load both(tasks, random);
    both.start(mine);
    co_await pause_for_a_while(random);
    if (!at_any_moment) others.kill();
    co_await both.end();
  };
  co_await with_scope(on_failure::stop_siblings, body);
}

/// Each with what it refers to.
std::vector<std::string> open_descriptors() {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    found.push_back(fmt::format("{} {}", entry.path().filename().native(), read_symlink(entry.path()).native()));
  }
  std::sort(found.begin(), found.end());
  return found;
}

/// What RDMA devices hold for everybody: rdma-resource(8).
std::string rdma_resources() {
  if (device_name == "iwarp") return {};
  std::string said;
  FILE* const output = ::popen("rdma resource show", "r");
  for (int next = std::fgetc(output); next != EOF; next = std::fgetc(output)) said.push_back(static_cast<char>(next));
  if (::pclose(output) != 0 || said.empty()) throw std::runtime_error("rdma resource show does not work");
  return said;
}

/// The queue pairs and connection manager ids among them; the rest stays until the executor and the device go.
std::string connections_in(const std::string& resources) {
  std::string found;
  std::istringstream words(resources);
  for (std::string word, number; words >> word;) {
    if ((word == "qp" || word == "cm_id") && words >> number) found.append(word).append(" ").append(number).append(" ");
  }
  return found;
}

void expect_same(const char* what, const auto& before, const auto& now) {
  if (before != now) throw std::runtime_error(fmt::format("{}: {} before, {} after", what, before, now));
}

void expect_as_many(const std::vector<std::string>& before, const std::vector<std::string>& now) {
  if (before.size() == now.size()) return;
  throw std::runtime_error(
      fmt::format("descriptors: {} before, {} after: {}", before.size(), now.size(), fmt::join(now, ", ")));
}

void expect_nothing_left(net::device& device) {
  const mr::pool_statistics left = device.pool().statistics();
  for (const mr::budget share : {mr::budget::send, mr::budget::receive}) {
    expect_same("bytes of the pool in use", std::size_t{0}, left.of(share).in_use_bytes);
    expect_same("allocations that wait", std::size_t{0}, left.of(share).waiting);
  }
}

/// Of the trial that runs, for when it never ends.
char what_hangs[200];

void hang(int) {
  const auto length = static_cast<std::size_t>(std::char_traits<char>::length(what_hangs));
  static_cast<void>(::write(STDERR_FILENO, what_hangs, length));
  std::abort();
}

task<> one_trial(net::device& device, const std::string& address, unsigned seed, nursery& others) {
  generator random(seed);
  const std::size_t kind = below(random, 8);
  if (kind == 0) co_return co_await kill_peer(device, address, random, others);
  if (kind <= 2) co_return co_await stop_all(device, address, random);
  co_await end_both(device, address, random);
}

task<> connect_once(net::device& device, const std::string& address) {
  const auto region = co_await device.domain().register_memory(std::vector<std::byte>(1000), for_borrowing());
  side client(device, region.slice());
  side server(device, region.slice());
  co_await connect_both(client, server, address);
}

class trials {
 public:
  trials(std::string address, unsigned seed, nursery& others)
      : address_(std::move(address)), seed_(seed), others_(others) {
    home_.run(connect_once(device_, address_));  // what an executor keeps for a device is there from now on
    descriptors_ = open_descriptors();
  }

  void run(unsigned number) {
    const std::string again =
        fmt::format("trial {} of seed {} (--seed {} --first {} --trials 1)", number, seed_, seed_, number);
    *fmt::format_to_n(what_hangs, sizeof what_hangs - 1, "closing_under_load: {} does not end\n", again).out = '\0';
    ::alarm(longest_trial_s);
    try {
      home_.run(one_trial(device_, address_, seed_ * 1'000'003 + number, others_));
      check(number);
    } catch (const std::exception& why) {
      throw std::runtime_error(fmt::format("{}: {}", again, why.what()));
    }
    ::alarm(0);
  }

 private:
  void check(unsigned number) {
    expect_nothing_left(device_);
    expect_as_many(descriptors_, open_descriptors());
    if (number % 50 == 0) expect_same("queue pairs", connections_, connections_in(rdma_resources()));
  }

  std::string address_;
  unsigned seed_;
  nursery& others_;
  std::string connections_ = connections_in(rdma_resources());
  std::vector<std::string> descriptors_;
  net::device device_ = net::device::open(device_name, small_pool());
  executor home_{executor_options{.policy = poll_policy::sleep}};
};

void use_a_device(const std::string& address) {
  auto device = net::device::open(device_name, small_pool());
  executor home;
  home.run(connect_once(device, address));
}

void run_trials(const std::string& address, unsigned seed, unsigned first, unsigned count, nursery& others) {
  use_a_device(address);  // librdmacm keeps a context of each until the process ends
  const std::string resources = rdma_resources();
  const std::vector<std::string> descriptors = open_descriptors();
  {
    trials all(address, seed, others);
    for (unsigned number = first; number < first + count; ++number) all.run(number);
  }
  expect_same("resources", resources, rdma_resources());
  expect_as_many(descriptors, open_descriptors());
}

}  // namespace

int main(int argc, char** argv) {
  std::string address = "127.0.0.1:0";
  unsigned seed = 1;
  unsigned first = 0;
  unsigned count = 1000;
  CLI::App app("Ends busy connections in every way there is");
  app.add_option("--device", device_name);
  app.add_option("--address", address, "of this device, with port 0");
  app.add_option("--seed", seed);
  app.add_option("--first", first, "the number of the first trial");
  app.add_option("--trials", count);
  CLI11_PARSE(app, argc, argv);
  try {
    nursery others(child);
    ::signal(SIGALRM, hang);
    run_trials(address, seed, first, count, others);
  } catch (const std::exception& failure) {
    fmt::print(stderr, "closing_under_load: {}\n", failure.what());
    return 1;
  }
  fmt::print("{} trials over {}\n", count, device_name);
}
