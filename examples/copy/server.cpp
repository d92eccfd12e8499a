// SPDX-License-Identifier: Apache-2.0
#include "server.hpp"

#include <fmt/core.h>

#include <cstdio>
#include <optional>
#include <string_view>
#include <utility>

#include "failure.hpp"
#include "file.hpp"
#include "receive_file.hpp"
#include "send_file.hpp"
#include "session.hpp"
#include <common/network.hpp>

namespace copy {
namespace {

using clock = std::chrono::steady_clock;

void report(const session& link, std::string_view verb, const std::string& name, std::uint64_t size,
            clock::time_point start, const digest& sha) {
  fmt::print("{}: {} {}: {}, sha256 {}\n", link.peer_name(), verb, name, format_speed(size, clock::now() - start),
             to_string(sha));
}

class server {
 public:
  server(weft::net::device& device, const serve_options& options, const directory& place)
      : home_(device, options.patience, options.resume_within), place_(place), sync_(options.sync) {}

  weft::task<> accept_all(weft::net::listener& listener);

 private:
  weft::task<> converse(weft::net::connection client);
  weft::task<> answer(session& link, const message& said);
  weft::task<> take(session& link, const put_message& wanted);
  weft::task<> give(session& link, const get_message& wanted);

  station home_;
  const directory& place_;
  bool sync_;
};

weft::task<> server::accept_all(weft::net::listener& listener) {
  const auto spawn_each = [&](weft::scope& clients) -> weft::task<> {
    const auto how = connection_options(home_.patience, home_.resume_within);
    while (auto client = co_await listener.accept(how)) {
      std::string peer(client->peer());
      clients.spawn(common::attend("copy", std::move(peer), converse(std::move(*client))));
    }
  };
  co_await weft::with_scope(weft::on_failure::report, spawn_each);
}

weft::task<> server::converse(weft::net::connection client) {
  session link(home_, std::move(client));
  while (const auto said = co_await link.receive_if_any()) {
    std::string trouble;
    try {
      co_await answer(link, *said);
    } catch (const failure& why) {
      trouble = why.what();
    }
    if (!trouble.empty()) common::complain("copy", link.peer_name(), trouble);
  }
}

weft::task<> server::answer(session& link, const message& said) {
  const auto* const put = std::get_if<put_message>(&said);
  const auto* const get = std::get_if<get_message>(&said);
  if (put == nullptr && get == nullptr) throw unexpected(said, "'put' or 'get'");
  const std::string context = fmt::format("{} {}", name_of(said), printable(put != nullptr ? put->name : get->name));
  try {
    if (put != nullptr) {
      co_await take(link, *put);
    } else {
      co_await give(link, *get);
    }
  } catch (const failure& why) {
    throw failure(context + ": " + why.what());
  } catch (const weft::error& why) {
    throw why.within(context);
  }
}

// Does `work` on a worker thread. If that fails, the client hears of it.
template <class Work>
weft::task<> try_or_refuse(session& link, const Work& work) {
  std::string trouble;
  try {
    co_await weft::offload(work);
  } catch (const failure& why) {
    trouble = why.what();
  }
  if (trouble.empty()) co_return;
  const message refusal = failed_message{.text = trouble};
  co_await link.send(pack(refusal));
  throw failure(trouble);
}

weft::task<> server::take(session& link, const put_message& wanted) {
  const auto start = clock::now();
  std::optional<part_file> target;
  const auto create = [&] {
    check_plain_name(wanted.name);
    target.emplace(place_, wanted.name);
  };
  co_await try_or_refuse(link, create);
  const digest sha = co_await receive_file(link, *std::move(target), wanted.size, sync_, nullptr);
  report(link, "put", wanted.name, wanted.size, start, sha);
}

weft::task<> server::give(session& link, const get_message& wanted) {
  const auto start = clock::now();
  std::optional<source_file> source;
  const auto open = [&] {
    check_plain_name(wanted.name);
    source.emplace(place_, wanted.name);
  };
  co_await try_or_refuse(link, open);
  const message offer = offer_message{.size = source->size()};
  co_await link.send(pack(offer));
  const digest sha = co_await send_file(link, *source, nullptr);
  report(link, "get", wanted.name, source->size(), start, sha);
}

}  // namespace

weft::task<> serve(weft::net::device& device, weft::net::listener& listener, serve_options options) {
  const directory place(options.directory);
  fmt::print("serving {} on {} over {}, {}\n", place.path(), listener.address(), device.name(),
             weft::executor::current()->driver());
  std::fflush(stdout);
  server here(device, options, place);
  co_await here.accept_all(listener);
}

}  // namespace copy
