// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include <nvme/bytes.hpp>
#include <nvme/fabrics.hpp>

// What a target says of itself: the data of Identify and of log pages. See "Identify Data Structures" and "Get Log
// Page" of the NVMe base specification. Of each structure only the fields that have a use here are kept.
namespace nvme {

inline constexpr std::size_t identify_bytes = 4096;

/// CNS of Identify: which structure is asked for.
enum class identify_structure : std::uint8_t {
  name_space = 0x00,
  controller = 0x01,
  active_namespaces = 0x02,
  descriptors = 0x03,
  command_set_controller = 0x06,
};

/// 1.4.0, in the form of the property VS.
inline constexpr std::uint32_t nvme_version = 0x1'04'00;

enum class controller_type : std::uint8_t { io = 1, discovery = 2 };

struct controller_identity {
  static constexpr std::size_t bytes = identify_bytes;
  static constexpr std::string_view name = "data of Identify";

  std::string serial;    ///< at most 20 characters
  std::string model;     ///< at most 40
  std::string firmware;  ///< at most 8
  /// The most bytes of one command's data: 4096 shifted left by so much. 0: no limit.
  std::uint8_t max_transfer_shift = 0;
  std::uint16_t controller = 0;
  std::uint32_t version = nvme_version;
  std::uint32_t async_events = 0;  ///< OAES
  controller_type type = controller_type::io;
  std::uint8_t async_event_limit = 0;   ///< one less than how many requests may be outstanding
  std::uint16_t max_commands = 0;       ///< outstanding on one I/O queue
  std::uint32_t namespaces = 0;         ///< the largest id
  std::uint16_t optional_commands = 0;  ///< ONCS
  std::uint8_t write_cache = 0;         ///< bit 0: there is one; bits 2 and 1: Flush takes every namespace
  std::uint32_t sgls = 0;
  std::string subsystem;                       ///< its NQN; empty if what came is none
  std::uint32_t command_capsule_bytes = 0;     ///< a multiple of 16
  std::uint32_t completion_capsule_bytes = 0;  ///< likewise
  std::uint16_t in_capsule_data_offset = 0;    ///< likewise, counted from the end of the command

  static constexpr auto layout() noexcept {
    using one = controller_identity;
    return std::tuple(
        field(4, &one::serial, 20), field(24, &one::model, 40), field(64, &one::firmware, 8),
        fixed<std::uint8_t>(76, 2),  // a subsystem has several controllers
        field(77, &one::max_transfer_shift), field(78, &one::controller), field(80, &one::version),
        field(92, &one::async_events), fixed<std::uint32_t>(96, 1),        // host identifiers of 16 bytes
        field(111, &one::type), fixed<std::uint8_t>(258, 3),               // aborts at a time, one less
        field(259, &one::async_event_limit), fixed<std::uint8_t>(260, 3),  // one slot of firmware, which is read-only
        fixed<std::uint8_t>(261, 4),                                       // log pages may be read from an offset on
        fixed<std::uint16_t>(320, 1),  // the keep alive timer counts in units of 100 ms
        fixed<std::uint8_t>(512, 0x66), fixed<std::uint8_t>(513, 0x44),  // queue entries of 64 and of 16 bytes
        field(514, &one::max_commands), field(516, &one::namespaces), field(520, &one::optional_commands),
        field(525, &one::write_cache), field(536, &one::sgls), field(768, &one::subsystem),
        field(1792, &one::command_capsule_bytes, 16), field(1796, &one::completion_capsule_bytes, 16),
        field(1800, &one::in_capsule_data_offset, 16), fixed<std::uint8_t>(1803, 1));  // SGL descriptors in a capsule
  }
  friend bool operator==(const controller_identity&, const controller_identity&) = default;
};

/// Bits of controller_identity::sgls.
namespace sgl_support {
inline constexpr std::uint32_t supported = 1;
inline constexpr std::uint32_t keyed = 1U << 2;
inline constexpr std::uint32_t in_capsule_offset = 1U << 20;
}  // namespace sgl_support

/// Bits of controller_identity::optional_commands.
namespace optional_command {
inline constexpr std::uint16_t dataset_management = 1U << 2;
inline constexpr std::uint16_t write_zeroes = 1U << 3;
}  // namespace optional_command

/// The block size, and what comes with each block, are in the format that the structure names as its own.
struct namespace_identity {
  static constexpr std::size_t bytes = identify_bytes;
  static constexpr std::string_view name = "data of Identify";

  std::uint64_t blocks = 0;
  std::uint8_t block_shift = 9;      ///< a block has 1 << block_shift bytes
  std::uint16_t metadata_bytes = 0;  ///< with each block
  std::uint8_t write_protected = 0;  ///< bit 0
  identifier id{};                   ///< NGUID

  static constexpr auto layout() noexcept {
    using one = namespace_identity;
    return std::tuple(field(0, &one::blocks), fixed<std::uint8_t>(30, 1),  // controllers share it
                      field(99, &one::write_protected), field(104, &one::id));
  }
  [[nodiscard]] bool is_read_only() const noexcept { return (write_protected & 1) != 0; }
  friend bool operator==(const namespace_identity&, const namespace_identity&) = default;
};
/// Throws errc::malformed for less than identify_bytes, and for a block that is not of 512 bytes to 1 MiB.
[[nodiscard]] namespace_identity decode_namespace(std::span<const std::byte> bytes);
void encode(const namespace_identity& what, std::span<std::byte> into);

/// A list of active, or of changed, namespaces holds so many.
inline constexpr std::size_t most_listed = identify_bytes / sizeof(std::uint32_t);
/// The ids in the data, up to the first zero. Throws errc::malformed for ids that do not grow.
[[nodiscard]] std::vector<std::uint32_t> decode_namespace_list(std::span<const std::byte> bytes);
/// As many as fit.
void encode_namespace_list(std::span<const std::uint32_t> ids, std::span<std::byte> into);

/// The list of a namespace's identification descriptors: its NGUID, and that it has the NVM command set.
struct namespace_descriptors {
  static constexpr std::size_t bytes = identify_bytes;
  static constexpr std::string_view name = "data of Identify";

  identifier id{};

  static constexpr auto layout() noexcept {
    return std::tuple(fixed<std::uint8_t>(0, 2), fixed<std::uint8_t>(1, 16),  // an NGUID, of 16 bytes
                      field(4, &namespace_descriptors::id), fixed<std::uint8_t>(20, 4),
                      fixed<std::uint8_t>(21, 1));  // the command set, of one byte: 0
  }
};

// ---- log pages ----

enum class log_page : std::uint8_t { health = 0x02, changed_namespaces = 0x04, discovery = discovery_log_page };

/// The health log of a disk of software: it is well. Linux reads it when it connects.
struct health {
  static constexpr std::size_t bytes = 512;
  static constexpr std::string_view name = "a health log";

  static constexpr auto layout() noexcept {
    return std::tuple(fixed<std::uint16_t>(1, 273 + 25),                         // its temperature in kelvin
                      fixed<std::uint8_t>(3, 100), fixed<std::uint8_t>(4, 10));  // per cent of spare blocks, threshold
  }
};

// ---- asynchronous events ----

/// The bit of OAES, and of the feature async_event_configuration, for changes of namespaces.
inline constexpr std::uint32_t namespace_notices = 1U << 8;
/// The result of an Asynchronous Event Request: a notice that the log changed_namespaces is to be read.
inline constexpr std::uint64_t namespaces_changed = 2 | std::uint64_t{4} << 16;

}  // namespace nvme
