// SPDX-License-Identifier: Apache-2.0
#include <weft/net/verbs/device.hpp>
#include <weft/net/verbs/words.hpp>
#include <weft/runtime/error.hpp>

#include <fmt/core.h>

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <netpacket/packet.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <system_error>

namespace weft::net::verbs {
namespace {

// The list of ibv_get_device_list(3), which is kept until the device that was found in it has been opened.
class device_list {
 public:
  explicit device_list(rdma_calls& library) noexcept : calls_(library) {
    if (calls_.get_device_list(&count_, &list_) < 0) count_ = 0;  // ENOSYS: a kernel without RDMA
  }
  device_list(const device_list&) = delete;
  device_list& operator=(const device_list&) = delete;
  ~device_list() {
    if (list_ != nullptr) calls_.free_device_list(list_);
  }
  [[nodiscard]] std::span<ibv_device* const> all() const noexcept { return {list_, static_cast<std::size_t>(count_)}; }

 private:
  rdma_calls& calls_;
  int count_ = 0;
  ibv_device** list_ = nullptr;
};

// A GID of RoCE is an IPv6 address, maybe an IPv4-mapped one (RFC 4291 section 2.5.5.2).
std::optional<socket_address> address_of(const ibv_gid& gid, int family) {
  in6_addr six{};
  std::memcpy(&six, gid.raw, sizeof six);
  if (IN6_IS_ADDR_V4MAPPED(&six)) {
    if (family != AF_INET) return std::nullopt;
    sockaddr_in address{};
    address.sin_family = AF_INET;
    std::memcpy(&address.sin_addr, gid.raw + 12, sizeof address.sin_addr);
    return socket_address(reinterpret_cast<sockaddr*>(&address), sizeof address);
  }
  if (family != AF_INET6 || IN6_IS_ADDR_UNSPECIFIED(&six) || IN6_IS_ADDR_LINKLOCAL(&six)) return std::nullopt;
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_addr = six;
  return socket_address(reinterpret_cast<sockaddr*>(&address), sizeof address);
}

// A GID of iWARP is the hardware address of a network interface. The device has no table of that interface's IP
// addresses.
bool has_hardware_address(const ifaddrs& item, const ibv_gid& gid) {
  if (item.ifa_addr == nullptr || item.ifa_addr->sa_family != AF_PACKET) return false;
  sockaddr_ll address{};
  std::memcpy(&address, item.ifa_addr, sizeof address);
  return address.sll_halen == 6 && std::memcmp(address.sll_addr, gid.raw, address.sll_halen) == 0;
}

void add_addresses_of_interface(const ibv_gid& gid, int family, std::vector<socket_address>& found) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, ::freeifaddrs);
  const ifaddrs* mine = list;
  while (mine != nullptr && !has_hardware_address(*mine, gid)) mine = mine->ifa_next;
  if (mine == nullptr) return;
  const std::string_view name = mine->ifa_name;
  for (const ifaddrs* item = list; item != nullptr; item = item->ifa_next) {
    if (item->ifa_addr == nullptr || item->ifa_addr->sa_family != family || name != item->ifa_name) continue;
    const bool six = family == AF_INET6;
    if (six && IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(item->ifa_addr)->sin6_addr)) continue;
    found.emplace_back(item->ifa_addr, six ? sizeof(sockaddr_in6) : sizeof(sockaddr_in));
  }
}

// A child of fork(2) must not take the parent's pinned pages away. Newer kernels copy those pages for the child, which
// the library detects; on older kernels it has to mark registered memory, which slows every registration. The call
// comes too late for a program that has registered memory before; such a program has to call ibv_fork_init(3) itself.
void prepare_for_fork(rdma_calls& library) noexcept {
  if (library.is_fork_initialized() == IBV_FORK_DISABLED) static_cast<void>(library.fork_init());
}

// The IP address that `name` spells out in digits; empty if it is none.
std::optional<socket_address> address_in(std::string_view name) {
  const std::string text(name);
  sockaddr_in four{};
  four.sin_family = AF_INET;
  if (::inet_pton(AF_INET, text.c_str(), &four.sin_addr) == 1) {
    return socket_address(reinterpret_cast<sockaddr*>(&four), sizeof four);
  }
  sockaddr_in6 six{};
  six.sin6_family = AF_INET6;
  if (::inet_pton(AF_INET6, text.c_str(), &six.sin6_addr) == 1) {
    return socket_address(reinterpret_cast<sockaddr*>(&six), sizeof six);
  }
  return std::nullopt;
}

std::string words_for(std::span<ibv_device* const> devices) {
  if (devices.empty()) return words_for_no_device();
  std::string text = "this machine has:";
  for (const ibv_device* item : devices) text.append(" ").append(item->name);
  return text;
}

// EFA, for one, has datagrams of its own kind alone, and no place in the kernel's connection manager.
bool has_connections(const ibv_device& item) noexcept {
  return item.transport_type == IBV_TRANSPORT_IB || item.transport_type == IBV_TRANSPORT_IWARP;
}

constexpr std::string_view no_connections =
    "has no reliable connections; libfabric may reach it: \"fabric:efa\" for EFA";

// The largest message of the InfiniBand specification, for ports that do not tell theirs.
constexpr std::uint32_t largest_message = std::uint32_t{1} << 31;

}  // namespace

std::vector<std::string> device_names(rdma_calls& library) {
  const device_list found(library);
  std::vector<std::string> names;
  for (const ibv_device* item : found.all()) names.emplace_back(item->name);
  return names;
}

device::device(rdma_calls& library, std::string_view name, const verbs_options& options)
    : calls_(library), options_(options) {
  prepare_for_fork(calls_);
  const std::optional<socket_address> address = address_in(name);
  const bool is_named = !name.empty() && !address;
  std::string closed;
  try {
    const device_list found(calls_);
    for (ibv_device* item : found.all()) {
      if (is_named && name != item->name) continue;
      if (!has_connections(*item)) {
        if (is_named)
          throw error(errc::not_supported, fmt::format("open RDMA device {}: it {}", item->name, no_connections));
        closed += fmt::format("; {} {}", item->name, no_connections);
        continue;
      }
      if (const int failure = calls_.open_device(item, &context_); failure < 0) {
        const std::string advice = advice_for_opening(-failure, item->dev_name);
        if (is_named) throw system_error(-failure, fmt::format("open RDMA device {}{}", item->name, advice));
        closed +=
            fmt::format("; {} cannot be opened: {}{}", item->name, std::system_category().message(-failure), advice);
        continue;
      }
      name_ = item->name;
      const int failure = query(item->transport_type);
      const bool is_it = address ? has_address(*address) : is_named || active_;
      if (failure == 0 && is_it) break;
      if (is_named) throw system_error(-failure, fmt::format("query RDMA device {}", name_));
      close();
    }
    if (context_ == nullptr) {
      const std::string what = name.empty() ? "no RDMA device is ready"
                               : is_named   ? fmt::format("no RDMA device \"{}\"", name)
                                            : fmt::format("no RDMA device has the address {}", name);
      throw error(errc::not_supported, what + ", " + words_for(found.all()) + closed);
    }
    if (const int failure = calls_.set_nonblocking(context_->async_fd); failure < 0) {
      throw system_error(-failure, fmt::format("watch for the events of {}", name_));
    }
    if (const int failure = calls_.alloc_pd(context_, &pd_); failure < 0) {
      throw system_error(-failure, fmt::format("allocate a protection domain on {}", name_));
    }
    probe_memory();
  } catch (...) {
    close();
    throw;
  }
}

bool device::has_address(const socket_address& wanted) const {
  const std::vector<socket_address> own = addresses(wanted.family());
  const std::string text = wanted.to_string();
  return std::any_of(own.begin(), own.end(), [&](const socket_address& item) { return item.to_string() == text; });
}

device::~device() { close(); }

void device::close() noexcept {
  if (pd_ != nullptr) calls_.dealloc_pd(pd_);
  if (context_ != nullptr) calls_.close_device(context_);
  pd_ = nullptr;
  context_ = nullptr;
}

int device::query(ibv_transport_type transport) noexcept {
  active_ = false;
  max_message_bytes_ = 0;
  if (const int failure = calls_.query_device(context_, &limits_); failure < 0) return failure;
  traits_ = traits_of(transport, limits_);
  for (unsigned port = 1; port <= limits_.phys_port_cnt; ++port) {  // not 8 bits, as there may be 255 ports
    ibv_port_attr state{};
    if (const int failure = calls_.query_port(context_, static_cast<std::uint8_t>(port), &state); failure < 0)
      return failure;
    active_ |= state.state == IBV_PORT_ACTIVE;
    max_message_bytes_ = std::max(max_message_bytes_, state.max_msg_sz != 0 ? state.max_msg_sz : largest_message);
  }
  return 0;
}

void device::probe_memory() noexcept {
  ibv_device_attr_ex more{};
  const bool known = calls_.query_device_ex(context_, &more) == 0;
  if (known && (more.odp_caps.general_caps & IBV_ODP_SUPPORT) != 0) {
    on_demand_operations_ = more.odp_caps.per_transport_caps.rc_odp_caps;
    pages_everything_ = (more.odp_caps.general_caps & IBV_ODP_SUPPORT_IMPLICIT) != 0;
  }
  if (known && calls_.has_flush()) {
    const std::uint64_t flags = more.device_cap_flags_ex;
    operations_ = ((flags & can_flush_persistent) != 0 ? with_flush : 0) |
                  ((flags & can_write_atomically) != 0 ? with_atomic_write : 0);
  }
  // Only an attempt shows whether dma-bufs are supported. The descriptor is invalid, which the kernel checks last.
  ibv_mr* none = nullptr;
  has_dmabuf_ = calls_.reg_dmabuf_mr(pd_, 0, 4096, 0, -1, 0, &none) == -EBADF;
  if (traits_.has_windows() && !can_allocate_window()) {
    traits_.windows = window_kind::none;
    traits_.pair_needs_right_to_bind = false;
  }
}

// Makes an attempt, because the driver in user space may know nothing of the windows that the driver in the kernel has,
// as with bnxt_re and iw_cxgb4.
bool device::can_allocate_window() noexcept {
  ibv_mw* window = nullptr;
  const ibv_mw_type type = traits_.windows == window_kind::type_1 ? IBV_MW_TYPE_1 : IBV_MW_TYPE_2;
  const int failure = calls_.alloc_mw(pd_, type, &window);
  if (failure == 0) static_cast<void>(calls_.dealloc_mw(window));
  return failure != -EOPNOTSUPP && failure != -ENOSYS;
}

std::vector<socket_address> device::addresses(int family) const {
  std::vector<socket_address> found;
  for (unsigned each = 1; each <= limits_.phys_port_cnt; ++each) {
    const auto port = static_cast<std::uint8_t>(each);
    ibv_port_attr state{};
    if (calls_.query_port(context_, port, &state) < 0) continue;
    for (int index = 0; index < state.gid_tbl_len; ++index) {
      ibv_gid gid{};
      if (calls_.query_gid(context_, port, index, &gid) < 0) continue;
      if (traits_.gids_are_hardware_addresses) {
        add_addresses_of_interface(gid, family, found);
        continue;
      }
      auto address = address_of(gid, family);
      // RoCE has a GID for each of its versions, with the same address.
      if (address && (found.empty() || found.back().to_string() != address->to_string())) found.push_back(*address);
    }
  }
  return found;
}

bool device::is_that_of(const rdma_cm_id& id) const noexcept {
  return id.verbs != nullptr && name_ == id.verbs->device->name;
}

}  // namespace weft::net::verbs
