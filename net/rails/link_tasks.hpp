// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/rails/rail_owner.hpp>
#include <weft/runtime/core/background.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/stop_token.hpp>
#include <weft/runtime/task.hpp>

#include <cstddef>
#include <exception>
#include <new>
#include <utility>

namespace weft::net::rails {

/// The tasks of a link. The link must not be destroyed before they have ended.
class link_tasks {
 public:
  explicit link_tasks(rail_owner& of) noexcept : owner_(of) {}
  link_tasks(const link_tasks&) = delete;
  link_tasks& operator=(const link_tasks&) = delete;

  /// Keeps the link from being destroyed while a call of the user's waits in it.
  class at_work {
   public:
    explicit at_work(link_tasks& of) noexcept : of_(of) { ++of.count_; }
    at_work(const at_work&) = delete;
    at_work& operator=(const at_work&) = delete;
    ~at_work() {
      const rail_owner::turn outer(of_.owner_);
      --of_.count_;
    }

   private:
    link_tasks& of_;
  };

  /// Calls `make`, and runs the task that it returns in the background. Ends the link if there is no memory for the
  /// task.
  template <class Make>
  void begin(Make make, const char* name) noexcept try {
    ++count_;
    run_in_background(owner_.home(), counted(*this, make()), name);
  } catch (const std::bad_alloc&) {
    --count_;
    owner_.fail(weft::detail::make_error(errc::no_memory, "start a task for the rails"));
  }
  /// Asks all tasks that were begun to end.
  void stop() noexcept { stop_.request_stop(); }
  [[nodiscard]] bool empty() const noexcept { return count_ == 0; }

 private:
  static task<> counted(link_tasks& self, task<> work) {
    weft::detail::promise_base& promise = co_await weft::detail::current_promise();
    promise.set_stop_token(self.stop_.get_token());
    try {
      co_await std::move(work);
    } catch (const std::exception&) {  // stopped, out of memory, or no link could be set up: the rail stays away
    }
    promise.set_stop_token(stop_token());
    const rail_owner::turn outer(self.owner_);
    --self.count_;
  }

  rail_owner& owner_;
  std::size_t count_ = 0;
  stop_source stop_;
};

/// Sets a flag for as long as it lives.
class flag_while {
 public:
  explicit flag_while(bool& flag) noexcept : flag_(flag) { flag_ = true; }
  flag_while(const flag_while&) = delete;
  flag_while& operator=(const flag_while&) = delete;
  ~flag_while() { flag_ = false; }

 private:
  bool& flag_;
};

}  // namespace weft::net::rails
