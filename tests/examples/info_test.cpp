// SPDX-License-Identifier: Apache-2.0
// weft-info on machines that are trees of files: what it says of devices that are missing, down, forbidden or without
// addresses, and of limits that are too small.

#include <filesystem>
#include <fstream>
#include <map>

#include "kit/temporary_directory.hpp"
#include "kit/test.hpp"
#include <info/checks.hpp>
#include <info/inventory.hpp>
#include <info/machine.hpp>
#include <info/report.hpp>
#include <info/units.hpp>
#include <nlohmann/json.hpp>

namespace info {
namespace {

using weft::test::temporary_directory;

/// Calls of a machine that is well.
class calls_of_tests final : public machine_calls {
 public:
  std::vector<interface_address> known_addresses;
  std::map<std::string, int> failing_files;
  int memory_file_failure = 0;
  driver_info driver{.name = "io_uring", .reason = {}, .failure = {}};
  std::vector<weft::net::fabric_info> known_fabrics{{.name = "shm"}, {.name = "iwarp"}};
  std::map<std::string, std::string> variables;
  bool with_verbs = true;

  std::vector<interface_address> addresses() override { return known_addresses; }
  int try_to_open(const std::string& path) override { return failing_files[path]; }
  int try_memory_file() override { return memory_file_failure; }
  driver_info event_driver() override { return driver; }
  std::vector<weft::net::fabric_info> fabrics() override { return known_fabrics; }
  bool has_verbs() override { return with_verbs; }
  bool has_iwarp() override { return true; }
  std::string environment(const char* name) override { return variables[name]; }
  std::string architecture() override { return "x86_64"; }
  std::string verbs_library() override { return "/usr/lib/libibverbs.so.1.14.44.0"; }
};

/// What was found about an area; the gravest, if there are several.
finding about(const findings& found, std::string_view area) {
  finding gravest{.level = severity::ok, .area = "none", .text = {}, .remedy = {}};
  for (const finding& each : found.all()) {
    if (each.area == area && (gravest.area == "none" || each.level > gravest.level)) gravest = each;
  }
  return gravest;
}

testing::AssertionResult is(const finding& what, severity level, std::string_view words, std::string_view remedy = {}) {
  const bool fits = what.level == level && what.text.find(words) != std::string::npos &&
                    what.remedy.find(remedy) != std::string::npos;
  if (fits && (level == severity::ok || !what.remedy.empty())) return testing::AssertionSuccess();
  return testing::AssertionFailure() << name_of(what.level) << ", " << what.area << ": " << what.text << " -> "
                                     << what.remedy;
}

/// A machine that is well, until a test changes it.
class machine_of_tests {
 public:
  machine_of_tests() {
    write("/proc/sys/kernel/osrelease", "6.1.0-50-amd64");
    write("/proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456");
    write("/proc/sys/net/ipv4/tcp_wmem", "4096\t16384\t4194304");
    limits("unlimited", "1048576");
    status("0000000000000000", 0, "0-3");
    write("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "512");
    write("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "500");
    write("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never");
    write("/sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc");
    write("/sys/devices/system/clocksource/clocksource0/available_clocksource", "tsc hpet acpi_pm");
    interface("eth0", 9000);
    calls.known_addresses = {{"eth0", "10.0.0.7", 24, false}, {"eth0", "fe80::277:ff:fe00:1", 64, true}};
    write("/proc/net/route", "Iface\tDestination\tGateway\neth0\t0000000A\t00000000");
  }

  void add_roce() {
    const std::string device = "/sys/class/infiniband/mlx5_0";
    write(device + "/node_type", "1: CA");
    write(device + "/node_guid", "0c42:a103:0065:7a2a");
    write(device + "/device/numa_node", "0");
    write(port + "/state", "4: ACTIVE");
    write(port + "/phys_state", "5: LinkUp");
    write(port + "/link_layer", "Ethernet");
    write(port + "/rate", "100 Gb/sec (4X EDR)");
    gid_row(0, "fe80:0000:0000:0000:0277:00ff:fe00:0001", "IB/RoCE v1");
    gid_row(1, "fe80:0000:0000:0000:0277:00ff:fe00:0001", "RoCE v2");
    gid_row(2, "0000:0000:0000:0000:0000:ffff:0a00:0007", "RoCE v2");
    write(port + "/gids/3", "0000:0000:0000:0000:0000:0000:0000:0000");
    add_file("mlx5_0");
    write("/sys/devices/system/node/node0/cpulist", "0-3");
    const weft::net::rdma_device_info limits_of_device{
        .max_queue_pairs = 131072, .ports = {{.number = 1, .active = true, .active_mtu = 4096, .max_mtu = 4096}}};
    calls.known_fabrics.push_back({.name = "verbs:mlx5_0", .why_not = {}, .rdma = limits_of_device});
  }

  void add_file(const std::string& device) {
    write("/sys/class/infiniband_verbs/uverbs0/ibdev", device);
    write("/dev/infiniband/uverbs0", "");
    write("/dev/infiniband/rdma_cm", "");
  }

  void gid_row(unsigned index, const std::string& value, const std::string& type) const {
    write(port + "/gids/" + std::to_string(index), value);
    write(port + "/gid_attrs/types/" + std::to_string(index), type);
    write(port + "/gid_attrs/ndevs/" + std::to_string(index), "eth0");
  }

  void interface(const std::string& name, unsigned mtu, const std::string& flags = "0x1003") const {
    const std::string folder = "/sys/class/net/" + name;
    write(folder + "/mtu", std::to_string(mtu));
    write(folder + "/flags", flags);
    write(folder + "/operstate", flags == "0x1003" ? "up" : "down");
    write(folder + "/type", "1");
    write(folder + "/address", "02:77:00:00:00:01");
  }

  void limits(const std::string& memlock, const std::string& files) const {
    write("/proc/self/limits",
          "Limit                     Soft Limit           Hard Limit           Units     \n"
          "Max open files            " +
              files +
              "                 1048576              files     \n"
              "Max locked memory         " +
              memlock + "              unlimited            bytes     \n");
  }

  void status(const std::string& capabilities, int seccomp, const std::string& cpus) const {
    write("/proc/self/status", "Name:\tweft-info\nCapEff:\t" + capabilities + "\nSeccomp:\t" + std::to_string(seccomp) +
                                   "\nCpus_allowed_list:\t" + cpus);
  }

  void write(const std::string& path, const std::string& text) const {
    const std::filesystem::path whole = std::filesystem::path(folder_.path()) / path.substr(1);
    std::filesystem::create_directories(whole.parent_path());
    std::ofstream(whole) << text << "\n";
  }
  void link(const std::string& target, const std::string& path) const {
    std::filesystem::create_symlink(folder_.path() + target, folder_.path() + path);
  }
  void remove(const std::string& path) const {
    std::filesystem::remove_all(std::filesystem::path(folder_.path()) / path.substr(1));
  }

  [[nodiscard]] machine here() { return {folder_.path(), calls}; }
  [[nodiscard]] inventory take() { return take_inventory(here()); }
  [[nodiscard]] findings check() { return check_machine(here(), take()); }
  [[nodiscard]] testing::AssertionResult finds(std::string_view area, severity level, std::string_view words,
                                               std::string_view remedy = {}) {
    return is(about(check(), area), level, words, remedy);
  }

  static inline const std::string port = "/sys/class/infiniband/mlx5_0/ports/1";
  calls_of_tests calls;

 private:
  temporary_directory folder_;
};

class machine_with_roce : public machine_of_tests {
 public:
  machine_with_roce() { add_roce(); }
};

// Tests with a machine, `one`.
#define TEST_OF(machine, suite, name)       \
  void suite##_##name##_body(machine& one); \
  TEST(suite, name) {                       \
    machine one;                            \
    suite##_##name##_body(one);             \
  }                                         \
  void suite##_##name##_body(machine& one)
#define TEST_OF_MACHINE(suite, name) TEST_OF(machine_of_tests, suite, name)
#define TEST_WITH_ROCE(suite, name) TEST_OF(machine_with_roce, suite, name)

TEST_WITH_ROCE(a_machine, that_is_well_is_not_complained_of) {
  const findings found = one.check();
  EXPECT_EQ(found.worst(), severity::ok) << to_text(found, true);
  EXPECT_GE(found.all().size(), 12U);
}

TEST(a_machine, with_no_files_at_all_is_no_reason_to_fail) {
  const temporary_directory nothing;
  calls_of_tests calls;
  const machine here(nothing.path(), calls);
  const inventory all = take_inventory(here);
  EXPECT_TRUE(all.rdma.empty());
  EXPECT_NE(check_machine(here, all).worst(), severity::error);
  EXPECT_NE(to_text(all).find("there is no /sys/class/infiniband"), std::string::npos);
}

TEST_WITH_ROCE(a_list, shows_device_port_and_the_addresses_of_its_gids) {
  const inventory all = one.take();
  ASSERT_EQ(all.rdma.size(), 1U);
  const rdma_device& device = all.rdma[0];
  EXPECT_EQ(device.kind, rdma_kind::roce);
  EXPECT_EQ(device.file, "/dev/infiniband/uverbs0");
  ASSERT_EQ(device.ports.size(), 1U);
  ASSERT_EQ(device.ports[0].gids.size(), 3U) << "an empty row is left out";
  EXPECT_EQ(device.ports[0].gids[2].address, "10.0.0.7");
  EXPECT_EQ(device.ports[0].gids[2].type, "RoCE v2");
  EXPECT_TRUE(device.ports[0].gids[0].link_local);
  EXPECT_EQ(device.ports[0].active_mtu, 4096U);
  const std::string text = to_text(all);
  for (const char* words :
       {"mlx5_0  (RoCE)", "ACTIVE, LinkUp, Ethernet, 100 Gb/sec", "10.0.0.7", "131072 queue pairs", "MTU 9000"}) {
    EXPECT_NE(text.find(words), std::string::npos) << words << " is not in\n" << text;
  }
}

TEST_WITH_ROCE(a_list, is_json_with_the_same_and_also_where_names_are_no_utf8) {
  one.write("/sys/class/infiniband/mlx5_0/board_id", "MT_\xff\xfe");
  const auto root = nlohmann::json::parse(to_json(one.take()));
  EXPECT_EQ(root["program"], "weft-info");
  EXPECT_EQ(root["rdma_devices"][0]["ports"][0]["gids"][2]["address"], "10.0.0.7");
  EXPECT_EQ(root["rdma_devices"][0]["limits"]["queue_pairs"], 131072);
  const inventory all = one.take();
  const auto checked = nlohmann::json::parse(to_json(all, check_machine(one.here(), all), nullptr));
  EXPECT_EQ(checked["hindered"], false);
  EXPECT_FALSE(checked["findings"].empty());
}

TEST_WITH_ROCE(a_list, names_the_distribution_the_verbs_library_and_the_kernels_drivers) {
  one.write("/etc/os-release", "NAME=\"Debian GNU/Linux\"\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nID=debian");
  one.write("/sys/bus/pci/drivers/mlx5_core/module/version", "24.01-0.3.3");
  one.link("/sys/bus/pci/drivers/mlx5_core", "/sys/class/infiniband/mlx5_0/device/driver");
  const auto root = nlohmann::json::parse(to_json(one.take()));
  EXPECT_EQ(root["distribution"], "Debian GNU/Linux 12 (bookworm)");
  EXPECT_EQ(root["architecture"], "x86_64");
  EXPECT_EQ(root["verbs_library"], "/usr/lib/libibverbs.so.1.14.44.0");
  EXPECT_EQ(root["rdma_devices"][0]["kernel_driver"], "mlx5_core");
  EXPECT_EQ(root["rdma_devices"][0]["kernel_driver_version"], "24.01-0.3.3");
}

TEST_WITH_ROCE(a_list, has_the_mtu_of_the_interface_where_no_library_tells_that_of_the_port) {
  one.calls.known_fabrics.pop_back();
  one.interface("eth0", 1500);
  EXPECT_EQ(one.take().rdma.at(0).ports.at(0).active_mtu, 1024U);
  EXPECT_EQ(one.take().rdma.at(0).ports.at(0).mtu_is_from, mtu_source::interface);
}

TEST(rdma_mtu, is_what_fits_beside_the_headers) {
  EXPECT_EQ(rdma_mtu_of(1500), 1024U);
  EXPECT_EQ(rdma_mtu_of(4191), 2048U);
  EXPECT_EQ(rdma_mtu_of(4192), 4096U);
  EXPECT_EQ(rdma_mtu_of(9000), 4096U);
  EXPECT_EQ(rdma_mtu_of(300), 0U);
}

TEST(cpu_lists, are_read_as_the_kernel_writes_them) {
  EXPECT_EQ(parse_cpu_list("0-2,8"), (std::vector<unsigned>{0, 1, 2, 8}));
  EXPECT_EQ(parse_cpu_list(""), std::vector<unsigned>());
  for (const char* wrong : {"3-1", "x", "0-", "1;2", "0-99999999"}) EXPECT_TRUE(parse_cpu_list(wrong).empty()) << wrong;
}

TEST(devices, that_are_missing_are_a_hint_that_names_the_drivers) {
  machine_of_tests none;
  EXPECT_TRUE(none.finds("devices", severity::hint, "no RDMA device", "rdma link add rxe0"));
  none.write("/.dockerenv", "");
  EXPECT_TRUE(none.finds("devices", severity::hint, "container", "--device=/dev/infiniband"));
  EXPECT_NE(none.check().worst(), severity::error) << "iWARP over TCP works";
}

TEST_WITH_ROCE(devices, without_their_file_are_an_error) {
  one.remove("/dev/infiniband/uverbs0");
  EXPECT_TRUE(one.finds("device mlx5_0", severity::error, "/dev/infiniband/uverbs0 is not there", "--device="));
  one.remove("/sys/class/infiniband_verbs");
  EXPECT_TRUE(one.finds("device mlx5_0", severity::error, "ib_uverbs is not loaded", "modprobe ib_uverbs"));
}

TEST_WITH_ROCE(devices, that_are_forbidden_are_an_error_that_tells_a_mode_from_a_container) {
  one.calls.failing_files = {{"/dev/infiniband/uverbs0", EACCES}, {"/dev/infiniband/rdma_cm", EPERM}};
  const findings found = one.check();
  EXPECT_TRUE(is(about(found, "device mlx5_0"), severity::error, "this user may not open /dev/infiniband/uverbs0",
                 "chmod 666"));
  EXPECT_TRUE(is(about(found, "rdma_cm"), severity::error, "device controller", "--device=/dev/infiniband/rdma_cm"));
}

TEST_WITH_ROCE(devices, whose_library_is_missing_are_an_error) {
  one.calls.known_fabrics.pop_back();
  EXPECT_TRUE(one.finds("device mlx5_0", severity::error, "libibverbs does not know", "ibverbs-providers"));
}

TEST_WITH_ROCE(devices, that_a_build_leaves_out_are_a_warning_and_their_library_is_not_missed) {
  one.calls.known_fabrics.back() = {.name = "verbs", .why_not = "this build has no verbs"};
  one.calls.with_verbs = false;
  const findings found = one.check();
  EXPECT_TRUE(
      is(about(found, "devices"), severity::warning, "without the transport for RDMA devices", "WEFT_WITH_VERBS=ON"));
  EXPECT_NE(found.worst(), severity::error) << to_text(found, true);
}

TEST_WITH_ROCE(devices, that_weft_cannot_open_are_an_error_with_its_words) {
  one.calls.known_fabrics.back().why_not = "allocate a protection domain on mlx5_0: Cannot allocate memory";
  EXPECT_TRUE(one.finds("device mlx5_0", severity::error, "protection domain on mlx5_0"));
}

TEST_WITH_ROCE(connection_manager, that_is_missing_is_an_error_that_names_the_module) {
  one.remove("/dev/infiniband/rdma_cm");
  EXPECT_TRUE(one.finds("rdma_cm", severity::error, "rdma_ucm is not loaded", "modprobe rdma_ucm"));
  one.write("/sys/module/rdma_ucm/refcnt", "0");
  EXPECT_TRUE(one.finds("rdma_cm", severity::error, "is loaded", "--device="));
}

TEST_WITH_ROCE(ports, that_are_down_are_an_error_that_tells_a_setting_from_a_cable) {
  one.write(machine_of_tests::port + "/state", "1: DOWN");
  one.write(machine_of_tests::port + "/phys_state", "3: Disabled");
  one.interface("eth0", 9000, "0x1002");
  EXPECT_TRUE(one.finds("port mlx5_0/1", severity::error, "DOWN (Disabled)", "ip link set dev eth0 up"));
  one.interface("eth0", 9000);
  EXPECT_TRUE(one.finds("port mlx5_0/1", severity::error, "DOWN", "cable"));
}

TEST_WITH_ROCE(ports, of_infiniband_that_wait_for_a_subnet_manager_say_so) {
  one.write(machine_of_tests::port + "/link_layer", "InfiniBand");
  one.remove(machine_of_tests::port + "/gid_attrs");
  one.write(machine_of_tests::port + "/state", "2: INIT");
  EXPECT_TRUE(one.finds("port mlx5_0/1", severity::error, "INIT", "opensm"));
  EXPECT_TRUE(one.finds("addresses mlx5_0/1", severity::error, "no network interface", "ib_ipoib"));
}

TEST_WITH_ROCE(ports, that_are_down_beside_one_that_is_active_are_a_warning) {
  one.write("/sys/class/infiniband/mlx5_0/ports/2/state", "1: DOWN");
  one.write("/sys/class/infiniband/mlx5_0/ports/2/link_layer", "Ethernet");
  EXPECT_TRUE(one.finds("port mlx5_0/2", severity::warning, "DOWN", "rdma link show mlx5_0/2"));
}

TEST_WITH_ROCE(gids, that_are_none_are_an_error) {
  one.remove(machine_of_tests::port + "/gids");
  EXPECT_TRUE(one.finds("GIDs mlx5_0/1", severity::error, "table of GIDs is empty", "ip address add"));
}

TEST_WITH_ROCE(gids, without_an_ip_address_are_an_error) {
  one.remove(machine_of_tests::port + "/gids/2");
  one.calls.known_addresses.clear();
  EXPECT_TRUE(one.finds("GIDs mlx5_0/1", severity::error, "its interface has no address",
                        "ip address add 10.0.0.1/24 dev eth0"));
}

TEST_WITH_ROCE(gids, of_the_first_version_alone_are_a_warning) {
  one.gid_row(2, "0000:0000:0000:0000:0000:ffff:0a00:0007", "IB/RoCE v1");
  EXPECT_TRUE(one.finds("GIDs mlx5_0/1", severity::warning, "RoCE v1 alone", "cma_roce_mode -d mlx5_0"));
}

TEST_OF_MACHINE(an_iwarp_device, has_the_addresses_of_the_interface_below_it) {
  const std::string device = "/sys/class/infiniband/siw0";
  one.write(device + "/node_type", "4: RNIC");
  one.write(device + "/ports/1/state", "4: ACTIVE");
  one.write(device + "/ports/1/link_layer", "Ethernet");
  one.write(device + "/ports/1/gids/0", "0277:0000:0001:0000:0000:0000:0000:0000");
  one.add_file("siw0");
  one.calls.known_fabrics.push_back({.name = "verbs:siw0"});
  EXPECT_TRUE(one.finds("addresses siw0/1", severity::ok, "eth0: 10.0.0.7"));
  one.calls.known_addresses.clear();
  EXPECT_TRUE(one.finds("addresses siw0/1", severity::error, "eth0 has no IP address", "ip address add"));
}

TEST_WITH_ROCE(routes, that_do_not_lead_over_the_device_are_a_warning) {
  one.write("/proc/net/route", "Iface\tDestination\tGateway\neth1\t0000000A\t00000000");
  EXPECT_TRUE(one.finds("routes mlx5_0/1", severity::warning, "no route over eth0", "ip route"));
}

TEST_WITH_ROCE(packets, that_were_lost_are_counted_for_the_reader) {
  one.write(machine_of_tests::port + "/hw_counters/out_of_sequence", "12");
  EXPECT_TRUE(one.finds("losses mlx5_0/1", severity::hint, "out_of_sequence 12", "PFC"));
}

TEST_WITH_ROCE(subnets, that_two_devices_share_are_a_warning_unless_arp_is_told) {
  const std::string second = "/sys/class/infiniband/mlx5_1";
  one.write(second + "/node_type", "1: CA");
  one.write(second + "/ports/1/link_layer", "Ethernet");
  one.write(second + "/ports/1/gids/0", "0000:0000:0000:0000:0000:ffff:0a00:0008");
  one.write(second + "/ports/1/gid_attrs/ndevs/0", "eth1");
  one.interface("eth1", 9000);
  one.calls.known_addresses.push_back({"eth1", "10.0.0.8", 24, false});
  EXPECT_TRUE(one.finds("subnets", severity::warning, "eth0 and eth1", "arp_ignore=1"));
  one.write("/proc/sys/net/ipv4/conf/all/arp_ignore", "1");
  EXPECT_EQ(about(one.check(), "subnets").area, "none");
}

TEST_WITH_ROCE(memlock, is_measured_by_what_a_pool_wants) {
  one.limits("8388608", "1048576");
  EXPECT_TRUE(one.finds("memlock", severity::warning, "8 MiB: a device's pool has 4 MiB of it instead of 256 MiB",
                        "ulimit -l unlimited"));
  one.limits("65536", "1048576");
  EXPECT_TRUE(one.finds("memlock", severity::error, "64 KiB", "LimitMEMLOCK=infinity"));
  one.status("0000000000004000", 0, "0-3");  // CAP_IPC_LOCK
  EXPECT_EQ(about(one.check(), "memlock").level, severity::ok);
}

TEST(memlock, does_not_matter_without_an_rdma_device) {
  machine_of_tests none;
  none.limits("65536", "1048576");
  EXPECT_EQ(about(none.check(), "memlock").level, severity::ok);
}

TEST_OF_MACHINE(io_uring, that_is_forbidden_is_a_warning_that_tells_by_whom) {
  one.calls.driver = {.name = "epoll", .reason = "set up an io_uring: Operation not permitted", .failure = {}};
  EXPECT_TRUE(one.finds("event driver", severity::warning, "epoll instead of io_uring"));
  one.status("0000000000000000", 2, "0-3");
  EXPECT_TRUE(one.finds("event driver", severity::warning, "seccomp", "io_uring_setup"));
  one.write("/proc/sys/kernel/io_uring_disabled", "2");
  EXPECT_TRUE(
      one.finds("event driver", severity::warning, "io_uring_disabled is 2", "sysctl -w kernel.io_uring_disabled=0"));
  one.write("/proc/sys/kernel/io_uring_disabled", "1");
  EXPECT_TRUE(one.finds("event driver", severity::warning, "io_uring_disabled is 1", "io_uring_group"));
}

TEST_OF_MACHINE(io_uring, that_nobody_wants_is_a_hint) {
  one.calls.driver = {.name = "epoll", .reason = {}, .failure = {}};
  EXPECT_TRUE(one.finds("event driver", severity::hint, "WEFT_EVENT_DRIVER", "unset"));
}

TEST_OF_MACHINE(an_executor, that_cannot_be_made_is_an_error) {
  one.calls.driver = {.name = {}, .reason = {}, .failure = "WEFT_EVENT_DRIVER is \"kqueue\", not io_uring or epoll"};
  EXPECT_TRUE(one.finds("event driver", severity::error, "kqueue", "WEFT_EVENT_DRIVER"));
}

TEST_OF_MACHINE(huge_pages, that_are_none_are_a_hint_where_transparent_ones_take_their_place) {
  one.write("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "0");
  one.write("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "0");
  EXPECT_TRUE(one.finds("huge pages", severity::hint, "no huge pages", "vm.nr_hugepages=128"));
  one.write("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]");
  EXPECT_TRUE(one.finds("huge pages", severity::warning, "transparent ones are off", "madvise"));
}

TEST_OF_MACHINE(shared_memory, that_is_forbidden_is_an_error) {
  one.calls.memory_file_failure = EPERM;
  EXPECT_TRUE(one.finds("fabric shm", severity::error, "memfd_create", "seccomp"));
}

TEST_OF_MACHINE(descriptors, that_are_few_are_a_hint) {
  one.limits("unlimited", "1024");
  EXPECT_TRUE(one.finds("descriptors", severity::hint, "1024 files", "ulimit -n"));
  one.limits("unlimited", "64");
  EXPECT_TRUE(one.finds("descriptors", severity::warning, "64 files", "LimitNOFILE"));
}

TEST_OF_MACHINE(socket_buffers, that_are_small_are_a_hint) {
  one.write("/proc/sys/net/ipv4/tcp_rmem", "4096 131072 262144");
  one.write("/proc/sys/net/core/rmem_max", "65536");
  EXPECT_TRUE(one.finds("socket buffers", severity::hint, "tcp_rmem ends at 256 KiB", "sysctl -w net.ipv4.tcp_rmem="));
  EXPECT_TRUE(one.finds("socket buffers", severity::hint, "rmem_max is 64 KiB"));
}

TEST_OF_MACHINE(jumbo_frames, that_nothing_probes_are_a_hint) {
  one.write("/proc/sys/net/ipv4/tcp_mtu_probing", "0");
  EXPECT_TRUE(one.finds("jumbo frames", severity::hint, "eth0 has an MTU of 9000", "tcp_mtu_probing=1"));
  one.interface("eth0", 1500);
  EXPECT_EQ(about(one.check(), "jumbo frames").area, "none");
}

TEST_WITH_ROCE(a_cgroup, that_is_too_small_is_told) {
  const std::string group = "/sys/fs/cgroup/system.slice/server.service";
  one.write("/proc/self/cgroup", "0::/system.slice/server.service");
  one.write(group + "/memory.max", "67108864");
  EXPECT_TRUE(one.finds("cgroup", severity::warning, "64 MiB of memory", "MemoryMax="));
  one.write(group + "/memory.max", "max");
  one.write(group + "/pids.max", "8");
  EXPECT_TRUE(one.finds("cgroup", severity::warning, "8 threads", "TasksMax="));
  one.write(group + "/pids.max", "max");
  one.write(group + "/cpu.max", "50000 100000");
  EXPECT_TRUE(one.finds("cgroup", severity::hint, "50000 100000", "CPUQuota="));
  one.write(group + "/cpu.max", "max 100000");
  one.write(group + "/rdma.max", "mlx5_1 hca_handle=0 hca_object=0\nmlx5_0 hca_handle=2 hca_object=2000");
  EXPECT_TRUE(one.finds("cgroup", severity::hint, "hca_handle=2", "rdma.max"));
  one.write(group + "/rdma.max", "mlx5_0 hca_handle=0 hca_object=max");
  EXPECT_TRUE(one.finds("cgroup", severity::error, "hca_handle=0"));
}

TEST_OF_MACHINE(a_processor, that_changes_its_frequency_is_a_hint) {
  one.write("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance");
  EXPECT_EQ(about(one.check(), "CPU governor").level, severity::ok);
  one.write("/sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "powersave");
  EXPECT_TRUE(one.finds("CPU governor", severity::hint, "1 by \"powersave\"", "cpupower"));
}

TEST_WITH_ROCE(a_processor, far_from_the_device_is_a_warning) {
  one.write("/sys/devices/system/node/node0/cpulist", "8-15");
  EXPECT_TRUE(one.finds("NUMA mlx5_0", severity::warning, "none of its processors", "numactl --cpunodebind=0"));
  one.write("/sys/devices/system/node/node0/cpulist", "0-1");
  EXPECT_TRUE(one.finds("NUMA mlx5_0", severity::hint, "may also run elsewhere", "numactl"));
}

TEST_OF_MACHINE(a_clock, that_takes_a_system_call_is_a_warning) {
  one.write("/sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet");
  EXPECT_TRUE(one.finds("clock", severity::warning, "hpet", "echo tsc"));
}

TEST(bytes, are_written_as_people_do) {
  EXPECT_EQ(format_bytes(65), "65 bytes");
  EXPECT_EQ(format_bytes(8 << 20), "8 MiB");
  EXPECT_EQ(format_bytes(std::uint64_t{3} << 29), "1.5 GiB");
}

}  // namespace
}  // namespace info
