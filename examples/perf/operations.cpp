// SPDX-License-Identifier: Apache-2.0
#include "operations.hpp"

#include <weft/runtime/error.hpp>

#include <algorithm>
#include <array>
#include <chrono>

namespace perf {
namespace {

using clock = std::chrono::steady_clock;

weft::net::transfer send(lane& on, weft::mr::buffer& memory) { return on.peer.send(memory); }
weft::net::prepared_transfer write(lane& on, weft::mr::buffer& memory) { return on.target->write(memory); }
weft::net::prepared_transfer read(lane& on, weft::mr::buffer& memory) { return on.target->read(memory); }
weft::net::transfer flush(lane& on, weft::mr::buffer&) { return on.peer.flush(on.target->remote()); }
weft::net::fetch_operation fetch_add(lane& on, weft::mr::buffer&) { return on.peer.fetch_add(on.target->remote(), 1); }
weft::net::fetch_operation compare_swap(lane& on, weft::mr::buffer&) {
  return on.peer.compare_swap(on.target->remote(), 0, 0);
}

/// One after another, each timed until it is complete.
template <auto start>
weft::task<> repeat(lane& on, weft::mr::buffer& memory, meter& counts) {
  auto begin = clock::now();
  while (counts.claim(begin)) {
    static_cast<void>(co_await start(on, memory));
    const auto end = clock::now();
    counts.record(begin, end);
    begin = end;
  }
}

weft::task<> send_and_hear(lane& on, weft::mr::buffer& memory, meter& counts) {
  auto begin = clock::now();
  while (counts.claim(begin)) {
    co_await on.peer.send(memory);
    const auto echo = co_await on.peer.recv_or_throw();
    if (echo.size() != memory.size()) throw weft::error(weft::errc::protocol_error, "the echo has another size");
    const auto end = clock::now();
    counts.record(begin, end);
    begin = end;
  }
}

weft::task<> write_and_flush(lane& on, weft::mr::buffer& memory, meter& counts) {
  const auto last_byte = on.target->remote().slice(on.target->remote().size() - 1, 1);
  auto begin = clock::now();
  while (counts.claim(begin)) {
    co_await on.target->write(memory);
    co_await on.peer.flush(last_byte);
    const auto end = clock::now();
    counts.record(begin, end);
    begin = end;
  }
}

constexpr auto readable = weft::mr::usage::read_src;
constexpr auto writable = weft::mr::usage::write_dst;

constexpr std::array operations{
    operation{.name = "send",
              .latency = {role::echo, 2, "half a round trip", send_and_hear},
              .bandwidth = {role::take, 1, "from posting to completion", repeat<send>}},
    operation{.name = "write",
              .access = writable | readable,
              .latency = {role::wait, 1, "until placed: write and flush", write_and_flush},
              .bandwidth = {role::wait, 1, "from posting to completion", repeat<write>}},
    operation{.name = "read",
              .access = readable,
              .fills_memory = true,
              .latency = {role::wait, 1, "a round trip", repeat<read>},
              .bandwidth = {role::wait, 1, "from posting to completion", repeat<read>}},
    operation{.name = "flush",
              .access = readable,
              .fixed_size = 1,
              .latency = {role::wait, 1, "a round trip", repeat<flush>},
              .bandwidth = {role::wait, 1, "from posting to completion", repeat<flush>}},
    operation{.name = "fetch_add",
              .access = weft::mr::usage::atomic_dst,
              .fixed_size = 8,
              .latency = {role::wait, 1, "a round trip", repeat<fetch_add>},
              .bandwidth = {role::wait, 1, "from posting to completion", repeat<fetch_add>}},
    operation{.name = "compare_swap",
              .access = weft::mr::usage::atomic_dst,
              .fixed_size = 8,
              .latency = {role::wait, 1, "a round trip", repeat<compare_swap>},
              .bandwidth = {role::wait, 1, "from posting to completion", repeat<compare_swap>}},
};

}  // namespace

std::span<const operation> all_operations() noexcept { return operations; }

const operation* find_operation(std::string_view name) noexcept {
  const auto* const found = std::ranges::find(operations, name, &operation::name);
  return found != operations.end() ? found : nullptr;
}

}  // namespace perf
