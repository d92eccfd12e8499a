// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/core/operation.hpp>
#include <weft/runtime/core/root_task.hpp>
#include <weft/runtime/task_name.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <unordered_map>
#include <vector>

namespace weft {

// Builds the text: roots without an owner are at the top, and the children of a scope below the line of the coroutine
// that runs the scope. No recursion, because chains of awaits may be a million deep.
class executor_core::dump_text {
 public:
  explicit dump_text(const executor_core& what) : what_(what), now_(what.now()) {
    for (const root* each = what.roots_; each != nullptr; each = each->next_)
      children_[each->observer_->owner()].push_back(each);
  }

  std::string take() {
    put("weft: executor on {}, {} ready, {} turns, {} sleeps\n", what_.io().name(), what_.ready_.size(),
        what_.counters_.turns.get(), what_.counters_.sleeps.get());
    plan(nullptr, 0);
    while (!planned_.empty()) {
      const entry next = planned_.back();
      planned_.pop_back();
      put_root(*next.task, next.depth);
    }
    return std::move(text_);
  }

 private:
  using root = detail::root_task;
  struct entry {
    const root* task;
    std::size_t depth;
  };
  static constexpr std::size_t most_frames = 32;  // the most coroutines that are shown of one chain of awaits
  static constexpr std::size_t indent = 2;

  template <class... Arguments>
  void put(fmt::format_string<Arguments...> format, const Arguments&... arguments) {
    fmt::vformat_to(std::back_inserter(text_), format, fmt::make_format_args(arguments...));
  }

  // Plans to write the roots that `owner` owns. The lists begin with the youngest root, and the root that was planned
  // last is written first, so the oldest comes first in the text.
  void plan(const detail::promise_base* owner, std::size_t depth) {
    const auto found = children_.find(owner);
    if (found == children_.end()) return;
    for (const root* each : found->second) planned_.push_back({each, depth});
  }

  void put_root(const root& task, std::size_t depth) {
    const char* const scope = task.observer_->name();
    put("{:{}}- ", "", depth * indent);
    if (*scope != '\0') put("[{}] ", scope);
    if (task.name_ != nullptr) put("{}: ", task.name_);
    const detail::promise_base* innermost = task.body_;
    const char* separator = "";
    std::size_t shown = 0;
    std::size_t hidden = 0;
    const detail::promise_base* last_written = nullptr;
    for (const detail::promise_base* each = task.body_; each != nullptr; each = each->child()) {
      innermost = each;
      plan(each, depth + 1);
      if (shown == most_frames) {
        ++hidden;
        continue;
      }
      if (detail::is_wrapper(each->origin())) continue;
      ++shown;
      put("{}{}", separator, detail::name_and_place(each->origin()));
      separator = " > ";
      last_written = each;
    }
    if (last_written == nullptr) put("{}", detail::name_and_place(task.origin()));
    if (hidden != 0) put(" > {} more", hidden);
    put("; {}\n", innermost != nullptr ? state_of(*innermost) : "ending");
  }

  std::string state_of(const detail::promise_base& innermost) const {
    if (const detail::operation_base* const operation = innermost.operation()) {
      const double seconds =
          std::chrono::duration<double>(std::max(now_ - operation->since(), duration::zero())).count();
      return fmt::format("{:.3f} s on {}", seconds, operation->describe());
    }
    const auto found = children_.find(&innermost);
    if (found != children_.end()) return fmt::format("its scope has {} tasks", found->second.size());
    return "ready or running";
  }

  const executor_core& what_;
  time_point now_;
  std::unordered_map<const detail::promise_base*, std::vector<const root*>> children_;
  std::vector<entry> planned_;
  std::string text_;
};

std::string executor_core::dump() const { return dump_text(*this).take(); }

}  // namespace weft
