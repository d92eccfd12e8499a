// SPDX-License-Identifier: Apache-2.0
// How long a link waits for a device that says nothing, and who destroys a queue pair: on a device that exists only
// here, and by a clock that the test turns.
#include <weft/net/connection/lending.hpp>
#include <weft/net/verbs/endpoint.hpp>
#include <weft/net/verbs/executor_state.hpp>
#include <weft/net/verbs/rdma_link.hpp>

#include <initializer_list>

#include "../../sim/loose_task.hpp"
#include "kit/clock.hpp"
#include "kit/held_workers.hpp"
#include "kit/test.hpp"
#include "mr/support.hpp"
#include "verbs/fake_device.hpp"

namespace weft::net::verbs {
namespace {

using namespace std::chrono_literals;

constexpr auto dead_peer_after = 500ms;
constexpr auto between_looks = dead_peer_after / 2;

// Has queue pairs, and answers what is posted to them only when it is told to.
class patient_libraries final : public test::eventful_libraries {
 public:
  patient_libraries() { limits.max_qp_wr = 100; }

  std::vector<std::vector<unsigned>> doorbells;  // the send_flags of what each has handed over
  std::vector<ibv_wr_opcode> opcodes;            // of all of that
  std::vector<std::size_t> sent_before_receive;  // how much of that there was, for each receive
  std::uint32_t most_inline = 512;
  std::vector<std::uint32_t> inline_sizes_asked;
  std::uint32_t last_length = 0;  // of the last one
  std::uint32_t last_key = 0;     // what it has named of the peer's
  std::atomic<int> pairs = 0;
  std::function<int()> on_dealloc;  // what ibv_dealloc_mw(3) returns; null: it succeeds
  int destroy_pair_failure = 0;
  bool loses_requests = false;  // instead of flushing them
  int notified = 0;             // ids, by rdma_notify(3)
  int break_failure = 0;        // of what takes a queue pair to ERR
  std::atomic<int> broken = 0;  // queue pairs that are there
  std::function<void()> on_broken_by_worker;

  void answer_all(ibv_wc_status status = IBV_WC_SUCCESS) {
    const std::lock_guard lock(mutex_);
    for (const std::uint64_t id : std::exchange(open_, {})) {
      ibv_wc& what = completions.emplace_back();
      what.wr_id = id;
      what.status = status;
    }
  }
  [[nodiscard]] std::size_t windows() {
    const std::lock_guard lock(mutex_);
    return windows_.size();
  }

  int create_id(rdma_event_channel*, void* context, rdma_cm_id** made) noexcept override {
    *made = new rdma_cm_id{};
    (*made)->context = context;
    (*made)->port_num = 1;
    return 0;
  }
  int destroy_id(rdma_cm_id* id) noexcept override {
    delete id;
    return 0;
  }
  int notify(rdma_cm_id*, ibv_event_type) noexcept override {
    ++notified;
    return 0;
  }
  int init_qp_attr(rdma_cm_id*, ibv_qp_attr*, int*) noexcept override { return 0; }
  int disconnect(rdma_cm_id*) noexcept override { return 0; }
  int create_qp(ibv_pd*, ibv_qp_init_attr* wanted, ibv_qp** made) noexcept override {
    inline_sizes_asked.push_back(wanted->cap.max_inline_data);
    if (wanted->cap.max_inline_data > most_inline) return -EINVAL;
    ++pairs;
    *made = new ibv_qp{};
    return 0;
  }
  int destroy_qp(ibv_qp* pair) noexcept override {
    --pairs;
    kept_.reset(pair);
    if (destroy_pair_failure == 0) kept_.reset();
    return -destroy_pair_failure;
  }
  int alloc_mw(ibv_pd*, ibv_mw_type, ibv_mw** made) noexcept override {
    const std::lock_guard lock(mutex_);
    *made = &windows_.emplace_back();
    (*made)->rkey = static_cast<std::uint32_t>(windows_.size()) << 8;
    return 0;
  }
  int dealloc_mw(ibv_mw*) noexcept override { return on_dealloc ? on_dealloc() : 0; }
  int modify_qp(ibv_qp*, ibv_qp_attr* wanted, int) noexcept override {
    if (wanted->qp_state != IBV_QPS_ERR) return 0;
    if (break_failure != 0) return -break_failure;
    ++broken;
    if (!loses_requests) answer_all(IBV_WC_WR_FLUSH_ERR);
    while (!receives_.empty()) end_receive(IBV_WC_WR_FLUSH_ERR);
    if (on_broken_by_worker && executor::current() == nullptr) on_broken_by_worker();
    return 0;
  }
  int poll_cq(ibv_cq* queue, int most, ibv_wc* found) noexcept override {
    const std::lock_guard lock(mutex_);
    return fake_libraries::poll_cq(queue, most, found);
  }
  int post_send(ibv_qp*, ibv_send_wr* first, ibv_send_wr**) noexcept override {
    const std::lock_guard lock(mutex_);
    std::vector<unsigned>& flags = doorbells.emplace_back();
    for (const ibv_send_wr* item = first; item != nullptr; item = item->next) {
      flags.push_back(item->send_flags);
      opcodes.push_back(item->opcode);
      last_length = item->num_sge != 0 ? item->sg_list[0].length : 0;
      last_key = item->wr.rdma.rkey;
      open_.push_back(item->wr_id);
    }
    return 0;
  }
  int post_recv(ibv_qp*, ibv_recv_wr* first, ibv_recv_wr**) noexcept override {
    const std::lock_guard lock(mutex_);
    for (const ibv_recv_wr* item = first; item != nullptr; item = item->next) {
      sent_before_receive.push_back(opcodes.size());
      receives_.push_back(item->wr_id);
    }
    return 0;
  }
  /// A message has come into the oldest receive.
  void bring_message() { end_receive(IBV_WC_SUCCESS); }

 private:
  void end_receive(ibv_wc_status status) {
    const std::lock_guard lock(mutex_);
    ibv_wc& what = completions.emplace_back();
    what.wr_id = receives_.front();
    what.status = status;
    what.opcode = IBV_WC_RECV;
    receives_.pop_front();
  }

  std::deque<ibv_mw> windows_;
  std::mutex mutex_;  // workers come here as well
  std::vector<std::uint64_t> open_;
  std::deque<std::uint64_t> receives_;
  std::unique_ptr<ibv_qp> kept_;  // that could not be destroyed
};

class witness final : public link_events {
 public:
  explicit witness(test::manual_clock& time) : time_(time) {}

  std::optional<time_point> ended_at;
  std::error_code why;
  std::size_t done = 0;
  std::function<void(receive_work&)> on_received;
  event gone;

 private:
  void completed(work_request&, work_status status) noexcept override { done += status == work_status::done ? 1 : 0; }
  void received(receive_work& work, const arrival&) noexcept override {
    if (on_received) on_received(work);
  }
  void receive_flushed(receive_work&) noexcept override {}
  void ended(bool, const error& reason) noexcept override {
    ended_at = time_.now();
    why = reason.code();
  }
  void closed() noexcept override { gone.set(); }

  test::manual_clock& time_;
};

work_request request_of(work_kind kind, std::uint16_t slot, std::size_t bytes) {
  static std::byte memory[64];  // which no device reads here
  static mr::memory_record record;
  record.registration.local_key = 1;
  static std::deque<mr::slice> slices;
  slices.emplace_back(std::span<std::byte>(memory, bytes), &record);
  work_request work{.slot = slot, .kind = kind, .segments = {&slices.back(), 1}};
  return work;
}

/// Whoever has had a window revoked.
struct told final : public revocation {
  event revoked_event;

  [[nodiscard]] mr::region_pin take_pin() noexcept override { return {}; }
  void revoked() noexcept override { revoked_event.set(); }
};

class verbs_silence : public ::testing::Test {
 protected:
  /// Runs `script(link)` with a link that has been heard from, just after a look of its timer.
  template <class Script>
  void with_link(Script script, std::chrono::milliseconds patience = dead_peer_after) {
    events.ended_at.reset();
    events.gone.reset();
    const auto root = [&]() -> task<> {
      auto pair = co_await make_endpoint(executor_state::of(home));
      const agreement agreed{.incoming_reads = 1, .outgoing_reads = 1, .dead_peer_after = patience};
      rdma_link link(std::move(pair), memory, "peer", agreed, false);
      const link_parameters parameters{.send_depth = 8, .receive_depth = 1, .landing = landing};
      link.start(events, parameters);
      co_await let_pass(0ms);
      if (at_start) at_start();
      libraries.answer_all();  // the first sign of life
      co_await let_pass(between_looks);
      co_await script(link);
      if (!events.gone.is_set()) link.abort("the test is over");
      co_await events.gone.wait();
    };
    test::run(root, {.workers = workers_, .clock = &time});
    EXPECT_EQ(libraries.pairs, 0);
  }

  static task<std::unique_ptr<endpoint>> make_endpoint(executor_state& shared) {
    auto made = std::make_unique<endpoint>(shared, cm_id(shared.channel().handle(), static_cast<cm_handler*>(nullptr)));
    set_up_options wanted;
    wanted.max_requests = 8;
    wanted.max_receives = 1;
    co_await made->make_pair(wanted);
    co_return made;
  }

  static task<> keep_window(endpoint& through, std::uint32_t key) {
    bound_windows& all = through.windows();
    bound_window& item = all.add();
    static std::array<std::byte, 64> bytes{};
    const auto work = [&all, &item] { all.make(item, bytes, mr::access::local_write); };
    co_await weft::detail::offload_for_resources(work);
    item.opened(key, false);
  }

  /// Time passes, and whatever is due then happens: a busy executor looks at the clock once in 64 turns.
  task<> let_pass(duration left) {
    constexpr duration step = 1ms;
    do {
      const duration next = std::min(left, step);
      time.advance(next);
      left -= next;
      for (int turn = 0; turn < 70; ++turn) co_await yield();
    } while (left != duration::zero() && !events.ended_at);
  }

  void post(rdma_link& link, std::initializer_list<work_request*> works) {
    for (work_request* const work : works) {
      if (work->corner == nullptr) {
        work->corner = corners.emplace_back(std::make_unique<std::byte[]>(link.corner_bytes())).get();
        EXPECT_TRUE(link.furnish(*work));
      }
      link.post(*work);
    }
    link.ring();
  }

  std::vector<std::unique_ptr<std::byte[]>> corners;

  landing_place landing{};          // of the peer
  std::function<void()> at_start;   // called when the link has had its first turns
  worker_pool* workers_ = nullptr;  // of its executor
  test::manual_clock time;
  patient_libraries libraries;
  std::shared_ptr<device> home = std::make_shared<device>(libraries, "");
  std::shared_ptr<domain> memory = std::make_shared<domain>(home);
  witness events{time};
};

// Whose bodies are scripts.
#define TEST_F_ON_LINK(fixture, name) \
  TEST_F_SCRIPT(fixture, name, ([[maybe_unused]] rdma_link & link), with_link(WEFT_SCRIPT))
#define TEST_F_BEHIND_MESSAGE(fixture, name) \
  TEST_F_SCRIPT(fixture, name, (rdma_link & link), behind_a_message(WEFT_SCRIPT))
#define TEST_F_LENDING(fixture, name) TEST_F_SCRIPT(fixture, name, (rdma_link & link), with_lender(WEFT_SCRIPT))

TEST_F(verbs_silence, is_borne_for_as_long_as_was_promised_wherever_in_between_two_looks_it_begins) {
  for (const duration before : {duration(0ms), duration(1ms), duration(100ms), duration(between_looks - 1ms)}) {
    with_link([&](rdma_link& link) -> task<> {
      auto work = request_of(work_kind::write, 0, 64);
      co_await let_pass(before);
      post(link, {&work});
      const time_point posted = time.now();
      co_await let_pass(10 * dead_peer_after);
      EXPECT_EQ(events.why, errc::peer_vanished);
      EXPECT_GE(events.ended_at.value_or(posted) - posted, dead_peer_after) << before.count();
      EXPECT_LE(events.ended_at.value_or(posted) - posted, dead_peer_after + between_looks) << before.count();
    });
  }
}

TEST_F_ON_LINK(verbs_silence, of_an_idle_peer_is_asked_about_and_borne_for_as_long_again) {
  const std::size_t before = libraries.doorbells.size();
  co_await let_pass(between_looks);
  EXPECT_EQ(libraries.doorbells.size(), before + 1);  // a sign of life is asked for
  const time_point asked = time.now();
  co_await let_pass(10 * dead_peer_after);
  EXPECT_EQ(events.why, errc::peer_vanished);
  EXPECT_EQ(events.ended_at.value_or(asked) - asked, dead_peer_after);
}

TEST_F(verbs_silence, may_last_for_ever) {
  with_link(
      [&](rdma_link& link) -> task<> {
        auto small = request_of(work_kind::write, 0, 64);
        post(link, {&small});
        co_await let_pass(0ms);
        const std::size_t before = libraries.doorbells.size();
        co_await let_pass(10 * dead_peer_after);
        EXPECT_EQ(libraries.doorbells.size(), before);
        EXPECT_FALSE(events.ended_at);
        libraries.answer_all();
        co_await let_pass(0ms);
      },
      std::chrono::milliseconds::max());
}

TEST_F_ON_LINK(verbs_silence, of_a_small_request_lasts_as_long_as_the_large_one_that_tells_of_it) {
  auto small = request_of(work_kind::write, 0, 64);
  auto large = request_of(work_kind::write, 1, std::size_t{1} << 30);
  post(link, {&small, &large});
  co_await let_pass(10 * dead_peer_after);
  EXPECT_EQ(libraries.doorbells.back().size(), 2u);
  EXPECT_EQ(libraries.doorbells.back().front() & IBV_SEND_SIGNALED, 0u);
  EXPECT_FALSE(events.ended_at);
  libraries.answer_all();
  co_await let_pass(0ms);
  EXPECT_EQ(events.done, 2u);
}

TEST_F_ON_LINK(verbs_silence, of_a_sign_of_life_lasts_as_long_as_the_large_request_that_tells_of_it) {
  auto large = request_of(work_kind::read, 0, std::size_t{1} << 30);
  const std::size_t before = libraries.doorbells.size();
  const auto behind_the_sign = [&]() -> task<> {
    co_await sleep_for(between_looks);  // as long as the link's timer, so both are due in one turn
    post(link, {&large});
  };
  co_await when_all(behind_the_sign(), let_pass(10 * dead_peer_after));
  EXPECT_EQ(libraries.doorbells.size(), before + 1);
  EXPECT_EQ(libraries.doorbells.back().size(), 2u);
  EXPECT_EQ(libraries.doorbells.back().front() & IBV_SEND_SIGNALED, 0u);
  EXPECT_FALSE(events.ended_at);
}

TEST_F_ON_LINK(verbs_silence, of_a_small_request_lasts_as_long_as_the_message_behind_it_waits_for_a_receive) {
  auto small = request_of(work_kind::write, 0, 64);
  auto message = request_of(work_kind::send, 1, 64);
  post(link, {&small, &message});
  co_await let_pass(10 * dead_peer_after);
  EXPECT_EQ(libraries.doorbells.back().size(), 2u);
  EXPECT_EQ(libraries.doorbells.back().front() & IBV_SEND_SIGNALED, 0u);
  EXPECT_FALSE(events.ended_at);
}

TEST_F_ON_LINK(verbs_silence, of_a_request_that_tells_of_itself_is_not_excused_by_what_is_behind_it) {
  auto small = request_of(work_kind::write, 0, 64);
  auto large = request_of(work_kind::write, 1, std::size_t{1} << 30);
  auto message = request_of(work_kind::send, 2, 64);
  post(link, {&small});
  const time_point posted = time.now();
  co_await let_pass(1ms);
  post(link, {&large, &message});
  co_await let_pass(10 * dead_peer_after);
  EXPECT_EQ(events.why, errc::peer_vanished);
  EXPECT_LE(events.ended_at.value_or(posted) - posted, dead_peer_after + between_looks);
}

// Soft-RoCE breaks the connection off where the answer to a read of nothing was lost, and it is asked again.
TEST_F_ON_LINK(verbs_silence, is_broken_by_something_that_may_be_lost_on_its_way_and_back) {
  co_await let_pass(10 * dead_peer_after);
  EXPECT_FALSE(libraries.opcodes.empty());
  for (const ibv_wr_opcode each : libraries.opcodes) EXPECT_EQ(each, IBV_WR_RDMA_WRITE);
}

// Some networks lose packets without payload.
TEST_F(verbs_silence, is_broken_by_a_byte_where_the_peer_has_a_place_for_it) {
  with_link([&](rdma_link&) -> task<> {
    co_await let_pass(between_looks);
    EXPECT_EQ(libraries.last_length, 0u);  // no peer of weft's has told of one
  });
  landing = {.key = 77, .address = 4096};
  with_link([&](rdma_link&) -> task<> {
    co_await let_pass(between_looks);
    EXPECT_EQ(libraries.last_length, 1u);
    EXPECT_EQ(libraries.last_key, 77u);
  });
}

// siw answers a read of nothing with memory, and so breaks the connection off, if it comes while siw sends: as a peer
// does that has just been connected.
TEST_F(verbs_silence, of_an_rnics_peer_that_has_just_been_connected_is_not_broken_by_a_read_of_nothing) {
  libraries.become_rnics();
  home = std::make_shared<device>(libraries, "");
  memory = std::make_shared<domain>(home);
  const auto opcodes_at_start = [&](landing_place where) {
    landing = where;
    libraries.opcodes.clear();
    std::vector<ibv_wr_opcode> begun;
    at_start = [&] { begun = libraries.opcodes; };
    with_link([&](rdma_link&) -> task<> { co_await let_pass(between_looks); });
    return begun;
  };
  using opcodes = std::vector<ibv_wr_opcode>;
  EXPECT_EQ(opcodes_at_start({}), opcodes{});
  EXPECT_EQ(libraries.opcodes.front(), IBV_WR_RDMA_READ);  // later, of a peer that says nothing
  EXPECT_EQ(opcodes_at_start({.key = 77, .address = 4096}), opcodes{IBV_WR_RDMA_READ});
}

class verbs_inline : public verbs_silence {
 protected:
  template <class Script>
  void with_device(Script script) {
    home = std::make_shared<device>(libraries, "");
    memory = std::make_shared<domain>(home);
    libraries.inline_sizes_asked.clear();
    with_link(script);
  }
};

TEST_F(verbs_inline, room_is_asked_for_in_smaller_sizes_until_the_device_has_as_much) {
  using sizes = std::vector<std::uint32_t>;
  for (const auto& [most, asked] :
       {std::pair{512u, sizes{128}}, {101u, sizes{128, 96}}, {80u, sizes{128, 96, 64}}, {0u, sizes{128, 96, 64, 0}}}) {
    libraries.most_inline = most;
    with_device([](rdma_link&) -> task<> { co_return; });
    EXPECT_EQ(libraries.inline_sizes_asked, asked) << most;
  }
}

// The peer would get the beginning of the message, and memory that nobody has written behind it.
TEST_F(verbs_inline, data_has_one_part_where_the_driver_may_copy_the_first_alone) {
  for (const auto& [vendor, of_several_parts] : {std::pair{0x02C9u, true}, {0x8086u, false}}) {
    libraries.limits.vendor_id = vendor;
    work_request one = request_of(work_kind::send, 0, 8);
    work_request two = request_of(work_kind::send, 1, 8);
    const std::array<mr::slice, 2> parts{one.segments[0], one.segments[0]};
    two.segments = parts;
    with_device([&](rdma_link& link) -> task<> {
      post(link, {&one});
      co_await let_pass(0ms);
      EXPECT_NE(libraries.doorbells.back().back() & IBV_SEND_INLINE, 0u) << vendor;
      post(link, {&two});
      co_await let_pass(0ms);
      EXPECT_EQ((libraries.doorbells.back().back() & IBV_SEND_INLINE) != 0, of_several_parts) << vendor;
      libraries.answer_all();
      co_await let_pass(0ms);
    });
  }
}

class verbs_binding : public verbs_silence {
 protected:
  verbs_binding() { workers_ = &workers; }

  /// Whether a window gets bound in so long.
  task<std::error_code> expose(rdma_link& link, std::chrono::milliseconds limit) {
    const mr::slice all(bytes_, &region_);
    const auto made = co_await as_result(with_timeout(limit, link.expose(all, mr::usage::write_dst, nullptr)));
    co_return made ? std::error_code() : made.error().code();
  }

  /// Runs `script(link)` with a link whose peer has no receive for a message, and for as long as it likes.
  template <class Script>
  void behind_a_message(Script script) {
    region_.bytes = bytes_;
    memory->register_now(region_, {.usage = mr::usage::bind_window});
    with_link([&](rdma_link& link) -> task<> {
      auto message = request_of(work_kind::send, 0, 64);
      post(link, {&message});
      co_await let_pass(0ms);
      co_await script(link);
    });
    memory->deregister_now(region_);
  }

 private:
  test::held_workers workers;  // no time passes while they work
  std::array<std::byte, 64> bytes_{};
  mr::memory_record region_;
};

// The window may be bound at any moment, so it cannot be let go: the link has to end.
TEST_F_BEHIND_MESSAGE(verbs_binding, that_has_begun_is_waited_for_until_shortly_after_a_stop) {
  const time_point start = time.now();
  const auto [why, passed] = co_await when_all(expose(link, 100ms), let_pass(5000ms));
  EXPECT_EQ(why, errc::timed_out);
  EXPECT_EQ(events.why, errc::closed);
  EXPECT_LE(events.ended_at.value_or(time_point::max()) - start, 1200ms);
}

TEST_F_BEHIND_MESSAGE(verbs_binding, that_waits_for_its_turn_is_stopped_at_once_and_harms_nobody) {
  const auto let_go = [&]() -> task<> {
    co_await let_pass(200ms);
    EXPECT_FALSE(events.ended_at);
    libraries.answer_all();
  };
  std::vector<task<std::error_code>> exposing;
  for (unsigned i = 0; i != bind_requests; ++i) exposing.push_back(expose(link, 10'000ms));
  exposing.push_back(expose(link, 100ms));
  const auto [codes, gone] = co_await when_all(when_all(std::move(exposing)), let_go());
  for (unsigned i = 0; i != bind_requests; ++i) EXPECT_EQ(codes[i], std::error_code());
  EXPECT_EQ(codes.back(), errc::timed_out);
  EXPECT_FALSE(events.ended_at);
}

// The loop of another library, which will call step() when it sees fit.
class other_loop final : public executor_core::outer_loop {
 public:
  void wake() noexcept override {}
};

using verbs_disposal = verbs_silence;

TEST_F(verbs_disposal, leaves_an_executor_that_is_driven_from_outside_to_whoever_drives_it) {
  std::unique_ptr<endpoint> pair;
  other_loop outside;
  executor guest;
  const auto root = [&]() -> task<> { pair = co_await make_endpoint(executor_state::of(home)); };
  guest.run(root());
  core_of(guest).drive_from(&outside);
  const std::uint64_t turns = guest.statistics().turns;
  endpoint::dispose(std::move(pair));
  EXPECT_EQ(guest.statistics().turns, turns);
  EXPECT_EQ(libraries.pairs, 1);
  do {
    static_cast<void>(core_of(guest).step());
    std::this_thread::yield();  // to the worker
  } while (libraries.pairs != 0 || core_of(guest).has_work());
  core_of(guest).drive_from(nullptr);
}

// The peer's first message has come, and its set-up has been abandoned.
TEST_F(verbs_disposal, does_not_use_the_id_that_a_worker_destroys) {
  test::held_workers workers(2);  // the first two jobs make a completion queue and the queue pair
  const auto root = [&]() -> task<> {
    std::unique_ptr<endpoint> pair = co_await make_endpoint(executor_state::of(home));
    ibv_async_event came{};
    came.event_type = IBV_EVENT_COMM_EST;
    came.element.qp = pair->pair();
    endpoint::dispose(std::move(pair));
    while (!workers.hold_it()) co_await yield();
    libraries.raise(came);
    while (libraries.acknowledgements == 0) co_await yield();
    for (int i = 0; i < 10; ++i) co_await yield();
    EXPECT_EQ(libraries.notified, 0);
    workers.let_go();
    while (libraries.pairs != 0) co_await yield();
    for (int i = 0; i < 10; ++i) co_await yield();
  };
  test::run(root, {.workers = &workers, .clock = &time});
}

// From here to its end, no allocation succeeds on any thread.
class no_memory : private test::immovable {
 public:
  no_memory() noexcept { test::fail_call(1, 1'000'000); }
  ~no_memory() { test::fail_call(0); }
};

TEST_F(verbs_disposal, needs_no_memory_wherever_it_begins) {
  executor running;
  std::unique_ptr<endpoint> pair;
  const auto make = [&]() -> task<> { pair = co_await make_endpoint(executor_state::of(home)); };
  const auto dispose_here = [&]() -> task<> {
    const no_memory at_all;
    endpoint::dispose(std::move(pair));
    while (libraries.pairs != 0) co_await yield();
    for (int i = 0; i < 10; ++i) co_await yield();
  };
  const auto wait = [&]() -> task<> {
    while (libraries.pairs != 0) co_await yield();
  };
  running.run(make());
  running.run(dispose_here());
  EXPECT_EQ(libraries.pairs, 0);
  running.run(make());
  std::thread([&] {
    const no_memory at_all;
    endpoint::dispose(std::move(pair));
  }).join();
  running.run(wait());
  EXPECT_EQ(libraries.pairs, 0);
}

// Nor does it wait for what a device that has failed does not flush.
TEST_F_ON_LINK(verbs_disposal, of_a_link_needs_no_memory) {
  auto work = request_of(work_kind::write, 0, 64);
  post(link, {&work});
  co_await let_pass(0ms);
  libraries.completions.reserve(64);
  const no_memory at_all;
  link.abort("there is no memory");
  while (!events.gone.is_set()) co_await yield();
  EXPECT_EQ(events.why, errc::closed);
}

TEST_F(verbs_disposal, of_windows_is_waited_for_by_whoever_takes_one_back) {
  std::latch begun(1);
  std::atomic<bool> gone = false;
  libraries.on_dealloc = [&] {
    begun.count_down();
    for (int i = 0; i < 10'000; ++i) std::this_thread::yield();  // to an executor that might go on too early
    gone = true;
    return 0;
  };
  test::run([&]() -> task<> {
    auto pair = co_await make_endpoint(executor_state::of(home));
    co_await keep_window(*pair, 17);
    const auto take_back = [&]() -> task<> {
      begun.wait();  // a worker is at it
      told who;
      pair->windows().revoke(17, who);
      co_await who.revoked_event.wait();
      EXPECT_TRUE(gone);
    };
    co_await when_all(pair->destroy(), take_back());
  });
}

// The key of a window of type 1 works on every connection of the device, whatever becomes of its own.
TEST_F(verbs_disposal, of_a_window_that_stays_open_to_other_peers_ends_the_process) {
  libraries.limits.device_cap_flags = IBV_DEVICE_MEM_WINDOW;
  home = std::make_shared<device>(libraries, "");
  const auto take_back = [&] {
    libraries.on_dealloc = [] { return -EBUSY; };
    test::run([&]() -> task<> {
      auto pair = co_await make_endpoint(executor_state::of(home));
      co_await keep_window(*pair, 17);
      told who;
      pair->windows().revoke(17, who);
      co_await who.revoked_event.wait();
    });
  };
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a copy of this process would have no workers
  EXPECT_DEATH(take_back(), "a memory window could not be deallocated");
}

// Nobody has taken the queue pair of a set-up that has failed to ERR, and its peer may be connected.
TEST_F(verbs_disposal, of_a_queue_pair_that_stays_keeps_it_from_memory_or_ends_the_process) {
  const auto set_up_in_vain = [&] {
    test::run([&]() -> task<> {
      auto pair = co_await make_endpoint(executor_state::of(home));
      co_await pair->destroy();
    });
  };
  libraries.destroy_pair_failure = EIO;  // the device has gone
  set_up_in_vain();
  EXPECT_EQ(libraries.broken, 0);
  libraries.destroy_pair_failure = EBUSY;
  set_up_in_vain();
  EXPECT_EQ(libraries.broken, 1);
  libraries.break_failure = ETIMEDOUT;
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a copy of this process would have no workers
  EXPECT_DEATH(set_up_in_vain(), "a queue pair could not be destroyed");
}

/// Memory that is lent to the peer of a link, on a device whose ibv_dealloc_mw(3) does not return before it may.
class verbs_revocation : public verbs_silence {
 protected:
  static constexpr int turns = 300;

  void SetUp() override {
    libraries.on_dealloc = [this] {
      ++begun_;
      if (by_executor_) return 0;
      EXPECT_EQ(executor::current(), nullptr) << "an executor would be held up";
      if (executor::current() == nullptr) may_return_.wait(false);
      return result_.load();
    };
  }

  static task<> take_turns(int count = turns) {
    for (int i = 0; i < count; ++i) co_await yield();
  }
  /// Until a worker is at a window: the executor goes on meanwhile.
  task<> until_begun() {
    while (begun_ == 0) co_await yield();
    co_await take_turns();
  }
  void let_return(int result = 0) {
    result_ = result;
    may_return_ = true;
    may_return_.notify_all();
  }

  /// The key of a window for so much memory. The link has nothing under way.
  task<exposed_place> open(rdma_link& link, mr::slice what) {
    const auto answer = [&]() -> task<> {
      const auto is_bound = [&] { return libraries.opcodes.back() == IBV_WR_BIND_MW; };
      while (!is_bound()) co_await yield();
      libraries.answer_all();
    };
    libraries.opcodes.push_back(IBV_WR_SEND);  // another one than that before
    const auto [made, answered] = co_await when_all(link.expose(what, mr::usage::write_dst, nullptr), answer());
    co_return made;
  }
  task<lending*> lend(rdma_link& link, mr::region& from) {
    return lend(link, from.slice(), mr::region_pin(from.slice()));
  }
  task<lending*> lend_buffer(rdma_link& link) {
    auto own = co_await pool_.allocate(64);
    const mr::slice all = own.slice();
    co_return co_await lend(link, all, std::move(own));
  }
  /// `held`: what keeps that memory.
  template <class Held>
  task<lending*> lend(rdma_link& link, mr::slice what, Held held) {
    auto lent = std::make_unique<lending>(keys_, time_point::max());
    const exposed_place remote = co_await open(link, what);
    EXPECT_TRUE(keys_->opened(*lent, remote.key, what.size()));
    lent->hold(std::move(held));
    last_key_ = static_cast<std::uint32_t>(remote.key);
    co_return lent.release();
  }
  /// Whether a buffer of the pool has not come back.
  [[nodiscard]] bool in_use() const { return pool_.statistics().send.in_use_bytes != 0; }

  sim::loose_task take_back(lending* lent) {
    recall back(lent);
    co_await back.wait();
    ADD_FAILURE() << "a task went on that was destroyed";
  }
  /// Destroys a task that waits after that time, as soon as it rests.
  static task<> destroy_behind(sim::loose_task waiting, task<> time_before) {
    const sim::loose_task waiter = std::move(waiting);
    waiter.start(*executor::current());
    co_await std::move(time_before);
    while (!waiter.at_rest()) co_await yield();
  }

  /// Runs `script(link)` with a link that lends, until it is over or has ended it.
  template <class Script>
  void with_lender(Script script) {
    begun_ = 0;
    may_return_ = false;
    result_ = 0;
    with_link([&](rdma_link& link) -> task<> {
      keys_ = std::make_shared<link_keys>(counters_);
      keys_->attach(link);
      co_await script(link);
      let_return();
      link.abort("the test is over");
      co_await events.gone.wait();
      keys_->detach();
      EXPECT_EQ(keys_.use_count(), 1) << "something that was lent has not been let go";
    });
  }

  /// From now on a message waits for the peer, and what is posted behind it as well.
  void wait_for_peer(rdma_link& link) { post(link, {&messages_.emplace_back(request_of(work_kind::send, 0, 64))}); }

  static constexpr mr::registration_options for_windows{.usage = mr::usage::bind_window};
  mr::pool pool_{memory, {.huge_pages = false}};
  std::array<std::byte, 64> bytes{};
  std::shared_ptr<link_keys> keys_;
  live_statistics counters_;
  std::uint32_t last_key_ = 0;
  std::deque<work_request> messages_;
  std::atomic<int> begun_ = 0;             // calls of ibv_dealloc_mw(3)
  std::atomic<bool> by_executor_ = false;  // they are the executor's, and return
  std::atomic<bool> may_return_ = false;
  std::atomic<int> result_ = 0;
};

TEST_F(verbs_revocation, of_a_window_lets_the_executor_go_on_and_keeps_its_region_registered) {
  for (const bool unbound : {false, true}) {
    with_lender([&](rdma_link& link) -> task<> {
      auto region = co_await memory->register_memory(std::span(bytes), for_windows);
      lending* const lent = co_await lend(link, region);
      const int registered = libraries.regions;
      bool ended = false;
      const auto end = [&]() -> task<> {
        if (!unbound) {
          link_keys::end(lent);
        } else {
          recall back(lent);
          co_await back.wait();
        }
        co_await region.release();
        ended = true;
      };
      const auto watch = [&]() -> task<> {
        co_await until_begun();
        EXPECT_FALSE(ended);
        EXPECT_EQ(libraries.regions, registered);
        let_return();
      };
      co_await when_all(end(), watch());
      EXPECT_EQ(libraries.regions, registered - 1);
    });
  }
}

TEST_F(verbs_revocation, of_an_exposure_lets_the_executor_go_on_and_keeps_its_buffer) {
  enum class way : std::uint8_t { dropped, taken_back, retired };
  for (const way how : {way::dropped, way::taken_back, way::retired}) {
    with_lender([&](rdma_link& link) -> task<> {
      lending* const lent = co_await lend_buffer(link);
      wait_for_peer(link);
      bool ended = false;
      const auto end = [&]() -> task<> {
        if (how == way::taken_back) {
          recall back(lent);
          co_await back.wait();
          const mr::buffer again = back.take_buffer();
          EXPECT_EQ(again.size(), 64u);
        } else if (how == way::dropped) {
          link_keys::end(lent);
        } else {
          link_keys::retire(lent);
          EXPECT_EQ(counters_.retired.get(), 1u);
          keys_->confirm(last_key_);
        }
        ended = true;
      };
      const auto watch = [&]() -> task<> {
        co_await until_begun();
        EXPECT_EQ(ended, how != way::taken_back);
        EXPECT_TRUE(in_use());
        let_return();
        while (in_use()) co_await yield();
      };
      co_await when_all(end(), watch());
    });
  }
}

TEST_F_LENDING(verbs_revocation, that_a_task_waits_for_which_is_destroyed_keeps_the_buffer_until_it_is_over) {
  lending* const lent = co_await lend_buffer(link);
  wait_for_peer(link);
  co_await destroy_behind(take_back(lent), until_begun());
  EXPECT_TRUE(in_use());
  let_return();
  while (in_use()) co_await yield();
}

// A worker destroys what the connection has, and is at its window when the owner lets go.
TEST_F_LENDING(verbs_revocation, behind_the_end_of_the_connection_lets_the_executor_go_on_as_well) {
  auto region = co_await memory->register_memory(std::span(bytes), for_windows);
  lending* const lent = co_await lend(link, region);
  link.abort("it has ended");
  co_await until_begun();
  link_keys::end(lent);
  bool released = false;
  const auto release = [&]() -> task<> {
    co_await region.release();
    released = true;
  };
  const auto watch = [&]() -> task<> {
    co_await take_turns();
    EXPECT_FALSE(released);
    EXPECT_FALSE(events.gone.is_set());
    EXPECT_EQ(libraries.pairs, 1);  // it goes behind its windows
    let_return();
  };
  co_await when_all(release(), watch());
  EXPECT_EQ(begun_, 1);
}

TEST_F_LENDING(verbs_revocation, that_is_under_way_is_waited_for_by_the_end_of_the_connection) {
  auto region = co_await memory->register_memory(std::span(bytes), for_windows);
  link_keys::end(co_await lend(link, region));
  co_await until_begun();
  link.abort("it has ended");
  co_await take_turns();
  EXPECT_FALSE(events.gone.is_set());
  EXPECT_EQ(libraries.pairs, 1);
  let_return();
  co_await events.gone.wait();
  co_await region.release();
  EXPECT_EQ(begun_, 1);
}

// Its memory is destroyed with the owner.
TEST_F_LENDING(verbs_revocation, of_the_last_window_of_a_region_that_has_been_closed_ends_before_its_memory_does) {
  std::atomic<bool> gone = false;
  using owned = std::array<std::byte, 64>;
  const auto destroy = [&gone](owned* item) {
    gone = true;
    delete item;
  };
  std::shared_ptr<owned> owner(new owned(), destroy);
  std::optional<mr::region> region = co_await memory->register_memory(std::move(owner), for_windows);
  lending* const lent = co_await lend(link, *region);
  link_keys::end(lent);
  co_await until_begun();
  region.reset();
  co_await take_turns();
  EXPECT_FALSE(gone);
  let_return();
  while (!gone) co_await yield();
}

TEST_F_LENDING(verbs_revocation, that_the_device_refuses_ends_the_connection_before_the_memory_is_let_go) {
  auto region = co_await memory->register_memory(std::span(bytes), for_windows);
  recall back(co_await lend(link, region));
  co_await until_begun();
  EXPECT_EQ(libraries.broken, 0);
  let_return(-EBUSY);
  co_await back.wait();
  EXPECT_GE(libraries.broken, 1);
  EXPECT_EQ(events.why, errc::connection_failed);
  result_ = 0;
  co_await events.gone.wait();
  co_await region.release();
}

// What the queue pair flushes is seen before the worker that has broken it says why.
TEST_F_LENDING(verbs_revocation, that_the_device_refuses_is_not_put_down_to_the_peer) {
  std::atomic<bool> seen = false;
  libraries.on_broken_by_worker = [&] { seen.wait(false); };
  lending* const lent = co_await lend_buffer(link);
  wait_for_peer(link);
  link_keys::end(lent);
  co_await until_begun();
  let_return(-EBUSY);
  while (!events.ended_at) co_await yield();
  EXPECT_EQ(events.why, errc::connection_failed);
  seen = true;
  seen.notify_all();
  result_ = 0;
  co_await events.gone.wait();
}

/// Workers that begin nothing for as long as they are held.
class hesitant_workers final : public worker_pool {
 public:
  bool held = false;

  void submit(weft::detail::worker_job& job) override { held ? held_.push_back(&job) : worker_pool::submit(job); }
  [[nodiscard]] bool withdraw(weft::detail::worker_job& job) noexcept override {
    return std::erase(held_, &job) != 0 || worker_pool::withdraw(job);
  }
  [[nodiscard]] std::size_t waiting() const noexcept { return held_.size(); }

 private:
  std::vector<weft::detail::worker_job*> held_;
};

// Its destructor returns when nobody touches the memory any more, and so it does not wait for a worker.
TEST_F(verbs_revocation, that_no_worker_has_begun_is_done_by_a_region_that_borrows_when_it_is_destroyed) {
  by_executor_ = true;
  hesitant_workers workers;
  workers_ = &workers;
  with_lender([&](rdma_link& link) -> task<> {
    std::optional<mr::region> region = co_await memory->register_memory(std::span(bytes), for_windows);
    lending* const lent = co_await lend(link, *region);
    const int registered = libraries.regions;
    workers.held = true;
    link_keys::end(lent);
    EXPECT_EQ(workers.waiting(), 1u);
    EXPECT_EQ(begun_, 0);
    region.reset();
    EXPECT_EQ(begun_, 1);
    EXPECT_EQ(libraries.regions, registered - 1);
    EXPECT_EQ(workers.waiting(), 0u);
    workers.held = false;
    co_await take_turns();
  });
  EXPECT_EQ(begun_, 1);
}

TEST_F(verbs_revocation, is_done_at_once_where_no_worker_can_be_had) {
  class no_workers final : public worker_pool {
   public:
    bool none = false;
    void submit(weft::detail::worker_job& job) override {
      if (none) throw std::system_error(EAGAIN, std::system_category());
      worker_pool::submit(job);
    }
  };
  by_executor_ = true;
  no_workers workers;
  workers_ = &workers;
  with_lender([&](rdma_link& link) -> task<> {
    auto region = co_await memory->register_memory(std::span(bytes), for_windows);
    lending* const lent = co_await lend(link, region);
    workers.none = true;
    link_keys::end(lent);
    EXPECT_EQ(begun_, 1);
    workers.none = false;
    co_await region.release();
  });
}

// ---- windows that are bound again ----

class verbs_reuse : public verbs_revocation {
 protected:
  /// Until the device has a request to invalidate a key.
  task<> until_invalidating() {
    while (libraries.opcodes.back() != IBV_WR_LOCAL_INV) co_await yield();
  }
  /// Lends a buffer and takes it back by a request.
  task<> lend_and_revoke(rdma_link& link) {
    link_keys::end(co_await lend_buffer(link));
    co_await until_invalidating();
    libraries.answer_all();
    while (in_use()) co_await yield();
  }
};

TEST_F_LENDING(verbs_reuse, takes_no_worker_and_gives_the_peer_another_key) {
  link_keys::end(co_await lend_buffer(link));
  const std::uint32_t first = last_key_;
  co_await until_invalidating();
  co_await take_turns();
  EXPECT_TRUE(in_use()) << "the peer may still be in it";
  libraries.answer_all();
  while (in_use()) co_await yield();
  const std::size_t made = libraries.windows();
  for (int i = 0; i < 20; ++i) co_await lend_and_revoke(link);
  EXPECT_EQ(libraries.windows(), made);
  EXPECT_NE(last_key_, first);
  EXPECT_EQ(begun_, 0);
}

// Its keys differ in their last eight bits.
TEST_F_LENDING(verbs_reuse, ends_before_a_window_has_a_key_twice) {
  let_return();
  std::set<std::uint32_t> keys;
  for (int i = 0; i < 600; ++i) {
    co_await lend_and_revoke(link);
    EXPECT_TRUE(keys.insert(last_key_).second) << last_key_ << " after " << i;
  }
  EXPECT_LT(libraries.windows(), 10u);
}

TEST_F(verbs_reuse, keeps_a_few_windows_and_leaves_the_others_to_a_worker) {
  const std::size_t tried = libraries.windows();  // when the device was opened
  with_lender([&](rdma_link& link) -> task<> {
    let_return();
    std::vector<lending*> lent;
    for (int i = 0; i < 12; ++i) lent.push_back(co_await lend_buffer(link));
    for (lending* const each : lent) {
      link_keys::end(each);
      co_await until_invalidating();
      libraries.answer_all();
      libraries.opcodes.push_back(IBV_WR_SEND);  // another one than that before
    }
    while (in_use()) co_await yield();
    EXPECT_EQ(begun_, 4);
    EXPECT_EQ(libraries.windows() - tried, 12u);
    for (int i = 0; i < 8; ++i) lent[static_cast<std::size_t>(i)] = co_await lend_buffer(link);
    EXPECT_EQ(libraries.windows() - tried, 12u);
    for (int i = 0; i < 8; ++i) link_keys::end(lent[static_cast<std::size_t>(i)]);
    libraries.answer_all();
    while (in_use()) {
      libraries.answer_all();
      co_await yield();
    }
  });
  EXPECT_EQ(begun_, 12);  // the end of the link lets go of the rest
}

TEST_F_LENDING(verbs_reuse, is_not_tried_behind_a_message_that_waits_for_the_peer) {
  lending* const lent = co_await lend_buffer(link);
  wait_for_peer(link);
  link_keys::end(lent);
  co_await until_begun();
  let_return();
  while (in_use()) co_await yield();
  EXPECT_EQ(std::count(libraries.opcodes.begin(), libraries.opcodes.end(), IBV_WR_LOCAL_INV), 0);
}

// Else the request would be known to be done only with what is posted behind it, which the peer may keep waiting.
TEST_F_LENDING(verbs_reuse, is_told_of_before_a_message_that_waits_for_the_peer) {
  lending* const lent = co_await lend_buffer(link);
  link_keys::end(lent);
  wait_for_peer(link);
  co_await take_turns();
  EXPECT_EQ(libraries.doorbells.back().size(), 2u);
  EXPECT_NE(libraries.doorbells.back().front() & IBV_SEND_SIGNALED, 0u);
}

// The message may say that there is a receive, and one that the peer sends for it must find it.
TEST_F_LENDING(verbs_reuse, does_not_bring_a_message_before_the_receive_that_was_posted_ahead_of_it) {
  auto message = request_of(work_kind::send, 0, 64);
  receive_work receive{.slot = 0, .memory = message.segments.front()};
  events.on_received = [&](receive_work& work) {
    link.post_receive(work);
    post(link, {&message});
  };
  link.post_receive(receive);
  co_await take_turns();
  lending* const lent = co_await lend_buffer(link);
  const std::size_t before = libraries.opcodes.size();
  libraries.bring_message();
  link_keys::end(lent);
  co_await take_turns();
  EXPECT_EQ(libraries.opcodes.size(), before + 2);
  EXPECT_EQ(libraries.sent_before_receive.size(), 2u);
  EXPECT_EQ(libraries.sent_before_receive.back(), before);
  libraries.answer_all();
  while (in_use()) co_await yield();
  events.on_received = nullptr;
  let_return();
  link.abort("the test is over");
  co_await events.gone.wait();  // before what is received into goes
}

TEST_F_LENDING(verbs_reuse, leaves_what_the_device_does_not_invalidate_to_a_worker_and_ends_the_connection) {
  link_keys::end(co_await lend_buffer(link));
  co_await until_invalidating();
  libraries.answer_all(IBV_WC_MW_BIND_ERR);
  co_await until_begun();
  EXPECT_TRUE(events.ended_at);
  EXPECT_TRUE(in_use());
  let_return();
  while (in_use()) co_await yield();
  EXPECT_EQ(begun_, 1);
}

TEST_F(verbs_reuse, that_the_end_of_the_link_comes_between_keeps_the_buffer_until_a_worker_is_done) {
  for (const bool posted : {false, true}) {
    for (const bool lost : {false, true}) {
      with_lender([&](rdma_link& link) -> task<> {
        link_keys::end(co_await lend_buffer(link));
        if (posted) co_await until_invalidating();
        libraries.loses_requests = lost;
        link.abort("it ends");
        while (begun_ == 0) {  // what is lost is given up after a while
          time.advance(10ms);
          co_await take_turns();
        }
        EXPECT_TRUE(in_use());
        EXPECT_FALSE(events.gone.is_set());
        let_return();
        while (in_use()) co_await yield();
        libraries.loses_requests = false;
      });
    }
  }
}

// The request is not made yet, or is with the device, or has ended.
TEST_F(verbs_reuse, goes_on_behind_whoever_waits_for_it_and_is_destroyed_at_any_turn) {
  for (int turn = 0; turn < 12; ++turn) {
    with_lender([&](rdma_link& link) -> task<> {
      lending* const lent = co_await lend_buffer(link);
      co_await destroy_behind(take_back(lent), take_turns(turn));
      co_await until_invalidating();
      EXPECT_TRUE(in_use()) << "the peer may still be in it";
      libraries.answer_all();
      while (in_use()) co_await yield();
      const std::size_t made = libraries.windows();
      co_await lend_and_revoke(link);
      EXPECT_EQ(libraries.windows(), made);
      EXPECT_EQ(begun_, 0);
    });
  }
}

// The memory goes with whoever asks, so the window goes before, although the device may be at the request.
TEST_F(verbs_reuse, of_a_window_whose_binding_is_destroyed_at_any_turn_leaves_nothing_open) {
  for (int turn = 0; turn < 12; ++turn) {
    with_lender([&](rdma_link& link) -> task<> {
      co_await lend_and_revoke(link);
      const std::size_t made = libraries.windows();
      EXPECT_EQ(begun_, 0);
      by_executor_ = true;
      auto own = co_await pool_.allocate(64);
      const auto expose = [&]() -> sim::loose_task {
        static_cast<void>(co_await link.expose(own.slice(), mr::usage::write_dst, nullptr));
        ADD_FAILURE() << "a task went on that was destroyed";
      };
      co_await destroy_behind(expose(), take_turns(turn));
      EXPECT_EQ(begun_, 1) << turn;
      own = mr::buffer();
      libraries.answer_all();  // also for what was with the device
      co_await take_turns();
      EXPECT_FALSE(events.ended_at);
      EXPECT_EQ(libraries.windows(), made);
      co_await lend_and_revoke(link);
      by_executor_ = false;
    });
  }
}

// The owner of a region may let go of it on the spot, and cannot wait for a completion there.
TEST_F_LENDING(verbs_reuse, is_for_buffers_and_leaves_regions_to_workers) {
  let_return();
  auto region = co_await memory->register_memory(std::span(bytes), for_windows);
  link_keys::end(co_await lend(link, region));
  co_await region.release();
  EXPECT_EQ(begun_, 1);
}

// It shows nothing of the peer.
TEST_F_LENDING(verbs_reuse, is_no_sign_of_the_peers_life) {
  const std::size_t before = libraries.doorbells.size();
  co_await lend_and_revoke(link);
  EXPECT_EQ(libraries.doorbells.size(), before + 2);
  co_await let_pass(between_looks);
  EXPECT_EQ(libraries.doorbells.size(), before + 3) << "a sign of life was not asked for";
}

}  // namespace
}  // namespace weft::net::verbs
