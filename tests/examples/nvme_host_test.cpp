// SPDX-License-Identifier: Apache-2.0
// The host of the example nvme: with its target on every fabric, and with controllers that lie. All on one executor.

#include <fstream>
#include <iterator>

#include "beside.hpp"
#include "kit/failure.hpp"
#include "kit/scripted_test.hpp"
#include "kit/temporary_directory.hpp"
#include "nvme_controller.hpp"
#include <nvme/disks.hpp>
#include <nvme/host.hpp>
#include <nvme/host_bench.hpp>
#include <nvme/host_commands.hpp>
#include <nvme/subsystem.hpp>
#include <nvme/target.hpp>
#ifdef WEFT_WITH_VERBS
#include <weft/net/verbs/transport.hpp>

#include "kit/test.hpp"
#include "rdma.hpp"
#include "world.hpp"
#endif

namespace nvme::test {
namespace {

using std::chrono::milliseconds;

constexpr auto patience = std::chrono::seconds(60);
constexpr std::uint64_t disk_bytes = std::uint64_t{8} << 20;
const std::string disk_nqn = "nqn.2024-01.org.example:disk";

std::vector<std::byte> pattern(std::size_t bytes, unsigned seed) {
  std::vector<std::byte> made(bytes);
  for (std::size_t i = 0; i < bytes; ++i) made[i] = static_cast<std::byte>(i * 31 + i / 251 + seed);
  return made;
}

// ---- where a test runs ----

struct fabric {
  std::string name;
  std::string devices;           ///< for net::device::open(); empty: a simulated RDMA device
  bool without_windows = false;  ///< of the simulated one
};

/// A device with its executor.
class place : private weft::test::immovable {
 public:
  explicit place(const fabric& which) {
    if (!which.devices.empty()) {
      device_.emplace(net::device::open(which.devices));
      loop_.emplace();
      return;
    }
#ifdef WEFT_WITH_VERBS
    world_.emplace(1, sim::conditions{});
    sim::rdma_traits traits;
    if (which.without_windows) traits.windows = net::verbs::window_kind::none;
    below_.emplace(*world_, traits);
    const net::device_options options{.pool = {.huge_pages = false, .system_calls = &*world_}};
    device_.emplace(net::device::open(net::verbs::open_transport(sim::rdma::device_name, *below_, {}), options));
    loop_.emplace(world_->options(false));
    address_ = "127.0.0.1:7471";
#endif
  }
  ~place() {
    const auto now = device_->pool().statistics();
    EXPECT_EQ(now.send.in_use_bytes + now.receive.in_use_bytes, 0U);
    loop_.reset();
    device_.reset();
#ifdef WEFT_WITH_VERBS
    if (below_) {
      EXPECT_EQ(below_->leaks(), "");
    }
#endif
  }

  [[nodiscard]] net::device& device() noexcept { return *device_; }
  [[nodiscard]] const std::string& address() const noexcept { return address_; }
  void run(task<> all) { loop_->run(with_timeout(patience, std::move(all))); }
#ifdef WEFT_WITH_VERBS
  /// Nothing gets over the connection that was made as the `number`th, for so long, and nobody says so.
  void stall(unsigned number, duration how_long) {
    constexpr unsigned first_port = 50'000;
    below_->stall(static_cast<std::uint16_t>(first_port + number), how_long);
  }
#endif

 private:
#ifdef WEFT_WITH_VERBS
  std::optional<sim::world> world_;
  std::optional<sim::rdma> below_;
#endif
  std::optional<net::device> device_;
  std::optional<executor> loop_;
  std::string address_ = "127.0.0.1:0";
};

// ---- with the target ----

struct way {
  fabric on;
  lending lends = lending::standing;
};
void PrintTo(const way& what, std::ostream* out) {
  constexpr std::array ways{"_one_key", "_a_key_for_each_command", "_mapped_by_the_target"};
  *out << what.on.name << ways[static_cast<std::size_t>(what.lends)];
}

class nvme_host_on_target : public testing::TestWithParam<way> {
 protected:
  nvme_host_on_target() : here_(GetParam().on), served_(disk_nqn) {
    auto made = std::make_unique<memory_disk>(disk_bytes);
    disk_ = made.get();
    served_.add(std::move(made), 4096);
  }

  [[nodiscard]] host_options options(const std::string& address) const {
    host_options made;
    made.address = address;
    made.subsystem = disk_nqn;
    made.queues = 2;
    made.commands = 8;
    made.lends = GetParam().lends;
    return made;
  }
  /// Runs a target, and `body(address)` beside it.
  void with_target(const weft::test::test_script<std::string>& body) {
    target serving(here_.device(), served_, {});
    target_ = &serving;
    const auto all = [&]() -> task<> {
      auto listener = co_await here_.device().listen(here_.address());
      const std::string address(listener.address());
      const auto both = [&](scope& tasks) -> task<> {
        tasks.spawn(serving.serve(listener));
        co_await body(address);
        listener.close();
        serving.drain();
      };
      co_await with_scope(on_failure::stop_siblings, both);
    };
    here_.run(all());
    counted_ = serving.counters();
  }
  template <class Body>
  void with_connected_host(const Body& body) {
    const auto all = [&](std::string address) -> task<> { co_await with_host(here_.device(), options(address), body); };
    with_target(all);
  }

  place here_;
  subsystem served_;
  memory_disk* disk_ = nullptr;
  target* target_ = nullptr;
  counters counted_;
};

#define TEST_P_WITH_HOST(suite, name, ...) \
  TEST_P_SCRIPT(suite, name, (host & through), with_connected_host(WEFT_SCRIPT) __VA_OPT__(;) __VA_ARGS__)

TEST_P(nvme_host_on_target, discovers_the_subsystem) {
  with_target([&](std::string address) -> task<> {
    host_options how = options(address);
    how.subsystem = discovery_nqn;
    const auto ask = [&](host& through) -> task<> {
      EXPECT_EQ(through.identity().type, controller_type::discovery);
      EXPECT_EQ(through.identity().subsystem, discovery_nqn);
      const auto found = co_await through.discover();
      EXPECT_EQ(found.size(), 1U);
      EXPECT_EQ(found.at(0).subsystem, disk_nqn);
      EXPECT_EQ(found.at(0).address + ":" + found.at(0).service, address);
      EXPECT_EQ(found.at(0).family, address_family::ipv4);
    };
    co_await with_host(here_.device(), how, ask);
  });
}

TEST_P_WITH_HOST(nvme_host_on_target, sees_the_controller_and_its_namespaces) {
  EXPECT_EQ(through.identity().subsystem, disk_nqn);
  EXPECT_EQ(through.queues(), 2U);
  EXPECT_EQ(through.find(1).size(), disk_bytes);
  EXPECT_EQ(through.find(1).block_bytes(), 4096U);
  EXPECT_THROW(static_cast<void>(through.find(2)), std::invalid_argument);
  co_return;
}

TEST_P_WITH_HOST(nvme_host_on_target, reads_what_it_has_written_in_small_commands_and_in_large_ones,
                 EXPECT_EQ(counted_.in_capsule, 2U)) {  // 4 and 16 KiB: the target offers 16
  const host_namespace& of = through.find(1);
  auto on = co_await through.queue(1).take_lane();
  unsigned seed = 0;
  for (const std::size_t bytes : {std::size_t{4096}, std::size_t{16384}, std::size_t{20480}, through.most_bytes(of)}) {
    const auto written = pattern(bytes, ++seed);
    std::ranges::copy(written, on.bytes().begin());
    co_await through.write(through.queue(1), on, of, 4096 * seed, bytes);
    std::ranges::fill(on.bytes(), std::byte{0});
    co_await through.read(through.queue(1), on, of, 4096 * seed, bytes);
    EXPECT_TRUE(std::ranges::equal(written, on.bytes().first(bytes)));
  }
  co_await through.flush(of);
}

TEST_P(nvme_host_on_target, random_reads_and_writes_of_several_queues_find_what_was_written_last) {
  constexpr std::uint64_t operations = 1'000;
  bench_result found;
  with_connected_host([&](host& through) -> task<> {
    const bench_options how{.write_percent = 50,
                            .span = std::uint64_t{1} << 20,
                            .time = std::chrono::hours(1),
                            .operations = operations,
                            .verify = true};
    found = co_await run_bench(through, how);
  });
  EXPECT_EQ(found.wrong, 0U);
  EXPECT_EQ(found.reads.count() + found.writes.count(), operations);
  EXPECT_EQ(counted_.reads, found.reads.count());
  EXPECT_EQ(counted_.writes, found.writes.count());
  if (GetParam().lends != lending::each_command) {
    EXPECT_EQ(counted_.invalidated, 0U);
  }
}

TEST_P_WITH_HOST(nvme_host_on_target, the_target_revokes_the_key_of_each_command_where_it_can) {
  auto on = co_await through.queue(0).take_lane();
  const bool able = through.queue(0).connection().capabilities().invalidate;
  for (int i = 0; i < 3; ++i) co_await through.read(through.queue(0), on, through.find(1), 0, 32768);
  EXPECT_EQ(through.queue(0).revoked(), able && GetParam().lends == lending::each_command ? 3U : 0U);
}

TEST_P(nvme_host_on_target, copies_a_file_in_and_out) {
  if (GetParam().on.devices.empty()) GTEST_SKIP() << "the simulated kernel has no files";
  const weft::test::temporary_directory directory;
  const std::string source = directory.path() + "/in";
  const std::string copied = directory.path() + "/out";
  const auto content = pattern(3 * 131072 + 4096, 5);
  std::ofstream(source, std::ios::binary)
      .write(reinterpret_cast<const char*>(content.data()), static_cast<std::streamsize>(content.size()));
  with_connected_host([&](host& through) -> task<> {
    copy_options how{.offset = 8192, .file = source, .verify = true};
    EXPECT_EQ((co_await copy_in(through, how)).bytes, content.size());
    how.file = copied;
    how.length = content.size();
    co_await copy_out(through, how);
  });
  std::ifstream result(copied, std::ios::binary);
  const std::string found((std::istreambuf_iterator<char>(result)), {});
  ASSERT_EQ(found.size(), content.size());
  EXPECT_EQ(std::memcmp(found.data(), content.data(), content.size()), 0);
}

// What a user asks for wrongly is told before a command is sent.
TEST_P(nvme_host_on_target, a_range_that_the_namespace_does_not_have_is_refused_in_words) {
  std::vector<std::string> words;
  with_connected_host([&](host& through) -> task<> {
    const host_namespace& of = through.find(1);
    auto on = co_await through.queue(0).take_lane();
    const std::array<std::pair<std::uint64_t, std::size_t>, 5> wrong{
        {{512, 4096}, {0, 512}, {disk_bytes, 4096}, {0, 0}, {0, std::size_t{1} << 20}}};
    for (const auto& [offset, bytes] : wrong) {
      words.push_back(weft::test::words_thrown_by<std::invalid_argument>(
          [&] { static_cast<void>(through.read(through.queue(0), on, of, offset, bytes)); }));
    }
  });
  EXPECT_EQ(words, (std::vector<std::string>{
                       "4096 bytes from 512 on: namespace 1 has blocks of 4096 bytes",
                       "512 bytes from 0 on: namespace 1 has blocks of 4096 bytes",
                       "4096 bytes from 8388608 on: namespace 1 has 8388608",
                       "0 bytes with one command: 4096 to 131072 are possible",
                       "1048576 bytes with one command: 4096 to 131072 are possible",
                   }));
  EXPECT_EQ(counted_.failed, 0U);
}

TEST_P(nvme_host_on_target, an_unknown_subsystem_is_told_in_words) {
  with_target([&](std::string address) -> task<> {
    host_options how = options(address);
    how.subsystem = "nqn.2024-01.org.example:other";
    const auto nothing = [](host&) -> task<> { co_return; };
    const auto words = co_await weft::test::words_of<command_failed>(with_host(here_.device(), how, nothing));
    EXPECT_EQ(words, address +
                         " has no subsystem 'nqn.2024-01.org.example:other' for this host (connect parameters "
                         "invalid (0x182))");
  });
}

std::vector<way> every_way() {
  std::vector<fabric> all{{"iwarp", "iwarp"}, {"shm", "shm"}, {"shm_and_iwarp", "shm,iwarp"}};
#ifdef WEFT_WITH_VERBS
  all.push_back({"simulated_verbs", ""});
  all.push_back({"simulated_verbs_without_windows", "", true});
#endif
  std::vector<way> made;
  for (const fabric& each : all) {
    made.push_back({each, lending::standing});
    if (!each.without_windows) made.push_back({each, lending::each_command});
    made.push_back({each, lending::direct});
  }
  return made;
}
INSTANTIATE_TEST_SUITE_P(fabrics, nvme_host_on_target, testing::ValuesIn(every_way()),
                         testing::PrintToStringParamName());

#ifdef WEFT_WITH_VERBS

// ---- in simulated time ----

/// Memory whose reads wait until the test lets them.
class slow_disk final : public disk {
 public:
  std::uint64_t size() const noexcept override { return memory_.size(); }
  std::string describe() const override { return "a disk of the test"; }
  task<> read(std::uint64_t offset, std::span<std::byte> into) override {
    began.set();
    co_await gate.wait();
    co_await memory_.read(offset, into);
  }
  task<> write(std::uint64_t offset, std::span<const std::byte> from) override { return memory_.write(offset, from); }

  event began;
  event gate;

 private:
  memory_disk memory_{disk_bytes};
};

TEST(nvme_target_in_simulated_time, a_host_that_does_not_take_its_data_loses_its_queue_after_the_time_for_it) {
  place here({"simulated_verbs", ""});
  subsystem served(disk_nqn);
  auto made = std::make_unique<slow_disk>();
  slow_disk& disk = *made;
  served.add(std::move(made), 4096);
  event ended;
  target_options with;
  with.log = [&](std::string_view line) {
    if (line.find("timed out") != std::string_view::npos) ended.set();
  };
  target serving(here.device(), served, with);
  constexpr auto limit = std::chrono::seconds(30);
  EXPECT_EQ(with.most.transfer_timeout, limit);

  const auto use = [&](host& through) -> task<> {
    const auto read_from = [&](std::size_t queue) -> task<> {
      auto on = co_await through.queue(queue).take_lane();
      co_await through.read(through.queue(queue), on, through.find(1), 0, 4096);
    };
    const std::uint64_t idle = here.device().pool().statistics().send.in_use_bytes;
    bool failed = false;
    const auto read_and_fail = [&]() -> task<> {
      failed = (co_await weft::test::failure_of(read_from(0))).has_value();
    };
    const auto both = [&](scope& tasks) -> task<> {
      tasks.spawn(read_and_fail());
      co_await disk.began.wait();
      here.stall(1, limit + std::chrono::seconds(10));  // the admin queue is the one before
      const time_point begun = executor::current()->now();
      disk.gate.set();
      co_await read_from(1);  // whose connection is as it was
      EXPECT_LT(executor::current()->now() - begun, limit);
      co_await ended.wait();
      const auto taken = executor::current()->now() - begun;
      EXPECT_GE(taken, limit);
      EXPECT_LT(taken, limit + std::chrono::seconds(1));
      const auto holds = [&] { return here.device().pool().statistics().send.in_use_bytes > idle; };
      while (holds()) co_await sleep_for(milliseconds(1));  // others wait for that, and the device has to let go of it
      EXPECT_LT(executor::current()->now() - begun, limit + std::chrono::seconds(5));
    };
    co_await with_scope(on_failure::stop_siblings, both);
    EXPECT_TRUE(failed);
  };
  const auto all = [&]() -> task<> {
    auto listener = co_await here.device().listen(here.address());
    const auto both = [&](scope& tasks) -> task<> {
      tasks.spawn(serving.serve(listener));
      host_options how;
      how.address = std::string(listener.address());
      how.subsystem = disk_nqn;
      how.queues = 2;
      how.commands = 8;
      how.timeout = std::chrono::minutes(10);
      static_cast<void>(co_await weft::test::failure_of(with_host(here.device(), how, use)));  // one queue is lost
      listener.close();
      serving.drain();
    };
    co_await with_scope(on_failure::stop_siblings, both);
  };
  here.run(all());
}
#endif

// ---- with controllers that lie ----

class nvme_host_and_a_false_controller : public testing::Test {
 protected:
  /// Runs the controller, and `body(host)` with it, and yields what that has thrown, in words.
  std::string failure_of(const weft::test::test_script<host&>& body) {
    std::string words;
    const auto serve = [&](net::listener& from) -> task<> { return peer_.serve(from); };
    const auto use = [&](std::string address) -> task<> {
      options_.address = address;
      try {
        co_await with_host(here_.device(), options_, body);
      } catch (const error& why) {
        code_ = why.code();
        words = why.what();
      } catch (const std::exception& why) {
        words = why.what();
      }
    };
    here_.run(weft::test::beside(here_.device(), serve, use));
    return words;
  }
  static task<> read_one_block(host& through) {
    auto on = co_await through.queue(0).take_lane();
    co_await through.read(through.queue(0), on, through.find(1), 0, 512);
  }
  /// What connecting, or a read of one block, fails with.
  std::string failure_of_a_read() {
    return failure_of([&](host& through) -> task<> { return read_one_block(through); });
  }
  void expect_failure(const std::string& words, const std::string& found) {
    EXPECT_NE(found.find(words), std::string::npos) << found;
  }
  void expect_failure_of_a_read(const std::string& words) { expect_failure(words, failure_of_a_read()); }
  /// Changes the reply to the commands with this opcode, on I/O queues or the admin queue.
  void change_replies(bool of_io, std::uint8_t opcode, std::function<void(reply&)> how) {
    peer_.change = [of_io, opcode, how](reply& made) {
      if ((made.queue != 0) == of_io && made.asked.opcode == opcode) how(made);
    };
  }
  void change_reads(std::function<void(reply&)> how) {
    change_replies(true, static_cast<std::uint8_t>(io_opcode::read), std::move(how));
  }
  void change_identify(identify_structure which, std::function<void(reply&)> how) {
    change_replies(false, static_cast<std::uint8_t>(admin_opcode::identify), [which, how](reply& made) {
      if (fields_of<identify_fields>(made.asked).structure == static_cast<std::uint8_t>(which)) how(made);
    });
  }
  void change_fabrics(fabrics_type type, std::function<void(reply&)> how) {
    peer_.change = [type, how](reply& made) {
      if (made.asked.opcode == fabrics_opcode && made.asked.type() == type) how(made);
    };
  }

  place here_{fabric{"iwarp", "iwarp"}};
  host_options options_ = [] {
    host_options made;
    made.subsystem = false_nqn;
    made.commands = 4;
    made.timeout = std::chrono::seconds(20);
    return made;
  }();
  false_controller peer_{here_.device()};
  std::error_code code_;
};

// Tests of one shape: what a read fails with, from a controller that does as the test has told it.
#define REFUSED(name, words, ...)                  \
  TEST_F(nvme_host_and_a_false_controller, name) { \
    __VA_ARGS__;                                   \
    expect_failure_of_a_read(words);               \
  }

TEST_F(nvme_host_and_a_false_controller, one_that_tells_the_truth_is_believed) { EXPECT_EQ(failure_of_a_read(), ""); }

// Set-up.

REFUSED(that_accepts_without_its_private_data_is_no_target, "accepts, and not as an NVMe target does",
        peer_.accepts_with.resize(31))
REFUSED(with_a_queue_of_no_entries_is_refused, "offers a queue of no entries",
        peer_.accepts_with = false_controller::as_vector(encoded(cm_reply{.receive_queue_size = 0})))
TEST_F(nvme_host_and_a_false_controller, with_few_receives_gets_no_more_commands_at_a_time) {
  peer_.accepts_with = false_controller::as_vector(encoded(cm_reply{.receive_queue_size = 1}));
  EXPECT_EQ(failure_of_a_read(), "");
}
REFUSED(that_rejects_the_connection_is_quoted, "the target has no resources (6)",
        peer_.rejects_with = false_controller::as_vector(encoded(cm_rejection{.reason = reject_reason::no_resources})))
REFUSED(whose_id_is_reserved_is_refused, "a controller of the reserved id 65525", peer_.identity.controller = 0xfff5)
REFUSED(whose_queues_belong_to_another_controller_is_refused, "queue 1 belongs to controller 8, it says",
        change_fabrics(fabrics_type::connect, [](reply& made) { made.said.result = made.queue == 0 ? 7 : 8; }))
REFUSED(whose_queues_hold_no_command_is_refused, "its queues have one entry, which holds no command",
        peer_.properties[property::capabilities] = 0)
REFUSED(that_has_failed_is_told, "it reports that it has failed",
        peer_.properties[property::controller_status] = controller_status::fatal)
TEST_F(nvme_host_and_a_false_controller, that_never_becomes_ready_is_given_up) {
  peer_.properties[property::controller_status] = 0;
  options_.timeout = milliseconds(100);
  expect_failure_of_a_read("has not become ready within 100 ms");
  EXPECT_EQ(code_, errc::timed_out);
}

// What it says of itself.

REFUSED(that_takes_itself_for_another_is_refused, "it says that it is controller 9",
        change_identify(identify_structure::controller, [](reply& made) { store<std::uint16_t>(made.data, 78, 9); }))
REFUSED(that_takes_no_keys_is_refused, "it does not take keys of the host's memory", peer_.identity.sgls = 0)
REFUSED(whose_capsules_hold_no_command_is_refused, "no command or completion fits",
        peer_.identity.command_capsule_bytes = 48)
TEST_F(nvme_host_and_a_false_controller, with_enormous_capsules_and_transfers_gets_what_a_lane_holds) {
  peer_.identity.command_capsule_bytes = 0xffff'fff0;
  peer_.identity.max_transfer_shift = 255;
  EXPECT_EQ(failure_of_a_read(), "");
}
TEST_F(nvme_host_and_a_false_controller, that_gives_more_queues_than_were_asked_for_gets_what_was_asked_for) {
  change_replies(false, static_cast<std::uint8_t>(admin_opcode::set_features),
                 [](reply& made) { made.said.result = 0xffff'ffff; });
  EXPECT_EQ(failure_of_a_read(), "");
}
REFUSED(whose_list_of_namespaces_does_not_grow_is_refused, "whose ids do not grow",
        change_identify(identify_structure::active_namespaces, [](reply& made) {
          store<std::uint32_t>(made.data, 0, 5);
          store<std::uint32_t>(made.data, 4, 5);
        }))
REFUSED(whose_namespace_is_larger_than_a_number_is_refused, "which is more than a number holds",
        peer_.disk.blocks = std::uint64_t{1} << 60)
TEST_F(nvme_host_and_a_false_controller, whose_blocks_are_of_no_bytes_or_enormous_is_refused) {
  for (const std::uint8_t shift : {std::uint8_t{0}, std::uint8_t{31}, std::uint8_t{255}}) {
    peer_.disk.block_shift = shift;
    expect_failure_of_a_read("a namespace with blocks of 2^" + std::to_string(shift) + " bytes");
  }
}
REFUSED(whose_blocks_are_larger_than_a_command_cannot_be_read, "blocks of 1048576 bytes", peer_.disk.block_shift = 20)
TEST_F(nvme_host_and_a_false_controller, whose_namespace_has_gone_has_none) {
  peer_.disk.blocks = 0;
  EXPECT_EQ(failure_of_a_read(), false_nqn + " has no namespaces");
}

// Discovery.

TEST_F(nvme_host_and_a_false_controller, that_knows_of_endless_subsystems_is_not_believed) {
  options_.subsystem = discovery_nqn;
  const auto discover = [](host& through) -> task<> { static_cast<void>(co_await through.discover()); };
  const auto page = static_cast<std::uint8_t>(admin_opcode::get_log_page);
  change_replies(false, page, [](reply& made) { store<std::uint64_t>(made.data, 8, std::uint64_t{1} << 60); });
  expect_failure("it knows of 1152921504606846976 subsystems", failure_of(discover));
  change_replies(false, page, [](reply& made) { store<std::uint16_t>(made.data, 16, 7); });
  expect_failure("a discovery log page of format 7", failure_of(discover));
  std::uint64_t generation = 0;
  change_replies(false, page, [&](reply& made) { store<std::uint64_t>(made.data, 0, ++generation); });
  expect_failure("its discovery log changes whenever it is read", failure_of(discover));
}

// Completions.

TEST_F(nvme_host_and_a_false_controller, a_status_is_a_sentence_and_the_queue_goes_on) {
  int count = 0;
  change_reads([&](reply& made) {
    if (++count > 1) return;
    made.said.status = status::lba_out_of_range;
    made.data.clear();
  });
  std::string words;
  const auto read = [&](host& through) -> task<> {
    auto on = co_await through.queue(0).take_lane();
    auto failing = through.read(through.queue(0), on, through.find(1), 512, 1024);
    words = co_await weft::test::words_of<command_failed>(std::move(failing));
    co_await through.read(through.queue(0), on, through.find(1), 512, 1024);
  };
  EXPECT_EQ(failure_of(read), "");
  EXPECT_EQ(words, "Read of blocks 1 to 2 of namespace 1: the controller says: LBA out of range (0x080)");
}
TEST_F(nvme_host_and_a_false_controller, a_completion_of_a_command_that_is_not_there_ends_the_queue) {
  for (const std::uint16_t id : {std::uint16_t{0xffff}, std::uint16_t{3}, std::uint16_t{900}}) {
    change_reads([&](reply& made) { made.said.id = id; });
    expect_failure_of_a_read("which is not under way");
    EXPECT_EQ(code_, errc::protocol_error);
  }
}
TEST_F(nvme_host_and_a_false_controller, a_second_completion_of_a_command_ends_the_queue) {
  change_reads([](reply& made) { made.times = 2; });
  const auto read_on = [&](host& through) -> task<> {
    auto on = co_await through.queue(0).take_lane();
    for (;;) co_await through.read(through.queue(0), on, through.find(1), 0, 512);
  };
  expect_failure("which is not under way", failure_of(read_on));
}
TEST_F(nvme_host_and_a_false_controller, a_completion_of_another_size_ends_the_queue) {
  for (const std::size_t bytes : {std::size_t{15}, std::size_t{0}}) {
    change_reads([&](reply& made) { made.bytes = bytes; });
    expect_failure_of_a_read("a completion of " + std::to_string(bytes) + " bytes");
  }
  change_reads([&](reply& made) { made.bytes = 4096; });
  EXPECT_NE(failure_of_a_read(), "");
}
REFUSED(a_queue_head_beyond_the_queue_ends_it, "a queue head of 900 where there are 5 entries",
        change_reads([](reply& made) { made.said.queue_head = 900; }))
REFUSED(that_goes_away_is_told, "I/O queue 1 of", change_reads([&](reply& made) {
          made.times = 0;
          peer_.links.at(1)->abort();
        }))

// Memory.

TEST_F(nvme_host_and_a_false_controller, that_revokes_the_key_of_another_command_loses_the_queue) {
  options_.lends = lending::each_command;
  std::optional<std::uint64_t> first;
  change_reads([&](reply& made) {
    if (first) {
      made.invalidate = first;
      return;
    }
    first = made.asked.data.key;
    made.times = 0;
  });
  const auto read_both = [&](host& through) -> task<> {
    co_await when_all(read_one_block(through), read_one_block(through));
  };
  expect_failure("which is not that of its memory", failure_of(read_both));
}
TEST_F(nvme_host_and_a_false_controller, that_revokes_a_key_it_was_not_asked_to_loses_the_queue) {
  change_reads([](reply& made) { made.invalidate = made.asked.data.key; });
  EXPECT_NE(failure_of_a_read(), "");
}
TEST_F(nvme_host_and_a_false_controller, that_does_not_answer_times_out_and_its_late_write_does_not_land) {
  for (const lending how : {lending::standing, lending::each_command, lending::direct}) {
    options_.lends = how;
    options_.timeout = milliseconds(200);
    command asked;
    change_reads([&](reply& made) {
      made.times = 0;
      asked = made.asked;
    });
    bool refused = false;
    const auto read = [&](host& through) -> task<> {
      auto on = co_await through.queue(0).take_lane();
      std::ranges::fill(on.bytes(), std::byte{0x11});
      std::exception_ptr failure;
      try {
        co_await through.read(through.queue(0), on, through.find(1), 0, 512);
      } catch (...) {
        failure = std::current_exception();
      }
      // By the key that it was lent, on a connection to the same device: what it should have done before.
      if (const auto link = peer_.links.find(0); link != peer_.links.end()) {
        auto late = co_await here_.device().allocate(512);
        const mr::remote_slice target(asked.data.key, asked.data.address, 512, mr::usage::write_dst);
        try {
          co_await link->second->write(std::move(late), target);
          co_await link->second->flush(mr::remote_slice(asked.data.key, asked.data.address, 1, mr::usage::read_src));
        } catch (const error&) {
          refused = true;
        }
      } else {
        refused = true;
      }
      EXPECT_TRUE(std::ranges::all_of(on.bytes(), [](std::byte each) { return each == std::byte{0x11}; }));
      std::rethrow_exception(failure);
    };
    expect_failure("no answer to Read of blocks 0 to 0 of namespace 1 for 200 ms, so the queue was ended",
                   failure_of(read));
    EXPECT_EQ(code_, errc::timed_out);
    EXPECT_TRUE(refused);
  }
}
TEST_F(nvme_host_and_a_false_controller, a_read_that_is_stopped_ends_the_queue_before_its_memory_is_free) {
  change_reads([](reply& made) { made.times = 0; });
  const auto read = [&](host& through) -> task<> {
    auto on = co_await through.queue(0).take_lane();
    const auto stopped = co_await weft::test::failure_of(
        with_timeout(milliseconds(20), through.read(through.queue(0), on, through.find(1), 0, 512)));
    EXPECT_TRUE(stopped && stopped->posted());
    EXPECT_TRUE(through.queue(0).failure());
    co_await through.read(through.queue(0), on, through.find(1), 0, 512);
  };
  expect_failure("I/O queue 1 of", failure_of(read));
}

// What goes on beside.

TEST_F(nvme_host_and_a_false_controller, hears_of_the_host_in_time) {
  options_.keep_alive = milliseconds(100);
  const auto wait = [&](host& through) -> task<> {
    while (peer_.keep_alives < 3) co_await sleep_for(milliseconds(1));
    EXPECT_FALSE(through.failure());
  };
  EXPECT_EQ(failure_of(wait), "");
}
TEST_F(nvme_host_and_a_false_controller, that_does_not_answer_a_keep_alive_is_given_up) {
  options_.keep_alive = milliseconds(100);
  options_.timeout = milliseconds(100);
  change_replies(false, static_cast<std::uint8_t>(admin_opcode::keep_alive), [](reply& made) { made.times = 0; });
  const auto wait = [&](host& through) -> task<> {
    while (!through.failure()) co_await sleep_for(milliseconds(1));
    co_await read_one_block(through);
  };
  expect_failure("no answer to Keep Alive", failure_of(wait));
}
// Options.

TEST_F(nvme_host_and_a_false_controller, options_that_make_no_sense_are_refused) {
  const auto refused = [&](const std::function<void(host_options&)>& change) {
    host_options made = options_;
    change(made);
    EXPECT_THROW(host(here_.device(), made), std::invalid_argument);
  };
  refused([](host_options& how) { how.subsystem = "disk"; });
  refused([](host_options& how) { how.subsystem = "nqn." + std::string(300, 'x'); });
  refused([](host_options& how) { how.host_nqn = "me"; });
  refused([](host_options& how) { how.commands = 0; });
  refused([](host_options& how) { how.timeout = milliseconds(0); });
  refused([](host_options& how) { how.keep_alive = milliseconds(0); });
}
TEST_F(nvme_host_and_a_false_controller, queues_of_more_memory_than_the_pool_has_are_refused_and_do_not_wait) {
  options_.queues = 400;
  options_.lane_bytes = std::size_t{128} << 10;
  expect_failure_of_a_read("400 queues with 4 commands of 131072 bytes: the pool has");
}
TEST_F(nvme_host_and_a_false_controller, a_queue_of_more_memory_than_the_pool_has_is_refused) {
  options_.lane_bytes = std::size_t{100} << 20;
  options_.commands = 2;
  expect_failure_of_a_read("commands of 104857600 bytes");
}

}  // namespace
}  // namespace nvme::test
