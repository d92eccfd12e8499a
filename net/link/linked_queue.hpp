// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace weft::net {

/// A FIFO of elements that are linked through a pointer in each of them. The queue does not own them.
template <class T, T* T::*Next>
class linked_queue {
 public:
  [[nodiscard]] bool empty() const noexcept { return first_ == nullptr; }
  [[nodiscard]] T* first() const noexcept { return first_; }  ///< null if the queue is empty
  [[nodiscard]] T& front() const noexcept { return *first_; }
  [[nodiscard]] static T* after(const T& element) noexcept { return element.*Next; }

  void push(T& element) noexcept {
    element.*Next = nullptr;
    (first_ == nullptr ? first_ : last_->*Next) = &element;
    last_ = &element;
  }
  /// Takes the oldest element out; there must be one.
  T& pop() noexcept {
    T& oldest = *first_;
    first_ = oldest.*Next;
    return oldest;
  }
  void clear() noexcept { first_ = nullptr; }

 private:
  T* first_ = nullptr;
  T* last_ = nullptr;  // meaningless while the queue is empty
};

}  // namespace weft::net
