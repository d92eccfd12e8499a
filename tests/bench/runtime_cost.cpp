// SPDX-License-Identifier: Apache-2.0
// runtime_cost CASE COUNT: does something of the runtime so many times, or the same by hand, which is the floor that
// anything built on it stands on. `./dev bench runtime` runs it under callgrind and strace with two counts.
#include <weft/runtime/executor_group.hpp>
#include <weft/runtime/io/io.hpp>
#include <weft/runtime/run_on.hpp>
#include <weft/runtime/scope.hpp>
#include <weft/runtime/sleep.hpp>
#include <weft/runtime/sync/channel.hpp>
#include <weft/runtime/sync/event.hpp>
#include <weft/runtime/when_all.hpp>

#include <liburing.h>

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <coroutine>

#include "count_allocations.hpp"

namespace {

using namespace weft;

constexpr int request_bytes = 64;

void expect(bool truth) {
  if (!truth) throw std::runtime_error("a system call failed");
}

executor_options sleeping() {
  executor_options options;
  options.policy = poll_policy::sleep;  // spinning would count the time, not the work
  return options;
}

/// `Work(count)`, on an executor of its own.
template <auto Work>
void on_executor(std::uint64_t count) {
  executor home(sleeping());
  home.run(Work(count));
}

// ---- await of a task that is ready ----

// The least that a coroutine can be: no executor, no cancellation, no allocator.
class bare_task {
 public:
  struct promise_type {
    std::coroutine_handle<> continuation;
    std::uint64_t value = 0;
    bare_task get_return_object() { return bare_task(std::coroutine_handle<promise_type>::from_promise(*this)); }
    std::suspend_always initial_suspend() noexcept { return {}; }
    struct final_awaiter {
      bool await_ready() noexcept { return false; }
      std::coroutine_handle<> await_suspend(std::coroutine_handle<promise_type> self) noexcept {
        return self.promise().continuation != nullptr ? self.promise().continuation : std::noop_coroutine();
      }
      void await_resume() noexcept {}
    };
    final_awaiter final_suspend() noexcept { return {}; }
    void return_value(std::uint64_t result) noexcept { value = result; }
    void unhandled_exception() noexcept { std::terminate(); }
  };

  explicit bare_task(std::coroutine_handle<promise_type> handle) noexcept : handle_(handle) {}
  bare_task(bare_task&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  bare_task& operator=(bare_task&&) = delete;
  ~bare_task() {
    if (handle_) handle_.destroy();
  }

  bool await_ready() const noexcept { return false; }
  std::coroutine_handle<> await_suspend(std::coroutine_handle<> parent) noexcept {
    handle_.promise().continuation = parent;
    return handle_;
  }
  std::uint64_t await_resume() const noexcept { return handle_.promise().value; }
  void start() const { handle_.resume(); }

 private:
  std::coroutine_handle<promise_type> handle_;
};

[[gnu::noinline]] bare_task bare_value(std::uint64_t value) { co_return value; }
[[gnu::noinline]] bare_task bare_sum(std::uint64_t count) {
  std::uint64_t sum = 0;
  for (std::uint64_t i = 0; i < count; ++i) sum += co_await bare_value(i);
  co_return sum;
}
void bare_await(std::uint64_t count) {
  const bare_task all = bare_sum(count);
  all.start();
}

[[gnu::noinline]] task<std::uint64_t> weft_value(std::uint64_t value) { co_return value; }
task<std::uint64_t> weft_sum(std::uint64_t count) {
  std::uint64_t sum = 0;
  for (std::uint64_t i = 0; i < count; ++i) sum += co_await weft_value(i);
  co_return sum;
}
constexpr auto weft_await = on_executor<weft_sum>;

// ---- a task beside the caller, started and waited for ----

[[gnu::noinline]] task<> nothing() { co_return; }

task<> spawn_and_join(std::uint64_t count) {
  const auto one = [](scope& children) -> task<> {
    children.spawn(nothing());
    co_return;
  };
  for (std::uint64_t i = 0; i < count; ++i) co_await with_scope(on_failure::stop_siblings, one);
}
constexpr auto weft_spawn = on_executor<spawn_and_join>;

// The same with the scope apart: what a server pays for one more task, and what Asio's co_spawn is for.
task<> spawn_in_one_scope(std::uint64_t count) {
  const auto all = [count](scope& children) -> task<> {
    for (std::uint64_t i = 0; i < count; ++i) co_await children.spawn(nothing());
  };
  co_await with_scope(on_failure::stop_siblings, all);
}
constexpr auto weft_spawn_more = on_executor<spawn_in_one_scope>;

// ---- a value from one task to another ----

task<> send_all(channel<std::uint64_t>& to, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) co_await to.send(std::uint64_t{i});
  to.close();
}
task<> receive_all(channel<std::uint64_t>& from) {
  std::uint64_t expected = 0;
  // By name: GCC 12.2 forgets to resume a loop whose whole condition is `co_await`.
  while (const auto value = co_await from.receive()) expect(*value == expected++);
}
void weft_channel(std::uint64_t count) {
  executor home(sleeping());
  channel<std::uint64_t> hop(1);
  home.run(when_all(receive_all(hop), send_all(hop, count)));
}

// ---- from thread to thread and back ----

task<> answer_all(channel<std::uint64_t>& questions, channel<std::uint64_t>& answers) {
  while (auto question = co_await questions.receive()) co_await answers.send(std::move(*question));
}
task<> ask_all(channel<std::uint64_t>& questions, channel<std::uint64_t>& answers, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) {
    co_await questions.send(std::uint64_t{i});
    co_await answers.receive();
  }
  questions.close();
}
void wake(std::uint64_t count, poll_policy policy) {
  executor_group_options options{.size = 1};
  options.each.policy = policy;
  executor_group group(options);
  executor home(options.each);
  channel<std::uint64_t> questions(1);
  channel<std::uint64_t> answers(1);
  const auto both = [&](scope& children) -> task<> {
    children.spawn(ask_all(questions, answers, count));
    co_await run_on(group[0], answer_all(questions, answers));
  };
  home.run(with_scope(on_failure::stop_siblings, both));
}
void weft_wake_asleep(std::uint64_t count) { wake(count, poll_policy::sleep); }
void weft_wake_awake(std::uint64_t count) { wake(count, poll_policy::spin); }

// The two ways to wake a ring that sleeps, by hand: what the runtime does, and IORING_OP_MSG_RING from a ring of one's
// own. The message goes out at once: the ring that it names may be gone, and its number another's, by the time that the
// sender would hand it over with something else. Both rings on one thread, so that callgrind sees everything.
class wakeable_ring : private weft::test::immovable {
 public:
  wakeable_ring() {
    expect(io_uring_queue_init(16, &ring_, IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN) == 0);
  }
  ~wakeable_ring() { io_uring_queue_exit(&ring_); }

  io_uring_sqe& entry() { return *io_uring_get_sqe(&ring_); }
  [[nodiscard]] int fd() const noexcept { return ring_.ring_fd; }
  void submit() { expect(io_uring_submit(&ring_) >= 0); }
  void sleep() {
    expect(io_uring_submit_and_wait(&ring_, 1) >= 0);
    const unsigned ready = io_uring_cq_ready(&ring_);
    expect(ready == 1 && ring_.cq.cqes[*ring_.cq.khead & *ring_.cq.kring_mask].res >= 0);
    io_uring_cq_advance(&ring_, ready);
  }

 private:
  io_uring ring_{};
};

void eventfd_wake(std::uint64_t count) {
  wakeable_ring sleeper;
  const int wake = ::eventfd(0, EFD_CLOEXEC);
  std::uint64_t value = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    io_uring_prep_read(&sleeper.entry(), wake, &value, sizeof value, 0);
    expect(::eventfd_write(wake, 1) == 0);
    sleeper.sleep();
  }
  ::close(wake);
}

void msg_ring_wake(std::uint64_t count) {
  wakeable_ring sleeper;
  wakeable_ring sender;
  for (std::uint64_t i = 0; i < count; ++i) {
    io_uring_sqe& message = sender.entry();
    io_uring_prep_msg_ring(&message, sleeper.fd(), 0, 1, 0);
    message.flags |= IOSQE_CQE_SKIP_SUCCESS;
    sender.submit();
    sleeper.sleep();
  }
}

// ---- what the learned spinning does ----

// Nothing to do for so many milliseconds.
void weft_idle(std::uint64_t count) {
  executor home;
  const auto wait = [count]() -> task<> { co_await sleep_for(std::chrono::milliseconds(count)); };
  home.run(wait());
}

// A device under load: a completion for every fourth look.
class busy_device final : public poller, private weft::test::immovable {
 public:
  busy_device() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) { executor::current()->add_poller(*this); }
  ~busy_device() {
    executor::current()->remove_poller(*this);
    ::close(fd_);
  }
  event completed;

  std::size_t poll(std::size_t) noexcept override {
    if (++looks_ % 4 != 0) return 0;
    completed.set();
    return 1;
  }
  void arm() noexcept override {}
  void disarm() noexcept override {}
  [[nodiscard]] int wait_fd() const noexcept override { return fd_; }

 private:
  int fd_;
  std::uint64_t looks_ = 0;
};

void weft_loaded(std::uint64_t count) {
  executor home;
  const auto work = [count]() -> task<> {
    busy_device device;
    for (std::uint64_t i = 0; i < count; ++i) {
      device.completed.reset();
      co_await device.completed.wait();
    }
  };
  home.run(work());
}

// ---- timers, all armed at once ----

class idle_timer final : public detail::timer {
 private:
  void expired() noexcept override {}
};
task<> arm_and_cancel(std::uint64_t count) {
  executor& home = *executor::current();
  const auto timers = std::make_unique<idle_timer[]>(count);
  const time_point start = home.now() + std::chrono::hours(1);
  for (std::uint64_t i = 0; i < count; ++i) {
    core_of(home).arm(timers[i], start + std::chrono::microseconds(i * 7919 % count));  // in no order
  }
  for (std::uint64_t i = 0; i < count; ++i) core_of(home).disarm(timers[i]);
  co_return;
}
constexpr auto weft_timer = on_executor<arm_and_cancel>;

// ---- requests and answers over a socket, both ends here ----

// Room for more than is asked for, as a server has: a read that is short has emptied the socket, and who knows that
// need not look again.
using room = std::array<std::byte, std::size_t{2} * request_bytes>;

struct message_of_one_piece {
  explicit message_of_one_piece(std::size_t size) noexcept : piece{bytes.data(), size} {
    header.msg_iov = &piece;
    header.msg_iovlen = 1;
  }
  room bytes{};
  iovec piece;
  msghdr header{};
};

task<> echo(descriptor& socket, std::uint64_t count) {
  message_of_one_piece request(sizeof(room));
  message_of_one_piece answer(request_bytes);
  for (std::uint64_t i = 0; i < count; ++i) {
    expect(co_await detail::io_wait(io_kind::receive, socket, request.header, 0) == request_bytes);
    expect(co_await detail::io_wait(io_kind::send, socket, answer.header, 0) == request_bytes);
  }
}
task<> ask(descriptor& socket, std::uint64_t count) {
  message_of_one_piece request(request_bytes);
  message_of_one_piece answer(sizeof(room));
  for (std::uint64_t i = 0; i < count; ++i) {
    expect(co_await detail::io_wait(io_kind::send, socket, request.header, 0) == request_bytes);
    expect(co_await detail::io_wait(io_kind::receive, socket, answer.header, 0) == request_bytes);
  }
}

std::array<int, 2> sockets(int flags) {
  std::array<int, 2> ends{};
  expect(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | flags, 0, ends.data()) == 0);
  return ends;
}

void weft_socket(std::uint64_t count) {
  executor home(sleeping());
  const auto ends = sockets(0);
  descriptor client(ends[0], system_calls::kernel());
  descriptor server(ends[1], system_calls::kernel());
  home.run(when_all(echo(server, count), ask(client, count)));
}

void epoll_socket(std::uint64_t count) {
  const auto ends = sockets(SOCK_NONBLOCK);
  const int poller = ::epoll_create1(EPOLL_CLOEXEC);
  for (const int end : ends) {
    epoll_event wanted{.events = EPOLLIN | EPOLLET, .data = {.fd = end}};
    expect(::epoll_ctl(poller, EPOLL_CTL_ADD, end, &wanted) == 0);
  }
  room bytes{};
  expect(::send(ends[0], bytes.data(), request_bytes, MSG_NOSIGNAL) == request_bytes);
  for (std::uint64_t answers = 0; answers < count;) {
    std::array<epoll_event, 64> events;
    const int ready = ::epoll_wait(poller, events.data(), static_cast<int>(events.size()), -1);
    for (int i = 0; i < ready; ++i) {
      const int end = events[static_cast<std::size_t>(i)].data.fd;
      expect(::recv(end, bytes.data(), bytes.size(), 0) == request_bytes);
      if (end == ends[0]) ++answers;
      expect(::send(end, bytes.data(), request_bytes, MSG_NOSIGNAL) == request_bytes);
    }
  }
  for (const int end : {ends[0], ends[1], poller}) ::close(end);
}

void uring_socket(std::uint64_t count) {
  const auto ends = sockets(0);
  io_uring ring;
  expect(io_uring_queue_init(16, &ring, IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN) == 0);
  std::array<room, 2> bytes{};
  const auto receive = [&](std::size_t end) {
    io_uring_sqe* const entry = io_uring_get_sqe(&ring);
    io_uring_prep_recv(entry, ends[end], bytes[end].data(), sizeof(room), 0);
    io_uring_sqe_set_data64(entry, end);
  };
  const auto send = [&](std::size_t end) {
    io_uring_sqe* const entry = io_uring_get_sqe(&ring);
    io_uring_prep_send(entry, ends[end], bytes[end].data(), request_bytes, MSG_NOSIGNAL);
    io_uring_sqe_set_data64(entry, 2);
  };
  receive(0);
  receive(1);
  send(0);
  for (std::uint64_t answers = 0; answers < count;) {
    expect(io_uring_submit_and_wait(&ring, 1) >= 0);
    io_uring_cqe* done = nullptr;
    while (io_uring_peek_cqe(&ring, &done) == 0) {
      const std::uint64_t end = io_uring_cqe_get_data64(done);
      expect(done->res == request_bytes);
      io_uring_cqe_seen(&ring, done);
      if (end == 2) continue;
      if (end == 0) ++answers;
      receive(end);
      send(end);
    }
  }
  io_uring_queue_exit(&ring);
  for (const int end : ends) ::close(end);
}

}  // namespace

int main(int argc, char** argv) {
  const weft::bench::cases known = {
      {"bare_await", bare_await},           {"epoll_socket", epoll_socket},
      {"eventfd_wake", eventfd_wake},       {"msg_ring_wake", msg_ring_wake},
      {"uring_socket", uring_socket},       {"weft_await", weft_await},
      {"weft_channel", weft_channel},       {"weft_idle", weft_idle},
      {"weft_loaded", weft_loaded},         {"weft_socket", weft_socket},
      {"weft_spawn", weft_spawn},           {"weft_spawn_more", weft_spawn_more},
      {"weft_timer", weft_timer},           {"weft_wake_asleep", weft_wake_asleep},
      {"weft_wake_awake", weft_wake_awake},
  };
  return weft::bench::run_case(argc, argv, known);
}
