// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/slice.hpp>
#include <weft/net/shm/record.hpp>
#include <weft/net/software/access_status.hpp>
#include <weft/net/software/key_table.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace weft::net::shm {

/// The peer's message or write that is arriving, or the last that has arrived.
class arriving_request {
 public:
  void begin(const record& header) noexcept {
    header_ = header;
    moved_ = 0;
    continued_ = true;
  }
  [[nodiscard]] const record& header() const noexcept { return header_; }
  [[nodiscard]] bool is_message() const noexcept { return header_.kind == record_kind::send; }
  /// Whether more of it follows.
  [[nodiscard]] bool is_continued() const noexcept { return continued_; }
  [[nodiscard]] std::uint64_t moved() const noexcept { return moved_; }
  [[nodiscard]] std::uint64_t left() const noexcept { return header_.total - moved_; }
  /// Counts bytes as moved to their place. True once all are.
  [[nodiscard]] bool move(std::size_t bytes) noexcept {
    moved_ += bytes;
    return moved_ == header_.total;
  }
  void end() noexcept { continued_ = false; }

  struct destination {
    std::span<std::byte> memory;
    software::access_status status = software::access_status::ok;
    bool may_shrink = false;  ///< a file behind the memory may become shorter
  };
  /// Where the next bytes go, at most `most`: into the receive `message`, or, if that is null, into the memory of a
  /// write, whose key is looked up. Only inside a batch of `keys`.
  [[nodiscard]] destination next_place(std::size_t most, const mr::slice* message, software::key_table::reader& keys,
                                       software::stream_id from) const noexcept;
  /// Stores the next bytes of a write, whose key is looked up; move() then has to count them. Only inside a batch of
  /// `keys`.
  [[nodiscard]] software::access_status store(std::span<const std::byte> content, software::key_table::reader& keys,
                                              software::stream_id from) const noexcept;

 private:
  record header_;
  std::uint64_t moved_ = 0;
  bool continued_ = false;
};

}  // namespace weft::net::shm
