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

/// Local memory that an operation may write: the argument of connection::read() and recv_into(). It is made where the
/// operation is called, refers to the memory, and owns nothing. It is made from one of these:
///
/// - `buffer&`: in use until the operation has ended. Using it meanwhile is errc::buffer_in_use, and if it is
///   destroyed, its memory goes back to the pool later.
/// - `slice`: borrowed. Stopping an operation that was posted aborts the connection, and waits until the transport no
///   longer uses the memory. Stopping recv_into() does neither.
/// - A named array of slices: borrowed as well, and so is the array. Filled in order. At most capabilities::max_parts
///   slices for a write, one less for a send, max_read_parts for a read, and 8 for recv_into().
class sink {
 public:
  /// A whole buffer.
  sink(mr::buffer& memory) noexcept : memory_(&memory) {}
  /// Registered memory.
  sink(const mr::slice& memory) noexcept : memory_(memory) {}
  /// Several pieces of registered memory, in order. The list must live until the operation has ended.
  sink(std::span<const mr::slice> list) noexcept : memory_(list) {}
  /// An array or vector of slices, which must live until the operation has ended.
  template <class List>
    requires std::convertible_to<List&, std::span<const mr::slice>>
  sink(List& list) noexcept : memory_(std::span<const mr::slice>(list)) {}

 protected:
  friend class receive_target;
  friend class transfer;
  /// A buffer that the operation takes over.
  struct consumed {
    mr::buffer* from;  ///< the buffer
  };
  /// A consumed buffer, for payload.
  explicit sink(const consumed& memory) noexcept : memory_(memory) {}
  /// A shared buffer, for payload.
  explicit sink(const mr::shared_buffer* memory) noexcept : memory_(memory) {}

  /// The memory from which this object was made.
  std::variant<mr::slice, mr::buffer*, consumed, const mr::shared_buffer*, std::span<const mr::slice>> memory_;
};

/// Local memory that an operation reads and does not write: the argument of connection::send(), try_send() and write().
/// It is made from anything that makes a sink, or from one of these:
///
/// - `buffer&&`: consumed, even if the operation is refused, and kept until the transport no longer uses it. Only a
///   try_send() that returns false gives it back.
/// - `shared_buffer`: held until the transport no longer uses it, in addition to its other holders.
class payload : public sink {
 public:
  /// Everything that makes a sink makes a payload.
  using sink::sink;
  /// A buffer that the operation takes over.
  payload(mr::buffer&& memory) noexcept : sink(consumed{&memory}) {}
  /// A buffer that has other holders.
  payload(const mr::shared_buffer& memory) noexcept : sink(&memory) {}
};
static_assert(std::is_trivially_destructible_v<payload>);

}  // namespace weft::net
