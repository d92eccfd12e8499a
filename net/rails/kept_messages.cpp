// SPDX-License-Identifier: Apache-2.0
#include <weft/net/rails/kept_messages.hpp>

#include <algorithm>
#include <cassert>
#include <cstring>
#include <utility>

namespace weft::net::rails {

void kept_messages::begin(mr::buffer room, std::size_t count) {
  all_ = std::vector<kept>(count);
  room_ = std::move(room);
}

std::size_t kept_messages::used() const noexcept {
  if (count_ == 0) return 0;
  const std::size_t first = all_[oldest_].begin;
  return next_ > first ? next_ - first : room_.size() - first + next_;
}

// Moves next_ to a place with room for `bytes`; false if there is none. Each message is stored in one piece, so what is
// left at the end of room_ stays empty if it is too small.
bool kept_messages::find_room(std::size_t bytes) noexcept {
  if (count_ == 0) next_ = 0;
  if (used() == room_.size()) return false;
  const std::size_t first = count_ == 0 ? 0 : all_[oldest_].begin;
  const bool is_torn = count_ != 0 && next_ <= first;  // true: next_ to first is free; false: all except first to next_
  if (is_torn) return bytes <= first - next_;
  if (bytes <= room_.size() - next_) return true;
  if (count_ == 0 || bytes > first) return false;
  next_ = 0;
  return true;
}

entry* kept_messages::keep(const entry& of) noexcept {
  const work_request& work = *of.work;
  const auto is_of_host = [](const mr::slice& each) { return each.kind() == mr::memory_kind::host; };
  if (count_ == all_.size() || !std::all_of(work.segments.begin(), work.segments.end(), is_of_host)) return nullptr;
  // An empty message takes a byte as well, so that offsets tell what is free.
  const std::size_t bytes = of.bytes + work.own.size();
  const std::size_t taken = std::max<std::size_t>(bytes, 1);
  if (!find_room(taken)) return nullptr;
  kept& made = all_[(oldest_ + count_) % all_.size()];
  made.begin = next_;
  made.words = room_.slice().subslice(next_, bytes);
  std::byte* to = made.words.data();
  const auto append = [&](const std::byte* from, std::size_t size) {
    if (size != 0) std::memcpy(to, from, size);
    to += size;
  };
  for (const mr::slice& each : work.segments) append(each.data(), each.size());
  append(work.own.data(), work.own.size());
  made.work = work;
  made.work.segments = std::span(&made.words, bytes != 0 ? 1 : 0);
  made.work.own = {};
  made.item = of;
  made.item.work = &made.work;
  made.item.next = nullptr;
  made.item.bytes = made.item.given = bytes;
  made.item.is_copy = true;
  next_ += taken;
  ++count_;
  return &made.item;
}

void kept_messages::drop([[maybe_unused]] const entry& oldest) noexcept {
  assert(count_ != 0 && &oldest == &all_[oldest_].item);
  oldest_ = (oldest_ + 1) % all_.size();
  --count_;
}

}  // namespace weft::net::rails
