// SPDX-License-Identifier: Apache-2.0
// What librpma's examples do (read, write, flush to persistent, atomic write), with the calls that each line replaces:
// a log in a file, which clients append to and read by themselves.
//
//   from_rpma serve FILE [HOST:PORT [DEVICE]]    the file is made if there is none
//   from_rpma append HOST:PORT TEXT [DEVICE]     the text survives a power cut of the server once this has ended
//   from_rpma show HOST:PORT [DEVICE]
//
// With an RDMA device that has FLUSH, as verbs:mlx5_0, the file is a DAX device: /dev/dax0.0. See docs/persistence.md.
//
// The file begins with a word of eight bytes, which says how much text follows. A client moves that word when its text
// is persistent: a power cut leaves the old log or the new one, over shared memory and iWARP in user space. Over an
// RDMA device the word is an ordinary write, of which no specification says that it is whole. One client appends at a
// time.
#include <weft/mr/system/mapping.hpp>
#include <weft/weft.hpp>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>

using namespace weft;

namespace {

constexpr std::size_t log_bytes = std::size_t{2} << 20;  // DAX devices are mapped in multiples of that

constexpr std::size_t text_begins = sizeof(std::uint64_t);

// RPMA_MR_USAGE_READ_SRC | RPMA_MR_USAGE_WRITE_DST | RPMA_MR_USAGE_FLUSH_TYPE_PERSISTENT. Words that are written to a
// file are whole where it is open to atomic operations.
mr::usage of_log(net::device& device) {
  const mr::usage words = device.domain().capabilities().usages & mr::usage::atomic_dst;
  return mr::usage::read_src | mr::usage::write_dst | mr::usage::flush_persistent | words;
}

net::connection_options both_ends() {
  net::connection_options how;
  how.persistent_flush = true;
  return how;
}

// ---- the server ----

// open(2) and mmap(2), or pmem_map_file(). The file and its name are on the disk before anybody is told of it.
mr::mapping map(const std::string& path) {
  const auto check = [&](bool done) {
    if (!done) throw system_error(errno, "open " + path);
  };
  const auto open_file = [&](const std::string& name, int flags) {
    const int file = ::open(name.c_str(), flags | O_CLOEXEC, 0600);
    check(file >= 0);
    return file;
  };
  const int file = open_file(path, O_RDWR | O_CREAT);
  struct stat found {};
  check(::fstat(file, &found) == 0);
  if (!S_ISCHR(found.st_mode)) {  // a DAX device is there, and as large as it is
    if (found.st_size < static_cast<off_t>(log_bytes)) check(::ftruncate(file, log_bytes) == 0);
    check(::fsync(file) == 0);
    const std::filesystem::path parent = std::filesystem::absolute(path).parent_path();
    const int directory = open_file(parent, O_RDONLY | O_DIRECTORY);
    check(::fsync(directory) == 0);
    ::close(directory);
  }
  auto mapped = mr::mapping::of_file({.descriptor = file}, log_bytes, system_calls::kernel());
  ::close(file);
  return mapped;
}

task<> serve_one(net::connection peer, const mr::region& log) {
  co_await peer.send_bytes(log.remote().pack());  // rpma_mr_get_descriptor()
  static_cast<void>(co_await peer.recv());        // rpma_conn_next_event(): RPMA_CONN_CLOSED
}

task<> serve(net::device& device, std::string path, std::string address) {
  auto log = co_await device.domain().register_memory(map(path), {.usage = of_log(device)});  // rpma_mr_reg()
  auto listener = co_await device.listen(address);                                            // rpma_ep_listen()
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
  mr::buffer copy;
  std::string_view text;  // in the copy
};

task<far_log> read(net::device& device, std::string address) {
  auto server = co_await device.connect(address, both_ends());  // rpma_conn_req_new(), rpma_conn_req_connect()
  const auto descriptor = co_await server.recv_or_throw();
  const auto memory = mr::remote_region::unpack(descriptor.bytes());  // rpma_mr_remote_from_descriptor()
  if (memory.size() != log_bytes) throw error(errc::malformed, "the server has another kind of log");
  auto copy = co_await device.allocate(log_bytes);  // registered already: no rpma_mr_reg()
  co_await server.read(copy, memory);               // rpma_read(), rpma_cq_wait(), rpma_cq_get_wc()
  std::uint64_t length = 0;
  std::memcpy(&length, copy.data(), sizeof length);
  if (length > log_bytes - text_begins) throw error(errc::malformed, "the server's file is no log");
  const std::string_view text(reinterpret_cast<const char*>(copy.data()) + text_begins, length);
  co_return far_log{std::move(server), memory, std::move(copy), text};
}

task<> append(net::device& device, std::string address, std::string text) {
  auto log = co_await read(device, address);
  const std::uint64_t length = log.text.size() + text.size();
  if (length > log_bytes - text_begins) throw error(errc::out_of_range, "the log is full");
  const auto place = log.memory.slice(text_begins + log.text.size(), text.size());
  auto source = co_await device.allocate(text.size());
  std::memcpy(source.data(), text.data(), text.size());
  co_await log.server.write(source, place);                       // rpma_write()
  co_await log.server.flush(place, net::flush_type::persistent);  // rpma_flush(RPMA_FLUSH_TYPE_PERSISTENT)

  const auto word_there = log.memory.slice(0, text_begins);
  auto word = co_await device.allocate(text_begins);
  std::memcpy(word.data(), &length, sizeof length);
  co_await log.server.write(word, word_there);                         // rpma_atomic_write()
  co_await log.server.flush(word_there, net::flush_type::persistent);  // rpma_flush()
  std::printf("%zu bytes are persistent\n", static_cast<std::size_t>(length));
  co_await log.server.close();  // rpma_conn_disconnect()
}

task<> show(net::device& device, std::string address) {
  auto log = co_await read(device, address);
  std::printf("%s\n", std::string(log.text).c_str());
  co_await log.server.close();
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string verb = argc > 1 ? argv[1] : "";
  const bool names_device = argc == (verb == "show" ? 4 : 5);
  const int words = names_device ? argc - 1 : argc;
  auto device = net::device::open(names_device ? argv[words] : "shm,iwarp");  // rpma_peer_new()
  executor ex;
  if (verb == "serve" && (words == 3 || words == 4)) {
    ex.run(serve(device, argv[2], words == 4 ? argv[3] : "127.0.0.1:7471"));
  } else if (verb == "append" && words == 4 && argv[3][0] != '\0') {
    ex.run(append(device, argv[2], argv[3]));
  } else if (verb == "show" && words == 3) {
    ex.run(show(device, argv[2]));
  } else {
    std::fputs(
        "usage: from_rpma serve FILE [HOST:PORT [DEVICE]]\n       from_rpma append HOST:PORT TEXT [DEVICE]\n"
        "       from_rpma show HOST:PORT [DEVICE]\n",
        stderr);
    return 2;
  }
  return 0;
} catch (const std::exception& failure) {
  std::fprintf(stderr, "from_rpma: %s\n", failure.what());
  return 1;
}
