// SPDX-License-Identifier: Apache-2.0
#include <weft/net/fabric/device.hpp>

#include <fmt/core.h>
#include <fmt/format.h>

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <new>

namespace weft::net::fabric {
namespace {

// The orders that spare a wait if the provider keeps them. The order of writes and sends behind a read is left out: few
// providers keep it, and a provider without an order that is asked for is not offered at all.
constexpr std::uint64_t wanted_order =
    FI_ORDER_SAS | FI_ORDER_SAW | FI_ORDER_WAW | FI_ORDER_RAW | FI_ORDER_WAS | FI_ORDER_RAS;

device::info_ptr make_hints(fabric_calls& library, const std::string& provider, bool ordered, bool atomics) {
  device::info_ptr hints(library.dupinfo(nullptr), {&library});
  if (hints == nullptr) throw std::bad_alloc();
  hints->ep_attr->type = FI_EP_RDM;
  hints->caps = FI_MSG | FI_RMA | (atomics ? FI_ATOMIC : 0);
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->domain_attr->threading = FI_THREAD_SAFE;
  hints->domain_attr->av_type = FI_AV_TABLE;
  hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
  hints->domain_attr->mr_mode = honoured_mr_modes;
  // Also finds a named provider that needs FI_MR_RAW, so that check_choice() can say why it is refused.
  if (!provider.empty()) hints->domain_attr->mr_mode |= FI_MR_RAW;
  if (ordered) hints->tx_attr->msg_order = wanted_order;
  // With automatic progress some software providers work on threads of their own, which cannot be frozen. The sockets
  // provider needs its thread, or it does not wake a sleeping executor.
  if (provider != "sockets") hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
  if (!provider.empty()) {
    hints->fabric_attr->prov_name = ::strdup(provider.c_str());  // freed with the hints
    if (hints->fabric_attr->prov_name == nullptr) throw std::bad_alloc();
  }
  return hints;
}

bool is_over_ip(std::string_view provider) noexcept {
  for (const std::string_view each : {"tcp", "sockets", "udp", "net"}) {
    if (provider == each || (provider.starts_with(each) && provider[each.size()] == ';')) return true;
  }
  return false;
}

// The regions of these providers are only entries in a table.
bool keeps_regions_in_software(std::string_view provider) noexcept { return is_over_ip(provider) || provider == "shm"; }

// The IP address without its port, or nothing if there is none. An IPv4 address that is mapped into IPv6 becomes IPv4.
std::span<const std::byte> host_of(std::span<const std::byte> address) noexcept {
  sa_family_t family = AF_UNSPEC;
  if (address.size() >= sizeof family) std::memcpy(&family, address.data(), sizeof family);
  if (family == AF_INET && address.size() >= sizeof(sockaddr_in)) {
    return address.subspan(offsetof(sockaddr_in, sin_addr), sizeof(in_addr));
  }
  if (family != AF_INET6 || address.size() < sizeof(sockaddr_in6)) return {};
  const auto whole = address.subspan(offsetof(sockaddr_in6, sin6_addr), sizeof(in6_addr));
  in6_addr host;
  std::memcpy(&host, whole.data(), sizeof host);
  return IN6_IS_ADDR_V4MAPPED(&host) != 0 ? whole.last(sizeof(in_addr)) : whole;
}

// Whether hardware places the data, and stops when the region is closed. All other providers count as software, even
// efa, which writes by messages where its device cannot write.
bool places_in_hardware(std::string_view provider) noexcept { return provider == "verbs;ofi_rxm" || provider == "cxi"; }

// The rxd provider of libfabric 1.17 ends the process at the first atomic operation that has an answer.
bool crashes_at_atomics(std::string_view provider) noexcept { return provider.ends_with(";ofi_rxd"); }

}  // namespace

void throw_failure(fabric_calls& library, int failure, const std::string& step) {
  const int number = -failure;
  if (number == FI_ENOMEM) throw error(errc::no_memory, step);
  if (number < FI_ERRNO_OFFSET) throw system_error(number, step);
  throw error(errc::connection_failed, fmt::format("{} ({})", step, library.strerror(number)));
}

void region_closer::operator()(fid_mr* region) const noexcept {
  const entry inside = home->enter_for_region();
  fid_closer{&home->calls()}(region);
}

std::vector<std::string> provider_names(fabric_calls& library) {
  const device::info_ptr hints = make_hints(library, {}, false, false);
  fi_info* first = nullptr;
  if (library.getinfo(hints.get(), &first) < 0) return {};
  const device::info_ptr all(first, {&library});
  std::vector<std::string> names;
  for (const fi_info* each = first; each != nullptr; each = each->next) {
    const std::string name = each->fabric_attr->prov_name;
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return names;
}

device::device(fabric_calls& library, std::string_view provider)
    : calls_(library),
      name_(provider),
      info_(nullptr, {&library}),
      fabric_(nullptr, {&library}),
      domain_(nullptr, {&library}) {
  choose(provider);
  if (name_.empty()) name_ = this->provider();
  check_choice();
  order_ = order_table(*info_);
  in_software_ = !places_in_hardware(this->provider());
  keeps_regions_in_software_ = keeps_regions_in_software(this->provider());  // mutant: register memory
  fid_fabric* fabric = nullptr;
  int failure = calls_.fabric(info_->fabric_attr, &fabric);
  if (failure < 0) throw_failure(calls_, failure, fmt::format("open the fabric of libfabric's provider {}", name_));
  fabric_ = fid_ptr<fid_fabric>(fabric, {&calls_});
  fid_domain* domain = nullptr;
  failure = calls_.domain(fabric_.get(), info_.get(), &domain);
  if (failure < 0) throw_failure(calls_, failure, fmt::format("open a domain of libfabric's provider {}", name_));
  domain_ = fid_ptr<fid_domain>(domain, {&calls_});
  atomics_ = atomics_ && !crashes_at_atomics(this->provider()) && calls_.has_atomics(domain_.get());
}

// Chooses a provider. Prefers order to atomic operations, because some providers have only one of the two.
void device::choose(std::string_view provider) {
  const std::string asked(provider);
  if (try_choice(asked, true, true) || try_choice(asked, true, false)) return;
  if (try_choice(asked, false, true) || try_choice(asked, false, false)) return;
  if (asked == "net") return choose("tcp");  // its name since libfabric 1.18
  const std::vector<std::string> names = provider_names(calls_);
  if (names.empty()) throw error(errc::not_supported, "libfabric has no provider with FI_EP_RDM on this machine");
  throw error(errc::not_supported,
              fmt::format("libfabric has no provider \"{}\" with FI_EP_RDM on this machine; those that there are: {}",
                          asked, fmt::join(names, ", ")));
}

bool device::try_choice(const std::string& provider, bool ordered, bool atomics) {
  const info_ptr hints = make_hints(calls_, provider, ordered, atomics);
  fi_info* found = nullptr;
  const int failure = calls_.getinfo(hints.get(), &found);
  if (failure == -FI_ENODATA) return false;
  if (failure < 0) throw_failure(calls_, failure, "ask libfabric for its providers");
  info_ = info_ptr(found, {&calls_});
  atomics_ = atomics;
  return true;
}

void device::check_choice() const {
  const auto refuse = [&](std::string_view why) {
    throw error(errc::not_supported, fmt::format("libfabric's provider {} {}", provider(), why));
  };
  if (needs(FI_MR_HMEM)) refuse("wants device memory to be registered as such (FI_MR_HMEM), which weft has none of");
  if (needs(FI_MR_RAW)) refuse("has keys of more than 64 bits (FI_MR_RAW), and weft's are numbers of 64");
  if (needs(~honoured_mr_modes)) refuse("asks for a mode of registration that weft does not know");
  if ((info_->mode & ~(FI_CONTEXT | FI_CONTEXT2)) != 0) refuse("asks for a mode that weft does not know");
  if (info_->rx_attr->iov_limit < 2) refuse("receives into one piece of memory only, and weft needs two");
}

bool device::can_freeze() const noexcept {
  return !in_software_ || info_->domain_attr->data_progress == FI_PROGRESS_MANUAL;
}

void device::freeze() const noexcept {
  const std::lock_guard lock(mutex_);
  if (in_software_) ++freezes_;  // mutant: go on while a device
}

void device::thaw() const noexcept {
  const std::lock_guard lock(mutex_);
  if (in_software_) --freezes_;
}

void device::add(fence_audience& which) const noexcept {
  const std::lock_guard lock(audience_mutex_);
  audience_.push_front(which);
}

void device::remove(fence_audience& which) const noexcept {
  const std::lock_guard lock(audience_mutex_);
  audience_.remove(which);
}

void device::fence(std::uint64_t key) const noexcept {
  if (!in_software_) return;
  const std::lock_guard lock(audience_mutex_);
  for (fence_audience& each : audience_) {
    freeze();
    each.fence(key);
  }
}

device::info_ptr device::info_at(const void* address, std::size_t length) const {
  info_ptr copy(calls_.dupinfo(info_.get()), {&calls_});
  if (copy == nullptr) throw std::bad_alloc();
  if (!is_over_ip(provider()) || copy->src_addr == nullptr) return copy;
  const auto host = host_of({static_cast<const std::byte*>(address), length});
  sockaddr_in mapped{};
  if (copy->src_addrlen == length) {
    std::memcpy(copy->src_addr, address, length);
  } else if (copy->src_addrlen == sizeof mapped && host.size() == sizeof mapped.sin_addr) {
    mapped.sin_family = AF_INET;
    std::memcpy(&mapped.sin_addr, host.data(), host.size());
    std::memcpy(copy->src_addr, &mapped, sizeof mapped);
  }
  return copy;
}

// If the endpoint and the socket differ in address family, the endpoint's provider has chosen its address: info_at().
bool device::may_be_at(std::span<const std::byte> endpoint, const socket_address& peer) const noexcept {
  if (!is_over_ip(provider())) return true;
  const auto there = host_of(endpoint);
  const auto here = host_of({reinterpret_cast<const std::byte*>(peer.data()), peer.size()});
  if (there.empty()) return false;  // no IP address at all
  return there.size() != here.size() || std::ranges::equal(there, here);
}

}  // namespace weft::net::fabric
