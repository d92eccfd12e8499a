// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/connection/connection_state.hpp>
#include <weft/net/connection/transfer.hpp>
#include <weft/runtime/error.hpp>

#include <cstdint>

namespace weft::net {

/// Finds out why an operation cannot be posted, as far as that is known beforehand. Every operation is checked, and
/// hardly any is refused, so find() yields only the reason, and explain() its text.
class refusal {
 public:
  enum class reason : std::uint8_t {
    none,      ///< it may be posted
    no_place,  ///< transfer::failure() says why: no name for the peer's memory, or no way to report writes
    wrong_thread,
    ended,
    no_atomics,
    no_answers,
    no_immediate,
    no_invalidation,
    too_large_key,
    no_device_memory,
    no_persistence,
    no_device_flush,
    no_device_atomics,
    empty_list,
    too_many_parts,
    empty_buffer,
    other_device,
    not_registered_for_it,
    too_large_for_link,
    too_large_for_peer,
    remote_rights,
    empty_flush,
    other_size,
    misaligned,
    in_use,  ///< not a result of find(): sending::prepare() yields it, which pins the buffer
  };

  refusal(const transfer& item, const connection_state& state) noexcept : item_(item), state_(state) {}

  /// The reason why an operation that needs `purpose` cannot use this local memory; reason::none if it can.
  [[nodiscard]] static reason of_memory(const mr::slice& part, mr::usage purpose,
                                        const connection_state& state) noexcept;
  /// The error for a reason that of_memory() yields, or empty_list; `verb` is the operation's name.
  [[nodiscard, gnu::cold]] static error explain_memory(reason why, const char* verb);

  [[nodiscard]] reason find() const noexcept;
  /// The error for any reason but none.
  [[nodiscard, gnu::cold]] error explain(reason why) const;

 private:
  [[nodiscard]] reason missing_capability() const noexcept;
  [[nodiscard]] reason missing_persistence() const noexcept;
  [[nodiscard]] reason of_local_memory() const noexcept;
  [[nodiscard]] reason of_remote_memory() const noexcept;
  [[nodiscard]] bool has_rights() const noexcept;
  [[nodiscard]] const char* missing_right() const noexcept;
  [[nodiscard]] std::uint64_t most_bytes() const noexcept;

  const transfer& item_;
  const connection_state& state_;
};

}  // namespace weft::net
