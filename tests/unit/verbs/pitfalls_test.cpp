// SPDX-License-Identifier: Apache-2.0
// What the interfaces of RDMA devices make easy to get wrong, on the Soft-RoCE device of the virtual machine
// (tests/vm).
#include <weft/net/link/transport.hpp>
#include <weft/net/verbs/executor_state.hpp>
#include <weft/net/verbs/transport.hpp>

#include <future>
#include <map>

#include "kit/other_thread.hpp"
#include "kit/tell.hpp"
#include "rxe.hpp"

namespace weft::net::verbs {
namespace {

using namespace std::chrono_literals;

class verbs_pitfalls : public rxe_test {
 protected:
  /// Runs `client(device, connection, remote)` against a peer that exposes 4096 bytes and then waits for the end.
  template <class Client>
  static void run(rdma_calls& libraries, Client client) {
    net::device home = net::device::open(open_transport(device_name, libraries));
    const auto serve = [&home](connection& peer) -> task<> {
      auto memory = co_await home.pool().allocate(4096);
      const auto open = co_await peer.expose(std::move(memory), open_wide);
      co_await test::tell(peer, home.pool(), open.remote());
      static_cast<void>(co_await as_result(peer.recv()));
      static_cast<void>(co_await as_result(peer.close()));  // before the exposure ends
    };
    const auto ask = [&home, &client](connection& peer) -> task<> {
      const auto there = co_await test::hear_region(peer);
      co_await client(home, peer, there);
    };
    meet(home, home, serve, ask);
  }
};

TEST_F(verbs_pitfalls, a_full_completion_queue_gets_a_sibling_and_none_takes_more_than_it_holds) {
  const auto home = std::make_shared<verbs::device>(rdma_calls::libraries(), device_name);
  executor running;
  running.run([](std::shared_ptr<verbs::device> opened) -> task<> {
    executor_state& shared = executor_state::of(opened);
    completion_queue* const first = co_await shared.reserve(1);
    const std::uint32_t rest = static_cast<std::uint32_t>(first->get()->cqe) - 1;
    completion_queue* const again = co_await shared.reserve(rest);
    EXPECT_EQ(again, first);
    EXPECT_FALSE(first->has_room(1));
    completion_queue* const second = co_await shared.reserve(1);
    EXPECT_NE(second, first);
    EXPECT_FALSE(co_await as_result(shared.reserve(static_cast<std::uint32_t>(opened->limits().max_cqe) + 1)));
    shared.release(*first, 1 + rest);
    shared.release(*second, 1);
  }(home));
}

// Takes the first of several requests and refuses the others, as a device may whose queue is shorter than it said.
class short_queue final : public rdma_calls {
 public:
  std::atomic<bool> partly{false};
  int post_send(ibv_qp* pair, ibv_send_wr* first, ibv_send_wr** refused) noexcept override {
    if (!partly || first->next == nullptr) return rdma_calls::post_send(pair, first, refused);
    ibv_send_wr alone = *first;
    alone.next = nullptr;
    const int failure = rdma_calls::post_send(pair, &alone, refused);
    *refused = failure == 0 ? first->next : first;
    return -ENOMEM;
  }
};

TEST_F(verbs_pitfalls, a_post_that_the_device_takes_in_part_ends_what_it_took_and_what_it_did_not) {
  short_queue libraries;
  const auto client = [&](net::device& home, net::connection& peer, const mr::remote_region& there) -> task<> {
    auto memory = co_await home.pool().allocate(64);
    libraries.partly = true;
    std::array three{peer.write(memory, there.slice(0, 64)), peer.write(memory, there.slice(64, 64)),
                     peer.write(memory, there.slice(128, 64))};
    const auto ended = co_await as_result(peer.batch(three));
    EXPECT_EQ(ended ? 0 : ended.error().code().value(), ENOMEM);
  };
  run(libraries, client);
}

// Notes in what order connections are taken down.
class watched_destruction final : public rdma_calls {
 public:
  int windows_left_to_a_queue_pair = 0;
  int queue_pairs_left_to_a_queue = 0;
  int left_to_a_domain = 0;
  int queue_pairs = 0;
  int regions = 0;
  int bound = 0;

  int post_send(ibv_qp* pair, ibv_send_wr* first, ibv_send_wr** refused) noexcept override {
    const std::lock_guard lock(mutex_);
    for (const ibv_send_wr* item = first; item != nullptr; item = item->next) {
      if (item->opcode != IBV_WR_BIND_MW) continue;
      windows_[item->bind_mw.mw] = pair;
      ++bound;
    }
    return rdma_calls::post_send(pair, first, refused);
  }
  int dealloc_mw(ibv_mw* window) noexcept override {
    const std::lock_guard lock(mutex_);
    windows_.erase(window);
    return rdma_calls::dealloc_mw(window);
  }
  int create_qp(ibv_pd* pd, ibv_qp_init_attr* wanted, ibv_qp** made) noexcept override {
    return add(queue_pairs, rdma_calls::create_qp(pd, wanted, made));
  }
  int destroy_qp(ibv_qp* pair) noexcept override {
    const std::lock_guard lock(mutex_);
    for (const auto& [window, where] : windows_) windows_left_to_a_queue_pair += where == pair ? 1 : 0;
    --queue_pairs;
    return rdma_calls::destroy_qp(pair);
  }
  int destroy_cq(ibv_cq* queue) noexcept override {
    const std::lock_guard lock(mutex_);
    queue_pairs_left_to_a_queue += queue_pairs;
    return rdma_calls::destroy_cq(queue);
  }
  int reg_mr(ibv_pd* pd, void* memory, std::size_t bytes, std::uint64_t iova, unsigned access,
             ibv_mr** made) noexcept override {
    return add(regions, rdma_calls::reg_mr(pd, memory, bytes, iova, access, made));
  }
  int dereg_mr(ibv_mr* region) noexcept override {
    const std::lock_guard lock(mutex_);
    --regions;
    return rdma_calls::dereg_mr(region);
  }
  int dealloc_pd(ibv_pd* pd) noexcept override {
    const std::lock_guard lock(mutex_);
    left_to_a_domain += queue_pairs + regions + static_cast<int>(windows_.size());
    return rdma_calls::dealloc_pd(pd);
  }

 private:
  int add(int& counter, int result) noexcept {
    const std::lock_guard lock(mutex_);
    if (result == 0) ++counter;
    return result;
  }

  std::mutex mutex_;  // workers make and destroy
  std::map<ibv_mw*, ibv_qp*> windows_;
};

TEST_F(verbs_pitfalls, no_depth_of_reads_no_timer_and_no_count_of_retries_is_left_at_what_it_happens_to_be) {
  watched_set_ups libraries;
  run(libraries, [](net::device&, net::connection&, const mr::remote_region&) -> task<> { co_return; });
  ASSERT_EQ(libraries.parameters.size(), 2u);
  for (const rdma_conn_param& item : libraries.parameters) {
    EXPECT_GT(item.responder_resources, 0);  // none means no REMOTE_READ and no REMOTE_ATOMIC
    EXPECT_GT(item.initiator_depth, 0);
    EXPECT_EQ(item.retry_count, 6);
    EXPECT_EQ(item.rnr_retry_count, 7);
  }
  ASSERT_EQ(libraries.ready_to_receive.size(), 2u);
  for (const ibv_qp_attr& item : libraries.ready_to_receive) {
    EXPECT_EQ(item.min_rnr_timer, 12);  // 0 would be 655 ms
    EXPECT_GT(item.max_dest_rd_atomic, 0);
    EXPECT_GE(item.ah_attr.grh.hop_limit, 64);  // 1 would end at the first router
    EXPECT_EQ(item.ah_attr.port_num, 1);
    EXPECT_GE(item.path_mtu, IBV_MTU_1024);
    EXPECT_NE(item.ah_attr.grh.sgid_index, 0);  // of rxe a link-local address
  }
  ASSERT_EQ(libraries.ready_to_send.size(), 2u);
  for (const ibv_qp_attr& item : libraries.ready_to_send) {
    EXPECT_EQ(item.retry_cnt, 6);  // 7 is for ever, with rxe
    EXPECT_EQ(item.rnr_retry, 7);
    EXPECT_GT(item.max_rd_atomic, 0);
    // Silence for as long as all of them take is noticed within half of dead_peer_after.
    const auto each = std::chrono::nanoseconds(4096) * (std::int64_t{1} << item.timeout);
    EXPECT_GE(item.timeout, 10);  // 0 is for ever
    EXPECT_LE(each * (item.retry_cnt + 1) * 2, connection_options().dead_peer_after);
  }
}

TEST_F(verbs_pitfalls, windows_go_before_their_queue_pair_and_that_before_its_queue_and_all_before_the_domain) {
  watched_destruction libraries;
  run(libraries, [](net::device& home, net::connection& peer, const mr::remote_region& there) -> task<> {
    auto memory = co_await home.pool().allocate(4096);
    co_await peer.write(memory, there);
  });
  EXPECT_EQ(libraries.bound, 1);
  EXPECT_EQ(libraries.windows_left_to_a_queue_pair, 0);
  EXPECT_EQ(libraries.queue_pairs_left_to_a_queue, 0);
  EXPECT_EQ(libraries.left_to_a_domain, 0);
  EXPECT_EQ(libraries.queue_pairs, 0);
}

// Notes whether a window was bound while a request before it might still have had to be repeated.
class careful_libraries final : public rdma_calls {
 public:
  int bound = 0;
  int bound_behind_others = 0;

  int post_send(ibv_qp* pair, ibv_send_wr* first, ibv_send_wr** refused) noexcept override {
    const std::lock_guard lock(mutex_);
    for (const ibv_send_wr* item = first; item != nullptr; item = item->next) {
      if (item->opcode == IBV_WR_BIND_MW) {
        ++bound;
        bound_behind_others += under_way_[pair->qp_num].empty() ? 0 : 1;
      }
      under_way_[pair->qp_num].push_back(item->wr_id);
    }
    return rdma_calls::post_send(pair, first, refused);
  }
  int poll_cq(ibv_cq* queue, int count, ibv_wc* found) noexcept override {
    const int result = rdma_calls::poll_cq(queue, count, found);
    const std::lock_guard lock(mutex_);
    for (int i = 0; i < result; ++i) forget_up_to(found[i].wr_id, under_way_[found[i].qp_num]);
    return result;
  }

 private:
  // One completion tells of all before it as well.
  static void forget_up_to(std::uint64_t id, std::vector<std::uint64_t>& posted) {
    const auto place = std::find(posted.begin(), posted.end(), id);
    if (place != posted.end()) posted.erase(posted.begin(), place + 1);
  }

  std::mutex mutex_;
  std::map<std::uint32_t, std::vector<std::uint64_t>> under_way_;
};

TEST_F(verbs_pitfalls, a_window_is_bound_when_nothing_before_it_can_be_lost) {
  careful_libraries libraries;
  const auto client = [](net::device& home, net::connection& peer, const mr::remote_region& there) -> task<> {
    auto bytes = co_await home.pool().allocate(4096);
    const auto write_on = [&]() -> task<> {
      for (int i = 0; i < 100; ++i) co_await peer.write(bytes, there);
    };
    const auto expose_on = [&]() -> task<> {
      for (int i = 0; i < 10; ++i) {
        auto memory = co_await home.pool().allocate(64);
        auto open = co_await peer.expose(std::move(memory), open_wide);
        static_cast<void>(co_await open.revoke());
      }
    };
    co_await when_all(write_on(), expose_on(), write_on(), expose_on());
  };
  run(libraries, client);
  EXPECT_EQ(libraries.bound, 21);
  EXPECT_EQ(libraries.bound_behind_others, 0);
}

// Does not let the accepting side hear that the connection is there before the peer's first message has arrived.
class slow_news final : public rdma_calls {
 public:
  std::promise<void> spoken;
  bool in_time = false;

  int get_cm_event(rdma_event_channel* channel, rdma_cm_event** found) noexcept override {
    const int result = rdma_calls::get_cm_event(channel, found);
    if (result == 0 && (*found)->event == RDMA_CM_EVENT_ESTABLISHED) {
      in_time = spoken.get_future().wait_for(20s) == std::future_status::ready;
    }
    return result;
  }
};

TEST_F(verbs_pitfalls, a_message_that_comes_before_the_word_of_the_connection_finds_its_receive) {
  slow_news libraries;
  std::promise<std::string> address;
  std::future<std::string> where = address.get_future();
  test::other_thread serving([&, address = std::move(address)](const std::stop_token& left_early) mutable {
    net::device home = net::device::open(open_transport(device_name, libraries));
    const auto serve = [&]() -> task<> {
      net::listener from = co_await home.listen(any_address);
      address.set_value(std::string(from.address()));
      auto request = co_await from.next();
      auto peer = co_await request->accept();
      for (std::size_t bytes = 1; bytes <= 3; ++bytes) {
        const auto message = co_await peer.recv_or_throw();
        EXPECT_EQ(message.size(), bytes);  // in their order, the early ones first
      }
      co_await peer.close();
    };
    executor running;
    running.run(with_timeout(60s, serve()), left_early);
  });
  net::device home = net::device::open(open_transport(device_name, rdma_calls::libraries()));
  const auto ask = [&](std::string target) -> task<> {
    auto peer = co_await home.connect(std::move(target));
    for (std::size_t bytes = 1; bytes <= 3; ++bytes) {
      auto memory = co_await home.pool().allocate(bytes);
      co_await peer.send(std::move(memory));
      if (bytes == 2) libraries.spoken.set_value();
    }
    EXPECT_FALSE(co_await peer.recv());
    co_await peer.close();
  };
  {
    executor running;
    running.run(with_timeout(60s, ask(where.get())));
  }
  serving.join();
  EXPECT_TRUE(libraries.in_time);  // the device had acknowledged the messages
}

}  // namespace
}  // namespace weft::net::verbs
