// SPDX-License-Identifier: Apache-2.0
#include <weft/net/connection/connection_core.hpp>
#include <weft/net/connection/connection_places.hpp>
#include <weft/net/connection/peer_words.hpp>
#include <weft/net/connection/set_up.hpp>
#include <weft/net/device/device_state.hpp>
#include <weft/net/listener.hpp>
#include <weft/runtime/observe/report.hpp>

#include <fmt/core.h>

#include <utility>

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
  if (request == nullptr) throw error(errc::invalid_argument, "a connection request is answered once");
}

// Whoever accepts one peer is likely to accept more.
constexpr std::size_t few_connections = 8;

// A pool that has less than it was to have is held down by the locked-memory limit.
const char* limit_to_raise(const mr::pool& pool) {
  return pool.statistics().limit_reason.empty() ? "device_options::pool.limit_bytes"
                                                : "the locked-memory limit (ulimit -l)";
}

void warn_of_little_room(device_state& device, const connection_options& options) {
  const std::size_t bytes = receive_bytes(options.receive_size);
  const std::size_t room = device.pool().most_buffers(bytes, mr::budget::receive) / receives_of(options);
  if (room >= few_connections || !device.may_warn_of_little_room()) return;
  const std::string text = fmt::format(
      "the pool of {} has room for {} connections at a time that are accepted with receive_size {} and receive_depth "
      "{}: "
      "each takes {} buffers of {} bytes, of the {} bytes for receives; raise {}, lower those, or share receives "
      "(device::share_receives())",
      device.name(), room, options.receive_size, options.receive_depth, receives_of(options), bytes,
      device.pool().largest(mr::budget::receive), limit_to_raise(device.pool()));
  report what;
  what.text = text;
  send_report(what);
}

// The pool has too little for the receives that were asked for: now, or ever.
bool tells_of_a_full_pool(const error& why, const mr::pool& pool, const connection_options& options) {
  if (why.code() == errc::timed_out) return true;
  const std::size_t most = pool.most_buffers(receive_bytes(options.receive_size), mr::budget::receive);
  return why.code() == errc::no_memory && receives_of(options) > most;
}

task<> turn_away(link_request& request, std::string_view words) {
  try {
    co_await request.reject(std::as_bytes(std::span(words)));
  } catch (const error&) {  // then the peer hears of the end alone
  }
}

// Why a peer must not wait for the pool: too many do. What the pool can never have is for the pool to refuse.
std::optional<error> too_many_wait(connection_place& place, const mr::pool& pool, const connection_options& options) {
  const std::size_t most = pool.most_buffers(receive_bytes(options.receive_size), mr::budget::receive);
  const std::size_t wanted = receives_of(options);
  if (wanted > most || place.take_receives(wanted * connection_places::whole_pool / most)) return std::nullopt;
  return error(
      errc::no_memory,
      fmt::format("the pool has receives for {} such connections at a time, and as many wait for theirs: raise "
                  "device_options::pool.limit_bytes, or set listener_options::max_connections",
                  most / wanted));
}

task<std::unique_ptr<connection_core>> accept_core(std::shared_ptr<device_state> device,
                                                   std::unique_ptr<link_request> request,
                                                   std::unique_ptr<connection_place> place,
                                                   connection_options options) {
  check_unanswered(request);
  const std::string context = fmt::format("accept {} over {}", request->peer(), device->name());
  set_up_statistics& counts = device->set_ups();
  const set_up_statistics::present counted(counts.in_progress);
  try {
    auto shared = shared_receive_state::of(options, *device);
    if (shared != nullptr) options.receive_size = shared->options().receive_size;
    const transport& way = device->transport();
    const greeting_frame hello(options, way.features(), way.landing(), way.listens_first());
    set_up_options set_up = make_set_up(options, hello, shared);
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
    // The peer's time is up about when ours is: half of it is left to tell it so.
    const time_point patience = later(executor_core::current()->now(), options.set_up_timeout / 2);
    receive_memory receives;
    std::optional<error> full;
    if (shared == nullptr) full = too_many_wait(*place, device->pool(), options);
    try {
      if (!full)
        receives = co_await connection_core::find_receives(device->pool(), options, std::move(shared), patience);
    } catch (const error& why) {
      if (!tells_of_a_full_pool(why, device->pool(), options)) throw;
      full = why;
    }
    if (full) {
      co_await turn_away(*request, no_receives_left);
      throw *full;
    }
    set_up.first_receives = receives.own;
    auto established = co_await request->accept(set_up);
    new_link ready(std::move(established), std::move(peer_data));
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
  const std::string context = fmt::format("reject {} over {}", request->peer(), device->name());
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
  // The request goes along, for the caller may not keep it until the task begins.
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

listener::listener(std::shared_ptr<device_state> device, std::shared_ptr<link_listener> source,
                   const listener_options& options)
    : device_(std::move(device)),
      places_(std::make_shared<connection_places>(options.max_connections)),
      source_(std::move(source)) {}

listener::listener(listener&&) noexcept = default;
listener::~listener() { close(); }

listener& listener::operator=(listener&& other) noexcept {
  if (this == &other) return *this;
  close();
  device_ = std::move(other.device_);
  places_ = std::move(other.places_);
  source_ = std::move(other.source_);
  return *this;
}

std::string_view listener::address() const noexcept { return source_ ? source_->address() : std::string_view(); }

// The listener may go before the task begins, and while it waits.
task<std::optional<connection_request>> listener::next() {
  if (source_ == nullptr) detail::throw_misuse(errc::closed, "wait for a peer at a listener that was moved from");
  return next_request(device_, source_.held(), places_);
}

task<std::optional<connection_request>> listener::next_request(std::shared_ptr<device_state> device,
                                                               std::shared_ptr<link_listener> source,
                                                               std::shared_ptr<connection_places> places) {
  try {
    for (;;) {
      auto request = co_await source->next();
      if (request == nullptr) co_return std::nullopt;
      auto place = connection_place::take(places);
      if (place != nullptr) co_return connection_request(std::move(device), std::move(request), std::move(place));
      set_up_statistics::count(device->set_ups().requests_failed);
      co_await turn_away(*request, no_places_left);
    }
  } catch (const error& why) {
    throw why.within(fmt::format("listen on {} over {}", source->address(), device->name()));
  }
}

void listener::close() noexcept {
  if (source_ != nullptr) source_->close();
}

}  // namespace weft::net
