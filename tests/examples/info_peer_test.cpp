// SPDX-License-Identifier: Apache-2.0
// weft-info and its peers: what they say to each other, hostile peers, and what is made of what was found.
#include <weft/weft.hpp>

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>

#include "kit/test.hpp"
#include "kit/thrown.hpp"
#include <info/fabric_devices.hpp>
#include <info/packets.hpp>
#include <info/probe.hpp>
#include <info/protocol.hpp>
#include <info/report.hpp>
#include <info/server.hpp>
#include <nlohmann/json.hpp>

namespace info {
namespace {

using namespace std::chrono_literals;

constexpr auto for_both = weft::mr::usage::write_dst | weft::mr::usage::read_src;

weft::mr::remote_region memory_of(std::uint64_t bytes, weft::mr::usage uses) { return {7, 0x1000, bytes, uses}; }

introduction usual_introduction() {
  introduction all{.token = 42, .words = "weft-info 0.1.0"};
  all.memory = memory_of(memory_bytes, for_both);
  return all;
}

std::error_code code_of_unpacking(std::span<const std::byte> bytes) {
  return weft::test::code_thrown_by([&] { return introduction::unpack(bytes); });
}

TEST(an_introduction, arrives_as_it_was_sent) {
  introduction all = usual_introduction();
  all.answers_packets = true;
  const introduction got = introduction::unpack(all.pack());
  EXPECT_EQ(got.token, 42U);
  EXPECT_TRUE(got.answers_packets);
  EXPECT_EQ(got.words, all.words);
  EXPECT_EQ(got.memory, all.memory);
}

TEST(an_introduction, cut_at_any_byte_is_refused) {
  const std::vector<std::byte> whole = usual_introduction().pack();
  for (std::size_t length = 0; length < whole.size(); ++length) {
    EXPECT_EQ(code_of_unpacking(std::span(whole).first(length)), weft::errc::malformed) << length;
  }
}

TEST(an_introduction, with_any_byte_changed_is_refused_or_within_bounds) {
  const std::vector<std::byte> whole = usual_introduction().pack();
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (unsigned value = 0; value < 256; ++value) {
      std::vector<std::byte> changed = whole;
      changed[at] = static_cast<std::byte>(value);
      try {
        const introduction got = introduction::unpack(changed);
        EXPECT_EQ(got.memory.size(), memory_bytes);
        EXPECT_LE(got.words.size(), introduction::most_words * 3);
      } catch (const weft::error&) {
      }
    }
  }
}

TEST(an_introduction, of_memory_that_is_larger_or_not_open_is_refused) {
  introduction all = usual_introduction();
  all.memory = memory_of(std::uint64_t{1} << 40, for_both);
  EXPECT_TRUE(code_of_unpacking(all.pack()));
  all.memory = memory_of(memory_bytes, weft::mr::usage::read_src);
  EXPECT_TRUE(code_of_unpacking(all.pack()));
}

TEST(an_introduction, brings_no_commands_to_a_terminal) {
  introduction all = usual_introduction();
  all.words = "\x1b[2J hello\n";
  EXPECT_EQ(introduction::unpack(all.pack()).words.find('\x1b'), std::string::npos);
}

TEST(a_greeting, may_be_padded_with_zeros_and_with_nothing_else) {
  std::vector<std::byte> said(greeting().begin(), greeting().end());
  EXPECT_TRUE(is_greeting(said));
  said.push_back(std::byte{0});
  EXPECT_TRUE(is_greeting(said));
  said.push_back(std::byte{1});
  EXPECT_FALSE(is_greeting(said));
  EXPECT_FALSE(is_greeting({}));
}

TEST(a_request, of_another_form_is_refused) {
  const auto packed = request{.what = request_kind::fill, .number = 7}.pack();
  EXPECT_EQ(request::unpack(packed).number, 7U);
  const std::array unknown{std::byte{9}};
  EXPECT_THROW(static_cast<void>(request::unpack(unknown)), weft::error);
  EXPECT_THROW(static_cast<void>(request::unpack({})), weft::error);
  EXPECT_THROW(static_cast<void>(request::unpack(std::span(packed).first(8))), weft::error);
}

TEST(a_pattern, shows_the_first_byte_that_differs) {
  std::vector<std::byte> memory(1001);
  fill_with_pattern(memory, 3);
  EXPECT_EQ(find_difference(memory, 3), std::nullopt);
  EXPECT_NE(find_difference(memory, 4), std::nullopt);
  memory[1000] ^= std::byte{1};
  EXPECT_EQ(find_difference(memory, 3), 1000U);
}

using conversation = std::function<weft::task<>(weft::net::listener&)>;

/// Serves over iwarp on a thread of its own, until it goes.
class peer_of_tests : private weft::test::immovable {
 public:
  explicit peer_of_tests(conversation what) : what_(std::move(what)), address_(told_.get_future().get()) {}
  [[nodiscard]] const std::string& address() const { return address_; }

 private:
  void run(const std::stop_token& left) try {
    auto device = open_fabric("iwarp");
    weft::executor().run(listen(device), left);
  } catch (const weft::error&) {  // one that has listened may lose a client that has seen enough
    if (!is_listening_) told_.set_exception(std::current_exception());
  }
  weft::task<> listen(weft::net::device& device) {
    auto listener = co_await device.listen("127.0.0.1:0");
    is_listening_ = true;
    told_.set_value(std::string(listener.address()));
    co_await what_(listener);
    co_await weft::sleep_for(1h);  // until it is stopped
  }

  conversation what_;
  bool is_listening_ = false;
  std::promise<std::string> told_;
  // Begins when the members above are there, and ends before they go.
  std::jthread thread_{[this](const std::stop_token& left) { run(left); }};
  std::string address_;
};

inventory with_iwarp_alone() {
  inventory all;
  all.fabrics = {{.name = "iwarp"}};
  return all;
}

peer_report probe(const std::string& address, std::chrono::milliseconds patience = 20s) {
  const probe_options options{.patience = patience};
  return probe_peer(machine(), with_iwarp_alone(), address, options);
}

weft::task<weft::net::connection> accept_as_weft_info(weft::net::listener& listener) {
  auto request = co_await listener.next();
  const weft::net::connection_options options{
      .receive_size = most_message_bytes, .receive_depth = messages_at_a_time, .private_data = greeting()};
  co_return co_await request->accept(options);
}

/// Accepts a connection and introduces itself.
weft::task<weft::net::connection> meet_as_weft_info(weft::net::listener& listener) {
  auto peer = co_await accept_as_weft_info(listener);
  const auto words = usual_introduction().pack();
  co_await peer.send_bytes(words);
  co_return peer;
}

/// What is found of a peer that does this.
peer_report probe_one_that(conversation what, std::chrono::milliseconds patience = 20s) {
  const peer_of_tests peer(std::move(what));
  peer_report found = probe(peer.address(), patience);
  EXPECT_EQ(found.fabrics.size(), 1U);
  return found;
}

findings findings_of(const peer_report& found, const inventory& all = with_iwarp_alone()) {
  findings result;
  check_peer(all, found, result);
  return result;
}

testing::AssertionResult fails_with(const reach& one, std::string_view words) {
  if (one.transfer_failure.find(words) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << one.transfer_failure;
}

TEST(a_peer, that_introduces_itself_with_nonsense_is_an_error_in_words) {
  const auto found = probe_one_that([](weft::net::listener& listener) -> weft::task<> {
    auto peer = co_await accept_as_weft_info(listener);
    const std::vector<std::byte> nonsense(100, std::byte{0xff});
    co_await peer.send_bytes(nonsense);
    static_cast<void>(co_await peer.recv());
  });
  EXPECT_TRUE(found.fabrics.at(0).connected);
  EXPECT_FALSE(found.fabrics[0].speaks);
  EXPECT_TRUE(fails_with(found.fabrics[0], "weft-info's protocol"));
  EXPECT_EQ(findings_of(found).worst(), severity::error);
}

TEST(a_peer, that_sends_back_something_else_is_found_out) {
  const auto found = probe_one_that([](weft::net::listener& listener) -> weft::task<> {
    auto peer = co_await meet_as_weft_info(listener);
    auto question = co_await peer.recv();
    question->payload.data()[10] ^= std::byte{1};
    co_await peer.send(std::move(question->payload));
    static_cast<void>(co_await peer.recv());
  });
  EXPECT_TRUE(fails_with(found.fabrics.at(0), "came back changed"));
}

TEST(a_peer, that_falls_silent_is_waited_for_only_so_long) {
  const auto silent = [](weft::net::listener& listener) -> weft::task<> {
    auto peer = co_await meet_as_weft_info(listener);
    co_await weft::sleep_for(1h);
  };
  const peer_report found = probe_one_that(silent, 3s);
  EXPECT_TRUE(found.fabrics.at(0).speaks);
  EXPECT_TRUE(fails_with(found.fabrics[0], "small messages"));
}

// Binds it to a free port of the loopback, and yields that address.
std::string bind_to_loopback(int socket) {
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof any;
  if (::bind(socket, reinterpret_cast<sockaddr*>(&any), bytes) != 0) throw weft::system_error(errno, "bind");
  EXPECT_EQ(::getsockname(socket, reinterpret_cast<sockaddr*>(&any), &bytes), 0);
  return "127.0.0.1:" + std::to_string(ntohs(any.sin_port));
}

// Plain TCP that answers each connection's first words with nonsense, and counts those that ended without any.
class stranger_of_tests : private weft::test::immovable {
 public:
  stranger_of_tests() {
    EXPECT_EQ(::listen(socket_, 8), 0);
    thread_ = std::thread([this] { run(); });
  }
  ~stranger_of_tests() { leave(); }

  [[nodiscard]] const std::string& address() const { return address_; }

  // Whoever has connected has been attended to: connections are taken in their order, and the last one is its own.
  void leave() {
    if (!thread_.joinable()) return;
    leaving_ = true;
    const int last = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in here{};
    socklen_t bytes = sizeof here;
    EXPECT_EQ(::getsockname(socket_, reinterpret_cast<sockaddr*>(&here), &bytes), 0);
    const bool connected = ::connect(last, reinterpret_cast<sockaddr*>(&here), bytes) == 0;
    EXPECT_TRUE(connected && ::send(last, "last", 4, MSG_NOSIGNAL) == 4) << std::strerror(errno);
    if (!connected) ::shutdown(socket_, SHUT_RDWR);  // nobody is accepted any more
    thread_.join();
    ::close(last);
    ::close(socket_);
  }

  int spoke = 0;         // after leave()
  int said_nothing = 0;  // after leave()

 private:
  void run() {
    for (;;) {
      const int one = ::accept(socket_, nullptr, nullptr);
      if (one < 0) return;
      std::array<char, 64> words{};
      const auto said = ::recv(one, words.data(), words.size(), 0);
      const bool last = leaving_ && said == 4 && std::string_view(words.data(), 4) == "last";
      if (said > 0 && !last) ++spoke;
      if (said <= 0) ++said_nothing;
      static_cast<void>(::send(one, words.data(), words.size(), MSG_NOSIGNAL));
      ::close(one);
      if (last) return;
    }
  }

  int socket_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  std::string address_ = bind_to_loopback(socket_);
  std::atomic<bool> leaving_ = false;
  std::thread thread_;
};

TEST(a_peer, that_answers_gets_no_connection_that_ends_before_it_has_said_a_word) {
  stranger_of_tests stranger;
  const peer_report found = probe(stranger.address());
  stranger.leave();
  EXPECT_EQ(found.fabrics.at(0).why, reach_failure::not_weft) << found.fabrics[0].failure;
  EXPECT_FALSE(found.takes_tcp);
  EXPECT_GE(stranger.spoke, 1);
  EXPECT_EQ(stranger.said_nothing, 0);
}

TEST(a_peer, that_takes_connections_and_says_nothing_is_told_from_one_that_is_not_there) {
  const int nobody_looks = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const std::string address = bind_to_loopback(nobody_looks);
  ASSERT_EQ(::listen(nobody_looks, 8), 0);
  const peer_report found = probe(address, 200ms);
  ::close(nobody_looks);
  EXPECT_EQ(found.fabrics.at(0).why, reach_failure::silent) << found.fabrics[0].failure;
  EXPECT_TRUE(found.takes_tcp);
}

TEST(a_peer, that_drops_large_messages_is_told_from_one_that_drops_all) {
  const auto black_hole = [](weft::net::listener& listener) -> weft::task<> {
    auto peer = co_await meet_as_weft_info(listener);
    while (auto question = co_await peer.recv()) {
      if (question->size() <= 1400) co_await peer.send(std::move(question->payload));
    }
  };
  const peer_report found = probe_one_that(black_hole, 3s);
  const reach& one = found.fabrics.at(0);
  EXPECT_EQ(one.largest_message, 1400U);
  EXPECT_EQ(one.lost_message, 2048U);
  const findings result = findings_of(found);
  ASSERT_EQ(result.worst(), severity::error);
  const auto says_so = [](const finding& each) {
    return each.text.find("drops large packets without a word") != std::string::npos;
  };
  EXPECT_TRUE(std::ranges::any_of(result.all(), says_so)) << to_text(result, false);
}

TEST(a_peer, that_is_another_weft_program_is_reached_and_left_in_peace) {
  const auto found = probe_one_that([](weft::net::listener& listener) -> weft::task<> {
    auto peer = co_await listener.accept();
    static_cast<void>(co_await peer->recv());
  });
  EXPECT_TRUE(found.fabrics.at(0).connected);
  EXPECT_FALSE(found.fabrics[0].stranger.empty());
  const findings result = findings_of(found);
  EXPECT_EQ(result.worst(), severity::hint) << to_text(result, false);
}

TEST(a_peer, that_turns_us_away_is_there_and_its_words_do_nothing_to_a_terminal) {
  const auto found = probe_one_that([](weft::net::listener& listener) -> weft::task<> {
    auto request = co_await listener.next();
    constexpr std::string_view words = "\x1b[2Jgo away";
    co_await request->reject(std::as_bytes(std::span(words)));
  });
  EXPECT_EQ(found.fabrics.at(0).why, reach_failure::rejected);
  EXPECT_EQ(to_text(found).find('\x1b'), std::string::npos);
  EXPECT_EQ(found.fabrics[0].failure.find('\x1b'), std::string::npos);
}

// A resolver that answers only when the test says so.
class slow_resolver final : public weft::system_calls {
 public:
  int getaddrinfo(const char*, const char*, const addrinfo* hints, addrinfo**) noexcept override {
    if ((hints->ai_flags & AI_NUMERICHOST) != 0) return EAI_NONAME;
    answer.wait(false);
    return failure;
  }
  void let_go() {
    answer = true;
    answer.notify_all();
  }
  std::atomic<bool> answer = false;
  int failure = EAI_NONAME;
};

class calls_with_slow_names final : public machine_calls {
 public:
  weft::system_calls& system() override { return resolver; }
  slow_resolver resolver;
};

inventory with_shm_and_iwarp() {
  inventory all;
  all.fabrics = {{.name = "shm"}, {.name = "iwarp"}};
  return all;
}

// Static, because the worker that has asked may end after the test.
calls_with_slow_names& names_that_nobody_answers() {
  static calls_with_slow_names calls;
  return calls;
}

TEST(a_name, that_nobody_answers_for_is_waited_for_once_and_only_so_long) {
  calls_with_slow_names& calls = names_that_nobody_answers();
  const probe_options options{.patience = 50ms};
  const machine here("/", calls);
  const peer_report found = probe_peer(here, with_shm_and_iwarp(), "storage-3:7470", options);
  EXPECT_TRUE(found.still_asks);
  ASSERT_EQ(found.fabrics.size(), 2U);
  for (const reach& each : found.fabrics) {
    EXPECT_EQ(each.why, reach_failure::no_answer_to_name);
    EXPECT_NE(each.failure.find("look up storage-3:7470: timed out"), std::string::npos) << each.failure;
  }
  const findings result = findings_of(found, with_shm_and_iwarp());
  EXPECT_EQ(result.worst(), severity::error);
  EXPECT_NE(to_text(result, false).find("getent hosts storage-3"), std::string::npos) << to_text(result, false);
  calls.resolver.let_go();
}

TEST(a_name, for_which_no_server_can_be_reached_is_told_from_one_that_is_not_known) {
  static calls_with_slow_names calls;
  calls.resolver.let_go();
  const machine here("/", calls);
  calls.resolver.failure = EAI_AGAIN;
  const peer_report found = probe_peer(here, with_shm_and_iwarp(), "storage-3:7470", {.patience = 20s});
  EXPECT_FALSE(found.still_asks);
  EXPECT_EQ(found.fabrics.at(1).why, reach_failure::no_answer_to_name) << found.fabrics[1].failure;
}

// Free a moment ago, and no port that others are given soon.
std::string free_udp_address() {
  const int fd = ::socket(AF_INET, SOCK_DGRAM, 0);
  const std::string address = bind_to_loopback(fd);
  ::close(fd);
  return address;
}

TEST(packets, are_answered_for_a_token_that_was_given_and_for_no_other) {
  const std::string address = free_udp_address();
  const weft::socket_address where = weft::executor().run(weft::resolve(address, false)).front();
  packet_mirror mirror(address);
  const auto probed_with = [&](std::uint64_t token) {
    path_mtu found{.interface_mtu = 1500};
    probe_mtu(where, token, found);
    return found.probed;
  };
  EXPECT_EQ(probed_with(6), 0U);
  mirror.admit(7);
  EXPECT_EQ(probed_with(7), 1500U);
  mirror.dismiss(7);
  EXPECT_EQ(probed_with(7), 0U);
}

// What a black hole for jumbo frames looks like over RoCE.
peer_report peer_behind_a_black_hole() {
  peer_report found{.address = "10.0.0.8:7470"};
  found.mtu = {.interface = "eth0", .interface_mtu = 9000, .kernel_mtu = 9000, .probed = 1500, .was_probed = true};
  reach one{.fabric = "verbs:mlx5_0"};
  one.connected = one.speaks = true;
  one.round_trips = 200;
  one.largest_message = 1400;
  one.lost_message = 2048;
  one.transfer_failure = "messages of growing size: timed out";
  one.rdma_mtu = 4096;
  found.fabrics.push_back(one);
  return found;
}

TEST(a_black_hole, is_named_with_both_mtus_and_what_to_do) {
  const inventory all;
  const findings result = findings_of(peer_behind_a_black_hole(), all);
  const std::string text = to_text(result, false);
  for (const char* words :
       {"messages of 1400 bytes pass, and one of 2048 bytes does not", "packets of up to 1500 bytes go there and back",
        "RDMA MTU of 4096", "ip link set dev eth0 mtu 1500", "ping -M do -s 8972 10.0.0.8"}) {
    EXPECT_NE(text.find(words), std::string::npos) << words << " is not in\n" << text;
  }
  const auto root = nlohmann::json::parse(to_json(all, result, nullptr));
  EXPECT_EQ(root["hindered"], true);
}

TEST(a_server, listens_at_the_own_addresses_of_each_rdma_device) {
  inventory all;
  rdma_device& device = all.rdma.emplace_back();
  device.name = "mlx5_0";
  device.kind = rdma_kind::roce;
  rdma_port& port = device.ports.emplace_back();
  for (const char* address : {"", "10.0.0.7", "10.0.0.7", "fd77::1"}) port.gids.emplace_back().address = address;
  using places = std::vector<std::string>;
  EXPECT_EQ(places_to_listen(all, "iwarp", "0.0.0.0:7470"), places{"0.0.0.0:7470"});
  EXPECT_EQ(places_to_listen(all, "verbs:mlx5_0", "0.0.0.0:7470"), places{"10.0.0.7:7470"});
  EXPECT_EQ(places_to_listen(all, "verbs:mlx5_0", ":7470"), (places{"10.0.0.7:7470", "[fd77::1]:7470"}));
  EXPECT_EQ(places_to_listen(all, "verbs:mlx5_0", "[fd77::1]:0"), places{"[fd77::1]:0"});
  EXPECT_EQ(places_to_listen(all, "verbs:mlx5_0", "10.0.0.8:7470"), places());
  EXPECT_EQ(places_to_listen(all, "verbs:mlx5_0", "storage-3:7470"), places{"storage-3:7470"});
}

finding finding_for(reach_failure why, bool takes_tcp, bool beside_one_that_reaches) {
  peer_report found{.address = "10.0.0.8:7470", .takes_tcp = takes_tcp};
  const reach one{.fabric = "verbs:mlx5_0", .why = why, .failure = "words"};
  found.fabrics.push_back(one);
  if (beside_one_that_reaches) {
    const reach other{.fabric = "iwarp", .connected = true};
    found.fabrics.push_back(other);
  }
  inventory all;
  all.rdma.emplace_back();
  return findings_of(found, all).all().front();
}

TEST(an_rdma_device, that_reaches_nobody_is_an_error_and_beside_one_that_does_a_warning) {
  EXPECT_EQ(finding_for(reach_failure::unreachable, false, false).level, severity::error);
  EXPECT_EQ(finding_for(reach_failure::unreachable, false, true).level, severity::warning);
}

TEST(each_way_to_fail, has_words_and_a_remedy_of_its_own) {
  std::vector<std::string> seen;
  for (const reach_failure why :
       {reach_failure::refused, reach_failure::silent, reach_failure::unreachable, reach_failure::wrong_device,
        reach_failure::not_weft, reach_failure::rejected, reach_failure::bad_address, reach_failure::no_answer_to_name,
        reach_failure::not_opened}) {
    const finding one = finding_for(why, false, false);
    EXPECT_FALSE(one.remedy.empty()) << one.text;
    EXPECT_EQ(std::ranges::count(seen, one.text), 0) << one.text;
    seen.push_back(one.text);
  }
}

}  // namespace
}  // namespace info
