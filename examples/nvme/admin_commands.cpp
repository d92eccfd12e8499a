// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <exception>
#include <utility>

#include <nvme/admin_commands.hpp>
#include <nvme/bytes.hpp>

namespace nvme {

using weft::task;

namespace {

constexpr std::string_view model = "weft NVMe-oF target";
constexpr std::string_view firmware = "0.1";

log_page page_of(const log_fields& wanted) noexcept { return static_cast<log_page>(wanted.page); }

// As thousands of 512 bytes, rounded up.
std::uint64_t units(std::uint64_t bytes) { return bytes / 512'000 + (bytes % 512'000 == 0 ? 0 : 1); }

task<outcome> refuse_command(status why) { co_return why; }

}  // namespace

std::chrono::milliseconds admin_commands::rounded(std::uint32_t milliseconds) noexcept {
  const auto unit = static_cast<std::uint64_t>(keep_alive_granularity.count());
  return std::chrono::milliseconds((milliseconds + unit - 1) / unit * unit);
}

task<outcome> admin_commands::execute(request& what) {
  const command& asked = what.asked();
  switch (static_cast<admin_opcode>(asked.opcode)) {
    case admin_opcode::identify:
      return identify(what);
    case admin_opcode::get_log_page:
      return get_log_page(what);
    case admin_opcode::get_features:
      return feature_of(asked).feature == 0x81 ? get_feature(what) : execute_without_data(what);
    case admin_opcode::set_features:
    case admin_opcode::abort:
    case admin_opcode::async_event_request:
    case admin_opcode::keep_alive:
      return execute_without_data(what);
  }
  return refuse_command(status::invalid_opcode);  // whatever data it describes
}

task<outcome> admin_commands::execute_without_data(request& what) {
  if (const status wrong = what.check_no_data(); wrong != status::success) co_return wrong;
  const command& asked = what.asked();
  switch (static_cast<admin_opcode>(asked.opcode)) {
    case admin_opcode::get_features: {
      outcome done = co_await get_feature(what);
      co_return std::move(done);
    }
    case admin_opcode::set_features: {
      outcome done = co_await set_feature(what);
      co_return std::move(done);
    }
    case admin_opcode::async_event_request:
      co_return queue_.await_event(asked.id);
    case admin_opcode::keep_alive:
      queue_.restart_keep_alive(std::nullopt);
      co_return status::success;
    default:
      co_return outcome(status::success, 1);  // an abort: nothing was aborted, which is allowed
  }
}

// ---- properties ----

task<outcome> admin_commands::get_property(request& what) {
  if (const status wrong = what.check_no_data(); wrong != status::success) co_return wrong;
  const property_fields asked = property_of(what.asked());
  const auto yields = [&](bool wide, std::uint64_t value) {
    return asked.wide == wide ? outcome(status::success, value) : outcome(status::invalid_field);
  };
  switch (asked.offset) {
    case property::capabilities: {
      const controller_capabilities can{.max_queue_entries = static_cast<std::uint16_t>(home_.most().queue_entries - 1),
                                        .ready_timeout = 15};
      co_return yields(true, encode(can));
    }
    case property::version:
      co_return yields(false, nvme_version);
    case property::configuration:
      co_return yields(false, controller_.configuration());
    case property::controller_status:
      co_return yields(false, controller_.status());
    default:
      co_return status::invalid_field;
  }
}

task<outcome> admin_commands::set_property(request& what) {
  if (const status wrong = what.check_no_data(); wrong != status::success) co_return wrong;
  const property_fields asked = property_of(what.asked());
  if (asked.offset != property::configuration || asked.wide) co_return status::invalid_field;
  if (configuring_) co_return status::command_sequence_error;  // it has not been answered what it has written before
  configuring_ = true;
  outcome done(status::internal_error);
  std::exception_ptr failure;
  try {
    done = co_await configure(static_cast<std::uint32_t>(asked.value));
  } catch (...) {
    failure = std::current_exception();
  }
  configuring_ = false;
  if (failure) std::rethrow_exception(failure);
  co_return std::move(done);
}

task<outcome> admin_commands::configure(std::uint32_t value) {
  const bool shuts_down = (value & configuration::shutdown_mask) != 0 && !controller_.is_discovery();
  if (shuts_down) {
    if (const bool done = co_await shut_down(); !done) co_return status::internal_error;
  }
  if (!controller_.configure(value)) co_return status::command_sequence_error;
  if ((value & configuration::enable) == 0) queue_.reset_events();
  co_return status::success;
}

// A shutdown is complete once nothing is written any more, and everything is where it survives.
task<bool> admin_commands::shut_down() {
  controller_.begin_shutdown();
  bool done = false;
  std::exception_ptr failure;
  try {
    co_await queue_.wait_for_io_queues();
    done = co_await flush_disks("shutdown");
  } catch (...) {
    failure = std::current_exception();
  }
  if (!done) controller_.abandon_shutdown();
  if (failure) std::rethrow_exception(failure);
  co_return done;
}

task<bool> admin_commands::flush_disks(std::string_view what_for) {
  std::string trouble;
  try {
    for (const name_space& each : controller_.from().of->all()) co_await each.disk().flush();
  } catch (const std::exception& why) {
    const auto* const known = dynamic_cast<const weft::error*>(&why);
    if (known != nullptr && known->code() == weft::errc::canceled) throw;
    trouble = why.what();
  }
  if (trouble.empty()) co_return true;
  home_.say(fmt::format("flush for the {} of {} failed: {}", what_for, controller_.from().host, trouble));
  co_return false;
}

// ---- Identify ----

task<outcome> admin_commands::identify(request& what) {
  if (const status wrong = what.check_to_host(identify_bytes); wrong != status::success) co_return wrong;
  auto data = co_await what.room_for(identify_bytes);
  std::ranges::fill(data.bytes(), std::byte{0});
  if (const status wrong = identify_into(what, data.bytes()); wrong != status::success) co_return wrong;
  co_return outcome(std::move(data));
}

bool admin_commands::has_write_cache() const {
  const auto is_volatile = [](const name_space& each) { return each.disk().has_volatile_cache(); };
  return !controller_.is_discovery() && std::ranges::any_of(controller_.from().of->all(), is_volatile);
}

controller_identity admin_commands::identify_controller() const {
  const limits& most = home_.most();
  controller_identity made;
  made.model = model;
  made.firmware = firmware;
  made.max_transfer_shift = most.max_transfer_shift;
  made.controller = controller_.id();
  made.is_discovery = controller_.is_discovery();
  made.async_event_limit = static_cast<std::uint8_t>(most.async_events - 1);
  made.error_log_entries = static_cast<std::uint8_t>(controller::error_entries - 1);
  made.log_attributes = 1U << 2;  // offsets, and long pages
  made.keep_alive_granularity = static_cast<std::uint16_t>(keep_alive_granularity.count() / 100);
  made.sgls = sgl_support::supported | sgl_support::keyed;
  made.command_capsule_bytes = command_bytes;
  made.completion_capsule_bytes = completion_bytes;
  made.max_descriptors = 1;
  made.subsystem = discovery_nqn;
  if (made.is_discovery) return made;
  const subsystem& served = *controller_.from().of;
  made.serial = served.serial();
  made.subsystem = served.nqn();
  made.async_events = namespace_notices;
  made.max_commands = most.queue_entries;
  made.namespaces = static_cast<std::uint32_t>(served.all().size());
  made.optional_commands =
      optional_command::compare | optional_command::dataset_management | optional_command::write_zeroes;
  made.volatile_write_cache = has_write_cache();
  if (most.in_capsule_bytes > 0) made.sgls |= sgl_support::in_capsule_offset;
  made.command_capsule_bytes += most.in_capsule_bytes;
  return made;
}

status admin_commands::identify_into(request& what, std::span<std::byte> into) const {
  constexpr std::uint32_t last_possible = 0xffff'fffe;
  const std::uint32_t id = what.asked().nsid;
  const std::uint8_t asked = identify_of(what.asked()).structure;
  if (asked == static_cast<std::uint8_t>(identify_structure::controller)) {
    encode(identify_controller(), into);
    return status::success;
  }
  if (controller_.is_discovery()) return status::invalid_field;
  const subsystem& served = *controller_.from().of;
  const name_space* const named = served.find(id);
  switch (static_cast<identify_structure>(asked)) {
    case identify_structure::name_space:
      if (id == 0 || id > served.all().size()) return status::invalid_namespace;
      encode(named->identify(), into);
      return status::success;
    case identify_structure::active_namespaces: {
      if (id >= last_possible) return status::invalid_namespace;
      std::vector<std::uint32_t> ids;
      for (const name_space& each : served.all()) {
        if (each.id() > id) ids.push_back(each.id());
      }
      encode_namespace_list(ids, into);
      return status::success;
    }
    case identify_structure::descriptors:
      if (named == nullptr) return status::invalid_namespace;
      encode_descriptors(named->identify().id, into);
      return status::success;
    case identify_structure::command_set_controller:  // of the NVM command set: no limits beyond those told
      return what.asked().dwords[1] >> 24 == 0 ? status::success : status::invalid_field;
    case identify_structure::controller:
      break;
  }
  return status::invalid_field;
}

// ---- log pages ----

task<outcome> admin_commands::get_log_page(request& what) {
  const log_fields wanted = log_of(what.asked());
  if (wanted.bytes > home_.most().max_transfer_bytes() || wanted.offset % 4 != 0) co_return status::invalid_field;
  if (const status wrong = what.check_to_host(wanted.bytes); wrong != status::success) co_return wrong;
  auto page = log(wanted);
  if (!page) co_return status::invalid_log_page;
  if (wanted.offset > page->size()) co_return status::invalid_field;
  auto data = co_await what.room_for(wanted.bytes);
  std::ranges::fill(data.bytes(), std::byte{0});
  if (!wanted.retain_event && page_of(wanted) == log_page::changed_namespaces) {
    // From here on nothing fails but the queue.
    encode_changed_namespaces(controller_.take_changes(), *page);
    queue_.clear_event(log_page::changed_namespaces);
  }
  const auto part = std::span(*page).subspan(wanted.offset);
  std::ranges::copy(part.first(std::min(part.size(), data.size())), data.data());
  co_return outcome(std::move(data));
}

std::optional<std::vector<std::byte>> admin_commands::log(const log_fields& wanted) {
  const auto page = page_of(wanted);
  if (page == log_page::discovery) {
    if (!controller_.is_discovery()) return std::nullopt;
    return encode(home_.discover(peer_));
  }
  if (page == log_page::errors) {
    std::vector<std::byte> made(controller::error_entries * error_entry_bytes);
    std::span<std::byte> rest(made);
    for (const error_entry& each : controller_.errors()) {
      encode(each, rest);
      rest = rest.subspan(error_entry_bytes);
    }
    return made;
  }
  if (controller_.is_discovery()) return std::nullopt;
  if (page == log_page::health) {
    const auto done = controller_.counters();
    const auto errors = controller_.errors();
    std::vector<std::byte> made(health_bytes);
    encode(health{.units_read = units(done.bytes_read),
                  .units_written = units(done.bytes_written),
                  .reads = done.reads,
                  .writes = done.writes,
                  .error_entries = errors.empty() ? 0 : errors.front().count},
           made);
    return made;
  }
  if (page == log_page::firmware) {
    std::vector<std::byte> made(firmware_bytes);
    encode_firmware(firmware, made);
    return made;
  }
  if (page == log_page::changed_namespaces) {
    std::vector<std::byte> made(identify_bytes);
    encode_changed_namespaces(controller_.changes(), made);
    return made;
  }
  return std::nullopt;
}

// ---- features ----

task<outcome> admin_commands::set_feature(const request& what) {
  const feature_fields asked = feature_of(what.asked());
  if (asked.save) co_return status::feature_not_saveable;
  switch (static_cast<feature>(asked.feature)) {
    case feature::number_of_queues: {
      // Two numbers, each one less than it means.
      const std::uint32_t submission = asked.value & 0xffff;
      const std::uint32_t completion = asked.value >> 16;
      if (controller_.is_discovery() || submission == 0xffff || completion == 0xffff) co_return status::invalid_field;
      if (controller_.has_io_queues()) co_return status::command_sequence_error;
      const std::uint16_t granted =
          controller_.grant_queues(static_cast<std::uint16_t>(std::min(submission, completion) + 1));
      co_return outcome(status::success, (granted - 1U) | (granted - 1U) << 16);
    }
    case feature::keep_alive_timer:
      if (asked.value == 0) co_return status::keep_alive_invalid;
      queue_.restart_keep_alive(rounded(asked.value));
      co_return status::success;
    case feature::async_event_configuration:
      controller_.set_event_configuration(asked.value);
      co_return status::success;
    case feature::volatile_write_cache:
      if (!has_write_cache()) co_return status::invalid_field;
      co_return co_await set_write_cache((asked.value & 1) != 0);
    case feature::host_identifier:
      co_return status::command_sequence_error;  // Connect has brought it
  }
  co_return status::invalid_field;
}

// Without a cache nothing that was acknowledged may be in one: neither what is written from now on, nor what was
// before. One command at a time, so that the failure of one does not undo what another was told.
task<outcome> admin_commands::set_write_cache(bool on) {
  const auto turn = co_await write_cache_.lock();
  const bool was_through = controller_.writes_through();
  controller_.set_write_through(!on);
  if (on) co_return status::success;
  if (const bool flushed = co_await flush_disks("end of the write cache"); flushed) co_return status::success;
  controller_.set_write_through(was_through);
  co_return status::internal_error;
}

task<outcome> admin_commands::get_feature(request& what) {
  const feature_fields asked = feature_of(what.asked());
  if (asked.select != 0) co_return status::invalid_field;
  switch (static_cast<feature>(asked.feature)) {
    case feature::number_of_queues: {
      if (controller_.is_discovery()) co_return status::invalid_field;
      const std::uint32_t granted = controller_.granted_queues() - 1U;
      co_return outcome(status::success, granted | granted << 16);
    }
    case feature::keep_alive_timer:
      co_return outcome(status::success, static_cast<std::uint64_t>(queue_.keep_alive().count()));
    case feature::async_event_configuration:
      co_return outcome(status::success, controller_.event_configuration());
    case feature::volatile_write_cache: {
      if (!has_write_cache()) co_return status::invalid_field;
      const auto turn = co_await write_cache_.lock();  // it is off only once the disks are flushed
      co_return outcome(status::success, controller_.writes_through() ? 0 : 1);
    }
    case feature::host_identifier: {
      const identifier& host = controller_.from().host_id;
      if (const status wrong = what.check_to_host(host.size()); wrong != status::success) co_return wrong;
      auto data = co_await what.room_for(host.size());
      std::ranges::copy(host, data.data());
      co_return outcome(std::move(data));
    }
  }
  co_return status::invalid_field;
}

}  // namespace nvme
