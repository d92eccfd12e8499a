// SPDX-License-Identifier: Apache-2.0
// What a host and a controller say to each other in any bytes is refused, or it is a structure that comes back as it
// went. The first two bytes choose which one.
#include <weft/runtime/error.hpp>

#include "input.hpp"
#include <nvme/command.hpp>
#include <nvme/fabrics.hpp>
#include <nvme/identify.hpp>

namespace {

using namespace nvme;
using weft::fuzz::require;

template <class Structure, class Decode>
void comes_back(const Structure& what, std::size_t bytes, const Decode& decode) {
  std::vector<std::byte> again(bytes);
  encode(what, again);
  require(decode(again) == what, "a structure comes back as it went");
}

void read_command(std::span<const std::byte> bytes) {
  const command what = decode_command(bytes);
  comes_back(what, command_bytes, decode_command);
  const block_fields where = fields_of<block_fields>(what);
  require(where.count >= 1 && where.count <= 65536, "a command has 1 to 65536 blocks");
  const dataset_fields ranges = fields_of<dataset_fields>(what);
  require(ranges.ranges >= 1 && ranges.ranges <= 256, "a command has 1 to 256 ranges");
  require(fields_of<log_fields>(what).bytes % 4 == 0, "a log page is read in dwords");
  require(fields_of<connect_fields>(what).queue_id == static_cast<std::uint16_t>(what.dwords[0] >> 16),
          "Connect names its queue");
  static_cast<void>(fields_of<property_fields>(what));
  static_cast<void>(fields_of<identify_fields>(what));
  static_cast<void>(fields_of<feature_fields>(what));
}

void read_set_up(std::span<const std::byte> bytes) {
  if (const auto asked = try_decode<cm_request>(bytes)) {
    const auto again = encoded(*asked);
    require(try_decode<cm_request>(again) == asked, "a request for a connection comes back as it went");
  }
  static_cast<void>(try_decode<cm_reply>(bytes));
  if (const auto refused = try_decode<cm_rejection>(bytes))
    require(!words_of(refused->reason).empty(), "a reason has words");
  const connect_data who = decode<connect_data>(bytes);
  for (const auto& name : {who.subsystem, who.host}) require(name.empty() || is_nqn(name), "a name is an NQN");
  comes_back(who, connect_data::bytes, decode<connect_data>);
}

void read_lists(std::span<const std::byte> bytes) {
  for (const dataset_range& each : decode_dataset_ranges(bytes)) {
    comes_back(each, dataset_range::bytes,
               [](std::span<const std::byte> one) { return decode_dataset_ranges(one)[0]; });
  }
}

void read_namespaces(std::span<const std::byte> bytes) {
  const auto ids = decode_namespace_list(bytes);
  std::array<std::byte, identify_bytes> again{};
  encode_namespace_list(ids, again);
  require(decode_namespace_list(again) == ids, "a list of namespaces comes back as it went");
}

void read_discovery(std::span<const std::byte> bytes) {
  static_cast<void>(decode_discovery_header(bytes));
  const discovery_entry found = decode<discovery_entry>(bytes);
  require(found.subsystem.empty() || is_nqn(found.subsystem), "a name is an NQN");
}

void read_identity(std::span<const std::byte> bytes) {
  const controller_identity of = decode<controller_identity>(bytes);
  require(of.subsystem.empty() || is_nqn(of.subsystem), "a name is an NQN");
  const namespace_identity space = decode_namespace(bytes);
  require(space.blocks == 0 || (space.block_shift >= 9 && space.block_shift <= 20), "a block has a size that is used");
}

void read_rest(std::span<const std::byte> bytes) {
  const completion said = decode_completion(bytes.first(std::min(bytes.size(), completion_bytes)));
  require(!words_of(said.status).empty(), "a status has words");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::array all{read_command,   read_set_up,   read_lists, read_namespaces,
                           read_discovery, read_identity, read_rest};
  weft::fuzz::input said(data, size);
  const auto which = said.below(all.size());
  try {
    all[which](said.run(said.size()));
  } catch (const weft::error& why) {
    require(why.code() == weft::errc::malformed && why.what()[0] != '\0', "a refusal says what is wrong");
  }
  return 0;
}
