// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/porting/porting.hpp>

#include "../../sim/loose_task.hpp"
#include "kit/failure.hpp"
#include "kit/held_workers.hpp"
#include "mr/support.hpp"

namespace weft::mr {
namespace {

using test::recording_domain;

// Aligned as strictly as an iova can demand.
struct alignas(4096) page {
  std::array<std::byte, 4096> bytes{};
};

std::error_code refusal(recording_domain& domain, std::span<std::byte> memory, registration_options options) {
  return test::code_thrown_by(
      [&] { test::run([&]() -> task<> { const region made = co_await domain.register_memory(memory, options); }); });
}

class registration_rules : public ::testing::Test {
 protected:
  void expect_refused(std::span<std::byte> range, registration_options options, errc why) {
    EXPECT_EQ(refusal(*domain, range, options), why);
    EXPECT_EQ(domain->registered, 0) << "refused after something had happened";
  }
  void expect_unsupported(registration_options options, const std::string& name) {
    const auto plain = std::make_shared<recording_domain>(domain_capabilities{.usages = known_usages});
    const std::string words = test::words_thrown_by([&] { return plain->register_now(memory.bytes, options); });
    EXPECT_NE(words.find(name), std::string::npos) << words;
    EXPECT_EQ(test::code_thrown_by([&] { return plain->register_now(memory.bytes, options); }), errc::not_supported);
    EXPECT_EQ(plain->registered, 0);
  }

  std::shared_ptr<recording_domain> domain = std::make_shared<recording_domain>();
  page memory;
};

TEST_F(registration_rules, zero_bytes_cannot_be_registered) {
  expect_refused(std::span(memory.bytes).first(0), {.usage = usage::send}, errc::zero_length);
}

TEST_F(registration_rules, null_cannot_be_registered) {
  expect_refused({static_cast<std::byte*>(nullptr), 8}, {.usage = usage::send}, errc::null_address);
}

TEST_F(registration_rules, memory_does_not_wrap_around) {
  const std::span<std::byte> around(memory.bytes.data(), SIZE_MAX - 31);
  expect_refused(around, {.usage = usage::send}, errc::out_of_range);
  expect_refused(around, {.usage = usage::write_dst, .zero_based = true}, errc::out_of_range);
}

TEST_F(registration_rules, unknown_usage_bits_are_refused) {
  for (unsigned bit = 10; bit < 16; ++bit) {
    expect_refused(memory.bytes, {.usage = static_cast<usage>(1U << bit)}, errc::unknown_usage);
  }
}

TEST_F(registration_rules, an_iova_has_the_page_offset_of_its_address) {
  expect_refused(memory.bytes, {.usage = usage::send, .iova = 1}, errc::misaligned);
  expect_refused(memory.bytes, {.usage = usage::send, .iova = 4095}, errc::misaligned);
  EXPECT_EQ(refusal(*domain, memory.bytes, {.usage = usage::send, .iova = 8192}), std::error_code());
}

TEST_F(registration_rules, an_iova_does_not_wrap_around) {
  const std::uint64_t last_page = ~std::uint64_t{4095};
  std::vector<page> two(2);
  const std::span<std::byte> both(two[0].bytes.data(), 8192);
  expect_refused(both, {.usage = usage::send, .iova = last_page}, errc::out_of_range);
  EXPECT_EQ(refusal(*domain, memory.bytes, {.usage = usage::send, .iova = last_page}), std::error_code());
}

TEST_F(registration_rules, zero_based_and_iova_contradict_each_other) {
  expect_refused(memory.bytes, {.usage = usage::send, .iova = 0, .zero_based = true}, errc::invalid_argument);
}

TEST_F(registration_rules, a_devices_memory_has_the_page_offset_of_where_it_is_mapped) {
  expect_refused(memory.bytes, {.usage = usage::send, .dmabuf = 3, .dmabuf_offset = 1}, errc::misaligned);
  expect_refused(memory.bytes, {.usage = usage::send, .dmabuf_offset = 4096}, errc::invalid_argument);
  expect_refused(memory.bytes, {.usage = usage::send, .on_demand = true, .dmabuf = 3}, errc::invalid_argument);
  EXPECT_EQ(refusal(*domain, memory.bytes, {.usage = usage::send, .dmabuf = 3, .dmabuf_offset = 4096}),
            std::error_code());
}

TEST_F(registration_rules, what_a_domain_cannot_do_is_refused_by_name) {
  expect_unsupported({.iova = 4096}, "iova");
  expect_unsupported({.zero_based = true}, "zero_based");
  expect_unsupported({.requested_key = 7}, "requested_key");
  expect_unsupported({.disabled = true}, "disabled");
  expect_unsupported({.on_demand = true}, "on_demand");
  expect_unsupported({.lazy = true}, "lazy");
  expect_unsupported({.dmabuf = 3}, "dmabuf");
}

TEST_F(registration_rules, a_usage_that_a_domain_cannot_grant_is_refused_by_name) {
  const auto plain = std::make_shared<recording_domain>(domain_capabilities{.usages = usage::send});
  const registration_options options{.usage = usage::send | usage::atomic_dst};
  const std::string words = test::words_thrown_by([&] { return plain->register_now(memory.bytes, options); });
  EXPECT_NE(words.find("usage atomic_dst"), std::string::npos) << words;
}

// TEST and TASK_TEST with a domain.
#define TEST_OF_DOMAIN(suite, name)                                                  \
  void suite##_##name##_body(const std::shared_ptr<recording_domain>& domain);       \
  TEST(suite, name) { suite##_##name##_body(std::make_shared<recording_domain>()); } \
  void suite##_##name##_body(const std::shared_ptr<recording_domain>& domain)
#define TASK_TEST_OF_DOMAIN(suite, name)                                         \
  task<> suite##_##name##_task(std::shared_ptr<recording_domain> domain);        \
  TEST_OF_DOMAIN(suite, name) { executor().run(suite##_##name##_task(domain)); } \
  task<> suite##_##name##_task(std::shared_ptr<recording_domain> domain)
// With so many registrations, all of which have been undone in the end.
#define TASK_TEST_REGISTERING(suite, name, count)                         \
  task<> suite##_##name##_task(std::shared_ptr<recording_domain> domain); \
  TEST_OF_DOMAIN(suite, name) {                                           \
    executor().run(suite##_##name##_task(domain));                        \
    EXPECT_EQ(domain->registered, count);                                 \
    EXPECT_EQ(domain->deregistered, count);                               \
  }                                                                       \
  task<> suite##_##name##_task(std::shared_ptr<recording_domain> domain)

TASK_TEST_REGISTERING(region, is_registered_on_a_worker_and_not_on_the_executor, 1) {
  std::vector<std::byte> memory(100);
  region made = co_await domain->register_memory(std::span(memory), {.usage = usage::send, .relaxed_ordering = true});
  EXPECT_NE(domain->last_registration, std::this_thread::get_id());
  EXPECT_TRUE(domain->last_options.relaxed_ordering);
  EXPECT_EQ(made.data(), memory.data());
  EXPECT_EQ(made.size(), 100U);
  EXPECT_EQ(made.usage(), usage::send);
  co_await made.release();
  EXPECT_NE(domain->last_deregistration, std::this_thread::get_id());
  EXPECT_FALSE(made);
  co_await made.release();  // nothing left to do
}

TASK_TEST_REGISTERING(region, refreshed_is_registered_anew_on_a_worker, 2) {
  region made = co_await domain->register_memory(std::vector<std::byte>(100), {.usage = usage::read_src});
  domain->last_registration = {};
  co_await porting::refresh(made);
  EXPECT_NE(domain->last_registration, std::thread::id());
  EXPECT_NE(domain->last_registration, std::this_thread::get_id());
  EXPECT_EQ(made.usage(), usage::read_src);
  EXPECT_EQ(made.remote().key(), 1002u);
  EXPECT_EQ(domain->deregistered, 1);
}

TASK_TEST_REGISTERING(region, that_cannot_be_refreshed_stays_as_it_is, 1) {
  region made = co_await domain->register_memory(std::vector<std::byte>(100), {.usage = usage::read_src});
  {
    const region_pin used(made.slice());
    EXPECT_EQ(co_await test::code_of(porting::refresh(made)), errc::busy);
  }
  domain->refuse = true;
  EXPECT_EQ(co_await test::code_of(porting::refresh(made)), errc::no_memory);
  EXPECT_EQ(made.usage(), usage::read_src);
  EXPECT_EQ(made.remote().key(), 1001u);
  EXPECT_EQ(domain->deregistered, 0);
}

/// Changes a region in a task of its own, with the worker held up inside of the domain while `meanwhile` looks at it.
template <class Change, class Meanwhile>
void look_at_a_region_while(recording_domain& domain, Change&& change, Meanwhile&& meanwhile, bool disabled = false) {
  test::run([&]() -> task<> {
    const registration_options options{.usage = usage::read_src, .disabled = disabled};
    region made = co_await domain.register_memory(std::vector<std::byte>(100), options);
    test::held_first worker;
    domain.while_registering = [&] { worker.pass(); };
    co_await with_scope(on_failure::stop_siblings, [&](scope& children) -> task<> {
      children.spawn(change(made));
      co_await yield();
      worker.wait();
      co_await meanwhile(made);
      worker.let_go();
    });
    domain.while_registering = [] {};
  });
}

task<> expect_to_be_there_and_busy(region& target) {
  EXPECT_TRUE(target);
  EXPECT_EQ(target.size(), 100u);
  EXPECT_EQ(target.bytes().size(), 100u);
  EXPECT_NE(target.data(), nullptr);
  EXPECT_EQ(target.usage(), usage::read_src);
  EXPECT_EQ(test::code_thrown_by([&] { return target.slice(); }), errc::busy);
  EXPECT_EQ(test::code_thrown_by([&] { return target.slice(10, 20); }), errc::busy);
  EXPECT_EQ(test::code_thrown_by([&] { return target.remote(); }), errc::busy);
  EXPECT_EQ(co_await test::code_of(porting::enable(target)), errc::busy);
}

TEST_OF_DOMAIN(region, keeps_its_memory_and_refuses_its_keys_while_it_is_refreshed) {
  const auto refresh = [](region& target) -> task<> {
    co_await porting::refresh(target);
    EXPECT_EQ(target.remote().key(), 1002u);
  };
  const auto meanwhile = [](region& target) -> task<> {
    EXPECT_TRUE(porting::enabled(target));
    co_await expect_to_be_there_and_busy(target);
    EXPECT_EQ(co_await test::code_of(target.release()), errc::busy);
    EXPECT_EQ(co_await test::code_of(porting::refresh(target)), errc::busy);
  };
  look_at_a_region_while(*domain, refresh, meanwhile);
  EXPECT_EQ(domain->registered, 2);
}

// A fabric that cannot keep a region closed by itself.
constexpr domain_capabilities without_gates{.usages = known_usages, .disabled = true};

TEST(region, keeps_its_memory_and_refuses_its_keys_while_it_is_enabled) {
  const auto enable = [](region& target) -> task<> {
    co_await porting::enable(target);
    EXPECT_EQ(target.remote().key(), 1002u);
  };
  const auto meanwhile = [](region& target) -> task<> {
    EXPECT_FALSE(porting::enabled(target));
    co_await expect_to_be_there_and_busy(target);
    EXPECT_EQ(co_await test::code_of(target.release()), errc::busy);
    EXPECT_EQ(co_await test::code_of(porting::enable(target)), errc::busy);
  };
  const auto domain = std::make_shared<recording_domain>(without_gates);
  look_at_a_region_while(*domain, enable, meanwhile, true);
}

task<> refresh(region& target) { co_await porting::refresh(target); }

TEST_OF_DOMAIN(region, may_be_moved_or_destroyed_while_it_is_refreshed) {
  const auto move_and_destroy = [](region& target) -> task<> {
    const region elsewhere(std::move(target));
    co_return;
  };
  look_at_a_region_while(*domain, refresh, move_and_destroy);
  EXPECT_EQ(domain->registered, 2);
  EXPECT_EQ(domain->deregistered, 2);
}

sim::loose_task refresh_loosely(region& target) { co_await porting::refresh(target); }

TEST(region, that_is_refreshed_by_a_task_that_is_destroyed_has_what_the_worker_has_made) {
  const auto domain = std::make_shared<recording_domain>(without_gates);
  test::held_workers workers;
  executor home({.workers = &workers});
  page memory;
  const auto root = [&]() -> task<> {
    const std::span<std::byte> bytes(memory.bytes);
    region made = co_await domain->register_memory(bytes, {.usage = usage::write_dst, .disabled = true});
    const porting::write_counter counter;
    porting::bind(made, counter);
    co_await porting::enable(made);
    {
      const auto refreshing = refresh_loosely(made);
      workers.hold_next_until_waited_for();
      refreshing.start(home);
      while (!workers.hold_it() || !refreshing.at_rest()) co_await yield();
    }
    EXPECT_EQ(made.remote().key(), 1003u);
    EXPECT_EQ(domain->counted, made.remote().key());
    co_await made.release();
  };
  home.run(root());
  EXPECT_EQ(domain->registered, 3);
  EXPECT_EQ(domain->deregistered, 3);
}

constexpr usage for_both = usage::send | usage::read_src | usage::write_dst;

task<region> disabled_region(recording_domain& of) {
  return of.register_memory(std::vector<std::byte>(100), {.usage = for_both, .disabled = true});
}

TASK_TEST(region, that_is_disabled_is_registered_for_its_owner_alone_until_it_is_enabled) {
  const auto domain = std::make_shared<recording_domain>(without_gates);
  region made = co_await disabled_region(*domain);
  EXPECT_EQ(domain->last_options.usage, usage::send);
  EXPECT_EQ(made.usage(), for_both);
  EXPECT_FALSE(porting::enabled(made));
  EXPECT_EQ(made.slice().record()->registration.local_key, 1u);
  EXPECT_EQ(test::code_thrown_by([&] { return made.remote(); }), errc::access_denied);
  {
    const region_pin used(made.slice());
    EXPECT_EQ(co_await test::code_of(porting::enable(made)), errc::busy);
  }
  co_await porting::enable(made);
  EXPECT_EQ(domain->last_options.usage, for_both);
  EXPECT_FALSE(domain->last_options.disabled);
  EXPECT_TRUE(porting::enabled(made));
  EXPECT_EQ(made.remote().key(), 1002u);
  EXPECT_EQ(domain->deregistered, 1);
  co_await porting::enable(made);
  EXPECT_EQ(domain->registered, 2);
}

TASK_TEST(region, that_cannot_be_enabled_stays_as_it_is) {
  const auto domain = std::make_shared<recording_domain>(without_gates);
  region made = co_await disabled_region(*domain);
  domain->refuse = true;
  EXPECT_EQ(co_await test::code_of(porting::enable(made)), errc::no_memory);
  EXPECT_FALSE(porting::enabled(made));
  EXPECT_EQ(made.slice().size(), 100u);
  EXPECT_EQ(test::code_thrown_by([&] { return made.remote(); }), errc::access_denied);
  domain->refuse = false;
  co_await porting::enable(made);
  EXPECT_EQ(made.remote().key(), 1002u);
}

TEST(region, may_be_moved_or_destroyed_while_it_is_enabled) {
  const auto domain = std::make_shared<recording_domain>(without_gates);
  for (const bool destroys : {false, true}) {
    region elsewhere;
    test::run([&]() -> task<> {
      region target = co_await disabled_region(*domain);
      test::held_first worker;
      domain->while_registering = [&] { worker.pass(); };
      co_await with_scope(on_failure::stop_siblings, [&](scope& all) -> task<> {
        all.spawn(porting::enable(target));
        co_await yield();
        worker.wait();
        elsewhere = std::move(target);
        if (destroys) elsewhere = region();
        worker.let_go();
      });
      domain->while_registering = [] {};
      EXPECT_EQ(porting::enabled(elsewhere), !destroys);
    });
  }
}

TASK_TEST(region, that_counts_tells_peers_by_which_number) {
  const auto domain = std::make_shared<recording_domain>(without_gates);
  region made = co_await disabled_region(*domain);
  const porting::write_counter counter;
  porting::bind(made, counter);
  co_await porting::enable(made);
  const std::uint32_t number = made.remote().counter();
  EXPECT_NE(number, 0u);
  mr::detail::told_counter::add(number, 3);
  mr::detail::told_counter::add(number + 1, 5);
  EXPECT_EQ(counter.value(), 3u);
  co_await made.release();
  mr::detail::told_counter::add(number, 1);
  EXPECT_EQ(counter.value(), 3u);
  region plain = co_await domain->register_memory(std::vector<std::byte>(100), {.usage = for_both});
  EXPECT_EQ(plain.remote().counter(), 0u);
}

TEST(region, that_is_empty_has_no_bytes_and_no_keys) {
  region empty;
  EXPECT_FALSE(empty);
  EXPECT_EQ(empty.size(), 0u);
  EXPECT_TRUE(empty.bytes().empty());
  EXPECT_EQ(empty.usage(), usage::none);
  EXPECT_FALSE(porting::enabled(empty));
  EXPECT_EQ(empty.slice().size(), 0u);
  EXPECT_EQ(test::code_thrown_by([&] { return empty.slice(0, 1); }), errc::out_of_range);
  EXPECT_EQ(test::code_thrown_by([&] { return empty.remote(); }), errc::access_denied);
  const std::string words = test::words_thrown_by([&] { return empty.remote(); });
  EXPECT_TRUE(words.starts_with("take the key of a region that was released, or moved from")) << words;
  EXPECT_EQ(test::code_thrown_by([&] { return porting::remote_writes(empty, 1); }), errc::invalid_argument);
  test::run([&]() -> task<> {
    EXPECT_EQ(co_await test::code_of(porting::enable(empty)), errc::invalid_argument);
    EXPECT_EQ(co_await test::code_of(porting::refresh(empty)), errc::invalid_argument);
  });
}

TASK_TEST_OF_DOMAIN(region, that_borrows_is_deregistered_before_its_destructor_returns) {
  std::vector<std::byte> memory(100);
  { const region made = co_await domain->register_memory(std::span(memory), {.usage = usage::send}); }
  EXPECT_EQ(domain->deregistered, 1);
  EXPECT_EQ(domain->last_deregistration, std::this_thread::get_id());
}

// Memory that knows when it goes.
class watched_memory {
 public:
  explicit watched_memory(const std::function<void()>& gone) : bytes_(64), gone_(&gone) {}
  watched_memory(watched_memory&& other) noexcept
      : bytes_(std::move(other.bytes_)), gone_(std::exchange(other.gone_, nullptr)) {}
  watched_memory& operator=(watched_memory&&) = delete;
  ~watched_memory() {
    if (gone_ != nullptr) (*gone_)();
  }
  std::byte* data() { return bytes_.data(); }
  std::size_t size() const { return bytes_.size(); }
  std::byte* begin() { return bytes_.data(); }
  std::byte* end() { return bytes_.data() + bytes_.size(); }

 private:
  std::vector<std::byte> bytes_;
  const std::function<void()>* gone_;
};

TEST_OF_DOMAIN(region, keeps_its_owner_until_deregistration_has_returned_and_frees_it_on_a_worker) {
  int gone_after = -1;
  std::thread::id gone_on;
  const std::function<void()> gone = [&] {
    gone_after = domain->deregistered;
    gone_on = std::this_thread::get_id();
  };
  test::run([&]() -> task<> {
    watched_memory memory(gone);
    const region made = co_await domain->register_memory(std::move(memory), {.usage = usage::send});
    EXPECT_EQ(made.size(), 64U);
  });
  EXPECT_EQ(gone_after, 1);
  EXPECT_NE(gone_on, std::this_thread::get_id());
  EXPECT_NE(gone_on, std::thread::id());
}

TASK_TEST_OF_DOMAIN(region, released_by_name_frees_its_owner_before_the_call_returns) {
  bool freed = false;
  const std::function<void()> gone = [&] { freed = true; };
  watched_memory memory(gone);
  region made = co_await domain->register_memory(std::move(memory), {.usage = usage::send});
  EXPECT_FALSE(freed);
  co_await made.release();
  EXPECT_TRUE(freed);
}

TEST_OF_DOMAIN(region, destroyed_where_no_executor_runs_deregisters_there) {
  region kept;
  test::run([&]() -> task<> {
    std::vector<std::byte> memory(10);
    kept = co_await domain->register_memory(std::move(memory), {.usage = usage::send});
  });
  EXPECT_EQ(domain->deregistered, 0);
  kept = region();
  EXPECT_EQ(domain->deregistered, 1);
}

TASK_TEST_REGISTERING(region, owns_vectors_arrays_and_what_pointers_point_to, 3) {
  std::vector<std::uint32_t> numbers(10);
  const region of_vector = co_await domain->register_memory(std::move(numbers), {.usage = usage::send});
  EXPECT_EQ(of_vector.size(), 40U);

  // The bytes move together with an array, so what counts is where they end up.
  std::array<std::byte, 32> inline_bytes{};
  inline_bytes[5] = std::byte{42};
  const region of_array = co_await domain->register_memory(std::move(inline_bytes), {.usage = usage::send});
  EXPECT_NE(of_array.data(), inline_bytes.data());
  EXPECT_EQ(of_array.bytes()[5], std::byte{42});

  auto shared = std::make_shared<std::vector<std::byte>>(7);
  auto copy = shared;
  const region of_shared = co_await domain->register_memory(std::move(copy), {.usage = usage::send});
  EXPECT_EQ(of_shared.data(), shared->data());
  EXPECT_EQ(shared.use_count(), 2);
}

TEST_OF_DOMAIN(region, that_could_not_be_registered_leaves_nothing_behind) {
  domain->refuse = true;
  bool freed = false;
  const std::function<void()> gone = [&] { freed = true; };
  region untouched;
  const auto attempt = [&] {
    test::run([&]() -> task<> {
      watched_memory memory(gone);
      untouched = co_await domain->register_memory(std::move(memory), {.usage = usage::send});
    });
  };
  EXPECT_EQ(test::code_thrown_by(attempt), errc::no_memory);
  EXPECT_FALSE(untouched);
  EXPECT_TRUE(freed);
  EXPECT_EQ(domain->deregistered, 0);
}

TEST_OF_DOMAIN(region, is_registered_and_released_while_all_shared_workers_wait_for_a_name_server) {
  const std::size_t workers = std::max(2u, std::thread::hardware_concurrency());
  std::counting_semaphore<> busy(0);
  std::counting_semaphore<> answer(0);
  std::vector<std::byte> memory(8);
  std::error_code code;
  const auto wait = [&] {
    busy.release();
    answer.acquire();
  };
  const auto use_memory = [&]() -> task<> {
    region made = co_await domain->register_memory(std::span(memory), {.usage = usage::send});
    co_await made.release();
  };
  const auto body = [&](scope& children) -> task<> {
    for (std::size_t i = 0; i < workers; ++i) children.spawn(offload(wait));
    co_await yield();
    for (std::size_t i = 0; i < workers; ++i) busy.acquire();
    code = co_await test::code_of(with_timeout(std::chrono::seconds(10), use_memory()));
    answer.release(static_cast<std::ptrdiff_t>(workers));
  };
  test::run([&]() -> task<> { co_await with_scope(on_failure::stop_siblings, body); });
  EXPECT_EQ(code, std::error_code());
  EXPECT_EQ(domain->deregistered, 1);
}

TEST_OF_DOMAIN(region, whose_registration_is_stopped_while_queued_is_never_registered) {
  worker_pool one(1);
  executor_options options{.workers = &one};
  test::held_first worker;
  const auto occupy = [&] { worker.pass(); };
  std::vector<std::byte> memory(8);
  std::error_code code;
  const auto attempt = [&]() -> task<> {
    code = co_await test::code_of(domain->register_memory(std::span(memory), {.usage = usage::send}));
  };
  const auto body = [&]() -> task<> {
    co_await with_scope(on_failure::stop_siblings, [&](scope& children) -> task<> {
      children.spawn(offload(occupy));
      co_await with_scope(on_failure::stop_siblings, [&](scope& stopped) -> task<> {
        stopped.spawn(attempt());
        stopped.request_stop();
        co_return;
      });
      worker.wait();
      worker.let_go();
    });
  };
  test::run(body, options);
  EXPECT_EQ(code, errc::canceled);
  EXPECT_EQ(domain->registered, 0);
}

TEST_OF_DOMAIN(region, whose_registration_is_stopped_under_way_is_undone_before_the_caller_learns_of_it) {
  std::vector<std::byte> memory(8);
  std::error_code code;
  int deregistered_then = -1;
  scope* running = nullptr;
  executor home;
  // The stop is requested while the worker is inside do_register(), and has arrived when it goes on.
  domain->while_registering = [&] {
    std::binary_semaphore stopped(0);
    home.post([&] {
      running->request_stop();
      stopped.release();
    });
    stopped.acquire();
  };
  const auto attempt = [&]() -> task<> {
    try {
      const region made = co_await domain->register_memory(std::span(memory), {.usage = usage::send});
    } catch (const error& failure) {
      code = failure.code();
      deregistered_then = domain->deregistered;
    }
  };
  home.run(with_scope(on_failure::stop_siblings, [&](scope& children) -> task<> {
    running = &children;
    children.spawn(attempt());
    co_return;
  }));
  EXPECT_EQ(code, errc::canceled);
  EXPECT_EQ(domain->registered, 1);
  EXPECT_EQ(deregistered_then, 1);
}

TASK_TEST_OF_DOMAIN(region, in_use_cannot_be_released_and_stays_as_it_is) {
  std::vector<std::byte> memory(8);
  region made = co_await domain->register_memory(std::move(memory), {.usage = usage::send});
  region_pin first(made.slice());
  region_pin second(made.slice(2, 4));
  EXPECT_EQ(co_await test::code_of(made.release()), errc::busy);
  EXPECT_TRUE(made);
  EXPECT_EQ(domain->deregistered, 0);
  first = region_pin();
  second = region_pin();
  co_await made.release();
  EXPECT_EQ(domain->deregistered, 1);
}

TEST_OF_DOMAIN(region, that_owns_and_is_destroyed_in_use_goes_with_the_last_operation) {
  bool freed = false;
  const std::function<void()> gone = [&] { freed = true; };
  test::run([&]() -> task<> {
    region_pin operation;
    {
      watched_memory memory(gone);
      const region made = co_await domain->register_memory(std::move(memory), {.usage = usage::send});
      operation = region_pin(made.slice());
    }
    EXPECT_FALSE(freed);
    EXPECT_EQ(domain->deregistered, 0);
    operation = region_pin();
  });
  EXPECT_TRUE(freed);
  EXPECT_EQ(domain->deregistered, 1);
}

TEST(region, that_borrows_and_is_destroyed_in_use_ends_the_program_with_words) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto misuse = [] {
    const auto domain = std::make_shared<recording_domain>();
    std::vector<std::byte> memory(8);
    test::run([&]() -> task<> {
      std::optional<region> made = co_await domain->register_memory(std::span(memory), {.usage = usage::send});
      const region_pin operation(made->slice());
      made.reset();
    });
  };
  EXPECT_DEATH(misuse(), "borrows its memory was destroyed while an operation uses it");
}

// What a worker has to do before a region's user lets go of it. The worker is the test's.
class late_use final : private detail::last_use {
 public:
  explicit late_use(const region& of) { begin_last_use(region_pin(of.slice())); }
  ~late_use() = default;

  /// The worker begins, and is done.
  void begin() { begun_ = true; }
  void end() { end_last_use(); }
  [[nodiscard]] bool done_by_another() const noexcept { return done_; }

 private:
  [[nodiscard]] bool withdraw() noexcept override { return !begun_.exchange(true); }
  void run_here() noexcept override {
    done_ = true;
    end_last_use();
  }

  std::atomic<bool> begun_ = false;
  std::atomic<bool> done_ = false;
};

TASK_TEST(region, is_not_busy_with_what_a_worker_has_not_begun_but_has_it_done) {
  const auto domain = std::make_shared<recording_domain>(without_gates);
  const auto memory = std::make_unique<page>();
  region made = co_await domain->register_memory(memory->bytes, {.usage = usage::read_src, .disabled = true});
  const late_use first(made);
  co_await porting::enable(made);
  EXPECT_TRUE(first.done_by_another());
  const late_use second(made);
  co_await porting::refresh(made);
  EXPECT_TRUE(second.done_by_another());
  const late_use third(made);
  const late_use fourth(made);
  co_await made.release();
  EXPECT_TRUE(third.done_by_another());
  EXPECT_TRUE(fourth.done_by_another());
  std::optional<region> borrows = co_await domain->register_memory(memory->bytes, {.usage = usage::send});
  const late_use fifth(*borrows);
  borrows.reset();
  EXPECT_TRUE(fifth.done_by_another());
  EXPECT_EQ(domain->registered, 4);
  EXPECT_EQ(domain->deregistered, 4);
}

TASK_TEST_REGISTERING(region, is_released_once_a_worker_is_done_that_has_begun, 1) {
  const auto memory = std::make_unique<page>();
  region made = co_await domain->register_memory(memory->bytes, {.usage = usage::send});
  late_use use(made);
  use.begin();
  bool released = false;
  const auto release = [&]() -> task<> {
    co_await made.release();
    released = true;
  };
  const auto end = [&]() -> task<> {
    for (int i = 0; i < 1000; ++i) co_await yield();
    EXPECT_FALSE(released);
    EXPECT_EQ(domain->deregistered, 0);
    use.end();
  };
  co_await when_all(release(), end());
  EXPECT_FALSE(use.done_by_another());
}

TASK_TEST_OF_DOMAIN(region, is_busy_with_an_operation_whatever_workers_do) {
  const auto memory = std::make_unique<page>();
  region made = co_await domain->register_memory(memory->bytes, {.usage = usage::send});
  late_use use(made);
  {
    const region_pin operation(made.slice());
    EXPECT_EQ(co_await test::code_of(made.release()), errc::busy);
  }
  EXPECT_FALSE(use.done_by_another());
  co_await made.release();
  EXPECT_TRUE(use.done_by_another());
}

TASK_TEST(region, is_counted_by_its_domain_from_its_registration_to_its_end) {
  const auto domain = std::make_shared<test::recording_domain>();
  std::array<std::byte, 100> memory{};
  mr::region one = co_await domain->register_memory(memory, {.usage = usage::send});
  mr::region other = co_await domain->register_memory(std::span(memory).first(20), {.usage = usage::send});
  co_await one.release();
  domain->refuse = true;
  const auto refused = co_await as_result(domain->register_memory(memory, {.usage = usage::send}));
  EXPECT_FALSE(refused);
  const domain_statistics now = domain->statistics();
  EXPECT_EQ(now.regions, 1u);
  EXPECT_EQ(now.registrations, 2u);
  EXPECT_EQ(now.bytes, 120u);
  EXPECT_EQ(now.failures, 1u);
  metrics all;
  add_to(all, now, "mine");
  EXPECT_NE(all.text().find("weft_domain_regions{domain=\"mine\"} 1"), std::string::npos) << all.text();
  co_await other.release();
  EXPECT_EQ(domain->statistics().regions, 0u);
}

TEST(region, keeps_its_domain) {
  auto domain = std::make_shared<recording_domain>();
  const std::weak_ptr<recording_domain> watched = domain;
  region kept;
  test::run([&]() -> task<> {
    std::vector<std::byte> memory(8);
    kept = co_await domain->register_memory(std::move(memory), {.usage = usage::send});
  });
  domain.reset();
  EXPECT_FALSE(watched.expired());
  kept = region();
  EXPECT_TRUE(watched.expired());
}

TASK_TEST_OF_DOMAIN(region, has_slices_that_cannot_escape_it_and_name_its_domain) {
  std::vector<std::byte> memory(100);
  const region made = co_await domain->register_memory(std::span(memory), {.usage = usage::recv});
  const slice part = made.slice(10, 20);
  EXPECT_EQ(part.data(), memory.data() + 10);
  EXPECT_EQ(part.size(), 20U);
  EXPECT_EQ(part.record()->registration.local_key, 1U);
  EXPECT_EQ(part.domain(), domain.get());
  EXPECT_EQ(part.usage(), usage::recv);
  EXPECT_EQ(part.subslice(20, 0).size(), 0U);
  EXPECT_EQ(made.slice(std::span(memory).subspan(10, 20)).data(), memory.data() + 10);
  EXPECT_EQ(test::code_thrown_by([&] { return made.slice(std::span(memory.data() - 1, 2)); }), errc::out_of_range);
  EXPECT_EQ(test::code_thrown_by([&] { return made.slice(std::span(memory.data() + 99, 2)); }), errc::out_of_range);
  EXPECT_EQ(test::code_thrown_by([&] { return made.slice(81, 20); }), errc::out_of_range);
  EXPECT_EQ(test::code_thrown_by([&] { return made.slice(SIZE_MAX, 2); }), errc::out_of_range);
  EXPECT_EQ(test::code_thrown_by([&] { return part.subslice(1, 20); }), errc::out_of_range);
}

TASK_TEST_OF_DOMAIN(region, tells_peers_only_what_concerns_them) {
  std::vector<std::byte> memory(100);
  const registration_options open{.usage = usage::send | usage::read_src};
  const region made = co_await domain->register_memory(std::span(memory), open);
  const remote_region remote = made.remote();
  EXPECT_EQ(remote.usage(), usage::read_src);
  EXPECT_EQ(remote.size(), 100U);
  EXPECT_EQ(remote.key(), 1001U);
  const region closed = co_await domain->register_memory(std::span(memory), {.usage = usage::send});
  EXPECT_EQ(test::code_thrown_by([&] { return closed.remote(); }), errc::access_denied);
}

}  // namespace
}  // namespace weft::mr
