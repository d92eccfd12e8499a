// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/iwarp/mpa.hpp>
#include <weft/net/iwarp/rdmap.hpp>
#include <weft/net/software/words.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

// MPA connection set-up without I/O: bytes in, bytes out (RFC 5044 section 7.1, RFC 6581). For both machines, the code
// that does the I/O
//   - sends output() before anything else, in any state, even before closing, and reports it with sent();
//   - feeds what TCP delivers to consume(), until the state is no longer `waiting`. consume() never takes bytes behind
//     the frame, which belong to the engine;
//   - keeps the deadlines.
namespace weft::net::iwarp {

using software::words;

/// The most private data that a user can send in MPA revision 2, in bytes.
inline constexpr std::size_t max_user_private_bytes = mpa::max_private_bytes - mpa::enhanced_bytes;

/// The ready-to-receive message, by which an initiator allows its responder to send. Our initiator never uses a Send;
/// our responder agrees to one if the peer can do nothing else.
enum class ready_signal : std::uint8_t { write, read, send };

/// The parameters that the set-up agreed on.
struct parameters {
  std::uint8_t revision = 2;
  bool crc = true;
  bool peer_to_peer = false;  ///< the responder knows that the initiator sends a ready signal by itself
  /// The ready signal in the initiator's output(); see engine_options::signal_was_read and signal_is_send. A responder
  /// knows it only if it is a Send.
  ready_signal signal = ready_signal::write;
  std::uint16_t ird = 0;                         ///< reads and atomics that the peer may have outstanding here
  std::uint16_t ord = 0;                         ///< reads and atomics that we may have outstanding at the peer
  std::uint16_t peer_ird = mpa::not_negotiated;  ///< the IRD that the peer stated, for the user's information
  std::uint16_t peer_ord = mpa::not_negotiated;  ///< the ORD that the peer stated, likewise
};

enum class handshake_state : std::uint8_t {
  waiting,      ///< for the peer's frame
  requested,    ///< responder only: the request has arrived; accept() or reject() it
  established,  ///< output() holds what must be sent before the engine's first byte
  rejected,     ///< by this side, or by the peer, whose private data may then say why
  failed,       ///< error() says why; send output(), then close
};

/// The common part of initiator and responder: parses the peer's frame, and keeps the output until it is sent.
class handshake {
 public:
  handshake(const handshake&) = delete;
  handshake& operator=(const handshake&) = delete;

  [[nodiscard]] handshake_state state() const noexcept { return state_; }
  /// The agreed parameters; valid once established. In the state `requested`, those of a responder combine its own
  /// limits with the peer's wishes.
  [[nodiscard]] const parameters& agreed() const noexcept { return agreed_; }
  /// The peer's private data, once its frame has arrived. Lives as long as this object.
  [[nodiscard]] std::span<const std::byte> peer_private_data() const noexcept { return peer_private_data_; }
  /// Why the set-up failed or was rejected.
  [[nodiscard]] const words& error() const noexcept { return error_; }

  /// Bytes to send now.
  [[nodiscard]] std::span<const std::byte> output() const noexcept;
  void sent(std::size_t bytes) noexcept;

  /// Reports the end of TCP's stream, which fails a set-up that is `waiting` or `requested`.
  void end_of_stream() noexcept;

 protected:
  handshake() noexcept = default;
  ~handshake() = default;

  /// Moves the bytes of the peer's frame out of `bytes`. Returns true once the frame is complete, and `frame` is set.
  /// Returns false if more bytes have to come, if the frame is malformed (the state is then `failed`), or if the state
  /// was not `waiting`.
  bool receive(mpa::frame_kind expected, std::span<const std::byte>& bytes, mpa::frame& frame) noexcept;
  void fail(const words& why) noexcept;
  void append(const mpa::frame& frame) noexcept;
  void append(std::span<const std::byte> bytes) noexcept;

  handshake_state state_ = handshake_state::waiting;
  parameters agreed_;
  std::span<const std::byte> peer_private_data_;
  words error_;

 private:
  std::array<std::byte, mpa::max_frame_bytes> input_;
  std::array<std::byte, mpa::max_frame_bytes + 128> output_;  // a frame, a ready signal and a Terminate
  std::size_t input_bytes_ = 0;
  std::size_t output_bytes_ = 0;
  std::size_t output_sent_ = 0;
};

struct initiator_options {
  bool crc = true;
  std::uint16_t ird = 16;                     ///< rounded down to a power of two, because siw rounds up
  std::uint16_t ord = 16;                     ///< rounded down to a power of two
  std::uint8_t revision = 2;                  ///< 1 for peers that know no enhanced set-up
  std::span<const std::byte> private_data{};  ///< copied; more than max_user_private_bytes (revision 1: 512) fails
};

/// The side that connected. In revision 2 it asks for peer-to-peer mode (A = 1). It sends the ready signal as soon as
/// an acceptable reply has arrived, so that the responder may send first. If the reply asks for no signal, the
/// initiator sends a zero-length Write all the same, which is valid on any stream.
///
/// Linux 6.1 siw crashes if a peer closes after the reply without that signal: once established, never close before
/// output() is sent.
class initiator : public handshake {
 public:
  explicit initiator(const initiator_options& options) noexcept;

  /// Takes bytes from the peer; returns how many.
  std::size_t consume(std::span<const std::byte> bytes) noexcept;

 private:
  void judge(const mpa::frame& reply) noexcept;
  [[nodiscard]] bool adopt(const mpa::enhanced_data& reply) noexcept;
  void append_ready_signal() noexcept;
  void establish() noexcept;
  void refuse(terminate_code why) noexcept;

  std::uint8_t revision_;
};

struct responder_options {
  bool crc = true;
  std::uint16_t ird = 16;  ///< the most incoming reads and atomics; rounded down to a power of two
  std::uint16_t ord = 16;  ///< the most outgoing reads and atomics; rounded down to a power of two
};

/// The side that was connected to. Accepts revisions 1 and 2.
class responder : public handshake {
 public:
  explicit responder(const responder_options& options) noexcept;

  /// Takes bytes from the peer; returns how many. Takes no more once the state is `requested`.
  std::size_t consume(std::span<const std::byte> bytes) noexcept;

  /// Lowers the constructor's limits to those of the user who accepts, and turns CRCs on if the user wants them. Call
  /// it before accept().
  void limit(const responder_options& options) noexcept;

  /// The most bytes of private data that an answer may carry. Known once the state is `requested`.
  [[nodiscard]] std::size_t max_answer_bytes() const noexcept;

  /// Accept or reject the request. Both return false and do nothing if the state is not `requested`, or if
  /// `private_data` exceeds max_answer_bytes().
  [[nodiscard]] bool accept(std::span<const std::byte> private_data) noexcept;
  [[nodiscard]] bool reject(std::span<const std::byte> private_data) noexcept;

 private:
  void judge(const mpa::frame& request) noexcept;
  void negotiate(const mpa::enhanced_data& request) noexcept;
  [[nodiscard]] mpa::frame answer(std::span<const std::byte> private_data, bool rejected) const noexcept;

  std::optional<mpa::enhanced_data> reply_;  // set if the request is enhanced
};

}  // namespace weft::net::iwarp
