// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/buffer.hpp>
#include <weft/mr/remote_region.hpp>
#include <weft/mr/slice.hpp>
#include <weft/net/connection/completion_order.hpp>
#include <weft/net/connection/transfer.hpp>
#include <weft/net/link/direct_place.hpp>

#include <cassert>
#include <concepts>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace weft {
class executor_core;
}
namespace weft::mr {
class domain;
}

namespace weft::net {

class connection_core;
class link_keys;
class prepared_memory;

/// A read or write of prepared memory: the result of prepared_memory::read() and write(). It starts when it is awaited.
/// Awaiting it a second time is errc::invalid_argument.
class [[nodiscard("co_await it")]] prepared_transfer {
 public:
  /// Moves an operation that has not been awaited.
  prepared_transfer(prepared_transfer&& other) noexcept
      : prepared_transfer(other.where_, other.kind_, other.offset_, other.held_, other.borrowed_) {
    assert(other.state_ == state::idle && "an operation was moved after it had been awaited");
  }
  prepared_transfer& operator=(prepared_transfer&&) = delete;
  ~prepared_transfer() {
    if (state_ == state::posted) [[unlikely]]
      posted_.~transfer();
  }

  [[nodiscard]] bool await_ready() const noexcept { return false; }
  /// Starts the operation. Does not suspend the task if the memory is used directly and no other task is due first.
  /// Throws errc::out_of_range for bytes beyond the prepared memory, and errc::invalid_argument if the operation was
  /// awaited before.
  template <std::derived_from<weft::detail::promise_base> Promise>
  [[nodiscard]] bool await_suspend(std::coroutine_handle<Promise> waiter) {
    const taken how = take_now(waiter.promise());
    if (how == taken::no) return post().await_suspend(waiter);
    return how == taken::in_turn;
  }
  /// Throws weft::error, as connection::write() or read() does.
  void await_resume() const {
    if (state_ == state::posted) [[unlikely]]
      posted_.await_resume();
  }

 private:
  friend class prepared_memory;
  prepared_transfer(prepared_memory& where, transfer_kind kind, std::uint64_t offset, mr::buffer* held,
                    const mr::slice& borrowed) noexcept
      : where_(where), held_(held), borrowed_(borrowed), offset_(offset), kind_(kind) {}
  [[nodiscard]] taken take_now(weft::detail::promise_base& waiter) noexcept;
  [[nodiscard]] bool may_use(const mr::slice& local, bool reads) const noexcept;
  [[gnu::cold]] transfer& post();

  prepared_memory& where_;
  mr::buffer* held_;  // null: the memory is borrowed
  mr::slice borrowed_;
  std::uint64_t offset_;
  transfer_kind kind_;
  // idle    not awaited yet
  // ended   completed inside await_suspend()
  // posted  as the transfer posted_, which exists from now on
  enum class state : std::uint8_t { idle, ended, posted };
  state state_ = state::idle;
  union {
    // NOLINTNEXTLINE(readability-identifier-naming): private, which the check does not see of a union
    transfer posted_;  // made here when the operation is posted, because moving it here would cost more
  };
};

/// Memory of the peer's whose place is looked up in advance, for many small reads and writes: connection::prepare().
/// Over shared memory, an operation that uses the memory directly costs little more than the copy. Over other fabrics,
/// and while the peer has not lent the memory yet, an operation is like connection::read() or write().
///
/// It must be used on the connection's executor, and must be neither moved nor destroyed before its operations have
/// ended. It may outlive the connection: further operations are errc::closed.
class prepared_memory {
 public:
  /// Reads from `offset` on, as many bytes as the buffer has. Otherwise like connection::read().
  prepared_transfer read(mr::buffer& into, std::uint64_t offset = 0) noexcept {
    return {*this, transfer_kind::read, offset, &into, mr::slice()};
  }
  /// Reads into borrowed memory, as many bytes as it has.
  prepared_transfer read(const mr::slice& into, std::uint64_t offset = 0) noexcept {
    return {*this, transfer_kind::read, offset, nullptr, into};
  }
  /// Writes the buffer's bytes from `offset` on. Otherwise like connection::write().
  prepared_transfer write(mr::buffer& from, std::uint64_t offset = 0) noexcept {
    return {*this, transfer_kind::write, offset, &from, mr::slice()};
  }
  /// Writes borrowed memory's bytes from `offset` on.
  prepared_transfer write(const mr::slice& from, std::uint64_t offset = 0) noexcept {
    return {*this, transfer_kind::write, offset, nullptr, from};
  }
  /// The peer's memory.
  [[nodiscard]] const mr::remote_slice& remote() const noexcept { return where_; }

 private:
  friend class connection;
  friend class prepared_transfer;
  prepared_memory(connection_core* core, const mr::remote_slice& where) noexcept;
  void look_up() noexcept;
  [[nodiscard]] connection_core* core() const noexcept;

  connection_core* core_;  // null: the connection was moved from; dangles once keys_->abandoned()
  std::shared_ptr<link_keys> keys_;
  const direct_gate* gate_ = nullptr;    // null: the link has no direct places; valid as long as the connection
  const executor_core* home_ = nullptr;  // only compared; null if gate_ is null
  const mr::domain* domain_ = nullptr;
  std::size_t fabric_ = 0;     // the device's number of the link's fabric
  std::uint64_t version_ = 0;  // of the gate, when the place was looked up
  direct_place place_;
  mr::remote_slice where_;
};

}  // namespace weft::net
