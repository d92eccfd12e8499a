// SPDX-License-Identifier: Apache-2.0
// What the handles of net say when they are used although nothing is behind them: words, never a crash without any.
#include <weft/net/exposure.hpp>

#include "net/support.hpp"

namespace weft::test {
namespace {

// As as_result() finds it: the call itself does not throw.
template <class Operation>
task<std::error_code> outcome_of(Operation operation) {
  const auto outcome = co_await as_result(std::move(operation));
  co_return outcome ? std::error_code() : outcome.error().code();
}

class misuse : public net_test {};

// NOLINTBEGIN(bugprone-use-after-move): what is tested

TEST_F(misuse, every_operation_of_a_connection_that_was_moved_from_is_refused_with_words) {
  trace_file trace("/dev/null");  // which names each of them, and the peer that it has not
  const auto script = [&]() -> task<> {
    auto both = co_await connected(device(), device());
    net::connection& gone = both.client;
    net::connection here = std::move(gone);
    auto memory = co_await pool().allocate(64);
    auto exposed = co_await here.expose(co_await pool().allocate(64), mr::usage::write_dst | mr::usage::read_src);
    const mr::remote_slice there = exposed.remote().slice(0, 64);
    const mr::shared_buffer shared(co_await pool().allocate(64));
    std::array<mr::slice, 1> list{memory.slice()};
    const std::span<net::transfer> nothing;
    std::vector<std::error_code> codes;
    codes.push_back(co_await outcome_of(gone.send(memory)));
    codes.push_back(co_await outcome_of(gone.send(mr::buffer())));
    codes.push_back(co_await outcome_of(gone.send(shared)));
    codes.push_back(co_await outcome_of(gone.send(memory.slice())));
    codes.push_back(co_await outcome_of(gone.send(list)));
    codes.push_back(co_await outcome_of(gone.recv()));
    codes.push_back(co_await outcome_of(gone.recv_or_throw()));
    codes.push_back(co_await outcome_of(gone.write(memory, there)));
    codes.push_back(co_await outcome_of(gone.write(mr::buffer(), there)));
    codes.push_back(co_await outcome_of(gone.write(shared, there)));
    codes.push_back(co_await outcome_of(gone.write(memory.slice(), there)));
    codes.push_back(co_await outcome_of(gone.write(list, there)));
    codes.push_back(co_await outcome_of(gone.read(memory, there)));
    codes.push_back(co_await outcome_of(gone.read(memory.slice(), there)));
    codes.push_back(co_await outcome_of(gone.read(list, there)));
    codes.push_back(co_await outcome_of(gone.flush(there)));
    codes.push_back(co_await outcome_of(gone.fetch_add(there.slice(0, 8), 1)));
    codes.push_back(co_await outcome_of(gone.compare_swap(there.slice(0, 8), 1, 2)));
    codes.push_back(co_await outcome_of(gone.batch(nothing)));
    const std::array<net::list_part, 1> parts{net::list_part{memory.slice(), there}};
    const net::block_list blocks{.local = memory.slice(), .remote = there, .block_bytes = 8};
    codes.push_back(co_await outcome_of(gone.write(parts)));
    codes.push_back(co_await outcome_of(gone.write(blocks)));
    codes.push_back(co_await outcome_of(gone.read(parts)));
    codes.push_back(co_await outcome_of(gone.read(blocks)));
    codes.push_back(co_await outcome_of(gone.expose(mr::buffer(), mr::usage::write_dst)));
    codes.push_back(co_await outcome_of(gone.expose(memory.slice(), mr::usage::write_dst)));
    codes.push_back(co_await outcome_of(gone.close()));
    for (std::size_t i = 0; i < codes.size(); ++i) EXPECT_EQ(codes[i], errc::closed) << "operation " << i;
    const std::vector<std::function<void()>> calls = {
        [&] { gone.confirm_retired(1); },
        [&] { static_cast<void>(gone.capabilities()); },
        [&] { static_cast<void>(gone.statistics()); },
    };
    for (std::size_t i = 0; i < calls.size(); ++i) EXPECT_EQ(code_thrown_by(calls[i]), errc::closed) << "call " << i;
    gone.abort();  // nothing to end
    EXPECT_EQ(gone.peer(), "");
    EXPECT_TRUE(gone.peer_private_data().empty());
    EXPECT_NE((co_await words_of(gone.recv())).find("a connection that was moved from"), std::string::npos);
    gone = std::move(here);  // it can be used anew
    EXPECT_NE(gone.peer(), "");
  };
  run(script);
}

TEST_F_TASK(misuse, an_operation_of_a_connection_is_awaited_once) {
  auto both = co_await connected(device(), device());
  auto sending = both.client.send(co_await pool().allocate(64));
  co_await sending;
  std::optional<error> failure;
  try {
    co_await sending;
  } catch (const error& why) {
    failure = why;
  }
  EXPECT_TRUE(contains(failure, "awaited before"));
  auto another = both.client.send(co_await pool().allocate(64));
  EXPECT_EQ(co_await code_of(std::move(another)), std::error_code());
  EXPECT_EQ(co_await code_of(std::move(another)), errc::invalid_argument) << "moved from";
  co_await both.client.send(co_await pool().allocate(1));
  std::vector<std::size_t> sizes;
  for (int i = 0; i < 3; ++i) sizes.push_back((co_await both.server.recv_or_throw()).size());
  EXPECT_EQ(sizes, (std::vector<std::size_t>{64, 64, 1})) << "the connection is none the worse";
}

TEST_F_TASK(misuse, a_stream_over_a_connection_that_was_moved_from_is_refused_with_words) {
  auto both = co_await connected(device(), device());
  const net::connection kept = std::move(both.client);
  const auto failure = failure_thrown_by([&] { const net::stream over(std::move(both.client)); });
  EXPECT_TRUE(failed_with(failure, errc::closed, "a connection that was moved from"));
}

TEST_F_TASK(misuse, listeners_that_were_moved_from_say_so) {
  auto first = co_await listen();
  const net::listener taken = std::move(first);
  EXPECT_EQ(co_await outcome_of(first.next()), errc::closed);
  EXPECT_EQ(co_await outcome_of(first.accept()), errc::closed);
  EXPECT_EQ(first.address(), "");
  first.close();
  for (const char* const address : {"127.0.0.1:0", "tcp://127.0.0.1:0"}) {
    auto streams = co_await net::stream_listener::listen(device(), address);
    const net::stream_listener kept = std::move(streams);
    EXPECT_EQ(co_await outcome_of(streams.next()), errc::closed) << address;
    EXPECT_EQ(co_await outcome_of(streams.accept()), errc::closed) << address;
    streams.close();
  }
}

TEST_F_TASK(misuse, every_operation_of_a_stream_that_is_not_connected_is_refused_when_it_is_awaited) {
  net::stream none;
  std::array<std::byte, 8> room{};
  const std::span<std::byte> bytes(room);
  std::vector<std::error_code> codes;
  codes.push_back(co_await outcome_of(none.read_some(bytes)));
  codes.push_back(co_await outcome_of(none.read_bytes()));
  codes.push_back(co_await outcome_of(none.read(bytes)));
  codes.push_back(co_await outcome_of(none.write_some(std::span<const std::byte>(bytes))));
  codes.push_back(co_await outcome_of(none.write_some(mr::slice())));
  codes.push_back(co_await outcome_of(none.write(std::span<const std::byte>(bytes))));
  codes.push_back(co_await outcome_of(none.write(mr::buffer())));
  codes.push_back(co_await outcome_of(none.shutdown_send()));
  codes.push_back(co_await outcome_of(none.close()));
  for (std::size_t i = 0; i < codes.size(); ++i) EXPECT_EQ(codes[i], errc::closed) << "operation " << i;
  none.abort();
  none.cancel();
  EXPECT_EQ(none.peer(), "");
  EXPECT_FALSE(none.is_open());
}

TEST_F_TASK(misuse, exposures_and_windows_that_are_empty_have_no_key) {
  auto both = co_await connected(device(), device());
  EXPECT_EQ(code_thrown_by([] { static_cast<void>(net::exposure().remote()); }), errc::invalid_argument);
  auto exposed = co_await both.client.expose(co_await pool().allocate(64), mr::usage::write_dst);
  auto taken = std::move(exposed);
  EXPECT_EQ(code_thrown_by([&] { static_cast<void>(exposed.remote()); }), errc::invalid_argument);
  EXPECT_EQ(taken.remote().size(), 64U);
  exposed = std::move(taken);
  EXPECT_EQ(code_thrown_by([&] { static_cast<void>(taken.remote()); }), errc::invalid_argument);
  static_cast<void>(co_await exposed.revoke());
  std::vector<std::byte> bytes(64);
  auto region = co_await device().domain().register_memory(std::span(bytes), {.usage = mr::usage::bind_window});
  auto window = co_await both.client.expose(region.slice(), mr::usage::write_dst);
  auto moved = std::move(window);
  EXPECT_EQ(code_thrown_by([&] { static_cast<void>(window.remote()); }), errc::invalid_argument);
  co_await window.revoke();
  co_await moved.revoke();
  co_await region.release();
}

TEST_F_TASK(misuse, a_device_that_was_moved_from_says_so) {
  net::device first = net::device::open("iwarp");
  net::device second = std::move(first);
  EXPECT_EQ(first.name(), "");
  EXPECT_EQ(code_thrown_by([&] { static_cast<void>(first.pool()); }), errc::invalid_argument);
  EXPECT_EQ(code_thrown_by([&] { static_cast<void>(first.domain()); }), errc::invalid_argument);
  EXPECT_EQ(code_thrown_by([&] { static_cast<void>(first.statistics()); }), errc::invalid_argument);
  EXPECT_EQ(co_await code_of(first.connect("127.0.0.1:1")), errc::invalid_argument);
  EXPECT_EQ(co_await code_of(first.listen("127.0.0.1:0")), errc::invalid_argument);
  EXPECT_EQ(co_await code_of(first.share_receives()), errc::invalid_argument);
  std::array<std::byte, 8> bytes{};
  const std::span<std::byte> range(bytes);
  EXPECT_EQ(co_await outcome_of(first.register_memory(range, {})), errc::invalid_argument);
  EXPECT_EQ(co_await outcome_of(first.register_memory(std::vector<std::byte>(8), {})), errc::invalid_argument);
}

// NOLINTEND(bugprone-use-after-move)

TEST_F_TASK(misuse, a_device_that_cannot_register_says_so_when_it_is_awaited) {
  const std::span<const std::span<std::byte>> no_ranges;
  EXPECT_NE(co_await outcome_of(device().register_memory(no_ranges, {})), std::error_code());
  EXPECT_NE(co_await outcome_of(device().register_memory(std::span<std::byte>(), {})), std::error_code());
  EXPECT_EQ(co_await outcome_of(device().allocate(std::size_t{1} << 60)), errc::invalid_argument);
  std::vector<std::byte> bytes(64);
  const auto region = co_await device().register_memory(std::move(bytes), {.usage = mr::usage::read_src});
  EXPECT_EQ(region.size(), 64U);
  const auto buffer = device().try_allocate(64, mr::budget::receive);
  EXPECT_TRUE(!buffer || buffer->size() == 64U);
}

}  // namespace
}  // namespace weft::test
