// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/region/peer_gate.hpp>
#include <weft/mr/region/write_counter_core.hpp>
#include <weft/net/software/access_status.hpp>
#include <weft/net/software/atomic_request.hpp>
#include <weft/net/software/erased_keys.hpp>
#include <weft/net/software/key_list.hpp>
#include <weft/runtime/system/system_calls.hpp>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>

namespace weft::net::software {

/// The rights of peers to the memory behind a key.
struct key_rights {
  bool remote_read = false;
  bool remote_write = false;
  bool remote_atomic = false;
};

class direct_memory;

/// Names one connection, so that a key can be for it alone.
using stream_id = std::uint64_t;
/// Stands for every connection.
inline constexpr stream_id any_stream = 0;
/// A new id, unique in the process because transports may share a table. From any thread.
[[nodiscard]] stream_id next_stream() noexcept;

/// The memory that peers may reach, by STag (RFC 5041 section 5.1; RFC 5042 section 6 on why STags are unpredictable).
///
/// Any thread may insert and erase, under a lock. Executors look keys up without one, each through a `reader` of its
/// own: erase() unlinks the entry, and then waits until every reader of another thread has left the batch that it was
/// in. So when erase() has returned, no reader touches the memory any more; for a peer that has the memory mapped, see
/// direct_memory.
///
/// Look-up, insertion and erasure cost the same whether a thousand keys are open or a million: see key_list. The wait
/// of erase() looks at one word of each reader, however many keys there are.
class key_table {
 public:
  class reader;

  static constexpr std::size_t capacity = key_list::most_buckets;

  explicit key_table(system_calls& calls = system_calls::kernel());
  key_table(const key_table&) = delete;
  key_table& operator=(const key_table&) = delete;
  ~key_table();  // asserts that no reader is left

  /// The memory to open: ranges that peers see one behind the other, the first byte at `address`.
  struct opening {
    std::span<const std::span<std::byte>> ranges;  ///< one or more, none of them empty
    std::uint64_t address = 0;
    key_rights rights{};
    stream_id stream = any_stream;
    bool enabled = true;                    ///< false: no peer has access before enable()
    bool may_shrink = false;                ///< pages may be missing, as in a shorter file: the kernel copies
    mr::detail::peer_gate* gate = nullptr;  ///< must be open as well, and counts writes; must outlive the key
    direct_memory* direct = nullptr;        ///< the direct memory around it, if any; must outlive the key
  };

  /// Opens memory under a fresh random key, which is never 0. Throws errc::no_memory when the table is full, the error
  /// of getrandom(2), and std::bad_alloc.
  [[nodiscard]] std::uint32_t open(const opening& what);
  /// Opens memory under a key of the caller's choice, even if the table is full. Throws errc::duplicate_key if the key
  /// is taken, errc::invalid_argument for 0, and std::bad_alloc.
  void open_as(std::uint32_t stag, const opening& what);

  /// Opens `memory`, whose first byte peers call `address`, under a fresh random key, which is never 0.
  /// Throws what open() throws.
  [[nodiscard]] std::uint32_t insert(std::span<std::byte> memory, std::uint64_t address, key_rights rights,
                                     stream_id stream = any_stream);

  /// Opens `memory` under a key of the caller's choice. Throws what open_as() throws.
  void insert_as(std::uint32_t stag, std::span<std::byte> memory, std::uint64_t address, key_rights rights,
                 stream_id stream = any_stream);

  /// Revokes a key and waits, for as long as one batch takes, until no other thread uses it any more. May be called
  /// inside a batch of this thread, for which it does not wait: no place that was looked up in that batch may be used
  /// afterwards. Does nothing if there is no such key. `by_peer`: the key counts as revoked by the peer.
  void erase(std::uint32_t stag, bool by_peer = false) noexcept;

  /// Counts peers' writes with `counter`, which must live until the key is erased. Only before enable(), or before
  /// anybody knows the key.
  void count_writes(std::uint32_t stag, mr::detail::write_counter_core& counter) noexcept;
  void enable(std::uint32_t stag) noexcept;
  /// Sets opening::direct later. Only before anybody knows the key.
  void share(std::uint32_t stag, direct_memory& whole) noexcept;
  /// Sets opening::may_shrink later. Only while the key is disabled.
  void note_that_it_may_shrink(std::uint32_t stag) noexcept;
  /// Refuses accesses as if there were no such key, until enable(). Waits as erase() does.
  void disable(std::uint32_t stag) noexcept;

  /// Whether the key was erased recently, and no peer had revoked it before.
  [[nodiscard]] bool was_revoked(std::uint32_t stag) const noexcept;

  [[nodiscard]] std::size_t size() const noexcept;

 private:
  struct entry;
  struct piece;
  struct turn;  // one per reader

  [[nodiscard]] entry* find(std::uint32_t stag) const noexcept;
  [[nodiscard]] std::uint32_t random_number();
  [[nodiscard]] std::uint32_t draw_key();
  void put(std::uint32_t stag, const opening& what);
  void wait_for_readers() noexcept;

  system_calls& calls_;

  key_list keys_;                      // written under the mutex
  std::atomic<turn*> turns_{nullptr};  // only grows; turns are reused

  mutable std::mutex mutex_;
  erased_keys erased_;                      // not drawn again soon, so that a late access by one of them is recognized
  std::array<std::uint32_t, 64> random_{};  // of getrandom(2), for the next keys
  std::size_t random_left_ = 0;
};

/// One executor's access to a key_table. All calls from that executor's thread.
///
///     key_table::reader::batch inside(reader);   // for no more bytes than one turn handles
///     status = reader.read(stag, offset, out, stream);
class key_table::reader {
 public:
  explicit reader(key_table& table);
  reader(const reader&) = delete;
  reader& operator=(const reader&) = delete;
  ~reader();  // asserts that no batch of it is left

  /// While it lives, erase() and disable() on other threads wait for it: keep it short. May be nested.
  class batch {
   public:
    explicit batch(reader& owner) noexcept : owner_(owner) { owner_.enter(); }
    batch(const batch&) = delete;
    batch& operator=(const batch&) = delete;
    ~batch() { owner_.leave(); }

   private:
    reader& owner_;
  };
  /// Whether this thread is inside a batch. A simulation, which runs one thread at a time, does not switch threads
  /// then.
  [[nodiscard]] static bool is_inside() noexcept;

  /// Executes a peer's read at `offset` in the memory behind `stag`, on connection `stream`: checks it, then copies as
  /// mr::load_shared() does. Touches nothing if the check fails. Where pages may be missing, the kernel copies instead;
  /// if it cannot, returns access_status::bounds, and a part of `out` may have been written. Only inside a batch.
  [[nodiscard]] access_status read(std::uint32_t stag, std::uint64_t offset, std::span<std::byte> out,
                                   stream_id stream) noexcept;
  /// Where the bytes of a checked access lie; only the first of them, if the memory continues elsewhere: look up the
  /// rest anew. Valid until the batch ends, or until this thread calls erase() or disable().
  struct place {
    access_status status;
    std::byte* data;                  ///< null unless ok
    std::uint64_t size;               ///< bytes that lie there in one piece, at most as many as asked for
    bool may_shrink = false;          ///< true: use only copy_into() and copy_out_of() there
    direct_memory* direct = nullptr;  ///< opening::direct; null if there are several ranges
    bool words = false;               ///< for copy_into(): open to atomic operations
  };
  [[nodiscard]] place write_place(std::uint32_t stag, std::uint64_t offset, std::uint64_t bytes,
                                  stream_id stream) noexcept;
  /// Counts a peer's write whose last byte is in place, if there is a counter.
  void written(std::uint32_t stag, stream_id stream) noexcept;
  /// The status that read() of `bytes` bytes would return, if no page is missing.
  [[nodiscard]] access_status check_read(std::uint32_t stag, std::uint64_t offset, std::uint64_t bytes,
                                         stream_id stream) const noexcept {
    return read_place(stag, offset, bytes, stream).status;
  }
  [[nodiscard]] place read_place(std::uint32_t stag, std::uint64_t offset, std::uint64_t bytes,
                                 stream_id stream) const noexcept;
  /// All that a key opens, for a connection that has accessed it. Empty if there is no such key, or if the memory is
  /// not in one piece.
  struct range {
    std::uint64_t address;
    std::span<std::byte> memory;
    key_rights rights;
  };
  [[nodiscard]] range range_of(std::uint32_t stag) const noexcept;

  /// Executes a peer's atomic operation, on memory that is aligned for it. It uses std::atomic_ref<std::uint64_t>, so
  /// it is atomic with such operations of other peers and of this process. `previous` is set only if ok. `counts`: an
  /// operation that stores a value counts as a write.
  [[nodiscard]] access_status atomic(const atomic_request& asked, std::uint64_t& previous, stream_id stream,
                                     bool counts = true) noexcept;
  /// The status that atomic() at that place would return, if no page is missing.
  [[nodiscard]] access_status check_atomic(std::uint32_t stag, std::uint64_t offset, stream_id stream) const noexcept {
    return atomic_place(stag, offset, stream).status;
  }
  [[nodiscard]] place atomic_place(std::uint32_t stag, std::uint64_t offset, stream_id stream) const noexcept;

  /// Revokes the key that a peer's send with invalidate on connection `stream` names (RFC 5040 section 5.1), if the key
  /// is for that connection alone. A key for every connection gives access_status::access, and a key of another
  /// connection access_status::not_associated. No peer can use a revoked key; its owner still has to erase() it.
  [[nodiscard]] access_status invalidate(std::uint32_t stag, stream_id stream) noexcept;

 private:
  friend class key_table;
  enum class right : std::uint8_t { read, write, atomic };

  void enter() noexcept;
  void leave() noexcept;
  [[nodiscard]] static bool is_open(const entry* item) noexcept;
  [[nodiscard]] place look_up(const entry* item, std::uint64_t offset, std::uint64_t bytes, right wanted,
                              stream_id stream) const noexcept;
  [[nodiscard]] place find(std::uint32_t stag, std::uint64_t offset, std::uint64_t bytes, right wanted,
                           stream_id stream) const noexcept;

  key_table& table_;
  turn* turn_;
  std::uint32_t depth_ = 0;
  // The entry that the last write_place() in this batch has found, so that written() need not look it up again; null if
  // it found none.
  const entry* written_to_ = nullptr;
  reader* outer_ = nullptr;  // the reader of this thread that was inside a batch before
};

}  // namespace weft::net::software
