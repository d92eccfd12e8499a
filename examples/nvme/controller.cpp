// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <nvme/controller.hpp>
#include <nvme/queue.hpp>

namespace nvme {

bool controller::configure(std::uint32_t value) {
  namespace cc = nvme::configuration;
  namespace csts = nvme::controller_status;
  const bool enables = (value & ~configuration_ & cc::enable) != 0;
  const bool disables = (configuration_ & ~value & cc::enable) != 0;
  if (enables && (status_ & csts::ready) != 0) return false;  // commands of the old queues may still run
  configuration_ = value;
  if (enables) {
    // A discovery controller has no I/O queues, and so no entries of theirs: hosts leave those sizes at 0.
    const bool sizes_fit = is_discovery() || (value & cc::entry_sizes_mask) == cc::entry_sizes;
    const bool fits = sizes_fit && (value & (cc::command_set_mask | cc::page_size_mask)) == 0;
    status_ = fits ? csts::ready : csts::fatal;
  }
  if (disables) status_ = has_io_queues() ? status_ & csts::ready : 0;
  if ((value & cc::shutdown_mask) != 0) status_ = (status_ & ~csts::shutdown_mask) | csts::shutdown_complete;
  if (disables) each_io_queue(&queue::abort);
  return true;
}

void controller::begin_shutdown() {
  status_ = (status_ & ~controller_status::shutdown_mask) | controller_status::shutdown_occurs;
  each_io_queue(&queue::drain);
}

void controller::fail() {
  status_ |= controller_status::fatal;
  each_io_queue(&queue::abort);
}

std::uint16_t controller::grant_queues(std::uint16_t wanted) noexcept {
  granted_ = std::min(wanted, most_.io_queues);
  return granted_;
}

status controller::join(std::uint16_t queue_id, queue& joining) {
  if (queue_id > granted_) return status::invalid_queue_id;
  const bool shuts_down = (status_ & controller_status::shutdown_mask) != 0;
  if (queue_id != 0 && (lost_ || !serves() || shuts_down)) return status::command_sequence_error;
  return queues_.emplace(queue_id, &joining).second ? status::success : status::invalid_queue_id;
}

void controller::leave(std::uint16_t queue_id) {
  queues_.erase(queue_id);
  if (queue_id == 0) lost_ = true;
  if (!is_enabled() && !has_io_queues()) status_ &= ~controller_status::ready;
  if (queue_id == 0) each_io_queue(&queue::abort);
}

void controller::each_io_queue(void (queue::*what)() noexcept) {
  for (auto each = queues_.lower_bound(1); each != queues_.end(); ++each) (each->second->*what)();
}

void controller::note_change(std::uint32_t nsid) {
  changes_.insert(nsid);
  if (const auto admin = queues_.find(0); admin != queues_.end()) admin->second->notify();
}

std::vector<std::uint32_t> controller::changes(bool forget) {
  std::vector<std::uint32_t> found(changes_.begin(), changes_.end());
  if (forget) changes_.clear();
  return found;
}

std::shared_ptr<controller> controllers::make(const controller::origin& from, queue& joining, bool& busy) {
  constexpr std::uint16_t largest = 0xffef;  // those above have a meaning of their own
  const auto is_lost_by = [&](const auto& each) { return each.second->is_lost() && each.second->from() == from; };
  busy = std::ranges::any_of(all_, is_lost_by);
  if (busy || all_.size() >= most_.controllers) return nullptr;
  do {
    last_ = last_ == largest ? std::uint16_t{1} : static_cast<std::uint16_t>(last_ + 1);
  } while (all_.contains(last_));
  auto made = std::make_shared<controller>(last_, from, most_);
  if (made->join(0, joining) != status::success) return nullptr;
  all_.emplace(last_, made);
  return made;
}

std::shared_ptr<controller> controllers::find(std::uint16_t id) const {
  const auto found = all_.find(id);
  return found == all_.end() || found->second->is_lost() ? nullptr : found->second;
}

void controllers::leave(controller& left, std::uint16_t queue_id) {
  left.leave(queue_id);
  if (left.is_over()) all_.erase(left.id());
  queue_left_.set();
}

std::vector<std::shared_ptr<controller>> controllers::all() const {
  std::vector<std::shared_ptr<controller>> found;
  found.reserve(all_.size());
  for (const auto& [id, each] : all_) found.push_back(each);
  return found;
}

}  // namespace nvme
