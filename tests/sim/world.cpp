// SPDX-License-Identifier: Apache-2.0
#include "world.hpp"

#include <weft/net/software/key_table.hpp>
#include <weft/runtime/system/descriptor.hpp>

#include <fmt/core.h>

#include <poll.h>

// That of the C library ends before tcpi_notsent_bytes.
#include <linux/tcp.h>
#include <netinet/in.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <exception>
#include <utility>

namespace weft::sim {
namespace {

constexpr int first_descriptor = 1'000'000;  // far from those of the process
constexpr int first_source = 2'000'000;
// States of a socket, as tcp_info tells them.
constexpr std::uint8_t established_state = 1;
constexpr std::uint8_t closed_state = 7;
constexpr int some_eventfd = first_descriptor - 1;  // any: nobody reads or writes one here
// A run that takes longer does not end.
constexpr std::uint64_t most_events = 20'000'000;
constexpr duration longest_run = std::chrono::hours(1);
// What is sent anew once a cable is mended, or to ask for a connection: Linux waits for a second at first, then for
// twice as long.
constexpr duration first_repetition = std::chrono::seconds(1);
constexpr duration last_repetition = std::chrono::seconds(64);
constexpr duration until_mended = std::chrono::hours(24);
// Longer than any wake-up is under way.
constexpr duration long_wait = std::chrono::milliseconds(1);

std::size_t size_of(const msghdr& message) noexcept {
  std::size_t total = 0;
  for (std::size_t i = 0; i < message.msg_iovlen; ++i) total += message.msg_iov[i].iov_len;
  return total;
}

std::uint64_t content_of(const msghdr& message) noexcept {
  fingerprint content;
  for (std::size_t i = 0; i < message.msg_iovlen; ++i) {
    content.add(std::span(static_cast<const std::byte*>(message.msg_iov[i].iov_base), message.msg_iov[i].iov_len));
  }
  return content.value();
}

sockaddr_in address_of(std::uint32_t host, std::uint16_t port) noexcept {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = host;
  address.sin_port = htons(port);
  return address;
}

std::optional<time_point> earlier(std::optional<time_point> one, std::optional<time_point> other) noexcept {
  if (!one || !other) return one ? one : other;
  return std::min(*one, *other);
}

}  // namespace

/// A socket.
struct world::socket_end {
  enum class state : std::uint8_t { fresh, listening, connecting, connected, closed };
  struct packet {
    std::vector<std::byte> bytes{};
    std::size_t taken;
    time_point due{};
  };

  int fd = -1;
  state now = state::fresh;
  std::uint32_t host = 0;  // network byte order, as in a sockaddr_in
  std::uint16_t port = 0;
  std::uint16_t client_port = 0;  // names the connection
  bool is_client = false;
  socket_end* peer = nullptr;

  std::deque<socket_end*> backlog;  // listening: ends that have come, and whose peers may have gone
  int connect_result = 0;
  time_point connect_due{};

  std::deque<packet> incoming;
  std::size_t incoming_bytes = 0;
  time_point last_due{};                 // of what was sent to us: nothing overtakes
  std::optional<time_point> finished{};  // the peer's FIN comes
  std::optional<time_point> reset{};     // a reset comes
  int reset_number = 0;
  bool broken = false;  // it has come
  int untold = 0;       // and nobody has been told why
  bool output_shut = false;
  bool reset_on_close = false;
  bool severed = false;            // what is sent to it gets lost
  bool damaged = false;            // the next packet to it
  std::uint64_t arrived = 0;       // bytes that were sent to it
  std::uint64_t acknowledged = 0;  // bytes of its own that have got through, or will
  std::optional<time_point> cut{};
  bool behind_cut_cable = false;  // nor does a reset get through
  int muffled_reset = 0;          // that comes once it is mended
  duration repetition = first_repetition;
  std::optional<time_point> window_closed{};  // the peer takes nothing more of ours
  duration user_timeout = std::chrono::hours(2);
  int next_send_fails = 0;

  [[nodiscard]] bool lives() const noexcept { return now == state::connected || now == state::connecting; }
  [[nodiscard]] bool hears() const noexcept { return now != state::closed && !broken; }
  [[nodiscard]] bool either_hears() const noexcept { return hears() || peer->hears(); }
  // When TCP gives up: of a peer with a closed window as well, although it answers (tcp_probe_timer() of Linux).
  [[nodiscard]] std::optional<time_point> patience_ends() const noexcept {
    if (cut && window_closed) return std::min(*cut, *window_closed) + user_timeout;
    if (cut) return *cut + user_timeout;
    if (window_closed) return *window_closed + user_timeout;
    return std::nullopt;
  }
};

/// The kernel's side of one executor.
//
// Who may touch it: whoever has the turn. Another one does so to wake it, and to find out whether it can go on.
class world::seat final : public event_driver {
 public:
  seat(world& place, std::size_t index) noexcept : place_(place), index_(index) {}
  ~seat() override { assert(started_.empty() && "a simulated kernel ended with operations in progress"); }

  [[nodiscard]] std::string_view name() const noexcept override { return "simulated"; }
  void attach_thread() override {}
  void start(io_operation& operation) noexcept override;
  void cancel(io_operation& operation) noexcept override;
  std::size_t poll(std::size_t budget) noexcept override;
  std::size_t wait(std::size_t budget, std::optional<duration> timeout) noexcept override;
  void wake() noexcept override { woken_ = true; }
  [[nodiscard]] int try_now(io_operation& operation) noexcept override;
  [[nodiscard]] ssize_t try_receive(descriptor& source, msghdr& message) noexcept override;

  [[nodiscard]] std::size_t index() const noexcept { return index_; }
  /// From its own thread: others may have their turn.
  void step_aside() noexcept { pass_to(place_.draw_seat()); }
  void leave() noexcept { state_ = state::gone; }
  [[nodiscard]] bool taken() const noexcept { return state_ != state::gone; }
  /// Whether its turn would be of use.
  [[nodiscard]] bool can_go_on() const noexcept;
  [[nodiscard]] bool sleeps_over_work() const noexcept;
  /// When something comes that it waits for, its own deadline included.
  [[nodiscard]] std::optional<time_point> next_event() const noexcept;

  const executor* user = nullptr;

 private:
  //   awake    it has something to do
  //   asleep   in wait(): for its kernel, its deadline, or somebody to wake it
  //   gone     its executor has ended
  enum class state : std::uint8_t { awake, asleep, gone };

  void pass_to(const seat* next) noexcept;
  [[nodiscard]] std::size_t complete_some(std::size_t budget, bool lazily) noexcept;
  void finish(std::size_t index, int result) noexcept;

  world& place_;
  const std::size_t index_;
  state state_ = state::awake;
  bool woken_ = false;
  std::optional<time_point> deadline_;  // asleep
  std::uint64_t looked_ = 0;            // asleep: at what it last looked, and found nothing
  std::vector<pending> started_;
};

world::world(std::uint64_t seed, const conditions& how)
    : dice_(seed),
      how_(how),
      workers_(*this, dice_, duration(static_cast<duration::rep>(how.longest_job_ns))),
      ready_seed_(dice_.next()) {
  static_cast<void>(add_seat());
}

world::~world() = default;

std::size_t world::add_seat() {
  const std::size_t index = baton_.add();
  seats_.push_back(std::make_unique<seat>(*this, index));
  return index;
}

executor_options world::options(bool shuffle_tasks, std::size_t number) noexcept {
  executor_options chosen{
      .workers = &workers_, .clock = this, .system_calls = this, .simulated_driver = &*seats_[number]};
  if (shuffle_tasks) chosen.ready_order_seed = ready_seed_ + number;
  return chosen;
}

void world::introduce(std::size_t number, const executor* who) noexcept { seats_[number]->user = who; }

void world::leave(std::size_t number) noexcept {
  seats_[number]->leave();
  ++looks_;
  const auto* const next = next_seat();
  if (next == nullptr) return;
  turn_ = next->index();
  baton_.give(next->index());
}

void world::at(duration when, std::function<void()> what) { plan_.emplace(time_point() + when, std::move(what)); }

int world::open_source(const event_source& what) {
  sources_.push_back(&what);
  return first_source + static_cast<int>(sources_.size() - 1);
}

void world::close_source(int fd) noexcept { sources_[static_cast<std::size_t>(fd - first_source)] = nullptr; }

std::string world::leaks() const {
  std::string found;
  const auto watched =
      std::count_if(sources_.begin(), sources_.end(), [](const event_source* s) { return s != nullptr; });
  if (watched != 0) found += fmt::format("{} descriptors are open; ", watched);
  const auto open =
      std::count_if(ends_.begin(), ends_.end(), [](const auto& e) { return e->now != socket_end::state::closed; });
  if (open != 0) found += fmt::format("{} sockets are open; ", open);
  if (!mapped_.empty()) found += fmt::format("{} mappings are left; ", mapped_.size());
  if (!workers_.idle()) found += "a worker has jobs; ";
  found += local_.leaks();
  return found;
}

void world::refuse(std::string_view what) noexcept {
  std::string why = fmt::format("{} after {} events and {} us of virtual time", what, events_,
                                std::chrono::duration_cast<std::chrono::microseconds>(elapsed()).count());
  for (const auto& one : seats_) {
    if (one->user != nullptr) why += fmt::format("\nexecutor {}:\n{}", one->index(), one->user->dump());
  }
  if (give_up) give_up(why);
  fmt::print(stderr, "{}\n", why);
  std::terminate();
}

// ---- faults ----

// Of a connection that is there or about to be; null if there is none.
world::socket_end* world::client_of(std::uint16_t port) noexcept {
  for (const auto& item : ends_) {
    if (item->lives() && item->is_client && item->client_port == port && item->peer != nullptr) return item.get();
  }
  return nullptr;
}

void world::strike(std::uint16_t port) {
  disturb(port);
  count_fault();
}

// Whether there was a connection.
bool world::break_off(std::uint16_t port) {
  socket_end* const client = client_of(port);
  if (client == nullptr || !sever(*client)) return false;
  disturb(port);
  return true;
}

bool world::sever(socket_end& client) {
  if (!client.either_hears()) return false;
  for (socket_end* const one : {&client, client.peer}) {
    std::erase_if(one->incoming, [this](const socket_end::packet& item) { return item.due > now_; });
    one->incoming_bytes = 0;
    for (const socket_end::packet& item : one->incoming) one->incoming_bytes += item.bytes.size() - item.taken;
    one->severed = true;
    reset_end(*one, ECONNRESET, now_ + delay());
  }
  return true;
}

void world::reset(std::uint16_t port) {
  if (break_off(port)) count_fault();
}

void world::cut(std::uint16_t port) {
  socket_end* const client = client_of(port);
  if (client == nullptr || !client->either_hears()) return;
  for (socket_end* const one : {client, client->peer}) one->cut = now_;
  strike(port);
}

void world::fail_send(std::uint16_t port, bool of_client, int number) {
  if (socket_end* const client = client_of(port)) (of_client ? client : client->peer)->next_send_fails = number;
}

void world::damage(std::uint16_t port) {
  if (socket_end* const client = client_of(port)) (dice_.one_in(2) ? client : client->peer)->damaged = true;
  at(elapsed() + std::chrono::milliseconds(100), [this, port] {
    if (break_off(port) && !damaged(port)) count_fault();
  });
}

void world::stall(std::uint16_t port, duration how_long) {
  if (socket_end* const client = client_of(port)) stall(*client, how_long);
}

void world::stall(socket_end& client, duration how_long) {
  for (socket_end* const one : {&client, client.peer}) one->last_due = std::max(one->last_due, now_ + how_long);
  count_fault();
}

// ---- cables ----

std::vector<world::socket_end*> world::clients_over(std::uint16_t port) const {
  std::vector<socket_end*> found;
  for (const auto& item : ends_) {
    if (!item->is_client || item->peer == nullptr || item->peer->port != port) continue;
    if (item->lives() || item->peer->now == socket_end::state::connected) found.push_back(&*item);
  }
  return found;
}

std::size_t world::connections_over(std::uint16_t port) const noexcept {
  std::size_t count = 0;
  for (const socket_end* const client : clients_over(port)) {
    const bool lives = client->now == socket_end::state::connected && client->hears() && client->peer->hears();
    count += lives && !client->severed ? 1 : 0;
  }
  return count;
}

void world::reset_cable(std::uint16_t port) {
  for (socket_end* const client : clients_over(port)) {
    if (!client->behind_cut_cable && sever(*client)) count_fault();
  }
}

void world::cut_cable(std::uint16_t port) {
  cut_cables_.insert(port);
  count_fault();
  for (socket_end* const client : clients_over(port)) {
    for (socket_end* const one : {client, client->peer}) {
      if (!one->cut) one->cut = now_;
      one->behind_cut_cable = true;
      for (socket_end::packet& item : one->incoming) {
        if (item.due > now_) item.due += until_mended;
      }
      if (one->reset && *one->reset > now_) {
        one->reset.reset();
        one->muffled_reset = one->reset_number;
      }
    }
  }
}

// What was lost is sent anew, some time later.
void world::mend_cable(std::uint16_t port) {
  cut_cables_.erase(port);
  for (socket_end* const client : clients_over(port)) {
    for (socket_end* const one : {client, client->peer}) {
      if (!std::exchange(one->behind_cut_cable, false)) continue;
      const duration outage = now_ - *one->cut;
      one->cut.reset();
      one->last_due = std::max(
          one->last_due,
          now_ + duration(static_cast<duration::rep>(dice_.below(1 + static_cast<std::uint64_t>(outage.count())))));
      for (socket_end::packet& item : one->incoming) {
        if (item.due > now_) item.due = one->last_due;
      }
      if (one->finished) one->finished = std::max(*one->finished, one->last_due);
      if (const int number = std::exchange(one->muffled_reset, 0); number != 0) reset_end(*one, number, now_ + delay());
    }
  }
}

void world::stall_cable(std::uint16_t port, duration how_long) {
  for (socket_end* const client : clients_over(port)) stall(*client, how_long);
}

void world::fail_send_on_cable(std::uint16_t port, bool of_client, int number) {
  for (socket_end* const client : clients_over(port)) (of_client ? client : client->peer)->next_send_fails = number;
}

// ---- time ----

duration world::delay() noexcept { return duration(static_cast<duration::rep>(dice_.skewed(how_.longest_delay_ns))); }

void world::tick() noexcept {
  if (++events_ > most_events || elapsed() > longest_run) refuse("it does not end");
  now_ += duration(static_cast<duration::rep>(1 + dice_.below(how_.longest_turn_ns)));
  while (!plan_.empty() && plan_.begin()->first <= now_) {
    const auto what = std::move(plan_.begin()->second);
    plan_.erase(plan_.begin());
    what();
  }
}

std::optional<time_point> world::due(const pending& item) noexcept {
  const descriptor& target = *item.operation->target;
  if (local_kernel::owns(target.fd())) return local_.due(*item.operation);
  if (target.fd() >= first_source) return std::nullopt;  // whatever makes it readable is planned
  const socket_end& at = *ends_[static_cast<std::size_t>(target.fd() - first_descriptor)];
  std::optional<time_point> first;
  const auto consider = [&](time_point when) { first = first ? std::min(*first, when) : when; };
  if (at.reset) consider(*at.reset);
  if (const auto end = at.patience_ends()) consider(*end);
  switch (item.operation->kind) {
    case io_kind::accept:
      for (const socket_end* one : at.backlog) consider(one->connect_due);
      break;
    case io_kind::connect:
      if (at.now == socket_end::state::connecting || at.connect_due > now_) consider(at.connect_due);
      break;
    case io_kind::receive:
    case io_kind::readable:
      for (const socket_end* one : at.backlog) consider(one->connect_due);
      if (!at.cut && !at.incoming.empty()) consider(at.incoming.front().due);
      if (!at.cut && at.finished) consider(*at.finished);
      break;
    case io_kind::send:
      break;  // room comes from the other end's calls
    case io_kind::read:
    case io_kind::write:
    case io_kind::sync:
      break;  // there are no files here
  }
  return first;
}

std::optional<time_point> world::next_event() noexcept {
  std::optional<time_point> first = workers_.next_due();
  for (const auto& one : seats_) first = earlier(first, one->next_event());
  if (!plan_.empty()) first = earlier(first, plan_.begin()->first);
  return first;
}

// Somebody who has been given work, and has not been woken for it, may be woken by something else later on.
void world::look_for_sleepers() noexcept {
  for (const auto& one : seats_) {
    if (one->sleeps_over_work()) refuse("an executor sleeps that has something to do");
  }
}

// Nobody can go on.
void world::pass_time() noexcept {
  const std::optional<time_point> next = next_event();
  if (!next) refuse("everybody waits, and nothing is to come");
  if (*next - now_ >= long_wait) look_for_sleepers();
  now_ = std::max(now_, *next);
  tick();
  ++looks_;
}

// ---- whose turn it is ----

// Somebody who can go on; null if there is nobody.
world::seat* world::draw_seat() noexcept {
  std::vector<seat*> choices;
  for (const auto& one : seats_) {
    if (one->can_go_on()) choices.push_back(&*one);
  }
  return choices.empty() ? nullptr : choices[choices.size() == 1 ? 0 : dice_.below(choices.size())];
}

// Null if all have left.
world::seat* world::next_seat() noexcept {
  if (std::none_of(seats_.begin(), seats_.end(), [](const auto& one) { return one->taken(); })) return nullptr;
  for (;;) {
    if (workers_.run_due() != 0) ++looks_;
    if (seat* const next = draw_seat()) return next;
    pass_time();
  }
}

void world::seat::pass_to(const seat* next) noexcept {
  if (next == this) return;
  place_.turn_ = next->index_;
  place_.baton_.give(next->index_);
  place_.baton_.take(index_);
}

// What comes to an executor that runs no more stays where it is.
bool world::seat::sleeps_over_work() const noexcept {
  return state_ == state::asleep && user != nullptr && core_of(*user).work_waits();
}

bool world::seat::can_go_on() const noexcept {
  if (state_ == state::gone) return false;
  if (state_ == state::awake || woken_ || (deadline_ && *deadline_ <= place_.now_)) return true;
  return looked_ != place_.looks_ &&
         std::any_of(started_.begin(), started_.end(), [this](const pending& p) { return place_.may_succeed(p); });
}

std::optional<time_point> world::seat::next_event() const noexcept {
  if (state_ != state::asleep) return std::nullopt;
  std::optional<time_point> first = deadline_;
  for (const pending& item : started_) first = earlier(first, place_.due(item));
  return first;
}

// ---- the drivers ----

void world::seat::start(io_operation& operation) noexcept {
  begin(operation);
  const bool sends = operation.kind == io_kind::send;
  started_.push_back(
      {.operation = &operation, .canceled = false, .content = sends ? content_of(*operation.message) : 0});
}

void world::seat::cancel(io_operation& operation) noexcept {
  for (pending& item : started_) {
    if (item.operation == &operation) item.canceled = true;
  }
}

void world::seat::finish(std::size_t index, int result) noexcept {
  io_operation& operation = *started_[index].operation;
  started_.erase(started_.begin() + static_cast<std::ptrdiff_t>(index));
  fingerprint& trace = place_.trace_;
  trace.add(static_cast<std::uint64_t>(operation.kind));
  trace.add(static_cast<std::uint64_t>(operation.target->fd()));
  trace.add(static_cast<std::uint64_t>(result));
  trace.add(static_cast<std::uint64_t>(place_.elapsed().count()));
  end(operation, result);
}

// Completes what can be completed, in an order of the seed's. Completing may start and cancel others, so each choice is
// made anew. `lazily`: the kernel may not have come to all of it.
std::size_t world::seat::complete_some(std::size_t budget, bool lazily) noexcept {
  std::vector<io_operation*> todo;
  todo.reserve(started_.size());
  for (const pending& item : started_) todo.push_back(item.operation);
  std::size_t count = 0;
  while (!todo.empty() && count < budget) {
    const auto choice = static_cast<std::ptrdiff_t>(place_.how_.shuffle ? place_.dice_.below(todo.size()) : 0);
    io_operation* const chosen = todo[static_cast<std::size_t>(choice)];
    todo.erase(todo.begin() + choice);
    const auto found =
        std::find_if(started_.begin(), started_.end(), [&](const pending& p) { return p.operation == chosen; });
    if (found == started_.end()) continue;  // a completion of another one has ended it
    if (lazily && place_.dice_.per_mille(place_.how_.idle_share)) continue;
    const auto index = static_cast<std::size_t>(found - started_.begin());
    const bool too_late = found->canceled && place_.dice_.one_in(4);  // it ends by itself first, if it can
    if (found->canceled && !too_late) {
      finish(index, -ECANCELED);
      ++count;
      continue;
    }
    int result = place_.attempt(*found);
    if (result == -EAGAIN) {
      if (!found->canceled) continue;
      result = -ECANCELED;
    }
    finish(index, result);
    ++count;
  }
  return count;
}

std::size_t world::seat::poll(std::size_t budget) noexcept {
  if (place_.seats_.size() != 1 && place_.dice_.one_in(2)) pass_to(place_.draw_seat());
  place_.tick();
  ++place_.looks_;
  const std::size_t jobs = place_.workers_.run_due();
  return jobs + complete_some(budget, true);
}

std::size_t world::seat::wait(std::size_t budget, std::optional<duration> timeout) noexcept {
  place_.tick();
  ++place_.looks_;
  state_ = state::asleep;
  deadline_ = timeout ? std::optional(later(place_.now_, *timeout)) : std::nullopt;
  for (;;) {
    const std::size_t count = place_.workers_.run_due() + complete_some(budget, false);
    const bool woken = std::exchange(woken_, false);
    if (count != 0 || woken || (deadline_ && *deadline_ <= place_.now_)) {
      state_ = state::awake;
      ++place_.looks_;
      return count;
    }
    looked_ = place_.looks_;
    pass_to(place_.next_seat());
  }
}

int world::seat::try_now(io_operation& operation) noexcept {
  if (operation.kind != io_kind::send || place_.dice_.one_in(2)) return -EAGAIN;
  return static_cast<int>(place_.send(place_.find(operation.target->fd()), *operation.message));
}

ssize_t world::seat::try_receive(descriptor& source, msghdr& message) noexcept {
  if (place_.dice_.per_mille(place_.how_.spurious_share)) return place_.dice_.one_in(2) ? -EAGAIN : -EINTR;
  return place_.receive(place_.find(source.fd()), message);
}

int world::attempt(pending& item) noexcept {
  io_operation& operation = *item.operation;
  if (local_kernel::owns(operation.target->fd())) return local_.attempt(operation);
  if (operation.target->fd() >= first_source) {
    const event_source* const what = sources_[static_cast<std::size_t>(operation.target->fd() - first_source)];
    if (what == nullptr) refuse("a closed descriptor is watched");
    return what->has_something() || dice_.per_mille(how_.spurious_share) ? POLLIN : -EAGAIN;
  }
  socket_end& at = find(operation.target->fd());
  switch (operation.kind) {
    case io_kind::accept:
      return accept_one(at, operation);
    case io_kind::connect:
      return connect_end(at, operation);
    case io_kind::send:
      if (content_of(*operation.message) != item.content) refuse("memory has changed while the kernel was sending it");
      if (dice_.per_mille(how_.spurious_share)) return -EINTR;
      return static_cast<int>(send(at, *operation.message));
    case io_kind::receive:
      if (dice_.per_mille(how_.spurious_share)) return -EINTR;
      return static_cast<int>(receive(at, *operation.message));
    case io_kind::readable:
      return readable(at) ? POLLIN : -EAGAIN;
    case io_kind::read:
    case io_kind::write:
    case io_kind::sync:
      break;  // there are no files here
  }
  return -EINVAL;
}

// Whether it is worth a look: attempt() decides.
bool world::may_succeed(const pending& item) noexcept {
  const io_operation& operation = *item.operation;
  if (item.canceled) return true;
  if (local_kernel::owns(operation.target->fd())) return local_.may_succeed(operation);
  if (operation.target->fd() >= first_source) {
    const event_source* const what = sources_[static_cast<std::size_t>(operation.target->fd() - first_source)];
    return what == nullptr || what->has_something();
  }
  const socket_end& at = *ends_[static_cast<std::size_t>(operation.target->fd() - first_descriptor)];
  if (at.broken || at.untold != 0 || at.now == socket_end::state::closed) return true;
  if (const std::optional<time_point> when = due(item); when && *when <= now_) return true;
  if (operation.kind == io_kind::send) return at.peer == nullptr || at.peer->incoming_bytes < how_.socket_bytes;
  return operation.kind == io_kind::connect && at.now != socket_end::state::connecting && at.connect_due <= now_;
}

// ---- sockets ----

world::socket_end& world::find(int fd) noexcept {
  const auto index = static_cast<std::size_t>(fd - first_descriptor);
  if (fd < first_descriptor || index >= ends_.size() || ends_[index]->now == socket_end::state::closed) {
    refuse("a call names a descriptor that is not open");
  }
  return *ends_[index];
}

world::socket_end& world::add_end() {
  ends_.push_back(std::make_unique<socket_end>());
  ends_.back()->fd = first_descriptor + static_cast<int>(ends_.size()) - 1;
  return *ends_.back();
}

bool world::accept_fails() noexcept {
  if (accepts_to_fail_ == 0) return fails();
  --accepts_to_fail_;
  count_fault();
  return true;
}

int world::accept_one(socket_end& listener, io_operation& operation) noexcept {
  const auto ripe = std::find_if(listener.backlog.begin(), listener.backlog.end(),
                                 [this](const socket_end* one) { return one->connect_due <= now_; });
  if (ripe == listener.backlog.end()) return -EAGAIN;
  if (accept_fails()) return -EMFILE;
  // Those whose set-up took longer may have come first: any that is there.
  std::vector<std::size_t> choices;
  for (std::size_t i = 0; i < listener.backlog.size(); ++i) {
    if (listener.backlog[i]->connect_due <= now_) choices.push_back(i);
  }
  const std::size_t choice = choices[dice_.below(choices.size())];
  socket_end& accepted = *listener.backlog[choice];
  listener.backlog.erase(listener.backlog.begin() + static_cast<std::ptrdiff_t>(choice));
  if (operation.peer != nullptr) {
    const sockaddr_in from = address_of(listener.host, accepted.client_port);
    std::memcpy(operation.peer, &from, sizeof from);
    operation.peer_length = sizeof from;
  }
  return accepted.fd;
}

int world::connect_end(socket_end& client, const io_operation& operation) noexcept {
  if (client.now == socket_end::state::connected) return 0;
  if (client.now == socket_end::state::fresh) {
    sockaddr_in to{};
    std::memcpy(&to, operation.peer, sizeof to);
    const auto found = std::find_if(ends_.begin(), ends_.end(), [&](const auto& one) {
      return one->now == socket_end::state::listening && one->port == ntohs(to.sin_port);
    });
    if (client.port == 0) client.port = next_port_++;
    client.client_port = client.port;
    client.is_client = true;
    if (cut_cables_.contains(ntohs(to.sin_port))) {
      if (client.connect_due > now_) return -EAGAIN;
      if (client.repetition > last_repetition) return -ETIMEDOUT;
      client.connect_due = now_ + std::exchange(client.repetition, 2 * client.repetition);
      return -EAGAIN;
    }
    client.now = socket_end::state::connecting;
    client.connect_due = now_ + delay();
    client.connect_result = -ECONNREFUSED;
    if (found != ends_.end() && !fails()) {
      socket_end& listener = **found;
      socket_end& server = add_end();
      server.now = socket_end::state::connected;
      server.host = listener.host;
      server.port = listener.port;
      server.client_port = client.port;
      server.peer = &client;
      server.connect_due = now_ + delay();
      listener.backlog.push_back(&server);
      client.peer = &server;
      client.connect_result = 0;
    }
  }
  if (client.connect_due > now_) return -EAGAIN;
  client.now = client.connect_result == 0 ? socket_end::state::connected : socket_end::state::fresh;
  return client.connect_result;
}

void world::reset_end(socket_end& at, int number, time_point when) noexcept {
  if (at.broken || at.now == socket_end::state::closed) return;
  if (at.behind_cut_cable) {
    at.muffled_reset = number;
    return;
  }
  when = std::max(when, at.last_due);
  if (at.reset && *at.reset <= when) return;
  at.reset = when;
  at.reset_number = number;
}

void world::look_for_timeout(socket_end& at) noexcept {
  if (const auto end = at.patience_ends(); end && now_ >= *end && !at.broken && !at.reset) {
    at.reset = now_;
    at.reset_number = ETIMEDOUT;
  }
  if (!at.reset || *at.reset > now_) return;
  at.reset.reset();
  at.broken = true;
  at.untold = at.reset_number;
}

ssize_t world::send(socket_end& from, const msghdr& message) noexcept {
  look_for_timeout(from);
  if (from.untold != 0) return -std::exchange(from.untold, 0);
  if (from.broken || from.output_shut) return -EPIPE;
  const int planned = std::exchange(from.next_send_fails, 0);
  if (planned != 0) strike(from.client_port);
  if (const bool chosen = fails(); chosen || planned != 0) {
    reset_end(*from.peer, ECONNRESET, now_ + delay());
    from.broken = true;
    return chosen ? -ENOBUFS : -planned;
  }
  socket_end& to = *from.peer;
  const std::size_t wanted = size_of(message);
  const std::size_t used = to.incoming_bytes;
  if (used >= how_.socket_bytes) return -EAGAIN;
  std::size_t count = std::min(
      {wanted, static_cast<std::size_t>(how_.socket_bytes - used), static_cast<std::size_t>(how_.packet_bytes)});
  if (dice_.per_mille(how_.short_share)) count = std::min<std::size_t>(count, 1 + dice_.skewed(count));
  socket_end::packet item{.taken = 0};
  item.bytes.reserve(count);
  for (std::size_t i = 0; i < message.msg_iovlen && item.bytes.size() < count; ++i) {
    const auto* const data = static_cast<const std::byte*>(message.msg_iov[i].iov_base);
    const std::size_t part = std::min(message.msg_iov[i].iov_len, count - item.bytes.size());
    item.bytes.insert(item.bytes.end(), data, data + part);
  }
  constexpr std::uint64_t set_up_bytes = 400;  // and more
  if (to.damaged && to.arrived > set_up_bytes) {
    to.damaged = false;
    damaged_.insert(from.client_port);
    strike(from.client_port);
    item.bytes[dice_.below(count)] ^= static_cast<std::byte>(1U << dice_.below(8));
  }
  to.arrived += count;
  if (traces_contents_) {
    trace_.add(item.bytes);
  } else {
    trace_.add(static_cast<std::uint64_t>(count));
  }
  const auto sending = how_.bytes_per_us != 0 ? duration(1000 * count / how_.bytes_per_us) : duration::zero();
  item.due = to.last_due = std::max(to.last_due + sending, now_ + delay());
  if (to.now == socket_end::state::closed) {
    reset_end(from, ECONNRESET, item.due + delay());
  } else if (!to.severed) {
    from.acknowledged += count;
    if (to.behind_cut_cable) item.due += until_mended;
    to.incoming_bytes += count;
    to.incoming.push_back(std::move(item));
    if (to.incoming_bytes >= how_.socket_bytes) from.window_closed = now_;
  }
  return static_cast<ssize_t>(count);
}

ssize_t world::receive(socket_end& at, msghdr& message) noexcept {
  look_for_timeout(at);
  if (!at.broken && fails()) {
    reset_end(*at.peer, ECONNRESET, now_ + delay());
    at.broken = true;
    at.incoming.clear();
    at.incoming_bytes = 0;
    return -ETIMEDOUT;
  }
  const bool open = !at.cut || at.broken;
  std::size_t most = std::min(size_of(message), static_cast<std::size_t>(how_.packet_bytes));
  if (dice_.per_mille(how_.short_share)) most = std::min<std::size_t>(most, 1 + dice_.skewed(most));
  std::size_t done = 0;
  std::size_t part = 0;
  std::size_t offset = 0;
  while (done < most && open && !at.incoming.empty() && at.incoming.front().due <= now_) {
    socket_end::packet& item = at.incoming.front();
    while (offset == message.msg_iov[part].iov_len) {
      ++part;
      offset = 0;
    }
    const std::size_t count =
        std::min({item.bytes.size() - item.taken, message.msg_iov[part].iov_len - offset, most - done});
    std::memcpy(static_cast<std::byte*>(message.msg_iov[part].iov_base) + offset, item.bytes.data() + item.taken,
                count);
    offset += count;
    item.taken += count;
    done += count;
    if (item.taken == item.bytes.size()) at.incoming.pop_front();
  }
  at.incoming_bytes -= done;
  if (done != 0) at.peer->window_closed.reset();
  trace_.add(done);
  if (done != 0) return static_cast<ssize_t>(done);
  if (at.untold != 0) return -std::exchange(at.untold, 0);
  if (at.broken) return 0;
  if (open && at.incoming.empty() && at.finished && *at.finished <= now_) return 0;
  return -EAGAIN;
}

bool world::readable(socket_end& at) noexcept {
  look_for_timeout(at);
  if (at.broken || dice_.per_mille(how_.spurious_share)) return true;
  if (at.cut) return false;
  const auto is_ripe = [this](const socket_end* one) { return one->connect_due <= now_; };
  if (std::any_of(at.backlog.begin(), at.backlog.end(), is_ripe)) return true;
  if (!at.incoming.empty()) return at.incoming.front().due <= now_;
  return at.finished && *at.finished <= now_;
}

// ---- system calls ----

int world::socket(int domain, int type, int) noexcept {
  if (domain == AF_UNIX) return local_.socket(type);
  if (domain != AF_INET) return -EAFNOSUPPORT;
  if (fails()) return -EMFILE;
  return add_end().fd;
}

int world::setsockopt(int fd, int level, int name, const void* value, socklen_t) noexcept {
  socket_end& at = find(fd);
  if (fails()) return -ENOBUFS;
  if (level == SOL_SOCKET && name == SO_LINGER) {
    const auto* const how = static_cast<const linger*>(value);
    at.reset_on_close = how->l_onoff != 0 && how->l_linger == 0;
  }
  if (level == IPPROTO_TCP && name == TCP_USER_TIMEOUT) {
    int milliseconds = 0;
    std::memcpy(&milliseconds, value, sizeof milliseconds);
    at.user_timeout = std::chrono::milliseconds(milliseconds);
  }
  return 0;
}

// Of what this end has sent.
std::size_t world::bytes_under_way(const socket_end& from) const noexcept {
  std::size_t sum = 0;
  if (from.peer == nullptr) return sum;
  for (const socket_end::packet& item : from.peer->incoming) sum += item.due > now_ ? item.bytes.size() : 0;
  return sum;
}

int world::getsockopt(int fd, int level, int name, void* value, socklen_t* length) noexcept {
  if (local_kernel::owns(fd)) return local_.getsockopt(fd, level, name, value, length);
  socket_end& at = find(fd);
  const auto give = [&](const auto& what) {
    *length = std::min<socklen_t>(*length, sizeof what);
    std::memcpy(value, &what, *length);
    return 0;
  };
  if (level == IPPROTO_TCP && name == TCP_MAXSEG) return give(int{1460});
  if (level == IPPROTO_TCP && name == TCP_INFO) {
    look_for_timeout(at);
    // Whoever is not cut off answers each probe at once.
    tcp_info about{};
    about.tcpi_state = at.broken ? closed_state : established_state;
    about.tcpi_unacked = at.cut && !at.window_closed ? 1 : 0;
    about.tcpi_notsent_bytes = at.window_closed ? 1 : 0;
    about.tcpi_probes = at.cut ? 1 : 0;
    about.tcpi_bytes_acked = at.acknowledged - bytes_under_way(at);
    if (at.cut) {
      const auto silent = std::chrono::duration_cast<std::chrono::milliseconds>(now_ - *at.cut);
      about.tcpi_last_ack_recv = static_cast<std::uint32_t>(silent.count());
    }
    return give(about);
  }
  if (level == SOL_SOCKET && name == SO_ERROR) return give(std::exchange(at.untold, 0));
  return -ENOPROTOOPT;
}

int world::bind(int fd, const sockaddr* address, socklen_t length) noexcept {
  if (local_kernel::owns(fd)) return local_.bind(fd, address, length);
  if (fails()) return -EADDRINUSE;
  sockaddr_in asked{};
  std::memcpy(&asked, address, sizeof asked);
  socket_end& at = find(fd);
  at.host = asked.sin_addr.s_addr;
  at.port = ntohs(asked.sin_port);
  return 0;
}

int world::listen(int fd, int) noexcept {
  if (local_kernel::owns(fd)) return local_.listen(fd);
  socket_end& at = find(fd);
  if (fails()) return -EADDRINUSE;
  if (at.port == 0) at.port = next_port_++;
  at.now = socket_end::state::listening;
  return 0;
}

int world::getsockname(int fd, sockaddr* address, socklen_t* length) noexcept {
  if (fails()) return -ENOBUFS;
  const socket_end& at = find(fd);
  const sockaddr_in own = address_of(at.host, at.port);
  std::memcpy(address, &own, sizeof own);
  *length = sizeof own;
  return 0;
}

int world::connect(int fd, const sockaddr* address, socklen_t length) noexcept {
  if (!local_kernel::owns(fd)) refuse("a call would wait");
  return local_.connect(fd, address, length);
}

// Behind a packet that wakes somebody up, that one may go on before whoever has sent it does: not while it has keys in
// its hands, which others would wait for.
ssize_t world::sendmsg(int fd, const msghdr* message, int) noexcept {
  if (!local_kernel::owns(fd)) return send(find(fd), *message);
  const ssize_t result = local_.sendmsg(fd, *message);
  const bool may_wait = result > 0 && !net::software::key_table::reader::is_inside();
  if (may_wait && seats_.size() != 1 && dice_.one_in(2)) seats_[turn_]->step_aside();
  return result;
}

ssize_t world::recvmsg(int fd, msghdr* message, int) noexcept {
  if (!local_kernel::owns(fd)) refuse("a call for a local socket names another descriptor");
  return local_.recvmsg(fd, *message);
}

int world::shutdown(int fd, int) noexcept {
  if (local_kernel::owns(fd)) return local_.shutdown(fd);
  socket_end& at = find(fd);
  if (at.now == socket_end::state::listening) {
    for (socket_end* const one : std::exchange(at.backlog, {})) close_end(*one);
    at.now = socket_end::state::fresh;
    return 0;
  }
  if (at.now != socket_end::state::connected) return -ENOTCONN;
  if (std::exchange(at.output_shut, true) || at.broken || at.peer->severed) return 0;
  socket_end& to = *at.peer;
  to.finished = to.last_due = std::max(to.last_due, now_ + delay());
  return 0;
}

void world::close_end(socket_end& at) noexcept {
  for (socket_end* const one : std::exchange(at.backlog, {})) close_end(*one);
  if (at.lives() && at.peer != nullptr && !at.broken) {
    socket_end& to = *at.peer;
    if (at.reset_on_close || !at.incoming.empty()) {
      reset_end(to, ECONNRESET, now_ + delay());
    } else if (!at.output_shut && !to.severed) {
      to.finished = to.last_due = std::max(to.last_due, now_ + delay());
    }
  }
  at.incoming.clear();
  at.incoming_bytes = 0;
  at.now = socket_end::state::closed;
}

int world::eventfd(unsigned, int) noexcept { return fails() ? -EMFILE : some_eventfd; }

int world::close(int fd) noexcept {
  if (fd == some_eventfd) return 0;
  trace_.add(static_cast<std::uint64_t>(fd));
  if (local_kernel::owns(fd)) return local_.close(fd);
  close_end(find(fd));
  return 0;
}

int world::epoll_wait(int epoll, epoll_event* events, int count, int timeout_ms) noexcept {
  if (timeout_ms != 0) refuse("a call would wait");
  return local_.epoll_wait(epoll, events, count);
}

bool world::mapping_fails() noexcept {
  if (mappings_to_fail_ == 0) return fails();
  --mappings_to_fail_;
  has_failed_mapping_ = true;
  count_fault();
  return true;
}

void* world::mmap(std::size_t length, int protection, int flags, int* failure) noexcept {
  if (mapping_fails()) {
    *failure = ENOMEM;
    return nullptr;
  }
  void* const address = system_calls::mmap(length, protection, flags, failure);
  if (address != nullptr) mapped_.emplace(address, length);
  return address;
}

void* world::mmap_file(std::size_t length, int protection, int flags, int fd, off_t offset, int* failure) noexcept {
  void* const address = local_.mmap_file(length, protection, flags, fd, offset, failure);
  if (address != nullptr) mapped_.emplace(address, length);
  return address;
}

int world::munmap(void* address, std::size_t length) noexcept {
  if (on_unmapping) on_unmapping(address, length);
  mapped_.erase(address);
  local_.unmapped(address);
  return system_calls::munmap(address, length);
}

ssize_t world::getrandom(void* buffer, std::size_t length, unsigned) noexcept {
  if (fails()) return -ENOSYS;
  auto* const bytes = static_cast<std::byte*>(buffer);
  for (std::size_t done = 0; done < length; done += sizeof(std::uint64_t)) {
    const std::uint64_t word = dice_.next();
    std::memcpy(bytes + done, &word, std::min(length - done, sizeof word));
  }
  return static_cast<ssize_t>(length);
}

}  // namespace weft::sim
