// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <nvme/bytes.hpp>
#include <nvme/command.hpp>

namespace nvme {
namespace {

constexpr std::size_t sgl_at = 24;
constexpr std::size_t sgl_type_at = sgl_at + 15;
constexpr std::size_t dwords_at = 40;

constexpr std::uint16_t status_mask = 0x7ff;
constexpr std::uint16_t do_not_retry_bit = 1 << 14;

constexpr std::uint32_t bit(unsigned place) { return std::uint32_t{1} << place; }
constexpr bool has(std::uint32_t word, unsigned place) { return (word >> place & 1) != 0; }
constexpr std::uint16_t low(std::uint32_t word) { return static_cast<std::uint16_t>(word); }
constexpr std::uint16_t high(std::uint32_t word) { return static_cast<std::uint16_t>(word >> 16); }
constexpr std::uint32_t both(std::uint16_t first, std::uint16_t second) { return first | std::uint32_t{second} << 16; }
constexpr std::uint64_t wide(std::uint32_t first, std::uint32_t second) { return first | std::uint64_t{second} << 32; }
constexpr std::uint32_t lower(std::uint64_t value) { return static_cast<std::uint32_t>(value); }
constexpr std::uint32_t upper(std::uint64_t value) { return static_cast<std::uint32_t>(value >> 32); }

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

}  // namespace

command decode_command(std::span<const std::byte> bytes) {
  if (bytes.size() < command_bytes) malformed(fmt::format("a command capsule of {} bytes", bytes.size()));
  command found;
  found.opcode = load<std::uint8_t>(bytes, 0);
  found.flags = load<std::uint8_t>(bytes, 1);
  found.id = load<std::uint16_t>(bytes, 2);
  found.nsid = load<std::uint32_t>(bytes, 4);
  found.data = decode_sgl(bytes);
  for (std::size_t i = 0; i < found.dwords.size(); ++i)
    found.dwords[i] = load<std::uint32_t>(bytes, dwords_at + sizeof(std::uint32_t) * i);
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
  for (std::size_t i = 0; i < what.dwords.size(); ++i)
    store<std::uint32_t>(room, dwords_at + sizeof(std::uint32_t) * i, what.dwords[i]);
}

completion decode_completion(std::span<const std::byte> bytes) {
  if (bytes.size() != completion_bytes) malformed(fmt::format("a completion of {} bytes", bytes.size()));
  completion found;
  found.result = load<std::uint64_t>(bytes, 0);
  found.queue_head = load<std::uint16_t>(bytes, 8);
  found.queue_id = load<std::uint16_t>(bytes, 10);
  found.id = load<std::uint16_t>(bytes, 12);
  const auto field = static_cast<std::uint16_t>(load<std::uint16_t>(bytes, 14) >> 1);
  found.status = static_cast<status>(field & status_mask);
  found.do_not_retry = (field & do_not_retry_bit) != 0;
  return found;
}

void encode(const completion& what, std::span<std::byte> into) {
  const auto field = static_cast<std::uint32_t>(what.status) | (what.do_not_retry ? do_not_retry_bit : 0U);
  store<std::uint64_t>(into, 0, what.result);
  store<std::uint16_t>(into, 8, what.queue_head);
  store<std::uint16_t>(into, 10, what.queue_id);
  store<std::uint16_t>(into, 12, what.id);
  store<std::uint16_t>(into, 14, static_cast<std::uint16_t>(field << 1));
}

connect_fields connect_of(const command& from) noexcept {
  const auto& words = from.dwords;
  return {.format = low(words[0]),
          .queue_id = high(words[0]),
          .queue_size = low(words[1]),
          .attributes = static_cast<std::uint8_t>(words[1] >> 16),
          .keep_alive_ms = words[2]};
}

void put(command& into, const connect_fields& what) noexcept {
  into.dwords[0] = both(what.format, what.queue_id);
  into.dwords[1] = both(what.queue_size, what.attributes);
  into.dwords[2] = what.keep_alive_ms;
}

property_fields property_of(const command& from) noexcept {
  const auto& words = from.dwords;
  return {.wide = (words[0] & 7) == 1, .offset = words[1], .value = wide(words[2], words[3])};
}

void put(command& into, const property_fields& what) noexcept {
  into.dwords[0] = what.wide ? 1 : 0;
  into.dwords[1] = what.offset;
  into.dwords[2] = lower(what.value);
  into.dwords[3] = upper(what.value);
}

block_fields blocks_of(const command& from) noexcept {
  const auto& words = from.dwords;
  return {.first = wide(words[0], words[1]),
          .count = std::uint32_t{low(words[2])} + 1,
          .force_unit_access = has(words[2], 30),
          .deallocate = has(words[2], 25),
          .protection = (words[2] >> 26 & 0xf) != 0};
}

void put(command& into, const block_fields& what) noexcept {
  into.dwords[0] = lower(what.first);
  into.dwords[1] = upper(what.first);
  into.dwords[2] = ((what.count - 1) & 0xffff) | (what.force_unit_access ? bit(30) : 0) |
                   (what.deallocate ? bit(25) : 0) | (what.protection ? bit(29) : 0);
}

log_fields log_of(const command& from) noexcept {
  const auto& words = from.dwords;
  return {.page = static_cast<std::uint8_t>(words[0]),
          .bytes = (std::uint64_t{both(high(words[0]), low(words[1]))} + 1) * sizeof(std::uint32_t),
          .offset = wide(words[2], words[3]),
          .retain_event = has(words[0], 15)};
}

void put(command& into, const log_fields& what) noexcept {
  const auto count = static_cast<std::uint32_t>(what.bytes / sizeof(std::uint32_t) - 1);
  into.dwords[0] = what.page | (what.retain_event ? bit(15) : 0) | std::uint32_t{low(count)} << 16;
  into.dwords[1] = high(count);
  into.dwords[2] = lower(what.offset);
  into.dwords[3] = upper(what.offset);
}

identify_fields identify_of(const command& from) noexcept {
  return {.structure = static_cast<std::uint8_t>(from.dwords[0]), .controller = high(from.dwords[0])};
}

void put(command& into, const identify_fields& what) noexcept {
  into.dwords[0] = both(what.structure, what.controller);
}

feature_fields feature_of(const command& from) noexcept {
  const auto word = from.dwords[0];
  return {.feature = static_cast<std::uint8_t>(word),
          .save = has(word, 31),
          .select = static_cast<std::uint8_t>(word >> 8 & 7),
          .value = from.dwords[1]};
}

void put(command& into, const feature_fields& what) noexcept {
  into.dwords[0] = what.feature | std::uint32_t{what.select} << 8 | (what.save ? bit(31) : 0);
  into.dwords[1] = what.value;
}

dataset_fields dataset_of(const command& from) noexcept {
  return {.ranges = static_cast<std::uint16_t>((from.dwords[0] & 0xff) + 1), .deallocate = has(from.dwords[1], 2)};
}

void put(command& into, const dataset_fields& what) noexcept {
  into.dwords[0] = (what.ranges - 1U) & 0xff;
  into.dwords[1] = what.deallocate ? bit(2) : 0;
}

std::vector<dataset_range> decode_dataset_ranges(std::span<const std::byte> bytes) {
  if (bytes.size() % dataset_range_bytes != 0) malformed("a range of Dataset Management that is cut short");
  std::vector<dataset_range> found;
  found.reserve(bytes.size() / dataset_range_bytes);
  for (; !bytes.empty(); bytes = bytes.subspan(dataset_range_bytes))
    found.push_back({.first = load<std::uint64_t>(bytes, 8), .count = load<std::uint32_t>(bytes, 4)});
  return found;
}

void encode(const dataset_range& what, std::span<std::byte> into) {
  store<std::uint32_t>(into, 0, 0);
  store<std::uint32_t>(into, 4, what.count);
  store<std::uint64_t>(into, 8, what.first);
}

}  // namespace nvme
