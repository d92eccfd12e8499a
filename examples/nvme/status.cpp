// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <string_view>

#include <nvme/status.hpp>

namespace nvme {
namespace {

// NOLINTNEXTLINE(readability-function-size): a table
std::string_view name_of(status what) {
  switch (what) {
    case status::success:
      return "success";
    case status::invalid_opcode:
      return "invalid command opcode";
    case status::invalid_field:
      return "invalid field in command";
    case status::command_id_conflict:
      return "command id conflict";
    case status::data_transfer_error:
      return "data transfer error";
    case status::internal_error:
      return "internal error";
    case status::abort_requested:
      return "command abort requested";
    case status::invalid_namespace:
      return "invalid namespace or format";
    case status::command_sequence_error:
      return "command sequence error";
    case status::sgl_data_length_invalid:
      return "data SGL length invalid";
    case status::sgl_type_invalid:
      return "SGL descriptor type invalid";
    case status::sgl_offset_invalid:
      return "SGL offset invalid";
    case status::host_id_inconsistent:
      return "host identifier inconsistent format";
    case status::keep_alive_expired:
      return "keep alive timer expired";
    case status::keep_alive_invalid:
      return "keep alive timeout invalid";
    case status::namespace_write_protected:
      return "namespace is write protected";
    case status::lba_out_of_range:
      return "LBA out of range";
    case status::capacity_exceeded:
      return "capacity exceeded";
    case status::namespace_not_ready:
      return "namespace not ready";
    case status::invalid_queue_id:
      return "invalid queue identifier";
    case status::invalid_queue_size:
      return "invalid queue size";
    case status::async_event_limit:
      return "asynchronous event request limit exceeded";
    case status::invalid_log_page:
      return "invalid log page";
    case status::feature_not_saveable:
      return "feature not saveable";
    case status::feature_not_changeable:
      return "feature not changeable";
    case status::conflicting_attributes:
      return "conflicting attributes";
    case status::connect_controller_busy:
      return "controller busy";
    case status::write_to_read_only_range:
      return "attempted write to read only range";
    case status::connect_invalid_host:
      return "host not allowed";
    case status::write_fault:
      return "write fault";
    case status::unrecovered_read_error:
      return "unrecovered read error";
    case status::compare_failure:
      return "compare failure";
    case status::access_denied:
      return "access denied";
  }
  return "unknown status";
}

std::string_view name_for_connect(status what) {
  if (what == status::connect_incompatible_format) return "connect format not supported";
  if (what == status::connect_invalid_parameters) return "connect parameters invalid";
  return name_of(what);
}

std::string_view name_of(reject_reason what) {
  switch (what) {
    case reject_reason::invalid_length:
      return "private data of a wrong length";
    case reject_reason::invalid_format:
      return "private data of an unknown format";
    case reject_reason::invalid_queue_id:
      return "an invalid queue id";
    case reject_reason::invalid_send_queue_size:
      return "an invalid send queue size";
    case reject_reason::invalid_receive_queue_size:
      return "an invalid receive queue size";
    case reject_reason::no_resources:
      return "the target has no resources";
    case reject_reason::invalid_initiator_depth:
      return "an invalid initiator depth";
    case reject_reason::invalid_responder_depth:
      return "an invalid responder depth";
  }
  return "an unknown reason";
}

}  // namespace

std::string words_of(status what, bool of_connect) {
  return fmt::format("{} ({:#05x})", of_connect ? name_for_connect(what) : name_of(what),
                     static_cast<std::uint16_t>(what));
}

std::string words_of(reject_reason what) {
  return fmt::format("{} ({})", name_of(what), static_cast<std::uint16_t>(what));
}

}  // namespace nvme
