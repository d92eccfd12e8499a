// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace weft::net::software {

/// Copies into memory, or out of memory, whose file may have become shorter. The kernel copies, because it returns an
/// error for pages that are gone, where a copy by the processor would end the process with SIGBUS. False then; some
/// bytes may have been copied. See process_vm_readv(2); where that is forbidden, mr::store_shared() and
/// mr::load_shared() copy.
///
/// Threads that use the memory meanwhile may find words that are not whole: the kernel copies in the way that is
/// fastest on its processor, on x86-64 with `rep movsb`, whose steps no manual specifies.
[[nodiscard]] bool copy_into(std::span<std::byte> memory, std::span<const std::byte> from) noexcept;
[[nodiscard]] bool copy_out_of(std::span<const std::byte> memory, std::span<std::byte> to) noexcept;

/// Called for memory that may not be mapped at all, which the processor must not copy. Throws errc::not_supported if
/// the kernel forbids these calls; otherwise, a copy that it forbids later fails. `name` is the transport's.
void check_kernel_copies(std::string_view name);

}  // namespace weft::net::software
