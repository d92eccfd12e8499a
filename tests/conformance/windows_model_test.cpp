// SPDX-License-Identifier: Apache-2.0
// Random programs against the simplest model of windows: a list of what is open, and a copy of the memory behind it.
// What a window allows takes effect and nothing else; what it does not allow changes no byte and ends the connection;
// and a region goes exactly when no window of it is open: the peer, and the end of the connection, close them too.
#include <list>
#include <random>

#include "failing_calls.hpp"
#include "peers.hpp"

namespace weft::test {
namespace {

constexpr std::size_t region_bytes = 64;

/// A region and what must be in it.
struct memory {
  mr::region region;
  std::vector<std::byte> expected = std::vector<std::byte>(region_bytes);
  std::size_t windows = 0;  // that are open
};

/// What is known of a window.
struct opening {
  net::exposure window;
  std::size_t region;
  std::size_t from;
  std::size_t length;
  mr::usage uses;
  bool invalidated = false;
  bool retired = false;

  [[nodiscard]] bool allows(mr::usage wanted, std::size_t at, std::size_t bytes) const {
    return !invalidated && mr::includes(uses, wanted) && at + bytes <= length;
  }
};

class windows_model : public peers {
 protected:
  class program;
  void play(unsigned programs, bool with_faults);
};
WEFT_ON_EVERY_TRANSPORT(windows_model);

class windows_model::program {
 public:
  program(unsigned seed, windows_model& around, connected& ends, bool with_faults)
      : random_(seed),
        around_(around),
        client_(ends.client),
        server_(ends.server),
        with_faults_(with_faults),
        may_violate_(seed % 8 == 0) {}

  /// Whether it has done what ends the connection.
  [[nodiscard]] bool ended() const noexcept { return ended_; }

  task<> run() {
    for (std::size_t i = 0; i < regions_.size(); ++i) co_await make_region(i);
    for (int step = 0; step < 12 && !ended_ && !HasFailure(); ++step) {
      switch (draw(0, 8)) {
        case 0:
          co_await unbind();
          break;
        case 1:
          co_await invalidate();
          break;
        case 2:
          co_await release();
          break;
        case 3:
        case 4:
          co_await use();
          break;
        case 5:
          retire();
          break;
        default:
          co_await bind();
      }
      check();
    }
    co_await end();
  }

 private:
  task<> make_region(std::size_t index) {
    const mr::registration_options purpose{.usage = mr::usage::bind_window};
    std::vector<std::byte> bytes(region_bytes);
    memory& made = regions_[index];
    made.region = co_await around_.device().domain().register_memory(std::move(bytes), purpose);
    std::ranges::fill(made.expected, std::byte{0});
    made.windows = 0;
  }

  // With faults, each call that can fail does in its turn, until there is a window: none of the others leaves anything.
  task<> bind() {
    const std::size_t region = draw(0, regions_.size() - 1);
    const std::size_t from = draw(0, region_bytes - 1);
    const std::size_t length = draw(1, region_bytes - from);
    static constexpr std::array uses{mr::usage::write_dst, mr::usage::read_src,
                                     mr::usage::write_dst | mr::usage::read_src};
    const mr::usage wanted = uses[draw(0, uses.size() - 1)];
    const mr::slice range = regions_[region].region.slice(from, length);
    net::exposure made;
    for (std::int64_t failing = with_faults_ ? 1 : 0;; ++failing) {
      bool open = true;
      try {
        fail_call(failing);
        made = co_await server_.expose(range, wanted);
      } catch (const std::exception&) {
        open = false;
      }
      fail_call(0);
      if (open) break;
      EXPECT_TRUE(with_faults_);
    }
    EXPECT_EQ(made.remote().size(), length);
    ++regions_[region].windows;
    opening* const other = !open_.empty() && draw(0, 3) == 0 ? &pick() : nullptr;
    if (other != nullptr && !other->retired) {
      opening& replaced = *other;
      forget(replaced);
      replaced.window = std::move(made);
      replaced = {std::move(replaced.window), region, from, length, wanted};
    } else {
      open_.push_back({std::move(made), region, from, length, wanted});
    }
  }

  task<> unbind() {
    if (open_.empty()) co_return;
    opening& picked = pick();
    if (picked.retired) co_return confirm(picked);
    forget(picked);
    if (with_faults_) fail_call(static_cast<std::int64_t>(draw(1, 3)));
    const bool by_name = draw(0, 1) == 0;
    try {
      if (by_name) co_await picked.window.revoke();
    } catch (const std::bad_alloc&) {  // for its coroutine
      EXPECT_TRUE(with_faults_);
    }
    picked.window = net::exposure();
    fail_call(0);
    open_.remove_if([&](const opening& item) { return &item == &picked; });
  }

  task<> invalidate() {
    if (open_.empty() || !client_.capabilities().invalidate) co_return;
    opening& picked = pick();
    if (picked.invalidated) co_return;  // twice is a violation
    auto note = co_await zeroed(around_.pool(), 1);
    co_await client_.send(note, {.invalidate = picked.window.remote().key()});
    EXPECT_EQ((co_await server_.recv_or_throw()).invalidated_key, picked.window.remote().key());
    --regions_[picked.region].windows;
    picked.invalidated = true;
    stale_ = picked.window.remote();
    if (picked.retired) remove(picked);
  }

  // The connection keeps the window until the peer is done with it.
  void retire() {
    if (open_.empty()) return;
    opening& picked = pick();
    if (picked.retired) return confirm(picked);
    if (with_faults_) fail_call(1);
    picked.window.retire();
    fail_call(0);
    picked.retired = true;
    if (picked.invalidated) remove(picked);
  }

  void confirm(opening& item) {
    server_.confirm_retired(item.window.remote().key());
    remove(item);
  }

  void remove(opening& item) {
    forget(item);
    open_.remove_if([&](const opening& each) { return &each == &item; });
  }

  task<> release() {
    const std::size_t index = draw(0, regions_.size() - 1);
    memory& of = regions_[index];
    const auto code = co_await code_of(of.region.release());
    EXPECT_EQ(code, of.windows == 0 ? std::error_code() : make_error_code(errc::busy));
    if (!code) co_await make_region(index);
  }

  // What the using side would refuse by itself is to be refused by the other side, too.
  static mr::remote_region forged(const mr::remote_region& there, std::size_t at, std::size_t bytes) {
    return {there.key(), there.address() + at, bytes, mr::usage::write_dst | mr::usage::read_src};
  }

  task<> use() {
    if (may_violate_ && stale_ && draw(0, 9) == 0) {
      const mr::remote_region gone = forged(*stale_, 0, static_cast<std::size_t>(stale_->size()));
      co_return co_await violate(gone, draw(0, 1) == 0);
    }
    if (open_.empty()) co_return;
    opening& picked = pick();
    const bool writes = draw(0, 1) == 0;
    const std::size_t at = draw(0, picked.length - 1);
    const std::size_t bytes = draw(1, draw(0, 7) == 0 ? region_bytes : picked.length - at);
    const mr::remote_region there = forged(picked.window.remote(), at, bytes);
    if (!picked.allows(writes ? mr::usage::write_dst : mr::usage::read_src, at, bytes)) {
      if (may_violate_) co_await violate(there, writes);
      co_return;
    }
    memory& of = regions_[picked.region];
    auto mine = co_await zeroed(around_.pool(), bytes);
    if (!writes) {
      co_await client_.read(mine, there);
      EXPECT_TRUE(std::ranges::equal(mine.bytes(), std::span(of.expected).subspan(picked.from + at, bytes)));
      co_return;
    }
    for (std::byte& each : mine.bytes()) each = static_cast<std::byte>(draw(0, 255));
    co_await client_.write(mine, there);
    std::ranges::copy(mine.bytes(), of.expected.begin() + static_cast<std::ptrdiff_t>(picked.from + at));
    auto note = co_await zeroed(around_.pool(), 1);  // behind it, everything is in its place
    co_await client_.send(note);
    static_cast<void>(co_await server_.recv_or_throw());
  }

  task<> violate(const mr::remote_region& there, bool writes) {
    auto mine = co_await filled(around_.pool(), static_cast<std::size_t>(there.size()), 1);
    if (writes) {
      static_cast<void>(co_await failure_of(client_.write(mine, there)));
    } else {
      EXPECT_TRUE(co_await code_of(client_.read(mine, there)));
    }
    EXPECT_EQ(co_await code_of(client_.recv()), errc::remote_access);
    ended_ = true;
  }

  task<> end() {
    if (ended_) co_await end_with_connection();
    for (auto item = open_.begin(); item != open_.end();) {
      opening& each = *item++;
      if (each.retired) confirm(each);
    }
    for (memory& each : regions_) {
      const auto code = co_await code_of(each.region.release());
      EXPECT_EQ(code, each.windows == 0 ? std::error_code() : make_error_code(errc::busy));
    }
    open_.clear();
    for (memory& each : regions_) {
      if (each.windows != 0) co_await each.region.release();
    }
  }

  // Nothing is open then, whether its owner knows or not.
  task<> end_with_connection() {
    co_await server_.close();
    for (memory& each : regions_) each.windows = 0;
    for (opening& each : open_) EXPECT_EQ(co_await each.window.ended(), expected_end(each));
    open_.remove_if([](const opening& each) { return each.retired; });
  }

  static net::exposure_end expected_end(const opening& item) {
    if (item.retired) return net::exposure_end::open;  // it is the connection's to know
    return item.invalidated ? net::exposure_end::peer : net::exposure_end::connection;
  }

  void forget(opening& item) {
    if (!item.invalidated) --regions_[item.region].windows;
    stale_ = item.window.remote();
  }

  void check() {
    for (const memory& each : regions_) EXPECT_TRUE(std::ranges::equal(each.region.bytes(), each.expected));
  }

  opening& pick() { return *std::next(open_.begin(), static_cast<std::ptrdiff_t>(draw(0, open_.size() - 1))); }
  std::size_t draw(std::size_t from, std::size_t to) { return from + random_() % (to - from + 1); }

  std::minstd_rand random_;
  windows_model& around_;
  net::connection& client_;
  net::connection& server_;
  const bool with_faults_;
  const bool may_violate_;  // one in eight: each takes ports of its own, and there are not that many
  std::array<memory, 3> regions_;
  std::list<opening> open_;
  std::optional<mr::remote_region> stale_;  // of a window that is there no more
  bool ended_ = false;
};

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(__clang__)
constexpr unsigned programs = 300;  // slow there, or likely to be
#else
constexpr unsigned programs = 4000;
#endif

void windows_model::play(unsigned count, bool with_faults) {
  if (!has_windows()) GTEST_SKIP() << no_windows;
  const auto body = [&]() -> task<> {
    std::optional<connected> ends;
    for (unsigned seed = 1; seed <= count && !HasFailure(); ++seed) {
      if (!ends) ends.emplace(co_await connect_pair());
      program one(seed, *this, *ends, with_faults);
      co_await one.run();
      if (one.ended()) ends.reset();
      EXPECT_FALSE(HasFailure()) << "seed " << seed;
    }
  };
  run(body);
}

TEST_P(windows_model, any_program_gets_at_what_is_open_to_it_and_nothing_else) { play(programs, false); }

TEST_P_WINDOWS_TASK(windows_model, without_memory_exposures_are_dropped_and_retired_on_another_thread) {
  auto ends = co_await connect_pair();
  auto dropped = co_await expose_zeros(ends.server, 100, mr::usage::write_dst);
  auto retired = co_await expose_zeros(ends.server, 100);
  const auto let_go = [&] {
    fail_call(1, 1000);
    retired.retire();
    dropped = net::exposure();
    fail_call(0);
  };
  co_await elsewhere(let_go);
  co_await ends.client.flush(retired.remote());
  EXPECT_EQ(ends.server.statistics().retired_bytes, 100u);
}

TEST_P(windows_model, where_calls_fail_a_window_is_bound_or_leaves_nothing_behind) { play(programs / 10, true); }

}  // namespace
}  // namespace weft::test
