// SPDX-License-Identifier: Apache-2.0
#include <weft/net/fabric/fabric_link.hpp>
#include <weft/runtime/core/background.hpp>
#include <weft/runtime/core/stop_shield.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/offload.hpp>

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>
#include <new>
#include <type_traits>
#include <utility>

namespace weft::net::fabric {
namespace {

using weft::detail::make_error;

constexpr std::size_t batch_size = 16;
constexpr std::size_t whole_queue = std::numeric_limits<std::size_t>::max();
// Pauses between polls of a provider that cannot wake this end, or that takes no more requests or receives for now.
constexpr auto busy_tick = std::chrono::microseconds(200);  // while something is in flight or waits for the provider
constexpr auto idle_tick = std::chrono::milliseconds(2);    // otherwise

// How long accesses may be in flight without a completion before the peer is asked whether they are allowed; also the
// pause before it is asked again.
constexpr auto doubt_time = std::chrono::milliseconds(50);

// The most that dead_peer_after counts for: as good as for ever. Longer times could overflow.
constexpr auto longest_patience = std::chrono::hours(24 * 365);

// Leaves room for the message_trailer, which send_queue puts behind each message.
std::uint64_t largest_message(const fi_info& about) noexcept {
  const std::uint64_t most = about.ep_attr->max_msg_size;
  return std::min<std::uint64_t>(most - std::min<std::uint64_t>(most, message_trailer::bytes), UINT32_MAX);
}

std::uint8_t rights_of(work_kind what) noexcept {
  if (what == work_kind::write) return control_record::writing;
  return what == work_kind::read ? control_record::reading : control_record::reading | control_record::writing;
}

}  // namespace

fabric_link::fabric_link(established&& made)
    : home_(*executor_core::current()),
      made_(std::move(made)),
      requests_(home_, *made_.endpoint, *made_.memory, made_.peer_token, made_.outgoing_reads),
      receives_(*made_.endpoint, *made_.memory, made_.own_token),
      exposures_(home_, *made_.endpoint, life_, quiet_, *this),
      mail_(home_, made_.memory->home(), *this),
      control_(home_, *made_.socket, *this) {
  const fi_info& about = made_.endpoint->home().info();
  capabilities_.checksum = true;
  capabilities_.outgoing_reads = made_.outgoing_reads;
  capabilities_.incoming_reads = made_.incoming_reads;
  capabilities_.invalidate = true;
  capabilities_.explains_end = true;
  capabilities_.max_message_bytes = largest_message(about);
  const std::size_t parts = std::min(max_segments, about.tx_attr->iov_limit);
  capabilities_.max_parts = capabilities_.max_read_parts = static_cast<std::uint8_t>(parts);
  made_.dead_peer_after = std::min<std::chrono::milliseconds>(made_.dead_peer_after, longest_patience);
}

fabric_link::~fabric_link() {
  if (made_.endpoint == nullptr) return;  // closed, or given up
  home_.disarm(*this);
  mail_.close();
  close_endpoint();
}

// Closes the endpoint, and only then thaws the device, because until then the peer may still reach closed regions.
void fabric_link::close_endpoint() noexcept {
  made_.endpoint.reset();
  mail_.drop();
}

// ---- set-up ----

void fabric_link::begin_set_up() noexcept {
  is_setting_up_ = true;
  mail_.open(false);
}

void fabric_link::end_set_up() noexcept {
  mail_.close();
  home_.disarm(*this);
  is_setting_up_ = false;
}

task<> fabric_link::give_up() {
  const auto work = [this] { close_endpoint(); };
  weft::detail::promise_base& promise = co_await weft::detail::current_promise();
  const weft::detail::stop_shield shield(promise);
  co_await weft::detail::offload_for_resources(work);
}

void fabric_link::hurry_set_up() noexcept {
  if (timer::armed() || was_late_) return;
  if (!home_.try_arm(*this, home_.now() + frozen_patience)) break_set_up_off();
}

void fabric_link::break_set_up_off() noexcept {
  was_late_ = true;
  made_.socket->calls().shutdown(made_.socket->fd(), SHUT_RDWR);
}

void fabric_link::start(link_events& events, const link_parameters& parameters) {
  receives_.make_room(parameters.receive_depth);
  exposures_.make_room();
  native_ = parameters.native;
  finisher_ = weft::detail::root_handle<void>(finish());
  home_.add_poller(*this);
  life_.begin(events);
  mail_.open(true);
}

void fabric_link::run_on_executor() noexcept {
  mail_.came();                               // mutant: forget regions
  if (is_setting_up_) return hurry_set_up();  // mutant: wait for a peer
  if (life_.is_leaving()) return;             // keys that are left are dropped with the endpoint
  await_input();
  if (!made_.endpoint->can_wait()) tick_later();
  for (const std::uint64_t key : mail_.take()) {
    if (life_.is_leaving() || !exposures_.ask_about(key)) mail_.leave_unasked();
  }
  if (!mail_.has_unasked()) return;
  fail(make_error(errc::no_memory, "ask the peer about a region that was closed"));
}

// ---- output ----

bool fabric_link::furnish(work_request& work) noexcept {
  static_assert(std::is_trivially_destructible_v<posted_request> && alignof(posted_request) <= corner_alignment);
  ::new (work.corner) posted_request(work);
  return true;
}

void fabric_link::post_receive(receive_work& work) noexcept {
  if (life_.is_leaving()) return life_.events().receive_flushed(work);
  receives_.post(work);
}

void fabric_link::hand_over_receives() noexcept {
  if (!receives_.waits()) return;
  const ssize_t result = receives_.hand_over();
  if (result == -FI_EAGAIN) return tick_later();  // mutant: no room for a receive
  if (result < 0) fail(make_error(errc::connection_failed, "post a receive"));
}

void fabric_link::hand_over_requests() noexcept {
  blocked_ = false;
  if (!requests_.waits() || life_.is_leaving() || doubt_) return;
  const ssize_t result = requests_.hand_over();
  blocked_ = result == -FI_EAGAIN;
  if (blocked_ || result > 0) return tick_later();  // > 0: an access was sent, which may never complete if refused
  if (result == 0) return;
  fail(make_error(errc::connection_failed, made_.endpoint->calls().strerror(static_cast<int>(-result))));
}

// ---- completions ----

std::size_t fabric_link::poll(std::size_t budget) noexcept {
  if (life_.is_leaving()) return 0;
  hand_over_receives();
  hand_over_requests();
  requests_.complete_ended(life_.events());  // requests that take no operation
  std::size_t found = read_queue(budget);
  if (found != 0) {
    hand_over_receives();
    hand_over_requests();
  }
  advance_end();
  if (std::exchange(must_not_sleep_, false)) ++found;
  return found;
}

std::size_t fabric_link::read_queue(std::size_t budget) noexcept {
  std::array<fi_cq_msg_entry, batch_size> batch;
  std::size_t total = 0;
  while (total < budget && !life_.is_leaving()) {
    const std::size_t wanted = std::min(batch.size(), budget - total);
    const ssize_t found = look(batch.data(), wanted);
    if (found == -FI_EAVAIL) {
      take_failure();
      ++total;
      continue;
    }
    if (found == -FI_EAGAIN || found == 0) break;
    if (found < 0) {
      fail(make_error(errc::connection_failed, "read a completion queue"));
      break;
    }
    const auto count = static_cast<std::size_t>(found);
    for (std::size_t i = 0; i != count; ++i) {
      if (batch[i].op_context != nullptr) completed(*static_cast<operation*>(batch[i].op_context), batch[i].len);
    }
    total += count;
    if (count < wanted) break;
  }
  return total;
}

ssize_t fabric_link::look(fi_cq_msg_entry* found, std::size_t most) noexcept {
  const entry inside = made_.endpoint->home().enter();
  if (!inside.may_move_bytes()) {
    tick_later();
    return -FI_EAGAIN;
  }
  return made_.endpoint->calls().cq_read(made_.endpoint->queue(), found, most);
}

void fabric_link::take_failure() noexcept {
  fi_cq_err_entry what{};
  ssize_t result = 0;
  {
    const entry inside = made_.endpoint->home().enter();
    result = made_.endpoint->calls().cq_readerr(made_.endpoint->queue(), &what);
  }
  if (result == -FI_EAGAIN) return;
  if (result < 0) return fail(make_error(errc::connection_failed, "read a completion queue's error"));
  failed(what);
}

void fabric_link::completed(operation& item, std::size_t bytes) noexcept {
  if (item.kind == operation::receive) return received(receives_.completed(item), bytes);
  step_ended(item);
  requests_.complete_ended(life_.events());
}

void fabric_link::step_ended(operation& part) noexcept {
  if (requests_.step_ended(part)) tell_of_end(send_queue::owner_of(part));  // mutant: do not tell the owner
}

[[gnu::noinline]] void fabric_link::tell_of_end(posted_request& item) noexcept {
  const std::optional<std::uint64_t> key = requests_.end_wait(item);
  if (key) tell({.kind = control_record::fenced, .reason = control_record::none_under_way, .key = *key});
}

void fabric_link::failed(const fi_cq_err_entry& what) noexcept {
  auto* const item = static_cast<operation*>(what.op_context);
  if (item != nullptr && item->kind == operation::receive) {
    if (what.err == FI_ECANCELED) return;  // flushed with the rest
    if (what.err == FI_ETRUNC || what.err == FI_EMSGSIZE) return break_rules("a message is larger than its receive");
  } else if (item != nullptr) {
    posted_request& request = send_queue::owner_of(*item);
    // Before step_ended(), which may lose the peer and then completes all requests that have ended without a failure.
    request.failed = true;
    // mutant: take a request that failed
    step_ended(*item);
  }
  doubt(made_.endpoint->calls().strerror(what.err));
}

void fabric_link::received(posted_receive& item, std::size_t bytes) noexcept {
  if (life_.has_ended()) return;  // flushed with the rest
  if (const char* const wrong = receives_.enter(item, bytes)) return break_rules(wrong);
  deliver();
}

void fabric_link::deliver() noexcept {
  if (std::exchange(delivering_, true)) return;
  while (!life_.has_ended()) {
    const posted_receive* const next = receives_.next();
    if (next == nullptr) break;
    const message_trailer& trailer = next->trailer;
    arrival came{.bytes = next->bytes};
    if (next->has(message_trailer::invalidates)) {
      if (!is_invalidated(trailer.key)) break;
      came.invalidated_key = trailer.key;
    }
    if (next->has(message_trailer::immediate)) came.immediate = trailer.value;
    life_.events().received(receives_.take_next(), came);
  }
  delivering_ = false;
}

// Invalidates a key. False if the key was refused, or if invalidated() is still to come.
bool fabric_link::is_invalidated(std::uint64_t key) noexcept {
  if (invalidation_ == invalidation::under_way) return false;
  if (std::exchange(invalidation_, invalidation::none) == invalidation::done) return true;
  if (exposures_.invalidate(key)) {
    invalidation_ = invalidation::under_way;
    return false;
  }
  refuse(key, "the peer revokes a key that this link has not given it");
  return false;
}

void fabric_link::invalidated() noexcept {
  invalidation_ = invalidation::done;
  if (life_.is_leaving()) return;
  deliver();
  advance_end();
}

// ---- doubt ----

void fabric_link::doubt(std::string_view words) noexcept {
  if (life_.is_leaving()) return;
  if (!doubt_) doubt_ = words;
  if (!asked_) ask();
}

// Without a suspect the question names no access: once it is answered, all records that the peer has sent before have
// arrived, such as one that an access of the peer's was refused.
void fabric_link::ask() noexcept {
  suspect_ = requests_.next_suspect();
  asked_ = true;
  if (suspect_ == nullptr) return tell({.kind = control_record::asks});
  const work_request& work = *suspect_->work;
  tell({.kind = control_record::asks,
        .reason = rights_of(work.kind),
        .key = work.remote_key,
        .address = work.remote_address,
        .length = work.bytes()});
}

void fabric_link::take_question(const control_record& asked) noexcept {
  std::uint64_t needed = 0;
  if ((asked.reason & control_record::reading) != 0) needed |= FI_REMOTE_READ;
  if ((asked.reason & control_record::writing) != 0) needed |= FI_REMOTE_WRITE;
  const bool allowed = needed == 0 || made_.memory->find(asked.key).allows(asked.address, asked.length, needed) ||
                       exposures_.allows(asked.key, asked.address, asked.length, needed);
  const bool is_revoking = !allowed && exposures_.is_revoking(asked.key, asked.address, asked.length, needed);
  // A peer that is refused ends the connection, unless the access has completed meanwhile. So a peer that asks again
  // and again guesses keys.
  constexpr unsigned most_refusals = 16;
  const bool is_refused = !allowed && !is_revoking;
  if (is_refused && ++refusals_told_ > most_refusals) return break_rules("the peer asks for one key after another");
  const std::uint8_t word = allowed       ? control_record::reading
                            : is_revoking ? control_record::revoking
                                          : control_record::aborted;
  tell({.kind = control_record::answers, .reason = word, .key = asked.key});
}

void fabric_link::take_answer(const control_record& answer) noexcept {
  if (!std::exchange(asked_, false)) return break_rules("the peer answers what nobody has asked");
  if (made_.memory->home().is_frozen()) {  // the queue cannot be read, so the peer is asked again later
    suspect_ = nullptr;
    return tick_later();
  }
  read_queue(whole_queue);
  if (life_.is_leaving() || asked_) return;
  if (stands_still()) return lose_peer("the fabric moves nothing, although the peer answers");
  if (suspect_ == nullptr) {
    if (doubt_) lose_peer(*doubt_);
    return;
  }
  posted_request* const suspect = std::exchange(suspect_, nullptr);
  // The suspect may have completed meanwhile, and its slot may be in use again.
  const bool is_open = requests_.contains(suspect);
  // Its completion may only be late, unless the provider has reported a failure.
  const bool is_waited_for = answer.reason == control_record::revoking && !doubt_;
  if (!is_open || is_waited_for || answer.reason == control_record::reading) {
    if (is_open) suspect->cleared = true;
    if (doubt_) ask();
    return;
  }
  suspect->refused = true;
  const std::uint64_t key = suspect->work->remote_key;
  refusal_ = {.is_peers = false, .key = key};
  fail(make_error(errc::remote_access, doubt_.value_or("the provider keeps silent about it")),
       control_record::refused_us, key);
}

// Whether nothing has completed for dead_peer_after, and longer if much is in flight, although the peer's program runs.
// The time counts from the peer's first answer after the last completion, so that a program that was stopped has time
// to catch up.
bool fabric_link::stands_still() noexcept {
  if (made_.dead_peer_after == std::chrono::milliseconds::zero()) return false;
  // A message to a foreign peer may wait for a receive as long as the peer likes.
  const bool waits = native_ ? requests_.is_with_provider() : requests_.has_accesses_under_way();
  return waits && requests_.stands_still(made_.dead_peer_after);
}

// ---- sleeping ----

// A provider may have work that no descriptor signals: fi_trywait(3). The executor polls once more after arm().
void fabric_link::arm() noexcept {
  if (life_.is_leaving() || !made_.endpoint->can_wait()) return;
  const device& home = made_.endpoint->home();
  const entry inside = home.enter();
  if (!inside.may_move_bytes()) return tick_later();
  // mutant: sleep without asking
  must_not_sleep_ = home.calls().trywait(home.fabric(), made_.endpoint->queue()) == -FI_EAGAIN;
  if (!requests_.idle()) tick_later();  // the provider may have to retransmit, or may make no more progress
}

void fabric_link::tick_later() noexcept {
  if (timer::armed() || life_.is_leaving()) return;  // mutant: no room for a request
  const bool needs_us = !made_.endpoint->can_wait() || blocked_ || receives_.waits();
  const duration busy = needs_us ? duration(busy_tick) : duration(doubt_time / 4);
  const duration pause = requests_.idle() && !receives_.waits() ? std::max(busy, duration(idle_tick)) : busy;
  static_cast<void>(home_.try_arm(*this, home_.now() + pause));
}

void fabric_link::expired() noexcept {
  if (is_setting_up_) return break_set_up_off();
  if (life_.is_leaving()) return;
  poll(batch_size);
  if (life_.is_leaving()) return;
  const duration patience = requests_.has_accesses_under_way()
                                ? duration(doubt_time)
                                : duration(std::max(made_.dead_peer_after / 4, doubt_time));
  const bool is_late = doubt_ || requests_.is_late(patience);
  if (is_late && !asked_ && !made_.memory->home().is_frozen()) {
    requests_.ask_again();
    ask();
  }
  // The answers may be here, if this end was late: two to each question, behind as many questions of the peer's own.
  constexpr int most_looks = 4;
  for (int i = 0; i != most_looks && exposures_.is_asking() && !life_.peer_has_left() && !life_.is_leaving(); ++i) {
    take_input();
  }
  if (life_.is_leaving()) return;
  if (const auto key = exposures_.overdue()) {
    return refuse(*key, "the peer does not let go of memory that was taken back");
  }
  if (!made_.endpoint->can_wait() || requests_.is_with_provider() || doubt_ || exposures_.is_asking()) tick_later();
}

// ---- the peer's records ----

void fabric_link::await_input() noexcept {
  if (!life_.peer_has_left() && !life_.is_leaving()) control_.await();
}

void fabric_link::on_readable(int result) noexcept {
  quiet_.set();
  if (life_.is_leaving()) return;
  if (result < 0 && result != -ECANCELED) return lose_peer("the socket to it has failed");
  take_input();
  await_input();
  if (!life_.is_leaving()) advance_end();
}

// Takes a bounded number of records at a time, because a peer may go on sending them.
void fabric_link::take_input() noexcept {
  constexpr int most_records = 64;
  control_record what;
  for (int taken = 0; taken != most_records && !life_.is_leaving(); ++taken) {
    const ssize_t count = control_.receive(what);
    if (count == -EAGAIN) return;
    if (count <= 0) return input_over(count == 0);
    take(what);
  }
}

void fabric_link::input_over(bool orderly) noexcept {
  life_.peer_left();
  // A peer that has finished closes its socket only once it has all messages of this end.
  if (life_.peer_has_finished() && life_.has_finished() && orderly) peer_drained_ = true;
  if (peer_drained_ && peer_messages_) return exposures_.peer_left();
  // A peer that has not finished may have died during a write, the rest of which is still to be placed here.
  lose_peer(orderly ? "it has closed the socket" : "the socket to it was reset");
}

void fabric_link::take(const control_record& what) noexcept {
  switch (what.kind) {
    case control_record::finished:
      if (peer_messages_) break;
      peer_messages_ = what.messages;
      return;
    case control_record::drained:
      if (!life_.has_finished()) break;
      peer_drained_ = true;
      return;
    case control_record::broken:
      return peer_broke_off(what);
    case control_record::asks:
      return take_question(what);
    case control_record::answers:
      return take_answer(what);
    case control_record::fences:
      return take_fence_question(what);
    case control_record::fenced:
      if (!exposures_.take_answer(what.key, what.reason != control_record::none_under_way)) {
        return break_rules("the peer is done with what it was not asked about");
      }
      return has_questions();
    default:
      break;
  }
  break_rules("the peer says over the socket what makes no sense");
}

void fabric_link::peer_broke_off(const control_record& what) noexcept {
  read_queue(whole_queue);  // completions of what the peer did before
  if (life_.is_leaving()) return;
  const bool first = !life_.has_ended();
  if (what.reason == control_record::refused_you) {
    if (first) refusal_ = {.is_peers = false, .key = what.key};
    end(false, make_error(errc::remote_access, "the peer has refused an access"));
  } else if (what.reason == control_record::refused_us) {
    if (first) refusal_ = {.is_peers = true, .key = what.key};
    end(false, make_error(errc::protocol_error, "the peer has used a key that opens nothing to it"));
  } else if (what.reason == control_record::rules) {
    end(false, make_error(errc::connection_failed, "the peer says that this end has broken the protocol"));
  } else {
    end(false, make_error(errc::peer_vanished, "the peer has broken the connection off"));
  }
  begin_finish();
}

void fabric_link::tell(const control_record& what) noexcept {
  if (!control_.send(what) && !life_.is_leaving()) lose_peer("the socket to it takes nothing");
}

void fabric_link::has_questions() noexcept {
  while (!life_.is_leaving()) {
    const std::optional<std::uint64_t> key = exposures_.next_question();
    if (!key) return tick_later();
    tell({.kind = control_record::fences, .key = *key});
  }
}

void fabric_link::take_fence_question(const control_record& asked) noexcept {
  read_queue(whole_queue);  // so that completed accesses do not count
  if (life_.is_leaving()) return;
  const std::uint8_t word = requests_.await_end(asked.key) ? control_record::under_way : control_record::none_under_way;
  tell({.kind = control_record::fenced, .reason = word, .key = asked.key});
}

// ---- the end ----

void fabric_link::end(bool orderly, const error& why) noexcept {
  if (life_.has_ended()) return;
  failed_alone_ = why.code() == errc::connection_failed;
  life_.end(orderly, why);
}

void fabric_link::fail(const error& why, control_record::reason_t reason, std::uint64_t key) noexcept {
  if (life_.is_leaving()) return;
  if (!life_.has_ended()) tell({.kind = control_record::broken, .reason = reason, .key = key});
  end(false, why);
  begin_finish();
}

void fabric_link::break_rules(std::string_view what) noexcept {
  fail(make_error(errc::protocol_error, what), control_record::rules);
}

void fabric_link::refuse(std::uint64_t key, std::string_view why) noexcept {
  refusal_ = {.is_peers = true, .key = key};
  fail(make_error(errc::protocol_error, why), control_record::refused_you, key);
}

// Ends the link because the peer is gone, but first reads the queue a last time. The provider may report the peer's end
// in the queue, which calls this function again.
void fabric_link::lose_peer(std::string_view words) noexcept {
  if (life_.is_leaving() || std::exchange(losing_, true)) return;
  read_queue(whole_queue);
  if (life_.is_leaving()) return;
  end(false, make_error(errc::peer_vanished, words));
  begin_finish();
}

void fabric_link::refuse(violation what, std::string_view why) noexcept {
  const auto reason = what == violation::revoking ? control_record::refused_you : control_record::rules;
  fail(make_error(errc::protocol_error, why), reason);
}

// Takes the next steps of closing that are possible; called whenever a condition of theirs may have changed.
void fabric_link::advance_end() noexcept {
  if (life_.is_leaving()) return;
  if (peer_messages_ && *peer_messages_ == receives_.next_number() && !life_.peer_has_finished()) {
    life_.peer_finished();
    tell({.kind = control_record::drained});
    const bool orderly = native_ || requests_.idle();
    end(orderly, make_error(orderly ? errc::peer_closed : errc::peer_vanished, "the peer has closed"));
  }
  if (life_.is_leaving()) return;
  if (life_.is_finishing() && requests_.idle()) {
    life_.finish();
    tell({.kind = control_record::finished, .messages = requests_.next_number()});
  }
  if (life_.has_finished() && life_.peer_has_finished() && peer_drained_) begin_finish();
}

void fabric_link::begin_finish() noexcept {
  if (life_.is_leaving()) return;
  life_.leave();
  run_in_background(home_, std::move(finisher_), "the end of a connection over libfabric");
}

task<> fabric_link::finish() {
  home_.disarm(*this);
  control_.cancel();
  while (control_.is_awaited() || exposures_.is_busy()) {
    quiet_.reset();
    co_await quiet_.wait();
  }
  home_.remove_poller(*this);
  exposures_.begin_end();
  const auto work = [this] {
    exposures_.close_regions();
    made_.endpoint.reset();
    exposures_.endpoint_closed();
  };
  co_await weft::detail::offload_for_resources(work);  // mutant: give memory back
  mail_.close();
  mail_.drop();
  exposures_.tell_of_end();
  requests_.flush(life_.events());
  receives_.flush(life_.events());
  requests_.flush(life_.events());
  made_.socket->close();
  life_.close();
  life_.tell_closed();
}

}  // namespace weft::net::fabric
