// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/transport.hpp>
#include <weft/net/shm/channel.hpp>
#include <weft/net/software/domain.hpp>
#include <weft/runtime/system/descriptor.hpp>

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>

namespace weft::net::shm {

/// A connection that has been set up, and is about to become a link.
struct established {
  channel memory;
  descriptor socket;                 ///< AF_UNIX: carries wake-ups and files; ends when the peer or its process is gone
  std::uint16_t incoming_reads = 0;  ///< reads that the peer may have outstanding here
  std::uint16_t outgoing_reads = 0;  ///< reads that this end may have outstanding at the peer
  std::string peer;                  ///< link::peer(): "127.0.0.1:7471", "unix:/run/a"; at an acceptor "process 4711"
  pid_t process = 0;                 ///< the peer's pid; 0 if it runs as another or unknown user, or has no pid here
};

/// Makes the link; called on the executor that is to own it. `receives` is the shared receive queue, or null.
[[nodiscard]] std::unique_ptr<net::link> make_link(established made, std::shared_ptr<software::domain> home,
                                                   std::shared_ptr<receive_queue> receives);

}  // namespace weft::net::shm
