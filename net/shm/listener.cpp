// SPDX-License-Identifier: Apache-2.0
#include <weft/net/link/listener_handle.hpp>
#include <weft/net/link/peer_words.hpp>
#include <weft/net/link/socket_listener.hpp>
#include <weft/net/shm/listener.hpp>
#include <weft/net/shm/set_up.hpp>
#include <weft/runtime/error.hpp>

#include <fmt/core.h>

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>

namespace weft::net::shm {
namespace {

constexpr const char* hello_step = "wait for the hello";

void try_reject(const descriptor& socket, reject_reason why, std::string_view words = {}) noexcept {
  frame answer{.kind = frame_kind::reject, .reason = why};
  static_cast<void>(answer.set_private_data(std::as_bytes(std::span(words))));
  try_send_frame(socket, answer);
}

bool is_shortage_of_descriptors(const error& why) noexcept {
  return why.code() == std::errc::too_many_files_open || why.code() == std::errc::too_many_files_open_in_system;
}

// Agrees on the smaller of the peer's wish and this end's, for each parameter.
frame agree(const frame& hello, std::uint32_t ring_bytes, const set_up_options& own) noexcept {
  return {.kind = frame_kind::accept,
          .incoming_reads = std::min(own.incoming_reads, hello.outgoing_reads),
          .outgoing_reads = std::min(own.outgoing_reads, hello.incoming_reads),
          .ring_bytes = std::min(ring_bytes, hello.ring_bytes)};
}

// A peer whose hello has arrived.
class request final : public net::link_request {
 public:
  request(std::unique_ptr<descriptor> socket, pid_t process, const frame& said, std::shared_ptr<software::domain> home,
          std::uint32_t ring_bytes)
      : socket_(std::move(socket)),
        peer_(process != 0 ? fmt::format("process {}", process) : "a process of another container"),
        hello_(said),
        home_(std::move(home)),
        ring_bytes_(ring_bytes) {}

  ~request() override {
    if (!answered_) try_reject(*socket_, reject_reason::program);
  }

  [[nodiscard]] std::string_view peer() const noexcept override { return peer_; }
  [[nodiscard]] std::span<const std::byte> private_data() const noexcept override { return hello_.private_data(); }

  task<std::unique_ptr<net::link>> accept(const set_up_options& options) override {
    frame answer = agree(hello_, ring_bytes_, options);
    set_private_data(answer, options.private_data);
    try {
      channel memory = make_channel(answer.ring_bytes);
      const std::array descriptors{memory.file()};
      send_frame(*socket_, answer, descriptors, "send the answer");
      answered_ = true;
      const received_frame last = co_await receive_frame(*socket_, "wait for the peer to be ready", options.deadline);
      check_kind(last.contents, frame_kind::ready, "wait for the peer to be ready");
      co_return finish_set_up(std::move(memory), *socket_, answer, std::move(peer_), home_, options.receives);
    } catch (const error& why) {
      if (is_shortage_of_descriptors(why)) reject_for_want_of_descriptors();
      throw;
    }
  }

  task<> reject(std::span<const std::byte> data) override {
    frame answer{.kind = frame_kind::reject};
    set_private_data(answer, data);
    answered_ = true;
    send_frame(*socket_, answer, {}, "send the rejection");
    co_return;
  }

 private:
  static void set_private_data(frame& answer, std::span<const std::byte> data) {
    if (!answer.set_private_data(data)) throw error(errc::invalid_argument, "too much private data");
  }
  // Creates the channel. If that fails for another reason than a lack of descriptors, which accept() handles, rejects
  // the peer with reject_reason::unable, so that the peer may try another fabric.
  channel make_channel(std::size_t ring_bytes) {
    try {
      return channel::make(ring_bytes, socket_->calls());
    } catch (const error& why) {
      if (!is_shortage_of_descriptors(why) && !std::exchange(answered_, true)) {
        const std::string_view words = why.what();
        try_reject(*socket_, reject_reason::unable, words.substr(0, frame::max_private_bytes));
      }
      throw;
    }
  }
  void reject_for_want_of_descriptors() noexcept {
    if (!std::exchange(answered_, true)) try_reject(*socket_, reject_reason::program, no_descriptors_left);
  }

  std::unique_ptr<descriptor> socket_;
  std::string peer_;
  frame hello_;
  std::shared_ptr<software::domain> home_;
  std::uint32_t ring_bytes_;
  bool answered_ = false;
};

class listener final : public socket_listener {
 public:
  listener(listening_socket at, std::shared_ptr<software::domain> of_device, const shm_options& chosen,
           const listen_options& options)
      : socket_listener(std::move(at.socket), std::move(at.name), options),
        domain_(std::move(of_device)),
        ring_bytes_(static_cast<std::uint32_t>(chosen.ring_bytes)),
        file_(std::move(at.file)),
        any_user_(path_of(name()).has_value()) {}

 private:
  // Each process of this process's user is an origin of its own, if it has a pid here. Any other user is one origin
  // with all of its processes, because they may be silent on purpose, and may be any number.
  [[nodiscard]] peer_origin origin_of(const descriptor& socket, const socket_address&) const noexcept override {
    ucred who{};
    socklen_t length = sizeof who;
    static_cast<void>(socket.calls().getsockopt(socket.fd(), SOL_SOCKET, SO_PEERCRED, &who, &length));
    const std::array<std::uint32_t, 2> parts{who.uid, is_same_user(who) ? static_cast<std::uint32_t>(who.pid) : 0};
    peer_origin from;
    static_assert(sizeof from == sizeof parts);
    std::memcpy(from.data(), parts.data(), sizeof parts);
    return from;
  }
  task<std::unique_ptr<net::link_request>> receive_request(std::unique_ptr<descriptor> socket, const socket_address&,
                                                           time_point deadline) override;
  task<> turn_away(descriptor& socket, time_point deadline) override;
  void closing() noexcept override { file_.remove(); }

  std::shared_ptr<software::domain> domain_;
  std::uint32_t ring_bytes_;
  socket_file file_;
  bool any_user_;
};

// Rejects only after reading the hello: closing a socket with unread packets gives the peer ECONNRESET before the
// rejection.
task<std::unique_ptr<net::link_request>> listener::receive_request(std::unique_ptr<descriptor> socket,
                                                                   const socket_address&, time_point deadline) {
  const ucred who = peer_of(*socket);
  try {
    const received_frame hello = co_await receive_frame(*socket, hello_step, deadline);
    if (!any_user_ && !is_same_user(who)) {
      try_reject(*socket, reject_reason::other_user);
      throw error(errc::access_denied, "a process of another user wants to connect");
    }
    if (hello.contents.version != frame::spoken_version) try_reject(*socket, reject_reason::other_version);
    check_kind(hello.contents, frame_kind::hello, hello_step);
    home().io().forget(*socket);
    co_return std::make_unique<request>(std::move(socket), who.pid, hello.contents, domain_, ring_bytes_);
  } catch (const error& why) {
    if (is_shortage_of_descriptors(why)) try_reject(*socket, reject_reason::program, no_descriptors_left);
    throw;
  }
}

task<> listener::turn_away(descriptor& socket, time_point deadline) {
  co_await discard_packet(socket, hello_step, deadline);
  try_reject(socket, reject_reason::program, no_descriptors_left);
}

}  // namespace

std::unique_ptr<net::link_listener> listen(listening_socket at, std::shared_ptr<software::domain> home,
                                           const shm_options& of_device, const listen_options& options) {
  return std::make_unique<listener_handle<socket_listener>>(
      std::make_shared<listener>(std::move(at), std::move(home), of_device, options));
}

}  // namespace weft::net::shm
