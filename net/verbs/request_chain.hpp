// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

namespace weft::net::verbs {

/// Work requests that have been posted, but not handed over to the device, linked as the device wants them.
template <class Request>
class request_chain {
 public:
  [[nodiscard]] bool empty() const noexcept { return first_ == nullptr; }
  [[nodiscard]] Request& front() const noexcept { return *first_; }
  [[nodiscard]] Request& back() const noexcept { return *last_; }

  void push_front(Request& next) noexcept {
    next.next = first_;
    if (last_ == nullptr) last_ = &next;
    first_ = &next;
  }
  void push_back(Request& next) noexcept { append(next, next); }
  /// Adds requests that are linked already, from `begin` to `end`.
  void append(Request& begin, Request& end) noexcept {
    end.next = nullptr;
    (last_ != nullptr ? last_->next : first_) = &begin;
    last_ = &end;
  }
  Request* take() noexcept {
    last_ = nullptr;
    return std::exchange(first_, nullptr);
  }
  /// Takes the requests up to and including `end`, which must be in the chain.
  Request* take(Request& end) noexcept {
    if (&end == last_) last_ = nullptr;
    return std::exchange(first_, std::exchange(end.next, nullptr));
  }
  /// Removes a request. False if it is not in the chain.
  bool remove(const Request& item) noexcept {
    Request* before = nullptr;
    for (Request* each = first_; each != nullptr; before = std::exchange(each, each->next)) {
      if (each != &item) continue;
      (before != nullptr ? before->next : first_) = item.next;
      if (last_ == &item) last_ = before;
      return true;
    }
    return false;
  }

 private:
  Request* first_ = nullptr;
  Request* last_ = nullptr;
};

}  // namespace weft::net::verbs
