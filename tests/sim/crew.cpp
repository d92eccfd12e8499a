// SPDX-License-Identifier: Apache-2.0
#include "crew.hpp"

#include <cassert>

namespace weft::sim {

class crew::other {
 public:
  other(world& place, std::size_t seat, bool shuffle_tasks)
      : place_(place),
        seat_(seat),
        home_(std::in_place, place.options(shuffle_tasks, seat)),
        thread_([this] { live(); }) {}
  other(const other&) = delete;
  other& operator=(const other&) = delete;
  ~other() { thread_.join(); }

  [[nodiscard]] executor& home() noexcept {
    assert(home_ && "an executor is needed after its end");
    return *home_;
  }
  void use() noexcept { ++users_; }
  void let_go() {
    if (--users_ == 0) end();
  }
  void end() {
    if (!std::exchange(told_, true)) home_->post([this] { ending_.set(); });
  }

 private:
  void live() {
    place_.sit_down(seat_);
    place_.introduce(seat_, &*home_);
    const auto wait_for_the_end = [this]() -> task<> { co_await ending_.wait(); };
    home_->run(wait_for_the_end());
    place_.introduce(seat_, nullptr);
    home_.reset();
    place_.leave(seat_);
  }

  world& place_;
  const std::size_t seat_;
  std::optional<executor> home_;
  event ending_;  // on that executor
  std::size_t users_ = 0;
  bool told_ = false;
  std::thread thread_;  // the last: it uses the others
};

crew::crew(world& place, const executor_options& first) : place_(place), first_(first) { place.introduce(0, &first_); }

crew::~crew() {
  dismiss();
  place_.introduce(0, nullptr);
}

void crew::hire(bool shuffle_tasks) {
  if (!together_) together_.emplace();
  others_.push_back(std::make_unique<other>(place_, place_.add_seat(), shuffle_tasks));
}

executor& crew::operator[](std::size_t index) noexcept {
  const std::size_t which = index % size();
  return which == 0 ? first_ : others_[which - 1]->home();
}

void crew::dismiss() noexcept {
  if (others_.empty()) return;
  for (const auto& one : others_) one->end();
  place_.leave(0);
  others_.clear();
}

crew::use::use(crew& all, std::size_t index) noexcept : all_(&all), index_(index % all.size()) {
  if (index_ != 0) all.others_[index_ - 1]->use();
}

crew::use::~use() {
  if (all_ != nullptr && index_ != 0) all_->others_[index_ - 1]->let_go();
}

}  // namespace weft::sim
