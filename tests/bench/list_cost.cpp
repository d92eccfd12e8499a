// SPDX-License-Identifier: Apache-2.0
// list_cost OPERATION BLOCKS: moves a list of so many blocks of 64 KiB over a simulated RDMA device, by the link of
// verbs, between two connections of one executor. Under callgrind with --instr-atstart=no, the second list of a
// connection alone is counted, with the device: see lists.py.
#include <weft/net/verbs/transport.hpp>
#include <weft/weft.hpp>

#include <fmt/core.h>

#include <valgrind/callgrind.h>

#include <cstdio>
#include <cstdlib>

#include "kit/tell.hpp"
#include "sim/rdma.hpp"

namespace {

using namespace weft;

constexpr std::size_t block_bytes = 65536;
constexpr std::uint32_t places = 16;  // at either end, which the blocks of a list share
constexpr std::uint16_t send_depth = 256;
constexpr const char* address = "127.0.0.1:7471";

/// A list in either form.
struct both_lists {
  net::block_list blocks;
  std::span<const net::list_part> parts;
};

using operation = net::list_operation (*)(net::connection& peer, const both_lists& lists);

struct row {
  std::string_view name;
  operation run;
};

constexpr std::array rows{
    row{"write_blocks", [](net::connection& peer, const both_lists& lists) { return peer.write(lists.blocks); }},
    row{"write_parts", [](net::connection& peer, const both_lists& lists) { return peer.write(lists.parts); }},
    row{"read_blocks", [](net::connection& peer, const both_lists& lists) { return peer.read(lists.blocks); }},
    row{"read_parts", [](net::connection& peer, const both_lists& lists) { return peer.read(lists.parts); }}};

task<> lend(net::device& device, net::listener& from, const net::connection_options& options) {
  auto request = co_await from.next();
  auto peer = co_await request->accept(options);
  auto memory = co_await device.pool().allocate(places * block_bytes, mr::budget::receive);
  const auto open = co_await peer.expose(std::move(memory), mr::usage::write_dst | mr::usage::read_src);
  co_await test::tell(peer, device.pool(), open.remote());
  static_cast<void>(co_await peer.recv());
  co_await peer.close();
}

task<> move(net::device& device, const net::connection_options& options, operation run, std::uint32_t count) {
  auto peer = co_await device.connect(address, options);
  const auto hello = co_await peer.recv_or_throw();
  const auto local = co_await device.pool().allocate(places * block_bytes, mr::budget::receive);
  const auto there = mr::remote_region::unpack(hello.bytes());
  std::vector<net::block_pair> pairs;
  std::vector<net::list_part> parts;
  for (std::uint32_t i = 0; i != count; ++i) {
    const net::block_pair& pair = pairs.emplace_back(i % places, (i + 1) % places);
    parts.push_back({local.slice().subslice(pair.local * block_bytes, block_bytes),
                     there.slice(pair.remote * block_bytes, block_bytes)});
  }
  const both_lists lists{{.local = local.slice(), .remote = there, .block_bytes = block_bytes, .blocks = pairs}, parts};
  co_await run(peer, lists);
  CALLGRIND_START_INSTRUMENTATION;
  co_await run(peer, lists);
  CALLGRIND_STOP_INSTRUMENTATION;
  co_await peer.close();
}

void measure(operation run, std::uint32_t count) {
  sim::world place(1, {});
  sim::rdma below(place, sim::rdma_traits());
  const net::device_options how{.pool = {.huge_pages = false, .system_calls = &place}};
  auto device = net::device::open(net::verbs::open_transport(sim::rdma::device_name, below), how);
  executor home(place.options(false));
  const auto both = [&]() -> task<> {
    const net::connection_options options{.send_depth = send_depth};
    auto listener = co_await device.listen(address);
    co_await when_all(lend(device, listener, options), move(device, options, run, count));
  };
  home.run(both());
}

}  // namespace

int main(int argc, char** argv) try {
  for (const row& what : rows) {
    if (argc != 3 || what.name != argv[1]) continue;
    measure(what.run, static_cast<std::uint32_t>(std::stoul(argv[2])));
    return 0;
  }
  std::fputs("usage: list_cost write_blocks|write_parts|read_blocks|read_parts BLOCKS\n", stderr);
  return 2;
} catch (const std::exception& why) {
  fmt::print(stderr, "list_cost: {}\n", why.what());
  return 1;
}
