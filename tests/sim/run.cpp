// SPDX-License-Identifier: Apache-2.0
#include "run.hpp"

#include <fmt/core.h>

#include <bit>
#include <csignal>

#include "../kit/bytes.hpp"
#include "../kit/descriptors.hpp"
#include "../unit/stag_of.hpp"
#include "crew.hpp"
#include "limited.hpp"
#include "loose_task.hpp"
#include "medium.hpp"
#include "model.hpp"
#include "watched_recv.hpp"

namespace weft::sim {
namespace {

using std::chrono::microseconds;

constexpr const char* server_address = "127.0.0.1:7471";  // of a simulation
constexpr std::chrono::milliseconds patience(600'000);    // of set-ups and closes: slow is no fault
constexpr std::size_t guard_bytes = 16;                   // between two lanes' parts of a region, and behind it
constexpr std::byte guard{0xA5};
constexpr std::size_t violating_bytes = 64;  // to memory that is not the client's to write to

constexpr mr::usage for_own_operations = mr::usage::send | mr::usage::write_src | mr::usage::read_dst;

struct run;

/// One end of a connection.
struct side {
  bool is_client = false;
  std::size_t home_number = 0;
  executor* home = nullptr;  // of the connection, and of all that is done with it
  const side_options* options = nullptr;
  net::device* device = nullptr;
  net::shared_receives* shared = nullptr;
  std::optional<net::connection> peer;
  std::optional<watched_recv> receiving;  // while receive() waits; or this:
  std::optional<watched_recv_into> receiving_into;
  bool closes = false;  // in order, and has begun to
  std::vector<std::byte> own_bytes;
  std::span<std::byte> bytes;  // these, or of the memory, if that is direct
  mr::region memory;           // of these, for the other end; shorter by guard_bytes, unless it is direct
  std::vector<std::byte> scratch_bytes;
  mr::region scratch;  // of these, for borrowing, or in a file of its own
  std::vector<std::byte> landing_bytes;
  mr::region landing;  // of these, for recv_into()
  direction out;
  std::uint64_t posted = 0;     // operations begun
  std::uint64_t last_done = 0;  // the youngest of them that has succeeded
};

/// A message that recv() or recv_into() has yielded.
struct arrived_message {
  std::span<const std::byte> bytes{};
  std::optional<std::uint32_t> immediate{};
  std::optional<std::uint64_t> invalidated_key{};
  mr::buffer payload{};  // of recv(), where the bytes are
};

/// What the model knows of a lane.
struct lane_state {
  explicit lane_state(std::size_t bytes) : area(bytes) {}
  shadow area;
  word own;
  std::uint64_t contents = 0;  // patterns used
  bool proven = false;         // the area has been read at last, and nothing is on its way
  // What it has last written with success, as a message says it that comes behind it.
  std::optional<sent_message> last;
};

/// Memory that a client goes on to use when it may not.
struct overstepped {
  std::optional<mr::mapping> view{};  // another one of it, which stays
  mr::region region{};
  std::optional<net::exposure> exposed{};
  std::optional<mr::remote_region> said{};  // to the client
  std::size_t bytes = 0;
  bool is_being_written = false;
  bool is_taken_back = false;

  [[nodiscard]] mr::remote_slice word() const { return said->slice(0, 8); }
  [[nodiscard]] mr::remote_slice behind_word() const { return said->slice(8, bytes - 8); }
  [[nodiscard]] std::span<const std::byte> bytes_behind_word() const {
    return std::span<const std::byte>(*view).subspan(8, bytes - 8);
  }
};

/// What an operation sends from, or reads into: a buffer, or parts of the scratch region.
struct operand {
  std::optional<mr::buffer> own;
  std::vector<mr::slice> parts;
  std::span<std::byte> bytes;

  /// False if there is none.
  bool take(std::optional<mr::buffer> memory) {
    own = std::move(memory);
    if (own) bytes = own->bytes();
    return own.has_value();
  }
};

/// A connection, from its set-up to its end.
class meeting : private test::immovable {
 public:
  meeting(run& all, const meeting_plan& plan, std::size_t index);

  /// On the client's executor.
  task<> happen();
  /// On that of the listener.
  task<> accept(net::connection_request request);
  [[nodiscard]] executor& home() noexcept { return *client_.home; }

  [[nodiscard]] side& server() noexcept { return server_; }
  /// One of the plan's faults comes.
  void suffer(const fault& what);

 private:
  [[nodiscard]] std::size_t stride() const noexcept { return (8 + plan_.area_bytes + guard_bytes + 7) / 8 * 8; }
  [[nodiscard]] std::size_t word_of(std::size_t lane) const noexcept { return 16 + lane * stride(); }
  [[nodiscard]] std::size_t area_of(std::size_t lane) const noexcept { return word_of(lane) + 8; }
  [[nodiscard]] std::size_t scratch_of(std::size_t lane) const noexcept {
    return lane * ((plan_.area_bytes + 7) / 8 * 8);
  }
  [[nodiscard]] side& of(const lane& one) noexcept { return one.of_client ? client_ : server_; }
  [[nodiscard]] side& opposite(const side& one) noexcept { return one.is_client ? server_ : client_; }
  [[nodiscard]] bool disturbed() const;

  void look_at_what_was_sent();
  void plan_faults();
  void note_harm_of_rail(const fault& what);
  task<> settle();
  template <class... Arguments>
  void fail(fmt::format_string<Arguments...> why, Arguments&&... what) const;
  void judge(const error& why, const char* what, bool stopped, bool possible = true);
  void excuse(const error& why, const char* what, bool stopped, bool possible = true);
  void check_unknown(const error& why, std::string_view what) const;
  [[nodiscard]] bool was_stopped(const error& why, bool stopped) const noexcept;
  void check_possible(bool possible, const char* what) const;
  [[nodiscard]] bool can_lend() const;
  [[nodiscard]] bool lends_directly() const;
  [[nodiscard]] bool apart() const;
  [[nodiscard]] mr::usage open_to_peers() const;
  [[nodiscard]] static mr::remote_region words_of(const side& one);
  [[nodiscard]] net::connection_options options_of(const side& one) const;

  // What is told an end runs on the executor of that end, the rest on the client's, unless it says otherwise.
  task<> connect();
  task<> accept_here(net::connection_request request);
  task<> server_is_ready();
  task<> prepare(side& one);
  [[nodiscard]] mr::mapping new_file(std::size_t bytes, mr::file_access others = mr::file_access::read_write) const;
  task<> talk();
  task<> receive(side& at);
  task<result<std::optional<arrived_message>>> take_buffer(side& at, std::uint32_t stop_after_us);
  task<result<std::optional<arrived_message>>> take_copy(side& at, std::uint32_t stop_after_us);
  void check_message(side& at, const arrived_message& content);
  void check_what_was_left(side& at);
  [[nodiscard]] std::uint32_t home_of(const lane& one) const noexcept;
  [[nodiscard]] executor& executor_of(std::size_t index) noexcept;
  task<> play_lane(std::size_t index);
  task<> run_lane(std::size_t index);
  loose_task run_loosely(std::size_t index);
  task<> run_and_destroy(std::size_t index);
  task<> do_step(std::size_t index, const step& what);
  task<> run_step(std::size_t index, const step& what);
  [[nodiscard]] task<> begin_step(std::size_t index, const step& what);
  [[nodiscard]] bool stopped_from_afar(std::size_t index, const step& what) noexcept;
  [[nodiscard]] std::uint32_t own_stop(std::size_t index, const step& what) noexcept;

  task<> pause(side& from, std::size_t index, const step& what);
  task<> send(side& from, std::size_t index, const step& what);
  task<> write(side& from, std::size_t index, const step& what);
  task<> read(side& from, std::size_t index, const step& what);
  task<> flush(side& from, std::size_t index, const step& what);
  task<> add(side& from, std::size_t index, const step& what);
  task<> add_all(side& from, std::size_t index, const step& what);
  task<> swap(side& from, std::size_t index, const step& what);
  template <class Post, class Change>
  task<> change_word(side& from, std::size_t index, const step& what, const char* name, Post post, Change change);
  task<> batch(side& from, std::size_t index, const step& what);
  task<> list(side& from, std::size_t index, const step& what);
  task<> lend_exposure(side& from, std::size_t index, const step& what);
  task<result<net::exposure>> expose(side& lender, mr::buffer memory, mr::usage uses);
  task<result<net::exposure>> bind(side& lender, mr::slice range);
  template <class Lent>
  task<> drop(side& lender, Lent lent);
  task<> lend_window(side& from, std::size_t index, const step& what);
  task<> use_own_region(side& from, std::size_t index, const step& what);
  task<bool> revoke(side& from, std::size_t index, std::uint64_t key);
  task<bool> use_lent(side& from, std::size_t index, mr::remote_region where, std::span<const std::byte> memory);
  task<> prove(side& from, std::size_t index);

  // On the lane's executor, for an operation on that of the end.
  task<std::optional<mr::buffer>> allocate(side& from, std::size_t index, std::size_t bytes, bool stopped = false);
  task<std::optional<mr::buffer>> allocate_here(side& from, std::size_t bytes, bool stopped);
  [[nodiscard]] operand borrow(side& from, std::size_t index, const step& what);
  void take_memory_back(const operand& from, const step& what);
  std::size_t begin_message(side& from, sent_message what);
  void end_message(side& from, std::size_t id, const std::optional<error>& failure);
  [[nodiscard]] sent_message tell_of(std::size_t index, const step& what, std::uint64_t content) const;
  [[nodiscard]] auto flush_first_word(side& from) {
    return from.peer->flush(opposite(from).memory.remote().slice(0, 8));
  }
  void in_order(side& from, std::uint64_t ticket);
  template <class T>
  [[nodiscard]] bool succeeds(side& from, std::uint64_t ticket, const result<T>& how, const char* name,
                              const step& what, bool possible = true);
  template <class T>
  [[nodiscard]] bool succeeds(const result<T>& how, const char* name, bool stopped = false, bool possible = true);

  task<> end_early();
  task<> end();
  task<> close(side& one);
  task<> abort(side& one);
  task<> learn_of_restart();
  task<> violate();
  task<> overstep();
  task<bool> lend_for_overstepping(overstepped& what);
  task<> take_back(overstepped& what);
  task<> use_on(overstepped& what);
  task<bool> use_once(overstepped& what, mr::region& own, std::uint64_t round);
  task<result<void>> write_on(overstepped& what, mr::region& own, std::uint64_t content);
  task<result<void>> read_on(overstepped& what, mr::region& own, std::uint64_t content);
  task<result<void>> add_on(overstepped& what, std::uint64_t before);
  task<result<void>> flush_on(overstepped& what, std::uint64_t content);
  task<result<void>> read_zeros(overstepped& what, mr::region& own);
  task<bool> write_by_force(overstepped& what, mr::region& own);
  task<> clear(overstepped& what);
  task<> leave();
  void check_memory(side& one);

  run& all_;
  const meeting_plan& plan_;
  const std::size_t index_;
  const std::uint16_t port_;
  const std::string source_;
  const std::array<std::byte, 1> name_;  // for the server, which meets whom it is told of
  std::vector<crew::use> uses_;          // until it is over
  side client_;
  side server_;
  event server_ready_;
  bool over_ = false;
  bool ending_ = false;    // somebody ends it
  bool rough_ = false;     // and not in order, or in the middle of everything
  bool violated_ = false;  // a peer does what it may not
  bool is_late_ = false;   // likewise, but it may not know
  // Of several rails: when each is there again at the latest, after all that has been done to it; none has ever been
  // harmed before they were all there, or all of them may have been gone for longer than an end waits.
  std::array<duration, most_rails> sick_until_{};
  bool settled_ = false;
  bool harmed_ = false;
  bool mortal_ = false;
  std::vector<std::unique_ptr<lane_state>> lanes_;
  std::size_t lanes_running_ = 0;
  event lanes_over_;
  // Lent to a peer that may have used it no further than to post something: until the connection is over.
  std::vector<net::exposure> exposures_;
  std::vector<net::exposure> windows_;
  // The word that all lanes of a side add to: by whom is no matter.
  std::array<std::set<std::uint64_t>, 2> tickets_;  // what they have got, by whether it is the client's memory
  std::array<std::uint64_t, 2> possible_tickets_{};
};

/// Receives that connections of one device and one executor share.
struct shared_queue {
  crew::use held;
  net::device* device;
  executor* home;
  net::shared_receives receives;
};

struct run {
  run(const script& what, const std::function<void(const std::string&)>& on_failure, const setting& chosen)
      : plan(what),
        give_up(on_failure),
        where(chosen),
        place(what.seed, what.net),
        over(make_medium(chosen, place, what)) {
    place.give_up = on_failure;
    place.fail_call(what.failing_call);
  }

  /// None if a call fails that shall fail.
  void open_devices();
  void hire();
  task<> body();
  task<> share(net::device& device, std::size_t home);
  [[nodiscard]] net::shared_receives* shared_by(const side& one) noexcept;
  task<> serve(net::listener& from);
  task<> let_messages_go();
  /// Of what comes out of it, all others are stopped.
  task<> hold(meeting& one);

  const script& plan;
  const std::function<void(const std::string&)>& give_up;
  const setting where;
  const time_point start = clock::steady().now();
  world place;  // of a simulation
  std::unique_ptr<medium> over;
  std::string address = server_address;
  std::optional<net::device> server_device;
  std::optional<net::device> client_device;
  std::optional<crew> executors;
  std::vector<shared_queue> shared;
  channel<arrived_message> passed_on{2};  // what has been received, to be let go elsewhere
  std::vector<std::unique_ptr<meeting>> meetings;
  outcome done;
  bool falls_apart = false;  // an error has come out, so that all are being stopped

  /// Whether it may have come of something that was done to the system or to the device, and has had its effect.
  [[nodiscard]] bool excuses(const error& why) const;
  [[nodiscard]] bool simulated() const noexcept { return where.where != fabric::real; }
  [[nodiscard]] bool is_railed() const noexcept { return where.where == fabric::simulated_rails; }
  /// Where the server of this connection listens.
  [[nodiscard]] std::string address_of(std::size_t connection) const;
  [[nodiscard]] duration elapsed() const noexcept {
    return simulated() ? place.elapsed() : clock::steady().now() - start;
  }
  [[nodiscard]] net::device& client() noexcept { return client_device ? *client_device : *server_device; }
};

meeting::meeting(run& all, const meeting_plan& plan, std::size_t index)
    : all_(all),
      plan_(plan),
      index_(index),
      port_(static_cast<std::uint16_t>(first_client_port + index)),
      source_(fmt::format("127.0.0.1:{}", port_)),
      name_{static_cast<std::byte>(index)} {
  client_.is_client = true;
  client_.options = &plan.client;
  server_.options = &plan.server;
  client_.device = &all.client();
  server_.device = &*all.server_device;
  crew& executors = *all.executors;
  client_.home = &executors[plan.client_home];
  server_.home = &executors[plan.server_home];
  client_.home_number = plan.client_home;
  server_.home_number = plan.server_home;
  uses_.emplace_back(executors, plan.client_home);
  uses_.emplace_back(executors, plan.server_home);
  for (const lane& one : plan.lanes) uses_.emplace_back(executors, one.home);
  if (plan.client.share_receives) client_.shared = all.shared_by(client_);
  if (plan.server.share_receives) server_.shared = all.shared_by(server_);
  for (std::size_t i = 0; i < plan.lanes.size(); ++i) lanes_.push_back(std::make_unique<lane_state>(plan.area_bytes));
}

template <class... Arguments>
void meeting::fail(fmt::format_string<Arguments...> why, Arguments&&... what) const {
  all_.give_up(fmt::format("connection {}: {} (at {} us)", index_, fmt::format(why, std::forward<Arguments>(what)...),
                           std::chrono::duration_cast<microseconds>(all_.elapsed()).count()));
}

bool meeting::disturbed() const {
  if (all_.is_railed()) return rough_ || mortal_ || all_.place.all_disturbed();
  return rough_ || all_.place.disturbed(port_);
}

// What the medium cannot do is refused, and is not done.
void meeting::check_possible(bool possible, const char* what) const {
  if (!possible) fail("{} has succeeded, which cannot be done here", what);
}

bool meeting::can_lend() const {
  const auto kind = all_.over->can().windows;
  return kind == abilities::of_one_peer || (kind == abilities::of_all_peers && all_.plan.allow_shared_windows);
}

bool meeting::lends_directly() const { return all_.over->has_channels(); }

// Each end has died for the other one, and sees nothing any more of what that does to memory that both have mapped.
bool meeting::apart() const { return lends_directly() && all_.place.local().is_dead(port_); }

// Its word that it is open to atomic operations is no ability of the device's.
mr::remote_region meeting::words_of(const side& one) {
  const mr::remote_region said = one.memory.remote();
  return {said.places(), said.size(), said.usage() | mr::usage::atomic_dst};
}

mr::usage meeting::open_to_peers() const {
  const mr::usage uses = mr::usage::read_src | mr::usage::write_dst | mr::usage::flush_visibility;
  return all_.over->can().atomics ? uses | mr::usage::atomic_dst : uses;
}

// What an operation may say of harm that has come to its connection, its device or its system. That it was asked for
// the wrong thing, or at the wrong time, is none of it.
bool tells_of_harm(const std::error_code& code) {
  static const std::set<int> ours{static_cast<int>(errc::timed_out),        static_cast<int>(errc::no_memory),
                                  static_cast<int>(errc::closed),           static_cast<int>(errc::peer_closed),
                                  static_cast<int>(errc::peer_vanished),    static_cast<int>(errc::peer_rejected),
                                  static_cast<int>(errc::protocol_error),   static_cast<int>(errc::remote_access),
                                  static_cast<int>(errc::connection_failed)};
  static const std::set<int> of_the_system{
      // what calls fail with,
      EADDRINUSE, EBADF, EHOSTUNREACH, EINVAL, EIO, EMFILE, ENOBUFS, ENODEV, ENOMEM, ENOSYS,
      // and what their peers see
      ECONNREFUSED, ECONNRESET, ETIMEDOUT};
  return (code.category() == weft_category() ? ours : of_the_system).contains(code.value());
}

// Of that, what a single call that fails can come to where nobody ends a connection: to whoever makes it, to those who
// share the connection, and to its other end.
bool tells_of_a_failed_call(const std::error_code& code) {
  return tells_of_harm(code) && code != errc::timed_out && code != errc::closed && code != errc::peer_closed &&
         code != errc::protocol_error && code != errc::remote_access;
}

bool run::excuses(const error& why) const {
  if (falls_apart && why.code() == errc::canceled) return true;
  if (place.all_disturbed()) return tells_of_harm(why.code());
  if (place.has_failed_mapping() && why.code() == errc::no_memory) return true;
  return place.has_failed() && tells_of_a_failed_call(why.code());
}

bool meeting::was_stopped(const error& why, bool stopped) const noexcept {
  return stopped && (why.code() == errc::timed_out || why.code() == errc::canceled);
}

// An operation has failed: whether it had a reason.
void meeting::judge(const error& why, const char* what, bool stopped, bool possible) {
  ++all_.done.operations;
  ++all_.done.failures;
  if (was_stopped(why, stopped)) ++all_.done.stopped;
  excuse(why, what, stopped, possible);
}

// One that need not be in order has ended.
template <class T>
bool meeting::succeeds(const result<T>& how, const char* name, bool stopped, bool possible) {
  if (how) {
    ++all_.done.operations;
  } else {
    judge(how.error(), name, stopped, possible);
  }
  return how.has_value();
}

// It may be that of what cannot be done again: a read, and an atomic operation.
void meeting::check_unknown(const error& why, std::string_view what) const {
  // A device ends a link for an access that it refuses, and a rail ends with a call that fails.
  const bool may_lose_rails = harmed_ || violated_ || is_late_ || all_.place.has_failed();
  if (!may_lose_rails) fail("the outcome of {} is unknown, though no rail was harmed", what);
  if (!why.posted()) fail("the outcome of {} is unknown, though it was not posted", what);
  if (what.starts_with("send") || what.starts_with("write")) fail("the outcome of {} is unknown", what);
}

// The same of what is no operation of weft's, but has one in it.
void meeting::excuse(const error& why, const char* what, bool stopped, bool possible) {
  if (!possible && why.code() == errc::not_supported) {
    if (why.posted()) fail("{} was posted, and is refused", what);
    return;
  }
  all_.place.note(static_cast<std::uint64_t>(why.code().value()));
  if (was_stopped(why, stopped)) return;
  // Of an end that somebody has made without a word, an RDMA device may say no more than it would of an access that it
  // has refused.
  const bool broken = all_.over->explains_no_end() && disturbed();
  const bool damaged = broken || all_.place.damaged(port_);
  const bool blames_peer = why.code() == errc::protocol_error || why.code() == errc::remote_access;
  const bool is_refused = is_late_ && why.code() == errc::remote_access;
  if (blames_peer && !violated_ && !damaged && !is_refused) {
    return fail("{} says that the peer broke the protocol: {}", what, why.what());
  }
  if (all_.excuses(why)) return;
  if (all_.is_railed() && why.code() == errc::outcome_unknown) return check_unknown(why, what);
  if (all_.is_railed() && disturbed() && why.code() == errc::peer_restarted) return;
  const bool lacks_memory = all_.place.has_failed() || all_.place.has_failed_mapping();
  const bool is_turned_away = why.code() == errc::not_supported || why.code() == errc::peer_rejected;
  if (is_turned_away && all_.over->has_channels() && lacks_memory) return;
  // What a real kernel says, nobody can list.
  const bool is_known = all_.simulated() || why.code().category() == weft_category();
  if (is_known && !tells_of_harm(why.code())) {
    return fail("{} failed as no harm explains: {}", what, why.what());
  }
  const bool says_closed = why.code() == errc::closed || why.code() == errc::peer_closed;
  if (disturbed() || (ending_ && says_closed)) return;
  fail("{} failed, though nothing was done to the connection: {}", what, why.what());
}

net::connection_options meeting::options_of(const side& one) const {
  const side_options& chosen = *one.options;
  net::connection_options options{.receive_size = chosen.receive_size,
                                  .receive_depth = chosen.receive_depth,
                                  .send_depth = chosen.send_depth,
                                  .incoming_reads = chosen.reads,
                                  .outgoing_reads = chosen.reads,
                                  .set_up_timeout = patience,
                                  .close_timeout = patience,
                                  .resume_within = std::chrono::milliseconds(chosen.resume_within_ms),
                                  .receives = one.home->on_own_thread() ? one.shared : nullptr};
  if (one.is_client) options.private_data = name_;
  if (one.is_client && all_.simulated()) options.source = source_;
  return options;
}

// ---- set-up ----

task<> meeting::happen() {
  co_await sleep_for(microseconds(plan_.start_us));
  if (all_.simulated() && !all_.is_railed()) plan_faults();
  co_await connect();
  if (client_.peer && server_.peer) co_await talk();
  over_ = true;
  co_await leave();
  uses_.clear();
}

void meeting::plan_faults() {
  const duration start = all_.place.elapsed();
  for (const fault& one : plan_.faults) {
    all_.place.at(start + microseconds(one.after_us), [all = &all_, index = index_, port = port_, one] {
      if (index < all->meetings.size()) all->meetings[index]->suffer(one);
      all->over->inflict(port, one);
    });
  }
}

void meeting::suffer(const fault& what) { all_.is_railed() ? note_harm_of_rail(what) : look_at_what_was_sent(); }

// While one rail is well, or becomes so within the time that both ends wait, the connection goes on.
void meeting::note_harm_of_rail(const fault& what) {
  constexpr duration recovery = std::chrono::seconds(10);
  const duration now = all_.elapsed();
  const bool lasts = what.what == fault_kind::cut && what.lasts_us == 0;
  const duration outage = lasts ? duration(std::chrono::hours(1)) : duration(microseconds(what.lasts_us));
  harmed_ = true;
  duration& until = sick_until_[what.rail % all_.plan.rails.size()];
  until = std::max(until, now + outage + recovery);
  const auto end = sick_until_.begin() + static_cast<std::ptrdiff_t>(all_.plan.rails.size());
  const duration soonest = *std::min_element(sick_until_.begin(), end);
  const auto waits = std::chrono::milliseconds(std::min(plan_.client.resume_within_ms, plan_.server.resume_within_ms));
  if (!settled_ || soonest - now > waits) mortal_ = mortal_ || !settled_ || soonest > now;
}

// All rails are there, and each end has heard of the other over each of them.
task<> meeting::settle() {
  const auto is_there = [&] {
    for (std::size_t i = 0; i < all_.plan.rails.size(); ++i) {
      if (!all_.over->has_rail(index_, i)) return false;
    }
    return true;
  };
  for (int i = 0; i < 1000 && !is_there(); ++i) co_await sleep_for(std::chrono::milliseconds(5));
  if (!is_there()) co_return;
  co_await sleep_for(std::chrono::milliseconds(200) + 20 * duration(all_.plan.net.longest_delay_ns));
  settled_ = is_there();
}

task<> meeting::connect() {
  auto made = co_await limited(client_.device->connect(all_.address_of(index_), options_of(client_)), 0);
  if (succeeds(made, "connect")) client_.peer.emplace(*std::move(made));
  if (client_.peer && plan_.eager && !plan_.lanes.empty()) {
    const step first{.bytes = std::min(64U, plan_.server.receive_size)};
    co_await send(client_, 0, first);
  }
  // The server may never hear of it.
  const auto heard = co_await limited(server_ready_.wait(), 1'500'000'000);
  if (!heard && client_.peer && !disturbed() && !all_.place.has_failed()) fail("a connection has no other end");
}

// Who comes when all is over may find that the executors have ended.
task<> meeting::accept(net::connection_request request) {
  if (over_) co_return co_await accept_here(std::move(request));
  const crew::use clients(*all_.executors, plan_.client_home);
  const crew::use servers(*all_.executors, plan_.server_home);
  co_await on(*server_.home, accept_here(std::move(request)));
  co_await on(*client_.home, server_is_ready());
}

task<> meeting::server_is_ready() {
  server_ready_.set();
  co_return;
}

task<> meeting::accept_here(net::connection_request request) {
  auto made = co_await limited(request.accept(options_of(server_)), 0);
  if (!succeeds(made, "accept")) {
    rough_ = true;  // the client hears of it one way or the other
    co_return;
  }
  if (!over_) server_.peer.emplace(*std::move(made));
}

// Memory that the other end may use, and memory to borrow.
task<> meeting::prepare(side& one) {
  const std::size_t bytes = word_of(plan_.lanes.size());
  const bool is_direct = one.options->direct && lends_directly();
  std::optional<mr::mapping> file;
  if (is_direct) {
    file.emplace(new_file(bytes + guard_bytes));
    one.bytes = std::span(file->data(), bytes + guard_bytes);
  } else {
    one.own_bytes.resize(bytes + guard_bytes);
    one.bytes = one.own_bytes;
  }
  std::fill(one.bytes.begin(), one.bytes.end(), guard);
  std::fill_n(one.bytes.begin(), 8, std::byte{});
  for (std::size_t i = 0; i < plan_.lanes.size(); ++i) {
    std::fill_n(one.bytes.begin() + static_cast<std::ptrdiff_t>(word_of(i)), 8 + plan_.area_bytes, std::byte{});
  }
  mr::domain& domain = one.device->domain();
  const bool zero_based = all_.over->has_zero_based();
  const mr::registration_options for_peers{.usage = open_to_peers(), .zero_based = zero_based, .direct = is_direct};
  if (is_direct) {
    one.memory = co_await domain.register_memory(std::move(*file), for_peers);
  } else {
    one.memory = co_await domain.register_memory(one.bytes.first(bytes), for_peers);
  }
  mr::registration_options own{.usage = for_own_operations, .zero_based = zero_based};
  if (all_.over->can().windows != abilities::none) own.usage |= mr::usage::bind_window;
  const std::size_t scratch_bytes = scratch_of(plan_.lanes.size()) + violating_bytes;
  own.direct = one.options->direct_windows && lends_directly();
  if (own.direct) {
    one.scratch = co_await domain.register_memory(new_file(scratch_bytes), own);
  } else {
    one.scratch_bytes.assign(scratch_bytes, std::byte{});
    one.scratch = co_await domain.register_memory(std::span(one.scratch_bytes), own);
  }
  const mr::registration_options for_receives{.usage = mr::usage::recv};
  one.landing_bytes.assign(std::max(one.options->receive_size / 2, 1U), std::byte{});
  one.landing = co_await domain.register_memory(std::span(one.landing_bytes), for_receives);
}

mr::mapping meeting::new_file(std::size_t bytes, mr::file_access others) const {
  constexpr std::size_t page = 4096;
  return mr::mapping::in_memory_file((bytes + page - 1) / page * page, false, -1, all_.over->calls(), others);
}

task<> meeting::talk() {
  co_await prepare(client_);
  co_await on(*server_.home, prepare(server_));
  if (all_.is_railed() && plan_.settles) co_await settle();
  if (all_.is_railed()) plan_faults();
  if (plan_.dies_in_loan != 0) all_.place.local().kill_in_loan(port_, plan_.dies_in_loan);
  const auto body = [this](scope& tasks) -> task<> {
    tasks.spawn(receive(client_), "client's receiver");
    tasks.spawn(on(*server_.home, receive(server_)), "server's receiver");
    lanes_running_ = plan_.lanes.size();
    for (std::size_t i = 0; i < plan_.lanes.size(); ++i) tasks.spawn(play_lane(i), "lane");
    if (plan_.end_after_us != 0) tasks.spawn(end_early(), "early end");
    while (lanes_running_ != 0) {
      lanes_over_.reset();
      co_await lanes_over_.wait();
    }
    co_await end();
  };
  co_await with_scope(on_failure::stop_siblings, body);
}

// ---- messages ----

std::size_t meeting::begin_message(side& from, sent_message what) {
  from.out.messages.push_back(what);
  return from.out.messages.size() - 1;
}

void meeting::end_message(side& from, std::size_t id, const std::optional<error>& failure) {
  direction& out = from.out;
  sent_message& item = out.messages[id];
  if (failure) {
    item.fate = failure->posted() ? fate::maybe : fate::never;
    if (item.fate == fate::never && item.received) fail("message {} was refused, and came all the same", id);
    return;
  }
  item.fate = fate::done;
  ++out.done;
  if (!item.received && (item.passed_over || out.ended)) fail("message {} was sent, and never came", id);
  const side& peer = opposite(from);
  // The receiver gives a credit for a message when recv() has it: before its task goes on and counts it.
  const bool is_ahead =
      (peer.receiving && peer.receiving->is_served()) || (peer.receiving_into && peer.receiving_into->is_served());
  const std::size_t room = peer.options->receive_depth + (is_ahead ? 1U : 0U);
  // One that closes gives credits for what it discards as well.
  if (!peer.closes && out.done > out.received + room) {
    fail("{} messages were sent and {} received, though the peer has room for no more than {}", out.done, out.received,
         room);
  }
}

// Before one of the processes may die. Once they have, what each sends stays with itself.
void meeting::look_at_what_was_sent() {
  if (!all_.over->has_channels() || apart()) return;
  for (side* const one : {&client_, &server_}) {
    for (sent_message& item : one->out.messages) item.lies_there = item.fate == fate::done;
  }
}

// What a process had sent before it died is in the memory that it shared.
void meeting::check_what_was_left(side& at) {
  if (rough_ || ending_ || at.shared != nullptr) return;
  const direction& in = opposite(at).out;
  for (std::size_t id = in.next; id < in.messages.size(); ++id) {
    if (in.messages[id].lies_there) fail("message {} was lost with its sender", id);
  }
}

task<result<std::optional<arrived_message>>> meeting::take_buffer(side& at, std::uint32_t stop_after_us) {
  std::optional<arrived_message> taken;
  at.receiving.emplace(at.peer->recv());
  auto got = co_await limited(watched_recv::reference(*at.receiving), stop_after_us);
  at.receiving.reset();
  if (!got) co_return got.error();
  if (!*got) co_return taken;
  net::message& whole = **got;
  taken = {.bytes = whole.bytes(), .immediate = whole.immediate, .invalidated_key = whole.invalidated_key};
  taken->payload = std::move(whole.payload);
  co_return taken;
}

// Into memory of the end's own, if the message fits there.
task<result<std::optional<arrived_message>>> meeting::take_copy(side& at, std::uint32_t stop_after_us) {
  std::optional<arrived_message> taken;
  const mr::slice room = at.landing.slice();
  at.receiving_into.emplace(at.peer->recv_into(room));
  auto got = co_await limited(watched_recv_into::reference(*at.receiving_into), stop_after_us);
  at.receiving_into.reset();
  if (!got && got.error().code() == errc::message_too_large) co_return co_await take_buffer(at, stop_after_us);
  if (!got) co_return got.error();
  if (!*got) co_return taken;
  const net::receipt& said = **got;
  if (said.bytes > room.size()) fail("a message was stored beyond the end of its memory");
  taken = {.bytes = room.bytes().first(std::min(said.bytes, room.size())),
           .immediate = said.immediate,
           .invalidated_key = said.invalidated_key};
  co_return taken;
}

task<> meeting::receive(side& at) {
  direction& in = opposite(at).out;
  const side_options& how = *at.options;
  std::deque<arrived_message> kept;
  std::uint32_t stop = how.receive_stop_us;
  while (at.peer) {
    auto taking = in.received % 2 == 0 ? take_buffer(at, stop) : take_copy(at, stop);
    auto got = co_await std::move(taking);
    if (!got) {
      const bool stopped = how.receive_stop_us != 0 && got.error().code() == errc::timed_out;
      judge(got.error(), "recv", stopped);
      if (got.error().code() == errc::peer_vanished) check_what_was_left(at);
      if (!stopped) co_return;
      stop = std::min(stop * 2, 1'000'000U);
      continue;
    }
    ++all_.done.operations;
    if (!*got) {
      if (!opposite(at).closes) fail("recv() says that the peer has closed, which it has not");
      if (at.closes) co_return;  // and does not ask for what has come
      in.ended = true;
      for (std::size_t id = in.next; id < in.messages.size(); ++id) {
        if (in.messages[id].fate == fate::done) fail("message {} was lost at the end", id);
      }
      co_return;
    }
    stop = how.receive_stop_us;
    check_message(at, **got);
    if ((**got).payload) kept.push_back(**std::move(got));
    if (kept.size() > how.keep) {
      if (plan_.pass_on) co_await all_.passed_on.send(std::move(kept.front()));
      kept.pop_front();
    }
    if (how.receive_pause_us != 0) co_await sleep_for(microseconds(how.receive_pause_us));
  }
}

// Which message of its sender it is; empty if it does not say.
std::optional<std::uint32_t> id_of(const arrived_message& content) noexcept {
  if (content.immediate) return content.immediate;
  std::uint32_t id = 0;
  if (content.bytes.size() < sizeof id) return std::nullopt;
  std::memcpy(&id, content.bytes.data(), sizeof id);
  return id;
}

void meeting::check_message(side& at, const arrived_message& content) {
  side& sender = opposite(at);
  direction& in = sender.out;
  const auto said = id_of(content);
  if (!said) return fail("a message of {} bytes that nobody sent", content.bytes.size());
  const std::uint32_t id = *said;
  if (id >= in.messages.size()) return fail("a message that nobody sent: {}", id);
  if (id < in.next) return fail("message {} came twice, or out of order", id);
  for (; in.next < id; ++in.next) {
    sent_message& missed = in.messages[in.next];
    missed.passed_over = true;
    if (missed.fate == fate::done) fail("message {} was lost: {} came instead", in.next, id);
  }
  sent_message& item = in.messages[id];
  item.received = true;
  ++in.next;
  ++in.received;
  all_.place.note(id);
  if (item.fate == fate::never) fail("message {} was refused, and came all the same", id);
  if (content.bytes.size() != item.bytes) {
    fail("message {} has {} bytes instead of {}", id, content.bytes.size(), item.bytes);
  }
  if (content.invalidated_key.value_or(0) != item.invalidates) fail("message {}: a revoked key", id);
  if (content.immediate.has_value() != item.immediate) fail("message {}: immediate data", id);
  const std::size_t head = std::min<std::size_t>(item.bytes, sizeof id);
  if (!holds(content.bytes.subspan(head), id, head)) fail("message {} has other bytes", id);
  if (!item.of_write || lanes_[item.lane]->area.generation() != item.generation) return;
  const auto placed = at.bytes.subspan(area_of(item.lane) + item.offset, item.length);
  if (!holds(placed, item.content)) fail("message {} came before what it tells of", id);
}

// ---- lanes ----

// Whoever is destroyed waits for no other executor.
std::uint32_t meeting::home_of(const lane& one) const noexcept {
  if (one.destroyed_after_us == 0) return one.home;
  return one.of_client ? plan_.client_home : plan_.server_home;
}

executor& meeting::executor_of(std::size_t index) noexcept { return (*all_.executors)[home_of(plan_.lanes[index])]; }

task<> meeting::play_lane(std::size_t index) {
  auto lane = plan_.lanes[index].destroyed_after_us != 0 ? run_and_destroy(index) : run_lane(index);
  co_await on(executor_of(index), std::move(lane));
  --lanes_running_;
  lanes_over_.set();
}

task<> meeting::run_lane(std::size_t index) {
  const lane& plan = plan_.lanes[index];
  side& end = of(plan);
  for (const step& what : plan.steps) {
    if (!end.peer) break;
    co_await do_step(index, what);
  }
  if (!end.peer || ending_ || disturbed()) co_return;
  co_await on(*end.home, prove(end, index));
}

loose_task meeting::run_loosely(std::size_t index) { co_await run_lane(index); }

task<> meeting::run_and_destroy(std::size_t index) {
  {
    const loose_task body = run_loosely(index);
    body.start(*executor::current());
    auto wait = limited(sleep_for(microseconds(plan_.lanes[index].destroyed_after_us)), 0);
    static_cast<void>(co_await std::move(wait));  // or stopped, because the run has fallen apart
    while (!body.at_rest()) co_await yield();
  }
}

task<> meeting::pause(side&, std::size_t, const step& what) {
  co_await sleep_for(microseconds(all_.is_railed() ? what.offset * 7 % 40'000 : what.offset % 500));
}

// Operations that end when they are stopped, whatever they wait for.
[[nodiscard]] bool is_operation(action what) noexcept {
  return what != action::exposure && what != action::window && what != action::own_region && what != action::pause;
}

// Whether another executor than that of the connection stops it.
bool meeting::stopped_from_afar(std::size_t index, const step& what) noexcept {
  return is_operation(what.what) && &executor_of(index) != of(plan_.lanes[index]).home;
}

// What stops it on the executor of the connection.
std::uint32_t meeting::own_stop(std::size_t index, const step& what) noexcept {
  return stopped_from_afar(index, what) ? 0 : what.stop_after_us;
}

task<> meeting::do_step(std::size_t index, const step& what) {
  side& from = of(plan_.lanes[index]);
  auto call = limited(on(*from.home, run_step(index, what)), stopped_from_afar(index, what) ? what.stop_after_us : 0);
  const result<void> done = co_await std::move(call);
  if (!done) excuse(done.error(), "a step on another executor", what.stop_after_us != 0);
}

task<> meeting::run_step(std::size_t index, const step& what) {
  if (!of(plan_.lanes[index]).peer) co_return;  // gone while this was on its way to here
  co_await begin_step(index, what);
}

task<> meeting::begin_step(std::size_t index, const step& what) {
  side& from = of(plan_.lanes[index]);
  all_.place.note(static_cast<std::uint64_t>(what.what));
  static constexpr std::array<task<> (meeting::*)(side&, std::size_t, const step&), 14> in_order_of_actions{
      &meeting::send,          &meeting::write,       &meeting::write,          &meeting::read,  &meeting::flush,
      &meeting::add,           &meeting::add_all,     &meeting::swap,           &meeting::batch, &meeting::list,
      &meeting::lend_exposure, &meeting::lend_window, &meeting::use_own_region, &meeting::pause};
  return (this->*in_order_of_actions[static_cast<std::size_t>(what.what)])(from, index, what);
}

// Of the pool; nothing if there was none, or if the connection has gone meanwhile.
task<std::optional<mr::buffer>> meeting::allocate(side& from, std::size_t index, std::size_t bytes, bool stopped) {
  auto made = co_await limited(on(executor_of(index), allocate_here(from, bytes, stopped)), 0);
  if (!made) excuse(made.error(), "allocate elsewhere", stopped);
  if (!made || !from.peer) co_return std::nullopt;
  co_return *std::move(made);
}

task<std::optional<mr::buffer>> meeting::allocate_here(side& from, std::size_t bytes, bool stopped) {
  auto made = co_await limited(from.device->pool().allocate(std::max<std::size_t>(bytes, 1)), 0);
  if (!succeeds(made, "allocate", stopped) || !from.peer) co_return std::nullopt;
  made->resize(bytes);
  co_return std::move(*made);
}

// Nothing for a step that takes a buffer.
operand meeting::borrow(side& from, std::size_t index, const step& what) {
  operand found;
  if (what.memory != lending::borrowed && what.memory != lending::gathered) return found;
  if (what.stop_after_us != 0) rough_ = true;  // that aborts
  found.bytes = from.scratch.bytes().subspan(scratch_of(index), what.bytes);
  const mr::slice whole = from.scratch.slice(scratch_of(index), what.bytes);
  found.parts = {whole};
  if (what.memory == lending::borrowed || what.bytes < 4) return found;
  const std::size_t first = what.bytes / 3;
  const std::size_t second = what.bytes / 2;
  found.parts = {whole.subslice(0, first), whole.subslice(first, second - first),
                 whole.subslice(second, what.bytes - second)};
  return found;
}

// Gives `post` the memory in the way that the step says.
template <class Post>
net::transfer hand_over(operand& memory, const step& what, Post post) {
  switch (what.memory) {
    case lending::moved:
      return post(std::move(*memory.own));
    case lending::pinned:
      return post(*memory.own);
    case lending::borrowed:
      return post(memory.parts[0]);
    case lending::gathered:
      break;
  }
  return post(std::span<const mr::slice>(memory.parts));
}

// It is ours again once the operation has succeeded.
void meeting::take_memory_back(const operand& from, const step& what) {
  if (what.memory == lending::moved) return;
  if (what.memory == lending::pinned && from.own->in_use())
    fail("a buffer is in use after its operation has succeeded");
  std::fill(from.bytes.begin(), from.bytes.end(), std::byte{0xEE});
}

// Completions come in the order of posting, unless the executor has been told to resume in another one.
void meeting::in_order(side& from, std::uint64_t ticket) {
  ++all_.done.operations;
  if (all_.plan.shuffle_tasks && all_.simulated()) return;
  if (ticket < from.last_done) fail("a completion overtook that of an operation that was posted before");
  from.last_done = ticket;
}

// An operation of a step has ended.
template <class T>
bool meeting::succeeds(side& from, std::uint64_t ticket, const result<T>& how, const char* name, const step& what,
                       bool possible) {
  if (how) {
    in_order(from, ticket);
  } else {
    judge(how.error(), name, what.stop_after_us != 0, possible);
  }
  return how.has_value();
}

std::optional<error> failure_of(const result<void>& how) {
  return how ? std::nullopt : std::optional<error>(how.error());
}

// What id_of() finds, and a pattern behind it.
void sign(std::span<std::byte> bytes, std::size_t id) noexcept {
  const auto small_id = static_cast<std::uint32_t>(id);
  fill(bytes, id);
  std::memcpy(bytes.data(), &small_id, std::min(bytes.size(), sizeof small_id));
}

task<> meeting::send(side& from, std::size_t index, const step& what) {
  operand memory = borrow(from, index, what);
  if (memory.parts.empty() && !memory.take(co_await allocate(from, index, what.bytes, what.stop_after_us != 0)))
    co_return;
  lane_state& state = *lanes_[index];
  const bool follows = state.last && state.last->generation == state.area.generation();
  sent_message item = follows ? *state.last : sent_message();
  item.bytes = what.bytes;
  item.immediate = what.immediate || what.bytes < 4;
  const std::size_t id = begin_message(from, item);
  const auto small_id = static_cast<std::uint32_t>(id);
  sign(memory.bytes, id);
  net::send_options how;
  if (item.immediate) how.immediate = small_id;
  const auto post = [&](auto&& bytes) { return from.peer->send(std::forward<decltype(bytes)>(bytes), how); };
  const std::uint64_t ticket = ++from.posted;
  const result<void> done = co_await limited(hand_over(memory, what, post), own_stop(index, what));
  end_message(from, id, failure_of(done));
  if (succeeds(from, ticket, done, "send", what)) take_memory_back(memory, what);
}

// A message that says of a write that it has been placed.
sent_message meeting::tell_of(std::size_t index, const step& what, std::uint64_t content) const {
  sent_message item{.of_write = true,
                    .lane = index,
                    .offset = what.offset,
                    .content = content,
                    .length = what.bytes,
                    .generation = lanes_[index]->area.generation()};
  return item;
}

task<> meeting::write(side& from, std::size_t index, const step& what) {
  const bool tell = what.what == action::write_and_tell;
  operand memory = borrow(from, index, what);
  if (memory.parts.empty() && !memory.take(co_await allocate(from, index, what.bytes, what.stop_after_us != 0)))
    co_return;
  lane_state& state = *lanes_[index];
  const std::uint64_t content = ++state.contents * 64 + index;
  fill(memory.bytes, content);
  const auto before = state.area.begin(what.offset, content, what.bytes);
  const sent_message told = tell_of(index, what, content);
  net::write_options how;
  std::size_t id = 0;
  if (tell) {
    sent_message item = told;
    item.immediate = true;
    id = begin_message(from, item);
    how.immediate = static_cast<std::uint32_t>(id);
  }
  const auto target = opposite(from).memory.remote().slice(area_of(index) + what.offset, what.bytes);
  const auto post = [&](auto&& bytes) { return from.peer->write(std::forward<decltype(bytes)>(bytes), target, how); };
  const std::uint64_t ticket = ++from.posted;
  const result<void> done = co_await limited(hand_over(memory, what, post), own_stop(index, what));
  if (tell) end_message(from, id, failure_of(done));
  const bool possible = !tell || all_.over->can().write_immediate;
  if (!done && !done.error().posted()) state.area.revert(what.offset, before);
  if (!succeeds(from, ticket, done, "write", what, possible)) co_return;
  check_possible(possible, "a write with immediate data");
  state.area.settle(what.offset, content, what.bytes);
  state.last = told;
  take_memory_back(memory, what);
}

task<> meeting::read(side& from, std::size_t index, const step& what) {
  operand memory = borrow(from, index, what);
  if (memory.parts.empty() && !memory.take(co_await allocate(from, index, what.bytes, what.stop_after_us != 0)))
    co_return;
  std::fill(memory.bytes.begin(), memory.bytes.end(), std::byte{0xDD});
  const auto source = opposite(from).memory.remote().slice(area_of(index) + what.offset, what.bytes);
  const std::span<const mr::slice> parts = memory.parts;
  const bool whole = what.memory == lending::borrowed || parts.size() > from.peer->capabilities().max_read_parts;
  const mr::slice sink = from.scratch.slice(scratch_of(index), what.bytes);
  const auto make = [&]() -> net::transfer {
    if (memory.own) return from.peer->read(*memory.own, source);
    return whole ? from.peer->read(sink, source) : from.peer->read(parts, source);
  };
  const std::uint64_t ticket = ++from.posted;
  const result<void> done = co_await limited(make(), own_stop(index, what));
  if (!succeeds(from, ticket, done, "read", what)) co_return;
  if (!lanes_[index]->area.learn(what.offset, memory.bytes)) fail("lane {} has read what cannot be there", index);
}

task<> meeting::flush(side& from, std::size_t index, const step& what) {
  const auto where = opposite(from).memory.remote().slice(word_of(index), 8);
  const std::uint64_t ticket = ++from.posted;
  const result<void> done = co_await limited(from.peer->flush(where), own_stop(index, what));
  if (!succeeds(from, ticket, done, "flush", what)) co_return;
  const auto placed = std::span<const std::byte>(opposite(from).bytes).subspan(area_of(index), plan_.area_bytes);
  if (!apart() && !lanes_[index]->area.is(placed)) fail("lane {} has flushed, and its writes are not placed", index);
}

// Changes the lane's own word, which nobody else does.
template <class Post, class Change>
task<> meeting::change_word(side& from, std::size_t index, const step& what, const char* name, Post post,
                            Change change) {
  word& own = lanes_[index]->own;
  const auto before = own.values();
  own.may_change(change);
  const auto where = words_of(opposite(from)).slice(word_of(index), 8);
  const std::uint64_t ticket = ++from.posted;
  const result<std::uint64_t> got = co_await limited(post(*from.peer, where), own_stop(index, what));
  if (!got && !got.error().posted()) own.revert(before);
  if (!succeeds(from, ticket, got, name, what, all_.over->can().atomics)) co_return;
  if (!before.contains(*got)) fail("{} of lane {} has found {}", name, index, *got);
  own.is(change(*got));
}

task<> meeting::add(side& from, std::size_t index, const step& what) {
  const std::uint64_t amount = what.bytes + 1;
  const auto post = [=](net::connection& over, const mr::remote_slice& where) { return over.fetch_add(where, amount); };
  return change_word(from, index, what, "fetch_add", post, [=](std::uint64_t value) { return value + amount; });
}

task<> meeting::swap(side& from, std::size_t index, const step& what) {
  const std::uint64_t some = lanes_[index]->own.some();
  const std::uint64_t expected = what.immediate ? some : ~some;
  const std::uint64_t desired = what.offset;
  const auto post = [=](net::connection& over, const mr::remote_slice& where) {
    return over.compare_swap(where, expected, desired);
  };
  const auto change = [=](std::uint64_t value) { return value == expected ? desired : value; };
  return change_word(from, index, what, "compare_swap", post, change);
}

task<> meeting::add_all(side& from, std::size_t index, const step& what) {
  side& other = opposite(from);
  const std::size_t which = other.is_client ? 1 : 0;
  ++possible_tickets_[which];
  const auto where = words_of(other).slice(0, 8);
  const std::uint64_t ticket = ++from.posted;
  const auto got = co_await limited(from.peer->fetch_add(where, 1), own_stop(index, what));
  if (!got && !got.error().posted()) --possible_tickets_[which];
  if (!succeeds(from, ticket, got, "fetch_add", what, all_.over->can().atomics)) co_return;
  if (!apart() && !tickets_[which].insert(*got).second) fail("two lanes have got {} from one word", *got);
}

// Writes and sends, then reads of what was written.
task<> meeting::batch(side& from, std::size_t index, const step& what) {
  struct member {
    enum : std::uint8_t { writes, sends, reads } kind = writes;
    std::uint32_t offset = 0;
    std::uint64_t content = 0;
    std::size_t id = 0;
    std::vector<shadow::cell> before;
  };
  lane_state& state = *lanes_[index];
  const std::size_t count = what.count;
  std::vector<mr::buffer> buffers;
  while (buffers.size() < count) {
    auto one = co_await allocate(from, index, what.bytes, what.stop_after_us != 0);
    if (!one) co_return;
    buffers.push_back(std::move(*one));
  }
  std::vector<member> members(count);
  std::vector<net::transfer> operations;
  operations.reserve(count);
  const auto remote = opposite(from).memory.remote();
  for (std::size_t i = 0; i < count; ++i) {
    member& one = members[i];
    const std::span<std::byte> bytes = buffers[i].bytes();
    one.offset = static_cast<std::uint32_t>((what.offset + i * 37) % (plan_.area_bytes - what.bytes + 1));
    one.kind = 2 * i >= count + 1 ? member::reads : i % 2 == 0 ? member::writes : member::sends;
    const auto target = remote.slice(area_of(index) + one.offset, what.bytes);
    if (one.kind == member::reads) {
      operations.push_back(from.peer->read(buffers[i], target));
    } else if (one.kind == member::writes) {
      one.content = ++state.contents * 64 + index;
      fill(bytes, one.content);
      one.before = state.area.begin(one.offset, one.content, what.bytes);
      operations.push_back(from.peer->write(buffers[i], target));
    } else {
      const sent_message item{.bytes = what.bytes, .immediate = true};
      one.id = begin_message(from, item);
      const auto small_id = static_cast<std::uint32_t>(one.id);
      sign(bytes, one.id);
      operations.push_back(from.peer->send(buffers[i], {.immediate = small_id}));
    }
  }
  from.posted += count;
  const std::uint64_t ticket = from.posted;
  result<void> done;
  { done = co_await limited(from.peer->batch(operations), own_stop(index, what)); }
  const bool begun = done || done.error().posted() ||
                     std::any_of(operations.begin(), operations.end(), [](const auto& one) { return one.failure(); });
  // Each by itself, in order: what failed may lie over what succeeded.
  for (std::size_t i = count; i-- > 0;) {
    if (members[i].kind == member::writes) state.area.revert(members[i].offset, members[i].before);
  }
  for (std::size_t i = 0; i < count; ++i) {
    const member& one = members[i];
    std::optional<error> failure = operations[i].failure();
    if (!begun && !failure) failure = done.error();  // it was stopped before it began
    if (one.kind == member::sends) {
      end_message(from, one.id, failure);
    } else if (one.kind == member::writes && !failure) {
      state.area.settle(one.offset, one.content, what.bytes);
    } else if (one.kind == member::writes && failure->posted()) {
      static_cast<void>(state.area.begin(one.offset, one.content, what.bytes));
    } else if (one.kind == member::reads && !failure && !state.area.learn(one.offset, buffers[i].bytes())) {
      fail("lane {} has read what cannot be there, in a batch", index);
    }
  }
  static_cast<void>(succeeds(from, ticket, done, "batch", what));
}

task<> end_of(net::list_operation& all) { co_await all; }

// Writes that may lie over each other: the later one counts. As many of them happen as the list says, unless the
// connection ends.
task<> meeting::list(side& from, std::size_t index, const step& what) {
  struct element {
    std::uint32_t offset = 0;
    std::uint64_t content = 0;
  };
  lane_state& state = *lanes_[index];
  const std::size_t count = what.count;
  auto source = co_await allocate(from, index, count * what.bytes, what.stop_after_us != 0);
  if (!source) co_return;
  const auto remote = opposite(from).memory.remote();
  std::vector<element> elements(count);
  std::vector<net::list_part> parts;
  for (std::size_t i = 0; i < count; ++i) {
    element& one = elements[i];
    one.offset = static_cast<std::uint32_t>((what.offset + i * 37) % (plan_.area_bytes - what.bytes + 1));
    one.content = ++state.contents * 64 + index;
    fill(source->bytes().subspan(i * what.bytes, what.bytes), one.content);
    parts.push_back(
        {source->slice().subslice(i * what.bytes, what.bytes), remote.slice(area_of(index) + one.offset, what.bytes)});
  }
  std::vector<std::vector<shadow::cell>> before;
  for (const element& one : elements) before.push_back(state.area.begin(one.offset, one.content, what.bytes));
  step last = what;
  last.offset = elements.back().offset;
  const sent_message told = tell_of(index, last, elements.back().content);
  const bool tells = what.immediate && all_.over->can().write_immediate;
  net::write_options how;
  std::size_t id = 0;
  if (tells) {
    sent_message item = told;
    item.immediate = true;
    id = begin_message(from, item);
    how.immediate = static_cast<std::uint32_t>(id);
  }
  from.posted += count;
  const std::uint64_t ticket = from.posted;
  net::list_operation all = from.peer->write(parts, how);
  const result<void> done = co_await limited(end_of(all), own_stop(index, what));
  if (tells) end_message(from, id, failure_of(done));
  if (done && all.done() != count) fail("a list of {} has ended with {} done", count, all.done());
  if (!done && all.done() == count) {
    fail("a list has failed, and all {} of it are done: {}", count, done.error().what());
  }
  // A stop waits for what was posted, and counts it, unless the connection ends meanwhile.
  const bool is_exact = !done && was_stopped(done.error(), what.stop_after_us != 0) && !disturbed();
  for (std::size_t i = count; i-- > 0;) state.area.revert(elements[i].offset, before[i]);
  for (std::size_t i = 0; i < count; ++i) {
    const element& one = elements[i];
    if (i < all.done()) {
      state.area.settle(one.offset, one.content, what.bytes);
    } else if (!is_exact) {
      static_cast<void>(state.area.begin(one.offset, one.content, what.bytes));
    }
  }
  if (succeeds(from, ticket, done, "write", what)) state.last = told;
}

// ---- memory for a while ----

// When its write has succeeded, nothing keeps a region from being released.
task<> meeting::use_own_region(side& from, std::size_t index, const step& what) {
  lane_state& state = *lanes_[index];
  const std::uint64_t content = ++state.contents * 64 + index;
  std::vector<std::byte> bytes(std::max(what.bytes, 1U));
  fill(bytes, content);
  auto registering = limited(from.device->domain().register_memory(std::span(bytes), {.usage = for_own_operations}), 0);
  auto region = co_await std::move(registering);
  if (!succeeds(region, "register_memory")) co_return;
  std::optional<error> failure;
  if (from.peer) {
    const auto before = state.area.begin(what.offset, content, what.bytes);
    const auto target = opposite(from).memory.remote().slice(area_of(index) + what.offset, what.bytes);
    const std::uint64_t ticket = ++from.posted;
    const result<void> done = co_await limited(from.peer->write(region->slice(0, what.bytes), target), 0);
    failure = failure_of(done);
    if (!failure) {
      in_order(from, ticket);
      state.area.settle(what.offset, content, what.bytes);
    } else if (!failure->posted()) {
      state.area.revert(what.offset, before);
    }
  }
  const result<void> released = co_await limited(on(executor_of(index), region->release()), 0);
  const bool stopped = !released && all_.falls_apart && released.error().code() == errc::canceled;
  if (!released && !stopped) {
    fail("a region cannot be released after its write: {}", released.error().what());
  }
  ++all_.done.operations;
  if (failure) judge(*failure, "write from a region", false);
}

// ---- memory that is lent for a while ----

// Writes to what the other end has lent, and reads it back; false if the connection has gone.
task<bool> meeting::use_lent(side& from, std::size_t index, mr::remote_region where,
                             std::span<const std::byte> memory) {
  auto source = co_await allocate(from, index, memory.size());
  auto sink = co_await allocate(from, index, memory.size());
  if (!source || !sink) co_return false;
  const std::uint64_t content = 1'000'000 + ++from.posted;
  fill(source->bytes(), content);
  const result<void> written = co_await limited(from.peer->write(*source, where), 0);
  if (!succeeds(written, "write to what was lent") || !from.peer) co_return false;
  const result<void> done = co_await limited(from.peer->read(*sink, where), 0);
  if (!succeeds(done, "read of what was lent")) co_return false;
  if (!holds(sink->bytes(), content)) fail("what was lent has other bytes when it is read");
  if (!apart() && !holds(memory, content)) fail("what was lent has other bytes");
  co_return true;
}

// With a message to the one whose key it is, who may take it back only when that has come: false if it may not have.
task<bool> meeting::revoke(side& from, std::size_t index, std::uint64_t key) {
  auto memory = co_await allocate(from, index, 4);
  if (!memory) co_return false;
  const sent_message item{.bytes = 4, .invalidates = key};
  const std::size_t id = begin_message(from, item);
  sign(memory->bytes(), id);
  ++from.posted;
  auto call = limited(from.peer->send(std::move(*memory), {.invalidate = key}), 0);
  const result<void> done = co_await std::move(call);
  end_message(from, id, failure_of(done));
  const bool possible = all_.over->can().windows == abilities::of_one_peer;
  if (!succeeds(done, "send with a key to revoke", false, possible) || !from.peer) co_return false;
  const result<void> flushed = co_await limited(flush_first_word(from), 0);
  if (!succeeds(flushed, "flush")) co_return false;
  // Of direct memory it says nothing about messages.
  const auto waits = [&] { return from.peer && !ending_ && !disturbed() && !from.out.messages[id].received; };
  for (int i = 0; lends_directly() && i < 100'000 && waits(); ++i) co_await sleep_for(microseconds(10));
  co_return !lends_directly() || from.out.messages[id].received;
}

task<result<net::exposure>> meeting::expose(side& lender, mr::buffer memory, mr::usage uses) {
  if (!lender.peer) co_return error(errc::closed, "expose");
  co_return co_await limited(lender.peer->expose(std::move(memory), uses), 0);
}

task<result<net::exposure>> meeting::bind(side& lender, mr::slice range) {
  if (!lender.peer) co_return error(errc::closed, "bind");
  co_return co_await limited(lender.peer->expose(range, open_to_peers()), 0);
}

task<> nothing() { co_return; }

// Wherever its destructor is called, it takes it back.
template <class Lent>
task<> meeting::drop(side& lender, Lent lent) {
  const std::uint32_t key = test::stag_of(lent.remote());
  { const Lent dropped = std::move(lent); }
  auto arriving = on(*lender.home, nothing());  // it has been handed there, if that is another executor
  co_await std::move(arriving);
  if (all_.over->opens(lender.device->domain(), key)) fail("the key of what was dropped is open");
}

task<> meeting::lend_exposure(side& from, std::size_t index, const step& what) {
  side& lender = opposite(from);
  if (!lender.peer) co_return;
  auto memory = co_await allocate(lender, index, std::max(what.bytes, 1U));
  if (!memory || !from.peer) co_return;
  auto lent = co_await on(*lender.home, expose(lender, std::move(*memory), open_to_peers()));
  if (!succeeds(lent, "expose", false, can_lend())) co_return;
  check_possible(can_lend(), "expose");
  if (!from.peer) co_return;
  bool used = co_await use_lent(from, index, lent->remote(), lent->memory().bytes());
  if (used && from.peer && what.count % 2 != 0) used = co_await revoke(from, index, lent->remote().key());
  if (!used) {
    exposures_.push_back(*std::move(lent));
    co_return;
  }
  if (what.immediate) co_return co_await drop(lender, *std::move(lent));
  mr::buffer back = co_await on(*lender.home, lent->revoke());
  if (back.size() != std::max(what.bytes, 1U)) fail("what was exposed came back with another size");
  if (!all_.is_railed()) co_return;
  // Longer than anything may be under way over a rail that was given up.
  std::fill(back.bytes().begin(), back.bytes().end(), guard);
  co_await sleep_for(std::chrono::milliseconds(450));
  if (!test::is_all(back.bytes(), guard)) fail("what was taken back has changed");
}

task<> meeting::lend_window(side& from, std::size_t index, const step& what) {
  side& lender = opposite(from);
  if (!lender.peer || !from.peer) co_return;
  const mr::slice range = lender.scratch.slice(scratch_of(index), std::max(what.bytes, 1U));
  auto lent = co_await on(*lender.home, bind(lender, range));
  // Where there are no windows, there is no memory that is registered for some.
  const bool has_windows = all_.over->can().windows != abilities::none;
  if (!lent && !has_windows && lent.error().code() == errc::access_denied) {
    ++all_.done.operations;
    ++all_.done.failures;
    co_return;
  }
  if (!succeeds(lent, "bind", false, can_lend())) co_return;
  check_possible(can_lend(), "bind");
  if (!from.peer) co_return;
  // Once and again, so that it comes to be used directly.
  const bool is_direct = lender.options->direct_windows && lends_directly();
  bool used = true;
  for (std::uint32_t i = 0; used && i < (is_direct ? 1 + 2 * what.count : 1); ++i) {
    used = from.peer.has_value();
    if (used) used = co_await use_lent(from, index, lent->remote(), range.bytes());
  }
  if (!used) {
    windows_.push_back(*std::move(lent));
    co_return;
  }
  if (what.immediate) co_return co_await drop(lender, *std::move(lent));
  co_await on(*lender.home, lent->revoke());
}

// Reads all that the lane may have written: from then on it is known, and placed.
task<> meeting::prove(side& from, std::size_t index) {
  if (!from.peer) co_return;
  auto sink = co_await allocate(from, index, plan_.area_bytes);
  if (!sink) co_return;
  const auto source = opposite(from).memory.remote().slice(area_of(index), plan_.area_bytes);
  ++from.posted;
  const result<void> done = co_await limited(from.peer->read(*sink, source), 0);
  if (!succeeds(done, "the last read")) co_return;
  if (!lanes_[index]->area.learn(0, sink->bytes())) fail("lane {} has read what cannot be there", index);
  lanes_[index]->proven = !apart();
}

// ---- the end ----

task<> meeting::close(side& one) {
  if (!one.peer) co_return;
  ending_ = true;
  one.closes = true;
  const duration start = all_.elapsed();
  const result<void> done = co_await limited(one.peer->close(), 0);
  static_cast<void>(succeeds(done, "close"));
  if (!disturbed() && !all_.place.has_failed() && all_.elapsed() - start >= patience)
    fail("a close has waited for its deadline");
}

task<> meeting::abort(side& one) {
  rough_ = true;
  if (one.peer) one.peer->abort();
  co_return;
}

task<> meeting::end_early() {
  co_await sleep_for(microseconds(plan_.end_after_us));
  if (ending_) co_return;
  rough_ = true;
  co_await end();
}

task<> meeting::end() {
  if (std::exchange(ending_, true)) co_return;
  const auto drop = [](side& one) {
    one.closes = true;
    one.peer.reset();
  };
  const auto close_there = [this](side& one) { return on(*one.home, close(one)); };
  const auto abort_there = [this](side& one) { return on(*one.home, abort(one)); };
  if (plan_.oversteps != overstepping::none && lends_directly()) co_return co_await overstep();
  switch (plan_.how) {
    case ending::client_closes:
      co_return co_await close(client_);
    case ending::server_closes:
      co_return co_await close_there(server_);
    case ending::both_close: {
      const auto both = [this](scope& tasks) -> task<> {
        tasks.spawn(on(*server_.home, close(server_)));
        co_await close(client_);
      };
      co_return co_await with_scope(on_failure::stop_siblings, both);
    }
    case ending::client_drops:
      co_return drop(client_);
    case ending::server_drops:
      co_return drop(server_);
    case ending::client_aborts:
      co_return co_await abort_there(client_);
    case ending::server_aborts:
      co_return co_await abort_there(server_);
    case ending::server_forgets:
      co_await abort_there(server_);
      co_return co_await learn_of_restart();
    default:
      co_return co_await violate();
  }
}

// The server is there and knows nothing of the connection, which a client hears that can ask.
task<> meeting::learn_of_restart() {
  if (!client_.peer) co_return;
  const bool waits = plan_.client.resume_within_ms >= 60'000 && plan_.server.resume_within_ms != 0;
  const bool asks = settled_ && waits && all_.is_railed();
  const result<void> flushed = co_await limited(flush_first_word(client_), 0);
  if (flushed) fail("a server has answered that knows nothing of the connection");
  const bool is_own_end = flushed.error().code() == errc::closed;  // something that it had borrowed was stopped
  if (asks && !mortal_ && !is_own_end && flushed.error().code() != errc::peer_restarted) {
    fail("the peer has restarted, and the connection says: {}", flushed.error().what());
  }
}

// The client does what the server does not allow: nothing of it may be done, and the connection ends, by the client if
// it goes on.
task<> meeting::violate() {
  rough_ = true;
  violated_ = true;
  if (!client_.peer || !server_.peer) co_return;
  // Whoever waited for a second buffer with one in his hands would keep others waiting in a tight pool.
  auto lent = co_await on(*server_.home, allocate_here(server_, violating_bytes, false));
  if (!lent || !client_.peer) {
    if (client_.peer) client_.peer->abort();
    co_return;
  }
  std::fill(lent->bytes().begin(), lent->bytes().end(), guard);
  const auto forge = [](const mr::remote_slice& from, std::uint64_t size) {
    return mr::remote_region(from.key(), from.address(), size, mr::usage::write_dst);
  };
  const std::size_t size = server_.memory.size();
  std::optional<mr::remote_region> target;
  std::optional<mr::remote_slice> range;
  std::optional<crew::use> held;  // of whose memory it is
  net::exposure exposed;
  std::span<const std::byte> watched = server_.bytes.last(guard_bytes);
  bool is_late = false;  // the memory was open, and has been taken back
  if (plan_.how == ending::beyond_bounds) {
    target = forge(server_.memory.remote(), size + guard_bytes);
    range = target->slice(size, guard_bytes);
  } else {
    side* owner = &server_;
    for (const auto& other : all_.meetings) {
      const bool is_other = &*other != this && other->server().peer;
      const bool is_closed_to_us = all_.over->can().windows == abilities::of_one_peer;
      if (plan_.how == ending::foreign_key && is_other && is_closed_to_us) owner = &other->server();
    }
    const mr::usage uses = plan_.how == ending::without_right ? mr::usage::read_src : open_to_peers();
    watched = lent->bytes();
    held.emplace(*all_.executors, owner->home_number);
    auto made = co_await on(*owner->home, expose(*owner, std::move(*lent), uses));
    if (!made || !client_.peer) {
      if (client_.peer) client_.peer->abort();
      co_return;
    }
    exposed = *std::move(made);
    target = forge(exposed.remote(), violating_bytes);
    range = target->slice(0, violating_bytes);
    const bool ours = owner == &server_;
    is_late = plan_.how == ending::revoked_key || (plan_.how == ending::foreign_key && ours);
    if (is_late) lent = co_await on(*owner->home, exposed.revoke());
  }
  auto writing =
      limited(client_.peer->write(client_.scratch.slice(scratch_of(lanes_.size()), range->size()), *range), 0);
  static_cast<void>(co_await std::move(writing));
  if (client_.peer) {
    const result<void> flushed = co_await limited(flush_first_word(client_), 0);
    // Over rails a peer that comes late loses that access alone.
    if (flushed && !(is_late && all_.is_railed())) fail("the peer took an access that it does not allow");
  }
  if (!test::is_all(watched, guard)) fail("memory was written by a peer that may not");
  if (client_.peer) client_.peer->abort();
}

// The client uses memory by itself when it may not any more, or as it may not.
task<> meeting::overstep() {
  rough_ = true;
  if (!client_.peer || !server_.peer) co_return;
  overstepped what{.bytes = plan_.overstepped_bytes};
  auto lending = on(*server_.home, lend_for_overstepping(what));
  if (co_await std::move(lending) && client_.peer) {
    const auto both = [&](scope& tasks) -> task<> {
      tasks.spawn(on(*server_.home, take_back(what)));
      co_await use_on(what);
    };
    co_await with_scope(on_failure::stop_siblings, both);
    if (!test::is_all(std::span<const std::byte>(*what.view), guard))
      fail("memory was changed by a peer after it was taken back");
  }
  co_await on(*server_.home, clear(what));
  if (client_.peer) client_.peer->abort();
}

task<bool> meeting::lend_for_overstepping(overstepped& what) try {
  const bool reads_only = plan_.oversteps == overstepping::of_rights;
  const bool is_region = plan_.oversteps == overstepping::of_region;
  mr::mapping file =
      new_file(plan_.overstepped_bytes, reads_only ? mr::file_access::read_only : mr::file_access::read_write);
  what.view.emplace(mr::mapping::of_file(file.file(), file.size(), all_.over->calls(),
                                         reads_only ? mr::file_access::read_only : mr::file_access::read_write));
  const mr::usage uses = reads_only ? mr::usage::read_src : open_to_peers();
  const mr::registration_options how{.usage = is_region ? uses : mr::usage::bind_window, .direct = true};
  what.region = co_await server_.device->domain().register_memory(std::move(file), how);
  if (is_region) what.said = what.region.remote();
  if (is_region || !server_.peer) co_return server_.peer.has_value();
  what.exposed = co_await server_.peer->expose(what.region.slice(), uses);
  what.said = what.exposed->remote();
  co_return true;
} catch (const error& why) {
  excuse(why, "to lend what is to be taken back", false);
  co_return false;
}

// From then on it is the server's, and holds something else.
task<> meeting::take_back(overstepped& what) {
  co_await sleep_for(microseconds(plan_.overstepped_after_us));
  // What takes several turns is interrupted.
  constexpr std::size_t one_turn = std::size_t{256} << 10;
  for (int i = 0; what.bytes > one_turn && i < 3000 && !what.is_being_written; ++i) co_await sleep_for(microseconds(1));
  (plan_.oversteps == overstepping::of_rights ? violated_ : is_late_) = true;
  if (plan_.oversteps == overstepping::of_region) {
    co_await what.region.release();
  } else if (plan_.oversteps == overstepping::of_window) {
    static_cast<void>(co_await what.exposed->revoke());
    what.exposed.reset();
  }
  const std::span<std::byte> all = what.region ? what.region.bytes() : std::span<std::byte>(*what.view);
  std::fill(all.begin(), all.end(), guard);
  what.is_taken_back = true;
}

// Until it is refused. What it writes by right comes before that.
task<> meeting::use_on(overstepped& what) {
  constexpr std::uint64_t most_rounds = 40;  // without a pause
  std::vector<std::byte> bytes(plan_.overstepped_bytes);
  auto registering =
      limited(client_.device->domain().register_memory(std::span(bytes), {.usage = for_own_operations}), 0);
  auto own = co_await std::move(registering);
  if (!succeeds(own, "register_memory")) {
    if (client_.peer) client_.peer->abort();
    co_return;
  }
  std::uint64_t round = 0;
  while (client_.peer) {
    const bool used = co_await use_once(what, *own, round);
    if (!used) break;
    ++round;
    co_await sleep_for(round < most_rounds ? duration{} : std::chrono::duration_cast<duration>(microseconds(500)));
  }
  co_await own->release();
}

// In turn; false once the connection has ended for it.
task<bool> meeting::use_once(overstepped& what, mr::region& own, std::uint64_t round) {
  const bool reads_only = plan_.oversteps == overstepping::of_rights;
  if (reads_only && what.is_taken_back) co_return co_await write_by_force(what, own);
  const std::uint64_t content = 2'000'000 + round / 4;
  auto call = reads_only       ? read_zeros(what, own)
              : round % 4 == 0 ? write_on(what, own, content)
              : round % 4 == 1 ? read_on(what, own, content)
              : round % 4 == 2 ? add_on(what, round / 4)
                               : flush_on(what, content);
  const result<void> how = co_await std::move(call);
  co_return succeeds(how, "the use of what is taken back");
}

task<result<void>> meeting::write_on(overstepped& what, mr::region& own, std::uint64_t content) {
  fill(own.bytes().subspan(8), content);
  auto call = limited(client_.peer->write(own.slice(8, own.size() - 8), what.behind_word()), 0);
  what.is_being_written = true;
  const result<void> how = co_await std::move(call);
  what.is_being_written = false;
  co_return how;
}

task<result<void>> meeting::read_on(overstepped& what, mr::region& own, std::uint64_t content) {
  const std::span<std::byte> bytes = own.bytes().subspan(8);
  std::fill(bytes.begin(), bytes.end(), std::byte{0xDD});
  const result<void> how = co_await limited(client_.peer->read(own.slice(8, bytes.size()), what.behind_word()), 0);
  if (how && !holds(bytes, content)) fail("what is about to be taken back has other bytes when it is read");
  co_return how;
}

task<result<void>> meeting::add_on(overstepped& what, std::uint64_t before) {
  const auto got = co_await limited(client_.peer->fetch_add(what.word(), 1), 0);
  if (!got) co_return got.error();
  if (*got != before) fail("fetch_add has found {} instead of {}", *got, before);
  co_return result<void>();
}

task<result<void>> meeting::flush_on(overstepped& what, std::uint64_t content) {
  const result<void> how = co_await limited(client_.peer->flush(what.behind_word()), 0);
  const bool can_look = how && !what.is_taken_back && !apart();
  if (can_look && !holds(what.bytes_behind_word(), content)) fail("what was flushed is not placed");
  co_return how;
}

task<result<void>> meeting::read_zeros(overstepped& what, mr::region& own) {
  const std::span<std::byte> bytes = own.bytes().subspan(8);
  const result<void> how = co_await limited(client_.peer->read(own.slice(8, bytes.size()), what.behind_word()), 0);
  if (how && !test::is_zero(bytes) && !what.is_taken_back) fail("what nobody has written has changed");
  co_return how;
}

// Of what it may only read.
task<bool> meeting::write_by_force(overstepped& what, mr::region& own) {
  const mr::remote_region forged(what.said->key(), what.said->address(), what.said->size(), mr::usage::write_dst);
  static_cast<void>(co_await limited(client_.peer->write(own.slice(0, 8), forged.slice(0, 8)), 0));
  if (!client_.peer) co_return false;
  auto flushing = limited(flush_first_word(client_), 0);
  if (co_await std::move(flushing)) fail("the peer took a write of what may only be read");
  co_return false;
}

task<> meeting::clear(overstepped& what) {
  if (what.exposed) static_cast<void>(co_await what.exposed->revoke());
  if (what.region) co_await what.region.release();
}

void meeting::check_memory(side& one) {
  const auto is_guard = [](std::span<const std::byte> bytes) { return test::is_all(bytes, guard); };
  const std::span<const std::byte> bytes = one.bytes;
  bool intact = is_guard(bytes.last(guard_bytes)) && is_guard(bytes.subspan(8, 8));
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    const std::size_t end = area_of(i) + plan_.area_bytes;
    intact = intact && is_guard(bytes.subspan(end, word_of(i + 1) - end));
    if (!lanes_[i]->proven || &of(plan_.lanes[i]) == &one) continue;
    if (!lanes_[i]->area.is(bytes.subspan(area_of(i), plan_.area_bytes))) {
      fail("what lane {} has written has changed", i);
    }
  }
  if (!intact) fail("bytes were written that nobody has written to");
  std::uint64_t total = 0;
  std::memcpy(&total, bytes.data(), sizeof total);
  const std::size_t which = one.is_client ? 1 : 0;
  if (total < tickets_[which].size() || total > possible_tickets_[which]) {
    fail("{} additions have succeeded, {} may have, and the word says {}", tickets_[which].size(),
         possible_tickets_[which], total);
  }
}

task<> meeting::leave() {
  co_await close(client_);
  co_await on(*server_.home, close(server_));
  client_.peer.reset();
  server_.peer.reset();
  // What was dropped closes in the background. On real devices the other end has waited for that.
  if (all_.simulated()) co_await sleep_for(patience + patience / 4);
  exposures_.clear();
  windows_.clear();
  auto arriving = on(*server_.home, nothing());  // what was handed to it before has been dealt with then
  co_await std::move(arriving);
  for (side* const one : {&client_, &server_}) {
    if (one->memory) {
      check_memory(*one);
      co_await one->memory.release();
    }
    if (one->scratch) co_await one->scratch.release();
  }
}

// ---- all of it ----

std::optional<std::size_t> index_of(std::span<const std::byte> name, std::size_t count) noexcept {
  if (name.size() != 1 || std::to_integer<std::size_t>(name[0]) >= count) return std::nullopt;
  return std::to_integer<std::size_t>(name[0]);
}

task<> run::share(net::device& device, std::size_t home) {
  executor& there = (*executors)[home];
  const auto same = [&](const shared_queue& one) { return one.device == &device && one.home == &there; };
  if (std::any_of(shared.begin(), shared.end(), same)) co_return;
  const net::shared_receive_options together{.receive_size = 16'384, .depth = plan.shared_depth};
  // Where an arena cannot be had, they wait for what others give back.
  const std::uint32_t stop_after_us = plan.failing_call != 0 ? 1'000'000 : 0;
  auto made = co_await limited(on(there, device.share_receives(together)), stop_after_us);
  if (!over->can().shared_receives) {
    const bool refused = !made && (made.error().code() == errc::not_supported || excuses(made.error()));
    if (!refused) give_up("receives are shared, or fail to be, where nobody can");
    co_return;
  }
  shared.push_back(
      {.held = crew::use(*executors, home), .device = &device, .home = &there, .receives = std::move(made).value()});
}

net::shared_receives* run::shared_by(const side& one) noexcept {
  const auto found = std::find_if(shared.begin(), shared.end(), [&](const shared_queue& item) {
    return item.device == one.device && item.home == one.home;
  });
  return found != shared.end() ? &found->receives : nullptr;
}

task<> run::serve(net::listener& from) {
  const auto accept_all = [&](scope& tasks) -> task<> {
    for (;;) {
      auto next = co_await limited(from.next(), 0);
      if (!next && !excuses(next.error())) give_up(fmt::format("nobody listens any more: {}", next.error().what()));
      if (!next || !*next) break;
      std::optional<net::connection_request> request = *std::move(next);
      const auto index = index_of(request->private_data(), meetings.size());
      if (!index) {
        give_up("a peer that nobody has sent");
        continue;
      }
      tasks.spawn(meetings[*index]->accept(std::move(*request)), "accept");
    }
  };
  co_await with_scope(on_failure::stop_siblings, accept_all);
}

task<> run::hold(meeting& one) {
  try {
    co_await one.happen();
  } catch (...) {
    falls_apart = true;
    throw;
  }
}

std::string run::address_of(std::size_t connection) const {
  if (!is_railed()) return address;
  std::string all;
  for (std::size_t i = 0; i < plan.rails.size(); ++i) {
    all += fmt::format("{}127.0.0.1:{}", i == 0 ? "" : "+", cable_of(connection, i));
  }
  return all;
}

task<> run::let_messages_go() {
  for (;;) {
    const auto next = co_await passed_on.receive();
    if (!next) co_return;
    const auto id = id_of(*next);
    const std::size_t head = std::min(next->bytes.size(), sizeof(std::uint32_t));
    if (!id || !holds(next->bytes.subspan(head), *id, head)) give_up("a message has other bytes where it was handed");
  }
}

task<> run::body() {
  for (const meeting_plan& one : plan.meetings) {
    if (one.server.share_receives) co_await share(*server_device, one.server_home);
    if (one.client.share_receives) co_await share(client(), one.client_home);
  }
  for (std::size_t i = 0; i < plan.meetings.size(); ++i) {
    meetings.push_back(std::make_unique<meeting>(*this, plan.meetings[i], i));
  }
  place.fail_mappings(plan.failing_mappings);
  place.fail_accepts(plan.failing_accepts);
  if (plan.removal_us != 0) place.at(microseconds(plan.removal_us), [this] { over->remove(); });
  const net::listener_options options{.set_up_timeout = patience};
  const std::string where_to_listen = simulated() ? server_address : where.address + ":0";
  const crew::use held(*executors, plan.listener_home);
  executor& listens = (*executors)[plan.listener_home];
  const crew::use also_held(*executors, plan.listener_home + 1);
  executor& lets_go = (*executors)[plan.listener_home + 1];
  std::vector<net::listener> listeners;
  for (std::size_t i = 0; i < (is_railed() ? meetings.size() : 1); ++i) {
    const std::string where_it_listens = is_railed() ? address_of(i) : where_to_listen;
    listeners.push_back(co_await on(listens, server_device->listen(where_it_listens, options)));
  }
  if (!is_railed()) address = listeners.front().address();
  const auto meet = [&](scope& tasks) -> task<> {
    for (const auto& one : meetings) tasks.spawn(on(one->home(), hold(*one)), "meeting");
    co_return;
  };
  const auto everything = [&](scope& tasks) -> task<> {
    for (net::listener& each : listeners) tasks.spawn(on(listens, serve(each)), "server");
    tasks.spawn(on(lets_go, let_messages_go()), "who lets messages go");
    co_await with_scope(on_failure::stop_siblings, meet);
    for (net::listener& each : listeners) each.close();
    passed_on.close();
  };
  co_await with_scope(on_failure::stop_siblings, everything);
  shared.clear();
}

std::string left_in(net::device& device, const medium& over) {
  const mr::pool_statistics pool = device.pool().statistics();
  std::string found;
  for (const auto* const share : {&pool.send, &pool.receive}) {
    if (share->in_use_bytes != 0) found += fmt::format("{} bytes of the pool are in use; ", share->in_use_bytes);
    if (share->waiting != 0) found += fmt::format("{} allocations wait; ", share->waiting);
  }
  return found + over.left_at(device.domain());
}

// The largest buffer that a script asks for.
std::size_t largest_buffer(const script& what) {
  std::size_t largest = 16'384;
  for (const meeting_plan& one : what.meetings) {
    largest = std::max<std::size_t>(largest, one.area_bytes);
    for (const lane& each : one.lanes) {
      for (const step& item : each.steps) {
        if (item.what == action::list) largest = std::max(largest, std::size_t{item.count} * item.bytes);
      }
    }
  }
  return largest;
}

net::device open_device(const script& what, medium& over) {
  net::device_options options{
      .pool = {.arena_bytes = what.arena_bytes, .huge_pages = false, .system_calls = &over.calls()}};
  if (what.tight_pool) {
    const std::size_t sends = (largest_buffer(what) * 5 / 4 / 16'384 + 2) * 16'384;
    options.pool.max_bytes = std::size_t{16} << 20;
    options.pool.receive_fraction = 1.0 - static_cast<double>(sends) / static_cast<double>(options.pool.max_bytes);
  }
  options.iwarp = {.checksum = what.checksum, .place_unchecked = what.place_unchecked};
  // The least that there is, where a network would take little.
  options.shm.ring_bytes = std::clamp<std::size_t>(std::bit_ceil(what.net.socket_bytes), 16'384, 1U << 20);
  options.verbs = {.allow_shared_windows = what.allow_shared_windows};
  return net::device::open(over.open(options), options);
}

void run::open_devices() {
  try {
    server_device.emplace(open_device(plan, *over));
    if (!plan.one_device) client_device.emplace(open_device(plan, *over));
  } catch (const error& why) {
    server_device.reset();
    if (!excuses(why)) give_up(fmt::format("a device cannot be opened: {}", why.what()));
  }
}

void run::hire() {
  const executor_options real{.dump_on_signal = SIGUSR1};
  executors.emplace(place, simulated() ? place.options(plan.shuffle_tasks) : real);
  if (!simulated()) return;
  while (executors->size() < plan.executors) executors->hire(plan.shuffle_tasks);
}

}  // namespace

outcome play(const script& what, const std::function<void(const std::string& why)>& give_up, const setting& where) {
  const std::size_t descriptors = test::open_descriptors();
  run all(what, give_up, where);
  all.open_devices();
  if (all.server_device) {
    all.hire();
    try {
      all.executors->run(all.body());
    } catch (const error& why) {
      if (!all.excuses(why)) give_up(fmt::format("an error has come out: {}", why.what()));
    } catch (const std::exception& why) {
      give_up(fmt::format("an exception has come out: {}", why.what()));
    }
    {
      // Time goes on while their connections end, and a fault finds none of them any more.
      const auto past = std::exchange(all.meetings, {});
    }
    all.shared.clear();
    all.executors->dismiss();
    std::string left = left_in(*all.server_device, *all.over);
    if (all.client_device) left += left_in(*all.client_device, *all.over);
    if (!left.empty()) give_up("something is left: " + left);
  }
  all.executors.reset();
  all.server_device.reset();
  all.client_device.reset();
  if (const std::string left = all.over->leaks(); !left.empty()) give_up("something is left: " + left);
  if (const std::size_t now = test::open_descriptors(); now != descriptors && !all.over->keeps_descriptors()) {
    give_up(fmt::format("{} descriptors are open, {} were before", now, descriptors));
  }
  all.done.trace = all.place.trace();
  all.done.events = all.place.events();
  all.done.calls = all.place.calls();
  all.done.faults = all.place.faults();
  all.done.time = all.elapsed();
  return all.done;
}

}  // namespace weft::sim
