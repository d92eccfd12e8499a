// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <optional>
#include <utility>

#include <kv/client.hpp>
#include <kv/protocol.hpp>

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
  const places where = places_of(key, memory_.remote().size() / bucket_bytes);
  ++counters_.gets;
  if (clock_.is_old()) co_await ask_the_time();
  auto room = co_await device_->allocate(bucket_bytes);
  if (co_await get_from(where.first, key, room, into) == outcome::found) co_return true;
  co_return co_await get_from(where.second, key, room, into) == outcome::found;
}

task<outcome> client::get_from(std::uint64_t bucket, std::string_view key, mr::buffer& room, value& into) {
  constexpr int patience = 1000;
  for (int i = 0; i < patience; ++i) {
    co_await memory_.read(room, bucket * bucket_bytes);
    ++counters_.reads;
    const outcome result = find_in(room.bytes().first<bucket_bytes>(), bucket, key, into, clock_.latest());
    if (result != outcome::torn) co_return result;
    ++counters_.torn;
  }
  throw error(errc::malformed, fmt::format("get {}: bucket {} of the server's table is not valid", key, bucket));
}

task<> client::set(std::string_view key, std::string_view bytes) {
  if (!is_key(key))
    throw error(errc::invalid_argument,
                fmt::format("set \"{}\": a key is 1 to {} printable characters", key, longest_key));
  if (bytes.size() > longest_value) {
    throw error(errc::message_too_large, fmt::format("set {}: a value has at most {} bytes", key, longest_value));
  }
  const set_request what{.key = key, .bytes = bytes};
  const auto turn = co_await asking_->lock();
  auto message = co_await device_->allocate(message_bytes);
  message.resize(pack(what, message.bytes()));
  co_await ask(std::move(message));
}

task<> client::ask_the_time() {
  const auto turn = co_await asking_->lock();
  if (!clock_.is_old()) co_return;  // another has asked meanwhile
  auto message = co_await device_->allocate(message_bytes);
  message.resize(0);
  co_await ask(std::move(message));
}

// One at a time. Answers come in order: those to questions whose askers were stopped come first.
task<> client::ask(mr::buffer message) {
  for (; owed_ != 0; --owed_) {
    const auto late = co_await peer_.recv_or_throw();
  }
  const auto asked = clock_bound::local::now();
  try {
    co_await peer_.send(std::move(message));
  } catch (const error& failure) {
    if (failure.posted()) ++owed_;  // it goes out all the same, unless the connection has ended
    throw;
  }
  ++owed_;
  const auto answer = co_await peer_.recv_or_throw();
  --owed_;
  const std::optional<moment> shown = unpack_answer(answer.bytes());
  if (!shown) throw error(errc::malformed, "the server's answer is not valid");
  clock_ = clock_bound(*shown, asked);
}

}  // namespace kv
