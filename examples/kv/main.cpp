// SPDX-License-Identifier: Apache-2.0
// A cache that its clients read by themselves: `kv --help`.
#include <weft/weft.hpp>

#include <CLI/CLI.hpp>
#include <fmt/core.h>

#include <functional>
#include <iostream>
#include <istream>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <common/network.hpp>
#include <common/program.hpp>
#include <kv/bench.hpp>
#include <kv/client.hpp>
#include <kv/resp_client.hpp>
#include <kv/server.hpp>
#include <kv/text_client.hpp>
#include <kv/valkey.hpp>

namespace {

using namespace weft;

// Messages are small: where little may be locked, the pool takes it bit by bit, and leaves the rest to the table.
net::device_options options_of_device() {
  net::device_options options;
  if (mr::locked_memory_limit()) options.pool.arena_bytes = std::size_t{256} << 10;
  return options;
}

// Addresses begin with how their server is spoken to: nothing is weft's own way.
constexpr std::string_view tcp = "tcp://";
constexpr std::string_view redis = "redis://";
constexpr std::string_view valkey = "valkey://";

task<kv::resp_client<net::stream>> connect_redis(net::device& device, std::string address) {
  std::string plain(tcp);
  plain += address.substr(redis.size());
  auto server = co_await net::stream::connect(device, plain);
  co_return kv::resp_client<net::stream>(std::move(server));
}

task<kv::resp_client<kv::valkey_stream>> connect_valkey(net::device& device, std::string address) {
  const std::string plain(address.substr(valkey.size()));
  auto server = co_await kv::valkey_stream::connect(device, plain);
  co_return kv::resp_client<kv::valkey_stream>(std::move(server));
}

template <class Server>
task<std::optional<std::string>> get_from(task<Server> connecting, std::string key) {
  auto server = co_await std::move(connecting);
  auto found = co_await server.get(key);
  co_await server.close();
  co_return found;
}

template <class Server>
task<bool> set_at(task<Server> connecting, std::string key, std::string bytes) {
  auto server = co_await std::move(connecting);
  co_await server.set(key, bytes);
  co_await server.close();
  co_return true;
}

task<std::optional<std::string>> get_over_tcp(net::device& device, std::string address, std::string key) {
  auto server = co_await kv::text_client::connect(device, address);
  const std::vector<std::string> keys{key};
  std::optional<std::string> found;
  const auto each = [&](std::size_t, bool is_there, const kv::value& what) {
    if (is_there) found = what.view();
  };
  co_await server.get(keys, each);
  co_return found;
}

task<std::optional<std::string>> get_by_reading(net::device& device, std::string address, std::string key) {
  auto server = co_await kv::client::connect(device, address);
  kv::value got;
  std::optional<std::string> found;
  if (co_await server.get(key, got)) found = got.view();
  co_await server.close();
  co_return found;
}

task<std::optional<std::string>> find(net::device& device, const std::string& address, const std::string& key) {
  if (address.starts_with(redis)) return get_from(connect_redis(device, address), key);
  if (address.starts_with(valkey)) return get_from(connect_valkey(device, address), key);
  return address.starts_with(tcp) ? get_over_tcp(device, address, key) : get_by_reading(device, address, key);
}

// Prints the value; false if there is none.
task<bool> get(net::device& device, std::string address, std::string key) {
  const auto found = co_await find(device, address, key);
  if (found) fmt::print("{}\n", *found);
  co_return found.has_value();
}

task<bool> set(net::device& device, const std::string& address, const std::string& key, const std::string& bytes) {
  if (address.starts_with(redis)) return set_at(connect_redis(device, address), key, bytes);
  if (address.starts_with(valkey)) return set_at(connect_valkey(device, address), key, bytes);
  if (address.starts_with(tcp)) return set_at(kv::text_client::connect(device, address), key, bytes);
  return set_at(kv::client::connect(device, address), key, bytes);
}

task<bool> bench(net::device& device, kv::bench_options options) {
  const auto found = co_await kv::run_bench(device, options);
  const bool reads = !options.address.empty();
  const bool asks = !options.tcp_address.empty();
  if (reads) fmt::print("GETs by one-sided reads   {:10.0f} per second\n", found.gets_per_second);
  if (asks) fmt::print("GETs over TCP             {:10.0f} per second\n", found.tcp_gets_per_second);
  if (reads && asks)
    fmt::print("ratio                     {:10.2f}\n", found.gets_per_second / found.tcp_gets_per_second);
  fmt::print("{} GETs beside {} SETs; {} reads were torn and repeated; {} values missing, {} not whole\n", found.gets,
             found.sets, found.torn, found.missing, found.wrong);
  if (options.resume_within.count() > 0) {
    fmt::print("{} servers, one after another; {} operations lost with their connections; {} values of the past\n",
               found.servers, found.lost, found.stale);
  }
  co_return found.wrong == 0 && found.stale == 0;
}

// One byte more than any server takes, at most: then it says so.
std::string read_value(std::istream& from) {
  std::string bytes(kv::longest_value + 1, '\0');
  from.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  bytes.resize(static_cast<std::size_t>(from.gcount()));
  return bytes;
}

}  // namespace

// What escapes would be a mistake in the definition of the options. NOLINTNEXTLINE(bugprone-exception-escape)
int main(int argc, char** argv) {
  CLI::App app("A cache: SET by a message, GET by reading the server's table without the server.", "kv");
  std::string device_name = "auto";
  app.add_option("--device", device_name, "auto, or the transport by name: iwarp or shm")->type_name("NAME");
  app.require_subcommand(1);
  std::function<int(net::device&)> run;
  const auto on_executor = [](task<bool> work) {
    executor ex;
    return ex.run(std::move(work)) ? common::success : common::failed;
  };

  kv::serve_options serving;
  CLI::App& serve = *app.add_subcommand("serve", "keep a table");
  serve.add_option("--listen", serving.listen_address, "for clients over weft")->type_name("HOST:PORT");
  serve.add_option("--tcp-address", serving.tcp_address, "for clients over TCP")->type_name("ADDRESS");
  serve.add_option("--tcp-port", serving.tcp_port, "for clients over TCP; 0: any")->type_name("PORT");
  serve
      .add_option("--resp-port", serving.resp_port, "for clients of Redis and Valkey over TCP; 0: any (default: none)")
      ->type_name("PORT");
  serve.add_option("--valkey", serving.valkey_address, "for clients of Valkey over RDMA (default: none)")
      ->type_name("HOST:PORT");
  common::add_value(serve, "--max-connections", serving.max_connections, "of each kind of clients at a time", "COUNT")
      .check(CLI::Range(1, 1'000'000));
  serve
      .add_option("--keys", serving.keys,
                  "how many keys to have room for (default: 1000000, or what the locked-memory limit allows)")
      ->check(CLI::Range(1ul, 100'000'000ul));
  std::size_t record_mebibytes = 0;
  CLI::Option& records =
      *serve
           .add_option("--record-memory", record_mebibytes,
                       "for keys and values of more than 96 bytes together, of which the oldest make "
                       "room for the newest (default: 256, or what the locked-memory limit allows)")
           ->check(CLI::Range(1ul, 1ul << 20))
           ->type_name("MIB");
  serve.add_option("--fill", serving.fill, "how many keys of the benchmark to begin with");
  serve.add_option("--value-bytes", serving.value_bytes, "of their values")
      ->check(CLI::Range(kv::least_bench_value, kv::longest_value))
      ->capture_default_str();
  serve.add_flag("--direct", serving.direct, "clients of this machine map the table, and read it by themselves");
  serve.add_option("--threads", serving.threads, "executors for clients over weft")->check(CLI::Range(1, 64));
  serve.add_option("--metrics", serving.metrics_address, "for Prometheus (default: none)")->type_name("HOST:PORT");
  serve.add_option("--trace", serving.trace, "where SIGUSR2 records what is done for ten seconds (default: none)")
      ->type_name("FILE");
  std::size_t resume_seconds = 0;
  serve
      .add_option("--resume-within", resume_seconds,
                  "keep a client's connection so long when the network fails; 0: not")
      ->check(CLI::Range(0, 86'400))
      ->type_name("SECONDS");
  std::size_t stall_milliseconds = 0;
  serve.add_option("--stall-limit", stall_milliseconds, "report what keeps others waiting longer; 0: nothing")
      ->check(CLI::Range(0, 3'600'000))
      ->type_name("MILLISECONDS");
  serve.callback([&] {
    serving.stall_limit = std::chrono::milliseconds(stall_milliseconds);
    serving.resume_within = std::chrono::seconds(resume_seconds);
    if (records.count() != 0) serving.record_memory = std::uint64_t{record_mebibytes} << 20;
    run = [&](net::device& device) {
      kv::serve(device, serving);
      return common::success;
    };
  });

  std::string address;
  std::string key;
  std::string bytes;
  CLI::App& getting = *app.add_subcommand("get", "print a value; 1 if there is none");
  CLI::App& setting = *app.add_subcommand("set", "store a value");
  for (CLI::App* const each : {&getting, &setting}) {
    each->add_option("ADDRESS", address, "HOST:PORT, or with tcp://, redis:// or valkey:// before it")
        ->required()
        ->type_name("");
    each->add_option("KEY", key)->required()->type_name("");
  }
  CLI::Option& value = *setting.add_option("VALUE", bytes, "the standard input if left out")->type_name("");
  getting.callback([&] { run = [&](net::device& device) { return on_executor(get(device, address, key)); }; });
  setting.callback([&] {
    if (value.count() == 0) bytes = read_value(std::cin);
    run = [&](net::device& device) { return on_executor(set(device, address, key, bytes)); };
  });

  kv::bench_options measuring;
  std::size_t milliseconds = 1000;
  CLI::App& measure = *app.add_subcommand("bench", "GETs by one-sided reads beside GETs over TCP, while SETs go on");
  measure.add_option("ADDRESS", measuring.address, "HOST:PORT of a server with --fill, or tcp://HOST:PORT alone")
      ->required()
      ->type_name("");
  measure.add_option("TCP_ADDRESS", measuring.tcp_address, "its HOST:PORT for TCP (default: no GETs over TCP)")
      ->type_name("");
  measure.add_flag("--read-only", measuring.read_only, "set nothing meanwhile");
  measure.add_option("--keys", measuring.keys, "that it was filled with")->check(CLI::Range(1ul, 100'000'000ul));
  measure.add_option("--value-bytes", measuring.value_bytes, "of what is set")
      ->check(CLI::Range(kv::least_bench_value, kv::longest_value))
      ->capture_default_str();
  measure.add_option("--depth", measuring.depth, "GETs at a time")->check(CLI::Range(1, 64))->capture_default_str();
  measure.add_option("--rounds", measuring.rounds, "of each way, in turn")->check(CLI::Range(1, 1000));
  measure.add_option("--milliseconds", milliseconds, "that a round takes")->check(CLI::Range(1, 3'600'000));
  measure
      .add_option("--resume-within", resume_seconds,
                  "wait so long for a network or a server that fails, and go on; 0: end")
      ->check(CLI::Range(0, 86'400))
      ->type_name("SECONDS");
  measure.callback([&] {
    if (measuring.address.starts_with(tcp))
      measuring.tcp_address = std::exchange(measuring.address, {}).substr(tcp.size());
    measuring.resume_within = std::chrono::seconds(resume_seconds);
    measuring.round = std::chrono::milliseconds(milliseconds);
    run = [&](net::device& device) { return on_executor(bench(device, measuring)); };
  });

  return common::run_program(app, argc, argv, [&] {
    auto device = common::open_device("kv", device_name, options_of_device());
    return run(device);
  });
}
