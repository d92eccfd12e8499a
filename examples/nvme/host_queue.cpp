// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>

#include <nvme/host_queue.hpp>

namespace nvme {

using weft::task;

namespace {

// A command's id is the number of its slot, and above it a count of the slot's commands: so the second completion of a
// command is noticed even if its slot has the next command by then.
constexpr unsigned slot_bits = 10;
constexpr std::size_t most_lanes = (std::size_t{1} << slot_bits) - 1;
constexpr std::uint16_t slot_mask = most_lanes;

// A deadline is met to within an eighth of it.
constexpr unsigned ticks_to_deadline = 8;

void check(const host_queue_options& options, const weft::mr::pool& pool) {
  if (options.entries < 2 || options.lanes == 0 || options.lanes >= options.entries || options.lanes > most_lanes) {
    throw std::invalid_argument(fmt::format(
        "{} commands at a time on a queue of {} entries: 1 to {} are possible", options.lanes, options.entries,
        std::min<std::size_t>(std::max(options.entries, std::uint16_t{2}) - 1U, most_lanes)));
  }
  const std::size_t all = options.lanes * options.lane_bytes;
  const std::size_t most =
      options.lends == lending::each_command ? pool.max_buffer_bytes() / 2 : pool.max_buffer_bytes();
  if (all > most) {
    throw std::invalid_argument(fmt::format("{} commands of {} bytes at a time: the pool has {} bytes for a queue",
                                            options.lanes, options.lane_bytes, most));
  }
}

constexpr auto peer_uses = weft::mr::usage::read_src | weft::mr::usage::write_dst;

std::uint32_t key_of(const weft::mr::remote_region& memory) {
  if (memory.key() > std::numeric_limits<std::uint32_t>::max())
    throw weft::error(weft::errc::not_supported, "NVMe has keys of 32 bits, and this device longer ones");
  return static_cast<std::uint32_t>(memory.key());
}

// The reason is in the error's words only, as hexadecimal digits.
weft::error with_reason(const weft::error& why) {
  constexpr std::string_view before = "the peer says ";
  const std::string_view words = why.what();
  const auto at = words.rfind(before);
  if (why.code() != weft::errc::peer_rejected || at == std::string_view::npos) return why;
  std::array<std::byte, cm_rejection::bytes> said{};
  const char* next = words.data() + at + before.size();
  for (std::byte& each : said) {
    std::uint8_t value = 0;
    if (words.data() + words.size() - next < 2 || std::from_chars(next, next + 2, value, 16).ptr != next + 2)
      return why;
    each = std::byte{value};
    next += 2;
  }
  const auto rejection = try_decode<cm_rejection>(said);
  return rejection ? why.within(words_of(rejection->reason)) : why;
}

task<weft::net::connection> dial(weft::net::device& device, std::string address, weft::net::connection_options how) {
  try {
    co_return co_await device.connect(std::move(address), how);
  } catch (const weft::error& why) {
    throw with_reason(why);
  }
}

}  // namespace

task<std::unique_ptr<host_queue>> host_queue::open(weft::net::device& device, std::string address,
                                                   host_queue_options options) {
  check(options, device.pool());
  const auto wanted = encoded(cm_request{.queue_id = options.id,
                                         .receive_queue_size = options.entries,
                                         .send_queue_size = static_cast<std::uint16_t>(options.entries - 1),
                                         .controller = options.controller});
  weft::net::connection_options how;
  how.profile = weft::net::profile::interop;
  how.private_data = wanted;
  how.receive_size = command_bytes;  // more than a completion has, so that a longer one is told in words
  how.receive_depth = static_cast<std::uint16_t>(options.entries + 1);
  how.send_depth = options.entries;
  // Commands have a deadline, and Keep Alive asks when there are none: a device's own watch adds nothing, and siw does
  // not bear it (docs/verbs.md).
  how.dead_peer_after = std::chrono::milliseconds(0);
  how.set_up_timeout = std::min(how.set_up_timeout, options.timeout);
  auto peer = co_await dial(device, address, how);
  const auto answer = try_decode<cm_reply>(peer.peer_private_data());
  if (!answer || answer->format != 0)
    throw weft::error(weft::errc::protocol_error, fmt::format("{} accepts, and not as an NVMe target does", address));
  if (answer->receive_queue_size == 0)
    throw weft::error(weft::errc::protocol_error, fmt::format("{} offers a queue of no entries", address));
  options.lanes = std::min(options.lanes, answer->receive_queue_size);
  std::unique_ptr<host_queue> made(new host_queue(device, std::move(peer), options));
  co_await made->provide_memory();
  co_return std::move(made);
}

host_queue::host_queue(weft::net::device& device, weft::net::connection peer, const host_queue_options& options)
    : device_(device),
      peer_(std::move(peer)),
      options_(options),
      slots_(std::make_unique<slot[]>(options.lanes)),
      lanes_(options.lanes) {
  free_.reserve(options.lanes);
  for (std::size_t i = options.lanes; i-- > 0;) {
    slots_[i].id = static_cast<std::uint16_t>(i);
    free_.push_back(&slots_[i]);
  }
}

host_queue::~host_queue() { peer_.abort(); }

// What a peer may look into holds nothing of others.
task<> host_queue::provide_standing_memory() {
  if (options_.lends == lending::direct) co_return co_await provide_region();
  bool has_windows = true;
  auto room = co_await device_.pool().allocate(options_.lanes * options_.lane_bytes);
  std::ranges::fill(room.bytes(), std::byte{0});
  try {
    exposed_ = co_await peer_.expose(std::move(room), peer_uses);
    memory_ = exposed_.memory().slice();
    key_ = key_of(exposed_.remote());
    address_ = exposed_.remote().address();
  } catch (const weft::error& why) {
    if (why.code() != weft::errc::not_supported) throw;
    has_windows = false;
  }
  if (!has_windows) co_await provide_region();
}

task<> host_queue::provide_region() {
  const std::size_t bytes = options_.lanes * options_.lane_bytes;
  const weft::mr::registration_options how{.usage = peer_uses | weft::mr::usage::send,
                                           .direct = options_.lends == lending::direct};
  auto memory = weft::mr::mapping::in_memory_file(bytes, false, -1, weft::system_calls::kernel());
  region_ = co_await device_.register_memory(std::move(memory), how);
  memory_ = region_.slice();
  const weft::mr::remote_region remote = region_.remote();
  key_ = key_of(remote);
  address_ = remote.address();
}

task<> host_queue::provide_memory() {
  weft::mr::pool& pool = device_.pool();
  const bool standing = is_standing();
  if (standing) co_await provide_standing_memory();
  for (std::size_t i = 0; i < options_.lanes; ++i) {
    slot& each = slots_[i];
    each.capsule = co_await pool.allocate(command_bytes);
    if (standing) {
      each.memory = memory_.bytes().subspan(i * options_.lane_bytes, options_.lane_bytes);
      continue;
    }
    each.owned = co_await pool.allocate(options_.lane_bytes);
    std::ranges::fill(each.owned.bytes(), std::byte{0});
    each.memory = each.owned.bytes();
  }
}

task<std::optional<weft::error>> host_queue::run() {
  const auto both = [this](weft::scope& tasks) -> task<> {
    tasks.spawn(watch(), "deadlines");
    co_await receive();
    tasks.request_stop();
  };
  co_await weft::with_scope(weft::on_failure::stop_siblings, both, "a queue of the host");
  co_return closing_ ? std::nullopt : failure_;
}

task<> host_queue::receive() {
  try {
    while (auto said = co_await peer_.recv()) accept(*said);
    if (!closing_) fail(weft::error(weft::errc::peer_closed, name()));
  } catch (const weft::error& why) {
    if (why.code() == weft::errc::canceled) throw;
    if (!closing_) fail(why.within(name()));
  }
}

task<> host_queue::watch() {
  for (;;) {
    co_await weft::sleep_for(options_.timeout / ticks_to_deadline);
    ++ticks_;
    for (std::size_t i = 0; i < options_.lanes && !failure_; ++i) {
      const slot& each = slots_[i];
      if (each.state != slot_state::posted || ticks_ - each.posted_at <= ticks_to_deadline) continue;
      fail(weft::error(weft::errc::timed_out,
                       fmt::format("{}: no answer to {} for {} ms, so the queue was ended", name(),
                                   describe(each.asked, is_admin()), options_.timeout.count())));
    }
  }
}

// The connection's end revokes what was lent, and wakes those who wait.
void host_queue::fail(const weft::error& why) {
  if (failure_ || closing_) return;
  failure_ = why;
  peer_.abort();
  for (std::size_t i = 0; i < options_.lanes; ++i) slots_[i].done.set();
}

task<> host_queue::close() {
  closing_ = true;
  co_await peer_.close();
  if (exposed_.memory()) co_await exposed_.revoke();
  if (region_) co_await region_.release();
}

std::string host_queue::name() const {
  return is_admin() ? fmt::format("the admin queue of {}", peer_.peer())
                    : fmt::format("I/O queue {} of {}", options_.id, peer_.peer());
}

void host_queue::check_alive() const {
  if (failure_) throw weft::error(*failure_);
  if (closing_) throw weft::error(weft::errc::closed, name());
}

// ---- completions: all of this is hostile until checked ----

host_queue::slot& host_queue::find(const completion& said) {
  const std::size_t number = said.id & slot_mask;
  if (number >= options_.lanes || slots_[number].id != said.id || slots_[number].state != slot_state::posted) {
    throw weft::error(weft::errc::protocol_error,
                      fmt::format("a completion of command {:#06x}, which is not under way", said.id));
  }
  return slots_[number];
}

void host_queue::check_invalidation(const slot& of, const weft::net::message& said) {
  const auto expected = of.lent.memory() ? std::optional(of.lent.remote().key()) : std::nullopt;
  if (said.invalidated_key == expected) {
    ++revoked_;
    return;
  }
  throw weft::error(weft::errc::protocol_error,
                    fmt::format("the completion of {} has revoked the key {:#x}, which is not that of its memory",
                                describe(of.asked, is_admin()), *said.invalidated_key));
}

void host_queue::accept(const weft::net::message& said) {
  if (said.immediate) throw weft::error(weft::errc::protocol_error, "a completion with immediate data");
  const completion what = decode_completion(said.bytes());
  slot& of = find(what);
  if (what.queue_head >= options_.entries) {
    throw weft::error(weft::errc::protocol_error,
                      fmt::format("a queue head of {} where there are {} entries", what.queue_head, options_.entries));
  }
  if (said.invalidated_key) check_invalidation(of, said);
  of.answer = what;
  of.state = slot_state::answered;
  of.done.set();
}

// ---- commands ----

void host_queue::give_back(slot& place) noexcept {
  // A task that was destroyed, not stopped: its command is still under way.
  if (place.state == slot_state::posted) fail(weft::error(weft::errc::canceled, "a command was abandoned"));
  place.state = slot_state::free;
  free_.push_back(&place);
  lanes_.release();
}

task<host_queue::lane> host_queue::take_lane() {
  co_await lanes_.acquire();
  slot& place = *free_.back();
  free_.pop_back();
  place.state = slot_state::taken;
  co_return lane(*this, place);
}

sgl host_queue::describe_memory(const slot& of, std::size_t bytes) const {
  const auto length = static_cast<std::uint32_t>(bytes);
  if (is_standing()) {
    const auto offset = static_cast<std::uint64_t>(of.memory.data() - slots_[0].memory.data());
    return {.type = sgl_type::host_memory, .address = address_ + offset, .length = length, .key = key_};
  }
  return {.type = sgl_type::host_memory_invalidate,
          .address = of.lent.remote().address(),
          .length = length,
          .key = key_of(of.lent.remote())};
}

task<> host_queue::lend(slot& from, data_flow flow, std::size_t bytes) {
  const auto uses = flow == data_flow::to_host ? weft::mr::usage::write_dst : weft::mr::usage::read_src;
  from.owned.resize(bytes);
  try {
    from.lent = co_await peer_.expose(std::move(from.owned), uses);
    static_cast<void>(key_of(from.lent.remote()));
  } catch (const weft::error& why) {
    if (!from.lent.memory()) from.memory = {};  // it went with the attempt
    fail(why.within(name()));
    throw;
  }
}

task<> host_queue::send_with_data(slot& from, std::size_t bytes) {
  ++in_capsule_;
  const weft::mr::slice data = is_standing() ? memory_ : from.owned.slice();
  const auto offset = static_cast<std::size_t>(from.memory.data() - data.data());
  const std::array parts{from.capsule.slice(), data.subslice(offset, bytes)};
  co_await peer_.send(parts);
}

task<completion> host_queue::execute(const lane& on, command what, data_flow flow, std::size_t bytes) {
  slot& mine = *on.place_;
  check_alive();
  if (bytes > options_.lane_bytes)
    throw weft::error(weft::errc::invalid_argument,
                      fmt::format("a command of {} bytes: a lane has {}", bytes, options_.lane_bytes));
  const bool in_capsule = flow == data_flow::to_controller && bytes != 0 && bytes <= options_.in_capsule_bytes;
  const bool lends = options_.lends == lending::each_command && bytes != 0 && !in_capsule;
  if (lends) co_await lend(mine, flow, bytes);
  mine.id = static_cast<std::uint16_t>(mine.id + (1U << slot_bits));
  what.id = mine.id;
  if (in_capsule) {
    what.data = {.type = sgl_type::in_capsule, .length = static_cast<std::uint32_t>(bytes)};
  } else if (bytes != 0) {
    what.data = describe_memory(mine, bytes);
  }
  mine.asked = what;
  mine.posted_at = ticks_;
  mine.done.reset();
  mine.state = slot_state::posted;
  encode(what, mine.capsule.bytes());
  try {
    if (in_capsule) {
      co_await send_with_data(mine, bytes);
    } else {
      co_await peer_.send(mine.capsule);
    }
    co_await mine.done.wait();
  } catch (const weft::error& why) {
    // Stopped, or the connection has ended: either way the controller may still use the memory until that is over.
    fail(why.within(name()));
  }
  if (mine.state != slot_state::answered) {
    mine.state = slot_state::taken;
    if (!failure_) throw weft::error(weft::errc::closed, name());
    throw failure_->within(describe(what, is_admin())).as_posted();
  }
  mine.state = slot_state::taken;
  if (lends) {
    mine.owned = co_await mine.lent.revoke();
    mine.owned.resize(options_.lane_bytes);
  }
  if (mine.answer.status == status::success) co_return mine.answer;
  throw command_failed(mine.answer, fmt::format("{}: the controller says: {}", describe(what, is_admin()),
                                                words_of(mine.answer.status, what.is(fabrics_type::connect))));
}

task<completion> host_queue::execute(command what) {
  auto on = co_await take_lane();
  co_return co_await execute(on, what, data_flow::none, 0);
}

task<std::uint16_t> host_queue::introduce(connect_data who, std::chrono::milliseconds keep_alive) {
  auto on = co_await take_lane();
  encode(who, on.bytes());
  command asked;
  asked.opcode = fabrics_opcode;
  asked.nsid = static_cast<std::uint32_t>(fabrics_type::connect);
  put(asked, connect_fields{.queue_id = options_.id,
                            .queue_size = static_cast<std::uint16_t>(options_.entries - 1),
                            .keep_alive_ms = static_cast<std::uint32_t>(keep_alive.count())});
  const auto done = co_await execute(on, asked, data_flow::to_controller, connect_data::bytes);
  co_return static_cast<std::uint16_t>(done.result);
}

}  // namespace nvme
