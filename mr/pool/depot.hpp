// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/pool/arena.hpp>
#include <weft/mr/pool/block.hpp>
#include <weft/mr/pool/budget.hpp>
#include <weft/mr/pool/size_class.hpp>
#include <weft/mr/system/background.hpp>
#include <weft/runtime/intrusive_list.hpp>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <source_location>
#include <tuple>
#include <vector>

// The source of a pool's blocks: arenas are divided into chunks, and runs of chunks are cut into blocks of one size.
// Nothing here locks, waits or calls the system, except the job of a carved_arena: pool_core does all that.
namespace weft::mr::detail {

class carved_arena;
class depot;
class retirement_listener;

/// The size of the chunks that arenas are divided into.
inline constexpr std::size_t chunk_bytes = std::size_t{16} << 10;

inline constexpr std::array all_budgets{budget::send, budget::receive};
inline constexpr std::size_t budgets = all_budgets.size();
[[nodiscard]] constexpr std::size_t index_of(budget which) noexcept { return static_cast<std::size_t>(which); }

/// The index of the stack where an executor caches blocks of one class.
[[nodiscard]] constexpr std::size_t stack_of(budget which, std::size_t size_class) noexcept {
  return index_of(which) * cached_classes + size_class;
}
/// The stack index of blocks that executors do not cache.
inline constexpr std::size_t no_stack = budgets * cached_classes;

// The names of a depot's lists.
struct slabs_with_free_blocks;  // slabs of one class
struct idle_slabs;              // slabs whose blocks are all free, except those of whole arenas
struct all_arenas;
struct idle_arenas;  // one list of shared arenas, one of whole ones

/// A run of chunks of one arena, cut into blocks of one class; or a whole arena as one block.
class slab : public weft::detail::list_hook<slab, slabs_with_free_blocks>,
             public weft::detail::list_hook<slab, idle_slabs> {
 public:
  [[nodiscard]] carved_arena& home() const noexcept { return *home_; }
  [[nodiscard]] std::size_t size_class() const noexcept { return size_class_; }
  /// The depot's listener.
  [[nodiscard]] retirement_listener& listener() const noexcept { return *listener_; }
  /// Notes where a block was allocated, for reports of leaks and of long waits, in builds that mark freed memory.
  void note_taken(const block& item, const std::source_location& where) noexcept;
  void note_freed(const block& item) noexcept;
  /// The index of the stack where executors cache its blocks: stack_of(), or no_stack.
  [[nodiscard]] std::size_t stack() const noexcept { return stack_; }

 private:
  friend class depot;

  [[nodiscard]] block& take() noexcept;
  void give(block& item) noexcept;

  carved_arena* home_ = nullptr;
  retirement_listener* listener_ = nullptr;
  std::uint8_t stack_ = 0;
  std::size_t size_class_ = 0;
  std::size_t first_chunk_ = 0;
  std::size_t chunks_ = 0;
  std::unique_ptr<block[]> blocks_;
  // Where each block was allocated. Atomic, because reports read it while other executors may free blocks. A null
  // `file` means that the block is free. The array is null if nothing is noted, or if there was no memory for it.
  struct origin {
    std::atomic<const char*> file{nullptr};
    std::atomic<std::uint32_t> line{0};
  };
  std::unique_ptr<origin[]> origins_;
  std::size_t count_ = 0;
  block* free_ = nullptr;
  std::size_t taken_ = 0;
};

/// Notified, from any thread, when an arena that was removed from its depot has been freed.
class retirement_listener {
 public:
  virtual void retired(depot& home, std::size_t bytes) noexcept = 0;

 protected:
  ~retirement_listener() = default;
};

/// An arena and the slabs that it is cut into. Once removed from its depot it is a job for a worker, which frees the
/// memory.
class carved_arena final : public background_job,
                           public weft::detail::list_hook<carved_arena, all_arenas>,
                           public weft::detail::list_hook<carved_arena, idle_arenas> {
 public:
  /// `whole`: for one buffer that is too large to share an arena.
  carved_arena(std::unique_ptr<arena> memory, depot& home, bool whole);

  [[nodiscard]] depot& home() const noexcept { return *home_; }
  [[nodiscard]] const arena& memory() const noexcept { return *memory_; }
  [[nodiscard]] std::size_t size() const noexcept { return bytes_; }
  [[nodiscard]] bool whole() const noexcept { return whole_; }
  /// Whether none of its blocks is taken.
  [[nodiscard]] bool idle() const noexcept { return taken_ == 0; }

  carved_arena* next_retired = nullptr;  // in arena_supply::orders::give_up

 private:
  friend class depot;

  // The arena whose longest free run is the shortest comes first, and among equals the oldest, so that the others
  // become idle.
  struct by_room {
    using is_transparent = void;
    [[nodiscard]] bool operator()(const carved_arena* a, const carved_arena* b) const noexcept {
      return std::tie(a->longest_run_, a->number_) < std::tie(b->longest_run_, b->number_);
    }
    [[nodiscard]] bool operator()(const carved_arena* a, std::size_t chunks) const noexcept {
      return a->longest_run_ < chunks;
    }
  };
  using index = std::set<carved_arena*, by_room>;

  void run() noexcept override;
  [[nodiscard]] std::size_t find_run(std::size_t chunks) const noexcept;
  void measure() noexcept;

  std::unique_ptr<arena> memory_;
  depot* home_;
  std::size_t bytes_;
  bool whole_;
  std::size_t taken_ = 0;                     // blocks taken from the depot
  std::vector<std::unique_ptr<slab>> slabs_;  // each at the index of its first chunk
  std::vector<bool> used_;                    // chunks that belong to a slab
  std::size_t longest_run_ = 0;               // of chunks that belong to no slab
  std::uint64_t number_ = 0;                  // by age
  // Its node in the depot's index, which is made in advance so that listing the arena does not allocate.
  index::node_type unlisted_;  // empty while it is listed
  index::iterator listed_;
};

/// The arenas of one budget of a pool. Under the pool's mutex. Cutting allocates memory; if that fails, no slab is cut.
///
/// Giving a block takes constant time, and so does taking one if a block of its size is free. Cutting more finds an
/// arena in logarithmic time, and then goes through its chunks; if no arena has room, it first merges idle slabs, one
/// after the other. Only reports go through all arenas.
class depot {
 public:
  /// The class of a slab whose block is a whole arena.
  static constexpr std::size_t whole_class = 255;

  /// `ordinary`: the size of an arena; a larger block gets an arena of its own.
  depot(retirement_listener& listener, budget which, std::size_t ordinary) noexcept
      : listener_(listener), which_(which), arena_bytes_(ordinary) {}
  depot(const depot&) = delete;
  depot& operator=(const depot&) = delete;
  ~depot();

  /// Takes a free block of at least `bytes`; null if another arena is needed, or if there is no memory to cut a slab.
  [[nodiscard]] block* take(std::size_t bytes) noexcept;
  /// Takes a free block that is cut to that class already; null if there is none.
  [[nodiscard]] block* take_cut(std::size_t size_class) noexcept;
  void give(block& item) noexcept;

  [[nodiscard]] budget which() const noexcept { return which_; }
  /// The size of an ordinary arena.
  [[nodiscard]] std::size_t arena_bytes() const noexcept { return arena_bytes_; }
  /// Whether buffers of that many bytes share an arena with others.
  [[nodiscard]] bool shares_arena(std::size_t bytes) const noexcept {
    return bytes <= arena_bytes_ && class_bytes(class_of(bytes)) <= arena_bytes_;
  }

  /// How many blocks of at least `bytes` fit in arenas of `limit` bytes together, without any other blocks.
  [[nodiscard]] std::size_t most_blocks(std::size_t bytes, std::size_t limit) const noexcept;

  void add(std::unique_ptr<carved_arena> item) noexcept;
  /// Removes an arena that is idle.
  [[nodiscard]] std::unique_ptr<carved_arena> remove(carved_arena& item) noexcept;
  /// An idle arena to give up: one of a large buffer first, then one beyond the first `keep` shared ones. Null if none.
  [[nodiscard]] carved_arena* find_idle(std::size_t keep) const noexcept;

  [[nodiscard]] std::size_t arenas() const noexcept { return arenas_; }
  [[nodiscard]] std::size_t total_bytes() const noexcept { return total_bytes_; }
  [[nodiscard]] std::size_t taken_bytes() const noexcept { return taken_bytes_; }

  [[nodiscard]] retirement_listener& listener() const noexcept { return listener_; }

  /// The blocks in use whose place of allocation in the source was noted, by that place.
  struct taken_at {
    const char* file;
    std::uint32_t line;
    std::size_t blocks;
    std::size_t bytes;
  };
  [[nodiscard]] std::vector<taken_at> taken() const;

 private:
  friend class carved_arena;

  [[nodiscard]] block* take_from(slab& source) noexcept;
  [[nodiscard]] block* take_whole(std::size_t bytes) noexcept;
  [[nodiscard]] slab* cut(std::size_t size_class) noexcept;
  [[nodiscard]] slab* cut(std::size_t size_class, std::size_t chunks) noexcept;
  [[nodiscard]] slab* cut(carved_arena& home, std::size_t first, std::size_t chunks, std::size_t size_class,
                          std::size_t block_bytes) noexcept;
  bool merge_idle(std::size_t chunks) noexcept;
  void merge(slab& item) noexcept;
  void relist(carved_arena& item) noexcept;
  void begin_use(slab& item) noexcept;
  void end_use(slab& item) noexcept;

  static constexpr std::size_t classes = 160;

  retirement_listener& listener_;
  const budget which_;
  const std::size_t arena_bytes_;
  weft::detail::intrusive_list<carved_arena, all_arenas> all_;  // owned
  std::size_t arenas_ = 0;
  std::uint64_t numbers_ = 0;
  carved_arena::index by_room_;                                                  // arenas that buffers share
  std::array<weft::detail::intrusive_list<carved_arena, idle_arenas>, 2> idle_;  // [1]: those of one large buffer each
  weft::detail::intrusive_list<slab, idle_slabs> idle_slabs_;
  std::array<weft::detail::intrusive_list<slab, slabs_with_free_blocks>, classes> with_free_;
  std::size_t total_bytes_ = 0;
  std::size_t taken_bytes_ = 0;
};

}  // namespace weft::mr::detail
