// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/system/canceled_list.hpp>
#include <weft/runtime/system/descriptor.hpp>
#include <weft/runtime/system/done_list.hpp>
#include <weft/runtime/system/parked_operations.hpp>
#include <weft/runtime/system/socket_calls.hpp>

#include <liburing.h>

namespace weft {

/// Completion by io_uring(7): one system call per turn submits operations and waits for completions.
class io_uring_driver final : public event_driver {
 public:
  /// Throws weft::error if the kernel or its policy does not allow a ring, or the system refuses a descriptor.
  explicit io_uring_driver(system_calls& calls);
  io_uring_driver(const io_uring_driver&) = delete;
  io_uring_driver& operator=(const io_uring_driver&) = delete;
  ~io_uring_driver() override;

  [[nodiscard]] std::string_view name() const noexcept override { return "io_uring"; }
  void attach_thread() override;
  void start(io_operation& operation) noexcept override;
  void cancel(io_operation& operation) noexcept override;
  std::size_t poll(std::size_t budget) noexcept override;
  std::size_t spin(std::size_t budget) noexcept override;
  std::size_t wait(std::size_t budget, std::optional<duration> timeout) noexcept override;
  void wake() noexcept override;
  [[nodiscard]] bool prepare_wait() noexcept override;
  [[nodiscard]] int wait_fd() override;
  [[nodiscard]] int try_now(io_operation& operation) noexcept override;
  [[nodiscard]] ssize_t try_receive(descriptor& source, msghdr& message) noexcept override;
  [[nodiscard]] bool takes_files() const noexcept override { return true; }

 private:
  struct completion {
    std::uint64_t data;
    int result;
  };

  io_uring_sqe& next_entry() noexcept;
  io_uring_sqe& hand_over_for_an_entry() noexcept;
  [[nodiscard]] bool take(completion& oldest) noexcept;
  [[nodiscard]] io_operation* operation_of(const completion& what) noexcept;
  void prepare(io_operation& operation) noexcept;
  void prepare_parked() noexcept;
  void prepare_cancel(io_operation& operation) noexcept;
  void cancel_again() noexcept;
  [[nodiscard]] bool completions_wait() const noexcept;
  [[nodiscard]] bool try_send(io_operation& operation) noexcept;
  [[nodiscard]] bool try_input(io_operation& operation) noexcept;
  void await_wake() noexcept;
  void set_completions_aside() noexcept;
  std::size_t take_completions(std::size_t budget) noexcept;
  std::size_t complete_done(std::size_t budget) noexcept;

  system_calls& calls_;
  const socket_calls socket_calls_;
  io_uring ring_{};
  descriptor wake_;
  descriptor completed_;          // an eventfd that each completion makes readable; made by wait_fd()
  std::uint64_t wake_count_ = 0;  // filled in by the read of wake_
  bool wake_awaited_ = false;     // the read of wake_ was started and has not completed
  bool received_ = false;         // the last try_receive() did not return EAGAIN; reset before each try
  bool missed_ = false;           // the kernel did not find an operation that it was asked to cancel
  canceled_list canceled_;
  parked_operations sends_;   // sends that were started and are not yet in the ring
  parked_operations inputs_;  // inputs that may be tried, were started and are not yet in the ring
  done_list done_;            // operations that never reached the ring, or whose completions were set aside
};

}  // namespace weft
