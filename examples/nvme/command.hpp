// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include <nvme/bytes.hpp>
#include <nvme/status.hpp>

// Commands and their completions: the capsules of NVMe over Fabrics. See "Submission Queue Entry", "Completion Queue
// Entry" and "Scatter Gather List" of the NVMe base specification.
namespace nvme {

inline constexpr std::size_t command_bytes = 64;
inline constexpr std::size_t completion_bytes = 16;
/// A namespace's id that stands for all of them.
inline constexpr std::uint32_t every_namespace = 0xffff'ffff;

enum class admin_opcode : std::uint8_t {
  get_log_page = 0x02,
  identify = 0x06,
  abort = 0x08,
  set_features = 0x09,
  async_event_request = 0x0c,
  keep_alive = 0x18,
};

enum class io_opcode : std::uint8_t {
  flush = 0x00,
  write = 0x01,
  read = 0x02,
  write_zeroes = 0x08,
  dataset_management = 0x09,
};

inline constexpr std::uint8_t fabrics_opcode = 0x7f;

enum class fabrics_type : std::uint8_t { property_set = 0x00, connect = 0x01, property_get = 0x04 };

/// Where a command's data are.
enum class sgl_type : std::uint8_t {
  host_memory = 0x40,             ///< `length` bytes of the host's memory, by address and key
  host_memory_invalidate = 0x4f,  ///< the same, and the completion shall revoke the key
  in_capsule = 0x01,              ///< `length` bytes of the capsule, `address` bytes behind the command
};

/// One SGL descriptor. `type` is what the wire says: hostile until it was compared.
struct sgl {
  sgl_type type = sgl_type::host_memory;
  std::uint64_t address = 0;  ///< or the offset, of data in the capsule
  std::uint32_t length = 0;   ///< at most max_keyed_bytes in the host's memory
  std::uint32_t key = 0;      ///< of the host's memory

  /// Whether `type` is one of those that carry a key.
  [[nodiscard]] bool is_keyed() const noexcept {
    return type == sgl_type::host_memory || type == sgl_type::host_memory_invalidate;
  }
  friend bool operator==(const sgl&, const sgl&) = default;
};

inline constexpr std::uint32_t max_keyed_bytes = 0xff'ffff;

/// Dwords 10 to 15 of a command, which belong to its opcode.
using command_dwords = std::array<std::uint32_t, 6>;

/// A submission queue entry.
struct command {
  std::uint8_t opcode = 0;
  std::uint8_t flags = 0x40;  ///< fused operation (bits 1:0), PSDT (bits 7:6): 0x40 means SGLs
  std::uint16_t id = 0;
  std::uint32_t nsid = 0;  ///< of a Fabrics command: its type, in the lowest byte
  sgl data{};
  command_dwords dwords{};

  [[nodiscard]] fabrics_type type() const noexcept { return static_cast<fabrics_type>(nsid & 0xff); }
  [[nodiscard]] bool is(fabrics_type what) const noexcept { return opcode == fabrics_opcode && type() == what; }
  friend bool operator==(const command&, const command&) = default;
};

/// Throws errc::malformed for less than command_bytes.
[[nodiscard]] command decode_command(std::span<const std::byte> bytes);
void encode(const command& what, std::span<std::byte> into);

/// A completion queue entry.
struct completion {
  std::uint64_t result = 0;
  std::uint16_t queue_head = 0;
  std::uint16_t queue_id = 0;
  std::uint16_t id = 0;  ///< of the command
  nvme::status status = status::success;
  bool do_not_retry = false;

  friend bool operator==(const completion&, const completion&) = default;
};

/// Throws errc::malformed for other than completion_bytes.
[[nodiscard]] completion decode_completion(std::span<const std::byte> bytes);
void encode(const completion& what, std::span<std::byte> into);

// ---- dwords 10 to 15 of each command ----

/// A member that is `width` bits from bit `at` on, counted from dword 10. It is sent in units, less `less`.
template <class Fields, class Member>
struct bits {
  constexpr bits(unsigned offset, unsigned count, Member Fields::*which, unsigned less_by = 0, unsigned in = 1) noexcept
      : at(offset), width(count), less(less_by), unit(in), member(which) {}

  [[nodiscard]] constexpr std::uint64_t mask() const noexcept { return ~std::uint64_t{0} >> (64 - width); }
  constexpr void load(const command_dwords& from, Fields& into) const noexcept {
    const unsigned first = at / 32;
    const std::uint64_t second = first + 1 < from.size() ? from[first + 1] : 0;
    const std::uint64_t sent = (from[first] | second << 32) >> at % 32 & mask();
    into.*member = static_cast<Member>((sent + less) * unit);
  }
  constexpr void store(const Fields& what, command_dwords& into) const noexcept {
    const std::uint64_t sent = (static_cast<std::uint64_t>(what.*member) / unit - less) & mask();
    const unsigned first = at / 32;
    into[first] |= static_cast<std::uint32_t>(sent << at % 32);
    if (at % 32 + width > 32) into[first + 1] |= static_cast<std::uint32_t>(sent >> (32 - at % 32));
  }

  unsigned at;
  unsigned width;
  unsigned less;
  unsigned unit;
  Member Fields::*member;
};

/// What the dwords of a command say, as one of the structures below.
template <class Fields>
[[nodiscard]] Fields fields_of(const command& from) noexcept {
  Fields found;
  std::apply([&](const auto&... each) { (each.load(from.dwords, found), ...); }, Fields::layout());
  return found;
}
template <class Fields>
  requires requires { Fields::layout(); }
void put(command& into, const Fields& what) noexcept {
  into.dwords = {};
  std::apply([&](const auto&... each) { (each.store(what, into.dwords), ...); }, Fields::layout());
}

struct connect_fields {
  std::uint16_t format = 0;
  std::uint16_t queue_id = 0;
  std::uint16_t queue_size = 0;  ///< one less than the number of entries
  std::uint32_t keep_alive_ms = 0;

  static constexpr auto layout() noexcept {
    return std::tuple(bits(0, 16, &connect_fields::format), bits(16, 16, &connect_fields::queue_id),
                      bits(32, 16, &connect_fields::queue_size), bits(64, 32, &connect_fields::keep_alive_ms));
  }
};

/// Property Get and Property Set.
struct property_fields {
  std::uint8_t wide = 0;  ///< 1: eight bytes, else four
  std::uint32_t offset = 0;
  std::uint64_t value = 0;  ///< of Property Set

  static constexpr auto layout() noexcept {
    return std::tuple(bits(0, 3, &property_fields::wide), bits(32, 32, &property_fields::offset),
                      bits(64, 64, &property_fields::value));
  }
};

/// Read, Write, Write Zeroes.
struct block_fields {
  std::uint64_t first = 0;
  std::uint32_t count = 0;         ///< of blocks: 1 to 65536
  bool force_unit_access = false;  ///< complete only when the data are where they survive a loss of power
  std::uint8_t protection = 0;     ///< other than 0: asks for protection information, which needs metadata

  static constexpr auto layout() noexcept {
    return std::tuple(bits(0, 64, &block_fields::first), bits(64, 16, &block_fields::count, 1),
                      bits(94, 1, &block_fields::force_unit_access), bits(90, 4, &block_fields::protection));
  }
};

/// Get Log Page.
struct log_fields {
  std::uint8_t page = 0;
  std::uint64_t bytes = 0;   ///< how many to give, a multiple of four
  std::uint64_t offset = 0;  ///< from where on
  bool retain_event = false;

  static constexpr auto layout() noexcept {
    return std::tuple(bits(0, 8, &log_fields::page), bits(16, 32, &log_fields::bytes, 1, 4),
                      bits(64, 64, &log_fields::offset), bits(15, 1, &log_fields::retain_event));
  }
};

/// Identify.
struct identify_fields {
  std::uint8_t structure = 0;  ///< CNS
  std::uint8_t command_set = 0;

  static constexpr auto layout() noexcept {
    return std::tuple(bits(0, 8, &identify_fields::structure), bits(56, 8, &identify_fields::command_set));
  }
};

/// Set Features.
struct feature_fields {
  std::uint8_t feature = 0;
  bool save = false;
  std::uint32_t value = 0;

  static constexpr auto layout() noexcept {
    return std::tuple(bits(0, 8, &feature_fields::feature), bits(31, 1, &feature_fields::save),
                      bits(32, 32, &feature_fields::value));
  }
};

enum class feature : std::uint8_t { number_of_queues = 0x07, async_event_configuration = 0x0b };

/// Dataset Management.
struct dataset_fields {
  std::uint16_t ranges = 0;  ///< 1 to 256
  bool deallocate = false;

  static constexpr auto layout() noexcept {
    return std::tuple(bits(0, 8, &dataset_fields::ranges, 1), bits(34, 1, &dataset_fields::deallocate));
  }
};

/// One of the ranges in the data of Dataset Management.
struct dataset_range {
  static constexpr std::size_t bytes = 16;
  static constexpr std::string_view name = "a range of Dataset Management";

  std::uint64_t first = 0;
  std::uint32_t count = 0;  ///< of blocks

  static constexpr auto layout() noexcept {
    return std::tuple(field(4, &dataset_range::count), field(8, &dataset_range::first));
  }
  friend bool operator==(const dataset_range&, const dataset_range&) = default;
};
/// Throws errc::malformed for a part of a range.
[[nodiscard]] std::vector<dataset_range> decode_dataset_ranges(std::span<const std::byte> bytes);

/// "Read of blocks 8 to 15 of namespace 1"
[[nodiscard]] std::string describe(const command& asked, bool is_admin);

}  // namespace nvme
