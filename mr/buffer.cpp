// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/buffer.hpp>
#include <weft/mr/pool/depot.hpp>

#include <fmt/core.h>

namespace weft::mr {
namespace {

error in_use(const buffer& target) {
  return {errc::buffer_in_use, fmt::format("use a buffer of {} bytes", target.size())};
}

error moved_from() { return {errc::invalid_argument, "use a buffer that was moved from"}; }

slice slice_of(const detail::block& item, std::size_t offset, std::size_t length) noexcept {
  return item.home->home().memory().slice(item.data + offset, length);
}

}  // namespace

void buffer::resize(std::size_t bytes) {
  if (bytes > capacity()) {
    throw error(errc::out_of_range, fmt::format("resize a buffer of {} bytes to {} bytes", capacity(), bytes));
  }
  size_ = bytes;
}

// A dropped block has had its buffer destroyed already.
void buffer::check_only() const noexcept {
  if (block_->use_in(life_) >= detail::block::dropped) weft::detail::terminate_because_duplicated("a buffer");
}

void buffer::drop_in_use() noexcept {
  const std::uint64_t before = block_->state.fetch_or(detail::block::dropped, std::memory_order_acq_rel);
  if ((before ^ life_) >= detail::block::dropped) weft::detail::terminate_because_duplicated("a buffer");
  if (before != life_) return;
  block_->state.store(life_, std::memory_order_relaxed);  // the last pin has gone in between
  detail::free_block(*block_);
}

slice buffer::slice(std::size_t offset, std::size_t length) const {
  detail::check_range(offset, length, size_);
  if (block_ == nullptr) return {};
  check_only();
  return slice_of(*block_, offset, length);
}

slice buffer::slice() const noexcept {
  if (block_ == nullptr) return {};
  check_only();
  return slice_of(*block_, 0, size_);
}

result<pin> pin::share(const buffer& target) {
  if (!target) return moved_from();
  target.check_only();
  detail::block& item = *target.block_;
  if ((item.use_in(target.life_) & detail::block::exclusive) == detail::block::exclusive) return in_use(target);
  item.state.fetch_add(detail::block::one_pin, std::memory_order_relaxed);
  return pin(item, target.bytes(), target.life_);
}

result<pin> pin::exclusive(buffer& target) {
  if (!target) return moved_from();
  target.check_only();
  if (target.in_use()) return in_use(target);
  target.block_->state.store(target.life_ + detail::block::exclusive, std::memory_order_relaxed);
  return pin(*target.block_, target.bytes(), target.life_);
}

slice pin::slice() const noexcept {
  if (block_ == nullptr) return {};
  check_only();
  return slice_of(*block_, static_cast<std::size_t>(bytes_.data() - block_->data), bytes_.size());
}

}  // namespace weft::mr
