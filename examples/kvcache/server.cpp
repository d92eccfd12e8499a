// SPDX-License-Identifier: Apache-2.0
#include "server.hpp"

#include <weft/weft.hpp>

#include <fmt/core.h>

#include <cstdio>
#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "cache_memory.hpp"
#include "contents.hpp"
#include "page_cache.hpp"
#include "session.hpp"
#include <common/network.hpp>

namespace kvcache {
namespace {

/// What has become of a sequence that pages were lent for.
struct verdict {
  enum class kind : std::uint8_t { accepted, evicted, refused, dropped } what = kind::accepted;
  std::string why{};
};

double seconds_of(std::chrono::milliseconds time) { return std::chrono::duration<double>(time).count(); }

class server {
 public:
  server(const serve_options& options, page_cache& cache) : options_(options), cache_(cache) {}

  weft::task<> accept_all(weft::net::listener& listener);

 private:
  weft::task<> converse(weft::net::connection pusher);
  weft::task<> answer(session& link, const want_message& want);
  [[nodiscard]] std::string reason_against(const shape& wanted) const;
  weft::task<std::optional<page_run>> take_pages(std::uint32_t count);
  weft::task<> receive_sequence(session& link, const want_message& want, const page_run& pages);
  weft::task<verdict> hear_layers(session& link, const want_message& want, const weft::net::exposure& loan,
                                  weft::time_point until);
  weft::task<> tell(session& link, const want_message& want, const verdict& found);
  void report(const session& link, const want_message& want, const verdict& found) const;

  const serve_options& options_;
  page_cache& cache_;
  std::uint64_t loans_ = 0;
};

weft::task<> server::accept_all(weft::net::listener& listener) {
  const auto spawn_each = [&](weft::scope& pushers) -> weft::task<> {
    const auto how = connection_options(options_.patience);
    while (auto pusher = co_await listener.accept(how)) {
      std::string peer(pusher->peer());
      pushers.spawn(common::attend("kvcache", std::move(peer), converse(std::move(*pusher))));
    }
  };
  co_await weft::with_scope(weft::on_failure::report, spawn_each);
}

weft::task<> server::converse(weft::net::connection pusher) {
  session link(std::move(pusher));
  while (const auto said = co_await link.receive_if_any()) {
    const auto* const want = std::get_if<want_message>(&*said);
    if (want == nullptr) throw unexpected(*said, "'want'");
    const std::string context = fmt::format("sequence {}", want->sequence);
    try {
      co_await answer(link, *want);
    } catch (const weft::error& why) {
      throw why.within(context);
    }
  }
}

std::string server::reason_against(const shape& wanted) const {
  if (wanted.layers != cache_.layers() || wanted.block_bytes != cache_.block_bytes())
    return fmt::format("{} layers of {} bytes: this cache has {} of {}", wanted.layers, wanted.block_bytes,
                       cache_.layers(), cache_.block_bytes());
  if (wanted.pages > cache_.pages()) return fmt::format("{} pages: this cache has {}", wanted.pages, cache_.pages());
  return {};
}

/// Empty if there are none in time.
weft::task<std::optional<page_run>> server::take_pages(std::uint32_t count) {
  auto pages = co_await weft::as_result(weft::with_timeout(options_.wait_for_pages, cache_.take(count)));
  if (pages) co_return std::move(*pages);
  if (pages.error().code() != weft::errc::timed_out) throw pages.error();
  co_return std::nullopt;
}

weft::task<> server::answer(session& link, const want_message& want) {
  std::string against = reason_against(want.of);
  if (against.empty()) {
    const auto pages = co_await take_pages(want.of.pages);
    if (pages) {
      co_await receive_sequence(link, want, *pages);
      co_return;
    }
    against = fmt::format("no {} pages have become free in time", want.of.pages);
  }
  common::complain("kvcache", link.peer_name(), fmt::format("sequence {} is refused: {}", want.sequence, against));
  const message refusal = refused_message{.sequence = want.sequence, .text = against};
  co_await weft::with_timeout(options_.patience, link.send(pack(refusal)));
}

/// Whether each block of the sequence is what it has to be. Others have their turn meanwhile.
weft::task<verdict> check_layers(const want_message& want, const page_run& pages) {
  constexpr std::size_t bytes_of_turn = std::size_t{1} << 20;
  std::size_t checked = 0;
  for (std::uint32_t layer = 0; layer != want.of.layers; ++layer) {
    for (std::uint32_t page = 0; page != pages.count(); ++page) {
      const block_name name{.sequence = want.sequence, .layer = layer, .page = page};
      if (const auto wrong = co_await pages.first_wrong(name)) {
        co_return verdict{verdict::kind::refused,
                          fmt::format("layer {} of page {} is wrong at byte {}", layer, page, *wrong)};
      }
      checked += want.of.block_bytes;
      if (checked < bytes_of_turn) continue;
      checked = 0;
      co_await weft::yield();
    }
  }
  co_return verdict{};
}

// Until the key is revoked for certain the peer may write to the pages. So they go back to the cache only then,
// whatever has happened, and their contents are checked only then: the peer could change what was checked before.
weft::task<> server::receive_sequence(session& link, const want_message& want, const page_run& pages) {
  const auto until = weft::executor::current()->now() + options_.lend_for;
  auto loan = co_await link.peer().expose(pages.slice(), weft::mr::usage::write_dst, {.until = until});
  verdict found;
  std::exception_ptr trouble;
  try {
    found = co_await hear_layers(link, want, loan, until);
  } catch (...) {
    trouble = std::current_exception();
  }
  static_cast<void>(co_await loan.revoke());
  if (trouble) std::rethrow_exception(trouble);
  if (found.what == verdict::kind::accepted) found = co_await check_layers(want, pages);
  report(link, want, found);
  co_await tell(link, want, found);
}

/// Waits until the pusher has announced each layer.
weft::task<verdict> server::hear_layers(session& link, const want_message& want, const weft::net::exposure& loan,
                                        weft::time_point until) {
  const bool evict = options_.evict_every != 0 && ++loans_ % options_.evict_every == 0;
  const message lent = lent_message{.sequence = want.sequence, .time = options_.lend_for, .pages = loan.remote()};
  co_await weft::with_deadline(until, link.send(pack(lent)));
  for (std::uint32_t layer = 0; layer != want.of.layers; ++layer) {
    if (evict && layer == want.of.layers / 2)
      co_return verdict{verdict::kind::evicted,
                        fmt::format("layer {} of {}: the pages are needed for something else", layer, want.of.layers)};
    const auto said = co_await weft::as_result(weft::with_deadline(until, link.receive()));
    if (!said && said.error().code() == weft::errc::timed_out)
      co_return verdict{verdict::kind::evicted, fmt::format("layer {} of {}: the pages were lent for {} s", layer,
                                                            want.of.layers, seconds_of(options_.lend_for))};
    if (!said) throw said.error();
    const auto* const dropped = std::get_if<dropped_message>(&*said);
    if (dropped != nullptr && dropped->sequence == want.sequence) co_return verdict{verdict::kind::dropped};
    const auto* const come = std::get_if<layer_message>(&*said);
    if (come == nullptr || come->number != layer) throw unexpected(*said, "the next layer");
  }
  co_return verdict{};
}

void server::report(const session& link, const want_message& want, const verdict& found) const {
  const std::string peer = link.peer_name();
  switch (found.what) {
    case verdict::kind::accepted:
      fmt::print("{}: sequence {}: accepted {} pages of {} layers, {} bytes\n", peer, want.sequence, want.of.pages,
                 want.of.layers, want.of.bytes());
      return;
    case verdict::kind::evicted:
      fmt::print("{}: sequence {}: evicted at {}\n", peer, want.sequence, found.why);
      return;
    case verdict::kind::dropped:
      fmt::print("{}: sequence {}: dropped by its pusher\n", peer, want.sequence);
      return;
    case verdict::kind::refused:
      common::complain("kvcache", peer, fmt::format("sequence {} is refused: {}", want.sequence, found.why));
      return;
  }
}

/// Waits until the pusher says nothing more about a sequence. Layers that were on their way are no matter.
weft::task<> hear_dropped(session& link, const want_message& want) {
  for (std::uint32_t layers = 0; layers <= want.of.layers; ++layers) {
    const message said = co_await link.receive();
    const auto* const dropped = std::get_if<dropped_message>(&said);
    if (dropped != nullptr && dropped->sequence == want.sequence) co_return;
    if (!std::holds_alternative<layer_message>(said)) throw unexpected(said, "'dropped'");
  }
  throw weft::error(weft::errc::protocol_error, "the peer goes on with a sequence that was taken back");
}

weft::task<> server::tell(session& link, const want_message& want, const verdict& found) {
  if (found.what == verdict::kind::dropped) co_return;
  message answer = accepted_message{.sequence = want.sequence};
  if (found.what == verdict::kind::evicted) answer = evicted_message{.sequence = want.sequence, .text = found.why};
  if (found.what == verdict::kind::refused) answer = refused_message{.sequence = want.sequence, .text = found.why};
  co_await weft::with_timeout(options_.patience, link.send(pack(answer)));
  if (found.what != verdict::kind::accepted) co_await weft::with_timeout(options_.patience, hear_dropped(link, want));
}

}  // namespace

weft::task<> serve(weft::net::device& device, weft::net::listener& listener, serve_options options) {
  const shape whole{.pages = options.pages, .layers = options.layers, .block_bytes = options.block_bytes};
  auto memory = co_await cache_memory::make(device, options.gpu, whole.bytes(), whole.block_bytes,
                                            {.usage = weft::mr::usage::bind_window});
  page_cache cache(std::move(memory), options.pages, options.layers, options.block_bytes);
  const std::string where = options.gpu != nullptr ? fmt::format(" in {}", options.gpu->name()) : "";
  fmt::print("serving {} pages of {} layers of {} bytes{} on {} over {}, {}\n", options.pages, options.layers,
             options.block_bytes, where, listener.address(), device.name(), weft::executor::current()->driver());
  std::fflush(stdout);
  server here(options, cache);
  co_await here.accept_all(listener);
}

}  // namespace kvcache
