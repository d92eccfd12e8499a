// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/system/timer.hpp>

#include "child.hpp"

namespace weft::stress {

/// What is done to the server of a duel, again and again.
enum class harm : std::uint8_t {
  none,
  killed,  ///< SIGKILL; another one takes its place, at the same address
  frozen,  ///< SIGSTOP for a while, then SIGCONT
};

/// Two processes that talk over a real device: a client, which checks every byte and every answer, and a server.
struct duel {
  std::string_view name;
  std::string_view words;
  unsigned connections = 4;  ///< at a time
  unsigned rounds = 0;       ///< of a connection, after which another one is made; 0: it stays
  std::uint32_t largest_message = 4096;
  std::uint32_t largest_transfer = 65'536;  ///< of a write and a read
  bool registers = false;                   ///< memory of its own for each write
  bool stops = false;                       ///< operations after a random time
  std::size_t pool_bytes = 0;               ///< of each side; 0: the usual
  unsigned server_pause_us = 0;             ///< before it answers
  unsigned server_descriptors = 0;  ///< that it may open, beyond those that it has with nobody connected; 0: any
  std::size_t client_bytes = 0;     ///< of address space, beyond what it has; 0: any
  harm does = harm::none;

  /// Whether it makes connections fail.
  [[nodiscard]] bool is_harmful() const noexcept {
    return does == harm::killed || server_descriptors != 0 || client_bytes != 0;
  }
};

/// All that there are.
[[nodiscard]] std::span<const duel> all_duels() noexcept;

/// Where duels are fought.
struct battleground {
  std::string device = "iwarp";       ///< for net::device::open(), of both
  std::string address = "127.0.0.1";  ///< that the server listens on
  std::string client_device;          ///< the client's, if it is another one
  std::string far_host;               ///< host and port of the machine that has the server: see serve_far_clients()
  std::string disturbance;            ///< a command for the shell, run again and again meanwhile

  /// Whether both sides can be one process on one device as well.
  [[nodiscard]] bool is_one_device() const noexcept { return client_device.empty() && far_host.empty(); }
  /// Whether connections may fail.
  [[nodiscard]] bool may_fail(const duel& what) const noexcept { return what.is_harmful() || !disturbance.empty(); }
};

/// What a server has to say; in memory that it shares with who started it.
struct server_score {
  std::array<char, 64> address{};  ///< where it listens, or shall
  std::atomic<bool> listening{false};
  std::atomic<bool> over{false};              ///< it shall end
  std::atomic<std::uint64_t> received{0};     ///< messages
  std::atomic<std::uint64_t> answered{0};     ///< of them
  std::atomic<std::uint64_t> at_limit{0};     ///< times that it had no descriptor left
  std::atomic<std::size_t> excused_bytes{0};  ///< on its standard error stream before it listened: of libraries
  last_sentence words{};                      ///< of what was wrong
};

/// What a client has done so far; in memory that it shares with who started it.
struct score {
  /// Bins of the times that operations took: each is an eighth wider than the one before.
  static constexpr std::size_t bins = 256;

  std::atomic<std::uint64_t> begun{0};      ///< operations of the client, and connections made and closed
  std::atomic<std::uint64_t> succeeded{0};  ///< each has ended in one of these three
  std::atomic<std::uint64_t> failed{0};
  std::atomic<std::uint64_t> stopped{0};
  std::atomic<std::uint64_t> bytes{0};        ///< of payload, checked
  std::atomic<std::uint64_t> sent{0};         ///< messages
  std::atomic<std::uint64_t> unsure{0};       ///< that were stopped, and may have been sent
  std::atomic<std::uint64_t> heard{0};        ///< answers to them
  std::atomic<std::uint64_t> connections{0};  ///< that were made
  std::atomic<std::uint64_t> at_limit{0};     ///< times that memory could not be had
  std::atomic<std::uint64_t> faults{0};       ///< that were inflicted, and limits that were met
  std::atomic<bool> unfinished{false};        ///< the client goes on when its time is up
  std::array<std::atomic<std::uint64_t>, bins> times{};

  last_sentence words{};  ///< of what was wrong
};

/// Nanoseconds that `percent` of the operations took at most, by the bins of one or more scores.
[[nodiscard]] double percentile(std::span<const std::uint64_t> times, double percent) noexcept;

/// A server until it is told to end, in a process of its own: what that shall exit with. Unless connections may fail,
/// it ends at the first thing that does.
[[nodiscard]] int be_server(const duel& what, const battleground& where, bool may_fail, server_score& count);

/// A client of the server at an address, for so long, and as long as count.unfinished.
[[nodiscard]] int be_client(const duel& what, const battleground& where, const std::string& server, std::uint64_t seed,
                            duration time, score& count);

}  // namespace weft::stress
