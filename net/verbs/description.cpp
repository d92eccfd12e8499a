// SPDX-License-Identifier: Apache-2.0
#include <weft/net/verbs/description.hpp>
#include <weft/net/verbs/device.hpp>
#include <weft/net/verbs/words.hpp>
#include <weft/runtime/error.hpp>

#include <cstring>

namespace weft::net::verbs {
namespace {

// The library's structures hold limits in signed numbers, although none is negative.
template <class Number>
std::uint64_t count(Number value) noexcept {
  return value > 0 ? static_cast<std::uint64_t>(value) : 0;
}

// IBV_MTU_256 is 1, and each next value stands for twice as many bytes.
std::uint32_t bytes_of(ibv_mtu mtu) noexcept {
  const unsigned step = static_cast<unsigned>(mtu);
  return step >= IBV_MTU_256 && step <= IBV_MTU_4096 ? 128U << step : 0;
}

exposure_reach reach_of(const device_traits& traits) noexcept {
  if (!traits.has_windows()) return exposure_reach::nobody;
  return traits.has_windows_of_one_peer() ? exposure_reach::one_connection : exposure_reach::all_connections;
}

std::vector<rdma_port_info> ports_of(const device& opened) {
  std::vector<rdma_port_info> all;
  for (unsigned port = 1; port <= opened.limits().phys_port_cnt; ++port) {  // not 8 bits, as there may be 255 ports
    const auto number = static_cast<std::uint8_t>(port);
    ibv_port_attr state{};
    if (opened.calls().query_port(opened.context(), number, &state) < 0) continue;
    all.push_back({.number = number,
                   .active = state.state == IBV_PORT_ACTIVE,
                   .active_mtu = bytes_of(state.active_mtu),
                   .max_mtu = bytes_of(state.max_mtu),
                   .max_message_bytes = state.max_msg_sz});
  }
  return all;
}

rdma_device_info describe(const device& opened) {
  const ibv_device_attr& limits = opened.limits();
  const device_traits& traits = opened.traits();
  rdma_device_info found;
  found.firmware.assign(limits.fw_ver, ::strnlen(limits.fw_ver, sizeof limits.fw_ver));
  found.vendor = limits.vendor_id;
  found.part = limits.vendor_part_id;
  found.hardware_version = limits.hw_ver;
  found.capability_flags = limits.device_cap_flags;
  found.is_iwarp = traits.gids_are_hardware_addresses;
  found.numa_node = opened.numa_node();
  found.max_queue_pairs = count(limits.max_qp);
  found.max_queue_depth = count(limits.max_qp_wr);
  found.max_completion_queues = count(limits.max_cq);
  found.max_completions = count(limits.max_cqe);
  found.max_regions = count(limits.max_mr);
  found.max_region_bytes = limits.max_mr_size;
  found.max_windows = count(limits.max_mw);
  found.max_shared_receive_queues = count(limits.max_srq);
  found.max_shared_receives = count(limits.max_srq_wr);
  found.max_parts = count(limits.max_sge);
  found.max_read_parts = count(limits.max_sge_rd);
  found.max_reads = count(limits.max_qp_rd_atom);
  found.max_outgoing_reads = count(limits.max_qp_init_rd_atom);
  found.atomics = traits.has_atomics;
  found.write_immediate = traits.has_write_immediate;
  found.shared_receives = limits.max_srq > 0 && limits.max_srq_wr > 0 && traits.messages_wait_for_receives;
  found.on_demand = opened.on_demand_operations() != 0;
  found.dmabuf = opened.has_dmabuf();
  found.exposures = reach_of(traits);
  found.ports = ports_of(opened);
  found.traits = names_and_values(traits);
  return found;
}

}  // namespace

std::vector<fabric_info> describe_devices(rdma_calls& library) {
  std::vector<fabric_info> all;
  for (const std::string& name : device_names(library)) {
    fabric_info& found = all.emplace_back(fabric_info{.name = "verbs:" + name});
    try {
      found.rdma = describe(device(library, name));
    } catch (const error& why) {
      found.why_not = why.what();
    }
  }
  if (all.empty()) all.push_back({.name = "verbs", .why_not = words_for_no_device()});
  return all;
}

}  // namespace weft::net::verbs
