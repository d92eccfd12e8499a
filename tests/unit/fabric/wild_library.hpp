// SPDX-License-Identifier: Apache-2.0
// Providers that keep no more than their promises: order, and room.
#pragma once

#include <random>

#include "shim_library.hpp"

namespace weft::test {

/// What a wild provider promises, and what else happens.
struct wildness {
  bool ordered = false;    ///< promises the order of the provider underneath: only completions are out of it
  bool strangers = false;  ///< ahead of each message comes its like with another token
};

/// A provider whose completions come late and in a wild order, and which has no room for one request in three. Where it
/// promises no order it has none: requests are carried out some looks at the queue later, each whenever it likes. A
/// write without FI_DELIVERY_COMPLETE is done before that.
class wild_library final : public shim_library {
 public:
  wild_library(unsigned seed, wildness how);
  ~wild_library() override;

  /// How many requests have been carried out after one that was handed over later.
  [[nodiscard]] unsigned overtaken() const {
    const std::lock_guard lock(mutex_);
    return overtaken_;
  }

  int getinfo(const fi_info* hints, fi_info** found) noexcept override;
  ssize_t sendmsg(fid_ep* endpoint, const fi_msg* what, std::uint64_t flags) noexcept override;
  ssize_t writemsg(fid_ep* endpoint, const fi_msg_rma* what, std::uint64_t flags) noexcept override;
  ssize_t readmsg(fid_ep* endpoint, const fi_msg_rma* what, std::uint64_t flags) noexcept override;
  ssize_t recvmsg(fid_ep* endpoint, const fi_msg* what, std::uint64_t flags) noexcept override;
  ssize_t cq_read(fid_cq* queue, fi_cq_msg_entry* found, std::size_t most) noexcept override;
  int trywait(fid_fabric* fabric, fid_cq* queue) noexcept override;
  int close(fid* object) noexcept override;

 private:
  struct request;
  struct state {
    std::vector<fi_cq_msg_entry> kept;           // completions that have not been handed out
    std::vector<std::unique_ptr<request>> held;  // handed over, and not carried out
    std::vector<std::unique_ptr<request>> own;   // carried out; their completions are for nobody
  };

  ssize_t hold(std::unique_ptr<request> item);
  void send_ahead_of(fid_ep* endpoint, const fi_msg& what);
  void carry_out(state& at);
  ssize_t collect(fid_cq* queue, state& at);
  bool is_full() noexcept { return random_() % 3 == 0; }

  wildness how_;
  std::mt19937 random_;
  unsigned handed_over_ = 0;
  unsigned overtaken_ = 0;
  std::map<fid_cq*, state> queues_;
};

/// A provider whose completions are there only for who has asked fi_trywait(3), which is what that call is for.
class shy_library final : public shim_library {
 public:
  ssize_t cq_read(fid_cq* queue, fi_cq_msg_entry* found, std::size_t most) noexcept override;
  int trywait(fid_fabric* fabric, fid_cq* queue) noexcept override;
  int close(fid* object) noexcept override;

 private:
  struct state {
    std::vector<fi_cq_msg_entry> kept;
    bool is_announced = false;
  };
  std::map<fid_cq*, state> queues_;
};

}  // namespace weft::test
