// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/buffer.hpp>
#include <weft/mr/depot.hpp>

#include <fmt/core.h>

namespace weft::mr {
namespace {

error in_use(const buffer& target) { return {errc::buffer_in_use, fmt::format("a buffer of {} bytes", target.size())}; }

error moved_from() { return {errc::invalid_argument, "a buffer that was moved from"}; }

}  // namespace

slice detail::slice_of(const block& item, std::size_t offset, std::size_t length) noexcept {
  return item.home->home().memory().slice(item.data + offset, length);
}

void buffer::resize(std::size_t bytes) {
  if (bytes > capacity()) {
    throw error(errc::out_of_range, fmt::format("resize a buffer of {} bytes to {}", capacity(), bytes));
  }
  size_ = bytes;
}

slice buffer::slice(std::size_t offset, std::size_t length) const {
  detail::check_range(offset, length, size_);
  return block_ != nullptr ? detail::slice_of(*block_, offset, length) : mr::slice();
}

slice buffer::slice() const noexcept { return block_ != nullptr ? detail::slice_of(*block_, 0, size_) : mr::slice(); }

result<pin> pin::share(const buffer& target) {
  if (!target) return moved_from();
  if (target.block_->pins == detail::block::exclusive) return in_use(target);
  ++target.block_->pins;
  return pin(*target.block_, target.bytes());
}

result<pin> pin::exclusive(buffer& target) {
  if (!target) return moved_from();
  if (target.block_->pins != 0) return in_use(target);
  target.block_->pins = detail::block::exclusive;
  return pin(*target.block_, target.bytes());
}

slice pin::slice() const noexcept {
  if (block_ == nullptr) return {};
  return detail::slice_of(*block_, static_cast<std::size_t>(bytes_.data() - block_->data), bytes_.size());
}

}  // namespace weft::mr
