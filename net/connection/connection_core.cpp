// SPDX-License-Identifier: Apache-2.0
#include <weft/net/connection/connection_core.hpp>
#include <weft/net/connection/device_state.hpp>
#include <weft/runtime/core/background.hpp>
#include <weft/runtime/executor.hpp>
#include <weft/runtime/report.hpp>

#include <fmt/core.h>

#include <cassert>
#include <new>
#include <string>

namespace weft::net {

connection_core::connection_core(std::shared_ptr<device_state> device, new_link established, receive_memory receives,
                                 const connection_options& options)
    : state_(std::move(device), std::move(established), options),
      sending_(state_, *this),
      receiving_(state_, sending_, std::move(receives)),
      heartbeat_(state_, sending_),
      end_(state_, sending_, receiving_),
      reaper_(end_in_background(*this)) {
  start_link();
  const std::optional<greeting>& peer = state_.carrier.peer_greeting;
  if (peer && peer->listens_first) sending_.post_control(message_kind::credits);
  heartbeat_.start();
  state_.device->connection_opened(state_.statistics);
}

connection_core::~connection_core() {
  assert(end_.is_closed() && "a connection was destroyed while its transport may use its memory");
  state_.keys->detach();
  state_.keys->abandon();
  receiving_.empty_inbox();
  state_.device->connection_ended(state_.statistics);
}

// Starts the link. Nothing throws after link::start().
void connection_core::start_link() {
  attached_link& carrier = state_.carrier;
  const connection_options& options = state_.options;
  const link_parameters parameters{.send_depth = sending_.depth(),
                                   .receive_depth = receiving_.depth(),
                                   .native = carrier.properties.native,
                                   .agreed = carrier.agreed,
                                   .landing = carrier.peer_greeting ? carrier.peer_greeting->landing : landing_place(),
                                   .overdue_after = options.overdue_after,
                                   .in_place = true};
  sending_.attach();
  state_.keys->attach(*carrier.link);
  carrier.link->start(*this, parameters);
  sending_.link_started();
  carrier.properties.max_whole_write_bytes = carrier.link->properties().max_whole_write_bytes;
  receiving_.link_started();
  carrier.link->ring();
}

mr::pool& connection_core::pool() const noexcept { return state_.device->pool(); }

std::span<const std::byte> connection_core::peer_private_data() const noexcept {
  return greeting::user_data(state_.carrier.peer_private_data);
}

void connection_core::confirm_retired(std::uint64_t key) {
  if (!state_.home.on_own_thread()) throw error(errc::wrong_thread, state_.context("confirm retired memory of"));
  state_.keys->confirm(key);
}

// ---- operations ----

bool connection_core::has_to_tell(std::optional<error>& why_not) const noexcept {
  if (state_.properties().sees_writes) return false;
  if (!state_.carrier.agreed.write_notices) {
    why_not = weft::detail::make_error(errc::not_supported,
                                       "the peer counts writes to this memory, and this connection cannot report them");
  }
  return true;
}

// ---- events of the link ----

void connection_core::completed(work_request& work, work_status status) noexcept {
  if (!sending::is_control(work)) {
    heartbeat_.moved();
    sending_.completed(work, status);
  } else if (sending_.control_completed(work) && !heartbeat_.take_slot() && !sending_.notices().take_slot()) {
    receiving_.offer_credits();
  }
  end_.advance();
}

void connection_core::run_advanced(work_run& run, std::size_t count, work_status status) noexcept {
  heartbeat_.moved();
  sending_.run_advanced(run, count, status);
  end_.advance();
}

void connection_core::received(receive_work& work, const arrival& what) noexcept {
  heartbeat_.heard();
  if (what.invalidated_key) [[unlikely]]
    invalidated(*what.invalidated_key);
  receive_slot& slot = receiving_.slot_of(work);
  const receiving::meaning content = receiving_.examine(slot, what);
  if (content != receiving::meaning::data) [[unlikely]]
    return received_control(slot, content);
  // mutant: forget to go on
  sending_.pump();  // the message may have brought credits
  receiving_.put(slot, content);
}

[[gnu::noinline]] void connection_core::received_control(receive_slot& slot, receiving::meaning content) noexcept {
  if (content == receiving::meaning::heartbeat) heartbeat_.answer();
  if (content == receiving::meaning::close) end_.peer_has_closed();
  if (content == receiving::meaning::device_memory) hear_of_device(slot);
  sending_.pump();
  receiving_.put(slot, content);
  if (content == receiving::meaning::notice) static_cast<void>(sending_.notices().take_slot());
}

sending::carrier& connection_core::make_carrier() {
  staging_ = std::make_unique<staging>(state_, sending_, end_, *this);
  return *staging_;
}

[[gnu::noinline]] void connection_core::hear_of_device(const receive_slot& slot) noexcept try {
  if (state_.is_silent()) return;
  const auto said = owner_message::unpack(slot.content_of(slot.what));
  if (staging_ == nullptr) sending_.set_carrier(make_carrier());
  if (!said || !staging_->heard(*said)) state_.violation("a malformed message about what an owner does");
} catch (const std::bad_alloc&) {
  state_.give_up(weft::detail::make_error(errc::no_memory, "handle a message about the peer's device memory"));
}

[[gnu::noinline]] void connection_core::invalidated(std::uint64_t invalidated_key) noexcept {
  state_.keys->invalidated(invalidated_key);
}

void connection_core::closed() noexcept {
  heartbeat_.stop();
  state_.keys->detach();
  place_.reset();
  end_.link_closed();
}

// Sends a report, because the program may have given up the memory long ago.
[[gnu::noinline]] void connection_core::came_late(std::uint64_t key, exposure_end how) noexcept try {
  state_.statistics.late_accesses.add(1);
  const std::string text =
      fmt::format("{} over {} used memory that {} (key {:#x}): it was refused, and the connection goes on", peer(),
                  state_.carrier.fabric->name(), to_string(how), key);
  send_report({.kind = report_kind::warning, .text = text});
} catch (const std::bad_alloc&) {
  send_report({.kind = report_kind::warning, .text = "a peer used memory that was taken back, and was refused"});
}

// ---- after the handle is gone ----

void connection_core::reap(std::unique_ptr<connection_core> core, bool abort) noexcept {
  executor_core& home = core->home();
  core->reaped_abruptly_ = abort;
  const bool elsewhere = !home.belongs_to_this_thread() || executor_core::current() != nullptr || home.is_driven();
  if (home.on_own_thread() || !elsewhere) return reap_at_home(std::move(core));  // mutant: close a connection on
  home.submit(*core.release());
}

task<> connection_core::end_in_background(connection_core& self) {
  const std::unique_ptr<connection_core> owned(&self);
  self.reaped_abruptly_ ? self.abort("the connection was dropped") : self.end_.begin();
  bool waited = true;
  try {
    co_await self.end_.wait_until_closed();
  } catch (const std::bad_alloc&) {  // no memory for the coroutine of wait_until_closed()
    waited = false;
  }
  if (!waited) co_await self.end_.abort_without_memory();
  self.receiving_.stop_refilling();
  if (self.receiving_.is_refilling()) co_await self.receiving_.refilling_ended();
  while (self.state_.calls != 0) co_await self.state_.unused.wait();
}

// Frees the core if nothing is left to be done, or else starts its reaper. On the connection's thread; the executor may
// be between two runs, or about to be destroyed.
void connection_core::reap_at_home(std::unique_ptr<connection_core> core) noexcept try {
  const bool is_done = core->end_.is_closed() && !core->receiving_.is_refilling() && core->state_.calls == 0;
  if (is_done) return;
  executor_core& home = core->home();
  auto reaper = std::move(core->reaper_);
  static_cast<void>(core.release());  // the reaper owns the core
  if (home.on_own_thread()) return run_in_background(home, std::move(reaper));
  const auto run_to_end = [](weft::detail::root_handle<void> work) -> task<> {
    run_in_background(*executor_core::current(), std::move(work));
    co_return;
  };
  executor_of(home).run(run_to_end(std::move(reaper)));
} catch (const std::bad_alloc&) {  // no memory for the coroutine run_to_end()
  weft::detail::terminate_because("a connection could not be closed: there is no memory");
} catch (...) {
  weft::detail::terminate_because("a connection could not be closed: its executor has ended");
}

}  // namespace weft::net
