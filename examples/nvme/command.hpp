// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

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
  get_features = 0x0a,
  async_event_request = 0x0c,
  keep_alive = 0x18,
};

enum class io_opcode : std::uint8_t {
  flush = 0x00,
  write = 0x01,
  read = 0x02,
  compare = 0x05,
  write_zeroes = 0x08,
  dataset_management = 0x09,
};

inline constexpr std::uint8_t fabrics_opcode = 0x7f;

enum class fabrics_type : std::uint8_t { property_set = 0x00, connect = 0x01, property_get = 0x04, disconnect = 0x08 };

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

/// A submission queue entry. Dwords 10 to 15 belong to the opcode; the structs below say what they mean.
struct command {
  std::uint8_t opcode = 0;
  std::uint8_t flags = 0x40;  ///< fused operation (bits 1:0), PSDT (bits 7:6): 0x40 means SGLs
  std::uint16_t id = 0;
  std::uint32_t nsid = 0;  ///< of a Fabrics command: its type, in the lowest byte
  sgl data{};
  std::array<std::uint32_t, 6> dwords{};  ///< from dword 10 on

  [[nodiscard]] fabrics_type type() const noexcept { return static_cast<fabrics_type>(nsid & 0xff); }
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

/// Connect.
struct connect_fields {
  std::uint16_t format = 0;
  std::uint16_t queue_id = 0;
  std::uint16_t queue_size = 0;  ///< one less than the number of entries
  std::uint8_t attributes = 0;   ///< bit 2: the host does without queue heads in completions
  std::uint32_t keep_alive_ms = 0;
};
inline constexpr std::uint8_t connect_without_flow_control = 1 << 2;
[[nodiscard]] connect_fields connect_of(const command& from) noexcept;
void put(command& into, const connect_fields& what) noexcept;

/// Property Get and Property Set.
struct property_fields {
  bool wide = false;  ///< eight bytes, else four
  std::uint32_t offset = 0;
  std::uint64_t value = 0;  ///< of Property Set
};
[[nodiscard]] property_fields property_of(const command& from) noexcept;
void put(command& into, const property_fields& what) noexcept;

/// Read, Write, Compare, Write Zeroes.
struct block_fields {
  std::uint64_t first = 0;
  std::uint32_t count = 0;         ///< of blocks: 1 to 65536
  bool force_unit_access = false;  ///< complete only when the data are where they survive a loss of power
  bool deallocate = false;         ///< of Write Zeroes
  bool protection = false;         ///< asks for protection information, which needs metadata
};
[[nodiscard]] block_fields blocks_of(const command& from) noexcept;
void put(command& into, const block_fields& what) noexcept;

/// Get Log Page.
struct log_fields {
  std::uint8_t page = 0;
  std::uint64_t bytes = 0;   ///< how many to give, a multiple of four
  std::uint64_t offset = 0;  ///< from where on
  bool retain_event = false;
};
[[nodiscard]] log_fields log_of(const command& from) noexcept;
void put(command& into, const log_fields& what) noexcept;

/// Identify.
struct identify_fields {
  std::uint8_t structure = 0;  ///< CNS
  std::uint16_t controller = 0;
};
[[nodiscard]] identify_fields identify_of(const command& from) noexcept;
void put(command& into, const identify_fields& what) noexcept;

/// Set Features and Get Features.
struct feature_fields {
  std::uint8_t feature = 0;
  bool save = false;        ///< of Set Features
  std::uint8_t select = 0;  ///< of Get Features: 0 current, 1 default, 2 saved, 3 what is supported
  std::uint32_t value = 0;  ///< of Set Features
};
[[nodiscard]] feature_fields feature_of(const command& from) noexcept;
void put(command& into, const feature_fields& what) noexcept;

enum class feature : std::uint8_t {
  volatile_write_cache = 0x06,
  number_of_queues = 0x07,
  async_event_configuration = 0x0b,
  keep_alive_timer = 0x0f,
  host_identifier = 0x81,
};

/// Dataset Management.
struct dataset_fields {
  std::uint16_t ranges = 0;  ///< 1 to 256
  bool deallocate = false;
};
[[nodiscard]] dataset_fields dataset_of(const command& from) noexcept;
void put(command& into, const dataset_fields& what) noexcept;

/// One of the ranges in the data of Dataset Management.
struct dataset_range {
  std::uint64_t first = 0;
  std::uint32_t count = 0;  ///< of blocks

  friend bool operator==(const dataset_range&, const dataset_range&) = default;
};
inline constexpr std::size_t dataset_range_bytes = 16;
/// Throws errc::malformed for a part of a range.
[[nodiscard]] std::vector<dataset_range> decode_dataset_ranges(std::span<const std::byte> bytes);
void encode(const dataset_range& what, std::span<std::byte> into);

}  // namespace nvme
