// SPDX-License-Identifier: Apache-2.0
#include <weft/net/iwarp/set_up.hpp>
#include <weft/net/link/peer_words.hpp>
#include <weft/runtime/error.hpp>

#include <array>

namespace weft::net::iwarp {
namespace {

error failure_of(const handshake& machine) {
  const std::string text(machine.error().view());
  if (machine.state() == handshake_state::rejected) {
    return rejection(machine.peer_private_data(), "MPA set-up");
  }
  return error(errc::protocol_error, "MPA set-up: " + text);
}

// The names of a handshake's steps, for the texts of errors.
struct step_names {
  const char* send;
  const char* receive;
  const char* finish;
};

template <class Machine>
task<std::vector<std::byte>> drive_machine(descriptor& socket, Machine& machine, step_names steps,
                                           time_point deadline) {
  std::vector<std::byte> early;
  std::array<std::byte, 1024> buffer;
  co_await send_output(socket, machine, steps.send, deadline);
  while (machine.state() == handshake_state::waiting) {
    const std::size_t count = co_await receive_some(socket, buffer, steps.receive, deadline);
    if (count == 0) {
      machine.end_of_stream();
      throw error(errc::peer_vanished, "MPA set-up: " + std::string(machine.error().view()));
    }
    const auto bytes = std::span<const std::byte>(buffer).first(count);
    const std::size_t taken = machine.consume(bytes);
    early.assign(bytes.begin() + static_cast<std::ptrdiff_t>(taken), bytes.end());
  }
  co_await send_output(socket, machine, steps.finish, deadline);
  if (machine.state() == handshake_state::rejected || machine.state() == handshake_state::failed) {
    throw failure_of(machine);
  }
  co_return early;
}

}  // namespace

task<> send_output(descriptor& socket, handshake& machine, const char* step, time_point deadline) {
  while (!machine.output().empty()) {
    machine.sent(co_await send_some(socket, machine.output(), step, deadline));
  }
}

task<std::vector<std::byte>> drive(descriptor& socket, initiator& machine, time_point deadline) {
  const step_names steps{.send = "send the MPA request",
                         .receive = "wait for the MPA reply",
                         .finish = "send the ready-to-receive message"};
  return drive_machine(socket, machine, steps, deadline);
}

task<std::vector<std::byte>> drive(descriptor& socket, responder& machine, time_point deadline) {
  const step_names steps{.send = "", .receive = "wait for the MPA request", .finish = "turn the peer away"};
  return drive_machine(socket, machine, steps, deadline);
}

}  // namespace weft::net::iwarp
