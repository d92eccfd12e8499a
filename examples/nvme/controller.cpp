// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include <nvme/controller.hpp>
#include <nvme/queue_handle.hpp>

namespace nvme {

queue_counters::values& queue_counters::values::operator+=(const values& other) noexcept {
  reads += other.reads;
  writes += other.writes;
  bytes_read += other.bytes_read;
  bytes_written += other.bytes_written;
  in_capsule += other.in_capsule;
  invalidated += other.invalidated;
  others += other.others;
  failed += other.failed;
  return *this;
}

queue_counters::values queue_counters::now() const noexcept {
  constexpr auto relaxed = std::memory_order_relaxed;
  return {.reads = reads_.load(relaxed),
          .writes = writes_.load(relaxed),
          .bytes_read = bytes_read_.load(relaxed),
          .bytes_written = bytes_written_.load(relaxed),
          .in_capsule = in_capsule_.load(relaxed),
          .invalidated = invalidated_.load(relaxed),
          .others = others_.load(relaxed),
          .failed = failed_.load(relaxed)};
}

controller::controller(std::uint16_t id, origin from, const limits& most)
    : id_(id), from_(std::move(from)), most_(most), granted_(most.io_queues) {}

void controller::configure(std::uint32_t value) {
  namespace cc = nvme::configuration;
  namespace csts = nvme::controller_status;
  const std::uint32_t before = configuration_.exchange(value, std::memory_order_relaxed);
  const bool enables = (value & ~before & cc::enable) != 0;
  const bool disables = (before & ~value & cc::enable) != 0;
  std::uint32_t now = status();
  if (enables) {
    // A discovery controller has no I/O queues, and so no entries of theirs: hosts leave those sizes at 0.
    const bool sizes_fit = is_discovery() || (value & cc::entry_sizes_mask) == cc::entry_sizes;
    const bool fits = sizes_fit && (value & (cc::command_set_mask | cc::page_size_mask)) == 0;
    now = fits ? csts::ready : csts::fatal;
  }
  if (disables) now = 0;
  if ((value & cc::shutdown_mask) != 0) now = (now & ~csts::shutdown_mask) | csts::shutdown_complete;
  status_.store(now, std::memory_order_relaxed);
  if (disables) end_queues(1);
}

std::uint16_t controller::grant_queues(std::uint16_t wanted) noexcept {
  const std::uint16_t granted = std::min(wanted, most_.io_queues);
  granted_.store(granted, std::memory_order_relaxed);
  return granted;
}

bool controller::has_io_queues() const {
  const std::lock_guard lock(lock_);
  return queues_.lower_bound(1) != queues_.end();
}

status controller::join(std::uint16_t queue_id, const std::shared_ptr<queue_handle>& joining) {
  if (queue_id > granted_.load(std::memory_order_relaxed)) return status::invalid_queue_id;
  const std::lock_guard lock(lock_);  // whoever disables or closes it finds this queue, or is seen here
  if (queue_id != 0 && (closed_ || !ready())) return status::command_sequence_error;
  return queues_.emplace(queue_id, joining).second ? status::success : status::invalid_queue_id;
}

void controller::leave(std::uint16_t queue_id) {
  const std::lock_guard lock(lock_);
  const auto found = queues_.find(queue_id);
  if (found == queues_.end()) return;
  of_ended_queues_ += found->second->counters.now();
  queues_.erase(found);
  if (const auto admin = queues_.find(0); admin != queues_.end()) queue_handle::other_ended(admin->second);
}

std::vector<std::shared_ptr<queue_handle>> controller::queues_from(std::uint16_t first) const {
  const std::lock_guard lock(lock_);
  std::vector<std::shared_ptr<queue_handle>> found;
  for (auto each = queues_.lower_bound(first); each != queues_.end(); ++each) found.push_back(each->second);
  return found;
}

void controller::close() {
  {
    const std::lock_guard lock(lock_);
    closed_ = true;
  }
  end_queues(0);
}

void controller::end_queues(std::uint16_t first) {
  for (const auto& each : queues_from(first)) queue_handle::abort(each);
}

void controller::notify(const async_event& what) {
  const auto queues = queues_from(0);
  if (!queues.empty() && queues.front()->id == 0) queue_handle::notify(queues.front(), what);
}

void controller::note_error(error_entry what) {
  const std::lock_guard lock(lock_);
  what.count = ++error_count_;
  errors_.push_front(what);
  if (errors_.size() > error_entries) errors_.pop_back();
}

std::vector<error_entry> controller::errors() const {
  const std::lock_guard lock(lock_);
  return {errors_.begin(), errors_.end()};
}

queue_counters::values controller::counters() const {
  const std::lock_guard lock(lock_);
  queue_counters::values sum = of_ended_queues_;
  for (const auto& [id, each] : queues_) sum += each->counters.now();
  return sum;
}

void controller::note_change(std::uint32_t nsid) {
  const std::lock_guard lock(lock_);
  changes_.insert(nsid);
}

std::vector<std::uint32_t> controller::take_changes() {
  const std::lock_guard lock(lock_);
  const auto taken = std::exchange(changes_, {});
  return {taken.begin(), taken.end()};
}

std::shared_ptr<controller> controllers::make(controller::origin from) {
  constexpr std::uint16_t largest = 0xffef;  // those above have a meaning of their own
  const std::lock_guard lock(lock_);
  if (all_.size() >= most_.controllers) return nullptr;
  do {
    last_ = last_ == largest ? std::uint16_t{1} : static_cast<std::uint16_t>(last_ + 1);
  } while (all_.contains(last_));
  auto made = std::make_shared<controller>(last_, std::move(from), most_);
  all_.emplace(last_, made);
  return made;
}

std::shared_ptr<controller> controllers::find(std::uint16_t id) const {
  const std::lock_guard lock(lock_);
  const auto found = all_.find(id);
  return found == all_.end() ? nullptr : found->second;
}

void controllers::remove(std::uint16_t id) {
  const std::lock_guard lock(lock_);
  all_.erase(id);
}

std::vector<std::shared_ptr<controller>> controllers::all() const {
  const std::lock_guard lock(lock_);
  std::vector<std::shared_ptr<controller>> found;
  found.reserve(all_.size());
  for (const auto& [id, each] : all_) found.push_back(each);
  return found;
}

}  // namespace nvme
