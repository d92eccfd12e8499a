// SPDX-License-Identifier: Apache-2.0
// Providers that ask for modes of registration: fi_mr(3).
#pragma once

#include "shim_library.hpp"

namespace weft::test {

/// A provider that asks for modes of registration beside those of the one underneath, and looks whether they are kept:
///
/// - FI_MR_LOCAL: local memory comes with the descriptor of a region that holds it and has the right for that.
/// - FI_MR_VIRT_ADDR: peers name memory by its address.
/// - FI_MR_PROV_KEY: nobody asks for a key. The provider uses the key of a region that is closed for the next one.
/// - FI_MR_ENDPOINT: what a peer uses has been bound to the endpoint that it goes to, and enabled, and the endpoint
/// goes
///   after it.
/// - FI_MR_RMA_EVENT: what a peer uses has been enabled.
/// - FI_MR_ALLOCATED: the memory of a region is there.
class demanding_library final : public shim_library {
 public:
  explicit demanding_library(int modes) : modes_(modes) {}

  [[nodiscard]] std::size_t regions() const {
    const std::lock_guard lock(mutex_);
    return regions_.size();
  }

  int getinfo(const fi_info* hints, fi_info** found) noexcept override;
  int domain(fid_fabric* fabric, fi_info* info, fid_domain** made) noexcept override;
  int endpoint(fid_domain* domain, fi_info* info, fid_ep** made) noexcept override;
  int close(fid* object) noexcept override;

  int mr_regattr(fid_domain* domain, const fi_mr_attr* wanted, std::uint64_t flags, fid_mr** made) noexcept override;
  int mr_bind(fid_mr* region, fid* to, std::uint64_t flags) noexcept override;
  int mr_enable(fid_mr* region) noexcept override;

  ssize_t recvmsg(fid_ep* endpoint, const fi_msg* what, std::uint64_t flags) noexcept override;
  ssize_t sendmsg(fid_ep* endpoint, const fi_msg* what, std::uint64_t flags) noexcept override;
  ssize_t writemsg(fid_ep* endpoint, const fi_msg_rma* what, std::uint64_t flags) noexcept override;
  ssize_t readmsg(fid_ep* endpoint, const fi_msg_rma* what, std::uint64_t flags) noexcept override;
  ssize_t fetch_atomicmsg(fid_ep* endpoint, const fi_msg_atomic* what, fi_ioc* result, void** result_desc,
                          std::uint64_t flags) noexcept override;

 private:
  struct region {
    std::uintptr_t begin = 0;
    std::size_t bytes = 0;
    std::uint64_t rights = 0;
    std::uint64_t key = 0;  // of the provider underneath
    fid* bound = nullptr;
    bool is_enabled = false;
  };

  [[nodiscard]] bool wants(int mode) const noexcept { return (modes_ & mode) != 0; }
  [[nodiscard]] region* find(std::uint64_t key) noexcept;
  [[nodiscard]] std::uint64_t lowest_free_key() noexcept;
  void check_local(std::span<const iovec> ranges, void* const* descs, std::uint64_t right);
  void check_there(fid_ep* from, fi_addr_t to, const region& target);
  /// Makes the address the provider's underneath.
  void translate(fid_ep* from, fi_addr_t to, std::uint64_t& address, std::uint64_t key);

  const int modes_;
  int modes_underneath_ = 0;
  std::map<fid_mr*, region> regions_;
};

/// "local_and_endpoint", or "none".
[[nodiscard]] std::string names_of_modes(int modes);

}  // namespace weft::test
