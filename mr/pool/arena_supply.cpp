// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/pool/arena_supply.hpp>
#include <weft/mr/system/page.hpp>

#include <algorithm>

namespace weft::mr::detail {

void arena_supply::want(std::size_t bytes, orders& to) noexcept {
  if (grows_) return;
  const bool whole = !depot_.shares_arena(bytes);
  const std::size_t needed =
      whole ? round_up(bytes, page_bytes()) : round_up(class_bytes(class_of(bytes)), chunk_bytes);
  const std::size_t wanted = whole ? needed : depot_.arena_bytes();
  const std::size_t room = limit_ - committed_;
  if (needed <= room) return make(whole ? needed : std::min(wanted, round_down(room, chunk_bytes)), whole, to);
  while (limit_ - committed_ + retiring_ < wanted) {
    carved_arena* const idle = depot_.find_idle(0);
    if (idle == nullptr) return;
    give_up(depot_.remove(*idle), to);
  }
}

void arena_supply::grow_ahead(orders& to) noexcept {
  const std::size_t left = depot_.total_bytes() - depot_.taken_bytes();
  if (left >= depot_.arena_bytes() / 4 || has_failed_ || grows_) return;
  if (limit_ - committed_ >= depot_.arena_bytes()) make(depot_.arena_bytes(), false, to);
}

bool arena_supply::trim(std::size_t keep, orders& to) noexcept {
  bool was_shared = false;
  while (carved_arena* const idle = depot_.find_idle(keep)) {
    was_shared = was_shared || !idle->whole();
    give_up(depot_.remove(*idle), to);
  }
  return was_shared;
}

void arena_supply::give_up(std::unique_ptr<carved_arena> item, orders& to) noexcept {
  retiring_ += item->size();
  item->next_retired = to.give_up;
  to.give_up = item.release();
}

void arena_supply::make(std::size_t bytes, bool whole, orders& to) noexcept {
  grows_ = true;
  committed_ += bytes;
  to.make_bytes[index_of(depot_.which())] = bytes;
  to.make_whole[index_of(depot_.which())] = whole;
}

void arena_supply::made() noexcept {
  grows_ = false;
  has_failed_ = false;
}

void arena_supply::not_made(std::size_t bytes) noexcept {
  grows_ = false;
  has_failed_ = true;
  committed_ -= bytes;
}

void arena_supply::given_up(std::size_t bytes) noexcept {
  committed_ -= bytes;
  retiring_ -= bytes;
}

}  // namespace weft::mr::detail
