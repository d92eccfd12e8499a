// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <charconv>

#include <nvme/bytes.hpp>
#include <nvme/fabrics.hpp>

namespace nvme {
namespace {

constexpr std::size_t nqn_field_bytes = 256;

// What a peer has put in a field for a qualified name; empty if that is none.
std::string nqn_in(std::span<const std::byte> bytes, std::size_t offset) {
  auto found = load_terminated(bytes.subspan(offset, nqn_field_bytes));
  return found && is_nqn(*found) ? *std::move(found) : std::string();
}

bool is_dash(std::size_t place) { return place == 8 || place == 13 || place == 18 || place == 23; }

}  // namespace

bool is_nqn(std::string_view name) noexcept {
  const auto is_printable = [](char each) { return each > ' ' && each <= '~'; };
  return name.size() <= longest_nqn && name.size() > 4 && name.starts_with("nqn.") &&
         std::ranges::all_of(name, is_printable);
}

std::string to_string(const identifier& what) {
  std::string text;
  for (const std::byte each : what) {
    if (is_dash(text.size())) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned>(each));
  }
  return text;
}

std::optional<identifier> parse_identifier(std::string_view text) {
  if (text.size() != 36) return std::nullopt;
  identifier found{};
  std::size_t at = 0;
  for (std::byte& each : found) {
    if (is_dash(at) && text[at++] != '-') return std::nullopt;
    std::uint8_t value = 0;
    const char* const first = text.data() + at;
    if (std::from_chars(first, first + 2, value, 16).ptr != first + 2) return std::nullopt;
    each = std::byte{value};
    at += 2;
  }
  return found;
}

// ---- private data ----

std::optional<cm_request> decode_cm_request(std::span<const std::byte> bytes) {
  if (bytes.size() < cm_bytes) return std::nullopt;
  return cm_request{.format = load<std::uint16_t>(bytes, 0),
                    .queue_id = load<std::uint16_t>(bytes, 2),
                    .receive_queue_size = load<std::uint16_t>(bytes, 4),
                    .send_queue_size = load<std::uint16_t>(bytes, 6),
                    .controller = load<std::uint16_t>(bytes, 8)};
}

std::array<std::byte, cm_bytes> encode(const cm_request& what) {
  std::array<std::byte, cm_bytes> bytes{};
  store<std::uint16_t>(bytes, 0, what.format);
  store<std::uint16_t>(bytes, 2, what.queue_id);
  store<std::uint16_t>(bytes, 4, what.receive_queue_size);
  store<std::uint16_t>(bytes, 6, what.send_queue_size);
  store<std::uint16_t>(bytes, 8, what.controller);
  return bytes;
}

std::optional<cm_reply> decode_cm_reply(std::span<const std::byte> bytes) {
  if (bytes.size() < cm_bytes) return std::nullopt;
  return cm_reply{.format = load<std::uint16_t>(bytes, 0), .receive_queue_size = load<std::uint16_t>(bytes, 2)};
}

std::array<std::byte, cm_bytes> encode(const cm_reply& what) {
  std::array<std::byte, cm_bytes> bytes{};
  store<std::uint16_t>(bytes, 0, what.format);
  store<std::uint16_t>(bytes, 2, what.receive_queue_size);
  return bytes;
}

std::optional<cm_rejection> decode_cm_rejection(std::span<const std::byte> bytes) {
  if (bytes.size() < cm_rejection_bytes) return std::nullopt;
  return cm_rejection{.format = load<std::uint16_t>(bytes, 0),
                      .reason = static_cast<reject_reason>(load<std::uint16_t>(bytes, 2))};
}

std::array<std::byte, cm_rejection_bytes> encode(const cm_rejection& what) {
  std::array<std::byte, cm_rejection_bytes> bytes{};
  store<std::uint16_t>(bytes, 0, what.format);
  store<std::uint16_t>(bytes, 2, static_cast<std::uint16_t>(what.reason));
  return bytes;
}

// ---- Connect ----

connect_data decode_connect_data(std::span<const std::byte> bytes) {
  if (bytes.size() < connect_data::bytes) malformed(fmt::format("data of Connect of {} bytes", bytes.size()));
  connect_data found;
  std::ranges::copy(bytes.subspan(connect_data::host_id_at, found.host_id.size()), found.host_id.begin());
  found.controller = load<std::uint16_t>(bytes, connect_data::controller_at);
  found.subsystem = nqn_in(bytes, connect_data::subsystem_at);
  found.host = nqn_in(bytes, connect_data::host_at);
  return found;
}

void encode(const connect_data& what, std::span<std::byte> into) {
  if (into.size() < connect_data::bytes) throw weft::error(weft::errc::out_of_range, "no room for the data of Connect");
  const auto room = into.first(connect_data::bytes);
  std::ranges::fill(room, std::byte{0});
  std::ranges::copy(what.host_id, room.begin() + connect_data::host_id_at);
  store<std::uint16_t>(room, connect_data::controller_at, what.controller);
  store_terminated(room.subspan(connect_data::subsystem_at, nqn_field_bytes), what.subsystem);
  store_terminated(room.subspan(connect_data::host_at, nqn_field_bytes), what.host);
}

// ---- properties ----

controller_capabilities decode_capabilities(std::uint64_t property) noexcept {
  return {.max_queue_entries = static_cast<std::uint16_t>(property),
          .ready_timeout = static_cast<std::uint8_t>(property >> 24)};
}

std::uint64_t encode(const controller_capabilities& what) noexcept {
  constexpr std::uint64_t contiguous_queues = std::uint64_t{1} << 16;
  constexpr std::uint64_t nvm_command_set = std::uint64_t{1} << 37;
  return what.max_queue_entries | contiguous_queues | std::uint64_t{what.ready_timeout} << 24 | nvm_command_set;
}

// ---- discovery ----

namespace {

constexpr std::size_t service_at = 32;
constexpr std::size_t service_bytes = 32;
constexpr std::size_t subsystem_at = 256;
constexpr std::size_t address_at = 512;
constexpr std::size_t address_bytes = 256;
constexpr std::size_t transport_specific_at = 768;

void encode(const discovery_entry& what, std::span<std::byte> into) {
  constexpr std::uint8_t not_required = 2;  // TREQ: a secure channel
  constexpr std::uint8_t reliable_connected = 1;
  constexpr std::uint8_t unspecified = 1;
  constexpr std::uint8_t rdma_cm = 1;
  store<std::uint8_t>(into, 0, what.transport);
  store<std::uint8_t>(into, 1, static_cast<std::uint8_t>(what.family));
  store<std::uint8_t>(into, 2, static_cast<std::uint8_t>(what.type));
  store<std::uint8_t>(into, 3, not_required);
  store<std::uint16_t>(into, 4, what.port_id);
  store<std::uint16_t>(into, 6, what.controller);
  store<std::uint16_t>(into, 8, what.admin_entries);
  store_padded(into.subspan(service_at, service_bytes), what.service);
  store_terminated(into.subspan(subsystem_at, nqn_field_bytes), what.subsystem);
  store_padded(into.subspan(address_at, address_bytes), what.address);
  store<std::uint8_t>(into, transport_specific_at, reliable_connected);
  store<std::uint8_t>(into, transport_specific_at + 1, unspecified);
  store<std::uint8_t>(into, transport_specific_at + 2, rdma_cm);
}

}  // namespace

std::vector<std::byte> encode(const discovery_log& what) {
  std::vector<std::byte> page(discovery_header_bytes + what.entries.size() * discovery_entry_bytes);
  std::span<std::byte> rest(page);
  store<std::uint64_t>(rest, 0, what.generation);
  store<std::uint64_t>(rest, 8, what.entries.size());
  for (const discovery_entry& each : what.entries) {
    rest = rest.last(rest.size() - discovery_entry_bytes);
    encode(each, rest.first(discovery_entry_bytes));
  }
  return page;
}

discovery_header decode_discovery_header(std::span<const std::byte> bytes) {
  if (bytes.size() < discovery_header_bytes) malformed("a discovery log page that is cut short");
  if (const auto format = load<std::uint16_t>(bytes, 16); format != 0)
    malformed(fmt::format("a discovery log page of format {}", format));
  return {.generation = load<std::uint64_t>(bytes, 0), .entries = load<std::uint64_t>(bytes, 8)};
}

discovery_entry decode_discovery_entry(std::span<const std::byte> bytes) {
  if (bytes.size() < discovery_entry_bytes) malformed("an entry of the discovery log page that is cut short");
  discovery_entry found;
  found.transport = load<std::uint8_t>(bytes, 0);
  found.family = static_cast<address_family>(load<std::uint8_t>(bytes, 1));
  found.type = static_cast<subsystem_type>(load<std::uint8_t>(bytes, 2));
  found.port_id = load<std::uint16_t>(bytes, 4);
  found.controller = load<std::uint16_t>(bytes, 6);
  found.admin_entries = load<std::uint16_t>(bytes, 8);
  found.service = load_padded(bytes.subspan(service_at, service_bytes));
  found.subsystem = nqn_in(bytes, subsystem_at);
  found.address = load_padded(bytes.subspan(address_at, address_bytes));
  return found;
}

}  // namespace nvme
