// SPDX-License-Identifier: Apache-2.0
// What weft-info hides in a report: addresses in every form, GUIDs and host names, and nothing else.
#include "kit/test.hpp"
#include <info/mask.hpp>

namespace info {
namespace {

TEST(a_mask, gives_the_same_address_the_same_word_however_it_is_written) {
  mask names({});
  EXPECT_EQ(names.apply("connect to 10.77.0.1:7470 over verbs:rxe0"), "connect to address-1:7470 over verbs:rxe0");
  EXPECT_EQ(names.apply("0000:0000:0000:0000:0000:ffff:0a4d:0001"), "address-1") << "the GID that holds it";
  EXPECT_EQ(names.apply("10.77.0.2, fd77::1 (RoCE v2)"), "address-2, address-3 (RoCE v2)");
  EXPECT_EQ(names.apply("[fd77:0:0:0:0:0:0:1]:7470"), "[address-3]:7470");
  EXPECT_EQ(names.apply("fe80::77:ff:fe00:1/64"), "link-local-1/64");
  EXPECT_EQ(names.apply("0c42:a103:0065:7a2a and 02:77:00:00:00:01"), "guid-1 and guid-2");
}

TEST(a_mask, finds_addresses_at_the_edges_of_words) {
  for (const char* text :
       {"fd77::1: refused", "verbs:fd77::1", "(fd77::1)", "fd77::1.", "fd77::1%eth0", "::ffff:10.0.0.7",
        "fd77::", "10.0.0.7", "10.0.0.7/24", "x=10.0.0.7,", "80:00:00:48:fe:80:00:00:00:00:00:00:0c:42"}) {
    mask names({});
    const std::string masked = names.apply(text);
    EXPECT_EQ(masked.find("77:"), std::string::npos) << masked;
    EXPECT_EQ(masked.find("0.0"), std::string::npos) << masked;
    EXPECT_EQ(masked.find("0c:42"), std::string::npos) << masked;
    EXPECT_NE(masked.find("-1"), std::string::npos) << masked;
  }
}

TEST(a_mask, leaves_what_is_no_address_and_those_of_every_machine) {
  mask names({});
  for (const char* text : {"127.0.0.1:0", "0.0.0.0:7470", "::1", "weft::errc::closed", "22.39.1002", "1280 bytes",
                           "MT_0000000008", "port mlx5_0/1", "6.1.0-50-amd64", "4 MiB: 12:34"}) {
    EXPECT_EQ(names.apply(text), text);
  }
}

TEST(a_mask, hides_hosts_with_and_without_their_domain_and_in_longer_names) {
  mask names({"storage-3.example.com", "", "10.0.0.8"});
  EXPECT_EQ(names.apply("storage-3.example.com:7470, storage-3-ib0"), "host-1:7470, host-2-ib0");
  EXPECT_EQ(names.apply("mystorage-3 has 10 queues"), "mystorage-3 has 10 queues");
}

}  // namespace
}  // namespace info
