// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <iterator>

#include "kit/standard.hpp"

namespace weft::test {

/// How many entries a directory has; 0 if there is no such directory.
[[nodiscard]] inline std::size_t entries_of(const char* directory) {
  std::error_code missing;
  const std::filesystem::directory_iterator all(directory, missing);
  return missing ? 0 : static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

/// How many descriptors this process has open, and one more, with which they are counted.
[[nodiscard]] inline std::size_t open_descriptors() { return entries_of("/proc/self/fd"); }

/// How many of them are of that kind: "socket:", "/memfd:".
[[nodiscard]] inline std::size_t open_descriptors(std::string_view kind) {
  std::size_t count = 0;
  for (const auto& each : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (std::filesystem::read_symlink(each.path(), gone).string().starts_with(kind)) ++count;
  }
  return count;
}

/// All descriptors of this process are in use, until it goes.
class no_descriptors_left : private immovable {
 public:
  no_descriptors_left() {
    ::getrlimit(RLIMIT_NOFILE, &former_);
    rlimit few = former_;
    few.rlim_cur = 256;
    ::setrlimit(RLIMIT_NOFILE, &few);
    for (int fd = ::dup(0); fd >= 0; fd = ::dup(0)) filling_.push_back(fd);
  }
  ~no_descriptors_left() {
    for (const int fd : filling_) ::close(fd);
    ::setrlimit(RLIMIT_NOFILE, &former_);
  }

 private:
  rlimit former_{};
  std::vector<int> filling_;
};

}  // namespace weft::test
