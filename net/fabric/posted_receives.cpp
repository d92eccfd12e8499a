// SPDX-License-Identifier: Apache-2.0
#include <weft/net/fabric/posted_receives.hpp>

#include <algorithm>
#include <array>
#include <utility>

namespace weft::net::fabric {

void posted_receives::make_room(std::size_t depth) {
  receives_ = std::make_unique<posted_receive[]>(depth);
  arrived_.resize(depth);
  depth_ = depth;
}

void posted_receives::post(receive_work& work) noexcept {
  posted_receive& item = receives_[work.slot];
  item.work = &work;
  posted_.push(item);
}

ssize_t posted_receives::hand_over() noexcept {
  const std::size_t most = endpoint_.home().info().rx_attr->size;
  while (!posted_.empty() && with_provider_ < most) {
    const ssize_t result = hand_over(posted_.front());
    if (result < 0) return result;
    ++with_provider_;
    posted_.pop();
  }
  return 0;
}

// A message's trailer follows its payload: in the receive's memory as far as there is room, and the rest in the staging
// memory.
ssize_t posted_receives::hand_over(posted_receive& item) noexcept {
  const mr::slice& memory = item.work->memory;
  pieces where;
  where.add(memory.data(), memory.size(), desc_of(memory, domain_.fabric()));  // mutant: hand a receive over
  where.add(endpoint_.tail_of(item.work->slot), message_trailer::bytes, endpoint_.staging_desc());
  const fi_msg what = where.message(FI_ADDR_UNSPEC, item);
  const entry inside = endpoint_.home().enter();
  if (!inside.may_move_bytes()) return -FI_EAGAIN;
  return endpoint_.calls().recvmsg(endpoint_.get(), &what, FI_COMPLETION);
}

const char* posted_receives::enter(posted_receive& item, std::size_t bytes) noexcept {
  const mr::slice& memory = item.work->memory;
  const std::byte* const tail = endpoint_.tail_of(item.work->slot);
  std::array<std::byte, message_trailer::bytes> packed;
  if (bytes < packed.size() || bytes > memory.size() + packed.size()) return "a message without a trailer";
  item.bytes = bytes - packed.size();
  const std::size_t inside = std::min(memory.size() - item.bytes, packed.size());
  std::copy_n(memory.data() + item.bytes, inside, packed.begin());
  std::copy_n(tail, packed.size() - inside, packed.begin() + static_cast<std::ptrdiff_t>(inside));
  item.trailer = unpack_trailer(packed);
  if (item.trailer.token != token_) {  // mutant: listen to strangers
    post(*item.work);
    return nullptr;
  }
  const std::uint32_t ahead = item.trailer.number - next_number_;  // mutant: ignore the numbers
  posted_receive** const place = ahead < depth_ ? &arrived_[(next_arrival_ + ahead) % depth_] : nullptr;
  if (place == nullptr || *place != nullptr) return "a message has come twice, or none before it";
  *place = &item;
  return nullptr;
}

receive_work& posted_receives::take_next() noexcept {
  posted_receive& item = *std::exchange(arrived_[next_arrival_], nullptr);
  next_arrival_ = (next_arrival_ + 1) % depth_;
  ++next_number_;
  return *std::exchange(item.work, nullptr);
}

void posted_receives::flush(link_events& events) noexcept {
  for (std::size_t slot = 0; slot != depth_; ++slot) {
    receive_work* const work = std::exchange(receives_[slot].work, nullptr);
    if (work != nullptr) events.receive_flushed(*work);
  }
}

}  // namespace weft::net::fabric
