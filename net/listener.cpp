// SPDX-License-Identifier: Apache-2.0
#include <weft/net/connection/connection_core.hpp>
#include <weft/net/connection/device_state.hpp>
#include <weft/net/connection/set_up.hpp>
#include <weft/net/link/connection_places.hpp>
#include <weft/net/link/peer_words.hpp>
#include <weft/net/link/receive_memory.hpp>
#include <weft/net/listener.hpp>
#include <weft/runtime/core/background.hpp>
#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/core/stop_shield.hpp>
#include <weft/runtime/report.hpp>
#include <weft/runtime/sleep.hpp>
#include <weft/runtime/stop_token.hpp>
#include <weft/runtime/sync/event.hpp>
#include <weft/runtime/when_any.hpp>

#include <fmt/core.h>

#include <atomic>
#include <deque>
#include <exception>
#include <string>
#include <utility>
#include <vector>

namespace weft::net {

connection_request::connection_request(std::shared_ptr<device_state> device, std::unique_ptr<link_request> request,
                                       std::unique_ptr<connection_place> place) noexcept
    : device_(std::move(device)), place_(std::move(place)), request_(std::move(request)) {}

connection_request::connection_request(connection_request&&) noexcept = default;
connection_request& connection_request::operator=(connection_request&&) noexcept = default;
connection_request::~connection_request() = default;

std::string_view connection_request::peer() const noexcept { return request_ ? request_->peer() : std::string_view(); }

std::span<const std::byte> connection_request::private_data() const noexcept {
  if (request_ == nullptr) return {};
  return greeting::user_data(request_->private_data());
}

namespace {

void check_unanswered(const std::unique_ptr<link_request>& request) {
  if (request == nullptr) throw error(errc::invalid_argument, "this connection request was answered before");
}

// Room for fewer connections is worth a warning, because a program that accepts one peer is likely to accept more.
constexpr std::size_t few_connections = 8;

// Names the limit that makes the pool too small. A pool with less than its max_bytes is limited by locked memory.
const char* limit_to_raise(const mr::pool& pool) {
  return pool.statistics().max_bytes_reason.empty() ? "device_options::pool.max_bytes"
                                                    : "the locked-memory limit (ulimit -l)";
}

void warn_of_little_room(device_state& device, const connection_options& options) {
  const std::size_t bytes = receive_bytes(options);
  const std::size_t room = device.pool().max_buffers(bytes, mr::budget::receive) / receives_of(device, options);
  if (room >= few_connections || !device.may_warn_of_little_room()) return;
  const std::string text = fmt::format(
      "the pool of {} has room for {} connections at a time that are accepted with receive_size {} and receive_depth "
      "{}: "
      "each takes {} buffers of {} bytes, of the {} bytes for receives; raise {}, lower those, or share receives "
      "(device::share_receives())",
      device.name(), room, options.receive_size, options.receive_depth, receives_of(device, options), bytes,
      device.pool().max_buffer_bytes(mr::budget::receive), limit_to_raise(device.pool()));
  send_report({.kind = report_kind::warning, .text = text});
}

// Whether `why` means that the pool has too little for the receives that were asked for, now or ever.
bool tells_of_a_full_pool(const error& why, device_state& device, const connection_options& options) {
  if (why.code() == errc::timed_out) return true;
  const std::size_t most = device.pool().max_buffers(receive_bytes(options), mr::budget::receive);
  return why.code() == errc::no_memory && receives_of(device, options) > most;
}

task<> turn_away(link_request& request, std::string_view words) {
  try {
    co_await request.reject(std::as_bytes(std::span(words)));
  } catch (const error&) {  // then the peer sees only the end of the connection
  }
}

// Ends a set-up that waits for its peer, or sleeps until one may be ended. False if none waits, and it is no use to try
// again.
task<bool> make_room(std::shared_ptr<connection_places> places) {
  const time_point now = executor_core::current()->now();
  const auto due = places->evict(now);
  if (due && *due > now) co_await sleep_until(*due);
  co_return due.has_value();
}

// Whether a task waits for memory that the pool gets only when somebody gives it back. While an arena is being made, or
// freed to make room for another, the pool will look again by itself.
bool waits_for_others(const mr::budget_statistics& pool) noexcept {
  return pool.waiting != 0 && pool.pending_bytes == 0;
}

// Ends set-ups that wait for their peers, one at a time, while a task waits for receives and the pool is full.
task<> keep_making_room(const mr::pool& pool, std::shared_ptr<connection_places> places) {
  for (;;) {
    co_await sleep_for(connection_places::shortest_wait);
    if (waits_for_others(pool.statistics().receive)) places->evict(executor_core::current()->now());
  }
}

// Reserves the connection's part of the pool. If too many peers already wait for the pool, ends set-ups that wait for
// their peers; yields an error if that does not help until `patience`. A size that the pool can never provide is not
// reserved, and the pool itself refuses it later.
task<std::optional<error>> too_many_wait(connection_place& place, device_state& device,
                                         const connection_options& options, time_point patience) {
  const std::size_t most = device.pool().max_buffers(receive_bytes(options), mr::budget::receive);
  const std::size_t wanted = receives_of(device, options);
  if (wanted > most) co_return std::nullopt;
  const std::uint64_t parts = wanted * connection_places::whole_pool / most;
  bool taken = place.take_receives(parts);
  while (!taken && executor_core::current()->now() < patience) {
    const bool has_room = co_await make_room(place.all());
    if (!has_room) break;
    taken = place.take_receives(parts);
  }
  if (taken) co_return std::nullopt;
  co_return error(  // NOLINT(bugprone-throw-keyword-missing): it is the result
      errc::no_memory,
      fmt::format(
          "the pool has receives for {} such connections at a time, and as many already wait for receives: raise "
          "device_options::pool.max_bytes, or set listener_options::max_connections",
          most / wanted));
}

// Allocates a peer's receives from the pool. While the pool is full, frees receives by ending set-ups that wait for
// their peers.
task<receive_memory> find_receives_of_pool(device_state& device, const connection_options& options,
                                           std::shared_ptr<connection_places> places, time_point patience) {
  auto first =
      co_await when_any(find_receives(device, options, nullptr, patience), keep_making_room(device.pool(), places));
  co_return std::get<0>(std::move(first.values)).value();
}

// Sets the link up. Throws errc::timed_out if its place is given to another peer meanwhile.
task<std::unique_ptr<link>> make_link(link_request& request, const set_up_options& options, connection_place& place) {
  weft::detail::promise_base& promise = co_await weft::detail::current_promise();
  // Reports a stop that came while the task waited for receives, and not the error of a peer that may have gone for the
  // same reason.
  if (promise.get_stop_token().stop_requested()) throw error(errc::canceled, "wait for the peer");
  waiting_set_up waiting(place, request.origin, promise.get_stop_token());
  promise.set_stop_token(waiting.token());
  std::unique_ptr<link> made;
  try {
    made = co_await request.accept(options);
  } catch (const error&) {
    if (!waiting.ends_without_place()) throw;
  }
  if (!waiting.ends_without_place()) co_return made;
  throw error(errc::timed_out,
              fmt::format("the peer did not go on with the set-up for {} ms, and others waited for its place",
                          connection_places::shortest_wait.count()));
}

task<std::unique_ptr<connection_core>> accept_core(std::shared_ptr<device_state> device,
                                                   std::unique_ptr<link_request> request,
                                                   std::unique_ptr<connection_place> place, connection_options options,
                                                   std::shared_ptr<shared_receive_group> group = nullptr) {
  check_unanswered(request);
  const std::string context = fmt::format("accept {} over {}", request->peer(), device->fabric(request->fabric).name());
  set_up_statistics& counts = device->set_ups();
  const set_up_statistics::present counted(counts.in_progress);
  try {
    if (group == nullptr) group = find_shared_receives(options, *device);
    auto shared = group != nullptr ? group->on(request->fabric) : nullptr;
    if (shared != nullptr) options.receive_size = shared->options().receive_size;
    const std::size_t fabric = request->fabric;
    const transport& way = device->fabric(fabric);
    const greeting_frame hello(options, way.features_of(options.resume_within), way.landing(), way.listens_first(),
                               way.domain().fabric());
    set_up_options set_up = make_set_up(*device, options, hello, shared);
    const auto said = request->private_data();
    if (options.profile == profile::native) {
      if (const auto theirs = greeting::other_versions(said)) {
        co_await turn_away(*request, no_common_version);
        throw other_versions(*theirs);
      }
    }
    // A peer that is not weft is sent the user's bytes alone.
    if (!greeting::unpack(said)) set_up.private_data = hello.user_data();
    std::vector<std::byte> peer_data(said.begin(), said.end());
    if (shared == nullptr) warn_of_little_room(*device, options);
    // A peer with the same timeout gives up when that has passed, or half of it if there is another fabric to try. A
    // shorter wait leaves time to tell the peer.
    const time_point patience = later(executor_core::current()->now(), options.set_up_timeout / 4);
    receive_memory receives;
    std::optional<error> full;
    if (shared == nullptr) full = co_await too_many_wait(*place, *device, options, patience);
    try {
      if (shared != nullptr) {
        receives = co_await find_receives(*device, options, std::move(shared), patience);
      } else if (!full) {
        receives = co_await find_receives_of_pool(*device, options, place->all(), patience);
      }
    } catch (const error& why) {
      if (!tells_of_a_full_pool(why, *device, options)) throw;
      full = why;
    }
    if (full) {
      co_await turn_away(*request, no_receives_left);
      throw *full;
    }
    set_up.first_receives = receives.own;
    set_up.pool = &device->pool();
    auto established = co_await make_link(*request, set_up, *place);
    new_link ready(std::move(established), std::move(peer_data));
    ready.fabric = fabric;
    auto core = std::make_unique<connection_core>(device, std::move(ready), std::move(receives), options);
    core->keep_place(std::move(place));
    co_return core;
  } catch (const error& why) {
    set_up_statistics::count(counts.accepts_failed);
    throw why.within(context);
  } catch (...) {
    set_up_statistics::count(counts.accepts_failed);
    throw;
  }
}

task<> reject_request(std::shared_ptr<device_state> device, std::unique_ptr<link_request> request,
                      std::vector<std::byte> private_data) {
  check_unanswered(request);
  const std::string context = fmt::format("reject {} over {}", request->peer(), device->fabric(request->fabric).name());
  try {
    const std::size_t room = greeting::unpack(request->private_data()) ? max_private_data : max_interop_private_data;
    if (private_data.size() > room) {
      throw error(errc::invalid_argument,
                  fmt::format("{} bytes of private data: there is room for {}", private_data.size(), room));
    }
    co_await request->reject(private_data);
  } catch (const error& why) {
    throw why.within(context);
  }
}

}  // namespace

task<connection> connection_request::accept(connection_options options) {
  // Moves the request into the task, because this object may be gone by the time the task begins.
  return make_connection(accept_core(device_, request_.take(), std::move(place_), options));
}

task<connection> connection_request::make_connection(task<std::unique_ptr<connection_core>> core) {
  auto ready = co_await std::move(core);
  co_return connection(std::move(ready));
}

task<> connection_request::reject(std::span<const std::byte> private_data) {
  std::vector<std::byte> copy(private_data.begin(), private_data.end());
  place_.reset();
  return reject_request(device_, request_.take(), std::move(copy));
}

// ---- listener::accept() ----

/// State that listener::accept() shares with the set-ups that it has begun, on the listener's executor.
///
/// While calls wait, a background task takes the next request (take_peer()), and then sets its connection up; meanwhile
/// another background task takes the request after that. When the last call leaves, the task that waits for a request
/// is stopped, and those that set connections up go on until close().
struct listener::set_ups : std::enable_shared_from_this<set_ups> {
  set_ups(std::shared_ptr<device_state> way, std::shared_ptr<link_listener> from,
          std::shared_ptr<connection_places> all_places, std::size_t at_once)
      : device(std::move(way)), source(std::move(from)), places(std::move(all_places)), max_in_progress(at_once) {}

  /// Counts a waiting call of accept(); the last one to leave stops the wait for a request.
  class caller {
   public:
    explicit caller(set_ups& all) noexcept : all_(all) { ++all.callers; }
    caller(const caller&) = delete;
    caller& operator=(const caller&) = delete;
    ~caller() {
      if (--all_.callers == 0 && all_.nobody_waits) all_.nobody_waits->request_stop();
    }

   private:
    set_ups& all_;
  };

  void take_next(const std::shared_ptr<const set_up_choice>& how) {
    if (taking) return;
    nobody_waits.emplace();
    run_in_background(home, take_peer(shared_from_this(), how), "listener::accept");
    taking = true;
  }

  // Aborts the connections that nobody has taken, so that their peers learn that they were not served: an orderly close
  // would not tell them.
  void close() noexcept {
    if (!home.belongs_to_this_thread()) return home.post([self = shared_from_this()] { self->close(); });
    if (closed.exchange(true)) return;
    ended.request_stop();
    for (connection& each : ready) each.abort();
    ready.clear();
    changed.set();
    open.reset();
  }

  executor_core& home = *executor_core::current();
  std::optional<executor_core::dependent> open{std::in_place, home};
  std::shared_ptr<device_state> device;
  std::shared_ptr<link_listener> source;
  std::shared_ptr<connection_places> places;
  std::size_t max_in_progress;
  std::deque<connection> ready;
  std::exception_ptr failure;  // the error of the listener, which one of the callers rethrows
  event changed;
  stop_source ended;                        // stops the set-ups
  std::optional<stop_source> nobody_waits;  // stops the wait for a request
  std::size_t callers = 0;
  std::size_t in_progress = 0;      // number of set-ups that are going on
  bool taking = false;              // a task waits for a request, and then for room
  std::atomic<bool> closed{false};  // once it is true, `home` may be gone
};

/// The options of a call of accept(), with copies of what they refer to: a set-up may begin after the call has ended.
class listener::set_up_choice {
 public:
  set_up_choice(const connection_options& options, const device_state& device)
      : options_(options),
        private_data_(options.private_data.begin(), options.private_data.end()),
        shared_(find_shared_receives(options, device)) {
    options_.private_data = private_data_;
    options_.receives = nullptr;
    options_.source = {};
  }
  set_up_choice(const set_up_choice&) = delete;
  set_up_choice& operator=(const set_up_choice&) = delete;

  /// Throws the error with which every set-up would fail, if there is such an error.
  void check(device_state& device) const {
    check_sizes(options_);
    const transport& way = device.fabric(0);
    static_cast<void>(
        greeting_frame(options_, way.features_of(options_.resume_within), way.landing(), way.listens_first()));
    if (shared_ == nullptr) {
      check_receive_memory(device.pool(), receives_of(device, options_), receive_bytes(options_));
    }
  }
  [[nodiscard]] const connection_options& options() const noexcept { return options_; }
  [[nodiscard]] const std::shared_ptr<shared_receive_group>& shared() const noexcept { return shared_; }

 private:
  connection_options options_;
  std::vector<std::byte> private_data_;
  std::shared_ptr<shared_receive_group> shared_;
};

task<std::optional<connection>> listener::accept(connection_options options) {
  return next_connection(set_ups_, options);
}

task<std::optional<connection>> listener::next_connection(std::shared_ptr<set_ups> all, connection_options options) {
  if (all == nullptr) throw error(errc::closed, "accept a peer at a listener that was moved from");
  if (!all->home.on_own_thread())
    throw error(errc::wrong_thread, "call a listener on the executor on which it was made");
  std::shared_ptr<const set_up_choice> how;
  try {
    how = std::make_shared<const set_up_choice>(options, *all->device);
    how->check(*all->device);
  } catch (const error& why) {
    throw why.within(fmt::format("accept at {} over {}", all->source->address(), all->device->name()));
  }
  const set_ups::caller waiting(*all);
  while (!all->closed) {
    if (!all->ready.empty()) {
      std::optional<connection> first(std::move(all->ready.front()));
      all->ready.pop_front();
      co_return first;
    }
    if (all->failure != nullptr) std::rethrow_exception(std::exchange(all->failure, nullptr));
    all->take_next(how);
    all->changed.reset();
    co_await all->changed.wait();
  }
  co_return std::nullopt;
}

task<> listener::take_peer(std::shared_ptr<set_ups> all, std::shared_ptr<const set_up_choice> how) {
  weft::detail::promise_base& promise = co_await weft::detail::current_promise();
  promise.set_stop_token(all->nobody_waits->get_token());
  std::optional<connection_request> request;
  try {
    request = co_await next_request(all->device, all->source, all->places);
    promise.set_stop_token(all->ended.get_token());
    if (request) co_await wait_for_room(*all);
  } catch (...) {
    request.reset();
    if (all->callers != 0 && !all->nobody_waits->stop_requested()) all->failure = std::current_exception();
  }
  promise.set_stop_token(all->ended.get_token());
  all->taking = false;
  if (request) ++all->in_progress;
  all->changed.set();  // wakes the calls of accept(), which have the next peer taken
  if (!request) co_return;
  try {
    co_await set_up_peer(*all, *how, *std::move(request));
  } catch (const std::exception& why) {
    if (!all->ended.stop_requested()) report_failed_set_up(why);
  }
  --all->in_progress;
  all->changed.set();
}

// Waits until fewer than max_in_progress set-ups are in progress; meanwhile ends set-ups that wait for their peers.
task<> listener::wait_for_room(set_ups& all) {
  constexpr auto shortest_wait = connection_places::shortest_wait;
  while (all.in_progress >= all.max_in_progress) {
    const time_point now = all.home.now();
    const auto due = all.places->evict(now);
    const bool is_later = due && *due > now;
    all.changed.reset();
    static_cast<void>(co_await when_any(all.changed.wait(), sleep_until(is_later ? *due : later(now, shortest_wait))));
  }
}

task<> listener::set_up_peer(set_ups& all, const set_up_choice& how, connection_request request) {
  auto core = accept_core(all.device, request.request_.take(), std::move(request.place_), how.options(), how.shared());
  auto peer = co_await connection_request::make_connection(std::move(core));
  all.closed ? peer.abort() : all.ready.push_back(std::move(peer));
}

// ---- the handle ----

listener::listener(std::shared_ptr<device_state> device, std::shared_ptr<link_listener> source,
                   const listener_options& options)
    : device_(std::move(device)),
      places_(std::make_shared<connection_places>(options.max_connections)),
      set_ups_(std::make_shared<set_ups>(device_, source, places_, options.max_half_open)),
      source_(std::move(source)) {}

listener::listener(listener&&) noexcept = default;
listener::~listener() { close(); }

listener& listener::operator=(listener&& other) noexcept {
  if (this == &other) return *this;
  close();
  device_ = std::move(other.device_);
  places_ = std::move(other.places_);
  set_ups_ = std::move(other.set_ups_);
  source_ = std::move(other.source_);
  return *this;
}

std::string_view listener::address() const noexcept { return source_ ? source_->address() : std::string_view(); }

// Passes copies, because the listener may be destroyed before the task begins, or while the task waits.
task<std::optional<connection_request>> listener::next() { return next_request(device_, source_.held(), places_); }

task<std::optional<connection_request>> listener::next_request(std::shared_ptr<device_state> device,
                                                               std::shared_ptr<link_listener> source,
                                                               std::shared_ptr<connection_places> places) {
  if (source == nullptr) throw error(errc::closed, "wait for a peer at a listener that was moved from");
  try {
    for (;;) {
      auto request = co_await source->next();
      if (request == nullptr) co_return std::nullopt;
      auto place = connection_place::take(places);
      {
        const weft::detail::stop_shield shield(co_await weft::detail::current_promise());  // a stop would lose the peer
        while (place == nullptr) {
          const bool has_room = co_await make_room(places);
          if (!has_room) break;
          place = connection_place::take(places);
        }
      }
      if (place != nullptr) co_return connection_request(std::move(device), std::move(request), std::move(place));
      set_up_statistics::count(device->set_ups().requests_failed);
      co_await turn_away(*request, no_places_left);
    }
  } catch (const error& why) {
    throw why.within(fmt::format("listen on {} over {}", source->address(), device->name()));
  }
}

void listener::close() noexcept {
  if (source_ == nullptr) return;
  link_listener& source = *source_;  // first, because `*` detects a duplicate of the handle
  if (set_ups_->closed) return;      // then the executor may be gone
  source.close();
  set_ups_->close();
}

}  // namespace weft::net
