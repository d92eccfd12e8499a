// SPDX-License-Identifier: Apache-2.0
#include <weft/net/verbs/rdma_link.hpp>
#include <weft/net/verbs/words.hpp>
#include <weft/runtime/core/background.hpp>

#include <arpa/inet.h>

#include <cassert>
#include <utility>

namespace weft::net::verbs {

rdma_link::rdma_link(std::unique_ptr<endpoint> established, std::shared_ptr<domain> memory, std::string peer,
                     const agreement& agreed, bool listens_first)
    : home_(*executor_core::current()),
      endpoint_(std::move(established)),
      domain_(std::move(memory)),
      peer_(std::move(peer)),
      listens_first_(listens_first),
      requests_(*endpoint_, *domain_, life_, *this),
      receives_(*endpoint_, *domain_),
      windows_(home_, *endpoint_, *domain_, life_, requests_, *this),
      watch_(*endpoint_, requests_, agreed) {
  const device& home = endpoint_->home();  // mutant: speak first
  capabilities_.checksum = home.traits().has_checksum;
  capabilities_.completes_on_answer = home.traits().completes_on_answer;
  capabilities_.device_flush = endpoint_->has_flush();
  capabilities_.device_atomic_write = endpoint_->has_atomic_write() && agreed.outgoing_reads != 0;
  capabilities_.outgoing_reads = agreed.outgoing_reads;
  capabilities_.incoming_reads = agreed.incoming_reads;
  capabilities_.write_immediate = home.traits().has_write_immediate;  // a standard operation, which any peer takes
  // mutant: promise to revoke
  capabilities_.invalidate = home.traits().has_windows_of_one_peer();
  capabilities_.max_message_bytes = home.max_message_bytes();
  capabilities_.max_parts = endpoint_->max_parts();
  capabilities_.max_read_parts = endpoint_->max_read_parts();
}

rdma_link::~rdma_link() {
  if (endpoint_ != nullptr) endpoint::dispose(std::move(endpoint_));
}

void rdma_link::start(link_events& events, const link_parameters& options) {
  assert(options.send_depth <= endpoint_->requests() && options.receive_depth <= endpoint_->receives());
  requests_.make_room(options.send_depth);
  const native_features& agreed = options.agreed;
  if (capabilities_.device_atomic_write && agreed.persistent_flush && agreed.atomic_write) requests_.write_atomically();
  receives_.make_room(options.receive_depth);
  native_ = options.native;
  delivers_after_end_ = options.delivers_after_end;
  watch_.start(options.landing);
  finisher_ = weft::detail::root_handle<void>(finish());
  requests_.attach(*this);
  life_.begin(events);
  endpoint_->hand_events_to(this);
  // Receives that completed during the set-up are taken over before any later completion, and events are replayed in
  // the next turn, after the receives have been posted.
  endpoint_->queue().ring_later(requests_.tag());
  home_.submit(*this);
}

void rdma_link::run_on_executor() noexcept {
  if (endpoint_ == nullptr || life_.is_leaving()) return;
  take_over();
  endpoint_->replay_events();
  watch_life();
}

void rdma_link::take_over() noexcept {
  if (std::exchange(taken_over_, true)) return;
  endpoint_->hand_receives_to(*this, *this);
}

// ---- posting ----

void rdma_link::post_receive(receive_work& work) noexcept {
  // rxe never flushes a receive that is posted after ERR.
  if (life_.is_broken()) return life_.events().receive_flushed(work);
  if (receives_.post(work)) endpoint_->queue().ring_later(requests_.tag());
}

// Receives first, because the requests may announce them to the peer.
void rdma_link::ring_now() noexcept {
  take_over();
  if (const int result = receives_.hand_over(); result < 0) fail(failure_of_post(-result, "post a receive"));
  if (listens_first_ || windows_.looks_first()) return;
  if (const int result = requests_.hand_over(); result < 0) fail(failure_of_post(-result, "post to the queue pair"));
}

// ---- completions ----

void rdma_link::on_completion(const ibv_wc& what, std::uint32_t detail) noexcept {
  const bool is_receive = (detail & receive_bit) != 0;
  if (what.status == IBV_WC_SUCCESS) is_receive ? watch_.heard() : watch_.heard_of(detail);
  look_at(what, is_receive);
  if (is_receive) {
    receive_completed(what, receives_.completed(detail & (receive_bit - 1)));
  } else {
    requests_.completed(what, detail);
  }
  advance_end();
}

void rdma_link::on_receive(const ibv_wc& what, receive_work& work) noexcept {
  if (what.status == IBV_WC_SUCCESS) watch_.heard();
  look_at(what, true);
  receive_completed(what, work);
  advance_end();
}

void rdma_link::on_drained() noexcept {
  windows_.drained();
  ring_now();
  advance_end();
}

void rdma_link::own_request_ended(std::uint32_t mark, bool done) noexcept {
  mark == keep_alive_mark ? watch_.keep_alive_ended() : windows_.request_ended(mark, done);
}

void rdma_link::look_at(const ibv_wc& what, bool is_receive) noexcept {
  if (what.status == IBV_WC_SUCCESS) {
    if (is_receive && listens_first_) speak();
  } else if (const std::optional<error> kept = endpoint_->failure_of_window()) {
    on_failure(*kept);
  } else if (what.status == IBV_WC_WR_FLUSH_ERR && !life_.has_ended() &&
             endpoint_->home().traits().flushes_before_disconnect_event) {
    end_without_peer("the connection has ended, and the device gives no reason");
    break_off();
  } else if (!life_.is_broken()) {
    failed_alone_ = failed_alone_ || (!life_.has_ended() && what.status == IBV_WC_WR_FLUSH_ERR);
    fail(is_receive ? failure_of_receive(what) : why_failed(what));
  }
}

void rdma_link::speak() noexcept {
  listens_first_ = false;
  endpoint_->queue().ring_later(requests_.tag());
  windows_.wake_waiting();
}

// Why a request has failed. If nobody has answered and the port is still down, the error says so.
error rdma_link::why_failed(const ibv_wc& request) const {
  const error why = failure_of_request(request);
  const bool unheard = why.code() == errc::peer_vanished || why.code() == errc::connection_failed;
  return unheard && watch_.is_port_down() ? watch_.blame_port(why) : why;
}

void rdma_link::receive_completed(const ibv_wc& what, receive_work& work) noexcept {
  if (what.status != IBV_WC_SUCCESS || (life_.has_ended() && !delivers_after_end_))
    return life_.events().receive_flushed(work);
  arrival came;
  if (what.opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
    came.immediate = ntohl(what.imm_data);
  } else {
    came.bytes = what.byte_len;
    if ((what.wc_flags & IBV_WC_WITH_IMM) != 0) came.immediate = ntohl(what.imm_data);
    if ((what.wc_flags & endpoint_->home().traits().invalidated_flags) != 0)
      came.invalidated_key = what.invalidated_rkey;
  }
  if (came.invalidated_key && !life_.is_leaving())
    endpoint_->windows().invalidated(static_cast<std::uint32_t>(*came.invalidated_key));
  life_.events().received(work, came);
}

// ---- the end ----

void rdma_link::end(bool orderly, const error& why) noexcept {
  if (life_.has_ended()) return;
  const bool is_peers = why.code() == errc::protocol_error;  // what a device reports at the target of a refused access
  if (is_peers || why.code() == errc::remote_access) refusal_ = {.is_peers = is_peers};
  failed_alone_ = failed_alone_ || why.code() == errc::connection_failed;
  life_.end(orderly, why);
}

void rdma_link::end_without_peer(std::string_view words) noexcept {
  end(may_end_without_peer(), weft::detail::make_error(errc::peer_vanished, words));
}

void rdma_link::fail(const error& why) noexcept {
  end(false, why);
  break_off();  // mutant: end the requests
  advance_end();
}

void rdma_link::say_goodbye() noexcept {
  if (life_.has_finished()) return;
  life_.finish();
  endpoint_->calls().disconnect(endpoint_->id().get());
}

// Moves the queue pair to ERR even if it is there already, because only another move makes rxe flush what was posted
// since. The peer learns of the end by our disconnect; we need not wait for the peer's.
void rdma_link::break_off() noexcept {
  if (life_.is_broken()) return;
  life_.break_off();
  requests_.break_off();
  receives_.break_off();
  say_goodbye();
  endpoint_->make_broken();
  home_.disarm(*this);
  unwatched_ = !home_.try_arm(*this, home_.now() + linger_time);  // if so, destroying the pair ends what is posted
}

void rdma_link::shut_down() noexcept {
  life_.shut_down();
  advance_end();
}

void rdma_link::peer_finished() noexcept {
  life_.peer_finished();
  advance_end();
}

void rdma_link::abort(std::string_view why) noexcept {
  if (life_.is_leaving()) return;
  fail(weft::detail::make_error(errc::closed, why));
}

void rdma_link::on_failure(const error& why) noexcept {
  if (!life_.is_leaving()) fail(why);
}

void rdma_link::on_cm_event(const cm_event& what) noexcept {
  switch (what.type) {
    case RDMA_CM_EVENT_DISCONNECTED: {
      if (life_.is_leaving() || life_.peer_has_left()) break;
      life_.peer_left();
      endpoint_->drain();  // messages that the peer has sent before
      const bool orderly = may_end_without_peer();
      end_without_peer("the peer has disconnected");
      if (!orderly) break_off();
      break;
    }
    case RDMA_CM_EVENT_DEVICE_REMOVAL:
      on_failure(device_removed(endpoint_->home().name()));
      break;
    default:  // RDMA_CM_EVENT_TIMEWAIT_EXIT, address changes
      break;
  }
  advance_end();
}

// Takes the next steps of closing that are possible; called whenever a condition of theirs may have changed.
void rdma_link::advance_end() noexcept {
  if (life_.is_leaving()) return;
  const bool idle = requests_.idle();
  const bool may_leave = life_.peer_has_finished() || life_.peer_has_left() || !native_ ||
                         !endpoint_->home().traits().disconnect_ends_both_ways;
  if (life_.is_finishing() && idle && may_leave) say_goodbye();
  if (life_.has_ended() && life_.peer_has_left() && !life_.is_broken()) {
    if (life_.has_finished()) {
      break_off();
    } else if (!idle) {
      home_.disarm(*this);
      if (!home_.try_arm(*this, home_.now() + linger_time)) break_off();
    }
  }
  const bool flushed = (!requests_.is_with_device() && !receives_.is_with_device()) || unwatched_;
  if (!life_.is_broken() || !flushed) return;
  life_.leave();
  run_in_background(home_, std::move(finisher_));
}

void rdma_link::expired() noexcept {
  if (life_.is_leaving()) return;
  if (life_.is_broken()) {
    requests_.give_up();  // destroying the queue pair ends the lost requests
    receives_.give_up();
    return advance_end();
  }
  if (life_.peer_has_left()) {
    break_off();
    return advance_end();
  }
  watch_life();
}

void rdma_link::watch_life() noexcept {
  if (life_.is_broken() || life_.peer_has_left() || !watch_.is_on()) return;
  if (const std::optional<error> why = watch_.look(listens_first_ && native_)) return fail(*why);
  home_.disarm(*this);
  if (!home_.try_arm(*this, later(home_.now(), watch_.pause()))) {
    return fail(weft::detail::make_error(errc::no_memory, "arm the timer that watches for signs of life"));
  }
  watch_.ask(listens_first_);
}

task<> rdma_link::finish() {
  home_.disarm(*this);
  completion_queue& queue = endpoint_->queue();
  windows_.give_up_invalidating();
  while (windows_.is_exposing()) co_await windows_.next_exposed();
  queue.detach(requests_.tag());
  co_await endpoint_->destroy();
  requests_.flush();
  receives_.flush(life_.events());
  endpoint_.reset();
  life_.close();
  life_.tell_closed();
}

// ---- exposures ----

// Ignores the gate: without domain_capabilities::gates no disabled memory is exposed.
task<exposed_place> rdma_link::expose(mr::slice memory, mr::usage uses, mr::detail::peer_gate*) {
  return windows_.expose(memory, uses);
}

void rdma_link::revoke(std::uint64_t key, revocation& who) noexcept {
  if (endpoint_ == nullptr) return who.revoked();  // mutant: keep a window
  windows_.revoke(key, who);
}

}  // namespace weft::net::verbs
