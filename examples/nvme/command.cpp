// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <cstring>

#include <nvme/command.hpp>

namespace nvme {
namespace {

constexpr std::size_t sgl_at = 24;
constexpr std::size_t sgl_type_at = sgl_at + 15;
constexpr std::size_t dwords_at = 40;

constexpr std::uint16_t status_mask = 0x7ff;
constexpr std::uint16_t do_not_retry_bit = 1 << 14;

sgl decode_sgl(std::span<const std::byte> bytes) {
  sgl found;
  found.type = static_cast<sgl_type>(load<std::uint8_t>(bytes, sgl_type_at));
  found.address = load<std::uint64_t>(bytes, sgl_at);
  const auto length = load<std::uint32_t>(bytes, sgl_at + 8);
  if (!found.is_keyed()) {
    found.length = length;
    return found;
  }
  found.length = length & max_keyed_bytes;
  found.key = load<std::uint32_t>(bytes, sgl_at + 11);
  return found;
}

void encode_sgl(const sgl& what, std::span<std::byte> into) {
  store<std::uint64_t>(into, sgl_at, what.address);
  store<std::uint32_t>(into, sgl_at + 8, what.length);
  if (what.is_keyed()) {
    if (what.length > max_keyed_bytes)
      throw weft::error(weft::errc::out_of_range, fmt::format("an SGL of {} bytes", what.length));
    store<std::uint32_t>(into, sgl_at + 11, what.key);
  }
  store<std::uint8_t>(into, sgl_type_at, static_cast<std::uint8_t>(what.type));
}

struct verb {
  std::uint8_t opcode;
  std::string_view words;
};

template <class Opcode>
constexpr verb named(Opcode opcode, std::string_view words) {
  return {static_cast<std::uint8_t>(opcode), words};
}

constexpr std::array io_verbs{
    named(io_opcode::flush, "Flush"),
    named(io_opcode::write, "Write"),
    named(io_opcode::read, "Read"),
    named(io_opcode::write_zeroes, "Write Zeroes"),
    named(io_opcode::dataset_management, "Dataset Management"),
};
constexpr std::array admin_verbs{
    named(admin_opcode::get_log_page, "Get Log Page"),
    named(admin_opcode::identify, "Identify"),
    named(admin_opcode::abort, "Abort"),
    named(admin_opcode::set_features, "Set Features"),
    named(admin_opcode::async_event_request, "Asynchronous Event Request"),
    named(admin_opcode::keep_alive, "Keep Alive"),
};
constexpr std::array fabrics_verbs{
    named(fabrics_type::property_set, "Property Set"),
    named(fabrics_type::connect, "Connect"),
    named(fabrics_type::property_get, "Property Get"),
};

std::string_view verb_of(std::span<const verb> all, std::uint8_t opcode) {
  const auto found = std::ranges::find(all, opcode, &verb::opcode);
  return found == all.end() ? "a command" : found->words;
}

}  // namespace

command decode_command(std::span<const std::byte> bytes) {
  if (bytes.size() < command_bytes) malformed(fmt::format("a command capsule of {} bytes", bytes.size()));
  command found;
  found.opcode = load<std::uint8_t>(bytes, 0);
  found.flags = load<std::uint8_t>(bytes, 1);
  found.id = load<std::uint16_t>(bytes, 2);
  found.nsid = load<std::uint32_t>(bytes, 4);
  found.data = decode_sgl(bytes);
  std::memcpy(found.dwords.data(), bytes.data() + dwords_at, sizeof found.dwords);
  return found;
}

void encode(const command& what, std::span<std::byte> into) {
  if (into.size() < command_bytes) throw weft::error(weft::errc::out_of_range, "no room for a command");
  const auto room = into.first(command_bytes);
  std::ranges::fill(room, std::byte{0});
  store<std::uint8_t>(room, 0, what.opcode);
  store<std::uint8_t>(room, 1, what.flags);
  store<std::uint16_t>(room, 2, what.id);
  store<std::uint32_t>(room, 4, what.nsid);
  encode_sgl(what.data, room);
  std::memcpy(room.data() + dwords_at, what.dwords.data(), sizeof what.dwords);
}

completion decode_completion(std::span<const std::byte> bytes) {
  if (bytes.size() != completion_bytes) malformed(fmt::format("a completion of {} bytes", bytes.size()));
  completion found;
  found.result = load<std::uint64_t>(bytes, 0);
  found.queue_head = load<std::uint16_t>(bytes, 8);
  found.queue_id = load<std::uint16_t>(bytes, 10);
  found.id = load<std::uint16_t>(bytes, 12);
  const auto sent = static_cast<std::uint16_t>(load<std::uint16_t>(bytes, 14) >> 1);
  found.status = static_cast<status>(sent & status_mask);
  found.do_not_retry = (sent & do_not_retry_bit) != 0;
  return found;
}

void encode(const completion& what, std::span<std::byte> into) {
  const auto sent = static_cast<std::uint32_t>(what.status) | (what.do_not_retry ? do_not_retry_bit : 0U);
  store<std::uint64_t>(into, 0, what.result);
  store<std::uint16_t>(into, 8, what.queue_head);
  store<std::uint16_t>(into, 10, what.queue_id);
  store<std::uint16_t>(into, 12, what.id);
  store<std::uint16_t>(into, 14, static_cast<std::uint16_t>(sent << 1));
}

std::vector<dataset_range> decode_dataset_ranges(std::span<const std::byte> bytes) {
  if (bytes.size() % dataset_range::bytes != 0) malformed("a range of Dataset Management that is cut short");
  std::vector<dataset_range> found;
  found.reserve(bytes.size() / dataset_range::bytes);
  for (; !bytes.empty(); bytes = bytes.subspan(dataset_range::bytes)) found.push_back(decode<dataset_range>(bytes));
  return found;
}

std::string describe(const command& asked, bool is_admin) {
  if (asked.opcode == fabrics_opcode)
    return std::string(verb_of(fabrics_verbs, static_cast<std::uint8_t>(asked.type())));
  if (is_admin) return std::string(verb_of(admin_verbs, asked.opcode));
  const std::string_view verb = verb_of(io_verbs, asked.opcode);
  const auto opcode = static_cast<io_opcode>(asked.opcode);
  if (opcode == io_opcode::flush || opcode == io_opcode::dataset_management)
    return fmt::format("{} of namespace {}", verb, asked.nsid);
  const auto where = fields_of<block_fields>(asked);
  return fmt::format("{} of blocks {} to {} of namespace {}", verb, where.first, where.first + (where.count - 1),
                     asked.nsid);
}

}  // namespace nvme
