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

/// Proves that a process can be read, and which one it is: a random word in its memory, and the word's address there.
struct proof_word {
  std::uint64_t address = 0;
  std::uint64_t value = 0;
};

/// The process at the other end. Large payloads are copied out of its memory if the kernel allows that: see
/// process_vm_readv(2). Nothing is copied into its memory.
///
/// At the time of a copy, the pid may belong to another process, or the process may run another program. So each copy
/// also reads the proof's word from the same memory, behind everything else.
class peer_process {
 public:
  peer_process(pid_t number, system_calls& calls) noexcept : number_(number), calls_(calls) {}

  /// Reads the proof's word. True if the kernel lets this end read the process's memory, and the word is there.
  [[nodiscard]] bool accept(const proof_word& proof) noexcept;
  [[nodiscard]] bool is_proven() const noexcept { return proof_.address != 0; }
  /// Fills `to` from the concatenated `pieces`, starting at offset `from`. Returns 0 or -errno: -EFAULT also if only a
  /// part could be copied, -ESRCH also if the process is not the one that was proven. `to` may have changed even if the
  /// copy has failed.
  [[nodiscard]] int copy(std::span<std::byte> to, std::span<const far_piece> pieces, std::uint64_t from) noexcept;

 private:
  pid_t number_;
  system_calls& calls_;
  proof_word proof_;
};

}  // namespace weft::net::shm
