// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <span>

#include <kv/client.hpp>

namespace kv {

using namespace weft;

task<client> client::connect(net::device& device, std::string address, std::chrono::milliseconds resume_within) {
  const auto asked = clock_bound::local::now();
  net::connection_options options;
  options.receive_size = message_bytes;
  options.resume_within = resume_within;
  auto peer = co_await device.connect(address, options);
  const auto first = co_await peer.recv_or_throw();
  const hello said = unpack_hello(first.bytes());
  co_return client(std::move(peer), device, said, asked);
}

task<bool> client::get(std::string_view key, value& into) {
  const places where = places_of(key, buckets_);
  ++counters_.gets;
  if (clock_.is_old()) co_await ask_the_time();
  if (co_await get_from(where.first, key, into) == outcome::found) co_return true;
  co_return co_await get_from(where.second, key, into) == outcome::found;
}

task<outcome> client::get_from(std::uint64_t bucket, std::string_view key, value& into) {
  constexpr int most_reads = 1000;
  constexpr int most_records = 100;
  constexpr int reads_in_a_row = 20;  // and then one in each millisecond: the server's thread may wait for a processor
  int records = 0;
  mutex::lock_guard alone;
  for (int i = 0; i < most_reads && records < most_records; ++i) {
    auto room = co_await device_->allocate(bucket_bytes);
    co_await memory_.read(room, bucket * bucket_bytes);
    ++counters_.reads;
    bucket_search search(room.bytes().first<bucket_bytes>(), bucket, key, clock_.latest());
    room.reset();  // many GETs that each keep some memory while they wait for more would wait for each other
    record_place place;
    outcome result = search.next(into, place);
    while (result == outcome::in_record) {
      ++records;
      result = co_await read_record_at(place, key, into);
      if (result == outcome::absent) result = search.next(into, place);  // another key has the same hash
    }
    if (result != outcome::torn) co_return result;
    ++counters_.torn;
    // The record was overtaken: the next one is read faster if others do not share the network with it.
    if (records != 0 && !alone) alone = co_await hurrying_->lock();
    if (i >= reads_in_a_row) co_await sleep_for(std::chrono::milliseconds(1));
  }
  if (records == 0) {
    throw error(errc::malformed, fmt::format("get {}: bucket {} of the server's table is not valid", key, bucket));
  }
  throw error(errc::busy, fmt::format("get {}: its value is overwritten faster than it is read", key));
}

task<outcome> client::read_record_at(record_place place, std::string_view key, value& into) {
  const std::uint64_t size = memory_.remote().size();
  if (place.offset > size || place.bytes() > size - place.offset) co_return outcome::torn;
  auto room = co_await device_->allocate(place.bytes());
  co_await memory_.read(room, place.offset);
  ++counters_.reads;
  co_return read_record(room.bytes(), place, key, into);
}

task<> client::set(std::string_view key, std::string_view bytes) {
  if (!is_key(key))
    throw error(errc::invalid_argument,
                fmt::format("set \"{}\": a key is 1 to {} printable characters", key, longest_key));
  if (bytes.size() > longest_value_) {
    throw error(errc::message_too_large, fmt::format("set {}: a value has at most {} bytes", key, longest_value_));
  }
  const auto turn = co_await take_turn();
  auto message = co_await device_->allocate(message_bytes);
  if (fits_message(key, bytes)) {
    message.resize(pack(set_request{.key = key, .value = bytes}, message.bytes()));
    co_await ask(std::move(message));
    co_return;
  }
  auto memory = co_await device_->allocate(bytes.size());
  std::ranges::copy(std::as_bytes(std::span(bytes)), memory.bytes().begin());
  auto lent = co_await peer_.expose(std::move(memory), mr::usage::read_src);
  message.resize(pack(set_request{.key = key, .value = lent.remote()}, message.bytes()));
  const std::uint64_t open = lent.remote().key();
  lent.retire();  // the connection keeps it until the server has answered, whoever waits for that
  co_await ask(std::move(message), open);
}

task<> client::ask_the_time() {
  const auto turn = co_await take_turn();
  if (!clock_.is_old()) co_return;  // another has asked meanwhile
  auto message = co_await device_->allocate(message_bytes);
  message.resize(0);
  co_await ask(std::move(message));
}

// One at a time. Answers come in order: those to questions whose askers were stopped come first.
task<mutex::lock_guard> client::take_turn() {
  auto turn = co_await asking_->lock();
  while (!owed_.empty()) co_await take_answer();
  co_return turn;
}

task<> client::ask(mr::buffer message, std::optional<std::uint64_t> lent) {
  const auto asked = clock_bound::local::now();
  owed_.push_back(lent);
  try {
    co_await peer_.send(std::move(message));
  } catch (const error& failure) {
    if (!failure.posted()) {  // or else it goes out all the same, unless the connection has ended
      owed_.pop_back();
      if (lent) peer_.confirm_retired(*lent);
    }
    throw;
  }
  clock_ = clock_bound(co_await take_answer(), asked);
}

// The server has read by then what was lent to it.
task<moment> client::take_answer() {
  const auto answer = co_await peer_.recv_or_throw();
  if (owed_.front()) peer_.confirm_retired(*owed_.front());
  owed_.pop_front();
  const std::optional<moment> shown = unpack_answer(answer.bytes());
  if (!shown) throw error(errc::malformed, "the server's answer is not valid");
  co_return *shown;
}

}  // namespace kv
