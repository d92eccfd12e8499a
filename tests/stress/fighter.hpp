// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>
#include <sys/wait.h>

#include <fstream>

#include "child.hpp"

namespace weft::stress {

/// Bytes of memory of a process: those that are present, or all of its address space.
inline std::size_t bytes_of(pid_t process, bool resident) {
  std::ifstream file("/proc/" + std::to_string(process) + "/statm");
  std::size_t total = 0;
  std::size_t present = 0;
  file >> total >> present;
  return (resident ? present : total) * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

/// A process of a duel, which is killed where it still runs in the end.
class fighter : private test::immovable {
 public:
  /// `words` are where it says what it has found wrong.
  fighter(const char* name, last_sentence& words) : name_(name), words_(words) {}
  ~fighter();

  /// Has a new process exit with what `body` returns there. The one before has ended.
  void start(const std::function<int()>& body);
  /// Whether it has ended by now.
  [[nodiscard]] bool has_ended() { return process_ <= 0 || wait(WNOHANG); }
  void signal(int number) const;
  /// At once, unless it is about to end by itself. What was wrong with it before, in words: that it had ended, or wrote
  /// more than so many bytes to its standard error stream. Empty if nothing was.
  [[nodiscard]] std::string kill(std::size_t excused_bytes);
  [[nodiscard]] std::size_t resident() const { return process_ > 0 ? bytes_of(process_, true) : 0; }
  /// What is wrong with how it has ended.
  [[nodiscard]] std::string words() const;
  /// Has it say what it is at.
  [[nodiscard]] std::string dump() const;

 private:
  bool wait(int flags);

  const char* name_;
  last_sentence& words_;
  last_words wrote_;
  pid_t process_ = 0;
  int status_ = 0;
};

}  // namespace weft::stress
