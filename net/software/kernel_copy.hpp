// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace weft::net::software {

/// Copies into memory, or out of memory, whose file may have become shorter, or that may be unmapped. The kernel
/// copies, because it returns an error for pages that are gone, where a copy by the processor would end the process
/// with SIGBUS or SIGSEGV. Returns false if the kernel fails; some bytes may have been copied. See process_vm_readv(2).
/// Where the kernel forbids the call, mr::store_shared() and mr::load_shared() copy, but not after
/// check_kernel_copies() has succeeded.
///
/// Threads that use the memory meanwhile may find words that are not whole: the kernel copies in the way that is
/// fastest on its processor, on x86-64 with `rep movsb`, whose steps no manual specifies.
///
/// `words`: the memory is open to atomic operations, which the processor executes in any case. So it also stores a word
/// of eight bytes that is aligned, in one piece, where can_store_word().
[[nodiscard]] bool copy_into(std::span<std::byte> memory, std::span<const std::byte> from, bool words = false) noexcept;
[[nodiscard]] bool copy_out_of(std::span<const std::byte> memory, std::span<std::byte> to) noexcept;

/// Has the kernel make the page of an aligned word writable, in memory of a file. False if it cannot: the file has
/// become shorter, or its storage takes no write. If that happens after this call, a store ends the process.
[[nodiscard]] bool can_store_word(std::span<std::byte> word) noexcept;

/// Tests that the kernel copies, for memory that may be unmapped, which the processor must not touch. Throws
/// errc::not_supported if the kernel forbids these calls. If it allows them, the processor no longer copies in the
/// kernel's place: a copy that the kernel forbids later fails. `name` is the transport's.
void check_kernel_copies(std::string_view name);

}  // namespace weft::net::software
