// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/verbs/calls.hpp>
#include <weft/net/verbs/descriptor_watch.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

namespace weft::net::verbs {

/// A copy of a connection manager event. The event itself has been acknowledged.
struct cm_event {
  rdma_cm_event_type type{};
  int status = 0;
  rdma_cm_id* id = nullptr;  ///< the id that the event is about; of a connection request: the new id
  std::uint8_t responder_resources = 0;
  std::uint8_t initiator_depth = 0;
  std::uint8_t private_bytes = 0;
  std::array<std::byte, 255> private_data{};  ///< padded with zeros by the connection manager

  [[nodiscard]] std::span<const std::byte> said() const noexcept {
    return std::span(private_data).first(private_bytes);
  }
};

/// Receives an id's events. rdma_cm_id::context points to it, or is null if the events are dropped.
class cm_handler {
 public:
  /// Called on the executor of the id's channel. Must not destroy the handler.
  virtual void on_cm_event(const cm_event& what) noexcept = 0;

 protected:
  ~cm_handler() = default;
};

/// Owns a channel. The channel's ids share this object, because they have to be destroyed before the channel.
class channel_handle {
 public:
  /// Opens a channel. Throws weft::error.
  explicit channel_handle(rdma_calls& library);
  channel_handle(const channel_handle&) = delete;
  channel_handle& operator=(const channel_handle&) = delete;
  ~channel_handle() { calls_.destroy_event_channel(channel_); }

  [[nodiscard]] rdma_calls& calls() const noexcept { return calls_; }
  [[nodiscard]] rdma_event_channel* get() const noexcept { return channel_; }

 private:
  rdma_calls& calls_;
  rdma_event_channel* channel_ = nullptr;
};

/// Owns an id, and keeps its channel. Destruction may block in the kernel: see destroy_on_worker().
class cm_id {
 public:
  cm_id() = default;
  cm_id(std::shared_ptr<channel_handle> channel, rdma_cm_id* id) noexcept : channel_(std::move(channel)), id_(id) {}
  /// Creates an id. Throws weft::error.
  cm_id(std::shared_ptr<channel_handle> channel, cm_handler* handler);
  cm_id(cm_id&& other) noexcept : channel_(std::move(other.channel_)), id_(std::exchange(other.id_, nullptr)) {}
  cm_id& operator=(cm_id&& other) noexcept {
    std::swap(channel_, other.channel_);
    std::swap(id_, other.id_);
    return *this;
  }
  ~cm_id() {
    if (id_ != nullptr) channel_->calls().destroy_id(id_);
  }

  explicit operator bool() const noexcept { return id_ != nullptr; }
  [[nodiscard]] rdma_cm_id* get() const noexcept { return id_; }
  rdma_cm_id* operator->() const noexcept { return id_; }
  void set_handler(cm_handler* handler) noexcept { id_->context = handler; }
  /// Moves the id to the channel of another executor, and waits until its events that were taken from the old channel
  /// have been acknowledged. The id must have no handler, because the old executor may call a handler after that.
  /// Returns 0 or -errno.
  [[nodiscard]] int migrate(const std::shared_ptr<channel_handle>& target) noexcept;
  /// Has a worker destroy the id; without an executor on this thread, or without memory, destroys it before returning.
  /// From any thread.
  static void destroy_on_worker(cm_id id) noexcept;

 private:
  std::shared_ptr<channel_handle> channel_;
  rdma_cm_id* id_ = nullptr;
};

/// One executor's channel of connection manager events.
class event_channel final : public descriptor_watch {
 public:
  /// Opens a channel for the running executor. Throws weft::error.
  explicit event_channel(rdma_calls& library) : event_channel(std::make_shared<channel_handle>(library)) {}

  [[nodiscard]] const std::shared_ptr<channel_handle>& handle() const noexcept { return handle_; }

 private:
  explicit event_channel(std::shared_ptr<channel_handle> handle);

  bool on_readable() noexcept override;
  void dispatch_one(rdma_cm_event& event) noexcept;

  std::shared_ptr<channel_handle> handle_;
};

}  // namespace weft::net::verbs
