// SPDX-License-Identifier: Apache-2.0
// The memory of the toy fabric: a table of keys, and the domain that fills it.
#pragma once

#include <weft/mr/domain.hpp>
#include <weft/mr/region/peer_gate.hpp>
#include <weft/mr/region/write_counter_core.hpp>
#include <weft/mr/usage.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <random>
#include <span>
#include <vector>

namespace weft::toy {

/// Names one end of a connection, so that a key can be for its peer alone.
using end_id = std::uint64_t;
inline constexpr end_id every_end = 0;

/// The memory that peers may reach, by key: a slot number and random bits.
///
/// Keys are opened and erased on any thread, under a lock. Accesses take none: an access counts itself in its slot
/// before it looks whether the slot still has its key, and erase() takes the key away before it waits for the count.
/// Both in the one total order of memory_order_seq_cst, so one of the two sees the other.
class key_table {
  struct slot;

 public:
  key_table();
  ~key_table();
  key_table(const key_table&) = delete;
  key_table& operator=(const key_table&) = delete;

  struct opening {
    std::span<std::byte> memory;
    std::uint64_t address = 0;  ///< of the first byte, as peers say it
    mr::access rights = mr::access::none;
    end_id end = every_end;                 ///< whose peer it is for
    bool enabled = true;                    ///< false: nobody gets in before enable()
    mr::detail::peer_gate* gate = nullptr;  ///< of the region whose window it is
  };
  /// Throws errc::no_memory when the table is full.
  [[nodiscard]] std::uint32_t open(const opening& what);
  /// Before enable().
  void count_writes(std::uint32_t key, mr::detail::write_counter_core& counter) noexcept;
  void enable(std::uint32_t key) noexcept;
  /// Returns once nobody touches the memory by this key.
  void erase(std::uint32_t key) noexcept;

  /// Keeps memory open while it lives: as long as it takes to copy a piece.
  class access {
   public:
    /// Looks up `bytes` from `address` on, which the peer of `end` names by `key`.
    access(key_table& table, std::uint32_t key, std::uint64_t address, std::uint64_t bytes, mr::access right,
           end_id end) noexcept;
    access(const access&) = delete;
    access& operator=(const access&) = delete;
    ~access();

    [[nodiscard]] bool granted() const noexcept { return granted_; }
    [[nodiscard]] std::span<std::byte> memory() const noexcept { return memory_; }
    /// All of a write is in its place, or an atomic operation has changed something.
    void count() const noexcept;

   private:
    slot& slot_;
    bool granted_ = false;
    std::span<std::byte> memory_;
  };

  /// The peer of `end` gives a key back. False if it is not a key for that peer alone.
  [[nodiscard]] bool invalidate(std::uint32_t key, end_id end) noexcept;

 private:
  static constexpr std::uint32_t slot_bits = 14;
  static constexpr std::size_t slot_count = std::size_t{1} << slot_bits;
  [[nodiscard]] slot& slot_of(std::uint32_t key) const noexcept;

  std::unique_ptr<slot[]> slots_;
  std::mutex mutex_;
  std::vector<std::uint32_t> free_;
  std::mt19937 random_{std::random_device()()};
};

/// Nothing is pinned, and registering is cheap.
class domain final : public mr::domain {
 public:
  domain();
  [[nodiscard]] key_table& keys() noexcept { return keys_; }

 private:
  mr::registration do_register(std::span<std::byte> memory, const mr::registration_options& options) override;
  void do_deregister(mr::registration& item) noexcept override;
  void do_count_writes(const mr::registration& item, mr::detail::write_counter_core& counter) override;
  void do_enable(const mr::registration& item) override;

  key_table keys_;
};

}  // namespace weft::toy
