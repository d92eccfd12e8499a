// SPDX-License-Identifier: Apache-2.0
#include <weft/net/shm/notices.hpp>
#include <weft/net/shm/packets.hpp>

#include <new>
#include <optional>

namespace weft::net::shm {

// Answers about fences and far copies are sent even after this end has finished, because the peer may ask for them
// until it has finished, too.
bool notices::send() noexcept {
  if (owes_fenced_) {  // mutant: answer no fence
    if (!around_.output.send({.kind = record_kind::fenced}, {})) return false;
    owes_fenced_ = false;
  }
  if (!around_.far.send_answers()) return false;
  if (around_.life.has_finished()) return true;
  if (!around_.direct.send_answers()) return false;
  while (loans_ != nullptr) {
    const std::optional<direct_loans::notice> what = loans_->next_notice();
    if (!what) break;
    if (!send(*what)) return false;
  }
  owed_ = false;
  return true;
}

// Sends an offer's file first, so that the file is there when the peer takes the offer. Withholds the offer if the file
// cannot be sent: the socket may have no room for it, because the peer does not read its packets.
bool notices::send(const direct_loans::notice& what) noexcept {
  const bool is_offer = what.header.kind == record_kind::offer;
  const auto where = std::as_bytes(std::span(&what.where, is_offer ? 1 : 0));
  if (around_.output.find_room(where.size(), where.size()).empty()) return false;
  if (is_offer && send_wake_up(around_.socket, {&what.file, 1}) != 0) {
    loans_->withhold(what);
    return true;
  }
  if (!around_.output.send(what.header, where)) return false;
  loans_->said(what);
  return true;
}

bool notices::take(const record& header, std::span<const std::byte> content) noexcept {
  const char* fault = nullptr;
  direct_requests& direct = around_.direct;
  owed_ = true;
  switch (header.kind) {
    case record_kind::offer:
      fault = direct.take_offer(header, content, wake_ups_);
      break;
    case record_kind::withdrawn:
      if (direct.are_possible()) fault = direct.give_back(header.number);
      if (!direct.are_possible() && !around_.life.is_shut_down()) fault = "it ends a loan that there is not";
      break;
    case record_kind::taken:
    case record_kind::returned:
      fault = loans_ != nullptr ? loans_->heard(header) : "the peer answered an offer that was never made";
      break;
    case record_kind::fence:
      owes_fenced_ = true;  // mutant: forget to answer a fence
      break;
    case record_kind::fenced:
      fault = direct.fenced();
      break;
    case record_kind::prove:
      fault = around_.far.prove(content);
      break;
    case record_kind::proven:
      fault = around_.far.heard(header);
      break;
    default:
      return false;
  }
  if (fault != nullptr) around_.link.break_rules(fault);
  return true;
}

void notices::lend(std::uint32_t key, software::direct_memory& whole) noexcept {
  if (loans_ == nullptr) {
    channel& memory = around_.memory;
    loans_.reset(new (std::nothrow) direct_loans(around_.lender, around_.home, memory.own(), memory.other()));
    if (loans_ == nullptr) return;
  }
  loans_->consider(key, around_.shared.keys().range_of(key), whole);
  owed_ = true;
}

}  // namespace weft::net::shm
