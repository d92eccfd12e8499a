// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/domain.hpp>
#include <weft/mr/region/population.hpp>
#include <weft/mr/system/persistence.hpp>
#include <weft/runtime/core/stop_shield.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/offload.hpp>

#include <fmt/core.h>

#include <vector>

namespace weft::mr {
namespace {

// Joins adjoining ranges, so that a device that takes one range takes these.
std::vector<std::span<std::byte>> joined(std::span<const std::span<std::byte>> ranges) {
  std::vector<std::span<std::byte>> found;
  for (const std::span<std::byte> range : ranges) {
    if (!found.empty() && found.back().data() + found.back().size() == range.data()) {
      found.back() = {found.back().data(), found.back().size() + range.size()};
    } else {
      found.push_back(range);
    }
  }
  return found;
}

}  // namespace

task<region> domain::register_memory(std::span<std::byte> memory, registration_options options) {
  return register_state(borrow(memory), options);
}

task<region> domain::register_memory(std::span<const std::span<std::byte>> ranges, registration_options options) {
  return register_state(borrow(ranges, options), options);
}

std::unique_ptr<detail::region_state> domain::borrow(std::span<std::byte> memory) {
  auto state = std::make_unique<detail::region_state>(shared_from_this());
  state->bytes = memory;
  return state;
}

std::unique_ptr<detail::region_state> domain::borrow(std::span<const std::span<std::byte>> ranges,
                                                     const registration_options& options) {
  check_ranges(ranges, options);
  auto separate = joined(ranges);
  auto state = borrow(separate.front());
  if (separate.size() > 1) state->ranges = std::move(separate);
  return state;
}

void domain::prepare(detail::region_state& target, const registration_options& options) const {
  check(target.bytes, options);
  if (options.direct && options.device == nullptr) check_direct(target, options);
  target.set(options);
  if (includes(options.usage, usage::flush_persistent)) target.storage = std::make_shared<detail::storage>();
  target.enabled = !options.disabled;
  target.windows.open = !options.disabled;
}

// Peers map the whole file, so the region has to be all of it. Only that it begins with the file is checked.
void domain::check_direct(const detail::region_state& target, const registration_options& options) const {
  const auto refuse = [&](const char* why) {
    throw error(errc::invalid_argument, fmt::format("register {} bytes on {}: {}", target.size(), name(), why));
  };
  if (target.file.descriptor < 0 || target.file.offset != 0) {
    refuse("direct is for a region that owns an mr::mapping::in_memory_file()");
  }
  if (options.disabled) refuse("direct and disabled exclude each other: what is written directly is not counted");
}

task<region> domain::register_state(std::unique_ptr<detail::region_state> state, registration_options options) {
  detail::region_state& target = *state;
  prepare(target, options);
  co_await detail::populate(*this, target.all_ranges(), options);
  const auto work = [&target] { target.register_now(); };
  co_await weft::detail::offload_for_resources(work);

  weft::detail::promise_base& self = co_await weft::detail::current_promise();
  if (self.get_stop_token().stop_requested()) {
    // The caller may free the memory as soon as it learns of the cancellation, so the registration is undone first.
    const weft::detail::stop_shield shield(self);
    const auto undo = [&target]() noexcept { target.deregister(); };
    co_await weft::detail::offload_for_resources(undo);
    throw error(errc::canceled, fmt::format("register {} bytes on {}", target.size(), name()));
  }
  co_return region(std::move(state));
}

void domain::do_refresh(detail::region_state& target, const registration_options& options) {
  const registration made = register_as(target, options);
  do_deregister(target.registration);
  target.registration = made;
}

}  // namespace weft::mr
