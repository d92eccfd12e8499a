// SPDX-License-Identifier: Apache-2.0
#include <weft/net/stream_listener.hpp>
#include <weft/weft.hpp>

#include <fmt/core.h>

#include <chrono>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <kv/resp_server.hpp>
#include <kv/valkey.hpp>

namespace kv {

using namespace weft;

namespace {

// As Valkey's server has it.
constexpr auto keep_alive_every = std::chrono::seconds(3);

std::span<const std::byte> bytes_of(std::string_view text) noexcept { return std::as_bytes(std::span(text)); }

// One of the clients that there may be at a time, from the moment it has come.
class place {
 public:
  explicit place(std::size_t& taken) noexcept : taken_(&taken) { ++taken; }
  place(place&& other) noexcept : taken_(std::exchange(other.taken_, nullptr)) {}
  place& operator=(place&&) = delete;
  ~place() {
    if (taken_ != nullptr) --*taken_;
  }

 private:
  std::size_t* taken_;
};

// Answers that clients have not taken yet. A client that sends on without reading is read from all the same, as
// Valkey's server does it, up to these limits: it would wait for its answers to be taken, and this end for it.
constexpr std::size_t most_waiting = std::size_t{8} << 20;           // of one client
constexpr std::size_t most_waiting_of_all = std::size_t{256} << 20;  // beyond that, enough_answers of each

// One client: what has come of commands that are not whole yet is kept in `rest_`.
template <class Stream>
class conversation {
 public:
  conversation(Stream& peer, resp_service& service, std::size_t& waiting_of_all)
      : peer_(peer), session_(service, peer.peer()), waiting_of_all_(waiting_of_all) {}
  conversation(const conversation&) = delete;
  conversation& operator=(const conversation&) = delete;
  ~conversation() { waiting_of_all_ -= counted_; }

  // Until the client has no more to say, and has all answers. Throws for one that has broken the protocol.
  task<> run() {
    auto hearing = hear_all();
    auto answering = answer_all();
    co_await when_all(std::move(hearing), std::move(answering));
    if (session_.fault().empty()) co_return;
    co_await peer_.close();
    throw error(errc::protocol_error, fmt::format("{} breaks Redis's protocol: {}", peer_.peer(), session_.fault()));
  }

 private:
  task<> hear_all() {
    std::vector<char> input(16384);
    for (bool more = true; more;) {
      const std::size_t count = co_await peer_.read_some(std::as_writable_bytes(std::span(input)));
      if (count == 0) break;
      more = co_await execute(std::string_view(input.data(), count));
    }
    heard_all_ = true;
    changed_.set();
  }

  // All that is whole of what has come. False: the client has no more to say.
  task<bool> execute(std::string_view input) {
    const bool begun = !rest_.empty();
    if (begun) input = rest_.append(input);
    for (std::size_t taken = 1; (taken != 0 && !input.empty()) || session_.wants_turn();) {
      if (session_.wants_turn()) co_await yield();
      while (!has_room()) {
        taken_.reset();
        co_await taken_.wait();
      }
      const auto count = session_.execute(input, answers_);
      count_waiting();
      if (!answers_.empty()) changed_.set();
      if (!count) co_return false;
      taken = *count;
      input.remove_prefix(taken);
    }
    if (begun) {
      rest_.erase(0, rest_.size() - input.size());
      if (rest_.empty()) give_back(rest_);
    } else {
      rest_.assign(input);
    }
    co_return true;
  }

  // With as few writes as there may be.
  task<> answer_all() {
    while (!heard_all_ || !answers_.empty()) {
      changed_.reset();
      if (!heard_all_ && answers_.empty()) co_await changed_.wait();
      std::swap(sent_, answers_);
      if (!sent_.empty()) co_await peer_.write(bytes_of(sent_));
      sent_.clear();
      give_back(sent_);
      count_waiting();
      taken_.set();
    }
  }

  // The room of an empty one that was long.
  static void give_back(std::string& from) {
    if (from.capacity() > 2 * resp_session::enough_answers) from = {};
  }
  [[nodiscard]] bool has_room() const noexcept {
    return counted_ < resp_session::enough_answers ||
           (counted_ < most_waiting && waiting_of_all_ < most_waiting_of_all);
  }
  void count_waiting() noexcept {
    const std::size_t waiting = answers_.size() + sent_.size();
    waiting_of_all_ = waiting_of_all_ - counted_ + waiting;
    counted_ = waiting;
  }

  Stream& peer_;
  resp_session session_;
  std::string rest_;
  std::string answers_;
  std::string sent_;  // answers that are on their way
  std::size_t& waiting_of_all_;
  std::size_t counted_ = 0;  // of this client's answers, there
  bool heard_all_ = false;
  event changed_;  // there are answers, or there will be no more
  event taken_;    // some of them are gone
};

// ---- over TCP ----

task<> serve_tcp_peer(net::stream peer, resp_service& service, std::size_t& waiting, place) {
  conversation<net::stream> talk(peer, service, waiting);
  co_await talk.run();
  co_await peer.close();
}

task<> turn_away(net::stream peer) {
  constexpr std::string_view why = "-ERR max number of clients reached\r\n";
  co_await peer.write(bytes_of(why));
  co_await peer.close();
}

task<> serve_tcp(net::device& device, resp_service& service, std::size_t& waiting, std::string address,
                 std::size_t max_connections) {
  constexpr std::string_view scheme = "tcp://";
  address.insert(0, scheme);
  auto listener = co_await net::stream_listener::listen(device, address);
  fmt::print("RESP on {} over TCP\n", listener.address().substr(scheme.size()));
  std::fflush(stdout);
  std::size_t connections = 0;
  auto accept_all = [&](scope& peers) -> task<> {
    while (auto peer = co_await listener.accept()) {
      if (connections == max_connections) {
        peers.spawn(turn_away(std::move(*peer)));
      } else {
        peers.spawn(serve_tcp_peer(std::move(*peer), service, waiting, place(connections)));
      }
    }
  };
  co_await with_scope(on_failure::report, accept_all);  // one peer's failure is reported, and the others go on
}

// ---- Valkey over RDMA ----

task<> keep_alive(valkey_stream& peer) {
  for (;;) {
    co_await sleep_for(keep_alive_every);
    co_await peer.keep_alive();
  }
}

task<> serve_valkey_peer(net::device& device, net::connection_request request, resp_service& service,
                         std::size_t& waiting) {
  auto peer = co_await valkey_stream::accept(device, std::move(request));
  conversation<valkey_stream> talk(peer, service, waiting);
  auto talking = talk.run();
  auto living = keep_alive(peer);
  co_await when_any(std::move(talking), std::move(living));
  co_await peer.close();
}

task<> serve_valkey(net::device& device, resp_service& service, std::size_t& waiting, std::string address,
                    std::size_t max_connections) {
  const net::listener_options narrow{.max_connections = max_connections};
  auto listener = co_await device.listen(address, narrow);
  fmt::print("Valkey over RDMA on {} over {}\n", listener.address(), device.name());
  std::fflush(stdout);
  auto accept_all = [&](scope& peers) -> task<> {
    while (auto request = co_await listener.next()) {
      peers.spawn(serve_valkey_peer(device, std::move(*request), service, waiting));
    }
  };
  co_await with_scope(on_failure::report, accept_all);
}

}  // namespace

task<> serve_resp(net::device& device, table& data, resp_server_options options) {
  resp_service service(data);
  std::size_t waiting = 0;
  std::vector<task<>> all;
  if (options.tcp_address)
    all.push_back(serve_tcp(device, service, waiting, *options.tcp_address, options.max_connections));
  if (options.valkey_address) {
    all.push_back(serve_valkey(device, service, waiting, *options.valkey_address, options.max_connections));
  }
  co_await when_all(std::move(all));
}

}  // namespace kv
