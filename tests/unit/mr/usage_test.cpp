// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/porting/access_bits.hpp>

#include "mr/support.hpp"

namespace weft::mr {
namespace {

// The values of <infiniband/verbs.h>, <rdma/fabric.h> and <librpma.h>.
constexpr std::uint64_t ibv_local_write = 1;
constexpr std::uint64_t ibv_remote_write = 2;
constexpr std::uint64_t ibv_remote_read = 4;
constexpr std::uint64_t ibv_remote_atomic = 8;
constexpr std::uint64_t ibv_zero_based = 32;
constexpr std::uint64_t ibv_on_demand = 64;
constexpr std::uint64_t ibv_relaxed_ordering = 1 << 20;
constexpr std::uint64_t fi_send = 1 << 11;
constexpr std::uint64_t fi_remote_read = 1 << 12;
constexpr std::uint64_t rpma_write_dst = 8;
constexpr std::uint64_t rpma_flush_visibility = 16;

TEST(usage, remote_writes_and_atomics_bring_the_local_write_that_verbs_demand) {
  static_assert(includes(rights_for(usage::write_dst), access::local_write | access::remote_write));
  static_assert(includes(rights_for(usage::atomic_dst), access::local_write | access::remote_atomic));
  EXPECT_FALSE(includes(rights_for(usage::write_dst), access::remote_read));
}

TEST(usage, sending_and_writing_from_memory_need_no_right_at_all) {
  static_assert(rights_for(usage::send) == access::none);
  static_assert(rights_for(usage::write_src) == access::none);
  EXPECT_EQ(rights_for(usage::none), access::none);
}

TEST(usage, a_flush_is_a_read_at_the_peer) {
  static_assert(rights_for(usage::flush_visibility) == access::remote_read);
  EXPECT_EQ(rights_for(usage::flush_persistent), access::none);  // the owner carries it out
}

TEST(usage, only_on_iwarp_does_a_read_sink_open_memory_to_remote_writes) {
  static_assert(rights_for(usage::read_dst) == access::local_write);
  EXPECT_EQ(rights_for_iwarp(usage::read_dst), access::local_write | access::remote_write);
  for (unsigned bit = 0; bit < 10; ++bit) {
    const auto one = static_cast<usage>(1U << bit);
    if (one == usage::read_dst) continue;
    EXPECT_EQ(rights_for_iwarp(one), rights_for(one)) << to_string(one);
  }
}

TEST(usage, says_what_it_is_in_words) {
  EXPECT_EQ(to_string(usage::read_src | usage::write_dst), "read_src|write_dst");
  EXPECT_EQ(to_string(usage::none), "none");
  EXPECT_EQ(to_string(static_cast<usage>(0x8001)), "send|0x8000");
}

TEST(porting, ibv_access_becomes_usage_and_options) {
  constexpr registration_options options =
      porting::options_from_ibv_access(ibv_local_write | ibv_remote_read | ibv_zero_based | ibv_relaxed_ordering);
  static_assert(includes(options.usage, usage::recv | usage::read_dst | usage::read_src | usage::send));
  static_assert(!overlaps(options.usage, usage::write_dst | usage::atomic_dst));
  static_assert(options.zero_based && options.relaxed_ordering && !options.on_demand && !options.huge_pages);
  EXPECT_TRUE(porting::options_from_ibv_access(ibv_on_demand).on_demand);
}

TEST(porting, ibv_access_zero_is_legal_and_lets_no_peer_in) {
  EXPECT_FALSE(overlaps(porting::options_from_ibv_access(0).usage, peer_usages));
}

TEST(porting, a_remote_write_without_local_write_is_as_wrong_as_it_was) {
  for (const std::uint64_t bits : {ibv_remote_write, ibv_remote_atomic}) {
    EXPECT_EQ(test::code_thrown_by([bits] { return porting::options_from_ibv_access(bits); }), errc::invalid_argument);
    EXPECT_NO_THROW(static_cast<void>(porting::options_from_ibv_access(bits | ibv_local_write)));
  }
}

TEST(porting, rdmacm_registers_for_all_of_ours_and_for_one_of_the_peers) {
  static_assert(porting::usage_of_rdma_reg_msgs == porting::options_from_ibv_access(ibv_local_write).usage);
  static_assert(porting::usage_of_rdma_reg_read ==
                porting::options_from_ibv_access(ibv_local_write | ibv_remote_read).usage);
  static_assert(porting::usage_of_rdma_reg_write ==
                porting::options_from_ibv_access(ibv_local_write | ibv_remote_write).usage);
  EXPECT_FALSE(overlaps(porting::usage_of_rdma_reg_msgs, peer_usages));
}

TEST(porting, fi_access_and_rpma_usage_become_usage) {
  static_assert(porting::usage_from_fi_access(fi_send | fi_remote_read) == (usage::send | usage::read_src));
  static_assert(porting::usage_from_rpma(rpma_write_dst | rpma_flush_visibility) ==
                (usage::write_dst | usage::flush_visibility));
  EXPECT_EQ(porting::usage_from_fi_access(0x3f00),
            usage::send | usage::recv | usage::read_src | usage::read_dst | usage::write_src | usage::write_dst);
  EXPECT_EQ(porting::usage_from_rpma(0xff), known_usages & ~(usage::atomic_dst | usage::bind_window));
}

TEST(porting, every_unknown_bit_is_refused) {
  for (unsigned bit = 0; bit < 64; ++bit) {
    const std::uint64_t one = std::uint64_t{1} << bit;
    const bool known_by_ibv = bit <= 9 || bit == 20;
    const bool known_by_fi = bit >= 8 && bit <= 13;
    const bool known_by_rpma = bit <= 7;
    const auto ibv = test::code_thrown_by([one] { return porting::options_from_ibv_access(one | ibv_local_write); });
    EXPECT_EQ(ibv == errc::unknown_usage, !known_by_ibv) << bit;
    EXPECT_EQ(test::code_thrown_by([one] { return porting::usage_from_fi_access(one); }) == errc::unknown_usage,
              !known_by_fi);
    EXPECT_EQ(test::code_thrown_by([one] { return porting::usage_from_rpma(one); }) == errc::unknown_usage,
              !known_by_rpma);
  }
}

}  // namespace
}  // namespace weft::mr
