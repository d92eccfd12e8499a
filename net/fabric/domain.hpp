// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/domain.hpp>
#include <weft/net/fabric/device.hpp>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>

namespace weft::net::fabric {

/// The rights of fi_mr(3) that peers need for `uses`. Atomic operations have no right of their own.
[[nodiscard]] std::uint64_t rights_of_peers(mr::usage uses) noexcept;

/// The memory that a key opens to peers, and their rights.
struct opened_memory {
  std::uint64_t address = 0;  ///< of the first byte, as peers name it
  std::uint64_t bytes = 0;
  std::uint64_t rights = 0;  ///< FI_REMOTE_READ, FI_REMOTE_WRITE

  /// Whether the access is within the memory and the rights.
  [[nodiscard]] bool allows(std::uint64_t first, std::uint64_t length, std::uint64_t needed) const noexcept {
    if ((rights & needed) != needed || first < address) return false;
    return first - address <= bytes && length <= bytes - (first - address);
  }
};

/// Registers memory with libfabric. A key that weft chooses is drawn at random from all keys of the provider, so that
/// nobody guesses it. With FI_MR_ENDPOINT the region is bound to the endpoint `bound`, unless that is null: memory that
/// only this end uses needs no endpoint. Called on workers. Throws weft::error; if a call of libfabric has failed, the
/// text contains `what`.
[[nodiscard]] region_ptr register_region(const device& home, std::span<std::byte> memory, std::uint64_t rights,
                                         fid_ep* bound, const char* what);

/// The protection domain of a provider: regions of fi_mr(3), which peers name by keys of 64 bits.
///
/// Memory gets a region only if the provider needs one for this end's operations (FI_MR_LOCAL), or peers may access it.
/// A key opens its region to every peer of the domain that knows the key. Without FI_MR_VIRT_ADDR, peers count
/// addresses from 0. If device::opens_regions() is false, only memory that is exposed to one peer has a key.
class domain final : public mr::domain {
 public:
  explicit domain(std::shared_ptr<device> home);

  [[nodiscard]] const device& home() const noexcept { return *device_; }
  /// The memory that a region's key opens to every peer; without rights if no region has this key.
  [[nodiscard]] opened_memory find(std::uint64_t key) const noexcept;

 private:
  mr::registration do_register(std::span<std::byte> memory, const mr::registration_options& options) override;
  void do_deregister(mr::registration& item) noexcept override;

  std::shared_ptr<device> device_;
  mutable std::mutex mutex_;
  std::map<std::uint64_t, opened_memory> open_;  // by key, under the mutex
};

}  // namespace weft::net::fabric
