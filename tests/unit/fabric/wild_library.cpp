// SPDX-License-Identifier: Apache-2.0
#include "wild_library.hpp"

namespace weft::test {
namespace {

std::vector<std::byte> gather(const iovec* ranges, std::size_t count) {
  std::vector<std::byte> bytes;
  for (const iovec& each : std::span(ranges, count)) {
    const auto* const first = static_cast<const std::byte*>(each.iov_base);
    bytes.insert(bytes.end(), first, first + each.iov_len);
  }
  return bytes;
}

}  // namespace

// A request that a provider has. Without an owner it has bytes of its own, and its completion is for nobody.
struct wild_library::request {
  enum kind_t : std::uint8_t { sends, writes, reads };

  request(kind_t what, fid_ep* from, fi_addr_t peer, std::uint64_t how)
      : kind(what), endpoint(from), to(peer), flags(how) {}
  template <class Message>
  void take(const Message& what) {
    ranges.assign(what.msg_iov, what.msg_iov + what.iov_count);
    descs.assign(what.iov_count, nullptr);
    if (what.desc != nullptr) descs.assign(what.desc, what.desc + what.iov_count);
    context = what.context;
  }
  void own_bytes(std::vector<std::byte> copy) {
    bytes = std::move(copy);
    ranges = {{.iov_base = bytes.data(), .iov_len = bytes.size()}};
    descs = {nullptr};
    context = &room;
  }
  [[nodiscard]] bool is_own() const noexcept { return context == &room; }
  ssize_t carry_out(fabric_calls& real);

  kind_t kind;
  fid_ep* endpoint;
  fi_addr_t to;
  std::uint64_t flags;
  std::vector<iovec> ranges{};
  std::vector<void*> descs{};
  std::vector<fi_rma_iov> there{};
  void* context = nullptr;
  std::vector<std::byte> bytes{};
  fi_context2 room{};
  unsigned number = 0;      // of those handed over
  unsigned looks_left = 0;  // at the queue, before it is carried out
};

ssize_t wild_library::request::carry_out(fabric_calls& real) {
  if (kind == sends) {
    fi_msg what{};
    what.msg_iov = ranges.data();
    what.desc = descs.data();
    what.iov_count = ranges.size();
    what.addr = to;
    what.context = context;
    return real.fabric_calls::sendmsg(endpoint, &what, flags);
  }
  fi_msg_rma what{};
  what.msg_iov = ranges.data();
  what.desc = descs.data();
  what.iov_count = ranges.size();
  what.addr = to;
  what.rma_iov = there.data();
  what.rma_iov_count = there.size();
  what.context = context;
  if (kind == writes) return real.fabric_calls::writemsg(endpoint, &what, flags);
  return real.fabric_calls::readmsg(endpoint, &what, flags);
}

wild_library::wild_library(unsigned seed, wildness how) : how_(how), random_(seed) {}
wild_library::~wild_library() = default;

int wild_library::getinfo(const fi_info* hints, fi_info** found) noexcept {
  const int result = shim_library::getinfo(hints, found);
  if (result < 0 || how_.ordered) return result;
  (*found)->tx_attr->msg_order = (*found)->rx_attr->msg_order = 0;
  return 0;
}

ssize_t wild_library::hold(std::unique_ptr<request> item) {
  check_sender(item->endpoint, item->to);
  item->number = handed_over_++;
  item->looks_left = 1 + static_cast<unsigned>(random_() % 6);
  queues_[map_.queue_of(item->endpoint)].held.push_back(std::move(item));
  return 0;
}

// Someone has guessed all of a message but for its token, which stands at its end.
void wild_library::send_ahead_of(fid_ep* endpoint, const fi_msg& what) {
  auto item = std::make_unique<request>(request::sends, endpoint, what.addr, FI_COMPLETION);
  item->own_bytes(gather(what.msg_iov, what.iov_count));
  item->bytes.back() ^= std::byte{1};
  if (item->carry_out(*this) == 0) queues_[map_.queue_of(endpoint)].own.push_back(std::move(item));
}

ssize_t wild_library::sendmsg(fid_ep* endpoint, const fi_msg* what, std::uint64_t flags) noexcept {
  const std::lock_guard lock(mutex_);
  if (is_full()) return -FI_EAGAIN;
  if (how_.strangers) send_ahead_of(endpoint, *what);
  if (how_.ordered) return shim_library::sendmsg(endpoint, what, flags);
  auto item = std::make_unique<request>(request::sends, endpoint, what->addr, flags);
  item->take(*what);
  return hold(std::move(item));
}

ssize_t wild_library::writemsg(fid_ep* endpoint, const fi_msg_rma* what, std::uint64_t flags) noexcept {
  const std::lock_guard lock(mutex_);
  if (is_full()) return -FI_EAGAIN;
  if (how_.ordered) return shim_library::writemsg(endpoint, what, flags);
  auto item = std::make_unique<request>(request::writes, endpoint, what->addr, flags);
  item->there.assign(what->rma_iov, what->rma_iov + what->rma_iov_count);
  if ((flags & FI_DELIVERY_COMPLETE) != 0) {
    item->take(*what);
  } else {
    item->own_bytes(gather(what->msg_iov, what->iov_count));
    fi_cq_msg_entry done{};
    done.op_context = what->context;
    queues_[map_.queue_of(endpoint)].kept.push_back(done);
  }
  return hold(std::move(item));
}

ssize_t wild_library::readmsg(fid_ep* endpoint, const fi_msg_rma* what, std::uint64_t flags) noexcept {
  const std::lock_guard lock(mutex_);
  if (is_full()) return -FI_EAGAIN;
  if (how_.ordered) return shim_library::readmsg(endpoint, what, flags);
  auto item = std::make_unique<request>(request::reads, endpoint, what->addr, flags);
  item->there.assign(what->rma_iov, what->rma_iov + what->rma_iov_count);
  item->take(*what);
  return hold(std::move(item));
}

ssize_t wild_library::recvmsg(fid_ep* endpoint, const fi_msg* what, std::uint64_t flags) noexcept {
  const std::lock_guard lock(mutex_);
  return is_full() ? -FI_EAGAIN : shim_library::recvmsg(endpoint, what, flags);
}

void wild_library::carry_out(state& at) {
  std::shuffle(at.held.begin(), at.held.end(), random_);
  std::vector<std::unique_ptr<request>> rest;
  for (auto& item : at.held) {
    const bool is_due = item->looks_left == 0 || --item->looks_left == 0;
    if (!is_due || item->carry_out(*this) < 0) {
      rest.push_back(std::move(item));
      continue;
    }
    const auto is_earlier = [&](const auto& other) { return other != nullptr && other->number < item->number; };
    overtaken_ += static_cast<unsigned>(std::count_if(at.held.begin(), at.held.end(), is_earlier) +
                                        std::count_if(rest.begin(), rest.end(), is_earlier));
    if (item->is_own()) at.own.push_back(std::move(item));
    item.reset();
  }
  at.held = std::move(rest);
}

// What says that there are no more.
ssize_t wild_library::collect(fid_cq* queue, state& at) {
  fi_cq_msg_entry next{};
  ssize_t result = 0;
  while ((result = shim_library::cq_read(queue, &next, 1)) == 1) {
    const auto own =
        std::find_if(at.own.begin(), at.own.end(), [&](const auto& each) { return each->context == next.op_context; });
    if (own == at.own.end()) {
      at.kept.push_back(next);
    } else {
      at.own.erase(own);
    }
  }
  return result;
}

ssize_t wild_library::cq_read(fid_cq* queue, fi_cq_msg_entry* found, std::size_t most) noexcept {
  const std::lock_guard lock(mutex_);
  state& at = queues_[queue];
  carry_out(at);
  const ssize_t end = collect(queue, at);
  if (at.kept.empty()) return end;
  if (random_() % 4 == 0) return -FI_EAGAIN;
  std::shuffle(at.kept.begin(), at.kept.end(), random_);
  const std::size_t count = std::min<std::size_t>({most, at.kept.size(), 1 + random_() % 4});
  std::copy_n(at.kept.end() - static_cast<std::ptrdiff_t>(count), count, found);
  at.kept.resize(at.kept.size() - count);
  return static_cast<ssize_t>(count);
}

int wild_library::trywait(fid_fabric* fabric, fid_cq* queue) noexcept {
  const std::lock_guard lock(mutex_);
  const state& at = queues_[queue];
  if (!at.kept.empty() || !at.held.empty()) return -FI_EAGAIN;
  return shim_library::trywait(fabric, queue);
}

// An endpoint takes what it has not carried out with it; its own requests stay until its queue goes.
int wild_library::close(fid* object) noexcept {
  const std::lock_guard lock(mutex_);
  if (object->fclass == FI_CLASS_CQ) {
    const int result = shim_library::close(object);
    queues_.erase(reinterpret_cast<fid_cq*>(object));
    return result;
  }
  for (auto& [queue, at] : queues_) {
    std::erase_if(at.held, [&](const auto& each) { return &each->endpoint->fid == object; });
  }
  return shim_library::close(object);
}

ssize_t shy_library::cq_read(fid_cq* queue, fi_cq_msg_entry* found, std::size_t most) noexcept {
  const std::lock_guard lock(mutex_);
  state& at = queues_[queue];
  fi_cq_msg_entry next{};
  ssize_t result = 0;
  while ((result = shim_library::cq_read(queue, &next, 1)) == 1) at.kept.push_back(next);
  if (at.kept.empty()) return result;
  if (!at.is_announced) return -FI_EAGAIN;
  const std::size_t count = std::min(most, at.kept.size());
  std::copy_n(at.kept.begin(), count, found);
  at.kept.erase(at.kept.begin(), at.kept.begin() + static_cast<std::ptrdiff_t>(count));
  at.is_announced = !at.kept.empty();
  return static_cast<ssize_t>(count);
}

int shy_library::trywait(fid_fabric* fabric, fid_cq* queue) noexcept {
  const std::lock_guard lock(mutex_);
  state& at = queues_[queue];
  at.is_announced = !at.kept.empty();
  return at.is_announced ? -FI_EAGAIN : shim_library::trywait(fabric, queue);
}

int shy_library::close(fid* object) noexcept {
  const std::lock_guard lock(mutex_);
  queues_.erase(reinterpret_cast<fid_cq*>(object));
  return shim_library::close(object);
}

}  // namespace weft::test
