// SPDX-License-Identifier: Apache-2.0
// Copies that a GPU carries out late: when they are there, and what becomes of them when something fails.
#include <weft/mr/cuda/driver.hpp>

#include <dlfcn.h>

#include <stop_token>

#include "failing_calls.hpp"
#include "support.hpp"

namespace weft::test {
namespace {

class cuda_stream : public with_gpu {
 protected:
  std::unique_ptr<mr::copy_stream> stream = gpu->open_stream();

  // As a program makes one with cuStreamCreate().
  mr::cuda::stream_handle make_native(int device = 0) const {
    mr::cuda::stream_handle made = nullptr;
    const auto make = [&] { functions.stream_create(&made, 0); };
    with_context(make, device);
    return made;
  }
  void with_context(auto call, int device = 0) const {
    mr::cuda::context_handle context = nullptr;
    functions.device_primary_ctx_retain(&context, device);
    {
      const mr::cuda::current_context here(functions, context);
      call();
    }
    functions.device_primary_ctx_release(device);
  }

  const mr::cuda::driver& functions = mr::cuda::load_driver(stand_in::library());
};

TEST_F(cuda_stream, brings_bytes_to_the_gpu_and_back) {
  for (const std::size_t size : {1UL, 4096UL, 100001UL, 3UL << 20}) {
    const auto sent = random_bytes(size, 1);
    std::vector<std::byte> received(size);
    const auto first = gpu->allocate(size);
    const auto second = gpu->allocate(size);
    stream->copy(first.data(), sent.data(), size).value();
    stream->copy(second.data(), first.data(), size).value();
    stream->copy(received.data(), second.data(), size).value();
    wait_for(*stream, stream->mark().value());
    EXPECT_EQ(received, sent);
    EXPECT_EQ(driver.peek(first.bytes()), sent);
  }
}

TEST_F(cuda_stream, copies_in_order) {
  const auto memory = gpu->allocate(4096);
  std::vector<std::byte> sent(64 * 64);
  for (std::size_t turn = 0; turn < 64; ++turn) {
    driver.seed(turn);
    std::fill_n(sent.begin() + static_cast<std::ptrdiff_t>(turn * 64), 64, static_cast<std::byte>(turn + 1));
    stream->copy(memory.data(), sent.data() + turn * 64, 64).value();
  }
  wait_for(*stream, stream->mark().value());
  EXPECT_EQ(driver.peek(memory.bytes().first(64)), std::vector<std::byte>(64, std::byte{64}));
}

TEST_F(cuda_stream, reaches_a_mark_only_after_the_bytes_are_there) {
  constexpr std::size_t pieces = 40;
  constexpr std::size_t piece = 8192;
  const auto memory = gpu->allocate(pieces * piece);
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    driver.seed(seed);
    const auto sent = random_bytes(pieces * piece, static_cast<std::uint32_t>(seed));
    driver.poke(memory.bytes(), sent);
    pinned_bytes received(gpu, std::vector<std::byte>(pieces * piece));
    const auto before = stream->reached().value();
    for (std::size_t number = 0; number < pieces; ++number) {
      stream->copy(received.data() + number * piece, memory.data() + number * piece, piece).value();
      EXPECT_EQ(stream->mark().value(), before + number + 1);
    }
    for (std::uint64_t done = before; done < before + pieces;) {
      const auto now = stream->reached().value();
      for (; done < now; ++done) {
        const auto offset = static_cast<std::ptrdiff_t>((done - before) * piece);
        EXPECT_TRUE(std::equal(sent.begin() + offset, sent.begin() + offset + piece, received.data() + offset));
      }
      std::this_thread::yield();
    }
  }
}

TEST_F(cuda_stream, has_reached_nothing_before_the_first_mark) {
  EXPECT_EQ(stream->reached().value(), 0U);
  EXPECT_EQ(stream->mark().value(), 1U);
  wait_for(*stream, 1);
}

TEST_F(cuda_stream, keeps_any_number_of_marks) {
  driver.hold();
  for (std::uint64_t number = 1; number <= 100; ++number) EXPECT_EQ(stream->mark().value(), number);
  EXPECT_EQ(stream->reached().value(), 0U);
  driver.release();
  wait_for(*stream, 100);
  EXPECT_EQ(stream->mark().value(), 101U);
  wait_for(*stream, 101);
}

TEST_F(cuda_stream, uses_its_events_again) {
  for (int turn = 0; turn < 50; ++turn) wait_for(*stream, stream->mark().value());
  EXPECT_LE(driver.counts().events, 8U);
}

TEST_F(cuda_stream, allocates_nothing_once_it_has_events) {
  const auto memory = gpu->allocate(64);
  std::vector<std::byte> host(64);
  const auto use = [&] {
    EXPECT_TRUE(stream->copy(memory.data(), host.data(), 64));
    const auto mark = stream->mark();
    stream->synchronize();
    EXPECT_EQ(stream->reached().value(), mark.value());
  };
  for (int turn = 0; turn < 8; ++turn) use();
  const auto before = allocations();
  for (int turn = 0; turn < 100; ++turn) use();
  EXPECT_EQ(allocations(), before);
}

TEST_F(cuda_stream, notifies_after_the_bytes_are_there) {
  const auto memory = gpu->allocate(8192);
  const counted_event event;
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    driver.seed(seed);
    const auto sent = random_bytes(8192, static_cast<std::uint32_t>(seed));
    driver.poke(memory.bytes(), sent);
    std::vector<std::byte> received(8192);
    stream->copy(received.data(), memory.data(), 8192).value();
    ASSERT_TRUE(stream->notify(event.fd()));
    EXPECT_EQ(event.read(), 1U);  // blocks
    stream->synchronize();        // for the thread sanitizer, which does not see through eventfd(2)
    EXPECT_EQ(received, sent);
  }
}

TEST_F(cuda_stream, notifies_not_before) {
  const counted_event event(EFD_NONBLOCK);
  driver.hold();
  ASSERT_TRUE(stream->notify(event.fd()));
  EXPECT_EQ(event.read(), 0U);
  driver.release();
  stream->synchronize();
  EXPECT_EQ(event.read(), 1U);
}

TEST_F(cuda_stream, destroyed_in_flight_waits_for_the_gpu) {
  const auto memory = gpu->allocate(1 << 20);
  const counted_event event(EFD_NONBLOCK);
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    driver.seed(seed);
    auto another = gpu->open_stream();
    std::vector<std::byte> host(1 << 20);
    another->copy(host.data(), memory.data(), host.size()).value();
    another->mark().value();
    ASSERT_TRUE(another->notify(event.fd()));
    another = nullptr;
    EXPECT_EQ(driver.outstanding(), 0U);
    EXPECT_EQ(event.read(), 1U);
  }
  EXPECT_EQ(driver.counts().streams, 1U);
}

TEST_F(cuda_stream, keeps_its_device) {
  gpu = nullptr;
  EXPECT_EQ(driver.counts().retained, 1U);
  wait_for(*stream, stream->mark().value());
  stream = nullptr;
  EXPECT_EQ(driver.counts().retained, 0U);
}

TEST_F(cuda_stream, fails_for_good_when_memory_was_freed_under_a_copy) {
  auto memory = gpu->allocate(4096);
  std::vector<std::byte> host(4096);
  driver.hold();
  stream->copy(host.data(), memory.data(), 4096).value();
  stream->mark().value();
  memory = {};
  driver.release();
  stream->synchronize();
  const auto reached = stream->reached();
  ASSERT_FALSE(reached);
  EXPECT_EQ(reached.error().code(), std::error_code(EIO, std::system_category()));
  EXPECT_TRUE(says(reached.error().what(), "illegal memory access")) << reached.error().what();
  EXPECT_FALSE(stream->copy(host.data(), host.data(), 1));
  EXPECT_FALSE(stream->mark());
  EXPECT_FALSE(stream->reached());
  EXPECT_FALSE(stream->notify(0));
  EXPECT_EQ(driver.outstanding(), 0U);
}

TEST_F(cuda_stream, a_refused_copy_leaves_it_as_it_was) {
  auto memory = gpu->allocate(4096);
  const auto freed = memory.data();
  memory = {};
  std::vector<std::byte> host(4096);
  const auto refused = stream->copy(freed, host.data(), 4096);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), errc::invalid_argument);
  wait_for(*stream, stream->mark().value());
}

TEST_F(cuda_stream, waits_for_the_gpu_before_it_reports_that_it_lost_track_of_it) {
  const auto memory = gpu->allocate(1 << 20);
  std::vector<std::byte> host(1 << 20);
  for (const char* const failing : {"cuEventQuery", "cuEventRecord", "cuEventCreate"}) {
    const auto another = gpu->open_stream();
    another->copy(host.data(), memory.data(), host.size()).value();
    driver.fail_next(failing, 999);
    driver.fail_next("cuStreamSynchronize", 2);
    EXPECT_FALSE(another->mark() && another->reached());
    EXPECT_EQ(driver.outstanding(), 0U) << failing;
    EXPECT_FALSE(another->reached());
  }
}

TEST_F(cuda_stream, goes_on_after_a_moment_without_memory_for_a_mark) {
  const auto memory = gpu->allocate(1 << 20);
  std::vector<std::byte> host(1 << 20);
  for (const char* const failing : {"cuEventRecord", "cuEventCreate"}) {
    const auto another = gpu->open_stream();
    another->copy(host.data(), memory.data(), host.size()).value();
    driver.fail_next(failing, stand_in::out_of_memory);
    const auto marked = another->mark();
    ASSERT_FALSE(marked) << failing;
    EXPECT_EQ(marked.error().code(), errc::no_memory) << failing;
    EXPECT_EQ(driver.outstanding(), 0U) << failing;
    another->copy(host.data(), memory.data(), host.size()).value();
    wait_for(*another, another->mark().value());
  }
}

TEST_F(cuda_stream, whose_context_was_reset_is_closed) {
  const auto memory = gpu->allocate(4096);
  std::vector<std::byte> host(4096);
  driver.hold();
  stream->copy(memory.data(), host.data(), 4096).value();
  stream->mark().value();
  driver.destroy_context(0);
  driver.release();
  const auto reached = stream->reached();
  ASSERT_FALSE(reached);
  EXPECT_EQ(reached.error().code(), errc::closed);
  stream->synchronize();
}

TEST_F(cuda_stream, ends_without_the_driver_once_its_context_is_gone) {
  std::vector<std::byte> host(4096);
  const auto leave = [&](bool is_retained_anew) {
    gpu = open_stand_in();
    auto memory = gpu->allocate(4096);
    auto own = gpu->open_stream();
    auto borrowed = gpu->borrow_stream(nullptr);
    own->copy(memory.data(), host.data(), 4096).value();
    own->mark().value();
    borrowed->mark().value();
    driver.destroy_context(0);
    const auto anew = is_retained_anew ? open_stand_in() : nullptr;
    EXPECT_EQ(own->copy(memory.data(), host.data(), 4096).error().code(), errc::closed);
    EXPECT_EQ(borrowed->mark().error().code(), errc::closed);
    EXPECT_FALSE(own->notify(0));
    own->synchronize();
    own = nullptr;
    borrowed = nullptr;
  };
  stream = nullptr;
  leave(false);
  leave(true);
}

TEST_F(cuda_stream, ends_without_the_driver_also_where_a_reset_shows_only_until_the_context_is_retained_anew) {
  gpu = mr::open_cuda({.library = STAND_IN_CUDA_WITHOUT_SHARING});
  const auto control = [](const char* name) {
    void* const library = ::dlopen(STAND_IN_CUDA_WITHOUT_SHARING, RTLD_NOW | RTLD_NOLOAD);
    return reinterpret_cast<void (*)(int)>(::dlsym(library, name));
  };
  stream = gpu->open_stream();
  stream->mark().value();
  control("stand_in_destroy_context")(0);
  EXPECT_EQ(stream->mark().error().code(), errc::closed);
  const auto anew = mr::open_cuda({.library = STAND_IN_CUDA_WITHOUT_SHARING});
  stream = nullptr;
}

TEST_F(cuda_stream, and_the_executor_that_copied_with_it_end_after_a_reset) {
  executor home;
  const auto memory = gpu->allocate(4096);
  std::vector<std::byte> host(4096);
  home.run(mr::device_copy(gpu, memory.data(), host.data(), 4096));
  home.run(mr::stream_finished(gpu, nullptr));
  driver.destroy_context(0);
  const auto anew = open_stand_in();
  expect_refusal(errc::closed, [&] { home.run(mr::device_copy(gpu, memory.data(), host.data(), 4096)); }, {"reset"});
  expect_refusal(errc::closed, [&] { home.run(mr::stream_finished(gpu, nullptr)); }, {"reset"});
}

TEST_F(cuda_stream, a_task_that_was_told_to_stop_hears_that_nothing_was_copied) {
  executor home;
  const auto memory = gpu->allocate(16);
  std::vector<std::byte> host(16);
  home.run(mr::device_copy(gpu, host.data(), memory.data(), 16));  // the engine is there from now on
  driver.poke(memory.bytes(), random_bytes(16, 1));
  std::stop_source source;
  source.request_stop();
  const auto stopped = [&](task<> what) { home.run(std::move(what), source.get_token()); };
  const auto before = host;
  expect_refusal(errc::canceled, [&] { stopped(mr::device_copy(gpu, host.data(), memory.data(), 16)); }, {"a copy by"});
  EXPECT_EQ(host, before);
  expect_refusal(errc::canceled, [&] { stopped(mr::stream_finished(gpu, nullptr)); });
}

TEST_F(cuda_stream, borrowed_tells_how_far_the_program_is_and_stays_the_program_s) {
  const auto native = make_native();
  const counted_event event;
  {
    const auto borrowed = gpu->borrow_stream(native);
    const auto memory = gpu->allocate(8192);
    const auto sent = random_bytes(8192, 1);
    driver.hold();
    with_context([&] {
      functions.memcpy_async(reinterpret_cast<std::uintptr_t>(memory.data()),
                             reinterpret_cast<std::uintptr_t>(sent.data()), 8192, native);
    });
    const auto mark = borrowed->mark().value();
    ASSERT_TRUE(borrowed->notify(event.fd()));
    EXPECT_EQ(borrowed->reached().value(), 0U);
    driver.release();
    wait_for(*borrowed, mark);
    EXPECT_EQ(driver.peek(memory.bytes()), sent);
    EXPECT_EQ(event.read(), 1U);
  }
  with_context([&] {
    EXPECT_EQ(functions.stream_query(native), mr::cuda::status::success);
    EXPECT_EQ(functions.stream_destroy(native), mr::cuda::status::success);
  });
}

TEST_F(cuda_stream, borrowed_ends_without_a_wait_for_the_program_s_work_and_still_tells_of_it) {
  const auto native = make_native();
  const counted_event event;
  const auto memory = gpu->allocate(8192);
  const auto sent = random_bytes(8192, 1);
  driver.hold();
  with_context([&] {
    functions.memcpy_async(reinterpret_cast<std::uintptr_t>(memory.data()),
                           reinterpret_cast<std::uintptr_t>(sent.data()), 8192, native);
  });
  {
    const counted_event gone;
    const auto borrowed = gpu->borrow_stream(native);
    borrowed->mark().value();
    ASSERT_TRUE(borrowed->notify(gone.fd()));
    ASSERT_TRUE(borrowed->notify(event.fd()));
    borrowed->synchronize();
  }
  driver.release();
  EXPECT_EQ(event.read(), 1U);
  with_context([&] { EXPECT_EQ(functions.stream_destroy(native), mr::cuda::status::success); });
}

TEST_F(cuda_stream, null_borrows_the_default_one) {
  const auto borrowed = gpu->borrow_stream(nullptr);
  wait_for(*borrowed, borrowed->mark().value());
}

TEST_F(cuda_stream, that_the_program_has_destroyed_is_not_borrowed) {
  const auto native = make_native();
  with_context([&] { functions.stream_destroy(native); });
  expect_refusal(errc::closed, [&] { return gpu->borrow_stream(native); });
}

TEST_F(cuda_stream, of_another_device_is_not_borrowed) {
  const auto other = open_stand_in(1);
  const auto native = make_native(1);
  expect_refusal(errc::wrong_device, [&] { return gpu->borrow_stream(native); });
}

}  // namespace
}  // namespace weft::test
