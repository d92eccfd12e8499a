// SPDX-License-Identifier: Apache-2.0
// Handles that GCC 12 has duplicated (docs/gcc-12.md) say so, whatever has become of what stood behind them.
#include "duplicated.hpp"

#include "net/support.hpp"

namespace weft::test {
namespace {

class net_duplicated : public net_test {
 protected:
  net_duplicated() { ::testing::FLAGS_gtest_death_test_style = "threadsafe"; }

  template <class Handle>
  static void destroy_with_duplicate(Handle made) {
    std::optional<Handle> first(std::move(made));
    const duplicate<Handle> second(*first);
    first.reset();
  }
};

TEST_F(net_duplicated, connection_made_in_braces_is_noticed) {
  struct peer {
    int number = 0;
    net::connection link;
  };
  const auto body = [&]() -> task<> {
    auto listener = co_await listen();
    auto both = when_all(device().connect(std::string(listener.address())), accept(listener));
    std::optional<net::connection> far;
    const auto near = [&](auto pair) -> task<net::connection> {
      auto links = co_await std::move(pair);
      far = std::move(std::get<1>(links));
      co_return std::move(std::get<0>(links));
    };
    peer made{1, co_await near(std::move(both))};  // weft-check-coroutines: fine
    mr::buffer payload = co_await pool().allocate(10);
    co_await made.link.send(payload);
    EXPECT_TRUE(co_await far->recv());
  };
  if constexpr (compiler_destroys_twice) {
    EXPECT_DEATH(run(body), WORDS_OF_A_DUPLICATE("a connection"));
  } else {
    run(body);
  }
}

TEST_F(net_duplicated, connection_is_noticed) {
  const auto misuse = [&]() -> task<> {
    auto both = co_await connected(device(), device());
    destroy_with_duplicate(std::move(both.client));
  };
  EXPECT_DEATH(run(misuse), WORDS_OF_A_DUPLICATE("a connection"));
}

TEST_F(net_duplicated, exposure_is_noticed) {
  const auto misuse = [&]() -> task<> {
    auto both = co_await connected(device(), device());
    auto exposed = co_await both.client.expose(co_await pool().allocate(100), mr::usage::read_src);
    destroy_with_duplicate(std::move(exposed));
  };
  EXPECT_DEATH(run(misuse), WORDS_OF_A_DUPLICATE("an exposure"));
}

TEST_F(net_duplicated, exposure_of_a_region_is_noticed) {
  const auto misuse = [&]() -> task<> {
    auto both = co_await connected(device(), device());
    const mr::region memory =
        co_await device().domain().register_memory(std::vector<std::byte>(100), {.usage = mr::usage::bind_window});
    auto bound = co_await both.client.expose(memory.slice(), mr::usage::read_src);
    destroy_with_duplicate(std::move(bound));
  };
  EXPECT_DEATH(run(misuse), WORDS_OF_A_DUPLICATE("an exposure"));
}

TEST_F(net_duplicated, listener_is_noticed) {
  const auto misuse = [&]() -> task<> { destroy_with_duplicate(co_await listen()); };
  EXPECT_DEATH(run(misuse), WORDS_OF_A_DUPLICATE("a listener"));
}

TEST_F(net_duplicated, connection_request_is_noticed) {
  const auto misuse = [&]() -> task<> {
    auto listener = co_await listen();
    const auto answer = [&]() -> task<> {
      auto request = co_await listener.next();
      destroy_with_duplicate(std::move(*request));
    };
    co_await when_all(failure_of(device().connect(std::string(listener.address()))), answer());
  };
  EXPECT_DEATH(run(misuse), WORDS_OF_A_DUPLICATE("a connection request"));
}

TEST_F(net_duplicated, shared_receives_are_noticed) {
  const auto misuse = [&]() -> task<> { destroy_with_duplicate(co_await device().share_receives({.depth = 4})); };
  EXPECT_DEATH(run(misuse), WORDS_OF_A_DUPLICATE("shared receives"));
}

TEST_F(net_duplicated, stream_is_noticed) {
  const auto misuse = [&]() -> task<> {
    auto both = co_await connected(device(), device());
    destroy_with_duplicate(net::stream(std::move(both.client)));
  };
  EXPECT_DEATH(run(misuse), WORDS_OF_A_DUPLICATE("a stream"));
}

TEST_F(net_duplicated, device_is_noticed) {
  EXPECT_DEATH(destroy_with_duplicate(net::device::open("iwarp")), WORDS_OF_A_DUPLICATE("a device"));
}

}  // namespace
}  // namespace weft::test
