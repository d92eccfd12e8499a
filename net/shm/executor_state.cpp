// SPDX-License-Identifier: Apache-2.0
#include <weft/net/link/checked.hpp>
#include <weft/net/shm/executor_state.hpp>
#include <weft/runtime/error.hpp>

#include <sys/epoll.h>

#include <array>
#include <cassert>
#include <cerrno>
#include <utility>

namespace weft::net::shm {
namespace {

// How many polls of an executor that does not sleep come between two looks at the sockets.
constexpr std::uint32_t polls_between_looks = 64;

descriptor make_epoll(system_calls& calls) {
  return {checked(calls.epoll_create1(EPOLL_CLOEXEC), "epoll_create1"), calls};
}

}  // namespace

executor_state& executor_state::of(const std::shared_ptr<software::domain>& home, system_calls& calls) {
  executor_core& running = *executor_core::current();
  // The domain's own address is no key here, because iwarp keeps its state under it.
  const void* const key = &home->keys();
  if (auto* found = running.find_attachment(key)) return static_cast<executor_state&>(*found);
  return static_cast<executor_state&>(running.attach(key, std::make_unique<executor_state>(home, calls)));
}

executor_state::executor_state(std::shared_ptr<software::domain> home, system_calls& calls)
    : home_(std::move(home)), reader_(home_->keys()), executor_(*executor_core::current()), calls_(calls) {}

executor_state::~executor_state() {
  assert(ends_ == 0);
  if (leaving_) executor_.withdraw(*this);
  if (polled_) executor_.remove_poller(*this);
}

void executor_state::add(polled_end& item, int socket) {
  if (!polled_) {
    if (!sockets_) sockets_ = make_epoll(calls_);
    executor_.add_poller(*this);
    polled_ = true;
  }
  ++ends_;  // so that leave() ends the polling if the socket cannot be watched
  epoll_event wanted{};
  wanted.events = EPOLLIN | EPOLLRDHUP | EPOLLET;
  wanted.data.ptr = &item;
  const int result = calls_.epoll_ctl(sockets_.fd(), EPOLL_CTL_ADD, socket, &wanted);
  if (result < 0) {
    leave();
    throw system_error(-result, "watch the socket of a connection");
  }
  link(item);
}

void executor_state::remove(polled_end& item, int socket) noexcept {
  if (item.state_ == polled_end::state::hot) unlink(item);
  if (cooling_ == &item) cooling_ = nullptr;
  item.state_ = polled_end::state::out;
  calls_.epoll_ctl(sockets_.fd(), EPOLL_CTL_DEL, socket, nullptr);
  leave();
}

void executor_state::leave() noexcept {
  if (--ends_ == 0 && !std::exchange(leaving_, true)) executor_.submit(*this);
}

// Stops the polling if there are no ends. Runs outside of any poll, so that the poller can be removed.
void executor_state::run_on_executor() noexcept {
  leaving_ = false;
  if (ends_ != 0 || !std::exchange(polled_, false)) return;
  executor_.remove_poller(*this);
  sockets_.close();
}

void executor_state::warm_up(polled_end& item) noexcept {
  link(item);  // mutant: leave an end that went cold
  if (!armed_) item.wake_up();
}

// Makes an end cold, unless its last poll finds work. The end announces that it sleeps before that poll, so that no
// work is missed.
void executor_state::cool(polled_end& item) noexcept {
  item.fall_asleep();  // mutant: leave an idle end
  cooling_ = &item;
  const bool is_quiet = item.poll() == 0;
  if (std::exchange(cooling_, nullptr) == nullptr) return;
  if (!is_quiet) return item.wake_up();
  unlink(item);
  item.state_ = polled_end::state::cold;
}

std::size_t executor_state::poll(std::size_t budget) noexcept {
  const bool woken = std::exchange(woken_, false);
  const bool look_is_due = ++polls_ % polls_between_looks == 0 || hears_more_;
  if (look_is_due && !woken && !armed_) hear();
  const std::size_t found = poll_hot(budget);
  if (!woken || found != 0) return found;
  hear();
  return poll_hot(budget);
}

std::size_t executor_state::poll_hot(std::size_t budget) noexcept {
  std::size_t found = 0;
  if (current_ == nullptr) current_ = first_;
  while (current_ != nullptr && found < budget) {
    polled_end& item = *current_;
    current_ = item.next_;
    const std::uint32_t quiet = std::exchange(item.quiet_, 0);
    const std::size_t did = item.poll();
    found += did;
    if (did != 0) continue;  // `item` may be gone
    item.quiet_ = quiet + 1;
    if (item.quiet_ >= patience_ && !armed_) cool(item);
  }
  return found;
}

void executor_state::arm() noexcept {
  if (hears_more_) hear();
  woken_ = false;
  armed_ = true;
  current_ = nullptr;  // so that the next poll() looks at all ends
  // mutant: let an executor sleep
  for (polled_end* each = first_; each != nullptr; each = each->next_) each->fall_asleep();
}

// What woke the executor lies in a ring as a rule. Its answer leaves first, and the sockets are looked at after that.
void executor_state::disarm() noexcept {
  armed_ = false;
  for (polled_end* each = first_; each != nullptr; each = each->next_) each->wake_up();
  woken_ = hears_more_ = true;
}

void executor_state::hear() noexcept {
  std::array<epoll_event, 64> events{};
  const int count = calls_.epoll_wait(sockets_.fd(), events.data(), static_cast<int>(events.size()), 0);
  hears_more_ = count == static_cast<int>(events.size());
  for (int i = 0; i < count; ++i) {
    const epoll_event& each = events[static_cast<std::size_t>(i)];
    polled_end& item = *static_cast<polled_end*>(each.data.ptr);
    heat(item);
    item.socket_ready((each.events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0);
  }
}

void executor_state::link(polled_end& item) noexcept {
  item.state_ = polled_end::state::hot;
  item.previous_ = nullptr;
  item.next_ = first_;
  if (first_ != nullptr) first_->previous_ = &item;
  first_ = &item;
}

void executor_state::unlink(polled_end& item) noexcept {
  if (current_ == &item) current_ = item.next_;
  (item.previous_ != nullptr ? item.previous_->next_ : first_) = item.next_;
  if (item.next_ != nullptr) item.next_->previous_ = item.previous_;
}

}  // namespace weft::net::shm
