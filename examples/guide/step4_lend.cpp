// SPDX-License-Identifier: Apache-2.0
// Step 4 of docs/guide. The store of step 3, whose clients read the server's memory by themselves:
// `step4_lend serve [HOST:PORT]`, `step4_lend put HOST:PORT KEY VALUE`, `step4_lend get HOST:PORT KEY`.
#include <weft/weft.hpp>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

using namespace weft;
using namespace std::chrono_literals;

// ---- what both ends know: the table ----

constexpr std::size_t longest_key = 32;
constexpr std::size_t longest_value = 64;

struct alignas(8) slot {
  std::uint8_t key_size = 0;  // 0: nothing is here
  std::uint8_t value_size = 0;
  std::array<char, longest_key> key{};
  std::array<char, longest_value> value{};
};

// A key has one place. Two keys of one place push each other out: this is a cache.
std::uint64_t place_of(std::string_view key, std::uint64_t slots) {
  std::uint64_t hash = 14695981039346656037U;  // FNV-1a
  for (const char c : key) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211U;
  return hash % slots;
}

// What a client finds in memory that it has read is hostile as well: the sizes are checked before they are used.
std::optional<std::string> value_in(const slot& found, std::string_view key) {
  if (found.key_size > longest_key || found.value_size > longest_value) return std::nullopt;
  if (std::string_view(found.key.data(), found.key_size) != key) return std::nullopt;
  return std::string(found.value.data(), found.value_size);
}

// ---- the server ----

// A put is a message: the size of the key, the key, the value. Empty: it is none.
std::optional<slot> parse_put(std::span<const std::byte> message) {
  if (message.empty()) return std::nullopt;
  const auto key_size = std::to_integer<std::size_t>(message[0]);
  if (key_size == 0 || key_size > longest_key || key_size > message.size() - 1) return std::nullopt;
  const auto key = message.subspan(1, key_size);
  const auto value = message.subspan(1 + key_size);
  if (value.size() > longest_value) return std::nullopt;
  slot made;
  made.key_size = static_cast<std::uint8_t>(key.size());
  made.value_size = static_cast<std::uint8_t>(value.size());
  std::memcpy(made.key.data(), key.data(), key.size());
  std::memcpy(made.value.data(), value.data(), value.size());
  return made;
}

task<> answer(net::connection peer, mr::region& table) {
  const auto where = table.remote().pack();
  co_await peer.send_bytes(where);

  const std::uint64_t slots = table.size() / sizeof(slot);
  while (auto message = co_await peer.recv()) {
    const auto made = parse_put(message->bytes());
    if (!made) throw error(errc::malformed, std::string(peer.peer()) + " sent a put that is not valid");
    const std::uint64_t place = place_of({made->key.data(), made->key_size}, slots);
    // Peers may read the memory at this moment: no memcpy.
    mr::store_shared(table.bytes().subspan(place * sizeof(slot), sizeof(slot)), std::as_bytes(std::span(&*made, 1)));
    co_await peer.send_bytes("");
  }
}

task<> serve(net::device& device, std::string address) {
  std::vector<slot> memory(1024);
  auto table = co_await device.register_memory(std::move(memory), {.usage = mr::usage::read_src});
  signal_set signals{SIGINT, SIGTERM};
  auto listener = co_await device.listen(address);
  std::printf("listening on %s, %zu bytes lent\n", std::string(listener.address()).c_str(), table.size());
  auto accept_peers = [&](scope& peers) -> task<> {
    while (auto peer = co_await listener.accept()) peers.spawn(answer(std::move(*peer), table), "peer");
  };
  auto peers = with_scope(on_failure::report, accept_peers, "peers");
  co_await when_any(std::move(peers), signals.next());
}

// ---- the client ----

// The first message of the server says where its table is.
task<mr::remote_region> receive_table(net::connection& peer) {
  const auto hello = co_await peer.recv_or_throw();
  const auto table = mr::remote_region::unpack(hello.bytes());  // throws errc::malformed
  if (table.size() < sizeof(slot)) throw error(errc::malformed, "the server's table has no slot");
  co_return table;
}

task<> put(net::connection& peer, std::string key, std::string value) {
  if (key.empty() || key.size() > longest_key) throw error(errc::invalid_argument, "a key has 1 to 32 bytes");
  if (value.size() > longest_value) throw error(errc::invalid_argument, "a value has at most 64 bytes");
  const std::string message = std::string(1, static_cast<char>(key.size())) + key + value;
  co_await peer.send_bytes(message);
  co_await peer.recv_or_throw();  // the server has stored it
}

task<std::optional<std::string>> get(net::connection& peer, net::device& device, mr::remote_region table,
                                     std::string key) {
  const std::uint64_t place = place_of(key, table.size() / sizeof(slot));
  auto room = co_await device.allocate(sizeof(slot));
  co_await peer.read(room, table.slice(place * sizeof(slot), sizeof(slot)));  // nobody at the server runs for this
  slot found;
  std::memcpy(&found, room.data(), sizeof found);
  co_return value_in(found, key);
}

task<int> run_client(net::device& device, std::string verb, std::string address, std::string key, std::string value) {
  auto peer = co_await device.connect(address);
  const auto table = co_await with_timeout(5s, receive_table(peer));
  std::optional<std::string> found(value);
  if (verb == "put") {
    co_await with_timeout(5s, put(peer, key, value));
  } else {
    found = co_await with_timeout(5s, get(peer, device, table, key));
    if (found) std::printf("%s\n", found->c_str());
    if (!found) std::fprintf(stderr, "step4_lend: there is no key '%s'\n", key.c_str());
  }
  co_await peer.close();
  co_return found ? 0 : 1;
}

int main(int argc, char** argv) try {
  const std::string verb = argc > 1 ? argv[1] : "";
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const char* fabric = std::getenv("FABRIC");  // FABRIC=iwarp step4_lend ...
  auto device = net::device::open(fabric != nullptr ? fabric : "auto");
  executor ex;
  if (verb == "serve" && argc <= 3) {
    ex.run(serve(device, argc == 3 ? argv[2] : "127.0.0.1:7471"));
    return 0;
  }
  if (verb == "get" && argc == 4) return ex.run(run_client(device, verb, argv[2], argv[3], ""));
  if (verb == "put" && argc == 5) return ex.run(run_client(device, verb, argv[2], argv[3], argv[4]));
  std::fputs(
      "usage: step4_lend serve [HOST:PORT]\n       step4_lend get HOST:PORT KEY\n"
      "       step4_lend put HOST:PORT KEY VALUE\n",
      stderr);
  return 2;
} catch (const std::exception& failure) {
  std::fprintf(stderr, "step4_lend: %s\n", failure.what());
  return 1;
}
