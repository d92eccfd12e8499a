// SPDX-License-Identifier: Apache-2.0
#include <weft/net/device.hpp>
#include <weft/net/link/failed_task.hpp>
#include <weft/net/stream.hpp>
#include <weft/net/stream/destination.hpp>
#include <weft/net/stream/message_stream.hpp>
#include <weft/net/stream/tcp_stream.hpp>

#include <fmt/core.h>

namespace weft::net {

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
  const std::uint64_t cancels = core->cancels();
  while (!where.empty()) {
    if (core->is_canceled_since(cancels)) throw error(errc::canceled, "read from a stream");
    const std::size_t count = co_await core->read_some(core, writable_ranges(where));
    if (count == 0) throw error(errc::peer_closed, fmt::format("read {} more bytes of a stream", where.size()));
    where = where.subspan(count);
  }
}

task<> write_all(stream_ref core, std::span<const std::byte> what) {
  if (!core) throw error(errc::closed, not_connected_words);
  const std::uint64_t cancels = core->cancels();
  while (!what.empty()) {
    if (core->is_canceled_since(cancels)) throw error(errc::canceled, "write to a stream");
    what = what.subspan(co_await core->write_some(core, readable_ranges(what)));
  }
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

task<stream> stream::connect(device& through, std::string address, connection_options options) {
  const destination target = parse_destination(address, through.name());
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

}  // namespace weft::net
