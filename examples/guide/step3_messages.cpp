// SPDX-License-Identifier: Apache-2.0
// Step 3 of docs/guide. A key-value store of messages: `step3_messages serve [HOST:PORT]`, and in another terminal
// `step3_messages put HOST:PORT KEY VALUE` and `step3_messages get HOST:PORT KEY`.
#include <weft/weft.hpp>

#include <csignal>
#include <cstdio>
#include <map>
#include <optional>
#include <string>
#include <string_view>

using namespace weft;
using namespace std::chrono_literals;

// ---- what goes over the wire ----
//
//   request   1 byte  'g' get, 'p' put
//             1 byte  the size of the key, 1 to 32
//             key
//             value   all that follows; of a get nothing, of a put at most 64 bytes
//   answer    1 byte  '+' done, '-' no such key
//             value   of a get that is done

constexpr std::size_t longest_key = 32;
constexpr std::size_t longest_value = 64;

struct request {
  char verb;
  std::string_view key;  // both look into the message
  std::string_view value;
};

// Every byte is hostile until it has passed here. Empty: it is no request.
std::optional<request> parse(std::string_view text) {
  if (text.size() < 2) return std::nullopt;
  const char verb = text[0];
  const auto key_size = static_cast<unsigned char>(text[1]);
  if (key_size == 0 || key_size > longest_key || key_size > text.size() - 2) return std::nullopt;
  const request said{.verb = verb, .key = text.substr(2, key_size), .value = text.substr(2 + key_size)};
  if (verb == 'g' && said.value.empty()) return said;
  if (verb == 'p' && said.value.size() <= longest_value) return said;
  return std::nullopt;
}

// ---- the server ----

using store = std::map<std::string, std::string, std::less<>>;

std::string execute(const request& asked, store& data) {
  if (asked.verb == 'p') {
    data.insert_or_assign(std::string(asked.key), std::string(asked.value));
    return "+";
  }
  const auto found = data.find(asked.key);
  return found != data.end() ? "+" + found->second : "-";
}

task<> answer(net::connection peer, store& data) {
  while (auto message = co_await peer.recv()) {
    const auto asked = parse(message->text());
    if (!asked) throw error(errc::malformed, std::string(peer.peer()) + " sent a request that is not valid");
    const std::string reply = execute(*asked, data);
    co_await peer.send_bytes(reply);
  }
}

task<> serve(net::device& device, std::string address) {
  store data;
  signal_set signals{SIGINT, SIGTERM};
  auto listener = co_await device.listen(address);
  std::printf("listening on %s\n", std::string(listener.address()).c_str());
  auto accept_peers = [&](scope& peers) -> task<> {
    while (auto peer = co_await listener.accept()) peers.spawn(answer(std::move(*peer), data), "peer");
  };
  auto peers = with_scope(on_failure::report, accept_peers, "peers");
  co_await when_any(std::move(peers), signals.next());  // stops what has not ended first, and waits for it
}

// ---- the client ----

task<std::optional<std::string>> ask(net::connection& peer, char verb, std::string_view key, std::string_view value) {
  if (key.empty() || key.size() > longest_key) throw error(errc::invalid_argument, "a key has 1 to 32 bytes");
  if (value.size() > longest_value) throw error(errc::invalid_argument, "a value has at most 64 bytes");
  const std::string head{verb, static_cast<char>(key.size())};
  const std::string question = head + std::string(key) + std::string(value);
  co_await peer.send_bytes(question);

  const auto reply = co_await peer.recv_or_throw();
  const std::string_view text = reply.text();
  if (text.empty()) throw error(errc::malformed, "the server sent an empty answer");
  if (text[0] != '+') co_return std::nullopt;
  co_return std::string(text.substr(1));
}

task<int> run_client(net::device& device, char verb, std::string address, std::string key, std::string value) {
  auto peer = co_await device.connect(address);
  const auto found = co_await with_timeout(5s, ask(peer, verb, key, value));
  if (!found) std::fprintf(stderr, "step3_messages: there is no key '%s'\n", key.c_str());
  if (found && verb == 'g') std::printf("%s\n", found->c_str());
  co_await peer.close();
  co_return found ? 0 : 1;
}

int main(int argc, char** argv) try {
  const std::string verb = argc > 1 ? argv[1] : "";
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  auto device = net::device::open("auto");
  executor ex;
  if (verb == "serve" && argc <= 3) {
    ex.run(serve(device, argc == 3 ? argv[2] : "127.0.0.1:7471"));
    return 0;
  }
  if (verb == "get" && argc == 4) return ex.run(run_client(device, 'g', argv[2], argv[3], ""));
  if (verb == "put" && argc == 5) return ex.run(run_client(device, 'p', argv[2], argv[3], argv[4]));
  std::fputs(
      "usage: step3_messages serve [HOST:PORT]\n       step3_messages get HOST:PORT KEY\n"
      "       step3_messages put HOST:PORT KEY VALUE\n",
      stderr);
  return 2;
} catch (const std::exception& failure) {
  std::fprintf(stderr, "step3_messages: %s\n", failure.what());
  return 1;
}
