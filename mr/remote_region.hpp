// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/registration.hpp>
#include <weft/mr/usage.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace weft::mr {

/// How one fabric of the owner's device names memory.
struct remote_place {
  std::uint8_t fabric = 0;    ///< the fabric's number in the owner's device, or place_behind_owner
  std::uint64_t address = 0;  ///< of the first byte, as peers use it: a virtual address, an iova, or an offset
  std::uint64_t key = 0;      ///< the rkey that a peer's requests carry

  friend constexpr bool operator==(const remote_place&, const remote_place&) noexcept = default;
};

/// A range of a peer's registered memory, with one place for each way to it: for each fabric that it is registered
/// with, and place_behind_owner if peers need the owner for it. There are one to max_fabrics places. A connection uses
/// the place of its own fabric, or goes through the owner. A value: it owns nothing, and the peer may revoke the keys
/// at any time.
class remote_slice {
 public:
  /// Memory that is registered with its owner's first or only fabric. Throws errc::out_of_range if the addresses wrap
  /// around.
  remote_slice(std::uint64_t key, std::uint64_t address, std::uint64_t size, mr::usage purpose);
  /// Memory with several places, in the order of their fabrics. Throws errc::invalid_argument for any other order, for
  /// no place, or for more than max_fabrics; errc::out_of_range as above.
  remote_slice(std::span<const remote_place> places, std::uint64_t size, mr::usage purpose);

  /// The places, in the order of their fabrics.
  [[nodiscard]] std::span<const remote_place> places() const noexcept { return {places_.data(), count_}; }
  /// The place for `fabric`; null if there is none.
  [[nodiscard]] const remote_place* on(std::size_t fabric) const noexcept {
    for (const remote_place& each : places()) {
      if (each.fabric == fabric) return &each;
    }
    return nullptr;
  }
  /// The key of the first place.
  [[nodiscard]] std::uint64_t key() const noexcept { return places_[0].key; }
  /// The address of the first place.
  [[nodiscard]] std::uint64_t address() const noexcept { return places_[0].address; }
  /// In bytes.
  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }
  /// The usages that the memory's owner has opened to peers.
  [[nodiscard]] mr::usage usage() const noexcept { return usage_; }
  /// The number under which connections report writes to the owner's porting::write_counter, over fabrics that do not
  /// see the writes. 0: nobody counts.
  [[nodiscard]] std::uint32_t counter() const noexcept { return counter_; }
  /// Sets counter(), on the owner's side.
  void count_by(std::uint32_t number) noexcept { counter_ = number; }

  /// Whether the peer has opened the memory for all of `purpose`.
  [[nodiscard]] bool allows(mr::usage purpose) const noexcept { return includes(usage_, purpose); }
  /// Throws errc::access_denied, naming `operation`, unless allows(purpose).
  void require(mr::usage purpose, const char* operation) const;

  /// `length` bytes from `offset` on. Throws errc::out_of_range rather than reach beyond this slice.
  [[nodiscard]] remote_slice slice(std::uint64_t offset, std::uint64_t length) const;

  friend bool operator==(const remote_slice&, const remote_slice&) = default;

 private:
  std::uint64_t size_;
  mr::usage usage_;
  std::uint8_t count_ = 1;
  std::uint32_t counter_ = 0;
  std::array<remote_place, max_fabrics> places_{};
};

class packed_remote_region;

/// The descriptor of a region, or of an exposed part of one, which the owner sends to a peer.
///
/// The wire form is little-endian: version (1 byte, with the value 2), number of places (1), usage (2), length (8);
/// then, only if the highest bit of the usage is set, remote_slice::counter() (4); then each place: fabric (1), bytes
/// of the key (1), address (8), key. A key has 4 bytes, or 8 if it does not fit in 4; any other length is malformed.
/// Fabrics are in ascending order, so that each region has one form. With one place and no counter the form takes 26 or
/// 30 bytes, which fit an inline send; with the most places, a counter and keys of 8 bytes, it takes max_packed_bytes.
class remote_region : public remote_slice {
 public:
  /// The largest size of a wire form.
  static constexpr std::size_t max_packed_bytes = 16 + max_fabrics * (10 + sizeof(std::uint64_t));

  /// A region that is registered with its owner's first or only fabric. Throws errc::zero_length if `size` is 0, and as
  /// remote_slice does.
  remote_region(std::uint64_t key, std::uint64_t address, std::uint64_t size, mr::usage purpose);
  /// A region with several places. Throws as the other constructor and remote_slice do.
  remote_region(std::span<const remote_place> places, std::uint64_t size, mr::usage purpose);

  /// The wire form, which the peer gives to unpack().
  [[nodiscard]] packed_remote_region pack() const noexcept;
  /// The size of the wire form.
  [[nodiscard]] std::size_t packed_bytes() const noexcept;

  /// Reads a descriptor from the front of `bytes`, which a peer sent. The result's packed_bytes() says how many bytes
  /// were read. Throws errc::malformed, saying what is wrong.
  [[nodiscard]] static remote_region unpack(std::span<const std::byte> bytes);
};

/// The wire form of a region. A contiguous range of bytes.
class packed_remote_region {
 public:
  /// The first byte.
  [[nodiscard]] const std::byte* data() const noexcept { return bytes_.data(); }
  /// In bytes.
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  /// The first byte, as for a range.
  [[nodiscard]] const std::byte* begin() const noexcept { return data(); }
  /// One past the last byte.
  [[nodiscard]] const std::byte* end() const noexcept { return data() + size(); }
  /// The byte at `place`.
  [[nodiscard]] std::byte operator[](std::size_t place) const noexcept { return bytes_[place]; }

 private:
  friend class remote_region;
  packed_remote_region() noexcept = default;

  std::array<std::byte, remote_region::max_packed_bytes> bytes_{};
  std::size_t size_ = 0;
};

}  // namespace weft::mr
