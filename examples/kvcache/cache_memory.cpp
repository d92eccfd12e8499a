// SPDX-License-Identifier: Apache-2.0
#include "cache_memory.hpp"

#include <weft/mr/cuda.hpp>
#include <weft/mr/device_copy.hpp>
#include <weft/runtime/offload.hpp>

#include <charconv>
#include <utility>

namespace kvcache {
namespace {

constexpr std::string_view first_gpu = "cuda";

/// The number behind "cuda:", or 0 for the name without one; empty if that is no name of a GPU.
std::optional<int> gpu_number(std::string_view name) noexcept {
  if (name == first_gpu) return 0;
  if (!name.starts_with("cuda:")) return std::nullopt;
  const char* const digits = name.data() + first_gpu.size() + 1;
  const char* const end = name.data() + name.size();
  int number = 0;
  const auto [rest, wrong] = std::from_chars(digits, end, number);
  if (wrong != std::errc() || rest != end || *digits == '-') return std::nullopt;
  return number;
}

}  // namespace

bool is_memory_name(std::string_view text) noexcept { return text == "host" || gpu_number(text).has_value(); }

std::shared_ptr<weft::mr::memory_device> open_gpu(const memory_choice& choice) {
  const auto number = gpu_number(choice.name);
  if (!number) return nullptr;
  return weft::mr::open_cuda({.device = *number, .library = choice.library.c_str()});
}

weft::mr::mapping host_memory(std::size_t bytes, bool as_file) {
  constexpr std::size_t page = weft::mr::mapping::huge_page_bytes;
  const std::size_t whole = (bytes + page - 1) / page * page;
  auto& calls = weft::system_calls::kernel();
  if (as_file) return weft::mr::mapping::in_memory_file(whole, true, -1, calls);
  return {whole, true, -1, calls};
}

pinned_memory::pinned_memory(std::shared_ptr<weft::mr::memory_device> gpu, weft::mr::mapping memory)
    : gpu_(std::move(gpu)), memory_(std::move(memory)), is_pinned_(gpu_->pin(bytes())) {}

pinned_memory::~pinned_memory() {
  if (gpu_ != nullptr && is_pinned_) gpu_->unpin(bytes());
}

cache_memory::cache_memory(weft::mr::region region, std::uint64_t block_bytes) noexcept
    : region_(std::move(region)), block_bytes_(block_bytes) {}

weft::task<std::unique_ptr<cache_memory>> cache_memory::make(weft::net::device& device, weft::mr::memory_device* gpu,
                                                             std::uint64_t bytes, std::uint64_t block_bytes,
                                                             weft::mr::registration_options how) {
  if (gpu == nullptr) {
    auto memory = host_memory(bytes, how.direct);
    auto region = co_await device.register_memory(std::move(memory), how);
    co_return std::unique_ptr<cache_memory>(new cache_memory(std::move(region), block_bytes));
  }
  how.device = gpu;
  const auto allocate = [&] { return gpu->allocate(bytes); };
  const auto pin_window = [&] { return pinned_memory(gpu->shared_from_this(), host_memory(block_bytes)); };
  auto memory = co_await weft::offload(allocate);
  auto window = co_await weft::offload(pin_window);
  auto region = co_await device.register_memory(std::move(memory), how);
  std::unique_ptr<cache_memory> made(new cache_memory(std::move(region), block_bytes));
  made->gpu_ = gpu->shared_from_this();
  made->window_.emplace(std::move(window));
  co_return made;
}

weft::task<> cache_memory::fill(std::uint64_t place, block_name name) {
  if (gpu_ == nullptr) {
    fill_block(block(place), name);
    co_return;
  }
  const auto turn = co_await turn_.lock();
  fill_block(window_->bytes().first(block_bytes_), name);
  co_await weft::mr::device_copy(gpu_, block(place).data(), window_->data(), block_bytes_);
}

weft::task<std::optional<std::size_t>> cache_memory::first_wrong(std::uint64_t place, block_name name) {
  if (gpu_ == nullptr) co_return kvcache::first_wrong(block(place), name);
  const auto turn = co_await turn_.lock();
  co_await weft::mr::device_copy(gpu_, window_->data(), block(place).data(), block_bytes_);
  co_return kvcache::first_wrong(window_->bytes().first(block_bytes_), name);
}

std::span<std::byte> cache_memory::block(std::uint64_t place) const noexcept {
  return region_.bytes().subspan(place, block_bytes_);
}

}  // namespace kvcache
