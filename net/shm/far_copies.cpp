// SPDX-License-Identifier: Apache-2.0
#include <weft/net/shm/far_copies.hpp>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace weft::net::shm {

using weft::detail::make_error;

// False if a part of the payload is in the ring already, or if a file behind the memory may become shorter, because the
// peer could not tell that from memory that was never there.
bool far_copies::may_send(const posted_request& item, const software::domain& home) noexcept {
  if (by_peer_ == state::untried) ask();
  if (by_peer_ != state::possible || item.moved != 0) return false;
  const std::span<const mr::slice> segments = item.work->segments;
  return std::none_of(segments.begin(), segments.end(),
                      [&home](const mr::slice& each) { return home.may_shrink(*each.record()); });
}

bool far_copies::send(posted_request& item, const software::domain& home) noexcept {
  std::array<far_piece, max_far_pieces> pieces{};
  std::size_t count = 0;
  const auto add = [&](std::span<const std::byte> part, bool) {
    pieces[count++] = {.address = reinterpret_cast<std::uintptr_t>(part.data()), .bytes = part.size()};
    return true;
  };
  static_cast<void>(visit_parts(home, *item.work, 0, item.bytes, add));
  record header = delivery_of(*item.work, item.bytes);
  header.flags |= record::far;
  if (!output_.send(header, std::as_bytes(std::span(pieces).first(count)))) return false;
  item.far = true;
  return true;
}

void far_copies::ask() noexcept {
  if (peer_ == 0) {
    by_peer_ = state::impossible;
    return;
  }
  proof_.address = reinterpret_cast<std::uintptr_t>(&proof_.value);
  const ssize_t drawn = socket_.calls().getrandom(&proof_.value, sizeof proof_.value, 0);
  if (drawn != static_cast<ssize_t>(sizeof proof_.value)) return;
  if (output_.send({.kind = record_kind::prove}, std::as_bytes(std::span(&proof_, 1)))) by_peer_ = state::asked;
}

const char* far_copies::heard(const record& answer) noexcept {
  const bool was_asked = by_peer_ == state::asked;
  by_peer_ = (answer.flags & record::declined) == 0 ? state::possible : state::impossible;
  return was_asked ? nullptr : "an answer to nothing";
}

const char* far_copies::prove(std::span<const std::byte> content) noexcept {
  proof_word proof;
  if (content.size() != sizeof proof) return "a malformed proof word";
  std::memcpy(&proof, content.data(), sizeof proof);
  if (!process_) process_.emplace(peer_, socket_.calls());
  owed_proven_ = process_->accept(proof);
  return nullptr;
}

const char* far_copies::begin(std::span<const std::byte> content, std::uint64_t total) noexcept {
  if (!process_ || !process_->is_proven()) return "a payload that is elsewhere, which nobody asked for";
  if (content.size() > sizeof pieces_ || content.size() % sizeof(far_piece) != 0) {
    return "a malformed list of payload pieces";
  }
  pieces_ = {};
  std::memcpy(pieces_.data(), content.data(), content.size());
  std::uint64_t left = total;
  for (const far_piece& each : pieces_) {
    if (each.bytes > left) return "payload pieces do not add up to the message's length";
    left -= each.bytes;
  }
  if (left != 0 || total == 0) return "payload pieces do not add up to the message's length";
  copying_ = true;
  return nullptr;
}

// The peer keeps the payload as long as its connection lasts, and sets `payloads` to let_go before the connection ends.
// So if `payloads` is still `kept` after the copy, the copy is what the peer has sent.
far_copies::outcome far_copies::copy(std::span<std::byte> to, std::uint64_t from) noexcept {
  const int result = process_->copy(to, pieces_, from);
  std::atomic_thread_fence(std::memory_order_acquire);  // the copy comes first: pairs with shm_link::end_because()
  // mutant: believe a payload
  const bool kept = memory_.other().payloads.load(std::memory_order_relaxed) == end_words::kept;
  if (result == 0 && kept) return outcome::copied;
  copying_ = false;
  if (!kept || result == -ESRCH) {
    link_.break_off(make_error(errc::peer_vanished, "its memory is gone"));
    return outcome::failed;
  }
  if (result != -EPERM) return outcome::missing;
  link_.break_off(make_error(errc::connection_failed, "the peer's memory could be read, and can no more"));
  return outcome::failed;
}

bool far_copies::send_answers() noexcept {
  for (; owed_copied_ != 0; --owed_copied_) {
    if (!output_.send({.kind = record_kind::copied}, {})) return false;
  }
  if (!owed_proven_) return true;
  const std::uint8_t flags = *owed_proven_ ? 0 : record::declined;
  if (!output_.send({.kind = record_kind::proven, .flags = flags}, {})) return false;
  owed_proven_.reset();
  return true;
}

}  // namespace weft::net::shm
