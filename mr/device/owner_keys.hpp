// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/usage.hpp>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <utility>

namespace weft::mr {

class memory_device;
class registrar;
struct memory_record;

namespace detail {

class owner_key_use;

/// The result of a peer's access to memory by a key. The numbers go over the wire.
enum class owner_access : std::uint8_t {
  done = 0,
  no_such_key = 1,    ///< unknown, revoked, or for another connection or domain
  not_allowed = 2,    ///< the key's usage does not allow it, or the peer has not shared, or cannot share, its memory
  out_of_range = 3,   ///< beyond the memory
  device_failed = 4,  ///< the device failed to copy or to open memory, or the registered memory was freed
  no_memory = 5,      ///< the owner has no host memory to copy through, or no memory windows for the peer
  closing = 6,        ///< the owner closes the connection
  not_written = 7,    ///< the memory could not be written to the storage of its file
};

/// Keys to memory with which peers ask this process to do what their fabric cannot: to copy to and from memory of
/// devices, and to make memory of files persistent. Connections look the keys up here.
///
/// One table for the process. Thread-safe; a look-up takes a lock, whose cost is nothing beside the work that follows.
class owner_keys {
 public:
  /// The value of opening::connection for a key that every connection of the domain may use.
  static constexpr std::uint64_t any_connection = 0;

  /// The memory that a key opens, and the peers' rights to it.
  struct opening {
    const memory_record* record = nullptr;  ///< must live until the key is closed
    std::shared_ptr<memory_device> device;  ///< whose memory it is; null: host memory
    std::span<std::byte> memory;            ///< the part of the record's memory that the key opens
    usage uses = usage::none;               ///< what peers may do: some of peer_usages
    std::uint64_t connection = any_connection;
    bool direct = false;  ///< this process may open memory that a peer shares, and copy between that and its own
  };

  [[nodiscard]] static owner_keys& of_process() noexcept;

  /// Opens a key that nobody can guess; never 0. Throws weft::error, or std::bad_alloc.
  [[nodiscard]] std::uint64_t open(const opening& what);
  /// Lets no further use of the key begin. True if uses are under way, for which close() will wait.
  [[nodiscard]] bool begin_to_close(std::uint64_t key) noexcept;
  /// Iterates over the devices whose memory is in use through any key, in the order of the memory_device objects'
  /// addresses: returns the first device behind `before`, or null. A null `before` begins.
  [[nodiscard]] std::shared_ptr<memory_device> next_in_use(const memory_device* before) noexcept;
  /// Revokes a key, and waits until its memory is no longer in use. Does nothing if there is no such key. A thread
  /// whose executor has copies, by this key or another, must call copy_engine::close_key() instead.
  void close(std::uint64_t key) noexcept;
  /// The device behind a key. Null if the key is unknown or closed, if its memory is host memory, and if `direct` is
  /// true but opening::direct is not.
  [[nodiscard]] std::shared_ptr<memory_device> device_of(std::uint64_t key, bool direct = false) noexcept;

  /// A peer's request.
  struct access {
    std::uint64_t key = 0;
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
    usage purpose = usage::none;      ///< one of peer_usages; a key for read_src allows flush_visibility, too
    const registrar* home = nullptr;  ///< the domain of its connection
    std::uint64_t connection = any_connection;
  };
  /// Checks a request. If the peer may use the memory, sets `use`, which must be empty, and returns
  /// owner_access::done; otherwise returns the reason.
  [[nodiscard]] owner_access begin(const access& asked, owner_key_use& use) noexcept;

 private:
  friend class owner_key_use;
  struct entry {
    opening what;
    std::size_t uses = 0;  // the number of its owner_key_use objects
    bool closed = false;   // no further use begins
  };

  void end(std::uint64_t key) noexcept;

  std::mutex mutex_;
  std::condition_variable unused_;
  std::unordered_map<std::uint64_t, entry> open_;
};

/// One use of the memory behind a key: as long as this object lives, owner_keys::close() waits. A task must pass it to
/// a copy, or end it, before it suspends, so that a thread that closes a key can end all its own uses. Move-only.
class owner_key_use {
 public:
  owner_key_use() noexcept = default;
  owner_key_use(owner_key_use&& other) noexcept
      : record_(std::exchange(other.record_, nullptr)), memory_(other.memory_), key_(other.key_) {}
  owner_key_use& operator=(owner_key_use&& other) noexcept {
    owner_key_use taken(std::move(other));
    std::swap(record_, taken.record_);
    std::swap(memory_, taken.memory_);
    std::swap(key_, taken.key_);
    return *this;
  }
  ~owner_key_use() { reset(); }

  /// Ends the use. Does nothing the second time.
  void reset() noexcept;
  [[nodiscard]] const memory_record& record() const noexcept { return *record_; }
  /// The memory that the peer asked for.
  [[nodiscard]] std::span<std::byte> memory() const noexcept { return memory_; }

 private:
  friend class owner_keys;
  owner_key_use(const memory_record& record, std::span<std::byte> memory, std::uint64_t key) noexcept
      : record_(&record), memory_(memory), key_(key) {}

  const memory_record* record_ = nullptr;  // null: empty, or ended
  std::span<std::byte> memory_;
  std::uint64_t key_ = 0;
};

}  // namespace detail
}  // namespace weft::mr
