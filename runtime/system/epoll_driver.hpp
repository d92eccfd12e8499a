// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/intrusive_list.hpp>
#include <weft/runtime/system/descriptor.hpp>
#include <weft/runtime/system/done_list.hpp>
#include <weft/runtime/system/parked_operations.hpp>
#include <weft/runtime/system/socket_calls.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

struct epoll_event;

namespace weft {

/// Readiness by epoll(7), edge-triggered: a descriptor is registered once, and a call that was short or returned EAGAIN
/// is not repeated before the next edge. So a message costs one wait, one recvmsg and one sendmsg.
class epoll_driver final : public event_driver {
 public:
  explicit epoll_driver(system_calls& calls);
  epoll_driver(const epoll_driver&) = delete;
  epoll_driver& operator=(const epoll_driver&) = delete;
  ~epoll_driver() override;

  [[nodiscard]] std::string_view name() const noexcept override { return "epoll"; }
  void attach_thread() override {}
  void start(io_operation& operation) noexcept override;
  void cancel(io_operation& operation) noexcept override;
  std::size_t poll(std::size_t budget) noexcept override;
  std::size_t hand_over(std::size_t budget) noexcept override { return complete_done(budget); }
  std::size_t spin(std::size_t budget) noexcept override;
  std::size_t wait(std::size_t budget, std::optional<duration> timeout) noexcept override;
  void wake() noexcept override;
  [[nodiscard]] bool prepare_wait() noexcept override { return done_.empty(); }
  [[nodiscard]] int wait_fd() override { return epoll_.fd(); }
  [[nodiscard]] int try_now(io_operation& operation) noexcept override;
  [[nodiscard]] ssize_t try_receive(descriptor& source, msghdr& message) noexcept override;
  void forget(descriptor& target) noexcept override;

 private:
  struct news;

  int attach(descriptor& target) noexcept;
  void detach(descriptor& target) noexcept;
  int attempt(io_operation& operation) noexcept;
  int attempt_other(io_operation& operation) noexcept;
  int send(const io_operation& operation) noexcept;
  ssize_t receive(descriptor& source, msghdr& message, int flags) noexcept;
  [[nodiscard]] bool try_oldest() noexcept;
  void park(io_operation& operation) noexcept;
  void unpark(io_operation& operation) noexcept;
  [[nodiscard]] bool retry(io_operation* parked, std::uint32_t events, int& result) noexcept;
  std::size_t collect(std::optional<duration> timeout) noexcept;
  int wait_for_edges(std::span<epoll_event> events, std::optional<duration> timeout) noexcept;
  std::size_t handle(std::uint32_t events, descriptor& target) noexcept;
  std::size_t complete_done(std::size_t budget) noexcept;

  system_calls& calls_;
  const socket_calls socket_calls_;
  descriptor epoll_;
  descriptor wake_;
  detail::intrusive_list<descriptor> attached_;  // the registered descriptors
  done_list done_;
  parked_operations to_try_;  // the youngest operations that wait for an edge and may be tried
  bool received_ = false;     // the last try_receive() did not return EAGAIN; reset before each try
  unsigned turns_without_look_ = 0;
  bool precise_ = true;   // epoll_pwait2(2) is available, as far as is known
  news* news_ = nullptr;  // the events that are being handled, or null
};

}  // namespace weft
