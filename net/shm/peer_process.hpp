// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/system/system_calls.hpp>

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace weft::net::shm {

/// A part of the sender's memory.
struct far_piece {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
};

/// What an end says to prove that its memory can be read: a word that no other process has, and where.
struct proof_word {
  std::uint64_t address = 0;
  std::uint64_t value = 0;
};

/// The process at the other end, out of whose memory this end copies large payloads, where the kernel lets it: see
/// process_vm_readv(2). It copies nothing into that memory.
///
/// A process is known by its number, which may be another's by then, or that of the same process with another program.
/// So each copy takes the proof along, which the kernel reads from the same memory behind all else.
class peer_process {
 public:
  peer_process(pid_t number, system_calls& calls) noexcept : number_(number), calls_(calls) {}

  /// Whether the kernel lets this end read there, found out by doing it.
  [[nodiscard]] bool accept(const proof_word& proof) noexcept;
  [[nodiscard]] bool is_proven() const noexcept { return proof_.address != 0; }
  /// Copies as many bytes as `to` has, from the place `from` on in all of `pieces`. Returns 0 or -errno; -ESRCH as well
  /// for a process that is not the one that was proven.
  [[nodiscard]] int copy(std::span<std::byte> to, std::span<const far_piece> pieces, std::uint64_t from) noexcept;

 private:
  pid_t number_;
  system_calls& calls_;
  proof_word proof_;
};

}  // namespace weft::net::shm
