// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/core/task_name.hpp>
#include <weft/runtime/observe/report.hpp>

#include <fmt/core.h>

#include <atomic>
#include <cstdio>
#include <thread>

namespace weft {
namespace {

constinit std::atomic<report_handler*> handler_in_use{nullptr};
// How many threads are inside a handler, or about to look for one.
constinit std::atomic<unsigned> handling{0};

// "[peers] first: serve (server.cpp:12)", as in a dump.
std::string whom_it_concerns(const report& what) {
  return fmt::format("{}{}{}{}{}{}", what.scope.empty() ? "" : "[", what.scope, what.scope.empty() ? "" : "] ",
                     what.task, what.task.empty() ? "" : ": ", detail::name_and_place(what.origin));
}

bool is_of_a_task(const report& what) noexcept { return what.origin.line() != 0; }

// One call, so that the lines of several threads do not mix: the stream has no buffer. No memory is needed where there
// are no names to put together.
void print(const report& what) noexcept {
  const int length = static_cast<int>(what.text.size());
  if (what.kind == report_kind::dump) {
    std::fwrite(what.text.data(), 1, what.text.size(), stderr);
  } else if (what.kind != report_kind::failure && !is_of_a_task(what)) {
    std::fprintf(stderr, "weft: %.*s\n", length, what.text.data());
  } else {
    try {
      std::fputs(fmt::format("weft: {}\n", to_string(what)).c_str(), stderr);
    } catch (const std::exception&) {  // no memory: then as the compiler writes the function
      std::fprintf(stderr, "weft: %.*s; [%.*s] %.*s: %s\n", length, what.text.data(),
                   static_cast<int>(what.scope.size()), what.scope.data(), static_cast<int>(what.task.size()),
                   what.task.data(), what.origin.function_name());
    }
  }
}

}  // namespace

std::string to_string(const report& what) {
  if (what.kind == report_kind::failure) {
    return is_of_a_task(what) ? fmt::format("task {} failed: {}", whom_it_concerns(what), what.text)
                              : fmt::format("a task failed: {}", what.text);
  }
  if (is_of_a_task(what)) return fmt::format("{}; task {}", what.text, whom_it_concerns(what));
  std::string text(what.text);
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

report_handler* set_report_handler(report_handler* handler) noexcept {
  report_handler* const former = handler_in_use.exchange(handler, std::memory_order_seq_cst);
  // A thread that may still use the former handler is counted here; any other has yet to look, and finds the new one.
  while (handling.load(std::memory_order_seq_cst) != 0) std::this_thread::yield();
  return former;
}

void send_report(const report& what) noexcept {
  handling.fetch_add(1, std::memory_order_seq_cst);
  report_handler* const handler = handler_in_use.load(std::memory_order_seq_cst);
  handler != nullptr ? handler->handle(what) : print(what);
  handling.fetch_sub(1, std::memory_order_release);
}

}  // namespace weft
