// SPDX-License-Identifier: Apache-2.0
// rping_peer serve|ping ADDRESS: the other end of rping(1), over weft.
//
// In each round the client tells where its data is, the server reads it and says go on; then the client tells where it
// would have it back, the server writes it there and says go on. What one tells is 16 bytes, big-endian: address (8),
// key (4), size (4); a go-on is as long, and nobody looks at it.
#include <weft/weft.hpp>

#include <CLI/CLI.hpp>

#include <cstdio>

#include "kit/standard.hpp"

using namespace weft;

namespace {

constexpr std::size_t advert_bytes = 16;

struct options {
  std::string address;
  std::uint64_t rounds = 100;
  std::size_t size = 64;
  std::string device = "iwarp";
  std::optional<bool> checksum;
  bool native = false;
};

template <class Integer>
void put(std::byte* to, Integer value) {
  for (std::size_t i = sizeof value; i-- > 0; value = static_cast<Integer>(value >> 8)) to[i] = std::byte(value & 0xff);
}

template <class Integer>
Integer get(const std::byte* from) {
  Integer value = 0;
  for (std::size_t i = 0; i < sizeof value; ++i)
    value = static_cast<Integer>(value << 8) | std::to_integer<Integer>(from[i]);
  return value;
}

mr::remote_slice advertised(const net::message& message, mr::usage uses) {
  if (message.size() != advert_bytes) throw std::runtime_error("not a message of rping's");
  const std::byte* bytes = message.bytes().data();
  return {get<std::uint32_t>(bytes + 8), get<std::uint64_t>(bytes), get<std::uint32_t>(bytes + 12), uses};
}

task<> advertise(net::connection& peer, const mr::remote_region& memory) {
  std::array<std::byte, advert_bytes> advert{};
  put(advert.data(), memory.address());
  put(advert.data() + 8, static_cast<std::uint32_t>(memory.key()));
  put(advert.data() + 12, static_cast<std::uint32_t>(memory.size()));
  co_await peer.send_bytes(advert);
}

task<> say_go_on(net::connection& peer) {
  const std::array<std::byte, advert_bytes> words{};
  co_await peer.send_bytes(words);
}

/// Empty once the peer has gone: without weft's own messages, how it went cannot be told.
task<std::optional<net::message>> next_message(net::connection& peer) {
  try {
    co_return co_await peer.recv();
  } catch (const error& failure) {
    if (failure.code() != errc::peer_vanished || peer.capabilities().orderly_close) throw;
  }
  co_return std::nullopt;
}

/// False if the peer has gone meanwhile: it may have heard this all the same, and gone because of it, while the
/// acknowledgement was lost.
task<bool> say_go_on_for_the_last_time(net::connection& peer) {
  try {
    co_await say_go_on(peer);
    co_return true;
  } catch (const error& failure) {
    if (failure.code() != errc::peer_vanished || peer.capabilities().orderly_close) throw;
  }
  co_return false;
}

/// Returns the rounds until the peer has gone.
task<std::uint64_t> serve(net::device& device, net::connection& peer) {
  for (std::uint64_t round = 0;; ++round) {
    const auto first = co_await next_message(peer);
    if (!first) co_return round;
    const auto source = advertised(*first, mr::usage::read_src);
    auto data = co_await device.pool().allocate(source.size());
    co_await peer.read(data, source);
    const std::string text = "rdma-ping-" + std::to_string(round) + ": ";
    if (data.size() <= text.size() || std::memcmp(data.data(), text.data(), text.size()) != 0) {
      throw std::runtime_error("what was read is not ping " + std::to_string(round));
    }
    co_await say_go_on(peer);

    const auto second = co_await peer.recv_or_throw();
    const auto sink = advertised(second, mr::usage::write_dst);
    co_await peer.write(data, sink.slice(0, data.size()));
    const bool heard = co_await say_go_on_for_the_last_time(peer);
    if (!heard) co_return round + 1;
  }
}

/// The server takes it for a string that ends with the data.
void fill(std::span<std::byte> data, std::uint64_t round) {
  const std::string text = "rdma-ping-" + std::to_string(round) + ": ";
  for (std::size_t i = 0; i < data.size(); ++i) {
    data[i] = static_cast<std::byte>(i < text.size() ? text[i] : 'A' + static_cast<char>((round + i) % 58));
  }
  data.back() = std::byte{0};
}

/// Memory that the peer may use: a buffer of the pool's, or where the device has no windows to open one with, a region.
class lent_memory {
 public:
  static task<lent_memory> make(net::device& device, net::connection& peer, std::span<const std::byte> contents,
                                mr::usage uses) {
    lent_memory lent;
    if (mr::includes(device.domain().capabilities().usages, mr::usage::bind_window)) {
      auto memory = co_await device.pool().allocate(contents.size());
      std::ranges::copy(contents, memory.data());
      lent.exposed_.emplace(co_await peer.expose(std::move(memory), uses));
    } else {
      std::vector<std::byte> memory(contents.begin(), contents.end());
      lent.region_ = co_await device.domain().register_memory(std::move(memory), {.usage = uses});
    }
    co_return lent;
  }

  [[nodiscard]] mr::remote_region remote() const { return exposed_ ? exposed_->remote() : region_.remote(); }

  /// What is there when the peer is done.
  task<std::vector<std::byte>> take_back() {
    std::vector<std::byte> contents;
    if (exposed_) {
      const auto memory = co_await exposed_->revoke();
      contents.assign(memory.bytes().begin(), memory.bytes().end());
    } else {
      contents.assign(region_.bytes().begin(), region_.bytes().end());
      co_await region_.release();
    }
    co_return contents;
  }

 private:
  std::optional<net::exposure> exposed_;
  mr::region region_;
};

/// What `lent` holds once the peer has said go on.
task<std::vector<std::byte>> lend(net::device& device, net::connection& peer, std::span<const std::byte> contents,
                                  mr::usage uses) {
  auto lent = co_await lent_memory::make(device, peer, contents, uses);
  co_await advertise(peer, lent.remote());
  static_cast<void>(co_await peer.recv_or_throw());
  co_return co_await lent.take_back();
}

task<> ping(net::device& device, net::connection& peer, std::uint64_t round, std::size_t size) {
  std::vector<std::byte> source(size);
  fill(source, round);
  static_cast<void>(co_await lend(device, peer, source, mr::usage::read_src));
  const std::vector<std::byte> blank(size, std::byte{0xee});
  const auto answer = co_await lend(device, peer, blank, mr::usage::write_dst);
  if (answer != source) throw std::runtime_error("what was written is not ping " + std::to_string(round));
}

void tell(const net::connection& peer) {
  const net::capabilities& can = peer.capabilities();
  const auto word = [](bool holds) { return holds ? "with" : "without"; };
  std::printf("connected to %s, %s CRC, %s credits, %s atomics, %s immediate writes\n",
              std::string(peer.peer()).c_str(), word(can.checksum), word(can.native), word(can.atomics),
              word(can.write_immediate));
}

net::connection_options how_to_connect(const options& wanted) {
  net::connection_options how{.profile = wanted.native ? net::profile::native : net::profile::interop};
  return how;
}

task<> run_server(net::device& device, const options& wanted) {
  auto listener = co_await device.listen(wanted.address);
  std::printf("listening on %s\n", std::string(listener.address()).c_str());
  std::fflush(stdout);
  auto request = co_await listener.next();
  auto peer = co_await request->accept(how_to_connect(wanted));
  tell(peer);
  const auto rounds = co_await serve(device, peer);
  if (rounds != wanted.rounds) throw std::runtime_error("the peer left after " + std::to_string(rounds) + " rounds");
}

task<> run_client(net::device& device, const options& wanted) {
  auto peer = co_await device.connect(wanted.address, how_to_connect(wanted));
  tell(peer);
  for (std::uint64_t round = 0; round < wanted.rounds; ++round) co_await ping(device, peer, round, wanted.size);
  co_await peer.close();
}

}  // namespace

int main(int argc, char** argv) {
  options wanted;
  CLI::App app("The other end of rping(1), over weft");
  app.require_subcommand(1);
  auto* serving = app.add_subcommand("serve", "answer one client");
  auto* pinging = app.add_subcommand("ping", "be the client");
  for (auto* role : {serving, pinging}) {
    role->add_option("address", wanted.address, "HOST:PORT")->required();
    role->add_option("--rounds", wanted.rounds, "how many there are");
    role->add_option("--checksum", wanted.checksum, "demand CRCs, or do without them if the peer does");
    role->add_option("--device", wanted.device);
    role->add_flag("--native", wanted.native, "try to speak to another weft");
  }
  pinging->add_option("--size", wanted.size, "of a ping, in bytes")->check(CLI::Range(32, 1 << 20));
  CLI11_PARSE(app, argc, argv);
  try {
    auto device = net::device::open(wanted.device, {.iwarp = {.checksum = wanted.checksum}});
    executor ex;
    ex.run(serving->parsed() ? run_server(device, wanted) : run_client(device, wanted));
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "rping_peer: %s\n", failure.what());
    return 1;
  }
}
