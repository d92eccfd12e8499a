// SPDX-License-Identifier: Apache-2.0
#include <fmt/chrono.h>
#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <string>

#include "report.hpp"
#include "units.hpp"

namespace info {
namespace {

template <class... Values>
void line(std::string& text, fmt::format_string<Values...> form, Values&&... values) {
  fmt::format_to(std::back_inserter(text), form, std::forward<Values>(values)...);
  while (!text.empty() && text.back() == ' ') text.pop_back();
  text += '\n';
}

const char* yes_or_no(bool is_so) noexcept { return is_so ? "yes" : "no"; }

const char* name_of(weft::net::exposure_reach reach) noexcept {
  switch (reach) {
    case weft::net::exposure_reach::nobody:
      return "no";
    case weft::net::exposure_reach::all_connections:
      return "to all connections";
    case weft::net::exposure_reach::one_connection:
      break;
  }
  return "to one peer";
}

std::string in_microseconds(std::chrono::nanoseconds time) {
  return fmt::format("{:.1f} us", static_cast<double>(time.count()) / 1000);
}

void add_port(std::string& text, const rdma_port& port) {
  std::string mtu;
  if (port.active_mtu != 0) {
    mtu = fmt::format(", MTU {}{}", port.active_mtu,
                      port.mtu_is_from == mtu_source::interface ? " (by its interface's)" : "");
  }
  line(text, "    port {}       {}, {}, {}, {}{}", port.number, port.state, port.physical_state, port.link_layer,
       port.rate, mtu);
  for (const gid& row : port.gids) {
    line(text, "      GID {:<6}  {}  {:<10}  {:<10}  {}", row.index, row.value, row.type, row.interface,
         !row.address.empty() ? row.address
         : row.link_local     ? "link-local"
                              : "");
  }
  if (port.gids.empty()) line(text, "      no GIDs");
  if (std::ranges::all_of(port.gids, [](const gid& row) { return row.interface.empty(); })) {
    for (const std::string& name : port.interfaces) line(text, "      interface   {}", name);
  }
}

void add_limits(std::string& text, const weft::net::rdma_device_info& limits) {
  line(text, "    limits       {} queue pairs of {} requests, {} completion queues of {}, {} regions of {}",
       limits.max_queue_pairs, limits.max_queue_depth, limits.max_completion_queues, limits.max_completions,
       limits.max_regions,
       limits.max_region_bytes > std::uint64_t{1} << 60 ? "any size" : format_bytes(limits.max_region_bytes));
  line(text, "                 {} windows, {} shared receive queues, {} reads at a time, scatter lists of {}",
       limits.max_windows, limits.max_shared_receive_queues, limits.max_reads, limits.max_parts);
  line(text,
       "    weft         atomics: {}, write with immediate: {}, shared receives: {}, expose: {}, on-demand paging: {}, "
       "dma-buf: {}",
       yes_or_no(limits.atomics), yes_or_no(limits.write_immediate), yes_or_no(limits.shared_receives),
       name_of(limits.exposures), yes_or_no(limits.on_demand), yes_or_no(limits.dmabuf));
}

void add_device(std::string& text, const rdma_device& device) {
  line(text, "  {}  ({})", device.name, name_of(device.kind));
  line(text, "    file         {}{}", device.file.empty() ? "none" : device.file,
       device.file.empty() || device.file_is_there ? "" : ", which is not there");
  line(text, "    GUID         {}", device.guid);
  if (!device.firmware.empty()) line(text, "    firmware     {}", device.firmware);
  if (!device.board.empty()) line(text, "    board        {}", device.board);
  if (device.numa_node >= 0) line(text, "    NUMA node    {}", device.numa_node);
  if (device.limits) add_limits(text, *device.limits);
  for (const rdma_port& port : device.ports) add_port(text, port);
}

void add_interfaces(std::string& text, const inventory& all) {
  std::size_t width = 4;
  for (const network_interface& each : all.interfaces) width = std::max(width, each.name.size());
  for (const network_interface& each : all.interfaces) {
    std::string addresses;
    for (const interface_address& one : each.addresses)
      addresses += fmt::format("{}{}/{}", addresses.empty() ? "" : ", ", one.address, one.prefix);
    line(text, "  {:<{}}  {:<7}  MTU {:<5}  {:<12}  {}", each.name, width, each.state, each.mtu,
         each.megabits > 0 ? fmt::format("{} Mb/s", each.megabits) : std::string(), addresses);
  }
  if (all.interfaces.empty()) line(text, "  none");
}

std::string limit_in_words(const std::optional<std::uint64_t>& limit) {
  return limit ? format_bytes(*limit) : std::string("unlimited");
}

void add_memory(std::string& text, const inventory& all) {
  line(text, "  locked memory  {}{}", limit_in_words(all.locked_memory),
       all.may_lock_beyond_limit ? ", and this process may go beyond (CAP_IPC_LOCK)" : "");
  for (const huge_page_size& each : all.huge_pages) {
    line(text, "  huge pages     {:<8} {} of {} free", format_bytes(each.bytes), each.free, each.total);
  }
  if (!all.transparent_huge_pages.empty()) line(text, "  transparent    {}", all.transparent_huge_pages);
  line(text, "  open files     {}", all.descriptors ? fmt::format("{}", *all.descriptors) : "unlimited");
}

std::string mtu_in_words(const path_mtu& mtu) {
  std::string text;
  if (mtu.interface_mtu != 0) text += fmt::format("interface {}", mtu.interface_mtu);
  if (mtu.kernel_mtu != 0) text += fmt::format("{}kernel (IP_MTU) {}", text.empty() ? "" : ", ", mtu.kernel_mtu);
  if (mtu.was_probed)
    text += fmt::format("{}by probing {}", text.empty() ? "" : ", ",
                        mtu.probed != 0 ? fmt::format("{}", mtu.probed) : "nothing came back");
  return text.empty() ? "not known" : text;
}

}  // namespace

std::string to_text(const inventory& all) {
  std::string text;
  line(text, "weft {}  built by {}, {}; with shm{}{}", all.version, all.compiler, all.build,
       all.with_verbs ? ", verbs" : "", all.with_iwarp ? ", iwarp" : "");
  line(text, "kernel        {}", all.kernel);
  line(text, "event driver  {}{}{}", all.driver.failure.empty() ? all.driver.name : all.driver.failure,
       all.driver.reason.empty() ? "" : ": ", all.driver.reason);
  line(text, "");
  line(text, "fabrics");
  std::size_t width = 5;
  for (const auto& each : all.fabrics) width = std::max(width, each.name.size());
  for (const auto& each : all.fabrics) {
    line(text, "  {:<{}}  {}", each.name, width,
         each.why_not.empty() ? "can be opened" : fmt::format("cannot be opened: {}", each.why_not));
  }
  line(text, "");
  line(text, "RDMA devices");
  for (const rdma_device& each : all.rdma) add_device(text, each);
  if (all.rdma.empty()) line(text, "  none{}", all.kernel_has_rdma ? "" : ": there is no /sys/class/infiniband");
  line(text, "");
  line(text, "network interfaces");
  add_interfaces(text, all);
  line(text, "");
  line(text, "memory and limits of this process");
  add_memory(text, all);
  return text;
}

std::string to_text(const findings& found, bool quiet) {
  std::string text;
  std::size_t width = 0;
  for (const finding& each : found.all()) {
    if (!quiet || each.level != severity::ok) width = std::max(width, each.area.size());
  }
  for (const finding& each : found.all()) {
    if (quiet && each.level == severity::ok) continue;
    line(text, "{:<7}  {:<{}}  {}", name_of(each.level), each.area, width, each.text);
    if (!each.remedy.empty()) line(text, "{:<7}  {:<{}}  -> {}", "", "", width, each.remedy);
  }
  line(text, "");
  line(text, "{} error{}, {} warning{}, {} hint{}, {} ok", found.count(severity::error),
       found.count(severity::error) == 1 ? "" : "s", found.count(severity::warning),
       found.count(severity::warning) == 1 ? "" : "s", found.count(severity::hint),
       found.count(severity::hint) == 1 ? "" : "s", found.count(severity::ok));
  return text;
}

std::string to_text(const peer_report& peer) {
  std::string text;
  line(text, "peer {}", peer.address);
  if (!peer.words.empty()) line(text, "  it is     {}", peer.words);
  line(text, "  path MTU  {}", mtu_in_words(peer.mtu));
  std::size_t width = 5;
  for (const reach& each : peer.fabrics) width = std::max(width, each.fabric.size());
  for (const reach& each : peer.fabrics) {
    if (!each.connected) {
      line(text, "  {:<{}}  does not reach it", each.fabric, width);
      continue;
    }
    std::string what = fmt::format("reaches it in {:.1f} ms",
                                   static_cast<double>(each.set_up.value_or(std::chrono::nanoseconds()).count()) / 1e6);
    if (each.round_trips != 0) {
      what += fmt::format("; round trip {} at least, {} in the middle of {}", in_microseconds(each.round_trip_min),
                          in_microseconds(each.round_trip_median), each.round_trips);
    }
    if (each.rdma_mtu != 0) what += fmt::format("; RDMA MTU {}", each.rdma_mtu);
    line(text, "  {:<{}}  {}", each.fabric, width, what);
  }
  line(text, "");
  return text;
}

}  // namespace info
