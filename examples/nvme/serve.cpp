// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/line_limit.hpp>

#include <fmt/core.h>

#include <signal.h>

#include <cstdio>
#include <memory>
#include <stdexcept>
#include <utility>

#include <common/network.hpp>
#include <nvme/disks.hpp>
#include <nvme/serve.hpp>
#include <nvme/subsystem.hpp>
#include <nvme/target.hpp>

namespace nvme {

using weft::task;

namespace {

void print_line(std::string_view line) {
  static weft::line_limit limit;
  common::write_line(stdout, limit, "nvme", line);
}

// The first signal lets what is under way end, the second one ends it.
task<> heed_signals(weft::signal_set& signals, target& serving, weft::net::listener& listener) {
  bool draining = false;
  for (;;) {
    const int which = co_await signals.next();
    if (which == SIGHUP) {
      co_await serving.look_again();
      continue;
    }
    listener.close();
    draining ? serving.abort() : serving.drain();
    draining = true;
  }
}

task<> add_disks(subsystem& to, const serve_options& options) {
  for (const std::string& path : options.files) {
    auto opened = co_await file_disk::open(path, options.read_only);
    to.add(std::move(opened), options.block_bytes);
  }
  for (const std::uint64_t bytes : options.memory) {
    if (bytes == 0) throw std::invalid_argument("a namespace of no bytes");
    to.add(std::make_unique<memory_disk>(bytes), options.block_bytes);
  }
  if (to.all().empty()) throw std::invalid_argument("nothing to serve: name a file, or --memory SIZE");
}

void introduce(const subsystem& served, const weft::net::listener& listener, const weft::net::device& device) {
  fmt::print("serving {} on {} over {}, {}\n", served.nqn(), listener.address(), device.name(),
             weft::executor::current()->driver());
  for (const name_space& each : served.all()) {
    fmt::print("namespace {}: {}, {} blocks of {} bytes{}\n", each.id(), each.disk().describe(), each.blocks(),
               1U << each.block_shift(), each.disk().read_only() ? ", read-only" : "");
  }
  std::fflush(stdout);
}

void sum_up(const counters& done) {
  fmt::print(
      "{} reads of {} bytes, {} writes of {} bytes ({} in their capsules), {} other commands; {} failed; {} keys "
      "revoked\n",
      done.reads, done.bytes_read, done.writes, done.bytes_written, done.in_capsule, done.others, done.failed,
      done.invalidated);
}

}  // namespace

task<> serve(weft::net::device& device, const serve_options& options, weft::signal_set& signals) {
  subsystem served(options.nqn);
  for (const std::string& each : options.allowed_hosts) served.allow(each);
  co_await add_disks(served, options);
  target_options how;
  how.most = options.most;
  how.advertised = options.advertised;
  how.log = print_line;
  target serving(device, served, std::move(how));
  auto listener = co_await device.listen(options.listen_address);
  introduce(served, listener, device);
  const auto both = [&](weft::scope& tasks) -> task<> {
    tasks.spawn(heed_signals(signals, serving, listener));
    co_await serving.serve(listener);
    tasks.request_stop();
  };
  co_await weft::with_scope(weft::on_failure::stop_siblings, both);
  for (const name_space& each : served.all()) {
    if (!each.disk().read_only()) co_await each.disk().flush();
  }
  sum_up(serving.counters());
}

}  // namespace nvme
