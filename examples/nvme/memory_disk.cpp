// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/error.hpp>
#include <weft/runtime/sleep.hpp>

#include <fmt/core.h>

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <nvme/memory_disk.hpp>
#include <nvme/sizes.hpp>

namespace nvme {

memory_disk::memory_disk(std::uint64_t bytes) {
  void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) throw weft::system_error(errno, fmt::format("set aside {} of memory", format_size(bytes)));
  memory_ = {static_cast<std::byte*>(at), bytes};
}

memory_disk::~memory_disk() { ::munmap(memory_.data(), memory_.size()); }

std::string memory_disk::describe() const { return fmt::format("{} of memory", format_size(size())); }

template <class Work>
void memory_disk::each_stripe(std::uint64_t offset, std::uint64_t bytes, const Work& work) {
  for (std::uint64_t done = 0; done < bytes;) {
    const std::uint64_t at = offset + done;
    const std::uint64_t now = std::min(bytes - done, stripe_bytes - at % stripe_bytes);
    const std::lock_guard lock(locks_[at / stripe_bytes % locks_.size()]);
    work(memory_.subspan(at, now), done);
    done += now;
  }
}

weft::task<> memory_disk::read(std::uint64_t offset, std::span<std::byte> into) {
  each_stripe(offset, into.size(), [&](std::span<std::byte> part, std::uint64_t done) {
    std::memcpy(into.data() + done, part.data(), part.size());
  });
  co_return;
}

weft::task<> memory_disk::write(std::uint64_t offset, std::span<const std::byte> from) {
  each_stripe(offset, from.size(), [&](std::span<std::byte> part, std::uint64_t done) {
    std::memcpy(part.data(), from.data() + done, part.size());
  });
  co_return;
}

// Whole pages go back to the system, which gives zeroed ones when they are used again.
weft::task<> memory_disk::zero(std::uint64_t offset, std::uint64_t bytes) {
  constexpr std::uint64_t at_a_time = 256 * stripe_bytes;  // the executor has others to serve
  const auto clear = [](std::span<std::byte> part, std::uint64_t) {
    if (part.size() != stripe_bytes || ::madvise(part.data(), part.size(), MADV_DONTNEED) != 0)
      std::ranges::fill(part, std::byte{0});
  };
  while (bytes > 0) {
    const std::uint64_t now = std::min(bytes, at_a_time);
    each_stripe(offset, now, clear);
    offset += now;
    bytes -= now;
    co_await weft::yield();
  }
}

weft::task<> memory_disk::deallocate(std::uint64_t offset, std::uint64_t bytes) { co_await zero(offset, bytes); }

}  // namespace nvme
