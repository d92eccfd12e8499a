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

struct with_scarce_memory {
  scarce_memory calls;
};

class shm_memory : private with_scarce_memory, public shm_link_test {
 protected:
  shm_memory() : shm_link_test(with_scarce_memory::calls) {}
  [[nodiscard]] scarce_memory& kernel() noexcept { return calls; }
};

TEST_F_TASK(shm_memory, is_reserved_for_a_ring_once_when_it_is_first_written_to) {
  pair both = co_await connect_pair();
  EXPECT_EQ(kernel().rings_reserved, 0u);
  co_await expect_service(both);
  EXPECT_EQ(kernel().rings_reserved, 2u);
  for (int i = 0; i < 20; ++i) co_await expect_service(both);
  EXPECT_EQ(kernel().rings_reserved, 2u);
  EXPECT_EQ(kernel().files_reserved, 0u);
  end(both);
}

TEST_F(shm_memory, that_is_short_for_a_ring_ends_the_connection_and_says_so) {
  for (const int failure : {-ENOMEM, -ENOSPC, -EFAULT, -EHWPOISON}) {
    run([&]() -> task<> {
      pair others = co_await connect_pair();
      co_await expect_service(others);
      const footprint before = co_await settled_footprint();
      {
        pair both = co_await connect_pair();
        kernel().ring_failure = failure;
        auto message = co_await filled(10, 'x');
        const auto sent = co_await failure_of(both.client.send(std::move(message)));
        kernel().ring_failure = 0;
        EXPECT_NE(std::exchange(kernel().rings_given_back, 0), 0u);
        EXPECT_TRUE(failed_with(sent, errc::no_memory, "there are no pages for the ring"));
        EXPECT_EQ(co_await code_of(both.server.recv_or_throw()), errc::peer_vanished);
        co_await expect_service(others);
      }
      co_await expect_only(before);
      end(others);
    });
  }
}

TEST_F_TASK(shm_memory, that_is_short_for_an_answer_ends_the_connection) {
  pair both = co_await connect_pair();
  auto source = co_await filled(100, 's');
  const auto open = co_await both.server.expose(std::move(source), mr::usage::read_src);
  auto target = co_await filled(100, 't');
  const auto hold = [&]() -> task<> {  // the ring of the reader is there, the other's is not
    co_await send(both.client);
    static_cast<void>(co_await both.server.recv_or_throw());
  };
  co_await hold();
  kernel().ring_failure = -ENOMEM;
  EXPECT_EQ(co_await code_of(both.client.read(target, open.remote())), errc::peer_vanished);
  EXPECT_TRUE(failed_with(co_await failure_of(both.server.recv_or_throw()), errc::no_memory));
}

TEST_F_TASK(shm_memory, that_is_short_for_the_words_of_a_connection_fails_its_set_up_at_both_ends) {
  pair others = co_await connect_pair();
  co_await expect_service(others);
  const footprint before = co_await settled_footprint();
  kernel().words_failure = -ENOMEM;
  {
    auto listener = co_await device().listen("127.0.0.1:0");
    auto accepting = failure_of(accept_connection(listener, {}));
    const auto both =
        co_await when_all(failure_of(device().connect(std::string(listener.address()))), std::move(accepting));
    EXPECT_TRUE(std::get<0>(both) && std::get<1>(both));
    EXPECT_TRUE(contains(std::get<0>(both), "the peer can have no memory to share"))
        << (std::get<0>(both) ? std::get<0>(both)->what() : "none");
  }
  co_await expect_only(before);
  kernel().words_failure = 0;
  co_await expect_service(others);
  end(others);
}

// Before Linux 5.14.
TEST_F(shm_memory, is_reserved_as_a_file_where_pages_of_a_mapping_cannot_be) {
  kernel().words_failure = -EINVAL;
  kernel().ring_failure = -EINVAL;
  kernel().interruptions = 2;
  run([&]() -> task<> {
    pair both = co_await connect_pair();
    EXPECT_EQ(kernel().interruptions, 0);
    EXPECT_EQ(kernel().files_reserved, 1u);
    EXPECT_EQ(kernel().file_length, shm::channel::header_bytes + 2 * (std::size_t{256} << 10));
    for (int i = 0; i < 20; ++i) co_await expect_service(both);
    EXPECT_EQ(kernel().rings_reserved, 2u);
    EXPECT_EQ(kernel().files_reserved, 1u);
    end(both);
  });
}

TEST_F(shm_memory, that_is_short_for_such_a_file_fails_the_set_up) {
  kernel().words_failure = -EINVAL;
  kernel().file_failure = -ENOSPC;
  run([&]() -> task<> {
    auto listener = co_await device().listen("127.0.0.1:0");
    auto accepting = code_of(accept_connection(listener, {}));
    const auto both =
        co_await when_all(failure_of(device().connect(std::string(listener.address()))), std::move(accepting));
    EXPECT_TRUE(contains(std::get<0>(both), "the peer can have no memory to share"));
    EXPECT_TRUE(std::get<1>(both));
  });
}

}  // namespace
}  // namespace weft::test
