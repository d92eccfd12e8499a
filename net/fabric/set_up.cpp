// SPDX-License-Identifier: Apache-2.0
#include <weft/net/fabric/set_up.hpp>
#include <weft/net/link/tcp_socket.hpp>
#include <weft/runtime/core/stop_shield.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/offload.hpp>
#include <weft/runtime/sync/apart.hpp>
#include <weft/runtime/system/system_calls.hpp>

#include <fmt/core.h>

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <optional>
#include <utility>

namespace weft::net::fabric {
namespace {

bool is_end(const error& why) noexcept {
  return why.code() == std::errc::connection_reset || why.code() == std::errc::broken_pipe;
}

[[noreturn]] void refuse(const char* step, std::string_view why) {
  throw error(errc::protocol_error, fmt::format("{}: {}", step, why));
}

// The address with port 0, because the kernel chooses the port of an endpoint.
socket_address any_port_of(const socket_address& from) {
  sockaddr_storage copy{};
  std::memcpy(&copy, from.data(), from.size());
  if (copy.ss_family == AF_INET) reinterpret_cast<sockaddr_in*>(&copy)->sin_port = 0;
  if (copy.ss_family == AF_INET6) reinterpret_cast<sockaddr_in6*>(&copy)->sin6_port = 0;
  return {reinterpret_cast<const sockaddr*>(&copy), from.size()};
}

task<std::size_t> receive_part(descriptor& socket, std::span<std::byte> where, const char* step, time_point deadline) {
  std::size_t count = 0;
  try {
    count = co_await receive_some(socket, where, step, deadline);
  } catch (const error& why) {
    if (is_end(why)) throw error(errc::peer_vanished, step);
    throw;
  }
  if (count == 0) throw error(errc::peer_vanished, step);
  co_return count;
}

}  // namespace

task<frame> receive_frame(descriptor& socket, const char* step, time_point deadline) {
  std::array<std::byte, frame::header_bytes> header;
  for (std::size_t have = 0; have != header.size();) {
    have += co_await receive_part(socket, std::span(header).subspan(have), step, deadline);
    if (!may_be_ours(std::span(header).first(have)))
      refuse(step, "the peer does not speak weft's set-up over libfabric");
  }
  frame got;
  const frame_status status = unpack(header, got);
  if (status == frame_status::other_version) co_return got;
  if (status != frame_status::good) refuse(step, "the frame makes no sense");
  std::array<std::byte, frame::max_bytes> rest;
  const std::size_t length = rest_of(got);
  for (std::size_t have = 0; have != length;) {
    have += co_await receive_part(socket, std::span(rest).subspan(have, length - have), step, deadline);
  }
  unpack_rest(std::span(rest).first(length), got);
  co_return got;
}

void check_kind(const frame& got, frame_kind wanted, const char* step) {
  if (got.version != frame::spoken_version) {
    refuse(step, fmt::format("the peer speaks version {} of this set-up, and this end version {}", got.version,
                             frame::spoken_version));
  }
  if (got.kind != wanted) refuse(step, "another frame came");
}

task<> send_frame(descriptor& socket, const frame& what, const char* step, time_point deadline) {
  std::array<std::byte, frame::max_bytes> bytes;
  const std::size_t length = pack(what, bytes);
  for (std::size_t sent = 0; sent != length;) {
    try {
      sent += co_await send_some(socket, std::span(bytes).subspan(sent, length - sent), step, deadline);
    } catch (const error& why) {
      if (is_end(why)) throw error(errc::peer_vanished, step);
      throw;
    }
  }
}

void try_send_frame(const descriptor& socket, const frame& what) noexcept {
  std::array<std::byte, frame::max_bytes> bytes;
  send_now(socket, std::span(bytes).first(pack(what, bytes)));
}

namespace {

task<> close_on_worker(std::unique_ptr<endpoint> gone) {
  const auto work = [&gone] { gone.reset(); };
  weft::detail::promise_base& promise = co_await weft::detail::current_promise();
  const weft::detail::stop_shield shield(promise);
  co_await weft::detail::offload_for_resources(work);
}

// Runs `work` on a worker, and yields `self`. If the work throws, or after a stop, closes `self` on a worker, and
// throws.
template <class Work>
task<std::unique_ptr<endpoint>> work_on(std::unique_ptr<endpoint>& self, Work& work) {
  weft::detail::promise_base& promise = co_await weft::detail::current_promise();
  std::exception_ptr failure;
  try {
    const weft::detail::stop_shield shield(promise);  // or a stop would leave the endpoint to this thread
    co_await weft::detail::offload_for_resources(work);
  } catch (...) {
    failure = std::current_exception();
  }
  const bool stopped = promise.get_stop_token().stop_requested();
  if (failure == nullptr && !stopped) co_return std::move(self);
  if (self != nullptr) co_await close_on_worker(std::move(self));
  if (failure != nullptr) std::rethrow_exception(failure);
  throw error(errc::canceled, "stopped");
}

task<std::unique_ptr<endpoint>> make_on_worker(std::shared_ptr<const device> home, socket_address own,
                                               std::uint16_t requests, std::uint16_t receives,
                                               std::optional<frame> peer) {
  std::unique_ptr<endpoint> made;
  auto work = [&made, &home, &own, requests, receives, &peer] {
    made = std::make_unique<endpoint>(home, own.data(), own.size(), requests, receives);
    if (peer) made->insert(peer->address());
  };
  co_return co_await work_on(made, work);
}

task<std::unique_ptr<endpoint>> insert_on_worker(std::unique_ptr<endpoint> self, frame peer) {
  auto work = [&self, &peer] { self->insert(peer.address()); };
  co_return co_await work_on(self, work);
}

task<> close_on_worker(std::unique_ptr<fabric_link> gone) { co_await gone->give_up(); }

}  // namespace

task<std::unique_ptr<endpoint>> make_endpoint(std::shared_ptr<const device> home, const descriptor& socket,
                                              const set_up_options& options, const frame* peer) {
  std::optional<frame> known;
  if (peer != nullptr) known = *peer;
  return weft::detail::apart(make_on_worker(std::move(home), any_port_of(address_of(socket)), options.max_requests,
                                            options.max_receives, known));
}

task<std::unique_ptr<endpoint>> insert_peer(std::unique_ptr<endpoint> self, const frame& peer) {
  return weft::detail::apart(insert_on_worker(std::move(self), peer));
}

task<> give_up(std::unique_ptr<endpoint> gone) { return weft::detail::apart(close_on_worker(std::move(gone))); }

std::unique_ptr<fabric_link> make_link(established& made) {
  auto link = std::make_unique<fabric_link>(std::move(made));
  link->begin_set_up();
  return link;
}

task<std::unique_ptr<fabric_link>> conclude(std::unique_ptr<fabric_link> link, const std::exception_ptr& failure) {
  link->end_set_up();
  const bool was_late = link->was_late();  // then the socket is shut down, whatever has come before that
  if (failure == nullptr && !was_late) co_return link;
  co_await weft::detail::apart(close_on_worker(std::move(link)));
  if (was_late) throw error(errc::timed_out, "wait for a peer that may use memory which is taken back meanwhile");
  std::rethrow_exception(failure);
}

}  // namespace weft::net::fabric
