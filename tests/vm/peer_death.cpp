// SPDX-License-Identifier: Apache-2.0
// peer_death cut|kill: in two guests, whether each notices the death of the other within dead_peer_after.
//
// Guest 1 writes to memory of guest 2, over and over, and waits for a message. Guest 2 waits for one as well, once it
// has had the cable cut, or itself killed, by its host: tests/vm/README.md.
#include <weft/weft.hpp>

#include <CLI/CLI.hpp>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <string>

using namespace weft;
using namespace std::chrono_literals;

namespace {

constexpr auto dead_peer_after = 3s;
// The machines are emulated, and the kernel looks only now and then whether the time is up.
constexpr auto at_the_latest = 3 * dead_peer_after;

constexpr std::size_t memory_bytes = std::size_t{1} << 20;
const char* const address = "10.78.0.1:7471";

net::connection_options watchful() {
  net::connection_options how;
  how.dead_peer_after = dead_peer_after;
  how.close_timeout = 1s;
  return how;
}

void expect_death(const char* what, const error& failure, time_point last_sign) {
  const auto silence = clock::steady().now() - last_sign;
  std::printf("%s ended after %.1f s of silence: %s\n", what, std::chrono::duration<double>(silence).count(),
              failure.what());
  if (failure.code() != errc::peer_vanished) throw std::runtime_error("that is not a death");
  if (silence > at_the_latest) throw std::runtime_error("that is too late");
}

task<> receive_until_death(net::connection& peer, const time_point& last_sign) {
  try {
    static_cast<void>(co_await peer.recv());
  } catch (const error& failure) {
    expect_death("a receive", failure, last_sign);
    co_return;
  }
  throw std::runtime_error("the peer has closed, or sent something");
}

task<> write_until_death(net::device& device, net::connection& peer, mr::remote_region target, time_point& last_sign) {
  auto source = co_await device.pool().allocate(memory_bytes);
  try {
    for (;;) {
      co_await peer.write(source, target);
      co_await peer.flush(target);
      last_sign = clock::steady().now();
    }
  } catch (const error& failure) {
    expect_death("a write", failure, last_sign);
  }
}

task<> watch(net::device& device) {
  auto listener = co_await device.listen(address);
  auto request = co_await listener.next();
  auto peer = co_await request->accept(watchful());
  auto message = co_await peer.recv_or_throw();
  const auto target = mr::remote_region::unpack(message.bytes());
  co_await peer.send(std::move(message.payload));
  time_point last_sign = clock::steady().now();
  auto writing = write_until_death(device, peer, target, last_sign);
  auto receiving = receive_until_death(peer, last_sign);
  co_await when_all(std::move(writing), std::move(receiving));
}

void ask_the_host(const char* what) {
  std::ofstream host("/dev/virtio-ports/host");
  if (!(host << what << std::endl)) throw std::runtime_error("the host does not listen");
}

task<> go_away(net::device& device, const char* how) {
  auto peer = co_await net::connect_with_retry(device, address, watchful());
  auto memory = co_await device.pool().allocate(memory_bytes);
  auto open = co_await peer.expose(std::move(memory), mr::usage::write_dst | mr::usage::flush_visibility);
  const auto packed = open.remote().pack();
  auto message = co_await device.pool().allocate(packed.size());
  std::ranges::copy(packed, message.data());
  co_await peer.send(std::move(message));
  static_cast<void>(co_await peer.recv_or_throw());
  const time_point last_sign = clock::steady().now();
  ask_the_host(how);
  co_await receive_until_death(peer, last_sign);
}

}  // namespace

int main(int argc, char** argv) {
  std::string fault;
  std::string name = "iwarp";
  CLI::App app("Whether the death of a machine is noticed");
  app.add_option("fault", fault)->required()->check(CLI::IsMember({"cut", "kill"}));
  app.add_option("--device", name);
  CLI11_PARSE(app, argc, argv);
  const char* number = std::getenv("WEFT_VM_GUEST");
  if (number == nullptr) {
    std::fputs("peer_death: not in one of two guests\n", stderr);
    return 2;
  }
  try {
    auto device = net::device::open(name);
    executor ex;
    ex.run(*number == '1' ? watch(device) : go_away(device, fault == "cut" ? "cable down" : "kill"));
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "peer_death: %s\n", failure.what());
    return 1;
  }
}
