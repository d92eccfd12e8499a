// SPDX-License-Identifier: Apache-2.0
#include <weft/net/verbs/posted_receives.hpp>

#include <utility>

namespace weft::net::verbs {

void posted_receives::make_room(std::uint16_t depth) {
  receives_ = std::make_unique<posted_receive[]>(depth);
  depth_ = depth;
  posted_early_ = endpoint_.posted_receives();
}

bool posted_receives::post(receive_work& work) noexcept {
  posted_receive& item = receives_[work.slot];
  item.work = &work;
  if (posted_early_ != 0) {
    --posted_early_;
    ++with_device_;
    return false;
  }
  item.request.fill(work, domain_.fabric(), endpoint_.receive_tag() | receive_bit | work.slot);
  chained_.push_back(item.request.wr);
  return true;
}

int posted_receives::hand_over() noexcept {
  if (chained_.empty()) return 0;
  ibv_recv_wr* const first = chained_.take();
  ibv_recv_wr* refused = nullptr;
  const int result = endpoint_.calls().post_recv(endpoint_.pair(), first, &refused);
  if (result >= 0) refused = nullptr;
  if (result < 0 && refused == nullptr) refused = first;
  for (const ibv_recv_wr* item = first; item != refused; item = item->next) ++with_device_;
  return result;
}

receive_work& posted_receives::completed(std::uint32_t slot) noexcept {
  --with_device_;
  return *std::exchange(receives_[slot].work, nullptr);
}

void posted_receives::flush(link_events& events) noexcept {
  for (std::size_t slot = 0; slot < depth_; ++slot) {
    receive_work* const work = std::exchange(receives_[slot].work, nullptr);
    if (work != nullptr) events.receive_flushed(*work);
  }
}

}  // namespace weft::net::verbs
