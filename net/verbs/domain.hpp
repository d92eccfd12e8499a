// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/domain.hpp>
#include <weft/net/verbs/device.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace weft::net::verbs {

/// The protection domain of an RDMA device: registering tells the device about pages, with ibv_reg_mr(3), and pins them
/// unless they are paged on demand.
///
/// The key of a region works on every connection of the device. Only a window of type 2 opens memory to the peer of one
/// connection alone (rdma_link::expose()).
class domain final : public mr::domain {
 public:
  explicit domain(std::shared_ptr<device> home);

  /// The device's region behind registered memory, if windows with these rights can be bound to it; else null. It lives
  /// as long as the caller keeps the memory registered.
  [[nodiscard]] ibv_mr* find(const mr::memory_record& memory, mr::access rights) const noexcept;

  void be_fabric(std::size_t place) noexcept override {
    mr::domain::be_fabric(place);
    device_->be_fabric(place);
  }

 private:
  struct deregister {
    rdma_calls* calls;
    void operator()(ibv_mr* region) const noexcept;
  };
  using held_region = std::unique_ptr<ibv_mr, deregister>;

  // The object to which a registration's handle points.
  struct entry {
    held_region own;        // at the memory's own address, for local operations and windows; null: not needed
    held_region for_peers;  // at another address, for peers; null: peers, if they have access, use `own`
    mr::access rights{};    // of `own`

    [[nodiscard]] const ibv_mr& key_region() const noexcept { return for_peers != nullptr ? *for_peers : *own; }
  };

  mr::registration do_register(std::span<std::byte> memory, const mr::registration_options& options) override;
  void do_deregister(mr::registration& item) noexcept override;
  [[nodiscard]] mr::access rights_of(mr::usage purpose) const noexcept;
  void check_size(std::span<std::byte> memory, const std::string& what) const;
  void check_count(const std::string& what);
  void check_flushed(std::span<std::byte> memory, const mr::registration_options& options,
                     const std::string& what) const;
  [[nodiscard]] entry make_regions(std::span<std::byte> memory, const mr::registration_options& options,
                                   const std::string& what);
  [[nodiscard]] held_region make_region(std::span<std::byte> memory, std::uint64_t address, mr::access rights,
                                        const mr::registration_options& options, const std::string& what);

  [[nodiscard]] held_region make_region_of_device(std::span<std::byte> memory, unsigned flags, mr::memory_device& owner,
                                                  const std::string& what);

  std::shared_ptr<device> device_;
  std::atomic<std::size_t> regions_{0};
};

}  // namespace weft::net::verbs
