// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/transport.hpp>
#include <weft/runtime/task.hpp>

#include <memory>
#include <string_view>
#include <utility>

namespace weft::net {

/// The handle of a listener whose tasks may outlive the handle: its destructor closes the listener, and each task of
/// next() keeps the listener alive.
template <class Listener>
class listener_handle final : public link_listener {
 public:
  explicit listener_handle(std::shared_ptr<Listener> of) noexcept : of_(std::move(of)) {}
  ~listener_handle() override { listener_handle::close(); }

  [[nodiscard]] std::string_view address() const noexcept override { return of_->name(); }
  task<std::unique_ptr<link_request>> next() override { return Listener::next(of_); }
  void close() noexcept override {
    if (!std::exchange(is_closed_, true)) of_->close();
  }

 private:
  const std::shared_ptr<Listener> of_;
  bool is_closed_ = false;  // then the executor may be gone
};

}  // namespace weft::net
