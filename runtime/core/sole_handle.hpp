// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/error.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

// Detects that a handle was copied bit by bit and that the copy has released the resource of both: GCC 12 makes such
// copies and destroys both (docs/gcc-12.md). The resource may be gone by then, so the check must not touch it.
namespace weft::detail {

/// The record of a handle's mark. Records are reused and their memory is never freed, so that a handle may look at its
/// record after a bitwise copy of the handle was destroyed.
struct handle_record {
  std::atomic<std::uint64_t> life{0};  // how many handles that used this record have ended
  handle_record* next = nullptr;       // the next record in a list of free ones; unused while a handle has this one
};

/// A few free records of a thread.
struct free_records {
  handle_record* first = nullptr;
  std::size_t count = 0;
};
extern constinit thread_local free_records free_records_here;

/// Detects that a bitwise copy of a handle has ended. The mark is a member of the handle: it moves with the handle, and
/// ends with it. After one of two bitwise copies has ended, the other counts as ended, too.
class handle_mark {
 public:
  /// The mark of an empty handle.
  constexpr handle_mark() noexcept = default;
  handle_mark(handle_mark&& other) noexcept
      : record_(std::exchange(other.record_, nullptr)), life_(std::exchange(other.life_, 0)) {}
  handle_mark& operator=(handle_mark&&) = delete;  // end() needs the handle's name: use swap()
  ~handle_mark() = default;

  /// Takes a record. If there is no memory for one, the handle is not checked.
  void begin() noexcept {
    free_records& here = free_records_here;
    if (here.first == nullptr) [[unlikely]]
      provide();
    record_ = here.first;
    if (record_ == nullptr) [[unlikely]]
      return;
    here.first = record_->next;
    --here.count;
    life_ = record_->life.load(std::memory_order_relaxed);
  }
  /// Ends the program if a bitwise copy has ended; `what` names the handle.
  void check(const char* what) const noexcept {
    if (record_ != nullptr && record_->life.load(std::memory_order_relaxed) != life_) [[unlikely]]
      terminate_because_duplicated(what);
  }
  void end(const char* what) noexcept {
    if (record_ == nullptr) return;
    check(what);
    handle_record& record = *std::exchange(record_, nullptr);
    record.life.store(life_ + 1, std::memory_order_relaxed);
    free_records& here = free_records_here;
    record.next = here.first;
    here.first = &record;
    if (++here.count > most_free) [[unlikely]]
      give_up_half();
  }
  void swap(handle_mark& other) noexcept {
    std::swap(record_, other.record_);
    std::swap(life_, other.life_);
  }

 private:
  static constexpr std::size_t most_free = 64;
  static void provide() noexcept;
  static void give_up_half() noexcept;

  handle_record* record_ = nullptr;
  std::uint64_t life_ = 0;
};

/// A handle's name as a template argument.
template <std::size_t N>
struct handle_words {
  char text[N];
  consteval handle_words(const char (&from)[N]) {  // NOLINT(google-explicit-constructor): written as a literal
    for (std::size_t i = 0; i < N; ++i) text[i] = from[i];
  }
};

/// The pointer, raw or smart, of a handle that must be the only one of its resource; null if the handle is empty.
/// held(), the operators * and ->, take(), a move assignment to the handle and its destructor end the program if a
/// bitwise copy has ended. A raw pointer is not owned: before the handle ends or is assigned to, take() the pointer and
/// release its object.
template <class Pointer, handle_words Words>
class sole_handle {
 public:
  using element_type = typename std::pointer_traits<Pointer>::element_type;

  sole_handle() noexcept = default;
  explicit sole_handle(Pointer held) noexcept : held_(std::move(held)) {
    if (held_ != nullptr) mark_.begin();
  }
  sole_handle(sole_handle&& other) noexcept
      : held_(std::exchange(other.held_, Pointer())), mark_(std::move(other.mark_)) {}
  sole_handle& operator=(sole_handle&& other) noexcept {
    sole_handle taken(std::move(other));
    swap(taken);
    return *this;
  }
  ~sole_handle() { mark_.end(Words.text); }

  void swap(sole_handle& other) noexcept {
    std::swap(held_, other.held_);
    mark_.swap(other.mark_);
  }

  explicit operator bool() const noexcept { return held_ != nullptr; }
  friend bool operator==(const sole_handle& item, std::nullptr_t) noexcept { return item.held_ == nullptr; }

  [[nodiscard]] const Pointer& held() const noexcept {
    mark_.check(Words.text);
    return held_;
  }
  element_type& operator*() const noexcept { return *held(); }
  element_type* operator->() const noexcept { return &*held(); }

  /// Yields the pointer and leaves the handle empty.
  [[nodiscard]] Pointer take() noexcept {
    mark_.end(Words.text);
    return std::exchange(held_, Pointer());
  }

 private:
  Pointer held_ = Pointer();
  handle_mark mark_;
};

}  // namespace weft::detail
