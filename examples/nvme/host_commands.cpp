// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <exception>
#include <memory>
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
             identity.volatile_write_cache ? "yes" : "no");
}

void print(const host_namespace& what) {
  const namespace_identity& identity = what.identity;
  fmt::print("namespace {}: {}, {} blocks of {} bytes", what.id, format_size(what.size()), identity.blocks,
             what.block_bytes());
  if (identity.metadata_bytes != 0) fmt::print(" and {} of metadata", identity.metadata_bytes);
  if (identity.write_protected) fmt::print(", read-only");
  const bool named = std::ranges::any_of(identity.id, [](std::byte each) { return each != std::byte{0}; });
  if (named) fmt::print(", NGUID {}", to_string(identity.id));
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

/// A file, or the standard input or output: then parts go in order, and the end may come at any time.
class stream {
 public:
  [[nodiscard]] static task<stream> open(std::string path, bool writing) {
    stream made;
    if (path == "-") co_return made;
    weft::file_options how;
    how.access = writing ? weft::file_access::write : weft::file_access::read;
    how.create = how.truncate = writing;
    made.file_ = co_await weft::file::open(path, how);
    co_return std::move(made);
  }

  [[nodiscard]] bool in_order() const noexcept { return !file_; }
  [[nodiscard]] task<std::optional<std::uint64_t>> size() {
    if (in_order()) co_return std::nullopt;
    co_return co_await file_.size();
  }

  /// Fills `into` as far as there is something.
  [[nodiscard]] task<std::size_t> read(std::uint64_t offset, std::span<std::byte> into) {
    if (!in_order()) return file_.read_at(offset, into);
    return read_input(into);
  }
  [[nodiscard]] task<std::size_t> write(std::uint64_t offset, std::span<const std::byte> from) {
    if (!in_order()) return file_.write_at(offset, from);
    return write_output(from);
  }

 private:
  // The number is of the worker's thread.
  static ssize_t or_errno(ssize_t result) noexcept { return result < 0 ? -errno : result; }
  // Workers wait for the other end of a pipe, so that the host is heard of meanwhile.
  static task<std::size_t> read_input(std::span<std::byte> into) {
    std::size_t done = 0;
    while (done < into.size()) {
      const auto rest = into.subspan(done);
      const auto once = [rest] { return or_errno(::read(STDIN_FILENO, rest.data(), rest.size())); };
      const ssize_t count = co_await weft::offload(once);
      if (count == -EINTR) continue;
      if (count < 0) throw std::runtime_error("the standard input cannot be read");
      if (count == 0) break;
      done += static_cast<std::size_t>(count);
    }
    co_return done;
  }
  static task<std::size_t> write_output(std::span<const std::byte> from) {
    std::size_t done = 0;
    while (done < from.size()) {
      const auto rest = from.subspan(done);
      const auto once = [rest] { return or_errno(::write(STDOUT_FILENO, rest.data(), rest.size())); };
      const ssize_t count = co_await weft::offload(once);
      if (count == -EINTR) continue;
      if (count <= 0) throw std::runtime_error("the standard output cannot be written");
      done += static_cast<std::size_t>(count);
    }
    co_return done;
  }

  weft::file file_;
};

/// Copies parts side by side: as many at a time as there are lanes.
class copier {
 public:
  copier(host& peer, const copy_options& options, stream& local)
      : peer_(peer), options_(options), local_(local), of_(peer.find(options.name_space)) {
    for (std::size_t i = 0; i < peer.queues(); ++i) workers_ += peer.queue(i).options().lanes;
    turns_ = std::make_unique<weft::event[]>(workers_);
    turns_[0].set();
  }

  [[nodiscard]] const host_namespace& of() const noexcept { return of_; }

  /// `most`: copy no more; what comes in may end before.
  task<copy_result> run(std::uint64_t most, bool writing) {
    part_bytes_ = peer_.most_bytes(of_);
    if (part_bytes_ == 0) {
      throw std::invalid_argument(
          fmt::format("namespace {} has blocks of {}, and commands move less", of_.id, format_size(of_.block_bytes())));
    }
    most_ = most;
    const weft::time_point start = weft::executor::current()->now();
    std::vector<task<>> all;
    for (std::size_t i = 0; i < workers_; ++i) {
      host_queue& through = peer_.queue(i % peer_.queues());
      all.push_back(note_failure(writing ? write_parts(through) : read_parts(through)));
    }
    co_await weft::when_all(std::move(all));
    if (failure_) std::rethrow_exception(failure_);
    if (writing) co_await peer_.flush(of_);
    const std::chrono::duration<double> time = weft::executor::current()->now() - start;
    co_return copy_result{.bytes = done_, .seconds = time.count()};
  }

 private:
  // Commands that are under way when another part fails end by themselves: stopping them would cost the queue.
  task<> note_failure(task<> parts) {
    try {
      co_await std::move(parts);
    } catch (...) {
      if (!failure_) failure_ = std::current_exception();
      ended_ = true;
      for (std::size_t i = 0; i < workers_; ++i) turns_[i].set();
    }
  }
  [[nodiscard]] bool claim(std::uint64_t& part) {
    if (ended_ || next_ * part_bytes_ >= most_) return false;
    part = next_++;
    return true;
  }
  [[nodiscard]] std::size_t bytes_of(std::uint64_t part) const {
    return static_cast<std::size_t>(std::min<std::uint64_t>(part_bytes_, most_ - part * part_bytes_));
  }
  // Parts are claimed in order, and no more than there are workers are under way.
  [[nodiscard]] task<> take_turn(std::uint64_t part) {
    weft::event& mine = turns_[part % workers_];
    co_await mine.wait();
    mine.reset();
  }
  void pass_turn(std::uint64_t part) { turns_[(part + 1) % workers_].set(); }

  task<> read_parts(host_queue& through) {
    auto on = co_await through.take_lane();
    for (std::uint64_t part = 0; claim(part);) {
      const std::size_t bytes = bytes_of(part);
      const std::uint64_t at = part * part_bytes_;
      co_await peer_.read(through, on, of_, options_.offset + at, bytes);
      if (local_.in_order()) co_await take_turn(part);
      if (failure_) break;
      co_await local_.write(at, on.bytes().first(bytes));
      if (local_.in_order()) pass_turn(part);
      done_ += bytes;
    }
  }

  task<std::size_t> fetch(std::uint64_t part, std::span<std::byte> into) {
    if (!local_.in_order()) {
      const std::size_t count = co_await local_.read(part * part_bytes_, into);
      if (count < into.size()) throw std::runtime_error(fmt::format("'{}' has become shorter", options_.file));
      co_return count;
    }
    co_await take_turn(part);
    std::size_t count = 0;
    if (!ended_) count = co_await local_.read(0, into);
    if (count < into.size()) ended_ = true;
    pass_turn(part);
    if (count % of_.block_bytes() != 0) {
      throw std::runtime_error(
          fmt::format("the standard input ends in the middle of a block of {} bytes; what came "
                      "before that block's part may have been written",
                      of_.block_bytes()));
    }
    co_return count;
  }

  task<> write_parts(host_queue& through) {
    auto on = co_await through.take_lane();
    for (std::uint64_t part = 0; claim(part);) {
      const std::size_t bytes = co_await fetch(part, on.bytes().first(bytes_of(part)));
      if (bytes == 0) break;
      const std::uint64_t at = options_.offset + part * part_bytes_;
      const auto data = on.bytes().first(bytes);
      const std::vector<std::byte> written(data.begin(), options_.verify ? data.end() : data.begin());
      co_await peer_.write(through, on, of_, at, bytes);
      if (options_.verify) {
        co_await peer_.read(through, on, of_, at, bytes);
        compare(written, data, at);
      }
      done_ += bytes;
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
  stream& local_;
  const host_namespace& of_;
  std::size_t workers_ = 0;
  std::unique_ptr<weft::event[]> turns_;
  std::size_t part_bytes_ = 0;
  std::uint64_t most_ = 0;
  std::uint64_t next_ = 0;
  std::uint64_t done_ = 0;
  bool ended_ = false;  // no further part is begun
  std::exception_ptr failure_;
};

void check_multiple(std::uint64_t what, const host_namespace& of, const std::string& name) {
  if (what % of.block_bytes() == 0) return;
  throw std::invalid_argument(
      fmt::format("{} is {} bytes, and blocks of namespace {} have {}", name, what, of.id, of.block_bytes()));
}

// How much there is from the offset on.
std::uint64_t check_range(const copy_options& options, const host_namespace& of) {
  if (of.identity.metadata_bytes != 0) {
    throw std::invalid_argument(fmt::format("namespace {} has metadata of {} bytes with each block: not supported",
                                            of.id, of.identity.metadata_bytes));
  }
  check_multiple(options.offset, of, "the offset");
  if (options.offset > of.size()) {
    throw std::invalid_argument(fmt::format("the offset {} is beyond the end of namespace {}, which has {} bytes",
                                            options.offset, of.id, of.size()));
  }
  const std::uint64_t rest = of.size() - options.offset;
  if (!options.length) return rest;
  check_multiple(*options.length, of, "the length");
  if (*options.length > rest) {
    throw std::invalid_argument(fmt::format("{} bytes from {} on: namespace {} ends {} bytes before that",
                                            *options.length, options.offset, of.id, *options.length - rest));
  }
  return *options.length;
}

}  // namespace

task<copy_result> copy_out(host& from, copy_options options) {
  const std::uint64_t bytes = check_range(options, from.find(options.name_space));
  options.verify = false;
  auto local = co_await stream::open(options.file, true);
  copier all(from, options, local);
  co_return co_await all.run(bytes, false);
}

task<copy_result> copy_in(host& to, copy_options options) {
  const host_namespace& of = to.find(options.name_space);
  if (of.identity.write_protected) throw std::invalid_argument(fmt::format("namespace {} is read-only", of.id));
  std::uint64_t bytes = check_range(options, of);
  auto local = co_await stream::open(options.file, false);
  const auto size = co_await local.size();
  if (size && !options.length) {
    check_multiple(*size, of, fmt::format("the size of '{}'", options.file));
    if (*size > bytes) {
      throw std::invalid_argument(fmt::format("'{}' has {} bytes, and namespace {} has room for {} from {} on",
                                              options.file, *size, of.id, bytes, options.offset));
    }
    bytes = *size;
  } else if (size && *size < bytes) {
    throw std::invalid_argument(fmt::format("'{}' has {} bytes, and not {}", options.file, *size, bytes));
  }
  copier all(to, options, local);
  const auto done = co_await all.run(bytes, true);
  if (size) co_return done;
  if (options.length && done.bytes < bytes) {
    throw std::runtime_error(fmt::format("the standard input has ended after {} of {} bytes", done.bytes, bytes));
  }
  std::array<std::byte, 1> surplus{};
  std::size_t more = 0;
  if (!options.length && done.bytes == bytes) more = co_await local.read(0, surplus);
  if (more != 0) {
    throw std::runtime_error(
        fmt::format("there is more on the standard input than the {} bytes that namespace {} has "
                    "room for; these have been written",
                    bytes, of.id));
  }
  co_return done;
}

}  // namespace nvme
