// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/pool.hpp>
#include <weft/mr/slice.hpp>
#include <weft/net/stream/byte_ranges.hpp>
#include <weft/net/stream/stream_ref.hpp>
#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/stop_token.hpp>
#include <weft/runtime/sync/event.hpp>
#include <weft/runtime/task.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

namespace weft::net {

/// The state of a stream. Operations hold a reference, because the stream may be destroyed while they are in progress.
///
/// The operations begin when they are awaited; they check then that they are on the executor, and that the stream is
/// still open.
class stream_core {
 public:
  stream_core(executor_core& home, mr::pool& pool, std::string peer)
      : home_(home), pool_(pool), peer_(std::move(peer)) {}
  stream_core(const stream_core&) = delete;
  stream_core& operator=(const stream_core&) = delete;
  virtual ~stream_core() = default;

  virtual task<std::size_t> read_some(stream_ref self, writable_ranges where) = 0;
  virtual task<received_bytes> read_bytes(stream_ref self) = 0;
  virtual task<std::size_t> write_some(stream_ref self, readable_ranges what) = 0;
  virtual task<std::size_t> write_some(stream_ref self, mr::slice what) = 0;
  virtual task<> write(stream_ref self, mr::buffer what) = 0;
  virtual task<> shutdown_send(stream_ref self) = 0;

  /// Begins an orderly close, in the background, and sets closed() when it is done.
  virtual void close() noexcept = 0;
  virtual void abort() noexcept = 0;
  /// Ends the stream, unless close() does so already. Called when the handle is destroyed or assigned to.
  virtual void drop() noexcept = 0;
  [[nodiscard]] virtual bool is_open() const noexcept = 0;

  void cancel() noexcept {
    const auto stop = [this] {
      ++cancels_;
      if (reading_ != nullptr) reading_->request_stop();
      if (writing_ != nullptr) writing_->request_stop();
    };
    act_at_home(stop);
  }

  /// How often cancel() was called.
  [[nodiscard]] std::uint64_t cancels() const noexcept { return cancels_; }
  /// Whether an operation of several steps ends before the next one. If the stream has ended, that step says so.
  [[nodiscard]] bool is_canceled_since(std::uint64_t cancels) const noexcept {
    return cancels_ != cancels && is_open();
  }

  [[nodiscard]] executor_core& home() const noexcept { return home_; }
  [[nodiscard]] const std::string& peer() const noexcept { return peer_; }
  [[nodiscard]] event& closed() noexcept { return closed_; }

 protected:
  /// The one operation that may be in progress in a direction; throws errc::busy if there is one already. While the
  /// turn lives, cancel() stops the coroutine, as the coroutine's own token does.
  class turn {
   public:
    turn(weft::detail::promise_base& self, turn*& place, const char* what)
        : self_(self), place_(place), outer_(self.get_stop_token()), source_(outer_) {
      if (place != nullptr) throw error(errc::busy, what);
      place = this;
      self.set_stop_token(source_.get_token());
    }
    turn(const turn&) = delete;
    turn& operator=(const turn&) = delete;
    ~turn() {
      place_ = nullptr;
      self_.set_stop_token(outer_);
    }
    void request_stop() noexcept { source_.request_stop(); }

   private:
    weft::detail::promise_base& self_;
    turn*& place_;
    stop_token outer_;
    linked_stop_source source_;
  };

  /// Calls `function` as a task of the executor would, also from a handler of the io_context that drives it.
  template <class Function>
  void act_at_home(const Function& function) noexcept {
    home_.on_own_thread() ? function() : home_.visit(function);
  }

  /// Whether work can be begun in the background from here: in a task of the executor, or in a handler of the
  /// io_context that drives it. Uses the executor, which may be gone once the stream has closed.
  [[nodiscard]] bool is_at_home() const noexcept {
    return home_.on_own_thread() || (home_.is_driven() && home_.belongs_to_this_thread());
  }

  void check_thread(const char* what) const {
    if (!home_.on_own_thread()) throw error(errc::wrong_thread, what);
  }

  executor_core& home_;
  mr::pool& pool_;
  std::string peer_;
  event closed_;
  turn* reading_ = nullptr;
  turn* writing_ = nullptr;

 private:
  std::uint64_t cancels_ = 0;
  friend class stream_ref;
  unsigned references_ = 0;
};

/// Copies bytes from `offset` of `what` on, as many as there is room for.
inline void gather(const readable_ranges& what, std::size_t offset, std::span<std::byte> target) noexcept {
  for (const std::span<const std::byte>& part : what.all()) {
    if (offset >= part.size()) {
      offset -= part.size();
      continue;
    }
    const auto bytes = part.subspan(offset, std::min(part.size() - offset, target.size()));
    std::copy(bytes.begin(), bytes.end(), target.begin());
    target = target.subspan(bytes.size());
    offset = 0;
  }
}

/// Copies as many bytes of `source` as `where` has room for, and returns their number.
inline std::size_t scatter(std::span<const std::byte> source, const writable_ranges& where) noexcept {
  const std::size_t whole = source.size();
  for (const std::span<std::byte>& part : where.all()) {
    const auto bytes = source.first(std::min(part.size(), source.size()));
    std::copy(bytes.begin(), bytes.end(), part.begin());
    source = source.subspan(bytes.size());
  }
  return whole - source.size();
}

}  // namespace weft::net
