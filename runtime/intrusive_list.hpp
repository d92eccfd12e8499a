// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cassert>

namespace weft::detail {

template <class T, class Which>
class intrusive_list;

/// A base of T: the links that put it into an intrusive_list<T, Which>. A copy is in no list. `Which` distinguishes the
/// lists of a T that may be in several lists at a time.
template <class T, class Which = T>
class list_hook {
 public:
  constexpr list_hook() = default;
  list_hook(const list_hook& /*other*/) noexcept {}
  // NOLINTNEXTLINE(bugprone-unhandled-self-assignment): it assigns nothing
  list_hook& operator=(const list_hook& /*other*/) noexcept { return *this; }

 protected:
  ~list_hook() { assert(next_ == nullptr); }

 private:
  friend class intrusive_list<T, Which>;

  // The hooks of a list form a ring; the list's own hook, ends_, stands before the first item and behind the last.
  list_hook* next_ = nullptr;  // null: in no list
  list_hook* previous_;        // set while next_ is not null
};

/// A list through hooks in its items, which it does not own. Adding an item at either end, or removing any item, takes
/// a few stores and no memory. Not thread-safe. An item must leave the list before the item or the list is destroyed.
template <class T, class Which = T>
class intrusive_list {
 public:
  constexpr intrusive_list() noexcept {
    ends_.next_ = &ends_;
    ends_.previous_ = &ends_;
  }
  intrusive_list(const intrusive_list&) = delete;
  intrusive_list& operator=(const intrusive_list&) = delete;
  ~intrusive_list() {
    assert(empty());
    ends_.next_ = nullptr;
  }

  [[nodiscard]] bool empty() const noexcept { return ends_.next_ == &ends_; }
  /// The first item; only if not empty().
  [[nodiscard]] T& front() const noexcept { return of(*ends_.next_); }
  /// The first item, or null.
  [[nodiscard]] T* first() const noexcept { return empty() ? nullptr : &front(); }
  /// Whether `item` is in any list of this type.
  [[nodiscard]] static bool contains(const T& item) noexcept { return hook_of(item).next_ != nullptr; }

  /// Adds an item that is in no list of this type.
  void push_back(T& item) noexcept { insert(item, *ends_.previous_); }
  void push_front(T& item) noexcept { insert(item, ends_); }
  /// Removes an item from the list of this type that it is in.
  static void remove(T& item) noexcept {
    assert(contains(item));
    hook& links = item;
    links.previous_->next_ = links.next_;
    links.next_->previous_ = links.previous_;
    links.next_ = nullptr;
  }
  /// Removes and returns the first item; only if not empty().
  T& pop_front() noexcept {
    T& item = front();
    remove(item);
    return item;
  }

  /// Moves all items of `from` to the end of this list.
  void splice_back(intrusive_list& from) noexcept {
    if (from.empty()) return;
    hook& last = *ends_.previous_;
    last.next_ = from.ends_.next_;
    last.next_->previous_ = &last;
    ends_.previous_ = from.ends_.previous_;
    ends_.previous_->next_ = &ends_;
    from.ends_.next_ = from.ends_.previous_ = &from.ends_;
  }

 private:
  using hook = list_hook<T, Which>;
  struct list_ends : hook {
    friend intrusive_list;
  };

 public:
  /// Iterates from the first item to the last. Only the current item may be removed meanwhile.
  class iterator {
   public:
    explicit iterator(hook* at) noexcept : at_(at), next_(at->next_) {}
    [[nodiscard]] T& operator*() const noexcept { return of(*at_); }
    iterator& operator++() noexcept {
      at_ = next_;
      next_ = at_->next_;
      return *this;
    }
    [[nodiscard]] bool operator==(const iterator& other) const noexcept { return at_ == other.at_; }

   private:
    hook* at_;
    hook* next_;
  };
  [[nodiscard]] iterator begin() const noexcept { return iterator(ends_.next_); }
  [[nodiscard]] iterator end() const noexcept { return iterator(const_cast<list_ends*>(&ends_)); }

 private:
  [[nodiscard]] static T& of(hook& links) noexcept { return static_cast<T&>(links); }
  [[nodiscard]] static const hook& hook_of(const T& item) noexcept { return item; }
  static void insert(T& item, hook& before) noexcept {
    assert(!contains(item));
    hook& links = item;
    links.previous_ = &before;
    links.next_ = before.next_;
    before.next_->previous_ = &links;
    before.next_ = &links;
  }

  list_ends ends_;
};

}  // namespace weft::detail
