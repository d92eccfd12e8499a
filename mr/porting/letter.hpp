// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/core/operation.hpp>

#include <memory>
#include <utility>

namespace weft::mr::detail {

/// An operation whose end is brought by mail from other threads. It may be destroyed while the mail is on its way.
class mailed_operation : public weft::detail::operation_base {
 protected:
  mailed_operation() = default;
  mailed_operation(mailed_operation&& other) noexcept = default;
  ~mailed_operation() = default;

 private:
  friend class letter;
};

/// Tells one who waits of the end of it, unless that one has been destroyed meanwhile: then it tells nobody.
///
/// Whoever posts it holds a mutex over taking its reader off the list of those who wait and posting it; a reader that
/// is destroyed, and on no list any more, locks that one, so that its executor stays until then, and crosses itself
/// out.
class letter final : public weft::detail::remote_work {
 public:
  /// `reader`: that waits.
  explicit letter(mailed_operation& reader) noexcept : reader_(&reader), home_(reader.home()) {}

  /// From any thread, once; afterwards it belongs to the mail.
  void post() noexcept {
    if (executor_core::current() == &home_) return run_on_executor();
    home_.submit(*this);
  }
  /// On the reader's executor, after it has been posted and before it was read.
  void cross_out() noexcept { reader_ = nullptr; }

  letter* next = nullptr;  ///< among those to be posted

 private:
  void run_on_executor() noexcept override {
    const std::unique_ptr<letter> self(this);
    if (reader_ != nullptr) reader_->finish();
  }

  mailed_operation* reader_;  // touched on its executor only
  executor_core& home_;
};

/// Posts all of a list.
inline void post_all(letter* first) noexcept {
  while (first != nullptr) std::exchange(first, first->next)->post();
}

}  // namespace weft::mr::detail
