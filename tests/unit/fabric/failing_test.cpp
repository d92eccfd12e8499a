// SPDX-License-Identifier: Apache-2.0
// Calls of libfabric that fail, each by itself.

#include <new>
#include <ostream>

#include "demanding_library.hpp"
#include "kit/buffers.hpp"
#include "peers.hpp"

namespace weft::test {
namespace {

struct failing_call {
  const char* name;
  unsigned times = 1;
};
void PrintTo(const failing_call& call, std::ostream* out) { *out << call.name; }
std::string name_of(const testing::TestParamInfo<failing_call>& test) { return test.param.name; }

class fabric_failing : public testing::TestWithParam<failing_call> {};

TEST_P(fabric_failing, call_of_a_set_up_is_an_error_in_words_and_the_next_attempt_succeeds) {
  shim_library library;
  net::device device = net::device::open(net::fabric::open_transport(provider, library));
  executor home;
  library.fail(GetParam().name, FI_EMFILE, GetParam().times);
  EXPECT_TRUE(home.run(with_timeout(patience, failure_of(between(device, exchange)))));
  EXPECT_TRUE(library.has_failed());
  home.run(with_timeout(patience, between(device, exchange)));
  EXPECT_EQ(library.broken_rules(), std::vector<std::string>());
}

INSTANTIATE_TEST_SUITE_P(calls, fabric_failing,
                         testing::Values(failing_call{"cq_open", 2}, failing_call{"av_open"}, failing_call{"endpoint"},
                                         failing_call{"ep_bind"}, failing_call{"enable"}, failing_call{"getname"},
                                         failing_call{"av_insert"}),
                         name_of);

// What cannot be waited for is looked at by a timer.
class fabric_without_descriptor : public testing::TestWithParam<failing_call> {};

TEST_P(fabric_without_descriptor, queues_are_read_all_the_same) {
  shim_library library;
  library.fail(GetParam().name, FI_ENOSYS);
  with_peers(library, exchange);
  EXPECT_TRUE(library.has_failed());
}

INSTANTIATE_TEST_SUITE_P(calls, fabric_without_descriptor,
                         testing::Values(failing_call{"cq_open"}, failing_call{"get_wait_fd"}, failing_call{"trywait"}),
                         name_of);

TEST(fabric_failing_open, is_an_error_that_names_the_provider) {
  for (const char* call : {"fabric", "domain"}) {
    shim_library library;
    library.fail(call, FI_ENODEV);
    const auto failure = failure_thrown_by([&] { return net::fabric::open_transport(provider, library); });
    EXPECT_TRUE(says(failure, provider)) << call;
    EXPECT_NE(net::fabric::open_transport(provider, library), nullptr);
  }
}

TEST(fabric_failing_open, is_an_error_where_libfabric_cannot_say_what_there_is) {
  shim_library library;
  library.fail("getinfo", FI_ENOSYS);
  EXPECT_THROW(static_cast<void>(net::fabric::open_transport(provider, library)), error);
  library.fail("dupinfo", FI_ENOMEM);
  EXPECT_THROW(static_cast<void>(net::fabric::open_transport(provider, library)), std::bad_alloc);
  EXPECT_NE(net::fabric::open_transport(provider, library), nullptr);
}

class fabric_failing_registration : public testing::TestWithParam<failing_call> {};

TEST_P(fabric_failing_registration, leaves_the_connection_alone_and_the_next_attempt_succeeds) {
  demanding_library library(FI_MR_ENDPOINT);
  with_peers(library, [&](net::connection& client, net::connection& server, mr::pool& pool) -> task<> {
    const std::size_t in_use = pool.statistics().send.in_use_bytes;
    const auto opening = [&]() -> task<> {
      auto memory = co_await pool.allocate(100);
      static_cast<void>(co_await server.expose(std::move(memory), mr::usage::read_src));
    };
    library.fail(GetParam().name, FI_ENOMEM);
    const auto failure = co_await failure_of(opening());
    EXPECT_TRUE(failed_with(failure, errc::no_memory));
    EXPECT_TRUE(library.has_failed());
    EXPECT_EQ(pool.statistics().send.in_use_bytes, in_use);
    EXPECT_FALSE(co_await failure_of(opening()));
    co_await exchange(client, server, pool);
  });
}

INSTANTIATE_TEST_SUITE_P(calls, fabric_failing_registration,
                         testing::Values(failing_call{"mr_regattr"}, failing_call{"mr_bind"},
                                         failing_call{"mr_enable"}),
                         name_of);

task<> move_something_every_way(net::connection& client, net::connection& server, mr::pool& pool) {
  auto room = co_await pool.allocate(sizeof(std::uint64_t));
  auto own = co_await filled_with(pool, sizeof(std::uint64_t), std::byte{3});
  constexpr auto uses = mr::usage::write_dst | mr::usage::read_src | mr::usage::atomic_dst;
  const auto open = co_await server.expose(std::move(room), uses);
  co_await exchange(client, server, pool);
  co_await client.write(own, open.remote());
  co_await client.read(own, open.remote());
  if (client.capabilities().atomics) {
    static_cast<void>(co_await client.fetch_add(open.remote(), 1));
    static_cast<void>(co_await client.compare_swap(open.remote(), 1, 2));
  }
}

class fabric_failing_request : public testing::TestWithParam<failing_call> {};

TEST_P(fabric_failing_request, ends_the_connection_without_a_loss_and_the_next_one_works) {
  shim_library library;
  net::device device = net::device::open(net::fabric::open_transport(provider, library));
  executor home;
  const auto script = [&](net::connection& client, net::connection& server, mr::pool& pool) -> task<> {
    library.fail(GetParam().name, FI_EIO);
    if (GetParam().name == std::string("cq_readerr")) {
      auto one = co_await pool.allocate(8);
      co_await client.write(one, mr::remote_slice(1, 0, 8, mr::usage::write_dst));
    }
    co_await move_something_every_way(client, server, pool);
  };
  // The peer may end the connection before this end looks at its error.
  for (int attempt = 0; attempt < 20 && !library.has_failed(); ++attempt)
    EXPECT_TRUE(home.run(with_timeout(patience, failure_of(between(device, script)))));
  EXPECT_TRUE(library.has_failed());
  home.run(with_timeout(patience, between(device, move_something_every_way)));
  EXPECT_EQ(device.pool().statistics().send.in_use_bytes, 0u);
  EXPECT_EQ(device.pool().statistics().receive.in_use_bytes, 0u);
}

INSTANTIATE_TEST_SUITE_P(calls, fabric_failing_request,
                         testing::Values(failing_call{"sendmsg"}, failing_call{"recvmsg"}, failing_call{"writemsg"},
                                         failing_call{"readmsg"}, failing_call{"fetch_atomicmsg"},
                                         failing_call{"compare_atomicmsg"}, failing_call{"cq_read"},
                                         failing_call{"cq_readerr"}),
                         name_of);

// With nothing else under way, so that nothing else wakes anybody.
class fabric_full : public testing::TestWithParam<failing_call> {};

TEST_P(fabric_full, provider_is_tried_again_until_it_has_room) {
  shim_library library;
  library.fail(GetParam().name, FI_EAGAIN, 300);
  with_peers(library, move_something_every_way);
  EXPECT_TRUE(library.has_failed());
}

INSTANTIATE_TEST_SUITE_P(calls, fabric_full,
                         testing::Values(failing_call{"sendmsg"}, failing_call{"recvmsg"}, failing_call{"writemsg"},
                                         failing_call{"readmsg"}, failing_call{"fetch_atomicmsg"},
                                         failing_call{"compare_atomicmsg"}),
                         name_of);

TEST(fabric_full_receives, are_handed_over_later_although_nothing_else_happens) {
  shim_library library;
  net::device device = net::device::open(net::fabric::open_transport(provider, library));
  library.fail("recvmsg", FI_EAGAIN, 100);
  const auto peer = [](std::uint16_t port) {
    net::device other = net::device::open(std::string("fabric:") + provider);
    const auto asking = [&]() -> task<> {
      net::connection client = co_await other.connect("127.0.0.1:" + std::to_string(port));
      co_await exchange(client, client, other.pool());
      co_await client.close();
    };
    executor home;
    home.run(with_timeout(patience, asking()));
  };
  with_thread(device, peer, [](net::connection& server, net::device&) -> task<> {
    auto message = co_await server.recv_or_throw();
    co_await server.send(std::move(message.payload));
    EXPECT_FALSE(co_await server.recv());
  });
  EXPECT_TRUE(library.has_failed());
}

}  // namespace
}  // namespace weft::test
