// SPDX-License-Identifier: Apache-2.0
#include <weft/net/link/checked.hpp>
#include <weft/net/software/direct_memory.hpp>
#include <weft/runtime/error.hpp>

#include <fmt/core.h>

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/vfs.h>

#include <cassert>
#include <chrono>
#include <system_error>

// Since Linux 5.1; the C library's headers may be older.
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace weft::net::software {
namespace {

constexpr mr::usage writing = mr::usage::write_dst | mr::usage::atomic_dst;

}  // namespace

bool has_huge_pages(const descriptor& file) noexcept {
  struct statfs about {};
  return file.calls().fstatfs(file.fd(), &about) < 0 || about.f_type == HUGETLBFS_MAGIC;
}

std::shared_ptr<direct_memory> direct_memory::make(const mr::memory_record& whole, system_calls& calls) {
  const auto refuse = [&](const char* why) {
    throw error(errc::invalid_argument, fmt::format("register {} bytes directly: {}", whole.bytes.size(), why));
  };
  const int seals = calls.fcntl(whole.file.descriptor, F_GET_SEALS, 0);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) refuse("the file can become shorter");
  const bool writable = (seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) == 0;
  const bool opens_by_itself = mr::overlaps(whole.usage, mr::peer_usages);
  if (writable && opens_by_itself && !mr::overlaps(whole.usage, writing)) {
    refuse("peers that may only read it could write the file: make it with mr::file_access::read_only");
  }
  if (!writable && mr::overlaps(whole.usage, writing))
    refuse("the file is sealed against writing (F_SEAL_WRITE or F_SEAL_FUTURE_WRITE), but the usage lets peers write");
  const int copy =
      checked(calls.fcntl(whole.file.descriptor, F_DUPFD_CLOEXEC, 0), "copy the descriptor of direct memory");
  return std::make_shared<direct_memory>(descriptor(copy, calls), whole.bytes, writable);
}

direct_memory::~direct_memory() { assert(loans_.empty() && "direct memory went before its loans"); }

bool direct_memory::lend(loan& to) noexcept {
  const std::lock_guard lock(mutex_);
  if (revoked_) return false;
  if (!loans_.contains(to)) loans_.push_front(to);
  return true;
}

void direct_memory::take_back(loan& from) noexcept {
  const std::lock_guard lock(mutex_);
  if (!loans_.contains(from)) return;
  loans_.remove(from);
  taken_back_.notify_all();
}

void direct_memory::revoke() noexcept {
  using namespace std::chrono_literals;
  std::unique_lock lock(mutex_);
  revoked_ = true;
  for (loan& item : loans_) item.end();
  const auto patience = std::chrono::steady_clock::now() + 1s;
  for (;;) {
    for (loan& item : loans_) {
      if (item.is_outside()) loans_.remove(item);
    }
    if (loans_.empty()) return;
    if (std::chrono::steady_clock::now() >= patience) break;
    taken_back_.wait_for(lock, 100us);
  }
  while (!loans_.empty()) loans_.pop_front();
}

}  // namespace weft::net::software
