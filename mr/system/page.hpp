// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <span>

// Since Linux 5.14; the headers may be older.
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

namespace weft::mr::detail {

/// The size of the machine's smallest pages: 4 KiB, or more on some processors. See sysconf(3), _SC_PAGESIZE.
[[nodiscard]] inline std::size_t page_bytes() noexcept {
  static const auto bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

/// Whether a range has no end that is an address: one that reaches the end of the address space counts, too.
[[nodiscard]] inline bool wraps_around(std::span<const std::byte> range) noexcept {
  return range.size() > UINTPTR_MAX - reinterpret_cast<std::uintptr_t>(range.data());
}

constexpr std::size_t round_up(std::size_t bytes, std::size_t unit) noexcept {
  return (bytes + unit - 1) / unit * unit;
}
constexpr std::size_t round_down(std::size_t bytes, std::size_t unit) noexcept { return bytes / unit * unit; }

}  // namespace weft::mr::detail
