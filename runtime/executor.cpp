// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/error.hpp>
#include <weft/runtime/executor.hpp>
#include <weft/runtime/stop_token.hpp>

namespace weft {
namespace {

class run_end final : public detail::root_observer {
 public:
  bool done = false;

 private:
  void ended() noexcept override { done = true; }
  void failed(std::exception_ptr, const char*, std::source_location) noexcept override { done = true; }
};

// Brings a stop, which any thread may request, to the executor.
class mailed_stop final : public detail::remote_work {
 public:
  explicit mailed_stop(stop_source& target) noexcept : target_(target) {}

 private:
  void run_on_executor() noexcept override { target_.request_stop(); }
  stop_source& target_;
};

}  // namespace

void executor::run_to_end(detail::root_task& root, std::stop_token token) {
  if (current_ != nullptr) throw error(errc::wrong_thread, "run an executor inside a task of another executor");
  if (is_driven()) throw error(errc::wrong_thread, "run an executor that another loop drives");
  attach_thread();
  const entered guard(this);
  mail_.open();
  go_on();

  stop_source stop;
  run_end end;
  mailed_stop mail(stop);
  {
    const auto request = [this, &mail]() noexcept { submit(mail); };
    const std::stop_callback on_stop(std::move(token), request);
    root.start(*this, end, stop.get_token());
    run_until(end.done);
  }
  executor_core::end();  // runs a stop that came late and may still be in the mailbox
  run_until(end.done);
  unwatch_all();
  activity_ = activity::resting;
}

}  // namespace weft
