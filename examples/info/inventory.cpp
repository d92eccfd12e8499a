// SPDX-License-Identifier: Apache-2.0
#include "inventory.hpp"

#include <fmt/core.h>

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <string_view>
#include <utility>

namespace info {
namespace {

const std::string rdma_folder = "/sys/class/infiniband";

std::string text_of(const machine& here, const std::string& path) { return here.read(path).value_or(""); }

// "4: ACTIVE"
std::string behind_colon(const std::string& text) {
  const std::size_t colon = text.find(": ");
  return colon == std::string::npos ? text : text.substr(colon + 2);
}

unsigned number_in(std::string_view text) noexcept {
  unsigned number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

bool is_empty_gid(std::string_view value) noexcept {
  return value.empty() || value.find_first_not_of("0:") == std::string_view::npos;
}

// A GID of InfiniBand that holds no address has the prefix fe80::/64 or one of the subnet manager's.
void find_address(gid& row) {
  in6_addr six{};
  if (::inet_pton(AF_INET6, row.value.c_str(), &six) != 1) return;
  row.link_local = IN6_IS_ADDR_LINKLOCAL(&six);
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (IN6_IS_ADDR_V4MAPPED(&six)) {
    in_addr four{};
    std::memcpy(&four, &six.s6_addr[12], sizeof four);
    ::inet_ntop(AF_INET, &four, text.data(), text.size());
  } else if (!row.link_local) {
    ::inet_ntop(AF_INET6, &six, text.data(), text.size());
  }
  row.address = text.data();
}

std::vector<gid> read_gids(const machine& here, const std::string& port, bool holds_addresses) {
  std::vector<gid> all;
  for (const std::string& index : here.list(port + "/gids")) {
    const std::string value = text_of(here, fmt::format("{}/gids/{}", port, index));
    if (is_empty_gid(value)) continue;
    gid row{.index = number_in(index),
            .value = value,
            .type = text_of(here, fmt::format("{}/gid_attrs/types/{}", port, index)),
            .interface = text_of(here, fmt::format("{}/gid_attrs/ndevs/{}", port, index)),
            .address = {}};
    if (holds_addresses) find_address(row);
    all.push_back(std::move(row));
  }
  return all;
}

// "0277:0000:0001:0000:..." of an iWARP device holds 02:77:00:00:00:01.
std::string hardware_address_in(const std::string& value) {
  std::string digits;
  for (const char c : value) {
    if (c != ':') digits += c;
  }
  if (digits.size() < 12) return {};
  std::string text;
  for (std::size_t i = 0; i < 12; i += 2) text.append(text.empty() ? "" : ":").append(digits, i, 2);
  return text;
}

void add_once(std::vector<std::string>& names, const std::string& name) {
  if (!name.empty() && std::ranges::find(names, name) == names.end()) names.push_back(name);
}

// The interfaces whose addresses a port has. Those of iWARP are known by their hardware address, those of InfiniBand
// lie below the same PCI device.
void find_interfaces(const machine& here, const inventory& all, const rdma_device& device, rdma_port& port) {
  for (const gid& row : port.gids) add_once(port.interfaces, row.interface);
  for (const network_interface& each : all.interfaces) {
    const bool is_below = each.is_infiniband && device.kind == rdma_kind::infiniband &&
                          here.exists("/sys/class/net/" + each.name + "/device/infiniband/" + device.name);
    const auto is_its = [&](const gid& row) { return hardware_address_in(row.value) == each.hardware_address; };
    const bool has_address = device.kind == rdma_kind::iwarp && std::ranges::any_of(port.gids, is_its);
    if (is_below || has_address) add_once(port.interfaces, each.name);
  }
}

void find_mtu(const inventory& all, const rdma_device& device, rdma_port& port) {
  const weft::net::rdma_port_info* const limits = device.find_limits(port.number);
  if (limits != nullptr && limits->active_mtu != 0) {
    port.active_mtu = limits->active_mtu;
    port.mtu_is_from = mtu_source::device;
    return;
  }
  if (device.kind != rdma_kind::roce) return;
  for (const std::string& name : port.interfaces) {
    const network_interface* const found = all.find_interface(name);
    if (found == nullptr || rdma_mtu_of(found->mtu) == 0) continue;
    port.active_mtu = rdma_mtu_of(found->mtu);
    port.mtu_is_from = mtu_source::interface;
  }
}

rdma_port read_port(const machine& here, const inventory& all, const rdma_device& device, const std::string& number) {
  const std::string folder = rdma_folder + "/" + device.name + "/ports/" + number;
  rdma_port port;
  port.number = number_in(number);
  port.state = behind_colon(text_of(here, folder + "/state"));
  port.physical_state = behind_colon(text_of(here, folder + "/phys_state"));
  port.link_layer = text_of(here, folder + "/link_layer");
  port.rate = text_of(here, folder + "/rate");
  port.gids = read_gids(here, folder, device.kind == rdma_kind::roce);
  find_interfaces(here, all, device, port);
  find_mtu(all, device, port);
  return port;
}

// "4: RNIC", "1: CA"; a CA's link layer tells InfiniBand from RoCE.
rdma_kind kind_of(const machine& here, const std::string& folder) {
  const std::string type = text_of(here, folder + "/node_type");
  if (type.starts_with('4')) return rdma_kind::iwarp;
  if (!type.starts_with('1')) return rdma_kind::other;
  for (const std::string& port : here.list(folder + "/ports")) {
    if (text_of(here, fmt::format("{}/ports/{}/link_layer", folder, port)) == "Ethernet") return rdma_kind::roce;
  }
  return rdma_kind::infiniband;
}

std::string file_of(const machine& here, const std::string& device) {
  for (const std::string& name : here.list("/sys/class/infiniband_verbs")) {
    if (text_of(here, "/sys/class/infiniband_verbs/" + name + "/ibdev") == device) return "/dev/infiniband/" + name;
  }
  return {};
}

rdma_device read_device(const machine& here, const inventory& all, const std::string& name) {
  const std::string folder = rdma_folder + "/" + name;
  rdma_device device;
  device.name = name;
  device.kind = kind_of(here, folder);
  device.firmware = text_of(here, folder + "/fw_ver");
  device.guid = text_of(here, folder + "/node_guid");
  device.board = text_of(here, folder + "/board_id");
  device.kernel_driver = here.link_name(folder + "/device/driver");
  device.kernel_driver_version = text_of(here, folder + "/device/driver/module/version");
  device.numa_node = static_cast<int>(here.read_number(folder + "/device/numa_node").value_or(-1));
  device.file = file_of(here, name);
  device.file_is_there = !device.file.empty() && here.exists(device.file);
  if (device.file_is_there) device.open_failure = here.calls().try_to_open(device.file);
  for (const weft::net::fabric_info& each : all.fabrics) {
    if (each.name != "verbs:" + name) continue;
    device.is_listed = true;
    device.limits = each.rdma;
    device.why_not = each.why_not;
  }
  for (const std::string& port : here.list(folder + "/ports")) {
    device.ports.push_back(read_port(here, all, device, port));
  }
  return device;
}

network_interface read_interface(const machine& here, const std::vector<interface_address>& addresses,
                                 const std::string& name) {
  constexpr unsigned interface_is_up = 1;  // IFF_UP
  constexpr std::int64_t type_infiniband = 32;
  const std::string folder = "/sys/class/net/" + name;
  network_interface found;
  found.name = name;
  found.state = text_of(here, folder + "/operstate");
  found.is_infiniband = here.read_number(folder + "/type") == type_infiniband;
  const std::string flags = text_of(here, folder + "/flags");  // "0x1003"
  unsigned bits = 0;
  if (flags.starts_with("0x")) std::from_chars(flags.data() + 2, flags.data() + flags.size(), bits, 16);
  found.administratively_up = (bits & interface_is_up) != 0;
  found.mtu =
      static_cast<std::uint32_t>(std::clamp<std::int64_t>(here.read_number(folder + "/mtu").value_or(0), 0, 1 << 20));
  found.megabits = std::max<std::int64_t>(here.read_number(folder + "/speed").value_or(0), 0);
  found.hardware_address = text_of(here, folder + "/address");
  for (const interface_address& each : addresses) {
    if (each.interface == name) found.addresses.push_back(each);
  }
  return found;
}

std::vector<huge_page_size> read_huge_pages(const machine& here) {
  constexpr std::string_view before = "hugepages-";
  const std::string folder = "/sys/kernel/mm/hugepages";
  std::vector<huge_page_size> all;
  for (const std::string& name : here.list(folder)) {
    if (!name.starts_with(before)) continue;
    const auto count = [&](const char* what) {
      return static_cast<std::uint64_t>(
          std::max<std::int64_t>(here.read_number(fmt::format("{}/{}/{}", folder, name, what)).value_or(0), 0));
    };
    all.push_back({.bytes = std::uint64_t{number_in(std::string_view(name).substr(before.size()))} << 10,
                   .total = count("nr_hugepages"),
                   .free = count("free_hugepages")});
  }
  std::ranges::sort(all, {}, &huge_page_size::bytes);
  return all;
}

// "always [madvise] never"
std::string chosen_in(const std::string& text) {
  const std::size_t begin = text.find('[');
  const std::size_t end = text.find(']', begin);
  return begin == std::string::npos || end == std::string::npos ? std::string()
                                                                : text.substr(begin + 1, end - begin - 1);
}

// PRETTY_NAME="Debian GNU/Linux 12 (bookworm)": os-release(5). In a container it is the container's.
std::string distribution_of(const machine& here) {
  constexpr std::string_view key = "PRETTY_NAME=";
  const std::string text = "\n" + text_of(here, "/etc/os-release");
  const std::size_t line = text.find("\n" + std::string(key));
  if (line == std::string::npos) return {};
  std::string value = text.substr(line + 1 + key.size());
  value.resize(std::min(value.find('\n'), value.size()));
  std::erase(value, '"');
  return value;
}

bool may_lock_memory(const machine& here) {
  constexpr unsigned cap_ipc_lock = 14;
  const std::string mask = here.field("/proc/self/status", "CapEff");
  std::uint64_t bits = 0;
  const auto result = std::from_chars(mask.data(), mask.data() + mask.size(), bits, 16);
  return result.ec == std::errc() && ((bits >> cap_ipc_lock) & 1) != 0;
}

std::string compiler_name() {
#if defined(__clang__)
  return "clang " + std::to_string(__clang_major__) + "." + std::to_string(__clang_minor__) + "." +
         std::to_string(__clang_patchlevel__);
#else
  return "GCC " + std::to_string(__GNUC__) + "." + std::to_string(__GNUC_MINOR__) + "." +
         std::to_string(__GNUC_PATCHLEVEL__);
#endif
}

}  // namespace

const char* name_of(rdma_kind kind) noexcept {
  constexpr std::array names = {"InfiniBand", "RoCE", "iWARP", "other"};
  static_assert(names.size() == static_cast<std::size_t>(rdma_kind::other) + 1);
  return names[static_cast<std::size_t>(kind)];
}

// Around the payload lie the headers that the kernel counts: GRH or IP 40, UDP 8, BTH 12, XRC 4, atomic 28, ICRC 4.
std::uint32_t rdma_mtu_of(std::uint32_t interface_mtu) noexcept {
  constexpr std::uint32_t headers = 96;
  for (const std::uint32_t size : {4096U, 2048U, 1024U, 512U, 256U}) {
    if (interface_mtu >= size + headers) return size;
  }
  return 0;
}

// "Max locked memory         8388608              8388608              bytes"
std::optional<std::uint64_t> soft_limit(const machine& here, std::string_view name) {
  const auto text = here.read("/proc/self/limits");
  if (!text) return std::nullopt;
  const std::size_t line = text->find(name);
  if (line == std::string::npos) return std::nullopt;
  const std::size_t value = text->find_first_not_of(' ', line + name.size());
  if (value == std::string::npos) return std::nullopt;
  std::uint64_t number = 0;
  const auto result = std::from_chars(text->data() + value, text->data() + text->size(), number);
  return result.ec == std::errc() ? std::optional(number) : std::nullopt;
}

const weft::net::rdma_port_info* rdma_device::find_limits(unsigned port) const noexcept {
  if (!limits) return nullptr;
  const auto found = std::ranges::find(limits->ports, port, &weft::net::rdma_port_info::number);
  return found != limits->ports.end() ? &*found : nullptr;
}

const network_interface* inventory::find_interface(const std::string& name) const noexcept {
  const auto found = std::ranges::find(interfaces, name, &network_interface::name);
  return found != interfaces.end() ? &*found : nullptr;
}

inventory take_inventory(const machine& here) {
  inventory all;
  all.version = WEFT_INFO_VERSION;
  all.compiler = compiler_name();
  all.build = WEFT_INFO_BUILD;
  all.with_verbs = here.calls().has_verbs();
  all.with_iwarp = here.calls().has_iwarp();
  all.kernel = text_of(here, "/proc/sys/kernel/osrelease");
  all.distribution = distribution_of(here);
  all.architecture = here.calls().architecture();
  all.verbs_library = here.calls().verbs_library();
  all.driver = here.calls().event_driver();
  all.fabrics = here.calls().fabrics();
  all.locked_memory = soft_limit(here, "Max locked memory");
  all.may_lock_beyond_limit = may_lock_memory(here);
  all.descriptors = soft_limit(here, "Max open files");
  all.huge_pages = read_huge_pages(here);
  all.transparent_huge_pages = chosen_in(text_of(here, "/sys/kernel/mm/transparent_hugepage/enabled"));
  const std::vector<interface_address> addresses = here.calls().addresses();
  for (const std::string& name : here.list("/sys/class/net")) {
    if (here.exists("/sys/class/net/" + name + "/mtu")) all.interfaces.push_back(read_interface(here, addresses, name));
  }
  all.kernel_has_rdma = here.exists(rdma_folder);
  for (const std::string& name : here.list(rdma_folder)) all.rdma.push_back(read_device(here, all, name));
  return all;
}

}  // namespace info
