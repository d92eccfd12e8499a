// SPDX-License-Identifier: Apache-2.0
// Two engines that do nothing wrong, whatever is posted, whenever, and however TCP cuts what they say: everything
// completes well and in order, and every byte arrives where it belongs.
#include <weft/net/iwarp/engine.hpp>

#include <deque>

#include "input.hpp"

namespace {

using namespace weft::net::iwarp;
using weft::fuzz::require;

constexpr std::size_t region_bytes = 4000;
constexpr std::size_t longest_message = 3000;
constexpr std::uint32_t stag = 0xABCD;

/// Bytes that tell where they come from.
std::byte byte_at(std::size_t offset, std::size_t seed) { return static_cast<std::byte>(offset * 7 + seed * 31 + 1); }

class peer : public engine_host {
 public:
  explicit peer(const engine_options& options)
      : batch_(output_batch::min_storage_bytes, 5000), engine_(*this, options) {
    for (std::size_t i = 0; i < region_bytes; ++i) source_.push_back(byte_at(i, 0));
  }
  ~peer() {
    engine_.abort(words::format("the input is over"));
    engine_.abandon(batch_);
  }

  // Writes go to one region, reads come from another, which nobody changes.
  write_target find_write_target(std::uint32_t key, std::uint64_t offset, std::size_t bytes) noexcept override {
    require(key == stag && offset + bytes <= region_bytes, "a write lands where it was sent");
    count_written();
    opened_at_ = static_cast<std::size_t>(offset);
    opened_ = std::span(target_).subspan(opened_at_, bytes);
    for (std::size_t i = 0; i < bytes; ++i) opened_[i] = ~byte_at(opened_at_ + i, 0);
    return {.status = access_status::ok, .memory = opened_};
  }
  access_status remote_read(std::uint32_t key, std::uint64_t offset, std::span<std::byte> out) noexcept override {
    require(key == stag && offset + out.size() <= region_bytes, "a read asks for what it should");
    std::ranges::copy(std::span(source_).subspan(offset, out.size()), out.begin());
    return access_status::ok;
  }
  access_status check_read(std::uint32_t, std::uint64_t, std::uint32_t) noexcept override { return access_status::ok; }
  access_status remote_atomic(const atomic_request& asked, std::uint64_t& previous) noexcept override {
    require(asked.stag == stag && asked.offset == atomics_, "atomics arrive whole and in order");
    previous = std::exchange(counter_, apply(asked, counter_));
    require(counter_ == ++atomics_, "each atomic is executed once");
    return access_status::ok;
  }
  access_status check_atomic(std::uint32_t key, std::uint64_t) noexcept override {
    require(key == stag, "an atomic asks for what it should");
    return access_status::ok;
  }
  access_status invalidate(std::uint32_t key) noexcept override {
    require(key == stag, "the STag to invalidate arrives");
    return access_status::ok;
  }

  void completed(request& request, const completion& completion) noexcept override {
    require(next_completed_ < operations_.size() && &operations_[next_completed_]->posted == &request,
            "requests complete in posting order, once");
    operation& done = *operations_[next_completed_++];
    if (!engine_.is_open()) return;
    require(completion.status == completion_status::ok && completion.bytes == done.memory.size(), "requests succeed");
    if (request.kind == request_kind::read)
      for (std::size_t i = 0; i < done.memory.size(); ++i)
        require(done.memory[i] == byte_at(static_cast<std::size_t>(request.offset) + i, 0), "a read's bytes arrive");
    if (is_atomic(request)) {
      std::uint64_t before = 0;
      std::memcpy(&before, done.memory.data(), sizeof before);
      require(before == request.offset, "an atomic brings back what was there at its turn");
    }
    done.memory = {};
  }
  void received(receive_request& receive, const received_info& info) noexcept override {
    const std::size_t number = messages_++;
    count_written();
    if (info.immediate) return require(*info.immediate == written_, "immediate data comes when its write is placed");
    for (std::size_t i = 0; i < info.bytes; ++i)
      require(receive.buffer[i] == byte_at(i, number), "messages arrive whole and in order");
  }
  void flushed(receive_request&) noexcept override {}
  void ended(const ending&) noexcept override { require(over_, "nothing ends a stream that does nothing wrong"); }

  void post(weft::fuzz::input& in) {
    auto& op = *operations_.emplace_back(std::make_unique<operation>());
    const std::uint8_t kind = in.byte();
    op.posted.kind = static_cast<request_kind>(kind % 6);
    if (is_atomic(op.posted)) return post_atomic(op);
    const bool is_send = op.posted.kind == request_kind::send || op.posted.kind == request_kind::send_with_invalidate;
    op.posted.stag = stag;
    op.posted.offset = is_send ? 0 : in.below(region_bytes);
    op.memory.resize(in.below(is_send ? longest_message : region_bytes - static_cast<std::size_t>(op.posted.offset)));
    const std::size_t seed = is_send ? sends_++ : 0;
    for (std::size_t i = 0; op.posted.kind != request_kind::read && i < op.memory.size(); ++i)
      op.memory[i] = byte_at(static_cast<std::size_t>(op.posted.offset) + i, seed);
    std::size_t begin = 0;
    for (weft::mr::slice& segment : op.segments) {
      const std::size_t end =
          &segment == &op.segments.back() ? op.memory.size() : std::min(begin + in.byte(), op.memory.size());
      segment = {std::span(op.memory).subspan(begin, end - begin), nullptr};
      begin = end;
    }
    op.posted.local = op.segments;
    if (op.posted.kind == request_kind::write) wrote_ += op.memory.size();
    if (op.posted.kind == request_kind::write && kind >= 128) {
      ++sends_;
      op.posted.immediate = static_cast<std::uint32_t>(wrote_);
    }
    require(engine_.post(op.posted), "a request of this size can be posted");
  }

  void post_receive() {
    auto& slot = *receives_.emplace_back(std::make_unique<receive_slot>());
    slot.posted.buffer = slot.memory;
    engine_.post_receive(slot.posted);
  }

  bool transmit_to(peer& other, std::size_t limit) {
    if (batch_.empty() && (!engine_.has_output() || !engine_.gather(batch_))) return false;
    std::size_t moved = 0;
    for (const iovec& segment : batch_.pending()) {
      const std::size_t count = std::min(segment.iov_len, limit - moved);
      const auto* const start = static_cast<const std::byte*>(segment.iov_base);
      other.inbox_.insert(other.inbox_.end(), start, start + count);
      moved += count;
    }
    engine_.sent(batch_, moved);
    return true;
  }

  /// Some of what came goes where it belongs.
  void place(std::size_t limit) {
    const auto place = engine_.placement();
    const std::size_t count = std::min({limit, place.size(), inbox_.size()});
    if (count == 0) return;
    std::copy_n(inbox_.begin(), count, place.begin());
    inbox_.erase(inbox_.begin(), inbox_.begin() + static_cast<std::ptrdiff_t>(count));
    engine_.placed(count);
  }

  bool consume(std::size_t budget_bytes) {
    const std::vector<std::byte> exact(inbox_.begin(), inbox_.end());
    const std::size_t used = engine_.consume(exact, budget_bytes);
    inbox_.erase(inbox_.begin(), inbox_.begin() + static_cast<std::ptrdiff_t>(used));
    return used != 0;
  }

  bool needs_receive() const { return engine_.needs_receive(); }
  void expect_all_done(const peer& other) {
    count_written();
    require(next_completed_ == operations_.size() && !engine_.has_requests(), "every request completes");
    require(inbox_.empty() && messages_ == other.sends_, "every message arrives");
    require(written_ == other.wrote_, "every byte is written once");
    require(atomics_ == other.asked_atomics_, "every atomic is executed");
    over_ = true;
  }

 private:
  struct operation {
    request posted;
    std::vector<std::byte> memory;
    std::array<weft::mr::slice, 4> segments;
  };
  struct receive_slot {
    receive_request posted;
    std::vector<std::byte> memory = std::vector<std::byte>(longest_message);
  };

  static bool is_atomic(const request& posted) {
    return posted.kind == request_kind::fetch_add || posted.kind == request_kind::compare_swap;
  }

  /// What has been written to the place that was found last.
  void count_written() {
    for (std::size_t i = 0; i < opened_.size(); ++i) {
      const std::byte due = byte_at(opened_at_ + i, 0);
      require(opened_[i] == due || opened_[i] == ~due, "a write's bytes arrive");
      if (opened_[i] == due) ++written_;
    }
    opened_ = {};
  }

  /// Each adds one to the peer's counter, and says at which turn.
  void post_atomic(operation& op) {
    op.memory.resize(sizeof(std::uint64_t));
    op.posted.tail = op.memory;
    op.posted.stag = stag;
    op.posted.offset = op.posted.compare = asked_atomics_++;
    op.posted.operand = op.posted.kind == request_kind::fetch_add ? 1 : asked_atomics_;
    require(engine_.post(op.posted), "an atomic can be posted");
  }

  std::vector<std::byte> source_;
  std::vector<std::byte> target_ = std::vector<std::byte>(region_bytes);
  std::span<std::byte> opened_;  // the part of it that was found last; what is not written yet holds the wrong bits
  std::size_t opened_at_ = 0;
  std::vector<std::unique_ptr<operation>> operations_;
  std::vector<std::unique_ptr<receive_slot>> receives_;
  std::size_t next_completed_ = 0;
  std::size_t sends_ = 0;
  std::size_t messages_ = 0;
  std::uint64_t asked_atomics_ = 0;
  std::uint64_t atomics_ = 0;
  std::uint64_t counter_ = 0;
  std::size_t wrote_ = 0;
  std::size_t written_ = 0;
  bool over_ = false;
  std::deque<std::byte> inbox_;
  output_batch batch_;
  engine engine_;
};

void step(weft::fuzz::input& in, peer& one, peer& other) {
  switch (in.byte() % 6) {
    case 0:
      return one.post(in);
    case 1:
      return one.post_receive();
    case 2:
      one.transmit_to(other, 1 + in.below(2000));
      return;
    case 3:
      one.transmit_to(other, 1 + in.below(20));
      return;
    case 4:
      return one.place(1 + in.below(2000));
    default:
      one.consume(1 + in.below(2000));
  }
}

bool settle(peer& one, peer& other) {
  if (one.needs_receive()) one.post_receive();
  const bool took = one.consume(~std::size_t{0});
  return one.transmit_to(other, 1000) || took || one.needs_receive();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  weft::fuzz::input in(data, size);
  const std::uint8_t flags = in.byte();
  engine_options options{.initiator = true,
                         .crc = (flags & 1) != 0,
                         .interleave = (flags & 2) != 0,
                         .max_ulpdu = 128U + flags,
                         .atomics = true,
                         .immediate = true,
                         .ird = 1U + (flags >> 6),
                         .ord = 1U + (flags >> 6),
                         .first_sequence = 0xFFFFFFFD,
                         .place_early_bytes = (flags & 4) != 0 ? 1U : 100'000U};
  peer left(options);
  options.initiator = false;
  peer right(options);
  // A responder waits for the first word.
  const std::uint8_t ready[] = {2, 0, 0, 0, 0};
  weft::fuzz::input signal(ready, sizeof ready);
  left.post(signal);

  while (!in.empty()) {
    if (in.byte() % 2 == 0)
      step(in, left, right);
    else
      step(in, right, left);
  }
  bool busy = true;
  while (busy) {
    const bool left_busy = settle(left, right);
    busy = settle(right, left) || left_busy;
  }
  left.expect_all_done(right);
  right.expect_all_done(left);
  return 0;
}
