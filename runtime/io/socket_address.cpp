// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/core/operation.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/io/socket_address.hpp>
#include <weft/runtime/offload.hpp>
#include <weft/runtime/system/system_calls.hpp>

#include <fmt/format.h>

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

namespace weft {

static_assert(sizeof(sockaddr_storage) == 128 && alignof(sockaddr_storage) == 8);

socket_address::socket_address(const sockaddr* address, socklen_t length) noexcept
    : length_(std::min<socklen_t>(length, sizeof storage_)) {
  std::memcpy(storage_.data(), address, length_);
}

int socket_address::family() const noexcept { return reinterpret_cast<const sockaddr_storage*>(&storage_)->ss_family; }

std::uint16_t socket_address::port() const noexcept {
  if (family() == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in*>(&storage_)->sin_port);
  if (family() == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_port);
  return 0;
}

bool socket_address::is_loopback() const noexcept {
  if (family() == AF_INET) {
    return (ntohl(reinterpret_cast<const sockaddr_in*>(&storage_)->sin_addr.s_addr) >> 24) == 127;
  }
  if (family() != AF_INET6) return false;
  const in6_addr& address = reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&address) || (IN6_IS_ADDR_V4MAPPED(&address) && address.s6_addr[12] == 127);
}

std::string socket_address::to_string() const {
  if (family() != AF_INET && family() != AF_INET6) return "an unknown address";
  std::array<char, NI_MAXHOST> host{};
  // Unlike inet_ntop(3), getnameinfo(3) writes the scope of a link-local address, which is needed to connect to it.
  ::getnameinfo(data(), length_, host.data(), host.size(), nullptr, 0, NI_NUMERICHOST);
  return family() == AF_INET ? fmt::format("{}:{}", host.data(), port()) : fmt::format("[{}]:{}", host.data(), port());
}

host_and_port parse_host_and_port(std::string_view text) {
  const auto refuse = [&](const char* why) {
    throw error(errc::invalid_address, fmt::format("not HOST:PORT ({})", why));
  };
  if (text.find("://") != std::string_view::npos)
    refuse("remove the scheme; only byte streams take one such as tcp://");
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) refuse("no port");
  std::string_view host = text.substr(0, colon);
  const std::string_view port = text.substr(colon + 1);
  if (port.empty()) refuse("the port is empty");
  if (host.starts_with('[') != host.ends_with(']')) refuse("write the host as [IPv6 address]");
  if (host.starts_with('[')) {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    refuse("an IPv6 address must be in brackets");
  }
  const bool numeric = std::all_of(port.begin(), port.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (numeric && (port.size() > 5 || std::stoul(std::string(port)) > 65535)) refuse("a port is at most 65535");
  return {std::string(host), std::string(port)};
}

namespace {

using address_list = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

// Calls getaddrinfo(3). Returns 0 with the addresses in `found`, or one of EAI_*.
int ask(system_calls& calls, const host_and_port& where, int flags, address_list& found) noexcept {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* list = nullptr;
  const int failure =
      calls.getaddrinfo(where.host.empty() ? nullptr : where.host.c_str(), where.port.c_str(), &hints, &list);
  if (failure == 0) found.reset(list);
  return failure;
}

error to_error(int failure, int number) {
  const std::string words = ::gai_strerror(failure);
  if (failure == EAI_SYSTEM) return system_error(number, words);
  if (failure == EAI_AGAIN) return system_error(EAGAIN, words);
  return error(failure == EAI_MEMORY ? errc::no_memory : errc::invalid_address, words);
}

// A question to the resolver, on a worker thread. getaddrinfo(3) cannot be stopped and takes long when no name server
// answers, so the waiter may leave; a question that the worker has begun lives until it has an answer.
class question final : public detail::worker_job, public detail::remote_work {
 public:
  question(system_calls& calls, host_and_port where, int flags)
      : calls_(calls), where_(std::move(where)), flags_(flags) {}

  // A wait for the answer.
  class wait final : public detail::operation_base {
   public:
    explicit wait(std::shared_ptr<question> what) noexcept : what_(std::move(what)) {}
    ~wait() {
      if (waiting()) leave();
    }
    void await_resume() const {
      if (canceled()) throw error(errc::canceled, "wait for the resolver");
    }
    [[nodiscard]] std::string describe() const override { return "an address"; }

   private:
    friend class question;
    void begin() override { what_->begin(*this); }
    void cancel() noexcept override {
      leave();
      finish();
    }
    void leave() noexcept { what_->abandon(home().workers()); }

    std::shared_ptr<question> what_;
  };

  int failure = 0;  // one of EAI_*; 0: the addresses are in `found`
  int number = 0;   // errno after the call, which counts if `failure` is EAI_SYSTEM
  address_list found{nullptr, &::freeaddrinfo};

 private:
  void begin(wait& waiter) {
    home_ = &waiter.home();
    waiter_ = &waiter;
    self_ = waiter.what_;
    try {
      home_->workers().submit(*this);
    } catch (...) {
      self_.reset();
      throw;
    }
  }

  void abandon(worker_pool& workers) noexcept {
    waiter_ = nullptr;
    if (workers.withdraw(*this)) return self_.reset();
    const std::lock_guard lock(mutex_);
    home_ = nullptr;
  }

  void run() noexcept override {
    const std::shared_ptr<question> self = self_;
    failure = ask(calls_, where_, flags_, found);
    number = errno;
    const std::lock_guard lock(mutex_);
    if (home_ != nullptr) return home_->submit(*this);  // the waiter has not left, so its executor exists
    self_.reset();
  }

  void run_on_executor() noexcept override {
    const std::shared_ptr<question> self = std::move(self_);
    if (waiter_ != nullptr) std::exchange(waiter_, nullptr)->finish();
  }

  system_calls& calls_;
  host_and_port where_;
  int flags_;
  std::shared_ptr<question> self_;  // keeps the question alive until its answer has arrived or it is withdrawn
  wait* waiter_ = nullptr;          // used only on the executor
  std::mutex mutex_;
  executor_core* home_ = nullptr;  // where the answer goes, or null; guarded by mutex_ after begin()
};

task<std::vector<socket_address>> look_up(std::string text, bool for_listening) {
  try {
    auto where = parse_host_and_port(text);
    co_return co_await resolve(std::move(where), for_listening);
  } catch (const error& why) {
    throw why.within(fmt::format("look up {}", text));
  }
}

}  // namespace

task<std::vector<socket_address>> resolve(std::string_view text, bool for_listening) {
  return look_up(std::string(text), for_listening);  // a copy: the task starts later
}

task<std::vector<socket_address>> resolve(host_and_port where, bool for_listening) {
  system_calls& calls = executor_core::current()->calls();
  const int flags = for_listening ? AI_PASSIVE : 0;
  address_list found(nullptr, &::freeaddrinfo);
  // A numeric host and port need no resolver, so this cannot block.
  if (ask(calls, where, flags | AI_NUMERICHOST | AI_NUMERICSERV, found) != 0) {
    const auto asked = std::make_shared<question>(calls, where, flags);
    question::wait answer(asked);
    co_await answer;
    if (asked->failure != 0) throw to_error(asked->failure, asked->number);
    found = std::move(asked->found);
  }
  std::vector<socket_address> addresses;
  for (const addrinfo* item = found.get(); item != nullptr; item = item->ai_next) {
    addresses.emplace_back(item->ai_addr, item->ai_addrlen);
  }
  if (for_listening && where.host.empty()) {
    std::stable_partition(addresses.begin(), addresses.end(),
                          [](const socket_address& address) { return address.family() == AF_INET6; });
  }
  co_return addresses;
}

}  // namespace weft
