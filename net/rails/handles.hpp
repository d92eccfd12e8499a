// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/region/peer_gate.hpp>
#include <weft/mr/slice.hpp>
#include <weft/mr/usage.hpp>
#include <weft/net/link/transport.hpp>
#include <weft/net/rails/control.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

// Exposed memory has a key on each rail of a connection, and a new key each time a rail comes back. The peer knows the
// memory by a handle, which stays the same whatever becomes of the rails.
namespace weft::net::rails {

/// A handle is a number that no key of 32 bits can be: the highest bit is set; then follow 31 random bits, so that one
/// connection's handles mean nothing on another, and the place in the tables, 32 bits. Only libfabric has larger keys:
/// weft draws none with the highest bit, and a provider's own key that has it is taken for a handle.
inline constexpr std::uint64_t handle_bit = std::uint64_t{1} << 63;
[[nodiscard]] constexpr bool is_handle(std::uint64_t key) noexcept { return (key & handle_bit) != 0; }

/// The key and address of exposed memory on one rail.
struct rail_key {
  bool is_there = false;
  std::uint32_t epoch = 0;  ///< of the rail
  std::uint64_t key = 0;
  std::uint64_t address = 0;
};

/// The last pieces of exposed memory that their owner has taken back: remembered because an access to such memory may
/// be merely late. Their number is limited, so that neither a busy owner nor a hostile peer fills memory with them.
class withdrawn_memory {
 public:
  struct item {
    std::uint64_t handle = 0;
    std::array<std::uint64_t, max_rails> keys{};
    std::array<std::uint32_t, max_rails> epochs{};
    std::array<bool, max_rails> had_key{};
    bool at_deadline = false;

    /// Whether the rail had a key for this memory in this epoch.
    [[nodiscard]] bool was_on(std::size_t rail, std::uint32_t epoch) const noexcept {
      return had_key[rail] && epochs[rail] == epoch;
    }
  };

  /// Reserves room for the pieces. Call it before the first add(). Throws std::bad_alloc.
  void reserve() { items_.reserve(most); }
  void add(std::uint64_t handle, const std::array<rail_key, max_rails>& keys, bool at_deadline) noexcept {
    item added{.handle = handle, .at_deadline = at_deadline};
    for (std::size_t i = 0; i < max_rails; ++i) {
      added.had_key[i] = keys[i].is_there;
      added.epochs[i] = keys[i].epoch;
      added.keys[i] = keys[i].key;
    }
    if (items_.size() < items_.capacity() && items_.size() < most) {
      items_.push_back(added);
    } else if (!items_.empty()) {
      items_[oldest_] = added;
      oldest_ = (oldest_ + 1) % items_.size();
    }
  }
  [[nodiscard]] item* find(std::uint64_t handle) noexcept {
    return find_if([&](const item& each) { return each.handle == handle; });
  }
  [[nodiscard]] item* find(std::size_t rail, std::uint32_t epoch, std::uint64_t key) noexcept {
    return find_if([&](const item& each) { return each.was_on(rail, epoch) && each.keys[rail] == key; });
  }
  /// Whether this rail had a key for any of the pieces.
  [[nodiscard]] bool has_any_on(std::size_t rail, std::uint32_t epoch) noexcept {
    return find_if([&](const item& each) { return each.was_on(rail, epoch); }) != nullptr;
  }

 private:
  static constexpr std::size_t most = 256;
  template <class Predicate>
  [[nodiscard]] item* find_if(Predicate is_it) noexcept {
    const auto found = std::find_if(items_.begin(), items_.end(), is_it);
    return found != items_.end() ? &*found : nullptr;
  }

  std::vector<item> items_;
  std::size_t oldest_ = 0;  // valid once all places are taken
};

/// Exposed memory of this end. It must not be destroyed before every rail's key is revoked.
class exposed_memory {
 public:
  /// Notified when one of its keys has been revoked.
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
  std::uint64_t handle = 0;  ///< 0: no rail has given a key yet, and the peer knows nothing of it
  std::array<rail_key, max_rails> keys{};
  revocation* owner = nullptr;  ///< set when the owner revokes the memory, and notified once no key is open
  bool is_given_back = false;   ///< the peer has given the memory back (send_options::invalidate)
  bool has_come_back = false;   ///< the message that gives it back has arrived, so that the peer does not repeat it
  std::uint32_t revoking = 0;   ///< revocations of keys in progress; close_keys() counts as one
  mr::region_pin pin{};         ///< the owner's pin, while a rail may still open a key after the revocation
  /// The rails that are being asked for a key. If the memory is no longer open when the key comes, the key is revoked.
  std::array<bool, max_rails> opening{};

  [[nodiscard]] bool is_open() const noexcept { return owner == nullptr && !is_given_back; }
  [[nodiscard]] bool is_being_opened() const noexcept {
    return std::find(opening.begin(), opening.end(), true) != opening.end();
  }
  /// Whether a key is being revoked, or may still be opened.
  [[nodiscard]] bool is_closing() const noexcept { return revoking != 0 || is_being_opened(); }
  /// Revokes the key of one rail.
  void revoke(std::size_t on, link& carrier) noexcept {
    keys[on].is_there = false;
    ++revoking;
    carrier.revoke(keys[on].key, revocations_[on]);
  }
  /// Notifies the owner once no key can open the memory any more. True if it did so in this call.
  [[nodiscard]] bool tell_if_over() noexcept {
    if (owner == nullptr || is_closing()) return false;
    std::exchange(owner, nullptr)->revoked();
    return true;
  }

 private:
  class rail_revocation final : public revocation {
   public:
    explicit rail_revocation(exposed_memory& of) noexcept : of_(of) {}
    [[nodiscard]] bool is_wish_of_peer() const noexcept override { return of_.is_given_back; }
    [[nodiscard]] mr::region_pin take_pin() noexcept override { return mr::region_pin(of_.memory); }
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

/// The keys that the peer has announced for its exposed memory. The peer may name places of its table in any order, and
/// skip some: the memory there may have been taken back while no rail was there to announce it.
class peer_memory {
 public:
  /// Keeps at most `most` pieces of memory at a time.
  explicit peer_memory(std::size_t most) noexcept : most_(most) {}

  /// Stores an announced key. False if that would exceed the limit. Throws std::bad_alloc.
  [[nodiscard]] bool learn(const control& said) {
    withdrawn_.reserve();
    const std::uint32_t place = place_of(said.number);
    const auto found = known_.find(place);
    if (found == known_.end() && known_.size() >= most_) return false;
    known& item = found != known_.end() ? found->second : known_[place];
    if (item.handle != said.number) item = {.handle = said.number, .keys = {}};
    item.keys[said.rail] = {.is_there = true, .epoch = said.epoch, .key = said.key, .address = said.address};
    return true;
  }
  /// The memory's key on a rail in this epoch; null if it has none there, or none is known yet.
  [[nodiscard]] const rail_key* find(std::uint64_t handle, std::size_t on, std::uint32_t epoch) const noexcept {
    const auto found = known_.find(place_of(handle));
    if (found == known_.end() || found->second.handle != handle) return nullptr;
    const rail_key& its = found->second.keys[on];
    return its.is_there && its.epoch == epoch ? &its : nullptr;
  }
  /// Forgets the keys of memory that the peer has taken back, or has refused, which counts as taken back until the peer
  /// says otherwise. Throws std::bad_alloc.
  void withdraw(std::uint64_t handle, bool at_deadline) {
    withdrawn_.reserve();
    const auto found = known_.find(place_of(handle));
    const bool is_known = found != known_.end() && found->second.handle == handle;
    if (withdrawn_memory::item* const before = withdrawn_.find(handle)) {
      before->at_deadline = before->at_deadline || at_deadline;
    } else {
      withdrawn_.add(handle, is_known ? found->second.keys : std::array<rail_key, max_rails>(), at_deadline);
    }
    if (is_known) known_.erase(found);
  }
  /// The record of memory that the peer has taken back; null if the peer has not, or has taken too much back since.
  [[nodiscard]] const withdrawn_memory::item* find_withdrawn(std::uint64_t handle) noexcept {
    return withdrawn_.find(handle);
  }
  /// The handle of the memory that has, or had, this key on the rail; 0: none.
  [[nodiscard]] std::uint64_t handle_of(std::size_t on, std::uint32_t epoch, std::uint64_t key) noexcept {
    for (const auto& [place, each] : known_) {
      const rail_key& its = each.keys[on];
      if (its.is_there && its.epoch == epoch && its.key == key) return each.handle;
    }
    const withdrawn_memory::item* const gone = withdrawn_.find(on, epoch, key);
    return gone != nullptr ? gone->handle : 0;
  }

 private:
  struct known {
    std::uint64_t handle = 0;
    std::array<rail_key, max_rails> keys{};
  };
  [[nodiscard]] static constexpr std::uint32_t place_of(std::uint64_t handle) noexcept {
    return static_cast<std::uint32_t>(handle);
  }

  const std::size_t most_;
  std::map<std::uint32_t, known> known_;  // by place, at most one at each
  withdrawn_memory withdrawn_;
};

}  // namespace weft::net::rails
