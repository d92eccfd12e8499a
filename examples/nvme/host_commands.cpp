// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <vector>

#include <common/printable.hpp>
#include <nvme/host_commands.hpp>
#include <nvme/sizes.hpp>

namespace nvme {

using weft::task;

namespace {

using common::printable;

std::string_view name_of(subsystem_type what) {
  switch (what) {
    case subsystem_type::discovery:
      return "discovery";
    case subsystem_type::nvm:
      return "nvm";
    case subsystem_type::current_discovery:
      return "this discovery";
  }
  return "unknown";
}

std::string address_of(const discovery_entry& what) {
  const std::string host = printable(what.address);
  const std::string port = printable(what.service);
  return what.family == address_family::ipv6 ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

void print(const discovery_entry& what) {
  constexpr std::uint8_t rdma = 1;
  const std::string transport = what.transport == rdma ? "rdma" : fmt::format("transport {}", what.transport);
  fmt::print("{}  {}  {}  {}\n", what.subsystem.empty() ? "(a name that is no NQN)" : what.subsystem,
             name_of(what.type), transport, address_of(what));
}

void print(const host& of) {
  const controller_identity& identity = of.identity();
  const std::uint32_t version = of.version();
  fmt::print("{}: controller {}, NVMe {}.{}.{}\n", of.options().subsystem, of.controller(), version >> 16,
             version >> 8 & 0xff, version & 0xff);
  fmt::print("model '{}', serial number '{}', firmware '{}'\n", printable(identity.model), printable(identity.serial),
             printable(identity.firmware));
  const bool takes_data = (identity.sgls & sgl_support::in_capsule_offset) != 0;
  fmt::print("data in a command's capsule: {}; {}; write cache: {}\n",
             takes_data ? format_size(identity.command_capsule_bytes - command_bytes) : "none",
             identity.max_transfer_shift == 0 || identity.max_transfer_shift > 20
                 ? std::string("commands of any size")
                 : "commands of up to " + format_size(identify_bytes << identity.max_transfer_shift),
             (identity.write_cache & 1) != 0 ? "yes" : "no");
}

void print(const host_namespace& what) {
  const namespace_identity& identity = what.identity;
  fmt::print("namespace {}: {}, {} blocks of {} bytes", what.id, format_size(what.size()), identity.blocks,
             what.block_bytes());
  if (identity.metadata_bytes != 0) fmt::print(" and {} of metadata", identity.metadata_bytes);
  if (identity.is_read_only()) fmt::print(", read-only");
  if (identity.id != identifier{}) fmt::print(", NGUID {}", to_string(identity.id));
  fmt::print("\n");
}

}  // namespace

task<> list_subsystems(weft::net::device& device, host_options options) {
  options.subsystem = discovery_nqn;
  const auto list = [](host& from) -> task<> {
    const auto found = co_await from.discover();
    for (const discovery_entry& each : found) print(each);
    if (found.empty()) fmt::print("no subsystems\n");
  };
  co_await with_host(device, std::move(options), list);
}

task<> list_namespaces(weft::net::device& device, host_options options) {
  options.queues = 0;
  const auto list = [](host& from) -> task<> {
    print(from);
    for (const host_namespace& each : from.namespaces()) print(each);
    if (from.namespaces().empty()) fmt::print("no namespaces\n");
    co_return;
  };
  co_await with_host(device, std::move(options), list);
}

// ---- copying ----

namespace {

/// Copies parts side by side: as many at a time as there are lanes, or one to the standard output.
class copier {
 public:
  copier(host& peer, const copy_options& options) : peer_(peer), options_(options), of_(peer.find(options.name_space)) {
    part_bytes_ = peer.most_bytes(of_);
    if (part_bytes_ != 0) return;
    throw std::invalid_argument(
        fmt::format("namespace {} has blocks of {}, and commands move less", of_.id, format_size(of_.block_bytes())));
  }

  task<copy_result> run(std::uint64_t bytes, bool writing) {
    bytes_ = bytes;
    co_await open_file(writing);
    const weft::time_point start = weft::executor::current()->now();
    std::vector<task<>> all;
    for (std::size_t i = 0; i < peer_.queues(); ++i) {
      host_queue& through = peer_.queue(i);
      for (std::size_t k = 0; k < through.options().lanes && (file_ || all.empty()); ++k)
        all.push_back(note_failure(writing ? write_parts(through) : read_parts(through)));
    }
    co_await weft::when_all(std::move(all));
    if (failure_) std::rethrow_exception(failure_);
    if (writing) co_await peer_.flush(of_);
    const std::chrono::duration<double> time = weft::executor::current()->now() - start;
    co_return copy_result{.bytes = bytes, .seconds = time.count()};
  }

 private:
  task<> open_file(bool reading) {
    if (options_.file == "-") co_return;
    weft::file_options how;
    how.access = reading ? weft::file_access::read : weft::file_access::write;
    how.create = how.truncate = !reading;
    file_ = co_await weft::file::open(options_.file, how);
  }

  // Commands that are under way when another part fails end by themselves: stopping them would cost the queue.
  task<> note_failure(task<> parts) {
    try {
      co_await std::move(parts);
    } catch (...) {
      if (!failure_) failure_ = std::current_exception();
    }
  }
  /// The next part, of `size` bytes; false: there is none.
  [[nodiscard]] bool claim(std::uint64_t& at, std::size_t& size) {
    if (failure_ || next_ >= bytes_) return false;
    at = next_;
    size = static_cast<std::size_t>(std::min<std::uint64_t>(part_bytes_, bytes_ - at));
    next_ += size;
    return true;
  }

  task<> read_parts(host_queue& through) {
    auto on = co_await through.take_lane();
    std::size_t size = 0;
    for (std::uint64_t at = 0; claim(at, size);) {
      co_await peer_.read(through, on, of_, options_.offset + at, size);
      const auto data = on.bytes().first(size);
      if (file_) {
        co_await file_.write_at(at, data);
      } else {
        co_await write_output(data);
      }
    }
  }
  // A worker waits for the other end of a pipe, so that the host is heard of meanwhile.
  static task<> write_output(std::span<const std::byte> data) {
    const auto print = [data] {
      return std::fwrite(data.data(), 1, data.size(), stdout) == data.size() && std::fflush(stdout) == 0;
    };
    const bool done = co_await weft::offload(print);
    if (!done) throw std::runtime_error("the standard output cannot be written");
  }

  task<> write_parts(host_queue& through) {
    auto on = co_await through.take_lane();
    std::size_t size = 0;
    for (std::uint64_t at = 0; claim(at, size);) {
      const auto data = on.bytes().first(size);
      const std::size_t got = co_await file_.read_at(at, data);
      if (got < size) throw std::runtime_error(fmt::format("'{}' has become shorter", options_.file));
      const std::vector<std::byte> written(data.begin(), options_.verify ? data.end() : data.begin());
      co_await peer_.write(through, on, of_, options_.offset + at, size);
      if (!options_.verify) continue;
      co_await peer_.read(through, on, of_, options_.offset + at, size);
      compare(written, data, options_.offset + at);
    }
  }
  void compare(std::span<const std::byte> written, std::span<const std::byte> found, std::uint64_t at) const {
    const auto where = std::ranges::mismatch(written, found).in1;
    if (where == written.end()) return;
    const std::uint64_t block = (at + static_cast<std::uint64_t>(where - written.begin())) / of_.block_bytes();
    throw std::runtime_error(
        fmt::format("block {} of namespace {} reads as something else than was written", block, of_.id));
  }

  host& peer_;
  const copy_options& options_;
  const host_namespace& of_;
  weft::file file_;
  std::size_t part_bytes_ = 0;
  std::uint64_t bytes_ = 0;
  std::uint64_t next_ = 0;
  std::exception_ptr failure_;
};

void require_blocks(std::uint64_t what, const host_namespace& of, const std::string& name) {
  require(what % of.block_bytes() == 0,
          fmt::format("{} is {} bytes, and blocks of namespace {} have {}", name, what, of.id, of.block_bytes()));
}

// How much there is from the offset on.
std::uint64_t check_range(const copy_options& options, const host_namespace& of) {
  require(of.identity.metadata_bytes == 0, fmt::format("namespace {} has metadata of {} bytes with each block: not "
                                                       "supported",
                                                       of.id, of.identity.metadata_bytes));
  require_blocks(options.offset, of, "the offset");
  require(options.offset <= of.size(),
          fmt::format("the offset {} is beyond the end of namespace {}, which has {} bytes", options.offset, of.id,
                      of.size()));
  return of.size() - options.offset;
}

task<std::uint64_t> size_of(std::string path) {
  auto file = co_await weft::file::open(std::move(path), {.access = weft::file_access::read});
  co_return co_await file.size();
}

}  // namespace

task<copy_result> copy_out(host& from, copy_options options) {
  const host_namespace& of = from.find(options.name_space);
  const std::uint64_t rest = check_range(options, of);
  const std::uint64_t bytes = options.length.value_or(rest);
  require_blocks(bytes, of, "the length");
  require(bytes <= rest, fmt::format("{} bytes from {} on: namespace {} ends {} bytes before that", bytes,
                                     options.offset, of.id, bytes - rest));
  copier all(from, options);
  co_return co_await all.run(bytes, false);
}

task<copy_result> copy_in(host& to, copy_options options) {
  const host_namespace& of = to.find(options.name_space);
  require(!of.identity.is_read_only(), fmt::format("namespace {} is read-only", of.id));
  const std::uint64_t rest = check_range(options, of);
  const std::uint64_t bytes = co_await size_of(options.file);
  require_blocks(bytes, of, fmt::format("the size of '{}'", options.file));
  require(bytes <= rest, fmt::format("'{}' has {} bytes, and namespace {} has room for {} from {} on", options.file,
                                     bytes, of.id, rest, options.offset));
  copier all(to, options);
  co_return co_await all.run(bytes, true);
}

}  // namespace nvme
