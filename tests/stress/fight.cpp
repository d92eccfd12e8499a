// SPDX-License-Identifier: Apache-2.0
#include "fight.hpp"

#include <fmt/core.h>

#include <spawn.h>

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
constexpr auto grace = 60s;         // to end after the time is up, and to get over a fault
constexpr auto last_moments = 1s;   // of a server, to end of what its client has failed of
constexpr auto between_looks = 100ms;

/// A command that is run again and again, and never left in the middle.
class disturbance : private test::immovable {
 public:
  explicit disturbance(const std::string& command) : command_(command) {}
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

  [[nodiscard]] bool is_due(steady::time_point now) const { return what_.does != harm::none && now >= next_; }
  void inflict(steady::time_point now) {
    next_ = now + period;
    if (what_.does == harm::frozen) {
      victim_.freeze();
      thaws_ = now + frozen_for;
    } else {
      why_failed_ = victim_.kill();
      if (why_failed_.empty()) victim_.start(what_, address_, true);
    }
  }
  void thaw_in_time(steady::time_point now) {
    if (now >= thaws_) thaw();
  }
  void end() {
    if (thaws_ != steady::time_point::max()) thaw();
  }
  [[nodiscard]] const std::string& why_failed() const { return why_failed_; }

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
  std::string why_failed_;
};

/// Whether what makes connections fail has come about, and something has succeeded after it. Until then the client goes
/// on; and no server is killed with which nothing has. Where everything fails, nothing has been tried.
class recovery {
 public:
  recovery(const duel& what, score& count, steady::time_point end)
      : limited_(what.server_descriptors != 0 || what.client_bytes != 0),
        killed_(what.does == harm::killed),
        count_(count),
        since_(end) {
    tried_ = recovered_ = !limited_ && !killed_;
    count_.unfinished = !tried_;
  }

  void look(const opponent::news& server, steady::time_point now, bool in_time) {
    recovered_ = recovered_ || (count_.bytes > bytes_then_ && (!killed_ || server.answered != 0));
    const std::uint64_t felt = count_.at_limit + server.at_limit;
    if (limited_ && felt != felt_ && (!tried_ || (in_time && recovered_))) begin(now);
    felt_ = felt;
    count_.unfinished = !tried_ || !recovered_;
  }
  /// Something has been done to it.
  void begin(steady::time_point now) {
    tried_ = true;
    recovered_ = false;
    since_ = now;
    bytes_then_ = count_.bytes;
    count_.unfinished = true;
  }
  [[nodiscard]] bool is_tried() const noexcept { return tried_; }
  [[nodiscard]] bool is_recovered() const noexcept { return recovered_; }
  /// What takes too long, in words; empty if nothing does.
  [[nodiscard]] std::string overdue(steady::time_point now) const {
    if (!count_.unfinished || now < since_ + grace) return "";
    if (recovered_) return "what it may have was never short: nothing was tried";
    return fmt::format("nothing has succeeded for {} s{}", grace.count(), tried_ ? " after a fault" : "");
  }

 private:
  const bool limited_;
  const bool killed_;
  score& count_;
  steady::time_point since_;
  bool tried_;
  bool recovered_;
  std::uint64_t bytes_then_ = 0;  // that had come back right
  std::uint64_t felt_ = 0;
};

/// What was wrong with a server whose client has failed, of which that may have been the cause; empty if nothing was.
std::string end_of(opponent& serving) {
  try {
    const auto latest = steady::now() + last_moments;
    while (!serving.look().ended && steady::now() < latest) ::usleep(10'000);
    return serving.kill();
  } catch (const std::exception& why) {  // of the way to another machine
    return fmt::format("nothing can be said of the server: {}", why.what());
  }
}

/// What both sides say of the messages between them, where every one of them arrives; empty if it is the same.
std::string disagreement(const score& client, const opponent::news& server) {
  const bool agree = server.received >= client.sent && server.received <= client.sent + client.unsure &&
                     client.heard >= client.sent && client.heard <= server.received &&
                     server.answered <= server.received && (client.unsure != 0 || server.answered == client.sent);
  if (agree) return "";
  return fmt::format(
      "the client has sent {} messages (and {} that were stopped) and got {}; the server has got {} and sent {}",
      client.sent.load(), client.unsure.load(), client.heard.load(), server.received, server.answered);
}

}  // namespace

std::string fight(const duel& what, const battleground& where, std::uint64_t seed, std::chrono::milliseconds time,
                  score& count, const std::function<void(std::uint64_t resident)>& look) {
  const auto pause = [] { ::usleep(10'000); };
  const bool may_fail = where.may_fail(what);
  auto limit = steady::now() + time + grace;
  const auto too_late = [](auto& who) { return "it took too long\n" + who.dump(); };
  const auto while_needed = [](const opponent::news& server) {
    return (server.words.empty() ? "the server has ended" : server.words) + " (while it was needed)";
  };

  const std::unique_ptr<opponent> serving =
      where.far_host.empty() ? make_near_opponent(where) : make_far_opponent(where);
  serving->start(what, "", may_fail);
  opponent::news server;
  for (server = serving->look(); server.address.empty(); server = serving->look()) {
    if (server.ended) return server.words + " (before it listened)";
    if (steady::now() > limit) return too_late(*serving);
    pause();
  }
  const std::string address = server.address;
  const auto start = steady::now();
  const auto end = start + time;
  limit = end + (may_fail ? 2 : 1) * grace;
  recovery after(what, count, end);
  fighter calling("client", count.words);
  calling.start([&] { return be_client(what, where, address, seed, time, count); });

  harassment harm(what, address, *serving);
  disturbance elsewhere(where.disturbance);
  for (auto next_look = start; !calling.has_ended(); pause()) {
    const auto now = steady::now();
    if (now > limit) return too_late(calling);
    if (now >= next_look) {
      server = serving->look();
      if (server.ended) return while_needed(server);
      look(server.resident + calling.resident());
      next_look = now + between_looks;
    }
    after.look(server, now, now < end);
    if (const std::string why = after.overdue(now); !why.empty()) return why + "\n" + calling.dump();
    harm.thaw_in_time(now);
    if (now > end && after.is_tried()) {
      harm.end();
    } else if (after.is_recovered() && harm.is_due(now)) {
      if (what.does == harm::killed) after.begin(now);  // nor shall the client end meanwhile
      harm.inflict(now);
      if (what.does == harm::killed) after.begin(now);
      ++count.faults;
      next_look = now;  // what is known of the server is of the one before
      server = {};
    } else if (elsewhere.begins(now)) {
      ++count.faults;
    }
    if (!harm.why_failed().empty()) return harm.why_failed();
    if (!elsewhere.why_failed().empty()) return elsewhere.why_failed();
  }
  harm.end();
  elsewhere.finish();
  if (!elsewhere.why_failed().empty()) return elsewhere.why_failed();
  if (const std::string why = calling.words(); !why.empty()) {
    const std::string reason = end_of(*serving);
    return reason.empty() ? why : reason + "\n" + why;
  }
  if (count.bytes + count.stopped == 0) return "nothing has succeeded";
  serving->finish();
  while (!(server = serving->look()).ended) {
    if (steady::now() > limit) return too_late(*serving);
    pause();
  }
  count.faults += count.at_limit + server.at_limit;
  if (!server.words.empty() || may_fail) return server.words;
  return disagreement(count, server);
}

}  // namespace weft::stress
