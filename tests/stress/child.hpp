// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/error.hpp>

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <new>
#include <type_traits>

#include "kit/standard.hpp"

// What a process and the children that it starts have between them.
namespace weft::stress {

/// What a child exits with that has found something wrong, and has said what.
constexpr int check_failed = 3;

/// One T, in memory that children share.
template <class T>
  requires std::is_trivially_destructible_v<T>
class shared_memory : private test::immovable {
 public:
  shared_memory() {
    void* const memory = ::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw system_error(errno, "map memory to share with a child");
    item_ = new (memory) T;
  }
  ~shared_memory() { ::munmap(item_, sizeof(T)); }
  T* operator->() const noexcept { return item_; }
  T& operator*() const noexcept { return *item_; }

 private:
  T* item_;
};

/// Text that a child leaves behind, however it ends.
using last_sentence = std::array<char, 16'384>;
inline void leave_words(last_sentence& where, const std::string& words) noexcept {
  std::memcpy(where.data(), words.data(), std::min(words.size(), where.size() - 1));
}

/// A file without a name for what a child writes to its standard error stream.
class last_words : private test::immovable {
 public:
  last_words() : fd_(::memfd_create("last words", MFD_CLOEXEC)) {
    if (fd_ < 0) throw system_error(errno, "memfd_create(2)");
  }
  ~last_words() { ::close(fd_); }
  void take_standard_error() const noexcept { ::dup2(fd_, STDERR_FILENO); }
  [[nodiscard]] std::string read() const {
    std::string text(6000, '\0');
    const ssize_t count = ::pread(fd_, text.data(), text.size(), 0);
    text.resize(static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
    return text;
  }
  /// Nobody writes any more.
  void forget() const {
    if (::ftruncate(fd_, 0) != 0 || ::lseek(fd_, 0, SEEK_SET) != 0) throw system_error(errno, "truncate a memfd");
  }
  [[nodiscard]] std::size_t size() const noexcept {
    struct stat about {};
    return ::fstat(fd_, &about) == 0 ? static_cast<std::size_t>(about.st_size) : 0;
  }

 private:
  int fd_;
};

/// How a child ended that did not exit with 0, in words.
[[nodiscard]] std::string words_of(int status, const last_sentence& said, const last_words& wrote);

}  // namespace weft::stress
