// SPDX-License-Identifier: Apache-2.0
#include <weft/net/device/joint_listener.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/scope.hpp>
#include <weft/runtime/sync/mutex.hpp>

#include <deque>
#include <utility>

namespace weft::net {
namespace {

// What waits for a request keeps it: the listener may go meanwhile.
struct joint_state {
  explicit joint_state(std::vector<fabric_listener> all) noexcept : parts(std::move(all)) {}

  std::vector<fabric_listener> parts;
  mutex one_at_a_time;
  std::deque<std::unique_ptr<link_request>> ready;  // what came while another was about to be handed out
  bool closed = false;
};

// A request that has come is kept, whoever was first.
task<> wait_at(joint_state& all, std::size_t which, scope& racers) {
  try {
    auto request = co_await all.parts[which].source->next();
    if (request != nullptr) {
      request->fabric = all.parts[which].fabric;
      all.ready.push_back(std::move(request));
    } else {
      all.closed = true;
    }
  } catch (const error& why) {
    if (why.code() != errc::canceled) throw;
  }
  racers.request_stop();
}

task<std::unique_ptr<link_request>> next_of(std::shared_ptr<joint_state> all) {
  const auto turn = co_await all->one_at_a_time.lock();
  if (all->ready.empty() && !all->closed) {
    joint_state& state = *all;
    const auto race = [&state](scope& racers) -> task<> {
      for (std::size_t i = 0; i < state.parts.size(); ++i) racers.spawn(wait_at(state, i, racers));
      co_return;
    };
    co_await with_scope(on_failure::stop_siblings, race);
  }
  if (all->closed) {
    all->ready.clear();
    co_return nullptr;
  }
  if (!all->ready.empty()) {
    auto first = std::move(all->ready.front());
    all->ready.pop_front();
    co_return first;
  }
  throw error(errc::canceled, "wait for a peer");
}

class joint_listener final : public link_listener {
 public:
  explicit joint_listener(std::vector<fabric_listener> parts)
      : state_(std::make_shared<joint_state>(std::move(parts))) {}
  ~joint_listener() override { close_all(); }

  [[nodiscard]] std::string_view address() const noexcept override { return state_->parts.front().source->address(); }
  [[nodiscard]] task<std::unique_ptr<link_request>> next() override { return next_of(state_); }
  void close() noexcept override { close_all(); }

 private:
  // From any thread, as close() of each of them.
  void close_all() noexcept {
    for (const fabric_listener& each : state_->parts) each.source->close();
  }

  std::shared_ptr<joint_state> state_;
};

}  // namespace

std::unique_ptr<link_listener> join_listeners(std::vector<fabric_listener> parts) {
  return std::make_unique<joint_listener>(std::move(parts));
}

}  // namespace weft::net
