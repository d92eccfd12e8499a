// SPDX-License-Identifier: Apache-2.0
#include "workers.hpp"

#include <algorithm>

namespace weft::sim {

workers::workers(clock& time, random& dice, duration longest)
    : worker_pool(1), time_(time), dice_(dice), longest_(longest), thread_([this] { serve(); }) {}

workers::~workers() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void workers::submit(detail::worker_job& job) {
  const auto takes = duration(static_cast<duration::rep>(dice_.skewed(static_cast<std::uint64_t>(longest_.count()))));
  waiting_.push_back({.job = &job, .due = time_.now() + takes});
}

bool workers::withdraw(detail::worker_job& job) noexcept {
  return std::erase_if(waiting_, [&](const entry& item) { return item.job == &job; }) != 0;
}

std::optional<time_point> workers::next_due() const noexcept {
  std::optional<time_point> first;
  for (const entry& item : waiting_) first = first ? std::min(*first, item.due) : item.due;
  return first;
}

std::size_t workers::run_due() {
  std::size_t count = 0;
  for (;;) {
    const auto due = [now = time_.now()](const entry& item) { return item.due <= now; };
    const auto found = std::find_if(waiting_.begin(), waiting_.end(), due);
    if (found == waiting_.end()) return count;
    detail::worker_job& job = *found->job;
    waiting_.erase(found);
    run_on_thread(job);
    ++count;
  }
}

void workers::run_on_thread(detail::worker_job& job) {
  std::unique_lock lock(mutex_);
  handed_over_ = &job;
  changed_.notify_all();
  changed_.wait(lock, [this] { return handed_over_ == nullptr; });
}

void workers::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return handed_over_ != nullptr || closing_; });
    if (handed_over_ == nullptr) return;
    detail::worker_job& job = *handed_over_;
    lock.unlock();
    run(job);
    lock.lock();
    handed_over_ = nullptr;
    changed_.notify_all();
  }
}

}  // namespace weft::sim
