// SPDX-License-Identifier: Apache-2.0
#include "packets.hpp"

#include <weft/runtime/error.hpp>
#include <weft/runtime/system/descriptor.hpp>
#include <weft/runtime/system/system_calls.hpp>

#include <fmt/core.h>

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <mutex>
#include <set>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

namespace info {
namespace {

using clock = std::chrono::steady_clock;
using namespace std::chrono_literals;
using weft::descriptor;

constexpr std::uint32_t largest_packet = 65535;
constexpr std::uint32_t smallest_probe = 576;  // what every host of IPv4 takes
constexpr std::string_view mark = "weftinfo";
constexpr std::size_t head_bytes = 16;  // mark and token
constexpr auto patience_with_a_packet = 250ms;
constexpr int tries_of_a_size = 3;

struct endpoint {
  sockaddr_storage address{};
  socklen_t bytes = 0;

  [[nodiscard]] bool is_six() const noexcept { return address.ss_family == AF_INET6; }
  [[nodiscard]] const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&address); }
};

descriptor owned(int fd) noexcept { return {fd, weft::system_calls::kernel()}; }

[[noreturn]] void refuse(int number, const char* what) { throw weft::system_error(number, what); }

endpoint endpoint_of(const weft::socket_address& from) {
  endpoint made;
  made.bytes = std::min<socklen_t>(from.size(), sizeof made.address);
  std::memcpy(&made.address, from.data(), made.bytes);
  return made;
}

// "HOST:PORT", "[::1]:PORT", ":PORT": of this machine.
endpoint look_up_own(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos) throw weft::error(weft::errc::invalid_address, text);
  std::string host = text.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  hints.ai_flags = AI_NUMERICSERV | AI_PASSIVE;
  addrinfo* list = nullptr;
  const int failure = ::getaddrinfo(host.empty() ? nullptr : host.c_str(), text.c_str() + colon + 1, &hints, &list);
  if (failure != 0)
    throw weft::error(weft::errc::invalid_address, fmt::format("{}: {}", text, ::gai_strerror(failure)));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(list, ::freeaddrinfo);
  endpoint found;
  found.bytes = std::min<socklen_t>(list->ai_addrlen, sizeof found.address);
  std::memcpy(&found.address, list->ai_addr, found.bytes);
  return found;
}

// What a server answers comes from the address that it was asked at, whatever its routes say: the client's socket is
// connected, and takes no packet of another address.
void tell_destinations(int fd, bool six) {
  const int yes = 1;
  const int level = six ? IPPROTO_IPV6 : IPPROTO_IP;
  if (::setsockopt(fd, level, six ? IPV6_RECVPKTINFO : IP_PKTINFO, &yes, sizeof yes) != 0)
    refuse(errno, "ask for the address of packets (IP_PKTINFO)");
}

// The control message that came with a packet becomes the one that goes with its answer.
void turn_around(msghdr& packet) noexcept {
  for (cmsghdr* each = CMSG_FIRSTHDR(&packet); each != nullptr; each = CMSG_NXTHDR(&packet, each)) {
    if (each->cmsg_level != IPPROTO_IP || each->cmsg_type != IP_PKTINFO) continue;
    in_pktinfo where;
    std::memcpy(&where, CMSG_DATA(each), sizeof where);
    where.ipi_ifindex = 0;
    where.ipi_spec_dst = where.ipi_addr;
    std::memcpy(CMSG_DATA(each), &where, sizeof where);
  }
}

// Its packets are not fragmented, and the kernel does not keep back what it believes to be too large.
descriptor make_socket(const endpoint& where) {
  descriptor made = owned(::socket(where.address.ss_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (made.fd() < 0) refuse(errno, "make a UDP socket");
  static_assert(IP_PMTUDISC_PROBE == IPV6_PMTUDISC_PROBE);
  const int probe = IP_PMTUDISC_PROBE;
  const int level = where.is_six() ? IPPROTO_IPV6 : IPPROTO_IP;
  const int name = where.is_six() ? IPV6_MTU_DISCOVER : IP_MTU_DISCOVER;
  if (::setsockopt(made.fd(), level, name, &probe, sizeof probe) != 0)
    refuse(errno, "forbid fragments (IP_MTU_DISCOVER)");
  return made;
}

descriptor connect_socket(const endpoint& where) {
  descriptor made = make_socket(where);
  if (::connect(made.fd(), where.get(), where.bytes) != 0) refuse(errno, "find a route");
  return made;
}

std::uint64_t token_in(std::span<const std::byte> packet) noexcept {
  std::uint64_t token = 0;
  for (std::size_t i = head_bytes; i-- > mark.size();) token = token << 8 | std::to_integer<std::uint64_t>(packet[i]);
  return token;
}

bool is_marked(std::span<const std::byte> packet) noexcept {
  return packet.size() >= head_bytes && std::memcmp(packet.data(), mark.data(), mark.size()) == 0;
}

void write_head(std::span<std::byte> packet, std::uint64_t token) noexcept {
  std::memcpy(packet.data(), mark.data(), mark.size());
  for (std::size_t i = mark.size(); i < head_bytes; ++i) {
    packet[i] = static_cast<std::byte>(token & 0xff);
    token >>= 8;
  }
}

bool await(int fd, short events, clock::time_point deadline) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - clock::now());
    if (left.count() <= 0) return false;  // also where there is always something: a peer may send without an end
    pollfd one{.fd = fd, .events = events, .revents = 0};
    const int ready = ::poll(&one, 1, static_cast<int>(left.count()));
    if (ready > 0) return true;
    if (ready == 0 || errno != EINTR) return false;
  }
}

// Whether a packet of that size comes back. What the network says about others (ICMP) is an answer as well: no.
bool comes_back(int fd, std::span<std::byte> packet, std::span<std::byte> room) {
  for (int tries = 0; tries < tries_of_a_size; ++tries) {
    if (::send(fd, packet.data(), packet.size(), 0) < 0) {
      if (errno == EMSGSIZE) return false;
      continue;  // ECONNREFUSED, EHOSTUNREACH: of the packet before
    }
    const auto deadline = clock::now() + patience_with_a_packet;
    while (await(fd, POLLIN, deadline)) {
      const ssize_t bytes = ::recv(fd, room.data(), room.size(), 0);
      if (bytes < 0) break;
      const auto came = room.first(static_cast<std::size_t>(bytes));
      if (came.size() == packet.size() && std::ranges::equal(came, packet)) return true;
    }
  }
  return false;
}

std::string interface_with(const machine& here, const endpoint& local) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (local.is_six()) {
    ::inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6&>(local.address).sin6_addr, text.data(), text.size());
  } else {
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(local.address).sin_addr, text.data(), text.size());
  }
  for (const interface_address& each : here.calls().addresses()) {
    if (each.address == text.data()) return each.interface;
  }
  return {};
}

}  // namespace

class packet_mirror::state {
 public:
  explicit state(const std::string& address) : socket_(open(address)), wake_(owned(::eventfd(0, EFD_CLOEXEC))) {
    if (wake_.fd() < 0) refuse(errno, "make an eventfd");
    thread_ = std::thread([this] { run(); });
  }
  state(const state&) = delete;
  state& operator=(const state&) = delete;
  ~state() {
    const std::uint64_t one = 1;
    // It fails only if the counter is full. NOLINTNEXTLINE(bugprone-unused-return-value)
    [[maybe_unused]] const ssize_t written = ::write(wake_.fd(), &one, sizeof one);
    thread_.join();
  }

  void admit(std::uint64_t token) {
    const std::lock_guard lock(mutex_);
    tokens_.insert(token);
  }
  void dismiss(std::uint64_t token) {
    const std::lock_guard lock(mutex_);
    tokens_.erase(token);
  }

 private:
  static descriptor open(const std::string& address) {
    const endpoint where = look_up_own(address);
    descriptor made = make_socket(where);
    tell_destinations(made.fd(), where.is_six());
    if (::bind(made.fd(), where.get(), where.bytes) != 0) refuse(errno, "bind a UDP socket");
    return made;
  }

  [[nodiscard]] bool knows(std::uint64_t token) {
    const std::lock_guard lock(mutex_);
    return tokens_.contains(token);
  }

  void run() {
    std::vector<std::byte> room(largest_packet + 1);
    for (;;) {
      std::array<pollfd, 2> both{pollfd{.fd = socket_.fd(), .events = POLLIN, .revents = 0},
                                 pollfd{.fd = wake_.fd(), .events = POLLIN, .revents = 0}};
      if (::poll(both.data(), both.size(), -1) < 0 && errno != EINTR) return;
      if (both[1].revents != 0) return;
      if (both[0].revents != 0) answer(room);
    }
  }

  void answer(std::span<std::byte> room) {
    sockaddr_storage from{};
    alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(in6_pktinfo))> control{};
    iovec content{.iov_base = room.data(), .iov_len = room.size()};
    msghdr what{};
    what.msg_name = &from;
    what.msg_namelen = sizeof from;
    what.msg_iov = &content;
    what.msg_iovlen = 1;
    what.msg_control = control.data();
    what.msg_controllen = control.size();
    const ssize_t bytes = ::recvmsg(socket_.fd(), &what, 0);
    if (bytes < 0) return;
    content.iov_len = static_cast<std::size_t>(bytes);
    const auto packet = room.first(content.iov_len);
    if (!is_marked(packet) || !knows(token_in(packet))) return;
    turn_around(what);
    // One that is too large for the way back is lost, as the client will find.
    ::sendmsg(socket_.fd(), &what, 0);
  }

  descriptor socket_;
  descriptor wake_;
  std::mutex mutex_;
  std::set<std::uint64_t> tokens_;
  std::thread thread_;
};

packet_mirror::packet_mirror(const std::string& address) : state_(std::make_unique<state>(address)) {}
packet_mirror::~packet_mirror() = default;
void packet_mirror::admit(std::uint64_t token) { state_->admit(token); }
void packet_mirror::dismiss(std::uint64_t token) { state_->dismiss(token); }

path_mtu look_up_mtu(const machine& here, const weft::socket_address& peer) {
  path_mtu found;
  try {
    const endpoint where = endpoint_of(peer);
    const descriptor way = connect_socket(where);
    int mtu = 0;
    socklen_t bytes = sizeof mtu;
    const bool six = where.is_six();
    if (::getsockopt(way.fd(), six ? IPPROTO_IPV6 : IPPROTO_IP, six ? IPV6_MTU : IP_MTU, &mtu, &bytes) == 0 &&
        mtu > 0) {
      found.kernel_mtu = static_cast<std::uint32_t>(mtu);
    }
    endpoint local;
    local.bytes = sizeof local.address;
    if (::getsockname(way.fd(), reinterpret_cast<sockaddr*>(&local.address), &local.bytes) != 0) return found;
    found.interface = interface_with(here, local);
    const auto number = here.read_number("/sys/class/net/" + found.interface + "/mtu").value_or(0);
    found.interface_mtu = static_cast<std::uint32_t>(std::clamp<std::int64_t>(number, 0, 1 << 20));
  } catch (const weft::error& why) {
    found.failure = why.what();
  }
  return found;
}

bool takes_tcp(const weft::socket_address& peer, std::chrono::milliseconds patience) {
  const endpoint where = endpoint_of(peer);
  const descriptor way = owned(::socket(where.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (way.fd() < 0) return false;
  if (::connect(way.fd(), where.get(), where.bytes) == 0) return true;
  if (errno != EINPROGRESS) return false;
  if (!await(way.fd(), POLLOUT, clock::now() + patience)) return false;
  int failure = 0;
  socklen_t bytes = sizeof failure;
  return ::getsockopt(way.fd(), SOL_SOCKET, SO_ERROR, &failure, &bytes) == 0 && failure == 0;
}

void probe_mtu(const weft::socket_address& peer, std::uint64_t token, path_mtu& found) try {
  const endpoint where = endpoint_of(peer);
  const descriptor way = connect_socket(where);
  const std::uint32_t headers = (where.is_six() ? 40 : 20) + 8;
  std::vector<std::byte> packet(largest_packet);
  std::vector<std::byte> room(largest_packet + 1);
  write_head(packet, token);
  const auto passes = [&](std::uint32_t size) {
    return comes_back(way.fd(), std::span(packet).first(size - headers), room);
  };
  found.was_probed = true;
  const std::uint32_t of_interface = found.interface_mtu != 0 ? found.interface_mtu : 9000U;
  std::uint32_t largest = std::clamp(of_interface, headers + static_cast<std::uint32_t>(head_bytes), largest_packet);
  std::uint32_t smallest = std::min(smallest_probe, largest);
  if (!passes(smallest)) {
    found.failure = "no packet of UDP comes back, not even a small one";
    return;
  }
  found.probed = smallest;
  if (passes(largest)) {
    found.probed = largest;
    return;
  }
  if (largest > 1500 && passes(1500)) smallest = found.probed = 1500;
  while (largest - smallest > 1) {
    const std::uint32_t middle = smallest + (largest - smallest) / 2;
    (passes(middle) ? smallest : largest) = middle;
  }
  found.probed = smallest;
} catch (const weft::error& why) {
  found.failure = why.what();
}

}  // namespace info
