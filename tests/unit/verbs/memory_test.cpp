// SPDX-License-Identifier: Apache-2.0
// Registered memory and memory windows, on the Soft-RoCE device of the virtual machine (tests/vm).
#include <weft/mr/pool/arena.hpp>
#include <weft/net/device.hpp>
#include <weft/net/link/transport.hpp>
#include <weft/net/verbs/device.hpp>
#include <weft/net/verbs/domain.hpp>
#include <weft/net/verbs/transport.hpp>
#include <weft/runtime/when_all.hpp>

#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kit/tell.hpp"
#include "kit/test.hpp"
#include "mr/support.hpp"
#include "rxe.hpp"

namespace weft::net::verbs {
namespace {

using namespace std::chrono_literals;

class verbs_memory : public rxe_test {};

// root may lock as much memory as there is: this thread may not, as long as this lives. A thread of its own, for the
// kernel serves an RDMA device's descriptor only to those who have the credentials with which it was opened.
class limited_memory : private test::immovable {
 public:
  explicit limited_memory(rlim_t bytes) {
    ::getrlimit(RLIMIT_MEMLOCK, &before_);
    const rlimit lower{.rlim_cur = bytes, .rlim_max = before_.rlim_max};
    ::setrlimit(RLIMIT_MEMLOCK, &lower);
    ::syscall(SYS_capget, &header_, rights_.data());
    auto fewer = rights_;
    fewer[CAP_TO_INDEX(CAP_IPC_LOCK)].effective &= ~CAP_TO_MASK(CAP_IPC_LOCK);
    ::syscall(SYS_capset, &header_, fewer.data());
  }
  ~limited_memory() {
    ::syscall(SYS_capset, &header_, rights_.data());
    ::setrlimit(RLIMIT_MEMLOCK, &before_);
  }

 private:
  rlimit before_{};
  __user_cap_header_struct header_{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  std::array<__user_cap_data_struct, _LINUX_CAPABILITY_U32S_3> rights_{};
};

TEST_F(verbs_memory, beyond_the_limit_on_locked_memory_is_refused_with_the_limit) {
  const auto limited = [] {
    const limited_memory limit(256 * 1024);
    const auto domain =
        std::make_shared<verbs::domain>(std::make_shared<verbs::device>(rdma_calls::libraries(), device_name));
    std::vector<std::byte> memory(1 << 20);
    const auto attempt = [&](std::size_t bytes) {
      return domain->register_now(std::span(memory).first(bytes), {.usage = mr::usage::recv});
    };
    const std::string words = test::words_thrown_by([&] { static_cast<void>(attempt(memory.size())); });
    EXPECT_NE(words.find("the locked-memory limit is 262144 bytes (ulimit -l); raise it, or register less"),
              std::string::npos)
        << words;
    EXPECT_EQ(test::code_thrown_by([&] { static_cast<void>(attempt(memory.size())); }), errc::no_memory);
    mr::registration made = attempt(1);
    domain->deregister_now(made);
  };
  std::jthread(limited).join();
}

TEST_F(verbs_memory, that_a_device_cannot_register_so_is_refused_by_the_name_of_the_option) {
  const auto domain =
      std::make_shared<verbs::domain>(std::make_shared<verbs::device>(rdma_calls::libraries(), device_name));
  alignas(4096) static std::array<std::byte, 4096> memory;
  const auto words = [&](const mr::registration_options& options) {
    return test::words_thrown_by([&] { static_cast<void>(domain->register_now(memory, options)); });
  };
  EXPECT_NE(words({.usage = mr::usage::recv, .on_demand = true}).find("on_demand"), std::string::npos);
  EXPECT_NE(words({.usage = mr::usage::recv, .dmabuf = 0}).find("dmabuf"), std::string::npos);
  mr::registration made = domain->register_now(memory, {.usage = mr::usage::recv, .relaxed_ordering = true});
  domain->deregister_now(made);
}

// What a program is made of, and files that are mapped to be read: the device has windows, and this is for none.
TEST_F(verbs_memory, that_may_only_be_read_is_registered_for_sending) {
  const auto domain =
      std::make_shared<verbs::domain>(std::make_shared<verbs::device>(rdma_calls::libraries(), device_name));
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

task<> send_key(net::device& home, connection& peer, const mr::remote_region& open) {
  co_await test::tell(peer, home.pool(), open);
}

// Opens a window twice: what has been revoked lets nobody in.
task<> open_and_revoke(net::device& home, net::listener& from) {
  auto request = co_await from.next();
  auto peer = co_await request->accept();
  EXPECT_FALSE(peer.capabilities().invalidate);
  auto memory = co_await home.pool().allocate(64);
  std::fill(memory.bytes().begin(), memory.bytes().end(), std::byte{0});
  auto first = co_await peer.expose(std::move(memory), open_wide);
  co_await send_key(home, peer, first.remote());
  static_cast<void>(co_await peer.recv_or_throw());
  memory = co_await first.revoke();
  EXPECT_EQ(memory.bytes()[0], std::byte{1});
  std::fill(memory.bytes().begin(), memory.bytes().end(), std::byte{0});
  auto second = co_await peer.expose(std::move(memory), mr::usage::read_src);
  EXPECT_NE(second.remote().key(), first.remote().key());
  co_await send_key(home, peer, second.remote());
  static_cast<void>(co_await as_result(peer.recv()));
  memory = co_await second.revoke();
  EXPECT_EQ(memory.bytes()[0], std::byte{0});
}

task<> write_before_and_after(net::device& home, std::string address) {
  auto peer = co_await home.connect(std::move(address));
  auto memory = co_await home.pool().allocate(64);
  std::fill(memory.bytes().begin(), memory.bytes().end(), std::byte{1});
  auto hello = co_await peer.recv_or_throw();
  const auto first = mr::remote_region::unpack(hello.bytes());
  co_await peer.write(memory, first);
  co_await peer.flush(first);
  co_await peer.send(memory);
  hello = co_await peer.recv_or_throw();
  const auto second = mr::remote_region::unpack(hello.bytes());
  co_await peer.read(memory, second);
  EXPECT_EQ(memory.bytes()[0], std::byte{0});
  std::fill(memory.bytes().begin(), memory.bytes().end(), std::byte{1});
  const auto refused = co_await as_result(peer.write(memory, first));
  static_cast<void>(co_await as_result(peer.flush(first)));
  const auto ended = co_await as_result(peer.recv());
  EXPECT_EQ(ended ? std::error_code() : ended.error().code(), errc::remote_access);
}

TEST_F(verbs_memory, windows_of_type_1_serve_where_there_are_no_others) {
  first_type_libraries libraries;
  net::device home = net::device::open(open_transport(device_name, libraries, {.allow_shared_windows = true}));
  const auto root = [&]() -> task<> {
    net::listener from = co_await home.listen(any_address);
    co_await when_all(open_and_revoke(home, from), write_before_and_after(home, std::string(from.address())));
  };
  executor running;
  running.run(with_timeout(60s, root()));
  EXPECT_EQ(libraries.bound, 2);
}

task<> fail_to_open(net::device& home, net::listener& from, first_type_libraries& libraries) {
  auto request = co_await from.next();
  auto peer = co_await request->accept();
  libraries.refuse = true;
  auto memory = co_await home.pool().allocate(64);
  EXPECT_FALSE(co_await as_result(peer.expose(std::move(memory), open_wide)));
  const auto ended = co_await as_result(peer.recv());
  EXPECT_EQ(ended ? 0 : ended.error().code().value(), ENOMEM);
}

task<> wait_for_the_end(net::device& home, std::string address) {
  auto peer = co_await home.connect(std::move(address));
  const auto message = co_await as_result(peer.recv());
  EXPECT_FALSE(message && message->has_value());
}

task<> try_to_open(net::device& home, net::listener& from) {
  auto request = co_await from.next();
  auto peer = co_await request->accept();
  auto memory = co_await home.pool().allocate(64);
  const auto refused = co_await as_result(peer.expose(std::move(memory), open_wide));
  EXPECT_EQ(refused ? std::error_code() : refused.error().code(), errc::not_supported);
  co_await peer.close();
}

TEST_F(verbs_memory, windows_of_type_1_open_memory_to_every_peer_and_so_are_asked_for) {
  first_type_libraries libraries;
  net::device home = net::device::open(open_transport(device_name, libraries));
  const auto root = [&]() -> task<> {
    net::listener from = co_await home.listen(any_address);
    co_await when_all(try_to_open(home, from), wait_for_the_end(home, std::string(from.address())));
  };
  executor running;
  running.run(with_timeout(60s, root()));
  EXPECT_EQ(libraries.bound, 0);
}

TEST_F(verbs_memory, a_window_of_type_1_that_cannot_be_bound_strands_nobody) {
  first_type_libraries libraries;
  net::device home = net::device::open(open_transport(device_name, libraries, {.allow_shared_windows = true}));
  const auto root = [&]() -> task<> {
    net::listener from = co_await home.listen(any_address);
    co_await when_all(fail_to_open(home, from, libraries), wait_for_the_end(home, std::string(from.address())));
  };
  executor running;
  running.run(with_timeout(60s, root()));
}

}  // namespace
}  // namespace weft::net::verbs
