// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/fabric/calls.hpp>
#include <weft/net/fabric/order.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/intrusive_list.hpp>
#include <weft/runtime/io/socket_address.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace weft::net::fabric {

/// The modes of registration that weft honours: fi_mr(3). FI_MR_HMEM is not among them, because device memory is
/// never registered here; nor FI_MR_COLLECTIVE, because there are no collective operations; nor FI_MR_RAW, because keys
/// have 64 bits.
inline constexpr int honoured_mr_modes = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY |
                                         FI_MR_MMU_NOTIFY | FI_MR_RMA_EVENT | FI_MR_ENDPOINT;

/// The longest address of an endpoint that weft accepts.
inline constexpr std::size_t max_address_bytes = 128;

/// Closes an object of libfabric. Terminates the process if an endpoint or a region cannot be closed, because the
/// provider and its peers could go on using memory that is about to be reused.
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

/// Closes a region, inside device::enter_for_region().
struct region_closer {
  const device* home = nullptr;
  void operator()(fid_mr* region) const noexcept;
};
using region_ptr = std::unique_ptr<fid_mr, region_closer>;

/// The providers with FI_EP_RDM on this machine, as fi_info(1) lists them. Empty if there are none, or if libfabric
/// cannot list them.
[[nodiscard]] std::vector<std::string> provider_names(fabric_calls& library);

/// The owner of an endpoint, whose peer may be using any region of the endpoint's device that is open to every peer.
class fence_audience : public weft::detail::list_hook<fence_audience> {
 public:
  fence_audience(const fence_audience&) = delete;
  fence_audience& operator=(const fence_audience&) = delete;

  /// Called on any thread once the region with that key, which was open to every peer, has been closed. The device has
  /// been frozen once for this call: call thaw() once, as soon as the peer no longer uses the region.
  virtual void fence(std::uint64_t key) noexcept = 0;

 protected:
  fence_audience() = default;
  ~fence_audience() = default;
};

/// The scope in which calls on an endpoint are made: device::enter().
class entry {
 public:
  entry() noexcept = default;
  entry(std::unique_lock<std::mutex> lock, bool may_move_bytes) noexcept
      : lock_(std::move(lock)), may_move_bytes_(may_move_bytes) {}
  /// Whether calls that move bytes are allowed; false while the device is frozen.
  [[nodiscard]] bool may_move_bytes() const noexcept { return may_move_bytes_; }

 private:
  std::unique_lock<std::mutex> lock_;
  bool may_move_bytes_ = true;
};

/// A provider's domain, shared by everything on it. Thread-safe; immutable except for its freezes and audience.
class device {
 public:
  /// Opens the provider of that name ("tcp;ofi_rxm", or "tcp" for the first that is layered on tcp); with an empty
  /// name, libfabric's own choice. Throws std::bad_alloc and weft::error: errc::not_supported if there is no such
  /// provider (the text names those that there are), or if the provider requires what weft lacks.
  device(fabric_calls& library, std::string_view provider);
  device(const device&) = delete;
  device& operator=(const device&) = delete;

  [[nodiscard]] fabric_calls& calls() const noexcept { return calls_; }
  /// The name that was asked for; the provider's own name, if no name was.
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  /// "tcp;ofi_rxm"
  [[nodiscard]] std::string_view provider() const noexcept { return info_->fabric_attr->prov_name; }
  [[nodiscard]] const fi_info& info() const noexcept { return *info_; }
  [[nodiscard]] fid_fabric* fabric() const noexcept { return fabric_.get(); }
  [[nodiscard]] fid_domain* domain() const noexcept { return domain_.get(); }
  [[nodiscard]] const order_table& order() const noexcept { return order_; }
  [[nodiscard]] bool has_atomics() const noexcept { return atomics_; }
  [[nodiscard]] bool needs(int mr_mode) const noexcept { return (info_->domain_attr->mr_mode & mr_mode) != 0; }
  /// Whether regions may be open to every peer that has their key: not with FI_MR_ENDPOINT, and not with a provider in
  /// software that cannot be frozen, which would place the rest of a write after its region was closed.
  [[nodiscard]] bool opens_regions() const noexcept { return can_freeze() && !needs(FI_MR_ENDPOINT); }
  /// True if the processor, and not a device, moves the bytes of peers; false if that is not known.
  [[nodiscard]] bool writes_by_processor() const noexcept { return keeps_regions_in_software_; }
  /// For calls on an endpoint. Serializes calls into providers in software, because in libfabric 1.17 these may
  /// progress an endpoint that another thread is closing, although they claim FI_THREAD_SAFE. With other providers,
  /// takes no lock.
  [[nodiscard]] entry enter() const {
    if (!in_software_) return {};
    std::unique_lock lock(mutex_);
    return {std::move(lock), freezes_ == 0};
  }
  /// For calls on regions. Takes the lock of enter() if libfabric keeps regions in a table, because its net provider
  /// (1.17) looks keys up without a lock. Otherwise takes none, because a call may take long to pin memory.
  [[nodiscard]] entry enter_for_region() const { return keeps_regions_in_software_ ? enter() : entry(); }
  /// Whether the provider moves bytes only inside calls, as freeze() requires, or leaves that to hardware.
  [[nodiscard]] bool can_freeze() const noexcept;
  /// Freezes a provider in software: entry::may_move_bytes() is false until there was a thaw() for each freeze(). Does
  /// nothing to hardware, which by itself stops at a region that is closed.
  void freeze() const noexcept;
  void thaw() const noexcept;
  [[nodiscard]] bool is_frozen() const noexcept {
    const std::lock_guard lock(mutex_);
    return freezes_ != 0;
  }
  /// Adds an audience, which fence() notifies until remove(). From any thread. `which` must live until remove().
  void add(fence_audience& which) const noexcept;
  void remove(fence_audience& which) const noexcept;
  /// Notifies every audience that a region which was open to every peer has been closed, and freezes the device once
  /// for each audience. Does nothing if the device is hardware.
  void fence(std::uint64_t key) const noexcept;

  struct info_closer {
    fabric_calls* calls = nullptr;
    void operator()(fi_info* info) const noexcept { calls->freeinfo(info); }
  };
  using info_ptr = std::unique_ptr<fi_info, info_closer>;
  /// Returns the fi_info for an endpoint: at that address if the provider is over IP and its own address has that
  /// length, also if that is IPv4 and the address is IPv4 mapped into IPv6, as a listener on "[::]" has it; else at an
  /// address of the provider's choice. Throws std::bad_alloc.
  [[nodiscard]] info_ptr info_at(const void* address, std::size_t length) const;
  /// Whether a peer whose end of the socket is at `peer` may have its endpoint at `endpoint`: over IP, only on the same
  /// host or in another address family, so that no peer makes this end send to a third party. Other providers'
  /// addresses do not tell, so all are accepted.
  [[nodiscard]] bool may_be_at(std::span<const std::byte> endpoint, const socket_address& peer) const noexcept;

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
  mutable unsigned freezes_ = 0;  // under mutex_
  mutable std::mutex audience_mutex_;
  mutable weft::detail::intrusive_list<fence_audience> audience_;  // under audience_mutex_
  fid_ptr<fid_fabric> fabric_;
  fid_ptr<fid_domain> domain_;
};

/// Throws the error of a failed call of libfabric. `step` says what was tried.
[[noreturn]] void throw_failure(fabric_calls& library, int failure, const std::string& step);

}  // namespace weft::net::fabric
