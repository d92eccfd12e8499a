// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/system/page.hpp>
#include <weft/net/link/checked.hpp>
#include <weft/net/shm/channel.hpp>
#include <weft/runtime/error.hpp>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cassert>
#include <cerrno>
#include <new>
#include <utility>

namespace weft::net::shm {

using mr::detail::page_bytes;
using mr::detail::round_down;
using mr::detail::round_up;

namespace {

// F_SEAL_SEAL forbids further seals, because after a seal against writing an end could no longer map the file.
constexpr int wanted_seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// Creates a file that cannot be executed, if the kernel knows such files, because a system may refuse any other
// (vm.memfd_noexec).
int make_file(system_calls& calls) {
  constexpr unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  constexpr unsigned not_executed = 8;  // MFD_NOEXEC_SEAL, since Linux 6.3 (else EINVAL); the headers may be older
  int made = calls.memfd_create("weft-channel", flags | not_executed);
  if (made == -EINVAL) made = calls.memfd_create("weft-channel", flags);
  return checked(made, "memfd_create");
}

std::size_t length_of(std::size_t ring_bytes) noexcept { return channel::header_bytes + 2 * ring_bytes; }

bool is_possible(std::size_t ring_bytes) noexcept {
  const bool is_power = (ring_bytes & (ring_bytes - 1)) == 0;
  return is_power && ring_bytes >= channel::min_ring_bytes && ring_bytes <= channel::max_ring_bytes;
}

mr::mapping map(const descriptor& file, std::size_t ring_bytes, system_calls& calls) {
  return mr::mapping::of_file({.descriptor = file.fd(), .offset = 0}, length_of(ring_bytes), calls);
}

}  // namespace

channel::channel(descriptor file, std::size_t ring_bytes, bool accepted, system_calls& calls)
    : file_(std::move(file)), ring_bytes_(ring_bytes), accepted_(accepted), memory_(map(file_, ring_bytes, calls)) {}

channel channel::make(std::size_t ring_bytes, system_calls& calls) {
  assert(is_possible(ring_bytes));
  const auto length = static_cast<off_t>(length_of(ring_bytes));
  descriptor file(make_file(calls), calls);
  checked(calls.ftruncate(file.fd(), length), "ftruncate");
  checked(calls.fcntl(file.fd(), F_ADD_SEALS, wanted_seals), "fcntl(F_ADD_SEALS)");
  channel made(std::move(file), ring_bytes, true, calls);
  int reserved = calls.madvise(made.memory_.data(), header_bytes, MADV_POPULATE_WRITE);
  // Linux before 5.14 has no MADV_POPULATE_WRITE: then the end that creates the file reserves all of it.
  if (reserved == -EINVAL) {
    do {
      reserved = calls.fallocate(made.file(), 0, 0, length);
    } while (reserved == -EINTR);
  }
  checked(reserved, "reserve the pages of a channel");
  ::new (&made.own()) end_words;
  ::new (&made.other()) end_words;
  return made;
}

channel channel::adopt(descriptor file, std::size_t ring_bytes, system_calls& calls) {
  const auto refuse = [](const char* why) { throw error(errc::protocol_error, why); };
  if (!is_possible(ring_bytes)) refuse("the peer's rings are of a length that none has");
  const int seals = calls.fcntl(file.fd(), F_GET_SEALS, 0);
  if (seals < 0) refuse("the peer's channel is no file in memory");
  if ((seals & wanted_seals) != wanted_seals) refuse("the length of the peer's channel can be changed");
  if (calls.lseek(file.fd(), 0, SEEK_END) != static_cast<off_t>(length_of(ring_bytes))) {
    refuse("the peer's channel is not as long as the peer says");
  }
  return {std::move(file), ring_bytes, false, calls};
}

end_words& channel::words(std::size_t which) const noexcept {
  return *std::launder(reinterpret_cast<end_words*>(memory_.data() + which * sizeof(end_words)));
}

ring_writer channel::writer() const noexcept {
  return {{memory_.data() + ring_offset(accepted_), ring_bytes_}, own(), other()};
}

ring_reader channel::reader() const noexcept {
  return {{memory_.data() + ring_offset(!accepted_), ring_bytes_}, own(), other()};
}

// A page of more than 4 KiB may also hold something else than this ring: it is reserved, but never given back.
bool channel::reserve_writer() noexcept {
  const std::size_t page = page_bytes();
  const std::size_t begin = ring_offset(accepted_);
  const std::size_t end = begin + ring_bytes_;
  const std::size_t first = round_down(begin, page);
  const int reserved = file_.calls().madvise(memory_.data() + first, round_up(end, page) - first, MADV_POPULATE_WRITE);
  if (reserved == 0 || reserved == -EINVAL) return true;
  // Give back the pages that were reserved, or the connection would keep them from others.
  const std::size_t own_begin = round_up(begin, page);
  const std::size_t own_end = round_down(end, page);
  if (own_begin < own_end)
    static_cast<void>(file_.calls().madvise(memory_.data() + own_begin, own_end - own_begin, MADV_REMOVE));
  return false;
}

}  // namespace weft::net::shm
