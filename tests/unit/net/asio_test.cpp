// SPDX-License-Identifier: Apache-2.0
#include <weft/net/exposure.hpp>
#include <weft/weft.hpp>

#include <asio/experimental/awaitable_operators.hpp>

#include <future>

#include "asio_run.hpp"
#include "kit/other_thread.hpp"
#include "kit/tell.hpp"
#include "runtime/support.hpp"

namespace weft {
namespace {

using namespace std::chrono_literals;
using asio::awaitable;
using asio::use_awaitable;
using test::asio_tokens::as_tuple;

task<mr::buffer> text(mr::pool& pool, std::string words) {
  auto made = co_await pool.allocate(words.size());
  std::copy(words.begin(), words.end(), reinterpret_cast<char*>(made.bytes().data()));
  co_return made;
}
std::string text_of(const net::message& what) {
  return {reinterpret_cast<const char*>(what.bytes().data()), what.size()};
}

class net_asio_test : public testing::Test {
 protected:
  asio::io_context io_;
  net::device device_ = net::device::open("iwarp");
  asio_host host_{io_};

  // Echoes one peer's messages until it closes.
  awaitable<void> serve(net::listener& listener) {
    auto request = co_await host_.async(listener.next(), use_awaitable);
    auto peer = co_await host_.async(request->accept(), use_awaitable);
    for (;;) {
      auto got = co_await host_.async(peer->recv(), use_awaitable);
      if (!got) break;
      co_await host_.async(peer->send(std::move(got->payload)), use_awaitable);
    }
    co_await host_.async(peer->close(), use_awaitable);
  }
};

TEST_F(net_asio_test, stopping_a_receive_at_every_step_loses_no_message) {
  using namespace asio::experimental::awaitable_operators;
  test::run(io_, [&]() -> awaitable<void> {
    auto listener = co_await host_.async(device_.listen("127.0.0.1:0"), use_awaitable);
    asio::co_spawn(io_, serve(*listener), asio::detached);
    auto peer = co_await host_.async(device_.connect(std::string(listener->address())), use_awaitable);
    for (int sent = 0; sent < 200; ++sent) {
      const std::string words = std::to_string(sent);
      auto message = co_await host_.async(text(device_.pool(), words), use_awaitable);
      co_await host_.async(peer->send(std::move(message)), use_awaitable);
      std::optional<net::message> answer;
      for (int patience = sent; !answer; ++patience) {
        asio::steady_timer timer(io_, std::chrono::microseconds(patience));
        auto first =
            co_await (host_.async(peer->recv(), as_tuple(use_awaitable)) || timer.async_wait(as_tuple(use_awaitable)));
        if (first.index() == 0) answer = std::move(std::get<1>(std::get<0>(first)));
      }
      EXPECT_EQ(text_of(*answer), words);
    }
    co_await host_.async(peer->close(), use_awaitable);
  }());
}

TEST_F(net_asio_test, an_open_connection_serves_its_peer_while_nobody_waits_for_it) {
  // The peer runs by itself, on a thread of its own; it reads memory that is exposed here.
  std::promise<bool> read;
  const auto client = [&](const std::string& address) {
    auto device = net::device::open("iwarp");
    test::run([&]() -> task<> {
      auto peer = co_await device.connect(address);
      const auto remote = co_await test::hear_region(peer);
      auto local = co_await device.pool().allocate(5);
      co_await peer.read(local, remote.slice(0, 5));
      const auto bytes = local.bytes();
      read.set_value(std::string(reinterpret_cast<const char*>(bytes.data()), 5) == "words");
      co_await peer.close();
    }());
  };

  std::optional<test::other_thread> other;
  test::run(io_, [&]() -> awaitable<void> {
    auto listener = co_await host_.async(device_.listen("127.0.0.1:0"), use_awaitable);
    other.emplace([&, address = std::string(listener->address())] { client(address); });
    auto request = co_await host_.async(listener->next(), use_awaitable);
    auto peer = co_await host_.async(request->accept(), use_awaitable);
    auto memory = co_await host_.async(text(device_.pool(), "words"), use_awaitable);
    auto exposure = co_await host_.async(peer->expose(std::move(memory), mr::usage::read_src), use_awaitable);
    const auto packed = exposure.remote().pack();
    const std::string bytes(reinterpret_cast<const char*>(packed.data()), packed.size());
    auto hello = co_await host_.async(text(device_.pool(), bytes), use_awaitable);
    co_await host_.async(peer->send(std::move(hello)), use_awaitable);
    // From here on nothing of weft is awaited, until the other end has what it wanted.
    auto answer = read.get_future();
    while (answer.wait_for(0s) != std::future_status::ready) {
      asio::steady_timer timer(io_, 1ms);
      co_await timer.async_wait(use_awaitable);
    }
    EXPECT_TRUE(answer.get());
    EXPECT_FALSE(co_await host_.async(peer->recv(), use_awaitable));
  }());
  if (other) other->join();
}

TEST_F(net_asio_test, ends_in_order_with_connections_that_close_in_the_background) {
  std::optional<net::connection> kept;
  test::run(io_, [&]() -> awaitable<void> {
    auto listener = co_await host_.async(device_.listen("127.0.0.1:0"), use_awaitable);
    asio::co_spawn(io_, serve(*listener), asio::detached);
    auto peer = co_await host_.async(device_.connect(std::string(listener->address())), use_awaitable);
    auto message = co_await host_.async(text(device_.pool(), "hello"), use_awaitable);
    co_await host_.async(peer->send(std::move(message)), use_awaitable);
    kept = std::move(peer);
    kept.reset();  // closes by itself, and does not hold up this handler meanwhile
  }());
}

/// Knows on which thread it was last asked for something.
class watched_domain final : public mr::domain {
 public:
  watched_domain() : mr::domain("watched", {.usages = mr::known_usages}) {}

  std::thread::id registered_on;
  std::thread::id deregistered_on;

 private:
  mr::registration do_register(std::span<std::byte>, const mr::registration_options&) override {
    registered_on = std::this_thread::get_id();
    return {.local_key = 1, .remote_key = 1};
  }
  void do_deregister(mr::registration&) noexcept override { deregistered_on = std::this_thread::get_id(); }
};

TEST_F(net_asio_test, memory_that_grows_or_goes_in_a_handler_is_registered_and_let_go_by_a_worker) {
  const auto domain = std::make_shared<watched_domain>();
  const auto is_a_workers = [](std::thread::id thread) {
    return thread != std::thread::id() && thread != std::this_thread::get_id();
  };
  const auto in_a_handler = [&](auto what) {
    asio::post(io_, what);
    io_.restart();
    io_.run();
  };
  std::optional<mr::pool> source(std::in_place, domain, mr::pool_options{.max_bytes = 4 << 20, .huge_pages = false});
  in_a_handler([&] { EXPECT_FALSE(source->try_allocate(100)) << "there is no memory yet"; });
  EXPECT_TRUE(is_a_workers(domain->registered_on));
  EXPECT_TRUE(source->try_allocate(100));
  in_a_handler([&] { source.reset(); });
  EXPECT_TRUE(is_a_workers(std::exchange(domain->deregistered_on, {})));

  host_.async(domain->register_memory(std::vector<std::byte>(1 << 16), {.usage = mr::usage::send}),
              [](std::error_code failure, mr::region made) {
                EXPECT_FALSE(failure);
                const mr::region going = std::move(made);
              });
  io_.restart();
  io_.run();
  EXPECT_TRUE(is_a_workers(domain->deregistered_on));
}

TEST_F(net_asio_test, aborting_in_a_handler_ends_what_a_task_waits_for) {
  std::error_code ended;
  test::run(io_, [&]() -> awaitable<void> {
    auto listener = co_await host_.async(device_.listen("127.0.0.1:0"), use_awaitable);
    asio::co_spawn(io_, serve(*listener), [](const std::exception_ptr&) {});
    auto peer = co_await host_.async(device_.connect(std::string(listener->address())), use_awaitable);
    asio::steady_timer timer(io_, 1ms);
    timer.async_wait([&](std::error_code) { peer->abort(); });
    const auto [failure, message] = co_await host_.async(peer->recv(), as_tuple(use_awaitable));
    ended = failure;
  }());
  EXPECT_EQ(ended, make_error_code(errc::closed));
}

class net_asio_end : public testing::TestWithParam<const char*> {
 protected:
  // Accepts one peer and holds it until its receive has ended.
  static awaitable<void> hold(asio_host& host, net::listener& listener, net::connection peer) {
    static_cast<void>(listener);
    co_await host.async(peer.recv(), use_awaitable);
  }
  static awaitable<void> call(asio_host& host, net::device& device, std::string address) {
    auto peer = co_await host.async(device.connect(address), use_awaitable);
    co_await host.async(peer->recv(), use_awaitable);
  }
  // Stops the io_context while coroutines of Asio's hold a listener and both ends of a connection.
  static awaitable<void> serve(asio::io_context& io, asio_host& host, net::device& device) {
    auto listener = co_await host.async(device.listen("127.0.0.1:0"), use_awaitable);
    asio::co_spawn(io, call(host, device, std::string(listener->address())), asio::detached);
    auto peer = co_await host.async(listener->accept(), use_awaitable);
    asio::co_spawn(io, hold(host, *listener, *std::move(peer)), asio::detached);
    co_await asio::post(io, use_awaitable);
    io.stop();
    asio::steady_timer never(io, asio::steady_timer::time_point::max());
    co_await never.async_wait(use_awaitable);
  }
};
INSTANTIATE_TEST_SUITE_P(over, net_asio_end, testing::Values("iwarp", "shm"),
                         [](const auto& what) { return what.param; });

TEST_P(net_asio_end,
       of_a_stopped_io_context_in_the_natural_order_of_declaration_with_a_connection_and_a_listener_left) {
  auto device = net::device::open(GetParam());
  asio::io_context io{1};
  asio_host host(io);
  asio::co_spawn(io, serve(io, host, device), asio::detached);
  io.run();
  EXPECT_TRUE(io.stopped());
}

TEST_P(net_asio_end, of_the_io_context_before_its_host_with_a_connection_and_a_listener_left) {
  auto device = net::device::open(GetParam());
  auto io = std::make_unique<asio::io_context>(1);
  asio_host host(*io);
  asio::co_spawn(*io, serve(*io, host, device), asio::detached);
  io->run();
  EXPECT_TRUE(io->stopped());
  io.reset();
}

TEST_P(net_asio_end, of_a_host_whose_io_context_goes_on_ends_what_its_coroutines_hold) {
  auto device = net::device::open(GetParam());
  asio::io_context io{1};
  std::optional<asio_host> host(io);
  asio::co_spawn(io, serve(io, *host, device), asio::detached);
  io.run();
  host.reset();
  io.restart();
  EXPECT_GT(io.poll(), 0U) << "the coroutines learn of it, and let their connections go";
}

}  // namespace
}  // namespace weft
