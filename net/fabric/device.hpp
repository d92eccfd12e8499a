// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/fabric/calls.hpp>
#include <weft/net/fabric/order.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/intrusive_list.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace weft::net::fabric {

/// The modes of registration that weft honours: fi_mr(3). FI_MR_HMEM is not among them, because there is no device
/// memory, and FI_MR_COLLECTIVE, because there are no collective operations.
inline constexpr int honoured_mr_modes = FI_MR_LOCAL | FI_MR_RAW | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY |
                                         FI_MR_MMU_NOTIFY | FI_MR_RMA_EVENT | FI_MR_ENDPOINT;

/// The longest address of an endpoint that weft takes.
inline constexpr std::size_t max_address_bytes = 128;

/// Closes an object of libfabric. Ends the process where an endpoint, or a region, cannot be closed, because the
/// provider and its peers may use memory by it that is about to be another's.
struct fid_closer {
  fabric_calls* calls = nullptr;
  template <class Object>
  void operator()(Object* object) const noexcept {
    constexpr bool opens_memory = std::is_same_v<Object, fid_mr> || std::is_same_v<Object, fid_ep>;
    if (calls->close(&object->fid) < 0 && opens_memory) {
      weft::detail::terminate_because("libfabric could not close what memory is used by, and peers may still use it");
    }
  }
};
template <class Object>
using fid_ptr = std::unique_ptr<Object, fid_closer>;

class device;

/// The same for a region, in its turn: device::enter_for_region().
struct region_closer {
  const device* home = nullptr;
  void operator()(fid_mr* region) const noexcept;
};
using region_ptr = std::unique_ptr<fid_mr, region_closer>;

/// The providers with FI_EP_RDM on this machine, as fi_info(1) lists them. Empty if there are none.
[[nodiscard]] std::vector<std::string> provider_names(fabric_calls& library);

/// Who has an endpoint of a device, over which a peer may be using any region of it.
class fence_audience : public weft::detail::list_hook<fence_audience> {
 public:
  fence_audience(const fence_audience&) = delete;
  fence_audience& operator=(const fence_audience&) = delete;

  /// A region has been closed, which had that key. The device stays frozen until thaw(): once the peer does not use it
  /// any more. On any thread.
  virtual void fence(std::uint64_t key) noexcept = 0;

 protected:
  fence_audience() = default;
  ~fence_audience() = default;
};

/// What calls about an endpoint are made inside: device::enter().
class entry {
 public:
  entry() noexcept = default;
  entry(std::unique_lock<std::mutex> lock, bool may_move_bytes) noexcept
      : lock_(std::move(lock)), may_move_bytes_(may_move_bytes) {}
  /// False while the device is frozen.
  [[nodiscard]] bool may_move_bytes() const noexcept { return may_move_bytes_; }

 private:
  std::unique_lock<std::mutex> lock_;
  bool may_move_bytes_ = true;
};

/// A provider's domain, shared by everything on it. Thread-safe, and immutable but for its freezes.
class device {
 public:
  /// The provider of that name ("tcp;ofi_rxm", or "tcp" for the first that stands on tcp), or with no name libfabric's
  /// own choice. Throws weft::error: errc::not_supported where there is none, with the names of those that there are.
  device(fabric_calls& library, std::string_view provider);
  device(const device&) = delete;
  device& operator=(const device&) = delete;

  [[nodiscard]] fabric_calls& calls() const noexcept { return calls_; }
  /// As it was asked for; the provider's own name, if nothing was.
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  /// "tcp;ofi_rxm"
  [[nodiscard]] std::string_view provider() const noexcept { return info_->fabric_attr->prov_name; }
  [[nodiscard]] const fi_info& info() const noexcept { return *info_; }
  [[nodiscard]] fid_fabric* fabric() const noexcept { return fabric_.get(); }
  [[nodiscard]] fid_domain* domain() const noexcept { return domain_.get(); }
  [[nodiscard]] const order_table& order() const noexcept { return order_; }
  [[nodiscard]] bool has_atomics() const noexcept { return atomics_; }
  [[nodiscard]] bool needs(int mr_mode) const noexcept { return (info_->domain_attr->mr_mode & mr_mode) != 0; }
  /// Whether regions may be open to every peer that has their key: not with FI_MR_ENDPOINT, and not where a provider in
  /// software would place the rest of a write behind the end of its region.
  [[nodiscard]] bool opens_regions() const noexcept { return can_freeze() && !needs(FI_MR_ENDPOINT); }
  /// For calls about an endpoint: with the providers in software, one at a time, because those of 1.17 may progress an
  /// endpoint that another thread is just closing, whatever they say of FI_THREAD_SAFE. With others it holds nothing.
  [[nodiscard]] entry enter() const {
    if (!in_software_) return {};
    std::unique_lock lock(mutex_);
    return {std::move(lock), freezes_ == 0};
  }
  /// For calls about regions: where nothing but libfabric keeps them, among the others, because net of 1.17 looks its
  /// keys up without a lock. Elsewhere a call may pin much memory, and holds nobody up.
  [[nodiscard]] entry enter_for_region() const { return keeps_regions_in_software_ ? enter() : entry(); }
  /// Whether the provider moves bytes only inside calls, as freeze() wants it, or leaves that to hardware.
  [[nodiscard]] bool can_freeze() const noexcept;
  /// Stops a provider in software: whoever enters makes no call that moves bytes, until each freeze() has had its
  /// thaw(). Hardware goes on: it stops at a region that is closed.
  void freeze() const noexcept;
  void thaw() const noexcept;
  [[nodiscard]] bool is_frozen() const noexcept {
    const std::lock_guard lock(mutex_);
    return freezes_ != 0;
  }
  /// From any thread. `which` stays until remove(), behind which it hears of nothing.
  void add(fence_audience& which) const noexcept;
  void remove(fence_audience& which) const noexcept;
  /// A region that was open to every peer has been closed: freezes a device in software once for each audience.
  void fence(std::uint64_t key) const noexcept;

  /// The information for an endpoint; with a provider over IP, one at that address. Throws std::bad_alloc.
  struct info_closer {
    fabric_calls* calls = nullptr;
    void operator()(fi_info* info) const noexcept { calls->freeinfo(info); }
  };
  using info_ptr = std::unique_ptr<fi_info, info_closer>;
  [[nodiscard]] info_ptr info_at(const void* address, std::size_t length) const;

 private:
  void choose(std::string_view provider);
  [[nodiscard]] bool try_choice(const std::string& provider, bool ordered, bool atomics);
  void check_choice() const;

  fabric_calls& calls_;
  std::string name_;
  info_ptr info_;
  order_table order_;
  bool atomics_ = false;
  bool in_software_ = false;
  bool keeps_regions_in_software_ = false;
  mutable std::mutex mutex_;
  mutable unsigned freezes_ = 0;  // under the mutex
  mutable std::mutex audience_mutex_;
  mutable weft::detail::intrusive_list<fence_audience> audience_;  // under that mutex
  fid_ptr<fid_fabric> fabric_;
  fid_ptr<fid_domain> domain_;
};

/// Throws a failed call of libfabric as an error: `step` is what was tried.
[[noreturn]] void throw_failure(fabric_calls& library, int failure, const std::string& step);

}  // namespace weft::net::fabric
