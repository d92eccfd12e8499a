// SPDX-License-Identifier: Apache-2.0
// Looks for late writes: does an RDMA library write into memory after it has told its program that the memory is free?
// Two processes for each way to take memory back; docs/late-writer.md says what came of it.
#include <CLI/CLI.hpp>

#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <new>

#include "adapter.hpp"

namespace late_writer {
namespace {

using namespace std::literals;
using std::chrono::steady_clock;

constexpr std::byte of_peer{0xee};
constexpr std::byte of_owner{0x55};
constexpr auto patience = 5s;            // for the first byte, and in a control for one that lands late
constexpr unsigned patience_before = 4;  // times the usual watch, for bytes whose connection is yet to be made
// A process that takes longer hangs: SIGALRM ends it.
constexpr unsigned longest_seconds = 30;
constexpr unsigned longest_seconds_of_a_round = 3;

struct options {
  unsigned rounds = 8;
  unsigned control_rounds = 2;
  unsigned watch_ms = 20;
  std::size_t bytes = 4'194'304;
  std::vector<std::string> only;
  std::string tsv;
};

/// What both processes of a way find out, in memory that they share with the harness.
struct tally {
  std::atomic<bool> has_given_up{false};
  unsigned told = 0;
  unsigned completed = 0;
  unsigned untold = 0;
  unsigned late = 0;             // of those that were told or completed
  std::uint64_t most_bytes = 0;  // that landed late in one try
  double latest_ms = 0;          // after the sign
  char failure[240] = "";
};

void fail(tally& result, const std::string& why) {
  std::snprintf(result.failure, sizeof(result.failure), "%s", why.c_str());
}

/// Memory that children share with the harness, or have as a copy, and that nobody returns.
std::span<std::byte> map(std::size_t bytes, int how) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, how | MAP_ANONYMOUS, -1, 0);
  check(memory != MAP_FAILED, "mmap()", std::strerror(errno));
  return {static_cast<std::byte*>(memory), bytes};
}

/// The socket between an owner and its peer, for everything that is not the library's.
class conversation {
 public:
  explicit conversation(int socket) noexcept : socket_(socket) {}
  void say(const std::string& what) {
    check(send(socket_, what.data(), what.size(), MSG_NOSIGNAL) >= 0, "the other process has ended");
  }
  std::string hear() {
    std::string what(65'536, '\0');
    const ssize_t size = recv(socket_, what.data(), what.size(), 0);
    check(size > 0, "the other process has ended");
    what.resize(static_cast<std::size_t>(size));
    return what;
  }
  [[nodiscard]] bool has_news() const {
    pollfd one{.fd = socket_, .events = POLLIN, .revents = 0};
    return poll(&one, 1, 0) > 0;
  }

 private:
  int socket_;
};

// ---- the owner ----

// Counts the bytes that are not the owner's, and makes them the owner's again.
std::size_t take_foreign(std::span<std::byte> memory) {
  static const std::vector<std::byte> clean(4096, of_owner);
  std::size_t foreign = 0;
  for (; !memory.empty(); memory = memory.subspan(std::min(memory.size(), clean.size()))) {
    const auto page = memory.first(std::min(memory.size(), clean.size()));
    if (std::memcmp(page.data(), clean.data(), page.size()) == 0) continue;
    for (std::byte& each : page) {
      if (each == of_owner) continue;
      each = of_owner;
      ++foreign;
    }
  }
  return foreign;
}

// For so long, or until `until_one` a byte has come.
void watch(end& mine, std::span<std::byte> memory, std::chrono::milliseconds for_so_long, bool until_one,
           tally& result) {
  const auto begin = steady_clock::now();
  std::fill(memory.begin(), memory.end(), of_owner);
  std::uint64_t bytes = 0;
  do {
    mine.turn();
    const std::size_t foreign = take_foreign(memory);
    if (foreign == 0) continue;
    bytes += foreign;
    const std::chrono::duration<double, std::milli> after = steady_clock::now() - begin;
    result.latest_ms = std::max(result.latest_ms, after.count());
  } while (!(until_one && bytes != 0) && steady_clock::now() < begin + for_so_long);
  result.late += bytes != 0;
  result.most_bytes = std::max(result.most_bytes, bytes);
}

void own_once(end& mine, conversation& peer, const part& owner, bool is_control, std::chrono::milliseconds watched,
              tally& result) {
  peer.say(mine.describe());
  mine.meet(peer.hear());
  const auto latest = steady_clock::now() + patience;
  const bool waits = owner.how.when == moment::during && !owner.how.begins_in_give_up;
  while (waits && !has_begun(owner.memory)) {
    if (steady_clock::now() >= latest) throw std::runtime_error("no byte came within 5 s");
    mine.turn();
  }
  result.has_given_up = true;
  const outcome went = is_control ? outcome::told : mine.give_up();
  (went == outcome::told ? result.told : went == outcome::completed ? result.completed : result.untold) += 1;
  // A peer that writes has to be seen in a control, even if it waits for a processor meanwhile.
  const bool until_one = is_control && owner.how.what == operation::put;
  if (went != outcome::untold) watch(mine, owner.memory, until_one ? patience : watched, until_one, result);
  peer.say("stop");
  while (!peer.has_news()) mine.turn();
  peer.hear();
}

// ---- the peer ----

void write_once(end& mine, conversation& owner, tally& result) {
  owner.say(mine.describe());
  mine.meet(owner.hear());
  bool is_stopped = false;
  while (!owner.has_news()) {
    try {
      if (!is_stopped) mine.turn();
    } catch (const std::runtime_error& failure) {  // as it should be once the owner has given up
      if (!result.has_given_up) fail(result, std::string("the peer: ") + failure.what());
      is_stopped = true;
    }
  }
  owner.hear();
}

// What the processes of one way do. In a control nothing is taken back, so that whatever is in flight lands late.
struct plan {
  const library& which;
  const std::string& transport;
  const way& how;
  bool is_control;
  unsigned rounds;
  std::size_t bytes;
  std::chrono::milliseconds watched;
};

void play(const plan& all, const part& mine, conversation& other, tally& result) {
  for (unsigned round = 0; round < all.rounds; ++round) {
    std::fill(mine.memory.begin(), mine.memory.end(), mine.is_owner ? untouched : of_peer);
    auto one = all.which.open(all.transport, mine);
    for (const int each : {SIGSEGV, SIGBUS, SIGABRT}) std::signal(each, SIG_DFL);  // handlers of libraries leave files
    if (mine.is_owner) {
      result.has_given_up = false;
      own_once(*one, other, mine, all.is_control, all.watched, result);
    } else {
      write_once(*one, other, result);
      one.reset();
      other.say("gone");
    }
  }
}

// ---- the harness ----

pid_t start(bool is_owner, const plan& all, int socket, tally& result) {
  const pid_t child = fork();
  check(child >= 0, "fork()", std::strerror(errno));
  if (child != 0) return child;
  static_cast<void>(std::freopen("/dev/null", "w", stdout));  // where libraries complain about each other's ends
  alarm(longest_seconds + all.rounds * longest_seconds_of_a_round);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);  // where Yama forbids processes to copy out of each other
  conversation other(socket);
  try {
    const part mine{.is_owner = is_owner, .how = all.how, .memory = map(all.bytes, MAP_PRIVATE)};
    play(all, mine, other, result);
  } catch (const std::exception& failure) {
    if (result.failure[0] == '\0') fail(result, failure.what());
    _exit(1);
  }
  _exit(0);  // what a library does at its end is not looked at
}

// Waits for both; one that ends badly takes the other along.
void await(pid_t owner, pid_t peer, tally& result) {
  for (int left = 2; left > 0; --left) {
    int status = 0;
    const pid_t ended = wait(&status);
    if (status == 0) continue;
    const pid_t other = ended == owner ? peer : owner;
    if (left == 2) kill(other, SIGKILL);
    if (left == 1 || result.failure[0] != '\0') continue;
    const std::string who = ended == owner ? "the owner" : "the peer";
    const bool has_hung = WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM;
    fail(result, who + (has_hung ? " hung" : WIFSIGNALED(status) ? ": "s + strsignal(WTERMSIG(status)) : " ended"));
  }
}

const tally& search(const plan& all) {
  auto& result = *new (map(sizeof(tally), MAP_SHARED).data()) tally;
  int sockets[2];
  check(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) == 0, "socketpair()", std::strerror(errno));
  std::fflush(nullptr);
  const pid_t owner = start(true, all, sockets[0], result);
  const pid_t peer = start(false, all, sockets[1], result);
  close(sockets[0]);
  close(sockets[1]);
  await(owner, peer, result);
  return result;
}

const char* word_for(operation what) {
  return what == operation::put ? "put" : what == operation::get ? "get" : "receive";
}
const char* word_for(moment when) { return when == moment::before ? "before" : "during"; }
const char* word_for(documented late) {
  return late == documented::excluded ? "excluded" : late == documented::allowed ? "allowed" : "unsaid";
}

class report {
 public:
  explicit report(const std::string& tsv) : file_(tsv.empty() ? nullptr : std::fopen(tsv.c_str(), "w")) {
    check(tsv.empty() || file_ != nullptr, tsv, std::strerror(errno));
    if (file_ != nullptr) {
      std::fprintf(file_,
                   "library\tversion\ttransport\toperation\twhen\tsign\tlate writes are\tsource\ttold\tcompleted\t"
                   "untold\tlate\tmost bytes\tlatest ms\tcontrols\tlate in controls\tfailure\n");
    }
    std::printf("%-18s %-9s %-8s %-6s %-46s %5s %5s %11s %10s  %s\n", "library", "transport", "", "when", "sign",
                "times", "late", "most bytes", "latest", "late writes are, by its documentation,");
  }
  ~report() {
    if (file_ != nullptr) std::fclose(file_);
  }
  report(const report&) = delete;
  report& operator=(const report&) = delete;

  void add(const plan& all, const tally& found, const tally& control) {
    const std::string named = all.which.name + " " + all.which.version;
    const std::string sign(all.how.sign);
    const std::string source(all.how.source);
    const unsigned long long bytes = found.most_bytes;
    std::printf("%-18s %-9s %-8s %-6s %-46s %5u %5u %11llu %7.1f ms %3u of %u  %s: %s\n", named.c_str(),
                all.transport.c_str(), word_for(all.how.what), word_for(all.how.when), sign.c_str(), found.told,
                found.late, bytes, found.latest_ms, control.late, control.told, word_for(all.how.late), source.c_str());
    if (found.completed != 0) std::printf("%19s%u more had completed before\n", "", found.completed);
    if (found.untold != 0) std::printf("%19s%u more: no sign within a second\n", "", found.untold);
    if (found.failure[0] != '\0') std::printf("%19s%s\n", "", found.failure);
    std::fflush(stdout);
    if (file_ == nullptr) return;
    std::fprintf(file_, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%u\t%u\t%u\t%u\t%llu\t%.1f\t%u\t%u\t%s\n",
                 all.which.name.c_str(), all.which.version.c_str(), all.transport.c_str(), word_for(all.how.what),
                 word_for(all.how.when), sign.c_str(), word_for(all.how.late), source.c_str(), found.told,
                 found.completed, found.untold, found.late, bytes, found.latest_ms, control.told, control.late,
                 found.failure);
  }

 private:
  std::FILE* file_;
};

// Whether nothing landed late, and writes of a peer would have been seen.
bool is_proof(const plan& all, const tally& found, const tally& control) {
  const bool is_seen = all.how.what != operation::put || (found.told != 0 && control.late != 0);
  return is_seen && found.told + found.completed != 0 && found.late == 0 && found.failure[0] == '\0';
}

// Whether the library could be tried, and, if it is weft, has proved that it writes nothing late.
bool search_all(const library& which, const options& chosen, report& told) {
  if (which.transports.empty()) std::printf("%s: this machine has no device\n", which.name.c_str());
  bool is_well = true;
  bool was_tried = which.transports.empty();
  for (const std::string& transport : which.transports) {
    for (const way& how : which.ways) {
      const std::chrono::milliseconds watched(chosen.watch_ms * (how.when == moment::before ? patience_before : 1));
      const plan real{which, transport, how, false, chosen.rounds, chosen.bytes, watched};
      const unsigned controls = how.begins_in_give_up ? 0 : chosen.control_rounds;
      const plan without{which, transport, how, true, controls, chosen.bytes, watched};
      const tally& control = search(without);
      const tally& found = search(real);
      told.add(real, found, control);
      was_tried = was_tried || found.told + found.completed != 0;
      is_well = is_well && (which.name != "weft" || is_proof(real, found, control));
    }
  }
  if (!was_tried) std::printf("%s could not be tried at all\n", which.name.c_str());
  return is_well && was_tried;
}

std::vector<library> libraries() {
  std::vector<library> all;
#ifdef LATE_WRITER_VERBS
  all.push_back(verbs());
#else
  std::printf("verbs are left out: libibverbs was not found when this was built\n");
#endif
#ifdef LATE_WRITER_UCX
  all.push_back(ucx());
#else
  std::printf("UCX is left out: it was not found when this was built\n");
#endif
#ifdef LATE_WRITER_LIBFABRIC
  all.push_back(libfabric());
#else
  std::printf("libfabric is left out: it was not found when this was built\n");
#endif
  all.push_back(weft_itself());
  return all;
}

int run(int argc, char** argv) {
  options chosen;
  CLI::App app("Does an RDMA library write into memory after it has told its program that the memory is free?");
  app.add_option("--rounds", chosen.rounds, "Tries of each way")->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("--watch", chosen.watch_ms, "Milliseconds to watch the memory for")->capture_default_str();
  app.add_option("--bytes", chosen.bytes, "Of memory")->capture_default_str()->check(CLI::Range(4096, 1 << 30));
  app.add_option("--only", chosen.only, "These libraries: verbs, UCX, libfabric, weft")
      ->delimiter(',')
      ->check(CLI::IsMember({"verbs", "UCX", "libfabric", "weft"}));
  app.add_option("--tsv", chosen.tsv, "Write the table to this file as well");
  app.add_option("--control-rounds", chosen.control_rounds, "Tries of each way in which nothing is taken back")
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);

  report told(chosen.tsv);
  bool is_well = true;
  for (const auto& each : libraries()) {
    const bool is_meant = chosen.only.empty() || std::ranges::count(chosen.only, each.name) != 0;
    if (is_meant) is_well = search_all(each, chosen, told) && is_well;
  }
  return is_well ? 0 : 1;
}

}  // namespace
}  // namespace late_writer

int main(int argc, char** argv) try { return late_writer::run(argc, argv); } catch (const std::exception& failure) {
  std::fprintf(stderr, "late_writes: %s\n", failure.what());
  return 1;
}
