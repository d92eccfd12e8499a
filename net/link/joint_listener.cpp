// SPDX-License-Identifier: Apache-2.0
#include <weft/net/link/joint_listener.hpp>
#include <weft/net/link/listener_handle.hpp>
#include <weft/runtime/core/background.hpp>
#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/stop_token.hpp>
#include <weft/runtime/sync/event.hpp>

#include <deque>
#include <exception>
#include <optional>

namespace weft::net {
namespace {

// Kept alive by the tasks that wait in next(), because its handle may be destroyed meanwhile. While there is such a
// task, background tasks wait at the parts: a waiting task may be destroyed at any time, and a request that has arrived
// must not be lost with it.
struct joint_listener : std::enable_shared_from_this<joint_listener> {
  struct part {
    explicit part(fabric_listener&& from) noexcept : listener(std::move(from)) {}

    fabric_listener listener;
    bool taking = false;                      // a background task waits there
    bool left_out = false;                    // its device has failed
    std::optional<stop_source> nobody_waits;  // stops that task
  };

  joint_listener(std::vector<fabric_listener> all, failed_listener one) : working(all.size()), failed_one(one) {
    for (fabric_listener& each : all) parts.emplace_back(std::move(each));
  }
  // Leaves this part out if the others are to go on without it; returns false if not.
  [[nodiscard]] bool leaves_out(part& which, const error& why) noexcept {
    if (failed_one != failed_listener::is_left_out || why.code() != errc::connection_failed || working == 1)
      return false;
    --working;
    which.left_out = true;
    which.listener.source->close();  // because the removal of a device waits for its users
    return true;
  }

  [[nodiscard]] std::string_view name() const noexcept { return parts.front().listener.source->address(); }
  [[nodiscard]] static task<std::unique_ptr<link_request>> next(std::shared_ptr<joint_listener> all);
  // From any thread, as link_listener::close() allows.
  void close() noexcept {
    if (!home.belongs_to_this_thread()) return home.post([self = shared_from_this()] { self->close(); });
    end();
    for (const part& each : parts) each.listener.source->close();
  }
  void end() noexcept {
    closed = true;
    ready.clear();  // which rejects them
    changed.set();
  }

  executor_core& home = *executor_core::current();
  std::deque<part> parts;  // a deque, because a part must not move
  std::size_t working;     // parts that are not left out
  const failed_listener failed_one;
  std::deque<std::unique_ptr<link_request>> ready;
  std::exception_ptr failure;  // the error of a part, which one waiting task rethrows
  event changed;
  std::size_t callers = 0;
  bool closed = false;
};

class caller {
 public:
  explicit caller(joint_listener& all) noexcept : all_(all) { ++all.callers; }
  caller(const caller&) = delete;
  caller& operator=(const caller&) = delete;
  ~caller() {
    if (--all_.callers != 0) return;
    for (joint_listener::part& each : all_.parts) {
      if (each.taking) each.nobody_waits->request_stop();
    }
  }

 private:
  joint_listener& all_;
};

task<> take_next(std::shared_ptr<joint_listener> all, joint_listener::part& from) {
  weft::detail::promise_base& promise = co_await weft::detail::current_promise();
  promise.set_stop_token(from.nobody_waits->get_token());
  std::exception_ptr failure;
  try {
    auto request = co_await from.listener.source->next();
    if (request == nullptr) {
      all->end();
    } else if (!all->closed) {
      request->fabric = from.listener.fabric;
      all->ready.push_back(std::move(request));
    }
  } catch (const error& why) {
    if (!all->leaves_out(from, why)) failure = std::current_exception();
  } catch (...) {
    failure = std::current_exception();
  }
  if (failure != nullptr && all->callers != 0 && !from.nobody_waits->stop_requested()) all->failure = failure;
  promise.set_stop_token(stop_token());
  from.taking = false;
  all->changed.set();
}

task<std::unique_ptr<link_request>> joint_listener::next(std::shared_ptr<joint_listener> all) {
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
    for (joint_listener::part& each : all->parts) {
      if (each.taking || each.left_out) continue;
      each.nobody_waits.emplace();
      run_in_background(all->home, take_next(all, each), "listen on several fabrics");
      each.taking = true;
    }
    all->changed.reset();
    co_await all->changed.wait();
  }
  co_return nullptr;
}

}  // namespace

std::unique_ptr<link_listener> join_listeners(std::vector<fabric_listener> parts, failed_listener one) {
  if (parts.size() == 1 && parts.front().fabric == 0) return std::move(parts.front().source);
  return std::make_unique<listener_handle<joint_listener>>(std::make_shared<joint_listener>(std::move(parts), one));
}

}  // namespace weft::net
