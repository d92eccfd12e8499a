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
  no_such_key = 1,    ///< unknown, revoked, or for others
  not_allowed = 2,    ///< the usage of the memory does not allow it
  out_of_range = 3,   ///< beyond the memory
  device_failed = 4,  ///< the device did not copy, or the memory was freed while it was registered
  no_memory = 5,      ///< the owner has no host memory to copy through
  closing = 6,        ///< the owner closes the connection
  not_written = 7,    ///< the memory could not be written to the storage of its file
};

/// Keys to memory with which peers ask this process to do what their fabric cannot: to copy to and from memory of
/// devices, and to make memory of files persistent. Connections look the keys up here.
///
/// One table for the process. Thread-safe; a look-up takes a lock, whose cost is nothing beside the work that follows.
class owner_keys {
 public:
  /// For any connection of a device.
  static constexpr std::uint64_t any_connection = 0;

  /// The memory that a key opens, and the peers' rights to it.
  struct opening {
    const memory_record* record = nullptr;  ///< lives until the key is closed
    std::shared_ptr<memory_device> device;  ///< whose memory it is; null: host memory
    std::span<std::byte> memory;            ///< the part of it that the key opens
    usage uses = usage::none;               ///< of peer_usages
    std::uint64_t connection = any_connection;
    bool direct = false;  ///< this process may open memory that a peer shares, and copy between that and its own
  };

  [[nodiscard]] static owner_keys& of_process() noexcept;

  /// Opens a key that nobody can guess; never 0. Throws weft::error.
  [[nodiscard]] std::uint64_t open(const opening& what);
  /// Lets no further copy begin. True if copies are under way, for which close() will wait.
  [[nodiscard]] bool begin_to_close(std::uint64_t key) noexcept;
  /// Iterates over the devices whose memory is used through a key, in the order of their addresses: the first one
  /// behind `before`, or null.
  [[nodiscard]] std::shared_ptr<memory_device> next_in_use(const memory_device* before) noexcept;
  /// Revokes a key, and waits until no copy uses its memory. Does nothing if there is no such key. A thread whose
  /// executor has copies, by this key or another, calls copy_engine::close_key() instead.
  void close(std::uint64_t key) noexcept;
  /// The device behind a key; null if there is none, or no such key, or if `direct` is asked for and the key is not
  /// opening::direct.
  [[nodiscard]] std::shared_ptr<memory_device> device_of(std::uint64_t key, bool direct = false) noexcept;

  /// A peer's request.
  struct access {
    std::uint64_t key = 0;
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
    usage purpose = usage::none;      ///< one of peer_usages; a flush is satisfied by usage::read_src as well
    const registrar* home = nullptr;  ///< the domain of its connection
    std::uint64_t connection = any_connection;
  };
  /// Checks a request, and sets `use` if the peer may use the memory.
  [[nodiscard]] owner_access begin(const access& asked, owner_key_use& use) noexcept;

 private:
  friend class owner_key_use;
  struct entry {
    opening what;
    std::size_t uses = 0;  // copies under way
    bool closed = false;   // no further copy begins
  };

  void end(std::uint64_t key) noexcept;

  std::mutex mutex_;
  std::condition_variable unused_;
  std::unordered_map<std::uint64_t, entry> open_;
};

/// One copy's use of memory behind a key: as long as it lives, owner_keys::close() waits. A task passes it to its copy
/// without suspending, so that a thread that closes a key can end all its own uses. Move-only.
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

  const memory_record* record_ = nullptr;  // null: it has ended
  std::span<std::byte> memory_;
  std::uint64_t key_ = 0;
};

}  // namespace detail
}  // namespace weft::mr
