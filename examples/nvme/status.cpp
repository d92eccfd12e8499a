// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <span>
#include <string_view>
#include <utility>

#include <nvme/status.hpp>

namespace nvme {
namespace {

template <class Number>
using named = std::pair<Number, std::string_view>;

constexpr std::array statuses{
    named<status>(status::success, "success"),
    named<status>(status::invalid_opcode, "invalid command opcode"),
    named<status>(status::invalid_field, "invalid field in command"),
    named<status>(status::command_id_conflict, "command id conflict"),
    named<status>(status::internal_error, "internal error"),
    named<status>(status::invalid_namespace, "invalid namespace or format"),
    named<status>(status::command_sequence_error, "command sequence error"),
    named<status>(status::sgl_data_length_invalid, "data SGL length invalid"),
    named<status>(status::sgl_type_invalid, "SGL descriptor type invalid"),
    named<status>(status::sgl_offset_invalid, "SGL offset invalid"),
    named<status>(status::keep_alive_invalid, "keep alive timeout invalid"),
    named<status>(status::namespace_write_protected, "namespace is write protected"),
    named<status>(status::lba_out_of_range, "LBA out of range"),
    named<status>(status::capacity_exceeded, "capacity exceeded"),
    named<status>(status::invalid_queue_id, "invalid queue identifier"),
    named<status>(status::async_event_limit, "asynchronous event request limit exceeded"),
    named<status>(status::invalid_log_page, "invalid log page"),
    named<status>(status::feature_not_saveable, "feature not saveable"),
    named<status>(status::write_fault, "write fault"),
    named<status>(status::unrecovered_read_error, "unrecovered read error"),
    named<status>(status::access_denied, "access denied"),
};

// Their numbers mean something else as the status of an I/O command.
constexpr std::array statuses_of_connect{
    named<status>(status::connect_incompatible_format, "connect format not supported"),
    named<status>(status::connect_controller_busy, "controller busy"),
    named<status>(status::connect_invalid_parameters, "connect parameters invalid"),
    named<status>(status::connect_invalid_host, "host not allowed"),
};

constexpr std::array reasons{
    named<reject_reason>(reject_reason::invalid_length, "private data of a wrong length"),
    named<reject_reason>(reject_reason::invalid_format, "private data of an unknown format"),
    named<reject_reason>(reject_reason::invalid_queue_id, "an invalid queue id"),
    named<reject_reason>(reject_reason::invalid_send_queue_size, "an invalid send queue size"),
    named<reject_reason>(reject_reason::invalid_receive_queue_size, "an invalid receive queue size"),
    named<reject_reason>(reject_reason::no_resources, "the target has no resources"),
    named<reject_reason>(reject_reason::invalid_initiator_depth, "an invalid initiator depth"),
    named<reject_reason>(reject_reason::invalid_responder_depth, "an invalid responder depth"),
};

template <class Number>
std::string_view name_in(std::span<const named<Number>> all, Number what, std::string_view otherwise) {
  const auto found = std::ranges::find(all, what, &named<Number>::first);
  return found == all.end() ? otherwise : found->second;
}

}  // namespace

std::string words_of(status what, bool of_connect) {
  std::string_view name = name_in<status>(statuses, what, "unknown status");
  if (of_connect) name = name_in<status>(statuses_of_connect, what, name);
  return fmt::format("{} ({:#05x})", name, static_cast<std::uint16_t>(what));
}

std::string words_of(reject_reason what) {
  return fmt::format("{} ({})", name_in<reject_reason>(reasons, what, "an unknown reason"),
                     static_cast<std::uint16_t>(what));
}

}  // namespace nvme
