// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/join.hpp>
#include <weft/net/rails/health.hpp>
#include <weft/runtime/core/executor_core.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

namespace weft::net {
class link_request;
}

namespace weft::net::rails {

/// A connection that rails may join.
class joinable {
 public:
  /// Takes a peer's request to add a rail. Called on the connection's executor.
  virtual void join_asked(const join& said, std::unique_ptr<link_request> request) noexcept = 0;

 protected:
  ~joinable() = default;
};

/// The connections of a device that rails may join. From any thread. Not for the data path: takes a lock.
class registry {
 public:
  class registration;

  /// A registry for a device of these fabrics. Throws std::bad_alloc.
  explicit registry(const std::vector<std::string_view>& fabrics) : rails(fabrics) {}

  device_rails rails;

  /// The result of deliver().
  enum class delivery : std::uint8_t {
    delivered,  ///< the request was passed to the connection's executor
    too_early,  ///< the connection is still being set up; `request` is unchanged
    unknown,    ///< there is no such connection; `request` is unchanged
  };
  /// Hands the request to its connection. Throws std::bad_alloc, and `request` is unchanged then.
  [[nodiscard]] static delivery deliver(const std::shared_ptr<registry>& self, const join& said,
                                        std::unique_ptr<link_request>& request);

  /// Counts a request that may become a connection which rails may join.
  class candidate {
   public:
    explicit candidate(registry& at) noexcept : at_(at) { at_.expected_.fetch_add(1, std::memory_order_relaxed); }
    candidate(const candidate&) = delete;
    candidate& operator=(const candidate&) = delete;
    ~candidate() { at_.expected_.fetch_sub(1, std::memory_order_relaxed); }

   private:
    registry& at_;
  };
  /// Whether there are any connections that rails may join, or candidates.
  [[nodiscard]] bool expects_rails() const noexcept { return expected_.load(std::memory_order_relaxed) != 0; }

 private:
  struct entry {
    executor_core* home;  // alive while the connection is registered
    joinable* which;      // null: the connection is still being set up
  };
  void put(const connection_id& id, joinable* which) {
    const std::lock_guard lock(mutex_);
    if (all_.insert_or_assign(id, entry{executor_core::current(), which}).second) {
      expected_.fetch_add(1, std::memory_order_relaxed);
    }
  }
  void remove(const connection_id& id) noexcept {
    const std::lock_guard lock(mutex_);
    if (all_.erase(id) != 0) expected_.fetch_sub(1, std::memory_order_relaxed);
  }
  [[nodiscard]] joinable* find(const connection_id& id) noexcept {
    const std::lock_guard lock(mutex_);
    const auto found = all_.find(id);
    return found != all_.end() ? found->second.which : nullptr;
  }

  std::mutex mutex_;
  std::map<connection_id, entry> all_;
  std::atomic<std::size_t> expected_{0};
};

/// A connection's entry in the registry. It must be made before the id is sent to the peer, because the peer may ask to
/// add a rail at once.
class registry::registration {
 public:
  registration() noexcept = default;
  /// Throws std::bad_alloc.
  registration(std::shared_ptr<registry> where, const connection_id& id) : where_(std::move(where)), id_(id) {
    where_->put(id_, nullptr);
  }
  registration(registration&& other) noexcept : where_(std::move(other.where_)), id_(other.id_) {}
  registration& operator=(registration&&) = delete;
  ~registration() { leave(); }

  /// Lets rails join from now on. On the executor of `which`.
  void begin(joinable& which) {
    if (where_ != nullptr) where_->put(id_, &which);
  }
  /// Ends the registration: no more rails join.
  void leave() noexcept {
    if (const auto left = std::exchange(where_, nullptr); left != nullptr) left->remove(id_);
  }

 private:
  std::shared_ptr<registry> where_;  // null: not registered
  connection_id id_{};
};

}  // namespace weft::net::rails
