// SPDX-License-Identifier: Apache-2.0
// A peer made by hand, for saying what no connection of ours would say.
#pragma once

#include <weft/net/iwarp/handshake.hpp>
#include <weft/net/iwarp/rdmap.hpp>
#include <weft/net/link/native_protocol.hpp>
#include <weft/runtime/system/descriptor.hpp>
#include <weft/runtime/task.hpp>

#include "kit/standard.hpp"

namespace weft::test {

using bytes = std::vector<std::byte>;

[[nodiscard]] bytes text(std::string_view words);
inline const bytes nothing;

// Kinds of weft's messages.
inline constexpr std::uint8_t data_kind = 1;
inline constexpr std::uint8_t credits_kind = 2;

inline constexpr std::uint32_t greeted_depth = 16;   ///< of greeting_bytes() and of connection_options alike
inline constexpr std::uint32_t greeted_size = 4096;  ///< likewise
/// A greeting of weft's.
[[nodiscard]] bytes greeting_bytes(std::uint16_t receive_depth = greeted_depth,
                                   std::uint32_t receive_size = greeted_size);
/// The same with more bits set in one of its bytes.
[[nodiscard]] bytes greeting_with(std::size_t at, std::uint8_t bits);
[[nodiscard]] bytes trailer_bytes(const net::trailer& end);

/// An MPA frame as it is sent.
[[nodiscard]] bytes frame_bytes(const net::iwarp::mpa::frame& frame);
/// An MPA request frame with a greeting.
[[nodiscard]] bytes request_frame(bool crc = false);
/// An MPA reply frame with a greeting.
[[nodiscard]] bytes reply_frame(bool crc = false, bool rejected = false);
/// A rejection with this private data.
[[nodiscard]] bytes rejection_frame(std::string_view said);

/// A ULPDU: a header, and what is behind it.
[[nodiscard]] bytes tagged_ulpdu(const net::iwarp::tagged_header& header, std::span<const std::byte> payload);
[[nodiscard]] bytes untagged_ulpdu(const net::iwarp::untagged_header& header, std::span<const std::byte> payload);

/// One TCP socket and what the protocol needs to know of it. Coroutines of the running executor.
class raw_peer {
 public:
  explicit raw_peer(descriptor socket) : socket_(std::make_unique<descriptor>(std::move(socket))) {}

  /// TCP only; with a maximum segment size unless it is 0, and from this address unless it is null.
  [[nodiscard]] static raw_peer connect(std::string_view address, int segment_bytes = 0, const char* from = nullptr);
  /// Sets up as the initiator, ready signal included; yields what was agreed.
  [[nodiscard]] task<net::iwarp::parameters> set_up(net::iwarp::initiator_options how);
  [[nodiscard]] task<> set_up(std::span<const std::byte> private_data, bool crc = false);
  /// Sets up as the responder, with this reply; yields the request.
  [[nodiscard]] task<bytes> answer(std::span<const std::byte> reply);

  [[nodiscard]] task<> send(std::span<const std::byte> what);
  /// Without waiting, even for the executor's next turn.
  void send_now(std::span<const std::byte> what);
  /// Likewise, but only what the sockets have room for; returns how much that was.
  std::size_t send_what_fits(std::span<const std::byte> what);
  /// An FPDU around `ulpdu`; with a wrong CRC if told so.
  [[nodiscard]] task<> send_fpdu(std::span<const std::byte> ulpdu, bool spoil_crc = false);
  [[nodiscard]] bytes fpdu(std::span<const std::byte> ulpdu) const;

  /// A message as RDMAP has it.
  [[nodiscard]] task<> send_message(std::span<const std::byte> body);
  /// An FPDU with the next message, of so many bytes.
  [[nodiscard]] bytes next_message_fpdu(std::size_t size);
  /// The same with a trailer behind it.
  [[nodiscard]] task<> send_message(std::span<const std::byte> payload, std::uint8_t kind, std::uint32_t credits);
  [[nodiscard]] task<> write(std::uint32_t stag, std::uint64_t offset, std::span<const std::byte> data);
  [[nodiscard]] task<> read(std::uint32_t stag, std::uint64_t offset, std::uint32_t size);
  [[nodiscard]] bytes terminate(net::iwarp::terminate_code code) const;

  /// As many bytes as there is room for.
  [[nodiscard]] task<> receive(std::span<std::byte> where);
  /// The next FPDU's ULPDU; empty at the end of the stream.
  [[nodiscard]] task<bytes> receive_fpdu();
  /// The cause in the next Terminate; none if the stream ends without one. What comes before it is skipped.
  [[nodiscard]] task<std::optional<net::iwarp::terminate_code>> receive_terminate();
  /// Everything up to the end of the stream, in order or not.
  [[nodiscard]] task<bytes> receive_rest();

  /// Whether the other side has reset the connection; what it had sent before need not be received.
  [[nodiscard]] bool is_reset() const noexcept;
  /// No more from this side.
  void finish() noexcept;
  void close() noexcept { socket_->close(); }
  /// The same with a RST.
  void reset() noexcept;

 private:
  std::unique_ptr<descriptor> socket_;
  bool crc_ = false;
  std::uint32_t next_message_ = 1;
  std::uint32_t next_read_ = 1;
};

/// A TCP listener on the loopback that swallows whatever is sent to it: its backlog is full.
class deaf_listener {
 public:
  deaf_listener();
  [[nodiscard]] const std::string& address() const noexcept { return address_; }

 private:
  descriptor socket_;
  descriptor filling_;
  std::string address_;
};

/// A port of the loopback where nobody listens, nor can listen while it lives.
class deserted_port {
 public:
  deserted_port();
  [[nodiscard]] const std::string& address() const noexcept { return address_; }

 private:
  descriptor socket_;
  std::string address_;
};

/// A TCP listener on the loopback.
class raw_listener {
 public:
  raw_listener();
  [[nodiscard]] const std::string& address() const noexcept { return address_; }
  [[nodiscard]] task<raw_peer> accept();

 private:
  std::unique_ptr<descriptor> socket_;
  std::string address_;
};

}  // namespace weft::test
