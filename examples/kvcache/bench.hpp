// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cache_memory.hpp"

namespace kvcache {

/// How blocks get from one process to the other.
enum class bench_way : std::uint8_t {
  weft,    ///< a list of writes, and one notification at the end
  tcp,     ///< plain TCP: writev(2) and readv(2), without any copy between
  memcpy,  ///< not at all: within one process, from a mapping to another
};

struct bench_options {
  bench_way way = bench_way::weft;
  std::string device;
  std::string address = "127.0.0.1:0";  ///< where the other process listens: of the device, if that is an RDMA device
  bool direct = false;                  ///< the sender may map the receiver's memory: registration_options::direct
  bool spin = false;                    ///< of plain TCP: never sleeps in a system call
  std::uint32_t blocks = 8192;
  std::uint64_t block_bytes = 65536;
  std::uint32_t rounds = 5;
  memory_choice memory{};  ///< at both ends
};

/// Moves that many blocks to random places, in one round after the other, and yields the seconds of each. Round 0 is
/// not counted: memory is touched for the first time there, and its contents are checked. The other process is a fork
/// of this one, so that this one has no threads yet. Throws common::failure, and the errors of system and network.
[[nodiscard]] std::vector<double> run_bench(const bench_options& options);

/// Has the GPU alone copy the same blocks to the same places, from pinned host memory, all copies of a round in one
/// stream. Yields the seconds of each round. Not before run_bench(): the CUDA driver does not survive a fork.
[[nodiscard]] std::vector<double> run_copies(const bench_options& options);

}  // namespace kvcache
