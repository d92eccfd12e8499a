// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/intrusive_list.hpp>
#include <weft/runtime/system/event_driver.hpp>

namespace weft {

class system_calls;

/// A file descriptor for asynchronous use, closed on destruction. Nothing may be in progress on it by then.
///
/// It belongs to the executor on which its first operation starts, and stays where it is from then on.
/// Sockets are created in blocking mode: io_uring wants them so, and the epoll driver changes what it needs.
class descriptor : private detail::list_hook<descriptor> {
 public:
  /// For a descriptor that is somebody else's and must not be closed.
  struct borrowed_t {};
  static constexpr borrowed_t borrowed{};  ///< the tag to say so

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
  friend class detail::intrusive_list<descriptor>;  // of what the epoll driver has registered

  int fd_ = -1;
  system_calls* calls_ = nullptr;
  bool owned_ = true;

  // The epoll driver's. `ready`: since the last edge no call has said EAGAIN, so try the call before waiting.
  bool input_ready_ = true;
  bool output_ready_ = true;
  bool hung_up_ = false;            // an edge has told of the end of input, and there will be no other
  event_driver* driver_ = nullptr;  // non-null: registered there
  io_operation* input_ = nullptr;   // waits for an edge
  io_operation* output_ = nullptr;  // waits for an edge
};

}  // namespace weft
