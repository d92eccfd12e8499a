// SPDX-License-Identifier: Apache-2.0
#include <weft/net/verbs/traits.hpp>

#include <array>
#include <cstddef>

namespace weft::net::verbs {
namespace {

// Software devices can have any name. They are recognized by the vendor ids that their drivers make up.
constexpr std::uint32_t rxe_vendor = 0xFF'FFFF;
constexpr std::uint32_t siw_vendor = 0x62'6D74;
// irdma reports Intel's PCI vendor id.
constexpr std::uint32_t irdma_vendor = 0x8086;

window_kind windows_of(unsigned flags) noexcept {
  if ((flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B) != 0) return window_kind::type_2b;
  if ((flags & IBV_DEVICE_MEM_WINDOW_TYPE_2A) != 0) return window_kind::type_2a;
  return (flags & IBV_DEVICE_MEM_WINDOW) != 0 ? window_kind::type_1 : window_kind::none;
}

// The values of completes_in_order, connect_blocks and may_read_nothing were observed on siw. They are assumed of every
// RNIC until one is known to differ, which costs other RNICs little.
void set_rnic(device_traits& traits) noexcept {
  traits.has_write_immediate = false;
  traits.has_checksum = false;
  traits.read_sinks_need_remote_write = true;
  traits.gids_are_hardware_addresses = true;
  traits.kernel_drives_pair = true;
  traits.connect_blocks = true;
  traits.shares_ports_with_tcp = true;
  traits.initiator_speaks_first = true;
  traits.disconnect_ends_both_ways = true;
  traits.flushes_before_disconnect_event = true;
  traits.completes_in_order = false;
  traits.completes_on_answer = false;
  traits.may_read_nothing = false;
  traits.messages_wait_for_receives = false;
  traits.tells_busy_peer_from_dead = false;
  traits.announces_last_receive = false;
}

void set_rxe(device_traits& traits) noexcept {
  traits.checks_window_bounds = false;
  traits.invalidates_windows_well = false;
  traits.invalidated_flags = unsigned{IBV_WC_WITH_INV} | unsigned{IBV_WC_IP_CSUM_OK};
  traits.repeats_requests_well = false;
  traits.tells_busy_peer_from_dead = false;
  traits.announces_last_receive = false;
}

const char* name_of(window_kind kind) noexcept {
  constexpr std::array names{"none", "type_1", "type_2a", "type_2b"};
  static_assert(names.size() == static_cast<std::size_t>(window_kind::type_2b) + 1);
  return names[static_cast<std::size_t>(kind)];
}

const char* yes_or_no(bool is_so) noexcept { return is_so ? "yes" : "no"; }

}  // namespace

device_traits traits_of(ibv_transport_type transport, const ibv_device_attr& attributes) noexcept {
  device_traits traits;
  traits.has_atomics = attributes.atomic_cap != IBV_ATOMIC_NONE;
  traits.windows = windows_of(attributes.device_cap_flags);
  traits.pair_needs_right_to_bind = traits.windows == window_kind::type_1;
  if (transport == IBV_TRANSPORT_IWARP) set_rnic(traits);
  if (attributes.vendor_id == rxe_vendor) set_rxe(traits);
  if (attributes.vendor_id == siw_vendor) traits.heeds_iova = false;
  if (attributes.vendor_id == irdma_vendor) traits.inlines_all_parts = false;
  return traits;
}

std::vector<std::pair<std::string, std::string>> names_and_values(const device_traits& traits) {
  // Names every member, so that the function does not compile when it lacks a new member.
  const auto& [has_atomics, windows, has_write_immediate, has_checksum, heeds_iova, checks_window_bounds,
               invalidates_windows_well, read_sinks_need_remote_write, pair_needs_right_to_bind, invalidated_flags,
               gids_are_hardware_addresses, kernel_drives_pair, connect_blocks, shares_ports_with_tcp,
               initiator_speaks_first, disconnect_ends_both_ways, flushes_before_disconnect_event, completes_in_order,
               completes_on_answer, repeats_requests_well, inlines_all_parts, may_read_nothing,
               messages_wait_for_receives, tells_busy_peer_from_dead, announces_last_receive] = traits;
  return {{"has_atomics", yes_or_no(has_atomics)},
          {"windows", name_of(windows)},
          {"has_write_immediate", yes_or_no(has_write_immediate)},
          {"has_checksum", yes_or_no(has_checksum)},
          {"heeds_iova", yes_or_no(heeds_iova)},
          {"checks_window_bounds", yes_or_no(checks_window_bounds)},
          {"invalidates_windows_well", yes_or_no(invalidates_windows_well)},
          {"read_sinks_need_remote_write", yes_or_no(read_sinks_need_remote_write)},
          {"pair_needs_right_to_bind", yes_or_no(pair_needs_right_to_bind)},
          {"invalidated_flags", std::to_string(invalidated_flags)},
          {"gids_are_hardware_addresses", yes_or_no(gids_are_hardware_addresses)},
          {"kernel_drives_pair", yes_or_no(kernel_drives_pair)},
          {"connect_blocks", yes_or_no(connect_blocks)},
          {"shares_ports_with_tcp", yes_or_no(shares_ports_with_tcp)},
          {"initiator_speaks_first", yes_or_no(initiator_speaks_first)},
          {"disconnect_ends_both_ways", yes_or_no(disconnect_ends_both_ways)},
          {"flushes_before_disconnect_event", yes_or_no(flushes_before_disconnect_event)},
          {"completes_in_order", yes_or_no(completes_in_order)},
          {"completes_on_answer", yes_or_no(completes_on_answer)},
          {"repeats_requests_well", yes_or_no(repeats_requests_well)},
          {"inlines_all_parts", yes_or_no(inlines_all_parts)},
          {"may_read_nothing", yes_or_no(may_read_nothing)},
          {"messages_wait_for_receives", yes_or_no(messages_wait_for_receives)},
          {"tells_busy_peer_from_dead", yes_or_no(tells_busy_peer_from_dead)},
          {"announces_last_receive", yes_or_no(announces_last_receive)}};
}

}  // namespace weft::net::verbs
