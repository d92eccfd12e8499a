// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/error.hpp>
#include <weft/runtime/intrusive_list.hpp>

namespace weft {

class stop_source;

namespace detail {

class promise_base;

/// A coroutine that was given a stop token, with the coroutines that it awaits and that inherit the token. A stop finds
/// the operation on which the innermost of them is suspended, so operations need not register themselves.
///
/// Leaves its source when the coroutine is destroyed or given another token, or the source stops or is destroyed.
class stop_chain {
 public:
  stop_chain() = default;
  stop_chain(const stop_chain&) = delete;
  stop_chain& operator=(const stop_chain&) = delete;

 protected:
  ~stop_chain() { leave(); }

  void join(stop_source& source) noexcept;
  void leave() noexcept {
    if (place_ == nullptr) return;
    *place_ = next_;
    if (next_ != nullptr) next_->place_ = place_;
    place_ = nullptr;
  }

 private:
  friend class weft::stop_source;

  stop_chain* next_;              // the next chain of the source; set while place_ is not null
  stop_chain** place_ = nullptr;  // the pointer that leads here; null if in no list
};

}  // namespace detail

/// A listener for the request to stop: a spawned task, or a narrower stop_source.
///
/// Intrusive and executor-local: linking and unlinking are a few stores. The destructor unlinks it.
class stop_callback : private detail::list_hook<stop_callback> {
 public:
  stop_callback() = default;
  stop_callback(const stop_callback&) = delete;
  stop_callback& operator=(const stop_callback&) = delete;

 protected:
  ~stop_callback() { unlink(); }

  /// Called at a stop, on the executor's thread, after unlinking. It may destroy this and other callbacks.
  virtual void on_stop() noexcept = 0;

  /// Stops listening. Does nothing if it does not listen.
  void unlink() noexcept {
    using list = detail::intrusive_list<stop_callback>;
    if (list::contains(*this)) list::remove(*this);
  }

 private:
  friend class stop_source;
  friend class stop_token;
  friend class detail::intrusive_list<stop_callback>;
};

/// A cheap view of a stop_source, inherited by every task from the one that awaits it. Belongs to one executor.
/// Unlike std::stop_token it neither counts references nor locks: structured concurrency keeps the source alive.
class stop_token {
 public:
  stop_token() = default;

  /// Whether a stop has been requested; once true, it stays true.
  [[nodiscard]] bool stop_requested() const noexcept;
  /// Whether a stop can ever be requested.
  [[nodiscard]] bool stop_possible() const noexcept { return source_ != nullptr; }
  /// Whether it is a token of this source.
  [[nodiscard]] bool is_of(const stop_source& source) const noexcept { return source_ == &source; }

  /// Makes a later stop call `callback`. Does nothing if no stop is possible, or if `callback` is linked already, to
  /// any source. Check stop_requested() first: a stop that has already happened calls nothing.
  void link(stop_callback& callback) const noexcept;

 private:
  friend class stop_source;
  friend class detail::promise_base;
  explicit stop_token(stop_source* source) noexcept : source_(source) {}

  stop_source* source_ = nullptr;
};

/// The source of a stop. It must outlive every use of its tokens: its destructor ends the program if an operation or a
/// stop_callback still listens to it.
class stop_source {
 public:
  stop_source() = default;
  stop_source(const stop_source&) = delete;
  stop_source& operator=(const stop_source&) = delete;
  ~stop_source() {
    if (chains_ != nullptr) [[unlikely]]
      let_chains_go();
    if (!callbacks_.empty())
      detail::terminate_because("a stop_source was destroyed while an operation still listens to it");
  }

  /// A token that refers to this source.
  [[nodiscard]] stop_token get_token() noexcept { return stop_token(this); }
  /// Whether a stop has been requested; once true, it stays true.
  [[nodiscard]] bool stop_requested() const noexcept { return stopped_; }

  /// Stops the operations that the tasks with this token wait for, and calls every linked callback, once. Call on the
  /// executor's thread.
  void request_stop() noexcept {
    stopped_ = true;
    while (chains_ != nullptr) stop_first_chain();
    while (!callbacks_.empty()) callbacks_.pop_front().on_stop();
  }

 private:
  friend class stop_token;
  friend class detail::stop_chain;

  void stop_first_chain() noexcept;
  void let_chains_go() noexcept;

  detail::stop_chain* chains_ = nullptr;  // the youngest first; null after a stop
  detail::intrusive_list<stop_callback> callbacks_;
  bool stopped_ = false;
};

/// A stop_source that also stops when its parent does.
class linked_stop_source final : public stop_source, private stop_callback {
 public:
  linked_stop_source() = default;
  /// A source that also stops when `parent` does.
  explicit linked_stop_source(stop_token parent) noexcept { follow(parent); }

  /// Makes this source stop when `parent` does; at once if `parent` has stopped. A source that follows a parent keeps
  /// that parent: call unfollow() first.
  void follow(stop_token parent) noexcept {
    if (parent.stop_requested()) {
      request_stop();
    } else {
      parent.link(*this);
    }
  }
  /// Makes this source independent of its parent, which may then be destroyed.
  void unfollow() noexcept { unlink(); }

 private:
  void on_stop() noexcept override { request_stop(); }
};

inline void detail::stop_chain::join(stop_source& source) noexcept {
  next_ = source.chains_;
  place_ = &source.chains_;
  if (next_ != nullptr) next_->place_ = &next_;
  source.chains_ = this;
}

inline bool stop_token::stop_requested() const noexcept { return source_ != nullptr && source_->stop_requested(); }

inline void stop_token::link(stop_callback& callback) const noexcept {
  if (source_ != nullptr && !source_->callbacks_.contains(callback)) source_->callbacks_.push_front(callback);
}

}  // namespace weft
