// SPDX-License-Identifier: Apache-2.0
// The program that looks for writes into memory that was taken back finds them, and finds none where there are none.
#include "late_writer.hpp"

#include <weft/net/iwarp/transport.hpp>
#include <weft/net/software/domain.hpp>
#include <weft/runtime/system/system_calls.hpp>

#include "kit/forwarding_link.hpp"
#include "kit/forwarding_transport.hpp"
#include "kit/test.hpp"

namespace weft::test {
namespace {

// What is wrong with a link.
struct defects {
  bool keeps_keys = false;  // it says that a key is revoked, and revokes it at its end
};

class defective_link final : public forwarding_link {
 public:
  defective_link(defects what, std::unique_ptr<net::link> inner) noexcept
      : forwarding_link(std::move(inner)), what_(what) {}

  void revoke(std::uint64_t key, net::revocation& who) noexcept override {
    what_.keeps_keys ? who.revoked() : forwarding_link::revoke(key, who);
  }

 private:
  const defects what_;
};

std::unique_ptr<net::transport> open_with(defects what) {
  auto domain = std::make_shared<net::software::domain>(system_calls::kernel(), "iwarp");
  return std::make_unique<forwarding_transport>(net::iwarp::open_transport({.checksum = false}, std::move(domain)),
                                                transport_wrappers{.link = [what](auto bare) {
                                                  return std::make_unique<defective_link>(what, std::move(bare));
                                                }});
}

std::vector<late_writing_result> try_with(defects what) {
  const auto open = [what] { return net::device::open(open_with(what), {}); };
  const late_writing how{.address = "127.0.0.1", .rounds = 3, .connections = 2};
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
  late_writing_result silent{.way = "by revoke()"};
  silent.times = silent.times_unwritten = 6;
  EXPECT_FALSE(print_late_writing({silent}));
  silent.times_unwritten = 5;
  EXPECT_TRUE(print_late_writing({silent}));
}

}  // namespace
}  // namespace weft::test
