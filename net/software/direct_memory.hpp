// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/memory_record.hpp>
#include <weft/runtime/intrusive_list.hpp>
#include <weft/runtime/system/descriptor.hpp>
#include <weft/runtime/system/system_calls.hpp>

#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>

namespace weft::net::software {

/// Whether a file in memory has huge pages; true also if that is unknown. A process that touches a missing huge page
/// gets SIGBUS, and any process that can write the file can take its pages away.
[[nodiscard]] bool has_huge_pages(const descriptor& file) noexcept;

/// Registered memory that is a whole file, and that peers may map: mr::registration_options::direct. Thread-safe.
///
/// Each connection whose peer has been handed the file has a loan of the memory for each key. A peer that keeps the
/// rules announces each access, and then checks whether the loan has ended, before it touches the memory.
class direct_memory : public std::enable_shared_from_this<direct_memory> {
 public:
  class loan;

  /// Makes the direct memory of a region, with a copy of its file's descriptor. Throws errc::invalid_argument for a
  /// file that can become shorter, for one that peers could write although the usage only lets them read the memory,
  /// and for one that is sealed against writing although the usage lets peers write; the error of fcntl(2) if the
  /// descriptor cannot be copied.
  [[nodiscard]] static std::shared_ptr<direct_memory> make(const mr::memory_record& whole, system_calls& calls);

  direct_memory(descriptor file, std::span<std::byte> memory, bool writable) noexcept
      : file_(std::move(file)), memory_(memory), writable_(writable), may_lose_pages_(has_huge_pages(file_)) {}
  direct_memory(const direct_memory&) = delete;
  direct_memory& operator=(const direct_memory&) = delete;
  ~direct_memory();

  [[nodiscard]] int file() const noexcept { return file_.fd(); }
  [[nodiscard]] std::span<std::byte> memory() const noexcept { return memory_; }
  /// Whether pages may be missing although the file is sealed against becoming shorter: huge pages, which any process
  /// that can write the file can take away.
  [[nodiscard]] bool may_lose_pages() const noexcept { return may_lose_pages_; }
  /// Whether a process that has the file can write it.
  [[nodiscard]] bool writable() const noexcept { return writable_; }

  /// Lends the memory; false once it has been revoked. Does nothing for a loan that has begun already.
  [[nodiscard]] bool lend(loan& to) noexcept;
  /// Ends a loan. Does nothing for one that has been taken back already.
  void take_back(loan& from) noexcept;
  /// Ends all loans, and waits until peers that are inside an access have left it or are gone, but at most one second,
  /// because a peer that is stopped there may never leave. There are no loans afterwards.
  void revoke() noexcept;

 private:
  descriptor file_;
  std::span<std::byte> memory_;
  bool writable_;
  bool may_lose_pages_;

  std::mutex mutex_;
  std::condition_variable taken_back_;
  weft::detail::intrusive_list<loan> loans_;
  bool revoked_ = false;
};

/// A loan to one connection's peer. Must not be destroyed before take_back() or revoke() has ended it.
class direct_memory::loan : public weft::detail::list_hook<loan> {
 public:
  loan(const loan&) = delete;
  loan& operator=(const loan&) = delete;

 protected:
  loan() = default;
  ~loan() = default;

 private:
  friend class direct_memory;
  /// Shuts the peer out, because the memory is being revoked. Like is_outside(), called on any thread, under the mutex
  /// of the direct memory.
  virtual void end() noexcept = 0;
  /// Whether the peer has left its access, after end().
  [[nodiscard]] virtual bool is_outside() const noexcept = 0;
};

}  // namespace weft::net::software
