// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/run_until_signal.hpp>

#include <CLI/CLI.hpp>
#include <fmt/core.h>

#include <string.h>

#include <chrono>
#include <concepts>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>

#include <common/printable.hpp>

// What the command lines of the examples share.
namespace common {

enum exit_code : int { success = 0, failed = 1, wrong_usage = 2 };

/// Takes the command line, does what it asks for by `run`, and says in a line what went wrong. Yields the exit code.
template <std::invocable Run>
int run_program(CLI::App& app, int argc, char** argv, const Run& run) {
  const std::string name = app.get_name();
  try {
    app.parse(argc, argv);
    return run();
  } catch (const CLI::ParseError& wrong) {
    if (wrong.get_exit_code() == 0) return app.exit(wrong);  // it has asked for help
    fmt::print(stderr, "{}: {} ({} --help)\n", name, wrong.what(), name);
    return wrong_usage;
  } catch (const std::exception& why) {
    fmt::print(stderr, "{}: {}\n", name, printable(why.what()));
    return failed;
  }
}

/// The exit code of work that a signal may have stopped: that is how a server ends, and others say so.
inline int exit_code_of(const weft::until_signal<int>& ended, std::string_view program, bool is_server) {
  if (ended.signal == 0) return ended.result.value();
  if (is_server) return success;
  fmt::print(stderr, "{}: interrupted ({})\n", program, ::sigdescr_np(ended.signal));
  return failed;
}

template <class Duration>
Duration in_seconds(double seconds) {
  return std::chrono::ceil<Duration>(std::chrono::duration<double>(seconds));
}

/// For CLI11: the words of what `parse` throws; empty if it takes the text.
template <class Parse>
auto check_by(Parse parse) {
  return [parse](const std::string& text) -> std::string {
    try {
      static_cast<void>(parse(text));
      return {};
    } catch (const std::invalid_argument& why) {
      return why.what();
    }
  };
}

/// An option whose default is shown by --help.
template <class Value>
CLI::Option& add_value(CLI::App& to, const std::string& name, Value& into, const std::string& words,
                       const std::string& type) {
  return *to.add_option(name, into, words)->type_name(type)->capture_default_str();
}

inline void add_device(CLI::App& to, std::string& device) {
  add_value(to, "--device", device,
            "auto, or the transport by name: iwarp, shm or verbs:DEVICE; several with a + between them are rails",
            "NAME");
}

inline void add_patience(CLI::App& to, double& seconds) {
  add_value(to, "--timeout", seconds, "how long to wait for a peer that does not go on", "SECONDS")
      .check(CLI::Range(0.001, 1e6));
}

inline void add_resume_within(CLI::App& to, double& seconds, const char* unit = "SECONDS") {
  add_value(to, "--resume-within", seconds,
            "how long a connection of several rails waits for one of them once all are lost; both sides choose", unit)
      .check(CLI::Range(0.0, 86400.0));
}

}  // namespace common
