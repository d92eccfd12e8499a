// SPDX-License-Identifier: Apache-2.0
// asio_faces CASE COUNT: 64 bytes there and back so many times, both ends in one thread, through each face that weft
// has and as sockets of Asio's. A round is four operations: a send and a receive at either end. `./dev bench runtime`
// runs it under callgrind and strace with two counts.
#include <weft/net/asio.hpp>
#include <weft/weft.hpp>

#include <asio.hpp>
#include <asio/experimental/awaitable_operators.hpp>

#include "count_allocations.hpp"

namespace {

using namespace weft;
using asio::awaitable;
using asio::use_awaitable;

constexpr std::size_t request_bytes = 64;
using room = std::array<std::byte, 2 * request_bytes>;

executor_options sleeping() {
  executor_options options;
  options.policy = poll_policy::sleep;  // spinning would count the time, not the work
  return options;
}

void expect(bool truth) {
  if (!truth) throw std::runtime_error("an operation failed");
}

// ---- two ends, of either kind ----

struct connections {
  std::optional<net::connection> a;
  std::optional<net::connection> b;
  mr::buffer first;  // what goes there and back
};
task<connections> connect(net::device& device) {
  auto listener = co_await device.listen("127.0.0.1:0");
  const auto accept = [&]() -> task<net::connection> {
    auto request = co_await listener.next();
    co_return co_await request->accept();
  };
  auto both = co_await when_all(device.connect(std::string(listener.address())), accept());
  connections made;
  made.a.emplace(std::move(std::get<0>(both)));
  made.b.emplace(std::move(std::get<1>(both)));
  made.first = co_await device.pool().allocate(request_bytes);
  co_return made;
}

struct streams {
  net::stream a;
  net::stream b;
};
task<streams> connect_streams(net::device& device) {
  auto over = co_await connect(device);
  streams made{.a = net::stream(std::move(*over.a)), .b = net::stream(std::move(*over.b))};
  co_return made;
}

// ---- tasks ----

task<> echo(net::connection& peer, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) {
    auto message = co_await peer.recv();
    co_await peer.send(std::move(message->payload));
  }
}
task<> ask(net::connection& peer, mr::buffer memory, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) {
    co_await peer.send(std::move(memory));
    auto message = co_await peer.recv();
    memory = std::move(message->payload);
  }
}
task<> exchange_messages(net::device& device, std::uint64_t count) {
  auto both = co_await connect(device);
  co_await when_all(echo(*both.b, count), ask(*both.a, std::move(both.first), count));
}

task<> echo_bytes(net::stream& peer, std::uint64_t count) {
  room bytes{};
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::size_t got = co_await peer.read_some(std::span<std::byte>(bytes));
    co_await peer.write_some(std::span<const std::byte>(bytes).first(got));
  }
}
task<> ask_bytes(net::stream& peer, std::uint64_t count) {
  room bytes{};
  for (std::uint64_t i = 0; i < count; ++i) {
    co_await peer.write_some(std::span<const std::byte>(bytes).first(request_bytes));
    co_await peer.read_some(std::span<std::byte>(bytes));
  }
}
task<> exchange_bytes(net::device& device, std::uint64_t count) {
  auto both = co_await connect_streams(device);
  co_await when_all(echo_bytes(both.b, count), ask_bytes(both.a, count));
}

template <task<> (*Work)(net::device&, std::uint64_t)>
void on_executor(std::uint64_t count) {
  auto device = net::device::open("iwarp");
  executor home(sleeping());
  home.run(Work(device, count));
}

template <task<> (*Work)(net::device&, std::uint64_t)>
void on_host(std::uint64_t count) {
  auto device = net::device::open("iwarp");
  asio::io_context io(1);
  asio_host host(io, sleeping());
  host.spawn(Work(device, count), [](const std::exception_ptr& failure) { expect(failure == nullptr); });
  io.run();
}

// ---- asio::awaitable ----

using namespace asio::experimental::awaitable_operators;

awaitable<void> echo_there(asio_host& host, net::connection& peer, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) {
    auto message = co_await host.async(peer.recv(), use_awaitable);
    co_await host.async(peer.send(std::move(message->payload)), use_awaitable);
  }
}
awaitable<void> ask_there(asio_host& host, net::connection& peer, mr::buffer memory, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) {
    co_await host.async(peer.send(std::move(memory)), use_awaitable);
    auto message = co_await host.async(peer.recv(), use_awaitable);
    memory = std::move(message->payload);
  }
}
awaitable<void> messages_there(asio_host& host, net::device& device, std::uint64_t count) {
  auto both = co_await host.async(connect(device), use_awaitable);
  co_await (echo_there(host, *both.b, count) && ask_there(host, *both.a, std::move(both.first), count));
}

// For sockets and streams.
template <class Stream>
awaitable<void> echo_bytes_there(Stream& peer, std::uint64_t count) {
  room bytes{};
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::size_t got = co_await peer.async_read_some(asio::buffer(bytes), use_awaitable);
    co_await peer.async_write_some(asio::buffer(bytes, got), use_awaitable);
  }
}
template <class Stream>
awaitable<void> ask_bytes_there(Stream& peer, std::uint64_t count) {
  room bytes{};
  for (std::uint64_t i = 0; i < count; ++i) {
    co_await peer.async_write_some(asio::buffer(bytes, request_bytes), use_awaitable);
    co_await peer.async_read_some(asio::buffer(bytes), use_awaitable);
  }
}
template <class Stream>
awaitable<void> bytes_there(Stream& a, Stream& b, std::uint64_t count) {
  co_await (echo_bytes_there(b, count) && ask_bytes_there(a, count));
}
awaitable<void> streams_there(asio_host& host, net::device& device, std::uint64_t count) {
  auto both = co_await host.async(connect_streams(device), use_awaitable);
  co_await bytes_there(both.a, both.b, count);
}

template <awaitable<void> (*Work)(asio_host&, net::device&, std::uint64_t)>
void awaitable_on_host(std::uint64_t count) {
  auto device = net::device::open("iwarp");
  asio::io_context io(1);
  asio_host host(io, sleeping());
  asio::co_spawn(io, Work(host, device, count), [](const std::exception_ptr& failure) { expect(failure == nullptr); });
  io.run();
}

// ---- callbacks ----

class messages_by_callbacks {
 public:
  messages_by_callbacks(asio_host& host, connections both, std::uint64_t count) noexcept
      : host_(host), both_(std::move(both)), left_(count) {}

  void start() {
    listen();
    ask(std::move(both_.first));
  }

 private:
  void ask(mr::buffer memory) {
    host_.async(both_.a->send(std::move(memory)), [this](std::error_code failure) {
      expect(!failure);
      host_.async(both_.a->recv(), [this](std::error_code end, std::optional<net::message> message) {
        expect(!end && message);
        if (--left_ != 0) return ask(std::move(message->payload));
        both_.a.reset();  // open connections are work
      });
    });
  }
  void listen() {
    host_.async(both_.b->recv(), [this](std::error_code failure, std::optional<net::message> message) {
      expect(!failure);
      if (!message) return both_.b.reset();
      host_.async(both_.b->send(std::move(message->payload)), [this](std::error_code end) {
        expect(!end);
        listen();
      });
    });
  }

  asio_host& host_;
  connections both_;
  std::uint64_t left_;
};

// For sockets and streams.
template <class Stream>
class bytes_by_callbacks {
 public:
  bytes_by_callbacks(Stream& a, Stream& b, std::uint64_t count) noexcept : a_(a), b_(b), left_(count) {}

  void start() {
    listen();
    ask();
  }

 private:
  void ask() {
    a_.async_write_some(asio::buffer(asked_, request_bytes), [this](std::error_code failure, std::size_t) {
      expect(!failure);
      a_.async_read_some(asio::buffer(asked_), [this](std::error_code end, std::size_t) {
        expect(!end);
        if (--left_ != 0) return ask();
        a_.close();
      });
    });
  }
  void listen() {
    b_.async_read_some(asio::buffer(heard_), [this](std::error_code failure, std::size_t got) {
      if (failure) {
        b_.close();
        return;
      }
      b_.async_write_some(asio::buffer(heard_, got), [this](std::error_code end, std::size_t) {
        expect(!end);
        listen();
      });
    });
  }

  Stream& a_;
  Stream& b_;
  std::uint64_t left_;
  room asked_{};
  room heard_{};
};

void message_callbacks(std::uint64_t count) {
  auto device = net::device::open("iwarp");
  asio::io_context io(1);
  asio_host host(io, sleeping());
  std::optional<messages_by_callbacks> exchange;
  host.async(connect(device), [&](std::error_code failure, connections both) {
    expect(!failure);
    exchange.emplace(host, std::move(both), count);
    exchange->start();
  });
  io.run();
}

void stream_callbacks(std::uint64_t count) {
  auto device = net::device::open("iwarp");
  asio::io_context io(1);
  asio_host host(io, sleeping());
  streams both;
  std::optional<bytes_by_callbacks<net::stream>> exchange;
  host.async(connect_streams(device), [&](std::error_code failure, streams made) {
    expect(!failure);
    both = std::move(made);
    exchange.emplace(both.a, both.b, count);
    exchange->start();
  });
  io.run();
}

// ---- sockets ----

struct sockets {
  explicit sockets(asio::io_context& io) : a(io), b(io) {
    asio::ip::tcp::acceptor acceptor(io, {asio::ip::address_v4::loopback(), 0});
    a.connect(acceptor.local_endpoint());
    acceptor.accept(b);
    a.set_option(asio::ip::tcp::no_delay(true));
    b.set_option(asio::ip::tcp::no_delay(true));
  }
  asio::ip::tcp::socket a;
  asio::ip::tcp::socket b;
};

void socket_awaitables(std::uint64_t count) {
  asio::io_context io(1);
  sockets both(io);
  asio::co_spawn(io, bytes_there(both.a, both.b, count),
                 [](const std::exception_ptr& failure) { expect(failure == nullptr); });
  io.run();
}

void socket_callbacks(std::uint64_t count) {
  asio::io_context io(1);
  sockets both(io);
  bytes_by_callbacks<asio::ip::tcp::socket> exchange(both.a, both.b, count);
  exchange.start();
  io.run();
}

}  // namespace

int main(int argc, char** argv) {
  const bench::cases known = {
      {"faces_message_task", on_executor<exchange_messages>},
      {"faces_message_hosted", on_host<exchange_messages>},
      {"faces_message_awaitable", awaitable_on_host<messages_there>},
      {"faces_message_callback", message_callbacks},
      {"faces_stream_task", on_executor<exchange_bytes>},
      {"faces_stream_hosted", on_host<exchange_bytes>},
      {"faces_stream_awaitable", awaitable_on_host<streams_there>},
      {"faces_stream_callback", stream_callbacks},
      {"faces_socket_awaitable", socket_awaitables},
      {"faces_socket_callback", socket_callbacks},
  };
  return bench::run_case(argc, argv, known);
}
