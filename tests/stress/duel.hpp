// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "child.hpp"
#include "run.hpp"

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

  /// Whether connections may fail.
  [[nodiscard]] bool is_harmful() const noexcept {
    return does == harm::killed || server_descriptors != 0 || client_bytes != 0;
  }
};

/// All that there are.
[[nodiscard]] std::span<const duel> all_duels() noexcept;

/// What both processes have done so far; in memory that they share with who started them.
struct score {
  /// Bins of the times that operations took: each is an eighth wider than the one before.
  static constexpr std::size_t bins = 256;

  std::atomic<std::uint64_t> begun{0};      ///< operations of the client
  std::atomic<std::uint64_t> succeeded{0};  ///< each has ended in one of these three
  std::atomic<std::uint64_t> failed{0};
  std::atomic<std::uint64_t> stopped{0};
  std::atomic<std::uint64_t> bytes{0};           ///< of payload, checked
  std::atomic<std::uint64_t> connections{0};     ///< that were made
  std::atomic<std::uint64_t> refused{0};         ///< that could not be
  std::atomic<std::uint64_t> lost{0};            ///< that ended by a fault
  std::atomic<std::uint64_t> faults{0};          ///< that were inflicted
  std::atomic<std::uint64_t> resident_bytes{0};  ///< of both processes
  std::array<std::atomic<std::uint64_t>, bins> times{};

  std::array<char, 64> address{};  ///< of the server
  std::atomic<bool> listening{false};
  std::atomic<bool> over{false};  ///< the server shall end
  last_sentence words{};          ///< of the first that has found something wrong
};

/// Nanoseconds that `percent` of the operations took at most, by the bins of one or more scores.
[[nodiscard]] double percentile(std::span<const std::uint64_t> times, double percent) noexcept;

/// Has them fight for so long. Calls `look` every tenth of a second. What was wrong, in words; empty if nothing was.
[[nodiscard]] std::string fight(const duel& what, const sim::setting& where, std::uint64_t seed,
                                std::chrono::milliseconds time, score& count, const std::function<void()>& look);

}  // namespace weft::stress
