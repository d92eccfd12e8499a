// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/weft.hpp>

#include <fmt/format.h>

#include <cstddef>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <kv/resp.hpp>

namespace kv {

/// The server's talk with one client over a stream of bytes: net::stream, or valkey_stream.
///
/// A client that sends on without reading is read from all the same, as Valkey's server does it: it would wait for its
/// answers to be taken, and this end for it. That ends when this conversation holds most_held bytes, or all of the
/// service hold as much as it has room for. A client that has taken all its answers has one more execute() then, so
/// that each goes on. So all together hold at most the service's room and `share` for each client.
template <class Stream>
class resp_conversation {
 public:
  static constexpr std::size_t most_held = std::size_t{8} << 20;
  /// A command that is not whole yet, what one execute() has answered, buffers to read into and write from, and what a
  /// session has parsed: less than that.
  static constexpr std::size_t share = std::size_t{5} << 20;

  resp_conversation(Stream& peer, resp_service& service)
      : peer_(peer), service_(service), session_(service, peer.peer()) {}
  resp_conversation(const resp_conversation&) = delete;
  resp_conversation& operator=(const resp_conversation&) = delete;
  ~resp_conversation() { service_.count(held_, 0); }

  /// Until the client has no more to say, and has all answers.
  weft::task<> run() {
    auto hearing = hear_all();
    auto answering = answer_all();
    co_await weft::when_all(std::move(hearing), std::move(answering));
  }

  /// Throws if the client has broken the protocol, which it has been told. Close the stream before: what an exception
  /// destroys is aborted.
  void check() const {
    if (session_.fault().empty()) return;
    throw weft::error(weft::errc::protocol_error,
                      fmt::format("{} breaks Redis's protocol: {}", peer_.peer(), session_.fault()));
  }

 private:
  static constexpr std::size_t read_bytes = 16384;
  static constexpr std::size_t enough = resp_session::enough_answers;
  static_assert(share > resp_session::longest_command + resp_session::longest_answer + 8 * enough);

  weft::task<> hear_all() {
    std::vector<char> input(read_bytes);
    for (bool more = true; more;) {
      const std::size_t count = co_await peer_.read_some(std::as_writable_bytes(std::span(input)));
      if (count == 0) break;
      more = co_await execute(std::string_view(input.data(), count));
    }
    heard_all_ = true;
    changed_.set();
  }

  // All that is whole of what has come. False: the client has no more to say.
  weft::task<bool> execute(std::string_view input) {
    const bool begun = !rest_.empty();
    if (begun) input = append_to_rest(input);
    for (std::size_t taken = 1; (taken != 0 && !input.empty()) || session_.wants_turn();) {
      if (session_.wants_turn()) co_await weft::yield();
      while (!has_room()) {
        taken_.reset();
        co_await taken_.wait();
      }
      const auto count = execute_some(input);
      if (!count) co_return false;
      taken = *count;
      input.remove_prefix(taken);
    }
    if (begun) {
      rest_.erase(0, rest_.size() - input.size());
      if (rest_.empty()) give_back(rest_);
    } else {
      rest_.assign(input);
    }
    count_held();
    co_return true;
  }

  std::optional<std::size_t> execute_some(std::string_view input) {
    if (answers_.size() >= enough) {
      answers_.shrink_to_fit();
      full_.push_back(std::exchange(answers_, {}));
    }
    const auto count = session_.execute(input, answers_);
    if (answers_.capacity() > answers_.size() + 2 * enough) answers_.shrink_to_fit();
    count_held();
    if (!answers_.empty()) changed_.set();
    return count;
  }

  // Doubling would make room for two of the longest command.
  std::string_view append_to_rest(std::string_view input) {
    if (rest_.size() + input.size() > enough) rest_.reserve(resp_session::longest_command + 2 * read_bytes);
    rest_.append(input);
    count_held();
    return rest_;
  }

  // With as few writes as there may be.
  weft::task<> answer_all() {
    while (!heard_all_ || has_answers()) {
      changed_.reset();
      if (!heard_all_ && !has_answers()) co_await changed_.wait();
      take_answers();
      if (!sent_.empty()) co_await peer_.write(std::as_bytes(std::span(sent_)));
      sent_.clear();
      give_back(sent_);
      count_held();
      taken_.set();
    }
  }

  [[nodiscard]] bool has_answers() const noexcept { return !full_.empty() || !answers_.empty(); }
  void take_answers() {
    if (full_.empty()) return std::swap(sent_, answers_);
    sent_ = std::move(full_.front());
    full_.pop_front();
  }
  // The room of an empty one that was long. It would keep that if another empty one were assigned to it.
  static void give_back(std::string& from) {
    if (from.capacity() > 2 * enough) from.shrink_to_fit();
  }

  [[nodiscard]] bool has_room() const noexcept {
    return (sent_.empty() && !has_answers()) || (held_ < most_held && service_.has_room());
  }
  void count_held() noexcept {
    std::size_t now = rest_.capacity() + answers_.capacity() + sent_.capacity();
    for (const std::string& each : full_) now += each.capacity();
    service_.count(std::exchange(held_, now), now);
  }

  Stream& peer_;
  resp_service& service_;
  resp_session session_;
  std::string rest_;              // what has come of a command that is not whole yet
  std::string sent_;              // answers that are on their way
  std::deque<std::string> full_;  // those behind them, of enough bytes each
  std::string answers_;           // the last ones
  std::size_t held_ = 0;
  bool heard_all_ = false;
  weft::event changed_;  // there are answers, or there will be no more
  weft::event taken_;    // some of them are gone
};

}  // namespace kv
