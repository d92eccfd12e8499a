// SPDX-License-Identifier: Apache-2.0
#include "peers.hpp"

#include <fstream>
#include <future>
#include <ostream>
#include <set>

#include "kit/loopback.hpp"

namespace weft::test {
namespace {

std::vector<transport_kind>& chosen() {
  static std::vector<transport_kind> kinds;
  return kinds;
}

// iWARP in user space: weft's own code at both ends of a TCP connection.
void set_iwarp(transport_kind& kind) {
  kind.over_tcp = kind.writes_precede_refusals = kind.tells_of_revoked_keys = true;
  kind.revokes_at_once = kind.keeps_length_of_private_data = true;
  kind.sets_up_quickly = kind.answers_in_turns = true;
  kind.pins_pages = false;
  kind.deepest_queue = net::max_depth;
}

void set_shm(transport_kind& kind) {
  kind.over_a_network = kind.pins_pages = false;
  kind.writes_precede_refusals = kind.tells_of_revoked_keys = true;
  kind.revokes_at_once = kind.keeps_length_of_private_data = true;
  kind.sets_up_quickly = kind.answers_in_turns = true;
}

// A provider of libfabric's, if the device is one: none looks at who uses a key.
void set_fabric(transport_kind& kind) {
  if (!kind.device.starts_with("fabric")) return;
  kind.keys_can_be_passed_on = kind.keeps_length_of_private_data = true;
  kind.writing_allows_atomics = true;
}

std::string& cuda_library() {
  static std::string chosen_library;
  return chosen_library;
}

}  // namespace

void choose_cuda(std::string library) { cuda_library() = std::move(library); }
const std::string& chosen_cuda() { return cuda_library(); }

void choose_transport(std::string_view device, std::string_view address) {
  const bool is_v6 = address.find(':') != std::string_view::npos && !address.starts_with('[');
  const std::string any_port = (is_v6 ? "[" + std::string(address) + "]" : std::string(address)) + ":0";
  net::device opened = net::device::open(device);
  // A device has a checksum in any case.
  const bool is_iwarp = opened.name() == "iwarp";
  const auto checksums = is_iwarp ? std::vector<bool>{false, true} : std::vector<bool>{false};
  for (const bool checksum : checksums) {
    chosen().push_back({.name = checksum ? "chosen_device_with_checksum" : "chosen_device",
                        .device = std::string(device),
                        .any_address = any_port,
                        .iwarp = {.checksum = checksum},
                        .pins_pages = opened.domain().pins()});
    if (is_iwarp) set_iwarp(chosen().back());
    if (opened.name() == "shm") set_shm(chosen().back());
    set_fabric(chosen().back());
  }
}

void choose(transport_kind kind) { chosen().push_back(std::move(kind)); }

net::device open_device_of(const transport_kind& kind, const net::device_options& options) {
  net::device_options all = options;
  all.iwarp = kind.iwarp;
  if (kind.make == nullptr) return net::device::open(kind.device, all);
  if (kind.place != nullptr) all.pool.system_calls = kind.place().system_calls;
  return net::device::open(kind.make(), all);
}

std::vector<transport_kind> every_transport() {
  if (!chosen().empty()) return chosen();
  std::vector<transport_kind> all = {
      {.name = "iwarp", .device = "iwarp", .any_address = own_loopback() + ":0", .iwarp = {.checksum = false}},
      {.name = "iwarp_with_crc", .device = "iwarp", .any_address = own_loopback() + ":0", .iwarp = {.checksum = true}},
      {.name = "iwarp_with_crc_in_place",
       .device = "iwarp",
       .any_address = own_loopback() + ":0",
       .iwarp = {.checksum = true, .place_unchecked = true}},
  };
  for (transport_kind& each : all) set_iwarp(each);
  all.push_back({.name = "shm", .device = "shm", .any_address = own_loopback() + ":0"});
  set_shm(all.back());
  return all;
}

void PrintTo(const transport_kind& kind, std::ostream* out) { *out << kind.name; }

std::string name_of(const testing::TestParamInfo<transport_kind>& info) { return info.param.name; }

task<net::connection> accept_one(net::listener& from, net::connection_options options) {
  auto request = co_await from.next();
  if (!request) throw error(errc::closed, "the listener");
  co_return co_await request->accept(options);
}

namespace {

executor_options at_home(const transport_kind& kind, const executor_options& chosen = {}) {
  if (kind.place == nullptr) return chosen;
  executor_options there = kind.place();
  there.ready_order_seed = chosen.ready_order_seed;
  return there;
}

// What libraries keep open for good, librdmacm for one each device that it has seen, is open from here on.
void warm_up(const transport_kind& kind) {
  static std::set<std::string> done;
  if (!done.insert(kind.device).second) return;
  net::device device = open_device_of(kind);
  executor home(at_home(kind));
  const auto connect = [&]() -> task<> {
    net::listener listener = co_await device.listen(kind.any_address);
    static_cast<void>(co_await when_all(device.connect(std::string(listener.address())), accept_one(listener, {})));
  };
  home.run(connect());
}

}  // namespace

peers::peers() {
  warm_up(GetParam());
  descriptors_before_ = open_descriptors();
  device_.emplace(open_device_of(GetParam()));
  home_.emplace(at_home(GetParam()));
}

peers::~peers() = default;

namespace {

// What the kernel tells about a device; empty if it is none of the kernel's.
std::filesystem::path attributes_of(const net::device& device) {
  const std::string_view name = device.name();
  const std::string_view prefix = "verbs:";
  if (!name.starts_with(prefix)) return {};
  return std::filesystem::path("/sys/class/infiniband") / name.substr(prefix.size());
}

}  // namespace

// No other device stands on a network interface that it names so.
bool peers::is_soft_roce() const { return std::filesystem::exists(attributes_of(*device_) / "parent"); }

bool peers::is_rnic() const {
  std::ifstream type(attributes_of(*device_) / "node_type");
  int number = 0;
  return type >> number && number == 4;
}

task<> peers::until_lent_buffers_return(std::size_t in_use) {
  const auto now = [&] { return pool().statistics().send.in_use_bytes; };
  while (!GetParam().revokes_at_once && now() > in_use) co_await yield();
  EXPECT_EQ(now(), in_use);
}

task<net::exposure> peers::expose_zeros(net::connection& at, std::size_t bytes, mr::usage uses,
                                        net::expose_options how) {
  auto memory = co_await zeroed(pool(), bytes);
  co_return co_await at.expose(std::move(memory), uses, how);
}

task<> peers::write_and_flush(net::connection& by, mr::buffer& what, mr::remote_slice where) {
  co_await by.write(what, where);
  co_await by.flush(where);
}

task<> peers::expect_delivery(net::connection& from, net::connection& to) {
  co_await from.send(co_await filled(pool(), 10, 1));
  const auto message = co_await to.recv_or_throw();
  EXPECT_TRUE(message.size() == 10 && holds(message.bytes(), 1));
}

task<mr::region> peers::register_zeros(std::size_t bytes, mr::registration_options how) {
  co_return co_await device_->domain().register_memory(std::vector<std::byte>(bytes), how);
}

task<std::optional<net::shared_receives>> peers::share_receives(net::shared_receive_options how) {
  try {
    co_return co_await device_->share_receives(how);
  } catch (const error& why) {
    if (why.code() != errc::not_supported) throw;
  }
  co_return std::nullopt;
}

bool peers::has_windows() { return mr::includes(device_->domain().capabilities().usages, mr::usage::bind_window); }

bool peers::opens_regions() {
  return mr::includes(device_->domain().capabilities().usages, mr::usage::read_src | mr::usage::write_dst);
}

void peers::open_device(const mr::pool_options& options) {
  device_.reset();
  device_.emplace(open_device_of(GetParam(), {.pool = options}));
}

void peers::open_executor(const executor_options& options) {
  home_.reset();
  home_.emplace(at_home(GetParam(), options));
}

task<> peers::expect_late(net::connection& client, net::connection& server) {
  if (GetParam().forgives_late_accesses) {
    co_await expect_delivery(client, server);
    co_return co_await expect_delivery(server, client);
  }
  EXPECT_TRUE(failed_with(co_await failure_of(server.recv()), late_access()));
  EXPECT_TRUE(failed_with(co_await failure_of(client.recv()), errc::remote_access));
}

// A busy machine may take longer to close than users have to wait.
net::connection_options peers::options(net::connection_options chosen) {
  if (chosen.close_timeout == net::connection_options().close_timeout) chosen.close_timeout = forever;
  return chosen;
}

task<connected> peers::meet(net::listener& at, net::connection_options client, net::connection_options server) {
  auto both = co_await when_all(device().connect(std::string(at.address()), client), accept_one(at, server));
  co_return connected(std::move(std::get<0>(both)), std::move(std::get<1>(both)));
}

task<connected> peers::connect_pair(net::connection_options client, net::connection_options server) {
  net::listener listener = co_await device().listen(GetParam().any_address);
  connected made = co_await meet(listener, client, server);
  if (GetParam().joins_later) made.listener = std::move(listener);
  co_return made;
}

void peers::run(const test_script<>& script) {
  const auto begin = std::chrono::steady_clock::now();
  home_->run(with_timeout(forever, script()));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, forever) << "it ended only when it was stopped";
}

void peers::between_peers(const test_script<net::connection&, net::connection&>& script, net::connection_options client,
                          net::connection_options server) {
  const auto body = [&]() -> task<> {
    connected ends = co_await connect_pair(client, server);
    co_await script(ends.client, ends.server);
  };
  run(body);
}

void peers::between_busy_peers(const test_script<net::connection&, net::connection&, scope&>& script,
                               net::connection_options client, net::connection_options server) {
  const auto body = [&](net::connection& a, net::connection& b) -> task<> {
    const auto inner = [&](scope& tasks) -> task<> { co_await script(a, b, tasks); };
    co_await with_scope(on_failure::stop_siblings, inner);
  };
  between_peers(body, client, server);
}

void peers::on_two_threads(const test_script<net::connection&>& serve, const test_script<net::connection&>& ask,
                           net::connection_options client, net::connection_options server,
                           const executor_options& there) {
  std::promise<std::string> address;
  std::future<std::string> where = address.get_future();
  other_thread other([&, address = std::move(address)](const std::stop_token& left_early) mutable {
    executor other_home(there);
    const auto root = [&]() -> task<> {
      auto listener = co_await device().listen(GetParam().any_address);
      address.set_value(std::string(listener.address()));
      auto peer = co_await accept_one(listener, server);
      co_await serve(peer);
    };
    other_home.run(with_timeout(forever, root()), left_early);
  });
  const std::string target = where.get();
  const auto root = [&]() -> task<> {
    auto peer = co_await device().connect(target, client);
    co_await ask(peer);
  };
  run(root);
  other.join();
}

void peers::expect_nothing_left() {
  const mr::pool_statistics left = pool().statistics();
  for (const mr::budget share : {mr::budget::send, mr::budget::receive}) {
    EXPECT_EQ(left.of(share).in_use_bytes, 0u);
    EXPECT_EQ(left.of(share).waiting, 0u);
  }
}

void peers::TearDown() {
  home_.reset();
  expect_nothing_left();
  device_.reset();
  EXPECT_EQ(open_descriptors(), descriptors_before_);
}

}  // namespace weft::test
