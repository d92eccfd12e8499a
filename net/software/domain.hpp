// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/domain.hpp>
#include <weft/net/software/key_table.hpp>

#include <cstddef>
#include <span>
#include <string>

namespace weft::net::software {

/// The protection domain of a transport in software, which executes peers' requests in this process: a table of keys.
/// Nothing is pinned, and registering is cheap.
///
/// Memory gets a key only if its usage gives peers access, or if a key is requested. Local reads need none, because
/// their responses do not name memory by a key of this table; so usage::read_dst opens nothing to peers here.
///
/// Because nothing is pinned, registration checks that memory is mapped with the rights that its usage needs, and
/// throws EFAULT if not, as with a device: see check_memory(). Lazy regions are not checked. If memory is unmapped or
/// protected afterwards, a peer's access may end the process, unless the region is lazy.
class domain final : public mr::domain {
 public:
  /// `name` is the transport's, for errors.
  domain(system_calls& calls, std::string name);

  [[nodiscard]] key_table& keys() noexcept { return keys_; }

  [[nodiscard]] bool may_shrink(const mr::memory_record& memory) const noexcept override {
    const mr::registration& item = memory.in(fabric());
    return item.handle != nullptr && may_lose_pages(item);
  }
  /// The direct memory that peers may map; null if they may not. Valid until the memory is deregistered.
  [[nodiscard]] direct_memory* direct(const mr::memory_record& memory) const noexcept {
    return direct_of(memory.in(fabric()));
  }

 private:
  mr::registration do_register(std::span<std::byte> memory, const mr::registration_options& options) override;
  mr::registration do_register_ranges(std::span<const std::span<std::byte>> ranges,
                                      const mr::registration_options& options) override;
  void do_share(mr::memory_record& target) override;
  void do_count_writes(const mr::registration& item, mr::detail::write_counter_core& counter) override;
  void do_enable(const mr::registration& item) override;
  /// Checks the memory again, and closes its key until no access by the key is in progress. The processor looks pages
  /// up at each access, so no more is needed.
  void do_refresh(mr::detail::region_state& target, const mr::registration_options& options) override;
  void do_deregister(mr::registration& item) noexcept override;

  [[nodiscard]] static direct_memory* direct_of(const mr::registration& item) noexcept;
  [[nodiscard]] static bool may_lose_pages(const mr::registration& item) noexcept;

  // The mr::registration::handle of memory that may shrink points here. The handle of direct memory points to the
  // shared_ptr that keeps the direct_memory.
  static char shrinks_;

  system_calls& calls_;
  key_table keys_;
};

}  // namespace weft::net::software
