// SPDX-License-Identifier: Apache-2.0
#include "plugin.hpp"

#include <chrono>
#include <utility>

namespace {

weft::task<std::size_t> count(weft::task<std::size_t> inner, std::size_t depth) {
  if (depth % 7 == 0) co_await weft::sleep_for(std::chrono::nanoseconds(1));  // libweft.so resumes it
  const std::size_t below = co_await std::move(inner);
  co_return below + 1;
}

void fail(const char* words) { throw weft::error(weft::errc::busy, words); }

}  // namespace

extern "C" [[gnu::visibility("default")]] plugin weft_test_plugin() {
  return {&weft::weft_category(), &weft::detail::frames_of_thread, &weft::detail::next_to_resume, &fail, &count};
}
