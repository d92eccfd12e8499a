// SPDX-License-Identifier: Apache-2.0
#include <weft/net/device/found_transport.hpp>
#include <weft/net/link/native_protocol.hpp>
#include <weft/net/link/peer_words.hpp>
#include <weft/net/shm/transport.hpp>
#include <weft/net/verbs/completion_queue.hpp>
#include <weft/net/verbs/description.hpp>
#include <weft/net/verbs/device.hpp>
#include <weft/net/verbs/domain.hpp>
#include <weft/net/verbs/transport.hpp>
#include <weft/net/verbs/words.hpp>

#include <numeric>

#include "kit/expect_failure.hpp"
#include "kit/forwarding_link.hpp"
#include "kit/forwarding_transport.hpp"
#include "kit/temporary_directory.hpp"
#include "mr/support.hpp"
#include "verbs/fake_device.hpp"

namespace weft::net::verbs {
namespace {

using test::failed_with;
using test::fake_libraries;
using test::says;

std::optional<error> failure_to_open(fake_libraries& libraries, std::string_view name) {
  return test::failure_thrown_by([&] { const device opened(libraries, name); });
}

TEST(device, of_a_machine_without_rdma_is_an_error_that_says_so) {
  fake_libraries none({});
  const std::string words = "no RDMA device is ready, " + words_for_no_device();
  EXPECT_TRUE(failed_with(failure_to_open(none, ""), errc::not_supported, words));
  fake_libraries no_kernel({"mlx5_0"}, {{"get_device_list", ENOSYS}});
  EXPECT_TRUE(failed_with(failure_to_open(no_kernel, ""), errc::not_supported));
}

TEST(device, of_another_name_is_an_error_that_lists_those_that_there_are) {
  fake_libraries two({"mlx5_0", "rxe0"});
  const auto why = failure_to_open(two, "mlx5_1");
  EXPECT_TRUE(failed_with(why, errc::not_supported, "no RDMA device \"mlx5_1\""));
  EXPECT_TRUE(says(why, "this machine has: mlx5_0 rxe0"));
  EXPECT_EQ(two.contexts, 0);
}

TEST(device, without_connections_is_passed_over_and_says_what_reaches_it) {
  fake_libraries two({"efa_0", "mlx5_0"});
  two.lose_connections("efa_0");
  EXPECT_EQ(device(two, "").name(), "mlx5_0");
  const auto named = failure_to_open(two, "efa_0");
  EXPECT_TRUE(failed_with(named, errc::not_supported, "efa_0: it has no reliable connections"));
  EXPECT_TRUE(says(named, "\"fabric:efa\""));
  EXPECT_TRUE(test::contains(describe_devices(two).at(0).why_not, "fabric:efa"));

  fake_libraries alone({"efa_0"});
  alone.lose_connections("efa_0");
  const auto why = failure_to_open(alone, "");
  EXPECT_TRUE(failed_with(why, errc::not_supported, "no RDMA device is ready"));
  EXPECT_TRUE(says(why, "efa_0 has no reliable connections"));
  EXPECT_EQ(two.contexts + alone.contexts, 0);
}

TEST(device, without_connections_is_ready_for_nobody_whatever_else_it_speaks) {
  for (const ibv_transport_type other :
       {IBV_TRANSPORT_UNSPECIFIED, IBV_TRANSPORT_UNKNOWN, IBV_TRANSPORT_USNIC, IBV_TRANSPORT_USNIC_UDP}) {
    fake_libraries two({"other_0", "mlx5_0"});
    two.lose_connections("other_0", other);
    EXPECT_EQ(ready_devices(two), std::vector<std::string>{"mlx5_0"}) << other;
  }
}

TEST(device, whose_driver_has_none_of_the_windows_that_its_kernel_reports_has_no_windows) {
  for (const auto& [failure, has_windows] :
       {std::pair{0, true}, {EOPNOTSUPP, false}, {ENOSYS, false}, {ENOMEM, true}}) {
    fake_libraries one({"bnxt_re0"});
    if (failure != 0) one.failures = {{"alloc_mw", failure}};
    const device opened(one, "");
    EXPECT_EQ(opened.traits().has_windows(), has_windows) << failure;
    EXPECT_EQ(one.windows, 0);
  }
}

TEST(device, whose_driver_has_no_windows_gives_queue_pairs_no_right_to_bind_them) {
  for (const bool has_windows : {true, false}) {
    fake_libraries one({"cxgb4_0"});
    one.limits.device_cap_flags = IBV_DEVICE_MEM_WINDOW;
    if (!has_windows) one.failures = {{"alloc_mw", EOPNOTSUPP}};
    EXPECT_EQ(device(one, "").traits().pair_needs_right_to_bind, has_windows);
  }
}

TEST(device, whose_ports_do_not_say_how_long_a_message_may_be_takes_the_longest) {
  fake_libraries one({"mana_0"});
  one.port_message_bytes = 0;
  EXPECT_EQ(device(one, "").max_message_bytes(), std::uint32_t{1} << 31);
}

/// Over a device whose ports say that they carry less than a trailer.
class narrow_link final : public test::forwarding_link {
 public:
  explicit narrow_link(std::unique_ptr<net::link> inner)
      : forwarding_link(std::move(inner)), capabilities_(forwarding_link::properties()) {
    capabilities_.max_message_bytes = trailer::max_bytes - 1;
  }
  [[nodiscard]] const net::capabilities& properties() const noexcept override { return capabilities_; }

 private:
  net::capabilities capabilities_;
};

TEST(device, whose_ports_carry_less_than_a_trailer_carries_no_message) {
  const test::transport_wrappers narrow{
      .link = [](auto wide) { return std::make_unique<narrow_link>(std::move(wide)); }};
  net::device home = net::device::open(std::make_unique<test::forwarding_transport>(shm::open_transport(), narrow));
  const auto root = [&]() -> task<> {
    net::listener from = co_await home.listen("127.0.0.1:0");
    auto ends = co_await when_all(home.connect(std::string(from.address())), from.accept());
    net::connection& client = std::get<0>(ends);
    auto message = co_await home.pool().allocate(1);
    EXPECT_EQ(co_await test::code_of(client.send(message)), errc::message_too_large);
    net::stream over(std::move(client));
    const auto written = co_await test::failure_of(over.write_some(std::as_bytes(std::span("x", 1))));
    EXPECT_TRUE(says(written, "carries only empty messages"));
  };
  test::run(root);
}

TEST(list_of_devices, says_of_each_what_it_can_do) {
  fake_libraries one({"mlx5_0"});
  one.port_mtu = IBV_MTU_1024;
  one.limits.max_qp = 131072;
  one.limits.max_srq = 10;
  one.limits.max_srq_wr = 100;
  one.limits.vendor_id = 0x2c9;
  one.limits.vendor_part_id = 4125;
  one.limits.max_sge_rd = 30;
  one.limits.max_qp_init_rd_atom = 16;
  const auto found = describe_devices(one);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].name, "verbs:mlx5_0");
  EXPECT_EQ(found[0].why_not, "");
  ASSERT_TRUE(found[0].rdma);
  EXPECT_EQ(found[0].rdma->max_queue_pairs, 131072U);
  EXPECT_EQ(found[0].rdma->exposures, exposure_reach::one_connection);
  EXPECT_TRUE(found[0].rdma->atomics && found[0].rdma->shared_receives && !found[0].rdma->is_iwarp);
  EXPECT_EQ(found[0].rdma->vendor, 0x2c9U);
  EXPECT_EQ(found[0].rdma->part, 4125U);
  EXPECT_EQ(found[0].rdma->max_shared_receives, 100U);
  EXPECT_EQ(found[0].rdma->max_read_parts, 30U);
  EXPECT_EQ(found[0].rdma->max_outgoing_reads, 16U);
  ASSERT_EQ(found[0].rdma->ports.size(), 1U);
  EXPECT_TRUE(found[0].rdma->ports[0].active);
  EXPECT_EQ(found[0].rdma->ports[0].active_mtu, 1024U);
  EXPECT_EQ(one.contexts + one.domains, 0) << "it is closed again";
}

std::vector<unsigned> numbers_up_to(unsigned last) {
  std::vector<unsigned> all(last);
  std::iota(all.begin(), all.end(), 1U);
  return all;
}

// The most that their number can be: it has eight bits, and a loop over those would have no end.
TEST(list_of_devices, has_every_port_of_a_device_that_has_255) {
  fake_libraries one({"mlx5_0"});
  one.limits.phys_port_cnt = 255;
  one.active_port = 255;
  const auto found = describe_devices(one);
  ASSERT_TRUE(found.at(0).rdma);
  std::vector<unsigned> numbers;
  for (const rdma_port_info& port : found[0].rdma->ports) {
    numbers.push_back(port.number);
    EXPECT_EQ(port.active, port.number == 255) << unsigned{port.number};
  }
  EXPECT_EQ(numbers, numbers_up_to(255));
}

TEST(device, that_has_255_ports_is_ready_by_the_last_of_them_and_has_the_addresses_of_all) {
  fake_libraries one({"mlx5_0"});
  one.limits.phys_port_cnt = 255;
  one.active_port = 255;
  const device opened(one, "");
  EXPECT_EQ(opened.name(), "mlx5_0");
  one.asked_of.clear();
  const auto addresses = opened.addresses(AF_INET);
  EXPECT_EQ(one.asked_of, numbers_up_to(255));
  ASSERT_EQ(addresses.size(), 255U);
  EXPECT_EQ(addresses.back().to_string(), "10.0.0.255:0");
}

TEST(list_of_devices, says_of_an_iwarp_device_without_windows_what_it_lacks) {
  fake_libraries one({"siw0"});
  one.become_rnics();
  one.limits.device_cap_flags = 0;
  one.limits.max_srq = 10;
  one.limits.max_srq_wr = 100;
  one.port_state = IBV_PORT_DOWN;
  const auto found = describe_devices(one);
  ASSERT_TRUE(found.at(0).rdma);
  EXPECT_EQ(found[0].rdma->exposures, exposure_reach::nobody);
  EXPECT_FALSE(found[0].rdma->shared_receives || found[0].rdma->write_immediate);
  EXPECT_FALSE(found[0].rdma->ports.at(0).active);
}

TEST(list_of_devices, says_why_one_cannot_be_opened_and_goes_on_with_the_others) {
  fake_libraries two({"mlx5_0", "mlx5_1"}, {{"open_device", EACCES}});
  const auto found = describe_devices(two);
  ASSERT_EQ(found.size(), 2U);
  EXPECT_TRUE(test::contains(found[0].why_not, "/dev/infiniband/")) << found[0].why_not;
  EXPECT_FALSE(found[0].rdma);
  EXPECT_TRUE(found[1].rdma);
}

TEST(list_of_devices, of_a_machine_without_any_says_so) {
  fake_libraries none({});
  const auto found = describe_devices(none);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].name, "verbs");
  EXPECT_NE(found[0].why_not.find("no RDMA device"), std::string::npos);
}

TEST(list_of_fabrics, opens_each_that_needs_no_device) {
  const auto found = list_fabrics();
  ASSERT_GE(found.size(), 3U);
  EXPECT_EQ(found.front().name, "shm");
  EXPECT_EQ(found.front().why_not, "");
  EXPECT_EQ(found.back().name, "iwarp");
}

TEST(device, without_a_name_is_the_first_that_is_ready) {
  fake_libraries two({"mlx5_0", "rxe0"}, {{"open_device", EACCES}});
  const device opened(two, "");
  EXPECT_EQ(opened.name(), "rxe0");
  EXPECT_EQ(opened.max_message_bytes(), 1u << 20);
}

// Its file in /dev/infiniband is for others.
TEST(device, that_this_user_may_not_open_is_told_from_one_that_is_not_ready) {
  fake_libraries one({"rxe0"});
  for (const char* name : {"", "rxe0"}) {
    one.failures = {{"open_device", EACCES}};
    const auto why = failure_to_open(one, name);
    EXPECT_TRUE(says(why, "Permission denied"));
    EXPECT_TRUE(says(why, "may this user open /dev/infiniband/"));
  }
}

// rdma-core says so where it may not open the file.
TEST(device, whose_file_seems_to_be_missing_may_be_forbidden) {
  fake_libraries one({"rxe0"}, {{"open_device", ENOENT}});
  EXPECT_TRUE(says(failure_to_open(one, "rxe0"), "there, and may this user open it?)"));
}

TEST(device, is_ready_that_can_be_opened_and_has_an_active_port) {
  fake_libraries two({"mlx5_0", "rxe0"});
  EXPECT_EQ(ready_devices(two), (std::vector<std::string>{"mlx5_0", "rxe0"}));
  two.failures = {{"open_device", EACCES}};
  EXPECT_EQ(ready_devices(two), std::vector<std::string>{"rxe0"});
  two.failures.clear();
  two.port_state = IBV_PORT_DOWN;
  EXPECT_TRUE(ready_devices(two).empty());
  EXPECT_EQ(two.contexts, 0);
}

TEST(device, that_only_the_kernel_knows_is_told_from_none) {
  const test::temporary_directory directory;
  EXPECT_EQ(words_for_no_device(directory.path()), "this machine has no RDMA device: see rdma-link(8)");
  EXPECT_EQ(words_for_no_device(directory / "none"), "this machine has no RDMA device: see rdma-link(8)");
  for (const char* name : {"mlx5_1", "mlx5_0"}) std::filesystem::create_directory(directory / name);
  const std::string words = words_for_no_device(directory.path());
  EXPECT_TRUE(words.starts_with("the kernel has mlx5_0 mlx5_1, but there is no file for it in /dev/infiniband:"))
      << words;
}

// What "auto" makes of such a machine. `second_best` is in the place of iWARP.
net::device opened_automatically(fake_libraries& libraries, fake_libraries* second_best = nullptr) {
  const auto open_rdma = [&] { return has_device(libraries) ? open_transport("", libraries) : nullptr; };
  const auto open_other = [&] { return second_best != nullptr ? open_transport("", *second_best) : nullptr; };
  std::vector<found_transport> found;
  found.push_back(find_transport(open_rdma, open_other));
  return net::open_found(std::move(found));
}

std::optional<error> failure_to_open_automatically(fake_libraries& libraries) {
  return test::failure_thrown_by([&] { return opened_automatically(libraries); });
}

TEST(automatic_device, is_the_second_best_where_no_rdma_device_is_ready_and_says_what_it_has_passed_over) {
  fake_libraries two({"mlx5_0", "rxe0"}, {{"open_device", EACCES}});
  two.port_state = IBV_PORT_DOWN;
  fake_libraries other({"other0"});
  const net::device home = opened_automatically(two, &other);
  EXPECT_EQ(home.name(), "verbs:other0");
  EXPECT_TRUE(test::contains(home.passed_over(), "mlx5_0 cannot be opened: Permission denied")) << home.passed_over();
  EXPECT_TRUE(test::contains(home.passed_over(), "rxe0")) << home.passed_over();
  EXPECT_EQ(two.contexts, 0);
}

TEST(automatic_device, is_the_second_best_where_the_only_rdma_device_has_no_connections) {
  fake_libraries efa({"efa_0"});
  efa.lose_connections("efa_0");
  fake_libraries other({"other0"});
  const net::device home = opened_automatically(efa, &other);
  EXPECT_EQ(home.name(), "verbs:other0");
  EXPECT_TRUE(test::contains(home.passed_over(), "fabric:efa")) << home.passed_over();
}

TEST(automatic_device, has_passed_nothing_over_where_there_is_no_rdma_device) {
  fake_libraries none({});
  fake_libraries other({"other0"});
  const net::device home = opened_automatically(none, &other);
  EXPECT_EQ(home.name(), "verbs:other0");
  EXPECT_EQ(home.passed_over(), "");
}

TEST(automatic_device, is_an_error_in_words_where_nothing_is_ready_and_the_build_has_no_iwarp) {
  fake_libraries none({});
  const auto lacking = failure_to_open_automatically(none);
  EXPECT_TRUE(failed_with(lacking, errc::not_supported));
  EXPECT_EQ(test::words_of(lacking),
            "this machine has no RDMA device, and this build has no iwarp (the CMake option WEFT_WITH_IWARP): not "
            "supported");
  fake_libraries one({"rxe0"}, {{"open_device", EACCES}});
  const auto forbidden = failure_to_open_automatically(one);
  EXPECT_TRUE(failed_with(forbidden, errc::not_supported, "Permission denied"));
  EXPECT_TRUE(says(forbidden, "WEFT_WITH_IWARP"));
}

TEST(automatic_device, is_the_rdma_device_that_is_ready) {
  fake_libraries two({"mlx5_0", "rxe0"}, {{"open_device", EACCES}});
  {
    const net::device home = opened_automatically(two);
    EXPECT_EQ(home.name(), "verbs:rxe0");
    EXPECT_EQ(home.passed_over(), "");
  }
  EXPECT_EQ(two.contexts, 0);
}

TEST(automatic_device, is_an_error_where_one_that_is_ready_fails) {
  fake_libraries one({"rxe0"}, {{"alloc_pd", ENOMEM}});
  EXPECT_TRUE(failed_with(failure_to_open_automatically(one), std::errc::not_enough_memory));
}

TEST(device, with_its_cable_out_is_passed_over_but_can_be_asked_for_by_name) {
  fake_libraries one({"rxe0"});
  one.port_state = IBV_PORT_DOWN;
  EXPECT_TRUE(failed_with(failure_to_open(one, ""), errc::not_supported));
  EXPECT_EQ(one.contexts, 0);
  EXPECT_EQ(device(one, "rxe0").name(), "rxe0");
}

// mlx5_0 has 10.0.0.1, rxe0 has 10.0.0.2 and is not up.
class addressed_libraries final : public test::fake_libraries {
 public:
  addressed_libraries() : fake_libraries({"mlx5_0", "rxe0"}) {}
  int query_port(ibv_context* context, std::uint8_t port, ibv_port_attr* found) noexcept override {
    const int result = fake_libraries::query_port(context, port, found);
    if (is_second(context)) found->state = IBV_PORT_DOWN;
    if (!is_second(context)) found->max_msg_sz = 1u << 30;
    return result;
  }
  int query_gid(ibv_context* context, std::uint8_t, int index, ibv_gid* found) noexcept override {
    return fake_libraries::query_gid(context, is_second(context) ? 2 : 1, index, found);
  }

 private:
  static bool is_second(const ibv_context* context) { return std::string_view(context->device->name) == "rxe0"; }
};

TEST(device, can_be_asked_for_by_an_address_of_its) {
  addressed_libraries two;
  {
    const device opened(two, "10.0.0.2");
    EXPECT_EQ(opened.name(), "rxe0");
    EXPECT_EQ(opened.max_message_bytes(), 1u << 20);  // and not that of the one that was looked at before
  }
  EXPECT_EQ(device(two, "10.0.0.1").name(), "mlx5_0");
  EXPECT_TRUE(
      failed_with(failure_to_open(two, "10.0.0.3"), errc::not_supported, "no RDMA device has the address 10.0.0.3"));
  EXPECT_EQ(two.contexts, 0);
}

TEST(device, that_fails_to_open_at_any_step_leaves_nothing_behind) {
  for (const char* step : {"open_device", "query_device", "query_port", "set_nonblocking", "alloc_pd"}) {
    fake_libraries one({"rxe0"}, {{step, EMFILE}});
    const auto code = test::code_thrown_by([&] { const device opened(one, "rxe0"); });
    EXPECT_EQ(code.value(), EMFILE) << step;
    EXPECT_EQ(one.contexts, 0) << step;
    EXPECT_EQ(one.domains, 0) << step;
  }
}

TEST(device, tells_its_kinds_of_memory_windows_apart) {
  constexpr unsigned type_1 = IBV_DEVICE_MEM_WINDOW;
  const struct {
    unsigned flags;
    window_kind kind;
  } expected[] = {
      {0, window_kind::none},
      {type_1, window_kind::type_1},
      {type_1 | IBV_DEVICE_MEM_WINDOW_TYPE_2A, window_kind::type_2a},
      {type_1 | IBV_DEVICE_MEM_WINDOW_TYPE_2B, window_kind::type_2b},
  };
  for (const auto& [flags, kind] : expected) {
    fake_libraries one({"rxe0"});
    one.limits.device_cap_flags = flags;
    const auto opened = std::make_shared<device>(one, "");
    EXPECT_EQ(opened->traits().windows, kind);
    EXPECT_EQ(opened->traits().has_windows_of_one_peer(), flags > type_1);
    const verbs::domain memory(opened);
    EXPECT_EQ(includes(memory.capabilities().usages, mr::usage::bind_window), flags != 0);
  }
}

TEST(traits, of_an_adapter_are_those_of_the_specification) {
  ibv_device_attr attributes{};
  attributes.vendor_id = 0x02C9;
  attributes.atomic_cap = IBV_ATOMIC_HCA;
  const device_traits traits = traits_of(IBV_TRANSPORT_IB, attributes);
  EXPECT_TRUE(traits.has_atomics && traits.has_write_immediate && traits.heeds_iova && traits.checks_window_bounds);
  EXPECT_TRUE(traits.invalidates_windows_well);
  EXPECT_TRUE(traits.completes_in_order && traits.completes_on_answer && traits.repeats_requests_well);
  EXPECT_TRUE(traits.messages_wait_for_receives && traits.tells_busy_peer_from_dead && traits.announces_last_receive);
  EXPECT_FALSE(traits.kernel_drives_pair || traits.initiator_speaks_first || traits.read_sinks_need_remote_write);
  EXPECT_EQ(traits.invalidated_flags, unsigned{IBV_WC_WITH_INV});
}

TEST(traits, of_an_rnic_are_those_of_tcp_below_it) {
  const device_traits traits = traits_of(IBV_TRANSPORT_IWARP, {});
  EXPECT_TRUE(traits.kernel_drives_pair && traits.initiator_speaks_first && traits.disconnect_ends_both_ways);
  EXPECT_TRUE(traits.read_sinks_need_remote_write && traits.gids_are_hardware_addresses && traits.heeds_iova);
  EXPECT_FALSE(traits.completes_in_order || traits.completes_on_answer || traits.messages_wait_for_receives);
  EXPECT_FALSE(traits.has_atomics || traits.has_write_immediate || traits.has_checksum || traits.has_windows());
}

TEST(traits, can_be_listed_by_name_and_value) {
  ibv_device_attr attributes{};
  attributes.device_cap_flags = IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2A;
  const auto all = names_and_values(traits_of(IBV_TRANSPORT_IWARP, attributes));
  const auto value_of = [&](std::string_view name) {
    const auto found = std::ranges::find(all, name, [](const auto& each) { return each.first; });
    return found != all.end() ? found->second : "missing";
  };
  EXPECT_EQ(value_of("windows"), "type_2a");
  EXPECT_EQ(value_of("has_atomics"), "no");
  EXPECT_EQ(value_of("connect_blocks"), "yes");
  EXPECT_EQ(value_of("invalidated_flags"), std::to_string(IBV_WC_WITH_INV));
}

TEST(traits, know_rxe_by_its_vendor_and_not_by_its_name) {
  ibv_device_attr attributes{};
  attributes.vendor_id = 0xFF'FFFF;
  const device_traits traits = traits_of(IBV_TRANSPORT_IB, attributes);
  EXPECT_FALSE(traits.repeats_requests_well || traits.checks_window_bounds || traits.tells_busy_peer_from_dead);
  EXPECT_FALSE(traits.invalidates_windows_well || traits.reuses_windows());
  EXPECT_TRUE(traits.messages_wait_for_receives && traits.completes_in_order && traits.completes_on_answer);
  EXPECT_EQ(traits.invalidated_flags, unsigned{IBV_WC_WITH_INV} | unsigned{IBV_WC_IP_CSUM_OK});
}

struct sink final : completion_sink {
  std::vector<std::uint32_t> details;
  int failures = 0;
  int rings = 0;
  void ring_now() noexcept override { ++rings; }
  void on_completion(const ibv_wc&, std::uint32_t detail) noexcept override { details.push_back(detail); }
  void on_queue_failure(const error&) noexcept override { ++failures; }
};

ibv_wc completion(std::uint64_t id) {
  ibv_wc what{};
  what.wr_id = id;
  return what;
}

class completions : public ::testing::Test {
 protected:
  fake_libraries libraries{{"rxe0"}};
  std::shared_ptr<device> home = std::make_shared<device>(libraries, "");
  completion_queue queue{home, 100};
};

TEST_F(completions, go_to_whom_they_belong_and_a_late_one_to_nobody) {
  sink first;
  sink second;
  const std::uint64_t one = queue.attach(first);
  const std::uint64_t other = queue.attach(second);
  libraries.completions = {completion(one | 1), completion(other | 2), completion(one | 3)};
  EXPECT_EQ(queue.poll(64), 3u);
  EXPECT_EQ(first.details, (std::vector<std::uint32_t>{1, 3}));
  EXPECT_EQ(second.details, (std::vector<std::uint32_t>{2}));
  // The next user of the place does not hear what its predecessor's queue pair has left behind.
  queue.detach(one);
  sink third;
  EXPECT_NE(queue.attach(third), one);
  libraries.completions = {completion(one | 4)};
  EXPECT_EQ(queue.poll(64), 1u);
  EXPECT_TRUE(third.details.empty());
}

TEST_F(completions, are_taken_in_bounded_batches) {
  sink all;
  const std::uint64_t tag = queue.attach(all);
  libraries.completions.assign(50, completion(tag));
  EXPECT_EQ(queue.poll(20), 20u);
  EXPECT_EQ(queue.poll(64), 30u);
  libraries.completions.assign(90, completion(tag));
  queue.drain();
  EXPECT_EQ(all.details.size(), 140u);
}

TEST_F(completions, wait_until_all_who_have_posted_have_rung_once) {
  sink one;
  sink other;
  sink gone;
  const std::uint64_t tag = queue.attach(one);
  const std::uint64_t left = queue.attach(gone);
  static_cast<void>(queue.attach(other));
  for (int i = 0; i < 3; ++i) queue.ring_later(tag);
  queue.ring_later(left);
  queue.detach(left);
  EXPECT_EQ(one.rings, 0);
  EXPECT_EQ(queue.poll(64), 0u);
  EXPECT_EQ(queue.poll(64), 0u);
  EXPECT_EQ(one.rings, 1);
  EXPECT_EQ(other.rings, 0);
  EXPECT_EQ(gone.rings, 0);
}

TEST_F(completions, that_are_armed_still_are_not_armed_again) {
  queue.arm();
  queue.disarm();  // woken by something else
  queue.arm();
  EXPECT_EQ(libraries.arms, 1);
  libraries.events_to_take = 1;
  queue.disarm();
  EXPECT_EQ(libraries.events_to_take, 0);
  queue.arm();
  EXPECT_EQ(libraries.arms, 2);
}

TEST_F(completions, whose_event_the_kernel_has_dropped_have_the_queue_armed_again) {
  sink one;
  libraries.completions.assign(1, completion(queue.attach(one)));
  queue.arm();
  queue.disarm();  // no event
  EXPECT_EQ(queue.poll(64), 1u);
  queue.arm();
  EXPECT_EQ(libraries.arms, 2);
  queue.disarm();
  queue.arm();
  EXPECT_EQ(libraries.arms, 2);
}

TEST_F(completions, are_told_of_by_one_event_for_which_there_is_one_system_call) {
  queue.arm();
  libraries.events_to_take = 1;
  libraries.event_calls = 0;
  queue.disarm();
  EXPECT_EQ(libraries.event_calls, 1);
  EXPECT_EQ(libraries.events_to_take, 0);
}

TEST_F(completions, of_a_failed_queue_reach_everybody_as_a_failure) {
  sink one;
  static_cast<void>(queue.attach(one));
  libraries.failures = {{"poll_cq", EIO}};
  EXPECT_EQ(queue.poll(64), 0u);
  EXPECT_EQ(one.failures, 1);
}

TEST_F(completions, of_a_queue_whose_events_can_be_taken_no_more_reach_everybody_as_a_failure) {
  sink one;
  static_cast<void>(queue.attach(one));
  for (const int harmless : {EAGAIN, EINTR}) {
    libraries.channel_failure = harmless;
    queue.disarm();
    EXPECT_EQ(one.failures, 0);
  }
  libraries.channel_failure = EIO;
  queue.disarm();
  EXPECT_EQ(one.failures, 1);
  EXPECT_FALSE(queue.has_room(1));
}

TEST(completion_queues, acknowledge_every_event_before_they_are_destroyed) {
  fake_libraries libraries({"rxe0"});
  const auto home = std::make_shared<device>(libraries, "");
  {
    completion_queue queue(home, 100);
    for (int i = 0; i < 300; ++i) {
      queue.arm();
      libraries.events_to_take = 1;
      queue.disarm();
    }
  }
  EXPECT_EQ(libraries.acknowledged, 300u);
}

TEST(completion_queues, that_cannot_be_made_leave_nothing_behind) {
  for (const char* step : {"create_comp_channel", "set_nonblocking", "create_cq"}) {
    fake_libraries libraries({"rxe0"});
    const auto home = std::make_shared<device>(libraries, "");
    libraries.failures = {{step, EMFILE}};
    EXPECT_EQ(test::code_thrown_by([&] { const completion_queue queue(home, 100); }).value(), EMFILE) << step;
    EXPECT_EQ(libraries.contexts, 1) << step;
  }
}

TEST(words, tell_a_vanished_peer_from_a_refused_access_and_from_one_that_does_not_receive) {
  const auto request = [](ibv_wc_status status) {
    ibv_wc what{};
    what.status = status;
    return failure_of_request(what).code();
  };
  EXPECT_EQ(request(IBV_WC_RETRY_EXC_ERR), errc::peer_vanished);
  EXPECT_EQ(request(IBV_WC_REM_ACCESS_ERR), errc::remote_access);
  EXPECT_EQ(request(IBV_WC_RNR_RETRY_EXC_ERR), errc::not_receiving);
  EXPECT_EQ(request(IBV_WC_LOC_PROT_ERR), errc::connection_failed);
  EXPECT_EQ(request(IBV_WC_WR_FLUSH_ERR), errc::protocol_error);
}

TEST(words, tell_why_a_peer_has_rejected) {
  cm_event what{.type = RDMA_CM_EVENT_REJECTED, .status = 8};
  const auto failure = [&] { return failure_of(what, "RDMA connection"); };
  EXPECT_EQ(failure().code().value(), ECONNREFUSED);
  what.status = 28;
  EXPECT_EQ(failure().code(), errc::peer_rejected);
  what.private_data = {std::byte{'n'}, std::byte{'o'}};
  what.private_bytes = 148;
  EXPECT_TRUE(says(failure(), "the peer says \"no\""));
  std::memcpy(what.private_data.data(), no_receives_left.data(), no_receives_left.size());
  EXPECT_TRUE(failed_with(failure(), std::errc::no_buffer_space, "the peer has no receives left"));
  std::memcpy(what.private_data.data(), no_places_left.data(), no_places_left.size());
  EXPECT_TRUE(failed_with(failure(), std::errc::no_buffer_space, "the peer has its maximum of connections"));
}

}  // namespace
}  // namespace weft::net::verbs
