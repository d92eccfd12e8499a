// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/region/region_state.hpp>
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
#include <utility>

namespace weft::net {

/// An element of a list: memory of this end and memory of the peer's, of the same size.
struct list_part {
  mr::slice local;          ///< what is written, or where it is read to
  mr::remote_slice remote;  ///< where it is written, or what is read
};

/// An element of a block_list: a block of this end's memory and one of the peer's, by their numbers.
struct block_pair {
  // Braces, because doxygen takes `local =` for something else and leaves the name out.
  std::uint32_t local{0};    ///< begins `local` times block_list::local_stride behind the first one
  std::uint32_t remote = 0;  ///< likewise, by block_list::remote_stride
};

/// A list whose elements are blocks of one size, at multiples of a stride in one piece of memory at each end: the pages
/// of a cache, or one layer of each of them, which has its own beginning and the stride of a page.
struct block_list {
  mr::slice local;                       ///< where the blocks of this end are
  mr::remote_slice remote;               ///< and those of the peer
  std::uint64_t block_bytes = 0;         ///< of each block
  std::uint64_t local_stride = 0;        ///< from the beginning of a block to that of the next; 0: `block_bytes`
  std::uint64_t remote_stride = 0;       ///< the same in the peer's memory
  std::span<const block_pair> blocks{};  ///< which are moved; has a name, and outlives the operation
};
static_assert(std::is_trivially_destructible_v<block_list>);

/// Any number of writes, or of reads, that are awaited as one: what connection::write() and read() of a list return.
///
/// Its elements are posted in their order, as many at a time as there is room for with the transport, and operations
/// that are awaited later follow them. All are checked before the first one is posted, and the memory of all of them is
/// borrowed until it ends. It is awaited once, before its connection is destroyed.
///
///     auto push = peer.write(layer, {.immediate = 7});
///     co_await push;
///
/// A stop, or the failure of an element, keeps those that were not posted from being so, and waits for the others,
/// until the transport no longer uses their memory: so done() is exact in the end. A task that is destroyed while
/// elements are with the transport ends the program.
class [[nodiscard]] list_operation final : public weft::detail::operation_base,
                                           private transfer_group,
                                           private work_run {
 public:
  list_operation(list_operation&& other) noexcept;
  list_operation& operator=(list_operation&&) = delete;
  ~list_operation();

  /// Throws weft::error: what connection::write() or read() says, of the first element that failed, or
  /// errc::canceled. done() elements before it have succeeded.
  void await_resume() const {
    if (failure_ || !begun()) [[unlikely]]
      throw_failure();
  }
  [[nodiscard]] std::string describe() const override;

  /// How many elements it has.
  [[nodiscard]] std::size_t size() const noexcept { return is_of_blocks_ ? blocks_.blocks.size() : parts_.size(); }
  /// How many of them have succeeded so far, from the first one on. On the executor of the connection.
  [[nodiscard]] std::size_t done() const noexcept { return done_; }

 private:
  friend class connection;
  friend class sending;
  friend class staging;

  // Parts that are looked up next: how the fabric names the peer's memory, up to `end`.
  struct like_parts {
    std::size_t end = 0;
    std::uint64_t remote_key = 0;
    std::uint64_t offset = 0;  // from the first of its addresses to the fabric's
  };

  // No owner: awaiting it is errc::closed.
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
  // Of elements of a run, which have no records that would do it: the next ones, and the oldest ones under way.
  void hold(std::size_t count) noexcept;
  void release(std::size_t count) noexcept;
  [[nodiscard]] std::uint64_t bytes_of_next(std::size_t count) const noexcept;
  void load(std::size_t place);
  /// mr::remote_slice::counter() of an element.
  [[nodiscard]] std::uint32_t counter_of(std::size_t place) const noexcept {
    return is_of_blocks_ ? blocks_.remote.counter() : parts_[place].remote.counter();
  }
  void load_block(const block_pair& pair) noexcept;
  void elements_ended(std::size_t count) noexcept;
  /// No further elements are posted.
  void close() noexcept {
    is_open_ = false;
    if (under_way_ == 0) conclude();
  }
  void conclude() noexcept;

  operation_owner* owner_;
  transfer element_;  // the next one to be posted; what waits in the connection's queue while there are such
  std::span<const list_part> parts_;
  block_list blocks_;
  peer_names names_;                // of the peer's memory as a whole, where the connection has rails
  std::uint64_t first_remote_ = 0;  // where that begins
  bool is_of_blocks_ = false;
  bool is_open_ = false;     // elements may still be posted
  bool is_posting_ = false;  // that is just being done
  bool is_carried_ = false;  // with staging, which posts others for them
  bool is_run_ = false;      // the link takes it apart
  bool is_told_ = false;     // the peer is told of elements that have completed
  write_options how_;
  like_parts like_;
  mr::region_pin pin_;  // of a run of blocks, from the first one on
  std::size_t posted_ = 0;
  std::size_t under_way_ = 0;  // with the transport
  std::size_t done_ = 0;
  std::size_t goes_on_at_ = 0;    // so many operations of the connection with the transport, or fewer
  bool has_failed_ = false;       // an element
  std::optional<error> failure_;  // of the first one that has, or that it was stopped
};

}  // namespace weft::net
