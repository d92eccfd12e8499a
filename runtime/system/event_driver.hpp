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

/// What an io_operation does: the call of section 2 of the manual with the same name, or waiting until there is
/// something to read (which may turn out to be nothing). Receiving and sending are for stream sockets. The last three,
/// preadv(2), pwritev(2) and fdatasync(2), are for files, and only for drivers that take_files().
enum class io_kind : std::uint8_t { accept, receive, readable, connect, send, read, write, sync };

/// In words, with an article: "an accept".
[[nodiscard]] std::string_view name_of(io_kind kind) noexcept;

/// One input or output operation in progress. Intrusive: it belongs to its caller, who keeps it and all that it points
/// to alive from event_driver::start() until complete().
class io_operation {
 public:
  /// An operation whose members are filled in later.
  explicit io_operation(io_kind what) noexcept : kind(what) {}
  /// A receive or send of `contents` on the socket `where`.
  io_operation(io_kind what, descriptor& where, msghdr& contents, int flags_of_call) noexcept
      : kind(what), flags(flags_of_call), target(&where), message(&contents) {}
  io_operation(const io_operation&) = delete;
  io_operation& operator=(const io_operation&) = delete;

  io_kind kind;                  ///< what is to be done
  int flags = 0;                 ///< receive, send: of recvmsg(2), sendmsg(2)
  descriptor* target = nullptr;  ///< on what
  msghdr* message = nullptr;     ///< receive, send; read, write: of it the memory alone
  union {
    sockaddr_storage* peer = nullptr;  ///< accept: filled in; connect: where to
    std::uint64_t offset;              ///< read, write: where in the file
  };
  unsigned peer_length = 0;  ///< of *peer: a socklen_t
  /// readable: complete() does nothing but event_driver::try_receive() and starting it again, so a driver that spins
  /// may complete it to have that tried.
  bool may_be_tried = false;

  /// Whether it was started and has not completed.
  [[nodiscard]] bool in_progress() const noexcept { return in_progress_; }

 protected:
  ~io_operation() {
    if (in_progress_) destroyed_in_progress();
  }

  /// Called exactly once for each start(), from event_driver::poll() or wait(), never from inside start() or cancel().
  /// `result` is what the system call returned, or -errno; -ECANCELED after cancel().
  virtual void complete(int result) noexcept = 0;

 private:
  friend class event_driver;
  friend class epoll_driver;
  friend class done_list;

  // The kernel may still use its memory: terminates, with the operation's name.
  [[noreturn]] void destroyed_in_progress() const noexcept;

  bool in_progress_ = false;
  bool connecting_ = false;  // epoll: connect(2) has been called and goes on
  // Set while it waits in a list of the done; not before, because one operation is made for each message.
  int result_;
  io_operation* next_done_;
};

/// The kernel's side of an executor: io_uring, or epoll where that is forbidden, or a simulation.
///
/// All calls but wake() come from the executor's thread. One turn: start() any number of operations, then either
/// poll(), or wait() when there is nothing else to do.
class event_driver {
 public:
  virtual ~event_driver() = default;

  /// "io_uring" or "epoll".
  [[nodiscard]] virtual std::string_view name() const noexcept = 0;

  /// Called once before anything else, on the thread that stays the executor's.
  virtual void attach_thread() = 0;

  /// At most one operation per direction (receive, accept, readable; connect, send) is in progress on a descriptor; any
  /// number on a file.
  virtual void start(io_operation& operation) noexcept = 0;

  /// Asks for an early end. complete() follows all the same, with -ECANCELED or with what happened first.
  virtual void cancel(io_operation& operation) noexcept = 0;

  /// Hands over what was started and completes what is done, at most `budget` operations, without waiting.
  virtual std::size_t poll(std::size_t budget) noexcept = 0;

  /// poll() for an executor that has other work waiting: what has been started is handed over, and what is known to be
  /// done completes, but whether there is more may remain unasked. poll() follows within a few turns.
  virtual std::size_t hand_over(std::size_t budget) noexcept { return poll(budget); }

  /// poll() for an executor that has nothing else to do than to ask again at once: what may be tried is tried instead
  /// of being handed over, which spares the kernel's telling. Counts what has completed or been received.
  virtual std::size_t spin(std::size_t budget) noexcept { return poll(budget); }

  /// poll(), but waits until something completes, wake() is called or the deadline passes.
  virtual std::size_t wait(std::size_t budget, std::optional<duration> timeout) noexcept = 0;

  /// From any thread: ends the current or next wait().
  virtual void wake() noexcept = 0;

  /// For a thread that waits elsewhere than in wait(), in the loop of another library: hands over what was started.
  /// True: wait_fd() becomes readable once something completes or wake() is called. False: something has completed, or
  /// this driver cannot do that.
  [[nodiscard]] virtual bool prepare_wait() noexcept { return false; }
  /// A descriptor that stays the same, for poll(2); -1 if this driver has none. Throws weft::error.
  [[nodiscard]] virtual int wait_fd() { return -1; }

  /// Receives what is there without waiting: recvmsg(2) with MSG_DONTWAIT. With `readable` before it, memory to receive
  /// into is needed only once there is something.
  [[nodiscard]] virtual ssize_t try_receive(descriptor& source, msghdr& message) noexcept = 0;

  /// Makes the call of an operation that is not in progress, without waiting, so that what ends at once costs no turn
  /// of the loop. Returns the call's result, or -errno; -EAGAIN if it would wait or cannot be tried: then start() it.
  [[nodiscard]] virtual int try_now(io_operation& operation) noexcept = 0;

  /// Lets go of a descriptor that is about to be closed.
  virtual void forget(descriptor& target) noexcept { static_cast<void>(target); }

  /// Whether this driver knows the kinds for files. If not, a worker makes the call, because it blocks.
  [[nodiscard]] virtual bool takes_files() const noexcept { return false; }

  /// How many system calls it has made on the executor's thread, set-up aside.
  [[nodiscard]] std::uint64_t kernel_entries() const noexcept { return kernel_entries_.get(); }

 protected:
  /// Notes that the operation has been started.
  static void begin(io_operation& operation) noexcept { operation.in_progress_ = true; }
  /// Completes it with the call's result, or -errno.
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
