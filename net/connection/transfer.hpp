// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/buffer.hpp>
#include <weft/mr/remote_region.hpp>
#include <weft/mr/slice.hpp>
#include <weft/net/connection/completion_order.hpp>
#include <weft/net/link/peer_names.hpp>
#include <weft/net/payload.hpp>
#include <weft/runtime/core/operation.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/intrusive_list.hpp>

#include <concepts>
#include <coroutine>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>

namespace weft::net {

class batch_operation;
class list_operation;
class operation_owner;
struct operation_record;

/// The kind of a transfer: the function of connection that made it; `persist` for a persistent flush.
enum class transfer_kind : std::uint8_t { send, write, read, flush, fetch_add, compare_swap, persist };
/// The kind's name, for errors and dumps: "send".
[[nodiscard]] const char* name_of(transfer_kind kind) noexcept;

/// A group of transfers that are awaited together.
class transfer_group {
 public:
  /// Called once for each member that ends.
  virtual void member_ended() noexcept = 0;
  /// Whether a stop was requested.
  [[nodiscard]] virtual bool stopped() const noexcept = 0;

 protected:
  ~transfer_group() = default;
};

/// Options of connection::send().
struct send_options {
  std::optional<std::uint32_t> immediate{};   ///< sets message::immediate; needs capabilities::immediate
  std::optional<std::uint64_t> invalidate{};  ///< the key to revoke, which the peer opened for this connection alone
};
static_assert(std::is_trivially_destructible_v<send_options>);

/// Options of connection::write().
struct write_options {
  /// Reaches the peer as a message of its own, with an empty payload, when the bytes are in place. It takes one of the
  /// peer's receives, so the write waits for a credit like a send. Needs capabilities::write_immediate.
  std::optional<std::uint32_t> immediate{};
};
static_assert(std::is_trivially_destructible_v<write_options>);

/// Where earlier writes have arrived when a connection::flush() completes.
enum class flush_type : std::uint8_t {
  visibility,  ///< in the peer's memory: RPMA_FLUSH_TYPE_VISIBILITY of rpma_flush(3)
  persistent,  ///< in storage that survives a power cut, for writes to the flushed slice: RPMA_FLUSH_TYPE_PERSISTENT
};

/// An operation of a connection: the result of connection::send(), write(), read() and flush(). It is posted when it is
/// awaited. It may be awaited only once (a second time is errc::invalid_argument), and before its connection is
/// destroyed. A small operation may end where it begins, without suspending its task: over shared memory or iWARP, when
/// no other operation of the connection is in progress. Its memory is then no longer used; if the connection has just
/// ended, the next operation reports that.
///
/// An operation that is stopped before it was posted throws errc::canceled, and nothing has happened. Stopped later, it
/// throws errc::canceled at once if its memory is a pool buffer, or if it has none. If its memory is borrowed, a later
/// stop aborts the connection, and the operation ends when the transport no longer uses the memory.
class [[nodiscard("co_await it")]] transfer : public weft::detail::operation_base,
                                              public weft::detail::list_hook<transfer> {
 public:
  transfer(transfer&& other) noexcept;
  transfer& operator=(transfer&&) = delete;
  virtual ~transfer() {
    if (state_ != state::idle || batch_ != nullptr) [[unlikely]]
      destroy_early();
  }

  /// Does not suspend the task if the operation ends where it begins, and it is the task's turn to go on.
  template <std::derived_from<weft::detail::promise_base> Promise>
  [[nodiscard]] bool await_suspend(std::coroutine_handle<Promise> waiter) {
    const taken how = take_now(waiter.promise());
    if (how == taken::no) operation_base::await_suspend(waiter);
    return how != taken::ended;
  }
  /// Throws weft::error: as documented at connection's function, or the reason why the connection ended.
  void await_resume() const {
    if (failure_ || !begun()) [[unlikely]]
      throw_failure();
  }
  [[nodiscard]] std::string describe() const override;

  /// The error of a member of a batch; empty if the member succeeded. Before the member has ended, the error is empty,
  /// or already the reason why the member will be refused. Destroying a member while its batch is in progress ends the
  /// program.
  [[nodiscard]] const std::optional<error>& failure() const noexcept { return failure_; }
  /// The previous value in the peer's memory, for a member that is an atomic operation and has ended. Throws its error
  /// if it failed; errc::invalid_argument before it has ended, and for any other operation.
  [[nodiscard]] std::uint64_t value() const;

 private:
  friend class batch_operation;
  friend class connection;
  friend class owner_messages;
  friend class list_operation;
  friend class prepared_transfer;
  friend class refusal;
  friend class sending;
  friend class staging;
  friend class fetch_operation;

  /// Awaiting a transfer without an owner is errc::closed.
  transfer(operation_owner* owner, transfer_kind kind) noexcept : owner_(owner), kind_(kind) {}

  void use(const sink& memory);
  /// Moves a consumed buffer, which this transfer must still have, back into the variable that it came from.
  void give_back(const sink& memory) noexcept;
  void share(const mr::shared_buffer& memory) noexcept;
  void aim(const mr::remote_slice& where) noexcept;
  void aim_at_owner(const mr::remote_slice& where) noexcept;
  void aim_to_persist(const mr::remote_slice& where) noexcept;
  [[gnu::cold]] void aim_beyond(const mr::remote_slice& where) noexcept;
  [[gnu::cold]] void aim_at_counted(const mr::remote_slice& where) noexcept;
  /// Like aim(), for memory whose names another transfer has looked up.
  void aim_at(std::uint64_t key, std::uint64_t address, std::uint64_t bytes, const peer_names& names) noexcept;
  /// Makes this an operation of the connection's own, on memory that the connection keeps.
  void become_internal(const mr::slice& memory) noexcept {
    role_ = role::internal;
    spent_ = true;  // because sending looks at the role only of operations that are spent
    one_ = memory;
    borrowed_ = true;
  }

  [[nodiscard]] taken take_now(weft::detail::promise_base& waiter) noexcept;
  void begin() override;
  void cancel() noexcept override;
  void destroy_early() noexcept;
  [[noreturn, gnu::cold]] void throw_failure() const;
  [[gnu::cold]] void fail_without_owner();
  /// Holds the regions of its memory, which is borrowed, until the operation ends, or its record holds them.
  void hold_regions() noexcept;
  void let_regions_go() noexcept;
  /// Releases the memory, which the transport must not be using.
  void let_go() noexcept {
    if (holds_) [[unlikely]]
      let_regions_go();
    pin_.reset();
    owned_.reset();
  }
  /// Releases the memory, and resumes the waiting task or notifies the group.
  void end() noexcept {
    let_go();
    batch_ != nullptr ? batch_->member_ended() : finish();
  }
  /// Whether a stop was requested.
  [[nodiscard]] bool stopped() const noexcept { return batch_ != nullptr ? batch_->stopped() : canceled(); }
  void fail(error why) {
    failure_.emplace(std::move(why));
    end();
  }

  [[nodiscard]] std::span<const mr::slice> parts() const noexcept {
    return is_list_ ? several_ : std::span<const mr::slice>(&one_, 1);
  }
  /// True if it takes a credit of the peer's.
  [[nodiscard]] bool is_message() const noexcept {
    if (kind_ == transfer_kind::send) return role_ != role::owner_message;
    return kind_ == transfer_kind::write && how_.immediate;
  }
  /// True if it has local memory, parts().
  [[nodiscard]] bool has_memory() const noexcept {
    return kind_ == transfer_kind::send || kind_ == transfer_kind::write || kind_ == transfer_kind::read;
  }
  /// True for an operation of the connection's own.
  [[nodiscard]] bool is_internal() const noexcept { return role_ == role::internal || role_ == role::owner_message; }
  [[nodiscard]] bool is_atomic() const noexcept {
    return kind_ == transfer_kind::fetch_add || kind_ == transfer_kind::compare_swap;
  }
  [[nodiscard]] std::size_t bytes() const noexcept {
    if (is_atomic()) return sizeof operand_;
    return is_list_ ? mr::detail::total_size(parts()) : one_.size();
  }

  // State of the transfer:
  //   idle     not awaited yet, or over
  //   waiting  in the connection's queue, not posted or carried yet
  //   posted   in record_; the transport uses the memory
  //   carried  with staging, which posts its own requests for it
  enum class state : std::uint8_t { idle, waiting, posted, carried };

  // Origin of the transfer:
  //   usual          the program
  //   told           the program; when it completes, the peer is notified of a write that counter_ counts
  //   element        a list_operation, which is its batch_
  //   internal       staging; it overtakes waiting operations
  //   owner_message  owner_messages; it overtakes waiting operations, and takes no credit
  //   barrier        sending; the operations behind it wait for the one that staging carries out
  enum class role : std::uint8_t { usual, told, element, internal, owner_message, barrier };

  operation_owner* owner_;
  transfer_group* batch_ = nullptr;  // the group of which it is a member; null if none
  bool spent_ = false;               // was awaited, alone or in a batch, or moved from: cannot be awaited again
  transfer_kind kind_;
  state state_ = state::idle;
  bool borrowed_ = false;
  bool holds_ = false;  // the regions of its borrowed memory, while it waits or is carried
  bool is_list_ = false;
  role role_ = role::usual;
  bool is_behind_owner_ = false;        // the peer's process carries it out, because the fabric cannot
  bool is_staged_ = false;              // staging carries it out: is_behind_owner_, or local memory needs a copy
  operation_record* record_ = nullptr;  // while it is posted

  // Pool memory, held here until the operation has ended or was abandoned.
  mr::buffer owned_;              // given as buffer&&
  mr::buffer* shared_ = nullptr;  // given as buffer&
  mr::pin pin_;                   // pins *shared_, from sending::prepare() on, or a shared_buffer
  mr::slice one_;                 // the memory, unless several_ is a scatter list (is_list_)
  std::span<const mr::slice> several_;
  // Names of the peer's memory: on the connection's fabric, or at its owner if is_behind_owner_.
  std::uint64_t remote_key_ = 0;
  std::uint64_t remote_address_ = 0;
  peer_names names_;
  std::uint64_t remote_size_ = 0;
  mr::usage remote_usage_ = mr::usage::none;
  std::uint32_t counter_ = 0;  // mr::remote_slice::counter(), if the peer has to be notified of this write
  send_options how_;
  std::uint64_t operand_ = 0;  // fetch_add: the addend; compare_swap: the new value
  std::uint64_t compare_ = 0;
  std::optional<std::uint64_t> previous_value_;  // atomics: what the peer's memory held, once completed
  std::optional<error> failure_;
};

/// An atomic operation: the result of connection's fetch_add and compare_swap. It has no memory of the user's, so it
/// returns at once when it is stopped.
class [[nodiscard("co_await it")]] fetch_operation final : public transfer {
 public:
  fetch_operation(fetch_operation&&) noexcept = default;

  /// The previous value in the peer's memory. Throws weft::error: as documented at connection's function, or the reason
  /// why the connection ended.
  std::uint64_t await_resume() const {
    transfer::await_resume();
    return *previous_value_;
  }

 private:
  friend class connection;
  using transfer::transfer;
};

}  // namespace weft::net
