// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/io/socket_address.hpp>

#include <fmt/core.h>

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <cstdio>

#include "opponent.hpp"
#include <nlohmann/json.hpp>

// A request is a line of JSON, and so is its answer.
namespace weft::stress {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(opponent::news, ended, words, address, resident, received, answered, at_limit)

namespace {

using nlohmann::json;

constexpr std::size_t longest_line = 65'536;
constexpr timeval answer_timeout{.tv_sec = 60, .tv_usec = 0};  // a client asks ten times in a second
constexpr timeval patience_in_the_end{.tv_sec = 5, .tv_usec = 0};

error failure_of(const char* call) { return system_error(errno, call); }

class line_socket : private test::immovable {
 public:
  explicit line_socket(int fd) : fd_(fd) {
    ::setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &answer_timeout, sizeof answer_timeout);
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &answer_timeout, sizeof answer_timeout);
  }
  ~line_socket() { ::close(fd_); }

  void send(const json& what) {
    const std::string line = what.dump() + "\n";
    for (std::size_t done = 0; done < line.size();) {
      const ssize_t count = ::send(fd_, line.data() + done, line.size() - done, MSG_NOSIGNAL);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) throw failure_of("send(2) to the other machine's weft-stress");
      done += static_cast<std::size_t>(count);
    }
  }

  /// Nothing: the other side has gone. Calls `wait` before each wait for it.
  [[nodiscard]] std::optional<json> receive(const std::function<void(int fd)>& wait = {}) {
    std::size_t end = 0;
    while ((end = text_.find('\n')) == std::string::npos) {
      char more[4096];
      if (wait) wait(fd_);
      const ssize_t count = ::recv(fd_, more, sizeof more, 0);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) throw failure_of("recv(2) from the other machine's weft-stress");
      if (count == 0) return std::nullopt;
      text_.append(more, static_cast<std::size_t>(count));
      if (text_.size() > longest_line) throw error(errc::protocol_error, "the other machine's weft-stress");
    }
    const std::string line = text_.substr(0, end);
    text_.erase(0, end + 1);
    return json::parse(line);
  }

  /// Says that no more will come, and waits for the other side to go.
  void end() noexcept {
    ::shutdown(fd_, SHUT_WR);
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience_in_the_end, sizeof patience_in_the_end);
    for (char rest[4096]; ::recv(fd_, rest, sizeof rest, 0) > 0;) {
    }
  }

 private:
  int fd_;
  std::string text_;
};

// Opens a socket for the first address that `use` can do with.
int open_socket(const std::string& where, bool to_listen,
                const std::function<bool(int fd, const addrinfo& address)>& use) {
  const host_and_port parts = parse_host_and_port(where);
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = to_listen ? AI_PASSIVE : 0;
  addrinfo* found = nullptr;
  const int failure =
      ::getaddrinfo(parts.host.empty() ? nullptr : parts.host.c_str(), parts.port.c_str(), &wanted, &found);
  if (failure != 0) throw error(errc::invalid_address, fmt::format("{}: {}", where, ::gai_strerror(failure)));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> all(found, ::freeaddrinfo);
  int why = 0;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    const int fd = ::socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && use(fd, *one)) return fd;
    why = errno;
    if (fd >= 0) ::close(fd);
  }
  throw system_error(why, (to_listen ? "listen at " : "connect to weft-stress at ") + where);
}

class far_opponent final : public opponent {
 public:
  explicit far_opponent(const battleground& where)
      : control_(open_socket(where.far_host, false, [](int fd, const addrinfo& to) {
          return ::connect(fd, to.ai_addr, to.ai_addrlen) == 0;
        })) {
    static_cast<void>(hear());  // its greeting
  }
  ~far_opponent() override { control_.end(); }  // the next one shall not be told that this one is served

  void start(const duel& what, const std::string& address, bool may_fail) override {
    static_cast<void>(ask({{"do", "start"}, {"duel", what.name}, {"address", address}, {"may_fail", may_fail}}));
  }
  std::string kill() override { return ask({{"do", "kill"}}).at("words").get<std::string>(); }
  void freeze() override { static_cast<void>(ask({{"do", "freeze"}})); }
  void thaw() override { static_cast<void>(ask({{"do", "thaw"}})); }
  void finish() override { static_cast<void>(ask({{"do", "finish"}})); }
  news look() override { return ask({{"do", "look"}}).get<news>(); }
  std::string dump() override { return ask({{"do", "dump"}}).at("words").get<std::string>(); }

 private:
  json ask(const json& what) {
    control_.send(what);
    return hear();
  }
  json hear() {
    std::optional<json> told = control_.receive();
    if (!told) throw error(errc::peer_closed, "the other machine's weft-stress");
    if (told->contains("refused")) {
      throw error(errc::invalid_argument, "the other machine's weft-stress: " + told->at("refused").get<std::string>());
    }
    return *std::move(told);
  }

  line_socket control_;
};

const duel& duel_of(const std::string& name) {
  const auto all = all_duels();
  const auto found = std::find_if(all.begin(), all.end(), [&](const duel& one) { return one.name == name; });
  if (found == all.end()) throw error(errc::invalid_argument, "there is no duel " + name);
  return *found;
}

json obey(opponent& one, const json& request) {
  const auto what = request.at("do").get<std::string>();
  if (what == "start") {
    one.start(duel_of(request.at("duel").get<std::string>()), request.at("address").get<std::string>(),
              request.at("may_fail").get<bool>());
  } else if (what == "kill") {
    return {{"words", one.kill()}};
  } else if (what == "freeze") {
    one.freeze();
  } else if (what == "thaw") {
    one.thaw();
  } else if (what == "finish") {
    one.finish();
  } else if (what == "dump") {
    return {{"words", one.dump()}};
  } else if (what == "look") {
    return one.look();
  } else {
    return {{"refused", "nobody knows how to " + what}};
  }
  return json::object();
}

// Tells others meanwhile that this one is being served.
void wait_for(int client, int listening) {
  using std::chrono::steady_clock;
  const auto deadline = steady_clock::now() + std::chrono::seconds(answer_timeout.tv_sec);
  for (;;) {
    pollfd both[] = {{.fd = client, .events = POLLIN, .revents = 0}, {.fd = listening, .events = POLLIN, .revents = 0}};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - steady_clock::now()).count();
    if (left <= 0) throw error(errc::timed_out, "the client has been silent for a minute");
    const int ready = ::poll(both, std::size(both), static_cast<int>(left));
    if (ready < 0 && errno != EINTR) throw failure_of("poll(2)");
    if (ready > 0 && both[0].revents != 0) return;
    if (ready <= 0) continue;
    const int fd = ::accept4(listening, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) continue;
    try {
      line_socket(fd).send({{"refused", "it serves another client"}});
    } catch (const std::exception&) {  // it has gone already
    }
  }
}

// Until it goes, and with it the server.
void serve_one(const battleground& where, line_socket& control, int listening) {
  const auto own = make_near_opponent(where);
  control.send(json::object());
  while (const std::optional<json> request =
             control.receive([listening](int client) { wait_for(client, listening); })) {
    json answer;
    try {
      answer = obey(*own, *request);
    } catch (const std::exception& why) {
      answer = {{"refused", why.what()}};
    }
    control.send(answer);
  }
}

std::string name_of(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  auto* const bytes = reinterpret_cast<sockaddr*>(&address);
  if (::getsockname(fd, bytes, &length) != 0) throw failure_of("getsockname(2)");
  return socket_address(bytes, length).to_string();
}

}  // namespace

std::unique_ptr<opponent> make_far_opponent(const battleground& where) { return std::make_unique<far_opponent>(where); }

void serve_far_clients(const battleground& where, const std::string& control) {
  const int listening = open_socket(control, true, [](int fd, const addrinfo& at) {
    const int yes = 1;
    ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    return ::bind(fd, at.ai_addr, at.ai_addrlen) == 0 && ::listen(fd, 4) == 0;
  });
  fmt::print("serving at {}\n", name_of(listening));
  std::fflush(stdout);
  for (;;) {
    const int fd = ::accept4(listening, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0 && errno == EINTR) continue;
    if (fd < 0) throw failure_of("accept(2)");
    line_socket client(fd);
    try {
      serve_one(where, client, listening);
    } catch (const std::exception& why) {  // of the connection, or of what is no JSON
      fmt::print("a client is lost: {}\n", why.what());
      std::fflush(stdout);
    }
  }
}

}  // namespace weft::stress
