// SPDX-License-Identifier: Apache-2.0
#include <weft/net/iwarp/domain.hpp>

#include <gtest/gtest.h>

#include "mr_support.hpp"

namespace weft::net::iwarp {
namespace {

class domain_test : public ::testing::Test {
 protected:
  access_status write(std::uint32_t key, std::uint64_t address) {
    const key_table::reader::batch inside(reader);
    const key_table::reader::place at = reader.write_place(key, address, 1, 1);
    if (at.status == access_status::ok) *at.data = std::byte{1};
    return at.status;
  }
  access_status read(std::uint32_t key, std::uint64_t address) {
    const key_table::reader::batch inside(reader);
    return reader.check_read(key, address, 1, 1);
  }
  task<mr::region> open(mr::registration_options options) {
    return domain->register_memory(std::span(memory), options);
  }

  std::shared_ptr<iwarp::domain> domain = std::make_shared<iwarp::domain>();
  key_table::reader reader{domain->keys()};
  std::vector<std::byte> memory = std::vector<std::byte>(100);
};

TEST_F(domain_test, peers_reach_memory_by_the_key_and_address_that_they_were_told) {
  test::run([&]() -> task<> {
    const mr::region made = co_await open({.usage = mr::usage::write_dst});
    const mr::remote_region remote = made.remote();
    EXPECT_EQ(remote.address(), reinterpret_cast<std::uintptr_t>(memory.data()));
    EXPECT_EQ(write(remote.key(), remote.address() + 99), access_status::ok);
    EXPECT_EQ(memory[99], std::byte{1});
    EXPECT_EQ(write(remote.key(), remote.address() + 100), access_status::bounds);
    EXPECT_EQ(read(remote.key(), remote.address()), access_status::access);
  });
}

TEST_F(domain_test, a_key_dies_with_its_region) {
  test::run([&]() -> task<> {
    std::uint32_t key = 0;
    {
      const mr::region made = co_await open({.usage = mr::usage::read_src, .zero_based = true});
      key = made.remote().key();
      EXPECT_EQ(read(key, 0), access_status::ok);
    }
    EXPECT_EQ(read(key, 0), access_status::invalid_stag);
  });
}

TEST_F(domain_test, memory_for_our_own_operations_has_no_key) {
  test::run([&]() -> task<> {
    const mr::usage local =
        mr::usage::send | mr::usage::recv | mr::usage::read_dst | mr::usage::write_src | mr::usage::bind_window;
    const mr::region made = co_await open({.usage = local});
    EXPECT_EQ(domain->keys().size(), 0U);
    EXPECT_EQ(test::code_thrown_by([&] { return made.remote(); }), errc::access_denied);
  });
}

TEST_F(domain_test, a_flush_can_read_what_it_flushes) {
  test::run([&]() -> task<> {
    const mr::region made = co_await open({.usage = mr::usage::write_dst | mr::usage::flush_visibility});
    EXPECT_EQ(read(made.remote().key(), made.remote().address()), access_status::ok);
  });
}

TEST_F(domain_test, memory_for_atomics_is_open_to_nothing_else) {
  test::run([&]() -> task<> {
    const mr::region made = co_await open({.usage = mr::usage::atomic_dst, .zero_based = true});
    const std::uint32_t key = made.remote().key();
    EXPECT_EQ(read(key, 0), access_status::access);
    EXPECT_EQ(write(key, 0), access_status::access);
    const key_table::reader::batch inside(reader);
    EXPECT_EQ(reader.check_atomic(key, 8, 1), access_status::ok);
  });
}

TEST_F(domain_test, a_region_can_start_at_zero_or_at_an_iova) {
  test::run([&]() -> task<> {
    const mr::region from_zero = co_await open({.usage = mr::usage::write_dst, .zero_based = true});
    EXPECT_EQ(from_zero.remote().address(), 0U);
    EXPECT_EQ(write(from_zero.remote().key(), 0), access_status::ok);
    EXPECT_EQ(memory[0], std::byte{1});
    const std::uint64_t iova = 0x7000000000 + (reinterpret_cast<std::uintptr_t>(memory.data()) & 4095);
    const mr::region elsewhere = co_await open({.usage = mr::usage::write_dst, .iova = iova});
    EXPECT_EQ(elsewhere.remote().address(), iova);
    EXPECT_EQ(write(elsewhere.remote().key(), iova + 7), access_status::ok);
    EXPECT_EQ(memory[7], std::byte{1});
  });
}

TEST_F(domain_test, a_key_that_is_taken_cannot_be_requested) {
  test::run([&]() -> task<> {
    mr::region made = co_await open({.usage = mr::usage::write_dst, .requested_key = 0xabcd1234});
    EXPECT_EQ(made.remote().key(), 0xabcd1234U);
    std::error_code code;
    try {
      const mr::region again = co_await open({.usage = mr::usage::write_dst, .requested_key = 0xabcd1234});
    } catch (const error& failure) {
      code = failure.code();
    }
    EXPECT_EQ(code, errc::duplicate_key);
    co_await made.release();
    const mr::region later = co_await open({.usage = mr::usage::write_dst, .requested_key = 0xabcd1234});
    EXPECT_EQ(later.remote().key(), 0xabcd1234U);
  });
}

TEST_F(domain_test, what_iwarp_in_user_space_cannot_do_is_refused_by_name) {
  const auto words = [&](mr::registration_options options) {
    EXPECT_EQ(test::code_thrown_by([&] { return domain->register_now(memory, options); }), errc::not_supported);
    return test::words_thrown_by([&] { return domain->register_now(memory, options); });
  };
  EXPECT_NE(words({.on_demand = true}).find("iwarp: on_demand"), std::string::npos);
  EXPECT_NE(words({.dmabuf = 1}).find("dmabuf"), std::string::npos);
  EXPECT_NE(words({.usage = mr::usage::flush_persistent}).find("flush_persistent"), std::string::npos);
  EXPECT_EQ(domain->keys().size(), 0U);
}

TEST_F(domain_test, pins_nothing) { EXPECT_FALSE(domain->pins()); }

}  // namespace
}  // namespace weft::net::iwarp
