// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/slice.hpp>
#include <weft/net/fabric/calls.hpp>
#include <weft/net/link/transport.hpp>

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace weft::net::fabric {

/// The context of a completion. `room` belongs to the provider while the operation is in flight.
struct operation {
  enum kind_t : std::uint8_t { request, wake, receive };  ///< wake: the message with a write's immediate data
  explicit operation(kind_t what) noexcept : kind(what) {}
  fi_context2 room{};
  kind_t kind;
};

/// The descriptor of registered memory: fi_mr_desc(3).
[[nodiscard]] inline void* desc_of(const mr::slice& part, std::size_t fabric) noexcept {
  return reinterpret_cast<void*>(part.record()->in(fabric).local_key);  // NOLINT(performance-no-int-to-ptr)
}

/// The pieces of an operation's memory, in libfabric's form.
struct pieces {
  std::array<iovec, max_segments + 1> ranges;  // uninitialized, as are `descs`, to save time in each operation
  std::array<void*, max_segments + 1> descs;
  std::size_t count = 0;
  std::size_t bytes = 0;

  void add(void* data, std::size_t size, void* desc) noexcept {
    ranges[count] = {.iov_base = data, .iov_len = size};
    descs[count++] = desc;
    bytes += size;
  }
  void add(std::span<const mr::slice> segments, std::size_t fabric) noexcept {
    for (const mr::slice& part : segments) {
      if (part.size() != 0) add(part.data(), part.size(), desc_of(part, fabric));
    }
  }
  /// Describes the pieces as a message to or from `address`, whose completion has `item` as its context.
  [[nodiscard]] fi_msg message(fi_addr_t address, operation& item) noexcept {
    fi_msg what{};
    what.msg_iov = ranges.data();
    what.desc = descs.data();
    what.iov_count = count;
    what.addr = address;
    what.context = &item.room;
    return what;
  }
};

}  // namespace weft::net::fabric
