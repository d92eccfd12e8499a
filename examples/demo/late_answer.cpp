// SPDX-License-Identifier: Apache-2.0
// An answer that comes too late: `late_answer reuse|retire [DEVICE]`. A client lends a server memory for its answer,
// waits 50 ms, gives up, and writes its next order somewhere. Then the answer comes. What is left of the order is
// printed.
//
//   reuse    the order is written where the answer was to go, and the key stays valid: what verbs leave to the program
//   retire   the lent memory is retired, and the order is written into another buffer
#include <weft/weft.hpp>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

using namespace weft;
using namespace std::chrono_literals;

namespace {

constexpr std::string_view order = "order 4712: 3 anvils, to be sent to Aachen";
constexpr std::string_view answer = "answer 4711: sold out ";

void write_text(std::string_view text, std::span<std::byte> where) {
  std::memcpy(where.data(), text.data(), text.size());
}
std::string text_in(std::span<const std::byte> where) {
  return {reinterpret_cast<const char*>(where.data()), order.size()};
}

// Writes its answer where the request says, once the client has given up.
task<> answer_late(net::device& device, net::connection peer, event& given_up) {
  const auto request = co_await peer.recv_or_throw();
  const auto target = mr::remote_region::unpack(request.bytes());
  co_await given_up.wait();
  auto words = co_await device.allocate(answer.size());
  write_text(answer, words.bytes());
  co_await peer.write(std::move(words), target.slice(0, answer.size()));
  co_await peer.send_bytes("written");
  while (co_await peer.recv()) continue;
}

task<> ask(net::connection& server, mr::remote_region where) {
  const auto request = where.pack();
  co_await server.send_bytes(request);
  const auto reply = co_await as_result(with_timeout(50ms, server.recv_or_throw()));
  if (reply || reply.error().code() != errc::timed_out) throw error(errc::protocol_error, "the answer came in time");
}

// Lets the server answer, and waits for its word that it has.
task<> hear_late(net::connection& server, event& given_up) {
  given_up.set();
  co_await server.recv_or_throw();
}

task<std::string> reuse(net::device& device, net::connection& server, event& given_up) {
  std::array<std::byte, 64> memory{};
  auto region = co_await device.register_memory(std::span(memory), {.usage = mr::usage::write_dst});
  co_await ask(server, region.remote());
  write_text(order, memory);
  co_await hear_late(server, given_up);
  co_await server.close();
  co_await region.release();
  co_return text_in(memory);
}

task<std::string> retire(net::device& device, net::connection& server, event& given_up) {
  auto room = co_await device.allocate(64);
  auto lent = co_await server.expose(std::move(room), mr::usage::write_dst);  // a key for this server alone
  co_await ask(server, lent.remote());                                        // times out
  lent.retire();  // the server may still write: nobody else gets this memory, and the connection goes on
  auto memory = co_await device.allocate(64);
  write_text(order, memory.bytes());
  co_await hear_late(server, given_up);  // now it has written
  server.confirm_retired(lent);          // and the memory returns to the pool
  co_await server.close();
  co_return text_in(memory.bytes());
}

task<> run(net::device& device, bool retires) {
  auto listener = co_await device.listen("127.0.0.1:0");
  event given_up;
  const auto serve = [&]() -> task<> {
    auto peer = co_await listener.accept();
    co_await answer_late(device, std::move(*peer), given_up);
  };
  const auto order_more = [&]() -> task<std::string> {
    auto server = co_await device.connect(std::string(listener.address()));
    auto left = retires ? retire(device, server, given_up) : reuse(device, server, given_up);
    co_return co_await std::move(left);
  };
  const auto [left, nothing] = co_await when_all(order_more(), serve());
  std::printf("%s\n", left.c_str());
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string_view how = argc > 1 ? argv[1] : "";
  if (argc > 3 || (how != "reuse" && how != "retire")) {
    std::fputs("usage: late_answer reuse|retire [DEVICE]\n", stderr);
    return 2;
  }
  auto device = net::device::open(argc == 3 ? argv[2] : "auto");
  executor ex;
  ex.run(run(device, how == "retire"));
  return 0;
} catch (const std::exception& failure) {
  std::fprintf(stderr, "late_answer: %s\n", failure.what());
  return 1;
}
