// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/rails/control.hpp>
#include <weft/runtime/core/executor_core.hpp>

#include <map>
#include <memory>
#include <mutex>

namespace weft::net {
class link_request;
}

namespace weft::net::rails {

class rails_link;

/// The connections of a device that rails may join. From any thread; for set-ups only.
class registry {
 public:
  /// On the executor of `which`. Throws std::bad_alloc.
  void add(const connection_id& id, rails_link& which) {
    const std::lock_guard lock(mutex_);
    all_.emplace(id, entry{executor_core::current(), &which});
  }
  void remove(const connection_id& id) noexcept {
    const std::lock_guard lock(mutex_);
    all_.erase(id);
  }
  /// Hands the request to the connection that it is for, on whose executor it goes on. False if there is none, and then
  /// the request is still there. Throws std::bad_alloc.
  [[nodiscard]] static bool deliver(const std::shared_ptr<registry>& self, const join& said,
                                    std::unique_ptr<link_request>& request);

 private:
  struct entry {
    executor_core* home;  // there for as long as the connection is here
    rails_link* which;
  };
  [[nodiscard]] rails_link* find(const connection_id& id) noexcept {
    const std::lock_guard lock(mutex_);
    const auto found = all_.find(id);
    return found != all_.end() ? found->second.which : nullptr;
  }

  std::mutex mutex_;
  std::map<connection_id, entry> all_;
};

}  // namespace weft::net::rails
