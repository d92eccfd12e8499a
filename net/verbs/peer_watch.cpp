// SPDX-License-Identifier: Apache-2.0
#include <weft/net/verbs/peer_watch.hpp>

#include <fmt/core.h>

#include <limits>
#include <new>
#include <utility>

namespace weft::net::verbs {

using weft::detail::make_error;

peer_watch::peer_watch(endpoint& of, send_queue& requests, const agreement& agreed) noexcept
    : endpoint_(of),
      requests_(requests),
      pause_(agreed.dead_peer_after / 2),
      asks_with_nothing_(agreed.asks_with_nothing),
      may_read_(agreed.outgoing_reads != 0) {}

// If a probe may do harm (fill_keep_alive()), the first look sends none: the set-up was a sign of life, and a new peer
// is likely to send.
void peer_watch::start(const landing_place& peers) noexcept {
  landing_ = peers;
  active_ = !endpoint_.home().traits().may_read_nothing && landing_.key == 0;
}

error peer_watch::blame_port(const error& why) const noexcept try {
  return why.within(fmt::format("port {} of {} is down", endpoint_.port(), endpoint_.home().name()));
} catch (const std::bad_alloc&) {
  return why;
}

std::optional<error> peer_watch::look(bool awaits_message) noexcept {
  const bool down = is_port_down();
  const bool stays_down = std::exchange(port_was_down_, down) && down;
  if (stays_down && !active_) return blame_port(make_error(errc::connection_failed, "no answer from the peer"));
  count_silence(awaits_message);
  if (silent_looks_ == 0 || silent_looks_ < looks_to_spare()) return std::nullopt;
  return make_error(errc::peer_vanished, "no answer, although the device still tries");
}

void peer_watch::ask(bool listens) noexcept {
  const bool asked = keep_alive_posted_ || (requests_.is_with_device() && completes_on_answer());
  if (std::exchange(active_, false) || asked || listens) return;
  if (landing_.key == 0 && !asks_with_nothing_) return;
  keep_alive_posted_ = true;
  silent_looks_ = 1;  // the look that precedes this call
  fill_keep_alive();
  requests_.post_own(keep_alive_, keep_alive_mark);  // mutant: notice no dead peer
}

// The keep-alive is a read if writes complete without an answer, and the peer accepts reads. Otherwise it is a write,
// because rxe refuses a repeated zero-length read if it has answered the first one and that answer was lost. For a peer
// with a landing_place it has one byte, because some networks lose packets without payload, and because a zero-length
// read may do harm. For any other peer it has none, and ask() does not post it if such requests are known to be lost.
void peer_watch::fill_keep_alive() noexcept {
  const bool reads = !completes_on_answer() && may_read_;
  keep_alive_ = {};
  keep_alive_.opcode = reads ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
  if (landing_.key == 0) return;
  const endpoint::staging_area& area = reads ? endpoint_.sinks() : endpoint_.sources();
  keep_alive_part_ = {
      .addr = reinterpret_cast<std::uintptr_t>(area.of(endpoint_.requests())), .length = 1, .lkey = area.key()};
  keep_alive_.sg_list = &keep_alive_part_;
  keep_alive_.num_sge = 1;
  keep_alive_.wr.rdma.remote_addr = landing_.address;
  keep_alive_.wr.rdma.rkey = landing_.key;
}

// Silence counts while a request waits for an answer, or this end waits for the first message, which a weft peer sends
// at once. The device's own retries take about half of dead_peer_after, but some devices do not end them in time: rxe
// does not count them while its packets are stuck in a network interface that cannot send, and an RNIC relies on TCP's
// retries.
void peer_watch::count_silence(bool awaits_message) noexcept {
  const bool asked = completes_on_answer() ? requests_.is_with_device() : keep_alive_posted_;
  const bool awaits = asked || awaits_message;  // mutant: wait for the first message
  silent_looks_ = active_ || !awaits ? 0 : silent_looks_ + 1;
}

// The number of silent looks after which the peer counts as dead. Three cover dead_peer_after, because the first of
// them may see a request that was posted just before. A large message takes more. A message for which the peer has no
// receive may wait for ever if the device can tell such a peer from a dead one. All requests up to the first signaled
// one count, because the next completion waits for them. If requests complete before they are answered, all that was
// handed over counts, and the bytes that TCP may hold.
std::uint64_t peer_watch::looks_to_spare() const noexcept {
  constexpr std::uint64_t slowest = 4 << 10;  // bytes per millisecond of the slowest network
  constexpr std::uint64_t with_tcp = 4 << 20;
  const bool completes_early = !completes_on_answer();
  const send_queue::outstanding before = requests_.before_next_completion(completes_early);
  const std::uint64_t bytes = before.bytes + (completes_early ? with_tcp : 0);
  if (before.takes_receive && endpoint_.home().traits().tells_busy_peer_from_dead)
    return std::numeric_limits<std::uint64_t>::max();  // mutant: have the sends of an RNIC wait
  return 3 + bytes / slowest / static_cast<std::uint64_t>(pause_.count());
}

}  // namespace weft::net::verbs
