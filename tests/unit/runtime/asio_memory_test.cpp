// SPDX-License-Identifier: Apache-2.0
// What an asio_host takes of memory as it ships: see memory_test.cpp.
#include <weft/runtime/asio.hpp>

#include <asio.hpp>

#include "out_of_memory.hpp"
#include "runtime/support.hpp"

namespace weft {
namespace {

class asio_host_memory : public testing::Test {
 protected:
  asio::io_context io_;
  asio_host host_{io_};
};

task<> nothing() { co_return; }

// Has this thread keep the frames of many tasks.
void keep_many_frames() {
  std::vector<task<>> tasks;
  for (int i = 0; i < 100'000; ++i) tasks.push_back(nothing());
}

TEST_F(asio_host_memory, gives_frames_back_while_it_is_idle) {
  const auto root = []() -> task<> {
    keep_many_frames();
    EXPECT_GT(detail::frame_bytes_kept(), detail::frame_bytes_kept_when_idle);
    co_await sleep_for(300ms);
    EXPECT_LE(detail::frame_bytes_kept(), detail::frame_bytes_kept_when_idle + 4096);  // and what has ended since
  };
  bool ended = false;
  host_.async(root(), [&](std::error_code failure) { ended = !failure; });
  io_.run();
  EXPECT_TRUE(ended);
}

TEST_F(asio_host_memory, gives_frames_back_when_it_has_nothing_left_to_do) {
  const auto root = []() -> task<> {
    keep_many_frames();
    co_return;
  };
  bool ended = false;
  host_.async(root(), [&](std::error_code failure) { ended = !failure; });
  io_.run();
  EXPECT_TRUE(ended);
  EXPECT_LE(detail::frame_bytes_kept(), detail::frame_bytes_kept_when_idle + 4096);
}

TEST_F(asio_host_memory, is_woken_by_a_thread_that_has_no_memory) {
  class call final : public detail::remote_work {
   public:
    explicit call(asio::io_context& target) noexcept : target_(target) {}

   private:
    void run_on_executor() noexcept override { target_.stop(); }
    asio::io_context& target_;
  };
  const auto guard = asio::make_work_guard(io_);
  call stop(io_);
  const std::jthread other([&] {
    const test::out_of_memory none;
    core_of(host_.executor()).submit(stop);
  });
  io_.run();
}

TEST_F(asio_host_memory, starts_and_kicks_without_memory_of_its_own) {
  io_.poll();
  io_.restart();
  {
    const test::out_of_memory none;
    host_.request_stop();  // posts to the io_context
  }
  EXPECT_GT(io_.poll(), 0U);
}

}  // namespace
}  // namespace weft
