// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/error.hpp>
#include <weft/runtime/system/io_uring_driver.hpp>
#include <weft/runtime/system/system_calls.hpp>

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cerrno>
#include <cstdio>
#include <ctime>
#include <memory>

namespace weft {
namespace {

constexpr unsigned submission_entries = 256;
constexpr unsigned completion_entries = 4096;

// The tags of entries that are not io_operations. Operations are aligned, so these cannot be their addresses.
constexpr std::uint64_t wake_tag = 1;
constexpr std::uint64_t cancel_tag = 2;

// Best first; an older kernel returns EINVAL for flags that it does not know. R_DISABLED lets the ring be made on one
// thread and first used on another, which then is the single issuer.
constexpr std::array<unsigned, 3> set_ups = {
    IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_R_DISABLED,
    IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_R_DISABLED,
    IORING_SETUP_R_DISABLED,
};

// Checks that the ring can be used: returns 0, or -errno. A seccomp profile may allow io_uring_setup(2) and forbid the
// other two calls.
int probe_ring(io_uring& ring) noexcept {
  constexpr std::array used = {IORING_OP_ACCEPT,   IORING_OP_CONNECT, IORING_OP_RECVMSG,      IORING_OP_SENDMSG,
                               IORING_OP_POLL_ADD, IORING_OP_READ,    IORING_OP_ASYNC_CANCEL, IORING_OP_READV,
                               IORING_OP_WRITEV,   IORING_OP_FSYNC};
  if (::syscall(SYS_io_uring_enter, ring.ring_fd, 0, 0, 0, nullptr, 0) < 0 && errno != EBADFD) return -errno;
  const std::unique_ptr<io_uring_probe, decltype(&io_uring_free_probe)> probe(io_uring_get_probe_ring(&ring),
                                                                              &io_uring_free_probe);
  if (probe == nullptr) return -EPERM;
  const auto supported = [&](int code) { return io_uring_opcode_supported(probe.get(), code) != 0; };
  return std::all_of(used.begin(), used.end(), supported) ? 0 : -ENOSYS;
}

// Whether a message surely fits into a nearly empty socket buffer. Larger ones go through the ring, which continues
// after a short send.
bool is_small(const msghdr& message) noexcept {
  constexpr std::size_t most_pieces = 8;
  constexpr std::size_t most_bytes = 16'384;
  if (message.msg_iovlen == 1) return message.msg_iov->iov_len <= most_bytes;
  if (message.msg_iovlen > most_pieces) return false;
  std::size_t total = 0;
  for (std::size_t i = 0; i < message.msg_iovlen; ++i) total += message.msg_iov[i].iov_len;
  return total <= most_bytes;
}

unsigned pieces_of(const io_operation& operation) noexcept {
  return static_cast<unsigned>(operation.message->msg_iovlen);
}

const char* hint(int failure) noexcept {
  switch (-failure) {
    case EPERM:
      return "set up an io_uring (forbidden by a seccomp profile or by the sysctl kernel.io_uring_disabled)";
    case ENOSYS:
      return "set up an io_uring (this kernel does not support io_uring, or is too old)";
    default:
      return "set up an io_uring";
  }
}

int open_ring(io_uring& ring) noexcept {
  int result = -EINVAL;
  for (const unsigned flags : set_ups) {
    io_uring_params parameters{};
    parameters.flags = flags | IORING_SETUP_CQSIZE;
    parameters.cq_entries = completion_entries;
    result = io_uring_queue_init_params(submission_entries, &ring, &parameters);
    if (result != 0) {
      if (result == -EINVAL) continue;
      return result;
    }
    // EXT_ARG: a time limit without a timeout request. NODROP: completions are never lost.
    constexpr unsigned needed = IORING_FEAT_EXT_ARG | IORING_FEAT_NODROP;
    result = (parameters.features & needed) == needed ? probe_ring(ring) : -ENOSYS;
    if (result < 0) io_uring_queue_exit(&ring);
    return result;
  }
  return result;
}

}  // namespace

io_uring_driver::io_uring_driver(system_calls& calls) : calls_(calls), socket_calls_(calls) {
  int result = calls.permit_io_uring();
  if (result == 0) result = open_ring(ring_);
  if (result < 0) throw system_error(-result, hint(result));
  const int fd = calls.eventfd(0, EFD_CLOEXEC);
  if (fd < 0) {
    io_uring_queue_exit(&ring_);
    throw system_error(-fd, "create an eventfd");
  }
  wake_ = descriptor(fd, calls);
}

io_uring_driver::~io_uring_driver() {
  assert(done_.empty() && sends_.size() + inputs_.size() == 0 && "an event driver ended with operations in progress");
  io_uring_queue_exit(&ring_);
}

void io_uring_driver::attach_thread() {
  // By hand: liburing 2.3 declares io_uring_enable_rings, but its shared library does not export it.
  const long result = ::syscall(SYS_io_uring_register, ring_.ring_fd, IORING_REGISTER_ENABLE_RINGS, nullptr, 0);
  if (result < 0) throw system_error(errno, "enable an io_uring");
}

io_uring_sqe& io_uring_driver::next_entry() noexcept {
  io_uring_sqe* const entry = io_uring_get_sqe(&ring_);
  return entry != nullptr ? *entry : hand_over_for_an_entry();
}

// Submits the full queue to make room. While the kernel takes nothing for lack of memory, the thread waits, because the
// operation that needs the entry can no longer be refused. After too many tries, or at any other error, the program
// ends.
[[gnu::noinline]] io_uring_sqe& io_uring_driver::hand_over_for_an_entry() noexcept {
  constexpr int most_tries = 10'000;
  constexpr timespec pause{.tv_sec = 0, .tv_nsec = 1'000'000};
  int result = 0;
  for (int tries = 0; tries < most_tries; ++tries) {
    count_kernel_entry();
    result = io_uring_submit(&ring_);
    // EBUSY: older kernels take nothing while completions overflow.
    if (result < 0) set_completions_aside();
    if (io_uring_sqe* const entry = io_uring_get_sqe(&ring_)) return *entry;
    if (result < 0 && result != -EAGAIN && result != -EBUSY && result != -EINTR && result != -ENOMEM) break;
    if (result == -EAGAIN || result == -ENOMEM) ::nanosleep(&pause, nullptr);
  }
  std::array<char, 96> words{};
  std::snprintf(words.data(), words.size(), "an io_uring takes no operations: io_uring_enter failed with errno %d",
                -result);
  detail::terminate_because(words.data());
}

// Takes the oldest completion out of the ring; false if there is none. Unlike io_uring_peek_cqe(3) it never enters the
// kernel.
bool io_uring_driver::take(completion& oldest) noexcept {
  if (io_uring_cq_ready(&ring_) == 0) return false;
  const io_uring_cqe& entry = ring_.cq.cqes[*ring_.cq.khead & *ring_.cq.kring_mask];
  oldest = {entry.user_data, entry.res};
  io_uring_cq_advance(&ring_, 1);
  return true;
}

// The operation of a completion; null if the completion has a tag instead. Notes it if the read of wake_ has completed.
io_operation* io_uring_driver::operation_of(const completion& what) noexcept {
  if (what.data == wake_tag) wake_awaited_ = false;
  if (what.data == cancel_tag && what.result == -ENOENT) missed_ = true;
  if (what.data == wake_tag || what.data == cancel_tag) return nullptr;
  // The address that prepare() has put there. NOLINTNEXTLINE(performance-no-int-to-ptr)
  auto* const operation = reinterpret_cast<io_operation*>(static_cast<std::uintptr_t>(what.data));
  if (canceled_list::contains(*operation)) [[unlikely]]
    canceled_.remove(*operation);
  return operation;
}

[[gnu::noinline]] void io_uring_driver::set_completions_aside() noexcept {
  completion next{};
  while (take(next)) {
    if (io_operation* const operation = operation_of(next)) done_.push(*operation, next.result);
  }
}

void io_uring_driver::await_wake() noexcept {
  io_uring_sqe& entry = next_entry();
  io_uring_prep_read(&entry, wake_.fd(), &wake_count_, sizeof wake_count_, 0);
  io_uring_sqe_set_data64(&entry, wake_tag);
  wake_awaited_ = true;
}

// Parks sends, and inputs that may be tried: spin() tries them, all other turns put them into the ring.
[[gnu::flatten]] void io_uring_driver::start(io_operation& operation) noexcept {
  begin(operation);
  const bool sends = operation.kind == io_kind::send;
  if (!sends && !operation.may_be_tried) return prepare(operation);
  if (io_operation* const evicted = (sends ? sends_ : inputs_).push(operation)) prepare(*evicted);
}

void io_uring_driver::prepare_parked() noexcept {
  while (sends_.size() != 0) prepare(sends_.pop());
  while (inputs_.size() != 0) prepare(inputs_.pop());
  if (missed_) [[unlikely]]
    cancel_again();
}

// The kernel does not find an operation that it is about to try again, as a send to a socket whose peer has ended its
// output: it then waits on as if nobody had asked.
void io_uring_driver::cancel_again() noexcept {
  for (io_operation* each = canceled_.first(); each != nullptr; each = canceled_list::behind(*each)) {
    if (io_uring_sq_space_left(&ring_) == 0) return;  // room would be made by taking completions, which ends operations
    prepare_cancel(*each);
  }
  missed_ = false;
}

void io_uring_driver::prepare(io_operation& operation) noexcept {
  if (const int refused = calls_.permit_ring_operation(static_cast<std::uint8_t>(operation.kind)); refused < 0) {
    return done_.push(operation, refused);
  }
  io_uring_sqe& entry = next_entry();
  const int fd = operation.target->fd();
  const auto flags = static_cast<unsigned>(operation.flags);
  switch (operation.kind) {
    case io_kind::accept:
      io_uring_prep_accept(&entry, fd, reinterpret_cast<sockaddr*>(operation.peer),
                           operation.peer != nullptr ? &operation.peer_length : nullptr, SOCK_CLOEXEC);
      break;
    case io_kind::connect:
      io_uring_prep_connect(&entry, fd, reinterpret_cast<const sockaddr*>(operation.peer), operation.peer_length);
      break;
    case io_kind::receive:
      io_uring_prep_recvmsg(&entry, fd, operation.message, flags);
      break;
    case io_kind::send: {
      // MSG_WAITALL: after a short send the kernel continues; without the flag, weft would, but only a turn later. A
      // kernel before 6.1, which does not know DEFER_TASKRUN, forgets what it has sent if the rest is canceled.
      const unsigned whole = (ring_.flags & IORING_SETUP_DEFER_TASKRUN) != 0 ? MSG_WAITALL : 0;
      io_uring_prep_sendmsg(&entry, fd, operation.message, flags | MSG_NOSIGNAL | whole);
      break;
    }
    case io_kind::readable:
      io_uring_prep_poll_add(&entry, fd, POLLIN);
      break;
    case io_kind::read:
      io_uring_prep_readv(&entry, fd, operation.message->msg_iov, pieces_of(operation), operation.offset);
      break;
    case io_kind::write:
      io_uring_prep_writev(&entry, fd, operation.message->msg_iov, pieces_of(operation), operation.offset);
      break;
    case io_kind::sync:
      io_uring_prep_fsync(&entry, fd, IORING_FSYNC_DATASYNC);
      break;
  }
  io_uring_sqe_set_data64(&entry, reinterpret_cast<std::uintptr_t>(&operation));
}

void io_uring_driver::cancel(io_operation& operation) noexcept {
  if (sends_.remove(operation) || inputs_.remove(operation)) return done_.push(operation, -ECANCELED);
  canceled_.push(operation);
  prepare_cancel(operation);
}

void io_uring_driver::prepare_cancel(io_operation& operation) noexcept {
  io_uring_sqe& entry = next_entry();
  io_uring_prep_cancel64(&entry, reinterpret_cast<std::uintptr_t>(&operation), 0);
  io_uring_sqe_set_data64(&entry, cancel_tag);
}

std::size_t io_uring_driver::complete_done(std::size_t budget) noexcept {
  std::size_t count = 0;
  for (; count < budget && !done_.empty(); ++count) {
    int result = 0;
    io_operation& operation = done_.pop(result);
    end(operation, result);
  }
  completion next{};
  while (count < budget && take(next)) {
    io_operation* const operation = operation_of(next);
    if (operation == nullptr) continue;
    ++count;
    end(*operation, next.result);
  }
  return count;
}

// Flattened, because most turns find nothing here.
[[gnu::flatten]] std::size_t io_uring_driver::poll(std::size_t budget) noexcept {
  prepare_parked();
  return take_completions(budget);
}

// Makes the parked calls directly, as a loop without a ring would: while there are few, that is cheaper than a
// submission and a notification each. Each may cancel those behind it.
std::size_t io_uring_driver::spin(std::size_t budget) noexcept {
  std::size_t count = 0;
  for (std::size_t left = sends_.size(); left > 0 && sends_.size() != 0; --left) {
    count += try_send(sends_.pop()) ? 1U : 0U;
  }
  for (std::size_t left = inputs_.size(); left > 0 && inputs_.size() != 0; --left) {
    count += try_input(inputs_.pop()) ? 1U : 0U;
  }
  return count + take_completions(budget);
}

// Lets the operation's owner try to receive; false if there was nothing to receive.
bool io_uring_driver::try_input(io_operation& operation) noexcept {
  received_ = false;
  end(operation, POLLIN);
  return received_;
}

bool io_uring_driver::try_send(io_operation& operation) noexcept {
  const int result = try_now(operation);
  if (result == -EAGAIN) {
    prepare(operation);
    return false;
  }
  end(operation, result);
  return true;
}

int io_uring_driver::try_now(io_operation& operation) noexcept {
  if (operation.kind != io_kind::send || !is_small(*operation.message)) return -EAGAIN;
  count_kernel_entry();
  return static_cast<int>(
      socket_calls_.send(operation.target->fd(), *operation.message, operation.flags | MSG_DONTWAIT | MSG_NOSIGNAL));
}

std::size_t io_uring_driver::take_completions(std::size_t budget) noexcept {
  if (!wake_awaited_) await_wake();
  // With DEFER_TASKRUN, completions appear only after a call; these flags say when a call is worthwhile.
  const unsigned waiting = IO_URING_READ_ONCE(*ring_.sq.kflags) & (IORING_SQ_TASKRUN | IORING_SQ_CQ_OVERFLOW);
  if (io_uring_sq_ready(&ring_) != 0) {
    count_kernel_entry();
    io_uring_submit_and_get_events(&ring_);
  } else if (waiting != 0) {
    count_kernel_entry();
    io_uring_get_events(&ring_);
  }
  return complete_done(budget);
}

[[gnu::flatten]] std::size_t io_uring_driver::wait(std::size_t budget, std::optional<duration> timeout) noexcept {
  prepare_parked();
  if (!wake_awaited_) await_wake();  // first, because it may have to take completions to make room
  if (!done_.empty() || io_uring_cq_ready(&ring_) != 0) return take_completions(budget);
  count_kernel_entry();
  io_uring_cqe* entry = nullptr;
  if (timeout) {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(*timeout);
    __kernel_timespec limit{.tv_sec = seconds.count(), .tv_nsec = std::chrono::nanoseconds(*timeout - seconds).count()};
    io_uring_submit_and_wait_timeout(&ring_, &entry, 1, &limit, nullptr);
  } else {
    io_uring_submit_and_wait(&ring_, 1);
  }
  return complete_done(budget);
}

// Not the ring's own descriptor, because deferred task work does not make that readable.
int io_uring_driver::wait_fd() {
  if (completed_.fd() >= 0) return completed_.fd();
  const int fd = calls_.eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd < 0) throw system_error(-fd, "create an eventfd");
  descriptor made(fd, calls_);
  const int result = io_uring_register_eventfd(&ring_, fd);
  if (result < 0) throw system_error(-result, "register an eventfd with an io_uring");
  completed_ = std::move(made);
  return fd;
}

bool io_uring_driver::prepare_wait() noexcept {
  prepare_parked();
  if (!wake_awaited_) await_wake();
  if (io_uring_sq_ready(&ring_) != 0) {
    count_kernel_entry();
    io_uring_submit(&ring_);
  }
  // The eventfd is emptied before the look at the ring, so that a completion after the look makes it readable again.
  eventfd_t told = 0;
  count_kernel_entry();
  static_cast<void>(::eventfd_read(completed_.fd(), &told));
  return !completions_wait() && io_uring_sq_ready(&ring_) == 0;  // the next turn submits what the kernel has not taken
}

bool io_uring_driver::completions_wait() const noexcept {
  return !done_.empty() || io_uring_cq_ready(&ring_) != 0 ||
         (IO_URING_READ_ONCE(*ring_.sq.kflags) & (IORING_SQ_TASKRUN | IORING_SQ_CQ_OVERFLOW)) != 0;
}

ssize_t io_uring_driver::try_receive(descriptor& source, msghdr& message) noexcept {
  count_kernel_entry();
  const ssize_t result = socket_calls_.receive(source.fd(), message, MSG_DONTWAIT);
  received_ = result != -EAGAIN;
  return result;
}

void io_uring_driver::wake() noexcept { static_cast<void>(::eventfd_write(wake_.fd(), 1)); }

}  // namespace weft
