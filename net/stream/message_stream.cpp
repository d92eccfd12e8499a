// SPDX-License-Identifier: Apache-2.0
#include <weft/net/connection/connection_core.hpp>
#include <weft/net/stream/message_stream.hpp>
#include <weft/runtime/core/background.hpp>

#include <algorithm>
#include <exception>
#include <new>
#include <span>
#include <string>
#include <utility>

namespace weft::net {
namespace {

// The largest message to any peer. A larger limit would hardly save header bytes, and would take more memory at a time.
constexpr std::size_t largest_of_all = std::size_t{64} << 10;
// The largest message to a peer whose receive_size is not known.
constexpr std::size_t usual_message = 4096;

std::size_t largest_message(const capabilities& link, const mr::pool& pool) noexcept {
  const std::uint64_t takes = link.native || link.max_send_bytes != 0 ? link.max_send_bytes : usual_message;
  // A device may report that it carries less than a trailer.
  const std::uint64_t carries =
      link.max_message_bytes - std::min<std::uint64_t>(link.max_message_bytes, trailer::max_bytes);
  const std::size_t has = pool.max_buffer_bytes();  // 0: its own words will say so
  return static_cast<std::size_t>(
      std::min<std::uint64_t>({takes, carries, largest_of_all, has != 0 ? has : largest_of_all}));
}

}  // namespace

message_stream::message_stream(connection over)
    : stream_core(over.checked().home(), over.checked().pool(), std::string(over.peer())),
      connection_(std::move(over)),
      largest_(largest_message(connection_->capabilities(), pool_)) {}

connection& message_stream::open_for(const char* what) {
  check_thread(what);
  if (!is_open()) throw error(errc::closed, what);
  return *connection_;
}

connection& message_stream::open_for_sending(const char* what) {
  connection& link = open_for(what);
  if (output_ended_) throw error(errc::closed, std::string(what) + " after shutdown_send()");
  if (largest_ == 0)
    throw error(errc::message_too_large,
                std::string(what) + ": the peer's receive_size is 0, or the fabric carries only empty messages");
  return link;
}

// ---- reading ----

task<std::size_t> message_stream::read_some(stream_ref, writable_ranges where) {
  static_cast<void>(open_for("read from a stream"));
  if (where.bytes() == 0) co_return 0;
  turn mine(co_await weft::detail::current_promise(), reading_, "read from a stream");
  if (!has_content()) {
    const bool received = co_await receive();
    if (!received) co_return 0;
  }
  const std::size_t count = scatter(content_.bytes().subspan(taken_), where);
  taken_ += count;
  if (has_content()) co_return count;
  content_ = mr::buffer();  // back to the pool
  taken_ = 0;
  co_return count;
}

task<received_bytes> message_stream::read_bytes(stream_ref) {
  static_cast<void>(open_for("read from a stream"));
  turn mine(co_await weft::detail::current_promise(), reading_, "read from a stream");
  if (!has_content()) {
    const bool received = co_await receive();
    if (!received) co_return received_bytes();
  }
  received_bytes rest(std::move(content_), std::exchange(taken_, 0));
  co_return rest;
}

// Receives the next message into content_, so that a stopped read loses nothing. False at the end of the stream.
task<bool> message_stream::receive() {
  if (input_ended_) co_return false;
  auto got = co_await open_for("read from a stream").recv();
  if (got && got->immediate) {
    if (connection_) connection_->abort();
    throw error(errc::protocol_error, "read from a stream: the peer has sent immediate data, which no stream carries");
  }
  input_ended_ = !got || got->size() == 0;
  if (input_ended_) co_return false;
  content_ = std::move(got->payload);
  taken_ = 0;
  co_return true;
}

// ---- writing ----

task<std::size_t> message_stream::write_some(stream_ref, readable_ranges what) {
  constexpr const char* words = "write to a stream";
  static_cast<void>(open_for_sending(words));
  if (what.bytes() == 0) co_return 0;
  turn mine(co_await weft::detail::current_promise(), writing_, words);
  outgoing messages;
  for (std::size_t done = 0; done < what.bytes() && messages.all().size() < outgoing::most;) {
    const std::size_t size = std::min(largest_, what.bytes() - done);
    mr::buffer memory;
    if (auto at_hand = pool_.try_allocate(size)) {
      memory = *std::move(at_hand);
    } else if (done == 0) {
      memory = co_await wait_for_memory(size, words);
    } else {
      break;
    }
    gather(what, done, memory.bytes());
    messages.add(open_for_sending(words).send(std::move(memory)), size);
    done += size;
  }
  co_return co_await send(messages);
}

task<std::size_t> message_stream::write_some(stream_ref, mr::slice what) {
  constexpr const char* words = "write to a stream";
  static_cast<void>(open_for_sending(words));
  if (what.size() == 0) co_return 0;
  turn mine(co_await weft::detail::current_promise(), writing_, words);
  outgoing messages(outgoing::memory::borrowed);
  for (std::size_t done = 0; done < what.size() && messages.all().size() < outgoing::most;) {
    const std::size_t size = std::min(largest_, what.size() - done);
    messages.add(connection_->send(what.subslice(done, size)), size);
    done += size;
  }
  co_return co_await send(messages);
}

task<> message_stream::write(stream_ref self, mr::buffer what) {
  constexpr const char* words = "write to a stream";
  static_cast<void>(open_for_sending(words));
  if (what.size() == 0) co_return;
  if (what.size() > largest_) {
    const std::uint64_t cancels = this->cancels();
    for (std::span<const std::byte> rest = what.bytes(); !rest.empty();) {
      if (is_canceled_since(cancels)) throw error(errc::canceled, words);
      rest = rest.subspan(co_await write_some(self, readable_ranges(rest)));
    }
    co_return;
  }
  turn mine(co_await weft::detail::current_promise(), writing_, words);
  const std::size_t size = what.size();
  outgoing messages;
  messages.add(connection_->send(std::move(what)), size);
  static_cast<void>(co_await send(messages));
}

// The number of bytes in the leading messages that will arrive. A stop cancels messages, the last one first. Messages
// that were posted by then arrive if the connection owns their memory; if it is borrowed, the stop aborts the
// connection, and the number is 0.
std::size_t message_stream::outgoing::on_their_way() noexcept {
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < count_; ++i) {
    const auto& failure = all()[i].failure();
    if (failure && failure->posted() && whose_ == memory::borrowed) return 0;
    if (failure && !(failure->code() == errc::canceled && failure->posted())) break;
    bytes += sizes_[i];
  }
  return bytes;
}

// Yields how many bytes are on their way; throws if there are none.
task<std::size_t> message_stream::send(outgoing& messages) {
  // Others may have had a turn since this was called, and have dropped the stream.
  static_cast<void>(open_for("write to a stream"));
  std::exception_ptr failure;
  try {
    const std::span<transfer> all = messages.all();
    if (all.size() == 1) {
      transfer& only = all.front();
      co_await only;
    } else {
      co_await connection_->batch(all);
    }
    co_return messages.on_their_way();
  } catch (const error&) {
    failure = std::current_exception();
  }
  // An operation that was stopped before it began has no failure.
  const std::span<transfer> all = messages.all();
  const bool begun =
      std::any_of(all.begin(), all.end(), [](const transfer& each) { return each.failure().has_value(); });
  const std::size_t bytes = begun ? messages.on_their_way() : 0;
  if (bytes == 0) std::rethrow_exception(failure);
  co_return bytes;
}

// Waits until the pool has memory, but no longer than the stream is open: see stop_waiting().
task<mr::buffer> message_stream::wait_for_memory(std::size_t size, const char* what) {
  turn mine(co_await weft::detail::current_promise(), waiting_, what);
  static_cast<void>(open_for(what));  // as in send()
  try {
    auto memory = co_await pool_.allocate(size);
    co_return memory;
  } catch (const error&) {
    if (!is_open()) throw error(errc::closed, what);
    throw;
  }
}

task<> message_stream::shutdown_send(stream_ref) {
  constexpr const char* words = "shut down the sending side of a stream";
  static_cast<void>(open_for(words));
  if (output_ended_) co_return;
  turn mine(co_await weft::detail::current_promise(), writing_, words);
  auto nothing = co_await wait_for_memory(0, words);
  transfer last = open_for(words).send(std::move(nothing));
  try {
    co_await last;
  } catch (const error& why) {
    if (why.code() != errc::canceled || !why.posted()) throw;
  }
  output_ended_ = true;
}

// ---- the end ----

// On another thread nobody can wait for the close, so the connection's destructor closes the connection.
void message_stream::close() noexcept {
  if (!connection_ || std::exchange(closing_, true)) return;
  stop_waiting();
  try {
    if (is_at_home()) return run_in_background(home_, finish(stream_ref(*this)), "close a stream");
  } catch (const std::bad_alloc&) {  // then the connection's destructor closes the connection
  }
  connection_.reset();
  closed_.set();
}

task<> message_stream::finish(stream_ref) {
  try {
    co_await connection_->close();
  } catch (const std::exception&) {
    // The stream has ended all the same; without memory, the connection's destructor closes the connection.
  }
  connection_.reset();
  closed_.set();
}

void message_stream::abort() noexcept {
  aborted_ = true;
  stop_waiting();
  if (connection_) connection_->abort();
}

void message_stream::drop() noexcept {
  if (closing_) return;  // finish() ends the stream
  connection_.reset();
  stop_waiting();
  closed_.set();
}

// Ends the wait for memory of an operation in progress. The end of the connection ends all other waits.
void message_stream::stop_waiting() noexcept {
  if (waiting_ != nullptr) act_at_home([this] { waiting_->request_stop(); });
}

}  // namespace weft::net
