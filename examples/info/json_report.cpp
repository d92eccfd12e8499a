// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <array>

#include "report.hpp"
#include <nlohmann/json.hpp>

namespace info {
namespace {

using nlohmann::ordered_json;

template <class Value>
ordered_json or_null(const std::optional<Value>& value) {
  return value ? ordered_json(*value) : ordered_json(nullptr);
}

ordered_json or_null(const std::string& text) { return text.empty() ? ordered_json(nullptr) : ordered_json(text); }

const char* name_of(weft::net::exposure_reach reach) noexcept {
  switch (reach) {
    case weft::net::exposure_reach::nobody:
      return "nobody";
    case weft::net::exposure_reach::all_connections:
      return "all_connections";
    case weft::net::exposure_reach::one_connection:
      break;
  }
  return "one_connection";
}

const char* name_of(mtu_source source) noexcept {
  constexpr std::array names = {"unknown", "device", "interface"};
  static_assert(names.size() == static_cast<std::size_t>(mtu_source::interface) + 1);
  return names[static_cast<std::size_t>(source)];
}

ordered_json to_object(const weft::net::rdma_device_info& limits) {
  ordered_json traits = ordered_json::object();
  for (const auto& [name, value] : limits.traits) traits[name] = value;
  return {{"vendor", fmt::format("{:#06x}", limits.vendor)},
          {"part", limits.part},
          {"hardware_version", limits.hardware_version},
          {"capability_flags", fmt::format("{:#x}", limits.capability_flags)},
          {"queue_pairs", limits.max_queue_pairs},
          {"queue_depth", limits.max_queue_depth},
          {"completion_queues", limits.max_completion_queues},
          {"completions", limits.max_completions},
          {"regions", limits.max_regions},
          {"region_bytes", limits.max_region_bytes},
          {"windows", limits.max_windows},
          {"shared_receive_queues", limits.max_shared_receive_queues},
          {"shared_receive_depth", limits.max_shared_receives},
          {"parts", limits.max_parts},
          {"read_parts", limits.max_read_parts},
          {"reads", limits.max_reads},
          {"outgoing_reads", limits.max_outgoing_reads},
          {"atomics", limits.atomics},
          {"write_immediate", limits.write_immediate},
          {"shared_receives", limits.shared_receives},
          {"expose_to", name_of(limits.exposures)},
          {"on_demand", limits.on_demand},
          {"dmabuf", limits.dmabuf},
          {"traits", std::move(traits)}};
}

ordered_json to_object(const rdma_port& port, const weft::net::rdma_port_info* limits) {
  ordered_json all;
  all["number"] = port.number;
  all["state"] = port.state;
  all["physical_state"] = port.physical_state;
  all["link_layer"] = port.link_layer;
  all["rate"] = port.rate;
  all["active_mtu"] = port.active_mtu;
  all["active_mtu_from"] = name_of(port.mtu_is_from);
  if (limits != nullptr) {
    all["max_mtu"] = limits->max_mtu;
    all["max_message_bytes"] = limits->max_message_bytes;
  }
  all["interfaces"] = port.interfaces;
  all["gids"] = ordered_json::array();
  for (const gid& row : port.gids) {
    all["gids"].push_back({{"index", row.index},
                           {"value", row.value},
                           {"type", or_null(row.type)},
                           {"interface", or_null(row.interface)},
                           {"address", or_null(row.address)}});
  }
  return all;
}

ordered_json to_object(const rdma_device& device) {
  ordered_json all;
  all["name"] = device.name;
  all["kind"] = info::name_of(device.kind);
  all["guid"] = device.guid;
  all["firmware"] = or_null(device.firmware);
  all["board"] = or_null(device.board);
  all["kernel_driver"] = or_null(device.kernel_driver);
  all["kernel_driver_version"] = or_null(device.kernel_driver_version);
  all["numa_node"] = device.numa_node;
  all["file"] = or_null(device.file);
  all["file_is_there"] = device.file_is_there;
  all["why_not"] = or_null(device.why_not);
  all["limits"] = device.limits ? to_object(*device.limits) : ordered_json(nullptr);
  all["ports"] = ordered_json::array();
  for (const rdma_port& port : device.ports) all["ports"].push_back(to_object(port, device.find_limits(port.number)));
  return all;
}

ordered_json to_object(const network_interface& one) {
  ordered_json all;
  all["name"] = one.name;
  all["state"] = one.state;
  all["mtu"] = one.mtu;
  all["megabits"] = one.megabits;
  all["addresses"] = ordered_json::array();
  for (const interface_address& each : one.addresses) {
    all["addresses"].push_back({{"address", each.address}, {"prefix", each.prefix}});
  }
  return all;
}

ordered_json to_object(const inventory& all) {
  ordered_json root;
  root["program"] = "weft-info";
  root["weft"] = {{"version", all.version},
                  {"compiler", all.compiler},
                  {"build", all.build},
                  {"verbs", all.with_verbs},
                  {"iwarp", all.with_iwarp}};
  root["kernel"] = all.kernel;
  root["distribution"] = or_null(all.distribution);
  root["architecture"] = or_null(all.architecture);
  root["verbs_library"] = or_null(all.verbs_library);
  root["event_driver"] = {
      {"name", all.driver.name}, {"reason", or_null(all.driver.reason)}, {"failure", or_null(all.driver.failure)}};
  root["fabrics"] = ordered_json::array();
  for (const auto& each : all.fabrics) {
    root["fabrics"].push_back(
        {{"name", each.name}, {"opens", each.why_not.empty()}, {"why_not", or_null(each.why_not)}});
  }
  root["rdma_devices"] = ordered_json::array();
  for (const rdma_device& each : all.rdma) root["rdma_devices"].push_back(to_object(each));
  root["interfaces"] = ordered_json::array();
  for (const network_interface& each : all.interfaces) root["interfaces"].push_back(to_object(each));
  root["huge_pages"] = ordered_json::array();
  for (const huge_page_size& each : all.huge_pages) {
    root["huge_pages"].push_back({{"bytes", each.bytes}, {"total", each.total}, {"free", each.free}});
  }
  root["transparent_huge_pages"] = or_null(all.transparent_huge_pages);
  root["locked_memory_limit"] = or_null(all.locked_memory);
  root["may_lock_beyond_limit"] = all.may_lock_beyond_limit;
  root["descriptor_limit"] = or_null(all.descriptors);
  return root;
}

std::string in_words(const tried_operation& one) {
  if (one.result == outcome::passed) return "passed";
  return (one.result == outcome::refused ? "refused: " : "failed: ") + one.words;
}

ordered_json to_object(const reach& one) {
  ordered_json all;
  all["fabric"] = one.fabric;
  all["connected"] = one.connected;
  all["failure"] = or_null(one.failure);
  if (one.set_up) all["set_up_ns"] = one.set_up->count();
  all["is_weft_info"] = one.speaks;
  if (one.round_trips != 0) {
    all["round_trip_ns"] = {
        {"count", one.round_trips}, {"min", one.round_trip_min.count()}, {"median", one.round_trip_median.count()}};
  }
  all["largest_message"] = one.largest_message;
  all["lost_message"] = one.lost_message;
  all["written_bytes"] = one.written_bytes;
  all["read_bytes"] = one.read_bytes;
  all["transfer_failure"] = or_null(one.transfer_failure);
  all["rdma_mtu"] = one.rdma_mtu;
  all["operations"] = ordered_json::object();
  for (const tried_operation& each : one.operations) all["operations"][each.name] = in_words(each);
  return all;
}

ordered_json to_object(const peer_report& peer) {
  ordered_json all;
  all["address"] = peer.address;
  all["words"] = or_null(peer.words);
  all["path_mtu"] = {{"interface", peer.mtu.interface_mtu},
                     {"kernel", peer.mtu.kernel_mtu},
                     {"was_probed", peer.mtu.was_probed},
                     {"probed", peer.mtu.probed},
                     {"failure", or_null(peer.mtu.failure)}};
  all["fabrics"] = ordered_json::array();
  for (const reach& each : peer.fabrics) all["fabrics"].push_back(to_object(each));
  return all;
}

// Names of devices and what peers say may be no UTF-8.
std::string dump(const ordered_json& root) {
  return root.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

// Some versions look like addresses.
bool is_version(const std::string& key) {
  return key == "firmware" || key == "kernel_driver_version" || key == "verbs_library" || key == "version";
}

void hide(ordered_json& value, mask& names) {
  if (value.is_string()) value = names.apply(value.get<std::string>());
  if (value.is_array()) {
    for (ordered_json& each : value) hide(each, names);
  }
  if (!value.is_object()) return;
  for (auto& [key, each] : value.items()) {
    if (!is_version(key)) hide(each, names);
  }
}

ordered_json to_object(const inventory& all, const findings& found, const peer_report* peer) {
  ordered_json root = to_object(all);
  if (peer != nullptr) root["peer"] = to_object(*peer);
  root["findings"] = ordered_json::array();
  for (const finding& each : found.all()) {
    root["findings"].push_back({{"severity", name_of(each.level)},
                                {"area", each.area},
                                {"text", each.text},
                                {"remedy", or_null(each.remedy)}});
  }
  root["hindered"] = found.worst() == severity::error;
  return root;
}

}  // namespace

std::string to_json(const inventory& all) { return dump(to_object(all)); }

std::string to_json(const inventory& all, const findings& found, const peer_report* peer) {
  return dump(to_object(all, found, peer));
}

std::string to_report(const inventory& all, const findings& found, const peer_report* peer, const peer_report& itself,
                      mask* names) {
  ordered_json root = to_object(all, found, peer);
  root["self_test"] = ordered_json::array();
  for (const reach& each : itself.fabrics) root["self_test"].push_back(to_object(each));
  if (names != nullptr) hide(root, *names);
  return dump(root);
}

}  // namespace info
