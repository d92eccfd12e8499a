// SPDX-License-Identifier: Apache-2.0
// What the conformance tests share: two peers, on every transport.
#pragma once

#include <weft/net/link/transport.hpp>
#include <weft/weft.hpp>

#include <iosfwd>
#include <type_traits>

#include "kit/attempt.hpp"
#include "kit/buffers.hpp"
#include "kit/clock.hpp"
#include "kit/descriptors.hpp"
#include "kit/other_thread.hpp"
#include "runtime/support.hpp"

namespace weft::test {

using namespace std::chrono_literals;

/// How to open and set up what is under test.
struct transport_kind {
  std::string name;
  std::string device;
  std::string any_address;     ///< to listen on, at a port that the system chooses
  net::iwarp_options iwarp{};  ///< where it is iWARP in user space
  /// Makes the transport, if net::device::open() does not know it by name: docs/transports.md.
  std::unique_ptr<net::transport> (*make)() = nullptr;
  /// Executors of the kernel and time that it lives in, if these are not this machine's: called for each.
  executor_options (*place)() = nullptr;

  // What a test cannot ask the device or a connection for. The usual values are those of a good RoCE device.

  /// Sockets of TCP carry it: it knows the loopback and its names, and its system calls can be counted and made to
  /// fail.
  bool over_tcp = false;
  /// A network can be cut between its ends.
  bool over_a_network = true;
  /// Its peer hears of the end of a refused write's connection, but the write itself may have succeeded before.
  bool writes_precede_refusals = false;
  /// The owner of a key that was just revoked is told so when the peer uses it, and not of a peer that broke the rules.
  bool tells_of_revoked_keys = false;
  /// A peer that uses a key that was just revoked loses that access alone.
  bool forgives_late_accesses = false;
  /// Who has lost a connection for a refused access may hear of its end before the refusal.
  bool ends_overtake_refusals = false;
  /// A buffer that was lent is back as soon as its owner lets go; else a device, or a worker, has to revoke the key.
  bool revokes_at_once = false;
  /// Private data arrives as long as it was sent. Connection managers of devices pad it.
  bool keeps_length_of_private_data = false;
  /// Registered memory stays there when its file goes.
  bool pins_pages = true;
  /// A connection is set up within a few turns, so that each of them can be tried.
  bool sets_up_quickly = false;
  /// What was posted is under way for as long as the other end's executor has no turn.
  bool answers_in_turns = false;
  /// Its links come back, and further ones come, for as long as somebody listens.
  bool joins_later = false;
  /// A key of what is exposed to one peer opens it to any other that is told the key; nobody can guess it.
  bool keys_can_be_passed_on = false;
  /// Atomic operations have no right of their own: reading and writing together are theirs.
  bool writing_allows_atomics = false;
  std::uint16_t deepest_queue = 16000;
};
/// A device of that kind.
[[nodiscard]] net::device open_device_of(const transport_kind& kind, const net::device_options& options = {});
/// Those of this build, on the loopback; or what the user has chosen.
[[nodiscard]] std::vector<transport_kind> every_transport();
/// For weft-conformance: one device and one address of it, instead of every transport. Before InitGoogleTest().
void choose_transport(std::string_view device, std::string_view address);
/// For weft-conformance: the library of a CUDA driver with a GPU, in place of the one that stands in for it.
void choose_cuda(std::string library);
/// Empty: none was chosen.
[[nodiscard]] const std::string& chosen_cuda();
/// The same for a transport of any making.
void choose(transport_kind kind);
void PrintTo(const transport_kind& kind, std::ostream* out);
[[nodiscard]] std::string name_of(const testing::TestParamInfo<transport_kind>& info);

/// Instantiates the tests of a fixture for every transport.
#define WEFT_ON_EVERY_TRANSPORT(fixture) \
  INSTANTIATE_TEST_SUITE_P(transports, fixture, testing::ValuesIn(every_transport()), name_of)

/// TEST_P whose body is a coroutine with both ends of a connection, `client` and `server`, and a scope, `tasks`. What
/// follows the name are the options of the client and of the server: peers::options().
#define TEST_P_BETWEEN(suite, name, ...) \
  TEST_P_SCRIPT(suite, name, WEFT_ENDS_AND_TASKS, between_busy_peers(WEFT_SCRIPT __VA_OPT__(, ) __VA_ARGS__))

/// The same, skipped for that reason unless it is possible.
#define TEST_P_WHERE(suite, name, possible, why_not, ...)                                   \
  TEST_P_SCRIPT(suite, name, WEFT_ENDS_AND_TASKS, if (!(possible)) GTEST_SKIP() << why_not; \
                between_busy_peers(WEFT_SCRIPT __VA_OPT__(, ) __VA_ARGS__))
/// TEST_P_TASK, likewise.
#define TEST_P_TASK_WHERE(suite, name, possible, why_not)                                                        \
  TEST_P_SCRIPT(suite, name, ([[maybe_unused]] ::weft::scope & tasks), if (!(possible)) GTEST_SKIP() << why_not; \
                run(::weft::test::with_tasks(WEFT_SCRIPT)))

/// Skipped where peers cannot be let into buffers, and where no region is open to all peers.
#define TEST_P_WINDOWS(suite, name, ...) TEST_P_WHERE(suite, name, has_windows(), no_windows __VA_OPT__(, ) __VA_ARGS__)
#define TEST_P_WINDOWS_TASK(suite, name) TEST_P_TASK_WHERE(suite, name, has_windows(), no_windows)
#define TEST_P_REGIONS(suite, name, ...) \
  TEST_P_WHERE(suite, name, opens_regions(), no_open_regions __VA_OPT__(, ) __VA_ARGS__)

/// TEST_P_TASK with a device of such a pool.
#define TEST_P_ON_DEVICE(suite, name, pool_options)                                               \
  TEST_P_SCRIPT(suite, name, ([[maybe_unused]] ::weft::scope & tasks), open_device(pool_options); \
                run(::weft::test::with_tasks(WEFT_SCRIPT)))

#define WEFT_ENDS_AND_TASKS                                                                              \
  ([[maybe_unused]] ::weft::net::connection & client, [[maybe_unused]] ::weft::net::connection & server, \
   [[maybe_unused]] ::weft::scope & tasks)

/// Longer than any test that does not hang.
inline constexpr auto forever = 100s;
// Takes many turns on its way, and still fits into one message of Soft-RoCE with what goes along.
inline constexpr std::size_t long_transfer = (std::size_t{8} << 20) - 64;
/// A pool that tests use up.
inline const mr::pool_options tight{.max_bytes = std::size_t{4} << 20, .arena_bytes = std::size_t{1} << 20};
inline constexpr mr::usage open_wide = mr::usage::write_dst | mr::usage::read_src;

/// Two ends of a new connection.
struct connected {
  connected(net::connection a, net::connection b) noexcept : client(std::move(a)), server(std::move(b)) {}
  std::optional<net::listener> listener{};  ///< transport_kind::joins_later
  net::connection client;
  net::connection server;
};

/// Its code once it has ended; no code if it has succeeded.
[[nodiscard]] inline task<std::error_code> code_of(attempt& what) {
  co_await what.end();
  co_return what.code();
}
[[nodiscard]] inline task<std::error_code> code_once_stopped(attempt& what) {
  what.stop();
  return code_of(what);
}
/// For EXPECT_TRUE: whether it succeeds.
[[nodiscard]] inline task<testing::AssertionResult> succeeds(attempt& what) {
  co_await what.end();
  if (what.succeeded()) co_return testing::AssertionSuccess();
  co_return testing::AssertionFailure() << "it has failed with " << what.words();
}

/// For EXPECT_TRUE: the operation has failed with this code before it was posted.
template <class Code>
testing::AssertionResult refused_with(const std::optional<error>& failure, Code code) {
  if (failure && failure->posted()) return testing::AssertionFailure() << "it was posted: " << failure->what();
  return failed_with(failure, code);
}

/// Sends back what comes, until the other end has closed.
[[nodiscard]] inline task<> echo(net::connection& peer) {
  while (auto message = co_await peer.recv()) co_await peer.send(std::move(message->payload));
}

/// The next peer of a listener.
[[nodiscard]] task<net::connection> accept_one(net::listener& from, net::connection_options options);

/// One executor and one device of the transport under test; when a test is over, nothing of it may be left.
class peers : public testing::TestWithParam<transport_kind> {
 protected:
  peers();
  ~peers() override;
  void TearDown() override;

  [[nodiscard]] net::device& device() noexcept { return *device_; }
  [[nodiscard]] mr::pool& pool() noexcept { return device_->pool(); }
  /// What this end says of an access by a key that it has just revoked.
  [[nodiscard]] static errc late_access() {
    return GetParam().tells_of_revoked_keys ? errc::connection_failed : errc::protocol_error;
  }
  /// After an access of the client's by a key that the server has revoked: both ends learn of it, or go on.
  [[nodiscard]] task<> expect_late(net::connection& client, net::connection& server);
  /// Whether the device is the kernel's rdma_rxe, which has defects that tests know.
  [[nodiscard]] bool is_soft_roce() const;
  /// Whether it is an RDMA device whose packets are iWARP's.
  [[nodiscard]] bool is_rnic() const;
  /// Whether peers can be let into buffers.
  [[nodiscard]] bool has_windows();
  static constexpr const char* no_windows = "this device has no memory windows";
  /// Whether a window is open to the peer of its connection alone.
  [[nodiscard]] bool binds_keys() { return has_windows() && !GetParam().keys_can_be_passed_on; }
  static constexpr const char* no_bound_keys = "this device has no memory windows, or does not look at who uses a key";
  /// Whether a region can be open to every peer that has its key.
  [[nodiscard]] bool opens_regions();
  static constexpr const char* no_open_regions = "the regions of this device are open to no peer";
  /// Waits until just so many bytes of the pool are in use for sending: buffers that were lent return when their keys
  /// have been revoked. Where that is at once, this does not wait.
  [[nodiscard]] task<> until_lent_buffers_return(std::size_t in_use);
  /// A buffer of zeros of `at`'s, for its peer to use.
  [[nodiscard]] task<net::exposure> expose_zeros(net::connection& at, std::size_t bytes, mr::usage uses = open_wide,
                                                 net::expose_options how = {});
  /// Returns once what is written is in its place.
  [[nodiscard]] static task<> write_and_flush(net::connection& by, mr::buffer& what, mr::remote_slice where);
  /// The connection goes on: what one end sends arrives at the other.
  [[nodiscard]] task<> expect_delivery(net::connection& from, net::connection& to);
  /// Memory of the program's, all zeros.
  [[nodiscard]] task<mr::region> register_zeros(std::size_t bytes, mr::registration_options how);
  /// Empty where the transport has none.
  [[nodiscard]] task<std::optional<net::shared_receives>> share_receives(net::shared_receive_options how);
  /// Instead of the usual one.
  void open_device(const mr::pool_options& options);
  void open_executor(const executor_options& options);
  [[nodiscard]] executor& home() noexcept { return *home_; }
  /// Of a connection, `chosen` ones and the defaults, whatever is under test.
  [[nodiscard]] static net::connection_options options(net::connection_options chosen = {});

  /// Connects to that listener.
  [[nodiscard]] task<connected> meet(net::listener& at, net::connection_options client = options(),
                                     net::connection_options server = options());
  /// Connects to a listener of its own.
  [[nodiscard]] task<connected> connect_pair(net::connection_options client = options(),
                                             net::connection_options server = options());

  void run(const test_script<>& script);

  /// Runs `script(client, server)` with both ends of a connection, and closes them.
  void between_peers(const test_script<net::connection&, net::connection&>& script,
                     net::connection_options client = options(), net::connection_options server = options());

  /// The same with a scope for attempts.
  void between_busy_peers(const test_script<net::connection&, net::connection&, scope&>& script,
                          net::connection_options client = options(), net::connection_options server = options());

  /// Runs `serve(connection)` on a thread and an executor of its own, and `ask(connection)` here.
  void on_two_threads(const test_script<net::connection&>& serve, const test_script<net::connection&>& ask,
                      net::connection_options client = options(), net::connection_options server = options(),
                      const executor_options& there = {});

  /// Calls `body()` on a thread without an executor, while this one goes on.
  template <class Body>
  [[nodiscard]] static task<> elsewhere(Body body) {
    const auto call = [&] { std::thread(std::ref(body)).join(); };
    co_await offload(call);
  }
  /// The same of `root()`, a coroutine, on an executor of its own.
  template <class Root>
  [[nodiscard]] static task<> on_another_executor(Root root) {
    const auto call = [&] { executor().run(root()); };
    co_await elsewhere(call);
  }

  /// No buffer in use, none waited for; no descriptor open that was not so before. Once the executor is idle.
  void expect_nothing_left();

 private:
  std::size_t descriptors_before_ = 0;
  std::optional<net::device> device_;
  std::optional<executor> home_;
};

}  // namespace weft::test
