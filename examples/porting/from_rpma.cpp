// SPDX-License-Identifier: Apache-2.0
// What librpma's examples do (read, write, flush to persistent), with the calls that each line replaces: a log in a
// file, which clients append to and read by themselves.
//
//   from_rpma serve FILE [HOST:PORT [DEVICE]]    the file is made if there is none
//   from_rpma append HOST:PORT TEXT [DEVICE]     the text survives a power cut of the server once this has ended
//   from_rpma show HOST:PORT [DEVICE]
//
// With an RDMA device that has FLUSH, as verbs:mlx5_0, the file is a DAX device: /dev/dax0.0. See docs/persistence.md.
//
// The file is a row of records: how many bytes of text follow (8 bytes), their checksum (8), the text. It ends where no
// record is: a write that a power cut has torn is none. One client appends at a time.
#include <weft/mr/system/mapping.hpp>
#include <weft/weft.hpp>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>

using namespace weft;

namespace {

constexpr std::size_t log_bytes = std::size_t{2} << 20;  // DAX devices are mapped in multiples of that

// RPMA_MR_USAGE_READ_SRC | RPMA_MR_USAGE_WRITE_DST | RPMA_MR_USAGE_FLUSH_TYPE_PERSISTENT
constexpr mr::usage of_log = mr::usage::read_src | mr::usage::write_dst | mr::usage::flush_persistent;

net::connection_options both_ends() {
  net::connection_options how;
  how.persistent_flush = true;
  return how;
}

// ---- records ----

struct head {
  std::uint64_t bytes = 0;
  std::uint64_t checksum = 0;
};

// FNV-1a, of the length and the text, so that a record of nothing but zeros is none.
std::uint64_t checksum_of(std::string_view text) {
  std::uint64_t sum = 0xcbf29ce484222325 ^ text.size();
  for (const char each : text) sum = (sum ^ static_cast<unsigned char>(each)) * 0x100000001b3;
  return sum;
}

std::string_view first_record(std::string_view log) {
  head first;
  if (log.size() < sizeof first) return {};
  std::memcpy(&first, log.data(), sizeof first);
  log.remove_prefix(sizeof first);
  if (first.bytes == 0 || first.bytes > log.size()) return {};
  const std::string_view text = log.substr(0, static_cast<std::size_t>(first.bytes));
  return checksum_of(text) == first.checksum ? text : std::string_view();
}

// The text of all records; `end` becomes where the next one goes.
std::string text_of(std::string_view log, std::size_t& end) {
  std::string all;
  end = 0;
  for (std::string_view next = first_record(log); !next.empty(); next = first_record(log.substr(end))) {
    all += next;
    end += sizeof(head) + next.size();
  }
  return all;
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
  mr::buffer copy;
};

task<far_log> read(net::device& device, std::string address) {
  auto server = co_await device.connect(address, both_ends());  // rpma_conn_req_new(), rpma_conn_req_connect()
  const auto descriptor = co_await server.recv_or_throw();
  const auto memory = mr::remote_region::unpack(descriptor.bytes());  // rpma_mr_remote_from_descriptor()
  if (memory.size() != log_bytes) throw error(errc::malformed, "the server has another kind of log");
  auto copy = co_await device.allocate(log_bytes);  // registered already: no rpma_mr_reg()
  co_await server.read(copy, memory);               // rpma_read(), rpma_cq_wait(), rpma_cq_get_wc()
  co_return far_log{std::move(server), memory, std::move(copy)};
}

std::string_view bytes_of(const mr::buffer& copy) { return {reinterpret_cast<const char*>(copy.data()), copy.size()}; }

task<> append(net::device& device, std::string address, std::string text) {
  auto log = co_await read(device, address);
  std::size_t end = 0;
  static_cast<void>(text_of(bytes_of(log.copy), end));
  const std::size_t bytes = sizeof(head) + text.size();
  if (bytes > log_bytes - end) throw error(errc::out_of_range, "the log is full");
  const head first{.bytes = text.size(), .checksum = checksum_of(text)};
  auto record = co_await device.allocate(bytes);
  std::memcpy(record.data(), &first, sizeof first);
  std::memcpy(record.data() + sizeof first, text.data(), text.size());
  const auto place = log.memory.slice(end, bytes);
  co_await log.server.write(record, place);                       // rpma_write()
  co_await log.server.flush(place, net::flush_type::persistent);  // rpma_flush(RPMA_FLUSH_TYPE_PERSISTENT)
  std::printf("%zu bytes are persistent\n", end + bytes);
  co_await log.server.close();  // rpma_conn_disconnect()
}

task<> show(net::device& device, std::string address) {
  auto log = co_await read(device, address);
  std::size_t end = 0;
  std::printf("%s\n", text_of(bytes_of(log.copy), end).c_str());
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
