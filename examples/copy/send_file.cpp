// SPDX-License-Identifier: Apache-2.0
#include "send_file.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "condition.hpp"
#include "failure.hpp"

namespace copy {
namespace {

// A worker reads chunk n into one of our buffers and hashes it while the processor has it in its cache. Then it is
// written to one of the peer's slots and announced, with one doorbell. When the peer has taken it, the buffer is free,
// and the slot is open again under another key. Each step is a task of its own and counts the chunks that it has done,
// so that one chunk is read and hashed while others are on their way:
//
//   read_all    read_      chunks in a buffer and in the digest
//   write_all   posted_    chunks on their way to the peer
//               written_   chunks whose buffer the connection no longer uses
//   hear_all    taken_     chunks that the peer has done with
class sender {
 public:
  sender(session& link, source_file& source, progress* shown)
      : link_(link), source_(source), shown_(shown), chunks_(chunks_of(source.size())) {}

  weft::task<digest> run();

 private:
  weft::task<> hear_ready();
  weft::task<> make_buffers(std::size_t count);
  weft::task<> read_all();
  weft::task<> write_all();
  weft::task<> hear_all();
  void hear(const message& said);
  void check_size(const weft::mr::remote_region& slot) const;
  weft::task<> give_up(std::string why);

  [[nodiscard]] std::size_t bytes_of(std::uint64_t chunk) const noexcept {
    return static_cast<std::size_t>(bytes_of_chunk(source_.size(), chunk));
  }
  [[nodiscard]] weft::mr::buffer& buffer_of(std::uint64_t chunk) noexcept { return buffers_[chunk % buffers_.size()]; }

  // Once the peer has had its last word, whatever it was, nobody waits for anything any more.
  template <class Predicate>
  weft::task<bool> until(const Predicate& holds) {
    const auto either = [&] { return holds() || peer_is_done_; };
    co_await changed_.until(either);
    co_return !peer_is_done_;
  }

  session& link_;
  source_file& source_;
  progress* shown_;

  std::optional<chunk_budget::share> share_;  // given back once the buffers have gone
  std::vector<weft::mr::remote_region> slots_;
  std::vector<weft::mr::buffer> buffers_;
  sha256 hash_;
  digest sha_{};
  const std::uint64_t chunks_;
  std::uint64_t read_ = 0;
  std::uint64_t posted_ = 0;
  std::uint64_t written_ = 0;
  std::uint64_t taken_ = 0;
  bool end_sent_ = false;
  bool peer_is_done_ = false;           // the receiver has had its last word
  std::optional<std::string> trouble_;  // and it was `failed`
  condition changed_;                   // something of the above has
};

weft::task<digest> sender::run() {
  co_await hear_ready();
  const std::size_t useful = std::clamp<std::uint64_t>(chunks_, 1, std::min(slots_.size(), chunks_in_flight));
  auto share = co_await link_.home().sending.take(useful, link_.peer_host());
  share_.emplace(std::move(share));
  co_await make_buffers(share_->chunks());
  try {
    co_await weft::when_all(read_all(), write_all(), hear_all());
  } catch (const failure& why) {
    trouble_ = why.what();
  }
  if (trouble_) co_await give_up(*trouble_);
  co_return sha_;
}

weft::task<> sender::hear_ready() {
  message said = co_await link_.receive();
  if (auto* const refused = std::get_if<failed_message>(&said)) throw failure("the peer refuses: " + refused->text);
  auto* const ready = std::get_if<ready_message>(&said);
  if (ready == nullptr) throw unexpected(said, "'ready'");
  slots_ = std::move(ready->slots);
  for (const auto& slot : slots_) check_size(slot);
}

void sender::check_size(const weft::mr::remote_region& slot) const {
  if (slot.size() != chunk_bytes_of(source_.size()))
    throw weft::error(weft::errc::protocol_error, "the peer offered a slot of the wrong size");
}

weft::task<> sender::make_buffers(std::size_t count) {
  while (buffers_.size() < count) {
    auto memory = co_await link_.home().device.allocate(chunk_bytes_of(source_.size()));
    buffers_.push_back(std::move(memory));
  }
}

weft::task<> sender::read_all() {
  const auto room = [this] { return read_ - std::min(taken_, written_) < buffers_.size(); };
  const auto read_one = [this] {
    source_.read(buffer_of(read_).bytes());
    hash_.update(buffer_of(read_).bytes());
    if (read_ + 1 == chunks_) source_.check_unchanged();
  };
  while (read_ < chunks_) {
    if (!co_await until(room)) co_return;
    buffer_of(read_).resize(bytes_of(read_));
    co_await weft::offload(read_one);
    ++read_;
    changed_.notify();
  }
}

weft::task<> sender::write_all() {
  const auto something_to_write = [this] { return posted_ < read_; };
  while (posted_ < chunks_) {
    if (!co_await until(something_to_write)) co_return;
    const message announcement = chunk_message{.index = posted_};
    auto packed = co_await link_.in_buffer(pack(announcement));
    const auto target = slots_[posted_ % slots_.size()].slice(0, bytes_of(posted_));
    std::array both{link_.peer().write(buffer_of(posted_), target), link_.peer().send(std::move(packed))};
    ++posted_;  // before the answer can come
    co_await weft::with_timeout(link_.patience(), link_.peer().batch(both));
    ++written_;
    changed_.notify();
  }
  sha_ = hash_.finish();
  const message last = end_message{.sha = sha_};
  end_sent_ = true;
  co_await link_.send(pack(last));
  changed_.notify();
}

weft::task<> sender::hear_all() {
  const auto answer_due = [this] { return taken_ < posted_ || end_sent_; };
  const auto owed = [this] { return taken_ < posted_; };  // and its disk may take its time
  while (!peer_is_done_) {
    co_await changed_.until(answer_due);  // a slow disk of ours must not look like a silent peer
    const message said = co_await link_.receive(*share_, owed);
    hear(said);
    if (end_sent_ && taken_ == chunks_) {  // what is left is up to the peer's disk
      buffers_.clear();
      share_->give_back();
    }
    changed_.notify();
  }
}

void sender::hear(const message& said) {
  if (const auto* const taken = std::get_if<taken_message>(&said)) {
    if (taken->index != taken_ || taken_ == posted_) throw unexpected(said, "the 'taken' of the oldest chunk");
    if (taken_ + slots_.size() < chunks_) {  // a later chunk needs the slot
      if (!taken->slot) throw unexpected(said, "'taken' with a slot");
      check_size(*taken->slot);
      slots_[taken_ % slots_.size()] = *taken->slot;
    }
    if (shown_ != nullptr) shown_->advance(bytes_of(taken_));
    ++taken_;
    return;
  }
  peer_is_done_ = true;
  if (const auto* const failed = std::get_if<failed_message>(&said)) {
    trouble_ = "the peer says: " + failed->text;
  } else if (!std::holds_alternative<stored_message>(said) || !end_sent_ || taken_ != chunks_) {
    throw unexpected(said, "'taken'");
  }
}

// Has our last word, and waits for the peer's if it has not come.
weft::task<> sender::give_up(std::string why) {
  const auto owed = [] { return true; };
  const message last = failed_message{.text = why};
  if (!end_sent_) co_await link_.send(pack(last));
  while (!peer_is_done_) {
    const message said = co_await link_.receive(*share_, owed);
    peer_is_done_ = std::holds_alternative<failed_message>(said);
  }
  throw failure(why);
}

}  // namespace

weft::task<digest> send_file(session& link, source_file& source, progress* shown) {
  sender one(link, source, shown);
  co_return co_await one.run();
}

}  // namespace copy
