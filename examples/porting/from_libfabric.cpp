// SPDX-License-Identifier: Apache-2.0
// What small programs for libfabric do with messages, one-sided writes and fi_mr(3), with the calls that each line
// replaces: registrations that end as events, a counter of what peers write, and messages,
// also into memory of one's own (docs/guide/from-libfabric.md).
//
//   from_libfabric serve [HOST:PORT]
//   from_libfabric put HOST:PORT TEXT...  writes each text into the server's memory, and asks for all of it
#include <weft/mr/porting/porting.hpp>
#include <weft/weft.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

using namespace weft;

namespace {

constexpr std::size_t slot_bytes = 64;
constexpr std::size_t slots = 16;

// FI_REG_MR: fi_mr_regattr() returns at once, and the registration ends as an event of the queue, with its context.
task<mr::region> register_board(net::device& device, mr::porting::write_counter& writes) {
  mr::porting::event_queue events;  // fi_eq_open(), fi_domain_bind(FI_REG_MR)
  int context = 0;
  mr::registration_options how;
  how.usage = mr::usage::write_dst;  // FI_REMOTE_WRITE
  how.disabled = true;               // FI_MR_RMA_EVENT
  const auto pending =
      mr::porting::submit(device.domain(), std::vector<std::byte>(slots * slot_bytes), how, events, &context);
  auto event = co_await events.next();  // fi_eq_sread(): FI_MR_COMPLETE
  if (event.context != &context) throw error(errc::invalid_argument, "the event of another registration");
  mr::region board = std::move(event.outcome).value();  // fi_eq_readerr(), if it failed
  mr::porting::bind(board, writes);                     // fi_mr_bind(FI_REMOTE_WRITE)
  co_await mr::porting::enable(board);                  // fi_mr_enable()
  co_return board;
}

// The client says how many texts it has written; what the counter has seen is in place.
task<> serve_one(net::device& device, net::connection peer) {
  mr::porting::write_counter writes;
  auto board = co_await register_board(device, writes);
  co_await peer.send_bytes(board.remote().pack());      // fi_mr_key(), fi_send()
  const auto question = co_await peer.recv_or_throw();  // fi_recv(), fi_cq_sread()
  const auto count = std::min(static_cast<std::size_t>(std::atoi(std::string(question.text()).c_str())), slots);
  co_await mr::porting::remote_writes(board, count);  // fi_cntr_wait()
  std::string all;
  for (std::size_t i = 0; i != count; ++i) {
    const auto* const text = reinterpret_cast<const char*>(board.data() + i * slot_bytes);
    all.append(text, ::strnlen(text, slot_bytes));  // the peer may have left out the end
  }
  co_await peer.send_bytes(all);
  static_cast<void>(co_await peer.recv());  // fi_eq_sread(): FI_SHUTDOWN
}

task<> serve(net::device& device, std::string address) {
  auto listener = co_await device.listen(address);  // fi_passive_ep(), fi_listen()
  std::printf("listening on %s\n", std::string(listener.address()).c_str());
  std::fflush(stdout);
  auto accept_all = [&](scope& peers) -> task<> {
    while (auto peer = co_await listener.accept())  // fi_eq_sread(): FI_CONNREQ, fi_endpoint(), fi_accept()
      peers.spawn(serve_one(device, std::move(*peer)));
  };
  co_await with_scope(on_failure::report, accept_all);
}

task<> put(net::device& device, std::string address, std::vector<std::string> texts) {
  auto server = co_await device.connect(address);  // fi_getinfo(), fi_endpoint(), fi_connect(), fi_eq_sread()
  const auto descriptor = co_await server.recv_or_throw();
  const auto board = mr::remote_region::unpack(descriptor.bytes());
  for (std::size_t i = 0; i != texts.size(); ++i) {
    auto text = co_await device.allocate(slot_bytes);
    std::memset(text.data(), 0, slot_bytes);
    std::memcpy(text.data(), texts[i].data(), std::min(texts[i].size(), slot_bytes - 1));
    co_await server.write(std::move(text), board.slice(i * slot_bytes, slot_bytes));  // fi_write(), fi_cq_sread()
  }
  const std::string count = std::to_string(texts.size());
  co_await server.send_bytes(count);
  auto own = co_await device.register_memory(std::vector<std::byte>(slots * slot_bytes), {.usage = mr::usage::recv});
  const auto heard = co_await server.recv_into(own.slice());  // fi_recv(), fi_cq_sread()
  if (!heard) throw error(errc::peer_closed, "the server has sent no answer");
  std::printf("%.*s\n", static_cast<int>(heard->bytes), reinterpret_cast<const char*>(own.data()));
  co_await server.close();  // fi_shutdown(), fi_close()
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string verb = argc > 1 ? argv[1] : "";
  auto device = net::device::open("auto");  // fi_getinfo(), fi_fabric(), fi_domain()
  executor ex;
  if (verb == "serve" && argc <= 3) {
    ex.run(serve(device, argc == 3 ? argv[2] : "127.0.0.1:7471"));
  } else if (verb == "put" && argc >= 4 && static_cast<std::size_t>(argc - 3) <= slots) {
    ex.run(put(device, argv[2], {argv + 3, argv + argc}));
  } else {
    std::fputs("usage: from_libfabric serve [HOST:PORT]\n       from_libfabric put HOST:PORT TEXT...  (16 at most)\n",
               stderr);
    return 2;
  }
  return 0;
} catch (const std::exception& failure) {
  std::fprintf(stderr, "from_libfabric: %s\n", failure.what());
  return 1;
}
