// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/intrusive_list.hpp>
#include <weft/runtime/system/event_driver.hpp>

namespace weft {

class system_calls;

/// A file descriptor for asynchronous use, closed on destruction. No operation may be in progress on it then.
///
/// It belongs to the executor on which its first operation starts, and must not be moved from then on. Create sockets
/// in blocking mode: io_uring needs that, and the epoll driver makes them non-blocking itself.
class descriptor : private detail::list_hook<descriptor> {
 public:
  /// Marks a descriptor that belongs to somebody else and must not be closed.
  struct borrowed_t {};
  static constexpr borrowed_t borrowed{};  ///< the tag

  descriptor() = default;
  /// Takes over `fd`, and closes it by `calls`.
  descriptor(int fd, system_calls& calls) noexcept : fd_(fd), calls_(&calls) {}
  /// Borrows `fd`, and leaves it open.
  descriptor(int fd, system_calls& calls, borrowed_t) noexcept : fd_(fd), calls_(&calls), owned_(false) {}
  descriptor(descriptor&& other) noexcept;
  descriptor& operator=(descriptor&& other) noexcept;
  ~descriptor() { close(); }

  /// The number; -1 if there is none.
  [[nodiscard]] int fd() const noexcept { return fd_; }
  /// The system calls that it was made with.
  [[nodiscard]] system_calls& calls() const noexcept { return *calls_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  /// Closes it now, unless it is borrowed. Does nothing the second time.
  void close() noexcept;

 private:
  friend class epoll_driver;
  friend class detail::intrusive_list<descriptor>;  // the epoll driver's list of registered ones

  int fd_ = -1;
  system_calls* calls_ = nullptr;
  bool owned_ = true;

  // For the epoll driver. `ready`: no call has returned EAGAIN since the last edge, so try the call before waiting.
  bool input_ready_ = true;
  bool output_ready_ = true;
  bool hung_up_ = false;            // an edge has reported the end of input, and no other will follow
  event_driver* driver_ = nullptr;  // non-null: registered with it
  io_operation* input_ = nullptr;   // waits for an edge
  io_operation* output_ = nullptr;  // waits for an edge
};

}  // namespace weft
