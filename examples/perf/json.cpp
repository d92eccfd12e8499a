// SPDX-License-Identifier: Apache-2.0
#include "report.hpp"
#include <nlohmann/json.hpp>

namespace perf {
namespace {

using nlohmann::ordered_json;

ordered_json to_object(const outcome& one) {
  const auto& time = one.latency;
  ordered_json all;
  all["operation"] = one.what->name;
  all["quantity"] = name_of(one.measures);
  all["size"] = one.size;
  all["depth"] = one.depth;
  all["operations"] = one.operations;
  all["seconds"] = one.seconds;
  all["operations_per_second"] = one.rate();
  all["bytes_per_second"] = one.bytes_per_second();
  all["latency_is"] = one.how().meaning;
  all["latency_ns"] = {{"min", time.min}, {"p50", time.p50},    {"p90", time.p90},
                       {"p99", time.p99}, {"p99.9", time.p999}, {"max", time.max}};
  all["longest_pause_ns"] = one.longest_pause;
  all["fabric"] = one.fabric;
  all["checksum"] = name_of(one.checksum);
  all["server_polling"] = name_of(one.server_polling);
  return all;
}

}  // namespace

std::string to_json(const report& all) {
  ordered_json root;
  root["program"] = "weft-perf";
  root["address"] = all.address;
  root["device"] = all.device;
  root["driver"] = all.driver;
  root["polling"] = name_of(all.polling);
  root["connections"] = all.connections;
  root["outcomes"] = ordered_json::array();
  for (const outcome& one : all.outcomes) root["outcomes"].push_back(to_object(one));
  // What is no UTF-8 came from the command line: it is for people.
  return root.dump(2, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace perf
