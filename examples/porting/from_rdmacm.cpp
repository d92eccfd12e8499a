// SPDX-License-Identifier: Apache-2.0
// What the programs rdma_server and rdma_client of librdmacm do, with the calls that each line replaces: one message
// there and one back, in memory of the program's own (docs/guide/from-librdmacm.md).
//
//   from_rdmacm serve [HOST:PORT]
//   from_rdmacm send HOST:PORT TEXT       at most 64 bytes, which come back
#include <weft/weft.hpp>

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

using namespace weft;

namespace {

constexpr std::size_t message_bytes = 64;

// rdma_reg_msgs(): the region owns its memory
task<mr::region> register_messages(net::device& device) {
  co_return co_await device.domain().register_memory(std::vector<std::byte>(message_bytes),
                                                     {.usage = mr::usage::send | mr::usage::recv});
}

task<> serve_one(net::device& device, net::connection peer) {
  auto messages = co_await register_messages(device);
  const auto heard = co_await peer.recv_into(messages.slice());  // rdma_post_recv(), rdma_get_recv_comp()
  if (!heard) co_return;                                         // the client has disconnected
  co_await peer.send(messages.slice(0, heard->bytes));           // rdma_post_send(), rdma_get_send_comp()
  static_cast<void>(co_await peer.recv());                       // the client disconnects
}

task<> serve(net::device& device, std::string address) {
  auto listener = co_await device.listen(address);  // rdma_getaddrinfo(), rdma_create_ep(), rdma_listen()
  std::printf("listening on %s\n", std::string(listener.address()).c_str());
  std::fflush(stdout);
  auto accept_all = [&](scope& peers) -> task<> {
    while (auto peer = co_await listener.accept())  // rdma_get_request(), rdma_accept()
      peers.spawn(serve_one(device, std::move(*peer)));
  };
  co_await with_scope(on_failure::report, accept_all);
}

task<> send(net::device& device, std::string address, std::string text) {
  if (text.size() > message_bytes) throw error(errc::invalid_argument, "a message has at most 64 bytes");
  auto server = co_await device.connect(address);  // rdma_getaddrinfo(), rdma_create_ep(), rdma_connect()
  auto messages = co_await register_messages(device);
  std::memcpy(messages.data(), text.data(), text.size());
  co_await server.send(messages.slice(0, text.size()));            // rdma_post_send(), rdma_get_send_comp()
  const auto heard = co_await server.recv_into(messages.slice());  // rdma_post_recv(), rdma_get_recv_comp()
  if (!heard) throw error(errc::peer_closed, "the server has sent no answer");
  std::printf("%.*s\n", static_cast<int>(heard->bytes), reinterpret_cast<const char*>(messages.data()));
  co_await server.close();      // rdma_disconnect(), rdma_destroy_ep()
  co_await messages.release();  // rdma_dereg_mr()
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string verb = argc > 1 ? argv[1] : "";
  auto device = net::device::open("auto");
  executor ex;
  if (verb == "serve" && argc <= 3) {
    ex.run(serve(device, argc == 3 ? argv[2] : "127.0.0.1:7471"));
  } else if (verb == "send" && argc == 4) {
    ex.run(send(device, argv[2], argv[3]));
  } else {
    std::fputs("usage: from_rdmacm serve [HOST:PORT]\n       from_rdmacm send HOST:PORT TEXT\n", stderr);
    return 2;
  }
  return 0;
} catch (const std::exception& failure) {
  std::fprintf(stderr, "from_rdmacm: %s\n", failure.what());
  return 1;
}
