// SPDX-License-Identifier: Apache-2.0
#include "shm_link/process.hpp"

#include "kit/tell.hpp"

namespace weft::test {

task<other_memory> exchange_memory(net::device& device, net::connection& peer) {
  auto memory = co_await zeroed(device.pool(), shared_bytes);
  auto open = co_await peer.expose(std::move(memory), mr::usage::read_src | mr::usage::write_dst);
  co_await tell(peer, device.pool(), open.remote());
  const auto theirs = co_await hear_region(peer);
  co_return other_memory{std::move(open), theirs};
}

task<> keep_busy(net::device& device, net::connection& peer, const mr::remote_slice& memory, progress& done) {
  const auto send = [&]() -> task<> {
    for (std::size_t size = 1;; size = size * 3 % 4001) {
      auto message = co_await device.allocate(size);
      co_await peer.send(std::move(message));
      done.step();
    }
  };
  const auto receive = [&]() -> task<> {
    for (;;) {
      static_cast<void>(co_await peer.recv_or_throw());
      done.step();
    }
  };
  const auto write = [&]() -> task<> {
    auto source = co_await device.allocate(shared_bytes);
    for (;;) {
      co_await peer.write(source, memory);
      done.step();
    }
  };
  const auto read = [&]() -> task<> {
    auto target = co_await device.allocate(shared_bytes);
    for (;;) {
      co_await peer.read(target, memory);
      done.step();
    }
  };
  const auto until_failure = [&](task<> work) -> task<> { done.failed(co_await failure_of(std::move(work))); };
  const auto all = [&](scope& tasks) -> task<> {
    tasks.spawn(until_failure(send()), "a sender");
    tasks.spawn(until_failure(receive()), "the receiver");
    for (int i = 0; i < 2; ++i) {
      tasks.spawn(until_failure(write()), "a writer");
      tasks.spawn(until_failure(read()), "a reader");
    }
    co_return;
  };
  co_await with_scope(on_failure::report, all);
}

namespace {

task<> echo(net::device& device, std::string address) {
  auto peer = co_await device.connect(address);
  while (auto message = co_await peer.recv()) co_await peer.send(std::move(message->payload));
}

task<> load(net::device& device, std::string address) {
  auto peer = co_await device.connect(address);
  const other_memory memory = co_await exchange_memory(device, peer);
  progress done;
  co_await keep_busy(device, peer, memory.theirs, done);
}

task<> say_numbers_and_die(net::device& device, std::string address, net::profile how, unsigned count) {
  auto peer = co_await device.connect(address, {.profile = how});
  for (unsigned i = 0; i < count; ++i) {
    auto message = co_await device.allocate(sizeof i);
    std::memcpy(message.data(), &i, sizeof i);
    co_await peer.send(std::move(message));
  }
  ::kill(::getpid(), SIGKILL);
}

task<> leave_a_child_and_die(net::device& device, std::string address) {
  auto peer = co_await device.connect(address);
  // It goes when the test closes the other end of what is its standard input.
  auto* const child = new other_process("linger", "until the end of the input");
  EXPECT_NE(child->id(), 0);
  auto message = co_await device.allocate(1);
  co_await peer.send(std::move(message));
  ::kill(::getpid(), SIGKILL);
}

}  // namespace

int run_role(std::string_view role, std::string address) {
  if (role == "linger") {
    for (char ignored = 0; ::read(STDIN_FILENO, &ignored, 1) > 0;) continue;
    return 0;
  }
  try {
    net::device device = net::device::open("shm");
    executor home;
    if (role == "echo") home.run(echo(device, std::move(address)));
    if (role == "load") home.run(load(device, std::move(address)));
    if (role == "say_numbers") {
      home.run(say_numbers_and_die(device, std::move(address), net::profile::native, native_numbers));
    }
    if (role == "say_many_numbers") {
      home.run(say_numbers_and_die(device, std::move(address), net::profile::interop, many_numbers));
    }
    if (role == "leave_a_child") home.run(leave_a_child_and_die(device, std::move(address)));
    return 0;
  } catch (const std::exception& why) {
    std::fprintf(stderr, "the peer, %s: %s\n", std::string(role).c_str(), why.what());
    return 1;
  }
}

}  // namespace weft::test
