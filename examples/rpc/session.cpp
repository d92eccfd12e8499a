// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <utility>

#include <common/network.hpp>
#include <rpc/session.hpp>

namespace rpc {

/// The waiter's side of a call: enters it into the table before it is sent, and hands it over if the waiter leaves.
class session::caller {
 public:
  caller(session& of, common::permits slot, room* lent) noexcept : of_(of), slot_(std::move(slot)), lent_(lent) {}
  caller(const caller&) = delete;
  caller& operator=(const caller&) = delete;
  ~caller() {
    if (entry_ != nullptr) give_up();
  }

  /// Yields the id of the call, which is in the table from now on.
  std::uint64_t enter() {
    id_ = of_.last_id_ + 1;
    entry fresh;
    fresh.waiting = this;
    if (lent_ != nullptr) fresh.room_bytes = lent_->memory.remote().size();
    entry_ = &of_.calls_.try_emplace(id_, std::move(fresh)).first->second;
    entry_->slot = std::move(slot_);
    return of_.last_id_ = id_;
  }
  /// Takes the call out of the table, before the server has heard of it.
  void leave() noexcept {
    if (std::exchange(entry_, nullptr) != nullptr) of_.calls_.erase(id_);
  }

  [[nodiscard]] weft::event::wait_operation ended() noexcept { return ended_.wait(); }
  [[nodiscard]] reply take() {
    if (failure_) throw *failure_;
    if (how_ == outcome::canceled) throw call_failed("the server has canceled the call");
    if (how_ != outcome::success) throw call_failed(printable(reply_.text));
    return std::move(reply_);
  }

  // The table's side; after either call the entry is gone.
  void answer(const answer_message& said) {
    entry_ = nullptr;
    how_ = said.how;
    reply_.text = said.text;
    reply_.written = said.written;
    ended_.set();
  }
  void fail(const weft::error& why) {
    entry_ = nullptr;
    if (lent_ != nullptr) lent_->memory.retire();  // a connection that closes in order is not over yet
    failure_ = why.as_posted();
    ended_.set();
  }

 private:
  // The server may still work on the call: the connection keeps the room, and the entry what belongs to it.
  void give_up() noexcept {
    entry_->waiting = nullptr;
    entry_->given_up = weft::executor::current()->now();
    if (lent_ != nullptr) {
      entry_->room_key = lent_->memory.remote().key();
      entry_->room_share = std::move(lent_->share);
      lent_->memory.retire();
    }
    entry_->cancel_due = true;
    of_.cancels_due_.set();
  }

  session& of_;
  common::permits slot_;
  room* lent_;
  std::uint64_t id_ = 0;
  entry* entry_ = nullptr;  // while the call is in the table
  weft::event ended_;
  std::optional<weft::error> failure_;
  outcome how_ = outcome::success;
  reply reply_;
};

std::span<const std::byte> greeting() noexcept { return common::greeting(protocol_name); }

session::session(weft::net::connection peer, weft::mr::pool& pool, weft::duration patience)
    : peer_(std::move(peer)), pool_(pool), patience_(patience) {
  common::require_greeting(peer_, protocol_name, "rpc");
}

// ---- the calls ----

weft::task<session::reply> session::perform(const request& what, room* lent) {
  auto slot = co_await common::permits::take(slots_);
  auto memory = co_await pool_.allocate(message_bytes);
  caller self(*this, std::move(slot), lent);
  if (over_) throw *over_;
  call_message message;
  message.id = self.enter();  // nothing waits between this and the sending, so that ids arrive in order
  message.method = what.method;
  message.arguments = what.arguments;
  if (lent != nullptr) message.room = lent->memory.remote();
  memory.resize(pack(message, memory.bytes()));
  try {
    co_await peer_.send(std::move(memory));
  } catch (const weft::error& why) {
    if (!why.posted()) self.leave();
    throw;
  }
  try {
    co_await self.ended();
  } catch (const weft::error& why) {
    throw weft::error(why.code(), "wait for the answer").as_posted();
  }
  co_return self.take();
}

weft::task<std::string> session::call(request what) {
  auto got = co_await perform(what, nullptr);
  co_return std::move(got.text);
}

weft::task<weft::mr::buffer> session::fetch(request what, weft::mr::buffer memory, common::permits share) {
  room lent;
  lent.share = std::move(share);
  lent.memory = co_await peer_.expose(std::move(memory), weft::mr::usage::write_dst);
  const auto got = co_await perform(what, &lent);
  auto back = co_await lent.memory.revoke();
  back.resize(got.written);
  co_return back;
}

// ---- the connection ----

weft::task<weft::error> session::run() {
  try {
    co_await weft::when_all(hear_all(), send_cancels(), expect_answers());
  } catch (const weft::error& why) {
    over_ = why;
  }
  end_all(*over_);
  if (over_->code() == weft::errc::canceled) throw *over_;
  if (over_->code() == weft::errc::peer_closed) {
    co_await peer_.close();
  } else if (!closing_) {  // else close() is at it, in order
    peer_.abort();
  }
  co_return *over_;
}

// Throws when the connection is over.
weft::task<> session::hear_all() {
  for (;;) {
    const auto said = co_await peer_.recv_or_throw();
    hear(said);
  }
}

void session::hear(const weft::net::message& said) {
  const answer_message answer = unpack_answer(said.bytes());
  const auto found = calls_.find(answer.id);
  if (found == calls_.end()) {
    throw weft::error(weft::errc::protocol_error,
                      fmt::format("the server answers call {}, which is not in progress", answer.id));
  }
  if (answer.written > found->second.room_bytes) {
    throw weft::error(weft::errc::protocol_error, fmt::format("the server has written {} bytes into room for {}",
                                                              answer.written, found->second.room_bytes));
  }
  has_served_ = true;
  const entry ended = std::move(found->second);
  calls_.erase(found);
  if (ended.waiting != nullptr) ended.waiting->answer(answer);
  // The buffer goes home, unless it has: with the key, if the answer has revoked that.
  if (ended.room_key && said.invalidated_key != ended.room_key) peer_.confirm_retired(*ended.room_key);
}

weft::task<> session::send_cancels() {
  for (;;) {
    co_await cancels_due_.wait();
    auto next = calls_.end();  // the oldest that is due, so that none is passed over for ever
    for (auto each = calls_.begin(); each != calls_.end(); ++each) {
      if (each->second.cancel_due && (next == calls_.end() || each->first < next->first)) next = each;
    }
    if (next == calls_.end()) {
      cancels_due_.reset();
      continue;
    }
    next->second.cancel_due = false;
    const cancel_message message{.id = next->first};
    auto memory = co_await pool_.allocate(message_bytes);
    memory.resize(pack(message, memory.bytes()));
    co_await peer_.send(std::move(memory));
  }
}

// A server that never confirms would keep the slots and rooms of the calls that have timed out.
weft::task<> session::expect_answers() {
  for (;;) {
    co_await weft::sleep_for(patience_ / 4);
    const weft::time_point now = weft::executor::current()->now();
    for (const auto& [id, call] : calls_) {
      if (call.waiting != nullptr || now - call.given_up < patience_) continue;
      throw weft::error(weft::errc::timed_out,
                        fmt::format("the server does not say that canceled call {} is over", id));
    }
  }
}

void session::end_all(const weft::error& why) {
  over_ = why;
  for (auto& [id, call] : std::exchange(calls_, {})) {
    if (call.waiting != nullptr) call.waiting->fail(why);
  }
}

weft::task<> session::close() {
  closing_ = true;
  end_all(weft::error(weft::errc::closed, "this client"));
  co_await peer_.close();
}

}  // namespace rpc
