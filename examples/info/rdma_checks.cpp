// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <functional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "checks.hpp"

namespace info {
namespace {

const std::string connection_manager = "/dev/infiniband/rdma_cm";

std::string words(int number) { return std::system_category().message(number); }

bool is_in_container(const machine& here) {
  return here.exists("/.dockerenv") || here.exists("/run/.containerenv") ||
         !here.calls().environment("KUBERNETES_SERVICE_HOST").empty();
}

const char* driver_advice() {
  return "for an RDMA NIC load its driver (`lspci -nnk | grep -A3 -iE 'ethernet|infiniband'` names it, for instance "
         "`modprobe mlx5_ib`); for RoCE in software: `modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0`";
}

bool any_active(const inventory& all) {
  return std::ranges::any_of(
      all.rdma, [](const rdma_device& device) { return std::ranges::any_of(device.ports, &rdma_port::is_active); });
}

void check_presence(const machine& here, const inventory& all, findings& found) {
  if (!all.rdma.empty()) {
    std::string names;
    for (const rdma_device& each : all.rdma) {
      names += fmt::format("{}{} ({})", names.empty() ? "" : ", ", each.name, name_of(each.kind));
    }
    found.ok("devices", fmt::format("the kernel has the RDMA devices {}", names));
    if (!all.with_verbs) {
      found.warn("devices", "this weft is built without the transport for RDMA devices, so that it uses none of them",
                 "install librdmacm-dev and libibverbs-dev, and build with -DWEFT_WITH_VERBS=ON");
    }
    return;
  }
  if (is_in_container(here)) {
    found.hint(
        "devices", "this container sees no RDMA device: between machines weft uses iWARP over TCP, in user space",
        "if the host has one (`ls /sys/class/infiniband` there), start the container with "
        "`--network=host --device=/dev/infiniband --ulimit memlock=-1`, in Kubernetes with an RDMA device plugin");
    return;
  }
  found.hint("devices", "this machine has no RDMA device: between machines weft uses iWARP over TCP, in user space",
             driver_advice());
}

void check_forbidden(const std::string& path, int failure, const std::string& area, findings& found) {
  if (failure == EACCES) {
    found.fail(
        area, fmt::format("this user may not open {}: {}", path, words(failure)),
        fmt::format("`chmod 666 {}` until the next boot; for good install the package rdma-core, whose udev rules "
                    "open it, or add the rule KERNEL==\"{}\", MODE=\"0666\"",
                    path, path.substr(path.rfind('/') + 1)));
  } else if (failure == EPERM) {
    found.fail(area,
               fmt::format("{} must not be opened here: {}: the container's device controller forbids it", path,
                           words(failure)),
               fmt::format("start the container with `--device={}`", path));
  } else if (failure != 0) {
    found.fail(area, fmt::format("{} cannot be opened: {}", path, words(failure)),
               "look into the kernel's log: `dmesg | grep -iE 'rdma|infiniband|uverbs|mlx|irdma|bnxt'`");
  }
}

void check_connection_manager(const machine& here, findings& found) {
  if (!here.exists(connection_manager)) {
    const bool loaded = here.exists("/sys/module/rdma_ucm");
    found.fail(
        "rdma_cm",
        loaded
            ? fmt::format("the module rdma_ucm is loaded, and {} is not there: nothing can connect", connection_manager)
            : fmt::format("the kernel's module rdma_ucm is not loaded, so that there is no {}: nothing can connect",
                          connection_manager),
        loaded ? fmt::format("in a container: start it with `--device={}`; elsewhere `udevadm trigger`",
                             connection_manager)
               : std::string("`modprobe rdma_ucm`; for good `echo rdma_ucm >/etc/modules-load.d/rdma.conf`"));
    return;
  }
  const int failure = here.calls().try_to_open(connection_manager);
  check_forbidden(connection_manager, failure, "rdma_cm", found);
  if (failure == 0) found.ok("rdma_cm", fmt::format("{} is there and may be opened", connection_manager));
}

void check_file(const machine& here, const inventory& all, const rdma_device& device, findings& found) {
  const std::string area = "device " + device.name;
  if (device.file.empty()) {
    const bool loaded = here.exists("/sys/module/ib_uverbs");
    found.fail(area,
               fmt::format("programs cannot use {}: {}", device.name,
                           loaded ? "the kernel offers no file for it" : "the kernel's module ib_uverbs is not loaded"),
               "`modprobe ib_uverbs`");
    return;
  }
  if (!device.file_is_there) {
    found.fail(area, fmt::format("the kernel has {}, and its file {} is not there", device.name, device.file),
               fmt::format("in a container: start it with `--device={}`; elsewhere `udevadm trigger`", device.file));
    return;
  }
  check_forbidden(device.file, device.open_failure, area, found);
  if (device.open_failure != 0 || !all.with_verbs) return;
  if (!device.is_listed) {
    found.fail(area,
               fmt::format("libibverbs does not know {}: the driver's part in user space is missing", device.name),
               "`apt install ibverbs-providers` (or the vendor's rdma-core); `ibv_devices` then lists it");
  } else if (!device.why_not.empty()) {
    found.fail(area, fmt::format("weft cannot open {}: {}", device.name, device.why_not),
               fmt::format("`ibv_devinfo -d {}` and `dmesg` may tell more", device.name));
  } else {
    found.ok(area, fmt::format("{} may be opened, and weft can open it", device.file));
  }
}

// Why a port is not active, and what to do, as far as its interface tells.
std::string port_advice(const inventory& all, const rdma_device& device, const rdma_port& port) {
  if (device.kind == rdma_kind::infiniband) {
    return port.state == "INIT" ? "no subnet manager has configured the port: start one on a host (`systemctl start "
                                  "opensm`) or the switch"
                                : "look at cable, transceiver and switch port: `ibstatus`, `iblinkinfo`";
  }
  std::string advice;
  for (const std::string& name : port.interfaces) {
    const network_interface* const lower = all.find_interface(name);
    if (lower != nullptr && !lower->administratively_up) {
      advice += fmt::format("{}`ip link set dev {} up`", advice.empty() ? "" : ", ", name);
    }
  }
  if (!advice.empty()) return advice;
  if (port.interfaces.empty()) {
    return fmt::format("`rdma link show {}/{}` names its network interface: `ip link set dev INTERFACE up`",
                       device.name, port.number);
  }
  return fmt::format("{0} is up and has no carrier: look at cable, transceiver and switch port: `ethtool {0}`",
                     port.interfaces.front());
}

void check_state(const inventory& all, const rdma_device& device, const rdma_port& port, findings& found) {
  const std::string area = fmt::format("port {}/{}", device.name, port.number);
  if (port.is_active()) {
    found.ok(area, fmt::format("the port is active: {}{}", port.rate.empty() ? "rate unknown" : port.rate,
                               port.active_mtu == 0 ? std::string() : fmt::format(", RDMA MTU {}", port.active_mtu)));
    return;
  }
  const std::string text =
      fmt::format("the port is not active but {}{}", port.state.empty() ? "in no known state" : port.state,
                  port.physical_state.empty() ? std::string() : fmt::format(" ({})", port.physical_state));
  found.add(any_active(all) ? severity::warning : severity::error, area, text, port_advice(all, device, port));
}

bool has_address(const inventory& all, const rdma_port& port) {
  return std::ranges::any_of(port.interfaces, [&](const std::string& name) {
    const network_interface* const lower = all.find_interface(name);
    return lower != nullptr && std::ranges::any_of(lower->addresses, std::not_fn(&interface_address::link_local));
  });
}

std::string list_addresses(const rdma_port& port) {
  std::string text;
  std::vector<std::string> seen;
  for (const gid& row : port.gids) {
    if (row.address.empty() || std::find(seen.begin(), seen.end(), row.address) != seen.end()) continue;
    seen.push_back(row.address);
    text += fmt::format("{}{}", text.empty() ? "" : ", ", row.address);
  }
  return text;
}

std::string interface_of(const rdma_port& port) {
  return port.interfaces.empty() ? "INTERFACE" : port.interfaces.front();
}

// The connection manager names peers by IP address, and finds its own in the table of GIDs.
void check_roce_addresses(const inventory& all, const rdma_device& device, const rdma_port& port, findings& found) {
  const std::string area = fmt::format("GIDs {}/{}", device.name, port.number);
  const std::string give =
      fmt::format("`ip address add 10.0.0.1/24 dev {}`, with an address of your network", interface_of(port));
  if (port.gids.empty()) {
    found.fail(area, "the table of GIDs is empty: the port has no address, and nothing can connect through it",
               fmt::format("bring its network interface up and give it an address: `ip link set dev {} up`, {}",
                           interface_of(port), give));
    return;
  }
  if (list_addresses(port).empty()) {
    const std::string why =
        has_address(all, port) ? "although its interface has an address" : "because its interface has no address";
    found.fail(
        area, fmt::format("no GID holds an IP address, {}: peers cannot name this port", why),
        has_address(all, port)
            ? fmt::format("take the interface down and up again: `ip link set dev {0} down && ip link set dev {0} up`",
                          interface_of(port))
            : give);
    return;
  }
  const bool has_types = std::ranges::any_of(port.gids, [](const gid& row) { return !row.type.empty(); });
  const bool has_v2 =
      std::ranges::any_of(port.gids, [](const gid& row) { return row.type == "RoCE v2" && !row.address.empty(); });
  if (has_types && !has_v2) {
    found.warn(area,
               fmt::format("{} is there for RoCE v1 alone, which no router forwards and many switches do not favour",
                           list_addresses(port)),
               fmt::format("`cma_roce_mode -d {} -p {} -m 2`", device.name, port.number));
    return;
  }
  found.ok(area, fmt::format("the port has the address{} {}{}",
                             list_addresses(port).find(',') != std::string::npos ? "es" : "", list_addresses(port),
                             has_v2 ? " (RoCE v2)" : ""));
}

void check_other_addresses(const inventory& all, const rdma_device& device, const rdma_port& port, findings& found) {
  const std::string area = fmt::format("addresses {}/{}", device.name, port.number);
  if (port.interfaces.empty()) {
    const bool ib = device.kind == rdma_kind::infiniband;
    found.fail(area, "no network interface belongs to the port, so that it has no IP address: peers cannot name it",
               ib ? "`modprobe ib_ipoib`, then `ip address add 10.0.0.1/24 dev ib0`, with an address of your network"
                  : fmt::format("`rdma link show {}/{}` names its network interface", device.name, port.number));
    return;
  }
  if (!has_address(all, port)) {
    found.fail(area, fmt::format("{} has no IP address: peers cannot name the port", interface_of(port)),
               fmt::format("`ip address add 10.0.0.1/24 dev {}`, with an address of your network", interface_of(port)));
    return;
  }
  std::string text;
  for (const std::string& name : port.interfaces) {
    const network_interface* const lower = all.find_interface(name);
    if (lower == nullptr) continue;
    for (const interface_address& each : lower->addresses) {
      if (!each.link_local) text += fmt::format("{}{}", text.empty() ? "" : ", ", each.address);
    }
  }
  found.ok(area, fmt::format("the port has the addresses of {}: {}", interface_of(port), text));
}

void check_mtu(const inventory& all, const rdma_device& device, const rdma_port& port, findings& found) {
  if (device.kind != rdma_kind::roce || !port.is_active() || port.active_mtu == 0 || port.interfaces.empty()) return;
  const network_interface* const lower = all.find_interface(port.interfaces.front());
  if (lower == nullptr) return;
  const std::string area = fmt::format("MTU {}/{}", device.name, port.number);
  if (port.active_mtu >= 4096) {
    found.ok(
        area,
        fmt::format("packets carry 4096 bytes, over an MTU of {}; `weft-info check PEER` finds out whether they arrive",
                    lower->mtu));
    return;
  }
  found.hint(
      area,
      fmt::format("an MTU of {} on {} lets RDMA packets carry {} bytes, of 4096 that RoCE can", lower->mtu, lower->name,
                  port.active_mtu),
      fmt::format("`ip link set dev {} mtu 4200` (or 9000), on every host, and at least that on every switch between",
                  lower->name));
}

// The columns of /proc/net/route: interface, destination, ... ; the loopback's are not there.
bool has_route(const machine& here, const std::string& interface) {
  for (const char* file : {"/proc/net/route", "/proc/net/ipv6_route"}) {
    const auto text = here.read(file);
    if (!text) continue;
    std::size_t begin = 0;
    while (begin < text->size()) {
      const std::size_t end = std::min(text->find('\n', begin), text->size());
      const std::string_view line = std::string_view(*text).substr(begin, end - begin);
      const bool first =
          line.starts_with(interface) && line.size() > interface.size() && line[interface.size()] == '\t';
      // Of IPv6, the interface is last; its own addresses (flag 0x80000000) and multicast (ff00::/8) lead nowhere.
      const bool last = line.ends_with(" " + interface) && !line.starts_with("ff") && !line.starts_with("fe80") &&
                        line.find(" 80200001 ") == std::string_view::npos;
      if (first || last) return true;
      begin = end + 1;
    }
  }
  return false;
}

void check_route(const machine& here, const inventory& all, const rdma_device& device, const rdma_port& port,
                 findings& found) {
  if (!port.is_active() || port.interfaces.empty() || !has_address(all, port)) return;
  if (!here.exists("/proc/net/route") && !here.exists("/proc/net/ipv6_route")) return;
  const std::string area = fmt::format("routes {}/{}", device.name, port.number);
  for (const std::string& name : port.interfaces) {
    if (has_route(here, name)) {
      found.ok(area, fmt::format("a route leads over {}", name));
      return;
    }
  }
  found.warn(
      area,
      fmt::format(
          "the main routing table has no route over {}: peers may be reached over another interface, or not at all",
          interface_of(port)),
      fmt::format("`ip route get PEER` shows which way is taken; `ip route add NETWORK dev {}`", interface_of(port)));
}

// Counters that rise when packets of a lossless network are lost, by the drivers that have them.
void check_losses(const machine& here, const rdma_device& device, const rdma_port& port, findings& found) {
  constexpr std::array<const char*, 5> names = {"out_of_sequence", "packet_seq_err", "local_ack_timeout_err",
                                                "retry_exceeded_err", "rcvd_seq_err"};
  const std::string folder = fmt::format("/sys/class/infiniband/{}/ports/{}/hw_counters/", device.name, port.number);
  std::string text;
  for (const char* name : names) {
    const auto count = here.read_number(folder + name);
    if (count.value_or(0) > 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, *count);
  }
  if (text.empty()) return;
  found.hint(
      fmt::format("losses {}/{}", device.name, port.number),
      fmt::format("packets of this port have been lost or overtaken since it came up: {}", text),
      fmt::format("if the counts grow under load (`grep . {}*`), the network is not lossless: PFC and ECN on NICs "
                  "and switches (`mlnx_qos -i {}`)",
                  folder, interface_of(port)));
}

// Two interfaces of one machine in one subnet answer for each other, unless told otherwise.
void check_same_subnet(const machine& here, const inventory& all, findings& found) {
  std::vector<std::pair<std::string, std::string>> seen;  // subnet and interface
  for (const rdma_device& device : all.rdma) {
    for (const rdma_port& port : device.ports) {
      for (const std::string& name : port.interfaces) {
        const network_interface* const lower = all.find_interface(name);
        if (lower == nullptr) continue;
        for (const interface_address& each : lower->addresses) {
          if (each.prefix != 24 || each.address.find(':') != std::string::npos) continue;
          const std::string subnet = each.address.substr(0, each.address.rfind('.'));
          const auto other = std::find_if(seen.begin(), seen.end(),
                                          [&](const auto& row) { return row.first == subnet && row.second != name; });
          if (other != seen.end() && here.read_number("/proc/sys/net/ipv4/conf/all/arp_ignore").value_or(0) == 0 &&
              here.read_number(fmt::format("/proc/sys/net/ipv4/conf/{}/arp_ignore", name)).value_or(0) == 0) {
            found.warn(
                "subnets",
                fmt::format("{} and {} are both in {}.0/24, so that each answers ARP for the other, and RoCE packets "
                            "reach the wrong device",
                            other->second, name, subnet),
                "`sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2`, or a subnet for each");
            return;
          }
          seen.emplace_back(subnet, name);
        }
      }
    }
  }
}

}  // namespace

void check_rdma(const machine& here, const inventory& all, findings& found) {
  check_presence(here, all, found);
  if (all.rdma.empty()) return;
  check_connection_manager(here, found);
  for (const rdma_device& device : all.rdma) {
    check_file(here, all, device, found);
    for (const rdma_port& port : device.ports) {
      check_state(all, device, port, found);
      if (device.kind == rdma_kind::roce) {
        check_roce_addresses(all, device, port, found);
      } else {
        check_other_addresses(all, device, port, found);
      }
      check_mtu(all, device, port, found);
      check_route(here, all, device, port, found);
      check_losses(here, device, port, found);
    }
  }
  check_same_subnet(here, all, found);
}

}  // namespace info
