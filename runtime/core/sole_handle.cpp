// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/core/fork_guard.hpp>
#include <weft/runtime/core/sole_handle.hpp>

#include <mutex>
#include <new>

namespace weft::detail {
namespace {

constexpr std::size_t batch = 32;

// The free records that threads have given up, and a list of all blocks, through which leak checkers find all records.
struct shared_records {
  struct block {
    handle_record records[batch];
    block* older = nullptr;
  };
  handle_record* first = nullptr;
  block* newest = nullptr;
};

constinit std::mutex records_mutex;

[[nodiscard]] std::unique_lock<std::mutex> lock_records() noexcept {
  static_cast<void>(unlock_in_children<records_mutex>());
  return std::unique_lock(records_mutex);
}

shared_records& shared() noexcept {
  // Never destroyed, because handles in static storage may end after everything else.
  alignas(shared_records) static std::byte memory[sizeof(shared_records)];
  static auto* const all = new (memory) shared_records;
  return *all;
}

void give_up(std::size_t keep) noexcept {
  free_records& here = free_records_here;
  const auto lock = lock_records();
  while (here.count > keep) {
    handle_record& record = *here.first;
    here.first = record.next;
    --here.count;
    record.next = std::exchange(shared().first, &record);
  }
}

// Gives up a thread's free records at the thread's end. Constructed when the thread first has no free record, or too
// many.
struct at_thread_exit {
  at_thread_exit() noexcept = default;
  at_thread_exit(const at_thread_exit&) = delete;
  at_thread_exit& operator=(const at_thread_exit&) = delete;
  ~at_thread_exit() { give_up(0); }
  void note() noexcept {}
};
thread_local at_thread_exit leaving;

}  // namespace

constinit thread_local free_records free_records_here;

void handle_mark::provide() noexcept {
  leaving.note();
  free_records& here = free_records_here;
  const auto keep = [&here](handle_record& record) {
    record.next = std::exchange(here.first, &record);
    ++here.count;
  };
  const auto lock = lock_records();
  while (here.count < batch && shared().first != nullptr) keep(*std::exchange(shared().first, shared().first->next));
  if (here.count != 0) return;
  auto* const made = new (std::nothrow) shared_records::block;
  if (made == nullptr) return;
  made->older = std::exchange(shared().newest, made);
  for (handle_record& each : made->records) keep(each);
}

void handle_mark::give_up_half() noexcept {
  leaving.note();
  give_up(most_free / 2);
}

}  // namespace weft::detail
