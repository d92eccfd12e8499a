// SPDX-License-Identifier: Apache-2.0
// Links whose owner destroys them at the first moment that it may, which is inside closed(): whatever they end with.
#include "shm_link/support.hpp"

namespace weft::test {
namespace {

/// The owner of a link.
class hasty_owner final : public net::link_events, private immovable {
 public:
  explicit hasty_owner(std::unique_ptr<net::link> link) : link_(std::move(link)) {
    link_->start(*this, {.send_depth = 8, .receive_depth = 8});
  }
  ~hasty_owner() { EXPECT_TRUE(link_ == nullptr); }

  void abort() noexcept {
    if (link_ != nullptr) link_->abort("the test wants it");
  }
  void shut_down() noexcept { link_->shut_down(); }
  [[nodiscard]] bool is_gone() const noexcept { return link_ == nullptr; }
  /// Posts messages of a line each.
  void send(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      auto made = std::make_unique<message>(link_->corner_bytes());
      made->work.own = made->memory;
      made->work.corner = made->corner.data();
      EXPECT_TRUE(link_->furnish(made->work));
      link_->post(made->work);
      messages_.push_back(std::move(made));
    }
    link_->ring();
  }
  [[nodiscard]] std::size_t completed() const noexcept { return completed_; }
  /// Is ended inside this one's closed().
  void take_along(hasty_owner& other) noexcept { other_ = &other; }

 private:
  struct message {
    explicit message(std::size_t corner_bytes) : corner(corner_bytes / sizeof(std::uint64_t) + 1) {}
    net::work_request work;
    std::array<std::byte, 8> memory{};
    std::vector<std::uint64_t> corner;
  };

  void completed(net::work_request&, net::work_status) noexcept override { ++completed_; }
  void received(net::receive_work&, const net::arrival&) noexcept override {}
  void receive_flushed(net::receive_work&) noexcept override {}
  void ended(bool, const error&) noexcept override {}
  void closed() noexcept override {
    link_.reset();
    if (other_ != nullptr) other_->abort();
  }

  std::unique_ptr<net::link> link_;
  hasty_owner* other_ = nullptr;
  std::vector<std::unique_ptr<message>> messages_;
  std::size_t completed_ = 0;
};

class hasty_link : public shm_link_test {
 protected:
  struct both {
    std::unique_ptr<manual_end> hand;
    std::unique_ptr<hasty_owner> owner;
  };
  task<both> connect_to(net::link_listener& listener) {
    auto ends = co_await when_all(manual_end::connect(name_of(listener), bytes()), accept(listener));
    co_return both{std::make_unique<manual_end>(std::move(std::get<0>(ends))),
                   std::make_unique<hasty_owner>(std::move(std::get<1>(ends)))};
  }
  /// A link is gone soon after `script(hand, owner)`, and its executor goes on.
  template <class Script>
  void expect_end(Script script) {
    run([&]() -> task<> {
      auto listener = co_await listen();
      const both ends = co_await connect_to(*listener);
      co_await settle();
      script(*ends.hand, *ends.owner);
      for (int i = 0; i < 100 && !ends.owner->is_gone(); ++i) co_await yield();
      EXPECT_TRUE(ends.owner->is_gone());
      co_await settle();
    });
  }
};

TEST_F(hasty_link, that_its_owner_aborts) {
  expect_end([](manual_end&, hasty_owner& owner) { owner.abort(); });
}

TEST_F(hasty_link, that_ends_in_order) {
  expect_end([](manual_end& hand, hasty_owner& owner) {
    owner.shut_down();
    hand.say({.kind = record_kind::finished});
  });
}

TEST_F(hasty_link, whose_peer_goes) {
  expect_end([](manual_end& hand, hasty_owner&) { hand.socket().close(); });
}

TEST_F(hasty_link, whose_peer_breaks_off) {
  expect_end([](manual_end& hand, hasty_owner&) { hand.say({.kind = record_kind::broken}); });
}

TEST_F(hasty_link, whose_peer_writes_what_makes_no_sense) {
  expect_end([](manual_end& hand, hasty_owner&) { hand.say({}); });
  expect_end([](manual_end& hand, hasty_owner&) { hand.say({.kind = record_kind::more}); });
  expect_end([](manual_end& hand, hasty_owner&) { hand.say({.kind = record_kind::answer, .bytes = 1'000'000}); });
  expect_end([](manual_end& hand, hasty_owner&) { hand.claim_written(1); });
  expect_end([](manual_end& hand, hasty_owner&) { hand.claim_written(UINT64_MAX); });
}

// There is no room for its own last record, and nobody who would make any.
TEST_F(hasty_link, that_ends_in_order_although_its_peer_went_with_a_full_ring) {
  expect_end([](manual_end& hand, hasty_owner& owner) {
    const std::size_t lines = hand.out().capacity() / shm::cache_line;
    owner.send(lines);
    EXPECT_EQ(owner.completed(), lines);
    hand.say({.kind = record_kind::finished});
    hand.socket().close();
    owner.shut_down();
  });
}

TEST_F(hasty_link, that_ends_inside_the_end_of_another_while_the_sockets_of_both_have_news) {
  for (const bool first_leads : {true, false}) {
    run([&]() -> task<> {
      auto listener = co_await listen();
      const both first = co_await connect_to(*listener);
      const both second = co_await connect_to(*listener);
      co_await settle();
      if (first_leads) {
        first.owner->take_along(*second.owner);
      } else {
        second.owner->take_along(*first.owner);
      }
      first.hand->socket().close();
      second.hand->socket().close();
      for (int i = 0; i < 100 && !(first.owner->is_gone() && second.owner->is_gone()); ++i) co_await sleep_for(1ms);
      EXPECT_TRUE(first.owner->is_gone() && second.owner->is_gone());
      co_await settle();
    });
  }
}

}  // namespace
}  // namespace weft::test
