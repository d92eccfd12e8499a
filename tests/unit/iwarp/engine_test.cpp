// SPDX-License-Identifier: Apache-2.0
#include <weft/net/iwarp/engine.hpp>

#include <deque>
#include <map>
#include <tuple>

#include "iwarp/support.hpp"
#include "kit/bytes.hpp"

namespace weft::net::iwarp {
namespace {

bytes pattern(std::size_t count, unsigned seed = 1) {
  bytes result(count);
  test::fill(result, seed);
  return result;
}

void append(bytes& to, std::span<const std::byte> more) { to.insert(to.end(), more.begin(), more.end()); }

// ---- the wire by hand ----

bytes tagged(opcode op, std::uint32_t stag, std::uint64_t offset, std::span<const std::byte> payload = {},
             bool last = true) {
  bytes ulpdu = encoded(tagged_header{.last = last, .opcode = op, .stag = stag, .offset = offset});
  append(ulpdu, payload);
  return ulpdu;
}

bytes untagged(const untagged_header& header, std::span<const std::byte> payload = {}) {
  bytes ulpdu = encoded(header);
  append(ulpdu, payload);
  return ulpdu;
}

bytes send_of(std::span<const std::byte> payload, std::uint32_t sequence = 1) {
  return untagged({.opcode = opcode::send, .sequence = sequence}, payload);
}

bytes read_of(const read_request& read, std::uint32_t sequence = 1) {
  return untagged({.opcode = opcode::read_request, .queue = read_request_queue, .sequence = sequence}, encoded(read));
}

bytes atomic_of(const atomic_request& asked, std::uint32_t sequence = 1) {
  return untagged({.opcode = opcode::atomic_request, .queue = read_request_queue, .sequence = sequence},
                  encoded(asked));
}

bytes atomic_answer_of(const atomic_response& response, std::uint32_t sequence = 1) {
  return untagged({.opcode = opcode::atomic_response, .queue = atomic_response_queue, .sequence = sequence},
                  encoded(response));
}

bytes terminate_of(const terminate_message& message) {
  bytes body(terminate_message::max_bytes);
  body.resize(encode(message, std::span(body).first<terminate_message::max_bytes>()));
  return untagged({.opcode = opcode::terminate, .queue = terminate_queue}, body);
}

/// A Terminate that repeats the header of `ulpdu`.
bytes terminate_about(const bytes& ulpdu, std::size_t header_bytes, terminate_code code,
                      std::optional<std::uint16_t> segment_bytes = std::nullopt) {
  terminate_message message{.code = code, .segment_bytes = segment_bytes, .segment_header_bytes = header_bytes};
  std::copy_n(ulpdu.begin(), header_bytes, message.segment_header.begin());
  return terminate_of(message);
}

bytes framed(std::span<const std::byte> ulpdu, bool crc = true) {
  bytes fpdu(mpa::fpdu_bytes(ulpdu.size()));
  mpa::encode_fpdu(ulpdu, crc, fpdu);
  return fpdu;
}

/// The ULPDUs of whole FPDUs.
std::vector<bytes> ulpdus_of(std::span<const std::byte> wire) {
  std::vector<bytes> result;
  while (!wire.empty()) {
    const auto ulpdu = first_ulpdu(wire);
    result.emplace_back(ulpdu.begin(), ulpdu.end());
    wire = wire.subspan(mpa::fpdu_bytes(ulpdu.size()));
  }
  return result;
}

tagged_header tagged_of(const bytes& ulpdu) { return parse_tagged(std::span(ulpdu).first<tagged_header::bytes>()); }
untagged_header untagged_of(const bytes& ulpdu) {
  return parse_untagged(std::span(ulpdu).first<untagged_header::bytes>());
}
read_request read_in(const bytes& ulpdu) { return parse_read_request(std::span(ulpdu).last<read_request::bytes>()); }

// ---- one side ----

struct region {
  bytes memory;
  bool readable = true;
  bool writable = true;
  bool atomic = true;
  bool foreign = false;  // of another connection
  bool shared = false;   // must not be invalidated by a peer
};

struct message {
  bytes payload;
  std::optional<std::uint32_t> invalidated;
  std::optional<std::uint32_t> immediate;
};

/// An engine with memory, a batch and a log of what it reports.
class side : public engine_host {
 public:
  explicit side(const engine_options& options, std::size_t storage_bytes = 128 * 1024,
                std::size_t limit_bytes = 512 * 1024)
      : batch(storage_bytes, limit_bytes), machine(*this, options) {}

  virtual ~side() {
    machine.abort(words::format("the test is over"));
    machine.abandon(batch);
  }

  write_target find_write_target(std::uint32_t stag, std::uint64_t offset, std::size_t size) noexcept override {
    EXPECT_NE(size, 0U);
    const access_status status = check(stag, offset, size, &region::writable);
    if (status != access_status::ok) return {.status = status};
    return {.status = status, .memory = std::span(regions.at(stag).memory).subspan(offset, size)};
  }

  access_status remote_read(std::uint32_t stag, std::uint64_t offset, std::span<std::byte> out) noexcept override {
    EXPECT_FALSE(out.empty());
    const access_status status = check(stag, offset, out.size(), &region::readable);
    if (status == access_status::ok)
      std::ranges::copy(std::span(regions.at(stag).memory).subspan(offset, out.size()), out.begin());
    return status;
  }

  access_status check_read(std::uint32_t stag, std::uint64_t offset, std::uint32_t size) noexcept override {
    EXPECT_NE(size, 0U);
    return check(stag, offset, size, &region::readable);
  }

  access_status check_atomic(std::uint32_t stag, std::uint64_t offset) noexcept override {
    const access_status status = check(stag, offset, 8, &region::atomic);
    return status == access_status::ok && offset % 8 != 0 ? access_status::misaligned : status;
  }

  access_status remote_atomic(const atomic_request& asked, std::uint64_t& previous) noexcept override {
    const access_status status = check_atomic(asked.stag, asked.offset);
    if (status != access_status::ok) return status;
    std::byte* const place = regions.at(asked.stag).memory.data() + asked.offset;
    std::memcpy(&previous, place, sizeof previous);
    const std::uint64_t after = apply(asked, previous);
    std::memcpy(place, &after, sizeof after);
    return access_status::ok;
  }

  access_status invalidate(std::uint32_t stag) noexcept override {
    const auto found = regions.find(stag);
    if (found == regions.end()) return access_status::invalid_stag;
    if (found->second.shared) return access_status::access;
    regions.erase(found);
    return access_status::ok;
  }

  void completed(request& request, const completion& completion) noexcept override {
    completions.emplace_back(&request, completion);
    if (when_completed) when_completed();
  }

  void received(receive_request& receive, const received_info& info) noexcept override {
    const auto payload = receive.buffer.first(info.bytes);
    messages.push_back({bytes(payload.begin(), payload.end()), info.invalidated_stag, info.immediate});
    if (repost_receives) machine.post_receive(receive);
    if (when_received) when_received();
  }

  void flushed(receive_request& /*receive*/) noexcept override { ++flushed_receives; }

  void input_over() noexcept override { ++heard_input_over; }

  void ended(const ending& ending) noexcept override {
    EXPECT_FALSE(end.has_value()) << "reported twice: " << ending.text.c_str();
    EXPECT_FALSE(ending.text.empty());
    end = ending;
    completions_before_end = completions.size();
  }

  // Posting. `pieces` cuts the local memory into that many segments.
  request& send(bytes payload) { return post(request_kind::send, std::move(payload), 0, 0); }
  request& write(bytes payload, std::uint32_t stag, std::uint64_t offset, std::size_t pieces = 1) {
    return post(request_kind::write, std::move(payload), stag, offset, pieces);
  }
  /// Cuts the local memory into segments of these sizes, again and again.
  request& write_cut(bytes payload, std::uint32_t stag, std::uint64_t offset, std::span<const std::size_t> sizes) {
    operation& op = operations.emplace_back();
    op.memory = std::move(payload);
    std::span<std::byte> rest(op.memory);
    for (std::size_t i = 0; !rest.empty(); ++i) {
      const std::size_t size = std::min(rest.size(), sizes[i % sizes.size()]);
      op.segments.emplace_back(rest.first(size), nullptr);
      rest = rest.subspan(size);
    }
    return post(op, request_kind::write, stag, offset);
  }
  request& read(std::size_t size, std::uint32_t stag, std::uint64_t offset, std::size_t pieces = 1) {
    return post(request_kind::read, bytes(size), stag, offset, pieces);
  }
  request& fetch_add(std::uint32_t stag, std::uint64_t offset, std::uint64_t add) {
    return post(request_kind::fetch_add, bytes(8), stag, offset, 1, add);
  }
  request& write_immediate(bytes payload, std::uint32_t stag, std::uint64_t offset, std::uint32_t immediate) {
    return post(request_kind::write, std::move(payload), stag, offset, 1, 0, immediate);
  }
  request& post(request_kind kind, bytes payload, std::uint32_t stag, std::uint64_t offset, std::size_t pieces = 1,
                std::uint64_t operand = 0, std::optional<std::uint32_t> immediate = std::nullopt) {
    operation& op = operations.emplace_back();
    op.posted.operand = operand;
    op.posted.immediate = immediate;
    op.memory = std::move(payload);
    for (std::size_t i = 0; i < pieces; ++i) {
      const std::size_t begin = op.memory.size() * i / pieces;
      const std::size_t until = op.memory.size() * (i + 1) / pieces;
      op.segments.emplace_back(std::span(op.memory).subspan(begin, until - begin), nullptr);
    }
    return post(op, kind, stag, offset);
  }
  /// Sends at once; the memory is gone afterwards.
  void send_now(bytes payload) {
    request item;
    const mr::slice whole(payload, nullptr);
    item.local = {&whole, 1};
    ASSERT_TRUE(machine.may_take_now(&batch, payload.size()));
    machine.take_now(batch, item);
    std::ranges::fill(payload, std::byte{0});
  }
  void receive(std::size_t size) {
    auto& [posted, buffer] = receives.emplace_back();
    buffer.resize(size);
    posted.buffer = buffer;
    machine.post_receive(posted);
  }
  const bytes& memory_of(const request& request) const {
    return std::ranges::find_if(operations, [&](const operation& op) { return &op.posted == &request; })->memory;
  }

  std::uint64_t value_of(const request& request) const { return word_at(memory_of(request), 0); }
  static std::uint64_t word_at(const bytes& memory, std::size_t offset) {
    std::uint64_t value = 0;
    std::memcpy(&value, memory.data() + offset, sizeof value);
    return value;
  }

  // Moving bytes.
  void feed(std::span<const std::byte> wire) {
    append(inbox, wire);
    consume();
  }
  /// As much as can be goes where it belongs; returns how much that was.
  std::size_t feed_in_place(std::span<const std::byte> wire) {
    std::size_t in_place = 0;
    while (inbox.empty() && !wire.empty()) {
      const std::span<std::byte> place = machine.placement();
      const auto piece = wire.first(std::min(place.size(), wire.size()));
      if (piece.empty()) break;
      std::ranges::copy(piece, place.begin());
      machine.placed(piece.size());
      wire = wire.subspan(piece.size());
      in_place += piece.size();
    }
    feed(wire);
    return in_place;
  }
  void consume() {
    const std::size_t used = machine.consume(inbox);
    inbox.erase(inbox.begin(), inbox.begin() + std::ptrdiff_t(used));
  }
  /// At most `limit` bytes of what is to be sent.
  bytes transmit(std::size_t limit = ~std::size_t{0}) {
    if (batch.empty() && machine.has_output()) {
      EXPECT_TRUE(machine.gather(batch));
    }
    bytes wire;
    for (const iovec& segment : batch.pending()) {
      const std::size_t count = std::min(segment.iov_len, limit - wire.size());
      append(wire, {static_cast<const std::byte*>(segment.iov_base), count});
    }
    if (!wire.empty()) machine.sent(batch, wire.size());
    return wire;
  }
  bytes transmit_all() {
    bytes wire;
    while (machine.has_output() || !batch.empty()) append(wire, transmit());
    return wire;
  }
  std::vector<bytes> transmitted() { return ulpdus_of(transmit_all()); }

  /// The Terminate that ends the output.
  std::optional<terminate_message> transmitted_terminate() {
    const auto sent = transmitted();
    if (sent.empty() || control_of(sent.back()).opcode != opcode::terminate) return std::nullopt;
    return parse_terminate(std::span(sent.back()).subspan(untagged_header::bytes));
  }

  testing::AssertionResult ended_with(terminate_code code) const { return is_end(end && end->code == code); }
  testing::AssertionResult ended_with(ending_reason reason) const { return is_end(end && end->reason == reason); }

  completion_status status_of(const request& request) const {
    const auto found = std::ranges::find(completions, &request, &std::pair<iwarp::request*, completion>::first);
    EXPECT_NE(found, completions.end());
    return found == completions.end() ? completion_status::flushed : found->second.status;
  }
  bool all_ok() const {
    return std::ranges::all_of(completions,
                               [](const auto& entry) { return entry.second.status == completion_status::ok; });
  }
  bool completed_in_order() const {
    if (completions.size() != operations.size()) return false;
    return std::ranges::equal(completions, operations,
                              [](const auto& entry, const operation& op) { return entry.first == &op.posted; });
  }

  output_batch batch;
  engine machine;
  std::map<std::uint32_t, region> regions;
  bytes inbox;
  std::vector<std::pair<request*, completion>> completions;
  std::vector<message> messages;
  std::size_t flushed_receives = 0;
  std::size_t heard_input_over = 0;
  std::optional<ending> end;
  std::size_t completions_before_end = 0;
  bool repost_receives = false;
  std::function<void()> when_received;
  std::function<void()> when_completed;

 private:
  testing::AssertionResult is_end(bool expected) const {
    if (expected) return testing::AssertionSuccess();
    return testing::AssertionFailure() << (end ? end->text.c_str() : "it has not ended");
  }

  struct operation {
    request posted;
    bytes memory;
    std::vector<mr::slice> segments;
  };

  request& post(operation& op, request_kind kind, std::uint32_t stag, std::uint64_t offset) {
    op.posted.kind = kind;
    op.posted.stag = stag;
    op.posted.offset = offset;
    if (is_atomic(kind)) {
      op.posted.tail = op.memory;
    } else {
      op.posted.local = op.segments;
    }
    EXPECT_TRUE(machine.post(op.posted));
    return op.posted;
  }

  access_status check(std::uint32_t stag, std::uint64_t offset, std::uint64_t size, bool region::*right) const {
    const auto found = regions.find(stag);
    if (found == regions.end()) return access_status::invalid_stag;
    if (found->second.foreign) return access_status::not_associated;
    const std::uint64_t limit = found->second.memory.size();
    if (offset > limit || size > limit - offset) return access_status::bounds;
    return found->second.*right ? access_status::ok : access_status::access;
  }

  std::deque<operation> operations;
  std::deque<std::pair<receive_request, bytes>> receives;
};

/// Hears everything and may speak.
engine_options alone(bool crc = true) { return {.initiator = true, .crc = crc, .ird = 2, .ord = 2}; }
/// The same where RFC 7306 was agreed on.
engine_options extended() { return {.initiator = true, .atomics = true, .immediate = true, .ird = 2, .ord = 2}; }

/// TEST of one of these, with such options.
#define TEST_SIDE(suite, name, options)     \
  void suite##_##name##_body(side& engine); \
  TEST(suite, name) {                       \
    side engine(options);                   \
    suite##_##name##_body(engine);          \
  }                                         \
  void suite##_##name##_body(side& engine)

/// Two engines, joined by wires that deliver whatever pieces they like.
class engines : public testing::Test {
 protected:
  void connect(engine_options both, std::size_t storage_bytes = 128 * 1024, std::size_t limit_bytes = 512 * 1024) {
    both.initiator = true;
    left.emplace(both, storage_bytes, limit_bytes);
    both.initiator = false;
    right.emplace(both, storage_bytes, limit_bytes);
  }

  void run(std::size_t longest_piece = ~std::size_t{0}) {
    bool busy = true;
    while (busy) {
      const bool left_busy = step(*left, *right, longest_piece);
      busy = step(*right, *left, longest_piece) || left_busy;
    }
  }

  bool step(side& from, side& to, std::size_t longest_piece) {
    const std::size_t piece = longest_piece == ~std::size_t{0} ? longest_piece : 1 + random() % longest_piece;
    const bytes wire = from.transmit(piece);
    if (wire.empty()) return false;
    if (random() % 2 == 0)
      to.feed(wire);
    else
      fed_in_place += to.feed_in_place(wire);
    return true;
  }

  std::optional<side> left;
  std::optional<side> right;
  std::mt19937 random{20240229};
  std::size_t fed_in_place = 0;
};

// ---- moving data ----

class engines_of_every_kind : public engines,
                              public testing::WithParamInterface<std::tuple<bool, bool, std::size_t, std::size_t>> {};
INSTANTIATE_TEST_SUITE_P(engines, engines_of_every_kind,
                         testing::Combine(testing::Bool(), testing::Bool(), testing::Values(128, 1454, 64768),
                                          testing::Values(1, 1000, ~std::size_t{0})));

TEST_P(engines_of_every_kind, move_writes_sends_and_reads_in_any_pieces) {
  const auto [crc, interleave, max_ulpdu, early] = GetParam();
  connect(
      {.crc = crc, .interleave = interleave, .max_ulpdu = max_ulpdu, .ird = 4, .ord = 4, .place_early_bytes = early},
      70000, 100000);
  const bytes source = pattern(300000);
  right->regions[7] = {.memory = bytes(300000)};
  right->regions[8] = {.memory = source};
  left->regions[9] = {.memory = source};
  right->repost_receives = left->repost_receives = true;
  for (int i = 0; i < 3; ++i) right->receive(5000), left->receive(5000);

  std::vector<request*> reads;
  std::vector<request*> back;
  for (std::size_t round = 0; round < 10; ++round) {
    left->write(
        bytes(source.begin() + std::ptrdiff_t(round * 30000), source.begin() + std::ptrdiff_t(round + 1) * 30000), 7,
        round * 30000, 1 + round * 7);
    reads.push_back(&left->read(30000, 8, round * 30000, 1 + round));
    left->send(pattern(round * 555, 3));
    right->send(pattern(5000 - round, 4));
    back.push_back(&right->read(29999, 9, round * 1000));
  }
  run(40000);

  EXPECT_TRUE(left->all_ok() && left->completed_in_order());
  EXPECT_TRUE(right->all_ok() && right->completed_in_order());
  EXPECT_EQ(right->regions[7].memory, source);
  ASSERT_EQ(right->messages.size(), 10U);
  ASSERT_EQ(left->messages.size(), 10U);
  for (std::size_t round = 0; round < 10; ++round) {
    EXPECT_EQ(right->messages[round].payload, pattern(round * 555, 3));
    EXPECT_EQ(left->messages[round].payload, pattern(5000 - round, 4));
    EXPECT_TRUE(std::ranges::equal(left->memory_of(*reads[round]), std::span(source).subspan(round * 30000, 30000)));
    EXPECT_TRUE(std::ranges::equal(right->memory_of(*back[round]), std::span(source).subspan(round * 1000, 29999)));
  }
  if (early == 1) {
    EXPECT_GT(fed_in_place, 0U);
  }
  if (early == ~std::size_t{0}) {
    EXPECT_EQ(fed_in_place, 0U);
  }
}

TEST_F(engines, do_not_care_where_tcp_cuts) {
  for (std::size_t piece = 1; piece < 60; ++piece) {
    connect({.max_ulpdu = 128, .place_early_bytes = 20});
    right->regions[1] = {.memory = bytes(500)};
    right->receive(500);
    left->write(pattern(333), 1, 5);
    request& read = left->read(333, 1, 5);
    left->send(pattern(222));
    bool busy = true;
    while (busy) {
      busy = false;
      for (auto [from, to] : {std::pair{&*left, &*right}, std::pair{&*right, &*left}}) {
        const bytes wire = from->transmit(piece);
        to->feed_in_place(wire);
        busy = busy || !wire.empty();
      }
    }
    ASSERT_TRUE(left->all_ok() && left->completed_in_order()) << piece;
    ASSERT_EQ(left->memory_of(read), pattern(333)) << piece;
    ASSERT_EQ(right->messages.at(0).payload, pattern(222)) << piece;
  }
}

TEST_F(engines, count_messages_past_the_wrap_of_their_sequence) {
  connect({.first_sequence = 0xFFFFFFFE});
  right->regions[1] = {.memory = pattern(100)};
  right->repost_receives = true;
  right->receive(100);
  for (unsigned i = 0; i < 5; ++i) {
    left->send(pattern(10, i));
    left->read(100, 1, 0);
  }
  run();
  EXPECT_TRUE(left->all_ok() && left->completed_in_order());
  EXPECT_EQ(right->messages.size(), 5U);
}

TEST_F(engines, send_small_messages_at_once_behind_those_that_were_posted_and_ahead_of_those_that_follow) {
  connect({});
  right->repost_receives = true;
  right->receive(100);
  left->send(pattern(10, 0));
  EXPECT_FALSE(left->machine.may_take_now(nullptr, 10)) << "it would overtake one that was posted";
  run();
  for (unsigned i = 1; i < 4; ++i) left->send_now(pattern(10, i));
  left->send(pattern(10, 4));
  EXPECT_FALSE(left->machine.may_take_now(&left->batch, 10));
  run();
  ASSERT_EQ(right->messages.size(), 5U);
  for (unsigned i = 0; i < 5; ++i) EXPECT_EQ(right->messages[i].payload, pattern(10, i));
  EXPECT_TRUE(left->all_ok() && left->completed_in_order());
}

// What is taken at once leaves first, so that a program which sends in each turn would keep a peer's reads waiting.
TEST_F(engines, send_nothing_at_once_while_a_response_is_due) {
  connect({});
  right->regions[1] = {.memory = pattern(100)};
  request& read = left->read(100, 1, 0);
  right->feed(left->transmit_all());
  EXPECT_FALSE(right->machine.may_take_now(nullptr, 10));
  run();
  EXPECT_EQ(left->memory_of(read), pattern(100));
  EXPECT_TRUE(right->machine.may_take_now(nullptr, 10));
}

TEST_F(engines, send_no_more_at_once_than_one_sendmsg_takes_by_copies) {
  connect({}, output_batch::min_storage_bytes);
  right->repost_receives = true;
  right->receive(300);
  EXPECT_TRUE(left->machine.may_take_now(nullptr, 256));
  EXPECT_FALSE(left->machine.may_take_now(nullptr, 257));
  unsigned count = 0;
  for (; left->machine.may_take_now(&left->batch, 200); ++count) left->send_now(pattern(200, count));
  EXPECT_GT(count, 10U);
  run();
  ASSERT_EQ(right->messages.size(), count);
  for (unsigned i = 0; i < count; ++i) EXPECT_EQ(right->messages[i].payload, pattern(200, i));
}

TEST_F(engines, gather_scattered_memory_of_any_shape) {
  connect({.max_ulpdu = 64768}, output_batch::min_storage_bytes);
  right->regions[1] = {.memory = bytes(200000)};
  for (const std::size_t pieces : {1U, 3U, 150U, 5000U, 100001U}) {
    left->write(pattern(100000, static_cast<unsigned>(pieces)), 1, 77, pieces);
    run();
    ASSERT_TRUE(left->all_ok()) << pieces;
    ASSERT_TRUE(std::ranges::equal(std::span(right->regions[1].memory).subspan(77, 100000),
                                   pattern(100000, static_cast<unsigned>(pieces))));
  }
}

// So that a word of the peer's memory is read or written by one FPDU, and can be so at once.
TEST_F(engines, cut_writes_and_read_responses_where_a_word_of_the_peers_memory_ends) {
  constexpr std::size_t size = 20000;
  for (const std::size_t max_ulpdu : {128U, 1444U, 64768U}) {
    for (const std::size_t pieces : {1U, 3U, 60U, 70U, 5000U}) {
      for (std::uint64_t offset = 0; offset < 9; ++offset) {
        connect({.max_ulpdu = max_ulpdu}, output_batch::min_storage_bytes);
        right->regions[1] = {.memory = bytes(30000)};
        left->write(pattern(size), 1, offset, pieces);
        request& read = left->read(size, 1, offset);
        const bytes asked = left->transmit_all();
        right->feed(asked);
        const bytes answered = right->transmit_all();
        left->feed(answered);
        ASSERT_EQ(left->memory_of(read), pattern(size));
        bytes all = asked;
        append(all, answered);
        for (const bytes& ulpdu : ulpdus_of(all)) {
          if (!control_of(ulpdu).tagged) continue;
          const tagged_header header = tagged_of(ulpdu);
          const bool is_write = header.opcode == opcode::write;
          const std::uint64_t at = is_write ? header.offset : header.offset + offset;
          ASSERT_TRUE(at == offset || at % 8 == 0) << pieces << " pieces at " << offset << ", one at " << at;
        }
      }
    }
  }
}

// The batch is full behind a segment that is just too long to be copied, and has no room for a copy of it without the
// bytes of the cut word.
TEST_F(engines, cut_no_word_where_a_segment_becomes_so_short_that_it_is_copied) {
  constexpr std::array<std::size_t, 2> sizes{199, engine::inline_bytes + 1};
  for (std::uint64_t offset = 0; offset < 9; ++offset) {
    connect({.max_ulpdu = 64768}, output_batch::min_storage_bytes);
    right->regions[1] = {.memory = bytes(30000)};
    left->write_cut(pattern(20000), 1, offset, sizes);
    const bytes wire = left->transmit_all();
    for (const bytes& ulpdu : ulpdus_of(wire)) {
      const std::uint64_t at = tagged_of(ulpdu).offset;
      ASSERT_TRUE(at == offset || at % 8 == 0) << "a write at " << offset << " is cut at " << at;
    }
    right->feed(wire);
    ASSERT_TRUE(std::ranges::equal(std::span(right->regions[1].memory).subspan(offset, 20000), pattern(20000)));
  }
}

TEST_F(engines, gather_more_segments_than_one_sendmsg_takes) {
  connect({.max_ulpdu = 64768});
  right->regions[1] = {.memory = bytes(500000)};
  for (std::size_t i = 0; i < 5; ++i) left->write(pattern(100000, 9), 1, i * 100000, 375);
  run();
  EXPECT_TRUE(left->all_ok());
  for (std::size_t i = 0; i < 5; ++i)
    EXPECT_TRUE(
        std::ranges::equal(std::span(right->regions[1].memory).subspan(i * 100000, 100000), pattern(100000, 9)));
}

TEST_F(engines, scatter_a_read_into_memory_of_any_shape) {
  connect({});
  right->regions[1] = {.memory = pattern(100000)};
  for (const std::size_t pieces : {1U, 3U, 5000U, 100001U}) {
    request& read = left->read(100000, 1, 0, pieces);
    run();
    ASSERT_EQ(left->memory_of(read), pattern(100000)) << pieces;
  }
}

TEST_F(engines, count_atomics_with_reads_past_the_wrap_of_their_sequences) {
  connect({.atomics = true, .ird = 2, .ord = 2, .first_sequence = 0xFFFFFFFE});
  right->regions[1] = {.memory = bytes(8)};
  for (std::uint64_t i = 0; i < 10; ++i) {
    left->fetch_add(1, 0, 1);
    if (i % 3 == 0) left->read(8, 1, 0);
    EXPECT_LE(left->machine.reads_in_flight(), 2U);
  }
  run(20);
  EXPECT_TRUE(left->all_ok() && left->completed_in_order());
  EXPECT_EQ(side::word_at(right->regions[1].memory, 0), 10U);
}

TEST_F(engines, carry_messages_of_no_bytes_whose_tags_nobody_checks) {
  connect({});
  right->receive(0);
  left->write({}, 0xDEAD, 5);
  left->read(0, 0xBEEF, 6);
  left->send({});
  run();
  EXPECT_TRUE(left->all_ok() && left->completed_in_order());
  ASSERT_EQ(right->messages.size(), 1U);
  EXPECT_TRUE(right->messages[0].payload.empty());
}

TEST_F(engines, keep_no_more_reads_in_flight_than_agreed_and_hold_back_what_follows) {
  connect({.ird = 2, .ord = 2});
  right->regions[1] = {.memory = pattern(100)};
  right->receive(10);
  for (int i = 0; i < 3; ++i) left->read(10, 1, 0);
  left->send({});
  const auto first = left->transmit();
  EXPECT_EQ(ulpdus_of(first).size(), 2U);
  EXPECT_FALSE(left->machine.has_output());
  right->feed(first);
  run();
  EXPECT_TRUE(left->all_ok() && left->completed_in_order());
  EXPECT_EQ(right->messages.size(), 1U);
}

TEST_F(engines, serve_responses_and_requests_in_turn) {
  connect({.max_ulpdu = 16384});
  left->regions[1] = {.memory = pattern(4 << 20)};
  right->regions[1] = {.memory = bytes(4 << 20)};
  right->receive(10);
  left->write({}, 0, 0);  // lets the right side speak
  run();
  right->read(1 << 20, 1, 0);
  left->feed(right->transmit_all());
  left->write(pattern(1 << 20), 1, 0);

  // A read response cannot be interrupted, but a long write can, and shows no more than 64 KiB of itself first.
  std::size_t written = 0;
  for (const bytes& ulpdu : ulpdus_of(left->transmit())) {
    if (control_of(ulpdu).opcode == opcode::read_response) break;
    written += ulpdu.size();
  }
  EXPECT_GT(written, 0U);
  EXPECT_LE(written, 65536U + 16384U);
}

TEST_F(engines, never_mix_the_segments_of_two_messages_for_a_strict_peer) {
  connect({.max_ulpdu = 128});
  left->regions[1] = {.memory = pattern(300000)};
  left->write({}, 0, 0);
  run();
  for (int i = 0; i < 2; ++i) right->read(150000, 1, 0);
  left->feed(right->transmit_all());
  left->send(pattern(150000));
  left->write(pattern(150000), 2, 0);

  bool in_message = false;
  opcode current = opcode::write;
  for (const bytes& ulpdu : left->transmitted()) {
    const control front = control_of(ulpdu);
    if (in_message) {
      ASSERT_EQ(front.opcode, current);
    }
    current = front.opcode;
    in_message = !front.last;
  }
  EXPECT_FALSE(in_message);
}

TEST_F(engines, interleave_for_a_native_peer_so_that_nothing_long_holds_up_the_rest) {
  connect({.interleave = true, .max_ulpdu = 16384}, 1 << 20, 4 << 20);
  left->regions[1] = {.memory = pattern(1 << 20)};
  left->write({}, 0, 0);
  run();
  right->read(1 << 20, 1, 0);
  left->feed(right->transmit_all());
  left->send(pattern(10));
  std::size_t before = 0;
  for (const bytes& ulpdu : ulpdus_of(left->transmit())) {
    if (control_of(ulpdu).opcode == opcode::send) break;
    before += ulpdu.size();
  }
  EXPECT_LE(before, 65536U + 16384U);
}

// ---- the first word ----

TEST(engine, a_responder_is_silent_until_it_has_heard_an_fpdu) {
  side responder({.initiator = false});
  responder.send(pattern(5));
  EXPECT_FALSE(responder.machine.has_output() || responder.machine.may_take_now(nullptr, 5));
  responder.feed(framed(tagged(opcode::write, 0, 0)));
  EXPECT_TRUE(responder.machine.has_output());
  EXPECT_EQ(responder.transmitted().size(), 1U);
}

TEST(engine, the_response_to_the_read_that_was_the_ready_signal_is_expected) {
  side initiator({.initiator = true, .signal_was_read = true, .ird = 1, .ord = 1});
  request& read = initiator.read(4, 1, 0);
  EXPECT_FALSE(initiator.machine.has_output()) << "the signal uses the only read";
  initiator.feed(framed(tagged(opcode::read_response, 0, 0)));
  const auto sent = initiator.transmitted();
  ASSERT_EQ(sent.size(), 1U);
  const auto header = untagged_of(sent[0]);
  EXPECT_EQ(header.sequence, 2U);
  const auto sink = read_in(sent[0]).sink_stag;
  initiator.feed(framed(tagged(opcode::read_response, sink, 0, pattern(4))));
  EXPECT_EQ(initiator.status_of(read), completion_status::ok);
}

TEST(engine, a_read_as_the_ready_signal_is_answered) {
  side responder({.initiator = false, .ird = 1});
  responder.feed(framed(read_of({.sink_stag = 3, .sink_offset = 4})));
  const auto sent = responder.transmitted();
  ASSERT_EQ(sent.size(), 1U);
  EXPECT_EQ(sent[0], tagged(opcode::read_response, 3, 4));
}

// ---- completions ----

TEST_SIDE(engine, a_write_completes_when_its_last_byte_is_tcps_and_not_before, alone()) {
  engine.write(pattern(3000), 1, 0);
  const std::size_t all = 3000 + 3 * 14 + 3 * 6;
  EXPECT_EQ(engine.transmit(all - 4).size(), all - 4);
  EXPECT_TRUE(engine.completions.empty());
  engine.transmit();
  ASSERT_EQ(engine.completions.size(), 1U);
  EXPECT_EQ(engine.completions[0].second.bytes, 3000U);
}

TEST_SIDE(engine, a_read_answered_before_its_request_is_reported_as_sent_waits_for_that, alone()) {
  engine.read(4, 1, 0);
  ASSERT_TRUE(engine.machine.gather(engine.batch));
  engine.feed(framed(tagged(opcode::read_response, 1, 0, pattern(4))));
  EXPECT_TRUE(engine.completions.empty());
  engine.transmit();
  EXPECT_TRUE(engine.all_ok() && engine.completed_in_order());
}

TEST_SIDE(engine, a_request_longer_than_a_message_can_be_is_refused, alone()) {
  std::byte byte{};
  const mr::slice segments[] = {{{&byte, 0xFFFFFFFF}, nullptr}, {{&byte, 1}, nullptr}};
  request request;
  request.kind = request_kind::write;
  request.local = segments;
  EXPECT_FALSE(engine.machine.post(request));
  EXPECT_FALSE(engine.machine.has_output());
}

TEST(engine, a_read_is_refused_where_the_peer_takes_none) {
  side engine({.ord = 0});
  request request;
  request.kind = request_kind::read;
  EXPECT_FALSE(engine.machine.post(request));
}

TEST(engine, an_atomic_is_refused_where_it_was_not_agreed_on) {
  std::array<std::byte, 16> memory{};
  const mr::slice local{std::span(memory).first(8), nullptr};
  request request;
  request.kind = request_kind::fetch_add;
  request.tail = std::span(memory).last(8);
  side strict(alone());
  EXPECT_FALSE(strict.machine.post(request));
  side silent({.initiator = true, .atomics = true, .ord = 0});
  EXPECT_FALSE(silent.machine.post(request));
  side engine(extended());
  request.local = {&local, 1};
  EXPECT_FALSE(engine.machine.post(request));
  request.tail = {};
  EXPECT_FALSE(engine.machine.post(request));
  request.local = {};
  request.tail = std::span(memory).last(7);
  EXPECT_FALSE(engine.machine.post(request));
}

TEST_SIDE(engine, a_request_can_be_posted_again_after_its_completion, alone()) {
  request& request = engine.write(pattern(2000), 1, 0);
  const auto first = engine.transmit_all();
  ASSERT_TRUE(engine.machine.post(request));
  EXPECT_EQ(engine.transmit_all(), first);
  EXPECT_EQ(engine.completions.size(), 2U);
}

// ---- receives ----

TEST_SIDE(engine, messages_wait_for_a_posted_receive_and_none_is_lost, alone()) {
  bytes wire;
  for (std::uint32_t i = 1; i <= 3; ++i) append(wire, framed(send_of(pattern(20, i), i)));
  engine.feed(wire);
  EXPECT_TRUE(engine.machine.needs_receive());
  EXPECT_EQ(engine.inbox.size(), wire.size());
  for (std::uint32_t i = 1; i <= 3; ++i) {
    EXPECT_TRUE(engine.machine.needs_receive());
    engine.receive(20);
    EXPECT_FALSE(engine.machine.needs_receive());
    engine.consume();
    ASSERT_EQ(engine.messages.size(), i);
    EXPECT_EQ(engine.messages.back().payload, pattern(20, i));
  }
  EXPECT_FALSE(engine.machine.needs_receive());
  EXPECT_TRUE(engine.machine.is_open());
}

TEST(engine, a_message_that_waits_does_not_keep_a_responder_from_speaking) {
  side responder({.initiator = false});
  responder.send(pattern(3));
  responder.feed(framed(send_of(pattern(3))));
  EXPECT_TRUE(responder.machine.needs_receive());
  EXPECT_TRUE(responder.machine.has_output());
}

TEST(engine, messages_that_ask_for_a_solicited_event_arrive_as_others_do) {
  side engine({.initiator = true, .immediate = true});
  engine.regions[5] = {.memory = bytes(10)};
  for (int i = 0; i != 3; ++i) engine.receive(50);
  engine.feed(framed(untagged({.opcode = opcode::send_solicited, .sequence = 1}, pattern(3))));
  engine.feed(framed(
      untagged({.opcode = opcode::send_solicited_with_invalidate, .invalidate_stag = 5, .sequence = 2}, pattern(4))));
  engine.feed(framed(untagged({.opcode = opcode::immediate_solicited, .sequence = 3}, pattern(8))));
  ASSERT_EQ(engine.messages.size(), 3U);
  EXPECT_EQ(engine.messages[0].payload, pattern(3));
  EXPECT_EQ(engine.messages[1].payload, pattern(4));
  EXPECT_EQ(engine.messages[1].invalidated, 5U);
  EXPECT_TRUE(engine.messages[2].payload.empty() && engine.messages[2].immediate);
}

TEST_SIDE(engine, a_budget_stops_it_between_fpdus, alone()) {
  engine.regions[1] = {.memory = bytes(100)};
  const bytes fpdu = framed(tagged(opcode::write, 1, 0, pattern(50)));
  bytes wire;
  for (int i = 0; i < 10; ++i) append(wire, fpdu);
  EXPECT_EQ(engine.machine.consume(wire, 1), fpdu.size());
  EXPECT_EQ(engine.machine.consume(wire, fpdu.size() * 3), fpdu.size() * 3);
  EXPECT_EQ(engine.machine.consume(wire, 0), 0U);
}

// ---- integrity ----

TEST_SIDE(engine, a_truncated_fpdu_is_never_placed, alone()) {
  engine.regions[1] = {.memory = bytes(100)};
  const bytes fpdu = framed(tagged(opcode::write, 1, 0, pattern(100)));
  for (std::size_t cut = 0; cut < fpdu.size(); ++cut)
    ASSERT_EQ(engine.machine.consume(std::span(fpdu).first(cut)), 0U) << cut;
  EXPECT_EQ(engine.regions[1].memory, bytes(100));
  EXPECT_EQ(engine.machine.consume(fpdu), fpdu.size());
  EXPECT_EQ(engine.regions[1].memory, pattern(100));
}

TEST(engine, a_wrong_crc_terminates_before_anything_is_placed) {
  const bytes good = framed(tagged(opcode::write, 1, 0, pattern(33)));
  for (std::size_t at = 2; at < good.size(); ++at) {
    side engine(alone());
    engine.regions[1] = {.memory = bytes(100)};
    bytes bad = good;
    bad[at] ^= std::byte{0x10};
    engine.feed(bad);
    ASSERT_TRUE(engine.ended_with(ending_reason::terminated)) << at;
    EXPECT_EQ(engine.end->code, cause::crc_mismatch);
    EXPECT_EQ(engine.regions[1].memory, bytes(100));
    const auto sent = engine.transmitted_terminate();
    ASSERT_TRUE(sent);
    EXPECT_EQ(sent->code, cause::crc_mismatch);
    EXPECT_FALSE(sent->segment_bytes || sent->read || sent->segment_header_bytes);
    EXPECT_TRUE(engine.machine.finished());
  }
}

/// What `posted` sends from memory of that kind is changed between the checksum and the call to the kernel.
void expect_whole_although_it_changes(request_kind kind, const mr::memory_record& record, std::size_t size) {
  bytes memory = pattern(size);
  const std::array<mr::slice, 2> segments{mr::slice(std::span(memory).first(3), &record),
                                          mr::slice(std::span(memory).subspan(3), &record)};
  request posted;
  posted.kind = kind;
  posted.local = segments;
  side engine(alone());
  ASSERT_TRUE(engine.machine.post(posted));
  bytes wire;
  while (engine.machine.has_output() || !engine.batch.empty()) {
    if (engine.batch.empty()) {
      ASSERT_TRUE(engine.machine.gather(engine.batch));
    }
    for (std::byte& one : memory) one ^= std::byte{0xFF};
    append(wire, engine.transmit());
  }
  side peer(alone());
  peer.regions[0] = {.memory = bytes(size)};
  peer.receive(size);
  peer.feed(wire);
  EXPECT_FALSE(peer.end) << peer.end->text.c_str();
  EXPECT_TRUE(peer.inbox.empty());
}

TEST(engine, a_source_that_peers_may_change_is_sent_as_it_was_checked) {
  mr::memory_record record;
  for (const std::size_t size : {1'000u, 5'001u, 1'000'000u}) {
    for (const request_kind kind : {request_kind::send, request_kind::write}) {
      record.usage = mr::usage::write_src | mr::usage::write_dst;
      expect_whole_although_it_changes(kind, record, size);
      record.usage = mr::usage::write_src | mr::usage::bind_window;
      expect_whole_although_it_changes(kind, record, size);
    }
  }
}

TEST(engine, a_source_that_no_peer_may_change_is_sent_from_where_it_is) {
  mr::memory_record record;
  record.usage = mr::usage::send | mr::usage::write_src | mr::usage::read_src;
  bytes memory = pattern(1000);
  const mr::slice whole(memory, &record);
  request posted;
  posted.kind = request_kind::write;
  posted.local = {&whole, 1};
  side engine(alone());
  ASSERT_TRUE(engine.machine.post(posted));
  ASSERT_TRUE(engine.machine.gather(engine.batch));
  const auto is_its = [&](const iovec& part) { return part.iov_base == memory.data(); };
  EXPECT_TRUE(std::ranges::any_of(engine.batch.pending(), is_its));
}

TEST_SIDE(engine, without_crcs_that_field_may_hold_anything, alone(false)) {
  engine.regions[1] = {.memory = bytes(100)};
  bytes fpdu = framed(tagged(opcode::write, 1, 0, pattern(100)));
  fpdu.back() ^= std::byte{0xFF};
  engine.feed(fpdu);
  EXPECT_EQ(engine.regions[1].memory, pattern(100));
}

// ---- what is placed as it comes ----

/// That of the read request which is due.
std::uint32_t requested_sink(side& engine) { return read_in(engine.transmitted().at(0)).sink_stag; }

engine_options eager(bool crc = false) {
  engine_options options = alone(crc);
  options.place_early_bytes = 1;
  return options;
}

TEST_SIDE(engine_placing_early, a_write_lands_before_its_end_has_come, eager()) {
  engine.regions[1] = {.memory = bytes(100)};
  const bytes content = pattern(100);
  const std::span whole(content);
  const bytes fpdu = framed(tagged(opcode::write, 1, 0, content), false);
  engine.feed(std::span(fpdu).first(26));
  EXPECT_TRUE(std::ranges::equal(std::span(engine.regions[1].memory).first(10), whole.first(10)));
  const std::span<std::byte> place = engine.machine.placement();
  EXPECT_EQ(place.data(), &engine.regions[1].memory[10]);
  EXPECT_EQ(place.size(), 90U);
  EXPECT_EQ(engine.feed_in_place(std::span(fpdu).subspan(26)), 90U);
  EXPECT_EQ(engine.regions[1].memory, pattern(100));
  EXPECT_TRUE(engine.machine.placement().empty());
  engine.machine.end_of_stream(engine.inbox.size());
  EXPECT_EQ(engine.end->reason, ending_reason::peer_closed) << "nothing is left of the segment";
}

TEST(engine_placing_early, a_write_of_no_more_than_the_limit_comes_whole_so_that_its_words_are) {
  for (const std::size_t size : {100U, 101U}) {
    engine_options options = alone(false);
    options.place_early_bytes = 100;
    side engine(options);
    engine.regions[1] = {.memory = bytes(size)};
    const bytes fpdu = framed(tagged(opcode::write, 1, 0, pattern(size)), false);
    engine.feed(std::span(fpdu).first(20));
    EXPECT_EQ(engine.machine.placement().empty(), size == 100);
    engine.feed_in_place(std::span(fpdu).subspan(20));
    EXPECT_EQ(engine.regions[1].memory, pattern(size));
  }
}

TEST_SIDE(engine_placing_early, a_message_is_reported_when_it_is_whole, eager()) {
  engine.receive(100);
  const bytes content = pattern(100);
  const std::span whole(content);
  bytes wire = framed(untagged({.last = false, .opcode = opcode::send}, whole.first(40)), false);
  append(wire, framed(untagged({.opcode = opcode::send, .offset = 40}, whole.subspan(40)), false));
  for (const std::byte& byte : wire) {
    ASSERT_TRUE(engine.messages.empty());
    engine.feed_in_place({&byte, 1});
  }
  ASSERT_EQ(engine.messages.size(), 1U);
  EXPECT_EQ(engine.messages[0].payload, content);
}

TEST_SIDE(engine_placing_early, a_read_completes_when_its_response_is_whole, eager()) {
  request& read = engine.read(100, 1, 0, 3);
  const std::uint32_t sink = requested_sink(engine);
  const bytes wire = framed(tagged(opcode::read_response, sink, 0, pattern(100)), false);
  for (const std::byte& byte : wire) {
    ASSERT_TRUE(engine.completions.empty());
    engine.feed_in_place({&byte, 1});
  }
  EXPECT_EQ(engine.status_of(read), completion_status::ok);
  EXPECT_EQ(engine.memory_of(read), pattern(100));
}

TEST_SIDE(engine_placing_early, nothing_is_offered_for_what_will_be_refused, eager()) {
  engine.regions[1] = {.memory = bytes(100)};
  engine.receive(50);
  const bytes bad[] = {tagged(opcode::write, 1, 1, pattern(100)),
                       tagged(opcode::write, 2, 0, pattern(100)),
                       tagged(opcode::write, 1, ~0ULL - 50, pattern(100)),
                       tagged(opcode::read_response, 1, 0, pattern(100)),
                       send_of(pattern(51)),
                       send_of(pattern(50), 2)};
  for (const bytes& ulpdu : bad) {
    const bytes fpdu = framed(ulpdu, false);
    EXPECT_EQ(engine.machine.consume(std::span(fpdu).first(30)), 0U);
    EXPECT_TRUE(engine.machine.placement().empty());
  }
  EXPECT_TRUE(engine.machine.is_open());
}

TEST_SIDE(engine_placing_early, a_message_without_a_receive_waits_whole, eager()) {
  const bytes fpdu = framed(send_of(pattern(50)), false);
  engine.feed(std::span(fpdu).first(30));
  EXPECT_TRUE(engine.machine.placement().empty());
  engine.feed(std::span(fpdu).subspan(30));
  EXPECT_TRUE(engine.machine.needs_receive());
  engine.receive(50);
  engine.consume();
  ASSERT_EQ(engine.messages.size(), 1U);
  EXPECT_EQ(engine.messages[0].payload, pattern(50));
}

TEST(engine_placing_early, a_key_revoked_in_the_middle_of_a_segment_ends_it_there) {
  for (const bool in_place : {false, true}) {
    side engine(eager());
    engine.regions[1] = {.memory = bytes(100)};
    const bytes ulpdu = tagged(opcode::write, 1, 0, pattern(100));
    const bytes fpdu = framed(ulpdu, false);
    engine.feed(std::span(fpdu).first(40));
    const bytes before = engine.regions[1].memory;
    engine.regions[1].writable = false;
    const auto rest = std::span(fpdu).subspan(40);
    if (in_place) {
      EXPECT_EQ(engine.feed_in_place(rest), 0U);
    } else {
      engine.feed(rest);
    }
    EXPECT_EQ(engine.regions[1].memory, before);
    ASSERT_TRUE(engine.end);
    EXPECT_TRUE(engine.machine.placement().empty());
    const auto sent = engine.transmitted_terminate();
    ASSERT_TRUE(sent);
    EXPECT_EQ(sent->code, cause::tagged_invalid_stag);
    EXPECT_EQ(sent->segment_bytes, ulpdu.size());
    EXPECT_TRUE(std::ranges::equal(std::span(sent->segment_header).first(tagged_header::bytes),
                                   std::span(ulpdu).first(tagged_header::bytes)));
  }
}

TEST(engine_placing_early, a_wrong_crc_is_noticed_before_anything_is_reported) {
  const bytes good = framed(untagged({.opcode = opcode::send}, pattern(33)));
  for (std::size_t at = 20; at < good.size(); ++at) {
    side engine(eager(true));
    engine.receive(33);
    bytes bad = good;
    bad[at] ^= std::byte{0x10};
    engine.feed(std::span(bad).first(20));
    EXPECT_EQ(engine.feed_in_place(std::span(bad).subspan(20)), 33U);
    EXPECT_TRUE(engine.ended_with(cause::crc_mismatch)) << at;
    EXPECT_TRUE(engine.messages.empty());
    EXPECT_EQ(engine.flushed_receives, 1U);
  }
}

TEST(engine_placing_early, a_fin_in_the_middle_of_a_segment_is_a_loss) {
  const bytes fpdu = framed(tagged(opcode::write, 1, 0, pattern(50)), false);
  for (std::size_t cut = 20; cut < fpdu.size(); ++cut) {
    side engine(eager());
    engine.regions[1] = {.memory = bytes(50)};
    engine.feed(std::span(fpdu).first(20));
    engine.feed_in_place(std::span(fpdu).subspan(20, cut - 20));
    engine.machine.end_of_stream(engine.inbox.size());
    ASSERT_TRUE(engine.ended_with(ending_reason::connection_lost)) << cut;
    EXPECT_NE(engine.end->text.view().find(std::to_string(cut) + " bytes into an FPDU"), std::string_view::npos)
        << engine.end->text.c_str();
  }
}

TEST(engine_placing_early, a_first_message_that_is_no_ready_signal_uses_that_up) {
  engine_options options = eager();
  options.initiator = false;
  options.signal_is_send = true;
  side engine(options);
  engine.receive(50);
  engine.receive(50);
  const bytes fpdu = framed(send_of(pattern(50)), false);
  engine.feed(std::span(fpdu).first(30));
  engine.feed_in_place(std::span(fpdu).subspan(30));
  engine.feed(framed(send_of({}, 2), false));
  ASSERT_EQ(engine.messages.size(), 2U);
  EXPECT_EQ(engine.messages[0].payload, pattern(50));
  EXPECT_TRUE(engine.messages[1].payload.empty());
}

TEST_SIDE(engine_placing_early, an_ended_stream_places_nothing_more, eager()) {
  request& read = engine.read(100, 1, 0);
  const std::uint32_t sink = requested_sink(engine);
  const bytes wire = framed(tagged(opcode::read_response, sink, 0, pattern(100)), false);
  engine.feed(std::span(wire).first(30));
  EXPECT_FALSE(engine.machine.placement().empty());
  engine.machine.abort(words::format("enough"));
  EXPECT_EQ(engine.status_of(read), completion_status::flushed);
  EXPECT_TRUE(engine.machine.placement().empty());
  EXPECT_EQ(engine.machine.consume(std::span(wire).subspan(30)), wire.size() - 30);
}

// ---- what a hostile peer may try ----

struct violation {
  const char* name;
  bytes ulpdu;
  terminate_code expected;
  bool with_segment = true;
  bool with_read = false;
  bool agreed = false;  // where RFC 7306 was agreed on
};

bytes with_byte(bytes ulpdu, std::size_t at, int value) {
  ulpdu[at] = static_cast<std::byte>(value);
  return ulpdu;
}

bytes longer_by(std::ptrdiff_t count, bytes ulpdu) {
  ulpdu.resize(static_cast<std::size_t>(std::ssize(ulpdu) + count));
  return ulpdu;
}

void prepare_for_violations(side& engine) {
  engine.regions[1] = {.memory = bytes(100), .shared = true};
  engine.regions[2] = {.memory = bytes(100), .writable = false, .atomic = false};
  engine.regions[3] = {.memory = bytes(100), .readable = false};
  engine.regions[4] = {.memory = bytes(100), .foreign = true};
  engine.receive(10);
  engine.receive(10);
}

/// To an engine that is prepared for them.
std::vector<violation> violations() {
  const bytes ten = pattern(10);
  const auto read_from = [](std::uint32_t stag, std::uint64_t offset, std::uint32_t size) {
    return read_of({.sink_stag = 77, .size = size, .source_stag = stag, .source_offset = offset});
  };
  const bytes invalidate_unknown = untagged({.opcode = opcode::send_with_invalidate, .invalidate_stag = 9}, ten);
  const bytes invalidate_shared =
      untagged({.opcode = opcode::send_solicited_with_invalidate, .invalidate_stag = 1}, ten);
  const auto add_at = [](std::uint32_t stag, std::uint64_t offset) {
    return atomic_of({.stag = stag, .offset = offset, .operand = 1});
  };
  const untagged_header atomic_header{.opcode = opcode::atomic_request, .queue = read_request_queue};
  const atomic_request swap{.operation = atomic_operation::compare_swap, .stag = 2, .mask = atomic_request::every_bit};
  std::vector<violation> rows = {
      {"empty FPDU", {}, cause::framing, false},
      {"FPDU shorter than a header", bytes(13, std::byte{0xC1}), cause::framing, false},
      {"FPDU shorter than an untagged header", with_byte(bytes(17, std::byte{0x41}), 0, 0x41), cause::framing, false},
      {"tagged, DDP version 2", with_byte(tagged(opcode::write, 1, 0, ten), 0, 0xC2), cause::tagged_version},
      {"untagged, DDP version 0", with_byte(send_of(ten), 0, 0x40), cause::untagged_version},
      {"RDMAP version 0", with_byte(send_of(ten), 1, 0x03), cause::rdmap_version},
      {"RDMAP version 3", with_byte(tagged(opcode::write, 1, 0, ten), 1, 0xC0), cause::rdmap_version},
      {"tagged send", tagged(opcode::send, 1, 0, ten), cause::unexpected_opcode},
      {"tagged read request", tagged(opcode::read_request, 1, 0, ten), cause::unexpected_opcode},
      {"untagged write", untagged({.opcode = opcode::write}, ten), cause::unexpected_opcode},
      {"untagged read response", untagged({.opcode = opcode::read_response}, ten), cause::unexpected_opcode},
      {"immediate data", untagged({.opcode = opcode::immediate}, pattern(8)), cause::unexpected_opcode},
      {"immediate data, solicited", untagged({.opcode = opcode::immediate_solicited}, pattern(8)),
       cause::unexpected_opcode},
      {"atomic request", untagged({.opcode = opcode::atomic_request, .queue = 1}, pattern(52)),
       cause::unexpected_opcode},
      {"atomic response", untagged({.opcode = opcode::atomic_response, .queue = 3}, pattern(12)),
       cause::unexpected_opcode},
      {"opcode 15", untagged({.opcode = static_cast<opcode>(15)}, ten), cause::unexpected_opcode},
      {"send on the read queue", untagged({.opcode = opcode::send, .queue = 1}, ten), cause::untagged_queue},
      {"send on no queue", untagged({.opcode = opcode::send, .queue = 0x10000}, ten), cause::untagged_queue},
      {"read request on the send queue", with_byte(read_from(1, 0, 1), 9, 0), cause::untagged_queue},
      {"terminate on the send queue", untagged({.opcode = opcode::terminate}, pattern(4)), cause::untagged_queue},
      {"message from the future", send_of(ten, 2), cause::untagged_sequence},
      {"message from the past", send_of(ten, 0), cause::untagged_sequence},
      {"message that begins in its middle", untagged({.opcode = opcode::send, .offset = 1}, ten),
       cause::untagged_offset},
      {"message offset near its wrap", untagged({.opcode = opcode::send, .offset = 0xFFFFFFFF}, ten),
       cause::untagged_offset},
      {"message too long", send_of(pattern(11)), cause::untagged_too_long},
      {"write to an unknown STag", tagged(opcode::write, 9, 0, ten), cause::tagged_invalid_stag},
      {"write past the end", tagged(opcode::write, 1, 91, ten), cause::tagged_bounds},
      {"write far past the end", tagged(opcode::write, 1, 1ULL << 40, ten), cause::tagged_bounds},
      {"write without the right", tagged(opcode::write, 2, 0, ten), cause::tagged_invalid_stag},
      {"write to another's STag", tagged(opcode::write, 4, 0, ten), cause::tagged_not_associated},
      {"write whose offset wraps", tagged(opcode::write, 1, ~0ULL, ten), cause::tagged_wrap},
      {"write of the last offset there is", tagged(opcode::write, 1, ~0ULL, pattern(1)), cause::tagged_wrap},
      {"read response to nothing", tagged(opcode::read_response, 1, 0, ten), cause::unexpected_opcode},
      {"empty read response to nothing", tagged(opcode::read_response, 1, 0), cause::unexpected_opcode},
      {"read of an unknown STag", read_from(9, 0, 10), cause::read_invalid_stag, true, true},
      {"read past the end", read_from(1, 91, 10), cause::read_bounds, true, true},
      {"read of 4 GiB", read_from(1, 0, 0xFFFFFFFF), cause::read_bounds, true, true},
      {"read without the right", read_from(3, 0, 10), cause::read_access, true, true},
      {"read of another's STag", read_from(4, 0, 10), cause::read_not_associated, true, true},
      {"read whose offset wraps", read_from(1, ~0ULL, 2), cause::read_wrap, true, true},
      {"read request out of turn", read_of({.size = 1, .source_stag = 1}, 2), cause::untagged_sequence},
      {"read request in its middle", untagged({.opcode = opcode::read_request, .queue = 1, .offset = 1}, pattern(28)),
       cause::untagged_offset},
      {"read request too short", longer_by(-1, read_from(1, 0, 1)), cause::operation_unspecified},
      {"read request too long", longer_by(1, read_from(1, 0, 1)), cause::untagged_too_long},
      {"read request without an end", with_byte(read_from(1, 0, 1), 0, 0x01), cause::operation_unspecified},
      {"invalidation of an unknown STag", invalidate_unknown, cause::read_invalid_stag},
      {"invalidation of a shared STag", invalidate_shared, cause::cannot_invalidate},
  };
  const violation where_rfc_7306_was_agreed_on[] = {
      {"atomic on an unknown STag", add_at(9, 0), cause::read_invalid_stag},
      {"atomic past the end", add_at(1, 96), cause::read_bounds},
      {"atomic without the right", atomic_of(swap), cause::read_access},
      {"atomic on another's STag", add_at(4, 0), cause::read_not_associated},
      {"atomic whose offset wraps", add_at(1, ~7ULL), cause::read_wrap},
      {"atomic off its boundary", add_at(1, 4), cause::stream_catastrophic},
      {"atomic operation 1", with_byte(add_at(1, 0), 21, 1), cause::unexpected_opcode},
      {"atomic operation 15", with_byte(add_at(1, 0), 21, 0xFF), cause::unexpected_opcode},
      {"atomic request out of turn", atomic_of({.stag = 1}, 2), cause::untagged_sequence},
      {"atomic request in its middle", with_byte(add_at(1, 0), 17, 1), cause::untagged_offset},
      {"atomic request too short", longer_by(-1, add_at(1, 0)), cause::operation_unspecified},
      {"atomic request too long", longer_by(1, add_at(1, 0)), cause::untagged_too_long},
      {"atomic request without a body", untagged(atomic_header), cause::operation_unspecified},
      {"atomic request without an end", with_byte(add_at(1, 0), 0, 0x01), cause::operation_unspecified},
      {"atomic request on the send queue", with_byte(add_at(1, 0), 9, 0), cause::untagged_queue},
      {"immediate data too short", untagged({.opcode = opcode::immediate}, pattern(7)), cause::operation_unspecified},
      {"immediate data too long", untagged({.opcode = opcode::immediate_solicited}, pattern(9)),
       cause::untagged_too_long},
      {"immediate data without an end", untagged({.last = false, .opcode = opcode::immediate}, pattern(8)),
       cause::operation_unspecified},
      {"immediate data in its middle", untagged({.opcode = opcode::immediate, .offset = 8}, pattern(8)),
       cause::untagged_offset},
      {"immediate data out of turn", untagged({.opcode = opcode::immediate, .sequence = 2}, pattern(8)),
       cause::untagged_sequence},
      {"immediate data on the read queue", untagged({.opcode = opcode::immediate, .queue = 1}, pattern(8)),
       cause::untagged_queue},
      {"tagged immediate data", tagged(opcode::immediate, 1, 0, pattern(8)), cause::unexpected_opcode},
      {"tagged atomic request", tagged(opcode::atomic_request, 1, 0, ten), cause::unexpected_opcode},
      {"atomic response to nothing", atomic_answer_of({.id = 1}), cause::unexpected_opcode},
      {"atomic response on the read queue", with_byte(atomic_answer_of({.id = 1}), 9, 1), cause::untagged_queue},
  };
  for (violation row : where_rfc_7306_was_agreed_on) {
    row.agreed = true;
    rows.push_back(std::move(row));
  }
  return rows;
}

// RFC 5044 section 7.1.2, rule 4: a responder may speak once MPA has validated a frame, whatever is in it.
TEST(engine, a_responder_tells_what_is_wrong_with_the_first_frame) {
  for (const violation& row : violations()) {
    SCOPED_TRACE(row.name);
    engine_options options = row.agreed ? extended() : alone();
    options.initiator = false;
    side engine(options);
    prepare_for_violations(engine);
    engine.feed(framed(row.ulpdu));
    const auto sent = engine.transmitted_terminate();
    EXPECT_TRUE(sent && sent->code == row.expected);
  }
}

class engine_placing : public testing::TestWithParam<bool> {
 protected:
  static engine_options options(bool crc = true, bool agreed = false) {
    engine_options choice = agreed ? extended() : alone(crc);
    if (GetParam()) choice.place_early_bytes = 1;
    return choice;
  }
};
INSTANTIATE_TEST_SUITE_P(payload, engine_placing, testing::Bool(), [](const testing::TestParamInfo<bool>& kind) {
  return kind.param ? "as_it_comes" : "of_whole_segments";
});

TEST_P(engine_placing, answers_every_violation_with_its_terminate_and_touches_nothing) {
  for (const violation& row : violations()) {
    SCOPED_TRACE(row.name);
    side engine(options(true, row.agreed));
    prepare_for_violations(engine);
    bytes wire = framed(row.ulpdu);
    append(wire, framed(tagged(opcode::write, 1, 0, pattern(10))));  // must be dropped
    const std::size_t front = std::min<std::size_t>(wire.size(), mpa::length_bytes + untagged_header::bytes);
    engine.feed(std::span(wire).first(front));
    engine.feed_in_place(std::span(wire).subspan(front));

    ASSERT_TRUE(engine.ended_with(ending_reason::terminated));
    EXPECT_EQ(engine.end->code, row.expected) << engine.end->text.c_str();
    EXPECT_TRUE(engine.inbox.empty()) << "what follows is swallowed";
    EXPECT_EQ(engine.flushed_receives, 2U);
    EXPECT_TRUE(engine.messages.empty());
    for (const auto& [stag, region] : engine.regions) EXPECT_EQ(region.memory, bytes(100));

    const auto sent = engine.transmitted_terminate();
    ASSERT_TRUE(sent);
    EXPECT_EQ(sent->code, row.expected);
    EXPECT_EQ(sent->segment_bytes.has_value(), row.with_segment);
    EXPECT_EQ(sent->read.has_value(), row.with_read);
    if (row.with_segment) {
      EXPECT_EQ(*sent->segment_bytes, row.ulpdu.size());
      EXPECT_TRUE(std::ranges::equal(std::span(sent->segment_header).first(sent->segment_header_bytes),
                                     std::span(row.ulpdu).first(sent->segment_header_bytes)));
    }
    EXPECT_EQ(sent->read.value_or(read_request{.sink_stag = 77}).sink_stag, 77U);
    EXPECT_TRUE(engine.machine.finished());
    EXPECT_FALSE(engine.machine.has_output());
  }
}

TEST_SIDE(engine, more_reads_than_agreed_are_refused, alone()) {
  engine.regions[1] = {.memory = pattern(10)};
  for (std::uint32_t i = 1; i <= 3; ++i) engine.feed(framed(read_of({.size = 10, .source_stag = 1}, i)));
  EXPECT_TRUE(engine.ended_with(cause::untagged_no_buffer));
}

TEST_SIDE(engine, immediate_data_is_eight_bytes_with_the_value_in_front, extended()) {
  engine.write_immediate(pattern(3), 1, 0, 0x0A0B0C0D);
  const auto sent = engine.transmitted();
  ASSERT_EQ(sent.size(), 2U);
  const untagged_header header = untagged_of(sent[1]);
  EXPECT_EQ(header.opcode, opcode::immediate);
  EXPECT_EQ(header.queue, send_queue);
  EXPECT_EQ(header.sequence, 1U);
  const bytes expected = {std::byte{0x0A}, std::byte{0x0B}, std::byte{0x0C}, std::byte{0x0D}, {}, {}, {}, {}};
  EXPECT_TRUE(std::ranges::equal(std::span(sent[1]).subspan(untagged_header::bytes), expected));
}

TEST_SIDE(engine, a_write_with_immediate_data_completes_once_both_are_sent, extended()) {
  engine.write_immediate(pattern(3), 1, 0, 1);
  const std::size_t write = mpa::fpdu_bytes(tagged_header::bytes + 3);
  EXPECT_EQ(engine.transmit(write + 20).size(), write + 20);
  EXPECT_TRUE(engine.completions.empty());
  EXPECT_FALSE(engine.transmit().empty());
  EXPECT_EQ(engine.completions.size(), 1U);
}

TEST(engine, immediate_data_is_refused_where_it_was_not_agreed_on_and_with_anything_but_a_write) {
  request request;
  request.kind = request_kind::write;
  request.immediate = 1;
  side strict(alone());
  EXPECT_FALSE(strict.machine.post(request));
  side engine(extended());
  request.kind = request_kind::send;
  EXPECT_FALSE(engine.machine.post(request));
}

TEST_SIDE(engine, immediate_data_in_the_middle_of_a_message_is_refused, extended()) {
  engine.receive(100);
  engine.feed(framed(untagged({.last = false, .opcode = opcode::send}, pattern(2))));
  engine.feed(framed(untagged({.opcode = opcode::immediate, .offset = 2}, pattern(8))));
  EXPECT_TRUE(engine.ended_with(cause::unexpected_opcode));
}

TEST_SIDE(engine, more_atomics_and_reads_than_agreed_are_refused, extended()) {
  engine.regions[1] = {.memory = bytes(16)};
  engine.feed(framed(read_of({.size = 10, .source_stag = 1}, 1)));
  engine.feed(framed(atomic_of({.stag = 1, .operand = 1}, 2)));
  engine.feed(framed(atomic_of({.stag = 1, .operand = 1}, 3)));
  EXPECT_TRUE(engine.ended_with(cause::untagged_no_buffer));
  EXPECT_EQ(engine.regions[1].memory, bytes(16)) << "none was executed";
}

/// Posts an atomic operation and hears one wrong answer.
void expect_refused_atomic_response(const bytes& response, terminate_code code) {
  side engine(extended());
  engine.fetch_add(1, 0, 1);
  EXPECT_EQ(engine.transmitted().size(), 1U);
  engine.feed(framed(response));
  EXPECT_TRUE(engine.ended_with(code) << engine.end->text.c_str());
  EXPECT_EQ(engine.completions.at(0).second.status, completion_status::flushed);
  EXPECT_EQ(engine.value_of(*engine.completions[0].first), 0U) << "placed all the same";
}

TEST(engine, an_atomic_response_that_is_not_the_one_due_is_refused) {
  const atomic_response right{.id = 1, .previous = 7};
  const bytes whole = atomic_answer_of(right);
  expect_refused_atomic_response(atomic_answer_of({.id = 2, .previous = 7}), cause::operation_unspecified);
  expect_refused_atomic_response(atomic_answer_of(right, 2), cause::untagged_sequence);
  expect_refused_atomic_response(with_byte(whole, 17, 4), cause::untagged_offset);
  expect_refused_atomic_response(with_byte(whole, 0, 0x01), cause::operation_unspecified);
  expect_refused_atomic_response(longer_by(-1, whole), cause::operation_unspecified);
  expect_refused_atomic_response(longer_by(1, whole), cause::untagged_too_long);
  expect_refused_atomic_response(tagged(opcode::read_response, 1, 0, pattern(8)), cause::unexpected_opcode);
}

TEST_P(engine_placing, takes_no_read_response_for_that_of_an_atomic) {
  side engine(options(true, true));
  request& add = engine.fetch_add(1, 0, 1);
  EXPECT_EQ(engine.transmitted().size(), 1U);
  for (const std::byte next : framed(tagged(opcode::read_response, 0, 0, pattern(8)))) engine.feed({&next, 1});
  EXPECT_TRUE(engine.ended_with(cause::unexpected_opcode));
  EXPECT_EQ(engine.value_of(add), 0U);
}

TEST_SIDE(engine, an_atomic_response_where_a_read_response_is_due_is_refused, extended()) {
  request& read = engine.read(8, 1, 0);
  engine.fetch_add(1, 0, 1);
  EXPECT_EQ(engine.transmitted().size(), 2U);
  engine.feed(framed(atomic_answer_of({.id = 2, .previous = 7})));
  EXPECT_TRUE(engine.ended_with(cause::unexpected_opcode));
  EXPECT_EQ(engine.memory_of(read), bytes(8));
}

TEST(engine, a_key_revoked_before_an_atomics_turn_terminates_instead) {
  side engine(extended(), output_batch::min_storage_bytes, 2000);
  engine.regions[1] = {.memory = bytes(10000)};
  engine.regions[2] = {.memory = bytes(8)};
  engine.feed(framed(read_of({.sink_stag = 5, .size = 10000, .source_stag = 1})));
  engine.feed(framed(atomic_of({.stag = 2, .operand = 1}, 2)));
  EXPECT_FALSE(engine.transmit().empty());
  engine.regions.erase(2);

  const auto sent = engine.transmitted_terminate();
  ASSERT_TRUE(sent);
  EXPECT_EQ(sent->code, cause::read_invalid_stag);
  EXPECT_EQ(sent->segment_bytes, untagged_header::bytes + atomic_request::bytes);
  EXPECT_FALSE(sent->read);
  EXPECT_EQ(parse_untagged(sent->segment_header).sequence, 2U);
}

TEST_SIDE(engine, a_message_that_grows_past_its_receive_is_refused_before_the_bytes_are_placed, alone()) {
  std::array<std::byte, 11> memory{};
  receive_request receive;
  receive.buffer = std::span(memory).first(10);
  engine.machine.post_receive(receive);
  engine.feed(framed(untagged({.last = false, .opcode = opcode::send}, bytes(9, std::byte{1}))));
  engine.feed(framed(untagged({.last = false, .opcode = opcode::send, .offset = 9}, bytes(2, std::byte{1}))));
  EXPECT_TRUE(engine.ended_with(cause::untagged_too_long));
  EXPECT_EQ(memory[9], std::byte{0});
  EXPECT_EQ(memory[10], std::byte{0});
}

TEST(engine, a_message_must_go_on_where_it_stopped_and_as_what_it_began) {
  const bytes two = pattern(2);
  for (const auto& [next, code] :
       {std::pair{untagged({.opcode = opcode::send, .offset = 3}, two), cause::untagged_offset},
        std::pair{untagged({.opcode = opcode::send, .offset = 1}, two), cause::untagged_offset},
        std::pair{untagged({.opcode = opcode::send, .sequence = 2}, two), cause::untagged_sequence},
        std::pair{untagged({.opcode = opcode::send_solicited, .offset = 2}, two), cause::unexpected_opcode}}) {
    side engine(alone());
    engine.receive(10);
    engine.feed(framed(untagged({.last = false, .opcode = opcode::send}, two)));
    engine.feed(framed(next));
    EXPECT_TRUE(engine.ended_with(code));
  }
}

/// Posts a read of ten bytes and returns the sink's name on the wire.
std::uint32_t sink_of_a_read(side& engine) {
  engine.read(10, 1, 0);
  return requested_sink(engine);
}

void expect_refused_response(const std::vector<bytes>& responses, terminate_code code) {
  side engine(alone());
  ASSERT_EQ(sink_of_a_read(engine), 1U);
  for (const bytes& response : responses) engine.feed(framed(response));
  EXPECT_TRUE(engine.ended_with(code) << engine.end->text.c_str());
  EXPECT_EQ(engine.completions.at(0).second.status, completion_status::flushed);
  EXPECT_EQ(engine.memory_of(*engine.completions[0].first), bytes(10)) << "placed all the same";
}

TEST(engine, a_read_response_longer_than_asked_is_refused) {
  expect_refused_response({tagged(opcode::read_response, 1, 0, pattern(11))}, cause::tagged_bounds);
  expect_refused_response({tagged(opcode::read_response, 1, 0, pattern(10), false)}, cause::tagged_bounds);
}

TEST(engine, a_read_response_shorter_than_asked_is_refused) {
  expect_refused_response({tagged(opcode::read_response, 1, 0, pattern(9))}, cause::operation_unspecified);
  expect_refused_response({tagged(opcode::read_response, 1, 0)}, cause::operation_unspecified);
}

TEST(engine, a_read_response_to_another_place_is_refused) {
  expect_refused_response({tagged(opcode::read_response, 2, 0, pattern(10))}, cause::tagged_invalid_stag);
  expect_refused_response({tagged(opcode::read_response, 1, 1, pattern(9))}, cause::tagged_bounds);
}

TEST_SIDE(engine, a_read_response_that_leaves_a_gap_is_refused, alone()) {
  const auto sink = sink_of_a_read(engine);
  engine.feed(framed(tagged(opcode::read_response, sink, 0, pattern(4), false)));
  engine.feed(framed(tagged(opcode::read_response, sink, 5, pattern(5))));
  EXPECT_TRUE(engine.ended_with(cause::tagged_bounds));
}

TEST_SIDE(engine, a_second_response_to_one_read_is_refused, alone()) {
  const auto sink = sink_of_a_read(engine);
  engine.feed(framed(tagged(opcode::read_response, sink, 0, pattern(10))));
  EXPECT_TRUE(engine.all_ok());
  engine.feed(framed(tagged(opcode::read_response, sink, 0, pattern(10, 2))));
  EXPECT_TRUE(engine.ended_with(cause::unexpected_opcode));
  EXPECT_EQ(engine.memory_of(*engine.completions[0].first), pattern(10));
}

TEST(engine, a_revoked_key_in_the_middle_of_a_read_response_terminates_where_it_had_come_to) {
  side engine(alone(), output_batch::min_storage_bytes, 2000);
  engine.regions[1] = {.memory = pattern(10000)};
  engine.feed(framed(read_of({.sink_stag = 5, .sink_offset = 100, .size = 10000, .source_stag = 1})));
  const auto first = ulpdus_of(engine.transmit());
  ASSERT_FALSE(first.empty());
  std::size_t read = 0;
  for (const bytes& ulpdu : first) read += ulpdu.size() - tagged_header::bytes;
  engine.regions.erase(1);

  const auto sent = engine.transmitted_terminate();
  ASSERT_TRUE(sent);
  EXPECT_EQ(sent->code, cause::read_invalid_stag);
  EXPECT_EQ(sent->segment_bytes, 46);
  ASSERT_TRUE(sent->read);
  EXPECT_EQ(sent->read->sink_offset, 100 + read);
  EXPECT_EQ(sent->read->source_offset, read);
  EXPECT_EQ(sent->read->size, 10000 - read);
  EXPECT_EQ(engine.end->code, cause::read_invalid_stag);
}

TEST_SIDE(engine, the_terminate_waits_for_the_end_of_the_batch_that_is_being_sent, alone()) {
  engine.write(pattern(3000), 1, 0);
  const bytes first = engine.transmit(100);  // in the middle of an FPDU
  engine.feed(framed(send_of(pattern(1), 5)));
  ASSERT_TRUE(engine.end);
  EXPECT_TRUE(engine.completions.empty()) << "the kernel still reads its memory";
  bytes wire = first;
  append(wire, engine.transmit_all());
  const auto ulpdus = ulpdus_of(wire);
  ASSERT_EQ(ulpdus.size(), 4U);
  EXPECT_EQ(control_of(ulpdus[3]).opcode, opcode::terminate);
  EXPECT_EQ(engine.status_of(*engine.completions.at(0).first), completion_status::flushed);
  EXPECT_TRUE(engine.machine.finished());
}

TEST_SIDE(engine, only_one_terminate_is_sent_and_nothing_after_it, alone()) {
  engine.feed(framed(send_of(pattern(1), 5)));
  engine.feed(framed(send_of(pattern(1), 6)));
  engine.send(pattern(5));
  EXPECT_EQ(engine.transmitted().size(), 1U);
  EXPECT_EQ(engine.completions.at(0).second.status, completion_status::flushed);
}

// ---- the end ----

TEST_SIDE(engine, a_terminate_from_the_peer_names_the_read_it_was_about, alone()) {
  request& first = engine.read(10, 1, 0);
  request& second = engine.read(10, 2, 0x40);
  request& last = engine.send(pattern(3));
  const auto sent = engine.transmitted();
  const terminate_message message{.code = cause::read_invalid_stag, .segment_bytes = 46, .read = read_in(sent.at(1))};
  engine.receive(10);
  engine.feed(framed(terminate_of(message)));

  ASSERT_TRUE(engine.ended_with(ending_reason::peer_terminated));
  EXPECT_EQ(engine.end->code, cause::read_invalid_stag);
  EXPECT_EQ(engine.end->text.view(),
            "peer terminated the stream: remote protection error: invalid STag, reading at offset 0x40 of STag "
            "0x00000002");
  EXPECT_TRUE(engine.completed_in_order());
  EXPECT_EQ(engine.completions_before_end, 0U);
  EXPECT_EQ(engine.status_of(first), completion_status::bystander);
  EXPECT_EQ(engine.status_of(second), completion_status::remote_access_error);
  EXPECT_EQ(engine.status_of(last), completion_status::flushed);
  EXPECT_EQ(engine.flushed_receives, 1U);
  EXPECT_TRUE(engine.machine.finished());
}

TEST_SIDE(engine, a_terminate_that_repeats_only_the_header_names_the_read_by_its_number, alone()) {
  request& first = engine.read(10, 1, 0);
  request& second = engine.read(10, 2, 0);
  const auto sent = engine.transmitted();
  engine.feed(framed(terminate_about(sent.at(1), untagged_header::bytes, cause::read_access)));
  EXPECT_EQ(engine.status_of(first), completion_status::bystander);
  EXPECT_EQ(engine.status_of(second), completion_status::remote_access_error);
}

TEST_SIDE(engine, a_terminate_names_the_atomic_it_was_about, extended()) {
  request& first = engine.read(10, 1, 0);
  request& second = engine.fetch_add(2, 0, 1);
  const auto sent = engine.transmitted();
  engine.feed(framed(terminate_about(sent.at(1), untagged_header::bytes, cause::read_access, 70)));
  EXPECT_EQ(engine.end->text.view(),
            "peer terminated the stream: remote protection error: access rights violation, changing at offset 0x0 of "
            "STag 0x00000002");
  EXPECT_EQ(engine.status_of(first), completion_status::bystander);
  EXPECT_EQ(engine.status_of(second), completion_status::remote_access_error);
}

TEST_SIDE(engine, a_terminate_names_a_write_that_has_not_completed, alone()) {
  engine.read(10, 1, 0);
  request& write = engine.write(pattern(5000), 9, 1000);
  request& elsewhere = engine.write(pattern(5000), 9, 6000);
  const auto sent = engine.transmitted();
  engine.feed(framed(terminate_about(sent.at(2), tagged_header::bytes, cause::tagged_invalid_stag)));
  EXPECT_EQ(engine.status_of(write), completion_status::remote_access_error);
  EXPECT_EQ(engine.status_of(elsewhere), completion_status::flushed);
}

// A write has completed long before the peer refuses it.
TEST_SIDE(engine, a_terminate_about_what_has_completed_blames_no_operation_of_another_key, alone()) {
  request& same = engine.read(10, 9, 0);
  request& other = engine.read(10, 8, 0);
  request& write = engine.write(pattern(5000), 8, 1000);
  request& message_behind = engine.send(pattern(3));
  static_cast<void>(engine.transmitted());
  terminate_message message{.code = cause::tagged_invalid_stag, .segment_header_bytes = tagged_header::bytes};
  encode(tagged_header{.opcode = opcode::write, .stag = 9, .offset = 0x40},
         std::span(message.segment_header).first<tagged_header::bytes>());
  engine.feed(framed(terminate_of(message)));
  EXPECT_TRUE(engine.end->text.view().ends_with(", writing at offset 0x40 of STag 0x00000009"))
      << engine.end->text.view();
  EXPECT_EQ(engine.status_of(same), completion_status::flushed);
  EXPECT_EQ(engine.status_of(other), completion_status::bystander);
  EXPECT_EQ(engine.status_of(write), completion_status::bystander);
  EXPECT_EQ(engine.status_of(message_behind), completion_status::flushed);
}

TEST(engine, a_terminate_is_never_answered_with_one) {
  for (std::size_t body = 0; body < 60; ++body) {
    side engine(alone());
    engine.feed(framed(
        untagged({.opcode = opcode::terminate, .queue = terminate_queue}, pattern(body, static_cast<unsigned>(body)))));
    ASSERT_TRUE(engine.ended_with(ending_reason::peer_terminated));
    EXPECT_FALSE(engine.machine.has_output());
  }
}

TEST(engine, linux_siws_unexpected_opcode_is_not_mistaken_for_a_set_up_error) {
  const bytes words_of_siw{std::byte{0x20}, std::byte{0x06}, {}, {}};
  const bytes fpdu = framed(untagged({.opcode = opcode::terminate, .queue = terminate_queue}, words_of_siw));
  side engine(alone());
  engine.feed(fpdu);
  EXPECT_TRUE(engine.ended_with(cause::unexpected_opcode));

  side responder({.initiator = false});
  responder.feed(fpdu);
  EXPECT_EQ(responder.end->code, cause::insufficient_ird);
}

TEST_SIDE(engine, a_fin_between_messages_is_an_orderly_close, alone()) {
  engine.receive(10);
  engine.machine.end_of_stream(0);
  ASSERT_TRUE(engine.ended_with(ending_reason::peer_closed));
  EXPECT_EQ(engine.flushed_receives, 1U);
  EXPECT_TRUE(engine.machine.finished());
}

/// A peer that is not weft.
engine_options half_closing() {
  engine_options options = alone();
  options.half_close = true;
  return options;
}

TEST_SIDE(engine, a_fin_of_a_peer_that_may_half_close_ends_its_direction_alone, half_closing()) {
  engine.regions[1] = {.memory = pattern(10)};
  engine.receive(10);
  engine.feed(framed(read_of({.size = 10, .source_stag = 1})));
  engine.machine.end_of_stream(0);
  EXPECT_EQ(engine.heard_input_over, 1U);
  EXPECT_FALSE(engine.end);

  request& behind = engine.send(pattern(3));
  const auto sent = engine.transmitted();
  ASSERT_EQ(sent.size(), 2U);
  EXPECT_EQ(control_of(sent[0]).opcode, opcode::send);
  EXPECT_EQ(control_of(sent[1]).opcode, opcode::read_response);
  EXPECT_EQ(engine.status_of(behind), completion_status::ok);
  EXPECT_FALSE(engine.end) << "this end has not said its last";

  engine.machine.end_of_output();
  ASSERT_TRUE(engine.ended_with(ending_reason::peer_closed));
  EXPECT_EQ(engine.flushed_receives, 1U);
  EXPECT_TRUE(engine.machine.finished());
}

TEST_SIDE(engine, a_fin_behind_this_ends_own_is_the_end, half_closing()) {
  engine.machine.end_of_output();
  EXPECT_FALSE(engine.end);
  engine.machine.end_of_stream(0);
  ASSERT_TRUE(engine.ended_with(ending_reason::peer_closed));
  EXPECT_EQ(engine.heard_input_over, 0U);
}

TEST_SIDE(engine, a_read_that_the_peer_can_answer_no_more_is_a_loss, half_closing()) {
  engine.machine.end_of_stream(0);
  request& read = engine.read(10, 1, 0);
  ASSERT_TRUE(engine.ended_with(ending_reason::connection_lost));
  EXPECT_EQ(engine.status_of(read), completion_status::flushed);
}

TEST(engine, a_fin_in_the_middle_of_anything_is_a_loss) {
  const auto lost = [](auto&& prepare, std::size_t unconsumed = 0) {
    side engine(alone());
    engine.regions[1] = {.memory = bytes(10)};
    engine.receive(10);
    prepare(engine);
    engine.machine.end_of_stream(unconsumed);
    return engine.end && engine.end->reason == ending_reason::connection_lost && !engine.machine.has_output();
  };
  EXPECT_TRUE(lost([](side&) {}, 5));
  EXPECT_TRUE(lost([](side& s) { s.feed(framed(untagged({.last = false, .opcode = opcode::send}, pattern(3)))); }));
  EXPECT_TRUE(lost([](side& s) { s.feed(framed(tagged(opcode::write, 1, 0, pattern(3), false))); }));
  EXPECT_TRUE(lost([](side& s) { s.feed(framed(read_of({.size = 1, .source_stag = 1}))); }));
  EXPECT_TRUE(lost([](side& s) {
    s.feed(framed(read_of({.size = 10, .source_stag = 1})));
    EXPECT_EQ(s.transmit(20).size(), 20U);
  }));
  EXPECT_TRUE(lost([](side& s) { s.send(pattern(3)); }));
  EXPECT_TRUE(lost([](side& s) { sink_of_a_read(s); }));
}

TEST_SIDE(engine, an_abort_completes_everything_once_in_order_and_says_nothing_more, alone()) {
  for (int i = 0; i < 3; ++i) engine.read(10, 1, 0);
  engine.write(pattern(10), 1, 0);
  engine.transmit_all();
  engine.receive(10);
  engine.machine.abort(words::format("because"));
  engine.machine.abort(words::format("because"));
  EXPECT_EQ(engine.end->reason, ending_reason::aborted);
  EXPECT_EQ(engine.end->text.view(), "because");
  EXPECT_TRUE(engine.completed_in_order());
  EXPECT_EQ(engine.flushed_receives, 1U);
  EXPECT_FALSE(engine.machine.has_output());

  engine.send({});
  engine.receive(1);
  EXPECT_TRUE(engine.completed_in_order());
  EXPECT_EQ(engine.flushed_receives, 2U);
}

// RFC 5040 figure 10: an error of DDP.
TEST_P(engine_placing, a_message_that_the_protocol_above_refuses_is_named_in_the_terminate) {
  side engine(options());
  engine.when_received = [&] { engine.machine.refuse(cause::untagged_too_long, words::format("too long")); };
  engine.receive(50);
  engine.receive(50);
  const bytes first = untagged({.last = false, .opcode = opcode::send}, pattern(8));
  const bytes last = untagged({.opcode = opcode::send, .offset = 8}, pattern(40));
  engine.feed(framed(first));
  const bytes wire = framed(last);
  engine.feed(std::span(wire).first(24));
  engine.feed_in_place(std::span(wire).subspan(24));
  EXPECT_TRUE(engine.ended_with(cause::untagged_too_long));
  const auto sent = engine.transmitted_terminate();
  ASSERT_TRUE(sent);
  EXPECT_EQ(sent->segment_bytes, last.size());
  ASSERT_EQ(sent->segment_header_bytes, untagged_header::bytes);
  EXPECT_TRUE(std::equal(sent->segment_header.begin(), sent->segment_header.end(), last.begin()));
}

TEST_SIDE(engine, a_refusal_behind_a_message_names_none, alone()) {
  engine.receive(50);
  engine.feed(framed(send_of(pattern(8))));
  engine.machine.refuse(cause::stream_catastrophic, words::format("enough"));
  const auto sent = engine.transmitted_terminate();
  ASSERT_TRUE(sent);
  EXPECT_EQ(sent->segment_header_bytes, 0U);
}

TEST_SIDE(engine, memory_in_the_kernels_hands_is_not_given_back_by_an_abort, alone()) {
  request& done = engine.write(pattern(1000), 1, 0);
  engine.write(pattern(50000), 1, 0);
  engine.send(pattern(10));
  engine.transmit(2000);  // the first, and some of the second
  EXPECT_EQ(engine.status_of(done), completion_status::ok);
  engine.machine.abort(words::format("because"));
  EXPECT_EQ(engine.completions.size(), 1U);
  engine.read(10, 1, 0);
  EXPECT_EQ(engine.completions.size(), 1U);
  engine.machine.abandon(engine.batch);
  EXPECT_TRUE(engine.completed_in_order());
  EXPECT_TRUE(engine.machine.finished());
  EXPECT_TRUE(engine.batch.empty());
}

TEST_SIDE(engine, output_that_is_abandoned_ends_the_stream_without_a_terminate, alone()) {
  engine.write(pattern(5000), 1, 0);
  engine.transmit(100);
  engine.machine.abandon(engine.batch);
  EXPECT_EQ(engine.end->reason, ending_reason::aborted);
  EXPECT_TRUE(engine.completed_in_order());
  EXPECT_TRUE(engine.machine.finished());
}

TEST_SIDE(engine, no_terminate_is_sent_behind_half_an_fpdu, alone()) {
  engine.write(pattern(5000), 1, 0);
  engine.transmit(100);
  engine.feed(framed(send_of(pattern(1), 5)));
  EXPECT_EQ(engine.end->reason, ending_reason::terminated);
  engine.machine.abandon(engine.batch);
  EXPECT_TRUE(engine.machine.finished());
  EXPECT_FALSE(engine.machine.has_output());
}

TEST_SIDE(engine, a_stream_can_be_aborted_from_inside_a_callback, alone()) {
  engine.when_received = [&] { engine.machine.abort(words::format("enough")); };
  engine.receive(10);
  engine.receive(10);
  engine.send({});
  bytes wire = framed(send_of(pattern(1), 1));
  append(wire, framed(send_of(pattern(1), 2)));
  engine.feed(wire);
  EXPECT_EQ(engine.messages.size(), 1U);
  EXPECT_EQ(engine.flushed_receives, 1U);
  EXPECT_TRUE(engine.completed_in_order());
}

TEST(engine, requests_can_be_posted_from_inside_a_completion_even_of_a_dead_stream) {
  for (const bool dies : {false, true}) {
    side engine(alone());
    engine.when_completed = [&] {
      if (engine.completions.size() < 5) engine.write(pattern(100), 1, 0);
    };
    engine.write(pattern(100), 1, 0);
    if (dies) engine.machine.abort(words::format("because"));
    EXPECT_EQ(engine.transmitted().size(), dies ? 0U : 5U);
    EXPECT_TRUE(engine.completed_in_order());
    EXPECT_EQ(engine.completions.size(), 5U);
  }
}

}  // namespace
}  // namespace weft::net::iwarp
