// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <string>

#include "probe.hpp"
#include "units.hpp"

namespace info {
namespace {

// IP 20, UDP 8, BTH 12, RETH 16, ICRC 4: what stands around a packet's payload, at most, over IPv4.
constexpr std::uint32_t headers_of_roce = 60;

std::string host_of(const peer_report& peer) { return peer.address.substr(0, peer.address.rfind(':')); }

bool is_rdma(const reach& one) { return one.fabric.starts_with("verbs"); }

bool anything_connects(const peer_report& peer) { return std::ranges::any_of(peer.fabrics, &reach::connected); }

std::string advice_for(const peer_report& peer, const reach& one) {
  switch (one.why) {
    case reach_failure::refused:
      return fmt::format("start `weft-info serve {}` there; if it runs, does it name this fabric where it listens?",
                         peer.address);
    case reach_failure::silent:
      if (peer.takes_tcp && !is_rdma(one)) {
        return "`ss -tlnp` on the peer names the program: it is stopped or hangs, or is no weft";
      }
      return fmt::format(
          "is the peer up (`ping {0}`), does `weft-info serve` listen over this fabric there, and does a firewall drop "
          "what comes (`nc -vz {0} PORT` for TCP; RoCE takes UDP port 4791)?",
          host_of(peer));
    case reach_failure::unreachable:
      return fmt::format("`ip route get {0}` shows the way that is taken, `ip neighbour show` whether {0} answers ARP",
                         host_of(peer));
    case reach_failure::wrong_device:
      return fmt::format("`ip route get {}` shows the way; give each RDMA device a subnet of its own", host_of(peer));
    case reach_failure::not_weft:
      return fmt::format(
          "what listens there speaks another protocol: `ss -tlnp` on the peer names it; start `weft-info serve {}` on "
          "a free port",
          peer.address);
    case reach_failure::rejected:
      return "a weft program listens there, of another kind: start `weft-info serve` on a free port for the whole "
             "check";
    case reach_failure::bad_address:
      return "name the peer as HOST:PORT, [IPV6]:PORT or unix:PATH; `getent hosts HOST` shows whether the name is "
             "known";
    case reach_failure::no_answer_to_name:
      return fmt::format(
          "`getent hosts {}` asks the same: can the name servers of /etc/resolv.conf be reached? An address in numbers "
          "needs none, and `--timeout` waits longer",
          host_of(peer));
    case reach_failure::not_opened:
      return "`weft-info check` tells what hinders here";
    case reach_failure::none:
    case reach_failure::elsewhere:
    case reach_failure::other:
      break;
  }
  return "the words above name the step that failed; `weft-info check` on both ends may tell why";
}

std::string sentence_for(const reach& one, bool takes_tcp) {
  switch (one.why) {
    case reach_failure::refused:
      return "the peer refuses: nobody listens there";
    case reach_failure::silent:
      return takes_tcp && !is_rdma(one) ? "something there takes the connection and says nothing"
                                        : "the peer does not answer";
    case reach_failure::unreachable:
      return "no way leads to the peer";
    case reach_failure::wrong_device:
      return "the way to the peer leads over another device";
    case reach_failure::not_weft:
      return "what answers there is no weft";
    case reach_failure::rejected:
      return "the peer is a weft program that turns weft-info away";
    case reach_failure::bad_address:
      return "this is no address of a peer";
    case reach_failure::no_answer_to_name:
      return "nobody says which address the name has";
    case reach_failure::not_opened:
      return "it cannot be used here";
    case reach_failure::none:
    case reach_failure::elsewhere:
    case reach_failure::other:
      break;
  }
  return "it does not reach the peer";
}

// A device that does not reach a peer which others reach makes weft slow; one that is not there is nobody's fault.
void check_unreached(const inventory& all, const peer_report& peer, const reach& one, findings& found) {
  const std::string area = "peer over " + one.fabric;
  if (one.why == reach_failure::elsewhere) {
    return found.ok(
        area, "the peer is no process of this machine, user and network namespace that listens over shared memory");
  }
  if (one.why == reach_failure::not_opened && is_rdma(one) && all.rdma.empty()) {
    return found.ok(area, fmt::format("not tried: {}", one.failure));
  }
  const bool others_do = anything_connects(peer);
  const severity level = !others_do ? severity::error : is_rdma(one) ? severity::warning : severity::hint;
  // Who answers, and turns everybody of another kind away, is there.
  found.add(one.why == reach_failure::rejected ? severity::hint : level, area,
            fmt::format("{}: {}", sentence_for(one, peer.takes_tcp), one.failure), advice_for(peer, one));
}

bool large_ones_are_lost(const reach& one) {
  return one.round_trips != 0 && !one.transfer_failure.empty() &&
         (one.lost_message > 64 || one.written_bytes == 0 || one.largest_message != 0);
}

std::string mtu_advice(const peer_report& peer, const reach& one) {
  const std::string interface = peer.mtu.interface.empty() ? "INTERFACE" : peer.mtu.interface;
  std::string text =
      fmt::format("every switch and the peer must let packets of {} bytes pass, or `ip link set dev {} mtu {}`",
                  peer.mtu.interface_mtu, interface, peer.mtu.probed != 0 ? peer.mtu.probed : 1500);
  if (is_rdma(one)) text += " on this host, and connect anew";
  return text + fmt::format("; `ping -M do -s {} {}` tries the same by hand",
                            peer.mtu.interface_mtu > 28 ? peer.mtu.interface_mtu - 28 : 1472, host_of(peer));
}

void check_transfers(const peer_report& peer, const reach& one, findings& found) {
  const std::string area = "transfers over " + one.fabric;
  if (one.transfer_failure.empty()) {
    return found.ok(
        area, fmt::format("messages of up to {} and {} each way by one-sided writes and reads have arrived unharmed",
                          format_bytes(one.largest_message), format_bytes(one.written_bytes)));
  }
  if (!large_ones_are_lost(one)) {
    return found.fail(area, fmt::format("even small messages fail: {}", one.transfer_failure),
                      "`weft-info check` on both ends may tell why");
  }
  const std::string small = one.largest_message != 0 ? fmt::format("messages of {} bytes pass", one.largest_message)
                                                     : std::string("small messages pass");
  const std::string large = one.lost_message != 0 ? fmt::format("one of {} bytes does not", one.lost_message)
                                                  : std::string("larger transfers do not");
  found.fail(area,
             fmt::format("{}, and {}: something on the way drops large packets without a word ({})", small, large,
                         one.transfer_failure),
             mtu_advice(peer, one));
}

void check_path(const peer_report& peer, findings& found) {
  const path_mtu& mtu = peer.mtu;
  const auto is_far = [](const reach& each) { return each.speaks && each.fabric != "shm"; };
  if (std::ranges::none_of(peer.fabrics, is_far)) return;
  if (!mtu.was_probed || mtu.probed == 0) {
    return found.hint(
        "path MTU",
        fmt::format("packets of UDP cannot be probed with{}{}", mtu.failure.empty() ? "" : ": ", mtu.failure),
        "let UDP pass to the port of `weft-info serve`, in firewalls of both ends");
  }
  const std::uint32_t expected = std::min(mtu.interface_mtu, std::uint32_t{65535});
  if (mtu.interface_mtu == 0 || mtu.probed >= expected) {
    return found.ok(
        "path MTU",
        fmt::format(
            "packets of {} bytes go there and back without being fragmented, by probing{}", mtu.probed,
            mtu.interface_mtu != 0 ? fmt::format(", as large as {} lets them be", mtu.interface) : std::string()));
  }
  for (const reach& each : peer.fabrics) {
    if (!is_rdma(each) || !each.connected || each.rdma_mtu == 0 || each.rdma_mtu + headers_of_roce <= mtu.probed)
      continue;
    return found.fail("path MTU",
                      fmt::format("packets of up to {} bytes go there and back, but {} sends {} bytes in one, with an "
                                  "RDMA MTU of {}: they are lost",
                                  mtu.probed, each.fabric, each.rdma_mtu + headers_of_roce, each.rdma_mtu),
                      mtu_advice(peer, each));
  }
  found.warn(
      "path MTU",
      fmt::format(
          "packets of up to {} bytes go there and back, of {} that {} sends: larger ones are lost, which the kernel {}",
          mtu.probed, mtu.interface_mtu, mtu.interface, mtu.kernel_mtu <= mtu.probed ? "knows" : "does not know"),
      mtu_advice(peer, peer.fabrics.front()));
}

}  // namespace

void check_peer(const inventory& all, const peer_report& peer, findings& found) {
  for (const reach& each : peer.fabrics) {
    if (!each.connected) {
      check_unreached(all, peer, each, found);
      continue;
    }
    const std::string area = "peer over " + each.fabric;
    if (!each.stranger.empty()) {
      found.hint(area,
                 fmt::format("the peer is reached, and is {}: round trips and transfers were not tried", each.stranger),
                 fmt::format("start `weft-info serve` on a free port of {} for the whole check", host_of(peer)));
      continue;
    }
    if (each.speaks) found.ok(area, "the peer is reached, and is weft-info");
    check_transfers(peer, each, found);
  }
  if (peer.fabrics.empty()) {
    found.fail("peer", "no fabric of that name is there", "`weft-info` lists the fabrics");
  }
  check_path(peer, found);
}

}  // namespace info
