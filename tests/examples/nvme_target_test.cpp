// SPDX-License-Identifier: Apache-2.0
// The target of the example nvme, among hosts that mean well and others. Over iWARP in user space.

#include <unistd.h>

#include <fstream>
#include <semaphore>

#include "../kit/expect_failure.hpp"
#include "../kit/scripted_test.hpp"
#include "../unit/failing_calls.hpp"
#include "../unit/sanitized.hpp"
#include "kit/clock.hpp"
#include "kit/temporary_directory.hpp"
#include "nvme_host.hpp"
#include "sparse_disk.hpp"
#include <nvme/disks.hpp>
#include <nvme/sizes.hpp>
#include <nvme/subsystem.hpp>
#include <nvme/target.hpp>

namespace nvme::test {
namespace {

using std::chrono::milliseconds;

constexpr auto patience = std::chrono::seconds(60);
constexpr std::size_t block = 512;
constexpr std::uint64_t disk_blocks = 4096;
constexpr std::uint64_t disk_bytes = disk_blocks * block;

std::vector<std::byte> pattern(std::size_t bytes, unsigned seed) {
  std::vector<std::byte> made(bytes);
  for (std::size_t i = 0; i < bytes; ++i) made[i] = static_cast<std::byte>(i * 31 + i / 251 + seed);
  return made;
}

/// Memory whose reads and writes wait until the test lets them, and that fails when told to.
class gated_disk final : public disk {
 public:
  explicit gated_disk(std::uint64_t bytes) : memory_(bytes) { gate.set(); }

  std::uint64_t size() const noexcept override { return shown_size != 0 ? shown_size : memory_.size(); }
  std::string describe() const override { return "a disk of the test"; }
  bool read_only() const noexcept override { return is_read_only; }
  bool has_volatile_cache() const noexcept override { return true; }
  task<> read(std::uint64_t offset, std::span<std::byte> into) override {
    co_await pass();
    co_await memory_.read(offset, into);
  }
  task<> write(std::uint64_t offset, std::span<const std::byte> from) override {
    co_await pass();
    if (holds_writes) co_await occupy_worker();
    co_await memory_.write(offset, from);
    ++writes;
  }
  task<> flush() override {
    ++flushes;
    co_await pass();
    flushed_writes = writes;
  }
  task<> deallocate(std::uint64_t offset, std::uint64_t bytes) override {
    deallocated.emplace_back(offset, bytes);
    co_return;
  }
  /// As a write in the kernel, it cannot be stopped.
  void release_write() { may_write_.release(); }

  task<bool> look_again() override {
    const std::uint64_t before = size();
    if (next_size != 0) shown_size = next_size;
    co_return size() != before;
  }

  event gate;
  bool is_read_only = false;
  int failure = 0;  // an errno value
  std::uint64_t shown_size = 0;
  std::uint64_t next_size = 0;
  bool holds_writes = false;  // in a worker, until release_write()
  std::atomic<bool> is_held = false;
  int writes = 0;
  int flushes = 0;
  int flushed_writes = 0;
  int waiting = 0;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> deallocated;

 private:
  task<> pass() {
    ++waiting;
    co_await gate.wait();
    --waiting;
    if (failure != 0) throw weft::system_error(failure, "use a disk of the test");
  }
  task<> occupy_worker() {
    const auto wait = [this] {
      is_held = true;
      static_cast<void>(may_write_.try_acquire_for(patience));
      is_held = false;
    };
    co_await offload(wait);
  }
  memory_disk memory_;
  std::counting_semaphore<> may_write_{0};
};

class nvme_target_test : public testing::Test {
 protected:
  nvme_target_test() : served_(disk_nqn) {}

  void add_disk(std::uint32_t block_bytes = block) {
    auto made = std::make_unique<gated_disk>(disk_bytes);
    disk_ = made.get();
    served_.add(std::move(made), block_bytes);
  }

  task<connected_host> host_with_queue(std::string address) {
    auto host = co_await connect_host(device_, address);
    co_await add_queue(host, device_, address, 1);
    co_return host;
  }
  /// Runs a target, and `body(address, listener)` beside it.
  void with_listener(const weft::test::test_script<std::string, net::listener&>& body) {
    if (served_.all().empty()) add_disk();
    options_.log = [this](std::string_view line) { log_.append(line).append("\n"); };
    target serving(device_, served_, options_);
    target_ = &serving;
    const auto all = [&]() -> task<> {
      auto listener = co_await device_.listen("127.0.0.1:0");
      const auto both = [&](scope& tasks) -> task<> {
        tasks.spawn(serving.serve(listener));
        co_await body(std::string(listener.address()), listener);
        listener.close();
        serving.drain();
      };
      co_await with_scope(on_failure::stop_siblings, both);
    };
    loop_.run(with_timeout(patience, all()));
    counted_ = serving.counters();
    const auto now = device_.pool().statistics();
    EXPECT_EQ(now.send.in_use_bytes + now.receive.in_use_bytes, 0U);
  }
  /// The same with `body(address)`. The target must serve another host when that is over.
  void with_target(const weft::test::test_script<std::string>& body) {
    with_listener([&](std::string address, net::listener&) -> task<> {
      co_await body(address);
      co_await check_that_it_still_serves(address);
    });
  }
  /// The same, with a host that has one I/O queue.
  void with_host(const weft::test::test_script<connected_host&>& body) {
    with_target([&](std::string address) -> task<> {
      auto host = co_await host_with_queue(address);
      co_await body(host);
    });
  }
  /// Speaks on an I/O queue that the target then ends, while the admin queue and the target go on.
  void loses_its_queue(const weft::test::test_script<connected_host&, raw_queue&>& body) {
    with_host([&](connected_host& host) -> task<> {
      co_await body(host, host.io[0]);
      co_await host.io[0].hear_end();
      EXPECT_EQ(co_await host.admin.status_of(admin_command(admin_opcode::keep_alive)), status::success);
    });
  }
  /// What an I/O command is answered.
  void expect_io(const std::function<command(connected_host&)>& make, status expected,
                 std::span<const std::byte> capsule_data = {}) {
    with_host([&](connected_host& host) -> task<> {
      const command asked = make(host);
      const answer heard = co_await host.io[0].ask(asked, capsule_data);
      EXPECT_EQ(words_of(heard.said.status), words_of(expected));
      EXPECT_TRUE(heard.said.status == status::success || heard.said.do_not_retry);
    });
  }
  void expect_admin(const std::function<command(connected_host&)>& make, status expected) {
    with_host([&](connected_host& host) -> task<> {
      const command asked = make(host);
      const status heard = co_await host.admin.status_of(asked);
      EXPECT_EQ(words_of(heard), words_of(expected));
    });
  }
  /// What a Connect for I/O queue `number` is answered, after `prepare` has changed it.
  void expect_connect(std::uint16_t number, const std::function<void(command&, connect_data&)>& prepare,
                      status expected, std::uint64_t result = 0) {
    with_target([&](std::string address) -> task<> {
      auto host = co_await connect_host(device_, address);
      auto queue = co_await dial(device_, address, number, 16);
      const host_words who;
      command asked = connect_command(queue, who);
      connect_data data = data_of_connect(who, number == 0 ? any_controller : host.controller);
      prepare(asked, data);
      const auto bytes = encoded(data);
      const answer heard = co_await queue.ask(asked, bytes);
      EXPECT_EQ(words_of(heard.said.status, true), words_of(expected, true));
      EXPECT_EQ(heard.said.result, result);
    });
  }
  /// What a connection with these private data is answered.
  void expect_rejection(std::span<const std::byte> private_data, reject_reason why) {
    with_target([&](std::string address) -> task<> {
      const auto refused = co_await weft::test::failure_of(dial_with(device_, address, private_data, 0, 16));
      const auto digits = std::string("0000") + "0" + std::to_string(static_cast<int>(why)) + "00";
      EXPECT_TRUE(weft::test::failed_with(refused, errc::peer_rejected, digits));
      EXPECT_NE(log_.find(words_of(why)), std::string::npos) << log_;
    });
  }

  /// Has the disk take a write of the first block from the host's I/O queue, which goes on until release_write().
  task<> begin_held_write(connected_host& host) {
    disk_->holds_writes = true;
    command writing = write_of({.first = 0, .count = 1}, in_capsule(block));
    writing.id = 77;
    co_await host.io[0].send(writing, pattern(block, 1));
    while (!disk_->is_held) co_await yield();
  }
  task<> lose(connected_host& host) {
    const auto lost = target_->controllers().find(host.controller);
    host.admin.link.abort();
    while (!lost->is_lost()) co_await yield();
  }
  void release_write() {
    disk_->holds_writes = false;
    disk_->release_write();
  }
  /// Asks for that many events, with requests of ids from this one on, and waits until the target has them.
  static task<> request_events(connected_host& host, std::uint16_t first, std::uint16_t count) {
    command waiting = admin_command(admin_opcode::async_event_request);
    for (waiting.id = first; waiting.id != first + count; ++waiting.id) co_await host.admin.send(waiting);
    co_await host.admin.ask(admin_command(admin_opcode::abort));  // comes behind the requests
  }
  /// The same, of changes of namespaces.
  static task<> await_changes(connected_host& host, std::uint16_t first, std::uint16_t count) {
    co_await host.admin.ask(set_feature(feature::async_event_configuration, 1U << 8));
    co_await request_events(host, first, count);
  }
  task<> resize_disk(std::uint64_t bytes) {
    disk_->next_size = bytes;
    co_await target_->look_again();
  }
  static task<status> shut_down(connected_host& host) {
    return host.admin.status_of(set_configuration(enabled | configuration::normal_shutdown));
  }
  task<std::uint64_t> shutdown_status(connected_host& host) {
    co_return co_await status_of_controller(host) & controller_status::shutdown_mask;
  }
  task<std::uint64_t> status_of_controller(connected_host& host) {
    const answer now = co_await host.admin.ask(get_property(property::controller_status));
    co_return now.said.result;
  }

  weft::test::manual_clock clock_{weft::test::manual_clock::between_moves::goes};
  net::device device_ = net::device::open("iwarp");
  subsystem served_;
  target_options options_;
  gated_disk* disk_ = nullptr;
  target* target_ = nullptr;
  counters counted_;  // by the target, in the end
  std::string log_;

 private:
  // Where there is little time for a Connect, a busy machine may take several attempts.
  task<> check_that_it_still_serves(std::string address) {
    const bool in_time = options_.most.connect_timeout > std::chrono::seconds(1);
    for (bool served = false; !served;) {
      const auto outcome = co_await as_result(flush_once(address));
      served = outcome.has_value();
      if (!served && in_time) throw outcome.error();
    }
  }
  task<> flush_once(std::string address) {
    auto host = co_await host_with_queue(address);
    EXPECT_EQ(co_await host.io[0].status_of(io_command(io_opcode::flush)), status::success);
  }
  executor loop_{executor_options{.clock = &clock_}};
};

// With a host, or with the target's address alone, after statements before that.
#define TEST_F_WITH_HOST(fixture, name, ...)                             \
  TEST_F_SCRIPT(fixture, name, ([[maybe_unused]] connected_host & host), \
                __VA_ARGS__ __VA_OPT__(;) with_host(WEFT_SCRIPT))
#define TEST_F_WITH_TARGET(fixture, name, ...) \
  TEST_F_SCRIPT(fixture, name, (std::string address), __VA_ARGS__ __VA_OPT__(;) with_target(WEFT_SCRIPT))
#define TEST_F_LOSES_QUEUE(fixture, name)                                                   \
  TEST_F_SCRIPT(fixture, name, ([[maybe_unused]] connected_host & host, raw_queue & queue), \
                loses_its_queue(WEFT_SCRIPT))

// Tests of one shape: what the target answers. `host` is connected, `asked` and `data` are what a host would say.
#define REJECTED(name, reason, ...) \
  TEST_F(nvme_target_test, name) { expect_rejection(encoded(cm_request __VA_ARGS__), reject_reason::reason); }
#define CONNECT(name, queue, answer, result, ...)                                                                  \
  TEST_F(nvme_target_test, name) {                                                                                 \
    const auto change = []([[maybe_unused]] command& asked, [[maybe_unused]] connect_data& data) { __VA_ARGS__; }; \
    expect_connect(queue, change, status::answer, result);                                                         \
  }
#define ADMIN_COMMAND(name, answer, ...)                                                             \
  TEST_F(nvme_target_test, name) {                                                                   \
    expect_admin([]([[maybe_unused]] connected_host& host) { return __VA_ARGS__; }, status::answer); \
  }
#define IO_COMMAND(name, answer, ...)                                                             \
  TEST_F(nvme_target_test, name) {                                                                \
    expect_io([]([[maybe_unused]] connected_host& host) { return __VA_ARGS__; }, status::answer); \
  }

// ---- set-up ----

TEST_F(nvme_target_test, private_data_that_are_too_short_are_rejected) {
  expect_rejection(std::array<std::byte, 31>{}, reject_reason::invalid_length);
}
REJECTED(private_data_of_another_format_are_rejected, invalid_format,
         {.format = 1, .receive_queue_size = 16, .send_queue_size = 15})
TEST_F(nvme_target_test, a_queue_beyond_the_last_is_rejected) {
  options_.most.io_queues = 4;
  expect_rejection(encoded(cm_request{.queue_id = 5, .receive_queue_size = 16, .send_queue_size = 15}),
                   reject_reason::invalid_queue_id);
}
REJECTED(a_queue_that_is_too_deep_is_rejected, invalid_send_queue_size,
         {.queue_id = 1, .receive_queue_size = 129, .send_queue_size = 128})
REJECTED(an_admin_queue_that_is_too_deep_is_rejected, invalid_send_queue_size,
         {.queue_id = 0, .receive_queue_size = 33, .send_queue_size = 32})
REJECTED(a_queue_of_one_entry_is_rejected, invalid_send_queue_size,
         {.queue_id = 1, .receive_queue_size = 1, .send_queue_size = 0})
REJECTED(a_queue_with_fewer_receives_than_commands_is_rejected, invalid_receive_queue_size,
         {.queue_id = 1, .receive_queue_size = 15, .send_queue_size = 15})

TEST_F_WITH_TARGET(nvme_target_test, nothing_but_connect_comes_first) {
  auto queue = co_await dial(device_, address, 0, 32);
  EXPECT_EQ(co_await queue.status_of(set_configuration(enabled)), status::command_sequence_error);
  EXPECT_EQ((co_await send_connect(queue, {}, any_controller)).said.status, status::success);
  EXPECT_EQ((co_await send_connect(queue, {}, any_controller)).said.status, status::command_sequence_error);
}

TEST_F(nvme_target_test, a_connection_without_a_connect_is_ended) {
  options_.most.connect_timeout = milliseconds(20);
  with_target([&](std::string address) -> task<> {
    auto queue = co_await dial(device_, address, 0, 32);
    co_await queue.hear_end();
  });
  EXPECT_NE(log_.find("wait for a Connect"), std::string::npos) << log_;
}

TEST_F_WITH_TARGET(nvme_target_test, a_queue_takes_commands_only_once_its_controller_is_enabled) {
  auto admin = co_await dial(device_, address, 0, 32);
  const answer connected = co_await send_connect(admin, {}, any_controller);
  EXPECT_EQ(co_await admin.status_of(admin_command(admin_opcode::keep_alive)), status::command_sequence_error);
  auto queue = co_await dial(device_, address, 1, 16);
  const answer too_early = co_await send_connect(queue, {}, static_cast<std::uint16_t>(connected.said.result));
  EXPECT_EQ(too_early.said.status, status::command_sequence_error);
}

TEST_F_WITH_HOST(nvme_target_test, disabling_a_controller_ends_its_io_queues) {
  EXPECT_EQ(co_await host.admin.status_of(set_configuration(0)), status::success);
  co_await host.io[0].hear_end();
  EXPECT_EQ(co_await status_of_controller(host), 0U);
}

TEST_F_WITH_HOST(nvme_target_test, a_configuration_that_no_target_has_is_fatal_to_the_controller) {
  co_await host.admin.ask(set_configuration(0));
  co_await host.admin.ask(set_configuration(configuration::enable));  // entries of one byte
  EXPECT_EQ(co_await status_of_controller(host), controller_status::fatal);
}

TEST_F_WITH_HOST(nvme_target_test, a_shutdown_flushes_the_disks) {
  EXPECT_EQ(co_await shut_down(host), status::success);
  EXPECT_EQ(disk_->flushes, 1);
  EXPECT_EQ(co_await shutdown_status(host), controller_status::shutdown_complete);
}

TEST_F_WITH_TARGET(nvme_target_test, a_disabled_controller_stays_ready_until_its_writes_are_over) {
  auto host = co_await host_with_queue(address);
  co_await begin_held_write(host);
  EXPECT_EQ(co_await host.admin.status_of(set_configuration(0)), status::success);
  co_await host.io[0].hear_end();
  const std::uint64_t meanwhile = co_await status_of_controller(host);
  EXPECT_EQ(meanwhile, controller_status::ready);
  EXPECT_EQ(co_await host.admin.status_of(set_configuration(enabled)), status::command_sequence_error);
  EXPECT_EQ(co_await host.admin.status_of(admin_command(admin_opcode::keep_alive)), status::command_sequence_error);
  EXPECT_EQ(disk_->writes, 0);
  release_write();
  for (std::uint64_t now = meanwhile; now != 0;) now = co_await status_of_controller(host);
  EXPECT_EQ(disk_->writes, 1);
  EXPECT_EQ(co_await host.admin.status_of(set_configuration(enabled)), status::success);
  co_await add_queue(host, device_, address, 1);  // under the number of the old one
}

TEST_F_WITH_HOST(nvme_target_test, a_shutdown_is_complete_once_the_writes_under_way_are_flushed) {
  co_await begin_held_write(host);
  command shutting_down = set_configuration(enabled | configuration::normal_shutdown);
  shutting_down.id = 99;
  co_await host.admin.send(shutting_down);
  EXPECT_EQ(co_await shutdown_status(host), controller_status::shutdown_occurs);
  EXPECT_EQ(co_await host.admin.status_of(set_configuration(0)), status::command_sequence_error);
  EXPECT_EQ(disk_->flushes, 0);
  release_write();
  EXPECT_EQ((co_await host.io[0].hear()).said.status, status::success);
  co_await host.io[0].hear_end();
  const answer done = co_await host.admin.hear();
  EXPECT_EQ(done.said.id, 99);
  EXPECT_EQ(done.said.status, status::success);
  EXPECT_EQ(disk_->flushed_writes, 1);
  EXPECT_EQ(co_await shutdown_status(host), controller_status::shutdown_complete);
}

TEST_F_WITH_TARGET(nvme_target_test, a_host_that_comes_back_is_told_to_wait_for_the_writes_of_its_lost_association,
                   options_.most.takeover_timeout = milliseconds(0)) {
  auto host = co_await host_with_queue(address);
  co_await begin_held_write(host);
  co_await lose(host);
  auto queue = co_await dial(device_, address, 0, 32);
  const answer busy = co_await send_connect(queue, {}, any_controller);
  EXPECT_EQ(busy.said.status, status::connect_controller_busy);
  EXPECT_FALSE(busy.said.do_not_retry);
  EXPECT_NE(log_.find("still under way"), std::string::npos) << log_;
  auto another = co_await dial(device_, address, 1, 16);  // of the association that is lost
  EXPECT_EQ((co_await send_connect(another, {}, host.controller)).said.status, status::connect_invalid_parameters);
  host_words who;
  who.host += "-other";
  auto other = co_await connect_host(device_, address, who);
  EXPECT_EQ(disk_->writes, 0);
  release_write();
  for (status again = busy.said.status; again != status::success;) {
    const answer now = co_await send_connect(queue, {}, any_controller);
    again = now.said.status;
  }
  EXPECT_EQ(disk_->writes, 1);
  co_await queue.link.close();
  while (target_->controllers().all().size() != 1) co_await yield();  // nobody may wait at the end of this test
}

TEST_F_WITH_TARGET(nvme_target_test, a_connect_waits_for_the_writes_of_a_lost_association,
                   options_.most.takeover_timeout = patience;
                   options_.most.connect_timeout = patience) {
  auto host = co_await host_with_queue(address);
  co_await begin_held_write(host);
  co_await lose(host);
  bool connected = false;
  const auto come_back = [&]() -> task<> {
    auto again = co_await connect_host(device_, address);
    connected = true;
    EXPECT_EQ(disk_->writes, 1);
  };
  const auto both = [&](scope& tasks) -> task<> {
    tasks.spawn(come_back());
    host_words who;
    who.host += "-other";
    for (int i = 0; i < 3; ++i) {  // others come and go meanwhile
      auto other = co_await connect_host(device_, address, who);
      co_await other.admin.link.close();
    }
    EXPECT_FALSE(connected);
    release_write();
  };
  co_await with_scope(on_failure::stop_siblings, both);
  EXPECT_TRUE(connected);
}

TEST_F_WITH_HOST(nvme_target_test, a_shutdown_that_cannot_flush_is_an_error_and_may_be_tried_again) {
  disk_->failure = EIO;
  EXPECT_EQ(co_await shut_down(host), status::internal_error);
  disk_->failure = 0;
  EXPECT_EQ(co_await status_of_controller(host), controller_status::ready);
  EXPECT_EQ(co_await shut_down(host), status::success);
}

TEST_F_WITH_TARGET(nvme_target_test, a_connect_may_have_its_data_in_the_hosts_memory) {
  auto queue = co_await dial(device_, address, 0, 32);
  auto memory = co_await host_memory::make(device_, 4096);
  std::ranges::copy(encoded(data_of_connect({}, any_controller)), memory.bytes().data());
  command asked = connect_command(queue, {});
  asked.data = memory.describe(connect_data::bytes);
  EXPECT_EQ((co_await queue.ask(asked)).said.status, status::success);
}

TEST_F_WITH_TARGET(nvme_target_test, an_unknown_subsystem_is_told_where_its_name_was) {
  auto queue = co_await dial(device_, address, 0, 32);
  host_words who;
  who.subsystem = "nqn.2024-01.org.example:another";
  const answer heard = co_await send_connect(queue, who, any_controller);
  EXPECT_EQ(heard.said.status, status::connect_invalid_parameters);
  EXPECT_EQ(heard.said.result, wrong_parameter(connect_data::subsystem_at, true));
  EXPECT_NE(log_.find("there is no subsystem 'nqn.2024-01.org.example:another'"), std::string::npos) << log_;
  const answer right = co_await send_connect(queue, {}, any_controller);  // it may try again
  EXPECT_EQ(right.said.status, status::success);
}

TEST_F_WITH_TARGET(nvme_target_test, a_host_that_was_not_named_is_not_let_in, served_.allow(host_nqn)) {
  auto queue = co_await dial(device_, address, 0, 32);
  host_words who;
  who.host = "nqn.2024-01.org.example:stranger";
  EXPECT_EQ((co_await send_connect(queue, who, any_controller)).said.status, status::connect_invalid_host);
}

TEST_F_WITH_TARGET(nvme_target_test, there_are_no_more_controllers_than_there_may_be, options_.most.controllers = 2) {
  auto one = co_await connect_host(device_, address);
  auto two = co_await connect_host(device_, address);
  auto queue = co_await dial(device_, address, 0, 32);
  const answer heard = co_await send_connect(queue, {}, any_controller);
  EXPECT_EQ(heard.said.status, status::connect_controller_busy);
  EXPECT_FALSE(heard.said.do_not_retry);
  co_await one.admin.link.close();
  for (status again = heard.said.status; again != status::success;) {  // once the target has noticed
    const answer now = co_await send_connect(queue, {}, any_controller);
    again = now.said.status;
  }
  co_await queue.link.close();
  co_await two.admin.link.close();
  while (!target_->controllers().all().empty()) co_await yield();
}

CONNECT(a_connect_of_an_unknown_format_is_told_so, 1, connect_incompatible_format, 0, asked.dwords[0] |= 1)
CONNECT(a_connect_for_another_queue_than_the_connections_is_refused, 1, connect_invalid_parameters,
        wrong_parameter(42, false), put(asked, connect_fields{.queue_id = 2, .queue_size = 15}))
CONNECT(a_connect_for_a_deeper_queue_than_the_connections_is_refused, 1, connect_invalid_parameters,
        wrong_parameter(44, false), put(asked, connect_fields{.queue_id = 1, .queue_size = 16}))
CONNECT(a_connect_for_a_controller_that_is_not_there_is_refused, 1, connect_invalid_parameters,
        wrong_parameter(connect_data::controller_at, true), data.controller += 7)
CONNECT(a_connect_for_a_controller_of_another_host_is_refused, 1, connect_invalid_parameters,
        wrong_parameter(connect_data::host_at, true), data.host += "2")
CONNECT(a_connect_for_a_controller_of_another_host_identifier_is_refused, 1, connect_invalid_parameters,
        wrong_parameter(connect_data::host_id_at, true), data.host_id[3] ^= std::byte{1})
CONNECT(a_connect_of_a_host_without_an_identifier_is_refused, 0, connect_invalid_parameters,
        wrong_parameter(connect_data::host_id_at, true), data.host_id = {})
CONNECT(a_connect_of_a_host_without_a_name_is_refused, 0, connect_invalid_parameters,
        wrong_parameter(connect_data::host_at, true), data.host = "somebody")
CONNECT(a_connect_that_wants_a_controller_by_number_is_refused, 0, connect_invalid_parameters,
        wrong_parameter(connect_data::controller_at, true), data.controller = 1)
CONNECT(a_connect_whose_data_are_too_short_is_refused, 0, sgl_data_length_invalid, 0, asked.data.length = 1023)
CONNECT(a_connect_whose_data_lie_behind_the_capsule_is_refused, 0, sgl_offset_invalid, 0, asked.data.address = 1)
CONNECT(a_connect_whose_data_wrap_around_is_refused, 0, sgl_offset_invalid, 0, asked.data.address = ~std::uint64_t{0})

TEST_F(nvme_target_test, a_connect_for_which_memory_is_short_may_be_tried_again) {
  if (weft::test::sanitized) GTEST_SKIP() << "sanitizers have an operator new of their own";
  int refused = 0;
  // Whatever comes first: the host's part, the fabric's, which may lose the connection, or the target's.
  const auto try_with_failure = [&](std::string address, std::int64_t number) -> task<> {
    auto queue = co_await dial(device_, address, 0, 32);
    const auto bytes = encoded(data_of_connect({}, any_controller));
    const command asked = connect_command(queue, {});
    std::optional<status> heard;
    weft::test::fail_call(number);
    try {
      const answer said = co_await queue.ask(asked, bytes);
      heard = said.said.status;
    } catch (const std::exception&) {
    }
    weft::test::fail_call(0);
    if (!heard || *heard == status::success) co_return;
    EXPECT_EQ(words_of(*heard), words_of(status::internal_error));
    ++refused;
    EXPECT_EQ(words_of((co_await send_connect(queue, {}, any_controller)).said.status), words_of(status::success));
  };
  with_target([&](std::string address) -> task<> {
    for (std::int64_t number = 1; number <= 60; ++number) co_await try_with_failure(address, number);
    while (!target_->controllers().all().empty()) co_await yield();  // none is left behind
  });
  EXPECT_GT(refused, 0);
}

TEST_F_WITH_TARGET(nvme_target_test, a_queue_that_is_there_already_is_refused) {
  auto host = co_await host_with_queue(address);
  auto second = co_await dial(device_, address, 1, 16);
  EXPECT_EQ((co_await send_connect(second, {}, host.controller)).said.status, status::invalid_queue_id);
}

TEST_F_WITH_TARGET(nvme_target_test, a_queue_beyond_those_that_were_granted_is_refused) {
  auto host = co_await connect_host(device_, address);
  const command two = set_feature(feature::number_of_queues, 0x0005'0001);
  EXPECT_EQ((co_await host.admin.ask(two)).said.result, 0x0001'0001U);
  co_await add_queue(host, device_, address, 2);
  auto third = co_await dial(device_, address, 3, 16);
  EXPECT_EQ((co_await send_connect(third, {}, host.controller)).said.status, status::invalid_queue_id);
  EXPECT_EQ(co_await host.admin.status_of(two), status::command_sequence_error);
}

TEST_F_WITH_HOST(nvme_target_test, io_queues_end_with_their_admin_queue) {
  host.admin.link.abort();
  co_await host.io[0].hear_end();
}

// ---- discovery ----

TEST_F_WITH_TARGET(nvme_target_test, a_discovery_controller_has_no_io_queues) {
  host_words who;
  who.subsystem = discovery_nqn;
  auto host = co_await connect_host(device_, address, who);
  auto queue = co_await dial(device_, address, 1, 16);
  EXPECT_EQ((co_await send_connect(queue, who, host.controller)).said.status, status::connect_invalid_parameters);
  EXPECT_EQ(co_await host.admin.status_of(identify_command(host, 2)), status::invalid_field);
}

// ---- admin commands ----

TEST_F_WITH_HOST(nvme_target_test, identify_describes_controller_and_namespaces, add_disk(); add_disk(4096);
                 disk_->is_read_only = true) {
  const auto bytes = host.memory.bytes();
  EXPECT_EQ(co_await host.admin.status_of(identify_command(host, 1)), status::success);
  const auto who = decode<controller_identity>(bytes);
  EXPECT_EQ(who.subsystem, disk_nqn);
  EXPECT_EQ(who.controller, host.controller);
  EXPECT_EQ(who.namespaces, 2U);
  EXPECT_EQ(who.command_capsule_bytes, 64 + 16384U);
  EXPECT_EQ(who.write_cache, 7);
  EXPECT_EQ(co_await host.admin.status_of(identify_command(host, 2)), status::success);
  EXPECT_EQ(decode_namespace_list(bytes), (std::vector<std::uint32_t>{1, 2}));
  EXPECT_EQ(co_await host.admin.status_of(identify_command(host, 2, 1)), status::success);
  EXPECT_EQ(decode_namespace_list(bytes), (std::vector<std::uint32_t>{2}));
  EXPECT_EQ(co_await host.admin.status_of(identify_command(host, 0, 2)), status::success);
  const auto name_space = decode_namespace(bytes);
  EXPECT_EQ(name_space.block_shift, 12);
  EXPECT_EQ(name_space.blocks, disk_bytes / 4096);
  EXPECT_TRUE(name_space.is_read_only());
  EXPECT_EQ(co_await host.admin.status_of(identify_command(host, 3, 2)), status::success);
  EXPECT_TRUE(std::ranges::equal(name_space.id, bytes.subspan(4, 16)));
  EXPECT_EQ(co_await host.admin.status_of(identify_command(host, 6)), status::success);
}

ADMIN_COMMAND(identify_of_an_unknown_structure_is_an_error, invalid_field, identify_command(host, 0x13))
ADMIN_COMMAND(identify_of_a_namespace_that_is_not_there_is_an_error, invalid_namespace, identify_command(host, 0, 2))
ADMIN_COMMAND(identify_into_too_little_memory_is_an_error, sgl_data_length_invalid, identify_command(host, 1, 0, 4095))
ADMIN_COMMAND(identify_into_the_capsule_is_an_error, sgl_type_invalid,
              with_data(identify_command(host, 1), in_capsule(identify_bytes)))
ADMIN_COMMAND(an_unknown_admin_command_is_an_error, invalid_opcode, admin_command(static_cast<admin_opcode>(0x7d)))
ADMIN_COMMAND(an_unknown_admin_command_with_data_is_the_same_error, invalid_opcode,
              with_data(admin_command(static_cast<admin_opcode>(0x7d)), host.memory.describe(4096)))
ADMIN_COMMAND(an_unknown_fabrics_command_with_data_is_the_same_error, invalid_opcode,
              with_data(fabrics_command(static_cast<fabrics_type>(0x77)), host.memory.describe(4096)))
ADMIN_COMMAND(an_abort_with_data_is_an_error, sgl_data_length_invalid,
              with_data(admin_command(admin_opcode::abort), host.memory.describe(4096)))
ADMIN_COMMAND(an_unknown_fabrics_command_is_an_error, invalid_opcode, fabrics_command(static_cast<fabrics_type>(0x77)))
ADMIN_COMMAND(a_property_of_another_size_is_an_error, invalid_field, get_property(property::capabilities, false))
ADMIN_COMMAND(a_property_that_is_not_there_is_an_error, invalid_field, get_property(0x1000))
ADMIN_COMMAND(a_property_that_only_the_target_changes_is_an_error_to_set, invalid_field,
              with(fabrics_command(fabrics_type::property_set),
                   property_fields{.offset = property::controller_status, .value = 1}))
ADMIN_COMMAND(a_feature_cannot_be_saved, feature_not_saveable,
              with(admin_command(admin_opcode::set_features), feature_fields{.feature = 7, .save = true, .value = 0}))
ADMIN_COMMAND(no_queues_at_all_cannot_be_asked_for, invalid_field,
              with(admin_command(admin_opcode::set_features), feature_fields{.feature = 7, .value = 0xffff'0000}))
ADMIN_COMMAND(an_unknown_feature_is_an_error, invalid_field, set_feature(static_cast<feature>(0x55), 0))

ADMIN_COMMAND(an_unknown_log_page_is_an_error, invalid_log_page, log_command(host, {.page = 0x55, .bytes = 512}))
ADMIN_COMMAND(a_log_page_from_behind_its_end_on_is_an_error, invalid_field,
              log_command(host, {.page = 2, .bytes = 512, .offset = 516}))
ADMIN_COMMAND(a_log_page_of_more_than_a_command_may_move_is_an_error, invalid_field,
              log_command(host, {.page = 2, .bytes = std::uint64_t{1} << 20}))
TEST_F_WITH_TARGET(nvme_target_test, a_host_that_falls_silent_loses_all_its_queues) {
  host_words who;
  who.keep_alive_ms = 20'000;
  auto host = co_await connect_host(device_, address, who);
  co_await add_queue(host, device_, address, 1);
  clock_.advance(std::chrono::seconds(21));
  co_await host.io[0].hear_end();
  co_await host.admin.hear_end();
  EXPECT_NE(log_.find("no Keep Alive"), std::string::npos) << log_;
}

TEST_F_WITH_TARGET(nvme_target_test, a_host_whose_keep_alive_has_come_stays_although_the_target_was_late_itself) {
  host_words who;
  who.keep_alive_ms = 20'000;
  auto host = co_await connect_host(device_, address, who);
  auto capsule = co_await device_.allocate(command_bytes);
  command asked = admin_command(admin_opcode::keep_alive);
  asked.id = 900;
  encode(asked, capsule.bytes());
  for (int i = 0; i < 3; ++i) co_await yield();  // beside other work, so that the kernel comes after the timers
  const auto be_late = [&]() -> task<> {
    clock_.advance(std::chrono::seconds(21));
    for (int i = 0; i < 3; ++i) co_await yield();
  };
  co_await when_all(host.admin.link.send(std::move(capsule)), be_late());
  const answer heard = co_await host.admin.hear();
  EXPECT_EQ(heard.said.id, 900);
  EXPECT_EQ(heard.said.status, status::success);
  EXPECT_EQ(log_.find("no Keep Alive"), std::string::npos) << log_;
}

TEST_F_WITH_TARGET(nvme_target_test, a_host_without_a_keep_alive_time_is_refused_but_for_discovery) {
  host_words who;
  who.keep_alive_ms = 0;
  auto queue = co_await dial(device_, address, 0, admin_queue_entries);
  EXPECT_EQ((co_await send_connect(queue, who, any_controller)).said.status, status::keep_alive_invalid);
  EXPECT_NE(log_.find("without a keep-alive time"), std::string::npos) << log_;
  who.keep_alive_ms = 5000;
  EXPECT_EQ((co_await send_connect(queue, who, any_controller)).said.status, status::success);
  who.subsystem = std::string(discovery_nqn);
  who.keep_alive_ms = 0;
  auto discovering = co_await dial(device_, address, 0, admin_queue_entries);
  EXPECT_EQ((co_await send_connect(discovering, who, any_controller)).said.status, status::success);
  EXPECT_EQ(co_await discovering.status_of(set_configuration(enabled)), status::success);
}

TEST_F_WITH_HOST(nvme_target_test, a_change_of_size_is_told_to_a_host_that_has_asked) {
  co_await await_changes(host, 500, 1);
  co_await resize_disk(disk_bytes / 2);
  const answer told = co_await host.admin.hear();
  EXPECT_EQ(told.said.id, 500);
  EXPECT_EQ(told.said.result, namespaces_changed);
  co_await host.admin.ask(log_command(host, {.page = 4, .bytes = identify_bytes}));
  EXPECT_EQ(decode_namespace_list(host.memory.bytes()), (std::vector<std::uint32_t>{1}));
  co_await host.admin.ask(identify_command(host, 0, 1));
  EXPECT_EQ(decode_namespace(host.memory.bytes()).blocks, disk_blocks / 2);
  command reading = read_into({.first = disk_blocks / 2, .count = 1}, host.memory.describe(block));
  EXPECT_EQ(co_await host.io[0].status_of(reading), status::lba_out_of_range);
}

TEST_F_WITH_HOST(nvme_target_test, a_list_of_changes_stays_until_a_read_has_told_it_and_does_not_retain_it) {
  co_await resize_disk(disk_bytes / 2);
  const auto list = [&](std::uint32_t bytes, std::uint64_t offset, bool retain) {
    return log_command(host, {.page = 4, .bytes = bytes, .offset = offset, .retain_event = retain});
  };
  const std::vector<std::uint32_t> one{1};
  command wrong = list(identify_bytes, 0, false);
  wrong.data.length = 512;
  EXPECT_EQ(co_await host.admin.status_of(wrong), status::sgl_data_length_invalid);
  EXPECT_EQ(co_await host.admin.status_of(list(512, identify_bytes + 4, false)), status::invalid_field);
  for (int i = 0; i < 2; ++i) {
    std::ranges::fill(host.memory.bytes(), std::byte{0});
    co_await host.admin.ask(list(identify_bytes, 0, true));
    EXPECT_EQ(decode_namespace_list(host.memory.bytes()), one);
  }
  std::ranges::fill(host.memory.bytes(), std::byte{0});
  co_await host.admin.ask(list(identify_bytes, 0, false));
  EXPECT_EQ(decode_namespace_list(host.memory.bytes()), one);
  co_await host.admin.ask(list(identify_bytes, 0, false));
  EXPECT_EQ(decode_namespace_list(host.memory.bytes()), (std::vector<std::uint32_t>{}));
}

TEST_F_WITH_HOST(nvme_target_test, a_host_is_not_told_of_a_page_again_before_it_has_read_it) {
  co_await await_changes(host, 500, 2);
  co_await resize_disk(disk_bytes / 2);
  EXPECT_EQ((co_await host.admin.hear()).said.id, 500);
  co_await resize_disk(disk_bytes / 4);  // each of these would be answered before what follows it
  co_await host.admin.ask(log_command(host, {.page = 4, .bytes = identify_bytes, .retain_event = true}));
  co_await resize_disk(disk_bytes / 2);
  co_await host.admin.ask(log_command(host, {.page = 4, .bytes = identify_bytes}));
  co_await resize_disk(disk_bytes);
  EXPECT_EQ((co_await host.admin.hear()).said.id, 501);
}

TEST_F_WITH_HOST(nvme_target_test, a_controller_that_was_disabled_waits_with_no_event_and_knows_of_no_request) {
  co_await await_changes(host, 500, 2);
  co_await resize_disk(disk_bytes / 2);
  const answer told = co_await host.admin.hear();  // and the host does not read what it is told
  EXPECT_EQ(told.said.id, 500);
  co_await host.admin.ask(set_configuration(0));
  while (co_await status_of_controller(host) != 0) {
  }
  EXPECT_EQ(co_await host.admin.status_of(set_configuration(enabled)), status::success);
  co_await request_events(host, 501, 1);
  co_await resize_disk(disk_bytes);
  const answer anew = co_await host.admin.hear();
  EXPECT_EQ(anew.said.id, 501);
  EXPECT_EQ(anew.said.status, status::success);
}

TEST_F(nvme_target_test, an_event_for_which_memory_is_short_is_told_later) {
  if (weft::test::sanitized) GTEST_SKIP() << "sanitizers have an operator new of their own";
  with_host([&](connected_host& host) -> task<> {
    co_await await_changes(host, 500, 1);
    const auto controller = target_->controllers().find(host.controller);
    controller->note_change(1);
    weft::test::fail_call(1, 1'000);  // there is no memory for the task that would tell it
    controller->note_change(1);
    weft::test::fail_call(0);
    controller->note_change(1);
    EXPECT_EQ((co_await host.admin.hear()).said.id, 500);
  });
}

TEST_F_WITH_HOST(nvme_target_test, more_requests_for_events_than_there_may_be_are_told_so) {
  co_await request_events(host, 500, 4);
  EXPECT_EQ(co_await host.admin.status_of(admin_command(admin_opcode::async_event_request)), status::async_event_limit);
  command waiting = admin_command(admin_opcode::keep_alive);
  waiting.id = 500;  // which is taken
  co_await host.admin.send(waiting);
  EXPECT_EQ((co_await host.admin.hear()).said.status, status::command_id_conflict);
}

// ---- reads and writes ----

TEST_F_WITH_HOST(nvme_target_test, data_in_a_capsule_may_begin_at_an_offset) {
  const auto data = pattern(2 * block, 3);
  command writing = write_of({.first = 7, .count = 1}, in_capsule(block, block));
  EXPECT_EQ(co_await host.io[0].status_of(writing, data), status::success);
  command reading = read_into({.first = 7, .count = 1}, host.memory.describe(block));
  co_await host.io[0].ask(reading);
  EXPECT_TRUE(std::ranges::equal(host.memory.bytes().first(block), std::span(data).subspan(block)));
}

TEST_F_WITH_HOST(nvme_target_test, a_key_is_revoked_exactly_when_the_host_has_asked) {
  raw_queue& queue = host.io[0];
  for (const bool wanted : {true, false}) {
    auto memory = co_await device_.allocate(block);
    auto lent = co_await queue.link.expose(std::move(memory), mr::usage::write_dst);
    command reading = blocks_command(io_opcode::read, {.first = 0, .count = 1});
    const auto remote = lent.remote();
    reading.data = describe(remote, block, wanted ? sgl_type::host_memory_invalidate : sgl_type::host_memory);
    const answer heard = co_await queue.ask(reading);
    EXPECT_EQ(heard.said.status, status::success);
    EXPECT_EQ(heard.revoked.has_value(), wanted);
    EXPECT_EQ(heard.revoked.value_or(remote.key()), remote.key());
  }
}

TEST_F_WITH_HOST(nvme_target_test, a_command_that_fails_revokes_its_key_as_well) {
  auto memory = co_await device_.allocate(block);
  auto lent = co_await host.io[0].link.expose(std::move(memory), mr::usage::write_dst);
  command reading = blocks_command(io_opcode::read, {.first = disk_blocks, .count = 1});
  const auto remote = lent.remote();
  reading.data = describe(remote, block, sgl_type::host_memory_invalidate);
  const answer heard = co_await host.io[0].ask(reading);
  EXPECT_EQ(heard.said.status, status::lba_out_of_range);
  EXPECT_EQ(heard.revoked, remote.key());
}

TEST_F_WITH_HOST(nvme_target_test, a_write_with_fua_is_flushed) {
  const auto data = pattern(block, 1);
  command writing = write_of({.first = 0, .count = 1}, in_capsule(block));
  co_await host.io[0].ask(writing, data);
  EXPECT_EQ(disk_->flushes, 0);
  put(writing, block_fields{.first = 0, .count = 1, .force_unit_access = true});
  co_await host.io[0].ask(writing, data);
  EXPECT_EQ(disk_->flushes, 1);
  EXPECT_EQ(co_await host.io[0].status_of(io_command(io_opcode::flush, 0xffff'ffff)), status::success);
  EXPECT_EQ(disk_->flushes, 2);
}

TEST_F_WITH_HOST(nvme_target_test, zeroes_are_written_and_ranges_deallocated) {
  const auto data = pattern(8 * block, 1);
  command writing = write_of({.first = 16, .count = 8}, in_capsule(data.size()));
  co_await host.io[0].ask(writing, data);
  EXPECT_EQ(co_await host.io[0].status_of(blocks_command(io_opcode::write_zeroes, {.first = 17, .count = 6})),
            status::success);
  command reading = read_into({.first = 16, .count = 8}, host.memory.describe(data.size()));
  co_await host.io[0].ask(reading);
  const auto got = host.memory.bytes().first(data.size());
  EXPECT_TRUE(std::ranges::equal(got.first(block), std::span(data).first(block)));
  EXPECT_TRUE(std::ranges::all_of(got.subspan(block, 6 * block), [](std::byte each) { return each == std::byte{0}; }));
  EXPECT_TRUE(std::ranges::equal(got.last(block), std::span(data).last(block)));

  std::array<std::byte, 2 * dataset_range::bytes> ranges{};
  encode(dataset_range{.first = 8, .count = 4}, std::span(ranges).first(dataset_range::bytes));
  encode(dataset_range{.first = 100, .count = 1}, std::span(ranges).last(dataset_range::bytes));
  command managing = io_command(io_opcode::dataset_management);
  put(managing, dataset_fields{.ranges = 2, .deallocate = true});
  managing.data = in_capsule(ranges.size());
  EXPECT_EQ(co_await host.io[0].status_of(managing, ranges), status::success);
  using range = std::pair<std::uint64_t, std::uint64_t>;
  EXPECT_EQ(disk_->deallocated, (std::vector<range>{{8 * block, 4 * block}, {100 * block, block}}));
  encode(dataset_range{.first = disk_blocks - 1, .count = 2}, std::span(ranges).last(dataset_range::bytes));
  EXPECT_EQ(co_await host.io[0].status_of(managing, ranges), status::lba_out_of_range);
  EXPECT_EQ(disk_->deallocated.size(), 2U);
  managing.data = in_capsule(dataset_range::bytes);
  EXPECT_EQ(co_await host.io[0].status_of(managing, ranges), status::sgl_data_length_invalid);
}

// ---- what a host does wrong ----

IO_COMMAND(blocks_beyond_the_end_are_out_of_range, lba_out_of_range,
           read_of(host, {.first = disk_blocks - 1, .count = 2}))
IO_COMMAND(blocks_that_wrap_around_are_out_of_range, lba_out_of_range,
           read_of(host, {.first = ~std::uint64_t{0}, .count = 2}))
IO_COMMAND(blocks_whose_offset_in_bytes_overflows_are_out_of_range, lba_out_of_range,
           read_of(host, {.first = std::uint64_t{1} << 55, .count = 1}))
IO_COMMAND(more_data_than_a_command_may_move_are_an_error, invalid_field, read_of(host, {.first = 0, .count = 513}))
IO_COMMAND(a_namespace_that_is_not_there_is_an_error, invalid_namespace, read_of(host, {.first = 0, .count = 1}, 2))
IO_COMMAND(namespace_0_is_an_error, invalid_namespace, read_of(host, {.first = 0, .count = 1}, 0))
IO_COMMAND(protection_information_is_an_error, invalid_field,
           read_of(host, {.first = 0, .count = 1, .protection = true}))
IO_COMMAND(memory_that_is_smaller_than_the_data_is_an_error, sgl_data_length_invalid,
           changed(read_of(host, {.first = 0, .count = 2}), [](command& asked) { asked.data.length = block; }))
IO_COMMAND(memory_that_wraps_around_is_an_error, sgl_offset_invalid,
           changed(read_of(host, {.first = 0, .count = 1}),
                   [](command& asked) { asked.data.address = ~std::uint64_t{0} - 100; }))
IO_COMMAND(data_for_the_host_do_not_fit_in_its_capsule, sgl_type_invalid,
           with_data(read_of(host, {.first = 0, .count = 1}), in_capsule(block)))
IO_COMMAND(a_descriptor_of_an_unknown_type_is_an_error, sgl_type_invalid,
           changed(read_of(host, {.first = 0, .count = 1}),
                   [](command& asked) { asked.data.type = static_cast<sgl_type>(0x20); }))
TEST_F(nvme_target_test, data_behind_the_capsule_are_an_error) {
  expect_io([](connected_host&) { return write_of({.first = 0, .count = 1}, in_capsule(block, 1)); },
            status::sgl_offset_invalid, std::array<std::byte, block>{});
}
IO_COMMAND(data_for_a_command_without_any_are_an_error, sgl_data_length_invalid,
           with_data(io_command(io_opcode::flush), host.memory.describe(block)))
IO_COMMAND(a_fused_command_is_an_error, invalid_field,
           changed(read_of(host, {.first = 0, .count = 1}), [](command& asked) { asked.flags = 0x41; }))
IO_COMMAND(a_command_without_sgls_is_an_error, invalid_field,
           changed(read_of(host, {.first = 0, .count = 1}), [](command& asked) { asked.flags = 0; }))
IO_COMMAND(an_unknown_io_command_with_data_is_the_same_error, invalid_opcode,
           with_data(io_command(static_cast<io_opcode>(0x7d)), host.memory.describe(4096)))
IO_COMMAND(an_unknown_io_command_is_an_error, invalid_opcode, io_command(static_cast<io_opcode>(0x7d)))
TEST_F(nvme_target_test, a_write_to_a_read_only_disk_is_refused) {
  add_disk();
  disk_->is_read_only = true;
  expect_io([](connected_host&) { return write_of({.first = 0, .count = 1}, in_capsule(block)); },
            status::namespace_write_protected, std::array<std::byte, block>{});
}
TEST_F_WITH_HOST(nvme_target_test, a_disk_without_space_is_told_by_the_right_status) {
  const std::array<std::byte, block> data{};
  command writing = write_of({.first = 0, .count = 1}, in_capsule(block));
  disk_->failure = ENOSPC;
  EXPECT_EQ(co_await host.io[0].status_of(writing, data), status::capacity_exceeded);
  EXPECT_NE(log_.find("Write of blocks 0 to 0 of namespace 1"), std::string::npos) << log_;
  EXPECT_NE(log_.find("No space left on device"), std::string::npos) << log_;
  disk_->failure = EROFS;
  EXPECT_EQ(co_await host.io[0].status_of(writing, data), status::namespace_write_protected);
  disk_->failure = EIO;
  EXPECT_EQ(co_await host.io[0].status_of(writing, data), status::write_fault);
  command reading = read_of(host, {.first = 0, .count = 1});
  EXPECT_EQ(co_await host.io[0].status_of(reading), status::unrecovered_read_error);
  disk_->failure = 0;
}

TEST_F_WITH_HOST(nvme_target_test, a_command_whose_id_is_taken_is_told_so_and_the_first_one_goes_on) {
  raw_queue& queue = host.io[0];
  disk_->gate.reset();
  command reading = read_of(host, {.first = 0, .count = 1});
  reading.id = 77;
  co_await queue.send(reading);
  co_await queue.send(reading);
  const answer refused = co_await queue.hear();
  EXPECT_EQ(refused.said.id, 77);
  EXPECT_EQ(refused.said.status, status::command_id_conflict);
  disk_->gate.set();
  const answer done = co_await queue.hear();
  EXPECT_EQ(done.said.id, 77);
  EXPECT_EQ(done.said.status, status::success);
  co_await queue.send(reading);  // the id is free again
  EXPECT_EQ((co_await queue.hear()).said.status, status::success);
}

TEST_F_LOSES_QUEUE(nvme_target_test, more_commands_than_the_queue_has_entries_end_it) {
  disk_->gate.reset();
  command reading = read_of(host, {.first = 0, .count = 1});
  for (std::uint16_t i = 0; i <= queue.entries; ++i) {
    reading.id = i;
    co_await queue.send(reading);
  }
  co_await queue.hear_end();
  disk_->gate.set();
}
TEST_F_LOSES_QUEUE(nvme_target_test, a_capsule_that_is_cut_short_ends_the_queue) {
  const std::array<std::byte, 63> capsule{};
  co_await queue.link.send_bytes(capsule);
}
TEST_F_LOSES_QUEUE(nvme_target_test, a_capsule_that_is_too_large_ends_the_queue) {
  const std::vector<std::byte> capsule(64 + 16384 + 1);
  co_await queue.link.send_bytes(capsule);
}
TEST_F_LOSES_QUEUE(nvme_target_test, a_key_that_opens_nothing_ends_the_queue) {
  command reading = read_of(host, {.first = 0, .count = 1});
  reading.data.key ^= 0x5a5a5a;
  co_await queue.send(reading);
}
TEST_F_LOSES_QUEUE(nvme_target_test, a_key_that_cannot_be_revoked_ends_the_queue) {
  command reading = read_of(host, {.first = 0, .count = 1});
  reading.data.type = sgl_type::host_memory_invalidate;  // of a region, which is open to others as well
  co_await queue.send(reading);
}

// ---- bounds, threads, ends ----

TEST_F(nvme_target_test, commands_wait_for_buffers_and_none_is_lost) {
  // Room for few of the buffers that so many commands want at a time.
  const net::device_options small{.pool = {.max_bytes = std::size_t{8} << 20}};
  device_ = net::device::open("iwarp", small);
  options_.most.max_transfer_shift = 6;
  const auto asking = [&](std::string address) -> task<> {
    auto elsewhere = net::device::open("iwarp");
    auto host = co_await connect_host(elsewhere, address);
    co_await add_queue(host, elsewhere, address, 1, 64);
    raw_queue& queue = host.io[0];
    constexpr std::uint32_t blocks_each = 512;
    const auto data = pattern(blocks_each * block, 9);
    std::ranges::copy(data, host.memory.bytes().data());
    for (std::uint16_t id = 0; id < 60; ++id) {
      command asked = blocks_command(id % 2 == 0 ? io_opcode::write : io_opcode::read,
                                     {.first = blocks_each * (id % 8U), .count = blocks_each});
      asked.data = host.memory.describe(data.size(), id % 2 == 0 ? 0 : data.size());
      asked.id = id;
      co_await queue.send(asked);
    }
    std::vector<bool> answered(60);
    for (int i = 0; i < 60; ++i) {
      const answer heard = co_await queue.hear();
      EXPECT_EQ(heard.said.status, status::success);
      EXPECT_FALSE(answered.at(heard.said.id));
      answered.at(heard.said.id) = true;
    }
  };
  options_.most.in_capsule_bytes = 0;
  with_target(asking);
}

TEST_F_WITH_TARGET(nvme_target_test, queues_are_served_side_by_side,
                   served_.add(std::make_unique<memory_disk>(disk_bytes))) {
  auto host = co_await connect_host(device_, address);
  for (std::uint16_t number = 1; number <= 4; ++number) co_await add_queue(host, device_, address, number);
  for (unsigned round = 0; round < 50; ++round) {
    for (std::size_t i = 0; i < 4; ++i) {  // a share of the disk and of the memory for each
      const std::size_t share = i * 64 * block;
      const auto data = pattern(16 * block, round + static_cast<unsigned>(i));
      std::ranges::copy(data, host.memory.bytes().subspan(share).data());
      command writing = write_of({.first = 64 * i, .count = 16}, host.memory.describe(data.size(), share));
      writing.id = 1;
      co_await host.io[i].send(writing);
    }
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_EQ((co_await host.io[i].hear()).said.status, status::success);
      command reading =
          read_into({.first = 64 * i, .count = 16}, host.memory.describe(16 * block, i * 64 * block + 32 * block));
      reading.id = 2;
      co_await host.io[i].send(reading);
    }
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_EQ((co_await host.io[i].hear()).said.status, status::success);
      const auto got = host.memory.bytes().subspan(i * 64 * block + 32 * block, 16 * block);
      EXPECT_TRUE(std::ranges::equal(got, pattern(16 * block, round + static_cast<unsigned>(i))));
    }
  }
  host.admin.link.abort();
  for (raw_queue& each : host.io) co_await each.hear_end();
}

TEST_F(nvme_target_test, a_drain_answers_what_is_under_way_and_takes_nothing_more) {
  with_listener([&](std::string address, net::listener& listener) -> task<> {
    auto host = co_await host_with_queue(address);
    disk_->gate.reset();
    command reading = read_of(host, {.first = 0, .count = 1});
    reading.id = 9;
    co_await host.io[0].send(reading);
    while (disk_->waiting == 0) co_await yield();
    listener.close();
    target_->drain();
    reading.id = 10;
    co_await yield();
    co_await host.io[0].send(reading);
    disk_->gate.set();
    const answer done = co_await host.io[0].hear();
    EXPECT_EQ(done.said.id, 9);
    EXPECT_EQ(done.said.status, status::success);
    co_await host.io[0].hear_end();
    co_await host.admin.hear_end();
  });
  EXPECT_EQ(counted_.reads, 1U);
}

TEST_F(nvme_target_test, a_target_whose_pool_is_too_small_says_so_at_once) {
  add_disk();
  options_.most.queue_entries = 1024;
  options_.most.in_capsule_bytes = std::uint32_t{1} << 20;
  EXPECT_THROW(target(device_, served_, options_), std::invalid_argument);
}

// ---- disks ----

TEST_F(nvme_target_test, a_few_lines_make_a_disk) {
  constexpr std::uint64_t terabyte = std::uint64_t{1} << 40;
  served_.add(std::make_unique<sparse_disk>(terabyte), 4096);
  with_host([&](connected_host& host) -> task<> {
    const auto data = pattern(4096, 5);
    std::ranges::copy(data, host.memory.bytes().data());
    command writing = write_of({.first = terabyte / 4096 - 1, .count = 1}, host.memory.describe(4096));
    EXPECT_EQ(co_await host.io[0].status_of(writing), status::success);
    command reading = read_into({.first = terabyte / 4096 - 2, .count = 2}, host.memory.describe(8192, 8192));
    EXPECT_EQ(co_await host.io[0].status_of(reading), status::success);
    EXPECT_TRUE(std::ranges::equal(host.memory.bytes().subspan(8192 + 4096, 4096), data));
  });
}

class nvme_file_disk_test : public testing::Test {
 protected:
  std::string make_file(std::uint64_t bytes) {
    const std::string path = folder_.path() + "/disk.img";
    EXPECT_TRUE(std::ofstream(path));
    std::filesystem::resize_file(path, bytes);
    return path;
  }
  template <class Body>
  void with_disk(bool read_only, const Body& body) {
    const std::string path = make_file(1 << 20);
    const auto all = [&]() -> task<> {
      auto made = co_await file_disk::open(path, read_only);
      co_await body(*made, path);
    };
    executor loop;
    loop.run(with_timeout(patience, all()));
  }
  weft::test::temporary_directory folder_;
};

#define TEST_F_WITH_DISK(fixture, name, read_only)                                      \
  TEST_F_SCRIPT(fixture, name, (disk & made, [[maybe_unused]] const std::string& path), \
                with_disk(read_only, WEFT_SCRIPT))

TEST_F_WITH_DISK(nvme_file_disk_test, bytes_zeroes_and_holes_are_where_they_were_put, false) {
  EXPECT_TRUE(made.has_volatile_cache());
  const auto data = pattern(65536, 4);
  co_await made.write(4096, data);
  co_await made.zero(8192, 4096);
  co_await made.deallocate(16384, 4096);
  co_await made.flush();
  std::vector<std::byte> got(65536);
  co_await made.read(4096, got);
  EXPECT_TRUE(std::ranges::equal(std::span(got).first(4096), std::span(data).first(4096)));
  const auto zeroes = std::span(got).subspan(4096, 4096);
  EXPECT_TRUE(std::ranges::all_of(zeroes, [](std::byte each) { return each == std::byte{0}; }));
  EXPECT_TRUE(std::ranges::equal(std::span(got).subspan(16384), std::span(data).subspan(16384)));
}
TEST_F_WITH_DISK(nvme_file_disk_test, a_file_that_grows_is_seen_when_asked, false) {
  EXPECT_FALSE(co_await made.look_again());
  EXPECT_EQ(::truncate(path.c_str(), 2 << 20), 0);
  EXPECT_EQ(made.size(), 1U << 20);
  EXPECT_TRUE(co_await made.look_again());
  EXPECT_EQ(made.size(), 2U << 20);
}
TEST_F_WITH_DISK(nvme_file_disk_test, a_file_that_has_become_shorter_is_an_error_and_no_zeroes, true) {
  EXPECT_EQ(::truncate(path.c_str(), 512), 0);
  std::vector<std::byte> got(4096);
  EXPECT_EQ(co_await weft::test::code_of(made.read(0, got)), std::errc::io_error);
}

TEST(nvme_subsystem, a_disk_that_does_not_fit_its_blocks_is_refused_in_words) {
  subsystem served(disk_nqn);
  const auto words_of_adding = [&](std::uint64_t bytes, std::uint32_t block_bytes) {
    return weft::test::words_thrown_by<std::invalid_argument>(
        [&] { served.add(std::make_unique<memory_disk>(bytes), block_bytes); });
  };
  EXPECT_EQ(words_of_adding(4608, 4096),
            "4608 bytes of memory has 4608 bytes, which is not a multiple of the block size 4096");
  EXPECT_EQ(words_of_adding(4096, 1000), "a block of 1000 bytes: it has 512, 1024 and so on, up to 65536");
  EXPECT_EQ(words_of_adding(4096, 4096), "");
  for (std::uint32_t i = 2; i <= most_listed; ++i) served.add(std::make_unique<memory_disk>(4096), 4096);
  EXPECT_EQ(words_of_adding(4096, 4096), "more than 1024 disks");
  EXPECT_THROW(subsystem("disk"), std::invalid_argument);
  EXPECT_THROW(subsystem(std::string(discovery_nqn)), std::invalid_argument);
}

TEST(nvme_sizes, are_read_as_they_are_written) {
  EXPECT_EQ(parse_size("4096"), 4096U);
  EXPECT_EQ(parse_size("64M"), std::uint64_t{64} << 20);
  EXPECT_EQ(parse_size("2GiB"), std::uint64_t{2} << 30);
  EXPECT_EQ(format_size(std::uint64_t{64} << 20), "64 MiB");
  EXPECT_EQ(format_size(1000), "1000 bytes");
  for (const char* const wrong : {"", "M", "64X", "64MB", "-1", "99999999999999999999", "18446744073709551615K"})
    EXPECT_THROW(static_cast<void>(parse_size(wrong)), std::invalid_argument) << wrong;
}

}  // namespace
}  // namespace nvme::test
