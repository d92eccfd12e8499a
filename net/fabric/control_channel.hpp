// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/fabric/hello.hpp>
#include <weft/net/link/tcp_socket.hpp>
#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/system/descriptor.hpp>
#include <weft/runtime/system/event_driver.hpp>
#include <weft/runtime/system/system_calls.hpp>

#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <span>

namespace weft::net::fabric {

/// The TCP socket beside the fabric, over which the two ends of a connection send each other records.
class control_channel final : private io_operation {
 public:
  class reader {
   public:
    /// Called when there may be records, or with -errno in `result`. Called once for each wait that await() has begun;
    /// after cancel(), `result` is -ECANCELED or what happened first.
    virtual void on_readable(int result) noexcept = 0;

   protected:
    ~reader() = default;
  };

  control_channel(executor_core& home, descriptor& socket, reader& owner) noexcept
      : io_operation(io_kind::readable), home_(home), socket_(socket), owner_(owner) {
    target = &socket_;
  }

  /// Sends a record; the socket's buffer has room, because a connection sends few. False if the socket does not take
  /// all of it.
  [[nodiscard]] bool send(const control_record& what) const noexcept {
    const auto bytes = pack(what);
    return send_now(socket_, bytes) == static_cast<ssize_t>(bytes.size());
  }
  /// Receives the next record and returns its length, 0 once the peer has closed the socket, or -errno: -EAGAIN if the
  /// record is not here yet.
  [[nodiscard]] ssize_t receive(control_record& what) noexcept {
    while (input_bytes_ != input_.size()) {
      iovec where{.iov_base = input_.data() + input_bytes_, .iov_len = input_.size() - input_bytes_};
      msghdr contents{};
      contents.msg_iov = &where;
      contents.msg_iovlen = 1;
      const ssize_t count = home_.io().try_receive(socket_, contents);
      if (count == -EINTR) return -EAGAIN;
      if (count <= 0) return count;
      input_bytes_ += static_cast<std::size_t>(count);
    }
    input_bytes_ = 0;
    what = unpack(std::span<const std::byte, control_record::bytes>(input_));
    return control_record::bytes;
  }

  void await() noexcept {
    if (!in_progress()) home_.io().start(*this);
  }
  void cancel() noexcept {
    if (in_progress()) home_.io().cancel(*this);
  }
  [[nodiscard]] bool is_awaited() const noexcept { return in_progress(); }

 private:
  void complete(int result) noexcept override { owner_.on_readable(result); }

  executor_core& home_;
  descriptor& socket_;
  reader& owner_;
  std::array<std::byte, control_record::bytes> input_{};
  std::size_t input_bytes_ = 0;
};

}  // namespace weft::net::fabric
