// SPDX-License-Identifier: Apache-2.0
// What kvcache makes of peers that speak its protocol and do not mean it well. Both sides run on one executor.
#include <weft/weft.hpp>

#include "beside.hpp"
#include "cuda/stand_in_control.hpp"
#include "kit/failure.hpp"
#include "kit/scripted_test.hpp"
#include "kit/test.hpp"
#include <kvcache/cache_memory.hpp>
#include <kvcache/contents.hpp>
#include <kvcache/destination.hpp>
#include <kvcache/page_cache.hpp>
#include <kvcache/prefill.hpp>
#include <kvcache/protocol.hpp>
#include <kvcache/pusher.hpp>
#include <kvcache/server.hpp>
#include <kvcache/session.hpp>

namespace kvcache {
namespace {

using weft::task;

constexpr auto patience = std::chrono::seconds(60);
constexpr shape small{.pages = 8, .layers = 2, .block_bytes = 4096};

/// The next message, which is to be of that kind.
template <class Message>
task<Message> hear(session& link) {
  message said = co_await link.receive();
  if (auto* const wanted = std::get_if<Message>(&said)) co_return std::move(*wanted);
  ADD_FAILURE() << "the peer said '" << name_of(said) << "'";
  throw unexpected(said, "what the test expects");
}

task<> say(session& link, message what) { co_await link.send(pack(what)); }

task<message> ask_for(session& link, std::uint64_t sequence, shape of = small) {
  co_await say(link, want_message{.sequence = sequence, .of = of});
  co_return co_await link.receive();
}

task<weft::mr::remote_region> borrow(session& link, std::uint64_t sequence, shape of = small) {
  co_await say(link, want_message{.sequence = sequence, .of = of});
  const auto lent = co_await hear<lent_message>(link);
  EXPECT_EQ(lent.sequence, sequence);
  EXPECT_EQ(lent.pages.size(), of.bytes());
  co_return lent.pages;
}

/// That the peer hangs up, and not in order.
task<> expect_hang_up(session& link) {
  const auto next = [&] { return link.receive_if_any(); };
  EXPECT_FALSE(co_await weft::test::goes_in_order(next));
}

class kvcache_peers : public testing::Test {
 protected:
  kvcache_peers() : device_(weft::net::device::open("iwarp")) {}

  static serve_options serving(std::uint32_t evict_every = 0) {
    serve_options options{.pages = small.pages,
                          .layers = small.layers,
                          .block_bytes = small.block_bytes,
                          .patience = patience,
                          .wait_for_pages = patience,
                          .lend_for = patience,
                          .evict_every = evict_every};
    return options;
  }
  static serve_options with_short_loans(serve_options options) {
    options.lend_for = std::chrono::milliseconds(500);
    return options;
  }
  static serve_options without_patience(serve_options options) {
    options.wait_for_pages = std::chrono::milliseconds(1);
    return options;
  }

  /// Runs a server, and `client(address)` against it.
  template <class Client>
  void with_server(serve_options options, const Client& client) {
    const auto serving = [&](weft::net::listener& listener) -> task<> { return serve(device_, listener, options); };
    loop_.run(weft::test::beside(device_, serving, client));
  }

  /// The same with a session to it.
  template <class Client>
  void with_session(serve_options options, const Client& client) {
    with_server(options, [&](std::string address) -> task<> {
      session link = co_await connect(address);
      co_await client(link);
    });
  }

  /// Pushes a sequence to `server(session&)`, and yields the words with which that fails.
  template <class Server>
  std::string push_against(const Server& server, weft::mr::memory_device* gpu = nullptr) {
    std::string words;
    const auto serving = [&](weft::net::listener& listener) -> task<> { return serve_one(listener, server); };
    const auto pushing = [&](std::string address) -> task<> {
      words = co_await weft::test::words_of<std::exception>(push_one(address, gpu));
    };
    loop_.run(weft::test::beside(device_, serving, pushing));
    return words;
  }

  /// Pushes six sequences to two receivers, and yields how many of these have failed.
  std::size_t failures_of_push(weft::mr::memory_device* gpu, serve_options first_serving,
                               serve_options second_serving) {
    std::size_t failures = 7;
    const auto both = [&](weft::scope& tasks) -> task<> {
      auto first = co_await device_.listen("127.0.0.1:0");
      auto second = co_await device_.listen("127.0.0.1:0");
      tasks.spawn(serve(device_, first, first_serving));
      tasks.spawn(serve(device_, second, second_serving));
      const push_options options{.addresses = {std::string(first.address()), std::string(second.address())},
                                 .sequences = 6,
                                 .of = small,
                                 .patience = patience,
                                 .gpu = gpu};
      failures = co_await push(device_, options);
      tasks.request_stop();
    };
    loop_.run(weft::with_scope(weft::on_failure::stop_siblings, both));
    return failures;
  }

  task<session> connect(std::string address) {
    auto peer = co_await device_.connect(address, connection_options(patience));
    co_return session(std::move(peer));
  }

  template <class Server>
  task<> serve_one(weft::net::listener& listener, const Server& server) {
    auto peer = co_await listener.accept(connection_options(patience));
    session link(std::move(*peer));
    co_await server(link);
    static_cast<void>(co_await weft::as_result(link.receive_if_any()));
  }

  task<> push_one(std::string address, weft::mr::memory_device* gpu) {
    auto memory = co_await cache_memory::make(device_, gpu, prefill::cache_bytes(small), small.block_bytes,
                                              {.usage = weft::mr::usage::write_src});
    prefill model(std::move(memory), small);
    model.begin(1);
    co_await model.compute();
    destination receiver(device_, address, patience);
    static_cast<void>(co_await receiver.push(model));
  }

  /// Writes a layer of a sequence as one should, or with the contents of another one.
  task<> push_layer(session& link, const weft::mr::remote_region& pages, std::uint64_t sequence, std::uint32_t layer) {
    auto memory = co_await device_.allocate(small.pages * small.block_bytes);
    std::vector<weft::net::block_pair> pairs;
    for (std::uint32_t page = 0; page != small.pages; ++page) {
      fill_block(memory.bytes().subspan(page * small.block_bytes, small.block_bytes), {sequence, layer, page});
      pairs.push_back({.local = page, .remote = page});
    }
    const std::uint64_t before = layer * small.block_bytes;
    const weft::net::block_list blocks{.local = memory.slice(),
                                       .remote = pages.slice(before, pages.size() - before),
                                       .block_bytes = small.block_bytes,
                                       .remote_stride = small.page_bytes(),
                                       .blocks = pairs};
    co_await link.push(blocks, layer);
  }

  task<weft::mr::remote_region> push_properly(session& link, std::uint64_t sequence) {
    const auto pages = co_await borrow(link, sequence);
    co_await push_layers(link, pages, sequence);
    co_return pages;
  }
  /// All of them, which are accepted.
  task<> push_layers(session& link, const weft::mr::remote_region& pages, std::uint64_t sequence) {
    for (std::uint32_t layer = 0; layer != small.layers; ++layer) co_await push_layer(link, pages, sequence, layer);
    EXPECT_EQ((co_await hear<accepted_message>(link)).sequence, sequence);
  }

  weft::net::device device_;
  weft::executor loop_;
};

// Against a server with these options, by its address or over a session to it.
#define TEST_F_SERVED(fixture, name, options) \
  TEST_F_SCRIPT(fixture, name, (std::string address), with_server(options, WEFT_SCRIPT))
#define TEST_F_IN_SESSION(fixture, name, options) \
  TEST_F_SCRIPT(fixture, name, (session & link), with_session(options, WEFT_SCRIPT))

TEST_F_IN_SESSION(kvcache_peers, sequences_are_accepted_one_after_the_other_over_one_connection, serving()) {
  for (std::uint64_t sequence = 1; sequence != 4; ++sequence) co_await push_properly(link, sequence);
}

TEST_F_SERVED(kvcache_peers, another_version_is_turned_away, serving()) {
  auto how = connection_options(patience);
  how.private_data = std::as_bytes(std::span("weft-kvcache 0", 14));
  auto peer = co_await device_.connect(address, how);
  EXPECT_FALSE(co_await weft::as_result(peer.recv()));
  session link = co_await connect(address);
  co_await push_properly(link, 1);
}

TEST_F_IN_SESSION(kvcache_peers, a_block_with_the_contents_of_another_sequence_is_found, serving()) {
  const auto pages = co_await borrow(link, 1);
  co_await push_layer(link, pages, 1, 0);
  co_await push_layer(link, pages, 2, 1);
  EXPECT_EQ((co_await hear<refused_message>(link)).text, "layer 1 of page 0 is wrong at byte 0");
  co_await say(link, dropped_message{.sequence = 1});
  co_await push_properly(link, 3);
}

// It was right when it was announced.
TEST_F_IN_SESSION(kvcache_peers, a_layer_that_is_changed_behind_its_announcement_is_found, serving()) {
  const auto pages = co_await borrow(link, 1);
  co_await push_layer(link, pages, 1, 0);
  auto change = co_await device_.allocate(8);
  std::ranges::fill(change.bytes(), std::byte{0x5a});
  co_await link.peer().write(std::move(change), pages.slice(0, 8));
  co_await push_layer(link, pages, 1, 1);
  EXPECT_EQ((co_await hear<refused_message>(link)).text, "layer 0 of page 0 is wrong at byte 0");
  co_await say(link, dropped_message{.sequence = 1});
  co_await push_properly(link, 2);
}

TEST_F_IN_SESSION(kvcache_peers, a_layer_that_was_only_announced_is_found, serving()) {
  co_await push_properly(link, 1);
  const auto pages = co_await borrow(link, 2);
  co_await say(link, layer_message{.number = 0});
  co_await push_layer(link, pages, 2, 1);
  static_cast<void>(co_await hear<refused_message>(link));
}

TEST_F_SERVED(kvcache_peers, a_layer_out_of_turn_ends_the_connection_and_no_other, serving()) {
  for (const std::uint32_t number : {1u, 2u, UINT32_MAX}) {
    session link = co_await connect(address);
    co_await borrow(link, 1);
    co_await say(link, layer_message{.number = number});
    co_await expect_hang_up(link);
  }
  session link = co_await connect(address);
  co_await push_properly(link, 2);  // it takes all pages: they have come back
}

TEST_F_SERVED(kvcache_peers, messages_in_the_wrong_place_end_the_connection, serving()) {
  const std::vector<message> wrong{layer_message{}, accepted_message{}, dropped_message{.sequence = 1},
                                   refused_message{}, evicted_message{}};
  for (const message& each : wrong) {
    session link = co_await connect(address);
    co_await say(link, each);
    co_await expect_hang_up(link);
  }
  for (const message& each : {message(accepted_message{}), message(dropped_message{.sequence = 2}),
                              message(want_message{.sequence = 1, .of = small})}) {
    session link = co_await connect(address);
    co_await borrow(link, 1);
    co_await say(link, each);
    co_await expect_hang_up(link);
  }
}

TEST_F_SERVED(kvcache_peers, a_message_that_makes_no_sense_ends_the_connection, serving()) {
  session link = co_await connect(address);
  const std::vector<std::byte> noise(17, std::byte{0xff});
  co_await link.peer().send_bytes(noise);
  co_await expect_hang_up(link);
  session next = co_await connect(address);
  co_await push_properly(next, 1);
}

TEST_F_IN_SESSION(kvcache_peers, a_sequence_that_its_pusher_drops_gives_the_pages_back, serving()) {
  const auto pages = co_await borrow(link, 1);
  co_await push_layer(link, pages, 1, 0);
  co_await say(link, dropped_message{.sequence = 1});
  co_await push_properly(link, 2);
}

TEST_F_IN_SESSION(kvcache_peers, an_evicted_sequence_is_never_accepted_and_the_connection_goes_on_with_the_next_one,
                  serving(2)) {
  co_await push_properly(link, 1);
  const auto pages = co_await borrow(link, 2);
  co_await push_layer(link, pages, 2, 0);
  const auto evicted = co_await hear<evicted_message>(link);
  EXPECT_EQ(evicted.sequence, 2u);
  EXPECT_NE(evicted.text.find("layer 1 of 2"), std::string::npos) << evicted.text;
  co_await say(link, layer_message{.number = 1});  // on its way, as it were
  co_await say(link, dropped_message{.sequence = 2});
  co_await push_properly(link, 3);
}

TEST_F_IN_SESSION(kvcache_peers, an_evicted_sequence_that_goes_on_and_on_ends_the_connection, serving(1)) {
  const auto pages = co_await borrow(link, 1);
  co_await push_layer(link, pages, 1, 0);
  static_cast<void>(co_await hear<evicted_message>(link));
  for (int i = 0; i != 4; ++i) static_cast<void>(co_await weft::as_result(say(link, layer_message{.number = 1})));
  co_await expect_hang_up(link);
}

TEST_F_IN_SESSION(kvcache_peers, pages_that_nobody_writes_to_are_taken_back_at_their_deadline,
                  with_short_loans(serving())) {
  co_await borrow(link, 1);
  const auto evicted = co_await hear<evicted_message>(link);
  EXPECT_NE(evicted.text.find("were lent for"), std::string::npos) << evicted.text;
  co_await say(link, dropped_message{.sequence = 1});
  const message said = co_await ask_for(link, 2);
  EXPECT_TRUE(std::holds_alternative<lent_message>(said)) << name_of(said);
}

TEST_F_SERVED(kvcache_peers, pages_that_were_accepted_are_no_longer_open, serving()) {
  session first = co_await connect(address);
  const auto old = co_await push_properly(first, 1);
  session second = co_await connect(address);
  const auto pages = co_await borrow(second, 2);  // the same ones
  co_await push_layer(second, pages, 2, 0);
  static_cast<void>(co_await weft::as_result(push_layer(first, old, 1, 0)));
  co_await expect_hang_up(first);
  co_await push_layer(second, pages, 2, 1);
  static_cast<void>(co_await hear<accepted_message>(second));
}

TEST_F_SERVED(kvcache_peers, the_pages_of_another_pusher_are_not_open, serving()) {
  constexpr shape half{.pages = small.pages / 2, .layers = small.layers, .block_bytes = small.block_bytes};
  session first = co_await connect(address);
  session second = co_await connect(address);
  const auto theirs = co_await borrow(first, 1, half);
  const auto ours = co_await borrow(second, 2, half);
  EXPECT_NE(theirs.key(), ours.key());
  auto memory = co_await device_.allocate(64);
  const auto stolen = co_await weft::as_result(second.peer().write(std::move(memory), theirs.slice(0, 64)));
  static_cast<void>(stolen);
  co_await expect_hang_up(second);
  co_await say(first, dropped_message{.sequence = 1});
  co_await push_properly(first, 3);
}

TEST_F_SERVED(kvcache_peers, pages_are_waited_for_in_the_order_of_asking, serving()) {
  session first = co_await connect(address);
  session second = co_await connect(address);
  const auto pages = co_await borrow(first, 1);
  co_await say(second, want_message{.sequence = 2, .of = small});
  co_await push_layers(first, pages, 1);
  static_cast<void>(co_await hear<lent_message>(second));
}

TEST_F_SERVED(kvcache_peers, pages_that_do_not_become_free_in_time_are_refused, without_patience(serving())) {
  session first = co_await connect(address);
  session second = co_await connect(address);
  co_await borrow(first, 1);
  const message said = co_await ask_for(second, 2);
  EXPECT_TRUE(std::holds_alternative<refused_message>(said)) << name_of(said);
}

// What a hostile receiver can do to a pusher.

TEST_F(kvcache_peers, a_receiver_that_lends_what_was_not_asked_for_is_an_error) {
  struct {
    std::uint64_t sequence;
    std::uint64_t bytes;
    weft::mr::usage uses;
    const char* words;
  } const cases[] = {{2, small.bytes(), weft::mr::usage::write_dst, "another sequence"},
                     {1, small.bytes() - 8, weft::mr::usage::write_dst, "another size"},
                     {1, small.bytes() + 8, weft::mr::usage::write_dst, "another size"},
                     {1, small.bytes(), weft::mr::usage::read_src, "write"}};
  for (const auto& each : cases) {
    const auto server = [&](session& link) -> task<> {
      static_cast<void>(co_await hear<want_message>(link));
      const weft::mr::remote_region pages(1, 4096, each.bytes, each.uses);
      const message lent = lent_message{.sequence = each.sequence, .time = patience, .pages = pages};
      co_await say(link, lent);
    };
    const std::string words = push_against(server);
    EXPECT_NE(words.find(each.words), std::string::npos) << words;
  }
}

TEST_F(kvcache_peers, a_receiver_that_says_what_it_may_not_is_an_error) {
  for (const message& answer : {message(accepted_message{.sequence = 1}), message(layer_message{}),
                                message(refused_message{.sequence = 2, .text = "no"})}) {
    const auto server = [&](session& link) -> task<> {
      static_cast<void>(co_await hear<want_message>(link));
      co_await say(link, answer);
    };
    const std::string words = push_against(server);
    EXPECT_NE(words.find(name_of(answer) == "refused" ? "'accepted'" : "'lent'"), std::string::npos) << words;
  }
}

TEST_F(kvcache_peers, a_receiver_that_lends_memory_that_it_does_not_have_ends_the_sequence) {
  bool was_evicted = false;
  const auto server = [&](session& link) -> task<> {
    static_cast<void>(co_await hear<want_message>(link));
    const weft::mr::remote_region pages(0x12345678, 4096, small.bytes(), weft::mr::usage::write_dst);
    const message lent = lent_message{.sequence = 1, .time = patience, .pages = pages};
    co_await say(link, lent);
    was_evicted = !co_await weft::as_result(link.receive());
  };
  static_cast<void>(push_against(server));
  EXPECT_TRUE(was_evicted);
}

TEST_F(kvcache_peers, a_whole_push_to_two_receivers_of_which_one_evicts) {
  EXPECT_EQ(failures_of_push(nullptr, serving(), serving(2)), 0u);
}

// With the cache in a GPU's memory. A driver without a GPU stands in for the real one: its memory faults when the
// processor touches it, and its copies come late.
class kvcache_peers_with_a_gpu : public kvcache_peers {
 protected:
  void SetUp() override {
    try {
      control_.emplace();
      gpu_ = weft::mr::open_cuda({.library = weft::test::stand_in::library()});
    } catch (const std::exception& why) {
      GTEST_SKIP() << why.what();
    }
  }

  [[nodiscard]] serve_options serving_in_gpu(std::uint32_t evict_every = 0) const {
    serve_options options = serving(evict_every);
    options.gpu = gpu_.get();
    return options;
  }

  std::optional<weft::test::stand_in> control_;
  std::shared_ptr<weft::mr::memory_device> gpu_;
};

TEST_F(kvcache_peers_with_a_gpu, a_word_that_is_wrong_is_found_where_it_is) {
  const auto look = [&](std::shared_ptr<weft::mr::memory_device> gpu) -> task<> {
    const auto memory =
        co_await cache_memory::make(device_, gpu.get(), 3 * 4096, 4096, {.usage = weft::mr::usage::send});
    for (std::uint32_t page = 0; page != 3; ++page) co_await memory->fill(page * 4096, {.page = page});
    for (std::uint32_t page = 0; page != 3; ++page) {
      EXPECT_EQ(co_await memory->first_wrong(page * 4096, {.page = page}), std::nullopt);
    }
    const std::byte other{0x5a};
    control_->poke(memory->region().bytes().subspan(2 * 4096 - 1, 1), {&other, 1});
    const auto wrong = co_await memory->first_wrong(4096, {.page = 1});
    EXPECT_EQ(wrong, 4096 - word_bytes);
    EXPECT_EQ(co_await memory->first_wrong(2 * 4096, {.page = 2}), std::nullopt);
  };
  loop_.run(look(gpu_));
}

TEST_F(kvcache_peers_with_a_gpu, a_gpu_of_the_pusher_that_does_not_copy_is_an_error_at_once) {
  const auto server = [&](session& link) -> task<> {
    static_cast<void>(co_await hear<want_message>(link));
    auto memory = co_await device_.allocate(small.bytes());
    auto loan = co_await link.peer().expose(std::move(memory), weft::mr::usage::write_dst);
    const message lent = lent_message{.sequence = 1, .time = patience, .pages = loan.remote()};
    control_->fail_next("cuMemcpyAsync", weft::test::stand_in::out_of_memory);
    co_await say(link, lent);
    co_await expect_hang_up(link);
  };
  const std::string words = push_against(server, gpu_.get());
  EXPECT_NE(words.find("CUDA_ERROR_OUT_OF_MEMORY"), std::string::npos) << words;
}

// Pages that are evicted may have blocks on their way, and are used again at once.
TEST_F(kvcache_peers_with_a_gpu, whole_pushes_between_memory_of_either_kind_with_evictions) {
  EXPECT_EQ(failures_of_push(nullptr, serving_in_gpu(), serving_in_gpu(2)), 0u);
  EXPECT_EQ(failures_of_push(gpu_.get(), serving(), serving(2)), 0u);
  EXPECT_EQ(failures_of_push(gpu_.get(), serving_in_gpu(), serving_in_gpu(2)), 0u);
}

}  // namespace
}  // namespace kvcache
