// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <spawn.h>

#include <csignal>

#include "kit/child.hpp"
#include "kit/standard.hpp"

namespace weft::test {

/// A program that runs beside the test, with pipes for its input and its output. It is killed unless it has ended.
class piped_program : private immovable {
 public:
  /// Of its path and its arguments.
  explicit piped_program(std::vector<std::string> words) {
    std::array<int, 2> in{};
    std::array<int, 2> out{};
    EXPECT_TRUE(::pipe2(in.data(), O_CLOEXEC) == 0 && ::pipe2(out.data(), O_CLOEXEC) == 0);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
    ::posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    EXPECT_EQ(::posix_spawn(&id_, arguments[0], &actions, nullptr, arguments.data(), environ), 0);
    ::posix_spawn_file_actions_destroy(&actions);
    ::close(in[0]);
    ::close(out[1]);
    in_ = in[1];
    out_ = out[0];
  }
  ~piped_program() {
    if (id_ != 0) {
      ::kill(id_, SIGKILL);
      end();
    }
    ::close(out_);
  }

  [[nodiscard]] pid_t id() const noexcept { return id_; }
  void say(char one) const { EXPECT_EQ(::write(in_, &one, 1), 1); }
  void hear(std::span<std::byte> all) const {
    while (!all.empty()) {
      const ssize_t count = ::read(out_, all.data(), all.size());
      if (count <= 0) throw std::runtime_error("the program says nothing more");
      all = all.subspan(static_cast<std::size_t>(count));
    }
  }
  [[nodiscard]] std::string hear_line() const {
    std::string line;
    char next = 0;
    while (::read(out_, &next, 1) == 1 && next != '\n') line.push_back(next);
    return line;
  }
  /// Ends its input and waits for its end. Yields what end_of() does.
  int end() {
    ::close(in_);
    return end_of(std::exchange(id_, 0));
  }

 private:
  pid_t id_ = 0;
  int in_ = -1;
  int out_ = -1;
};

}  // namespace weft::test
