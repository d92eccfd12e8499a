// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <array>

#include <nvme/bytes.hpp>
#include <nvme/command.hpp>
#include <nvme/identify.hpp>

namespace nvme {
namespace {

// Offsets of Identify Controller.
constexpr std::size_t serial_at = 4;
constexpr std::size_t serial_bytes = 20;
constexpr std::size_t model_at = 24;
constexpr std::size_t model_bytes = 40;
constexpr std::size_t firmware_at = 64;
constexpr std::size_t firmware_text_bytes = 8;
constexpr std::size_t sharing_at = 76;  // CMIC
constexpr std::size_t transfer_shift_at = 77;
constexpr std::size_t controller_at = 78;
constexpr std::size_t version_at = 80;
constexpr std::size_t async_events_at = 92;
constexpr std::size_t attributes_at = 96;  // CTRATT
constexpr std::size_t controller_type_at = 111;
constexpr std::size_t abort_limit_at = 258;
constexpr std::size_t async_limit_at = 259;
constexpr std::size_t firmware_updates_at = 260;
constexpr std::size_t log_attributes_at = 261;
constexpr std::size_t error_entries_at = 262;
constexpr std::size_t keep_alive_at = 320;
constexpr std::size_t queue_entries_at = 512;  // SQES, CQES
constexpr std::size_t max_commands_at = 514;
constexpr std::size_t namespaces_at = 516;
constexpr std::size_t optional_commands_at = 520;
constexpr std::size_t write_cache_at = 525;
constexpr std::size_t sgls_at = 536;
constexpr std::size_t max_namespaces_at = 540;
constexpr std::size_t subsystem_at = 768;
constexpr std::size_t subsystem_bytes = 256;
constexpr std::size_t command_capsule_at = 1792;
constexpr std::size_t completion_capsule_at = 1796;
constexpr std::size_t in_capsule_offset_at = 1800;
constexpr std::size_t max_descriptors_at = 1803;

constexpr std::uint32_t capsule_unit = 16;
constexpr std::uint8_t io_controller = 1;
constexpr std::uint8_t discovery_controller = 2;
constexpr std::uint8_t entries_of_64_bytes = 0x66;
constexpr std::uint8_t entries_of_16_bytes = 0x44;

// Offsets of Identify Namespace.
constexpr std::size_t size_at = 0;
constexpr std::size_t capacity_at = 8;
constexpr std::size_t used_at = 16;
constexpr std::size_t features_at = 24;
constexpr std::size_t format_at = 26;
constexpr std::size_t namespace_sharing_at = 30;
constexpr std::size_t deallocation_at = 33;
constexpr std::size_t protection_at = 99;
constexpr std::size_t id_at = 104;
constexpr std::size_t formats_at = 128;
constexpr std::size_t format_bytes = 4;
constexpr std::uint8_t thin_provisioned = 1;
constexpr std::uint8_t reads_zeroes = 1;  // DLFEAT

std::span<const std::byte> whole(std::span<const std::byte> bytes) {
  if (bytes.size() < identify_bytes) malformed(fmt::format("data of Identify of {} bytes", bytes.size()));
  return bytes.first(identify_bytes);
}

std::span<std::byte> cleared(std::span<std::byte> into, std::size_t bytes) {
  if (into.size() < bytes) throw weft::error(weft::errc::out_of_range, "no room for an NVMe structure");
  std::ranges::fill(into.first(bytes), std::byte{0});
  return into.first(bytes);
}

}  // namespace

controller_identity decode_controller(std::span<const std::byte> data) {
  const auto bytes = whole(data);
  controller_identity found;
  found.serial = load_padded(bytes.subspan(serial_at, serial_bytes));
  found.model = load_padded(bytes.subspan(model_at, model_bytes));
  found.firmware = load_padded(bytes.subspan(firmware_at, firmware_text_bytes));
  found.max_transfer_shift = load<std::uint8_t>(bytes, transfer_shift_at);
  found.controller = load<std::uint16_t>(bytes, controller_at);
  found.version = load<std::uint32_t>(bytes, version_at);
  found.async_events = load<std::uint32_t>(bytes, async_events_at);
  found.is_discovery = load<std::uint8_t>(bytes, controller_type_at) == discovery_controller;
  found.async_event_limit = load<std::uint8_t>(bytes, async_limit_at);
  found.error_log_entries = load<std::uint8_t>(bytes, error_entries_at);
  found.log_attributes = load<std::uint8_t>(bytes, log_attributes_at);
  found.keep_alive_granularity = load<std::uint16_t>(bytes, keep_alive_at);
  found.max_commands = load<std::uint16_t>(bytes, max_commands_at);
  found.namespaces = load<std::uint32_t>(bytes, namespaces_at);
  found.optional_commands = load<std::uint16_t>(bytes, optional_commands_at);
  found.volatile_write_cache = (load<std::uint8_t>(bytes, write_cache_at) & 1) != 0;
  found.sgls = load<std::uint32_t>(bytes, sgls_at);
  if (auto name = load_terminated(bytes.subspan(subsystem_at, subsystem_bytes)); name && is_nqn(*name))
    found.subsystem = *std::move(name);
  // A number that does not fit says nothing a host could use.
  const auto capsule = [&](std::size_t at) {
    return std::min(load<std::uint32_t>(bytes, at), 0xffff'ffff / capsule_unit) * capsule_unit;
  };
  found.command_capsule_bytes = capsule(command_capsule_at);
  found.completion_capsule_bytes = capsule(completion_capsule_at);
  found.in_capsule_data_offset = static_cast<std::uint16_t>(
      std::min(load<std::uint16_t>(bytes, in_capsule_offset_at) * capsule_unit, std::uint32_t{0xfff0}));
  found.max_descriptors = load<std::uint8_t>(bytes, max_descriptors_at);
  return found;
}

void encode(const controller_identity& what, std::span<std::byte> into) {
  const auto room = cleared(into, identify_bytes);
  store_padded(room.subspan(serial_at, serial_bytes), what.serial);
  store_padded(room.subspan(model_at, model_bytes), what.model);
  store_padded(room.subspan(firmware_at, firmware_text_bytes), what.firmware);
  store<std::uint8_t>(room, sharing_at, 2);  // a subsystem has several controllers
  store<std::uint8_t>(room, transfer_shift_at, what.max_transfer_shift);
  store<std::uint16_t>(room, controller_at, what.controller);
  store<std::uint32_t>(room, version_at, what.version);
  store<std::uint32_t>(room, async_events_at, what.async_events);
  store<std::uint32_t>(room, attributes_at, 1);  // host identifiers of 16 bytes
  store<std::uint8_t>(room, controller_type_at, what.is_discovery ? discovery_controller : io_controller);
  store<std::uint8_t>(room, abort_limit_at, 3);
  store<std::uint8_t>(room, async_limit_at, what.async_event_limit);
  store<std::uint8_t>(room, firmware_updates_at, 3);  // one slot, which is read-only
  store<std::uint8_t>(room, log_attributes_at, what.log_attributes);
  store<std::uint8_t>(room, error_entries_at, what.error_log_entries);
  store<std::uint16_t>(room, keep_alive_at, what.keep_alive_granularity);
  store<std::uint8_t>(room, queue_entries_at, entries_of_64_bytes);
  store<std::uint8_t>(room, queue_entries_at + 1, entries_of_16_bytes);
  store<std::uint16_t>(room, max_commands_at, what.max_commands);
  store<std::uint32_t>(room, namespaces_at, what.namespaces);
  store<std::uint16_t>(room, optional_commands_at, what.optional_commands);
  store<std::uint8_t>(room, write_cache_at, what.volatile_write_cache ? 7 : 0);  // Flush takes every namespace, too
  store<std::uint32_t>(room, sgls_at, what.sgls);
  store<std::uint32_t>(room, max_namespaces_at, what.namespaces);
  store_terminated(room.subspan(subsystem_at, subsystem_bytes), what.subsystem);
  store<std::uint32_t>(room, command_capsule_at, what.command_capsule_bytes / capsule_unit);
  store<std::uint32_t>(room, completion_capsule_at, what.completion_capsule_bytes / capsule_unit);
  store<std::uint16_t>(room, in_capsule_offset_at,
                       static_cast<std::uint16_t>(what.in_capsule_data_offset / capsule_unit));
  store<std::uint8_t>(room, max_descriptors_at, what.max_descriptors);
}

namespace_identity decode_namespace(std::span<const std::byte> data) {
  const auto bytes = whole(data);
  namespace_identity found;
  found.blocks = load<std::uint64_t>(bytes, size_at);
  found.used_blocks = load<std::uint64_t>(bytes, used_at);
  const std::size_t format = formats_at + format_bytes * (load<std::uint8_t>(bytes, format_at) & 0xf);
  found.metadata_bytes = load<std::uint16_t>(bytes, format);
  found.block_shift = load<std::uint8_t>(bytes, format + 2);
  found.shared = (load<std::uint8_t>(bytes, namespace_sharing_at) & 1) != 0;
  found.zeroed_when_deallocated = (load<std::uint8_t>(bytes, deallocation_at) & 7) == reads_zeroes;
  found.write_protected = (load<std::uint8_t>(bytes, protection_at) & 1) != 0;
  std::ranges::copy(bytes.subspan(id_at, found.id.size()), found.id.begin());
  const bool exists = found.blocks != 0;
  if (exists && (found.block_shift < 9 || found.block_shift > 20))
    malformed(fmt::format("a namespace with blocks of 2^{} bytes", found.block_shift));
  return found;
}

void encode(const namespace_identity& what, std::span<std::byte> into) {
  const auto room = cleared(into, identify_bytes);
  store<std::uint64_t>(room, size_at, what.blocks);
  store<std::uint64_t>(room, capacity_at, what.blocks);
  store<std::uint64_t>(room, used_at, what.used_blocks);
  store<std::uint8_t>(room, features_at, what.used_blocks < what.blocks ? thin_provisioned : 0);
  store<std::uint8_t>(room, namespace_sharing_at, what.shared ? 1 : 0);
  store<std::uint8_t>(room, deallocation_at, what.zeroed_when_deallocated ? reads_zeroes : 0);
  store<std::uint8_t>(room, protection_at, what.write_protected ? 1 : 0);
  std::ranges::copy(what.id, room.begin() + id_at);
  store<std::uint16_t>(room, formats_at, what.metadata_bytes);
  store<std::uint8_t>(room, formats_at + 2, what.block_shift);
}

std::vector<std::uint32_t> decode_namespace_list(std::span<const std::byte> data) {
  const auto bytes = whole(data);
  std::vector<std::uint32_t> found;
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint32_t)) {
    const auto id = load<std::uint32_t>(bytes, at);
    if (id == 0) break;
    if (!found.empty() && id <= found.back()) malformed("a list of namespaces whose ids do not grow");
    found.push_back(id);
  }
  return found;
}

void encode_namespace_list(std::span<const std::uint32_t> ids, std::span<std::byte> into) {
  const auto room = cleared(into, identify_bytes);
  const std::size_t count = std::min(ids.size(), identify_bytes / sizeof(std::uint32_t));
  for (std::size_t i = 0; i < count; ++i) store<std::uint32_t>(room, i * sizeof(std::uint32_t), ids[i]);
}

void encode_changed_namespaces(std::span<const std::uint32_t> ids, std::span<std::byte> into) {
  static constexpr std::array any{every_namespace};
  constexpr std::size_t most = identify_bytes / sizeof(std::uint32_t);
  encode_namespace_list(ids.size() > most ? std::span<const std::uint32_t>(any) : ids, into);
}

void encode_descriptors(const identifier& id, std::span<std::byte> into) {
  constexpr std::uint8_t nguid = 2;
  constexpr std::uint8_t command_set = 4;
  constexpr std::size_t head = 4;
  const auto room = cleared(into, identify_bytes);
  store<std::uint8_t>(room, 0, nguid);
  store<std::uint8_t>(room, 1, static_cast<std::uint8_t>(id.size()));
  std::ranges::copy(id, room.begin() + head);
  store<std::uint8_t>(room, head + id.size(), command_set);
  store<std::uint8_t>(room, head + id.size() + 1, 1);  // one byte, of the value 0: the NVM command set
}

// ---- log pages ----

error_entry decode_error_entry(std::span<const std::byte> bytes) {
  return {.count = load<std::uint64_t>(bytes, 0),
          .queue_id = load<std::uint16_t>(bytes, 8),
          .command_id = load<std::uint16_t>(bytes, 10),
          .status = static_cast<status>(load<std::uint16_t>(bytes, 12) >> 1 & 0x7ff),
          .block = load<std::uint64_t>(bytes, 16),
          .nsid = load<std::uint32_t>(bytes, 24)};
}

void encode(const error_entry& what, std::span<std::byte> into) {
  const auto room = cleared(into, error_entry_bytes);
  store<std::uint64_t>(room, 0, what.count);
  store<std::uint16_t>(room, 8, what.queue_id);
  store<std::uint16_t>(room, 10, what.command_id);
  store<std::uint16_t>(room, 12, static_cast<std::uint16_t>(static_cast<std::uint32_t>(what.status) << 1));
  store<std::uint16_t>(room, 14, 0xffff);  // no particular parameter
  store<std::uint64_t>(room, 16, what.block);
  store<std::uint32_t>(room, 24, what.nsid);
}

health decode_health(std::span<const std::byte> bytes) {
  return {.units_read = load<std::uint64_t>(bytes, 32),
          .units_written = load<std::uint64_t>(bytes, 48),
          .reads = load<std::uint64_t>(bytes, 64),
          .writes = load<std::uint64_t>(bytes, 80),
          .media_errors = load<std::uint64_t>(bytes, 160),
          .error_entries = load<std::uint64_t>(bytes, 176)};
}

void encode(const health& what, std::span<std::byte> into) {
  constexpr std::uint16_t kelvin = 273 + 25;
  const auto room = cleared(into, health_bytes);
  store<std::uint16_t>(room, 1, kelvin);
  store<std::uint8_t>(room, 3, 100);  // per cent of the spare blocks
  store<std::uint8_t>(room, 4, 10);   // and the threshold
  store<std::uint64_t>(room, 32, what.units_read);
  store<std::uint64_t>(room, 48, what.units_written);
  store<std::uint64_t>(room, 64, what.reads);
  store<std::uint64_t>(room, 80, what.writes);
  store<std::uint64_t>(room, 160, what.media_errors);
  store<std::uint64_t>(room, 176, what.error_entries);
}

void encode_firmware(std::string_view revision, std::span<std::byte> into) {
  const auto room = cleared(into, firmware_bytes);
  store<std::uint8_t>(room, 0, 1);
  store_padded(room.subspan(8, firmware_text_bytes), revision);
}

}  // namespace nvme
