// SPDX-License-Identifier: Apache-2.0
#include <weft/net/connection/set_up.hpp>
#include <weft/net/device.hpp>
#include <weft/net/link/tcp_socket.hpp>
#include <weft/net/stream/destination.hpp>
#include <weft/net/stream/tcp_stream.hpp>
#include <weft/net/stream_listener.hpp>

#include <fmt/core.h>

#include <utility>

namespace weft::net {

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
  return accept_plain(std::exchange(plain_, nullptr), options);
}

task<stream> stream_request::accept_plain(std::unique_ptr<plain> from, connection_options options) {
  if (from == nullptr) throw error(errc::invalid_argument, "this stream request was answered before");
  try {
    prepare_socket(from->peer->socket, options.dead_peer_after);
    const stream_ref made(
        *new tcp_stream(std::move(from->peer->socket), from->name, *from->pool, options, std::move(from->peer->place)));
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

// The member over_ stops in its own destructor.
stream_listener::~stream_listener() {
  if (plain_ != nullptr) plain_->close();
}

void stream_listener::close() noexcept {
  if (over_) over_->close();
  if (plain_ != nullptr) plain_->close();
}

task<stream_listener> stream_listener::listen(device& through, std::string address, listener_options options) {
  const destination place = parse_destination(address, through.name());
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

// Not a coroutine, because the listener may be destroyed before the task begins, and while it waits.
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
  return accept_next_plain(plain_, *pool_, options);
}

task<std::optional<stream>> stream_listener::accept_over(task<std::optional<connection>> next) {
  auto over = co_await std::move(next);
  if (!over) co_return std::nullopt;
  co_return stream(*std::move(over));
}

task<std::optional<stream>> stream_listener::accept_next_plain(std::shared_ptr<tcp_acceptor> source, mr::pool& pool,
                                                               connection_options options) {
  for (;;) {
    auto request = co_await next_plain(source, pool);
    if (!request) co_return std::nullopt;
    try {
      co_return co_await stream_request::accept_plain(std::move(request->plain_), options);
    } catch (const error& why) {  // the peer has gone: wait for the next one
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
