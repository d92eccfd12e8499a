// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/shm/channel.hpp>
#include <weft/net/shm/link_breaker.hpp>
#include <weft/net/shm/output_ring.hpp>
#include <weft/net/shm/peer_process.hpp>
#include <weft/net/shm/posted_request.hpp>
#include <weft/net/shm/record.hpp>
#include <weft/runtime/system/descriptor.hpp>

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace weft::net::shm {

/// The large payloads of both ends' requests, which the receiver copies out of the sender's memory where the kernel
/// lets it.
class far_copies {
 public:
  /// Payloads from this size on are copied by the receiver; for smaller ones the system call costs more than the second
  /// copy.
  static constexpr std::uint64_t least_bytes = std::uint64_t{128} << 10;

  /// `peer` is the other end's process; 0 if unknown.
  far_copies(pid_t peer, const channel& memory, const descriptor& socket, output_ring& output,
             link_breaker& link) noexcept
      : peer_(peer), memory_(memory), socket_(socket), output_(output), link_(link) {}
  far_copies(const far_copies&) = delete;
  far_copies& operator=(const far_copies&) = delete;

  // ---- out of this end's memory ----

  /// Whether the peer can copy the payload. Asks the peer, the first time; until it has answered, payloads go through
  /// the ring.
  [[nodiscard]] bool may_send(const posted_request& item, const software::domain& home) noexcept;
  /// Sends a request that names its payload's memory. False if there is not enough room in the ring yet.
  [[nodiscard]] bool send(posted_request& item, const software::domain& home) noexcept;
  /// Takes the peer's answer to `prove`. Returns what is wrong with it, or null.
  [[nodiscard]] const char* heard(const record& answer) noexcept;

  // ---- out of the peer's memory ----

  /// Tests for the peer whether this end can copy. Returns what is wrong with `content`, or null; then an answer is
  /// owed.
  [[nodiscard]] const char* prove(std::span<const std::byte> content) noexcept;
  /// Begins to copy a payload of `total` bytes; `content` lists its pieces. Returns what is wrong with them, or null.
  [[nodiscard]] const char* begin(std::span<const std::byte> content, std::uint64_t total) noexcept;
  /// Whether a payload is being copied.
  [[nodiscard]] bool is_copying() const noexcept { return copying_; }
  enum class outcome : std::uint8_t {
    copied,
    missing,  ///< a part of either end's memory is missing; the copy has been given up
    failed,   ///< the link has ended
  };
  /// Fills `to` with the payload from offset `from` on.
  [[nodiscard]] outcome copy(std::span<std::byte> to, std::uint64_t from) noexcept;
  /// Called once the whole payload has been copied: an answer is owed from then on.
  void finish() noexcept {
    copying_ = false;
    ++owed_copied_;
  }
  void give_up() noexcept { copying_ = false; }
  /// Sends the answers that are owed. False if the ring lacks room for all of them yet.
  [[nodiscard]] bool send_answers() noexcept;

  /// Clears the proof word, so that from now on a copy by the peer fails.
  void end() noexcept { std::atomic_ref(proof_.value).store(0, std::memory_order_relaxed); }

 private:
  void ask() noexcept;

  const pid_t peer_;
  const channel& memory_;
  const descriptor& socket_;
  output_ring& output_;
  link_breaker& link_;
  enum class state : std::uint8_t { untried, asked, possible, impossible };
  state by_peer_ = state::untried;
  proof_word proof_;                                // the proof that the peer can read this end's memory
  std::optional<peer_process> process_;             // the peer's process; empty: the peer has sent no proof
  std::array<far_piece, max_far_pieces> pieces_{};  // of the payload that is being copied
  bool copying_ = false;
  std::uint32_t owed_copied_ = 0;    // how many `copied` are to be sent
  std::optional<bool> owed_proven_;  // the `proven` that is to be sent
};

}  // namespace weft::net::shm
