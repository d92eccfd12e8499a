// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/buffer.hpp>

#include <fmt/core.h>

namespace weft::mr {

void buffer::throw_too_large(std::size_t bytes) const {
  throw error(errc::out_of_range, fmt::format("resize a buffer of {} bytes to {} bytes", capacity(), bytes));
}

void buffer::drop_in_use() noexcept {
  const std::uint64_t before = block_->state.fetch_or(detail::block::dropped, std::memory_order_acq_rel);
  if ((before ^ life_) >= detail::block::dropped) weft::detail::terminate_because_duplicated("a buffer");
  if (before != life_) return;
  block_->state.store(life_, std::memory_order_relaxed);  // the last pin has gone since drop() looked
  detail::free_block(*block_);
}

slice buffer::slice(std::size_t offset, std::size_t length) const {
  detail::check_range(offset, length, size_);
  if (block_ == nullptr) return {};
  check_only();
  return {bytes().subspan(offset, length), block_->record};
}

result<pin> pin::share(const buffer& target) {
  pin taken = try_share(target);
  if (!taken) return why_not(target);
  return taken;
}

result<pin> pin::exclusive(buffer& target) {
  pin taken = try_exclusive(target);
  if (!taken) return why_not(target);
  return taken;
}

error pin::why_not(const buffer& target) {
  if (!target) return {errc::invalid_argument, "use a buffer that was moved from"};
  return {errc::buffer_in_use, fmt::format("use a buffer of {} bytes", target.size())};
}

}  // namespace weft::mr
