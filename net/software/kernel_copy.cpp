// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/shared_words.hpp>
#include <weft/mr/system/page.hpp>
#include <weft/net/software/kernel_copy.hpp>
#include <weft/runtime/error.hpp>

#include <fmt/core.h>

#include <sys/mman.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cassert>
#include <cerrno>
#include <cstdint>
#include <system_error>

namespace weft::net::software {
namespace {

iovec to_iovec(std::span<const std::byte> bytes) noexcept {
  return {.iov_base = const_cast<std::byte*>(bytes.data()), .iov_len = bytes.size()};
}

// Copies by `call`, with `memory` as its local side, and as its remote side `other`, which is in this process as well.
// Returns whether everything was copied.
template <class Call>
bool copy_by(Call call, std::span<const std::byte> memory, std::span<const std::byte> other) noexcept {
  assert(memory.size() == other.size());
  const iovec own = to_iovec(memory);
  const iovec far = to_iovec(other);
  return call(::getpid(), &own, 1, &far, 1, 0) == static_cast<ssize_t>(memory.size());
}

// False from the first lazy region on: memory that may be unmapped is never left to the processor, even if the calls
// are forbidden later.
std::atomic<bool> processor_may_copy{true};

bool must_do_without() noexcept {
  return (errno == EPERM || errno == ENOSYS) && processor_may_copy.load(std::memory_order_relaxed);
}

bool is_word(std::span<const std::byte> memory) noexcept {
  constexpr std::size_t size = sizeof(std::uint64_t);
  return memory.size() == size && reinterpret_cast<std::uintptr_t>(memory.data()) % size == 0;
}

bool store_word(std::span<std::byte> memory, std::span<const std::byte> from) noexcept {
  if (!can_store_word(memory)) return false;
  mr::store_shared(memory, from);
  return true;
}

}  // namespace

bool copy_into(std::span<std::byte> memory, std::span<const std::byte> from, bool words) noexcept {
  if (words && is_word(memory)) return store_word(memory, from);
  errno = 0;
  if (copy_by(::process_vm_readv, memory, from)) return true;
  if (!must_do_without()) return false;
  mr::store_shared(memory, from);
  return true;
}

bool copy_out_of(std::span<const std::byte> memory, std::span<std::byte> to) noexcept {
  errno = 0;
  if (copy_by(::process_vm_writev, memory, to)) return true;
  if (!must_do_without()) return false;
  mr::load_shared(memory, to);
  return true;
}

bool can_store_word(std::span<std::byte> word) noexcept {
  const std::size_t page = mr::detail::page_bytes();
  const std::size_t before = reinterpret_cast<std::uintptr_t>(word.data()) % page;
  if (::madvise(word.data() - before, page, MADV_POPULATE_WRITE) == 0) return true;
  if (errno == EFAULT || errno == ENOMEM) return false;
  // Linux before 5.14, or a filter of system calls: a page that can be read is there.
  std::array<std::byte, sizeof(std::uint64_t)> there{};
  return copy_out_of(word, there);
}

void check_kernel_copies(std::string_view name) {
  const std::byte from{};
  std::byte to{};
  errno = 0;
  if (copy_by(::process_vm_readv, std::span(&to, 1), std::span(&from, 1)) &&
      copy_by(::process_vm_writev, std::span(&from, 1), std::span(&to, 1))) {
    return processor_may_copy.store(false, std::memory_order_relaxed);
  }
  throw error(errc::not_supported, fmt::format("register memory on {} with the option lazy: process_vm_readv(2): {}",
                                               name, std::generic_category().message(errno)));
}

}  // namespace weft::net::software
