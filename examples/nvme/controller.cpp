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

void controller::set_status(std::uint32_t value) noexcept {
  constexpr auto relaxed = std::memory_order_relaxed;
  const bool is_enabled = (configuration_.load(relaxed) & configuration::enable) != 0;
  status_.store(value, relaxed);
  serves_.store(is_enabled && (value & controller_status::ready) != 0, relaxed);
}

bool controller::configure(std::uint32_t value) {
  namespace cc = nvme::configuration;
  namespace csts = nvme::controller_status;
  bool disables = false;
  {
    const std::lock_guard lock(lock_);
    const std::uint32_t before = configuration_.load(std::memory_order_relaxed);
    const bool enables = (value & ~before & cc::enable) != 0;
    disables = (before & ~value & cc::enable) != 0;
    std::uint32_t now = status();
    if (enables && (now & csts::ready) != 0) return false;  // commands of the old queues may still run
    configuration_.store(value, std::memory_order_relaxed);
    if (enables) {
      // A discovery controller has no I/O queues, and so no entries of theirs: hosts leave those sizes at 0.
      const bool sizes_fit = is_discovery() || (value & cc::entry_sizes_mask) == cc::entry_sizes;
      const bool fits = sizes_fit && (value & (cc::command_set_mask | cc::page_size_mask)) == 0;
      now = fits ? csts::ready : csts::fatal;
    }
    if (disables) now = has_io_queues_locked() ? now & csts::ready : 0;
    if ((value & cc::shutdown_mask) != 0) now = (now & ~csts::shutdown_mask) | csts::shutdown_complete;
    set_status(now);
  }
  if (disables) end_queues(1);
  return true;
}

void controller::begin_shutdown() {
  {
    const std::lock_guard lock(lock_);
    set_status((status() & ~controller_status::shutdown_mask) | controller_status::shutdown_occurs);
  }
  for (const auto& each : queues_from(1)) queue_handle::drain(each);
}

void controller::abandon_shutdown() {
  const std::lock_guard lock(lock_);
  set_status(status() & ~controller_status::shutdown_mask);
}

void controller::fail() {
  const std::lock_guard lock(lock_);
  set_status(status() | controller_status::fatal);
}

std::uint16_t controller::grant_queues(std::uint16_t wanted) noexcept {
  const std::uint16_t granted = std::min(wanted, most_.io_queues);
  granted_.store(granted, std::memory_order_relaxed);
  return granted;
}

bool controller::has_io_queues() const {
  const std::lock_guard lock(lock_);
  return has_io_queues_locked();
}

status controller::join(std::uint16_t queue_id, const std::shared_ptr<queue_handle>& joining) {
  if (queue_id > granted_.load(std::memory_order_relaxed)) return status::invalid_queue_id;
  const std::lock_guard lock(lock_);  // whoever disables, shuts down or loses it finds this queue, or is seen here
  const bool shuts_down = (status() & controller_status::shutdown_mask) != 0;
  if (queue_id != 0 && (lost_ || !serves() || shuts_down)) return status::command_sequence_error;
  return queues_.emplace(queue_id, joining).second ? status::success : status::invalid_queue_id;
}

bool controller::leave(std::uint16_t queue_id) {
  bool is_over = false;
  {
    const std::lock_guard lock(lock_);
    const auto found = queues_.find(queue_id);
    if (found == queues_.end()) return false;
    of_ended_queues_ += found->second->counters.now();
    queues_.erase(found);
    if (queue_id == 0) lost_ = true;
    const bool is_enabled = (configuration() & configuration::enable) != 0;
    if (!is_enabled && !has_io_queues_locked()) set_status(status() & ~controller_status::ready);
    if (const auto admin = queues_.find(0); admin != queues_.end()) queue_handle::other_ended(admin->second);
    is_over = lost_ && queues_.empty();
    if (is_over) {
      for (const auto& each : waiting_) {
        if (const auto there = each.lock()) queue_handle::other_ended(there);
      }
    }
  }
  if (queue_id == 0) end_queues(1);
  return is_over;
}

bool controller::is_lost() const {
  const std::lock_guard lock(lock_);
  return lost_;
}

bool controller::is_lost_by(const origin& host, const std::shared_ptr<queue_handle>& waiting) {
  if (from_.of != host.of || from_.host != host.host || from_.host_id != host.host_id) return false;
  const std::lock_guard lock(lock_);
  if (!lost_ || queues_.empty()) return false;
  std::erase_if(waiting_, [](const auto& each) { return each.expired(); });
  waiting_.push_back(waiting);
  return true;
}

std::vector<std::shared_ptr<queue_handle>> controller::queues_from(std::uint16_t first) const {
  const std::lock_guard lock(lock_);
  std::vector<std::shared_ptr<queue_handle>> found;
  for (auto each = queues_.lower_bound(first); each != queues_.end(); ++each) found.push_back(each->second);
  return found;
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

std::vector<std::uint32_t> controller::changes() const {
  const std::lock_guard lock(lock_);
  return {changes_.begin(), changes_.end()};
}

std::vector<std::uint32_t> controller::take_changes() {
  const std::lock_guard lock(lock_);
  const auto taken = std::exchange(changes_, {});
  return {taken.begin(), taken.end()};
}

std::shared_ptr<controller> controllers::make(controller::origin from, const std::shared_ptr<queue_handle>& joining,
                                              bool& busy) {
  constexpr std::uint16_t largest = 0xffef;  // those above have a meaning of their own
  const std::lock_guard lock(lock_);
  busy = std::ranges::any_of(all_, [&](const auto& each) { return each.second->is_lost_by(from, joining); });
  if (busy) return nullptr;
  if (all_.size() >= most_.controllers) return nullptr;
  do {
    last_ = last_ == largest ? std::uint16_t{1} : static_cast<std::uint16_t>(last_ + 1);
  } while (all_.contains(last_));
  auto made = std::make_shared<controller>(last_, std::move(from), most_);
  if (made->join(0, joining) != status::success) return nullptr;
  all_.emplace(last_, made);
  return made;
}

std::shared_ptr<controller> controllers::find(std::uint16_t id) const {
  const std::lock_guard lock(lock_);
  const auto found = all_.find(id);
  return found == all_.end() || found->second->is_lost() ? nullptr : found->second;
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
