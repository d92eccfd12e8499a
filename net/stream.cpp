// SPDX-License-Identifier: Apache-2.0
#include <weft/net/connection/set_up.hpp>
#include <weft/net/device.hpp>
#include <weft/net/failed_task.hpp>
#include <weft/net/stream.hpp>
#include <weft/net/stream/message_stream.hpp>
#include <weft/net/stream_listener.hpp>
#include <weft/net/tcp/tcp_socket.hpp>
#include <weft/net/tcp/tcp_stream.hpp>

#include <fmt/core.h>

#include <utility>

namespace weft::net {

// ---- what keeps the state ----

stream_ref::stream_ref(stream_core& core) noexcept : core_(&core) { ++core.references_; }

stream_ref::stream_ref(const stream_ref& other) noexcept : core_(other.core_) {
  if (core_ != nullptr) ++core_->references_;
}

stream_ref::~stream_ref() {
  if (core_ != nullptr && --core_->references_ == 0) delete core_;
}

namespace {

constexpr const char* not_connected_words = "this stream is not connected";

template <class T>
task<T> not_connected() {
  return failed_task<T>(errc::closed, not_connected_words);
}

}  // namespace

event::wait_operation closing::operator co_await() const {
  if (!core_) throw error(errc::closed, not_connected_words);
  return core_->closed().wait();
}

// ---- the handle ----

stream::stream(connection over) : core_(stream_ref(*new message_stream(std::move(over)))) {}

stream& stream::operator=(stream&& other) noexcept {
  drop();
  core_ = std::move(other.core_);
  return *this;
}

stream::~stream() { drop(); }

void stream::drop() noexcept {
  if (core_) core_->drop();
}

stream_ref stream::checked() const {
  if (!core_) throw error(errc::closed, not_connected_words);
  return core_.held();
}

executor_core& stream::home() const { return checked()->home(); }

task<std::size_t> stream::read_some(std::span<std::byte> where) { return read_some(writable_ranges(where)); }

task<std::size_t> stream::read_some(std::span<const std::span<std::byte>> where) {
  return read_some(writable_ranges(where));
}

task<std::size_t> stream::read_some(writable_ranges where) {
  const stream_ref core = core_.held();
  if (!core) return not_connected<std::size_t>();
  return core->read_some(core, where);
}

task<received_bytes> stream::read_bytes() {
  const stream_ref core = core_.held();
  if (!core) return not_connected<received_bytes>();
  return core->read_bytes(core);
}

namespace {

task<> read_all(stream_ref core, std::span<std::byte> where) {
  if (!core) throw error(errc::closed, not_connected_words);
  while (!where.empty()) {
    const std::size_t count = co_await core->read_some(core, writable_ranges(where));
    if (count == 0) throw error(errc::peer_closed, fmt::format("read {} more bytes of a stream", where.size()));
    where = where.subspan(count);
  }
}

task<> write_all(stream_ref core, std::span<const std::byte> what) {
  if (!core) throw error(errc::closed, not_connected_words);
  while (!what.empty()) what = what.subspan(co_await core->write_some(core, readable_ranges(what)));
}

}  // namespace

task<> stream::read(std::span<std::byte> where) { return read_all(core_.held(), where); }

task<std::size_t> stream::write_some(std::span<const std::byte> what) { return write_some(readable_ranges(what)); }

task<std::size_t> stream::write_some(std::span<const std::span<const std::byte>> what) {
  return write_some(readable_ranges(what));
}

task<std::size_t> stream::write_some(readable_ranges what) {
  const stream_ref core = core_.held();
  if (!core) return not_connected<std::size_t>();
  return core->write_some(core, what);
}

task<std::size_t> stream::write_some(mr::slice what) {
  const stream_ref core = core_.held();
  if (!core) return not_connected<std::size_t>();
  return core->write_some(core, what);
}

task<> stream::write(std::span<const std::byte> what) { return write_all(core_.held(), what); }

task<> stream::write(mr::buffer&& what) {
  mr::buffer taken(std::move(what));
  const stream_ref core = core_.held();
  if (!core) return not_connected<void>();
  return core->write(core, std::move(taken));
}

task<> stream::shutdown_send() {
  const stream_ref core = core_.held();
  if (!core) return not_connected<void>();
  return core->shutdown_send(core);
}

closing stream::close() noexcept {
  if (core_) core_->close();
  return closing(core_ ? core_.held() : stream_ref());
}

void stream::abort() noexcept {
  if (core_) core_->abort();
}

void stream::cancel() noexcept {
  if (core_) core_->cancel();
}

bool stream::is_open() const noexcept { return core_ && core_->is_open(); }

std::string_view stream::peer() const noexcept { return core_ ? std::string_view(core_->peer()) : std::string_view(); }

// ---- by address ----

namespace {

struct destination {
  bool plain = false;  // TCP
  std::string_view where;
};

// "SCHEME://HOST:PORT", or without a scheme. The device's own is the part of its name before a colon.
destination parse_destination(std::string_view address, const device& through) {
  const std::size_t end = address.find("://");
  if (end == std::string_view::npos) return {.plain = false, .where = address};
  const std::string_view scheme = address.substr(0, end);
  const std::string_view where = address.substr(end + 3);
  if (scheme == "tcp") return {.plain = true, .where = where};
  const std::string_view own = through.name().substr(0, through.name().find(':'));
  if (scheme == own) return {.plain = false, .where = where};
  throw error(errc::not_supported,
              fmt::format("\"{}\": this device speaks \"{}://\", and there is \"tcp://\"", address, own));
}

}  // namespace

task<stream> stream::connect(device& through, std::string address, connection_options options) {
  const destination target = parse_destination(address, through);
  if (!target.plain) {
    auto over = co_await through.connect(std::string(target.where), options);
    co_return stream(std::move(over));
  }
  try {
    co_return stream(co_await connect_tcp(through.pool(), target.where, options));
  } catch (const error& why) {
    throw why.within(fmt::format("connect to {} over tcp", target.where));
  }
}

struct stream_request::plain {
  std::unique_ptr<tcp_acceptor::peer> peer;
  std::string name;
  mr::pool* pool;
};

stream_request::stream_request(connection_request request) noexcept : request_(std::move(request)) {}
stream_request::stream_request(std::unique_ptr<plain> peer) noexcept : plain_(std::move(peer)) {}
stream_request::stream_request(stream_request&&) noexcept = default;
stream_request& stream_request::operator=(stream_request&&) noexcept = default;
stream_request::~stream_request() = default;

std::string_view stream_request::peer() const noexcept {
  if (request_) return request_->peer();
  return plain_ != nullptr ? std::string_view(plain_->name) : std::string_view();
}

namespace {

task<stream> accept_over(task<connection> accepted) {
  auto over = co_await std::move(accepted);
  co_return stream(std::move(over));
}

}  // namespace

task<stream> stream_request::accept(connection_options options) {
  if (request_) return accept_over(request_->accept(options));
  return accept_plain(std::exchange(plain_, nullptr), options.dead_peer_after);
}

task<stream> stream_request::accept_plain(std::unique_ptr<plain> from, std::chrono::milliseconds dead_peer_after) {
  if (from == nullptr) throw error(errc::invalid_argument, "this stream request was answered before");
  try {
    prepare_socket(from->peer->socket, dead_peer_after);
    const stream_ref made(*new tcp_stream(std::move(from->peer->socket), from->name, *from->pool, dead_peer_after,
                                          std::move(from->peer->place)));
    co_return stream(made);
  } catch (const error& why) {
    throw why.within(fmt::format("accept {} over tcp", from->name));
  }
}

stream_listener::stream_listener(mr::pool& pool, std::string address) noexcept
    : pool_(&pool), address_(std::move(address)) {}
stream_listener::stream_listener(stream_listener&&) noexcept = default;

stream_listener& stream_listener::operator=(stream_listener&& other) noexcept {
  if (plain_ != nullptr) plain_->close();
  pool_ = other.pool_;
  address_ = std::move(other.address_);
  over_ = std::move(other.over_);
  plain_ = std::move(other.plain_);
  return *this;
}

// One over a device stops by itself.
stream_listener::~stream_listener() {
  if (plain_ != nullptr) plain_->close();
}

void stream_listener::close() noexcept {
  if (over_) over_->close();
  if (plain_ != nullptr) plain_->close();
}

task<stream_listener> stream_listener::listen(device& through, std::string address, listener_options options) {
  const destination place = parse_destination(address, through);
  if (!place.plain) {
    auto over = co_await through.listen(std::string(place.where), options);
    stream_listener made(through.pool(), std::string(over.address()));
    made.over_ = std::move(over);
    co_return made;
  }
  try {
    auto source = co_await listen_tcp(place.where, options);
    stream_listener made(through.pool(), "tcp://" + source->address().to_string());
    made.plain_ = std::move(source);
    co_return made;
  } catch (const error& why) {
    throw why.within(fmt::format("listen on {} over tcp", place.where));
  }
}

// The listener may go before the task begins, and while it waits.
task<std::optional<stream_request>> stream_listener::next() {
  return over_ ? next_over(over_->next()) : next_plain(plain_, *pool_);
}

task<std::optional<stream_request>> stream_listener::next_over(task<std::optional<connection_request>> next) {
  auto request = co_await std::move(next);
  if (!request) co_return std::nullopt;
  co_return stream_request(*std::move(request));
}

task<std::optional<stream>> stream_listener::accept(connection_options options) {
  if (over_) return accept_over(over_->accept(options));
  return accept_next_plain(plain_, *pool_, options.dead_peer_after);
}

task<std::optional<stream>> stream_listener::accept_over(task<std::optional<connection>> next) {
  auto over = co_await std::move(next);
  if (!over) co_return std::nullopt;
  co_return stream(*std::move(over));
}

task<std::optional<stream>> stream_listener::accept_next_plain(std::shared_ptr<tcp_acceptor> source, mr::pool& pool,
                                                               std::chrono::milliseconds dead_peer_after) {
  for (;;) {
    auto request = co_await next_plain(source, pool);
    if (!request) co_return std::nullopt;
    try {
      co_return co_await stream_request::accept_plain(std::move(request->plain_), dead_peer_after);
    } catch (const error& why) {  // the peer has gone meanwhile: it concerns nobody else
      report_failed_set_up(why);
    }
  }
}

task<std::optional<stream_request>> stream_listener::next_plain(std::shared_ptr<tcp_acceptor> source, mr::pool& pool) {
  if (source == nullptr) throw error(errc::closed, "wait for a peer at a listener that was moved from");
  auto found = co_await tcp_acceptor::next(std::move(source));
  if (found == nullptr) co_return std::nullopt;
  auto made = std::make_unique<stream_request::plain>();
  made->name = found->address.to_string();
  made->peer = std::move(found);
  made->pool = &pool;
  co_return stream_request(std::move(made));
}

}  // namespace weft::net
