// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/device/copy_engine.hpp>
#include <weft/mr/device_copy.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/offload.hpp>

#include <fmt/core.h>

namespace weft::mr {
namespace {

bool is_of(memory_device& device, const std::byte* memory, std::size_t bytes) {
  try {
    static_cast<void>(device.find({memory, bytes}));
    return true;
  } catch (const error& why) {
    if (why.code() != errc::invalid_argument) throw;
    return false;
  }
}

}  // namespace

task<> device_copy(std::shared_ptr<memory_device> device, std::byte* to, const std::byte* from, std::size_t bytes) {
  if (device == nullptr) throw error(errc::invalid_argument, "device_copy(): the device is null");
  if (bytes == 0) co_return;
  const bool leaves = is_of(*device, from, bytes);
  if (!leaves && !is_of(*device, to, bytes)) {
    throw error(errc::invalid_argument,
                fmt::format("copy {} bytes by {}: neither range is the device's", bytes, device->name()));
  }
  detail::copy_engine& engine = *co_await detail::copy_engine::of(device);
  const detail::copy_engine::user polled(engine);
  detail::copy_operation copy(leaves ? engine.out() : engine.in(), to, from, bytes);
  co_await copy;
}

task<> stream_finished(std::shared_ptr<memory_device> device, void* stream) {
  if (device == nullptr) throw error(errc::invalid_argument, "stream_finished(): the device is null");
  detail::copy_engine& engine = *co_await detail::copy_engine::of(device);
  const detail::copy_engine::user polled(engine);
  detail::copy_lane lane(engine, device->borrow_stream(stream), detail::copy_lane::owner::program);
  detail::mark_operation end(lane);
  co_await end;
}

}  // namespace weft::mr
