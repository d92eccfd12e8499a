// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/remote_region.hpp>
#include <weft/mr/slice.hpp>
#include <weft/net/connection/transfer.hpp>
#include <weft/net/link/peer_names.hpp>
#include <weft/net/link/work_run.hpp>
#include <weft/runtime/core/operation.hpp>
#include <weft/runtime/error.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <type_traits>

namespace weft::net {

/// An element of a list: memory of this end and memory of the peer's, of the same size.
struct list_part {
  mr::slice local;          ///< the source of a write, or the target of a read
  mr::remote_slice remote;  ///< the target of a write, or the source of a read
};

/// An element of a block_list: a block of this end's memory and one of the peer's, by their numbers.
struct block_pair {
  // Braces, because doxygen takes `local =` for something else and leaves the name out.
  std::uint32_t local{0};    ///< this end's block, `local` times block_list::local_stride after the first block
  std::uint32_t remote = 0;  ///< the peer's block, `remote` times block_list::remote_stride after the first block
};

/// A list whose elements are blocks of one size, at multiples of a stride in one piece of memory at each end: the pages
/// of a cache, or the same layer of each page. For a layer, the slices begin at that layer of the first page, and the
/// stride is the size of a page.
struct block_list {
  mr::slice local;                       ///< memory of this end's blocks
  mr::remote_slice remote;               ///< memory of the peer's blocks
  std::uint64_t block_bytes = 0;         ///< the size of each block
  std::uint64_t local_stride = 0;        ///< from the beginning of one block to the next; 0: `block_bytes`
  std::uint64_t remote_stride = 0;       ///< the stride in the peer's memory; 0: `block_bytes`
  std::span<const block_pair> blocks{};  ///< the blocks to move; their array must outlive the operation: give it a name
};
static_assert(std::is_trivially_destructible_v<block_list>);

/// Any number of writes, or of reads, that are awaited as one: the result of connection::write() and read() of a list.
///
/// Its elements are posted in order, as many at a time as connection_options::send_depth has room for, and before
/// operations that are awaited later. All are checked before the first one is posted, and their memory is borrowed
/// until the list ends. A list may be awaited only once, and before its connection is destroyed.
///
///     auto push = peer.write(layer, {.immediate = 7});
///     co_await push;
///
/// After a stop, or the failure of an element, no more elements are posted. The list ends once the transport no longer
/// uses the memory of the posted ones, so done() is exact then. Destroying the waiting task while elements are in
/// flight ends the program.
class [[nodiscard("co_await it")]] list_operation final : public weft::detail::operation_base,
                                                          private transfer_group,
                                                          private work_run {
 public:
  list_operation(list_operation&& other) noexcept;
  list_operation& operator=(list_operation&&) = delete;
  ~list_operation();

  /// Throws weft::error: that of the first failed element, as for connection::write() or read(), the reason why the
  /// connection ended or why the list was refused before it was posted, or errc::canceled if a stop came before all
  /// elements were posted. The first done() elements have succeeded.
  void await_resume() const {
    if (failure_ || !begun()) [[unlikely]]
      throw_failure();
  }
  [[nodiscard]] std::string describe() const override;

  /// The number of elements.
  [[nodiscard]] std::size_t size() const noexcept { return is_of_blocks_ ? blocks_.blocks.size() : parts_.size(); }
  /// How many elements have succeeded so far, counted from the first one. Call it on the executor of the connection.
  [[nodiscard]] std::size_t done() const noexcept { return done_; }

 private:
  friend class connection;
  friend class sending;
  friend class staging;

  // The fabric's name for the peer's memory, common to all parts up to `end`.
  struct like_parts {
    std::size_t end = 0;
    std::uint64_t remote_key = 0;
    std::uint64_t offset = 0;  // from remote_slice::address() to the fabric's address
  };

  // Awaiting a list without an owner throws errc::closed.
  list_operation(operation_owner* owner, transfer_kind kind, std::span<const list_part> parts,
                 const write_options& how);
  list_operation(operation_owner* owner, transfer_kind kind, const block_list& blocks, const write_options& how);

  void begin() override;
  void cancel() noexcept override;
  // transfer_group
  void member_ended() noexcept override { elements_ended(1); }
  [[nodiscard]] bool stopped() const noexcept override { return canceled(); }

  // work_run
  void look_up(std::size_t first, std::span<run_element> into) noexcept override;

  [[noreturn, gnu::cold]] void throw_failure() const;
  [[nodiscard]] std::optional<error> check_blocks() const;
  void look_up_blocks(std::size_t first, std::span<run_element> into) const noexcept;
  void look_up_parts(std::size_t first, std::span<run_element> into) noexcept;
  [[nodiscard]] std::size_t end_of_like(std::size_t place, std::uint64_t most_bytes) const noexcept;
  void note_like(std::size_t place, std::size_t end) noexcept;
  // Hold the regions of all elements, from the start to the end of the list.
  void hold() noexcept;
  void let_go() noexcept;
  template <class Function>
  void for_each_region(Function&& function) const noexcept;
  [[nodiscard]] std::uint64_t bytes_of_next(std::size_t count) const noexcept;
  void load(std::size_t place);
  /// mr::remote_slice::counter() of an element.
  [[nodiscard]] std::uint32_t counter_of(std::size_t place) const noexcept {
    return is_of_blocks_ ? blocks_.remote.counter() : parts_[place].remote.counter();
  }
  void load_block(const block_pair& pair) noexcept;
  void elements_ended(std::size_t count) noexcept;
  /// Posts no further elements; concludes the list once none is in flight.
  void close() noexcept {
    is_open_ = false;
    if (under_way_ == 0) conclude();
  }
  void conclude() noexcept;

  operation_owner* owner_;
  transfer element_;  // the next element to be posted, which waits in the connection's queue on behalf of the list
  std::span<const list_part> parts_;
  block_list blocks_;
  peer_names names_;                // of the memory of the peer's blocks as a whole, if the connection has rails
  std::uint64_t first_remote_ = 0;  // address of the memory of the peer's blocks
  bool is_of_blocks_ = false;
  bool is_open_ = false;     // elements may still be posted
  bool is_posting_ = false;  // inside post_elements(), while the link may complete elements at once
  bool is_carried_ = false;  // staging carries the list out, by requests of its own
  bool is_run_ = false;      // posted as a run, which the link takes apart
  bool is_told_ = false;     // the owner of a write counter is notified of completed elements
  write_options how_;
  like_parts like_;
  std::size_t posted_ = 0;
  std::size_t under_way_ = 0;  // posted and not completed
  std::size_t done_ = 0;
  std::size_t goes_on_at_ = 0;    // posting resumes once at most this many operations of the connection are in flight
  bool has_failed_ = false;       // an element has failed
  std::optional<error> failure_;  // of the first failed element, the connection's end, a stop, or a refusal
};

}  // namespace weft::net
