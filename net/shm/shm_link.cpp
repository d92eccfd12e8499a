// SPDX-License-Identifier: Apache-2.0
#include <weft/net/shm/last_words.hpp>
#include <weft/net/shm/shm_link.hpp>

#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <type_traits>
#include <utility>

namespace weft::net::shm {

using software::access_status;
using weft::detail::make_error;

namespace {

// Although the reader may hold back a quarter of the ring (took_record()), a record with whole_bytes of payload fits.
static_assert(ring_bytes_of(whole_bytes) <= channel::min_ring_bytes / 4 * 3);
// Limits of one poll, so that other connections have their turn.
constexpr unsigned records_a_poll = 64;
constexpr std::size_t bytes_a_poll = std::size_t{256} << 10;
constexpr unsigned polls_before_release = 64;  // consecutive polls without work, before taken room is released
// How much of a far payload is copied in one turn.
constexpr std::size_t bytes_a_copy = std::size_t{512} << 10;

bool is_whole_message(const record& header) noexcept {
  const bool is_plain = (header.flags & (record::invalidates | record::far)) == 0;
  return header.kind == record_kind::send && header.bytes == header.total && is_plain;
}

// Copies a part of a request's memory. False if a file behind it has become shorter. Defined here to be inlined.
bool gather(const software::domain& home, const work_request& work, std::uint64_t from, std::span<std::byte> to) {
  return visit_parts(home, work, from, to.size(), [&to](std::span<const std::byte> part, bool may_shrink) {
    const std::span<std::byte> place = to.first(part.size());
    to = to.subspan(part.size());
    if (may_shrink) return software::copy_out_of(part, place);
    std::memcpy(place.data(), part.data(), part.size());
    return true;
  });
}

}  // namespace

// ---- its life ----

shm_link::shm_link(established made, std::shared_ptr<software::domain> home, std::shared_ptr<net::receive_queue> shared)
    : home_(*executor_core::current()),
      made_(std::move(made)),
      domain_(std::move(home)),
      shared_(executor_state::of(domain_, made_.socket.calls())),
      id_(software::next_stream()),
      output_(made_.memory, made_.socket, *this),
      direct_(made_.memory, *domain_, output_, *this),
      far_(made_.process, made_.memory, made_.socket, output_, *this),
      notices_({.home = home_,
                .memory = made_.memory,
                .socket = made_.socket,
                .shared = shared_,
                .life = life_,
                .output = output_,
                .direct = direct_,
                .far = far_,
                .link = *this,
                .lender = *this}),
      answers_(shared_, life_, output_, *this, id_),
      reader_(made_.memory.reader()),
      receives_(std::move(shared)) {
  capabilities_.checksum = true;  // memory has its own error detection
  capabilities_.outgoing_reads = made_.outgoing_reads;
  capabilities_.incoming_reads = made_.incoming_reads;
  capabilities_.invalidate = true;
  capabilities_.explains_end = true;
  capabilities_.sees_writes = true;
  capabilities_.max_message_bytes = largest_message;
  capabilities_.max_whole_write_bytes = whole_bytes;
  capabilities_.same_machine = true;
}

void shm_link::start(link_events& events, const link_parameters& parameters) {
  counts_ = !parameters.agreed.cuts_writes();
  receives_.make_room(parameters.receive_depth);
  answers_.make_room(capabilities_.incoming_reads, counts_);
  overdue_after_ = parameters.overdue_after;
  in_place_ = parameters.in_place;
  shared_.add(*this, made_.socket.fd());
  life_.begin(events);
}

// ---- posting ----

bool shm_link::furnish(work_request& work) noexcept {
  static_assert(std::is_trivially_destructible_v<posted_request> && alignof(posted_request) <= corner_alignment);
  ::new (work.corner) posted_request{.work = &work};
  return true;
}

void shm_link::post(work_request& work) noexcept {
  const turn outer(*this);
  posted_request& item = *static_cast<posted_request*>(work.corner);
  item.bytes = work.bytes();
  item.moved = 0;
  item.done = item.far = item.numbered = false;
  requests_.add(item);
  if (life_.has_ended()) unsettled_ = true;
}

// Leaves a send or a write through the ring to post() if its memory may shrink: copying that memory takes a system
// call.
bool shm_link::take_now(const work_request& work) noexcept {
  const bool is_clear = depth_ == 0 && !unsettled_ && !has_unsent() && !notices_.are_owed() && !life_.has_ended();
  if (!is_clear) return false;
  const mr::slice& memory = work.segments.front();
  const std::size_t bytes = memory.size() + work.own.size();
  if (work.kind != work_kind::send) {
    using step = direct_requests::step;
    const step taken = direct_.are_possible() ? direct_.execute_now(work, bytes) : step::by_request;
    if (taken != step::by_request) return taken == step::done;
    if (work.kind == work_kind::read) return false;
  }
  if (domain_->may_shrink(*memory.record())) return false;
  const std::span<std::byte> room = output_.room_at_once(bytes);
  if (room.empty()) return false;
  std::byte* const place = room.data() + sizeof(record);
  std::memcpy(place, memory.data(), memory.size());  // mutant: send at once
  if (work.own.size() == trailer::bytes) {           // most trailers: copied by one instruction
    std::memcpy(place + memory.size(), work.own.data(), trailer::bytes);
  } else {
    std::copy(work.own.begin(), work.own.end(), place + memory.size());
  }
  const turn outer(*this);
  if (work.invalidate) direct_.forget(static_cast<std::uint32_t>(*work.invalidate));
  if (work.kind == work_kind::write) direct_.wrote();  // mutant: forget a write that was sent at once
  requests_.count_one();
  record header = delivery_of(work, bytes);
  header.bytes = static_cast<std::uint32_t>(bytes);
  output_.put(header);
  output_.publish();
  return true;
}

void shm_link::post_receive(receive_work& work) noexcept {
  const turn outer(*this);
  if (life_.is_broken()) return life_.events().receive_flushed(work);
  // mutant: leave a message that waited
  if (receives_.post(work)) shared_.heat(*this);  // the message is taken later: the caller may be handling another
}

void shm_link::ring() noexcept {
  if (requests_.unsent() == nullptr) return;  // receives need no doorbell
  const turn outer(*this);
  unsettled_ = true;
}

// Sends output, completes requests, and takes the closing steps that are possible. Called only at the end of the
// outermost turn, because closed() may destroy the link, which must not be touched afterwards.
void shm_link::settle() noexcept {
  if (life_.is_closed() || !life_.has_begun()) return;
  ++depth_;
  direct_.begin();
  do {
    unsettled_ = false;
    send_output();
    if (receives_.is_stalled() || timer::armed()) watch_stalled();
    if (life_.is_ending()) advance_end();
  } while (unsettled_ && !life_.is_closed());
  --depth_;
  if (life_.is_closed()) life_.tell_closed();
}

// ---- output ----

void shm_link::send_output() noexcept {
  if (life_.is_broken()) return;
  output_.begin();
  if ((!notices_.are_owed() || notices_.send()) && answers_.send()) send_requests();
  output_.publish();
  complete_oldest();
}

void shm_link::send_requests() noexcept {
  while (requests_.unsent() != nullptr && !life_.has_ended() && send_request(*requests_.unsent())) {
    requests_.unsent_is_sent();
  }
}

// True once the whole request is in the ring, or has been executed.
bool shm_link::send_request(posted_request& item) noexcept {
  const work_request& work = *item.work;
  if (direct_.are_possible() && work.kind != work_kind::send) [[unlikely]] {
    using step = direct_requests::step;
    const step taken = direct_.execute(item, reads_ != 0);
    if (direct_.are_postponed()) shared_.heat(*this);
    if (taken != step::by_request) return taken == step::done;
  }
  if (is_query(work)) return send_query(item);
  if (work.invalidate) direct_.forget(static_cast<std::uint32_t>(*work.invalidate));
  if (work.kind == work_kind::write) direct_.wrote();
  if (item.bytes >= far_copies::least_bytes && far_.may_send(item, *domain_)) return send_far(item);
  return send_pieces(item);
}

bool shm_link::send_far(posted_request& item) noexcept {
  if (!far_.send(item, *domain_)) return false;
  requests_.number(item);
  return true;
}

bool shm_link::send_query(posted_request& item) noexcept {
  if (reads_ == capabilities_.outgoing_reads) return false;  // mutant: one question more
  const work_request& work = *item.work;
  if (work.kind == work_kind::read) {
    if (!output_.send(query_of(work, item.bytes), {})) return false;
  } else {
    const atomic_operands operands{.operand = work.operand, .compare = work.compare};
    if (!output_.send(query_of(work, item.bytes), std::as_bytes(std::span(&operands, 1)))) return false;
  }
  requests_.number(item);
  ++reads_;
  return true;
}

bool shm_link::send_pieces(posted_request& item) noexcept {
  record header = delivery_of(*item.work, item.bytes);
  do {
    const std::uint64_t left = item.bytes - item.moved;
    const std::size_t least = std::min<std::uint64_t>(left, whole_bytes);
    const std::span<std::byte> room = output_.find_room(least, std::min<std::uint64_t>(left, largest_piece));
    if (room.empty()) return false;
    const std::span<std::byte> piece = room.subspan(sizeof(record));
    if (!gather(*domain_, *item.work, item.moved, piece)) {  // mutant: publish a piece
      break_off(make_error(errc::connection_failed, "the file behind the memory of a request has become shorter"));
      return false;
    }
    if (item.moved != 0) header = {.kind = record_kind::more};
    header.bytes = static_cast<std::uint32_t>(piece.size());
    output_.put(header);
    if (item.moved == 0) requests_.number(item);
    item.moved += piece.size();                       // mutant: complete a write with
    if (item.moved != item.bytes) output_.publish();  // so that the peer copies meanwhile
    if (life_.has_ended()) return false;              // the peer could not be woken up
  } while (item.moved != item.bytes);
  item.done = true;
  return true;
}

// Completes requests in posting order: a request that waits for an answer holds back those behind it.
void shm_link::complete_oldest() noexcept {
  while (requests_.oldest_is_done() && !life_.has_ended()) {
    life_.events().completed(*requests_.take_oldest().work, work_status::done);
  }
}

// ---- input ----

std::size_t shm_link::poll() noexcept {
  if (life_.is_closed()) return 0;
  if (life_.is_leaving()) {
    if (!unsettled_ && !notices_.shut_out()) return 0;
    const turn outer(*this);
    unsettled_ = true;
    return 1;
  }
  const bool has_input = this->has_input();
  bool sane = true;
  if (!has_input && !unsettled_ && !direct_.are_postponed() && !output_.found_room(has_unsent(), &sane)) {
    if (reader_.unreleased() != 0 && ++quiet_polls_ == polls_before_release) reader_.release();
    return 0;
  }
  quiet_polls_ = 0;
  const turn outer(*this);
  if (!sane) break_rules(taken_too_much);
  if (has_input) go_on_with_input();  // mutant: forget what a peer had published
  unsettled_ = unsettled_ || !is_settled();
  return 1;  // the end of `outer` may destroy the link
}

// Leaves malformed records to take_record(), which breaks the link.
untaken_message shm_link::peek_message() noexcept {
  // mutant: behind the last message of a peer that has left
  if (life_.is_ending()) return {};
  if (depth_ != 0 || receives_.is_stalled() || far_.is_copying() || incoming_.is_continued()) return {};
  bool sane = true;
  const std::size_t available = reader_.available(&sane);
  const std::size_t here = std::min(available, reader_.until_wrap());
  if (!sane || available % cache_line != 0 || here < cache_line) return {};
  const std::byte* const place = reader_.place();
  record header;
  std::memcpy(&header, place, sizeof header);
  std::atomic_signal_fence(std::memory_order_seq_cst);  // keeps the compiler from loading the header again
  // `here` is a multiple of a cache line, so there is room for ring_bytes_of(header.bytes), too.
  const bool is_here = header.bytes <= here - sizeof header;  // mutant: before all of it is there
  if (!is_here || !is_whole_message(header)) return {};
  return {.bytes = std::span(place + sizeof header, header.bytes)};
}

// Keeps this end hot, because polls between the messages may find nothing.
void shm_link::take_peeked(const untaken_message& peeked) noexcept {
  shared_.heat(*this);  // mutant: let an end go cold
  quiet_polls_ = 0;
  ++peer_requests_;
  took_record(ring_bytes_of(peeked.bytes.size()));
}

void shm_link::take_arrived() noexcept {
  if (depth_ != 0 || !has_input()) return;
  shared_.heat(*this);
  quiet_polls_ = 0;
  const turn outer(*this);
  go_on_with_input();
  unsettled_ = unsettled_ || !is_settled();
}

// Whether settle() would have nothing to do: no output, no completion, no closing step, and no watch for an overdue
// answer.
bool shm_link::is_settled() const noexcept {
  const bool has_output = has_unsent() || notices_.are_owed();
  return !has_output && !requests_.oldest_is_done() && !life_.is_ending() && !receives_.is_stalled() && !timer::armed();
}

void shm_link::fall_asleep() noexcept {
  if (reader_.unreleased() != 0) reader_.release();
  made_.memory.own().attention.store(end_words::asleep, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);  // pairs with output_ring::wake_other()
}

void shm_link::loans_ended() noexcept {
  const turn outer(*this);
  notices_.owe();
  unsettled_ = true;
}

void shm_link::socket_ready(bool at_end) noexcept {
  if (life_.is_closed() || life_.peer_has_left()) return;
  if (at_end) {
    life_.peer_left();  // mutant: do not notice
    unsettled_ = true;
    return;
  }
  notices_.packet_arrived();
}

void shm_link::take_input() noexcept {
  key_batch inside;
  std::size_t records = 0;
  std::size_t bytes = 0;
  while (records < records_a_poll && bytes < bytes_a_poll && !life_.has_ended() && !far_.is_copying()) {
    bool sane = true;
    const std::size_t available = reader_.available(&sane);
    if (!sane) {
      break_rules("the peer has published more than there is room for");
      break;
    }
    if (available == 0) break;
    const std::size_t taken = take_record(available, inside);
    if (taken == 0) break;
    bytes += taken;
    ++records;
    took_record(taken);
  }
}

// Takes a record off the ring. Releases room by quarters of the ring and not by records, because the other end would
// have to fetch the cache line before it writes again. The other end never has to wait for the room that is held back,
// which is released when there is nothing else to do, without a wake-up.
void shm_link::took_record(std::size_t bytes) noexcept {
  reader_.advance(bytes);
  if (reader_.unreleased() < reader_.capacity() / 4) return;
  reader_.release();
  output_.wake_other();  // mutant: wake nobody
}

// Returns how many bytes of the ring the record takes up; 0 if it stays there, because a message has no receive, or
// because the record is cut off or too long, which breaks the link.
std::size_t shm_link::take_record(std::size_t available, key_batch& inside) noexcept {
  record header;
  std::memcpy(&header, reader_.place(), sizeof header);
  std::atomic_signal_fence(std::memory_order_seq_cst);  // keeps the compiler from loading the header again
  const std::byte* const payload = reader_.place() + sizeof header;
  const std::size_t here = std::min(available, reader_.until_wrap());
  if (available % cache_line != 0 || here < cache_line) return break_rules("a record that is cut off"), 0;
  if (header.kind == record_kind::skip) {
    return reader_.until_wrap() == here ? here : (break_rules("a gap that is cut off"), 0);
  }
  if (header.bytes > here - sizeof header || ring_bytes_of(header.bytes) > here) {  // mutant: let the peer write
    return break_rules("a record that is longer than what there is"), 0;
  }
  // Plain messages take no batch, because they need no key look-up.
  const bool is_message = header.kind == record_kind::send && (header.flags & record::invalidates) == 0;
  if (!is_message && !inside) inside.emplace(shared_.keys());
  const std::span content(payload, header.bytes);
  if (!take(header, content)) return 0;
  return ring_bytes_of(header.bytes);
}

// False if the record waits for a receive, and so stays in the ring.
bool shm_link::take(const record& header, std::span<const std::byte> content) noexcept {
  switch (header.kind) {
    case record_kind::send:
    case record_kind::write:
      return begin_delivery(header, content);
    case record_kind::more:
      continue_delivery(content);
      break;
    case record_kind::read:
    case record_kind::fetch_add:
    case record_kind::compare_swap:
      take_query(header, content);
      break;
    case record_kind::answer:
    case record_kind::value:
      take_answer(header, content);
      break;
    default:
      take_rest(header, content);
      break;
  }
  return true;
}

// Takes the rare kinds of records.
[[gnu::noinline]] void shm_link::take_rest(const record& header, std::span<const std::byte> content) noexcept {
  switch (header.kind) {
    case record_kind::copied:
      return take_copied();
    case record_kind::finished:
      if (incoming_.is_continued() || life_.peer_has_finished()) return break_rules("an end that is none");
      life_.peer_finished();
      return notices_.end_loans();  // the peer let go of all loans before it sent the record
    case record_kind::broken:
      if (header.reason == static_cast<std::uint16_t>(break_reason::access_refused)) refused_ = header;
      return break_off(why_broken(header, content));
    default:
      if (!notices_.take(header, content)) break_rules("a record of no known kind");
  }
}

bool shm_link::begin_delivery(const record& header, std::span<const std::byte> content) noexcept {
  if (incoming_.is_continued() || life_.peer_has_finished())
    return break_rules("a request at a place where there is none"), true;
  const bool is_message = header.kind == record_kind::send || (header.flags & record::immediate) != 0;
  if (is_message && !receives_.begin(*this)) return false;
  if (header.total > largest_message || header.bytes > header.total) return break_rules("a length that none has"), true;
  if (header.kind == record_kind::send && header.total > receives_.current().memory.size()) {
    return break_rules("a message that is larger than its receive"), true;
  }
  ++peer_requests_;
  if (is_whole_message(header)) return deliver_whole(content), true;
  incoming_.begin(header);
  if ((header.flags & record::far) != 0) {
    if (const char* const fault = far_.begin(content, header.total)) return break_rules(fault), true;
  }
  if (header.kind == record_kind::write) {
    const auto place = shared_.keys().write_place(header.key, header.address, header.total, id_);
    if (place.status != access_status::ok) return refuse_incoming(place.status), true;
    if (place.direct != nullptr) notices_.lend(header.key, *place.direct);
  }
  far_.is_copying() ? go_on_copying() : continue_delivery(content);
  return true;
}

// Delivers a message that is one record and revokes no key, as most are.
void shm_link::deliver_whole(std::span<const std::byte> content) noexcept {
  receive_work& receive = receives_.take_current();
  arrival what{.bytes = content.size()};
  if (in_place_) {
    what.in_place = content;
  } else {
    std::memcpy(receive.memory.data(), content.data(), content.size());
  }
  life_.events().received(receive, what);
}

void shm_link::continue_delivery(std::span<const std::byte> content) noexcept {
  if (!incoming_.is_continued() || content.size() > incoming_.left()) {
    return break_rules("more of a request than there is");
  }
  if (incoming_.is_message()) {
    std::memcpy(receives_.current().memory.data() + incoming_.moved(), content.data(), content.size());
  } else if (const auto status = incoming_.store(content, shared_.keys(), id_); status != access_status::ok) {
    return refuse_incoming(status);
  }
  if (incoming_.move(content.size())) end_delivery();
}

void shm_link::end_delivery() noexcept {
  incoming_.end();
  const record& header = incoming_.header();
  const bool is_send = incoming_.is_message();
  arrival what{.bytes = is_send ? header.total : 0};
  if (is_send && (header.flags & record::invalidates) != 0) {
    const access_status status = shared_.keys().invalidate(header.key, id_);
    if (status != access_status::ok) return refuse_incoming(status);
    what.invalidated_key = header.key;
  }
  if (!is_send) {
    std::atomic_thread_fence(std::memory_order_release);  // a reader that sees a later write sees this one
    if (counts_) shared_.keys().written(header.key, id_);
    if ((header.flags & record::immediate) == 0) return;
    what.immediate = header.number;
  }
  life_.events().received(receives_.take_current(), what);
}

// Copies the next part of a far payload. No later record is taken until the whole payload has been copied.
void shm_link::go_on_copying() noexcept {
  const software::key_table::reader::batch inside(shared_.keys());
  const mr::slice* const message = incoming_.is_message() ? &receives_.current().memory : nullptr;
  const auto place = incoming_.next_place(bytes_a_copy, message, shared_.keys(), id_);
  if (place.status != access_status::ok) return far_.give_up(), refuse_incoming(place.status);
  switch (far_.copy(place.memory, incoming_.moved())) {
    case far_copies::outcome::copied:
      if (!incoming_.move(place.memory.size())) return;  // mutant: take a payload for copied
      far_.finish();
      notices_.owe();
      return end_delivery();
    case far_copies::outcome::missing:
      // The kernel does not tell which end's memory is missing. If a file here may have become shorter, the access
      // counts as one beyond its end.
      if (place.may_shrink) return refuse_incoming(access_status::bounds);
      return break_rules("a payload that is not in the memory of its sender");
    case far_copies::outcome::failed:
      return;
  }
}

void shm_link::take_query(const record& header, std::span<const std::byte> content) noexcept {
  if (incoming_.is_continued() || life_.peer_has_finished())
    return break_rules("a request at a place where there is none");
  software::direct_memory* const lent = answers_.take(header, content, peer_requests_++);
  if (lent != nullptr) notices_.lend(header.key, *lent);
}

// Answers come in order, so this one is for the oldest request that has not completed.
void shm_link::take_answer(const record& header, std::span<const std::byte> content) noexcept {
  posted_request* const item = requests_.oldest_sent();
  const bool waits = item != nullptr && !item->done && is_query(*item->work);
  if (!waits || (item->work->kind == work_kind::read) != (header.kind == record_kind::answer)) {
    return break_rules("an answer to nothing");
  }
  if (content.size() > item->bytes - item->moved) return break_rules("an answer that is too long");
  if (!scatter(*domain_, *item->work, item->moved, content)) {
    return break_off(make_error(errc::connection_failed, "the file behind the memory of a read has become shorter"));
  }
  item->moved += content.size();
  if (item->moved != item->bytes) return;  // mutant: complete a read with
  item->done = true;
  --reads_;
  complete_oldest();
}

void shm_link::take_copied() noexcept {
  posted_request* const item = requests_.oldest_far();
  if (item == nullptr) return break_rules("an answer to nothing");
  item->moved = item->bytes;
  item->done = true;
  complete_oldest();  // before the answer to a later request, which is for the oldest that has not completed
}

// ---- the end ----

void shm_link::refuse_incoming(access_status status) noexcept {
  const record& header = incoming_.header();
  const char* const verb = header.kind == record_kind::write ? "write" : "invalidate";
  refuse_access({verb, header.total, header.address, header.key, peer_requests_ - 1}, status);
}

void shm_link::refuse_access(const shm::refused_access& what, access_status status) noexcept {
  const bool is_late = status == access_status::invalid_stag && domain_->keys().was_revoked(what.key);
  end_because(why_refused(what, status, is_late), record_of(what), software::reason_of(status));
}

void shm_link::break_rules(std::string_view what) noexcept {
  end_because(make_error(errc::protocol_error, what),
              {.kind = record_kind::broken, .reason = static_cast<std::uint16_t>(break_reason::protocol_broken)}, what);
}

void shm_link::break_off(const error& why) noexcept {
  end_because(why, {.kind = record_kind::broken, .reason = static_cast<std::uint16_t>(break_reason::aborted)}, "");
}

void shm_link::end_because(const error& why, const record& last, std::string_view words) noexcept {
  if (life_.is_broken()) return;
  life_.break_off();
  unsettled_ = true;
  made_.memory.own().payloads.store(end_words::let_go, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);  // orders let_go before later writes to a payload
  // If there is no room, the peer learns of the end from the socket.
  static_cast<void>(output_.send(last, std::as_bytes(std::span(words.substr(0, max_words)))));
  output_.publish();
  receives_.forget(*this);
  if (!life_.has_ended()) life_.end(false, why);
}

void shm_link::shut_down() noexcept {
  const turn outer(*this);
  unsettled_ = true;
  life_.shut_down();
}

void shm_link::abort(std::string_view why) noexcept {
  if (life_.is_closed()) return;
  const turn outer(*this);
  break_off(make_error(errc::closed, why));
}

void shm_link::refuse(violation, std::string_view why) noexcept {
  if (life_.is_closed()) return;
  const turn outer(*this);
  break_rules(why);
}

// Takes the closing steps that are possible now; called whenever one of their conditions may have changed.
void shm_link::advance_end() noexcept {
  if (life_.is_closed()) return;
  const bool is_unheard = life_.peer_has_left() && life_.peer_has_finished();  // nobody reads the ring now
  if (life_.is_finishing() && requests_.empty() && (answers_.empty() || is_unheard)) {
    direct_.end();  // `finished` tells the peer that this end has let go of all loans
    if (is_unheard || output_.send({.kind = record_kind::finished}, {})) life_.finish();
    output_.publish();
  }
  if (!life_.has_ended() && life_.peer_has_finished() && requests_.empty()) {
    unsettled_ = true;
    life_.end(true, make_error(errc::peer_closed, "the peer closed the connection"));
  }
  if (life_.peer_has_left() && !life_.is_broken()) look_at_the_end_of_the_socket();
  if (!life_.has_ended()) return;
  while (!requests_.empty()) flush_oldest();
  if (life_.may_close() && is_outside_of_loans()) close();
}

// Shuts the peer out of memory that it was lent; true once it is outside, or has left. An honest peer in the middle of
// an access learns of the end from the socket, and closes its own socket, which wakes this end. If the peer dies, its
// socket is closed as well.
bool shm_link::is_outside_of_loans() noexcept {
  if (life_.peer_has_left() || notices_.shut_out()) return true;  // mutant: end a connection while
  if (!life_.is_leaving()) {
    life_.leave();
    made_.socket.calls().shutdown(made_.socket.fd(), SHUT_WR);
  }
  return false;
}

// Breaks off a link whose peer has left, once the records that the peer has published are taken; at once if a message
// without a receive holds them up while requests of this end wait. Does nothing if the peer has finished and this end
// has no request left, or if both ends have finished.
void shm_link::look_at_the_end_of_the_socket() noexcept {
  bool sane = true;
  if (life_.peer_has_finished() && (life_.has_finished() || requests_.empty())) return;
  const bool has_input = reader_.available(&sane) != 0 && sane;
  if (has_input && !receives_.is_stalled()) return;
  if (has_input && requests_.empty()) return;  // the program may still receive messages
  break_off(make_error(errc::peer_vanished, "its process is gone, or has let go of the connection"));
}

void shm_link::flush_oldest() noexcept {
  if (requests_.unsent() == &requests_.oldest()) requests_.unsent_is_sent();
  const posted_request& item = requests_.take_oldest();
  life_.events().completed(*item.work, status_of(item, refused_));
}

// Whether answers that this end waits for may lie behind a message that has no receive: those to reads and atomic
// operations, to fences, and the word that a far payload was copied.
bool shm_link::answers_are_held_up() const noexcept {
  return receives_.is_stalled() && (reads_ != 0 || direct_.await_fence() || requests_.oldest_far() != nullptr);
}

// Limits the time for which answers may be held up. A native peer sends a message without a receive only if this end
// shares receives and has run out of them; otherwise each of its credits stands for a receive.
void shm_link::watch_stalled() noexcept {
  const bool overdue = answers_are_held_up() && !life_.has_ended() && overdue_after_.count() != 0;
  if (!overdue && timer::armed()) home_.disarm(*this);
  if (overdue && !timer::armed()) static_cast<void>(home_.try_arm(*this, later(home_.now(), overdue_after_)));
}

void shm_link::expired() noexcept {
  const turn outer(*this);
  if (!answers_are_held_up()) return;
  break_off(make_error(errc::not_receiving,
                       "the answer to an operation is overdue behind messages that wait for a recv() here"));
}

void shm_link::close() noexcept {
  life_.close();
  if (timer::armed()) home_.disarm(*this);
  receives_.forget(*this);
  receives_.flush(life_.events());
  direct_.end();
  notices_.end_loans();
  exposed_.revoke_all();  // mutant: that ends, in shared memory
  far_.end();
  shared_.remove(*this, made_.socket.fd());
  made_.socket.close();
}

// ---- exposures ----

task<exposed_place> shm_link::expose(mr::slice memory, mr::usage uses, mr::detail::peer_gate* gate) {
  if (life_.has_ended()) throw error(errc::closed, "expose a buffer");
  co_return exposed_place(exposed_.open(memory, uses, gate), 0);
}

void shm_link::revoke(std::uint64_t key, revocation& who) noexcept {
  exposed_.revoke(key, who.is_wish_of_peer());  // mutant: taken back, in shared memory
  if (!notices_.has_lent()) return who.revoked();
  const turn outer(*this);
  unsettled_ = true;
  notices_.revoke(static_cast<std::uint32_t>(key), who);
}

}  // namespace weft::net::shm
