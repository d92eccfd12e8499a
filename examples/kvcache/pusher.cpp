// SPDX-License-Identifier: Apache-2.0
#include "pusher.hpp"

#include <weft/weft.hpp>

#include <fmt/core.h>

#include <cstdio>
#include <memory>
#include <utility>

#include "cache_memory.hpp"
#include "destination.hpp"
#include "prefill.hpp"
#include <common/printable.hpp>

namespace kvcache {
namespace {

using clock = std::chrono::steady_clock;

class pusher {
 public:
  pusher(weft::net::device& device, const push_options& options, std::unique_ptr<cache_memory> cache)
      : sequences_(options.sequences), model_(std::move(cache), options.of) {
    for (const std::string& address : options.addresses)
      receivers_.push_back(std::make_unique<destination>(device, address, options.patience));
  }

  weft::task<std::size_t> run();

 private:
  weft::task<> push_sequence(std::uint64_t sequence);
  weft::task<> push_to(std::unique_ptr<destination>& receiver);
  void count(const destination& receiver, const outcome& found);

  std::uint64_t sequences_;
  prefill model_;
  std::vector<std::unique_ptr<destination>> receivers_;  // null: lost
  std::size_t accepted_ = 0;
  std::size_t evicted_ = 0;
  std::size_t refused_ = 0;
  std::size_t lost_ = 0;
};

void pusher::count(const destination& receiver, const outcome& found) {
  switch (found.what) {
    case outcome::kind::accepted:
      ++accepted_;
      return;
    case outcome::kind::evicted:
      ++evicted_;
      fmt::print("{}: sequence {} was evicted: {}\n", receiver.address(), model_.sequence(),
                 common::printable(found.why));
      return;
    case outcome::kind::refused:
      ++refused_;
      fmt::print(stderr, "kvcache: {}: sequence {} was refused: {}\n", receiver.address(), model_.sequence(),
                 common::printable(found.why));
      return;
  }
}

// One receiver's trouble ends here: the others have the sequence all the same.
weft::task<> pusher::push_to(std::unique_ptr<destination>& receiver) {
  std::string trouble;
  try {
    const outcome found = co_await receiver->push(model_);
    count(*receiver, found);
    co_return;
  } catch (const weft::error& why) {
    if (why.code() == weft::errc::canceled) throw;
    trouble = why.what();
  }
  ++lost_;
  fmt::print(stderr, "kvcache: {}: sequence {}: {}\n", receiver->address(), model_.sequence(),
             common::printable(trouble));
  receiver.reset();
}

weft::task<> pusher::push_sequence(std::uint64_t sequence) {
  model_.begin(sequence);
  const auto start = clock::now();
  const std::size_t accepted_before = accepted_;
  const auto all = [&](weft::scope& tasks) -> weft::task<> {
    for (auto& receiver : receivers_) {
      if (receiver) tasks.spawn(push_to(receiver));
    }
    co_await model_.compute();
  };
  co_await weft::with_scope(weft::on_failure::stop_siblings, all);
  const std::chrono::duration<double> time = clock::now() - start;
  const auto copies = accepted_ - accepted_before;
  const double bytes = static_cast<double>(model_.of().bytes()) * static_cast<double>(copies);
  fmt::print("sequence {}: {} pages of {} layers, {} bytes, to {} of {}: {:.2f} GB/s\n", sequence, model_.of().pages,
             model_.of().layers, model_.of().bytes(), copies, receivers_.size(), bytes / time.count() / 1e9);
}

weft::task<std::size_t> pusher::run() {
  for (std::uint64_t sequence = 1; sequence <= sequences_ && lost_ != receivers_.size(); ++sequence)
    co_await push_sequence(sequence);
  for (auto& receiver : receivers_) {
    if (receiver) co_await receiver->close();
  }
  fmt::print("{} accepted, {} evicted, {} refused\n", accepted_, evicted_, refused_);
  co_return refused_ + lost_;
}

}  // namespace

weft::task<std::size_t> push(weft::net::device& device, push_options options) {
  auto cache = co_await cache_memory::make(device, options.gpu, prefill::cache_bytes(options.of),
                                           options.of.block_bytes, {.usage = weft::mr::usage::write_src});
  pusher all(device, options, std::move(cache));
  co_return co_await all.run();
}

}  // namespace kvcache
