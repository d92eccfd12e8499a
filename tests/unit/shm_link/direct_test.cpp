// SPDX-License-Identifier: Apache-2.0
// Memory that its owner has lent: peers use it by themselves, in the order of everything else, and as long as it lasts.
#include <weft/mr/porting/refresh.hpp>

#include <future>
#include <semaphore>

#include "kit/attempt.hpp"
#include "kit/other_thread.hpp"
#include "shm_link/support.hpp"

namespace weft::test {
namespace {

using mr::usage;

constexpr std::size_t page = 4096;
constexpr usage all_uses = usage::read_src | usage::write_dst | usage::atomic_dst | usage::bind_window;

// Of files in memory that are no channels.
std::size_t mapped_loans() { return mapped_files("memfd:weft ("); }

mr::mapping new_file(std::size_t bytes, mr::file_access others = mr::file_access::read_write) {
  return mr::mapping::in_memory_file(bytes, false, -1, system_calls::kernel(), others);
}

task<mr::region> lend(net::device& device, std::size_t bytes, usage uses = all_uses,
                      mr::file_access others = mr::file_access::read_write) {
  mr::mapping memory = new_file(bytes, others);
  const mr::registration_options how{.usage = uses, .direct = true};
  co_return co_await device.domain().register_memory(std::move(memory), how);
}

class direct_memory : public shm_link_test {
 protected:
  /// Has the client use the memory until it has it mapped.
  task<> get_used_to(net::connection& client, const mr::remote_slice& where) {
    const std::size_t before = mapped_loans();
    auto word = co_await device().allocate(8);
    for (int i = 0; i < 1000 && mapped_loans() == before; ++i) co_await client.read(word, where.slice(0, 8));
    EXPECT_GT(mapped_loans(), before) << "the memory was not lent";
    for (int i = 0; i < 10; ++i) co_await client.read(word, where.slice(0, 8));
  }
  static void expect_filled(std::span<const std::byte> memory, char with) {
    EXPECT_TRUE(is_all(memory, static_cast<std::byte>(with)));
  }
  /// Runs `script(region, ends)`: memory is lent, and the client has it mapped.
  void with_lent(const test_script<mr::region&, pair&>& script, std::size_t bytes = page) {
    run([&]() -> task<> {
      auto region = co_await lend(device(), bytes);
      auto both = co_await connect_pair();
      co_await get_used_to(both.client, region.remote());
      co_await script(region, both);
    });
  }
};

/// TEST_F whose body is that script. What follows the name is how much is lent, if it is not a page.
#define TEST_F_LENT(fixture, name, ...) \
  TEST_F_SCRIPT(fixture, name, (mr::region & region, pair & both), with_lent(WEFT_SCRIPT __VA_OPT__(, ) __VA_ARGS__))

// ---- what it is for

TEST_F(direct_memory, is_read_written_and_changed_while_its_owner_has_no_turn) {
  std::binary_semaphore may_go_on(0);
  std::optional<mr::region> region;
  std::promise<std::string> address;
  std::future<std::string> where_it_listens = address.get_future();
  other_thread owner([&, address = std::move(address)](const std::stop_token& left_early) mutable {
    executor home;
    const auto serve = [&]() -> task<> {
      region.emplace(co_await lend(device(), page));
      auto listener = co_await device().listen("127.0.0.1:0");
      address.set_value(std::string(listener.address()));
      auto server = co_await accept_connection(listener, {});
      static_cast<void>(co_await server.recv_or_throw());
      may_go_on.acquire();  // no turn until the client is done
      static_cast<void>(co_await server.recv_or_throw());
      co_await server.close();
      co_await region->release();
    };
    home.run(serve(), left_early);
  });
  run([&]() -> task<> {
    auto client = co_await device().connect(where_it_listens.get());
    const mr::remote_region where = region->remote();
    co_await get_used_to(client, where);
    auto go = co_await filled(1, 'g');
    co_await client.send(go);
    auto memory = co_await filled(64, 'd');
    auto target = co_await device().allocate(64);
    for (int i = 0; i < 1000; ++i) {
      co_await client.write(memory, where.slice(64, 64));
      co_await client.read(target, where.slice(64, 64));
      expect_filled(target.bytes(), 'd');
      EXPECT_EQ(co_await client.fetch_add(where.slice(8, 8), 2), 2u * static_cast<unsigned>(i));
    }
    EXPECT_EQ(co_await client.compare_swap(where.slice(8, 8), 2000, 7), 2000u);
    EXPECT_EQ(co_await client.compare_swap(where.slice(8, 8), 2000, 8), 7u);
    co_await client.flush(where.slice(64, 64));
    expect_filled(region->bytes().subspan(64, 64), 'd');
    may_go_on.release();
    co_await client.send(go);
    co_await client.close();
  });
  owner.join();
}

TEST_F_LENT(direct_memory, is_written_and_read_before_another_task_has_its_turn) {
  auto word = co_await filled(8, 'w');
  bool others_had_a_turn = false;
  const auto other = [&]() -> task<> {
    others_had_a_turn = true;
    co_return;
  };
  const auto at_once = [&](scope& tasks) -> task<> {
    co_await yield();
    tasks.spawn(other());
    co_await both.client.write(word, region.remote().slice(8, 8));
    expect_filled(region.bytes().subspan(8, 8), 'w');
    co_await both.client.read(word, region.remote().slice(0, 8));
    expect_filled(word.bytes(), 0);
    EXPECT_FALSE(word.in_use());
    auto prepared = both.client.prepare(region.remote());
    co_await prepared.read(word, 8);
    expect_filled(word.bytes(), 'w');
    co_await prepared.write(word, 16);
    expect_filled(region.bytes().subspan(16, 8), 'w');
    EXPECT_FALSE(word.in_use());
    co_await both.client.send(word);
    EXPECT_FALSE(others_had_a_turn);
  };
  co_await with_scope(on_failure::stop_siblings, at_once);
  EXPECT_TRUE(others_had_a_turn);
}

TEST_F_LENT(direct_memory, that_is_prepared_ends_where_it_ends) {
  auto prepared = both.client.prepare(region.remote().slice(8, 16));
  auto memory = co_await filled(8, 'w');
  auto once = prepared.write(memory, 8);
  const auto await_it = [](net::prepared_transfer* what) -> task<> { co_await *what; };
  co_await await_it(&once);
  EXPECT_EQ(co_await code_of(await_it(&once)), errc::invalid_argument);
  expect_filled(region.bytes().subspan(16, 8), 'w');
  for (const std::uint64_t beyond : {std::uint64_t{9}, std::uint64_t{16}, std::uint64_t{17}, UINT64_MAX}) {
    EXPECT_EQ(co_await code_of(prepared.write(memory, beyond)), errc::out_of_range);
    EXPECT_EQ(co_await code_of(prepared.read(memory, beyond)), errc::out_of_range);
  }
  expect_filled(region.bytes().subspan(24, 8), 0);
  auto readable =
      both.client.prepare(mr::remote_slice(region.remote().key(), region.remote().address(), 8, usage::read_src));
  EXPECT_EQ(co_await code_of(readable.write(memory)), errc::access_denied);
  co_await readable.read(memory);
  expect_filled(memory.bytes(), 0);
}

TEST_F_LENT(direct_memory, that_is_prepared_is_used_by_memory_that_is_registered_for_it_and_free) {
  auto prepared = both.client.prepare(region.remote());
  std::vector<std::byte> own(8, std::byte{'o'});
  auto ours = co_await device().domain().register_memory(std::span(own), {.usage = usage::write_src});
  co_await prepared.write(ours.slice());
  expect_filled(region.bytes().first(8), 'o');
  EXPECT_EQ(co_await code_of(prepared.read(ours.slice())), errc::access_denied);
  EXPECT_EQ(co_await code_of(prepared.read(mr::slice(own, nullptr))), errc::invalid_argument);
  auto elsewhere = net::device::open("shm");
  auto others = co_await elsewhere.pool().allocate(8);
  EXPECT_EQ(co_await code_of(prepared.read(others)), errc::wrong_device);
  auto pinned = co_await filled(8, 'p');
  {
    const auto reader = mr::pin::share(pinned);
    EXPECT_EQ(co_await code_of(prepared.read(pinned)), errc::buffer_in_use);
    co_await prepared.write(pinned);
  }
  expect_filled(region.bytes().first(8), 'p');
  co_await ours.release();
}

TEST_F_LENT(direct_memory, takes_transfers_of_any_size_and_scatter_lists, 3 << 20) {
  const std::size_t size = region.size();
  std::vector<std::byte> from(size);
  for (std::size_t i = 0; i < size; ++i) from[i] = static_cast<std::byte>(i * 31 + (i >> 12));
  auto ours = co_await device().domain().register_memory(std::span(from), {.usage = usage::write_src});
  auto there = co_await device().domain().register_memory(std::vector<std::byte>(size), {.usage = usage::read_dst});
  co_await both.client.write(ours.slice(), region.remote());
  EXPECT_TRUE(std::equal(from.begin(), from.end(), region.bytes().begin()));
  const mr::slice parts[] = {there.slice(0, 5), there.slice(5, 300'000), there.slice(300'005, size - 300'005)};
  co_await both.client.read(parts, region.remote());
  EXPECT_TRUE(std::equal(from.begin(), from.end(), there.bytes().begin()));
  co_await ours.release();
  co_await there.release();
}

// How many turns another task has until the operation has ended.
template <class Operation>
task<int> turns_beside(Operation operation) {
  int turns = 0;
  bool ended = false;
  const auto carry_out = [](Operation given, bool& noted) -> task<> {
    co_await std::move(given);
    noted = true;
  };
  const auto count = [&]() -> task<> {
    while (!ended) {
      ++turns;
      co_await yield();
    }
  };
  co_await when_all(carry_out(std::move(operation), ended), count());
  co_return turns;
}

TEST_F_LENT(direct_memory, leaves_others_their_turns_in_the_middle_of_a_large_transfer, 4 << 20) {
  const std::size_t size = region.size();
  auto ours = co_await device().domain().register_memory(std::vector<std::byte>(size), {.usage = usage::write_src});
  const int turns = co_await turns_beside(both.client.write(ours.slice(), region.remote()));
  EXPECT_GT(turns, 8);
}

// Each element that has completed lets another one be posted.
TEST_F_LENT(direct_memory, leaves_others_their_turns_in_the_middle_of_a_long_list) {
  auto ours = co_await device().domain().register_memory(std::vector<std::byte>(8), {.usage = usage::write_src});
  const net::list_part word{ours.slice(), region.remote().slice(0, 8)};
  const std::vector<net::list_part> parts(10'000, word);
  const int turns = co_await turns_beside(both.client.write(parts));
  EXPECT_GT(turns, 50);
  co_await ours.release();
}

TEST_F_TASK(direct_memory, can_be_lent_to_one_peer_alone_and_to_several) {
  auto region = co_await lend(device(), 2 * page, usage::bind_window);
  std::vector<pair> all;
  std::vector<net::exposure> open;
  for (int i = 0; i < 3; ++i) {
    all.push_back(co_await connect_pair());
    open.push_back(co_await all.back().server.expose(region.slice(page, page), usage::read_src | usage::write_dst));
    co_await get_used_to(all.back().client, open.back().remote());
    auto memory = co_await filled(100, static_cast<char>('a' + i));
    co_await all.back().client.write(memory, open.back().remote().slice(100, 100));
    expect_filled(region.bytes().subspan(page + 100, 100), static_cast<char>('a' + i));
  }
  for (auto& each : open) co_await each.revoke();
}

// ---- kernels that are busy, or have no descriptors

class busy_kernel : public system_calls {
 public:
  ssize_t recvmsg(int fd, msghdr* message, int flags) noexcept override {
    if (interruption != 0 && ++count % 3 != 0) return -interruption;
    if (loses_files) message->msg_controllen = 0;  // the kernel closes what does not fit
    return system_calls::recvmsg(fd, message, flags);
  }

  int interruption = 0;
  bool loses_files = false;
  unsigned count = 0;
};

class direct_memory_of_busy_kernel : public with_calls<busy_kernel, shm_link_test> {
 protected:
  /// Whether it comes to be mapped when it is used.
  task<bool> is_lent(int interruption, bool loses_files = false) {
    auto region = co_await lend(device(), page);
    auto both = co_await connect_pair();
    calls.interruption = interruption;
    calls.loses_files = loses_files;
    const std::size_t before = mapped_loans();
    auto word = co_await device().allocate(8);
    for (int i = 0; i < 200; ++i) co_await both.client.read(word, region.remote().slice(0, 8));
    const bool is_mapped = mapped_loans() != before;
    co_await expect_service(both);
    both.abort();
    co_await region.release();
    co_return is_mapped;
  }
};

TEST_F_TASK(direct_memory_of_busy_kernel, is_lent_where_calls_are_interrupted) { EXPECT_TRUE(co_await is_lent(EINTR)); }

// The socket says so before it yields what the peer had sent.
TEST_F_TASK(direct_memory_of_busy_kernel, is_taken_from_peers_that_have_died_meanwhile) {
  EXPECT_TRUE(co_await is_lent(ECONNRESET));
}

TEST_F_TASK(direct_memory_of_busy_kernel, is_used_by_way_of_the_owner_where_there_is_no_descriptor_left_for_it) {
  EXPECT_FALSE(co_await is_lent(0, true));
}

// ---- order

class direct_order : public against_manual_end {
 protected:
  static constexpr std::uint32_t key = 0x1234;
  static constexpr std::uint32_t other_key = 0x5678;

  [[nodiscard]] static mr::remote_slice place(std::uint32_t of, std::uint64_t bytes) {
    return {of, 0, bytes, all_uses};
  }
  static void offer(manual_end& hand, int file, record what = {}, shm::offered_memory where = {page, 0}) {
    what.kind = record_kind::offer;
    if (what.key == 0) what.key = key;
    if (what.flags == 0) what.flags = record::readable | record::writable | record::atomic;
    if (what.total == 0) what.total = page;
    hand.socket().send(bytes_of("w"), std::vector<int>(1, file));
    hand.say_whole(what, std::as_bytes(std::span(&where, 1)));
  }
  static descriptor file_of(std::size_t length = page) { return new_memory(length, F_SEAL_SHRINK); }
  /// Opens the loan, as an owner does before it offers it.
  static void open(manual_end& hand, std::uint32_t number = 0) { hand.own().lent[number] = shm::end_words::open; }
  /// Lends memory, and yields it.
  task<mr::mapping> lend_file(manual_end& hand, record what = {}, std::size_t bytes = page) {
    const descriptor file = file_of(bytes);
    auto view = mr::mapping::of_file({.descriptor = file.fd()}, bytes, system_calls::kernel());
    open(hand, what.number);
    if (what.total == 0) what.total = bytes;
    offer(hand, file.fd(), what, {bytes, 0});
    EXPECT_EQ((co_await next(hand, record_kind::taken)).flags, 0);
    co_return view;
  }
  /// Answers the owner's part of what comes before a write, and looks whether that has waited for it.
  static task<> answer_fence(manual_end& hand, const mr::mapping& view) {
    static_cast<void>(co_await next(hand, record_kind::fence));
    co_await settle();
    EXPECT_EQ(view.data()[0], std::byte{0}) << "it was written before what had been posted before it";
    hand.say({.kind = record_kind::fenced});
  }
};
WEFT_ON_BOTH_ENDS(direct_order);

TEST_P_BY_HAND(direct_order, waits_for_what_the_owner_has_been_asked_for_before) {
  const auto view = co_await lend_file(hand);
  auto memory = co_await filled(8, 'd');
  co_await victim.write(memory, place(other_key, 8));  // for the owner
  static_cast<void>(co_await next(hand, record_kind::write));
  const auto write = [&]() -> task<> {
    co_await victim.write(memory, place(key, 8));
    co_await victim.write(memory, place(key, 16).slice(8, 8));  // needs no other fence
  };
  co_await when_all(write(), answer_fence(hand, view));
  EXPECT_EQ(view.data()[0], std::byte{'d'});
  EXPECT_EQ(view.data()[15], std::byte{'d'});
  EXPECT_EQ(hand.take(), std::nullopt);
}

TEST_P_BY_HAND(direct_order, of_prepared_memory_is_that_of_all_operations) {
  auto prepared = victim.prepare(place(key, page));
  const auto view = co_await lend_file(hand);
  auto memory = co_await filled(8, 'd');
  co_await victim.write(memory, place(other_key, 8));  // for the owner
  static_cast<void>(co_await next(hand, record_kind::write));
  co_await when_all(prepared.write(memory), answer_fence(hand, view));
  EXPECT_EQ(view.data()[0], std::byte{'d'});
  co_await prepared.write(memory, 8);
  EXPECT_EQ(view.data()[8], std::byte{'d'});
  EXPECT_EQ(hand.take(), std::nullopt);
}

TEST_P_BY_HAND(direct_order, of_prepared_memory_ends_with_its_loan) {
  auto prepared = victim.prepare(place(key, page));
  const auto view = co_await lend_file(hand);
  auto prepared_later = victim.prepare(place(key, page));
  auto memory = co_await filled(8, 'd');
  co_await prepared.write(memory);
  EXPECT_EQ(view.data()[0], std::byte{'d'});
  hand.own().lent[0] = shm::end_words::shut;
  co_await prepared.write(memory, 8);
  EXPECT_EQ((co_await next(hand, record_kind::write)).address, 8u);
  EXPECT_EQ(view.data()[8], std::byte{0});
  hand.say({.kind = record_kind::withdrawn});
  static_cast<void>(co_await next(hand, record_kind::returned));
  // The next loan has the number of the first.
  const auto second_view = co_await lend_file(hand, {.key = other_key});
  co_await prepared.write(memory, 16);
  EXPECT_EQ((co_await next(hand, record_kind::write)).address, 16u);
  co_await prepared_later.write(memory, 24);
  EXPECT_EQ((co_await next(hand, record_kind::write)).address, 24u);
  for (const std::size_t place : {16U, 24U}) {
    EXPECT_TRUE(view.data()[place] == std::byte{0} && second_view.data()[place] == std::byte{0}) << place;
  }
}

// The next loan has the number of the first, and is open.
TEST_P_BY_HAND(direct_order, of_prepared_memory_uses_no_place_that_was_given_back) {
  const auto view = co_await lend_file(hand);
  auto prepared = victim.prepare(place(key, page));
  auto memory = co_await filled(8, 'd');
  hand.own().lent[0] = shm::end_words::shut;
  hand.say({.kind = record_kind::withdrawn});
  static_cast<void>(co_await next(hand, record_kind::returned));
  const auto second_view = co_await lend_file(hand, {.key = other_key});
  co_await prepared.write(memory, 24);
  EXPECT_TRUE(view.data()[24] == std::byte{0} && second_view.data()[24] == std::byte{0});
  EXPECT_EQ((co_await next(hand, record_kind::write)).address, 24u);
}

TEST_P_BY_HAND(direct_order, waits_for_answers_to_reads_of_other_memory) {
  const auto view = co_await lend_file(hand);
  auto target = co_await filled(8, 'r');
  auto memory = co_await filled(8, 'd');
  const auto serve = [&]() -> task<> {
    static_cast<void>(co_await next(hand, record_kind::read));
    co_await settle();
    EXPECT_EQ(view.data()[0], std::byte{0});
    hand.say_whole({.kind = record_kind::answer}, bytes(8, std::byte{'a'}));
  };
  co_await when_all(victim.read(target, place(other_key, 8)), victim.write(memory, place(key, 8)), serve());
  EXPECT_EQ(view.data()[0], std::byte{'d'});
  EXPECT_EQ(target.bytes()[0], std::byte{'a'});
}

TEST_P_BY_HAND(direct_order, is_waited_for_behind_messages_that_nobody_receives_for_so_long_and_no_longer, bytes(),
               {.receive_depth = 1}) {
  const auto view = co_await lend_file(hand);
  auto memory = co_await filled(8, 'd');
  co_await victim.write(memory, place(other_key, 8));  // for the owner
  const auto hold_up = [&]() -> task<> {
    static_cast<void>(co_await next(hand, record_kind::fence));
    for (int i = 0; i < 100; ++i) hand.send(bytes(10));
    hand.say({.kind = record_kind::fenced});
    co_await settle();
    jump(net::connection_options().overdue_after + 1s);
  };
  const auto both = co_await when_all(code_of(victim.read(memory, place(key, 8))), hold_up());
  EXPECT_EQ(std::get<0>(both), errc::not_receiving);
}

// The peer counts only what it is asked for.
TEST_P_BY_HAND(direct_order, leaves_the_peer_able_to_say_which_request_it_has_refused) {
  constexpr std::size_t size = 2 * shm::whole_bytes;  // too much for an operation that ends where it begins
  static_cast<void>(co_await lend_file(hand, {}, size));
  std::vector<std::byte> from(size, std::byte{'d'});
  auto ours = co_await device().domain().register_memory(std::span(from), {.usage = usage::write_src});
  co_await victim.write(ours.slice(), place(key, size));
  auto first = co_await filled(8, 'r');
  auto second = co_await filled(8, 'r');
  const auto use = [&](scope& tasks) -> task<> {
    attempt innocent(tasks, victim.read(first, place(other_key, 8)));
    attempt refused(tasks, victim.read(second, place(other_key + 1, 8)));
    for (int i = 0; i < 2; ++i) static_cast<void>(co_await next(hand, record_kind::read));
    hand.put({.kind = record_kind::broken,
              .reason = static_cast<std::uint16_t>(shm::break_reason::access_refused),
              .key = other_key + 1,
              .number = 1});
    hand.publish();
    co_await innocent.end();
    co_await refused.end();
    EXPECT_EQ(innocent.code(), errc::connection_failed) << innocent.words();
    EXPECT_EQ(refused.code(), errc::remote_access) << refused.words();
  };
  co_await with_scope(on_failure::report, use);
  co_await ours.release();
}

TEST_P_BY_HAND(direct_order, of_what_the_key_does_not_allow_is_for_the_owner_to_refuse) {
  const descriptor file = file_of();
  open(hand);
  offer(hand, file.fd(), {.flags = record::readable, .total = 100, .address = 50}, {page, 200});
  static_cast<void>(co_await next(hand, record_kind::taken));
  auto memory = co_await filled(8, 'd');
  const auto expect_asked = [&](std::uint64_t at, record_kind kind) -> task<> {
    const mr::remote_slice where(key, at, 8, all_uses);
    const auto use = [&]() -> task<> {
      if (kind == record_kind::write) co_await victim.write(memory, where);
      if (kind == record_kind::read) co_await victim.read(memory, where);
    };
    const auto serve = [&]() -> task<> {
      const record asked = co_await next(hand, kind);
      EXPECT_EQ(asked.address, at);
      if (kind == record_kind::read) hand.say_whole({.kind = record_kind::answer}, bytes(8));
    };
    co_await when_all(use(), serve());
  };
  co_await expect_asked(49, record_kind::read);
  co_await expect_asked(143, record_kind::read);
  co_await expect_asked(UINT64_MAX - 8, record_kind::read);
  co_await expect_asked(50, record_kind::write);
}

// It takes several turns, and is the owner's to execute, or to refuse, from its beginning.
TEST_P_BY_HAND(direct_order, of_a_large_write_that_is_interrupted_is_that_of_a_new_one) {
  constexpr std::size_t size = 1 << 20;
  const auto view = co_await lend_file(hand, {}, size);
  std::vector<std::byte> from(size, std::byte{'d'});
  auto ours = co_await device().domain().register_memory(std::span(from), {.usage = usage::write_src});
  const auto serve = [&]() -> task<> {
    while (view.data()[0] != std::byte{'d'}) co_await yield();
    hand.own().lent[0] = shm::end_words::shut;
    std::optional<record> said;
    for (int i = 0; i < 1000 && (!said || said->kind == record_kind::prove); ++i) {
      said = hand.take();
      co_await yield();
    }
    EXPECT_TRUE(said && said->kind == record_kind::write && said->total == size);
    EXPECT_EQ(view.data()[size - 1], std::byte{0});
    victim.abort();
  };
  const auto done = co_await when_all(failure_of(victim.write(ours.slice(), place(key, size))), serve());
  EXPECT_TRUE(std::get<0>(done).has_value());
  co_await ours.release();
}

// Its memory stays with the connection until its turn has come.
TEST_P_BY_HAND(direct_order, of_an_operation_that_was_stopped_is_kept_without_its_caller) {
  const auto view = co_await lend_file(hand);
  auto memory = co_await filled(8, 'd');
  co_await victim.write(memory, place(other_key, 8));  // for the owner
  {
    std::optional<mr::buffer> gone(co_await filled(8, 'g'));
    const auto failure = co_await failure_of(with_timeout(1ms, victim.write(*gone, place(key, 8))));
    EXPECT_TRUE(failure && failure->posted()) << (failure ? failure->what() : "none");
    gone.reset();
  }
  std::vector<mr::buffer> others;
  for (int i = 0; i < 100; ++i) others.push_back(co_await filled(8, 'o'));
  EXPECT_EQ(view.data()[0], std::byte{0});
  static_cast<void>(co_await next(hand, record_kind::fence));
  hand.say({.kind = record_kind::fenced});
  for (int i = 0; i < 1000 && view.data()[0] == std::byte{0}; ++i) co_await yield();
  EXPECT_EQ(view.data()[0], std::byte{'g'});
}

TEST_F_LENT(direct_memory, whose_large_transfer_is_stopped_touches_borrowed_memory_no_more, 64 << 20) {
  const std::size_t size = region.size();
  auto ours = co_await device().domain().register_memory(std::vector<std::byte>(size, std::byte{'x'}),
                                                         {.usage = usage::write_src});
  const auto stop = [&]() -> task<> {
    while (region.data()[0] != std::byte{'x'}) co_await yield();
    both.client.abort();
  };
  co_await when_all(failure_of(both.client.write(ours.slice(), region.remote())), stop());
  co_await ours.release();  // errc::busy as long as anything uses it
  const std::byte last = region.data()[size - 1];
  EXPECT_EQ(last, std::byte{0}) << "it was not stopped in its middle";
  for (int i = 0; i < 100; ++i) co_await yield();
  EXPECT_EQ(region.data()[size - 1], last);
}

// What the peer had asked for may still wait behind it.
TEST_P_BY_HAND(direct_order, is_told_of_by_an_end_that_has_finished) {
  const auto serve = [&]() -> task<> {
    static_cast<void>(co_await next(hand, record_kind::finished));
    hand.say({.kind = record_kind::fence});
    std::optional<record> said;
    for (int i = 0; i < 1000 && !(said = hand.take()); ++i) co_await yield();
    EXPECT_TRUE(said && said->kind == record_kind::fenced) << "whoever waits for it waits for ever";
    hand.say({.kind = record_kind::finished});
  };
  co_await when_all(victim.close(), serve());
}

// What is written directly is there before the message that comes behind it.
TEST_F_LENT(direct_memory, that_was_written_is_there_when_a_later_message_has_come) {
  for (unsigned i = 0; i < 200; ++i) {
    auto memory = co_await filled(64, static_cast<char>(i));
    co_await both.client.write(memory, region.remote().slice(0, 64));
    if (i % 2 == 0) {
      co_await both.client.write(memory, region.remote().slice(64, 64), {.immediate = i});
    } else {
      co_await both.client.send(memory);
    }
    const auto arrived = co_await both.server.recv_or_throw();
    expect_filled(region.bytes().first(64), static_cast<char>(i));
    if (i % 2 == 0) expect_filled(region.bytes().subspan(64, 64), static_cast<char>(i));
    EXPECT_EQ(arrived.immediate.has_value(), i % 2 == 0);
  }
}

// ---- its end

TEST_F_TASK(direct_memory, that_was_revoked_is_written_no_more) {
  auto region = co_await lend(device(), page, usage::bind_window);
  auto both = co_await connect_pair();
  auto open = co_await both.server.expose(region.slice(), usage::read_src | usage::write_dst);
  const mr::remote_region where = open.remote();
  co_await get_used_to(both.client, where);
  co_await open.revoke();
  auto memory = co_await filled(64, 'x');
  const auto write = [&]() -> task<> {
    co_await both.client.write(memory, where.slice(0, 64));
    co_await both.client.flush(where.slice(0, 64));
  };
  EXPECT_TRUE((co_await failure_of(write())).has_value());
  expect_filled(region.bytes(), 0);
}

TEST_F_TASK(direct_memory, that_was_released_is_given_back_by_peers_that_do_nothing) {
  const std::size_t before = mapped_loans();
  auto region = co_await lend(device(), page);
  auto both = co_await connect_pair();
  co_await get_used_to(both.client, region.remote());
  co_await region.release();
  for (int i = 0; i < 1000 && mapped_loans() != before; ++i) co_await yield();
  EXPECT_EQ(mapped_loans(), before);
  co_await expect_service(both);
}

TEST_F_LENT(direct_memory, that_was_released_is_an_access_without_a_key) {
  const mr::remote_region where = region.remote();
  co_await region.release();
  auto target = co_await device().allocate(8);
  EXPECT_EQ(co_await code_of(both.client.read(target, where.slice(0, 8))), errc::remote_access);
}

TEST_F_TASK(direct_memory, can_be_lent_and_ended_again_and_again) {
  const std::size_t before = mapped_loans();
  auto both = co_await connect_pair();
  for (int i = 0; i < 300; ++i) {  // more often than there are loans
    auto region = co_await lend(device(), page);
    co_await get_used_to(both.client, region.remote());
    co_await region.release();
  }
  co_await expect_service(both);
  both.abort();
  for (int i = 0; i < 50 && mapped_loans() != before; ++i) co_await settle();
  EXPECT_EQ(mapped_loans(), before);
}

TEST_F_TASK(direct_memory, of_which_there_is_more_than_there_are_loans_is_executed_by_its_owner) {
  auto both = co_await connect_pair();
  std::vector<mr::region> regions;
  auto memory = co_await filled(64, 'x');
  for (std::size_t i = 0; i < shm::max_loans + 5; ++i) {
    regions.push_back(co_await lend(device(), page));
    for (int round = 0; round < 5; ++round) {
      co_await both.client.write(memory, regions.back().remote().slice(0, 64));
      co_await both.client.flush(regions.back().remote().slice(0, 64));
    }
    expect_filled(regions.back().bytes().first(64), 'x');
  }
  for (auto& each : regions) co_await each.release();
}

TEST_F_TASK(direct_memory, goes_with_the_connections_that_had_it_mapped) {
  const std::size_t before = mapped_loans();
  auto region = co_await lend(device(), page);
  for (const bool orderly : {true, false}) {
    auto both = co_await connect_pair();
    co_await get_used_to(both.client, region.remote());
    if (orderly) {
      co_await when_all(both.client.close(), both.server.close());
    } else {
      both.abort();
      for (int i = 0; i < 50 && mapped_loans() != before + 1; ++i) co_await settle();
    }
    EXPECT_EQ(mapped_loans(), before + 1);
  }
  co_await region.release();
  EXPECT_EQ(mapped_loans(), before);
}

// ---- what may be lent

TEST_F_TASK(direct_memory, is_refused_of_memory_that_is_not_in_a_file_of_its_own) {
  const mr::registration_options how{.usage = all_uses, .direct = true};
  EXPECT_EQ(co_await code_of(device().domain().register_memory(std::vector<std::byte>(page), how)),
            errc::invalid_argument);
  std::vector<std::byte> borrowed(page);
  EXPECT_EQ(co_await code_of(device().domain().register_memory(std::span(borrowed), how)), errc::invalid_argument);
  mr::mapping memory = new_file(page);
  const mr::registration_options both{.usage = all_uses, .disabled = true, .direct = true};
  EXPECT_EQ(co_await code_of(device().domain().register_memory(std::move(memory), both)), errc::invalid_argument);
  auto region = co_await lend(device(), page);
  EXPECT_EQ(co_await code_of(mr::porting::refresh(region)), errc::invalid_argument);
}

TEST_F_TASK(direct_memory, for_readers_can_be_written_by_none_of_them) {
  auto failure = co_await failure_of(lend(device(), page, usage::read_src));
  EXPECT_TRUE(says(failure, "peers that may only read it could write the file"));
  failure = co_await failure_of(lend(device(), page, usage::write_dst, mr::file_access::read_only));
  EXPECT_TRUE(says(failure, "the file is sealed against writing"));

  auto region = co_await lend(device(), page, usage::read_src, mr::file_access::read_only);
  std::fill(region.bytes().begin(), region.bytes().end(), std::byte{'r'});
  int why = 0;
  void* const view = system_calls::kernel().mmap_file(page, PROT_READ | PROT_WRITE, MAP_SHARED,
                                                      region.slice().record()->file.descriptor, 0, &why);
  EXPECT_EQ(view, nullptr);
  EXPECT_EQ(why, EPERM);
  auto both = co_await connect_pair();
  co_await get_used_to(both.client, region.remote());
  auto target = co_await device().allocate(64);
  co_await both.client.read(target, region.remote().slice(64, 64));
  expect_filled(target.bytes(), 'r');
}

TEST_F_TASK(direct_memory, is_not_lent_where_a_window_lets_a_peer_only_read_what_it_could_write) {
  auto region = co_await lend(device(), page, usage::bind_window);
  auto both = co_await connect_pair();
  auto open = co_await both.server.expose(region.slice(), usage::read_src);
  const std::size_t before = mapped_loans();
  auto word = co_await device().allocate(8);
  for (int i = 0; i < 100; ++i) co_await both.client.read(word, open.remote().slice(0, 8));
  EXPECT_EQ(mapped_loans(), before);
  co_await open.revoke();
}

// ---- peers that break the rules

class hostile_offer : public direct_order {
 protected:
  void expect_refused(std::string_view words, int file, const record& what = {},
                      shm::offered_memory where = {page, 0}) {
    expect_violation([&](manual_end& hand) { offer(hand, file, what, where); }, words);
  }
};
WEFT_ON_BOTH_ENDS(hostile_offer);

TEST_P(hostile_offer, of_a_file_that_can_become_shorter) {
  const descriptor file = new_memory(page, 0);
  expect_refused("it offers a file that can become shorter", file.fd());
}

TEST_P(hostile_offer, of_what_is_no_file_in_memory) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  const descriptor one = owned(ends[0]);
  const descriptor other = owned(ends[1]);
  expect_refused("it offers something else than a file in memory", one.fd());
}

TEST_P(hostile_offer, of_more_than_there_is) {
  const descriptor file = file_of();
  for (const std::uint64_t claimed : {std::uint64_t{page + 1}, std::uint64_t{1} << 40, UINT64_MAX}) {
    expect_refused("it offers more than there is", file.fd(), {}, {claimed, 0});
  }
}

TEST_P(hostile_offer, of_a_range_that_is_not_in_the_file) {
  const descriptor file = file_of();
  for (const shm::offered_memory where : {shm::offered_memory{page, 1}, {page, page}, {page, UINT64_MAX}, {0, 0}}) {
    expect_refused("it offers what is not in the file", file.fd(), {}, where);
  }
  expect_refused("it offers what is not in the file", file.fd(), {.total = UINT64_MAX});
}

// A file without pages costs its owner nothing, and whoever maps it addresses.
TEST_P_BY_HAND(hostile_offer, of_more_than_the_machine_has_is_declined) {
  constexpr std::uint64_t length = std::uint64_t{1} << 45;
  const descriptor file = file_of(length);
  open(hand);
  offer(hand, file.fd(), {.total = length}, {length, 0});
  EXPECT_EQ((co_await next(hand, record_kind::taken)).flags, record::declined);
  static_cast<void>(co_await lend_file(hand, {.key = other_key, .number = 1}));
}

TEST_P(hostile_offer, under_a_number_that_there_is_not_or_that_is_in_use) {
  const descriptor file = file_of();
  for (const std::uint32_t number : {64U, 0xffff'ffffU}) {
    expect_refused("it offers memory under a number in use", file.fd(), {.number = number});
  }
  expect_violation(
      [&](manual_end& hand) {
        offer(hand, file.fd());
        offer(hand, file.fd());
      },
      "it offers memory under a number in use");
}

TEST_P(hostile_offer, without_a_file_or_without_words) {
  const descriptor file = file_of();
  const shm::offered_memory where{page, 0};
  const record header{.kind = record_kind::offer, .total = page};
  expect_violation([&](manual_end& hand) { hand.say_whole(header, std::as_bytes(std::span(&where, 1))); },
                   "an offer without its file");
  expect_violation([&](manual_end& hand) { hand.say(header); }, "an offer of nothing");
}

TEST_P(hostile_offer, that_was_never_made_has_no_answer_and_no_end) {
  for (const record_kind kind : {record_kind::taken, record_kind::returned}) {
    expect_violation([&](manual_end& hand) { hand.say({.kind = kind}); },
                     "the peer answered an offer that was never made");
  }
  expect_violation([&](manual_end& hand) { hand.say({.kind = record_kind::withdrawn}); },
                   "it ends a loan that there is not");
  expect_violation([&](manual_end& hand) { hand.say({.kind = record_kind::fenced}); }, "an answer to nothing");
}

// A gate that says neither is shut.
TEST_P_BY_HAND(hostile_offer, whose_words_change_all_the_time_is_used_or_left_alone) {
  static_cast<void>(co_await lend_file(hand));
  auto memory = co_await filled(8, 'd');
  co_await victim.write(memory, place(key, 8));
  EXPECT_EQ(hand.take(), std::nullopt);
  hand.own().lent[0] = 7;
  co_await victim.write(memory, place(key, 8));
  static_cast<void>(co_await next(hand, record_kind::write));
  hand.own().lent[0] = shm::end_words::open;  // too late: the mapping has gone
  co_await victim.write(memory, place(key, 8));
  static_cast<void>(co_await next(hand, record_kind::write));
}

class lent_to_hostile : public direct_order {
 protected:
  static record read_of(const mr::remote_slice& what) {
    return {.kind = record_kind::read, .total = 8, .address = what.address(), .key = stag_of(what)};
  }
  /// The peer made by hand reads once, and is offered the memory: yields the number of the loan.
  static task<std::uint32_t> borrow(manual_end& hand, const mr::remote_slice& what) {
    hand.say(read_of(what));
    const record made = co_await next(hand, record_kind::offer);
    EXPECT_EQ(made.key, stag_of(what));
    EXPECT_EQ(hand.other().lent[made.number], shm::end_words::open);
    hand.say({.kind = record_kind::taken, .number = made.number});
    co_await settle();
    co_return made.number;
  }

  /// A page that is exposed, and offered to the peer under this number.
  struct borrowed_page {
    borrowed_page(mr::region memory, net::exposure exposed, std::uint32_t name)
        : region(std::move(memory)), open(std::move(exposed)), number(name) {}
    mr::region region;
    net::exposure open;
    std::uint32_t number;
  };
  task<borrowed_page> borrow_page(manual_end& hand, net::connection& victim) {
    auto region = co_await lend(device(), page, usage::bind_window);
    auto open = co_await victim.expose(region.slice(), usage::read_src | usage::write_dst);
    const mr::remote_slice where = open.remote();
    const std::uint32_t number = co_await borrow(hand, where);
    co_return borrowed_page(std::move(region), std::move(open), number);
  }
};
WEFT_ON_BOTH_ENDS(lent_to_hostile);

TEST_P_BY_HAND(lent_to_hostile, peers_is_revoked_when_they_are_outside_whatever_they_say) {
  auto lent = co_await borrow_page(hand, victim);
  co_await lent.open.revoke();  // although nothing has been said
  EXPECT_EQ(hand.other().lent[lent.number], shm::end_words::shut);
  EXPECT_EQ((co_await next(hand, record_kind::withdrawn)).number, lent.number);
  hand.say({.kind = record_kind::returned, .number = lent.number});
  co_await settle();
  co_await lent.region.release();
}

TEST_P_BY_HAND(lent_to_hostile, peers_is_not_revoked_before_they_are_outside) {
  auto lent = co_await borrow_page(hand, victim);
  hand.own().turn = 1;
  bool revoked = false;
  const auto revoke = [&]() -> task<> {
    co_await lent.open.revoke();
    revoked = true;
  };
  const auto leave = [&]() -> task<> {
    static_cast<void>(co_await next(hand, record_kind::withdrawn));
    co_await settle();
    EXPECT_FALSE(revoked) << "the peer is in the middle of an access";
    hand.own().turn = 2;
    hand.say({.kind = record_kind::returned, .number = lent.number});
  };
  co_await when_all(revoke(), leave());
  EXPECT_TRUE(revoked);
  co_await lent.region.release();
}

TEST_P_BY_HAND(lent_to_hostile, peers_is_not_given_back_by_the_end_of_the_connection_before_they_are_outside) {
  auto lent = co_await borrow_page(hand, victim);
  hand.own().turn = 1;
  int over = 0;
  const auto count = [&over](auto what) -> task<> {
    static_cast<void>(co_await std::move(what));
    ++over;
  };
  const auto leave = [&]() -> task<> {
    victim.abort();
    EXPECT_EQ(hand.other().lent[lent.number], shm::end_words::shut);
    co_await hand.socket().receive_to_the_end();  // it is told of the end all the same
    co_await settle();
    EXPECT_EQ(over, 0) << "the peer is in the middle of an access";
    hand.own().turn = 2;
    hand.wake();
  };
  co_await when_all(count(lent.open.ended()), count(victim.close()), leave());
  EXPECT_EQ(over, 2);
  co_await lent.open.revoke();
  co_await lent.region.release();
}

TEST_P_BY_HAND(lent_to_hostile, peers_that_is_revoked_already_is_not_given_back_by_the_end_of_the_connection_either) {
  auto lent = co_await borrow_page(hand, victim);
  hand.own().turn = 1;
  bool revoked = false;
  const auto revoke = [&]() -> task<> {
    co_await lent.open.revoke();
    revoked = true;
  };
  const auto leave = [&]() -> task<> {
    static_cast<void>(co_await next(hand, record_kind::withdrawn));
    victim.abort();
    co_await settle();
    EXPECT_FALSE(revoked) << "the peer is in the middle of an access";
    hand.own().turn = 2;
    hand.wake();
  };
  co_await when_all(revoke(), leave());
  EXPECT_TRUE(revoked);
  co_await lent.region.release();
}

TEST_P_BY_HAND(lent_to_hostile, peers_comes_back_from_those_that_die_inside) {
  auto lent = co_await borrow_page(hand, victim);
  hand.own().turn = 1;
  const auto die = [&]() -> task<> {
    victim.abort();
    co_await settle();
    ::shutdown(hand.socket().fd(), SHUT_RDWR);  // as the kernel does for a process that is no more
  };
  co_await when_all(lent.open.revoke(), die());
  co_await lent.region.release();
}

TEST_P_BY_HAND(lent_to_hostile,
               peers_that_stay_inside_of_a_connection_that_has_ended_keep_a_region_no_longer_than_others) {
  auto region = co_await lend(device(), page);
  const mr::remote_slice where = region.remote();
  const std::uint32_t number = co_await borrow(hand, where);
  hand.own().turn = 1;
  victim.abort();
  EXPECT_EQ(hand.other().lent[number], shm::end_words::shut);
  co_await region.release();
  hand.own().turn = 2;
  hand.wake();
}

TEST_P_BY_HAND(lent_to_hostile, peers_that_stay_inside_do_not_keep_a_region_for_ever) {
  auto region = co_await lend(device(), page);
  const mr::remote_slice where = region.remote();
  const std::uint32_t number = co_await borrow(hand, where);
  hand.own().turn = 1;
  co_await region.release();
  EXPECT_EQ(hand.other().lent[number], shm::end_words::shut);
  EXPECT_EQ((co_await next(hand, record_kind::withdrawn)).number, number);
  hand.own().turn = 2;
  hand.say({.kind = record_kind::returned, .number = number});
  co_await settle();
}

// Two files in its socket, and it could not tell which is whose.
TEST_P_BY_HAND(lent_to_hostile,
               peers_are_offered_nothing_before_they_have_answered_to_what_has_been_revoked_meanwhile) {
  auto first = co_await lend(device(), page);
  auto second = co_await lend(device(), page);
  hand.say(read_of(first.remote()));
  const record made = co_await next(hand, record_kind::offer);
  co_await first.release();
  static_cast<void>(co_await next(hand, record_kind::withdrawn));
  hand.say(read_of(second.remote()));
  const record said = co_await next(hand);
  EXPECT_EQ(said.kind, record_kind::answer) << "there are two files in the socket";
  if (said.kind != record_kind::answer) co_return;
  hand.say({.kind = record_kind::taken, .number = made.number});
  EXPECT_EQ((co_await next(hand, record_kind::offer)).key, stag_of(second.remote()));
  hand.say({.kind = record_kind::returned, .number = made.number});
  co_await second.release();
}

TEST_P_BY_HAND(lent_to_hostile, peers_that_decline_are_served_as_before) {
  auto region = co_await lend(device(), page);
  const record ask = read_of(region.remote());
  hand.say(ask);
  const record made = co_await next(hand, record_kind::offer);
  static_cast<void>(co_await next(hand, record_kind::answer));
  hand.say({.kind = record_kind::taken, .flags = record::declined, .number = made.number});
  for (int i = 0; i < 100; ++i) {
    hand.say(ask);
    EXPECT_EQ((co_await next(hand)).kind, record_kind::answer);
    hand.release();
  }
  co_await region.release();
}

}  // namespace
}  // namespace weft::test
