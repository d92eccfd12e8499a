// SPDX-License-Identifier: Apache-2.0
// Set-ups with peers that know better: each ends by itself, in time, leaves no descriptor, and troubles nobody else.
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/timerfd.h>

#include "shm/support.hpp"

namespace weft::test {
namespace {

constexpr int all_seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr std::size_t channel_bytes = shm::channel::header_bytes + 2 * (std::size_t{256} << 10);

/// What a peer may hand over in place of a channel.
std::vector<descriptor> no_channels() {
  int pipe[2];
  int sockets[2];
  EXPECT_EQ(::pipe2(pipe, O_CLOEXEC | O_NONBLOCK), 0);
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sockets), 0);
  std::vector<descriptor> all;
  for (const int each : {pipe[0], pipe[1], sockets[0], sockets[1], ::eventfd(0, EFD_CLOEXEC),
                         ::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK), ::epoll_create1(EPOLL_CLOEXEC),
                         ::open("/dev/null", O_RDWR | O_CLOEXEC | O_NONBLOCK), ::memfd_create("test", MFD_CLOEXEC)}) {
    all.push_back(owned(each));
  }
  return all;
}

/// A list, which GCC 12 does not take in braces beside co_await.
template <class... Number>
std::vector<int> those(Number... descriptors) {
  return {descriptors...};
}

class shm_listening : public shm_test {
 protected:
  /// The listener closes the connection of a peer that sends this, and goes on.
  task<> expect_refusal(net::link_listener& listener, std::span<const std::byte> packet,
                        std::vector<int> descriptors = {}) {
    const std::size_t open = open_descriptors();
    {
      raw_end raw = raw_end::connect(name_of(listener));
      raw.send(packet, std::move(descriptors));
      EXPECT_TRUE((co_await raw.receive()).empty());
    }
    co_await settle();
    EXPECT_EQ(open_descriptors(), open);
  }
};

TEST_F_TASK(shm_listening, turns_away_a_hello_cut_at_any_byte_or_with_any_byte_of_its_beginning_wrong) {
  auto listener = co_await listen_at_work();
  const bytes hello = packed(hello_frame());
  for (std::size_t size = 1; size < hello.size(); ++size) {
    co_await expect_refusal(*listener, std::span(hello).first(size));
  }
  for (std::size_t i = 0; i < 8; ++i) {
    bytes wrong = hello;
    wrong[i] ^= std::byte{1};
    co_await expect_refusal(*listener, wrong);
  }
  EXPECT_EQ(counts.requests_failed, hello.size() - 1 + 8);
  co_await expect_service(*listener);
}

TEST_F_TASK(shm_listening, turns_away_packets_that_are_no_hello) {
  auto listener = co_await listen_at_work();
  const descriptor file = new_memory(channel_bytes, all_seals);
  co_await expect_refusal(*listener, bytes(100'000, std::byte{'w'}));
  co_await expect_refusal(*listener, bytes_of("GET / HTTP/1.1\r\n\r\n"));
  co_await expect_refusal(*listener, packed(accept_frame()), those(file.fd()));
  co_await expect_refusal(*listener, packed({.kind = shm::frame_kind::ready}));
  co_await expect_refusal(*listener, packed({.kind = shm::frame_kind::reject}));
  co_await expect_refusal(*listener, {}, those(file.fd()));
  co_await expect_service(*listener);
}

TEST_F_TASK(shm_listening, turns_away_hellos_with_descriptors_and_keeps_none_of_them) {
  auto listener = co_await listen_at_work();
  const bytes hello = packed(hello_frame());
  const descriptor file = new_memory(4096, 0);
  for (const std::size_t count : {1U, 2U, 3U, 200U, 253U}) {
    co_await expect_refusal(*listener, hello, std::vector<int>(count, file.fd()));
  }
  co_await expect_service(*listener);
}

TEST_F_TASK(shm_listening, tells_peers_of_another_version_which_it_speaks) {
  auto listener = co_await listen_at_work();
  for (const int later : {-1, 1, 100}) {
    shm::frame hello = hello_frame();
    hello.version = static_cast<std::uint16_t>(shm::frame::spoken_version + later);
    raw_end raw = raw_end::connect(name_of(*listener));
    raw.send(hello);
    const shm::frame answer = co_await raw.receive_frame();
    EXPECT_EQ(answer.reason, shm::reject_reason::other_version);
    EXPECT_EQ(answer.version, shm::frame::spoken_version);
  }
  co_await expect_service(*listener);
}

TEST_F_TASK(shm_listening, lets_peers_that_say_nothing_wait_for_themselves_and_drops_them_in_time) {
  auto listener = co_await listen_at_work();
  raw_end silent = raw_end::connect(name_of(*listener));
  co_await expect_service(*listener);
  EXPECT_EQ(counts.half_open, 1u);
  jump(6s);
  co_await settle();  // in its next turn the executor looks at the clock
  EXPECT_TRUE((co_await silent.receive()).empty());
  co_await settle();
  EXPECT_EQ(counts.half_open, 0u);
  EXPECT_EQ(counts.requests_failed, 1u);
}

TEST_F_TASK(shm_listening, full_of_peers_that_say_nothing_takes_the_next_one_in_place_of_the_oldest) {
  auto listener = co_await listen_at_work(4);
  std::vector<raw_end> silent;
  for (std::size_t i = 0; i < 20; ++i) silent.push_back(raw_end::connect(name_of(*listener)));
  co_await expect_service(*listener);
  const bytes said = co_await silent.front().receive();
  EXPECT_TRUE(said.empty());
}

TEST_F_TASK(shm_listening, without_descriptors_says_so) {
  auto listener = co_await listen_at_work();
  raw_end raw = raw_end::connect(name_of(*listener));
  raw.send(hello_frame());
  auto request = co_await listener->next();
  const net::set_up_options options = how();
  std::optional<no_descriptors_left> none(std::in_place);
  const auto code = co_await code_of(request->accept(options));
  none.reset();
  EXPECT_EQ(code, std::errc::too_many_files_open);
  const shm::frame said = co_await raw.receive_frame();
  EXPECT_EQ(said.kind, shm::frame_kind::reject);
  const auto words = said.private_data();
  EXPECT_EQ(bytes(words.begin(), words.end()), bytes_of("weft: no descriptors left"));
  co_await expect_service(*listener);
}

TEST_F(shm_listening, hands_over_a_file_that_nobody_can_execute) {
  constexpr unsigned not_executed = 8;  // MFD_NOEXEC_SEAL
  const int known = ::memfd_create("test", MFD_CLOEXEC | not_executed);
  if (known < 0) GTEST_SKIP() << "this kernel knows no files in memory that cannot be executed";
  ::close(known);
  run([&]() -> task<> {
    auto listener = co_await listen_at_work();
    const shm::unix_name name = name_of(*listener);
    const auto ask = [&]() -> task<> {
      raw_end raw = raw_end::connect(name);
      raw.send(hello_frame());
      descriptor file;
      static_cast<void>(co_await raw.receive_frame(&file));
      struct stat found {};
      EXPECT_EQ(::fstat(file.fd(), &found), 0);
      EXPECT_EQ(found.st_mode & 0111U, 0u);
      EXPECT_NE(::fchmod(file.fd(), 0700), 0);
      raw.send(shm::frame{.kind = shm::frame_kind::ready});
    };
    co_await when_all(accept(*listener), ask());
  });
}

TEST_F_TASK(shm_listening, gives_up_on_peers_that_never_are_ready_or_go_instead) {
  auto listener = co_await listen_at_work();
  const std::size_t open = open_descriptors();
  {
    for (const bool goes : {false, true}) {
      raw_end raw = raw_end::connect(name_of(*listener));
      raw.send(hello_frame());
      const auto leave = [&]() -> task<> {
        const shm::frame answer = co_await raw.receive_frame();
        EXPECT_EQ(answer.kind, shm::frame_kind::accept);
        if (goes) {
          raw.close();
        } else {
          jump(11s);
          co_await settle();
        }
      };
      const auto both = co_await when_all(code_of(accept(*listener)), leave());
      EXPECT_EQ(std::get<0>(both), goes ? errc::peer_vanished : errc::timed_out);
    }
  }
  EXPECT_EQ(open_descriptors(), open);
  co_await expect_service(*listener);
}

TEST_F_TASK(shm_listening, takes_nothing_else_for_a_peer_that_is_ready) {
  auto listener = co_await listen_at_work();
  raw_end raw = raw_end::connect(name_of(*listener));
  raw.send(hello_frame());
  raw.send(hello_frame());
  EXPECT_EQ(co_await code_of(accept(*listener)), errc::protocol_error);
}

class shm_connecting : public shm_test {
 protected:
  /// What connect() ends with whose peer answers this.
  task<std::optional<error>> answer_with(std::span<const std::byte> packet, std::vector<int> descriptors = {}) {
    const scratch_directory directory;
    raw_acceptor listener(shm::unix_name::of_path(directory.socket()));
    const auto serve = [&]() -> task<> {
      raw_end raw = co_await listener.accept();
      EXPECT_EQ((co_await raw.receive()).size(), shm::frame::header_bytes);
      if (!packet.empty()) raw.send(packet, descriptors);
    };
    const auto both = co_await when_all(failure_of(connect(directory.address())), serve());
    co_return std::get<0>(both);
  }
  /// The same where the peer must be told from one that keeps to the rules, by what it hands over.
  task<> expect_violation(std::span<const std::byte> packet, std::vector<int> descriptors = {}) {
    const std::size_t open = open_descriptors();
    EXPECT_TRUE(failed_with(co_await answer_with(packet, std::move(descriptors)), errc::protocol_error));
    EXPECT_EQ(open_descriptors(), open);
  }
};

TEST_F_TASK(shm_connecting, refuses_answers_that_are_none) {
  const bytes answer = packed(accept_frame());
  const descriptor file = new_memory(channel_bytes, all_seals);
  const std::vector<int> channel{file.fd()};
  for (std::size_t size = 1; size < answer.size(); ++size) {
    co_await expect_violation(std::span(answer).first(size), channel);
  }
  co_await expect_violation(bytes(10'000), channel);
  co_await expect_violation(packed(hello_frame()));
  co_await expect_violation(packed({.kind = shm::frame_kind::ready}));
}

TEST_F_TASK(shm_connecting, notices_a_peer_that_goes_without_an_answer) {
  const auto failure = co_await answer_with({});
  EXPECT_EQ(failure->code(), errc::peer_vanished);
}

TEST_F_TASK(shm_connecting, refuses_other_descriptors_than_a_channel) {
  const bytes answer = packed(accept_frame());
  const descriptor file = new_memory(channel_bytes, all_seals);
  co_await expect_violation(answer);
  co_await expect_violation(answer, those(file.fd(), file.fd()));
  co_await expect_violation(answer, std::vector<int>(253, file.fd()));
  co_await expect_violation(packed({.kind = shm::frame_kind::reject}), those(file.fd()));
  for (const descriptor& each : no_channels()) co_await expect_violation(answer, those(each.fd()));
}

TEST_F_TASK(shm_connecting, refuses_a_channel_that_can_be_cut_or_is_not_as_long_as_said) {
  const bytes answer = packed(accept_frame());
  for (const int seals : {0, F_SEAL_GROW | F_SEAL_SEAL, F_SEAL_SHRINK | F_SEAL_SEAL, F_SEAL_SHRINK | F_SEAL_GROW}) {
    const descriptor file = new_memory(channel_bytes, seals);
    co_await expect_violation(answer, those(file.fd()));
  }
  for (const std::size_t length : {std::size_t{0}, channel_bytes - 1, channel_bytes + 1, 2 * channel_bytes}) {
    const descriptor file = new_memory(length, all_seals);
    co_await expect_violation(answer, those(file.fd()));
  }
  const descriptor read_only = new_memory(channel_bytes, all_seals | F_SEAL_WRITE);
  EXPECT_TRUE(co_await answer_with(answer, those(read_only.fd())));
}

TEST_F_TASK(shm_connecting, refuses_answers_that_agree_to_more_than_was_asked_for) {
  const descriptor file = new_memory(shm::channel::header_bytes + (std::size_t{1} << 20), all_seals);
  shm::frame larger = accept_frame();
  larger.ring_bytes *= 2;
  shm::frame more = accept_frame();
  more.incoming_reads = 17;
  shm::frame more_back = accept_frame();
  more_back.outgoing_reads = 17;
  for (const shm::frame& each : {larger, more, more_back}) co_await expect_violation(packed(each), those(file.fd()));
}

TEST_F_TASK(shm_connecting, says_which_version_the_peer_speaks) {
  for (const unsigned version : {1U, 3U, 9U}) {
    shm::frame other = accept_frame();
    other.version = static_cast<std::uint16_t>(version);
    const auto strange = co_await answer_with(packed(other));
    const std::string words =
        "the peer speaks version " + std::to_string(version) + " of this set-up, and this end version 2";
    EXPECT_TRUE(contains(strange, words));
  }
  const auto refused =
      co_await answer_with(packed({.kind = shm::frame_kind::reject, .reason = shm::reject_reason::other_version}));
  EXPECT_EQ(refused->code(), errc::protocol_error);
}

TEST_F_TASK(shm_connecting, to_a_socket_of_another_kind_fails) {
  const scratch_directory directory;
  const auto name = shm::unix_name::of_path(directory.socket());
  const descriptor stream = owned(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::bind(stream.fd(), name.data(), name.size()), 0);
  EXPECT_EQ(::listen(stream.fd(), 1), 0);
  EXPECT_EQ(co_await code_of(connect(directory.address())), std::errc::wrong_protocol_type);
  EXPECT_EQ(co_await code_of(listen(directory.address())), std::errc::address_in_use);
}

}  // namespace
}  // namespace weft::test
