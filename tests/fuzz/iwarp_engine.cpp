// SPDX-License-Identifier: Apache-2.0
// One engine against a peer that says anything at any time: raw bytes, well-framed nonsense, and its own words back.
// The input is a programme of single-byte commands, so that any cut of it is one too.
#include <weft/net/iwarp/engine.hpp>

#include <deque>

#include "input.hpp"

namespace {

using namespace weft::net::iwarp;
using weft::fuzz::require;

constexpr std::size_t region_bytes = 3000;

class connection : public engine_host {
 public:
  explicit connection(const engine_options& options)
      : atomics_(options.atomics),
        immediate_(options.immediate),
        batch_(output_batch::min_storage_bytes, 6000),
        engine_(*this, options) {}

  void run(weft::fuzz::input& in, bool crc) {
    while (!in.empty()) step(in, crc);
    engine_.abort(words::format("the input is over"));
    engine_.abandon(batch_);
    require(engine_.finished(), "nothing is left of an abandoned stream");
    require(next_completed_ == operations_.size(), "every request completes");
    require(ended_receives_ == receives_.size(), "every receive ends");
    require(endings_ == 1, "a stream ends once");
  }

  write_target find_write_target(std::uint32_t stag, std::uint64_t offset, std::size_t bytes) noexcept override {
    const access_status status = check(stag, offset, bytes);
    if (status != access_status::ok) return {.status = status};
    return {.status = status, .memory = std::span(region_).subspan(offset, bytes)};
  }
  access_status remote_read(std::uint32_t stag, std::uint64_t offset, std::span<std::byte> out) noexcept override {
    const access_status status = check(stag, offset, out.size());
    if (status == access_status::ok) std::ranges::copy(std::span(region_).subspan(offset, out.size()), out.begin());
    return status;
  }
  access_status check_read(std::uint32_t stag, std::uint64_t offset, std::uint32_t bytes) noexcept override {
    return check(stag, offset, bytes);
  }
  access_status remote_atomic(const atomic_request& asked, std::uint64_t& previous) noexcept override {
    const access_status status = check_atomic(asked.stag, asked.offset);
    if (status != access_status::ok) return status;
    std::memcpy(&previous, region_.data() + asked.offset, sizeof previous);
    const std::uint64_t after = apply(asked, previous);
    std::memcpy(region_.data() + asked.offset, &after, sizeof after);
    return access_status::ok;
  }
  access_status check_atomic(std::uint32_t stag, std::uint64_t offset) noexcept override {
    const access_status status = check(stag, offset, sizeof(std::uint64_t));
    return status == access_status::ok && offset % sizeof(std::uint64_t) != 0 ? access_status::misaligned : status;
  }
  access_status invalidate(std::uint32_t stag) noexcept override {
    if (stag != stag_) return access_status::not_associated;
    revoked_ = true;
    return access_status::ok;
  }

  void completed(request& request, const completion& completion) noexcept override {
    require(next_completed_ < operations_.size() && &operations_[next_completed_]->posted == &request,
            "requests complete in posting order, once");
    require(engine_.is_open() || completion.status != completion_status::ok, "an ended stream completes nothing well");
    operations_[next_completed_++]->memory = {};  // whoever still uses it is caught by the sanitizer
  }
  void received(receive_request& receive, const received_info& info) noexcept override {
    require(info.bytes <= receive.buffer.size(), "a message fits its receive");
    end_receive(receive);
  }
  void flushed(receive_request& receive) noexcept override {
    require(!engine_.is_open(), "only an ended stream flushes");
    end_receive(receive);
  }
  void ended(const ending& ending) noexcept override {
    require(++endings_ == 1 && !ending.text.empty(), "a stream ends once, in words");
  }

 private:
  struct operation {
    request posted;
    std::vector<std::byte> memory;
    std::array<weft::mr::slice, 3> segments;
  };
  struct receive_slot {
    receive_request posted;
    std::vector<std::byte> memory;
  };

  void step(weft::fuzz::input& in, bool crc) {
    switch (in.byte() % 10) {
      case 0:
        return feed(in.run(in.byte()));
      case 1:
        return feed_framed(in.run(in.byte()), crc);
      case 2: {  // a segment of proper shape
        const auto header = in.run(untagged_header::bytes);
        std::vector<std::byte> ulpdu(header.begin(), header.end());
        ulpdu.resize(header.size() + in.below(1500));
        return feed_framed(ulpdu, crc);
      }
      case 3:
        return post(in);
      case 4: {
        auto& slot = *receives_.emplace_back(std::make_unique<receive_slot>());
        slot.memory.resize(in.below(2000));
        slot.posted.buffer = slot.memory;
        engine_.post_receive(slot.posted);
        return feed({});
      }
      case 5:
        return transmit(1 + in.below(4000), false);
      case 6:
        return transmit(1 + in.below(4000), true);
      case 7:
        revoked_ = !revoked_;
        return;
      case 8:
        if (in.byte() % 8 == 0) engine_.end_of_stream(inbox_.size());
        return;
      default:
        if (in.byte() % 16 == 0) engine_.abort(words::format("at the fuzzer's wish"));
    }
  }

  void post(weft::fuzz::input& in) {
    auto& op = *operations_.emplace_back(std::make_unique<operation>());
    const std::uint8_t kind = in.byte();
    op.memory.resize(in.below(5000));
    const std::size_t cut = in.below(op.memory.size() + 1);
    op.segments[0] = {std::span(op.memory).first(cut), nullptr};
    op.segments[2] = {std::span(op.memory).subspan(cut), nullptr};
    op.posted.kind = static_cast<request_kind>((kind & 8) != 0 && atomics_ ? 4 + kind % 2 : kind % 4);
    op.posted.local = op.segments;
    if (op.posted.kind == request_kind::fetch_add || op.posted.kind == request_kind::compare_swap) {
      op.memory.resize(sizeof(std::uint64_t));
      op.posted.local = {};
      op.posted.tail = op.memory;
      op.posted.operand = op.posted.compare = cut;
    }
    if (op.posted.kind == request_kind::write && immediate_ && (kind & 16) != 0) op.posted.immediate = kind;
    op.posted.stag = in.word();
    op.posted.offset = in.word();
    require(engine_.post(op.posted), "a request of this size can be posted");
  }

  /// Sends some of what there is to send; `reflect` makes the peer say it back.
  void transmit(std::size_t limit, bool reflect) {
    if (batch_.empty() && (!engine_.has_output() || !engine_.gather(batch_))) return;
    std::vector<std::byte> wire;
    for (const iovec& segment : batch_.pending()) {
      const auto* const start = static_cast<const std::byte*>(segment.iov_base);
      wire.insert(wire.end(), start, start + std::min(segment.iov_len, limit - wire.size()));
    }
    engine_.sent(batch_, wire.size());
    if (reflect) feed(wire);
  }

  void feed_framed(std::span<const std::byte> ulpdu, bool crc) {
    std::vector<std::byte> fpdu(mpa::fpdu_bytes(ulpdu.size()));
    mpa::encode_fpdu(ulpdu, crc, fpdu);
    feed(fpdu);
  }

  void feed(std::span<const std::byte> wire) {
    if (inbox_.empty()) {
      const auto place = engine_.placement();
      const auto piece = wire.first(std::min(wire.size(), place.size()));
      std::ranges::copy(piece, place.begin());
      engine_.placed(piece.size());
      wire = wire.subspan(piece.size());
    }
    inbox_.insert(inbox_.end(), wire.begin(), wire.end());
    // In memory of its own and exactly that long, for the sanitizer.
    const std::vector<std::byte> exact(inbox_.begin(), inbox_.end());
    const std::size_t used = engine_.consume(exact);
    require(used <= exact.size(), "no more is taken than there is");
    inbox_.erase(inbox_.begin(), inbox_.begin() + static_cast<std::ptrdiff_t>(used));
    if (engine_.needs_receive() || !engine_.is_open()) return;
    require(inbox_.size() < mpa::max_fpdu_bytes, "a whole FPDU is always taken");
  }

  access_status check(std::uint32_t stag, std::uint64_t offset, std::uint64_t bytes) const {
    require(bytes != 0, "memory of no length is never asked for");
    if (stag != stag_ || revoked_) return access_status::invalid_stag;
    return offset > region_bytes || bytes > region_bytes - offset ? access_status::bounds : access_status::ok;
  }

  void end_receive(receive_request& receive) {
    require(ended_receives_ < receives_.size() && &receives_[ended_receives_]->posted == &receive,
            "receives end in posting order, once");
    receives_[ended_receives_++]->memory = {};
  }

  static constexpr std::uint32_t stag_ = 1;
  const bool atomics_;
  const bool immediate_;
  std::vector<std::byte> region_ = std::vector<std::byte>(region_bytes);
  bool revoked_ = false;
  std::vector<std::unique_ptr<operation>> operations_;
  std::vector<std::unique_ptr<receive_slot>> receives_;
  std::size_t next_completed_ = 0;
  std::size_t ended_receives_ = 0;
  int endings_ = 0;
  std::deque<std::byte> inbox_;
  output_batch batch_;
  engine engine_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  weft::fuzz::input in(data, size);
  const std::uint8_t flags = in.byte();
  const bool crc = (flags & 1) != 0;
  connection connection({.initiator = (flags & 2) != 0,
                         .crc = crc,
                         .signal_was_read = (flags & 4) != 0,
                         .interleave = (flags & 8) != 0,
                         .max_ulpdu = (flags & 16) != 0 ? 64768U : 300U,
                         .atomics = (flags & 32) != 0,
                         .immediate = (flags & 64) != 0,
                         .ird = 2,
                         .ord = 2,
                         .place_early_bytes = (flags & 32) != 0 ? 1U : 100'000U});
  connection.run(in, crc);
  return 0;
}
