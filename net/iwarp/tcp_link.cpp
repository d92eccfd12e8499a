// SPDX-License-Identifier: Apache-2.0
#include <weft/net/iwarp/tcp_link.hpp>
#include <weft/runtime/system/random.hpp>

#include <netinet/in.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <new>

namespace weft::net::iwarp {
namespace {

// Once a turn has received this much from one connection, the rest waits for the next turn, so that other connections
// are served.
constexpr std::size_t input_budget_bytes = 524'288;
// If more of an FPDU than this is still to come, receiving the rest in place costs less than copying it.
constexpr std::size_t place_early_bytes = 8192;
// The most bytes to stage behind a payload that is received in place: its trailer and the next header, so that the next
// payload can be received in place, too.
constexpr std::size_t bytes_ahead = 32;
// The most bytes to stage after such a payload: small messages, and payloads that are too small to be received in
// place.
constexpr std::size_t bytes_between = 16'384;
// The longest time between two checks whether TCP has lost its peer, while a link with outstanding requests waits for a
// receive, and so reads nothing.
constexpr auto longest_unseen = std::chrono::milliseconds(1000);
// After a Terminate: how long the peer may take to read it and close, before this end closes.
constexpr auto linger_time = std::chrono::milliseconds(500);

std::size_t ulpdu_limit(descriptor& socket, bool large_frames) noexcept {
  if (large_frames) return mpa::max_ulpdu_bytes;
  int segment = 0;
  socklen_t length = sizeof segment;
  const int result = socket.calls().getsockopt(socket.fd(), IPPROTO_TCP, TCP_MAXSEG, &segment, &length);
  return mpa::mulpdu(result < 0 || segment <= 0 ? 536 : static_cast<std::size_t>(segment));
}

/// Whether TCP has no connection any more: it has given up, the peer has reset it, or both ends have closed. False if
/// the kernel does not tell.
bool is_lost(descriptor& socket) noexcept {
  tcp_info about{};
  socklen_t length = sizeof about;
  return socket.calls().getsockopt(socket.fd(), IPPROTO_TCP, TCP_INFO, &about, &length) >= 0 &&
         about.tcpi_state == TCP_CLOSE;
}

error why_lost(int number, const char* text) noexcept {
  return detail::make_error(number == ENOMEM ? errc::no_memory : errc::peer_vanished,
                            words::format("TCP: %s", text).view());
}

error to_error(const ending& how) noexcept {
  const std::string_view text = how.text.view();
  switch (how.reason) {
    case ending_reason::peer_closed:
      return detail::make_error(errc::peer_closed, text);
    case ending_reason::connection_lost:
      return detail::make_error(errc::peer_vanished, text);
    case ending_reason::terminated:
      return detail::make_error(how.late_access ? errc::connection_failed : errc::protocol_error, text);
    case ending_reason::peer_terminated:
      return detail::make_error(
          how.code && is_remote_access_error(*how.code) ? errc::remote_access : errc::connection_failed, text);
    case ending_reason::aborted:
      break;
  }
  return detail::make_error(errc::closed, text);
}

std::optional<refused_access> refusal_of(const ending& how) noexcept {
  const bool is_peers = how.reason == ending_reason::terminated && how.refused_stag;
  const bool is_ours = how.reason == ending_reason::peer_terminated && how.code && is_remote_access_error(*how.code);
  if (!is_peers && !is_ours) return std::nullopt;
  return refused_access{.is_peers = is_peers, .key = how.refused_stag};
}

}  // namespace

tcp_link::tcp_link(std::unique_ptr<descriptor> socket, std::string peer, std::shared_ptr<domain> home,
                   const parameters& agreed, bool initiator, std::vector<std::byte> early, net::receive_queue* shared,
                   std::chrono::milliseconds dead_peer_after, bool place_unchecked)
    : home_(*executor_core::current()),
      shared_(executor_state::of(home)),
      domain_(std::move(home)),
      socket_(std::move(socket)),
      peer_(std::move(peer)),
      agreed_(agreed),
      initiator_(initiator),
      place_unchecked_(place_unchecked),
      id_(software::next_stream()),
      queue_(static_cast<receive_queue*>(shared)),
      input_wait_(io_kind::readable, *this, &tcp_link::on_readable),
      send_(io_kind::send, *this, &tcp_link::on_sent),
      window_(home_, *socket_, dead_peer_after) {
  input_wait_.may_be_tried = true;
  send_.message = &send_message_;
  capabilities_.checksum = agreed.crc;
  capabilities_.outgoing_reads = agreed.ord;
  capabilities_.incoming_reads = agreed.ird;
  if (agreed.peer_ord != mpa::not_negotiated) capabilities_.peer_outgoing_reads = agreed.peer_ord;
  if (agreed.peer_ird != mpa::not_negotiated) capabilities_.peer_incoming_reads = agreed.peer_ird;
  capabilities_.invalidate = true;
  capabilities_.explains_end = true;
  capabilities_.sees_writes = true;
  capabilities_.max_message_bytes = engine::max_message_bytes;
  if (early.empty()) return;
  input_ = shared_.lend_staging();
  if (input_ == nullptr) throw std::bad_alloc();
  std::copy(early.begin(), early.end(), input_->room().begin());
  input_->filled(early.size());
}

tcp_link::~tcp_link() {
  if (input_ != nullptr) shared_.give_back(std::move(input_));
  home_.take_back(*this);
}

void tcp_link::start(link_events& events, const link_parameters& options) {
  engine_options engine_choice;
  engine_choice.initiator = initiator_;
  engine_choice.crc = agreed_.crc;
  engine_choice.signal_was_read = initiator_ && agreed_.signal == ready_signal::read;
  engine_choice.signal_is_send = !initiator_ && agreed_.signal == ready_signal::send;
  engine_choice.interleave = options.agreed.large_frames;
  engine_choice.max_ulpdu = ulpdu_limit(*socket_, options.agreed.large_frames);
  engine_choice.half_close = !options.native;
  engine_choice.in_place = options.in_place;
  engine_choice.atomics = options.agreed.atomics;
  engine_choice.immediate = options.agreed.immediate;
  engine_choice.ird = std::max<std::uint32_t>(agreed_.ird, 1);
  engine_choice.ord = agreed_.ord;
  if (!agreed_.crc || place_unchecked_) engine_choice.place_early_bytes = place_early_bytes;
  // Peers other than weft may cut their writes anywhere, even in the middle of a word.
  if (options.native)
    capabilities_.max_whole_write_bytes =
        std::min<std::uint64_t>(engine_choice.place_early_bytes, engine::max_message_bytes);
  engine_choice.sink_stag_seed = weft::detail::draw<std::uint32_t>(socket_->calls());
  engine_ = std::make_unique<engine>(static_cast<engine_host&>(*this), engine_choice);
  receives_ = std::make_unique<posted_receive[]>(queue_ != nullptr ? 1 : options.receive_depth);
  life_.begin(events);
  counts_ = !options.agreed.cuts_writes();
  overdue_after_ = options.overdue_after;
  large_frames_ = options.agreed.large_frames;
  resuming_ = true;  // once the receives are posted, run_late() handles the early bytes and begins to wait for more
  settle_later();
}

// ---- posting ----

bool tcp_link::furnish(work_request& work) noexcept {
  static_assert(std::is_trivially_destructible_v<posted_request> && alignof(posted_request) <= corner_alignment);
  ::new (work.corner) posted_request(work);
  return true;
}

void tcp_link::describe(const work_request& work, request& item) noexcept {
  switch (work.kind) {
    case work_kind::send:
      item.kind = work.invalidate ? request_kind::send_with_invalidate : request_kind::send;
      break;
    case work_kind::write:
      item.kind = request_kind::write;
      break;
    case work_kind::read:
      item.kind = request_kind::read;
      break;
    case work_kind::fetch_add:
      item.kind = request_kind::fetch_add;
      break;
    case work_kind::compare_swap:
      item.kind = request_kind::compare_swap;
      break;
    case work_kind::flush:  // without capabilities::device_flush there are none
      break;
  }
  item.local = work.segments;
  item.tail = work.own;
  item.immediate = work.immediate;
  item.stag = static_cast<std::uint32_t>(work.invalidate.value_or(work.remote_key));
  item.offset = work.remote_address;
  item.operand = work.operand;
  item.compare = work.compare;
}

void tcp_link::post(work_request& work) noexcept {
  posted_request& item = *static_cast<posted_request*>(work.corner);
  describe(work, item);
  const bool accepted = engine_->post(item);
  assert(accepted && "the connection checks sizes and reads before it posts");
  static_cast<void>(accepted);
}

// Adds the request to the batch of the next sendmsg, which also carries all else that is sent in this turn.
bool tcp_link::take_now(const work_request& work) noexcept {
  if (work.kind == work_kind::write && work.immediate) return false;
  const std::size_t bytes = work.segments.front().size() + trailer::max_bytes;
  if (send_.in_progress() || life_.is_ending() || !engine_->may_take_now(output_.get(), bytes)) return false;
  if (output_ == nullptr) output_ = shared_.lend_batch();
  if (output_ == nullptr) return false;
  request item;
  describe(work, item);
  engine_->take_now(*output_, item);
  settle_later();
  return true;
}

void tcp_link::post_receive(receive_work& work) noexcept {
  posted_receive& item = receives_[queue_ != nullptr ? 0 : work.slot];
  item.work = &work;
  item.buffer = work.memory.bytes();
  const bool stalled = engine_->needs_receive();
  engine_->post_receive(item);
  // mutant: lose the wake-up of a connection
  if (!stalled) return;
  resuming_ = true;  // run_late() resumes the input, because the caller may be in the middle of handling a message
  settle_later();
}

// Does what calls and events have put off: resumes the input, sends what was posted, by one sendmsg for many requests,
// and takes the steps of closing. tell_closed() may destroy the link, so nothing of it is touched afterwards.
// Flattened, with rare cases kept out of line.
[[gnu::flatten]] void tcp_link::run_late() noexcept {
  if (life_.is_closed()) return;
  if (std::exchange(resuming_, false)) [[unlikely]]
    resume_input();
  send_output();
  watch_stalled();
  advance_end();
  if (life_.is_closed()) life_.tell_closed();
}

// ---- input ----

[[gnu::noinline]] void tcp_link::resume_input() noexcept {
  feed_engine();
  await_more_input();
}

void tcp_link::await_input() noexcept {
  if (input_wait_.in_progress() || life_.peer_has_finished() || life_.is_broken() || life_.is_closed()) return;
  home_.io().start(input_wait_);
}

[[gnu::flatten]] void tcp_link::on_readable(int result) noexcept {
  if (result >= 0 && !life_.is_broken() && !take_input()) return;
  settle_later();
  if (result < 0 && result != -ECANCELED && !life_.is_broken()) connection_lost(-result);
}

// Receives what has arrived. False if nothing has arrived, and so there is nothing to settle; this is usual while the
// executor spins.
bool tcp_link::take_input() noexcept {
  intake last = receive_once();
  if (last.kind == intake::nothing) {
    await_more_input();
    return false;
  }
  for (std::size_t taken = last.bytes; last.kind == intake::all_that_fits && !engine_->needs_receive();) {
    if (taken >= input_budget_bytes) break;
    last = receive_once();
    taken += last.bytes;
  }
  await_more_input();
  return true;
}

void tcp_link::await_more_input() noexcept {
  if (input_ != nullptr && input_->empty()) shared_.give_back(std::move(input_));
  if (!engine_->needs_receive()) await_input();
}

// Makes one recvmsg, and feeds the engine. Returns last_words if no more will come, because the stream has ended or
// failed, or because there is no memory for a staging area, which ends the connection.
tcp_link::intake tcp_link::receive_once() noexcept {
  if (life_.peer_has_finished()) return {intake::last_words, 0};
  if (input_ == nullptr) input_ = shared_.lend_staging();
  if (input_ == nullptr) {
    connection_lost(ENOMEM);
    return {intake::last_words, 0};
  }
  if (engine_->may_place()) return receive_in_place();
  const std::span<std::byte> room = input_->room().first(staging_room(false));
  iovec where{room.data(), room.size()};
  return receive_into({&where, 1}, 0, room.size());
}

tcp_link::intake tcp_link::receive_in_place() noexcept {
  const key_table::reader::batch inside(shared_.keys());  // the placement may lie in a region
  const std::span<std::byte> placement = engine_->placement();
  const std::span<std::byte> room = input_->room().first(staging_room(!placement.empty()));
  std::array<iovec, 2> where{{{placement.data(), placement.size()}, {room.data(), room.size()}}};
  return receive_into(where, placement.size(), placement.size() + room.size());
}

// Makes one recvmsg into `where`, which has room for `bytes`; the first `placement_bytes` of them are the engine's
// placement.
tcp_link::intake tcp_link::receive_into(std::span<iovec> where, std::size_t placement_bytes,
                                        std::size_t bytes) noexcept {
  msghdr message{};
  message.msg_iov = where.data();
  message.msg_iovlen = where.size();
  const ssize_t result = home_.io().try_receive(*socket_, message);
  if (result == -EAGAIN || result == -EINTR) return {intake::nothing, 0};
  if (result <= 0) [[unlikely]] {
    input_failed(static_cast<int>(-result));
    return {intake::last_words, 0};
  }
  const auto received = static_cast<std::size_t>(result);
  const std::size_t placed = std::min(received, placement_bytes);
  engine_->placed(placed);
  input_->filled(received - placed);  // mutant: take bytes in place
  feed_engine();
  return {received == bytes ? intake::all_that_fits : intake::all_there_was, received};
}

// Handles a receive that got no bytes: `number` is its errno, or 0 at the end of the stream.
[[gnu::noinline]] void tcp_link::input_failed(int number) noexcept {
  if (number != 0) return connection_lost(number);
  if (send_.in_progress() && is_lost(*socket_)) return;  // the send will report the reason
  life_.peer_finished();
  feed_engine();
  if (send_failure_ == 0 && window_.has_given_up()) send_failure_ = ETIMEDOUT;
  if (send_failure_ != 0) {
    connection_lost(send_failure_);
  } else {
    engine_->end_of_stream(input_->content().size());
  }
}

// Returns how much of the staging area to fill: little while large payloads follow each other, so that they stay in the
// socket until their header has been read.
std::size_t tcp_link::staging_room(bool in_place) noexcept {
  const bool was_in_bulk = std::exchange(in_bulk_, in_place);
  const std::size_t room = input_->room().size();
  if (in_place) return std::min(room, bytes_ahead);
  return was_in_bulk ? std::min(room, bytes_between) : room;
}

void tcp_link::feed_engine() noexcept {
  if (input_ == nullptr || input_->empty()) return;
  const key_table::reader::batch inside(shared_.keys());
  input_->consumed(engine_->consume(input_->content()));
}

// Receives what the peer had sent before a send of this end failed: a Terminate or a close message may give the reason.
[[gnu::noinline]] void tcp_link::read_last_words() noexcept {
  while (!life_.is_broken() && !engine_->needs_receive() && receive_once().kind == intake::all_that_fits) {
  }
}

[[gnu::noinline]] void tcp_link::connection_lost(int number) noexcept {
  life_.peer_finished();
  life_.break_off();  // even if the stream has ended already, and only its last output was in flight
  std::array<char, 128> room{};
  const char* const text = ::strerror_r(number, room.data(), room.size());
  if (!life_.has_ended()) lost_ = why_lost(number, text);
  engine_->abort(words::format("TCP: %s", text));
}

// ---- output ----

void tcp_link::send_output() noexcept {
  if (send_.in_progress() || life_.is_closed() || life_.has_finished() || life_.is_broken()) return;
  if (output_ == nullptr) {
    if (!engine_->has_output()) return;
    output_ = shared_.lend_batch();
    if (output_ == nullptr) return connection_lost(ENOMEM);
  }
  if (output_->empty()) {
    // TCP's segments shrink when the path's MTU does, and grow again: RFC 5044 section 4.5.
    if (!large_frames_) engine_->limit_ulpdu(ulpdu_limit(*socket_, false));
    if (!gather_output()) return shared_.give_back(std::move(output_));
  }
  start_send();
}

bool tcp_link::gather_output() noexcept {
  if (!engine_->owes_responses()) return engine_->gather(*output_);
  const key_table::reader::batch inside(shared_.keys());  // responses are copied out of regions
  return engine_->gather(*output_);
}

void tcp_link::start_send() noexcept {
  const std::span<iovec> pending = output_->pending();
  send_message_.msg_iov = pending.data();
  send_message_.msg_iovlen = pending.size();
  window_.sending();
  const int result = home_.io().try_now(send_);
  if (result == -EAGAIN) return home_.io().start(send_);
  end_send(result);
  if (output_ != nullptr) settle_later();
}

void tcp_link::on_sent(int result) noexcept {
  settle_later();
  end_send(result);
}

void tcp_link::end_send(int result) noexcept {
  if (result >= 0) {
    engine_->sent(*output_, static_cast<std::size_t>(result));
  } else if (result != -EINTR && result != -EAGAIN && result != -ECANCELED) {
    // The kernel reports a loss only once; later sends fail with EPIPE, as if the peer had closed. has_given_up() tells
    // the two apart.
    const int number = result == -EPIPE && window_.has_given_up() ? ETIMEDOUT : -result;
    if (number != EPIPE && number != ECONNRESET) send_failure_ = number;
    read_last_words();
    connection_lost(number);
  }
  if (life_.is_broken() && !output_->empty()) engine_->abandon(*output_);
  if (output_->empty() && (!engine_->has_output() || life_.is_broken())) shared_.give_back(std::move(output_));
}

// ---- engine_host ----

write_target tcp_link::find_write_target(std::uint32_t stag, std::uint64_t offset, std::size_t bytes) noexcept {
  const auto place = shared_.keys().write_place(stag, offset, bytes, id_);
  return {.status = place.status,
          .memory = std::span(place.data, place.size),
          .may_shrink = place.may_shrink,
          .words = place.words};
}

void tcp_link::written(std::uint32_t stag) noexcept {
  if (counts_) shared_.keys().written(stag, id_);
}

access_status tcp_link::remote_read(std::uint32_t stag, std::uint64_t offset, std::span<std::byte> out) noexcept {
  return shared_.keys().read(stag, offset, out, id_);
}

access_status tcp_link::check_read(std::uint32_t stag, std::uint64_t offset, std::uint32_t bytes) noexcept {
  return shared_.keys().check_read(stag, offset, bytes, id_);
}

access_status tcp_link::remote_atomic(const atomic_request& asked, std::uint64_t& previous) noexcept {
  return shared_.keys().atomic(asked, previous, id_, counts_);
}

access_status tcp_link::check_atomic(std::uint32_t stag, std::uint64_t offset) noexcept {
  return shared_.keys().check_atomic(stag, offset, id_);
}

void tcp_link::completed(request& item, const completion& how) noexcept {
  work_status status = work_status::done;
  if (how.status == completion_status::flushed) status = work_status::flushed;
  if (how.status == completion_status::remote_access_error) status = work_status::access_denied;
  if (how.status == completion_status::bystander) status = work_status::bystander;
  life_.events().completed(static_cast<posted_request&>(item).work, status);
}

void tcp_link::received(receive_request& item, const received_info& info) noexcept {
  life_.events().received(*static_cast<posted_receive&>(item).work, {.bytes = info.bytes,
                                                                     .invalidated_key = info.invalidated_stag,
                                                                     .immediate = info.immediate,
                                                                     .in_place = info.in_place});
}

receive_request* tcp_link::take_receive() noexcept {
  receive_work* const work = queue_ != nullptr ? queue_->take(*this) : nullptr;
  if (work == nullptr) return nullptr;
  receives_[0].work = work;
  receives_[0].buffer = work->memory.bytes();
  return &receives_[0];
}

void tcp_link::flushed(receive_request& item) noexcept {
  life_.events().receive_flushed(*static_cast<posted_receive&>(item).work);
}

void tcp_link::ended(const ending& how) noexcept {
  settle_later();
  if (queue_ != nullptr) queue_->forget(*this);  // mutant: hand a shared receive
  if (timer::armed()) home_.disarm(*this);
  // There is no orderly end with the peer any more, so do not wait for output in flight.
  if (how.reason == ending_reason::connection_lost || how.reason == ending_reason::aborted) life_.break_off();
  refusal_ = lost_ ? std::nullopt : refusal_of(how);
  // A framing error may be damage as well, because the length of an FPDU is used before its CRC has come.
  const bool is_damage = how.code == cause::crc_mismatch || (agreed_.crc && how.code == cause::framing);
  was_damaged_ = is_damage;  // mutant: blame the peer for damage on the way
  life_.end(how.reason == ending_reason::peer_closed, lost_ ? *lost_ : to_error(how));
}

// ---- the end ----

void tcp_link::shut_down() noexcept {
  settle_later();
  life_.shut_down();
}

void tcp_link::abort(std::string_view why) noexcept {
  if (life_.is_closed()) return;
  settle_later();
  life_.break_off();
  engine_->abort(words::format("%.*s", static_cast<int>(why.size()), why.data()));
}

namespace {

terminate_code cause_of(link::violation what) noexcept {
  switch (what) {
    case link::violation::too_long:
      return cause::untagged_too_long;
    case link::violation::revoking:
      return cause::cannot_invalidate;
    case link::violation::other:
      break;
  }
  return cause::stream_catastrophic;
}

}  // namespace

void tcp_link::refuse(violation what, std::string_view why) noexcept {
  if (life_.is_closed()) return;
  settle_later();
  engine_->refuse(cause_of(what), words::format("%.*s", static_cast<int>(why.size()), why.data()));
}

// Takes the steps of closing that are possible now. Called whenever one of their conditions may have changed.
void tcp_link::advance_end() noexcept {
  if (life_.is_closed()) return;
  const bool all_sent = output_ == nullptr && !engine_->has_output();
  if (!life_.is_broken() && all_sent && !life_.has_finished() && (life_.is_shut_down() || life_.has_ended())) {
    life_.finish();
    socket_->calls().shutdown(socket_->fd(), SHUT_WR);  // mutant: forget to say
    engine_->end_of_output();
  }
  if (!life_.has_ended()) return;
  if (life_.may_close()) return stop_io();
  // This end has sent a Terminate, or received one. Closing with unread input would reset TCP, and the peer might never
  // see why: let the peer close first.
  if (!timer::armed() && !home_.try_arm(*this, home_.now() + linger_time)) stop_io();
}

// Arms a timer while requests of this end are outstanding and a message waits for a receive, because the responses to
// the requests, and the news of the peer's death, may lie behind that message. A native peer sends such a message only
// if this end shares receives and has run out of them; otherwise each of its credits stands for a posted receive. A
// peer without credits may send such a message at any time.
void tcp_link::watch_stalled() noexcept {
  if (life_.has_ended()) return;
  const bool stalled = engine_->needs_receive() && engine_->has_requests();
  if (!stalled && timer::armed()) home_.disarm(*this);
  if (!stalled || engine_->reads_in_flight() == 0) reads_held_back_.reset();
  if (!stalled) return;
  if (engine_->reads_in_flight() != 0 && !reads_held_back_) reads_held_back_ = home_.now();
  if (timer::armed()) return;
  const bool in_less = overdue_after_.count() != 0 && overdue_after_ < longest_unseen;
  // If there is no memory for the timer, the next event arms it.
  static_cast<void>(home_.try_arm(*this, home_.now() + (in_less ? overdue_after_ : longest_unseen)));
}

void tcp_link::look_at_stalled() noexcept {
  if (is_lost(*socket_)) {
    int number = 0;
    socklen_t length = sizeof number;
    const int result = socket_->calls().getsockopt(socket_->fd(), SOL_SOCKET, SO_ERROR, &number, &length);
    return connection_lost(result < 0 || number == 0 ? ECONNRESET : number);
  }
  if (overdue_after_.count() == 0 || !reads_held_back_) return;
  if (home_.now() < later(*reads_held_back_, overdue_after_)) return;
  lost_ = detail::make_error(errc::not_receiving,
                             "the answer to a read is overdue behind messages that wait for a recv() here");
  engine_->abort(words::format("the answer to a read is overdue"));
}

void tcp_link::expired() noexcept {
  settle_later();
  if (!life_.has_ended()) return look_at_stalled();
  life_.peer_finished();
  if (!life_.has_finished()) life_.break_off();  // the peer does not even take our last output
}

// Closes the link, or if I/O is in progress, cancels that; the end of the last operation then leads here again.
[[gnu::noinline]] void tcp_link::stop_io() noexcept {
  if (input_wait_.in_progress()) home_.io().cancel(input_wait_);
  if (send_.in_progress()) home_.io().cancel(send_);
  if (input_wait_.in_progress() || send_.in_progress()) return;
  if (output_ != nullptr) {
    engine_->abandon(*output_);
    shared_.give_back(std::move(output_));
  }
  finish();
}

void tcp_link::finish() noexcept {
  life_.close();
  home_.disarm(*this);
  window_.stop();
  if (life_.is_broken()) {
    const linger reset{.l_onoff = 1, .l_linger = 0};  // a RST tells the peer at once
    socket_->calls().setsockopt(socket_->fd(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
  }
  exposed_.revoke_all();  // mutant: leave the keys of a connection that ends
  if (input_ != nullptr) shared_.give_back(std::move(input_));
  socket_->close();
}

// ---- exposures ----

task<exposed_place> tcp_link::expose(mr::slice memory, mr::usage uses, mr::detail::peer_gate* gate) {
  if (life_.is_closed()) throw error(errc::closed, "expose a buffer");
  co_return exposed_place(exposed_.open(memory, uses, gate), 0);
}

void tcp_link::revoke(std::uint64_t key, revocation& who) noexcept {
  exposed_.revoke(key, who.is_wish_of_peer());  // mutant: leave a key that was taken back
  who.revoked();
}

}  // namespace weft::net::iwarp
