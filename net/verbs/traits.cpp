// SPDX-License-Identifier: Apache-2.0
#include <weft/net/verbs/traits.hpp>

namespace weft::net::verbs {
namespace {

// Software devices can have any name. They are recognized by the vendor ids that their drivers make up.
constexpr std::uint32_t rxe_vendor = 0xFF'FFFF;
constexpr std::uint32_t siw_vendor = 0x62'6D74;

window_kind windows_of(unsigned flags) noexcept {
  if ((flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B) != 0) return window_kind::type_2b;
  if ((flags & IBV_DEVICE_MEM_WINDOW_TYPE_2A) != 0) return window_kind::type_2a;
  return (flags & IBV_DEVICE_MEM_WINDOW) != 0 ? window_kind::type_1 : window_kind::none;
}

// completes_in_order, connect_blocks and may_read_nothing were observed on siw, and are assumed of every RNIC until one
// is known to differ. That costs other RNICs little.
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

}  // namespace

device_traits traits_of(ibv_transport_type transport, const ibv_device_attr& attributes) noexcept {
  device_traits traits;
  traits.has_atomics = attributes.atomic_cap != IBV_ATOMIC_NONE;
  traits.windows = windows_of(attributes.device_cap_flags);
  traits.pair_needs_right_to_bind = traits.windows == window_kind::type_1;
  if (transport == IBV_TRANSPORT_IWARP) set_rnic(traits);
  if (attributes.vendor_id == rxe_vendor) set_rxe(traits);
  if (attributes.vendor_id == siw_vendor) traits.heeds_iova = false;
  return traits;
}

}  // namespace weft::net::verbs
