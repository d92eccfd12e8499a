// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/connection.hpp>
#include <weft/net/stream/stream_core.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace weft::net {

/// A stream over a connection: its bytes travel as messages, and an empty message ends one direction.
class message_stream final : public stream_core {
 public:
  explicit message_stream(connection over);

  task<std::size_t> read_some(stream_ref self, writable_ranges where) override;
  task<received_bytes> read_bytes(stream_ref self) override;
  task<std::size_t> write_some(stream_ref self, readable_ranges what) override;
  task<std::size_t> write_some(stream_ref self, mr::slice what) override;
  task<> write(stream_ref self, mr::buffer what) override;
  task<> shutdown_send(stream_ref self) override;

  void close() noexcept override;
  void abort() noexcept override;
  void drop() noexcept override;
  [[nodiscard]] bool is_open() const noexcept override { return connection_ && !closing_ && !aborted_; }

 private:
  // The messages of one write: awaited together, so that they share a doorbell and do not wait for one another.
  class outgoing {
   public:
    static constexpr std::size_t most = 8;

    enum class memory : std::uint8_t { owned, borrowed };

    explicit outgoing(memory whose = memory::owned) noexcept : whose_(whose) {}
    outgoing(const outgoing&) = delete;
    outgoing& operator=(const outgoing&) = delete;
    ~outgoing() { std::destroy_n(all().data(), count_); }

    /// Adds a message of `size` bytes; there must be fewer than `most`.
    void add(transfer&& send, std::size_t size) noexcept {
      std::construct_at(all().data() + count_, std::move(send));
      sizes_[count_++] = size;
    }
    [[nodiscard]] std::span<transfer> all() noexcept { return {reinterpret_cast<transfer*>(room_.data()), count_}; }
    [[nodiscard]] std::size_t on_their_way() noexcept;

   private:
    alignas(transfer) std::array<std::byte, most * sizeof(transfer)> room_;
    std::array<std::size_t, most> sizes_{};
    std::size_t count_ = 0;
    const memory whose_;
  };

  [[nodiscard]] connection& open_for(const char* what);
  [[nodiscard]] connection& open_for_sending(const char* what);
  [[nodiscard]] bool has_content() const noexcept { return taken_ != content_.size(); }
  task<bool> receive();
  task<std::size_t> send(outgoing& messages);
  task<mr::buffer> wait_for_memory(std::size_t size, const char* what);
  void stop_waiting() noexcept;
  task<> finish(stream_ref self);

  std::optional<connection> connection_;  // empty once dropped or closed
  std::size_t largest_;                   // the largest message that this end sends, in bytes
  bool closing_ = false;
  bool aborted_ = false;
  turn* waiting_ = nullptr;  // within writing_: the wait for memory

  mr::buffer content_;  // the message that is being read
  std::size_t taken_ = 0;
  bool input_ended_ = false;
  bool output_ended_ = false;
};

}  // namespace weft::net
