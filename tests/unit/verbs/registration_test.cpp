// SPDX-License-Identifier: Apache-2.0
// How memory is registered with an RDMA device: every option, on a device that exists only here.
#include <weft/mr/device_memory.hpp>
#include <weft/mr/pool/arena.hpp>
#include <weft/mr/porting/access_bits.hpp>
#include <weft/net/verbs/device.hpp>
#include <weft/net/verbs/domain.hpp>

#include "kit/disk_file.hpp"
#include "kit/failure.hpp"
#include "kit/test.hpp"
#include "mr/support.hpp"
#include "verbs/fake_device.hpp"

namespace weft::net::verbs {
namespace {

using test::fake_libraries;

struct alignas(4096) pages : std::array<std::byte, 8192> {};

class verbs_registration : public ::testing::Test {
 protected:
  // Once the libraries are what the test wants.
  std::shared_ptr<verbs::domain> open() {
    return std::make_shared<verbs::domain>(std::make_shared<device>(libraries, ""));
  }
  // A device that pages on demand, for these operations.
  void open_paging(std::uint32_t operations) {
    libraries.on_demand.general_caps = IBV_ODP_SUPPORT;
    libraries.on_demand.per_transport_caps.rc_odp_caps = operations;
    memory_domain = open();
  }
  std::error_code refusal(const mr::registration_options& options) {
    return test::code_thrown_by([&] { static_cast<void>(memory_domain->register_now(memory, options)); });
  }
  std::string words(const mr::registration_options& options) {
    return test::words_thrown_by([&] { static_cast<void>(memory_domain->register_now(memory, options)); });
  }
  unsigned access_of(const mr::registration_options& options) {
    mr::registration made = memory_domain->register_now(memory, options);
    memory_domain->deregister_now(made);
    return libraries.registrations.back().access;
  }
  /// Registers memory that peers are to flush, as a region does.
  auto register_for_flushes(std::span<std::byte> bytes, bool on_demand, bool disabled = false) {
    auto state = memory_domain->borrow(bytes);
    const mr::registration_options wanted{.usage = flushed, .disabled = disabled, .on_demand = on_demand};
    memory_domain->prepare(*state, wanted);
    state->register_now();
    return state;
  }
  std::uintptr_t address() const { return reinterpret_cast<std::uintptr_t>(memory.data()); }

  static constexpr mr::usage flushed = mr::usage::write_dst | mr::usage::flush_persistent;

  fake_libraries libraries{{"rxe0"}};
  ibv_mr* find(const mr::registration& made, mr::access rights) const {
    mr::memory_record record;
    record.registration = made;
    return memory_domain->find(record, rights);
  }

  std::shared_ptr<verbs::domain> memory_domain = open();
  pages memory;
};

TEST_F(verbs_registration, registers_for_peers_at_their_iova_and_for_us_where_the_memory_is) {
  const mr::registration_options options{.usage = mr::usage::recv | mr::usage::read_src | mr::usage::bind_window,
                                         .iova = 0x70000000};
  mr::registration made = memory_domain->register_now(memory, options);
  EXPECT_EQ(made.address, *options.iova);
  const std::vector<fake_libraries::registration> both = {{*options.iova, IBV_ACCESS_REMOTE_READ},
                                                          {address(), IBV_ACCESS_MW_BIND | IBV_ACCESS_LOCAL_WRITE}};
  EXPECT_EQ(libraries.registrations, both);
  EXPECT_NE(made.local_key - 100, made.remote_key - 200);
  // A window lies in the region whose addresses are the memory's own.
  EXPECT_EQ(find(made, mr::access::bind_window)->lkey, made.local_key);
  memory_domain->deregister_now(made);
  EXPECT_EQ(libraries.regions, 0);
}

TEST_F(verbs_registration, registers_once_what_is_at_an_iova_for_peers_alone_or_not_for_peers_at_all) {
  constexpr std::uint64_t iova = 0x70000000;
  mr::registration theirs = memory_domain->register_now(memory, {.usage = mr::usage::write_dst, .iova = iova});
  EXPECT_EQ(libraries.registrations.back().iova, iova);
  EXPECT_EQ(theirs.local_key, 0u);
  EXPECT_EQ(find(theirs, mr::access::bind_window), nullptr);
  mr::registration ours = memory_domain->register_now(memory, {.usage = mr::usage::recv, .iova = iova});
  EXPECT_EQ(libraries.registrations.back().iova, address());
  EXPECT_EQ(ours.remote_key, 0u);
  EXPECT_EQ(libraries.registrations.size(), 2u);
  memory_domain->deregister_now(theirs);
  memory_domain->deregister_now(ours);
}

// The kernel takes the right to bind windows for one to write, and refuses it where pages can only be read.
TEST_F(verbs_registration, of_memory_that_is_only_read_asks_for_no_right_that_needs_more) {
  EXPECT_EQ(access_of({.usage = mr::usage::send | mr::usage::write_src}), 0u);
  EXPECT_EQ(access_of({.usage = mr::usage::read_src}), unsigned{IBV_ACCESS_REMOTE_READ});
}

TEST_F(verbs_registration, of_a_pools_memory_lets_its_buffers_be_exposed) {
  const mr::arena memory_of_pool(memory_domain, 8192, false, -1, system_calls::kernel());
  EXPECT_EQ(libraries.registrations.back().access, unsigned{IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND});
  EXPECT_NE(memory_domain->find(memory_of_pool.record(), mr::access::bind_window | mr::access::local_write), nullptr);
}

TEST_F(verbs_registration, of_which_one_half_cannot_be_registered_keeps_no_other_half) {
  constexpr std::uint64_t iova = 0x70000000;
  const mr::registration_options options{.usage = mr::usage::recv | mr::usage::read_src, .iova = iova};
  libraries.failing_registration = 2;
  EXPECT_EQ(refusal(options), errc::no_memory);
  EXPECT_EQ(libraries.registrations.size(), 1u);
  EXPECT_EQ(libraries.regions, 0);
}

TEST_F(verbs_registration, starts_at_zero_with_an_iova_and_so_at_a_page) {
  mr::registration made = memory_domain->register_now(memory, {.usage = mr::usage::read_src, .zero_based = true});
  EXPECT_EQ(made.address, 0u);
  const std::vector<fake_libraries::registration> one = {{0, IBV_ACCESS_REMOTE_READ}};
  EXPECT_EQ(libraries.registrations, one);
  memory_domain->deregister_now(made);
  const auto askew = std::span<std::byte>(memory).subspan(1);
  const mr::registration_options options{.usage = mr::usage::read_src, .zero_based = true};
  EXPECT_EQ(test::code_thrown_by([&] { static_cast<void>(memory_domain->register_now(askew, options)); }),
            errc::misaligned);
  EXPECT_EQ(libraries.registrations.size(), 1u);
}

TEST_F(verbs_registration, at_an_iova_is_refused_where_the_device_does_not_heed_it) {
  libraries.limits.vendor_id = 0x626D74;  // siw
  memory_domain = open();
  EXPECT_EQ(refusal({.usage = mr::usage::read_src, .iova = 0x70000000}), errc::not_supported);
  EXPECT_EQ(refusal({.usage = mr::usage::read_src, .zero_based = true}), errc::not_supported);
  EXPECT_TRUE(libraries.registrations.empty());
}

TEST_F(verbs_registration, is_not_asked_for_more_than_the_device_can_do) {
  libraries.limits.max_mr_size = 99;
  libraries.limits.max_mr = 1;
  const auto small = open();
  const mr::registration_options options{.usage = mr::usage::send};
  const auto words = [&](std::size_t bytes) {
    const auto part = std::span(memory).first(bytes);
    return test::words_thrown_by([&] { static_cast<void>(small->register_now(part, options)); });
  };
  EXPECT_NE(words(100).find("at most 99 bytes"), std::string::npos) << words(100);
  mr::registration only = small->register_now(std::span(memory).first(99), options);
  EXPECT_NE(words(1).find("1 regions, which is its maximum"), std::string::npos) << words(1);
  EXPECT_EQ(libraries.registrations.size(), 1u);
  small->deregister_now(only);
}

TEST_F(verbs_registration, of_rdmacm_maps_to_exactly_the_access_that_its_calls_ask_for) {
  libraries.limits.device_cap_flags = 0;  // no windows
  memory_domain = open();
  constexpr unsigned local = IBV_ACCESS_LOCAL_WRITE;
  EXPECT_EQ(access_of({.usage = mr::porting::usage_of_rdma_reg_msgs}), local);
  EXPECT_EQ(access_of({.usage = mr::porting::usage_of_rdma_reg_read}), local | IBV_ACCESS_REMOTE_READ);
  EXPECT_EQ(access_of({.usage = mr::porting::usage_of_rdma_reg_write}), local | IBV_ACCESS_REMOTE_WRITE);
}

TEST_F(verbs_registration, asks_for_every_access_flag_that_it_was_ported_from) {
  open_paging(~0u);
  const unsigned flags[] = {IBV_ACCESS_LOCAL_WRITE,
                            IBV_ACCESS_REMOTE_READ,
                            IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
                            IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC,
                            IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND,
                            IBV_ACCESS_ON_DEMAND,
                            IBV_ACCESS_ON_DEMAND | IBV_ACCESS_HUGETLB,
                            IBV_ACCESS_RELAXED_ORDERING};
  for (const unsigned wanted : flags) {
    EXPECT_EQ(access_of(mr::porting::options_from_ibv_access(wanted)), wanted) << std::hex << wanted;
  }
}

TEST_F(verbs_registration, of_pinned_huge_pages_makes_no_promise_that_is_for_paging_on_demand_alone) {
  EXPECT_EQ(access_of({.usage = mr::usage::send, .huge_pages = true}) & IBV_ACCESS_HUGETLB, 0u);
}

TEST_F(verbs_registration, on_demand_is_refused_where_the_device_cannot_and_names_the_operation_that_it_cannot_do) {
  EXPECT_NE(words({.usage = mr::usage::send, .on_demand = true}).find("on_demand: not supported"), std::string::npos);
  open_paging(IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_WRITE);
  const mr::registration_options wanted{.usage = mr::usage::write_dst | mr::usage::read_src, .on_demand = true};
  EXPECT_EQ(refusal(wanted), errc::not_supported);
  EXPECT_NE(words(wanted).find("on_demand for read_src"), std::string::npos) << words(wanted);
  EXPECT_TRUE(libraries.registrations.empty());
  EXPECT_NE(access_of({.usage = mr::usage::write_dst, .on_demand = true}) & IBV_ACCESS_ON_DEMAND, 0u);
}

TEST_F(verbs_registration, of_everything_is_implicit_paging_on_demand) {
  const auto of_everything = [&] { return memory_domain->register_now(mr::everything(), {.usage = mr::usage::send}); };
  open_paging(IBV_ODP_SUPPORT_SEND);
  EXPECT_EQ(test::code_thrown_by(of_everything), errc::not_supported);
  libraries.on_demand.general_caps = IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT;
  memory_domain = open();
  mr::registration made = of_everything();
  EXPECT_EQ(libraries.registrations.back(), (fake_libraries::registration{0, IBV_ACCESS_ON_DEMAND}));
  EXPECT_EQ(libraries.last_range, std::pair(static_cast<void*>(nullptr), SIZE_MAX));
  EXPECT_EQ(made.remote_key, 0u);
  memory_domain->deregister_now(made);
}

TEST_F(verbs_registration, on_demand_is_tried_again_where_the_mapping_has_changed_meanwhile) {
  open_paging(~0u);
  libraries.failures = {{"reg_mr", EAGAIN}};
  EXPECT_NE(access_of({.usage = mr::usage::send, .on_demand = true}), 0u);
}

TEST_F(verbs_registration, for_persistent_flushes_is_of_memory_that_is_paged_on_demand) {
  if (!test::disk_file::is_possible()) GTEST_SKIP() << "the directory of the build is not on a disk";
  const test::disk_file file(4096);
  const mr::mapping mapped = file.mapped(4096);
  const std::span pages(mapped.data(), mapped.size());
  const auto pinned = [&] { return register_for_flushes(pages, false); };
  const auto disabled = [&] { return register_for_flushes(pages, false, true); };  // has no rights for peers at first
  EXPECT_EQ(test::code_thrown_by(pinned), errc::not_supported);
  open_paging(~0u);
  EXPECT_TRUE(test::contains(test::words_thrown_by(pinned), "needs on_demand"));
  EXPECT_EQ(test::code_thrown_by(disabled), errc::not_supported);
  EXPECT_TRUE(libraries.registrations.empty());
  static_cast<void>(register_for_flushes(pages, true));
  EXPECT_EQ(libraries.registrations.size(), 1u);
}

TEST_F(verbs_registration, for_persistent_flushes_is_of_dax_devices_where_the_device_flushes) {
  libraries.flushes = true;
  open_paging(~0u);
  const unsigned all_rights = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE | access_flush_persistent;
  const auto pinned = [&] { return register_for_flushes(memory, false); };
  const auto made = pinned();
  EXPECT_EQ(libraries.registrations.back().access, all_rights);
  EXPECT_EQ(memory_domain->describe(*made, memory.size(), flushed).places().size(), 1u);  // none for the owner
  // A disabled region has no rights for peers at first. Enabling it registers it anew.
  const auto state = register_for_flushes(memory, false, true);
  EXPECT_EQ(libraries.registrations.back().access, 0u);
  memory_domain->refresh_now(*state, state->bytes, {.usage = flushed});
  EXPECT_EQ(libraries.registrations.back().access, all_rights);
  libraries.not_dax = "its file 'log' is no DAX device";
  EXPECT_TRUE(test::contains(test::words_thrown_by(pinned), "'log' is no DAX device; for other files"));
  const auto on_demand = [&] { return register_for_flushes(memory, true); };  // for which the owner needs a file
  EXPECT_EQ(test::code_thrown_by(on_demand), errc::not_supported);
  libraries.not_dax.clear();
  libraries.failures["reg_mr"] = EINVAL;
  EXPECT_TRUE(test::contains(test::words_thrown_by(pinned), "memmap="));
  EXPECT_EQ(access_of({.usage = mr::usage::write_dst}), unsigned{IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE});
}

TEST_F(verbs_registration, knows_a_dax_device_from_other_memory) {
  const rdma_calls& library = rdma_calls::libraries();
  EXPECT_EQ(library.why_not_dax(memory), "it is not mapped from a file");
  const test::disk_file file(4096);
  const mr::mapping pages = file.mapped(4096);
  EXPECT_NE(library.why_not_dax({pages.data(), pages.size()}).find("is no DAX device"), std::string::npos);
}

TEST_F(verbs_registration, of_a_devices_memory_goes_by_descriptor_and_offset) {
  libraries.dmabuf_failure = 0;
  memory_domain = open();
  mr::registration made = memory_domain->register_now(
      memory, {.usage = mr::usage::write_dst | mr::usage::send, .dmabuf = 7, .dmabuf_offset = 12288});
  EXPECT_EQ(libraries.last_dmabuf, 7);
  EXPECT_EQ(libraries.last_dmabuf_offset, 12288u);
  // Of the flags that ibv_reg_dmabuf_mr(3) takes: windows are none.
  const std::vector<fake_libraries::registration> one = {{address(), IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE}};
  EXPECT_EQ(libraries.registrations, one);
  memory_domain->deregister_now(made);
  EXPECT_EQ(libraries.regions, 0);
}

TEST_F(verbs_registration, of_a_devices_memory_is_refused_where_it_cannot_be) {
  EXPECT_NE(words({.usage = mr::usage::send, .dmabuf = 7}).find("dmabuf: not supported"), std::string::npos);
  libraries.dmabuf_failure = 0;
  memory_domain = open();
  EXPECT_EQ(refusal({.usage = mr::usage::bind_window, .dmabuf = 7}), errc::not_supported);
  EXPECT_EQ(refusal({.usage = mr::usage::send, .dmabuf = 7, .dmabuf_offset = 1}), errc::misaligned);
  EXPECT_EQ(refusal({.usage = mr::usage::send, .dmabuf_offset = 4096}), errc::invalid_argument);
  EXPECT_TRUE(libraries.registrations.empty());
}

// A GPU of which the processor sees nothing: all that a registration asks of one.
class fake_gpu final : public mr::memory_device {
 public:
  static constexpr std::uint64_t page = 4096;

  [[nodiscard]] std::string_view name() const noexcept override { return "fake:0"; }
  [[nodiscard]] mr::device_allocation find(std::span<const std::byte>) override { return {.id = 7, .bytes = memory()}; }
  [[nodiscard]] std::unique_ptr<mr::copy_stream> open_stream() override { throw error(errc::not_supported); }
  [[nodiscard]] std::unique_ptr<mr::copy_stream> borrow_stream(void*) override { throw error(errc::not_supported); }
  [[nodiscard]] bool pin(std::span<std::byte>) override { return false; }
  void unpin(std::span<std::byte>) noexcept override {}
  [[nodiscard]] mr::device_dmabuf export_dmabuf(std::span<std::byte> range) override {
    if (!has_dmabuf) throw error(errc::not_supported, "export a dma-buf");
    last_descriptor = ::eventfd(0, EFD_CLOEXEC);
    return {.descriptor = last_descriptor,
            .offset = 8 * page + static_cast<std::uint64_t>(range.data() - memory().data()) % page};
  }
  void make_writes_visible() override { throw error(errc::not_supported); }
  [[nodiscard]] mr::device_share share(std::span<std::byte>) override { throw error(errc::not_supported); }
  [[nodiscard]] std::byte* open_share(const mr::device_share&, std::size_t) override {
    throw error(errc::not_supported);
  }
  void close_share(std::byte*) noexcept override {}

  [[nodiscard]] static std::span<std::byte> memory() noexcept {
    return {reinterpret_cast<std::byte*>(std::uintptr_t{0x7f00'0000'0000}), 16 * page};
  }
  bool has_dmabuf = true;
  int last_descriptor = -1;

 private:
  [[nodiscard]] std::byte* do_allocate(std::size_t) override { throw error(errc::not_supported); }
  void do_free(std::byte*) noexcept override {}
};

class registration_of_a_gpu : public verbs_registration {
 protected:
  mr::region make(mr::usage uses) {
    mr::region made;
    test::run([&]() -> task<> {
      made = co_await memory_domain->register_memory(gpu->memory().subspan(512, 4096),
                                                     {.usage = uses, .device = gpu.get()});
    });
    return made;
  }

  std::shared_ptr<fake_gpu> gpu = std::make_shared<fake_gpu>();
};

TEST_F(registration_of_a_gpu, goes_by_a_dmabuf_of_its_pages_which_is_closed_at_once) {
  libraries.dmabuf_failure = 0;
  memory_domain = open();
  {
    const mr::region made = make(mr::usage::write_dst | mr::usage::send | mr::usage::bind_window);
    EXPECT_EQ(libraries.last_dmabuf, gpu->last_descriptor);
    EXPECT_EQ(::fcntl(gpu->last_descriptor, F_GETFD), -1);
    EXPECT_EQ(libraries.last_dmabuf_offset, 8 * fake_gpu::page + 512);
    const auto address = reinterpret_cast<std::uintptr_t>(gpu->memory().data()) + 512;
    // A dma-buf has no windows.
    const std::vector<fake_libraries::registration> one = {{address, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE}};
    EXPECT_EQ(libraries.registrations, one);
    EXPECT_EQ(made.remote().places().size(), 1u);
    EXPECT_EQ(made.remote().places()[0].fabric, 0);
    EXPECT_EQ(made.slice().kind(), mr::memory_kind::device);
  }
  EXPECT_EQ(libraries.regions, 0);
}

// By the owner's copies then.
TEST_F(registration_of_a_gpu, that_the_device_does_not_reach_is_no_error_and_none_of_the_devices) {
  const auto expect_copies = [&] {
    const mr::region made = make(mr::usage::write_dst);
    EXPECT_TRUE(libraries.registrations.empty());
    ASSERT_EQ(made.remote().places().size(), 1u);
    EXPECT_EQ(made.remote().places()[0].fabric, mr::place_behind_owner);
    EXPECT_NE(made.remote().places()[0].key, 0u);
  };
  expect_copies();  // the kernel has no dma-buf for this device
  libraries.dmabuf_failure = 0;
  memory_domain = open();
  gpu->has_dmabuf = false;
  expect_copies();
}

TEST_F(registration_of_a_gpu, that_fails_for_another_reason_is_an_error) {
  libraries.dmabuf_failure = 0;
  memory_domain = open();
  libraries.dmabuf_failure = ENOMEM;
  EXPECT_THROW(static_cast<void>(make(mr::usage::write_dst)), error);
  EXPECT_EQ(::fcntl(gpu->last_descriptor, F_GETFD), -1);
}

// ---- rights and limits ----

using verbs_domain = verbs_registration;

TEST_F(verbs_domain, asks_for_the_rights_that_a_usage_needs_and_no_others) {
  const struct {
    mr::usage uses;
    unsigned rights;
  } expected[] = {
      {mr::usage::send, 0},
      {mr::usage::recv, IBV_ACCESS_LOCAL_WRITE},
      {mr::usage::read_src, IBV_ACCESS_REMOTE_READ},
      {mr::usage::write_dst, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE},  // EINVAL without the latter
      {mr::usage::atomic_dst, IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_LOCAL_WRITE},
      {mr::usage::bind_window, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND},
  };
  for (const auto& [uses, rights] : expected) {
    mr::registration made = memory_domain->register_now(memory, {.usage = uses});
    EXPECT_EQ(libraries.registrations.back().access, rights) << to_string(uses);
    EXPECT_EQ(made.remote_key != 0, overlaps(uses, mr::peer_usages)) << to_string(uses);
    memory_domain->deregister_now(made);
  }
  EXPECT_EQ(libraries.regions, 0);
}

TEST_F(verbs_domain, that_runs_out_of_lockable_memory_says_what_to_do) {
  libraries.failures = {{"reg_mr", ENOMEM}};
  EXPECT_EQ(refusal({.usage = mr::usage::send}), errc::no_memory);
  libraries.failures = {{"reg_mr", EFAULT}};
  EXPECT_EQ(refusal({.usage = mr::usage::send}).value(), EFAULT);
  EXPECT_EQ(libraries.regions, 0);
}

TEST_F(verbs_domain, finds_the_region_for_a_window_by_its_record_whatever_others_of_the_same_memory_there_are) {
  const auto add = [&](mr::usage uses) { return memory_domain->register_now(memory, {.usage = uses}); };
  constexpr auto writable = mr::access::bind_window | mr::access::local_write;
  mr::registration plain = add(mr::usage::send);
  EXPECT_EQ(find(plain, writable), nullptr);
  mr::registration older = add(mr::usage::bind_window);
  mr::registration younger = add(mr::usage::bind_window);
  for (const mr::registration* each : {&older, &younger}) {
    const ibv_mr* const found = find(*each, writable);
    ASSERT_NE(found, nullptr);
    EXPECT_EQ(found->lkey, each->local_key);
  }
  EXPECT_EQ(find(plain, writable), nullptr);
  memory_domain->deregister_now(older);
  memory_domain->deregister_now(younger);
  memory_domain->deregister_now(plain);
}

TEST_F(verbs_domain, pins_and_cannot_choose_keys) {
  EXPECT_TRUE(memory_domain->pins());
  EXPECT_FALSE(memory_domain->capabilities().requested_key);
}

TEST(fork, is_prepared_for_only_where_the_kernel_does_not_take_care_of_it) {
  for (const ibv_fork_status status : {IBV_FORK_UNNEEDED, IBV_FORK_ENABLED, IBV_FORK_DISABLED}) {
    fake_libraries libraries({"rxe0"});
    libraries.fork_status = status;
    const device opened(libraries, "");
    EXPECT_EQ(libraries.fork_inits, status == IBV_FORK_DISABLED ? 1 : 0);
  }
}

}  // namespace
}  // namespace weft::net::verbs
