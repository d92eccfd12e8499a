// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/shared_words.hpp>
#include <weft/net/shm/direct_requests.hpp>
#include <weft/net/software/kernel_copy.hpp>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <optional>
#include <utility>

namespace weft::net::shm {

using weft::detail::make_error;

namespace {

// How many bytes of one request a turn moves to or from memory that the peer has lent.
constexpr std::size_t bytes_a_visit = std::size_t{256} << 10;
// A turn that has moved this much begins no further request, because each one that completes may let more be posted.
constexpr std::size_t bytes_a_turn = bytes_a_visit;
// What the smallest requests count as, so that a turn executes at most 64 of them.
constexpr std::size_t least_counted = bytes_a_turn / 64;

// Copies between a request's memory, from offset `from` on, and the peer's memory at `place`. `by_words`: tears no
// word, as for writes of up to whole_bytes. False if a file behind the request's memory has become shorter.
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

}  // namespace

std::byte* direct_requests::find(const work_request& work, std::uint64_t bytes,
                                 const direct_access::range*& range) noexcept {
  using right = direct_access::right;
  // mutant: say nothing of immediate data
  range = work.immediate ? nullptr : access_->find(work.remote_key);
  const right wanted = work.kind == work_kind::read    ? right::read
                       : work.kind == work_kind::write ? right::write
                                                       : right::atomic;
  return range != nullptr ? range->at(work.remote_address, bytes, wanted) : nullptr;
}

// Flattened, because it is short, and most small writes and reads do nothing else.
[[gnu::flatten]] direct_requests::step direct_requests::execute_now(const work_request& work,
                                                                    std::uint64_t bytes) noexcept {
  const direct_access::range* range = nullptr;
  std::byte* const place = find(work, bytes, range);
  if (place == nullptr) return step::by_request;
  if (gate_.is_behind) return step::wait;  // mutant: at once, ahead of what the owner
  return visit(work, 0, *range, {place, bytes}, true) == outcome::done ? step::done : step::wait;
}

// Uses lent memory only once the peer has executed all earlier requests.
direct_requests::step direct_requests::execute(posted_request& item, bool awaits_answers) noexcept {
  if (item.moved != 0 && gate_.is_behind) return step::by_request;  // a part of it is in the ring
  const direct_access::range* range = nullptr;
  std::byte* const place = find(*item.work, item.bytes, range);
  if (place == nullptr) {
    item.moved = 0;
    return step::by_request;
  }
  if (awaits_answers) return step::wait;                                     // mutant: ahead of the answers to reads
  if (!gate_.is_behind) return execute_piece(item, *range, place);           // mutant: ahead of what its owner
  if (!fencing_) fencing_ = output_.send({.kind = record_kind::fence}, {});  // mutant: take a fence for answered
  return step::wait;
}

direct_requests::step direct_requests::execute_piece(posted_request& item, const direct_access::range& where,
                                                     std::byte* place) noexcept {
  if (moved_ >= bytes_a_turn) {
    moved_ = postponed;
    return step::wait;
  }
  const auto bytes = static_cast<std::size_t>(std::min<std::uint64_t>(item.bytes - item.moved, bytes_a_visit));
  switch (visit(*item.work, item.moved, where, {place + item.moved, bytes}, item.bytes <= whole_bytes)) {
    case outcome::shut:
      item.moved = 0;  // mutant: go on in the ring
      forget(where.key);
      return step::by_request;
    case outcome::torn:
      link_.break_off(
          make_error(errc::connection_failed, "the file behind the memory of a request has become shorter"));
      return step::wait;
    case outcome::done:
      break;
  }
  moved_ += std::max(bytes, least_counted);
  item.moved += bytes;
  item.done = item.moved == item.bytes;  // mutant: take a large direct transfer
  if (item.done) return step::done;
  moved_ = postponed;
  return step::wait;
}

direct_requests::outcome direct_requests::visit(const work_request& work, std::uint64_t from,
                                                const direct_access::range& where, std::span<std::byte> place,
                                                bool by_words) noexcept {
  const loan_visit inside = access_->visit(where);
  if (!inside.is_open()) return outcome::shut;  // mutant: use directly what its owner
  if (work.kind != work_kind::read && work.kind != work_kind::write) {
    change_directly(work, place.data());  // mutant: change a word directly
  } else if (!copy_directly(home_, work, from, place, by_words)) {
    return outcome::torn;
  }
  // Orders this access before later ones: a reader that sees a later write sees this one, and a later read sees no less
  // than this one.
  std::atomic_thread_fence(std::memory_order_acq_rel);
  return outcome::done;
}

const char* direct_requests::take_offer(const record& header, std::span<const std::byte> content,
                                        wake_ups& files) noexcept {
  offered_memory where;
  if (content.size() != sizeof where) return "an offer of nothing";
  std::memcpy(&where, content.data(), sizeof where);
  bool is_lost = false;
  descriptor file = files.take_file(&is_lost);
  // mutant: take an offer
  if (!file && !is_lost) return "an offer without its file";
  if (access_ == nullptr) {
    access_.reset(new (std::nothrow) direct_access(memory_.own(), memory_.other()));
    if (access_ == nullptr) {
      link_.break_off(make_error(errc::no_memory, "there is none for what the peer offers"));
      return nullptr;
    }
  }
  ++gate_.version;
  return access_->consider(header, where, std::move(file));
}

const char* direct_requests::give_back(std::uint32_t number) noexcept {
  ++gate_.version;
  return access_->give_back(number);
}

const char* direct_requests::fenced() noexcept {
  const bool was_asked = fencing_;
  fencing_ = gate_.is_behind = false;
  return was_asked ? nullptr : "an answer to nothing";
}

bool direct_requests::send_answers() noexcept {
  while (access_ != nullptr) {
    const std::optional<record> answer = access_->next_answer();
    if (!answer) break;
    if (!output_.send(*answer, {})) return false;
    access_->answered(*answer);
  }
  return true;
}

}  // namespace weft::net::shm
