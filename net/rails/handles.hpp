// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/region/peer_gate.hpp>
#include <weft/mr/slice.hpp>
#include <weft/mr/usage.hpp>
#include <weft/net/rails/control.hpp>
#include <weft/net/transport.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

// Memory that is exposed over a connection of several rails has a key on each of them, and others once a rail has come
// back. Its peer knows it by a handle, whatever becomes of the rails.
namespace weft::net::rails {

/// A handle is a number that no fabric's key can be: the highest bit is set, then follow 31 bits that are drawn, so
/// that one connection's handles mean nothing on another, and a place in the tables of 32.
inline constexpr std::uint64_t handle_bit = std::uint64_t{1} << 63;
[[nodiscard]] constexpr bool is_handle(std::uint64_t key) noexcept { return (key & handle_bit) != 0; }

/// What one rail calls exposed memory.
struct rail_key {
  bool is_there = false;
  std::uint32_t epoch = 0;  ///< of the rail
  std::uint64_t key = 0;
  std::uint64_t address = 0;
};

/// Memory of this end that is exposed: it is there until every rail's key is revoked.
class exposed_memory {
 public:
  /// Who hears that a key of it has been revoked.
  class observer {
   public:
    virtual void key_revoked(exposed_memory& of) noexcept = 0;

   protected:
    ~observer() = default;
  };

  exposed_memory(observer& home, mr::slice what, mr::usage uses, mr::detail::peer_gate* gate) noexcept
      : memory(what),
        purpose(uses),
        opened_by(gate),
        home_(home),
        revocations_{rail_revocation(*this), rail_revocation(*this), rail_revocation(*this), rail_revocation(*this)} {}
  exposed_memory(const exposed_memory&) = delete;
  exposed_memory& operator=(const exposed_memory&) = delete;

  const mr::slice memory;
  const mr::usage purpose;
  mr::detail::peer_gate* const opened_by;
  std::uint64_t handle = 0;  ///< 0: no rail has given a key yet, and nobody knows of it
  std::array<rail_key, max_rails> keys{};
  revocation* owner = nullptr;  ///< who takes it back; null: it is open
  std::uint32_t revoking = 0;   ///< keys that are not revoked yet
  /// Rails that are being asked for a key: it is revoked once it has come.
  std::array<bool, max_rails> opening{};

  /// Takes back what the rail has given.
  void revoke(std::size_t on, link& carrier) noexcept {
    keys[on].is_there = false;
    ++revoking;
    carrier.revoke(mr::remote_key(keys[on].key), revocations_[on]);
  }
  /// Whether nothing of it is open any more: its owner is told, once.
  [[nodiscard]] bool tell_if_over() noexcept {
    if (owner == nullptr || revoking != 0 || std::find(opening.begin(), opening.end(), true) != opening.end()) {
      return false;
    }
    std::exchange(owner, nullptr)->revoked();
    return true;
  }

 private:
  // The pin of the region stays with the owner, who is told last.
  class rail_revocation final : public revocation {
   public:
    explicit rail_revocation(exposed_memory& of) noexcept : of_(of) {}
    [[nodiscard]] mr::region_pin take_pin() noexcept override { return {}; }
    void revoked() noexcept override {
      --of_.revoking;
      of_.home_.key_revoked(of_);
    }

   private:
    exposed_memory& of_;
  };
  observer& home_;
  std::array<rail_revocation, max_rails> revocations_;
};

/// What the peer has told about memory that it has exposed.
class peer_memory {
 public:
  /// False if the peer breaks the rules: handles come one after another, but for a few that were taken back before they
  /// could be told, or anew at a place that was used.
  [[nodiscard]] bool learn(const control& said) {
    const std::size_t place = said.number & UINT32_MAX;
    if (!is_handle(said.number) || place > table_.size() + most_untold || place >= most) return false;
    if (place >= table_.size()) table_.resize(place + 1);
    known& item = table_[place];
    if (item.handle != said.number) item = {.handle = said.number, .keys = {}};
    item.keys[said.rail] = {.is_there = true, .epoch = said.epoch, .key = said.key, .address = said.address};
    return true;
  }
  /// Null if the rail has no key for it, or none is known yet.
  [[nodiscard]] const rail_key* find(std::uint64_t handle, std::size_t on, std::uint32_t epoch) const noexcept {
    const std::size_t place = handle & UINT32_MAX;
    if (place >= table_.size() || table_[place].handle != handle) return nullptr;
    const rail_key& its = table_[place].keys[on];
    return its.is_there && its.epoch == epoch ? &its : nullptr;
  }

 private:
  static constexpr std::size_t most_untold = 256;
  static constexpr std::size_t most = std::size_t{1} << 20;  // a hostile peer fills no more memory than that
  struct known {
    std::uint64_t handle = 0;
    std::array<rail_key, max_rails> keys{};
  };
  std::vector<known> table_;
};

}  // namespace weft::net::rails
