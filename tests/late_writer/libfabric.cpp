// SPDX-License-Identifier: Apache-2.0
// libfabric: memory is taken back by closing its region, by cancelling its operation, or by closing the endpoint.
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>

#include "adapter.hpp"

namespace late_writer {
namespace {

constexpr std::string_view region_closed = "fi_close() of the region returned 0";
constexpr std::string_view endpoint_closed = "fi_close() of the endpoint returned 0";
constexpr std::string_view both_closed = "fi_close() of endpoint and region returned 0";
constexpr std::string_view canceled = "fi_cancel(), FI_ECANCELED";

// fi_mr(3): operations in flight on a region that is closed may reach invalid memory; the program makes sure that there
// are none. fi_endpoint(3): the endpoint's own operations are discarded when it is closed.
constexpr std::array ways{
    way{operation::put, moment::during, region_closed, documented::allowed, "fi_mr(3), fi_close"},
    way{operation::put, moment::during, both_closed, documented::unsaid, "fi_endpoint(3), fi_close"},
    way{operation::receive, moment::before, canceled, documented::excluded, "fi_endpoint(3), fi_cancel"},
    way{operation::receive, moment::during, canceled, documented::excluded, "fi_endpoint(3), fi_cancel"},
    way{operation::receive, moment::during, endpoint_closed, documented::excluded, "fi_endpoint(3), fi_close"},
    way{operation::get, moment::during, endpoint_closed, documented::excluded, "fi_endpoint(3), fi_close"},
};

void check_ok(ssize_t is, std::string_view call) { check(is >= 0, call, fi_strerror(static_cast<int>(-is))); }

class fabric_end final : public end {
 public:
  fabric_end(fid_domain* domain, fi_info* info, const part& mine) : end(mine), info_(info) {
    fi_cq_attr completions{};
    fi_av_attr addresses{};
    check_ok(fi_cq_open(domain, &completions, &queue_, nullptr), "fi_cq_open()");
    check_ok(fi_av_open(domain, &addresses, &addresses_, nullptr), "fi_av_open()");
    check_ok(fi_endpoint(domain, info, &endpoint_, nullptr), "fi_endpoint()");
    check_ok(fi_ep_bind(endpoint_, &queue_->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind()");
    check_ok(fi_ep_bind(endpoint_, &addresses_->fid, 0), "fi_ep_bind()");
    check_ok(fi_enable(endpoint_), "fi_enable()");
    constexpr std::uint64_t all = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
    static std::uint64_t key = 0;
    check_ok(fi_mr_reg(domain, memory.data(), memory.size(), all, 0, ++key, 0, &region_, nullptr), "fi_mr_reg()");
  }
  ~fabric_end() override {
    if (endpoint_ != nullptr) fi_close(&endpoint_->fid);  // the rest goes with the process
  }

  std::string describe() override {
    std::array<std::byte, 512> name{};
    std::size_t size = name.size();
    check_ok(fi_getname(&endpoint_->fid, name.data(), &size), "fi_getname()");
    if (is(operation::receive) && is_owner) post();
    const bool has_address = (info_->domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0;
    const auto base = has_address ? reinterpret_cast<std::uint64_t>(memory.data()) : std::uint64_t{0};
    return writer().add_bytes(name.data(), size).add(base).add(fi_mr_key(region_)).text();
  }

  void meet(const std::string& described) override {
    reader told(described);
    check(fi_av_insert(addresses_, told.take_bytes().data(), 1, &peer_, 0, nullptr) == 1, "fi_av_insert()");
    base_ = told.take<std::uint64_t>();
    key_ = told.take<std::uint64_t>();
    has_more_ = is_owner == is(operation::get);
  }

  void turn() override {
    fi_cq_tagged_entry done{};  // the largest form
    fi_cq_err_entry failed{};
    const ssize_t count = fi_cq_read(queue_, &done, 1);
    if (count == 1) state_ = 0;
    if (count == -FI_EAVAIL && fi_cq_readerr(queue_, &failed, 0) == 1) state_ = failed.err;
    if (has_more_ && state_ != FI_EINPROGRESS) post();
  }

  outcome give_up() override {
    if (!is(operation::put) && state_ == 0) return outcome::completed;
    if (how.sign == canceled) {
      fi_cancel(&endpoint_->fid, &context_);  // its status tells nothing
      if (!turn_until([this] { return state_ != FI_EINPROGRESS; })) return outcome::untold;
      return state_ == 0 ? outcome::completed : outcome::told;
    }
    if (how.sign != region_closed) check_ok(fi_close(&std::exchange(endpoint_, nullptr)->fid), "fi_close()");
    if (how.sign != endpoint_closed) check_ok(fi_close(&region_->fid), "fi_close()");
    return outcome::told;
  }

 private:
  void post() {
    check_ok(-state_, "the last operation");
    const ssize_t status = call();
    if (status == -FI_EAGAIN) return;  // progress is needed first
    check_ok(status, "fi_write(), fi_read(), fi_send(), fi_recv()");
    state_ = FI_EINPROGRESS;
    has_more_ = has_more_ && is(operation::put);
  }
  ssize_t call() {
    void* const key = fi_mr_desc(region_);
    if (is(operation::put))
      return fi_write(endpoint_, memory.data(), memory.size(), key, peer_, base_, key_, &context_);
    if (is(operation::get)) return fi_read(endpoint_, memory.data(), memory.size(), key, peer_, base_, key_, &context_);
    return !is_owner ? fi_send(endpoint_, memory.data(), memory.size(), key, peer_, &context_)
                     : fi_recv(endpoint_, memory.data(), memory.size(), key, 0, &context_);
  }

  fi_info* const info_;
  fi_context2 context_{};
  fid_cq* queue_ = nullptr;
  fid_av* addresses_ = nullptr;
  fid_ep* endpoint_ = nullptr;
  fid_mr* region_ = nullptr;
  fi_addr_t peer_ = FI_ADDR_UNSPEC;
  std::uint64_t base_ = 0;  // of the other end's memory
  std::uint64_t key_ = 0;
  bool has_more_ = false;  // to post, from turn()
  int state_ = 0;          // of the operation: FI_EINPROGRESS, 0, or why it failed
};

std::unique_ptr<end> open(const std::string& transport, const part& mine) {
  static fi_info* info = nullptr;
  static fid_domain* domain = nullptr;
  if (domain == nullptr) {
    setenv("FI_OFI_RXM_BUFFER_SIZE", "1024", 0);  // an endpoint over tcp takes a third of a second otherwise
    fi_info* hints = fi_allocinfo();
    hints->caps = FI_MSG | FI_RMA;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->fabric_attr->prov_name = strdup(transport.c_str());
    const char* const node = transport == "shm" ? nullptr : "127.0.0.1";
    check_ok(fi_getinfo(FI_VERSION(1, 17), node, nullptr, node ? FI_SOURCE : 0, hints, &info), "fi_getinfo()");
    fi_freeinfo(hints);
    fid_fabric* fabric = nullptr;
    check_ok(fi_fabric(info->fabric_attr, &fabric, nullptr), "fi_fabric()");
    check_ok(fi_domain(fabric, info, &domain, nullptr), "fi_domain()");
  }
  return std::make_unique<fabric_end>(domain, info, mine);
}

}  // namespace

library libfabric() { return {"libfabric", fi_tostr("", FI_TYPE_VERSION), {"tcp", "shm"}, ways, open}; }

}  // namespace late_writer
