// SPDX-License-Identifier: Apache-2.0
// echo_epoll: an echo server by hand on epoll, which `./dev bench echo` takes for the least that one costs. Prints its
// port.
#include <sys/epoll.h>
#include <unistd.h>

#include <cstdlib>

#include "kit/standard.hpp"
#include "loopback.hpp"

namespace {

void expect(bool is_true, const char* what) {
  if (is_true) return;
  std::fprintf(stderr, "echo_epoll: %s: %s\n", what, std::strerror(errno));
  std::exit(1);
}

struct connection {
  int fd;
  std::array<std::byte, 4096> bytes;
  std::size_t begin;  // what is received and not sent yet
  std::size_t end;
};

void accept_all(int listener, int poller) {
  for (;;) {
    const int fd = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0 && errno == EAGAIN) return;
    expect(fd >= 0, "accept4");
    expect(weft::bench::send_at_once(fd), "TCP_NODELAY");
    auto* const self = new connection;
    self->fd = fd;
    self->begin = self->end = 0;
    epoll_event wanted{.events = EPOLLIN | EPOLLOUT | EPOLLET, .data = {.ptr = self}};
    expect(::epoll_ctl(poller, EPOLL_CTL_ADD, fd, &wanted) == 0, "epoll_ctl");
  }
}

// False at the end of the connection. A receive that is short has emptied the socket: the next bytes are another edge.
bool serve(connection& self) {
  for (;;) {
    while (self.begin != self.end) {
      const ssize_t sent = ::send(self.fd, self.bytes.data() + self.begin, self.end - self.begin, MSG_NOSIGNAL);
      if (sent < 0) return errno == EAGAIN;
      self.begin += static_cast<std::size_t>(sent);
    }
    if (self.end != 0 && self.end < self.bytes.size()) {
      self.begin = self.end = 0;
      return true;
    }
    const ssize_t got = ::recv(self.fd, self.bytes.data(), self.bytes.size(), 0);
    if (got < 0) {
      self.begin = self.end = 0;
      return errno == EAGAIN;
    }
    if (got == 0) return false;
    self.begin = 0;
    self.end = static_cast<std::size_t>(got);
  }
}

}  // namespace

int main() {
  const int poller = ::epoll_create1(EPOLL_CLOEXEC);
  expect(poller >= 0, "epoll_create1");
  const int listener = weft::bench::listen_anywhere(SOCK_NONBLOCK);
  expect(listener >= 0, "listen");
  epoll_event wanted{.events = EPOLLIN | EPOLLET, .data = {.ptr = nullptr}};
  expect(::epoll_ctl(poller, EPOLL_CTL_ADD, listener, &wanted) == 0, "epoll_ctl");
  for (;;) {
    std::array<epoll_event, 128> events;
    const int ready = ::epoll_wait(poller, events.data(), static_cast<int>(events.size()), -1);
    expect(ready >= 0 || errno == EINTR, "epoll_wait");
    for (int i = 0; i < ready; ++i) {
      auto* const self = static_cast<connection*>(events[static_cast<std::size_t>(i)].data.ptr);
      if (self == nullptr) {
        accept_all(listener, poller);
      } else if (!serve(*self)) {
        ::close(self->fd);
        delete self;
      }
    }
  }
}
