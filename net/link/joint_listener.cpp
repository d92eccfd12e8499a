// SPDX-License-Identifier: Apache-2.0
#include <weft/net/link/joint_listener.hpp>
#include <weft/runtime/core/background.hpp>
#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/stop_token.hpp>
#include <weft/runtime/sync/event.hpp>

#include <deque>
#include <exception>
#include <optional>
#include <utility>

namespace weft::net {
namespace {

// Kept alive by the tasks that wait in next(), because the listener may be destroyed meanwhile. While there is such a
// task, background tasks wait at the parts: a waiting task may be destroyed at any time, and a request that has arrived
// must not be lost with it.
struct joint_state : std::enable_shared_from_this<joint_state> {
  struct part {
    explicit part(fabric_listener&& from) noexcept : listener(std::move(from)) {}

    fabric_listener listener;
    bool taking = false;                      // a background task waits there
    std::optional<stop_source> nobody_waits;  // stops that task
  };

  explicit joint_state(std::vector<fabric_listener> all) {
    for (fabric_listener& each : all) parts.emplace_back(std::move(each));
  }

  executor_core& home = *executor_core::current();
  std::deque<part> parts;  // a deque, because a part must not move
  std::deque<std::unique_ptr<link_request>> ready;
  std::exception_ptr failure;  // of a part, rethrown in one waiting task
  event changed;
  std::size_t callers = 0;
  bool closed = false;
};

class caller {
 public:
  explicit caller(joint_state& all) noexcept : all_(all) { ++all.callers; }
  caller(const caller&) = delete;
  caller& operator=(const caller&) = delete;
  ~caller() {
    if (--all_.callers != 0) return;
    for (joint_state::part& each : all_.parts) {
      if (each.taking) each.nobody_waits->request_stop();
    }
  }

 private:
  joint_state& all_;
};

task<> take_next(std::shared_ptr<joint_state> all, joint_state::part& from) {
  weft::detail::promise_base& promise = co_await weft::detail::current_promise();
  promise.set_stop_token(from.nobody_waits->get_token());
  try {
    auto request = co_await from.listener.source->next();
    if (request != nullptr) {
      request->fabric = from.listener.fabric;
      all->ready.push_back(std::move(request));
    } else {
      all->closed = true;
    }
  } catch (...) {
    if (all->callers != 0 && !from.nobody_waits->stop_requested()) all->failure = std::current_exception();
  }
  promise.set_stop_token(stop_token());
  from.taking = false;
  all->changed.set();
}

task<std::unique_ptr<link_request>> next_of(std::shared_ptr<joint_state> all) {
  if (!all->home.on_own_thread())
    throw error(errc::wrong_thread, "call a listener on the executor on which it was made");
  const caller waiting(*all);
  while (!all->closed) {
    if (!all->ready.empty()) {
      auto first = std::move(all->ready.front());
      all->ready.pop_front();
      co_return first;
    }
    if (all->failure != nullptr) std::rethrow_exception(std::exchange(all->failure, nullptr));
    for (joint_state::part& each : all->parts) {
      if (each.taking) continue;
      each.nobody_waits.emplace();
      run_in_background(all->home, take_next(all, each), "listen on several fabrics");
      each.taking = true;
    }
    all->changed.reset();
    co_await all->changed.wait();
  }
  all->ready.clear();
  co_return nullptr;
}

class joint_listener final : public link_listener {
 public:
  explicit joint_listener(std::vector<fabric_listener> parts)
      : state_(std::make_shared<joint_state>(std::move(parts))) {}
  ~joint_listener() override { close_all(); }

  [[nodiscard]] std::string_view address() const noexcept override {
    return state_->parts.front().listener.source->address();
  }
  [[nodiscard]] task<std::unique_ptr<link_request>> next() override { return next_of(state_); }
  void close() noexcept override { close_all(); }

 private:
  // From any thread, as link_listener::close() allows.
  void close_all() noexcept {
    for (const joint_state::part& each : state_->parts) each.listener.source->close();
  }

  std::shared_ptr<joint_state> state_;
};

}  // namespace

std::unique_ptr<link_listener> join_listeners(std::vector<fabric_listener> parts) {
  return std::make_unique<joint_listener>(std::move(parts));
}

}  // namespace weft::net
