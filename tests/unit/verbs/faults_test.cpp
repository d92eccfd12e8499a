// SPDX-License-Identifier: Apache-2.0
// Calls into the RDMA libraries that fail, one after another, in the whole life of a connection: no waiter is left
// behind, no memory and no descriptor. On the Soft-RoCE device of the virtual machine (tests/vm).
#include <weft/net/link/transport.hpp>
#include <weft/net/verbs/transport.hpp>

#include <cstdlib>

#include "kit/buffers.hpp"
#include "kit/clock.hpp"
#include "kit/descriptors.hpp"
#include "kit/expect_failure.hpp"
#include "kit/other_thread.hpp"
#include "kit/tell.hpp"
#include "rxe.hpp"

namespace weft::net::verbs {
namespace {

using namespace std::chrono_literals;

// Fails the n-th call that makes, changes or posts something. What destroys is not made to fail: there is nothing to do
// about that.
class failing_libraries final : public rdma_calls {
 public:
  explicit failing_libraries(int which) noexcept : left_(which) {}
  /// The n-th one of that name, from 0 on.
  failing_libraries(std::string_view name, int which) noexcept : left_(which), only_(name) {}
  [[nodiscard]] bool has_failed() const noexcept { return left_ < 0; }
  [[nodiscard]] const char* which() const noexcept { return name_; }

#define WEFT_TEST_CALL(name, number, parameters, arguments) \
  int name parameters noexcept override { return due(#name) ? -(number) : rdma_calls::name arguments; }
  WEFT_TEST_CALL(alloc_pd, ENOMEM, (ibv_context * context, ibv_pd** made), (context, made))
  WEFT_TEST_CALL(set_nonblocking, EBADF, (int fd), (fd))
  WEFT_TEST_CALL(reg_mr, ENOMEM,
                 (ibv_pd * pd, void* memory, std::size_t bytes, std::uint64_t iova, unsigned access, ibv_mr** made),
                 (pd, memory, bytes, iova, access, made))
  WEFT_TEST_CALL(alloc_mw, ENOMEM, (ibv_pd * pd, ibv_mw_type type, ibv_mw** made), (pd, type, made))
  WEFT_TEST_CALL(create_comp_channel, EMFILE, (ibv_context * context, ibv_comp_channel** made), (context, made))
  WEFT_TEST_CALL(create_cq, ENOMEM, (ibv_context * context, int entries, ibv_comp_channel* channel, ibv_cq** made),
                 (context, entries, channel, made))
  WEFT_TEST_CALL(req_notify_cq, EIO, (ibv_cq * queue), (queue))
  WEFT_TEST_CALL(create_qp, ENOSPC, (ibv_pd * pd, ibv_qp_init_attr* wanted, ibv_qp** made), (pd, wanted, made))
  WEFT_TEST_CALL(modify_qp, EIO, (ibv_qp * pair, ibv_qp_attr* wanted, int mask), (pair, wanted, mask))
  WEFT_TEST_CALL(create_srq, ENOMEM, (ibv_pd * pd, ibv_srq_init_attr* wanted, ibv_srq** made), (pd, wanted, made))
  WEFT_TEST_CALL(create_event_channel, EMFILE, (rdma_event_channel * *made), (made))
  WEFT_TEST_CALL(create_id, ENOMEM, (rdma_event_channel * channel, void* context, rdma_cm_id** made),
                 (channel, context, made))
  WEFT_TEST_CALL(set_option, EINVAL, (rdma_cm_id * id, int level, int name, void* value, std::size_t bytes),
                 (id, level, name, value, bytes))
  WEFT_TEST_CALL(bind_addr, EADDRNOTAVAIL, (rdma_cm_id * id, sockaddr* address), (id, address))
  WEFT_TEST_CALL(listen, EADDRINUSE, (rdma_cm_id * id, int backlog), (id, backlog))
  WEFT_TEST_CALL(resolve_addr, ENETUNREACH, (rdma_cm_id * id, sockaddr* source, sockaddr* target, int timeout_ms),
                 (id, source, target, timeout_ms))
  WEFT_TEST_CALL(resolve_route, ENODEV, (rdma_cm_id * id, int timeout_ms), (id, timeout_ms))
  WEFT_TEST_CALL(init_qp_attr, EINVAL, (rdma_cm_id * id, ibv_qp_attr* attributes, int* mask), (id, attributes, mask))
  WEFT_TEST_CALL(connect, ENOMEM, (rdma_cm_id * id, rdma_conn_param* wanted), (id, wanted))
  WEFT_TEST_CALL(migrate_id, ENOMEM, (rdma_cm_id * id, rdma_event_channel* channel), (id, channel))
  WEFT_TEST_CALL(establish, EINVAL, (rdma_cm_id * id), (id))
  WEFT_TEST_CALL(accept, EINVAL, (rdma_cm_id * id, rdma_conn_param* wanted), (id, wanted))
  WEFT_TEST_CALL(disconnect, EINVAL, (rdma_cm_id * id), (id))
#undef WEFT_TEST_CALL
  int post_send(ibv_qp* pair, ibv_send_wr* first, ibv_send_wr** refused) noexcept override {
    if (!due("post_send")) return rdma_calls::post_send(pair, first, refused);
    *refused = first;
    return -ENOMEM;
  }
  int post_recv(ibv_qp* pair, ibv_recv_wr* first, ibv_recv_wr** refused) noexcept override {
    if (!due("post_recv")) return rdma_calls::post_recv(pair, first, refused);
    *refused = first;
    return -ENOMEM;
  }
  int post_srq_recv(ibv_srq* queue, ibv_recv_wr* first, ibv_recv_wr** refused) noexcept override {
    if (!due("post_srq_recv")) return rdma_calls::post_srq_recv(queue, first, refused);
    *refused = first;
    return -ENOMEM;
  }

 private:
  bool due(const char* name) noexcept {  // on workers as well
    if (!only_.empty() && only_ != name) return false;
    if (left_.fetch_sub(1) != 0) return false;
    name_ = name;
    return true;
  }

  std::atomic<int> left_;
  std::string_view only_;  // empty: any
  std::atomic<const char*> name_{""};
};

class verbs_faults : public rxe_test {};
class verbs_set_up : public rxe_test {};

connection_options options() {
  connection_options chosen{.receive_depth = 2, .set_up_timeout = 2000ms};
  return chosen;
}

// The server takes its receives from shared ones, the client has its own.
task<> serve(net::device& home, listener& from, shared_receives& receives) {
  auto request = co_await from.next();
  if (!request) co_return;
  auto chosen = options();
  chosen.receives = &receives;
  auto peer = co_await request->accept(chosen);
  auto memory = co_await test::zeroed(home.pool(), 64);
  const auto open = co_await peer.expose(std::move(memory), open_wide);
  co_await test::tell(peer, home.pool(), open.remote());
  while (auto message = co_await peer.recv()) co_await peer.send(std::move(message->payload));
  co_await peer.close();
}

task<> ask(net::device& home, std::string address) {
  auto peer = co_await home.connect(std::move(address), options());
  const auto there = co_await test::hear_region(peer);
  auto memory = co_await home.pool().allocate(64);
  co_await peer.write(memory, there);
  co_await peer.flush(there);
  static_cast<void>(co_await peer.fetch_add(there.slice(0, 8), 1));
  for (int i = 0; i < 4; ++i) {
    co_await peer.send(memory);
    static_cast<void>(co_await peer.recv_or_throw());
  }
  co_await peer.close();
}

// The client's failure leaves the server waiting for a peer that never comes, so the listener goes with the client.
task<std::optional<error>> ask_and_leave(net::device& home, listener& from) {
  const auto failure = co_await test::failure_of(ask(home, std::string(from.address())));
  from.close();
  co_return failure;
}

task<> exchange(net::device& home, std::array<std::optional<error>, 2>& failures) {
  try {
    listener from = co_await home.listen(any_address);
    shared_receives receives = co_await home.share_receives({.depth = 3});
    auto both = co_await when_all(test::failure_of(serve(home, from, receives)), ask_and_leave(home, from));
    failures = {std::get<0>(both), std::get<1>(both)};
  } catch (const error& why) {
    failures[0] = why;
  }
}

std::size_t bytes_in_use(net::device& home) {
  const auto pool = home.pool().statistics();
  return pool.of(mr::budget::send).in_use_bytes + pool.of(mr::budget::receive).in_use_bytes;
}

// False once there were not so many calls.
bool fail_call(int which) {
  failing_libraries libraries(which);
  std::array<std::optional<error>, 2> failures;
  try {
    net::device home = net::device::open(open_transport(device_name, libraries));
    {
      executor running;
      running.run(with_timeout(60s, exchange(home, failures)));
    }
    EXPECT_EQ(bytes_in_use(home), 0u) << which;
  } catch (const error& why) {
    failures[0] = why;
    EXPECT_NE(why.code(), errc::timed_out) << "call " << which << ", " << libraries.which() << ": " << why.what();
  }
  if (libraries.has_failed()) return true;
  for (const auto& failure : failures) EXPECT_FALSE(failure) << failure->what();
  return false;
}

// A device that tells of nothing any more, as rxe does where its network interface does not send, for as long as it
// likes.
class silent_device final : public rdma_calls {
 public:
  std::atomic<bool> silent{false};
  int poll_cq(ibv_cq* queue, int most, ibv_wc* found) noexcept override {
    return silent ? 0 : rdma_calls::poll_cq(queue, most, found);
  }
};

TEST_F(verbs_faults, a_device_that_does_not_give_up_on_its_peer_is_not_waited_for) {
  silent_device libraries;
  net::device near = net::device::open(open_transport(device_name, libraries));
  net::device far = net::device::open(open_transport(device_name, rdma_calls::libraries()));
  const auto serve = [](connection& peer) -> task<> { static_cast<void>(co_await as_result(peer.recv())); };
  auto chosen = options();
  chosen.dead_peer_after = 400ms;
  for (const bool writes : {false, true}) {  // idle, and with an operation under way
    const auto ask = [&](connection& peer) -> task<> {
      auto memory = co_await near.pool().allocate(64);
      co_await peer.send(memory);
      libraries.silent = true;
      if (writes) {
        EXPECT_EQ(co_await test::code_of(peer.send(memory)), errc::peer_vanished);
      }
      const std::error_code ended = co_await test::code_of(peer.recv());
      libraries.silent = false;
      EXPECT_EQ(ended, errc::peer_vanished);
    };
    meet(far, near, serve, ask, options(), chosen);
  }
}

TEST_F(verbs_faults, of_any_call_end_what_they_concern_and_leave_nothing_behind) {
  ASSERT_FALSE(fail_call(1'000'000));  // librdmacm keeps what it has opened once
  const std::size_t descriptors = test::open_descriptors();
  int which = 0;
  while (fail_call(which)) {
    EXPECT_EQ(test::open_descriptors(), descriptors) << "call " << which;
    ++which;
    if (HasFailure()) return;
  }
  EXPECT_GT(which, 60);
}

// ---- setting up ----

// A peer that is accepted and then waits for the end, on a device of its own, and one that asks for it.
struct set_up_ends {
  rdma_calls& near_libraries = rdma_calls::libraries();
  rdma_calls& far_libraries = rdma_calls::libraries();
  connection_options asking = options();
  listener_options listening{};
  clock& time = clock::steady();
  net::device near = net::device::open(open_transport(device_name, near_libraries));
  net::device far = net::device::open(open_transport(device_name, far_libraries));

  static task<> serve(listener& from) {
    auto request = co_await from.next();
    if (!request) co_return;
    auto peer = co_await request->accept(options());
    static_cast<void>(co_await peer.recv());
  }
  task<> ask(std::string address) {
    auto peer = co_await near.connect(std::move(address), asking);
    co_await peer.close();
  }
  /// The failures of who asks and of who serves.
  std::array<std::optional<error>, 2> run() {
    std::array<std::optional<error>, 2> failures;
    const auto body = [&](scope& tasks) -> task<> {
      listener from = co_await far.listen(any_address, listening);
      const auto serving = [&]() -> task<> { failures[1] = co_await test::failure_of(serve(from)); };
      tasks.spawn(serving());
      failures[0] = co_await test::failure_of(ask(std::string(from.address())));
      from.close();
      tasks.request_stop();
    };
    const auto root = [&]() -> task<> { co_await with_scope(on_failure::stop_siblings, body); };
    executor running({.clock = &time});
    running.run(with_timeout(60s, root()));
    return failures;
  }
};

TEST_F(verbs_set_up, names_the_step_that_has_failed) {
  struct step {
    const char* call;
    int which;
    const char* words;
  };
  for (const auto& [call, which, words] : {step{"create_id", 0, "create an id of the RDMA connection manager"},
                                           {"set_option", 0, "set the traffic class"},
                                           {"resolve_addr", 0, "resolve the address"},
                                           {"resolve_route", 0, "resolve the route"},
                                           {"create_cq", 0, "create a completion queue"},
                                           {"create_qp", 0, "create a queue pair"},
                                           {"init_qp_attr", 0, "ask how to set the queue pair up"},
                                           {"modify_qp", 0, "initialize the queue pair"},
                                           {"post_recv", 0, "post the first receives"},
                                           {"connect", 0, "RDMA connection"},
                                           {"modify_qp", 1, "make the queue pair ready to receive"},
                                           {"modify_qp", 2, "make the queue pair ready to send"},
                                           {"establish", 0, "confirm the RDMA connection"}}) {
    failing_libraries libraries(call, which);
    set_up_ends ends{.near_libraries = libraries};
    ends.asking.traffic_class = 0x48;
    const auto failures = ends.run();
    EXPECT_TRUE(test::says(failures[0], words)) << call;
  }
  for (const auto& [call, which, words] : {step{"create_qp", 0, "create a queue pair"},
                                           {"post_recv", 0, "post the first receives"},
                                           {"modify_qp", 2, "make the queue pair ready to send"},
                                           {"accept", 0, "accept the RDMA connection"}}) {
    failing_libraries libraries(call, which);
    set_up_ends ends{.far_libraries = libraries};
    const auto failures = ends.run();
    EXPECT_TRUE(test::says(failures[1], words)) << call;
    EXPECT_TRUE(failures[0]) << call;  // the peer is told, or finds out
  }
}

// Delays the word that the address is resolved, loses one event, and notes how long the steps are given. By a clock
// that goes only here.
class slow_manager final : public rdma_calls {
 public:
  slow_manager(rdma_cm_event_type lost, test::manual_clock& time) : lost_(lost), time_(time) {}
  static constexpr auto delay = 100ms;
  static constexpr auto longest = 1000ms;
  int address_ms = 0;
  int route_ms = 0;

  int resolve_addr(rdma_cm_id* id, sockaddr* source, sockaddr* target, int timeout_ms) noexcept override {
    address_ms = timeout_ms;
    return rdma_calls::resolve_addr(id, source, target, timeout_ms);
  }
  int resolve_route(rdma_cm_id* id, int timeout_ms) noexcept override {
    route_ms = timeout_ms;
    return rdma_calls::resolve_route(id, timeout_ms);
  }
  int get_cm_event(rdma_event_channel* channel, rdma_cm_event** found) noexcept override {
    const int result = rdma_calls::get_cm_event(channel, found);
    if (result < 0) return result;
    if ((*found)->event == lost_) {
      rdma_calls::ack_cm_event(*found);
      time_.advance(longest);
      return -EAGAIN;
    }
    if ((*found)->event == RDMA_CM_EVENT_ADDR_RESOLVED) time_.advance(delay);
    return result;
  }

 private:
  rdma_cm_event_type lost_;
  test::manual_clock& time_;
};

TEST_F(verbs_set_up, has_one_deadline_for_all_of_its_steps) {
  for (const auto& [lost, step] : {std::pair{RDMA_CM_EVENT_ADDR_RESOLVED, "resolve the address"},
                                   {RDMA_CM_EVENT_ROUTE_RESOLVED, "resolve the route"},
                                   {RDMA_CM_EVENT_CONNECT_RESPONSE, "RDMA connection"}}) {
    test::manual_clock time;
    slow_manager libraries(lost, time);
    set_up_ends ends{.near_libraries = libraries, .time = time};
    ends.asking.set_up_timeout = slow_manager::longest;
    const auto failures = ends.run();
    ASSERT_TRUE(failures[0]) << step;
    EXPECT_EQ(failures[0]->code(), errc::timed_out) << test::words_of(failures[0]);
    EXPECT_TRUE(test::says(failures[0], step));
    EXPECT_LE(libraries.address_ms, 1000);
    // What was used up before is not given again.
    if (lost != RDMA_CM_EVENT_ADDR_RESOLVED) {
      EXPECT_LE(libraries.route_ms, 1000 - slow_manager::delay / 1ms);
    }
  }
}

// Notes as well who destroys the ids of the connection manager.
class watched_ids final : public watched_set_ups {
 public:
  std::vector<std::thread::id> destroyed_on;

  int destroy_id(rdma_cm_id* id) noexcept override {
    {
      const std::lock_guard lock(mutex_);
      destroyed_on.push_back(std::this_thread::get_id());
    }
    return rdma_calls::destroy_id(id);
  }
};

TEST_F(verbs_set_up, says_which_end_shares_its_receives_and_leaves_it_to_workers_to_destroy_an_id) {
  watched_ids libraries;
  std::array<std::optional<error>, 2> failures;
  {
    net::device home = net::device::open(open_transport(device_name, libraries));
    executor running;
    running.run(exchange(home, failures));
  }
  for (const auto& failure : failures) EXPECT_FALSE(failure) << failure->what();
  ASSERT_EQ(libraries.parameters.size(), 2u);
  EXPECT_EQ(libraries.parameters.front().srq + libraries.parameters.back().srq, 1);
  ASSERT_GE(libraries.destroyed_on.size(), 3u);  // of both ends, and the listener's
  for (const std::thread::id where : libraries.destroyed_on) EXPECT_NE(where, std::this_thread::get_id());
}

TEST_F(verbs_set_up, puts_the_traffic_class_into_the_packets) {
  watched_set_ups near;
  watched_set_ups far;
  set_up_ends ends{.near_libraries = near, .far_libraries = far};
  ends.asking.traffic_class = 0x48;
  ends.listening.traffic_class = 0x28;
  const auto failures = ends.run();
  EXPECT_FALSE(failures[0]) << test::words_of(failures[0]);
  ASSERT_EQ(near.ready_to_receive.size(), 1u);
  EXPECT_EQ(near.ready_to_receive.front().ah_attr.grh.traffic_class, 0x48);
  ASSERT_EQ(far.ready_to_receive.size(), 1u);
  EXPECT_EQ(far.ready_to_receive.front().ah_attr.grh.traffic_class, 0x28);
}

// A request whose listener is one executor's is accepted by another, on its own channel of events.
std::optional<error> accept_elsewhere(rdma_calls& libraries, std::optional<error>& of_the_peer) {
  net::device home = net::device::open(open_transport(device_name, libraries));
  net::device near = net::device::open(open_transport(device_name, rdma_calls::libraries()));
  executor listens;
  executor accepts;
  std::optional<listener> from;
  std::optional<connection_request> request;
  const auto listen = [&]() -> task<> { from.emplace(co_await home.listen(any_address)); };
  listens.run(listen());
  const std::string address(from->address());
  test::other_thread peer([&] {
    const auto ask = [&]() -> task<> {
      auto there = co_await near.connect(address, options());
      auto memory = co_await near.pool().allocate(64);
      co_await there.send(std::move(memory));
      static_cast<void>(co_await there.recv_or_throw());
      co_await there.close();
    };
    executor running;
    of_the_peer = running.run(with_timeout(60s, test::failure_of(ask())));
  });
  const auto take = [&]() -> task<> { request = co_await from->next(); };
  listens.run(with_timeout(60s, take()));
  const auto accept = [&]() -> task<> {
    auto there = co_await request->accept(options());
    while (auto message = co_await there.recv()) co_await there.send(std::move(message->payload));
    co_await there.close();
  };
  const std::optional<error> failure = accepts.run(with_timeout(60s, test::failure_of(accept())));
  peer.join();
  const auto close = [&]() -> task<> {
    from.reset();
    co_return;
  };
  listens.run(close());
  return failure;
}

TEST_F(verbs_set_up, moves_a_request_to_the_executor_that_accepts_it) {
  std::optional<error> of_the_peer;
  const auto moved = accept_elsewhere(rdma_calls::libraries(), of_the_peer);
  EXPECT_FALSE(moved) << test::words_of(moved);
  EXPECT_FALSE(of_the_peer) << test::words_of(of_the_peer);

  failing_libraries libraries("migrate_id", 0);
  const auto stuck = accept_elsewhere(libraries, of_the_peer);
  EXPECT_TRUE(test::says(stuck, "move the request to this executor"));
  ASSERT_TRUE(of_the_peer);
  EXPECT_TRUE(test::failed_with(of_the_peer, errc::peer_rejected));
}

TEST_F(verbs_faults, of_a_cable_that_stays_out_say_so) {
  if (!std::filesystem::exists("/sys/class/infiniband/rxe1") || !std::filesystem::exists("/sys/class/net/veth0")) {
    GTEST_SKIP() << "this machine has no two RDMA devices on one cable";
  }
  net::device near = net::device::open("verbs:10.77.0.1");
  net::device far = net::device::open("verbs:10.77.0.2");
  EXPECT_EQ(near.name(), "verbs:rxe0");
  executor running;
  std::array<std::optional<error>, 2> failures;
  const auto accept_one = [](listener& from, connection_options how) -> task<connection> {
    auto request = co_await from.next();
    co_return co_await request->accept(how);
  };
  const auto root = [&]() -> task<> {
    auto chosen = options();
    chosen.dead_peer_after = 1000ms;
    listener from = co_await far.listen("10.77.0.2:0");
    auto [here, there] = co_await when_all(near.connect(std::string(from.address()), chosen), accept_one(from, chosen));
    const auto pull = [] { return std::system("ip link set veth0 down"); };
    EXPECT_EQ(co_await offload(pull), 0);
    auto both = co_await when_all(test::failure_of(here.recv()), test::failure_of(there.recv()));
    failures = {std::get<0>(both), std::get<1>(both)};
  };
  running.run(with_timeout(60s, root()));
  EXPECT_EQ(std::system("ip link set veth0 up"), 0);
  ASSERT_TRUE(failures[0] && failures[1]);
  // rxe does not even try to send without a cable, and breaks the queue pair off.
  EXPECT_TRUE(test::failed_with(failures[0], errc::connection_failed, "port 1 of rxe0 is down"));
}

}  // namespace
}  // namespace weft::net::verbs
