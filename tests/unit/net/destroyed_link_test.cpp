// SPDX-License-Identifier: Apache-2.0
// Links that are destroyed as soon as they say that they are closed. What they would still touch of themselves, the
// address sanitizer sees.
#include <weft/net/iwarp/transport.hpp>
#include <weft/net/link/transport.hpp>

#include "net/support.hpp"

namespace weft::test {
namespace {

/// Destroys its link in closed().
class destroyer final : public net::link_events {
 public:
  explicit destroyer(std::unique_ptr<net::link> made) : link_(std::move(made)) {
    link_->start(*this, {.send_depth = 4, .receive_depth = 4});
  }

  [[nodiscard]] bool done() const noexcept { return link_ == nullptr; }
  void abort() noexcept { link_->abort("by a test"); }

 private:
  void completed(net::work_request&, net::work_status) noexcept override {}
  void received(net::receive_work&, const net::arrival&) noexcept override {}
  void receive_flushed(net::receive_work&) noexcept override {}
  void input_over() noexcept override { link_->shut_down(); }
  void ended(bool orderly, const error&) noexcept override {
    if (orderly) link_->shut_down();
  }
  void closed() noexcept override { link_.reset(); }

  std::unique_ptr<net::link> link_;
};

class destroyed_link : public net_test {
 protected:
  /// Runs `script(ours, theirs)`: a link that is destroyed early, and the connection at its other end.
  template <class Script>
  void with_link(Script script) {
    run([&]() -> task<> {
      auto listener = co_await listen();
      net::set_up_options options;
      options.deadline = executor::current()->now() + 100s;
      auto both = co_await when_all(transport_->connect(listener.address(), options), accept(listener));
      destroyer ours(std::move(std::get<0>(both).link));
      co_await settle();
      co_await script(ours, std::get<1>(both));
      while (!ours.done()) co_await yield();
    });
  }

 private:
  std::unique_ptr<net::transport> transport_ = net::iwarp::open_transport();
};

TEST_F(destroyed_link, in_the_middle_of_its_abort) {
  with_link([](destroyer& ours, net::connection&) -> task<> {
    ours.abort();
    co_return;
  });
}

TEST_F(destroyed_link, where_its_peer_has_closed_or_died) {
  for (const bool dies : {false, true}) {
    with_link([dies](destroyer&, net::connection& theirs) -> task<> {
      if (dies) theirs.abort();
      co_await theirs.close();
    });
  }
}

}  // namespace
}  // namespace weft::test
