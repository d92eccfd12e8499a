// SPDX-License-Identifier: Apache-2.0
// across PLUGIN: what has to be one thing in a program, a library that it loads, and libweft.so: the type of
// weft::error, the category of its codes, the frames of coroutines, and the loop that resumes them. All are built with
// hidden visibility.
#include <dlfcn.h>

#include <cstdio>
#include <thread>
#include <utility>

#include "plugin.hpp"

namespace {

int failures = 0;

void expect(bool holds, const char* promise) {
  if (holds) return;
  std::printf("not so: %s\n", promise);
  ++failures;
}

weft::task<std::size_t> zero() { co_return 0; }

weft::task<std::size_t> fails(const plugin& loaded) {
  loaded.fail("in a coroutine");
  co_return 0;
}

weft::task<std::size_t> count_here(weft::task<std::size_t> inner) { co_return 1 + co_await std::move(inner); }

void errors_are_caught_by_type(const plugin& loaded) {
  const auto code_of = [](auto&& call) {
    try {
      call();
    } catch (const weft::error& why) {
      return why.code();
    }
    return std::error_code();
  };
  weft::executor executor;
  expect(code_of([&] { loaded.fail("here"); }) == weft::errc::busy, "the plugin's error is caught in the program");
  expect(code_of([] { static_cast<void>(weft::net::device::open("nonesuch")); }) == weft::errc::not_supported,
         "libweft.so's error is caught in the program");
  expect(code_of([&] { executor.run(loaded.count(fails(loaded), 0)); }) == weft::errc::busy,
         "an error goes through coroutines of the program, the plugin and libweft.so");
  expect(loaded.category == &weft::weft_category(), "there is one category of weft's codes");
}

// Frames of one side are destroyed by the other, by turns, deeper than any stack would go.
void coroutines_of_both_sides_await_each_other(const plugin& loaded) {
  constexpr std::size_t depth = 100'000;
  weft::executor executor;
  for (int round = 0; round < 2; ++round) {
    auto inner = zero();
    for (std::size_t made = 0; made < depth; made += 2) inner = count_here(loaded.count(std::move(inner), made));
    expect(executor.run(std::move(inner)) == depth, "every coroutine of a chain across both sides has run");
  }
  expect(weft::detail::frame_bytes_kept() > 0, "frames that were freed are kept");
}

void thread_locals_are_one(plugin (*entry)()) {
  const auto compare = [entry] {
    const plugin here = entry();
    expect(here.frames == &weft::detail::frames_of_thread, "a thread has one cache of frames");
    expect(here.next_to_resume == &weft::detail::next_to_resume, "a thread has one coroutine that goes on next");
  };
  compare();
  std::thread(compare).join();
}

}  // namespace

int main(int, char** argv) {
  void* const library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return std::puts(dlerror()), 2;
  const auto entry = reinterpret_cast<plugin (*)()>(dlsym(library, plugin_entry));
  if (entry == nullptr) return std::puts(dlerror()), 2;
  thread_locals_are_one(entry);
  errors_are_caught_by_type(entry());
  coroutines_of_both_sides_await_each_other(entry());
  std::puts(failures == 0 ? "one weft" : "more than one weft");
  return failures == 0 ? 0 : 1;
}
