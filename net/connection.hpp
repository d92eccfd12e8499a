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
#include <weft/net/list.hpp>
#include <weft/net/message.hpp>
#include <weft/net/payload.hpp>
#include <weft/net/prepared_memory.hpp>
#include <weft/net/statistics.hpp>
#include <weft/runtime/core/sole_handle.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/task.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace weft::net {

class connection_core;
class link_keys;
struct connection_state;

/// A connection to one peer. It carries messages, in order and each once, and reads and writes the memory that the peer
/// has opened to it. Move-only.
///
/// It belongs to the executor on which it was connected or accepted. Operations and tasks that are awaited elsewhere
/// throw errc::wrong_thread, and so do try_send(), try_recv() and confirm_retired() called elsewhere. abort() and the
/// queries do not check; of these, only statistics() and rails() may be called on other threads.
///
/// An operation starts when it is awaited. Operations start in the order in which they are awaited, and each completes
/// exactly once. Local memory is passed as a payload if the operation only reads it, and as a sink if it writes it: a
/// buffer, a slice, or a list of slices.
///
/// An operation that is stopped after it was posted may still take effect at the peer: error::posted() says so. An
/// error of the connection itself ends all operations on it: the peer died, broke the protocol, or refused an access.
/// A refused access fails alone in two cases: over rails, if the memory was taken back; and if the peer's process
/// carries the access out, as for device memory and persistent flushes. A connection that was moved from has no peer:
/// operations and tasks, also those of its prepare(), throw errc::closed when they are awaited; other calls
/// throw it at once, except the noexcept ones: is_open() is false, abort() does nothing, and the rest yield nothing.
class connection {
 public:
  connection(connection&&) noexcept = default;
  connection& operator=(connection&& other) noexcept;
  /// Begins an orderly close, or aborts the connection if an exception destroys it. Either goes on in the background,
  /// and executor::run() returns only after it (docs/guide/ownership.md). On the executor's thread between two runs,
  /// the destructor itself runs the executor until the connection has ended. A connection that is destroyed elsewhere
  /// is handed to its executor, which ends it in its next turn, or at the latest when the executor is destroyed, on the
  /// thread that ran it.
  ~connection();

  // Messages.

  /// Sends one message. Completes when the memory may be reused. If capabilities().native, it waits while the peer has
  /// no room, and a message larger than the peer's connection_options::receive_size is errc::message_too_large, before
  /// anything is posted. At most capabilities().max_parts - 1 slices are gathered: 7, or fewer on some devices. A send
  /// may revoke a key of the peer's (send_options::invalidate): if the peer has not opened that key for this connection
  /// alone, the connection ends. See rdma_post_send(3), RFC 5040 section 5.3.
  transfer send(const payload& what, const send_options& how = {});
  /// Sends a copy of any bytes, in a buffer of the device's pool: waits while the pool is used up. Copies the bytes
  /// after the task has begun, so leave them unchanged until the task has ended. The send takes its place in the order
  /// of operations only when the task has the buffer. Otherwise like send().
  task<> send_bytes(std::span<const std::byte> bytes, const send_options& how = {});
  /// Sends a copy of the text's characters; otherwise like send_bytes() of a span.
  task<> send_bytes(std::string_view text, const send_options& how = {});

  /// Sends one message without suspending the task, for loops that poll. Returns false, without effect and with a
  /// buffer&& as it was, if the message would have to wait: for the peer's credits, behind other operations, or for
  /// room among those in flight. If true, the connection keeps the memory until the transport no longer uses it
  /// (buffer::in_use()), and the message is lost only if the connection ends. Throws what send() throws for a refused
  /// message; errc::invalid_argument for memory other than buffers, errc::not_supported for a buffer of device memory
  /// that the fabric does not reach. If it throws, a buffer&& is consumed. A loop must call yield() between sends:
  /// until then no message in flight completes, and over iWARP nothing is sent.
  [[nodiscard]] bool try_send(const payload& what, const send_options& how = {});

  /// Waits for the peer's next message. The result is empty after the peer's orderly close; if the connection has ended
  /// otherwise, the reason is thrown, such as errc::peer_vanished. Messages that came before are yielded first, unless
  /// this end has closed the connection. Over iWARP a peer that is not weft may end its direction alone (a FIN, RFC
  /// 5041 section 6.2.1): the result is empty then, reads, flushes and atomic operations are errc::peer_closed, and
  /// sends and writes go on until close(). Stopping loses nothing: the message goes to the next recv(). A message that
  /// has arrived is received without suspending the task, unless other tasks are due first. See rdma_post_recv(3), RFC
  /// 5041 section 5.3.
  recv_operation recv();
  /// Like recv(), for protocols that expect a message: errc::peer_closed where recv() yields an empty result.
  recv_or_throw_operation recv_or_throw();

  /// Takes the next message, if it has arrived and no task waits for one; otherwise the result is empty. Over shared
  /// memory it also looks for new arrivals; over other fabrics, messages arrive only while the task is suspended, so a
  /// loop must call yield(). When no more messages can come, it throws what recv_or_throw() throws.
  [[nodiscard]] std::optional<message> try_recv();

  /// Receives the next message into memory of the program's, which is registered for mr::usage::recv: a buffer, a
  /// slice, or a list of slices, filled in order. Over shared memory and iWARP a small message is copied there from
  /// where it has arrived; any other message is copied from a receive of the connection's. A message that does not fit
  /// is errc::message_too_large; if a file behind the memory has become shorter, the error is errc::invalid_argument.
  /// Either way the message waits for the next receive. Until the operation has ended, a buffer is in use, and the
  /// region behind a slice stays registered. Stopping loses nothing, and does not wait. Memory of a device is
  /// errc::not_supported. Otherwise like recv(). See rdma_post_recv(3), FI_RECV of fi_mr(3).
  recv_into_operation recv_into(const sink& memory);

  // One-sided operations. The remote slice's bounds and usage are checked before anything is posted.

  /// Writes local memory to `target`, which must have the same size (else errc::invalid_argument). Completes when the
  /// local memory may be reused, which does not mean that the bytes are at the peer. They are there once a later
  /// flush() has completed, or once the peer has received a later message, or this write's own immediate data. The
  /// bounds and the usage of `target` are checked before anything is posted. See rdma_post_write(3), RFC 5040
  /// section 5.1, RFC 7306 section 6.
  transfer write(const payload& source, const mr::remote_slice& target, const write_options& how = {});

  /// Reads `source` into local memory, which must have the same size (else errc::invalid_argument). The read may also
  /// see the effect of operations that were posted after it and before it has completed, because an RDMA device reads
  /// again what was lost on the way. The bounds and the usage of `source` are checked before anything is posted. See
  /// rdma_post_read(3), RFC 5040 section 5.2.
  transfer read(const sink& target, const mr::remote_slice& source);

  /// Prepares many small reads and writes of `where`, whose place is then looked up only once: see prepared_memory.
  [[nodiscard]] prepared_memory prepare(const mr::remote_slice& where);

  /// Completes once all earlier writes of this connection are in the peer's memory. To find out, it reads from `where`,
  /// which must allow mr::usage::read_src or flush_visibility, and must be at least one byte long. See rpma_flush(3).
  ///
  /// A persistent flush completes once all of `where`, which must allow mr::usage::flush_persistent, survives a power
  /// cut of the peer: a worker of the peer writes the memory to the storage of its file (msync(2)), or the peer's
  /// device flushes persistent memory (ibv_wr_flush(3)), which needs capabilities().device_flush as well. Both need
  /// capabilities().persistent_flush. EIO of system_category means that the storage has not taken the bytes.
  transfer flush(const mr::remote_slice& where, flush_type how = flush_type::visibility);

  // Atomic operations.

  /// Adds to eight bytes of the peer's memory, in the peer's byte order, modulo 2^64, and yields what was there before.
  /// The operation is atomic with the atomic operations of all peers over the same fabric, and, over shared memory and
  /// iWARP in user space, with std::atomic_ref<std::uint64_t> at the peer.
  ///
  /// `where` must be eight bytes long, have an address that is a multiple of eight (else errc::misaligned), and allow
  /// mr::usage::atomic_dst. Without capabilities().atomics the operation is errc::not_supported. Atomic operations
  /// start in the order of posting and share the limit capabilities().outgoing_reads with reads. An atomic operation
  /// that is stopped after it was posted may still take effect, once. See ibv_post_send(3), RFC 7306 section 5.1.1.
  fetch_operation fetch_add(const mr::remote_slice& where, std::uint64_t add);
  /// Stores `desired` in eight bytes of the peer's memory if they hold `expected`, and yields what was there before,
  /// which is `expected` if `desired` was stored. Otherwise like fetch_add(). See RFC 7306 section 5.1.2.
  fetch_operation compare_swap(const mr::remote_slice& where, std::uint64_t expected, std::uint64_t desired);

  /// Starts operations of this connection in the order of an array, with one doorbell, and waits until all have ended.
  /// The array must have a name, and outlive the batch.
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
  /// If one operation is refused before it is posted, none is posted, and all end with its error. Otherwise each
  /// succeeds or fails by itself: the first failure is thrown, and transfer::failure() has the others. Stopping the
  /// batch stops each operation that has not ended, as if it were stopped alone. errc::invalid_argument if an operation
  /// was awaited before, is in the batch twice, or belongs to another connection.
  batch_operation batch(std::span<transfer> operations);

  // Lists: any number of writes, or of reads, with one completion and one notification of the peer.

  /// Writes each element of a list, as write() does. With write_options::immediate the peer is notified once, when all
  /// elements are in place; a list without elements cannot notify it. The array must have a name, and outlive the
  /// operation; memory is borrowed, even a buffer's. Thrown before the first element is posted: errc::out_of_range,
  /// errc::invalid_argument, and the errors of write() for each element.
  list_operation write(std::span<const list_part> parts, const write_options& how = {});
  /// Writes each block of a list of blocks of one size; otherwise like a list of parts.
  list_operation write(const block_list& blocks, const write_options& how = {});
  /// Reads each element of a list, as read() does.
  list_operation read(std::span<const list_part> parts);
  /// Reads each block of a list of blocks of one size; otherwise like a list of parts.
  list_operation read(const block_list& blocks);

  /// Lets the peer, and nobody else (unless verbs_options::allow_shared_windows is set), use a pool buffer for any of
  /// mr::usage::write_dst, read_src, atomic_dst and flush_visibility, until either end revokes the key, the exposure's
  /// deadline comes (expose_options::until), or the connection ends. Send the peer exposure::remote(). errc::timed_out
  /// if the deadline has passed before the memory is open; errc::zero_length for an empty buffer; errc::buffer_in_use
  /// while an operation uses the buffer; errc::not_supported over a device without memory windows.
  ///
  /// A peer that uses the key after that ends the connection, with all its operations, unless the connection has rails.
  /// So a program that gives up waiting for the peer, at a timeout, should call exposure::retire() instead of dropping
  /// the exposure.
  task<exposure> expose(mr::buffer memory, mr::usage uses, const expose_options& how = {});

  /// Exposes part of a region that is registered for mr::usage::bind_window; errc::access_denied for any other memory.
  /// A disabled region is errc::invalid_argument where mr::domain_capabilities::gates is false. `uses` may include
  /// mr::usage::flush_persistent beside another usage: docs/persistence.md. Device memory needs
  /// capabilities().device_memory, and cannot have atomic_dst; a late access to it fails alone. Otherwise like expose()
  /// of a buffer.
  ///
  /// Over an RDMA device, either call waits behind the messages that were posted before, which wait for the peer to
  /// receive them. If the call is stopped, the device gets another second; after that the connection ends with
  /// errc::closed, because the device might let the peer in at any moment.
  task<exposure> expose(const mr::slice& range, mr::usage uses, const expose_options& how = {});

  /// Confirms that the peer is done with a key of this end, as the peer has said in the program's own protocol. Revokes
  /// the key and releases its memory: at once if the exposure is retired, otherwise when it is (exposure::retire()).
  /// Does nothing for a key that is not open. Call it only on the peer's word: a later access by the peer ends the
  /// connection, unless the connection has rails.
  void confirm_retired(std::uint64_t key);
  /// Confirms that the peer is done with the key of a retired exposure. errc::invalid_argument for an exposure that was
  /// never opened, or was moved from.
  void confirm_retired(const exposure& retired);

  // Close and abort.

  /// Completes the operations that have started, announces the close, and waits until both sides are done. When
  /// connection_options::close_timeout is over, it aborts the connection instead, and returns without an error once the
  /// transport has released all memory: soon, unless the peer is in the middle of a direct access to memory that it was
  /// lent (docs/shm.md). Waiting receives end with errc::closed; messages that nobody has received are dropped. close()
  /// does not wait for reads and writes of the peer in this end's memory, which may be cut off. If stopped, it aborts
  /// at once, and throws errc::canceled once the transport has released all memory.
  task<> close();
  /// Ends the connection now. Operations fail with errc::closed once the transport no longer uses their memory.
  void abort() noexcept;

  /// Whether neither end has closed, and nothing has ended the connection. After the error of an operation, true means
  /// that only that operation failed. False for a connection that was moved from.
  [[nodiscard]] bool is_open() const noexcept;
  /// Waits until the connection is no longer open, and yields why: errc::peer_closed after an orderly close by the
  /// peer, errc::closed after a close by this end, and otherwise what ended the connection. Unless this end has closed
  /// it, messages that came before can still be received. A stop leaves the connection as it is.
  task<error> ended();

  /// What both ends can do together.
  [[nodiscard]] const net::capabilities& capabilities() const;
  /// A snapshot of its counters.
  [[nodiscard]] connection_statistics statistics() const;
  /// State and traffic of each of its rails; at the accepting end, of those that have joined so far. Empty for a
  /// connection of a single link, and if the peer does not know rails. May be called from any thread, like
  /// statistics(), as long as the connection is neither moved nor destroyed meanwhile. Throws std::bad_alloc.
  [[nodiscard]] std::vector<rail_statistics> rails() const;
  /// The peer's address: "10.0.0.7:7471". At the accepting end of shared memory it is "process 4711".
  [[nodiscard]] std::string_view peer() const noexcept;
  /// The fabric of the device that carries the connection: "shm", "iwarp", "verbs:mlx5_0".
  [[nodiscard]] std::string_view fabric() const noexcept;
  /// Why the fabrics that the device prefers do not carry the connection: "over shm: the peer is on another machine, or
  /// in another network namespace ...". Empty if fabric() is the device's first one, and for an accepted connection.
  [[nodiscard]] std::string_view passed_over() const noexcept;
  /// The private data that the peer sent with its set-up. Hostile until checked.
  [[nodiscard]] std::span<const std::byte> peer_private_data() const noexcept;

 private:
  friend class device;
  friend class connection_request;
  friend class message_stream;
  explicit connection(std::unique_ptr<connection_core> core) noexcept;
  [[nodiscard]] connection_core* core() const noexcept { return core_.held().get(); }
  [[nodiscard]] connection_core& checked() const;
  static task<> send_copy(connection_core& core, connection_state& state, std::shared_ptr<link_keys> keys,
                          std::span<const std::byte> bytes, send_options how);
  void release() noexcept;

  struct core_deleter {
    void operator()(connection_core* core) const noexcept;
  };
  weft::detail::sole_handle<std::unique_ptr<connection_core, core_deleter>, "a connection"> core_;
  int exceptions_before_ = 0;
};

}  // namespace weft::net
