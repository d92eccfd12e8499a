// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/intrusive_list.hpp>
#include <weft/runtime/system/event_driver.hpp>

namespace weft {

class system_calls;

/// A file descriptor for asynchronous use, closed on destruction unless it is borrowed. No operation may be in progress
/// on it then.
///
/// Unless it is a file's, it belongs to the executor on which its first operation starts, and must not be moved after
/// that. Create sockets in blocking mode: io_uring needs that, and the epoll driver makes them non-blocking itself.
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

  /// The descriptor's number; -1 if there is none.
  [[nodiscard]] int fd() const noexcept { return fd_; }
  /// The system calls that the constructor was given.
  [[nodiscard]] system_calls& calls() const noexcept { return *calls_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  /// Closes the descriptor now, or lets go of a borrowed one. Does nothing the second time.
  void close() noexcept;

 private:
  friend class epoll_driver;
  friend class detail::intrusive_list<descriptor>;  // the epoll driver's list of registered descriptors

  int fd_ = -1;
  system_calls* calls_ = nullptr;
  bool owned_ = true;

  // For the epoll driver. While input_ready_ (output_ready_) is true, no call since the last edge is known to have
  // found the socket empty (full), so the next operation tries its call before it waits.
  bool input_ready_ = true;
  bool output_ready_ = true;
  bool hung_up_ = false;            // an edge has reported the end of input or an error, and no further edge may come
  event_driver* driver_ = nullptr;  // the driver that has registered the descriptor, or null
  io_operation* input_ = nullptr;   // the input operation that waits for an edge, or null
  io_operation* output_ = nullptr;  // the output operation that waits for an edge, or null
};

}  // namespace weft
