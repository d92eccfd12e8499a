// SPDX-License-Identifier: Apache-2.0
#include "shrink.hpp"

#include <utility>

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

  template <class T, class Field>
  bool set(Field field, T value) {
    return attempt([&](script& changed) { field(changed) = value; });
  }

  bool simplify() {
    bool simpler = false;
    const auto note = [&simpler](bool done) { simpler = simpler || done; };
    note(set([](script& from) -> auto& { return from.failing_mappings; }, 0U));
    note(set([](script& from) -> auto& { return from.failing_accepts; }, 0U));
    note(set([](script& from) -> auto& { return from.removal_us; }, 0U));
    note(set([](script& from) -> auto& { return from.declined_share; }, 0U));
    note(set([](script& from) -> auto& { return from.unsent_share; }, 0U));
    note(set([](script& from) -> auto& { return from.tight_pool; }, false));
    note(set([](script& from) -> auto& { return from.executors; }, 1U));
    note(set([](script& from) -> auto& { return from.listener_home; }, 0U));
    note(set([](script& from) -> auto& { return from.shuffle_tasks; }, false));
    note(set([](script& from) -> auto& { return from.net.shuffle; }, false));
    note(set([](script& from) -> auto& { return from.net.short_share; }, 0U));
    note(set([](script& from) -> auto& { return from.net.idle_share; }, 0U));
    note(set([](script& from) -> auto& { return from.net.spurious_share; }, 0U));
    for (std::size_t i = 0; i < best_.meetings.size(); ++i) note(simplify(i));
    return simpler;
  }

  bool simplify(std::size_t i) {
    bool simpler = false;
    const auto note = [&simpler](bool done) { simpler = simpler || done; };
    const auto plain = [&](auto field) {
      note(set([=](script& from) -> auto& { return field(from.meetings[i]); }, 0U));
    };
    plain([](sim::meeting_plan& plan) -> auto& { return plan.end_after_us; });
    plain([](sim::meeting_plan& plan) -> auto& { return plan.start_us; });
    plain([](sim::meeting_plan& plan) -> auto& { return plan.client_home; });
    plain([](sim::meeting_plan& plan) -> auto& { return plan.server_home; });
    note(set([=](script& from) -> auto& { return from.meetings[i].pass_on; }, false));
    note(set([=](script& from) -> auto& { return from.meetings[i].eager; }, false));
    plain([](sim::meeting_plan& plan) -> auto& { return plan.client.receive_pause_us; });
    plain([](sim::meeting_plan& plan) -> auto& { return plan.server.receive_pause_us; });
    plain([](sim::meeting_plan& plan) -> auto& { return plan.client.receive_stop_us; });
    plain([](sim::meeting_plan& plan) -> auto& { return plan.server.receive_stop_us; });
    plain([](sim::meeting_plan& plan) -> auto& { return plan.client.keep; });
    plain([](sim::meeting_plan& plan) -> auto& { return plan.server.keep; });
    note(set([=](script& from) -> auto& { return from.meetings[i].client.share_receives; }, false));
    note(set([=](script& from) -> auto& { return from.meetings[i].server.share_receives; }, false));
    note(set([=](script& from) -> auto& { return from.meetings[i].how; }, sim::ending::client_closes));
    note(set([=](script& from) -> auto& { return from.meetings[i].oversteps; }, sim::overstepping::none));
    plain([](sim::meeting_plan& plan) -> auto& { return plan.dies_in_loan; });
    for (const auto side : {&sim::meeting_plan::client, &sim::meeting_plan::server}) {
      note(set([=](script& from) -> auto& { return (from.meetings[i].*side).direct; }, false));
      note(set([=](script& from) -> auto& { return (from.meetings[i].*side).direct_windows; }, false));
    }
    for (std::size_t k = 0; k < best_.meetings[i].lanes.size(); ++k) {
      note(set([=](script& from) -> auto& { return from.meetings[i].lanes[k].destroyed_after_us; }, 0U));
      note(set([=](script& from) -> auto& { return from.meetings[i].lanes[k].home; }, 0U));
      for (std::size_t s = 0; s < best_.meetings[i].lanes[k].steps.size(); ++s) {
        const auto one = [=](script& from) -> sim::step& { return from.meetings[i].lanes[k].steps[s]; };
        note(set([=](script& from) -> auto& { return one(from).stop_after_us; }, 0U));
        note(set([=](script& from) -> auto& { return one(from).memory; }, sim::lending::moved));
        note(attempt([=](script& changed) { one(changed).bytes /= 2; }));
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
