// SPDX-License-Identifier: Apache-2.0
// Peers that the real kernel confines. Where it does not let this process do that, a test is skipped and says why.
#include <weft/net/software/kernel_copy.hpp>

#include "shm_link/confined.hpp"

namespace weft::test {
namespace {

class confined_peer : public shm_link_test {
 protected:
  /// What the end that connects says.
  struct account {
    std::string fabric{};
    std::string passed_over{};
    std::string failure{};
    bool all_went_well = false;
  };
  friend void PrintTo(const account& what, std::ostream* out) {
    *out << "over \"" << what.fabric << "\", instead because \"" << what.passed_over << "\", failure \"" << what.failure
         << '"';
  }
  static constexpr const char* host_and_port = "127.0.0.1:0";

  /// This process listens and a confined one connects, over these fabrics. Nothing is left of that.
  account connection_from(const std::string& fabrics, const confinement& how,
                          const std::string& address = host_and_port, const std::string& condition = {}) {
    account said;
    run_beside_others([&]() -> task<> {
      const std::string here = address.starts_with("unix:") ? address : host_and_port;
      auto listener = co_await all_.listen(here);
      const std::string where(listener.address());
      confined_process there({"connects", fabrics, where, condition}, how);
      const auto watch = [&]() -> task<> {
        said = co_await account_of(there);
        listener.close();
      };
      co_await when_all(serve_all(listener), watch());
    });
    return said;
  }
  /// A confined process listens, over both fabrics, and this one connects.
  account connection_to(const std::string& fabrics, const confinement& how, const std::string& address = host_and_port,
                        const std::string& condition = {}) {
    account said;
    run_beside_others([&]() -> task<> {
      net::device& from = fabrics == "shm" ? device() : all_;
      confined_process there({"listens", "shm,iwarp", address, condition}, how);
      const std::string first = co_await there.line();
      if (!first.starts_with("at ")) {
        said.failure = "it does not listen: " + first;
        co_return;
      }
      try {
        auto peer = co_await from.connect(first.substr(3));
        said.fabric = peer.fabric();
        said.passed_over = peer.passed_over();
        co_await use(from, peer);
        const account other = co_await account_of(there);
        EXPECT_TRUE(other.all_went_well) << testing::PrintToString(other);
        said.all_went_well = true;
      } catch (const error& why) {
        said.failure = why.what();
      }
    });
    return said;
  }

  static testing::AssertionResult goes_well_over_shm(const char*, const account& said) {
    if (said.all_went_well && said.fabric == "shm" && said.passed_over.empty()) return testing::AssertionSuccess();
    return testing::AssertionFailure() << testing::PrintToString(said);
  }
  static testing::AssertionResult goes_well_over_iwarp_because(const char*, const char*, const account& said,
                                                               std::string_view reason) {
    const bool is_told =
        said.passed_over.starts_with("over shm: ") && said.passed_over.find(reason) != std::string::npos;
    if (said.all_went_well && said.fabric == "iwarp" && is_told) return testing::AssertionSuccess();
    return testing::AssertionFailure() << testing::PrintToString(said);
  }
  static testing::AssertionResult fails_saying(const char*, const char*, const account& said, std::string_view words) {
    const bool fails = !said.all_went_well && said.failure.find(words) != std::string::npos;
    return fails ? testing::AssertionSuccess() : testing::AssertionFailure() << testing::PrintToString(said);
  }
  static testing::AssertionResult goes_well_or_says_why(const char*, const account& said) {
    const bool is_told = said.all_went_well ? said.fabric == "shm" || !said.passed_over.empty() : !said.failure.empty();
    return is_told ? testing::AssertionSuccess() : testing::AssertionFailure() << testing::PrintToString(said);
  }

  template <class Script>
  void run_beside_others(Script script) {
    const auto in_time = [&](pair&) { return with_timeout(100s, script()); };
    run([&] { return warm_up(); });
    shm_link_test::run_beside_others(in_time);
  }
  static task<account> account_of(confined_process& from) {
    account said;
    const auto take = [](const std::string& line, std::string_view words, std::string& into) {
      if (line.starts_with(words)) into = line.substr(words.size());
    };
    for (std::string line = co_await from.line(); !line.empty(); line = co_await from.line()) {
      take(line, "over ", said.fabric);
      take(line, "instead because ", said.passed_over);
      take(line, "failed: ", said.failure);
      said.all_went_well = said.all_went_well || line == "done";
      EXPECT_FALSE(line.starts_with("leaked")) << line;
    }
    co_return said;
  }
  const file_memory memory;
  const scratch_directory directory;

 private:
  // So that its pool has what it keeps.
  task<> warm_up() {
    auto first = co_await all_.allocate(5000);
    auto second = co_await all_.allocate(5000);
  }
  task<> serve_all(net::listener& from) {
    for (;;) {
      auto request = co_await from.next();
      if (!request) co_return;
      auto accepted = co_await as_result(request->accept());
      if (!accepted) continue;
      net::connection peer = std::move(*accepted);
      static_cast<void>(co_await as_result(serve(all_, peer, memory)));
    }
  }

  net::device all_ = net::device::open("shm,iwarp");
};

// ---- network namespaces

using network_namespaces = confined_peer;

TEST_F(network_namespaces, that_share_a_directory_are_connected_by_a_path) {
  const confinement apart = in_a_network_namespace(loopback::up);
  if (const auto why = why_not(apart); !why.empty()) GTEST_SKIP() << why;
  for (const char* const fabrics : {"shm", "shm,iwarp"}) {
    EXPECT_PRED_FORMAT1(goes_well_over_shm, connection_from(fabrics, apart, directory.address()));
    EXPECT_PRED_FORMAT1(goes_well_over_shm, connection_to(fabrics, apart, directory.address()));
  }
}

TEST_F(network_namespaces, end_the_reach_of_host_and_port_and_the_error_says_so) {
  for (const loopback state : {loopback::up, loopback::down}) {
    const confinement apart = in_a_network_namespace(state);
    if (const auto why = why_not(apart); !why.empty()) GTEST_SKIP() << why;
    const account alone = connection_from("shm", apart);
    EXPECT_PRED_FORMAT2(fails_saying, alone, "network namespace");
    EXPECT_PRED_FORMAT2(fails_saying, alone, "unix:PATH");
    const account by_all = connection_from("shm,iwarp", apart);
    EXPECT_PRED_FORMAT2(fails_saying, by_all, "network namespace");
    EXPECT_PRED_FORMAT2(fails_saying, by_all, "over iwarp: ");
  }
  EXPECT_PRED_FORMAT2(fails_saying, connection_to("shm", in_a_network_namespace(loopback::up)), "network namespace");
}

// ---- user namespaces

class user_namespaces : public confined_peer {
 protected:
  static confinement as_number(unsigned number) {
    return in_a_user_namespace(std::to_string(number) + " " + std::to_string(::geteuid()) + " 1");
  }
  static confinement without_numbers() { return in_a_user_namespace(""); }
  static bool has_numbers_for_all() {
    std::uint64_t inside = 1;
    std::uint64_t outside = 1;
    std::uint64_t count = 0;
    std::ifstream("/proc/self/uid_map") >> inside >> outside >> count;
    return inside == 0 && count == 0xffff'ffff;
  }
  /// Between two confined processes.
  account connection_between(const confinement& one, const confinement& other) {
    account said;
    run_beside_others([&]() -> task<> {
      confined_process listening({"listens", "shm", host_and_port}, one);
      const std::string address = co_await listening.line_after("at ");
      confined_process connecting({"connects", "shm", address}, other);
      said = co_await account_of(connecting);
    });
    return said;
  }
};

TEST_F(user_namespaces, that_call_the_user_by_another_number_are_connected_as_that_user) {
  for (const unsigned number : {0U, 1000U}) {
    const confinement renamed = as_number(number);
    if (const auto why = why_not(renamed); !why.empty()) GTEST_SKIP() << why;
    EXPECT_PRED_FORMAT1(goes_well_over_shm, connection_from("shm", renamed));
    EXPECT_PRED_FORMAT1(goes_well_over_shm, connection_to("shm", renamed));
  }
}

TEST_F(user_namespaces, without_numbers_for_users_send_peers_over_the_network_and_the_reason_can_be_read) {
  if (const auto why = why_not(without_numbers()); !why.empty()) GTEST_SKIP() << why;
  const std::string nobody = "who listens there has no number in this user namespace";
  const std::string not_taken = "the listener takes processes of its own user only";
  EXPECT_PRED_FORMAT2(goes_well_over_iwarp_because, connection_from("shm,iwarp", without_numbers()), nobody);
  EXPECT_PRED_FORMAT2(goes_well_over_iwarp_because, connection_to("shm,iwarp", without_numbers()), not_taken);
  EXPECT_PRED_FORMAT2(fails_saying, connection_from("shm", without_numbers()), nobody);
  EXPECT_PRED_FORMAT2(fails_saying, connection_to("shm", without_numbers()), not_taken);
}

// To both, the other appears as the overflow user, and so does each to itself.
TEST_F(user_namespaces, without_numbers_for_users_do_not_take_them_for_their_own_user) {
  const confinement one = all_of({as_user(65533), without_numbers()});
  const confinement other = all_of({as_user(65532), without_numbers()});
  if (const auto why = why_not(one); !why.empty()) GTEST_SKIP() << why;
  EXPECT_PRED_FORMAT2(fails_saying, connection_between(one, other),
                      "who listens there has no number in this user namespace");
}

TEST_F(user_namespaces, with_numbers_for_all_users_know_the_overflow_user_as_any_other) {
  if (!has_numbers_for_all()) GTEST_SKIP() << "not all users have a number here";
  const confinement nobody = as_user(65534);
  if (const auto why = why_not(nobody); !why.empty()) GTEST_SKIP() << why;
  EXPECT_PRED_FORMAT1(goes_well_over_shm, connection_between(nobody, nobody));
}

TEST_F(user_namespaces, leave_it_to_the_permissions_of_a_path_who_may_connect) {
  const confinement another_user = all_of({as_user(65533), without_numbers()});
  if (const auto why = why_not(another_user); !why.empty()) GTEST_SKIP() << why;
  EXPECT_PRED_FORMAT1(goes_well_over_shm, connection_from("shm", without_numbers(), directory.address()));
  EXPECT_PRED_FORMAT1(goes_well_over_shm, connection_to("shm", without_numbers(), directory.address()));
  EXPECT_PRED_FORMAT2(fails_saying, connection_from("shm", another_user, directory.address()), "Permission denied");
}

// ---- filters of system calls: seccomp(2)

using system_call_filters = confined_peer;

TEST_F(system_call_filters, that_forbid_files_in_memory_send_peers_over_the_network_and_the_reason_can_be_read) {
  for (const int number : {EPERM, ENOSYS}) {
    const confinement filtered = without_call(SYS_memfd_create, number);
    if (const auto why = why_not(filtered); !why.empty()) GTEST_SKIP() << why;
    const std::string reason =
        std::string("the peer can have no memory to share: \"memfd_create: ") + std::strerror(number);
    EXPECT_PRED_FORMAT2(goes_well_over_iwarp_because, connection_to("shm,iwarp", filtered), reason);
    EXPECT_PRED_FORMAT2(fails_saying, connection_to("shm", filtered), reason);
    EXPECT_PRED_FORMAT2(fails_saying, connection_to("shm,iwarp", filtered, directory.address()), reason);
    // The end that accepts makes the file.
    EXPECT_PRED_FORMAT1(goes_well_over_shm, connection_from("shm,iwarp", filtered));
  }
}

TEST_F(system_call_filters, that_forbid_unix_sockets_send_peers_over_the_network_and_the_reason_can_be_read) {
  for (const int number : {EPERM, EAFNOSUPPORT}) {
    const confinement filtered = without_unix_sockets(number);
    if (const auto why = why_not(filtered); !why.empty()) GTEST_SKIP() << why;
    const std::string reason = std::string("open a Unix socket: ") + std::strerror(number);
    EXPECT_PRED_FORMAT2(goes_well_over_iwarp_because, connection_from("shm,iwarp", filtered), reason);
    EXPECT_PRED_FORMAT2(goes_well_over_iwarp_because, connection_to("shm,iwarp", filtered), "Connection refused");
    EXPECT_PRED_FORMAT2(fails_saying, connection_from("shm", filtered), "over shm: " + reason);
    EXPECT_PRED_FORMAT2(fails_saying, connection_to("shm", filtered, directory.address()), reason);
  }
}

TEST_F(system_call_filters, that_forbid_copies_by_the_kernel_leave_shared_memory_as_it_is) {
  for (const int number : {EPERM, ENOSYS}) {
    const confinement filtered =
        all_of({without_call(SYS_process_vm_readv, number), without_call(SYS_process_vm_writev, number)});
    if (const auto why = why_not(filtered); !why.empty()) GTEST_SKIP() << why;
    EXPECT_PRED_FORMAT1(goes_well_over_shm, connection_from("shm,iwarp", filtered));
    EXPECT_PRED_FORMAT1(goes_well_over_shm, connection_to("shm,iwarp", filtered));
  }
}

// ---- mounts

using mounted_files = confined_peer;

TEST_F(mounted_files, that_fill_dev_shm_or_are_missing_there_and_in_proc_make_no_difference) {
  for (const confinement& mounted : {with_a_full_dev_shm(), without_dev_shm()}) {
    if (const auto why = why_not(mounted); !why.empty()) GTEST_SKIP() << why;
    for (const char* const condition : {"", "without_proc"}) {
      for (const std::string& address : {std::string(host_and_port), directory.address()}) {
        EXPECT_PRED_FORMAT1(goes_well_over_shm, connection_from("shm", mounted, address, condition));
        EXPECT_PRED_FORMAT1(goes_well_over_shm, connection_to("shm", mounted, address, condition));
      }
    }
  }
}

// ---- PID namespaces

using pid_namespaces = confined_peer;

TEST_F(pid_namespaces, that_let_no_memory_be_executed_are_connected_by_shared_memory) {
  const confinement strict = where_memory_is_not_executed();
  if (const auto why = why_not(strict); !why.empty()) GTEST_SKIP() << why;
  EXPECT_PRED_FORMAT1(goes_well_over_shm, connection_from("shm", strict));
  EXPECT_PRED_FORMAT1(goes_well_over_shm, connection_to("shm", strict));
}

// ---- limits

class memory_groups : public confined_peer {
 protected:
  struct ending {
    bool killed = false;
    std::string words{};
  };
  /// How a process of the group ends that has no room for its ring. This end hears of it, and goes on.
  ending shortage_in(memory_group& group) {
    ending found;
    net::device large = net::device::open("shm", {.shm = {.ring_bytes = large_ring_bytes}});
    run_beside_others([&]() -> task<> {
      auto listener = co_await large.listen(host_and_port);
      confined_process there({"connects", "shm", std::string(listener.address()), "large_rings"}, group.inside());
      net::connection peer = co_await accept_connection(listener, {});
      EXPECT_EQ(co_await there.line_after("over "), "shm");
      // Enough for what it needs besides, a few huge pages with it: at the limit, sanitizers see errors everywhere.
      group.leave(large_ring_bytes / 4 * 3);
      const auto serve_and_feed = [&](scope& feeding) -> task<> {
        if (group.says_so()) feeding.spawn(group.feed());
        EXPECT_EQ(co_await code_of(with_timeout(60s, serve(large, peer, memory))), errc::peer_vanished)
            << group.state() << there.state();
        feeding.request_stop();
      };
      co_await with_scope(on_failure::stop_siblings, serve_and_feed);
      // Where nobody is killed, a process waits for pages of its own, for its last words or a sanitizer's look for
      // leaks.
      group.lift_limit();
      found.words = co_await there.line();
      found.killed = there.wait() == -SIGKILL;
    });
    return found;
  }
  static constexpr const char* no_memory = "there are no pages for the ring: out of memory";
};

// The kernel asks its killer before it says so to whoever asks for memory: see docs/shm.md.
TEST_F(memory_groups, without_pages_for_a_ring_end_the_connection_or_the_process_and_the_other_end_goes_on) {
  memory_group group(memory_group::shortage::kills);
  if (!group.why_not().empty()) GTEST_SKIP() << group.why_not();
  const ending found = shortage_in(group);
  EXPECT_TRUE(found.killed || contains(found.words, no_memory)) << found.words;
  RecordProperty("ended_by", found.killed ? "the kernel" : "errc::no_memory");
}

TEST_F(memory_groups, without_pages_for_a_ring_and_without_a_killer_end_the_connection_with_no_memory) {
  memory_group group(memory_group::shortage::is_said);
  if (!group.why_not().empty()) GTEST_SKIP() << group.why_not();
  const ending found = shortage_in(group);
  EXPECT_FALSE(found.killed);
  EXPECT_TRUE(contains(found.words, no_memory)) << found.words;
}

// The kernel only says whether the page is there: a copy by the kernel may tear the word.
TEST(kernel_copies, of_a_word_that_is_open_to_atomics_are_left_to_the_processor) {
  const pid_t child = fork_for([]() -> int {
    using net::software::copy_into;
    net::software::check_kernel_copies("this test");
    const file_memory memory;
    const std::array<std::byte, 16> from{std::byte{1}, std::byte{2}};
    if (without_call(SYS_process_vm_readv, EPERM)() != nullptr) return 1;
    const auto word = memory.bytes().subspan(8, 8);
    const auto eight = std::span(from).first(8);
    if (copy_into(word, eight) || !copy_into(word, eight, true) || word[1] != from[1]) return 2;
    if (copy_into(memory.bytes().subspan(4, 8), eight, true) || copy_into(memory.bytes().first(16), from, true))
      return 3;
    return memory.truncate() && !copy_into(word, eight, true) ? 0 : 4;
  });
  EXPECT_EQ(end_of(child), 0);
}

class descriptor_limits : public confined_peer {
 protected:
  void SetUp() override {
    if (sanitized && !with_thread_sanitizer)
      GTEST_SKIP() << "without descriptors this sanitizer sees errors everywhere";
  }
};

TEST_F(descriptor_limits, of_a_connector_reached_at_any_step_are_told_in_words_and_nothing_is_left_open) {
  account last;
  for (int most = 4; last.fabric != "shm" && most < 64; ++most) {
    last = connection_from("shm,iwarp", unconfined(), host_and_port, "descriptors:" + std::to_string(most));
    EXPECT_PRED_FORMAT1(goes_well_or_says_why, last);
  }
  EXPECT_PRED_FORMAT1(goes_well_over_shm, last);
}

TEST_F(descriptor_limits, of_a_listener_reached_at_any_step_let_no_peer_wait_and_leave_nothing_open) {
  account last;
  for (int most = 4; last.fabric != "shm" && most < 64; ++most) {
    last = connection_to("shm,iwarp", unconfined(), host_and_port, "descriptors:" + std::to_string(most));
    EXPECT_PRED_FORMAT1(goes_well_or_says_why, last);
    EXPECT_FALSE(contains(last.failure + last.passed_over, "timed out")) << testing::PrintToString(last);
  }
  EXPECT_PRED_FORMAT1(goes_well_over_shm, last);
}

}  // namespace
}  // namespace weft::test
