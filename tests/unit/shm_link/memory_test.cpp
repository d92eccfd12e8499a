// SPDX-License-Identifier: Apache-2.0
// Systems that have no pages for a ring, or cannot reserve them: an error says so, and nobody dies of a signal.
#include <linux/mman.h>

#include "shm_link/support.hpp"

namespace weft::test {
namespace {

/// A kernel whose answers about pages a test chooses.
class scarce_memory : public system_calls {
 public:
  int madvise(void* address, std::size_t length, int advice) noexcept override {
    if (advice == MADV_REMOVE) ++rings_given_back;
    if (advice != MADV_POPULATE_WRITE) return system_calls::madvise(address, length, advice);
    const int failure = length == shm::channel::header_bytes ? words_failure : ring_failure;
    if (length != shm::channel::header_bytes) ++rings_reserved;
    return failure != 0 ? failure : system_calls::madvise(address, length, advice);
  }
  int fallocate(int fd, int mode, off_t offset, off_t length) noexcept override {
    if (interruptions != 0) return --interruptions, -EINTR;
    ++files_reserved;
    file_length = static_cast<std::size_t>(length);
    return file_failure != 0 ? file_failure : system_calls::fallocate(fd, mode, offset, length);
  }

  int words_failure = 0;
  int ring_failure = 0;
  int file_failure = 0;
  int interruptions = 0;  // of reserving a file, by signals
  std::size_t rings_reserved = 0;
  std::size_t rings_given_back = 0;
  std::size_t files_reserved = 0;
  std::size_t file_length = 0;
};

class shm_memory : public with_calls<scarce_memory, shm_link_test> {
 protected:
  /// What connect() and accept() of a set-up between both ends fail with.
  task<std::tuple<std::optional<error>, std::optional<error>>> failures_of_a_set_up() {
    auto listener = co_await device().listen("127.0.0.1:0");
    auto accepting = failure_of(accept_connection(listener, {}));
    co_return co_await when_all(failure_of(device().connect(std::string(listener.address()))), std::move(accepting));
  }
};

TEST_F_TASK(shm_memory, is_reserved_for_a_ring_once_when_it_is_first_written_to) {
  pair both = co_await connect_pair();
  EXPECT_EQ(calls.rings_reserved, 0u);
  co_await expect_service(both);
  EXPECT_EQ(calls.rings_reserved, 2u);
  for (int i = 0; i < 20; ++i) co_await expect_service(both);
  EXPECT_EQ(calls.rings_reserved, 2u);
  EXPECT_EQ(calls.files_reserved, 0u);
}

TEST_F(shm_memory, that_is_short_for_a_ring_ends_the_connection_and_says_so) {
  for (const int failure : {-ENOMEM, -ENOSPC, -EFAULT, -EHWPOISON}) {
    run_beside_others([&](pair& others) -> task<> {
      pair both = co_await connect_pair();
      calls.ring_failure = failure;
      auto message = co_await filled(10, 'x');
      const auto sent = co_await failure_of(both.client.send(std::move(message)));
      calls.ring_failure = 0;
      EXPECT_NE(std::exchange(calls.rings_given_back, 0), 0u);
      EXPECT_TRUE(failed_with(sent, errc::no_memory, "there are no pages for the ring"));
      EXPECT_EQ(co_await code_of(both.server.recv_or_throw()), errc::peer_vanished);
      co_await expect_service(others);
    });
  }
}

TEST_F_TASK(shm_memory, that_is_short_for_an_answer_ends_the_connection) {
  pair both = co_await connect_pair();
  auto source = co_await filled(100, 's');
  const auto open = co_await both.server.expose(std::move(source), mr::usage::read_src);
  auto target = co_await filled(100, 't');
  co_await send(both.client);  // the ring of the reader is there, the other's is not
  static_cast<void>(co_await both.server.recv_or_throw());
  calls.ring_failure = -ENOMEM;
  EXPECT_EQ(co_await code_of(both.client.read(target, open.remote())), errc::peer_vanished);
  EXPECT_TRUE(failed_with(co_await failure_of(both.server.recv_or_throw()), errc::no_memory));
}

TEST_F(shm_memory, that_is_short_for_the_words_of_a_connection_fails_its_set_up_at_both_ends) {
  run_beside_others([&](pair&) -> task<> {
    calls.words_failure = -ENOMEM;
    const auto failures = co_await failures_of_a_set_up();
    const auto& [connecting, accepting] = failures;
    calls.words_failure = 0;
    EXPECT_TRUE(says(connecting, "the peer can have no memory to share"));
    EXPECT_TRUE(accepting);
  });
}

// Before Linux 5.14.
TEST_F_TASK(shm_memory, is_reserved_as_a_file_where_pages_of_a_mapping_cannot_be) {
  calls.words_failure = -EINVAL;
  calls.ring_failure = -EINVAL;
  calls.interruptions = 2;
  pair both = co_await connect_pair();
  EXPECT_EQ(calls.interruptions, 0);
  EXPECT_EQ(calls.files_reserved, 1u);
  EXPECT_EQ(calls.file_length, shm::channel::header_bytes + 2 * (std::size_t{256} << 10));
  for (int i = 0; i < 20; ++i) co_await expect_service(both);
  EXPECT_EQ(calls.rings_reserved, 2u);
  EXPECT_EQ(calls.files_reserved, 1u);
}

TEST_F_TASK(shm_memory, that_is_short_for_such_a_file_fails_the_set_up) {
  calls.words_failure = -EINVAL;
  calls.file_failure = -ENOSPC;
  const auto failures = co_await failures_of_a_set_up();
  const auto& [connecting, accepting] = failures;
  EXPECT_TRUE(says(connecting, "the peer can have no memory to share"));
  EXPECT_TRUE(accepting);
}

}  // namespace
}  // namespace weft::test
