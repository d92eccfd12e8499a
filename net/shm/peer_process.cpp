// SPDX-License-Identifier: Apache-2.0
#include <weft/net/shm/peer_process.hpp>
#include <weft/net/shm/record.hpp>

#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace weft::net::shm {
namespace {

// An address in another process, which is not dereferenced here.
iovec far_memory(std::uint64_t address, std::uint64_t bytes) noexcept {
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  return {.iov_base = reinterpret_cast<void*>(address), .iov_len = static_cast<std::size_t>(bytes)};
}

}  // namespace

bool peer_process::accept(const proof_word& proof) noexcept {
  proof_ = proof;
  if (number_ > 0 && proof.address != 0 && copy({}, {}, 0) == 0) return true;  // mutant: a peer's word for its proof
  proof_ = {};
  return false;
}

int peer_process::copy(std::span<std::byte> to, std::span<const far_piece> pieces, std::uint64_t from) noexcept {
  std::array<iovec, max_far_pieces + 1> far{};
  std::size_t count = 0;
  std::uint64_t left = to.size();
  for (const far_piece& piece : pieces) {
    const std::uint64_t skipped = std::min(from, piece.bytes);
    from -= skipped;
    const std::uint64_t taken = std::min(left, piece.bytes - skipped);
    left -= taken;
    if (taken != 0) far[count++] = far_memory(piece.address + skipped, taken);
  }
  far[count++] = far_memory(proof_.address, sizeof proof_.value);
  std::uint64_t seen = 0;
  const std::array<iovec, 2> near{iovec{.iov_base = to.data(), .iov_len = to.size()},
                                  iovec{.iov_base = &seen, .iov_len = sizeof seen}};
  const ssize_t copied = calls_.process_vm_readv(number_, near.data(), near.size(), far.data(), count);
  if (copied < 0) return static_cast<int>(copied);
  if (static_cast<std::size_t>(copied) != to.size() + sizeof seen) return -EFAULT;
  return seen == proof_.value ? 0 : -ESRCH;  // mutant: copy out of whatever process
}

}  // namespace weft::net::shm
