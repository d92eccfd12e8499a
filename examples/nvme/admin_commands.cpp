// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <exception>
#include <utility>

#include <nvme/admin_commands.hpp>
#include <nvme/queue.hpp>

namespace nvme {

using weft::task;

namespace {

constexpr std::string_view model = "weft NVMe-oF target";
constexpr std::string_view firmware = "0.1";

template <class Structure>
std::vector<std::byte> page_of(const Structure& what) {
  std::vector<std::byte> made(Structure::bytes);
  encode(what, made);
  return made;
}

}  // namespace

task<outcome> admin_commands::execute(request& what) {
  switch (static_cast<admin_opcode>(what.asked().opcode)) {
    case admin_opcode::identify:
      return identify(what);
    case admin_opcode::get_log_page:
      return get_log_page(what);
    default:
      return execute_without_data(what);
  }
}

task<outcome> admin_commands::execute_without_data(request& what) {
  const command& asked = what.asked();
  const auto opcode = static_cast<admin_opcode>(asked.opcode);
  const bool known = opcode == admin_opcode::set_features || opcode == admin_opcode::async_event_request ||
                     opcode == admin_opcode::keep_alive || opcode == admin_opcode::abort;
  if (!known) co_return status::invalid_opcode;  // whatever data it describes
  if (const status wrong = what.check_no_data(); wrong != status::success) co_return wrong;
  if (opcode == admin_opcode::set_features) co_return set_feature(asked);
  if (opcode == admin_opcode::async_event_request) co_return queue_.await_event(asked.id);
  if (opcode == admin_opcode::abort) co_return outcome(status::success, 1);  // nothing was aborted, which is allowed
  queue_.restart_keep_alive();
  co_return status::success;
}

// ---- properties ----

outcome admin_commands::get_property(const request& what) const {
  if (const status wrong = what.check_no_data(); wrong != status::success) return wrong;
  const auto asked = fields_of<property_fields>(what.asked());
  const auto yields = [&](bool wide, std::uint64_t value) {
    return (asked.wide == 1) == wide ? outcome(status::success, value) : outcome(status::invalid_field);
  };
  switch (asked.offset) {
    case property::capabilities: {
      const controller_capabilities can{.max_queue_entries = static_cast<std::uint16_t>(home_.most().queue_entries - 1),
                                        .ready_timeout = 15};
      return yields(true, encode(can));
    }
    case property::version:
      return yields(false, nvme_version);
    case property::configuration:
      return yields(false, controller_.configuration());
    case property::controller_status:
      return yields(false, controller_.status());
    default:
      return status::invalid_field;
  }
}

task<outcome> admin_commands::set_property(request& what) {
  if (const status wrong = what.check_no_data(); wrong != status::success) co_return wrong;
  const auto asked = fields_of<property_fields>(what.asked());
  if (asked.offset != property::configuration || asked.wide == 1) co_return status::invalid_field;
  if (configuring_) co_return status::command_sequence_error;  // it has not been answered what it has written before
  configuring_ = true;
  const reset_at_end end(configuring_);
  outcome answer = co_await configure(static_cast<std::uint32_t>(asked.value));
  co_return std::move(answer);
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
    done = co_await flush_disks();
  } catch (...) {
    failure = std::current_exception();
  }
  if (!done) controller_.abandon_shutdown();
  if (failure) std::rethrow_exception(failure);
  co_return done;
}

task<bool> admin_commands::flush_disks() {
  std::string trouble;
  try {
    for (const name_space& each : controller_.from().of->all()) co_await each.disk().flush();
  } catch (const std::exception& why) {
    const auto* const known = dynamic_cast<const weft::error*>(&why);
    if (known != nullptr && known->code() == weft::errc::canceled) throw;
    trouble = why.what();
  }
  if (trouble.empty()) co_return true;
  home_.say(fmt::format("flush for the shutdown of {} failed: {}", controller_.from().host, trouble));
  co_return false;
}

// ---- Identify ----

task<outcome> admin_commands::identify(request& what) {
  if (const status wrong = what.check_to_host(identify_bytes); wrong != status::success) co_return wrong;
  auto data = co_await what.room_for(identify_bytes);
  std::ranges::fill(data.bytes(), std::byte{0});
  if (const status wrong = identify_into(what.asked(), data.bytes()); wrong != status::success) co_return wrong;
  co_return outcome(std::move(data));
}

controller_identity admin_commands::identify_controller() const {
  const limits& most = home_.most();
  controller_identity made;
  made.model = model;
  made.firmware = firmware;
  made.max_transfer_shift = most.max_transfer_shift;
  made.controller = controller_.id();
  made.async_event_limit = static_cast<std::uint8_t>(most.async_events - 1);
  made.sgls = sgl_support::supported | sgl_support::keyed;
  made.command_capsule_bytes = command_bytes;
  made.completion_capsule_bytes = completion_bytes;
  made.subsystem = discovery_nqn;
  made.type = controller_type::discovery;
  if (controller_.is_discovery()) return made;
  const subsystem& served = *controller_.from().of;
  const auto is_volatile = [](const name_space& each) { return each.disk().has_volatile_cache(); };
  made.type = controller_type::io;
  made.serial = served.serial();
  made.subsystem = served.nqn();
  made.async_events = namespace_notices;
  made.max_commands = most.queue_entries;
  made.namespaces = static_cast<std::uint32_t>(served.all().size());
  made.optional_commands = optional_command::dataset_management | optional_command::write_zeroes;
  made.write_cache = std::ranges::any_of(served.all(), is_volatile) ? 7 : 0;
  if (most.in_capsule_bytes > 0) made.sgls |= sgl_support::in_capsule_offset;
  made.command_capsule_bytes += most.in_capsule_bytes;
  return made;
}

status admin_commands::identify_into(const command& asked, std::span<std::byte> into) const {
  constexpr std::uint32_t last_possible = 0xffff'fffe;
  const auto [number, command_set] = fields_of<identify_fields>(asked);
  const auto structure = static_cast<identify_structure>(number);
  if (structure == identify_structure::controller) {
    encode(identify_controller(), into);
    return status::success;
  }
  if (controller_.is_discovery()) return status::invalid_field;
  const subsystem& served = *controller_.from().of;
  const name_space* const named = served.find(asked.nsid);
  const bool of_one = structure == identify_structure::name_space || structure == identify_structure::descriptors;
  if (of_one && named == nullptr) return status::invalid_namespace;
  switch (structure) {
    case identify_structure::name_space:
      encode(named->identify(), into);
      return status::success;
    case identify_structure::descriptors:
      encode(namespace_descriptors{.id = named->identify().id}, into);
      return status::success;
    case identify_structure::active_namespaces: {
      if (asked.nsid >= last_possible) return status::invalid_namespace;
      std::vector<std::uint32_t> ids;
      for (const name_space& each : served.all()) {
        if (each.id() > asked.nsid) ids.push_back(each.id());
      }
      encode_namespace_list(ids, into);
      return status::success;
    }
    case identify_structure::command_set_controller:  // of the NVM command set: no limits beyond those told
      return command_set == 0 ? status::success : status::invalid_field;
    case identify_structure::controller:
      break;
  }
  return status::invalid_field;
}

// ---- log pages ----

task<outcome> admin_commands::get_log_page(request& what) {
  const auto wanted = fields_of<log_fields>(what.asked());
  const auto which = static_cast<log_page>(wanted.page);
  if (wanted.bytes > home_.most().max_transfer_bytes() || wanted.offset % 4 != 0) co_return status::invalid_field;
  if (const status wrong = what.check_to_host(wanted.bytes); wrong != status::success) co_return wrong;
  auto page = log(which);
  if (!page) co_return status::invalid_log_page;
  if (wanted.offset > page->size()) co_return status::invalid_field;
  auto data = co_await what.room_for(wanted.bytes);
  std::ranges::fill(data.bytes(), std::byte{0});
  if (!wanted.retain_event && which == log_page::changed_namespaces) {
    // From here on nothing fails but the queue.
    encode_namespace_list(controller_.changes(true), *page);
    queue_.clear_event();
  }
  const auto part = std::span(*page).subspan(wanted.offset);
  std::ranges::copy(part.first(std::min(part.size(), data.size())), data.data());
  co_return outcome(std::move(data));
}

std::optional<std::vector<std::byte>> admin_commands::log(log_page which) {
  if (controller_.is_discovery() != (which == log_page::discovery)) return std::nullopt;
  switch (which) {
    case log_page::discovery:
      return home_.discover();
    case log_page::health:
      return page_of(health());
    case log_page::changed_namespaces: {
      std::vector<std::byte> made(identify_bytes);
      encode_namespace_list(controller_.changes(false), made);
      return made;
    }
  }
  return std::nullopt;
}

// ---- features ----

outcome admin_commands::set_feature(const command& from) {
  const auto asked = fields_of<feature_fields>(from);
  if (asked.save) return status::feature_not_saveable;
  switch (static_cast<feature>(asked.feature)) {
    case feature::number_of_queues: {
      // Two numbers, each one less than it means.
      const std::uint32_t submission = asked.value & 0xffff;
      const std::uint32_t completion = asked.value >> 16;
      if (controller_.is_discovery() || submission == 0xffff || completion == 0xffff) return status::invalid_field;
      if (controller_.has_io_queues()) return status::command_sequence_error;
      const std::uint16_t granted =
          controller_.grant_queues(static_cast<std::uint16_t>(std::min(submission, completion) + 1));
      return {status::success, (granted - 1U) | (granted - 1U) << 16};
    }
    case feature::async_event_configuration:
      controller_.want_notices((asked.value & namespace_notices) != 0);
      return status::success;
  }
  return status::invalid_field;
}

}  // namespace nvme
