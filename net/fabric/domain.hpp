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

/// The rights of fi_mr(3) that peers need for such uses. There is none for atomic operations alone.
[[nodiscard]] std::uint64_t rights_of_peers(mr::usage uses) noexcept;

/// What a peer may do with memory that a key opens.
struct opened_memory {
  std::uint64_t address = 0;  ///< of the first byte, as peers say it
  std::uint64_t bytes = 0;
  std::uint64_t rights = 0;  ///< FI_REMOTE_READ, FI_REMOTE_WRITE

  /// Whether such an access is within it.
  [[nodiscard]] bool allows(std::uint64_t first, std::uint64_t length, std::uint64_t needed) const noexcept {
    if ((rights & needed) != needed || first < address) return false;
    return first - address <= bytes && length <= bytes - (first - address);
  }
};

/// Makes a region of libfabric's. Where weft chooses the key, it is drawn at random from all that the provider can
/// have, so that nobody guesses it. `bound` is the endpoint to bind it to where the provider wants that
/// (FI_MR_ENDPOINT), and may be null elsewhere. For workers. Throws weft::error, with `what` in its words.
[[nodiscard]] region_ptr register_region(const device& home, std::span<std::byte> memory, std::uint64_t rights,
                                         fid_ep* bound, const char* what);
/// The key by which peers name the region: a number, or a blob with FI_MR_RAW. Throws weft::error.
[[nodiscard]] mr::remote_key key_of(const device& home, fid_mr* region);

/// The protection domain of a provider: regions of fi_mr(3), which peers name by keys of 64 bits, or raw ones.
///
/// Memory gets a region only where the provider wants one for our own operations (FI_MR_LOCAL), or peers are let in. A
/// key opens its region to every endpoint of the domain that knows it. Peers of a provider without FI_MR_VIRT_ADDR
/// count addresses from 0. Where device::opens_regions() is false, only what is exposed to one peer has a key.
class domain final : public mr::domain {
 public:
  explicit domain(std::shared_ptr<device> home);

  [[nodiscard]] const device& home() const noexcept { return *device_; }
  /// What that key of a region opens to every peer; nothing if it is none.
  [[nodiscard]] opened_memory find(std::uint64_t key) const noexcept;

 private:
  mr::registration do_register(std::span<std::byte> memory, const mr::registration_options& options) override;
  void do_deregister(mr::registration& item) noexcept override;

  std::shared_ptr<device> device_;
  mutable std::mutex mutex_;
  std::map<std::uint64_t, opened_memory> open_;  // by key, under the mutex
};

}  // namespace weft::net::fabric
