// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace nvme {

/// How a command ended: status code type (3 bits) and status code (8 bits). See "Status Field Definition" of the NVMe
/// base specification.
enum class status : std::uint16_t {
  success = 0x000,
  invalid_opcode = 0x001,
  invalid_field = 0x002,
  command_id_conflict = 0x003,
  internal_error = 0x006,
  invalid_namespace = 0x00b,
  command_sequence_error = 0x00c,
  sgl_data_length_invalid = 0x00f,
  sgl_type_invalid = 0x011,
  sgl_offset_invalid = 0x016,
  keep_alive_invalid = 0x01a,
  namespace_write_protected = 0x020,
  lba_out_of_range = 0x080,
  capacity_exceeded = 0x081,

  invalid_queue_id = 0x101,
  async_event_limit = 0x105,
  invalid_log_page = 0x109,
  feature_not_saveable = 0x10d,

  // Of the Fabrics command Connect.
  connect_incompatible_format = 0x180,
  connect_controller_busy = 0x181,
  connect_invalid_parameters = 0x182,
  connect_invalid_host = 0x184,

  write_fault = 0x280,
  unrecovered_read_error = 0x281,
  access_denied = 0x286,
};

/// "invalid field in command (0x002)". `of_connect`: what the command Connect was answered.
[[nodiscard]] std::string words_of(status what, bool of_connect = false);

/// Why a target refuses a connection, in the private data of its rejection.
enum class reject_reason : std::uint16_t {
  invalid_length = 1,
  invalid_format = 2,
  invalid_queue_id = 3,
  invalid_send_queue_size = 4,
  invalid_receive_queue_size = 5,
  no_resources = 6,
  invalid_initiator_depth = 7,
  invalid_responder_depth = 8,
};

/// "the target has no resources (6)"
[[nodiscard]] std::string words_of(reject_reason what);

}  // namespace nvme
