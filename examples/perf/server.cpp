// SPDX-License-Identifier: Apache-2.0
#include "server.hpp"

#include <weft/mr/system/mapping.hpp>
#include <weft/weft.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>
#include <string>

#include "receives.hpp"
#include "test.hpp"
#include <common/network.hpp>

namespace perf {
namespace {

using namespace std::chrono_literals;

constexpr auto patience_for_memory = 4s;  // less than a client's for the hello

/// One connection of a client: does what the order says, until the client closes.
class attendance {
 public:
  attendance(weft::net::device& device, weft::net::connection peer, const order& wanted)
      : device_(device), peer_(std::move(peer)), order_(wanted) {}

  weft::task<> welcome(const serve_options& how);
  weft::task<> attend();
  [[nodiscard]] std::string summary() const;

 private:
  weft::task<> answer(weft::net::message& question);
  weft::task<weft::net::exposure> open_memory(bool direct);

  weft::net::device& device_;
  weft::net::connection peer_;
  order order_;
  std::optional<weft::net::exposure> memory_;
  std::uint64_t since_mark_ = 0;
  std::uint64_t messages_ = 0;
};

weft::task<> attendance::welcome(const serve_options& how) {
  hello first;
  first.polling = how.polling;
  if (order_.access != weft::mr::usage::none) {
    memory_ = co_await open_memory(how.direct);
    first.memory = memory_->remote();
  }
  const auto packed = first.pack();
  co_await peer_.send_bytes(packed);
}

// Memory that a client maps is a file of its own, and goes with its exposure.
weft::task<weft::net::exposure> attendance::open_memory(bool direct) {
  if (!direct) {
    auto memory =
        co_await weft::with_timeout(patience_for_memory, device_.allocate(order_.size, weft::mr::budget::receive));
    std::ranges::fill(memory.bytes(), std::byte{0});  // this client must not see data of others
    co_return co_await peer_.expose(std::move(memory), order_.access);
  }
  constexpr std::size_t page = 4096;
  const bool changes = order_.access != weft::mr::usage::read_src;
  auto memory =
      weft::mr::mapping::in_memory_file((order_.size + page - 1) / page * page, false, -1, weft::system_calls::kernel(),
                                        changes ? weft::mr::file_access::read_write : weft::mr::file_access::read_only);
  auto region = co_await device_.domain().register_memory(std::move(memory),
                                                          {.usage = weft::mr::usage::bind_window, .direct = true});
  co_return co_await peer_.expose(region.slice(0, order_.size), order_.access);
}

weft::task<> attendance::attend() {
  while (auto message = co_await peer_.recv()) {
    if (order_.what == role::wait || message->size() != order_.size) {
      co_await answer(*message);
      continue;
    }
    ++since_mark_;
    if (order_.what == role::echo) co_await peer_.send(std::move(message->payload));
  }
}

weft::task<> attendance::answer(weft::net::message& question) {
  mark::check(question.bytes());
  messages_ += since_mark_;
  const auto packed = count{.messages = std::exchange(since_mark_, 0)}.pack();
  co_await peer_.send_bytes(packed);
}

std::string attendance::summary() const {
  if (order_.what == role::wait)
    return fmt::format("{} bytes of memory, open for {}", order_.size, weft::mr::to_string(order_.access));
  return fmt::format("{} {} messages of {} bytes", order_.what == role::echo ? "echoed" : "took", messages_,
                     order_.size);
}

weft::net::connection_options options_for(const order& wanted) {
  const bool messages = wanted.what != role::wait;
  weft::net::connection_options options;
  options.receive_size = messages ? std::max(wanted.size, control_bytes) : control_bytes;
  options.receive_depth = messages ? receives_at_depth(wanted.depth, options.receive_size) : 2;
  options.incoming_reads = reads_at_depth(wanted.depth);
  return options;
}

std::uint64_t memory_for(const order& wanted) {
  const auto options = options_for(wanted);
  const std::uint64_t receives = memory_for_receives(options.receive_depth, options.receive_size);
  return wanted.access != weft::mr::usage::none ? receives + wanted.size : receives;
}

class server {
 public:
  server(weft::net::device& device, const serve_options& options) : device_(device), options_(options) {}

  weft::task<> accept_all(weft::net::listener& listener);

 private:
  weft::task<> converse(weft::net::connection_request request);
  weft::task<order> take_order(weft::net::connection_request& request);

  weft::net::device& device_;
  serve_options options_;
};

weft::task<> server::accept_all(weft::net::listener& listener) {
  const auto spawn_each = [&](weft::scope& clients) -> weft::task<> {
    while (auto request = co_await listener.next()) {
      std::string peer(request->peer());
      clients.spawn(common::attend("weft-perf", std::move(peer), converse(std::move(*request))));
    }
  };
  co_await weft::with_scope(weft::on_failure::report, spawn_each);
}

// What cannot be done is refused: to the client in the few words that fit, to our own user in more.
weft::task<order> server::take_order(weft::net::connection_request& request) {
  std::string refusal;
  std::optional<weft::error> why;
  try {
    const order wanted = order::unpack(request.private_data());
    if (const bool late = wanted.checksum == checking::late; late != (options_.checksum == checking::late)) {
      refusal = late ? "needs serve --checksum late" : "needs run --checksum late";
      throw weft::error(weft::errc::invalid_argument,
                        late ? "asked for --checksum late, but this server runs without it"
                             : "asked without --checksum late, but this server runs with it");
    }
    const weft::mr::pool_statistics pool = device_.pool().statistics();
    const std::size_t limit = pool.receive.max_bytes;
    const std::uint64_t needed = memory_for(wanted);
    if (needed <= limit) co_return wanted;
    const bool is_locked = !pool.max_bytes_reason.empty();
    refusal = is_locked ? "raise my ulimit -l" : fmt::format("raise my --memory to {}", (2 * needed >> 20) + 1);
    why.emplace(weft::errc::no_memory, fmt::format("asked for {} bytes of memory, refused: {} are the limit{}{}",
                                                   needed, limit, is_locked ? ", as " : "", pool.max_bytes_reason));
  } catch (const weft::error& wrong) {
    if (refusal.empty()) refusal = "only for this weft-perf";
    why.emplace(wrong);
  }
  co_await request.reject(std::as_bytes(std::span(refusal)));
  throw *why;
}

weft::task<> server::converse(weft::net::connection_request request) {
  const std::string name(request.peer());
  const order wanted = co_await take_order(request);
  auto how = options_for(wanted);
  how.resume_within = options_.resume_within;
  auto peer = co_await request.accept(how);
  attendance one(device_, std::move(peer), wanted);
  co_await one.welcome(options_);
  co_await one.attend();
  if (!options_.quiet) fmt::print("{}: {}\n", name, one.summary());
}

}  // namespace

weft::task<> serve(weft::net::device& device, weft::net::listener& listener, serve_options options) {
  fmt::print("listening on {} over {}, {}, polling: {}\n", listener.address(), device.name(),
             weft::executor::current()->driver(), name_of(options.polling));
  std::fflush(stdout);
  server here(device, options);
  co_await here.accept_all(listener);
}

}  // namespace perf
