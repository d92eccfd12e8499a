// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/weft.hpp>

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <kv/clock.hpp>
#include <kv/protocol.hpp>
#include <kv/table.hpp>

namespace kv {

/// A client over weft: GET is a one-sided read of the server's table, SET is a message. On one executor.
class client {
 public:
  /// Connects, and learns where the table is. Where the server does so as well, the connection waits for
  /// `resume_within` when the network fails: weft::net::connection_options::resume_within. Throws weft::error.
  [[nodiscard]] static weft::task<client> connect(weft::net::device& device, std::string address,
                                                  std::chrono::milliseconds resume_within = {});

  /// Which process the server is. All that this client ever reads is that one's.
  [[nodiscard]] generation server() const noexcept { return server_; }

  /// The value, or false if there is none, or it may have expired by the server's clock. One read brings it if it fits
  /// a slot, and two if it does not. While a FLUSHALL is under way, keys go one by one (table::clearing). Reads again
  /// whatever was being written meanwhile. Once a minute it asks the server for the time. Any number at a time. Throws
  /// weft::error: errc::malformed if the server's memory makes no sense for a thousand reads in about a second,
  /// errc::busy if a long value was gone a hundred times before it was read, because all memory for long values was set
  /// anew meanwhile, or because the server was kept from a processor in the middle of a SET.
  [[nodiscard]] weft::task<bool> get(std::string_view key, value& into);
  /// Stores; returns once the server has done so. A value that does not fit a message is lent to the server, which
  /// reads it. One at a time: others wait. One that is stopped may have stored it all the same. errc::message_too_large
  /// for more than the server's longest value.
  [[nodiscard]] weft::task<> set(std::string_view key, std::string_view bytes);
  [[nodiscard]] weft::task<> close() { return peer_.close(); }

  struct counters {
    std::uint64_t gets = 0;
    std::uint64_t reads = 0;
    std::uint64_t torn = 0;  ///< of the reads: what they brought was being written
  };
  [[nodiscard]] const counters& statistics() const noexcept { return counters_; }

 private:
  client(weft::net::connection peer, weft::net::device& device, const hello& said,
         clock_bound::local::time_point asked) noexcept
      : peer_(std::move(peer)),
        device_(&device),
        memory_(peer_.prepare(said.memory)),
        buckets_(said.buckets),
        longest_value_(said.longest_value),
        server_(said.server),
        clock_(said.now, asked) {}
  weft::task<weft::mutex::lock_guard> take_turn();
  weft::task<> ask(weft::mr::buffer message, std::optional<std::uint64_t> lent = {});
  weft::task<moment> take_answer();
  weft::task<> ask_the_time();
  weft::task<outcome> get_from(std::uint64_t bucket, std::string_view key, value& into);
  weft::task<outcome> read_record_at(record_place place, std::string_view key, value& into);

  weft::net::connection peer_;
  weft::net::device* device_;
  weft::net::prepared_memory memory_;
  std::uint64_t buckets_;
  std::uint64_t longest_value_;
  generation server_;
  clock_bound clock_;
  std::unique_ptr<weft::mutex> asking_ = std::make_unique<weft::mutex>();
  std::unique_ptr<weft::mutex> hurrying_ = std::make_unique<weft::mutex>();  // of GETs that came too late for a record
  // Of each answer that is to come, the oldest first: the key to the value that was lent for it.
  std::deque<std::optional<std::uint64_t>> owed_;
  counters counters_;
};

}  // namespace kv
