// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/shared_words.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/system/sanitized.hpp>

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>

// Compilers do not vectorize atomic accesses, and a copy within the caches word by word takes twice as long as
// memcpy(3), which tears words. On x86-64, processors with AVX access 16 aligned bytes at once (Intel's manual, volume
// 3A, "Guaranteed Atomic Operations"; AMD's, volume 2, "Access Atomicity"). C++ has no such access, hence the assembly.
#if defined(__x86_64__)
#define WEFT_WIDE_UNITS
#endif

namespace weft::mr {
namespace {

constexpr std::size_t word_bytes = sizeof(std::uint64_t);
static_assert(std::atomic_ref<std::uint64_t>::is_always_lock_free, "shared words need 64-bit atomics without locks");

// Objects of any type may lie in the memory, so the units are may_alias types. std::atomic_ref takes no such type.
struct word {
  using type [[gnu::may_alias]] = std::uint64_t;
};
struct half_word {
  using type [[gnu::may_alias]] = std::uint32_t;
};
struct quarter_word {
  using type [[gnu::may_alias]] = std::uint16_t;
};
struct single_byte {
  using type = std::uint8_t;
};

// Each move() stores its unit before the next unit is loaded. If several units were loaded first, GCC 12 would gather
// them in vectors, which takes four times as long.
struct loading {
  template <class Unit>
  static void move(const std::byte* shared, std::byte* into) noexcept {
    const auto value = __atomic_load_n(reinterpret_cast<const typename Unit::type*>(shared), __ATOMIC_RELAXED);
    std::memcpy(into, &value, sizeof value);
  }
#ifdef WEFT_WIDE_UNITS
  static void move_wide_units(const std::byte* shared, std::byte* into) noexcept {
    asm volatile(
        "movdqa (%0), %%xmm0\n\t"
        "movdqa 16(%0), %%xmm1\n\t"
        "movdqa 32(%0), %%xmm2\n\t"
        "movdqa 48(%0), %%xmm3\n\t"
        "movdqu %%xmm0, (%1)\n\t"
        "movdqu %%xmm1, 16(%1)\n\t"
        "movdqu %%xmm2, 32(%1)\n\t"
        "movdqu %%xmm3, 48(%1)"
        :
        : "r"(shared), "r"(into)
        : "xmm0", "xmm1", "xmm2", "xmm3", "memory");
  }
#endif
};

struct storing {
  template <class Unit>
  static void move(std::byte* shared, const std::byte* from) noexcept {
    typename Unit::type value;
    std::memcpy(&value, from, sizeof value);
    __atomic_store_n(reinterpret_cast<typename Unit::type*>(shared), value, __ATOMIC_RELAXED);
  }
#ifdef WEFT_WIDE_UNITS
  static void move_wide_units(std::byte* shared, const std::byte* from) noexcept {
    asm volatile(
        "movdqu (%1), %%xmm0\n\t"
        "movdqu 16(%1), %%xmm1\n\t"
        "movdqu 32(%1), %%xmm2\n\t"
        "movdqu 48(%1), %%xmm3\n\t"
        "movdqa %%xmm0, (%0)\n\t"
        "movdqa %%xmm1, 16(%0)\n\t"
        "movdqa %%xmm2, 32(%0)\n\t"
        "movdqa %%xmm3, 48(%0)"
        :
        : "r"(shared), "r"(from)
        : "xmm0", "xmm1", "xmm2", "xmm3", "memory");
  }
#endif
};

// The size of the largest unit that is aligned at `shared` and not longer than `left`.
std::size_t unit_at(const std::byte* shared, std::size_t left) noexcept {
  const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(shared) | word_bytes;
  return std::min<std::size_t>(address & (~address + 1), std::bit_floor(left));
}

// Moves the bytes before the next whole word, or up to the end, and returns their number.
template <class Direction, class Shared, class Own>
std::size_t move_parts_of_a_word(Shared* shared, Own* own, std::size_t bytes) noexcept {
  std::size_t at = 0;
  while (at != bytes) {
    const std::size_t unit = unit_at(shared + at, bytes - at);
    if (unit == sizeof(word::type)) break;
    if (unit == sizeof(half_word::type)) Direction::template move<half_word>(shared + at, own + at);
    if (unit == sizeof(quarter_word::type)) Direction::template move<quarter_word>(shared + at, own + at);
    if (unit == sizeof(single_byte::type)) Direction::template move<single_byte>(shared + at, own + at);
    at += unit;
  }
  return at;
}

#ifdef WEFT_WIDE_UNITS
constexpr std::size_t wide_unit_bytes = 16;
constexpr std::size_t wide_units_bytes = 4 * wide_unit_bytes;
// Sanitizers do not see into assembly.
const bool has_wide_units = !weft::detail::is_sanitized && __builtin_cpu_supports("avx");

// Moves wide units, in groups of four, as many as fit. `shared` points to an aligned word, which is moved alone if no
// wide unit begins there. Returns the number of bytes moved: 0 without AVX, or if no group fits.
template <class Direction, class Shared, class Own>
std::size_t move_wide_units(Shared* shared, Own* own, std::size_t bytes) noexcept {
  const std::size_t before = reinterpret_cast<std::uintptr_t>(shared) % wide_unit_bytes;  // 0, or the size of a word
  if (bytes < before + wide_units_bytes || !has_wide_units) return 0;
  std::size_t at = before;
  if (before != 0) Direction::template move<word>(shared, own);
  for (; bytes - at >= wide_units_bytes; at += wide_units_bytes) Direction::move_wide_units(shared + at, own + at);
  return at;
}
#else
template <class Direction, class Shared, class Own>
std::size_t move_wide_units(Shared* /*shared*/, Own* /*own*/, std::size_t /*bytes*/) noexcept {
  return 0;
}
#endif

// Moves all bytes. Takes the address of none of its variables: the compiler would store such a variable to memory
// before every unit, because the accesses are atomic.
template <class Direction, class Shared, class Own>
void move_all(Shared* shared, Own* own, std::size_t bytes) noexcept {
  std::size_t at = 0;
  if (reinterpret_cast<std::uintptr_t>(shared) % word_bytes != 0)
    at = move_parts_of_a_word<Direction>(shared, own, bytes);
  at += move_wide_units<Direction>(shared + at, own + at, bytes - at);
  if (at == bytes) return;
  for (; bytes - at >= 8 * word_bytes; at += 8 * word_bytes) {
    Direction::template move<word>(shared + at, own + at);
    Direction::template move<word>(shared + at + 8, own + at + 8);
    Direction::template move<word>(shared + at + 16, own + at + 16);
    Direction::template move<word>(shared + at + 24, own + at + 24);
    Direction::template move<word>(shared + at + 32, own + at + 32);
    Direction::template move<word>(shared + at + 40, own + at + 40);
    Direction::template move<word>(shared + at + 48, own + at + 48);
    Direction::template move<word>(shared + at + 56, own + at + 56);
  }
  for (; bytes - at >= word_bytes; at += word_bytes) Direction::template move<word>(shared + at, own + at);
  if (at != bytes) move_parts_of_a_word<Direction>(shared + at, own + at, bytes - at);
}

}  // namespace

std::uint64_t& shared_word(std::span<std::byte> memory, std::size_t index) {
  if (index >= memory.size() / word_bytes) throw error(errc::out_of_range, "a shared word beyond the memory's end");
  std::byte* const at = memory.data() + index * word_bytes;
  if (std::bit_cast<std::uintptr_t>(at) % word_bytes != 0) {
    throw error(errc::misaligned, "a shared word whose address is no multiple of eight");
  }
  return *reinterpret_cast<std::uint64_t*>(at);
}

void load_shared(std::span<const std::byte> shared, std::span<std::byte> into) noexcept {
  assert(shared.size() == into.size());
  move_all<loading>(shared.data(), into.data(), shared.size());
}

void store_shared(std::span<std::byte> shared, std::span<const std::byte> from) noexcept {
  assert(shared.size() == from.size());
  move_all<storing>(shared.data(), from.data(), shared.size());
}

}  // namespace weft::mr
