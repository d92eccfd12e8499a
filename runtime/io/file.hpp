// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/system/descriptor.hpp>
#include <weft/runtime/task.hpp>

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

struct iovec;

namespace weft {

/// The access that a file is opened for.
enum class file_access : std::uint8_t { read, write, read_write };

/// How a file is opened: the flags of open(2).
struct file_options {
  file_access access = file_access::read;  ///< reading, writing or both
  bool create = false;                     ///< create the file if it does not exist
  bool exclusive = false;                  ///< with `create`: EEXIST if the file exists
  bool truncate = false;                   ///< empty the file
  bool direct = false;  ///< bypass the page cache: offsets, addresses and sizes must be multiples of the block size
  mode_t permissions = 0666;  ///< of a file that is created, less the umask
};
static_assert(std::is_trivially_destructible_v<file_options>);

/// A file or a block device. No call blocks the executor: with io_uring the kernel reads and writes in the background,
/// and with epoll, which does not support files, a worker does (see offload()). The destructor closes the file
/// synchronously.
///
/// Any number of operations may be in progress, also from several executors. Meanwhile neither the file nor the memory
/// of an operation may be moved or destroyed. The memory may be registered memory. Do not destroy a task that awaits an
/// operation: that ends the program, unless the operation is still queued for a worker. Errors of the system are
/// weft::error with the system's code; the message names the file. A stop withdraws an operation that has not begun
/// (errc::canceled) and waits for one that has. If a write fails or is stopped when it was partly done, its error has
/// error::posted(). Using a file that is not open is errc::invalid_argument.
class file {
 public:
  file() = default;

  /// Opens the file of this name, on a worker. errc::invalid_argument for `exclusive` without `create`, and for
  /// `truncate` without write access.
  static task<file> open(std::string_view path, file_options options = {});

  /// Fills `into` from `offset`, and yields the number of bytes: fewer only at the end of the file. errc::out_of_range
  /// if no file can have these bytes. See preadv(2).
  task<std::size_t> read_at(std::uint64_t offset, std::span<std::byte> into);
  /// Writes all of `from` at `offset`, and yields the number of bytes. errc::out_of_range as for read_at(). See
  /// pwritev(2).
  task<std::size_t> write_at(std::uint64_t offset, std::span<const std::byte> from);
  /// Returns once the data written so far would survive a loss of power. See fdatasync(2).
  task<> sync();
  /// The size in bytes, also of a block device.
  task<std::uint64_t> size();

  /// False if the file was not opened, or was moved from.
  explicit operator bool() const noexcept { return static_cast<bool>(descriptor_); }
  /// The path as it was given to open().
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

 private:
  file(descriptor source, std::string path) noexcept : descriptor_(std::move(source)), path_(std::move(path)) {}

  void check_open() const;
  static task<file> open_on_worker(std::string path, file_options options);
  task<std::size_t> transfer(io_kind kind, std::uint64_t offset, iovec memory);
  task<ssize_t> transfer_once(io_kind kind, std::uint64_t offset, iovec& memory);

  descriptor descriptor_;
  std::string path_;
};

}  // namespace weft
