// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/buffer.hpp>
#include <weft/mr/shared_buffer.hpp>
#include <weft/mr/slice.hpp>

#include <concepts>
#include <span>
#include <type_traits>
#include <variant>

namespace weft::net {

/// Local memory that an operation may write: what connection::read() takes. Made where the operation is called, of
///   buffer&          pinned until the operation has ended: destroying it defers its return, and using it early is
///                    errc::buffer_in_use;
///   slice            borrowed: stopping the operation aborts the connection, and waits until the transport lets go;
///   a named array of slices  borrowed likewise, as is the array: at most 8, one behind the other.
///
/// It refers to what it is made of, and owns nothing.
class sink {
 public:
  /// A whole buffer.
  sink(mr::buffer& memory) noexcept : memory_(&memory) {}
  /// Registered memory.
  sink(const mr::slice& memory) noexcept : memory_(memory) {}
  /// Several pieces of it, in their order. The list lives until the operation has ended.
  sink(std::span<const mr::slice> list) noexcept : memory_(list) {}
  /// The same for an array or vector of slices.
  template <class List>
    requires std::convertible_to<List&, std::span<const mr::slice>>
  sink(List& list) noexcept : memory_(std::span<const mr::slice>(list)) {}

 protected:
  friend class transfer;
  /// A buffer that the operation takes over.
  struct consumed {
    mr::buffer* from;  ///< the buffer
  };
  /// For payload.
  explicit sink(const consumed& memory) noexcept : memory_(memory) {}
  /// For payload.
  explicit sink(const mr::shared_buffer* memory) noexcept : memory_(memory) {}

  /// What it was made of.
  std::variant<mr::slice, mr::buffer*, consumed, const mr::shared_buffer*, std::span<const mr::slice>> memory_;
};

/// Local memory that an operation only reads: what connection::send() and write() take. Made of what a sink is, and of
///   buffer&&         consumed, even if the operation is refused, and kept until the transport is done with it;
///   shared_buffer    held by the operation until then, beside whoever else holds it.
class payload : public sink {
 public:
  /// What a sink is made of, a payload is made of too.
  using sink::sink;
  /// A buffer that the operation takes over.
  payload(mr::buffer&& memory) noexcept : sink(consumed{&memory}) {}
  /// A buffer that others hold too.
  payload(const mr::shared_buffer& memory) noexcept : sink(&memory) {}
};
static_assert(std::is_trivially_destructible_v<payload>);

}  // namespace weft::net
