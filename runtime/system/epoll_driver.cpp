// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/error.hpp>
#include <weft/runtime/system/epoll_driver.hpp>

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cerrno>
#include <limits>
#include <utility>

namespace weft {
namespace {

// While operations complete without waiting, the driver looks for edges at least once in this many turns.
constexpr unsigned longest_without_look = 16;

descriptor checked(int fd, system_calls& calls, const char* what) {
  if (fd < 0) throw system_error(-fd, what);
  return {fd, calls};
}

bool is_input(io_kind kind) noexcept { return kind <= io_kind::readable; }
static_assert(io_kind::accept < io_kind::readable && io_kind::receive < io_kind::readable);
static_assert(io_kind::connect > io_kind::readable && io_kind::send > io_kind::readable);

std::size_t wanted(const msghdr& message) noexcept {
  if (message.msg_iovlen == 1) return message.msg_iov->iov_len;
  std::size_t total = 0;
  for (std::size_t i = 0; i < message.msg_iovlen; ++i) total += message.msg_iov[i].iov_len;
  return total;
}

// Rounded up, because waking too early means waking more than once.
int to_milliseconds(duration time) noexcept {
  constexpr std::int64_t longest = std::numeric_limits<int>::max();
  return static_cast<int>(std::min<std::int64_t>(std::chrono::ceil<std::chrono::milliseconds>(time).count(), longest));
}

timespec to_timespec(duration time) noexcept {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(time);
  return {.tv_sec = seconds.count(), .tv_nsec = std::chrono::nanoseconds(time - seconds).count()};
}

}  // namespace

// Events that the kernel has reported. Handling an event may close the descriptors of others, and may call collect()
// again.
struct epoll_driver::news {
  std::array<epoll_event, 64> events;
  std::size_t next = 0;
  std::size_t count;
  news* older;

  void forget(const descriptor& target) noexcept {
    for (std::size_t i = next; i < count; ++i) {
      if (events[i].data.ptr == &target) events[i].data.ptr = nullptr;
    }
  }
};

epoll_driver::epoll_driver(system_calls& calls)
    : calls_(calls),
      socket_calls_(calls),
      epoll_(checked(calls.epoll_create1(EPOLL_CLOEXEC), calls, "create an epoll instance")),
      wake_(checked(calls.eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), calls, "create an eventfd")) {
  epoll_event event{.events = EPOLLIN | EPOLLET, .data = {.ptr = nullptr}};
  if (const int result = calls.epoll_ctl(epoll_.fd(), EPOLL_CTL_ADD, wake_.fd(), &event); result < 0) {
    throw system_error(-result, "watch an eventfd with epoll");
  }
}

epoll_driver::~epoll_driver() {
  assert(done_.empty() && "an event driver ended with operations in progress");
  while (!attached_.empty()) detach(attached_.front());
}

[[gnu::noinline]] int epoll_driver::attach(descriptor& target) noexcept {
  const int flags = ::fcntl(target.fd_, F_GETFL);
  if (flags < 0 || ::fcntl(target.fd_, F_SETFL, flags | O_NONBLOCK) < 0) return -errno;
  epoll_event event{.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data = {.ptr = &target}};
  if (const int result = calls_.epoll_ctl(epoll_.fd(), EPOLL_CTL_ADD, target.fd_, &event); result < 0) return result;
  target.driver_ = this;
  attached_.push_front(target);
  return 0;
}

void epoll_driver::detach(descriptor& target) noexcept {
  attached_.remove(target);
  target.driver_ = nullptr;
}

void epoll_driver::forget(descriptor& target) noexcept {
  if (target.driver_ != this) return;
  // Closing alone is not enough: a forked child may hold the file open, and its events would refer to a destroyed
  // descriptor.
  calls_.epoll_ctl(epoll_.fd(), EPOLL_CTL_DEL, target.fd_, nullptr);
  for (news* told = news_; told != nullptr; told = told->older) told->forget(target);
  detach(target);
}

[[gnu::flatten]] void epoll_driver::start(io_operation& operation) noexcept {
  begin(operation);
  operation.connecting_ = false;
  descriptor& target = *operation.target;
  if (target.driver_ == nullptr) {
    if (const int result = attach(target); result < 0) return done_.push(operation, result);
  }
  assert(target.driver_ == this && "a descriptor belongs to one executor");
  const bool input = is_input(operation.kind);
  assert((input ? target.input_ : target.output_) == nullptr && "one operation per direction at a time");
  const bool worth_trying = input ? target.input_ready_ : target.output_ready_;
  if (!worth_trying && operation.kind != io_kind::connect) return park(operation);
  const int result = attempt(operation);
  if (result == -EAGAIN) return park(operation);
  done_.push(operation, result);
}

// Tries only sends, because edges report when there is something to receive.
[[gnu::flatten]] int epoll_driver::try_now(io_operation& operation) noexcept {
  const descriptor& target = *operation.target;
  if (operation.kind != io_kind::send || target.output_ != nullptr) return -EAGAIN;
  if (target.driver_ == this && !target.output_ready_) return -EAGAIN;
  count_kernel_entry();
  return send(operation);
}

// Makes the operation wait for an edge.
void epoll_driver::park(io_operation& operation) noexcept {
  (is_input(operation.kind) ? operation.target->input_ : operation.target->output_) = &operation;
  if (operation.may_be_tried) static_cast<void>(to_try_.push(operation));  // evicted operations still wait for edges
}

void epoll_driver::unpark(io_operation& operation) noexcept {
  (is_input(operation.kind) ? operation.target->input_ : operation.target->output_) = nullptr;
  if (operation.may_be_tried) to_try_.remove(operation);
}

// Makes the operation's call. Returns -EAGAIN if the operation must wait for an edge.
int epoll_driver::attempt(io_operation& operation) noexcept {
  count_kernel_entry();
  switch (operation.kind) {
    case io_kind::receive:
      return static_cast<int>(receive(*operation.target, *operation.message, operation.flags));
    case io_kind::send:
      return send(operation);
    default:
      return attempt_other(operation);
  }
}

int epoll_driver::send(const io_operation& operation) noexcept {
  descriptor& target = *operation.target;
  const ssize_t result =
      socket_calls_.send(target.fd_, *operation.message, operation.flags | MSG_DONTWAIT | MSG_NOSIGNAL);
  if (result < 0 ? result == -EAGAIN : static_cast<std::size_t>(result) < wanted(*operation.message)) {
    target.output_ready_ = false;
  }
  return static_cast<int>(result);
}

[[gnu::noinline]] int epoll_driver::attempt_other(io_operation& operation) noexcept {
  descriptor& target = *operation.target;
  switch (operation.kind) {
    case io_kind::accept: {
      const int result = calls_.accept4(target.fd_, reinterpret_cast<sockaddr*>(operation.peer),
                                        operation.peer != nullptr ? &operation.peer_length : nullptr, SOCK_CLOEXEC);
      if (result == -EAGAIN) target.input_ready_ = false;
      return result;
    }
    case io_kind::connect: {
      if (operation.connecting_) {
        int failure = 0;
        socklen_t length = sizeof failure;
        const int result = calls_.getsockopt(target.fd_, SOL_SOCKET, SO_ERROR, &failure, &length);
        return result < 0 ? result : -failure;
      }
      const int result =
          calls_.connect(target.fd_, reinterpret_cast<const sockaddr*>(operation.peer), operation.peer_length);
      if (result != -EINPROGRESS) return result;
      operation.connecting_ = true;
      return -EAGAIN;
    }
    case io_kind::readable: {
      pollfd state{.fd = target.fd_, .events = POLLIN, .revents = 0};
      const int result = calls_.poll(&state, 1, 0);
      return result == 0 ? -EAGAIN : result < 0 ? result : state.revents;
    }
    case io_kind::receive:
    case io_kind::send:
    case io_kind::read:
    case io_kind::write:
    case io_kind::sync:
      break;  // not made here
  }
  return -EINVAL;
}

ssize_t epoll_driver::receive(descriptor& source, msghdr& message, int flags) noexcept {
  const ssize_t result = socket_calls_.receive(source.fd_, message, flags | MSG_DONTWAIT);
  // A short read has emptied the socket, and later data makes another edge (epoll(7), question 9). This does not hold
  // if an edge has reported data and the end of input together, because the end then makes no edge of its own.
  const bool emptied = result > 0 && static_cast<std::size_t>(result) < wanted(message) && !source.hung_up_;
  if (emptied || result == -EAGAIN) source.input_ready_ = false;
  return result;
}

ssize_t epoll_driver::try_receive(descriptor& source, msghdr& message) noexcept {
  count_kernel_entry();
  const ssize_t result = receive(source, message, 0);
  received_ = result != -EAGAIN;
  return result;
}

void epoll_driver::cancel(io_operation& operation) noexcept {
  const descriptor& target = *operation.target;
  if ((is_input(operation.kind) ? target.input_ : target.output_) != &operation) return;  // the operation has ended
  unpark(operation);
  done_.push(operation, -ECANCELED);
}

// Makes the call of a parked operation, if there is one. True if the operation has ended, and is no longer parked.
bool epoll_driver::retry(io_operation* parked, std::uint32_t events, int& result) noexcept {
  if (parked == nullptr) return false;
  result = parked->kind == io_kind::readable ? static_cast<int>(events) : attempt(*parked);
  if (result == -EAGAIN) return false;
  unpark(*parked);
  return true;
}

// Handles an edge. Its last step completes an input operation, because that may destroy the descriptor. Returns how
// many operations it has completed.
[[gnu::flatten]] std::size_t epoll_driver::handle(std::uint32_t events, descriptor& target) noexcept {
  constexpr std::uint32_t trouble = EPOLLERR | EPOLLHUP;
  int result = 0;
  if ((events & (EPOLLRDHUP | trouble)) != 0) target.hung_up_ = true;
  if ((events & (EPOLLOUT | trouble)) != 0) {
    target.output_ready_ = true;
    io_operation* const output = target.output_;
    if (retry(output, events, result)) done_.push(*output, result);
  }
  if ((events & (EPOLLIN | EPOLLRDHUP | trouble)) == 0) return 0;
  target.input_ready_ = true;
  io_operation* const input = target.input_;
  if (!retry(input, events, result)) return 0;
  end(*input, result);
  return 1;
}

int epoll_driver::wait_for_edges(std::span<epoll_event> events, std::optional<duration> timeout) noexcept {
  count_kernel_entry();
  if (!timeout) return socket_calls_.wait(epoll_.fd(), events, -1);
  if (*timeout <= duration::zero()) return socket_calls_.wait(epoll_.fd(), events, 0);
  if (precise_) {
    const timespec limit = to_timespec(*timeout);
    const int result = calls_.epoll_pwait2(epoll_.fd(), events.data(), static_cast<int>(events.size()), &limit);
    if (result != -ENOSYS && result != -EPERM) return result;
    precise_ = false;  // a kernel before 5.11, or a container whose seccomp profile does not know the call
  }
  return socket_calls_.wait(epoll_.fd(), events, to_milliseconds(*timeout));
}

std::size_t epoll_driver::collect(std::optional<duration> timeout) noexcept {
  turns_without_look_ = 0;
  news told;
  const int count = wait_for_edges(told.events, timeout);
  if (count <= 0) return 0;
  told.count = static_cast<std::size_t>(count);
  told.older = std::exchange(news_, &told);
  std::size_t completed = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    const epoll_event& event = told.events[i];
    told.next = i + 1;
    // Null: the event is of wake(), whose next write makes another edge, or of a forgotten descriptor.
    if (event.data.ptr == nullptr) continue;
    completed += handle(event.events, *static_cast<descriptor*>(event.data.ptr));
  }
  news_ = told.older;
  return completed;
}

std::size_t epoll_driver::complete_done(std::size_t budget) noexcept {
  std::size_t count = 0;
  for (; count < budget && !done_.empty(); ++count) {
    int result = 0;
    io_operation& operation = done_.pop(result);
    end(operation, result);
  }
  return count;
}

[[gnu::noinline]] std::size_t epoll_driver::poll(std::size_t budget) noexcept {
  const bool look = done_.empty() || ++turns_without_look_ >= longest_without_look;
  const std::size_t count = look ? collect(duration::zero()) : 0;
  return count + (done_.empty() ? 0 : complete_done(budget));
}

// Tries the operations in to_try_ directly, as a loop without an epoll instance would. While there are any, it looks
// less often for edges, which report everything else. Each try may cancel those behind it.
std::size_t epoll_driver::spin(std::size_t budget) noexcept {
  std::size_t count = complete_done(budget);  // first: the next receive may bring the answer to one of them
  const std::size_t tries = to_try_.size();
  for (std::size_t left = tries; left > 0 && to_try_.size() != 0; --left) count += try_oldest() ? 1U : 0U;
  if (done_.empty() && (tries == 0 || ++turns_without_look_ >= longest_without_look)) {
    count += collect(duration::zero());
  }
  return count + complete_done(budget);
}

// Lets the owner of the oldest operation in to_try_ try to receive; false if there was nothing to receive.
bool epoll_driver::try_oldest() noexcept {
  io_operation& operation = to_try_.pop();
  operation.target->input_ = nullptr;
  received_ = false;
  end(operation, POLLIN);
  return received_;
}

[[gnu::noinline, gnu::flatten]] std::size_t epoll_driver::wait(std::size_t budget,
                                                               std::optional<duration> timeout) noexcept {
  if (!done_.empty()) return poll(budget);
  const std::size_t count = collect(timeout);
  return count + (done_.empty() ? 0 : complete_done(budget));
}

void epoll_driver::wake() noexcept {
  // Nobody reads the eventfd: every write makes an edge, and the counter of 64 bits never fills up.
  static_cast<void>(::eventfd_write(wake_.fd(), 1));
}

}  // namespace weft
