// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/buffer.hpp>
#include <weft/mr/remote_region.hpp>
#include <weft/runtime/task.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

namespace weft::net {

class link_keys;

/// A pool buffer that one peer may use. Move-only; destroying it revokes the key and returns the buffer.
/// It may outlive its connection, whose end revokes the key as well. On the connection's executor; destroyed on another
/// thread, it is handed there, soon.
class exposure {
 public:
  exposure() noexcept = default;
  exposure(exposure&& other) noexcept = default;
  exposure& operator=(exposure&& other) noexcept;
  ~exposure();

  /// What to send to the peer.
  [[nodiscard]] const mr::remote_region& remote() const noexcept { return *remote_; }
  [[nodiscard]] const mr::buffer& memory() const noexcept { return buffer_; }

  /// Revokes the key and yields the buffer: the peer touches it no more. errc::wrong_thread elsewhere than on the
  /// connection's executor.
  [[nodiscard]] task<mr::buffer> take_back();

 private:
  friend class connection_core;
  exposure(std::shared_ptr<link_keys> keys, mr::buffer memory, const mr::remote_region& remote) noexcept
      : keys_(std::move(keys)), buffer_(std::move(memory)), remote_(remote) {}
  void drop() noexcept;

  std::shared_ptr<link_keys> keys_;  // null: nothing to revoke
  mr::buffer buffer_;
  std::optional<mr::remote_region> remote_;
};

}  // namespace weft::net
