// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <cerrno>
#include <concepts>
#include <cstddef>
#include <type_traits>

namespace weft {

/// An argument of a system call: a number or an address.
template <class Type>
concept call_argument = std::integral<Type> || std::is_pointer_v<Type> || std::same_as<Type, std::nullptr_t>;

#if defined(__x86_64__) && !defined(__ILP32__)

namespace detail {
// Widens an argument, because the kernel reads a whole register.
template <class Type>
  requires(sizeof(Type) <= sizeof(long))
[[nodiscard]] inline long to_register(Type value) noexcept {
  if constexpr (std::integral<Type>)
    return static_cast<long>(value);
  else
    return reinterpret_cast<long>(static_cast<const void*>(value));
}
}  // namespace detail

/// Makes a system call by its number, with the instruction itself: the C library's syscall(2) adds a call, moves of
/// registers and the thread-local errno. Returns the kernel's result, a failure as -errno. Not a cancellation point.
/// See syscall(2), "Architecture calling conventions".
template <call_argument... Arguments>
  requires(sizeof...(Arguments) <= 6)
inline long kernel_call(long number, Arguments... arguments) noexcept {
  const long values[6] = {detail::to_register(arguments)...};
  register long fourth asm("r10") = values[3];
  register long fifth asm("r8") = values[4];
  register long sixth asm("r9") = values[5];
  long result;
  asm volatile("syscall"
               : "=a"(result)
               : "a"(number), "D"(values[0]), "S"(values[1]), "d"(values[2]), "r"(fourth), "r"(fifth), "r"(sixth)
               : "rcx", "r11", "memory");
  return result;
}

#else

/// Makes a system call by its number. Returns a failure as -errno. Not a cancellation point. See syscall(2).
template <call_argument... Arguments>
  requires(sizeof...(Arguments) <= 6)
inline long kernel_call(long number, Arguments... arguments) noexcept {
  const long result = ::syscall(number, arguments...);
  return result < 0 ? -errno : result;
}

#endif

/// Turns the result of a function of the C library into that of kernel_call(): a failure becomes -errno.
template <class Result>
[[nodiscard]] inline Result or_errno(Result value) noexcept {
  return value < 0 ? static_cast<Result>(-errno) : value;
}

}  // namespace weft
