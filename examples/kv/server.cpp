// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/system/mapping.hpp>
#include <weft/net/asio.hpp>

#include <asio.hpp>
#include <asio/experimental/awaitable_operators.hpp>
#include <asio/multiple_exceptions.hpp>
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <deque>
#include <exception>
#include <random>
#include <span>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <variant>

#include <common/network.hpp>
#include <common/permits.hpp>
#include <kv/bench.hpp>
#include <kv/protocol.hpp>
#include <kv/resp_server.hpp>
#include <kv/server.hpp>
#include <kv/table.hpp>

namespace kv {

using namespace weft;

namespace {

// ---- weft clients ----

struct shared_table {
  net::device& device;
  table& data;
  mr::remote_region memory;
  generation server;
  std::chrono::milliseconds resume_within;
};

// Half of the memory that there is for sending, as permits for its bytes: values that are lent are read into that, so
// that clients which do not let themselves be read from leave the rest for answers. An executor's share of it, in which
// one value fits at least.
std::size_t room_for_lent(net::device& device, std::size_t executors) {
  return std::max(device.pool().statistics().send.max_bytes / 2 / executors, longest_value);
}

generation draw_generation() {
  std::random_device source;
  return generation{source()} << 32 | source();
}

// A value that is lent is read into memory of this end's first, because the peer may change it at any moment.
task<> store(shared_table shared, net::message message, net::connection& peer, semaphore& lent_room) {
  const auto what = unpack_set(message.bytes());
  if (!what) throw error(errc::malformed, fmt::format("{} sent a request that is not valid", peer.peer()));
  const auto* const lent = std::get_if<mr::remote_region>(&what->value);
  const std::size_t size = lent != nullptr ? lent->size() : std::get<std::string_view>(what->value).size();
  if (size > shared.data.longest_value()) {
    throw error(errc::message_too_large, fmt::format("{} sets a value of {} bytes: it has at most {} here", peer.peer(),
                                                     size, shared.data.longest_value()));
  }
  if (lent == nullptr) {
    shared.data.set(what->key, std::get<std::string_view>(what->value), {}, server_now());
    co_return;
  }
  const auto share = co_await common::permits::take(lent_room, size);
  // A client that does not let itself be read from keeps the room, for which others may wait.
  const bool enough = lent_room.available() >= longest_value;
  const auto patience = std::chrono::seconds(enough ? 10 : 1) + shared.resume_within;
  auto room = co_await shared.device.allocate(size);
  co_await with_timeout(patience, peer.read(room, lent->slice(0, size)));
  shared.data.set(what->key, {reinterpret_cast<const char*>(room.data()), size}, {}, server_now());
}

// One peer's whole life. Its GETs need nobody here: they read the table while this waits for a SET.
task<> serve_peer(net::connection_request request, shared_table shared, semaphore& lent_room) {
  net::connection_options options;
  options.receive_size = message_bytes;
  options.resume_within = shared.resume_within;
  auto peer = co_await request.accept(options);
  std::array<std::byte, message_bytes> room;
  const hello said{.memory = shared.memory,
                   .buckets = shared.data.buckets(),
                   .longest_value = shared.data.longest_value(),
                   .server = shared.server,
                   .now = server_now()};
  co_await peer.send_bytes(std::span(room).first(pack(said, room)));
  while (auto message = co_await peer.recv()) {
    if (message->size() != 0) co_await store(shared, std::move(*message), peer, lent_room);
    co_await peer.send_bytes(std::span(room).first(pack(server_now(), room)));
  }
}

task<> serve_there(executor& where, task<> peer) { co_await run_on(where, std::move(peer)); }

task<> serve_weft(net::listener& listener, shared_table shared, executor_group* others) {
  const std::size_t executors = others != nullptr ? others->size() : 1;
  std::deque<semaphore> lent_rooms;
  for (std::size_t i = 0; i < executors; ++i) lent_rooms.emplace_back(room_for_lent(shared.device, executors));
  std::size_t count = 0;
  auto accept_all = [&](scope& peers) -> task<> {
    while (auto request = co_await listener.next()) {
      const std::size_t which = count++ % executors;
      auto peer = serve_peer(std::move(*request), shared, lent_rooms[which]);
      if (others != nullptr) peer = serve_there((*others)[which], std::move(peer));
      peers.spawn(std::move(peer));
    }
  };
  co_await with_scope(on_failure::report, accept_all);  // one peer's failure is reported, and the others go on
}

// ---- TCP clients ----

using asio::awaitable;
using asio::use_awaitable;
using asio::ip::tcp;

constexpr std::string_view too_many_connections = "SERVER_ERROR too many open connections\r\n";

std::string_view last_line(std::string_view text) noexcept {
  while (text.ends_with('\r') || text.ends_with('\n')) text.remove_suffix(1);
  return text.substr(text.rfind('\n') + 1);
}

std::string name_of(const tcp::socket& peer) {
  std::error_code gone;
  const auto where = peer.remote_endpoint(gone);
  return gone ? "a TCP client" : fmt::format("{}:{}", where.address().to_string(), where.port());
}

// Writes the answers to the commands that `input` holds whole, as they are made, and yields how many bytes these took.
awaitable<std::size_t> answer(tcp::socket& peer, text_session& session, std::string_view input, std::string& output) {
  for (std::size_t taken = 0;;) {
    output.clear();
    const auto more = session.execute(input.substr(taken), output);
    co_await asio::async_write(peer, asio::buffer(output), use_awaitable);
    if (!more) throw std::runtime_error(fmt::format("it breaks the protocol ({})", last_line(output)));
    taken += *more;
    if (*more == 0 || taken == input.size()) co_return taken;
  }
}

// The room of an empty one, where that is much for a client that asks for little again. Assigning `{}` would keep it.
void give_back(std::string& from) {
  constexpr std::size_t much = std::size_t{1} << 20;
  if (from.empty() && from.capacity() > much) from.shrink_to_fit();
}

awaitable<void> serve_socket(tcp::socket peer, table& data) {
  text_session session(data);
  std::array<char, 16384> room;
  std::string input;
  std::string output;
  for (;;) {
    std::error_code end;
    const std::size_t count =
        co_await peer.async_read_some(asio::buffer(room), asio::redirect_error(use_awaitable, end));
    if (end == asio::error::eof) co_return;
    if (end) throw std::system_error(end);
    input.append(room.data(), count);
    input.erase(0, co_await answer(peer, session, input, output));
    output.clear();
    give_back(input);
    give_back(output);
  }
}

// The failure of one accept concerns no other client. Those that come while the process has no descriptor wait in the
// backlog until it has.
awaitable<tcp::socket> accept_next(tcp::acceptor& acceptor) {
  asio::steady_timer pause(acceptor.get_executor());
  std::error_code told;
  for (;;) {
    std::error_code failure;
    auto peer = co_await acceptor.async_accept(asio::redirect_error(use_awaitable, failure));
    if (!failure) co_return peer;
    if (failure == asio::error::operation_aborted) throw std::system_error(failure);
    if (failure != told) fmt::print(stderr, "kv: accept a TCP client: {}\n", failure.message());
    told = failure;
    pause.expires_after(std::chrono::milliseconds(100));
    co_await pause.async_wait(use_awaitable);
  }
}

awaitable<void> serve_tcp(tcp::acceptor& acceptor, table& data, std::size_t max_connections) {
  std::size_t connections = 0;
  for (;;) {
    auto peer = co_await accept_next(acceptor);
    std::error_code none;  // a peer that has gone is noticed when it is read from
    static_cast<void>(peer.set_option(tcp::no_delay(true), none));
    if (connections == max_connections) {
      // The words fit the buffer of a new socket.
      static_cast<void>(peer.write_some(asio::buffer(too_many_connections), none));
      continue;
    }
    ++connections;
    const std::string who = name_of(peer);
    asio::co_spawn(acceptor.get_executor(), serve_socket(std::move(peer), data), [&, who](std::exception_ptr failure) {
      --connections;
      try {
        if (failure) std::rethrow_exception(failure);
      } catch (const std::exception& why) {
        common::complain("kv", who, why.what());
      }
    });
  }
}

// ---- Redis's and Valkey's clients ----

// They have an executor of their own, which is faster than a guest of Asio's.
task<> serve_resp_apart(executor_group& apart, net::device& device, table& data, resp_server_options options) {
  auto serving = serve_resp(device, data, std::move(options));
  co_await run_on(apart[0], std::move(serving));
}

resp_server_options options_for_resp(const serve_options& options) {
  resp_server_options made{
      .tcp_address = {}, .valkey_address = options.valkey_address, .max_connections = options.max_connections};
  const bool is_ipv6 = options.tcp_address.find(':') != std::string::npos;
  const std::string host = is_ipv6 ? fmt::format("[{}]", options.tcp_address) : options.tcp_address;
  if (options.resp_port) made.tcp_address = fmt::format("{}:{}", host, *options.resp_port);
  return made;
}

bool is_for_redis(const serve_options& options) noexcept { return options.resp_port || options.valkey_address; }

// ---- who looks after the server ----

// The executors of the server. SIGUSR1 has each say what its tasks wait for.
struct executors {
  executor& first;
  std::optional<executor_group> others;    // of weft's clients
  std::optional<executor_group> for_resp;  // of Redis's and Valkey's
};

executor_options options_of_each(const serve_options& options) noexcept {
  executor_options each;
  each.dump_on_signal = SIGUSR1;
  each.stall_limit = options.stall_limit;
  return each;
}

task<> serve_metrics(net::device& device, const table& data, const executors& those, std::string address) {
  auto server = co_await net::metrics_server::listen(device, "tcp://" + address);
  fmt::print("metrics on http://{}/metrics\n", server.address().substr(std::string_view("tcp://").size()));
  std::fflush(stdout);
  const auto collect = [&](metrics& all) {
    add_to(all, those.first, "main");
    if (those.others) add_to(all, *those.others, "weft");
    if (those.for_resp) add_to(all, *those.for_resp, "resp");
    net::add_to(all, device.statistics(), device.name());
    mr::add_to(all, device.pool().statistics(), device.name());
    mr::add_to(all, device.domain().statistics(), device.name());
    all.gauge("kv_keys", "Keys in the table, with those that have expired and were not overwritten.", {}, data.size());
    all.counter("kv_evicted_keys_total", "Keys that have made room for others before they had expired.", {},
                data.evicted());
    all.gauge("kv_record_bytes", "Bytes of keys and values that do not fit a slot.", {}, data.record_bytes());
    all.gauge("kv_record_memory_bytes", "Bytes of memory for keys and values that do not fit a slot.", {},
              data.record_memory());
  };
  co_await server.serve(collect);
}

// What a server is watched by, where that is asked for.
task<> look_after(net::device& device, const table& data, const executors& those, const serve_options& options,
                  signal_set* record) {
  const auto all = [&](scope& tasks) -> task<> {
    if (options.metrics_address) {
      tasks.spawn(serve_metrics(device, data, those, *options.metrics_address), "metrics");
    }
    if (record != nullptr) tasks.spawn(record_traces(*record, options.trace, std::chrono::seconds(10)), "traces");
    co_return;
  };
  co_await with_scope(on_failure::stop_siblings, all);
}

// ---- all ----

struct table_size {
  std::uint64_t buckets;
  std::uint64_t record_memory;

  [[nodiscard]] std::size_t bytes() const noexcept { return buckets * bucket_bytes + record_memory; }
};

// A quarter of what may be locked is for the table, half of that for its slots: half of all is the pool's, and the rest
// is for the queues of connections.
table_size size_of_table(net::device& device, const serve_options& options) {
  constexpr std::uint64_t usual_keys = 1'000'000;
  constexpr std::uint64_t usual_memory = std::uint64_t{256} << 20;
  const std::uint64_t locked = device.domain().pins() ? mr::locked_memory_limit().value_or(UINT64_MAX) : UINT64_MAX;
  const std::uint64_t share = locked / 8;
  const std::uint64_t keys = options.keys.value_or(std::clamp<std::uint64_t>(share / (2 * slot_bytes), 1, usual_keys));
  const std::uint64_t memory =
      options.record_memory.value_or(std::clamp<std::uint64_t>(share, least_record_memory, usual_memory));
  if (memory < least_record_memory) {
    throw error(errc::invalid_argument,
                fmt::format("{} bytes for long values: at least {}", memory, least_record_memory));
  }
  if ((!options.keys && keys < usual_keys) || (!options.record_memory && memory < usual_memory)) {
    fmt::print(
        stderr,
        "kv: room for {} keys, and {} bytes for long values, because the locked-memory limit is {} bytes (ulimit -l)\n",
        keys, memory, locked);
  }
  return {.buckets = std::max<std::uint64_t>(1, keys * 2 / slots_in_bucket), .record_memory = memory};
}

// What clients map is a file of its own, which they can only read.
task<mr::region> memory_of_table(net::device& device, std::size_t bytes, bool direct) {
  constexpr std::size_t page = 4096;
  bytes = (bytes + page - 1) / page * page;
  if (!direct) {
    mr::mapping zeroed(bytes, false, -1, system_calls::kernel());
    co_return co_await device.register_memory(std::move(zeroed), {.usage = mr::usage::read_src});
  }
  auto file = mr::mapping::in_memory_file(bytes, false, -1, system_calls::kernel(), mr::file_access::read_only);
  co_return co_await device.register_memory(std::move(file), {.usage = mr::usage::read_src, .direct = true});
}

task<> serve_clients(net::listener& listener, net::device& device, shared_table shared, const serve_options& options,
                     executors& those, signal_set* record) {
  const auto all = [&](scope& tasks) -> task<> {
    tasks.spawn(serve_weft(listener, shared, those.others ? &*those.others : nullptr), "weft");
    if (those.for_resp) {
      tasks.spawn(serve_resp_apart(*those.for_resp, device, shared.data, options_for_resp(options)), "resp");
    }
    tasks.spawn(look_after(device, shared.data, those, options, record), "look after");
    co_return;
  };
  co_await with_scope(on_failure::stop_siblings, all);
}

// Stores what has ended the service, and stops `io` before what its clients use goes.
awaitable<void> serve_all(asio::io_context& io, asio_host& host, net::device& device, const serve_options& options,
                          signal_set* record, std::exception_ptr& failure) {
  using namespace asio::experimental::awaitable_operators;
  const table_size size = size_of_table(device, options);
  auto memory = co_await host.async(memory_of_table(device, size.bytes(), options.direct), use_awaitable);
  table data(memory.bytes().first(size.bytes()), size.buckets);
  if (options.value_bytes > data.longest_value()) {
    throw error(errc::invalid_argument, fmt::format("fill the table with values of {} bytes: they have at most {}",
                                                    options.value_bytes, data.longest_value()));
  }
  const generation self = draw_generation();
  for (std::uint64_t i = 0; i < options.fill; ++i) {
    data.set(bench_key(i), bench_value(i, {.server = self, .number = 0}, options.value_bytes), {}, server_now());
  }

  executors those{.first = host.executor(), .others = {}, .for_resp = {}};
  const executor_options each = options_of_each(options);
  if (options.threads > 1) {
    those.others.emplace(executor_group_options{.size = options.threads, .each = each});
  }
  if (is_for_redis(options)) those.for_resp.emplace(executor_group_options{.size = 1, .each = each});
  const net::listener_options narrow{.max_connections = options.max_connections};
  auto listener = co_await host.async(device.listen(options.listen_address, narrow), use_awaitable);
  tcp::acceptor acceptor(co_await asio::this_coro::executor,
                         {asio::ip::make_address(options.tcp_address), options.tcp_port});
  fmt::print("{} keys on {} over {}, and on {}:{} over TCP\n", options.fill, listener->address(), device.name(),
             options.tcp_address, acceptor.local_endpoint().port());
  std::fflush(stdout);
  const shared_table shared{.device = device,
                            .data = data,
                            .memory = memory.remote(),
                            .server = self,
                            .resume_within = options.resume_within};
  auto clients = serve_clients(*listener, device, shared, options, those, record);
  try {  // the failure of what stands first is the one that can be told
    co_await (host.async(std::move(clients), use_awaitable) && serve_tcp(acceptor, data, options.max_connections));
  } catch (...) {
    failure = std::current_exception();
  }
  io.stop();
}

// What is waited for together ends together, and says so in general words.
[[noreturn]] void rethrow_first(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const asio::multiple_exceptions& several) {
    std::rethrow_exception(several.first_exception());
  }
}

}  // namespace

void serve(net::device& device, const serve_options& options) {
  // Before any thread starts, so that none takes the signal.
  std::optional<signal_set> record;
  if (!options.trace.empty()) record.emplace({SIGUSR2});
  asio::io_context io(1);
  asio_host host(io, options_of_each(options));
  std::exception_ptr failure;
  asio::co_spawn(io, serve_all(io, host, device, options, record ? &*record : nullptr, failure),
                 [&](std::exception_ptr what) {
                   if (what) failure = std::move(what);
                 });
  io.run();
  if (failure) rethrow_first(failure);
}

}  // namespace kv
