// SPDX-License-Identifier: Apache-2.0
// Registered memory and memory windows, on the Soft-RoCE device of the virtual machine (tests/vm).
#include <weft/net/link/transport.hpp>
#include <weft/net/verbs/device.hpp>
#include <weft/net/verbs/domain.hpp>
#include <weft/net/verbs/transport.hpp>

#include <linux/capability.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kit/buffers.hpp"
#include "kit/expect_failure.hpp"
#include "kit/tell.hpp"
#include "rxe.hpp"

namespace weft::net::verbs {
namespace {

class verbs_memory : public rxe_test {
 protected:
  static std::shared_ptr<verbs::domain> open_domain() {
    return std::make_shared<verbs::domain>(std::make_shared<verbs::device>(rdma_calls::libraries(), device_name));
  }
};

// root may lock as much memory as there is: this thread may not any more. A thread of its own, for the kernel serves an
// RDMA device's descriptor only to those who have the credentials with which it was opened.
class limited_memory : private test::immovable {
 public:
  explicit limited_memory(rlim_t bytes) {
    ::getrlimit(RLIMIT_MEMLOCK, &before_);
    const rlimit lower{.rlim_cur = bytes, .rlim_max = before_.rlim_max};
    ::setrlimit(RLIMIT_MEMLOCK, &lower);
    __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
    std::array<__user_cap_data_struct, _LINUX_CAPABILITY_U32S_3> rights{};
    ::syscall(SYS_capget, &header, rights.data());
    rights[CAP_TO_INDEX(CAP_IPC_LOCK)].effective &= ~CAP_TO_MASK(CAP_IPC_LOCK);
    ::syscall(SYS_capset, &header, rights.data());
  }
  ~limited_memory() { ::setrlimit(RLIMIT_MEMLOCK, &before_); }

 private:
  rlimit before_{};
};

TEST_F(verbs_memory, beyond_the_limit_on_locked_memory_is_refused_with_the_limit) {
  const auto limited = [] {
    const limited_memory limit(256 * 1024);
    const auto domain = open_domain();
    std::vector<std::byte> memory(1 << 20);
    const auto attempt = [&](std::size_t bytes) {
      return domain->register_now(std::span(memory).first(bytes), {.usage = mr::usage::recv});
    };
    const auto why = test::failure_thrown_by([&] { return attempt(memory.size()); });
    EXPECT_TRUE(test::failed_with(why, errc::no_memory,
                                  "the locked-memory limit is 262144 bytes (ulimit -l); raise it, or register less"));
    mr::registration made = attempt(1);
    domain->deregister_now(made);
  };
  std::jthread(limited).join();
}

TEST_F(verbs_memory, that_a_device_cannot_register_so_is_refused_by_the_name_of_the_option) {
  const auto domain = open_domain();
  alignas(4096) static std::array<std::byte, 4096> memory;
  const auto words = [&](const mr::registration_options& options) {
    return test::words_thrown_by([&] { return domain->register_now(memory, options); });
  };
  EXPECT_TRUE(test::contains(words({.usage = mr::usage::recv, .on_demand = true}), "on_demand"));
  EXPECT_TRUE(test::contains(words({.usage = mr::usage::recv, .dmabuf = 0}), "dmabuf"));
  mr::registration made = domain->register_now(memory, {.usage = mr::usage::recv, .relaxed_ordering = true});
  domain->deregister_now(made);
}

// What a program is made of, and files that are mapped to be read: the device has windows, and this is for none.
TEST_F(verbs_memory, that_may_only_be_read_is_registered_for_sending) {
  const auto domain = open_domain();
  ASSERT_TRUE(includes(domain->capabilities().usages, mr::usage::bind_window));
  constexpr std::size_t bytes = 8192;
  void* const mapped = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  const std::span<std::byte> memory(static_cast<std::byte*>(mapped), bytes);
  mr::registration made = domain->register_now(memory, {.usage = mr::usage::send | mr::usage::read_src});
  domain->deregister_now(made);
  ::munmap(mapped, bytes);
}

// rxe, as if it had windows of the first type only.
class first_type_libraries final : public rdma_calls {
 public:
  std::atomic<int> bound{0};
  std::atomic<bool> refuse{false};

  int query_device(ibv_context* context, ibv_device_attr* found) noexcept override {
    const int failure = rdma_calls::query_device(context, found);
    found->device_cap_flags &= ~unsigned{IBV_DEVICE_MEM_WINDOW_TYPE_2A | IBV_DEVICE_MEM_WINDOW_TYPE_2B};
    return failure;
  }
  int bind_mw(ibv_qp* pair, ibv_mw* window, ibv_mw_bind* wanted) noexcept override {
    ++bound;
    return refuse ? -ENOMEM : rdma_calls::bind_mw(pair, window, wanted);
  }
};

// A window is opened twice: what has been revoked lets nobody in.
TEST_F(verbs_memory, windows_of_type_1_serve_where_there_are_no_others) {
  first_type_libraries libraries;
  net::device home = net::device::open(open_transport(device_name, libraries, {.allow_shared_windows = true}));
  const auto serve = [&](connection& peer) -> task<> {
    EXPECT_FALSE(peer.capabilities().invalidate);
    auto memory = co_await test::zeroed(home.pool(), 64);
    auto first = co_await peer.expose(std::move(memory), open_wide);
    co_await test::tell(peer, home.pool(), first.remote());
    static_cast<void>(co_await peer.recv_or_throw());
    memory = co_await first.revoke();
    EXPECT_EQ(memory.bytes()[0], std::byte{1});
    std::fill(memory.bytes().begin(), memory.bytes().end(), std::byte{0});
    auto second = co_await peer.expose(std::move(memory), mr::usage::read_src);
    EXPECT_NE(second.remote().key(), first.remote().key());
    co_await test::tell(peer, home.pool(), second.remote());
    static_cast<void>(co_await as_result(peer.recv()));
    memory = co_await second.revoke();
    EXPECT_EQ(memory.bytes()[0], std::byte{0});
  };
  const auto ask = [&](connection& peer) -> task<> {
    auto memory = co_await test::filled_with(home.pool(), 64, std::byte{1});
    const auto first = co_await test::hear_region(peer);
    co_await peer.write(memory, first);
    co_await peer.flush(first);
    co_await peer.send(memory);
    const auto second = co_await test::hear_region(peer);
    co_await peer.read(memory, second);
    EXPECT_EQ(memory.bytes()[0], std::byte{0});
    std::fill(memory.bytes().begin(), memory.bytes().end(), std::byte{1});
    static_cast<void>(co_await as_result(peer.write(memory, first)));
    static_cast<void>(co_await as_result(peer.flush(first)));
    EXPECT_EQ(co_await test::code_of(peer.recv()), errc::remote_access);
  };
  meet(home, home, serve, ask);
  EXPECT_EQ(libraries.bound, 2);
}

task<> wait_for_the_end(connection& peer) {
  const auto message = co_await as_result(peer.recv());
  EXPECT_FALSE(message && message->has_value());
}

TEST_F(verbs_memory, windows_of_type_1_open_memory_to_every_peer_and_so_are_asked_for) {
  first_type_libraries libraries;
  net::device home = net::device::open(open_transport(device_name, libraries));
  const auto serve = [&](connection& peer) -> task<> {
    auto memory = co_await home.pool().allocate(64);
    EXPECT_EQ(co_await test::code_of(peer.expose(std::move(memory), open_wide)), errc::not_supported);
    co_await peer.close();
  };
  meet(home, home, serve, wait_for_the_end);
  EXPECT_EQ(libraries.bound, 0);
}

TEST_F(verbs_memory, a_window_of_type_1_that_cannot_be_bound_strands_nobody) {
  first_type_libraries libraries;
  net::device home = net::device::open(open_transport(device_name, libraries, {.allow_shared_windows = true}));
  const auto serve = [&](connection& peer) -> task<> {
    libraries.refuse = true;
    auto memory = co_await home.pool().allocate(64);
    EXPECT_FALSE(co_await as_result(peer.expose(std::move(memory), open_wide)));
    EXPECT_EQ((co_await test::code_of(peer.recv())).value(), ENOMEM);
  };
  meet(home, home, serve, wait_for_the_end);
}

}  // namespace
}  // namespace weft::net::verbs
