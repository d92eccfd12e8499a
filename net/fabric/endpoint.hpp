// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/fabric/device.hpp>
#include <weft/net/fabric/hello.hpp>
#include <weft/runtime/system/descriptor.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace weft::net::fabric {

/// An endpoint (FI_EP_RDM) for one connection, with a completion queue and an address vector of its own, so that its
/// receives belong to the connection, and closing the endpoint ends the provider's use of all the connection's memory.
///
/// Made, connected and destroyed on workers, because libfabric may block. There are two exceptions: a set-up whose
/// frame is destroyed midway, and a link that is destroyed before it was started, destroy their endpoint on their own
/// thread. Otherwise as thread-safe as libfabric's objects.
class endpoint {
 public:
  /// The most bytes of work_request::own: they are sent behind the payload, or receive an answer.
  static constexpr std::size_t own_bytes = 16;
  static constexpr std::size_t source_bytes = own_bytes + message_trailer::bytes;

  /// Makes room for `requests` and `receives` in flight. `address` is the address of this end of the TCP socket, with
  /// port 0: device::info_at(). Throws weft::error and std::bad_alloc.
  endpoint(std::shared_ptr<const device> home, const void* address, std::size_t address_length, std::uint16_t requests,
           std::uint16_t receives);
  endpoint(const endpoint&) = delete;
  endpoint& operator=(const endpoint&) = delete;
  ~endpoint();

  /// Its own address, for the peer.
  [[nodiscard]] std::span<const std::byte> address() const noexcept { return std::span(address_).first(length_); }
  /// Adds the address of the peer's endpoint. Throws weft::error.
  void insert(std::span<const std::byte> address);
  [[nodiscard]] fi_addr_t peer() const noexcept { return peer_; }

  [[nodiscard]] const device& home() const noexcept { return *home_; }
  [[nodiscard]] fabric_calls& calls() const noexcept { return home_->calls(); }
  [[nodiscard]] fid_ep* get() const noexcept { return endpoint_.get(); }
  [[nodiscard]] fid_cq* queue() const noexcept { return queue_.get(); }
  /// For poll(2). If the provider has no wait objects, a descriptor that never becomes readable.
  [[nodiscard]] int wait_fd() const noexcept { return wait_fd_; }
  [[nodiscard]] bool can_wait() const noexcept { return can_wait_; }

  [[nodiscard]] std::byte* source_of(std::uint16_t slot) const noexcept {
    return staging_.get() + slot * std::size_t{source_bytes + own_bytes};
  }
  [[nodiscard]] std::byte* sink_of(std::uint16_t slot) const noexcept { return source_of(slot) + source_bytes; }
  [[nodiscard]] std::byte* tail_of(std::uint16_t slot) const noexcept {
    return source_of(requests_) + slot * message_trailer::bytes;
  }
  [[nodiscard]] void* staging_desc() const noexcept { return staging_desc_; }

 private:
  // Called inside device::enter(), as are open_queue() and close().
  void open(const void* address, std::size_t address_length, std::size_t entries);
  void open_queue(std::size_t entries);
  void close() noexcept;
  void register_staging(std::size_t bytes);

  std::shared_ptr<const device> home_;
  std::uint16_t requests_;
  std::array<std::byte, max_address_bytes> address_{};
  std::size_t length_ = 0;
  fi_addr_t peer_ = FI_ADDR_UNSPEC;
  descriptor nothing_;  // wait_fd() of a provider without wait objects
  int wait_fd_ = -1;
  bool can_wait_ = true;
  std::unique_ptr<std::byte[]> staging_;
  void* staging_desc_ = nullptr;
  region_ptr staging_region_;
  fid_ptr<fid_av> vector_;
  fid_ptr<fid_cq> queue_;
  fid_ptr<fid_ep> endpoint_;
};

}  // namespace weft::net::fabric
