// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/shared_words.hpp>
#include <weft/net/shm/packets.hpp>
#include <weft/net/shm/shm_link.hpp>
#include <weft/net/software/kernel_copy.hpp>
#include <weft/net/software/words.hpp>

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cassert>
#include <cerrno>
#include <cinttypes>
#include <cstring>
#include <new>
#include <type_traits>
#include <utility>

namespace weft::net::shm {

using software::access_status;
using software::words;
using weft::detail::make_error;

namespace {

constexpr std::uint64_t largest_message = std::uint64_t{1} << 30;
// Writes up to this size are in one record, so that each word in them is stored once.
constexpr std::size_t whole_bytes = 8192;
constexpr std::size_t largest_piece = std::size_t{32} << 10;
// Although the reader may hold back a quarter of the ring (take_input()), there is room for any such record.
static_assert(ring_bytes_of(whole_bytes) <= channel::min_ring_bytes / 4 * 3);
// Limits of one poll, so that other connections have their turn.
constexpr unsigned records_a_poll = 64;
constexpr std::size_t bytes_a_poll = std::size_t{256} << 10;
constexpr unsigned polls_before_release = 64;
// The smallest buffer that a socket can have holds six packets.
constexpr unsigned wake_ups_unread = 4;
// An honest peer has sent a few packets before an offer's file. One that goes on sending must not keep this end busy.
constexpr unsigned packets_before_a_file = 256;
// Payloads from this size on are copied by the receiver out of the sender's memory; for smaller ones the system call
// costs more than the second copy. And how many bytes are copied in one turn.
constexpr std::uint64_t least_far = std::uint64_t{128} << 10;
constexpr std::size_t bytes_a_copy = std::size_t{512} << 10;
// How many bytes of one request a turn moves to or from memory that the peer has lent.
constexpr std::size_t bytes_a_visit = std::size_t{256} << 10;
constexpr std::string_view taken_too_much = "the peer's read position is beyond what was written";

std::uint64_t bytes_of(const work_request& work) noexcept {
  std::uint64_t sum = work.own.size();
  for (const mr::slice& segment : work.segments) sum += segment.size();
  return sum;
}

// Calls visit(memory, may_shrink) for the parts of a request's memory that hold `bytes` bytes from offset `from` on.
// Returns false as soon as visit() does.
template <class Visit>
bool visit_parts(const software::domain& home, const work_request& work, std::uint64_t from, std::uint64_t bytes,
                 const Visit& visit) {
  const auto part = [&](std::span<std::byte> memory, bool may_shrink) {
    const std::uint64_t skipped = std::min<std::uint64_t>(from, memory.size());
    from -= skipped;
    memory = memory.subspan(skipped);
    memory = memory.first(std::min<std::uint64_t>(bytes, memory.size()));
    bytes -= memory.size();
    return memory.empty() || visit(memory, may_shrink);
  };
  for (const mr::slice& segment : work.segments) {
    if (!part(segment.bytes(), home.may_shrink(*segment.record()))) return false;
  }
  return part(work.own, false);
}

// False if a file behind the memory has become shorter.
bool gather(const software::domain& home, const work_request& work, std::uint64_t from, std::span<std::byte> to) {
  return visit_parts(home, work, from, to.size(), [&to](std::span<const std::byte> part, bool may_shrink) {
    const std::span<std::byte> place = to.first(part.size());
    to = to.subspan(part.size());
    if (may_shrink) return software::copy_out_of(part, place);
    std::memcpy(place.data(), part.data(), part.size());
    return true;
  });
}

bool scatter(const software::domain& home, const work_request& work, std::uint64_t from,
             std::span<const std::byte> what) {
  return visit_parts(home, work, from, what.size(), [&what](std::span<std::byte> part, bool may_shrink) {
    const std::span<const std::byte> source = what.first(part.size());
    what = what.subspan(part.size());
    if (may_shrink) return software::copy_into(part, source);
    std::memcpy(part.data(), source.data(), part.size());
    return true;
  });
}

// Copies between a request's memory, from offset `from` on, and the peer's memory at `place`; `by_words`: word by word,
// as a write that is whole in a record is stored.
bool copy_directly(const software::domain& home, const work_request& work, std::uint64_t from,
                   std::span<std::byte> place, bool by_words) {
  const bool reads = work.kind == work_kind::read;
  const auto copy = [&](std::span<std::byte> part, bool may_shrink) {
    const std::span<std::byte> there = place.first(part.size());
    place = place.subspan(part.size());
    if (may_shrink) return reads ? software::copy_into(part, there) : software::copy_out_of(part, there);
    if (!by_words) {
      std::memcpy(reads ? part.data() : there.data(), reads ? there.data() : part.data(), part.size());
    } else if (reads) {
      mr::load_shared(there, part);
    } else {
      mr::store_shared(there, part);
    }
    return true;
  };
  return visit_parts(home, work, from, place.size(), copy);
}

void change_directly(const work_request& work, std::byte* place) noexcept {
  const std::atomic_ref<std::uint64_t> word(*reinterpret_cast<std::uint64_t*>(place));
  std::uint64_t previous = work.compare;
  if (work.kind == work_kind::fetch_add) {
    previous = word.fetch_add(work.operand);
  } else {
    word.compare_exchange_strong(previous, work.operand);
  }
  std::memcpy(work.own.data(), &previous, sizeof previous);
}

bool is_query(const work_request& work) noexcept {
  return work.kind != work_kind::send && work.kind != work_kind::write;
}

record_kind record_of(work_kind kind) noexcept {
  switch (kind) {
    case work_kind::send:
      return record_kind::send;
    case work_kind::write:
      return record_kind::write;
    case work_kind::read:
      return record_kind::read;
    case work_kind::fetch_add:
      return record_kind::fetch_add;
    case work_kind::compare_swap:
      break;
  }
  return record_kind::compare_swap;
}

}  // namespace

std::unique_ptr<net::link> make_link(established made, std::shared_ptr<software::domain> home,
                                     std::shared_ptr<net::receive_queue> receives) {
  return std::make_unique<shm_link>(std::move(made), std::move(home), std::move(receives));
}

// ---- its life ----

shm_link::shm_link(established made, std::shared_ptr<software::domain> home, std::shared_ptr<net::receive_queue> shared)
    : home_(*executor_core::current()),
      made_(std::move(made)),
      domain_(std::move(home)),
      shared_(executor_state::of(domain_, made_.socket.calls())),
      queue_(std::move(shared)),
      id_(software::next_stream()),
      writer_(made_.memory.writer()),
      reader_(made_.memory.reader()) {
  capabilities_.checksum = true;  // memory has its own error detection
  capabilities_.outgoing_reads = made_.outgoing_reads;
  capabilities_.incoming_reads = made_.incoming_reads;
  capabilities_.invalidate = true;
  capabilities_.solicited = true;
  capabilities_.explains_end = true;
  capabilities_.sees_writes = true;
  capabilities_.max_message_bytes = largest_message;
  capabilities_.max_whole_write_bytes = whole_bytes;
  capabilities_.same_machine = true;
}

void shm_link::start(link_events& events, const link_parameters& parameters) {
  receives_.resize(queue_ != nullptr ? 1 : parameters.receive_depth);
  answers_.resize(std::max<std::size_t>(capabilities_.incoming_reads, 1));
  counts_ = !parameters.agreed.cuts_writes();
  overdue_after_ = parameters.overdue_after;
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
  item.next = nullptr;
  item.bytes = bytes_of(work);
  item.moved = 0;
  item.number = requests_++;
  item.done = item.far = false;
  (first_ != nullptr ? last_->next : first_) = &item;
  last_ = &item;
  if (unsent_ == nullptr) unsent_ = &item;
  if (life_.has_ended()) unsettled_ = true;
}

void shm_link::post_receive(receive_work& work) noexcept {
  const turn outer(*this);
  if (life_.is_broken()) return life_.events().receive_flushed(work);
  const std::size_t place = (receives_begin_ + receives_count_++) % receives_.size();
  receives_[place] = &work;
  // defect: leave a message that waited
  if (std::exchange(stalled_, false)) shared_.heat(*this);  // not at once, because the caller may be handling a message
}

void shm_link::ring() noexcept {
  if (unsent_ == nullptr) return;  // receives need no doorbell
  const turn outer(*this);
  unsettled_ = true;
}

// Called at the end of the outermost turn only, because closed() may destroy the link, and nothing of it is touched
// afterwards.
void shm_link::settle() noexcept {
  if (life_.is_closed() || !life_.has_begun()) return;
  ++depth_;
  do {
    unsettled_ = false;
    send_output();
    if (stalled_ || timer::armed()) watch_stalled();
    if (life_.is_ending()) advance_end();
  } while (unsettled_ && !life_.is_closed());
  --depth_;
  if (life_.is_closed()) life_.tell_closed();
}

// ---- output ----

void shm_link::send_output() noexcept {
  if (life_.is_broken()) return;
  blocked_room_.reset();
  postponed_ = false;
  if ((!owes_ || send_notices()) && send_answers()) send_requests();
  publish();
  complete_oldest();
}

// Contiguous room for a record: its header, and a payload of at least `least` and at most `most` bytes. Empty if there
// is not enough room yet.
std::span<std::byte> shm_link::find_room(std::size_t least, std::size_t most) noexcept {
  bool sane = true;
  if (!reserved_) {
    reserved_ = made_.memory.reserve_writer();
    if (!reserved_) {
      break_off(make_error(errc::no_memory, "there are no pages for the ring"));
      return {};
    }
  }
  const std::size_t until_wrap = writer_.until_wrap();
  const std::size_t wanted = ring_bytes_of(least) + (until_wrap < ring_bytes_of(least) ? until_wrap : 0);
  std::size_t room = writer_.room(&sane);  // defect: count one line more
  if (!sane) {
    break_rules(taken_too_much);
    return {};
  }
  if (room < wanted) blocked_room_ = room;
  if (until_wrap < ring_bytes_of(least)) {
    if (room < until_wrap) return {};
    const record skip{.kind = record_kind::skip};
    std::memcpy(writer_.place(), &skip, sizeof skip);  // defect: go on at the beginning of the ring
    writer_.advance(until_wrap);
    room -= until_wrap;
    if (room < ring_bytes_of(least)) blocked_room_ = room;
  }
  if (room < ring_bytes_of(least)) return {};
  const std::size_t in_one_piece = std::min(room, writer_.until_wrap());
  return {writer_.place(), sizeof(record) + std::min(most, in_one_piece - sizeof(record))};
}

// Writes the header in front of a payload that is already in the room from find_room().
void shm_link::put(const record& header) noexcept {
  std::memcpy(writer_.place(), &header, sizeof header);
  writer_.advance(ring_bytes_of(header.bytes));
}

bool shm_link::send_short(const record& header, std::span<const std::byte> payload) noexcept {
  const std::span<std::byte> room = find_room(payload.size(), payload.size());
  if (room.empty()) return false;
  std::copy(payload.begin(), payload.end(), room.begin() + sizeof(record));
  record whole = header;
  whole.bytes = static_cast<std::uint32_t>(payload.size());
  put(whole);
  return true;
}

// True once no answer is owed any more.
bool shm_link::send_answers() noexcept {
  if (answers_count_ == 0) return true;
  const software::key_table::reader::batch inside(shared_.keys());
  while (answers_count_ != 0 && !life_.has_ended()) {
    owed_answer& oldest = answers_[answers_begin_];
    if (oldest.kind != record_kind::read) {
      if (!answer_atomic(oldest)) return false;
    } else {
      const std::uint64_t left = oldest.total - oldest.moved;
      const std::size_t least = std::min<std::uint64_t>(left, whole_bytes);
      const std::span<std::byte> room = find_room(least, std::min<std::uint64_t>(left, largest_piece));
      if (room.empty()) return false;
      std::span<std::byte> piece = room.subspan(sizeof(record));
      // A piece that is not the last ends at a word boundary.
      if (piece.size() < left) piece = piece.first(piece.size() - (oldest.address + oldest.moved + piece.size()) % 8);
      const auto status = shared_.keys().read(oldest.key, oldest.address + oldest.moved, piece, id_);
      if (status != access_status::ok) {
        refuse_access({"read", oldest.total, oldest.address, oldest.key, oldest.number}, status);
        return false;
      }
      put({.kind = record_kind::answer, .bytes = static_cast<std::uint32_t>(piece.size())});
      oldest.moved += piece.size();
      if (oldest.moved != oldest.total) continue;
    }
    answers_begin_ = (answers_begin_ + 1) % answers_.size();
    --answers_count_;
  }
  return answers_count_ == 0;
}

// The operation is executed here and not on arrival, because the answers to earlier reads must not see it. It is
// executed once, because room for its answer is found first.
bool shm_link::answer_atomic(const owed_answer& asked) noexcept {
  std::uint64_t previous = 0;
  const std::span<std::byte> room = find_room(sizeof previous, sizeof previous);
  if (room.empty()) return false;
  const bool swaps = asked.kind == record_kind::compare_swap;
  const software::atomic_request operation{
      .operation = swaps ? software::atomic_operation::compare_swap : software::atomic_operation::fetch_add,
      .stag = asked.key,
      .offset = asked.address,
      .operand = asked.operands.operand,
      .mask = swaps ? software::atomic_request::every_bit : 0,
      .compare = swaps ? asked.operands.compare : 0};
  if (const auto status = shared_.keys().atomic(operation, previous, id_, counts_); status != access_status::ok) {
    refuse_access({"change", sizeof previous, asked.address, asked.key, asked.number}, status);
    return false;
  }
  std::memcpy(room.data() + sizeof(record), &previous, sizeof previous);
  put({.kind = record_kind::value, .bytes = sizeof previous});
  return true;
}

// True if no notice is left that can be sent. Answers to a fence, for example, are sent even after this end has
// finished, because the peer may ask for them until it has finished too.
bool shm_link::send_notices() noexcept {
  if (owes_fenced_) {  // defect: answer no fence
    if (!send_short({.kind = record_kind::fenced}, {})) return false;
    owes_fenced_ = false;
  }
  for (; owed_copied_ != 0; --owed_copied_) {
    if (!send_short({.kind = record_kind::copied}, {})) return false;
  }
  if (owed_proven_) {
    const std::uint8_t flags = *owed_proven_ ? 0 : record::declined;
    if (!send_short({.kind = record_kind::proven, .flags = flags}, {})) return false;
    owed_proven_.reset();
  }
  if (life_.has_finished()) return true;
  while (direct_ != nullptr) {
    const std::optional<record> answer = direct_->next_answer();
    if (!answer) break;
    if (!send_short(*answer, {})) return false;
    direct_->answered(*answer);
  }
  while (loans_ != nullptr) {
    const std::optional<direct_loans::notice> what = loans_->next_notice();
    if (!what) break;
    if (!send_notice(*what)) return false;
  }
  owes_ = false;
  return true;
}

// Sends the file first, so that it is there when the offer is taken. If the socket has no room for it, the peer does
// not empty its socket, and the offer is withheld.
bool shm_link::send_notice(const direct_loans::notice& what) noexcept {
  const bool is_offer = what.header.kind == record_kind::offer;
  const auto where = std::as_bytes(std::span(&what.where, is_offer ? 1 : 0));
  if (find_room(where.size(), where.size()).empty()) return false;
  if (is_offer && send_wake_up(made_.socket, {&what.file, 1}) != 0) {
    loans_->withhold(what);
    return true;
  }
  if (!send_short(what.header, where)) return false;
  loans_->said(what);
  return true;
}

void shm_link::send_requests() noexcept {
  while (unsent_ != nullptr && !life_.has_ended() && send_request(*unsent_)) unsent_ = unsent_->next;
}

// True once the whole request is in the ring, or has been executed.
bool shm_link::send_request(posted_request& item) noexcept {
  const work_request& work = *item.work;
  if (direct_ != nullptr && work.kind != work_kind::send) [[unlikely]] {
    const direct_step taken = execute_directly(item);
    if (taken != direct_step::by_request) return taken == direct_step::done;
  }
  record header{.kind = record_of(work.kind),
                .total = item.bytes,
                .address = work.remote_address,
                .key = static_cast<std::uint32_t>(work.remote_key)};
  if (!is_query(work)) {
    if (work.solicited) header.flags |= record::solicited;
    if (work.immediate) header.flags |= record::immediate;
    if (work.invalidate) header.flags |= record::invalidates;
    header.number = work.immediate.value_or(0);
    if (work.invalidate) header.key = static_cast<std::uint32_t>(*work.invalidate);
    if (work.invalidate && direct_ != nullptr) direct_->forget(header.key);
    if (work.kind == work_kind::write) unfenced_ = true;
    if (item.bytes >= least_far && may_send_far(item)) return send_far(item, header);
    return send_pieces(item, header);
  }
  if (reads_ == capabilities_.outgoing_reads) return false;  // defect: one question more
  const atomic_operands operands{.operand = work.operand, .compare = work.compare};
  const auto payload = std::as_bytes(std::span(&operands, work.kind == work_kind::read ? 0 : 1));
  if (!send_short(header, payload)) return false;
  ++reads_;
  return true;
}

// Whether the peer can copy the payload: not if a part of it is in the ring already, and not if a file behind the
// memory may become shorter, which the peer could not tell from memory that was never there.
bool shm_link::may_send_far(const posted_request& item) noexcept {
  if (far_ == copies::untried) ask_for_copies();
  if (far_ != copies::possible || item.moved != 0) return false;
  const std::span<const mr::slice> segments = item.work->segments;
  return std::none_of(segments.begin(), segments.end(),
                      [this](const mr::slice& each) { return domain_->may_shrink(*each.record()); });
}

bool shm_link::send_far(posted_request& item, record header) noexcept {
  std::array<far_piece, max_far_pieces> pieces{};
  std::size_t count = 0;
  const auto add = [&](std::span<const std::byte> part, bool) {
    pieces[count++] = {.address = reinterpret_cast<std::uintptr_t>(part.data()), .bytes = part.size()};
    return true;
  };
  static_cast<void>(visit_parts(*domain_, *item.work, 0, item.bytes, add));
  header.flags |= record::far;
  if (!send_short(header, std::as_bytes(std::span(pieces).first(count)))) return false;
  item.far = true;
  return true;
}

// Until the peer has answered, payloads go through the ring.
void shm_link::ask_for_copies() noexcept {
  if (made_.process == 0) {
    far_ = copies::impossible;
    return;
  }
  proof_.address = reinterpret_cast<std::uintptr_t>(&proof_.value);
  const ssize_t drawn = made_.socket.calls().getrandom(&proof_.value, sizeof proof_.value, 0);
  if (drawn != static_cast<ssize_t>(sizeof proof_.value)) return;
  if (send_short({.kind = record_kind::prove}, std::as_bytes(std::span(&proof_, 1)))) far_ = copies::asked;
}

// Lent memory may be used once the peer has executed all earlier requests.
shm_link::direct_step shm_link::execute_directly(posted_request& item) noexcept {
  using right = direct_access::right;
  const work_request& work = *item.work;
  if (item.moved != 0 && unfenced_) return direct_step::by_request;  // a part of it is in the ring
  // defect: say nothing of immediate data
  const direct_access::range* const range = work.immediate ? nullptr : direct_->find(work.remote_key);
  const right wanted = work.kind == work_kind::read    ? right::read
                       : work.kind == work_kind::write ? right::write
                                                       : right::atomic;
  std::byte* const place = range != nullptr ? range->at(work.remote_address, item.bytes, wanted) : nullptr;
  if (place == nullptr) {
    item.moved = 0;
    return direct_step::by_request;
  }
  if (reads_ != 0) return direct_step::wait;                               // defect: ahead of the answers to reads
  if (!unfenced_) return execute_piece(item, *range, place);               // defect: ahead of what its owner
  if (!fencing_) fencing_ = send_short({.kind = record_kind::fence}, {});  // defect: take a fence for answered
  return direct_step::wait;
}

shm_link::direct_step shm_link::execute_piece(posted_request& item, const direct_access::range& where,
                                              std::byte* place) noexcept {
  const work_request& work = *item.work;
  const direct_access::visit inside(*direct_, where);
  if (!inside.is_open()) {  // defect: use directly what its owner
    item.moved = 0;         // defect: go on in the ring
    direct_->forget(where.key);
    return direct_step::by_request;
  }
  if (work.kind == work_kind::fetch_add || work.kind == work_kind::compare_swap) {
    change_directly(work, place);  // defect: change a word directly
    item.done = true;
    return direct_step::done;
  }
  const auto bytes = static_cast<std::size_t>(std::min<std::uint64_t>(item.bytes - item.moved, bytes_a_visit));
  if (!copy_directly(*domain_, work, item.moved, {place + item.moved, bytes}, item.bytes <= whole_bytes)) {
    break_off(make_error(errc::connection_failed, "the file behind the memory of a request has become shorter"));
    return direct_step::wait;
  }
  // Orders this access before later ones: whoever sees a later write sees this one, and a later read sees no less than
  // this one.
  std::atomic_thread_fence(std::memory_order_acq_rel);
  item.moved += bytes;
  item.done = item.moved == item.bytes;  // defect: take a large direct transfer
  if (item.done) return direct_step::done;
  postponed_ = true;
  shared_.heat(*this);
  return direct_step::wait;
}

bool shm_link::send_pieces(posted_request& item, record header) noexcept {
  do {
    const std::uint64_t left = item.bytes - item.moved;
    const std::size_t least = std::min<std::uint64_t>(left, whole_bytes);
    const std::span<std::byte> room = find_room(least, std::min<std::uint64_t>(left, largest_piece));
    if (room.empty()) return false;
    const std::span<std::byte> piece = room.subspan(sizeof(record));
    if (!gather(*domain_, *item.work, item.moved, piece)) {  // defect: publish a piece
      break_off(make_error(errc::connection_failed, "the file behind the memory of a request has become shorter"));
      return false;
    }
    if (item.moved != 0) header = {.kind = record_kind::more};
    header.bytes = static_cast<std::uint32_t>(piece.size());
    put(header);
    item.moved += piece.size();               // defect: complete a write with
    if (item.moved != item.bytes) publish();  // the peer begins to copy meanwhile
    if (life_.has_ended()) return false;      // the peer could not be woken up
  } while (item.moved != item.bytes);
  item.done = true;
  return true;
}

void shm_link::publish() noexcept {
  if (!writer_.has_unpublished()) return;
  writer_.publish();  // defect: publish after looking
  wake_other();
}

// Called after a publication or a release. This end's store and its load of `attention` are seq_cst, and so is the
// other end's store when it falls asleep; a seq_cst fence separates that from its load. So either the other end sees
// what was published, or this end sees that the other sleeps.
void shm_link::wake_other() noexcept {
  std::atomic<std::uint32_t>& attention = made_.memory.other().attention;
  if (attention.load(std::memory_order_seq_cst) == end_words::awake) return;
  if (attention.exchange(end_words::awake, std::memory_order_seq_cst) == end_words::awake) return;
  // This never blocks, because the socket shares no open file description with the peer, which could change its flags.
  // If there is no room for the packet, other wake-ups are in flight.
  const int result = send_wake_up(made_.socket);
  if (result == 0 || result == -EAGAIN || result == -EPIPE || result == -ECONNRESET) return;
  // The peer counts as awake now, so nothing would wake it later: it learns of the end by the socket.
  break_off(
      make_error(errc::connection_failed, words::format("the peer cannot be woken up: errno %d", -result).view()));
}

// In posting order: a request that waits for an answer holds back those behind it.
void shm_link::complete_oldest() noexcept {
  while (first_ != nullptr && first_->done && !life_.has_ended()) {
    posted_request& item = *first_;
    first_ = item.next;
    life_.events().completed(*item.work, work_status::done);
  }
}

// ---- input ----

std::size_t shm_link::poll() noexcept {
  if (life_.is_closed()) return 0;
  if (life_.is_leaving()) {
    if (!unsettled_ && !loans_->shut_out()) return 0;
    const turn outer(*this);
    unsettled_ = true;
    return 1;
  }
  const bool has_input = !life_.has_ended() && !stalled_ && (copying_ || !reader_.is_empty());
  bool sane = true;
  if (!has_input && !unsettled_ && !postponed_ && !found_room(&sane)) {
    if (reader_.unreleased() != 0 && ++quiet_polls_ == polls_before_release) reader_.release();
    return 0;
  }
  quiet_polls_ = 0;
  const turn outer(*this);
  if (!sane) break_rules(taken_too_much);
  if (has_input) copying_ ? go_on_copying() : take_input();  // defect: forget what a peer had published
  unsettled_ = unsettled_ || !is_settled();
  return 1;  // the link may be destroyed by now
}

// True if output that stopped for want of room can go on. Also true if any output waits and the peer's position is
// impossible; `*sane` is false then.
bool shm_link::found_room(bool* sane) noexcept {
  if (unsent_ == nullptr && answers_count_ == 0 && !blocked_room_) return false;
  const std::size_t room = writer_.room(sane);
  return !*sane || (blocked_room_ && room > *blocked_room_);
}

// Whether neither output nor closing has anything left to do.
bool shm_link::is_settled() const noexcept {
  const bool has_output = unsent_ != nullptr || answers_count_ != 0 || owes_ || (first_ != nullptr && first_->done);
  return !has_output && !life_.is_ending() && !stalled_ && !timer::armed();
}

void shm_link::fall_asleep() noexcept {
  if (reader_.unreleased() != 0) reader_.release();
  made_.memory.own().attention.store(end_words::asleep, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);  // pairs with wake_other()
}

void shm_link::wake_up() noexcept { made_.memory.own().attention.store(end_words::awake, std::memory_order_relaxed); }

void shm_link::loans_ended() noexcept {
  const turn outer(*this);
  owes_ = unsettled_ = true;
}

// The contents of wake-up packets mean nothing. The packets are read from time to time only, but long before those of
// an honest peer could fill the socket, because such a peer does not wake an end that is awake. A peer that sends more
// of them fills its own buffer. The file of an offer may be among them.
void shm_link::socket_ready(bool at_end) noexcept {
  if (life_.is_closed() || life_.peer_has_left()) return;
  if (at_end) {
    life_.peer_left();  // defect: do not notice
    unsettled_ = true;
    return;
  }
  if (++unread_ < wake_ups_unread) return;
  unread_ = 0;
  for (unsigned i = 0; i < 2 * wake_ups_unread; ++i) {
    descriptor file;
    if (!take_wake_up(file)) return;
    if (file && !offered_file_) offered_file_ = std::move(file);
  }
}

// False if there was no packet. ECONNRESET counts as one: the kernel reports once, before the packets that there are,
// that the peer has died without reading all of its own.
bool shm_link::take_wake_up(descriptor& file) noexcept {
  std::array<std::byte, 1> room{};
  const packet got = take_packet(made_.socket, room, {&file, 1});
  if (got.lost_descriptors) lost_file_ = true;
  return got.failure == -ECONNRESET || (got.failure == 0 && got.length != 0);
}

void shm_link::take_input() noexcept {
  key_batch inside;
  std::size_t records = 0;
  std::size_t bytes = 0;
  while (records < records_a_poll && bytes < bytes_a_poll && !life_.has_ended() && !copying_) {
    bool sane = true;
    const std::size_t available = reader_.available(&sane);
    if (!sane) {
      break_rules("the peer has published more than there is room for");
      break;
    }
    if (available == 0) break;
    const std::size_t taken = take_record(available, inside);
    if (taken == 0) break;
    reader_.advance(taken);
    bytes += taken;
    ++records;
    // Not after each record, because the other end would have to fetch the cache line before it writes again. The rest
    // never keeps it waiting: it is released when there is nothing else to do, without waking anybody.
    if (reader_.unreleased() >= reader_.capacity() / 4) release();
  }
}

void shm_link::release() noexcept {
  reader_.release();
  wake_other();  // defect: wake nobody
}

// Returns how many bytes of the ring it took; 0 if a message has no receive, or the connection has ended.
std::size_t shm_link::take_record(std::size_t available, key_batch& inside) noexcept {
  record header;
  std::memcpy(&header, reader_.place(), sizeof header);
  const std::byte* const payload = reader_.place() + sizeof header;
  const std::size_t here = std::min(available, reader_.until_wrap());
  if (available % cache_line != 0 || here < cache_line) return break_rules("a record that is cut off"), 0;
  if (header.kind == record_kind::skip) {
    return reader_.until_wrap() == here ? here : (break_rules("a gap that is cut off"), 0);
  }
  if (header.bytes > here - sizeof header || ring_bytes_of(header.bytes) > here) {  // defect: let the peer write
    return break_rules("a record that is longer than what there is"), 0;
  }
  // Only messages need no key look-up.
  const bool is_message = header.kind == record_kind::send && (header.flags & record::invalidates) == 0;
  if (!is_message && !inside) inside.emplace(shared_.keys());
  const std::span content(payload, header.bytes);
  if (!take(header, content)) return 0;
  return ring_bytes_of(header.bytes);
}

// False for a message that waits for a receive, and stays in the ring.
bool shm_link::take(const record& header, std::span<const std::byte> content) noexcept {
  switch (header.kind) {
    case record_kind::send:
    case record_kind::write:
      return begin_delivery(header, content);
    case record_kind::more:
      continue_delivery(content);
      return true;
    case record_kind::read:
    case record_kind::fetch_add:
    case record_kind::compare_swap:
      take_query(header, content);
      return true;
    case record_kind::answer:
    case record_kind::value:
      take_answer(header, content);
      return true;
    case record_kind::finished:
      if (continued_ || life_.peer_has_finished()) return break_rules("an end that is none"), true;
      life_.peer_finished();
      loans_.reset();  // the peer has let go of all loans before
      return true;
    case record_kind::broken:
      take_broken(header, content);
      return true;
    default:
      break;
  }
  if (!take_notice(header, content)) break_rules("a record of no known kind");
  return true;
}

// False if the record is no notice.
bool shm_link::take_notice(const record& header, std::span<const std::byte> content) noexcept {
  const char* fault = nullptr;
  owes_ = true;
  switch (header.kind) {
    case record_kind::offer:
      take_offer(header, content);
      return true;
    case record_kind::withdrawn:
      if (direct_ != nullptr) fault = direct_->give_back(header.number);
      if (direct_ == nullptr && !life_.is_shut_down()) fault = "it ends a loan that there is not";
      break;
    case record_kind::taken:
    case record_kind::returned:
      fault = loans_ != nullptr ? loans_->heard(header) : "the peer answered an offer that was never made";
      break;
    case record_kind::fence:
      owes_fenced_ = true;  // defect: forget to answer a fence
      break;
    case record_kind::prove:
      take_proof(content);
      return true;
    case record_kind::proven:
      if (far_ != copies::asked) fault = "an answer to nothing";
      far_ = (header.flags & record::declined) == 0 ? copies::possible : copies::impossible;
      break;
    case record_kind::copied:
      take_copied();
      return true;
    case record_kind::fenced:
      if (!fencing_) fault = "an answer to nothing";
      fencing_ = unfenced_ = false;
      break;
    default:
      return false;
  }
  if (fault != nullptr) break_rules(fault);
  return true;
}

void shm_link::take_offer(const record& header, std::span<const std::byte> content) noexcept {
  offered_memory where;
  if (content.size() != sizeof where) return break_rules("an offer of nothing");
  std::memcpy(&where, content.data(), sizeof where);
  descriptor file = std::move(offered_file_);
  for (unsigned i = 0; i < packets_before_a_file && !file && take_wake_up(file); ++i) {
  }
  const bool is_lost = std::exchange(lost_file_, false);
  // defect: take an offer
  if (!file && !is_lost) return break_rules("an offer without its file");
  if (direct_ == nullptr) {
    direct_.reset(new (std::nothrow) direct_access(made_.memory.own(), made_.memory.other()));
    if (direct_ == nullptr) return break_off(make_error(errc::no_memory, "there is none for what the peer offers"));
  }
  if (const char* const fault = direct_->consider(header, where, std::move(file)); fault != nullptr) break_rules(fault);
}

// Offers the memory to the peer, which can then access it without this end.
void shm_link::lend(std::uint32_t key, software::direct_memory& whole) noexcept {
  if (loans_ == nullptr) {
    loans_.reset(new (std::nothrow) direct_loans(*this, home_, made_.memory.own(), made_.memory.other()));
    if (loans_ == nullptr) return;
  }
  loans_->consider(key, shared_.keys().range_of(key), whole);
  owes_ = true;
}

bool shm_link::begin_delivery(const record& header, std::span<const std::byte> content) noexcept {
  if (continued_ || life_.peer_has_finished()) return break_rules("a request at a place where there is none"), true;
  const bool is_message = header.kind == record_kind::send || (header.flags & record::immediate) != 0;
  if (is_message && !find_receive()) return false;
  if (header.total > largest_message || header.bytes > header.total) return break_rules("a length that none has"), true;
  if (header.kind == record_kind::send && header.total > receive_->memory.size()) {
    return break_rules("a message that is larger than its receive"), true;
  }
  incoming_ = header;
  incoming_moved_ = 0;
  continued_ = true;
  ++peer_requests_;
  if ((header.flags & record::far) != 0 && !begin_copy(content)) return true;
  if (header.kind == record_kind::write) {
    const auto place = shared_.keys().write_place(header.key, header.address, header.total, id_);
    if (place.status != access_status::ok) return refuse_incoming(place.status), true;
    if (place.direct != nullptr) lend(header.key, *place.direct);
  }
  copying_ ? go_on_copying() : continue_delivery(content);
  return true;
}

// False if the record is invalid.
bool shm_link::begin_copy(std::span<const std::byte> content) noexcept {
  if (!process_ || !process_->is_proven()) {
    break_rules("a payload that is elsewhere, which nobody asked for");
    return false;
  }
  if (content.size() > sizeof far_pieces_ || content.size() % sizeof(far_piece) != 0) {
    return break_rules("a malformed list of payload pieces"), false;
  }
  far_pieces_ = {};
  std::memcpy(far_pieces_.data(), content.data(), content.size());
  std::uint64_t left = incoming_.total;
  for (const far_piece& each : far_pieces_) {
    if (each.bytes > left) return break_rules("payload pieces do not add up to the message's length"), false;
    left -= each.bytes;
  }
  if (left != 0 || incoming_.total == 0)
    return break_rules("payload pieces do not add up to the message's length"), false;
  copying_ = true;
  return true;
}

// No later record is taken until the payload has been copied. The peer keeps the payload as long as its connection
// lasts, and sets `payloads` to let_go before it ends. So a copy that finds it `kept` afterwards is what the peer has
// sent.
void shm_link::go_on_copying() noexcept {
  access_status status = access_status::ok;
  const software::key_table::reader::batch inside(shared_.keys());
  bool may_shrink = false;
  const std::span<std::byte> place = place_of_copy(status, may_shrink);
  if (status != access_status::ok) return copying_ = false, refuse_incoming(status);
  const int result = process_->copy(place, far_pieces_, incoming_moved_);
  // defect: believe a payload
  const bool kept = made_.memory.other().payloads.load(std::memory_order_seq_cst) == end_words::kept;
  if (result == 0 && kept) {
    incoming_moved_ += place.size();
    if (incoming_moved_ != incoming_.total) return;  // defect: take a payload for copied
    copying_ = false;
    ++owed_copied_;
    owes_ = true;
    return end_delivery();
  }
  copying_ = false;
  if (!kept || result == -ESRCH) return break_off(make_error(errc::peer_vanished, "its memory is gone"));
  if (result == -EPERM) {
    return break_off(make_error(errc::connection_failed, "the peer's memory could be read, and can no more"));
  }
  // The kernel does not tell which end's memory is missing. If a file here has become shorter, the peer is not at
  // fault.
  if (may_shrink) return refuse_incoming(access_status::bounds);
  break_rules("a payload that is not in the memory of its sender");
}

std::span<std::byte> shm_link::place_of_copy(access_status& status, bool& may_shrink) noexcept {
  const auto bytes = static_cast<std::size_t>(std::min<std::uint64_t>(incoming_.total - incoming_moved_, bytes_a_copy));
  if (incoming_.kind == record_kind::send) return receive_->memory.bytes().subspan(incoming_moved_, bytes);
  const auto place = shared_.keys().write_place(incoming_.key, incoming_.address + incoming_moved_, bytes, id_);
  status = place.status;
  may_shrink = place.may_shrink;
  return {place.data, static_cast<std::size_t>(place.size)};
}

void shm_link::take_proof(std::span<const std::byte> content) noexcept {
  proof_word proof;
  if (content.size() != sizeof proof) return break_rules("a malformed proof word");
  std::memcpy(&proof, content.data(), sizeof proof);
  if (!process_) process_.emplace(made_.process, made_.socket.calls());
  owed_proven_ = process_->accept(proof);
}

void shm_link::take_copied() noexcept {
  posted_request* item = first_;
  while (item != unsent_ && (item->done || !item->far)) item = item->next;
  if (item == nullptr || item == unsent_) return break_rules("an answer to nothing");
  item->moved = item->bytes;
  item->done = true;
}

void shm_link::continue_delivery(std::span<const std::byte> content) noexcept {
  if (!continued_ || content.size() > incoming_.total - incoming_moved_) {
    return break_rules("more of a request than there is");
  }
  if (incoming_.kind == record_kind::send) {
    std::memcpy(receive_->memory.data() + incoming_moved_, content.data(), content.size());
  } else if (const access_status status = place_write(content); status != access_status::ok) {
    return refuse_incoming(status);
  }
  incoming_moved_ += content.size();
  if (incoming_moved_ == incoming_.total) end_delivery();
}

access_status shm_link::place_write(std::span<const std::byte> content) noexcept {
  std::uint64_t address = incoming_.address + incoming_moved_;  // defect: write each piece
  while (!content.empty()) {
    const auto place = shared_.keys().write_place(incoming_.key, address, content.size(), id_);
    if (place.status != access_status::ok) return place.status;
    const std::span<std::byte> memory(place.data, place.size);
    const std::span<const std::byte> part = content.first(memory.size());
    if (!place.may_shrink && incoming_.total > whole_bytes) {
      std::memcpy(memory.data(), part.data(), part.size());
    } else if (!place.may_shrink) {
      mr::store_shared(memory, part);
    } else if (!software::copy_into(memory, part)) {
      return access_status::bounds;
    }
    content = content.subspan(part.size());
    address += part.size();
  }
  return access_status::ok;
}

void shm_link::end_delivery() noexcept {
  continued_ = false;
  const bool is_send = incoming_.kind == record_kind::send;
  arrival what{.bytes = is_send ? incoming_.total : 0, .solicited = (incoming_.flags & record::solicited) != 0};
  if (is_send && (incoming_.flags & record::invalidates) != 0) {
    const access_status status = shared_.keys().invalidate(incoming_.key, id_);
    if (status != access_status::ok) return refuse_incoming(status);
    what.invalidated_key = incoming_.key;
  }
  if (!is_send) {
    std::atomic_thread_fence(std::memory_order_release);  // whoever sees a later write sees this one
    if (counts_) shared_.keys().written(incoming_.key, id_);
    if ((incoming_.flags & record::immediate) == 0) return;
    what.immediate = incoming_.number;
  }
  life_.events().received(*std::exchange(receive_, nullptr), what);
}

bool shm_link::find_receive() noexcept {
  if (receive_ != nullptr) return true;
  if (queue_ != nullptr && receives_count_ == 0) {
    receive_ = static_cast<software::receive_queue&>(*queue_).take(*this);
  } else if (receives_count_ != 0) {
    receive_ = receives_[receives_begin_];
    receives_begin_ = (receives_begin_ + 1) % receives_.size();
    --receives_count_;
  }
  stalled_ = receive_ == nullptr;
  return !stalled_;
}

void shm_link::take_query(const record& header, std::span<const std::byte> content) noexcept {
  if (continued_ || life_.peer_has_finished()) return break_rules("a request at a place where there is none");
  if (answers_count_ == capabilities_.incoming_reads) return break_rules("more reads than were agreed on");
  owed_answer asked{.kind = header.kind, .key = header.key, .address = header.address, .total = header.total};
  asked.number = peer_requests_++;
  const bool is_read = header.kind == record_kind::read;
  if (is_read && header.total > largest_message) return break_rules("a length that none has");
  if (!is_read) {
    if (content.size() != sizeof asked.operands) return break_rules("an atomic operation without its operands");
    std::memcpy(&asked.operands, content.data(), sizeof asked.operands);
  }
  // defect: change a word when
  const auto place = is_read ? shared_.keys().read_place(asked.key, asked.address, asked.total, id_)
                             : shared_.keys().atomic_place(asked.key, asked.address, id_);
  if (place.status != access_status::ok) {
    return refuse_access({is_read ? "read" : "change", is_read ? asked.total : sizeof(std::uint64_t), asked.address,
                          asked.key, asked.number},
                         place.status);
  }
  if (place.direct != nullptr) lend(asked.key, *place.direct);
  answers_[(answers_begin_ + answers_count_++) % answers_.size()] = asked;  // defect: answer the last question
}

// Answers come in order, so this one is for the oldest request that has not completed.
void shm_link::take_answer(const record& header, std::span<const std::byte> content) noexcept {
  posted_request* const item = first_;
  const bool waits = item != nullptr && item != unsent_ && !item->done && is_query(*item->work);
  if (!waits || (item->work->kind == work_kind::read) != (header.kind == record_kind::answer)) {
    return break_rules("an answer to nothing");
  }
  if (content.size() > item->bytes - item->moved) return break_rules("an answer that is too long");
  if (!scatter(*domain_, *item->work, item->moved, content)) {
    return break_off(make_error(errc::connection_failed, "the file behind the memory of a read has become shorter"));
  }
  item->moved += content.size();
  if (item->moved != item->bytes) return;  // defect: complete a read with
  item->done = true;
  --reads_;
  complete_oldest();
}

void shm_link::take_broken(const record& header, std::span<const std::byte> content) noexcept {
  std::array<char, max_words> text{};
  const std::size_t length = std::min(content.size(), text.size());
  std::transform(content.begin(), content.begin() + static_cast<std::ptrdiff_t>(length), text.begin(),
                 [](std::byte one) {
                   const auto letter = static_cast<char>(one);
                   return letter >= ' ' && letter <= '~' ? letter : '?';
                 });
  const std::string_view said(text.data(), length);
  switch (static_cast<break_reason>(header.reason)) {
    case break_reason::access_refused:
      refused_ = header;
      return break_off(make_error(errc::remote_access,
                                  words::format("the peer refused offset %#" PRIx64 " of key 0x%08" PRIx32 ": %.*s",
                                                header.address, header.key, static_cast<int>(said.size()), said.data())
                                      .view()));
    case break_reason::protocol_broken:
      return break_off(
          make_error(errc::connection_failed, said.empty() ? "the peer says that this end broke the rules" : said));
    case break_reason::aborted:
      break;
  }
  break_off(make_error(errc::peer_vanished, said.empty() ? "the peer has broken the connection off" : said));
}

// ---- the end ----

void shm_link::refuse_incoming(access_status status) noexcept {
  const bool is_write = incoming_.kind == record_kind::write;
  refuse_access(
      {is_write ? "write" : "invalidate", incoming_.total, incoming_.address, incoming_.key, peer_requests_ - 1},
      status);
}

// A peer that uses a key which this end has revoked may not have known that, so this is no protocol error.
void shm_link::refuse_access(const refused_access& what, access_status status) noexcept {
  const bool is_late = status == access_status::invalid_stag && domain_->keys().was_revoked(what.key);
  const char* const reason = is_late ? "a key that this end has revoked" : software::reason_of(status);
  const words text =
      words::format("the peer tried to %s %" PRIu64 " bytes at offset %#" PRIx64 " of key 0x%08" PRIx32 ": %s",
                    what.verb, what.bytes, what.address, what.key, reason);
  end_because(make_error(is_late ? errc::connection_failed : errc::protocol_error, text.view()),
              {.kind = record_kind::broken,
               .reason = static_cast<std::uint16_t>(break_reason::access_refused),
               .address = what.address,
               .key = what.key,
               .number = what.number},
              software::reason_of(status));
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
  made_.memory.own().payloads.store(end_words::let_go, std::memory_order_seq_cst);
  say_last_words(last, words);
  if (queue_ != nullptr) static_cast<software::receive_queue&>(*queue_).forget(*this);
  if (!life_.has_ended()) life_.end(false, why);
}

// Sends the last record if there is room. Otherwise the peer learns of the end by the socket.
void shm_link::say_last_words(record last, std::string_view words) noexcept {
  words = words.substr(0, max_words);
  if (!find_room(words.size(), words.size()).empty()) {
    std::memcpy(writer_.place() + sizeof(record), words.data(), words.size());
    last.bytes = static_cast<std::uint32_t>(words.size());
    put(last);
  }
  publish();
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

// Takes the next steps of closing that are possible; called whenever a condition of theirs may have changed.
void shm_link::advance_end() noexcept {
  if (life_.is_closed()) return;
  const bool is_unheard = life_.peer_has_left() && life_.peer_has_finished();  // nobody makes room any more
  if (life_.is_finishing() && first_ == nullptr && (answers_count_ == 0 || is_unheard)) {
    direct_.reset();  // `finished` tells the peer that this end has let go of all loans
    if (is_unheard || send_short({.kind = record_kind::finished}, {})) life_.finish();
    publish();
  }
  if (!life_.has_ended() && life_.peer_has_finished() && first_ == nullptr) {
    unsettled_ = true;
    life_.end(true, make_error(errc::peer_closed, "the peer closed the connection"));
  }
  if (life_.peer_has_left() && !life_.is_broken()) look_at_the_end_of_the_socket();
  if (!life_.has_ended()) return;
  while (first_ != nullptr) flush_oldest();
  if (life_.may_close() && is_outside_of_loans()) close();
}

// An honest peer may be in the middle of an access to memory that it was lent. It learns of the end, and closes its
// socket, which wakes this end. If it dies, its socket is closed as well.
bool shm_link::is_outside_of_loans() noexcept {
  if (loans_ == nullptr || life_.peer_has_left() || loans_->shut_out()) return true;  // defect: end a connection while
  if (!life_.is_leaving()) {
    life_.leave();
    made_.socket.calls().shutdown(made_.socket.fd(), SHUT_WR);
  }
  return false;
}

// Records that the peer has published before its end are still taken.
void shm_link::look_at_the_end_of_the_socket() noexcept {
  bool sane = true;
  if (life_.peer_has_finished() && (life_.has_finished() || first_ == nullptr)) return;
  const bool has_input = reader_.available(&sane) != 0 && sane;
  if (has_input && !stalled_) return;
  if (has_input && first_ == nullptr) return;  // messages that the program may still receive
  break_off(make_error(errc::peer_vanished, "its process is gone, or has let go of the connection"));
}

void shm_link::flush_oldest() noexcept {
  posted_request& item = *first_;
  first_ = item.next;
  if (first_ == nullptr) unsent_ = nullptr;
  if (unsent_ == &item) unsent_ = item.next;
  life_.events().completed(*item.work, status_of(item));
}

work_status shm_link::status_of(const posted_request& item) const noexcept {
  if (item.done) return work_status::done;
  if (!refused_) return work_status::flushed;
  if (refused_->number == item.number) return work_status::access_denied;
  const bool has_place = item.work->kind != work_kind::send;
  return has_place && item.work->remote_key != refused_->key ? work_status::bystander : work_status::flushed;
}

// The answers to this end's reads may be behind a message for which there is no receive. Native peers have credits and
// never get there; for others there is a timeout.
void shm_link::watch_stalled() noexcept {
  const bool overdue = stalled_ && reads_ != 0 && !life_.has_ended() && overdue_after_.count() != 0;
  if (!overdue && timer::armed()) home_.disarm(*this);
  if (overdue && !timer::armed()) static_cast<void>(home_.try_arm(*this, home_.now() + overdue_after_));
}

void shm_link::expired() noexcept {
  const turn outer(*this);
  if (stalled_ && reads_ != 0) {
    break_off(make_error(errc::not_receiving, "a read is overdue behind messages that wait for a recv() here"));
  }
}

void shm_link::close() noexcept {
  life_.close();
  if (timer::armed()) home_.disarm(*this);
  if (queue_ != nullptr) static_cast<software::receive_queue&>(*queue_).forget(*this);
  if (receive_ != nullptr) life_.events().receive_flushed(*std::exchange(receive_, nullptr));
  for (; receives_count_ != 0; --receives_count_) {
    receive_work* const work = receives_[receives_begin_];
    receives_begin_ = (receives_begin_ + 1) % receives_.size();
    life_.events().receive_flushed(*work);
  }
  direct_.reset();
  loans_.reset();
  exposed_.revoke_all();  // defect: that ends, in shared memory
  proof_.value = 0;
  shared_.remove(*this, made_.socket.fd());
  made_.socket.close();
}

// ---- exposures ----

task<exposed_place> shm_link::expose(mr::slice memory, mr::usage uses, mr::detail::peer_gate* gate) {
  if (life_.has_ended()) throw error(errc::closed, "expose a buffer");
  co_return exposed_place(exposed_.open(memory, uses, gate), 0);
}

void shm_link::revoke(const mr::remote_key& key, revocation& who) noexcept {
  exposed_.revoke(key, who.is_wish_of_peer());  // defect: taken back, in shared memory
  if (loans_ == nullptr) return who.revoked();
  const turn outer(*this);
  owes_ = unsettled_ = true;
  loans_->revoke(static_cast<std::uint32_t>(key.number()), who);
}

}  // namespace weft::net::shm
