// SPDX-License-Identifier: Apache-2.0
// Step 8 of docs/guide. A publisher and its subscribers: `step8_publish serve [HOST:PORT]` sends each line of its
// standard input to all subscribers; `step8_publish listen HOST:PORT [MILLISECONDS]` prints the lines, and takes so
// long for each.
#include <weft/weft.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

using namespace weft;
using namespace std::chrono_literals;

// ---- what goes over the wire ----
//
//   welcome   8 bytes  the number of the next line
//   line      8 bytes  its number
//             text     0 to 1024 bytes, without a newline
//
// The publisher sends a welcome and then lines. A subscriber sends nothing. Numbers are in the byte order of x86-64.

constexpr std::size_t longest_line = 1024;

struct numbered_line {
  std::uint64_t number;
  std::string_view text;  // looks into the message
};

// Every byte is hostile until it has passed here.
numbered_line parse(const net::message& message) {
  numbered_line line{};
  const std::size_t head = sizeof line.number;
  if (message.size() < head || message.size() > head + longest_line) throw error(errc::malformed, "the size of a line");
  std::memcpy(&line.number, message.bytes().data(), head);
  line.text = message.text().substr(head);
  if (line.text.find('\n') != line.text.npos) throw error(errc::malformed, "the publisher sent a newline in a line");
  return line;
}

// ---- the publisher ----

constexpr std::size_t queue_length = 16;  // lines that wait for one subscriber
constexpr auto patience = 60s;            // a subscriber that takes no line for so long is disconnected

using line_queue = channel<mr::shared_buffer>;

struct topic {
  std::uint64_t next = 1;                           // the number of the next line
  std::vector<std::weak_ptr<line_queue>> queues{};  // the task of each subscriber owns its queue
};

// Queues a line for each subscriber. It waits for nobody and copies no bytes.
void publish(topic& lines, const mr::shared_buffer& line) {
  const auto is_gone = [&](const std::weak_ptr<line_queue>& each) {
    const auto queue = each.lock();
    return queue == nullptr || !queue->force_send(mr::shared_buffer(line));  // a full queue drops its oldest line
  };
  std::erase_if(lines.queues, is_gone);
}

// A worker thread reads, because a read that blocks would stop the executor.
task<> publish_input(net::device& device, topic& lines) {
  std::string text;
  const auto read_line = [&text] { return !std::getline(std::cin, text).fail(); };
  while (co_await offload(read_line)) {
    const std::size_t size = std::min(text.size(), longest_line);  // a longer line is cut
    auto memory = co_await device.allocate(sizeof lines.next + size);
    std::memcpy(memory.data(), &lines.next, sizeof lines.next);
    std::memcpy(memory.data() + sizeof lines.next, text.data(), size);
    publish(lines, mr::shared_buffer(std::move(memory)));
    ++lines.next;
  }
}

// Returns once the queue is closed and empty.
task<> send_lines(net::connection& peer, line_queue& queue, std::uint64_t first) {
  co_await peer.send_bytes(std::as_bytes(std::span(&first, 1)));
  while (const auto line = co_await queue.receive()) co_await with_timeout(patience, peer.send(*line));
}

// Returns once the subscriber has closed. Throws if it dies or sends something.
task<> watch(net::connection& peer) {
  const auto message = co_await peer.recv();  // outside of the condition: docs/runtime.md, "A trap of GCC 12.2"
  if (message) throw error(errc::malformed, std::string(peer.peer()) + " sent something to its publisher");
}

task<> serve_subscriber(net::connection peer, std::shared_ptr<line_queue> queue, std::uint64_t first) {
  auto sending = send_lines(peer, *queue, first);
  auto watching = watch(peer);
  const auto ended = co_await when_any(std::move(sending), std::move(watching));
  std::printf("%s: %s\n", std::string(peer.peer()).c_str(), ended.index == 0 ? "all sent" : "has left");
}

task<> accept_subscribers(net::listener& listener, scope& subscribers, topic& lines) {
  while (auto peer = co_await listener.accept()) {
    auto queue = std::make_shared<line_queue>(queue_length);
    lines.queues.push_back(queue);
    std::printf("%s subscribes at line %llu\n", std::string(peer->peer()).c_str(),
                static_cast<unsigned long long>(lines.next));
    subscribers.spawn(serve_subscriber(std::move(*peer), std::move(queue), lines.next), "subscriber");
  }
}

task<> serve(net::device& device, std::string address) {
  topic lines;
  auto listener = co_await device.listen(address);
  std::printf("listening on %s\n", std::string(listener.address()).c_str());
  auto until_end_of_input = [&](scope& subscribers) -> task<> {
    auto accepting = accept_subscribers(listener, subscribers, lines);
    auto publishing = publish_input(device, lines);
    co_await when_any(std::move(accepting), std::move(publishing));
    listener.close();
    for (const auto& each : lines.queues) {
      if (const auto queue = each.lock()) queue->close();  // what it holds is still sent
    }
  };
  co_await with_scope(on_failure::report, until_end_of_input, "topic");  // returns once the last subscriber has ended
}

// ---- a subscriber ----

task<> listen(net::device& device, std::string address, std::chrono::milliseconds pace) {
  auto publisher = co_await device.connect(address);
  const auto welcome = co_await with_timeout(5s, publisher.recv_or_throw());
  if (welcome.size() != sizeof(numbered_line::number)) throw error(errc::malformed, "the peer is not a publisher");
  std::uint64_t next = parse(welcome).number;
  while (const auto message = co_await publisher.recv()) {
    const auto line = parse(*message);
    if (line.number < next) throw error(errc::malformed, "the publisher sent a line out of order");
    if (line.number > next) std::printf("(missed %llu)\n", static_cast<unsigned long long>(line.number - next));
    std::printf("%.*s\n", static_cast<int>(line.text.size()), line.text.data());
    next = line.number + 1;
    co_await sleep_for(pace);
  }
  std::puts("(the end)");
}

int main(int argc, char** argv) try {
  const std::string verb = argc > 1 ? argv[1] : "";
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const char* fabric = std::getenv("FABRIC");
  auto device = net::device::open(fabric != nullptr ? fabric : "auto");
  executor ex;
  if (verb == "serve" && argc <= 3) {
    ex.run(serve(device, argc == 3 ? argv[2] : "127.0.0.1:7471"));
  } else if (verb == "listen" && (argc == 3 || argc == 4)) {
    ex.run(listen(device, argv[2], std::chrono::milliseconds(argc == 4 ? std::atoi(argv[3]) : 0)));
  } else {
    std::fputs("usage: step8_publish serve [HOST:PORT]\n       step8_publish listen HOST:PORT [MILLISECONDS]\n",
               stderr);
    return 2;
  }
  return 0;
} catch (const std::exception& failure) {
  std::fprintf(stderr, "step8_publish: %s\n", failure.what());
  return 1;
}
