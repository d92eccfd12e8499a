// SPDX-License-Identifier: Apache-2.0
// weft-info's report: what comes of both ends of each fabric in this process, and what is said of it.
#include <weft/net/add_transport.hpp>
#include <weft/net/link/transport.hpp>
#include <weft/weft.hpp>

#include "kit/test.hpp"
#include <info/mask.hpp>
#include <info/probe.hpp>
#include <info/report.hpp>
#include <nlohmann/json.hpp>

namespace info {
namespace {

using namespace std::chrono_literals;

probe_options all_operations(std::chrono::milliseconds patience = 20s) {
  return {.patience = patience, .fabric = {}, .all_operations = true};
}

inventory with_fabrics(std::vector<weft::net::fabric_info> fabrics) {
  inventory all;
  all.fabrics = std::move(fabrics);
  return all;
}

// The device of the text above, with an address that a sender would not want to publish.
rdma_device device_with_secrets() {
  rdma_device device;
  device.name = "mlx5_0";
  device.guid = "0c42:a103:0065:7a2a";
  device.firmware = "226.0.145.0";  // looks like an address
  device.kernel_driver = "mlx5_core";
  device.limits = weft::net::rdma_device_info{
      .vendor = 0x2c9, .ports = {{.number = 1, .max_message_bytes = 1U << 30}}, .traits = {{"windows", "type_2b"}}};
  rdma_port& port = device.ports.emplace_back();
  port.number = 1;
  port.gids.push_back(
      {.index = 0, .value = "fe80:0000:0000:0000:0e42:a103:0065:7a2a", .type = {}, .interface = {}, .address = {}});
  return device;
}

TEST(a_self_test, passes_every_operation_over_shared_memory_and_iwarp) {
  const inventory all = with_fabrics({{.name = "shm"}, {.name = "iwarp"}});
  const peer_report itself = probe_itself(all, all_operations());
  ASSERT_EQ(itself.fabrics.size(), 2U);
  for (const reach& each : itself.fabrics) {
    std::vector<std::string> passed;
    for (const tried_operation& one : each.operations) {
      EXPECT_EQ(one.result, outcome::passed) << each.fabric << ", " << one.name << ": " << one.words;
      passed.push_back(one.name);
    }
    EXPECT_EQ(passed, (std::vector<std::string>{"connect", "send", "send_large", "write", "read", "flush", "atomic",
                                                "expose", "close"}));
  }
  findings found;
  check_itself(itself, found);
  EXPECT_TRUE(found.all().empty());
}

TEST(a_self_test, refuses_fabrics_that_cannot_be_opened_and_devices_without_a_port_or_an_address) {
  inventory all = with_fabrics({{.name = "verbs", .why_not = "no RDMA device"}, {.name = "verbs:mlx5_0"}});
  rdma_port& port = all.rdma.emplace_back(device_with_secrets()).ports.front();
  const auto words = [&](std::size_t fabric) {
    const tried_operation one = probe_itself(all, all_operations()).fabrics.at(fabric).operations.at(0);
    EXPECT_EQ(one.result, outcome::refused);
    return one.words;
  };
  EXPECT_EQ(words(0), "no RDMA device");
  EXPECT_EQ(words(1), "no port is active");
  port.state = "ACTIVE";
  EXPECT_EQ(words(1), "no port has an IP address");
}

TEST(a_self_test, of_a_device_that_cannot_be_opened_after_all_is_a_failure_with_its_words) {
  weft::net::add_transport("broken", [](std::string_view) -> std::unique_ptr<weft::net::transport> {
    throw weft::error(weft::errc::no_memory, "allocate a protection domain");
  });
  const peer_report itself = probe_itself(with_fabrics({{.name = "broken"}}), all_operations());
  findings found;
  check_itself(itself, found);
  ASSERT_EQ(found.worst(), severity::error);
  EXPECT_NE(found.all()[0].text.find("protection domain"), std::string::npos) << found.all()[0].text;
}

TEST(a_self_test, of_a_device_that_hangs_ends_in_time) {
  static std::atomic<int> hanging = 1;  // the thread that hangs may outlive the test
  weft::net::add_transport("hanging", [](std::string_view) -> std::unique_ptr<weft::net::transport> {
    hanging.wait(1);
    hanging = 2;
    hanging.notify_all();
    throw weft::error(weft::errc::no_memory, "open it");
  });
  const peer_report itself = probe_itself(with_fabrics({{.name = "hanging"}}), all_operations(20ms));
  EXPECT_TRUE(itself.still_asks);
  EXPECT_EQ(itself.fabrics.at(0).operations.at(0).result, outcome::failed);
  hanging = 0;
  hanging.notify_all();
  hanging.wait(0);
}

TEST(a_report, says_what_was_tried_and_hides_names_unless_they_are_wanted) {
  inventory all = with_fabrics({{.name = "shm"}});
  all.rdma.push_back(device_with_secrets());
  findings found;
  found.warn("clock", "storage-3 at 10.0.0.7 is slow", "");
  mask names({"storage-3"});
  const peer_report itself = probe_itself(all, all_operations());
  const auto hidden = nlohmann::json::parse(to_report(all, found, nullptr, itself, &names));
  EXPECT_EQ(hidden["self_test"][0]["fabric"], "shm");
  EXPECT_EQ(hidden["self_test"][0]["operations"]["expose"], "passed");
  EXPECT_EQ(hidden["self_test"][0]["largest_message"], 32768);
  EXPECT_EQ(hidden["findings"][0]["text"], "host-1 at address-1 is slow");
  const auto& device = hidden["rdma_devices"][0];
  EXPECT_EQ(device["guid"], "guid-1");
  EXPECT_EQ(device["ports"][0]["gids"][0]["value"], "link-local-1");
  EXPECT_EQ(device["ports"][0]["max_message_bytes"], 1U << 30);
  EXPECT_EQ(device["firmware"], "226.0.145.0");
  EXPECT_EQ(device["kernel_driver"], "mlx5_core");
  EXPECT_EQ(device["limits"]["vendor"], "0x02c9");
  EXPECT_EQ(device["limits"]["traits"]["windows"], "type_2b");
  const auto open = nlohmann::json::parse(to_report(all, found, nullptr, itself, nullptr));
  EXPECT_EQ(open["findings"][0]["text"], "storage-3 at 10.0.0.7 is slow");
  EXPECT_EQ(open["rdma_devices"][0]["guid"], "0c42:a103:0065:7a2a");
}

}  // namespace
}  // namespace info
