// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

namespace copy {

// Files as copy needs them. Every call may block, so all are made on worker threads (weft::offload), except for the
// removal of a partial file, which is short. Errors are copy::failure.

/// A file descriptor that is closed when it goes.
class file_descriptor {
 public:
  file_descriptor() = default;
  explicit file_descriptor(int fd) noexcept : fd_(fd) {}
  file_descriptor(file_descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  file_descriptor& operator=(file_descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~file_descriptor();

  [[nodiscard]] int get() const noexcept { return fd_; }
  /// Closes it now: 0, or the error of a write that the system had put off (close(2)).
  [[nodiscard]] int close() noexcept;

 private:
  int fd_ = -1;
};

/// Where files are served from and arrive.
class directory {
 public:
  explicit directory(std::string path);

  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

 private:
  std::string path_;
  file_descriptor fd_;
};

inline constexpr std::size_t longest_name_bytes = 255;  // NAME_MAX of every common file system

/// Throws unless `name` is that of a file in a directory, and nothing more: no '/', no '.' in front, no control
/// characters, 1 to 255 bytes. For names that a peer sends.
void check_plain_name(const std::string& name);

/// A regular file that is read from start to end.
class source_file {
 public:
  /// Any path of the user's.
  explicit source_file(const std::string& path);
  /// A file of a directory, for a peer: symbolic links are not followed.
  source_file(const directory& place, const std::string& name);

  [[nodiscard]] std::uint64_t size() const noexcept { return static_cast<std::uint64_t>(at_first_.st_size); }
  /// Fills all of `bytes` from where the last call ended. Fails if the file ends before.
  void read(std::span<std::byte> bytes);
  /// Fails if the file has been written to since it was opened.
  void check_unchanged() const;

 private:
  source_file(std::string name, int fd);

  std::string name_;
  file_descriptor fd_;
  struct ::stat at_first_ {};
};

/// A file in the making: it has a temporary name, `.NAME.XXXXXX.part` in the directory of the final one, until it is
/// complete. If that does not come to pass, the destructor removes it.
class part_file {
 public:
  /// `place` outlives it. Fails if there is something called `name` that is not a file.
  part_file(const directory& place, const std::string& name);
  part_file(part_file&& other) noexcept;
  part_file& operator=(part_file&&) = delete;
  ~part_file();

  /// Appends.
  void write(std::span<const std::byte> bytes);
  /// Gives it its final name, in place of any file that had it. With `sync` the bytes have reached the disk by then.
  void commit(bool sync);

  [[nodiscard]] const std::string& name() const noexcept { return name_; }

 private:
  const directory* place_;
  std::string name_;
  std::string temporary_;  // empty: nothing to remove
  file_descriptor fd_;
};

}  // namespace copy
