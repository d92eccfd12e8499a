// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/system/mapping.hpp>
#include <weft/runtime/system/system_calls.hpp>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <fstream>

#include "kit/immovable.hpp"
#include "kit/standard.hpp"

namespace weft::test {

/// A file on a disk, in the directory of the build.
class disk_file : private immovable {
 public:
  explicit disk_file(std::size_t bytes) {
    fd_ = ::mkstemp(path_.data());
    if (fd_ < 0 || ::ftruncate(fd_, static_cast<off_t>(bytes)) != 0) throw std::runtime_error("cannot make " + path_);
  }
  ~disk_file() {
    ::close(fd_);
    ::unlink(path_.c_str());
  }
  [[nodiscard]] int descriptor() const noexcept { return fd_; }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] mr::mapping mapped(std::size_t bytes) const {
    return mr::mapping::of_file({.descriptor = fd_}, bytes, system_calls::kernel());
  }
  /// How much of its mappings has not reached its storage, by the kernel's account: proc_pid_smaps(5).
  [[nodiscard]] std::size_t unwritten_kib() const {
    std::ifstream all("/proc/self/smaps");
    std::size_t kib = 0;
    bool is_it = false;
    for (std::string line; std::getline(all, line);) {
      const std::string word = line.substr(0, line.find(' '));
      if (!word.ends_with(':')) is_it = line.ends_with(path_);
      if (is_it && (word == "Shared_Dirty:" || word == "Private_Dirty:")) kib += std::stoul(line.substr(word.size()));
    }
    return kib;
  }
  /// Whether the directory of the build is on a disk: not in memory, nor in a file system on top of one in memory.
  [[nodiscard]] static bool is_possible() {
    const disk_file tried(1);
    const mr::mapping memory = tried.mapped(1);
    memory.data()[0] = std::byte{1};
    return ::msync(memory.data(), 1, MS_SYNC) == 0 && tried.unwritten_kib() == 0;
  }

 private:
  std::string path_ = "weft-disk-file-XXXXXX";
  int fd_ = -1;
};

}  // namespace weft::test
