// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <exception>
#include <utility>

#include <common/printable.hpp>
#include <nvme/queue.hpp>

namespace nvme {

using weft::task;

namespace {

constexpr std::size_t command_ids = std::size_t{1} << 16;
constexpr std::uint8_t fused_mask = 0x03;
constexpr std::uint8_t data_pointer_mask = 0xc0;
constexpr std::uint8_t data_pointer_is_sgl = 0x40;

bool is_connect(const command& asked) { return asked.is(fabrics_type::connect); }

// Whether trying again may help.
bool is_passing(status what) { return what == status::internal_error || what == status::connect_controller_busy; }

task<outcome> answer(outcome done) { co_return std::move(done); }

// A host that has gone, in the only way in which peers that are not weft go, is no trouble.
bool is_departure(const weft::error& why) {
  return why.code() == weft::errc::peer_vanished || why.code() == weft::errc::peer_closed;
}

}  // namespace

queue::queue(target& home, weft::net::connection peer, const cm_request& wanted)
    : home_(home),
      peer_(std::move(peer)),
      peer_name_(peer_.peer()),
      entries_(static_cast<std::uint16_t>(wanted.send_queue_size + 1)),
      id_(wanted.queue_id),
      in_use_(command_ids) {
  home_.add(*this);
}

queue::~queue() { end(); }

// ---- the life of the queue ----

task<> queue::run() {
  std::exception_ptr failure;
  try {
    co_await converse();
    if (draining_) co_await wait_for_io_queues();
  } catch (const weft::error& why) {
    const bool expected = is_departure(why) || (aborted_ && why.code() == weft::errc::closed);
    if (!expected) failure = std::current_exception();
  } catch (...) {
    failure = std::current_exception();
  }
  end();
  if (failure) {
    peer_.abort();
    std::rethrow_exception(failure);
  }
  co_await peer_.close();
}

// The end of an admin queue is that of the others, which may have commands under way, and so is a shutdown.
task<> queue::wait_for_io_queues() {
  weft::event& left = home_.controllers().queue_left();
  while (is_admin() && controller_ != nullptr && controller_->has_io_queues()) {
    left.reset();
    co_await left.wait();
  }
}

// Nothing of this queue runs any more.
void queue::end() {
  if (std::exchange(ended_, true)) return;
  home_.remove(*this, done_);
  const auto left = std::exchange(controller_, nullptr);
  if (left == nullptr) return;
  home_.controllers().leave(*left, id_);
  if (is_admin()) home_.say(fmt::format("controller {} of {} has ended", left->id(), left->from().host));
}

// The commands outlive what receives them: so a queue that drains ends in order.
task<> queue::converse() {
  const auto work = [this](weft::scope& commands) -> task<> {
    commands_ = &commands;
    co_await receive(commands);
  };
  const reset_at_end end(commands_);
  co_await weft::with_scope(weft::on_failure::stop_siblings, work, "commands");
}

task<> queue::receive(weft::scope& commands) {
  const auto work = [this, &commands](weft::scope& receiving) -> task<> {
    receiving_ = &receiving;
    receiving.spawn(watch());
    receiving.spawn(receive_all(commands, receiving));
    if (draining_) receiving.request_stop();
    co_return;
  };
  const reset_at_end end(receiving_);
  co_await weft::with_scope(weft::on_failure::stop_siblings, work, "a queue");
}

task<> queue::receive_all(weft::scope& commands, weft::scope& receiving) {
  while (auto capsule = co_await peer_.recv()) {
    if (capsule->size() < command_bytes) malformed(fmt::format("a command capsule of {} bytes", capsule->size()));
    commands.spawn(execute(std::move(*capsule)));
  }
  receiving.request_stop();  // nobody needs to be watched any more
}

void queue::abort() noexcept {
  aborted_ = true;
  peer_.abort();
}

void queue::drain() noexcept {
  draining_ = true;
  if (receiving_ != nullptr) receiving_->request_stop();
}

// A connection without a controller is ended after a while, and so is a controller whose host is silent.
task<> queue::watch() {
  bool connected = false;
  try {
    co_await weft::with_timeout(home_.most().connect_timeout, connected_.wait());
    connected = true;
  } catch (const weft::error& why) {
    if (why.code() != weft::errc::timed_out) throw;
  }
  if (!connected) throw weft::error(weft::errc::timed_out, "wait for a Connect");
  if (is_admin()) co_await watch_keep_alive();
}

task<> queue::watch_keep_alive() {
  while (weft::executor::current()->now() < last_alive_ + keep_alive_)
    co_await weft::sleep_until(last_alive_ + keep_alive_);
  controller_->fail();
  throw weft::error(weft::errc::timed_out,
                    fmt::format("controller {}: no Keep Alive from {} for {} ms", controller_->id(),
                                controller_->from().host, keep_alive_.count()));
}

// ---- commands ----

// What no answer can mend ends the queue: more commands than it has entries.
void queue::admit(const command& asked) {
  if (outstanding_ >= entries_)
    throw weft::error(weft::errc::protocol_error,
                      fmt::format("more than {} commands at a time from {}", entries_, peer_name_));
  ++outstanding_;
  in_use_[asked.id] = true;
}

task<> queue::execute(weft::net::message capsule) {
  request what(std::move(capsule), peer_, home_.device().pool(), home_.most().transfer_timeout);
  const command asked = what.asked();
  if (in_use_[asked.id]) {  // the command that has the id goes on, and keeps it
    admit(asked);
    co_await respond(asked, what.take_capsule(), status::command_id_conflict);
    co_return;
  }
  admit(asked);
  outcome done = co_await dispatch(what);
  if (done.is_later()) co_return;
  in_use_[asked.id] = false;
  co_await respond(asked, what.take_capsule(), std::move(done));
}

status queue::check(const command& asked) const noexcept {
  if ((asked.flags & fused_mask) != 0 || (asked.flags & data_pointer_mask) != data_pointer_is_sgl)
    return status::invalid_field;
  if (controller_ == nullptr) return is_connect(asked) ? status::success : status::command_sequence_error;
  if (is_connect(asked)) return status::command_sequence_error;
  const bool needs_enabled = !is_admin() || asked.opcode != fabrics_opcode;
  return needs_enabled && !controller_->serves() ? status::command_sequence_error : status::success;
}

task<outcome> queue::dispatch(request& what) {
  if (const status wrong = check(what.asked()); wrong != status::success) co_return wrong;
  try {
    outcome done = co_await dispatch_to(what);
    co_return std::move(done);
  } catch (const std::bad_alloc&) {
  } catch (const weft::error& why) {
    if (why.code() != weft::errc::no_memory) throw;
  }
  co_return status::internal_error;
}

task<outcome> queue::dispatch_to(request& what) {
  const command& asked = what.asked();
  if (is_connect(asked)) return connect(what);
  if (!is_admin()) return io_->execute(what);
  if (asked.opcode != fabrics_opcode) return admin_->execute(what);
  if (asked.type() == fabrics_type::property_set) return admin_->set_property(what);
  return answer(asked.type() == fabrics_type::property_get ? admin_->get_property(what) : status::invalid_opcode);
}

completion queue::finish(std::uint16_t command_id, status how, std::uint64_t result) {
  head_ = static_cast<std::uint16_t>((head_ + 1) % entries_);
  return {.result = result,
          .queue_head = head_,
          .queue_id = 0,
          .id = command_id,
          .status = how,
          .do_not_retry = how != status::success && !is_passing(how)};
}

task<> queue::respond(const command& asked, weft::mr::buffer capsule, outcome done) {
  if (done.status() != status::success) ++done_.failed;
  --outstanding_;  // before the host can know of it, so that its next command is welcome
  capsule.resize(completion_bytes);
  encode(finish(asked.id, done.status(), done.result()), capsule.bytes());
  weft::net::send_options how;
  const bool revokes = asked.data.type == sgl_type::host_memory_invalidate && asked.data.length > 0;
  if (revokes && peer_.capabilities().invalidate) {
    how.invalidate = asked.data.key;
    ++done_.invalidated;
  }
  if (!done.data()) {
    co_await weft::with_timeout(home_.most().transfer_timeout, peer_.send(std::move(capsule), how));
    co_return;
  }
  const weft::mr::remote_slice target(asked.data.key, asked.data.address, done.data().size(),
                                      weft::mr::usage::write_dst);
  std::array both{peer_.write(std::move(done.data()), target), peer_.send(std::move(capsule), how)};
  co_await weft::with_timeout(home_.most().transfer_timeout, peer_.batch(both));
}

// ---- Connect ----

outcome queue::refuse_connect(std::string_view why, status how, std::uint64_t result) const {
  home_.say(fmt::format("{} may not connect: {}", peer_name_, common::printable(why)));
  return {how, result};
}

outcome queue::refuse_field(std::string_view why, std::uint16_t offset, bool in_data) const {
  return refuse_connect(why, status::connect_invalid_parameters, wrong_parameter(offset, in_data));
}

task<outcome> queue::connect(request& what) {
  if (std::exchange(connecting_, true)) co_return status::command_sequence_error;
  const reset_at_end end(connecting_);  // whatever has failed, the host may try again
  constexpr std::uint16_t queue_id_at = 42;
  constexpr std::uint16_t queue_size_at = 44;
  const auto asked = fields_of<connect_fields>(what.asked());
  if (asked.format != 0) {
    co_return refuse_connect(fmt::format("Connect of format {}", asked.format), status::connect_incompatible_format);
  }
  if (asked.queue_id != id_) {
    co_return refuse_field(fmt::format("queue {} over the connection for queue {}", asked.queue_id, id_), queue_id_at,
                           false);
  }
  if (asked.queue_size == 0 || asked.queue_size >= entries_) {
    co_return refuse_field(
        fmt::format("a queue of {} entries over a connection for {}", asked.queue_size + 1, entries_), queue_size_at,
        false);
  }
  if (const status wrong = what.check_from_host(connect_data::bytes); wrong != status::success) co_return wrong;
  weft::mr::buffer room;
  const auto bytes = co_await what.from_host(connect_data::bytes, room);
  const auto data = decode<connect_data>(bytes);
  outcome done = co_await connect_with(asked, data);
  co_return std::move(done);
}

task<outcome> queue::connect_with(const connect_fields& asked, const connect_data& data) {
  if (data.host_id == identifier{}) co_return refuse_field("a host without an identifier", connect_data::host_id_at);
  outcome done(status::internal_error);
  if (is_admin()) {
    done = co_await connect_admin(asked, data);
  } else {
    done = connect_io(data);
  }
  if (done.status() == status::success) entries_ = static_cast<std::uint16_t>(asked.queue_size + 1);
  co_return std::move(done);
}

// A write of an association that is lost may still be under way: the host that comes back sends it again, and others
// behind it, so it may not come after them.
task<std::shared_ptr<controller>> queue::make_controller(const controller::origin& from, bool& busy) {
  const weft::time_point deadline = weft::executor::current()->now() + home_.most().takeover_timeout;
  weft::event& left = home_.controllers().queue_left();
  for (;;) {
    left.reset();
    auto made = home_.controllers().make(from, *this, busy);
    if (!busy) co_return made;
    if (weft::executor::current()->now() >= deadline) co_return nullptr;
    try {
      co_await weft::with_deadline(deadline, left.wait());
    } catch (const weft::error& why) {
      if (why.code() != weft::errc::timed_out) throw;
    }
  }
}

task<outcome> queue::connect_admin(const connect_fields& asked, const connect_data& data) {
  const bool discovers = data.subsystem == discovery_nqn;
  if (!discovers && data.subsystem != home_.served().nqn())
    co_return refuse_field(fmt::format("there is no subsystem '{}'", data.subsystem), connect_data::subsystem_at);
  if (data.host.empty()) co_return refuse_field("a host without a qualified name", connect_data::host_at);
  if (!discovers && !home_.served().allows(data.host))
    co_return refuse_connect(fmt::format("host {} is not allowed", data.host), status::connect_invalid_host);
  if (data.controller != any_controller) {
    co_return refuse_field(
        fmt::format("it asks for controller {}, and controllers are made for each host", data.controller),
        connect_data::controller_at);
  }
  // The transport of RDMA needs the timer: nothing else shows that a host has gone.
  if (!discovers && asked.keep_alive_ms == 0)
    co_return refuse_connect(fmt::format("host {} without a keep-alive time", data.host), status::keep_alive_invalid);
  controller::origin from;
  from.of = discovers ? nullptr : &home_.served();
  from.host = data.host;
  from.host_id = data.host_id;
  bool busy = false;
  const auto made = co_await make_controller(from, busy);
  if (made == nullptr) {
    co_return refuse_connect(busy ? fmt::format("commands of host {} from before are still under way", from.host)
                                  : "there are too many controllers",
                             status::connect_controller_busy);
  }
  // Hosts leave a discovery controller soon, and set no time: it has the default of the specification.
  constexpr std::uint32_t usual = 120'000;
  constexpr std::uint64_t granularity = 100;
  const std::uint64_t silence = asked.keep_alive_ms == 0 ? usual : asked.keep_alive_ms;
  keep_alive_ = std::chrono::milliseconds((silence + granularity - 1) / granularity * granularity);
  restart_keep_alive();
  begin_service(made);
  co_return outcome(status::success, controller_->id());
}

outcome queue::connect_io(const connect_data& data) {
  const auto found = home_.controllers().find(data.controller);
  if (found == nullptr)
    return refuse_field(fmt::format("there is no controller {}", data.controller), connect_data::controller_at);
  const controller::origin& from = found->from();
  if (found->is_discovery() || data.subsystem != from.of->nqn()) {
    return refuse_field(fmt::format("controller {} is not of subsystem '{}'", data.controller, data.subsystem),
                        connect_data::subsystem_at);
  }
  if (data.host != from.host || data.host_id != from.host_id) {
    return refuse_field(fmt::format("controller {} belongs to another host", data.controller),
                        data.host != from.host ? connect_data::host_at : connect_data::host_id_at);
  }
  if (const status wrong = found->join(id_, *this); wrong != status::success)
    return refuse_connect(fmt::format("queue {} of controller {}: {}", id_, data.controller, words_of(wrong)), wrong);
  begin_service(found);
  return {status::success, controller_->id()};
}

void queue::begin_service(const std::shared_ptr<controller>& of) {
  try {
    if (is_admin()) {
      admin_.emplace(home_, *of, *this);
      const std::string_view subsystem = of->is_discovery() ? discovery_nqn : of->from().of->nqn();
      home_.say(fmt::format("controller {} of {}: {} from {}", of->id(), subsystem, of->from().host, peer_name_));
    } else {
      io_.emplace(home_, *of, done_);
    }
  } catch (...) {  // no memory: the host may try again
    admin_.reset();
    io_.reset();
    home_.controllers().leave(*of, id_);
    throw;
  }
  controller_ = of;
  connected_.set();
}

// ---- events ----

outcome queue::await_event(std::uint16_t command_id) {
  if (event_requests_.size() >= home_.most().async_events) return status::async_event_limit;
  if (std::exchange(has_event_, false)) return {status::success, namespaces_changed};
  event_requests_.push_back(command_id);
  --outstanding_;  // it may wait for ever, and takes no entry meanwhile
  return outcome::later();
}

// A host that has been told of changes is told again only once it has read them.
void queue::notify() noexcept {
  if (controller_ == nullptr || commands_ == nullptr || !controller_->wants_notices()) return;
  if (!std::exchange(told_, true)) has_event_ = true;
  tell_event();
}

void queue::clear_event() noexcept { told_ = has_event_ = false; }

void queue::reset_events() noexcept {
  for (const std::uint16_t command_id : std::exchange(event_requests_, {})) in_use_[command_id] = false;
  clear_event();
}

void queue::tell_event() noexcept {
  if (!has_event_ || event_requests_.empty()) return;
  try {
    commands_->spawn(answer_event(event_requests_.front()));
  } catch (const std::bad_alloc&) {
    return;  // it is told with the next one, or when the host asks for more
  }
  event_requests_.erase(event_requests_.begin());
  has_event_ = false;
}

task<> queue::answer_event(std::uint16_t command_id) {
  const auto patience = home_.most().transfer_timeout;
  auto capsule = co_await weft::with_timeout(patience, home_.device().pool().allocate(completion_bytes));
  in_use_[command_id] = false;
  encode(finish(command_id, status::success, namespaces_changed), capsule.bytes());
  co_await weft::with_timeout(patience, peer_.send(std::move(capsule)));
}

}  // namespace nvme
