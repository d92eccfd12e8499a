// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/connection_places.hpp>
#include <weft/net/link/tcp_socket.hpp>
#include <weft/net/link/tcp_window_watch.hpp>
#include <weft/net/options.hpp>
#include <weft/net/stream/stream_core.hpp>
#include <weft/runtime/core/root_task.hpp>
#include <weft/runtime/io/io.hpp>
#include <weft/runtime/io/socket_address.hpp>
#include <weft/runtime/system/descriptor.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace weft::net {

/// A stream over plain TCP, to peers that know nothing of weft.
class tcp_stream final : public stream_core {
 public:
  /// Takes over a connected socket. Called on the executor that will own the stream.
  tcp_stream(descriptor socket, std::string peer, mr::pool& pool, const connection_options& options,
             std::unique_ptr<connection_place> place = nullptr);

  task<std::size_t> read_some(stream_ref self, writable_ranges where) override;
  task<received_bytes> read_bytes(stream_ref self) override;
  task<std::size_t> write_some(stream_ref self, readable_ranges what) override;
  task<std::size_t> write_some(stream_ref self, mr::slice what) override;
  task<> write(stream_ref self, mr::buffer what) override;
  task<> shutdown_send(stream_ref self) override;

  void close() noexcept override;
  void abort() noexcept override;
  void drop() noexcept override;
  [[nodiscard]] bool is_open() const noexcept override { return !ended_; }

 private:
  class user;
  // The socket and its watch, which both end on the executor's thread.
  class wire final : private detail::remote_work {
   public:
    wire(executor_core& home, descriptor opened, const connection_options& options,
         std::unique_ptr<connection_place> taken) noexcept
        : place(std::move(taken)),
          socket(std::move(opened)),
          window(home, socket, options.dead_peer_after),
          home_(home),
          patience_(options.close_timeout) {}
    /// Closes the socket, on its executor. From any thread.
    static void close(std::unique_ptr<wire> item) noexcept;

    /// What may still come from the peer: more bytes; none, because it has ended its output; none, because the socket
    /// has failed.
    enum class input : std::uint8_t { more, over, failed };
    /// Drops input that will not be read.
    input drop_input() noexcept;
    /// Waits until the peer's machine has all that was sent and, if input was dropped, the peer has ended its output,
    /// too. Gives up after close_timeout without progress, or if the socket fails. Only after this end has shut down
    /// its output.
    task<> wait_until_arrived();

    std::unique_ptr<connection_place> place;  // among the listener's connections; kept until the socket is closed
    descriptor socket;
    tcp_window_watch window;
    bool is_aborted = false;

   private:
    void run_on_executor() noexcept override;
    void close_at_home() noexcept;
    static task<> end_in_background(wire& self);
    executor_core& home_;
    const std::chrono::milliseconds patience_;  // close_timeout
    bool has_dropped_ = false;                  // drop_input() has found bytes
    executor_core::dependent open_{home_};
  };

  const int exceptions_before_ = weft::detail::exceptions_under_way();

  void check(const char* what) const;
  task<> wait_for_input();
  void check_sendable() const;
  [[nodiscard]] error failure(int number, const char* what) const;
  void end() noexcept;
  task<> finish(stream_ref self);

  std::unique_ptr<wire> wire_;  // null once the stream has ended, and no coroutine uses the socket
  unsigned users_ = 0;          // coroutines that may have an operation in progress on the socket
  bool ended_ = false;          // close(), abort() or drop() was called
  bool finishing_ = false;      // finish() uses the socket
  bool output_ended_ = false;
};

/// Accepts plain TCP peers. Operations share it, because its handle may be destroyed while an operation waits.
class tcp_acceptor final {
 public:
  struct peer {
    std::unique_ptr<connection_place> place;
    descriptor socket;
    socket_address address;
  };

  /// Listens at the address, on the current executor. Throws weft::error.
  tcp_acceptor(const socket_address& address, const listener_options& options);

  [[nodiscard]] const socket_address& address() const noexcept { return address_; }
  /// Waits for the next peer; null after close(). A peer for which there is no place, or no descriptor, is accepted and
  /// closed at once. Throws errc::busy while another task waits, errc::wrong_thread, errc::canceled, and the errors of
  /// accept(2) that are neither transient nor a shortage.
  static task<std::unique_ptr<peer>> next(std::shared_ptr<tcp_acceptor> self);
  void close() noexcept;

 private:
  task<> pause();

  executor_core& home_;
  std::shared_ptr<connection_places> places_;
  descriptor socket_;
  spare_descriptor spare_;
  socket_address address_;
  stop_source* waiting_ = nullptr;  // stops next(); null while no next() is in progress
  bool closed_ = false;
  std::optional<executor_core::dependent> open_{std::in_place, home_};  // until close(), the executor must live
};

/// Connects over plain TCP, trying each address of a name. Throws weft::error.
task<stream_ref> connect_tcp(mr::pool& pool, std::string_view address, const connection_options& options);
/// Listens at the first address of a name at which that succeeds. Throws weft::error.
task<std::shared_ptr<tcp_acceptor>> listen_tcp(std::string_view address, const listener_options& options);

}  // namespace weft::net
