// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/error.hpp>
#include <weft/runtime/io/file.hpp>
#include <weft/runtime/io/io.hpp>
#include <weft/runtime/offload.hpp>

#include <fmt/core.h>

#include <fcntl.h>
#include <sys/socket.h>

#include <cerrno>
#include <limits>

namespace weft {
namespace {

int flags_of(const file_options& options) noexcept {
  int flags = O_CLOEXEC;
  switch (options.access) {
    case file_access::read:
      flags |= O_RDONLY;
      break;
    case file_access::write:
      flags |= O_WRONLY;
      break;
    case file_access::read_write:
      flags |= O_RDWR;
      break;
  }
  if (options.create) flags |= O_CREAT;
  if (options.exclusive) flags |= O_EXCL;
  if (options.truncate) flags |= O_TRUNC;
  if (options.direct) flags |= O_DIRECT;
  return flags;
}

// O_EXCL without O_CREAT is undefined, and the effect of O_TRUNC without the right to write is unspecified (open(2)).
void check(const file_options& options) {
  if (options.exclusive && !options.create) {
    throw error(errc::invalid_argument, "file_options::exclusive without file_options::create");
  }
  if (options.truncate && options.access == file_access::read) {
    throw error(errc::invalid_argument, "file_options::truncate without the right to write");
  }
}

std::string words(io_kind kind, std::size_t bytes, std::uint64_t offset, const std::string& path) {
  return fmt::format("{} {} bytes at {} of {}", kind == io_kind::read ? "read" : "write", bytes, offset, path);
}

error failure(int number, const std::string& what) {
  return number == ECANCELED ? error(errc::canceled, what) : system_error(number, what);
}

}  // namespace

task<file> file::open(std::string_view path, file_options options) {
  return open_on_worker(std::string(path), options);
}

task<file> file::open_on_worker(std::string path, file_options options) {
  check(options);
  system_calls& calls = executor_core::current()->calls();
  // Yields a descriptor, not a number, so that the file is closed whatever happens next.
  const auto call = [&] {
    const int fd = calls.open(path.c_str(), flags_of(options), options.permissions);
    if (fd < 0) throw system_error(-fd, "open " + path);
    return descriptor(fd, calls);
  };
  descriptor opened = co_await offload(call);
  co_return file(std::move(opened), std::move(path));
}

task<std::size_t> file::read_at(std::uint64_t offset, std::span<std::byte> into) {
  return transfer(io_kind::read, offset, {.iov_base = into.data(), .iov_len = into.size()});
}

task<std::size_t> file::write_at(std::uint64_t offset, std::span<const std::byte> from) {
  // An iovec serves both directions, so its pointer is not const. Nothing is written to this memory.
  void* const memory = const_cast<std::byte*>(from.data());  // NOLINT(cppcoreguidelines-pro-type-const-cast)
  return transfer(io_kind::write, offset, {.iov_base = memory, .iov_len = from.size()});
}

void file::check_open() const {
  if (!descriptor_) throw error(errc::invalid_argument, "use a file that has not been opened, or was moved from");
}

// Writes all of `memory`, or fills it up to the end of the file, by several calls if need be: the kernel moves at most
// 2 GiB in a call, and less if a signal comes or the disk becomes full.
task<std::size_t> file::transfer(io_kind kind, std::uint64_t offset, iovec memory) {
  check_open();
  const std::size_t bytes = memory.iov_len;
  constexpr auto largest = static_cast<std::uint64_t>(std::numeric_limits<off_t>::max());
  if (offset > largest || bytes > largest - offset) {
    throw error(errc::out_of_range, words(kind, bytes, offset, path_));
  }
  while (memory.iov_len > 0) {
    const std::uint64_t place = offset + (bytes - memory.iov_len);
    const bool partly_written = kind == io_kind::write && memory.iov_len < bytes;
    ssize_t moved = 0;
    try {
      moved = co_await transfer_once(kind, place, memory);
    } catch (const error& stopped) {
      throw stopped.within(words(kind, bytes, offset, path_)).as_posted(partly_written);
    }
    if (moved == -EINTR) continue;
    if (moved == 0 && kind == io_kind::read) break;
    if (moved == 0) moved = -ENOSPC;
    if (moved < 0) {
      throw failure(static_cast<int>(-moved), words(kind, bytes, offset, path_)).as_posted(partly_written);
    }
    memory.iov_base = static_cast<std::byte*>(memory.iov_base) + moved;
    memory.iov_len -= static_cast<std::size_t>(moved);
  }
  co_return bytes - memory.iov_len;
}

// Yields the result of the system call, or -errno. Throws errc::canceled if a stop comes before a worker has begun.
task<ssize_t> file::transfer_once(io_kind kind, std::uint64_t offset, iovec& memory) {
  executor_core& home = *executor_core::current();
  if (home.io().takes_files()) {
    msghdr message{};
    message.msg_iov = &memory;
    message.msg_iovlen = 1;
    co_return co_await detail::io_wait(kind, descriptor_, message, detail::io_wait::file_offset{offset});
  }
  const auto call = [&] {
    return kind == io_kind::read ? home.calls().preadv(descriptor_.fd(), &memory, 1, offset)
                                 : home.calls().pwritev(descriptor_.fd(), &memory, 1, offset);
  };
  co_return co_await offload(call);
}

task<> file::sync() {
  check_open();
  executor_core& home = *executor_core::current();
  int result = 0;
  if (home.io().takes_files()) {
    result = co_await detail::io_wait(io_kind::sync, descriptor_);
  } else {
    const auto call = [&] { return home.calls().fdatasync(descriptor_.fd()); };
    result = co_await offload(call);
  }
  if (result < 0) throw failure(-result, "sync " + path_);
}

task<std::uint64_t> file::size() {
  check_open();
  system_calls& calls = executor_core::current()->calls();
  const auto call = [&] { return calls.lseek(descriptor_.fd(), 0, SEEK_END); };
  const off_t end = co_await offload(call);
  if (end < 0) throw system_error(static_cast<int>(-end), "find the end of " + path_);
  co_return static_cast<std::uint64_t>(end);
}

}  // namespace weft
