// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/buffer.hpp>
#include <weft/mr/remote_region.hpp>
#include <weft/mr/slice.hpp>
#include <weft/net/link/peer_names.hpp>
#include <weft/net/payload.hpp>
#include <weft/runtime/core/operation.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/intrusive_list.hpp>

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

/// What a transfer does: the function of connection that made it.
enum class transfer_kind : std::uint8_t { send, write, read, flush, fetch_add, compare_swap };
/// In a word, for errors and dumps: "send".
[[nodiscard]] const char* name_of(transfer_kind kind) noexcept;

/// A group of transfers that are awaited together.
class transfer_group {
 public:
  /// Called once for each transfer of the group.
  virtual void member_ended() noexcept = 0;
  /// Whether a stop was requested.
  [[nodiscard]] virtual bool stopped() const noexcept = 0;

 protected:
  ~transfer_group() = default;
};

/// What a send does beyond bringing its payload.
struct send_options {
  std::optional<std::uint32_t> immediate{};   ///< for message::immediate; with capabilities::immediate
  std::optional<std::uint64_t> invalidate{};  ///< a key of the peer's, for this connection alone, that it is to revoke
  bool solicited = false;  ///< for message::solicited; whether the peer does anything about it is its own affair
};
static_assert(std::is_trivially_destructible_v<send_options>);

/// What a write does beyond bringing its bytes.
struct write_options {
  /// Comes to the peer as a message of its own, with an empty payload, when the bytes are in place. It takes one of the
  /// peer's receives, so the write waits for room there like a send. With capabilities::write_immediate.
  std::optional<std::uint32_t> immediate{};
  bool solicited = false;  ///< for message::solicited of that message
};
static_assert(std::is_trivially_destructible_v<write_options>);

/// An operation of a connection: what connection::send(), write(), read() and flush() return. It is posted when it is
/// awaited, which is done once (a second time is errc::invalid_argument) and before its connection is destroyed.
///
/// If it is stopped before it was posted, it throws errc::canceled, and nothing has happened. If it is stopped later,
/// it returns at once if its memory is a pool buffer. With borrowed memory it aborts the connection, and returns when
/// the transport no longer uses the memory.
class [[nodiscard]] transfer : public weft::detail::operation_base, public weft::detail::list_hook<transfer> {
 public:
  transfer(transfer&& other) noexcept;
  transfer& operator=(transfer&&) = delete;
  virtual ~transfer() {
    if (state_ != state::idle || batch_ != nullptr) [[unlikely]]
      destroy_early();
  }

  /// Throws weft::error: what connection's operation says, or why the connection ended.
  void await_resume() const {
    if (failure_ || !begun()) [[unlikely]]
      throw_failure();
  }
  [[nodiscard]] std::string describe() const override;

  /// What it ended with, for a member of a batch: empty if it succeeded, and before it has ended. A member that is
  /// destroyed while its batch is in progress ends the program.
  [[nodiscard]] const std::optional<error>& failure() const noexcept { return failure_; }
  /// What the peer's memory held before, of an atomic operation among them that has ended. Throws what it failed with;
  /// errc::invalid_argument before it has ended, and for any other operation.
  [[nodiscard]] std::uint64_t value() const;

 private:
  friend class batch_operation;
  friend class connection;
  friend class list_operation;
  friend class refusal;
  friend class sending;
  friend class staging;
  friend class fetch_operation;

  /// No owner: awaiting it is errc::closed.
  transfer(operation_owner* owner, transfer_kind kind) noexcept : owner_(owner), kind_(kind) {}

  void use(const sink& memory);
  void share(const mr::shared_buffer& memory) noexcept;
  void aim(const mr::remote_slice& where) noexcept;
  [[gnu::cold]] void aim_beyond(const mr::remote_slice& where) noexcept;
  [[gnu::cold]] void aim_at_counted(const mr::remote_slice& where) noexcept;
  /// The same, by what another one has found.
  void aim_at(std::uint64_t key, std::uint64_t address, std::uint64_t bytes, const peer_names& names) noexcept;
  /// One of the connection's own, with memory that it keeps.
  void become_internal(const mr::slice& memory) noexcept {
    role_ = role::internal;
    spent_ = true;  // sending looks at the role of such only
    one_ = memory;
    borrowed_ = true;
  }

  void begin() override;
  void cancel() noexcept override;
  void destroy_early() noexcept;
  [[noreturn, gnu::cold]] void throw_failure() const;
  [[gnu::cold]] void fail_without_owner();
  /// Releases memory that the transport does not use, or no longer.
  void let_go() noexcept {
    pin_.reset();
    owned_.reset();
  }
  /// Resumes the task that waits for it.
  void end() noexcept {
    let_go();
    batch_ != nullptr ? batch_->member_ended() : finish();
  }
  /// Whether a stop was requested.
  [[nodiscard]] bool stopped() const noexcept;
  void fail(error why) {
    failure_.emplace(std::move(why));
    end();
  }

  [[nodiscard]] std::span<const mr::slice> parts() const noexcept {
    return is_list_ ? several_ : std::span<const mr::slice>(&one_, 1);
  }
  /// Whether it takes one of the peer's receives.
  [[nodiscard]] bool is_message() const noexcept {
    if (kind_ == transfer_kind::send) return role_ != role::device_message;
    return kind_ == transfer_kind::write && how_.immediate;
  }
  /// Whether it moves bytes between memory of ours and the peer's.
  [[nodiscard]] bool has_memory() const noexcept {
    return kind_ == transfer_kind::send || kind_ == transfer_kind::write || kind_ == transfer_kind::read;
  }
  /// Whether it is the connection's own.
  [[nodiscard]] bool is_internal() const noexcept { return role_ == role::internal || role_ == role::device_message; }
  [[nodiscard]] bool is_atomic() const noexcept {
    return kind_ == transfer_kind::fetch_add || kind_ == transfer_kind::compare_swap;
  }
  [[nodiscard]] std::size_t bytes() const noexcept {
    if (is_atomic()) return sizeof operand_;
    if (!is_list_) return one_.size();
    std::size_t total = 0;
    for (const mr::slice& part : parts()) total += part.size();
    return total;
  }

  // Where the transfer is:
  //   idle     not awaited yet, or over
  //   waiting  in the connection's queue, for a slot or for credits
  //   posted   in record_; the transport uses the memory
  //   carried  with staging, which posts others for it
  enum class state : std::uint8_t { idle, waiting, posted, carried };

  // Whose it is:
  //   usual           the program's
  //   told            likewise, and the peer is told when it has completed: of counter_
  //   element         a list_operation's, which is its batch
  //   internal        staging's: it goes before those that wait
  //   device_message  likewise; it takes no credit
  //   barrier         sending's: those behind it wait until staging has carried out what went before
  enum class role : std::uint8_t { usual, told, element, internal, device_message, barrier };

  operation_owner* owner_;
  transfer_group* batch_ = nullptr;  // that it is awaited with, until that one is over
  bool spent_ = false;               // it was awaited, alone or in a batch, or moved from: its memory is gone
  transfer_kind kind_;
  state state_ = state::idle;
  bool borrowed_ = false;
  bool is_list_ = false;
  role role_ = role::usual;
  bool is_behind_owner_ = false;        // the peer's memory is its device's, and not within the fabric's reach
  bool is_staged_ = false;              // for that, or for memory of this end's device
  operation_record* record_ = nullptr;  // while it is posted

  // The pool's memory, held from here on until the operation has ended, or has been abandoned.
  mr::buffer owned_;              // buffer&&
  mr::buffer* shared_ = nullptr;  // buffer&, until it is pinned
  mr::pin pin_;                   // buffer&, from then on; shared_buffer
  mr::slice one_;                 // the memory of all but scatter lists
  std::span<const mr::slice> several_;
  // What the peer's memory is called on the connection's fabric.
  std::uint64_t remote_key_ = 0;
  std::uint64_t remote_address_ = 0;
  peer_names names_;
  std::uint64_t remote_size_ = 0;
  mr::usage remote_usage_ = mr::usage::none;
  std::uint32_t counter_ = 0;  // mr::remote_slice::counter(), if this writes there
  send_options how_;
  std::uint64_t operand_ = 0;  // fetch_add: what to add; compare_swap: what to put there
  std::uint64_t compare_ = 0;
  std::optional<std::uint64_t> previous_value_;  // what the peer's memory held before, once it is known
  std::optional<error> failure_;
};

/// An atomic operation that is awaited: what connection's fetch_add and compare_swap return. It has no memory of the
/// user's, so that it returns at once when it is stopped.
class [[nodiscard]] fetch_operation final : public transfer {
 public:
  fetch_operation(fetch_operation&&) noexcept = default;

  /// What the peer's memory held before. Throws weft::error: what connection's operation says, or why the connection
  /// ended.
  std::uint64_t await_resume() const {
    transfer::await_resume();
    return *previous_value_;
  }

 private:
  friend class connection;
  using transfer::transfer;
};

}  // namespace weft::net
