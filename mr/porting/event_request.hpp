// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/core/remote_waiter.hpp>

#include <memory>
#include <utility>

namespace weft::mr::porting::detail {

class submission;

/// The queue's view of a task that waits for an event: where its event is stored.
class event_request : public weft::detail::remote_waiter {
 protected:
  event_request() = default;
  event_request(event_request&& other) noexcept : remote_waiter(std::move(other)) {}
  ~event_request() = default;

  std::shared_ptr<submission> received_;  // under the core's mutex while it waits

 private:
  friend class event_queue_core;
};

}  // namespace weft::mr::porting::detail
