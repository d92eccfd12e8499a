// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/system/system_calls.hpp>

#include <fmt/core.h>

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include <nvme/disks.hpp>
#include <nvme/sizes.hpp>

namespace nvme {

weft::task<> disk::zero(std::uint64_t offset, std::uint64_t bytes) {
  static constexpr std::array<std::byte, std::size_t{64} << 10> zeroes{};
  while (bytes > 0) {
    const std::uint64_t now = std::min<std::uint64_t>(bytes, zeroes.size());
    co_await write(offset, std::span(zeroes).first(now));
    offset += now;
    bytes -= now;
    co_await weft::yield();  // the executor has others to serve
  }
}

// ---- memory ----

memory_disk::memory_disk(std::uint64_t bytes) {
  void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) throw weft::system_error(errno, fmt::format("set aside {} of memory", format_size(bytes)));
  memory_ = {static_cast<std::byte*>(at), bytes};
}

memory_disk::~memory_disk() { ::munmap(memory_.data(), memory_.size()); }

std::string memory_disk::describe() const { return fmt::format("{} of memory", format_size(size())); }

weft::task<> memory_disk::read(std::uint64_t offset, std::span<std::byte> into) {
  std::memcpy(into.data(), memory_.data() + offset, into.size());
  co_return;
}

weft::task<> memory_disk::write(std::uint64_t offset, std::span<const std::byte> from) {
  std::memcpy(memory_.data() + offset, from.data(), from.size());
  co_return;
}

// ---- files ----

weft::task<std::unique_ptr<file_disk>> file_disk::open(std::string path, bool read_only) {
  const auto access = read_only ? weft::file_access::read : weft::file_access::read_write;
  weft::file source = co_await weft::file::open(path, {.access = access});
  const std::uint64_t size = co_await source.size();
  const auto open_again = [&] {  // errno is the worker's
    const int opened = ::open(path.c_str(), (read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC);
    if (opened < 0) throw weft::system_error(errno, fmt::format("open {}", path));
    return weft::descriptor(opened, weft::system_calls::kernel());
  };
  weft::descriptor handle = co_await weft::offload(open_again);
  co_return std::unique_ptr<file_disk>(new file_disk(std::move(source), std::move(handle), size, read_only));
}

weft::task<> file_disk::read(std::uint64_t offset, std::span<std::byte> into) {
  const std::size_t got = co_await file_.read_at(offset, into);
  if (got != into.size()) throw weft::system_error(EIO, fmt::format("read {}: it has become shorter", file_.path()));
}

weft::task<> file_disk::write(std::uint64_t offset, std::span<const std::byte> from) {
  static_cast<void>(co_await file_.write_at(offset, from));
}

// The kernel tells of data that it could not write once, to whoever asks first. Whoever asks later must not be told
// that all is well: so one asks at a time, and what was lost is lost for all.
weft::task<> file_disk::flush() {
  const auto turn = co_await flushing_.lock();
  if (lost_) throw weft::error(*lost_);
  try {
    co_await file_.sync();
  } catch (const weft::error& why) {
    if (why.code() != weft::errc::canceled) lost_ = why;
    throw;
  }
}

// False if the file system or the device cannot do that.
weft::task<bool> file_disk::allocate(int mode, std::uint64_t offset, std::uint64_t bytes) {
  const auto call = [&] {
    const int failed = ::fallocate(handle_.fd(), mode, static_cast<off_t>(offset), static_cast<off_t>(bytes));
    return failed == 0 ? 0 : errno;
  };
  const int failure = co_await weft::offload(call);
  const bool cannot = failure == EOPNOTSUPP || failure == ENODEV || failure == ENOSYS;
  if (cannot || failure == EINVAL) co_return false;  // a device takes whole blocks of its own only
  if (failure != 0) throw weft::system_error(failure, fmt::format("write {}", file_.path()));
  co_return true;
}

weft::task<> file_disk::zero(std::uint64_t offset, std::uint64_t bytes) {
  const bool done = co_await allocate(FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, offset, bytes);
  if (!done) co_await disk::zero(offset, bytes);
}

weft::task<> file_disk::deallocate(std::uint64_t offset, std::uint64_t bytes) {
  static_cast<void>(co_await allocate(FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, bytes));
}

weft::task<bool> file_disk::look_again() {
  const std::uint64_t now = co_await file_.size();
  co_return std::exchange(size_, now) != now;
}

}  // namespace nvme
