// SPDX-License-Identifier: Apache-2.0
#include "destination.hpp"

#include <weft/weft.hpp>

#include <utility>

namespace kvcache {
namespace {

weft::error not_ours(const char* what) { return {weft::errc::protocol_error, what}; }

void check(const lent_message& lent, const prefill& from) {
  if (lent.sequence != from.sequence()) throw not_ours("the peer lends pages for another sequence");
  if (lent.pages.size() != from.of().bytes()) throw not_ours("the peer lends pages of another size");
  lent.pages.require(weft::mr::usage::write_dst, "write");
}

/// What the last message of a sequence says; an error if it is not one.
outcome meaning_of(const message& said, const prefill& from, std::uint32_t written) {
  const auto* const accepted = std::get_if<accepted_message>(&said);
  if (accepted != nullptr && accepted->sequence == from.sequence() && written == from.of().layers) return {};
  const auto* const evicted = std::get_if<evicted_message>(&said);
  if (evicted != nullptr && evicted->sequence == from.sequence()) return {outcome::kind::evicted, evicted->text};
  const auto* const refused = std::get_if<refused_message>(&said);
  if (refused != nullptr && refused->sequence == from.sequence()) return {outcome::kind::refused, refused->text};
  throw unexpected(said, "'accepted'");
}

}  // namespace

destination::destination(weft::net::device& device, std::string address, weft::duration patience)
    : device_(device), address_(std::move(address)), patience_(patience) {}

weft::task<> destination::connect() {
  if (link_) co_return;
  auto peer = co_await device_.connect(address_, connection_options(patience_));
  link_.emplace(std::move(peer));
}

weft::task<> destination::close() {
  if (link_) co_await link_->peer().close();
  link_.reset();
}

weft::task<message> destination::ask(const prefill& from) {
  const message want = want_message{.sequence = from.sequence(), .of = from.of()};
  co_await weft::with_timeout(patience_, link_->send(pack(want)));
  co_return co_await weft::with_timeout(patience_, link_->receive());
}

// A write that came too late may have ended the connection just after the last sequence was dropped. That is noticed
// here, and it is no trouble of this sequence.
weft::task<message> destination::ask_anew(const prefill& from) {
  if (link_ && has_dropped_) {
    auto said = co_await weft::as_result(ask(from));
    has_dropped_ = false;
    if (said) co_return std::move(*said);
    if (said.error().code() == weft::errc::canceled) throw said.error();
    link_.reset();
  }
  co_await connect();
  co_return co_await ask(from);
}

weft::task<outcome> destination::push(prefill& from) {
  const message said = co_await ask_anew(from);
  if (std::holds_alternative<refused_message>(said)) co_return meaning_of(said, from, 0);
  const auto* const lent = std::get_if<lent_message>(&said);
  if (lent == nullptr) throw unexpected(said, "'lent'");
  check(*lent, from);
  co_return co_await push_to(from, *lent);
}

weft::task<> destination::push_layers(prefill& from, const lent_message& lent) {
  for (std::uint32_t layer = 0; layer != from.of().layers; ++layer) {
    co_await from.until_ready(layer);
    if (end_) co_return;
    const weft::net::block_list blocks = from.blocks_of(layer, lent.pages);
    co_await link_->push(blocks, layer);
    ++written_;
  }
}

// The connection outlives a write that fails for a reason of this end, such as a GPU that does not copy, and the
// receiver would wait for the layer until its time is up.
weft::task<> destination::push_or_abort(prefill& from, const lent_message& lent) {
  try {
    co_await push_layers(from, lent);
  } catch (const weft::error& why) {
    if (why.code() != weft::errc::remote_access) link_->peer().abort();
    throw;
  }
}

// The receiver is silent until it has all layers, or takes its pages back. One that is silent for longer than it lends
// them has the connection ended, which also ends the writes.
weft::task<message> destination::hear_end(const lent_message& lent) {
  try {
    end_ = co_await weft::with_timeout(lent.time + patience_, link_->receive());
    co_return *end_;
  } catch (...) {
    link_->peer().abort();
    throw;
  }
}

// Writes and listens at the same time: pages that are taken back are heard of before the next layer, or by a write that
// is refused, which has ended the connection if the receiver's memory is the host's. Both are waited for, because the
// writes use the memory of `from`.
weft::task<outcome> destination::push_to(prefill& from, const lent_message& lent) {
  end_.reset();
  written_ = 0;
  auto writing = weft::with_timeout(lent.time + patience_, push_or_abort(from, lent));
  auto [wrote, heard] = co_await weft::when_all(weft::as_result(std::move(writing)),  //
                                                weft::as_result(hear_end(lent)));
  if (heard) {
    outcome found = meaning_of(*heard, from, written_);
    if (found.what != outcome::kind::accepted) co_await drop(from.sequence());
    co_return found;
  }
  link_.reset();
  const auto is_refusal = [](const weft::error& why) { return why.code() == weft::errc::remote_access; };
  if (!wrote && is_refusal(wrote.error())) co_return outcome{outcome::kind::evicted, wrote.error().what()};
  if (is_refusal(heard.error())) co_return outcome{outcome::kind::evicted, heard.error().what()};
  const bool aborted = heard.error().code() == weft::errc::closed;
  throw !wrote && aborted ? wrote.error() : heard.error();
}

// The next sequence goes over a new connection if this one has ended.
weft::task<> destination::drop(std::uint64_t sequence) {
  const message last = dropped_message{.sequence = sequence};
  const auto sent = co_await weft::as_result(weft::with_timeout(patience_, link_->send(pack(last))));
  has_dropped_ = true;
  if (sent) co_return;
  if (sent.error().code() == weft::errc::canceled) throw sent.error();
  link_.reset();
}

}  // namespace kvcache
