// SPDX-License-Identifier: Apache-2.0
#include <weft/net/shm/direct_loans.hpp>

#include <algorithm>
#include <cstddef>
#include <new>
#include <utility>

namespace weft::net::shm {
namespace {

std::uint8_t flags_of(const software::key_rights& rights) noexcept {
  const unsigned flags = (rights.remote_read ? record::readable : 0U) | (rights.remote_write ? record::writable : 0U) |
                         (rights.remote_atomic ? record::atomic : 0U);
  return static_cast<std::uint8_t>(flags);
}

}  // namespace

// ---- a loan ----

void direct_loans::item::open() noexcept {
  ended.store(false, std::memory_order_relaxed);
  owner.own_.lent[number].store(end_words::open, std::memory_order_seq_cst);
}

// Pairs with loan_visit: either the peer sees that the loan is shut, or this end sees that the peer is inside.
void direct_loans::item::shut() noexcept {
  owner.own_.lent[number].store(end_words::shut, std::memory_order_seq_cst);
  turn_.store(owner.other_.turn.load(std::memory_order_seq_cst), std::memory_order_relaxed);
}

bool direct_loans::item::is_outside() const noexcept {
  const std::uint64_t seen = turn_.load(std::memory_order_relaxed);
  return seen % 2 == 0 || owner.other_.turn.load(std::memory_order_acquire) != seen;
}

void direct_loans::item::end() noexcept {
  shut();  // mutant: leave a peer's way open
  ended.store(true, std::memory_order_release);
  if (!owner.submitted_.exchange(true, std::memory_order_acq_rel)) owner.home_.submit(owner);
}

// ---- all of them ----

// Once all loans have been taken back, nobody submits this object any more.
direct_loans::~direct_loans() {
  for (const std::unique_ptr<item>& each : items_) free(*each);
  if (submitted_.load(std::memory_order_acquire)) home_.withdraw(*this);
}

void direct_loans::consider(std::uint32_t key, const software::key_table::reader::range& range,
                            software::direct_memory& whole) noexcept try {
  if (find(key) != nullptr || range.memory.empty()) return;
  if (whole.writable() && !range.rights.remote_write && !range.rights.remote_atomic) return;
  item* const chosen = find_free();
  if (chosen == nullptr) return;
  chosen->at = stage::wanted;
  chosen->key = key;
  chosen->range = range;
  chosen->whole = whole.shared_from_this();
} catch (const std::bad_alloc&) {  // then this end goes on executing the peer's requests
}

void direct_loans::revoke(std::uint32_t key, revocation& who) noexcept {
  item* const found = find(key);
  if (found == nullptr) return who.revoked();
  if (found->at == stage::wanted || found->at == stage::declined) {
    free(*found);
    return who.revoked();
  }
  found->whole->take_back(*found);
  if (found->at != stage::withdrawn) {
    found->shut();
    found->at = stage::ending;
  }
  if (found->is_outside()) return who.revoked();  // mutant: revoke memory while
  found->who = &who;
}

// Leaves out loans whose memory the peer was not handed, or could not map: the peer cannot be inside of those.
bool direct_loans::shut_out() noexcept {
  bool is_outside = true;
  for (const std::unique_ptr<item>& each : items_) {
    if (each->at == stage::free || each->at == stage::wanted || each->at == stage::declined) continue;
    if (each->at != stage::ending && each->at != stage::withdrawn) {
      each->shut();
      each->at = stage::ending;
    }
    is_outside = is_outside && each->is_outside();
  }
  return is_outside;
}

// Makes no offer while another is unanswered, even if the loan of that other offer has ended since. So a file in the
// socket always belongs to the unanswered offer.
std::optional<direct_loans::notice> direct_loans::next_notice() noexcept {
  for (const std::unique_ptr<item>& each : items_) {
    if (each->at == stage::ending) {
      return notice{.header = {.kind = record_kind::withdrawn, .number = each->number}};
    }
    if (each->at != stage::wanted || unanswered_) continue;  // mutant: offer a second file
    each->open();
    if (!each->whole->lend(*each)) {
      free(*each);
      continue;
    }
    const std::span<std::byte> memory = each->whole->memory();
    return notice{.header = {.kind = record_kind::offer,
                             .flags = flags_of(each->range.rights),
                             .total = each->range.memory.size(),
                             .address = each->range.address,
                             .key = each->key,
                             .number = each->number},
                  .where = {.file_bytes = memory.size(),
                            .offset = static_cast<std::uint64_t>(each->range.memory.data() - memory.data())},
                  .file = each->whole->file()};
  }
  return std::nullopt;
}

void direct_loans::said(const notice& what) noexcept {
  item& its = *items_[what.header.number];
  const bool is_offer = what.header.kind == record_kind::offer;
  its.at = is_offer ? stage::offered : stage::withdrawn;
  if (is_offer) unanswered_ = what.header.number;
}

void direct_loans::withhold(const notice& what) noexcept { free(*items_[what.header.number]); }

// A loan may end before the peer has answered the offer.
const char* direct_loans::heard(const record& answer) noexcept {
  constexpr const char* nonsense = "the peer answered an offer that was never made";
  if (answer.number >= items_.size()) return nonsense;
  item& its = *items_[answer.number];
  if (answer.kind == record_kind::taken) {
    if (unanswered_ == answer.number) unanswered_.reset();
    if (its.at == stage::ending || its.at == stage::withdrawn) return nullptr;
    if (its.at != stage::offered) return nonsense;
    its.at = (answer.flags & record::declined) != 0 ? stage::declined : stage::lent;
    return nullptr;
  }
  if (its.at != stage::withdrawn) return nonsense;
  free(its);
  return nullptr;
}

void direct_loans::run_on_executor() noexcept {
  // An exchange, because a store could pass the loads below.
  static_cast<void>(submitted_.exchange(false, std::memory_order_acq_rel));
  for (const std::unique_ptr<item>& each : items_) {
    if (!each->ended.exchange(false, std::memory_order_acquire)) continue;
    if (each->at == stage::declined) free(*each);
    if (each->at == stage::offered || each->at == stage::lent) each->at = stage::ending;
  }
  owner_.loans_ended();  // may destroy this object
}

direct_loans::item* direct_loans::find(std::uint32_t key) noexcept {
  const auto found = std::find_if(items_.begin(), items_.end(), [key](const std::unique_ptr<item>& each) {
    return each->at != stage::free && each->key == key;
  });
  return found != items_.end() ? found->get() : nullptr;
}

direct_loans::item* direct_loans::find_free() {
  const auto found = std::find_if(items_.begin(), items_.end(),
                                  [](const std::unique_ptr<item>& each) { return each->at == stage::free; });
  if (found != items_.end()) return found->get();
  if (items_.size() == max_loans) return nullptr;
  items_.push_back(std::make_unique<item>(*this, static_cast<std::uint32_t>(items_.size())));
  return items_.back().get();
}

void direct_loans::free(item& what) noexcept {
  what.shut();
  if (what.whole != nullptr) what.whole->take_back(what);
  what.whole.reset();
  what.at = stage::free;
  what.key = 0;
  if (revocation* const who = std::exchange(what.who, nullptr); who != nullptr) who->revoked();
}

}  // namespace weft::net::shm
