// SPDX-License-Identifier: Apache-2.0
// A server of three lines, from sockets to weft, with the calls that each line replaces (docs/guide/from-tcp.md).
//
//   from_tcp bytes [tcp://]HOST:PORT [NUMBER]  serves streams; with a number, asks for that line
//   from_tcp messages HOST:PORT [NUMBER]       serves messages; with a number, asks, and reads the line by itself too
#include <weft/weft.hpp>

#include <iostream>
#include <string>

using namespace weft;

char rows[3][32] = {"anvil 3", "rope 12", "lamp 7"};

std::string_view line(std::string_view of) { return of >= "0" && of < "3" ? rows[of[0] - '0'] : "no such line"; }

// A request is one byte. An answer is its size, one byte, and the text.
task<> answer_bytes(net::stream peer) {
  char number = 0;
  while (co_await peer.read_some(std::as_writable_bytes(std::span(&number, 1))) != 0) {  // epoll_wait(), recv()
    const std::string_view text = line({&number, 1});
    const std::string reply = static_cast<char>(text.size()) + std::string(text);
    co_await peer.write(std::as_bytes(std::span(reply)));  // send(), and epoll_wait() after EAGAIN
  }
}

task<> ask_bytes(net::device& device, std::string address, char number) {
  auto server = co_await net::stream::connect(device, address);  // socket(), connect()
  co_await server.write(std::as_bytes(std::span(&number, 1)));   // send()
  unsigned char size = 0;
  co_await server.read(std::as_writable_bytes(std::span(&size, 1)));  // recv(MSG_WAITALL)
  std::string text(size, ' ');
  co_await server.read(std::as_writable_bytes(std::span(text)));  // recv(MSG_WAITALL)
  std::cout << text << "\n";
  co_await server.close();  // close()
}

task<> serve_bytes(net::device& device, std::string address) {
  auto listener = co_await net::stream_listener::listen(device, address);  // socket(), bind(), listen()
  std::cout << "listening on " << listener.address() << std::endl;
  auto accept_all = [&](scope& peers) -> task<> {
    while (auto peer = co_await listener.accept()) peers.spawn(answer_bytes(std::move(*peer)));  // accept()
  };
  co_await with_scope(on_failure::report, accept_all);  // close() of each peer whose task has ended
}

task<> answer(net::connection peer, const mr::region& table) {
  co_await peer.send_bytes(table.remote().pack());  // where the lines are, and a key to read them
  while (auto asked = co_await peer.recv()) co_await peer.send_bytes(line(asked->text()));  // recv(), send()
}

task<> serve(net::device& device, std::string address) {
  auto table = co_await device.register_memory(std::as_writable_bytes(std::span(rows)), {.usage = mr::usage::read_src});
  auto listener = co_await device.listen(address);  // socket(), bind(), listen()
  std::cout << "listening on " << listener.address() << std::endl;
  auto accept_all = [&](scope& peers) -> task<> {
    while (auto peer = co_await listener.accept()) peers.spawn(answer(std::move(*peer), table));  // accept()
  };
  co_await with_scope(on_failure::report, accept_all);
}

task<> ask(net::device& device, std::string address, char number) {
  auto server = co_await device.connect(address);  // socket(), connect()
  const auto hello = co_await server.recv_or_throw();
  co_await server.send_bytes({&number, 1});           // send()
  const auto told = co_await server.recv_or_throw();  // recv(), until all of it is there
  const auto table = mr::remote_region::unpack(hello.bytes());
  auto row = co_await device.allocate(sizeof rows[0]);
  co_await server.read(row, table.slice(static_cast<std::size_t>(number - '0') * row.size(), row.size()));
  const std::string text(reinterpret_cast<const char*>(row.data()), row.size());
  std::cout << "told: " << told.text() << "\nread: " << text.c_str() << "\n";
  co_await server.close();  // close()
}

int main(int argc, char** argv) try {
  const std::string how = argc == 3 || argc == 4 ? argv[1] : "";
  auto device = net::device::open("auto");
  executor ex;  // epoll_create()
  if (how == "bytes") {
    ex.run(argc == 3 ? serve_bytes(device, argv[2]) : ask_bytes(device, argv[2], argv[3][0]));
  } else if (how == "messages") {
    ex.run(argc == 3 ? serve(device, argv[2]) : ask(device, argv[2], argv[3][0]));
  } else {
    std::cerr << "usage: from_tcp bytes|messages ADDRESS [NUMBER]\n";
    return 2;
  }
} catch (const std::exception& failure) {
  std::cerr << "from_tcp: " << failure.what() << "\n";
  return 1;
}
