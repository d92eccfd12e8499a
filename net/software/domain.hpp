// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/domain.hpp>
#include <weft/net/software/key_table.hpp>

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace weft::net::software {

/// The protection domain of a transport in software, whose peers' requests this process executes: a table of keys.
/// Nothing is pinned, and registering is cheap.
///
/// Memory gets a key only if its usage lets peers in, or if a key is asked for. Reads of ours need none: their answers
/// name no memory, so usage::read_dst opens nothing to peers here.
///
/// It pins nothing, so registration checks that the memory is there and has the rights that its usage needs (EFAULT),
/// as a device would. Unmapping or protecting it afterwards ends the process once a peer uses it.
class domain final : public mr::domain {
 public:
  /// `name` is the transport's, for its words.
  domain(system_calls& calls, std::string name);

  [[nodiscard]] key_table& keys() noexcept { return keys_; }

  /// Whether a part of registered memory is of a file, on a disk or not, which somebody may make shorter.
  [[nodiscard]] bool may_shrink(const mr::memory_record& memory) const noexcept {
    return memory.in(fabric()).handle == &shrinks_;
  }
  /// What peers may map of registered memory, if they may; until it is deregistered.
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
  /// Pages are looked up by the processor, at each access, so that all there is to do is to keep peers out meanwhile.
  void do_refresh(mr::registration& item, mr::detail::region_state& target) override;
  void do_deregister(mr::registration& item) noexcept override;

  [[nodiscard]] static direct_memory* direct_of(const mr::registration& item) noexcept;

  // What the handle of memory that may shrink points to. That of memory for direct access points to the shared_ptr that
  // keeps it.
  static char shrinks_;

  system_calls& calls_;
  key_table keys_;
};

}  // namespace weft::net::software
