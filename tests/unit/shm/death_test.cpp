// SPDX-License-Identifier: Apache-2.0
// One side of a set-up is killed at each of its steps: the other ends in time, and nothing is left.
#include <csignal>

#include "shm/support.hpp"

namespace weft::test {
namespace {

/// Kills this process at the n-th of the calls that a set-up makes, instead of making it.
class mortal : public system_calls {
 public:
  explicit mortal(int life) noexcept : left_(life) {}

  int socket(int domain, int type, int protocol) noexcept override {
    live();
    return system_calls::socket(domain, type, protocol);
  }
  int bind(int fd, const sockaddr* address, unsigned length) noexcept override {
    live();
    return system_calls::bind(fd, address, length);
  }
  int listen(int fd, int backlog) noexcept override {
    live();
    return system_calls::listen(fd, backlog);
  }
  int connect(int fd, const sockaddr* address, unsigned length) noexcept override {
    live();
    return system_calls::connect(fd, address, length);
  }
  int getsockopt(int fd, int level, int name, void* value, unsigned* length) noexcept override {
    live();
    return system_calls::getsockopt(fd, level, name, value, length);
  }
  int memfd_create(const char* name, unsigned flags) noexcept override {
    live();
    return system_calls::memfd_create(name, flags);
  }
  int fcntl(int fd, int command, int argument) noexcept override {
    live();
    return system_calls::fcntl(fd, command, argument);
  }
  ssize_t sendmsg(int fd, const msghdr* message, int flags) noexcept override {
    live();
    const ssize_t result = system_calls::sendmsg(fd, message, flags);
    live();
    return result;
  }
  ssize_t recvmsg(int fd, msghdr* message, int flags) noexcept override {
    live();
    const ssize_t result = system_calls::recvmsg(fd, message, flags);
    live();
    return result;
  }
  void* mmap_file(std::size_t length, int protection, int flags, int fd, off_t offset, int* failure) noexcept override {
    live();
    return system_calls::mmap_file(length, protection, flags, fd, offset, failure);
  }

 private:
  void live() noexcept {
    if (--left_ == 0) ::kill(::getpid(), SIGKILL);
  }
  int left_;
};

class shm_deaths : public shm_test {
 protected:
  /// A child that does this on an executor of its own, and dies at the n-th call. It outlives the calls it makes.
  template <class Body>
  static pid_t start(int life, Body body) {
    const pid_t child = ::fork();
    if (child != 0) return child;
    mortal calls(life);
    executor there({.system_calls = &calls});
    const auto transport = shm::open_transport();
    int result = 0;
    try {
      there.run(body(*transport));
    } catch (const std::exception&) {
      result = 1;
    }
    ::_exit(result);
  }
  /// Waits for it without blocking; whether it was killed. One that was not has done all that it was to do.
  static task<bool> was_killed(pid_t child) {
    int status = 0;
    while (::waitpid(child, &status, WNOHANG) == 0) co_await sleep_for(1ms);
    EXPECT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
    co_return WIFSIGNALED(status);
  }
  /// The next peer that has not been killed since it asked.
  task<std::unique_ptr<net::link>> accept_living(net::link_listener& from) {
    for (;;) {
      try {
        co_return co_await accept(from);
      } catch (const error& why) {
        if (why.code() != errc::peer_vanished) throw;
      }
    }
  }
  static net::set_up_options in_the_child() {
    net::set_up_options made;
    made.deadline = clock::steady().now() + 10s;
    return made;
  }
};

TEST_F(shm_deaths, of_a_connector_at_any_step_end_its_set_up_and_nothing_else) {
  run([&]() -> task<> {
    auto listener = co_await listen();
    co_await expect_service(*listener);
    const std::string address(listener->address());
    const std::size_t open = open_descriptors();
    const std::size_t names = names_of_weft();
    int life = 1;
    for (bool killed = true; killed; ++life) {
      const pid_t child = start(life, [address](net::transport& by) -> task<> {
        const net::set_up_options options = in_the_child();
        static_cast<void>(co_await by.connect(address, options));
      });
      const auto serve = [&]() -> task<> {
        for (;;) {
          const auto failure = co_await failure_of(accept(*listener));
          if (failure && failure->code() == errc::canceled) throw *failure;
          EXPECT_TRUE(!failure || failure->code() == errc::peer_vanished) << failure->what();
        }
      };
      const auto both = co_await when_any(was_killed(child), code_of(serve()));
      killed = std::get<0>(both.values).value_or(false);
      static_cast<void>(co_await when_all(connect(address), accept_living(*listener)));
      co_await settle();
      EXPECT_EQ(open_descriptors(), open) << "killed at call " << life;
      if (HasFailure()) co_return;
    }
    EXPECT_GT(life, 10);
    EXPECT_EQ(names_of_weft(), names);
  });
}

TEST_F(shm_deaths, of_an_acceptor_at_any_step_end_set_ups_with_it_and_leave_its_path_to_the_next) {
  const scratch_directory directory;
  run([&]() -> task<> {
    {
      auto listener = co_await listen(directory.address());
      co_await expect_service(*listener);
    }
    co_await settle();
    const std::size_t open = open_descriptors();
    int life = 1;
    for (bool killed = true; killed; ++life) {
      const pid_t child = start(life, [&](net::transport& by) -> task<> {
        net::set_up_statistics own;
        const net::listen_options how_to{.set_up_timeout = 5s, .max_half_open = 16, .counts = &own};
        auto listener = co_await by.listen(directory.address(), how_to);
        auto request = co_await listener->next();
        const net::set_up_options options = in_the_child();
        static_cast<void>(co_await request->accept(options));
      });
      bool dead = false;
      const auto ask = [&]() -> task<> {
        while (!dead) {
          const auto failure = co_await failure_of(connect(directory.address()));
          if (!failure) co_return;
          if (failure->code() != errc::peer_vanished) {
            EXPECT_TRUE(failed_with(failure, std::errc::connection_refused));
          }
          co_await sleep_for(1ms);
        }
      };
      const auto wait = [&]() -> task<> {
        killed = co_await was_killed(child);
        dead = true;
      };
      co_await when_all(wait(), ask());
      EXPECT_EQ(open_descriptors(), open) << "killed at call " << life;
      if (HasFailure()) co_return;
    }
    EXPECT_GT(life, 10);
    auto listener = co_await listen(directory.address());
    co_await expect_service(*listener);
  });
}

}  // namespace
}  // namespace weft::test
