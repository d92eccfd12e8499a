// SPDX-License-Identifier: Apache-2.0
// Words that a peer reads and writes while a thread of this end does: whole, where the link promises it.

#include "kit/disk_file.hpp"
#include "peers.hpp"

namespace weft::test {
namespace {

// The two halves of a word tell whether they belong together.
std::uint64_t word_of(std::uint64_t version) { return (version << 32) | (~version & 0xffffffff); }
bool is_whole(std::uint64_t word) { return word >> 32 == (~word & 0xffffffff); }

/// Of bytes that lie `offset` bytes behind an aligned place: whether all words that are in them are whole.
bool are_whole(std::span<const std::byte> bytes, std::size_t offset) {
  for (std::size_t at = (8 - offset % 8) % 8; at + 8 <= bytes.size(); at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, &bytes[at], sizeof word);
    if (!is_whole(word)) return false;
  }
  return true;
}

/// The bytes that words of this version have `offset` bytes behind an aligned place.
void fill_words(std::span<std::byte> bytes, std::size_t offset, std::uint64_t version) {
  const std::uint64_t word = word_of(version);
  std::array<std::byte, 8> pattern;
  std::memcpy(pattern.data(), &word, sizeof word);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = pattern[(offset + i) % 8];
}

/// A thread that does the same again and again for as long as this lives.
class busy_thread : private immovable {
 public:
  template <class Work>
  explicit busy_thread(Work work)
      : thread_([this, work] {
          for (std::uint64_t round = 1; !over_; ++round) work(round);
        }) {}
  ~busy_thread() {
    over_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> over_ = false;
  std::thread thread_;
};

class shared_words : public peers {
 protected:
  /// Runs `script(client, memory, remote)` with memory of the server's that the client may use. Skips where words are
  /// not promised to be whole.
  template <class Script>
  void with_memory(std::size_t bytes, Script script) {
    bool promised = false;
    between_peers([&](net::connection& client, net::connection& server) -> task<> {
      largest_ = server.capabilities().max_whole_write_bytes;
      promised = largest_ != 0;
      if (!promised) co_return;
      auto region = co_await device().domain().register_memory(std::vector<std::uint64_t>(bytes / 8, word_of(0)),
                                                               {.usage = open_wide});
      co_await script(client, region.bytes(), region.remote());
      co_await region.release();
    });
    if (!promised) GTEST_SKIP() << "this device promises nothing about words";
  }
  [[nodiscard]] std::size_t largest_write() const { return static_cast<std::size_t>(largest_); }

 private:
  std::uint64_t largest_ = 0;
};
WEFT_ON_EVERY_TRANSPORT(shared_words);

TEST_P(shared_words, that_a_thread_stores_are_whole_to_a_peer_that_reads_them) {
  constexpr std::size_t bytes = 200'000;
  with_memory(bytes, [&](net::connection& client, std::span<std::byte> memory, mr::remote_region remote) -> task<> {
    const busy_thread storing([&](std::uint64_t version) {
      std::array<std::byte, 4096> next;
      fill_words(next, 0, version);
      for (std::size_t at = 0; at < memory.size(); at += next.size()) {
        const auto part = std::span(next).first(std::min(next.size(), memory.size() - at));
        mr::store_shared(memory.subspan(at, part.size()), part);
      }
    });
    auto sink = co_await pool().allocate(bytes);
    for (const std::size_t size : {std::size_t{8}, std::size_t{64}, std::size_t{8000}, std::size_t{190'000}}) {
      for (std::size_t i = 0; i < 64; ++i) {
        const std::size_t offset = i % 9;
        auto into = sink.slice(0, size);
        co_await client.read(into, remote.slice(offset, size));
        EXPECT_TRUE(are_whole(into.bytes(), offset)) << size << " bytes at " << offset;
      }
    }
  });
}

TEST_P(shared_words, that_a_peer_writes_are_whole_to_a_thread_that_loads_them) {
  constexpr std::size_t most = 190'000;
  with_memory(most + 16, [&](net::connection& client, std::span<std::byte> memory, mr::remote_region remote) -> task<> {
    std::atomic<std::size_t> torn = 0;
    const std::size_t largest = std::min(most, largest_write());
    // One offset at a time: a word that two writes have in part is nobody's.
    for (const std::size_t offset : {0u, 1u, 4u, 6u}) {
      fill_words(memory, 0, 0);
      const busy_thread loading([&](std::uint64_t) {
        std::array<std::byte, 4096> copy;
        const std::size_t end = largest / 8 * 8;
        for (std::size_t at = 8; at < end; at += copy.size()) {
          const auto part = std::span(copy).first(std::min(copy.size(), end - at));
          mr::load_shared(memory.subspan(at, part.size()), part);
          if (!are_whole(part, 0)) ++torn;
        }
      });
      auto source = co_await pool().allocate(largest);
      for (std::uint64_t version = 1; version <= 100; ++version) {
        fill_words(source.bytes(), offset, version);
        co_await client.write(source, remote.slice(offset, largest));
        co_await client.flush(remote.slice(0, 1));
      }
    }
    EXPECT_EQ(torn, 0u);
  });
}

TEST_P(shared_words, of_a_later_write_are_not_seen_before_those_of_an_earlier_one) {
  constexpr std::uint64_t last = 500;
  constexpr std::size_t words = 65;  // and the last one tells the version
  with_memory(words * 8, [&](net::connection& client, std::span<std::byte> memory, mr::remote_region remote) -> task<> {
    std::atomic<std::size_t> early = 0;
    {
      const busy_thread loading([&](std::uint64_t) {
        std::array<std::uint64_t, words - 1> copy;
        const std::uint64_t seen = mr::load_shared(reinterpret_cast<const std::uint64_t*>(memory.data())[words - 1]);
        mr::load_shared(memory.first(sizeof copy), std::as_writable_bytes(std::span(copy)));
        if (std::ranges::any_of(copy, [&](std::uint64_t each) { return each >> 32 < seen >> 32; })) ++early;
      });
      auto source = co_await pool().allocate(words * 8);
      for (std::uint64_t version = 1; version <= last; ++version) {
        fill_words(source.bytes(), 0, version);
        std::array both{client.write(source.slice(0, words * 8 - 8), remote.slice(0, words * 8 - 8)),
                        client.write(source.slice(0, 8), remote.slice(words * 8 - 8, 8))};
        co_await client.batch(both);
        co_await client.flush(remote.slice(0, 1));
      }
    }
    EXPECT_EQ(early, 0u);
  });
}

TEST_P(shared_words, stored_before_one_that_a_peer_has_read_are_in_what_it_reads_next) {
  constexpr std::size_t words = 65;
  with_memory(words * 8, [&](net::connection& client, std::span<std::byte> memory, mr::remote_region remote) -> task<> {
    const busy_thread storing([&](std::uint64_t version) {
      std::array<std::byte, words * 8 - 8> next;
      fill_words(next, 0, version);
      mr::store_shared(memory.first(next.size()), next);
      mr::store_shared(reinterpret_cast<std::uint64_t*>(memory.data())[words - 1], word_of(version));
    });
    auto flag = co_await pool().allocate(8);
    auto data = co_await pool().allocate(words * 8 - 8);
    for (int i = 0; i < 500; ++i) {
      co_await client.read(flag, remote.slice(words * 8 - 8, 8));
      co_await client.read(data, remote.slice(0, words * 8 - 8));
      std::uint64_t seen = 0;
      std::array<std::uint64_t, words - 1> copy;
      std::memcpy(&seen, flag.bytes().data(), sizeof seen);
      std::memcpy(copy.data(), data.bytes().data(), sizeof copy);
      EXPECT_TRUE(std::ranges::all_of(copy, [&](std::uint64_t each) { return each >> 32 >= seen >> 32; }));
    }
  });
}

TEST_P(shared_words, of_a_file_that_is_open_to_atomics_are_whole_to_a_thread_that_loads_them) {
  with_memory(8, [&](net::connection& client, std::span<std::byte>, mr::remote_region) -> task<> {
    if (!client.capabilities().atomics) co_return;
    const disk_file file(4096);
    auto region =
        co_await device().domain().register_memory(file.mapped(4096), {.usage = open_wide | mr::usage::atomic_dst});
    auto& word = mr::shared_word(region.bytes(), 1);
    mr::store_shared(word, word_of(0));
    std::atomic<std::size_t> torn = 0;
    auto source = co_await pool().allocate(8);
    {
      const busy_thread loading([&](std::uint64_t) { torn += is_whole(mr::load_shared(word)) ? 0U : 1U; });
      for (std::uint64_t version = 1; version <= 200; ++version) {
        fill_words(source.bytes(), 0, version);
        co_await client.write(source, region.remote().slice(8, 8));
      }
      co_await client.flush(region.remote().slice(8, 8));
    }
    EXPECT_EQ(torn, 0u);
    EXPECT_EQ(mr::load_shared(word), word_of(200));
    co_await region.release();
  });
}

TEST_P(shared_words, are_promised_to_writes_of_any_size_unless_these_are_placed_before_they_are_whole) {
  bool promised = true;
  between_peers([&](net::connection& client, net::connection& server) -> task<> {
    for (const auto* end : {&client, &server}) {
      const net::capabilities& link = end->capabilities();
      promised = promised && link.max_whole_write_bytes != 0;
      if (!promised && !GetParam().over_tcp) co_return;
      const bool in_place = GetParam().iwarp.place_unchecked || !link.checksum || !GetParam().over_tcp;
      EXPECT_EQ(link.max_whole_write_bytes, in_place ? 8192u : link.max_message_bytes);
    }
    co_return;
  });
  if (!promised) GTEST_SKIP() << "this device promises nothing about words";
}

}  // namespace
}  // namespace weft::test
