// SPDX-License-Identifier: Apache-2.0
// Whatever the clients of a cache say, however the network cuts it: the answers are the same, what is kept of the words
// is bounded, and what the server has is what those find who read its table by themselves. The first byte says in which
// pieces the words come, and the second one whether they are RESP or memcached's text.
#include <weft/runtime/error.hpp>

#include "../examples/kv_reader.hpp"
#include "input.hpp"
#include <kv/protocol.hpp>
#include <kv/resp.hpp>

namespace {

using namespace kv;
using weft::fuzz::require;

moment noon() noexcept { return 1'800'000'000'000; }

constexpr std::uint64_t buckets = 2;

/// A server, and what one client hears of it.
class server {
 public:
  table& data() noexcept { return data_; }
  [[nodiscard]] std::span<const std::byte> memory() const noexcept { return std::as_bytes(std::span(words_)); }
  std::string answers;
  bool ended = false;

  void hear_resp(std::string_view said, std::size_t piece) {
    resp_service service(data_, noon);
    resp_session session(service, "somewhere");
    const auto take = [&](std::string& input) {
      for (std::size_t taken = 1; !ended && (taken != 0 || session.wants_turn());) {
        const auto count = session.execute(input, answers);
        ended = !count;
        taken = count.value_or(0);
        input.erase(0, taken);
      }
      require(input.size() <= resp_session::longest_command, "a command is not kept without end");
    };
    hear(said, piece, take);
  }
  void hear_text(std::string_view said, std::size_t piece) {
    text_session session(data_, noon);
    const auto take = [&](std::string& input) {
      const auto count = session.execute(input, answers);
      ended = !count;
      input.erase(0, count.value_or(0));
      require(ended || input.size() <= text_session::longest_command + data_.longest_value() + 2,
              "a command is not kept without end");
    };
    hear(said, piece, take);
  }

 private:
  template <class Take>
  void hear(std::string_view said, std::size_t piece, const Take& take) {
    std::string input;
    while (!said.empty() && !ended) {
      const std::size_t now = std::min(said.size(), piece);
      input.append(said.substr(0, now));
      said.remove_prefix(now);
      take(input);
    }
  }

  std::vector<std::uint64_t> words_ =
      std::vector<std::uint64_t>((buckets * bucket_bytes + least_record_memory) / sizeof(std::uint64_t));
  table data_{std::as_writable_bytes(std::span(words_)), buckets};
};

// What is in the table is whole, and found by those who read it by themselves as by the server.
void compare_readers(server& at) {
  for (std::uint64_t number = 0; number < buckets; ++number) {
    value none;
    require(looking::look_in(at.memory(), number, std::string(longest_key, '\1'), none, noon()) != outcome::torn,
            "nothing is torn that nobody writes");
  }
  for (const std::string_view key : {"a", "b", "key"}) {
    value here;
    value there;
    const bool found = looking::get(at.data(), key, here, noon());
    const bool seen = looking::look(at.memory(), buckets, key, there, noon()) == outcome::found;
    require(found == seen && here.view() == there.view() && here.flags() == there.flags(), "all readers find the same");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  weft::fuzz::input from(data, size);
  const std::size_t piece = 1 + from.byte() % 64U;
  const bool is_resp = from.byte() % 2 == 0;
  const auto bytes = from.run(from.size());
  const std::string_view said(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  server whole;
  server cut;
  if (is_resp) {
    whole.hear_resp(said, said.size());
    cut.hear_resp(said, piece);
  } else {
    whole.hear_text(said, said.size());
    cut.hear_text(said, piece);
  }
  require(whole.ended == cut.ended && whole.answers == cut.answers, "the pieces make no difference");
  require(whole.data().size() == cut.data().size(), "the pieces make no difference to what is kept");
  compare_readers(cut);
  return 0;
}
