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

/// Registered memory, a whole file, that peers may map: mr::registration_options::direct. Thread-safe.
///
/// Each connection whose peer has been handed the file has a loan of it. A peer that keeps the rules looks before each
/// access whether its loan has been ended, and says when it is inside of one.
class direct_memory : public std::enable_shared_from_this<direct_memory> {
 public:
  class loan;

  /// Throws errc::invalid_argument for a file that can become shorter, and for one that others could write although
  /// the memory's usage lets nobody do that.
  [[nodiscard]] static std::shared_ptr<direct_memory> make(const mr::memory_record& whole, system_calls& calls);

  direct_memory(descriptor file, std::span<std::byte> memory, bool writable) noexcept
      : file_(std::move(file)), memory_(memory), writable_(writable) {}
  direct_memory(const direct_memory&) = delete;
  direct_memory& operator=(const direct_memory&) = delete;
  ~direct_memory();

  [[nodiscard]] int file() const noexcept { return file_.fd(); }
  [[nodiscard]] std::span<std::byte> memory() const noexcept { return memory_; }
  /// Whoever has the file can write it.
  [[nodiscard]] bool writable() const noexcept { return writable_; }

  /// False once it has been revoked. Does nothing for one that it was lent to before.
  [[nodiscard]] bool lend(loan& to) noexcept;
  /// Does nothing for one that has been taken back.
  void take_back(loan& from) noexcept;
  /// Ends all loans, and waits for peers that are inside of an access: until they are out, have gone, or have had a
  /// second for it, because one that is stopped there may stay. There are no other loans afterwards.
  void revoke() noexcept;

 private:
  descriptor file_;
  std::span<std::byte> memory_;
  bool writable_;

  std::mutex mutex_;
  std::condition_variable taken_back_;
  weft::detail::intrusive_list<loan> loans_;
  bool revoked_ = false;
};

/// A connection's. Not to be destroyed while it is lent.
class direct_memory::loan : public weft::detail::list_hook<loan> {
 public:
  loan(const loan&) = delete;
  loan& operator=(const loan&) = delete;

 protected:
  loan() = default;
  ~loan() = default;

 private:
  friend class direct_memory;
  /// The memory is being revoked: shuts the peer out. Both on any thread, under a mutex.
  virtual void end() noexcept = 0;
  /// Whether the peer is out since then.
  [[nodiscard]] virtual bool is_outside() const noexcept = 0;
};

}  // namespace weft::net::software
