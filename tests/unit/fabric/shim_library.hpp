// SPDX-License-Identifier: Apache-2.0
// libfabric with a seam: calls that fail when they are told to, and a record of the rules that are broken.
#pragma once

#include <weft/net/fabric/calls.hpp>

#include "fabric_map.hpp"

namespace weft::test {

/// Passes all calls on, but for those that fail, and watches what fi_efa(7) wants: nobody sends to an endpoint that
/// does not know the sender.
class shim_library : public net::fabric::fabric_calls {
 public:
  /// Has that call fail with that number, the next `times` times.
  void fail(std::string call, int number, unsigned times = 1) {
    const std::lock_guard lock(mutex_);
    failing_ = std::move(call);
    number_ = number;
    times_ = times;
  }
  /// Whether it has failed so often since.
  [[nodiscard]] bool has_failed() const {
    const std::lock_guard lock(mutex_);
    return times_ == 0;
  }
  /// From now on what is handed over to be sent is never heard of again.
  void lose_requests() {
    const std::lock_guard lock(mutex_);
    loses_ = true;
  }
  /// How many.
  [[nodiscard]] std::size_t lost() const {
    const std::lock_guard lock(mutex_);
    return lost_.size();
  }
  /// Has those that were lost be done after all, and loses no more.
  void find_lost_requests() {
    const std::lock_guard lock(mutex_);
    found_ = true;
    loses_ = false;
  }
  /// Is called before each endpoint is closed, by the thread that does so.
  void before_close(std::function<void()> what) { before_close_ = std::move(what); }

  /// Calls so far that may have moved bytes.
  [[nodiscard]] unsigned moves() const {
    const std::lock_guard lock(mutex_);
    return moves_;
  }
  [[nodiscard]] bool has_inserted(const void* address) const {
    const std::lock_guard lock(mutex_);
    return map_.has_inserted(address);
  }
  /// The rules that have been broken, in words; empty if none was.
  [[nodiscard]] std::vector<std::string> broken_rules() const {
    const std::lock_guard lock(mutex_);
    return broken_rules_;
  }

  int getinfo(const fi_info* hints, fi_info** found) noexcept override {
    return fails("getinfo") ? -number_ : real_.getinfo(hints, found);
  }
  void freeinfo(fi_info* info) noexcept override { real_.freeinfo(info); }
  fi_info* dupinfo(const fi_info* info) noexcept override { return fails("dupinfo") ? nullptr : real_.dupinfo(info); }
  const char* strerror(int number) noexcept override { return real_.strerror(number); }
  int fabric(fi_fabric_attr* wanted, fid_fabric** made) noexcept override {
    return fails("fabric") ? -number_ : real_.fabric(wanted, made);
  }
#define WEFT_TEST_CALL(type, name, parameters, arguments) \
  type name parameters noexcept override { return fails(#name) ? -number_ : fabric_calls::name arguments; }
  WEFT_TEST_CALL(int, domain, (fid_fabric * fabric, fi_info* info, fid_domain** made), (fabric, info, made))
  WEFT_TEST_CALL(int, cq_open, (fid_domain * domain, fi_cq_attr* wanted, fid_cq** made), (domain, wanted, made))
  WEFT_TEST_CALL(int, av_open, (fid_domain * domain, fi_av_attr* wanted, fid_av** made), (domain, wanted, made))
  WEFT_TEST_CALL(int, endpoint, (fid_domain * domain, fi_info* info, fid_ep** made), (domain, info, made))
  int ep_bind(fid_ep* endpoint, fid* to, std::uint64_t flags) noexcept override {
    if (fails("ep_bind")) return -number_;
    const std::lock_guard lock(mutex_);
    map_.bind(endpoint, to);
    return fabric_calls::ep_bind(endpoint, to, flags);
  }
  WEFT_TEST_CALL(int, enable, (fid_ep * endpoint), (endpoint))
  int getname(fid* endpoint, void* address, std::size_t* length) noexcept override {
    if (fails("getname")) return -number_;
    const int result = fabric_calls::getname(endpoint, address, length);
    const std::lock_guard lock(mutex_);
    if (result == 0) map_.name(endpoint, address, *length);
    return result;
  }
  int av_insert(fid_av* vector, const void* address, fi_addr_t* place) noexcept override {
    if (fails("av_insert")) return -number_;
    const int result = fabric_calls::av_insert(vector, address, place);
    const std::lock_guard lock(mutex_);
    if (result == 0) map_.insert(vector, address, *place);
    return result;
  }
  int close(fid* object) noexcept override {
    if (object->fclass == FI_CLASS_EP && before_close_) before_close_();
    {
      const std::lock_guard lock(mutex_);
      map_.close(object);
    }
    return fabric_calls::close(object);
  }

  WEFT_TEST_CALL(int, mr_regattr, (fid_domain * domain, const fi_mr_attr* wanted, std::uint64_t flags, fid_mr** made),
                 (domain, wanted, flags, made))
  WEFT_TEST_CALL(int, get_wait_fd, (fid_cq * queue, int* fd), (queue, fd))
  WEFT_TEST_CALL(int, trywait, (fid_fabric * fabric, fid_cq* queue), (fabric, queue))
  ssize_t cq_read(fid_cq* queue, fi_cq_msg_entry* found, std::size_t most) noexcept override {
    count_move();
    if (finds_lost(queue, *found)) return 1;
    return fails("cq_read") ? -number_ : fabric_calls::cq_read(queue, found, most);
  }
  WEFT_TEST_CALL(ssize_t, cq_readerr, (fid_cq * queue, fi_cq_err_entry* found), (queue, found))
#undef WEFT_TEST_CALL
  ssize_t recvmsg(fid_ep* endpoint, const fi_msg* what, std::uint64_t flags) noexcept override {
    count_move();
    return fails("recvmsg") ? -number_ : fabric_calls::recvmsg(endpoint, what, flags);
  }
  ssize_t sendmsg(fid_ep* endpoint, const fi_msg* what, std::uint64_t flags) noexcept override {
    check_sender(endpoint, what->addr);
    if (loses(endpoint, what->context)) return 0;
    return fails("sendmsg") ? -number_ : fabric_calls::sendmsg(endpoint, what, flags);
  }
  ssize_t writemsg(fid_ep* endpoint, const fi_msg_rma* what, std::uint64_t flags) noexcept override {
    check_sender(endpoint, what->addr);
    if (loses(endpoint, what->context)) return 0;
    return fails("writemsg") ? -number_ : fabric_calls::writemsg(endpoint, what, flags);
  }
  ssize_t readmsg(fid_ep* endpoint, const fi_msg_rma* what, std::uint64_t flags) noexcept override {
    check_sender(endpoint, what->addr);
    if (loses(endpoint, what->context)) return 0;
    return fails("readmsg") ? -number_ : fabric_calls::readmsg(endpoint, what, flags);
  }
  ssize_t fetch_atomicmsg(fid_ep* endpoint, const fi_msg_atomic* what, fi_ioc* result, void** result_desc,
                          std::uint64_t flags) noexcept override {
    check_sender(endpoint, what->addr);
    if (fails("fetch_atomicmsg")) return -number_;
    return fabric_calls::fetch_atomicmsg(endpoint, what, result, result_desc, flags);
  }
  ssize_t compare_atomicmsg(fid_ep* endpoint, const fi_msg_atomic* what, const fi_ioc* compare, void** compare_desc,
                            fi_ioc* result, void** result_desc, std::uint64_t flags) noexcept override {
    check_sender(endpoint, what->addr);
    if (fails("compare_atomicmsg")) return -number_;
    return fabric_calls::compare_atomicmsg(endpoint, what, compare, compare_desc, result, result_desc, flags);
  }

 protected:
  [[nodiscard]] bool fails(std::string_view call) noexcept {
    const std::lock_guard lock(mutex_);
    if (times_ == 0 || failing_ != call) return false;
    --times_;
    return true;
  }
  void broke(std::string rule) {
    const std::lock_guard lock(mutex_);
    broken_rules_.push_back(std::move(rule));
  }

  void count_move() noexcept {
    const std::lock_guard lock(mutex_);
    ++moves_;
  }
  // Such a message is lost, says fi_efa(7).
  void check_sender(fid_ep* endpoint, fi_addr_t to) noexcept {
    count_move();
    const std::lock_guard lock(mutex_);
    fid_ep* const receiver = map_.find(endpoint, to);
    if (receiver != nullptr && !map_.knows(receiver, endpoint)) broke("an endpoint was sent to that knows no sender");
  }

  fabric_calls& real_ = fabric_calls::library();
  mutable std::recursive_mutex mutex_;  // guards what this and derived classes have
  fabric_map map_;

 private:
  [[nodiscard]] bool loses(fid_ep* endpoint, void* context) noexcept {
    const std::lock_guard lock(mutex_);
    if (loses_) lost_.emplace_back(map_.queue_of(endpoint), context);
    return loses_;
  }
  [[nodiscard]] bool finds_lost(fid_cq* queue, fi_cq_msg_entry& out) noexcept {
    const std::lock_guard lock(mutex_);
    if (!found_) return false;
    const auto item = std::find_if(lost_.begin(), lost_.end(), [&](const auto& each) { return each.first == queue; });
    if (item == lost_.end()) return false;
    out = {};
    out.op_context = item->second;
    lost_.erase(item);
    return true;
  }
  bool loses_ = false;
  bool found_ = false;
  std::vector<std::pair<fid_cq*, void*>> lost_;  // by queue: contexts
  std::string failing_;
  int number_ = 0;
  unsigned times_ = 0;
  unsigned moves_ = 0;
  std::function<void()> before_close_;
  std::vector<std::string> broken_rules_;
};

}  // namespace weft::test
