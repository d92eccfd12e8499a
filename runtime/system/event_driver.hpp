// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/system/clock.hpp>
#include <weft/runtime/system/live_number.hpp>

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

struct msghdr;
struct sockaddr_storage;

namespace weft {

class descriptor;

/// The call that an io_operation makes: accept4(2), recvmsg(2), connect(2) or sendmsg(2); `readable` waits until there
/// may be something to read. `receive` and `send` are for stream sockets. The last three, preadv(2), pwritev(2) and
/// fdatasync(2), are for files, and only if the driver takes_files().
enum class io_kind : std::uint8_t { accept, receive, readable, connect, send, read, write, sync };

/// The kind in words, with an article: "an accept".
[[nodiscard]] std::string_view name_of(io_kind kind) noexcept;

/// One input or output operation. Intrusive: its owner must keep it, and everything that it points to, alive from
/// event_driver::start() until complete().
class io_operation {
 public:
  /// An operation whose members are filled in later.
  explicit io_operation(io_kind what) noexcept : kind(what) {}
  /// A receive or send of `contents` on the socket `where`.
  io_operation(io_kind what, descriptor& where, msghdr& contents, int flags_of_call) noexcept
      : kind(what), flags(flags_of_call), target(&where), message(&contents) {}
  io_operation(const io_operation&) = delete;
  io_operation& operator=(const io_operation&) = delete;

  io_kind kind;  ///< the call to make
  /// For `readable`. True: complete() only calls event_driver::try_receive() and starts the operation again, so a
  /// spinning driver may complete the operation before the descriptor is readable.
  bool may_be_tried = false;
  int flags = 0;                 ///< receive, send: the flags of recvmsg(2), sendmsg(2)
  descriptor* target = nullptr;  ///< the descriptor that the call uses
  msghdr* message = nullptr;     ///< receive, send: the message; read, write: only its iovecs are used
  union {
    sockaddr_storage* peer = nullptr;  ///< accept: filled in, unless null; connect: the peer's address
    std::uint64_t offset;              ///< read, write: the offset in the file
  };
  unsigned peer_length = 0;  ///< the length of *peer, a socklen_t

  /// Whether the operation was started and has not completed.
  [[nodiscard]] bool in_progress() const noexcept { return in_progress_; }

 protected:
  ~io_operation() {
    if (in_progress_) destroyed_in_progress();
  }

  /// Called exactly once for each start(), from poll(), hand_over(), spin() or wait() of the event_driver, never from
  /// inside start() or cancel(). `result` is what the system call returned (for `readable`, the events of poll(2)), or
  /// -errno; -ECANCELED if cancel() came first.
  virtual void complete(int result) noexcept = 0;

 private:
  friend class event_driver;
  friend class epoll_driver;
  friend class done_list;
  friend class canceled_list;

  // Ends the program with the operation's name, because the kernel may still use its memory.
  [[noreturn]] void destroyed_in_progress() const noexcept;

  bool in_progress_ = false;
  bool connecting_ = false;  // epoll: connect(2) has been called and is in progress
  bool listed_ = false;      // in a done_list or a canceled_list
  // Not initialized before the operation is in a list, because an operation is made for each message.
  int result_;
  io_operation* next_done_;  // the next operation in the list
};

/// The kernel's side of an executor: io_uring, or epoll where io_uring cannot be used, or a simulation.
///
/// All calls but wake() and kernel_entries() must come from the executor's thread. One turn: start() any number of
/// operations, then either poll(), or wait() when there is nothing else to do.
class event_driver {
 public:
  virtual ~event_driver() = default;

  /// The driver's name: "io_uring", "epoll", or that of a simulation.
  [[nodiscard]] virtual std::string_view name() const noexcept = 0;

  /// Binds the driver to this thread, which stays the executor's. Called before the first operation, and not again
  /// after it has succeeded. Throws weft::error.
  virtual void attach_thread() = 0;

  /// Starts an operation. At most one per direction (receive, accept, readable; connect, send) may be in progress on a
  /// descriptor; any number on a file.
  virtual void start(io_operation& operation) noexcept = 0;

  /// Asks for an early end. complete() follows all the same, with -ECANCELED or with what happened first.
  virtual void cancel(io_operation& operation) noexcept = 0;

  /// Hands started operations to the kernel and completes finished ones, about `budget` at most, without waiting.
  /// Returns how many have completed.
  virtual std::size_t poll(std::size_t budget) noexcept = 0;

  /// poll() for an executor with other work waiting: hands started operations over, and completes those known to be
  /// done, but need not ask the kernel whether there are more. poll() follows within a few turns.
  virtual std::size_t hand_over(std::size_t budget) noexcept { return poll(budget); }

  /// poll() for an executor that spins: operations that may be tried are tried instead of handed over, which saves the
  /// kernel's notification. Returns how many have completed or received something.
  virtual std::size_t spin(std::size_t budget) noexcept { return poll(budget); }

  /// poll(), but waits until something completes, wake() is called or `timeout` has passed. May return earlier.
  virtual std::size_t wait(std::size_t budget, std::optional<duration> timeout) noexcept = 0;

  /// From any thread: ends the current or next wait().
  virtual void wake() noexcept = 0;

  /// For a thread that waits in the loop of another library instead of in wait(): hands started operations over. True:
  /// wait_fd(), which must have been called before, becomes readable once something completes or wake() is called.
  /// False: call poll() first, because something has completed or was not handed over; or this driver has no wait_fd().
  [[nodiscard]] virtual bool prepare_wait() noexcept { return false; }
  /// A descriptor that stays the same, for poll(2); -1 if this driver has none. Throws weft::error.
  [[nodiscard]] virtual int wait_fd() { return -1; }

  /// Receives what is there without waiting: recvmsg(2) with MSG_DONTWAIT. Returns the call's result, or -errno. A
  /// caller that waits with `readable` first needs no memory to receive into while nothing comes.
  [[nodiscard]] virtual ssize_t try_receive(descriptor& source, msghdr& message) noexcept = 0;

  /// Makes the call of an operation that is not in progress, without waiting, so that an operation that ends at once
  /// costs no turn of the loop. Does not call complete(). Returns the call's result, or -errno; -EAGAIN if the call
  /// would wait or cannot be tried: then start() the operation.
  [[nodiscard]] virtual int try_now(io_operation& operation) noexcept = 0;

  /// Lets go of a descriptor that is about to be closed.
  virtual void forget(descriptor& target) noexcept { static_cast<void>(target); }

  /// Whether this driver supports the kinds for files. If not, a worker makes the call, because it blocks.
  [[nodiscard]] virtual bool takes_files() const noexcept { return false; }

  /// From any thread: how many system calls the driver has made on the executor's thread, set-up aside.
  [[nodiscard]] std::uint64_t kernel_entries() const noexcept { return kernel_entries_.get(); }

 protected:
  /// Notes that the operation has been started.
  static void begin(io_operation& operation) noexcept { operation.in_progress_ = true; }
  /// Completes the operation with the call's result, or -errno.
  static void end(io_operation& operation, int result) noexcept {
    operation.in_progress_ = false;
    operation.complete(result);
  }
  /// Counts a system call for kernel_entries().
  void count_kernel_entry() noexcept { kernel_entries_.add(1); }

 private:
  detail::live_number kernel_entries_;
};

}  // namespace weft
