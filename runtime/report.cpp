// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/line_limit.hpp>
#include <weft/runtime/report.hpp>
#include <weft/runtime/task_name.hpp>

#include <fmt/core.h>

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <bitset>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <utility>

namespace weft {
namespace {

constinit std::atomic<report_handler*> handler_in_use{nullptr};
// How many threads are inside a handler, or about to look for one.
constinit std::atomic<unsigned> handling{0};
// How often this thread is.
constinit thread_local unsigned inside = 0;

// Names the task that a report is about, as a dump does: "[peers] first: serve (server.cpp:12)".
std::string whom_it_concerns(const report& what) {
  return fmt::format("{}{}{}{}{}{}", what.scope.empty() ? "" : "[", what.scope, what.scope.empty() ? "" : "] ",
                     what.task, what.task.empty() ? "" : ": ", detail::name_and_place(what.origin));
}

bool is_of_a_task(const report& what) noexcept { return what.origin.line() != 0; }

constexpr std::pair<std::string_view, report_kind> names_of_kinds[] = {{"failure", report_kind::failure},
                                                                       {"stall", report_kind::stall},
                                                                       {"warning", report_kind::warning},
                                                                       {"change", report_kind::change},
                                                                       {"dump", report_kind::dump}};

using kinds = std::bitset<8>;

void refuse_setting(std::string_view all, std::string_view word) noexcept {
  std::fprintf(
      stderr,
      "weft: WEFT_LOG=%.*s: unknown kind \"%.*s\"; use all, none, or a comma-separated list of failure, stall, "
      "warning, change and dump; writing all\n",
      static_cast<int>(all.size()), all.data(), static_cast<int>(word.size()), word.data());
}

// The kinds that WEFT_LOG names. Allocates nothing, so that reporting a failure cannot fail itself.
kinds read_setting() noexcept {
  const char* const setting = std::getenv("WEFT_LOG");
  const std::string_view all = setting != nullptr ? setting : "all";
  if (all.empty() || all == "all") return kinds().set();
  kinds chosen;
  if (all == "none") return chosen;
  for (std::string_view rest = all; !rest.empty();) {
    const std::string_view word = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(word.size() + 1, rest.size()));
    const auto* const found = std::find_if(std::begin(names_of_kinds), std::end(names_of_kinds),
                                           [&](const auto& each) { return each.first == word; });
    if (found == std::end(names_of_kinds)) {
      refuse_setting(all, word);
      return kinds().set();
    }
    chosen.set(static_cast<std::size_t>(found->second));
  }
  return chosen;
}

// A fatal report is always written.
bool is_wanted(report_kind kind) noexcept {
  static const kinds wanted = read_setting();
  return kind == report_kind::fatal || wanted.test(static_cast<std::size_t>(kind));
}

constinit line_limit failures;

// A child of fork(2) has only the thread that forked: no other is inside a handler there, nor will let go of a mutex.
void forget_other_threads() noexcept {
  handling.store(inside, std::memory_order_relaxed);
  std::construct_at(&failures);
}

// Whether a report exceeds the limit on failures, which peers can cause at will. Writes how many were left out before.
bool is_left_out(report_kind kind) noexcept {
  if (kind != report_kind::failure) return false;
  const auto left_out = failures.next(clock::steady().now());
  if (left_out.value_or(0) != 0) {
    std::fprintf(stderr, "weft: %llu more failures were not written\n", static_cast<unsigned long long>(*left_out));
  }
  return !left_out;
}

// Writes a report in one call, so that lines of several threads do not mix: stderr is unbuffered. Allocates memory only
// to put names together.
void print(const report& what) noexcept {
  if (!is_wanted(what.kind) || is_left_out(what.kind)) return;
  const int length = static_cast<int>(what.text.size());
  if (what.kind == report_kind::dump) {
    std::fwrite(what.text.data(), 1, what.text.size(), stderr);
  } else if (what.kind != report_kind::failure && !is_of_a_task(what)) {
    std::fprintf(stderr, "weft: %.*s\n", length, what.text.data());
  } else {
    try {
      std::fputs(fmt::format("weft: {}\n", to_string(what)).c_str(), stderr);
    } catch (const std::exception&) {  // no memory: write the function as the compiler describes it
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
  static const int failed = ::pthread_atfork(nullptr, nullptr, forget_other_threads);
  static_cast<void>(failed);  // without memory for that, a child may wait for others' reports
  ++inside;
  handling.fetch_add(1, std::memory_order_seq_cst);
  report_handler* const handler = handler_in_use.load(std::memory_order_seq_cst);
  handler != nullptr ? handler->handle(what) : print(what);
  handling.fetch_sub(1, std::memory_order_release);
  --inside;
}

}  // namespace weft
