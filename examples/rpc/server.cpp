// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <exception>
#include <unordered_map>
#include <utility>

#include <common/network.hpp>
#include <common/permits.hpp>
#include <rpc/server.hpp>
#include <rpc/session.hpp>

namespace rpc {

incoming_call::incoming_call(weft::net::device& device, weft::net::connection& peer, weft::duration patience,
                             const call_message& what)
    : device_(device),
      peer_(peer),
      patience_(patience),
      id_(what.id),
      method_(what.method),
      arguments_(what.arguments),
      room_(what.room) {}

weft::task<> incoming_call::append(weft::mr::buffer part) {
  if (part.size() > room()) {
    throw weft::error(weft::errc::out_of_range,
                      fmt::format("answer with {} bytes: the caller has room for {}", part.size(), room()));
  }
  const auto target = room_->slice(written_, part.size());
  written_ += part.size();  // before another part can come
  co_await weft::with_timeout(patience_, peer_.write(std::move(part), target));
}

/// The server's end of one connection.
class conversation {
 public:
  conversation(weft::net::device& device, const method_table& methods, weft::duration patience, weft::event& ending,
               weft::net::connection peer) noexcept
      : device_(device), methods_(methods), patience_(patience), ending_(ending), peer_(std::move(peer)) {}

  weft::task<> run();

 private:
  struct reply {
    outcome how = outcome::success;
    std::string text;
  };

  weft::task<> hear_all(weft::scope& calls);
  weft::task<> hear_call(const call_message& what, weft::scope& calls);
  void hear_cancel(const cancel_message& what);
  weft::task<> hear_ending();
  weft::task<> let_end(weft::scope& calls);
  weft::task<> attend(incoming_call& what, common::permits slot);
  weft::task<std::string> invoke(incoming_call& what);
  weft::task<reply> reply_to(incoming_call& what);
  weft::task<> answer(const incoming_call& what, const reply& how);

  weft::net::device& device_;
  const method_table& methods_;
  weft::duration patience_;
  weft::event& ending_;
  weft::net::connection peer_;
  weft::semaphore slots_{most_calls};
  std::uint64_t last_id_ = 0;
  std::unordered_map<std::uint64_t, incoming_call> calls_;  // under way
};

weft::task<> conversation::run() {
  const auto hear_and_answer = [this](weft::scope& calls) -> weft::task<> {
    co_await weft::when_any(hear_all(calls), hear_ending());
    if (ending_.is_set()) co_await let_end(calls);
    calls.request_stop();  // of a client that has closed, nobody waits for the answers
  };
  co_await weft::with_scope(weft::on_failure::stop_siblings, hear_and_answer);
  co_await peer_.close();
}

weft::task<> conversation::hear_ending() { co_await ending_.wait(); }

// Until the client has closed.
weft::task<> conversation::hear_all(weft::scope& calls) {
  while (const auto said = co_await peer_.recv()) {
    const auto what = unpack_request(said->bytes());
    if (const auto* const call = std::get_if<call_message>(&what)) {
      co_await hear_call(*call, calls);
    } else {
      hear_cancel(std::get<cancel_message>(what));
    }
  }
}

// Whoever has sent more calls than it may waits here, and its credits run out: it harms itself only.
weft::task<> conversation::hear_call(const call_message& what, weft::scope& calls) {
  if (what.id <= last_id_) {
    throw weft::error(weft::errc::protocol_error, fmt::format("call {} comes after call {}", what.id, last_id_));
  }
  last_id_ = what.id;
  auto slot = co_await common::permits::take(slots_);
  incoming_call& call = calls_.try_emplace(what.id, device_, peer_, patience_, what).first->second;
  calls.spawn(attend(call, std::move(slot)));
}

// A cancel for a call that is answered has crossed the answer on its way.
void conversation::hear_cancel(const cancel_message& what) {
  if (what.id > last_id_) {
    throw weft::error(weft::errc::protocol_error,
                      fmt::format("the client cancels call {}, which it has never made", what.id));
  }
  if (const auto found = calls_.find(what.id); found != calls_.end()) found->second.canceled_.set();
}

// The slot goes back once the client has taken the answer, so that who takes none soon has no more calls.
weft::task<> conversation::attend(incoming_call& what, common::permits slot) {
  const std::uint64_t id = what.id_;
  const auto how = co_await reply_to(what);
  co_await answer(what, how);
  calls_.erase(id);
  slot = common::permits();
}

// What the method does ends before this does, also when it is canceled.
weft::task<conversation::reply> conversation::reply_to(incoming_call& what) {
  const auto wait = [&]() -> weft::task<> { co_await what.canceled_.wait(); };
  reply how;
  try {
    auto first = co_await weft::when_any(invoke(what), wait());
    auto& text = std::get<0>(first.values);
    how.how = text ? outcome::success : outcome::canceled;
    if (text) how.text = std::move(*text);
  } catch (const std::exception& why) {
    how.how = outcome::failure;
    how.text = why.what();
  }
  if (how.how == outcome::success && how.text.size() > longest_answer) {
    how.how = outcome::failure;
    how.text = fmt::format("the answer has {} bytes: at most {} are possible", how.text.size(), longest_answer);
  }
  co_return how;
}

weft::task<std::string> conversation::invoke(incoming_call& what) {
  const auto found = methods_.find(what.method_);
  if (found == methods_.end()) throw std::runtime_error(fmt::format("there is no method '{}'", what.method_));
  co_return co_await found->second(what);
}

// Behind all that the method has written. The client's key is revoked on the way, where that can be done: then the room
// is closed before the client looks into it.
weft::task<> conversation::answer(const incoming_call& what, const reply& how) {
  answer_message message;
  message.id = what.id_;
  message.how = how.how;
  message.written = what.written_;
  message.text = how.text;
  auto memory = co_await device_.allocate(message_bytes);
  memory.resize(pack(message, memory.bytes()));
  weft::net::send_options options;
  if (what.room_ && peer_.capabilities().invalidate) options.invalidate = what.room_->key();
  try {
    co_await weft::with_timeout(patience_, peer_.send(std::move(memory), options));
  } catch (const weft::error& why) {
    if (why.code() != weft::errc::peer_closed) throw;  // a client that has closed does not want it
  }
}

// A server that ends takes no more calls, and answers those that it has.
weft::task<> conversation::let_end(weft::scope& calls) {
  try {
    co_await weft::with_timeout(patience_, slots_.acquire(most_calls));
  } catch (const weft::error& why) {
    if (why.code() != weft::errc::timed_out) throw;
    calls.request_stop();
  }
}

namespace {

weft::task<> attend_client(weft::net::connection_request request, weft::net::device& device,
                           const method_table& methods, weft::duration patience, weft::event& ending) {
  if (!std::ranges::equal(request.private_data(), greeting())) co_return co_await request.reject();
  weft::net::connection_options options;
  options.receive_size = message_bytes;
  options.receive_depth = most_calls;
  options.private_data = greeting();
  auto peer = co_await request.accept(options);
  conversation one(device, methods, patience, ending, std::move(peer));
  co_await one.run();
}

}  // namespace

weft::task<> serve(weft::net::device& device, weft::net::listener& listener, const method_table& methods,
                   serve_options options) {
  weft::event ending;
  const auto accept_all = [&](weft::scope& clients) -> weft::task<> {
    while (auto request = co_await listener.next()) {
      std::string peer(request->peer());
      auto life = attend_client(std::move(*request), device, methods, options.patience, ending);
      clients.spawn(common::attend("rpc", std::move(peer), std::move(life)));
    }
    ending.set();
  };
  co_await weft::with_scope(weft::on_failure::report, accept_all);
}

}  // namespace rpc
