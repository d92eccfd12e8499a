// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <tuple>

#include <nvme/bytes.hpp>
#include <nvme/status.hpp>

// What sets a queue up: private data of the connection manager, Connect, properties; and how a host finds subsystems.
// See the NVMe over Fabrics specification and its RDMA transport binding.
namespace nvme {

inline constexpr std::string_view discovery_nqn = "nqn.2014-08.org.nvmexpress.discovery";
/// Of the admin queue, which the specification limits.
inline constexpr std::uint16_t admin_queue_entries = 32;
/// In Connect: the host wants a controller of its own.
inline constexpr std::uint16_t any_controller = 0xffff;

using identifier = std::array<std::byte, 16>;  ///< of a host, or of a namespace (NGUID)
/// "11111111-2222-3333-4444-555555555555"
[[nodiscard]] std::string to_string(const identifier& what);

// ---- private data ----

/// Comes with the host's connection request.
struct cm_request {
  static constexpr std::size_t bytes = 32;
  static constexpr std::string_view name = "private data";

  std::uint16_t format = 0;
  std::uint16_t queue_id = 0;            ///< 0: the admin queue
  std::uint16_t receive_queue_size = 0;  ///< of the host, in entries: completions that may be on their way
  std::uint16_t send_queue_size = 0;     ///< of the host: one less than the number of commands
  std::uint16_t controller = 0;          ///< since version 1.1 of the specification; else 0

  static constexpr auto layout() noexcept {
    return std::tuple(field(0, &cm_request::format), field(2, &cm_request::queue_id),
                      field(4, &cm_request::receive_queue_size), field(6, &cm_request::send_queue_size),
                      field(8, &cm_request::controller));
  }
  friend bool operator==(const cm_request&, const cm_request&) = default;
};

/// Comes with the target's acceptance.
struct cm_reply {
  static constexpr std::size_t bytes = 32;
  static constexpr std::string_view name = "private data";

  std::uint16_t format = 0;
  std::uint16_t receive_queue_size = 0;  ///< of the target, in entries

  static constexpr auto layout() noexcept {
    return std::tuple(field(0, &cm_reply::format), field(2, &cm_reply::receive_queue_size));
  }
};

/// Comes with the target's rejection.
struct cm_rejection {
  static constexpr std::size_t bytes = 4;
  static constexpr std::string_view name = "private data";

  std::uint16_t format = 0;
  reject_reason reason = reject_reason::no_resources;

  static constexpr auto layout() noexcept {
    return std::tuple(field(0, &cm_rejection::format), field(2, &cm_rejection::reason));
  }
};

// ---- Connect ----

/// The data of Connect.
struct connect_data {
  static constexpr std::size_t bytes = 1024;
  static constexpr std::string_view name = "data of Connect";
  // Offsets, which Connect is answered with if a field is wrong.
  static constexpr std::uint16_t host_id_at = 0;
  static constexpr std::uint16_t controller_at = 16;
  static constexpr std::uint16_t subsystem_at = 256;
  static constexpr std::uint16_t host_at = 512;

  identifier host_id{};
  std::uint16_t controller = any_controller;
  std::string subsystem;  ///< qualified names; empty if what came is none
  std::string host;

  static constexpr auto layout() noexcept {
    return std::tuple(field(host_id_at, &connect_data::host_id), field(controller_at, &connect_data::controller),
                      field(subsystem_at, &connect_data::subsystem), field(host_at, &connect_data::host));
  }
  friend bool operator==(const connect_data&, const connect_data&) = default;
};

/// The result of a Connect that failed with connect_invalid_parameters: where the wrong field is.
[[nodiscard]] constexpr std::uint64_t wrong_parameter(std::uint16_t offset, bool in_data) noexcept {
  return offset | (in_data ? 1U << 16 : 0U);
}

// ---- properties ----

namespace property {
inline constexpr std::uint32_t capabilities = 0x00;
inline constexpr std::uint32_t version = 0x08;
inline constexpr std::uint32_t configuration = 0x14;
inline constexpr std::uint32_t controller_status = 0x1c;
}  // namespace property

/// Controller Capabilities (CAP), as far as Fabrics have use for it.
struct controller_capabilities {
  std::uint16_t max_queue_entries = 0;  ///< one less than the number of entries
  std::uint8_t ready_timeout = 0;       ///< in units of 500 ms
};
[[nodiscard]] controller_capabilities decode_capabilities(std::uint64_t property) noexcept;
[[nodiscard]] std::uint64_t encode(const controller_capabilities& what) noexcept;

/// Controller Configuration (CC).
namespace configuration {
inline constexpr std::uint32_t enable = 1;
inline constexpr std::uint32_t shutdown_mask = 3U << 14;
inline constexpr std::uint32_t normal_shutdown = 1U << 14;
/// Entries of 64 and 16 bytes, NVM command set, pages of 4 KiB.
inline constexpr std::uint32_t entry_sizes = 6U << 16 | 4U << 20;
inline constexpr std::uint32_t entry_sizes_mask = 0xffU << 16;
inline constexpr std::uint32_t command_set_mask = 7U << 4;
inline constexpr std::uint32_t page_size_mask = 0xfU << 7;
}  // namespace configuration

/// Controller Status (CSTS).
namespace controller_status {
inline constexpr std::uint32_t ready = 1;
inline constexpr std::uint32_t fatal = 1U << 1;
inline constexpr std::uint32_t shutdown_mask = 3U << 2;
inline constexpr std::uint32_t shutdown_occurs = 1U << 2;
inline constexpr std::uint32_t shutdown_complete = 2U << 2;
}  // namespace controller_status

// ---- discovery ----

enum class address_family : std::uint8_t { ipv4 = 1, ipv6 = 2 };
enum class subsystem_type : std::uint8_t { discovery = 1, nvm = 2, current_discovery = 3 };

inline constexpr std::uint8_t discovery_log_page = 0x70;

/// The discovery log page begins with it; entries follow.
struct discovery_header {
  static constexpr std::size_t bytes = 1024;
  static constexpr std::string_view name = "a discovery log page";

  std::uint64_t generation = 0;  ///< changes with the log
  std::uint64_t entries = 0;     ///< how many follow
  std::uint16_t format = 0;

  static constexpr auto layout() noexcept {
    return std::tuple(field(0, &discovery_header::generation), field(8, &discovery_header::entries),
                      field(16, &discovery_header::format));
  }
};
/// Throws errc::malformed for a header that is cut short or of an unknown format.
[[nodiscard]] discovery_header decode_discovery_header(std::span<const std::byte> bytes);

/// Where a subsystem is.
struct discovery_entry {
  static constexpr std::size_t bytes = 1024;
  static constexpr std::string_view name = "an entry of the discovery log page";

  std::uint8_t transport = 1;  ///< 1: RDMA
  address_family family = address_family::ipv4;
  subsystem_type type = subsystem_type::nvm;
  std::uint16_t port_id = 0;
  std::uint16_t controller = any_controller;
  std::uint16_t admin_entries = admin_queue_entries;
  std::string service;    ///< the port's number, in decimal
  std::string subsystem;  ///< its NQN; empty if what came is none
  std::string address;    ///< numerical

  static constexpr auto layout() noexcept {
    using one = discovery_entry;
    return std::tuple(field(0, &one::transport), field(1, &one::family), field(2, &one::type),
                      fixed<std::uint8_t>(3, 2),  // no secure channel is required
                      field(4, &one::port_id), field(6, &one::controller), field(8, &one::admin_entries),
                      field(32, &one::service, 32), field(256, &one::subsystem), field(512, &one::address, 256),
                      fixed<std::uint8_t>(768, 1),   // reliable connected
                      fixed<std::uint8_t>(769, 1),   // no particular provider
                      fixed<std::uint8_t>(770, 1));  // connections are made by RDMA_CM
  }
  friend bool operator==(const discovery_entry&, const discovery_entry&) = default;
};

}  // namespace nvme
