// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/weft.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

// Valkey over RDMA: RESP's bytes, written into the other end's buffer. Described on Valkey's site, in topics/RDMA.
namespace kv {

/// What the ends say to each other in messages, beside the bytes.
namespace valkey {

/// Of every message.
inline constexpr std::size_t message_bytes = 32;

/// What does the server offer, of the 64 features of this number? The server answers in the same form.
struct get_server_feature {
  std::uint16_t select = 0;
  std::uint64_t features = 0;
};
/// These shall be used.
struct set_client_feature {
  std::uint16_t select = 0;
  std::uint64_t features = 0;
};
struct keepalive {};
/// The sender's buffer, to be written once from its beginning to its end.
struct register_memory {
  std::uint64_t address = 0;
  std::uint32_t length = 0;
  std::uint32_t key = 0;
};
using message = std::variant<get_server_feature, set_client_feature, keepalive, register_memory>;

[[nodiscard]] std::array<std::byte, message_bytes> pack(const message& what);
/// Throws weft::error that says what is wrong. What is reserved may be anything.
[[nodiscard]] message unpack(std::span<const std::byte> bytes);

}  // namespace valkey

struct valkey_options {
  std::uint32_t buffer_bytes = 65536;  ///< that the peer may write before it is told anew
  /// Messages and notifications of the peer that may be under way. The protocol recommends 1024, which some devices do
  /// not have beside what weft needs itself.
  std::uint16_t receive_depth = 960;
};

/// A stream of bytes over a connection, as Valkey has it. It trusts nothing that the peer says: what breaks the
/// protocol ends the connection with a weft::error that names the peer. One read, one write and one keep_alive() at a
/// time. On one executor.
class valkey_stream {
 public:
  /// As the server, whoever the peer is.
  [[nodiscard]] static weft::task<valkey_stream> accept(weft::net::device& device, weft::net::connection_request peer,
                                                        valkey_options options = {});
  /// As the client, to "HOST:PORT".
  [[nodiscard]] static weft::task<valkey_stream> connect(weft::net::device& device, std::string address,
                                                         valkey_options options = {});

  /// Reads what has come, as much as there is room for. 0: the peer has gone.
  [[nodiscard]] weft::task<std::size_t> read_some(std::span<std::byte> where);
  /// Writes all of it, as the peer makes room. To a peer that has gone it writes nothing, and the next read says so.
  [[nodiscard]] weft::task<> write(std::span<const std::byte> what);
  /// Tells the peer that this end is there.
  [[nodiscard]] weft::task<> keep_alive();
  [[nodiscard]] weft::task<> close();
  [[nodiscard]] std::string_view peer() const noexcept { return peer_.peer(); }

 private:
  enum class role : std::uint8_t { server, client };

  valkey_stream(weft::net::device& device, weft::net::connection peer, role ours, weft::mr::region buffer) noexcept
      : device_(&device),
        peer_(std::move(peer)),
        role_(ours),
        region_(std::move(buffer)),
        buffer_(region_.bytes()),
        size_(static_cast<std::uint32_t>(buffer_.size())) {}
  static weft::task<weft::mr::region> make_buffer(weft::net::device& device, std::uint32_t bytes);
  static weft::task<valkey_stream> start(weft::net::device& device, weft::net::connection peer, role ours,
                                         weft::mr::region buffer);

  weft::task<> open_buffer();
  [[nodiscard]] weft::mr::remote_region open_to_peer() const;
  weft::task<> announce_buffer();
  weft::task<> tell(valkey::message what);
  [[nodiscard]] bool is_end(const weft::error& failure) const;
  weft::task<bool> take_message();
  weft::task<bool> put(weft::mr::buffer bytes);
  weft::task<> handle(const valkey::message& what);
  void written(std::uint32_t bytes);
  void use_buffer(const valkey::register_memory& announced);
  [[noreturn]] void refuse(std::string_view why);

  template <class Condition>
  weft::task<bool> take_messages_until(Condition condition);

  weft::net::device* device_;
  weft::net::connection peer_;
  role role_;
  bool gone_ = false;
  std::unique_ptr<weft::mutex> turn_ = std::make_unique<weft::mutex>();  // at the next message

  // This end's buffer, with a window for this connection where the device has windows. Memory of its own: a client that
  // is silent would hold it in the pool, for which others wait.
  weft::mr::region region_;
  weft::net::exposure window_;
  bool has_window_ = false;
  std::span<const std::byte> buffer_;
  std::uint32_t size_;
  std::uint32_t written_ = 0;  // by the peer
  std::uint32_t read_ = 0;     // of that, here

  // The peer's.
  std::optional<weft::mr::remote_slice> target_;
  std::uint64_t used_ = 0;
};

}  // namespace kv
