// SPDX-License-Identifier: Apache-2.0
// Drivers that are missing, too old or incomplete: every refusal says what to do.
#include <weft/mr/cuda/driver.hpp>

#include "support.hpp"

namespace weft::test {
namespace {

void expect_refusal_to_open(errc code, const mr::cuda_options& options, std::initializer_list<std::string_view> parts) {
  expect_refusal(
      code, [&] { return mr::open_cuda(options); }, parts);
}

TEST(cuda_driver, a_missing_library_is_named_and_so_is_where_it_comes_from) {
  expect_refusal_to_open(errc::not_supported, {.library = "libnothing-of-cuda.so.1"},
                         {"libnothing-of-cuda.so.1", "driver of an NVIDIA GPU"});
}

TEST(cuda_driver, a_library_that_is_no_driver_is_named_with_the_function_it_lacks) {
  expect_refusal_to_open(errc::not_supported, {.library = "libm.so.6"}, {"libm.so.6", "cuInit"});
}

TEST(cuda_driver, one_that_is_too_old_is_refused_with_both_versions) {
  const stand_in driver;
  driver.set_driver_version(11030);
  expect_refusal_to_open(errc::not_supported, {.library = stand_in::library()}, {"11.3", "11.4"});
}

TEST(cuda_driver, the_oldest_one_that_is_good_enough_is_taken) {
  const stand_in driver;
  driver.set_driver_version(11040);
  EXPECT_EQ(open_stand_in()->name(), "cuda:0");
}

TEST(cuda_driver, one_that_lacks_a_needed_function_is_refused_with_its_name) {
  expect_refusal_to_open(errc::not_supported, {.library = STAND_IN_CUDA_WITHOUT_COPIES}, {"cuMemcpyAsync"});
}

TEST(cuda_driver, one_that_cannot_share_does_everything_else) {
  const auto gpu = mr::open_cuda({.library = STAND_IN_CUDA_WITHOUT_SHARING});
  const auto memory = gpu->allocate(8192);
  const auto stream = gpu->open_stream();
  auto bytes = random_bytes(8192, 1);
  ASSERT_TRUE(stream->copy(memory.data(), bytes.data(), bytes.size()));
  stream->synchronize();

  expect_refusal(errc::not_supported, [&] { return gpu->export_dmabuf(memory.bytes()); }, {"11.7"});
  expect_refusal(errc::not_supported, [&] { return gpu->share(memory.bytes()); });
  expect_refusal(errc::not_supported, [&] { return gpu->open_share({}, 1); });
}

TEST(cuda_driver, an_ordinal_that_no_device_has_is_refused_with_how_many_there_are) {
  const stand_in driver;
  for (const int ordinal : {2, -1}) {
    expect_refusal_to_open(errc::invalid_argument, {.device = ordinal, .library = stand_in::library()}, {"2 devices"});
  }
}

TEST(cuda_driver, a_machine_without_a_device_has_none) {
  const stand_in driver;
  driver.set_device_count(0);
  expect_refusal_to_open(errc::invalid_argument, {.library = stand_in::library()}, {"0 devices"});
}

TEST(cuda_driver, one_that_does_not_start_is_refused_in_its_own_words) {
  const stand_in driver;
  driver.fail_next("cuInit", 801);
  expect_refusal_to_open(errc::not_supported, {.library = stand_in::library()},
                         {"operation not supported (CUDA_ERROR_NOT_SUPPORTED, 801)"});
}

TEST(cuda_driver, an_error_without_words_is_told_by_its_number) {
  const stand_in driver;
  driver.fail_next("cuDevicePrimaryCtxRetain", 4711);
  expect_refusal({EIO, std::system_category()}, [] { return open_stand_in(); }, {"4711"});
}

TEST(cuda_driver, threads_that_open_it_at_once_share_its_functions) {
  std::vector<const mr::cuda::driver*> found(4);
  std::vector<std::thread> threads;
  for (auto& place : found) threads.emplace_back([&place] { place = &mr::cuda::load_driver(stand_in::library()); });
  for (auto& one : threads) one.join();
  for (const auto* one : found) EXPECT_EQ(one, found.front());
}

}  // namespace
}  // namespace weft::test
