// SPDX-License-Identifier: Apache-2.0
// What fragments of code in the documentation find declared: check.py compiles them here, and never links them. A
// fragment's own declarations hide these.
#pragma once

#include <weft/mr/porting/enable.hpp>
#include <weft/mr/porting/write_counter.hpp>
#include <weft/weft.hpp>

#include <syslog.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace surroundings_plain {

using namespace weft;
using namespace std::chrono_literals;

extern net::device device;
extern net::listener listener;
extern net::connection peer, other;
extern mr::pool& pool;
extern mr::region region;
extern executor ex, home;
extern executor_group group;
extern scope children, peers, tasks;
extern event shut_down;
extern channel<int> jobs;

extern net::message message;
extern mr::buffer buffer, mine, pages, payload, room, source;
extern mr::slice head, body;
extern net::block_list layer;
extern mr::remote_region target, counter;

extern std::span<std::byte> memory;
extern std::span<const std::byte> entry;
extern std::uint64_t flag;
extern std::size_t bytes;
extern std::vector<std::string> words;
extern std::vector<std::exception_ptr> failed;

struct some_server {
  task<> serve(int);
};
struct some_replicas {
  void lost(const std::exception_ptr&);
};
extern some_replicas replicas;

struct accepts_all {
  task<> operator()(scope&) const;
};
extern accepts_all accept_all;

task<> serve(net::connection);
task<> serve(net::device&);
task<> serve(executor_group&);
task<> serve(int);
task<> main_task();
task<int> compute();
task<int> count(std::vector<std::string>&);
task<int> count(int&);
task<int> ask(net::connection&);
task<> ask(net::connection&, const mr::remote_region&);
task<> tell(net::connection&);
template <class... Values>
void use(Values&&...);
extern const time_point deadline;

}  // namespace surroundings_plain
