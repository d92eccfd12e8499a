// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/weft.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include <nvme/command.hpp>

namespace nvme {

/// How a command ended, and what it yields.
class outcome {
 public:
  outcome(nvme::status what) noexcept : status_(what) {}
  outcome(nvme::status what, std::uint64_t result) noexcept : status_(what), result_(result) {}
  /// For the host's memory.
  explicit outcome(weft::mr::buffer data) noexcept : data_(std::move(data)) {}
  /// There is no completion yet.
  [[nodiscard]] static outcome later() noexcept {
    outcome made(status::success);
    made.later_ = true;
    return made;
  }

  [[nodiscard]] nvme::status status() const noexcept { return status_; }
  [[nodiscard]] std::uint64_t result() const noexcept { return result_; }
  [[nodiscard]] bool is_later() const noexcept { return later_; }
  [[nodiscard]] weft::mr::buffer& data() noexcept { return data_; }

 private:
  nvme::status status_ = nvme::status::success;
  bool later_ = false;
  std::uint64_t result_ = 0;
  weft::mr::buffer data_;
};

/// Gives a variable its empty value at the end of a scope.
template <class T>
class reset_at_end {
 public:
  explicit reset_at_end(T& what) noexcept : what_(what) {}
  reset_at_end(const reset_at_end&) = delete;
  reset_at_end& operator=(const reset_at_end&) = delete;
  ~reset_at_end() { what_ = T{}; }

 private:
  T& what_;
};

/// A command that has come, with the means to get at its data. Lives while it is executed.
class request {
 public:
  /// Throws errc::malformed for a capsule that is cut short.
  request(weft::net::message capsule, weft::net::connection& peer, weft::mr::pool& pool,
          std::chrono::milliseconds transfer_timeout);

  [[nodiscard]] const command& asked() const noexcept { return asked_; }

  // Whether the descriptor describes exactly the data that the command has: success, or what is wrong with it.
  [[nodiscard]] status check_no_data() const noexcept;
  [[nodiscard]] status check_from_host(std::uint64_t bytes) const noexcept;
  [[nodiscard]] status check_to_host(std::uint64_t bytes) const noexcept;

  [[nodiscard]] bool is_in_capsule() const noexcept { return asked_.data.type == sgl_type::in_capsule; }
  /// The host's data, which were checked: those in the capsule, or else read into `room`. Needs both until they are
  /// used.
  [[nodiscard]] weft::task<std::span<const std::byte>> from_host(std::uint64_t bytes, weft::mr::buffer& room);
  /// Waits for a buffer.
  [[nodiscard]] weft::mr::allocate_operation room_for(std::uint64_t bytes) { return pool_.allocate(bytes); }

  /// The capsule's memory, for the completion.
  [[nodiscard]] weft::mr::buffer take_capsule() noexcept { return std::move(capsule_.payload); }

 private:
  weft::net::message capsule_;
  weft::net::connection& peer_;
  weft::mr::pool& pool_;
  std::chrono::milliseconds transfer_timeout_;
  command asked_;
};

}  // namespace nvme
