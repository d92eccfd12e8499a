// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/pool_options.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "checks.hpp"
#include "units.hpp"

namespace info {
namespace {

constexpr std::uint64_t mib = std::uint64_t{1} << 20;

void check_memlock(const inventory& all, findings& found) {
  if (all.may_lock_beyond_limit)
    return found.ok("memlock", "this process may lock any amount of memory (CAP_IPC_LOCK)");
  if (!all.locked_memory) return found.ok("memlock", "the limit of locked memory is unlimited");
  const std::uint64_t limit = *all.locked_memory;
  const std::uint64_t wanted = weft::mr::pool_options().max_bytes;
  const std::string remedy =
      "`ulimit -l unlimited` (or `* - memlock unlimited` in /etc/security/limits.conf, and log in again); for a "
      "service "
      "`LimitMEMLOCK=infinity` in its unit; for a container `--ulimit memlock=-1`";
  if (all.rdma.empty()) {
    return found.ok("memlock", fmt::format("the limit of locked memory is {}, which matters to RDMA devices alone",
                                           format_bytes(limit)));
  }
  if (limit < mib) {
    return found.fail(
        "memlock",
        fmt::format(
            "the limit of locked memory is {}: RDMA devices pin what is registered, and hardly a connection can be had",
            format_bytes(limit)),
        remedy);
  }
  if (limit / 2 < wanted) {
    return found.warn("memlock",
                      fmt::format("the limit of locked memory is {}: a device's pool has {} of it instead of {}, and "
                                  "what programs register counts as well",
                                  format_bytes(limit), format_bytes(limit / 2), format_bytes(wanted)),
                      remedy);
  }
  found.ok("memlock", fmt::format("the limit of locked memory is {}, and a device's pool wants {}", format_bytes(limit),
                                  format_bytes(wanted)));
}

// Which of the ways to forbid io_uring it is.
void check_driver(const machine& here, const inventory& all, findings& found) {
  const driver_info& driver = all.driver;
  if (!driver.failure.empty()) {
    return found.fail("event driver", fmt::format("no executor can be made: {}", driver.failure),
                      "unset WEFT_EVENT_DRIVER, or set it to epoll");
  }
  if (driver.name == "io_uring") return found.ok("event driver", "executors use io_uring");
  if (driver.reason.empty()) {
    return found.hint("event driver", fmt::format("executors use {}, because WEFT_EVENT_DRIVER says so", driver.name),
                      "`unset WEFT_EVENT_DRIVER`, and they use io_uring where they can");
  }
  const std::string text = fmt::format("executors use {} instead of io_uring: {}", driver.name, driver.reason);
  const auto disabled = here.read_number("/proc/sys/kernel/io_uring_disabled").value_or(0);
  if (disabled == 1) {
    return found.warn(
        "event driver", text + "; kernel.io_uring_disabled is 1: for members of one group alone",
        "`sysctl -w kernel.io_uring_disabled=0`, or put this user into the group of `sysctl kernel.io_uring_group`");
  }
  if (disabled != 0) {
    return found.warn("event driver", fmt::format("{}; kernel.io_uring_disabled is {}: for nobody", text, disabled),
                      "`sysctl -w kernel.io_uring_disabled=0`");
  }
  if (here.field("/proc/self/status", "Seccomp") == "2") {
    return found.warn("event driver", text + "; a seccomp profile is in force, as containers have one",
                      "allow io_uring_setup, io_uring_enter and io_uring_register in the profile (`docker run "
                      "--security-opt seccomp=PROFILE.json`; in Kubernetes securityContext.seccompProfile)");
  }
  found.warn("event driver", text, "Linux 5.11 or newer has all that is needed, if it is built with CONFIG_IO_URING");
}

void check_fabrics(const machine& here, const inventory& all, findings& found) {
  for (const weft::net::fabric_info& each : all.fabrics) {
    if (each.name.starts_with("verbs")) continue;   // what their devices lack is told there
    if (each.name.starts_with("fabric")) continue;  // nobody needs libfabric without asking for it
    const bool left_out = (each.name == "iwarp" && !all.with_iwarp);
    if (!each.why_not.empty()) {
      found.add(left_out ? severity::hint : severity::error, "fabric " + each.name,
                fmt::format("{} cannot be opened: {}", each.name, each.why_not),
                left_out ? "build with -DWEFT_WITH_IWARP=ON, for peers without an RDMA device" : "");
    }
  }
  if (const int failure = here.calls().try_memory_file(); failure != 0) {
    found.fail("fabric shm",
               fmt::format("shared memory cannot be made: memfd_create: {}", std::system_category().message(failure)),
               "allow memfd_create in the seccomp profile");
  } else {
    found.ok("fabric shm",
             "shared memory can be made (by memfd_create: /dev/shm is not used, and its size does not matter)");
  }
}

void check_huge_pages(const machine& here, const inventory& all, findings& found) {
  constexpr std::uint64_t usual = 2 * mib;
  const auto two = std::ranges::find(all.huge_pages, usual, &huge_page_size::bytes);
  const std::uint64_t wanted = weft::mr::pool_options().max_bytes / usual;
  const std::string remedy = fmt::format("`sysctl -w vm.nr_hugepages={}`", wanted);
  if (two == all.huge_pages.end()) {
    if (here.exists("/sys/kernel/mm")) found.hint("huge pages", "this kernel offers no huge pages of 2 MiB", "");
    return;
  }
  if (two->free * usual >= weft::mr::pool_options().max_bytes) {
    return found.ok("huge pages",
                    fmt::format("{} of {} huge pages of 2 MiB are free, and a device's pool takes {} at most",
                                two->free, two->total, wanted));
  }
  const std::string have = two->total == 0
                               ? std::string("no huge pages of 2 MiB are set aside")
                               : fmt::format("{} of {} huge pages of 2 MiB are free, and a device's pool takes {}",
                                             two->free, two->total, wanted);
  const std::string& thp = all.transparent_huge_pages;
  if (thp == "always" || thp == "madvise") {
    return found.hint(
        "huge pages",
        fmt::format("{}: the pool asks for transparent ones (\"{}\"), which the kernel gives when it has them", have,
                    thp),
        remedy);
  }
  found.warn("huge pages",
             have + ", and transparent ones are off: registering takes longer, and RDMA devices keep more translations",
             remedy + ", or `echo madvise >/sys/kernel/mm/transparent_hugepage/enabled`");
}

// The third of "4096 131072 6291456".
std::int64_t largest_in(const std::string& text) {
  const std::size_t at = text.find_last_of(" \t");
  std::int64_t number = 0;
  const char* const begin = at == std::string::npos ? text.data() : text.data() + at + 1;
  std::from_chars(begin, text.data() + text.size(), number);
  return number;
}

void check_sockets(const machine& here, findings& found) {
  constexpr std::int64_t enough = 4 << 20;
  std::string small;
  std::string remedy;
  for (const auto& [file, setting, value] : std::vector<std::tuple<std::string, std::string, std::string>>{
           {"/proc/sys/net/ipv4/tcp_rmem", "net.ipv4.tcp_rmem", "\"4096 131072 33554432\""},
           {"/proc/sys/net/ipv4/tcp_wmem", "net.ipv4.tcp_wmem", "\"4096 65536 33554432\""}}) {
    const auto text = here.read(file);
    if (!text || largest_in(*text) >= enough) continue;
    small += fmt::format("{}{} ends at {}", small.empty() ? "" : ", ", setting,
                         format_bytes(static_cast<std::uint64_t>(std::max<std::int64_t>(largest_in(*text), 0))));
    remedy += fmt::format("{}`sysctl -w {}={}`", remedy.empty() ? "" : ", ", setting, value);
  }
  // What a program asks for by SO_RCVBUF; weft leaves that to the kernel, and servers behind it may not.
  for (const char* name : {"rmem_max", "wmem_max"}) {
    const auto number = here.read_number(fmt::format("/proc/sys/net/core/{}", name));
    if (!number || *number >= 212992) continue;
    small += fmt::format("{}net.core.{} is {}", small.empty() ? "" : ", ", name,
                         format_bytes(static_cast<std::uint64_t>(std::max<std::int64_t>(*number, 0))));
    remedy += fmt::format("{}`sysctl -w net.core.{}=33554432`", remedy.empty() ? "" : ", ", name);
  }
  if (!small.empty()) {
    found.hint("socket buffers",
               fmt::format("a connection of iWARP over TCP does not fill a fast network far away: {}", small), remedy);
  } else if (here.exists("/proc/sys/net/ipv4/tcp_rmem")) {
    found.ok("socket buffers", fmt::format("TCP may take up to {} to receive",
                                           format_bytes(static_cast<std::uint64_t>(
                                               largest_in(here.read("/proc/sys/net/ipv4/tcp_rmem").value_or(""))))));
  }
}

void check_jumbo_frames(const machine& here, const inventory& all, findings& found) {
  if (here.read_number("/proc/sys/net/ipv4/tcp_mtu_probing").value_or(1) != 0) return;
  for (const network_interface& each : all.interfaces) {
    if (each.mtu <= 1500 || each.mtu >= 65535 || !each.administratively_up || each.addresses.empty()) continue;
    found.hint(
        "jumbo frames",
        fmt::format("{} has an MTU of {}: TCP hangs where a switch drops such packets without a word, because it does "
                    "not look for a smaller size",
                    each.name, each.mtu),
        "`sysctl -w net.ipv4.tcp_mtu_probing=1`; `weft-info check PEER` tries large packets on the way to a peer");
    return;
  }
}

void check_governor(const machine& here, findings& found) {
  const std::string folder = "/sys/devices/system/cpu";
  std::map<std::string, unsigned> governors;
  for (const std::string& name : here.list(folder)) {
    if (!name.starts_with("cpu")) continue;
    const auto governor = here.read(fmt::format("{}/{}/cpufreq/scaling_governor", folder, name));
    if (governor) ++governors[*governor];
  }
  if (governors.empty()) return found.ok("CPU governor", "the processors' frequency is not this kernel's to choose");
  if (governors.size() == 1 && governors.contains("performance"))
    return found.ok("CPU governor", "all processors run at full frequency (performance)");
  std::string text;
  for (const auto& [name, count] : governors)
    text += fmt::format("{}{} by \"{}\"", text.empty() ? "" : ", ", count, name);
  found.hint("CPU governor", fmt::format("processors change their frequency, which costs latency: {}", text),
             "`cpupower frequency-set -g performance`");
}

void check_numa(const machine& here, const inventory& all, findings& found) {
  const std::string folder = "/sys/devices/system/node";
  const std::vector<unsigned> allowed = parse_cpu_list(here.field("/proc/self/status", "Cpus_allowed_list"));
  for (const rdma_device& device : all.rdma) {
    if (device.numa_node < 0) continue;
    const std::vector<unsigned> near =
        parse_cpu_list(here.read(fmt::format("{}/node{}/cpulist", folder, device.numa_node)).value_or(""));
    if (near.empty() || allowed.empty()) continue;
    const auto is_near = [&](unsigned cpu) { return std::ranges::find(near, cpu) != near.end(); };
    const std::string area = "NUMA " + device.name;
    const std::string pin = fmt::format("`numactl --cpunodebind={0} --membind={0} PROGRAM`", device.numa_node);
    if (std::ranges::none_of(allowed, is_near)) {
      found.warn(area,
                 fmt::format("{} is at NUMA node {}, and this process may run on none of its processors", device.name,
                             device.numa_node),
                 pin);
    } else if (!std::ranges::all_of(allowed, is_near)) {
      found.hint(
          area,
          fmt::format("{} is at NUMA node {}, and this process may also run elsewhere", device.name, device.numa_node),
          pin);
    } else {
      found.ok(area, fmt::format("this process runs at the NUMA node of {}", device.name));
    }
  }
}

void check_clock(const machine& here, findings& found) {
  const std::string folder = "/sys/devices/system/clocksource/clocksource0/";
  const auto current = here.read(folder + "current_clocksource");
  if (!current) return;
  const bool fast = *current == "tsc" || *current == "kvm-clock" || *current == "arch_sys_counter" ||
                    *current == "hyperv_clocksource_tsc_page";
  if (fast) return found.ok("clock", fmt::format("the clock is read without a system call ({})", *current));
  const bool has_tsc = here.read(folder + "available_clocksource").value_or("").find("tsc") != std::string::npos;
  found.warn(
      "clock",
      fmt::format("the clock source is {}: each look at the time is a system call, and an executor looks often",
                  *current),
      has_tsc
          ? fmt::format("`echo tsc >{}current_clocksource`, and see in `dmesg` why the kernel did not trust it", folder)
          : std::string("see in `dmesg | grep -i tsc` why the kernel does not use it"));
}

void check_descriptors(const inventory& all, findings& found) {
  if (!all.descriptors) return found.ok("descriptors", "the number of open files is not limited");
  if (*all.descriptors >= 16384) return found.ok("descriptors", fmt::format("{} files may be open", *all.descriptors));
  const bool few = *all.descriptors < 256;
  found.add(few ? severity::warning : severity::hint, "descriptors",
            fmt::format("{} files may be open, and over iWARP and shared memory each connection takes one or more",
                        *all.descriptors),
            "`ulimit -n 1048576`; for a service `LimitNOFILE=1048576` in its unit");
}

// "0::/system.slice/weft.service", as the process sees it; "/" in a namespace of its own.
std::string own_cgroup(const machine& here) {
  const std::string text = here.field("/proc/self/cgroup", "0:");
  return "/sys/fs/cgroup" + (text.empty() || text == "/" ? std::string() : text);
}

void check_rdma_controller(const machine& here, const std::string& group, const inventory& all, findings& found) {
  const std::string text = here.read(group + "/rdma.max").value_or("");  // "mlx5_0 hca_handle=2 hca_object=2000"
  for (const rdma_device& device : all.rdma) {
    const std::size_t line = ("\n" + text).find("\n" + device.name + " ");
    if (line == std::string::npos) continue;
    const std::string rest = text.substr(line, text.find('\n', line) - line);
    const bool limited =
        rest.find("hca_handle=max") == std::string::npos || rest.find("hca_object=max") == std::string::npos;
    const bool none = rest.find("hca_handle=0") != std::string::npos || rest.find("hca_object=0") != std::string::npos;
    if (!limited) continue;
    found.add(none ? severity::error : severity::hint, "cgroup",
              fmt::format("this process's cgroup limits RDMA objects: {}", rest),
              fmt::format("`echo '{} hca_handle=max hca_object=max' >{}/rdma.max`", device.name, group));
  }
}

void check_cgroup(const machine& here, const inventory& all, findings& found) {
  constexpr std::int64_t little_memory = 512 << 20;
  const std::string group = own_cgroup(here);
  bool fine = true;
  if (const auto limit = here.read_number(group + "/memory.max"); limit && *limit < little_memory) {
    fine = false;
    found.warn("cgroup",
               fmt::format("this process's cgroup may have {} of memory: a device's pool alone takes up to {}",
                           format_bytes(static_cast<std::uint64_t>(std::max<std::int64_t>(*limit, 0))),
                           format_bytes(weft::mr::pool_options().max_bytes)),
               "raise it (`MemoryMax=` of the unit, `--memory` of the container), or set pool_options::max_bytes");
  }
  if (const auto limit = here.read_number(group + "/pids.max"); limit && *limit < 64) {
    fine = false;
    found.warn("cgroup",
               fmt::format("this process's cgroup may have {} threads, and weft starts some for registrations", *limit),
               "`TasksMax=` of the unit, `--pids-limit` of the container");
  }
  const std::string quota = here.read(group + "/cpu.max").value_or("");  // "200000 100000"
  if (!quota.empty() && !quota.starts_with("max")) {
    fine = false;
    found.hint("cgroup",
               fmt::format("this process's cgroup is stopped when its share of processor time is used up (cpu.max "
                           "\"{}\"): latencies of tens of milliseconds come from that",
                           quota),
               "`CPUQuota=` of the unit, `--cpus` of the container; in Kubernetes a limit that equals the request, of "
               "whole processors");
  }
  const std::size_t before = found.all().size();
  check_rdma_controller(here, group, all, found);
  if (fine && found.all().size() == before && here.exists(group + "/cgroup.controllers")) {
    found.ok("cgroup", "this process's cgroup has no limit that is too small");
  }
}

}  // namespace

void check_system(const machine& here, const inventory& all, findings& found) {
  check_memlock(all, found);
  check_driver(here, all, found);
  check_fabrics(here, all, found);
  check_huge_pages(here, all, found);
  check_sockets(here, found);
  check_jumbo_frames(here, all, found);
  check_descriptors(all, found);
  check_cgroup(here, all, found);
  check_governor(here, found);
  check_numa(here, all, found);
  check_clock(here, found);
}

findings check_machine(const machine& here, const inventory& all) {
  findings found;
  check_rdma(here, all, found);
  check_system(here, all, found);
  return found;
}

}  // namespace info
