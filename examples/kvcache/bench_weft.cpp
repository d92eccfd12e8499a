// SPDX-License-Identifier: Apache-2.0
#include <weft/weft.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string>
#include <string_view>
#include <system_error>

#include "bench_plan.hpp"
#include "cache_memory.hpp"
#include "session.hpp"
#include "two_processes.hpp"

namespace kvcache {
namespace {

using weft::mr::memory_device;
using weft::mr::usage;

constexpr auto patience = std::chrono::seconds(60);

/// Brings one text from a process to its fork, or the other way.
class text_pipe {
 public:
  text_pipe() {
    if (::pipe2(ends_.data(), O_CLOEXEC) != 0) throw std::system_error(errno, std::system_category(), "pipe");
  }
  text_pipe(const text_pipe&) = delete;
  text_pipe& operator=(const text_pipe&) = delete;
  ~text_pipe() {
    ::close(ends_[0]);
    close_writing();
  }

  void tell(std::string_view text) {
    if (::write(ends_[1], text.data(), text.size()) != static_cast<ssize_t>(text.size()))
      throw std::system_error(errno, std::system_category(), "write to a pipe");
    close_writing();
  }
  /// Throws common::failure if the other process has ended before it told anything.
  [[nodiscard]] std::string hear() {
    close_writing();
    std::array<char, 256> text{};
    const ssize_t got = ::read(ends_[0], text.data(), text.size());
    if (got <= 0) throw failure("the receiving process has failed");
    return {text.data(), static_cast<std::size_t>(got)};
  }

 private:
  void close_writing() noexcept {
    if (ends_[1] >= 0) ::close(std::exchange(ends_[1], -1));
  }

  std::array<int, 2> ends_{};
};

/// The next message, which has to be of that kind.
template <class Message>
weft::task<Message> expect(session& link, const char* name) {
  message said = co_await link.receive();
  if (auto* const wanted = std::get_if<Message>(&said)) co_return std::move(*wanted);
  throw unexpected(said, name);
}

weft::task<> check_blocks(const bench_options& options, std::uint32_t round, cache_memory& target) {
  for (const auto& pair : pairs_of_round(options, round)) {
    const auto byte = co_await target.first_wrong(pair.remote * options.block_bytes, name_of_block(pair.local));
    if (byte) throw wrong_block(pair, *byte);
  }
}

weft::task<> receive_rounds(weft::net::device& device, memory_device* gpu, const bench_options& options,
                            text_pipe& address) {
  auto listener = co_await device.listen(options.address);
  address.tell(listener.address());
  auto peer = co_await listener.accept(connection_options(patience));
  session link(std::move(*peer));

  const auto target = co_await cache_memory::make(device, gpu, bytes_of(options), options.block_bytes,
                                                  {.usage = usage::write_dst, .direct = options.direct});
  const message lent = lent_message{.sequence = 0, .time = longest_loan, .pages = target->region().remote()};
  co_await link.send(pack(lent));
  for (std::uint32_t round = 0; round <= options.rounds; ++round) {
    const auto done = co_await expect<layer_message>(link, "'layer'");
    if (done.number != round) throw failure("a round came out of turn");
    if (round == 0) co_await check_blocks(options, round, *target);
    const message accepted = accepted_message{.sequence = round};
    co_await link.send(pack(accepted));
  }
  static_cast<void>(co_await link.receive_if_any());
}

weft::task<double> send_round(session& link, const weft::net::block_list& blocks, std::uint32_t round) {
  const auto start = bench_clock::now();
  co_await link.push(blocks, round);
  static_cast<void>(co_await expect<accepted_message>(link, "'accepted'"));
  const std::chrono::duration<double> time = bench_clock::now() - start;
  co_return time.count();
}

weft::task<std::vector<double>> send_rounds(weft::net::device& device, memory_device* gpu, const bench_options& options,
                                            std::string address) {
  auto peer = co_await device.connect(address, connection_options(patience));
  session link(std::move(peer));
  const auto source =
      co_await cache_memory::make(device, gpu, bytes_of(options), options.block_bytes, {.usage = usage::write_src});
  for (std::uint32_t i = 0; i != options.blocks; ++i) {
    co_await source->fill(i * options.block_bytes, name_of_block(i));
  }
  const auto lent = co_await expect<lent_message>(link, "'lent'");
  std::vector<double> seconds;
  for (std::uint32_t round = 0; round <= options.rounds; ++round) {
    const auto pairs = pairs_of_round(options, round);
    const weft::net::block_list blocks{
        .local = source->region().slice(), .remote = lent.pages, .block_bytes = options.block_bytes, .blocks = pairs};
    const double time = co_await send_round(link, blocks, round);
    if (round != 0) seconds.push_back(time);
  }
  co_await link.peer().close();
  co_return seconds;
}

}  // namespace

std::vector<double> run_weft(const bench_options& options) {
  text_pipe go;
  text_pipe address;
  const auto receive = [&] {
    static_cast<void>(go.hear());
    const auto gpu = open_gpu(options.memory);
    auto device = weft::net::device::open(options.device);
    weft::executor loop;
    loop.run(receive_rounds(device, gpu.get(), options, address));
  };
  other_process receiver(receive);
  // Behind the fork, because the CUDA driver does not survive one; and here first, so that what is wrong with it is
  // said once.
  const auto gpu = open_gpu(options.memory);
  auto device = weft::net::device::open(options.device);
  go.tell("go");
  weft::executor loop;
  auto seconds = loop.run(send_rounds(device, gpu.get(), options, address.hear()));
  receiver.join();
  return seconds;
}

}  // namespace kvcache
