// SPDX-License-Identifier: Apache-2.0
// What small programs for UCX do with active messages, puts and flushes, with the calls that each line replaces: a
// notice of one line, which clients write into the server's memory (docs/guide/from-ucx.md).
//
//   from_ucx serve [HOST:PORT]
//   from_ucx put HOST:PORT TEXT           at most 63 bytes; shows what the server finds in its memory
//
// One client writes at a time.
#include <weft/weft.hpp>

#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

using namespace weft;

namespace {

constexpr std::size_t notice_bytes = 64;

std::string_view text_of(const mr::region& notice) {
  const auto* const text = reinterpret_cast<const char*>(notice.data());
  return {text, ::strnlen(text, notice.size())};  // a client may have left out the end
}

task<> serve_one(net::connection peer, const mr::region& notice) {
  co_await peer.send_bytes(notice.remote().pack());  // ucp_rkey_pack(), ucp_am_send_nbx()
  while (const auto asked = co_await peer.recv())    // the callback of ucp_worker_set_am_recv_handler()
    co_await peer.send_bytes(text_of(notice));       // ucp_am_send_nbx() to the reply_ep
}

task<> serve(net::device& device, std::string address) {
  auto notice = co_await device.register_memory(  // ucp_mem_map()
      std::vector<std::byte>(notice_bytes), {.usage = mr::usage::write_dst | mr::usage::flush_visibility});
  auto listener = co_await device.listen(address);  // ucp_listener_create()
  std::printf("listening on %s\n", std::string(listener.address()).c_str());
  std::fflush(stdout);
  auto accept_all = [&](scope& peers) -> task<> {
    while (auto peer = co_await listener.accept())  // the listener's conn_handler, ucp_ep_create()
      peers.spawn(serve_one(std::move(*peer), notice));
  };
  co_await with_scope(on_failure::report, accept_all);  // err_handler, ucp_ep_close_nbx()
}

task<> put(net::device& device, std::string address, std::string text) {
  if (text.size() >= notice_bytes) throw error(errc::invalid_argument, "a notice has at most 63 bytes");
  auto server = co_await device.connect(address);  // ucp_ep_create()
  const auto descriptor = co_await server.recv_or_throw();
  const auto notice = mr::remote_region::unpack(descriptor.bytes());  // ucp_ep_rkey_unpack()
  auto line = co_await device.allocate(notice_bytes);                 // registered already: no ucp_mem_map()
  std::memset(line.data(), 0, notice_bytes);
  std::memcpy(line.data(), text.data(), text.size());
  co_await server.write(line, notice);                  // ucp_put_nbx(), ucp_worker_progress() until it is done
  co_await server.flush(notice);                        // ucp_ep_flush_nbx(), likewise
  co_await server.send_bytes("");                       // ucp_am_send_nbx()
  const auto answer = co_await server.recv_or_throw();  // the callback again
  std::printf("%s\n", std::string(answer.text()).c_str());
  co_await server.close();  // ucp_rkey_destroy(), ucp_ep_close_nbx()
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string verb = argc > 1 ? argv[1] : "";
  auto device = net::device::open("auto");  // ucp_init(), UCX_TLS, UCX_NET_DEVICES
  executor ex;                              // ucp_worker_create()
  if (verb == "serve" && argc <= 3) {
    ex.run(serve(device, argc == 3 ? argv[2] : "127.0.0.1:7471"));
  } else if (verb == "put" && argc == 4) {
    ex.run(put(device, argv[2], argv[3]));
  } else {
    std::fputs("usage: from_ucx serve [HOST:PORT]\n       from_ucx put HOST:PORT TEXT\n", stderr);
    return 2;
  }
  return 0;
} catch (const std::exception& failure) {
  std::fprintf(stderr, "from_ucx: %s\n", failure.what());
  return 1;
}
