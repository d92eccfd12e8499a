// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "duel.hpp"

namespace weft::stress {

/// The server of a duel as whoever watches both sees it: a process of this machine, or of another one.
class opponent : private test::immovable {
 public:
  struct news {
    bool ended = false;
    std::string words{};         ///< of what is wrong with that
    std::string address{};       ///< where it listens; empty: not yet
    std::size_t resident = 0;    ///< bytes
    std::uint64_t received = 0;  ///< messages, since it was started
    std::uint64_t answered = 0;  ///< of them
    std::uint64_t at_limit = 0;  ///< times that it had no descriptor left
  };

  opponent() = default;
  /// Kills what still runs.
  virtual ~opponent() = default;

  /// A new one, at this address; empty: at any port. `may_fail`: connections may, and nothing is wrong with that. The
  /// one before has been killed.
  virtual void start(const duel& what, const std::string& address, bool may_fail) = 0;
  /// What was wrong with it before, in words; empty if nothing was.
  [[nodiscard]] virtual std::string kill() = 0;
  virtual void freeze() = 0;
  virtual void thaw() = 0;
  /// It shall end.
  virtual void finish() = 0;
  [[nodiscard]] virtual news look() = 0;
  /// What it is at, in words.
  [[nodiscard]] virtual std::string dump() = 0;
};

/// A process of this machine.
[[nodiscard]] std::unique_ptr<opponent> make_near_opponent(const battleground& where);

/// A process of the machine at where.far_host, where serve_far_clients() runs. Throws where it cannot be had: nobody
/// listens there, or another client is being served.
[[nodiscard]] std::unique_ptr<opponent> make_far_opponent(const battleground& where);

/// Has servers here, on the device and the address of `where`, for clients on other machines, one machine at a time. To
/// be told what to do it listens on `control`, a host and a port, and says so; who comes while another is served is
/// told so. Whoever can connect there can have it start and end processes of this kind, and nothing else. Does not
/// return.
[[noreturn]] void serve_far_clients(const battleground& where, const std::string& control);

}  // namespace weft::stress
