// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/buffer.hpp>
#include <weft/mr/remote_region.hpp>
#include <weft/mr/slice.hpp>
#include <weft/mr/usage.hpp>
#include <weft/net/batch.hpp>
#include <weft/net/capabilities.hpp>
#include <weft/net/connection/recv_operation.hpp>
#include <weft/net/connection/transfer.hpp>
#include <weft/net/exposure.hpp>
#include <weft/net/message.hpp>
#include <weft/net/payload.hpp>
#include <weft/net/statistics.hpp>
#include <weft/runtime/core/sole_handle.hpp>
#include <weft/runtime/task.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

namespace weft::net {

class connection_core;

/// A reliable connection to one peer: messages, and one-sided access to the peer's memory. Move-only.
///
/// All calls on the executor that owns it: the one on which it was connected or accepted (else errc::wrong_thread).
/// Operations are posted when they are awaited, start in that order, and complete exactly once. Local memory is given
/// as a payload, or as a sink where it is written: a buffer, a slice, or a list of slices. A stopped operation that was
/// posted may still take effect at the peer: error::posted(). An error of the connection itself (the peer died, broke
/// the protocol, refused an access) ends every operation on it. A connection that was moved from has no peer: its
/// operations end with errc::closed when they are awaited, and so do its other calls at once; peer() is empty, and
/// abort() does nothing.
class connection {
 public:
  connection(connection&&) noexcept = default;
  connection& operator=(connection&& other) noexcept;
  /// Closes in the background, in order; during stack unwinding it aborts. executor::run() returns after that.
  /// A connection that is destroyed on another thread is handed to its executor, which closes it in its next turn, or
  /// else when the executor is destroyed, on the thread of its runs.
  ~connection();

  // Messages.

  /// Sends one message. It waits while the peer has no room for it. errc::message_too_large beyond the peer's
  /// receive_size, before anything is posted. Completes when the memory may be reused; at most 7 slices are gathered.
  /// An invalidation of a key that the peer has not opened for this connection alone ends the connection. See
  /// rdma_post_send(3), RFC 5040 section 5.3.
  [[nodiscard]] transfer send(const payload& what, const send_options& how = {});

  /// Waits for the peer's next message. Empty once the peer has closed in order; errc::peer_vanished if it died
  /// instead. Messages that came before either are yielded first. Cancelling loses nothing: the message goes to the
  /// next recv(). See rdma_post_recv(3), RFC 5041 section 5.3.
  [[nodiscard]] recv_operation recv();
  /// Like recv(), for protocols that expect a message: errc::peer_closed where recv() yields an empty result.
  [[nodiscard]] recv_or_throw_operation recv_or_throw();

  // One-sided operations. The remote slice's bounds and usage are checked before anything is posted.

  /// Writes local memory to `target`, which is of the same size. Completes when the local memory may be reused; it is
  /// placed once a later flush completes or the peer has received a later message, be it this write's own immediate
  /// data. See rdma_post_write(3), RFC 5040 section 5.1, RFC 7306 section 6.
  [[nodiscard]] transfer write(const payload& source, const mr::remote_slice& target, const write_options& how = {});

  /// Reads `source` into local memory of the same size. It may also find what is posted after it, before it has
  /// completed, because an RDMA device reads again what was lost. See rdma_post_read(3), RFC 5040 section 5.2.
  [[nodiscard]] transfer read(const sink& target, const mr::remote_slice& source);

  /// Completes once all earlier writes to the peer are placed: a read of `where`, which must allow reading and is at
  /// least one byte long.
  [[nodiscard]] transfer flush(const mr::remote_slice& where);

  // Atomic operations, on eight bytes of the peer's in its byte order: atomic with those of all peers, and with
  // std::atomic_ref<std::uint64_t> over there. Each yields what the memory held before. `where` is eight bytes long and
  // its address a multiple of eight (else errc::misaligned), and it allows mr::usage::atomic_dst. They start in posting
  // order like reads, with which they share the limit capabilities().outgoing_reads; without capabilities().atomics
  // they are errc::not_supported. A stopped one that was posted may still take effect, once.

  /// Adds, modulo 2^64. See ibv_post_send(3), RFC 7306 section 5.1.1.
  [[nodiscard]] fetch_operation fetch_add(const mr::remote_slice& where, std::uint64_t add);
  /// Stores `desired` if the word is `expected`, and yields the old value: `expected` if it was stored. See RFC 7306
  /// section 5.1.2.
  [[nodiscard]] fetch_operation compare_swap(const mr::remote_slice& where, std::uint64_t expected,
                                             std::uint64_t desired);

  /// Starts operations of this connection in the order of an array, with one doorbell, and waits until all have ended.
  /// The array has a name and outlives the batch.
  ///
  ///     std::array writes{peer.write(head, target.slice(0, 8)), peer.write(body, target.slice(8, 4096))};
  ///     co_await peer.batch(writes);
  ///
  /// Atomic operations may be among them, as transfers:
  ///
  ///     std::array<net::transfer, 2> both{peer.write(source, target), peer.fetch_add(counter, 1)};
  ///     co_await peer.batch(both);
  ///     use(both[1].value());
  ///
  /// If one is refused before it is posted, none is posted, and all end with its error. Else each is by itself: the
  /// first failure is thrown, transfer::failure() tells those of the others. Stopping the batch stops all that have not
  /// ended, each as if it were stopped alone.
  [[nodiscard]] batch_operation batch(std::span<transfer> operations);

  /// Lets the peer, and nobody else, use a pool buffer (for any of mr::usage::write_dst, read_src, atomic_dst and
  /// flush_visibility) until the exposure is revoked or the connection ends. Send the peer exposure::remote().
  ///
  /// A peer that uses the key after that ends the connection, with all its operations: a program that stops waiting for
  /// the peer, at a timeout, calls exposure::retire() instead of dropping the exposure.
  [[nodiscard]] task<exposure> expose(mr::buffer memory, mr::usage uses);

  /// The same for a part of a region, which is registered for mr::usage::bind_window, else errc::access_denied.
  ///
  /// A stop of either call gives a device that works on it another second, and then ends the connection with
  /// errc::closed, because the device might let the peer in at any moment. A device binds a window only after the
  /// messages before it, which the peer may not receive.
  [[nodiscard]] task<exposure> expose(const mr::slice& range, mr::usage uses);

  /// Notes that the peer has said, in the program's own protocol, that it is done with a key of this end. Revokes the
  /// key and releases its memory if the exposure is retired, or else once it is (exposure::retire()). Does nothing for
  /// a key that is not open. Call it only on the peer's word: an access that comes later ends the connection.
  void confirm_retired(const mr::remote_key& key);

  // The end.

  /// Sends what was posted, tells the peer, and waits until both sides are done, at most close_timeout; then it aborts.
  /// Waiting receives end with errc::closed; messages that still come are dropped. If stopped, it aborts at once and
  /// throws errc::canceled.
  [[nodiscard]] task<> close();
  /// Ends the connection now. Operations fail with errc::closed once the transport no longer uses their memory.
  void abort() noexcept;

  /// What both ends can do together.
  [[nodiscard]] const net::capabilities& capabilities() const;
  /// What it has done so far.
  [[nodiscard]] connection_statistics statistics() const;
  /// "10.0.0.7:7471"; where it was accepted over shared memory "process 4711"
  [[nodiscard]] std::string_view peer() const noexcept;
  /// Which of the device's fabrics carries it: "shm", "iwarp", "verbs:mlx5_0".
  [[nodiscard]] std::string_view fabric() const noexcept;
  /// Why it is none of those that the device has before fabric(): "over shm: the peer is on another machine, or in
  /// another network namespace ...". Empty for the first of them, and for a connection that was accepted.
  [[nodiscard]] std::string_view passed_over() const noexcept;
  /// What the peer sent with its set-up.
  [[nodiscard]] std::span<const std::byte> peer_private_data() const noexcept;

 private:
  friend class device;
  friend class connection_request;
  friend class message_stream;
  explicit connection(std::unique_ptr<connection_core> core) noexcept;
  [[nodiscard]] connection_core* core() const noexcept { return core_.held().get(); }
  [[nodiscard]] connection_core& checked() const;
  void release() noexcept;

  struct core_deleter {
    void operator()(connection_core* core) const noexcept;
  };
  weft::detail::sole_handle<std::unique_ptr<connection_core, core_deleter>, "a connection"> core_;
  int exceptions_before_ = 0;
};

}  // namespace weft::net
