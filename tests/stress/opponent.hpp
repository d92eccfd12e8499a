// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "duel.hpp"

namespace weft::stress {

/// The server of a duel as whoever watches both sees it: a process of this machine, or of another one.
class opponent {
 public:
  struct news {
    bool ended = false;
    std::string words;         ///< of what is wrong with that
    std::string address;       ///< where it listens; empty: not yet
    std::size_t resident = 0;  ///< bytes
  };

  opponent() = default;
  opponent(const opponent&) = delete;
  opponent& operator=(const opponent&) = delete;
  /// Kills what still runs.
  virtual ~opponent() = default;

  /// A new one, at this address; empty: at any port.
  virtual void start(const duel& what, const std::string& address) = 0;
  virtual void kill() = 0;
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
