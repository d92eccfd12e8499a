// SPDX-License-Identifier: Apache-2.0
// UCX: memory is taken back by unmapping it, by cancelling its operation, or by closing the endpoint.
#include <ucp/api/ucp.h>

#include <cstdlib>

#include "adapter.hpp"

namespace late_writer {
namespace {

constexpr std::string_view unmapped = "ucp_mem_unmap() returned UCS_OK";
constexpr std::string_view closed = "ucp_ep_close_nbx(FORCE) has completed";
constexpr std::string_view canceled = "ucp_request_cancel(): UCS_ERR_CANCELED";
constexpr std::string_view failed = "ucp_ep_close_nbx(FORCE): request failed";

// ucp.h: an access to unmapped memory "may" fail; closing by force completes the requests of this end, and nothing is
// said of those of the peer; a request that has completed no longer uses its memory.
constexpr std::array ways{
    way{operation::put, moment::during, unmapped, documented::unsaid, "ucp_mem_unmap"},
    way{operation::put, moment::during, closed, documented::unsaid, "UCP_EP_CLOSE_FLAG_FORCE"},
    way{operation::receive, moment::before, canceled, documented::excluded, "ucp_request_cancel"},
    way{operation::receive, moment::during, canceled, documented::excluded, "ucp_request_cancel"},
    way{operation::receive, moment::during, failed, documented::excluded, "UCP_EP_CLOSE_FLAG_FORCE"},
    way{operation::get, moment::during, failed, documented::excluded, "UCP_EP_CLOSE_FLAG_FORCE"},
};

void check_ok(ucs_status_t status, std::string_view call) { check(status == UCS_OK, call, ucs_status_string(status)); }

class ucx_end final : public end {
 public:
  ucx_end(ucp_context_h context, const part& mine) : end(mine), context_(context) {
    const ucp_worker_params_t of_one_thread{};
    check_ok(ucp_worker_create(context_, &of_one_thread, &worker_), "ucp_worker_create()");
    ucp_mem_map_params_t where{};
    where.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
    where.address = memory.data();
    where.length = memory.size();
    check_ok(ucp_mem_map(context_, &where, &mapped_), "ucp_mem_map()");
  }
  ~ucx_end() override {
    if (key_ != nullptr) ucp_rkey_destroy(key_);
    close();
    ucp_worker_destroy(worker_);
  }

  std::string describe() override {
    writer told;
    ucp_address_t* address = nullptr;
    void* key = nullptr;
    std::size_t size = 0;
    check_ok(ucp_worker_get_address(worker_, &address, &size), "ucp_worker_get_address()");
    told.add_bytes(address, size);
    check_ok(ucp_rkey_pack(context_, mapped_, &key, &size), "ucp_rkey_pack()");
    told.add_bytes(key, size).add(reinterpret_cast<std::uint64_t>(memory.data()));
    ucp_worker_release_address(worker_, address);
    ucp_rkey_buffer_release(key);
    if (is(operation::receive) && is_owner) {
      request_ = ucp_tag_recv_nbx(worker_, memory.data(), memory.size(), 1, ~ucp_tag_t{0}, &plain_);
    }
    return told.text();
  }

  void meet(const std::string& described) override {
    reader told(described);
    const std::string address = told.take_bytes();
    const std::string key = told.take_bytes();
    theirs_ = told.take<std::uint64_t>();
    ucp_ep_params_t options{};
    options.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
    options.address = reinterpret_cast<const ucp_address_t*>(address.data());
    options.err_mode = UCP_ERR_HANDLING_MODE_PEER;  // closing by force needs it; it is not the default
    check_ok(ucp_ep_create(worker_, &options, &endpoint_), "ucp_ep_create()");
    check_ok(ucp_ep_rkey_unpack(endpoint_, key.data(), &key_), "ucp_ep_rkey_unpack()");
    if (is(operation::get) && is_owner) {
      request_ = ucp_get_nbx(endpoint_, memory.data(), memory.size(), theirs_, key_, &plain_);
    } else if (is(operation::receive) && !is_owner) {
      request_ = ucp_tag_send_nbx(endpoint_, memory.data(), memory.size(), 1, &plain_);
    }
  }

  void turn() override {
    ucp_worker_progress(worker_);
    if (!is(operation::put) || is_owner || endpoint_ == nullptr || state() == UCS_INPROGRESS) return;
    if (UCS_PTR_IS_PTR(request_)) ucp_request_free(std::exchange(request_, nullptr));
    request_ = ucp_put_nbx(endpoint_, memory.data(), memory.size(), theirs_, key_, &plain_);
    check(!UCS_PTR_IS_ERR(request_), "ucp_put_nbx()", ucs_status_string(UCS_PTR_STATUS(request_)));
  }

  outcome give_up() override {
    if (how.sign == unmapped) {
      check_ok(ucp_mem_unmap(context_, std::exchange(mapped_, nullptr)), "ucp_mem_unmap()");
      return outcome::told;
    }
    if (is(operation::put)) return close() ? outcome::told : outcome::untold;
    if (state() == UCS_OK) return outcome::completed;
    if (how.sign == canceled) ucp_request_cancel(worker_, request_);
    if (how.sign == failed && !close()) return outcome::untold;
    if (!turn_until([this] { return state() != UCS_INPROGRESS; })) return outcome::untold;
    return state() == UCS_OK ? outcome::completed : outcome::told;
  }

 private:
  [[nodiscard]] ucs_status_t state() const {
    return UCS_PTR_IS_PTR(request_) ? ucp_request_check_status(request_) : UCS_PTR_STATUS(request_);
  }
  bool close() {
    if (endpoint_ == nullptr) return true;
    ucp_request_param_t how_to_close{};
    how_to_close.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    how_to_close.flags = how.sign == unmapped ? 0 : UCP_EP_CLOSE_FLAG_FORCE;  // 0: when its puts have ended
    const ucs_status_ptr_t closing = ucp_ep_close_nbx(std::exchange(endpoint_, nullptr), &how_to_close);
    if (!UCS_PTR_IS_PTR(closing)) return UCS_PTR_STATUS(closing) == UCS_OK;
    turn_until([closing] { return ucp_request_check_status(closing) != UCS_INPROGRESS; });
    return ucp_request_check_status(closing) == UCS_OK;  // the handle goes with the process
  }

  const ucp_context_h context_;
  const ucp_request_param_t plain_{};
  ucp_worker_h worker_ = nullptr;
  ucp_mem_h mapped_ = nullptr;
  ucp_ep_h endpoint_ = nullptr;
  ucp_rkey_h key_ = nullptr;
  std::uint64_t theirs_ = 0;  // the other end's memory
  void* request_ = nullptr;
};

std::unique_ptr<end> open(const std::string& transport, const part& mine) {
  static ucp_context_h context = nullptr;
  if (context == nullptr) {
    setenv("UCX_MM_ERROR_HANDLING", "y", 0);  // without it, shared memory has no closing by force
    ucp_config_t* config = nullptr;
    check_ok(ucp_config_read(nullptr, nullptr, &config), "ucp_config_read()");
    check_ok(ucp_config_modify(config, "TLS", transport == "shm" ? "posix,cma" : "tcp"), "UCX_TLS");
    ucp_params_t options{};
    options.field_mask = UCP_PARAM_FIELD_FEATURES;
    options.features = mine.is(operation::receive) ? UCP_FEATURE_TAG : UCP_FEATURE_RMA;
    check_ok(ucp_init(&options, config, &context), "ucp_init()");
    ucp_config_release(config);
  }
  return std::make_unique<ucx_end>(context, mine);
}

}  // namespace

library ucx() { return {"UCX", ucp_get_version_string(), {"tcp", "shm"}, ways, open}; }

}  // namespace late_writer
