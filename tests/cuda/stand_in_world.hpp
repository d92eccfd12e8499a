// SPDX-License-Identifier: Apache-2.0
// What the CUDA driver without a GPU consists of: stand_in.hpp says how it behaves, stand_in.cpp has its functions.
#pragma once

#include <weft/mr/cuda/driver.hpp>

#include <sys/types.h>

#include <condition_variable>
#include <map>
#include <random>
#include <set>

#include "stand_in.hpp"

namespace weft::test {

using mr::cuda::context_handle;
using mr::cuda::device_address;
using mr::cuda::event_handle;
using mr::cuda::host_function;
using mr::cuda::status;
using mr::cuda::stream_handle;

inline constexpr int most_devices = 2;

enum class memory_kind : int { plain, managed, other_context, mapped, imported };

/// Device memory: a memfd that is mapped twice. The visible pages are PROT_NONE, the alias is what copies use.
struct allocation {
  int device = 0;
  memory_kind kind = memory_kind::plain;
  std::uint64_t id = 0;
  device_address base = 0;
  std::size_t bytes = 0;
  device_address pages = 0;
  std::size_t page_bytes = 0;
  int memfd = -1;
  std::byte* alias = nullptr;
  bool synchronous = false;
  // Only for imported memory: whose it is, and how often it is open.
  pid_t owner = 0;
  std::uint64_t owner_id = 0;
  std::size_t opened = 0;

  [[nodiscard]] bool holds(device_address from, std::size_t size) const noexcept {
    return from >= base && from - base <= bytes && size <= bytes - (from - base);
  }
};

/// Host memory of cuMemHostRegister().
struct pinned_range {
  int device = 0;
  std::size_t bytes = 0;
  std::uint64_t id = 0;
};

/// What an IPC handle says.
struct handle_content {
  std::uint32_t magic = 0;
  pid_t pid = 0;
  int memfd = -1;
  int device = 0;
  std::uint64_t id = 0;
  std::uint64_t base_offset = 0;
  std::uint64_t bytes = 0;
};

struct event {
  int device = 0;
  std::uint64_t recorded = 0;
  std::uint64_t done = 0;
};

/// One entry of a stream: a copy, or an event, or a host function.
struct work {
  device_address to = 0;
  device_address from = 0;
  std::size_t bytes = 0;
  std::shared_ptr<test::event> event{};
  std::uint64_t recorded = 0;
  host_function function = nullptr;
  void* user_data = nullptr;
  unsigned delay = 0;  // how often the stream is picked before this is carried out
};

struct stream {
  int device = 0;
  std::vector<work> queue;  // keeps its room, so that calls allocate nothing: tests count allocations
  bool in_function = false;
  bool destroyed = false;

  [[nodiscard]] bool idle() const noexcept { return queue.empty() && !in_function; }
};

struct context {
  std::size_t retained = 0;
  std::uint64_t id = 0;  // since it has been active
  bool active = false;
  status failed = status::success;  // for good: CUDA calls that sticky
  std::shared_ptr<stream> default_stream;
};

/// The state of the driver. All of it is used under `lock`.
class world {
 public:
  static world& get();

  // Memory.
  [[nodiscard]] allocation* make(int device, std::size_t bytes, memory_kind kind);
  [[nodiscard]] allocation* import(const handle_content& handle, int memfd);
  void remove(allocation& old);
  /// The allocation that `where` lies in, or null.
  [[nodiscard]] allocation* find(device_address where);
  [[nodiscard]] bool is_device_address(device_address where) const noexcept;
  /// Where the processor finds the bytes; null: nowhere.
  [[nodiscard]] std::byte* alias(device_address where, std::size_t bytes);

  // Streams.
  void enqueue(const std::shared_ptr<stream>& to, work what);
  [[nodiscard]] std::shared_ptr<stream> find_stream(stream_handle handle, int device);
  [[nodiscard]] std::shared_ptr<event> find_event(event_handle handle);
  [[nodiscard]] bool uses(device_address begin, std::size_t bytes) const;
  [[nodiscard]] std::size_t outstanding() const;
  void fail_context(int device, status why);
  /// Everything that the context has is gone. Yields how much that was.
  std::size_t clear(int device);

  std::mutex lock;
  std::condition_variable changed;
  std::array<context, most_devices> contexts;
  std::map<device_address, std::unique_ptr<allocation>> allocations;  // by their base
  std::map<device_address, pinned_range> pinned;                      // by their beginning
  std::map<std::uintptr_t, std::shared_ptr<stream>> streams;
  std::map<std::uintptr_t, std::shared_ptr<event>> events;
  std::set<std::uintptr_t> gone;                 // handles of streams and events that went with their context
  std::vector<std::shared_ptr<stream>> working;  // all streams, also destroyed ones that still hold something
  std::mt19937_64 random{1};
  bool held = false;
  std::uint64_t last_id = 0;
  std::uintptr_t last_handle = 0x1000;  // handles are numbers that nobody takes for addresses

  // What tests ask for.
  std::map<std::string, status, std::less<>> fail_next;
  std::uint64_t fail_nth = 0;
  status nth_result = status::success;
  std::uint64_t calls = 0;
  int version = 12040;
  int devices = most_devices;
  bool dma_buf = true;
  std::size_t abandoned = 0;

  std::atomic<pid_t> started_by = 0;  // the process that the driver works in

 private:
  struct space {
    device_address begin = 0;
    device_address next = 0;
    std::map<std::size_t, std::vector<device_address>>
        freed;  // by their size; the last one is the first to be used again
  };

  world();
  [[nodiscard]] device_address take_pages(int device, std::size_t bytes);
  [[nodiscard]] allocation* add(std::unique_ptr<allocation> made);
  void carry_out();
  [[nodiscard]] bool take_turn(std::unique_lock<std::mutex>& locked);
  [[nodiscard]] bool copy_some(work& what);

  std::array<space, most_devices> spaces_;
  bool has_thread_ = false;
};

/// Whether the calling thread is in a host function, which must not call the driver.
[[nodiscard]] bool in_host_function() noexcept;

}  // namespace weft::test
