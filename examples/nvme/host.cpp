// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <random>
#include <stdexcept>

#include <common/printable.hpp>
#include <nvme/host.hpp>
#include <nvme/sizes.hpp>

namespace nvme {

using weft::task;

namespace {

constexpr std::uint16_t first_reserved_controller = 0xfff0;
constexpr std::size_t most_discovered = 4'096;

template <class Opcode>
command command_of(Opcode opcode, std::uint32_t nsid = 0) {
  command made;
  made.opcode = static_cast<std::uint8_t>(opcode);
  made.nsid = nsid;
  return made;
}

command property_command(fabrics_type type, const property_fields& what) {
  command made = command_of(fabrics_opcode, static_cast<std::uint32_t>(type));
  put(made, what);
  return made;
}

command block_command(io_opcode opcode, std::uint32_t nsid, const block_fields& where) {
  command made = command_of(opcode, nsid);
  put(made, where);
  return made;
}

identifier random_identifier() {
  std::random_device source;
  identifier made;
  for (std::byte& each : made) each = static_cast<std::byte>(source());
  return made;
}

connect_data introduction(const host_options& options) {
  connect_data made;
  made.subsystem = options.subsystem;
  made.host_id = random_identifier();
  made.host = options.host_nqn.empty() ? fmt::format("nqn.2014-08.org.nvmexpress:uuid:{}", to_string(made.host_id))
                                       : options.host_nqn;
  return made;
}

}  // namespace

host::host(weft::net::device& device, host_options options)
    : device_(device), options_(std::move(options)), who_(introduction(options_)) {
  using std::chrono::milliseconds;
  require(is_nqn(options_.subsystem),
          fmt::format("'{}' is no NQN: they begin with \"nqn.\" and have at most {} printable characters",
                      common::printable(options_.subsystem), longest_nqn));
  require(is_nqn(who_.host), fmt::format("'{}' is no NQN of a host", common::printable(who_.host)));
  require(options_.commands >= 1 && options_.commands <= 1'000,
          fmt::format("{} commands at a time on a queue: 1 to 1000 are possible", options_.commands));
  require(options_.timeout >= milliseconds(10) && options_.timeout <= std::chrono::hours(24),
          "a command may take 10 ms to a day");
  require(options_.keep_alive >= milliseconds(100) && options_.keep_alive <= std::chrono::hours(24),
          "hosts have to be heard of every 100 ms to a day");
}

weft::error host::wrong(const std::string& words) const {
  return {weft::errc::protocol_error, fmt::format("controller {} at {}: {}", controller_, options_.address, words)};
}

void host::say(std::string_view line) const {
  if (options_.log) options_.log(line);
}

void host::fail(const weft::error& why) {
  if (!failure_) failure_ = why;
  if (admin_) admin_->fail(why);
  for (const auto& each : io_) each->fail(why);
}

// ---- queues ----

task<> host::run_queue(host_queue& which) {
  const auto why = co_await which.run();
  if (why) fail(*why);
}

task<> host::open_queue(weft::scope& background, host_queue_options options) {
  const bool is_admin = options.id == 0;
  options.timeout = options_.timeout;
  options.lends = options_.lends;
  options.controller = is_admin ? std::uint16_t{0} : controller_;
  auto made = co_await host_queue::open(device_, options_.address, options);
  host_queue& which = *made;
  if (is_admin) {
    admin_ = std::move(made);
  } else {
    io_.push_back(std::move(made));
  }
  if (failure_) which.fail(*failure_);  // the host has failed while this one was opened
  background.spawn(run_queue(which), "a queue");
  const std::uint16_t id = co_await introduce(which);
  if (is_admin && id >= first_reserved_controller) throw wrong(fmt::format("a controller of the reserved id {}", id));
  if (!is_admin && id != controller_)
    throw wrong(fmt::format("queue {} belongs to controller {}, it says", options.id, id));
  controller_ = id;
}

task<std::uint16_t> host::introduce(host_queue& which) {
  who_.controller = controller_;
  // A discovery controller that is asked and left needs no Keep Alive.
  const bool is_silent = which.options().id != 0 || is_discovery();
  try {
    co_return co_await which.introduce(who_, is_silent ? std::chrono::milliseconds(0) : options_.keep_alive);
  } catch (const command_failed& why) {
    if (why.status() != status::connect_invalid_parameters ||
        why.result() != wrong_parameter(connect_data::subsystem_at, true))
      throw;
    throw command_failed({.result = why.result(), .status = why.status()},
                         fmt::format("{} has no subsystem '{}' for this host ({})", options_.address,
                                     options_.subsystem, words_of(why.status(), true)));
  }
}

task<> host::connect(weft::scope& background) {
  co_await open_queue(background, {});
  co_await enable();
  co_await identify_controller();
  if (is_discovery()) co_return;
  background.spawn(keep_alive(), "keep alive");
  co_await find_namespaces();
  if (options_.queues > 0) co_await open_io_queues(background);
}

host_queue_options host::options_of_queues() const {
  host_queue_options how;
  how.entries = static_cast<std::uint16_t>(std::min<std::uint32_t>(options_.commands + 1U, most_entries_));
  how.lanes = static_cast<std::uint16_t>(how.entries - 1);
  if (identity_.max_commands != 0) how.lanes = std::min(how.lanes, identity_.max_commands);
  how.lane_bytes = options_.lane_bytes;
  constexpr std::uint8_t widest_shift = 20;  // beyond any lane
  if (identity_.max_transfer_shift != 0 && identity_.max_transfer_shift < widest_shift)
    how.lane_bytes = std::min(how.lane_bytes, identify_bytes << identity_.max_transfer_shift);
  const bool takes_data = options_.in_capsule && (identity_.sgls & sgl_support::in_capsule_offset) != 0 &&
                          identity_.in_capsule_data_offset == 0;
  if (takes_data) how.in_capsule_bytes = identity_.command_capsule_bytes - command_bytes;
  return how;
}

task<> host::open_io_queues(weft::scope& background) {
  const std::uint32_t wanted = options_.queues - 1U;
  command asking = command_of(admin_opcode::set_features);
  put(asking,
      feature_fields{.feature = static_cast<std::uint8_t>(feature::number_of_queues), .value = wanted | wanted << 16});
  const auto granted = co_await admin_->execute(asking);
  const auto count = std::min({wanted, static_cast<std::uint32_t>(granted.result & 0xffff),
                               static_cast<std::uint32_t>(granted.result >> 16 & 0xffff)}) +
                     1;
  host_queue_options how = options_of_queues();
  const std::size_t all = std::size_t{count} * how.lanes * how.lane_bytes;
  const std::size_t most = device_.pool().statistics().send.max_bytes / 4 * 3;
  require(all <= most, fmt::format("{} queues with {} commands of {} bytes: the pool has {} bytes for them", count,
                                   how.lanes, how.lane_bytes, most));
  for (std::uint32_t i = 1; i <= count; ++i) {
    how.id = static_cast<std::uint16_t>(i);
    co_await open_queue(background, how);
  }
}

// What the controller says of the shutdown makes no difference to a host that leaves.
task<> host::close() {
  if (!admin_) co_return;
  closing_ = true;
  try {
    for (const auto& each : io_) co_await each->close();
    if (!failure_) {
      co_await set_property(property::configuration,
                            configuration::enable | configuration::entry_sizes | configuration::normal_shutdown);
    }
  } catch (const command_failed& why) {
    say(why.what());
  } catch (const weft::error& why) {
    if (why.code() == weft::errc::canceled) throw;
    say(why.what());
  }
  co_await admin_->close();
}

// ---- properties ----

task<std::uint64_t> host::get_property(std::uint32_t offset, bool wide) {
  const property_fields what{.wide = wide ? std::uint8_t{1} : std::uint8_t{0}, .offset = offset};
  const command asking = property_command(fabrics_type::property_get, what);
  const auto done = co_await admin_->execute(asking);
  co_return wide ? done.result : static_cast<std::uint32_t>(done.result);
}

task<> host::set_property(std::uint32_t offset, std::uint32_t value) {
  const command asking = property_command(fabrics_type::property_set, {.offset = offset, .value = value});
  co_await admin_->execute(asking);
}

task<> host::enable() {
  const controller_capabilities can = decode_capabilities(co_await get_property(property::capabilities, true));
  if (can.max_queue_entries == 0 && !is_discovery()) throw wrong("its queues have one entry, which holds no command");
  most_entries_ = static_cast<std::uint16_t>(std::min(can.max_queue_entries + 1U, 0xffffU));
  version_ = static_cast<std::uint32_t>(co_await get_property(property::version, false));
  co_await set_property(property::configuration, configuration::enable | configuration::entry_sizes);
  constexpr std::chrono::milliseconds unit{500};
  constexpr std::chrono::milliseconds pause{10};
  const auto patience =
      std::min<std::chrono::milliseconds>(unit * std::max<int>(can.ready_timeout, 1), options_.timeout);
  const weft::time_point deadline = weft::executor::current()->now() + patience;
  for (;;) {
    const std::uint64_t found = co_await get_property(property::controller_status, false);
    if ((found & controller_status::fatal) != 0) throw wrong("it reports that it has failed");
    if ((found & controller_status::ready) != 0) co_return;
    if (weft::executor::current()->now() >= deadline) {
      throw weft::error(weft::errc::timed_out, fmt::format("controller {} at {} has not become ready within {} ms",
                                                           controller_, options_.address, patience.count()));
    }
    co_await weft::sleep_for(pause);
  }
}

// ---- Identify ----

task<> host::identify(const host_queue::lane& on, identify_structure what, std::uint32_t nsid) {
  command asking = command_of(admin_opcode::identify, nsid);
  put(asking, identify_fields{.structure = static_cast<std::uint8_t>(what)});
  co_await admin_->execute(on, asking, data_flow::to_host, identify_bytes);
}

task<> host::identify_controller() {
  auto on = co_await admin_->take_lane();
  co_await identify(on, identify_structure::controller, 0);
  identity_ = decode<controller_identity>(on.bytes());
  if (identity_.controller != controller_)
    throw wrong(fmt::format("it says that it is controller {}", identity_.controller));
  if (is_discovery()) co_return;
  if ((identity_.sgls & sgl_support::keyed) == 0) throw wrong("it does not take keys of the host's memory");
  if (identity_.command_capsule_bytes < command_bytes || identity_.completion_capsule_bytes < completion_bytes) {
    throw wrong(fmt::format("it has capsules of {} and {} bytes: no command or completion fits",
                            identity_.command_capsule_bytes, identity_.completion_capsule_bytes));
  }
}

// One list: those beyond are not used.
task<> host::find_namespaces() {
  auto on = co_await admin_->take_lane();
  co_await identify(on, identify_structure::active_namespaces, 0);
  for (const std::uint32_t id : decode_namespace_list(on.bytes().first(identify_bytes))) {
    co_await identify(on, identify_structure::name_space, id);
    const host_namespace found = check_namespace(id, on.bytes().first(identify_bytes));
    if (found.identity.blocks != 0) namespaces_.push_back(found);  // else it is inactive by now
  }
}

// A namespace whose numbers make no sense is refused, and so nothing is computed with them.
host_namespace host::check_namespace(std::uint32_t id, std::span<const std::byte> said) const {
  host_namespace found{.id = id};
  try {
    found.identity = decode_namespace(said);
  } catch (const weft::error& why) {
    throw why.within(fmt::format("namespace {} at {}", id, options_.address));
  }
  if (found.identity.blocks == 0) return found;
  if (found.identity.blocks > std::numeric_limits<std::uint64_t>::max() >> found.identity.block_shift) {
    throw wrong(fmt::format("namespace {} has {} blocks of {} bytes, it says, which is more than a number holds", id,
                            found.identity.blocks, found.block_bytes()));
  }
  return found;
}

const host_namespace& host::find(std::uint32_t id) const {
  const auto found = std::ranges::find(namespaces_, id, &host_namespace::id);
  if (found != namespaces_.end()) return *found;
  if (namespaces_.empty()) throw std::invalid_argument(fmt::format("{} has no namespaces", options_.subsystem));
  std::vector<std::uint32_t> ids;
  ids.reserve(namespaces_.size());
  for (const host_namespace& each : namespaces_) ids.push_back(each.id);
  throw std::invalid_argument(
      fmt::format("{} has no namespace {}: there are {}", options_.subsystem, id, fmt::join(ids, ", ")));
}

// ---- keep alive ----

task<> host::keep_alive() {
  for (;;) {
    co_await weft::sleep_for(options_.keep_alive / 3);
    if (failure_) co_return;
    try {
      co_await admin_->execute(command_of(admin_opcode::keep_alive));
    } catch (const command_failed& why) {
      fail(weft::error(weft::errc::protocol_error, why.what()));
    } catch (const weft::error& why) {
      if (why.code() == weft::errc::canceled) throw;
      co_return;  // the queue has ended, and everybody knows
    }
  }
}

// ---- discovery ----

task<> host::read_log(const host_queue::lane& on, std::uint64_t offset, std::size_t bytes) {
  command asking = command_of(admin_opcode::get_log_page);
  put(asking, log_fields{.page = discovery_log_page, .bytes = bytes, .offset = offset});
  co_await admin_->execute(on, asking, data_flow::to_host, bytes);
}

// A log that changes while it is read is read again.
task<std::vector<discovery_entry>> host::discover() {
  constexpr int attempts = 4;
  auto on = co_await admin_->take_lane();
  for (int i = 0; i < attempts; ++i) {
    co_await read_log(on, 0, discovery_header::bytes);
    const discovery_header before = decode_discovery_header(on.bytes());
    if (before.entries > most_discovered) {
      throw wrong(
          fmt::format("it knows of {} subsystems, it says, and {} are believed", before.entries, most_discovered));
    }
    std::vector<discovery_entry> found;
    found.reserve(before.entries);
    for (std::uint64_t each = 0; each < before.entries; ++each) {
      co_await read_log(on, discovery_header::bytes + each * discovery_entry::bytes, discovery_entry::bytes);
      found.push_back(decode<discovery_entry>(on.bytes()));
    }
    co_await read_log(on, 0, discovery_header::bytes);
    if (decode_discovery_header(on.bytes()).generation == before.generation) co_return found;
  }
  throw wrong("its discovery log changes whenever it is read");
}

// ---- blocks ----

std::size_t host::most_bytes(const host_namespace& of) const noexcept {
  const std::size_t lane = io_.empty() ? 0 : io_.front()->options().lane_bytes;
  constexpr std::size_t most_blocks = std::size_t{1} << 16;
  return std::min(lane >> of.identity.block_shift, most_blocks) << of.identity.block_shift;
}

void host::refuse_blocks(const host_namespace& of, std::uint64_t offset, std::size_t bytes) const {
  const std::uint32_t block = of.block_bytes();
  require(offset % block == 0 && bytes % block == 0,
          fmt::format("{} bytes from {} on: namespace {} has blocks of {} bytes", bytes, offset, of.id, block));
  require(bytes > 0 && bytes <= most_bytes(of),
          fmt::format("{} bytes with one command: {} to {} are possible", bytes, block, most_bytes(of)));
  throw std::invalid_argument(fmt::format("{} bytes from {} on: namespace {} has {}", bytes, offset, of.id, of.size()));
}

block_fields host::find_blocks(const host_namespace& of, std::uint64_t offset, std::size_t bytes) const {
  const bool fits = ((offset | bytes) & (of.block_bytes() - 1)) == 0 && bytes > 0 && bytes <= most_bytes(of) &&
                    offset <= of.size() && bytes <= of.size() - offset;
  if (!fits) refuse_blocks(of, offset, bytes);
  return {.first = offset >> of.identity.block_shift,
          .count = static_cast<std::uint32_t>(bytes >> of.identity.block_shift)};
}

task<completion> host::read(host_queue& through, const host_queue::lane& on, const host_namespace& of,
                            std::uint64_t offset, std::size_t bytes) {
  const command asking = block_command(io_opcode::read, of.id, find_blocks(of, offset, bytes));
  return through.execute(on, asking, data_flow::to_host, bytes);
}

task<completion> host::write(host_queue& through, const host_queue::lane& on, const host_namespace& of,
                             std::uint64_t offset, std::size_t bytes) {
  const command asking = block_command(io_opcode::write, of.id, find_blocks(of, offset, bytes));
  return through.execute(on, asking, data_flow::to_controller, bytes);
}

task<> host::flush(const host_namespace& of) { co_await io_.at(0)->execute(command_of(io_opcode::flush, of.id)); }

}  // namespace nvme
