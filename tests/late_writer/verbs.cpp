// SPDX-License-Identifier: Apache-2.0
// Verbs: memory is taken back by deregistering it, by stopping its queue pair, or by destroying that.
#include <infiniband/verbs.h>

#include "adapter.hpp"

namespace late_writer {
namespace {

constexpr std::string_view deregistered = "ibv_dereg_mr() returned 0";
constexpr std::string_view stopped = "ibv_modify_qp() to ERR returned 0";
constexpr std::string_view destroyed = "ibv_destroy_qp() returned 0";
constexpr std::string_view flushed = "ibv_modify_qp() to ERR: IBV_WC_WR_FLUSH_ERR";

// The manual pages do not say what becomes of a peer's write in flight. Memory of a request may be reused once its
// completion has been polled.
constexpr std::array ways{
    way{operation::put, moment::during, deregistered, documented::unsaid, "ibv_reg_mr(3)"},
    way{operation::put, moment::during, stopped, documented::unsaid, "ibv_modify_qp(3)"},
    way{operation::put, moment::during, destroyed, documented::unsaid, "ibv_create_qp(3)"},
    way{operation::receive, moment::before, flushed, documented::excluded, "ibv_post_recv(3)"},
    way{operation::receive, moment::during, flushed, documented::excluded, "ibv_post_recv(3)"},
    way{operation::get, moment::during, flushed, documented::excluded, "ibv_post_send(3)"},
};

constexpr int anyone = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
void check_zero(int status, std::string_view call) { check(status == 0, call, std::strerror(status)); }

class verbs_end final : public end {
 public:
  verbs_end(ibv_context* device, const part& mine) : end(mine), device_(device) {
    static ibv_pd* const domain = ibv_alloc_pd(device);
    region_ = ibv_reg_mr(domain, memory.data(), memory.size(), anyone);
    queue_ = ibv_create_cq(device, 16, nullptr, nullptr, 0);
    ibv_qp_init_attr options{};
    options.send_cq = options.recv_cq = queue_;
    options.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 0};
    options.qp_type = IBV_QPT_RC;
    options.sq_sig_all = 1;
    pair_ = ibv_create_qp(domain, &options);
    check(region_ != nullptr && pair_ != nullptr, "ibv_reg_mr() or ibv_create_qp()", std::strerror(errno));
  }
  ~verbs_end() override {
    if (pair_ != nullptr) ibv_destroy_qp(pair_);  // the rest goes with the process
  }

  std::string describe() override {
    attributes_.port_num = 1;
    attributes_.qp_access_flags = anyone;
    modify(IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    if (is(operation::receive) && is_owner) post();
    ibv_port_attr port{};
    ibv_gid name{};
    check_zero(ibv_query_port(device_, 1, &port), "ibv_query_port()");
    attributes_.path_mtu = port.active_mtu;
    const std::uint8_t index = port.link_layer == IBV_LINK_LAYER_ETHERNET ? 1 : 0;  // 0 is link-local there
    attributes_.ah_attr.grh.sgid_index = index;
    check_zero(ibv_query_gid(device_, 1, index, &name), "ibv_query_gid()");
    const auto address = reinterpret_cast<std::uint64_t>(memory.data());
    return writer().add(name).add(port.lid).add(pair_->qp_num).add(address).add(region_->rkey).text();
  }

  void meet(const std::string& described) override {
    reader told(described);
    attributes_.ah_attr.grh.dgid = told.take<ibv_gid>();
    attributes_.ah_attr.grh.hop_limit = 64;
    attributes_.ah_attr.dlid = told.take<std::uint16_t>();
    attributes_.ah_attr.is_global = attributes_.ah_attr.port_num = 1;
    attributes_.dest_qp_num = told.take<std::uint32_t>();
    send_.wr.rdma.remote_addr = told.take<std::uint64_t>();
    send_.wr.rdma.rkey = told.take<std::uint32_t>();
    attributes_.max_rd_atomic = attributes_.max_dest_rd_atomic = 1;
    attributes_.min_rnr_timer = attributes_.timeout = 12;
    attributes_.retry_cnt = attributes_.rnr_retry = 6;
    modify(IBV_QPS_RTR, IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                            IBV_QP_MIN_RNR_TIMER);
    modify(IBV_QPS_RTS, IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
    if (is_owner == is(operation::get)) post();
  }

  void turn() override {
    ibv_wc done{};
    if (ibv_poll_cq(queue_, 1, &done) != 1) return;
    ended_ = done.status;
    if (!is(operation::put) || is_owner) return;
    check(done.status == IBV_WC_SUCCESS, "a write", ibv_wc_status_str(done.status));
    post();
  }

  outcome give_up() override {
    if (how.sign == deregistered) check_zero(ibv_dereg_mr(std::exchange(region_, nullptr)), "ibv_dereg_mr()");
    if (how.sign == destroyed) check_zero(ibv_destroy_qp(std::exchange(pair_, nullptr)), "ibv_destroy_qp()");
    if (how.sign == deregistered || how.sign == destroyed) return outcome::told;
    modify(IBV_QPS_ERR, 0);
    if (is(operation::put)) return outcome::told;
    if (!turn_until([this] { return ended_.has_value(); })) return outcome::untold;
    return ended_ == IBV_WC_SUCCESS ? outcome::completed : outcome::told;
  }

 private:
  void modify(ibv_qp_state next, int what) {
    attributes_.qp_state = next;
    check_zero(ibv_modify_qp(pair_, &attributes_, IBV_QP_STATE | what), "ibv_modify_qp()");
  }
  void post() {
    ended_.reset();
    ibv_sge all{reinterpret_cast<std::uint64_t>(memory.data()), static_cast<std::uint32_t>(memory.size()),
                region_->lkey};
    if (is(operation::receive) && is_owner) {
      ibv_recv_wr request{.wr_id = 0, .next = nullptr, .sg_list = &all, .num_sge = 1};
      ibv_recv_wr* bad = nullptr;
      return check_zero(ibv_post_recv(pair_, &request, &bad), "ibv_post_recv()");
    }
    send_.sg_list = &all;
    send_.num_sge = 1;
    send_.opcode = is(operation::put) ? IBV_WR_RDMA_WRITE : is(operation::get) ? IBV_WR_RDMA_READ : IBV_WR_SEND;
    ibv_send_wr* bad = nullptr;
    check_zero(ibv_post_send(pair_, &send_, &bad), "ibv_post_send()");
  }

  ibv_context* const device_;
  ibv_qp_attr attributes_{};
  ibv_mr* region_ = nullptr;
  ibv_cq* queue_ = nullptr;
  ibv_qp* pair_ = nullptr;
  ibv_send_wr send_{};                  // a put, a get or a send
  std::optional<ibv_wc_status> ended_;  // how the last request has
};

std::unique_ptr<end> open(const std::string&, const part& mine) {
  static ibv_context* const device = ibv_open_device(*ibv_get_device_list(nullptr));
  check(device != nullptr, "ibv_open_device()", std::strerror(errno));
  return std::make_unique<verbs_end>(device, mine);
}

}  // namespace

library verbs() {
  ibv_device** const all = ibv_get_device_list(nullptr);
  const bool has_one = all != nullptr && *all != nullptr;
  const std::vector<std::string> first(has_one ? 1 : 0, has_one ? ibv_get_device_name(*all) : "");
  return {"verbs", LATE_WRITER_VERBS, first, ways, open};
}

}  // namespace late_writer
