// SPDX-License-Identifier: Apache-2.0
#include "runtime/support.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>

#include <cstdlib>
#include <new>

#include "kit/loopback.hpp"
#include "out_of_memory.hpp"

namespace weft::test {
namespace {

constinit thread_local std::size_t allocation_count = 0;
constinit thread_local bool memory_is_out = false;

int checked_errno(int result, const char* what) { return checked_call(result < 0 ? -errno : result, what); }

}  // namespace

std::size_t allocations() noexcept { return allocation_count; }

out_of_memory::out_of_memory() noexcept { memory_is_out = true; }
out_of_memory::~out_of_memory() { memory_is_out = false; }

void on_a_small_stack(const std::function<void()>& body) {
  constexpr std::size_t stack_bytes = std::size_t{256} * 1024;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, stack_bytes);
  const auto entry = [](void* argument) -> void* {
    (*static_cast<const std::function<void()>*>(argument))();
    return nullptr;
  };
  pthread_t thread{};
  const int failure = pthread_create(&thread, &attributes, entry, const_cast<std::function<void()>*>(&body));
  pthread_attr_destroy(&attributes);
  if (failure != 0) throw system_error(failure, "start a thread");
  pthread_join(thread, nullptr);
}

int checked_call(int result, const char* what) {
  if (result == -ECANCELED) throw error(errc::canceled, what);
  if (result < 0) throw system_error(-result, what);
  return result;
}

sim::loose_task start_loosely(task<> body) {
  const auto loose = [](task<> what) -> sim::loose_task { co_await std::move(what); };
  sim::loose_task made = loose(std::move(body));
  made.start(*executor::current());
  return made;
}

task<> destroyed_while_it_waits(task<> body) {
  const sim::loose_task waiter = start_loosely(std::move(body));
  co_await settle();
}

task<int> number_after(int turns, int value) {
  for (int i = 0; i < turns; ++i) co_await yield();
  co_return value;
}

task<int> fail_after(int turns) {
  for (int i = 0; i < turns; ++i) co_await yield();
  throw std::runtime_error("after " + std::to_string(turns));
}

task<> stop_slowly(bool& ended) {
  try {
    co_await sleep_for(duration::max());
    throw std::logic_error("nobody has told it to end");
  } catch (const error&) {
  }
  for (int i = 0; i < 10; ++i) co_await yield();
  ended = true;
}

task<report_list::item> next_report(const report_list& reports) {
  for (;;) {
    const std::vector<report_list::item> all = reports.take();
    if (!all.empty()) co_return all.front();
    co_await yield();
  }
}

executor_options simulation::options() noexcept { return {.clock = this, .simulated_driver = this}; }

void simulation::start(io_operation& operation) noexcept {
  begin(operation);
  started_.push_back(&operation);
}

void simulation::cancel(io_operation& operation) noexcept {
  if (std::erase(started_, &operation) != 0) canceled_.push_back(&operation);
}

std::size_t simulation::poll(std::size_t) noexcept {
  std::size_t count = 0;
  for (io_operation* const operation : std::exchange(canceled_, {})) {
    end(*operation, -ECANCELED);
    ++count;
  }
  for (io_operation* const operation : std::vector(started_)) {
    pollfd state{.fd = operation->target->fd(), .events = POLLIN, .revents = 0};
    if (::poll(&state, 1, 0) != 1) continue;
    std::erase(started_, operation);
    end(*operation, state.revents);
    ++count;
  }
  return count;
}

std::size_t simulation::wait(std::size_t budget, std::optional<duration> timeout) noexcept {
  const std::size_t count = poll(budget);
  if (count != 0) return count;
  if (!timeout) detail::terminate_because("a simulated executor waits for nothing, for ever");
  now_ = later(now_, *timeout);
  return 0;
}

ssize_t simulation::try_receive(descriptor&, msghdr&) noexcept {
  return -ENOTSUP;  // there are no sockets here
}

socket_pair tcp_pair(system_calls& calls) {
  const descriptor listener(checked_errno(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket"), calls);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  checked_errno(::inet_pton(AF_INET, own_loopback().c_str(), &address.sin_addr) - 1, "inet_pton");
  socklen_t length = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  checked_errno(::bind(listener.fd(), generic, length), "bind");
  checked_errno(::listen(listener.fd(), 1), "listen");
  checked_errno(::getsockname(listener.fd(), generic, &length), "getsockname");
  descriptor a(checked_errno(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket"), calls);
  checked_errno(::connect(a.fd(), generic, length), "connect");
  descriptor b(checked_errno(::accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC), "accept"), calls);
  return {std::move(a), std::move(b)};
}

socket_pair unix_pair(system_calls& calls) {
  int ends[2];
  checked_errno(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), "socketpair");
  return {descriptor(ends[0], calls), descriptor(ends[1], calls)};
}

task<int> receive_some(descriptor& where, std::span<std::byte> bytes) {
  iovec piece{.iov_base = bytes.data(), .iov_len = bytes.size()};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  co_return co_await detail::io_wait(io_kind::receive, where, message, 0);
}

task<int> send_some(descriptor& where, std::span<const std::byte> bytes) {
  iovec piece{.iov_base = const_cast<std::byte*>(bytes.data()), .iov_len = bytes.size()};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  co_return co_await detail::io_wait(io_kind::send, where, message, 0);
}

task<> receive_all(descriptor& where, std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const int count = checked_call(co_await receive_some(where, bytes), "receive");
    if (count == 0) throw error(errc::peer_closed, "receive");
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

task<> send_all(descriptor& where, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const int count = checked_call(co_await send_some(where, bytes), "send");
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

}  // namespace weft::test

// The sanitizers have an allocator of their own, and it sees more than this one.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#if !defined(__clang__)

// Not inline, because GCC 14 takes the two of an inlined pair for a mismatch.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  ++weft::test::allocation_count;
  if (weft::test::memory_is_out) throw std::bad_alloc();
  if (void* const memory = std::malloc(bytes != 0 ? bytes : 1)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

#endif
#endif
