// SPDX-License-Identifier: Apache-2.0
#include "shrink.hpp"

namespace weft::stress {
namespace {

using sim::script;

class shrinker {
 public:
  shrinker(script failing, const std::function<bool(const script&)>& fails, std::size_t most_tries)
      : best_(std::move(failing)), fails_(fails), tries_left_(most_tries) {}

  script run() {
    for (bool shorter = true; shorter && tries_left_ != 0;) {
      shorter = drop_meetings();
      shorter = drop_in_meetings() || shorter;
      shorter = simplify() || shorter;
    }
    return best_;
  }

 private:
  // Takes the change if the script still fails.
  template <class Change>
  bool attempt(Change change) {
    if (tries_left_ == 0) return false;
    script changed = best_;
    change(changed);
    if (sim::to_text(changed) == sim::to_text(best_)) return false;
    --tries_left_;
    if (!fails_(changed)) return false;
    best_ = std::move(changed);
    return true;
  }

  // Items of a list: halves first, then smaller parts, then single ones.
  template <class List>
  bool drop_from(List list) {
    bool shorter = false;
    for (std::size_t part = list(best_).size(); part != 0; part /= 2) {
      for (std::size_t at = 0; at < list(best_).size();) {
        const bool gone = attempt([&](script& changed) {
          auto& items = list(changed);
          const std::size_t end = std::min(at + part, items.size());
          items.erase(items.begin() + static_cast<std::ptrdiff_t>(at),
                      items.begin() + static_cast<std::ptrdiff_t>(end));
        });
        shorter = shorter || gone;
        if (!gone) at += part;
      }
    }
    return shorter;
  }

  bool drop_meetings() {
    return drop_from([](script& from) -> auto& { return from.meetings; });
  }

  bool drop_in_meetings() {
    bool shorter = false;
    for (std::size_t i = 0; i < best_.meetings.size(); ++i) {
      shorter = drop_from([i](script& from) -> auto& { return from.meetings[i].faults; }) || shorter;
      shorter = drop_from([i](script& from) -> auto& { return from.meetings[i].lanes; }) || shorter;
      for (std::size_t k = 0; k < best_.meetings[i].lanes.size(); ++k) {
        shorter = drop_from([i, k](script& from) -> auto& { return from.meetings[i].lanes[k].steps; }) || shorter;
      }
    }
    return shorter;
  }

  // Gives each of these members of what `part` finds its plainest value, which is 0: that of no fault, no pause, false.
  template <class Part, class... Members>
  bool clear(Part part, Members... members) {
    bool simpler = false;
    const auto clear_one = [&](auto member) { return attempt([&](script& changed) { part(changed).*member = {}; }); };
    ((simpler = clear_one(members) || simpler), ...);
    return simpler;
  }

  bool simplify() {
    const auto whole = [](script& from) -> auto& { return from; };
    const auto net = [](script& from) -> auto& { return from.net; };
    bool simpler = clear(whole, &script::failing_mappings, &script::failing_accepts, &script::removal_us,
                         &script::declined_share, &script::unsent_share, &script::tight_pool);
    simpler = attempt([](script& changed) { changed.executors = 1; }) || simpler;
    simpler = clear(whole, &script::listener_home, &script::shuffle_tasks) || simpler;
    simpler = clear(net, &sim::conditions::shuffle, &sim::conditions::short_share, &sim::conditions::idle_share,
                    &sim::conditions::spurious_share) ||
              simpler;
    for (std::size_t i = 0; i < best_.meetings.size(); ++i) simpler = simplify(i) || simpler;
    return simpler;
  }

  bool simplify(std::size_t i) {
    using plan = sim::meeting_plan;
    using side = sim::side_options;
    const auto meeting = [=](script& from) -> auto& { return from.meetings[i]; };
    bool simpler = clear(meeting, &plan::end_after_us, &plan::start_us, &plan::client_home, &plan::server_home,
                         &plan::pass_on, &plan::eager, &plan::how, &plan::oversteps, &plan::dies_in_loan);
    for (const auto which : {&plan::client, &plan::server}) {
      const auto end = [=](script& from) -> auto& { return meeting(from).*which; };
      simpler = clear(end, &side::receive_pause_us, &side::receive_stop_us, &side::keep, &side::share_receives,
                      &side::direct, &side::direct_windows) ||
                simpler;
    }
    for (std::size_t k = 0; k < best_.meetings[i].lanes.size(); ++k) {
      const auto lane = [=](script& from) -> auto& { return meeting(from).lanes[k]; };
      simpler = clear(lane, &sim::lane::destroyed_after_us, &sim::lane::home) || simpler;
      for (std::size_t s = 0; s < best_.meetings[i].lanes[k].steps.size(); ++s) {
        const auto one = [=](script& from) -> auto& { return lane(from).steps[s]; };
        simpler = clear(one, &sim::step::stop_after_us, &sim::step::memory) || simpler;
        simpler = attempt([=](script& changed) { one(changed).bytes /= 2; }) || simpler;
      }
    }
    return simpler;
  }

  script best_;
  const std::function<bool(const script&)>& fails_;
  std::size_t tries_left_;
};

}  // namespace

sim::script shrink(sim::script failing, const std::function<bool(const sim::script&)>& fails, std::size_t most_tries) {
  return shrinker(std::move(failing), fails, most_tries).run();
}

}  // namespace weft::stress
