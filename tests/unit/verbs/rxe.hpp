// SPDX-License-Identifier: Apache-2.0
// The Soft-RoCE device of the virtual machine (tests/vm).
#pragma once

#include <weft/net/verbs/calls.hpp>
#include <weft/weft.hpp>

#include <filesystem>

#include "kit/test.hpp"

namespace weft::net::verbs {

inline constexpr const char* device_name = "rxe0";
inline constexpr const char* any_address = "10.77.0.1:0";
inline constexpr mr::usage open_wide = mr::usage::read_src | mr::usage::write_dst | mr::usage::atomic_dst;

class rxe_test : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(std::filesystem::path("/sys/class/infiniband") / device_name)) {
      GTEST_SKIP() << "this machine has no RDMA device " << device_name;
    }
  }

  /// Has the two ends of a connection, one of each device, do that: `serve(peer)` and `ask(peer)`.
  template <class Serve, class Ask>
  static void meet(net::device& far, net::device& near, Serve serve, Ask ask, const connection_options& accepts = {},
                   const connection_options& connects = {}) {
    const auto serving = [&](listener& from) -> task<> {
      auto request = co_await from.next();
      auto peer = co_await request->accept(accepts);
      co_await serve(peer);
    };
    const auto asking = [&](std::string address) -> task<> {
      auto peer = co_await near.connect(std::move(address), connects);
      co_await ask(peer);
    };
    const auto both = [&]() -> task<> {
      listener from = co_await far.listen(any_address);
      co_await when_all(serving(from), asking(std::string(from.address())));
    };
    executor running;
    running.run(with_timeout(std::chrono::minutes(1), both()));
  }
};

/// Notes how connections are set up.
class watched_set_ups : public rdma_calls {
 public:
  std::vector<rdma_conn_param> parameters;  // of both ends
  std::vector<ibv_qp_attr> ready_to_receive;
  std::vector<ibv_qp_attr> ready_to_send;

  int modify_qp(ibv_qp* pair, ibv_qp_attr* wanted, int mask) noexcept override {
    const std::lock_guard lock(mutex_);
    if (wanted->qp_state == IBV_QPS_RTR) ready_to_receive.push_back(*wanted);
    if (wanted->qp_state == IBV_QPS_RTS) ready_to_send.push_back(*wanted);
    return rdma_calls::modify_qp(pair, wanted, mask);
  }
  int connect(rdma_cm_id* id, rdma_conn_param* wanted) noexcept override {
    note(*wanted);
    return rdma_calls::connect(id, wanted);
  }
  int accept(rdma_cm_id* id, rdma_conn_param* wanted) noexcept override {
    note(*wanted);
    return rdma_calls::accept(id, wanted);
  }

 protected:
  std::mutex mutex_;  // workers make and destroy

 private:
  void note(const rdma_conn_param& wanted) {
    const std::lock_guard lock(mutex_);
    parameters.push_back(wanted);
  }
};

}  // namespace weft::net::verbs
