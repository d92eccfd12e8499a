// SPDX-License-Identifier: Apache-2.0
// Step 6 of docs/guide. The store, with what goes wrong: `step6_failures serve [HOST:PORT] [MILLISECONDS]` takes so
// long for a list; `put HOST:PORT KEY VALUE`, `watch HOST:PORT KEY` reads a key again and again, whatever becomes of
// the server; `list HOST:PORT` has the server write all keys into memory of the client's.
#include <weft/weft.hpp>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "store.hpp"

using namespace weft;
using namespace std::chrono_literals;

// A message is a put (store.hpp), or a 0 and the packed region into which all keys are to be written, one a line. The
// answer to a put has no bytes, that to a list has 8: how many were written, in the byte order of x86-64.

// A program that hangs is noticed after two or three seconds, a machine that is gone after five.
constexpr net::connection_options connection{.dead_peer_after = 5s, .heartbeat = 1s};

struct shared {
  net::device& device;
  store::table& table;
  mr::remote_region memory;
  std::chrono::milliseconds delay;
  std::set<std::string, std::less<>> keys;
};

// ---- the server ----

task<> write_list(net::connection& peer, const shared& all, mr::remote_region target) {
  std::string list;
  for (const std::string& key : all.keys) list.append(key).append("\n");
  const std::uint64_t size = std::min<std::uint64_t>({list.size(), target.size(), 65536});
  co_await sleep_for(all.delay);
  if (size != 0) {
    auto data = co_await all.device.allocate(size);
    std::memcpy(data.data(), list.data(), size);
    co_await peer.write(std::move(data), target.slice(0, size));
  }
  // Who has received this finds what was written before it.
  co_await peer.send_bytes(std::as_bytes(std::span(&size, 1)));
}

task<> answer(net::connection peer, shared& all) {
  const auto where = all.memory.pack();
  co_await peer.send_bytes(where);
  while (auto message = co_await peer.recv()) {
    if (message->size() != 0 && message->bytes()[0] == std::byte{0}) {
      co_await write_list(peer, all, mr::remote_region::unpack(message->bytes().subspan(1)));
      continue;
    }
    const auto said = store::parse_put(message->text());
    if (!said) throw error(errc::malformed, std::string(peer.peer()) + " sent a request that is not valid");
    all.table.put(said->key, said->value);
    all.keys.emplace(said->key);
    co_await peer.send_bytes("");
  }
}

task<> serve(net::device& device, std::string address, std::chrono::milliseconds delay) {
  std::vector<store::slot> memory(1024);
  auto region = co_await device.register_memory(std::move(memory), {.usage = mr::usage::read_src});
  store::table table(region.bytes());
  shared all{.device = device, .table = table, .memory = region.remote(), .delay = delay, .keys = {}};
  signal_set signals{SIGINT, SIGTERM};
  auto listener = co_await device.listen(address);
  std::printf("listening on %s\n", std::string(listener.address()).c_str());
  auto accept_peers = [&](scope& peers) -> task<> {
    while (auto peer = co_await listener.accept(connection)) peers.spawn(answer(std::move(*peer), all), "peer");
  };
  auto peers = with_scope(on_failure::report, accept_peers, "peers");
  co_await when_any(std::move(peers), signals.next());
}

// ---- the client ----

struct session {
  net::connection peer;
  mr::remote_region table;
};

task<session> open(net::device& device, std::string address) {
  const net::retry_options patience{.first_pause = 50ms, .max_pause = 500ms, .give_up_after = 60s};
  auto peer = co_await net::connect_with_retry(device, address, connection, patience);
  const auto hello = co_await with_timeout(5s, peer.recv_or_throw());
  const auto table = mr::remote_region::unpack(hello.bytes());
  co_return session{std::move(peer), table};
}

// A slot that stays torn for so long is a server that died while it wrote, or lies.
task<std::optional<std::string>> get(session& server, net::device& device, std::string key) {
  auto room = co_await device.allocate(sizeof(store::slot));
  for (unsigned attempt = 0; attempt < 1000; ++attempt) {
    co_await server.peer.read(room, store::slot_of(server.table, key));
    store::slot read;
    std::memcpy(&read, room.data(), sizeof read);
    std::string value;
    const auto outcome = store::find_in(read, key, value);
    if (outcome == store::outcome::found) co_return value;
    if (outcome == store::outcome::absent) co_return std::nullopt;
  }
  throw error(errc::malformed, "the slot of '" + key + "' makes no sense");
}

task<> watch_session(session& server, net::device& device, std::string key) {
  std::string last = "(nothing yet)";
  for (;;) {
    const auto found = co_await as_result(with_timeout(1s, get(server, device, key)));
    const std::string now = !found ? found.error().what() : *found ? **found : "(absent)";
    if (now != last) std::printf("%s\n", now.c_str());
    if (!found && found.error().code() != errc::timed_out) co_return;  // the connection is over
    last = now;
    co_await sleep_for(50ms);
  }
}

task<> watch(net::device& device, std::string address, std::string key) {
  for (;;) {
    auto server = co_await open(device, address);
    std::printf("connected over %s\n", std::string(server.peer.fabric()).c_str());
    co_await watch_session(server, device, key);
  }
}

// The server's answer: how much of the memory that it was lent it has written.
task<std::uint64_t> receive_size(net::connection& peer, std::uint64_t most) {
  const auto reply = co_await peer.recv_or_throw();
  std::uint64_t size = 0;
  if (reply.size() != sizeof size) throw error(errc::malformed, "the server's answer to a list");
  std::memcpy(&size, reply.bytes().data(), sizeof size);
  if (size > most) throw error(errc::malformed, "the server claims to have written more than it was lent");
  co_return size;
}

std::string request_for(const mr::remote_region& where) {
  const auto packed = where.pack();
  return std::string(1, '\0').append(reinterpret_cast<const char*>(packed.data()), packed.size());
}

void print_retired(const char* why, const net::connection& peer) {
  std::printf("%s; %llu bytes retired\n", why, static_cast<unsigned long long>(peer.statistics().retired_bytes));
}

// Lends the server 64 KiB, into which it writes its keys, and waits half a second for that.
task<> list(net::device& device, std::string address) {
  auto server = co_await open(device, address);
  auto room = co_await device.allocate(65536);
  auto lent = co_await server.peer.expose(std::move(room), mr::usage::write_dst);  // a key for this peer alone
  const std::string request = request_for(lent.remote());
  co_await server.peer.send_bytes(request);

  const auto size = co_await as_result(with_timeout(500ms, receive_size(server.peer, 65536)));
  if (size) {
    const auto written = co_await lent.revoke();  // from now on the server cannot write there
    std::printf("%.*s", static_cast<int>(*size), reinterpret_cast<const char*>(written.data()));
    co_return co_await server.peer.close();
  }
  if (size.error().code() != errc::timed_out) throw error(size.error());
  lent.retire();  // the server may still write: the connection keeps the memory, and nobody else gets it
  print_retired(size.error().what(), server.peer);
  co_await with_timeout(30s, receive_size(server.peer, 65536));  // the connection goes on
  server.peer.confirm_retired(lent);                             // the server is done: the memory returns to the pool
  print_retired("the late answer has come", server.peer);
  co_await server.peer.close();
}

task<> put(net::device& device, std::string address, std::string key, std::string value) {
  auto server = co_await open(device, address);
  const std::string request = store::pack_put(key, value);
  co_await server.peer.send_bytes(request);
  co_await with_timeout(5s, server.peer.recv_or_throw());
  co_await server.peer.close();
}

int main(int argc, char** argv) try {
  const std::string verb = argc > 1 ? argv[1] : "";
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const char* fabric = std::getenv("FABRIC");
  auto device = net::device::open(fabric != nullptr ? fabric : "auto");
  executor ex;
  if (verb == "serve" && argc <= 4) {
    const std::chrono::milliseconds delay(argc == 4 ? std::atoi(argv[3]) : 0);
    ex.run(serve(device, argc >= 3 ? argv[2] : "127.0.0.1:7471", delay));
  } else if (verb == "put" && argc == 5) {
    ex.run(put(device, argv[2], argv[3], argv[4]));
  } else if (verb == "watch" && argc == 4) {
    ex.run(watch(device, argv[2], argv[3]));
  } else if (verb == "list" && argc == 3) {
    ex.run(list(device, argv[2]));
  } else {
    std::fputs(
        "usage: step6_failures serve [HOST:PORT] [MILLISECONDS]\n       step6_failures put HOST:PORT KEY VALUE\n"
        "       step6_failures watch HOST:PORT KEY\n       step6_failures list HOST:PORT\n",
        stderr);
    return 2;
  }
  return 0;
} catch (const std::exception& failure) {
  std::fprintf(stderr, "step6_failures: %s\n", failure.what());
  return 1;
}
