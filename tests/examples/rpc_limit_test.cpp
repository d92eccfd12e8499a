// SPDX-License-Identifier: Apache-2.0
// What the example rpc says where little memory may be locked, with a simulated RDMA device.
#include <weft/net/verbs/transport.hpp>
#include <weft/weft.hpp>

#include <gtest/gtest.h>

#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <string_view>

#include "rdma.hpp"
#include <rpc/client.hpp>

namespace rpc {
namespace {

// In a process of its own, without the right to lock as much as one likes, which root has.
TEST(rpc_limits, room_that_the_locked_memory_limit_forbids_is_refused_with_that_reason) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
    __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {};
    ::syscall(SYS_capset, &header, none);
    const rlimit limit{.rlim_cur = 8 << 20, .rlim_max = 8 << 20};
    ::setrlimit(RLIMIT_MEMLOCK, &limit);
    weft::sim::world place(1, {});
    weft::sim::rdma below(place, weft::sim::rdma_traits{});
    weft::net::device_options options;
    options.pool.huge_pages = false;
    options.pool.system_calls = &place;
    auto device =
        weft::net::device::open(weft::net::verbs::open_transport(weft::sim::rdma::device_name, below, {}), options);
    weft::executor ex(place.options(false));
    client calls(device, "127.0.0.1:7471");
    std::string words = "nothing";
    try {
      static_cast<void>(ex.run(calls.fetch({.method = "fetch"}, 4 << 20)));
    } catch (const weft::error& why) {
      words = why.what();
    }
    std::fprintf(stderr, "%s\n", words.c_str());
    const bool right =
        words.find("are possible, because the locked-memory limit is 8388608 bytes (ulimit -l)") != std::string::npos;
    ::_exit(right ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace rpc
