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

// The peer writes chunk n to one of our slots. It may go on writing there, so that what has been checked may be
// something else a moment later: the chunk is copied first, and the copy is hashed and stored. Then the peer may use
// the slot again. Each step is a task of its own and counts the chunks that it has done, so that workers hash one chunk
// and store another while the next ones arrive:
//
//   hear_all     arrived_    chunks copied out of a slot
//   hash_all     hashed_     chunks in the digest
//   store_all    stored_     chunks in the file
//   answer_all   answered_   chunks of which the peer knows that we have done with them
class receiver {
 public:
  receiver(session& link, part_file target, std::uint64_t size, bool sync, progress* shown)
      : link_(link), target_(std::move(target)), size_(size), chunks_(chunks_of(size)), sync_(sync), shown_(shown) {}

  weft::task<digest> run();

 private:
  weft::task<> open_slots(std::size_t count);
  weft::task<> announce_slots();
  weft::task<> hear_all();
  weft::task<> hash_all();
  weft::task<> store_all();
  weft::task<> answer_all();
  weft::task<> finish();
  weft::task<> give_up(std::string why);

  [[nodiscard]] std::span<const std::byte> bytes_of(std::uint64_t chunk) const {
    return std::span(copies_[chunk % copies_.size()]).first(bytes_of_chunk(size_, chunk));
  }
  void copy_out(std::uint64_t chunk);

  session& link_;
  part_file target_;
  const std::uint64_t size_;
  const std::uint64_t chunks_;
  const bool sync_;
  progress* shown_;

  std::optional<chunk_budget::share> share_;  // given back once the slots have gone
  std::vector<weft::net::exposure> slots_;
  std::vector<std::vector<std::byte>> copies_;  // one for each slot
  sha256 hash_;
  digest sha_{};
  std::uint64_t arrived_ = 0;
  std::uint64_t hashed_ = 0;
  std::uint64_t stored_ = 0;
  std::uint64_t answered_ = 0;
  bool sender_is_done_ = false;  // the sender has had its last word
  digest expected_{};            // and it was `end`
  condition changed_;            // one of the numbers has
};

weft::task<digest> receiver::run() {
  const std::size_t useful = std::clamp<std::uint64_t>(chunks_, 1, chunks_in_flight);
  auto share = co_await link_.home().receiving.take(useful, link_.peer_host());
  share_.emplace(std::move(share));
  co_await open_slots(share_->chunks());
  co_await announce_slots();
  std::optional<std::string> trouble;
  try {
    co_await weft::when_all(hear_all(), hash_all(), store_all(), answer_all());
    co_await finish();
  } catch (const failure& why) {
    trouble = why.what();
  }
  if (trouble) co_await give_up(*trouble);
  const message last = stored_message();
  co_await link_.send(pack(last));
  co_return sha_;
}

weft::task<> receiver::open_slots(std::size_t count) {
  while (slots_.size() < count) {
    auto memory = co_await link_.home().device.allocate(chunk_bytes_of(size_), weft::mr::budget::receive);
    auto slot = co_await link_.peer().expose(std::move(memory), weft::mr::usage::write_dst);
    slots_.push_back(std::move(slot));
    copies_.emplace_back(chunk_bytes_of(size_));
  }
}

// On the executor's thread, which is the one on which iWARP writes for the peer.
void receiver::copy_out(std::uint64_t chunk) {
  const auto slot = slots_[chunk % slots_.size()].memory().bytes().first(bytes_of_chunk(size_, chunk));
  std::ranges::copy(slot, copies_[chunk % copies_.size()].begin());
}

weft::task<> receiver::announce_slots() {
  ready_message ready;
  for (const auto& slot : slots_) ready.slots.push_back(slot.remote());
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
      copy_out(arrived_);
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

weft::task<> receiver::hash_all() {
  const auto something_to_hash = [this] { return hashed_ < arrived_; };
  const auto hash_one = [this] { hash_.update(bytes_of(hashed_)); };
  while (hashed_ < chunks_) {
    co_await changed_.until(something_to_hash);
    co_await weft::offload(hash_one);
    ++hashed_;
    changed_.notify();
  }
}

weft::task<> receiver::store_all() {
  const auto something_to_store = [this] { return stored_ < arrived_; };
  const auto store_one = [this] { target_.write(bytes_of(stored_)); };
  while (stored_ < chunks_) {
    co_await changed_.until(something_to_store);
    co_await weft::offload(store_one);
    ++stored_;
    changed_.notify();
  }
}

weft::task<> receiver::answer_all() {
  const auto something_to_answer = [this] { return answered_ < std::min(hashed_, stored_); };
  while (answered_ < chunks_) {
    co_await changed_.until(something_to_answer);
    if (shown_ != nullptr) shown_->advance(bytes_of(answered_).size());
    const message answer = taken_message{.index = answered_};
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
