// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

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

struct controller_identity {
  std::string serial;    ///< at most 20 characters
  std::string model;     ///< at most 40
  std::string firmware;  ///< at most 8
  /// The most bytes of one command's data: 4096 shifted left by so much. 0: no limit.
  std::uint8_t max_transfer_shift = 0;
  std::uint16_t controller = 0;
  std::uint32_t version = nvme_version;
  std::uint32_t async_events = 0;  ///< OAES
  bool is_discovery = false;
  std::uint8_t async_event_limit = 0;        ///< one less than how many requests may be outstanding
  std::uint8_t error_log_entries = 0;        ///< one less than their number
  std::uint8_t log_attributes = 0;           ///< LPA
  std::uint16_t keep_alive_granularity = 0;  ///< in units of 100 ms
  std::uint16_t max_commands = 0;            ///< outstanding on one I/O queue
  std::uint32_t namespaces = 0;              ///< the largest id
  std::uint16_t optional_commands = 0;       ///< ONCS
  bool volatile_write_cache = false;
  std::uint32_t sgls = 0;
  std::string subsystem;                       ///< its NQN; empty if what came is none
  std::uint32_t command_capsule_bytes = 0;     ///< a multiple of 16
  std::uint32_t completion_capsule_bytes = 0;  ///< likewise
  std::uint16_t in_capsule_data_offset = 0;    ///< likewise, counted from the end of the command
  std::uint8_t max_descriptors = 0;            ///< in one capsule; 0: no limit

  friend bool operator==(const controller_identity&, const controller_identity&) = default;
};
/// Throws errc::malformed for less than identify_bytes.
[[nodiscard]] controller_identity decode_controller(std::span<const std::byte> bytes);
void encode(const controller_identity& what, std::span<std::byte> into);

/// Bits of controller_identity::sgls.
namespace sgl_support {
inline constexpr std::uint32_t supported = 1;
inline constexpr std::uint32_t keyed = 1U << 2;
inline constexpr std::uint32_t in_capsule_offset = 1U << 20;
}  // namespace sgl_support

/// Bits of controller_identity::optional_commands.
namespace optional_command {
inline constexpr std::uint16_t compare = 1;
inline constexpr std::uint16_t dataset_management = 1U << 2;
inline constexpr std::uint16_t write_zeroes = 1U << 3;
}  // namespace optional_command

struct namespace_identity {
  std::uint64_t blocks = 0;
  std::uint64_t used_blocks = 0;
  std::uint8_t block_shift = 9;      ///< a block has 1 << block_shift bytes
  std::uint16_t metadata_bytes = 0;  ///< with each block
  bool shared = false;               ///< between controllers
  bool write_protected = false;
  bool zeroed_when_deallocated = false;
  identifier id{};  ///< NGUID

  friend bool operator==(const namespace_identity&, const namespace_identity&) = default;
};
/// Throws errc::malformed for less than identify_bytes, and for a block that is not of 512 bytes to 1 MiB.
[[nodiscard]] namespace_identity decode_namespace(std::span<const std::byte> bytes);
void encode(const namespace_identity& what, std::span<std::byte> into);

/// The list of active namespaces: those in the data, up to the first zero. Throws errc::malformed for ids that do not
/// grow.
[[nodiscard]] std::vector<std::uint32_t> decode_namespace_list(std::span<const std::byte> bytes);
/// As many as fit.
void encode_namespace_list(std::span<const std::uint32_t> ids, std::span<std::byte> into);
/// The same for the log of changed namespaces, which is not read in parts: every_namespace alone stands for more ids
/// than a list holds.
void encode_changed_namespaces(std::span<const std::uint32_t> ids, std::span<std::byte> into);

/// The list of a namespace's identification descriptors: its NGUID, and that it has the NVM command set.
void encode_descriptors(const identifier& id, std::span<std::byte> into);

// ---- log pages ----

enum class log_page : std::uint8_t {
  errors = 0x01,
  health = 0x02,
  firmware = 0x03,
  changed_namespaces = 0x04,
  discovery = discovery_log_page,
};

inline constexpr std::size_t error_entry_bytes = 64;
inline constexpr std::size_t health_bytes = 512;
inline constexpr std::size_t firmware_bytes = 512;

/// A command that failed, in the error information log.
struct error_entry {
  std::uint64_t count = 0;  ///< the how manieth error it was: 1 and up; 0: none
  std::uint16_t queue_id = 0;
  std::uint16_t command_id = 0;
  nvme::status status = status::success;
  std::uint64_t block = 0;
  std::uint32_t nsid = 0;

  friend bool operator==(const error_entry&, const error_entry&) = default;
};
[[nodiscard]] error_entry decode_error_entry(std::span<const std::byte> bytes);
void encode(const error_entry& what, std::span<std::byte> into);

/// The health log, as far as a target in software has something to say.
struct health {
  std::uint64_t units_read = 0;     ///< thousands of 512 bytes, rounded up
  std::uint64_t units_written = 0;  ///< likewise
  std::uint64_t reads = 0;          ///< commands
  std::uint64_t writes = 0;
  std::uint64_t media_errors = 0;
  std::uint64_t error_entries = 0;  ///< over the life of the controller

  friend bool operator==(const health&, const health&) = default;
};
[[nodiscard]] health decode_health(std::span<const std::byte> bytes);
void encode(const health& what, std::span<std::byte> into);

/// The firmware slot log: one slot, which is active.
void encode_firmware(std::string_view revision, std::span<std::byte> into);

// ---- asynchronous events ----

/// The bit of OAES, and of the feature async_event_configuration, for changes of namespaces.
inline constexpr std::uint32_t namespace_notices = 1U << 8;

/// The result of an Asynchronous Event Request.
struct async_event {
  std::uint8_t type = 0;  ///< 2: a notice
  std::uint8_t information = 0;
  std::uint8_t page = 0;  ///< the log page to read
};
[[nodiscard]] constexpr std::uint64_t encode(const async_event& what) noexcept {
  return (what.type & 7U) | std::uint64_t{what.information} << 8 | std::uint64_t{what.page} << 16;
}
[[nodiscard]] constexpr async_event decode_async_event(std::uint64_t result) noexcept {
  return {.type = static_cast<std::uint8_t>(result & 7),
          .information = static_cast<std::uint8_t>(result >> 8),
          .page = static_cast<std::uint8_t>(result >> 16)};
}

}  // namespace nvme
