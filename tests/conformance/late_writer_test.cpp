// SPDX-License-Identifier: Apache-2.0
// The program that looks for writes into memory that was taken back finds them, and finds none where there are none.
#include "late_writer.hpp"

#include <weft/net/iwarp/transport.hpp>
#include <weft/net/software/domain.hpp>
#include <weft/net/transport.hpp>
#include <weft/runtime/io/system_calls.hpp>

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace weft::test {
namespace {

// What is wrong with a link.
struct defects {
  bool keeps_keys = false;  // it says that a key is revoked, and revokes it at its end
};

class defective_link final : public net::link {
 public:
  defective_link(defects what, std::unique_ptr<net::link> inner) noexcept : what_(what), inner_(std::move(inner)) {}

  void start(net::link_events& events, const net::link_parameters& how) override { inner_->start(events, how); }
  [[nodiscard]] const net::capabilities& properties() const noexcept override { return inner_->properties(); }
  [[nodiscard]] std::string_view peer() const noexcept override { return inner_->peer(); }
  [[nodiscard]] std::size_t corner_bytes() const noexcept override { return inner_->corner_bytes(); }
  [[nodiscard]] bool furnish(net::work_request& work) noexcept override { return inner_->furnish(work); }
  void post(net::work_request& work) noexcept override { inner_->post(work); }
  void post_receive(net::receive_work& work) noexcept override { inner_->post_receive(work); }
  void ring() noexcept override { inner_->ring(); }
  void shut_down() noexcept override { inner_->shut_down(); }
  void peer_finished() noexcept override { inner_->peer_finished(); }
  void abort(std::string_view why) noexcept override { inner_->abort(why); }
  void refuse(violation what, std::string_view why) noexcept override { inner_->refuse(what, why); }
  [[nodiscard]] std::uint64_t largest_key() const noexcept override { return inner_->largest_key(); }
  [[nodiscard]] task<net::exposed_place> expose(mr::slice memory, mr::usage uses,
                                                mr::detail::peer_gate* gate) override {
    return inner_->expose(memory, uses, gate);
  }
  void revoke(const mr::remote_key& key, net::revocation& who) noexcept override {
    what_.keeps_keys ? who.revoked() : inner_->revoke(key, who);
  }

 private:
  const defects what_;
  const std::unique_ptr<net::link> inner_;
};

class defective_transport final : public net::transport {
 public:
  explicit defective_transport(defects what)
      : what_(what),
        inner_(net::iwarp::open_transport({.checksum = false},
                                          std::make_shared<net::software::domain>(system_calls::kernel(), "iwarp"))) {}

  [[nodiscard]] std::string_view name() const noexcept override { return inner_->name(); }
  [[nodiscard]] const std::shared_ptr<mr::domain>& shared_domain() const noexcept override {
    return inner_->shared_domain();
  }
  [[nodiscard]] net::native_features features() const noexcept override { return inner_->features(); }
  [[nodiscard]] bool listens_first() const noexcept override { return inner_->listens_first(); }
  [[nodiscard]] task<net::new_link> connect(std::string_view address, const net::set_up_options& options) override {
    net::new_link made = co_await inner_->connect(address, options);
    made.link = std::make_unique<defective_link>(what_, std::move(made.link));
    co_return made;
  }
  [[nodiscard]] task<std::unique_ptr<net::link_listener>> listen(std::string_view address,
                                                                 const net::listen_options& options) override {
    auto inner = co_await inner_->listen(address, options);
    co_return std::make_unique<listener>(what_, std::move(inner));
  }

 private:
  class request final : public net::link_request {
   public:
    request(defects what, std::unique_ptr<net::link_request> inner) noexcept : what_(what), inner_(std::move(inner)) {}
    [[nodiscard]] std::string_view peer() const noexcept override { return inner_->peer(); }
    [[nodiscard]] std::span<const std::byte> private_data() const noexcept override { return inner_->private_data(); }
    [[nodiscard]] task<std::unique_ptr<net::link>> accept(const net::set_up_options& options) override {
      auto made = co_await inner_->accept(options);
      co_return std::make_unique<defective_link>(what_, std::move(made));
    }
    [[nodiscard]] task<> reject(std::span<const std::byte> data) override { return inner_->reject(data); }

   private:
    const defects what_;
    const std::unique_ptr<net::link_request> inner_;
  };
  class listener final : public net::link_listener {
   public:
    listener(defects what, std::unique_ptr<net::link_listener> inner) noexcept
        : what_(what), inner_(std::move(inner)) {}
    [[nodiscard]] std::string_view address() const noexcept override { return inner_->address(); }
    [[nodiscard]] task<std::unique_ptr<net::link_request>> next() override {
      auto next = co_await inner_->next();
      if (next == nullptr) co_return nullptr;
      co_return std::make_unique<request>(what_, std::move(next));
    }
    void close() noexcept override { inner_->close(); }

   private:
    const defects what_;
    const std::unique_ptr<net::link_listener> inner_;
  };

  const defects what_;
  const std::unique_ptr<net::transport> inner_;
};

std::vector<late_writing_result> try_with(defects what) {
  const auto open = [what] { return net::device::open(std::make_unique<defective_transport>(what), {}); };
  late_writing how;
  how.address = "127.0.0.1";
  how.rounds = 3;
  how.connections = 2;
  return write_late(open, how);
}

TEST(late_writer, finds_no_write_that_lands_late_where_keys_are_revoked) {
  const auto all = try_with({});
  EXPECT_EQ(all.size(), 4u);
  for (const late_writing_result& each : all) {
    SCOPED_TRACE(each.way);
    EXPECT_EQ(each.why_not, "");
    EXPECT_EQ(each.times, 6u);
    EXPECT_LT(each.times_unwritten, each.times);
    EXPECT_EQ(each.times_late, 0u);
    EXPECT_GT(each.writes, 0u);
  }
  EXPECT_TRUE(print_late_writing(all));
}

TEST(late_writer, finds_writes_that_land_late_where_keys_stay) {
  const auto all = try_with({.keeps_keys = true});
  EXPECT_FALSE(print_late_writing(all));
  EXPECT_EQ(all.size(), 4u);
  EXPECT_GT(all[0].times_late, 0u) << all[0].way;
  EXPECT_GT(all[1].times_late, 0u) << all[1].way;
  EXPECT_EQ(all[2].times_late, 0u) << all[2].way;  // no link is asked for that
}

TEST(late_writer, does_not_take_silence_for_proof) {
  late_writing_result silent;
  silent.way = "by revoke()";
  silent.times = silent.times_unwritten = 6;
  EXPECT_FALSE(print_late_writing({silent}));
  silent.times_unwritten = 5;
  EXPECT_TRUE(print_late_writing({silent}));
}

}  // namespace
}  // namespace weft::test
