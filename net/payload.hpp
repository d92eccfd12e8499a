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

/// Local memory that an operation may write: what connection::read() takes. It is made where the operation is called,
/// refers to what it is made of, and owns nothing. It is made of one of these:
///
/// - `buffer&`: in use until the operation has ended. Using it meanwhile is errc::buffer_in_use, and if it is
///   destroyed, its memory goes back to the pool later.
/// - `slice`: borrowed. Stopping the operation aborts the connection, and waits until the transport no longer uses the
///   memory.
/// - A named array of slices: borrowed likewise, as is the array. At most 8, one behind the other.
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

/// Local memory that an operation only reads: what connection::send() and write() take. It is made of what a sink is
/// made of, and besides of one of these:
///
/// - `buffer&&`: consumed, even if the operation is refused, and kept until the transport no longer uses it.
/// - `shared_buffer`: kept by the operation until then, beside the others who hold it.
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
