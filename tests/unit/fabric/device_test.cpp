// SPDX-License-Identifier: Apache-2.0
#include <weft/net/fabric/device.hpp>
#include <weft/net/fabric/domain.hpp>
#include <weft/net/fabric/order.hpp>
#include <weft/net/fabric/transport.hpp>
#include <weft/net/rails/handles.hpp>

#include "kit/expect_failure.hpp"
#include "shim_library.hpp"

namespace weft::net::fabric {
namespace {

device::info_ptr blank() {
  fabric_calls& library = fabric_calls::library();
  return device::info_ptr(library.dupinfo(nullptr), {&library});
}

TEST(fabric_order, that_a_provider_promises_nothing_of_lets_only_reads_follow_each_other) {
  const auto info = blank();
  info->ep_attr->max_msg_size = 4096;
  const order_table none(*info);
  using enum access_kind;
  for (const access_kind later : {send, write, read, atomic}) {
    for (const access_kind earlier : {send, write, read, atomic}) {
      EXPECT_EQ(none.keeps(later, earlier), later == read && earlier == read);
    }
  }
  EXPECT_TRUE(none.has_to_be_delivered(send));
  EXPECT_TRUE(none.has_to_be_delivered(write));
}

TEST(fabric_order, is_kept_only_up_to_a_size_where_the_provider_says_so) {
  const auto info = blank();
  info->ep_attr->max_msg_size = 4096;
  info->ep_attr->max_order_waw_size = 4095;
  info->tx_attr->msg_order = FI_ORDER_WAW | FI_ORDER_SAS;
  const order_table small(*info);
  EXPECT_FALSE(small.keeps(access_kind::write, access_kind::write));
  EXPECT_TRUE(small.keeps(access_kind::send, access_kind::send));
  info->ep_attr->max_order_waw_size = 4096;
  EXPECT_TRUE(order_table(*info).keeps(access_kind::write, access_kind::write));
}

TEST(fabric_device, that_does_not_exist_is_refused_with_those_that_do) {
  const auto failure = test::failure_thrown_by([] { return open_transport("nonesuch"); });
  EXPECT_TRUE(test::failed_with(failure, errc::not_supported, "\"nonesuch\""));
  EXPECT_TRUE(test::says(failure, "sockets"));
}

TEST(fabric_device, without_a_name_is_libfabrics_own_choice) {
  const auto made = open_transport("");
  EXPECT_TRUE(made->name().starts_with("fabric:"));
}

// A provider that asks for device memory to be registered as such.
class greedy_library final : public test::shim_library {
 public:
  int getinfo(const fi_info* hints, fi_info** found) noexcept override {
    const int result = shim_library::getinfo(hints, found);
    if (result == 0) (*found)->domain_attr->mr_mode |= FI_MR_HMEM;
    return result;
  }
};

TEST(fabric_device, that_wants_device_memory_registered_is_refused_by_the_name_of_the_mode) {
  greedy_library library;
  const auto failure = test::failure_thrown_by([&] { return open_transport("sockets", library); });
  EXPECT_TRUE(test::failed_with(failure, errc::not_supported, "FI_MR_HMEM"));
}

TEST(fabric_device, that_is_frozen_moves_nothing_until_it_has_been_thawed_as_often) {
  const device made(fabric_calls::library(), "net");
  EXPECT_TRUE(made.enter().may_move_bytes());
  made.freeze();
  made.freeze();
  EXPECT_FALSE(made.enter().may_move_bytes());
  made.thaw();
  EXPECT_FALSE(made.enter().may_move_bytes());
  made.thaw();
  EXPECT_TRUE(made.enter().may_move_bytes());
}

// A provider that does not let go of what it has.
class clinging_library final : public test::shim_library {
 public:
  int close(fid*) noexcept override { return -FI_EBUSY; }
};

TEST(fabric_memory, that_the_provider_does_not_let_go_of_ends_the_process) {
  clinging_library library;
  fid_mr region{};
  fid_ep endpoint{};
  fid_cq queue{};
  EXPECT_DEATH(fid_closer{&library}(&region), "could not close");
  EXPECT_DEATH(fid_closer{&library}(&endpoint), "could not close");
  fid_closer{&library}(&queue);  // no memory is used by it
}

// Whoever is in a call about regions waits a while for somebody else to be so as well.
class crowded_library final : public test::shim_library {
 public:
  [[nodiscard]] bool was_crowded() const { return was_crowded_; }

  int mr_regattr(fid_domain* domain, const fi_mr_attr* wanted, std::uint64_t flags, fid_mr** made) noexcept override {
    const visit here(*this);
    return shim_library::mr_regattr(domain, wanted, flags, made);
  }
  int close(fid* object) noexcept override {
    const visit here(*this);
    return shim_library::close(object);
  }

 private:
  struct visit {
    explicit visit(crowded_library& of) noexcept : place(of) {
      ++place.inside_;
      for (int i = 0; i != 100 && place.inside_ < 2; ++i) std::this_thread::yield();
      if (place.inside_ > 1) place.was_crowded_ = true;
    }
    ~visit() { --place.inside_; }
    crowded_library& place;
  };
  std::atomic<int> inside_{0};
  std::atomic<bool> was_crowded_{false};
};

// The table of keys of net 1.17 has no lock: it fell apart, and the process with it.
TEST(fabric_memory, is_registered_and_let_go_by_one_thread_at_a_time_where_a_table_is_all_that_keeps_it) {
  for (const char* const provider : {"net", "tcp", "sockets", "udp", "shm"}) {
    crowded_library library;
    const device made(library, provider);
    const auto come_and_go = [&made] {
      std::array<std::byte, 64> memory{};
      for (int i = 0; i != 20; ++i) {
        static_cast<void>(register_region(made, memory, FI_REMOTE_WRITE, nullptr, "register memory"));
      }
    };
    std::jthread other(come_and_go);
    come_and_go();
    other.join();
    EXPECT_FALSE(library.was_crowded()) << provider;
  }
}

TEST(fabric_memory, has_keys_that_rails_do_not_take_for_handles) {
  for (const char* const provider : {"net", "tcp", "sockets", "udp", "shm"}) {
    const device made(fabric_calls::library(), provider);
    std::array<std::byte, 64> memory{};
    for (int i = 0; i != 32; ++i) {
      const region_ptr region = register_region(made, memory, FI_REMOTE_WRITE, nullptr, "register memory");
      EXPECT_FALSE(rails::is_handle(::fi_mr_key(region.get()))) << provider;
    }
  }
}

TEST(fabric_memory, of_a_key_is_found_with_its_bounds_and_rights) {
  constexpr opened_memory open{.address = 100, .bytes = 50, .rights = FI_REMOTE_READ};
  EXPECT_TRUE(open.allows(100, 50, FI_REMOTE_READ));
  EXPECT_TRUE(open.allows(149, 1, FI_REMOTE_READ));
  EXPECT_FALSE(open.allows(99, 1, FI_REMOTE_READ));
  EXPECT_FALSE(open.allows(149, 2, FI_REMOTE_READ));
  EXPECT_FALSE(open.allows(150, UINT64_MAX, FI_REMOTE_READ));
  EXPECT_FALSE(open.allows(100, 50, FI_REMOTE_WRITE));
  EXPECT_FALSE(open.allows(100, 50, FI_REMOTE_READ | FI_REMOTE_WRITE));
}

}  // namespace
}  // namespace weft::net::fabric
