// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/iwarp/crc32c.hpp>
#include <weft/net/iwarp/ddp.hpp>
#include <weft/net/iwarp/mpa.hpp>

#include <algorithm>
#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <span>

namespace weft::net::iwarp {

/// The large segment whose payload is being placed as it arrives, if there is one: its header, which has been checked,
/// the number of bytes still to come, and the checksum of those that have arrived.
///
/// Call begin() with the header, advance() for each piece of payload, then take_trailer() until is_active() is false.
/// The header and the checksums stay until the next begin().
class early_segment {
 public:
  static constexpr std::size_t max_trailer_bytes = 3 + mpa::crc_bytes;  // pad and CRC

  explicit early_segment(bool has_crc) noexcept : has_crc_(has_crc) {}

  /// Begins a segment of `ulpdu_bytes`, whose FPDU begins with `bytes`. Returns how many bytes the length and the
  /// header take.
  std::size_t begin(std::span<const std::byte> bytes, std::size_t ulpdu_bytes, bool tagged) noexcept {
    header_bytes_ = tagged ? tagged_header::bytes : untagged_header::bytes;
    std::ranges::copy(bytes.subspan(mpa::length_bytes, header_bytes_), header_.begin());
    ulpdu_bytes_ = ulpdu_bytes;
    payload_left_ = payload_bytes();
    trailer_bytes_ = trailer_left_ = fpdu_bytes() - mpa::length_bytes - ulpdu_bytes;
    placement_ = nullptr;
    crc_ = {};
    const std::size_t taken = mpa::length_bytes + header_bytes_;
    if (has_crc_) crc_.add(bytes.first(taken));
    return taken;
  }
  void cancel() noexcept { payload_left_ = trailer_left_ = 0; }

  [[nodiscard]] bool is_active() const noexcept { return trailer_left_ != 0; }
  [[nodiscard]] bool is_tagged() const noexcept { return header_bytes_ == tagged_header::bytes; }
  [[nodiscard]] std::span<const std::byte> header() const noexcept { return std::span(header_).first(header_bytes_); }
  [[nodiscard]] iwarp::control control() const noexcept {
    return parse_control(std::span(header_).first<control_bytes>());
  }
  [[nodiscard]] tagged_header tagged() const noexcept {
    assert(is_tagged());
    return parse_tagged(std::span(header_).first<tagged_header::bytes>());
  }
  [[nodiscard]] untagged_header untagged() const noexcept {
    assert(!is_tagged());
    return parse_untagged(header_);
  }

  [[nodiscard]] std::size_t ulpdu_bytes() const noexcept { return ulpdu_bytes_; }
  [[nodiscard]] std::size_t fpdu_bytes() const noexcept { return mpa::fpdu_bytes(ulpdu_bytes_); }
  [[nodiscard]] std::size_t payload_bytes() const noexcept { return ulpdu_bytes_ - header_bytes_; }
  [[nodiscard]] std::size_t payload_left() const noexcept { return payload_left_; }
  [[nodiscard]] std::size_t payload_done() const noexcept { return payload_bytes() - payload_left_; }
  /// How many bytes of its FPDU have arrived.
  [[nodiscard]] std::size_t bytes_done() const noexcept { return fpdu_bytes() - payload_left_ - trailer_left_; }

  /// Counts the next `payload`, which has arrived and been placed.
  void advance(std::span<const std::byte> payload) noexcept {
    assert(payload.size() <= payload_left_);
    if (has_crc_) crc_.add(payload);
    payload_left_ -= payload.size();
  }
  /// Notes that the next payload will be received at `place`.
  void expect_at(std::byte* place) noexcept { placement_ = place; }
  /// Counts `bytes` of payload that have been received at the place of expect_at().
  void advance_in_place(std::size_t bytes) noexcept { advance({placement_, bytes}); }

  /// Takes bytes of the pad and the CRC off the front of `bytes`; returns their number.
  std::size_t take_trailer(std::span<const std::byte> bytes) noexcept {
    const auto piece = bytes.first(std::min(bytes.size(), trailer_left_));
    std::ranges::copy(piece, std::span(trailer_).subspan(trailer_bytes_ - trailer_left_).begin());
    trailer_left_ -= piece.size();
    if (trailer_left_ == 0 && has_crc_) crc_.add(std::span(trailer_).first(trailer_bytes_ - mpa::crc_bytes));
    return piece.size();
  }
  /// The segment's CRC field, and the CRC of the bytes that it covers.
  [[nodiscard]] const std::byte* crc_field() const noexcept { return &trailer_[trailer_bytes_ - mpa::crc_bytes]; }
  [[nodiscard]] std::uint32_t computed_crc() const noexcept { return crc_.value(); }

 private:
  std::array<std::byte, untagged_header::bytes> header_;  // as received; a tagged one is shorter
  std::array<std::byte, max_trailer_bytes> trailer_;
  const bool has_crc_;
  std::size_t header_bytes_ = 0;
  std::size_t ulpdu_bytes_ = 0;
  std::size_t payload_left_ = 0;
  std::size_t trailer_left_ = 0;  // 0: no segment is active
  std::size_t trailer_bytes_ = 0;
  std::byte* placement_ = nullptr;
  crc32c crc_;
};

}  // namespace weft::net::iwarp
