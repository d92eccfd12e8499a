// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/domain.hpp>
#include <weft/net/verbs/device.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>

namespace weft::net::verbs {

/// The protection domain of an RDMA device: registering pins pages and tells the device about them, with ibv_reg_mr(3).
///
/// A key opens its region to every connection of the device that peers are given it for; what only one connection's
/// peer may use is a window (rdma_link::expose()).
class domain final : public mr::domain {
 public:
  explicit domain(std::shared_ptr<device> home);

  /// A region that contains `memory` and can bear windows with these rights; null if there is none. It stays for as
  /// long as the caller keeps the memory registered.
  [[nodiscard]] ibv_mr* find(std::span<const std::byte> memory, mr::access rights);

 private:
  struct deregister {
    rdma_calls* calls;
    void operator()(ibv_mr* region) const noexcept;
  };
  using held_region = std::unique_ptr<ibv_mr, deregister>;

  struct entry {
    held_region own;        // at the memory's own address: for our operations, and for windows
    held_region for_peers;  // null: theirs is the same
    mr::access rights{};    // of `own`
    std::size_t bytes = 0;
    bool changeable = false;  // by ibv_rereg_mr(3)

    [[nodiscard]] const ibv_mr& key_region() const noexcept { return for_peers != nullptr ? *for_peers : *own; }
  };
  using table = std::multimap<std::uintptr_t, entry>;  // by the first byte

  mr::registration do_register(std::span<std::byte> memory, const mr::registration_options& options) override;
  void do_deregister(mr::registration& item) noexcept override;
  void do_reregister(std::optional<mr::registration>& item, std::span<std::byte> memory,
                     const mr::registration_options& options) override;
  [[nodiscard]] mr::access rights_of(mr::usage purpose, const mr::registration_options& options) const noexcept;
  void check_size(std::span<std::byte> memory, const std::string& what) const;
  void check_count(const std::string& what);
  [[nodiscard]] entry make_regions(std::span<std::byte> memory, const mr::registration_options& options,
                                   const std::string& what);
  [[nodiscard]] held_region make_region(std::span<std::byte> memory, std::uint64_t address, mr::access rights,
                                        const mr::registration_options& options, const std::string& what);

  enum class change_result : std::uint8_t { changed, untouched, lost };
  [[nodiscard]] change_result change(mr::registration& item, std::span<std::byte> memory,
                                     const mr::registration_options& options);
  [[nodiscard]] static change_result result_of(int code, int failure) noexcept;

  std::shared_ptr<device> device_;
  std::mutex mutex_;
  table regions_;
  std::size_t longest_ = 0;  // of all regions ever: how far back to look for one that contains an address
};

}  // namespace weft::net::verbs
