// SPDX-License-Identifier: Apache-2.0
#include "receive_file.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "condition.hpp"
#include "failure.hpp"

namespace copy {
namespace {

// The peer writes chunk n to one of our slots and says so. The slot is then taken back from the peer, so that what is
// stored is what was hashed, whatever the peer goes on to write; no copy is needed for that. A worker hashes the chunk
// and stores it while the processor has it in its cache, and the slot is opened again for a later chunk. Each step is a
// task of its own and counts the chunks that it has done, so that one chunk is hashed and stored while others arrive:
//
//   hear_all     arrived_    chunks in a slot that was taken back
//   keep_all     kept_       chunks in the digest and in the file
//   answer_all   answered_   chunks of which the peer knows that we have done with them
class receiver {
 public:
  receiver(session& link, part_file target, std::uint64_t size, bool sync, progress* shown)
      : link_(link), target_(std::move(target)), size_(size), chunks_(chunks_of(size)), sync_(sync), shown_(shown) {}

  weft::task<digest> run();

 private:
  weft::task<> make_slots(std::size_t count);
  weft::task<> announce_slots();
  weft::task<> hear_all();
  weft::task<> keep_all();
  weft::task<> answer_all();
  weft::task<> finish();
  weft::task<> give_up(std::string why);

  // Memory for one chunk at a time. Either it is open to the peer, or it is ours alone.
  struct slot {
    weft::net::exposure open;
    weft::mr::buffer ours;
  };

  weft::task<> open(slot& item);
  [[nodiscard]] slot& slot_of(std::uint64_t chunk) { return slots_[chunk % slots_.size()]; }
  [[nodiscard]] std::span<const std::byte> bytes_of(std::uint64_t chunk) {
    return slot_of(chunk).ours.bytes().first(bytes_of_chunk(size_, chunk));
  }

  session& link_;
  part_file target_;
  const std::uint64_t size_;
  const std::uint64_t chunks_;
  const bool sync_;
  progress* shown_;

  std::optional<chunk_budget::share> share_;  // given back once the slots have gone
  std::vector<slot> slots_;
  sha256 hash_;
  digest sha_{};
  std::uint64_t arrived_ = 0;
  std::uint64_t kept_ = 0;
  std::uint64_t answered_ = 0;
  bool sender_is_done_ = false;  // the sender has had its last word
  digest expected_{};            // and it was `end`
  condition changed_;            // one of the numbers has
};

weft::task<digest> receiver::run() {
  const std::size_t useful = std::clamp<std::uint64_t>(chunks_, 1, chunks_in_flight);
  auto share = co_await link_.home().receiving.take(useful, link_.peer_host());
  share_.emplace(std::move(share));
  co_await make_slots(share_->chunks());
  co_await announce_slots();
  std::optional<std::string> trouble;
  try {
    co_await weft::when_all(hear_all(), keep_all(), answer_all());
    co_await finish();
  } catch (const failure& why) {
    trouble = why.what();
  }
  if (trouble) co_await give_up(*trouble);
  const message last = stored_message();
  co_await link_.send(pack(last));
  co_return sha_;
}

weft::task<> receiver::make_slots(std::size_t count) {
  while (slots_.size() < count) {
    auto memory = co_await link_.home().device.allocate(chunk_bytes_of(size_), weft::mr::budget::receive);
    slots_.push_back({.open = {}, .ours = std::move(memory)});
    co_await open(slots_.back());
  }
}

weft::task<> receiver::open(slot& item) {
  item.open = co_await link_.peer().expose(std::move(item.ours), weft::mr::usage::write_dst);
}

weft::task<> receiver::announce_slots() {
  ready_message ready;
  for (const slot& item : slots_) ready.slots.push_back(item.open.remote());
  const message announcement = std::move(ready);
  co_await link_.send(pack(announcement));
}

weft::task<> receiver::hear_all() {
  const auto owed = [this] { return answered_ == arrived_; };
  while (!sender_is_done_) {
    const message said = co_await link_.receive(*share_, owed);
    if (const auto* const chunk = std::get_if<chunk_message>(&said)) {
      const bool in_turn = chunk->index == arrived_ && arrived_ < chunks_ && arrived_ - answered_ < slots_.size();
      if (!in_turn) throw weft::error(weft::errc::protocol_error, "the peer sent a chunk out of turn");
      slot& filled = slot_of(arrived_);
      filled.ours = co_await filled.open.revoke();
      ++arrived_;
      changed_.notify();
      continue;
    }
    sender_is_done_ = true;
    if (const auto* const failed = std::get_if<failed_message>(&said)) throw failure("the peer says: " + failed->text);
    const auto* const end = std::get_if<end_message>(&said);
    if (end == nullptr) throw unexpected(said, "'chunk', 'end' or 'failed'");
    if (arrived_ != chunks_)
      throw weft::error(weft::errc::protocol_error, "the peer ended a file before sending all of its chunks");
    expected_ = end->sha;
  }
}

weft::task<> receiver::keep_all() {
  const auto something_to_keep = [this] { return kept_ < arrived_; };
  const auto keep_one = [this] {
    hash_.update(bytes_of(kept_));
    target_.write(bytes_of(kept_));
  };
  while (kept_ < chunks_) {
    co_await changed_.until(something_to_keep);
    co_await weft::offload(keep_one);
    ++kept_;
    changed_.notify();
  }
}

weft::task<> receiver::answer_all() {
  const auto something_to_answer = [this] { return answered_ < kept_; };
  while (answered_ < chunks_) {
    co_await changed_.until(something_to_answer);
    if (shown_ != nullptr) shown_->advance(bytes_of(answered_).size());
    taken_message taken{.index = answered_, .slot = {}};
    const bool is_needed_again = answered_ + slots_.size() < chunks_;
    if (is_needed_again) {
      slot& free = slot_of(answered_);
      co_await open(free);
      taken.slot = free.open.remote();
    }
    const message answer = taken;
    ++answered_;
    co_await link_.send(pack(answer));
  }
}

weft::task<> receiver::finish() {
  const auto commit = [this] {
    sha_ = hash_.finish();
    if (sha_ != expected_) {
      throw failure(fmt::format("'{}' arrived damaged: its SHA-256 is {}, not {}", target_.name(), to_string(sha_),
                                to_string(expected_)));
    }
    target_.commit(sync_);
  };
  co_await weft::offload(commit);
}

// Says our last word, and waits for the sender's: until then it may write to our slots.
weft::task<> receiver::give_up(std::string why) {
  const message last = failed_message{.text = why};
  const auto owed = [] { return true; };
  co_await link_.send(pack(last));
  while (!sender_is_done_) {
    const message said = co_await link_.receive(*share_, owed);
    sender_is_done_ = !std::holds_alternative<chunk_message>(said);
  }
  throw failure(why);
}

}  // namespace

weft::task<digest> receive_file(session& link, part_file target, std::uint64_t size, bool sync, progress* shown) {
  receiver one(link, std::move(target), size, sync, shown);
  co_return co_await one.run();
}

}  // namespace copy
