// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/error.hpp>
#include <weft/runtime/offload.hpp>
#include <weft/runtime/system/system_calls.hpp>

#include <fmt/core.h>

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include <nvme/file_disk.hpp>

namespace nvme {

file_disk::file_disk(weft::file source, weft::descriptor handle, std::uint64_t size, bool read_only) noexcept
    : file_(std::move(source)), handle_(std::move(handle)), size_(size), read_only_(read_only) {}

weft::task<std::unique_ptr<file_disk>> file_disk::open(std::string path, bool read_only) {
  weft::file source =
      co_await weft::file::open(path, {.access = read_only ? weft::file_access::read : weft::file_access::read_write});
  const std::uint64_t size = co_await source.size();
  weft::descriptor handle;
  const auto open_again = [&] {  // errno is the worker's
    const int opened = ::open(path.c_str(), (read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC);
    if (opened < 0) throw weft::system_error(errno, fmt::format("open {}", path));
    handle = weft::descriptor(opened, weft::system_calls::kernel());
  };
  co_await weft::offload(open_again);
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
  const auto call = [&] {
    const std::lock_guard lock(flushing_);
    while (lost_ == 0 && ::fdatasync(handle_.fd()) != 0) {
      if (errno != EINTR) lost_ = errno;
    }
    return lost_;
  };
  const int failure = co_await weft::offload(call);
  if (failure != 0) throw weft::system_error(failure, fmt::format("flush {}", file_.path()));
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
  co_return size_.exchange(now, std::memory_order_relaxed) != now;
}

}  // namespace nvme
