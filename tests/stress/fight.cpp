// SPDX-License-Identifier: Apache-2.0
#include "fight.hpp"

#include <fmt/core.h>

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "fighter.hpp"
#include "opponent.hpp"

extern char** environ;

namespace weft::stress {
namespace {

using namespace std::chrono_literals;
using steady = std::chrono::steady_clock;

constexpr auto period = 400ms;      // of what is done to the server
constexpr auto frozen_for = 150ms;  // shorter than any patience
constexpr auto calm = 2s;           // between disturbances
constexpr auto grace = 60s;         // to end after the time is up
constexpr auto between_looks = 100ms;

/// A command that is run again and again, and never left in the middle.
class disturbance {
 public:
  explicit disturbance(const std::string& command) : command_(command) {}
  disturbance(const disturbance&) = delete;
  disturbance& operator=(const disturbance&) = delete;
  ~disturbance() { finish(); }

  /// Whether it has begun once more.
  [[nodiscard]] bool begins(steady::time_point now) {
    if (process_ > 0) {
      if (!has_ended(WNOHANG)) return false;
      next_ = now + calm;
    }
    if (command_.empty() || now < next_) return false;
    const char* const words[] = {"sh", "-c", command_.c_str(), nullptr};
    const int failure = ::posix_spawn(&process_, "/bin/sh", nullptr, nullptr, const_cast<char* const*>(words), environ);
    if (failure != 0) throw system_error(failure, "run " + command_);
    return true;
  }
  /// Waits for the one that goes on.
  void finish() {
    if (process_ > 0) static_cast<void>(has_ended(0));
  }
  [[nodiscard]] const std::string& why_failed() const { return why_failed_; }

 private:
  [[nodiscard]] bool has_ended(int flags) {
    int status = 0;
    pid_t found = 0;
    while ((found = ::waitpid(process_, &status, flags)) < 0 && errno == EINTR) {
    }
    if (found == 0) return false;
    process_ = 0;
    if (status != 0) why_failed_ = fmt::format("the command that disturbs has failed: {}", command_);
    return true;
  }

  const std::string& command_;
  pid_t process_ = 0;
  steady::time_point next_ = steady::now() + calm / 2;
  std::string why_failed_;
};

/// What is done to a server, again and again.
class harassment {
 public:
  harassment(const duel& what, const std::string& address, opponent& victim)
      : what_(what), address_(address), victim_(victim) {}

  /// Whether something was done to it.
  [[nodiscard]] bool go_on(steady::time_point now) {
    if (now >= thaws_) thaw();
    if (what_.does == harm::none || now < next_) return false;
    next_ = now + period;
    if (what_.does == harm::frozen) {
      victim_.freeze();
      thaws_ = now + frozen_for;
    } else {
      victim_.kill();
      victim_.start(what_, address_);
    }
    return true;
  }
  void end() {
    if (thaws_ != steady::time_point::max()) thaw();
  }

 private:
  void thaw() {
    victim_.thaw();
    thaws_ = steady::time_point::max();
  }

  const duel& what_;
  const std::string& address_;
  opponent& victim_;
  steady::time_point next_ = steady::now() + period;
  steady::time_point thaws_ = steady::time_point::max();
};

}  // namespace

std::string fight(const duel& what, const battleground& where, std::uint64_t seed, std::chrono::milliseconds time,
                  score& count, const std::function<void(std::uint64_t resident)>& look) {
  const auto pause = [] { ::usleep(10'000); };
  const auto start = steady::now();
  const auto limit = start + time + grace;
  const auto too_late = [](auto& who) { return "it took too long\n" + who.dump(); };

  const std::unique_ptr<opponent> serving =
      where.far_host.empty() ? make_near_opponent(where) : make_far_opponent(where);
  serving->start(what, "");
  opponent::news server;
  for (server = serving->look(); server.address.empty(); server = serving->look()) {
    if (server.ended) return server.words + " (before it listened)";
    if (steady::now() > limit) return too_late(*serving);
    pause();
  }
  const std::string address = server.address;
  fighter calling("client", count.words);
  calling.start([&] { return be_client(what, where, address, seed, time, count); });

  harassment harm(what, address, *serving);
  disturbance elsewhere(where.disturbance);
  for (auto next_look = start; !calling.has_ended(); pause()) {
    const auto now = steady::now();
    if (now > limit) return too_late(calling);
    if (now >= next_look) {
      server = serving->look();
      if (server.ended) return server.words + " (while it was needed)";
      look(server.resident + calling.resident());
      next_look = now + between_looks;
    }
    if (now > start + time) {
      harm.end();
    } else if (harm.go_on(now)) {
      ++count.faults;
    } else if (elsewhere.begins(now)) {
      ++count.faults;
    }
    if (!elsewhere.why_failed().empty()) return elsewhere.why_failed();
  }
  harm.end();
  elsewhere.finish();
  if (!elsewhere.why_failed().empty()) return elsewhere.why_failed();
  if (std::string why = calling.words(); !why.empty()) return why;
  serving->finish();
  while (!(server = serving->look()).ended) {
    if (steady::now() > limit) return too_late(*serving);
    pause();
  }
  return server.words;
}

}  // namespace weft::stress
