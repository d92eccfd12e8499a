// SPDX-License-Identifier: Apache-2.0
// What librpma's examples do (read, write, flush to persistent, atomic write), with the calls that each line replaces:
// a log in a file, which clients append to and read by themselves.
//
//   from_rpma serve FILE [HOST:PORT]      the file is made if there is none
//   from_rpma append HOST:PORT TEXT       the text survives a power cut of the server once this has ended
//   from_rpma show HOST:PORT
//
// The file begins with eight bytes that say how many bytes of text follow. One client appends at a time.
#include <weft/mr/system/mapping.hpp>
#include <weft/weft.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <string>

using namespace weft;

namespace {

constexpr std::size_t log_bytes = std::size_t{1} << 20;
constexpr std::size_t head_bytes = sizeof(std::uint64_t);

// RPMA_MR_USAGE_READ_SRC | RPMA_MR_USAGE_WRITE_DST | RPMA_MR_USAGE_FLUSH_TYPE_PERSISTENT
constexpr mr::usage of_log = mr::usage::read_src | mr::usage::write_dst | mr::usage::flush_persistent;

net::connection_options both_ends() {
  net::connection_options how;
  how.persistent_flush = true;
  return how;
}

// ---- the server ----

// pmem_map_file(), or open(2), ftruncate(2) and mmap(2). The file and its name are on the disk before anybody is told.
mr::mapping map(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0 || ::ftruncate(file, log_bytes) != 0 || ::fsync(file) != 0) throw system_error(errno, "open " + path);
  auto mapped = mr::mapping::of_file({.descriptor = file}, log_bytes, system_calls::kernel());
  ::close(file);
  return mapped;
}

task<> serve_one(net::connection peer, const mr::region& log) {
  co_await peer.send_bytes(log.remote().pack());  // rpma_mr_get_descriptor()
  static_cast<void>(co_await peer.recv());        // rpma_conn_next_event(): RPMA_CONN_CLOSED
}

task<> serve(net::device& device, std::string path, std::string address) {
  auto log = co_await device.domain().register_memory(map(path), {.usage = of_log});  // rpma_mr_reg()
  auto listener = co_await device.listen(address);                                    // rpma_ep_listen()
  std::printf("listening on %s\n", std::string(listener.address()).c_str());
  std::fflush(stdout);
  auto accept_all = [&](scope& peers) -> task<> {
    while (auto peer = co_await listener.accept(both_ends()))  // rpma_ep_next_conn_req(), rpma_conn_req_connect()
      peers.spawn(serve_one(std::move(*peer), log));
  };
  co_await with_scope(on_failure::report, accept_all);
}

// ---- the client ----

struct far_log {
  net::connection server;
  mr::remote_region memory;
};

task<far_log> open(net::device& device, std::string address) {
  auto server = co_await device.connect(address, both_ends());  // rpma_conn_req_new(), rpma_conn_req_connect()
  const auto descriptor = co_await server.recv_or_throw();
  const auto memory = mr::remote_region::unpack(descriptor.bytes());  // rpma_mr_remote_from_descriptor()
  co_return far_log{std::move(server), memory};
}

task<std::uint64_t> read_size(far_log& log, mr::buffer& head) {
  co_await log.server.read(head, log.memory.slice(0, head_bytes));  // rpma_read(), rpma_cq_wait(), rpma_cq_get_wc()
  std::uint64_t size = 0;
  std::memcpy(&size, head.data(), sizeof size);
  if (size > log_bytes - head_bytes) throw error(errc::malformed, "the log says that it is larger than its file");
  co_return size;
}

task<> append(net::device& device, std::string address, std::string text) {
  auto log = co_await open(device, address);
  auto head = co_await device.allocate(head_bytes);  // registered already: no rpma_mr_reg()
  const std::uint64_t size = co_await read_size(log, head);
  if (text.size() > log_bytes - head_bytes - size) throw error(errc::out_of_range, "the log is full");
  auto source = co_await device.allocate(text.size());
  std::memcpy(source.data(), text.data(), text.size());
  const auto place = log.memory.slice(head_bytes + size, text.size());
  co_await log.server.write(source, place);                       // rpma_write()
  co_await log.server.flush(place, net::flush_type::persistent);  // rpma_flush(RPMA_FLUSH_TYPE_PERSISTENT)
  const std::uint64_t now = size + text.size();                   // what it refers to survives a power cut
  std::memcpy(head.data(), &now, sizeof now);
  const auto first = log.memory.slice(0, head_bytes);
  co_await log.server.write(head, first);  // rpma_atomic_write()
  co_await log.server.flush(first, net::flush_type::persistent);
  std::printf("%llu bytes are persistent\n", static_cast<unsigned long long>(now));
  co_await log.server.close();  // rpma_conn_disconnect()
}

task<> show(net::device& device, std::string address) {
  auto log = co_await open(device, address);
  auto head = co_await device.allocate(head_bytes);
  const auto size = static_cast<std::size_t>(co_await read_size(log, head));
  auto text = co_await device.allocate(size);
  if (size != 0) co_await log.server.read(text, log.memory.slice(head_bytes, size));
  std::printf("%.*s\n", static_cast<int>(size), reinterpret_cast<const char*>(text.data()));
  co_await log.server.close();
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string verb = argc > 1 ? argv[1] : "";
  auto device = net::device::open("auto");  // rpma_utils_get_ibv_context(), rpma_peer_new()
  executor ex;
  if (verb == "serve" && (argc == 3 || argc == 4)) {
    ex.run(serve(device, argv[2], argc == 4 ? argv[3] : "127.0.0.1:7471"));
  } else if (verb == "append" && argc == 4 && argv[3][0] != '\0') {
    ex.run(append(device, argv[2], argv[3]));
  } else if (verb == "show" && argc == 3) {
    ex.run(show(device, argv[2]));
  } else {
    std::fputs(
        "usage: from_rpma serve FILE [HOST:PORT]\n       from_rpma append HOST:PORT TEXT\n"
        "       from_rpma show HOST:PORT\n",
        stderr);
    return 2;
  }
  return 0;
} catch (const std::exception& failure) {
  std::fprintf(stderr, "from_rpma: %s\n", failure.what());
  return 1;
}
