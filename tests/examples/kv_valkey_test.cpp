// SPDX-License-Identifier: Apache-2.0
// What kv is as a server and a client of Valkey over RDMA, to a strict peer that was written from the protocol's
// description: it makes its messages byte by byte, and looks at each that it gets. Over a simulated RDMA device, where
// the two know nothing of each other, and over iWARP.
#include <weft/net/verbs/transport.hpp>
#include <weft/weft.hpp>

#include <random>

#include "kit/test.hpp"
#include "kv_reader.hpp"
#include "rdma.hpp"
#include <kv/resp_client.hpp>
#include <kv/resp_server.hpp>
#include <kv/valkey.hpp>

namespace kv {
namespace {

using namespace weft;

enum class carrier : std::uint8_t { simulated_device, iwarp };

using raw = std::vector<std::uint8_t>;

/// A control message: its opcode, and what else is not zero.
raw message_of(std::uint8_t opcode, std::initializer_list<std::pair<std::size_t, std::uint64_t>> fields = {}) {
  raw made(32);
  made[1] = opcode;
  for (const auto& [end, number] : fields) {  // big-endian, before `end`
    std::uint64_t rest = number;
    for (std::size_t i = end; rest != 0; rest >>= 8) made[--i] = static_cast<std::uint8_t>(rest & 0xff);
  }
  return made;
}
raw announcement(std::uint64_t address, std::uint32_t length, std::uint32_t key) {
  return message_of(3, {{24, address}, {28, length}, {32, key}});
}

std::uint64_t number_in(const raw& from, std::size_t begin, std::size_t end) {
  std::uint64_t number = 0;
  for (std::size_t i = begin; i < end; ++i) number = number << 8 | from[i];
  return number;
}

/// The other end: nothing of kv's.
class strict_peer {
 public:
  strict_peer(net::device& device, net::connection link) : device_(device), link_(std::move(link)) {}

  task<> open(std::uint32_t size) {
    auto memory = co_await device_.allocate(size);
    memory.resize(size);
    room_ = co_await link_.expose(std::move(memory), mr::usage::write_dst);
    size_ = size;
    co_await announce();
  }
  task<> announce() {
    come_ = 0;
    raw said = announcement(room_.remote().address(), size_, static_cast<std::uint32_t>(room_.remote().key()));
    co_await send(std::move(said));
  }
  task<> send(raw bytes) { co_await link_.send_bytes(std::as_bytes(std::span(bytes))); }
  /// The next message, which may be a number of bytes that have been written.
  task<> take() {
    const auto got = co_await link_.recv_or_throw();
    if (got.immediate) {
      EXPECT_EQ(got.size(), 0u);
      EXPECT_GT(*got.immediate, 0u);
      if (*got.immediate > size_ - come_) throw error(errc::malformed, "it has written more than there is room for");
      const auto bytes = room_.memory().bytes().subspan(come_, *got.immediate);
      text_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      come_ += *got.immediate;
      if (come_ == size_ && !keeps_full_) co_await announce();
      co_return;
    }
    EXPECT_EQ(got.size(), 32u);
    raw said;
    for (const std::byte each : got.bytes()) said.push_back(static_cast<std::uint8_t>(each));
    if (said.at(1) == 3) {
      EXPECT_EQ(used_, target_ ? target_->size() : 0) << "it announces a buffer that is not full";
      const auto address = number_in(said, 16, 24);
      const auto length = number_in(said, 24, 28);
      const auto key = number_in(said, 28, 32);
      EXPECT_EQ(said, announcement(address, static_cast<std::uint32_t>(length), static_cast<std::uint32_t>(key)));
      target_.emplace(key, address, length, mr::usage::write_dst);
      used_ = 0;
    } else {
      others_.push_back(std::move(said));
    }
  }
  /// Writes in pieces, of which the last says how many bytes there are, or each if `tells_each`.
  task<> write(std::string text, std::size_t piece, bool tells_each) {
    std::size_t untold = 0;
    while (!text.empty()) {
      while (!target_ || used_ == target_->size()) co_await take();
      const std::size_t count = std::min({text.size(), piece, static_cast<std::size_t>(target_->size() - used_)});
      untold += count;
      const bool tells = tells_each || count == text.size() || used_ + count == target_->size();
      net::write_options how;
      if (tells) how.immediate = static_cast<std::uint32_t>(std::exchange(untold, 0));
      co_await put(text.substr(0, count), how);
      text.erase(0, count);
    }
  }
  task<> put(std::string text, net::write_options how) {
    auto sent = co_await device_.allocate(text.size());
    std::ranges::copy(std::as_bytes(std::span(text)), sent.data());
    const auto place = target_->slice(used_, text.size());
    used_ += text.size();
    co_await link_.write(std::move(sent), place, how);
  }
  /// The next bytes that have been written to it.
  task<std::string> read(std::size_t count) {
    while (text_.size() < count) co_await take();
    std::string found = text_.substr(0, count);
    text_.erase(0, count);
    co_return found;
  }
  /// Whether it leaves its buffer as it is once that is full.
  void keep_full(bool keeps) noexcept { keeps_full_ = keeps; }
  [[nodiscard]] bool is_full() const noexcept { return come_ == size_; }
  [[nodiscard]] net::connection& link() noexcept { return link_; }
  [[nodiscard]] std::vector<raw>& others() noexcept { return others_; }
  [[nodiscard]] bool has_target() const noexcept { return target_.has_value(); }
  [[nodiscard]] std::uint64_t left() const { return target_->size() - used_; }

 private:
  net::device& device_;
  net::connection link_;
  net::exposure room_;
  std::uint32_t size_ = 0;
  std::uint32_t come_ = 0;
  bool keeps_full_ = false;
  std::string text_;
  std::optional<mr::remote_slice> target_;
  std::uint64_t used_ = 0;
  std::vector<raw> others_;
};

class kv_valkey : public testing::TestWithParam<carrier> {
 protected:
  void SetUp() override {
    if (GetParam() == carrier::iwarp) {
      device_.emplace(net::device::open("iwarp"));
      return;
    }
    below_.emplace(place_, sim::rdma_traits{});
    const net::device_options options{.pool = {.huge_pages = false, .system_calls = &place_}};
    device_.emplace(net::device::open(net::verbs::open_transport(sim::rdma::device_name, *below_, {}), options));
  }
  void TearDown() override {
    device_.reset();
    if (!below_) return;
    EXPECT_EQ(below_->leaks(), "");
  }

  [[nodiscard]] static net::connection_options of_peer() {
    net::connection_options how{.receive_size = 32,
                                .receive_depth = 64,
                                .profile = GetParam() == carrier::iwarp ? net::profile::native : net::profile::interop};
    return how;
  }

  template <class Body>
  void run(Body body) {
    executor ex(GetParam() == carrier::iwarp ? executor_options{} : place_.options(false));
    const auto all = [&]() -> task<> {
      auto listener = co_await device_->listen(GetParam() == carrier::iwarp ? "127.0.0.1:0" : "127.0.0.1:7471");
      co_await body(listener);
    };
    ex.run(all());
  }

  /// kv as the server, and a peer that is its client.
  template <class Server, class Client>
  void serve(Server ours, Client theirs, valkey_options options = {}) {
    run([&](net::listener& listener) -> task<> {
      const auto serving = [&]() -> task<> {
        auto request = co_await listener.next();
        auto stream = co_await valkey_stream::accept(*device_, std::move(*request), options);
        co_await ours(stream);
      };
      const auto asking = [&]() -> task<> {
        auto link = co_await device_->connect(std::string(listener.address()), of_peer());
        strict_peer peer(*device_, std::move(link));
        co_await theirs(peer);
      };
      co_await when_all(serving(), asking());
    });
  }

  /// What the server says to a peer that does this. Whether it is told at all is for the peer to find out.
  template <class Client>
  std::string complaint(Client theirs, valkey_options options = {}) {
    std::string why = "nothing";
    const auto ours = [&](valkey_stream& stream) -> task<> {
      std::array<std::byte, 100> room;
      for (result<std::size_t> got(1); got && *got != 0;) {
        got = co_await as_result(stream.read_some(room));
        if (got) continue;
        why = got.error().what();
        EXPECT_EQ(got.error().code(), errc::protocol_error);
      }
    };
    const auto until_the_end = [&](strict_peer& peer) -> task<> {
      auto done = co_await as_result(theirs(peer));
      while (done) done = co_await as_result(peer.take());  // until the server has broken it off, or closed
    };
    serve(ours, until_the_end, options);
    return why;
  }

  /// kv as the client, and a peer that is its server.
  template <class Server, class Client>
  void ask(Server theirs, Client ours) {
    run([&](net::listener& listener) -> task<> {
      const auto serving = [&]() -> task<> {
        auto request = co_await listener.next();
        auto link = co_await request->accept(of_peer());
        strict_peer peer(*device_, std::move(link));
        while (!peer.has_target()) co_await peer.take();
        co_await theirs(peer);
      };
      const auto asking = [&]() -> task<> {
        auto stream = co_await valkey_stream::connect(*device_, std::string(listener.address()), {.buffer_bytes = 8});
        co_await ours(stream);
      };
      co_await when_all(serving(), asking());
    });
  }

  static task<> echo(valkey_stream& stream) {
    std::array<std::byte, 50> room;
    while (const std::size_t count = co_await stream.read_some(room)) {
      co_await stream.write(std::span(room).first(count));
    }
    co_await stream.close();
  }

  sim::world place_{1, {}};
  std::optional<sim::rdma> below_;
  std::optional<net::device> device_;
};

TEST_P(kv_valkey, a_server_says_first_where_its_buffer_is_and_offers_no_features) {
  serve(echo, [](strict_peer& peer) -> task<> {
    co_await peer.take();
    EXPECT_TRUE(peer.has_target());
    EXPECT_EQ(peer.left(), 65536u);
    raw question = message_of(0, {{4, 0x0105}});
    const raw answer = question;
    co_await peer.send(std::move(question));
    while (peer.others().empty()) co_await peer.take();
    EXPECT_EQ(peer.others().front(), answer);
    co_await peer.send(message_of(1));
    co_await peer.send(message_of(2));
    co_await peer.open(64);
    co_await peer.write("hello", 5, true);
    EXPECT_EQ(co_await peer.read(5), "hello");
    co_await peer.link().close();
  });
}

// Buffers of either end are used to their last byte, and not beyond; the peer looks at each announcement.
TEST_P(kv_valkey, bytes_come_whole_through_buffers_of_any_size_in_pieces_of_any_size) {
  for (const std::uint32_t ours : {1u, 7u, 64u, 1000u}) {
    const auto ask = [&](strict_peer& peer) -> task<> {
      std::mt19937 random(ours);
      co_await peer.open(static_cast<std::uint32_t>(1 + random() % 90));
      for (int round = 0; round < 60; ++round) {
        std::string text(1 + random() % 40, ' ');
        for (char& each : text) each = static_cast<char>(random());
        const std::size_t piece = 1 + random() % 20;
        const bool tells_each = random() % 2 == 0;
        co_await peer.write(text, piece, tells_each);
        EXPECT_EQ(co_await peer.read(text.size()), text);
      }
      co_await peer.link().close();
    };
    serve(echo, ask, {.buffer_bytes = ours, .receive_depth = 64});
  }
}

TEST_P(kv_valkey, messages_that_mean_nothing_end_the_connection_with_words) {
  const std::pair<raw, std::string> wrong[] = {
      {raw(31), "a message of 31 bytes instead of 32"},
      {raw(1), "a message of 1 bytes instead of 32"},
      {raw(), "a message of 0 bytes instead of 32"},
      {message_of(4), "a message of the unknown kind 4"},
      {message_of(0, {{2, 0x0300}}), "a message of the unknown kind 768"},
      {message_of(0, {{2, 0xffff}}), "a message of the unknown kind 65535"},
      {message_of(1, {{32, 1}}), "it chooses the features 0x1, which were not offered"},
      {message_of(1, {{32, 0x8000000000000000}}), "it chooses the features 0x8000000000000000, which were not offered"},
      {announcement(4096, 0, 1), "it announces a buffer of no bytes"},
      {announcement(UINT64_MAX - 10, 11, 1), "it announces a buffer beyond the end of all addresses"},
  };
  for (const auto& [bytes, why] : wrong) {
    const auto say = [&](strict_peer& peer) -> task<> {
      raw said = bytes;
      co_await peer.send(std::move(said));
    };
    const std::string heard = complaint(say);
    EXPECT_NE(heard.find("breaks Valkey's protocol over RDMA: " + why), std::string::npos)
        << heard << "; wanted: " << why;
  }
}

TEST_P(kv_valkey, what_is_reserved_may_be_anything) {
  serve(echo, [](strict_peer& peer) -> task<> {
    raw alive(32, 0xff);
    alive[0] = 0;
    alive[1] = 2;
    co_await peer.send(std::move(alive));
    co_await peer.open(64);
    co_await peer.write("x", 1, true);
    EXPECT_EQ(co_await peer.read(1), "x");
    co_await peer.link().close();
  });
}

// Else it would be answered with what others have left in that memory.
TEST_P(kv_valkey, a_peer_that_says_it_has_written_what_it_has_not_finds_zeroes_there) {
  const auto fill = [](strict_peer& peer) -> task<> {
    co_await peer.open(200);
    co_await peer.write(std::string(100, 'z'), 100, true);
    static_cast<void>(co_await peer.read(100));
    co_await peer.link().close();
  };
  const auto lie = [](strict_peer& peer) -> task<> {
    co_await peer.open(200);
    while (!peer.has_target()) co_await peer.take();
    co_await peer.put("x", {.immediate = 50});
    const std::string back = co_await peer.read(50);
    const std::string expected = "x" + std::string(49, '\0');
    EXPECT_EQ(back, expected);
    co_await peer.link().close();
  };
  serve(echo, fill, {.buffer_bytes = 100, .receive_depth = 64});
  serve(echo, lie, {.buffer_bytes = 100, .receive_depth = 64});
}

TEST_P(kv_valkey, a_number_beyond_what_is_left_ends_the_connection) {
  for (const std::uint32_t number : {91u, 101u, UINT32_MAX}) {
    const auto say = [&](strict_peer& peer) -> task<> {
      co_await peer.take();
      co_await peer.put(std::string(10, 'x'), {.immediate = 10});
      co_await peer.put("x", {.immediate = number});
    };
    const std::string heard = complaint(say, {.buffer_bytes = 100, .receive_depth = 64});
    EXPECT_NE(heard.find("bytes where 90 were left"), std::string::npos) << heard;
  }
}

TEST_P(kv_valkey, a_buffer_that_is_announced_twice_ends_the_connection) {
  const auto say = [](strict_peer& peer) -> task<> {
    co_await peer.open(64);
    co_await peer.announce();
  };
  const std::string heard = complaint(say);
  EXPECT_NE(heard.find("it announces a buffer when 64 bytes of the last one are left"), std::string::npos) << heard;
}

TEST_P(kv_valkey, a_peer_that_sends_more_than_there_are_receives_waits_and_loses_nothing) {
  constexpr std::size_t bytes = 100;
  std::string heard;
  event told;
  const auto ours = [&](valkey_stream& stream) -> task<> {
    co_await told.wait();  // the peer has begun, and nobody receives
    std::array<std::byte, 10> room;
    while (const std::size_t count = co_await stream.read_some(room)) {
      heard.append(reinterpret_cast<const char*>(room.data()), count);
    }
  };
  const auto ask = [&](strict_peer& peer) -> task<> {
    co_await peer.take();
    told.set();
    for (std::size_t i = 0; i < bytes; ++i) {
      co_await peer.write(std::string(1, static_cast<char>('a' + i % 26)), 1, true);
      co_await peer.send(message_of(2));
    }
    co_await peer.link().close();
  };
  serve(ours, ask, {.buffer_bytes = 1000, .receive_depth = 4});
  ASSERT_EQ(heard.size(), bytes);
  for (std::size_t i = 0; i < bytes; ++i) EXPECT_EQ(heard[i], static_cast<char>('a' + i % 26));
}

// As Valkey's own server has it. Both ends would wait for each other otherwise.
TEST_P(kv_valkey, a_client_may_ask_much_before_it_takes_the_first_answer) {
  if (GetParam() == carrier::iwarp) GTEST_SKIP() << "the simulated device is the one whose ports are nobody else's";
  constexpr std::size_t questions = 5000;
  constexpr std::string_view question = "*2\r\n$3\r\nGET\r\n$1\r\na\r\n";
  constexpr std::string_view answer = "$-1\r\n";
  std::string asked;
  std::string expected;
  for (std::size_t i = 0; i < questions; ++i) asked += question, expected += answer;
  auto memory = looking::words_for(1);
  table data(std::as_writable_bytes(std::span(memory)), 1);
  std::string heard;
  const auto both = [&](scope& tasks) -> task<> {
    tasks.spawn(serve_resp(*device_, data, {.valkey_address = "127.0.0.1:7471", .max_connections = 1}));
    co_await yield();
    auto link = co_await device_->connect("127.0.0.1:7471", of_peer());
    strict_peer peer(*device_, std::move(link));
    co_await peer.open(1000);
    peer.keep_full(true);
    co_await peer.write(asked, 4096, true);
    peer.keep_full(false);
    while (!peer.is_full()) co_await peer.take();
    co_await peer.announce();
    heard = co_await peer.read(expected.size());
    co_await peer.link().close();
    tasks.request_stop();
  };
  executor ex(place_.options(false));
  ex.run(with_timeout(std::chrono::seconds(60), with_scope(on_failure::stop_siblings, both)));
  EXPECT_EQ(heard, expected);
}

// Others would wait for what silent clients hold of the pool.
TEST_P(kv_valkey, a_client_that_is_silent_holds_nothing_of_the_pool_for_what_is_sent) {
  event looked;
  const auto ours = [&](valkey_stream& stream) -> task<> {
    co_await looked.wait();
    std::array<std::byte, 10> room;
    co_await stream.read_some(room);
  };
  serve(ours, [&](strict_peer& peer) -> task<> {
    co_await peer.take();
    while (device_->pool().statistics().send.in_use_bytes != 0) co_await yield();
    looked.set();
    co_await peer.link().close();
  });
}

TEST_P(kv_valkey, a_client_for_whose_buffer_there_is_no_memory_is_turned_away_in_words) {
  if (GetParam() == carrier::iwarp) GTEST_SKIP() << "the simulated device is the one that fails when told to";
  std::string why = "nothing";
  std::string heard = "nothing";
  run([&](net::listener& listener) -> task<> {
    const auto serving = [&]() -> task<> {
      auto request = co_await listener.next();
      place_.fail_call(place_.calls() + 1);
      const auto accepted = co_await as_result(valkey_stream::accept(*device_, std::move(*request)));
      if (!accepted) why = accepted.error().what();
    };
    const auto asking = [&]() -> task<> {
      const auto connected = co_await as_result(device_->connect(std::string(listener.address()), of_peer()));
      if (!connected) heard = connected.error().what();
    };
    co_await when_all(serving(), asking());
  });
  EXPECT_NE(why.find("away (register 65536 bytes"), std::string::npos) << why;
  EXPECT_NE(heard.find("no memory for a buffer"), std::string::npos) << heard;
}

TEST_P(kv_valkey, a_peer_that_goes_is_the_end_of_the_stream) {
  bool ended = false;
  const auto ours = [&](valkey_stream& stream) -> task<> {
    std::array<std::byte, 10> room;
    EXPECT_EQ(co_await stream.read_some(room), 0u);
    ended = true;
  };
  serve(ours, [](strict_peer& peer) -> task<> {
    co_await peer.take();
    co_await peer.link().close();
  });
  EXPECT_TRUE(ended);
}

TEST_P(kv_valkey, a_client_says_what_the_protocol_has_it_say_and_takes_answers_as_they_come) {
  std::optional<std::string> found;
  const auto theirs = [](strict_peer& peer) -> task<> {
    const std::vector<raw> first{message_of(0), message_of(1)};
    EXPECT_EQ(peer.others(), first);
    raw features = message_of(0, {{32, 7}});  // what it does not know it does not choose
    co_await peer.send(std::move(features));
    co_await peer.open(20);
    const std::string setting = "*3\r\n$3\r\nSET\r\n$6\r\ncolour\r\n$4\r\nblue\r\n";
    EXPECT_EQ(co_await peer.read(setting.size()), setting);
    co_await peer.send(message_of(2));
    co_await peer.write("+OK\r\n", 2, false);
    const std::string getting = "*2\r\n$3\r\nGET\r\n$6\r\ncolour\r\n";
    EXPECT_EQ(co_await peer.read(getting.size()), getting);
    // The client may have gone before it has acknowledged the last byte.
    static_cast<void>(co_await as_result(peer.write("$4\r\nblue\r\n", 3, true)));
    EXPECT_FALSE(co_await as_result(peer.take()));
    EXPECT_EQ(peer.others(), first);
  };
  const auto ours = [&](valkey_stream& stream) -> task<> {
    resp_client<valkey_stream> client(std::move(stream));
    co_await client.set("colour", "blue");
    found = co_await client.get("colour");
    co_await client.close();
  };
  ask(theirs, ours);
  EXPECT_EQ(found, "blue");
}

TEST_P(kv_valkey, a_server_that_chooses_features_or_writes_too_much_is_left) {
  for (const bool chooses : {true, false}) {
    std::string why = "nothing";
    const auto theirs = [&](strict_peer& peer) -> task<> {
      const net::write_options wrong{.immediate = 9};
      auto lie = chooses ? peer.send(message_of(1)) : peer.put("x", wrong);
      auto told = co_await as_result(std::move(lie));
      while (told) told = co_await as_result(peer.take());  // until the client has left
    };
    const auto ours = [&](valkey_stream& stream) -> task<> {
      std::array<std::byte, 10> room;
      const auto result = co_await as_result(stream.read_some(room));
      if (!result) why = result.error().what();
    };
    ask(theirs, ours);
    const std::string wanted = chooses ? "chooses its client's features" : "9 bytes where 8 were left";
    EXPECT_NE(why.find(wanted), std::string::npos) << why;
  }
}

INSTANTIATE_TEST_SUITE_P(over, kv_valkey, testing::Values(carrier::simulated_device, carrier::iwarp),
                         [](const auto& which) {
                           return which.param == carrier::iwarp ? "iwarp" : "a_simulated_device";
                         });

}  // namespace
}  // namespace kv
