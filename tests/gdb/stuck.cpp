// SPDX-License-Identifier: Apache-2.0
// A program whose tasks all wait, on two executors, and that then crashes: for weft-gdb.py to look at.
#include <weft/runtime/executor_group.hpp>
#include <weft/runtime/run_on.hpp>
#include <weft/runtime/scope.hpp>
#include <weft/runtime/sleep.hpp>
#include <weft/runtime/sync/channel.hpp>
#include <weft/runtime/sync/event.hpp>

#include <cstdlib>

#include "kit/standard.hpp"

namespace {

weft::task<> read_request(weft::event& never) { co_await never.wait(); }

weft::task<> serve(weft::event& never) { co_await read_request(never); }

weft::task<> tick() { co_await weft::sleep_for(std::chrono::hours(1)); }

weft::task<> work_elsewhere(weft::event& never) { co_await never.wait(); }

weft::task<> send_away(weft::executor& other, weft::task<> work) { co_await weft::run_on(other, std::move(work)); }

weft::task<std::uint64_t> count_sleeps(weft::executor& there) { co_return there.statistics().sleeps; }

// Once everybody waits: those here do so as soon as this one has, and those there when that executor sleeps again.
weft::task<> crash(weft::executor& other) {
  auto counting = count_sleeps(other);
  const std::uint64_t sleeps = co_await weft::run_on(other, std::move(counting));
  while (other.statistics().sleeps == sleeps) co_await weft::sleep_for(std::chrono::milliseconds(1));
  std::abort();
}

weft::task<> run_server(weft::executor& other) {
  weft::event never;
  weft::event never_elsewhere;
  const auto body = [&](weft::scope& children) -> weft::task<> {
    children.spawn(serve(never), "first");
    children.spawn(tick());
    children.spawn(send_away(other, work_elsewhere(never_elsewhere)), "sent away");
    children.spawn(crash(other));
    co_return;
  };
  co_await weft::with_scope(weft::on_failure::stop_siblings, body, "peers");
}

}  // namespace

int main() {
  const weft::executor_group_options how{.size = 1};
  weft::executor_group others(how);
  weft::executor home;
  home.run(run_server(others[0]));
}
